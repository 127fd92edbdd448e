//! `pure_callback`: a call of a Rust function on the host from a graph, as in JAX.
use super::Scan;
use super::prelude::*;
use super::samples::{OpSample, SampledOp};
use crate::stablehlo::HloAttributes;
use crate::transform::{add_missing_batch_axes, with_leading_axis};
use pallas_ir::{At, DType};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A call of a Rust function on the host, which computes the results from the elements of the operands
/// (`jax.pure_callback`). It has no derivative.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Callback {
    /// The function to call.
    pub function: HostFunction,
    /// The way in which a batch of examples is passed to the function.
    pub method: VmapMethod,
    /// The types of the operands.
    pub takes: Vec<Type>,
    /// The types of the results.
    pub gives: Vec<Type>,
}

impl Callback {
    /// Calls the function on the bytes of the operands, and returns the bytes of each result.
    ///
    /// # Errors
    /// The error that the function returns.
    pub fn call(&self, operands: &[&[u8]]) -> Result<Vec<Vec<u8>>, Diag> {
        let operands: Vec<(&Type, &[u8])> = self.takes.iter().zip(operands.iter().copied()).collect();
        (self.function.0)(&operands, &self.gives)
    }
}

/// The ways to call a callback for a batch of examples; the `vmap_method` of `jax.pure_callback`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum VmapMethod {
    /// One call for each example, in a loop.
    #[default]
    Sequential,
    /// One call for all examples. Operands and results have an additional first axis; its extent is 1 for operands that
    /// all examples share.
    ExpandDims,
    /// One call for all examples. Operands and results have an additional first axis, along which operands that all
    /// examples share are repeated.
    BroadcastAll,
}

impl fmt::Display for VmapMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VmapMethod::Sequential => "sequential",
            VmapMethod::ExpandDims => "expand_dims",
            VmapMethod::BroadcastAll => "broadcast_all",
        })
    }
}

/// A Rust function that gets the types and bytes of arrays and the types of its results, and returns the bytes of the
/// results. Two are equal only if one is a clone of the other.
#[derive(Clone)]
pub struct HostFunction(Arc<HostClosure>);

type HostClosure = dyn Fn(&[(&Type, &[u8])], &[Type]) -> Result<Vec<Vec<u8>>, Diag> + Send + Sync;

impl HostFunction {
    /// Wraps a function whose results depend only on its arguments.
    pub fn new(
        f: impl Fn(&[(&Type, &[u8])], &[Type]) -> Result<Vec<Vec<u8>>, Diag> + Send + Sync + 'static,
    ) -> HostFunction {
        HostFunction(Arc::new(f))
    }

    /// Returns the address of the function, by which it is compared and hashed.
    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).cast::<()>() as usize
    }
}

impl PartialEq for HostFunction {
    fn eq(&self, other: &HostFunction) -> bool {
        self.address() == other.address()
    }
}
impl Eq for HostFunction {}
impl Hash for HostFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}
impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function of the host")
    }
}

impl Callback {
    /// Appends a scan that calls the function for one example after the other.
    fn push_one_by_one_scan(&self, batch: BatchedCall<'_>) -> Vec<Var> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        let (mut body, mut own) = (Graph { at: to.at, ..Graph::default() }, vec![Var(0); args.len()]);
        // Operands that all examples share are captured by the scan, so they come first.
        let of = |wanted: bool| (0..args.len()).filter(move |&i| has[i] == wanted);
        let order: Vec<usize> = of(false).chain(of(true)).collect();
        for &i in &order {
            own[i] = body.param(self.takes[i].clone());
        }
        body.results = body.push_valid_multi_result(self.clone(), &own);
        let scan = Scan { body, captured: of(false).count(), carried: 0, length: axis.size, reverse: false };
        let operands: Vec<Var> = order.iter().map(|&i| args[i]).collect();
        to.push_valid_multi_result(scan, &operands)
    }
}

/// Returns the error for a derivative of a callback.
fn no_derivative_error(at: Loc) -> TransformError {
    let help =
        "state it by `custom_jvp` around the callback, or give the callback the `stop_gradient` of its arguments";
    TransformError { at, diag: Diag::new("callback", At::Op, "a derivative of a `pure_callback`".into(), help) }
}

impl CallInterface for Callback {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![]
    }
    fn with_graphs(&self, _: Vec<Graph>) -> Call {
        self.clone().into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        if !self.takes.iter().eq(args.iter().copied()) {
            return Err(invalid_call_diag(self, format!("takes {:?}, found {args:?}", self.takes)));
        }
        Ok(self.gives.clone())
    }
}

impl PlanStepInterface for Callback {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread_results(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for Callback {
    fn attributes(&self) -> String {
        format!(" vmap({})", self.method)
    }
    fn jaxpr_params(&self, _: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![format!("callback={:?}", self.function), format!("vmap_method={}", self.method)]
    }
}

impl CallTransformRule for Callback {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        self.gives.iter().map(|ty| ty.dtype.is_float() && is_active.contains(&true)).collect()
    }
    fn jvp(&self, forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        if self.gives.iter().any(|ty| ty.dtype.is_float()) {
            return Err(no_derivative_error(forward.e.loc));
        }
        forward.push_unchanged();
        Ok(vec![None; self.gives.len()])
    }
    fn vjp(&self, back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        Err(no_derivative_error(back.e.loc))
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let made = match self.method {
            VmapMethod::Sequential => self.push_one_by_one_scan(batch),
            method @ (VmapMethod::ExpandDims | VmapMethod::BroadcastAll) => {
                let BatchedCall { to, args, has, axis, .. } = batch;
                let shared = if method == VmapMethod::ExpandDims { 1 } else { axis.size };
                let args = add_missing_batch_axes(to, args, has, &vec![true; has.len()], shared);
                let takes = args.iter().map(|&v| to.ty(v).clone()).collect();
                let gives = self.gives.iter().map(|ty| with_leading_axis(ty, axis.size)).collect();
                to.push_valid_multi_result(Callback { takes, gives, ..self.clone() }, &args)
            }
        };
        Ok(made.into_iter().map(|v| (v, true)).collect())
    }
    fn batch_dependent_results(&self, has_batch_axis: &[bool], _: BatchAxis<'_>) -> Vec<bool> {
        vec![has_batch_axis.contains(&true); self.gives.len()]
    }
    /// Returns the number of operands, since no cotangent has to be masked: reverse mode of a callback is refused.
    fn first_masked_cotangent_operand(&self, has_batch_axis: &[bool]) -> Option<usize> {
        Some(has_batch_axis.len())
    }
}

impl CallLinearity for Callback {
    fn linearity(&self, of: &mut LinearityAnalysis, e: &Equation, _: &[Linearity]) -> Vec<Linearity> {
        vec![of.record_nonlinear(e); e.results.len()]
    }
}

impl CallAxisStateRule for Callback {
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        _: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        typing.call_with_joined_states(self.clone(), e)
    }
}

impl ShardableCall for Callback {
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
    fn emit_joint_call(&self, to: &mut Graph, of: &JointDevices<'_>) -> Vec<Vec<Var>> {
        of.emit_single_device_call(to, self.clone())
    }
}

impl LowerableCall for Callback {
    fn lower_to_step(&self, from: &CallLoweringContext<'_>) -> LoweredStep {
        LoweredStep::from_equation(from.e, StepOp::Callback { callback: self.clone(), at: from.e.loc })
    }
}

impl CallMasking for Callback {
    fn check_same_call(&self, _: &Call, _: bool) -> Result<(), String> {
        Err("`pure_callback` calls a function of its own for each size".into())
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

impl SerializableOp for Callback {
    fn print(&self, _: &mut text_format::Printer) -> String {
        unreachable!("a function that calls one of the host is not saved")
    }
    fn parse(_: &mut text_format::Parser<'_>, _: &mut text_format::Words<'_>) -> Result<Callback, String> {
        Err("a function of the host is not in a file".into())
    }
}

impl CallHlo for Callback {
    fn emit_stablehlo(&self, p: &mut StableHloTranslator, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        let detail = HloAttributes::Kernel { name: self.name().into(), config: String::new(), rule: None };
        p.w.emit_op_with_regions("custom_call", &args.iter().collect::<Vec<_>>(), vec![], detail, gives)
    }
}

impl SampledOp for Callback {
    fn samples(dtype: DType) -> Vec<OpSample> {
        // Swaps the two elements.
        let swapped = |operands: &[(&Type, &[u8])], _: &[Type]| {
            let of = |(ty, bytes): &(&Type, &[u8])| {
                let pairs = bytes.chunks(2 * ty.dtype.bytes());
                pairs.flat_map(|pair| pair.rchunks(ty.dtype.bytes()).flatten().copied()).collect::<Vec<u8>>()
            };
            Ok(operands.iter().map(of).collect())
        };
        let types = vec![Type::new(dtype, [2])];
        let of = |method| {
            let function = HostFunction::new(swapped);
            let call = Callback { function, method, takes: types.clone(), gives: types.clone() };
            OpSample::new(call, &types).without_gradient().without_tangents()
        };
        [VmapMethod::Sequential, VmapMethod::ExpandDims, VmapMethod::BroadcastAll].map(of).into()
    }
}
