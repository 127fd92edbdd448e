//! The names of axes that are bound in a function: the axes of the mesh in a body of `shard_map`, the axis of the batch
//! in a function of `vmap`.
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::{self, Axis, AxisStates, ManualAxisState, Mesh};
use pallas_ir::{At, Diag, Loc};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// Names of axes: `"data"`, or `["data", "model"]`.
pub trait AxisNames {
    /// The names, that of the slowest axis first.
    fn names(&self) -> Vec<&str>;
}

impl AxisNames for &str {
    fn names(&self) -> Vec<&str> {
        vec![self]
    }
}

impl<const N: usize> AxisNames for [&str; N] {
    fn names(&self) -> Vec<&str> {
        self.to_vec()
    }
}

impl AxisNames for &[&str] {
    fn names(&self) -> Vec<&str> {
        self.to_vec()
    }
}

/// Axes that a function binds: some of a mesh, or the axis of a batch.
#[derive(Clone)]
struct AxisScope {
    mesh: Arc<Mesh>,
    /// By axis of the mesh, true if it is bound.
    binds: Vec<bool>,
}

impl AxisScope {
    /// The bound axis with a name.
    fn find_axis(&self, name: &str) -> Option<Axis> {
        self.mesh.find(name).ok().filter(|axis| self.binds[usize::from(axis.id)])
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        (0..self.mesh.rank()).filter(|&axis| self.binds[axis]).map(|axis| self.mesh.name(axis))
    }
}

thread_local! {
    /// The scopes on this thread; that of the innermost function is the last one.
    static AXIS_SCOPES: RefCell<Vec<AxisScope>> = const { RefCell::new(vec![]) };
}

/// Guard that [`bind_axes`] returns: the axes stay bound on this thread until it is dropped.
pub(super) struct AxisBinding {
    depth: usize,
    /// Scopes belong to a thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for AxisBinding {
    fn drop(&mut self) {
        AXIS_SCOPES.with_borrow_mut(|scopes| scopes.truncate(self.depth));
    }
}

/// Binds axes on this thread: those of the mesh of a `shard_map` for which `bound_mask` is true, or the axis of a
/// batch.
///
/// # Errors
/// A name that a `shard_map` around binds if this is the axis of a batch, or that a `vmap` around binds if this is an
/// axis of a mesh.
pub(super) fn bind_axes(mesh: &Arc<Mesh>, bound_mask: &[bool], at: Loc) -> Result<AxisBinding> {
    AXIS_SCOPES.with_borrow_mut(|scopes| {
        let scope = AxisScope { mesh: mesh.clone(), binds: bound_mask.to_vec() };
        for name in scope.names() {
            let is_batch = |scope: &AxisScope| scope.mesh.is_batch();
            let of_other_kind =
                |other: &&AxisScope| is_batch(other) != mesh.is_batch() && other.find_axis(name).is_some();
            if let Some(other) = scopes.iter().find(of_other_kind) {
                let [what, other] = if is_batch(other) { ["shard_map", "vmap"] } else { ["vmap", "shard_map"] };
                let found = format!("`{what}` over axis `{name}`, which a `{other}` around it binds");
                let diag = Diag::new("axis-name", At::Op, found, "give the axis of the `vmap` another name");
                return Err(Error::operation(at, diag));
            }
        }
        scopes.push(scope);
        Ok(AxisBinding { depth: scopes.len() - 1, _not_send: PhantomData })
    })
}

/// Returns the mesh of the innermost `shard_map` on this thread, and by axis of it true if any `shard_map` around binds
/// the axis; `None` outside of a `shard_map`.
pub(crate) fn innermost_mesh_and_manual_axes() -> Option<(Arc<Mesh>, Vec<bool>)> {
    AXIS_SCOPES.with_borrow(|scopes| {
        let of_mesh = || scopes.iter().filter(|scope| !scope.mesh.is_batch());
        let mesh = of_mesh().next_back()?.mesh.clone();
        let binds = |axis: usize| of_mesh().any(|scope| scope.binds[axis]);
        let all = (0..mesh.rank()).map(binds).collect();
        Some((mesh, all))
    })
}

/// Returns true while this thread traces a function that binds axis names: the body of a `shard_map`, or a `vmap` whose
/// axis has a name.
pub(super) fn has_bound_axes() -> bool {
    AXIS_SCOPES.with_borrow(|scopes| !scopes.is_empty())
}

/// Returns for each axis of the mesh of the innermost `shard_map` the state "invariant" (equal on all devices), which
/// values from outside of its body have; `None` outside of such a body.
pub(super) fn all_invariant_states() -> Option<AxisStates> {
    innermost_mesh_and_manual_axes().map(|(mesh, _)| mesh::all_invariant_states(&mesh))
}

/// Bound axes of the same mesh that are adjacent in a collective's list of axes.
pub(crate) struct SameMeshAxes {
    pub mesh: Arc<Mesh>,
    pub axes: Vec<Axis>,
}

/// The axes of a collective, as runs of axes of one mesh, in order.
pub(crate) struct BoundAxes {
    pub runs: Vec<SameMeshAxes>,
}

impl BoundAxes {
    /// Returns the axes that a `shard_map` binds, with their meshes; axes of a `vmap` are left out.
    pub(crate) fn manual_axes(&self) -> Vec<(&Mesh, Axis)> {
        let runs = self.runs.iter().filter(|run| !run.mesh.is_batch());
        runs.flat_map(|run| run.axes.iter().map(|&axis| (&*run.mesh, axis))).collect()
    }
}

/// Finds the bound axes with these names; the innermost function that binds a name counts.
///
/// # Errors
/// A name that nothing binds; a name twice; no name.
pub(crate) fn find_bound_axes(names: &[&str], at: Loc) -> Result<BoundAxes> {
    let wrong = |found: String, help: &str| Err(Error::operation(at, Diag::new("axis-name", At::Op, found, help)));
    let scopes = AXIS_SCOPES.with_borrow(Vec::clone);
    let mut runs: Vec<SameMeshAxes> = vec![];
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            return wrong(format!("axis `{name}` twice"), "name each axis once");
        }
        let found = scopes.iter().rev().find_map(|scope| Some((&scope.mesh, scope.find_axis(name)?)));
        let Some((mesh, axis)) = found else {
            if scopes.iter().any(|scope| scope.mesh.find(name).is_ok()) {
                let found = format!("axis `{name}`, along which the body is not manual");
                return wrong(
                    found,
                    "name it among the `axis_names` of the `shard_map`, or leave what is along it to the compiler",
                );
            }
            let known: Vec<&str> = scopes.iter().flat_map(AxisScope::names).collect();
            let help = match known.is_empty() {
                true => "collectives are for functions that `shard_map` calls on each device of a mesh, or a `vmap` with the \
                         name of an axis"
                    .to_string(),
                false => format!("bound here: {}", quote_names(&known)),
            };
            return wrong(format!("axis `{name}`, which nothing binds"), &help);
        };
        match runs.last_mut() {
            Some(run) if run.mesh == *mesh => run.axes.push(axis),
            _ => runs.push(SameMeshAxes { mesh: mesh.clone(), axes: vec![axis] }),
        }
    }
    if runs.is_empty() {
        wrong("a collective over no axis".into(), "name at least one axis")
    } else {
        Ok(BoundAxes { runs })
    }
}

fn quote_names(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Describes for messages the state of a value along each axis where devices may differ, as in ``varying over `x` ``;
/// "equal on all devices" if there is none.
pub(super) fn describe_varying_axes(states: &[ManualAxisState]) -> String {
    let Some((mesh, _)) = innermost_mesh_and_manual_axes() else { return "equal on all devices".into() };
    let other = |(axis, state): (usize, &ManualAxisState)| match state {
        ManualAxisState::Invariant => None,
        state => Some(format!("{} over `{}`", state.name(), mesh.name(axis))),
    };
    let all: Vec<String> = states.iter().enumerate().filter_map(other).collect();
    if all.is_empty() { "equal on all devices".into() } else { all.join(" and ") }
}
