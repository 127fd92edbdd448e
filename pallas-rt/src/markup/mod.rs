//! Markup that this crate writes: [`svg`] has the elements of pictures; here are pages and the texts in both.
//!
//! Pages and pictures are one file each: they load nothing, and every text from a program is [`escape_markup`].
pub(crate) mod svg;
#[cfg(test)]
pub(crate) mod tests;

/// Escapes text so that it is safe between tags and in attributes.
pub(crate) fn escape_markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML has no other control characters, not even as references.
            c if c < ' ' && !matches!(c, '\t' | '\n') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Text of a number of bytes: `1.50 MiB`; numbers below 1024 as they are.
pub(crate) fn bytes_text(bytes: usize) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    match unit {
        0 => format!("{bytes} B"),
        _ => format!("{:.2} {}", bytes as f64 / (1u64 << (10 * unit)) as f64, units[unit.min(5)]),
    }
}

/// Text of a time: `1.500 ms`.
pub(crate) fn seconds_text(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s if s > 0.0 => format!("{:.2} us", s * 1e6),
        _ => "0".into(),
    }
}

/// Aligns cells in columns: each row is a line, with two spaces before each cell, and columns as wide as their widest
/// cell.
pub(crate) fn align_columns(rows: &[Vec<String>]) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: String = row.iter().zip(&widths).map(|(cell, width)| format!("  {cell:<width$}")).collect();
        format!("{}\n", cells.trim_end())
    };
    rows.iter().map(line).collect()
}

/// The style sheet of all pages.
const PAGE_STYLE_SHEET: &str = "
body { font: 15px/1.45 system-ui, sans-serif; color: #223; background: #fff; margin: 0 auto; max-width: 1240px; padding: 8px 24px 60px; }
h1 { font-size: 22px; margin: 20px 0 4px; } h2 { font-size: 18px; margin: 34px 0 8px; border-bottom: 1px solid #ccd; }
h3 { font-size: 15px; margin: 18px 0 6px; } h1 code { font-size: 20px; }
nav a { margin-right: 16px; }
code, td.code { font: 13px/1.4 ui-monospace, Menlo, Consolas, monospace; }
table { border-collapse: collapse; width: 100%; } td, th { padding: 4px 10px; text-align: left; vertical-align: top; border-bottom: 1px solid #e4e4ea; }
th { background: #f4f4f8; } td.number, th.number { text-align: right; white-space: nowrap; }
tr:target, section:target { background: #fff3d6; }
.graph { overflow-x: auto; border: 1px solid #dde; padding: 4px; } .graph svg { display: block; margin: 0 auto; }
.pictures { display: flex; flex-wrap: wrap; gap: 18px; align-items: flex-start; } .pictures section { border: 1px solid #dde; padding: 8px 12px; overflow-x: auto; max-width: 100%; }
pre { font: 12px/1.4 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; margin: 4px 0; } summary { color: #667; cursor: pointer; }
p.note { color: #556; } p.fact { margin: 4px 0; } .wide { overflow-x: auto; }
.control { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; } .control input { flex: 1 1 160px; max-width: 520px; }
.steps { font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
";

/// A page of HTML with a title and a body that is markup.
pub(crate) fn html_page(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>{}</title>\n\
         <style>{PAGE_STYLE_SHEET}</style></head>\n<body>\n{body}</body></html>\n",
        escape_markup(title)
    )
}
