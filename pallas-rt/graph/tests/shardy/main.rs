//! Rules, propagation and reshards against the Shardy in jaxlib.
//!
//! `PALLAS_JAX` is a Python with jax==0.12.0.1; without it the tests that need it are left out. `PALLAS_SHARDINGS` is
//! the number of random programs of each kind.
#![allow(missing_docs, reason = "a test")]
mod blocks;
mod collectives;
mod draw;
mod inserts;
mod large;
mod oracle;
mod permutes;
mod provenance;
mod reshards;

use draw::{Config, Dice, Drawn, draw};
use oracle::{Module, ask, python};
use pallas_graph::mesh::{Mesh, Sharding};
use pallas_graph::shard::propagate;
use pallas_graph::shard::propagation_program::{NodeId, NodeKind, RegionGraph};
use std::collections::{BTreeMap, HashMap};

/// Number of random programs of each kind.
fn count() -> usize {
    std::env::var("PALLAS_SHARDINGS").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

fn programs(seed: u64, config: Config) -> Vec<Drawn> {
    let mut dice = Dice(seed);
    (0..count()).map(|_| draw(&mut dice, &config)).collect()
}

/// The sharding in an attribute's text.
fn parsed(text: &str, mesh: &Mesh) -> Option<Sharding> {
    let (_, inside) = text.split_once("<@mesh, ")?;
    let (inside, _) = inside.split_once('>')?;
    Some(Sharding::parse(inside, mesh).unwrap_or_else(|e| panic!("{text}: {e}")))
}

/// The sharding of each value by a name that both sides have.
fn ours(drawn: &Drawn) -> Vec<(String, Option<Sharding>)> {
    let found = propagate(RegionGraph::from_graph(&drawn.graph), &drawn.params, &drawn.results);
    let program = found.program();
    let mut all: Vec<(String, Option<Sharding>)> = vec![];
    for (i, &p) in program.body.params.iter().enumerate() {
        all.push((format!("param {i}"), found.sharding(p).cloned()));
    }
    let mut seen = HashMap::new();
    for id in program.preorder() {
        let node = &program.nodes[id];
        let is_left_out = matches!(node.kind, NodeKind::Loop(_) | NodeKind::Branches(_) | NodeKind::ShardingGroup(_))
            || node.label == usize::MAX;
        if is_left_out || program.ty(node.results[0]).shape.is_empty() {
            continue;
        }
        let kind = if node.kind == NodeKind::DataFlowEdge { "edge" } else { "value" };
        let number = seen.entry((kind, node.label)).or_insert(0);
        all.push((format!("{kind} {} {number}", node.label), found.sharding(node.results[0]).cloned()));
        *number += 1;
    }
    for i in 0..drawn.results.len() {
        all.push((format!("result {i}"), found.result_sharding(i).cloned()));
    }
    all
}

fn theirs(module: &Module, mesh: &Mesh) -> HashMap<String, Option<Sharding>> {
    let mut all = HashMap::new();
    let lists = [("param", &module.params), ("result", &module.results)];
    for (name, list) in lists {
        all.extend(list.iter().enumerate().map(|(i, text)| (format!("{name} {i}"), parsed(text, mesh))));
    }
    let mut seen = HashMap::new();
    for op in &module.operations {
        let is_left_out = matches!(&op.name[..], "stablehlo.while" | "stablehlo.case" | "sdy.sharding_group");
        let Some(label) = op.label.filter(|_| !is_left_out && op.rank > 0) else { continue };
        let kind = if op.name == "sdy.data_flow_edge" { "edge" } else { "value" };
        let number = seen.entry((kind, label)).or_insert(0);
        // A kernel's own rule is among its attributes.
        let text = op.attributes.iter().find(|text| !text.starts_with("sdy.sharding_rule="));
        all.insert(format!("{kind} {label} {number}"), text.and_then(|text| parsed(text, mesh)));
        *number += 1;
    }
    all
}

#[test]
fn propagation_is_that_of_shardy() {
    let Some(python) = python() else { return };
    let plain = Config { operations: 14, ..Config::default() };
    let kinds = [
        ("closed", plain),
        ("open", Config { open: true, ..plain }),
        ("priorities", Config { open: true, priorities: true, ..plain }),
        ("uneven", Config { uneven: true, open: true, priorities: true, ..plain }),
        ("control", Config { control: true, open: true, priorities: true, ..plain }),
        ("groups", Config { groups: true, barriers: true, open: true, control: true, priorities: true, ..plain }),
        ("windows", Config { windows: true, open: true, ..plain }),
        ("kernels", Config { kernels: true, open: true, priorities: true, uneven: true, ..plain }),
    ];
    let (mut agreed, mut total, mut values, mut failures, mut shown) = (0, 0, 0, 0, vec![]);
    for (i, (name, config)) in kinds.into_iter().enumerate() {
        let all = programs(100 + i as u64, config);
        let found = ask(&python, "propagate", &all.iter().map(Drawn::text).collect::<Vec<_>>());
        for (k, (drawn, module)) in all.iter().zip(&found).enumerate() {
            if let Some(failure) = &module.failure {
                failures += 1;
                println!("{name} {k}: Shardy fails: {failure}");
                continue;
            }
            let theirs = theirs(module, &drawn.mesh);
            let differences: Vec<String> = ours(drawn)
                .into_iter()
                .filter_map(|(value, own)| {
                    values += 1;
                    let other = theirs.get(&value);
                    let said = |s: Option<&Sharding>| draw::plain(s).map(|s| s.text(&drawn.mesh));
                    let (own, other) = (said(own.as_ref()), other.map(|s| said(s.as_ref())));
                    (other.as_ref() != Some(&own)).then(|| format!("  {value}: {own:?}, Shardy {other:?}"))
                })
                .collect();
            total += 1;
            agreed += usize::from(differences.is_empty());
            if !differences.is_empty() {
                shown.push(format!("{name} {k}:\n{}\n{}", drawn.text(), differences.join("\n")));
            }
        }
        println!("{name}: {agreed} of {total} so far");
    }
    println!("agreement: {agreed} of {total} programs, {values} values; Shardy failed on {failures}");
    assert!(agreed == total, "{}", shown[..shown.len().min(4)].join("\n\n"));
}

/// Operations that are several of StableHLO, or have no rule of their own there.
fn is_compared(program: &RegionGraph, id: NodeId) -> bool {
    !matches!(
        program.nodes[id].kind,
        NodeKind::DataFlowEdge
            | NodeKind::Loop(_)
            | NodeKind::Branches(_)
            | NodeKind::ShardingGroup(_)
            | NodeKind::Constant
    )
}

#[test]
fn rules_are_those_of_shardy() {
    let Some(python) = python() else { return };
    let config = Config { uneven: true, control: true, windows: true, operations: 20, ..Config::default() };
    let all = programs(7, config);
    let found = ask(&python, "rules", &all.iter().map(Drawn::text).collect::<Vec<_>>());
    let mut table: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    let mut shown = vec![];
    for (drawn, module) in all.iter().zip(&found) {
        assert_eq!(module.failure, None, "{}", drawn.text());
        let mut theirs: HashMap<usize, Vec<&oracle::Operation>> = HashMap::new();
        for op in module.operations.iter().filter(|op| op.rank > 0) {
            theirs.entry(op.label.unwrap_or(usize::MAX)).or_default().push(op);
        }
        let program = RegionGraph::from_graph(&drawn.graph);
        let rules = pallas_graph::shard::sharding_rules_by_node(&program);
        let mut seen: HashMap<usize, usize> = HashMap::new();
        for id in program.preorder() {
            let node = &program.nodes[id];
            let has_axes = node.results.first().is_some_and(|&v| !program.ty(v).shape.is_empty());
            if !has_axes {
                continue;
            }
            let number = seen.entry(node.label).or_insert(0);
            let op = theirs.get(&node.label).and_then(|all| all.get(*number));
            let op = op.unwrap_or_else(|| panic!("v{} {:?}\n{}", node.label, node.kind, drawn.text()));
            *number += 1;
            if !is_compared(&program, id) {
                continue;
            }
            let implied = usize::from(matches!(&op.name[..], "stablehlo.reduce" | "stablehlo.reduce_window"));
            let own = rules[id].as_ref().map_or("none".into(), |rule| rule.text(implied));
            let other = op.attribute("sdy.sharding_rule").unwrap_or("none");
            let other = other.strip_prefix("#sdy.op_sharding_rule<").and_then(|r| r.strip_suffix('>')).unwrap_or(other);
            let row = table.entry(op.name.clone()).or_default();
            row[1] += 1;
            if own == other {
                row[0] += 1;
            } else {
                let types: Vec<String> =
                    node.operands.iter().chain(&node.results).map(|&v| program.ty(v).to_string()).collect();
                shown.push((
                    op.name.clone(),
                    format!("{:?} of {}\n  ours   {own}\n  Shardy {other}", node.kind, types.join(", ")),
                ));
            }
        }
    }
    for (name, [agreed, total]) in &table {
        println!("{name}: {agreed} of {total}");
    }
    let (agreed, total) = table.values().fold((0, 0), |(a, t), row| (a + row[0], t + row[1]));
    println!("agreement: {agreed} of {total} rules");
    let mut kinds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    shown.into_iter().for_each(|(name, text)| kinds.entry(name).or_default().push(text));
    let texts: Vec<String> = kinds.into_values().flat_map(|all| all.into_iter().take(3)).collect();
    assert!(agreed == total, "{}", texts.join("\n"));
}
