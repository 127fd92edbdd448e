//! The reasons of propagation, on random programs. They need no oracle.
use super::draw::operations::rows;
use super::draw::{Config, Drawn};
use super::oracle::{ask, python};
use super::{parsed, programs};
use pallas_graph::Graph;
use pallas_graph::call::{ClosedCall, Scan};
use pallas_graph::mesh::{DimSharding, Mesh, Sharding, ShardingGroup};
use pallas_graph::shard::propagation_program::{NodeKind, RegionGraph, Val};
use pallas_graph::shard::{
    Propagation, PropagationLink, PropagationOrigin, PropagationStopReason, ValueOrResult, inlined, propagate,
};
use pallas_ir::{DType, ScalarOp, StructuralOp, Type};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The sharding that an annotation declares.
fn declared(drawn: &Drawn, found: &Propagation, origin: PropagationOrigin) -> Sharding {
    match origin {
        PropagationOrigin::Param(i) => drawn.params[i].clone().expect("it is declared"),
        PropagationOrigin::Result(i) => drawn.results[i].clone().expect("it is declared"),
        PropagationOrigin::Constraint(node) => match &found.program().nodes[node].kind {
            NodeKind::Constraint(sharding) => sharding.clone(),
            other => panic!("{other:?} is no annotation"),
        },
    }
}

fn mentions(sharding: Option<&Sharding>, axis: u8) -> bool {
    sharding.is_some_and(|s| s.dims.iter().any(|dim| dim.axes.iter().any(|own| own.id == axis)))
}

fn state(found: &Propagation, slot: ValueOrResult) -> Option<&Sharding> {
    match slot {
        ValueOrResult::Value(v) => found.sharding(v),
        ValueOrResult::Result(i) => found.result_sharding(i),
    }
}

fn values(program: &RegionGraph) -> Vec<Val> {
    let nodes = program.preorder().into_iter().flat_map(|id| program.nodes[id].results.clone());
    program.body.params.iter().copied().chain(nodes).collect()
}

/// The name of a reason without its details.
fn name(reason: &PropagationStopReason) -> &'static str {
    match reason {
        PropagationStopReason::NoCorrespondingDim { .. } => "missing",
        PropagationStopReason::NeedsWholeDim { .. } => "whole",
        PropagationStopReason::Barrier(_) => "barrier",
        PropagationStopReason::Closed { .. } => "closed",
        PropagationStopReason::Replicated { .. } => "replicated",
        PropagationStopReason::ShardsOtherDim { .. } => "taken",
        PropagationStopReason::Conflict { .. } => "conflict",
        PropagationStopReason::UnevenExtent { .. } => "extent",
        PropagationStopReason::LimitedByResult => "result",
        PropagationStopReason::AfterPartialFactor { .. } => "behind",
    }
}

/// Every axis of every value leads to an annotation that names it, by steps that are older and older; where a value
/// lacks an axis, the reason lies between an array that has it and one that has not.
#[test]
fn every_axis_has_a_reason() {
    let config =
        Config { open: true, priorities: true, control: true, groups: true, barriers: true, ..Config::default() };
    let kinds = [config, Config { uneven: true, windows: true, kernels: true, ..config }];
    let (mut lengths, mut reasons): (BTreeMap<usize, usize>, BTreeMap<&str, usize>) = Default::default();
    let mut rounds = 0;
    for (i, kind) in kinds.into_iter().enumerate() {
        for drawn in programs(500 + i as u64, Config { operations: 14, ..kind }) {
            let found = propagate(RegionGraph::from_graph(&drawn.graph), &drawn.params, &drawn.results);
            for v in values(found.program()) {
                for axis in drawn.mesh.axes() {
                    if mentions(found.sharding(v), axis.id) {
                        let chain = found.cause_chain(v, axis.id);
                        let origin = chain.origin.unwrap_or_else(|| panic!("{v:?} {axis:?}\n{}", drawn.text()));
                        assert!(
                            mentions(Some(&declared(&drawn, &found, origin)), axis.id),
                            "{v:?} {axis:?}: {chain:?} {:?}\n{}",
                            found.sharding(v),
                            drawn.text()
                        );
                        let order: Vec<_> = chain.causes.iter().map(|c| (c.round, c.stage)).collect();
                        assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}\n{}", drawn.text());
                        let has = |slot| mentions(state(&found, slot), axis.id);
                        // The sharding of another member of a group may have taken the place of one with the axis.
                        let is_grouped = |slot| match slot {
                            ValueOrResult::Value(v) => (found.program().nodes.iter()).any(|node| {
                                matches!(node.kind, NodeKind::ShardingGroup(_)) && node.operands.contains(&v)
                            }),
                            ValueOrResult::Result(_) => false,
                        };
                        let is_told = chain.causes.iter().all(|c| has(c.from) || is_grouped(c.from));
                        assert!(is_told, "{v:?} {axis:?}: {chain:?}\n{}", drawn.text());
                        rounds += chain.causes.iter().filter(|c| c.round > 0).count();
                        *lengths.entry(chain.causes.len()).or_default() += 1;
                    }
                    for stop in found.propagation_stops(v, axis) {
                        let (from, to) = (state(&found, stop.from), state(&found, stop.to));
                        assert!(mentions(from, axis.id) && stop.from != stop.to, "{stop:?}\n{}", drawn.text());
                        let is_taken = matches!(stop.reason, PropagationStopReason::ShardsOtherDim { .. });
                        assert!(mentions(to, axis.id) || !is_taken, "{stop:?}\n{}", drawn.text());
                        assert!(!matches!(stop.via, PropagationLink::Group));
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

/// A body with a group of two values, called twice and in a loop: the pairs keep apart, in the program and in its text.
#[test]
fn groups_of_called_graphs_are_apart() {
    let mesh = Arc::new(Mesh::new(&[("x", 2), ("y", 4)]).expect("a mesh"));
    let ty = Type::new(DType::F32, [8, 8]);
    let member = |graph: &mut Graph, group: u32, v| graph.push(ShardingGroup(group), &[v]).expect("the identity");
    let tanh = |graph: &mut Graph, v| graph.push(ScalarOp::Tanh, &[v]).expect("an operand");
    let mut body = Graph::default();
    let params = [body.param(ty.clone()), body.param(ty.clone())];
    let made = params.map(|v| tanh(&mut body, v));
    body.results = made.iter().map(|&v| member(&mut body, 0, v)).collect();
    let mut graph = Graph::default();
    let [a, b, c, d] = [(); 4].map(|()| graph.param(ty.clone()));
    let first = graph.push_multi_result(ClosedCall(body.clone()), &[a, b]).expect("operands");
    let second = graph.push_multi_result(ClosedCall(body.clone()), &[c, d]).expect("operands");
    let scan = Scan { body, captured: 0, carried: 2, length: 3, reverse: false };
    let [e, f] = [(); 2].map(|()| graph.param(ty.clone()));
    let third = graph.push_multi_result(scan, &[e, f]).expect("operands");
    let own = [graph.param(ty.clone()), graph.param(ty.clone())].map(|v| tanh(&mut graph, v));
    for v in own {
        member(&mut graph, 0, v);
    }
    graph.results = [&first[..], &second, &third, &own].concat();
    let open = |dim: usize, axis: usize| {
        let mut sharding = Sharding::open(2);
        sharding.dims[dim].axes.push(mesh.axis(axis));
        Some(sharding)
    };
    let params = vec![open(0, 0), None, open(1, 1), None, open(0, 1), None, open(1, 0), None];
    let graph = inlined(&graph);
    let drawn = Drawn { results: vec![None; graph.results.len()], graph, mesh: mesh.clone(), params };
    let found = propagate(RegionGraph::from_graph(&drawn.graph), &drawn.params, &drawn.results);
    let pairs: Vec<Vec<Vec<usize>>> = (0..4)
        .map(|pair| {
            [2 * pair, 2 * pair + 1].map(|i| found.result_sharding(i).expect("it is sharded").blocks_per_dim()).to_vec()
        })
        .collect();
    let alike = |parts: [usize; 2]| vec![parts.to_vec(); 2];
    assert_eq!(pairs, [alike([2, 1]), alike([1, 4]), alike([4, 1]), alike([1, 2])], "{}", drawn.text());
    let Some(python) = python() else { return };
    let module = ask(&python, "propagate", &[drawn.text()]).remove(0);
    assert_eq!(module.failure, None);
    for (i, text) in module.results.iter().enumerate() {
        assert_eq!(parsed(text, &mesh).as_ref(), found.result_sharding(i), "result {i}\n{}", drawn.text());
    }
}

/// Weights sharded by features and indices sharded by examples want one axis for two dimensions of what is looked up.
/// The stronger priority has it, as in Shardy, which also says who has it without one.
#[test]
fn priorities_of_a_lookup_are_those_of_shardy() {
    let mesh = Arc::new(Mesh::new(&[("model", 4)]).expect("a mesh"));
    let drawn = |weights: Option<u32>, indices: Option<u32>| {
        let mut graph = Graph::default();
        let table = graph.param(Type::new(DType::F32, [64, 32]));
        let ids = graph.param(Type::new(DType::I32, [16, 8]));
        let rows = graph.push(StructuralOp::from(rows(2, 2, &[64, 32])), &[table, ids]).expect("operands");
        graph.results = vec![graph.push(ScalarOp::Tanh, &[rows]).expect("an operand")];
        let declared = |dim: usize, priority| {
            let mut sharding = Sharding::replicated(2);
            sharding.dims[dim] = DimSharding { axes: vec![mesh.axis(0)], open: false, priority };
            Some(sharding)
        };
        let params = vec![declared(1, weights), declared(0, indices)];
        Drawn { results: vec![None], graph, mesh: mesh.clone(), params }
    };
    let cases = [(None, None), (Some(1), None), (None, Some(1)), (Some(2), Some(1)), (Some(1), Some(2))];
    let all: Vec<Drawn> = cases.into_iter().map(|(weights, indices)| drawn(weights, indices)).collect();
    let own: Vec<Option<Sharding>> = (all.iter())
        .map(|drawn| {
            propagate(RegionGraph::from_graph(&drawn.graph), &drawn.params, &drawn.results).result_sharding(0).cloned()
        })
        .collect();
    let parts = |s: &Option<Sharding>| s.as_ref().expect("it is sharded").blocks_per_dim();
    let [examples, features] = [vec![4, 1, 1], vec![1, 1, 4]];
    let with: Vec<Vec<usize>> = own[1..].iter().map(parts).collect();
    assert_eq!(with, [examples.clone(), features.clone(), examples, features]);
    let Some(python) = python() else { return };
    let texts: Vec<String> = all.iter().map(Drawn::text).collect();
    for (i, module) in ask(&python, "propagate", &texts).iter().enumerate() {
        assert_eq!(module.failure, None);
        assert_eq!(parsed(&module.results[0], &mesh), own[i], "{}", texts[i]);
    }
}
