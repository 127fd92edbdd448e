//! Traits that operations implement for propagation and the partitioner.
use super::op_sharding_rule::{self, FactorRole, ShardingRule};
use super::partition::Partitioner;
use super::propagation_program::{NodeId, NodeKind, RegionGraphBuilder, Val};
use super::virtual_mesh::JointDevices;
use crate::graph::{Graph, Op, Var};
use crate::mesh::{Axis, Mesh, Sharding};
use pallas_ir::{Loc, Type};
use std::sync::Arc;

/// The interface by which each kind of call, such as a loop or a kernel, takes part in propagation and partitioning. No
/// method has a default.
pub(crate) trait ShardableCall {
    /// Appends the nodes through which shardings propagate in the call; returns the results, of types `result_types`.
    fn add_propagation_nodes(
        &self,
        build: &mut RegionGraphBuilder<'_>,
        args: &[Val],
        result_types: &[Type],
        loc: Loc,
    ) -> Vec<Val>;
    /// Returns the sharding rule of the call's operands and results; `None` if shardings do not propagate through the
    /// call itself.
    fn sharding_rule(&self) -> Option<ShardingRule>;
    /// Appends the call on blocks for the node that stands for it, and defines the node's results.
    fn emit_partitioned(&self, to: &mut Partitioner<'_>, node: NodeId);
    /// Appends one call for several devices that communicate in it; returns the results by device.
    fn emit_joint_call(&self, to: &mut Graph, devices: &JointDevices<'_>) -> Vec<Vec<Var>>;
}

/// An operation whose operands and result are sharded compatibly, to be done on blocks.
pub(crate) struct ShardedOperation<'a> {
    /// The mesh of the devices.
    pub mesh: &'a Arc<Mesh>,
    /// The operation on whole arrays.
    pub op: Op,
    /// The device's blocks of the operands.
    pub args: Vec<Var>,
    /// The type and the sharding of each whole operand.
    pub operands: Vec<(&'a Type, Sharding)>,
    /// The type and the sharding of the whole result.
    pub result: (&'a Type, Sharding),
    /// The type of the device's block of the result.
    pub gives: Type,
    /// Axes along which devices get partial results, which are combined afterwards.
    pub parts: Vec<Axis>,
}

/// The interface by which slices and updates at dynamic positions take part in propagation and partitioning. No method
/// has a default.
pub(crate) trait ShardableWindow {
    /// Adds the factors of the operation's dimensions to a sharding rule.
    fn add_factors(&self, build: &mut op_sharding_rule::RuleBuilder<'_>);
    /// Returns true if the operation can be done on blocks of a factor with this role; `in_result` is true if the
    /// result has the factor.
    fn can_shard_factor(&self, role: FactorRole, in_result: bool) -> bool;
    /// Appends the operation on blocks; returns the block of its result.
    fn emit_on_blocks(&self, graph: &mut Graph, work: &ShardedOperation<'_>) -> Var;
}

/// The interface by which operations that return their operand, such as constraints and barriers, take part in
/// propagation. No method has a default.
pub(crate) trait ShardableIdentity {
    /// Returns the kind of node that stands for the operation in propagation; `None` if it needs no node.
    fn node_kind(&self) -> Option<NodeKind>;
}
