//! Entries that outlive the process: lowered kernels, shaders, the driver's binaries, tuned choices.
//!
//! An entry is a file named by the hash of everything it follows from ([`key`]), so nothing is ever looked up that a
//! changed kernel, device or version of this crate would make differently. [`store`] reads and writes the files, those alone
//! that this user's processes wrote ([`own`]); [`policy`] says where they lie, and that no longer changes after the first
//! kernel.
//!
//! Whoever reads an entry still checks what memory safety depends on: tile IR is verified, sizes and places are held against
//! the kernel. Numbers in it, a shader's text and a driver's binary are believed by the tag alone.
mod key;
mod own;
mod policy;
mod store;

pub(crate) use key::Key;
pub use policy::{DiskCache, disk_cache, set_disk_cache};
pub(crate) use policy::{settle, store};
#[cfg(test)]
pub(crate) use store::Store;
pub(crate) use store::{HITS, REMOVED, WRITES};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// An entry as a value, if it is there and `read` takes it; an entry it does not take is deleted.
pub(crate) fn load<T: DeserializeOwned, R>(key: &Key, read: impl FnOnce(T) -> Option<R>) -> Option<R> {
    store()?.load(key, read)
}

/// Writes an entry. A disk that takes no more is no reason to fail: the next process computes it again.
pub(crate) fn save<T: Serialize>(key: &Key, value: impl FnOnce() -> T) {
    let Some(store) = store() else { return };
    if let Ok(bytes) = serde_json::to_vec(&value()) {
        store.write(key, &bytes);
    }
}
