//! One graph for all devices of a mesh: a device that has no peers, such as a GPU on which they are virtual, runs it.
//!
//! ```text
//! each of 2 devices:   y = all_reduce add x; z = exp y
//! together:            y = x0 + x1; z0 = exp y; z1 = z0
//! ```
//!
//! An exchange becomes slices, concatenations and sums, in the order of the devices, as it has in all engines. What all devices
//! compute from the same values is there once after [`simplify`](crate::simplify::simplify). Devices that exchange something in a loop or a branch have one for all of them;
//! its condition is the same on all. Others have loops and branches of their own.
use crate::call::{Call, Case, Scan, While};
use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::{Collective, Exchange, Mesh};
use pallas_ir::structural::{Concat, Reshape, Slice};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp};
use std::collections::HashMap;

/// The graph of all devices of a mesh, from that of one. Its parameters are those of the first device, then those of the second
/// one and so on, and so are its results.
pub fn united(local: &Graph, mesh: &Mesh) -> Graph {
    let devices: Vec<usize> = (0..mesh.devices()).collect();
    let mut graph = Graph::default();
    let params = devices.iter().map(|_| local.params.iter().map(|&p| graph.param(local.ty(p).clone())).collect());
    let params: Vec<Vec<Var>> = params.collect();
    graph.results = inlined(&mut graph, local, mesh, &devices, &params).concat();
    graph
}

/// Appends the equations of a graph for these devices, of which each has its own operands; returns the results of each.
fn inlined(graph: &mut Graph, local: &Graph, mesh: &Mesh, devices: &[usize], operands: &[Vec<Var>]) -> Vec<Vec<Var>> {
    // By variable of the graph for one device, the value of each.
    let mut values: HashMap<Var, Vec<Var>> = HashMap::new();
    for (i, &param) in local.params.iter().enumerate() {
        values.insert(param, operands.iter().map(|own| own[i]).collect());
    }
    let at = graph.at;
    for e in &local.equations {
        graph.at = e.loc;
        let args: Vec<Vec<Var>> = (0..devices.len()).map(|k| e.args.iter().map(|v| values[v][k]).collect()).collect();
        let results = match &e.op {
            Op::Collective(op) => exchanged(graph, local, e, op, devices, &args),
            _ => {
                let mut all = vec![vec![]; devices.len()];
                for members in components(e, mesh, devices) {
                    let own: Vec<Vec<Var>> = members.iter().map(|&k| args[k].clone()).collect();
                    let devices: Vec<usize> = members.iter().map(|&k| devices[k]).collect();
                    let results = applied(graph, local, e, mesh, &devices, &own);
                    members.into_iter().zip(results).for_each(|(k, results)| all[k] = results);
                }
                all
            }
        };
        for (i, &v) in e.results.iter().enumerate() {
            values.insert(v, results.iter().map(|own| own[i]).collect());
        }
    }
    graph.at = at;
    (0..devices.len()).map(|k| local.results.iter().map(|v| values[v][k]).collect()).collect()
}

/// The devices that an equation connects by exchanges in the graphs that it calls, as numbers in the list.
fn components(e: &Equation, mesh: &Mesh, devices: &[usize]) -> Vec<Vec<usize>> {
    let mut exchanges = vec![];
    if let Op::Call(call) = &e.op {
        call.graphs().into_iter().for_each(|graph| collect(graph, &mut exchanges));
    }
    let mut component: Vec<usize> = (0..devices.len()).collect();
    for op in exchanges {
        for (k, &device) in devices.iter().enumerate() {
            let first = mesh.group(device, &op.axes)[0];
            let first = devices.iter().position(|&d| d == first).expect("members of a group are together");
            let (old, new) = (component[k].max(component[first]), component[k].min(component[first]));
            component.iter_mut().filter(|c| **c == old).for_each(|c| *c = new);
        }
    }
    let members = |c: usize| (0..devices.len()).filter(|&k| component[k] == c).collect::<Vec<_>>();
    (0..devices.len()).map(members).filter(|members| !members.is_empty()).collect()
}

fn collect<'g>(graph: &'g Graph, all: &mut Vec<&'g Collective>) {
    for e in &graph.equations {
        match &e.op {
            Op::Collective(op) if op.communicates() => all.push(op),
            Op::Call(call) => call.graphs().into_iter().for_each(|graph| collect(graph, all)),
            _ => {}
        }
    }
}

/// Appends what an equation is for devices that exchange something in it, or for a single one.
fn applied(
    graph: &mut Graph,
    local: &Graph,
    e: &Equation,
    mesh: &Mesh,
    devices: &[usize],
    args: &[Vec<Var>],
) -> Vec<Vec<Var>> {
    let Op::Call(call) = &e.op else { return vec![graph.fitting_all(e.op.clone(), &args[0])] };
    // Operands and results of one kind after another, and of each kind those of all devices.
    let taken = |range: std::ops::Range<usize>| args.iter().flat_map(move |own| own[range.clone()].to_vec());
    let all = |count: usize| devices.len() * count;
    let body = |one: &Graph, kinds: &[usize]| body(one, mesh, devices, kinds);
    let (call, operands, kinds) = match &**call {
        Call::Print(_) => {
            return match devices[0] {
                0 => vec![graph.fitting_all(e.op.clone(), &args[0])],
                _ => vec![vec![graph.literal(Literal::int(DType::I32, 0))]],
            };
        }
        Call::Scan(scan) => {
            let (captured, fixed) = (scan.captured, scan.captured + scan.carried);
            let operands = taken(0..captured).chain(taken(captured..fixed)).chain(taken(fixed..args[0].len()));
            let own = Scan {
                body: body(&scan.body, &[captured, scan.carried, scan.body.params.len() - fixed]),
                captured: all(captured),
                carried: all(scan.carried),
                ..scan.clone()
            };
            let stacks = scan.body.results.len() - scan.carried;
            (Call::Scan(own), operands.collect::<Vec<_>>(), vec![scan.carried, stacks])
        }
        Call::While(call) => {
            let (first, fixed) = (call.condition_captured, call.condition_captured + call.body_captured);
            let carried = args[0].len() - fixed;
            let operands = taken(0..first).chain(taken(first..fixed)).chain(taken(fixed..args[0].len()));
            let mut condition = body(&call.condition, &[first, carried]);
            // It is the same on all of them.
            condition.results.truncate(1);
            let own = While {
                condition,
                body: body(&call.body, &[call.body_captured, carried]),
                condition_captured: all(first),
                body_captured: all(call.body_captured),
            };
            (Call::While(own), operands.collect(), vec![carried])
        }
        Call::Case(case) => {
            let operands = [args[0][0]].into_iter().chain(taken(1..args[0].len())).collect();
            let branches = case.branches.iter().map(|branch| body(branch, &[args[0].len() - 1])).collect();
            (Call::Case(Case { branches }), operands, vec![case.branches[0].results.len()])
        }
        Call::Kernel(_) | Call::Callback(_) => return vec![graph.fitting_all(e.op.clone(), &args[0])],
        // Devices run graphs without these.
        Call::Closed(one) => return inlined(graph, one, mesh, devices, args),
        other => unreachable!("`{}` in a graph of blocks of {:?}", other.name(), local.gives()),
    };
    let results = graph.fitting_all(Op::Call(call.into()), &operands);
    let mut by_device = vec![vec![]; devices.len()];
    let mut results = results.into_iter();
    for count in kinds {
        by_device.iter_mut().for_each(|own| own.extend(results.by_ref().take(count)));
    }
    by_device
}

/// The body of a loop or a branch for these devices. It has parameters of several kinds, so many of each for a device; those of
/// a kind are together, and so are the results: carried values in front of those that a scan stacks.
fn body(one: &Graph, mesh: &Mesh, devices: &[usize], kinds: &[usize]) -> Graph {
    let mut graph = Graph { at: one.at, ..Graph::default() };
    let mut operands = vec![vec![]; devices.len()];
    let mut first = 0;
    for &count in kinds {
        for own in &mut operands {
            own.extend(one.params[first..first + count].iter().map(|&p| graph.param(one.ty(p).clone())));
        }
        first += count;
    }
    let results = inlined(&mut graph, one, mesh, devices, &operands);
    // Of a scan, the second kind is carried; others carry or give all.
    let carried = if kinds.len() == 3 { kinds[1] } else { one.results.len() };
    let of = |range: std::ops::Range<usize>| results.iter().flat_map(move |own| own[range.clone()].to_vec());
    graph.results = of(0..carried).chain(of(carried..one.results.len())).collect();
    graph
}

/// Appends the operations that bring the devices what an exchange does.
fn exchanged(
    graph: &mut Graph,
    local: &Graph,
    e: &Equation,
    op: &Collective,
    devices: &[usize],
    args: &[Vec<Var>],
) -> Vec<Vec<Var>> {
    let place: HashMap<usize, usize> = devices.iter().enumerate().map(|(k, &device)| (device, k)).collect();
    let gives = local.ty(e.results[0]).clone();
    let mut results: Vec<Option<Var>> = vec![None; devices.len()];
    for k in 0..devices.len() {
        if results[k].is_some() {
            continue;
        }
        // Devices that exchange nothing may be apart from their group.
        let group = op.mesh.group(devices[k], &op.axes);
        let members: Vec<(usize, usize)> =
            group.iter().enumerate().filter_map(|(number, device)| Some((number, *place.get(device)?))).collect();
        let operand = |number: usize| args[members[number].1][0];
        let count = op.members();
        let shared = match &op.kind {
            Exchange::AllGather => Some(stacked(graph, (0..count).map(operand).collect())),
            Exchange::AllReduce(by) => Some(combined(graph, *by, (0..count).map(operand).collect())),
            _ => None,
        };
        for &(number, member) in &members {
            let own = match &op.kind {
                Exchange::AllGather | Exchange::AllReduce(_) => shared.expect("it was made for all"),
                Exchange::AllToAll => {
                    let parts = (0..count).map(|k| part(graph, operand(k), number)).collect();
                    stacked(graph, parts)
                }
                Exchange::ReduceScatter(by) => {
                    let parts = (0..count).map(|k| part(graph, operand(k), number)).collect();
                    combined(graph, *by, parts)
                }
                Exchange::Permute(sources) => match sources[number] {
                    Some(source) => operand(source),
                    None => graph.splat(Literal::new(gives.dtype, 0.0), &gives.shape),
                },
                Exchange::Table(table) => graph.literal(Literal::int(DType::I32, table[number].into())),
                Exchange::Cast { .. } => args[member][0],
            };
            results[member] = Some(own);
        }
    }
    results.into_iter().map(|own| vec![own.expect("each device is in a group")]).collect()
}

fn dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().copied().map(Dim::from).collect()
}

/// Arrays of one type along a new first axis.
fn stacked(graph: &mut Graph, parts: Vec<Var>) -> Var {
    let shape = [&[1], &graph.ty(parts[0]).shape[..]].concat();
    let parts: Vec<Var> =
        parts.into_iter().map(|x| graph.fitting(StructuralOp::from(Reshape { to: dims(&shape) }), &[x])).collect();
    if let [one] = parts[..] { one } else { graph.fitting(StructuralOp::from(Concat { axis: 0 }), &parts) }
}

/// The part of an array with this number along its first axis, which it does not have.
fn part(graph: &mut Graph, x: Var, number: usize) -> Var {
    let shape = graph.ty(x).shape.clone();
    let (start, size) = ([number].into_iter().chain(vec![0; shape.len() - 1]), [&[1], &shape[1..]].concat());
    let start: Vec<i64> = start.map(|n| n as i64).collect();
    let op = Slice { start, size: dims(&size), stride: vec![1; shape.len()] };
    let x = graph.fitting(StructuralOp::from(op), &[x]);
    graph.fitting(StructuralOp::from(Reshape { to: dims(&shape[1..]) }), &[x])
}

/// Arrays combined by a monoid, in order, in the type that accumulates them.
fn combined(graph: &mut Graph, by: ScalarOp, parts: Vec<Var>) -> Var {
    let own = graph.ty(parts[0]).dtype;
    let wide = by.accumulator(own).unwrap_or(own);
    let parts: Vec<Var> = parts.into_iter().map(|x| graph.cast(x, wide)).collect();
    let sum = parts.into_iter().reduce(|sum, x| graph.fitting(by, &[sum, x])).expect("a group has a member");
    graph.cast(sum, own)
}
