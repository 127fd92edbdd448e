//! The collectives that turn one sharding of an array into another one.
//!
//! ```text
//! "x"=2, "y"=4:  [{"x"}, {}, {"y"}] -> [{}, {"x"}, {}]     all_to_all {"x"}: 0->1; all_gather [{}, {}, {"y"}]
//! ```
//!
//! [`sequence`] finds the collectives of Shardy's pass `sdy-reshard-to-collectives`, with the moves in `moves`. Some of its
//! steps change the padding of dimensions that axes divide unevenly, which blocks alone do not allow; those of [`reshard`]
//! do not, and devices execute these. `parts` replaces permutes by less.
//!
//! Shapes here are those of whole arrays. The block of a device is the one that [`Sharding::local`] describes, so the last
//! blocks of a dimension may extend beyond the array.
mod moves;
mod parts;

use crate::mesh::axis::{push, size};
use crate::mesh::{Axis, Mesh, Sharding, names};
use moves::Difference;

/// A collective, or an operation of each device alone, that changes the sharding of an array.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// By dimension, the axes that divide it no longer, which are its last ones. Devices that differ along these axes
    /// exchange their blocks.
    AllGather(Vec<Vec<Axis>>),
    /// By dimension, the axes that divide it from now on, after those that do already. Each device keeps a part of its block.
    AllSlice(Vec<Vec<Axis>>),
    /// The last axes of one dimension become the last axes of another one. Devices that differ along these axes exchange
    /// parts of their blocks.
    AllToAll {
        /// The axes that move.
        axes: Vec<Axis>,
        /// The dimension that they sharded.
        from: usize,
        /// The dimension that they divide from now on.
        to: usize,
    },
    /// Other axes divide the dimensions, into as many blocks as before. Each device receives the block of one device, as
    /// [`sources`] tells.
    Permute,
    /// The array has this shape from now on. Each device reshapes its block, whose elements stay where they are.
    Reshape(Vec<usize>),
    /// The array has this shape from now on. Dimensions that each device has whole get something behind them, or lose it; the
    /// blocks of others extend as far.
    Resize(Vec<usize>),
}

/// Steps, each with the sharding after it.
pub type Steps = Vec<(Step, Sharding)>;

impl Step {
    /// The text of the step, with axes as Shardy writes them: `all_to_all {"x"}: 0->1`.
    pub fn text(&self, mesh: &Mesh) -> String {
        let by_dimension = |lists: &[Vec<Axis>]| {
            let lists = lists.iter().map(|axes| format!("{{{}}}", names(axes, mesh)));
            format!("[{}]", lists.collect::<Vec<_>>().join(", "))
        };
        match self {
            Step::AllGather(axes) => format!("all_gather {}", by_dimension(axes)),
            Step::AllSlice(axes) => format!("all_slice {}", by_dimension(axes)),
            Step::AllToAll { axes, from, to } => format!("all_to_all {{{}}}: {from}->{to}", names(axes, mesh)),
            Step::Permute => "collective_permute".into(),
            Step::Reshape(shape) => format!("reshape {shape:?}"),
            Step::Resize(shape) => format!("resize {shape:?}"),
        }
    }
}

/// The steps that Shardy takes from one sharding of an array to another one. Not all of these sequences can be executed on
/// blocks, because a step may change how far the blocks of a dimension extend beyond it.
///
/// Both shardings have equal unreduced axes: sums are completed by an all-reduce before. Shardings after steps are closed
/// and in normal form; the last one places elements as `to` does.
///
/// ```
/// use pallas_graph::mesh::{Mesh, Sharding};
/// use pallas_graph::shard::reshard::sequence;
/// let mesh = Mesh::new(&[("x", 2), ("y", 4)])?;
/// let sharding = |text| Sharding::parse(text, &mesh).unwrap();
/// let steps = sequence(&[8, 8], &sharding(r#"[{"x"}, {}]"#), &sharding(r#"[{}, {"x", "y"}]"#));
/// let steps: Vec<String> = steps.iter().map(|(step, after)| format!("{} {}", step.text(&mesh), after.text(&mesh))).collect();
/// assert_eq!(steps, [
///     r#"all_slice [{"y"}, {}] [{"x", "y"}, {}]"#,
///     r#"all_to_all {"x", "y"}: 0->1 [{}, {"x", "y"}]"#,
/// ]);
/// # Ok::<(), pallas_ir::Diag>(())
/// ```
pub fn sequence(shape: &[usize], from: &Sharding, to: &Sharding) -> Steps {
    let (old, new) = (axes(from), axes(to));
    let is_blocked = repadded(shape, &old, &new);
    let found = Difference::new(shape, &old, &new, is_blocked, &from.unreduced).steps();
    let found = found.filter(|steps| all_steps(&old, steps, is_valid));
    found.unwrap_or_else(|| gather_and_slice(&old, &new, &from.unreduced, |_| false))
}

/// By dimension, true if its padding differs and it is not whole before or after. Measured: Shardy makes it whole in between.
fn repadded(shape: &[usize], old: &[Vec<Axis>], new: &[Vec<Axis>]) -> Vec<bool> {
    let is_repadded = |dim: usize| {
        let (before, after) = (size(&old[dim]), size(&new[dim]));
        before > 1 && after > 1 && padded(shape[dim], before) != padded(shape[dim], after)
    };
    (0..shape.len()).map(is_repadded).collect()
}

/// The steps that devices execute. They are those of [`sequence`] for an array that is as long as the blocks of its first or
/// last division, if all axes in between divide it evenly. A permute that moves nothing is left out, and one is replaced where
/// other steps move less. Where both divisions pad a dimension in different ways it is whole in between, or from the beginning;
/// if that is no way either, all dimensions in which the shardings differ are gathered, then sliced.
pub fn reshard(shape: &[usize], from: &Sharding, to: &Sharding) -> Steps {
    let (old, new) = (axes(from), axes(to));
    let is_blocked = repadded(shape, &old, &new);
    if !is_blocked.contains(&true)
        && let Some(steps) = on_blocks(shape, from, &old, &new)
    {
        return steps;
    }
    let is_executable = |step: &Step, before: &[Vec<Axis>], after: &[Vec<Axis>]| {
        is_valid(step, before, after) && is_nested(step, shape, before, after)
    };
    let found = Difference::new(shape, &old, &new, is_blocked.clone(), &from.unreduced).steps();
    let found = found.filter(|steps| all_steps(&old, steps, is_executable)).map(|steps| without_idle(&old, steps));
    found
        .or_else(|| gather_blocked(shape, from, &old, &new, &is_blocked))
        .unwrap_or_else(|| gather_and_slice(&old, &new, &from.unreduced, |dim| old[dim] == new[dim]))
}

/// Gathers the dimensions that have to be whole in between, then takes the steps from there.
fn gather_blocked(
    shape: &[usize],
    from: &Sharding,
    old: &[Vec<Axis>],
    new: &[Vec<Axis>],
    is_blocked: &[bool],
) -> Option<Steps> {
    let take = |is_taken: bool| -> Vec<Vec<Axis>> {
        let own = |(axes, &is_blocked): (&Vec<Axis>, &bool)| if is_blocked == is_taken { axes.clone() } else { vec![] };
        old.iter().zip(is_blocked).map(own).collect()
    };
    let (gathered, kept) = (take(true), take(false));
    let mut steps = on_blocks(shape, from, &kept, new).filter(|_| is_blocked.contains(&true))?;
    steps.insert(0, (Step::AllGather(gathered), closed(&kept, &from.unreduced)));
    Some(steps)
}

/// The steps but for permutes after which every block is where it was.
fn without_idle(old: &[Vec<Axis>], steps: Steps) -> Steps {
    let mut before = old.to_vec();
    let changes = |(step, after): &(Step, Sharding)| {
        let before = std::mem::replace(&mut before, after.axes());
        *step != Step::Permute || before != after.axes()
    };
    let kept: Vec<bool> = steps.iter().map(changes).collect();
    steps.into_iter().zip(kept).filter_map(|(step, is_kept)| is_kept.then_some(step)).collect()
}

/// The steps for an array that is as long as the blocks of the first or the last sharding, which do not differ in that.
fn on_blocks(shape: &[usize], from: &Sharding, old: &[Vec<Axis>], new: &[Vec<Axis>]) -> Option<Steps> {
    let extent = |dim: usize| padded(shape[dim], size(&old[dim]).max(size(&new[dim])));
    let extents: Vec<usize> = (0..shape.len()).map(extent).collect();
    let difference = || Difference::new(&extents, old, new, vec![false; shape.len()], &from.unreduced);
    let is_executable = |step: &Step, before: &[Vec<Axis>], after: &[Vec<Axis>]| {
        is_valid(step, before, after) && extents.iter().zip(after).all(|(n, axes)| n.is_multiple_of(size(axes)))
    };
    let found = |steps: Option<Steps>| {
        let steps = steps.filter(|steps| all_steps(old, steps, is_executable))?;
        Some(without_idle(old, steps))
    };
    let mut steps = found(difference().steps())?;
    let moved = |steps: &Steps| elements_moved(&extents, old, steps);
    if steps.iter().any(|(step, _)| *step == Step::Permute)
        && let Some(others) = found(difference().steps_slicing_last())
        && moved(&others) < moved(&steps)
    {
        steps = others;
    }
    if let Some(mut steps) = parts::without_permute(&extents, from, &steps) {
        if extents != shape {
            steps.insert(0, (Step::Resize(extents), closed(old, &from.unreduced)));
            steps.push((Step::Resize(shape.to_vec()), closed(new, &from.unreduced)));
        }
        return Some(steps);
    }
    Some(resized(shape, &extents, from, old, steps))
}

/// Number of elements that each device sends.
fn elements_moved(shape: &[usize], old: &[Vec<Axis>], steps: &Steps) -> usize {
    let before = std::iter::once(old.to_vec()).chain(steps.iter().map(|(_, after)| after.axes()));
    let sent = before.zip(steps).map(|(before, (step, _))| {
        let block: usize = shape.iter().zip(&before).map(|(n, axes)| n / size(axes)).product();
        match step {
            Step::AllGather(lists) => block * (lists.iter().map(|axes| size(axes)).product::<usize>() - 1),
            Step::AllToAll { axes, .. } => block / size(axes) * (size(axes) - 1),
            Step::Permute => block,
            Step::AllSlice(_) | Step::Reshape(_) | Step::Resize(_) => 0,
        }
    });
    sent.sum()
}

/// The steps for an array of which a dimension has another extent while it is sharded.
fn resized(shape: &[usize], extents: &[usize], from: &Sharding, old: &[Vec<Axis>], steps: Steps) -> Steps {
    let (mut before, mut current, mut all) = (closed(old, &from.unreduced), shape.to_vec(), vec![]);
    let mut resize = |wanted: Vec<usize>, sharding: &Sharding, all: &mut Steps| {
        if wanted != current {
            all.push((Step::Resize(wanted.clone()), sharding.clone()));
            current = wanted;
        }
    };
    for (step, after) in steps {
        let is_sharded = |dim: usize| !before.dims[dim].axes.is_empty() || !after.dims[dim].axes.is_empty();
        let wanted = (0..shape.len()).map(|dim| if is_sharded(dim) { extents[dim] } else { shape[dim] }).collect();
        resize(wanted, &before, &mut all);
        all.push((step, after.clone()));
        before = after;
    }
    resize(shape.to_vec(), &before, &mut all);
    all
}

/// The axes of a slice, by dimension, and those of a sum, sharded so that those of both are equal or do not overlap.
pub(super) fn slice_of_sum(lists: &[Vec<Axis>], summed: &[Axis]) -> (Vec<Vec<Axis>>, Vec<Axis>) {
    let lists: Vec<Vec<Axis>> = lists.iter().map(|list| moves::aligned(list, summed)).collect();
    let summed = moves::aligned(summed, &lists.concat());
    (lists, summed)
}

/// By position, the position whose block a device receives in a [`Step::Permute`]. Every device sends its block to one
/// device; it stays where it is if it can.
pub fn sources(mesh: &Mesh, before: &Sharding, after: &Sharding) -> Vec<usize> {
    let blocks = |sharding: &Sharding| -> Vec<usize> {
        let axes: Vec<Axis> = sharding.axes().concat();
        (0..mesh.devices()).map(|position| mesh.index(position, &axes)).collect()
    };
    let (has, needs) = (blocks(before), blocks(after));
    let moving = |blocks: &[usize]| {
        let mut positions: Vec<usize> =
            (0..mesh.devices()).filter(|&position| has[position] != needs[position]).collect();
        positions.sort_by_key(|&position| blocks[position]);
        positions
    };
    let mut sources: Vec<usize> = (0..mesh.devices()).collect();
    // As many devices have a block as need it, so both lists have the blocks in the same order.
    moving(&needs).into_iter().zip(moving(&has)).for_each(|(target, source)| sources[target] = source);
    sources
}

/// The axes of each dimension in normal form: none of size 1, neighbouring parts of an axis as one.
fn axes(sharding: &Sharding) -> Vec<Vec<Axis>> {
    let normal = |axes: &Vec<Axis>| {
        let mut kept = vec![];
        axes.iter().filter(|axis| axis.size > 1).for_each(|&axis| push(&mut kept, axis));
        kept
    };
    sharding.dims.iter().map(|dim| normal(&dim.axes)).collect()
}

/// A closed sharding by these axes.
fn closed(axes: &[Vec<Axis>], unreduced: &[Axis]) -> Sharding {
    Sharding { unreduced: unreduced.to_vec(), ..Sharding::closed(axes.iter().cloned()) }
}

/// Gathers all dimensions but those that are kept, then slices them. It is always possible, since devices have each dimension
/// whole in between.
fn gather_and_slice(
    old: &[Vec<Axis>],
    new: &[Vec<Axis>],
    unreduced: &[Axis],
    is_kept: impl Fn(usize) -> bool,
) -> Steps {
    let changed = |lists: &[Vec<Axis>]| -> Vec<Vec<Axis>> {
        lists.iter().enumerate().map(|(dim, axes)| if is_kept(dim) { vec![] } else { axes.clone() }).collect()
    };
    let kept: Vec<Vec<Axis>> = (0..old.len()).map(|dim| if is_kept(dim) { old[dim].clone() } else { vec![] }).collect();
    let (gathered, sliced) = (changed(old), changed(new));
    let mut steps = vec![];
    if gathered.iter().any(|axes| !axes.is_empty()) {
        steps.push((Step::AllGather(gathered), closed(&kept, unreduced)));
    }
    if sliced.iter().any(|axes| !axes.is_empty()) {
        steps.push((Step::AllSlice(sliced), closed(new, unreduced)));
    }
    steps
}

/// Asks about each step, with the axes before and after it; returns true if all answers are true.
fn all_steps(old: &[Vec<Axis>], steps: &Steps, is_right: impl Fn(&Step, &[Vec<Axis>], &[Vec<Axis>]) -> bool) -> bool {
    let before = std::iter::once(old.to_vec()).chain(steps.iter().map(|(_, after)| after.axes()));
    before.zip(steps).all(|(before, (step, after))| is_right(step, &before, &after.axes()))
}

/// Returns true if the axes after a step go together: no part of an axis occurs twice, and all parts of an axis belong to
/// one division of it. A permute also has to keep the number of blocks. Where sizes do not divide each other, as 2 and 3
/// do not, the search can break these rules; Shardy fails there.
fn is_valid(step: &Step, before: &[Vec<Axis>], after: &[Vec<Axis>]) -> bool {
    let all = after.concat();
    let fits = |a: Axis, b: Axis| !a.overlaps(b) && a.can_coexist(b);
    let goes_together = all.iter().enumerate().all(|(i, &a)| all[..i].iter().all(|&b| fits(a, b)));
    let is_resized = before.iter().zip(after).any(|(before, after)| size(before) != size(after));
    goes_together && !(matches!(step, Step::Permute) && is_resized)
}

/// Returns true if the blocks before and after a step consist of each other. Then all dimensions are padded alike, except
/// that a dimension that becomes whole can lose its padding, and one that was whole can get some, in all steps but a permute.
fn is_nested(step: &Step, shape: &[usize], before: &[Vec<Axis>], after: &[Vec<Axis>]) -> bool {
    let is_permute = matches!(step, Step::Permute);
    (0..shape.len()).all(|dim| {
        let (before, after) = (size(&before[dim]), size(&after[dim]));
        padded(shape[dim], before) == padded(shape[dim], after) || !is_permute && before.min(after) == 1
    })
}

/// The extent of a dimension that is divided into equal blocks, with what these extend beyond it.
fn padded(extent: usize, blocks: usize) -> usize {
    extent.div_ceil(blocks) * blocks
}
