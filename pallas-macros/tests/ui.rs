//! What rustc says to wrong kernels: one folder per kind, one file per cause, its words beside it.
//!
//! `TRYBUILD=overwrite cargo test -p pallas-macros --test ui` writes the words anew. They are those of the pinned
//! toolchain without the standard library's sources; other compilers word and quote differently, so there the test is
//! skipped, with a notice.
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `rust-toolchain.toml` pins.
const PINNED: &str = "rustc 1.95.0 ";

/// Words of the implementation that no user should read.
const INTERNAL: [&str; 10] = [
    "__private",
    "__dim",
    "__left",
    "__right",
    "Infallible",
    "CarriedIn",
    "HostDecided",
    "dyn Changes",
    "PhantomData",
    "FixedKey",
];

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
    assert!(cases.len() >= 60, "{} cases", cases.len());
    for case in cases {
        let words = std::fs::read_to_string(case.with_extension("stderr"));
        let words = words.unwrap_or_else(|_| panic!("{} has no .stderr", case.display()));
        for word in INTERNAL {
            assert!(!words.contains(word), "{} says `{word}`", case.display());
        }
    }
}

/// Every refused kernel stands beside one that differs in a few lines, and `neighbours.rs` runs it.
#[test]
fn every_mistake_has_a_neighbour_that_runs() {
    let listed = include_str!("neighbours.rs");
    for case in files("rs") {
        let (name, cause) = (case.file_stem().expect("a file"), case.parent().expect("a folder"));
        let right = cause.join("ok").join(name).with_extension("rs");
        let text = std::fs::read_to_string(&right).unwrap_or_else(|_| panic!("there is no {}", right.display()));
        let wrong = std::fs::read_to_string(&case).expect("a readable case");
        let kernel = text.split("\n#[test]").next().expect("a kernel in front of its test");
        let only = |a: &str, b: &str| -> Vec<String> {
            a.lines().filter(|l| !b.lines().any(|other| other == *l)).map(String::from).collect()
        };
        let mut changed = only(wrong.trim_end_matches("\nfn main() {}\n"), kernel);
        changed.extend(only(kernel, &wrong));
        assert!((1..=12).contains(&changed.len()), "{} changes {changed:#?}", right.display());
        assert!(text.contains("#[test]\nfn runs()"), "{} does not run", right.display());
        let folder = format!("#[path = \"ui/{}/ok\"]\n", cause.file_name().expect("a name").display());
        let folder = listed.split(&folder).nth(1).and_then(|rest| rest.split("\n}").next());
        let modules = folder.unwrap_or_else(|| panic!("neighbours.rs lists no folder of {}", case.display()));
        let name = name.display();
        let found = [format!("mod {name};"), format!("#[path = \"{name}.rs\"]")].iter().any(|m| modules.contains(m));
        assert!(found, "neighbours.rs does not list {}", right.display());
    }
}
