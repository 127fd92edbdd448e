//! Law: a random kernel over the whole registry means the same as Rust run step by step, as tile IR and on the devices.
//!
//! A program is a seed: its operations are drawn while the body runs, from operations and operands that fit by
//! [`pallas_ir::infer`]. Devices may round sums and fast functions differently, so operations with jumps or steep slopes
//! only take values that are exact on every device; the others are clamped to a tame range.
use super::context::{self, Handle};
use super::tile::Tile;
use crate::prelude::*;
use pallas_ir::{DType, Dim, Literal, Op, ScalarOp, StructuralOp, Type, infer, structural as ops};

/// What a device may be off, relative to values of at least 1.
const TOLERANCE: f32 = 2e-3;
const SHAPE: [usize; 2] = [2, 6];

/// splitmix64
struct Dice(u64);
impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n.max(1) as u64) as usize
    }
    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// A value made so far.
#[derive(Clone)]
struct Made {
    handle: Handle,
    ty: Type,
    /// Bit-equal on every device.
    exact: bool,
}

struct Pool {
    dice: Dice,
    made: Vec<Made>,
}

/// Operations that a small error of an operand changes much.
fn needs_exact(op: &Op) -> bool {
    use ScalarOp::*;
    match op {
        Op::Scalar(op) => !matches!(
            op,
            Add | Sub
                | Mul
                | Neg
                | Abs
                | Minimum
                | Maximum
                | Clamp
                | Select
                | Sin
                | Cos
                | Tanh
                | Erf
                | Erfc
                | Logistic
                | Gelu
                | Silu
                | Softplus
                | Atan
                | Fma
        ),
        Op::Structural(op) => matches!(
            op,
            StructuralOp::Cast(_) | StructuralOp::Bitcast(_) | StructuralOp::ArgReduce(_) | StructuralOp::Powi(_)
        ),
        _ => false,
    }
}

/// Operations that move or choose elements: exact if their operands are.
fn keeps_exact(op: &Op) -> bool {
    use ScalarOp::*;
    match op {
        Op::Scalar(op) => {
            matches!(op, Neg | Abs | Minimum | Maximum | Clamp | Select | Floor | Ceil | Round | Trunc | Sign)
        }
        Op::Structural(op) => !matches!(
            op,
            StructuralOp::Dot(_) | StructuralOp::Reduce(_) | StructuralOp::Cumulative(_) | StructuralOp::Powi(_)
        ),
        _ => true,
    }
}

impl Pool {
    fn add(&mut self, handle: Handle, exact: bool) {
        if let Some(ty) = context::type_of(handle) {
            self.made.push(Made { handle, ty, exact });
        }
    }
    /// A value with this element type.
    fn of(&mut self, dtype: DType) -> Option<Made> {
        let fitting: Vec<Made> = self.made.iter().filter(|m| m.ty.dtype == dtype).cloned().collect();
        (!fitting.is_empty()).then(|| self.dice.pick(&fitting).clone())
    }
    fn any(&mut self) -> Made {
        self.dice.pick(&self.made).clone()
    }
    /// Emits an operation if its operands fit and its result is small.
    fn emit(&mut self, op: Op, args: &[Made]) {
        if needs_exact(&op) && !args.iter().all(|a| a.exact) {
            return;
        }
        let types: Vec<&Type> = args.iter().map(|a| &a.ty).collect();
        let Some(Ok(Some(ty))) = context::declared(|kernel| infer(kernel, &op, &types)) else { return };
        if ty.elements() > 256 || ty.elements() == 0 {
            return;
        }
        let integral = !ty.dtype.is_float();
        let exact = integral || keeps_exact(&op) && args.iter().all(|a| a.exact);
        let handles: Vec<Handle> = args.iter().map(|a| a.handle).collect();
        let made = context::emit(op, &handles);
        let made = if ty.dtype == DType::F32 { tame(made) } else { made };
        self.add(made, exact);
    }
    fn step(&mut self) {
        if self.dice.below(2) == 0 {
            let op = *self.dice.pick(ScalarOp::ALL);
            self.scalar(op);
        } else {
            self.structural();
        }
    }
    fn scalar(&mut self, op: ScalarOp) {
        let open = *self.dice.pick(&[DType::F32, DType::F32, DType::I32, DType::U32, DType::Bool]);
        let mut args = vec![];
        for (_, ty) in op.row().operands {
            let dtype = if let pallas_ir::scalar::Ty::Is(dtype) = ty { *dtype } else { open };
            let Some(arg) = self.of(dtype) else { return };
            args.push(arg);
        }
        self.emit(Op::Scalar(op), &args);
    }
    fn structural(&mut self) {
        let x = self.any();
        let rank = x.ty.shape.len();
        let dims: Vec<usize> = x.ty.shape.clone();
        let axis = self.dice.below(rank);
        let monoid =
            *self.dice.pick(&[ScalarOp::Add, ScalarOp::Minimum, ScalarOp::Maximum, ScalarOp::BitOr, ScalarOp::BitAnd]);
        let sizes = |shape: &[usize]| shape.iter().map(|&n| Dim::from(n)).collect::<Vec<_>>();
        let per_axis = |dice: &mut Dice, n: usize| (0..rank).map(|_| dice.below(n)).collect::<Vec<usize>>();
        let op: StructuralOp = match self.dice.below(16) {
            0 => ops::Broadcast { to: sizes(&SHAPE) }.into(),
            1 => {
                let mut to = dims;
                to.rotate_left(axis);
                ops::Reshape { to: sizes(&to) }.into()
            }
            2 => {
                let mut axes: Vec<usize> = (0..rank).collect();
                axes.rotate_left(axis);
                ops::Transpose { axes }.into()
            }
            3 => {
                let start: Vec<i64> = dims.iter().map(|&n| self.dice.below(n) as i64).collect();
                let stride: Vec<i64> = dims.iter().map(|_| 1 + self.dice.below(2) as i64).collect();
                let left = |a: usize| (dims[a] as i64 - start[a] + stride[a] - 1) / stride[a];
                let size = (0..rank).map(|a| Dim::from(left(a).max(1))).collect();
                ops::Slice { start, size, stride }.into()
            }
            4 => {
                let other = self.of(x.ty.dtype).unwrap_or(x.clone());
                return self.emit(Op::Structural(ops::Concat { axis }.into()), &[x, other]);
            }
            5 => {
                let (low, high) = (per_axis(&mut self.dice, 2), per_axis(&mut self.dice, 3));
                let value = Literal::new(x.ty.dtype, 1.0);
                self.add(context::constant(value), true);
                let value = self.made[self.made.len() - 1].clone();
                let op = ops::Pad { low: sizes(&low), high: sizes(&high) };
                return self.emit(Op::Structural(op.into()), &[x, value]);
            }
            6 => ops::Reverse { axes: if rank > 0 { vec![axis] } else { vec![] } }.into(),
            7 => {
                let dtype = *self.dice.pick(&[DType::F32, DType::I32, DType::U32]);
                return self
                    .emit(Op::Structural(ops::Iota { shape: sizes(&SHAPE), axis: axis.min(1), dtype }.into()), &[]);
            }
            8 => {
                let other = self.of(x.ty.dtype).unwrap_or(x.clone());
                let contract = vec![(axis, self.dice.below(other.ty.shape.len()))];
                let op = ops::Dot { batch: vec![], contract, acc: x.ty.dtype };
                return self.emit(Op::Structural(op.into()), &[x, other]);
            }
            9 => ops::Reduce { op: monoid, axes: vec![axis] }.into(),
            10 => ops::ArgReduce { max: self.dice.below(2) == 0, axis }.into(),
            11 => ops::Cumulative { op: monoid, axis, reverse: self.dice.below(2) == 0 }.into(),
            12 => {
                let Some(index) = self.of(DType::I32).filter(|i| i.ty.shape.len() == rank && rank > 0) else { return };
                let last = dims[axis] as i32 - 1;
                let inside = Tile::<i32>::new(index.handle).clamp(0, last);
                let index = Made { handle: inside.handle, ..index };
                return self.emit(Op::Structural(ops::TakeAlong { axis }.into()), &[x, index]);
            }
            13 => ops::Bitcast { to: *self.dice.pick(&[DType::F32, DType::I32, DType::U32]) }.into(),
            14 => ops::Powi { exponent: self.dice.below(7) as i32 - 3 }.into(),
            _ => ops::Cast { to: *self.dice.pick(&[DType::F32, DType::I32, DType::U32, DType::Bool]) }.into(),
        };
        self.emit(Op::Structural(op), &[x]);
    }
    /// What all floats add up to: every element of every value counts, whatever its size.
    fn floats(&self) -> Tile<f32> {
        let waves = self.of_type::<f32>().map(|x| (x * 1.3 + 0.4).sin());
        waves.map(total).fold(zeros(SHAPE), |sum, x| sum + x).sin()
    }
    /// What all integers and truth values add up to.
    fn ints(&self) -> Tile<i32> {
        let all = self.of_type::<i32>();
        let all = all.chain(self.of_type::<u32>().map(Tile::cast)).chain(self.of_type::<bool>().map(Tile::cast));
        all.map(total).fold(zeros(SHAPE), |sum, x| sum * 31 + x)
    }
    fn of_type<T: Elem>(&self) -> impl Iterator<Item = Tile<T>> {
        self.made.iter().filter(|m| m.ty.dtype == T::DTYPE).map(|m| Tile::new(m.handle))
    }
}

/// A value of another shape as its sum, which fits beside a tile of [`SHAPE`].
fn total<T: Number>(x: Tile<T>) -> Tile<T> {
    if x.shape() == SHAPE { x } else { x.sum(..).item().broadcast(SHAPE) }
}

/// Keeps values from running off to infinity or NaN, where everything agrees with everything.
fn tame(x: Handle) -> Handle {
    let x = Tile::<f32>::new(x);
    select(x.is_nan(), 0.25, x.clamp(-4.0, 4.0)).handle
}

/// A random program of so many steps on these values: a tile of each kind.
fn program(seed: u64, steps: usize, x: Tile<f32>, inexact: Tile<f32>, n: Tile<i32>) -> (Tile<f32>, Tile<i32>) {
    let mut pool = Pool { dice: Dice(seed), made: vec![] };
    pool.add(x.handle, true);
    pool.add(inexact.handle, false);
    pool.add(x.t().handle, true);
    pool.add(x.reshape([3, 4]).handle, true);
    pool.add(n.reshape([2, 3, 2]).handle, true);
    pool.add(n.handle, true);
    pool.add(n.cast::<u32>().handle, true);
    pool.add(n.gt(0).handle, true);
    pool.add(scalar(0.75f32).handle, true);
    pool.add(program_id(0).handle, true);
    (0..steps).for_each(|_| pool.step());
    (pool.floats(), pool.ints())
}

/// A random program in a loop, another behind a condition; the last block overhangs.
#[kernel(grid = (cdiv(M, 2)))]
fn random(
    #[block([M, K] => [2, 6], |i| (i, 0), fill = 0.5)] a: In<f32>,
    #[block([M, K] => [2, 6], |i| (i, 0), fill = 3)] n: In<i32>,
    #[block([M, K] => [2, 6], |i| (i, 0))] floats: Out<f32>,
    #[block([M, K] => [2, 6], |i| (i, 0))] ints: Out<i32>,
    rounds: i32,
    #[fixed] seed: u64,
    #[fixed] steps: usize,
) {
    let x = a.load();
    let (mut t, mut k) = (x, n.load());
    for i in 0..rounds {
        let (u, v) = program(seed, steps, x, t, k + i);
        t = u;
        k = v;
        if k.sum(..).item() % 2 == 0 {
            let (u, v) = program(seed + 1, steps, x, t, k);
            t = u;
            k = v;
        } else {
            k += 1;
        }
    }
    floats.store(t);
    ints.store(k);
}

type Numbers = (Vec<f32>, Vec<i32>);

fn run(client: &Client, seed: u64, steps: usize) -> Result<Numbers> {
    let mut dice = Dice(!seed);
    let floats: Vec<f32> = (0..30).map(|_| dice.below(4000) as f32 / 1000.0 - 2.0).collect();
    let ints: Vec<i32> = (0..30).map(|_| dice.below(40) as i32 - 20).collect();
    let (a, n) = (client.array(&floats, &[5, 6])?, client.array(&ints, &[5, 6])?);
    let (floats, ints) = random(&a, &n, 2, seed, steps)?;
    Ok((floats.to_vec()?, ints.to_vec()?))
}

fn agree((a, m): &Numbers, (b, n): &Numbers) -> bool {
    let close = |(x, y): (&f32, &f32)| x.is_nan() && y.is_nan() || (x - y).abs() <= TOLERANCE * (1.0 + x.abs());
    m == n && a.iter().zip(b).all(close)
}

/// The law on one device; a counterexample is reported with the fewest steps that show it.
fn law(client: &Client, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let fails = |steps: usize| -> Option<String> {
            let expected =
                run(&Client::interpreter(), seed, steps).unwrap_or_else(|e| panic!("seed {seed}, {steps}: {e}"));
            let found = run(client, seed, steps).unwrap_or_else(|e| panic!("seed {seed}, {steps} steps: {e}"));
            (!agree(&expected, &found)).then(|| format!("expected {expected:?}\nfound    {found:?}"))
        };
        if fails(16).is_some() {
            let (steps, report) = (0..=16).find_map(|steps| Some((steps, fails(steps)?))).expect("all steps fail");
            panic!("seed {seed}, {steps} steps on {}:\n{report}", client.device());
        }
    }
}

#[test]
fn random_kernels_mean_the_same_on_the_cpu() {
    law(&Client::cpu(), 0..500);
}

#[test]
fn random_kernels_are_not_trivial() {
    // The law is worth something only if programs differ in what they give, and together use most of the registry.
    let results: Vec<Numbers> = (0..20).map(|seed| run(&Client::interpreter(), seed, 12).expect("it runs")).collect();
    for i in 0..20 {
        assert!((0..i).all(|j| !agree(&results[i], &results[j])), "program {i} gives what an earlier one gave");
        assert!(results[i].0.iter().all(|x| x.is_finite()), "program {i} does not give numbers");
    }
    let text =
        explain(|| (0..200).try_for_each(|seed| run(&Client::cpu(), seed, 12).map(|_| ()))).expect("it explains");
    let text: String = text.kernels.iter().map(|k| k.stages[0].1.clone()).collect();
    let missing = |names: Vec<&'static str>| -> Vec<&str> {
        names.into_iter().filter(|name| !text.contains(&format!(" = {name} "))).collect()
    };
    let scalar = missing(ScalarOp::ALL.iter().map(|op| op.name()).collect());
    let structural = missing(StructuralOp::NAMES.to_vec());
    assert!(scalar.is_empty() && structural.is_empty(), "never drawn: {scalar:?} {structural:?}");
}
