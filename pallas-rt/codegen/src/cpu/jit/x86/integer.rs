//! Integers of 32 bits, with and without sign.
use super::asm::{Binary, Operand, Reg, Shift, Unary};
use super::vector::Writer;
use pallas_ir::{DType, ScalarOp};

/// Bits of an element.
const WIDTH: u32 = 32;

impl Writer {
    /// An operation of the table on one operand.
    pub(super) fn integer_unary(&mut self, op: ScalarOp, x: Operand) -> Option<Reg> {
        match op {
            ScalarOp::Neg => {
                let zero = self.word(0);
                self.binary(Binary::SubInt, zero, x)
            }
            ScalarOp::Abs => self.unary(Unary::AbsInt, x),
            ScalarOp::Not => {
                let ones = self.word(!0);
                self.binary(Binary::Xor, x, ones)
            }
            _ => None,
        }
    }

    /// An operation of the table on two operands.
    pub(super) fn integer_binary(&mut self, op: ScalarOp, dtype: DType, a: Operand, b: Operand) -> Option<Reg> {
        use ScalarOp::{Add, BitAnd, BitOr, BitXor, Eq, Ge, Gt, Le, Lt, Maximum, Minimum, Mul, Ne, Shl, Shr, Sub};
        let signed = dtype == DType::I32;
        let of_sign = |with, without| if signed { with } else { without };
        let (least, most) = (of_sign(Binary::MinInt, Binary::Least), of_sign(Binary::MaxInt, Binary::Most));
        let simple = match op {
            Add => Binary::AddInt,
            Sub => Binary::SubInt,
            Mul => Binary::MulInt,
            BitAnd => Binary::And,
            BitOr => Binary::Or,
            BitXor => Binary::Xor,
            Minimum => least,
            Maximum => most,
            Eq => Binary::EqualInt,
            Ne => return self.not_so(Binary::EqualInt, a, b),
            Gt if signed => Binary::GreaterInt,
            Lt if signed => return self.binary(Binary::GreaterInt, b, a),
            Le if signed => return self.not_so(Binary::GreaterInt, a, b),
            Ge if signed => return self.not_so(Binary::GreaterInt, b, a),
            // Comparisons know signed elements alone: a >= b where a is the greater of both.
            Ge => return self.is_extreme(most, a, b),
            Le => return self.is_extreme(least, a, b),
            Lt => return self.is_extreme(most, a, b).map(|mask| self.inverted(mask)),
            Gt => return self.is_extreme(least, a, b).map(|mask| self.inverted(mask)),
            // These instructions take distances as numbers without sign, and shift every bit out for those beyond the width.
            Shl => Binary::ShiftLeft,
            Shr => of_sign(Binary::ShiftSign, Binary::ShiftRight),
            _ => return None,
        };
        self.binary(simple, a, b)
    }

    /// Not `a op b`, of a comparison.
    fn not_so(&mut self, op: Binary, a: Operand, b: Operand) -> Option<Reg> {
        let mask = self.binary(op, a, b)?;
        Some(self.inverted(mask))
    }
    fn inverted(&mut self, mask: Reg) -> Reg {
        let ones = self.word(!0);
        self.update(Binary::Xor, mask, ones);
        mask
    }
    /// Returns a mask of the elements for which `a` is the minimum, or maximum, of both.
    fn is_extreme(&mut self, op: Binary, a: Operand, b: Operand) -> Option<Reg> {
        let extreme = self.binary(op, a, b)?;
        self.update(Binary::EqualInt, extreme, a);
        Some(extreme)
    }

    /// Shifts by a number of bits; nothing but zeros, or signs, is left for more than the width.
    pub(super) fn shift(&mut self, op: ScalarOp, dtype: DType, x: Operand, by: u32) -> Option<Reg> {
        let how = match (op, dtype) {
            (ScalarOp::Shl, DType::I32 | DType::U32) => Shift::Left,
            (ScalarOp::Shr, DType::I32 | DType::I8) => Shift::Sign,
            (ScalarOp::Shr, DType::U32 | DType::U8) => Shift::Right,
            _ => return None,
        };
        let (x, loaded) = self.in_register(x)?;
        let y = self.take()?;
        self.asm.shift(how, y, x, by.min(WIDTH) as u8);
        self.release(x, loaded);
        Some(y)
    }
    /// Bits to the left by so many, and in again from the right.
    pub(super) fn rotate(&mut self, x: Operand, by: u32) -> Option<Reg> {
        if by.is_multiple_of(8) && !self.beyond.rotates {
            let (bytes, first) = ((by / 8) as u8, |i: u8| i & !3);
            let from: [u8; 16] = std::array::from_fn(|i| first(i as u8) + (i as u8 + 4 - bytes) % 4);
            let words: [u32; 16] = std::array::from_fn(|i| {
                let (chunks, _) = from.as_chunks::<4>();
                u32::from_le_bytes(chunks[i % 4])
            });
            let order = self.constants.vector(words);
            return self.binary(Binary::ShuffleBytes, x, Operand::Mem(order));
        }
        let (x, loaded) = self.in_register(x)?;
        let y = self.take()?;
        if self.beyond.rotates {
            self.asm.rotate(y, x, by as u8);
        } else {
            let low = self.take()?;
            self.asm.shift(Shift::Left, y, x, by as u8);
            self.asm.shift(Shift::Right, low, x, (WIDTH - by) as u8);
            self.update(Binary::Or, y, Operand::Reg(low));
            self.free(low);
        }
        self.release(x, loaded);
        Some(y)
    }
}
