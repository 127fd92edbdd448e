//! Functions of the user's with a name of the language. They shadow the prelude if the kernel's file declares or
//! imports them by name, so the file is read before a mistake is reported.
use std::collections::BTreeSet;

/// Returns those of these names that the file of the kernel declares or imports.
pub(super) fn names_declared_in_file(names: &BTreeSet<String>) -> BTreeSet<String> {
    if !proc_macro::is_available() {
        return BTreeSet::new();
    }
    let file = proc_macro::Span::call_site().local_file();
    let text = file.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    names.iter().filter(|n| declares_or_imports(&text, n)).cloned().collect()
}

/// Returns true if the source text has a function of this name, or imports one from another crate than `pallas_rt`.
pub(super) fn declares_or_imports(source: &str, name: &str) -> bool {
    let words = |s: &str| -> Vec<String> {
        s.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty()).map(String::from).collect()
    };
    let is_function = words(source).windows(2).any(|w| w[0] == "fn" && w[1] == name);
    let imports = source.match_indices("use ").filter_map(|(at, _)| source[at..].split(';').next());
    is_function || imports.map(words).any(|w| w.iter().any(|w| w == name) && !w.iter().any(|w| w == "pallas_rt"))
}
