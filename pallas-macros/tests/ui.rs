//! What rustc says to wrong kernels: one folder per cause, one file per mistake, its words beside it.
//!
//! `TRYBUILD=overwrite cargo test -p pallas-macros --test ui` writes the words anew. They are those of the pinned
//! toolchain without the standard library's sources; other compilers word and quote differently, so there the test is
//! skipped, with a notice.
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `rust-toolchain.toml` pins.
const PINNED: &str = "rustc 1.95.0 ";

/// Words of the implementation that no user should read.
const INTERNAL: [&str; 6] = ["Infallible", "CarriedIn", "HostDecided", "dyn Changes", "PhantomData", "FixedKey"];

fn rustc(argument: &[&str]) -> String {
    let out = Command::new("rustc").args(argument).output().expect("cargo runs tests beside a rustc");
    String::from_utf8_lossy(&out.stdout).trim().to_string()
}

/// Why the words can't be compared here.
fn other_compiler() -> Option<String> {
    let version = rustc(&["--version"]);
    if !format!("{version} ").starts_with(PINNED) {
        return Some(format!("{version} is not the pinned toolchain"));
    }
    let sources = Path::new(&rustc(&["--print", "sysroot"])).join("lib/rustlib/src/rust");
    sources.exists().then(|| "rust-src is installed: rustc quotes it".to_string())
}

fn files(extension: &str) -> Vec<PathBuf> {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ui");
    let list = |dir: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir).expect("the cases are part of the repository");
        entries.map(|e| e.expect("a readable folder").path()).collect()
    };
    let all = list(&ui).into_iter().flat_map(|cause| list(&cause));
    all.filter(|f| f.extension().is_some_and(|e| e == extension)).collect()
}

#[test]
#[allow(clippy::print_stderr, reason = "the notice of a skipped test")]
fn wrong_kernels() {
    if let Some(reason) = other_compiler() {
        eprintln!("skipped: {reason}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/ui/*/*.rs");
}

#[test]
fn every_mistake_has_its_words_and_none_is_internal() {
    let cases = files("rs");
    assert!(cases.len() >= 30, "{} cases", cases.len());
    for case in cases {
        let words = std::fs::read_to_string(case.with_extension("stderr"));
        let words = words.unwrap_or_else(|_| panic!("{} has no .stderr", case.display()));
        for word in INTERNAL {
            assert!(!words.contains(word), "{} says `{word}`", case.display());
        }
    }
}
