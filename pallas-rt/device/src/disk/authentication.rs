//! Private files, which only this user can have written, and the secret that authenticates their contents.
//!
//! Entries determine which memory machine code accesses, so they are read only if this user's own processes wrote them:
//! from regular files that this user owns, in a folder that this user owns, neither of which others may write to. That
//! is not sufficient for copies (archives, restored backups, file systems that give every file to the user). Each entry
//! therefore carries a tag over its name and contents by a secret of its folder: an entry that was changed, renamed, or
//! copied from another folder is not accepted.
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;

#[cfg(unix)]
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

/// Name of the file of a folder's secret; entries have other names.
const SECRET_FILE: &str = "secret";

/// Secret key that authenticates the entries of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Secret([u8; 32]);

impl Secret {
    /// Returns the secret of a folder, if there is one that others can neither read nor write.
    pub(super) fn read(folder: &Path) -> Option<Secret> {
        let mut file = open_private_file(&folder.join(SECRET_FILE), File::options().read(true))?;
        #[cfg(unix)]
        if file.metadata().ok()?.mode() & 0o077 != 0 {
            return None;
        }
        let (mut bytes, mut behind) = ([0; 32], [0; 1]);
        file.read_exact(&mut bytes).ok()?;
        (file.read(&mut behind).ok()? == 0).then_some(Secret(bytes))
    }
    /// Returns the secret of a folder, which is created if there is none; `unfinished` is a unique name for the new
    /// file. If several processes create one at the same time, the first one counts.
    pub(super) fn read_or_create(folder: &Path, unfinished: &Path) -> Option<Secret> {
        let path = folder.join(SECRET_FILE);
        let written = create_private_file(unfinished).and_then(|mut file| {
            let mut bytes = [0; 32];
            getrandom::fill(&mut bytes)?;
            file.write_all(&bytes)?;
            file.sync_all()
        });
        // An existing secret that cannot be read was left by a crash. A hard link never replaces that of another
        // process.
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
    /// The tag of an entry with this name and contents: its HMAC-SHA256 with this secret.
    pub(super) fn tag(&self, name: &str, body: &[u8]) -> String {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("a key has any length");
        hex::encode(mac.chain_update(name).chain_update(b"\n").chain_update(body).finalize().into_bytes())
    }
}

/// Returns true if a folder belongs to this user and others may not write to it.
pub(super) fn is_writable_only_by_user(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|about| about.is_dir() && is_owned_by_user(&about))
}

/// Creates a folder that others may not write to, if it does not exist.
pub(super) fn make_folder(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    builder.mode(0o700);
    builder.create(folder)
}

/// Creates a file that others can neither read nor write.
pub(super) fn create_private_file(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    options.mode(0o600);
    options.open(path)
}

/// Opens a regular file that belongs to this user and that others may not write to. Anything else is not read: a pipe
/// would wait for a writer, and a device may never end.
pub(super) fn open_private_file(path: &Path, options: &mut OpenOptions) -> Option<File> {
    let trusted =
        |about: std::io::Result<Metadata>| about.is_ok_and(|about| about.is_file() && is_owned_by_user(&about));
    if !trusted(fs::symlink_metadata(path)) {
        return None;
    }
    #[cfg(unix)]
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).ok()?;
    // Another file may have replaced it in the meantime.
    trusted(file.metadata()).then_some(file)
}

/// Returns true if a file belongs to this user and others may not write to it.
#[cfg(unix)]
#[allow(unsafe_code, reason = "the system says whose process this is")]
fn is_owned_by_user(about: &Metadata) -> bool {
    // SAFETY: it has no arguments, accesses no memory, and always succeeds.
    let user = unsafe { libc::geteuid() };
    about.uid() == user && about.mode() & 0o022 == 0
}
/// Returns true on systems without owners: there a user's folders are private by default, and tags authenticate
/// entries.
#[cfg(not(unix))]
fn is_owned_by_user(_: &Metadata) -> bool {
    true
}
