//! Planning of a graph, in stages.
use super::broadcast_copies::copy_broadcasts;
use super::cluster::ClusteredGraph;
use super::device_limits::DeviceLimits;
use super::grow::grow_clusters;
use super::lower::lower_cluster;
use super::plan::{LoweredStep, Plan, StepOp};
use super::rematerialize::{MIN_SAVED_ARENA_DIVISOR, PlannedGraph};
use super::schedule::{self, StepDependencies};
use super::split_reductions::{StageKernelResults, StagedGraph, split_long_reductions};
use super::stage_texts::{MemoryStageOutput, ScheduleStageOutput};
use super::unfused_reasons::UnfusedReason;
use super::{arena_packing, donated_arguments, dynamic_window_kernels, large_pads, scatter};
use crate::graph::{Equation, Graph, Op, Var};
use crate::stage_watch::StageObserver;
use pallas_ir::StructuralOp;
use std::borrow::Cow;

/// Plans a graph for a device. The plan may write to the memory of parameters for which `is_donated` is true.
pub fn plan(graph: &Graph, is_donated: &[bool], sizes: &DeviceLimits) -> Plan {
    plan_watched(graph, is_donated, sizes, &mut ())
}

/// Plans a graph like [`plan`]; shows `observer` the graph after each stage, each planned graph with its clusters,
/// steps and memory, and the plan.
pub fn plan_watched(
    graph: &Graph,
    is_donated: &[bool],
    sizes: &DeviceLimits,
    observer: &mut dyn StageObserver,
) -> Plan {
    let StagedGraph { graph, given } = split_long_reductions(graph, sizes);
    observer.observe_stage("stages", &*graph);
    let graph = copy_broadcasts(&graph);
    if let Cow::Owned(copied) = &graph {
        debug_assert_eq!(crate::verify(copied), Ok(()));
    }
    observer.observe_stage("copies", &*graph);
    let (mut best, mut others) = plan_once(&graph, &given, is_donated, sizes, observer);
    if let Some(graph) = &others.of_readers {
        observer.observe_stage("readers", graph);
        let (plan, next) = plan_once(graph, &given, is_donated, sizes, observer);
        if plan.steps.len() <= best.steps.len() && plan.arena <= best.arena {
            (best, others) = (plan, next);
        }
    }
    let mut other = others.again;
    for _ in 0..MAX_REMATERIALIZATION_ROUNDS {
        let Some(graph) = other else { break };
        observer.observe_stage("rematerialize", &graph);
        let (plan, next) = plan_once(&graph, &given, is_donated, sizes, observer);
        if plan.arena > best.arena - best.arena / MIN_SAVED_ARENA_DIVISOR {
            break;
        }
        (best, other) = (plan, next.again);
    }
    observer.observe_stage("plan", &best);
    best
}

/// Variants of a planned graph that give the same results, but compute some values again in place of keeping them in
/// memory; `None` where that promises no gain.
struct RecomputedGraphs {
    /// Values are computed again for later readers, to need less memory.
    again: Option<Graph>,
    /// Values are computed by the only kernel that reads them, from others that it reads anyway.
    of_readers: Option<Graph>,
}

/// Most times that a graph is planned again with values that are computed again.
const MAX_REMATERIALIZATION_ROUNDS: usize = 4;

/// Plans a graph without computing values again; returns the plan, and variants of the graph in which kernels compute
/// some values again, which may need less memory. `stage_results` maps each value between stages of a long reduction
/// to the result whose kernel has to compute it.
fn plan_once(
    graph: &Graph,
    stage_results: &StageKernelResults,
    is_donated: &[bool],
    sizes: &DeviceLimits,
    observer: &mut dyn StageObserver,
) -> (Plan, RecomputedGraphs) {
    let found = grow_clusters(graph, stage_results, sizes);
    observer.observe_stage("clusters", &found);
    let order = schedule::initial_cluster_order(&found);
    let lowered: Vec<LoweredStep> =
        order.iter().map(|&cluster| lower_cluster_to_step(&found, cluster, is_donated, sizes)).collect();
    let steps = StepDependencies::new(&found, &lowered, is_donated);
    let schedule = steps.choose_low_memory_order();
    let mut all: Vec<_> = order.into_iter().zip(lowered).map(Some).collect();
    let next = |&at: &usize| all[at].take().expect("each step comes once");
    let (order, mut lowered): (Vec<usize>, Vec<LoweredStep>) = schedule.iter().map(next).unzip();
    observer.observe_stage("schedule", &ScheduleStageOutput(&found, &order, &lowered));
    let other = PlannedGraph { found: &found, is_donated, sizes, steps: &steps, schedule: &schedule, order: &order };
    let others = RecomputedGraphs { again: other.recompute_at_peak(), of_readers: other.recompute_in_readers() };
    donated_arguments::alias_outputs_to_inputs(&found, &mut lowered, is_donated, sizes.arena);
    observer.observe_stage("donate", &ScheduleStageOutput(&found, &order, &lowered));
    let apart = |(&cluster, step): (&usize, &LoweredStep)| {
        let inputs: Vec<Option<UnfusedReason>> =
            step.inputs.iter().map(|&v| found.unfused_reason(cluster, v)).collect();
        let changed =
            step.in_place.iter().enumerate().filter_map(|(k, v)| Some((k, found.unfused_reason(cluster, (*v)?))));
        (inputs, changed.collect())
    };
    let apart: Vec<_> = order.iter().zip(&lowered).map(apart).collect();
    let mut plan = arena_packing::assign_memory(&found, lowered, is_donated);
    observer.observe_stage("memory", &MemoryStageOutput(&plan));
    for (step, apart) in plan.steps.iter_mut().zip(apart) {
        (step.apart, step.in_place) = apart;
    }
    (plan, others)
}

/// Lowers a cluster to one step of a plan: a kernel, or an operation that is a step of its own, such as a loop or a
/// collective. The step may write to the memory of parameters for which `is_donated` is true.
fn lower_cluster_to_step(
    found: &ClusteredGraph<'_>,
    cluster: usize,
    is_donated: &[bool],
    sizes: &DeviceLimits,
) -> LoweredStep {
    let (graph, definitions, cluster) = (found.graph, &found.definitions, &found.all[cluster]);
    let e = &graph.equations[found.step_kind_equation(cluster)];
    match &e.op {
        Op::Dynamic(op) => dynamic_window_kernels::lower_window(found, e, op, sizes),
        Op::Call(call) => {
            let step = call.step().unwrap_or_else(|| unreachable!("`simplify` expands {}", call.name()));
            step.lower_to_step(&CallLoweringContext {
                graph,
                e,
                sizes,
                is_free: &|v| found.has_one_reader(v, is_donated),
            })
        }
        Op::Structural(StructuralOp::Scatter(_)) => scatter::lower_scatter(graph, definitions, cluster, sizes),
        Op::Collective(op) => LoweredStep::from_equation(
            e,
            StepOp::Collective { op: op.clone(), ty: graph.ty(e.result()).clone(), at: e.loc },
        ),
        Op::Structural(_) if let Some(pad) = large_pads::lower_pad(graph, definitions, e, sizes) => pad,
        Op::Literal(_) | Op::Identity(_) | Op::Scalar(_) | Op::Structural(_) => {
            lower_cluster(graph, definitions, cluster, sizes)
        }
    }
}

/// The interface by which each kind of call that stays in a plan, such as a loop, becomes a step. No method has a
/// default.
pub(crate) trait LowerableCall {
    /// Returns the call's step, in which values that a loop carries are updated in place.
    fn lower_to_step(&self, context: &CallLoweringContext<'_>) -> LoweredStep;
}

/// The inputs from which a call in a graph is lowered to a step: the call's equation, the device's limits, and the
/// operands whose memory the step may overwrite.
pub(crate) struct CallLoweringContext<'a> {
    /// The graph that contains the call.
    pub graph: &'a Graph,
    /// The equation of the call.
    pub e: &'a Equation,
    /// The limits of the device.
    pub sizes: &'a DeviceLimits,
    /// Returns true for an operand whose memory the step may overwrite: nothing else reads it, and the caller does not
    /// keep it.
    pub is_free: &'a dyn Fn(Var) -> bool,
}

impl CallLoweringContext<'_> {
    /// Plans a graph that the call runs. The plan may write to the memory of parameters for which `is_donated` is true.
    pub(crate) fn plan(&self, graph: &Graph, is_donated: &[bool]) -> Plan {
        plan(graph, is_donated, self.sizes)
    }
}
