//! The startup configuration, and the environment variables that it is read from: `PALLAS_DEVICE` and others.
use super::backend_names::{DEVICE_NAMES, parse_device_name};
use super::{Engine, first_use};
use crate::disk::{self, DiskCache};
use crate::error::{Error, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

const ENGINE_VARIABLE: &str = "PALLAS_ENGINE";
const SPMD_VARIABLE: &str = "PALLAS_SPMD";
const DEVICES_VARIABLE: &str = "PALLAS_DEVICES";
const DEADLINE_VARIABLE: &str = "PALLAS_DEADLINE_MS";
const BACKEND_VARIABLE: &str = "PALLAS_DEVICE";

/// The startup configuration of a process. [`apply`](StartupConfig::apply) fixes it; otherwise the environment does,
/// when the first array is made or the first kernel is compiled. Afterwards it does not change.
///
/// ```
/// use pallas_rt::startup::StartupConfig;
/// let config = StartupConfig::from_env()?;
/// config.clone().apply()?;
/// println!("{config}");
/// // Another one is refused, with the line of the first.
/// let other = StartupConfig { spmd: !config.spmd, ..config };
/// assert!(other.apply().unwrap_err().to_string().contains("first use: `StartupConfig::apply`"));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StartupConfig {
    /// Name of the default device for arrays, as in `PALLAS_DEVICE`; `best` if that is not set. See
    /// [`Client::from_env`](crate::Client::from_env).
    pub backend: String,
    /// Engine that runs the devices of a mesh: `PALLAS_ENGINE` is `lockstep` or `threads`.
    pub engine: Engine,
    /// Number of processes among which devices are sharded: 1, or that of an MPI job.
    pub processes: usize,
    /// Maximum number of devices of a mesh, `PALLAS_DEVICES`; `None` if it is not limited.
    pub devices: Option<usize>,
    /// True if arrays may be sharded among devices: `PALLAS_SPMD` is `1`, the default, or `0`.
    pub spmd: bool,
    /// Location of compiled kernels on disk, and which processes write them.
    pub cache: DiskCache,
    /// Time that a process waits in a collective for other processes, `PALLAS_DEADLINE_MS`; one minute if that is not
    /// set. Devices in one process need no such limit.
    pub deadline: Duration,
    /// Other variables `PALLAS_*` of the environment, by name.
    pub flags: BTreeMap<String, String>,
    /// Versions of this crate, of its sources and of the kernel language.
    pub versions: [String; 3],
}

impl StartupConfig {
    /// Reads the configuration from the environment.
    ///
    /// # Errors
    /// [`Error::Environment`] for a variable with a value that is not allowed.
    pub fn from_env() -> Result<StartupConfig> {
        let text = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let wrong = |variable, value: &str, allowed| Error::Environment { variable, value: value.into(), allowed };
        let engine = match text(ENGINE_VARIABLE).as_deref() {
            None | Some("" | "lockstep") => Engine::Lockstep,
            Some("threads") => Engine::Threads,
            Some(value) => return Err(wrong(ENGINE_VARIABLE, value, "lockstep, threads")),
        };
        let spmd = match text(SPMD_VARIABLE).as_deref() {
            None | Some("" | "1") => true,
            Some("0") => false,
            Some(value) => return Err(wrong(SPMD_VARIABLE, value, "0, 1")),
        };
        let devices = match text(DEVICES_VARIABLE).as_deref() {
            None | Some("") => None,
            Some(value) => match value.parse() {
                Ok(count) if count > 0 => Some(count),
                _ => return Err(wrong(DEVICES_VARIABLE, value, "a number of devices, at least 1")),
            },
        };
        let deadline = match text(DEADLINE_VARIABLE).as_deref() {
            None | Some("") => Duration::from_secs(60),
            Some(value) => match value.parse() {
                Ok(milliseconds) if milliseconds > 0 => Duration::from_millis(milliseconds),
                _ => return Err(wrong(DEADLINE_VARIABLE, value, "a number of milliseconds, at least 1")),
            },
        };
        let backend = text(BACKEND_VARIABLE).unwrap_or_else(|| "best".into());
        if parse_device_name(&backend).is_none() {
            return Err(wrong(BACKEND_VARIABLE, &backend, DEVICE_NAMES));
        }
        let known = [BACKEND_VARIABLE, ENGINE_VARIABLE, SPMD_VARIABLE, DEVICES_VARIABLE, DEADLINE_VARIABLE];
        let flags = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok()?;
            let is_flag = name.starts_with("PALLAS_") && !known.contains(&&name[..]);
            is_flag.then(|| (name, value.to_string_lossy().into_owned()))
        });
        Ok(StartupConfig {
            backend,
            engine,
            processes: 1,
            devices,
            spmd,
            cache: disk::chosen_or_env_cache()?,
            deadline,
            flags: flags.collect(),
            versions: [env!("CARGO_PKG_VERSION"), env!("PALLAS_SOURCES"), pallas_ir::VERSION].map(String::from),
        })
    }

    /// Fixes the configuration of the process.
    ///
    /// # Errors
    /// [`Error::Environment`] for a backend that names no device. [`Error::Settled`] if another configuration is fixed:
    /// it names the first use and its line. [`Error::File`] for a cache folder that others can write to.
    /// [`Error::Unsupported`] for [`Engine::Mpi`] without `distributed::initialize`.
    #[track_caller]
    pub fn apply(self) -> Result<()> {
        if parse_device_name(&self.backend).is_none() {
            let (variable, value) = ("StartupConfig::backend", self.backend);
            return Err(Error::Environment { variable, value, allowed: DEVICE_NAMES });
        }
        first_use::apply_config(self, std::panic::Location::caller())
    }
}

/// Writes one line for each choice.
impl fmt::Display for StartupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StartupConfig { backend, engine, processes, devices, spmd, cache, deadline, flags, versions } = self;
        writeln!(f, "backend: {backend}")?;
        writeln!(f, "engine: {engine:?}, {processes} process{}", if *processes == 1 { "" } else { "es" })?;
        writeln!(f, "devices: {}", devices.map_or("not limited".into(), |count| count.to_string()))?;
        writeln!(f, "spmd: {}", if *spmd { "on" } else { "off" })?;
        writeln!(f, "cache: {cache}")?;
        writeln!(f, "deadline: {deadline:?}")?;
        for (name, value) in flags {
            writeln!(f, "{name}={value}")?;
        }
        let [own, sources, ir] = versions;
        write!(f, "versions: pallas-rt {own} of sources {sources}, kernel language {ir}")
    }
}
