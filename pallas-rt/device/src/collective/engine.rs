//! The interface of engines, which carry out collectives.
use super::resolved::ResolvedCollective;
use crate::error::Result;
use std::any::Any;
use std::sync::Arc;

/// Runs collectives for one participant, a thread, a process or all devices at once: exchanges the arrays of its
/// devices with those of other participants.
///
/// Operands and results are in the order of [`positions`](Collectives::positions), as bytes; they have the lengths that
/// follow from the exchange's type. The result of each device is the same with every implementation, bit for bit: sums
/// have the order of the devices in their group.
pub trait Collectives: Send + Sync {
    /// Positions of the participant's devices in the mesh, in ascending order.
    fn positions(&self) -> &[usize];

    /// Returns the number of the participant's next collective, from 0.
    fn next_collective_number(&self) -> u64;

    /// Returns true if a collective makes progress between [`start`](Collectives::start) and
    /// [`finish`](Collectives::finish).
    fn can_overlap(&self) -> bool {
        true
    }

    /// Begins a collective. The operands are taken, and may be overwritten afterwards; `step` becomes part of the
    /// ticket.
    ///
    /// # Errors
    /// [`Error::Collective`](crate::error::Error::Collective) if another participant is at a different collective, or
    /// takes part in no more.
    fn start(
        &self,
        collective: &Arc<ResolvedCollective>,
        step: u64,
        operands: &[&[u8]],
    ) -> Result<CollectiveInProgress>;

    /// Waits for a collective, and writes the results.
    ///
    /// # Errors
    /// [`Error::Collective`](crate::error::Error::Collective) if a participant of a group does not take part in it. The
    /// results are not written then.
    fn finish(&self, started: CollectiveInProgress, results: &mut [&mut [u8]]) -> Result<()>;

    /// Starts a collective and finishes it.
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

/// A collective that [`Collectives::start`] has begun and [`Collectives::finish`] has not completed.
pub struct CollectiveInProgress {
    pub(super) collective: Arc<ResolvedCollective>,
    pub(super) step: u64,
    /// State of the engine that started it.
    pub(super) state: Box<dyn Any + Send>,
}

impl CollectiveInProgress {
    /// Takes the collective, its step, and the state of the engine that started it, whose type must be `T`.
    pub(super) fn into_parts<T: 'static>(self) -> (Arc<ResolvedCollective>, u64, T) {
        let state = self.state.downcast().expect("an engine finishes the collectives that it started");
        (self.collective, self.step, *state)
    }
}
