//! Block sizes of the shipped kernels: one rule for all kernels and devices.
//!
//! A kernel lists block sizes in order of preference, each with the resources that a program needs for them ([`Need`]).
//! The rule ([`choose`]) takes the first that is within the target's [`Budget`](pallas_rt::Budget), else the last. The
//! list depends on the problem and on limits of the target: where the number of cores is known, it begins with blocks
//! that fit the caches of a core. Rows of [`tuned`], which were measured on a kind of device, override the rule. No
//! other file of this crate names a profile.
use pallas_rt::{Profile, Target};

/// A choice of block sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// Queries and keys of flash attention.
    Attention,
    /// Rows whose gradients a program accumulates, and rows that it iterates over.
    AttentionGradients,
    /// Queries and keys of a block of a splash mask.
    SplashMask,
    /// Keys of decode attention.
    DecodeAttention,
    /// Queries of a work item of paged attention.
    PagedQueries,
    /// Pages per step of paged attention, and parts that a page is divided into.
    PagedKeys,
    /// Rows, columns and depth of a matrix product.
    Matmul,
    /// Rows, columns and depth of a product with quantised weights.
    QuantizedMatmul,
    /// Rows, classes and depth of the cross-entropy's forward pass.
    CrossEntropy,
    /// Rows, classes and depth of its gradient with respect to x.
    CrossEntropyDx,
    /// Rows, classes and depth of its gradient with respect to w.
    CrossEntropyDw,
    /// Elements of a row of an embedding.
    Embedding,
    /// Positions of the rotary embedding.
    Rotary,
    /// Rows of softmax, norms and losses of logits.
    Rows,
}

/// Block sizes that were measured on a kind of device.
fn tuned(choice: Choice, profile: Profile) -> Option<&'static [usize]> {
    match (profile, choice) {
        // On lavapipe. Larger blocks run in half the time and take ten times as long to compile.
        (Profile::SimtCpu, Choice::Attention) => Some(&[8, 64]),
        (Profile::SimtCpu, Choice::AttentionGradients) => Some(&[32, 32]),
        (Profile::SimtCpu, Choice::SplashMask) => Some(&[16, 16]),
        (Profile::SimtCpu, Choice::DecodeAttention) => Some(&[32]),
        (Profile::SimtCpu, Choice::Matmul) => Some(&[8, 64, 64]),
        (Profile::SimtCpu, Choice::QuantizedMatmul) => Some(&[16, 32, 32]),
        (Profile::SimtCpu, Choice::CrossEntropy) => Some(&[8, 64, 32]),
        (Profile::SimtCpu, Choice::CrossEntropyDx) => Some(&[16, 32, 32]),
        (Profile::SimtCpu, Choice::CrossEntropyDw) => Some(&[64, 8, 32]),
        _ => None,
    }
}

/// Resources that a program needs for given block sizes. Fields that do not matter are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Need {
    /// See [`Budget::staged_bytes`](pallas_rt::Budget::staged_bytes).
    pub(crate) staged_bytes: usize,
    /// See [`Budget::live_elements`](pallas_rt::Budget::live_elements).
    pub(crate) live_elements: usize,
    /// Bytes of scratch, which is in workgroup memory on every kind of device.
    pub(crate) scratch_bytes: usize,
}

impl Need {
    /// No requirements: the block sizes fit every device.
    pub(crate) const NOTHING: Need = Need { staged_bytes: 0, live_elements: 0, scratch_bytes: 0 };

    /// Tiles of f32 that threads share.
    pub(crate) fn staged_words(words: usize) -> Need {
        Need { staged_bytes: 4 * words, ..Need::NOTHING }
    }

    /// Tiles that are live at the same time in elementwise code.
    pub(crate) fn live_elements(live_elements: usize) -> Need {
        Need { live_elements, ..Need::NOTHING }
    }

    fn is_within(self, target: &Target) -> bool {
        let budget = target.budget();
        let within = self.staged_bytes as u64 <= budget.staged_bytes && self.live_elements <= budget.live_elements;
        within && self.has_scratch(target)
    }

    fn has_scratch(self, target: &Target) -> bool {
        self.scratch_bytes as u64 <= target.workgroup_bytes
    }
}

/// Returns the tuned block sizes unless their scratch is too large, else the first of `candidates` whose need is within
/// the target's budget, else the last.
pub(crate) fn choose<const N: usize>(
    choice: Choice,
    target: &Target,
    candidates: impl IntoIterator<Item = ([usize; N], Need)>,
) -> [usize; N] {
    let mut tuned = tuned(choice, target.profile);
    let (mut first, mut last) = (None, None);
    for (blocks, need) in candidates {
        tuned = tuned.filter(|row| **row != blocks || need.has_scratch(target));
        first = first.or(need.is_within(target).then_some(blocks));
        last = Some(blocks);
    }
    match tuned {
        Some(row) => row.try_into().expect("a tuned row has an extent for each of the kernel's"),
        None => first.or(last).expect("a kernel lists block sizes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_fits_is_chosen_unless_a_row_is_tuned() {
        let gpu = |kib: u64| Target { workgroup_bytes: kib << 10, ..Target::webgpu() };
        let check = |target: &Target, expected| {
            let need = |words: usize| Need { live_elements: 100 * words, ..Need::staged_words(words) };
            let candidates = [[64, 10_000], [32, 5000], [16, 100]].map(|[keys, words]| ([keys], need(words)));
            assert_eq!(choose(Choice::PagedQueries, target, candidates), [expected], "{target:?}");
        };
        check(&gpu(16), 16);
        check(&gpu(0), 16);
        check(pallas_rt::Client::cpu().target(), 64);
        let staged = |target: &Target| {
            choose(Choice::DecodeAttention, target, [64, 8].map(|keys| ([keys], Need::staged_words(100 * keys))))
        };
        assert_eq!([staged(&gpu(16)), staged(&gpu(32))], [[8], [64]]);
        assert_eq!(staged(&Target { profile: Profile::SimtCpu, ..gpu(16) }), [32], "a tuned row");
        let scratch = |kib: u64| {
            let need = |keys: usize| Need { scratch_bytes: keys << 10, ..Need::NOTHING };
            let target = Target { profile: Profile::SimtCpu, ..gpu(kib) };
            choose(Choice::DecodeAttention, &target, [64, 32, 8].map(|keys| ([keys], need(keys))))
        };
        assert_eq!([scratch(16), scratch(32)], [[8], [32]], "a tuned row, where there is room for its scratch");
    }
}
