//! Operations on values that are there.
use super::{Drawing, dims_of, sharding};
use pallas_graph::call::{Call, Case, Scan, While};
use pallas_graph::mesh::{MeshSharding, ShardingConstraint};
use pallas_graph::{DynamicSlice, DynamicUpdateSlice, Graph, Op, Var};
use pallas_ir::structural::{Concat, Conv, Dot, Gather, Pad, ReduceWindow, Reshape, Slice, Transpose, WindowDim};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};

impl Drawing<'_> {
    pub(super) fn dot(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let rank = shape.len();
        let i = self.dice.below(rank);
        let batch: Vec<usize> = if rank >= 2 && self.dice.chance(30) { vec![(i + 1) % rank] } else { vec![] };
        let of = |v: &Var| self.drawn.graph.ty(*v).shape.clone();
        let fitting: Vec<Var> = self
            .live
            .iter()
            .copied()
            .filter(|v| batch.is_empty() && of(v).len() <= 3 && of(v).contains(&shape[i]))
            .collect();
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
    pub(super) fn reshape(&mut self, x: Var, mut to: Vec<usize>) -> Option<Var> {
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

    pub(super) fn concat(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let axis = self.dice.below(shape.len());
        let fits =
            |other: &[usize]| other.len() == shape.len() && (0..shape.len()).all(|i| i == axis || other[i] == shape[i]);
        let same: Vec<Var> = self.live.iter().copied().filter(|&v| fits(&self.shape(v))).collect();
        let y = *self.dice.pick(&same);
        (shape[axis] + self.shape(y)[axis] <= 64).then(|| self.structural(Concat { axis }, &[x, y]))
    }

    pub(super) fn slice(&mut self, x: Var, mut to: Vec<usize>) -> Option<Var> {
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

    pub(super) fn pad(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
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
    pub(super) fn addressed(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let (rank, kind) = (shape.len(), if self.config.still { 0 } else { self.dice.below(3) });
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
        let op: Op = if kind == 1 { DynamicSlice { size }.into() } else { DynamicUpdateSlice.into() };
        Some(self.drawn.graph.push(op, &args).expect("it fits"))
    }

    /// A body of the values a and b.
    pub(super) fn body(&mut self, graph: &mut Graph, a: Var, b: Var, shape: &[usize]) -> [Var; 2] {
        let mut push = |op: Op, args: &[Var]| graph.push(op, args).expect("operands of one shape");
        let op = *self.dice.pick(&[ScalarOp::Add, ScalarOp::Mul]);
        let mut sum = push(op.into(), &[a, b]);
        if self.dice.chance(40) {
            let mesh = self.drawn.mesh.clone();
            let sharding = sharding(self.dice, &mesh, shape, self.config);
            sum = push(ShardingConstraint(MeshSharding { mesh, sharding }).into(), &[sum]);
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

    pub(super) fn while_loop(&mut self, x: Var, shape: &[usize]) -> Var {
        let y = self.like(shape);
        let (counter, array) = (Type::scalar(DType::I32), Type::new(DType::F32, shape));
        let mut condition = Graph::default();
        let at = condition.param(counter.clone());
        for _ in 0..2 {
            condition.param(array.clone());
        }
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
        let made = self.drawn.graph.push_multi_result(call, &[zero, x, y]).expect("it fits");
        self.live.push(made[2]);
        made[1]
    }

    /// A scan over the first axis of x; what it carries and captures has the shape of its elements.
    pub(super) fn scan(&mut self, x: Var, shape: &[usize]) -> Var {
        let element = Type::new(DType::F32, &shape[1..]);
        let [captured, carried] = [0; 2].map(|_| self.param(element.clone(), 50));
        let mut body = Graph::default();
        let [c, h, e] = [0; 3].map(|_| body.param(element.clone()));
        let scaled = body.push(ScalarOp::Mul, &[c, h]).expect("floats");
        let [next, out] = self.body(&mut body, scaled, e, &shape[1..]);
        body.results = vec![next, out];
        let scan = Scan { body, captured: 1, carried: 1, length: shape[0], reverse: self.dice.chance(50) };
        let made = self.drawn.graph.push_multi_result(scan, &[captured, carried, x]).expect("it fits");
        self.live.push(made[0]);
        made[1]
    }

    pub(super) fn case(&mut self, x: Var, shape: &[usize]) -> Var {
        let y = self.like(shape);
        let branches = (0..2).map(|_| {
            let mut branch = Graph::default();
            let [a, b] = [0; 2].map(|_| branch.param(Type::new(DType::F32, shape)));
            branch.results = self.body(&mut branch, a, b, shape).to_vec();
            branch
        });
        let call = Call::Case(Case { branches: branches.collect() });
        let index = self.param(Type::scalar(DType::I32), 0);
        let made = self.drawn.graph.push_multi_result(call, &[index, x, y]).expect("it fits");
        self.live.push(made[1]);
        made[0]
    }

    /// A convolution over the second axis: [batch, place, feature].
    pub(super) fn conv(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
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

    pub(super) fn scatter(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let n = *self.dice.pick(&[4, 8]);
        let updates = [&[n], &shape[1..]].concat();
        let index = self.param(Type::new(DType::I32, [n]), 40);
        let updates = self.param(Type::new(DType::F32, updates), 40);
        let op = self.dice.pick(&[Some(ScalarOp::Add), None]);
        Some(self.structural(rows(shape.len(), 1, shape).matching_scatter(*op), &[x, index, updates]))
    }

    pub(super) fn reduce_window(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
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
pub(crate) fn rows(rank: usize, index_rank: usize, shape: &[usize]) -> Gather {
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
