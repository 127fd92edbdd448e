//! Pads of large arrays along so many axes that too few axes are left to split among programs.
//!
//! ```text
//! pad low(1, 0, 3) high(1, 2, 0) x: f32[117, 2848, 9]  ->  programs copy blocks of x as the pad would make it
//! ```
//!
//! Within a cluster a padded axis is whole in each program. As a step of its own, a pad reads blocks that begin before
//! the array or end beyond it, where loads return the number for padding.
use super::device_limits::DeviceLimits;
use super::plan::{LoweredStep, StepOp};
use super::shared_kernel_code::{block_dims, build_operand, emit_block_copy, program_index_map, set_parallel_grid};
use crate::graph::{Equation, Graph, Op};
use pallas_ir::structural::Pad;
use pallas_ir::{BlockDim, Builder, Dim, Literal, Loc, Operand, OperandKind, ScalarOp, StructuralOp, Type};

/// A pad that is a step of its own: elements before and after each axis, and their value.
struct StandalonePad {
    low: Vec<usize>,
    high: Vec<usize>,
    value: Literal,
}

/// Returns the pad of an equation that is a step of its own; `None` for other equations.
fn standalone_pad(
    graph: &Graph,
    definitions: &[Option<usize>],
    e: &Equation,
    sizes: &DeviceLimits,
) -> Option<StandalonePad> {
    let Op::Structural(StructuralOp::Pad(Pad { low, high })) = &e.op else { return None };
    let Op::Literal(value) = graph.equations[definitions[e.args[1].index()]?].op else { return None };
    let numbers = |all: &[Dim]| all.iter().map(|n| usize::try_from(n.as_number()?).ok()).collect::<Option<Vec<_>>>();
    // A pad along a single axis may be that of a fold in stages, which fills up the last part.
    let is_none = |n: &Dim| n.as_number() == Some(0);
    if low.iter().zip(high).filter(|(low, high)| !is_none(low) || !is_none(high)).count() < 2 {
        return None;
    }
    let padding = StandalonePad { low: numbers(low)?, high: numbers(high)?, value };
    let (from, to) = (graph.ty(e.args[0]), graph.ty(e.result()));
    // Programs split the axes before the last one, which they have whole.
    let divided = to.shape.iter().enumerate().rev().skip(1).filter(|&(axis, &n)| n == from.shape[axis]);
    let programs: usize = divided.map(|(_, &n)| n).product();
    (from.elements() > 0 && to.elements() > sizes.tile && programs < sizes.programs).then_some(padding)
}

/// Returns true for an equation that is a pad with a kernel of its own: one with a constant value, along at least two
/// axes, whose result exceeds a tile and whose unpadded axes before the last one have fewer positions than the device
/// has programs.
pub(super) fn is_standalone_pad(
    graph: &Graph,
    definitions: &[Option<usize>],
    e: &Equation,
    sizes: &DeviceLimits,
) -> bool {
    standalone_pad(graph, definitions, e, sizes).is_some()
}

/// Returns the step of a pad that shares no kernel, in which each program makes a block of the result; `None` for other
/// equations.
pub(super) fn lower_pad(
    graph: &Graph,
    definitions: &[Option<usize>],
    e: &Equation,
    sizes: &DeviceLimits,
) -> Option<LoweredStep> {
    let StandalonePad { low, high, value } = standalone_pad(graph, definitions, e, sizes)?;
    let (from, to) = (graph.ty(e.args[0]), graph.ty(e.result()));
    // As many elements along the last axes as a tile holds, in equal parts.
    let (mut blocks, mut left) = (vec![1; to.shape.len()], sizes.tile.max(1));
    for (block, &n) in blocks.iter_mut().zip(&to.shape).rev() {
        *block = n.div_ceil(n.div_ceil(left).max(1)).max(1);
        left = (left / *block).max(1);
    }
    let counts: Vec<usize> = to.shape.iter().zip(&blocks).map(|(n, block)| n.div_ceil(*block)).collect();
    let mut b = Builder::new("pad");
    set_parallel_grid(&mut b, counts.iter().copied());
    let ids = vec![Type::scalar(pallas_ir::DType::I32); blocks.len()];
    let ids_of_block = b.begin(&ids);
    let starts: Vec<_> = ids_of_block
        .iter()
        .zip(&blocks)
        .map(|(&id, &block)| {
            let block = b.int(block as i64, Loc::NONE);
            b.scalar(ScalarOp::Mul, &[id, block], Loc::NONE)
        })
        .collect();
    let starts = b.end(&starts);
    // The last block may end beyond the result, which takes the elements inside of it.
    let padded = |axis: usize| BlockDim::Element {
        size: blocks[axis],
        low: low[axis],
        high: high[axis] + counts[axis] * blocks[axis] - to.shape[axis],
    };
    let block = (0..blocks.len()).map(padded).collect();
    let x =
        b.operand(Operand { fill: Some(value), ..build_operand("x", OperandKind::Input, from, block, Some(starts)) });
    let own = program_index_map(&mut b, blocks.len());
    let kind = OperandKind::Output { empty: Literal::new(to.dtype, 0.0), alias: None };
    let out = b.operand(build_operand("padded", kind, to, block_dims(&blocks), Some(own)));
    emit_block_copy(&mut b, e, [x, out], &blocks);
    Some(LoweredStep {
        work: StepOp::from_kernel(b.finish(), vec![]),
        inputs: vec![e.args[0]],
        outputs: e.results.clone(),
        in_place: vec![None],
    })
}
