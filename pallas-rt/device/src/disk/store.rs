//! The disk cache's entries: files that any number of processes read and write at once.
//!
//! A file is written under another name and then renamed, so that readers see the whole file or none. Its first line is
//! the tag of the rest ([`authentication`]): a file that is incomplete after a crash, or was changed, is deleted and
//! made again. No failure here is an error for the caller: an entry that cannot be read is recomputed, one that cannot
//! be written is not kept. A folder that belongs to another user, or that others may write to, is not used.
use super::authentication::{self, Secret};
use super::entry_name::EntryKey;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Once, OnceLock};
use std::time::{Duration, SystemTime};

/// Number of bytes before an entry's contents: the tag and a line break.
const TAG_LINE_BYTES: u64 = 65;
/// Prefix of the name of a file that is still being written.
const UNFINISHED_PREFIX: &str = "unfinished-";
/// Age after which an unfinished file is deleted: its writer was killed.
const ABANDONED_FILE_AGE: Duration = Duration::from_secs(3600);
/// Time within which a used entry is not marked as used again, which saves writes to the disk.
const USE_MARK_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Number of entries that this process looked for and did not find.
pub static DISK_MISSES: AtomicU64 = AtomicU64::new(0);
/// Number of entries that this process used.
pub static DISK_HITS: AtomicU64 = AtomicU64::new(0);
/// Number of entries that this process wrote.
pub static DISK_WRITES: AtomicU64 = AtomicU64::new(0);
/// Number of entries that this process deleted.
pub static DISK_REMOVALS: AtomicU64 = AtomicU64::new(0);

/// Name of the file that a single writer keeps locked.
const WRITER_LOCK_FILE: &str = "writer";

/// Processes that may write the entries of a folder: all, the first that opens it, or only others than this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllowedWriters {
    /// Any number of processes, at once.
    All,
    /// The first process that opens the folder.
    One,
    /// Other processes, not this one.
    Others,
}

/// A folder of the disk cache, with an entry in each file, a limit of its size, and a rule for who may write.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    limit: u64,
    writers: AllowedWriters,
    /// The single writer's locked file if this process is the writer; unset before the first attempt to write.
    writer: OnceLock<Option<File>>,
    /// The secret by which entries are signed; set at the first use.
    secret: OnceLock<Secret>,
    /// Bytes that may still be written before the size of the folder is measured again.
    unmeasured: AtomicU64,
}

impl Store {
    /// Opens a folder that every process may write to; `limit` is its maximum size in bytes.
    pub fn new(folder: PathBuf, limit: u64) -> Store {
        Store::with_writers(AllowedWriters::All, folder, limit)
    }

    /// Opens a folder that these processes write to; `limit` is its maximum size in bytes.
    pub fn with_writers(writers: AllowedWriters, folder: PathBuf, limit: u64) -> Store {
        let (writer, secret) = (OnceLock::new(), OnceLock::new());
        Store { folder, limit, writers, writer, secret, unmeasured: AtomicU64::new(0) }
    }

    /// Returns true if this process may change the folder. A second process that wants to be its single writer is told
    /// once that it is not.
    fn may_write(&self) -> bool {
        match self.writers {
            AllowedWriters::All => true,
            AllowedWriters::Others => false,
            AllowedWriters::One => self.writer.get_or_init(|| self.lock_writer_file()).is_some(),
        }
    }

    /// Locks the file of the single writer until the process ends; `None` if another process holds it.
    fn lock_writer_file(&self) -> Option<File> {
        let path = self.folder.join(WRITER_LOCK_FILE);
        let _ = authentication::make_folder(&self.folder);
        let made = authentication::create_private_file(&path).ok();
        let file = made.or_else(|| authentication::open_private_file(&path, File::options().write(true)))?;
        match file.try_lock() {
            Ok(()) => Some(file),
            Err(_) => {
                log::info!("another process writes the cache {}: this one only reads it", self.folder.display());
                None
            }
        }
    }

    fn path(&self, key: &EntryKey) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// The folder's secret, if nobody else can write to the folder; `make` returns or creates it.
    fn find_secret(&self, make: impl FnOnce() -> Option<Secret>) -> Option<&Secret> {
        if !authentication::is_writable_only_by_user(&self.folder) {
            return None;
        }
        if self.secret.get().is_none() {
            let found = Secret::read(&self.folder).or_else(make)?;
            self.secret.get_or_init(|| found);
        }
        self.secret.get()
    }

    /// Returns the contents of an entry, if it exists, is complete, and was written by this user.
    pub fn read(&self, key: &EntryKey) -> Option<Vec<u8>> {
        let secret = self.find_secret(|| None)?;
        let file = authentication::open_private_file(&self.path(key), File::options().read(true))?;
        let mut bytes = vec![];
        // No entry is larger than the limit.
        file.take(self.limit.saturating_add(TAG_LINE_BYTES)).read_to_end(&mut bytes).ok()?;
        let end = bytes.iter().position(|&b| b == b'\n');
        let body = end.map_or(0, |end| end + 1);
        if end.is_some_and(|end| bytes[..end] == *secret.tag(&key.file_name(), &bytes[body..]).as_bytes()) {
            bytes.drain(..body);
            return Some(bytes);
        }
        self.remove(key);
        None
    }

    /// Returns an entry as a value, if it exists and `read` accepts it. An entry that is not accepted is deleted.
    pub fn load<T: DeserializeOwned, R>(&self, key: &EntryKey, read: impl FnOnce(T) -> Option<R>) -> Option<R> {
        let bytes = self.read(key);
        let value = bytes.as_ref().and_then(|bytes| serde_json::from_slice(bytes).ok()).and_then(read);
        match (&value, bytes) {
            (Some(_), _) => self.record_hit(key),
            (None, bytes) => {
                DISK_MISSES.fetch_add(1, Relaxed);
                if bytes.is_some() {
                    self.remove(key);
                }
            }
        }
        value
    }

    /// Counts a use of an entry, and marks it as recently used for eviction.
    pub fn record_hit(&self, key: &EntryKey) {
        DISK_HITS.fetch_add(1, Relaxed);
        let path = self.path(key);
        if time_since_use(&path).is_some_and(|age| age > USE_MARK_INTERVAL)
            && self.may_write()
            && let Some(file) = authentication::open_private_file(&path, File::options().append(true))
        {
            let _ = file.set_modified(SystemTime::now());
        }
    }

    /// Deletes an entry that is invalid or useless.
    pub fn remove(&self, key: &EntryKey) {
        if self.may_write() && fs::remove_file(self.path(key)).is_ok() {
            DISK_REMOVALS.fetch_add(1, Relaxed);
        }
    }

    /// Writes an entry, or replaces it, atomically, and evicts others if the folder exceeds its limit. Writes nothing
    /// if the entry is too large or this process may not write; failures are no errors.
    pub fn write(&self, key: &EntryKey, body: &[u8]) {
        let size = allocated_disk_bytes(body.len() as u64);
        if size > self.limit || !self.may_write() || self.try_write(key, body).is_err() {
            return;
        }
        DISK_WRITES.fetch_add(1, Relaxed);
        let left = self.unmeasured.load(Relaxed);
        self.unmeasured.store(left.saturating_sub(size), Relaxed);
        if left <= size {
            self.evict();
            self.unmeasured.store(self.limit / 16, Relaxed);
        }
    }

    /// Warns once that entries are not kept, since the folder cannot be made.
    fn warn_missing_folder(&self, error: &std::io::Error) {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            let folder = self.folder.display();
            log::warn!(
                "compiled kernels are not kept: the folder {folder} cannot be made: {error}; help: set \
                 `PALLAS_CACHE_DIR` to a folder that can, or to `off`"
            );
        });
    }

    /// Path of a new unfinished file, unique also among processes on several machines.
    fn new_unfinished_path(&self) -> PathBuf {
        static NEXT_FILE_NUMBER: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
        self.folder.join(format!(
            "{UNFINISHED_PREFIX}{}-{}-{now}",
            std::process::id(),
            NEXT_FILE_NUMBER.fetch_add(1, Relaxed)
        ))
    }

    fn try_write(&self, key: &EntryKey, body: &[u8]) -> std::io::Result<()> {
        authentication::make_folder(&self.folder).inspect_err(|error| self.warn_missing_folder(error))?;
        let secret = self.find_secret(|| Secret::read_or_create(&self.folder, &self.new_unfinished_path()));
        let secret = secret.ok_or(std::io::ErrorKind::PermissionDenied)?;
        let unfinished = self.new_unfinished_path();
        let written = authentication::create_private_file(&unfinished).and_then(|mut file| {
            file.write_all(secret.tag(&key.file_name(), body).as_bytes())?;
            file.write_all(b"\n")?;
            file.write_all(body)
        });
        let done = written.and_then(|()| fs::rename(&unfinished, self.path(key)));
        if done.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        done
    }

    /// Deletes unfinished files of killed writers, and entries not used for longest while they exceed the limit.
    fn evict(&self) {
        let Ok(files) = fs::read_dir(&self.folder) else { return };
        let mut entries: Vec<(SystemTime, u64, PathBuf)> = vec![];
        for file in files.flatten() {
            let (path, name) = (file.path(), file.file_name());
            let Ok(about) = file.metadata() else { continue };
            let Ok(modified) = about.modified() else { continue };
            let (name, numbers) = (name.to_string_lossy(), |b: u8| b.is_ascii_digit() || b == b'-');
            if name.strip_prefix(UNFINISHED_PREFIX).is_some_and(|rest| rest.bytes().all(numbers)) {
                if time_since_use(&path).is_some_and(|age| age > ABANDONED_FILE_AGE) {
                    let _ = fs::remove_file(&path);
                }
            } else if about.is_file() && EntryKey::is_entry_name(&name) {
                entries.push((modified, allocated_disk_bytes(about.len()), path));
            }
        }
        let mut total: u64 = entries.iter().map(|(_, size, _)| size).sum();
        if total <= self.limit {
            return;
        }
        entries.sort();
        for (_, size, path) in entries {
            // Some room, so that the next entry does not begin this anew.
            if total <= self.limit / 4 * 3 {
                return;
            }
            if fs::remove_file(&path).is_ok() {
                DISK_REMOVALS.fetch_add(1, Relaxed);
                total -= size;
            }
        }
    }
}

/// Disk space that a file of this length takes, in file systems with blocks of 4 KiB.
fn allocated_disk_bytes(file_bytes: u64) -> u64 {
    file_bytes.next_multiple_of(4096)
}

/// Time since a file was last written or used.
fn time_since_use(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

#[cfg(test)]
mod tests;
