//! Software pipelining of operands: the requested depth, the actual depth, and the reason.
use super::placed_kernel::{PlacedKernel, PlacementInput};
use crate::target::Target;
use pallas_ir::OperandId;

/// The depth to which an operand is loaded ahead, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PipelinedOperand {
    /// Name of the operand.
    pub name: String,
    /// The depth that the spec requests by `buffered`, if it does.
    pub asked: Option<usize>,
    /// Number of sequential steps whose tiles are in flight at once; 1 if none are loaded ahead.
    pub depth: usize,
    /// Reason for this depth.
    pub why: &'static str,
}

/// Returns how far tiles do not fit: words of tiles moved to global memory, and registers that spill.
pub(super) fn spill_counts(placed: &PlacedKernel, target: &Target) -> (usize, usize) {
    let left = placed.plan.buffers.iter().filter(|b| b.outside && !b.scratch).map(|b| b.words).sum();
    (left, placed.registers.saturating_sub(target.profile.parameters().register_file.0))
}

/// Returns the depths of pipelining to try, deepest first: with a shallower one, more tiles may fit.
pub(super) fn candidate_depths(task: PlacementInput<'_>) -> impl Iterator<Item = usize> + use<> {
    let asked = task.kernel.operands.iter().filter_map(|o| o.buffered).max().map_or(2, |depth| depth.max(2));
    let most = if task.resumed || task.sequential == 0 { 1 } else { task.target.profile.parameters().depth };
    (1..=most.min(asked as usize)).rev()
}

/// Reports the operands that are loaded ahead, and those that were to be but are not.
pub(super) fn report_pipelined_operands(placed: &PlacedKernel, target: &Target) -> Vec<PipelinedOperand> {
    let most = target.profile.parameters().depth;
    let among = |list: &[(OperandId, usize)], i: usize| {
        list.iter().filter(|(id, _)| id.index() == i).map(|(_, depth)| *depth).max().unwrap_or(1)
    };
    let mut found = vec![];
    for (i, operand) in placed.kernel.operands.iter().enumerate() {
        let (depth, wanted) = (among(&placed.fetched, i), among(&placed.wanted, i));
        let asked = operand.buffered.map(|depth| depth as usize);
        let why = match asked {
            _ if depth < wanted => "deeper, its tiles do not fit",
            None if wanted == 1 => continue,
            None => "only products read it",
            Some(asked) if asked == depth => "as asked",
            Some(asked) if asked > most && depth == most => "more hides nothing on this kind of device",
            Some(_) => "none of its loads can move ahead",
        };
        found.push(PipelinedOperand { name: operand.name.clone(), asked, depth, why });
    }
    found
}
