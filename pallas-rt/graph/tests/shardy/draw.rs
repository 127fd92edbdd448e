//! Random graphs with random annotations.
#[path = "draw/kernels.rs"]
mod kernels;
#[path = "draw/operations.rs"]
pub(crate) mod operations;

use pallas_graph::mesh::{
    DimSharding, Mesh, MeshSharding, PropagationBarrier, PropagationDirection, Sharding, ShardingConstraint,
    ShardingGroup, product_of_sizes,
};
use pallas_graph::{Graph, Identity, Op, Var};
use pallas_ir::structural::{Broadcast, Cumulative, Iota, Reduce, Reverse, Sort, Transpose};
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

/// The kinds of graphs that are drawn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Config {
    /// Extents that axes do not divide, and axes of size 3.
    pub(crate) uneven: bool,
    /// Open dimensions, replicated axes.
    pub(crate) open: bool,
    pub(crate) priorities: bool,
    /// Loops and branches.
    pub(crate) control: bool,
    pub(crate) groups: bool,
    pub(crate) barriers: bool,
    /// Convolutions, scatters, windows, cumulative sums.
    pub(crate) windows: bool,
    /// Without slices, pads, reversals, concatenations and updates of windows, which move elements.
    pub(crate) still: bool,
    /// Kernels in blocks.
    pub(crate) kernels: bool,
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
        let parts = product_of_sizes(&sharding.dims[dim].axes) * axis.len();
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
            let x = if self.dice.chance(50) {
                *self.live.last().expect("there are some")
            } else {
                *self.dice.pick(&self.live)
            };
            let Some(v) = self.operation(x) else { continue };
            made += 1;
            let shape = self.shape(v);
            if shape.iter().product::<usize>() > LARGEST || shape.len() > 4 {
                continue;
            }
            self.live.push(v);
            if self.config.barriers && self.dice.chance(15) {
                let flow = *self.dice.pick(&[
                    PropagationDirection::Forward,
                    PropagationDirection::Backward,
                    PropagationDirection::None,
                ]);
                let v = self.drawn.graph.push(PropagationBarrier(flow), &[v]).expect("the identity");
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
        self.drawn.graph.push(ShardingConstraint(MeshSharding { mesh, sharding }), &[v]).expect("the identity")
    }

    /// Pairs of values of one shape.
    fn group(&mut self) {
        let mut free = self.live.clone();
        free.sort_unstable();
        free.dedup();
        while let Some(v) = free.pop() {
            let shape = self.shape(v);
            let same: Vec<Var> =
                free.iter().copied().filter(|&w| self.shape(w) == shape && !shape.is_empty()).collect();
            if same.is_empty() || self.dice.chance(50) {
                continue;
            }
            let w = *self.dice.pick(&same);
            free.retain(|&other| other != w);
            for member in [w, v] {
                self.drawn.graph.push(ShardingGroup(self.groups), &[member]).expect("the identity");
            }
            self.groups += 1;
        }
    }

    /// Returns the values that nothing reads.
    fn finish(&mut self) {
        let graph = &mut self.drawn.graph;
        let mut is_read = vec![false; graph.types.len()];
        let groups = |op: &Op| matches!(op, Op::Identity(Identity::ShardingGroup(_)));
        graph.equations.iter().filter(|e| !groups(&e.op)).flat_map(|e| &e.args).for_each(|v| is_read[v.index()] = true);
        let made = graph.equations.iter().filter(|e| !groups(&e.op)).flat_map(|e| e.results.clone());
        graph.results = made.filter(|v| !is_read[v.index()] && graph.types[v.index()].dtype == DType::F32).collect();
        for v in self.drawn.graph.results.clone() {
            let shape = self.shape(v);
            let declared = self.declared(&shape, 30);
            self.drawn.results.push(declared);
        }
    }

    fn operation(&mut self, x: Var) -> Option<Var> {
        let shape = self.shape(x);
        let rank = shape.len();
        let kinds = 22
            + 3 * usize::from(self.config.control)
            + 4 * usize::from(self.config.windows)
            + 5 * usize::from(self.config.kernels);
        let mut kind = self.dice.below(kinds);
        if kind >= 22 && !self.config.control {
            kind += 3;
        }
        if kind >= 25 && !self.config.windows {
            kind += 4;
        }
        let needs_axis = !matches!(kind, 0..=4 | 15);
        if self.config.still && matches!(kind, 16..=18 | 20) {
            return None;
        }
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
            29..=31 => self.blocks(x, &shape),
            32 | 33 => return self.rows(x, &shape),
            _ => return None,
        })
    }
}

fn dims_of(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}

/// Returns a sharding without choices that Shardy's text does not show.
pub(crate) fn plain(s: Option<&Sharding>) -> Option<Sharding> {
    let says = |s: &Sharding| {
        s.dims.iter().any(|dim: &DimSharding| !dim.open || !dim.axes.is_empty()) || !s.replicated.is_empty()
    };
    s.filter(|s| says(s)).cloned()
}
