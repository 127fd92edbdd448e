//! The reasons of propagation, on random programs. They need no oracle.
use super::draw::{Config, Drawn};
use super::programs;
use pallas_graph::mesh::Sharding;
use pallas_graph::shard::view::{Kind, Program, Val};
use pallas_graph::shard::{Origin, Propagation, Reason, Slot, Via, propagate};
use std::collections::BTreeMap;

/// The sharding that an annotation declares.
fn declared(drawn: &Drawn, found: &Propagation, origin: Origin) -> Sharding {
    match origin {
        Origin::Param(i) => drawn.params[i].clone().expect("it is declared"),
        Origin::Result(i) => drawn.results[i].clone().expect("it is declared"),
        Origin::Constraint(node) => match &found.program().nodes[node].kind {
            Kind::Constraint(sharding) => sharding.clone(),
            other => panic!("{other:?} is no annotation"),
        },
    }
}

fn mentions(sharding: Option<&Sharding>, axis: u8) -> bool {
    sharding.is_some_and(|s| s.dims.iter().any(|dim| dim.axes.iter().any(|own| own.id == axis)))
}

fn state(found: &Propagation, slot: Slot) -> Option<&Sharding> {
    match slot {
        Slot::Value(v) => found.sharding(v),
        Slot::Result(i) => found.result(i),
    }
}

fn values(program: &Program) -> Vec<Val> {
    let nodes = program.preorder().into_iter().flat_map(|id| program.nodes[id].results.clone());
    program.body.params.iter().copied().chain(nodes).collect()
}

/// The name of a reason without its details.
fn name(reason: &Reason) -> &'static str {
    match reason {
        Reason::Missing { .. } => "missing",
        Reason::Whole { .. } => "whole",
        Reason::Barrier(_) => "barrier",
        Reason::Closed { .. } => "closed",
        Reason::Replicated { .. } => "replicated",
        Reason::Taken { .. } => "taken",
        Reason::Conflict { .. } => "conflict",
        Reason::Extent { .. } => "extent",
        Reason::Result => "result",
        Reason::Behind { .. } => "behind",
    }
}

/// Every axis of every value leads to an annotation that names it, by steps that are older and older; where a value lacks
/// an axis, the reason lies between an array that has it and one that has not.
#[test]
fn every_axis_has_a_reason() {
    let config = Config { open: true, priorities: true, control: true, groups: true, ..Config::default() };
    let kinds = [config, Config { uneven: true, windows: true, ..config }];
    let (mut lengths, mut reasons): (BTreeMap<usize, usize>, BTreeMap<&str, usize>) = Default::default();
    let mut rounds = 0;
    for (i, kind) in kinds.into_iter().enumerate() {
        for drawn in programs(500 + i as u64, Config { operations: 14, ..kind }) {
            let found = propagate(Program::of(&drawn.graph), &drawn.params, &drawn.results);
            for v in values(found.program()) {
                for axis in drawn.mesh.axes() {
                    if mentions(found.sharding(v), axis.id) {
                        let chain = found.chain(v, axis.id);
                        let origin = chain.origin.unwrap_or_else(|| panic!("{v:?} {axis:?}\n{}", drawn.text()));
                        assert!(mentions(Some(&declared(&drawn, &found, origin)), axis.id), "{}", drawn.text());
                        let order: Vec<_> = chain.causes.iter().map(|c| (c.round, c.stage)).collect();
                        assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}\n{}", drawn.text());
                        assert!(chain.causes.iter().all(|c| mentions(state(&found, c.from), axis.id)));
                        rounds += chain.causes.iter().filter(|c| c.round > 0).count();
                        *lengths.entry(chain.causes.len()).or_default() += 1;
                    }
                    for stop in found.stops(v, axis) {
                        let (from, to) = (state(&found, stop.from), state(&found, stop.to));
                        assert!(mentions(from, axis.id) && stop.from != stop.to, "{stop:?}\n{}", drawn.text());
                        let is_taken = matches!(stop.reason, Reason::Taken { .. });
                        assert!(mentions(to, axis.id) || !is_taken, "{stop:?}\n{}", drawn.text());
                        assert!(!matches!(stop.via, Via::Group));
                        *reasons.entry(name(&stop.reason)).or_default() += 1;
                    }
                }
            }
        }
    }
    println!("steps to an annotation: {lengths:?}, {rounds} in later rounds; reasons: {reasons:?}");
    assert!(lengths.keys().any(|n| *n > 3) && rounds > 0, "{lengths:?}");
    for name in ["missing", "whole", "barrier", "closed", "replicated", "taken", "conflict", "result"] {
        assert!(reasons.get(name).is_some_and(|n| *n > 0), "{name} never occurs: {reasons:?}");
    }
}
