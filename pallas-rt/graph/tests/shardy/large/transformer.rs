//! A transformer of many layers, sharded among the devices of a mesh of 64 x 64.
use pallas_graph::mesh::{Axis, Mesh, Sharding};
use pallas_graph::{Graph, Op, Var};
use pallas_ir::structural::{Broadcast, Dot, Reduce, Reshape, Transpose};
use pallas_ir::{DType, Dim, Literal, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

const BATCH: usize = 64;
const LENGTH: usize = 256;
const WIDTH: usize = 1024;
const HEADS: usize = 64;
const HIDDEN: usize = 4096;

/// A transformer whose weights are sharded along both axes of a mesh: parameters by `data` (ZeRO-3), heads and hidden
/// features by `model`.
pub(crate) struct Transformer {
    pub(crate) graph: Graph,
    /// The shardings of the parameters and of the result.
    pub(crate) declared: Vec<Option<Sharding>>,
    pub(crate) results: Vec<Option<Sharding>>,
    pub(crate) mesh: Arc<Mesh>,
    data: Axis,
    model: Axis,
}

fn dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}

impl Transformer {
    pub(crate) fn new(layers: usize) -> Transformer {
        let mesh = Arc::new(Mesh::new(&[("data", 64), ("model", 64)]).expect("a mesh"));
        let (data, model) = (mesh.axis(0), mesh.axis(1));
        let rows: [&[Axis]; 3] = [&[data], &[], &[]];
        let results = vec![Some(Sharding::closed(rows.iter().map(|axes| axes.to_vec())))];
        let mut all = Transformer { graph: Graph::default(), declared: vec![], results, mesh, data, model };
        let mut x = all.param(&[BATCH, LENGTH, WIDTH], Some(&rows));
        for _ in 0..layers {
            x = all.layer(x);
        }
        all.graph.results = vec![x];
        all
    }
    fn param(&mut self, shape: &[usize], axes: Option<&[&[Axis]]>) -> Var {
        self.declared.push(axes.map(|axes| Sharding::closed(axes.iter().map(|axes| axes.to_vec()))));
        self.graph.param(Type::new(DType::F32, shape))
    }
    fn weight(&mut self, shape: [usize; 2], is_first: bool) -> Var {
        let (data, model) = (self.data, self.model);
        let axes: [&[Axis]; 2] = if is_first { [&[data], &[model]] } else { [&[model], &[data]] };
        self.param(&shape, Some(&axes))
    }
    fn push(&mut self, op: impl Into<Op>, args: &[Var]) -> Var {
        self.graph.push(op, args).expect("it fits")
    }
    fn structural(&mut self, op: impl Into<StructuralOp>, args: &[Var]) -> Var {
        let op: StructuralOp = op.into();
        self.push(op, args)
    }
    fn dot(&mut self, a: Var, b: Var, batch: &[(usize, usize)], contract: (usize, usize)) -> Var {
        self.structural(Dot { batch: batch.to_vec(), contract: vec![contract], acc: DType::F32 }, &[a, b])
    }
    fn spread(&mut self, x: Var, shape: &[usize], axes: &[usize]) -> Var {
        self.structural(Broadcast { to: dims(shape), dims: axes.to_vec() }, &[x])
    }
    /// Rows of equal length, times a weight for each feature.
    fn norm(&mut self, x: Var) -> Var {
        let shape = [BATCH, LENGTH, WIDTH];
        let square = self.push(ScalarOp::Mul, &[x, x]);
        let sum = self.structural(Reduce::dropping(ScalarOp::Add, vec![2]), &[square]);
        let scale = self.push(ScalarOp::Rsqrt, &[sum]);
        let scale = self.spread(scale, &shape, &[0, 1]);
        let y = self.push(ScalarOp::Mul, &[x, scale]);
        let weight = self.param(&[WIDTH], None);
        let weight = self.spread(weight, &shape, &[2]);
        self.push(ScalarOp::Mul, &[y, weight])
    }
    fn attention(&mut self, x: Var) -> Var {
        let heads = [BATCH, LENGTH, HEADS, WIDTH / HEADS];
        let [q, k, v] = [(); 3].map(|()| {
            let w = self.weight([WIDTH, WIDTH], true);
            let y = self.dot(x, w, &[], (2, 0));
            let y = self.structural(Reshape { to: dims(&heads) }, &[y]);
            self.structural(Transpose { axes: vec![0, 2, 1, 3] }, &[y])
        });
        let scores = [BATCH, HEADS, LENGTH, LENGTH];
        let s = self.dot(q, k, &[(0, 0), (1, 1)], (3, 3));
        let scale = self.graph.literal(Literal::new(DType::F32, 0.25));
        let scale = self.spread(scale, &scores, &[]);
        let s = self.push(ScalarOp::Mul, &[s, scale]);
        let most = self.structural(Reduce::dropping(ScalarOp::Maximum, vec![3]), &[s]);
        let most = self.spread(most, &scores, &[0, 1, 2]);
        let s = self.push(ScalarOp::Sub, &[s, most]);
        let e = self.push(ScalarOp::Exp, &[s]);
        let sum = self.structural(Reduce::dropping(ScalarOp::Add, vec![3]), &[e]);
        let sum = self.spread(sum, &scores, &[0, 1, 2]);
        let p = self.push(ScalarOp::Div, &[e, sum]);
        let o = self.dot(p, v, &[(0, 0), (1, 1)], (3, 2));
        let o = self.structural(Transpose { axes: vec![0, 2, 1, 3] }, &[o]);
        let o = self.structural(Reshape { to: dims(&[BATCH, LENGTH, WIDTH]) }, &[o]);
        let w = self.weight([WIDTH, WIDTH], false);
        self.dot(o, w, &[], (2, 0))
    }
    fn layer(&mut self, x: Var) -> Var {
        let y = self.norm(x);
        let y = self.attention(y);
        let x = self.push(ScalarOp::Add, &[x, y]);
        let y = self.norm(x);
        let [up, down] =
            [([WIDTH, HIDDEN], true), ([HIDDEN, WIDTH], false)].map(|(shape, first)| self.weight(shape, first));
        let y = self.dot(y, up, &[], (2, 0));
        let y = self.push(ScalarOp::Tanh, &[y]);
        let y = self.dot(y, down, &[], (2, 0));
        self.push(ScalarOp::Add, &[x, y])
    }
}
