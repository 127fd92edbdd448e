//! The cost and the memory of a traced function.
use super::function::Function;
use super::lower::Lowered;
use crate::exec::{Compiled, Cost, estimate_launch_cost};
use crate::tree::Tree;
use pallas_graph::Graph;
use pallas_graph::call::{Call, KernelCall, RunCount};
use pallas_graph::fuse::{ArenaRegion, ArenaValue, MemoryLocation, Plan, StepOp};
use pallas_graph::graph::{Equation, Op};
use pallas_ir::structural::LoopNest;
use pallas_ir::{AccessForm, Dim, Kernel, StructuralOp, Type};
use std::fmt::{self, Write};
use std::sync::Arc;

impl<Args: Tree + 'static, F: Function<Args>> Lowered<Args, F> {
    /// Estimates the work of a call, one operation at a time as XLA's `HloCostAnalysis` counts it before fusion:
    /// `jax.jit(f).lower(..).cost_analysis()`. Every operation reads its operands and writes its result; bodies of
    /// loops count once, and every branch of a `cond`.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    /// use pallas_rt::lower;
    /// let [x, w] = [[3, 5], [5, 7]].map(|shape| Client::cpu().shape_dtype(&shape, DType::F32));
    /// let cost = lower(|x: &Array, w: &Array| x.matmul(w))(&x?, &w?)?.cost_analysis();
    /// assert_eq!((cost.flops, cost.bytes_accessed), (2 * 3 * 5 * 7, 4 * (15 + 35 + 21)));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn cost_analysis(&self) -> Cost {
        graph_cost(self.graph(), false)
    }

    /// Returns the memory that a call takes on its client, and when:
    /// `jax.jit(f).lower(..).compile().memory_analysis()`. Nothing is compiled.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    /// use pallas_rt::lower;
    /// let x = Client::cpu().shape_dtype(&[100, 200], DType::F32)?;
    /// let memory = lower(|x: &Array| x.matmul(&x.t()).matmul(x))(&x)?.memory_analysis();
    /// assert_eq!((memory.argument_bytes, memory.output_bytes), (80_000, 80_000));
    /// assert_eq!(memory.temporary_bytes, 40_000);
    /// println!("{memory}");
    /// std::fs::write(std::env::temp_dir().join("memory.svg"), memory.to_svg())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory_analysis(&self) -> MemoryAnalysis {
        self.with_plan(MemoryAnalysis::from_plan)
    }
}

/// The memory of a compiled function. Its `Display` shows the arena step by step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryAnalysis {
    /// Bytes of the arguments, those of captured arrays among them.
    pub argument_bytes: usize,
    /// Bytes of the results that are no arguments.
    pub output_bytes: usize,
    /// Bytes of the arena, in which all other values lie; XLA's `temp_size_in_bytes`.
    pub temporary_bytes: usize,
    /// Bytes that would be added if the last two axes of every value, before fusion, were padded to tiles of 8 x 128,
    /// as on a TPU.
    pub padding_bytes: usize,
    /// Number of steps, of which each is a launch, a loop or a branch.
    steps: usize,
    /// Values in the arena: where each lies, and from which step to which.
    held: Vec<ArenaValue>,
}

/// Bytes of padding of an array whose last two extents are rounded up to a tile of 8 x 128 elements, as in a TPU's
/// memory; a vector is one row, padded to 128.
fn tile_padding_bytes(ty: &Type) -> usize {
    let mut shape = ty.shape.clone();
    for (axis, tile) in shape.iter_mut().rev().zip([128, 8]) {
        *axis = axis.next_multiple_of(tile);
    }
    shape.iter().product::<usize>() * ty.dtype.bytes() - ty.bytes()
}

/// Name of the value that a region of the arena holds.
fn arena_value_name(held: &ArenaValue) -> String {
    held.ty.as_ref().map_or("the inside of a loop or branch".into(), Type::to_string)
}

impl MemoryAnalysis {
    /// Memory of a graph that runs by this plan.
    pub(super) fn from_plan(graph: &Graph, plan: &Plan) -> MemoryAnalysis {
        let bytes = |types: &[Type]| types.iter().map(Type::bytes).sum();
        let values = graph.equations.iter().flat_map(|e| &e.results).chain(&graph.params);
        MemoryAnalysis {
            argument_bytes: bytes(&graph.param_types()),
            output_bytes: plan.fresh.iter().sum(),
            temporary_bytes: plan.arena,
            padding_bytes: values.map(|&v| tile_padding_bytes(graph.ty(v))).sum(),
            steps: plan.steps.len(),
            held: plan.held.clone(),
        }
    }

    /// The largest number of bytes of the arena that are in use during a step.
    pub fn peak_bytes(&self) -> usize {
        (0..self.steps).map(|step| self.used_bytes(step)).max().unwrap_or(0)
    }

    /// Bytes of the arena that are in use during a step.
    fn used_bytes(&self, step: usize) -> usize {
        let alive = self.held.iter().filter(|held| (held.first..=held.last).contains(&step));
        alive.map(|held| held.region.bytes).sum()
    }

    /// The arena over time as SVG: a box for each value, from the step that makes it to the last one that reads it, and
    /// from its first to its last byte.
    pub fn to_svg(&self) -> String {
        let (width, height) = (960.0, 480.0);
        let (x, y) = (width / self.steps.max(1) as f64, height / self.temporary_bytes.max(1) as f64);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\n\
             <title>{} bytes over {} steps</title>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n",
            self.temporary_bytes, self.steps,
        );
        for (i, held) in self.held.iter().enumerate().filter(|(_, held)| held.region.bytes > 0) {
            let ArenaValue { region: ArenaRegion { offset, bytes }, first, last, .. } = held;
            let what = arena_value_name(held);
            // The arena begins at the bottom.
            let top = height - (offset + bytes) as f64 * y;
            let _ = writeln!(
                svg,
                "<rect x=\"{:.2}\" y=\"{top:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"hsl({}, 60%, 75%)\" \
                 stroke=\"#333\" stroke-width=\"0.3\"><title>{what}: bytes {offset} to {}, steps {first} to {last}</title></rect>",
                *first as f64 * x,
                (last - first + 1) as f64 * x,
                *bytes as f64 * y,
                i * 47 % 360,
                offset + bytes,
            );
        }
        svg + "</svg>\n"
    }
}

/// Writes the totals, then a line for each step: the bytes in use in the arena, and the values that the step adds.
impl fmt::Display for MemoryAnalysis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryAnalysis { argument_bytes, output_bytes, temporary_bytes, padding_bytes, .. } = self;
        writeln!(f, "arguments {argument_bytes}, results {output_bytes}, arena {temporary_bytes} bytes")?;
        writeln!(f, "tiles of 8 x 128 would add {padding_bytes} bytes to the values before fusion")?;
        for step in 0..self.steps {
            let used = self.used_bytes(step);
            let bar = "#".repeat((used * 40).div_ceil(self.temporary_bytes.max(1)));
            let made = self.held.iter().filter(|held| held.first == step && held.region.bytes > 0);
            let made: Vec<String> = made.map(arena_value_name).collect();
            writeln!(f, "{step:4} {used:12} {bar:40} {}", made.join(", "))?;
        }
        Ok(())
    }
}

/// Estimates the work of a graph; bodies of scans count once for each step if `is_scaled_by_steps`, else once.
pub(super) fn graph_cost(graph: &Graph, is_scaled_by_steps: bool) -> Cost {
    let mut cost = Cost::default();
    for e in &graph.equations {
        match &e.op {
            Op::Literal(_) | Op::Identity(_) | Op::Collective(_) => {}
            Op::Scalar(op) => {
                cost.add_scalar_op(*op, element_count(graph.ty(e.result())));
                cost.bytes_accessed += operand_and_result_bytes(graph, e);
            }
            Op::Structural(op) => add_structural_cost(graph, e, op, &mut cost),
            Op::Dynamic(op) => {
                let positions =
                    e.args[op.array_operand_count()..].iter().map(|&v| graph.ty(v).bytes() as u64).sum::<u64>();
                cost.bytes_accessed += 2 * graph.ty(op.window_var(e)).bytes() as u64 + positions;
            }
            Op::Call(call) => match &**call {
                Call::KernelCall(KernelCall { kernel, sizes, .. }) => {
                    if let Some(own) = launch_cost(kernel, sizes) {
                        cost.add_repeated(1, own);
                    }
                }
                // The body of a `shard_map` counts once: the work is that of one device.
                call => {
                    for (runs, graph) in call.graphs_with_run_counts() {
                        let times = match runs {
                            RunCount::Never => continue,
                            RunCount::Times(n) if is_scaled_by_steps => n as u64,
                            RunCount::Times(_) | RunCount::Once | RunCount::Unknown => 1,
                        };
                        cost.add_repeated(times, graph_cost(graph, is_scaled_by_steps));
                    }
                }
            },
        }
    }
    cost
}

/// The work of one launch of a kernel with these sizes; `None` for sizes that no launch can have.
fn launch_cost(kernel: &Arc<Kernel>, sizes: &[i64]) -> Option<Cost> {
    let geometry = Compiled::from_trace((**kernel).clone()).launch_geometry(sizes).ok()?;
    Some(estimate_launch_cost(kernel, &geometry))
}

/// Bytes that the steps of a plan read and write. A step counts its inputs and outputs once, or less if its kernel
/// loads and stores less, as for a window of an array. Scans count all their steps, other loops one; all branches
/// count. `parameter_bytes` has the size of each parameter.
pub(super) fn traffic_bytes(plan: &Plan, parameter_bytes: &[usize]) -> u64 {
    let bytes = |place: &MemoryLocation| match *place {
        MemoryLocation::Param(i) => parameter_bytes[i],
        MemoryLocation::Fresh(i) => plan.fresh[i],
        MemoryLocation::Temporary(i) => plan.temporary[i].bytes,
    };
    let mut total = 0;
    for step in &plan.steps {
        let [inputs, outputs] =
            [&step.inputs, &step.outputs].map(|places| places.iter().map(bytes).collect::<Vec<usize>>());
        let whole = inputs.iter().chain(&outputs).sum::<usize>() as u64;
        total += 2 * step.copies.iter().map(|(from, _)| bytes(from) as u64).sum::<u64>();
        total += match &step.work {
            StepOp::Kernel { kernel, sizes, .. } => {
                launch_cost(kernel, sizes).map_or(whole, |own| own.bytes_accessed.min(whole))
            }
            StepOp::Collective { .. } | StepOp::Print { .. } | StepOp::Callback { .. } => whole,
            StepOp::For { body, length, inputs: captured } => {
                let counter = [size_of::<i32>()];
                let all = [&counter[..], &inputs[..(*captured).min(inputs.len())], &outputs].concat();
                *length as u64 * traffic_bytes(body, &all)
            }
            StepOp::While { condition, captured, body, .. } => {
                let (of_condition, of_body) = inputs.split_at((*captured).min(inputs.len()));
                traffic_bytes(condition, &[of_condition, &outputs].concat())
                    + traffic_bytes(body, &[of_body, &outputs].concat())
            }
            StepOp::Case { branches } => {
                branches.iter().map(|branch| traffic_bytes(branch, inputs.get(1..).unwrap_or_default())).sum()
            }
        };
    }
    total
}

fn element_count(ty: &Type) -> u64 {
    ty.elements() as u64
}

fn operand_and_result_bytes(graph: &Graph, e: &Equation) -> u64 {
    e.args.iter().chain(&e.results).map(|&v| graph.ty(v).bytes() as u64).sum()
}

/// Adds the work of a structural operation to `cost`, counted as XLA's `HloCostAnalysis` does.
fn add_structural_cost(graph: &Graph, e: &Equation, op: &StructuralOp, cost: &mut Cost) {
    let dims: Vec<Vec<Dim>> = e.args.iter().map(|&v| graph.ty(v).dims()).collect();
    let dims: Vec<&[Dim]> = dims.iter().map(|d| &d[..]).collect();
    let (operand, result) = (e.args.first().map(|&v| graph.ty(v)), graph.ty(e.result()));
    let mut bytes = operand_and_result_bytes(graph, e);
    // XLA counts the initial value of a fold as an operand.
    let start = result.dtype.bytes() as u64;
    match (op, op.access(&dims)) {
        (StructuralOp::Cast(_) | StructuralOp::Bitcast(_), _) => cost.flops += element_count(result),
        (StructuralOp::Powi(power), _) => {
            cost.flops += element_count(result) * u64::from(power.exponent.unsigned_abs().max(1).ilog2())
        }
        (StructuralOp::Slice(_), _) => bytes = 2 * result.bytes() as u64,
        (_, AccessForm::Gather { .. }) => bytes = 2 * result.bytes() as u64 + graph.ty(e.args[1]).bytes() as u64,
        (_, AccessForm::Scatter { op, .. }) => {
            let updates = graph.ty(e.args[2]);
            bytes = 3 * updates.bytes() as u64 + graph.ty(e.args[1]).bytes() as u64;
            op.into_iter().for_each(|op| cost.add_scalar_op(op, element_count(updates)));
        }
        (_, AccessForm::Contract { contract, .. }) => {
            let of = operand.expect("a product has operands");
            let inner = contract.iter().map(|p| of.shape[p.0] as u64).product::<u64>();
            cost.flops += 2 * element_count(result) * inner;
        }
        (_, AccessForm::Fold { op, .. }) => {
            cost.add_scalar_op(op, operand.map_or(0, element_count).saturating_sub(element_count(result)));
            bytes += start;
        }
        (_, AccessForm::Scan { op, axis, .. }) => {
            // XLA counts a scan as reductions over windows that end at each element.
            cost.add_scalar_op(op, element_count(result) * (result.shape[axis] as u64).saturating_sub(1));
            bytes += start;
        }
        (_, AccessForm::Nest(nest)) if e.args.len() == 2 => cost.flops += 2 * count_unpadded_products(&nest, graph, e),
        (_, AccessForm::Nest(nest)) => {
            cost.add_scalar_op(nest.op, element_count(result) * (nest.folded_count() as u64).saturating_sub(1));
            bytes += start;
        }
        (_, AccessForm::Arg { .. }) => cost.flops += operand.map_or(0, element_count),
        (_, AccessForm::Sort { .. }) => {
            let n = operand.map_or(0, element_count);
            cost.flops += n * u64::from(n.max(1).next_power_of_two().ilog2());
        }
        _ => {}
    }
    cost.bytes_accessed += bytes;
}

/// Number of products of a convolution in which both operands have an element, so that padding does not count.
fn count_unpadded_products(nest: &LoopNest, graph: &Graph, e: &Equation) -> u64 {
    let mut all: f64 = nest.axes.iter().map(|axis| axis.extent as f64).product();
    for (places, &arg) in nest.operands.iter().zip(&e.args) {
        for (position, &n) in places.iter().zip(&graph.ty(arg).shape) {
            let [(a, _), (b, _)] = position.terms[..] else { continue };
            let mut index = vec![0; nest.axes.len()];
            let [of_a, of_b] = [a, b].map(|axis| nest.axes[axis].extent);
            let mut found = 0u64;
            for i in 0..of_a {
                for k in 0..of_b {
                    (index[a], index[b]) = (i, k);
                    found += u64::from(position.evaluate(&index).is_some_and(|at| (0..n as i64).contains(&at)));
                }
            }
            all *= found as f64 / (of_a * of_b).max(1) as f64;
        }
    }
    all.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, lower, ops, prelude::*};

    /// Figures of `jax.jit(f).lower(..).cost_analysis()` of jax 0.12.0.1: flops, transcendentals, bytes accessed.
    #[test]
    fn costs_are_those_of_xla() {
        let client = Client::cpu();
        let shaped = |shape: &[usize]| client.shape_dtype(shape, DType::F32).expect("it fits");
        let (x, w, image, taps) = (shaped(&[3, 5]), shaped(&[5, 7]), shaped(&[1, 8, 8, 3]), shaped(&[3, 3, 3, 4]));
        let of = |f: fn(&Array, &Array) -> Array, x: &Array, y: &Array| {
            let cost = lower(f)(x, y).expect("it traces").cost_analysis();
            (cost.flops, cost.transcendentals, cost.bytes_accessed)
        };
        assert_eq!(of(|x, _| x + x, &x, &w), (15, 0, 180));
        assert_eq!(of(|x, _| x * x - x / x, &x, &w), (45, 0, 540));
        assert_eq!(of(|x, _| x.lt(x), &x, &w), (15, 0, 135));
        assert_eq!(of(|x, _| x.exp(), &x, &w), (0, 15, 120));
        assert_eq!(of(|x, _| x.matmul(&Array::clone(x).t()), &shaped(&[3, 5]), &w).0, 2 * 3 * 3 * 5);
        assert_eq!(of(|x, w| x.matmul(w), &x, &w), (210, 0, 284));
        assert_eq!(of(|x, _| x.sum(-1), &x, &w), (12, 0, 76));
        assert_eq!(of(|x, _| x.sum(..), &x, &w), (14, 0, 68));
        assert_eq!(of(|x, _| x.cumsum(1), &x, &w), (60, 0, 124));
        assert_eq!(of(|x, _| x.sort(1), &x, &w), (60, 0, 120));
        assert_eq!(of(|x, _| x * 2.0, &x, &w), (15, 0, 244));
        assert_eq!(of(|x, _| x.index((1..3, 0..4)), &x, &w), (0, 0, 64));
        let same = |x: &Array, w: &Array| {
            let options = ops::Convolution {
                padding: ops::Padding::Same,
                dimension_numbers: ["NHWC", "HWIO", "NHWC"],
                ..Default::default()
            };
            ops::conv_general_dilated(x, w, &options)
        };
        assert_eq!(of(same, &image, &taps), (11616, 0, 2224));
        let strided = |x: &Array, w: &Array| {
            let options = ops::Convolution {
                window_strides: &[2, 2],
                dimension_numbers: ["NHWC", "HWIO", "NHWC"],
                ..Default::default()
            };
            ops::conv_general_dilated(x, w, &options)
        };
        assert_eq!(of(strided, &image, &taps), (1944, 0, 1344));
    }

    #[test]
    fn the_arena_is_shown_step_by_step() {
        let x = Client::cpu().shape_dtype(&[100, 200], DType::F32).expect("it fits");
        let f = |x: &Array| x.matmul(&x.t()).matmul(x).matmul(&x.t()).matmul(x);
        let memory = lower(f)(&x).expect("it traces").memory_analysis();
        assert_eq!((memory.argument_bytes, memory.output_bytes, memory.steps), (80_000, 80_000, 4));
        // The first product, the second, and the third in the place of the first.
        assert_eq!(memory.temporary_bytes, 40_000 + 80_000);
        assert_eq!(memory.peak_bytes(), memory.temporary_bytes);
        assert_eq!(tile_padding_bytes(&Type::new(DType::F32, [100, 200])), 4 * (104 * 256 - 100 * 200));
        let text = memory.to_string();
        assert_eq!(text.lines().count(), 2 + 4, "{text}");
        let svg = memory.to_svg();
        assert_eq!(svg.matches("<rect").count(), 1 + 3, "{svg}");
        assert_eq!(svg.matches("<title>").count(), svg.matches("</title>").count());
    }
}
