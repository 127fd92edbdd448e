//! Writes the operations of a chain on one vector or several, with the stores and folds of their results.
use super::super::super::plan::step::{ChainInput, ElementwiseOp, LinkOperand};
use super::super::operand_layouts::is_bit_set;
use super::assembler::{Gpr, Mem, Operand, Reg};
use super::compiler::{ChainCompiler, FoldRegisters};
use super::frame::{COLUMN_REGISTER, SPARE_REGISTER};
use super::rotations::{Rotation, link_operand_constant};
use super::types::{PartialVector, is_narrow_type, register_bits};
use pallas_ir::{DType, ScalarOp};
use std::ops::Range;

/// Bytes of a cache line.
const CACHE_LINE_BYTES: i32 = 64;

/// The state of a vector that code is written for: the registers that hold its inputs and results of links, and the
/// uses of these that are still to come.
struct VectorState {
    /// Offset of the vector from the current column, in vectors.
    k: usize,
    /// The elements that exist, if the vector is not whole.
    part: Option<PartialVector>,
    /// For each input and for each link, the number of uses that are still to come.
    left: [Vec<usize>; 2],
    /// The registers of inputs and of results of links, where they are in one.
    inputs: Vec<Option<Reg>>,
    links: Vec<Option<Reg>>,
}

impl ChainCompiler<'_> {
    /// Writes the code for several vectors, counted from the current column, in which each link (operation) runs on all
    /// of them before the next link; with `part`, it accesses only the elements at the start of the vector.
    pub(super) fn emit_vectors(&mut self, vectors: Range<usize>, part: Option<PartialVector>) -> Option<()> {
        if let (Some(bytes), None) = (self.ahead, part) {
            let lanes = self.w.lanes();
            let lines =
                vectors.clone().map(|k| k as i32 * lanes * bytes).filter(|offset| offset % CACHE_LINE_BYTES == 0);
            lines.for_each(|offset| {
                self.w.asm.prefetch(Mem { base: SPARE_REGISTER, index: Some((COLUMN_REGISTER, bytes as u8)), offset })
            });
        }
        let (inputs, links) = (vec![None; self.chain.inputs.len()], vec![None; self.chain.links.len()]);
        let lanes = |k| VectorState { k, part, left: self.uses.clone(), inputs: inputs.clone(), links: links.clone() };
        let mut all: Vec<VectorState> = vectors.map(lanes).collect();
        let mut places = self.results - self.length - 1..;
        let mut late = vec![];
        for (i, link) in self.chain.links.iter().enumerate() {
            if self.rotated[i] {
                continue;
            }
            let place = link.output.and_then(|_| places.next());
            late.extend(place.filter(|_| link.aside).map(|place| (i, place)));
            for at in &mut all {
                let result = self.emit_link(i, at)?;
                at.links[i] = Some(result);
                match place {
                    Some(_) if link.aside => at.left[1][i] += 1,
                    Some(place) => self.store_result(i, place, at, result)?,
                    None => {}
                }
                if at.left[1][i] == 0 {
                    self.w.free_register(result);
                }
            }
        }
        for at in &mut all {
            for sink in 0..self.chain.sinks.len() {
                self.emit_fold(sink, at)?;
            }
            for &(i, place) in &late {
                self.store_result(i, place, at, at.links[i]?)?;
                self.release_use(LinkOperand::Link(i), at);
            }
        }
        Some(())
    }

    /// Writes the code of one link (operation) of the chain on a vector, and returns the register of its result.
    fn emit_link(&mut self, link_index: usize, at: &mut VectorState) -> Option<Reg> {
        let link = &self.chain.links[link_index];
        if let Some(Rotation { of, by, .. }) = self.rotations[link_index] {
            let x = self.load_operand(of, at)?;
            let result = self.w.rotate(x, by)?;
            // Both of the shifts that a rotation replaces use its operand.
            (0..2).for_each(|_| self.release_use(of, at));
            return Some(result);
        }
        let result = match (link.op, &link.args[..]) {
            (ElementwiseOp::Scalar(op @ (ScalarOp::Shl | ScalarOp::Shr)), &[(x, dtype), (by, _)])
                if link_operand_constant(self.chain, by).is_some() =>
            {
                let by = link_operand_constant(self.chain, by)?.bits as u32;
                let x = self.load_operand(x, at)?;
                self.w.shift(op, dtype, x, by)?
            }
            (op, sources) => {
                let mut args = vec![];
                for (source, _) in sources {
                    args.push(self.load_operand(*source, at)?);
                }
                match op {
                    // The operation's element type is that of its last operand; the first one of a selection is its
                    // condition.
                    ElementwiseOp::Scalar(op) => self.w.scalar_operation(op, sources.last()?.1, &args)?,
                    ElementwiseOp::Cast => self.w.cast(sources[0].1, link.dtype, args[0])?,
                    ElementwiseOp::Bitcast => self.w.bitcast(sources[0].1, link.dtype, args[0])?,
                }
            }
        };
        link.args.iter().for_each(|(source, _)| self.release_use(*source, at));
        Some(result)
    }

    /// Writes the code that folds the operand of one of the chain's folds, a vector, into the running result in a
    /// register, or into the columns of the result in memory.
    fn emit_fold(&mut self, fold_index: usize, at: &mut VectorState) -> Option<()> {
        let source = self.chain.sinks[fold_index].of;
        let x = self.load_operand(source, at)?;
        if let Some(FoldRegisters { op, start, ref running }) = self.folded[fold_index] {
            let to = running[at.k];
            if let Some(PartialVector { mask, .. }) = at.part {
                let kept = self.w.blend(Operand::Reg(mask), x, start)?;
                self.w.accumulate(op, to, Operand::Reg(kept))?;
                self.w.free_register(kept);
            } else {
                self.w.accumulate(op, to, x)?;
            }
        } else {
            self.fold_into_columns(fold_index, at, x)?;
        }
        self.release_use(source, at);
        Some(())
    }

    /// Writes the code that folds the vector `x` element by element into the row in memory that is the result of a fold
    /// of columns.
    fn fold_into_columns(&mut self, fold_index: usize, at: &VectorState, x: Operand) -> Option<()> {
        let (op, dtype) = (self.chain.sinks[fold_index].op, self.chain.sinks[fold_index].dtype);
        let to = self.vector_memory(self.folds - self.length - 1 + fold_index, dtype, at.k);
        let old = self.w.load_vector(dtype, to, at.part)?;
        let new = self.w.scalar_operation(op, dtype, &[Operand::Reg(old), x])?;
        self.w.store_vector(dtype, to, at.part, new, false)?;
        [old, new].into_iter().for_each(|r| self.w.free_register(r));
        Some(())
    }

    /// Counts a use of an input or link as done, and frees its register after the last use.
    fn release_use(&mut self, source: LinkOperand, at: &mut VectorState) {
        let (count, register) = match source {
            LinkOperand::Input(i) => (&mut at.left[0][i], at.inputs[i]),
            LinkOperand::Link(l) => (&mut at.left[1][l], at.links[l]),
        };
        *count -= 1;
        if let (0, Some(r)) = (*count, register) {
            self.w.free_register(r);
        }
    }

    fn load_operand(&mut self, source: LinkOperand, at: &mut VectorState) -> Option<Operand> {
        match source {
            LinkOperand::Input(input) => self.load_input(input, at),
            LinkOperand::Link(link) => at.links[link].map(Operand::Reg),
        }
    }

    /// Returns an input of a vector: a memory operand if it is used once, a register otherwise.
    fn load_input(&mut self, input: usize, at: &mut VectorState) -> Option<Operand> {
        if let Some(r) = at.inputs[input] {
            return Some(Operand::Reg(r));
        }
        if let ChainInput::Constant(x) = self.chain.inputs[input] {
            return register_bits(x).map(|bits| self.w.word_constant(bits));
        }
        if let Some(offset) = self.slots[input] {
            return Some(Operand::Mem(Mem { base: Gpr::Rsp, index: None, offset }));
        }
        let place = self.chain.input_values().position(|(value, _)| value == input)?;
        let dtype = self.types[input]?;
        let from = self.vector_memory(place, dtype, at.k);
        let is_vector = !is_narrow_type(dtype) && at.part.is_none();
        let in_halves = is_vector && self.form.halves && self.w.beyond.wide;
        if is_vector && !in_halves && at.left[0][input] == 1 {
            return Some(Operand::Mem(from));
        }
        let r = if in_halves { self.w.load_in_halves(from)? } else { self.w.load_vector(dtype, from, at.part)? };
        at.inputs[input] = Some(r);
        Some(Operand::Reg(r))
    }

    /// Returns the memory of one vector of an operand, counted from the current column, with elements of type `dtype`.
    fn vector_memory(&self, address_index: usize, dtype: DType, vector_index: usize) -> Mem {
        let bytes = dtype.bytes();
        let base = self.pointers[address_index].expect("walked along");
        Mem {
            base,
            index: Some((COLUMN_REGISTER, bytes as u8)),
            offset: vector_index as i32 * self.w.lanes() * bytes as i32,
        }
    }

    /// Stores a vector of a link's result to the memory of its value.
    fn store_result(&mut self, link: usize, address_index: usize, at: &VectorState, x: Reg) -> Option<()> {
        let dtype = self.chain.links[link].dtype;
        let to = self.vector_memory(address_index, dtype, at.k);
        self.w.store_vector(
            dtype,
            to,
            at.part,
            x,
            is_bit_set(self.form.streamed, address_index + self.length + 1 - self.results),
        )
    }
}
