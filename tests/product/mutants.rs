//! The faults that `tests/mutants.sh` brings back: one that does not fit the code any more says nothing about the
//! tests.
use super::tidy::{files, name, root, text};
use std::path::Path;
use std::process::Command;

/// The reason why a patch cannot be tried; `None` if there is none.
fn mistake(patch: &Path) -> Option<String> {
    let text = text(patch);
    let mut lines = text.lines();
    for start in ["Breaks: ", "Caught by: "] {
        if !lines.next().is_some_and(|line| line.starts_with(start)) {
            return Some(format!("{}: the line `{start}..` is missing", name(patch)));
        }
    }
    let applied = Command::new("git").args(["apply", "--check"]).arg(patch).current_dir(root()).output();
    let applied = applied.expect("git runs");
    let said = String::from_utf8_lossy(&applied.stderr);
    (!applied.status.success()).then(|| format!("{}: {}", name(patch), said.trim_end()))
}

#[test]
fn stored_faults_apply() {
    if Command::new("git").arg("--version").output().is_err() {
        return eprintln!("left out: git is not installed");
    }
    let patches = files(&root().join("tests/mutants"), &["patch"]);
    assert!(patches.len() > 200, "the patches are found");
    let mistakes: Vec<String> = patches.iter().filter_map(|patch| mistake(patch)).collect();
    assert!(mistakes.is_empty(), "write these against the present code:\n{}", mistakes.join("\n"));
}
