//! Products that the threads of a subgroup compute together with a device's cooperative matrices (tensor cores).
//!
//! A product of two matrices whose extents are multiples of a *fragment*'s is distributed over the workgroup's
//! subgroups. Its result is in accumulators, whose single elements cannot be read: other instructions read a copy in
//! workgroup memory. A sum to which only products are added (`acc + a·b`, from zeros on, carried by loops and
//! branches) stays in accumulators. Factors are read from workgroup memory that has the fragments' element type, one
//! [`StorageCell`] for each element.
//!
//! No product changes its meaning: f16 factors are multiplied as f16 or, exactly, as f32. bf16, for which shaders have
//! no matrices, is multiplied as f32 where the device has such matrices, else without cooperative matrices. Sums are
//! f32.
use super::UnionFind;
use super::views::{self, InlineKind, access_form};
use crate::passes::variables::{CarriedVariable, carried_variables};
use crate::target::CooperativeMatrices;
use pallas_ir::{AccessForm, DType, Inst, InstId, Kernel, Op, ScalarOp, StructuralOp, Value};

/// The storage type of an element of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::wgsl) enum StorageCell {
    /// A 32-bit word with the bits of an element of any type.
    #[default]
    Word,
    /// A word of a buffer of vec4 that threads read and write as whole vectors only: if several threads wrote
    /// components of one vector, that would be a data race. On Metal and D3D, writing a component writes the whole
    /// vector.
    Vec4,
    /// An f32 that cooperative matrices are loaded from and stored to.
    F32,
    /// An f16 that cooperative matrices are loaded from.
    F16,
}

impl StorageCell {
    pub(in crate::wgsl) const ALL: [StorageCell; 4] =
        [StorageCell::Word, StorageCell::Vec4, StorageCell::F32, StorageCell::F16];

    /// Name of the array in workgroup memory that has these cells.
    pub(in crate::wgsl) fn workgroup_array_name(self) -> &'static str {
        match self {
            StorageCell::Word => "tiles",
            StorageCell::Vec4 => "fours",
            StorageCell::F32 => "floats",
            StorageCell::F16 => "halves",
        }
    }
    /// The WGSL type of the array's elements.
    pub(in crate::wgsl) fn wgsl_type(self) -> &'static str {
        match self {
            StorageCell::Word => "u32",
            StorageCell::Vec4 => "vec4<u32>",
            StorageCell::F32 => "f32",
            StorageCell::F16 => "f16",
        }
    }
    /// Number of a tile's elements in one element of the array.
    pub(in crate::wgsl) fn elements_per_cell(self) -> usize {
        if self == StorageCell::Vec4 { 4 } else { 1 }
    }
    /// Returns true for cells with the bits of any type, from which no matrix is loaded.
    pub(in crate::wgsl) fn has_raw_bits(self) -> bool {
        matches!(self, StorageCell::Word | StorageCell::Vec4)
    }
    pub(in crate::wgsl) fn bytes_per_element(self) -> usize {
        if self == StorageCell::F16 { 2 } else { 4 }
    }
    /// Number of elements in 16 bytes (a vector): where matrices are loaded, addresses and row lengths are multiples
    /// of it.
    pub(in crate::wgsl) fn alignment_elements(self) -> usize {
        16 / self.bytes_per_element()
    }
}

/// Parameters of a product that subgroups compute by cooperative matrices: the extent of a fragment, and the storage
/// type of the factors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::wgsl) struct CooperativeProduct {
    /// Rows and columns of a fragment, which is square.
    pub(in crate::wgsl) size: usize,
    /// The storage type of the product's factors.
    pub(in crate::wgsl) cell: StorageCell,
}

/// A tile of accumulators, distributed over a grid of subgroups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::wgsl) struct AccumulatorFragments {
    /// Rows and columns of a fragment, which is square.
    pub(in crate::wgsl) size: usize,
    /// Subgroups along rows and along columns of the tile; further subgroups repeat the work of some of these.
    pub(in crate::wgsl) grid: [usize; 2],
    /// Number of fragments of each subgroup along rows and along columns.
    pub(in crate::wgsl) own: [usize; 2],
}

impl AccumulatorFragments {
    /// Distributes a matrix over at most `subgroups` subgroups: as many as have work, in the arrangement that loads
    /// least.
    fn new([rows, columns]: [usize; 2], fragment_size: usize, subgroups: usize) -> AccumulatorFragments {
        let all = [rows / fragment_size, columns / fragment_size];
        let pairs = (1..=subgroups.min(all[0])).flat_map(|y| (1..=(subgroups / y).min(all[1])).map(move |x| [y, x]));
        let whole = pairs.filter(|[y, x]| all[0].is_multiple_of(*y) && all[1].is_multiple_of(*x));
        let grid = whole.min_by_key(|[y, x]| (std::cmp::Reverse(y * x), all[0] / y + all[1] / x));
        let grid = grid.unwrap_or([1, 1]);
        AccumulatorFragments { size: fragment_size, grid, own: [all[0] / grid[0], all[1] / grid[1]] }
    }
    pub(in crate::wgsl) fn fragments_per_subgroup(self) -> usize {
        self.own[0] * self.own[1]
    }
    /// Returns the number of registers of a thread that the accumulators take.
    pub(in crate::wgsl) fn registers_per_thread(self, subgroup_threads: usize) -> usize {
        self.fragments_per_subgroup() * (self.size * self.size).div_ceil(subgroup_threads)
    }
}

/// Result of the search for products that cooperative matrices compute, and what it decides on the storage of tiles.
#[derive(Clone, Debug)]
pub(super) struct CooperativeMatrixAnalysis {
    /// Number of threads of a subgroup.
    pub(super) lanes: usize,
    /// For each value that is a product, the cooperative matrices that compute it.
    pub(super) products: Vec<Option<CooperativeProduct>>,
    /// For each value that may be in accumulators, the rows and columns of a fragment.
    accumulators: Vec<Option<usize>>,
    /// For each value, the storage type of its elements when it is in memory.
    pub(super) cells: Vec<StorageCell>,
}

/// Maximum registers of a thread for the accumulators of one tile.
const MAX_ACCUMULATOR_REGISTERS: usize = 128;

impl CooperativeMatrixAnalysis {
    /// Returns the result for a device without cooperative matrices: no product is cooperative.
    pub(super) fn without_matrices(k: &Kernel) -> CooperativeMatrixAnalysis {
        let n = k.values.len();
        CooperativeMatrixAnalysis {
            lanes: 1,
            products: vec![None; n],
            accumulators: vec![None; n],
            cells: vec![StorageCell::Word; n],
        }
    }
    /// Finds the cooperative products of a kernel, and the values that may be in accumulators.
    pub(super) fn new(
        k: &Kernel,
        inline: &[Option<InlineKind>],
        defined: &[Option<InstId>],
        fused: &[bool],
        matrices: CooperativeMatrices,
    ) -> CooperativeMatrixAnalysis {
        let mut found = CooperativeMatrixAnalysis {
            lanes: matrices.lanes as usize,
            ..CooperativeMatrixAnalysis::without_matrices(k)
        };
        k.walk(k.body, &mut |_, inst| {
            if let Op::Structural(op) = &inst.op
                && let Some((product, factors)) = match_cooperative_product(k, (inline, defined), op, inst, matrices)
                && factors.iter().all(|v| [StorageCell::Word, product.cell].contains(&found.cells[v.index()]))
            {
                found.products[inst.results[0].index()] = Some(product);
                factors.iter().for_each(|v| found.cells[v.index()] = product.cell);
            }
        });
        let mut sums = AccumulatorSearch { k, defined, fused, found: &found, classes: UnionFind::new(k.values.len()) };
        sums.join_sum_values();
        found.accumulators = sums.accumulator_fragment_sizes();
        for (cell, _) in found.cells.iter_mut().zip(&found.accumulators).filter(|(_, size)| size.is_some()) {
            *cell = StorageCell::F32;
        }
        found
    }
    /// Returns how a tile in accumulators is distributed over a workgroup of `threads` threads; `None` if it cannot be
    /// in accumulators.
    pub(super) fn accumulator_fragments(&self, k: &Kernel, v: Value, threads: usize) -> Option<AccumulatorFragments> {
        let size = self.accumulators[v.index()].filter(|_| threads.is_multiple_of(self.lanes))?;
        let [rows, columns] = k.ty(v).shape[..] else { return None };
        let fragments = AccumulatorFragments::new([rows, columns], size, threads / self.lanes);
        (fragments.registers_per_thread(self.lanes) <= MAX_ACCUMULATOR_REGISTERS).then_some(fragments)
    }
}

/// Returns the parameters by which cooperative matrices compute a product, and the tiles that are its factors; `None`
/// if they cannot compute it.
fn match_cooperative_product(
    k: &Kernel,
    (inline, defined): (&[Option<InlineKind>], &[Option<InstId>]),
    op: &StructuralOp,
    inst: &Inst,
    matrices: CooperativeMatrices,
) -> Option<(CooperativeProduct, [Value; 2])> {
    let AccessForm::Contract { batch, contract } = access_form(k, op, inst) else { return None };
    let (result, [a, b]) = (k.ty(inst.results[0]), [inst.args[0], inst.args[1]]);
    let &[(inner, _)] = &contract[..] else { return None };
    let plain = batch.is_empty() && result.dtype == DType::F32 && result.shape.len() == 2;
    let [rows, columns] = result.shape[..] else { return None };
    let extents = [rows, columns, *k.ty(a).shape.get(inner).filter(|_| plain)?];
    let both = |types: &[DType]| [a, b].iter().all(|v| types.contains(&k.ty(*v).dtype));
    let fits = |size: Option<u32>| {
        size.map(|n| n as usize).filter(|n| extents.iter().all(|extent| *extent > 0 && extent.is_multiple_of(*n)))
    };
    let half = fits(matrices.half)
        .filter(|_| both(&[DType::F16]))
        .map(|size| CooperativeProduct { size, cell: StorageCell::F16 });
    let float = || {
        let exact = both(&[DType::F32, DType::F16, DType::Bf16]);
        fits(matrices.float).filter(|_| exact).map(|size| CooperativeProduct { size, cell: StorageCell::F32 })
    };
    let product = half.or_else(float)?;
    let factor = |v: Value| {
        let ends = [0, 1].map(|axis| views::source_axis(k, inline, defined, v, axis));
        let [Some((tile, _)), Some((other, _))] = ends else { return None };
        let columns = *k.ty(tile).shape.last()?;
        (tile == other && columns.is_multiple_of(product.cell.alignment_elements())).then_some(tile)
    };
    Some((product, [factor(a)?, factor(b)?]))
}

/// The search for sums to which only cooperative products are added.
struct AccumulatorSearch<'k> {
    k: &'k Kernel,
    defined: &'k [Option<InstId>],
    /// For each value, true if it is a product whose only use adds it to a tile of its type.
    fused: &'k [bool],
    found: &'k CooperativeMatrixAnalysis,
    classes: UnionFind,
}

impl AccumulatorSearch<'_> {
    /// Joins the classes of two values, which then share accumulators, unless one is a tile of zeros.
    fn join_classes_unless_zero(&mut self, a: Value, b: Value) {
        let zero = |v: Value| is_zero_tile(self.k, self.defined, v);
        if !zero(a) && !zero(b) {
            self.classes.join(a.index(), b.index());
        }
    }
    /// Returns the product that an addition adds to another tile, and that tile, if it is such an addition.
    fn match_accumulation(&self, inst: &Inst) -> Option<(CooperativeProduct, Value)> {
        let Op::Scalar(ScalarOp::Add) = inst.op else { return None };
        let same = |v: Value| self.k.ty(v) == self.k.ty(inst.results[0]);
        let side = (0..2).find(|&i| self.fused[inst.args[i].index()] && same(inst.args[i]))?;
        Some((self.found.products[inst.args[side].index()]?, inst.args[1 - side]))
    }
    /// Joins the values that hold one sum: the values that a loop or branch passes on, and a sum with the tile that it
    /// continues.
    fn join_sum_values(&mut self) {
        let k = self.k;
        k.walk(k.body, &mut |_, inst| match &inst.op {
            Op::If | Op::For { .. } => {
                for CarriedVariable { start, values } in carried_variables(k, inst) {
                    start.iter().chain(&values[1..]).for_each(|&v| self.join_classes_unless_zero(v, values[0]));
                }
            }
            _ => {
                if let Some((_, other)) = self.match_accumulation(inst) {
                    self.join_classes_unless_zero(inst.results[0], other);
                }
            }
        });
    }
    /// Returns for each value the rows and columns of a fragment, if its whole class may be in accumulators.
    fn accumulator_fragment_sizes(&self) -> Vec<Option<usize>> {
        let k = self.k;
        // For the root of each class: the fragment sizes of its sums, and true if each of its values may be in
        // accumulators.
        let mut sizes: Vec<Vec<usize>> = vec![vec![]; k.values.len()];
        let mut fits = vec![true; k.values.len()];
        for v in (0..k.values.len() as u32).map(Value) {
            let root = self.classes.root(v.index());
            match self.defined[v.index()].map(|i| k.inst(i)) {
                // A loop's parameter changes in each iteration, so it has no copy that other instructions could read.
                None => fits[root] &= self.is_only_accumulated(v),
                Some(inst) => match (&inst.op, self.match_accumulation(inst), self.found.products[v.index()]) {
                    (Op::For { .. } | Op::If, ..) => {}
                    (_, Some((product, _)), _) | (_, None, Some(product)) => sizes[root].push(product.size),
                    _ => fits[root] = false,
                },
            }
        }
        let size = |v: usize| {
            let all = &sizes[self.classes.root(v)];
            all.first().copied().filter(|n| fits[self.classes.root(v)] && all.iter().all(|m| m == n))
        };
        // A product that is added to a sum has no storage of its own.
        (0..k.values.len()).map(size).collect()
    }
    /// Returns true if every use of a value is an addition that continues the sum, or a loop that passes it on.
    fn is_only_accumulated(&self, v: Value) -> bool {
        self.k.insts.iter().filter(|inst| inst.args.contains(&v)).all(|inst| match inst.op {
            Op::For { .. } => !inst.args[..3].contains(&v),
            _ => self.match_accumulation(inst).is_some_and(|(_, other)| other == v),
        })
    }
}

/// Returns true if a value is a tile of zeros.
pub(in crate::wgsl) fn is_zero_tile(k: &Kernel, defined: &[Option<InstId>], v: Value) -> bool {
    let Some(inst) = defined[v.index()].map(|i| k.inst(i)) else { return false };
    match &inst.op {
        Op::Const(x) => x.as_f64() == 0.0,
        Op::Structural(StructuralOp::Broadcast(_)) => is_zero_tile(k, defined, inst.args[0]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_go_to_as_many_subgroups_as_have_work() {
        let check = |shape, size, subgroups, grid, own| {
            assert_eq!(AccumulatorFragments::new(shape, size, subgroups), AccumulatorFragments { size, grid, own });
        };
        check([128, 128], 16, 8, [2, 4], [4, 2]);
        check([64, 64], 16, 8, [2, 4], [2, 1]);
        check([16, 16], 16, 8, [1, 1], [1, 1]);
        check([48, 16], 16, 8, [3, 1], [1, 1]);
        check([16, 128], 8, 4, [1, 4], [2, 4]);
    }
}
