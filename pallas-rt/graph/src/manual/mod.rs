//! Types the bodies of `shard_map` (graphs that every device runs on its blocks): which values differ between devices.
//!
//! A value has a [`ManualAxisState`] along each axis of the mesh. [`AxisStateInference`] finds the states of a graph's
//! values in the order of its equations, and makes them explicit: where an invariant value meets a varying one, it
//! inserts a [`Pcast`] in front. The transpose of that cast is the sum over devices, so derivatives of a typed graph
//! need no other rule than those of its equations.
//!
//! ```text
//! { lambda %0 %1 .                        %2 = mul %0 %1  in %2 }        %0 invariant, %1 varying along "data"
//! { lambda %0 %1 . %3 = pcast "data" %0   %2 = mul %3 %1  in %2 }
//! ```
//!
//! The states are those of `jax.typeof(x).manual_axis_type`, as measured from JAX 0.12.0.1. Two differences: an
//! operation that is not linear in parts of a sum is refused also where JAX admits it (a concatenation of parts with
//! whole values), and so is a collective in a loop or branch whose condition differs between the devices of its group.
//!
//! A `shard_map` is a call of a graph of blocks (`call::ShardMap`). Along each axis of the mesh, a value in it is
//! invariant (equal on all devices), varying (it may differ), unreduced (the devices have parts of a sum) or reduced
//! (the dual of unreduced: the state of cotangents of unreduced values). Devices do nothing for a cast.
//!
//! States are no part of `Type`, which kernels share. They follow from those of the parameters in one pass over the
//! equations. The tracer makes it as it appends, so that `grad` inside of a body sees casts and mistakes have their
//! line; transformations make it again for the bodies that they produce.
//!
//! The partitioner constrains operands and results to the specs, and puts the body in place of the call. A body that
//! leaves axes automatic (`axis_names`) is partitioned on its own, for a mesh of these axes alone (`shard/submesh`),
//! and its collectives become those of the whole mesh in the end. So nothing that the partitioner assumes about copies
//! of a value can mix devices that differ along manual axes. What is known of the operands and of the readers of
//! results is declared inside of the body. The shardings of its results are only known after it is partitioned, so
//! `shard::propagate_and_partition` propagates and partitions again with them, up to four times.
//!
//! A `shard_map` inside of a body has states along its own manual axes: a pass types the axes of one of the two, and
//! also visits the bodies inside (`AxisStateInference` has the mask). For the outer body's mesh of automatic axes, the
//! inner `shard_map` is one like any other.
mod call_states;
mod pvary_casts;

pub(crate) use call_states::{CallAxisStateRule, CallWithAxisStates, with_varying_axes};

use crate::graph::{Equation, Graph, Op, Var};
use crate::mesh::{
    Axis, AxisStates, Collective, CollectiveForm, CollectiveKind, ManualAxisState, Mesh, MeshSharding, Pcast, SentPart,
    Sharding, all_invariant_states,
};
use crate::refusal::TransformError;
use pallas_ir::{At, Diag, ScalarOp};
use std::collections::HashMap;
use std::sync::Arc;

/// The rule that types an identity operation in a body of `shard_map`: it gives the states (varying, invariant ..) of
/// its result. No method has a default.
pub(crate) trait IdentityAxisStateRule {
    /// Defines the states of the result of the identity `e`; `None` for a statement about whole arrays, which is
    /// refused in a body of `shard_map`.
    fn define_result_states(
        &self,
        typing: &mut AxisStateInference,
        to: &mut Graph,
        e: &mut Equation,
    ) -> Option<Result<(), Diag>>;
}

/// The states (varying, invariant, unreduced or reduced along each mesh axis) of the values of a graph under
/// construction, in which each device computes on its blocks.
#[derive(Clone, Debug)]
pub struct AxisStateInference {
    mesh: Arc<Mesh>,
    /// For each axis of the mesh, true if it is manual. Along other axes every value is invariant, and collectives over
    /// them belong to another body.
    manual: Vec<bool>,
    /// For each variable, its states; `None` if they are not defined yet.
    states: Vec<Option<AxisStates>>,
    /// For each variable, true if it depends on literals alone.
    constants: Vec<bool>,
    /// Casts made so far: by variable and wanted states, the variable in these states.
    casts: HashMap<(Var, AxisStates), Var>,
}

/// Returns the states of the blocks of an array with this sharding: varying along each axis that shards a dimension.
pub fn block_states(sharding: &Sharding, mesh: &Mesh) -> AxisStates {
    let mut states = all_invariant_states(mesh);
    sharding
        .dims
        .iter()
        .flat_map(|dim| &dim.axes)
        .for_each(|axis| states[usize::from(axis.id)] = ManualAxisState::Varying);
    states
}

/// Returns the graph with explicit casts along manual axes, and the states of its results. `is_manual` says for each
/// axis of the mesh whether it is manual; `param_states` are the states of the graph's parameters.
///
/// # Errors
/// An operation that the states of its operands do not admit.
pub fn insert_casts(
    graph: &Graph,
    mesh: &Arc<Mesh>,
    is_manual: &[bool],
    param_states: &[AxisStates],
) -> Result<(Graph, Vec<AxisStates>), TransformError> {
    let mut typing = AxisStateInference::new(mesh, is_manual);
    graph.params.iter().zip(param_states).for_each(|(&p, states)| typing.define_states(p, states.clone()));
    let mut to = graph.with_equations(vec![]);
    for e in &graph.equations {
        typing.push_with_casts(&mut to, e.clone())?;
    }
    let results = to.results.iter().map(|&r| typing.states(r)).collect();
    Ok((to, results))
}

/// Casts the results of a typed graph from the states `found` to the states `wanted`.
///
/// # Errors
/// The index of a result that no cast puts into its wanted states, and the mesh axis along which it fails.
pub fn cast_graph_results(
    graph: &mut Graph,
    mesh: &Arc<Mesh>,
    found: &[AxisStates],
    wanted: &[AxisStates],
) -> Result<(), (usize, usize)> {
    let mut typing = AxisStateInference::new(mesh, &vec![true; mesh.rank()]);
    for (i, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let v = graph.results[i];
        typing.define_states(v, found.clone());
        graph.results[i] = typing.cast_to_states(graph, v, wanted).map_err(|axis| (i, axis))?;
    }
    Ok(())
}

/// Returns the graph as devices run it: without `Pcast`s, which compute nothing.
#[must_use]
pub fn without_pcasts(graph: &Graph) -> Graph {
    let mut to = graph.with_equations(vec![]);
    let mut same: Vec<Var> = (0..graph.types.len() as u32).map(Var).collect();
    for e in &graph.equations {
        let mut e = e.clone();
        e.args.iter_mut().for_each(|a| *a = same[a.index()]);
        match &e.op {
            Op::Collective(Collective { kind: CollectiveKind::Pcast(_), .. }) => same[e.result().index()] = e.args[0],
            Op::Call(call) => {
                e.op = call.map_graphs(without_pcasts).into();
                to.equations.push(e);
            }
            _ => to.equations.push(e),
        }
    }
    to.results.iter_mut().for_each(|r| *r = same[r.index()]);
    to
}

/// Returns the states of a value that may come from either of two values (the carried value of a loop, the result of
/// branches). The error is the axis along which the states `a` and `b` cannot be joined.
pub(crate) fn join_states(a: &[ManualAxisState], b: &[ManualAxisState]) -> Result<AxisStates, usize> {
    let one = |(axis, (&a, &b)): (usize, (&ManualAxisState, &ManualAxisState))| match (a, b) {
        (a, b) if a == b => Ok(a),
        (
            ManualAxisState::Invariant | ManualAxisState::Reduced | ManualAxisState::Varying,
            ManualAxisState::Varying,
        )
        | (ManualAxisState::Varying, ManualAxisState::Invariant | ManualAxisState::Reduced) => {
            Ok(ManualAxisState::Varying)
        }
        _ => Err(axis),
    };
    a.iter().zip(b).enumerate().map(one).collect()
}

impl AxisStateInference {
    /// Returns an inference that knows no value yet, for bodies in which the mesh axes with `is_manual` true are
    /// manual.
    pub fn new(mesh: &Arc<Mesh>, is_manual: &[bool]) -> AxisStateInference {
        AxisStateInference {
            mesh: mesh.clone(),
            manual: is_manual.to_vec(),
            states: vec![],
            constants: vec![],
            casts: HashMap::new(),
        }
    }

    /// Returns the mesh along whose axes values have states.
    pub fn mesh(&self) -> &Arc<Mesh> {
        &self.mesh
    }

    /// Records the states (varying, invariant ..) that a variable has along the axes of the mesh.
    pub fn define_states(&mut self, v: Var, states: AxisStates) {
        self.define_states_and_constancy(v, states, false);
    }

    fn define_states_and_constancy(&mut self, v: Var, states: AxisStates, is_constant: bool) {
        if self.states.len() <= v.index() {
            self.states.resize(v.index() + 1, None);
            self.constants.resize(v.index() + 1, false);
        }
        (self.states[v.index()], self.constants[v.index()]) = (Some(states), is_constant);
    }

    /// Returns the states of a variable; invariant along all axes if none are recorded.
    pub fn states(&self, v: Var) -> AxisStates {
        self.states.get(v.index()).cloned().flatten().unwrap_or_else(|| all_invariant_states(&self.mesh))
    }

    fn is_constant(&self, v: Var) -> bool {
        self.constants.get(v.index()).copied().unwrap_or(false)
    }

    /// Returns a variable with the value of `v` in the states `wanted`, and appends the `Pcast`s that are needed.
    ///
    /// # Errors
    /// The axis along which no cast leads from the states of `v` to `wanted`.
    fn cast_to_states(&mut self, to: &mut Graph, v: Var, wanted: &[ManualAxisState]) -> Result<Var, usize> {
        let own = self.states(v);
        if own == wanted {
            return Ok(v);
        }
        let is_constant = self.is_constant(v);
        let admits = |from: ManualAxisState, to: ManualAxisState| match (from, to) {
            (from, to) if from == to => true,
            (ManualAxisState::Invariant | ManualAxisState::Reduced, ManualAxisState::Varying) => true,
            // The cotangent of a constant is never needed.
            (ManualAxisState::Invariant, ManualAxisState::Reduced) => is_constant,
            _ => false,
        };
        if let Some(axis) = (0..own.len()).find(|&axis| !admits(own[axis], wanted[axis])) {
            return Err(axis);
        }
        if let Some(&known) = self.casts.get(&(v, wanted.to_vec())) {
            return Ok(known);
        }
        let mut made = v;
        for (from, state) in [
            (ManualAxisState::Invariant, ManualAxisState::Varying),
            (ManualAxisState::Reduced, ManualAxisState::Varying),
            (ManualAxisState::Invariant, ManualAxisState::Reduced),
        ] {
            let axes: Vec<Axis> = (0..own.len())
                .filter(|&axis| own[axis] == from && wanted[axis] == state)
                .map(|axis| self.mesh.axis(axis))
                .collect();
            if !axes.is_empty() {
                made = self.push_cast(to, made, axes, from, state);
            }
        }
        self.casts.insert((v, wanted.to_vec()), made);
        self.define_states_and_constancy(made, wanted.to_vec(), is_constant);
        Ok(made)
    }

    /// Appends a `Pcast` of `v` along `axes`, from one state to another.
    fn push_cast(
        &mut self,
        to: &mut Graph,
        v: Var,
        axes: Vec<Axis>,
        from: ManualAxisState,
        target: ManualAxisState,
    ) -> Var {
        let kind = Pcast { from, to: target }.into();
        to.push_valid(Collective { kind, mesh: self.mesh.clone(), axes }, &[v])
    }

    /// Appends an equation after the casts that its operands need, and defines the states of its results.
    ///
    /// # Errors
    /// Operands in states (varying, unreduced ..) that the operation does not admit.
    pub fn push_with_casts(&mut self, to: &mut Graph, mut e: Equation) -> Result<(), TransformError> {
        let at = std::mem::replace(&mut to.at, e.loc);
        let loc = e.loc;
        let refused = |diag: Diag| TransformError { at: loc, diag };
        let result = match e.op.clone() {
            Op::Literal(_) => {
                self.define_states_and_constancy(e.result(), all_invariant_states(&self.mesh), true);
                Ok(())
            }
            Op::Collective(op) if self.is_over_manual_axes(&op) => {
                self.cast_collective_operand(to, &mut e, &op).map_err(refused)
            }
            Op::Call(call) => self.cast_call_operands(to, &mut e, &call),
            Op::Identity(op) => {
                let of_arrays = || {
                    let found = format!("`{}` inside of `shard_map`", op.data().jaxpr_name_and_param().0);
                    let help = "a body works on blocks: constrain operands or results of the `shard_map`, or name axes that it leaves \
                                automatic";
                    Err(shard_map_diag(found, help))
                };
                op.states().define_result_states(self, to, &mut e).unwrap_or_else(of_arrays).map_err(refused)
            }
            Op::Scalar(_) | Op::Structural(_) | Op::Dynamic(_) | Op::Collective(_) => {
                self.cast_to_joined_states(to, &mut e).map_err(refused)
            }
        };
        to.at = at;
        result?;
        to.equations.push(e);
        Ok(())
    }

    /// Returns true for a collective of this mesh over at least one manual axis.
    fn is_over_manual_axes(&self, op: &Collective) -> bool {
        op.mesh == self.mesh && op.axes.iter().any(|axis| self.manual[usize::from(axis.id)])
    }

    /// Returns true if the mesh has automatic axes and the sharding uses only these.
    pub(crate) fn is_on_automatic_axes(&self, sharding: &MeshSharding) -> bool {
        let Sharding { dims, replicated, unreduced } = &sharding.sharding;
        let mut all = dims.iter().flat_map(|dim| &dim.axes).chain(replicated).chain(unreduced);
        sharding.mesh == self.mesh && self.manual.contains(&false) && all.all(|axis| !self.manual[usize::from(axis.id)])
    }

    /// Defines the states of the result of a collective over manual axes, and casts its operand to the states that it
    /// needs.
    fn cast_collective_operand(&mut self, to: &mut Graph, e: &mut Equation, op: &Collective) -> Result<(), Diag> {
        let ids = op.axes.iter().map(|axis| usize::from(axis.id));
        let ids: Vec<usize> = ids.filter(|&axis| self.manual[axis]).collect();
        let mut states = e.args.first().map_or_else(|| all_invariant_states(&self.mesh), |&x| self.states(x));
        let refused = |axis: usize, state: ManualAxisState, help: &str| {
            let found = format!("`{}` of {} values over axis `{}`", op.name(), state_text(state), self.mesh.name(axis));
            Err(shard_map_diag(found, help))
        };
        let gives = match (&op.kind, op.first_member_form()) {
            (CollectiveKind::Pcast(Pcast { from, to: state }), _) => {
                for &axis in &ids {
                    // Derivatives may cast a cotangent that is equal on all devices.
                    match (states[axis], from) {
                        (own, from) if own == *from => {}
                        (ManualAxisState::Invariant, ManualAxisState::Varying) => {
                            states[axis] = ManualAxisState::Varying
                        }
                        (own, from) => {
                            let help = format!("it is for {} values", state_text(*from));
                            return refused(axis, own, &help);
                        }
                    }
                }
                *state
            }
            (_, CollectiveForm::Own) => unreachable!("a cast alone exchanges nothing"),
            (_, CollectiveForm::Constant(_)) => ManualAxisState::Varying,
            (_, CollectiveForm::Stack(_) | CollectiveForm::FromMember(_)) => {
                for &axis in &ids {
                    match states[axis] {
                        ManualAxisState::Invariant | ManualAxisState::Varying => {
                            states[axis] = ManualAxisState::Varying
                        }
                        own => return refused(axis, own, "reduce parts of a sum first: `psum`"),
                    }
                }
                ManualAxisState::Varying
            }
            (_, CollectiveForm::Fold(monoid, piece)) => {
                let mut parts = vec![];
                for &axis in &ids {
                    match states[axis] {
                        ManualAxisState::Invariant | ManualAxisState::Varying => {
                            states[axis] = ManualAxisState::Varying
                        }
                        ManualAxisState::Unreduced if monoid == ScalarOp::Add => parts.push(self.mesh.axis(axis)),
                        own => return refused(axis, own, "only a sum combines parts of a sum"),
                    }
                }
                if !parts.is_empty() {
                    let x = self.push_cast(
                        to,
                        e.args[0],
                        parts.clone(),
                        ManualAxisState::Unreduced,
                        ManualAxisState::Varying,
                    );
                    parts.iter().for_each(|axis| states[usize::from(axis.id)] = ManualAxisState::Varying);
                    self.define_states(x, states.clone());
                    e.args[0] = x;
                }
                if piece == SentPart::Whole { ManualAxisState::Invariant } else { ManualAxisState::Varying }
            }
        };
        if let Some(x) = e.args.first_mut() {
            *x = self.cast_to_states(to, *x, &states).map_err(|axis| {
                shard_map_diag(format!("an operand over axis `{}`", self.mesh.name(axis)), "see the operation's states")
            })?;
        }
        ids.iter().for_each(|&axis| states[axis] = gives);
        self.define_states(e.result(), states);
        Ok(())
    }
}

/// Returns the word for a state in messages.
pub(crate) fn state_text(state: ManualAxisState) -> &'static str {
    match state {
        ManualAxisState::Invariant => "equal",
        ManualAxisState::Varying => "varying",
        ManualAxisState::Unreduced => "unreduced",
        ManualAxisState::Reduced => "reduced",
    }
}

fn shard_map_diag(message: String, help: impl Into<String>) -> Diag {
    Diag::new("shard_map", At::Op, message, help)
}
