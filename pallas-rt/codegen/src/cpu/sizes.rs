//! Sizes from which on one way of computing takes less time than another.

/// Sizes from which on one way of computing takes less time than another; results are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Most terms of the sum in a part of a nest's product, and the fewest if the part is shorter for more columns in it.
    pub terms: usize,
    /// See [`terms`](Sizes::terms).
    pub least_terms: usize,
    /// Elements of a part of a nest's product, which stays in the second level cache.
    pub part: usize,
    /// Fewest rows of a part that is copied.
    pub least_rows: usize,
    /// Most columns of a part that is copied.
    pub most_columns: usize,
    /// Fewest rows or columns at a time of a matrix that is not copied.
    pub few: usize,
    /// Fewest neighbouring terms for which a nest's first matrix is not copied: adding parts takes less time then.
    pub deep: usize,
    /// Fewest multiply-adds for each element of a nest's array that is copied to another order.
    pub uses: usize,
    /// Fewest features of which a row is worth such a copy.
    pub features: usize,
    /// Fewest adjacent elements of a product's free axis that are copied together.
    pub adjacent: usize,
    /// Fewest rows of a window that a product reads where it lies: it begins anew with each.
    pub window_rows: usize,
    /// Fewest elements of a row that a chain reads where it lies: a call for each row of 128 takes half as long again as a copy
    /// and a call for all, rows of 160 take less.
    pub chain_row: usize,
    /// Fewest elements of a tile that is worth a copy to another order.
    pub reordered: usize,
}

impl Sizes {
    /// The sizes that measurements on machines with AVX2 and AVX-512 gave.
    pub const MEASURED: Sizes = Sizes {
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

    /// Every way is taken by arrays of a few elements: for tests.
    pub const SMALL: Sizes = Sizes {
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
