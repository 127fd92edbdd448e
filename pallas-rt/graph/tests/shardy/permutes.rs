//! Exchanges of operations that move elements along a sharded dimension, against what XLA compiles.
use crate::count;
use crate::draw::Dice;
use crate::oracle::{ask, python};
use pallas_graph::mesh::{CollectiveKind, Mesh, Sharding};
use pallas_graph::shard::propagation_program::RegionGraph;
use pallas_graph::shard::{partition, propagate};
use pallas_graph::{Graph, Op};
use pallas_ir::structural::{Pad, Reverse, Slice};
use pallas_ir::{DType, Dim, Literal, StructuralOp, Type};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A slice, pad or reversal of an array of which one dimension is sharded.
struct Case {
    name: &'static str,
    graph: Graph,
    mesh: Arc<Mesh>,
    params: Vec<Option<Sharding>>,
}

fn draw(dice: &mut Dice) -> Case {
    let parts = *dice.pick(&[2, 4, 8]);
    let mesh = Arc::new(Mesh::new(&[("x", parts), ("y", 2)]).expect("a mesh"));
    let n = parts * (1 + dice.below(5));
    let mut graph = Graph::default();
    let x = graph.param(Type::new(DType::F32, [n, 3]));
    let name = *dice.pick(&["slice", "slice of steps", "pad", "reverse"]);
    let dims = |sizes: [usize; 2]| sizes.map(Dim::from).to_vec();
    let (op, args): (StructuralOp, _) = match name {
        "slice" | "slice of steps" => {
            let stride = if name == "slice" { 1 } else { 2 + dice.below(2) };
            let start = dice.below(n - 1);
            let size = 1 + dice.below((n - start).div_ceil(stride));
            let (start, stride) = (vec![start as i64, 0], vec![stride as i64, 1]);
            (Slice { start, size: dims([size, 3]), stride }.into(), vec![x])
        }
        "pad" => {
            let value = graph.literal(Literal::new(DType::F32, 0.5));
            let sizes = [dice.below(n), dice.below(n)];
            (Pad { low: dims([sizes[0], 0]), high: dims([sizes[1], 0]) }.into(), vec![x, value])
        }
        _ => (Reverse { axes: vec![0] }.into(), vec![x]),
    };
    graph.results = vec![graph.push(op, &args).expect("it fits")];
    let params = vec![Some(Sharding::closed([vec![mesh.axis(0)], vec![]]))];
    Case { name, graph, mesh, params }
}

/// The number of permutes and of gathers, in which a device receives as much as in permutes from each of the others.
fn ours(case: &Case) -> [usize; 2] {
    let found = propagate(RegionGraph::from_graph(&case.graph), &case.params, &[None]);
    let made = pallas_graph::simplify::simplify(&partition(&found, &case.mesh).expect("no kernel").graph);
    let kinds =
        made.equations.iter().filter_map(|e| if let Op::Collective(op) = &e.op { Some(&op.kind) } else { None });
    kinds.fold([0, 0], |[permutes, gathers], kind| match kind {
        CollectiveKind::Permute(_) => [permutes + 1, gathers],
        CollectiveKind::AllGather(_) => [permutes, gathers + 1],
        _ => [permutes, gathers],
    })
}

#[test]
fn neighbours_exchange_in_no_more_permutes_than_those_of_xla() {
    let Some(python) = python() else { return };
    let mut dice = Dice(40);
    let cases: Vec<Case> = (0..count()).map(|_| draw(&mut dice)).collect();
    let texts: Vec<String> =
        cases.iter().map(|case| case.graph.to_shardy("f", &case.mesh, &case.params, &[None])).collect();
    let (mut agreed, mut fewer, mut failures, mut shown) = (0, 0, 0, vec![]);
    let mut table: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    for ((case, text), module) in cases.iter().zip(&texts).zip(ask(&python, "xla", &texts)) {
        if module.failure.is_some() {
            // Its partitioner makes programs that its verifier refuses.
            failures += 1;
            continue;
        }
        let of = |name: &str| module.operations.iter().find(|op| op.name == name).map_or(0, |op| op.rank as usize);
        let theirs = [of("collective-permute"), of("all-gather") + of("all-reduce") + of("all-to-all")];
        let own = ours(case);
        let row = table.entry(case.name).or_default();
        (0..2).for_each(|i| (row[i], row[2 + i]) = (row[i] + own[i], row[2 + i] + theirs[i]));
        agreed += usize::from(own == theirs);
        let others = case.mesh.axis(0).size as usize - 1;
        let collectives = |[permutes, gathers]: [usize; 2]| permutes + gathers * others;
        fewer += usize::from(collectives(own) < collectives(theirs));
        if own[0] > theirs[0] && collectives(own) > collectives(theirs) {
            shown.push(format!("permutes, gathers: {own:?}, XLA {theirs:?}\n{text}"));
        }
    }
    for (name, [p, g, q, h]) in &table {
        println!("{name}: {p} permutes and {g} gathers, XLA {q} and {h}");
    }
    let total = cases.len() - failures;
    println!("agreement: {agreed} of {total} with XLA, and {fewer} need fewer collectives; XLA failed on {failures}");
    assert!(shown.is_empty(), "{} have more: {}", shown.len(), shown[..shown.len().min(3)].join("\n"));
}
