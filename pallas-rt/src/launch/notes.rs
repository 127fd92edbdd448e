//! Calls that are recorded instead of run.
use super::bind::Sizes;
use super::tuning::Tuning;
use crate::Client;
use crate::exec::Compiled;
use pallas_device::Geometry;
use pallas_ir::Loc;
use std::sync::Arc;

/// The calls that were recorded instead of run.
#[derive(Default)]
pub(super) struct Notes {
    pub calls: Vec<Note>,
    /// The tuning of the next call, which takes it.
    pub tuning: Option<Arc<Tuning>>,
}

/// A call that was recorded.
pub(super) struct Note {
    pub compiled: Compiled,
    pub geometry: Geometry,
    pub client: Client,
    pub called: Loc,
    pub tuning: Option<Arc<Tuning>>,
    /// Number of times that the kernel is launched, more than 1 in a loop.
    pub times: u64,
}

impl Notes {
    /// Records a call that does not run.
    pub(super) fn add(&mut self, compiled: &Compiled, sizes: &Arc<Sizes>, client: &Client, called: Loc) {
        let (compiled, geometry, client) = (compiled.clone(), sizes.geometry.clone(), client.clone());
        self.calls.push(Note { compiled, geometry, client, called, tuning: self.tuning.take(), times: 1 });
    }
}
