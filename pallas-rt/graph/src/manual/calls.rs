//! Loops, branches, functions and kernels inside of `shard_map`.
use super::{Typing, common, finished, text, typed, wrong};
use crate::call::{Call, Case, Checkpoint, Custom, CustomJvp, Named, Scan, ShardMap, While};
use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::{Mesh, State, States, invariant};
use crate::refused::Refused;
use pallas_ir::{Diag, Loc};

/// A call of typed graphs.
struct Made {
    call: Call,
    /// The states that the operands need.
    takes: Vec<States>,
    gives: Vec<States>,
}

impl Typing {
    pub(super) fn call(&mut self, to: &mut Graph, e: &mut Equation, call: &Call) -> Result<(), Refused> {
        let own: Vec<States> = e.args.iter().map(|&x| self.states(x)).collect();
        let made = match call {
            Call::Scan(scan) => self.scan(scan, own, e.loc)?,
            Call::While(call) => self.while_loop(call, own, e.loc)?,
            Call::Case(case) => self.case(case, own, e.loc)?,
            // Nobody may ask for the derivative of a gradient: what does not go together there is no mistake yet.
            Call::Custom(custom) if custom.known > 0 => match self.custom(custom, own.clone(), e.loc) {
                Ok(made) => made,
                Err(_) => {
                    let (graph, gives) = self.typed(&custom.primal, &own)?;
                    Made { call: Call::Closed(graph), takes: own, gives }
                }
            },
            Call::Custom(custom) => self.custom(custom, own, e.loc)?,
            Call::CustomJvp(custom) => self.custom_jvp(custom, own, e.loc)?,
            Call::Closed(graph) => {
                let (graph, gives) = self.typed(graph, &own)?;
                Made { call: Call::Closed(graph), takes: own, gives }
            }
            Call::Checkpoint(Checkpoint { graph, policy }) => {
                let (graph, gives) = self.typed(graph, &own)?;
                Made { call: Call::Checkpoint(Checkpoint { graph, policy: policy.clone() }), takes: own, gives }
            }
            Call::Named(Named { .. }) => Made { call: call.clone(), takes: own.clone(), gives: own },
            Call::Print(_) => Made { call: call.clone(), takes: own, gives: vec![invariant(self.mesh())] },
            Call::Kernel(_) | Call::Callback(_) => {
                let (takes, gives) = self.joined(e).map_err(|diag| Refused { at: e.loc, diag })?;
                Made { call: call.clone(), takes, gives: vec![gives; e.results.len()] }
            }
            // Along its own axes the body is typed already.
            Call::ShardMap(map) if map.mesh == *self.mesh() => {
                let (body, gives) = self.typed(&map.body, &own)?;
                Made { call: Call::ShardMap(ShardMap { body, ..map.clone() }), takes: own, gives }
            }
            Call::ShardMap(_) => {
                let help = "a body is manual along axes of one mesh";
                return Err(refused(e.loc, "a `shard_map` inside of one on another mesh".into(), help));
            }
        };
        for (x, wanted) in e.args.iter_mut().zip(&made.takes) {
            let given = *x;
            *x = self.cast(to, given, wanted).map_err(|axis| {
                let diag = self.unlike(call.name(), axis, self.states(given)[axis], wanted[axis]);
                Refused { at: e.loc, diag }
            })?;
        }
        e.op = made.call.into();
        e.results.iter().zip(made.gives).for_each(|(&r, states)| self.define(r, states));
        Ok(())
    }

    fn typed(&self, graph: &Graph, params: &[States]) -> Result<(Graph, Vec<States>), Refused> {
        typed(graph, self.mesh(), &self.manual, params)
    }

    /// A graph whose results, which are in the states `found`, are cast to others.
    fn cast_results(
        &self,
        mut graph: Graph,
        found: &[States],
        wanted: &[States],
        what: &str,
        at: Loc,
    ) -> Result<Graph, Refused> {
        finished(&mut graph, self.mesh(), found, wanted)
            .map_err(|(i, axis)| Refused { at, diag: self.unlike(what, axis, found[i][axis], wanted[i][axis]) })?;
        Ok(graph)
    }

    fn unlike(&self, what: &str, axis: usize, found: State, wanted: State) -> Diag {
        let (found, wanted, axis) = (text(found), text(wanted), self.mesh().name(axis));
        let message = format!("{what}: a value that is {found} over axis `{axis}` in place of one that is {wanted}");
        wrong(message, "`psum` combines the values of devices; `pcast` changes what is known of a value")
    }

    /// The remedy for a cotangent in another state than its argument.
    fn of_cotangent(&self, i: usize, axis: usize, found: State, wanted: State) -> String {
        let axis = self.mesh().name(axis);
        match (found, wanted) {
            (State::Varying, State::Invariant) => format!(
                "argument {i} is alike on all devices, so its cotangent is the sum of theirs: `psum(.., \"{axis}\")` of it in \
                 the stated derivative; or `pvary(.., \"{axis}\")` of argument {i} before the call, so that the function's own \
                 derivative adds them up"
            ),
            _ => format!(
                "the cotangent of argument {i} is in the state of the argument over axis `{axis}`: `psum` combines the values \
                 of devices; `pcast` changes what is known of a value"
            ),
        }
    }

    /// The states of values that are carried from step to step, from those before and after a step.
    fn carried(&self, before: &mut [States], after: &[States], what: &str, at: Loc) -> Result<bool, Refused> {
        let mut changed = false;
        for (before, after) in before.iter_mut().zip(after) {
            let both = common(before, after)
                .map_err(|axis| Refused { at, diag: self.unlike(what, axis, after[axis], before[axis]) })?;
            changed |= both != *before;
            *before = both;
        }
        Ok(changed)
    }

    fn scan(&self, scan: &Scan, mut takes: Vec<States>, at: Loc) -> Result<Made, Refused> {
        let carried = scan.captured..scan.captured + scan.carried;
        loop {
            let (body, found) = self.typed(&scan.body, &takes)?;
            if self.carried(&mut takes[carried.clone()], &found[..scan.carried], "scan", at)? {
                continue;
            }
            let gives = [&takes[carried.clone()], &found[scan.carried..]].concat();
            let body = self.cast_results(body, &found, &gives, "scan", at)?;
            return Ok(Made { call: Call::Scan(Scan { body, ..scan.clone() }), takes, gives });
        }
    }

    fn while_loop(&self, call: &While, mut takes: Vec<States>, at: Loc) -> Result<Made, Refused> {
        let (first, fixed) = (call.condition_captured, call.condition_captured + call.body_captured);
        loop {
            let of_condition = [&takes[..first], &takes[fixed..]].concat();
            let (condition, decides) = self.typed(&call.condition, &of_condition)?;
            let (body, found) = self.typed(&call.body, &takes[first..])?;
            let varying = self.deciding("a loop", &decides[0], &[&condition, &body], at)?;
            let after: Vec<States> = found.iter().map(|found| varying_over(found, &varying)).collect();
            if self.carried(&mut takes[fixed..], &after, "while_loop", at)? {
                continue;
            }
            let gives = takes[fixed..].to_vec();
            let body = self.cast_results(body, &found, &gives, "while_loop", at)?;
            return Ok(Made { call: Call::While(While { condition, body, ..call.clone() }), takes, gives });
        }
    }

    fn case(&self, case: &Case, mut takes: Vec<States>, at: Loc) -> Result<Made, Refused> {
        let typed_all = |takes: &[States]| -> Result<Vec<(Graph, Vec<States>)>, Refused> {
            case.branches.iter().map(|branch| self.typed(branch, &takes[1..])).collect()
        };
        let branches = typed_all(&takes)?;
        let graphs: Vec<&Graph> = branches.iter().map(|(graph, _)| graph).collect();
        let varying = self.deciding("branches", &takes[0], &graphs, at)?;
        let wider: Vec<States> = takes[1..].iter().map(|own| varying_over(own, &varying)).collect();
        let branches = if wider == takes[1..] { branches } else { typed_all(&[&takes[..1], &wider].concat())? };
        takes.splice(1.., wider);
        let mut gives: Vec<States> = branches[0].1.iter().map(|found| varying_over(found, &varying)).collect();
        for (_, found) in &branches[1..] {
            self.carried(&mut gives, found, "the result of a branch", at)?;
        }
        let branches = branches
            .into_iter()
            .map(|(graph, found)| self.cast_results(graph, &found, &gives, "the result of a branch", at))
            .collect::<Result<_, _>>()?;
        Ok(Made { call: Call::Case(Case { branches }), takes, gives })
    }

    /// The axes over which a condition differs, where the graphs that depend on it have no collective.
    fn deciding(&self, what: &str, states: &[State], graphs: &[&Graph], at: Loc) -> Result<Vec<usize>, Refused> {
        let own: Vec<usize> = (0..states.len()).filter(|&axis| states[axis] == State::Varying).collect();
        let mut used = vec![false; states.len()];
        graphs.iter().for_each(|graph| communicates(graph, self.mesh(), &mut used));
        let axis = |&axis: &usize| self.mesh().name(axis).to_string();
        if let Some(axis) = own.iter().find(|&&axis| used[axis]).map(axis) {
            let message = format!("a collective over axis `{axis}` in {what} whose condition differs along it");
            let help =
                format!("decide alike on all devices: reduce the condition over `{axis}`, with `pmax` or `psum`");
            return Err(refused(at, message, &help));
        }
        if let Some(axis) = (0..states.len()).find(|&axis| states[axis] == State::Unreduced).as_ref().map(axis) {
            let message = format!("{what} whose condition is a part of a sum over axis `{axis}`");
            return Err(refused(at, message, "combine the parts first: `psum`"));
        }
        Ok(own)
    }

    fn custom(&self, custom: &Custom, takes: Vec<States>, at: Loc) -> Result<Made, Refused> {
        let (primal, mut gives) = self.typed(&custom.primal, &takes)?;
        let of_primal = gives.clone();
        let (forward, found) = self.typed(&custom.forward, &takes)?;
        let n = gives.len();
        self.carried(&mut gives, &found[..n], "custom_vjp", at)?;
        let primal = self.cast_results(primal, &of_primal, &gives, "custom_vjp", at)?;
        let all = [&gives[..], &found[n..]].concat();
        let forward = self.cast_results(forward, &found, &all, "custom_vjp", at)?;
        let of_backward = [&takes[..custom.captured], &found[n..], &gives].concat();
        let (backward, found) = self.typed(&custom.backward, &of_backward)?;
        let mut backward = backward;
        let wanted = &takes[custom.captured..];
        if let Err((i, axis)) = finished(&mut backward, self.mesh(), &found, wanted) {
            let (is, own) = (found[i][axis], wanted[i][axis]);
            let mut diag =
                self.unlike(&format!("the cotangent that `custom_vjp` states for argument {i}"), axis, is, own);
            diag.help = self.of_cotangent(i, axis, is, own);
            return Err(Refused { at, diag });
        }
        let call = Call::Custom(Custom { primal, forward, backward, ..custom.clone() });
        Ok(Made { call, takes, gives })
    }

    fn custom_jvp(&self, custom: &CustomJvp, takes: Vec<States>, at: Loc) -> Result<Made, Refused> {
        let floats = |graph: &Graph, vars: &[Var], states: &[States]| -> Vec<States> {
            let all = vars.iter().zip(states).filter(|(v, _)| graph.ty(**v).dtype.is_float());
            all.map(|(_, states)| states.clone()).collect()
        };
        let (primal, mut gives) = self.typed(&custom.primal, &takes)?;
        let of_primal = gives.clone();
        let arguments = floats(&custom.primal, &custom.primal.params[custom.captured..], &takes[custom.captured..]);
        let (rule, found) = self.typed(&custom.rule, &[&takes[..], &arguments].concat())?;
        let n = gives.len();
        self.carried(&mut gives, &found[..n], "custom_jvp", at)?;
        let primal = self.cast_results(primal, &of_primal, &gives, "custom_jvp", at)?;
        let all = [gives.clone(), floats(&custom.primal, &custom.primal.results, &gives)].concat();
        let rule = self.cast_results(rule, &found, &all, "the tangent that `custom_jvp` states", at)?;
        Ok(Made { call: Call::CustomJvp(CustomJvp { primal, rule, ..custom.clone() }), takes, gives })
    }
}

fn refused(at: Loc, message: String, help: &str) -> Refused {
    Refused { at, diag: wrong(message, help) }
}

/// The states of a value that differs over some axes besides.
fn varying_over(states: &[State], axes: &[usize]) -> States {
    let one = |(axis, &state): (usize, &State)| match state {
        State::Invariant | State::Reduced if axes.contains(&axis) => State::Varying,
        state => state,
    };
    states.iter().enumerate().map(one).collect()
}

/// Marks the axes of a mesh along which a graph has collectives.
fn communicates(graph: &Graph, mesh: &Mesh, used: &mut [bool]) {
    for e in &graph.equations {
        match &e.op {
            Op::Collective(op) if op.communicates() && *op.mesh == *mesh => {
                op.axes.iter().for_each(|axis| used[usize::from(axis.id)] = true);
            }
            Op::Call(call) => call.graphs().into_iter().for_each(|graph| communicates(graph, mesh, used)),
            _ => {}
        }
    }
}
