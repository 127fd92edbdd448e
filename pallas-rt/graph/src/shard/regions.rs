//! Operations as the partitioner sees them.
use super::partition::Partition;
use super::rule::{self, Role, Rule};
use super::united::Devices;
use super::view::{Build, Kind, NodeId, Val};
use crate::graph::{Graph, Op, Var};
use crate::mesh::{Axis, Mesh, Sharding};
use pallas_ir::{Loc, Type};
use std::sync::Arc;

/// A call with bodies on a mesh. No method has a default.
pub(crate) trait CallRegions {
    /// Appends the nodes in whose form shardings propagate; returns the results.
    fn view(&self, build: &mut Build<'_>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val>;
    /// The sharding rule of its operands and results; `None` if shardings do not propagate through the call itself.
    fn rule(&self) -> Option<Rule>;
    /// Appends the call on blocks, from its node.
    fn localized(&self, to: &mut Partition<'_>, node: NodeId);
    /// Appends the call for several devices, which exchange something in it; the results of each.
    fn united(&self, to: &mut Graph, of: &Devices<'_>) -> Vec<Vec<Var>>;
}

/// An operation whose operands and result are sharded compatibly.
pub(crate) struct Sharded<'a> {
    pub mesh: &'a Arc<Mesh>,
    pub op: Op,
    /// The blocks of the operands.
    pub args: Vec<Var>,
    /// The type of each whole operand, and its sharding.
    pub operands: Vec<(&'a Type, Sharding)>,
    /// The same of the result.
    pub result: (&'a Type, Sharding),
    /// The type of the result's block.
    pub gives: Type,
    /// Axes along which devices have parts of the result, which are combined afterwards.
    pub parts: Vec<Axis>,
}

/// An operation on a window as the partitioner sees it. No method has a default.
pub(crate) trait WindowRegions {
    /// Adds the factors of its dimensions to a rule.
    fn rule(&self, build: &mut rule::Build<'_>);
    /// Returns true if devices can divide a factor of this role, which the result has or has not.
    fn divides(&self, role: Role, in_result: bool) -> bool;
    /// Appends it on blocks.
    fn on_blocks(&self, graph: &mut Graph, work: &Sharded<'_>) -> Var;
}

/// An identity as propagation sees it. No method has a default.
pub(crate) trait IdentityRegions {
    /// The kind of its node, `None` if it has none; groups have numbers of the whole program.
    fn kind(&self) -> Option<Kind>;
}
