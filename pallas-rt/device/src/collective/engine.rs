//! The interface of engines.
use super::resolved::ResolvedCollective;
use crate::error::Result;
use std::any::Any;
use std::sync::Arc;

/// Exchanges the arrays of one participant's devices with those of the others.
///
/// Operands and results are in the order of [`positions`](Collectives::positions), as bytes; they have the lengths that
/// follow from the exchange's type. The result of each device is the same with every implementation, bit for bit: sums
/// have the order of the devices in their group.
pub trait Collectives: Send + Sync {
    /// The positions in the mesh of the participant's devices, in ascending order.
    fn positions(&self) -> &[usize];

    /// The number of the participant's next exchange, from 0.
    fn next_step(&self) -> u64;

    /// Returns true if an exchange goes on between [`start`](Collectives::start) and [`finish`](Collectives::finish).
    fn overlaps(&self) -> bool {
        true
    }

    /// Begins an exchange: the operands are taken, and may be overwritten afterwards. The step is on the ticket.
    ///
    /// # Errors
    /// [`Error::Collective`](crate::error::Error::Collective) if another participant is at a different exchange, or takes part in no
    /// more.
    fn start(&self, collective: &Arc<ResolvedCollective>, step: u64, operands: &[&[u8]]) -> Result<Started>;

    /// Waits for an exchange, and writes the results.
    ///
    /// # Errors
    /// [`Error::Collective`](crate::error::Error::Collective) if a participant of a group does not take part in it. The results are not
    /// written then.
    fn finish(&self, started: Started, results: &mut [&mut [u8]]) -> Result<()>;

    /// Both at once.
    ///
    /// # Errors
    /// As [`start`](Collectives::start) and [`finish`](Collectives::finish).
    fn exchange(
        &self,
        collective: &Arc<ResolvedCollective>,
        step: u64,
        operands: &[&[u8]],
        results: &mut [&mut [u8]],
    ) -> Result<()> {
        let started = self.start(collective, step, operands)?;
        self.finish(started, results)
    }
}

/// An exchange that has begun.
pub struct Started {
    pub(super) collective: Arc<ResolvedCollective>,
    pub(super) step: u64,
    /// The engine's own state.
    pub(super) state: Box<dyn Any + Send>,
}

impl Started {
    /// The state that this engine gave it.
    pub(super) fn state<T: 'static>(self) -> (Arc<ResolvedCollective>, u64, T) {
        let state = self.state.downcast().expect("an engine finishes the collectives that it started");
        (self.collective, self.step, *state)
    }
}
