//! Sharding of a scan: its view as a `while` for propagation, and the scan of blocks that each device runs.
use super::Scan;
use crate::dynamic::{DynamicSlice, DynamicUpdateSlice};
use crate::graph::{Graph, Var};
use crate::mesh::{DimSharding, Sharding};
use crate::shard::CallRegions;
use crate::shard::partition::{Partition, captured_first};
use crate::shard::rule::Rule;
use crate::shard::united::Devices;
use crate::shard::view::{Build, CallView, Kind, NodeId, Region, Val};
use pallas_ir::{DType, Literal, Loc, ScalarOp, Type};

impl CallRegions for Scan {
    fn rule(&self) -> Option<Rule> {
        None
    }

    /// Shows propagation a `while` whose carried values are the index of the step, the scan's own carried values, and
    /// the stacks.
    fn view(&self, build: &mut Build<'_>, args: &[Val], gives: &[Type], loc: Loc) -> Vec<Val> {
        let (captured, rest) = args.split_at(self.captured);
        let (carried, arrays) = rest.split_at(self.carried);
        let stacks: Vec<Val> = (gives[self.carried..].iter())
            .map(|ty| {
                let node = build.push(Kind::Constant, vec![], vec![ty.clone()], loc);
                build.program.nodes[node].results[0]
            })
            .collect();
        if self.length == 0 {
            return [carried, &stacks].concat();
        }
        let state = [&[build.position(0, loc)], carried, &stacks].concat();
        let types: Vec<Type> = state.iter().map(|&x| build.program.ty(x).clone()).collect();
        let node = build.structured(Kind::Loop, CallView::of(self.clone()), &state, &types, loc);
        let index = Type::scalar(DType::I32);
        build.region(node, &types, |b, x| {
            let length = b.position(self.length, loc);
            vec![b.implied(ScalarOp::Lt, &[x[0], length], Type::scalar(DType::Bool), loc)]
        });
        let (mut elements, mut implied) = (vec![], vec![]);
        build.region(node, &types, |b, x| {
            let (carried, stacks) = x[1..].split_at(self.carried);
            let first = b.program.nodes.len();
            let at = match self.reverse {
                true => {
                    let last = b.position(self.length - 1, loc);
                    b.implied(ScalarOp::Sub, &[last, x[0]], index.clone(), loc)
                }
                false => x[0],
            };
            let zero = b.position(0, loc);
            let start = |rank: usize| [vec![at], vec![zero; rank]].concat();
            for &array in arrays {
                let Type { dtype, shape } = b.program.ty(array).clone();
                let size = [&[1], &shape[1..]].concat();
                let from = [vec![array], start(shape.len() - 1)].concat();
                let row = b.implied(DynamicSlice { size: size.clone() }, &from, Type::new(dtype, size), loc);
                elements.push(b.reshaped(row, &shape[1..], loc));
            }
            implied.extend(first..b.program.nodes.len());
            let (mut made, _) = b.graph(&self.body, &[captured, carried, &elements].concat());
            let first = b.program.nodes.len();
            for (value, &stack) in made[self.carried..].iter_mut().zip(stacks) {
                let shape = b.program.ty(*value).shape.clone();
                let row = b.reshaped(*value, &[&[1], &shape[..]].concat(), loc);
                let to = [vec![stack, row], start(shape.len())].concat();
                *value = b.implied(DynamicUpdateSlice, &to, b.program.ty(stack).clone(), loc);
            }
            let one = b.position(1, loc);
            let next = b.implied(ScalarOp::Add, &[x[0], one], index.clone(), loc);
            implied.extend(first..b.program.nodes.len());
            made.insert(0, next);
            made
        });
        let number = build.program.call_number(node).expect("it has regions");
        let own = &mut build.program.calls[number];
        (own.elements, own.implied) = (elements, implied);
        build.program.nodes[node].results[1..].to_vec()
    }

    /// Appends the scan that each device runs. Its arrays are whole along the first axis, and their elements are
    /// sharded as in the body.
    fn localized(&self, to: &mut Partition<'_>, id: NodeId) {
        let node = &to.program.nodes[id];
        let view = &to.program.calls[to.program.call_number(id).expect("it has regions")];
        let region = &node.regions[1];
        let [arrays, elements, stacked] = parts(self, to, view, region);
        let of = |values: &[Val], p: &Partition<'_>| values.iter().map(|&v| (v, p.wanted(v))).collect::<Vec<_>>();
        let own = 1..1 + self.carried;
        let carried: Vec<Sharding> = node.results[own.clone()].iter().map(|&v| to.wanted(v)).collect();
        let with = |values: &[Val]| values.iter().copied().zip(carried.iter().cloned()).collect::<Vec<_>>();
        let (elements, stacked) = (of(&elements, to), of(&stacked, to));
        let stacks = |s: &Sharding| Sharding {
            dims: [&[DimSharding::default()], &s.dims[..]].concat(),
            replicated: vec![],
            unreduced: vec![],
        };
        let inits: Vec<Var> = with(&node.operands[own.clone()]).iter().map(|(v, s)| to.sharded(*v, s)).collect();
        let arrays: Vec<Var> = arrays.iter().zip(&elements).map(|(&v, (_, s))| to.sharded(v, &stacks(s))).collect();
        // Leaves out the nodes of the view that the scan itself implies.
        let nodes = region.nodes.iter().copied().filter(|id| !view.implied.contains(id)).collect();
        let body = Region { params: vec![], nodes, results: vec![] };
        let params = [with(&region.params[own.clone()]), elements].concat();
        let results = [with(&region.results[own.clone()]), stacked.clone()].concat();
        let (body, captured) = to.region(&body, &params, &results);
        let made = Scan { body: captured_first(body, captured.len()), captured: captured.len(), ..*self };
        let args = [to.outside(&captured), inits, arrays].concat();
        let made = to.graph().fitting_all(made, &args);
        let length = Literal::int(DType::I32, self.length as i64);
        let steps = to.graph().literal(length);
        to.define(node.results[0], steps, Sharding::replicated(0));
        let shardings = carried.iter().cloned().chain(stacked.iter().map(|(_, s)| stacks(s)));
        for ((&v, var), sharding) in node.results[1..].iter().zip(made).zip(shardings) {
            to.define(v, var, sharding);
            let wanted = to.wanted(v);
            let var = to.sharded(v, &wanted);
            to.define(v, var, wanted);
        }
    }

    /// Appends one scan that computes those of several devices. Operands and results stay grouped by kind; each kind
    /// lists the values of all devices.
    fn united(&self, to: &mut Graph, of: &Devices<'_>) -> Vec<Vec<Var>> {
        let (captured, fixed) = (self.captured, self.fixed());
        let kinds = [0..captured, captured..fixed, fixed..self.body.params.len()];
        let own = Scan {
            body: of.body(&self.body, &kinds.clone().map(|kind| kind.len())),
            captured: of.all(captured),
            carried: of.all(self.carried),
            ..*self
        };
        let operands = kinds.into_iter().flat_map(|kind| of.taken(kind)).collect();
        of.called(to, own.into(), operands, &[self.carried, self.body.results.len() - self.carried])
    }
}

/// Returns the arrays that a scan reads, their elements in the body, and the elements that the body adds to stacks.
fn parts(scan: &Scan, to: &Partition<'_>, view: &CallView, region: &Region) -> [Vec<Val>; 3] {
    let program = to.program;
    let operand = |v: Val, i: usize| {
        let mut node = &program.nodes[program.definer(v).expect("an operation of the scan")];
        // Skips constraints and barriers on the value.
        while let Kind::Constraint(_) | Kind::Barrier(_) = node.kind {
            node = &program.nodes[program.definer(node.operands[0]).expect("an operation of the scan")];
        }
        node.operands[i]
    };
    let arrays = view.elements.iter().map(|&element| operand(operand(element, 0), 0)).collect();
    let updates = &region.results[1 + scan.carried..];
    let stacked = updates.iter().map(|&update| operand(operand(update, 1), 0)).collect();
    [arrays, view.elements.clone(), stacked]
}
