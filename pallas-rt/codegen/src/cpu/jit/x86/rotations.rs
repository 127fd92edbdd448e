//! Finds links of a chain that together rotate bits, which one instruction can do.
use super::super::super::plan::step::{ChainInput, ChainLink, ElementwiseChain, ElementwiseOp, LinkOperand};
use pallas_ir::{DType, Literal, ScalarOp};

/// A link that computes `x << by | x >> (32 - by)`, and can be replaced by one rotation.
#[derive(Clone, Copy)]
pub(super) struct Rotation {
    pub(super) of: LinkOperand,
    pub(super) by: u32,
    /// The two links that shift, whose results nothing else reads.
    pub(super) parts: [usize; 2],
}

/// Returns for each link of a chain the rotation that it computes, if any, given the number of uses of each link.
pub(super) fn find_rotations(chain: &ElementwiseChain, link_use_counts: &[usize]) -> Vec<Option<Rotation>> {
    let shift = |source: LinkOperand| {
        let LinkOperand::Link(at) = source else { return None };
        let link = &chain.links[at];
        let ElementwiseOp::Scalar(op @ (ScalarOp::Shl | ScalarOp::Shr)) = link.op else { return None };
        let by = link_operand_constant(chain, link.args[1].0)?.bits as u32;
        let alone = link_use_counts[at] == 1 && link.output.is_none() && link.dtype == DType::U32;
        alone.then_some((at, op, link.args[0].0, by))
    };
    let rotation = |link: &ChainLink| {
        let (ElementwiseOp::Scalar(ScalarOp::BitOr), [a, b]) = (link.op, &link.args[..]) else { return None };
        let (a, b) = (shift(a.0)?, shift(b.0)?);
        let (left, right) = if a.1 == ScalarOp::Shl { (a, b) } else { (b, a) };
        let both = left.1 == ScalarOp::Shl && right.1 == ScalarOp::Shr && left.2 == right.2;
        let whole = (1..32).contains(&left.3) && left.3.checked_add(right.3) == Some(32);
        (both && whole).then_some(Rotation { of: left.2, by: left.3, parts: [left.0, right.0] })
    };
    chain.links.iter().map(rotation).collect()
}

/// Returns the constant that an operand of a link is, if it is one.
pub(super) fn link_operand_constant(chain: &ElementwiseChain, source: LinkOperand) -> Option<Literal> {
    match source {
        LinkOperand::Input(i) => match chain.inputs[i] {
            ChainInput::Constant(x) => Some(x),
            ChainInput::Value(_) => None,
        },
        LinkOperand::Link(_) => None,
    }
}
