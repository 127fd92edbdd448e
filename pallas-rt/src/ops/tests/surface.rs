//! The table of JAX's names against the code and the cases.
use super::reference::names;
use pallas_ir::ScalarOp;
use pallas_ir::scalar::CallSyntax;
use std::collections::BTreeSet;
use std::path::Path;

const TABLE: &str = include_str!("../surface.md");
/// Names whose functions are no operations on arrays: they have no cases.
const OF_THE_HOST: &[&str] = &["array", "broadcast_shapes", "promote_types", "size"];

/// A line of the table: JAX's names, and the name here or the reason for its exclusion.
struct Line {
    names: Vec<&'static str>,
    here: &'static str,
}

impl Line {
    /// Its name here, if it is not excluded.
    fn calls(&self) -> Option<BTreeSet<&'static str>> {
        (!self.here.starts_with("excluded: "))
            .then(|| self.here.split('`').skip(1).step_by(2).flat_map(called).collect())
    }
}

fn lines() -> Vec<Line> {
    let line = |line: &'static str| {
        let (names, here) = line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")?;
        Some(Line { names: names.split("`, `").collect(), here })
    };
    TABLE.lines().filter_map(line).collect()
}

/// The names of each operation on arrays.
pub(super) fn operations() -> Vec<Vec<&'static str>> {
    let of_arrays = |line: &Line| line.calls().is_some() && !OF_THE_HOST.contains(&line.names[0]);
    lines().into_iter().filter(of_arrays).map(|line| line.names).collect()
}

/// Names of the functions that code calls, and its operator.
fn called(code: &str) -> Vec<&str> {
    let name = |before: &'_ str| before.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
    let mut found: Vec<&str> = code.match_indices('(').map(|(i, _)| &code[name(&code[..i])..i]).collect();
    found.retain(|name| !name.is_empty());
    let operator = |code: &str| !code.contains(['(', '.']) && code.len() < 8;
    if found.is_empty() && operator(code) {
        found.push(code.trim_matches(['x', 'y', ' ']));
    }
    found
}

/// Names of the public functions and methods of `ops/`, `linalg/` and `initializers`, and operators.
fn functions() -> BTreeSet<String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = |folder| std::fs::read_dir(sources.join(folder)).expect("the folder of the module");
    let mut found = BTreeSet::new();
    let paths = ["ops", "linalg"].into_iter().flat_map(files).map(|entry| entry.expect("a file").path());
    for path in paths.chain([sources.join("initializers.rs")]) {
        if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).expect("a file of text");
            found.extend(text.lines().filter_map(declared).map(str::to_string));
        }
    }
    for op in ScalarOp::ALL {
        found.insert(match (op.row().surface, op.row().name) {
            (CallSyntax::Operator, name) => operator(name).to_string(),
            (CallSyntax::Method | CallSyntax::Function, name) => name.to_string(),
        });
    }
    found
}

/// The public function that a line declares: by `pub fn`, or by a row of one of the macros that declare methods.
fn declared(line: &str) -> Option<&str> {
    let end = |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let text = line.trim_start();
    if let Some(name) = text.strip_prefix("pub fn ") {
        return Some(&name[..end(name)]).filter(|name| !name.is_empty());
    }
    let rest = ["Any ", "Number ", "Float "].iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text);
    let (name, after) = rest.split_at(end(rest));
    let is_formula = rest != text && after.starts_with('(');
    let is_row =
        after.starts_with(" |") && after[2..].contains('|') && line.starts_with("    ") && !line.starts_with("     ");
    let is_logical = name.starts_with("logical_") && after.starts_with('(') && text.ends_with(';');
    (is_formula || is_row || is_logical).then_some(name).filter(|name| !name.is_empty())
}

/// The operator of a row.
fn operator(name: &str) -> &'static str {
    let all = [
        ("add", "+"),
        ("sub", "-"),
        ("mul", "*"),
        ("div", "/"),
        ("rem", "%"),
        ("neg", "-"),
        ("not", "!"),
        ("bitand", "&"),
        ("bitor", "\\|"),
        ("bitxor", "^"),
        ("shl", "<<"),
        ("shr", ">>"),
    ];
    all.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("no operator for `{name}`")).1
}

#[test]
fn the_table_names_every_function_and_no_other() {
    let functions = functions();
    let named: BTreeSet<&str> = lines().iter().filter_map(Line::calls).flatten().collect();
    let unknown: Vec<_> = named.iter().filter(|name| !functions.contains(**name)).collect();
    assert!(unknown.is_empty(), "surface.md names functions that do not exist: {unknown:?}");
    let missing: Vec<_> = functions.iter().filter(|name| !named.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "surface.md does not name these functions: {missing:?}");
}

#[test]
fn the_table_is_whole() {
    let lines = lines();
    assert_eq!(lines.len(), TABLE.lines().filter(|line| line.starts_with("| `")).count(), "every line is read");
    let mut seen = BTreeSet::new();
    for name in lines.iter().flat_map(|line| &line.names) {
        assert!(seen.insert(*name), "`{name}` has two lines");
    }
    assert!(seen.len() >= 300, "{} names", seen.len());
    for line in &lines {
        let reason = line.here.strip_prefix("excluded: ");
        assert!(reason.is_none_or(|reason| !reason.is_empty()), "{:?} has no reason", line.names);
        assert!(line.calls().is_none_or(|calls| !calls.is_empty()), "{:?} calls nothing", line.names);
    }
}

/// Each function is compared with JAX's under one of its names at least.
#[test]
fn every_name_has_a_case() {
    let cases = [names(), super::convolution::names()].concat();
    let is_case = |name: &&str| {
        OF_THE_HOST.contains(name)
            || cases
                .iter()
                .any(|case| case.strip_prefix(*name).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
    };
    let implemented = lines().into_iter().filter(|line| line.calls().is_some());
    let without: Vec<_> = implemented.filter(|line| !line.names.iter().any(&is_case)).map(|line| line.names).collect();
    assert!(without.is_empty(), "no case for {without:?}");
}
