//! The states of calls (loops, branches, functions and kernels) inside of a `shard_map`.
use super::{AxisStateInference, cast_graph_results, insert_casts, join_states, shard_map_diag, state_text};
use crate::call::Call;
use crate::graph::{Equation, Graph, Op};
use crate::mesh::{AxisStates, ManualAxisState, Mesh};
use crate::refusal::TransformError;
use pallas_ir::{Diag, Loc};

/// A call whose graphs have explicit casts, with the states (varying, invariant ..) of its operands and results.
pub(crate) struct CallWithAxisStates {
    /// The call.
    pub call: Call,
    /// The states to which the operands have to be cast.
    pub takes: Vec<AxisStates>,
    /// The states of the results.
    pub gives: Vec<AxisStates>,
}

/// The rule that types a call inside of a `shard_map`: it inserts casts into the call's graphs and gives the states
/// (varying, invariant ..) of its results. No method has a default.
pub(crate) trait CallAxisStateRule {
    /// Returns the call with explicit casts in its graphs. `e` is its equation, and `operand_states` the states that
    /// its operands have.
    ///
    /// # Errors
    /// Operands in states (varying, unreduced ..) that the call does not admit.
    fn insert_casts(
        &self,
        typing: &AxisStateInference,
        e: &Equation,
        operand_states: Vec<AxisStates>,
    ) -> Result<CallWithAxisStates, TransformError>;
}

impl AxisStateInference {
    /// Casts the operands of a call to the states that it takes, replaces it by a call of graphs with explicit casts,
    /// and records the states of its results.
    pub(super) fn cast_call_operands(
        &mut self,
        to: &mut Graph,
        e: &mut Equation,
        call: &Call,
    ) -> Result<(), TransformError> {
        let own: Vec<AxisStates> = e.args.iter().map(|&x| self.states(x)).collect();
        let made = call.states().insert_casts(self, e, own)?;
        for (x, wanted) in e.args.iter_mut().zip(&made.takes) {
            let given = *x;
            *x = self.cast_to_states(to, given, wanted).map_err(|axis| {
                let diag = self.state_mismatch_diag(call.name(), axis, self.states(given)[axis], wanted[axis]);
                TransformError { at: e.loc, diag }
            })?;
        }
        e.op = made.call.into();
        e.results.iter().zip(made.gives).for_each(|(&r, states)| self.define_states(r, states));
        Ok(())
    }

    /// Returns a called graph with explicit casts, and the states of its results, for parameters in these states.
    pub(crate) fn insert_casts(
        &self,
        graph: &Graph,
        param_states: &[AxisStates],
    ) -> Result<(Graph, Vec<AxisStates>), TransformError> {
        insert_casts(graph, self.mesh(), &self.manual, param_states)
    }

    /// Returns the graph with its results cast from the states `found` to `wanted`. `what` names the value in messages.
    pub(crate) fn cast_results(
        &self,
        mut graph: Graph,
        found: &[AxisStates],
        wanted: &[AxisStates],
        what: &str,
        at: Loc,
    ) -> Result<Graph, TransformError> {
        cast_graph_results(&mut graph, self.mesh(), found, wanted).map_err(|(i, axis)| TransformError {
            at,
            diag: self.state_mismatch_diag(what, axis, found[i][axis], wanted[i][axis]),
        })?;
        Ok(graph)
    }

    /// Returns the diagnostic for a value that is in another state along an axis than it has to be; `what` names the
    /// value.
    pub(crate) fn state_mismatch_diag(
        &self,
        what: &str,
        axis: usize,
        found: ManualAxisState,
        wanted: ManualAxisState,
    ) -> Diag {
        let (found, wanted, axis) = (state_text(found), state_text(wanted), self.mesh().name(axis));
        let message = format!("{what}: a value that is {found} over axis `{axis}` in place of one that is {wanted}");
        shard_map_diag(message, "`psum` combines the values of devices; `pcast` changes what is known of a value")
    }

    /// Returns `call` in place of that of equation `e`, with its operands cast to the states over the mesh axes
    /// (varying, invariant ..) that they have in common, as for an elementwise operation, and all its results in the
    /// joined state.
    pub(crate) fn call_with_joined_states(
        &self,
        call: impl Into<Call>,
        e: &Equation,
    ) -> Result<CallWithAxisStates, TransformError> {
        let (takes, gives) = self.joined_states(e).map_err(|diag| TransformError { at: e.loc, diag })?;
        Ok(CallWithAxisStates { call: call.into(), takes, gives: vec![gives; e.results.len()] })
    }

    /// Joins the states over mesh axes that carried values have after a step of a loop into `before`, those that they
    /// have before it; returns true if that changed `before`. States that cannot be joined are an error at line `at`,
    /// in which `what` names the value.
    pub(crate) fn join_carried_states(
        &self,
        before: &mut [AxisStates],
        after: &[AxisStates],
        what: &str,
        at: Loc,
    ) -> Result<bool, TransformError> {
        let mut changed = false;
        for (before, after) in before.iter_mut().zip(after) {
            let both = join_states(before, after).map_err(|axis| TransformError {
                at,
                diag: self.state_mismatch_diag(what, axis, after[axis], before[axis]),
            })?;
            changed |= both != *before;
            *before = both;
        }
        Ok(changed)
    }

    /// Returns the axes along which a condition differs between devices; `states` are those of the condition. Refuses
    /// one that differs along an axis over which the graphs it decides about have a collective, as some devices would
    /// not take part.
    pub(crate) fn varying_condition_axes(
        &self,
        what: &str,
        states: &[ManualAxisState],
        graphs: &[&Graph],
        at: Loc,
    ) -> Result<Vec<usize>, TransformError> {
        let own: Vec<usize> = (0..states.len()).filter(|&axis| states[axis] == ManualAxisState::Varying).collect();
        let mut used = vec![false; states.len()];
        graphs.iter().for_each(|graph| mark_axes_with_collectives(graph, self.mesh(), &mut used));
        let axis = |&axis: &usize| self.mesh().name(axis).to_string();
        if let Some(axis) = own.iter().find(|&&axis| used[axis]).map(axis) {
            let message = format!("a collective over axis `{axis}` in {what} whose condition differs along it");
            let help =
                format!("decide alike on all devices: reduce the condition over `{axis}`, with `pmax` or `psum`");
            return Err(shard_map_error(at, message, &help));
        }
        if let Some(axis) =
            (0..states.len()).find(|&axis| states[axis] == ManualAxisState::Unreduced).as_ref().map(axis)
        {
            let message = format!("{what} whose condition is a part of a sum over axis `{axis}`");
            return Err(shard_map_error(at, message, "combine the parts first: `psum`"));
        }
        Ok(own)
    }
}

fn shard_map_error(at: Loc, message: String, help: &str) -> TransformError {
    TransformError { at, diag: shard_map_diag(message, help) }
}

/// Returns the states of a value that additionally differs between devices along `varying_axes`.
pub(crate) fn with_varying_axes(states: &[ManualAxisState], varying_axes: &[usize]) -> AxisStates {
    let one = |(axis, &state): (usize, &ManualAxisState)| match state {
        ManualAxisState::Invariant | ManualAxisState::Reduced if varying_axes.contains(&axis) => {
            ManualAxisState::Varying
        }
        state => state,
    };
    states.iter().enumerate().map(one).collect()
}

/// Sets `has_collective` for the axes of a mesh along which a graph has collectives, at any depth of calls.
fn mark_axes_with_collectives(graph: &Graph, mesh: &Mesh, has_collective: &mut [bool]) {
    for e in &graph.equations {
        match &e.op {
            Op::Collective(op) if op.communicates() && *op.mesh == *mesh => {
                op.axes.iter().for_each(|axis| has_collective[usize::from(axis.id)] = true);
            }
            Op::Call(call) => {
                call.graphs().into_iter().for_each(|graph| mark_axes_with_collectives(graph, mesh, has_collective))
            }
            _ => {}
        }
    }
}
