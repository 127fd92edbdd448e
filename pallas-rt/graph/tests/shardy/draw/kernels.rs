//! Kernels in blocks that fit devices and others.
use super::Drawing;
use pallas_graph::Var;
use pallas_graph::call::KernelCall;
use pallas_ir::{Kernel, ScalarOp, Type};
use std::fmt::Write;
use std::sync::Arc;

/// The text of a kernel that is being written.
struct Writing {
    /// By dimension, the block, and the grid axis whose programs have one each.
    cuts: Vec<(usize, Option<usize>)>,
    grid: usize,
    operands: String,
    maps: String,
    values: usize,
}

impl Writing {
    fn value(&mut self) -> String {
        self.values += 1;
        format!("%{}", self.values)
    }

    /// Declares an operand of these extents, dimension for dimension as all others are cut; a dimension of which all
    /// programs have the only element is `stretched`.
    fn operand(&mut self, kind: &str, name: &str, shape: &[usize], dims: &[usize], stretched: &[bool]) {
        let whole = |dim: usize| stretched[dim];
        let block: Vec<usize> = dims.iter().map(|&d| if whole(d) { 1 } else { self.cuts[d].0 }).collect();
        let extents: Vec<usize> = dims.iter().map(|&d| shape[d]).collect();
        let empty = if kind == "out" { " empty 0.0" } else { "" };
        writeln!(self.operands, "  {kind} {name}: f32{extents:?} block {block:?}{empty}").expect("a string");
        let ids: Vec<String> = (0..self.grid).map(|_| self.value()).collect();
        let zero = self.value();
        let params: Vec<String> = ids.iter().map(|id| format!("{id}: i32[]")).collect();
        let yields = dims.iter().map(|&d| match self.cuts[d].1.filter(|_| !whole(d)) {
            Some(axis) => ids[axis].clone(),
            None => zero.clone(),
        });
        let yields = yields.collect::<Vec<_>>().join(", ");
        let params = params.join(", ");
        let map = format!("  map @{name} ({params}) {{\n    {zero}: i32[] = const 0\n    yield {yields}\n  }}\n");
        self.maps.push_str(&map);
    }

    fn kernel(self, semantics: &[(usize, &str)], body: &str) -> Kernel {
        let grid: String = semantics.iter().map(|(n, how)| format!("  grid {n} {how}\n")).collect();
        let text = format!("kernel drawn {{\n{grid}{}{}  body {{\n{body}  }}\n}}\n", self.operands, self.maps);
        text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
    }
}

/// The whole block of an operand in a view, and the shape of what is loaded.
fn view(block: &[usize]) -> (String, String) {
    let axes: Vec<String> = block.iter().map(|n| format!("0:{n}")).collect();
    let shape: Vec<String> = block.iter().map(usize::to_string).collect();
    (format!("block[{}]", axes.join(", ")), format!("f32[{}]", shape.join(",")))
}

impl Drawing<'_> {
    /// Blocks of two arrays and the ids of their programs; the second array may have extents of 1, and the result be
    /// transposed.
    pub(super) fn blocks(&mut self, x: Var, shape: &[usize]) -> Var {
        let mut grid = vec![];
        let cuts: Vec<(usize, Option<usize>)> = (shape.iter())
            .map(|&n| match self.dice.chance(75) {
                true => {
                    let block = *self.dice.pick(&[1, 2, 3, 4, 8]);
                    grid.push((n.div_ceil(block), "parallel"));
                    (block, Some(grid.len() - 1))
                }
                false => (n, None),
            })
            .collect();
        if grid.is_empty() {
            grid.push((1, "parallel"));
        }
        let other: Vec<usize> = shape.iter().map(|&n| if self.dice.chance(30) { 1 } else { n }).collect();
        let y = if other == shape { self.like(shape) } else { self.array(other.clone()) };
        let stretched: Vec<bool> = shape.iter().zip(&other).map(|(n, own)| own < n).collect();
        let rank = shape.len();
        let is_turned = rank == 2 && self.dice.chance(40);
        let (own, turned): (Vec<usize>, Vec<usize>) = ((0..rank).collect(), (0..rank).rev().collect());
        let axis = self.dice.below(grid.len());
        let mut to = Writing { cuts, grid: grid.len(), operands: String::new(), maps: String::new(), values: 0 };
        let kept = vec![false; rank];
        to.operand("in", "x", shape, &own, &kept);
        to.operand("in", "y", &other, &own, &stretched);
        to.operand("out", "z", shape, if is_turned { &turned } else { &own }, &kept);
        let block: Vec<usize> = to.cuts.iter().map(|cut| cut.0).collect();
        let (of_x, tile) = view(&block);
        let of_y: Vec<usize> = block.iter().zip(&stretched).map(|(&b, &is)| if is { 1 } else { b }).collect();
        let (of_y, other_tile) = view(&of_y);
        let [a, b, p, f, s, r, t] = [(); 7].map(|()| to.value());
        let mut body = format!(
            "    {a}: {tile} = load @x {of_x}\n    {b}: {other_tile} = load @y {of_y}\n    {p}: i32[] = program_id \
             axis({axis})\n    {f}: f32[] = cast to(f32) {p}\n    {s}: {tile} = add {a}, {f}\n    {r}: {tile} = mul {s}, \
             {b}\n"
        );
        match is_turned {
            true => {
                let (of_z, turned) = view(&[block[1], block[0]]);
                write!(body, "    {t}: {turned} = transpose axes(1, 0) {r}\n    store @z {of_z} {t}\n")
            }
            false => writeln!(body, "    store @z {of_x} {r}"),
        }
        .expect("a string");
        let kernel = to.kernel(&grid, &body);
        let gives = if is_turned { vec![shape[1], shape[0]] } else { shape.to_vec() };
        self.kernel(kernel, &[x, y], gives)
    }

    /// Folds of rows, blocks of columns one after the other: a plain sum or maximum, or one that is scaled in each
    /// step.
    pub(super) fn rows(&mut self, x: Var, shape: &[usize]) -> Option<Var> {
        let &[m, n] = shape else { return None };
        let (rows, columns) = (*self.dice.pick(&[1, 2, 4]), *self.dice.pick(&[1, 2, 3, 4]));
        let (op, neutral) = *self.dice.pick(&[("add", "0.0"), ("maximum", "-inf")]);
        let is_scaled = self.dice.chance(30);
        let mut to = Writing {
            cuts: vec![(rows, Some(0)), (columns, Some(1))],
            grid: 2,
            operands: String::new(),
            maps: String::new(),
            values: 0,
        };
        to.operand("in", "x", shape, &[0, 1], &[false, false]);
        to.operand("out", "z", &[m, 1], &[0, 1], &[false, true]);
        writeln!(to.operands, "  scratch acc: f32[{rows}, 1] block [{rows}, 1]").expect("a string");
        let ((of_x, tile), (of_sum, sum)) = (view(&[rows, columns]), view(&[rows, 1]));
        let [p, zero, first, c, b, x0, valid, fill, x1, t, a, s, half, h] = [(); 14].map(|()| to.value());
        let [count, one, end, last, l] = [(); 5].map(|()| to.value());
        let scaled = if is_scaled { &h } else { &s };
        let body = format!(
            "    {p}: i32[] = program_id axis(1)
    {zero}: i32[] = const 0
    {first}: bool[] = eq {p}, {zero}
    if {first} {{
      {c}: f32[] = const {neutral}
      {b}: {sum} = broadcast to({rows}, 1) {c}
      store @acc {of_sum} {b}
      yield
    }} else {{
      yield
    }}
    {x0}: {tile} = load @x {of_x}
    {valid}: bool[1,{columns}] = valid @x {of_x} axis(1)
    {fill}: f32[] = const {neutral}
    {x1}: {tile} = select {valid}, {x0}, {fill}
    {t}: {sum} = reduce op({op}) axes(1) {x1}
    {a}: {sum} = load @acc {of_sum}
    {s}: {sum} = {op} {a}, {t}
    {half}: f32[] = const 0.5
    {h}: {sum} = mul {s}, {half}
    store @acc {of_sum} {scaled}
    {count}: i32[] = num_programs axis(1)
    {one}: i32[] = const 1
    {end}: i32[] = sub {count}, {one}
    {last}: bool[] = eq {p}, {end}
    if {last} {{
      {l}: {sum} = load @acc {of_sum}
      store @z {of_sum} {l}
      yield
    }} else {{
      yield
    }}
"
        );
        let grid = [(m.div_ceil(rows), "parallel"), (n.div_ceil(columns), "arbitrary")];
        let kernel = to.kernel(&grid, &body);
        Some(self.kernel(kernel, &[x], vec![m, 1]))
    }

    /// A call, with operations around it: what is declared for a kernel itself may be refused.
    fn kernel(&mut self, kernel: Kernel, args: &[Var], gives: Vec<usize>) -> Var {
        let args: Vec<Var> = args.iter().map(|&x| self.scalar(ScalarOp::Neg, &[x])).collect();
        let takes = args.iter().map(|&x| self.drawn.graph.ty(x).clone()).collect();
        let gives = vec![Type::new(pallas_ir::DType::F32, gives)];
        let call = KernelCall { kernel: Arc::new(kernel), sizes: vec![], params: vec![], takes, gives };
        let made = self.drawn.graph.push(call, &args).expect("operands that fit");
        self.scalar(ScalarOp::Tanh, &[made])
    }
}
