//! Translation of collectives among the devices of a mesh to StableHLO.
//!
//! Groups and pairs name devices by their own numbers, and every collective has a channel, so that XLA takes them for
//! collectives over the partitions of one program.
use super::operation::{ExchangedData, HloAttributes, HloValue};
use super::writer::HloWriter;
use crate::mesh::Collective;
use pallas_ir::Type;

/// Translation of a kind of collective to StableHLO. No method has a default.
pub(crate) trait CollectiveHlo {
    /// Appends the operation with a result of type `gives`; returns the result. The operand, if there is one, is
    /// `args[0]`.
    fn emit_stablehlo(&self, w: &mut HloWriter, op: &Collective, args: &[HloValue], gives: &Type) -> HloValue;
}

impl HloWriter {
    /// Returns the attributes of a collective: its groups, a new channel, and `exchanged_data`, which says what the
    /// members of a group send each other.
    pub(crate) fn collective_attributes(&mut self, op: &Collective, exchanged_data: ExchangedData) -> HloAttributes {
        HloAttributes::DeviceGroups { groups: op.groups(), parts: exchanged_data, channel: self.next_channel() }
    }
}
