//! Random graphs: values that fit operations of the registry, and what keeps floats small.
use crate::prelude::*;
use pallas_graph::mesh::{
    Mesh, MeshSharding, PropagationBarrier, PropagationDirection, Sharding, ShardingConstraint, ShardingGroup,
};
use pallas_graph::{DynamicSlice, DynamicUpdateSlice, Graph, Op, OptimizationBarrier, StopGradient, Var, verify};
use pallas_ir::scalar::SignatureType;
use pallas_ir::structural::{Broadcast, Cast, Cumulative, RandomKernelGenerator, Reduce, Reshape, Slice};
use pallas_ir::{Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// Largest magnitude of a float.
const LIMIT: f64 = 3.0;
/// Equations of a graph, besides those that keep floats small.
const STEPS: usize = 14;

pub(in super::super) struct Dice(pub(in super::super) u64);
impl Dice {
    pub(in super::super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
    pub(super) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
}

/// A graph that is being drawn.
pub(super) struct Pool {
    pub(super) dice: Dice,
    pub(super) graph: Graph,
    /// Values so far, with true for those that are bit-equal however they are computed.
    pub(super) made: Vec<(Var, bool)>,
    pub(super) float: DType,
    pub(super) shape: Vec<usize>,
    /// Only operations that have a derivative almost everywhere.
    pub(super) smooth: bool,
    /// Only functions that have tangents: none states its gradient alone.
    pub(super) forward: bool,
    /// Calls around it.
    pub(super) depth: usize,
}

/// Chooses operands for a structural operation.
struct Offer<'a> {
    pool: &'a mut Pool,
    args: Vec<(Var, bool)>,
}

impl RandomKernelGenerator for Offer<'_> {
    fn draw_below(&mut self, n: usize) -> usize {
        self.pool.dice.below(n)
    }
    fn choose_operand(&mut self, fits: &dyn Fn(&Type) -> bool) -> Option<Type> {
        let found = self.pool.any(fits)?;
        self.args.push(found);
        Some(self.pool.graph.ty(found.0).clone())
    }
    fn append_constant(&mut self, x: Literal) {
        let v = self.pool.graph.literal(x);
        self.args.push((v, true));
    }
    fn clamp_last_operand(&mut self, end: usize) {
        let Some((last, exact)) = self.args.pop() else { return };
        let ty = self.pool.graph.ty(last).clone();
        let bound = |graph: &mut Graph, n: i64| graph.splat(Literal::int(ty.dtype, n), &ty.shape);
        let (low, high) = (bound(&mut self.pool.graph, 0), bound(&mut self.pool.graph, end as i64 - 1));
        let inside = self.pool.graph.push(ScalarOp::Clamp, &[last, low, high]).expect("it fits");
        self.args.push((inside, exact));
    }
    fn draw_dtype(&mut self) -> DType {
        let all = [self.pool.float, self.pool.float, DType::I32, DType::U8, DType::U32, DType::Bool];
        self.pool.dice.pick(&all)
    }
    fn common_shape(&mut self) -> Vec<usize> {
        self.pool.shape.clone()
    }
}

impl Pool {
    fn new(seed: u64, float: DType, smooth: bool) -> Pool {
        let mut dice = Dice(seed);
        // One extent in twelve is 0: arrays without elements, and loops without steps.
        let shape: Vec<usize> = [7, 9].map(|most| if dice.below(12) == 0 { 0 } else { 1 + dice.below(most) }).into();
        let mut pool = Pool {
            dice,
            graph: Graph::default(),
            made: vec![],
            float,
            shape: shape.clone(),
            smooth,
            forward: false,
            depth: 0,
        };
        let [m, n] = [shape[0], shape[1]];
        let floats: [&[usize]; 6] = [&[m, n], &[m, n], &[n, m], &[n], &[1, n], &[]];
        let integers: [&[usize]; 3] = [&[m, n], &[n], &[]];
        let types = floats.map(|shape| Type::new(float, shape)).into_iter();
        for ty in types.chain(integers.map(|shape| Type::new(DType::I32, shape))) {
            let v = pool.graph.param(ty);
            pool.made.push((v, true));
        }
        pool
    }

    /// A value that fits, more often a late one.
    pub(super) fn any(&mut self, fits: &dyn Fn(&Type) -> bool) -> Option<(Var, bool)> {
        let fitting: Vec<_> = self.made.iter().copied().filter(|(v, _)| fits(self.graph.ty(*v))).collect();
        let last = fitting.len().checked_sub(1)?;
        let [a, b] = [0, 1].map(|_| self.dice.below(last + 1));
        Some(fitting[a.max(b)])
    }

    pub(super) fn step(&mut self) {
        match self.dice.below(24) {
            0 | 1 => return self.window(),
            2 if self.depth < 2 => return self.call(),
            4 if !self.smooth && self.float == DType::F32 => return self.long(),
            3 if self.dice.below(3) == 0 => {
                let x = self.any(&|_| true).expect("there are parameters");
                let op = match self.dice.below(4) {
                    0 | 1 => annotation(self.graph.ty(x.0).shape.len(), self.dice.below(3)),
                    2 if !self.smooth => StopGradient.into(),
                    _ => OptimizationBarrier.into(),
                };
                return self.push(op, &[x]);
            }
            _ => {}
        }
        if self.dice.below(2) == 0 {
            let op = self.dice.pick(ScalarOp::ALL);
            return self.scalar(op);
        }
        let draw = self.dice.pick(StructuralOp::DRAWS);
        let mut offer = Offer { pool: self, args: vec![] };
        let Some(op) = draw(&mut offer) else { return };
        let args = offer.args;
        self.push(op.into(), &args);
    }

    /// An elementwise operation of values that are broadcast to the first one's shape if they are not of it.
    fn scalar(&mut self, op: ScalarOp) {
        let first = self.any(&|_| true).expect("there are parameters");
        let Type { dtype, shape } = self.graph.ty(first.0).clone();
        let mut args = vec![];
        for (i, (_, ty)) in op.row().operands.iter().enumerate() {
            let dtype = if let SignatureType::Is(dtype) = ty { *dtype } else { dtype };
            let fits = |ty: &Type| ty.dtype == dtype && (ty.shape == shape || ty.shape.is_empty());
            let found = if i == 0 && self.graph.ty(first.0).dtype == dtype { Some(first) } else { self.any(&fits) };
            let Some((v, exact)) = found else { return };
            let v = match self.graph.ty(v).shape == shape {
                true => v,
                false => {
                    let to = Broadcast::to(Type::new(dtype, shape.clone()).dims());
                    self.graph.push(StructuralOp::from(to), &[v]).expect("a scalar fits")
                }
            };
            args.push((v, exact));
        }
        self.push(op.into(), &args);
    }

    /// A fold of many 16-bit floats, whose sum is the same in every order: their numbers lie on a grid, so that f32
    /// holds each sum of some. Accumulated in 16 bits it is another one.
    fn long(&mut self) {
        let Some((x, true)) = self.any(&|ty| ty.dtype == DType::F32 && ty.elements() <= 64) else { return };
        let shape = self.graph.ty(x).shape.clone();
        let (count, to) = (64 << self.dice.below(4), self.dice.pick(&[DType::F16, DType::Bf16]));
        let graph = &mut self.graph;
        let mut scaled = |v: Var, by: f64| {
            let by = graph.splat(Literal::new(DType::F32, by), &shape);
            graph.push(ScalarOp::Mul, &[v, by]).expect("floats of one shape")
        };
        let quarters = scaled(x, 4.0);
        let x = self.graph.push(ScalarOp::Round, &[quarters]).expect("a float");
        let many = [&[count], &shape[..]].concat();
        let spread = Broadcast { to: Type::new(to, &many[..]).dims(), dims: (1..many.len()).collect() };
        let fold = self.dice.below(2) == 0;
        let last = Slice {
            start: [&[count as i64 - 1], &vec![0; shape.len()][..]].concat(),
            size: Type::new(to, [&[1], &shape[..]].concat()).dims(),
            stride: vec![1; many.len()],
        };
        let mut then = |op: StructuralOp, v: Var| self.graph.push(op, &[v]).expect("it fits");
        let x = then(Cast { to }.into(), x);
        let x = then(spread.into(), x);
        let x = match fold {
            true => then(Reduce::dropping(ScalarOp::Add, vec![0]).into(), x),
            false => {
                let x = then(Cumulative { op: ScalarOp::Add, axis: 0, reverse: false }.into(), x);
                let x = then(last.into(), x);
                then(Reshape { to: Type::new(to, &shape[..]).dims() }.into(), x)
            }
        };
        let x = then(Cast { to: DType::F32 }.into(), x);
        let by = self.graph.splat(Literal::new(DType::F32, 0.25 / count as f64), &shape);
        let x = self.graph.push(ScalarOp::Mul, &[x, by]).expect("floats of one shape");
        self.made.push((x, true));
    }

    /// A window of a value, or a value with another one in a window, at positions that may be out of range.
    fn window(&mut self) {
        let Some(x) = self.any(&|ty| !ty.shape.is_empty()) else { return };
        let Type { dtype, shape } = self.graph.ty(x.0).clone();
        let mut args = vec![x];
        let op: Op = if self.dice.below(2) == 0 {
            DynamicSlice { size: shape.iter().map(|&n| n.min(1 + self.dice.below(n))).collect() }.into()
        } else {
            let is_smaller = |size: &[usize]| size.len() == shape.len() && size.iter().zip(&shape).all(|(a, b)| a <= b);
            let Some(window) = self.any(&|ty| ty.dtype == dtype && is_smaller(&ty.shape)) else { return };
            args.push(window);
            DynamicUpdateSlice.into()
        };
        for n in shape {
            args.push(match self.any(&|ty| *ty == Type::scalar(DType::I32)) {
                Some((v, exact)) if self.dice.below(2) == 0 => (v, exact),
                _ => {
                    let position = self.dice.below(n + 4) as f64 - 2.0;
                    (self.graph.literal(Literal::new(DType::I32, position)), true)
                }
            });
        }
        self.push(op, &args);
    }

    fn push(&mut self, op: Op, args: &[(Var, bool)]) {
        use ScalarOp::{Abs, Clamp, Ge, IsFinite, Maximum, Minimum, Neg, Select};
        use StructuralOp::{ArgReduce, ArgSort, ArgTopK, Bitcast, Cast, Powi};
        let jumps = match &op {
            Op::Scalar(op) => !matches!(op, Neg | Abs | Minimum | Maximum | Clamp | Select) && !is_smooth(*op),
            Op::Structural(op) => {
                matches!(op, ArgReduce(_) | ArgSort(_) | ArgTopK(_) | Bitcast(_) | Cast(_) | Powi(_))
            }
            Op::Literal(_) | Op::Dynamic(_) | Op::Identity(_) | Op::Collective(_) | Op::Call(_) => false,
        };
        let floats = args.iter().filter(|(v, _)| self.graph.ty(*v).dtype.is_float());
        let exact = floats.clone().all(|(_, exact)| *exact);
        if jumps && (!exact || self.smooth && floats.count() > 0) {
            return;
        }
        let vars: Vec<Var> = args.iter().map(|(v, _)| *v).collect();
        let before = self.graph.equations.len();
        let Ok(result) = self.graph.push(op.clone(), &vars) else { return };
        let ty = self.graph.ty(result).clone();
        if ty.elements() > 4096 || ty.shape.len() > 5 || ty.dtype.is_float() && ty.dtype != self.float {
            self.graph.equations.truncate(before);
            return;
        }
        if !ty.dtype.is_float() {
            return self.made.push((result, exact));
        }
        // Undefined and large values become small ones, the same in every execution; so do the subnormal floats that
        // bits of integers are, which some devices take for 0.
        let number = |graph: &mut Graph, x: f64| graph.splat(Literal::new(ty.dtype, x), &ty.shape);
        let small = match is_smooth_op(&op) {
            true => result,
            false => {
                let is_kept = match &op {
                    Op::Structural(Bitcast(_)) => {
                        let size = self.graph.push(Abs, &[result]).expect("a float");
                        let normal = number(&mut self.graph, 1e-4);
                        self.graph.push(Ge, &[size, normal]).expect("floats")
                    }
                    _ => self.graph.push(IsFinite, &[result]).expect("a float"),
                };
                let half = number(&mut self.graph, 0.5);
                self.graph.push(Select, &[is_kept, result, half]).expect("it fits")
            }
        };
        let bounds = [-LIMIT, LIMIT].map(|x| number(&mut self.graph, x));
        let small = self.graph.push(Clamp, &[small, bounds[0], bounds[1]]).expect("it fits");
        use StructuralOp::{Conv, Cumulative, Dot, Reduce, ReduceWindow, Scatter};
        let moved = match &op {
            Op::Scalar(op) => matches!(op, Neg | Abs | Minimum | Maximum | Clamp | Select),
            Op::Structural(Conv(_) | Cumulative(_) | Dot(_) | Powi(_) | Reduce(_) | ReduceWindow(_) | Scatter(_)) => {
                false
            }
            Op::Structural(_) => true,
            Op::Literal(_) | Op::Dynamic(_) | Op::Identity(_) | Op::Collective(_) | Op::Call(_) => true,
        };
        self.made.push((small, exact && moved));
    }

    /// The graph, whose results are what nothing reads, and some others.
    fn finish(mut self) -> Graph {
        let uses = self.graph.uses();
        let made: Vec<Var> = self.made.iter().map(|(v, _)| *v).collect();
        let graph = &mut self.graph;
        graph.results = made.iter().copied().filter(|v| uses[v.index()].is_empty()).collect();
        let more = made[self.dice.below(made.len())];
        self.graph.results.push(more);
        self.graph
    }
}

/// An annotation of an array of so many axes: on one device it is the identity.
fn annotation(rank: usize, kind: usize) -> Op {
    match kind {
        0 => ShardingGroup(0).into(),
        1 => PropagationBarrier(PropagationDirection::Forward).into(),
        _ => {
            let mesh = Arc::new(Mesh::new(&[("x", 2)]).expect("a mesh"));
            let mut sharding = Sharding::open(rank);
            if let Some(dim) = sharding.dims.first_mut() {
                dim.axes.push(mesh.axis(0));
            }
            ShardingConstraint(MeshSharding { mesh, sharding }).into()
        }
    }
}

/// Operations whose results are finite and without jumps for small operands.
fn is_smooth(op: ScalarOp) -> bool {
    use ScalarOp::*;
    matches!(op, Add | Sub | Mul | Sin | Cos | Tanh | Erf | Erfc | Exp | Logistic | Gelu | Silu | Softplus | Atan | Fma)
}
fn is_smooth_op(op: &Op) -> bool {
    match op {
        Op::Scalar(op) => is_smooth(*op),
        Op::Structural(op) => {
            matches!(op, StructuralOp::Dot(_) | StructuralOp::Transpose(_) | StructuralOp::Reshape(_))
        }
        Op::Literal(_) | Op::Dynamic(_) | Op::Identity(_) | Op::Collective(_) | Op::Call(_) => true,
    }
}

/// A graph on arrays of this element type and of i32, without jumps if it is `smooth`.
pub(in super::super) fn drawn(seed: u64, float: DType, smooth: bool) -> Graph {
    finished(Pool::new(seed, float, smooth), seed)
}

/// As [`drawn`], smooth, with functions alone that have tangents.
pub(in super::super) fn drawn_forward(seed: u64, float: DType) -> Graph {
    finished(Pool { forward: true, ..Pool::new(seed, float, true) }, seed)
}

fn finished(mut pool: Pool, seed: u64) -> Graph {
    for _ in 0..8 * STEPS {
        if pool.made.len() < 8 + STEPS {
            pool.step();
        }
    }
    let graph = pool.finish();
    verify(&graph).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{graph}"));
    graph
}
