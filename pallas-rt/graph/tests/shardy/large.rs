//! A transformer of many layers on thousands of devices: the exchanges of each layer are the same, whatever their
//! number.
//!
//! `PALLAS_LAYERS=80` is the number of layers. `cargo bench --bench partition` takes times.
mod transformer;

use pallas_graph::Op;
use pallas_graph::shard::propagation_program::RegionGraph;
use pallas_graph::shard::{partition, propagate};
use std::collections::BTreeMap;
use transformer::Transformer;

/// The number of exchanges of each kind for so many layers.
fn collectives(layers: usize) -> BTreeMap<String, usize> {
    let Transformer { graph, declared, results, mesh, .. } = Transformer::new(layers);
    let found = propagate(RegionGraph::from_graph(&graph), &declared, &results);
    let made = partition(&found, &mesh).expect("no kernel");
    let mut counts = BTreeMap::new();
    for e in &made.graph.equations {
        if let Op::Collective(op) = &e.op
            && op.communicates()
        {
            let axes = op.axes.iter().map(|axis| mesh.name(usize::from(axis.id))).collect::<Vec<_>>();
            *counts.entry(format!("{} {}", op.name(), axes.join(","))).or_default() += 1;
        }
    }
    counts
}

#[test]
fn each_layer_exchanges_the_same() {
    let layers = std::env::var("PALLAS_LAYERS").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    for layers in [layers / 4, layers, 2 * layers] {
        // Weights are gathered where they are used: six a layer. Sums over heads and over hidden features are two.
        let expected =
            BTreeMap::from([("all_gather data".to_string(), 6 * layers), ("all_reduce model".to_string(), 2 * layers)]);
        assert_eq!(collectives(layers), expected);
    }
}
