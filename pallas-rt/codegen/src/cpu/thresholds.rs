//! Thresholds at which one way of computing becomes faster than another.

/// Thresholds at which one way of computing becomes faster than another; the results are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Maximum terms of the sum in a part of a convolution's product. `least_terms` is the minimum, if the part is
    /// made shorter so that it can have more columns.
    pub terms: usize,
    /// Minimum terms of the sum in a part; see [`terms`](Thresholds::terms).
    pub least_terms: usize,
    /// Elements of a part of a convolution's product that stays in the second-level cache.
    pub part: usize,
    /// Minimum rows of a part that is copied.
    pub least_rows: usize,
    /// Maximum columns of a part that is copied.
    pub most_columns: usize,
    /// Minimum rows or columns, at a time, of a matrix that is read in place.
    pub few: usize,
    /// Minimum adjacent terms for which a convolution's first matrix is read in place, since adding its parts then
    /// costs less than a copy.
    pub deep: usize,
    /// Minimum multiply-adds for each element of a convolution's array for which it is copied to another order of
    /// axes.
    pub uses: usize,
    /// Minimum features (adjacent elements after the copy) for which such a copy is worthwhile.
    pub features: usize,
    /// Minimum adjacent elements of a product's free axis that a copy keeps adjacent.
    pub adjacent: usize,
    /// Minimum rows of a window that a product reads in place: it starts anew with each window.
    pub window_rows: usize,
    /// Minimum elements of a row that a chain reads in place. For rows of 128 elements, a call for each takes half as
    /// long again as a copy and one call for all; for rows of 160 it takes less.
    pub chain_row: usize,
    /// Minimum elements of a tile for which a copy to another order is worthwhile.
    pub reordered: usize,
}

impl Thresholds {
    /// Thresholds measured on machines with AVX2 and AVX-512.
    pub const MEASURED: Thresholds = Thresholds {
        terms: 1024,
        least_terms: 256,
        part: 1 << 15,
        least_rows: 32,
        most_columns: 512,
        few: 16,
        deep: 64,
        uses: 100,
        features: 32,
        adjacent: 8,
        window_rows: 8,
        chain_row: 144,
        reordered: 512,
    };

    /// Thresholds so low that tests with arrays of a few elements use every algorithm that a threshold selects.
    pub const FOR_TESTS: Thresholds = Thresholds {
        terms: 16,
        least_terms: 8,
        part: 128,
        least_rows: 4,
        most_columns: 8,
        few: 4,
        deep: 4,
        uses: 8,
        features: 4,
        adjacent: 3,
        window_rows: 1,
        chain_row: 8,
        reordered: 8,
    };
}
