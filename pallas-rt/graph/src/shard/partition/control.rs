//! Loops and branches on blocks.
//!
//! A body reads blocks of values from outside as parameters that are captured. What a loop carries has one sharding, that of
//! its results: initial values, and what the body gives, are resharded to it.
use super::{Partition, Scope};
use crate::call::{Call, Case, Scan, While};
use crate::graph::{Graph, Var};
use crate::mesh::{DimSharding, Sharding};
use crate::shard::view::{Kind, Loop, Node, Region, Val};
use pallas_ir::{DType, Literal, Type};

impl Partition<'_> {
    /// Builds the graph of a region whose parameters have these shardings, and whose results are to have those. Returns it
    /// with the values that it reads from outside; its own parameters come first.
    fn region(
        &mut self,
        region: &Region,
        params: &[(Val, Sharding)],
        results: &[(Val, Sharding)],
    ) -> (Graph, Vec<Val>) {
        self.scopes.push(Scope::default());
        for (v, sharding) in params {
            self.param(*v, sharding.clone());
        }
        self.nodes(region);
        let made: Vec<Var> = results.iter().map(|(v, sharding)| self.divided(*v, sharding)).collect();
        let Scope { mut graph, captured, .. } = self.scopes.pop().expect("the region's own");
        graph.results = made;
        (graph, captured)
    }

    /// The blocks of values from outside.
    fn outside(&mut self, captured: &[Val]) -> Vec<Var> {
        captured.iter().map(|&v| self.settled(v).var).collect()
    }

    pub(super) fn while_loop(&mut self, node: &Node) {
        let carried: Vec<Sharding> = node.results.iter().map(|&v| self.wanted(v)).collect();
        let with = |values: &[Val]| values.iter().copied().zip(carried.iter().cloned()).collect::<Vec<_>>();
        let inits: Vec<Var> = with(&node.operands).iter().map(|(v, s)| self.divided(*v, s)).collect();
        let [first, second] = [&node.regions[0], &node.regions[1]];
        let holds = vec![(first.results[0], Sharding::replicated(0))];
        let (condition, of_condition) = self.region(first, &with(&first.params), &holds);
        let (body, of_body) = self.region(second, &with(&second.params), &with(&second.results));
        let call = While {
            condition: captured_first(condition, of_condition.len()),
            body: captured_first(body, of_body.len()),
            condition_captured: of_condition.len(),
            body_captured: of_body.len(),
        };
        let args = [self.outside(&of_condition), self.outside(&of_body), inits].concat();
        let made = self.graph().fitting_all(Call::While(call), &args);
        for ((&v, var), sharding) in node.results.iter().zip(made).zip(carried) {
            self.define(v, var, sharding);
        }
    }

    /// A scan stays one: its arrays are whole along the first axis, and its elements divided as the body divides them.
    pub(super) fn scan(&mut self, node: &Node, number: usize) {
        let view = &self.program.loops[number];
        let region = &node.regions[1];
        let [arrays, elements, stacked] = self.parts_of_scan(view, region);
        let of = |values: &[Val], p: &Self| values.iter().map(|&v| (v, p.wanted(v))).collect::<Vec<_>>();
        let own = 1..1 + view.scan.carried;
        let carried: Vec<Sharding> = node.results[own.clone()].iter().map(|&v| self.wanted(v)).collect();
        let with = |values: &[Val]| values.iter().copied().zip(carried.iter().cloned()).collect::<Vec<_>>();
        let (elements, stacked) = (of(&elements, self), of(&stacked, self));
        let stacks = |s: &Sharding| Sharding {
            dims: [&[DimSharding::default()], &s.dims[..]].concat(),
            replicated: vec![],
            unreduced: vec![],
        };
        let inits: Vec<Var> = with(&node.operands[own.clone()]).iter().map(|(v, s)| self.divided(*v, s)).collect();
        let arrays: Vec<Var> = arrays.iter().zip(&elements).map(|(&v, (_, s))| self.divided(v, &stacks(s))).collect();
        // Without the nodes that the scan itself stands for.
        let nodes = region.nodes.iter().copied().filter(|id| !view.implied.contains(id)).collect();
        let body = Region { params: vec![], nodes, results: vec![] };
        let params = [with(&region.params[own.clone()]), elements].concat();
        let results = [with(&region.results[own.clone()]), stacked.clone()].concat();
        let (body, captured) = self.region(&body, &params, &results);
        let scan = Scan { body: captured_first(body, captured.len()), captured: captured.len(), ..view.scan.clone() };
        let args = [self.outside(&captured), inits, arrays].concat();
        let made = self.graph().fitting_all(Call::Scan(scan), &args);
        let length = Literal::int(DType::I32, view.scan.length as i64);
        let steps = self.graph().literal(length);
        self.define(node.results[0], steps, Sharding::replicated(0));
        let shardings = carried.iter().cloned().chain(stacked.iter().map(|(_, s)| stacks(s)));
        for ((&v, var), sharding) in node.results[1..].iter().zip(made).zip(shardings) {
            self.define(v, var, sharding);
            let wanted = self.wanted(v);
            let var = self.divided(v, &wanted);
            self.define(v, var, wanted);
        }
    }

    /// The arrays that a scan reads, their elements in the body, and the elements of its stacks there.
    fn parts_of_scan(&self, view: &Loop, region: &Region) -> [Vec<Val>; 3] {
        let program = self.program;
        let operand = |v: Val, i: usize| {
            let mut node = &program.nodes[program.definer(v).expect("an operation of the scan")];
            // What is said about a value stands between.
            while let Kind::Constraint(_) | Kind::Barrier(_) = node.kind {
                node = &program.nodes[program.definer(node.operands[0]).expect("an operation of the scan")];
            }
            node.operands[i]
        };
        let arrays = view.elements.iter().map(|&element| operand(operand(element, 0), 0)).collect();
        let updates = &region.results[1 + view.scan.carried..];
        let stacked = updates.iter().map(|&update| operand(operand(update, 1), 0)).collect();
        [arrays, view.elements.clone(), stacked]
    }

    pub(super) fn case(&mut self, node: &Node) {
        let results: Vec<Sharding> = node.results.iter().map(|&v| self.wanted(v)).collect();
        let made: Vec<(Graph, Vec<Val>)> = (node.regions.iter())
            .map(|region| {
                let results = region.results.iter().copied().zip(results.iter().cloned()).collect::<Vec<_>>();
                self.region(region, &[], &results)
            })
            .collect();
        // Every branch takes what one of them reads.
        let mut captured: Vec<Val> = vec![];
        made.iter().flat_map(|(_, own)| own).for_each(|v| {
            if !captured.contains(v) {
                captured.push(*v);
            }
        });
        let index = self.divided(node.operands[0], &Sharding::replicated(0));
        let args = [vec![index], self.outside(&captured)].concat();
        let takes: Vec<Type> = args[1..].iter().map(|&v| self.graph().ty(v).clone()).collect();
        let branch = |(mut graph, own): (Graph, Vec<Val>)| {
            let given = std::mem::take(&mut graph.params);
            graph.params = (captured.iter().zip(&takes))
                .map(|(v, ty)| match own.iter().position(|o| o == v) {
                    Some(i) => given[i],
                    None => graph.var(ty.clone()),
                })
                .collect();
            graph
        };
        let branches = made.into_iter().map(branch).collect();
        let made = self.graph().fitting_all(Call::Case(Case { branches }), &args);
        for ((&v, var), sharding) in node.results.iter().zip(made).zip(results) {
            self.define(v, var, sharding);
        }
    }
}

/// The graph of a body, whose last parameters are captured, with these in front.
fn captured_first(mut graph: Graph, captured: usize) -> Graph {
    let own = graph.params.len() - captured;
    graph.params.rotate_left(own);
    graph
}
