//! Collectives: what the devices of a mesh exchange inside of [`shard_map`](crate::shard_map), and the examples of a
//! batch inside of a [`vmap`](crate::vmap()) with an [`axis_name`](crate::transform::Transformed::axis_name).
//!
//! Each function names one axis of the mesh or several of them, `"data"` or `["data", "model"]`; the devices that
//! differ along these axes alone are a *group*, in which a device has its number, [`axis_index`], the last axis
//! fastest. The functions are those of `jax.lax`, with the same results and gradients.
//!
//! | function | the result on each device |
//! |---|---|
//! | [`psum`](psum()) [`pmean`] [`pmax`] [`pmin`] | the blocks of the group combined |
//! | [`all_gather`] | the blocks of the group together |
//! | [`psum_scatter`] | the device's part of the combined blocks |
//! | [`all_to_all`] | the device's part of each block of the group |
//! | [`ppermute`] [`pshuffle`] | the block of another device |
//! | [`axis_index`] [`axis_size`] | the device's number in the group; the number of devices |
//! | [`pvary`] [`pcast`] | the block, in another [`ManualAxisState`] |
//!
//! Inside of `shard_map` a value is in one [`ManualAxisState`] along each axis. A mistake makes a poisoned array, as
//! for operations of [`ops`](crate::ops).
mod psum;
mod runs;

use crate::array::{Array, canonicalize_axis};
use crate::jit::axis_names::{BoundAxes, find_bound_axes};
use crate::jit::{create_array, is_tracing, manual_axis_states};
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::{AllGather, AllToAll, Axis, Pcast, Permute};
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Reshape, Transpose};
use pallas_ir::{At, DType, Diag, Dim, Loc, StructuralOp};

use runs::consecutive_device_table;

pub use crate::jit::axis_names::AxisNames;
pub use pallas_graph::mesh::ManualAxisState;
pub use psum::{pmax, pmean, pmin, psum, psum_scatter, psum_scatter_tiled};

fn collective_diag(name: &'static str, message: String, help: &str) -> Diag {
    Diag::new(name, At::Op, message, help)
}

/// States of an operand (invariant, varying, unreduced, reduced) that a collective accepts along its axes.
#[derive(Clone, Copy)]
struct AdmittedOperandStates {
    /// The accepted states along each axis.
    states: &'static [ManualAxisState],
    /// True if the states along the axes may differ.
    mixed: bool,
    /// A state that the operand must have along at least one of the axes.
    needs: Option<ManualAxisState>,
}

/// Appends a collective by `build` over axes that must be bound. Along them the operand must be in a state that
/// `admits` allows, else the result holds an error; `name` is the collective's, for messages.
fn apply_collective(
    name: &'static str,
    x: &Array,
    axes: &impl AxisNames,
    at: Loc,
    admits: AdmittedOperandStates,
    build: impl FnOnce(&mut Graph, Var, &BoundAxes) -> Result<Var, Diag>,
) -> Array {
    let checked = || {
        x.check()?;
        let bound = find_bound_axes(&axes.names(), at)?;
        // Examples of a batch have no states.
        let axes = bound.manual_axes();
        let own = manual_axis_states(x);
        let own =
            |(_, axis): &(_, Axis)| own.as_ref().map_or(ManualAxisState::Invariant, |own| own[usize::from(axis.id)]);
        let own: Vec<ManualAxisState> = axes.iter().map(own).collect();
        let axis = |i: usize| axes[i].0.name(usize::from(axes[i].1.id));
        let refused = |message: String, help: &str| Err(Error::operation(at, collective_diag(name, message, help)));
        let AdmittedOperandStates { states: of, mixed, needs } = admits;
        let is_wrong =
            |state: &ManualAxisState| !of.contains(state) || needs.is_some_and(|needed| !own.contains(&needed));
        if let Some(i) = own.iter().position(is_wrong) {
            let message = format!("`{name}` of a value that is {} over axis `{}`", own[i].name(), axis(i));
            let names: Vec<&str> = needs.map_or(of.to_vec(), |needed| vec![needed]).iter().map(|s| s.name()).collect();
            let help = match names.is_empty() {
                true => "reduce it: `psum`, `pmax`, or `all_gather_invariant`".to_string(),
                false => format!("it takes values that are {}", names.join(" or ")),
            };
            return refused(message, &help);
        }
        if let Some(i) = own.iter().position(|&state| state != own[0]).filter(|_| !mixed) {
            let (a, b) = (own[0].name(), own[i].name());
            let message = format!("`{name}` of a value that is {a} over axis `{}` and {b} over `{}`", axis(0), axis(i));
            return refused(message, "`pvary` it over one of them first, or call it for one axis after the other");
        }
        Ok(bound)
    };
    match checked() {
        Ok(bound) => create_array(&[x], at, |graph, v| build(graph, v[0], &bound)),
        Err(error) => Array::new_poisoned(error, x.client().clone(), x.dtype(), x.shape()),
    }
}

/// Operand states that collectives accept which only move blocks between devices: invariant or varying, along each
/// axis.
const MOVE_OPERAND_STATES: AdmittedOperandStates =
    AdmittedOperandStates { states: &[ManualAxisState::Invariant, ManualAxisState::Varying], mixed: true, needs: None };

/// The blocks of all devices along axes, stacked along a new dimension `dim`; `lax.all_gather`.
#[track_caller]
#[must_use]
pub fn all_gather(x: &Array, axes: impl AxisNames, dim: isize) -> Array {
    apply_collective("all_gather", x, &axes, Loc::caller(), MOVE_OPERAND_STATES, |graph, v, bound| {
        push_all_gather(graph, v, bound, dim, false)
    })
}

/// The blocks of all devices along axes, joined along the dimension `dim`; `lax.all_gather(.., tiled=True)`.
///
/// ```
/// use pallas_rt::sharding::{Mesh, P};
/// use pallas_rt::{Array, shard_map, spmd};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// let whole = |x: &Array| spmd::all_gather_tiled(x, "data", 0);
/// let f = shard_map(whole, &mesh, [P("data")], [P("data")]);
/// assert_eq!(f(&Array::from_slice(&[1, 2], &[2])?)?.to_vec::<i32>()?, [1, 2, 1, 2]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn all_gather_tiled(x: &Array, axes: impl AxisNames, dim: isize) -> Array {
    apply_collective("all_gather", x, &axes, Loc::caller(), MOVE_OPERAND_STATES, |graph, v, bound| {
        push_all_gather(graph, v, bound, dim, true)
    })
}

/// The blocks of all devices along axes, joined along the dimension `dim`, as a value that is known to be equal on all
/// these devices; `lax.all_gather(.., tiled=True, to="invarying")`.
#[track_caller]
#[must_use]
pub fn all_gather_invariant(x: &Array, axes: impl AxisNames, dim: isize) -> Array {
    apply_collective("all_gather", x, &axes, Loc::caller(), MOVE_OPERAND_STATES, |graph, v, bound| {
        let all = push_all_gather(graph, v, bound, dim, true)?;
        bound.push_collective(graph, Pcast { from: ManualAxisState::Varying, to: ManualAxisState::Invariant }, &[all])
    })
}

/// The blocks of all devices along axes, joined along the dimension `dim`, for a varying value. The cotangents of the
/// result are parts of a sum, which the gradient sums as it scatters them; `lax.all_gather(.., tiled=True,
/// to="reduced")`.
#[track_caller]
#[must_use]
pub fn all_gather_reduced(x: &Array, axes: impl AxisNames, dim: isize) -> Array {
    let admits = AdmittedOperandStates { needs: Some(ManualAxisState::Varying), ..MOVE_OPERAND_STATES };
    apply_collective("all_gather", x, &axes, Loc::caller(), admits, |graph, v, bound| {
        let all = push_all_gather(graph, v, bound, dim, true)?;
        bound.push_collective(graph, Pcast { from: ManualAxisState::Varying, to: ManualAxisState::Reduced }, &[all])
    })
}

/// Appends an all-gather, whose blocks are joined along `dim` if `tiled`, else stacked along a new dimension `dim`.
fn push_all_gather(graph: &mut Graph, v: Var, bound: &BoundAxes, dim: isize, tiled: bool) -> Result<Var, Diag> {
    let rank = graph.ty(v).shape.len();
    let dim = canonicalize_axis(dim, rank + usize::from(!tiled))?;
    let all = bound.push_collective(graph, AllGather, &[v])?;
    let placed = move_dimension(graph, all, 0, dim)?;
    if tiled { merge_dimensions(graph, placed, dim) } else { Ok(placed) }
}

/// From the block of each device along axes, the element that belongs to this device: the dimension `split`, as long as
/// the group, is dropped, and the elements are stacked along a new dimension `concat`; `lax.all_to_all`.
#[track_caller]
#[must_use]
pub fn all_to_all(x: &Array, axes: impl AxisNames, split: isize, concat: isize) -> Array {
    apply_collective("all_to_all", x, &axes, Loc::caller(), MOVE_OPERAND_STATES, |graph, v, bound| {
        let rank = graph.ty(v).shape.len();
        let (split, concat) = (canonicalize_axis(split, rank)?, canonicalize_axis(concat, rank)?);
        check_group_length(graph, v, split, bound, "all_to_all")?;
        let parts = move_dimension(graph, v, split, 0)?;
        let parts = bound.push_collective(graph, AllToAll, &[parts])?;
        move_dimension(graph, parts, 0, concat)
    })
}

/// From the block of each device along axes, the part of the dimension `split` that belongs to this device; the parts
/// are joined along the dimension `concat`; `lax.all_to_all(.., tiled=True)`.
///
/// ```
/// use pallas_rt::sharding::{Mesh, P};
/// use pallas_rt::{Array, shard_map, spmd};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// // From rows to columns.
/// let f = |x: &Array| spmd::all_to_all_tiled(x, "data", 1, 0);
/// let f = shard_map(f, &mesh, [P("data")], [P((None, "data"))]);
/// assert_eq!(f(&Array::from_slice(&[1, 2, 3, 4], &[2, 2])?)?.to_vec::<i32>()?, [1, 2, 3, 4]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn all_to_all_tiled(x: &Array, axes: impl AxisNames, split: isize, concat: isize) -> Array {
    apply_collective("all_to_all", x, &axes, Loc::caller(), MOVE_OPERAND_STATES, |graph, v, bound| {
        let rank = graph.ty(v).shape.len();
        let (split, concat) = (canonicalize_axis(split, rank)?, canonicalize_axis(concat, rank)?);
        let parts = split_dimension(graph, v, split, bound, "all_to_all")?;
        let parts = bound.push_collective(graph, AllToAll, &[parts])?;
        let placed = move_dimension(graph, parts, 0, concat)?;
        merge_dimensions(graph, placed, concat)
    })
}

/// The block of the device that sends to this one: `pairs` are the numbers of each source and its target; zeros where
/// none sends; `lax.ppermute`. No device sends or receives twice.
///
/// ```
/// use pallas_rt::sharding::{Mesh, P};
/// use pallas_rt::{Array, shard_map, spmd};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("ring", 3)]).expect("a mesh"));
/// let shift = |x: &Array| spmd::ppermute(x, "ring", &[(0, 1), (1, 2)]);
/// let f = shard_map(shift, &mesh, [P("ring")], [P("ring")]);
/// assert_eq!(f(&Array::from_slice(&[1, 2, 3], &[3])?)?.to_vec::<i32>()?, [0, 1, 2]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn ppermute(x: &Array, axes: impl AxisNames, pairs: &[(usize, usize)]) -> Array {
    apply_collective("ppermute", x, &axes, Loc::caller(), MOVE_OPERAND_STATES, |graph, v, bound| {
        push_permutation(graph, v, bound, pairs)
    })
}

/// Appends a permutation of blocks by pairs of a source and its target; refuses a device that sends or receives twice.
fn push_permutation(graph: &mut Graph, v: Var, bound: &BoundAxes, pairs: &[(usize, usize)]) -> Result<Var, Diag> {
    let n = bound.member_count();
    let mut sources = vec![None; n];
    let mut sends = vec![false; n];
    for &(from, to) in pairs {
        if from >= n || to >= n {
            let message = format!("device {from} sends to {to} in a group of {n}");
            return Err(collective_diag("ppermute", message, "devices count from 0"));
        }
        if std::mem::replace(&mut sends[from], true) || sources[to].replace(from).is_some() {
            let message = format!("{pairs:?} has a source or a target twice");
            return Err(collective_diag("ppermute", message, "each device sends and receives one block at most"));
        }
    }
    bound.push_collective(graph, Permute(sources), &[v])
}

/// On device `i`, the block of the device `sources[i]`; `lax.pshuffle`. `sources` is a permutation of all numbers.
#[track_caller]
#[must_use]
pub fn pshuffle(x: &Array, axes: impl AxisNames, sources: &[usize]) -> Array {
    apply_collective("pshuffle", x, &axes, Loc::caller(), MOVE_OPERAND_STATES, |graph, v, bound| {
        if sources.len() != bound.member_count() {
            let message = format!("{} sources in a group of {}", sources.len(), bound.member_count());
            return Err(collective_diag("pshuffle", message, "one for each device"));
        }
        let pairs: Vec<(usize, usize)> = sources.iter().enumerate().map(|(to, &from)| (from, to)).collect();
        push_permutation(graph, v, bound, &pairs)
    })
}

/// The block of the device `source` of each group, on all devices; `lax.pbroadcast`. The gradient by that block is the
/// sum of the gradients of all devices.
///
/// # Errors
/// The result holds: an axis that is not bound; a source that the group does not have.
///
/// ```
/// use pallas_rt::sharding::{Mesh, P};
/// use pallas_rt::{Array, shard_map, spmd};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 3)]).expect("a mesh"));
/// let f = shard_map(|x: &Array| spmd::pbroadcast(x, "data", 1), &mesh, [P("data")], [P("data")]);
/// assert_eq!(f(&Array::from_slice(&[1, 2, 3], &[3])?)?.to_vec::<i32>()?, [2, 2, 2]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn pbroadcast(x: &Array, axes: impl AxisNames, source: usize) -> Array {
    apply_collective("pbroadcast", x, &axes, Loc::caller(), MOVE_OPERAND_STATES, |graph, v, bound| {
        bound.push_broadcast(graph, source, v)
    })
}

/// The number of the device in its group, an i32 scalar; `lax.axis_index`.
///
/// # Errors
/// The result holds: an axis that is not bound.
#[track_caller]
#[must_use]
pub fn axis_index(axes: impl AxisNames) -> Array {
    let at = Loc::caller();
    match find_bound_axes(&axes.names(), at) {
        Ok(bound) if is_tracing() => create_array(&[], at, |graph, _| {
            bound.push_collective(graph, consecutive_device_table(bound.member_count()), &[])
        }),
        Ok(_) => unreachable!("axes are bound where a function is traced"),
        Err(error) => Array::new_poisoned(error, crate::array::Client::cpu(), DType::I32, &[]),
    }
}

/// The number of devices in a group; `lax.axis_size`.
///
/// # Errors
/// An axis that is not bound.
#[track_caller]
pub fn axis_size(axes: impl AxisNames) -> Result<usize> {
    Ok(find_bound_axes(&axes.names(), Loc::caller())?.member_count())
}

/// The block of a value that is equal on all devices along axes, as a varying value; `lax.pvary`. The gradient of the
/// value is the sum over the devices. Operations of an equal and a varying value do this themselves.
#[track_caller]
#[must_use]
pub fn pvary(x: &Array, axes: impl AxisNames) -> Array {
    cast_state("pvary", x, &axes, Loc::caller(), ManualAxisState::Varying)
}

/// The block in another state along axes; `lax.pcast`: from invariant or reduced to varying, from varying to unreduced,
/// from invariant to reduced.
#[track_caller]
#[must_use]
pub fn pcast(x: &Array, axes: impl AxisNames, to: ManualAxisState) -> Array {
    cast_state("pcast", x, &axes, Loc::caller(), to)
}

/// Appends a cast of a value to the state `to` (varying, unreduced or reduced) along axes; a state that has no cast to
/// it is an error in the result.
fn cast_state(name: &'static str, x: &Array, axes: &impl AxisNames, at: Loc, to: ManualAxisState) -> Array {
    let of: &'static [ManualAxisState] = match to {
        ManualAxisState::Varying => &[ManualAxisState::Invariant, ManualAxisState::Reduced],
        ManualAxisState::Unreduced => &[ManualAxisState::Varying],
        ManualAxisState::Reduced => &[ManualAxisState::Invariant],
        ManualAxisState::Invariant => &[],
    };
    let own = manual_axis_states(x);
    apply_collective(
        name,
        x,
        axes,
        at,
        AdmittedOperandStates { states: of, mixed: false, needs: None },
        |graph, v, bound| {
            let first = bound.manual_axes().first().map(|(_, axis)| usize::from(axis.id));
            let from = own.zip(first).map_or(ManualAxisState::Invariant, |(own, first)| own[first]);
            bound.push_collective(graph, Pcast { from, to }, &[v])
        },
    )
}

/// Refuses a dimension that is not as long as the group.
fn check_group_length(graph: &Graph, v: Var, dim: usize, bound: &BoundAxes, name: &'static str) -> Result<(), Diag> {
    let (ty, n) = (graph.ty(v), bound.member_count());
    if ty.shape[dim] == n {
        return Ok(());
    }
    let message = format!("dimension {dim} of {ty} among {n} devices");
    Err(collective_diag(
        name,
        message,
        "it has an element for each device; for parts of several elements there is a tiled form",
    ))
}

/// Splits a dimension into a part for each device of the group, along a new first dimension.
fn split_dimension(graph: &mut Graph, v: Var, dim: usize, bound: &BoundAxes, name: &'static str) -> Result<Var, Diag> {
    let (ty, n) = (graph.ty(v).clone(), bound.member_count());
    if !ty.shape[dim].is_multiple_of(n) {
        let message = format!("dimension {dim} of {ty} in {n} parts");
        return Err(collective_diag(name, message, "its length is a multiple of the number of devices"));
    }
    let mut shape = ty.shape;
    shape.splice(dim..=dim, [n, shape[dim] / n]);
    let split = push_reshape(graph, v, &shape)?;
    move_dimension(graph, split, dim, 0)
}

/// Moves a dimension to another position.
fn move_dimension(graph: &mut Graph, v: Var, from: usize, to: usize) -> Result<Var, Diag> {
    if from == to {
        return Ok(v);
    }
    let mut axes: Vec<usize> = (0..graph.ty(v).shape.len()).filter(|&axis| axis != from).collect();
    axes.insert(to, from);
    graph.push(StructuralOp::from(Transpose { axes }), &[v])
}

/// Merges a dimension with the next one.
fn merge_dimensions(graph: &mut Graph, v: Var, dim: usize) -> Result<Var, Diag> {
    let mut shape = graph.ty(v).shape.clone();
    shape.splice(dim..dim + 2, [shape[dim] * shape[dim + 1]]);
    push_reshape(graph, v, &shape)
}

fn push_reshape(graph: &mut Graph, v: Var, shape: &[usize]) -> Result<Var, Diag> {
    graph.push(StructuralOp::from(Reshape { to: shape.iter().map(|&n| Dim::from(n)).collect() }), &[v])
}
