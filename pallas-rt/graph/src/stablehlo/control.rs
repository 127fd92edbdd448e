//! Calls: loops, branches, functions and kernels.
use super::operation::{Detail, Line, Region, Value};
use super::{Printer, position};
use crate::call::{Call, Case, KernelCall, Scan, While};
use crate::graph::Graph;
use crate::shard::Rule;
use pallas_ir::{DType, Literal, Type};

impl Printer {
    pub(super) fn call(&mut self, call: &Call, args: &[Value], gives: &[Type]) -> Vec<Value> {
        match call {
            Call::Scan(scan) => self.scan(scan, args, gives),
            Call::While(call) => self.while_loop(call, args, gives),
            Call::Case(case) => self.case(case, args, gives),
            Call::Kernel(call) => self.kernel(call, args, gives),
            Call::ShardMap(map) => self.shard_map(map, args, gives),
            Call::Closed(graph) => self.called(graph, args, gives),
            Call::Custom(custom) => self.called(&custom.primal, args, gives),
            Call::CustomJvp(custom) => self.called(&custom.primal, args, gives),
            Call::Checkpoint(checkpoint) => self.called(&checkpoint.graph, args, gives),
            Call::Named(_) => args.to_vec(),
            Call::Callback(_) => {
                let detail = Detail::Kernel { name: "pure_callback".into(), config: String::new(), rule: None };
                self.w.operation("custom_call", &args.iter().collect::<Vec<_>>(), vec![], detail, gives)
            }
            Call::Print(print) => {
                self.w.line(Line::Comment(print.label.clone(), args[0].clone()));
                vec![position(&mut self.w, 0)]
            }
        }
    }

    /// A call of a function of its own; equal graphs are one function.
    fn called(&mut self, graph: &Graph, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let number = match self.known.get(graph) {
            Some(&number) => number,
            None => {
                let number = self.known.len();
                self.known.insert(graph.clone(), number);
                let function = self.function(false, format!("call{number}"), graph);
                self.functions.push(function);
                number
            }
        };
        let all: Vec<&Value> = args.iter().collect();
        self.w.operation("func.call", &all, vec![], Detail::Call(format!("call{number}")), gives)
    }

    /// A region that takes values of these types; see [`Writer::region`](super::writer::Writer::region).
    fn region(&mut self, takes: &[Type], write: impl FnOnce(&mut Self, &[Value]) -> Vec<Value>) -> Region {
        let params = self.w.params(takes);
        let outer = self.w.turn(vec![]);
        let made = write(self, &params);
        self.w.end("return", &made);
        Region { params, lines: self.w.turn(outer) }
    }

    fn while_loop(&mut self, call: &While, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let (captured, carried) = args.split_at(call.condition_captured + call.body_captured);
        let (of_condition, of_body) = captured.split_at(call.condition_captured);
        let operands = |captured: &[Value], carried: &[Value]| [captured, carried].concat();
        let condition = self.region(gives, |p, x| p.graph(&call.condition, &operands(of_condition, x)));
        let body = self.region(gives, |p, x| p.graph(&call.body, &operands(of_body, x)));
        let carried: Vec<&Value> = carried.iter().collect();
        self.w.operation("while", &carried, vec![condition, body], Detail::None, gives)
    }

    /// A `while` over the number of the step, the carried values and the stacks; the arrays are read from outside.
    fn scan(&mut self, scan: &Scan, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let (captured, rest) = args.split_at(scan.captured);
        let (carried, arrays) = rest.split_at(scan.carried);
        let stacks: Vec<Value> =
            gives[scan.carried..].iter().map(|ty| self.w.constant(Literal::int(ty.dtype, 0), &ty.shape)).collect();
        if scan.length == 0 {
            return [carried, &stacks].concat();
        }
        let state = [&[position(&mut self.w, 0)], carried, &stacks].concat();
        let types: Vec<Type> = state.iter().map(|x| x.ty.clone()).collect();
        let condition = self.region(&types, |p, x| {
            let length = position(&mut p.w, scan.length);
            vec![p.w.compare("LT", &x[0], &length)]
        });
        let body = self.region(&types, |p, x| {
            let (carried, stacks) = x[1..].split_at(scan.carried);
            let at = if scan.reverse {
                let last = position(&mut p.w, scan.length - 1);
                p.w.binary("subtract", &last, &x[0])
            } else {
                x[0].clone()
            };
            let zero = position(&mut p.w, 0);
            let start = |rank: usize| [vec![&at], vec![&zero; rank]].concat();
            let mut operands = [captured, carried].concat();
            for array in arrays {
                let element = &array.ty.shape[1..];
                let row = Type::new(array.ty.dtype, [&[1], element].concat());
                let from = [vec![array], start(element.len())].concat();
                let row = p.w.op("dynamic_slice", &from, Detail::Sizes(row.shape.clone()), row);
                operands.push(p.w.reshape(&row, element));
            }
            let mut made = p.graph(&scan.body, &operands);
            for (value, stack) in made[scan.carried..].iter_mut().zip(stacks) {
                let rank = value.ty.shape.len();
                let row = p.w.reshape(value, &[&[1], &value.ty.shape[..]].concat());
                let to = [vec![stack, &row], start(rank)].concat();
                *value = p.w.op("dynamic_update_slice", &to, Detail::None, stack.ty.clone());
            }
            let one = position(&mut p.w, 1);
            let next = p.w.binary("add", &x[0], &one);
            made.insert(0, next);
            made
        });
        let state: Vec<&Value> = state.iter().collect();
        self.w.operation("while", &state, vec![condition, body], Detail::None, &types).split_off(1)
    }

    /// The number of the branch is held in range: StableHLO takes the last branch for a negative one.
    fn case(&mut self, case: &Case, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let (low, high) = (position(&mut self.w, 0), position(&mut self.w, case.branches.len() - 1));
        let index = self.w.op("clamp", &[&low, &args[0], &high], Detail::None, Type::scalar(DType::I32));
        let branches: Vec<Region> =
            case.branches.iter().map(|graph| self.region(&[], |p, _| p.graph(graph, &args[1..]))).collect();
        self.w.operation("case", &[&index], branches, Detail::None, gives)
    }

    /// A kernel, with its text, its sizes and its parameters as the configuration, and its sharding rule for Shardy.
    fn kernel(&mut self, call: &KernelCall, args: &[Value], gives: &[Type]) -> Vec<Value> {
        let config = format!("sizes{:?} params{:?}\n{}", call.sizes, call.params, call.kernel);
        let rule = self.w.with_shardings.then(|| Rule::of_kernel(call).text(0));
        let detail = Detail::Kernel { name: call.kernel.name.clone(), config, rule };
        self.w.operation("custom_call", &args.iter().collect::<Vec<_>>(), vec![], detail, gives)
    }
}
