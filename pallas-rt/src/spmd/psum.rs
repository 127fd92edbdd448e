//! Sums, means, maxima and minima of the blocks of a group, whole or scattered.
use super::{
    AdmittedOperandStates, AxisNames, ManualAxisState, apply_collective, check_group_length, collective_diag,
    move_dimension, split_dimension,
};
use crate::array::{Array, canonicalize_axis};
use pallas_device::error::Result;
use pallas_graph::mesh::{AllReduce, ReduceScatter};
use pallas_graph::{Graph, Var};
use pallas_ir::structural::Cast;
use pallas_ir::{DType, Diag, Literal, Loc, ScalarOp, StructuralOp};

/// Operand states that sums over devices accept: one of invariant, varying and unreduced, along all axes.
const SUM_OPERAND_STATES: AdmittedOperandStates = AdmittedOperandStates {
    states: &[ManualAxisState::Invariant, ManualAxisState::Varying, ManualAxisState::Unreduced],
    mixed: false,
    needs: None,
};
/// Operand states that maxima and minima over devices accept: invariant or varying, along all axes.
const EXTREMUM_OPERAND_STATES: AdmittedOperandStates = AdmittedOperandStates {
    states: &[ManualAxisState::Invariant, ManualAxisState::Varying],
    mixed: false,
    needs: None,
};

/// The sum of the blocks of all devices along axes; `lax.psum`. Bools count as 0 and 1, in i32.
///
/// ```
/// use pallas_rt::sharding::{Mesh, P};
/// use pallas_rt::{Array, shard_map, spmd};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// let total = shard_map(|x: &Array| spmd::psum(x, "data"), &mesh, [P("data")], [P(())]);
/// assert_eq!(total(&Array::from_slice(&[1.0f32, 2.0], &[2])?)?.to_vec::<f32>()?, [3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn psum(x: &Array, axes: impl AxisNames) -> Array {
    apply_collective("psum", x, &axes, Loc::caller(), SUM_OPERAND_STATES, |graph, v, bound| {
        let v = match graph.ty(v).dtype {
            DType::Bool => graph.push(StructuralOp::from(Cast { to: DType::I32 }), &[v])?,
            _ => v,
        };
        bound.push_collective(graph, AllReduce(ScalarOp::Add), &[v])
    })
}

/// The mean of the blocks of all devices along axes, of floats; `lax.pmean`.
#[track_caller]
#[must_use]
pub fn pmean(x: &Array, axes: impl AxisNames) -> Array {
    apply_collective("pmean", x, &axes, Loc::caller(), SUM_OPERAND_STATES, |graph, v, bound| {
        let ty = graph.ty(v).clone();
        if !ty.dtype.is_float() {
            return Err(collective_diag(
                "pmean",
                format!("the mean of {ty}"),
                "cast it to floats: `x.cast(DType::F32)`",
            ));
        }
        let sum = bound.push_collective(graph, AllReduce(ScalarOp::Add), &[v])?;
        let count = graph.splat(Literal::new(ty.dtype, bound.member_count() as f64), &ty.shape);
        graph.push(ScalarOp::Div, &[sum, count])
    })
}

/// Appends a reduction of the blocks of all devices along axes by `op`, a maximum or minimum.
fn reduce_extremum(name: &'static str, x: &Array, axes: &impl AxisNames, at: Loc, op: ScalarOp) -> Array {
    apply_collective(name, x, axes, at, EXTREMUM_OPERAND_STATES, |graph, v, bound| {
        let op = op.monoid_for_dtype(graph.ty(v).dtype);
        bound.push_collective(graph, AllReduce(op), &[v])
    })
}

/// The greatest elements of the blocks of all devices along axes; `lax.pmax`. Of bools, whether any is true. It has no
/// derivative.
#[track_caller]
#[must_use]
pub fn pmax(x: &Array, axes: impl AxisNames) -> Array {
    reduce_extremum("pmax", x, &axes, Loc::caller(), ScalarOp::Maximum)
}

/// The least elements of the blocks of all devices along axes; `lax.pmin`. Of bools, whether all are true. It has no
/// derivative.
#[track_caller]
#[must_use]
pub fn pmin(x: &Array, axes: impl AxisNames) -> Array {
    reduce_extremum("pmin", x, &axes, Loc::caller(), ScalarOp::Minimum)
}

/// Refuses the sum of truth values, which does not fit their type.
fn check_summable(graph: &Graph, v: Var) -> Result<(), Diag> {
    let ty = graph.ty(v);
    if ty.dtype == DType::Bool {
        return Err(collective_diag(
            "psum_scatter",
            format!("the sum of {ty}"),
            "cast it to integers: `x.cast(DType::I32)`",
        ));
    }
    Ok(())
}

/// The sum of the blocks of all devices along axes, scattered: each device keeps one element of the dimension `dim`,
/// which must be as long as the group and is dropped; `lax.psum_scatter`.
#[track_caller]
#[must_use]
pub fn psum_scatter(x: &Array, axes: impl AxisNames, dim: isize) -> Array {
    apply_collective("psum_scatter", x, &axes, Loc::caller(), SUM_OPERAND_STATES, |graph, v, bound| {
        let dim = canonicalize_axis(dim, graph.ty(v).shape.len())?;
        check_summable(graph, v)?;
        check_group_length(graph, v, dim, bound, "psum_scatter")?;
        let parts = move_dimension(graph, v, dim, 0)?;
        bound.push_collective(graph, ReduceScatter(ScalarOp::Add), &[parts])
    })
}

/// The sum of the blocks of all devices along axes, scattered: each device keeps its part of the dimension `dim`;
/// `lax.psum_scatter(.., tiled=True)`.
///
/// ```
/// use pallas_rt::sharding::{Mesh, P};
/// use pallas_rt::{Array, shard_map, spmd};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// let f = shard_map(|x: &Array| spmd::psum_scatter_tiled(x, "data", 0), &mesh, [P("data")], [P("data")]);
/// assert_eq!(f(&Array::from_slice(&[1, 2, 3, 4], &[4])?)?.to_vec::<i32>()?, [4, 6]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn psum_scatter_tiled(x: &Array, axes: impl AxisNames, dim: isize) -> Array {
    apply_collective("psum_scatter", x, &axes, Loc::caller(), SUM_OPERAND_STATES, |graph, v, bound| {
        let dim = canonicalize_axis(dim, graph.ty(v).shape.len())?;
        check_summable(graph, v)?;
        let parts = split_dimension(graph, v, dim, bound, "psum_scatter")?;
        bound.push_collective(graph, ReduceScatter(ScalarOp::Add), &[parts])
    })
}
