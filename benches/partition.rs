//! The time to propagate shardings through a transformer and to partition it for 64 x 64 devices, for each number of
//! layers the minimum of 15.
//!
//! `cargo bench --bench partition [-- --small]`; `--small` shows that it works, and measures nothing of use.
#[path = "../pallas-rt/graph/tests/shardy/large/transformer.rs"]
mod transformer;

use pallas_graph::shard::propagation_program::RegionGraph;
use pallas_graph::shard::{partition, propagate};
use std::time::{Duration, Instant};
use transformer::Transformer;

fn main() {
    let is_small = std::env::args().any(|arg| arg == "--small");
    let (layers, repeats): (&[usize], _) = if is_small { (&[1, 2], 1) } else { (&[10, 20, 40, 80, 160], 15) };
    for &layers in layers {
        let all = Transformer::new(layers);
        let mut best = [Duration::MAX; 2];
        for _ in 0..repeats {
            let begun = Instant::now();
            let found = propagate(RegionGraph::from_graph(&all.graph), &all.declared, &all.results);
            let propagated = begun.elapsed();
            let made = partition(&found, &all.mesh).expect("no kernel");
            let times = [propagated, begun.elapsed()];
            std::hint::black_box(made);
            (0..2).for_each(|i| best[i] = best[i].min(times[i]));
        }
        let operations = all.graph.equations.len();
        println!(
            "{layers} layers, {operations} operations: propagated in {:.1} ms, partitioned in {:.1} ms, {:.1} µs each",
            best[0].as_secs_f64() * 1e3,
            best[1].as_secs_f64() * 1e3,
            best[1].as_secs_f64() / operations as f64 * 1e6
        );
    }
}
