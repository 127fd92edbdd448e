//! The kernel of a scatter: each program has a block of the operand, in whose memory the result is.
//!
//! An axis that starts address is divided as well: a program takes its first position off the starts, so that windows of
//! other blocks do not fit its own, and skips them. Blocks divide the operand evenly, so that none leaves it.
use super::blocks::Sizes;
use super::lower::wrapping;
use super::plan::{Lowered, Work};
use crate::build::dims;
use crate::graph::{Equation, Graph};
use pallas_ir::structural::{Iota, Scatter, Windows};
use pallas_ir::{
    Axis, BlockDim, Builder, DType, Dim, Literal, Loc, Op as TileOp, Operand, OperandId, OperandKind, ScalarOp,
    Semantics, StructuralOp, Type, Value, View,
};

/// Bytes of the shortest part of a row that is worth a program of its own.
const ROW: usize = 128;

/// The step of a scatter.
pub(super) fn lower(graph: &Graph, e: &Equation, op: &Scatter, sizes: &Sizes) -> Lowered {
    let [x, index, updates] = [0, 1, 2].map(|i| graph.ty(e.args[i]));
    let windows = op.windows(x.shape.len(), index.shape.len(), &updates.dims());
    let blocks = blocks(x, updates, &windows, sizes);
    let mut b = Builder::new("scatter");
    let axes: Vec<usize> = (0..blocks.len()).filter(|&axis| blocks[axis] != x.shape[axis]).collect();
    let counts = axes.iter().map(|&axis| x.shape[axis] / blocks[axis]);
    b.kernel_mut().grid = counts.map(|n| Axis { extent: Dim::from(n), semantics: Semantics::Parallel }).collect();
    // The grid's axis along which each axis of an operand is divided, and its block.
    let grid = |axis: usize| axes.iter().position(|&a| a == axis);
    let of_x: Vec<_> = (0..blocks.len()).map(|axis| (grid(axis), blocks[axis])).collect();
    let mut of_updates: Vec<_> = updates.shape.iter().map(|&n| (None, n)).collect();
    for (window, &own) in windows.axes.iter().zip(&of_x) {
        if let (None, Some(axis), Some(_)) = (window.start, window.axis, own.0) {
            of_updates[axis] = own;
        }
    }
    let mut of_positions = windows.index.iter().map(|&axis| of_updates[axis]);
    let of_index: Vec<_> = (0..index.shape.len())
        .map(|axis| match Some(axis) == windows.vector {
            true => (None, index.shape[axis]),
            false => of_positions.next().expect("one per axis"),
        })
        .collect();
    let is_empty = updates.elements() == 0 || x.elements() == 0;
    let output = OperandKind::Output { empty: Literal::new(x.dtype, 0.0), alias: Some(OperandId(0)) };
    let mut operands = vec![("x", OperandKind::Input, x, &of_x)];
    if !is_empty {
        operands.push(("indices", OperandKind::Input, index, &of_index));
        operands.push(("updates", OperandKind::Input, updates, &of_updates));
    }
    operands.push(("out", output, x, &of_x));
    for (name, kind, ty, cuts) in operands {
        let ids = b.begin(&vec![Type::scalar(DType::I32); axes.len()]);
        let zero = b.int(0, Loc::NONE);
        let map = b.end(&cuts.iter().map(|(k, _)| k.map_or(zero, |k| ids[k])).collect::<Vec<_>>());
        b.operand(Operand {
            name: name.into(),
            kind,
            dtype: ty.dtype,
            dims: dims(&ty.shape),
            block: cuts.iter().map(|&(_, n)| BlockDim::Blocked(n)).collect(),
            map: Some(map),
            fill: None,
            buffered: None,
        });
    }
    let load = |b: &mut Builder, i: u32, cuts: &[(Option<usize>, usize)]| {
        let view = View::whole(&cuts.iter().map(|&(_, n)| n).collect::<Vec<_>>());
        b.emit(TileOp::Load { from: OperandId(i), view, masked: false }, &[], e.loc).expect("a whole block")
    };
    let mut made = load(&mut b, 0, &of_x);
    if !is_empty {
        let mut starts = load(&mut b, 1, &of_index);
        for (k, &axis) in axes.iter().enumerate() {
            if let Some(start) = windows.axes[axis].start {
                let first = (k, blocks[axis]);
                starts = moved(&mut b, starts, (start, &windows), first, e.loc);
            }
        }
        let updates = load(&mut b, 2, &of_updates);
        made = structural(&mut b, op.clone(), &[made, starts, updates], e.loc);
    }
    let to = OperandId(b.kernel().operands.len() as u32 - 1);
    let view = View::whole(&blocks);
    b.effect(TileOp::Store { to, view, masked: false }, &[made], e.loc).expect("a whole block");
    Lowered {
        work: Work::Kernel { kernel: wrapping(b.finish()), sizes: vec![], params: vec![] },
        inputs: if is_empty { vec![] } else { e.args[1..].to_vec() },
        outputs: e.results.clone(),
        in_place: vec![Some(e.args[0])],
    }
}

fn structural(b: &mut Builder, op: impl Into<StructuralOp>, args: &[Value], loc: Loc) -> Value {
    b.emit(TileOp::Structural(op.into()), args, loc).unwrap_or_else(|diag| panic!("a scatter of blocks: {diag}"))
}

/// Starts counted from a program's block of this size along an axis of the grid. A start that is less than the lowest
/// integer then is more than any position, so that its window is skipped too.
fn moved(b: &mut Builder, starts: Value, of: (usize, &Windows), block: (usize, usize), loc: Loc) -> Value {
    let ((start, windows), (axis, size)) = (of, block);
    let id = b.emit(TileOp::ProgramId(axis), &[], loc).expect("an axis of the grid");
    let size = b.int(size as i64, loc);
    let mut first = b.scalar(ScalarOp::Mul, &[id, size], loc);
    if let (Some(vector), true) = (windows.vector, windows.starts() > 1) {
        let shape = b.kernel().ty(starts).dims();
        let number = structural(b, Iota { shape, axis: vector, dtype: DType::I32 }, &[], loc);
        let [own, zero] = [start as i64, 0].map(|n| b.int(n, loc));
        let is_own = b.scalar(ScalarOp::Eq, &[number, own], loc);
        first = b.scalar(ScalarOp::Select, &[is_own, first, zero], loc);
    }
    b.scalar(ScalarOp::Sub, &[starts, first], loc)
}

/// The block of the operand that a program has: few large ones, as each program reads all indices.
fn blocks(x: &Type, updates: &Type, windows: &Windows, sizes: &Sizes) -> Vec<usize> {
    let mut blocks: Vec<usize> = x.shape.iter().map(|&n| n.max(1)).collect();
    let programs = if updates.elements() * 4 >= sizes.tile { sizes.programs } else { 1 };
    let most = (x.elements() / programs.max(1)).clamp(1, sizes.scattered.max(1));
    // Parallel axes first: of index positions, then inside of windows where rows stay long, then addressed ones.
    let last = x.shape.len() - 1;
    let order = |axis: usize| {
        let window = &windows.axes[axis];
        let is_position = window.axis.is_some_and(|a| windows.index.contains(&a));
        let is_whole = window.size.as_number() == Some(x.shape[axis] as i64);
        match window.start {
            None if is_position => Some((0, 1)),
            None if is_whole && axis == last => Some((1, ROW.div_ceil(x.dtype.bytes()))),
            None if is_whole => Some((1, 1)),
            Some(_) if window.size.as_number() == Some(1) => Some((2, 1)),
            _ => None,
        }
    };
    let mut axes: Vec<(usize, usize, usize)> =
        (0..=last).filter_map(|axis| order(axis).map(|(rank, least)| (rank, axis, least))).collect();
    axes.sort_unstable();
    // On a device whose blocks have to be small, rows are divided as well in the end.
    let again: Vec<_> = axes.iter().map(|&(rank, axis, _)| (rank, axis, 1)).collect();
    for (is_forced, (_, axis, least)) in
        axes.into_iter().map(|a| (false, a)).chain(again.into_iter().map(|a| (true, a)))
    {
        let elements: usize = blocks.iter().product();
        if elements <= most || is_forced && elements <= sizes.scattered {
            break;
        }
        let n = blocks[axis];
        let wanted = elements.div_ceil(most);
        let divides = |parts: &usize| n.is_multiple_of(*parts) && n / parts >= least;
        // As few parts as are wanted, or somewhat more; else as many as possible.
        let parts = (wanted..=n.min(4 * wanted)).find(divides);
        let parts = parts.or_else(|| (1..=wanted.min(n)).rev().find(divides).filter(|_| sizes.scattered < elements));
        blocks[axis] = n / parts.unwrap_or(1);
    }
    blocks
}
