//! The storage of every tile in a shader, and the assignment of its elements to threads.
//!
//! One algorithm places all kernels. [`views`] finds values that are recomputed instead of stored. [`thread_layout`]
//! spreads the axes of the other tiles over a grid of threads. Each tile then gets a storage class ([`TileStorage`]):
//! registers if a thread's share is small enough, otherwise a buffer in workgroup memory or, if that is too small, in
//! global scratch (largest buffers first). A tile in registers that some step reads across threads also has a *copy* in
//! a buffer. The thread grids of the profile are tried in turn, and the program that is cheapest by the operations that
//! it executes is chosen.
pub(super) mod cooperative_matrices;
pub(super) mod thread_layout;
pub(super) mod views;

use super::profile::ProfileParameters;
use crate::passes::count_uses;
use crate::passes::simplify::needed_values;
use crate::target::CooperativeMatrices;
use cooperative_matrices::{AccumulatorFragments, CooperativeProduct, StorageCell};
use pallas_ir::{AccessForm, InstId, Kernel, Op, OperandId, OperandKind, ScalarOp, Value};
use std::collections::BTreeMap;
use thread_layout::ThreadLayout;
use views::{InlineKind, access_form, find_product_only_values, is_product};

/// The storage class of a tile: none, registers, a buffer, or accumulators of cooperative matrices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TileStorage {
    /// No storage: the tile is unused, recomputed, or a scalar.
    None,
    /// Registers: each thread has a part of the elements.
    Registers,
    /// The buffer with this index.
    Buffer(usize),
    /// Accumulators of cooperative matrices, distributed over subgroups.
    Accumulators,
}

/// A tile's range of workgroup memory or of global scratch.
#[derive(Clone, Default, Debug)]
pub(super) struct TileBuffer {
    /// Name in the shader's text and in tables.
    pub(super) name: String,
    /// Shape of the tile.
    pub(super) shape: Vec<usize>,
    /// Distance between neighbours along each axis, in elements.
    pub(super) strides: Vec<usize>,
    /// Words between rows that avoid bank conflicts, if rows may have any.
    pub(super) pad: Option<RowArrangement>,
    /// The storage type of an element.
    pub(super) cell: StorageCell,
    /// Number of elements, with those between rows.
    pub(super) words: usize,
    /// True if the buffer is in global scratch instead of workgroup memory.
    pub(super) outside: bool,
    /// True for a scratch operand of the kernel: it is needed during the whole kernel, and never moved to global
    /// scratch.
    pub(super) scratch: bool,
    /// Index of the first word; it is set when the lifetimes of all buffers are known.
    pub(super) at: usize,
}

impl TileBuffer {
    /// Returns the number of rows of a group and the padding words after each group; `None` if there are no such
    /// words.
    pub(super) fn row_group_padding(&self) -> Option<(usize, usize)> {
        self.pad.filter(|pad| pad.group > 0).map(|pad| (pad.rows, pad.group))
    }
    /// Returns the permutation of columns, if there is one.
    pub(super) fn swizzle(&self) -> Option<Swizzle> {
        self.pad.and_then(|pad| pad.swizzle)
    }
}

/// Arrangement of the rows of a buffer that avoids bank conflicts of threads: words between rows or, where memory has
/// no room for these, a permutation of columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RowArrangement {
    /// Words after each row.
    pub(super) row: usize,
    /// Words after each group of `rows` rows.
    pub(super) group: usize,
    /// Number of rows in a group.
    pub(super) rows: usize,
    /// The permutation of columns, if there is one.
    pub(super) swizzle: Option<Swizzle>,
}

/// A permutation of the columns of each row: column `c` of row `r` is stored at column `c ^ (r / rows % period *
/// unit)`. Unit and period are powers of two, and the length of a row is a multiple of their product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Swizzle {
    /// Number of neighbouring columns that stay together.
    pub(super) unit: usize,
    /// Number of different orders of columns.
    pub(super) period: usize,
    /// Number of successive rows that have the same order.
    pub(super) rows: usize,
}

impl Swizzle {
    /// Returns the column at which column `column` of row `row` is stored.
    pub(super) fn stored_column(self, row: i64, column: i64) -> i64 {
        column ^ (row / self.rows as i64 % self.period as i64 * self.unit as i64)
    }
}

impl RowArrangement {
    /// Returns the number of padding words after groups of rows in a tile of `rows` rows; the last group has none.
    fn group_padding_words(self, rows: usize) -> usize {
        (rows.max(1) - 1).checked_div(self.rows).unwrap_or(0) * self.group
    }
}

/// Returns the strides of a tile of at least two axes whose rows have this arrangement.
pub(super) fn padded_strides(shape: &[usize], arrangement: RowArrangement) -> Vec<usize> {
    let [front @ .., rows, columns] = shape else { unreachable!("matrices have rows and columns") };
    let pitch = columns + arrangement.row;
    let matrix = rows * pitch + arrangement.group_padding_words(*rows);
    let mut strides: Vec<usize> = row_major_strides(front).into_iter().map(|n| n * matrix).collect();
    strides.extend([pitch, 1]);
    strides
}

/// A kernel's placement on one grid of threads.
#[derive(Clone, Debug)]
pub(super) struct PlacementPlan {
    /// Values that are recomputed instead of stored, and the instruction that defines each value.
    pub(super) inline: Vec<Option<InlineKind>>,
    pub(super) defined: Vec<Option<InstId>>,
    /// For each value, true if an instruction reads it.
    pub(super) used: Vec<bool>,
    pub(super) layout: ThreadLayout,
    pub(super) tile_storage: Vec<TileStorage>,
    /// For each value in registers, the buffer that has a copy of its elements.
    pub(super) copies: Vec<Option<usize>>,
    /// For each scratch operand its buffer.
    pub(super) scratches: Vec<Option<usize>>,
    /// For each value, true if it is a product whose only use adds it to another tile, so that it is computed there.
    pub(super) fused: Vec<bool>,
    /// Number of threads that compute a cooperative product together.
    pub(super) lanes: usize,
    /// For each value, its accumulators if its storage class is [`TileStorage::Accumulators`].
    pub(super) fragments: Vec<Option<AccumulatorFragments>>,
    /// For each value that is a product, the cooperative matrices that compute it.
    pub(super) products: Vec<Option<CooperativeProduct>>,
    /// For each value, the storage type of its elements.
    cells: Vec<StorageCell>,
    pub(super) buffers: Vec<TileBuffer>,
    /// Arrangement of the rows of buffers, by their names, where it is not the usual one.
    pads: BTreeMap<String, RowArrangement>,
    /// Rows and columns of the grid of threads.
    pub(super) grid: (u32, u32),
    /// True if threads process vectors of four elements (vec4), in registers and in workgroup memory.
    pub(super) uses_vec4: bool,
    /// True if the positions of sorts are in global memory.
    pub(super) sorts_outside: bool,
}

impl PlacementPlan {
    pub(super) fn thread_count(&self) -> usize {
        (self.grid.0 * self.grid.1) as usize
    }
    /// Returns the instruction that a value comes from: of a loop's parameter, the one of its initial value. Returns
    /// `None` for any other parameter of a region.
    pub(super) fn origin_inst(&self, k: &Kernel, v: Value) -> Option<InstId> {
        self.defined[v.index()].or_else(|| {
            k.insts.iter().filter(|inst| matches!(inst.op, Op::For { .. })).find_map(|inst| {
                let i = k.region(inst.regions[0]).params[1..].iter().position(|p| *p == v)?;
                self.origin_inst(k, inst.args[3 + i])
            })
        })
    }
    /// Gives a tile in registers a copy in a buffer.
    pub(super) fn add_copy_buffer(&mut self, k: &Kernel, v: Value) {
        let name = match self.origin_inst(k, v).map(|i| &k.inst(i).op) {
            Some(Op::Load { from, .. }) => format!("copy_{}_{}", k.operand(*from).name, v.0),
            _ => format!("copy_{}", k.label(v)),
        };
        let buffer = self.add_tile_buffer(k, v, &name);
        self.copies[v.index()] = Some(buffer);
    }
    /// Creates the buffer of a tile, with words between rows if threads would otherwise access one bank.
    fn add_tile_buffer(&mut self, k: &Kernel, v: Value, name: &str) -> usize {
        let shape = k.ty(v).shape.clone();
        let (mut pad, mut behind) = (None, 0);
        let cell = self.cells[v.index()];
        if let [.., rows, columns] = shape[..]
            && rows > 1
            && columns > 0
        {
            // Threads that read down a column would access the same memory bank.
            let across = columns.is_multiple_of(2) && !self.uses_vec4 && self.is_read_down_column(k, v);
            let usual = match cell {
                StorageCell::Word | StorageCell::Vec4 => usize::from(across),
                // Eight rows of 16 bytes are in different banks, and matrices begin at a multiple of a vector.
                StorageCell::F32 | StorageCell::F16 => cell.alignment_elements(),
            };
            let own =
                self.pads.get(name).copied().unwrap_or(RowArrangement { row: usual, ..RowArrangement::default() });
            (pad, behind) = (Some(own), own.group_padding_words(rows));
        }
        let strides = pad.map_or_else(|| row_major_strides(&shape), |pad| padded_strides(&shape, pad));
        let words = shape.iter().zip(&strides).map(|(n, s)| n * s).max().unwrap_or(1).max(1) + behind;
        let pad = pad.filter(|_| cell == StorageCell::Word);
        let cell = if cell.has_raw_bits() { self.raw_bits_cell() } else { cell };
        self.push_buffer(TileBuffer { name: name.into(), shape, strides, pad, cell, words, ..TileBuffer::default() })
    }
    /// Returns the storage type for elements of any type: whole vectors (vec4) if threads process vectors, else words;
    /// a buffer that turns out to be written word by word gets words afterwards.
    fn raw_bits_cell(&self) -> StorageCell {
        if self.uses_vec4 { StorageCell::Vec4 } else { StorageCell::Word }
    }
    fn push_buffer(&mut self, buffer: TileBuffer) -> usize {
        self.buffers.push(buffer);
        self.buffers.len() - 1
    }
    /// Returns true if a product contracts the tile along its last axis while its other axis is spread over the
    /// columns of the thread grid.
    fn is_read_down_column(&self, k: &Kernel, v: Value) -> bool {
        let last = k.ty(v).shape.len() - 1;
        let mut across = false;
        k.walk(k.body, &mut |_, inst| {
            if let Op::Structural(op) = &inst.op
                && let AccessForm::Contract { contract, .. } = access_form(k, op, inst)
            {
                for (side, &arg) in inst.args.iter().enumerate() {
                    let axes = contract.iter().map(|p| if side == 0 { p.0 } else { p.1 });
                    across |= axes.into_iter().any(|a| self.source_axis(k, arg, a) == Some((v, last)));
                }
            }
        });
        across
    }
    /// Returns the value of a scalar that a constant defines, as an integer; `None` for any other value.
    pub(super) fn constant_value(&self, k: &Kernel, v: Value) -> Option<i64> {
        match k.inst(self.defined[v.index()]?).op {
            Op::Const(x) => Some(x.as_i64()),
            _ => None,
        }
    }
    /// Returns the tile and axis that an axis of a view shows, if there is one.
    pub(super) fn source_axis(&self, k: &Kernel, v: Value, axis: usize) -> Option<(Value, usize)> {
        views::source_axis(k, &self.inline, &self.defined, v, axis)
    }
    /// Returns true if some tile is stored as f16.
    pub(super) fn has_f16_tiles(&self) -> bool {
        self.cells.contains(&StorageCell::F16)
    }
}

/// A union-find structure: numbers are joined into classes, and each class is represented by one of its members.
#[derive(Clone, PartialEq)]
pub(super) struct UnionFind(Vec<usize>);

impl UnionFind {
    pub(super) fn new(n: usize) -> Self {
        UnionFind((0..n).collect())
    }
    pub(super) fn root(&self, mut a: usize) -> usize {
        while self.0[a] != a {
            a = self.0[a];
        }
        a
    }
    /// Joins the class of `a` to the class of `b`.
    pub(super) fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a] = b;
    }
}

/// Returns the strides of a row-major array.
pub(super) fn row_major_strides(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|a| shape[a + 1..].iter().product()).collect()
}

/// The part of a placement that does not depend on the grid of threads.
pub(super) struct PlacementAnalysis {
    inline: Vec<Option<InlineKind>>,
    defined: Vec<Option<InstId>>,
    layout: ThreadLayout,
    used: Vec<bool>,
    staged: Vec<bool>,
    fused: Vec<bool>,
    matrices: cooperative_matrices::CooperativeMatrixAnalysis,
}

impl PlacementAnalysis {
    /// Analyses a kernel. `has_whole_vectors` returns true for arrays whose rows consist of whole vectors; `matrices`
    /// are the device's, `None` if it has none.
    pub(super) fn new(
        k: &Kernel,
        parameters: &ProfileParameters,
        has_whole_vectors: impl Fn(OperandId) -> bool,
        matrices: Option<CooperativeMatrices>,
    ) -> PlacementAnalysis {
        let (mut inline, defined) = views::find_inlined_values(k, !parameters.stage && parameters.registers > 0);
        if parameters.registers == 0 {
            inline.fill(None);
        }
        let mut layout = thread_layout::find_layout(k, &inline, &defined, &has_whole_vectors, parameters.stage);
        // If rows of arrays lie along both directions of a thread grid, elements have to change threads somewhere
        // between them.
        if parameters.stage
            && layout.has_rows_in_both_directions()
            && views::store_transposed_views(k, &mut inline, &defined)
        {
            layout = thread_layout::find_layout(k, &inline, &defined, &has_whole_vectors, parameters.stage);
        }
        let fused =
            if parameters.registers == 0 { vec![false; k.values.len()] } else { find_fused_products(k, &inline) };
        let matrices = match matrices {
            Some(matrices) => {
                cooperative_matrices::CooperativeMatrixAnalysis::new(k, &inline, &defined, &fused, matrices)
            }
            None => cooperative_matrices::CooperativeMatrixAnalysis::without_matrices(k),
        };
        PlacementAnalysis {
            used: needed_values(k),
            staged: find_staged_loads(k, &inline),
            fused,
            inline,
            defined,
            layout,
            matrices,
        }
    }

    /// Determines the storage of every tile on a grid of threads. `arrangements` has those of rows, by the buffer's
    /// name.
    pub(super) fn plan_on_grid(
        &self,
        k: &Kernel,
        parameters: &ProfileParameters,
        grid: (u32, u32),
        arrangements: &BTreeMap<String, RowArrangement>,
    ) -> PlacementPlan {
        // Workgroup memory consists of vectors if threads process vectors.
        let vectors =
            parameters.vector > 1 && (parameters.vectorize_always || self.layout.classes.iter().any(|c| c.row));
        let vector = if vectors { parameters.vector } else { 1 };
        let mut plan = PlacementPlan {
            inline: self.inline.clone(),
            defined: self.defined.clone(),
            used: self.used.clone(),
            layout: self.layout.spread_over_grid(grid, vector, [parameters.vectorize_always, parameters.stage]),
            tile_storage: vec![TileStorage::None; k.values.len()],
            copies: vec![None; k.values.len()],
            scratches: vec![None; k.operands.len()],
            fused: self.fused.clone(),
            lanes: self.matrices.lanes,
            fragments: vec![None; k.values.len()],
            products: self.matrices.products.clone(),
            cells: self.matrices.cells.clone(),
            buffers: vec![],
            pads: arrangements.clone(),
            grid,
            uses_vec4: vectors,
            sorts_outside: false,
        };
        for v in (0..k.values.len() as u32).map(Value) {
            if k.ty(v).is_scalar() || !self.used[v.index()] || self.inline[v.index()].is_some() {
                continue;
            }
            let fragments = self.matrices.accumulator_fragments(k, v, plan.thread_count());
            if fragments.is_some() {
                (plan.tile_storage[v.index()], plan.fragments[v.index()]) = (TileStorage::Accumulators, fragments);
                continue;
            }
            plan.products[v.index()] = None;
            let spread =
                self.defined[v.index()].is_none_or(|i| can_compute_per_thread(k, i)) && !self.staged[v.index()];
            plan.tile_storage[v.index()] = if spread && plan.layout.registers_per_thread(v) <= parameters.registers {
                TileStorage::Registers
            } else {
                plan.fused[v.index()] = false;
                TileStorage::Buffer(plan.add_tile_buffer(k, v, &buffer_name(k, self.defined[v.index()], v)))
            };
        }
        // A product is fused with a sum of its own storage class: registers, or accumulators.
        k.walk(k.body, &mut |_, inst| {
            if let [result] = inst.results[..] {
                let home = plan.tile_storage[result.index()];
                for v in &inst.args {
                    plan.fused[v.index()] &=
                        home == plan.tile_storage[v.index()] && !matches!(home, TileStorage::Buffer(_));
                }
            }
        });
        let mut touched = vec![false; k.operands.len()];
        k.walk(k.body, &mut |_, inst| {
            if let Op::Load { from: id, .. } | Op::Store { to: id, .. } = &inst.op {
                touched[id.index()] = true;
            }
        });
        for (i, operand) in k.operands.iter().enumerate() {
            if operand.kind == OperandKind::Scratch && touched[i] {
                let shape = operand.block_shape();
                let (strides, words) = (row_major_strides(&shape), shape.iter().product::<usize>().max(1));
                let (name, cell) = (format!("scratch_{}", operand.name), plan.raw_bits_cell());
                let buffer = TileBuffer { name, shape, strides, cell, words, scratch: true, ..TileBuffer::default() };
                plan.scratches[i] = Some(plan.push_buffer(buffer));
            }
        }
        plan
    }
}

fn buffer_name(k: &Kernel, defined: Option<InstId>, v: Value) -> String {
    match defined.map(|i| &k.inst(i).op) {
        Some(Op::Load { from, .. }) => format!("tile_{}_{}", k.operand(*from).name, v.0),
        _ => format!("tile_{}", k.label(v)),
    }
}

/// Returns true if each element of an instruction's result can be computed by the thread that holds it.
fn can_compute_per_thread(k: &Kernel, id: InstId) -> bool {
    let inst = k.inst(id);
    match &inst.op {
        Op::Structural(op) => match access_form(k, op, inst) {
            AccessForm::Map(pieces) => pieces.len() == 1,
            AccessForm::Flat | AccessForm::Gather { .. } | AccessForm::Scatter { .. } | AccessForm::Nest(_) => false,
            AccessForm::Scan { .. } | AccessForm::Sort { .. } | AccessForm::Arg { .. } => false,
            _ => true,
        },
        _ => true,
    }
}

/// Returns for each value true if it is a load that only products read: all threads together copy it to workgroup
/// memory.
fn find_staged_loads(k: &Kernel, inline: &[Option<InlineKind>]) -> Vec<bool> {
    let is_view = |v: Value| inline[v.index()] == Some(InlineKind::View);
    let only_products = find_product_only_values(k, vec![true; k.values.len()], is_view);
    let mut staged = vec![false; k.values.len()];
    k.walk(k.body, &mut |_, inst| {
        if let (Op::Load { .. }, [v]) = (&inst.op, &inst.results[..]) {
            staged[v.index()] = only_products[v.index()];
        }
    });
    staged
}

/// Returns for each value true if it is a product whose only use, in the same region, adds it to another tile of its
/// type.
fn find_fused_products(k: &Kernel, inline: &[Option<InlineKind>]) -> Vec<bool> {
    let uses = count_uses(k);
    let mut fused = vec![false; k.values.len()];
    for r in &k.regions {
        let mut products = vec![];
        for &id in &r.insts {
            let inst = k.inst(id);
            if is_product(k, inst) && uses[inst.results[0].index()] == 1 && !k.ty(inst.results[0]).is_scalar() {
                products.push(inst.results[0]);
            }
            if matches!(inst.op, Op::Scalar(ScalarOp::Add)) && inline[inst.results[0].index()].is_none() {
                let ty = k.ty(inst.results[0]);
                // Only one of the two operands: the sum begins with the other.
                if let Some(v) = inst.args.iter().find(|v| products.contains(v) && k.ty(**v) == ty) {
                    fused[v.index()] = true;
                }
            }
        }
    }
    fused
}
