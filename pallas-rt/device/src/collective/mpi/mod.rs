//! The transport of messages in an MPI job.
//!
//! One thread of each process, the *courier*, makes all calls of MPI, so that messages progress while the program
//! computes. A message goes from one process to another, and consists of its ticket and its bytes. MPI's own
//! collectives are not used: they hang, or give a wrong result, if processes are at different ones. The courier probes
//! for messages and checks the time, so it waits no longer than the deadline. It tells all others when it ends or fails
//! (*notices*), so that they need not wait for their deadlines.
mod courier;

use super::processes::{Envelope, Farewell, Reply, Wire};
use crate::error::{Error, Result};
use courier::Courier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// A request of the program to the courier, with the channel of the reply.
enum Request {
    Exchange(Envelope, Sender<Reply>),
    Connect(Vec<Vec<Vec<usize>>>, Sender<Vec<usize>>),
    End(Farewell, Sender<Result<(), (usize, String)>>),
    Abort,
}

/// This process as a member of its MPI job.
pub struct Mpi {
    rank: usize,
    ranks: usize,
    requests: Sender<Request>,
}

impl Mpi {
    /// Joins the job that started this process, and starts the courier.
    ///
    /// # Errors
    /// MPI is initialised already, or its thread cannot start.
    pub fn join(deadline: Duration) -> Result<Mpi> {
        let refused = |message: String| Error::Driver { action: "join the job".into(), device: "MPI".into(), message };
        let ((requests, taken), (ready, joined)) = (channel(), channel());
        let courier = move || match Courier::join(deadline) {
            Some(courier) => {
                // The other end waits for it.
                let _ = ready.send(Some((courier.rank(), courier.ranks())));
                courier.serve(&taken);
            }
            None => {
                let _ = ready.send(None);
            }
        };
        let spawned = std::thread::Builder::new().name("courier".into()).spawn(courier);
        spawned.map_err(|error| refused(error.to_string()))?;
        match joined.recv() {
            Ok(Some((rank, ranks))) => Ok(Mpi { rank, ranks, requests }),
            _ => Err(refused("it is initialised already".into())),
        }
    }

    /// Sends a request to the courier; returns the channel of its reply.
    fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> Request) -> Receiver<T> {
        let (reply, replies) = channel();
        self.requests.send(request(reply)).expect("the courier serves until the end");
        replies
    }
}

impl Wire for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn exchange(&self, envelope: Envelope) -> Receiver<Reply> {
        self.ask(|reply| Request::Exchange(envelope, reply))
    }

    fn connect(&self, classes: Vec<Vec<Vec<usize>>>) -> Vec<usize> {
        self.ask(|reply| Request::Connect(classes, reply)).recv().expect("the courier answers")
    }

    fn abort(&self) -> ! {
        // The courier ends the process.
        let _ = self.requests.send(Request::Abort);
        loop {
            std::thread::park();
        }
    }

    fn end(&self, farewell: Farewell) -> Result<(), (usize, String)> {
        self.ask(|reply| Request::End(farewell, reply)).recv().unwrap_or(Ok(()))
    }
}
