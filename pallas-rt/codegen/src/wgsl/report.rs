//! A readable report of the decisions of placement.
use super::bank_conflicts::{AccessReport, analyze_coalescing, pluralize};
use super::barriers;
use super::emit::OperationCounts;
use super::pipeline::{PipelinedOperand, report_pipelined_operands};
use super::place::cooperative_matrices::{AccumulatorFragments, StorageCell};
use super::place::views::InlineKind;
use super::place::{PlacementPlan, TileStorage};
use super::placed_kernel::PlacedKernel;
use crate::target::Target;
use pallas_ir::{Op, OperandId, OperandKind, Value};
use std::fmt;

/// Report of a shader's placement in readable form: the thread grid, the storage of each tile, the barriers, and the
/// accesses to memory.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The target that the shader is for.
    pub target: Target,
    /// Rows and columns of the thread grid.
    pub grid: (u32, u32),
    /// Tiles and scratch, with their storage, in the order of the tile IR.
    pub tiles: Vec<PlacedTile>,
    /// The reason of every barrier, in the order of the text.
    pub barriers: Vec<String>,
    /// For each line, the memory that 32 neighbouring threads access at once.
    pub reaches: Vec<AccessReport>,
    /// Maximum number of registers that a thread needs for tiles at the same time.
    pub registers: usize,
    /// Operations of a thread in one step of the innermost sequential axis, or in the whole program if there is none.
    pub step: OperationCounts,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: usize,
    /// Operands whose blocks are loaded ahead of the innermost sequential axis, or were requested to be.
    pub pipeline: Vec<PipelinedOperand>,
}

/// A tile or scratch operand in the report of a placement: its name, its storage and the reason for it, as text.
#[derive(Clone, Debug)]
pub struct PlacedTile {
    /// Value, name and operation of the tile.
    pub name: String,
    /// Element type and extents.
    pub ty: String,
    /// A description of its storage.
    pub home: String,
    /// Reason for this storage.
    pub why: &'static str,
    /// Bytes of workgroup memory that the tile occupies.
    pub workgroup_bytes: usize,
}

/// Returns the report of a placed kernel: its thread grid, the storage of its tiles, its barriers and accesses to
/// memory.
pub(super) fn describe_placement(placed: &PlacedKernel, target: &Target) -> Placement {
    let PlacedKernel { kernel: k, plan, emitted, sizes, registers, .. } = placed;
    let mut tiles = vec![];
    for (i, operand) in k.operands.iter().enumerate() {
        if operand.kind == OperandKind::Scratch {
            let (home, why, bytes) = match plan.scratches[i] {
                Some(b) => (
                    describe_buffer_location(plan, b),
                    "read or written in part, or more than registers hold",
                    buffer_workgroup_bytes(plan, b),
                ),
                None => ("values".into(), "only read and written whole: carried by loops and branches", 0),
            };
            let ty = format!("{}{:?}", operand.dtype, operand.block_shape());
            let name = format!("scratch `{}`", operand.name);
            tiles.push(PlacedTile { name, ty, home, why, workgroup_bytes: bytes });
        }
    }
    for v in (0..k.values.len() as u32).map(Value).filter(|&v| !k.ty(v).is_scalar()) {
        let Some((home, why, bytes)) = describe_tile_storage(placed, v) else { continue };
        let what = match plan.defined[v.index()].map(|i| &k.inst(i).op) {
            Some(Op::Load { from, .. }) => format!("load of `{}`", operand_name(k, *from)),
            Some(Op::Structural(op)) => op.name().to_string(),
            Some(Op::Scalar(op)) => op.to_string(),
            Some(Op::Valid { of, .. }) => format!("valid of `{}`", operand_name(k, *of)),
            Some(_) => "result of a branch or loop".to_string(),
            None => match plan.origin_inst(k, v).map(|i| &k.inst(i).op) {
                Some(Op::Load { from, .. }) => format!("carried load of `{}`", operand_name(k, *from)),
                _ => "carried".to_string(),
            },
        };
        let own = k.names.get(&v).map_or_else(String::new, |own| format!(" {own}"));
        let name = format!("{v}{own} ({what})");
        tiles.push(PlacedTile { name, ty: k.ty(v).to_string(), home, why, workgroup_bytes: bytes });
    }
    Placement {
        target: *target,
        grid: plan.grid,
        tiles,
        barriers: barriers::barrier_reasons(&emitted.nodes),
        reaches: analyze_coalescing(k, plan, &emitted.accesses),
        registers: *registers,
        step: OperationCounts {
            barriers: barriers::max_barriers_per_step(&emitted.nodes, placed.sequential),
            ..emitted.step
        },
        workgroup_bytes: sizes.workgroup_bytes(),
        pipeline: report_pipelined_operands(placed, target),
    }
}

fn operand_name(k: &pallas_ir::Kernel, id: OperandId) -> &str {
    &k.operand(id).name
}
/// Describes a buffer's place in words: the memory, and its range of words.
fn describe_buffer_location(plan: &PlacementPlan, buffer: usize) -> String {
    let b = &plan.buffers[buffer];
    let (place, unit) = match (b.outside, b.cell) {
        (true, _) => ("global scratch", "words"),
        (false, StorageCell::Word | StorageCell::Vec4) => ("workgroup memory", "words"),
        (false, cell) => ("workgroup memory", cell.workgroup_array_name()),
    };
    format!("{place}, {unit} {}..{}", b.at, b.at + b.words)
}
fn buffer_workgroup_bytes(plan: &PlacementPlan, buffer: usize) -> usize {
    let b = &plan.buffers[buffer];
    if b.outside { 0 } else { b.words * b.cell.bytes_per_element() }
}

/// Returns the description of a tile's storage, its reason, and its bytes of workgroup memory; `None` if the tile has
/// no storage and is not used.
fn describe_tile_storage(placed: &PlacedKernel, v: Value) -> Option<(String, &'static str, usize)> {
    let PlacedKernel { kernel: k, plan, .. } = placed;
    Some(match (plan.inline[v.index()], plan.tile_storage[v.index()]) {
        (Some(InlineKind::Pure(_)), _) => ("recomputed".into(), "follows from positions and scalars", 0),
        (Some(InlineKind::Fetch), _) => ("fetched".into(), "products read it from its array", 0),
        (Some(InlineKind::View), _) => ("view".into(), "moves elements of another tile", 0),
        _ if plan.fused[v.index()] => ("fused".into(), "a product whose only use adds it: summed there", 0),
        (None, TileStorage::None) => return None,
        (None, TileStorage::Registers) => {
            let own = format!("{} registers", plan.layout.registers_per_thread(v));
            match plan.copies[v.index()] {
                None => (own, "threads read only their own elements", 0),
                Some(b) => (
                    format!("{own}; copy in {}", describe_buffer_location(plan, b)),
                    "read across threads as well",
                    buffer_workgroup_bytes(plan, b),
                ),
            }
        }
        (None, TileStorage::Accumulators) => {
            let of = plan.fragments[v.index()].expect("accumulators are fragments");
            let AccumulatorFragments { size, grid: [y, x], own: [rows, columns] } = of;
            let own = format!("{rows} x {columns} matrices of {size} x {size}, {y} x {x} subgroups");
            match plan.copies[v.index()] {
                None => (own, "products add to it, and nothing else reads it", 0),
                Some(b) => {
                    let why = "accumulators have no rows or elements: what reads them, reads a copy";
                    (
                        format!("{own}; copy in {}", describe_buffer_location(plan, b)),
                        why,
                        buffer_workgroup_bytes(plan, b),
                    )
                }
            }
        }
        (None, TileStorage::Buffer(b)) => {
            let load = plan.defined[v.index()].is_some_and(|i| matches!(k.inst(i).op, Op::Load { .. }));
            let why = match (plan.layout.registers_per_thread(v) <= placed.most_registers, load) {
                (true, true) => "staged: products read it across threads",
                (true, false) => "its elements do not come thread by thread",
                (false, _) => "more registers than the profile grants a tile",
            };
            (describe_buffer_location(plan, b), why, buffer_workgroup_bytes(plan, b))
        }
    })
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((rows, columns), used, most) = (self.grid, self.workgroup_bytes, self.target.workgroup_bytes);
        writeln!(
            f,
            "profile {}: {rows} x {columns} threads, {} registers of tiles at once",
            self.target.name(),
            self.registers
        )?;
        writeln!(f, "VMEM: {used} of {most} bytes of workgroup memory")?;
        let OperationCounts { fma, fragments, product_words, global, barriers } = self.step;
        write!(f, "a thread's step: ")?;
        if fma > 0.0 {
            let (products, words) = (pluralize(fma, "multiply-add"), pluralize(product_words, "word"));
            let each = fma / product_words.max(1.0);
            write!(f, "{products} of products on {words} of workgroup memory ({each:.2} each), ")?;
        }
        writeln!(f, "{} of arrays, {}", pluralize(global, "element"), pluralize(barriers, "barrier"))?;
        if fragments > 0.0 {
            let products = pluralize(fragments, "product");
            writeln!(f, "a subgroup's step: {products} of matrices, of which that is each thread's share")?;
        } else if self.target.matrices.is_some() {
            writeln!(
                f,
                "no product by matrices: the device has none of its types and extents, or its tiles do not fit"
            )?;
        }
        for t in &self.tiles {
            writeln!(f, "  {:<28} {:<16} {:<44} {}", t.name, t.ty, t.home, t.why)?;
        }
        for reach in &self.reaches {
            writeln!(f, "  {reach}")?;
        }
        for operand in &self.pipeline {
            let PipelinedOperand { name, asked, depth, why } = operand;
            let asked = asked.map_or(String::new(), |asked| format!(", {asked} asked for"));
            writeln!(f, "pipeline: `{name}` buffered {depth}{asked}: {why}")?;
        }
        writeln!(f, "{}", pluralize(self.barriers.len(), "barrier"))?;
        for why in &self.barriers {
            writeln!(f, "  {why}")?;
        }
        Ok(())
    }
}
