//! The folder of entries, decided once: by the program, by the environment, or as the user's cache folder.
use super::store::Store;
use crate::error::{Error, Result};
use std::panic::Location;
use std::path::PathBuf;
use std::sync::OnceLock;

const FOLDER: &str = "PALLAS_CACHE_DIR";
const LIMIT: &str = "PALLAS_CACHE_MIB";
/// Bytes of entries kept, unless told otherwise.
const KEPT: u64 = 256 << 20;

/// The place of compiled kernels and tuning results that outlive the process.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DiskCache {
    /// Nowhere.
    Off,
    /// In a folder, which is created for this user alone when the first entry is written. A folder of another user, or
    /// one that others may write to, is not used, since entries become machine code.
    At {
        /// The folder.
        folder: PathBuf,
        /// Bytes; beyond them the entries that were not used for longest are deleted.
        limit: u64,
    },
}

impl DiskCache {
    /// The choice of the environment: `PALLAS_CACHE_DIR` is a folder or `off`, `PALLAS_CACHE_MIB` the limit in MiB. The
    /// defaults are `pallas` in the user's cache folder (`~/.cache` on Linux) and 256 MiB.
    ///
    /// # Errors
    /// [`Error::Environment`] for a limit that is no number.
    pub fn from_env() -> Result<DiskCache> {
        let folder = match std::env::var_os(FOLDER) {
            Some(value) if value == "off" => return Ok(DiskCache::Off),
            Some(value) if !value.is_empty() => Some(PathBuf::from(value)),
            _ => dirs::cache_dir().map(|folder| folder.join("pallas")),
        };
        let limit = match std::env::var(LIMIT) {
            Err(_) => KEPT,
            Ok(value) => match value.parse::<u64>() {
                Ok(mib) => mib.saturating_mul(1 << 20),
                Err(_) => return Err(Error::Environment { variable: LIMIT, value, allowed: "a number of MiB" }),
            },
        };
        Ok(folder.map_or(DiskCache::Off, |folder| DiskCache::At { folder, limit }))
    }
}

/// The decision, and its origin.
struct Settled {
    cache: DiskCache,
    store: Option<Store>,
    by: String,
}

static SETTLED: OnceLock<Settled> = OnceLock::new();

fn settled(cache: DiskCache, by: String) -> &'static Settled {
    SETTLED.get_or_init(|| {
        let store = match &cache {
            DiskCache::Off => None,
            DiskCache::At { folder, limit } => Some(Store::new(folder.clone(), *limit)),
        };
        Settled { cache, store, by }
    })
}

/// Decides where compiled kernels and tuned choices are kept, before the first kernel is called; else
/// [`DiskCache::from_env`] does.
///
/// # Errors
/// [`Error::Settled`] once something else was decided; it names the call, or the kernel that was called first.
/// [`Error::File`] for a folder of another user, or one that others may write to.
#[track_caller]
pub fn set_disk_cache(cache: DiskCache) -> Result<()> {
    if let DiskCache::At { folder, .. } = &cache
        && folder.exists()
        && !super::own::is_private(folder)
    {
        let message = "others can write to this folder, so kernels read from it could be anybody's: \
                       choose a folder of this user's own, or `chmod go-w` it";
        return Err(Error::File { path: folder.display().to_string(), message: message.into() });
    }
    let now = settled(cache.clone(), format!("`set_disk_cache` at {}", Location::caller()));
    if now.cache == cache {
        return Ok(());
    }
    Err(Error::Settled { what: "where compiled kernels are kept on disk", by: now.by.clone() })
}

/// Returns the place of compiled kernels and tuning results, if it is decided.
pub fn disk_cache() -> Option<DiskCache> {
    SETTLED.get().map(|settled| settled.cache.clone())
}

/// Takes the environment's word, if nothing is decided yet; `by` names the first use.
pub(crate) fn settle(by: impl FnOnce() -> String) -> Result<()> {
    if SETTLED.get().is_none() {
        settled(DiskCache::from_env()?, by());
    }
    Ok(())
}

/// The entries, unless they are off.
pub(crate) fn store() -> Option<&'static Store> {
    settle(|| "the first compiled kernel".into()).ok()?;
    SETTLED.get()?.store.as_ref()
}
