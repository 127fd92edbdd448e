//! `shard_map`: a graph that every device of a mesh runs on its blocks of arrays, as `jax.shard_map`.
mod blocks;
mod transform;

use super::prelude::*;
use super::samples::{OpSample, SampledOp};
use crate::mesh::{Mesh, Sharding, axes_text};
use crate::shard::propagation_program;
use crate::stablehlo::{HloAttributes, HloRegion};
use pallas_ir::{At, DType};
use std::sync::Arc;

/// A call of a graph that every device of a mesh runs on its blocks of the operands (`jax.shard_map`), with explicit
/// collectives over the mesh. Along axes that are not manual, the partitioner shards the body like any other graph.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ShardMap {
    /// The mesh.
    pub mesh: Arc<Mesh>,
    /// For each axis of the mesh, true if it is manual. The shardings `takes` and `gives` use only manual axes.
    pub manual: Vec<bool>,
    /// For each operand, its sharding, which divides its dimensions evenly.
    pub takes: Vec<Sharding>,
    /// For each result, its sharding.
    pub gives: Vec<Sharding>,
    /// The graph that devices run; it takes and gives blocks.
    pub body: Graph,
}

impl ShardMap {
    /// Returns true if some axes of the mesh are automatic: the partitioner shards the body along them.
    pub fn has_automatic_axes(&self) -> bool {
        self.manual.contains(&false)
    }

    /// Returns the type of the whole array, from that of a device's block.
    fn whole_array_type(block: &Type, sharding: &Sharding) -> Type {
        Type::new(
            block.dtype,
            block.shape.iter().zip(sharding.blocks_per_dim()).map(|(n, parts)| n * parts).collect::<Vec<_>>(),
        )
    }

    /// Returns the names of the manual axes, with commas between them.
    fn manual_axis_names(&self) -> String {
        let names = (0..self.mesh.rank()).filter(|&axis| self.manual[axis]).map(|axis| self.mesh.name(axis));
        names.collect::<Vec<_>>().join(", ")
    }

    fn shardings_text(&self, shardings: &[Sharding]) -> String {
        shardings.iter().map(|sharding| sharding.text(&self.mesh)).collect::<Vec<_>>().join("; ")
    }
}

impl CallInterface for ShardMap {
    fn graphs_with_run_counts(&self) -> Vec<(RunCount, &Graph)> {
        vec![(RunCount::Once, &self.body)]
    }
    fn with_graphs(&self, mut graphs: Vec<Graph>) -> Call {
        ShardMap { body: graphs.remove(0), ..self.clone() }.into()
    }
    fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        if (self.takes.len(), self.gives.len()) != (args.len(), self.body.results.len()) {
            return Err(invalid_call_diag(self, format!("{} operands for {} shardings", args.len(), self.takes.len())));
        }
        let blocks = self.body.param_types();
        let fits = |((block, sharding), x): ((&Type, &Sharding), &&Type)| {
            sharding.dims.len() == block.shape.len() && ShardMap::whole_array_type(block, sharding) == **x
        };
        if blocks.len() != args.len() || !blocks.iter().zip(&self.takes).zip(args).all(fits) {
            return Err(invalid_call_diag(self, format!("a body of {blocks:?} is called with {args:?}")));
        }
        let gives = self.body.result_types().into_iter().zip(&self.gives);
        Ok(gives.map(|(block, sharding)| ShardMap::whole_array_type(&block, sharding)).collect())
    }
}

impl PlanStepInterface for ShardMap {
    fn has_effect(&self) -> bool {
        false
    }
    fn without_unread_results(&self, _: &Equation, _: &[bool]) -> Option<Equation> {
        None
    }
}

impl CallText for ShardMap {
    fn attributes(&self) -> String {
        let manual =
            if self.has_automatic_axes() { format!(" manual({})", self.manual_axis_names()) } else { String::new() };
        let (takes, gives) = (self.shardings_text(&self.takes), self.shardings_text(&self.gives));
        format!(" mesh{}{manual} takes({takes}) gives({gives})", self.mesh)
    }
    fn jaxpr_params(&self, text: &dyn Fn(&Graph) -> String) -> Vec<String> {
        vec![
            format!("axis_names={{{}}}", self.manual_axis_names()),
            format!("in_specs=({})", self.shardings_text(&self.takes)),
            format!("jaxpr={}", text(&self.body)),
            format!("mesh={}", self.mesh),
            format!("out_specs=({})", self.shardings_text(&self.gives)),
        ]
    }
}

impl CallTransformRule for ShardMap {
    fn active_results(&self, is_active: &[bool]) -> Vec<bool> {
        active(&self.body, is_active)
    }
    fn jvp(&self, mut forward: JvpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        let on = forward.active_operands();
        let (body, found) = forward.differentiate_body(&self.body)?;
        let of = forward.new_result_tangents(&found);
        let call = transform::with_tangents(self, &body, &on, &found)?;
        let (args, gives) = (forward.operands_and_tangents(), self.gives.len());
        Ok(forward.push_with_tangents(call.into(), args, &[gives], of))
    }
    fn vjp(&self, back: VjpCall<'_>) -> Result<Vec<Option<Var>>, TransformError> {
        transform::vjp(self, back)
    }
    fn batched(&self, batch: BatchedCall<'_>) -> Result<Vec<(Var, bool)>, TransformError> {
        let BatchedCall { to, args, has, axis, .. } = batch;
        let (map, flags) = transform::batched(self, has, axis)?;
        Ok(to.push_valid_multi_result(map, args).into_iter().zip(flags).collect())
    }
    fn batch_dependent_results(&self, has_batch_axis: &[bool], axis: BatchAxis<'_>) -> Vec<bool> {
        batch_dependent_results(&self.body, has_batch_axis, axis)
    }
    fn first_masked_cotangent_operand(&self, _: &[bool]) -> Option<usize> {
        Some(0)
    }
}

impl CallLinearity for ShardMap {
    fn linearity(&self, of: &mut LinearityAnalysis, _: &Equation, args: &[Linearity]) -> Vec<Linearity> {
        of.analyze_graph(&self.body, args)
    }
}

impl CallAxisStateRule for ShardMap {
    /// Infers the states of the body over the outer `shard_map`'s manual axes, and inserts casts between them; over its
    /// own manual axes, the body has its casts already.
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError> {
        if self.mesh != *typing.mesh() {
            let message = "a `shard_map` inside of one on another mesh".to_string();
            let help = "a body is manual along axes of one mesh";
            return Err(TransformError { at: e.loc, diag: Diag::new("shard_map", At::Op, message, help) });
        }
        let (body, gives) = typing.insert_casts(&self.body, &operand_states)?;
        Ok(CallWithAxisStates { call: ShardMap { body, ..self.clone() }.into(), takes: operand_states, gives })
    }
}

impl ShardableCall for ShardMap {
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
        let constrained = |b: &mut RegionGraphBuilder<'_>, x: Val, sharding: &Sharding| {
            let mut sharding = sharding.normal(&self.mesh);
            // Propagation may shard the blocks further along automatic axes.
            sharding.dims.iter_mut().for_each(|dim| dim.open |= self.has_automatic_axes());
            let ty = b.program.ty(x).clone();
            let node = b.push_node(propagation_program::NodeKind::Constraint(sharding), vec![x], vec![ty], loc);
            b.program.nodes[node].results[0]
        };
        let args: Vec<Val> = args.iter().zip(&self.takes).map(|(&x, s)| constrained(build, x, s)).collect();
        let results = build.add_call_node(self.clone(), &args, gives, loc);
        let gives = build.known_result_shardings().unwrap_or(&self.gives).to_vec();
        results.iter().zip(&gives).map(|(&x, s)| constrained(build, x, s)).collect()
    }
    fn emit_partitioned(&self, to: &mut Partitioner<'_>, id: NodeId) {
        blocks::inline_body(self, to, &to.program.nodes[id]);
    }
    fn emit_joint_call(&self, _: &mut Graph, _: &JointDevices<'_>) -> Vec<Vec<Var>> {
        unreachable!("devices run graphs without a `shard_map`")
    }
}

impl LowerableCall for ShardMap {
    fn lower_to_step(&self, _: &CallLoweringContext<'_>) -> LoweredStep {
        unreachable!("partitioning expands a `shard_map`")
    }
}

impl CallMasking for ShardMap {
    fn check_same_call(&self, _: &Call, _: bool) -> Result<(), String> {
        Err("`shard_map` differs".into())
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

impl SerializableOp for ShardMap {
    fn print(&self, _: &mut text_format::Printer) -> String {
        unreachable!("a function with a `shard_map` is not saved")
    }
    fn parse(_: &mut text_format::Parser<'_>, _: &mut text_format::Words<'_>) -> Result<ShardMap, String> {
        Err("a `shard_map` is not in a file".into())
    }
}

impl CallHlo for ShardMap {
    /// Writes a `sdy.manual_computation`; in a text without shardings, which has no mesh, a custom call.
    fn emit_stablehlo(&self, p: &mut StableHloTranslator, args: &[HloValue], gives: &[Type]) -> Vec<HloValue> {
        let all: Vec<&HloValue> = args.iter().collect();
        if !p.w.with_shardings {
            let detail = HloAttributes::Kernel { name: self.name().into(), config: self.body.to_string(), rule: None };
            return p.w.emit_op_with_regions("custom_call", &all, vec![], detail, gives);
        }
        let params = p.w.new_params(&self.body.param_types());
        let outer = p.w.replace_lines(vec![]);
        let made = p.emit_graph(&self.body, &params);
        p.w.emit_return("sdy.return", &made);
        let body = HloRegion { params, lines: p.w.replace_lines(outer) };
        let texts = |all: &[Sharding]| all.iter().map(|sharding| sharding.text(&self.mesh)).collect();
        let manual: Vec<_> = self.mesh.axes().into_iter().zip(&self.manual).filter(|(_, is)| **is).collect();
        let axes = axes_text(&manual.into_iter().map(|(axis, _)| axis).collect::<Vec<_>>(), &self.mesh);
        let detail = HloAttributes::ManualAxes { takes: texts(&self.takes), gives: texts(&self.gives), axes };
        p.w.emit_op_with_regions("sdy.manual_computation", &all, vec![body], detail, gives)
    }
}

impl SampledOp for ShardMap {
    /// Returns no samples, since a `shard_map` runs only on a mesh.
    fn samples(_: DType) -> Vec<OpSample> {
        vec![]
    }
}
