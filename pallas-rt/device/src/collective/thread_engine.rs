//! The engine of threads: a participant for each device, on a lasting thread.
use super::deadlock::{BlamedPeer, DeviceOutcome};
use super::engine::{CollectiveInProgress, Collectives};
use super::rendezvous::Rendezvous;
use super::resolved::ResolvedCollective;
use super::workers::run_on_workers;
use crate::error::{CollectiveError, Error, Result, panic_message};
use pallas_ir::Loc;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The participant of one device, connected with the others by a rendezvous.
struct ThreadParticipant<'r> {
    rendezvous: &'r Rendezvous,
    position: [usize; 1],
    steps: AtomicU64,
    /// Number of collectives of each group so far.
    rounds: Mutex<HashMap<Vec<usize>, u64>>,
}

/// A collective in progress: its result, or the number of the round to wait for.
enum PendingCollective {
    Done(Vec<u8>),
    AwaitingRound(u64),
}

impl ThreadParticipant<'_> {
    /// Returns the error of a collective in step `step` in which `peer` does not take part; `found` says what it does
    /// instead.
    fn absent_peer_error(&self, collective: &ResolvedCollective, step: u64, (peer, found): BlamedPeer) -> Error {
        Error::Collective(Box::new(CollectiveError {
            at: collective.loc(),
            exchange: collective.ticket(step).text_without_line(),
            by: format!("device {}", self.position[0]),
            peer: format!("device {peer}"),
            found,
        }))
    }
}

impl Collectives for ThreadParticipant<'_> {
    fn positions(&self) -> &[usize] {
        &self.position
    }

    fn next_collective_number(&self) -> u64 {
        self.steps.fetch_add(1, Relaxed)
    }

    fn start(
        &self,
        collective: &Arc<ResolvedCollective>,
        step: u64,
        operands: &[&[u8]],
    ) -> Result<CollectiveInProgress> {
        let [position] = self.position;
        let started = |begun: PendingCollective| CollectiveInProgress {
            collective: collective.clone(),
            step,
            state: Box::new(begun),
        };
        let (group, number) = (collective.group(position), collective.number_in_group(position));
        if !collective.needs_communication() {
            let mut result = vec![0; collective.result_type().bytes()];
            collective.compute_result(number, |_| operands[0], &mut result);
            return Ok(started(PendingCollective::Done(result)));
        }
        let round = {
            let mut rounds = self.rounds.lock();
            let next = rounds.entry(group.to_vec()).or_default();
            *next += 1;
            *next
        };
        let arrived =
            self.rendezvous.arrive((position, number), (group, round), &collective.ticket(step), operands[0].into());
        arrived.map_err(|blame| self.absent_peer_error(collective, step, blame))?;
        Ok(started(PendingCollective::AwaitingRound(round)))
    }

    fn finish(&self, started: CollectiveInProgress, results: &mut [&mut [u8]]) -> Result<()> {
        let [position] = self.position;
        let (collective, step, begun) = started.into_parts::<PendingCollective>();
        match begun {
            PendingCollective::Done(result) => results[0].copy_from_slice(&result),
            PendingCollective::AwaitingRound(round) => {
                let met = self.rendezvous.wait_for_group(
                    position,
                    (collective.group(position), round),
                    &collective.ticket(step),
                );
                let operands = met.map_err(|blame| self.absent_peer_error(&collective, step, blame))?;
                collective.compute_result(collective.number_in_group(position), |k| &operands[k], results[0]);
            }
        }
        Ok(())
    }
}

/// Calls `program` for each of `devices` devices, each on its own thread. No device waits for ever: if one is at
/// another collective than its group, returns before it or panics, all others get an error that names it.
///
/// # Errors
/// The system starts no more threads. Errors of devices are in the results: if a device has failed, every device's
/// result is an error, its own or one that names a peer.
pub fn run_on_threads<T: Send>(
    devices: usize,
    program: &(dyn Fn(&dyn Collectives) -> Result<T> + Sync),
) -> Result<Vec<Result<T>>> {
    let rendezvous = Rendezvous::new(devices);
    let results: Vec<Mutex<Option<Result<T>>>> = (0..devices).map(|_| Mutex::new(None)).collect();
    let run = |position: usize| {
        let (steps, rounds) = (AtomicU64::new(0), Mutex::default());
        let seat = ThreadParticipant { rendezvous: &rendezvous, position: [position], steps, rounds };
        let result = catch_unwind(AssertUnwindSafe(|| program(&seat)));
        let (end, result) = match result {
            Ok(Ok(value)) => (DeviceOutcome::Finished, Ok(value)),
            Ok(Err(error)) => (DeviceOutcome::Failed(error.to_string()), Err(error)),
            Err(payload) => {
                let message = panic_message(&*payload).to_string();
                (
                    DeviceOutcome::Panicked(message.clone()),
                    Err(failed_peer_error(position, position, format!("panicked: {message}"))),
                )
            }
        };
        *results[position].lock() = Some(result);
        rendezvous.record_end(position, end);
    };
    let refused = |e: std::io::Error| Error::File { path: "threads of devices".into(), message: e.to_string() };
    let panics = run_on_workers(devices, &run).map_err(refused)?;
    assert!(panics.is_empty(), "panics of devices are caught");
    let result = |(position, result): (usize, Mutex<Option<Result<T>>>)| {
        let result = result.into_inner().expect("every device has ended");
        match (result, rendezvous.find_blamed_peer(position)) {
            (Ok(_), Some((peer, found))) => Err(failed_peer_error(position, peer, found)),
            (result, _) => result,
        }
    };
    Ok(results.into_iter().enumerate().map(result).collect())
}

/// The error of device `by`, which is at no collective, because `peer` failed, or `by` itself, as `found` says.
fn failed_peer_error(by: usize, peer: usize, found: String) -> Error {
    let (by, peer) = (format!("device {by}"), format!("device {peer}"));
    Error::Collective(Box::new(CollectiveError { at: Loc::NONE, exchange: "the end".into(), by, peer, found }))
}
