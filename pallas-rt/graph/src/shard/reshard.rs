//! The collectives that turn one sharding of an array into another one.
//!
//! ```text
//! "x"=2, "y"=4:  [{"x"}, {}, {"y"}] -> [{}, {"x"}, {}]     all_to_all {"x"}: 0->1; all_gather [{}, {}, {"y"}]
//! ```
//!
//! [`plan_shardy_steps`] finds the collectives of Shardy's pass `sdy-reshard-to-collectives`, with the moves in
//! `reshard_search`. Some of its steps change the padding of dimensions that axes divide unevenly, which devices cannot
//! do with their blocks alone; the steps of [`plan_executable_steps`] do not, and devices execute these. `axis_reorder`
//! replaces permutes by steps that move less.
//!
//! Shapes here are those of whole arrays. The block of a device is the one that [`Sharding::local_shape`] describes, so
//! the last blocks of a dimension may extend beyond the array.
mod axis_reorder;
mod reshard_search;

pub(super) use reshard_search::align_axes;

use crate::mesh::axis::{product_of_sizes, push_merged};
use crate::mesh::{Axis, Mesh, Sharding, axes_text};
use reshard_search::ReshardSearch;

/// One step of resharding: a collective, or an operation on each device's own block, that changes the sharding of an
/// array.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ReshardStep {
    /// By dimension, the axes that no longer shard it after the step; they are its last ones. Devices along these axes
    /// gather their blocks.
    AllGather(Vec<Vec<Axis>>),
    /// By dimension, the axes that shard it after the step in addition to its present ones, as its last axes. Each
    /// device keeps a part of its block.
    AllSlice(Vec<Vec<Axis>>),
    /// The last axes of one dimension become the last axes of another one. Devices along these axes swap parts of their
    /// blocks.
    AllToAll {
        /// The axes that are moved to another dimension.
        axes: Vec<Axis>,
        /// The dimension that they shard before the step.
        from: usize,
        /// The dimension that they shard after the step.
        to: usize,
    },
    /// Other axes shard the dimensions, into as many blocks as before. Each device receives the block of the device
    /// that [`permute_sources`] names.
    Permute,
    /// The array gets this shape. Each device reshapes its block, whose elements stay where they are.
    Reshape(Vec<usize>),
    /// The array gets this shape: dimensions that each device has whole are padded or cut at the end. Sharded
    /// dimensions keep their blocks; only the number of elements that count as part of the array changes.
    Resize(Vec<usize>),
}

/// Steps in order, each with the sharding of the array after it.
pub type ReshardSteps = Vec<(ReshardStep, Sharding)>;

impl ReshardStep {
    /// Returns the text of the step, with axes in Shardy's syntax: `all_to_all {"x"}: 0->1`.
    pub fn text(&self, mesh: &Mesh) -> String {
        let by_dimension = |lists: &[Vec<Axis>]| {
            let lists = lists.iter().map(|axes| format!("{{{}}}", axes_text(axes, mesh)));
            format!("[{}]", lists.collect::<Vec<_>>().join(", "))
        };
        match self {
            ReshardStep::AllGather(axes) => format!("all_gather {}", by_dimension(axes)),
            ReshardStep::AllSlice(axes) => format!("all_slice {}", by_dimension(axes)),
            ReshardStep::AllToAll { axes, from, to } => {
                format!("all_to_all {{{}}}: {from}->{to}", axes_text(axes, mesh))
            }
            ReshardStep::Permute => "collective_permute".into(),
            ReshardStep::Reshape(shape) => format!("reshape {shape:?}"),
            ReshardStep::Resize(shape) => format!("resize {shape:?}"),
        }
    }
}

/// Returns the steps that Shardy takes from one sharding of an array to another one. Devices cannot execute all of
/// these sequences on blocks, because a step may change how far the blocks of a dimension extend beyond it.
///
/// Both shardings have equal unreduced axes: sums are completed by an all-reduce before. Shardings after steps are
/// closed and in normal form; the last one places elements as `to` does.
///
/// ```
/// use pallas_graph::mesh::{Mesh, Sharding};
/// use pallas_graph::shard::reshard::plan_shardy_steps;
/// let mesh = Mesh::new(&[("x", 2), ("y", 4)])?;
/// let sharding = |text| Sharding::parse(text, &mesh).unwrap();
/// let steps = plan_shardy_steps(&[8, 8], &sharding(r#"[{"x"}, {}]"#), &sharding(r#"[{}, {"x", "y"}]"#));
/// let steps: Vec<String> =
///     steps.iter().map(|(step, after)| format!("{} {}", step.text(&mesh), after.text(&mesh))).collect();
/// assert_eq!(steps, [
///     r#"all_slice [{"y"}, {}] [{"x", "y"}, {}]"#,
///     r#"all_to_all {"x", "y"}: 0->1 [{}, {"x", "y"}]"#,
/// ]);
/// # Ok::<(), pallas_ir::Diag>(())
/// ```
pub fn plan_shardy_steps(shape: &[usize], from: &Sharding, to: &Sharding) -> ReshardSteps {
    let (old, new) = (normalized_axes(from), normalized_axes(to));
    let is_blocked = find_repadded_dims(shape, &old, &new);
    let found = ReshardSearch::new(shape, &old, &new, is_blocked, &from.unreduced).find_steps();
    let found = found.filter(|steps| all_steps_satisfy(&old, steps, is_valid_step));
    found.unwrap_or_else(|| plan_gather_and_slice(&old, &new, &from.unreduced, |_| false))
}

/// Returns by dimension true if it is sharded both before and after, with different padding. Measured: Shardy makes
/// such a dimension whole in between.
fn find_repadded_dims(shape: &[usize], old: &[Vec<Axis>], new: &[Vec<Axis>]) -> Vec<bool> {
    let is_repadded = |dim: usize| {
        let (before, after) = (product_of_sizes(&old[dim]), product_of_sizes(&new[dim]));
        before > 1 && after > 1 && padded_extent(shape[dim], before) != padded_extent(shape[dim], after)
    };
    (0..shape.len()).map(is_repadded).collect()
}

/// Returns the steps that devices execute from one sharding of an array to another one. They are those of
/// [`plan_shardy_steps`] for an array padded to the longer blocks of both shardings, if all axes in between divide it
/// evenly; permutes that move nothing are dropped, and others are replaced where other steps move less. A dimension
/// that both shardings pad differently is made whole in between or first of all; if that is not possible either, all
/// dimensions in which the shardings differ are gathered, then sliced.
pub fn plan_executable_steps(shape: &[usize], from: &Sharding, to: &Sharding) -> ReshardSteps {
    let (old, new) = (normalized_axes(from), normalized_axes(to));
    let is_blocked = find_repadded_dims(shape, &old, &new);
    if !is_blocked.contains(&true)
        && let Some(steps) = plan_on_padded_blocks(shape, from, &old, &new)
    {
        return steps;
    }
    let is_executable = |step: &ReshardStep, before: &[Vec<Axis>], after: &[Vec<Axis>]| {
        is_valid_step(step, before, after) && has_nested_blocks(step, shape, before, after)
    };
    let found = ReshardSearch::new(shape, &old, &new, is_blocked.clone(), &from.unreduced).find_steps();
    let found = found
        .filter(|steps| all_steps_satisfy(&old, steps, is_executable))
        .map(|steps| drop_identity_permutes(&old, steps));
    found
        .or_else(|| plan_with_gathered_dims(shape, from, &old, &new, &is_blocked))
        .unwrap_or_else(|| plan_gather_and_slice(&old, &new, &from.unreduced, |dim| old[dim] == new[dim]))
}

/// Returns steps that first gather the dimensions marked in `must_be_whole`, which have to be whole in between; `None`
/// if no dimension is marked or no steps on blocks lead on from there.
fn plan_with_gathered_dims(
    shape: &[usize],
    from: &Sharding,
    old: &[Vec<Axis>],
    new: &[Vec<Axis>],
    must_be_whole: &[bool],
) -> Option<ReshardSteps> {
    let take = |is_taken: bool| -> Vec<Vec<Axis>> {
        let own = |(axes, &is_blocked): (&Vec<Axis>, &bool)| if is_blocked == is_taken { axes.clone() } else { vec![] };
        old.iter().zip(must_be_whole).map(own).collect()
    };
    let (gathered, kept) = (take(true), take(false));
    let mut steps = plan_on_padded_blocks(shape, from, &kept, new).filter(|_| must_be_whole.contains(&true))?;
    steps.insert(0, (ReshardStep::AllGather(gathered), closed_sharding(&kept, &from.unreduced)));
    Some(steps)
}

/// Returns the steps without the permutes after which every block is where it was.
fn drop_identity_permutes(old: &[Vec<Axis>], steps: ReshardSteps) -> ReshardSteps {
    let mut before = old.to_vec();
    let changes = |(step, after): &(ReshardStep, Sharding)| {
        let before = std::mem::replace(&mut before, after.axes());
        *step != ReshardStep::Permute || before != after.axes()
    };
    let kept: Vec<bool> = steps.iter().map(changes).collect();
    steps.into_iter().zip(kept).filter_map(|(step, is_kept)| is_kept.then_some(step)).collect()
}

/// Returns the steps for an array padded to the longer blocks of the two shardings, for dimensions that both pad alike
/// or that only one shards; `None` if axes in between divide it unevenly.
fn plan_on_padded_blocks(
    shape: &[usize],
    from: &Sharding,
    old: &[Vec<Axis>],
    new: &[Vec<Axis>],
) -> Option<ReshardSteps> {
    let extent = |dim: usize| padded_extent(shape[dim], product_of_sizes(&old[dim]).max(product_of_sizes(&new[dim])));
    let extents: Vec<usize> = (0..shape.len()).map(extent).collect();
    let difference = || ReshardSearch::new(&extents, old, new, vec![false; shape.len()], &from.unreduced);
    let is_executable = |step: &ReshardStep, before: &[Vec<Axis>], after: &[Vec<Axis>]| {
        is_valid_step(step, before, after)
            && extents.iter().zip(after).all(|(n, axes)| n.is_multiple_of(product_of_sizes(axes)))
    };
    let found = |steps: Option<ReshardSteps>| {
        let steps = steps.filter(|steps| all_steps_satisfy(old, steps, is_executable))?;
        Some(drop_identity_permutes(old, steps))
    };
    let mut steps = found(difference().find_steps())?;
    let moved = |steps: &ReshardSteps| count_elements_moved(&extents, old, steps);
    if steps.iter().any(|(step, _)| *step == ReshardStep::Permute)
        && let Some(others) = found(difference().find_steps_slicing_last())
        && moved(&others) < moved(&steps)
    {
        steps = others;
    }
    if let Some(mut steps) = axis_reorder::replace_permute_step(&extents, from, &steps) {
        if extents != shape {
            steps.insert(0, (ReshardStep::Resize(extents), closed_sharding(old, &from.unreduced)));
            steps.push((ReshardStep::Resize(shape.to_vec()), closed_sharding(new, &from.unreduced)));
        }
        return Some(steps);
    }
    Some(insert_resizes(shape, &extents, from, old, steps))
}

/// Returns the number of elements that each device sends in these steps.
fn count_elements_moved(shape: &[usize], old: &[Vec<Axis>], steps: &ReshardSteps) -> usize {
    let before = std::iter::once(old.to_vec()).chain(steps.iter().map(|(_, after)| after.axes()));
    let sent = before.zip(steps).map(|(before, (step, _))| {
        let block: usize = shape.iter().zip(&before).map(|(n, axes)| n / product_of_sizes(axes)).product();
        match step {
            ReshardStep::AllGather(lists) => {
                block * (lists.iter().map(|axes| product_of_sizes(axes)).product::<usize>() - 1)
            }
            ReshardStep::AllToAll { axes, .. } => block / product_of_sizes(axes) * (product_of_sizes(axes) - 1),
            ReshardStep::Permute => block,
            ReshardStep::AllSlice(_) | ReshardStep::Reshape(_) | ReshardStep::Resize(_) => 0,
        }
    });
    sent.sum()
}

/// Inserts steps that resize a dimension from `shape` to `padded_extents` before it is sharded, and back when it is
/// whole.
fn insert_resizes(
    shape: &[usize],
    padded_extents: &[usize],
    from: &Sharding,
    old: &[Vec<Axis>],
    steps: ReshardSteps,
) -> ReshardSteps {
    let (mut before, mut current, mut all) = (closed_sharding(old, &from.unreduced), shape.to_vec(), vec![]);
    let mut resize = |wanted: Vec<usize>, sharding: &Sharding, all: &mut ReshardSteps| {
        if wanted != current {
            all.push((ReshardStep::Resize(wanted.clone()), sharding.clone()));
            current = wanted;
        }
    };
    for (step, after) in steps {
        let is_sharded = |dim: usize| !before.dims[dim].axes.is_empty() || !after.dims[dim].axes.is_empty();
        let wanted =
            (0..shape.len()).map(|dim| if is_sharded(dim) { padded_extents[dim] } else { shape[dim] }).collect();
        resize(wanted, &before, &mut all);
        all.push((step, after.clone()));
        before = after;
    }
    resize(shape.to_vec(), &before, &mut all);
    all
}

/// Returns by position of the mesh the position whose block that device receives in a [`ReshardStep::Permute`]. Every
/// device sends its block to exactly one device, to itself where it may keep the block.
pub fn permute_sources(mesh: &Mesh, before: &Sharding, after: &Sharding) -> Vec<usize> {
    let blocks = |sharding: &Sharding| -> Vec<usize> {
        let axes: Vec<Axis> = sharding.axes().concat();
        (0..mesh.device_count()).map(|position| mesh.index(position, &axes)).collect()
    };
    let (has, needs) = (blocks(before), blocks(after));
    let moving = |blocks: &[usize]| {
        let mut positions: Vec<usize> =
            (0..mesh.device_count()).filter(|&position| has[position] != needs[position]).collect();
        positions.sort_by_key(|&position| blocks[position]);
        positions
    };
    let mut sources: Vec<usize> = (0..mesh.device_count()).collect();
    // As many devices have a block as need it, so both lists have the blocks in the same order.
    moving(&needs).into_iter().zip(moving(&has)).for_each(|(target, source)| sources[target] = source);
    sources
}

/// Returns the axes of each dimension in normal form: without axes of size 1, and with adjacent parts of an axis as
/// one.
fn normalized_axes(sharding: &Sharding) -> Vec<Vec<Axis>> {
    let normal = |axes: &Vec<Axis>| {
        let mut kept = vec![];
        axes.iter().filter(|axis| axis.size > 1).for_each(|&axis| push_merged(&mut kept, axis));
        kept
    };
    sharding.dims.iter().map(|dim| normal(&dim.axes)).collect()
}

/// Returns a closed sharding by these axes, with partial sums along `unreduced`.
fn closed_sharding(axes: &[Vec<Axis>], unreduced: &[Axis]) -> Sharding {
    Sharding { unreduced: unreduced.to_vec(), ..Sharding::closed(axes.iter().cloned()) }
}

/// Returns steps that gather all dimensions except those that `is_kept` names, then slice them. They can always be
/// executed, since devices have each changed dimension whole in between.
fn plan_gather_and_slice(
    old: &[Vec<Axis>],
    new: &[Vec<Axis>],
    unreduced: &[Axis],
    is_kept: impl Fn(usize) -> bool,
) -> ReshardSteps {
    let changed = |lists: &[Vec<Axis>]| -> Vec<Vec<Axis>> {
        lists.iter().enumerate().map(|(dim, axes)| if is_kept(dim) { vec![] } else { axes.clone() }).collect()
    };
    let kept: Vec<Vec<Axis>> = (0..old.len()).map(|dim| if is_kept(dim) { old[dim].clone() } else { vec![] }).collect();
    let (gathered, sliced) = (changed(old), changed(new));
    let mut steps = vec![];
    if gathered.iter().any(|axes| !axes.is_empty()) {
        steps.push((ReshardStep::AllGather(gathered), closed_sharding(&kept, unreduced)));
    }
    if sliced.iter().any(|axes| !axes.is_empty()) {
        steps.push((ReshardStep::AllSlice(sliced), closed_sharding(new, unreduced)));
    }
    steps
}

/// Returns true if `is_right` returns true for each step, given the axes by dimension before and after the step.
fn all_steps_satisfy(
    old: &[Vec<Axis>],
    steps: &ReshardSteps,
    is_right: impl Fn(&ReshardStep, &[Vec<Axis>], &[Vec<Axis>]) -> bool,
) -> bool {
    let before = std::iter::once(old.to_vec()).chain(steps.iter().map(|(_, after)| after.axes()));
    before.zip(steps).all(|(before, (step, after))| is_right(step, &before, &after.axes()))
}

/// Returns true if the axes after a step can shard one array together: no part of an axis occurs twice, and all parts
/// of an axis come from one division of it. A permute also has to keep the number of blocks. Where sizes of axes do not
/// divide each other, such as 2 and 3, the search can break these rules; Shardy fails there.
fn is_valid_step(step: &ReshardStep, before: &[Vec<Axis>], after: &[Vec<Axis>]) -> bool {
    let all = after.concat();
    let fits = |a: Axis, b: Axis| !a.overlaps(b) && a.can_coexist(b);
    let goes_together = all.iter().enumerate().all(|(i, &a)| all[..i].iter().all(|&b| fits(a, b)));
    let is_resized =
        before.iter().zip(after).any(|(before, after)| product_of_sizes(before) != product_of_sizes(after));
    goes_together && !(matches!(step, ReshardStep::Permute) && is_resized)
}

/// Returns true if the blocks after a step are unions or parts of those before it. Then all dimensions are padded
/// alike, except that in steps other than a permute a dimension that becomes whole can lose its padding, and one that
/// was whole can get some.
fn has_nested_blocks(step: &ReshardStep, shape: &[usize], before: &[Vec<Axis>], after: &[Vec<Axis>]) -> bool {
    let is_permute = matches!(step, ReshardStep::Permute);
    (0..shape.len()).all(|dim| {
        let (before, after) = (product_of_sizes(&before[dim]), product_of_sizes(&after[dim]));
        padded_extent(shape[dim], before) == padded_extent(shape[dim], after) || !is_permute && before.min(after) == 1
    })
}

/// Returns the extent of a dimension rounded up to a multiple of the number of blocks.
fn padded_extent(extent: usize, blocks: usize) -> usize {
    extent.div_ceil(blocks) * blocks
}
