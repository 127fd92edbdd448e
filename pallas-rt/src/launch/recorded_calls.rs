//! Calls that are recorded instead of run.
use super::bind::CallSizes;
use super::tuning_outcome::Tuning;
use crate::Client;
use crate::exec::Compiled;
use pallas_device::LaunchGeometry;
use pallas_ir::Loc;
use std::sync::Arc;

/// The calls that were recorded instead of run.
#[derive(Default)]
pub(super) struct RecordedCalls {
    pub calls: Vec<RecordedCall>,
    /// The tuning of the next call, which takes it.
    pub tuning: Option<Arc<Tuning>>,
}

/// A kernel call that was recorded instead of run: its compiled kernel, sizes, client and line, and the number of
/// launches.
pub(super) struct RecordedCall {
    pub compiled: Compiled,
    pub geometry: LaunchGeometry,
    pub client: Client,
    pub called: Loc,
    pub tuning: Option<Arc<Tuning>>,
    /// Number of times that the kernel is launched, more than 1 in a loop.
    pub times: u64,
}

impl RecordedCalls {
    /// Records a call that does not run.
    pub(super) fn record(&mut self, compiled: &Compiled, sizes: &Arc<CallSizes>, client: &Client, called: Loc) {
        let (compiled, geometry, client) = (compiled.clone(), sizes.geometry.clone(), client.clone());
        self.calls.push(RecordedCall { compiled, geometry, client, called, tuning: self.tuning.take(), times: 1 });
    }
}
