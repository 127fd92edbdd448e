//! Exchanges of arrays among the devices of a mesh.
//!
//! A *party* runs some devices of a mesh: all of them, one of them on a thread of its own, or those of a process. The
//! [`Collectives`] of a party exchange what its devices have with the devices of others. Every exchange has a [`Ticket`];
//! parties whose tickets differ get an error, and none gets a number.
//!
//! - `ticket`: what the members of a group must agree about; `meeting`: an exchange whose groups are known, and `combine`
//!   its sums, in the order of the devices, so that all engines give the same bits;
//! - `engine`: the trait [`Collectives`];
//! - `lockstep`: one party in one process, whose steps one thread does for one device after the other;
//! - `room` and `threads`: a party for each device, on lasting threads (`workers`);
//! - `processes`: a party for each process of a job, on a wire for messages: `mpi` (feature `mpi`).
mod combine;
mod engine;
mod lockstep;
mod meeting;
#[cfg(feature = "mpi")]
mod mpi;
mod processes;
mod room;
#[cfg(test)]
mod tests;
mod threads;
mod ticket;
#[allow(unsafe_code, reason = "lasting threads borrow work")]
mod workers;

pub use engine::{Collectives, Started};
pub(crate) use lockstep::Lockstep;
pub use meeting::Meeting;
pub use pallas_graph::mesh::{
    AllGather, AllReduce, AllToAll, DeviceTable, Exchange, Pbroadcast, Permute, ReduceScatter,
};
pub(crate) use processes::{Farewell, Processes, processes};
pub(crate) use threads::on_threads;
pub use ticket::Ticket;
#[cfg(feature = "mpi")]
pub(crate) use {
    mpi::Mpi,
    processes::{Wire, join},
};
