//! Operations of graphs are named in few files besides their own: what makes or improves them, and their public
//! functions.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files that may name an operation of each group of the list, and exceptions with their reasons.
const MOST: &[(&str, usize)] = &[("identities", 4), ("collectives", 3), ("windows", 4), ("functions", 4), ("steps", 4)];
const MORE: &[(&str, usize, &str)] = &[("Scan", 6, "passes that make scans smaller, and loops by scans")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("pallas-rt")
}

fn files(folder: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "tests") {
            files(&path, all);
        } else if path.extension().is_some_and(|e| e == "rs") && path.file_stem().is_none_or(|stem| stem != "tests") {
            all.push(path);
        }
    }
}

/// The operations of the list with their groups.
fn operations() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(root().join("graph/src/ops/mod.rs")).expect("the list");
    let (_, list) = text.rsplit_once("ops! {").expect("the list");
    let (mut found, mut group) = (BTreeMap::new(), String::new());
    for line in list.lines().map(str::trim) {
        match (line.strip_suffix(" {"), line.split_once(": ")) {
            (Some(name), _) => group = name.to_string(),
            (None, Some((_, rest))) => {
                let name = rest.split([',', ';']).next().expect("a name");
                found.insert(name.to_string(), group.clone());
            }
            (None, None) => {}
        }
    }
    found
}

/// The names that a file imports from the modules of operations, or takes as variants of their enums.
fn names(text: &str) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    for before in [
        "call::",
        "collective::",
        "mesh::",
        "ops::",
        "dynamic::",
        "identity::",
        "pallas_graph::",
        "Identity::",
        "Call::",
        "CollectiveKind::",
        "Dynamic::",
    ] {
        for rest in code.split(before).skip(1) {
            let end = |c: char| if rest.starts_with('{') { c == '}' } else { !is_name(c) };
            let list = rest.split(end).next().unwrap_or_default();
            found.extend(list.split(|c| !is_name(c)).filter(|name| !name.is_empty()).map(String::from));
        }
    }
    found
}

#[test]
fn operations_are_named_in_few_files() {
    let operations = operations();
    assert!(operations.len() > 23, "{operations:?}");
    let mut all = vec![];
    ["graph/src", "device/src", "src"].iter().for_each(|folder| files(&root().join(folder), &mut all));
    // Their own files, and re-exports.
    let own = [
        "graph/src/ops",
        "graph/src/identity.rs",
        "graph/src/call.rs",
        "graph/src/collective.rs",
        "graph/src/dynamic.rs",
        "graph/src/lib.rs",
        "graph/src/mesh/mod.rs",
    ];
    let own: Vec<PathBuf> = own.iter().chain(&["src/collective.rs"]).map(|path| root().join(path)).collect();
    let mut named: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for path in all.iter().filter(|path| !own.iter().any(|own| path.starts_with(own))) {
        let found = names(&std::fs::read_to_string(path).expect("a source"));
        let short = path.strip_prefix(root()).expect("inside").display().to_string();
        for name in operations.keys().filter(|name| found.contains(*name)) {
            named.entry(name).or_default().push(short.clone());
        }
    }
    for (name, files) in &named {
        let group = &operations[*name];
        let usual = MOST.iter().find(|(own, _)| own == group).expect("a group").1;
        let most = MORE.iter().find(|(own, ..)| own == name).map_or(usual, |(_, most, _)| *most);
        assert!(files.len() <= most, "`{name}` is named in {} files: {files:?}", files.len());
    }
    let makers = |name: &str| named.get(&name.to_string()).map_or(0, Vec::len);
    assert!(makers("Scan") > 3 && makers("AllReduce") > 1, "{named:?}");
}

/// Readers take operations from where their data is re-exported, so that folders import each other in no circle.
#[test]
fn readers_import_no_folder_of_operations() {
    let mut all = vec![];
    files(&root().join("graph/src"), &mut all);
    let is_own = |path: &Path| {
        let inside = path.strip_prefix(root().join("graph/src")).expect("inside");
        inside.starts_with("ops")
            || ["call.rs", "collective.rs", "dynamic.rs", "identity.rs"].iter().any(|own| inside == Path::new(own))
    };
    let mut found = vec![];
    for path in all.iter().filter(|path| !is_own(path)) {
        if std::fs::read_to_string(path).expect("a source").contains("crate::ops") {
            found.push(path);
        }
    }
    assert!(found.is_empty(), "{found:?}");
}
