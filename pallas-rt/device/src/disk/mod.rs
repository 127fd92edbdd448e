//! Entries that outlive the process: lowered kernels, shaders, the driver's binaries, tuning results.
//!
//! An entry is a file whose name is the hash of everything that determines its contents ([`entry_name`]), so a changed
//! kernel, device or version of this crate never finds an old entry. [`store`] reads and writes the files, and reads
//! only those that this user's processes wrote ([`authentication`]). [`cache_folder`] determines their folder, which
//! cannot change after the first kernel.
//!
//! The reader of an entry still checks what memory safety depends on: tile IR is verified, and sizes and bindings are
//! compared with the kernel. Other numbers in it, a shader's text and a driver's binary are trusted because of the tag
//! alone.
//!
//! - **The disk cache** believes this user's own processes alone. Files and folder belong to this user, and others may
//!   not write to them; only plain files are opened, so that a pipe or a device is not waited for. Each entry carries
//!   an HMAC of its name and contents by a secret of its folder (`secret`, 32 random bytes that only this user can
//!   read): an entry that was changed, renamed, or copied from another folder is deleted and made again. Who can read
//!   the secret is this user, and could as well change the program. Even so an entry is verified and held against the
//!   kernel that was traced (operands, dimensions, grid, bindings), so that a forged one gives other numbers, but
//!   touches no other memory. A shader's text and a driver's binary are believed by their tag alone.
mod authentication;
mod cache_folder;
mod entry_name;
mod store;

pub use cache_folder::{DiskCache, disk_cache, set_disk_cache};
pub use cache_folder::{choose_cache, choose_cache_unchecked, chosen_or_env_cache, disk_store};
pub use entry_name::EntryKey;
pub use store::Store;
pub use store::{DISK_HITS, DISK_MISSES, DISK_REMOVALS, DISK_WRITES};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads an entry as a value if it exists and `read` accepts it; deletes an entry that is not accepted.
pub fn load<T: DeserializeOwned, R>(key: &EntryKey, read: impl FnOnce(T) -> Option<R>) -> Option<R> {
    disk_store()?.load(key, read)
}

/// Writes an entry. A failure is not an error: the next process computes the value again.
pub fn save<T: Serialize>(key: &EntryKey, value: impl FnOnce() -> T) {
    let Some(store) = disk_store() else { return };
    if let Ok(bytes) = serde_json::to_vec(&value()) {
        store.write(key, &bytes);
    }
}
