//! One graph for all devices of a mesh, run by a single device: for instance by a GPU whose mesh is virtual.
//!
//! ```text
//! each of 2 devices:   y = all_reduce add x; z = exp y
//! together:            y = x0 + x1; z0 = exp y; z1 = z0
//! ```
//!
//! A collective becomes slices, concatenations and sums in the order of the devices, the order that all engines use.
//! Values that all devices compute from equal operands exist once after [`simplify`](crate::simplify::simplify).
//! Devices that communicate in a loop or a branch share one loop or branch; its condition is the same on all of them.
//! Other devices have loops and branches of their own.
use crate::build::constant_dims;
use crate::call::{Call, ExpansionStage};
use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::{Collective, CollectiveForm, Mesh, SentPart};
use pallas_ir::structural::{Concat, Slice};
use pallas_ir::{Literal, ScalarOp, StructuralOp};
use std::collections::HashMap;

/// Converts the graph that each device of a mesh runs to one graph for all devices. Its parameters are those of the
/// first device, then those of the second one and so on; so are its results.
pub fn expand_to_all_devices(device_graph: &Graph, mesh: &Mesh) -> Graph {
    let devices: Vec<usize> = (0..mesh.device_count()).collect();
    let mut graph = Graph::default();
    let params =
        devices.iter().map(|_| device_graph.params.iter().map(|&p| graph.param(device_graph.ty(p).clone())).collect());
    let params: Vec<Vec<Var>> = params.collect();
    graph.results = inline_for_devices(&mut graph, device_graph, mesh, &devices, &params).concat();
    graph
}

/// Appends a graph's equations once for each of these devices, with the operands of that device; returns the results by
/// device.
fn inline_for_devices(
    graph: &mut Graph,
    device_graph: &Graph,
    mesh: &Mesh,
    devices: &[usize],
    operands: &[Vec<Var>],
) -> Vec<Vec<Var>> {
    // By variable of the graph for one device, the value of each.
    let mut values: HashMap<Var, Vec<Var>> = HashMap::new();
    for (i, &param) in device_graph.params.iter().enumerate() {
        values.insert(param, operands.iter().map(|own| own[i]).collect());
    }
    let at = graph.at;
    for e in &device_graph.equations {
        graph.at = e.loc;
        let args: Vec<Vec<Var>> = (0..devices.len()).map(|k| e.args.iter().map(|v| values[v][k]).collect()).collect();
        let results = match &e.op {
            Op::Collective(op) => emit_collective(graph, device_graph, e, op, devices, &args),
            _ => {
                let mut all = vec![vec![]; devices.len()];
                for members in group_communicating_devices(e, mesh, devices) {
                    let own: Vec<Vec<Var>> = members.iter().map(|&k| args[k].clone()).collect();
                    let devices: Vec<usize> = members.iter().map(|&k| devices[k]).collect();
                    let results = emit_equation(graph, e, mesh, &devices, &own);
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
    (0..devices.len()).map(|k| device_graph.results.iter().map(|v| values[v][k]).collect()).collect()
}

/// Groups the devices such that those which communicate in the graphs that an equation calls are together; returns
/// indices into `devices`.
fn group_communicating_devices(e: &Equation, mesh: &Mesh, devices: &[usize]) -> Vec<Vec<usize>> {
    let mut collectives = vec![];
    if let Op::Call(call) = &e.op {
        call.graphs().into_iter().for_each(|graph| collect_collectives(graph, &mut collectives));
    }
    let mut component: Vec<usize> = (0..devices.len()).collect();
    for op in collectives {
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

/// Adds to `all` the collectives of a graph, and of the graphs that it calls, in which devices exchange data.
fn collect_collectives<'g>(graph: &'g Graph, all: &mut Vec<&'g Collective>) {
    for e in &graph.equations {
        match &e.op {
            Op::Collective(op) if op.communicates() => all.push(op),
            Op::Call(call) => call.graphs().into_iter().for_each(|graph| collect_collectives(graph, all)),
            _ => {}
        }
    }
}

/// Appends an equation for devices that communicate in it, or for a single device; returns the results by device.
fn emit_equation(graph: &mut Graph, e: &Equation, mesh: &Mesh, devices: &[usize], args: &[Vec<Var>]) -> Vec<Vec<Var>> {
    let Op::Call(call) = &e.op else { return vec![graph.push_valid_multi_result(e.op.clone(), &args[0])] };
    // Bodies of branches may have functions that are not expanded yet.
    if let Some(one) = call.expansion_at(ExpansionStage::Vjp) {
        return inline_for_devices(graph, one, mesh, devices, args);
    }
    call.regions().expect("functions are expanded before").emit_joint_call(graph, &JointDevices { mesh, devices, args })
}

/// The devices that run one call together, with their operands. The joint call has operands and results in groups of
/// one kind (such as captured or carried ones), and in each group those of all devices.
pub(crate) struct JointDevices<'a> {
    mesh: &'a Mesh,
    devices: &'a [usize],
    args: &'a [Vec<Var>],
}

impl JointDevices<'_> {
    /// Returns the operands in this range, those of the first device first.
    pub(crate) fn operands_in_range(&self, range: std::ops::Range<usize>) -> Vec<Var> {
        self.args.iter().flat_map(|own| own[range.clone()].to_vec()).collect()
    }

    /// Returns the first device's operand with this number.
    pub(crate) fn first_device_operand(&self, operand: usize) -> Var {
        self.args[0][operand]
    }

    /// Appends a call in which devices do not communicate, on the operands of the only device; returns the results of
    /// that device.
    pub(crate) fn emit_single_device_call(&self, to: &mut Graph, call: impl Into<Op>) -> Vec<Vec<Var>> {
        vec![to.push_valid_multi_result(call, &self.args[0])]
    }

    /// Returns true if the first device of the mesh is one of these.
    pub(crate) fn has_first_device(&self) -> bool {
        self.devices[0] == 0
    }

    /// Returns the number of values of all devices if each has `count` of them.
    pub(crate) fn count_over_devices(&self, count: usize) -> usize {
        self.devices.len() * count
    }

    /// Returns the body of a loop or a branch for all of these devices together. `kind_counts` has the number of
    /// parameters of each kind, such as captured or carried ones, that a device has.
    pub(crate) fn joint_body(&self, device_body: &Graph, kind_counts: &[usize]) -> Graph {
        build_joint_body(device_body, self.mesh, self.devices, kind_counts)
    }

    /// Appends a joint call of all devices; returns the results by device. `kind_counts` has the number of results of
    /// each kind that a device has; results of one kind are adjacent.
    pub(crate) fn emit_joint_call(
        &self,
        to: &mut Graph,
        call: Call,
        operands: Vec<Var>,
        kind_counts: &[usize],
    ) -> Vec<Vec<Var>> {
        let mut by_device = vec![vec![]; self.devices.len()];
        let mut results = to.push_valid_multi_result(Op::Call(call.into()), &operands).into_iter();
        for &count in kind_counts {
            by_device.iter_mut().for_each(|own| own.extend(results.by_ref().take(count)));
        }
        by_device
    }
}

/// Returns the body of a loop or a branch for these devices. `kind_counts` has the number of parameters of each kind
/// that a device has; parameters of one kind are adjacent, and so are the results: carried values before those that a
/// scan stacks.
fn build_joint_body(device_body: &Graph, mesh: &Mesh, devices: &[usize], kind_counts: &[usize]) -> Graph {
    let mut graph = Graph { at: device_body.at, ..Graph::default() };
    let mut operands = vec![vec![]; devices.len()];
    let mut first = 0;
    for &count in kind_counts {
        for own in &mut operands {
            own.extend(
                device_body.params[first..first + count].iter().map(|&p| graph.param(device_body.ty(p).clone())),
            );
        }
        first += count;
    }
    let results = inline_for_devices(&mut graph, device_body, mesh, devices, &operands);
    // The second of three kinds is what a scan carries; other bodies carry or return all results.
    let carried = if kind_counts.len() == 3 { kind_counts[1] } else { device_body.results.len() };
    let of = |range: std::ops::Range<usize>| results.iter().flat_map(move |own| own[range.clone()].to_vec());
    graph.results = of(0..carried).chain(of(carried..device_body.results.len())).collect();
    graph
}

/// Appends the operations that replace a collective; returns the results by device.
fn emit_collective(
    graph: &mut Graph,
    device_graph: &Graph,
    e: &Equation,
    op: &Collective,
    devices: &[usize],
    args: &[Vec<Var>],
) -> Vec<Vec<Var>> {
    let place: HashMap<usize, usize> = devices.iter().enumerate().map(|(k, &device)| (device, k)).collect();
    let gives = device_graph.ty(e.results[0]).clone();
    let mut results: Vec<Option<Var>> = vec![None; devices.len()];
    for k in 0..devices.len() {
        if results[k].is_some() {
            continue;
        }
        // A collective that does not communicate may have members of its group that are not here.
        let group = op.mesh.group(devices[k], &op.axes);
        let members: Vec<(usize, usize)> =
            group.iter().enumerate().filter_map(|(number, device)| Some((number, *place.get(device)?))).collect();
        let operand = |number: usize| args[members[number].1][0];
        let count = op.group_size();
        let all = || (0..count).map(operand).collect();
        let shared = match op.first_member_form() {
            CollectiveForm::Stack(SentPart::Whole) => Some(emit_stack(graph, all())),
            CollectiveForm::Fold(by, SentPart::Whole) => Some(emit_fold(graph, by, all())),
            _ => None,
        };
        for &(number, member) in &members {
            let parts =
                |graph: &mut Graph| (0..count).map(|k| emit_slice_at(graph, operand(k), number)).collect::<Vec<Var>>();
            let own = match op.kind.form_for_member(number) {
                CollectiveForm::Stack(SentPart::Whole) | CollectiveForm::Fold(_, SentPart::Whole) => {
                    shared.expect("it was made for all")
                }
                CollectiveForm::Stack(SentPart::Part) => {
                    let parts = parts(graph);
                    emit_stack(graph, parts)
                }
                CollectiveForm::Fold(by, SentPart::Part) => {
                    let parts = parts(graph);
                    emit_fold(graph, by, parts)
                }
                CollectiveForm::FromMember(Some(source)) => operand(source),
                CollectiveForm::FromMember(None) => graph.splat(Literal::new(gives.dtype, 0.0), &gives.shape),
                CollectiveForm::Constant(n) => graph.i32_literal(n.into()),
                CollectiveForm::Own => args[member][0],
            };
            results[member] = Some(own);
        }
    }
    results.into_iter().map(|own| vec![own.expect("each device is in a group")]).collect()
}

/// Appends a concatenation of arrays of one type along a new first axis.
fn emit_stack(graph: &mut Graph, parts: Vec<Var>) -> Var {
    let shape = [&[1], &graph.ty(parts[0]).shape[..]].concat();
    let parts: Vec<Var> = parts.into_iter().map(|x| graph.reshape(x, &shape)).collect();
    if let [one] = parts[..] { one } else { graph.push_valid(StructuralOp::from(Concat { axis: 0 }), &parts) }
}

/// Appends a slice of an array at this index of its first axis, which is dropped.
fn emit_slice_at(graph: &mut Graph, x: Var, index: usize) -> Var {
    let shape = graph.ty(x).shape.clone();
    let (start, size) = ([index].into_iter().chain(vec![0; shape.len() - 1]), [&[1], &shape[1..]].concat());
    let start: Vec<i64> = start.map(|n| n as i64).collect();
    let op = Slice { start, size: constant_dims(&size), stride: vec![1; shape.len()] };
    let x = graph.push_valid(StructuralOp::from(op), &[x]);
    graph.reshape(x, &shape[1..])
}

/// Appends a fold of arrays by a monoid, in order, in the monoid's accumulator type.
fn emit_fold(graph: &mut Graph, monoid: ScalarOp, parts: Vec<Var>) -> Var {
    let own = graph.ty(parts[0]).dtype;
    let wide = monoid.accumulator(own).unwrap_or(own);
    let parts: Vec<Var> = parts.into_iter().map(|x| graph.cast(x, wide)).collect();
    let sum = parts.into_iter().reduce(|sum, x| graph.push_valid(monoid, &[sum, x])).expect("a group has a member");
    graph.cast(sum, own)
}
