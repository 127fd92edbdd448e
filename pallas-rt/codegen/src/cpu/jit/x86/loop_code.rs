//! Writes loops whose iterations consist of chains and small products.
//!
//! ```text
//! for turn in 0..turns
//!     for each part: the rows of a chain, or a product
//!     for each place that moves: start += iteration_stride     (its distance from one turn to the next)
//! ```
use super::super::super::plan::step::ElementwiseChain;
use super::super::operand_layouts::{LoopPart, LoopPartKind, OperandAddress};
use super::assembler::{JumpCondition, Mem};
use super::compiler::{ChainCompiler, stack_vector_count};
use super::executable_memory::MachineCode;
use super::frame::{
    COLUMN_LIMIT_REGISTER, END_ROW_SLOT, ROW_SLOT, SPARE_REGISTER, address_field, emit_epilogue, emit_prologue,
    stack_slot,
};
use super::product::emit_product;
use super::row_loops::{InstructionOrder, MAX_UNROLLED_COLUMNS, compile_in_fitting_order};
use super::vector::{CpuFeatures, VectorWriter};

/// Maximum vector operations in an iteration of a loop, each of which has instructions of its own; a loop with more is
/// not compiled.
const MAX_LOOP_BODY_VECTOR_OPERATIONS: usize = 2048;

/// Compiles a loop whose iterations run these parts, which refer to `chains` by index. Returns `None` if an operation
/// has no instructions here, or if there would be too many.
pub(super) fn compile(chains: &[&ElementwiseChain], parts: &[LoopPart], features: CpuFeatures) -> Option<MachineCode> {
    let vectors = |piece: &LoopPart| match piece.work {
        LoopPartKind::ChainRows { chain, columns, .. } => {
            let blocks = if columns <= MAX_UNROLLED_COLUMNS { columns.div_ceil(features.lanes()) } else { 4 };
            blocks * chains[chain].links.len().max(1)
        }
        LoopPartKind::Product(product) => product.vector_multiplication_count(),
    };
    (parts.iter().map(vectors).sum::<usize>() <= MAX_LOOP_BODY_VECTOR_OPERATIONS).then_some(())?;
    compile_in_fitting_order(features, |order, w| emit_loop_function(chains, parts, order, w))
}

/// Writes the function that runs iterations of the loop; returns its code, and the constants worth keeping in
/// registers. `None` if no register is free, or if an operation has no instructions here.
fn emit_loop_function(
    chains: &[&ElementwiseChain],
    parts: &[LoopPart],
    order: InstructionOrder,
    mut w: VectorWriter,
) -> Option<(Vec<u8>, Vec<u32>)> {
    let needed = parts.iter().filter_map(|piece| match piece.work {
        LoopPartKind::ChainRows { chain, form, .. } => Some(stack_vector_count(chains[chain], form)),
        LoopPartKind::Product(_) => None,
    });
    emit_prologue(&mut w, needed.max());
    let (next, done) = (w.asm.new_label(), w.asm.new_label());
    w.asm.mov_load(SPARE_REGISTER, stack_slot(END_ROW_SLOT));
    w.asm.clear(COLUMN_LIMIT_REGISTER);
    w.asm.compare_registers(COLUMN_LIMIT_REGISTER, SPARE_REGISTER);
    w.asm.jump_if(JumpCondition::GreaterEqual, done);
    w.asm.bind_label(next);
    let (mut first, mut moving) = (0, vec![]);
    for piece in parts {
        let start = first;
        match piece.work {
            LoopPartKind::ChainRows { chain, form, rows, columns } => {
                let mut compiler = ChainCompiler::new(chains[chain], form, w, first)?;
                compiler.extents = Some([rows, columns]);
                compiler.emit_row_loop(rows, order)?;
                first = compiler.end_address_index();
                w = compiler.w;
            }
            LoopPartKind::Product(ref own) => {
                emit_product(&mut w, own, first)?;
                first += own.operand_count();
            }
        }
        moving.extend((start..first).filter(|place| piece.moving >> (place - start).min(63) & 1 == 1));
    }
    for place in moving {
        w.asm.mov_load(SPARE_REGISTER, address_field(place, std::mem::offset_of!(OperandAddress, iteration_stride)));
        w.asm.add_store(address_field(place, std::mem::offset_of!(OperandAddress, start)), SPARE_REGISTER);
    }
    emit_add_to_argument(&mut w, END_ROW_SLOT, -1);
    w.asm.clear(COLUMN_LIMIT_REGISTER);
    w.asm.compare_registers(COLUMN_LIMIT_REGISTER, SPARE_REGISTER);
    w.asm.jump_if(JumpCondition::Less, next);
    w.asm.bind_label(done);
    Some(emit_epilogue(w))
}

/// Adds a constant to an argument on the stack; the sum is in the spare register afterwards.
fn emit_add_to_argument(w: &mut VectorWriter, argument: usize, x: i32) {
    w.asm.mov_load(SPARE_REGISTER, stack_slot(argument));
    w.asm.lea(SPARE_REGISTER, Mem { base: SPARE_REGISTER, index: None, offset: x });
    w.asm.mov_store(stack_slot(argument), SPARE_REGISTER);
}

impl ChainCompiler<'_> {
    /// Writes the loop over `rows` rows of the chain.
    fn emit_row_loop(&mut self, rows: usize, order: InstructionOrder) -> Option<()> {
        if rows == 1 {
            return self.emit_row(order);
        }
        self.w.asm.clear(SPARE_REGISTER);
        self.w.asm.mov_store(stack_slot(ROW_SLOT), SPARE_REGISTER);
        let next = self.w.asm.new_label();
        self.w.asm.bind_label(next);
        self.emit_row(order)?;
        emit_add_to_argument(&mut self.w, ROW_SLOT, 1);
        self.w.asm.clear(COLUMN_LIMIT_REGISTER);
        self.w.asm.lea(
            COLUMN_LIMIT_REGISTER,
            Mem { base: COLUMN_LIMIT_REGISTER, index: None, offset: i32::try_from(rows).ok()? },
        );
        self.w.asm.compare_registers(SPARE_REGISTER, COLUMN_LIMIT_REGISTER);
        self.w.asm.jump_if(JumpCondition::Less, next);
        Some(())
    }
}
