//! The names of axes that are bound in a function: the axes of the mesh in a body of `shard_map`, the axis of the batch in a
//! function of `vmap`.
use crate::error::{Error, Result};
use pallas_graph::mesh::{self, Axis, Mesh, State, States};
use pallas_ir::{At, Diag, Loc};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

thread_local! {
    /// By function that binds axes, their mesh; the innermost function is the last one.
    static SCOPES: RefCell<Vec<Arc<Mesh>>> = const { RefCell::new(vec![]) };
}

/// Axes stay bound until it is dropped.
pub(super) struct Binding {
    depth: usize,
    /// Scopes belong to a thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for Binding {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| scopes.truncate(self.depth));
    }
}

/// Binds the axes of the mesh of a `shard_map`, or the axis of a batch.
///
/// # Errors
/// A name that a `shard_map` around binds for a batch, or a `vmap` around for a mesh.
pub(super) fn bind(mesh: &Arc<Mesh>, at: Loc) -> Result<Binding> {
    SCOPES.with_borrow_mut(|scopes| {
        for axis in 0..mesh.rank() {
            let name = mesh.name(axis);
            let of_other_kind = |scope: &&Arc<Mesh>| scope.is_batch() != mesh.is_batch() && scope.find(name).is_ok();
            if let Some(scope) = scopes.iter().find(of_other_kind) {
                let [what, other] = if scope.is_batch() { ["shard_map", "vmap"] } else { ["vmap", "shard_map"] };
                let found = format!("`{what}` over axis `{name}`, which a `{other}` around it binds");
                let diag = Diag::new("axis-name", At::Op, found, "give the axis of the `vmap` another name");
                return Err(Error::operation(at, diag));
            }
        }
        scopes.push(mesh.clone());
        Ok(Binding { depth: scopes.len() - 1, _not_send: PhantomData })
    })
}

/// The mesh of the innermost `shard_map`.
pub(super) fn manual() -> Option<Arc<Mesh>> {
    SCOPES.with_borrow(|scopes| scopes.iter().rfind(|scope| !scope.is_batch()).cloned())
}

/// Returns true inside of a function that binds axes.
pub(super) fn are_bound() -> bool {
    SCOPES.with_borrow(|scopes| !scopes.is_empty())
}

/// The states of a value that is made outside; `None` outside of a `shard_map`.
pub(super) fn invariant() -> Option<States> {
    manual().map(|mesh| mesh::invariant(&mesh))
}

/// Axes that are bound, in the order of a collective: those of one mesh that follow each other.
pub(crate) struct Run {
    pub mesh: Arc<Mesh>,
    pub axes: Vec<Axis>,
}

/// Axes that are bound.
pub(crate) struct BoundAxes {
    pub runs: Vec<Run>,
}

impl BoundAxes {
    /// The axes of the mesh of a `shard_map`.
    pub(crate) fn manual(&self) -> Vec<(&Mesh, Axis)> {
        let runs = self.runs.iter().filter(|run| !run.mesh.is_batch());
        runs.flat_map(|run| run.axes.iter().map(|&axis| (&*run.mesh, axis))).collect()
    }
}

/// The axes with these names.
///
/// # Errors
/// A name that nothing binds; a name twice; no name.
pub(crate) fn find(names: &[&str], at: Loc) -> Result<BoundAxes> {
    let wrong = |found: String, help: &str| Err(Error::operation(at, Diag::new("axis-name", At::Op, found, help)));
    let scopes = SCOPES.with_borrow(Vec::clone);
    let mut runs: Vec<Run> = vec![];
    for (i, name) in names.iter().enumerate() {
        if names[..i].contains(name) {
            return wrong(format!("axis `{name}` twice"), "name each axis once");
        }
        let found = scopes.iter().rev().find_map(|mesh| Some((mesh, mesh.find(name).ok()?)));
        let Some((mesh, axis)) = found else {
            let known = scopes.iter().flat_map(|mesh| (0..mesh.rank()).map(|axis| mesh.name(axis)));
            let known: Vec<&str> = known.collect();
            let help = match known.is_empty() {
                true => "collectives are for functions that `shard_map` calls on each device of a mesh, or a `vmap` with the \
                         name of an axis"
                    .to_string(),
                false => format!("bound here: {}", quoted(&known)),
            };
            return wrong(format!("axis `{name}`, which nothing binds"), &help);
        };
        match runs.last_mut() {
            Some(run) if Arc::ptr_eq(&run.mesh, mesh) => run.axes.push(axis),
            _ => runs.push(Run { mesh: mesh.clone(), axes: vec![axis] }),
        }
    }
    if runs.is_empty() {
        wrong("a collective over no axis".into(), "name at least one axis")
    } else {
        Ok(BoundAxes { runs })
    }
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// The axes along which a value is not equal on all devices, in words.
pub(super) fn text(states: &[State]) -> String {
    let Some(mesh) = manual() else { return "equal on all devices".into() };
    let other = |(axis, state): (usize, &State)| match state {
        State::Invariant => None,
        state => Some(format!("{} over `{}`", state.name(), mesh.name(axis))),
    };
    let all: Vec<String> = states.iter().enumerate().filter_map(other).collect();
    if all.is_empty() { "equal on all devices".into() } else { all.join(" and ") }
}
