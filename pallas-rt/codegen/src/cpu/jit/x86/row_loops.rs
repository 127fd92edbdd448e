//! Writes the loops of machine code over rows and columns, around the code for vectors.
use super::super::super::plan::step::{ChainLink, ElementwiseChain, ElementwiseOp, FoldDirection};
use super::super::operand_layouts::{CodeSpecialization, OperandAddress, is_bit_set};
use super::assembler::{Gpr, JumpCondition, Mem, Operand};
use super::compiler::{ChainCompiler, FoldRegisters, can_step_row_addresses, stack_vector_count};
use super::executable_memory::MachineCode;
use super::frame::{
    ARGUMENT_REGISTERS, COLUMN_COUNT_SLOT, COLUMN_LIMIT_REGISTER, COLUMN_REGISTER, CONSTANTS_REGISTER,
    END_ROW_REGISTER, REMAINING_COLUMNS_REGISTER, ROW_REGISTER, ROW_SLOT, SPARE_REGISTER, address_field, emit_epilogue,
    emit_prologue, first_lanes_mask, stack_slot,
};
use super::types::{PartialVector, is_narrow_type, register_bits};
use super::vector::{CpuFeatures, VectorWriter};
use pallas_ir::{DType, ScalarOp};

/// Compiles the code for chains with operands in these layouts. Returns `None` if an operation has no instructions
/// here.
pub(super) fn compile(
    chains: &[ElementwiseChain],
    forms: &[CodeSpecialization],
    features: CpuFeatures,
) -> Option<MachineCode> {
    compile_in_fitting_order(features, |order, w| emit_chains_function(chains, forms, order, w))
}

/// Returns the code that `write` writes with the first order of instructions for which there are enough registers;
/// `None` if it writes none, or if the system gives no executable memory.
pub(super) fn compile_in_fitting_order(
    features: CpuFeatures,
    write: impl Fn(InstructionOrder, VectorWriter) -> Option<(Vec<u8>, Vec<u32>)>,
) -> Option<MachineCode> {
    let with = |order, pinned: &[u32]| write(order, VectorWriter::new(pinned, features));
    // Several running results are used, so that no addition waits for the one before, as far as there are registers.
    let mut orders =
        [4, 2, 1].into_iter().flat_map(|running| [true, false].map(|abreast| InstructionOrder { running, abreast }));
    let (order, (mut bytes, pinned)) = orders.find_map(|order| Some((order, with(order, &[])?)))?;
    // Registers that were never used hold constants when the code is written a second time.
    if !pinned.is_empty() {
        bytes = with(order, &pinned)?.0;
    }
    MachineCode::new(&bytes)
}

/// The order of the instructions that compute a row.
#[derive(Clone, Copy)]
pub(super) struct InstructionOrder {
    /// Number of vectors in a step of the loop over columns, each with running results of its own.
    running: i32,
    /// True if the instructions of several vectors are interleaved, link by link, which hides the latency of a long
    /// chain.
    abreast: bool,
}

/// Maximum columns of a row that is computed without loops, if their number is known.
pub(super) const MAX_UNROLLED_COLUMNS: usize = 64;

/// Minimum links of a long chain, whose instructions are interleaved for several vectors; in a shorter one, the
/// processor sees the next vector by itself while it waits for one.
const MIN_LONG_CHAIN_LINKS: usize = 24;
/// Weight of a transcendental function such as `tanh` in the length of a chain of elementwise operations, in which each
/// other operation counts as 1.
const LINKS_PER_TRANSCENDENTAL: usize = 6;

/// Returns the length of a chain, counted in links of one or two instructions.
fn weighted_chain_length(chain: &ElementwiseChain) -> usize {
    let of = |link: &ChainLink| match link.op {
        ElementwiseOp::Scalar(op) if op.row().cost.transcendental > 0 => LINKS_PER_TRANSCENDENTAL,
        _ => 1,
    };
    chain.links.iter().map(of).sum()
}

/// Writes a function over rows of the chains; returns its code and the constants worth keeping in registers, or `None`
/// if no register is free or an operation has no instructions here.
fn emit_chains_function(
    chains: &[ElementwiseChain],
    forms: &[CodeSpecialization],
    order: InstructionOrder,
    mut w: VectorWriter,
) -> Option<(Vec<u8>, Vec<u32>)> {
    emit_prologue(&mut w, chains.iter().zip(forms).map(|(chain, form)| stack_vector_count(chain, *form)).max());
    let asm = &mut w.asm;
    let (next, done) = (asm.new_label(), asm.new_label());
    asm.compare_registers(ROW_REGISTER, END_ROW_REGISTER);
    asm.jump_if(JumpCondition::GreaterEqual, done);
    if let ([chain], [form]) = (chains, forms)
        && can_step_row_addresses(chain)
    {
        let mut compiler = ChainCompiler::new(chain, *form, w, 0)?;
        compiler.start_stepping_addresses();
        compiler.w.asm.bind_label(next);
        compiler.emit_row(order)?;
        compiler.emit_row_advance();
        w = compiler.w;
        w.asm.jump_if(JumpCondition::Less, next);
        w.asm.bind_label(done);
        return Some(emit_epilogue(w));
    }
    asm.bind_label(next);
    let mut first = 0;
    for (chain, form) in chains.iter().zip(forms) {
        let mut compiler = ChainCompiler::new(chain, *form, w, first)?;
        compiler.emit_row(order)?;
        first = compiler.end_address_index();
        w = compiler.w;
    }
    let asm = &mut w.asm;
    asm.lea(ROW_REGISTER, Mem { base: ROW_REGISTER, index: None, offset: 1 });
    asm.mov_store(stack_slot(ROW_SLOT), ROW_REGISTER);
    asm.compare_registers(ROW_REGISTER, END_ROW_REGISTER);
    asm.jump_if(JumpCondition::Less, next);
    asm.bind_label(done);
    Some(emit_epilogue(w))
}

impl ChainCompiler<'_> {
    /// Writes the code for one row of the chain.
    pub(super) fn emit_row(&mut self, order: InstructionOrder) -> Option<()> {
        let few = self
            .extents
            .map(|[_, columns]| columns)
            .filter(|columns| *columns <= MAX_UNROLLED_COLUMNS)
            .or(self.form.unrolled_columns);
        if few.is_none() {
            self.w
                .asm
                .mov_load(SPARE_REGISTER, address_field(self.length, std::mem::offset_of!(OperandAddress, start)));
            self.w.asm.mov_store(stack_slot(COLUMN_COUNT_SLOT), SPARE_REGISTER);
        }
        let first = self.length + 1;
        for (place, (input, _)) in self.chain.input_values().enumerate() {
            let Some(slot) = self.slots[input] else { continue };
            let from = self.current_row_start(first + place);
            let x = match self.types[input]? {
                dtype if is_narrow_type(dtype) => self.w.broadcast_narrow(dtype, from)?,
                _ => self.w.broadcast(from)?,
            };
            self.w.asm.store(Mem { base: Gpr::Rsp, index: None, offset: slot }, x);
            self.w.free_register(x);
        }
        self.load_row_addresses(first)?;
        // Without folds, two independent vectors are enough.
        let folds = self.chain.sinks.iter().any(|s| s.along == FoldDirection::Rows);
        let unroll = match few {
            Some(_) => 1,
            None if folds => order.running,
            None => order.running.min(2),
        };
        self.initialize_folds(unroll)?;
        self.w.asm.clear(COLUMN_REGISTER);
        if let Some(columns) = few {
            self.emit_unrolled_columns(columns)?;
        } else {
            self.emit_column_loop(unroll, order.abreast && weighted_chain_length(self.chain) >= MIN_LONG_CHAIN_LINKS)?;
            if unroll > 1 {
                self.emit_column_loop(1, false)?;
            }
            if !self.form.whole {
                self.emit_remaining_columns()?;
            }
        }
        for (i, argument) in ARGUMENT_REGISTERS.into_iter().enumerate() {
            if self.stepped.is_empty() && self.pointers.contains(&Some(argument)) {
                self.w.asm.mov_load(argument, stack_slot(i));
            }
        }
        self.finish_folds()
    }

    /// Initialises the running results of the folds of rows, each in `unroll` registers.
    fn initialize_folds(&mut self, unroll: i32) -> Option<()> {
        for sink in &self.chain.sinks {
            if sink.along == FoldDirection::Columns {
                self.folded.push(None);
                continue;
            }
            // In 16 bits, only folds without rounding (minimum, maximum) are possible.
            let is_half = matches!(sink.dtype, DType::F16 | DType::Bf16);
            let is_extreme = matches!(sink.op, ScalarOp::Maximum | ScalarOp::Minimum);
            (sink.dtype == DType::F32 || is_half && is_extreme).then_some(())?;
            let start = self.w.word_constant(register_bits(sink.start)?);
            let mut running = vec![];
            for _ in 0..unroll {
                running.push(self.w.load(start)?);
            }
            if sink.op == ScalarOp::Maximum {
                running.iter().for_each(|&r| self.w.negate_in_place(r));
            }
            self.folded.push(Some(FoldRegisters { op: sink.op, start, running }));
        }
        Some(())
    }

    /// Writes the code that sets the registers of operands, whose addresses begin at an index, to the start of the row,
    /// and one register to the next row of the input that is prefetched meanwhile.
    fn load_row_addresses(&mut self, first_address: usize) -> Option<()> {
        for place in 0..self.pointers.len() {
            if let (Some(to), true) = (self.pointers[place], self.stepped.is_empty()) {
                self.load_row_address(first_address + place, to);
            }
        }
        let is_far = |input: usize| is_bit_set(self.form.ahead, input) && !is_bit_set(self.form.single, input);
        let far = self.chain.input_values().enumerate().find(|(_, (input, _))| is_far(*input));
        if let Some((place, input, at)) =
            far.and_then(|(place, (input, _))| Some((place, input, self.pointers[place]?)))
        {
            self.ahead = Some(self.types[input]?.bytes() as i32);
            let field = address_field(first_address + place, std::mem::offset_of!(OperandAddress, row));
            self.w.asm.mov_load(SPARE_REGISTER, stack_slot(0));
            self.w.asm.mov_load(SPARE_REGISTER, Mem { base: SPARE_REGISTER, ..field });
            self.w.asm.add(SPARE_REGISTER, at);
        }
        Some(())
    }

    /// Writes the loop over columns that takes `unroll` vectors in each step, as long as whole steps fit; their
    /// instructions are interleaved if `is_interleaved`, else one vector follows the other.
    fn emit_column_loop(&mut self, unroll: i32, is_interleaved: bool) -> Option<()> {
        let (next, done) = (self.w.asm.new_label(), self.w.asm.new_label());
        let step = unroll * self.w.lanes();
        self.w.asm.mov_load(COLUMN_LIMIT_REGISTER, stack_slot(COLUMN_COUNT_SLOT));
        self.w.asm.lea(COLUMN_LIMIT_REGISTER, Mem { base: COLUMN_LIMIT_REGISTER, index: None, offset: 1 - step });
        self.w.asm.compare_registers(COLUMN_REGISTER, COLUMN_LIMIT_REGISTER);
        self.w.asm.jump_if(JumpCondition::GreaterEqual, done);
        self.w.asm.bind_label(next);
        let together = if is_interleaved { unroll as usize } else { 1 };
        for first in (0..unroll as usize).step_by(together) {
            self.emit_vectors(first..first + together, None)?;
        }
        self.w.asm.lea(COLUMN_REGISTER, Mem { base: COLUMN_REGISTER, index: None, offset: step });
        self.w.asm.compare_registers(COLUMN_REGISTER, COLUMN_LIMIT_REGISTER);
        self.w.asm.jump_if(JumpCondition::Less, next);
        self.w.asm.bind_label(done);
        Some(())
    }

    /// Writes the code for a known number of columns, without loops.
    fn emit_unrolled_columns(&mut self, columns: usize) -> Option<()> {
        let lanes = self.w.lanes() as usize;
        for _ in 0..columns / lanes {
            self.emit_vectors(0..1, None)?;
            self.w.asm.lea(COLUMN_REGISTER, Mem { base: COLUMN_REGISTER, index: None, offset: lanes as i32 });
        }
        let rest = columns % lanes;
        if rest > 0 {
            let mask = first_lanes_mask(&mut self.w, rest);
            self.emit_partial_vector(mask, Some(rest))?;
        }
        Some(())
    }

    /// Writes the code for the elements at the start of a vector that `mask` selects; their number is given if it is
    /// known when the code is written.
    fn emit_partial_vector(&mut self, mask: Mem, known_count: Option<usize>) -> Option<()> {
        let mask = self.w.load(Operand::Mem(mask))?;
        if self.w.beyond.wide {
            self.w.asm.move_signs_to_tail_mask(mask);
        }
        self.emit_vectors(0..1, Some(PartialVector { mask, count: REMAINING_COLUMNS_REGISTER, exact: known_count }))?;
        self.w.free_register(mask);
        Some(())
    }

    /// Writes the code for the columns after the last whole vector.
    fn emit_remaining_columns(&mut self) -> Option<()> {
        let done = self.w.asm.new_label();
        self.w.asm.mov_load(SPARE_REGISTER, stack_slot(COLUMN_COUNT_SLOT));
        self.w.asm.sub(SPARE_REGISTER, COLUMN_REGISTER);
        self.w.asm.clear(COLUMN_LIMIT_REGISTER);
        self.w.asm.compare_registers(SPARE_REGISTER, COLUMN_LIMIT_REGISTER);
        self.w.asm.jump_if(JumpCondition::Equal, done);
        self.w.asm.mov(REMAINING_COLUMNS_REGISTER, SPARE_REGISTER);
        let bytes = self.w.vector_bytes();
        self.w.asm.shl(SPARE_REGISTER, bytes.trailing_zeros() as u8);
        self.emit_partial_vector(Mem { base: CONSTANTS_REGISTER, index: Some((SPARE_REGISTER, 1)), offset: 0 }, None)?;
        self.w.asm.bind_label(done);
        Some(())
    }

    /// Combines the running results of each fold of the row, and stores it.
    fn finish_folds(&mut self) -> Option<()> {
        for (k, folded) in std::mem::take(&mut self.folded).into_iter().enumerate() {
            let Some(FoldRegisters { op, running, .. }) = folded else { continue };
            let (&first, others) = running.split_first().expect("unrolled at least once");
            for &r in others {
                self.w.merge_accumulator(op, first, Operand::Reg(r))?;
                self.w.free_register(r);
            }
            self.w.fold_across_lanes(op, first)?;
            if op == ScalarOp::Maximum {
                self.w.negate_in_place(first);
            }
            let to = self.current_row_start(self.folds + k);
            match self.chain.sinks[k].dtype {
                dtype if is_narrow_type(dtype) => self.w.store_narrow_element(dtype, to, first)?,
                _ => self.w.asm.store_single_element(to, first),
            }
            self.w.free_register(first);
        }
        Some(())
    }
}
