//! The rules for sources, as tests. Exceptions are data at the top of this file; one that is no longer needed fails as
//! well.
use super::imports::{Crate, Imports, parsed};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Modules of these crates, lowest first: each imports only those before it.
const LAYERS: &[(&str, &[&str])] = &[("pallas-codegen", CODEGEN), ("pallas-device", DEVICE), ("pallas-rt", RUNTIME)];
const CODEGEN: &[&str] = &["raw", "interp", "passes", "cpu", "target", "wgsl"];
const DEVICE: &[&str] = &["counted", "error", "timeline", "collective", "disk", "startup", "devices"];
const RUNTIME: &[&str] = &[
    "markup",
    "collective",
    "array",
    "nans",
    "tree",
    "exec",
    "sharding",
    "lang",
    "jit",
    "launch",
    "ops",
    "linalg",
    "spmd",
    "random",
    "initializers",
    "distributed",
    "guide",
];
/// Imports that close a cycle between folders of these crates, or go against the order of [`LAYERS`], each with its
/// reason.
const UPWARD: &[(&str, &str, &str)] = &[("cpu/plan", "cpu/jit", "a step keeps the machine code of its chain")];
/// Files with more than 500 lines, each with its reason.
const LONG: &[(&str, &str)] = &[("pallas-rt/ir/src/scalar/table.rs", "the table: one row an operation")];
/// Files of crates that are compiled differently with wgpu and without: three at most.
const GPU_FEATURE: &[&str] =
    &["pallas-rt/src/array/mod.rs", "pallas-rt/device/src/devices/mod.rs", "pallas-rt/src/lib.rs"];
/// Modules of pallas-device and pallas-rt that name wgpu.
const NAMES_WGPU: &[&str] = &["array", "devices"];
/// Folders of these crates that use no thread-local state, so that their behaviour depends on their arguments only.
const WITHOUT_THREAD_LOCALS: &[&str] = &["devices", "exec"];

/// The folder of the workspace.
pub(super) fn root() -> PathBuf {
    let is_workspace =
        |dir: &&Path| std::fs::read_to_string(dir.join("Cargo.toml")).is_ok_and(|text| text.contains("[workspace]"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().find(is_workspace).expect("a package of the workspace").to_path_buf()
}

/// Returns every file below a folder with one of these extensions, without build folders and hidden ones.
pub(super) fn files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut out = vec![];
    for entry in std::fs::read_dir(dir).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Cargo marks its build folders by this file.
        let built = name == "target" || path.join("CACHEDIR.TAG").exists();
        if path.is_dir() && !built && !name.starts_with('.') {
            out.extend(files(&path, extensions));
        } else if path.is_file() && path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
            out.push(path);
        }
    }
    out.sort();
    out
}
pub(super) fn sources() -> Vec<PathBuf> {
    let all = files(&root(), &["rs"]);
    assert!(all.len() > 300, "the sources are found");
    all
}
pub(super) fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}
pub(super) fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

/// The modules of pallas-device and pallas-rt, with their files.
fn runtime() -> impl Iterator<Item = (&'static PathBuf, &'static Imports)> {
    ["pallas-device", "pallas-rt"].into_iter().flat_map(|krate| &parsed()[krate].1.modules)
}

#[test]
fn files_are_short() {
    let mut excused: BTreeSet<&str> = LONG.iter().map(|l| l.0).collect();
    for path in sources() {
        let (lines, name) = (text(&path).lines().count(), name(&path));
        let reason = lines > 500 && excused.remove(name.as_str());
        assert!(lines <= 500 || reason, "{name} has {lines} lines: split it by idea, or give a reason in LONG");
    }
    assert!(excused.is_empty(), "short enough without LONG: {excused:?}");
}

#[test]
fn every_file_says_what_it_is() {
    for path in sources() {
        let name = name(&path);
        assert!(name.contains("/tests/ui/") || text(&path).starts_with("//!"), "{name} begins with `//!`");
    }
}

#[test]
fn build_folders_are_no_sources() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tidy");
    std::fs::create_dir_all(dir.join("deep/target/debug")).expect("a folder for tests");
    std::fs::create_dir_all(dir.join("other")).expect("a folder for tests");
    for file in ["deep/kept.rs", "deep/target/debug/built.rs", "other/CACHEDIR.TAG", "other/built.rs"] {
        std::fs::write(dir.join(file), "").expect("a file for tests");
    }
    assert_eq!(files(&dir, &["rs"]), [dir.join("deep/kept.rs")]);
    std::fs::remove_dir_all(&dir).expect("it was made here");
}

#[test]
fn modules_import_lower_ones() {
    for (krate, layers) in LAYERS {
        let all = &parsed()[*krate].1;
        let tops: BTreeSet<String> = all.modules.values().filter_map(|m| m.module.first().cloned()).collect();
        let place = |module: &str| layers.iter().position(|l| *l == module);
        let missing: Vec<&String> = tops.iter().filter(|t| place(t).is_none()).collect();
        assert!(missing.is_empty(), "say in LAYERS where {missing:?} belong");
        let gone: Vec<&&str> = layers.iter().filter(|l| !tops.contains(**l)).collect();
        assert!(gone.is_empty(), "LAYERS names {gone:?}, which are not there");
        let mut upward = all.imports(&[], &tops);
        upward.retain(|(from, to), _| place(from) < place(to));
        for (from, to, _) in UPWARD.iter().filter(|(from, ..)| !from.contains('/') && tops.contains(*from)) {
            let edge = (from.to_string(), to.to_string());
            assert!(upward.remove(&edge).is_some(), "{from} imports {to} no more, or in order: take it out of UPWARD");
        }
        assert!(upward.is_empty(), "{krate}: against the order of LAYERS: {upward:#?}");
    }
}

#[test]
fn folders_import_each_other_in_no_circle() {
    let mut nested: BTreeSet<_> = UPWARD.iter().filter(|(from, ..)| from.contains('/')).collect();
    for (krate, (_, all)) in parsed() {
        // Every module with modules inside is a folder, and so is the crate's root.
        let folders: BTreeSet<Vec<String>> =
            all.modules.values().flat_map(|m| (0..m.module.len()).map(|n| m.module[..n].to_vec())).collect();
        for folder in &folders {
            let inside = |f: &&Vec<String>| f.len() == folder.len() + 1 && f.starts_with(folder);
            let parts: BTreeSet<String> = folders.iter().filter(inside).filter_map(|f| f.last().cloned()).collect();
            let mut imports = all.imports(folder, &parts);
            for exception in UPWARD.iter().filter(|_| LAYERS.iter().any(|(layered, _)| layered == krate)) {
                let full = |part: &String| [&folder[..], std::slice::from_ref(part)].concat().join("/");
                let before = imports.len();
                imports.retain(|(from, to), _| (full(from).as_str(), full(to).as_str()) != (exception.0, exception.1));
                if imports.len() < before {
                    nested.remove(exception);
                }
            }
            // Remove parts that nothing imports, and parts that import nothing, until only cycles are left.
            let mut before = usize::MAX;
            while imports.len() < before {
                before = imports.len();
                let from: BTreeSet<String> = imports.keys().map(|(from, _)| from.clone()).collect();
                let to: BTreeSet<String> = imports.keys().map(|(_, to)| to.clone()).collect();
                imports.retain(|edge, _| to.contains(&edge.0) && from.contains(&edge.1));
            }
            assert!(imports.is_empty(), "{krate}/{}: a circle: {imports:#?}", folder.join("/"));
        }
    }
    assert!(nested.is_empty(), "imported no more: take it out of UPWARD: {nested:?}");
}

/// Files of a folder are read in an order: at most three of them import each other.
#[test]
fn files_import_each_other_in_small_circles() {
    let of_crate = |(krate, (_, all)): (&String, &(PathBuf, Crate))| {
        let large = all.circles().into_iter().filter(|circle| circle.len() > 3);
        large.map(|circle| format!("{krate}: {}\n", circle.join(" "))).collect::<String>()
    };
    let large: String = parsed().iter().map(of_crate).collect();
    assert!(large.is_empty(), "{large}");
}

#[test]
fn few_modules_name_wgpu() {
    let names = |m: &&Imports| m.paths.iter().any(|p| p.iter().find(|s| *s != "::").is_some_and(|s| s == "wgpu"));
    let found: BTreeSet<&str> = runtime().map(|(_, m)| m).filter(names).map(|m| m.module[0].as_str()).collect();
    assert_eq!(found, NAMES_WGPU.iter().copied().collect(), "NAMES_WGPU lists them all");
}

#[test]
fn few_files_know_the_feature_gpu() {
    let mut found = BTreeSet::new();
    for (src, all) in parsed().values() {
        found.extend(all.gpu_feature.then(|| name(&src.join("lib.rs"))));
        found.extend(all.modules.iter().filter(|(_, m)| m.gpu_feature).map(|(file, _)| name(file)));
    }
    let listed: BTreeSet<String> = GPU_FEATURE.iter().map(|f| f.to_string()).collect();
    assert_eq!(found, listed, "GPU_FEATURE lists them all");
    assert!(found.len() <= 3, "no more than three files know the feature: {found:?}");
}

#[test]
fn what_a_launch_does_depends_on_no_thread() {
    for (file, imports) in runtime() {
        let guarded = imports.module.first().is_some_and(|m| WITHOUT_THREAD_LOCALS.contains(&m.as_str()));
        assert!(!guarded || !imports.macros.contains("thread_local"), "{} has a thread-local", name(file));
    }
}

#[test]
fn no_file_names_a_folder_of_one_machine() {
    // Split, so that this file does not contain them.
    let folders = [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];
    for path in files(&root(), &["rs", "md", "toml", "sh", "py", "patch", "stderr"]) {
        let text = text(&path);
        let found = folders.iter().find(|f| text.contains(**f));
        assert!(found.is_none(), "{} mentions {}", name(&path), found.unwrap_or(&""));
    }
}

/// The page is a map: what a module does stands in the module.
#[test]
fn the_architecture_is_short_and_names_files_that_exist() {
    let page = text(&root().join("ARCHITECTURE.md"));
    let words = page.split_whitespace().count();
    assert!((1000..=3000).contains(&words), "{words} words");
    let crates = parsed().values().map(|(src, _)| src.clone());
    let folders: Vec<PathBuf> = crates.chain([root()]).collect();
    let is_path = |s: &&str| (s.ends_with(".rs") || s.ends_with('/')) && !s.contains([' ', '{', '\n']);
    let paths: BTreeSet<&str> = page.split('`').filter(is_path).collect();
    assert!(paths.len() > 40, "{paths:?}");
    let is_missing = |path: &&&str| !folders.iter().any(|folder| folder.join(path).exists());
    let missing: Vec<&&str> = paths.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The signature up to its result, or the field, after each `pub ` of a text.
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
        let is_safe = |part: &&str| !part.trim_start().starts_with("//") && !part.contains("unsafe fn ");
        for part in public_parts(&text).filter(is_safe) {
            let taken = part.contains("*mut ") || part.contains("*const ");
            assert!(!taken, "{}: `{}` lets safe code name memory by its address", name(&path), part.trim());
        }
    }
    assert_eq!(public_parts("pub fn a(\n    x: *mut u8,\n) -> u8 {").filter(|part| part.contains("*mut")).count(), 1);
    assert_eq!(public_parts("pub fn a() -> *mut u8 {").filter(|part| part.contains("*mut")).count(), 0);
}

#[test]
fn slices_of_raw_memory_are_made_in_one_place() {
    let own = "pallas-rt/codegen/src/raw.rs";
    for path in sources().into_iter().filter(|path| name(path).contains("/src/")) {
        let made = text(&path).contains("from_raw_parts");
        assert_eq!(made, name(&path) == own, "{}: `raw::slice` takes length 0 of a null address too", name(&path));
    }
}

/// In the build that CI tests a slice of a null address, or a sum that wraps around, ends the process.
#[test]
fn tests_are_built_with_all_checks() {
    let manifest = text(&root().join("Cargo.toml"));
    for unchecked in ["debug-assertions = false", "overflow-checks = false"] {
        assert!(!manifest.contains(unchecked), "{unchecked}");
    }
    if cfg!(debug_assertions) {
        let sum = || std::hint::black_box(i32::MAX) + std::hint::black_box(1);
        assert!(std::panic::catch_unwind(sum).is_err(), "sums are not checked");
    }
}

/// Else every build would compile every kernel for all element types and block sizes.
#[test]
fn functions_that_choose_a_kernel_are_compiled_where_they_are_called() {
    for path in files(&root().join("kernels/src"), &["rs"]) {
        let text = text(&path);
        // Each function with the attributes before it; those of a type parameter are compiled there anyway.
        for (at, _) in text.match_indices("floats!(").filter(|(at, _)| text[at + 8..].starts_with('"')) {
            let start = text[..at].rfind("fn ").expect("it is in a function");
            let signature = text[start..at].split('{').next().unwrap_or_default();
            let is_generic = signature.contains("impl Fn") || signature.contains("<E");
            let attributes = text[..start].rsplit("\n\n").next().unwrap_or_default();
            assert!(is_generic || attributes.contains("#[inline]"), "{}: fn {signature}", name(&path));
        }
    }
}
