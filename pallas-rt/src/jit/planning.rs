//! The cost of a function on a mesh, without its devices: collectives, memory and time.
//!
//! The numbers are those of the graph that every device runs. Collectives and their bytes are counted in it; memory is
//! that of its plan; times follow from a [`Topology`].
mod compare;

pub use compare::MeshComparison;

use super::compile::with_single_device_plan;
use super::cost_analysis::{MemoryAnalysis, graph_cost, traffic_bytes};
use super::sharded::Shardings;
use crate::array::Client;
use crate::exec::Cost;
use crate::markup::{bytes_text, seconds_text};
use crate::sharding::{Mesh, Topology};
use pallas_device::error::{Error, Result};
use pallas_graph::call::RunCount;
use pallas_graph::fuse::Plan;
use pallas_graph::mesh::Collective;
use pallas_graph::{Graph, Op};
use pallas_ir::{Loc, Type};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The cost of one call of a function on a mesh whose devices need not exist; see [`Shardings::plan`]. It prints as a
/// table.
#[derive(Clone, Debug)]
pub struct StepPlan {
    /// The mesh on which the function would run.
    pub mesh: Arc<Mesh>,
    /// Operations of each device, and bytes that its fused steps read from and write to its memory.
    pub work: Cost,
    /// Least time in seconds for the work of a device: its operations or its memory traffic, whichever takes longer.
    pub compute_seconds: f64,
    /// The collectives, in the order in which devices run them.
    pub collectives: Vec<PlannedCollective>,
    /// The memory of each device.
    pub memory: MemoryAnalysis,
    /// Bytes of a device's memory; `None` if the topology does not say.
    pub memory_limit: Option<u64>,
    /// Number of loops whose number of steps is not known; each counts as one step.
    pub unknown_loops: usize,
}

/// A collective in the plan of a call, with its bytes, number of runs and estimated seconds.
#[derive(Clone, Debug)]
pub struct PlannedCollective {
    /// Its name: `all_reduce`, `all_gather` and so on.
    pub name: &'static str,
    /// The names of the axes along which devices communicate.
    pub axes: Vec<String>,
    /// Number of runs per call: one in a scan runs in each step.
    pub times: usize,
    /// Bytes that each device sends, over all runs.
    pub bytes: usize,
    /// Seconds, over all runs.
    pub seconds: f64,
    /// The line of the user's operation that needs it.
    pub at: Loc,
}

/// Totals of the collectives along some axes of a mesh.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct AxisTraffic {
    /// Number of collectives that run in a call.
    pub collectives: usize,
    /// Bytes that each device sends.
    pub bytes: usize,
    /// Seconds that they take.
    pub seconds: f64,
}

impl Shardings {
    /// Computes the cost of one call on a machine, of which no device is needed: bytes of collectives, memory of each
    /// device, and the time of a step. The mesh may have thousands of devices; arguments may be shapes alone
    /// ([`Client::shape_dtype`](crate::Client::shape_dtype)).
    ///
    /// Scans count all their steps, other loops one, and branches all of them. The guide, page `planning`, has the
    /// formulas.
    ///
    /// # Errors
    /// A topology that does not fit the mesh: an axis without links, a torus of another size, a rate that is no
    /// positive number.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    /// use pallas_rt::sharding::{Link, Mesh, NamedSharding, P, Topology};
    /// use pallas_rt::{partitioned, with_sharding_constraint};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 256), ("model", 16)]).expect("a mesh"));
    /// let [rows, inner] = [P(("data", "model")), P(("model", None))].map(|spec| NamedSharding::new(&mesh, spec));
    /// let f = move |x: &Array, w: &Array| {
    ///     with_sharding_constraint(x, &rows).matmul(&with_sharding_constraint(w, &inner))
    /// };
    /// let [x, w] = [[8192, 4096], [4096, 4096]].map(|shape| Client::cpu().shape_dtype(&shape, DType::F32));
    /// let machine = Topology::new(200e12, 800e9)
    ///     .link("data", Link::switch(12e9, 5e-6))
    ///     .link("model", Link::ring(45e9, 1e-6));
    /// let plan = partitioned(f)(&x?, &w?)?.plan(&machine)?;
    /// // Parts of sums of 32 x 4096 elements are added up among 16 devices.
    /// assert_eq!(plan.by_axes()[&vec!["model".to_string()]].bytes, 2 * (32 * 4096 * 4 / 16) * 15);
    /// println!("{plan}");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn plan(&self, topology: &Topology) -> Result<StepPlan> {
        let at = Loc::caller();
        topology.verify(self.mesh()).map_err(|diag| Error::operation(at, diag))?;
        Ok(StepPlan::from_local_graph(self.device_graph(), self.mesh(), topology))
    }

    /// The memory that a call takes on each device; see
    /// [`Lowered::memory_analysis`](crate::transform::Lowered::memory_analysis).
    pub fn memory_analysis(&self) -> MemoryAnalysis {
        with_single_device_plan(self.device_graph(), &Client::cpu(), MemoryAnalysis::from_plan)
    }
}

/// Sums up the collectives of a graph: those found so far with their costs on a topology, and the number of loops of
/// unknown length.
struct CollectiveCosts<'t> {
    topology: &'t Topology,
    collectives: Vec<PlannedCollective>,
    unknown_loops: usize,
}

impl CollectiveCosts<'_> {
    /// Adds the collectives of a graph that runs `times` times.
    fn add_graph(&mut self, graph: &Graph, times: usize) {
        for e in &graph.equations {
            match &e.op {
                Op::Collective(op) if op.communicates() => self.add_collective(op, graph.ty(e.args[0]), times, e.loc),
                Op::Call(call) => {
                    let runs = call.graphs_with_run_counts();
                    self.unknown_loops += usize::from(runs.iter().any(|(runs, _)| *runs == RunCount::Unknown));
                    for (runs, graph) in runs {
                        let steps = if let RunCount::Times(steps) = runs { steps } else { 1 };
                        self.add_graph(graph, times.saturating_mul(steps));
                    }
                }
                _ => {}
            }
        }
    }

    /// Lists a collective on an operand of type `operand` that runs `times` times, with its bytes and its seconds on
    /// the topology.
    fn add_collective(&mut self, op: &Collective, operand: &Type, times: usize, at: Loc) {
        self.collectives.push(PlannedCollective {
            name: op.name(),
            axes: op.axes.iter().map(|axis| op.mesh.name(usize::from(axis.id)).to_string()).collect(),
            times,
            bytes: op.bytes_sent_per_device(operand).saturating_mul(times),
            seconds: self.topology.collective_seconds(op, operand) * times as f64,
            at,
        });
    }
}

impl StepPlan {
    /// The cost of the graph that every device of a mesh runs, on a topology that fits the mesh.
    pub(super) fn from_local_graph(local: &Graph, mesh: &Arc<Mesh>, topology: &Topology) -> StepPlan {
        with_single_device_plan(local, &Client::cpu(), |graph, plan| {
            StepPlan::from_planned_graph(graph, plan, mesh, topology)
        })
    }

    /// The cost of a simplified graph that every device runs by this plan.
    fn from_planned_graph(graph: &Graph, plan: &Plan, mesh: &Arc<Mesh>, topology: &Topology) -> StepPlan {
        let mut found = CollectiveCosts { topology, collectives: vec![], unknown_loops: 0 };
        found.add_graph(graph, 1);
        let params: Vec<usize> = graph.param_types().iter().map(Type::bytes).collect();
        let work = Cost { bytes_accessed: traffic_bytes(plan, &params), ..graph_cost(graph, true) };
        StepPlan {
            mesh: mesh.clone(),
            work,
            compute_seconds: work.roofline_seconds(topology.flops(), topology.memory_bandwidth()),
            collectives: found.collectives,
            memory: MemoryAnalysis::from_plan(graph, plan),
            memory_limit: topology.memory_bytes(),
            unknown_loops: found.unknown_loops,
        }
    }

    /// Seconds of all collectives.
    pub fn collective_seconds(&self) -> f64 {
        self.collectives.iter().map(|exchange| exchange.seconds).sum()
    }

    /// Estimated seconds of a call in which devices stop computing while a collective runs: the sum of compute and
    /// collective times.
    pub fn seconds(&self) -> f64 {
        self.compute_seconds + self.collective_seconds()
    }

    /// Estimated seconds of a call in which devices compute during collectives all the time: the longer of both times,
    /// which no order of the same work beats.
    pub fn overlapped_seconds(&self) -> f64 {
        self.compute_seconds.max(self.collective_seconds())
    }

    /// Bytes of memory that a device needs: arguments, results, and the arena of all other values.
    pub fn memory_bytes(&self) -> usize {
        self.memory.argument_bytes + self.memory.output_bytes + self.memory.temporary_bytes
    }

    /// Returns true if the needed memory fits in that of a device, or if the topology states no limit.
    pub fn fits(&self) -> bool {
        self.memory_limit.is_none_or(|limit| self.memory_bytes() as u64 <= limit)
    }

    /// Totals of the collectives by the names of their axes.
    pub fn by_axes(&self) -> BTreeMap<Vec<String>, AxisTraffic> {
        let mut all: BTreeMap<Vec<String>, AxisTraffic> = BTreeMap::new();
        for exchange in &self.collectives {
            let own = all.entry(exchange.axes.clone()).or_default();
            own.collectives += exchange.times;
            own.bytes += exchange.bytes;
            own.seconds += exchange.seconds;
        }
        all
    }

    /// Number of runs of the collectives with a name along these axes.
    pub fn count(&self, name: &str, axes: &[&str]) -> usize {
        let is_it = |e: &&PlannedCollective| e.name == name && e.axes.iter().eq(axes);
        self.collectives.iter().filter(is_it).map(|exchange| exchange.times).sum()
    }
}

/// The sizes of a mesh's axes: `data 8, model 4`.
fn axis_sizes_text(mesh: &Mesh) -> String {
    (0..mesh.rank()).map(|axis| format!("{} {}", mesh.name(axis), mesh.size(axis))).collect::<Vec<_>>().join(", ")
}

/// Writes the mesh, the memory, the work, and a line for the collectives of each set of axes.
impl fmt::Display for StepPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryAnalysis { argument_bytes, output_bytes, temporary_bytes, .. } = &self.memory;
        let [arguments, results, arena] = [argument_bytes, output_bytes, temporary_bytes].map(|&n| bytes_text(n));
        writeln!(f, "mesh {} ({} devices)", axis_sizes_text(&self.mesh), self.mesh.device_count())?;
        let fits = if self.fits() { "" } else { ": more than a device has" };
        let memory = bytes_text(self.memory_bytes());
        writeln!(f, "memory of a device {memory}{fits} (arguments {arguments}, results {results}, arena {arena})")?;
        let (compute, traffic) = (seconds_text(self.compute_seconds), bytes_text(self.work.bytes_accessed as usize));
        writeln!(f, "compute {compute} ({:.3e} operations, {traffic} read and written)", self.work.flops as f64)?;
        for (axes, own) in self.by_axes() {
            let (bytes, seconds) = (bytes_text(own.bytes), seconds_text(own.seconds));
            writeln!(f, "collectives along {}: {} with {bytes}, {seconds}", axes.join(" and "), own.collectives)?;
        }
        let [step, least] = [self.seconds(), self.overlapped_seconds()].map(seconds_text);
        writeln!(f, "step {step}, at least {least} if collectives overlap with compute")?;
        match self.unknown_loops {
            0 => Ok(()),
            n => writeln!(f, "{n} loops of unknown length count as one step each"),
        }
    }
}
