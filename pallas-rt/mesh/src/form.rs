//! What a device gets in an exchange: all that engines, plans and batches have to know of a collective.
use pallas_ir::ScalarOp;

/// The result of one member of a group, from the operands of all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// A number; there is no operand.
    Number(i32),
    /// Its own operand: nothing is exchanged.
    Own,
    /// The operand of the member with this number; zeros if there is none.
    One(Option<usize>),
    /// A piece of each member, along a first axis.
    Stack(Piece),
    /// A piece of each member, combined by a monoid in the order of their numbers.
    Fold(ScalarOp, Piece),
}

/// The piece that a member gives to another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Piece {
    /// Its operand.
    Whole,
    /// The part of its operand that has the receiver's number along the first axis.
    Part,
}

impl Form {
    /// Returns true if devices exchange something.
    pub fn communicates(self) -> bool {
        !matches!(self, Form::Number(_) | Form::Own)
    }

    /// Returns true if the operand has a first axis of parts for the members, and if the result has one of parts from them.
    pub fn parts(self) -> (bool, bool) {
        match self {
            Form::Number(_) | Form::Own | Form::One(_) | Form::Fold(_, Piece::Whole) => (false, false),
            Form::Fold(_, Piece::Part) => (true, false),
            Form::Stack(piece) => (piece == Piece::Part, true),
        }
    }
}
