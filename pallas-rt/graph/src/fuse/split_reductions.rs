//! Long reductions, split into stages that different kernels compute.
//!
//! ```text
//! reduce op(add) axes(0) x: f32[16777216]
//!   -> reduce op(add) axes(0) (reduce op(add) axes(1) (reshape to(1024, 16384) x))
//! ```
//!
//! A program computes each element of the result from all elements that are folded into it. So a sum of all elements
//! would be a single program, whatever the number of processors, and a fold of long columns would read a few adjacent
//! elements at a time. Here a long axis is split into parts of adjacent elements: the programs of one kernel fold
//! parts, and another kernel folds their results. The parts depend on shapes and the device alone, so an operation by
//! itself folds in the same order as within a function.
use super::device_limits::DeviceLimits;
use crate::build::constant_dims;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{ArgReduce, Pad, Reduce, TakeAlong};
use pallas_ir::{DType, Literal, MAX_RANK, ScalarOp, StructuralOp};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Fewest elements for each element of the result for a fold to be split into stages, as multiples of the elements that
/// a program folds at a time: the first if fewer than [`DeviceLimits::programs`] programs compute the result, else the
/// second.
const MIN_STAGED_FOLD_MULTIPLES: [usize; 2] = [4, 16];
/// Fewest elements of a row that is folded in stages; a shorter row shares a kernel with the operations that read the
/// fold.
const MIN_STAGED_ROW_ELEMENTS: usize = 1 << 15;
/// Least value of the limit of elements that one program folds, for each of its columns, in the first stage of a split
/// reduction.
const MIN_PART_ELEMENTS: usize = 16;

/// A graph whose long reductions are split into stages.
pub(crate) struct StagedGraph<'g> {
    pub graph: Cow<'g, Graph>,
    /// By value that a stage passes to the next one, the result of the kernel that computes it.
    pub given: StageKernelResults,
}

/// Maps each value that a stage of a reduction passes on to the result of the kernel that has to compute it.
pub(crate) type StageKernelResults = BTreeMap<Var, Var>;

/// Splits the long reductions of a graph into stages.
pub(crate) fn split_long_reductions<'g>(graph: &'g Graph, sizes: &DeviceLimits) -> StagedGraph<'g> {
    let is_long = |e: &Equation| match reduced_axes_and_keepdims(e) {
        Some((axes, _)) => SplitFold::choose_first_stage(&graph.ty(e.args[0]).shape, axes, sizes).is_some(),
        None => false,
    };
    if !graph.equations.iter().any(is_long) {
        return StagedGraph { graph: Cow::Borrowed(graph), given: StageKernelResults::new() };
    }
    let mut to = graph.with_equations(vec![]);
    let mut given = StageKernelResults::new();
    for e in &graph.equations {
        let Some((axes, keeps)) = reduced_axes_and_keepdims(e).filter(|_| is_long(e)) else {
            to.equations.push(e.clone());
            continue;
        };
        to.at = e.loc;
        let folded = match &e.op {
            Op::Structural(StructuralOp::ArgReduce(op)) => {
                emit_staged_arg_reduce(&mut to, op, e.args[0], sizes, &mut given)
            }
            Op::Structural(StructuralOp::Reduce(op)) => {
                emit_staged_fold(&mut to, op.op, axes, e.args[0], sizes, &mut given)
            }
            _ => unreachable!("{} folds no axes", e.op),
        };
        if keeps {
            to.reshape(folded, &graph.ty(e.result()).shape);
        }
        let last = to.equations.last_mut().expect("a reduction in stages has equations");
        last.results = e.results.clone();
    }
    to.at = graph.at;
    StagedGraph { graph: Cow::Owned(to), given }
}

/// Returns the axes that an equation folds, and true if the result keeps them with extent 1; `None` if it is no
/// reduction.
fn reduced_axes_and_keepdims(e: &Equation) -> Option<(&[usize], bool)> {
    if let Op::Structural(StructuralOp::Reduce(op)) = &e.op {
        return Some((&op.axes, op.keep));
    }
    let Op::Structural(StructuralOp::ArgReduce(op)) = &e.op else { return None };
    Some((std::slice::from_ref(&op.axis), op.keep))
}

/// The first stage of a reduction: an axis split into parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct SplitFold {
    /// The axis that is split. Folded axes after it are folded with it, those before it in a later stage.
    axis: usize,
    /// Number of parts into which the axis is split.
    parts: usize,
    /// Elements of a part along the axis; the last part may have fewer.
    part: usize,
}

impl SplitFold {
    /// Returns the first stage of a fold over these axes; `None` if everything is folded at once.
    fn choose_first_stage(shape: &[usize], axes: &[usize], sizes: &DeviceLimits) -> Option<SplitFold> {
        let extent = |axes: &mut dyn Iterator<Item = usize>| axes.map(|axis| shape[axis]).product::<usize>();
        let folded = extent(&mut axes.iter().copied());
        let last = axes.iter().max()?;
        let kept = extent(&mut (0..shape.len()).filter(|axis| !axes.contains(axis)));
        let [tile, adjacent] = sizes.column_fold_tile_and_row_elements(folded * kept);
        let columns = extent(&mut (last + 1..shape.len())).min(adjacent);
        if kept == 0 || shape.len() >= MAX_RANK {
            return None;
        }
        let most = (if columns == 1 { sizes.tile } else { tile } / columns).max(MIN_PART_ELEMENTS);
        let long = MIN_STAGED_FOLD_MULTIPLES[usize::from(kept / columns >= sizes.programs)] * most;
        if folded < if columns == 1 { long.max(MIN_STAGED_ROW_ELEMENTS) } else { long } {
            return None;
        }
        // The first axis, from the innermost outwards, up to which there are enough elements for a part.
        let mut inside = 1;
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        let axis = sorted.into_iter().rev().find(|&axis| {
            let is_enough = inside * shape[axis] >= most;
            inside *= if is_enough { 1 } else { shape[axis] };
            is_enough
        })?;
        let n = shape[axis];
        let part = (most / inside).max(1);
        // Parts of equal size, if the axis divides into parts of about that size.
        let part = (part.div_ceil(2)..=part).rev().find(|&part| n.is_multiple_of(part)).unwrap_or(part);
        Some(SplitFold { axis, parts: n.div_ceil(part), part: part.min(n) })
    }

    /// Returns the operand with the axis reshaped to two: parts, and elements of a part. A last part with fewer
    /// elements is padded with `filling`, which is only needed for such a part.
    fn split_folded_axis(self, graph: &mut Graph, v: Var, filling: Option<Literal>) -> Var {
        let (mut v, mut shape) = (v, graph.ty(v).shape.clone());
        let missing = self.parts * self.part - shape[self.axis];
        if missing > 0 {
            let filling = filling.expect("a fold has a neutral element");
            let mut high = vec![0; shape.len()];
            high[self.axis] = missing;
            let pad = StructuralOp::from(Pad { low: constant_dims(&vec![0; shape.len()]), high: constant_dims(&high) });
            // The operand of a cast is padded instead of the result, so that loads from memory can pad it.
            let cast =
                graph.equations.last().filter(|e| e.result() == v && is_widening_to_f32(graph, e)).map(|e| e.args[0]);
            let (from, filling) = match cast {
                Some(from) => (from, Literal::new(graph.ty(from).dtype, filling.as_f64())),
                None => (v, filling),
            };
            let (to, filling) = (graph.ty(v).dtype, graph.literal(filling));
            v = graph.push_valid(pad, &[from, filling]);
            v = graph.cast(v, to);
        }
        shape.splice(self.axis..=self.axis, [self.parts, self.part]);
        graph.reshape(v, &shape)
    }
}

/// Returns true for a cast of floats to `f32` that loses no digits.
fn is_widening_to_f32(graph: &Graph, e: &Equation) -> bool {
    let [from, to] = [e.args.first(), e.results.first()].map(|v| v.map(|&v| graph.ty(v).dtype));
    let is_float = |dtype: Option<DType>| dtype.is_some_and(DType::is_float);
    let is_cast = matches!(e.op, Op::Structural(StructuralOp::Cast(_)));
    is_cast && is_float(from) && to == Some(DType::F32) && from != Some(DType::F64)
}

/// Appends a reduction that drops the axes, split into stages where it is long.
fn emit_staged_fold(
    graph: &mut Graph,
    op: ScalarOp,
    axes: &[usize],
    v: Var,
    sizes: &DeviceLimits,
    kernel_results: &mut StageKernelResults,
) -> Var {
    let reduce = |axes| StructuralOp::from(Reduce::dropping(op, axes));
    let Some(split) = SplitFold::choose_first_stage(&graph.ty(v).shape, axes, sizes) else {
        return graph.push_valid(reduce(axes.to_vec()), &[v]);
    };
    let (now, later): (Vec<usize>, Vec<usize>) = axes.iter().partition(|&&axis| axis >= split.axis);
    let filling = op.neutral(graph.ty(v).dtype);
    let (x, now, later) = if split.parts == 1 {
        (v, now, later)
    } else {
        let x = split.split_folded_axis(graph, v, filling);
        (x, now.iter().map(|axis| axis + 1).collect(), [later, vec![split.axis]].concat())
    };
    // Indices of the remaining axes for later stages stay valid: all axes that are folded now come after them.
    let folded = graph.push_valid(reduce(now), &[x]);
    kernel_results.insert(folded, folded);
    emit_staged_fold(graph, op, &later, folded, sizes, kernel_results)
}

/// Appends an argmax or argmin that drops its axis, split into stages: the first part with the extreme element, then
/// the position in that part.
fn emit_staged_arg_reduce(
    graph: &mut Graph,
    op: &ArgReduce,
    v: Var,
    sizes: &DeviceLimits,
    kernel_results: &mut StageKernelResults,
) -> Var {
    let axis = op.axis;
    let Some(split) = SplitFold::choose_first_stage(&graph.ty(v).shape, &[axis], sizes) else {
        return graph.push_valid(StructuralOp::from(ArgReduce { keep: false, ..op.clone() }), &[v]);
    };
    let worst = if op.max { ScalarOp::Maximum } else { ScalarOp::Minimum };
    let x = split.split_folded_axis(graph, v, worst.neutral(graph.ty(v).dtype));
    let kept = [&graph.ty(x).shape[..=axis], &graph.ty(x).shape[axis + 2..]].concat();
    let within = graph.push_valid(StructuralOp::from(ArgReduce { axis: axis + 1, keep: true, ..op.clone() }), &[x]);
    let extremes = graph.push_valid(StructuralOp::from(TakeAlong { axis: axis + 1 }), &[x, within]);
    kernel_results.extend([(within, extremes), (extremes, extremes)]);
    let [within, extremes] = [within, extremes].map(|v| graph.reshape(v, &kept));
    let part = emit_staged_arg_reduce(graph, op, extremes, sizes, kernel_results);
    // For each element, the position within the part that won; the axis is kept with extent 1 until then.
    let result = graph.ty(part).shape.clone();
    let one = [&result[..axis], &[1], &result[axis..]].concat();
    let which = graph.reshape(part, &one);
    let within = graph.push_valid(StructuralOp::from(TakeAlong { axis }), &[within, which]);
    let within = graph.reshape(within, &result);
    let length = graph.splat(Literal::new(DType::I32, split.part as f64), &result);
    let first = graph.push_valid(ScalarOp::Mul, &[part, length]);
    graph.push_valid(ScalarOp::Add, &[first, within])
}

#[cfg(test)]
mod tests {
    use super::super::{Plan, StepOp, plan};
    use super::*;
    use pallas_ir::Type;

    const SIZES: DeviceLimits = DeviceLimits { programs: 4, columns: 16, ..DeviceLimits::TEST };

    /// Returns the number of programs of each launch of a plan.
    fn programs(plan: &Plan) -> Vec<i64> {
        let of = |work: &StepOp| {
            let StepOp::Kernel { kernel, sizes, .. } = work else { panic!("{work:?}") };
            let names: Vec<String> = (0..sizes.len()).map(|k| format!("n{k}")).collect();
            let values: Vec<(&str, i64)> = names.iter().map(String::as_str).zip(sizes.iter().copied()).collect();
            let count = |dim: pallas_ir::Dim| dim.evaluate(&values).expect("the extents are known");
            kernel.grid.iter().map(|axis| count(axis.extent.clone())).product()
        };
        plan.steps.iter().map(|step| of(&step.work)).collect()
    }

    #[test]
    fn folds_of_every_shape_have_enough_programs() {
        type Case = (&'static [usize], &'static [usize], &'static [i64]);
        let cases: [Case; 9] = [
            // All at once; rows; and columns, in whole lines.
            (&[1000], &[0], &[1]),
            (&[1000, 1000], &[1], &[250]),
            (&[1000, 1000], &[0], &[63]),
            // Equal parts, and parts of which the last one is filled up.
            (&[1 << 18], &[0], &[64, 1]),
            (&[262_139], &[0], &[64, 1]),
            (&[64, 1 << 18], &[1], &[64 * 64, 1]),
            // Columns twice.
            (&[1 << 15, 64], &[0], &[512, 8, 1]),
            // The outer axis waits for the last stage; or it is the one that is split.
            (&[3, 1 << 16], &[0, 1], &[3 * 16, 1]),
            (&[1 << 16, 8], &[0, 1], &[128, 1]),
        ];
        for (shape, axes, wanted) in cases {
            let mut graph = Graph::default();
            let x = graph.param(Type::new(DType::F32, shape.to_vec()));
            let square = graph.push(ScalarOp::Mul, &[x, x]).expect("one shape");
            for x in [x, square] {
                let sum = StructuralOp::from(Reduce::dropping(ScalarOp::Add, axes.to_vec()));
                graph.results = vec![graph.push(sum, &[x]).expect("it has these axes")];
                assert_eq!(programs(&plan(&graph, &[], &SIZES)), wanted, "{shape:?} along {axes:?}");
            }
        }
    }
    /// Softmax of all elements, twice: readers of the sum add up its parts themselves, and none waits for a kernel that
    /// does.
    #[test]
    fn what_reads_a_last_stage_adds_up_its_parts() {
        const N: usize = 1 << 18;
        let mut graph = Graph::default();
        let x = graph.param(Type::new(DType::F32, [N]));
        let e = graph.push(ScalarOp::Exp, &[x]).expect("one operand");
        let sum = StructuralOp::from(Reduce::dropping(ScalarOp::Add, vec![0]));
        let total = graph.push(sum.clone(), &[e]).expect("it has the axis");
        let total = graph.broadcast(total, &[N]).expect("it fits");
        let share = graph.push(ScalarOp::Div, &[e, total]).expect("one shape");
        let square = graph.push(ScalarOp::Mul, &[share, share]).expect("one shape");
        let squares = graph.push(sum, &[square]).expect("it has the axis");
        let squares = graph.broadcast(squares, &[N]).expect("it fits");
        graph.results = vec![graph.push(ScalarOp::Sub, &[share, squares]).expect("one shape")];
        let plan = plan(&graph, &[], &DeviceLimits { arena: 0, ..SIZES });
        let (parts, tiles) = (64, N / SIZES.tile);
        assert_eq!(programs(&plan), [parts, parts, tiles as i64], "{plan:?}");
        assert!(plan.arena < N, "{} bytes: an array waits", plan.arena);
    }
}
