//! The states of calls (loops, branches, functions and kernels) inside of a `shard_map`.
use super::{Typing, common, finished, text, typed, wrong};
use crate::call::Call;
use crate::graph::{Equation, Graph, Op};
use crate::mesh::{Mesh, State, States};
use crate::refused::Refused;
use pallas_ir::{Diag, Loc};

/// A call whose graphs have explicit casts, with the states of its operands and results.
pub(crate) struct Made {
    /// The call.
    pub call: Call,
    /// The states to which the operands have to be cast.
    pub takes: Vec<States>,
    /// The states of the results.
    pub gives: Vec<States>,
}

/// The rule for the states of a call inside of a `shard_map`. No method has a default.
pub(crate) trait CallStates {
    /// Returns the call with explicit casts in its graphs. `e` is its equation, and `own` the states that its operands
    /// have.
    ///
    /// # Errors
    /// States that the call does not admit.
    fn typed(&self, typing: &Typing, e: &Equation, own: Vec<States>) -> Result<Made, Refused>;
}

impl Typing {
    /// Casts the operands of a call, replaces it by the call of typed graphs, and defines the states of its results.
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

    /// Returns a called graph with explicit casts, and the states of its results, for parameters in these states.
    pub(crate) fn typed(&self, graph: &Graph, params: &[States]) -> Result<(Graph, Vec<States>), Refused> {
        typed(graph, self.mesh(), &self.manual, params)
    }

    /// Returns the graph with its results cast from the states `found` to `wanted`. `what` names the value in messages.
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

    /// Returns the diagnostic for a value that is in another state along an axis than it has to be; `what` names the
    /// value.
    pub(crate) fn unlike(&self, what: &str, axis: usize, found: State, wanted: State) -> Diag {
        let (found, wanted, axis) = (text(found), text(wanted), self.mesh().name(axis));
        let message = format!("{what}: a value that is {found} over axis `{axis}` in place of one that is {wanted}");
        wrong(message, "`psum` combines the values of devices; `pcast` changes what is known of a value")
    }

    /// Returns a call whose results are all in one state, the common one of its operands.
    pub(crate) fn joined_call(&self, call: impl Into<Call>, e: &Equation) -> Result<Made, Refused> {
        let (takes, gives) = self.joined(e).map_err(|diag| Refused { at: e.loc, diag })?;
        Ok(Made { call: call.into(), takes, gives: vec![gives; e.results.len()] })
    }

    /// Joins the states of carried values after a step into those before it, and returns true if that changed `before`.
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

    /// Returns the axes along which a condition differs between devices; `states` are those of the condition. Refuses
    /// one that differs along an axis over which the graphs it decides about have a collective, as some devices would
    /// not take part.
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

/// Returns the states of a value that additionally differs between devices along `axes`.
pub(crate) fn varying_over(states: &[State], axes: &[usize]) -> States {
    let one = |(axis, &state): (usize, &State)| match state {
        State::Invariant | State::Reduced if axes.contains(&axis) => State::Varying,
        state => state,
    };
    states.iter().enumerate().map(one).collect()
}

/// Sets `used` for the axes of a mesh along which a graph has collectives, at any depth of calls.
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
