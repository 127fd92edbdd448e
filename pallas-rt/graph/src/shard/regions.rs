//! Calls as the partitioner sees them.
use super::partition::Partition;
use super::rule::Rule;
use super::united::Devices;
use super::view::{Build, Kind, NodeId, Val};
use crate::graph::{Graph, Var};
use pallas_ir::{Loc, Type};

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

/// An annotation as propagation sees it. No method has a default.
pub(crate) trait AnnotationRegions {
    /// The kind of its node; groups have numbers of the whole program.
    fn kind(&self) -> Kind;
}
