//! Writes functions of real numbers, with the formulas and coefficients of `pallas_ir`'s lane functions
//! (`scalar/fast_math.rs`), so that machine code and strips give the same bits.
use super::assembler::{BinaryInstruction, FmaForm, Operand, Predicate, Reg, ShiftKind, UnaryInstruction};
use super::vector::VectorWriter;
use pallas_ir::scalar::fast_math;
use std::f32::consts::{FRAC_1_SQRT_2, LN_2};

impl VectorWriter {
    /// Writes `exp(x)`, computed as by `pallas_ir`'s lane function, coefficients and all.
    pub(super) fn exp(&mut self, x: Operand) -> Option<Reg> {
        const ROUNDING_MAGIC: f32 = 12_582_912.0 + 126.0;
        let x = self.clamp_to_range(x, -87.3, 88.8)?;
        let (log2_e, magic) = (self.float_constant(std::f32::consts::LOG2_E), self.float_constant(ROUNDING_MAGIC));
        let shifted = self.fma(Operand::Reg(x), log2_e, magic)?;
        let n = self.binary(BinaryInstruction::Sub, Operand::Reg(shifted), magic)?;
        // Subtracts n · ln 2 from x, with ln 2 in two parts.
        let (high, low) = (self.float_constant(-0.693_359_4), self.float_constant(2.121_944_4e-4));
        self.asm.fma(FmaForm::F231, x, n, high);
        self.asm.fma(FmaForm::F231, x, n, low);
        self.free_register(n);
        let square = self.binary(BinaryInstruction::Mul, Operand::Reg(x), Operand::Reg(x))?;
        let p = self.polynomial(x, &[1.987_569_1e-4, 1.398_199_9e-3])?;
        for pair in [[8.333_452e-3, 4.166_579_6e-2], [0.166_666_65, 0.5]] {
            let lower = self.polynomial(x, &pair)?;
            self.asm.fma(FmaForm::F213, p, square, Operand::Reg(lower));
            self.free_register(lower);
        }
        self.asm.fma(FmaForm::F213, p, square, Operand::Reg(x));
        self.free_register(square);
        self.free_register(x);
        // 2¹²⁸ is no f32, so half of the result is computed and doubled.
        self.asm.shift(ShiftKind::Left, shifted, shifted, 23);
        self.asm.fma(FmaForm::F213, p, shifted, Operand::Reg(shifted));
        self.free_register(shifted);
        self.binary_in_place(BinaryInstruction::Add, p, Operand::Reg(p));
        Some(p)
    }

    /// Writes `tanh(x)`, computed as by `pallas_ir`'s lane function.
    pub(super) fn tanh(&mut self, x: Operand) -> Option<Reg> {
        self.odd_rational_function(
            x,
            fast_math::TANH_SATURATION_BOUND,
            &fast_math::TANH_COEFFICIENTS.0,
            &fast_math::TANH_COEFFICIENTS.1,
        )
    }
    /// Writes `erf(x)`, computed as by `pallas_ir`'s lane function.
    pub(super) fn erf(&mut self, x: Operand) -> Option<Reg> {
        self.odd_rational_function(x, 4.0, &fast_math::ERF_COEFFICIENTS.0, &fast_math::ERF_COEFFICIENTS.1)
    }
    /// Writes `x p(x²) / q(x²)` for `x` clamped to ±`bound`; `p` and `q` are coefficients of polynomials.
    fn odd_rational_function(&mut self, x: Operand, bound: f32, p: &[f32], q: &[f32]) -> Option<Reg> {
        let c = self.clamp_to_range(x, -bound, bound)?;
        let s = self.binary(BinaryInstruction::Mul, Operand::Reg(c), Operand::Reg(c))?;
        let (p, q) = (self.polynomial(s, p)?, self.polynomial(s, q)?);
        self.binary_in_place(BinaryInstruction::Div, p, Operand::Reg(q));
        self.binary_in_place(BinaryInstruction::Mul, p, Operand::Reg(c));
        [c, s, q].into_iter().for_each(|r| self.free_register(r));
        Some(p)
    }

    /// Writes the natural logarithm: -inf at 0, NaN below; +inf and NaN stay as they are.
    pub(super) fn log(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.ensure_register(x)?;
        let y = self.log_positive(x)?;
        let (zero, infinity) = (self.float_constant(0.0), self.float_constant(f32::INFINITY));
        for (predicate, than, otherwise) in
            [(Predicate::Equal, zero, f32::NEG_INFINITY), (Predicate::Less, zero, f32::NAN)]
        {
            let mask = self.compare(predicate, Operand::Reg(x), than)?;
            let otherwise = self.float_constant(otherwise);
            self.asm.blend(y, mask, otherwise, y);
            self.free_register(mask);
        }
        let finite = self.compare(Predicate::Less, Operand::Reg(x), infinity)?;
        self.asm.blend(y, finite, Operand::Reg(y), x);
        self.free_register(finite);
        self.free_if_loaded(x, loaded);
        Some(y)
    }

    /// Writes `ln(1 + x)`: the logarithm of the rounded sum, corrected by what rounding lost.
    pub(super) fn log1p(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.ensure_register(x)?;
        let (zero, one, infinity) =
            (self.float_constant(0.0), self.float_constant(1.0), self.float_constant(f32::INFINITY));
        let u = self.binary(BinaryInstruction::Add, Operand::Reg(x), one)?;
        let above = self.binary(BinaryInstruction::Sub, Operand::Reg(u), one)?;
        let lost = self.binary(BinaryInstruction::Sub, Operand::Reg(x), Operand::Reg(above))?;
        self.free_register(above);
        let above = self.binary(BinaryInstruction::Sub, Operand::Reg(u), Operand::Reg(x))?;
        let other = self.binary(BinaryInstruction::Sub, one, Operand::Reg(above))?;
        self.free_register(above);
        let large = self.compare(Predicate::Less, one, Operand::Reg(x))?;
        self.asm.blend(lost, large, Operand::Reg(other), lost);
        [large, other].into_iter().for_each(|r| self.free_register(r));
        self.free_if_loaded(x, loaded);
        self.binary_in_place(BinaryInstruction::Div, lost, Operand::Reg(u));
        for (less, than) in [(zero, Operand::Reg(u)), (Operand::Reg(u), infinity)] {
            let mask = self.compare(Predicate::Less, less, than)?;
            self.binary_in_place(BinaryInstruction::And, lost, Operand::Reg(mask));
            self.free_register(mask);
        }
        let y = self.log(Operand::Reg(u))?;
        self.binary_in_place(BinaryInstruction::Add, y, Operand::Reg(lost));
        [u, lost].into_iter().for_each(|r| self.free_register(r));
        Some(y)
    }

    /// Writes `ln(1 + exp(x))`, computed as by `pallas_ir`'s lane function.
    pub(super) fn softplus(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.ensure_register(x)?;
        let minus = self.word_constant(1 << 31);
        let below = self.binary(BinaryInstruction::Or, Operand::Reg(x), minus)?;
        let small = self.exp(Operand::Reg(below))?;
        self.free_register(below);
        let (zero, one) = (self.float_constant(0.0), self.float_constant(1.0));
        let u = self.binary(BinaryInstruction::Add, Operand::Reg(small), one)?;
        let above = self.binary(BinaryInstruction::Sub, Operand::Reg(u), one)?;
        self.binary_in_place(BinaryInstruction::Sub, small, Operand::Reg(above));
        self.free_register(above);
        self.binary_in_place(BinaryInstruction::Div, small, Operand::Reg(u));
        let y = self.log_positive(u)?;
        self.binary_in_place(BinaryInstruction::Add, y, Operand::Reg(small));
        [u, small].into_iter().for_each(|r| self.free_register(r));
        let positive = self.binary(BinaryInstruction::Max, Operand::Reg(x), zero)?;
        self.binary_in_place(BinaryInstruction::Add, y, Operand::Reg(positive));
        self.free_register(positive);
        self.free_if_loaded(x, loaded);
        Some(y)
    }

    /// Writes the natural logarithm of a positive number.
    fn log_positive(&mut self, x: Reg) -> Option<Reg> {
        // x = m·2ⁿ with m in [2/3, 4/3]; subnormals are scaled up first.
        let least = self.float_constant(f32::MIN_POSITIVE);
        let tiny = self.compare(Predicate::Less, Operand::Reg(x), least)?;
        let factor = self.float_constant(8_388_608.0);
        let m = self.binary(BinaryInstruction::Mul, Operand::Reg(x), factor)?;
        self.asm.blend(m, tiny, Operand::Reg(m), x);
        let (base, exponent) = (self.word_constant(0x3f2a_aaab), self.word_constant(0xff80_0000));
        let n = self.binary(BinaryInstruction::SubInt, Operand::Reg(m), base)?;
        self.binary_in_place(BinaryInstruction::And, n, exponent);
        self.binary_in_place(BinaryInstruction::SubInt, m, Operand::Reg(n));
        let one = self.float_constant(1.0);
        self.binary_in_place(BinaryInstruction::Sub, m, one);
        self.asm.unary(UnaryInstruction::IntToFloat, n, Operand::Reg(n));
        let (scale, places) = (self.float_constant(1.0 / 8_388_608.0), self.float_constant(23.0));
        self.binary_in_place(BinaryInstruction::Mul, n, scale);
        let less = self.binary(BinaryInstruction::Sub, Operand::Reg(n), places)?;
        self.asm.blend(n, tiny, Operand::Reg(less), n);
        [less, tiny].into_iter().for_each(|r| self.free_register(r));

        let s = self.binary(BinaryInstruction::Mul, Operand::Reg(m), Operand::Reg(m))?;
        let even = self.polynomial(s, &[-0.130_310_06, -0.121_483_51, -0.166_846_13, -0.249_996_2])?;
        let p = self.polynomial(s, &[0.140_869_14, 0.139_814_85, 0.200_120_35])?;
        self.asm.fma(FmaForm::F213, p, m, Operand::Reg(even));
        self.polynomial_step(p, m, 0.333_331_97);
        self.polynomial_step(p, m, -0.5);
        self.asm.fma(FmaForm::F213, p, s, Operand::Reg(m));
        let ln_2 = self.float_constant(LN_2);
        self.asm.fma(FmaForm::F231, p, n, ln_2);
        [even, s, m, n].into_iter().for_each(|r| self.free_register(r));
        Some(p)
    }

    /// Writes `erfc(x)`: for `a = |x|`, `exp(-a²)` times a function of `(a - 2) / (a + 2)`.
    pub(super) fn erfc(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.ensure_register(x)?;
        let size = self.absolute_value(Operand::Reg(x))?;
        let a = self.clamp_to_range(Operand::Reg(size), 0.0, 11.0)?;
        self.free_register(size);
        let two = self.float_constant(2.0);
        let q = self.binary(BinaryInstruction::Sub, Operand::Reg(a), two)?;
        let sum = self.binary(BinaryInstruction::Add, Operand::Reg(a), two)?;
        self.binary_in_place(BinaryInstruction::Div, q, Operand::Reg(sum));
        self.free_register(sum);
        let p = self.polynomial(q, &fast_math::ERFC_COEFFICIENTS)?;
        self.free_register(q);
        let one = self.float_constant(1.0);
        self.binary_in_place(BinaryInstruction::Add, p, one);
        let below = self.fma(Operand::Reg(a), two, one)?;
        self.binary_in_place(BinaryInstruction::Div, p, Operand::Reg(below));
        self.free_register(below);
        // The rounding error of the square is corrected by a factor near 1.
        let square = self.binary(BinaryInstruction::Mul, Operand::Reg(a), Operand::Reg(a))?;
        let minus = self.negated_copy(Operand::Reg(a))?;
        let lost = self.fma(Operand::Reg(minus), Operand::Reg(a), Operand::Reg(square))?;
        [minus, a].into_iter().for_each(|r| self.free_register(r));
        self.negate_in_place(square);
        let e = self.exp(Operand::Reg(square))?;
        self.free_register(square);
        self.binary_in_place(BinaryInstruction::Mul, p, Operand::Reg(e));
        self.free_register(e);
        self.asm.fma(FmaForm::F213, lost, p, Operand::Reg(p));
        self.free_register(p);
        let (zero, two) = (self.float_constant(0.0), self.float_constant(2.0));
        let negative = self.compare(Predicate::Less, Operand::Reg(x), zero)?;
        let other = self.binary(BinaryInstruction::Sub, two, Operand::Reg(lost))?;
        self.asm.blend(lost, negative, Operand::Reg(other), lost);
        [negative, other].into_iter().for_each(|r| self.free_register(r));
        self.free_if_loaded(x, loaded);
        Some(lost)
    }

    /// Writes `gelu(x) = x·Φ(x)`, by way of `erfc`.
    pub(super) fn gelu(&mut self, x: Operand) -> Option<Reg> {
        let (half, scale) = (self.float_constant(0.5), self.float_constant(-FRAC_1_SQRT_2));
        let scaled = self.binary(BinaryInstruction::Mul, x, scale)?;
        let y = self.erfc(Operand::Reg(scaled))?;
        self.free_register(scaled);
        let halved = self.binary(BinaryInstruction::Mul, x, half)?;
        self.binary_in_place(BinaryInstruction::Mul, y, Operand::Reg(halved));
        self.free_register(halved);
        Some(y)
    }
}
