//! A plan that runs step by step on buffers of a client, as GPUs and the interpreter do.
use super::super::callback::call_callback;
use super::super::print::print_elements;
use super::{MISSING_BUFFER_MESSAGE, ParamMemory, cached_kernel};
use crate::array::{Array, Client};
use crate::exec::Prepared;
use pallas_device::Buffer;
use pallas_device::error::Result;
use pallas_graph::call::{Callback, Print};
use pallas_graph::fuse::{self, MemoryLocation, Plan};
use pallas_ir::{DType, Literal, Loc, Type};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;

/// The steps of a plan, each of which launches a kernel, or runs others.
pub(super) struct StepProgram {
    client: Client,
    steps: Vec<CompiledStep>,
    /// Bytes of each result that has memory of its own.
    fresh: Vec<usize>,
    /// Bytes of each value that is neither a parameter nor a result.
    temporary: Vec<usize>,
    results: Vec<(MemoryLocation, Type)>,
    /// Sets of temporary memory that no run uses at the moment.
    idle: Mutex<Vec<Vec<Option<Buffer>>>>,
}

/// A step of a plan: copies (from, to), then work that reads the inputs and writes the outputs.
struct CompiledStep {
    work: StepWork,
    copies: Vec<(MemoryLocation, MemoryLocation)>,
    inputs: SmallVec<[MemoryLocation; 8]>,
    outputs: SmallVec<[MemoryLocation; 4]>,
}

/// The compiled work of a step; the variants are those of [`pallas_graph::fuse::StepOp`].
enum StepWork {
    Launch {
        kernel: Prepared,
        params: Vec<Literal>,
    },
    /// A loop of `length` steps. `numbers` has the numbers of the first steps in the device's memory, from which each
    /// step copies its own.
    For {
        body: StepProgram,
        length: usize,
        numbers: Buffer,
    },
    While {
        condition: StepProgram,
        captured: usize,
        body: StepProgram,
    },
    Case {
        branches: Vec<StepProgram>,
    },
    Print {
        print: Print,
        ty: Type,
        at: Loc,
    },
    Callback {
        callback: Callback,
        at: Loc,
    },
}

impl StepProgram {
    /// Compiles a plan for a client.
    ///
    /// # Errors
    /// Sizes that no launch can have.
    pub(super) fn new(plan: Plan, client: &Client) -> Result<StepProgram> {
        let Plan { steps, fresh, temporary, results, .. } = plan;
        let inner = |plan: Plan| StepProgram::new(plan, client);
        let step = |fuse::PlanStep { work, copies, inputs, outputs, .. }| {
            let work = match work {
                fuse::StepOp::Kernel { kernel, sizes, params } => {
                    StepWork::Launch { kernel: cached_kernel(&kernel).prepare(client, &sizes)?, params }
                }
                fuse::StepOp::For { body, length, .. } => {
                    StepWork::For { body: inner(*body)?, length, numbers: upload_step_numbers(client, 0, length)? }
                }
                fuse::StepOp::While { condition, captured, body, .. } => {
                    StepWork::While { condition: inner(*condition)?, captured, body: inner(*body)? }
                }
                fuse::StepOp::Collective { .. } => unreachable!("`Program::for_mesh` refuses other devices than CPUs"),
                fuse::StepOp::Print { print, ty, at } => StepWork::Print { print, ty, at },
                fuse::StepOp::Callback { callback, at } => StepWork::Callback { callback, at },
                fuse::StepOp::Case { branches } => {
                    StepWork::Case { branches: branches.into_iter().map(inner).collect::<Result<_>>()? }
                }
            };
            Ok(CompiledStep { work, copies, inputs: inputs.into(), outputs: outputs.into() })
        };
        let steps = steps.into_iter().map(step).collect::<Result<Vec<_>>>()?;
        let temporary = temporary.iter().map(|region| region.bytes).collect();
        Ok(StepProgram { client: client.clone(), steps, fresh, temporary, results, idle: Mutex::default() })
    }

    fn allocate_temporary_buffer(&self, bytes: usize) -> Result<Option<Buffer>> {
        Buffer::allocate(&self.client, bytes, false).map(Some)
    }

    /// Runs all steps in order on the memory of parameters and results; returns that of the results. Entries of
    /// `result_buffers` are `Some` before and after: only a running step takes one out.
    ///
    /// # Errors
    /// Memory, a fault of the interpreter, device errors.
    pub(super) fn execute(
        &self,
        params: &mut [ParamMemory<'_>],
        result_buffers: Vec<Option<Buffer>>,
    ) -> Result<Vec<Option<Buffer>>> {
        let idle = self.idle.lock().pop();
        let temporary = match idle {
            Some(buffers) => buffers,
            None => self.temporary.iter().map(|&bytes| self.allocate_temporary_buffer(bytes)).collect::<Result<_>>()?,
        };
        let mut memory = ExecutionMemory { params, fresh: result_buffers, temporary };
        for step in &self.steps {
            memory.run_step(step, &self.client)?;
        }
        let ExecutionMemory { fresh, temporary, .. } = memory;
        // After an error the buffers are dropped, since one of them may be missing.
        self.idle.lock().push(temporary);
        Ok(fresh)
    }

    /// Runs the steps once, and returns each result in memory of its own. Parameters' memory that is left over is added
    /// to `spare_buffers`, from which new memory is taken.
    fn run_loop_body(&self, mut params: Vec<ParamMemory<'_>>, spare_buffers: &mut Vec<Buffer>) -> Result<Vec<Buffer>> {
        let of_size = |spare: &mut Vec<Buffer>, bytes: usize| match spare.iter().position(|b| b.len() == bytes) {
            Some(i) => Ok(spare.swap_remove(i)),
            None => Buffer::allocate(&self.client, bytes, false),
        };
        let fresh = self.fresh.iter().map(|&bytes| of_size(spare_buffers, bytes).map(Some)).collect::<Result<_>>()?;
        let mut fresh = self.execute(&mut params, fresh)?;
        let mut results: Vec<Buffer> = vec![];
        for (i, (place, ty)) in self.results.iter().enumerate() {
            let known = self.results[..i].iter().position(|(other, _)| other == place);
            let own = match (place, known) {
                (_, Some(_)) => None,
                (MemoryLocation::Fresh(k), None) => fresh[*k].take(),
                (MemoryLocation::Param(k), None) => match &mut params[*k] {
                    ParamMemory::Owned(buffer) => buffer.take(),
                    ParamMemory::Shared(_) => None,
                },
                (MemoryLocation::Temporary(_), None) => unreachable!("a result outlives the call"),
            };
            let own = match (own, known, place) {
                (Some(buffer), ..) => buffer,
                (None, known, place) => {
                    let mut copy = of_size(spare_buffers, ty.bytes())?;
                    copy.copy_from(match (known, place) {
                        (Some(k), _) => &results[k],
                        (None, MemoryLocation::Param(k)) => params[*k].buffer(),
                        (None, _) => unreachable!("the first result of a place has its memory"),
                    })?;
                    copy
                }
            };
            results.push(own);
        }
        spare_buffers.extend(params.into_iter().filter_map(|param| match param {
            ParamMemory::Owned(buffer) => buffer,
            ParamMemory::Shared(_) => None,
        }));
        Ok(results)
    }
}

/// Number of step numbers that are uploaded at once.
const STEP_NUMBERS_PER_UPLOAD: usize = 1024;

/// Uploads step numbers of a loop of `length` steps to the device: at most [`STEP_NUMBERS_PER_UPLOAD`] of them, from
/// `first` on.
fn upload_step_numbers(client: &Client, first: usize, length: usize) -> Result<Buffer> {
    let all = first..length.min(first + STEP_NUMBERS_PER_UPLOAD);
    let bytes: Vec<u8> = all.flat_map(|step| (step as i32).to_ne_bytes()).collect();
    Buffer::from_bytes(client, &bytes)
}

/// Buffers of one run of a [`StepProgram`]: of its parameters, results and temporary values.
struct ExecutionMemory<'a, 'p> {
    params: &'a mut [ParamMemory<'p>],
    /// Memory of the results; `None` while a step writes to it.
    fresh: Vec<Option<Buffer>>,
    temporary: Vec<Option<Buffer>>,
}

impl ExecutionMemory<'_, '_> {
    /// Runs a step: its copies, then its work. Its output buffers are taken out of `self` meanwhile, so that nothing
    /// else reads them.
    fn run_step(&mut self, step: &CompiledStep, client: &Client) -> Result<()> {
        for &(from, to) in &step.copies {
            let mut copy = self.writable_buffer(to).take().expect(MISSING_BUFFER_MESSAGE);
            copy.copy_from(self.buffer(from))?;
            *self.writable_buffer(to) = Some(copy);
        }
        let taken = |place: &MemoryLocation| self.writable_buffer(*place).take().expect("an output is no other's");
        let mut outputs: SmallVec<[Buffer; 4]> = step.outputs.iter().map(taken).collect();
        let inputs: SmallVec<[&Buffer; 8]> = step.inputs.iter().map(|&place| self.buffer(place)).collect();
        match &step.work {
            StepWork::Print { print, ty, at } => print_elements(print, ty, &inputs[0].contents()?, *at)?,
            StepWork::Callback { callback, at } => {
                let all = inputs.iter().map(|x| x.contents()).collect::<Result<Vec<_>>>()?;
                let made = call_callback(callback, &all.iter().map(|x| &x[..]).collect::<Vec<_>>(), *at)?;
                outputs.iter_mut().zip(made).try_for_each(|(to, bytes)| to.write(&bytes))?;
            }
            StepWork::Launch { kernel, params } => kernel.launch_on_buffers(&inputs, params, &mut outputs)?,
            StepWork::For { body, length, numbers: first } => {
                let mut counter = Buffer::allocate(client, size_of::<i32>(), false)?;
                let mut later = None;
                let mut carried: Vec<Buffer> = outputs.drain(..).collect();
                let mut spare = vec![];
                for step in 0..*length {
                    let at = step % STEP_NUMBERS_PER_UPLOAD;
                    if at == 0 && step > 0 {
                        later = Some(upload_step_numbers(client, step, *length)?);
                    }
                    counter.copy_part(later.as_ref().unwrap_or(first), at * size_of::<i32>())?;
                    let shared = [&counter].into_iter().chain(inputs.iter().copied()).map(ParamMemory::Shared);
                    let own = carried.into_iter().map(|buffer| ParamMemory::Owned(Some(buffer)));
                    carried = body.run_loop_body(shared.chain(own).collect(), &mut spare)?;
                }
                outputs.extend(carried);
            }
            StepWork::While { condition, captured, body } => {
                let (of_condition, of_body) = inputs.split_at(*captured);
                let mut carried: Vec<Buffer> = outputs.drain(..).collect();
                let mut spare = vec![];
                loop {
                    let shared = of_condition.iter().copied().chain(&carried).map(ParamMemory::Shared).collect();
                    let goes_on = condition.run_loop_body(shared, &mut spare)?.remove(0);
                    let goes_on = Array::from_shared_buffer(DType::Bool, &[], Arc::new(goes_on));
                    if !goes_on.to_vec::<bool>()?[0] {
                        break;
                    }
                    let own = carried.into_iter().map(|buffer| ParamMemory::Owned(Some(buffer)));
                    let shared = of_body.iter().map(|buffer| ParamMemory::Shared(buffer));
                    carried = body.run_loop_body(shared.chain(own).collect(), &mut spare)?;
                }
                outputs.extend(carried);
            }
            StepWork::Case { branches } => {
                let index = inputs[0].contents()?;
                let index = i32::from_ne_bytes(index[..4].try_into().expect("four bytes"));
                let chosen = usize::try_from(index).unwrap_or(0).min(branches.len() - 1);
                let mut spare: Vec<Buffer> = outputs.drain(..).collect();
                let shared = inputs[1..].iter().map(|buffer| ParamMemory::Shared(buffer)).collect();
                outputs.extend(branches[chosen].run_loop_body(shared, &mut spare)?);
            }
        }
        drop(inputs);
        for (&place, output) in step.outputs.iter().zip(outputs) {
            *self.writable_buffer(place) = Some(output);
        }
        Ok(())
    }

    fn buffer(&self, place: MemoryLocation) -> &Buffer {
        match place {
            MemoryLocation::Param(i) => self.params[i].buffer(),
            MemoryLocation::Fresh(i) => self.fresh[i].as_ref().expect(MISSING_BUFFER_MESSAGE),
            MemoryLocation::Temporary(i) => self.temporary[i].as_ref().expect(MISSING_BUFFER_MESSAGE),
        }
    }

    /// Returns the buffer at `place`, to be written to by a step; `None` while a step has taken it. Panics for a
    /// parameter whose memory is shared.
    fn writable_buffer(&mut self, place: MemoryLocation) -> &mut Option<Buffer> {
        match place {
            MemoryLocation::Param(i) => match &mut self.params[i] {
                ParamMemory::Owned(buffer) => buffer,
                ParamMemory::Shared(_) => unreachable!("memory that others read is not written"),
            },
            MemoryLocation::Fresh(i) => &mut self.fresh[i],
            MemoryLocation::Temporary(i) => &mut self.temporary[i],
        }
    }
}
