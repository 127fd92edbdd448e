//! Finds links of a chain that together rotate bits, which one instruction can do.
use super::super::super::plan::step::{Chain, Input, Link, Operation, Source};
use pallas_ir::{DType, Literal, ScalarOp};

/// A link that computes `x << by | x >> (32 - by)`, and can be replaced by one rotation.
#[derive(Clone, Copy)]
pub(super) struct Rotation {
    pub(super) of: Source,
    pub(super) by: u32,
    /// The two links that shift, whose results nothing else reads.
    pub(super) parts: [usize; 2],
}

/// Returns for each link of a chain the rotation that it computes, if any; `uses` has the number of uses of each link.
pub(super) fn rotations(chain: &Chain, uses: &[usize]) -> Vec<Option<Rotation>> {
    let shift = |source: Source| {
        let Source::Link(at) = source else { return None };
        let link = &chain.links[at];
        let Operation::Scalar(op @ (ScalarOp::Shl | ScalarOp::Shr)) = link.op else { return None };
        let by = constant(chain, link.args[1].0)?.bits as u32;
        let alone = uses[at] == 1 && link.output.is_none() && link.dtype == DType::U32;
        alone.then_some((at, op, link.args[0].0, by))
    };
    let rotation = |link: &Link| {
        let (Operation::Scalar(ScalarOp::BitOr), [a, b]) = (link.op, &link.args[..]) else { return None };
        let (a, b) = (shift(a.0)?, shift(b.0)?);
        let (left, right) = if a.1 == ScalarOp::Shl { (a, b) } else { (b, a) };
        let both = left.1 == ScalarOp::Shl && right.1 == ScalarOp::Shr && left.2 == right.2;
        let whole = (1..32).contains(&left.3) && left.3.checked_add(right.3) == Some(32);
        (both && whole).then_some(Rotation { of: left.2, by: left.3, parts: [left.0, right.0] })
    };
    chain.links.iter().map(rotation).collect()
}

/// Returns the constant that an operand of a link is, if it is one.
pub(super) fn constant(chain: &Chain, source: Source) -> Option<Literal> {
    match source {
        Source::Input(i) => match chain.inputs[i] {
            Input::Constant(x) => Some(x),
            Input::Value(_) => None,
        },
        Source::Link(_) => None,
    }
}
