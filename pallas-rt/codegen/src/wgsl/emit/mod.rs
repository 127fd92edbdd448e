//! Writes the text of a shader for a placed kernel, step by step.
//!
//! Emission records what each step reads and writes, from which barriers follow, and counts what a thread executes, so
//! that thread grids can be compared. A tile in registers that is read across threads is reported as *wanted*:
//! placement then gives it a copy in memory, and emission runs again.
//!
//! [`element`] reads one element of any value; [`compute`], [`product`], [`fragment_products`], [`fold`] and [`sort`]
//! write operations; [`loads_stores`] writes loads and stores, [`word_packing`] says how elements are packed in words;
//! [`control`] writes branches, loops and copies between values; [`lines`] collects text and its cost; [`position`] has
//! positions of elements, [`names`] names of arrays and sizes; [`emitter`] is the state of all these, [`module`] writes
//! what surrounds the body.
mod affine;
mod array_positions;
mod compute;
mod control;
mod element;
mod emitter;
mod fold;
mod fragment_products;
mod gather_scatter_text;
mod lines;
mod loads_stores;
mod module;
mod names;
mod position;
mod product;
mod sort;
mod word_packing;

pub(super) use emitter::{ASSUMED_TRIP_COUNT, EmittedBody, estimate_program_cost};
pub use emitter::{IterationBound, OperationCounts};
pub(super) use module::emit_module;
pub use names::UNIFORM_HEADER_WORDS;
pub(super) use names::{bound_arrays, can_bind_vec4, launch_computed_extents};

use super::bank_conflicts;
use super::place::thread_layout::SpreadDirection;
use super::place::views::InlineKind;
use super::place::{PlacementPlan, TileStorage};
use super::placed_kernel::PlacementInput;
use super::profile::ProfileParameters;
use super::types::{array_bits_to_element, element_to_word, wgsl_type, word_to_element};
use crate::passes::simplify::is_pure;
use emitter::BodyEmitter;
use names::uniform_word_expression;
use pallas_ir::{DType, Inst, InstId, Kernel, Literal, Op, RegionId, Value};
use position::TilePosition;
use std::collections::BTreeMap;

/// Emits a kernel's body, unless it costs more than `budget`; adds buffers for partial results to the plan. If not
/// `written`, only counts and the memory that steps touch are determined, without text and accesses.
pub(super) fn emit_body(
    k: &Kernel,
    plan: &mut PlacementPlan,
    parameters: &ProfileParameters,
    task: PlacementInput<'_>,
    (budget, written): (f64, bool),
) -> EmittedBody {
    let threads = plan.thread_count() as u32;
    let out = EmittedBody {
        iterations: IterationBound { axes: vec![0; task.sequential], ..IterationBound::default() },
        lockstep: task.target.lanes.is_some_and(|lanes| threads <= lanes),
        ..EmittedBody::default()
    };
    let mut e = BodyEmitter {
        k,
        plan,
        parameters,
        out,
        limit: task.target.max_loop_iterations,
        open: vec![vec![]],
        step: None,
        depth: 2,
        fresh: 0,
        spent: 0,
        axes_left: task.sequential,
        counted: vec![0],
        counts: OperationCounts::default(),
        per_step: None,
        product: false,
        known: BTreeMap::new(),
        tiles: vec![],
        multiples: task.multiples,
        written,
        strided: None,
        at_line: 0,
        trips: 1.0,
        budget,
    };
    e.emit_axis_class_offsets();
    e.emit_region(k.body);
    e.flush_iteration_count();
    e.out.iterations.outside = e.counted[0];
    let stopped = e.is_over_budget();
    let accesses = if stopped { vec![] } else { bank_conflicts::merge_alike_accesses(e.out.accesses) };
    let nodes = e.open.pop().expect("the body is open");
    EmittedBody { nodes, accesses, step: e.per_step.unwrap_or(e.counts), stopped, ..e.out }
}

impl BodyEmitter<'_> {
    // ---- values

    fn is_in_registers(&self, v: Value) -> bool {
        self.plan.tile_storage[v.index()] == TileStorage::Registers
    }
    fn define_scalar(&mut self, v: Value, x: &str) {
        let ty = wgsl_type(self.k.ty(v).dtype);
        let s = self.scalar_name(v);
        self.emit_line(format!("let {s}: {ty} = {x};"));
    }
    /// Writes a scalar that thread 0 computes from memory and shares with all threads.
    fn emit_broadcast_scalar(&mut self, v: Value, x: impl FnOnce(&mut Self) -> String) {
        self.out.broadcasts_scalars = true;
        let dtype = self.k.ty(v).dtype;
        self.emit_memory_step(|e| {
            e.emit_braced_block("if (thread == 0u) {", |e| {
                let x = x(e);
                e.emit_line(format!("agreed = {};", element_to_word(dtype, &x)));
            });
            if e.out.lockstep {
                e.emit_line("subgroupBarrier();");
                e.define_scalar(v, &word_to_element(dtype, "agreed"));
                e.emit_line("subgroupBarrier();");
            } else {
                e.define_scalar(v, &word_to_element(dtype, "workgroupUniformLoad(&agreed)"));
                e.add_work(e.parameters.barrier);
            }
            e.step.as_mut().expect("inside of it").synchronizes = true;
        });
    }
    /// Returns the text of a constant; for floats without a literal in WGSL it reads the bits from the uniform.
    #[warn(clippy::wildcard_enum_match_arm)]
    fn literal_expression(&mut self, x: Literal) -> String {
        match x.dtype {
            DType::Bool => (x.bits != 0).to_string(),
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => {
                let value = x.as_f64() as f32;
                let plain = value.is_finite() && (value == 0.0 || value.is_normal());
                if plain && !(value == 0.0 && value.is_sign_negative()) {
                    return format!("f32({value:?})");
                }
                let bits = value.to_bits();
                let i = self.out.constants.iter().position(|&b| b == bits).unwrap_or_else(|| {
                    self.out.constants.push(bits);
                    self.out.constants.len() - 1
                });
                format!("bitcast<f32>({})", uniform_word_expression(names::constant_uniform_word(self.k, i)))
            }
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => format!("{}u", x.as_i64() as u32),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => match x.as_i64() as i32 {
                i32::MIN => "(-2147483647i - 1i)".into(),
                n => format!("i32({n})"),
            },
        }
    }

    // ---- instructions

    /// Writes, for each class of axes (axes that are spread over threads alike), the coordinate of the first element
    /// that a thread has along them.
    fn emit_axis_class_offsets(&mut self) {
        for (c, class) in self.plan.layout.classes.clone().into_iter().enumerate() {
            if class.along == SpreadDirection::NotSpread {
                continue;
            }
            let (direction, threads) = self.thread_coordinate(class.along, class.grid);
            let own = if class.threads == threads { direction } else { format!("{direction} % {}u", class.threads) };
            match class.vector {
                1 => self.emit_line(format!("let c{c} = {own};")),
                v => self.emit_line(format!("let c{c} = {v}u * ({own});")),
            }
        }
    }
    /// Returns the text of a thread's row or column on a grid, and the number of rows or columns.
    fn thread_coordinate(&self, along: SpreadDirection, (rows, columns): (u32, u32)) -> (String, usize) {
        let main = (rows, columns) == self.plan.grid;
        match along {
            SpreadDirection::Y if main => ("row".into(), rows as usize),
            SpreadDirection::X if main => ("column".into(), columns as usize),
            SpreadDirection::Y => (format!("thread / {columns}u"), rows as usize),
            SpreadDirection::X | SpreadDirection::NotSpread => (format!("thread % {columns}u"), columns as usize),
        }
    }
    /// Writes the instructions of a region, after copying those of its parameters to memory that have a copy there;
    /// stops if the program exceeds its budget.
    fn emit_region(&mut self, region: RegionId) {
        for v in self.k.region(region).params.clone() {
            self.emit_copy_to_memory(v);
        }
        for &i in &self.k.region(region).insts {
            if !self.is_over_budget() {
                self.emit_inst(i);
            }
        }
    }
    /// Returns the cost of the program so far: every thread's work, and the text.
    fn cost_so_far(&self) -> f64 {
        estimate_program_cost(self.out.work, self.out.lines, self.plan, self.parameters)
    }
    fn is_over_budget(&self) -> bool {
        self.cost_so_far() > self.budget
    }
    /// Writes an instruction, unless its result is recomputed, fused or not needed.
    fn emit_inst(&mut self, id: InstId) {
        let (inst, loc) = (self.k.inst(id), self.k.loc(id));
        let unused = |v: &Value| !self.k.ty(*v).is_scalar() && self.plan.tile_storage[v.index()] == TileStorage::None;
        let skipped = |v: &Value| self.plan.fused[v.index()];
        let fetched = |v: &Value| self.plan.inline[v.index()] == Some(InlineKind::Fetch);
        if is_pure(&inst.op) && inst.results.iter().any(|v| unused(v) || skipped(v)) || inst.results.iter().any(fetched)
        {
            return;
        }
        self.at_line = loc.line;
        if loc.line > 0 && !inst.results.iter().all(|&v| self.k.ty(v).is_scalar()) {
            self.emit_line(format!("// line {}: {}", loc.line, operation_label(&inst.op)));
        }
        match &inst.op {
            Op::Const(x) => {
                let x = self.literal_expression(*x);
                self.define_scalar(inst.results[0], &x);
            }
            Op::Scalar(op) => self.emit_elementwise(*op, inst),
            Op::Structural(op) => self.emit_structural(op, inst),
            Op::ProgramId(axis) => self.define_scalar(inst.results[0], &format!("id{axis}")),
            Op::NumPrograms(axis) => self.define_scalar(
                inst.results[0],
                &format!("i32({})", uniform_word_expression(names::grid_uniform_word(*axis))),
            ),
            Op::NumSteps(axis) => {
                self.define_scalar(
                    inst.results[0],
                    &format!("i32({})", uniform_word_expression(names::steps_uniform_word(self.k, *axis))),
                );
            }
            Op::Extent(dim) => self.define_scalar(inst.results[0], &names::dim_text(self.k, dim.index())),
            Op::Param(o) => {
                let bits = uniform_word_expression(names::param_uniform_word(self.k, *o));
                self.define_scalar(inst.results[0], &array_bits_to_element(self.k.operand(*o).dtype, &bits));
            }
            Op::Prefetch(o) => self.emit_prefetch_read(*o, inst),
            Op::Load { from, view, masked } => self.emit_load(*from, view, *masked, inst),
            Op::Store { to, view, masked } => self.emit_store(*to, view, *masked, inst),
            Op::Valid { .. } => self.emit_computed_elements(inst),
            Op::If => self.emit_if(inst),
            Op::For { reverse } => self.emit_for(inst, *reverse),
            Op::While => self.emit_while(inst),
            // Only the interpreter and the CPU print and check.
            Op::DebugPrint(_) | Op::DebugAssert(_) => {}
        }
        inst.results.iter().for_each(|&v| self.emit_copy_to_memory(v));
    }
    /// Writes a tile's elements, in registers or accumulators, to the buffer with its copy; writes nothing for a tile
    /// without a copy.
    fn emit_copy_to_memory(&mut self, v: Value) {
        let Some(buffer) = self.plan.copies[v.index()] else { return };
        // A parameter's registers change at the end of its region.
        let fixed = self.plan.defined[v.index()].is_some();
        let line = self.plan.origin_inst(self.k, v).map_or(0, |id| self.k.loc(id).line);
        if line > 0 {
            self.at_line = line;
        }
        self.emit_memory_step(|e| {
            match e.plan.tile_storage[v.index()] {
                TileStorage::Accumulators => e.store_accumulators(v, buffer),
                TileStorage::None | TileStorage::Registers | TileStorage::Buffer(_) => e.store_registers(v, v, buffer),
            }
            e.step.as_mut().expect("inside of it").can_move_later = fixed;
        });
    }
    /// Writes the elements of a value to its storage; `element_at` returns the expression of the element at a
    /// position.
    fn emit_elements(&mut self, v: Value, element_at: impl Fn(&mut Self, &TilePosition) -> String) {
        match self.plan.tile_storage[v.index()] {
            TileStorage::None => {}
            TileStorage::Accumulators => unreachable!("accumulators are products and sums of them"),
            TileStorage::Registers => {
                let ty = wgsl_type(self.k.ty(v).dtype);
                self.emit_memory_step(|e| {
                    for (i, at) in e.register_positions(v).iter().enumerate() {
                        let x = element_at(e, at);
                        let r = e.register_name(v, i);
                        e.emit_line(format!("let {r}: {ty} = {x};"));
                        e.add_work(e.parameters.operation);
                    }
                });
            }
            TileStorage::Buffer(buffer) => {
                let shape = self.k.ty(v).shape.clone();
                self.emit_strided_loop(shape.iter().product(), |e| {
                    let at = e.strided_loop_position(&shape);
                    let x = element_at(e, &at);
                    e.store_tile_element(v, buffer, &at, &x);
                    e.add_work(e.parameters.operation);
                });
            }
        }
    }
    /// Writes the result of an instruction that computes each element by itself to its storage.
    fn emit_computed_elements(&mut self, inst: &Inst) {
        self.emit_elements(inst.results[0], |e, at| e.computed_element_expression(inst, at));
    }
}

/// Returns the name of an operation for comments in the shader.
#[warn(clippy::wildcard_enum_match_arm)]
fn operation_label(op: &Op) -> String {
    match op {
        Op::Scalar(op) => op.to_string(),
        Op::Structural(op) => op.name().to_string(),
        Op::Load { .. } => "load".into(),
        Op::Store { .. } => "store".into(),
        Op::Valid { .. } => "valid".into(),
        Op::If => "if".into(),
        Op::For { .. } => "for".into(),
        Op::While => "while".into(),
        Op::Const(_) | Op::DebugPrint(_) | Op::DebugAssert(_) => String::new(),
        Op::ProgramId(_) | Op::NumPrograms(_) | Op::NumSteps(_) | Op::Extent(_) => String::new(),
        Op::Param(_) | Op::Prefetch(_) => String::new(),
    }
}
