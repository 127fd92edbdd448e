//! The names of axes that are bound in a function: the axes of the mesh in a body of `shard_map`.
use crate::error::{Error, Result};
use pallas_graph::mesh::{self, Axis, Mesh, State, States};
use pallas_ir::{At, Diag, Loc};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

/// Axes that a function binds.
#[derive(Clone)]
struct Scope {
    mesh: Arc<Mesh>,
}

thread_local! {
    /// Innermost last.
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(vec![]) };
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

/// Binds the axes of the mesh of a `shard_map`.
pub(super) fn bind(mesh: &Arc<Mesh>) -> Binding {
    SCOPES.with_borrow_mut(|scopes| {
        scopes.push(Scope { mesh: mesh.clone() });
        Binding { depth: scopes.len() - 1, _not_send: PhantomData }
    })
}

/// The mesh of the innermost `shard_map`.
pub(super) fn manual() -> Option<Arc<Mesh>> {
    SCOPES.with_borrow(|scopes| scopes.last().map(|scope| scope.mesh.clone()))
}

/// Returns true inside of a function that binds axes.
pub(super) fn are_bound() -> bool {
    SCOPES.with_borrow(|scopes| !scopes.is_empty())
}

/// The states of a value that is made outside; `None` where no axis is bound.
pub(super) fn invariant() -> Option<States> {
    manual().map(|mesh| mesh::invariant(&mesh))
}

/// Axes that are bound.
pub(crate) struct BoundAxes {
    pub mesh: Arc<Mesh>,
    pub axes: Vec<Axis>,
}

/// The axes with these names.
///
/// # Errors
/// A name that nothing binds; a name twice; no name.
pub(crate) fn find(names: &[&str], at: Loc) -> Result<BoundAxes> {
    let wrong = |found: String, help: &str| Error::operation(at, Diag::new("axis-name", At::Op, found, help));
    let Some(mesh) = manual() else {
        let found = format!("axis {}, which nothing binds", quoted(names));
        return Err(wrong(found, "collectives are for functions that `shard_map` calls on each device of a mesh"));
    };
    let mut axes: Vec<Axis> = vec![];
    for name in names {
        let axis = mesh.find(name).map_err(|diag| Error::operation(at, diag))?;
        if axes.contains(&axis) {
            return Err(wrong(format!("axis `{name}` twice"), "name each axis once"));
        }
        axes.push(axis);
    }
    match axes.is_empty() {
        true => Err(wrong("a collective over no axis".into(), "name at least one axis")),
        false => Ok(BoundAxes { mesh, axes }),
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
