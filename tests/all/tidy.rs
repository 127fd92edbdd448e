//! The house rules, as tests.
use std::path::{Path, PathBuf};

/// Files that are longer than 500 lines, each with its reason.
const LONG: &[(&str, &str)] = &[
    ("pallas-macros/src/rewrite/mod.rs", "one visitor over the body: its cases share the table of variables"),
    ("pallas-rt/src/wgsl/emit.rs", "one emitter: a method for each form of access, over shared text"),
    ("pallas-rt/ir/src/scalar/table.rs", "the table: one row an operation"),
];

fn sources() -> Vec<PathBuf> {
    fn walk(dir: &Path, out: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut out = vec![];
    for dir in ["pallas-rt", "pallas-macros", "kernels", "examples", "benches", "tests"] {
        walk(&root.join(dir), &mut out);
    }
    assert!(out.len() > 40, "the sources are found");
    out
}
fn name(path: &Path) -> String {
    path.strip_prefix(env!("CARGO_MANIFEST_DIR")).expect("inside").to_string_lossy().replace('\\', "/")
}

#[test]
fn files_are_short() {
    for path in sources() {
        let lines = std::fs::read_to_string(&path).expect("text").lines().count();
        let name = name(&path);
        let excused = LONG.iter().any(|(n, _)| name == *n);
        assert!(lines <= 500 || excused, "{name} has {lines} lines: split it by idea, or give a reason in LONG");
    }
}

#[test]
fn every_file_says_what_it_is() {
    for path in sources() {
        let name = name(&path);
        if name.contains("/tests/ui/") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        assert!(text.starts_with("//!"), "{name} begins with `//!`");
    }
}

#[test]
fn the_language_depends_on_nothing_above_it() {
    for path in sources() {
        let (name, text) = (name(&path), std::fs::read_to_string(&path).expect("text"));
        // Layers import downwards only: each folder, and what it must not name.
        let rules = [
            ("pallas-rt/ir/", &["pallas_rt", "wgpu"][..]),
            ("pallas-rt/src/interp/", &["crate::cpu", "crate::launch", "crate::array", "wgpu"]),
            ("pallas-rt/src/disk/", &["crate::launch", "crate::lang", "crate::array", "wgpu"]),
            ("pallas-rt/src/passes/", &["crate::cpu", "crate::wgsl", "crate::launch", "crate::array"]),
            ("pallas-rt/src/cpu/", &["crate::launch", "crate::lang", "wgpu"]),
        ];
        for (folder, forbidden) in rules {
            if name.starts_with(folder) {
                for word in forbidden {
                    let used = text.lines().any(|l| l.contains(word) && !l.trim_start().starts_with("//"));
                    assert!(!used, "{name} names {word}");
                }
            }
        }
    }
}

/// The signature up to its result, or the field, that begins after each `pub ` of a text.
fn public_parts(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n").flat_map(|line| line.find("pub ").map(|_| line)).chain(text.split("pub fn ").skip(1)).map(|part| {
        let end = part.find(['{', ';']).unwrap_or(part.len());
        part[..end].split("->").next().unwrap_or_default()
    })
}

#[test]
fn nothing_public_takes_an_address() {
    for path in sources().into_iter().filter(|p| name(p).contains("/src/")) {
        let text = std::fs::read_to_string(&path).expect("text");
        for part in public_parts(&text).filter(|part| !part.trim_start().starts_with("//")) {
            let taken = part.contains("*mut ") || part.contains("*const ");
            assert!(!taken, "{}: `{}` lets safe code name memory by its address", name(&path), part.trim());
        }
    }
    assert_eq!(public_parts("pub fn a(\n    x: *mut u8,\n) -> u8 {").filter(|part| part.contains("*mut")).count(), 1);
    assert_eq!(public_parts("pub fn a() -> *mut u8 {").filter(|part| part.contains("*mut")).count(), 0);
}
