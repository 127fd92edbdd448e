//! The result of a collective as data: all that engines, plans and batches have to know of it.
use pallas_ir::ScalarOp;

/// The result of one member of a collective's group, in terms of the operands of all members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CollectiveForm {
    /// An i32 constant of this member; the collective has no operand.
    Constant(i32),
    /// The member's own operand; nothing is communicated.
    Own,
    /// The operand of the group's member with this number; `None`: zeros.
    FromMember(Option<usize>),
    /// A piece of each member's operand, stacked along a new or existing first axis in the order of the members.
    Stack(SentPart),
    /// A piece of each member's operand, combined by this monoid in the order of the members.
    Fold(ScalarOp, SentPart),
}

/// The part of a member's operand that another member receives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SentPart {
    /// All of the sender's operand.
    Whole,
    /// The part of the sender's operand whose index along the first axis is the receiver's number.
    Part,
}

impl CollectiveForm {
    /// Returns true if members of the group send each other data; false if each computes its result alone.
    pub fn communicates(self) -> bool {
        !matches!(self, CollectiveForm::Constant(_) | CollectiveForm::Own)
    }

    /// Returns two bools: true if the operand's first axis has one part for each member; true if the result's first
    /// axis has one part from each member.
    pub fn has_operand_and_result_member_axes(self) -> (bool, bool) {
        match self {
            CollectiveForm::Constant(_)
            | CollectiveForm::Own
            | CollectiveForm::FromMember(_)
            | CollectiveForm::Fold(_, SentPart::Whole) => (false, false),
            CollectiveForm::Fold(_, SentPart::Part) => (true, false),
            CollectiveForm::Stack(piece) => (piece == SentPart::Part, true),
        }
    }
}
