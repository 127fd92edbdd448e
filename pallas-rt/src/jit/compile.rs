//! The stages between a traced function and its program, as one list.
//!
//! `jit`, `lower`, `partitioned`, `audit`, `to_plan` and `compile` share one [`Compilation`], which runs each stage
//! once. What a stage makes is verified in debug builds, written to the folder that `PALLAS_DUMP` names, and is a span
//! of a timeline.
use super::dump::StageWatcher;
use super::program::Program;
use super::sharded::DeclaredShardings;
use crate::array::Client;
use pallas_device::error::{Error, Result};
use pallas_device::startup::{self, Engine};
use pallas_device::{DeviceKind, timeline};
#[cfg(not(test))]
use pallas_graph::fuse::DeviceLimits;
use pallas_graph::fuse::{Plan, plan_watched};
use pallas_graph::shard::{PartitionedGraph, Propagation, expand_to_all_devices, inlined, propagate_and_partition};
use pallas_graph::simplify::simplify_watched;
use pallas_graph::transform::TransformError;
use pallas_graph::{Graph, StageObserver, check_arrays_indexable};
use parking_lot::{Mutex, MutexGuard};
use std::panic::Location;
use std::sync::Arc;

/// Returns the limits of kernels on a client's device, such as block sizes; unit tests have a function of their own in
/// place of this one.
#[cfg(not(test))]
fn device_limits(client: &Client) -> DeviceLimits {
    super::program::device_limits(client.target())
}
#[cfg(test)]
use super::tests::sizes::device_limits;

/// Graph to compile, with the declared shardings of its parameters, the donated parameters, and the client that it is
/// compiled for.
pub(super) struct CompilationInput {
    pub graph: Arc<Graph>,
    /// The declared shardings of the parameters.
    pub declared: DeclaredShardings,
    /// By parameter, true if results may take over its memory; parameters beyond the end of the list keep theirs.
    pub is_donated: Vec<bool>,
    pub client: Client,
}

impl CompilationInput {
    /// A graph for one device, of which nothing is sharded or donated.
    pub(super) fn from_graph(graph: impl Into<Arc<Graph>>, client: &Client) -> CompilationInput {
        CompilationInput {
            graph: graph.into(),
            declared: DeclaredShardings::none(),
            is_donated: vec![],
            client: client.clone(),
        }
    }

    fn is_on_mesh(&self) -> bool {
        self.declared.mesh.is_some()
    }

    /// Returns true if the work of all devices of a mesh becomes one program. On a CPU, threads are devices; any other
    /// client runs one program for all of them.
    fn is_one_program_for_mesh(&self) -> bool {
        self.is_on_mesh() && self.client.kind() != DeviceKind::Cpu
    }
}

/// A graph on a mesh, before and after it was partitioned, with the shardings of its values.
pub(super) struct ShardedGraph {
    /// The graph on whole arrays, with calls of functions inlined.
    pub flat: Arc<Graph>,
    /// The shardings of the graph's values.
    pub propagation: Propagation,
    /// The graph that each device runs on its blocks.
    pub partitioned: PartitionedGraph,
}

/// The results of the stages that have run so far.
#[derive(Default)]
pub(super) struct StageResults {
    /// Number of stages that have run.
    done: usize,
    watcher: Option<StageWatcher>,
    flat: Option<Arc<Graph>>,
    pub sharded: Option<Arc<ShardedGraph>>,
    /// The simplified graph of a device.
    pub simplified: Option<Arc<Graph>>,
    /// The work of all devices as the graph of one program.
    pub united: Option<Arc<Graph>>,
    pub plan: Option<Plan>,
}

impl StageResults {
    /// The results of the stages for a graph that is partitioned already.
    #[cfg(test)]
    fn from_sharded(sharded: ShardedGraph) -> StageResults {
        let done = COMPILER_STAGES.iter().position(|stage| stage.name == "simplify").expect("a stage");
        StageResults { done, sharded: Some(Arc::new(sharded)), ..StageResults::default() }
    }

    /// The graph that each device runs: the partitioned one, or the input's without a mesh.
    pub(super) fn device_graph<'a>(&'a self, input: &'a CompilationInput) -> &'a Graph {
        self.sharded.as_ref().map_or(&input.graph, |sharded| &sharded.partitioned.graph)
    }
}

/// One stage of the compilation of a graph: its name, the test for inputs that need it, and the function that runs it.
struct CompilerStage {
    name: &'static str,
    /// Returns true for the inputs that need this stage.
    is_needed: fn(&CompilationInput) -> bool,
    run: fn(&CompilationInput, &mut StageResults, &mut dyn StageObserver) -> Result<()>,
}

/// Stages in which a graph is compiled, in order; an input skips those that it does not need.
const COMPILER_STAGES: &[CompilerStage] = &[
    CompilerStage { name: "inline", is_needed: CompilationInput::is_on_mesh, run: inline_calls },
    CompilerStage { name: "shard", is_needed: CompilationInput::is_on_mesh, run: partition_graph },
    CompilerStage { name: "simplify", is_needed: |_| true, run: simplify_graph },
    CompilerStage { name: "unite", is_needed: CompilationInput::is_one_program_for_mesh, run: unite_device_graphs },
    CompilerStage { name: "plan", is_needed: |_| true, run: plan_graph },
];

fn inline_calls(input: &CompilationInput, made: &mut StageResults, watch: &mut dyn StageObserver) -> Result<()> {
    let flat = inlined(&input.graph);
    watch.observe_stage("inline", &flat);
    made.flat = Some(Arc::new(flat));
    Ok(())
}

fn partition_graph(input: &CompilationInput, made: &mut StageResults, watch: &mut dyn StageObserver) -> Result<()> {
    let mesh = input.declared.mesh.as_ref().expect("it is on a mesh");
    let flat = made.flat.take().expect(STAGE_ORDER_MESSAGE);
    let results = vec![None; flat.results.len()];
    let sharded = propagate_and_partition(&flat, mesh, &input.declared.shardings, &results, watch);
    let (found, own) = sharded.map_err(convert_transform_error)?;
    made.sharded = Some(Arc::new(ShardedGraph { flat, propagation: found, partitioned: own }));
    Ok(())
}

fn simplify_graph(input: &CompilationInput, made: &mut StageResults, watch: &mut dyn StageObserver) -> Result<()> {
    let simplified = simplify_watched(made.device_graph(input), watch);
    watch.observe_stage("simplify", &simplified);
    made.simplified = Some(Arc::new(simplified));
    Ok(())
}

/// Runs the stage "unite": makes one graph of the work of all devices, and simplifies it.
fn unite_device_graphs(input: &CompilationInput, made: &mut StageResults, watch: &mut dyn StageObserver) -> Result<()> {
    let mesh = input.declared.mesh.as_ref().expect("it is on a mesh");
    let all = expand_to_all_devices(made.simplified.as_ref().expect(STAGE_ORDER_MESSAGE), mesh);
    watch.observe_stage("unite", &all);
    check_array_sizes(&all)?;
    let all = simplify_watched(&all, watch);
    watch.observe_stage("simplify", &all);
    made.united = Some(Arc::new(all));
    Ok(())
}

fn plan_graph(input: &CompilationInput, made: &mut StageResults, watch: &mut dyn StageObserver) -> Result<()> {
    let graph = made.united.as_ref().or(made.simplified.as_ref()).expect(STAGE_ORDER_MESSAGE);
    // A call on a mesh cuts its arguments into blocks, so their memory is not donated.
    let is_donated = if input.is_on_mesh() { &[][..] } else { &input.is_donated };
    made.plan = Some(plan_watched(graph, is_donated, &device_limits(&input.client), watch));
    Ok(())
}

/// Returns an error if an array of the graph has more than 2^31 - 1 elements, which kernels cannot index.
fn check_array_sizes(graph: &Graph) -> Result<()> {
    check_arrays_indexable(graph).map_err(|(at, diag)| Error::operation(at, diag))
}

/// Converts the error of a graph transformation, such as a derivative or a batch, to the error that users get, at the
/// same line.
pub(super) fn convert_transform_error(refused: TransformError) -> Error {
    Error::operation(refused.at, refused.diag)
}

const STAGE_ORDER_MESSAGE: &str = "stages run in order";

/// The compilation of one graph; each stage runs when its result is needed first.
pub(super) struct Compilation {
    pub input: CompilationInput,
    made: Mutex<StageResults>,
}

impl Compilation {
    pub(super) fn new(input: CompilationInput) -> Compilation {
        Compilation { input, made: Mutex::default() }
    }

    /// The compilation of a graph that is partitioned already.
    #[cfg(test)]
    pub(super) fn from_sharded(input: CompilationInput, sharded: ShardedGraph) -> Compilation {
        Compilation { input, made: Mutex::new(StageResults::from_sharded(sharded)) }
    }

    /// Runs the stages up to `stage`, including it, that have not run yet; returns all results so far.
    ///
    /// # Errors
    /// A declaration that shards what a kernel cannot shard; with "unite", an array that is too large for a kernel.
    fn run_through_stage(&self, stage: &str) -> Result<MutexGuard<'_, StageResults>> {
        let mut made = self.made.lock();
        let end = 1 + COMPILER_STAGES.iter().position(|one| one.name == stage).expect("a stage of the list");
        if made.done < end {
            timeline::time_compilation(|| self.run_stages(&mut made, end))?;
        }
        Ok(made)
    }

    /// Runs the stages from the first that has not run up to the one with index `end`, without it.
    fn run_stages(&self, made: &mut StageResults, end: usize) -> Result<()> {
        let mut watch = made.watcher.take().unwrap_or_else(|| StageWatcher::from_graph(&self.input.graph));
        watch.began = timeline::now_if_recording();
        while made.done < end {
            let stage = &COMPILER_STAGES[made.done];
            if (stage.is_needed)(&self.input) {
                (stage.run)(&self.input, made, &mut watch)?;
            }
            made.done += 1;
        }
        made.watcher = Some(watch);
        Ok(())
    }

    /// The partitioned graph; `None` without a mesh.
    ///
    /// # Errors
    /// A declaration that shards what a kernel cannot shard.
    pub(super) fn sharded_graph(&self) -> Result<Option<Arc<ShardedGraph>>> {
        Ok(self.run_through_stage("shard")?.sharded.clone())
    }

    /// Calls `read` with the simplified graph and the plan of each device; returns its result.
    ///
    /// # Errors
    /// The errors of [`sharded_graph`](Compilation::sharded_graph).
    pub(super) fn with_plan<R>(&self, read: impl FnOnce(&Graph, &Plan) -> R) -> Result<R> {
        if self.input.is_one_program_for_mesh() {
            let made = self.run_through_stage("shard")?;
            return Ok(with_single_device_plan(made.device_graph(&self.input), &self.input.client, read));
        }
        let made = self.run_through_stage("plan")?;
        Ok(read(made.simplified.as_ref().expect(STAGE_ORDER_MESSAGE), made.plan.as_ref().expect(STAGE_ORDER_MESSAGE)))
    }

    /// Runs all stages, and makes the program of their results.
    ///
    /// # Errors
    /// Sizes that no launch can have; the errors of [`sharded_graph`](Compilation::sharded_graph); in a job of several
    /// processes, a client that is not a CPU's; SPMD is off; processes of a job that compile other programs.
    #[track_caller]
    pub(super) fn into_program(self) -> Result<Program> {
        if let Some(mesh) = &self.input.declared.mesh {
            startup::require_spmd(Location::caller(), mesh.device_count())?;
        }
        self.into_program_with_engine(startup::engine())
    }

    /// Makes the program as [`into_program`](Compilation::into_program) does, with this engine for its collectives.
    pub(super) fn into_program_with_engine(self, engine: Engine) -> Result<Program> {
        let client = &self.input.client;
        if self.input.is_one_program_for_mesh() && pallas_device::collective::process_group().is_some() {
            let (what, device) = ("meshes over several processes".into(), client.device().to_string());
            return Err(Error::Unsupported { what, device, help: "run functions on such meshes on `Client::cpu()`" });
        }
        timeline::time_compilation(|| {
            check_array_sizes(self.run_through_stage("shard")?.device_graph(&self.input))?;
            drop(self.run_through_stage("plan")?);
            let made = self.made.into_inner();
            Program::from_stages(self.input, made, engine)
        })
    }
}

/// Calls `read` with the simplified form of a graph for one device, and its plan for a client; returns its result.
pub(super) fn with_single_device_plan<R>(graph: &Graph, client: &Client, read: impl FnOnce(&Graph, &Plan) -> R) -> R {
    Compilation::new(CompilationInput::from_graph(graph.clone(), client))
        .with_plan(read)
        .expect("only meshes refuse a graph")
}
