//! The facts about a kernel that fit on one screen.
use super::{ExplainedKernel, Explanation};
use crate::exec::{Cost, estimate_instruction_costs};
use crate::markup::{align_columns, bytes_text};
use pallas_ir::{BlockDim, InstId, Loc, Op, Operand, OperandKind, Semantics};
use std::collections::BTreeMap;
use std::fmt;

/// Number of operations that a transcendental function counts as.
const OPS_PER_TRANSCENDENTAL: f64 = 10.0;
/// Maximum number of lines of the user's code that are listed with their shares of the time.
const MAX_LISTED_SOURCE_LINES: usize = 5;

/// A row of the table of operands.
pub(super) struct OperandRow {
    pub name: String,
    pub kind: &'static str,
    /// The array's element type and shape.
    pub array: String,
    /// Bytes of the array; 0 for a scalar and for scratch.
    pub array_bytes: usize,
    pub block: String,
    pub block_bytes: usize,
    /// Number of blocks along each dimension.
    pub blocks: String,
}

impl OperandRow {
    pub(super) const HEADINGS: [&'static str; 7] =
        ["operand", "kind", "array", "bytes", "block", "bytes of a block", "blocks"];

    pub(super) fn cells(&self) -> [String; 7] {
        let [array_bytes, block_bytes] =
            [self.array_bytes, self.block_bytes].map(|n| if n == 0 { String::new() } else { bytes_text(n) });
        let (array, block, blocks) = (self.array.clone(), self.block.clone(), self.blocks.clone());
        [self.name.clone(), self.kind.into(), array, array_bytes, block, block_bytes, blocks]
    }
}

/// Joins texts with `separator` between them.
pub(super) fn join_texts<T: ToString>(all: impl IntoIterator<Item = T>, separator: &str) -> String {
    all.into_iter().map(|n| n.to_string()).collect::<Vec<_>>().join(separator)
}

impl ExplainedKernel {
    pub(super) fn operand_rows(&self) -> Vec<OperandRow> {
        self.traced.operands.iter().zip(&self.geometry.shapes).map(|(o, shape)| self.operand_row(o, shape)).collect()
    }

    fn operand_row(&self, operand: &Operand, shape: &[usize]) -> OperandRow {
        let element = operand.dtype.bytes();
        let (kind, bytes) = match operand.kind {
            OperandKind::Input => ("in", element),
            OperandKind::Output { .. } => ("out", element),
            OperandKind::Prefetch => ("prefetch", element),
            OperandKind::Scratch => ("scratch", element),
            OperandKind::Param => ("scalar", 0),
        };
        let is_blocked = matches!(operand.kind, OperandKind::Input | OperandKind::Output { .. });
        let (mut block, mut blocks) = (String::new(), String::new());
        if is_blocked {
            let size = |dim: &BlockDim| if dim.is_kept() { dim.size().to_string() } else { "_".into() };
            block = format!("[{}]", join_texts(operand.block.iter().map(size), ", "));
            let count = |(dim, &extent): (&BlockDim, &usize)| match dim {
                BlockDim::Element { .. } => "windows".into(),
                dim => extent.div_ceil(dim.size().max(1)).to_string(),
            };
            blocks = join_texts(operand.block.iter().zip(shape).map(count), " x ");
            if self.has_data_dependent_blocks(operand) {
                blocks += ", chosen by data";
            }
        }
        let elements: usize = operand.block.iter().map(|b| b.size()).product();
        OperandRow {
            name: operand.name.clone(),
            kind,
            array: format!("{}[{}]", operand.dtype, join_texts(shape, ", ")),
            array_bytes: if kind == "scratch" { 0 } else { shape.iter().product::<usize>() * bytes },
            block,
            block_bytes: if kind == "prefetch" { 0 } else { elements * bytes },
            blocks,
        }
    }

    /// Returns true if a table or a scalar of the launch chooses the operand's blocks.
    pub(super) fn has_data_dependent_blocks(&self, operand: &Operand) -> bool {
        let mut found = false;
        operand.map.into_iter().for_each(|map| {
            self.traced.walk(map, &mut |_, inst| found |= matches!(inst.op, Op::Prefetch(_) | Op::Param(_)));
        });
        found
    }

    /// Describes the grid and its order: `grid [8, 4]: 32 programs, axis 1 in order`.
    pub(super) fn grid_text(&self) -> String {
        let is_sequential = |&axis: &usize| self.traced.grid[axis].semantics == Semantics::Arbitrary;
        let sequential: Vec<usize> = (0..self.grid.len()).filter(is_sequential).collect();
        let order = match &sequential[..] {
            [] => "all in parallel".into(),
            [axis] => format!("axis {axis} in order"),
            axes => format!("axes {} in order", join_texts(axes, ", ")),
        };
        let programs: i64 = self.grid.iter().product();
        match programs {
            0 => format!("grid {:?}: no program, outputs hold their `empty` values", self.grid),
            1 => format!("grid {:?}: 1 program", self.grid),
            n => format!("grid {:?}: {n} programs, {order}", self.grid),
        }
    }

    /// Describes the memory of a program: its blocks and scratch, and what the device takes.
    pub(super) fn memory_text(&self) -> String {
        let rows = self.operand_rows();
        let [blocks, scratch] = [false, true].map(|is_scratch| {
            let of_kind = rows.iter().filter(|row| (row.kind == "scratch") == is_scratch);
            bytes_text(of_kind.map(|row| row.block_bytes).sum())
        });
        let device = match self.is_on_cpu {
            true => {
                format!("{} of tiles and scratch on the CPU", bytes_text(self.compile_for_cpu().bytes_per_program()))
            }
            false => self.workgroup_memory_text(),
        };
        format!("VMEM of a program: {blocks} of blocks, {scratch} of scratch; {device}")
    }

    /// Describes the workgroup memory that the shader takes.
    #[cfg(feature = "wgsl")]
    fn workgroup_memory_text(&self) -> String {
        match self.shader(&self.target, self.multiples) {
            Ok(shader) => {
                let used = bytes_text(shader.workgroup_bytes);
                let most = bytes_text(self.target.workgroup_bytes as usize);
                format!("{used} of {most} of workgroup memory")
            }
            Err(e) => e.to_string(),
        }
    }
    #[cfg(not(feature = "wgsl"))]
    fn workgroup_memory_text(&self) -> String {
        "this build is without the feature `wgsl`".into()
    }

    pub(super) fn cost_text(&self) -> String {
        let Cost { flops, bytes_accessed, transcendentals } = self.cost;
        let each = self.operations_per_byte();
        format!(
            "cost: {flops} flops, {bytes_accessed} bytes, {transcendentals} transcendentals, {each:.2} operations per byte"
        )
    }

    /// Operations of the kernel for each byte that it loads and stores; a transcendental function counts as ten.
    pub fn operations_per_byte(&self) -> f64 {
        weighted_operations(self.cost) / self.cost.bytes_accessed.max(1) as f64
    }

    /// Number of operations per byte at which arithmetic takes as long as memory, a round number for the kind of
    /// device.
    fn machine_balance(&self) -> f64 {
        if self.is_on_cpu { 8.0 } else { 20.0 }
    }

    /// True if memory, rather than arithmetic, limits how fast the kernel can be, on a device with usual peaks: 8
    /// operations per byte on a CPU, 20 on a GPU. [`Cost::roofline`] has the least time for known peaks.
    pub fn is_memory_bound(&self) -> bool {
        self.operations_per_byte() < self.machine_balance()
    }

    pub(super) fn bottleneck_text(&self) -> String {
        let device = if self.is_on_cpu { "CPU" } else { "GPU" };
        let [bound, other] = match self.is_memory_bound() {
            true => ["memory", "arithmetic takes over from"],
            false => ["arithmetic", "memory takes over below"],
        };
        format!("bound: {bound}; on a {device} {other} about {} operations per byte", self.machine_balance())
    }

    /// Returns the largest shares of the estimated time by place in the user's code: share, longest operation, place.
    pub(super) fn time_shares(&self) -> Vec<(f64, String, Loc)> {
        // By place: its time, and its longest instruction.
        let mut places: BTreeMap<(&str, u32, u32), (f64, f64, InstId)> = BTreeMap::new();
        let mut total = 0.0;
        estimate_instruction_costs(&self.traced, &self.geometry, &mut |id, own| {
            let time = own.bytes_accessed as f64 + weighted_operations(own) / self.machine_balance();
            let at = self.traced.loc(id);
            let place = places.entry((at.file, at.line, at.column)).or_insert((0.0, -1.0, id));
            total += time;
            place.0 += time;
            if time > place.1 {
                (place.1, place.2) = (time, id);
            }
        });
        let line = |(time, _, id): (f64, f64, InstId)| (time / total, self.operation_name(id), self.traced.loc(id));
        let mut times: Vec<(f64, String, Loc)> = places.into_values().filter(|l| l.0 > 0.0).map(line).collect();
        times.sort_by(|a, b| b.0.total_cmp(&a.0));
        times.truncate(MAX_LISTED_SOURCE_LINES);
        times
    }

    /// Returns the name of an instruction, with the operand that it loads or stores.
    fn operation_name(&self, id: InstId) -> String {
        let name = |operand| &self.traced.operand(operand).name;
        match &self.traced.inst(id).op {
            Op::Load { from, .. } => format!("load {}", name(*from)),
            Op::Store { to, .. } => format!("store {}", name(*to)),
            Op::Scalar(op) => op.to_string(),
            Op::Structural(op) => op.to_string().split([' ', '(']).next().unwrap_or_default().into(),
            _ => String::new(),
        }
    }
}

/// Returns the number of operations of a cost, with [`OPS_PER_TRANSCENDENTAL`] for each transcendental function.
fn weighted_operations(cost: Cost) -> f64 {
    cost.flops as f64 + OPS_PER_TRANSCENDENTAL * cost.transcendentals as f64
}

/// Formats a share in percent: `63%`.
pub(super) fn format_percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Writes the facts that fit on one screen, then every stage up to the code that runs.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kernels.iter().try_for_each(|k| k.write_facts(f))?;
        for k in &self.kernels {
            for (stage, text) in k.device_stages() {
                writeln!(f, "--- {stage} of {}\n{text}", k.name)?;
            }
        }
        Ok(())
    }
}

impl ExplainedKernel {
    fn write_facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel `{}`, {}", self.name, self.grid_text())?;
        let head = OperandRow::HEADINGS.map(String::from);
        let rows: Vec<Vec<String>> =
            std::iter::once(head).chain(self.operand_rows().iter().map(OperandRow::cells)).map(Vec::from).collect();
        f.write_str(&align_columns(&rows))?;
        writeln!(f, "  {}\n  {}\n  {}", self.memory_text(), self.cost_text(), self.bottleneck_text())?;
        for (share, operation, at) in self.time_shares() {
            writeln!(f, "  about {:>4} of the time: {operation:<12} {}:{}", format_percent(share), at.file, at.line)?;
        }
        if let Some(tuning) = &self.tuning {
            write!(f, "{tuning}")?;
        }
        Ok(())
    }
}
