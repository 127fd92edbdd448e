//! The steps of a reshard, executed on the blocks of all devices of a mesh. No Python is needed.
use crate::draw::Dice;
use pallas_graph::mesh::{Axis, Mesh, Sharding, product_of_sizes};
use pallas_graph::shard::reshard::{ReshardStep, permute_sources, plan_executable_steps, plan_shardy_steps};

/// What stands in a block where it extends beyond the array.
const PADDING: usize = usize::MAX;

/// The part of an array that a device has: the numbers of its elements in the array.
#[derive(Clone, PartialEq, Debug)]
struct Block {
    start: Vec<usize>,
    shape: Vec<usize>,
    elements: Vec<usize>,
}

/// Row-major positions in a shape.
fn positions(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    (0..shape.iter().product()).map(|n| position(n, shape))
}

fn position(n: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = n;
    let mut at: Vec<usize> = shape.iter().rev().map(|&n| (rest % n, rest /= n).0).collect();
    at.reverse();
    at
}

fn number(at: &[usize], shape: &[usize]) -> usize {
    at.iter().zip(shape).fold(0, |n, (i, extent)| n * extent + i)
}

impl Block {
    /// The block of a device, with the elements that `element` finds at positions in the array.
    fn new(
        mesh: &Mesh,
        device: usize,
        shape: &[usize],
        sharding: &Sharding,
        mut element: impl FnMut(&[usize]) -> usize,
    ) -> Block {
        let local = sharding.local_shape(shape);
        let start: Vec<usize> =
            sharding.dims.iter().zip(&local).map(|(dim, n)| mesh.index(device, &dim.axes) * n).collect();
        let elements = positions(&local).map(|at| {
            let at: Vec<usize> = at.iter().zip(&start).map(|(i, start)| start + i).collect();
            if at.iter().zip(shape).all(|(i, n)| i < n) { element(&at) } else { PADDING }
        });
        let elements = elements.collect();
        Block { elements, start, shape: local }
    }

    fn at(&self, at: &[usize]) -> Option<usize> {
        let inside = at.iter().zip(&self.start).map(|(i, start)| i.checked_sub(*start)).collect::<Option<Vec<_>>>()?;
        let is_inside = inside.iter().zip(&self.shape).all(|(i, n)| i < n);
        is_inside.then(|| self.elements[number(&inside, &self.shape)])
    }
}

/// The blocks after a step. Each device reads from devices with which the step connects it, and from no others.
fn execute(
    mesh: &Mesh,
    shape: &[usize],
    blocks: &[Block],
    step: &ReshardStep,
    before: &Sharding,
    after: &Sharding,
) -> Vec<Block> {
    let sources = match step {
        ReshardStep::Permute => permute_sources(mesh, before, after),
        _ => vec![],
    };
    if let ReshardStep::Permute = step {
        let mut sorted = sources.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..mesh.device_count()), "each device sends to one: {sources:?}");
    }
    (0..mesh.device_count())
        .map(|device| {
            let connected = match step {
                ReshardStep::AllGather(axes) => mesh.group(device, &axes.concat()),
                ReshardStep::AllToAll { axes, .. } => mesh.group(device, axes),
                ReshardStep::AllSlice(_) => vec![device],
                ReshardStep::Resize(shape) => {
                    let element = |at: &[usize]| blocks[device].at(at).unwrap_or(PADDING);
                    return Block::new(mesh, device, shape, after, element);
                }
                ReshardStep::Reshape(shape) => {
                    let elements = blocks[device].elements.clone();
                    let block = Block { elements, ..Block::new(mesh, device, shape, after, |_| 0) };
                    assert_eq!(block.elements.len(), size_of(&block.shape));
                    return block;
                }
                ReshardStep::Permute => {
                    // The block is taken as it is.
                    let block = &blocks[sources[device]];
                    let start = Block::new(mesh, device, shape, after, |_| 0).start;
                    assert_eq!((&block.start, &block.shape), (&start, &after.local_shape(shape)));
                    return block.clone();
                }
            };
            Block::new(mesh, device, shape, after, |at| {
                let found = connected.iter().find_map(|&other| blocks[other].at(at));
                found.unwrap_or_else(|| panic!("no device of {connected:?} has {at:?}"))
            })
        })
        .collect()
}

/// Checks that a step adds and removes the axes that it names, and that it moves whole blocks or equal parts of them.
fn check(mesh: &Mesh, shape: &[usize], step: &ReshardStep, before: &Sharding, after: &Sharding) {
    let index = |device: usize, sharding: &Sharding, dim: usize| mesh.index(device, &sharding.dims[dim].axes);
    // Returns true if `all` divides a dimension by the axes of `few`, then by `more`.
    let extends = |all: &Sharding, few: &Sharding, dim: usize, more: &[Axis]| {
        let part = |device| mesh.index(device, more);
        (0..mesh.device_count())
            .all(|device| index(device, all, dim) == index(device, few, dim) * product_of_sizes(more) + part(device))
    };
    if let ReshardStep::Reshape(_) | ReshardStep::Resize(_) = step {
        return;
    }
    for dim in 0..shape.len() {
        let (old, new) = (before.blocks_per_dim()[dim], after.blocks_per_dim()[dim]);
        // Blocks nest, or the step adds or removes padding.
        let is_nested = shape[dim].div_ceil(old) * old == shape[dim].div_ceil(new) * new;
        let is_right = match step {
            ReshardStep::AllGather(axes) => extends(before, after, dim, &axes[dim]) && (is_nested || new == 1),
            ReshardStep::AllSlice(axes) => extends(after, before, dim, &axes[dim]) && (is_nested || old == 1),
            ReshardStep::AllToAll { axes, from, .. } if *from == dim => {
                extends(before, after, dim, axes) && (is_nested || new == 1)
            }
            ReshardStep::AllToAll { axes, to, .. } if *to == dim => {
                extends(after, before, dim, axes) && (is_nested || old == 1)
            }
            ReshardStep::AllToAll { .. } => before.normal(mesh).dims[dim].axes == after.normal(mesh).dims[dim].axes,
            ReshardStep::Permute => old == new,
            ReshardStep::Reshape(_) | ReshardStep::Resize(_) => unreachable!("it moves nothing"),
        };
        assert!(
            is_right,
            "dimension {dim} of {shape:?}: {} {} {}",
            before.text(mesh),
            step.text(mesh),
            after.text(mesh)
        );
    }
}

/// A closed sharding by most axes of a mesh, or by both parts of them in any order. Many have all axes in one
/// dimension.
fn sharding(dice: &mut Dice, mesh: &Mesh, rank: usize) -> Sharding {
    let mut parts: Vec<Axis> = vec![];
    for axis in mesh.axes() {
        let first = *dice.pick(&[1, 1, 2, 3]);
        if axis.size % first == 0 {
            parts.push(Axis { size: first, ..axis });
            parts.push(Axis { pre: first, size: axis.size / first, ..axis });
        } else {
            parts.push(axis);
        }
    }
    let mut sharding = Sharding::replicated(rank);
    let only = dice.chance(30).then(|| dice.below(rank));
    for part in dice.shuffled(parts.len()).into_iter().map(|i| parts[i]) {
        if dice.chance(70) {
            sharding.dims[only.unwrap_or_else(|| dice.below(rank))].axes.push(part);
        }
    }
    sharding
}

#[test]
fn reshards_bring_each_device_its_block() {
    let mut dice = Dice(17);
    let (mut steps, mut direct, mut total) = ([0; 6], 0, 0);
    while total < 3000 {
        let names = &["x", "y", "z"][..2 + dice.below(2)];
        let axes: Vec<(&str, usize)> = names.iter().map(|name| (*name, *dice.pick(&[2, 2, 3, 4, 6, 8]))).collect();
        let mesh = Mesh::new(&axes).expect("a mesh");
        let rank = 1 + dice.below(3);
        let extents: &[usize] = if dice.chance(65) { &[12, 24, 48] } else { &[1, 2, 3, 5, 6, 8, 12] };
        let shape: Vec<usize> = (0..rank).map(|_| *dice.pick(extents)).collect();
        if mesh.device_count() > 64 || size_of(&shape) > 3000 {
            continue;
        }
        let (from, to) = (sharding(&mut dice, &mesh, rank), sharding(&mut dice, &mesh, rank));
        total += 1;
        let found = plan_executable_steps(&shape, &from, &to);
        direct += usize::from(found == plan_shardy_steps(&shape, &from, &to));
        let blocks = |sharding: &Sharding| -> Vec<Block> {
            (0..mesh.device_count()).map(|d| Block::new(&mesh, d, &shape, sharding, |at| number(at, &shape))).collect()
        };
        let (mut now, mut before, mut shape_now) = (blocks(&from), from.clone(), shape.clone());
        for (step, after) in &found {
            check(&mesh, &shape_now, step, &before, after);
            now = execute(&mesh, &shape_now, &now, step, &before, after);
            if let ReshardStep::Reshape(next) | ReshardStep::Resize(next) = step {
                shape_now.clone_from(next);
            }
            before = after.clone();
            steps[match step {
                ReshardStep::AllGather(_) => 0,
                ReshardStep::AllSlice(_) => 1,
                ReshardStep::AllToAll { .. } => 2,
                ReshardStep::Permute => 3,
                ReshardStep::Reshape(_) => 4,
                ReshardStep::Resize(_) => 5,
            }] += 1;
        }
        assert_eq!(before.normal(&mesh), to.normal(&mesh));
        assert!(now == blocks(&to), "{shape:?} {} -> {}: {found:?}", from.text(&mesh), to.text(&mesh));
    }
    println!(
        "{total} reshards, {direct} as Shardy; gathers, slices, all-to-alls, permutes, reshapes, paddings: {steps:?}"
    );
    assert!(steps.iter().all(|&count| count >= 20), "{steps:?}");
}

fn size_of(shape: &[usize]) -> usize {
    shape.iter().product()
}
