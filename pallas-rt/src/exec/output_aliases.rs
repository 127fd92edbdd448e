//! The selection of outputs that take over the memory of donated inputs: those that [`may_share_memory`] allows.
use crate::array::Array;
use pallas_ir::{Kernel, OperandId, OperandKind, may_share_memory};

/// Pairs of an output and the donated input whose memory it may take over; `arrays` has the array of each operand, and
/// true if it is donated.
pub(super) fn find_donation_pairs(
    kernel: &Kernel,
    arrays: &mut [Option<(Array, bool)>],
) -> Vec<(OperandId, OperandId)> {
    let free = |a: &mut Option<(Array, bool)>| {
        a.as_mut().is_some_and(|(a, d)| *d && matches!(a.exclusive_buffer_mut(), Ok(Some(_))))
    };
    let mut donated: Vec<OperandId> =
        (0..).map(OperandId).zip(arrays).filter_map(|(id, a)| free(a).then_some(id)).collect();
    // An input that an output aliases already is not available.
    donated.retain(|&id| kernel.memory_of(id) == id);
    let mut pairs = vec![];
    for (out, operand) in (0..).map(OperandId).zip(&kernel.operands) {
        if !matches!(operand.kind, OperandKind::Output { alias: None, .. }) {
            continue;
        }
        if let Some(at) = donated.iter().position(|&x| may_share_memory(kernel, x, out)) {
            pairs.push((out, donated.remove(at)));
        }
    }
    pairs
}
