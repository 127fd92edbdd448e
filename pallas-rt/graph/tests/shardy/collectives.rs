//! All collectives of whole programs: their kinds, axes and bytes.
use crate::draw::{Config, Drawn};
use crate::oracle::{Module, Operation, ask, python};
use crate::{parsed, programs};
use pallas_graph::mesh::{Axis, CollectiveKind, Mesh, Permute, Sharding, axes_text, product_of_sizes};
use pallas_graph::shard::propagation_program::RegionGraph;
use pallas_graph::shard::{partition, propagate};
use pallas_graph::{Graph, Op};
use std::collections::BTreeMap;

/// A kind with the axes along which devices differ, and the bytes that a device sends.
type Exchanged = (String, usize);

fn exchanged(kind: &str, axes: &[Axis], mesh: &Mesh, operand: usize) -> Exchanged {
    let k = product_of_sizes(axes);
    let bytes = match kind {
        "all_gather" => operand * (k - 1),
        "all_to_all" | "reduce_scatter" => operand / k * (k - 1),
        "all_reduce" => 2 * operand.div_ceil(k) * (k - 1),
        _ => operand,
    };
    let mut axes = axes.to_vec();
    axes.sort();
    // A permute is among all devices, whichever axes it exchanges.
    let axes = if kind == "collective_permute" { String::new() } else { axes_text(&axes, mesh) };
    (format!("{kind} {{{axes}}}"), bytes)
}

/// The collectives of a graph, those of loops and branches once. The rows that neighbours exchange are counted apart:
/// in Shardy's program operations move elements themselves.
fn ours(graph: &Graph, mesh: &Mesh, all: &mut Vec<Exchanged>, rows: &mut usize) {
    for e in &graph.equations {
        match &e.op {
            Op::Collective(op) if op.communicates() => {
                let is_reshard =
                    |sources: &[Option<usize>]| op.axes == mesh.axes() && sources.iter().all(Option::is_some);
                match &op.kind {
                    CollectiveKind::Permute(Permute(sources)) if !is_reshard(sources) => *rows += 1,
                    _ => all.push(exchanged(op.name(), &op.axes, mesh, graph.ty(e.args[0]).bytes())),
                }
            }
            Op::Call(call) => call.graphs().into_iter().for_each(|graph| ours(graph, mesh, all, rows)),
            _ => {}
        }
    }
}

/// The axes in an attribute such as `#sdy<list_of_axis_ref_lists[{"x"}, {}]>`, by list.
fn lists(text: &str, mesh: &Mesh) -> Vec<Vec<Axis>> {
    let inside = &text[text.find('[').expect("a list")..=text.rfind(']').expect("its end")];
    let sharding = Sharding::parse(inside, mesh).unwrap_or_else(|e| panic!("{text}: {e}"));
    sharding.dims.into_iter().map(|dim| dim.axes).collect()
}

fn theirs(op: &Operation, mesh: &Mesh) -> Vec<Exchanged> {
    let Some(kind) = op.name.strip_prefix("sdy.") else { return vec![] };
    let shape: Vec<usize> = (op.attribute("type").and_then(|ty| ty.strip_prefix("tensor<")))
        .map_or(vec![], |ty| ty.split('x').filter_map(|n| n.parse().ok()).collect());
    let after = op.attribute("out_sharding").and_then(|text| parsed(text, mesh));
    let Some(after) = after else { return vec![] };
    let bytes = |sharding: &Sharding| 4 * sharding.local_shape(&shape).iter().product::<usize>();
    let get = |name: &str| op.attribute(name).unwrap_or_else(|| panic!("{name} of {op:?}"));
    let longer = |lists: &[Vec<Axis>]| {
        let mut before = after.clone();
        before.dims.iter_mut().zip(lists).for_each(|(dim, axes)| dim.axes.extend(axes));
        before
    };
    match kind {
        "all_gather" => {
            let lists = lists(get("gathering_axes"), mesh);
            vec![exchanged(kind, &lists.concat(), mesh, bytes(&longer(&lists)))]
        }
        "reduce_scatter" => {
            let axes = lists(get("reduce_scatter_axes"), mesh).concat();
            vec![exchanged(kind, &axes, mesh, bytes(&after) * product_of_sizes(&axes))]
        }
        "all_reduce" => {
            let text = get("reduction_axes");
            let inside = &text[text.find('{').expect("a list")..=text.rfind('}').expect("its end")];
            let axes = lists(&format!("[{inside}]"), mesh).concat();
            vec![exchanged(kind, &axes, mesh, bytes(&after))]
        }
        "all_to_all" => {
            let text = get("params");
            // `{"x"}: 0->1`
            let moves = text.split("{").skip(1).filter_map(|text| text.split_once("}: "));
            let of = |(axes, dims): (&str, &str)| {
                let axes = lists(&format!("[{{{axes}}}]"), mesh).concat();
                let dims = dims.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
                let [from, to] = dims.take(2).collect::<Vec<usize>>()[..] else { panic!("{text}") };
                // Both dimensions are blocks.
                let (mut before, mut local) = (after.clone(), after.local_shape(&shape));
                before.dims[from].axes.extend(&axes);
                local[from] = before.local_shape(&shape)[from];
                local[to] *= product_of_sizes(&axes);
                exchanged(kind, &axes, mesh, 4 * local.iter().product::<usize>())
            };
            moves.map(of).collect()
        }
        "collective_permute" => vec![exchanged(kind, &[], mesh, bytes(&after))],
        _ => vec![],
    }
}

fn counted(all: &[Exchanged]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    all.iter().for_each(|(name, _)| *counts.entry(&name[..]).or_default() += 1);
    counts
}

#[test]
fn collectives_are_those_of_shardy() {
    let Some(python) = python() else { return };
    let plain = Config { open: true, priorities: true, operations: 14, ..Config::default() };
    let still = Config { still: true, ..plain };
    // Percent of the programs that agree, and percent of bytes that may be more. Shardy's bytes are those of its text:
    // where dimensions are sharded unevenly, what its steps exchange to realign blocks is not in it: a gather by two
    // axes in two steps sends the padding of the first as well. Where operations move elements themselves, the text
    // does not show what they exchange: a sum over windows or a convolution along a sharded dimension is there as it
    // was, and bytes are not compared.
    let kinds = [
        ("still", 97, Some(0.0), still),
        ("still, uneven", 95, Some(0.2), Config { uneven: true, ..still }),
        ("still, groups", 97, Some(0.0), Config { groups: true, ..still }),
        ("moving", 95, None, plain),
        ("moving, windows", 70, None, Config { windows: true, ..plain }),
    ];
    let mut missed = vec![];
    for (i, (name, floor, more, config)) in kinds.into_iter().enumerate() {
        let all = programs(500 + i as u64, config);
        let found = ask(&python, "collectives", &all.iter().map(Drawn::text).collect::<Vec<_>>());
        let (mut agreed, mut total, mut failures, mut shown) = (0, 0, 0, vec![]);
        let (mut bytes, mut count, mut rows) = ([0, 0], [0, 0], 0);
        for (k, (drawn, module)) in all.iter().zip(&found).enumerate() {
            if let Some(failure) = &module.failure {
                failures += 1;
                println!("{name} {k}: Shardy fails: {failure}");
                continue;
            }
            let [own, other] = both(drawn, module, &mut rows);
            total += 1;
            let is_equal = counted(&own) == counted(&other);
            agreed += usize::from(is_equal);
            for (i, all) in [&own, &other].into_iter().enumerate() {
                bytes[i] += all.iter().map(|(_, bytes)| bytes).sum::<usize>();
                count[i] += all.len();
            }
            if !is_equal {
                shown.push(format!("{name} {k}:\n{}\nours   {own:?}\nShardy {other:?}", drawn.text()));
            }
        }
        println!(
            "{name}: agreement: {agreed} of {total} programs; {} collectives of {} bytes, Shardy {} of {}; {rows} collectives \
             of rows; Shardy failed on {failures}",
            count[0], bytes[0], count[1], bytes[1]
        );
        if std::env::var_os("PALLAS_SHOW").is_some() {
            shown.iter().for_each(|text| println!("{text}\n"));
        }
        if agreed * 100 < total * floor {
            missed.push(format!("{name}: {}", shown[..shown.len().min(4)].join("\n\n")));
        }
        if more.is_some_and(|more| bytes[0] as f64 > bytes[1] as f64 * (1.0 + more / 100.0)) {
            missed.push(format!("{name}: {} bytes, Shardy {}", bytes[0], bytes[1]));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

fn both(drawn: &Drawn, module: &Module, rows: &mut usize) -> [Vec<Exchanged>; 2] {
    let found = propagate(RegionGraph::from_graph(&drawn.graph), &drawn.params, &drawn.results);
    let made = partition(&found, &drawn.mesh).expect("no kernel").graph;
    let mut own = vec![];
    ours(&made, &drawn.mesh, &mut own, rows);
    [own, module.operations.iter().flat_map(|op| theirs(op, &drawn.mesh)).collect()]
}

/// The partitioned program is a function of the graph and its declarations: tables with random hashes do not show.
#[test]
fn programs_are_partitioned_alike_each_time() {
    let config = Config {
        uneven: true,
        open: true,
        priorities: true,
        control: true,
        groups: true,
        barriers: true,
        windows: true,
        operations: 20,
        ..Config::default()
    };
    let all: Vec<Drawn> = programs(77, config);
    let texts = |all: &[Drawn]| -> Vec<String> {
        let text = |drawn: &Drawn| {
            let found = propagate(RegionGraph::from_graph(&drawn.graph), &drawn.params, &drawn.results);
            partition(&found, &drawn.mesh).expect("no kernel").graph.to_string()
        };
        all.iter().map(text).collect()
    };
    let first = texts(&all);
    // Another thread hashes with other keys.
    let other = std::thread::scope(|scope| scope.spawn(|| texts(&all)).join().expect("it ends"));
    assert!(first == other && first == texts(&all));
    let collectives = first.iter().filter(|text| text.contains("collective_permute")).count();
    assert!(collectives > 0, "programs exchange something");
}
