//! Entries of a folder that is torn, shared or changed by others.
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
fn key(name: &str) -> EntryKey {
    EntryKey::new("test", &[name])
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
    let single = || Store::with_writers(AllowedWriters::One, folder.0.clone(), 1 << 20);
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
    let reader = Store::with_writers(AllowedWriters::Others, folder.0.clone(), 1 << 20);
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
        let path = folder.0.join(format!("{UNFINISHED_PREFIX}{name}"));
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
    assert!(!folder.0.join(format!("{UNFINISHED_PREFIX}1-0-2")).exists());
    assert!(folder.0.join(format!("{UNFINISHED_PREFIX}1-0-3")).exists(), "its writer may still live");
    assert!(folder.0.join(format!("{UNFINISHED_PREFIX}letter")).exists(), "not ours");
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
    let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
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
