//! The disk cache's entries: files that any number of processes read and write at once.
//!
//! A file is written under another name and then renamed, so that readers see the whole file or none. Its first line is
//! the tag of the rest ([`own`]): a file that is incomplete after a crash, or was changed, is deleted and made again. No
//! failure here is an error for the caller: an entry that cannot be read is recomputed, one that cannot be written is not
//! kept. A folder that belongs to another user, or that others may write to, is not used.
use super::authentication::{self, Secret};
use super::entry_name::Key;
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
const UNFINISHED: &str = "unfinished-";
/// Age after which an unfinished file is deleted: its writer was killed.
const ABANDONED_FILE_AGE: Duration = Duration::from_secs(3600);
/// Time within which a used entry is not marked as used again, which saves writes to the disk.
const USE_MARK_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Number of entries that this process looked for and did not find.
pub static MISSES: AtomicU64 = AtomicU64::new(0);
/// Number of entries that this process used.
pub static HITS: AtomicU64 = AtomicU64::new(0);
/// Number of entries that this process wrote.
pub static WRITES: AtomicU64 = AtomicU64::new(0);
/// Number of entries that this process deleted.
pub static REMOVED: AtomicU64 = AtomicU64::new(0);

/// Name of the file that a single writer keeps locked.
const WRITER_LOCK_FILE: &str = "writer";

/// Processes that write the entries of a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writers {
    /// Any number of processes, at once.
    All,
    /// The first process that opens the folder.
    One,
    /// Other processes, not this one.
    Others,
}

/// A folder of entries.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    limit: u64,
    writers: Writers,
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
        Store::with_writers(Writers::All, folder, limit)
    }

    /// Opens a folder that these processes write to; `limit` is its maximum size in bytes.
    pub fn with_writers(writers: Writers, folder: PathBuf, limit: u64) -> Store {
        let (writer, secret) = (OnceLock::new(), OnceLock::new());
        Store { folder, limit, writers, writer, secret, unmeasured: AtomicU64::new(0) }
    }

    /// Returns true if this process may change the folder. A second process that wants to be its single writer is told once
    /// that it is not.
    fn may_write(&self) -> bool {
        match self.writers {
            Writers::All => true,
            Writers::Others => false,
            Writers::One => self.writer.get_or_init(|| self.lock_writer_file()).is_some(),
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

    fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.file_name())
    }

    /// The folder's secret, if nobody else can write to the folder; `make` returns or creates it.
    fn secret(&self, make: impl FnOnce() -> Option<Secret>) -> Option<&Secret> {
        if !authentication::is_private(&self.folder) {
            return None;
        }
        if self.secret.get().is_none() {
            let found = Secret::read(&self.folder).or_else(make)?;
            self.secret.get_or_init(|| found);
        }
        self.secret.get()
    }

    /// Returns the contents of an entry, if it exists, is complete, and was written by this user.
    pub fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let secret = self.secret(|| None)?;
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
    pub fn load<T: DeserializeOwned, R>(&self, key: &Key, read: impl FnOnce(T) -> Option<R>) -> Option<R> {
        let bytes = self.read(key);
        let value = bytes.as_ref().and_then(|bytes| serde_json::from_slice(bytes).ok()).and_then(read);
        match (&value, bytes) {
            (Some(_), _) => self.record_hit(key),
            (None, bytes) => {
                MISSES.fetch_add(1, Relaxed);
                if bytes.is_some() {
                    self.remove(key);
                }
            }
        }
        value
    }

    /// Counts a use of an entry, and marks it as recently used for eviction.
    pub fn record_hit(&self, key: &Key) {
        HITS.fetch_add(1, Relaxed);
        let path = self.path(key);
        if age(&path).is_some_and(|age| age > USE_MARK_INTERVAL)
            && self.may_write()
            && let Some(file) = authentication::open_private_file(&path, File::options().append(true))
        {
            let _ = file.set_modified(SystemTime::now());
        }
    }

    /// Deletes an entry that is invalid or useless.
    pub fn remove(&self, key: &Key) {
        if self.may_write() && fs::remove_file(self.path(key)).is_ok() {
            REMOVED.fetch_add(1, Relaxed);
        }
    }

    /// Writes an entry, or replaces it, atomically.
    pub fn write(&self, key: &Key, body: &[u8]) {
        let size = allocated_bytes(body.len() as u64);
        if size > self.limit || !self.may_write() || self.try_write(key, body).is_err() {
            return;
        }
        WRITES.fetch_add(1, Relaxed);
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
        self.folder.join(format!("{UNFINISHED}{}-{}-{now}", std::process::id(), NEXT_FILE_NUMBER.fetch_add(1, Relaxed)))
    }

    fn try_write(&self, key: &Key, body: &[u8]) -> std::io::Result<()> {
        authentication::make_folder(&self.folder).inspect_err(|error| self.warn_missing_folder(error))?;
        let secret = self.secret(|| Secret::read_or_create(&self.folder, &self.new_unfinished_path()));
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
            if name.strip_prefix(UNFINISHED).is_some_and(|rest| rest.bytes().all(numbers)) {
                if age(&path).is_some_and(|age| age > ABANDONED_FILE_AGE) {
                    let _ = fs::remove_file(&path);
                }
            } else if about.is_file() && Key::is_entry_name(&name) {
                entries.push((modified, allocated_bytes(about.len()), path));
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
                REMOVED.fetch_add(1, Relaxed);
                total -= size;
            }
        }
    }
}

/// Disk space that a file of this length takes, in file systems with blocks of 4 KiB.
fn allocated_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

/// Time since a file was last written or used.
fn age(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);
    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("pallas-store-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Folder(path)
        }
        fn files(&self) -> usize {
            let entries = |files: fs::ReadDir| files.flatten().filter(|file| file.file_name() != "secret").count();
            fs::read_dir(&self.0).map_or(0, entries)
        }
    }
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
    fn key(name: &str) -> Key {
        Key::new("test", &[name])
    }

    #[test]
    fn torn_and_changed_files_are_deleted() {
        let folder = Folder::new("torn");
        let store = Store::new(folder.0.clone(), 1 << 20);
        assert_eq!(store.read(&key("a")), None, "the folder is not there yet");
        store.write(&key("a"), b"some\nlines\n");
        assert_eq!(store.read(&key("a")).as_deref(), Some(&b"some\nlines\n"[..]));
        let path = store.path(&key("a"));
        let whole = fs::read(&path).expect("written");
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).expect("the folder is ours");
            assert_eq!(store.read(&key("a")), None, "{end} of {} bytes", whole.len());
            assert!(!path.exists(), "deleted");
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).expect("the folder is ours");
            assert_eq!(store.read(&key("a")), None, "byte {at}");
        }
    }

    #[test]
    fn writers_at_once_leave_one_whole_entry() {
        let folder = Folder::new("writers");
        let bodies: Vec<Vec<u8>> = (0..4u8).map(|i| vec![i; 10_000 + usize::from(i)]).collect();
        std::thread::scope(|s| {
            for body in &bodies {
                let store = Store::new(folder.0.clone(), 1 << 20);
                let bodies = &bodies;
                s.spawn(move || {
                    for _ in 0..50 {
                        store.write(&key("a"), body);
                        let found = store.read(&key("a")).expect("one of them is there");
                        assert!(bodies.contains(&found));
                    }
                });
            }
        });
        assert_eq!(folder.files(), 1, "nothing is left over");
    }

    /// Locks are those of open files, so that two stores of one process are as two processes.
    #[test]
    fn a_second_writer_only_reads() {
        let folder = Folder::new("single");
        let single = || Store::with_writers(Writers::One, folder.0.clone(), 1 << 20);
        let (first, second) = (single(), single());
        first.write(&key("a"), b"first");
        second.write(&key("a"), b"second");
        second.write(&key("b"), b"second");
        assert_eq!(second.read(&key("a")).as_deref(), Some(&b"first"[..]), "what the first one warmed");
        assert_eq!(first.read(&key("b")), None);
        second.remove(&key("a"));
        let path = first.path(&key("a"));
        fs::write(&path, b"torn").expect("the folder is ours");
        assert_eq!(second.read(&key("a")), None, "a torn entry is ignored");
        assert!(path.exists(), "and stays, since readers never write");
        assert_eq!(first.read(&key("a")), None);
        assert!(!path.exists(), "the writer deletes it");
        drop((first, second));
        // Another test's child has a copy of the lock until it runs its program.
        let written = (0..1000).any(|_| {
            single().write(&key("b"), b"third");
            let found = single().read(&key("b"));
            std::thread::sleep(Duration::from_millis(u64::from(found.is_none())));
            found.as_deref() == Some(&b"third"[..])
        });
        assert!(written, "the first one has ended");
        let reader = Store::with_writers(Writers::Others, folder.0.clone(), 1 << 20);
        reader.write(&key("c"), b"reader");
        assert_eq!((reader.read(&key("b")).is_some(), reader.read(&key("c"))), (true, None));
    }

    #[test]
    fn the_oldest_entries_go_and_what_killed_writers_left() {
        let folder = Folder::new("oldest");
        let store = Store::new(folder.0.clone(), 20_000);
        let dated = |path: &Path, seconds: u64| {
            let file = File::options().append(true).open(path).expect("it is there");
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).expect("times can be set");
        };
        for (i, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
            store.write(&key(name), &[7; 900]);
            dated(&store.path(&key(name)), 10_000_000 - i as u64 * 1000);
        }
        for (name, seconds) in [("1-0-2", 7200), ("1-0-3", 60), ("letter", 7200)] {
            let path = folder.0.join(format!("{UNFINISHED}{name}"));
            fs::write(&path, b"half").expect("the folder is ours");
            dated(&path, seconds);
        }
        let theirs = folder.0.join("thesis-final.pdf");
        fs::write(&theirs, [7; 9000]).expect("the folder is ours");
        dated(&theirs, 20_000_000);
        // Used: no longer the oldest.
        assert!(store.read(&key("a")).is_some());
        store.record_hit(&key("a"));
        store.write(&key("e"), &[7; 900]);
        let left: Vec<bool> = ["a", "b", "c", "d", "e"].iter().map(|name| store.path(&key(name)).exists()).collect();
        assert_eq!(left, [true, false, false, true, true]);
        assert!(!folder.0.join(format!("{UNFINISHED}1-0-2")).exists());
        assert!(folder.0.join(format!("{UNFINISHED}1-0-3")).exists(), "its writer may still live");
        assert!(folder.0.join(format!("{UNFINISHED}letter")).exists(), "not ours");
        assert!(theirs.exists(), "no entry");
        store.write(&key("large"), &[7; 21_000]);
        assert_eq!(store.read(&key("large")), None, "larger than all that may be kept");
    }

    #[test]
    fn an_entry_belongs_to_its_contents_its_name_and_its_folder() {
        let (folder, other) = (Folder::new("own"), Folder::new("other"));
        let store = Store::new(folder.0.clone(), 1 << 20);
        let written = |body: &[u8]| {
            store.write(&key("a"), body);
            fs::read(store.path(&key("a"))).expect("written")
        };
        let (old, new) = (written(b"x * 1.5"), written(b"x * 2.5"));
        let check = |what: &str, store: &Store, name: &str, bytes: &[u8]| {
            fs::write(store.path(&key(name)), bytes).expect("the folder is ours");
            assert_eq!(store.read(&key(name)), None, "{what}");
            assert!(!store.path(&key(name)).exists(), "{what} is deleted");
        };
        check("contents under another tag", &store, "a", &[&old[..65], &new[65..]].concat());
        let hash = hex::encode(sha2::Digest::finalize(sha2::Digest::chain_update(sha2::Sha256::default(), b"x")));
        check("a checksum in place of the tag", &store, "a", format!("{hash}\nx").as_bytes());
        check("another entry's contents", &store, "b", &new);
        let elsewhere = Store::new(other.0.clone(), 1 << 20);
        elsewhere.write(&key("c"), b"y");
        check("an entry of another folder", &elsewhere, "a", &new);
        fs::write(store.path(&key("a")), &new).expect("the folder is ours");
        assert_eq!(Store::new(folder.0.clone(), 1 << 20).read(&key("a")).as_deref(), Some(&b"x * 2.5"[..]));
        fs::write(folder.0.join("secret"), [7; 31]).expect("the folder is ours");
        let after = Store::new(folder.0.clone(), 1 << 20);
        assert_eq!(after.read(&key("a")), None, "no secret");
        after.write(&key("a"), b"z");
        assert_eq!(after.read(&key("a")).as_deref(), Some(&b"z"[..]), "a torn secret is made again");
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_have_written_is_not_read() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = Folder::new("others");
        let store = || Store::new(folder.0.clone(), 1 << 20);
        store().write(&key("a"), b"ours");
        let (entry, secret) = (store().path(&key("a")), folder.0.join("secret"));
        let reads = || store().read(&key("a")).is_some();
        let allow =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        for (path, mode, good) in [(&entry, 0o666, 0o600), (&entry, 0o620, 0o600), (&secret, 0o604, 0o600)] {
            assert!(reads());
            allow(path, mode);
            assert!(!reads(), "{} with {mode:o}", path.display());
            allow(path, good);
        }
        for mode in [0o777, 0o770, 0o1777] {
            allow(&folder.0, mode);
            assert!(!reads(), "a folder with {mode:o}");
            store().write(&key("b"), b"ours");
            assert!(!store().path(&key("b")).exists(), "nor is it written to");
            allow(&folder.0, 0o755);
        }
        assert!(reads());
        // Only root may change the owner of a file.
        for path in [&entry, &secret, &folder.0] {
            let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(path).expect("it is there"));
            if chown(path, Some(owner + 1), None).is_ok() {
                assert!(!reads(), "{} of another user", path.display());
                chown(path, Some(owner), None).expect("back");
                assert!(reads());
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_or_a_device_in_an_entrys_place_is_not_waited_for() {
        let folder = Folder::new("pipe");
        let store = Store::new(folder.0.clone(), 1 << 20);
        store.write(&key("a"), b"ours");
        let path = store.path(&key("a"));
        let whole = fs::read(&path).expect("written");
        let (elsewhere, pipe) = (folder.0.join("elsewhere"), folder.0.join("pipe"));
        fs::write(&elsewhere, whole).expect("the folder is ours");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo is part of every system");
        for target in [Path::new("/dev/zero"), Path::new("/dev/stdin"), &elsewhere, &pipe] {
            fs::remove_file(&path).expect("it is there");
            match target == pipe {
                true => fs::rename(&pipe, &path).expect("the folder is ours"),
                false => std::os::unix::fs::symlink(target, &path).expect("the folder is ours"),
            }
            let (done, seen) = std::sync::mpsc::channel();
            let reader = Store::new(folder.0.clone(), 1 << 20);
            std::thread::spawn(move || done.send((reader.read(&key("a")), reader.record_hit(&key("a")))));
            let read = seen.recv_timeout(Duration::from_secs(20)).expect("it does not wait").0;
            assert_eq!(read, None, "{}", target.display());
            store.write(&key("a"), b"ours");
            assert!(store.read(&key("a")).is_some(), "another is written in its place");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_made_keeps_nothing() {
        let folder = Folder::new("file");
        fs::write(&folder.0, b"a file").expect("the temporary folder is there");
        let store = Store::new(folder.0.join("inside"), 1 << 20);
        store.write(&key("a"), b"x");
        assert_eq!(store.read(&key("a")), None);
        let _ = fs::remove_file(&folder.0);
    }
}
