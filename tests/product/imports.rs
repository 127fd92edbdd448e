//! What the files of the workspace import, read from their sources.
use super::tidy::{files, name, root, text};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use syn::visit::{self, Visit};

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

/// The names of a module's folders and file from the crate's root.
type Module = Vec<String>;

/// The paths and macros that a file names, without tests.
pub(super) struct Imports {
    /// The module that the visited code is in.
    pub(super) module: Vec<String>,
    /// Paths from the crate's root; those of other crates begin with `::`.
    pub(super) paths: BTreeSet<Vec<String>>,
    /// Names that it re-exports -> their paths.
    exports: BTreeMap<String, Vec<String>>,
    pub(super) macros: BTreeSet<String>,
    /// Modules of the file that are compiled for tests only.
    tests: BTreeSet<Vec<String>>,
    /// Modules written in the file itself.
    inline: BTreeSet<String>,
    pub(super) gpu_feature: bool,
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
        let (paths, exports, macros, tests, inline) = Default::default();
        let mut found = Imports { module, paths, exports, macros, tests, inline, gpu_feature: false };
        found.visit_file(&parsed);
        found
    }
    /// A path as written, converted to a path from the crate's root.
    fn path_from_root(&self, segments: &[String]) -> Vec<String> {
        let mut at: Vec<String> = match segments[0].as_str() {
            "self" | "super" => self.module.clone(),
            _ => vec![],
        };
        let mut rest = segments.iter().cloned().peekable();
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
        at
    }
    fn add(&mut self, segments: &[String]) {
        let path = self.path_from_root(segments);
        self.paths.insert(path);
    }
    /// Adds the paths of a `use`; those of a `pub use` by the names that they get too.
    fn tree(&mut self, before: &[String], tree: &syn::UseTree, exports: bool) {
        let and = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        let (path, name) = match tree {
            syn::UseTree::Path(p) => return self.tree(&and(&p.ident), &p.tree, exports),
            syn::UseTree::Group(g) => return g.items.iter().for_each(|t| self.tree(before, t, exports)),
            syn::UseTree::Name(n) if n.ident == "self" => (before.to_vec(), before.last().cloned().unwrap_or_default()),
            syn::UseTree::Name(n) => (and(&n.ident), n.ident.to_string()),
            syn::UseTree::Rename(n) => (and(&n.ident), n.rename.to_string()),
            syn::UseTree::Glob(_) => (and(&"*"), "*".into()),
        };
        if exports {
            // A path of a child: `deep::Thing`.
            let is_from_root = matches!(path[0].as_str(), "crate" | "self" | "super");
            let full = if is_from_root { self.path_from_root(&path) } else { [&self.module[..], &path].concat() };
            self.exports.insert(name, full);
        }
        self.add(&path);
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
        self.tree(&[], &u.tree, !matches!(u.vis, syn::Visibility::Inherited));
        visit::visit_item_use(self, u);
    }
    fn visit_path(&mut self, path: &'a syn::Path) {
        self.add(&path.segments.iter().map(|s| s.ident.to_string()).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
    /// `pub(super)` imports nothing.
    fn visit_vis_restricted(&mut self, _: &'a syn::VisRestricted) {}
    fn visit_macro(&mut self, m: &'a syn::Macro) {
        self.macros.extend(m.path.segments.last().map(|s| s.ident.to_string()));
        // Paths in the arguments of a macro: `crate :: cpu :: run`.
        let text = m.tokens.to_string().replace(" :: ", "::");
        let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for word in text.split(|c: char| !is_name(c)).filter(|w| w.starts_with("crate::") || w.starts_with("super::")) {
            self.add(&word.split("::").filter(|s| !s.is_empty()).map(String::from).collect::<Vec<_>>());
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
pub(super) struct Crate {
    pub(super) modules: BTreeMap<PathBuf, Imports>,
    /// Names that `lib.rs` re-exports -> their paths; its inline modules, which re-export as well.
    root: BTreeMap<String, Vec<String>>,
    inline: BTreeSet<String>,
    /// True if `lib.rs` is compiled differently with wgpu.
    pub(super) gpu_feature: bool,
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
    pub(super) fn imports(
        &self,
        folder: &[String],
        parts: &BTreeSet<String>,
    ) -> BTreeMap<(String, String), BTreeSet<String>> {
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
    /// The module in which the item of a path is, behind all re-exports.
    fn module_of(&self, path: &[String]) -> Vec<String> {
        let is_module = |n: &usize| self.modules.values().any(|m| m.module == path[..*n]);
        let depth = (1..=path.len()).rev().find(is_module).unwrap_or(0);
        let own = self.modules.values().find(|m| m.module == path[..depth]);
        let export = path.get(depth).and_then(|name| own?.exports.get(name)).filter(|to| !to.starts_with(path));
        match export {
            Some(to) => self.module_of(&[&to[..], &path[depth + 1..]].concat()),
            None => path[..depth].to_vec(),
        }
    }
    /// Imports between the files of each folder, its `mod.rs` among them, by the names of their modules.
    fn between_files(&self) -> BTreeMap<Module, BTreeSet<(Module, Module)>> {
        let is_folder = |module: &[String]| {
            self.modules.values().any(|m| m.module.len() > module.len() && m.module.starts_with(module))
        };
        let mut found: BTreeMap<Module, BTreeSet<_>> = BTreeMap::new();
        for from in self.modules.values() {
            for path in &from.paths {
                let path = match path.split_first() {
                    Some((first, rest)) if first == "::" => [&from.module[..], rest].concat(),
                    _ => self.target(path),
                };
                let to = self.module_of(&path);
                let is_no_import =
                    from.exports.values().any(|export| *export == path) || path.contains(&"tests".into());
                if is_no_import || to == from.module {
                    continue;
                }
                // A file's folder, and the file of a folder itself.
                let parent = |m: &[String]| m[..m.len().saturating_sub(1)].to_vec();
                for folder in [parent(&from.module), from.module.clone()] {
                    let is_in = |m: &[String]| m == folder || (parent(m) == folder && !is_folder(m));
                    if is_in(&from.module) && is_in(&to) && !to.is_empty() {
                        found.entry(folder).or_default().insert((from.module.clone(), to.clone()));
                    }
                }
            }
        }
        found
    }
    /// Files of one folder that import each other, directly or through others of it.
    pub(super) fn circles(&self) -> Vec<Vec<String>> {
        let mut found = vec![];
        for edges in self.between_files().values() {
            let reached = |start: &Vec<String>, back: bool| {
                let (mut seen, mut open) = (BTreeSet::new(), vec![start.clone()]);
                while let Some(at) = open.pop() {
                    let ends = edges.iter().map(|(a, b)| if back { (b, a) } else { (a, b) });
                    open.extend(ends.filter(|(a, b)| **a == at && seen.insert((*b).clone())).map(|(_, b)| b.clone()));
                }
                seen
            };
            let mut files: BTreeSet<Vec<String>> = edges.iter().map(|(from, _)| from.clone()).collect();
            while let Some(file) = files.pop_first() {
                let circle: BTreeSet<_> = reached(&file, false).intersection(&reached(&file, true)).cloned().collect();
                files.retain(|other| !circle.contains(other));
                if !circle.is_empty() {
                    found.push(circle.iter().map(|module| module.join("/")).collect());
                }
            }
        }
        found
    }
}

/// The workspace's crates, read once.
pub(super) fn parsed() -> &'static BTreeMap<String, (PathBuf, Crate)> {
    static PARSED: OnceLock<BTreeMap<String, (PathBuf, Crate)>> = OnceLock::new();
    PARSED.get_or_init(|| crates().into_iter().map(|(name, src)| (name, (src.clone(), Crate::read(&src)))).collect())
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
    // `e` has `b`'s function by a re-export of `d`, whose file imports `b`, which imports `e`'s.
    write("d/mod.rs", "mod e; mod f; pub use f::x; use e::y;");
    write("d/e.rs", "use super::x; pub fn y() {}");
    write("d/f.rs", "use super::e::y; pub fn x() {}");
    assert_eq!(Crate::read(&src).circles(), [["d/e", "d/f"]]);
    write("d/f.rs", "use super::e; pub fn x() {}");
    write("d/e.rs", "use super::z; pub fn y() {}");
    assert_eq!(Crate::read(&src).circles(), [["d", "d/e"]]);
    std::fs::remove_dir_all(&src).expect("it was made here");
}
