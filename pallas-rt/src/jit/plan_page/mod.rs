//! A partitioned function as one page of HTML: its collectives, graph, shardings and values. It needs no script and no
//! other file.
//!
//! - `graph`: the graph as SVG; `graph_layout`: the positions of its boxes.
mod graph;
mod graph_layout;

use super::sharded::{CollectiveUse, ShardedValue, Shardings};
use crate::markup::{bytes_text, escape_markup, html_page};
use crate::sharding::{Mesh, Picture, Sharding, to_hlo_sharding};
use graph::{DrawContext, DrawnGraph, draw_graph};
use pallas_graph::{Graph, simplify};
use pallas_ir::Loc;
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Shardings {
    /// One page of HTML, which needs no script and no other file: the collectives with their bytes, causes and lines,
    /// the graph that every device runs, a picture of each sharding, and all values with the paths of their axes from
    /// annotations. The shardings in the graph are those of whole arrays.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P};
    /// use pallas_rt::{partitioned, with_sharding_constraint};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 2)]).expect("a mesh"));
    /// let inner = NamedSharding::new(&mesh, P((None, "model")));
    /// let f = move |x: &Array| with_sharding_constraint(x, &inner).sum(1);
    /// let x = Client::cpu().shape_dtype(&[8, 8], DType::F32)?;
    /// let page = partitioned(f)(&x)?.to_html();
    /// assert!(page.contains("all_reduce") && page.ends_with("</html>\n"));
    /// std::fs::write(std::env::temp_dir().join("function.html"), page)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_html(&self) -> String {
        let (mesh, values, collectives) = (self.mesh(), self.values(), self.collectives());
        let used = distinct_sharding_texts(mesh, &values);
        let mut body = format!(
            "<h1>A function on the mesh <code>{}</code></h1>\n\
             <p>{} devices, {} values sharded in {} ways, {} collectives.</p>\n\
             <nav><a href=\"#collectives\">Exchanges</a><a href=\"#graph\">Graph</a><a href=\"#shardings\">Shardings</a>\
             <a href=\"#values\">Values</a></nav>\n",
            escape_markup(&mesh.to_string()),
            mesh.device_count(),
            values.len(),
            used.len(),
            collectives.len(),
        );
        write_collectives(&mut body, &collectives);
        self.write_graphs(&mut body, &values);
        write_sharding_pictures(&mut body, mesh, &values, &used);
        self.write_value_table(&mut body, &values, &used);
        html_page(&format!("A function on the mesh {mesh}"), &body)
    }

    /// The paths by which the axes of a value came from annotations, as text; `i` is the value's position in the list.
    fn axis_provenance_texts(&self, i: usize, value: &ShardedValue) -> Vec<String> {
        let axes = value.sharding.axes().concat();
        let names: BTreeSet<&str> = axes.iter().map(|axis| self.mesh().name(usize::from(axis.id))).collect();
        names.into_iter().filter_map(|axis| self.why(i, axis).ok()).map(|why| why.to_string()).collect()
    }

    /// Writes the graph that every device runs, then those that it calls.
    fn write_graphs(&self, page: &mut String, values: &[ShardedValue]) {
        let mesh = self.mesh();
        let short = |value: &ShardedValue| sharding_text(mesh, value).replace('"', "");
        let mut shardings: HashMap<(String, Loc), Option<String>> = HashMap::new();
        for value in values {
            let text = short(value);
            let entry = shardings.entry((value.name.clone(), value.at)).or_insert_with(|| Some(text.clone()));
            if entry.as_ref() != Some(&text) {
                *entry = None;
            }
        }
        let arguments = values.iter().filter(|value| value.name == "argument");
        let arguments: Vec<(String, String)> = arguments.map(|value| (value_title(value), short(value))).collect();
        page.push_str(
            "<h2 id=\"graph\">The graph that every device runs</h2>\n<p class=\"note\">Types are those of a device's \
             blocks, shardings those of the whole arrays. Round boxes are collectives. Elementwise operations that follow each \
             other are one box; numbers and positions are left out.</p>\n",
        );
        let local = simplify::simplify(self.device_graph());
        write_graph_section(page, &local, &DrawContext { arguments: &arguments, shardings: &shardings }, 0);
    }

    /// Writes the table of all values with their shardings, and the reasons for these; `sharding_texts` are the texts
    /// of all shardings.
    fn write_value_table(&self, page: &mut String, values: &[ShardedValue], sharding_texts: &[String]) {
        let mesh = self.mesh();
        page.push_str(
            "<h2 id=\"values\">Values</h2>\n<table><tr><th>value</th><th>array</th><th>sharding, and where it comes from</th>\
             <th>block</th><th>line</th></tr>\n",
        );
        for (i, value) in values.iter().enumerate() {
            let (text, own) = (value.sharding.text(mesh), sharding_text(mesh, value));
            let number = sharding_texts.iter().position(|other| *other == own).expect("its division is used");
            let block = pallas_ir::Type::new(value.ty.dtype, value.sharding.local_shape(&value.ty.shape));
            let reasons = self.axis_provenance_texts(i, value);
            let why = match reasons.is_empty() {
                true => String::new(),
                false => {
                    format!(
                        "<details><summary>why</summary><pre>{}</pre></details>",
                        escape_markup(&reasons.join("\n\n"))
                    )
                }
            };
            *page += &format!(
                "<tr><td>{}</td><td class=\"code\">{}</td><td class=\"code\"><a href=\"#sharding-{number}\">{}</a>{why}</td>\
                 <td class=\"code\">{block}</td><td class=\"code\">{}</td></tr>\n",
                escape_markup(&value_title(value)),
                value.ty,
                escape_markup(&text),
                location_text(value.at),
            );
        }
        page.push_str("</table>\n");
    }
}

/// Writes a graph, and those that it calls. `first_collective` is the number of its first collective in the list of
/// all.
fn write_graph_section(page: &mut String, graph: &Graph, context: &DrawContext<'_>, first_collective: usize) {
    let DrawnGraph { svg, inside } = draw_graph(graph, context, first_collective);
    match svg {
        Ok(svg) => *page += &format!("<div class=\"graph\">\n{svg}</div>\n"),
        Err(boxes) => {
            *page += &format!(
                "<p class=\"note\">{boxes} boxes are too many to draw; <code>to_local_text</code> has all operations.</p>\n"
            )
        }
    }
    for (title, graph, first) in inside {
        *page += &format!("<h3>{}</h3>\n", escape_markup(&title));
        write_graph_section(page, graph, &DrawContext { arguments: &[], ..*context }, first);
    }
}

/// Text of the sharding of a value, without openness: that propagation could add axes does not matter any more.
fn sharding_text(mesh: &Mesh, value: &ShardedValue) -> String {
    let unreduced = value.sharding.unreduced.clone();
    Sharding { unreduced, ..Sharding::closed(value.sharding.axes()) }.text(mesh)
}

/// The texts of all shardings of values, in the order in which they occur; the page has a picture of each.
fn distinct_sharding_texts(mesh: &Mesh, values: &[ShardedValue]) -> Vec<String> {
    let mut all: Vec<String> = vec![];
    for text in values.iter().map(|value| sharding_text(mesh, value)) {
        if !all.contains(&text) {
            all.push(text);
        }
    }
    all
}

/// Returns the file and line of a location in the user's code as text; empty for `Loc::NONE`.
fn location_text(at: Loc) -> String {
    if at == Loc::NONE { String::new() } else { escape_markup(&at.to_string()) }
}

/// Writes the totals of the collectives along each set of axes, and the list of all collectives.
fn write_collectives(page: &mut String, all: &[CollectiveUse]) {
    page.push_str("<h2 id=\"collectives\">Exchanges</h2>\n");
    if all.is_empty() {
        page.push_str("<p>There are none.</p>\n");
        return;
    }
    let mut totals: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for exchange in all {
        let own = totals.entry(exchange.axes.join(", ")).or_default();
        let times = exchange.times.unwrap_or(1);
        *own = (own.0 + times, own.1 + times * exchange.bytes);
    }
    page.push_str("<p>Bytes are those that each device sends. Scans do all their steps, loops of unknown length one, and branches all of them.</p>\n<table>");
    page.push_str("<tr><th>axes</th><th class=\"number\">collectives</th><th class=\"number\">bytes</th></tr>\n");
    for (axes, (count, bytes)) in totals {
        let (axes, bytes) = (escape_markup(&axes), bytes_text(bytes));
        *page +=
            &format!("<tr><td>{axes}</td><td class=\"number\">{count}</td><td class=\"number\">{bytes}</td></tr>\n");
    }
    page.push_str(
        "</table>\n<h3>All of them</h3>\n<table><tr><th class=\"number\"></th><th>exchange</th><th>axes</th>\
         <th class=\"number\">times</th><th class=\"number\">bytes each time</th><th>cause</th><th>line</th></tr>\n",
    );
    for (number, exchange) in all.iter().enumerate() {
        let CollectiveUse { name, axes, bytes, cause, at, times, .. } = exchange;
        let times = times.map_or("?".into(), |n| n.to_string());
        let (axes, bytes, at) = (escape_markup(&axes.join(", ")), bytes_text(*bytes), location_text(*at));
        *page += &format!(
            "<tr id=\"exchange-{number}\"><td class=\"number\">{number}</td><td class=\"code\">{name}</td><td>{axes}</td>\
             <td class=\"number\">{times}</td><td class=\"number\">{bytes}</td><td>{cause}</td><td class=\"code\">{at}</td></tr>\n"
        );
    }
    page.push_str("</table>\n");
}

/// Writes a picture of each sharding, for the first value that has it.
fn write_sharding_pictures(page: &mut String, mesh: &Mesh, values: &[ShardedValue], sharding_texts: &[String]) {
    page.push_str("<h2 id=\"shardings\">Shardings</h2>\n<div class=\"pictures\">\n");
    for (number, text) in sharding_texts.iter().enumerate() {
        let value = values.iter().find(|value| sharding_text(mesh, value) == *text).expect("a value has it");
        let Ok(picture) = Picture::new(mesh, &value.sharding, &value.ty.shape) else { continue };
        let (hlo, ty) = (to_hlo_sharding(mesh, &value.sharding), value.ty.to_string());
        *page += &format!(
            "<section id=\"sharding-{number}\"><h3><code>{}</code></h3>\n<p class=\"note\">of {ty}, <code>{}</code></p>\n\
             {}</section>\n",
            escape_markup(text),
            escape_markup(&hlo),
            picture.to_svg(),
        );
    }
    page.push_str("</div>\n");
}

/// The operation that makes a value, or `argument` with its path.
fn value_title(value: &ShardedValue) -> String {
    value.path.as_ref().map_or(value.name.clone(), |path| format!("{} {path}", value.name))
}
