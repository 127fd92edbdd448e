//! The transport of messages in an MPI job.
//!
//! One thread of each process, the *courier*, makes all calls of MPI, so that messages progress while the program
//! computes. A message goes from one process to another, and consists of its ticket and its bytes. MPI's own
//! collectives are not used: they hang, or give a wrong result, if processes are at different ones. The courier probes
//! for messages and checks the time, so it waits no longer than the deadline. It tells all others when it ends or fails
//! (*notices*), so that they need not wait for their deadlines.
mod point_to_point;

use super::process_engine::{ExchangeReply, ExchangeRequest, ProcessOutcome, Transport};
use crate::error::{Error, Result};
use point_to_point::MpiThread;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A request of the program to the thread that makes all calls of MPI, with the channel of the reply.
enum MpiRequest {
    Exchange(ExchangeRequest, Sender<ExchangeReply>),
    CreateCommunicators(Vec<Vec<Vec<usize>>>, Sender<Vec<usize>>),
    AnnounceEnd(ProcessOutcome, Sender<Result<(), (usize, String)>>),
    Abort,
}

/// This process as a member of its MPI job.
pub struct MpiTransport {
    rank: usize,
    ranks: usize,
    requests: Sender<MpiRequest>,
}

impl MpiTransport {
    /// Joins the job that started this process, and starts the thread that makes all calls of MPI.
    ///
    /// # Errors
    /// MPI is initialised already, or its thread cannot start.
    pub fn join(deadline: Duration) -> Result<MpiTransport> {
        let refused = |message: String| Error::Driver { action: "join the job".into(), device: "MPI".into(), message };
        let ((requests, taken), (ready, joined)) = (channel(), channel());
        let courier = move || match MpiThread::initialize_mpi(deadline) {
            Some(courier) => {
                // The other end waits for it.
                let _ = ready.send(Some((courier.rank(), courier.process_count())));
                courier.serve_requests(&taken);
            }
            None => {
                let _ = ready.send(None);
            }
        };
        let spawned = std::thread::Builder::new().name("courier".into()).spawn(courier);
        spawned.map_err(|error| refused(error.to_string()))?;
        match joined.recv() {
            Ok(Some((rank, ranks))) => Ok(MpiTransport { rank, ranks, requests }),
            _ => Err(refused("it is initialised already".into())),
        }
    }

    /// Sends a request to the thread that makes all calls of MPI; returns the channel of its reply.
    fn send_request<T>(&self, request: impl FnOnce(Sender<T>) -> MpiRequest) -> Receiver<T> {
        let (reply, replies) = channel();
        self.requests.send(request(reply)).expect("the courier serves until the end");
        replies
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn process_count(&self) -> usize {
        self.ranks
    }

    fn exchange(&self, request: ExchangeRequest) -> Receiver<ExchangeReply> {
        self.send_request(|reply| MpiRequest::Exchange(request, reply))
    }

    fn create_communicators(&self, rank_partitions: Vec<Vec<Vec<usize>>>) -> Vec<usize> {
        self.send_request(|reply| MpiRequest::CreateCommunicators(rank_partitions, reply))
            .recv()
            .expect("the courier answers")
    }

    fn abort_job(&self) -> ! {
        // The courier ends the process.
        let _ = self.requests.send(MpiRequest::Abort);
        loop {
            std::thread::park();
        }
    }

    fn announce_end(&self, outcome: ProcessOutcome) -> Result<(), (usize, String)> {
        self.send_request(|reply| MpiRequest::AnnounceEnd(outcome, reply)).recv().unwrap_or(Ok(()))
    }
}
