//! A plan with its kernels and its memory, ready to run.
use crate::array::Array;
use crate::device::{Buffer, Client, Lru};
use crate::error::Result;
use crate::exec::{Compiled, Prepared};
use pallas_graph::fuse::{Place, Plan, Sizes, plan};
use pallas_graph::{Graph, simplify};
use pallas_ir::Type;
use smallvec::SmallVec;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// A graph that is compiled for a client.
pub(super) struct Program {
    client: Client,
    steps: Vec<Step>,
    /// Bytes of the memory of results.
    fresh: Vec<usize>,
    /// Bytes of the memory of values that are neither parameters nor results.
    temporary: Vec<usize>,
    results: Vec<(Place, Type)>,
    /// Temporary memory that no call uses.
    idle: Mutex<Vec<Vec<Option<Buffer>>>>,
}

struct Step {
    launch: Prepared,
    inputs: SmallVec<[Place; 8]>,
    outputs: SmallVec<[Place; 4]>,
}

/// Kernels by their text: equal clusters share one.
static KERNELS: LazyLock<Lru<String, Compiled>> = LazyLock::new(|| Lru::new(Compiled::bytes));

fn compiled(kernel: pallas_ir::Kernel) -> Compiled {
    let text = kernel.to_string();
    KERNELS.get(&text).unwrap_or_else(|| KERNELS.insert(text, Compiled::of_trace(kernel)))
}

/// The block sizes for a client's device.
fn sizes(client: &Client) -> Sizes {
    let (target, budget) = (client.target(), client.target().budget());
    match target.cores {
        Some(cores) => Sizes { programs: cores, tile: 1 << 14, product: [256, 512], small: 1 << 22 },
        // A program's tiles are in registers and workgroup memory.
        None => {
            Sizes { programs: budget.programs, tile: budget.live_elements.min(1 << 14), product: [64, 64], small: 0 }
        }
    }
}

impl Program {
    /// Compiles a graph.
    ///
    /// # Errors
    /// Sizes that no launch can have.
    pub(super) fn new(graph: &Graph, client: &Client) -> Result<Program> {
        let graph = simplify::simplify(graph);
        debug_assert_eq!(pallas_graph::verify(&graph), Ok(()));
        let Plan { steps, fresh, temporary, results } = plan(&graph, &sizes(client));
        let step = |step: pallas_graph::fuse::Step| {
            let launch = compiled(step.kernel).prepare(client, &step.sizes)?;
            Ok(Step { launch, inputs: step.inputs.into(), outputs: step.outputs.into() })
        };
        let steps = steps.into_iter().map(step).collect::<Result<Vec<_>>>()?;
        Ok(Program { client: client.clone(), steps, fresh, temporary, results, idle: Mutex::default() })
    }

    /// Estimated bytes.
    pub(super) fn bytes(&self) -> u64 {
        (self.steps.len() * 512) as u64 + self.temporary.iter().sum::<usize>() as u64
    }

    /// Runs it on arrays of the types of its parameters, all on its client.
    ///
    /// # Errors
    /// Memory, a fault of the interpreter, device errors.
    pub(super) fn run(&self, args: &[&Array]) -> Result<Vec<Array>> {
        let allocate = |bytes: &usize| Buffer::allocate(&self.client, *bytes, false).map(Some);
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let temporary = match idle {
            Some(buffers) => buffers,
            None => self.temporary.iter().map(allocate).collect::<Result<_>>()?,
        };
        let fresh = self.fresh.iter().map(allocate).collect::<Result<_>>()?;
        let mut memory = Memory { args, fresh, temporary };
        for step in &self.steps {
            memory.run(step)?;
        }
        let Memory { fresh, temporary, .. } = memory;
        // After an error the buffers are dropped, since one of them may be missing.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(temporary);
        let fresh: Vec<_> = fresh.into_iter().map(|buffer| Arc::new(buffer.expect(HELD))).collect();
        let result = |(place, ty): &(Place, Type)| match place {
            Place::Param(i) => args[*i].with_shape(&ty.shape),
            Place::Fresh(i) => Ok(Array::sharing(ty.dtype, &ty.shape, fresh[*i].clone())),
            Place::Temporary(_) => unreachable!("a result outlives the call"),
        };
        self.results.iter().map(result).collect()
    }
}

/// No step both reads and writes a place.
const HELD: &str = "a buffer is there but while a step writes it";

/// The memory of one run.
struct Memory<'a> {
    args: &'a [&'a Array],
    /// `None` while a step writes it.
    fresh: Vec<Option<Buffer>>,
    temporary: Vec<Option<Buffer>>,
}

impl Memory<'_> {
    /// Runs a step. Its outputs leave the tables meanwhile, so that nothing else can read them.
    fn run(&mut self, step: &Step) -> Result<()> {
        let taken = |place: &Place| self.own(*place).take().expect("an output is no other's");
        let mut outputs: SmallVec<[Buffer; 4]> = step.outputs.iter().map(taken).collect();
        let inputs = step.inputs.iter().map(|&place| self.buffer(place)).collect::<Result<SmallVec<[_; 8]>>>()?;
        step.launch.launch_on(&inputs, &mut outputs)?;
        drop(inputs);
        for (&place, output) in step.outputs.iter().zip(outputs) {
            *self.own(place) = Some(output);
        }
        Ok(())
    }

    fn buffer(&self, place: Place) -> Result<&Buffer> {
        Ok(match place {
            Place::Param(i) => self.args[i].buffer()?,
            Place::Fresh(i) => self.fresh[i].as_ref().expect(HELD),
            Place::Temporary(i) => self.temporary[i].as_ref().expect(HELD),
        })
    }

    fn own(&mut self, place: Place) -> &mut Option<Buffer> {
        match place {
            Place::Param(_) => unreachable!("parameters are not written"),
            Place::Fresh(i) => &mut self.fresh[i],
            Place::Temporary(i) => &mut self.temporary[i],
        }
    }
}
