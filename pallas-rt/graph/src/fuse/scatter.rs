//! The kernel of a scatter: each program changes one block of the operand, in whose memory the result is.
//!
//! An axis that starts address is split among programs too: each program subtracts its first position from the starts,
//! so that windows in other blocks do not fit its own block and are skipped. Blocks divide the operand evenly, so that
//! none extends beyond it. On a CPU the kernel itself makes an operand with the same number everywhere, and sums rows
//! of 16-bit floats ([`RoundedScatter`]).
use super::cluster::Cluster;
use super::device_limits::DeviceLimits;
use super::equation_kinds::is_always_inlined;
use super::plan::{LoweredStep, StepOp};
use super::shared_kernel_code::{build_operand, set_parallel_grid};
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Cast, IndexedWindows, Iota};
use pallas_ir::{
    BlockDim, Builder, DType, Literal, Loc, Op as TileOp, OperandId, OperandKind, ScalarOp, StructuralOp, Type, Value,
    View,
};
use std::collections::BTreeMap;

/// Fewest bytes of a part of a row that are worth a program of their own; rows are not split into shorter parts.
const MIN_PROGRAM_ROW_BYTES: usize = 128;
/// Fewest elements of a row for which a CPU rounds each 16-bit sum as soon as it is complete; sums of shorter rows are
/// no [`RoundedScatter`].
const MIN_ROUNDED_ROW_ELEMENTS: usize = 8;

/// A scatter that adds rows of 16-bit floats to zeros, with sums in f32: `round(scatter(zeros, indices,
/// widen(updates)))`. The CPU computes it without an f32 array of the operand's size
/// (`pallas-rt/codegen/src/cpu/plan/fused_casts`).
#[derive(Clone, Copy)]
pub(super) struct RoundedScatter {
    /// Index of the equation that casts the updates to f32.
    pub widen: usize,
    /// Index of the scatter.
    pub scatter: usize,
    /// Index of the equation that casts the result to 16 bits.
    pub round: usize,
}

impl RoundedScatter {
    /// Returns the rounded sum whose scatter is the equation at this index; `None` if the scatter or the casts around
    /// it are of another kind, or other equations read the values between them.
    fn from_scatter(
        graph: &Graph,
        definitions: &[Option<usize>],
        uses: &[Vec<usize>],
        scatter: usize,
    ) -> Option<RoundedScatter> {
        let e = &graph.equations[scatter];
        let Op::Structural(StructuralOp::Scatter(op)) = &e.op else { return None };
        let reader = |v: Var| match uses[v.index()][..] {
            [one] if !graph.results.contains(&v) => Some(one),
            _ => None,
        };
        let cast = |i: usize| matches!(graph.equations[i].op, Op::Structural(StructuralOp::Cast(_))).then_some(i);
        let widen = cast(definitions[e.args[2].index()]?).filter(|_| reader(e.args[2]).is_some())?;
        let round = cast(reader(e.result())?)?;
        let (x, updates) = (graph.ty(e.args[0]), graph.ty(e.args[2]));
        let narrow = graph.ty(graph.equations[round].result()).dtype;
        let windows = op.windows(x.shape.len(), graph.ty(e.args[1]).shape.len(), &updates.dims());
        let is_rounded = narrow != x.dtype && narrow.accumulator() == x.dtype;
        let fits = op.op == Some(ScalarOp::Add)
            && is_rounded
            && graph.ty(graph.equations[widen].args[0]).dtype == narrow
            && uniform_operand_value(graph, definitions, e) == Some(Literal::new(x.dtype, 0.0))
            && windows.are_operand_rows(&x.shape)
            && x.shape.last().is_some_and(|&n| n >= MIN_ROUNDED_ROW_ELEMENTS);
        (fits && updates.elements() > 0).then_some(RoundedScatter { widen, scatter, round })
    }
    /// Finds the scatter-additions of rows into 16-bit arrays: the rows are widened to f32, added, and the sums
    /// rounded, by three equations that become one kernel. Returns them by the index of the equation that rounds.
    pub(super) fn find_all(graph: &Graph, sizes: &DeviceLimits) -> BTreeMap<usize, RoundedScatter> {
        // Programs of a GPU do not hold an operand whose rows they could sum in order.
        if sizes.panel.is_some() {
            return BTreeMap::new();
        }
        let (definitions, uses) = (graph.definitions(), graph.uses());
        let all =
            (0..graph.equations.len()).filter_map(|i| RoundedScatter::from_scatter(graph, &definitions, &uses, i));
        all.map(|rounded| (rounded.round, rounded)).collect()
    }
    pub(super) fn equation_indices(self) -> [usize; 3] {
        [self.widen, self.scatter, self.round]
    }
}

/// Returns the number that all elements of a scatter's operand are equal to, if its kernel can make the operand.
fn uniform_operand_value(graph: &Graph, definitions: &[Option<usize>], e: &Equation) -> Option<Literal> {
    let made = &graph.equations[definitions[e.args[0].index()]?];
    if !is_always_inlined(graph, definitions, made) {
        return None;
    }
    let Op::Literal(x) = &graph.equations[definitions[made.args.first()?.index()]?].op else { return None };
    Some(*x)
}

/// Returns the operands of a scatter that its step reads from memory: all, but without the array to scatter into if
/// the kernel itself fills it with one number.
pub(super) fn scatter_inputs(
    graph: &Graph,
    definitions: &[Option<usize>],
    e: &Equation,
    sizes: &DeviceLimits,
) -> Vec<Var> {
    let is_made = sizes.panel.is_none() && uniform_operand_value(graph, definitions, e).is_some();
    e.args[usize::from(is_made)..].to_vec()
}

/// Returns the step of a cluster with a scatter, and with casts around it if it is a [`RoundedScatter`] sum.
pub(super) fn lower_scatter(
    graph: &Graph,
    definitions: &[Option<usize>],
    cluster: &Cluster,
    sizes: &DeviceLimits,
) -> LoweredStep {
    let members = || cluster.members.iter().map(|&i| &graph.equations[i]);
    let scatter = members().find_map(|e| match &e.op {
        Op::Structural(StructuralOp::Scatter(op)) => Some((e, op)),
        _ => None,
    });
    let (e, op) = scatter.expect("its cluster has it");
    let [x, index, updates] = [0, 1, 2].map(|i| graph.ty(e.args[i]));
    let windows = op.windows(x.shape.len(), index.shape.len(), &updates.dims());
    let constant = uniform_operand_value(graph, definitions, e).filter(|_| sizes.panel.is_none());
    let filled = constant.map_or(0, |_| x.elements());
    let blocks = choose_scatter_block(x, updates, &windows, filled, sizes);
    let widen = members().find(|other| other.result() == e.args[2]);
    let from = widen.map_or(e.args[2], |widen| widen.args[0]);
    let result = cluster.outs.first().copied().unwrap_or(e.result());
    let mut b = Builder::new("scatter");
    let axes: Vec<usize> = (0..blocks.len()).filter(|&axis| blocks[axis] != x.shape[axis]).collect();
    set_parallel_grid(&mut b, axes.iter().map(|&axis| x.shape[axis] / blocks[axis]));
    // The axis of the grid along which each axis of an operand is split, and the size of its block.
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
    let alias = constant.is_none().then_some(OperandId(0));
    let output = OperandKind::Output { empty: Literal::new(graph.ty(result).dtype, 0.0), alias };
    let mut operands = vec![];
    if constant.is_none() {
        operands.push(("x", OperandKind::Input, x, &of_x));
    }
    if !is_empty {
        operands.push(("indices", OperandKind::Input, index, &of_index));
        operands.push(("updates", OperandKind::Input, graph.ty(from), &of_updates));
    }
    operands.push(("out", output, graph.ty(result), &of_x));
    for (name, kind, ty, cuts) in operands {
        let ids = b.begin(&vec![Type::scalar(DType::I32); axes.len()]);
        let zero = b.int(0, Loc::NONE);
        let map = b.end(&cuts.iter().map(|(k, _)| k.map_or(zero, |k| ids[k])).collect::<Vec<_>>());
        let block = cuts.iter().map(|&(_, n)| BlockDim::Blocked(n)).collect();
        b.operand(build_operand(name, kind, ty, block, Some(map)));
    }
    let load = |b: &mut Builder, i: u32, cuts: &[(Option<usize>, usize)]| {
        let view = View::whole(&cuts.iter().map(|&(_, n)| n).collect::<Vec<_>>());
        b.emit(TileOp::Load { from: OperandId(i), view, masked: false }, &[], e.loc).expect("a whole block")
    };
    let (mut made, next) = match constant {
        Some(x) => {
            let x = b.emit(TileOp::Const(x), &[], e.loc).expect("a number");
            (emit_structural(&mut b, Broadcast::to(constant_dims(&blocks)), &[x], e.loc), 0)
        }
        None => (load(&mut b, 0, &of_x), 1),
    };
    if !is_empty {
        let mut starts = load(&mut b, next, &of_index);
        for (k, &axis) in axes.iter().enumerate() {
            if let Some(start) = windows.axes[axis].start {
                let first = (k, blocks[axis]);
                starts = emit_relative_starts(&mut b, starts, (start, &windows), first, e.loc);
            }
        }
        let mut updates = load(&mut b, next + 1, &of_updates);
        if widen.is_some() {
            updates = emit_structural(&mut b, Cast { to: x.dtype }, &[updates], e.loc);
        }
        made = emit_structural(&mut b, op.clone(), &[made, starts, updates], e.loc);
    }
    if result != e.result() {
        made = emit_structural(&mut b, Cast { to: graph.ty(result).dtype }, &[made], e.loc);
    }
    let to = OperandId(b.kernel().operands.len() as u32 - 1);
    let view = View::whole(&blocks);
    b.effect(TileOp::Store { to, view, masked: false }, &[made], e.loc).expect("a whole block");
    LoweredStep {
        work: StepOp::from_kernel(b.finish(), vec![]),
        inputs: if is_empty { vec![] } else { vec![e.args[1], from] },
        outputs: vec![result],
        in_place: vec![constant.is_none().then_some(e.args[0])],
    }
}

fn emit_structural(b: &mut Builder, op: impl Into<StructuralOp>, args: &[Value], loc: Loc) -> Value {
    b.emit(TileOp::Structural(op.into()), args, loc).unwrap_or_else(|diag| panic!("a scatter of blocks: {diag}"))
}

/// Returns starts relative to the first position of a program's block, for an axis that is split along the grid. A
/// start that would be less than the lowest integer wraps around to one greater than any position, so that its window
/// is skipped too.
fn emit_relative_starts(
    b: &mut Builder,
    starts: Value,
    start_in_windows: (usize, &IndexedWindows),
    axis_and_block_size: (usize, usize),
    loc: Loc,
) -> Value {
    let ((start, windows), (axis, size)) = (start_in_windows, axis_and_block_size);
    let id = b.emit(TileOp::ProgramId(axis), &[], loc).expect("an axis of the grid");
    let size = b.int(size as i64, loc);
    let mut first = b.scalar(ScalarOp::Mul, &[id, size], loc);
    if let (Some(vector), true) = (windows.vector, windows.start_vector_length() > 1) {
        let shape = b.kernel().ty(starts).dims();
        let number = emit_structural(b, Iota { shape, axis: vector, dtype: DType::I32 }, &[], loc);
        let [own, zero] = [start as i64, 0].map(|n| b.int(n, loc));
        let is_own = b.scalar(ScalarOp::Eq, &[number, own], loc);
        first = b.scalar(ScalarOp::Select, &[is_own, first, zero], loc);
    }
    b.scalar(ScalarOp::Sub, &[starts, first], loc)
}

/// Elements that can be filled in the time in which one is read and added to another.
const FILLED_ELEMENTS_PER_UPDATE: usize = 16;

/// Returns the block of the operand that each program changes: a few large blocks, as each program reads all indices.
/// `filled_elements` is the number of elements that the kernel fills itself, 0 if it reads the operand.
fn choose_scatter_block(
    x: &Type,
    updates: &Type,
    windows: &IndexedWindows,
    filled_elements: usize,
    sizes: &DeviceLimits,
) -> Vec<usize> {
    let mut blocks: Vec<usize> = x.shape.iter().map(|&n| n.max(1)).collect();
    let work = (updates.elements() * 4).max(filled_elements / FILLED_ELEMENTS_PER_UPDATE);
    let programs = if work >= sizes.tile { sizes.programs } else { 1 };
    let most = (x.elements() / programs.max(1)).clamp(1, sizes.scattered.max(1));
    // Axes to split, in this order: those of index positions, those inside of windows if rows stay long, then addressed
    // ones.
    let last = x.shape.len() - 1;
    let order = |axis: usize| {
        let window = &windows.axes[axis];
        let is_position = window.axis.is_some_and(|a| windows.index.contains(&a));
        let is_whole = window.size.as_number() == Some(x.shape[axis] as i64);
        match window.start {
            None if is_position => Some((0, 1)),
            None if is_whole && axis == last => Some((1, MIN_PROGRAM_ROW_BYTES.div_ceil(x.dtype.bytes()))),
            None if is_whole => Some((1, 1)),
            Some(_) if window.size.as_number() == Some(1) => Some((2, 1)),
            _ => None,
        }
    };
    let mut axes: Vec<(usize, usize, usize)> =
        (0..=last).filter_map(|axis| order(axis).map(|(rank, least)| (rank, axis, least))).collect();
    axes.sort_unstable();
    // On a device whose blocks have to be small, rows are split too as a last resort.
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
        // As few parts as are needed, or somewhat more; else as many as possible.
        let parts = (wanted..=n.min(4 * wanted)).find(divides);
        let parts = parts.or_else(|| (1..=wanted.min(n)).rev().find(divides).filter(|_| sizes.scattered < elements));
        blocks[axis] = n / parts.unwrap_or(1);
    }
    blocks
}
