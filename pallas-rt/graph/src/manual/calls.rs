//! Loops, branches, functions and kernels inside of `shard_map`.
use super::{Typing, common, finished, text, typed, wrong};
use crate::call::Call;
use crate::graph::{Equation, Graph, Op};
use crate::mesh::{Mesh, State, States};
use crate::refused::Refused;
use pallas_ir::{Diag, Loc};

/// A call of typed graphs.
pub(crate) struct Made {
    /// The call.
    pub call: Call,
    /// The states that the operands need.
    pub takes: Vec<States>,
    /// The states of the results.
    pub gives: Vec<States>,
}

/// A call inside of `shard_map`. No method has a default.
pub(crate) trait CallStates {
    /// The call of typed graphs, from its equation and the states of the operands.
    ///
    /// # Errors
    /// States that it does not admit.
    fn typed(&self, typing: &Typing, e: &Equation, own: Vec<States>) -> Result<Made, Refused>;
}

impl Typing {
    pub(super) fn call(&mut self, to: &mut Graph, e: &mut Equation, call: &Call) -> Result<(), Refused> {
        let own: Vec<States> = e.args.iter().map(|&x| self.states(x)).collect();
        let made = call.states().typed(self, e, own)?;
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

    pub(crate) fn typed(&self, graph: &Graph, params: &[States]) -> Result<(Graph, Vec<States>), Refused> {
        typed(graph, self.mesh(), &self.manual, params)
    }

    /// A graph whose results, which are in the states `found`, are cast to others.
    pub(crate) fn cast_results(
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

    /// The mistake that a value is in another state along an axis than it has to be.
    pub(crate) fn unlike(&self, what: &str, axis: usize, found: State, wanted: State) -> Diag {
        let (found, wanted, axis) = (text(found), text(wanted), self.mesh().name(axis));
        let message = format!("{what}: a value that is {found} over axis `{axis}` in place of one that is {wanted}");
        wrong(message, "`psum` combines the values of devices; `pcast` changes what is known of a value")
    }

    /// A call whose results all are in one state, which follows from those of all operands.
    pub(crate) fn joined_call(&self, call: impl Into<Call>, e: &Equation) -> Result<Made, Refused> {
        let (takes, gives) = self.joined(e).map_err(|diag| Refused { at: e.loc, diag })?;
        Ok(Made { call: call.into(), takes, gives: vec![gives; e.results.len()] })
    }

    /// The states of values that are carried from step to step, from those before and after a step.
    pub(crate) fn carried(
        &self,
        before: &mut [States],
        after: &[States],
        what: &str,
        at: Loc,
    ) -> Result<bool, Refused> {
        let mut changed = false;
        for (before, after) in before.iter_mut().zip(after) {
            let both = common(before, after)
                .map_err(|axis| Refused { at, diag: self.unlike(what, axis, after[axis], before[axis]) })?;
            changed |= both != *before;
            *before = both;
        }
        Ok(changed)
    }

    /// The axes over which a condition differs, where the graphs that depend on it have no collective.
    pub(crate) fn deciding(
        &self,
        what: &str,
        states: &[State],
        graphs: &[&Graph],
        at: Loc,
    ) -> Result<Vec<usize>, Refused> {
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
}

fn refused(at: Loc, message: String, help: &str) -> Refused {
    Refused { at, diag: wrong(message, help) }
}

/// The states of a value that differs over some axes besides.
pub(crate) fn varying_over(states: &[State], axes: &[usize]) -> States {
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
