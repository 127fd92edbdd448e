//! The fixed configuration of the process, and the use that fixed it.
use super::{Engine, StartupConfig};
use crate::disk;
use crate::error::{Error, Result};
use std::panic::Location;
use std::sync::OnceLock;

/// The configuration, and a description of the first use with its line.
struct Fixed {
    config: StartupConfig,
    by: String,
}

/// The fixed configuration; set once.
static FIXED: OnceLock<Fixed> = OnceLock::new();

const WHAT: &str = "the startup configuration";

/// Error of a use that needs another configuration than the fixed one.
fn refused(fixed: &Fixed) -> Error {
    Error::Settled { what: WHAT, by: format!("the first use: {}", fixed.by) }
}

/// Function that chooses the disk cache: `disk::decide` or `disk::agree`.
type Decide = fn(&disk::DiskCache, &str) -> Result<()>;

/// Fixes the configuration if none is fixed; returns the fixed one.
fn fix(config: StartupConfig, by: String, decide: Decide) -> Result<&'static Fixed> {
    decide(&config.cache, &by)?;
    Ok(FIXED.get_or_init(|| {
        tell_misspelled(&config);
        Fixed { config, by }
    }))
}

/// Warns of environment variables that are ignored, though their names resemble those of this crate.
fn tell_misspelled(config: &StartupConfig) {
    for name in config.flags.keys() {
        if let Some(meant) = super::variables::meant(name) {
            log::warn!("`{name}` is ignored; help: the variable is `{meant}`");
        }
    }
}

/// Fixes this configuration; see [`StartupConfig::apply`].
pub(super) fn apply(config: StartupConfig, at: &Location<'_>) -> Result<()> {
    if config.engine == Engine::Mpi && FIXED.get().is_none_or(|fixed| fixed.config.engine != Engine::Mpi) {
        let what = "MPI job that this call could join".to_string();
        let help = "call `distributed::initialize`, which chooses the engine";
        return Err(Error::Unsupported { what, device: "this process".into(), help });
    }
    fix_exactly(config, format!("`StartupConfig::apply` at {at}"))
}

/// Fixes this configuration, or checks that it is the fixed one.
///
/// # Errors
/// A different configuration is fixed, or the cache's folder cannot be used.
pub fn fix_exactly(config: StartupConfig, by: String) -> Result<()> {
    if let Some(fixed) = FIXED.get() {
        return if fixed.config == config { Ok(()) } else { Err(refused(fixed)) };
    }
    let fixed = fix(config.clone(), by, disk::decide)?;
    if fixed.config == config { Ok(()) } else { Err(refused(fixed)) }
}

/// Fixes the environment's configuration, if none is fixed; `what` is the use at source position `at`.
pub fn first_use(what: &str, at: &Location<'_>) -> Result<()> {
    if FIXED.get().is_none() {
        fix(StartupConfig::from_env()?, format!("{what} at {at}"), disk::agree)?;
    }
    Ok(())
}

/// Fixes the environment's configuration, if none is fixed; `by` describes the use.
pub fn first_use_by(by: impl FnOnce() -> String) -> Result<()> {
    if FIXED.get().is_none() {
        fix(StartupConfig::from_env()?, by(), disk::agree)?;
    }
    Ok(())
}

/// The configuration; this use fixes the environment's if none is fixed.
///
/// # Errors
/// A variable of the environment has an invalid value.
pub fn current(what: &str, at: &Location<'_>) -> Result<&'static StartupConfig> {
    first_use(what, at)?;
    Ok(&FIXED.get().expect("it has been fixed").config)
}

/// Description of the first use, which fixed the configuration.
#[cfg(feature = "mpi")]
pub fn fixed_by() -> Option<&'static str> {
    FIXED.get().map(|fixed| &fixed.by[..])
}

/// The engine of the process; before the first use the default.
pub fn engine() -> Engine {
    FIXED.get().map_or(Engine::default(), |fixed| fixed.config.engine)
}

/// The configuration of the process; `None` before the first use.
pub fn startup_config() -> Option<&'static StartupConfig> {
    FIXED.get().map(|fixed| &fixed.config)
}

/// Fixes a configuration with SPMD (arrays may be sharded among devices), if none is fixed.
///
/// # Errors
/// [`Error::Settled`] if SPMD was off at the first use, such as an array made before: it names that and its line.
#[track_caller]
pub fn enable_spmd() -> Result<()> {
    let at = Location::caller();
    if FIXED.get().is_none() {
        fix(StartupConfig { spmd: true, ..StartupConfig::from_env()? }, format!("`enable_spmd` at {at}"), disk::agree)?;
    }
    require_spmd(at, usize::MAX)
}

/// Checks that arrays may be sharded among this number of devices (`usize::MAX`: any number).
///
/// # Errors
/// SPMD is off, or a mesh has more devices than the configuration allows.
pub fn require_spmd(at: &Location<'_>, devices: usize) -> Result<()> {
    first_use("a mesh", at)?;
    let fixed = FIXED.get().expect("it has been fixed");
    if !fixed.config.spmd {
        let by = format!("the first use, with SPMD off: {}", fixed.by);
        return Err(Error::Settled { what: "that arrays are not sharded among devices", by });
    }
    match fixed.config.devices {
        Some(limit) if devices != usize::MAX && devices > limit => Err(Error::Limit {
            what: "devices of a mesh".into(),
            asked: devices as u64,
            limit: limit as u64,
            device: "this process".into(),
            help: "set `devices` of `StartupConfig`, or `PALLAS_DEVICES`, before the first use",
        }),
        _ => Ok(()),
    }
}
