//! Translation of collectives among the devices of a mesh to StableHLO.
//!
//! Groups and pairs name devices by their own numbers, and every collective has a channel, so that XLA takes them for
//! collectives over the partitions of one program.
use super::operation::{Detail, Parts, Value};
use super::writer::Writer;
use crate::mesh::Collective;
use pallas_ir::Type;

/// Translation of a kind of collective to StableHLO. No method has a default.
pub(crate) trait CollectiveHlo {
    /// Appends the operation with a result of type `gives`; returns the result. The operand, if there is one, is
    /// `args[0]`.
    fn stablehlo(&self, w: &mut Writer, op: &Collective, args: &[Value], gives: &Type) -> Value;
}

impl Writer {
    /// Returns the attributes of a collective: its groups, and a new channel.
    pub(crate) fn groups(&mut self, op: &Collective, parts: Parts) -> Detail {
        Detail::Groups { groups: op.groups(), parts, channel: self.channel() }
    }
}
