//! From a program with shardings to one graph that every device runs on its blocks.
//!
//! Every value has a block on each device. The block's shape is that of the array with each sharded dimension divided
//! by the number of blocks and rounded up. Elements of a last block beyond the array are arbitrary, and `local`
//! replaces them where an operation adds them up. Operations are made compatible one by one: `factor_axes` decides how
//! their factors are sharded, operands are resharded to that, partial sums are reduced over the devices, and results
//! are resharded to what propagation found.
mod control;
mod reduce_scatter_creator;
mod reshard_steps;
mod sharded_kernel_convolution;
mod sharded_top_k;

pub(crate) use control::move_captured_params_first;

use super::factor_axes::{find_common_factor_axes, find_common_reshape_axes, sharding_from_factor_axes};
use super::factor_shardings::FactorShardings;
use super::local;
use super::op_sharding_rule::{FactorRole, ShardingRule};
use super::partition_traits::ShardedOperation;
use super::propagate::Propagation;
use super::propagation_program::{Node, NodeId, NodeKind, Region, RegionGraph, Val};
use crate::graph::{Graph, Op, Var};
use crate::identity::OptimizationBarrier;
use crate::mesh::axis::{self, Axis};
use crate::mesh::{Collective, CollectiveKind, Mesh, Sharding};
use crate::refusal::TransformError;
use pallas_ir::{Literal, Loc, ScalarOp, StructuralOp, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// The graph that every device of a mesh runs, with the shardings of its whole parameters and results.
#[derive(Clone, Debug)]
pub struct PartitionedGraph {
    /// The graph that each device runs on its blocks.
    pub graph: Graph,
    /// The mesh of the devices.
    pub mesh: Arc<Mesh>,
    /// The shardings of the parameters, in order.
    pub params: Vec<Sharding>,
    /// The shardings of the results, in order.
    pub results: Vec<Sharding>,
    /// The reshards for which devices communicate, in the order of the program.
    pub reshards: Vec<Reshard>,
    /// By [`label`](Node::label) of a call of `shard_map` with automatic axes, the shardings of its results.
    pub results_of_maps: HashMap<usize, Vec<Sharding>>,
}

/// A change of a value's sharding for which devices communicate.
#[derive(Clone, Debug)]
pub struct Reshard {
    /// The value of the [`RegionGraph`] whose sharding changes.
    pub value: Val,
    /// The sharding of the value before.
    pub from: Sharding,
    /// The sharding of the value afterwards.
    pub to: Sharding,
    /// The user's source line of the operation that reads the result.
    pub at: Loc,
}

/// Choices of the partitioner that change no result.
#[derive(Clone, Copy, Debug)]
pub struct PartitionOptions {
    /// The number that fills positions beyond the array where a dimension is sharded unevenly; tests take one that
    /// would change a result if an operation read it.
    pub padding: f64,
    /// Number of bytes that a device sends in the time that it takes to start a collective. Two collectives replace one
    /// where they send at least this much less.
    pub collective_cost_bytes: usize,
}

impl Default for PartitionOptions {
    /// Zeros as padding, and 64 KiB as the price of a collective: some microseconds at the speed of a link.
    fn default() -> PartitionOptions {
        PartitionOptions { padding: 0.0, collective_cost_bytes: 1 << 16 }
    }
}

/// Converts a program with propagated shardings to the graph that each device of the mesh runs.
///
/// # Errors
/// Refuses the first kernel with an operand or a result that is declared to be sharded along a dimension which the
/// kernel cannot shard.
pub fn partition(found: &Propagation, mesh: &Arc<Mesh>) -> Result<PartitionedGraph, TransformError> {
    partition_with(found, mesh, PartitionOptions::default())
}

/// Partitions like [`partition`], with these options.
///
/// # Errors
/// The errors of [`partition`].
pub fn partition_with(
    found: &Propagation,
    mesh: &Arc<Mesh>,
    options: PartitionOptions,
) -> Result<PartitionedGraph, TransformError> {
    let program = found.program();
    let mut to = Partitioner {
        found,
        program,
        mesh,
        options,
        scopes: vec![],
        known: HashMap::new(),
        refused: None,
        reshards: vec![],
        results_of_maps: HashMap::new(),
    };
    let params: Vec<Sharding> = (program.body.params.iter())
        .map(|&p| {
            let shape = &program.ty(p).shape;
            found.sharding(p).map_or(Sharding::replicated(shape.len()), |s| boundary_sharding(s, shape, mesh))
        })
        .collect();
    to.scopes.push(PartitionScope::default());
    for (&p, sharding) in program.body.params.iter().zip(&params) {
        to.add_param(p, sharding.clone());
    }
    to.emit_nodes(&program.body);
    let results: Vec<(Var, Sharding)> = (program.body.results.iter().enumerate())
        .map(|(i, &v)| {
            let shape = &program.ty(v).shape;
            let wanted = found
                .result_sharding(i)
                .map_or(Sharding::replicated(shape.len()), |s| boundary_sharding(s, shape, mesh));
            (to.reshard_value(v, &wanted), wanted)
        })
        .collect();
    let mut graph = to.scopes.pop().expect("the program's own").graph;
    let (vars, results) = results.into_iter().unzip();
    graph.results = vars;
    match to.refused {
        Some(refused) => Err(refused),
        None => Ok(PartitionedGraph {
            graph,
            mesh: mesh.clone(),
            params,
            results,
            reshards: to.reshards,
            results_of_maps: to.results_of_maps,
        }),
    }
}

/// Returns the sharding of a parameter or result of the program, from what propagation found: only axes that divide
/// their dimension evenly, and no parts of axes in an open dimension.
fn boundary_sharding(sharding: &Sharding, shape: &[usize], mesh: &Mesh) -> Sharding {
    let mut kept = sharding.without_choices();
    for ((dim, &n), declared) in kept.dims.iter_mut().zip(shape).zip(&sharding.dims) {
        let mut left = n;
        axis::truncate_axes(&mut dim.axes, |axis, _| {
            let common = super::op_sharding_rule::gcd(axis.len(), left);
            left /= common.max(1);
            (common > 1).then(|| axis.first_part(common))
        });
        let is_part = |axis: &Axis| *axis != mesh.axis(usize::from(axis.id));
        if let Some(first) = dim.axes.iter().position(is_part).filter(|_| declared.open) {
            dim.axes.truncate(first);
        }
    }
    kept
}

/// A value of the program in a device's graph: the device's block, its sharding, and what is left to be done before it
/// is final.
#[derive(Clone, Debug)]
pub(crate) struct ValueBlock {
    pub(crate) var: Var,
    pub(crate) sharding: Sharding,
    /// Devices along these axes have partial results, which the operation combines to the value; `None` if the block is
    /// final.
    pub(crate) partial: Option<(Vec<Axis>, ScalarOp)>,
    /// The sharding that propagation found, if the block isn't in it yet. The block is converted to it where several
    /// operations read the value; a single reader may need a third sharding, to which a direct conversion can be
    /// shorter.
    pub(crate) said: Option<Sharding>,
}

impl ValueBlock {
    /// Returns the sharding that readers of the value assume: the one that propagation found, or else the block's own.
    pub(crate) fn sharding_for_readers(&self) -> &Sharding {
        self.said.as_ref().unwrap_or(&self.sharding)
    }
}

/// A graph under construction with the blocks of the program's values in it.
#[derive(Default)]
struct PartitionScope {
    graph: Graph,
    blocks: HashMap<Val, ValueBlock>,
    /// Values from outside that the graph reads, in the order of its last parameters.
    captured: Vec<Val>,
}

/// State of the partitioner while it walks through a program.
pub(crate) struct Partitioner<'a> {
    pub(crate) found: &'a Propagation,
    pub(crate) program: &'a RegionGraph,
    pub(crate) mesh: &'a Arc<Mesh>,
    options: PartitionOptions,
    /// Graphs under construction: the main one, then those of loops and branches, innermost last.
    scopes: Vec<PartitionScope>,
    /// Broadcast scalars made so far, by depth of `scopes`, operation, operands and sharding, to be used again.
    known: HashMap<(usize, Op, Vec<Val>, Sharding), Val>,
    /// The first error that was found.
    refused: Option<TransformError>,
    reshards: Vec<Reshard>,
    /// By [`label`](Node::label) of a call of `shard_map` with automatic axes, the shardings of its results.
    pub(crate) results_of_maps: HashMap<usize, Vec<Sharding>>,
}

impl Partitioner<'_> {
    pub(crate) fn graph(&mut self) -> &mut Graph {
        &mut self.scopes.last_mut().expect("a graph is open").graph
    }

    fn blocks(&mut self) -> &mut HashMap<Val, ValueBlock> {
        &mut self.scopes.last_mut().expect("a graph is open").blocks
    }

    /// Returns the type of a value's block on one device, if it has this sharding.
    pub(crate) fn block_type(&self, v: Val, sharding: &Sharding) -> Type {
        let ty = self.program.ty(v);
        Type::new(ty.dtype, sharding.local_shape(&ty.shape))
    }

    fn add_param(&mut self, v: Val, sharding: Sharding) {
        let ty = self.block_type(v, &sharding);
        let var = self.graph().param(ty);
        self.blocks().insert(v, ValueBlock { var, sharding, partial: None, said: None });
    }

    pub(crate) fn define_value(&mut self, v: Val, var: Var, sharding: Sharding) {
        self.blocks().insert(v, ValueBlock { var, sharding, partial: None, said: None });
    }

    /// Defines a value as `var` with this sharding, to be converted to the one that propagation found when it is read.
    pub(crate) fn define_pending_reshard(&mut self, v: Val, var: Var, sharding: Sharding) {
        self.define_block_pending_reshard(v, ValueBlock { var, sharding, partial: None, said: None });
    }

    /// Records an error of the partitioner, unless an earlier one was recorded.
    pub(crate) fn record_error(&mut self, error: TransformError) {
        self.refused.get_or_insert(error);
    }

    /// Returns the sharding of a value that its readers assume.
    pub(crate) fn sharding_for_readers(&mut self, v: Val) -> Sharding {
        self.block(v).sharding_for_readers().clone()
    }

    /// Returns the closed sharding that propagation found for a value; replicated if it found none.
    pub(crate) fn propagated_sharding(&self, v: Val) -> Sharding {
        let rank = self.program.rank(v);
        self.found.sharding(v).map_or(Sharding::replicated(rank), Sharding::without_choices)
    }

    /// Returns the block of a value in the innermost graph. A value from outside becomes a parameter of each graph in
    /// between.
    pub(crate) fn block(&mut self, v: Val) -> ValueBlock {
        self.block_at_depth(v, self.scopes.len() - 1)
    }

    /// Returns the block of a value as a variable of the graph at this depth of `scopes`; where only an outer graph has
    /// it, it becomes a parameter of each graph down to this one.
    fn block_at_depth(&mut self, v: Val, depth: usize) -> ValueBlock {
        if let Some(block) = self.scopes[depth].blocks.get(&v) {
            return block.clone();
        }
        // Parts of a sum are combined before a body reads it.
        self.block_at_depth(v, depth - 1);
        let inner: Vec<PartitionScope> = self.scopes.drain(depth..).collect();
        let outer = self.finalize_block(v);
        self.scopes.extend(inner);
        let ty = self.block_type(v, &outer.sharding);
        let scope = &mut self.scopes[depth];
        let block = ValueBlock { var: scope.graph.param(ty), ..outer };
        scope.captured.push(v);
        scope.blocks.insert(v, block.clone());
        block
    }

    /// Returns the block of a value after its partial results are combined over the devices.
    fn combine_partials(&mut self, v: Val, block: ValueBlock) -> ValueBlock {
        let Some((axes, op)) = block.partial.clone() else { return block };
        let var = self.emit_all_reduce(op, &axes, block.var);
        let block = ValueBlock { var, partial: None, ..block };
        self.blocks().insert(v, block.clone());
        block
    }

    /// Returns the final block of a value: in the sharding that propagation found, with partial results combined.
    fn finalize_block(&mut self, v: Val) -> ValueBlock {
        let block = self.block(v);
        let Some(said) = block.said.clone() else { return self.combine_partials(v, block) };
        let var = self.reshard_single_use(v, &said);
        self.define_value(v, var, said);
        self.block(v)
    }

    fn build_collective(&self, kind: impl Into<CollectiveKind>, axes: &[Axis]) -> Collective {
        Collective { kind: kind.into(), mesh: self.mesh.clone(), axes: axes.to_vec() }
    }

    fn emit_collective(&mut self, kind: impl Into<CollectiveKind>, axes: &[Axis], args: &[Var]) -> Var {
        let op = self.build_collective(kind, axes);
        self.graph().push_valid(op, args)
    }

    /// Appends the device's coordinate along some axes, an i32 scalar: that of the first axis is the slowest.
    pub(crate) fn emit_device_coordinate(&mut self, axes: &[Axis]) -> Var {
        let mesh = self.mesh;
        local::emit_device_coordinate(self.graph(), mesh, axes)
    }

    fn emit_nodes(&mut self, region: &Region) {
        for &id in &region.nodes {
            let node = &self.program.nodes[id];
            self.graph().at = node.loc;
            self.emit_node(id, node);
        }
    }

    /// Appends the operations on blocks that a node of the program stands for, and defines its results.
    fn emit_node(&mut self, id: NodeId, node: &Node) {
        match &node.kind {
            NodeKind::ShardingGroup(_) => {}
            NodeKind::DataFlowEdge => {
                let block = self.block(node.operands[0]);
                self.blocks().insert(node.results[0], block);
            }
            NodeKind::Constraint(_) | NodeKind::PropagationBarrier(_) => {
                let (operand, result) = (node.operands[0], node.results[0]);
                let is_shared = self.found.count_partitioned_uses(operand) > 1;
                let block = if is_shared { self.finalize_block(operand) } else { self.block(operand) };
                // Shardings have propagated, so that a barrier is its operand.
                if let NodeKind::PropagationBarrier(_) = node.kind {
                    self.blocks().insert(result, block);
                } else {
                    self.define_block_pending_reshard(result, block);
                }
            }
            // A value stays as it is sharded.
            NodeKind::OptimizationBarrier => {
                let ValueBlock { var, sharding, .. } = self.finalize_block(node.operands[0]);
                let var = self.graph().push_valid(OptimizationBarrier, &[var]);
                self.define_value(node.results[0], var, sharding);
            }
            NodeKind::Loop(number) | NodeKind::Branches(number) => {
                let call = &self.program.calls[*number].call;
                call.regions().expect("it stays").emit_partitioned(self, id);
            }
            NodeKind::Op(Op::Call(call)) => call.regions().expect("it stays").emit_partitioned(self, id),
            NodeKind::Constant | NodeKind::Op(_) => self.emit_operation(id, node),
        }
    }

    /// Appends a node with one result on blocks: chooses a sharding of its factors, reshards operands to it, and
    /// records if the result has to be combined over devices.
    fn emit_operation(&mut self, id: NodeId, node: &Node) {
        let (NodeKind::Op(op), Some(rule)) = (&node.kind, self.found.sharding_rule(id)) else {
            return self.emit_node_without_rule(node);
        };
        if self.try_emit_position_selection(node, op) || self.try_emit_spatially_sharded_conv(node, op) {
            return;
        }
        let wanted = self.propagated_sharding(node.results[0]);
        if let Some(known) = self.reuse_equal_broadcast(node, op, &wanted) {
            let block = self.block(known);
            self.blocks().insert(node.results[0], block);
            return;
        }
        let all: Vec<Val> = node.operands.iter().chain(&node.results).copied().collect();
        let mut shardings: Vec<Sharding> =
            node.operands.iter().map(|&v| self.block(v).sharding_for_readers().clone()).collect();
        shardings.push(wanted);
        let axes = self.choose_factor_axes(&all, &shardings, rule, op);
        let sharded = |t: usize| sharding_from_factor_axes(rule, t, &shardings[t], &axes);
        let args: Vec<Var> =
            node.operands.iter().enumerate().map(|(t, &v)| self.reshard_value(v, &sharded(t))).collect();
        let own = sharded(node.operands.len());
        let operands = node.operands.iter().enumerate().map(|(t, &v)| (self.program.ty(v), sharded(t))).collect();
        let gives = self.block_type(node.results[0], &own);
        let mut parts: Vec<Axis> = (rule.factors.iter().zip(&axes))
            .filter(|(factor, _)| factor.role == FactorRole::Reduce)
            .flat_map(|(_, axes)| axes.clone())
            .collect();
        axis::sort_and_merge(&mut parts);
        let result = (self.program.ty(node.results[0]), own.clone());
        let combine = local::partial_result_monoid(op, gives.dtype);
        let work =
            ShardedOperation { mesh: self.mesh, op: op.clone(), args, operands, result, gives, parts: parts.clone() };
        let var = local::emit_on_blocks(self.graph(), work);
        let partial = (!parts.is_empty()).then_some((parts, combine));
        self.define_block_pending_reshard(node.results[0], ValueBlock { var, sharding: own, partial, said: None });
    }

    /// Defines a value as a block, to be converted to the sharding that propagation found when it is read.
    pub(crate) fn define_block_pending_reshard(&mut self, v: Val, block: ValueBlock) {
        let wanted = self.propagated_sharding(v);
        let said = (block.sharding != wanted).then_some(wanted);
        self.blocks().insert(v, ValueBlock { said, ..block });
    }

    /// Chooses the axes that shard each factor of an operation, limited to those that the operation on blocks can have.
    /// `arrays` has its operands and results, `shardings` those that they have.
    pub(crate) fn choose_factor_axes(
        &self,
        arrays: &[Val],
        shardings: &[Sharding],
        rule: &ShardingRule,
        op: &Op,
    ) -> Vec<Vec<Axis>> {
        let splits: Vec<FactorShardings> = (shardings.iter().zip(&rule.tensors))
            .map(|(sharding, dims)| FactorShardings::from_sharding(dims, Some(sharding), &rule.factors, true))
            .collect();
        let elements: Vec<usize> = arrays.iter().map(|&v| self.program.ty(v).shape.iter().product()).collect();
        let overflows = splits.iter().any(|split| split.parts.iter().any(|(_, part)| !part.overflow.is_empty()));
        let is_reshape = matches!(op, Op::Structural(StructuralOp::Reshape(_)));
        let mut axes = match overflows && is_reshape {
            true => find_common_reshape_axes(&splits, rule),
            false => find_common_factor_axes(&splits, rule, &elements, self.mesh),
        };
        let types: Vec<&Type> = arrays.iter().map(|&v| self.program.ty(v)).collect();
        local::clear_unsupported_axes(&mut axes, rule, op, &types);
        axes
    }

    /// Returns an equal broadcast scalar that exists with this sharding already, so that the copies which were made for
    /// propagation are one value again.
    fn reuse_equal_broadcast(&mut self, node: &Node, op: &Op, wanted: &Sharding) -> Option<Val> {
        let is_expansion = matches!(op, Op::Structural(StructuralOp::Broadcast(_)))
            && node.operands.first().is_some_and(|&v| self.program.rank(v) == 0);
        if !is_expansion {
            return None;
        }
        let key = (self.scopes.len(), op.clone(), node.operands.clone(), wanted.clone());
        let known =
            self.known.get(&key).copied().filter(|v| self.scopes.last().is_some_and(|s| s.blocks.contains_key(v)));
        if known.is_none() {
            self.known.insert(key, node.results[0]);
        }
        known
    }

    /// Appends a node that no sharding rule describes: constants and iotas are made in the sharding that is needed,
    /// other operations get replicated operands.
    fn emit_node_without_rule(&mut self, node: &Node) {
        if let (NodeKind::Constant, [v]) = (&node.kind, &node.results[..]) {
            let wanted = self.propagated_sharding(*v);
            let ty = self.block_type(*v, &wanted);
            let var = self.graph().splat(Literal::new(ty.dtype, 0.0), &ty.shape);
            return self.define_value(*v, var, wanted);
        }
        let NodeKind::Op(op) = &node.kind else { return };
        match op {
            Op::Literal(_) => {
                let var = self.graph().push_valid(op.clone(), &[]);
                self.define_value(node.results[0], var, Sharding::replicated(0));
            }
            Op::Structural(StructuralOp::Iota(iota)) => {
                let wanted = self.propagated_sharding(node.results[0]);
                let ty = self.block_type(node.results[0], &wanted);
                let axes = wanted.dims[iota.axis].axes.clone();
                let first = (!axes.is_empty()).then(|| self.emit_device_coordinate(&axes));
                let var = local::emit_block_iota(self.graph(), iota.axis, &ty, first);
                self.define_value(node.results[0], var, wanted);
            }
            _ => self.emit_replicated(node, op.clone()),
        }
    }

    /// Appends an operation on replicated operands, and converts its results to the shardings that propagation found.
    pub(crate) fn emit_replicated(&mut self, node: &Node, op: Op) {
        let whole = |p: &Self, v: Val| Sharding::replicated(p.program.rank(v));
        let args: Vec<Var> = node.operands.iter().map(|&v| self.reshard_value(v, &whole(self, v))).collect();
        let made = self.graph().push_valid_multi_result(op, &args);
        for (&v, var) in node.results.iter().zip(made) {
            let whole = whole(self, v);
            self.define_value(v, var, whole);
            let wanted = self.propagated_sharding(v);
            let var = self.reshard_value(v, &wanted);
            self.define_value(v, var, wanted);
        }
    }
}
