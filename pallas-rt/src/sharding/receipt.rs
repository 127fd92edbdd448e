//! Receipts of collectives, which prove that a value has been reduced.
use super::Mesh;
use pallas_device::startup::Engine;
use pallas_graph::mesh::Collective;
use pallas_ir::Loc;
use std::fmt;
use std::sync::Arc;

/// Provenance of an array: a collective that one of its values went through, with the devices that took part and the
/// engine that ran it.
#[derive(Clone, PartialEq, Debug)]
pub struct Receipt {
    /// The operation and its axes, as in `all_reduce add axes("data")`.
    pub collective: String,
    /// The mesh of the devices that took part.
    pub mesh: Arc<Mesh>,
    /// The names of the axes along which devices took part.
    pub axes: Vec<String>,
    /// The positions in the mesh of one group: that of this process' first device.
    pub group: Vec<usize>,
    /// Number of devices in each group.
    pub participants: usize,
    /// The engine that ran the collective.
    pub engine: Engine,
    /// The line of the user's code; empty if no line is known.
    pub at: String,
}

impl Receipt {
    /// The receipt of a collective in which the device at a position takes part.
    pub(crate) fn from_collective(op: &Collective, position: usize, engine: Engine, at: Loc) -> Receipt {
        let names = op.axes.iter().map(|axis| op.mesh.name(usize::from(axis.id)).to_string());
        Receipt {
            collective: op.to_string(),
            mesh: op.mesh.clone(),
            axes: names.collect(),
            group: op.mesh.group(position, &op.axes),
            participants: op.group_size(),
            engine,
            at: if at == Loc::NONE { String::new() } else { at.to_string() },
        }
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Receipt { collective, mesh, group, participants, engine, at, .. } = self;
        write!(f, "{collective} on {mesh}, {participants} devices, here {group:?}, {engine:?}")?;
        if at.is_empty() { Ok(()) } else { write!(f, ", {at}") }
    }
}
