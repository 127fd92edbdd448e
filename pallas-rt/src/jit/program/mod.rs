//! A plan with its kernels and its memory, ready to run.
#[allow(unsafe_code, reason = "vouches for the memory of runs")]
mod cpu_sequence;
mod processes;
mod sizes;
mod steps;

use super::compile::{CompilationInput, StageResults};
use super::program_watch::{is_program_watched, run_watched};
use crate::array::{Array, ArrayContents, Client};
use crate::exec::Compiled;
use crate::sharding::{Mesh, MeshPlacement, Receipt, Sharding, local_device_positions, split_into_blocks};
use cpu_sequence::NativePlan;
use pallas_device::devices::sequence::SequenceDevices;
use pallas_device::error::Result;
use pallas_device::startup::Engine as Engines;
use pallas_device::{Buffer, DeviceKind, Lru};
use pallas_graph::Graph;
use pallas_graph::fuse::{self, MemoryLocation, Plan};
use pallas_ir::{Kernel, Type};
use processes::{compile_across_processes, local_devices, own_or_argument_receipts, result_receipts};
pub(super) use sizes::device_limits;
use std::sync::{Arc, LazyLock};
use steps::StepProgram;

/// A graph that is compiled for a client.
pub(super) struct Program {
    client: Client,
    engine: PlanEngine,
    /// Bytes of each result that has memory of its own.
    fresh: Vec<usize>,
    results: Vec<(MemoryLocation, Type)>,
    /// By parameter, true if a step writes to its memory.
    changed: Vec<bool>,
    /// Number of steps.
    steps: usize,
    /// Estimated bytes of what the steps are compiled to.
    bytes: u64,
    /// Bytes of the arena, which holds all values that are neither parameters nor results.
    arena: usize,
    /// The shardings of parameters and results; `None` for a program that does not run on a mesh.
    division: Option<ProgramShardings>,
    /// The function that it computes, on whole arrays.
    graph: Arc<Graph>,
}

/// The shardings of the arrays of a program on a mesh.
struct ProgramShardings {
    mesh: Arc<Mesh>,
    engine: Engines,
    /// The positions in the mesh of this process' devices.
    positions: Vec<usize>,
    params: Vec<Sharding>,
    results: Vec<ResultShardingAndReceipts>,
}

/// A result of a program on a mesh: the type of the whole array, its sharding, the receipts (records) of the last
/// collectives with a reduction that it depends on, and the indices of the parameters that it depends on without such a
/// collective.
type ResultShardingAndReceipts = (Type, Sharding, (Arc<[Receipt]>, Vec<usize>));

/// The engine that runs a plan.
enum PlanEngine {
    /// Native code, on the CPU.
    Native(NativePlan),
    /// One step after the other, on a GPU or the interpreter.
    Steps(StepProgram),
}

/// Compiled kernels by their text, so that equal kernels of several programs are compiled once.
static KERNEL_CACHE: LazyLock<Lru<Arc<str>, Compiled>> = LazyLock::new(|| Lru::new(Compiled::estimated_memory_bytes));

/// The compiled forms of a kernel, from [`KERNEL_CACHE`] if an equal one was compiled.
pub(super) fn cached_kernel(kernel: &Kernel) -> Compiled {
    let text: Arc<str> = kernel.to_string().into();
    let new = || KERNEL_CACHE.get_or_insert(text.clone(), Compiled::from_trace_with_text(kernel.clone(), text.clone()));
    KERNEL_CACHE.get(&text).unwrap_or_else(new)
}

/// Puts the compiled forms of a kernel into [`KERNEL_CACHE`], for programs that call it.
pub(super) fn cache_kernel(compiled: &Compiled) {
    let text: Arc<str> = compiled.traced().to_string().into();
    if KERNEL_CACHE.get(&text).is_none() {
        KERNEL_CACHE.get_or_insert(text, compiled.clone());
    }
}

/// Bytes of each of a graph's parameters.
fn parameter_bytes(graph: &Graph) -> Vec<usize> {
    graph.params.iter().map(|&p| graph.ty(p).bytes()).collect()
}

impl Program {
    /// Makes the program of the partitioned and simplified graphs and the plan in `stage_results`; `engine` runs the
    /// collectives of its devices.
    ///
    /// # Errors
    /// Memory of the client; processes of a job that compile other programs.
    pub(super) fn from_stages(
        input: CompilationInput,
        stage_results: StageResults,
        engine: Engines,
    ) -> Result<Program> {
        let CompilationInput { graph, client, .. } = input;
        let StageResults { sharded, simplified, united, plan, .. } = stage_results;
        let (Some(simplified), Some(plan)) = (simplified, plan) else { unreachable!("all stages have run") };
        let Some(sharded) = sharded else {
            return Program::from_plan(plan, parameter_bytes(&graph), None, simplified, &client);
        };
        let (mesh, made) = (&sharded.partitioned.mesh, &sharded.partitioned);
        let bytes = parameter_bytes(united.as_deref().unwrap_or(&made.graph));
        let positions = local_device_positions(mesh)?;
        let receipts = result_receipts(&simplified, positions[0], engine);
        let results = sharded.flat.result_types().into_iter().zip(&made.results).zip(receipts);
        let results = results.map(|((ty, sharding), receipts)| (ty, sharding.clone(), receipts)).collect();
        let division = ProgramShardings { mesh: mesh.clone(), engine, positions, params: made.params.clone(), results };
        let graph = sharded.flat.clone();
        compile_across_processes(&simplified, mesh, || Program::from_plan(plan, bytes, Some(division), graph, &client))
    }

    /// Makes the program of a plan; `parameter_bytes` has the size of each parameter.
    fn from_plan(
        plan: Plan,
        parameter_bytes: Vec<usize>,
        shardings: Option<ProgramShardings>,
        graph: Arc<Graph>,
        client: &Client,
    ) -> Result<Program> {
        let devices = match &shardings {
            Some(division) => local_devices(&division.mesh, division.engine)?,
            None => SequenceDevices::SingleDevice,
        };
        let (steps, arena) = (plan.steps.len(), plan.arena);
        let bytes = 512 * (count_launches(&plan) + graph.equations.len() as u64) + arena as u64;
        let writes = |step: &fuse::PlanStep, i| step.outputs.contains(&MemoryLocation::Param(i));
        let changed = (0..parameter_bytes.len()).map(|i| plan.steps.iter().any(|step| writes(step, i))).collect();
        let (fresh, results) = (plan.fresh.clone(), plan.results.clone());
        let client = client.without_use_count();
        let engine = match client.kind() {
            DeviceKind::Cpu => PlanEngine::Native(NativePlan::new(plan, parameter_bytes, devices, &client)?),
            _ => PlanEngine::Steps(StepProgram::new(plan, &client)?),
        };
        Ok(Program { client, engine, fresh, results, changed, steps, bytes, arena, division: shardings, graph })
    }

    /// Number of steps of a run, of which each is a launch, a loop or a branch.
    pub(super) fn step_count(&self) -> usize {
        self.steps
    }

    /// Bytes of the arena, which holds all values that are neither parameters nor results.
    pub(super) fn temporary_bytes(&self) -> usize {
        self.arena
    }

    /// Estimated bytes that a cache counts for the program: by its launches, its equations and its arena.
    pub(super) fn estimated_bytes(&self) -> u64 {
        self.bytes
    }

    /// Runs the program on arrays of the types of its parameters, all on its client.
    ///
    /// # Errors
    /// Memory, a fault of the interpreter, device errors.
    pub(super) fn run(&self, args: &[&Array]) -> Result<Vec<Array>> {
        run_watched(&self.graph, &self.client, args, || match &self.division {
            Some(division) => self.run_on_mesh(division, args),
            None => self.run_unsharded(vec![], args),
        })
    }

    /// Runs the program with arrays whose memory results may take over (`donated`) as first parameters. A donated array
    /// that a step writes to is copied before if it has another owner.
    pub(super) fn run_donating(&self, donated: Vec<Array>, rest: &[&Array]) -> Result<Vec<Array>> {
        if donated.is_empty() {
            return self.run(rest);
        }
        if self.division.is_some() || is_program_watched() {
            let all: Vec<&Array> = donated.iter().chain(rest.iter().copied()).collect();
            return self.run(&all);
        }
        self.run_unsharded(donated, rest)
    }

    /// Runs the program on whole arrays.
    fn run_unsharded(&self, donated: Vec<Array>, rest: &[&Array]) -> Result<Vec<Array>> {
        let fresh = self.fresh.iter().map(|&bytes| self.allocate_result_buffer(bytes)).collect::<Result<_>>()?;
        let mut shared = vec![];
        let mut params = Vec::with_capacity(donated.len() + rest.len());
        for (i, array) in donated.into_iter().enumerate() {
            let buffer = match array.into_buffer(self.changed[i])? {
                Ok(own) => ParamMemory::Owned(Some(own)),
                Err(array) => {
                    shared.push((i, array));
                    ParamMemory::Owned(None)
                }
            };
            params.push(buffer);
        }
        for (i, array) in &shared {
            params[*i] = ParamMemory::Shared(array.buffer()?);
        }
        let donated = params.len();
        for array in rest {
            params.push(ParamMemory::Shared(array.buffer()?));
        }
        let fresh = self.execute(&mut params, fresh)?;
        let fresh: Vec<_> = fresh.into_iter().map(|buffer| Arc::new(buffer.expect(MISSING_BUFFER_MESSAGE))).collect();
        params.truncate(donated);
        let own: Vec<Option<Arc<Buffer>>> = params
            .into_iter()
            .map(|param| match param {
                ParamMemory::Owned(buffer) => buffer.map(Arc::new),
                ParamMemory::Shared(_) => None,
            })
            .collect();
        let result = |(place, ty): &(MemoryLocation, Type)| match place {
            MemoryLocation::Param(i) if *i >= donated => rest[*i - donated].with_shape(&ty.shape),
            MemoryLocation::Param(i) => match (&own[*i], shared.iter().find(|(k, _)| k == i)) {
                (Some(buffer), _) => Ok(Array::from_shared_buffer(ty.dtype, &ty.shape, buffer.clone())),
                (None, Some((_, array))) => array.with_shape(&ty.shape),
                (None, None) => unreachable!("{MISSING_BUFFER_MESSAGE}"),
            },
            MemoryLocation::Fresh(i) => Ok(Array::from_shared_buffer(ty.dtype, &ty.shape, fresh[*i].clone())),
            MemoryLocation::Temporary(_) => unreachable!("a result outlives the call"),
        };
        self.results.iter().map(result).collect()
    }

    /// Runs the program on the blocks of arrays; an array with another sharding is resharded.
    fn run_on_mesh(&self, shardings: &ProgramShardings, args: &[&Array]) -> Result<Vec<Array>> {
        let ProgramShardings { mesh, params, results, positions, .. } = shardings;
        let blocks = args.iter().zip(params).map(|(x, sharding)| self.block_buffers(mesh, x, sharding));
        let blocks = blocks.collect::<Result<Vec<Vec<Arc<Buffer>>>>>()?;
        // The devices of this process.
        let devices = 0..positions.len();
        let mut all: Vec<ParamMemory<'_>> =
            devices.clone().flat_map(|d| blocks.iter().map(move |own| ParamMemory::Shared(&own[d]))).collect();
        // `Steps` run the work of all devices as one program, with their parameters and results one device after
        // another; native code runs the program of one device on each.
        let is_united = matches!(self.engine, PlanEngine::Steps(_));
        let copies = if is_united { 1 } else { devices.len() };
        let fresh = (0..copies).flat_map(|_| &self.fresh).map(|&bytes| self.allocate_result_buffer(bytes));
        let fresh = self.execute(&mut all, fresh.collect::<Result<_>>()?)?;
        let fresh: Vec<Arc<Buffer>> =
            fresh.into_iter().map(|buffer| Arc::new(buffer.expect(MISSING_BUFFER_MESSAGE))).collect();
        let result = |(r, (ty, sharding, receipts)): (usize, &ResultShardingAndReceipts)| {
            let of = |device: usize| {
                let (own, first) =
                    if is_united { (device * results.len() + r, 0) } else { (r, device * self.fresh.len()) };
                match self.results[own].0 {
                    MemoryLocation::Param(i) if is_united => blocks[i % params.len()][i / params.len()].clone(),
                    MemoryLocation::Param(i) => blocks[i][device].clone(),
                    MemoryLocation::Fresh(i) => fresh[first + i].clone(),
                    MemoryLocation::Temporary(_) => unreachable!("a result outlives the call"),
                }
            };
            let (mesh, sharding) = (mesh.clone(), sharding.clone());
            let receipts = own_or_argument_receipts(receipts, args);
            let placement =
                MeshPlacement { mesh, sharding, ty: ty.clone(), declared: None, is_cleared: false, receipts };
            Array::from_blocks(ty.dtype, &ty.shape, placement.into_sharded_blocks(devices.clone().map(of).collect()))
        };
        Ok(results.iter().enumerate().map(result).collect())
    }

    /// The blocks of an array on this process' devices, under this sharding.
    fn block_buffers(&self, mesh: &Arc<Mesh>, x: &Array, sharding: &Sharding) -> Result<Vec<Arc<Buffer>>> {
        if let (ArrayContents::Sharded(blocks), Some(placement)) = (x.contents(), x.placement())
            && (placement.mesh == *mesh && placement.sharding.axes() == sharding.axes()
                || placement.sharding_on_mesh(mesh).is_some_and(|own| own.axes() == sharding.axes()))
            && let Some(own) = placement.reorder_blocks_for_mesh(mesh, &blocks.blocks)
        {
            return Ok(own);
        }
        split_into_blocks(&self.client.with_use_count(), mesh, sharding, &Type::new(x.dtype(), x.shape()), x.buffer()?)
    }

    /// Allocates memory for a result; always `Some`, as an entry of the table that has `None` while a step writes to
    /// one.
    fn allocate_result_buffer(&self, bytes: usize) -> Result<Option<Buffer>> {
        Buffer::allocate(&self.client.with_use_count(), bytes, false).map(Some)
    }

    /// Runs the plan on the memory of parameters and results; returns that of the results. Entries of `result_buffers`
    /// are `Some` before and after: only a running step takes one out.
    fn execute(
        &self,
        params: &mut [ParamMemory<'_>],
        result_buffers: Vec<Option<Buffer>>,
    ) -> Result<Vec<Option<Buffer>>> {
        match &self.engine {
            PlanEngine::Steps(steps) => self.client.submit_together(|| steps.execute(params, result_buffers)),
            PlanEngine::Native(native) => {
                native.run(&self.client, params, &self.changed, &result_buffers)?;
                Ok(result_buffers)
            }
        }
    }
}

/// Number of launches in a plan, those of loops and branches once.
fn count_launches(plan: &Plan) -> u64 {
    let of_step = |step: &fuse::PlanStep| match &step.work {
        fuse::StepOp::Kernel { .. } | fuse::StepOp::Collective { .. } => 1,
        fuse::StepOp::Print { .. } | fuse::StepOp::Callback { .. } => 1,
        work => work.bodies().into_iter().map(count_launches).sum(),
    };
    plan.steps.iter().map(of_step).sum()
}

/// Panic message of a step that reads a buffer which it also writes; plans have no such step.
const MISSING_BUFFER_MESSAGE: &str = "a buffer is there but while a step writes it";

/// Memory of a parameter during a run: shared with others, or owned, so that a result may take it over.
enum ParamMemory<'a> {
    /// Memory that is only read.
    Shared(&'a Buffer),
    /// Memory that a result may take over; `None` while a step writes to it.
    Owned(Option<Buffer>),
}

impl ParamMemory<'_> {
    fn buffer(&self) -> &Buffer {
        match self {
            ParamMemory::Shared(buffer) => buffer,
            ParamMemory::Owned(buffer) => buffer.as_ref().expect(MISSING_BUFFER_MESSAGE),
        }
    }
}
