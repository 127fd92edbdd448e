//! The processes of a job.
use pallas_device::collective::{ProcessOutcome, process_group};
use pallas_device::error::{Error, Result};
use pallas_device::startup::{self, StartupConfig};
use std::io::Write;
use std::panic::Location;

/// Variables that launchers of MPI jobs set to the number of processes.
const MPI_SIZE_VARIABLES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS"];

/// This process' part in a job, from [`initialize`] until it is dropped. When dropped, it waits for the other processes
/// to end; after an error it prints the error and ends the job.
#[must_use = "the job ends when it is dropped"]
#[derive(Debug)]
pub struct Distributed {
    rank: usize,
    processes: usize,
}

/// Joins the job that started this process, before the first array is made: `mpirun` with the cargo feature `mpi`. A
/// process that is in no job is the only one. `jax.distributed.initialize`.
///
/// # Errors
/// [`Error::Settled`] if something has been used before, such as an array: it names that and its line.
/// [`Error::Unsupported`] in a job, without the feature `mpi`. [`Error::Driver`] if MPI is initialised already.
///
/// ```
/// let job = pallas_rt::distributed::initialize()?;
/// assert_eq!((job.rank(), job.processes()), (0, 1));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn initialize() -> Result<Distributed> {
    let at = Location::caller();
    let size = MPI_SIZE_VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    match size {
        None | Some(0 | 1) => {
            startup::freeze_on_first_use("`distributed::initialize`", at)?;
            Ok(Distributed { rank: 0, processes: 1 })
        }
        Some(processes) => join_mpi_job(processes, at),
    }
}

/// Returns an error, since this build has no MPI.
#[cfg(not(feature = "mpi"))]
fn join_mpi_job(processes: usize, _: &Location<'_>) -> Result<Distributed> {
    let what = format!("MPI, which a job of {processes} processes needs");
    Err(Error::Unsupported { what, device: "this build".into(), help: "build with `--features mpi`" })
}

/// Joins the job through MPI, and fixes the startup configuration; `at` is the line of the call.
#[cfg(feature = "mpi")]
fn join_mpi_job(_: usize, at: &Location<'_>) -> Result<Distributed> {
    use pallas_device::collective::{MpiTransport, join_process_group};
    if let Some(by) = startup::first_use_description() {
        return Err(Error::Settled { what: "that there is one process", by: format!("the first use: {by}") });
    }
    let config = StartupConfig::from_env()?;
    let wire = Box::new(MpiTransport::join(config.deadline)?);
    let (rank, processes) = (
        pallas_device::collective::Transport::rank(&*wire),
        pallas_device::collective::Transport::process_count(&*wire),
    );
    // One process writes compiled kernels, which the others read.
    let cache = if rank == 0 { config.cache } else { config.cache.read_only() };
    let config = StartupConfig { engine: startup::Engine::Mpi, processes, cache, ..config };
    startup::freeze_exact_config(config, format!("`distributed::initialize` at {at}"))?;
    if !join_process_group(wire) {
        let message = "this process is in a job already".into();
        return Err(Error::Driver { action: "join the job".into(), device: "MPI".into(), message });
    }
    Ok(Distributed { rank, processes })
}

impl Distributed {
    /// The number of this process in the job, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes of the job.
    pub fn processes(&self) -> usize {
        self.processes
    }

    /// The startup configuration, which all processes of the job share.
    pub fn config(&self) -> &'static StartupConfig {
        startup::startup_config().expect("joining a job fixes it")
    }
}

impl Drop for Distributed {
    fn drop(&mut self) {
        let Some(all) = process_group() else { return };
        let farewell = if std::thread::panicking() { ProcessOutcome::Panicked } else { ProcessOutcome::Finished };
        if let Err(error) = all.announce_end(farewell) {
            // In one piece, so that lines of processes do not mix.
            let _ = std::io::stderr().write_all(format!("{error}\n").as_bytes());
            all.abort_job();
        }
    }
}
