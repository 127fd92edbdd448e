//! Meshes of devices, how arrays are sharded among them, and what each device gets in an exchange.
//!
//! - [`Mesh`]: devices along named axes; [`Axis`]: an axis, or a part of one;
//! - [`Sharding`]: the division of one array;
//! - `view`: shardings on another mesh of the same devices;
//! - [`Form`]: what a device gets in an exchange, which is all that engines have to know of a collective.
//!
//! Graphs and devices both import it; it knows neither. `pallas-rt` exports what users see.
#![forbid(unsafe_code)]
pub mod axis;
mod form;
mod mesh;
mod sharding;
mod view;

pub use axis::{Axis, difference, size};
pub use form::{Form, Piece};
pub use mesh::Mesh;
pub use sharding::{DimSharding, Placed, Sharding, names};
