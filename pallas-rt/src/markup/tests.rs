//! Checks the form of SVG and HTML that this crate writes.

/// Fails unless a text is well-formed markup: tags that close in order, attributes in quotes and once each, known
/// entities.
pub(crate) fn check_markup(text: &str) {
    let mut open: Vec<&str> = vec![];
    let mut rest = text.strip_prefix("<!DOCTYPE html>").unwrap_or(text);
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at]);
        let (tag, after) = rest[at + 1..].split_once('>').unwrap_or_else(|| panic!("a tag has no end: {rest}"));
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> before {}", &rest[..rest.len().min(80)]);
            continue;
        }
        let (tag, is_closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let name = tag.split_whitespace().next().unwrap_or_default();
        check_attributes(tag[name.len()..].trim());
        if !is_closed {
            open.push(name);
        }
        // The text of a style or a script is no markup.
        if ["style", "script"].contains(&name) {
            let end = rest.find(&format!("</{name}>")).unwrap_or_else(|| panic!("a {name} has no end"));
            rest = &rest[end..];
        }
    }
    check_text(rest);
    assert!(open.is_empty(), "without an end: {open:?}");
}

fn check_text(text: &str) {
    for part in text.split('&').skip(1) {
        let entity = part.split(';').next().unwrap_or_default();
        let is_known = ["amp", "lt", "gt", "quot", "#39"].contains(&entity);
        assert!(is_known && part.contains(';'), "an entity: &{}", &part[..part.len().min(20)]);
    }
    assert!(!text.contains(|c: char| c < ' ' && c != '\n' && c != '\t'), "a control character in {text:?}");
}

fn check_attributes(mut text: &str) {
    let mut seen = vec![];
    while !text.is_empty() {
        let (name, after) = text.split_once("=\"").unwrap_or_else(|| panic!("an attribute without a value: {text}"));
        let (value, after) = after.split_once('"').unwrap_or_else(|| panic!("a value has no end: {text}"));
        check_text(value);
        assert!(!value.contains('<'), "{value}");
        assert!(!seen.contains(&name) && name.chars().all(|c| c.is_ascii_alphanumeric() || "-:".contains(c)), "{name}");
        seen.push(name);
        text = after.trim_start();
    }
}

#[test]
fn markup_that_is_not_well_formed() {
    check_markup("<!DOCTYPE html><a b=\"c &lt; d\"><e/>x &amp; y<style>a > b { }</style></a>");
    let wrong =
        ["<a>", "<a></b>", "<a b=c></a>", "<a b=\"1\" b=\"2\"/>", "<a>&nbsp;</a>", "<a>& </a>", "<a b=\"<\"/>", "</a>"];
    for text in wrong {
        assert!(std::panic::catch_unwind(|| check_markup(text)).is_err(), "{text}");
    }
}
