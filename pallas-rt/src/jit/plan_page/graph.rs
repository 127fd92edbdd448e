//! The graph of a partitioned function as SVG: a box for each operation, collective, loop and branch.
use super::graph_layout::{BoxSize, GraphLayout, layout_boxes};
use crate::markup::bytes_text;
use crate::markup::svg::{Anchor, Svg, list_item_color, shorten_text, text_width};
use pallas_graph::{Graph, Op, Var};
use pallas_ir::{Loc, StructuralOp};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum number of boxes of a graph that is drawn.
const MAX_DRAWN_BOXES: usize = 500;
const FONT_SIZE_PIXELS: f64 = 11.0;
const LINE_HEIGHT_PIXELS: f64 = 15.0;
/// Maximum number of characters of a line in a box.
const MAX_LINE_CHARACTERS: usize = 44;

/// A box: an argument, an operation, or elementwise operations that follow each other.
struct GraphBox {
    kind: GraphBoxKind,
    /// The operations in the box by name, each with its number of occurrences.
    names: BTreeMap<String, usize>,
    /// The lines of text below the names.
    lines: Vec<String>,
    at: Loc,
    /// The indices of the boxes that it reads.
    reads: BTreeSet<usize>,
    /// The sharding of the whole array; `None` if it is not known.
    sharding: Option<String>,
}

/// The kind of a box, which decides its shape and colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GraphBoxKind {
    Argument,
    Elementwise,
    Other,
    /// A collective, with its number in the list of all.
    Collective(usize),
}

/// The names and shardings that the page shows in the graph.
pub(super) struct DrawContext<'a> {
    /// By parameter, its name and the sharding of the whole array; empty for a graph that is called.
    pub arguments: &'a [(String, String)],
    /// By name of an operation and line, the sharding of the values that it makes; `None` if they differ.
    pub shardings: &'a HashMap<(String, Loc), Option<String>>,
}

/// A drawn graph: its picture, unless it has too many boxes, and the graphs that it calls, which are drawn apart.
pub(super) struct DrawnGraph<'g> {
    /// The picture; the error is the number of boxes if they are too many.
    pub svg: Result<String, usize>,
    /// The graphs that it calls: title, graph, and the number of its first collective.
    pub inside: Vec<(String, &'g Graph, usize)>,
}

/// Number of collectives in a graph, and in those that it calls.
fn count_collectives(graph: &Graph) -> usize {
    let of = |op: &Op| match op {
        Op::Collective(op) => usize::from(op.communicates()),
        Op::Call(call) => call.graphs().into_iter().map(count_collectives).sum(),
        _ => 0,
    };
    graph.equations.iter().map(|e| of(&e.op)).sum()
}

/// Draws a graph; `next_collective` is the number of its first collective in the list of all.
pub(super) fn draw_graph<'g>(
    graph: &'g Graph,
    context: &DrawContext<'_>,
    mut next_collective: usize,
) -> DrawnGraph<'g> {
    let (mut nodes, mut inside) = (vec![], vec![]);
    // By variable, its box; constants have none.
    let mut made: HashMap<Var, usize> = HashMap::new();
    for (i, &p) in graph.params.iter().enumerate() {
        let (name, sharding) = match context.arguments.get(i) {
            Some((name, sharding)) => (name.clone(), Some(sharding.clone())),
            None => (format!("parameter {i}"), None),
        };
        let lines = vec![graph.ty(p).to_string()];
        let (names, reads) = ([(name, 1)].into(), BTreeSet::new());
        nodes.push(GraphBox { kind: GraphBoxKind::Argument, names, lines, at: Loc::NONE, reads, sharding });
        made.insert(p, i);
    }
    for e in &graph.equations {
        let number = next_collective;
        if let Op::Collective(op) = &e.op {
            next_collective += usize::from(op.communicates());
        }
        let reads: BTreeSet<usize> = e.args.iter().filter_map(|v| made.get(v).copied()).collect();
        if let Op::Call(call) = &e.op {
            let graphs = call.graphs();
            for (i, &graph) in graphs.iter().enumerate() {
                let part = if graphs.len() == 1 { "Body".into() } else { format!("Graph {i}") };
                inside.push((format!("{part} of {} at {}", call.name(), e.loc), graph, next_collective));
                next_collective += count_collectives(graph);
            }
        }
        // Constants, and what is computed from constants alone, have no box.
        if reads.is_empty() && !matches!(e.op, Op::Call(_)) {
            continue;
        }
        let name = e.op.name();
        let sharding = context.shardings.get(&(name.clone(), e.loc)).cloned().flatten();
        let kind = match &e.op {
            Op::Scalar(_) | Op::Structural(StructuralOp::Cast(_)) => GraphBoxKind::Elementwise,
            Op::Collective(op) if op.communicates() => GraphBoxKind::Collective(number),
            _ => GraphBoxKind::Other,
        };
        // An operation joins the elementwise ones that it continues if it reads nothing that they do not read.
        let is_continued = |&&node: &&usize| {
            nodes[node].kind == GraphBoxKind::Elementwise
                && reads.iter().all(|r| *r == node || nodes[node].reads.contains(r))
        };
        let joined =
            (kind == GraphBoxKind::Elementwise).then(|| reads.iter().next_back().filter(is_continued)).flatten();
        let own = match joined.copied() {
            Some(node) => {
                let own: &mut GraphBox = &mut nodes[node];
                *own.names.entry(name).or_default() += 1;
                own.lines = vec![graph.ty(e.result()).to_string()];
                own.sharding = sharding.or(own.sharding.take());
                node
            }
            None => {
                let mut lines: Vec<String> = e.results.iter().map(|&v| graph.ty(v).to_string()).take(3).collect();
                if let Op::Collective(op) = &e.op {
                    let axes = op.axes.iter().map(|axis| op.mesh.name(usize::from(axis.id)));
                    lines.push(format!("along {}", axes.collect::<Vec<_>>().join(", ")));
                    lines.push(
                        e.args.first().map_or(String::new(), |&v| bytes_text(op.bytes_sent_per_device(graph.ty(v)))),
                    );
                }
                nodes.push(GraphBox { kind, names: [(name, 1)].into(), lines, at: e.loc, reads, sharding });
                nodes.len() - 1
            }
        };
        made.extend(e.results.iter().map(|&v| (v, own)));
    }
    let results: BTreeSet<usize> = graph.results.iter().filter_map(|v| made.get(v).copied()).collect();
    // Arguments that nothing reads are left out.
    let read: BTreeSet<usize> =
        nodes.iter().flat_map(|node| node.reads.iter().copied()).chain(results.iter().copied()).collect();
    let kept: Vec<usize> =
        (0..nodes.len()).filter(|i| nodes[*i].kind != GraphBoxKind::Argument || read.contains(i)).collect();
    let svg = if kept.len() > MAX_DRAWN_BOXES { Err(kept.len()) } else { Ok(draw_boxes(&nodes, &kept, &results)) };
    DrawnGraph { svg, inside }
}

/// Returns the lines of text in a box: names, details and sharding, and "result" for the box of a result.
fn box_lines(node: &GraphBox, is_result: bool) -> Vec<String> {
    let name = |(name, count): (&String, &usize)| if *count > 1 { format!("{name} x{count}") } else { name.clone() };
    let mut all = vec![node.names.iter().map(name).collect::<Vec<_>>().join(", ")];
    all.extend(node.lines.iter().cloned());
    all.extend(node.sharding.clone());
    if is_result {
        all.push("result".into());
    }
    all
}

/// Draws the boxes `kept` of `nodes`, and the edges between them, as SVG; `results` are the boxes of results.
fn draw_boxes(nodes: &[GraphBox], kept: &[usize], results: &BTreeSet<usize>) -> String {
    let texts: Vec<Vec<String>> = kept.iter().map(|&i| box_lines(&nodes[i], results.contains(&i))).collect();
    let sized = |texts: &Vec<String>| {
        let longest = texts
            .iter()
            .map(|text| text_width(&shorten_text(text, MAX_LINE_CHARACTERS), FONT_SIZE_PIXELS))
            .fold(40.0, f64::max);
        BoxSize { width: longest + 18.0, height: texts.len() as f64 * LINE_HEIGHT_PIXELS + 10.0 }
    };
    let sizes: Vec<BoxSize> = texts.iter().map(sized).collect();
    let number: HashMap<usize, usize> = kept.iter().enumerate().map(|(k, &i)| (i, k)).collect();
    let edges: Vec<(usize, usize)> = (kept.iter().enumerate())
        .flat_map(|(k, &i)| {
            nodes[i].reads.iter().filter_map(|read| number.get(read)).map(move |&from| (from, k)).collect::<Vec<_>>()
        })
        .collect();
    let GraphLayout { corners, ways, width: wide, height: high } = layout_boxes(&sizes, &edges);
    let margin = 12.0;
    let mut svg = Svg::default();
    for way in &ways {
        let mut path = String::new();
        for (i, [x, y]) in way.iter().map(|[x, y]| [x + margin, y + margin]).enumerate() {
            if i == 0 {
                path = format!("M{x:.1} {y:.1}");
                continue;
            }
            let [px, py] = way[i - 1].map(|c| c + margin);
            let middle = (py + y) / 2.0;
            path += &format!(" C{px:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {y:.1}");
        }
        svg.path(&path, "fill=\"none\" stroke=\"#889\" stroke-width=\"1.2\"", "");
    }
    let mut colors: Vec<&str> = vec![];
    for (((&i, texts), size), corner) in kept.iter().zip(&texts).zip(&sizes).zip(&corners) {
        let node = &nodes[i];
        let [x, y] = corner.map(|c| c + margin);
        let fill = match (node.kind, &node.sharding) {
            (GraphBoxKind::Collective(_), _) => "#ffd9a0".to_string(),
            (_, Some(sharding)) => {
                let at = colors.iter().position(|other| other == sharding).unwrap_or_else(|| {
                    colors.push(sharding);
                    colors.len() - 1
                });
                list_item_color(at)
            }
            (_, None) => "#f2f2f5".to_string(),
        };
        let (radius, stroke) = match node.kind {
            GraphBoxKind::Argument => (0.0, "#556"),
            GraphBoxKind::Collective(_) => (size.height / 2.0, "#b05a00"),
            GraphBoxKind::Elementwise | GraphBoxKind::Other => (5.0, "#556"),
        };
        let place = if node.at == Loc::NONE { String::new() } else { format!(" at {}", node.at) };
        let tip = format!("{}{place}", texts.join("\n"));
        if let GraphBoxKind::Collective(number) = node.kind {
            svg.push_element(format!("<a href=\"#exchange-{number}\">"));
        }
        let style = format!("rx=\"{:.1}\" fill=\"{fill}\" stroke=\"{stroke}\"", radius.min(16.0));
        svg.rect([x, y, size.width, size.height], &style, &tip);
        for (line, text) in texts.iter().enumerate() {
            let weight = if line == 0 { "font-weight=\"bold\"" } else { "fill=\"#334\"" };
            let at = [x + size.width / 2.0, y + 17.0 + line as f64 * LINE_HEIGHT_PIXELS - 2.0];
            let style = format!("{weight} font-size=\"{FONT_SIZE_PIXELS}\" pointer-events=\"none\"");
            svg.text(at, Anchor::Middle, &style, &shorten_text(text, MAX_LINE_CHARACTERS));
        }
        if matches!(node.kind, GraphBoxKind::Collective(_)) {
            svg.push_element("</a>");
        }
    }
    svg.finish(wide + 2.0 * margin, high + 2.0 * margin, "the graph that every device runs")
}
