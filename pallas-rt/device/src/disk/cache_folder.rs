//! Choice of the disk cache's folder, made once: by the program, by the environment, or as the user's cache folder.
use super::store::{AllowedWriters, Store};
use crate::error::{DisplayedBytes, Error, Result};
use serde::Serialize;
use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::OnceLock;

const FOLDER_VARIABLE: &str = "PALLAS_CACHE_DIR";
const LIMIT_VARIABLE: &str = "PALLAS_CACHE_MIB";
const POLICY_VARIABLE: &str = "PALLAS_CACHE_POLICY";
/// Default maximum size of the disk cache's folder, in bytes.
const DEFAULT_FOLDER_LIMIT_BYTES: u64 = 256 << 20;

/// Location of compiled kernels and tuning results that outlive the process, and who writes there.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub enum DiskCache {
    /// No disk cache.
    Off,
    /// A folder that any number of processes read and write at once. It is created, for this user alone, when the first
    /// entry is written. A folder of another user, or one that others may write to, is not used, since entries become
    /// machine code.
    At {
        /// Path of the folder.
        folder: PathBuf,
        /// Maximum size in bytes; beyond it the entries that were not used for longest are deleted.
        limit: u64,
    },
    /// A folder as for [`At`](DiskCache::At), which one process writes: the first that opens it. Others only read it,
    /// which each logs once.
    SingleWriter {
        /// Path of the folder.
        folder: PathBuf,
        /// Maximum size in bytes, as for [`At`](DiskCache::At).
        limit: u64,
    },
    /// A folder as for [`At`](DiskCache::At), which this process only reads.
    Reader {
        /// Path of the folder.
        folder: PathBuf,
        /// Size in bytes of the largest entry that is read.
        limit: u64,
    },
}

impl fmt::Display for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskCache::Off => f.write_str("off"),
            DiskCache::At { folder, limit } => write!(f, "{}, {}", folder.display(), DisplayedBytes(*limit)),
            DiskCache::SingleWriter { folder, limit } => {
                write!(f, "{}, {}, a single writer", folder.display(), DisplayedBytes(*limit))
            }
            DiskCache::Reader { folder, .. } => write!(f, "{}, read only", folder.display()),
        }
    }
}

impl DiskCache {
    /// Reads the choice from the environment: `PALLAS_CACHE_DIR` is a folder or `off`, `PALLAS_CACHE_MIB` the limit in
    /// MiB, `PALLAS_CACHE_POLICY` is `shared`, `single_writer` or `read_only`. The defaults are `pallas` in the user's
    /// cache folder (`~/.cache` on Linux), 256 MiB and `shared`.
    ///
    /// # Errors
    /// [`Error::Environment`] for a limit that is no number, or another policy.
    pub fn from_env() -> Result<DiskCache> {
        let folder = match std::env::var_os(FOLDER_VARIABLE) {
            Some(value) if value == "off" => return Ok(DiskCache::Off),
            Some(value) if !value.is_empty() => Some(PathBuf::from(value)),
            _ => dirs::cache_dir().map(|folder| folder.join("pallas")),
        };
        let limit = match std::env::var(LIMIT_VARIABLE) {
            Err(_) => DEFAULT_FOLDER_LIMIT_BYTES,
            Ok(value) => match value.parse::<u64>() {
                Ok(mib) => mib.saturating_mul(1 << 20),
                Err(_) => {
                    return Err(Error::Environment { variable: LIMIT_VARIABLE, value, allowed: "a number of MiB" });
                }
            },
        };
        let Some(folder) = folder else { return Ok(DiskCache::Off) };
        match std::env::var(POLICY_VARIABLE).as_deref() {
            Err(_) | Ok("" | "shared") => Ok(DiskCache::At { folder, limit }),
            Ok("single_writer") => Ok(DiskCache::SingleWriter { folder, limit }),
            Ok("read_only") => Ok(DiskCache::Reader { folder, limit }),
            Ok(value) => {
                let allowed = "shared, single_writer, read_only";
                Err(Error::Environment { variable: POLICY_VARIABLE, value: value.into(), allowed })
            }
        }
    }

    /// Returns the same folder for a process that only reads it.
    #[cfg(feature = "mpi")]
    #[doc(hidden)]
    pub fn read_only(self) -> DiskCache {
        match self {
            DiskCache::Off => DiskCache::Off,
            DiskCache::At { folder, limit }
            | DiskCache::SingleWriter { folder, limit }
            | DiskCache::Reader { folder, limit } => DiskCache::Reader { folder, limit },
        }
    }

    /// Opens the folder, unless the cache is off.
    fn open_store(&self) -> Option<Store> {
        let (folder, limit, writers) = match self {
            DiskCache::Off => return None,
            DiskCache::At { folder, limit } => (folder, limit, AllowedWriters::All),
            DiskCache::SingleWriter { folder, limit } => (folder, limit, AllowedWriters::One),
            DiskCache::Reader { folder, limit } => (folder, limit, AllowedWriters::Others),
        };
        Some(Store::with_writers(writers, folder.clone(), *limit))
    }

    /// Path of the folder, unless the cache is off.
    fn folder(&self) -> Option<&PathBuf> {
        match self {
            DiskCache::Off => None,
            DiskCache::At { folder, .. }
            | DiskCache::SingleWriter { folder, .. }
            | DiskCache::Reader { folder, .. } => Some(folder),
        }
    }
}

/// The choice for this process, and which call or use made it.
struct ChosenCache {
    cache: DiskCache,
    store: Option<Store>,
    by: String,
}

/// The disk cache of this process, with the call or use that chose it; set once.
static CHOSEN_CACHE: OnceLock<ChosenCache> = OnceLock::new();

/// Returns the process' choice of the disk cache; if there is none yet it is `cache`, and `chosen_by` names the call or
/// use that made it.
fn get_or_choose_cache(cache: DiskCache, chosen_by: String) -> &'static ChosenCache {
    CHOSEN_CACHE.get_or_init(|| {
        let store = cache.open_store();
        ChosenCache { cache, store, by: chosen_by }
    })
}

/// Decides where compiled kernels and tuned choices are kept, before the first array is made or the first kernel is
/// called; else [`DiskCache::from_env`] does. It is a part of the [startup
/// configuration](crate::startup::StartupConfig).
///
/// # Errors
/// [`Error::Settled`] if something else was chosen before; it names that call, or the first use. [`Error::File`] for a
/// folder of another user, or one that others may write to.
#[track_caller]
pub fn set_disk_cache(cache: DiskCache) -> Result<()> {
    choose_cache(&cache, &format!("`set_disk_cache` at {}", Location::caller()))
}

/// Chooses the disk cache as [`set_disk_cache`] does; `chosen_by` names the call or use, for messages.
pub fn choose_cache(cache: &DiskCache, chosen_by: &str) -> Result<()> {
    if let Some(folder) = cache.folder()
        && folder.exists()
        && !super::authentication::is_writable_only_by_user(folder)
        && CHOSEN_CACHE.get().is_none()
    {
        let message = "others can write to this folder, so kernels read from it could be anybody's: \
                       choose a folder of this user's own, or `chmod go-w` it";
        return Err(Error::File { path: folder.display().to_string(), message: message.into() });
    }
    choose_cache_unchecked(cache, chosen_by)
}

/// Chooses the disk cache as [`choose_cache`] does, but accepts an unusable folder, as for a choice of the environment;
/// `chosen_by` names the call or use, for messages.
pub fn choose_cache_unchecked(cache: &DiskCache, chosen_by: &str) -> Result<()> {
    let now = get_or_choose_cache(cache.clone(), chosen_by.to_string());
    if now.cache == *cache {
        return Ok(());
    }
    Err(Error::Settled { what: "where compiled kernels are kept on disk", by: now.by.clone() })
}

/// Returns the chosen cache, or else that of the environment.
pub fn chosen_or_env_cache() -> Result<DiskCache> {
    disk_cache().map_or_else(DiskCache::from_env, Ok)
}

/// Returns the location of compiled kernels and tuning results, if it is chosen.
pub fn disk_cache() -> Option<DiskCache> {
    CHOSEN_CACHE.get().map(|settled| settled.cache.clone())
}

/// Chooses the environment's cache if none is chosen yet; `chosen_by` returns the name of the first use.
pub(super) fn choose_env_cache(chosen_by: impl FnOnce() -> String) -> Result<()> {
    if CHOSEN_CACHE.get().is_none() {
        get_or_choose_cache(DiskCache::from_env()?, chosen_by());
    }
    Ok(())
}

/// Returns the entries on disk, unless the cache is off.
pub fn disk_store() -> Option<&'static Store> {
    choose_env_cache(|| "the first compiled kernel".into()).ok()?;
    CHOSEN_CACHE.get()?.store.as_ref()
}
