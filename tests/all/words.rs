//! The words of WORDS.md.
use crate::tidy::{name, root, sources, text};

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
