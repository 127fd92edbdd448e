//! Exchanges of arrays among the devices of a mesh.
//!
//! - `lockstep`: all devices in one process, whose steps one thread does one after the other.
mod lockstep;

pub(crate) use lockstep::Lockstep;
