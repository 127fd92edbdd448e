//! Block sizes of the shipped kernels: one rule for all kernels and devices.
//!
//! A kernel lists block sizes in order of preference, each with the resources that a program needs for them
//! ([`BlockResources`]). The rule ([`choose_block_sizes`]) takes the first that is within the target's
//! [`ProgramBudget`](pallas_rt::shader::ProgramBudget), else the last. The list depends on the problem and on limits of
//! the target: where the number of cores is known, it begins with blocks that fit the caches of a core. Rows of
//! [`tuned_block_sizes`], which were measured on a kind of device, override the rule. No other file of this crate names
//! a profile.
//!
//! Where operations on arrays are faster than a kernel, a shipped function is made of them by one rule, in
//! `kernels/src/composed_ops.rs`: on the CPU, in traced functions that no mesh divides, for attention of few positions,
//! losses of few logits, norms of few elements, rotary embedding, softmax of long rows and rows of a table; and, where
//! a gradient is asked for, for attention in which each head has a bias of its own, whose probabilities then stay in
//! memory (`Differentiable::begin_forward`). The bench `plain` compares both.
//!
//! Block sizes of shipped kernels follow from the target by one rule, `choose_block_sizes` in
//! `kernels/src/block_sizes.rs`: a kernel lists block sizes in order of preference, each with the workgroup memory and
//! the live elements that a program needs for them; the first that is within the target's budget is taken, else the
//! last. On targets whose number of cores is known (the CPU) the list begins with blocks for a core's caches. There no
//! block is larger than its axis: an axis is divided into as few equal blocks as the listed size allows
//! (`equal_block_size`), short rows are taken many at a time (`choose_block_rows`), and attention of at most 128
//! positions is one block a head (`flash_attention_whole`), since a program computes all of its block, also what is
//! outside of the array. Axes that meshes divide keep eight blocks, and in a function on a mesh each device has whole
//! ones (`mesh_block_size`). Rows of `tuned_block_sizes` in that file, which were measured on a kind of device,
//! override the rule. No kernel names a profile.
use pallas_rt::Target;
use pallas_rt::launch::launch_parts;
use pallas_rt::shader::Profile;

/// Key under which [`choose_block_sizes`] finds tuned block sizes: a kernel, or the sizes of a kernel that are chosen
/// together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockSizeKey {
    /// Numbers of queries and keys of a block of flash attention.
    Attention,
    /// Rows whose gradients a program accumulates, and rows that it iterates over, in attention's backward pass.
    AttentionGradients,
    /// Numbers of queries and keys of a block of a splash mask.
    SplashMask,
    /// Number of keys of a block of decode attention.
    DecodeAttention,
    /// Number of queries of a work item of paged attention.
    PagedQueries,
    /// Number of pages per step of paged attention, and of parts that a page is divided into.
    PagedKeys,
    /// Rows, columns and depth of blocks of a matrix product.
    Matmul,
    /// Rows, columns and depth of blocks of a product with quantised weights.
    QuantizedMatmul,
    /// Rows, classes and depth of blocks of the cross-entropy's forward pass.
    CrossEntropy,
    /// Rows, classes and depth of the cross-entropy's gradient by x.
    CrossEntropyDx,
    /// Rows, classes and depth of the cross-entropy's gradient by w.
    CrossEntropyDw,
    /// Number of elements of a block of a gated linear unit.
    Gated,
    /// Number of elements of a table's row that a program of an embedding copies.
    Embedding,
    /// Number of rows of a block of an embedding.
    EmbeddingRows,
    /// Number of positions of a block of the rotary embedding.
    Rotary,
    /// Number of rows of a block of softmax, norms and losses of logits.
    Rows,
}

/// Block sizes that were chosen by measurement for this key on this kind of device; `None` if there are none, so that
/// [`choose_block_sizes`] follows its rule.
fn tuned_block_sizes(key: BlockSizeKey, profile: Profile) -> Option<&'static [usize]> {
    match (profile, key) {
        // On lavapipe. Larger blocks run in half the time and take ten times as long to compile.
        (Profile::SimtCpu, BlockSizeKey::Attention) => Some(&[8, 64]),
        (Profile::SimtCpu, BlockSizeKey::AttentionGradients) => Some(&[32, 32]),
        (Profile::SimtCpu, BlockSizeKey::SplashMask) => Some(&[16, 16]),
        (Profile::SimtCpu, BlockSizeKey::DecodeAttention) => Some(&[32]),
        (Profile::SimtCpu, BlockSizeKey::Matmul) => Some(&[8, 64, 64]),
        (Profile::SimtCpu, BlockSizeKey::QuantizedMatmul) => Some(&[16, 32, 32]),
        (Profile::SimtCpu, BlockSizeKey::CrossEntropy) => Some(&[8, 64, 32]),
        (Profile::SimtCpu, BlockSizeKey::CrossEntropyDx) => Some(&[16, 32, 32]),
        (Profile::SimtCpu, BlockSizeKey::CrossEntropyDw) => Some(&[64, 8, 32]),
        _ => None,
    }
}

/// Resources that a program needs for given block sizes; 0: no need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BlockResources {
    /// Bytes of tiles that threads share; see
    /// [`ProgramBudget::staged_bytes`](pallas_rt::shader::ProgramBudget::staged_bytes).
    pub(crate) staged_bytes: usize,
    /// Elements live at the same time; see
    /// [`ProgramBudget::from_live_elements`](pallas_rt::shader::ProgramBudget::from_live_elements).
    pub(crate) live_elements: usize,
    /// Bytes of scratch; it is in workgroup memory on every kind of device.
    pub(crate) scratch_bytes: usize,
}

impl BlockResources {
    /// No requirements: the block sizes fit every device.
    pub(crate) const NO_REQUIREMENTS: BlockResources =
        BlockResources { staged_bytes: 0, live_elements: 0, scratch_bytes: 0 };

    /// Resources of a program whose tiles in workgroup memory, which its threads share, have `words` f32 elements.
    pub(crate) fn from_staged_words(words: usize) -> BlockResources {
        BlockResources { staged_bytes: 4 * words, ..BlockResources::NO_REQUIREMENTS }
    }

    /// Resources of a program with this many elements of tiles that are live at the same time in elementwise code.
    pub(crate) fn from_live_elements(live_elements: usize) -> BlockResources {
        BlockResources { live_elements, ..BlockResources::NO_REQUIREMENTS }
    }

    /// Returns true if the target's budget for a program suffices for these resources.
    fn is_within(self, target: &Target) -> bool {
        let budget = target.budget();
        let within = self.staged_bytes as u64 <= budget.staged_bytes && self.live_elements <= budget.live_elements;
        within && self.can_hold_scratch(target)
    }

    /// Returns true if the scratch fits the target's workgroup memory.
    fn can_hold_scratch(self, target: &Target) -> bool {
        self.scratch_bytes as u64 <= target.workgroup_bytes
    }
}

/// Extent of an axis that is not divided, or not known: its blocks are as large as listed.
pub(crate) const UNBOUNDED_EXTENT: usize = usize::MAX;

/// Number of elements of a block of rows that a core keeps in its inner caches.
const CACHED_BLOCK_ELEMENTS: usize = 1 << 16;

/// Chooses block sizes for axes of these extents: the tuned ones unless their scratch is too large, else the first of
/// `candidates` whose need is within the target's budget, else the last. Where the number of cores is known, no block
/// is larger than its axis: see [`equal_block_size`].
pub(crate) fn choose_block_sizes<const N: usize>(
    key: BlockSizeKey,
    target: &Target,
    extents: [usize; N],
    candidates: impl IntoIterator<Item = ([usize; N], BlockResources)>,
) -> [usize; N] {
    let mut tuned = tuned_block_sizes(key, target.profile);
    let (mut first, mut last) = (None, None);
    for (blocks, need) in candidates {
        tuned = tuned.filter(|row| **row != blocks || need.can_hold_scratch(target));
        first = first.or(need.is_within(target).then_some(blocks));
        last = Some(blocks);
    }
    let mut blocks: [usize; N] = match tuned {
        Some(row) => row.try_into().expect("a tuned row has an extent for each of the kernel's"),
        None => first.or(last).expect("a kernel lists block sizes"),
    };
    if target.cores.is_some() {
        blocks.iter_mut().zip(extents).for_each(|(block, extent)| *block = equal_block_size(extent, *block));
    }
    blocks
}

/// Returns the size of the equal blocks that an axis is divided into, as few as possible with at most `max_elements`
/// elements each: the whole axis, or a multiple of 16 elements, so that lengths that differ by little share a kernel.
///
/// A program computes all of its block, also what is outside of the array.
pub(crate) fn equal_block_size(extent: usize, max_elements: usize) -> usize {
    match extent.div_ceil(max_elements) {
        0 | 1 => extent.max(1),
        parts => extent.div_ceil(parts).next_multiple_of(16).min(max_elements),
    }
}

/// Returns a block size of at most `max_elements` such that every device of a mesh that divides the axis has whole
/// blocks. Otherwise a few devices would compute all blocks, from operands that the others send.
pub(crate) fn mesh_block_size(extent: usize, max_elements: usize) -> usize {
    largest_dividing_block(extent, max_elements, launch_parts())
}

/// Returns the largest block of at most `max_elements` elements that divides each of `parts` equal parts;
/// `max_elements` if that block would have fewer than 8 elements and not be a whole part.
fn largest_dividing_block(extent: usize, max_elements: usize, parts: usize) -> usize {
    // Blocks of a few elements would take longer than the exchange.
    const MIN_BLOCK_ELEMENTS: usize = 8;
    if parts == 1 || extent == 0 || !extent.is_multiple_of(parts) {
        return max_elements;
    }
    let own = extent / parts;
    (MIN_BLOCK_ELEMENTS.min(own)..=max_elements.min(own))
        .rev()
        .find(|&block| own.is_multiple_of(block))
        .unwrap_or(max_elements)
}

/// Minimum number of blocks of a long axis of rows, so that each core and each device of a mesh has some.
const MIN_ROW_BLOCKS: usize = 8;
/// Number of elements whose computation takes about as long as the start of a program, so that blocks of fewer are too
/// short.
const PROGRAM_OVERHEAD_ELEMENTS: usize = 1 << 11;

/// Returns the number of rows of `row_elements` elements for a block of a matrix with `rows` rows: the largest power of
/// two that fits a core's inner caches and leaves enough blocks for all cores (a block that would be too short for a
/// program may leave fewer), and at least `min_rows`.
pub(crate) fn choose_block_rows(target: &Target, rows: usize, row_elements: usize, min_rows: usize) -> usize {
    let enough = target.budget().programs.max(MIN_ROW_BLOCKS);
    let most = (CACHED_BLOCK_ELEMENTS / row_elements.max(1))
        .min((rows / enough).max(PROGRAM_OVERHEAD_ELEMENTS / row_elements.max(1)))
        .max(1);
    (1 << most.ilog2()).max(min_rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_fits_is_chosen_unless_a_row_is_tuned() {
        let gpu = |kib: u64| Target { workgroup_bytes: kib << 10, ..Target::webgpu() };
        let check = |target: &Target, expected| {
            let need = |words: usize| BlockResources {
                live_elements: 100 * words,
                ..BlockResources::from_staged_words(words)
            };
            let candidates = [[64, 10_000], [32, 5000], [16, 100]].map(|[keys, words]| ([keys], need(words)));
            assert_eq!(
                choose_block_sizes(BlockSizeKey::PagedQueries, target, [100], candidates),
                [expected],
                "{target:?}"
            );
        };
        check(&gpu(16), 16);
        check(&gpu(0), 16);
        check(pallas_rt::Client::cpu().target(), 64);
        let staged = |target: &Target| {
            choose_block_sizes(
                BlockSizeKey::DecodeAttention,
                target,
                [100],
                [64, 8].map(|keys| ([keys], BlockResources::from_staged_words(100 * keys))),
            )
        };
        assert_eq!([staged(&gpu(16)), staged(&gpu(32))], [[8], [64]]);
        assert_eq!(staged(&Target { profile: Profile::SimtCpu, ..gpu(16) }), [32], "a tuned row");
        let scratch = |kib: u64| {
            let need = |keys: usize| BlockResources { scratch_bytes: keys << 10, ..BlockResources::NO_REQUIREMENTS };
            let target = Target { profile: Profile::SimtCpu, ..gpu(kib) };
            choose_block_sizes(
                BlockSizeKey::DecodeAttention,
                &target,
                [100],
                [64, 32, 8].map(|keys| ([keys], need(keys))),
            )
        };
        assert_eq!([scratch(16), scratch(32)], [[8], [32]], "a tuned row, where there is room for its scratch");
    }

    #[test]
    fn each_device_of_a_mesh_has_whole_blocks() {
        for (extent, most, parts, expected) in [
            (64, 32, 1, 32),
            (64, 32, 2, 32),
            (64, 32, 8, 8),
            (64, 32, 16, 4),
            (3072, 512, 4, 384),
            // Too small, or not divided evenly: devices exchange blocks.
            (8 * 257, 64, 8, 64),
            (65, 32, 8, 32),
            (0, 32, 8, 32),
        ] {
            assert_eq!(
                largest_dividing_block(extent, most, parts),
                expected,
                "{extent} in {parts} parts, blocks of at most {most}"
            );
        }
    }

    #[test]
    fn blocks_follow_the_problem_where_the_number_of_cores_is_known() {
        let cpu = pallas_rt::Client::cpu();
        for (extent, most, expected) in [
            (0, 128, 1),
            (1, 128, 1),
            (17, 128, 17),
            (128, 128, 128),
            (129, 128, 80),
            (300, 128, 112),
            (1024, 128, 128),
            (9, 8, 8),
        ] {
            assert_eq!(equal_block_size(extent, most), expected, "{extent} in blocks of at most {most}");
            let sizes = |target: &Target| {
                choose_block_sizes(BlockSizeKey::Rows, target, [extent], [([most], BlockResources::NO_REQUIREMENTS)])
            };
            assert_eq!([sizes(cpu.target()), sizes(&Target::webgpu())], [[expected], [most]]);
        }
        assert_eq!(
            choose_block_sizes(
                BlockSizeKey::Rows,
                cpu.target(),
                [UNBOUNDED_EXTENT],
                [([128], BlockResources::NO_REQUIREMENTS)]
            ),
            [128]
        );
        // Many short rows, but eight blocks of them unless they are few elements; long ones as few as ever.
        let rows = |rows, n| choose_block_rows(&Target { cores: Some(2), ..*cpu.target() }, rows, n, 32);
        assert_eq!([rows(4096, 64), rows(512, 64), rows(100, 64), rows(4096, 1024)], [512, 64, 32, 64]);
        assert_eq!([rows(4096, 1), rows(100, 1)], [2048, 2048]);
    }
}
