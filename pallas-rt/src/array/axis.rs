//! Axis numbers, which may be negative.
use pallas_ir::{At, Diag};

/// Returns the number of an axis counted from the front; a negative `axis` counts from the end.
///
/// # Errors
/// There is no such axis.
pub(crate) fn canonicalize_axis(axis: isize, rank: usize) -> Result<usize, Diag> {
    let found = if axis < 0 { axis + rank as isize } else { axis };
    usize::try_from(found).ok().filter(|&axis| axis < rank).ok_or_else(|| {
        let message = format!("axis {axis} of an array of rank {rank}");
        Diag::new("axis", At::Op, message, "axes count from 0, or from the end as -1, -2 ..")
    })
}
