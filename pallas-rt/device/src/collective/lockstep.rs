//! The lockstep engine: one thread does each step for all devices of the process, one after the other; collectives
//! copy.
use super::engine::{CollectiveInProgress, Collectives};
use super::resolved::ResolvedCollective;
use crate::error::Result;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The only participant of a lockstep run. It never waits: a collective is complete when it starts.
pub struct LockstepParticipant {
    /// Positions of the devices. Each run makes a participant, which allocates nothing for up to 8 devices.
    positions: SmallVec<[usize; 8]>,
    steps: AtomicU64,
}

impl LockstepParticipant {
    /// Creates the participant that runs the collectives of all `devices` devices of a mesh.
    pub fn new(devices: usize) -> LockstepParticipant {
        LockstepParticipant { positions: (0..devices).collect(), steps: AtomicU64::new(0) }
    }
}

impl Collectives for LockstepParticipant {
    fn positions(&self) -> &[usize] {
        &self.positions
    }

    fn next_collective_number(&self) -> u64 {
        self.steps.fetch_add(1, Relaxed)
    }

    fn can_overlap(&self) -> bool {
        false
    }

    fn start(
        &self,
        collective: &Arc<ResolvedCollective>,
        step: u64,
        operands: &[&[u8]],
    ) -> Result<CollectiveInProgress> {
        let mut results = vec![vec![0; collective.result_type().bytes()]; self.positions.len()];
        let mut each: Vec<&mut [u8]> = results.iter_mut().map(|result| &mut result[..]).collect();
        collective.compute_all_results(operands, &mut each);
        Ok(CollectiveInProgress { collective: collective.clone(), step, state: Box::new(results) })
    }

    fn finish(&self, started: CollectiveInProgress, results: &mut [&mut [u8]]) -> Result<()> {
        let (_, _, made) = started.into_parts::<Vec<Vec<u8>>>();
        results.iter_mut().zip(&made).for_each(|(result, made)| result.copy_from_slice(made));
        Ok(())
    }

    fn exchange(
        &self,
        collective: &Arc<ResolvedCollective>,
        _: u64,
        operands: &[&[u8]],
        results: &mut [&mut [u8]],
    ) -> Result<()> {
        collective.compute_all_results(operands, results);
        Ok(())
    }
}
