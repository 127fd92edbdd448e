//! The rules for sources, as tests. Exceptions are data at the top of this file; one that is no longer needed fails as
//! well.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use syn::visit::{self, Visit};

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
/// Imports that close a cycle between folders of these crates, or go against the order of [`LAYERS`], each with its reason.
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

/// Crates of the workspace: name and folder of sources.
fn crates() -> Vec<(String, PathBuf)> {
    let manifests = files(&root(), &["toml"]).into_iter().filter(|f| f.ends_with("Cargo.toml"));
    let with_library = manifests.filter(|f| f.with_file_name("src").join("lib.rs").exists());
    let named = |manifest: PathBuf| {
        let text = text(&manifest);
        let name = text.lines().find_map(|l| l.strip_prefix("name = \"")).expect("a package has a name");
        (name.trim_end_matches('"').to_string(), manifest.with_file_name("src"))
    };
    let found: Vec<_> = with_library.map(named).collect();
    assert!(found.len() >= 4, "{found:?}");
    found
}

/// The paths and macros that a file names, without tests.
struct Imports {
    /// The module that the visited code is in.
    module: Vec<String>,
    /// Paths from the crate's root; those of other crates begin with `::`.
    paths: BTreeSet<Vec<String>>,
    macros: BTreeSet<String>,
    /// Modules of the file that are compiled for tests only.
    tests: BTreeSet<Vec<String>>,
    /// Modules written in the file itself.
    inline: BTreeSet<String>,
    gpu_feature: bool,
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let text = match &a.meta {
            syn::Meta::List(list) if a.path().is_ident("cfg") => list.tokens.to_string(),
            _ => String::new(),
        };
        text == "test" || text.starts_with("all (test") || a.path().is_ident("test")
    })
}

impl Imports {
    fn of(file: &Path, module: Vec<String>) -> Imports {
        let parsed = syn::parse_file(&text(file)).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let (paths, macros, tests, inline) = Default::default();
        let mut found = Imports { module, paths, macros, tests, inline, gpu_feature: false };
        found.visit_file(&parsed);
        found
    }
    /// Adds a path as written, converted to a path from the crate's root.
    fn add(&mut self, segments: Vec<String>) {
        let mut at: Vec<String> = match segments[0].as_str() {
            "self" | "super" => self.module.clone(),
            _ => vec![],
        };
        let mut rest = segments.into_iter().peekable();
        if rest.next_if(|s| s == "crate" || s == "self").is_none()
            && at.is_empty()
            && rest.peek().is_some_and(|s| s != "super")
        {
            // A crate, or an item of this module. The import of such an item is visited by itself.
            at.push(String::from("::"));
        }
        while rest.next_if(|s| s == "super").is_some() {
            at.pop();
        }
        at.extend(rest);
        self.paths.insert(at);
    }
    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let and = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(p) => self.tree(&and(&p.ident), &p.tree),
            syn::UseTree::Name(n) => self.add(and(&n.ident)),
            syn::UseTree::Rename(n) => self.add(and(&n.ident)),
            syn::UseTree::Glob(_) => self.add(and(&"*")),
            syn::UseTree::Group(g) => g.items.iter().for_each(|t| self.tree(before, t)),
        }
    }
}
impl<'a> Visit<'a> for Imports {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let attributes = match item {
            syn::Item::Fn(f) => &f.attrs,
            syn::Item::Impl(i) => &i.attrs,
            syn::Item::Use(u) => &u.attrs,
            syn::Item::Mod(m) => &m.attrs,
            syn::Item::Struct(s) => &s.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        } else if let syn::Item::Mod(m) = item {
            self.tests.insert([&self.module[..], &[m.ident.to_string()]].concat());
        }
    }
    fn visit_item_mod(&mut self, m: &'a syn::ItemMod) {
        self.inline.extend(m.content.as_ref().map(|_| m.ident.to_string()));
        self.module.push(m.ident.to_string());
        visit::visit_item_mod(self, m);
        self.module.pop();
    }
    fn visit_item_use(&mut self, u: &'a syn::ItemUse) {
        self.tree(&[], &u.tree);
        visit::visit_item_use(self, u);
    }
    fn visit_path(&mut self, path: &'a syn::Path) {
        self.add(path.segments.iter().map(|s| s.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
    fn visit_macro(&mut self, m: &'a syn::Macro) {
        self.macros.extend(m.path.segments.last().map(|s| s.ident.to_string()));
        // Paths in the arguments of a macro: `crate :: cpu :: run`.
        let text = m.tokens.to_string().replace(" :: ", "::");
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for word in text.split(|c: char| !is_name(c)).filter(|w| w.starts_with("crate::") || w.starts_with("super::")) {
            self.add(word.split("::").filter(|s| !s.is_empty()).map(String::from).collect());
        }
        visit::visit_macro(self, m);
    }
    fn visit_attribute(&mut self, a: &'a syn::Attribute) {
        if let syn::Meta::List(list) = &a.meta {
            self.gpu_feature |= list.tokens.to_string().contains("feature = \"gpu\"");
        }
        visit::visit_attribute(self, a);
    }
}

/// The modules of a crate, without tests.
struct Crate {
    modules: BTreeMap<PathBuf, Imports>,
    /// Names that `lib.rs` re-exports -> their paths; its inline modules, which re-export as well.
    root: BTreeMap<String, Vec<String>>,
    inline: BTreeSet<String>,
    /// True if `lib.rs` is compiled differently with wgpu.
    gpu_feature: bool,
}

impl Crate {
    fn read(src: &Path) -> Crate {
        let module = |file: &Path| -> Vec<String> {
            let inside = file.strip_prefix(src).expect("inside").with_extension("");
            let parts: Vec<String> = inside.iter().map(|p| p.to_string_lossy().into_owned()).collect();
            parts.into_iter().filter(|p| !matches!(p.as_str(), "mod" | "lib")).collect()
        };
        let mut modules: BTreeMap<PathBuf, Imports> =
            files(src, &["rs"]).into_iter().map(|f| (f.clone(), Imports::of(&f, module(&f)))).collect();
        let tests: BTreeSet<Vec<String>> = modules.values().flat_map(|m| m.tests.clone()).collect();
        modules.retain(|_, m| !tests.iter().any(|t| m.module.starts_with(t)));
        // `pub use array::{Array, ..}`: a file that names `crate::Array` imports `array`.
        let mut names = BTreeMap::new();
        let lib = modules.remove(&src.join("lib.rs")).expect("a library");
        for path in lib.paths {
            let path: Vec<String> = path.into_iter().filter(|s| s != "::").collect();
            if let [.., last] = &path[..]
                && path.len() > 1
            {
                names.insert(last.clone(), path);
            }
        }
        Crate { modules, root: names, inline: lib.inline, gpu_feature: lib.gpu_feature }
    }
    /// The module of a path: the names of its folders or files from the root.
    fn target(&self, path: &[String]) -> Vec<String> {
        match path {
            [first, ..] if self.modules.values().any(|m| m.module.first() == Some(first)) => path.to_vec(),
            [first, rest @ ..] if self.inline.contains(first) => self.target(rest),
            [first, ..] => self.root.get(first).map_or(vec![], |to| to.clone()),
            [] => vec![],
        }
    }
    /// Imports between parts of a folder, which are names of folders or files in it, with the files that have them.
    fn imports(&self, folder: &[String], parts: &BTreeSet<String>) -> BTreeMap<(String, String), BTreeSet<String>> {
        let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
        let part = |module: &[String]| {
            let own = module.strip_prefix(folder)?.first()?;
            parts.contains(own).then(|| own.clone())
        };
        for (file, imports) in &self.modules {
            let Some(from) = part(&imports.module) else { continue };
            for to in imports.paths.iter().filter_map(|path| part(&self.target(path))).filter(|to| *to != from) {
                found.entry((from.clone(), to)).or_default().insert(name(file));
            }
        }
        found
    }
}

/// The workspace's crates, read once.
fn parsed() -> &'static BTreeMap<String, (PathBuf, Crate)> {
    static PARSED: OnceLock<BTreeMap<String, (PathBuf, Crate)>> = OnceLock::new();
    PARSED.get_or_init(|| crates().into_iter().map(|(name, src)| (name, (src.clone(), Crate::read(&src)))).collect())
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
fn imports_are_read_from_use_and_paths() {
    let src = Path::new(env!("CARGO_TARGET_TMPDIR")).join("imports");
    let write = |file: &str, text: &str| {
        let path = src.join(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder for tests");
        std::fs::write(path, text).expect("a file for tests");
    };
    write(
        "lib.rs",
        "mod a; mod b; mod c; pub use a::{deep::Thing, other}; pub mod prelude { pub use crate::c::Name; }",
    );
    write("a/mod.rs", "mod deep; fn f() { let _ = vec![crate::b::x()]; }");
    write("a/deep.rs", "use super::super::c; #[cfg(test)] mod tests { use crate::prelude::Name; }");
    write("b/mod.rs", "use {crate::Thing, std::vec}; #[cfg(test)] mod tests;");
    write("b/tests.rs", "use crate::c;");
    write("c/mod.rs", "fn f(x: crate::prelude::Name) -> c::b::X {}");
    let all = Crate::read(&src);
    let parts = ["a", "b", "c"].map(String::from).into();
    let edge = |(from, to): &(String, String)| format!("{from} -> {to}");
    let found: Vec<String> = all.imports(&[], &parts).keys().map(edge).collect();
    assert_eq!(found, ["a -> b", "a -> c", "b -> a"]);
    std::fs::remove_dir_all(&src).expect("it was made here");
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
