//! Sizes of blocks that suit a device.
/// The numbers of a device that block sizes depend on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sizes {
    /// Programs that run at the same time.
    pub programs: usize,
    /// Elements of the largest tile of a program without a product.
    pub tile: usize,
    /// Fewest adjacent elements of rows of which a program folds columns.
    pub columns: usize,
    /// Elements of the largest tile in which a program folds columns of an array that no cache holds.
    pub folded: usize,
    /// Most adjacent elements of rows of which it folds parts of columns.
    pub adjacent: usize,
    /// Most rows and columns of a product's block.
    pub product: [usize; 2],
    /// Most elements that a product sums at a time; `None` if a program has all of them.
    pub panel: Option<usize>,
    /// Most elements of the block of an array that a program of a scatter changes.
    pub scattered: usize,
    /// Most elements that a program puts in order, those of each of its sorts counted.
    pub sorted: usize,
    /// Most arrays of kernels that are merged.
    pub operands: usize,
    /// Multiply-adds of a product that is not worth dividing among programs.
    pub small: usize,
    /// Most steps of a scan in one kernel.
    pub steps: usize,
    /// Bytes of an arena from which on values are computed again instead of kept, where that makes it smaller.
    pub arena: usize,
}

/// Elements of an array that a core's caches hold, and adjacent ones of its rows that a program reads at least.
pub(super) const CACHED: usize = 1 << 18;
const LINES: usize = 64;
/// Elements of a line of a cache.
pub(super) const LINE: usize = 16;

impl Sizes {
    /// Those of unit tests: of a small device without panels.
    #[cfg(test)]
    pub(super) const TEST: Sizes = Sizes {
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

    /// A block of about this size with which the last of the programs along an axis has as much to do as the others: it
    /// computes a whole block whatever lies inside of the array. A GPU has blocks that its threads divide evenly.
    pub(super) fn even(&self, extent: usize, block: usize, least: usize, unit: usize) -> usize {
        if self.panel.is_some() || block >= extent {
            return block;
        }
        let parts = if self.programs == 1 && block <= least { extent / block } else { extent.div_ceil(block) };
        // A few parts that are not as many as run at the same time would leave some of them idle.
        let parts = if parts < 4 * self.programs { parts.next_multiple_of(self.programs) } else { parts };
        let even = extent.div_ceil(parts);
        let whole = even.next_multiple_of(unit).min(extent);
        if whole <= block.max(2 * least) { whole } else { even }
    }

    /// Elements of the largest tile of a program that folds columns of an array of so many elements, and the most adjacent
    /// ones that it needs: longer rows are read faster from memory.
    pub(super) fn of_columns(&self, elements: usize) -> [usize; 2] {
        if elements > CACHED { [self.folded, self.adjacent] } else { [self.tile, LINES] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_about_as_much_to_do() {
        let even = |extent, block, least, unit| Sizes::TEST.even(extent, block, least, unit);
        // As many as run at the same time, or a multiple of that, and no block that is mostly outside of the array.
        assert_eq!(even(4096, 4096, 1, 16), 4096);
        assert_eq!(even(4104, 4096, 1, 16), 2064);
        assert_eq!(even(3 * 4096, 4096, 1, 16), 3072);
        assert_eq!(even(100_000, 4096, 1, 16), 4000);
        assert_eq!(even(72, 64, 64, 8), 40);
        // One core needs no second program for what is left of columns.
        let one = Sizes { programs: 1, ..Sizes::TEST };
        assert_eq!(one.even(72, 64, 64, 8), 72);
        assert_eq!(one.even(200, 64, 64, 8), 72);
        // Threads of a GPU divide blocks.
        let gpu = Sizes { panel: Some(16), ..Sizes::TEST };
        assert_eq!(gpu.even(4104, 4096, 1, 16), 4096);
    }
}
