//! A plan that runs step by step on buffers of a client, as GPUs and the interpreter do.
use super::super::callback::called;
use super::super::print::show;
use super::{HELD, Param, compiled};
use crate::array::{Array, Client};
use crate::exec::Prepared;
use pallas_device::Buffer;
use pallas_device::error::Result;
use pallas_graph::call::{Callback, Print};
use pallas_graph::fuse::{self, Place, Plan};
use pallas_ir::{DType, Literal, Loc, Type};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;

/// The steps of a plan, each of which launches a kernel, or runs others.
pub(super) struct Steps {
    client: Client,
    steps: Vec<Step>,
    /// Bytes of each result that has memory of its own.
    fresh: Vec<usize>,
    /// Bytes of each value that is neither a parameter nor a result.
    temporary: Vec<usize>,
    results: Vec<(Place, Type)>,
    /// Sets of temporary memory that no run uses at the moment.
    idle: Mutex<Vec<Vec<Option<Buffer>>>>,
}

/// A step of a plan: copies (from, to), then work that reads the inputs and writes the outputs.
struct Step {
    work: Work,
    copies: Vec<(Place, Place)>,
    inputs: SmallVec<[Place; 8]>,
    outputs: SmallVec<[Place; 4]>,
}

/// The compiled work of a step; the variants are those of [`pallas_graph::fuse::Work`].
enum Work {
    Launch {
        kernel: Prepared,
        params: Vec<Literal>,
    },
    /// A loop of `length` steps. `numbers` has the numbers of the first steps in the device's memory, from which each
    /// step copies its own.
    For {
        body: Steps,
        length: usize,
        numbers: Buffer,
    },
    While {
        condition: Steps,
        captured: usize,
        body: Steps,
    },
    Case {
        branches: Vec<Steps>,
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

impl Steps {
    /// Compiles a plan for a client.
    ///
    /// # Errors
    /// Sizes that no launch can have.
    pub(super) fn new(plan: Plan, client: &Client) -> Result<Steps> {
        let Plan { steps, fresh, temporary, results, .. } = plan;
        let inner = |plan: Plan| Steps::new(plan, client);
        let step = |fuse::Step { work, copies, inputs, outputs, .. }| {
            let work = match work {
                fuse::Work::Kernel { kernel, sizes, params } => {
                    Work::Launch { kernel: compiled(&kernel).prepare(client, &sizes)?, params }
                }
                fuse::Work::For { body, length, .. } => {
                    Work::For { body: inner(*body)?, length, numbers: numbers(client, 0, length)? }
                }
                fuse::Work::While { condition, captured, body, .. } => {
                    Work::While { condition: inner(*condition)?, captured, body: inner(*body)? }
                }
                fuse::Work::Collective { .. } => unreachable!("`Program::for_mesh` refuses other devices than CPUs"),
                fuse::Work::Print { print, ty, at } => Work::Print { print, ty, at },
                fuse::Work::Callback { callback, at } => Work::Callback { callback, at },
                fuse::Work::Case { branches } => {
                    Work::Case { branches: branches.into_iter().map(inner).collect::<Result<_>>()? }
                }
            };
            Ok(Step { work, copies, inputs: inputs.into(), outputs: outputs.into() })
        };
        let steps = steps.into_iter().map(step).collect::<Result<Vec<_>>>()?;
        let temporary = temporary.iter().map(|region| region.bytes).collect();
        Ok(Steps { client: client.clone(), steps, fresh, temporary, results, idle: Mutex::default() })
    }

    fn allocate(&self, bytes: usize) -> Result<Option<Buffer>> {
        Buffer::allocate(&self.client, bytes, false).map(Some)
    }

    /// Runs the steps once; returns the memory of the results.
    ///
    /// # Errors
    /// Memory, a fault of the interpreter, device errors.
    pub(super) fn execute(&self, params: &mut [Param<'_>], fresh: Vec<Option<Buffer>>) -> Result<Vec<Option<Buffer>>> {
        let idle = self.idle.lock().pop();
        let temporary = match idle {
            Some(buffers) => buffers,
            None => self.temporary.iter().map(|&bytes| self.allocate(bytes)).collect::<Result<_>>()?,
        };
        let mut memory = Memory { params, fresh, temporary };
        for step in &self.steps {
            memory.run(step, &self.client)?;
        }
        let Memory { fresh, temporary, .. } = memory;
        // After an error the buffers are dropped, since one of them may be missing.
        self.idle.lock().push(temporary);
        Ok(fresh)
    }

    /// Runs the steps once, and returns each result in memory of its own. Parameters' memory that is left over is added
    /// to `spare`, from which new memory is taken.
    fn step(&self, mut params: Vec<Param<'_>>, spare: &mut Vec<Buffer>) -> Result<Vec<Buffer>> {
        let of_size = |spare: &mut Vec<Buffer>, bytes: usize| match spare.iter().position(|b| b.len() == bytes) {
            Some(i) => Ok(spare.swap_remove(i)),
            None => Buffer::allocate(&self.client, bytes, false),
        };
        let fresh = self.fresh.iter().map(|&bytes| of_size(spare, bytes).map(Some)).collect::<Result<_>>()?;
        let mut fresh = self.execute(&mut params, fresh)?;
        let mut results: Vec<Buffer> = vec![];
        for (i, (place, ty)) in self.results.iter().enumerate() {
            let known = self.results[..i].iter().position(|(other, _)| other == place);
            let own = match (place, known) {
                (_, Some(_)) => None,
                (Place::Fresh(k), None) => fresh[*k].take(),
                (Place::Param(k), None) => match &mut params[*k] {
                    Param::Own(buffer) => buffer.take(),
                    Param::Shared(_) => None,
                },
                (Place::Temporary(_), None) => unreachable!("a result outlives the call"),
            };
            let own = match (own, known, place) {
                (Some(buffer), ..) => buffer,
                (None, known, place) => {
                    let mut copy = of_size(spare, ty.bytes())?;
                    copy.copy_from(match (known, place) {
                        (Some(k), _) => &results[k],
                        (None, Place::Param(k)) => params[*k].buffer(),
                        (None, _) => unreachable!("the first result of a place has its memory"),
                    })?;
                    copy
                }
            };
            results.push(own);
        }
        spare.extend(params.into_iter().filter_map(|param| match param {
            Param::Own(buffer) => buffer,
            Param::Shared(_) => None,
        }));
        Ok(results)
    }
}

/// Number of step numbers that are uploaded at once.
const NUMBERS: usize = 1024;

/// Uploads the next numbers of a loop's steps, from the number `from` on.
fn numbers(client: &Client, from: usize, length: usize) -> Result<Buffer> {
    let all = from..length.min(from + NUMBERS);
    let bytes: Vec<u8> = all.flat_map(|step| (step as i32).to_ne_bytes()).collect();
    Buffer::holding(client, &bytes)
}

/// The memory of one run of the steps.
struct Memory<'a, 'p> {
    params: &'a mut [Param<'p>],
    /// Memory of the results; `None` while a step writes to it.
    fresh: Vec<Option<Buffer>>,
    temporary: Vec<Option<Buffer>>,
}

impl Memory<'_, '_> {
    /// Runs a step. Its outputs are taken out of the tables meanwhile, so that nothing else can read them.
    fn run(&mut self, step: &Step, client: &Client) -> Result<()> {
        for &(from, to) in &step.copies {
            let mut copy = self.own(to).take().expect(HELD);
            copy.copy_from(self.buffer(from))?;
            *self.own(to) = Some(copy);
        }
        let taken = |place: &Place| self.own(*place).take().expect("an output is no other's");
        let mut outputs: SmallVec<[Buffer; 4]> = step.outputs.iter().map(taken).collect();
        let inputs: SmallVec<[&Buffer; 8]> = step.inputs.iter().map(|&place| self.buffer(place)).collect();
        match &step.work {
            Work::Print { print, ty, at } => show(print, ty, &inputs[0].contents()?, *at)?,
            Work::Callback { callback, at } => {
                let all = inputs.iter().map(|x| x.contents()).collect::<Result<Vec<_>>>()?;
                let made = called(callback, &all.iter().map(|x| &x[..]).collect::<Vec<_>>(), *at)?;
                outputs.iter_mut().zip(made).try_for_each(|(to, bytes)| to.write(&bytes))?;
            }
            Work::Launch { kernel, params } => kernel.launch_on(&inputs, params, &mut outputs)?,
            Work::For { body, length, numbers: first } => {
                let mut counter = Buffer::allocate(client, size_of::<i32>(), false)?;
                let mut later = None;
                let mut carried: Vec<Buffer> = outputs.drain(..).collect();
                let mut spare = vec![];
                for step in 0..*length {
                    let at = step % NUMBERS;
                    if at == 0 && step > 0 {
                        later = Some(numbers(client, step, *length)?);
                    }
                    counter.copy_part(later.as_ref().unwrap_or(first), at * size_of::<i32>())?;
                    let shared = [&counter].into_iter().chain(inputs.iter().copied()).map(Param::Shared);
                    let own = carried.into_iter().map(|buffer| Param::Own(Some(buffer)));
                    carried = body.step(shared.chain(own).collect(), &mut spare)?;
                }
                outputs.extend(carried);
            }
            Work::While { condition, captured, body } => {
                let (of_condition, of_body) = inputs.split_at(*captured);
                let mut carried: Vec<Buffer> = outputs.drain(..).collect();
                let mut spare = vec![];
                loop {
                    let shared = of_condition.iter().copied().chain(&carried).map(Param::Shared).collect();
                    let goes_on = condition.step(shared, &mut spare)?.remove(0);
                    let goes_on = Array::sharing(DType::Bool, &[], Arc::new(goes_on));
                    if !goes_on.to_vec::<bool>()?[0] {
                        break;
                    }
                    let own = carried.into_iter().map(|buffer| Param::Own(Some(buffer)));
                    let shared = of_body.iter().map(|buffer| Param::Shared(buffer));
                    carried = body.step(shared.chain(own).collect(), &mut spare)?;
                }
                outputs.extend(carried);
            }
            Work::Case { branches } => {
                let index = inputs[0].contents()?;
                let index = i32::from_ne_bytes(index[..4].try_into().expect("four bytes"));
                let chosen = usize::try_from(index).unwrap_or(0).min(branches.len() - 1);
                let mut spare: Vec<Buffer> = outputs.drain(..).collect();
                let shared = inputs[1..].iter().map(|buffer| Param::Shared(buffer)).collect();
                outputs.extend(branches[chosen].step(shared, &mut spare)?);
            }
        }
        drop(inputs);
        for (&place, output) in step.outputs.iter().zip(outputs) {
            *self.own(place) = Some(output);
        }
        Ok(())
    }

    fn buffer(&self, place: Place) -> &Buffer {
        match place {
            Place::Param(i) => self.params[i].buffer(),
            Place::Fresh(i) => self.fresh[i].as_ref().expect(HELD),
            Place::Temporary(i) => self.temporary[i].as_ref().expect(HELD),
        }
    }

    /// The memory of a place that a step writes to, which is no parameter that others read.
    fn own(&mut self, place: Place) -> &mut Option<Buffer> {
        match place {
            Place::Param(i) => match &mut self.params[i] {
                Param::Own(buffer) => buffer,
                Param::Shared(_) => unreachable!("memory that others read is not written"),
            },
            Place::Fresh(i) => &mut self.fresh[i],
            Place::Temporary(i) => &mut self.temporary[i],
        }
    }
}
