//! Products that the threads of a subgroup compute together, by a device's cooperative matrices.
//!
//! A product of two matrices whose extents are multiples of a *fragment*'s is spread over the workgroup's subgroups. Its
//! result is accumulators, which nobody can take an element of: who reads it reads a copy in workgroup memory. A sum that
//! grows by products alone (`acc + a·b`, from zeros, carried by loops and branches) stays accumulators all the way. Factors
//! are read from workgroup memory that has the fragments' element type, a [`Cell`] an element.
//!
//! No product changes its meaning: f16 factors are multiplied as f16, or, exactly, as f32; bf16, which shaders have no
//! matrices of, is multiplied as f32 where the device has such matrices, else as without any. Sums are f32.
use super::Classes;
use super::views::{self, Inline, access};
use crate::passes::variables::{Variable, variables};
use crate::target::Matrices;
use pallas_ir::{Access, DType, Inst, InstId, Kernel, Op, ScalarOp, StructuralOp, Value};

/// The storage type of an element of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::wgsl) enum Cell {
    /// A word of any type's bits.
    #[default]
    Word,
    /// Such a word where threads write vectors of four and nothing less: components of one vector, written by several
    /// threads, would be a data race. On Metal and D3D a component's write is one of the whole vector.
    Four,
    /// An f32 that matrices are loaded from and stored to.
    Float,
    /// An f16 that matrices are loaded from.
    Half,
}

impl Cell {
    pub(in crate::wgsl) const ALL: [Cell; 4] = [Cell::Word, Cell::Four, Cell::Float, Cell::Half];

    /// The array of workgroup memory.
    pub(in crate::wgsl) fn arena(self) -> &'static str {
        match self {
            Cell::Word => "tiles",
            Cell::Four => "fours",
            Cell::Float => "floats",
            Cell::Half => "halves",
        }
    }
    /// The type of the array's elements.
    pub(in crate::wgsl) fn wgsl(self) -> &'static str {
        match self {
            Cell::Word => "u32",
            Cell::Four => "vec4<u32>",
            Cell::Float => "f32",
            Cell::Half => "f16",
        }
    }
    /// Elements of a tile in one element of the array.
    pub(in crate::wgsl) fn width(self) -> usize {
        if self == Cell::Four { 4 } else { 1 }
    }
    /// Returns true for the raw bits of any type, from which no matrix is loaded.
    pub(in crate::wgsl) fn is_bits(self) -> bool {
        matches!(self, Cell::Word | Cell::Four)
    }
    pub(in crate::wgsl) fn bytes(self) -> usize {
        if self == Cell::Half { 2 } else { 4 }
    }
    /// Elements that addresses are multiples of, and rows' lengths where matrices are loaded: 16 bytes, a vector.
    pub(in crate::wgsl) fn aligned(self) -> usize {
        16 / self.bytes()
    }
}

/// A product computed by cooperative matrices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::wgsl) struct Cooperative {
    /// Rows and columns of a fragment.
    pub(in crate::wgsl) size: usize,
    /// The storage type of its factors.
    pub(in crate::wgsl) cell: Cell,
}

/// A tile of accumulators on a grid of subgroups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::wgsl) struct Fragments {
    /// Rows and columns of a fragment.
    pub(in crate::wgsl) size: usize,
    /// Subgroups along rows and columns; further ones compute what some of these do.
    pub(in crate::wgsl) grid: [usize; 2],
    /// Fragments of a subgroup along rows and columns.
    pub(in crate::wgsl) own: [usize; 2],
}

impl Fragments {
    /// A matrix on so many subgroups: as many as have work, in the arrangement that loads least.
    fn new([rows, columns]: [usize; 2], size: usize, subgroups: usize) -> Fragments {
        let all = [rows / size, columns / size];
        let pairs = (1..=subgroups.min(all[0])).flat_map(|y| (1..=(subgroups / y).min(all[1])).map(move |x| [y, x]));
        let whole = pairs.filter(|[y, x]| all[0].is_multiple_of(*y) && all[1].is_multiple_of(*x));
        let grid = whole.min_by_key(|[y, x]| (std::cmp::Reverse(y * x), all[0] / y + all[1] / x));
        let grid = grid.unwrap_or([1, 1]);
        Fragments { size, grid, own: [all[0] / grid[0], all[1] / grid[1]] }
    }
    pub(in crate::wgsl) fn count(self) -> usize {
        self.own[0] * self.own[1]
    }
    /// Registers of a thread.
    pub(in crate::wgsl) fn registers(self, lanes: usize) -> usize {
        self.count() * (self.size * self.size).div_ceil(lanes)
    }
}

/// Products that are cooperative, and the consequences for tiles.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Threads of a subgroup.
    pub(super) lanes: usize,
    /// By value: how the product it is the result of is computed.
    pub(super) products: Vec<Option<Cooperative>>,
    /// By value: the fragment's extent of tiles that are accumulators.
    accumulators: Vec<Option<usize>>,
    /// By value: what its elements are kept in where they are in memory.
    pub(super) cells: Vec<Cell>,
}

/// Most registers of accumulators of one tile.
const ACCUMULATORS: usize = 128;

impl Found {
    /// None on a device without such matrices.
    pub(super) fn none(k: &Kernel) -> Found {
        let n = k.values.len();
        Found { lanes: 1, products: vec![None; n], accumulators: vec![None; n], cells: vec![Cell::Word; n] }
    }
    pub(super) fn new(
        k: &Kernel,
        inline: &[Option<Inline>],
        defined: &[Option<InstId>],
        fused: &[bool],
        matrices: Matrices,
    ) -> Found {
        let mut found = Found { lanes: matrices.lanes as usize, ..Found::none(k) };
        k.walk(k.body, &mut |_, inst| {
            if let Op::Structural(op) = &inst.op
                && let Some((product, factors)) = cooperative(k, (inline, defined), op, inst, matrices)
                && factors.iter().all(|v| [Cell::Word, product.cell].contains(&found.cells[v.index()]))
            {
                found.products[inst.results[0].index()] = Some(product);
                factors.iter().for_each(|v| found.cells[v.index()] = product.cell);
            }
        });
        let mut sums = Sums { k, defined, fused, found: &found, classes: Classes::new(k.values.len()) };
        sums.join();
        found.accumulators = sums.accumulators();
        for (cell, _) in found.cells.iter_mut().zip(&found.accumulators).filter(|(_, size)| size.is_some()) {
            *cell = Cell::Float;
        }
        found
    }
    /// The accumulators that a tile is on a workgroup of so many threads.
    pub(super) fn fragments(&self, k: &Kernel, v: Value, threads: usize) -> Option<Fragments> {
        let size = self.accumulators[v.index()].filter(|_| threads.is_multiple_of(self.lanes))?;
        let [rows, columns] = k.ty(v).shape[..] else { return None };
        let fragments = Fragments::new([rows, columns], size, threads / self.lanes);
        (fragments.registers(self.lanes) <= ACCUMULATORS).then_some(fragments)
    }
}

/// Returns how a product is computed, if it is cooperative, and the tiles that are its factors.
fn cooperative(
    k: &Kernel,
    (inline, defined): (&[Option<Inline>], &[Option<InstId>]),
    op: &StructuralOp,
    inst: &Inst,
    matrices: Matrices,
) -> Option<(Cooperative, [Value; 2])> {
    let Access::Contract { batch, contract } = access(k, op, inst) else { return None };
    let (result, [a, b]) = (k.ty(inst.results[0]), [inst.args[0], inst.args[1]]);
    let &[(inner, _)] = &contract[..] else { return None };
    let plain = batch.is_empty() && result.dtype == DType::F32 && result.shape.len() == 2;
    let [rows, columns] = result.shape[..] else { return None };
    let extents = [rows, columns, *k.ty(a).shape.get(inner).filter(|_| plain)?];
    let both = |types: &[DType]| [a, b].iter().all(|v| types.contains(&k.ty(*v).dtype));
    let fits = |size: Option<u32>| {
        size.map(|n| n as usize).filter(|n| extents.iter().all(|extent| *extent > 0 && extent.is_multiple_of(*n)))
    };
    let half = fits(matrices.half).filter(|_| both(&[DType::F16])).map(|size| Cooperative { size, cell: Cell::Half });
    let float = || {
        let exact = both(&[DType::F32, DType::F16, DType::Bf16]);
        fits(matrices.float).filter(|_| exact).map(|size| Cooperative { size, cell: Cell::Float })
    };
    let product = half.or_else(float)?;
    let factor = |v: Value| {
        let ends = [0, 1].map(|axis| views::source(k, inline, defined, v, axis));
        let [Some((tile, _)), Some((other, _))] = ends else { return None };
        let columns = *k.ty(tile).shape.last()?;
        (tile == other && columns.is_multiple_of(product.cell.aligned())).then_some(tile)
    };
    Some((product, [factor(a)?, factor(b)?]))
}

/// Looks for sums that grow by cooperative products alone.
struct Sums<'k> {
    k: &'k Kernel,
    defined: &'k [Option<InstId>],
    /// Products whose only use adds them to a tile of their type.
    fused: &'k [bool],
    found: &'k Found,
    classes: Classes,
}

impl Sums<'_> {
    fn union(&mut self, a: Value, b: Value) {
        let zero = |v: Value| is_zero(self.k, self.defined, v);
        if !zero(a) && !zero(b) {
            self.classes.join(a.index(), b.index());
        }
    }
    /// The product that a sum adds to another tile, and that tile.
    fn grows(&self, inst: &Inst) -> Option<(Cooperative, Value)> {
        let Op::Scalar(ScalarOp::Add) = inst.op else { return None };
        let same = |v: Value| self.k.ty(v) == self.k.ty(inst.results[0]);
        let side = (0..2).find(|&i| self.fused[inst.args[i].index()] && same(inst.args[i]))?;
        Some((self.found.products[inst.args[side].index()]?, inst.args[1 - side]))
    }
    /// Joins what becomes what: a loop's or branch's values, a sum and the tile it continues.
    fn join(&mut self) {
        let k = self.k;
        k.walk(k.body, &mut |_, inst| match &inst.op {
            Op::If | Op::For { .. } => {
                for Variable { start, values } in variables(k, inst) {
                    start.iter().chain(&values[1..]).for_each(|&v| self.union(v, values[0]));
                }
            }
            _ => {
                if let Some((_, other)) = self.grows(inst) {
                    self.union(inst.results[0], other);
                }
            }
        });
    }
    fn accumulators(&self) -> Vec<Option<usize>> {
        let k = self.k;
        // By root: the extents that its sums have, and whether each of its values may be accumulators.
        let mut sizes: Vec<Vec<usize>> = vec![vec![]; k.values.len()];
        let mut fits = vec![true; k.values.len()];
        for v in (0..k.values.len() as u32).map(Value) {
            let root = self.classes.root(v.index());
            match self.defined[v.index()].map(|i| k.inst(i)) {
                // A parameter changes from step to step: it has no copy that others could read.
                None => fits[root] &= self.only_grows(v),
                Some(inst) => match (&inst.op, self.grows(inst), self.found.products[v.index()]) {
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
        // A product that a sum takes in is never by itself.
        (0..k.values.len()).map(size).collect()
    }
    /// Returns true if every use of a value is an addition that continues the sum, or passes it on.
    fn only_grows(&self, v: Value) -> bool {
        self.k.insts.iter().filter(|inst| inst.args.contains(&v)).all(|inst| match inst.op {
            Op::For { .. } => !inst.args[..3].contains(&v),
            _ => self.grows(inst).is_some_and(|(_, other)| other == v),
        })
    }
}

/// Returns true if a value is a tile of zeros.
pub(in crate::wgsl) fn is_zero(k: &Kernel, defined: &[Option<InstId>], v: Value) -> bool {
    let Some(inst) = defined[v.index()].map(|i| k.inst(i)) else { return false };
    match &inst.op {
        Op::Const(x) => x.as_f64() == 0.0,
        Op::Structural(StructuralOp::Broadcast(_)) => is_zero(k, defined, inst.args[0]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_go_to_as_many_subgroups_as_have_work() {
        let check = |shape, size, subgroups, grid, own| {
            assert_eq!(Fragments::new(shape, size, subgroups), Fragments { size, grid, own });
        };
        check([128, 128], 16, 8, [2, 4], [4, 2]);
        check([64, 64], 16, 8, [2, 4], [2, 1]);
        check([16, 16], 16, 8, [1, 1], [1, 1]);
        check([48, 16], 16, 8, [3, 1], [1, 1]);
        check([16, 128], 8, 4, [1, 4], [2, 4]);
    }
}
