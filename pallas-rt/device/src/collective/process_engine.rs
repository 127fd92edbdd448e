//! The engine of jobs of several processes: each is a participant with some devices of every mesh.
use super::engine::{CollectiveInProgress, Collectives};
use super::resolved::ResolvedCollective;
use super::ticket::Ticket;
use crate::error::{CollectiveError, Error, Result};
use pallas_ir::{At, Diag, Loc};
use pallas_mesh::{Axis, CollectiveForm, Mesh, SentPart};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};

/// Messages of one collective to other processes, each of which sends one in return.
#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "jobs are MPI's"))]
pub struct ExchangeRequest {
    /// Number of the communicator: 0 has all processes, others come from [`Transport::create_communicators`].
    pub communicator: usize,
    /// Ranks of the other processes, in ascending order.
    pub peers: Vec<usize>,
    /// The collective that all of them must have reached.
    pub ticket: Ticket,
    /// Message to each peer, in the order of `peers`.
    pub payloads: Vec<Vec<u8>>,
}

/// The peers' messages; or a peer that is not at the collective, and what it does instead.
pub type ExchangeReply = Result<Vec<Vec<u8>>, (usize, String)>;

/// End of a process' part in a job: it finished its collectives, or it panicked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcessOutcome {
    /// It is done with all its collectives.
    Finished,
    /// Its program panicked.
    Panicked,
}

/// A transport of messages between processes. A message is received only if its ticket equals the receiver's, and no
/// process waits longer than the deadline.
pub trait Transport: Send + Sync {
    /// Rank of this process, from 0.
    fn rank(&self) -> usize;
    /// Number of processes of the job.
    fn process_count(&self) -> usize;
    /// Sends messages and receives those of the peers, in the background. Calls are carried out in order.
    fn exchange(&self, request: ExchangeRequest) -> Receiver<ExchangeReply>;
    /// Creates a communicator for each division of all ranks into classes, and returns their numbers. All processes
    /// call it with equal classes, which they have compared.
    fn create_communicators(&self, rank_partitions: Vec<Vec<Vec<usize>>>) -> Vec<usize>;
    /// Announces that this process takes part in no more collectives, and waits until all others announce it.
    ///
    /// # Errors
    /// A process that ended in another way, or is at a collective.
    fn announce_end(&self, outcome: ProcessOutcome) -> Result<(), (usize, String)>;
    /// Ends all processes of the job, after an error.
    fn abort_job(&self) -> !;
}

/// This process as a member of a job.
pub struct ProcessGroup {
    wire: Box<dyn Transport>,
    steps: AtomicU64,
    participants: Mutex<HashMap<Mesh, Arc<ProcessParticipant>>>,
}

/// The job of this process; unset outside of jobs.
static PROCESS_GROUP: OnceLock<Arc<ProcessGroup>> = OnceLock::new();

/// The job of this process; `None` if it has one process.
pub fn process_group() -> Option<&'static Arc<ProcessGroup>> {
    PROCESS_GROUP.get()
}

/// Makes this process a member of a job over this transport; returns false if it is one already.
#[cfg_attr(not(feature = "mpi"), allow(dead_code, reason = "jobs are MPI's"))]
pub fn join_process_group(transport: Box<dyn Transport>) -> bool {
    PROCESS_GROUP.set(Arc::new(ProcessGroup::new(transport))).is_ok()
}

impl ProcessGroup {
    /// Creates the job of the processes that this transport connects.
    pub fn new(transport: Box<dyn Transport>) -> ProcessGroup {
        ProcessGroup { wire: transport, steps: AtomicU64::new(0), participants: Mutex::default() }
    }

    /// Rank of this process.
    pub fn rank(&self) -> usize {
        self.wire.rank()
    }

    /// Number of processes of the job.
    pub fn process_count(&self) -> usize {
        self.wire.process_count()
    }

    /// Announces that this process takes part in no more collectives: see [`Transport::announce_end`].
    pub fn announce_end(&self, outcome: ProcessOutcome) -> Result<()> {
        let ended = self.wire.announce_end(outcome);
        ended.map_err(|(peer, found)| self.absent_peer_error(Loc::NONE, "the end".into(), peer, found))
    }

    /// Ends all processes of the job: see [`Transport::abort_job`].
    pub fn abort_job(&self) -> ! {
        self.wire.abort_job()
    }

    /// Returns the error of a collective in which process `peer` does not take part; `found` says what the peer does
    /// instead.
    fn absent_peer_error(&self, at: Loc, exchange: String, peer: usize, found: String) -> Error {
        let (by, peer) = (format!("rank {}", self.rank()), format!("rank {peer}"));
        Error::Collective(Box::new(CollectiveError { at, exchange, by, peer, found }))
    }

    /// Sends `own` to all processes, and returns the messages of all, by rank. `kind` and `about` are texts of the
    /// ticket, by which processes check that they make the same exchange.
    ///
    /// # Errors
    /// A process is at another collective.
    pub fn all_gather(&self, kind: &str, about: String, at: Loc, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let peers: Vec<usize> = (0..self.process_count()).filter(|&rank| rank != self.rank()).collect();
        let ticket = Ticket {
            step: self.steps.fetch_add(1, Relaxed),
            kind: kind.into(),
            axes: about,
            shape: vec![],
            dtype: String::new(),
            layout: vec![],
            line: if at == Loc::NONE { String::new() } else { at.to_string() },
        };
        let payloads = vec![own.clone(); peers.len()];
        let text = ticket.clone().text_without_line();
        let reply = self.wire.exchange(ExchangeRequest { communicator: 0, peers, ticket, payloads }).recv();
        let mut all = reply
            .expect(REPLY_EXPECT_MESSAGE)
            .map_err(|(peer, found)| self.absent_peer_error(at, text, peer, found))?;
        all.insert(self.rank(), own);
        Ok(all)
    }

    /// Checks that all processes of the job pass equal values, each with its name for messages; `kind` names the
    /// comparison in them.
    ///
    /// # Errors
    /// Another process has a different value for a name, or none.
    pub fn check_agreement(&self, kind: &str, values: &[(&str, String)]) -> Result<()> {
        let own = serde_json::to_vec(&values.iter().map(|(_, value)| value).collect::<Vec<_>>()).expect("texts");
        let all = self.all_gather(kind, String::new(), Loc::NONE, own)?;
        for (rank, theirs) in all.iter().enumerate() {
            let theirs: Vec<String> = serde_json::from_slice(theirs).unwrap_or_default();
            let mut pairs = values.iter().zip(theirs.iter().map(Some).chain(std::iter::repeat(None)));
            if let Some(((name, own), theirs)) = pairs.find(|((_, own), theirs)| Some(own) != *theirs) {
                let theirs = theirs.map_or("none", |theirs| theirs);
                let found = format!("has another {name}: {theirs}, here it is {own}");
                return Err(self.absent_peer_error(Loc::NONE, kind.to_string(), rank, found));
            }
        }
        Ok(())
    }

    /// This process' participant for a mesh. All processes ask for it at the same time when they first use the mesh.
    ///
    /// # Errors
    /// Devices that cannot be sharded evenly among the processes; a process that uses another mesh.
    pub fn participant(self: &Arc<Self>, mesh: &Arc<Mesh>) -> Result<Arc<ProcessParticipant>> {
        let lock = || self.participants.lock();
        if let Some(participant) = lock().get(&**mesh) {
            return Ok(participant.clone());
        }
        let ranks = assign_ranks(mesh, self.process_count()).map_err(|diag| Error::operation(Loc::NONE, diag))?;
        self.check_agreement("mesh", &[("mesh", mesh.to_string())])?;
        let classes =
            mesh.axes().iter().map(|&axis| find_connected_ranks(mesh, &ranks, axis, self.process_count())).collect();
        let communicators = self.wire.create_communicators(classes);
        let positions = (0..ranks.len()).filter(|&position| ranks[position] == self.rank()).collect();
        let participant = Arc::new(ProcessParticipant { processes: self.clone(), ranks, positions, communicators });
        lock().insert((**mesh).clone(), participant.clone());
        Ok(participant)
    }
}

/// Message of the panic if the transport drops a reply's channel without a reply, which it never does.
const REPLY_EXPECT_MESSAGE: &str = "the wire answers every message";

/// Rank of the process that has the device at each position: as many devices each, in the order of the devices.
fn assign_ranks(mesh: &Mesh, processes: usize) -> std::result::Result<Vec<usize>, Diag> {
    let devices = mesh.device_count();
    if !devices.is_multiple_of(processes) {
        let found = format!("a mesh of {devices} devices on {processes} processes");
        return Err(Diag::new("mesh", At::Op, found, "a multiple of the number of processes"));
    }
    let mut sorted: Vec<usize> = (0..devices).map(|position| mesh.device(position)).collect();
    sorted.sort_unstable();
    let place = |device: usize| sorted.binary_search(&device).expect("it is one of them");
    Ok((0..devices).map(|position| place(mesh.device(position)) / (devices / processes)).collect())
}

/// Divides all ranks into classes that are connected, directly or through others, by collectives along an axis.
fn find_connected_ranks(mesh: &Mesh, ranks_by_position: &[usize], axis: Axis, processes: usize) -> Vec<Vec<usize>> {
    let mut class: Vec<usize> = (0..processes).collect();
    for position in 0..ranks_by_position.len() {
        for member in mesh.group(position, &[axis]) {
            let (a, b) = (class[ranks_by_position[position]], class[ranks_by_position[member]]);
            class.iter_mut().filter(|own| **own == a.max(b)).for_each(|own| *own = a.min(b));
        }
    }
    let of = |first: usize| (0..processes).filter(|&rank| class[rank] == first).collect::<Vec<_>>();
    (0..processes).map(of).filter(|ranks| !ranks.is_empty()).collect()
}

/// The participant that runs collectives for those devices of a mesh that belong to this process.
pub struct ProcessParticipant {
    processes: Arc<ProcessGroup>,
    /// Rank of the process at each position of the mesh.
    ranks: Vec<usize>,
    positions: Vec<usize>,
    /// Number of the communicator for each axis of the mesh.
    communicators: Vec<usize>,
}

/// A collective in progress: its results, or the operands so far and the messages to come.
enum PendingExchange {
    Done(Vec<Vec<u8>>),
    Waiting { operands: HashMap<usize, Vec<u8>>, peers: Vec<usize>, reply: Receiver<ExchangeReply> },
}

impl ProcessParticipant {
    /// Rank of the process that has the device at each position.
    pub fn ranks_by_position(&self) -> &[usize] {
        &self.ranks
    }

    /// Byte ranges of the operand of device `from_device` that members of its group on process `to_rank` need.
    fn needed_ranges(
        &self,
        collective: &ResolvedCollective,
        from_device: usize,
        to_rank: usize,
        operand_bytes: usize,
    ) -> Vec<Range<usize>> {
        let group = collective.group(from_device);
        let own = operand_bytes / group.len();
        let there = || group.iter().enumerate().filter(|(_, to)| self.ranks[**to] == to_rank).map(|(number, _)| number);
        let whole = |is_needed: bool| is_needed.then_some(0..operand_bytes).into_iter().collect();
        match collective.result_form(0) {
            CollectiveForm::Stack(SentPart::Whole) | CollectiveForm::Fold(_, SentPart::Whole) => {
                whole(there().next().is_some())
            }
            CollectiveForm::Stack(SentPart::Part) | CollectiveForm::Fold(_, SentPart::Part) => {
                there().map(|number| number * own..(number + 1) * own).collect()
            }
            CollectiveForm::FromMember(_) => {
                let own = CollectiveForm::FromMember(Some(collective.number_in_group(from_device)));
                whole(there().any(|number| collective.result_form(number) == own))
            }
            CollectiveForm::Constant(_) | CollectiveForm::Own => vec![],
        }
    }

    /// Computes the results of this process' devices from the operands of their groups.
    fn compute_results(
        &self,
        collective: &ResolvedCollective,
        operands: &HashMap<usize, Vec<u8>>,
        results: &mut [&mut [u8]],
    ) {
        for (&position, result) in self.positions.iter().zip(results) {
            let group = collective.group(position);
            // Operands that are not needed have not been sent.
            let operand = |k: usize| operands.get(&group[k]).map_or(&[][..], |bytes| bytes);
            collective.compute_result(collective.number_in_group(position), operand, result);
        }
    }
}

impl Collectives for ProcessParticipant {
    fn positions(&self) -> &[usize] {
        &self.positions
    }

    fn next_collective_number(&self) -> u64 {
        self.processes.steps.fetch_add(1, Relaxed)
    }

    fn start(
        &self,
        collective: &Arc<ResolvedCollective>,
        step: u64,
        operands: &[&[u8]],
    ) -> Result<CollectiveInProgress> {
        let started = |begun: PendingExchange| CollectiveInProgress {
            collective: collective.clone(),
            step,
            state: Box::new(begun),
        };
        let own = self.positions.iter().copied().zip(operands.iter().map(|operand| operand.to_vec()));
        let own: HashMap<usize, Vec<u8>> = own.collect();
        let others =
            self.positions.iter().flat_map(|&position| collective.group(position)).map(|&member| self.ranks[member]);
        let mut peers: Vec<usize> = others.filter(|&rank| rank != self.processes.rank()).collect();
        peers.sort_unstable();
        peers.dedup();
        if peers.is_empty() || !collective.needs_communication() {
            let mut results = vec![vec![0; collective.result_type().bytes()]; self.positions.len()];
            let mut each: Vec<&mut [u8]> = results.iter_mut().map(|result| &mut result[..]).collect();
            self.compute_results(collective, &own, &mut each);
            return Ok(started(PendingExchange::Done(results)));
        }
        let payload = |&rank: &usize| {
            let parts = self.positions.iter().flat_map(|position| {
                let operand = &own[position];
                self.needed_ranges(collective, *position, rank, operand.len()).into_iter().map(|part| &operand[part])
            });
            parts.collect::<Vec<_>>().concat()
        };
        let payloads = peers.iter().map(payload).collect();
        let axes = collective.axes();
        let communicator = match axes {
            [axis] if *axis == collective.mesh().axis(usize::from(axis.id)) => self.communicators[usize::from(axis.id)],
            _ => 0,
        };
        let ticket = collective.ticket(step);
        let envelope = ExchangeRequest { communicator, peers: peers.clone(), ticket, payloads };
        let reply = self.processes.wire.exchange(envelope);
        Ok(started(PendingExchange::Waiting { operands: own, peers, reply }))
    }

    fn finish(&self, started: CollectiveInProgress, results: &mut [&mut [u8]]) -> Result<()> {
        let (collective, step, begun) = started.into_parts::<PendingExchange>();
        let (mut operands, peers, reply) = match begun {
            PendingExchange::Done(made) => {
                results.iter_mut().zip(&made).for_each(|(result, made)| result.copy_from_slice(made));
                return Ok(());
            }
            PendingExchange::Waiting { operands, peers, reply } => (operands, peers, reply),
        };
        let messages = reply.recv().expect(REPLY_EXPECT_MESSAGE).map_err(|(peer, found)| {
            self.processes.absent_peer_error(collective.loc(), collective.ticket(step).text_without_line(), peer, found)
        })?;
        let bytes = operands[&self.positions[0]].len();
        for (rank, message) in peers.into_iter().zip(messages) {
            let mut left = &message[..];
            for from in (0..self.ranks.len()).filter(|&position| self.ranks[position] == rank) {
                let parts = self.needed_ranges(&collective, from, self.processes.rank(), bytes);
                if parts.is_empty() {
                    continue;
                }
                let operand = operands.entry(from).or_insert_with(|| vec![0; bytes]);
                for part in parts {
                    // The tickets are equal, so the lengths are.
                    let (own, rest) = left.split_at(part.len());
                    operand[part].copy_from_slice(own);
                    left = rest;
                }
            }
        }
        self.compute_results(&collective, &operands, results);
        Ok(())
    }
}
