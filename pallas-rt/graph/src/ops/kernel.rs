//! A call of a tile kernel from a graph.
mod batch;
mod jvp;
mod kernel_partition;
mod sharding_rule;
mod tiling;

use super::prelude::*;
use super::samples::{OpSample, SampledOp};
use crate::stablehlo::HloAttributes;
use crate::transform::add_missing_batch_axes;
use pallas_ir::{At, DType, Kernel, Literal, Operand, OperandId, OperandKind};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A call of a tile kernel with known sizes. The operands are the kernel's inputs and prefetches, the results its
/// outputs, both in the order in which the kernel lists them.
#[derive(Clone, PartialEq, Debug)]
pub struct KernelCall {
    /// The kernel as it was traced, before any pass.
    pub kernel: Arc<Kernel>,
    /// For each named dimension of the kernel, its extent.
    pub sizes: Vec<i64>,
    /// Values of the kernel's scalar parameters, in order.
    pub params: Vec<Literal>,
    /// The types of the inputs and prefetches.
    pub takes: Vec<Type>,
    /// The types of the outputs.
    pub gives: Vec<Type>,
}

/// Kernels store floats only as bits, so equality is reflexive.
impl Eq for KernelCall {}

impl Hash for KernelCall {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Hashing more is not worth it: kernels that agree in all of this rarely differ.
        (&self.kernel.name, self.kernel.insts.len(), &self.sizes, &self.params, &self.takes).hash(state);
    }
}

/// Returns the input whose memory an output takes over; `None` if there is none.
fn aliased_input(operand: &Operand) -> Option<OperandId> {
    if let OperandKind::Output { alias, .. } = operand.kind { alias } else { None }
}

/// Returns true for an operand that a call passes an array for: an input or a prefetch.
fn is_call_operand(operand: &Operand) -> bool {
    matches!(operand.kind, OperandKind::Input | OperandKind::Prefetch)
}

impl CallInterface for KernelCall {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![]
    }
    fn with_graphs(&self, _: Vec<Graph>) -> Call {
        self.clone().into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        if !self.takes.iter().eq(args.iter().copied()) {
            return Err(invalid_call_diag(
                self,
                format!("`{}` takes {:?}, found {args:?}", self.kernel.name, self.takes),
            ));
        }
        Ok(self.gives.clone())
    }
}

impl PlanStepInterface for KernelCall {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread_results(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for KernelCall {
    fn attributes(&self) -> String {
        format!(" {} sizes{:?}", self.kernel.name, self.sizes)
    }
    fn jaxpr_params(&self, _: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("name={}", self.kernel.name)]
    }
}

impl CallTransformRule for KernelCall {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        vec![is_active.contains(&true); self.gives.len()]
    }
    fn jvp(&self, mut forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let refused = |diag| TransformError { at: forward.e.loc, diag };
        let Some(found) = jvp::jvp_kernel_call(self, &forward.active_operands()).map_err(refused)? else {
            forward.push_unchanged();
            return Ok(vec![None; self.gives.len()]);
        };
        let args = forward.interleaved_operands(&found.takes, &[found.takes.len()]);
        let of = forward.new_result_tangents(&found.gives);
        Ok(forward.push_with_tangents(found.call.into(), args, &[found.gives.len()], of))
    }
    fn vjp(&self, back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let message = format!("the gradient of kernel `{}`, which states none", self.kernel.name);
        let help = "state it by `custom_vjp`, with a kernel for the way back, or pass the kernel a `stop_gradient` of \
                    its arguments";
        Err(TransformError { at: back.e.loc, diag: Diag::new("kernel-gradient", At::Op, message, help) })
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        // An input that an output aliases needs the axis, since the output has it.
        let mut wanted = has.to_vec();
        let operands = &self.kernel.operands;
        for alias in operands.iter().filter_map(aliased_input) {
            let position = operands[..alias.index()].iter().filter(|operand| is_call_operand(operand)).count();
            wanted[position] = true;
        }
        let args = add_missing_batch_axes(to, args, has, &wanted, axis.size);
        let made = to.push_valid_multi_result(batch::batch_kernel_call(self, &wanted, axis.size), &args);
        Ok(made.into_iter().map(|v| (v, true)).collect())
    }
    fn batch_dependent_results(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![true; self.gives.len()]
    }
    /// Returns the number of operands, since no cotangent has to be masked: reverse mode of a kernel is refused.
    fn first_masked_cotangent_operand(&self, has_batch_axis: &[bool]) -> Option<usize> {
        Some(has_batch_axis.len())
    }
}

impl CallLinearity for KernelCall {
    fn linearity(&self, of: &mut LinearityAnalysis, e: &Equation, _: &[Linearity]) -> Vec<Linearity> {
        vec![of.record_nonlinear(e); e.results.len()]
    }
}

impl CallAxisStateRule for KernelCall {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        _: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        typing.call_with_joined_states(self.clone(), e)
    }
}

impl ShardableCall for KernelCall {
    fn sharding_rule(&self) -> Option<ShardingRule> {
        Some(ShardingRule::from_kernel_call(self))
    }
    fn add_propagation_nodes(
        &self,
        build: &mut RegionGraphBuilder<'_>,
        args: &[Val],
        gives: &[Type],
        loc: Loc,
    ) -> Vec<Val> {
        build.add_call_node(self.clone(), args, gives, loc)
    }
    fn emit_partitioned(&self, to: &mut Partitioner<'_>, id: NodeId) {
        to.push_kernel_call(id, self);
    }
    fn emit_joint_call(&self, to: &mut Graph, of: &JointDevices<'_>) -> Vec<Vec<Var>> {
        of.emit_single_device_call(to, self.clone())
    }
}

impl LowerableCall for KernelCall {
    fn lower_to_step(&self, from: &CallLoweringContext<'_>) -> LoweredStep {
        let operands = &self.kernel.operands;
        let outputs = operands.iter().filter(|operand| matches!(operand.kind, OperandKind::Output { .. }));
        let aliases: Vec<Option<OperandId>> = outputs.map(aliased_input).collect();
        let mut in_place = vec![None; aliases.len()];
        let mut inputs = vec![];
        let read = operands.iter().enumerate().filter(|(_, operand)| is_call_operand(operand));
        for ((i, _), &arg) in read.zip(&from.e.args) {
            match aliases.iter().position(|alias| *alias == Some(OperandId(i as u32))) {
                Some(output) => in_place[output] = Some(arg),
                None => inputs.push(arg),
            }
        }
        let KernelCall { kernel, sizes, params, .. } = self.clone();
        LoweredStep {
            work: StepOp::Kernel { kernel, sizes, params },
            inputs,
            outputs: from.e.results.clone(),
            in_place,
        }
    }
}

impl CallMasking for KernelCall {
    fn check_same_call(&self, other: &Call, _: bool) -> Result<(), String> {
        match KernelCall::of(other) == Some(self) {
            true => Ok(()),
            false => Err(format!("kernel `{}` has other sizes", self.kernel.name)),
        }
    }
    fn size_dependent_attributes(&self) -> Vec<usize> {
        vec![]
    }
    fn push_masked(
        &self,
        scope: &mut GraphMasker<'_>,
        _: Vec<MaskedGraphAndParams>,
        _: &[Option<usize>],
        args: &[Var],
    ) -> Vec<Var> {
        scope.to.push_valid_multi_result(self.clone(), args)
    }
}

impl SerializableOp for KernelCall {
    fn print(&self, p: &mut text_format::Printer) -> String {
        let number = p.write_kernel(&self.kernel);
        let params = text_format::join_spaced(self.params.iter().map(text_format::literal_text));
        format!(" {number} sizes{} params{params}", text_format::join_spaced(&self.sizes))
    }
    fn parse(p: &mut text_format::Parser<'_>, words: &mut text_format::Words<'_>) -> Result<KernelCall, String> {
        let number: usize = words.parse_next("a kernel")?;
        let kernel = p.kernel_at(number)?;
        words.expect("sizes")?;
        let mut sizes: Vec<i64> = vec![];
        for _ in &kernel.dims {
            sizes.push(words.parse_next("an extent")?);
        }
        if sizes.iter().any(|&n| n < 0) {
            return Err("an extent is negative".into());
        }
        words.expect("params")?;
        let mut params = vec![];
        for operand in kernel.operands.iter().filter(|operand| operand.kind == OperandKind::Param) {
            let x = words.parse_literal()?;
            if x.dtype != operand.dtype {
                return Err(format!("`{}` of {} is given as {}", operand.name, operand.dtype, x.dtype));
            }
            params.push(x);
        }
        let names: Vec<(&str, i64)> = kernel.dims.iter().map(|d| &*d.name).zip(sizes.iter().copied()).collect();
        let of = |operand: &Operand| -> Result<Type, String> {
            let extent = |dim: &pallas_ir::Dim| {
                let n = dim.evaluate(&names).map_err(|e| format!("`{}` has no shape: {e}", operand.name))?;
                usize::try_from(n).map_err(|_| format!("`{}` has no shape", operand.name))
            };
            Ok(Type::new(operand.dtype, operand.dims.iter().map(extent).collect::<Result<Vec<_>, _>>()?))
        };
        let takes =
            kernel.operands.iter().filter(|operand| is_call_operand(operand)).map(of).collect::<Result<_, _>>()?;
        let is_output = |operand: &&Operand| matches!(operand.kind, OperandKind::Output { .. });
        let gives = kernel.operands.iter().filter(is_output).map(of).collect::<Result<_, _>>()?;
        Ok(KernelCall { kernel, sizes, params, takes, gives })
    }
}

impl CallHlo for KernelCall {
    /// Writes a custom call, whose configuration is the kernel's text, sizes and parameters, with the kernel's sharding
    /// rule for Shardy.
    fn emit_stablehlo(&self, p: &mut StableHloTranslator, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        let config = format!("sizes{:?} params{:?}\n{}", self.sizes, self.params, self.kernel);
        let rule = p.w.with_shardings.then(|| ShardingRule::from_kernel_call(self).text(0));
        let detail = HloAttributes::Kernel { name: self.kernel.name.clone(), config, rule };
        p.w.emit_op_with_regions("custom_call", &args.iter().collect::<Vec<_>>(), vec![], detail, gives)
    }
}

impl SampledOp for KernelCall {
    fn samples(dtype: DType) -> Vec<OpSample> {
        let text = format!(
            "kernel doubled {{
  dim N
  grid cdiv(N, 4) parallel
  in x: {dtype}[N] block [4]
  out y: {dtype}[N] block [4] empty 0.0
  map @x (%0: i32[]) {{ yield %0 }}
  map @y (%1: i32[]) {{ yield %1 }}
  body {{
    %2: {dtype}[4] = load @x block[0:4]
    %3: {dtype}[4] = add %2, %2
    store @y block[0:4] %3
  }}
}}"
        );
        let kernel = Arc::new(text.parse().expect("a kernel"));
        let types = vec![Type::new(dtype, [6])];
        let call = KernelCall { kernel, sizes: vec![6], params: vec![], takes: types.clone(), gives: types.clone() };
        vec![OpSample::new(call, &types).without_gradient()]
    }
}
