//! The startup configuration of a process, which is fixed at the first use.
//!
//! - here: the engines; `environment`: the configuration, from the program or from the environment; `backend_names`:
//!   names of devices; `first_use`: the first use, after which it cannot change; `misspelled_variables`: misspelled
//!   names of variables.
mod backend_names;
mod environment;
mod first_use;
mod misspelled_variables;

pub use backend_names::{DEVICE_NAMES, parse_device_name};
pub use environment::StartupConfig;
#[cfg(feature = "mpi")]
pub use first_use::first_use_description;
pub use first_use::{enable_spmd, startup_config};
pub use first_use::{
    engine, freeze_exact_config, freeze_on_described_use, freeze_on_first_use, get_or_freeze_config, require_spmd,
};

use serde::Serialize;

/// Engine that runs the devices of a mesh.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub enum Engine {
    /// All devices in one process, each step for one device after the other: no device can wait for another. The
    /// default.
    #[default]
    Lockstep,
    /// All devices in one process, each on its own thread.
    Threads,
    /// Some devices in each process of an MPI job (feature `mpi`); `distributed::initialize` chooses it.
    Mpi,
}
