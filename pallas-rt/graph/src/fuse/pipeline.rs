//! From a graph to its plan, in stages.
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

/// Plans a graph for a device. Memory of the parameters for which `is_donated` is true may be written.
pub fn plan(graph: &Graph, is_donated: &[bool], sizes: &Sizes) -> Plan {
    plan_watched(graph, is_donated, sizes, &mut ())
}

/// The plan of [`plan`]; shows the graph in stages, each graph that is planned with its clusters, steps and memory, and the plan.
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

/// Graphs that compute the same, in which values are made again.
struct Others {
    /// To keep less memory.
    again: Option<Graph>,
    /// By kernels that read all that is needed.
    of_readers: Option<Graph>,
}

/// Times that a graph is planned again with values that are computed again.
const MOST_TURNS: usize = 4;

/// The plan, and the graph with cheap values that are computed again, if it may need less memory.
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

/// The step of a cluster.
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

/// A call as a step of a plan. No method has a default.
pub(crate) trait CallStep {
    /// Its step. Values that a loop carries are changed in place.
    fn lower(&self, from: &Lowering<'_>) -> Lowered;
}

/// The inputs for the step of a call.
pub(crate) struct Lowering<'a> {
    /// The graph that the call stands in.
    pub graph: &'a Graph,
    /// The call's equation.
    pub e: &'a Equation,
    /// The numbers of the device.
    pub sizes: &'a Sizes,
    /// True for an operand that the program owns and that nothing else reads.
    pub is_free: &'a dyn Fn(Var) -> bool,
}

impl Lowering<'_> {
    /// The plan of a graph that the call runs; parameters for which `is_donated` is true may be written.
    pub(crate) fn plan(&self, graph: &Graph, is_donated: &[bool]) -> Plan {
        plan(graph, is_donated, self.sizes)
    }
}
