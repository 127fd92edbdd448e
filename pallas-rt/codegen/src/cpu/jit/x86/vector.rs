//! Writes the code for one vector (eight or sixteen elements) of each link of a chain.
use super::assembler::{
    Asm, BinaryInstruction, FmaForm, Gpr, Mem, Operand, Predicate, Reg, RoundingMode, UnaryInstruction,
};
use pallas_ir::{DType, ScalarOp};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The sign bit of a float.
const F32_SIGN_BIT: u32 = 1 << 31;

/// The elements of a constant vector; vectors of eight elements use the first half.
type ConstantVector = [u32; 16];

/// Constants that the code reads from memory, each as a whole vector.
#[derive(Default)]
pub(super) struct ConstantPool {
    words: Vec<ConstantVector>,
    /// Position of each constant.
    positions: HashMap<ConstantVector, usize>,
    /// Number of instructions that read each constant.
    uses: Vec<usize>,
    /// Number of elements of a vector.
    lanes: usize,
}

impl ConstantPool {
    /// Returns the bytes of all constants, as they follow the code.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 * self.lanes * self.words.len());
        for word in self.words.iter().flat_map(|words| &words[..self.lanes]) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes
    }
    /// Returns the memory of a constant that has the same word in all elements, which is added if it is new.
    pub(super) fn add_splat(&mut self, word: u32) -> Mem {
        self.add_vector([word; 16])
    }
    /// Returns the memory of a constant vector, which is added if it is new.
    pub(super) fn add_vector(&mut self, words: ConstantVector) -> Mem {
        let at = *self.positions.entry(words).or_insert_with(|| {
            self.words.push(words);
            self.uses.push(0);
            self.words.len() - 1
        });
        self.uses[at] += 1;
        Mem { base: Gpr::R15, index: None, offset: (at * self.lanes * 4) as i32 }
    }
}

/// Writer of operations on vectors, which allocates registers. A function that returns a register returns a newly
/// taken one, which its caller frees.
///
/// Functions return `None` if no register is free, or if the operation has no instructions here.
pub(super) struct VectorWriter {
    pub(super) asm: Asm,
    pub(super) constants: ConstantPool,
    free: Vec<Reg>,
    /// The smallest number of registers that were free at any time.
    spare: usize,
    /// Constants that are kept in registers.
    pinned: Vec<(u32, Reg)>,
    pub(super) beyond: CpuFeatures,
}

/// Optional features of the processor, besides AVX2, that the machine code uses if they are there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CpuFeatures {
    /// It rotates the bits of elements.
    pub(super) rotates: bool,
    /// It rounds `f32` to `bf16`.
    pub(super) rounds: bool,
    /// It has vectors of sixteen elements, and twice as many registers.
    pub(super) wide: bool,
}

impl CpuFeatures {
    /// Returns the features of this processor.
    pub(super) fn detect() -> CpuFeatures {
        let rotates = is_x86_feature_detected!("avx512vl");
        // Processors with VBMI2 do not slow down while they compute on 512-bit vectors.
        let wide = rotates
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vbmi2");
        CpuFeatures { rotates, rounds: rotates && is_x86_feature_detected!("avx512bf16"), wide }
    }
    /// Returns the number of elements of a vector.
    pub(super) fn lanes(self) -> usize {
        if self.wide { 16 } else { 8 }
    }
}

impl VectorWriter {
    /// Creates a writer that keeps the constants `pinned` in registers.
    pub(super) fn new(pinned: &[u32], features: CpuFeatures) -> VectorWriter {
        let registers = if features.wide { 32 } else { 16 };
        let (used, free) = (0..registers).map(Reg).partition::<Vec<_>, _>(|r| usize::from(r.0) < pinned.len());
        VectorWriter {
            asm: Asm::new(features.wide),
            constants: ConstantPool { lanes: features.lanes(), ..ConstantPool::default() },
            spare: free.len(),
            free: free.into_iter().rev().collect(),
            pinned: pinned.iter().copied().zip(used).collect(),
            beyond: features,
        }
    }
    /// Writes the loads of the constants that are kept in registers.
    pub(super) fn load_pinned_constants(&mut self) {
        for (word, to) in self.pinned.clone() {
            let from = self.constants.add_splat(word);
            self.asm.load(to, Operand::Mem(from));
        }
    }
    /// Returns constants to keep in the registers that were never needed, most used first.
    pub(super) fn constants_to_pin(&self) -> Vec<u32> {
        let ConstantPool { words, uses, .. } = &self.constants;
        let is_number = |at: &usize| words[*at] == [words[*at][0]; 16];
        let mut places: Vec<usize> = (0..words.len()).filter(is_number).collect();
        places.sort_by_key(|&at| (Reverse(uses[at]), at));
        places.into_iter().take(self.spare).map(|at| words[at][0]).collect()
    }

    /// Returns the number of elements of a vector.
    pub(super) fn lanes(&self) -> i32 {
        self.beyond.lanes() as i32
    }
    pub(super) fn vector_bytes(&self) -> i32 {
        4 * self.lanes()
    }

    // ---- registers

    /// Takes a free vector register; returns `None` if all are in use.
    pub(super) fn allocate_register(&mut self) -> Option<Reg> {
        let r = self.free.pop();
        self.spare = self.spare.min(self.free.len());
        r
    }
    pub(super) fn free_register(&mut self, r: Reg) {
        debug_assert!(!self.free.contains(&r), "{r:?} is free already");
        self.asm.discard_deferred_mask(r);
        self.free.push(r);
    }
    /// Returns an operand with the same number in all elements.
    pub(super) fn float_constant(&mut self, x: f32) -> Operand {
        self.word_constant(x.to_bits())
    }
    pub(super) fn word_constant(&mut self, bits: u32) -> Operand {
        if let Some((_, r)) = self.pinned.iter().find(|(word, _)| *word == bits) {
            return Operand::Reg(*r);
        }
        Operand::Mem(self.constants.add_splat(bits))
    }
    pub(super) fn load(&mut self, x: Operand) -> Option<Reg> {
        let to = self.allocate_register()?;
        self.asm.load(to, x);
        Some(to)
    }

    pub(super) fn broadcast(&mut self, x: Mem) -> Option<Reg> {
        let to = self.allocate_register()?;
        self.asm.broadcast(to, x);
        Some(to)
    }

    // ---- single instructions

    /// Writes `a op b`; of a commutative operation, the operand in memory becomes the second one.
    pub(super) fn binary(&mut self, op: BinaryInstruction, a: Operand, b: Operand) -> Option<Reg> {
        use BinaryInstruction::{Add, AddInt, And, EqualInt, MaxInt, MinInt, Mul, MulInt, Or, Xor};
        let commutes = matches!(op, Add | Mul | And | Or | Xor | AddInt | MulInt | MinInt | MaxInt | EqualInt);
        let (a, b) = if commutes && matches!(b, Operand::Reg(_)) { (b, a) } else { (a, b) };
        let to = self.allocate_register()?;
        let a = self.register_or_load(a, to);
        self.asm.binary(op, to, a, b);
        Some(to)
    }
    pub(super) fn unary(&mut self, op: UnaryInstruction, x: Operand) -> Option<Reg> {
        let to = self.allocate_register()?;
        self.asm.unary(op, to, x);
        Some(to)
    }
    pub(super) fn compare(&mut self, predicate: Predicate, a: Operand, b: Operand) -> Option<Reg> {
        let to = self.allocate_register()?;
        let a = self.register_or_load(a, to);
        self.asm.compare(predicate, to, a, b);
        Some(to)
    }
    pub(super) fn blend(&mut self, mask: Operand, yes: Operand, no: Operand) -> Option<Reg> {
        let to = self.allocate_register()?;
        let (mask, loaded) = self.ensure_register(mask)?;
        let no = self.register_or_load(no, to);
        self.asm.blend(to, mask, yes, no);
        self.free_if_loaded(mask, loaded);
        Some(to)
    }
    /// Returns the operand's register, or loads it into `to`.
    fn register_or_load(&mut self, x: Operand, to: Reg) -> Reg {
        match x {
            Operand::Reg(r) => r,
            Operand::Mem(_) => {
                self.asm.load(to, x);
                to
            }
        }
    }
    /// Returns the operand's register, or a new one that it is loaded into, and true if it is new.
    pub(super) fn ensure_register(&mut self, x: Operand) -> Option<(Reg, bool)> {
        match x {
            Operand::Reg(r) => Some((r, false)),
            Operand::Mem(_) => Some((self.load(x)?, true)),
        }
    }
    pub(super) fn free_if_loaded(&mut self, r: Reg, loaded: bool) {
        if loaded {
            self.free_register(r);
        }
    }
    /// Writes `x * y + z`.
    pub(super) fn fma(&mut self, x: Operand, y: Operand, z: Operand) -> Option<Reg> {
        let (x, y) = if matches!(x, Operand::Reg(_)) { (y, x) } else { (x, y) };
        let to = self.load(x)?;
        let (y, loaded) = self.ensure_register(y)?;
        self.asm.fma(FmaForm::F213, to, y, z);
        self.free_if_loaded(y, loaded);
        Some(to)
    }
    /// Writes `to = to * x + c`, a step of a polynomial.
    pub(super) fn polynomial_step(&mut self, to: Reg, x: Reg, c: f32) {
        let c = self.float_constant(c);
        self.asm.fma(FmaForm::F213, to, x, c);
    }
    /// Writes a polynomial of `x`, whose coefficients begin with that of the highest power.
    pub(super) fn polynomial(&mut self, x: Reg, coefficients: &[f32]) -> Option<Reg> {
        let first = self.float_constant(coefficients[0]);
        let y = self.load(first)?;
        coefficients[1..].iter().for_each(|&c| self.polynomial_step(y, x, c));
        Some(y)
    }
    /// Writes `x = x op y`.
    pub(super) fn binary_in_place(&mut self, op: BinaryInstruction, x: Reg, y: Operand) {
        self.asm.binary(op, x, x, y);
    }
    /// Clamps `x` to the range from `low` to `high`; NaN stays NaN.
    pub(super) fn clamp_to_range(&mut self, x: Operand, low: f32, high: f32) -> Option<Reg> {
        let high = self.float_constant(high);
        let y = self.load(high)?;
        self.binary_in_place(BinaryInstruction::Min, y, x);
        let low = self.float_constant(low);
        let z = self.load(low)?;
        self.binary_in_place(BinaryInstruction::Max, z, Operand::Reg(y));
        self.free_register(y);
        Some(z)
    }

    fn round(&mut self, how: RoundingMode, x: Operand) -> Option<Reg> {
        let to = self.allocate_register()?;
        self.asm.round(how, to, x);
        Some(to)
    }

    // ---- folds

    /// Folds `x` into an accumulator; the accumulator of a maximum holds negated values.
    pub(super) fn accumulate(&mut self, op: ScalarOp, to: Reg, x: Operand) -> Option<()> {
        match op {
            ScalarOp::Add | ScalarOp::Mul | ScalarOp::Minimum => self.merge_accumulator(op, to, x),
            ScalarOp::Maximum => {
                let x = self.negated_copy(x)?;
                self.merge_accumulator(op, to, Operand::Reg(x))?;
                self.free_register(x);
                Some(())
            }
            _ => None,
        }
    }
    /// Folds the accumulator `x` into the accumulator `to`; for a maximum, both hold negated values.
    pub(super) fn merge_accumulator(&mut self, op: ScalarOp, to: Reg, x: Operand) -> Option<()> {
        match op {
            ScalarOp::Add => self.binary_in_place(BinaryInstruction::Add, to, x),
            ScalarOp::Mul => self.binary_in_place(BinaryInstruction::Mul, to, x),
            // The minimum is taken in both orders of operands: where they differ, one is NaN or -0, and the bits of
            // both are combined.
            _ => {
                let (x, loaded) = self.ensure_register(x)?;
                let least = self.binary(BinaryInstruction::Min, Operand::Reg(to), Operand::Reg(x))?;
                self.asm.binary(BinaryInstruction::Min, to, x, Operand::Reg(to));
                self.binary_in_place(BinaryInstruction::Or, to, Operand::Reg(least));
                self.free_register(least);
                self.free_if_loaded(x, loaded);
            }
        }
        Some(())
    }
    /// Folds the elements of an accumulator together, and leaves the result in each of them; for a maximum, they and
    /// the result are negated values.
    pub(super) fn fold_across_lanes(&mut self, op: ScalarOp, x: Reg) -> Option<()> {
        let t = self.allocate_register()?;
        self.asm.extract_upper_half(t, x);
        self.merge_accumulator(op, x, Operand::Reg(t))?;
        if self.beyond.wide {
            self.asm.extract_second_quarter(t, x);
            self.merge_accumulator(op, x, Operand::Reg(t))?;
        }
        for order in [0x4e, 0xb1] {
            self.asm.shuffle(t, x, order);
            self.merge_accumulator(op, x, Operand::Reg(t))?;
        }
        self.free_register(t);
        Some(())
    }
    /// Negates each element in place.
    pub(super) fn negate_in_place(&mut self, x: Reg) {
        let sign = self.word_constant(F32_SIGN_BIT);
        self.binary_in_place(BinaryInstruction::Xor, x, sign);
    }
    /// Writes `-x`.
    pub(super) fn negated_copy(&mut self, x: Operand) -> Option<Reg> {
        let sign = self.word_constant(F32_SIGN_BIT);
        self.binary(BinaryInstruction::Xor, x, sign)
    }
    /// Writes `|x|`.
    pub(super) fn absolute_value(&mut self, x: Operand) -> Option<Reg> {
        let rest = self.word_constant(!F32_SIGN_BIT);
        self.binary(BinaryInstruction::And, x, rest)
    }

    // ---- operations of the language

    /// Writes a scalar operation on operands of type `dtype`.
    pub(super) fn scalar_operation(&mut self, op: ScalarOp, dtype: DType, args: &[Operand]) -> Option<Reg> {
        match (dtype, args) {
            (DType::F32, &[x]) => self.float_unary(op, x),
            (DType::F32, &[a, b]) => self.float_binary(op, a, b),
            (DType::I32 | DType::U32, &[x]) => self.integer_unary(op, x),
            (DType::I32 | DType::U32, &[a, b]) => self.integer_binary(op, dtype, a, b),
            // Operations in which no bits enter or leave a byte: they are computed in 32 bits.
            (DType::I8 | DType::U8, &[a, b]) => {
                use ScalarOp::{BitAnd, BitOr, BitXor, Eq, Ge, Gt, Le, Lt, Maximum, Minimum, Ne};
                let within = [BitAnd, BitOr, BitXor, Eq, Ne, Lt, Le, Gt, Ge, Minimum, Maximum].contains(&op);
                within.then(|| self.integer_binary(op, DType::I32, a, b))?
            }
            (DType::Bool, &[x]) if op == ScalarOp::Not => self.integer_unary(op, x),
            (DType::Bool, &[a, b]) => match op {
                ScalarOp::BitAnd => self.binary(BinaryInstruction::And, a, b),
                ScalarOp::BitOr => self.binary(BinaryInstruction::Or, a, b),
                ScalarOp::BitXor | ScalarOp::Ne => self.binary(BinaryInstruction::Xor, a, b),
                ScalarOp::Eq => self.binary(BinaryInstruction::EqualInt, a, b),
                _ => None,
            },
            // These apply to every type that registers hold.
            (_, &[mask, yes, no]) if op == ScalarOp::Select => self.blend(mask, yes, no),
            (DType::F32, &[x, y, z]) if op == ScalarOp::Fma => self.fma(x, y, z),
            (_, &[x, low, high]) if op == ScalarOp::Clamp => self.clamp(dtype, x, low, high),
            (DType::F16 | DType::Bf16, _) => self.half_float_operation(op, dtype, args),
            _ => None,
        }
    }

    /// Writes an operation on 16-bit floats: computed in `f32`, and rounded where the result may need more bits.
    fn half_float_operation(&mut self, op: ScalarOp, dtype: DType, args: &[Operand]) -> Option<Reg> {
        use ScalarOp::{Abs, Ceil, Floor, Maximum, Minimum, Neg, Round, Trunc};
        let y = self.scalar_operation(op, DType::F32, args)?;
        let is_exact = [Neg, Abs, Minimum, Maximum, Floor, Ceil, Trunc, Round].contains(&op);
        if is_exact || op.infer_dtype(&vec![dtype; args.len()]) != Ok(dtype) {
            return Some(y);
        }
        let rounded = self.round_to_16_bits(dtype, Operand::Reg(y))?;
        self.free_register(y);
        Some(rounded)
    }

    /// Writes a clamp: `high` where `x` is greater than it, `low` where `x` is less.
    fn clamp(&mut self, dtype: DType, x: Operand, low: Operand, high: Operand) -> Option<Reg> {
        let (x, loaded) = self.ensure_register(x)?;
        let greater = self.scalar_operation(ScalarOp::Gt, dtype, &[Operand::Reg(x), high])?;
        let y = self.blend(Operand::Reg(greater), high, Operand::Reg(x))?;
        self.free_register(greater);
        let less = self.scalar_operation(ScalarOp::Lt, dtype, &[Operand::Reg(x), low])?;
        let z = self.blend(Operand::Reg(less), low, Operand::Reg(y))?;
        [less, y].into_iter().for_each(|r| self.free_register(r));
        self.free_if_loaded(x, loaded);
        Some(z)
    }

    /// Writes a scalar operation on two f32 operands.
    fn float_binary(&mut self, op: ScalarOp, a: Operand, b: Operand) -> Option<Reg> {
        let predicate = match op {
            ScalarOp::Add => return self.binary(BinaryInstruction::Add, a, b),
            ScalarOp::Sub => return self.binary(BinaryInstruction::Sub, a, b),
            ScalarOp::Mul => return self.binary(BinaryInstruction::Mul, a, b),
            ScalarOp::Div => return self.binary(BinaryInstruction::Div, a, b),
            ScalarOp::Minimum => return self.float_min_max(BinaryInstruction::Min, a, b),
            ScalarOp::Maximum => return self.float_min_max(BinaryInstruction::Max, a, b),
            ScalarOp::Lt => Predicate::Less,
            ScalarOp::Le => Predicate::LessEqual,
            ScalarOp::Gt => Predicate::Greater,
            ScalarOp::Ge => Predicate::GreaterEqual,
            ScalarOp::Eq => Predicate::Equal,
            ScalarOp::Ne => Predicate::NotEqual,
            _ => return None,
        };
        self.compare(predicate, a, b)
    }

    /// Writes a minimum or maximum. The instruction returns its second operand if one is NaN or both are zero, so the
    /// results of both orders are combined: of two zeros the one with the sign bit (minimum) or without (maximum); if
    /// one is NaN, all bits are set, or the bits of both.
    fn float_min_max(&mut self, op: BinaryInstruction, a: Operand, b: Operand) -> Option<Reg> {
        let ((a, a_loaded), (b, b_loaded)) = (self.ensure_register(a)?, self.ensure_register(b)?);
        let y = self.binary(op, Operand::Reg(a), Operand::Reg(b))?;
        let z = self.binary(op, Operand::Reg(b), Operand::Reg(a))?;
        self.binary_in_place(
            if op == BinaryInstruction::Min { BinaryInstruction::Or } else { BinaryInstruction::And },
            y,
            Operand::Reg(z),
        );
        self.free_register(z);
        if op == BinaryInstruction::Max {
            let unordered = self.compare(Predicate::Unordered, Operand::Reg(a), Operand::Reg(b))?;
            self.binary_in_place(BinaryInstruction::Or, y, Operand::Reg(unordered));
            self.free_register(unordered);
        }
        self.free_if_loaded(a, a_loaded);
        self.free_if_loaded(b, b_loaded);
        Some(y)
    }

    /// Writes a scalar operation on one f32 operand.
    fn float_unary(&mut self, op: ScalarOp, x: Operand) -> Option<Reg> {
        match op {
            ScalarOp::Neg => self.negated_copy(x),
            ScalarOp::Abs => self.absolute_value(x),
            ScalarOp::Sqrt => self.unary(UnaryInstruction::Sqrt, x),
            ScalarOp::Recip => {
                let one = self.float_constant(1.0);
                self.binary(BinaryInstruction::Div, one, x)
            }
            ScalarOp::Rsqrt => {
                let root = self.unary(UnaryInstruction::Sqrt, x)?;
                let one = self.float_constant(1.0);
                let y = self.binary(BinaryInstruction::Div, one, Operand::Reg(root))?;
                self.free_register(root);
                Some(y)
            }
            ScalarOp::Exp => self.exp(x),
            ScalarOp::Logistic | ScalarOp::Silu => {
                let minus = self.negated_copy(x)?;
                let one = self.float_constant(1.0);
                let y = self.exp(Operand::Reg(minus))?;
                self.free_register(minus);
                self.binary_in_place(BinaryInstruction::Add, y, one);
                let z =
                    self.binary(BinaryInstruction::Div, if op == ScalarOp::Silu { x } else { one }, Operand::Reg(y))?;
                self.free_register(y);
                Some(z)
            }
            ScalarOp::Log => self.log(x),
            ScalarOp::Log1p => self.log1p(x),
            ScalarOp::Softplus => self.softplus(x),
            ScalarOp::Tanh => self.tanh(x),
            ScalarOp::Erf => self.erf(x),
            ScalarOp::Erfc => self.erfc(x),
            ScalarOp::Gelu => self.gelu(x),
            ScalarOp::Floor => self.round(RoundingMode::Down, x),
            ScalarOp::Ceil => self.round(RoundingMode::Up, x),
            ScalarOp::Trunc => self.round(RoundingMode::Zero, x),
            ScalarOp::Round => self.round(RoundingMode::Even, x),
            ScalarOp::ToBits => self.load(x),
            ScalarOp::IsFinite => {
                let size = self.absolute_value(x)?;
                let infinity = self.float_constant(f32::INFINITY);
                self.asm.compare(Predicate::Less, size, size, infinity);
                Some(size)
            }
            ScalarOp::IsNan => {
                let (x, loaded) = self.ensure_register(x)?;
                let y = self.compare(Predicate::Unordered, Operand::Reg(x), Operand::Reg(x))?;
                self.free_if_loaded(x, loaded);
                Some(y)
            }
            _ => None,
        }
    }
}
