//! Clients, devices, buffers and arrays, in their order of dependence:
//!
//! - `device`: what a device is called and what it can do;
//! - `ledger`: how much memory is in use, and the limit;
//! - `reuse`: freed blocks kept for the next allocation, by size class;
//! - `memory`: host blocks, elements as bytes; the only `unsafe` of this module;
//! - `client`: one device with its memory;
//! - `choice`: which device: names, environment, the best one;
//! - `buffer`: bytes on a device;
//! - `host`: shapes and elements to bytes and back;
//! - `data`: an array: a shape, an element type and a buffer;
//! - `show`: how an array prints.
mod buffer;
mod choice;
mod client;
mod data;
mod device;
mod host;
mod ledger;
mod memory;
mod reuse;
mod show;
#[cfg(test)]
mod tests;

pub use buffer::Buffer;
pub use client::Client;
pub use data::Array;
pub use device::{Device, DeviceKind, DeviceLimits, Matrices, Profile};
pub use ledger::MemoryStats;
#[cfg(feature = "gpu")]
pub(crate) use {
    ledger::{Ledger, Reservation},
    memory::physical_bytes,
    reuse::{Reusable, Stock, size_class},
};
