//! Files that nobody but this user can have written, and the secret that says so of their contents.
//!
//! What is read here decides which memory machine code touches, so it is read only where it comes from this user's own
//! processes: from plain files that this user owns in a folder that this user owns, neither of which others may write to.
//! That alone does not hold for copies (archives, restored backups, file systems that give every file to the user), so each
//! entry carries a tag by a secret of its folder, over its name and contents: an entry that was changed, renamed, or brought
//! from another folder is none.
use sha2::{Digest, Sha256};
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::path::Path;

#[cfg(unix)]
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

/// The file of a folder's secret. Entries have other names.
const SECRET: &str = "secret";

/// Signs what is kept in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Secret([u8; 32]);

impl Secret {
    /// The secret of a folder, if there is one that others can neither read nor write.
    pub(super) fn read(folder: &Path) -> Option<Secret> {
        let mut file = open(&folder.join(SECRET), File::options().read(true))?;
        #[cfg(unix)]
        if file.metadata().ok()?.mode() & 0o077 != 0 {
            return None;
        }
        let (mut bytes, mut behind) = ([0; 32], [0; 1]);
        file.read_exact(&mut bytes).ok()?;
        (file.read(&mut behind).ok()? == 0).then_some(Secret(bytes))
    }
    /// The secret of a folder, made if there is none; `unfinished` is a name that nobody else uses. Of processes that make
    /// one at once the first is heard.
    pub(super) fn make(folder: &Path, unfinished: &Path) -> Option<Secret> {
        let path = folder.join(SECRET);
        let written = create(unfinished).and_then(|mut file| {
            file.write_all(&random())?;
            file.sync_all()
        });
        // What is there and was not understood, a crash has left. A link never replaces another process's.
        let _ = written.as_ref().map(|()| {
            fs::hard_link(unfinished, &path).or_else(|_| {
                if Secret::read(folder).is_some() {
                    return Ok(());
                }
                fs::remove_file(&path)?;
                fs::hard_link(unfinished, &path)
            })
        });
        let _ = fs::remove_file(unfinished);
        Secret::read(folder)
    }
    /// What shows that an entry of this name and contents was written with this secret: its HMAC-SHA256 (RFC 2104).
    pub(super) fn tag(&self, name: &str, body: &[u8]) -> String {
        let key = |pad: u8| {
            let mut block = [pad; 64];
            block.iter_mut().zip(self.0).for_each(|(b, s)| *b ^= s);
            Sha256::new().chain_update(block)
        };
        let inner = key(0x36).chain_update(name).chain_update(b"\n").chain_update(body).finalize();
        super::key::hex(&key(0x5c).chain_update(inner).finalize())
    }
}

/// 32 bytes that nobody can guess: hashes by keys that the standard library takes from the system.
fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    for (i, part) in bytes.chunks_mut(8).enumerate() {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_usize(i);
        part.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    bytes
}

/// Whether a folder is this user's, and others may not write to it.
pub(super) fn is_private(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|about| about.is_dir() && is_own(&about))
}

/// Makes a folder that others may not write to, unless it is there.
pub(super) fn make_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    builder.mode(0o700);
    builder.create(folder)
}

/// Makes a file that others can neither read nor write.
pub(super) fn create(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    options.mode(0o600);
    options.open(path)
}

/// Opens a plain file that is this user's, and that others may not write to. Of anything else nothing is read: a pipe would
/// wait for a writer, a device may never end.
pub(super) fn open(path: &Path, options: &mut OpenOptions) -> Option<File> {
    let trusted = |about: std::io::Result<Metadata>| about.is_ok_and(|about| about.is_file() && is_own(&about));
    if !trusted(fs::symlink_metadata(path)) {
        return None;
    }
    #[cfg(unix)]
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    // Another file may have come in its place meanwhile.
    trusted(file.metadata()).then_some(file)
}

#[cfg(unix)]
#[allow(unsafe_code, reason = "the system says whose process this is")]
fn is_own(about: &Metadata) -> bool {
    // SAFETY: it takes nothing, touches no memory, and always succeeds.
    let user = unsafe { libc::geteuid() };
    about.uid() == user && about.mode() & 0o022 == 0
}
/// The user's folders are closed to others by default; the tag stands for the rest.
#[cfg(not(unix))]
fn is_own(_: &Metadata) -> bool {
    true
}
