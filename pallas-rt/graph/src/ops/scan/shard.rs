//! Sharding of a scan: its view as a `while` for propagation, and the scan of blocks that each device runs.
use super::Scan;
use crate::dynamic::{DynamicSlice, DynamicUpdateSlice};
use crate::graph::{Graph, Var};
use crate::mesh::{DimSharding, Sharding};
use crate::shard::ShardableCall;
use crate::shard::op_sharding_rule::ShardingRule;
use crate::shard::partition::{Partitioner, move_captured_params_first};
use crate::shard::propagation_program::{NodeId, NodeKind, Region, RegionCall, RegionGraphBuilder, Val};
use crate::shard::virtual_mesh::JointDevices;
use pallas_ir::{DType, Literal, Loc, ScalarOp, Type};

impl ShardableCall for Scan {
    fn sharding_rule(&self) -> Option<ShardingRule> {
        None
    }

    /// Adds the nodes of an equivalent `while`, through which shardings propagate: it carries the index of the step,
    /// the scan's own carried values, and the stacks.
    fn add_propagation_nodes(
        &self,
        build: &mut RegionGraphBuilder<'_>,
        args: &[Val],
        gives: &[Type],
        loc: Loc,
    ) -> Vec<Val> {
        let (captured, rest) = args.split_at(self.captured);
        let (carried, arrays) = rest.split_at(self.carried);
        let stacks: Vec<Val> = (gives[self.carried..].iter())
            .map(|ty| {
                let node = build.push_node(NodeKind::Constant, vec![], vec![ty.clone()], loc);
                build.program.nodes[node].results[0]
            })
            .collect();
        if self.length == 0 {
            return [carried, &stacks].concat();
        }
        let state = [&[build.add_index_constant(0, loc)], carried, &stacks].concat();
        let types: Vec<Type> = state.iter().map(|&x| build.program.ty(x).clone()).collect();
        let node = build.add_control_flow_node(NodeKind::Loop, RegionCall::new(self.clone()), &state, &types, loc);
        let index = Type::scalar(DType::I32);
        build.add_region(node, &types, |b, x| {
            let length = b.add_index_constant(self.length, loc);
            vec![b.add_implied_op(ScalarOp::Lt, &[x[0], length], Type::scalar(DType::Bool), loc)]
        });
        let (mut elements, mut implied) = (vec![], vec![]);
        build.add_region(node, &types, |b, x| {
            let (carried, stacks) = x[1..].split_at(self.carried);
            let first = b.program.nodes.len();
            let at = match self.reverse {
                true => {
                    let last = b.add_index_constant(self.length - 1, loc);
                    b.add_implied_op(ScalarOp::Sub, &[last, x[0]], index.clone(), loc)
                }
                false => x[0],
            };
            let zero = b.add_index_constant(0, loc);
            let start = |rank: usize| [vec![at], vec![zero; rank]].concat();
            for &array in arrays {
                let Type { dtype, shape } = b.program.ty(array).clone();
                let size = [&[1], &shape[1..]].concat();
                let from = [vec![array], start(shape.len() - 1)].concat();
                let row = b.add_implied_op(DynamicSlice { size: size.clone() }, &from, Type::new(dtype, size), loc);
                elements.push(b.add_reshape(row, &shape[1..], loc));
            }
            implied.extend(first..b.program.nodes.len());
            let (mut made, _) = b.add_graph(&self.body, &[captured, carried, &elements].concat());
            let first = b.program.nodes.len();
            for (value, &stack) in made[self.carried..].iter_mut().zip(stacks) {
                let shape = b.program.ty(*value).shape.clone();
                let row = b.add_reshape(*value, &[&[1], &shape[..]].concat(), loc);
                let to = [vec![stack, row], start(shape.len())].concat();
                *value = b.add_implied_op(DynamicUpdateSlice, &to, b.program.ty(stack).clone(), loc);
            }
            let one = b.add_index_constant(1, loc);
            let next = b.add_implied_op(ScalarOp::Add, &[x[0], one], index.clone(), loc);
            implied.extend(first..b.program.nodes.len());
            made.insert(0, next);
            made
        });
        let number = build.program.call_index(node).expect("it has regions");
        let own = &mut build.program.calls[number];
        (own.elements, own.implied) = (elements, implied);
        build.program.nodes[node].results[1..].to_vec()
    }

    /// Appends the scan that each device runs. Its arrays are whole along the first axis, and their elements are
    /// sharded as in the body.
    fn emit_partitioned(&self, to: &mut Partitioner<'_>, id: NodeId) {
        let node = &to.program.nodes[id];
        let view = &to.program.calls[to.program.call_index(id).expect("it has regions")];
        let region = &node.regions[1];
        let [arrays, elements, stacked] = scan_array_and_stack_values(self, to, view, region);
        let of = |values: &[Val], p: &Partitioner<'_>| {
            values.iter().map(|&v| (v, p.propagated_sharding(v))).collect::<Vec<_>>()
        };
        let own = 1..1 + self.carried;
        let carried: Vec<Sharding> = node.results[own.clone()].iter().map(|&v| to.propagated_sharding(v)).collect();
        let with = |values: &[Val]| values.iter().copied().zip(carried.iter().cloned()).collect::<Vec<_>>();
        let (elements, stacked) = (of(&elements, to), of(&stacked, to));
        let stacks = |s: &Sharding| Sharding {
            dims: [&[DimSharding::default()], &s.dims[..]].concat(),
            replicated: vec![],
            unreduced: vec![],
        };
        let inits: Vec<Var> = with(&node.operands[own.clone()]).iter().map(|(v, s)| to.reshard_value(*v, s)).collect();
        let arrays: Vec<Var> =
            arrays.iter().zip(&elements).map(|(&v, (_, s))| to.reshard_value(v, &stacks(s))).collect();
        // Leaves out the nodes that the scan itself implies.
        let nodes = region.nodes.iter().copied().filter(|id| !view.implied.contains(id)).collect();
        let body = Region { params: vec![], nodes, results: vec![] };
        let params = [with(&region.params[own.clone()]), elements].concat();
        let results = [with(&region.results[own.clone()]), stacked.clone()].concat();
        let (body, captured) = to.partition_region(&body, &params, &results);
        let made = Scan { body: move_captured_params_first(body, captured.len()), captured: captured.len(), ..*self };
        let args = [to.captured_blocks(&captured), inits, arrays].concat();
        let made = to.graph().push_valid_multi_result(made, &args);
        let length = Literal::int(DType::I32, self.length as i64);
        let steps = to.graph().literal(length);
        to.define_value(node.results[0], steps, Sharding::replicated(0));
        let shardings = carried.iter().cloned().chain(stacked.iter().map(|(_, s)| stacks(s)));
        for ((&v, var), sharding) in node.results[1..].iter().zip(made).zip(shardings) {
            to.define_value(v, var, sharding);
            let wanted = to.propagated_sharding(v);
            let var = to.reshard_value(v, &wanted);
            to.define_value(v, var, wanted);
        }
    }

    /// Appends one scan that does the steps of several devices' scans together. Operands and results stay grouped by
    /// kind (captured, carried, arrays or stacks); each kind lists the values of all devices.
    fn emit_joint_call(&self, to: &mut Graph, of: &JointDevices<'_>) -> Vec<Vec<Var>> {
        let (captured, fixed) = (self.captured, self.first_array_operand());
        let kinds = [0..captured, captured..fixed, fixed..self.body.params.len()];
        let own = Scan {
            body: of.joint_body(&self.body, &kinds.clone().map(|kind| kind.len())),
            captured: of.count_over_devices(captured),
            carried: of.count_over_devices(self.carried),
            ..*self
        };
        let operands = kinds.into_iter().flat_map(|kind| of.operands_in_range(kind)).collect();
        of.emit_joint_call(to, own.into(), operands, &[self.carried, self.body.results.len() - self.carried])
    }
}

/// Returns the arrays that a scan reads, their elements in the body, and the elements that the body adds to stacks.
fn scan_array_and_stack_values(scan: &Scan, to: &Partitioner<'_>, view: &RegionCall, region: &Region) -> [Vec<Val>; 3] {
    let program = to.program;
    let operand = |v: Val, i: usize| {
        let mut node = &program.nodes[program.defining_node(v).expect("an operation of the scan")];
        // Skips constraints and barriers on the value.
        while let NodeKind::Constraint(_) | NodeKind::PropagationBarrier(_) = node.kind {
            node = &program.nodes[program.defining_node(node.operands[0]).expect("an operation of the scan")];
        }
        node.operands[i]
    };
    let arrays = view.elements.iter().map(|&element| operand(operand(element, 0), 0)).collect();
    let updates = &region.results[1 + scan.carried..];
    let stacked = updates.iter().map(|&update| operand(operand(update, 1), 0)).collect();
    [arrays, view.elements.clone(), stacked]
}
