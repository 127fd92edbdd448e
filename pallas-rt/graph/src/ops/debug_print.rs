//! `debug_print`: prints a value each time it is computed, as `jax.debug.print`.
use super::prelude::*;
use super::samples::{OpSample, SampledOp};
use crate::mesh::all_invariant_states;
use crate::stablehlo::HloLine;
use pallas_ir::DType;

/// A call that prints its operand (`jax.debug.print`). Its result, an i32 scalar, exists only because every equation
/// needs one: nothing reads it, and no step writes it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Print {
    /// The text to print before the elements.
    pub label: String,
    /// Extents of the batch axes, which the operand has in front. Each element of the batches is printed separately.
    pub batches: Vec<usize>,
}

impl CallInterface for Print {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![]
    }
    fn with_graphs(&self, _: Vec<Graph>) -> Call {
        self.clone().into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        match args {
            [x] if x.shape.starts_with(&self.batches) => Ok(vec![Type::scalar(DType::I32)]),
            _ => Err(invalid_call_diag(self, format!("operands {args:?} in batches of {:?}", self.batches))),
        }
    }
}

impl PlanStepInterface for Print {
    fn has_effect(&self) -> bool {
        true
    }
    fn without_unread_results(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for Print {
    fn attributes(&self) -> String {
        format!(" {:?} batches{:?}", self.label, self.batches)
    }
    fn jaxpr_params(&self, _: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("fmt={}", self.label)]
    }
}

impl CallTransformRule for Print {
    fn active_results(&self, _: &[bool]) -> Vec<bool> {
        vec![false]
    }
    fn jvp(&self, forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        forward.push_unchanged();
        Ok(vec![None])
    }
    fn vjp(&self, _: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        Ok(vec![None])
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, axis, .. } = batch;
        let batches = [&[axis.size], &self.batches[..]].concat();
        let made = to.push_valid_multi_result(Print { batches, ..self.clone() }, args);
        Ok(vec![(made[0], false)])
    }
    fn batch_dependent_results(&self, _: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![false]
    }
    fn first_masked_cotangent_operand(&self, has_batch_axis: &[bool]) -> Option<usize> {
        Some(has_batch_axis.len())
    }
}

impl CallLinearity for Print {
    fn linearity(&self, _: &mut LinearityAnalysis, _: &Equation, _: &[Linearity]) -> Vec<Linearity> {
        vec![Linearity::Constant]
    }
}

impl CallAxisStateRule for Print {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        _: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        Ok(CallWithAxisStates {
            call: self.clone().into(),
            takes: operand_states,
            gives: vec![all_invariant_states(typing.mesh())],
        })
    }
}

impl ShardableCall for Print {
    fn sharding_rule(&self) -> Option<ShardingRule> {
        None
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
        to.emit_replicated(&to.program.nodes[id], self.clone().into());
    }
    /// Prints on the first device only.
    fn emit_joint_call(&self, to: &mut Graph, of: &JointDevices<'_>) -> Vec<Vec<Var>> {
        match of.has_first_device() {
            true => vec![to.push_valid_multi_result(self.clone(), &of.operands_in_range(0..1))],
            false => vec![vec![to.i32_literal(0)]],
        }
    }
}

impl LowerableCall for Print {
    fn lower_to_step(&self, from: &CallLoweringContext<'_>) -> LoweredStep {
        let CallLoweringContext { graph, e, .. } = from;
        let work = StepOp::Print { print: self.clone(), ty: graph.ty(e.args[0]).clone(), at: e.loc };
        LoweredStep { work, inputs: e.args.clone(), outputs: vec![], in_place: vec![] }
    }
}

impl CallMasking for Print {
    fn check_same_call(&self, other: &Call, is_same_type: bool) -> Result<(), String> {
        match Print::of(other) == Some(self) && is_same_type {
            true => Ok(()),
            false => Err("`debug_print` of an array whose extents depend on the size".into()),
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

impl SerializableOp for Print {
    fn print(&self, _: &mut text_format::Printer) -> String {
        let label: String = self.label.bytes().map(|b| format!("{b:02x}")).collect();
        format!(" x{label}{}", text_format::join_spaced(&self.batches))
    }
    fn parse(_: &mut text_format::Parser<'_>, words: &mut text_format::Words<'_>) -> Result<Print, String> {
        let text = words.next_word("a label")?;
        let digits = text.strip_prefix('x').filter(|digits| digits.is_ascii() && digits.len().is_multiple_of(2));
        let byte = |digits: &str, i: usize| u8::from_str_radix(&digits[i..i + 2], 16).ok();
        let bytes = digits.and_then(|d| (0..d.len()).step_by(2).map(|i| byte(d, i)).collect::<Option<Vec<u8>>>());
        let label = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let label = label.ok_or_else(|| format!("`{text}` is no label"))?;
        Ok(Print { label, batches: words.parse_rest("an extent")? })
    }
}

impl CallHlo for Print {
    fn emit_stablehlo(&self, p: &mut StableHloTranslator, args: &[HloValue], _: &[Type]) -> Vec<HloValue> {
        p.w.push_line(HloLine::Comment(self.label.clone(), args[0].clone()));
        vec![p.w.emit_index_constant(0)]
    }
}

impl SampledOp for Print {
    /// Returns no samples, since tests should print nothing.
    fn samples(_: DType) -> Vec<OpSample> {
        vec![]
    }
}
