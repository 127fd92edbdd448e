//! Kernels that read or write a window of an array at a position that operands give.
use super::cluster::ClusteredGraph;
use super::device_limits::DeviceLimits;
use super::plan::{LoweredStep, StepOp};
use super::shared_kernel_code::{block_dims, build_operand, emit_block_copy, program_index_map, set_parallel_grid};
use crate::dynamic::{Dynamic, WindowAccess};
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::{
    BlockDim, Builder, DType, Literal, Loc, Op as TileOp, Operand, OperandId, OperandKind, ScalarOp, Type, Value,
};

/// Returns the step of an operation on a window, in which each program copies a block of the window.
pub(super) fn lower_window(
    found: &ClusteredGraph<'_>,
    e: &Equation,
    op: &Dynamic,
    sizes: &DeviceLimits,
) -> LoweredStep {
    let (graph, definitions) = (found.graph, &found.definitions);
    let whole = graph.ty(e.args[0]);
    let part = graph.ty(op.window_var(e));
    let (window, arrays) = (&part.shape, op.array_operand_count());
    let starts: Vec<WindowStart> = (0..window.len())
        .map(|axis| match literal_value(graph, definitions, e.args[arrays + axis]) {
            // A window as long as the array has only one position.
            _ if window[axis] == whole.shape[axis] => WindowStart::Known(0),
            Some(position) => WindowStart::Known(position),
            None => WindowStart::Read(e.args[arrays + axis]),
        })
        .collect();
    let blocks = choose_window_blocks(window, sizes.tile);
    let mut b = Builder::new(op.name());
    let counts = window.iter().zip(&blocks).map(|(&n, &block)| n / block);
    set_parallel_grid(&mut b, counts);
    let ids = vec![Type::scalar(DType::I32); window.len()];
    // Blocks of the window, and blocks of the array, which begin at the window's position.
    let in_window = block_dims(&blocks);
    let in_array: Vec<BlockDim> = blocks.iter().map(|&size| BlockDim::Element { size, low: 0, high: 0 }).collect();
    let output = |alias| OperandKind::Output { empty: Literal::new(whole.dtype, 0.0), alias };
    let of_window = Some(program_index_map(&mut b, blocks.len()));
    let x = b.operand(build_operand("x", OperandKind::Input, whole, in_array.clone(), None));
    let (from, positions) = match op.access() {
        WindowAccess::Read(_) => {
            let positions = declare_start_operands(&mut b, &starts);
            b.operand(build_operand("window", output(None), part, in_window, of_window));
            (x, positions)
        }
        WindowAccess::Write => {
            let from = b.operand(build_operand("window", OperandKind::Input, part, in_window, of_window));
            let positions = declare_start_operands(&mut b, &starts);
            b.operand(build_operand("updated", output(Some(x)), whole, in_array.clone(), None));
            (from, positions)
        }
    };
    let map = |b: &mut Builder| {
        let ids = b.begin(&ids);
        let int = |b: &mut Builder, n: usize| b.int(n as i64, Loc::NONE);
        let starts: Vec<Value> = (0..window.len())
            .map(|axis| {
                let last = int(b, whole.shape[axis] - window[axis]);
                let zero = int(b, 0);
                let position = match (positions[axis], &starts[axis]) {
                    (Some(from), _) => b.emit(TileOp::Prefetch(from), &[], Loc::NONE).expect("a scalar"),
                    (None, WindowStart::Known(position)) => b.int(*position, Loc::NONE),
                    (None, WindowStart::Read(_)) => unreachable!("what is read is an operand"),
                };
                let position = b.scalar(ScalarOp::Maximum, &[position, zero], Loc::NONE);
                let position = b.scalar(ScalarOp::Minimum, &[position, last], Loc::NONE);
                let block = int(b, blocks[axis]);
                let own = b.scalar(ScalarOp::Mul, &[ids[axis], block], Loc::NONE);
                b.scalar(ScalarOp::Add, &[position, own], Loc::NONE)
            })
            .collect();
        b.end(&starts)
    };
    for i in 0..b.kernel().operands.len() {
        let Operand { kind, map: own, .. } = &b.kernel().operands[i];
        if own.is_none() && *kind != OperandKind::Prefetch {
            let made = map(&mut b);
            b.kernel_mut().operands[i].map = Some(made);
        }
    }
    let to = OperandId(b.kernel().operands.len() as u32 - 1);
    emit_block_copy(&mut b, e, [from, to], &blocks);

    let read = starts.iter().filter_map(|start| match start {
        WindowStart::Known(_) => None,
        WindowStart::Read(v) => Some(*v),
    });
    // A write updates the array in place.
    let in_place = vec![(arrays > 1).then_some(e.args[0])];
    let inputs = e.args[arrays - 1..arrays].iter().copied().chain(read).collect();
    LoweredStep { work: StepOp::from_kernel(b.finish(), vec![]), inputs, outputs: e.results.clone(), in_place }
}

/// The position at which a window begins along an axis.
enum WindowStart {
    /// A constant, which is clamped so that the window fits.
    Known(i64),
    /// The value of a variable, clamped so that the window fits.
    Read(Var),
}

/// Returns the value of a variable that is a literal; `None` for others.
pub(super) fn literal_value(graph: &Graph, definitions: &[Option<usize>], v: Var) -> Option<i64> {
    match &graph.equations[definitions[v.index()]?].op {
        Op::Literal(x) => Some(x.as_f64() as i64),
        _ => None,
    }
}

/// Adds a kernel operand for each start that is the value of a variable; returns by axis this operand, or `None` for a
/// constant start.
fn declare_start_operands(b: &mut Builder, starts: &[WindowStart]) -> Vec<Option<OperandId>> {
    let kind = OperandKind::Prefetch;
    let position =
        |axis: usize| build_operand(format!("position{axis}"), kind.clone(), &Type::scalar(DType::I32), vec![], None);
    let is_read = |start: &WindowStart| matches!(start, WindowStart::Read(_));
    starts.iter().enumerate().map(|(axis, start)| is_read(start).then(|| b.operand(position(axis)))).collect()
}

/// Returns sizes of blocks that divide a window evenly, with at most `max_elements` elements in all where the extents
/// have such divisors.
fn choose_window_blocks(window: &[usize], max_elements: usize) -> Vec<usize> {
    let (mut blocks, mut left) = (vec![1; window.len()], max_elements.max(1));
    for (block, &n) in blocks.iter_mut().zip(window).rev() {
        *block = if n <= left { n.max(1) } else { (1..=left).rev().find(|d| n % d == 0).unwrap_or(1) };
        left /= *block;
    }
    blocks
}
