//! Meshes of devices, how arrays are sharded among them, and what each device gets in a collective.
//!
//! - [`Mesh`]: devices along named axes; [`Axis`]: an axis, or a part of one;
//! - [`Sharding`]: how one array is sharded;
//! - `view`: shardings translated between meshes of the same devices;
//! - [`CollectiveForm`]: what a device gets in a collective, which is all that engines have to know of it.
//!
//! Graphs and devices both import this crate; it depends on neither. `pallas-rt` exports what users see.
#![forbid(unsafe_code)]
pub mod axis;
mod collective_form;
mod mesh;
mod sharding;
mod view;

pub use axis::{Axis, difference, product_of_sizes};
pub use collective_form::{CollectiveForm, SentPart};
pub use mesh::Mesh;
pub use sharding::{DimSharding, MeshSharding, Sharding, axes_text};
