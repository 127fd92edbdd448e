//! Exchanges among the devices of a mesh.
//!
//! Devices have their own numbers in groups and pairs, and every exchange a channel: XLA takes them for the partitions of one
//! program.
use super::operation::{Detail, Parts, Value};
use super::writer::Writer;
use crate::mesh::Collective;
use pallas_ir::Type;

/// The operation of StableHLO for a collective. No method has a default.
pub(crate) trait CollectiveHlo {
    /// Writes it; its operand, if it has one, is `args[0]`.
    fn stablehlo(&self, w: &mut Writer, op: &Collective, args: &[Value], gives: &Type) -> Value;
}

impl Writer {
    /// The groups of a collective, and a channel of their own.
    pub(crate) fn groups(&mut self, op: &Collective, parts: Parts) -> Detail {
        Detail::Groups { groups: op.groups(), parts, channel: self.channel() }
    }
}
