//! The result of a collective as data: all that engines, plans and batches have to know of it.
use pallas_ir::ScalarOp;

/// The result of one member of a collective's group, in terms of the operands of all members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// An i32 constant of this member; the collective has no operand.
    Constant(i32),
    /// The member's own operand; nothing is communicated.
    Own,
    /// The operand of the group's member with this number; `None`: zeros.
    FromMember(Option<usize>),
    /// A piece of each member's operand, stacked along a new or existing first axis in the order of the members.
    Stack(Piece),
    /// A piece of each member's operand, combined by this monoid in the order of the members.
    Fold(ScalarOp, Piece),
}

/// The part of a member's operand that another member receives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Piece {
    /// All of the sender's operand.
    Whole,
    /// The part of the sender's operand whose index along the first axis is the receiver's number.
    Part,
}

impl Form {
    /// Returns true if members of the group send each other data; false if each computes its result alone.
    pub fn communicates(self) -> bool {
        !matches!(self, Form::Constant(_) | Form::Own)
    }

    /// Returns two bools: true if the operand's first axis has one part for each member; true if the result's first
    /// axis has one part from each member.
    pub fn has_member_axes(self) -> (bool, bool) {
        match self {
            Form::Constant(_) | Form::Own | Form::FromMember(_) | Form::Fold(_, Piece::Whole) => (false, false),
            Form::Fold(_, Piece::Part) => (true, false),
            Form::Stack(piece) => (piece == Piece::Part, true),
        }
    }
}
