//! The courier: the thread that makes all calls of MPI.
use super::super::process_engine::{ExchangeReply, ExchangeRequest, ProcessOutcome};
use super::super::ticket::Ticket;
use super::MpiRequest;
use crate::timeline;
use mpi::environment::Universe;
use mpi::point_to_point::MatchedReceiveVec;
use mpi::request;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::{Communicator, Destination, Source};
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// MPI tag of messages with a ticket and bytes.
const DATA_TAG: i32 = 1;
/// MPI tag of messages by which a process says that it stops taking part in collectives.
const NOTICE_TAG: i32 = 2;
/// Time that a process which has failed leaves others to report their errors before it ends the job.
const ABORT_GRACE_PERIOD: Duration = Duration::from_millis(500);
/// Time that a process which has failed waits for the process that it blames, which may be lost, before it ends the
/// job.
const BLAMED_GRACE_PERIOD: Duration = Duration::from_millis(150);

/// A notice of a process to all others that it stops taking part.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum DepartureNotice {
    /// It takes part in no more collectives; `sent` is the number of messages that it sent to each rank.
    Finished { sent: Vec<u64> },
    /// Its program panicked.
    Panicked,
    /// It gave up at ticket `at`, because of rank `blames`, which did what `found` says; `sent` as for `Finished`.
    Failed { at: Ticket, blames: usize, found: String, sent: Vec<u64> },
    /// Its program has received the error, so others need not wait for it.
    Left,
}

/// State of the thread that makes all calls of MPI of this process.
pub(super) struct MpiThread {
    universe: Universe,
    /// The communicators, each with the ranks of its members in the job. The first one has all ranks.
    communicators: Vec<(SimpleCommunicator, Vec<usize>)>,
    rank: usize,
    deadline: Duration,
    /// For each rank, the numbers of messages sent and received, and its last notice.
    sent: Vec<u64>,
    received: Vec<u64>,
    notices: Vec<Option<DepartureNotice>>,
    /// For each rank, whether its program has received its error.
    left: Vec<bool>,
}

/// A peer to blame, and what it did instead of taking part.
type BlamedPeer = (usize, String);

/// A collective whose messages have not all arrived.
struct AwaitedMessages<'a> {
    ticket: &'a Ticket,
    peers: &'a [usize],
    /// Peers whose messages have not arrived.
    missing: Vec<usize>,
}

impl MpiThread {
    /// Initialises MPI on this thread; `None` if it is initialised already. `deadline` bounds the waiting for messages
    /// of other processes.
    pub(super) fn initialize_mpi(deadline: Duration) -> Option<MpiThread> {
        // This thread alone calls MPI, which has to know that there are others.
        let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Funneled)?;
        let world = universe.world();
        let (rank, ranks) = (world.rank() as usize, world.size() as usize);
        let communicators = vec![(world, (0..ranks).collect())];
        let (sent, received) = (vec![0; ranks], vec![0; ranks]);
        let (notices, left) = (vec![None; ranks], vec![false; ranks]);
        Some(MpiThread { universe, communicators, rank, deadline, sent, received, notices, left })
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    pub(super) fn process_count(&self) -> usize {
        self.sent.len()
    }

    /// Ranks of all other processes.
    fn other_ranks(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.process_count()).filter(move |&rank| rank != own)
    }

    /// Carries out the program's requests to MPI until the program announces its end or drops the channel.
    pub(super) fn serve_requests(mut self, requests: &Receiver<MpiRequest>) {
        while let Ok(request) = requests.recv() {
            match request {
                MpiRequest::Exchange(envelope, reply) => {
                    let describe = || (envelope.ticket.kind.clone(), envelope.ticket.to_string());
                    let all = timeline::run_in_span(timeline::SpanKind::Collective, describe, || {
                        self.exchange(&envelope, &reply, requests)
                    });
                    // Sending fails if the program has dropped the receiver.
                    let _ = reply.send(Ok(all));
                }
                MpiRequest::CreateCommunicators(classes, reply) => {
                    let _ = reply.send(classes.into_iter().map(|classes| self.create_communicator(&classes)).collect());
                }
                MpiRequest::AnnounceEnd(farewell, reply) => {
                    match self.announce_end(&farewell) {
                        Ok(()) => {
                            // MPI ends before the program goes on, so that the process cannot end first.
                            self.communicators.clear();
                            drop(self.universe);
                            let _ = reply.send(Ok(()));
                        }
                        Err(blame) => {
                            let _ = reply.send(Err(blame.clone()));
                            self.refuse_requests(&blame, requests);
                        }
                    }
                    return;
                }
                MpiRequest::Abort => self.abort_job(None),
            }
        }
    }

    /// Creates a communicator for each class of ranks, and returns the number of this process' one.
    fn create_communicator(&mut self, rank_classes: &[Vec<usize>]) -> usize {
        let own = rank_classes.iter().find(|class| class.contains(&self.rank)).expect("classes have all ranks");
        let color = Color::with_value(own[0] as i32);
        let new = self.communicators[0].0.split_by_color(color).expect("every process has a color");
        self.communicators.push((new, own.clone()));
        self.communicators.len() - 1
    }

    /// Sends and receives the messages of a collective. After a failure it does not return: it sends the failure as the
    /// `reply`, and answers all further `requests` with it until the program ends the job.
    fn exchange(
        &mut self,
        envelope: &ExchangeRequest,
        reply: &Sender<ExchangeReply>,
        requests: &Receiver<MpiRequest>,
    ) -> Vec<Vec<u8>> {
        let ExchangeRequest { communicator, peers, ticket, payloads } = envelope;
        let header = serde_json::to_vec(ticket).expect("plain data");
        let message = |payload: &Vec<u8>| [&(header.len() as u32).to_le_bytes()[..], &header, payload].concat();
        let messages: Vec<Vec<u8>> = payloads.iter().map(message).collect();
        let begun = Instant::now();
        request::scope(|scope| {
            let mut found: Vec<Option<Vec<u8>>> = vec![None; peers.len()];
            let mut failure: Option<BlamedPeer> = None;
            if messages.iter().any(|message| i32::try_from(message.len()).is_err()) {
                failure = Some((self.rank, "has a message of more than 2 GiB, which MPI does not send".into()));
            }
            let mut sending = vec![];
            if failure.is_none() {
                for (&peer, message) in peers.iter().zip(&messages) {
                    self.sent[peer] += 1;
                    let (communicator, ranks) = &self.communicators[*communicator];
                    let to = communicator.process_at_rank(communicator_rank(ranks, peer));
                    sending.push(to.immediate_send_with_tag(scope, &message[..], DATA_TAG));
                }
            }
            let mut rounds = 0;
            while failure.is_none() {
                for (&peer, slot) in peers.iter().zip(&mut found).filter(|(_, slot)| slot.is_none()) {
                    let Some((theirs, payload)) = self.try_receive_message(*communicator, peer) else { continue };
                    match theirs.and_then(|theirs| ticket.first_difference(&theirs)) {
                        Some(difference) => failure = Some((peer, difference)),
                        None => *slot = Some(payload),
                    }
                }
                sending = sending.into_iter().filter_map(|sending| sending.test().err()).collect();
                if failure.is_some() {
                    break;
                }
                if sending.is_empty() && found.iter().all(Option::is_some) {
                    return found.into_iter().flatten().collect();
                }
                let missing = peers.iter().zip(&found).filter(|(_, slot)| slot.is_none()).map(|(&peer, _)| peer);
                let waiting = AwaitedMessages { ticket, peers, missing: missing.collect() };
                failure = self.read_notices(Some(&waiting));
                if failure.is_none() && begun.elapsed() > self.deadline {
                    failure = Some(match waiting.missing.first() {
                        Some(&peer) => (peer, self.describe_peer(peer, ticket)),
                        None => (peers[0], format!("has not taken a message within {:?}", self.deadline)),
                    });
                }
                back_off(&mut rounds);
            }
            let blame = failure.expect("the loop ends with one");
            let _ = reply.send(Err(blame.clone()));
            let (at, sent) = (ticket.clone(), self.sent.clone());
            self.broadcast_notice(&DepartureNotice::Failed { at, blames: blame.0, found: blame.1.clone(), sent });
            // Messages may never be taken, and their memory must stay until the end of the process.
            self.refuse_requests(&blame, requests)
        })
    }

    /// Receives the next message of a peer on a communicator: its ticket, if it can be read, and its bytes. `None`: no
    /// message.
    fn try_receive_message(&mut self, communicator: usize, peer: usize) -> Option<(Option<Ticket>, Vec<u8>)> {
        let (communicator, ranks) = &self.communicators[communicator];
        let from = communicator.process_at_rank(communicator_rank(ranks, peer));
        let (mut message, _) = from.immediate_matched_probe_with_tag(DATA_TAG)?.matched_receive_vec::<u8>();
        self.received[peer] += 1;
        let header = message.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
        let ticket = message.get(4..4 + header).and_then(|text| serde_json::from_slice(text).ok());
        message.drain(..(4 + header).min(message.len()));
        Some((ticket, message))
    }

    /// Describes the activity of a peer that has not come to a collective, as far as its messages say.
    fn describe_peer(&mut self, peer: usize, ticket: &Ticket) -> String {
        let within = format!("has not come within {:?}", self.deadline);
        let has_peer = |(_, ranks): &&(SimpleCommunicator, Vec<usize>)| ranks.contains(&peer);
        let known = self.communicators.iter().enumerate().filter(|(_, known)| has_peer(known)).map(|(i, _)| i);
        let known: Vec<usize> = known.collect();
        let elsewhere = known.into_iter().find_map(|communicator| self.try_receive_message(communicator, peer)?.0);
        match elsewhere.and_then(|theirs| ticket.first_difference(&theirs)) {
            Some(difference) => format!("{within}: it {difference}"),
            None => within,
        }
    }

    /// Reads the notices with which other processes stop taking part in collectives. Returns the failure that they mean
    /// for the collective `waiting` or, if that is `None`, for the end of the program; `None` without a failure.
    fn read_notices(&mut self, waiting: Option<&AwaitedMessages>) -> Option<BlamedPeer> {
        loop {
            let probed = self.communicators[0].0.any_process().immediate_matched_probe_with_tag(NOTICE_TAG);
            let Some(found) = probed else { break };
            let (bytes, status) = found.matched_receive_vec::<u8>();
            let from = status.source_rank() as usize;
            match serde_json::from_slice(&bytes) {
                Ok(DepartureNotice::Left) => self.left[from] = true,
                Ok(notice) => self.notices[from] = Some(notice),
                Err(_) => {}
            }
        }
        let is_missing = |from| waiting.is_some_and(|waiting| waiting.missing.contains(&from));
        let all = self.notices.iter().enumerate();
        let mut blames = all.filter_map(|(from, notice)| match notice.as_ref()? {
            // Its last messages have not arrived yet; they tell at which collective it is.
            DepartureNotice::Failed { sent, .. } if is_missing(from) && self.received[from] < sent[self.rank] => None,
            DepartureNotice::Failed { at, blames, found, .. } => {
                // A peer at another collective is to blame, whomever it blames.
                let elsewhere = waiting
                    .filter(|waiting| waiting.peers.contains(&from))
                    .and_then(|waiting| waiting.ticket.first_difference(at));
                match elsewhere {
                    // It has finished this collective, so all messages have been sent, and failed in a later one.
                    Some(_) if !is_missing(from) => None,
                    Some(difference) => Some((from, difference)),
                    None if *blames == self.rank => Some((from, format!("waits in {at}"))),
                    None => Some((*blames, found.clone())),
                }
            }
            DepartureNotice::Panicked => Some((from, "panicked".to_string())),
            DepartureNotice::Finished { sent } => {
                // Its last messages may not have arrived yet.
                let is_over = is_missing(from) && self.received[from] >= sent[self.rank];
                is_over.then(|| (from, "has finished, and takes part in no more collectives".to_string()))
            }
            DepartureNotice::Left => None,
        });
        blames.next()
    }

    /// Sends a notice to all other processes.
    fn broadcast_notice(&self, notice: &DepartureNotice) {
        let text = serde_json::to_vec(notice).expect("plain data");
        for rank in self.other_ranks() {
            self.communicators[0].0.process_at_rank(rank as i32).send_with_tag(&text[..], NOTICE_TAG);
        }
    }

    /// Announces the end of this process' collectives, and waits until all others announce theirs.
    fn announce_end(&mut self, outcome: &ProcessOutcome) -> Result<(), BlamedPeer> {
        self.broadcast_notice(&match outcome {
            ProcessOutcome::Finished => DepartureNotice::Finished { sent: self.sent.clone() },
            ProcessOutcome::Panicked => DepartureNotice::Panicked,
        });
        if *outcome == ProcessOutcome::Panicked {
            return Err((self.rank, "panicked".into()));
        }
        let (begun, mut rounds) = (Instant::now(), 0);
        loop {
            if let Some(blame) = self.read_notices(None) {
                return Err(blame);
            }
            let Some(missing) = self.other_ranks().find(|&rank| self.notices[rank].is_none()) else { return Ok(()) };
            if begun.elapsed() > self.deadline {
                return Err((missing, format!("has not ended within {:?}", self.deadline)));
            }
            back_off(&mut rounds);
        }
    }

    /// Answers all requests with the failure, until the program ends the job.
    fn refuse_requests(&mut self, blame: &BlamedPeer, requests: &Receiver<MpiRequest>) -> ! {
        loop {
            match requests.recv() {
                Ok(MpiRequest::Exchange(_, reply)) => {
                    let _ = reply.send(Err(blame.clone()));
                }
                // No message is sent on these communicators.
                Ok(MpiRequest::CreateCommunicators(classes, reply)) => {
                    let _ = reply.send(vec![0; classes.len()]);
                }
                Ok(MpiRequest::AnnounceEnd(_, reply)) => {
                    let _ = reply.send(Err(blame.clone()));
                }
                Ok(MpiRequest::Abort) | Err(_) => self.abort_job(Some(blame.0)),
            }
        }
    }

    /// Ends the job, after giving the other programs time to report their errors; waits less long for the process that
    /// is `blamed`, if any, which may be lost.
    fn abort_job(&mut self, blamed: Option<usize>) -> ! {
        self.broadcast_notice(&DepartureNotice::Left);
        let (begun, mut rounds) = (Instant::now(), 0);
        let grace = |rank| if blamed == Some(rank) { BLAMED_GRACE_PERIOD } else { ABORT_GRACE_PERIOD };
        while self.other_ranks().any(|rank| !self.left[rank] && begun.elapsed() < grace(rank)) {
            self.read_notices(None);
            back_off(&mut rounds);
        }
        self.communicators[0].0.abort(1)
    }
}

/// Rank in a communicator of a process with this rank in the job.
fn communicator_rank(ranks: &[usize], rank: usize) -> i32 {
    ranks.binary_search(&rank).expect("a member of the communicator") as i32
}

/// Lets other threads run; sleeps if the caller has waited for many rounds, which `idle_rounds` counts.
fn back_off(idle_rounds: &mut u32) {
    *idle_rounds += 1;
    if *idle_rounds < 500 { std::thread::yield_now() } else { std::thread::sleep(Duration::from_micros(50)) }
}
