//! Writes functions of real numbers, with the formulas and coefficients of `pallas_ir`'s lane functions
//! (`scalar/fast.rs`), so that machine code and strips give the same bits.
use super::asm::{Binary, Fma, Operand, Predicate, Reg, Shift, Unary};
use super::vector::Writer;
use pallas_ir::scalar::fast;
use std::f32::consts::{FRAC_1_SQRT_2, LN_2};

impl Writer {
    /// Writes `exp(x)`, computed as by `pallas_ir`'s lane function, coefficients and all.
    pub(super) fn exp(&mut self, x: Operand) -> Option<Reg> {
        const MAGIC: f32 = 12_582_912.0 + 126.0;
        let x = self.within(x, -87.3, 88.8)?;
        let (log2_e, magic) = (self.number(std::f32::consts::LOG2_E), self.number(MAGIC));
        let shifted = self.fma(Operand::Reg(x), log2_e, magic)?;
        let n = self.binary(Binary::Sub, Operand::Reg(shifted), magic)?;
        // Subtracts n · ln 2 from x, with ln 2 in two parts.
        let (high, low) = (self.number(-0.693_359_4), self.number(2.121_944_4e-4));
        self.asm.fma(Fma::F231, x, n, high);
        self.asm.fma(Fma::F231, x, n, low);
        self.free(n);
        let square = self.binary(Binary::Mul, Operand::Reg(x), Operand::Reg(x))?;
        let p = self.poly(x, &[1.987_569_1e-4, 1.398_199_9e-3])?;
        for pair in [[8.333_452e-3, 4.166_579_6e-2], [0.166_666_65, 0.5]] {
            let lower = self.poly(x, &pair)?;
            self.asm.fma(Fma::F213, p, square, Operand::Reg(lower));
            self.free(lower);
        }
        self.asm.fma(Fma::F213, p, square, Operand::Reg(x));
        self.free(square);
        self.free(x);
        // 2¹²⁸ is no f32, so half of the result is computed and doubled.
        self.asm.shift(Shift::Left, shifted, shifted, 23);
        self.asm.fma(Fma::F213, p, shifted, Operand::Reg(shifted));
        self.free(shifted);
        self.update(Binary::Add, p, Operand::Reg(p));
        Some(p)
    }

    /// Writes `tanh(x)`, computed as by `pallas_ir`'s lane function.
    pub(super) fn tanh(&mut self, x: Operand) -> Option<Reg> {
        self.rational(x, fast::TANH_BOUND, &fast::TANH.0, &fast::TANH.1)
    }
    /// Writes `erf(x)`, computed as by `pallas_ir`'s lane function.
    pub(super) fn erf(&mut self, x: Operand) -> Option<Reg> {
        self.rational(x, 4.0, &fast::ERF.0, &fast::ERF.1)
    }
    /// Writes `x p(x²) / q(x²)` for `x` clamped to ±`bound`; `p` and `q` are coefficients of polynomials.
    fn rational(&mut self, x: Operand, bound: f32, p: &[f32], q: &[f32]) -> Option<Reg> {
        let c = self.within(x, -bound, bound)?;
        let s = self.binary(Binary::Mul, Operand::Reg(c), Operand::Reg(c))?;
        let (p, q) = (self.poly(s, p)?, self.poly(s, q)?);
        self.update(Binary::Div, p, Operand::Reg(q));
        self.update(Binary::Mul, p, Operand::Reg(c));
        [c, s, q].into_iter().for_each(|r| self.free(r));
        Some(p)
    }

    /// Writes the natural logarithm: -inf at 0, NaN below; +inf and NaN stay as they are.
    pub(super) fn log(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.in_register(x)?;
        let y = self.log_positive(x)?;
        let (zero, infinity) = (self.number(0.0), self.number(f32::INFINITY));
        for (predicate, than, otherwise) in
            [(Predicate::Equal, zero, f32::NEG_INFINITY), (Predicate::Less, zero, f32::NAN)]
        {
            let mask = self.compare(predicate, Operand::Reg(x), than)?;
            let otherwise = self.number(otherwise);
            self.asm.blend(y, mask, otherwise, y);
            self.free(mask);
        }
        let finite = self.compare(Predicate::Less, Operand::Reg(x), infinity)?;
        self.asm.blend(y, finite, Operand::Reg(y), x);
        self.free(finite);
        self.release(x, loaded);
        Some(y)
    }

    /// Writes `ln(1 + x)`: the logarithm of the rounded sum, corrected by what rounding lost.
    pub(super) fn log1p(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.in_register(x)?;
        let (zero, one, infinity) = (self.number(0.0), self.number(1.0), self.number(f32::INFINITY));
        let u = self.binary(Binary::Add, Operand::Reg(x), one)?;
        let above = self.binary(Binary::Sub, Operand::Reg(u), one)?;
        let lost = self.binary(Binary::Sub, Operand::Reg(x), Operand::Reg(above))?;
        self.free(above);
        let above = self.binary(Binary::Sub, Operand::Reg(u), Operand::Reg(x))?;
        let other = self.binary(Binary::Sub, one, Operand::Reg(above))?;
        self.free(above);
        let large = self.compare(Predicate::Less, one, Operand::Reg(x))?;
        self.asm.blend(lost, large, Operand::Reg(other), lost);
        [large, other].into_iter().for_each(|r| self.free(r));
        self.release(x, loaded);
        self.update(Binary::Div, lost, Operand::Reg(u));
        for (less, than) in [(zero, Operand::Reg(u)), (Operand::Reg(u), infinity)] {
            let mask = self.compare(Predicate::Less, less, than)?;
            self.update(Binary::And, lost, Operand::Reg(mask));
            self.free(mask);
        }
        let y = self.log(Operand::Reg(u))?;
        self.update(Binary::Add, y, Operand::Reg(lost));
        [u, lost].into_iter().for_each(|r| self.free(r));
        Some(y)
    }

    /// Writes `ln(1 + exp(x))`, computed as by `pallas_ir`'s lane function.
    pub(super) fn softplus(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.in_register(x)?;
        let minus = self.word(1 << 31);
        let below = self.binary(Binary::Or, Operand::Reg(x), minus)?;
        let small = self.exp(Operand::Reg(below))?;
        self.free(below);
        let (zero, one) = (self.number(0.0), self.number(1.0));
        let u = self.binary(Binary::Add, Operand::Reg(small), one)?;
        let above = self.binary(Binary::Sub, Operand::Reg(u), one)?;
        self.update(Binary::Sub, small, Operand::Reg(above));
        self.free(above);
        self.update(Binary::Div, small, Operand::Reg(u));
        let y = self.log_positive(u)?;
        self.update(Binary::Add, y, Operand::Reg(small));
        [u, small].into_iter().for_each(|r| self.free(r));
        let positive = self.binary(Binary::Max, Operand::Reg(x), zero)?;
        self.update(Binary::Add, y, Operand::Reg(positive));
        self.free(positive);
        self.release(x, loaded);
        Some(y)
    }

    /// Writes the natural logarithm of a positive number.
    fn log_positive(&mut self, x: Reg) -> Option<Reg> {
        // x = m·2ⁿ with m in [2/3, 4/3]; subnormals are scaled up first.
        let least = self.number(f32::MIN_POSITIVE);
        let tiny = self.compare(Predicate::Less, Operand::Reg(x), least)?;
        let factor = self.number(8_388_608.0);
        let m = self.binary(Binary::Mul, Operand::Reg(x), factor)?;
        self.asm.blend(m, tiny, Operand::Reg(m), x);
        let (base, exponent) = (self.word(0x3f2a_aaab), self.word(0xff80_0000));
        let n = self.binary(Binary::SubInt, Operand::Reg(m), base)?;
        self.update(Binary::And, n, exponent);
        self.update(Binary::SubInt, m, Operand::Reg(n));
        let one = self.number(1.0);
        self.update(Binary::Sub, m, one);
        self.asm.unary(Unary::IntToFloat, n, Operand::Reg(n));
        let (scale, places) = (self.number(1.0 / 8_388_608.0), self.number(23.0));
        self.update(Binary::Mul, n, scale);
        let less = self.binary(Binary::Sub, Operand::Reg(n), places)?;
        self.asm.blend(n, tiny, Operand::Reg(less), n);
        [less, tiny].into_iter().for_each(|r| self.free(r));

        let s = self.binary(Binary::Mul, Operand::Reg(m), Operand::Reg(m))?;
        let even = self.poly(s, &[-0.130_310_06, -0.121_483_51, -0.166_846_13, -0.249_996_2])?;
        let p = self.poly(s, &[0.140_869_14, 0.139_814_85, 0.200_120_35])?;
        self.asm.fma(Fma::F213, p, m, Operand::Reg(even));
        self.step(p, m, 0.333_331_97);
        self.step(p, m, -0.5);
        self.asm.fma(Fma::F213, p, s, Operand::Reg(m));
        let ln_2 = self.number(LN_2);
        self.asm.fma(Fma::F231, p, n, ln_2);
        [even, s, m, n].into_iter().for_each(|r| self.free(r));
        Some(p)
    }

    /// Writes `erfc(x)`: for `a = |x|`, `exp(-a²)` times a function of `(a - 2) / (a + 2)`.
    pub(super) fn erfc(&mut self, x: Operand) -> Option<Reg> {
        let (x, loaded) = self.in_register(x)?;
        let size = self.size(Operand::Reg(x))?;
        let a = self.within(Operand::Reg(size), 0.0, 11.0)?;
        self.free(size);
        let two = self.number(2.0);
        let q = self.binary(Binary::Sub, Operand::Reg(a), two)?;
        let sum = self.binary(Binary::Add, Operand::Reg(a), two)?;
        self.update(Binary::Div, q, Operand::Reg(sum));
        self.free(sum);
        let p = self.poly(q, &fast::ERFC)?;
        self.free(q);
        let one = self.number(1.0);
        self.update(Binary::Add, p, one);
        let below = self.fma(Operand::Reg(a), two, one)?;
        self.update(Binary::Div, p, Operand::Reg(below));
        self.free(below);
        // The rounding error of the square is corrected by a factor near 1.
        let square = self.binary(Binary::Mul, Operand::Reg(a), Operand::Reg(a))?;
        let minus = self.minus(Operand::Reg(a))?;
        let lost = self.fma(Operand::Reg(minus), Operand::Reg(a), Operand::Reg(square))?;
        [minus, a].into_iter().for_each(|r| self.free(r));
        self.negate(square);
        let e = self.exp(Operand::Reg(square))?;
        self.free(square);
        self.update(Binary::Mul, p, Operand::Reg(e));
        self.free(e);
        self.asm.fma(Fma::F213, lost, p, Operand::Reg(p));
        self.free(p);
        let (zero, two) = (self.number(0.0), self.number(2.0));
        let negative = self.compare(Predicate::Less, Operand::Reg(x), zero)?;
        let other = self.binary(Binary::Sub, two, Operand::Reg(lost))?;
        self.asm.blend(lost, negative, Operand::Reg(other), lost);
        [negative, other].into_iter().for_each(|r| self.free(r));
        self.release(x, loaded);
        Some(lost)
    }

    /// Writes `gelu(x) = x·Φ(x)`, by way of `erfc`.
    pub(super) fn gelu(&mut self, x: Operand) -> Option<Reg> {
        let (half, scale) = (self.number(0.5), self.number(-FRAC_1_SQRT_2));
        let scaled = self.binary(Binary::Mul, x, scale)?;
        let y = self.erfc(Operand::Reg(scaled))?;
        self.free(scaled);
        let halved = self.binary(Binary::Mul, x, half)?;
        self.update(Binary::Mul, y, Operand::Reg(halved));
        self.free(halved);
        Some(y)
    }
}
