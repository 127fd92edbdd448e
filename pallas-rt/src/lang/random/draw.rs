//! Draws random operations that accept their operands by [`pallas_ir::infer`], and bounds how far devices may differ in
//! each value.
use super::memory::Memory;
use crate::lang::context::{self, Handle};
use crate::lang::tile::Tile;
use crate::prelude::*;
use pallas_ir::scalar::{SignatureType, WgslAccuracy};
use pallas_ir::structural::{self as ops, RandomKernelGenerator};
use pallas_ir::{AccessForm, DType, Dim, Literal, Op, ScalarOp, StructuralOp, Type, infer};

/// Shape of all tiles that loops and branches carry.
pub(super) const SHAPE: [usize; 2] = [2, 6];
/// Largest magnitude of a float: larger results are clamped.
const LIMIT: f32 = 4.0;
/// Bound on the difference between devices of a carried float.
pub(super) const ERROR: f32 = 2e-5;
/// Rounding error of a value up to [`LIMIT`].
const ROUNDING: f32 = LIMIT * f32::EPSILON;
/// Error bound above which a result is not used.
const USELESS: f32 = 0.1;

/// Generator of random numbers (splitmix64), which begins at a seed.
pub(crate) struct Dice(pub(super) u64);
impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.roll() % n.max(1) as u64) as usize
    }
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// A value of the program that is being drawn, and what is known of it.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) handle: Handle,
    pub(super) ty: Type,
    /// Bound on the difference between devices; 0 if they have the same bits.
    pub(super) error: f32,
    /// Bound on the magnitude of a float.
    bound: f32,
    /// True if no other value was computed from it yet.
    unused: bool,
}

/// The access form of an operation for these operands.
fn access(op: &StructuralOp, args: &[Made]) -> AccessForm {
    let dims: Vec<Vec<Dim>> = args.iter().map(|a| a.ty.dims()).collect();
    op.access(&dims.iter().map(|d| &d[..]).collect::<Vec<_>>())
}

/// Bounds the difference between devices of a result, from those of its operands; `None` for an operation with jumps
/// or steep slopes whose operands are not bit-equal on every device.
fn error(op: &Op, args: &[Made], result: &Type) -> Option<f32> {
    use ScalarOp::*;
    let (sum, worst) = args.iter().fold((0.0f32, 0.0f32), |(s, w), a| (s + a.error, w.max(a.error)));
    if !result.dtype.is_float() {
        return (worst == 0.0).then_some(0.0);
    }
    let terms = |shape: &[usize], axes: &[usize]| axes.iter().map(|&a| shape[a]).product::<usize>().max(1) as f32;
    match op {
        Op::Scalar(op) => {
            let own = match op.row().gpu {
                WgslAccuracy::Exact | WgslAccuracy::Finite(0) => ROUNDING,
                WgslAccuracy::Finite(ulp) => ulp as f32 * ROUNDING,
            };
            match op {
                Neg | Abs | Minimum | Maximum | Clamp | Select => Some(worst),
                Add | Sub => Some(sum + 2.0 * own),
                Mul | Fma => Some(LIMIT * sum + LIMIT * own),
                Sin | Cos | Tanh | Erf | Erfc | Logistic | Gelu | Silu | Softplus | Atan => Some(1.2 * worst + own),
                _ if worst > 0.0 => None,
                Floor | Ceil | Round | Trunc | Sign => Some(0.0),
                _ => Some(own),
            }
        }
        Op::Structural(op) => match access(op, args) {
            AccessForm::Contract { contract, .. } => {
                let k = terms(&args[0].ty.shape, &contract.iter().map(|p| p.0).collect::<Vec<_>>());
                Some(k * LIMIT * sum + k * k * LIMIT * ROUNDING)
            }
            AccessForm::Nest(nest) if args.len() == 2 => {
                let k = nest.folded_count() as f32;
                Some(k * LIMIT * sum + k * k * LIMIT * ROUNDING)
            }
            AccessForm::Nest(nest) if nest.op == Add => {
                let n = nest.folded_count() as f32;
                Some(n * worst + n * n * ROUNDING)
            }
            AccessForm::Nest(nest) if nest.op == Mul => (worst == 0.0).then_some(16.0 * ROUNDING),
            AccessForm::Fold { op: Add, axes } => {
                let n = terms(&args[0].ty.shape, &axes);
                Some(n * worst + n * n * ROUNDING)
            }
            AccessForm::Scan { op: Add, axis, .. } => {
                let n = terms(&args[0].ty.shape, &[axis]);
                Some(n * worst + n * n * ROUNDING)
            }
            AccessForm::Fold { op: Mul, .. } | AccessForm::Scan { op: Mul, .. } | AccessForm::Powi(_) => {
                (worst == 0.0).then_some(16.0 * ROUNDING)
            }
            // Each update is added to what its element has become.
            AccessForm::Scatter { op: Some(Add), .. } => {
                let n = terms(&args[2].ty.shape, &(0..args[2].ty.shape.len()).collect::<Vec<_>>());
                Some(n * sum + n * n * ROUNDING)
            }
            AccessForm::Cast | AccessForm::Bitcast => (worst == 0.0).then_some(0.0),
            _ => Some(worst),
        },
        _ => Some(worst),
    }
}

/// Moves operand number `operand` to where the operation is defined: outside, a shader's result depends on the driver.
fn defined(op: &Op, operand: usize, x: Tile<f32>) -> Tile<f32> {
    use ScalarOp::*;
    let op = match op {
        Op::Scalar(op) => *op,
        Op::Structural(StructuralOp::Powi(_)) => return apart(x),
        Op::Structural(
            StructuralOp::ArgSort(_) | StructuralOp::ArgTopK(_) | StructuralOp::Bitcast(_) | StructuralOp::Cast(_),
        ) => return plain(x),
        _ => return x,
    };
    match (op, operand) {
        (Div | Atan2, 1) | (Recip, 0) => apart(x),
        // Remainders jump at multiples; of this number a multiple is never drawn.
        (Rem, 1) => select(x.lt(0.0), -0.731_058, 0.731_058),
        (Log | Log2 | Sqrt | Rsqrt | Pow, 0) => x.abs().maximum(0.25),
        (Pow, 1) => x.clamp(-3.0, 3.0),
        (Log1p, 0) => x.maximum(-0.75),
        (Asin | Acos, 0) => x.clamp(-0.9, 0.9),
        (Tan, 0) => x.clamp(-1.2, 1.2),
        (ToBits, 0) => plain(x),
        _ => x,
    }
}

/// Replaces elements near zero by 0.5.
fn apart(x: Tile<f32>) -> Tile<f32> {
    select(x.abs().lt(0.25), 0.5, x)
}

/// Replaces denormals and -0 by 0, since shaders need not keep them.
fn plain(x: Tile<f32>) -> Tile<f32> {
    select(x.abs().lt(1e-30), 0.0, x)
}

/// Replaces elements that are not finite by 0.25 and denormals by 0, and clamps the others to [`LIMIT`].
fn plain_double(x: Tile<f64>) -> Tile<f64> {
    let x = select(x.is_finite(), x, 0.25);
    select(x.abs().lt(1e-30), 0.0, x).clamp(-f64::from(LIMIT), f64::from(LIMIT))
}

/// Bounds the magnitude of a result by those of its operands; infinite if no bound is known.
fn bound(op: &Op, args: &[Made]) -> f32 {
    use ScalarOp::*;
    let (sum, most) = args.iter().fold((0.0f32, 0.0f32), |(s, m), a| (s + a.bound, m.max(a.bound)));
    match op {
        Op::Scalar(op) => match op {
            Add | Sub => sum,
            Mul => args[0].bound * args[1].bound,
            Sin | Cos | Tanh | Erf | Logistic | Sign | Rem => 1.0,
            Erfc | Atan | Asin | Rsqrt => 2.0,
            Neg | Abs | Minimum | Maximum | Clamp | Select | Trunc | Sqrt => most.max(1.0),
            Gelu | Silu | Softplus | Floor | Ceil | Round => most + 1.0,
            _ => f32::INFINITY,
        },
        Op::Structural(op) => match access(op, args) {
            AccessForm::Map(_) | AccessForm::Flat | AccessForm::Gather { .. } => most.max(1.0),
            _ => f32::INFINITY,
        },
        _ => f32::INFINITY,
    }
}

/// The values of a program section that an operation's `draw` may choose from, and the indices of those that it chose.
struct Offer<'a> {
    pool: &'a mut Pool,
    places: Vec<usize>,
}
impl RandomKernelGenerator for Offer<'_> {
    fn draw_below(&mut self, n: usize) -> usize {
        self.pool.dice.below(n)
    }
    fn choose_operand(&mut self, fits: &dyn Fn(&Type) -> bool) -> Option<Type> {
        let place = self.pool.any(fits)?;
        self.places.push(place);
        Some(self.pool.made[place].ty.clone())
    }
    fn append_constant(&mut self, x: Literal) {
        self.places.push(self.pool.made.len());
        self.pool.give(context::emit_constant(x), 0.0);
    }
    fn clamp_last_operand(&mut self, end: usize) {
        let Some(last) = self.places.pop() else { return };
        self.places.push(self.pool.made.len());
        let inside = Tile::<i32>::new(self.pool.made[last].handle).clamp(0, end as i32 - 1);
        self.pool.give(inside.handle, 0.0);
    }
    fn draw_dtype(&mut self) -> DType {
        let narrow = [DType::I8, DType::U8, DType::I16, DType::U16, DType::F16, DType::Bf16];
        let common = [DType::F32, DType::I32, DType::U32, DType::Bool];
        let wide = [DType::F64, DType::I64, DType::U64];
        match self.pool.dice.below(3) {
            0 => self.pool.dice.pick(&narrow),
            1 if self.pool.wide => self.pool.dice.pick(&wide),
            _ => self.pool.dice.pick(&common),
        }
    }
    fn common_shape(&mut self) -> Vec<usize> {
        SHAPE.to_vec()
    }
}

/// The values that straight-line code may use, and the source of its randomness.
pub(super) struct Pool {
    pub(super) dice: Dice,
    /// True if 64-bit values may be drawn, which shaders do not have.
    wide: bool,
    pub(super) memory: Memory,
    pub(super) made: Vec<Made>,
}

impl Pool {
    pub(super) fn new(seed: u64, wide: bool, memory: Memory) -> Pool {
        Pool { dice: Dice(seed), wide, memory, made: vec![] }
    }
    /// Adds a value that operations may use, in which devices differ by `error` at most.
    pub(super) fn give(&mut self, handle: Handle, error: f32) {
        if let Some(ty) = context::type_of(handle) {
            self.made.push(Made { handle, ty, error, bound: LIMIT, unused: false });
        }
    }
    /// Adds a value that is bit-equal on every device and that the result has to depend on.
    pub(super) fn drawn(&mut self, handle: Handle) {
        self.give(handle, 0.0);
        self.made.last_mut().into_iter().for_each(|m| m.unused = true);
    }
    /// Draws up to `steps` operations.
    pub(super) fn steps(&mut self, steps: usize) {
        let mut left = steps;
        // What is drawn may not fit.
        for _ in 0..8 * steps {
            if left > 0 {
                let before = self.made.len();
                self.step();
                left -= usize::from(self.made.len() > before);
            }
        }
    }
    /// Returns the index of a random value with this element type.
    pub(super) fn of(&mut self, dtype: DType) -> Option<usize> {
        self.any(&|ty| ty.dtype == dtype)
    }
    /// Returns the index of a random value whose type fits.
    fn any(&mut self, fits: &dyn Fn(&Type) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.made.len()).filter(|&i| fits(&self.made[i].ty)).collect();
        (!fitting.is_empty()).then(|| self.dice.pick(&fitting))
    }
    /// Emits an operation on the values at the indices `places`, if it accepts them and its result is small and
    /// accurate.
    pub(super) fn emit(&mut self, op: Op, places: &[usize]) {
        let mut args: Vec<Made> = places.iter().map(|&i| self.made[i].clone()).collect();
        let types: Vec<&Type> = args.iter().map(|a| &a.ty).collect();
        let Some(Ok(Some(ty))) = context::with_kernel(|kernel| infer(kernel, &op, &types)) else { return };
        let Some(error) = error(&op, &args, &ty) else { return };
        // 16-bit floats are stored, moved and converted.
        let narrow = matches!(ty.dtype, DType::F16 | DType::Bf16);
        if ty.elements() > 128 || ty.elements() == 0 || error > USELESS || narrow && error > 0.0 {
            return;
        }
        for (i, arg) in args.iter_mut().enumerate().filter(|(_, a)| a.ty.dtype == DType::F32 && a.error == 0.0) {
            arg.handle = defined(&op, i, Tile::new(arg.handle)).handle;
        }
        let handles: Vec<Handle> = args.iter().map(|a| a.handle).collect();
        let mut handle = context::emit(op.clone(), &handles);
        let mut bound = bound(&op, &args);
        if ty.dtype == DType::F32 && bound > LIMIT {
            let mut x = Tile::<f32>::new(handle);
            if matches!(op, Op::Structural(StructuralOp::Bitcast(_))) {
                x = plain(select(x.is_finite(), x, 0.25));
            }
            (handle, bound) = (x.clamp(-LIMIT, LIMIT).handle, LIMIT);
        }
        if ty.dtype == DType::F64 {
            (handle, bound) = (plain_double(Tile::new(handle)).handle, LIMIT);
        }
        places.iter().for_each(|&i| self.made[i].unused = false);
        self.made.push(Made { handle, ty, error, bound, unused: true });
    }
    fn step(&mut self) {
        match self.dice.below(16) {
            0 => self.load(),
            15 => self.long(),
            1..6 => {
                let op = self.dice.pick(ScalarOp::ALL);
                self.scalar(op);
            }
            6 => self.sample(),
            7..9 => self.windows(),
            9 => self.dropped(),
            _ => self.structural(),
        }
    }
    fn scalar(&mut self, op: ScalarOp) {
        let common = [DType::F32, DType::F32, DType::F32, DType::I32, DType::I32, DType::U32, DType::Bool];
        let narrow = [DType::I8, DType::U8, DType::I16, DType::U16];
        let wide = [DType::F64, DType::F64, DType::I64, DType::U64];
        let open = match self.dice.below(8) {
            0 => self.dice.pick(&narrow),
            1..4 if self.wide => self.dice.pick(&wide),
            _ => self.dice.pick(&common),
        };
        let mut args = vec![];
        for (_, ty) in op.row().operands {
            let dtype = if let SignatureType::Is(dtype) = ty { *dtype } else { open };
            let Some(arg) = self.of(dtype) else { return };
            args.push(arg);
        }
        self.emit(Op::Scalar(op), &args);
    }
    fn structural(&mut self) {
        let draw = self.dice.pick(StructuralOp::DRAWS);
        let mut offer = Offer { pool: self, places: vec![] };
        let Some(op) = draw(&mut offer) else { return };
        let places = offer.places;
        self.emit(Op::Structural(op), &places);
    }

    /// Returns `start` plus a weighted sum of all unused floats, scaled so that its error is [`ERROR`] again, since it
    /// would grow in loops.
    pub(super) fn floats(&self, start: Tile<f32>) -> Tile<f32> {
        let (mut sum, mut error, mut weight) = (start, ERROR, 0.75);
        for m in self.made.iter().filter(|m| m.unused && is_rough(m)) {
            let n = if m.ty.shape == SHAPE { 1.0 } else { m.ty.elements() as f32 };
            let x = match m.ty.dtype {
                DType::F64 => Tile::<f64>::new(m.handle).cast::<f32>(),
                _ => Tile::new(m.handle),
            };
            sum = beside(sum, x * weight);
            error += weight * n * (m.error + ROUNDING * n);
            weight = 1.75 - 0.9 * weight;
        }
        (sum * (ERROR / error).min(0.5)).clamp(-LIMIT, LIMIT)
    }
    /// Returns a hash of `start` and of all unused integers, truth values and narrow floats.
    pub(super) fn ints(&self, start: Tile<i32>) -> Tile<i32> {
        let mut sum = start;
        for m in self.made.iter().filter(|m| m.unused && !is_rough(m)) {
            let x = match m.ty.dtype {
                DType::I32 => Tile::new(m.handle),
                DType::Bf16 => plain(Tile::<bf16>::new(m.handle).cast::<f32>()).bitcast(),
                DType::F16 => plain(Tile::<f16>::new(m.handle).cast::<f32>()).bitcast(),
                DType::I64 => folded(Tile::new(m.handle)),
                DType::U64 => folded(Tile::<u64>::new(m.handle).bitcast()),
                _ => {
                    let op: StructuralOp = ops::Cast { to: DType::I32 }.into();
                    Tile::new(context::emit(Op::Structural(op), &[m.handle]))
                }
            };
            sum = beside(sum * 31, x);
        }
        sum
    }
    /// Returns the last unused tile of floats of shape [`SHAPE`] that is bit-equal on every device.
    pub(super) fn last_exact(&self) -> Option<Tile<f32>> {
        let fits = |m: &&Made| m.unused && m.error == 0.0 && m.ty.dtype == DType::F32 && m.ty.shape == SHAPE;
        self.made.iter().rev().find(fits).map(|m| Tile::new(m.handle))
    }
}

/// Returns true if devices may differ in a value.
fn is_rough(m: &Made) -> bool {
    matches!(m.ty.dtype, DType::F32 | DType::F64)
}

/// Combines both halves of each element into 32 bits.
fn folded(x: Tile<i64>) -> Tile<i32> {
    (x ^ (x >> 32)).cast()
}

/// Adds `x` to `sum`; all elements of an `x` of another shape are summed first.
fn beside<T: Number>(sum: Tile<T>, x: Tile<T>) -> Tile<T> {
    let shape = x.shape();
    if shape == SHAPE || shape.is_empty() { sum + x } else { sum + x.sum(..).item() }
}
