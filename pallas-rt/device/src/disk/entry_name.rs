//! Keys: names of entries, each a hash of everything that determines the entry.
use sha2::{Digest, Sha256};

/// Version of the files' layout; raise it when the layout changes.
const ENTRY_LAYOUT_VERSION: &str = "2";

/// Key of an entry: its kind, and a hash of everything that determines it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EntryKey {
    kind: &'static str,
    hash: [u8; 32],
}

impl EntryKey {
    /// Creates the key of an entry that is determined by `parts` and by the sources of this crate.
    pub fn new(kind: &'static str, parts: &[&str]) -> EntryKey {
        let versions = [ENTRY_LAYOUT_VERSION, env!("CARGO_PKG_VERSION"), env!("PALLAS_SOURCES"), pallas_ir::VERSION];
        EntryKey::from_versions(versions, kind, parts)
    }
    /// Creates the key of an entry of this kind from `parts` and from the versions of the files' layout, of this crate,
    /// of its sources and of the tile IR.
    fn from_versions(versions: [&str; 4], kind: &'static str, parts: &[&str]) -> EntryKey {
        let mut hasher = Sha256::new();
        for part in versions.iter().chain(&[kind]).chain(parts) {
            // With its length, so that no two lists of parts run together.
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        EntryKey { kind, hash: hasher.finalize().into() }
    }
    /// Creates the key of an entry that is determined by this key and by `parts`.
    pub fn derive_entry_key(&self, kind: &'static str, parts: &[&str]) -> EntryKey {
        let own = self.hash_text();
        let parts: Vec<&str> = std::iter::once(own.as_str()).chain(parts.iter().copied()).collect();
        EntryKey::new(kind, &parts)
    }
    /// The hash as text, in hexadecimal.
    pub fn hash_text(&self) -> String {
        hex::encode(self.hash)
    }
    /// Name of the entry's file.
    pub(super) fn file_name(&self) -> String {
        format!("{}-{}", self.kind, self.hash_text())
    }
    /// Returns true if a file name has the form of an entry's.
    pub(super) fn is_entry_name(file: &str) -> bool {
        let (kind, hash) = file.rsplit_once('-').unwrap_or_default();
        let is_hash = hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_hash && !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_together() {
        let key = |parts: &[&str]| EntryKey::new("kernel", parts);
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_ne!(key(&["ab", ""]), key(&["ab"]));
        assert_ne!(EntryKey::new("shader", &["ab"]), key(&["ab"]));
        assert_ne!(key(&["ab"]).derive_entry_key("shader", &["c"]), key(&["ab"]).derive_entry_key("shader", &["d"]));
        assert_eq!(key(&[]).hash_text().len(), 64);
    }

    #[test]
    fn another_version_of_anything_has_other_entries() {
        let mut keys = vec![EntryKey::from_versions(["1", "0.1.0", "abc", "0.1.0"], "kernel", &["ab"])];
        for at in 0..4 {
            let mut versions = ["1", "0.1.0", "abc", "0.1.0"];
            versions[at] = "next";
            keys.push(EntryKey::from_versions(versions, "kernel", &["ab"]));
        }
        let different: std::collections::BTreeSet<String> = keys.iter().map(EntryKey::file_name).collect();
        assert_eq!(different.len(), 5);
    }

    #[test]
    fn entries_are_known_by_their_names() {
        let check = |name: &str, expected| assert_eq!(EntryKey::is_entry_name(name), expected, "{name}");
        let own = EntryKey::new("kernel", &[]).file_name();
        check(&own, true);
        check(&own[..own.len() - 1], false);
        check(&own.to_uppercase(), false);
        check(&own["kernel".len()..], false);
        check(&own["kernel-".len()..], false);
        check(&format!("{own}.bak"), false);
        check("thesis-final.pdf", false);
        check("unfinished-12-0-99", false);
    }
}
