//! The fixed configuration of the process, and the use that fixed it.
use super::Engine;
use super::environment::StartupConfig;
use crate::disk;
use crate::error::{Error, Result};
use std::panic::Location;
use std::sync::OnceLock;

/// The startup configuration, which no longer changes, and a description of the first use, which fixed it, with its
/// line.
struct FrozenConfig {
    config: StartupConfig,
    by: String,
}

/// The fixed configuration; set once.
static FROZEN_CONFIG: OnceLock<FrozenConfig> = OnceLock::new();

const CONFIG_DESCRIPTION: &str = "the startup configuration";

/// Error of a use that needs another configuration than the fixed one.
fn already_frozen_error(fixed: &FrozenConfig) -> Error {
    Error::Settled { what: CONFIG_DESCRIPTION, by: format!("the first use: {}", fixed.by) }
}

/// Function that chooses the disk cache: `disk::choose_cache`, or `disk::choose_cache_unchecked` for the environment's.
type CacheChooser = fn(&disk::DiskCache, &str) -> Result<()>;

/// Makes the configuration final if none is, so that it never changes again, and returns the final one. `choose_cache`
/// sets the disk cache; `first_use` describes the use for messages.
fn freeze_config(
    config: StartupConfig,
    first_use: String,
    choose_cache: CacheChooser,
) -> Result<&'static FrozenConfig> {
    choose_cache(&config.cache, &first_use)?;
    Ok(FROZEN_CONFIG.get_or_init(|| {
        warn_of_misspelled_variables(&config);
        FrozenConfig { config, by: first_use }
    }))
}

/// Warns of environment variables that are ignored, though their names resemble those of this crate.
fn warn_of_misspelled_variables(config: &StartupConfig) {
    for name in config.flags.keys() {
        if let Some(meant) = super::misspelled_variables::find_meant_variable(name) {
            log::warn!("`{name}` is ignored; help: the variable is `{meant}`");
        }
    }
}

/// Makes this configuration final, for a call at `at`; see [`StartupConfig::apply`].
pub(super) fn apply_config(config: StartupConfig, at: &Location<'_>) -> Result<()> {
    if config.engine == Engine::Mpi && FROZEN_CONFIG.get().is_none_or(|fixed| fixed.config.engine != Engine::Mpi) {
        let what = "MPI job that this call could join".to_string();
        let help = "call `distributed::initialize`, which chooses the engine";
        return Err(Error::Unsupported { what, device: "this process".into(), help });
    }
    freeze_exact_config(config, format!("`StartupConfig::apply` at {at}"))
}

/// Makes this configuration final, or checks that it is the one that already is; `first_use` describes the use for
/// messages.
///
/// # Errors
/// A different configuration is fixed, or the cache's folder cannot be used.
pub fn freeze_exact_config(config: StartupConfig, first_use: String) -> Result<()> {
    if let Some(fixed) = FROZEN_CONFIG.get() {
        return if fixed.config == config { Ok(()) } else { Err(already_frozen_error(fixed)) };
    }
    let fixed = freeze_config(config.clone(), first_use, disk::choose_cache)?;
    if fixed.config == config { Ok(()) } else { Err(already_frozen_error(fixed)) }
}

/// Makes the environment's configuration final, if none is; `use_name` is the use at source position `at`.
pub fn freeze_on_first_use(use_name: &str, at: &Location<'_>) -> Result<()> {
    if FROZEN_CONFIG.get().is_none() {
        freeze_config(StartupConfig::from_env()?, format!("{use_name} at {at}"), disk::choose_cache_unchecked)?;
    }
    Ok(())
}

/// Makes the environment's configuration final, if none is; `describe_use` describes the use for messages.
pub fn freeze_on_described_use(describe_use: impl FnOnce() -> String) -> Result<()> {
    if FROZEN_CONFIG.get().is_none() {
        freeze_config(StartupConfig::from_env()?, describe_use(), disk::choose_cache_unchecked)?;
    }
    Ok(())
}

/// Returns the final configuration; if none is final, this use makes the environment's so.
///
/// # Errors
/// A variable of the environment has an invalid value.
pub fn get_or_freeze_config(use_name: &str, at: &Location<'_>) -> Result<&'static StartupConfig> {
    freeze_on_first_use(use_name, at)?;
    Ok(&FROZEN_CONFIG.get().expect("it has been fixed").config)
}

/// Returns the description of the first use, which fixed the startup configuration; `None` before it.
#[cfg(feature = "mpi")]
pub fn first_use_description() -> Option<&'static str> {
    FROZEN_CONFIG.get().map(|fixed| &fixed.by[..])
}

/// The engine of the process; before the first use the default.
pub fn engine() -> Engine {
    FROZEN_CONFIG.get().map_or(Engine::default(), |fixed| fixed.config.engine)
}

/// The configuration of the process; `None` before the first use.
pub fn startup_config() -> Option<&'static StartupConfig> {
    FROZEN_CONFIG.get().map(|fixed| &fixed.config)
}

/// Fixes a configuration with SPMD (arrays may be sharded among devices), if none is fixed.
///
/// # Errors
/// [`Error::Settled`] if SPMD was off at the first use, such as an array made before: it names that and its line.
#[track_caller]
pub fn enable_spmd() -> Result<()> {
    let at = Location::caller();
    if FROZEN_CONFIG.get().is_none() {
        freeze_config(
            StartupConfig { spmd: true, ..StartupConfig::from_env()? },
            format!("`enable_spmd` at {at}"),
            disk::choose_cache_unchecked,
        )?;
    }
    require_spmd(at, usize::MAX)
}

/// Checks that arrays may be sharded among this number of devices (`usize::MAX`: any number).
///
/// # Errors
/// SPMD is off, or a mesh has more devices than the configuration allows.
pub fn require_spmd(at: &Location<'_>, devices: usize) -> Result<()> {
    freeze_on_first_use("a mesh", at)?;
    let fixed = FROZEN_CONFIG.get().expect("it has been fixed");
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
