//! The reshards and sums of whole programs that make their operations compatible, before they become collectives.
use crate::draw::{Config, Drawn};
use crate::oracle::{Module, ask, python};
use crate::{parsed, programs};
use pallas_graph::mesh::{Axis, CollectiveKind, Mesh, Sharding, axes_text};
use pallas_graph::shard::propagation_program::RegionGraph;
use pallas_graph::shard::reshard::{ReshardStep, plan_shardy_steps};
use pallas_graph::shard::{PartitionedGraph, partition, propagate};
use pallas_graph::{Graph, Op};

/// A reshard that exchanges something: a slice of each device alone is none.
fn reshard(shape: &[usize], from: &Sharding, to: &Sharding, mesh: &Mesh) -> Option<String> {
    let [from, to] = [from, to].map(|sharding| Sharding::closed(sharding.axes()).normal(mesh));
    let is_collective =
        plan_shardy_steps(shape, &from, &to).iter().any(|(step, _)| !matches!(step, ReshardStep::AllSlice(_)));
    is_collective.then(|| format!("{shape:?} {} -> {}", from.text(mesh), to.text(mesh)))
}

fn sum(axes: &[Axis], mesh: &Mesh) -> String {
    let mut axes = axes.to_vec();
    axes.sort();
    // Parts of an axis that follow each other are one.
    let axes = Sharding::closed([axes]).normal(mesh).axes().concat();
    format!("sum over {{{}}}", axes_text(&axes, mesh))
}

fn sums(graph: &Graph, mesh: &Mesh, all: &mut Vec<String>) {
    for e in &graph.equations {
        match &e.op {
            Op::Collective(op)
                if matches!(op.kind, CollectiveKind::AllReduce(_) | CollectiveKind::ReduceScatter(_)) =>
            {
                all.push(sum(&op.axes, mesh));
            }
            Op::Call(call) => call.graphs().into_iter().for_each(|graph| sums(graph, mesh, all)),
            _ => {}
        }
    }
}

fn ours(program: &RegionGraph, made: &PartitionedGraph, mesh: &Mesh) -> Vec<String> {
    let of = |r: &pallas_graph::shard::Reshard| reshard(&program.ty(r.value).shape, &r.from, &r.to, mesh);
    let mut all: Vec<String> = made.reshards.iter().filter_map(of).collect();
    sums(&made.graph, mesh, &mut all);
    all.sort();
    all
}

fn theirs(module: &Module, mesh: &Mesh) -> Vec<String> {
    let mut all = vec![];
    for op in &module.operations {
        let get = |name: &str| op.attribute(name).unwrap_or_else(|| panic!("{name} of {op:?}"));
        match &op.name[..] {
            "sdy.reshard" => {
                let ty = get("type").strip_prefix("tensor<").expect("a tensor");
                let shape: Vec<usize> = ty.split('x').filter_map(|n| n.parse().ok()).collect();
                let of = |name| parsed(get(name), mesh).unwrap_or(Sharding::replicated(shape.len()));
                all.extend(reshard(&shape, &of("from"), &of("sharding"), mesh));
            }
            "sdy.all_reduce" => {
                let text = get("reduction_axes");
                let inside = &text[text.find('{').expect("a list")..=text.rfind('}').expect("its end")];
                let axes = Sharding::parse(&format!("[{inside}]"), mesh).expect("axes");
                all.push(sum(&axes.dims[0].axes, mesh));
            }
            _ => {}
        }
    }
    all.sort();
    all
}

#[test]
fn reshards_of_programs_are_those_of_shardy() {
    let Some(python) = python() else { return };
    let even = Config { open: true, priorities: true, operations: 14, ..Config::default() };
    let still = Config { still: true, ..even };
    // Operations that move elements exchange rows where Shardy moves their operands.
    let kinds = [("still", 100, still), ("still, uneven", 99, Config { uneven: true, ..still }), ("moving", 95, even)];
    for (i, (name, floor, config)) in kinds.into_iter().enumerate() {
        let all = programs(700 + i as u64, config);
        let found = ask(&python, "insert", &all.iter().map(Drawn::text).collect::<Vec<_>>());
        let (mut agreed, mut total, mut count, mut shown) = (0, 0, 0, vec![]);
        for (k, (drawn, module)) in all.iter().zip(&found).enumerate() {
            if let Some(failure) = &module.failure {
                println!("{name} {k}: Shardy fails: {failure}");
                continue;
            }
            let found = propagate(RegionGraph::from_graph(&drawn.graph), &drawn.params, &drawn.results);
            let made = partition(&found, &drawn.mesh).expect("no kernel");
            let (own, other) = (ours(found.program(), &made, &drawn.mesh), theirs(module, &drawn.mesh));
            total += 1;
            count += other.len();
            agreed += usize::from(own == other);
            if own != other {
                let only = |a: &[String], b: &[String]| -> Vec<String> {
                    let mut left = b.to_vec();
                    let is_new = |x: &&String| left.iter().position(|y| y == *x).map(|i| left.remove(i)).is_none();
                    a.iter().filter(is_new).cloned().collect()
                };
                shown.push(format!(
                    "{name} {k}:\nours   {:?}\nShardy {:?}\n{}",
                    only(&own, &other),
                    only(&other, &own),
                    drawn.text()
                ));
            }
        }
        println!("{name}: agreement: {agreed} of {total} programs, {count} reshards and sums");
        if std::env::var_os("PALLAS_SHOW").is_some() {
            shown.iter().for_each(|text| println!("{text}\n"));
        }
        assert!(agreed * 100 >= total * floor, "{}", shown[..shown.len().min(3)].join("\n\n"));
    }
}
