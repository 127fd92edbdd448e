//! Limits of a device on which the sizes of blocks depend.
/// Limits of a device on which the sizes of blocks and the clusters of a plan depend.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeviceLimits {
    /// Number of programs that run at the same time.
    pub programs: usize,
    /// Elements of the largest tile of a program that computes no product.
    pub tile: usize,
    /// Fewest adjacent elements of a row that a program reads when it folds columns.
    pub columns: usize,
    /// Elements of the largest tile of a program that folds columns of an array which no cache holds.
    pub folded: usize,
    /// Most adjacent elements of a row that a program reads when it folds columns of an array which no cache holds.
    pub adjacent: usize,
    /// Most rows, and most columns, of a product's block.
    pub product: [usize; 2],
    /// Most terms that a product sums at a time, a panel; `None` if a program sums all terms at once.
    pub panel: Option<usize>,
    /// Most elements of the block that a program of a scatter changes.
    pub scattered: usize,
    /// Most elements that a program orders in all of its sorts together.
    pub sorted: usize,
    /// Most arrays that a merged kernel reads and writes.
    pub operands: usize,
    /// Multiply-adds up to which a product is not worth splitting among more programs.
    pub small: usize,
    /// Most steps of a scan that one kernel runs.
    pub steps: usize,
    /// Bytes of the arena from which on values are computed again instead of kept, where that makes the arena smaller.
    pub arena: usize,
}

/// Elements of the largest array that a core's caches hold; a larger one is read from memory.
pub(super) const CORE_CACHE_ELEMENTS: usize = 1 << 18;
/// Adjacent elements of a row that are enough for a program which folds columns of an array that the caches hold:
/// longer pieces of rows would not be read faster.
const MIN_CACHED_ROW_ELEMENTS: usize = 64;
/// Elements of 4 bytes in a cache line of a core; blocks along a last axis are a multiple of it if possible.
pub(super) const CACHE_LINE_ELEMENTS: usize = 16;

impl DeviceLimits {
    /// The limits for unit tests: those of a small device with two programs at a time, on which a program sums all
    /// terms of a product at once.
    #[cfg(test)]
    pub(super) const TEST: DeviceLimits = DeviceLimits {
        programs: 2,
        tile: 1 << 12,
        columns: 1,
        folded: 1 << 12,
        adjacent: 64,
        product: [64; 2],
        panel: None,
        scattered: usize::MAX,
        sorted: usize::MAX,
        operands: usize::MAX,
        small: 0,
        steps: usize::MAX,
        arena: usize::MAX,
    };

    /// Returns a size of blocks of about `target_size` along an axis of this extent, with which all programs have the
    /// same amount of work: the last program computes a whole block however little of it is inside of the array. The
    /// size is a multiple of `multiple_of` if possible and may exceed `target_size` up to twice `min_size`. On a GPU,
    /// whose threads divide `target_size` evenly, it is `target_size`.
    pub(super) fn balanced_block_size(
        &self,
        extent: usize,
        target_size: usize,
        min_size: usize,
        multiple_of: usize,
    ) -> usize {
        if self.panel.is_some() || target_size >= extent {
            return target_size;
        }
        let parts = if self.programs == 1 && target_size <= min_size {
            extent / target_size
        } else {
            extent.div_ceil(target_size)
        };
        // A few parts would leave programs idle, unless their number is a multiple of those that run at the same time.
        let parts = if parts < 4 * self.programs { parts.next_multiple_of(self.programs) } else { parts };
        let even = extent.div_ceil(parts);
        let whole = even.next_multiple_of(multiple_of).min(extent);
        if whole <= target_size.max(2 * min_size) { whole } else { even }
    }

    /// Returns, for a fold of columns of an array of this many elements, the elements of a program's largest tile, and
    /// the most adjacent elements of a row that a program needs: longer rows are read faster from memory.
    pub(super) fn column_fold_tile_and_row_elements(&self, elements: usize) -> [usize; 2] {
        if elements > CORE_CACHE_ELEMENTS { [self.folded, self.adjacent] } else { [self.tile, MIN_CACHED_ROW_ELEMENTS] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_about_as_much_to_do() {
        let even = |extent, block, least, unit| DeviceLimits::TEST.balanced_block_size(extent, block, least, unit);
        // As many as run at the same time, or a multiple of that, and no block that is mostly outside of the array.
        assert_eq!(even(4096, 4096, 1, 16), 4096);
        assert_eq!(even(4104, 4096, 1, 16), 2064);
        assert_eq!(even(3 * 4096, 4096, 1, 16), 3072);
        assert_eq!(even(100_000, 4096, 1, 16), 4000);
        assert_eq!(even(72, 64, 64, 8), 40);
        // One core needs no second program for what is left of columns.
        let one = DeviceLimits { programs: 1, ..DeviceLimits::TEST };
        assert_eq!(one.balanced_block_size(72, 64, 64, 8), 72);
        assert_eq!(one.balanced_block_size(200, 64, 64, 8), 72);
        // Threads of a GPU divide blocks.
        let gpu = DeviceLimits { panel: Some(16), ..DeviceLimits::TEST };
        assert_eq!(gpu.balanced_block_size(4104, 4096, 1, 16), 4096);
    }
}
