//! The order of steps, and where values are stored.
use super::apart::Apart;
use super::blocks::Sizes;
use super::cluster::{Clusters, clusters, is_alias};
use super::control::Lowering;
use super::copies::copied;
use super::lower::lower;
use super::memory::{self, Held, Region};
use super::padded;
use super::rematerialize::Planned;
use super::schedule::{Steps, depth_first};
use super::shown::{Memory, Scheduled};
use super::stages::{Given, Staged, staged};
use super::{donate, scatter, windows};
use crate::call::{Callback, Print, has_effect};
use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::Collective;
use crate::watch::Watch;
use pallas_ir::{Kernel, Literal, Loc, StructuralOp, Type};
use std::sync::Arc;

/// Memory that a value is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// That of a parameter.
    Param(usize),
    /// New memory that outlives the call: a result has it.
    Fresh(usize),
    /// A region of the arena, which the next call uses again.
    Temporary(usize),
}

/// Work of one step.
#[derive(Debug)]
pub enum Work {
    /// A launch of a kernel.
    Kernel {
        /// The kernel.
        kernel: Arc<Kernel>,
        /// Extents of its dimensions.
        sizes: Vec<i64>,
        /// Values of its parameters, in order.
        params: Vec<Literal>,
    },
    /// A loop. The parameters of the body are the number of the step, an i32 of rank 0, the inputs, and the outputs; its
    /// results are the next outputs.
    For {
        /// One step.
        body: Box<Plan>,
        /// Steps.
        length: usize,
        /// Number of inputs.
        inputs: usize,
    },
    /// A loop while a condition holds. The parameters of the condition are the first inputs and the outputs, those of the
    /// body the other inputs and the outputs.
    While {
        /// Gives a bool of rank 0.
        condition: Box<Plan>,
        /// Inputs of the condition.
        captured: usize,
        /// One step.
        body: Box<Plan>,
        /// Inputs of the body.
        inputs: usize,
    },
    /// One of several; the first input is its number, an i32 of rank 0. The parameters are the other inputs.
    Case {
        /// The branches.
        branches: Vec<Plan>,
    },
    /// An exchange among devices: its only input, or none, and its only output.
    Collective {
        /// The operation.
        op: Collective,
        /// The type of the output.
        ty: Type,
        /// The user's line.
        at: Loc,
    },
    /// Shows the only input.
    Print {
        /// The label and the batches.
        print: Print,
        /// The type of the input.
        ty: Type,
        /// The user's line.
        at: Loc,
    },
    /// Calls a function of the host with the inputs, whose results are the outputs.
    Callback {
        /// The function, with its types.
        callback: Callback,
        /// The user's line.
        at: Loc,
    },
}

/// The step of a collective.
fn exchange(graph: &Graph, e: &Equation, op: &Collective) -> Lowered {
    let work = Work::Collective { op: op.clone(), ty: graph.ty(e.result()).clone(), at: e.loc };
    Lowered { work, inputs: e.args.clone(), outputs: e.results.clone(), in_place: vec![None] }
}

/// A step with the values that it reads and writes.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub work: Work,
    /// In the order of the operands.
    pub inputs: Vec<Var>,
    pub outputs: Vec<Var>,
    /// By output, the value that its memory holds before the step.
    pub in_place: Vec<Option<Var>>,
}

/// One step of a plan.
#[derive(Debug)]
pub struct Step {
    /// Its work.
    pub work: Work,
    /// Copies before that, each from a place to that of an output.
    pub copies: Vec<(Place, Place)>,
    /// The memory of its inputs, in the order of the operands.
    pub inputs: Vec<Place>,
    /// By input, why it does not compute what it reads.
    pub apart: Vec<Option<Apart>>,
    /// The memory of its outputs.
    pub outputs: Vec<Place>,
    /// The numbers of those outputs whose memory holds a value that it reads or changes, and why it does not compute that.
    pub in_place: Vec<(usize, Option<Apart>)>,
    /// The part of the arena that its work uses meanwhile ([`Work::scratch`]).
    pub scratch: Option<Region>,
}

/// The steps and the memory that compute a graph.
#[derive(Debug)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Bytes of each [`Place::Fresh`].
    pub fresh: Vec<usize>,
    /// The region of each [`Place::Temporary`]. Values that are needed at the same time have regions that lie apart.
    pub temporary: Vec<Region>,
    /// Bytes of the arena, those for the work of steps among them.
    pub arena: usize,
    /// What lies in the arena, and when.
    pub held: Vec<Held>,
    /// The results.
    pub results: Vec<(Place, Type)>,
}

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
/// What is computed again must save at least this part of the arena.
pub(super) const GAIN: usize = 16;

/// The plan, and the graph with cheap values that are computed again, if it may need less memory.
fn planned(graph: &Graph, given: &Given, is_donated: &[bool], sizes: &Sizes, watch: &mut dyn Watch) -> (Plan, Others) {
    let definitions = graph.definitions();
    let found = clusters(graph, given, sizes);
    let planner = Planner { graph, definitions: &definitions, found: &found };
    watch.made("clusters", &planner);
    let is_free = |v| planner.has_one_reader(v, is_donated);
    let step = |cluster: usize| {
        let cluster = &found.all[cluster];
        let first = &graph.equations[found.named_by(cluster)];
        match &first.op {
            Op::Dynamic(op) => windows::lower(graph, &definitions, first, op, sizes),
            Op::Call(call) => {
                let step = call.step().unwrap_or_else(|| unreachable!("`simplify` expands {}", call.name()));
                step.lower(&Lowering { graph, e: first, sizes, is_free: &is_free })
            }
            Op::Structural(StructuralOp::Scatter(_)) => scatter::lower(graph, &definitions, cluster, sizes),
            Op::Collective(op) => exchange(graph, first, op),
            Op::Structural(_) if let Some(pad) = padded::lower(graph, &definitions, first, sizes) => pad,
            Op::Literal(_) | Op::Identity(_) | Op::Scalar(_) | Op::Structural(_) => {
                lower(graph, &definitions, cluster, sizes)
            }
        }
    };
    let order = planner.order();
    let lowered: Vec<Lowered> = order.iter().map(|&cluster| step(cluster)).collect();
    let stored_as = |v| planner.stored_as(v);
    let steps = Steps::new(graph, &lowered, is_donated, &stored_as);
    let schedule = steps.order();
    let mut all: Vec<_> = order.into_iter().zip(lowered).map(Some).collect();
    let next = |&at: &usize| all[at].take().expect("each step comes once");
    let (order, mut lowered): (Vec<usize>, Vec<Lowered>) = schedule.iter().map(next).unzip();
    watch.made("schedule", &Scheduled(&planner, &order, &lowered));
    let other = Planned {
        graph,
        definitions: &definitions,
        found: &found,
        is_donated,
        sizes,
        stored_as: &stored_as,
        steps: &steps,
        schedule: &schedule,
        order: &order,
    };
    let others = Others { again: other.with_values_made_again(), of_readers: other.with_values_of_readers() };
    donate::share(graph, &mut lowered, is_donated, sizes.arena, &stored_as);
    watch.made("donate", &Scheduled(&planner, &order, &lowered));
    let apart = |(&cluster, step): (&usize, &Lowered)| {
        let inputs: Vec<Option<Apart>> = step.inputs.iter().map(|&v| planner.apart(cluster, v)).collect();
        let changed = step.in_place.iter().enumerate().filter_map(|(k, v)| Some((k, planner.apart(cluster, (*v)?))));
        (inputs, changed.collect())
    };
    let apart: Vec<_> = order.iter().zip(&lowered).map(apart).collect();
    let mut plan = memory::places(graph, lowered, is_donated, &stored_as);
    watch.made("memory", &Memory(&plan));
    for (step, apart) in plan.steps.iter_mut().zip(apart) {
        (step.apart, step.in_place) = apart;
    }
    (plan, others)
}

/// The clusters of a graph.
pub(super) struct Planner<'g> {
    pub graph: &'g Graph,
    pub definitions: &'g [Option<usize>],
    pub found: &'g Clusters,
}

impl Planner<'_> {
    /// The value whose memory a value has: a reshape that belongs to no cluster has its operand's.
    pub(super) fn stored_as(&self, mut v: Var) -> Var {
        while let Some(i) = self.definitions[v.index()]
            && is_alias(self.graph, self.definitions, &self.graph.equations[i])
            && self.found.owner[i].is_none()
        {
            v = self.graph.equations[i].args[0];
        }
        v
    }

    /// Returns true if one cluster reads the memory of a value, and only once, and it is not a result's or the caller's.
    fn has_one_reader(&self, v: Var, is_donated: &[bool]) -> bool {
        let stored = self.stored_as(v);
        let is = |other: &&Var| self.stored_as(**other) == stored;
        let params = self.graph.params.iter().zip(is_donated);
        let is_kept = params.filter(|(_, donated)| !**donated).any(|(p, _)| *p == stored);
        let owned = self.graph.equations.iter().zip(&self.found.owner).filter(|(_, owner)| owner.is_some());
        let reads = owned.flat_map(|(e, _)| &e.args).filter(is).take(2).count();
        !is_kept && reads == 1 && !self.graph.results.iter().any(|r| is(&r))
    }

    /// Why a cluster does not compute a value that it reads from memory, and that another cluster computes.
    fn apart(&self, cluster: usize, v: Var) -> Option<Apart> {
        let stored = self.stored_as(v);
        self.cluster_of(stored)?;
        let apart = self.found.all[cluster].apart.iter();
        apart.filter(|(own, _)| self.stored_as(**own) == stored).map(|(_, apart)| *apart).next_back()
    }

    /// The cluster that computes a value.
    pub(super) fn cluster_of(&self, v: Var) -> Option<usize> {
        self.found.owner[self.definitions[self.stored_as(v).index()]?]
    }

    /// The clusters that a cluster reads from, in the order of its equations and operands.
    fn sources(&self, cluster: usize) -> Vec<usize> {
        let members = &self.found.all[cluster].members;
        let args = members.iter().flat_map(|&i| &self.graph.equations[i].args);
        let mut all: Vec<usize> = vec![];
        for source in args.filter_map(|&arg| self.cluster_of(arg)) {
            if source != cluster && !all.contains(&source) {
                all.push(source);
            }
        }
        all
    }

    /// Each cluster after those that it reads from, depth first from the equations with effects in their order, then from
    /// the results: what is computed is read soon.
    fn order(&self) -> Vec<usize> {
        let effects = self.graph.equations.iter().zip(&self.found.owner).filter(|(e, _)| has_effect(&e.op));
        let effects = effects.filter_map(|(_, owner)| *owner);
        let results = self.graph.results.iter().filter_map(|&r| self.cluster_of(r));
        depth_first(effects.chain(results), self.found.all.len(), |cluster| self.sources(cluster))
    }
}
