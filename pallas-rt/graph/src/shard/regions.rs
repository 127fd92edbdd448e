//! Traits that operations implement for propagation and the partitioner.
use super::partition::Partition;
use super::rule::{self, Role, Rule};
use super::united::Devices;
use super::view::{Build, Kind, NodeId, Val};
use crate::graph::{Graph, Op, Var};
use crate::mesh::{Axis, Mesh, Sharding};
use pallas_ir::{Loc, Type};
use std::sync::Arc;

/// A call whose bodies run on a mesh. No method has a default.
pub(crate) trait CallRegions {
    /// Appends the nodes through which shardings propagate in the call; returns the results, of types `gives`.
    fn view(&self, build: &mut Build<'_>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val>;
    /// Returns the sharding rule of the call's operands and results; `None` if shardings do not propagate through the
    /// call itself.
    fn rule(&self) -> Option<Rule>;
    /// Appends the call on blocks for the node that stands for it, and defines the node's results.
    fn localized(&self, to: &mut Partition<'_>, node: NodeId);
    /// Appends one call for several devices that communicate in it; returns the results by device.
    fn united(&self, to: &mut Graph, of: &Devices<'_>) -> Vec<Vec<Var>>;
}

/// An operation whose operands and result are sharded compatibly, to be done on blocks.
pub(crate) struct Sharded<'a> {
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

/// An operation on a window at a dynamic position, as the partitioner sees it. No method has a default.
pub(crate) trait WindowRegions {
    /// Adds the factors of the operation's dimensions to a sharding rule.
    fn rule(&self, build: &mut rule::Build<'_>);
    /// Returns true if the operation can be done on blocks of a factor with this role; `in_result` is true if the
    /// result has the factor.
    fn divides(&self, role: Role, in_result: bool) -> bool;
    /// Appends the operation on blocks; returns the block of its result.
    fn on_blocks(&self, graph: &mut Graph, work: &Sharded<'_>) -> Var;
}

/// An identity operation as propagation sees it. No method has a default.
pub(crate) trait IdentityRegions {
    /// Returns the kind of its node; `None` if it needs no node. Sharding groups are numbered in the whole program.
    fn kind(&self) -> Option<Kind>;
}
