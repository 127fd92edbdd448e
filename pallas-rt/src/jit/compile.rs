//! The stages between a traced function and its program, as one list.
//!
//! `jit`, `lower`, `partitioned`, `audit`, `to_plan` and `compile` share one [`Compilation`], which runs each stage once. What a
//! stage makes is verified in debug builds, written to the folder that `PALLAS_DUMP` names, and is a span of a timeline.
use super::dump::Watcher;
use super::program::Program;
use super::sharded::Declared;
use crate::array::Client;
use pallas_device::error::{Error, Result};
use pallas_device::startup::{self, Engine};
use pallas_device::{DeviceKind, timeline};
#[cfg(not(test))]
use pallas_graph::fuse::Sizes;
use pallas_graph::fuse::{Plan, plan_watched};
use pallas_graph::shard::{Partitioned, Propagation, divide, inlined, united};
use pallas_graph::simplify::simplify_watched;
use pallas_graph::transform::Refused;
use pallas_graph::{Graph, Watch, check_runs};
use parking_lot::{Mutex, MutexGuard};
use std::panic::Location;
use std::sync::Arc;

/// Block sizes for a client's device; unit tests have a function of their own in place of this one.
#[cfg(not(test))]
fn sizes(client: &Client) -> Sizes {
    super::program::sizes(client.target())
}
#[cfg(test)]
use super::tests::sizes::sizes;

/// The input of a compilation.
pub(super) struct Input {
    pub graph: Arc<Graph>,
    /// The declared shardings of the parameters.
    pub declared: Declared,
    /// By parameter, true if results may take over its memory; parameters beyond the end of the list keep theirs.
    pub is_donated: Vec<bool>,
    pub client: Client,
}

impl Input {
    /// A graph for one device, of which nothing is sharded or donated.
    pub(super) fn of_graph(graph: impl Into<Arc<Graph>>, client: &Client) -> Input {
        Input { graph: graph.into(), declared: Declared::none(), is_donated: vec![], client: client.clone() }
    }

    fn is_on_mesh(&self) -> bool {
        self.declared.mesh.is_some()
    }

    /// Returns true if the work of all devices of a mesh becomes one program. On a CPU, threads are devices; any other
    /// client runs one program for all of them.
    fn is_united(&self) -> bool {
        self.is_on_mesh() && self.client.kind() != DeviceKind::Cpu
    }
}

/// A partitioned graph on a mesh.
pub(super) struct Sharded {
    /// The graph on whole arrays, with calls of functions inlined.
    pub flat: Arc<Graph>,
    /// The shardings of the graph's values.
    pub found: Propagation,
    /// The graph that each device runs on its blocks.
    pub made: Partitioned,
}

/// The results of the stages that have run so far.
#[derive(Default)]
pub(super) struct Products {
    /// Number of stages that have run.
    done: usize,
    watcher: Option<Watcher>,
    flat: Option<Arc<Graph>>,
    pub sharded: Option<Arc<Sharded>>,
    /// The simplified graph of a device.
    pub simplified: Option<Arc<Graph>>,
    /// The work of all devices as the graph of one program.
    pub united: Option<Arc<Graph>>,
    pub plan: Option<Plan>,
}

impl Products {
    /// The results of the stages for a graph that is partitioned already.
    #[cfg(test)]
    fn of_sharded(sharded: Sharded) -> Products {
        let done = STAGES.iter().position(|stage| stage.name == "simplify").expect("a stage");
        Products { done, sharded: Some(Arc::new(sharded)), ..Products::default() }
    }

    /// The graph that each device runs: the partitioned one, or the input's without a mesh.
    pub(super) fn local<'a>(&'a self, input: &'a Input) -> &'a Graph {
        self.sharded.as_ref().map_or(&input.graph, |sharded| &sharded.made.graph)
    }
}

/// A stage of the compiler.
struct Stage {
    name: &'static str,
    /// Returns true for the inputs that need this stage.
    when: fn(&Input) -> bool,
    run: fn(&Input, &mut Products, &mut dyn Watch) -> Result<()>,
}

/// All stages, in order.
const STAGES: &[Stage] = &[
    Stage { name: "inline", when: Input::is_on_mesh, run: inline },
    Stage { name: "shard", when: Input::is_on_mesh, run: shard },
    Stage { name: "simplify", when: |_| true, run: simplify },
    Stage { name: "unite", when: Input::is_united, run: unite },
    Stage { name: "plan", when: |_| true, run: plan },
];

fn inline(input: &Input, made: &mut Products, watch: &mut dyn Watch) -> Result<()> {
    let flat = inlined(&input.graph);
    watch.made("inline", &flat);
    made.flat = Some(Arc::new(flat));
    Ok(())
}

fn shard(input: &Input, made: &mut Products, watch: &mut dyn Watch) -> Result<()> {
    let mesh = input.declared.mesh.as_ref().expect("it is on a mesh");
    let flat = made.flat.take().expect(IN_ORDER);
    let results = vec![None; flat.results.len()];
    let sharded = divide(&flat, mesh, &input.declared.shardings, &results, watch);
    let (found, own) = sharded.map_err(refused)?;
    made.sharded = Some(Arc::new(Sharded { flat, found, made: own }));
    Ok(())
}

fn simplify(input: &Input, made: &mut Products, watch: &mut dyn Watch) -> Result<()> {
    let simplified = simplify_watched(made.local(input), watch);
    watch.made("simplify", &simplified);
    made.simplified = Some(Arc::new(simplified));
    Ok(())
}

/// Runs the stage "unite": makes one graph of the work of all devices, and simplifies it.
fn unite(input: &Input, made: &mut Products, watch: &mut dyn Watch) -> Result<()> {
    let mesh = input.declared.mesh.as_ref().expect("it is on a mesh");
    let all = united(made.simplified.as_ref().expect(IN_ORDER), mesh);
    watch.made("unite", &all);
    check(&all)?;
    let all = simplify_watched(&all, watch);
    watch.made("simplify", &all);
    made.united = Some(Arc::new(all));
    Ok(())
}

fn plan(input: &Input, made: &mut Products, watch: &mut dyn Watch) -> Result<()> {
    let graph = made.united.as_ref().or(made.simplified.as_ref()).expect(IN_ORDER);
    // A call on a mesh cuts its arguments into blocks, so their memory is not donated.
    let is_donated = if input.is_on_mesh() { &[][..] } else { &input.is_donated };
    made.plan = Some(plan_watched(graph, is_donated, &sizes(&input.client), watch));
    Ok(())
}

/// Returns an error if the graph has an array that no kernel takes.
fn check(graph: &Graph) -> Result<()> {
    check_runs(graph).map_err(|(at, diag)| Error::operation(at, diag))
}

/// Converts the error of a graph's transformation.
pub(super) fn refused(refused: Refused) -> Error {
    Error::operation(refused.at, refused.diag)
}

const IN_ORDER: &str = "stages run in order";

/// The compilation of one graph; each stage runs when its result is needed first.
pub(super) struct Compilation {
    pub input: Input,
    made: Mutex<Products>,
}

impl Compilation {
    pub(super) fn new(input: Input) -> Compilation {
        Compilation { input, made: Mutex::default() }
    }

    /// The compilation of a graph that is partitioned already.
    #[cfg(test)]
    pub(super) fn of_sharded(input: Input, sharded: Sharded) -> Compilation {
        Compilation { input, made: Mutex::new(Products::of_sharded(sharded)) }
    }

    /// Runs the stages up to `stage`, with it, that have not run; returns all results so far.
    ///
    /// # Errors
    /// A declaration that shards what a kernel cannot shard; with "unite", an array that is too large for a kernel.
    fn until(&self, stage: &str) -> Result<MutexGuard<'_, Products>> {
        let mut made = self.made.lock();
        let end = 1 + STAGES.iter().position(|one| one.name == stage).expect("a stage of the list");
        if made.done < end {
            timeline::compiling(|| self.run(&mut made, end))?;
        }
        Ok(made)
    }

    /// Runs the stages from the first that has not run up to the one with index `end`, without it.
    fn run(&self, made: &mut Products, end: usize) -> Result<()> {
        let mut watch = made.watcher.take().unwrap_or_else(|| Watcher::of(&self.input.graph));
        watch.began = timeline::now();
        while made.done < end {
            let stage = &STAGES[made.done];
            if (stage.when)(&self.input) {
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
    pub(super) fn sharded(&self) -> Result<Option<Arc<Sharded>>> {
        Ok(self.until("shard")?.sharded.clone())
    }

    /// Calls `read` with the simplified graph and the plan of each device; returns its result.
    ///
    /// # Errors
    /// The errors of [`sharded`](Compilation::sharded).
    pub(super) fn planned<R>(&self, read: impl FnOnce(&Graph, &Plan) -> R) -> Result<R> {
        if self.input.is_united() {
            let made = self.until("shard")?;
            return Ok(planned(made.local(&self.input), &self.input.client, read));
        }
        let made = self.until("plan")?;
        Ok(read(made.simplified.as_ref().expect(IN_ORDER), made.plan.as_ref().expect(IN_ORDER)))
    }

    /// Runs all stages, and makes the program of their results.
    ///
    /// # Errors
    /// Sizes that no launch can have; the errors of [`sharded`](Compilation::sharded); in a job of several processes, a
    /// client that is not a CPU's; SPMD is off; processes of a job that compile other programs.
    #[track_caller]
    pub(super) fn into_program(self) -> Result<Program> {
        if let Some(mesh) = &self.input.declared.mesh {
            startup::require_spmd(Location::caller(), mesh.devices())?;
        }
        self.into_program_on(startup::engine())
    }

    /// Makes the program as [`into_program`](Compilation::into_program) does, with this engine for its collectives.
    pub(super) fn into_program_on(self, engine: Engine) -> Result<Program> {
        let client = &self.input.client;
        if self.input.is_united() && pallas_device::collective::processes().is_some() {
            let (what, device) = ("meshes over several processes".into(), client.device().to_string());
            return Err(Error::Unsupported { what, device, help: "run functions on such meshes on `Client::cpu()`" });
        }
        timeline::compiling(|| {
            check(self.until("shard")?.local(&self.input))?;
            drop(self.until("plan")?);
            let made = self.made.into_inner();
            Program::of(self.input, made, engine)
        })
    }
}

/// Calls `read` with the simplified form of a graph for one device, and its plan for a client; returns its result.
pub(super) fn planned<R>(graph: &Graph, client: &Client, read: impl FnOnce(&Graph, &Plan) -> R) -> R {
    Compilation::new(Input::of_graph(graph.clone(), client)).planned(read).expect("only meshes refuse a graph")
}
