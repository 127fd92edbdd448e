//! Planning of a graph, in stages.
use super::apart::Apart;
use super::cluster::Clusters;
use super::copies::copied;
use super::grow::clusters;
use super::lower::lower;
use super::plan::{Lowered, Plan, Work};
use super::rematerialize::{GAIN, Planned};
use super::schedule::{self, Steps};
use super::shown::{Memory, Scheduled};
use super::sizes::Sizes;
use super::stages::{Given, Staged, staged};
use super::{donate, memory, padded, scatter, windows};
use crate::graph::{Equation, Graph, Op, Var};
use crate::watch::Watch;
use pallas_ir::StructuralOp;

/// Plans a graph for a device. The plan may write to the memory of parameters for which `is_donated` is true.
pub fn plan(graph: &Graph, is_donated: &[bool], sizes: &Sizes) -> Plan {
    plan_watched(graph, is_donated, sizes, &mut ())
}

/// Plans a graph like [`plan`]; shows `watch` the graph after each stage, each planned graph with its clusters, steps
/// and memory, and the plan.
pub fn plan_watched(graph: &Graph, is_donated: &[bool], sizes: &Sizes, watch: &mut dyn Watch) -> Plan {
    let Staged { graph, given } = staged(graph, sizes);
    watch.made("stages", &*graph);
    let graph = copied(&graph);
    debug_assert_eq!(crate::verify(&graph), Ok(()));
    watch.made("copies", &*graph);
    let (mut best, mut others) = planned(&graph, &given, is_donated, sizes, watch);
    if let Some(graph) = &others.of_readers {
        watch.made("readers", graph);
        let (plan, next) = planned(graph, &given, is_donated, sizes, watch);
        if plan.steps.len() <= best.steps.len() && plan.arena <= best.arena {
            (best, others) = (plan, next);
        }
    }
    let mut other = others.again;
    for _ in 0..MOST_TURNS {
        let Some(graph) = other else { break };
        watch.made("rematerialize", &graph);
        let (plan, next) = planned(&graph, &given, is_donated, sizes, watch);
        if plan.arena > best.arena - best.arena / GAIN {
            break;
        }
        (best, other) = (plan, next.again);
    }
    watch.made("plan", &best);
    best
}

/// Graphs equal to a planned one in which values are computed again, to be planned instead.
struct Others {
    /// Values are computed again for later readers, to need less memory.
    again: Option<Graph>,
    /// Values are computed by the only kernel that reads them, from others that it reads anyway.
    of_readers: Option<Graph>,
}

/// Most times that a graph is planned again with values that are computed again.
const MOST_TURNS: usize = 4;

/// Plans a graph; returns the plan, and graphs that may need less memory.
fn planned(graph: &Graph, given: &Given, is_donated: &[bool], sizes: &Sizes, watch: &mut dyn Watch) -> (Plan, Others) {
    let found = clusters(graph, given, sizes);
    watch.made("clusters", &found);
    let order = schedule::given(&found);
    let lowered: Vec<Lowered> = order.iter().map(|&cluster| step(&found, cluster, is_donated, sizes)).collect();
    let steps = Steps::new(&found, &lowered, is_donated);
    let schedule = steps.order();
    let mut all: Vec<_> = order.into_iter().zip(lowered).map(Some).collect();
    let next = |&at: &usize| all[at].take().expect("each step comes once");
    let (order, mut lowered): (Vec<usize>, Vec<Lowered>) = schedule.iter().map(next).unzip();
    watch.made("schedule", &Scheduled(&found, &order, &lowered));
    let other = Planned { found: &found, is_donated, sizes, steps: &steps, schedule: &schedule, order: &order };
    let others = Others { again: other.with_values_made_again(), of_readers: other.with_values_of_readers() };
    donate::share(&found, &mut lowered, is_donated, sizes.arena);
    watch.made("donate", &Scheduled(&found, &order, &lowered));
    let apart = |(&cluster, step): (&usize, &Lowered)| {
        let inputs: Vec<Option<Apart>> = step.inputs.iter().map(|&v| found.apart(cluster, v)).collect();
        let changed = step.in_place.iter().enumerate().filter_map(|(k, v)| Some((k, found.apart(cluster, (*v)?))));
        (inputs, changed.collect())
    };
    let apart: Vec<_> = order.iter().zip(&lowered).map(apart).collect();
    let mut plan = memory::places(&found, lowered, is_donated);
    watch.made("memory", &Memory(&plan));
    for (step, apart) in plan.steps.iter_mut().zip(apart) {
        (step.apart, step.in_place) = apart;
    }
    (plan, others)
}

/// Returns the step of a cluster.
fn step(found: &Clusters<'_>, cluster: usize, is_donated: &[bool], sizes: &Sizes) -> Lowered {
    let (graph, definitions, cluster) = (found.graph, &found.definitions, &found.all[cluster]);
    let e = &graph.equations[found.named_by(cluster)];
    match &e.op {
        Op::Dynamic(op) => windows::lower(found, e, op, sizes),
        Op::Call(call) => {
            let step = call.step().unwrap_or_else(|| unreachable!("`simplify` expands {}", call.name()));
            step.lower(&Lowering { graph, e, sizes, is_free: &|v| found.has_one_reader(v, is_donated) })
        }
        Op::Structural(StructuralOp::Scatter(_)) => scatter::lower(graph, definitions, cluster, sizes),
        Op::Collective(op) => {
            Lowered::of(e, Work::Collective { op: op.clone(), ty: graph.ty(e.result()).clone(), at: e.loc })
        }
        Op::Structural(_) if let Some(pad) = padded::lower(graph, definitions, e, sizes) => pad,
        Op::Literal(_) | Op::Identity(_) | Op::Scalar(_) | Op::Structural(_) => {
            lower(graph, definitions, cluster, sizes)
        }
    }
}

/// The plan's step for a call that is no function, such as a loop. No method has a default.
pub(crate) trait CallStep {
    /// Returns the call's step, in which values that a loop carries are updated in place.
    fn lower(&self, from: &Lowering<'_>) -> Lowered;
}

/// The data from which a call's step is made.
pub(crate) struct Lowering<'a> {
    /// The graph that contains the call.
    pub graph: &'a Graph,
    /// The equation of the call.
    pub e: &'a Equation,
    /// The limits of the device.
    pub sizes: &'a Sizes,
    /// Returns true for an operand whose memory the step may overwrite: nothing else reads it, and the caller does not
    /// keep it.
    pub is_free: &'a dyn Fn(Var) -> bool,
}

impl Lowering<'_> {
    /// Plans a graph that the call runs. The plan may write to the memory of parameters for which `is_donated` is true.
    pub(crate) fn plan(&self, graph: &Graph, is_donated: &[bool]) -> Plan {
        plan(graph, is_donated, self.sizes)
    }
}
