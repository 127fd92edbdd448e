//! Writes operations on signed and unsigned 32-bit integers.
use super::assembler::{BinaryInstruction, Operand, Reg, ShiftKind, UnaryInstruction};
use super::vector::VectorWriter;
use pallas_ir::{DType, ScalarOp};

/// Bits of an integer in a vector register, from which narrower types are widened.
const ELEMENT_BITS: u32 = 32;

impl VectorWriter {
    /// Writes the negation, absolute value or bitwise not of a vector of integers; `None` for other operations.
    pub(super) fn integer_unary(&mut self, op: ScalarOp, x: Operand) -> Option<Reg> {
        match op {
            ScalarOp::Neg => {
                let zero = self.word_constant(0);
                self.binary(BinaryInstruction::SubInt, zero, x)
            }
            ScalarOp::Abs => self.unary(UnaryInstruction::AbsInt, x),
            ScalarOp::Not => {
                let ones = self.word_constant(!0);
                self.binary(BinaryInstruction::Xor, x, ones)
            }
            _ => None,
        }
    }

    /// Writes a scalar operation on two operands of type `dtype`.
    pub(super) fn integer_binary(&mut self, op: ScalarOp, dtype: DType, a: Operand, b: Operand) -> Option<Reg> {
        use ScalarOp::{Add, BitAnd, BitOr, BitXor, Eq, Ge, Gt, Le, Lt, Maximum, Minimum, Mul, Ne, Shl, Shr, Sub};
        let signed = dtype == DType::I32;
        let of_sign = |with, without| if signed { with } else { without };
        let (least, most) = (
            of_sign(BinaryInstruction::MinInt, BinaryInstruction::MinUnsigned),
            of_sign(BinaryInstruction::MaxInt, BinaryInstruction::MaxUnsigned),
        );
        let simple = match op {
            Add => BinaryInstruction::AddInt,
            Sub => BinaryInstruction::SubInt,
            Mul => BinaryInstruction::MulInt,
            BitAnd => BinaryInstruction::And,
            BitOr => BinaryInstruction::Or,
            BitXor => BinaryInstruction::Xor,
            Minimum => least,
            Maximum => most,
            Eq => BinaryInstruction::EqualInt,
            Ne => return self.negated_comparison(BinaryInstruction::EqualInt, a, b),
            Gt if signed => BinaryInstruction::GreaterInt,
            Lt if signed => return self.binary(BinaryInstruction::GreaterInt, b, a),
            Le if signed => return self.negated_comparison(BinaryInstruction::GreaterInt, a, b),
            Ge if signed => return self.negated_comparison(BinaryInstruction::GreaterInt, b, a),
            // There are comparisons for signed elements only: `a >= b` if `a` is the maximum of both.
            Ge => return self.min_max_mask(most, a, b),
            Le => return self.min_max_mask(least, a, b),
            Lt => return self.min_max_mask(most, a, b).map(|mask| self.invert_mask(mask)),
            Gt => return self.min_max_mask(least, a, b).map(|mask| self.invert_mask(mask)),
            // These instructions take shift counts as unsigned numbers; counts beyond the width shift every bit out.
            Shl => BinaryInstruction::ShiftLeft,
            Shr => of_sign(BinaryInstruction::ShiftRightArithmetic, BinaryInstruction::ShiftRight),
            _ => return None,
        };
        self.binary(simple, a, b)
    }

    /// Writes the negation of the comparison `a op b`.
    fn negated_comparison(&mut self, op: BinaryInstruction, a: Operand, b: Operand) -> Option<Reg> {
        let mask = self.binary(op, a, b)?;
        Some(self.invert_mask(mask))
    }
    fn invert_mask(&mut self, mask: Reg) -> Reg {
        let ones = self.word_constant(!0);
        self.binary_in_place(BinaryInstruction::Xor, mask, ones);
        mask
    }
    /// Returns a mask of the elements for which `a` is the minimum, or maximum, of both operands.
    fn min_max_mask(&mut self, op: BinaryInstruction, a: Operand, b: Operand) -> Option<Reg> {
        let extreme = self.binary(op, a, b)?;
        self.binary_in_place(BinaryInstruction::EqualInt, extreme, a);
        Some(extreme)
    }

    /// Writes a shift by a constant; for more bits than the width, only zeros, or copies of the sign, are left.
    pub(super) fn shift(&mut self, op: ScalarOp, dtype: DType, x: Operand, by: u32) -> Option<Reg> {
        let how = match (op, dtype) {
            (ScalarOp::Shl, DType::I32 | DType::U32) => ShiftKind::Left,
            (ScalarOp::Shr, DType::I32 | DType::I8) => ShiftKind::RightArithmetic,
            (ScalarOp::Shr, DType::U32 | DType::U8) => ShiftKind::Right,
            _ => return None,
        };
        let (x, loaded) = self.ensure_register(x)?;
        let y = self.allocate_register()?;
        self.asm.shift(how, y, x, by.min(ELEMENT_BITS) as u8);
        self.free_if_loaded(x, loaded);
        Some(y)
    }
    /// Writes a rotation of each element to the left by a constant number of bits.
    pub(super) fn rotate(&mut self, x: Operand, by: u32) -> Option<Reg> {
        if by.is_multiple_of(8) && !self.beyond.rotates {
            let (bytes, first) = ((by / 8) as u8, |i: u8| i & !3);
            let from: [u8; 16] = std::array::from_fn(|i| first(i as u8) + (i as u8 + 4 - bytes) % 4);
            let words: [u32; 16] = std::array::from_fn(|i| {
                let (chunks, _) = from.as_chunks::<4>();
                u32::from_le_bytes(chunks[i % 4])
            });
            let order = self.constants.add_vector(words);
            return self.binary(BinaryInstruction::ShuffleBytes, x, Operand::Mem(order));
        }
        let (x, loaded) = self.ensure_register(x)?;
        let y = self.allocate_register()?;
        if self.beyond.rotates {
            self.asm.rotate(y, x, by as u8);
        } else {
            let low = self.allocate_register()?;
            self.asm.shift(ShiftKind::Left, y, x, by as u8);
            self.asm.shift(ShiftKind::Right, low, x, (ELEMENT_BITS - by) as u8);
            self.binary_in_place(BinaryInstruction::Or, y, Operand::Reg(low));
            self.free_register(low);
        }
        self.free_if_loaded(x, loaded);
        Some(y)
    }
}
