//! Engines of collectives, in which the devices of a mesh exchange arrays.
//!
//! A *participant* runs some devices of a mesh: all of them, one of them on a thread of its own, or those of a process.
//! Its [`Collectives`] exchange the arrays of its devices with those of other participants. Every collective has a
//! [`Ticket`]; participants whose tickets differ get an error, and none gets a result.
//!
//! - `ticket`: what the members of a group must agree about; `resolved`: a collective whose groups are known, and
//!   `combine` its sums, in the order of the devices, so that all engines give the same bits;
//! - `engine`: the trait [`Collectives`];
//! - `lockstep`: one participant in one process; one thread does each step for one device after the other;
//! - `rendezvous` and `thread_engine`: a participant for each device, on lasting threads (`workers`); `deadlock`: the
//!   peer to blame if they wait in vain;
//! - `process_engine`: a participant for each process of a job, over a transport of messages: `mpi` (feature `mpi`).
mod combine;
mod deadlock;
mod engine;
mod lockstep;
#[cfg(feature = "mpi")]
mod mpi;
mod process_engine;
mod rendezvous;
mod resolved;
mod thread_engine;
mod ticket;
#[allow(unsafe_code, reason = "lasting threads borrow work")]
mod workers;

pub use engine::{CollectiveInProgress, Collectives};
pub use lockstep::LockstepParticipant;
#[cfg(feature = "mpi")]
pub use mpi::MpiTransport;
pub use process_engine::{
    ExchangeReply, ExchangeRequest, ProcessGroup, ProcessOutcome, ProcessParticipant, Transport, join_process_group,
    process_group,
};
pub use resolved::ResolvedCollective;
pub use thread_engine::run_on_threads;
pub use ticket::Ticket;
