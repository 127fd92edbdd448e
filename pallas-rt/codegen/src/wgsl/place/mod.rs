//! The storage of every tile, and the assignment of its elements to threads.
//!
//! One algorithm for all kernels. [`views`] finds what is recomputed instead of kept; [`layout`] spreads the axes of the
//! others over a grid of threads; each tile then gets a [`Home`]: registers if a thread's share is small enough,
//! otherwise a buffer in workgroup memory, and, if that is too small, in global scratch (largest buffers first). A tile in
//! registers that some step must read across threads has a *copy* in a buffer as well. Thread grids of the profile are
//! tried in turn; the cheapest emitted program wins, by counts of what it executes.
pub(super) mod layout;
pub(super) mod matrices;
pub(super) mod views;

use super::profile::Numbers;
use crate::passes::simplify::used;
use crate::passes::uses;
use crate::target::Matrices;
use layout::Layout;
use matrices::{Cell, Cooperative, Fragments};
use pallas_ir::{Access, InstId, Kernel, Op, OperandId, OperandKind, ScalarOp, Value};
use std::collections::BTreeMap;
use views::{Inline, access, is_product, read_by_products};

/// The storage of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Home {
    /// Nowhere: unused, recomputed, or a scalar.
    None,
    /// Spread over the threads' registers.
    Registers,
    /// In a buffer.
    Buffer(usize),
    /// Accumulators of cooperative matrices, spread over subgroups.
    Fragments,
}

/// A range of workgroup memory or scratch.
#[derive(Clone, Default, Debug)]
pub(super) struct Buffer {
    /// In the text and in tables.
    pub(super) name: String,
    /// The tile's.
    pub(super) shape: Vec<usize>,
    /// Distance between neighbours along each axis.
    pub(super) strides: Vec<usize>,
    /// What lies between rows, if there may be any.
    pub(super) pad: Option<Pad>,
    /// The storage type of an element.
    pub(super) cell: Cell,
    /// Elements.
    pub(super) words: usize,
    /// Global scratch instead of workgroup memory.
    pub(super) outside: bool,
    /// The user's scratch: needed through the whole kernel, and never moved out.
    pub(super) scratch: bool,
    /// First word; set when all lives are known.
    pub(super) at: usize,
}

impl Buffer {
    /// Rows to a group and words behind each, if there are such.
    pub(super) fn groups(&self) -> Option<(usize, usize)> {
        self.pad.filter(|pad| pad.group > 0).map(|pad| (pad.rows, pad.group))
    }
    /// The permutation of columns, if there is one.
    pub(super) fn swizzle(&self) -> Option<Swizzle> {
        self.pad.and_then(|pad| pad.swizzle)
    }
}

/// How the rows of a buffer lie, by which what threads touch at once is in different banks: with words between them or, where
/// memory has no room for these, with columns that change places.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pad {
    /// Behind each row.
    pub(super) row: usize,
    /// Behind each group of `rows`.
    pub(super) group: usize,
    /// Rows of a group.
    pub(super) rows: usize,
    /// Columns change places.
    pub(super) swizzle: Option<Swizzle>,
}

/// Columns of a row that change places: column `c` of row `r` lies where `c ^ (r / rows % period * unit)` would. Units and
/// periods are powers of two, and whole periods of units make a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Swizzle {
    /// Neighbours that stay together.
    pub(super) unit: usize,
    /// Different orders of columns.
    pub(super) period: usize,
    /// Rows that share one.
    pub(super) rows: usize,
}

impl Swizzle {
    /// The position of column `column` in row `row`.
    pub(super) fn column(self, row: i64, column: i64) -> i64 {
        column ^ (row / self.rows as i64 % self.period as i64 * self.unit as i64)
    }
}

impl Pad {
    /// Words behind the groups of so many rows, but the last one.
    fn behind(self, rows: usize) -> usize {
        (rows.max(1) - 1).checked_div(self.rows).unwrap_or(0) * self.group
    }
}

/// Distances between neighbours of matrices with such a pad.
pub(super) fn padded(shape: &[usize], pad: Pad) -> Vec<usize> {
    let [front @ .., rows, columns] = shape else { unreachable!("matrices have rows and columns") };
    let pitch = columns + pad.row;
    let matrix = rows * pitch + pad.behind(*rows);
    let mut strides: Vec<usize> = row_major(front).into_iter().map(|n| n * matrix).collect();
    strides.extend([pitch, 1]);
    strides
}

/// A kernel's placement on one grid of threads.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) inline: Vec<Option<Inline>>,
    pub(super) defined: Vec<Option<InstId>>,
    /// By value: something reads it.
    pub(super) used: Vec<bool>,
    pub(super) layout: Layout,
    pub(super) homes: Vec<Home>,
    /// By value: the buffer that holds a register tile's elements as well.
    pub(super) copies: Vec<Option<usize>>,
    /// By scratch operand.
    pub(super) scratches: Vec<Option<usize>>,
    /// Products whose only use adds them to another tile: computed there.
    pub(super) fused: Vec<bool>,
    /// Threads that compute a cooperative product together.
    pub(super) lanes: usize,
    /// By value: the accumulators that a tile is, or a cooperative product adds to.
    pub(super) fragments: Vec<Option<Fragments>>,
    /// By value: how the product it is the result of is computed.
    pub(super) products: Vec<Option<Cooperative>>,
    /// By value: what its elements are kept in.
    cells: Vec<Cell>,
    pub(super) buffers: Vec<Buffer>,
    /// What lies between the rows of buffers, by name, where it is not the usual pad.
    pads: BTreeMap<String, Pad>,
    /// Rows and columns of threads.
    pub(super) grid: (u32, u32),
    /// Threads have vectors of four elements, in registers and in workgroup memory.
    pub(super) fours: bool,
    /// The positions of sorts lie in global memory.
    pub(super) sorts_outside: bool,
}

impl Plan {
    pub(super) fn threads(&self) -> usize {
        (self.grid.0 * self.grid.1) as usize
    }
    /// The instruction that a value comes from: a loop's parameter comes from where its first value does.
    pub(super) fn origin(&self, k: &Kernel, v: Value) -> Option<InstId> {
        self.defined[v.index()].or_else(|| {
            k.insts.iter().filter(|inst| matches!(inst.op, Op::For { .. })).find_map(|inst| {
                let i = k.region(inst.regions[0]).params[1..].iter().position(|p| *p == v)?;
                self.origin(k, inst.args[3 + i])
            })
        })
    }
    /// Gives a tile in registers a copy in memory.
    pub(super) fn copy(&mut self, k: &Kernel, v: Value) {
        let name = match self.origin(k, v).map(|i| &k.inst(i).op) {
            Some(Op::Load { from, .. }) => format!("copy_{}_{}", k.operand(*from).name, v.0),
            _ => format!("copy_{}", k.label(v)),
        };
        let buffer = self.buffer(k, v, &name);
        self.copies[v.index()] = Some(buffer);
    }
    fn buffer(&mut self, k: &Kernel, v: Value, name: &str) -> usize {
        let shape = k.ty(v).shape.clone();
        let (mut pad, mut behind) = (None, 0);
        let cell = self.cells[v.index()];
        if let [.., rows, columns] = shape[..]
            && rows > 1
            && columns > 0
        {
            // Threads that read down a column would meet in one memory bank.
            let across = columns.is_multiple_of(2) && !self.fours && self.read_across(k, v);
            let usual = match cell {
                Cell::Word | Cell::Four => usize::from(across),
                // Eight rows of 16 bytes lie in different banks, and matrices begin where vectors do.
                Cell::Float | Cell::Half => cell.aligned(),
            };
            let own = self.pads.get(name).copied().unwrap_or(Pad { row: usual, ..Pad::default() });
            (pad, behind) = (Some(own), own.behind(rows));
        }
        let strides = pad.map_or_else(|| row_major(&shape), |pad| padded(&shape, pad));
        let words = shape.iter().zip(&strides).map(|(n, s)| n * s).max().unwrap_or(1).max(1) + behind;
        let pad = pad.filter(|_| cell == Cell::Word);
        let cell = if cell.is_bits() { self.bits() } else { cell };
        self.push(Buffer { name: name.into(), shape, strides, pad, cell, words, ..Buffer::default() })
    }
    /// What a tile's bits lie in, until it turns out that a thread writes a word alone.
    fn bits(&self) -> Cell {
        if self.fours { Cell::Four } else { Cell::Word }
    }
    fn push(&mut self, buffer: Buffer) -> usize {
        self.buffers.push(buffer);
        self.buffers.len() - 1
    }
    /// Returns true if some product contracts a tile along its last axis while its other axis is spread over columns of
    /// threads.
    fn read_across(&self, k: &Kernel, v: Value) -> bool {
        let last = k.ty(v).shape.len() - 1;
        let mut across = false;
        k.walk(k.body, &mut |_, inst| {
            if let Op::Structural(op) = &inst.op
                && let Access::Contract { contract, .. } = access(k, op, inst)
            {
                for (side, &arg) in inst.args.iter().enumerate() {
                    let axes = contract.iter().map(|p| if side == 0 { p.0 } else { p.1 });
                    across |= axes.into_iter().any(|a| self.source(k, arg, a) == Some((v, last)));
                }
            }
        });
        across
    }
    /// The number that a scalar is.
    pub(super) fn constant(&self, k: &Kernel, v: Value) -> Option<i64> {
        match k.inst(self.defined[v.index()]?).op {
            Op::Const(x) => Some(x.as_i64()),
            _ => None,
        }
    }
    /// The tile and axis that an axis of a view shows.
    pub(super) fn source(&self, k: &Kernel, v: Value, axis: usize) -> Option<(Value, usize)> {
        views::source(k, &self.inline, &self.defined, v, axis)
    }
    /// Returns true if tiles are stored as the shader's own f16.
    pub(super) fn halves(&self) -> bool {
        self.cells.contains(&Cell::Half)
    }
}

/// A union-find structure: numbers joined into classes, each represented by one of its members.
#[derive(Clone, PartialEq)]
pub(super) struct Classes(Vec<usize>);

impl Classes {
    pub(super) fn new(n: usize) -> Self {
        Classes((0..n).collect())
    }
    pub(super) fn root(&self, mut a: usize) -> usize {
        while self.0[a] != a {
            a = self.0[a];
        }
        a
    }
    /// Joins the class of `a` to that of `b`.
    pub(super) fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a] = b;
    }
}

/// Distances between neighbours in row-major order.
pub(super) fn row_major(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|a| shape[a + 1..].iter().product()).collect()
}

/// The part of a placement that does not depend on the grid of threads.
pub(super) struct Analysis {
    inline: Vec<Option<Inline>>,
    defined: Vec<Option<InstId>>,
    layout: Layout,
    used: Vec<bool>,
    staged: Vec<bool>,
    fused: Vec<bool>,
    matrices: matrices::Found,
}

impl Analysis {
    /// `whole` tells whether an array's rows are whole vectors.
    pub(super) fn new(
        k: &Kernel,
        numbers: &Numbers,
        whole: impl Fn(OperandId) -> bool,
        matrices: Option<Matrices>,
    ) -> Analysis {
        let (mut inline, defined) = views::inline(k, !numbers.stage && numbers.registers > 0);
        if numbers.registers == 0 {
            inline.fill(None);
        }
        let mut layout = layout::layout(k, &inline, &defined, &whole, numbers.stage);
        // Rows of arrays that lie along both directions of one grid of threads: somewhere between them tiles change threads.
        if numbers.stage && layout.crossed() && views::keep_turned(k, &mut inline, &defined) {
            layout = layout::layout(k, &inline, &defined, &whole, numbers.stage);
        }
        let fused = if numbers.registers == 0 { vec![false; k.values.len()] } else { fused(k, &inline) };
        let matrices = match matrices {
            Some(matrices) => matrices::Found::new(k, &inline, &defined, &fused, matrices),
            None => matrices::Found::none(k),
        };
        Analysis { used: used(k), staged: staged(k, &inline), fused, inline, defined, layout, matrices }
    }

    /// Homes on a grid of threads.
    pub(super) fn plan(&self, k: &Kernel, numbers: &Numbers, grid: (u32, u32), pads: &BTreeMap<String, Pad>) -> Plan {
        // Workgroup memory is vectors where threads have them.
        let vectors = numbers.vector > 1 && (numbers.always || self.layout.classes.iter().any(|c| c.row));
        let vector = if vectors { numbers.vector } else { 1 };
        let mut plan = Plan {
            inline: self.inline.clone(),
            defined: self.defined.clone(),
            used: self.used.clone(),
            layout: self.layout.on(grid, vector, [numbers.always, numbers.stage]),
            homes: vec![Home::None; k.values.len()],
            copies: vec![None; k.values.len()],
            scratches: vec![None; k.operands.len()],
            fused: self.fused.clone(),
            lanes: self.matrices.lanes,
            fragments: vec![None; k.values.len()],
            products: self.matrices.products.clone(),
            cells: self.matrices.cells.clone(),
            buffers: vec![],
            pads: pads.clone(),
            grid,
            fours: vectors,
            sorts_outside: false,
        };
        for v in (0..k.values.len() as u32).map(Value) {
            if k.ty(v).is_scalar() || !self.used[v.index()] || self.inline[v.index()].is_some() {
                continue;
            }
            let fragments = self.matrices.fragments(k, v, plan.threads());
            if fragments.is_some() {
                (plan.homes[v.index()], plan.fragments[v.index()]) = (Home::Fragments, fragments);
                continue;
            }
            plan.products[v.index()] = None;
            let spread = self.defined[v.index()].is_none_or(|i| spreads(k, i)) && !self.staged[v.index()];
            plan.homes[v.index()] = if spread && plan.layout.registers(v) <= numbers.registers {
                Home::Registers
            } else {
                plan.fused[v.index()] = false;
                Home::Buffer(plan.buffer(k, v, &buffer_name(k, self.defined[v.index()], v)))
            };
        }
        // A product joins a sum that is where it would be itself: in registers, or in accumulators.
        k.walk(k.body, &mut |_, inst| {
            if let [result] = inst.results[..] {
                let home = plan.homes[result.index()];
                for v in &inst.args {
                    plan.fused[v.index()] &= home == plan.homes[v.index()] && !matches!(home, Home::Buffer(_));
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
                let (strides, words) = (row_major(&shape), shape.iter().product::<usize>().max(1));
                let (name, cell) = (format!("scratch_{}", operand.name), plan.bits());
                let buffer = Buffer { name, shape, strides, cell, words, scratch: true, ..Buffer::default() };
                plan.scratches[i] = Some(plan.push(buffer));
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

/// Returns true if an instruction's elements can be computed by the threads that hold them.
fn spreads(k: &Kernel, id: InstId) -> bool {
    let inst = k.inst(id);
    match &inst.op {
        Op::Structural(op) => match access(k, op, inst) {
            Access::Map(pieces) => pieces.len() == 1,
            Access::Flat | Access::Gather { .. } | Access::Scatter { .. } | Access::Nest(_) => false,
            Access::Scan { .. } | Access::Sort { .. } | Access::Arg { .. } => false,
            _ => true,
        },
        _ => true,
    }
}

/// Loads that only products read: brought to memory by all threads together.
fn staged(k: &Kernel, inline: &[Option<Inline>]) -> Vec<bool> {
    let is_view = |v: Value| inline[v.index()] == Some(Inline::View);
    let only_products = read_by_products(k, vec![true; k.values.len()], is_view);
    let mut staged = vec![false; k.values.len()];
    k.walk(k.body, &mut |_, inst| {
        if let (Op::Load { .. }, [v]) = (&inst.op, &inst.results[..]) {
            staged[v.index()] = only_products[v.index()];
        }
    });
    staged
}

/// Products whose only use, in the same region, adds them to another tile of their type.
fn fused(k: &Kernel, inline: &[Option<Inline>]) -> Vec<bool> {
    let uses = uses(k);
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
                // One of the two operands: the other is where the sum starts.
                if let Some(v) = inst.args.iter().find(|v| products.contains(v) && k.ty(**v) == ty) {
                    fused[v.index()] = true;
                }
            }
        }
    }
    fused
}
