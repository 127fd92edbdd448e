//! Both gradients of the cross-entropy in one pass: three products instead of four, for processors with few threads and
//! much memory.
//!
//! A program has a part of the classes. A block of them stays while all rows stream past. Its sums of the gradient by x
//! form an array of all rows, so that logits and their gradients are computed once:
//!
//! ```text
//! for each block j of the part's classes, block i of rows:     g = gradient of logits x_i w_jᵀ
//!     dw_j += gᵀ x_i        dx_i += g w_j                      at the end: dx = Σ_parts dx
//! ```
//! The formulas are those of [`crate::cross_entropy`]. Sums have one order: gradients are the same every time.
use crate::cross_entropy_rows::{LossOptions, LossResiduals};
use crate::element::Floating;
use pallas_rt::launch::launch_parts;
use pallas_rt::prelude::*;

/// Computes both gradients; those by x as a sum for each of `P` parts of the classes, which have `S` blocks. `R` is the
/// number of rows rounded up to whole blocks.
#[kernel(grid = (P, S, cdiv(N, BN)), semantics = (parallel, arbitrary, arbitrary))]
pub fn cross_entropy_resident<E: Floating>(
    #[block([N, D] => [BN, D], |_, _, i| (i, 0), fill = 0.0)] x: In<E>,
    #[block([V, D] => [BV, D], |p, s, _| (p * S + s, 0), fill = 0.0)] w: In<E>,
    #[block([N, 1] => [BN, 1], |_, _, i| (i, 0), fill = 0)] labels: In<i32>,
    #[block([N, 1] => [BN, 1], |_, _, i| (i, 0), fill = 0.0)] lse: In<E::Acc>,
    #[block([N, 1] => [BN, 1], |_, _, i| (i, 0), fill = 0.0)] dloss: In<E::Acc>,
    #[block([P, R, D] => [_, R, D], |p, _, _| (p, 0, 0))] dxs: Out<E::Acc>,
    #[block([V, D] => [BV, D], |p, s, _| (p * S + s, 0))] dw: Out<E::Acc>,
    ignore: i32,
    smoothing: f32,
    z_loss: f32,
    #[dim] P: usize,
    #[dim] S: usize,
    #[dim] BN: usize,
    #[dim] BV: usize,
    #[dim] R: usize,
) {
    let (block, i) = (program_id(0) * S + program_id(1), program_id(2));
    if program_id(1) == 0 && i == 0 {
        dxs.fill(0.0);
    }
    // Parts may have more steps than there are blocks.
    if block < cdiv(V, BV) {
        if i == 0 {
            dw.fill(0.0);
        }
        let (x, w) = (x.load().cast::<E::Acc>(), w.load().cast::<E::Acc>());
        let row = LossResiduals { labels: labels.load(), lse: lse.load(), dloss: dloss.load() };
        let g = row.logits_gradient(dot(x, w.t()), block * BV, V, LossOptions::new(ignore, [smoothing, z_loss], true));
        dw.store(dw.load() + dot(g.t(), x));
        let dx = dxs.at((ds(i * BN, BN), ..));
        dx.store(dx.load() + dot(g, w));
    }
}

/// Sums the gradient by x over parts, and converts it to its type.
#[kernel(grid = (cdiv(N, BN)))]
pub fn cross_entropy_dx_of_parts<E: Floating>(
    #[block([P, R, D] => [P, BN, D], |i| (0, i, 0))] dxs: In<E::Acc>,
    #[block([N, D] => [BN, D], |i| (i, 0))] dx: Out<E>,
    #[dim] N: usize,
    #[dim] BN: usize,
) {
    dx.store(dxs.load().sum(0).reshape([BN, D]).cast::<E>());
}

/// Maximum number of bytes of the sums of the gradient by x; if they are larger, two kernels compute the gradients
/// separately.
const MAX_RESIDENT_BYTES: usize = 64 << 20;

/// Numbers of parts of the classes, one for each core, and of blocks per part, for `blocks` blocks of classes. `None`
/// if separate kernels should compute the gradients: sums for all parts are too large, the parts are so uneven that
/// four evenly spread products are faster than three, devices of a mesh divide the work, or the number of cores is
/// unknown (GPUs).
pub(crate) fn split_classes(x: &Array, blocks: usize) -> Option<[usize; 2]> {
    let parts = x.client().target().cores?.min(blocks).max(1);
    let steps = blocks.div_ceil(parts);
    let is_little = (parts * x.len()).saturating_mul(size_of::<f32>()) <= MAX_RESIDENT_BYTES;
    (is_little && !x.is_empty() && launch_parts() == 1 && 3 * parts * steps <= 4 * blocks).then_some([parts, steps])
}
