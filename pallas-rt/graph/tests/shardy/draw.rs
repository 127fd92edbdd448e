//! Random graphs with random annotations.
use pallas_graph::call::{Call, Case, Scan, While};
use pallas_graph::mesh::{Annotation, DimSharding, Flow, Mesh, Placed, Sharding, size};
use pallas_graph::{Dynamic, Graph, Op, Var};
use pallas_ir::structural::{
    Broadcast, Concat, Conv, Cumulative, Dot, Gather, Iota, Pad, Reduce, ReduceWindow, Reshape, Reverse, Scatter, Slice,
    Sort, Transpose, WindowDim,
};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// Random numbers (SplitMix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
    pub(crate) fn shuffled(&mut self, n: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}

/// What is drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Config {
    /// Extents that axes do not divide, and axes of size 3.
    pub(crate) uneven: bool,
    /// Open dimensions, replicated axes.
    pub(crate) open: bool,
    pub(crate) priorities: bool,
    /// Loops and branches.
    pub(crate) control: bool,
    /// Groups and barriers.
    pub(crate) groups: bool,
    /// Convolutions, scatters, windows, cumulative sums.
    pub(crate) windows: bool,
    pub(crate) operations: usize,
}

/// A graph with the shardings that are declared.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub(crate) graph: Graph,
    pub(crate) mesh: Arc<Mesh>,
    pub(crate) params: Vec<Option<Sharding>>,
    pub(crate) results: Vec<Option<Sharding>>,
}

impl Drawn {
    pub(crate) fn text(&self) -> String {
        self.graph.to_shardy("f", &self.mesh, &self.params, &self.results)
    }
}

pub(crate) fn mesh(dice: &mut Dice, uneven: bool) -> Arc<Mesh> {
    let mut names = ["x", "y", "z"][..2 + dice.below(2)].to_vec();
    if dice.chance(50) {
        names.reverse();
    }
    let sizes: &[usize] = if uneven { &[2, 2, 4, 3] } else { &[2, 2, 4, 2] };
    let axes: Vec<(&str, usize)> = names.into_iter().map(|name| (name, *dice.pick(sizes))).collect();
    Arc::new(Mesh::new(&axes).expect("a mesh"))
}

pub(crate) fn sharding(dice: &mut Dice, mesh: &Mesh, shape: &[usize], config: &Config) -> Sharding {
    let mut sharding = Sharding::replicated(shape.len());
    for axis in dice.shuffled(mesh.rank()).into_iter().map(|i| mesh.axis(i)) {
        if shape.is_empty() || dice.chance(35) {
            continue;
        }
        if config.open && dice.chance(8) {
            sharding.replicated.push(axis);
            continue;
        }
        let dim = dice.below(shape.len());
        let parts = size(&sharding.dims[dim].axes) * axis.len();
        if shape[dim].is_multiple_of(parts) || config.uneven && parts <= shape[dim] && dice.chance(50) {
            sharding.dims[dim].axes.push(axis);
        }
    }
    sharding.replicated.sort();
    for dim in &mut sharding.dims {
        dim.open = config.open && dice.chance(50);
        if config.priorities && (dim.open || !dim.axes.is_empty()) && dice.chance(35) {
            dim.priority = Some(dice.below(4) as u32);
        }
    }
    sharding
}

pub(crate) fn draw(dice: &mut Dice, config: &Config) -> Drawn {
    let mesh = mesh(dice, config.uneven);
    let drawn = Drawn { graph: Graph::default(), mesh, params: vec![], results: vec![] };
    let mut drawing = Drawing { dice, config, drawn, live: vec![], groups: 0 };
    drawing.all();
    drawing.drawn
}

struct Drawing<'a> {
    dice: &'a mut Dice,
    config: &'a Config,
    drawn: Drawn,
    live: Vec<Var>,
    groups: u32,
}

const LARGEST: usize = 40_000;

impl Drawing<'_> {
    fn extent(&mut self) -> usize {
        *self.dice.pick(if self.config.uneven { &[4, 8, 8, 16, 12, 6, 2, 5] } else { &[4, 8, 8, 16, 16, 32, 2, 1] })
    }

    fn declared(&mut self, shape: &[usize], percent: usize) -> Option<Sharding> {
        let mesh = self.drawn.mesh.clone();
        self.dice.chance(percent).then(|| sharding(self.dice, &mesh, shape, self.config))
    }

    fn param(&mut self, ty: Type, percent: usize) -> Var {
        let declared = self.declared(&ty.shape, percent);
        self.drawn.params.push(declared);
        self.drawn.graph.param(ty)
    }

    fn array(&mut self, shape: Vec<usize>) -> Var {
        let v = self.param(Type::new(DType::F32, shape), 60);
        self.live.push(v);
        v
    }

    fn shape(&self, v: Var) -> Vec<usize> {
        self.drawn.graph.ty(v).shape.clone()
    }

    fn structural(&mut self, op: impl Into<StructuralOp>, args: &[Var]) -> Var {
        let op: StructuralOp = op.into();
        self.drawn.graph.push(op.clone(), args).unwrap_or_else(|diag| panic!("{op}: {diag}"))
    }

    fn scalar(&mut self, op: ScalarOp, args: &[Var]) -> Var {
        self.drawn.graph.push(op, args).expect("operands of one shape")
    }

    /// A live value of a shape.
    fn like(&mut self, shape: &[usize]) -> Var {
        let same: Vec<Var> = self.live.iter().copied().filter(|&v| self.shape(v) == shape).collect();
        *self.dice.pick(&same)
    }

    fn all(&mut self) {
        for _ in 0..1 + self.dice.below(2) {
            let shape = (0..1 + self.dice.below(3)).map(|_| self.extent()).collect();
            self.array(shape);
        }
        let (wanted, mut made) = (3 + self.dice.below(self.config.operations.max(3) - 2), 0);
        for _ in 0..200 {
            if made == wanted {
                break;
            }
            let x = if self.dice.chance(50) { *self.live.last().expect("there are some") } else { *self.dice.pick(&self.live) };
            let Some(v) = self.operation(x) else { continue };
            made += 1;
            let shape = self.shape(v);
            if shape.iter().product::<usize>() > LARGEST || shape.len() > 4 {
                continue;
            }
            self.live.push(v);
            if self.config.groups && self.dice.chance(15) {
                let flow = *self.dice.pick(&[Flow::Forward, Flow::Backward, Flow::None]);
                let v = self.drawn.graph.push(Annotation::Barrier(flow), &[v]).expect("the identity");
                self.live.push(v);
            }
            if self.dice.chance(15) {
                let v = self.constraint(v);
                self.live.push(v);
            }
        }
        if self.config.groups {
            self.group();
        }
        self.finish();
    }

    fn constraint(&mut self, v: Var) -> Var {
        let shape = self.shape(v);
        let mesh = self.drawn.mesh.clone();
        let sharding = sharding(self.dice, &mesh, &shape, self.config);
        self.drawn.graph.push(Annotation::Constraint(Placed { mesh, sharding }), &[v]).expect("the identity")
    }

    /// Pairs of values of one shape.
    fn group(&mut self) {
        let mut free = self.live.clone();
        free.sort_unstable();
        free.dedup();
        while let Some(v) = free.pop() {
            let shape = self.shape(v);
            let same: Vec<Var> = free.iter().copied().filter(|&w| self.shape(w) == shape && !shape.is_empty()).collect();
            if same.is_empty() || self.dice.chance(50) {
                continue;
            }
            let w = *self.dice.pick(&same);
            free.retain(|&other| other != w);
            for member in [w, v] {
                self.drawn.graph.push(Annotation::Group(self.groups), &[member]).expect("the identity");
            }
            self.groups += 1;
        }
    }

    /// What nobody reads is returned.
    fn finish(&mut self) {
        let graph = &mut self.drawn.graph;
        let mut is_read = vec![false; graph.types.len()];
        let groups = |op: &Op| matches!(op, Op::Annotation(Annotation::Group(_)));
        graph.equations.iter().filter(|e| !groups(&e.op)).flat_map(|e| &e.args).for_each(|v| is_read[v.index()] = true);
        let made = graph.equations.iter().filter(|e| !groups(&e.op)).flat_map(|e| e.results.clone());
        graph.results =
            made.filter(|v| !is_read[v.index()] && graph.types[v.index()].dtype == DType::F32).collect();
        for v in self.drawn.graph.results.clone() {
            let shape = self.shape(v);
            let declared = self.declared(&shape, 30);
            self.drawn.results.push(declared);
        }
    }

    fn operation(&mut self, x: Var) -> Option<Var> {
        let shape = self.shape(x);
        let rank = shape.len();
        let kinds = 22 + 3 * usize::from(self.config.control) + 4 * usize::from(self.config.windows);
        let mut kind = self.dice.below(kinds);
        if kind >= 22 && !self.config.control {
            kind += 3;
        }
        let needs_axis = !matches!(kind, 0..=4 | 15);
        if needs_axis && rank == 0 {
            return None;
        }
        Some(match kind {
            0 | 1 => {
                let op = *self.dice.pick(&[ScalarOp::Tanh, ScalarOp::Neg, ScalarOp::Cos]);
                self.scalar(op, &[x])
            }
            2..=4 => {
                let y = if self.dice.chance(60) { self.like(&shape) } else { self.array(shape.clone()) };
                let pair = if self.dice.chance(50) { [x, y] } else { [y, x] };
                let op = *self.dice.pick(&[ScalarOp::Add, ScalarOp::Mul, ScalarOp::Sub, ScalarOp::Maximum]);
                self.scalar(op, &pair)
            }
            5..=7 => return self.dot(x, &shape),
            8 | 9 if rank >= 2 => {
                let axes = self.dice.shuffled(rank);
                self.structural(Transpose { axes }, &[x])
            }
            10..=12 => return self.reshape(x, shape),
            13 | 14 => {
                let mut axes = vec![self.dice.below(rank)];
                if rank >= 2 && self.dice.chance(20) {
                    axes.push((axes[0] + 1) % rank);
                    axes.sort_unstable();
                }
                let op = *self.dice.pick(&[ScalarOp::Add, ScalarOp::Add, ScalarOp::Maximum]);
                self.structural(Reduce::dropping(op, axes), &[x])
            }
            15 if rank <= 3 => {
                let at = self.dice.below(rank + 1);
                let mut to = shape.clone();
                to.insert(at, self.extent());
                if to.iter().product::<usize>() > LARGEST / 2 {
                    return None;
                }
                let dims = (0..rank).map(|i| if i < at { i } else { i + 1 }).collect();
                self.structural(Broadcast { to: dims_of(&to), dims }, &[x])
            }
            16 => return self.concat(x, &shape),
            17 => return self.slice(x, shape),
            18 => return self.pad(x, &shape),
            19 => return self.addressed(x, &shape),
            20 => {
                let axis = self.dice.below(rank);
                match self.dice.chance(60) {
                    true => self.structural(Sort { axis }, &[x]),
                    false => self.structural(Reverse { axes: vec![axis] }, &[x]),
                }
            }
            21 => {
                let literal = |drawing: &mut Self, x| drawing.drawn.graph.splat(Literal::new(DType::F32, x), &shape);
                match self.dice.below(3) {
                    0 => {
                        let axis = self.dice.below(rank);
                        let iota = self.structural(Iota { shape: dims_of(&shape), axis, dtype: DType::F32 }, &[]);
                        self.scalar(ScalarOp::Add, &[x, iota])
                    }
                    1 => {
                        let y = literal(self, 1.5);
                        self.scalar(ScalarOp::Mul, &[x, y])
                    }
                    _ => {
                        let y = literal(self, 0.25);
                        self.scalar(ScalarOp::Add, &[y, x])
                    }
                }
            }
            22 => self.while_loop(x, &shape),
            23 if rank >= 2 => self.scan(x, &shape),
            24 => self.case(x, &shape),
            25 => return self.conv(x, &shape),
            26 => return self.scatter(x, &shape),
            27 => return self.reduce_window(x, &shape),
            28 => {
                let axis = self.dice.below(rank);
                self.structural(Cumulative { op: ScalarOp::Add, axis, reverse: false }, &[x])
            }
            _ => return None,
        })
    }

    fn dot(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let rank = shape.len();
        let i = self.dice.below(rank);
        let batch: Vec<usize> = if rank >= 2 && self.dice.chance(30) { vec![(i + 1) % rank] } else { vec![] };
        let of = |v: &Var| self.drawn.graph.ty(*v).shape.clone();
        let fitting: Vec<Var> =
            self.live.iter().copied().filter(|v| batch.is_empty() && of(v).len() <= 3 && of(v).contains(&shape[i])).collect();
        if !fitting.is_empty() && rank <= 2 && self.dice.chance(35) {
            let y = *self.dice.pick(&fitting);
            let other = self.shape(y);
            let j = other.iter().position(|&n| n == shape[i]).expect("it fits");
            let op = Dot { batch: vec![], contract: vec![(i, j)], acc: DType::F32 };
            // A product of matrices has two axes each.
            let fits = rank + other.len() - 2 <= 3 && ((i, j) != (1, 0) || (rank, other.len()) == (2, 2));
            return fits.then(|| self.structural(op, &[x, y]));
        }
        let mut other: Vec<usize> = batch.iter().map(|&axis| shape[axis]).collect();
        let (at, columns) = (other.len(), self.extent());
        let j = match self.dice.chance(50) {
            true => {
                other.extend([shape[i], columns]);
                at
            }
            false => {
                other.extend([columns, shape[i]]);
                at + 1
            }
        };
        let y = self.array(other);
        let batch: Vec<(usize, usize)> = batch.into_iter().enumerate().map(|(k, axis)| (axis, k)).collect();
        let turned = |pairs: &[(usize, usize)]| pairs.iter().map(|&(a, b)| (b, a)).collect();
        let is_first = self.dice.chance(70);
        let pair = if is_first { (i, j) } else { (j, i) };
        if batch.is_empty() && pair == (1, 0) && rank != 2 {
            return None;
        }
        Some(if is_first {
            self.structural(Dot { batch, contract: vec![(i, j)], acc: DType::F32 }, &[x, y])
        } else {
            self.structural(Dot { batch: turned(&batch), contract: vec![(j, i)], acc: DType::F32 }, &[y, x])
        })
    }

    /// Two axes become one, or one becomes two.
    fn reshape(&mut self, x: Var, mut to: Vec<usize>) -> Option<Var> {
        let rank = to.len();
        if rank >= 2 && self.dice.chance(50) {
            let i = self.dice.below(rank - 1);
            to[i] *= to[i + 1];
            to.remove(i + 1);
            if to[i] > 256 {
                return None;
            }
            if to[i].is_multiple_of(4) && self.dice.chance(30) {
                to[i] /= 4;
                to.insert(i + 1, 4);
            }
        } else {
            let (i, part) = (self.dice.below(rank), *self.dice.pick(&[2, 4, 3]));
            if !to[i].is_multiple_of(part) || rank > 3 {
                return None;
            }
            let parts = if self.dice.chance(50) { [part, to[i] / part] } else { [to[i] / part, part] };
            to.splice(i..=i, parts);
        }
        Some(self.structural(Reshape { to: dims_of(&to) }, &[x]))
    }

    fn concat(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let axis = self.dice.below(shape.len());
        let fits = |other: &[usize]| {
            other.len() == shape.len() && (0..shape.len()).all(|i| i == axis || other[i] == shape[i])
        };
        let same: Vec<Var> = self.live.iter().copied().filter(|&v| fits(&self.shape(v))).collect();
        let y = *self.dice.pick(&same);
        (shape[axis] + self.shape(y)[axis] <= 64).then(|| self.structural(Concat { axis }, &[x, y]))
    }

    fn slice(&mut self, x: Var, mut to: Vec<usize>) -> Option<Var> {
        let axis = self.dice.below(to.len());
        let n = to[axis];
        if n < 2 {
            return None;
        }
        let (mut start, mut stride) = (vec![0; to.len()], vec![1; to.len()]);
        match self.dice.below(3) {
            0 => to[axis] = n / 2,
            1 => (to[axis], start[axis]) = (n / 2, (n - n / 2) as i64),
            _ => (to[axis], stride[axis]) = (n.div_ceil(2), 2),
        }
        Some(self.structural(Slice { start, size: dims_of(&to), stride }, &[x]))
    }

    fn pad(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let axis = self.dice.below(shape.len());
        let (mut low, mut high) = (vec![0i64; shape.len()], vec![0i64; shape.len()]);
        low[axis] = self.dice.below(3) as i64;
        let even = if self.config.uneven { 0 } else { shape[axis] as i64 - low[axis] };
        high[axis] = self.dice.below(3) as i64 + even;
        if high[axis] < 0 || low[axis] + high[axis] == 0 {
            return None;
        }
        let value = self.drawn.graph.literal(Literal::new(DType::F32, 0.5));
        let sizes = |all: Vec<i64>| all.into_iter().map(Dim::from).collect();
        Some(self.structural(Pad { low: sizes(low), high: sizes(high) }, &[x, value]))
    }

    /// A gather of rows, or a window at a position that is data.
    fn addressed(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let (rank, kind) = (shape.len(), self.dice.below(3));
        if kind == 0 {
            let n = *self.dice.pick(&[4, 8, 16]);
            let index = if self.dice.chance(50) { vec![n] } else { vec![4, n] };
            if index.len() + rank > 4 {
                return None;
            }
            let op = rows(rank, index.len(), shape);
            let index = self.param(Type::new(DType::I32, index), 40);
            return Some(self.structural(op, &[x, index]));
        }
        let axis = self.dice.below(rank);
        if shape[axis] < 2 {
            return None;
        }
        let mut size = shape.to_vec();
        size[axis] /= 2;
        let zero = self.drawn.graph.literal(Literal::int(DType::I32, 0));
        let mut args = vec![x];
        if kind == 2 {
            args.push(self.param(Type::new(DType::F32, size.clone()), 50));
        }
        let position = self.param(Type::scalar(DType::I32), 0);
        args.extend((0..rank).map(|i| if i == axis { position } else { zero }));
        let op = if kind == 1 { Dynamic::Slice { size } } else { Dynamic::Update };
        Some(self.drawn.graph.push(op, &args).expect("it fits"))
    }

    /// A body of the values a and b.
    fn body(&mut self, graph: &mut Graph, a: Var, b: Var, shape: &[usize]) -> [Var; 2] {
        let mut push = |op: Op, args: &[Var]| graph.push(op, args).expect("operands of one shape");
        let op = *self.dice.pick(&[ScalarOp::Add, ScalarOp::Mul]);
        let mut sum = push(op.into(), &[a, b]);
        if self.dice.chance(40) {
            let mesh = self.drawn.mesh.clone();
            let sharding = sharding(self.dice, &mesh, shape, self.config);
            sum = push(Annotation::Constraint(Placed { mesh, sharding }).into(), &[sum]);
        }
        if self.dice.chance(50) {
            sum = push(ScalarOp::Tanh.into(), &[sum]);
        }
        if shape.len() == 2 && shape[0] == shape[1] && self.dice.chance(50) {
            sum = push(StructuralOp::from(Transpose { axes: vec![1, 0] }).into(), &[sum]);
        }
        let other = match self.dice.below(3) {
            0 => b,
            1 => push(ScalarOp::Neg.into(), &[b]),
            _ => push(ScalarOp::Add.into(), &[b, sum]),
        };
        [sum, other]
    }

    fn while_loop(&mut self, x: Var, shape: &[usize]) -> Var {
        let y = self.like(shape);
        let (counter, array) = (Type::scalar(DType::I32), Type::new(DType::F32, shape));
        let mut condition = Graph::default();
        let at = condition.param(counter.clone());
        [0; 2].map(|_| condition.param(array.clone()));
        let end = condition.literal(Literal::int(DType::I32, 2));
        condition.results = vec![condition.push(ScalarOp::Lt, &[at, end]).expect("integers")];
        let mut body = Graph::default();
        let at = body.param(counter);
        let [a, b] = [0; 2].map(|_| body.param(array.clone()));
        let one = body.literal(Literal::int(DType::I32, 1));
        let next = body.push(ScalarOp::Add, &[at, one]).expect("integers");
        let [a, b] = self.body(&mut body, a, b, shape);
        body.results = vec![next, a, b];
        let zero = self.drawn.graph.literal(Literal::int(DType::I32, 0));
        let call = Call::While(While { condition, body, condition_captured: 0, body_captured: 0 });
        let made = self.drawn.graph.push_all(call, &[zero, x, y]).expect("it fits");
        self.live.push(made[2]);
        made[1]
    }

    /// A scan over the first axis of x; what it carries and captures has the shape of its elements.
    fn scan(&mut self, x: Var, shape: &[usize]) -> Var {
        let element = Type::new(DType::F32, &shape[1..]);
        let [captured, carried] = [0; 2].map(|_| self.param(element.clone(), 50));
        let mut body = Graph::default();
        let [c, h, e] = [0; 3].map(|_| body.param(element.clone()));
        let scaled = body.push(ScalarOp::Mul, &[c, h]).expect("floats");
        let [next, out] = self.body(&mut body, scaled, e, &shape[1..]);
        body.results = vec![next, out];
        let scan = Scan { body, captured: 1, carried: 1, length: shape[0], reverse: self.dice.chance(50) };
        let made = self.drawn.graph.push_all(Call::Scan(scan), &[captured, carried, x]).expect("it fits");
        self.live.push(made[0]);
        made[1]
    }

    fn case(&mut self, x: Var, shape: &[usize]) -> Var {
        let y = self.like(shape);
        let branches = (0..2).map(|_| {
            let mut branch = Graph::default();
            let [a, b] = [0; 2].map(|_| branch.param(Type::new(DType::F32, shape)));
            branch.results = self.body(&mut branch, a, b, shape).to_vec();
            branch
        });
        let call = Call::Case(Case { branches: branches.collect() });
        let index = self.param(Type::scalar(DType::I32), 0);
        let made = self.drawn.graph.push_all(call, &[index, x, y]).expect("it fits");
        self.live.push(made[1]);
        made[0]
    }

    /// A convolution over the second axis: [batch, place, feature].
    fn conv(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let &[_, n, features] = shape else { return None };
        let size = 1 + self.dice.below(n.min(3));
        let outputs = self.extent();
        let kernel = self.array(vec![size, features, outputs]);
        let window = WindowDim { low: (size / 2) as i64, high: ((size - 1) / 2) as i64, ..WindowDim::PLAIN };
        let op = Conv {
            lhs: vec![0, 2, 1],
            rhs: vec![2, 1, 0],
            out: vec![0, 2, 1],
            windows: vec![window],
            groups: 1,
            batch_groups: 1,
            acc: DType::F32,
        };
        Some(self.structural(op, &[x, kernel]))
    }

    fn scatter(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let n = *self.dice.pick(&[4, 8]);
        let updates = [&[n], &shape[1..]].concat();
        let index = self.param(Type::new(DType::I32, [n]), 40);
        let updates = self.param(Type::new(DType::F32, updates), 40);
        let op = self.dice.pick(&[Some(ScalarOp::Add), None]);
        Some(self.structural(rows(shape.len(), 1, shape).reversed(*op), &[x, index, updates]))
    }

    fn reduce_window(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let axis = self.dice.below(shape.len());
        if shape[axis] < 4 {
            return None;
        }
        let mut size = vec![1; shape.len()];
        let mut windows = vec![WindowDim::PLAIN; shape.len()];
        (size[axis], windows[axis].stride) = *self.dice.pick(&[(2, 2), (3, 1), (2, 1)]);
        if self.dice.chance(50) {
            (windows[axis].low, windows[axis].high) = (1, size[axis] - 2);
        }
        Some(self.structural(ReduceWindow { op: ScalarOp::Add, size, windows }, &[x]))
    }
}

/// A gather of rows of an array by indices of some axes.
fn rows(rank: usize, index_rank: usize, shape: &[usize]) -> Gather {
    let sizes = [&[1], &shape[1..]].concat();
    Gather {
        offset_dims: (index_rank..index_rank + rank - 1).collect(),
        collapsed_slice_dims: vec![0],
        operand_batching_dims: vec![],
        start_indices_batching_dims: vec![],
        start_index_map: vec![0],
        index_vector_dim: index_rank,
        slice_sizes: dims_of(&sizes),
    }
}

fn dims_of(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}

/// Returns a sharding without choices that Shardy's text does not show.
pub(crate) fn plain(s: Option<&Sharding>) -> Option<Sharding> {
    let says = |s: &Sharding| s.dims.iter().any(|dim: &DimSharding| !dim.open || !dim.axes.is_empty()) || !s.replicated.is_empty();
    s.filter(|s| says(s)).cloned()
}
