//! The words of WORDS.md.
use crate::tidy::{name, root, sources, text};
use std::collections::{BTreeMap, BTreeSet};

/// Words that others have replaced; none is a word of the language of kernels or of Rust.
const REPLACED: &[&str] = &["party", "parties", "meeting", "meetings"];

#[test]
fn replaced_words_are_not_used() {
    let listed = text(&root().join("WORDS.md"));
    for word in ["party", "meeting"] {
        assert!(listed.contains(&format!("`{word}`")), "WORDS.md says what stands for `{word}`");
    }
    for path in sources().into_iter().filter(|path| !path.ends_with(file!())) {
        let text = text(&path).to_lowercase();
        let found = text.split(|c: char| !c.is_alphabetic()).find(|word| REPLACED.contains(word));
        assert!(found.is_none(), "{}: `{}`; see WORDS.md", name(&path), found.unwrap_or_default());
    }
}

/// Clauses name nothing: a comment begins with a noun phrase or a verb.
const CLAUSES: &[&str] = &["What", "Whether", "How", "Why", "Which", "Who"];

#[test]
fn comments_of_items_begin_with_no_clause() {
    let (mut comments, mut wrong) = (0, vec![]);
    for path in sources().into_iter().filter(|path| !name(path).contains("tests")) {
        let text = text(&path);
        let mut before = "";
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let comment = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
            // Of a paragraph the first line alone.
            if let Some(comment) = comment.filter(|_| !before.starts_with("///") && !before.starts_with("//!")) {
                comments += 1;
                if CLAUSES.contains(&comment.split(' ').next().unwrap_or_default()) {
                    wrong.push(format!("{}:{}: {comment}", name(&path), number + 1));
                }
            }
            before = line;
        }
    }
    assert!(comments > 5000, "comments are found");
    assert!(wrong.is_empty(), "begin with a noun phrase or a verb:\n{}", wrong.join("\n"));
}

/// Names of types that more modules of a crate share, each with its reason.
const SHARED: &[(&str, &str)] = &[("Options", "each kernel has its own, which users name with the module")];

/// A name that stands for three things has to be looked up each time.
#[test]
fn at_most_two_modules_of_a_crate_name_a_type_alike() {
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for path in sources() {
        let name = name(&path);
        let Some((krate, file)) = name.split_once("/src/").filter(|(_, file)| !file.contains("tests")) else {
            continue;
        };
        let parsed = syn::parse_file(&text(&path)).unwrap_or_else(|e| panic!("{name}: {e}"));
        for item in parsed.items {
            let ident = match item {
                syn::Item::Struct(item) => item.ident,
                syn::Item::Enum(item) => item.ident,
                syn::Item::Trait(item) => item.ident,
                syn::Item::Type(item) => item.ident,
                syn::Item::Union(item) => item.ident,
                _ => continue,
            };
            found.entry((krate.to_string(), ident.to_string())).or_default().insert(file.to_string());
        }
    }
    assert!(found.len() > 1000, "types are found");
    found.retain(|_, files| files.len() > 2);
    let shared = |name: &str| SHARED.iter().any(|(other, _)| *other == name);
    assert!(found.keys().any(|(_, name)| shared(name)), "nothing is left of SHARED");
    found.retain(|(_, name), _| !shared(name));
    assert!(found.is_empty(), "{found:#?}");
}
