//! Calls of random graphs: loops, branches and functions, whose graphs are drawn likewise.
use super::draw::{Dice, Pool};
use crate::prelude::*;
use pallas_graph::call::{
    Call, Case, Checkpoint, CheckpointName, CheckpointPolicy, ClosedCall, CustomJvp, CustomVjp, Scan, While,
};
use pallas_graph::transform::{jvp, vjp};
use pallas_graph::{Graph, Op, Var};
use pallas_ir::{Literal, ScalarOp, Type};

type Drawn = (Call, Vec<(Var, bool)>);

impl Pool {
    fn ty(&self, v: (Var, bool)) -> Type {
        self.graph.ty(v.0).clone()
    }

    fn types(&self, all: &[(Var, bool)]) -> Vec<Type> {
        all.iter().map(|&v| self.ty(v)).collect()
    }

    /// A call of graphs that are drawn likewise.
    pub(super) fn call(&mut self) {
        let some: Vec<(Var, bool)> = (0..3).filter_map(|_| self.any(&|ty| ty.shape.len() < 3)).collect();
        if some.len() < 2 {
            return;
        }
        let drawn = match self.dice.below(9) {
            0 | 1 => self.case(some),
            2..=4 => self.scan(some),
            5 if !self.smooth => self.while_loop(some),
            6 => self.custom(),
            _ => self.function(some),
        };
        let Some((call, args)) = drawn else { return };
        let exact = args.iter().all(|(_, exact)| *exact);
        let vars: Vec<Var> = args.iter().map(|(v, _)| *v).collect();
        let made = self.graph.push_multi_result(Op::from(call), &vars).expect("it fits");
        for v in made {
            // Floats of a body are small; whether they are bit-equal is not known.
            let is_float = self.graph.ty(v).dtype.is_float();
            self.made.push((v, exact && !is_float));
        }
    }

    fn integer(&mut self) -> Option<(Var, bool)> {
        self.any(&|ty| *ty == Type::scalar(DType::I32))
    }

    fn case(&mut self, some: Vec<(Var, bool)>) -> Option<Drawn> {
        let index = self.integer()?;
        let takes = self.types(&some);
        let gives = [takes[0].clone(), takes[1].clone()];
        let branches = (0..1 + self.dice.below(3)).map(|_| self.body(&takes, &gives, 0)).collect();
        Some((Case { branches }.into(), [&[index], &some[..]].concat()))
    }

    fn scan(&mut self, some: Vec<(Var, bool)>) -> Option<Drawn> {
        let array = self.any(&|ty| !ty.shape.is_empty())?;
        let carried = 1 + self.dice.below(2);
        let mut takes = self.types(&some);
        let ty = self.ty(array);
        takes.push(Type::new(ty.dtype, &ty.shape[1..]));
        let captured = some.len() - carried;
        let stacks = self.dice.below(3);
        let body = self.body(&takes, &takes[captured..some.len()], stacks);
        let (length, reverse) = (ty.shape[0], self.dice.below(2) == 0);
        let scan = Scan { body, captured, carried, length, reverse };
        Some((scan.into(), [&some[..], &[array]].concat()))
    }

    /// A loop of at most three steps, as many as a captured number says.
    fn while_loop(&mut self, some: Vec<(Var, bool)>) -> Option<Drawn> {
        let (steps, count) = (self.integer()?, Type::scalar(DType::I32));
        let of_some = self.types(&some);
        let body_captured = self.dice.below(2);
        let carried = &of_some[body_captured..];
        let takes = [&of_some[..body_captured], std::slice::from_ref(&count), carried].concat();
        let mut body = self.body(&takes, carried, 0);
        let one = body.literal(Literal::int(DType::I32, 1));
        let next = body.push(ScalarOp::Add, &[body.params[body_captured], one]).expect("two numbers");
        body.results.insert(0, next);
        let mut condition = Graph::default();
        let params = [&[count.clone(), count], carried].concat().into_iter().map(|ty| condition.param(ty));
        let params: Vec<Var> = params.collect();
        let most = condition.literal(Literal::int(DType::I32, 3));
        let most = condition.push(ScalarOp::Minimum, &[params[0], most]).expect("two numbers");
        let holds = condition.push(ScalarOp::Lt, &[params[1], most]).expect("two numbers");
        condition.results = vec![holds];
        let zero = (self.graph.literal(Literal::int(DType::I32, 0)), true);
        let args = [&[steps], &some[..body_captured], &[zero], &some[body_captured..]].concat();
        Some((While { condition, body, condition_captured: 1, body_captured }.into(), args))
    }

    /// A function of floats with a derivative of its own, which is the one that it has.
    fn custom(&mut self) -> Option<Drawn> {
        let float = self.float;
        let fits = |ty: &Type| ty.dtype == float && ty.shape.len() < 3;
        let args = [self.any(&fits)?, self.any(&fits)?];
        let takes = self.types(&args);
        let primal = self.body(&takes, &takes[..1], 0);
        let call = if self.dice.below(2) == 0 {
            let Ok(rule) = jvp(&primal, &[true; 2]) else { return None };
            CustomJvp { captured: 0, primal, rule }.into()
        } else {
            let Ok(mut backward) = vjp(&primal, &[true; 2]) else { return None };
            backward.results.drain(..primal.results.len());
            let mut forward = primal.clone();
            forward.results.extend(&primal.params);
            CustomVjp { captured: 0, known: 0, has_tangents: self.forward, primal, forward, backward }.into()
        };
        Some((call, args.to_vec()))
    }

    fn function(&mut self, some: Vec<(Var, bool)>) -> Option<Drawn> {
        let takes = self.types(&some);
        let call = match self.dice.below(3) {
            0 => ClosedCall(self.body(&takes, &takes[..1], 1)).into(),
            1 => {
                let policy =
                    self.dice.pick(&[CheckpointPolicy::Nothing, CheckpointPolicy::Everything, CheckpointPolicy::Dots]);
                Checkpoint { graph: self.body(&takes, &takes[..1], 1), policy }.into()
            }
            _ => return Some((CheckpointName::new("drawn", takes[0].clone()).into(), vec![some[0]])),
        };
        Some((call, some))
    }

    /// A graph of a few operations that takes and gives these types, and gives some others.
    fn body(&mut self, takes: &[Type], gives: &[Type], more: usize) -> Graph {
        let dice = Dice(self.dice.below(usize::MAX) as u64);
        let (float, shape, smooth, forward) = (self.float, self.shape.clone(), self.smooth, self.forward);
        let mut pool =
            Pool { dice, graph: Graph::default(), made: vec![], float, shape, smooth, forward, depth: self.depth + 1 };
        for ty in takes {
            let v = pool.graph.param(ty.clone());
            // Floats that steps compute are not bit-equal.
            pool.made.push((v, !ty.dtype.is_float()));
        }
        (0..8).for_each(|_| pool.step());
        for ty in gives {
            let (v, _) = pool.any(&|own| own == ty).expect("a parameter has the type");
            pool.graph.results.push(v);
        }
        for _ in 0..more {
            let (v, _) = pool.any(&|_| true).expect("there are parameters");
            pool.graph.results.push(v);
        }
        pool.graph
    }
}
