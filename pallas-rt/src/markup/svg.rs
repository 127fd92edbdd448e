//! Boxes, lines and text as SVG: the elements of the pictures of shardings, graphs, plans and kernels.
use super::escape_markup;
use std::fmt::{Display, Write};

/// Width of a character of monospaced text, as a fraction of the font's size.
const CHARACTER_WIDTH_RATIO: f64 = 0.61;

/// Number of monospaced characters of this font size that fit in a width.
pub(crate) fn max_characters(width: f64, font_size: f64) -> usize {
    (width / (font_size * CHARACTER_WIDTH_RATIO)).max(0.0) as usize
}

/// The width of monospaced text of this font size.
pub(crate) fn text_width(text: &str, font_size: f64) -> f64 {
    text.chars().count() as f64 * font_size * CHARACTER_WIDTH_RATIO
}

/// The text, cut so that it ends with `…` if it has more than `max_length` characters.
pub(crate) fn shorten_text(text: &str, max_length: usize) -> String {
    match text.chars().count() {
        n if n <= max_length => text.to_string(),
        _ if max_length == 0 => String::new(),
        _ => text.chars().take(max_length - 1).chain(['…']).collect(),
    }
}

/// The largest width and height with this ratio of width to height that fit in a box.
pub(crate) fn fit_in_box(aspect: f64, [max_width, max_height]: [f64; 2]) -> [f64; 2] {
    if aspect > max_width / max_height { [max_width, max_width / aspect] } else { [max_height * aspect, max_height] }
}

/// A light colour for the member with this number of a list; neighbours differ by the golden angle.
pub(crate) fn list_item_color(number: usize) -> String {
    format!("hsl({:.0}, 60%, 82%)", (number as f64 * 137.508 + 205.0) % 360.0)
}

/// Point of a line of text that lies at its x position: SVG's `text-anchor`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture under construction; lengths are pixels.
#[derive(Default)]
pub(crate) struct Svg {
    body: String,
}

impl Svg {
    /// Appends the text of SVG elements without escaping it.
    pub(crate) fn push_element(&mut self, element: impl Display) {
        writeln!(self.body, "{element}").expect("a string");
    }

    /// Adds a box with attributes of its own, such as `fill="#fff"`, and the text of its tooltip.
    pub(crate) fn rect(&mut self, [x, y, w, h]: [f64; 4], attributes: &str, tooltip: &str) {
        let tip = if tooltip.is_empty() { String::new() } else { format!("<title>{}</title>", escape_markup(tooltip)) };
        let (w, h) = (w.max(0.0), h.max(0.0));
        self.push_element(format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" {attributes}>{tip}</rect>"
        ));
    }

    /// Adds a line of text, whose baseline is at `y`.
    pub(crate) fn text(&mut self, [x, y]: [f64; 2], anchor: Anchor, attributes: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        self.push_element(format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\"{anchor} {attributes}>{}</text>",
            escape_markup(text)
        ));
    }

    /// Adds a path, in SVG's syntax, with attributes of its own and the text of its tooltip.
    pub(crate) fn path(&mut self, path: &str, attributes: &str, tooltip: &str) {
        let tip = if tooltip.is_empty() { String::new() } else { format!("<title>{}</title>", escape_markup(tooltip)) };
        self.push_element(format!("<path d=\"{path}\" {attributes}>{tip}</path>"));
    }

    /// Adds another picture's elements, moved to a position.
    pub(crate) fn group(&mut self, [x, y]: [f64; 2], inner: Svg) {
        self.push_element(format!("<g transform=\"translate({x:.1} {y:.1})\">\n{}</g>", inner.body));
    }

    /// Finishes the picture: a document of this size on white, with a title for screen readers.
    pub(crate) fn finish(self, width: f64, height: f64, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"12\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            escape_markup(title),
            self.body,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_shortened() {
        assert_eq!(escape_markup("<a b=\"c\">&'\u{1}"), "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\u{fffd}");
        assert_eq!(shorten_text("abcdef", 6), "abcdef");
        assert_eq!(shorten_text("abcdef", 4), "abc…");
        assert_eq!(shorten_text("äöü", 0), "");
        assert_eq!(max_characters(text_width("twelve chars", 12.0), 12.0), 12);
    }
}
