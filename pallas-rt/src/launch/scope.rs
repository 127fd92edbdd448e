//! What the calls of kernels inside of a closure do: run, or be looked at; where, and where their results lie.
//!
//! `explain`, `cost`, `check`, `into`, `on` and the tuner set the scope of a thread while they run a closure. A call reads it once,
//! at its beginning, and hands it down; nothing below `launch` knows of it.
use super::inspect::Explained;
use super::tune::Tuning;
use crate::{Array, Client};
#[cfg(test)]
use pallas_ir::Kernel;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// The scope of a call.
#[derive(Default)]
pub(super) struct Scope {
    pub purpose: Rc<Purpose>,
    /// Arrays of the caller of `into`, for the outputs of the first call that they fit.
    pub lent: RefCell<Vec<Array>>,
    /// The client of calls without arrays.
    client: RefCell<Option<Client>>,
}

impl Scope {
    /// The client that the innermost [`on`] chose.
    pub(super) fn client(&self) -> Option<Client> {
        self.client.borrow().clone()
    }
}

/// What a call is for.
#[derive(Default)]
pub(super) enum Purpose {
    /// Its results.
    #[default]
    Run,
    /// Its results, compared with the interpreter's; counts the calls that agreed.
    Check(Cell<usize>),
    /// A description. No call runs.
    Explain { kernels: RefCell<Vec<Explained>>, tuning: RefCell<Option<Arc<Tuning>>> },
    /// The traced kernels as text. No call runs.
    Trace(RefCell<String>),
    /// The most memory that a launch takes besides its arrays. No call runs.
    Memory(Cell<u64>),
    /// The kernels as traced and as lowered. No call runs.
    #[cfg(test)]
    Compile(RefCell<Vec<[Arc<Kernel>; 2]>>),
}

impl Purpose {
    /// Whether calls are looked at instead of run.
    pub(super) fn intercepts(&self) -> bool {
        !matches!(self, Purpose::Run | Purpose::Check(_))
    }
}

thread_local! {
    static CURRENT: RefCell<Rc<Scope>> = RefCell::default();
}

/// The scope of the calls that this thread makes now.
pub(super) fn current() -> Rc<Scope> {
    CURRENT.with_borrow(Rc::clone)
}

/// Runs `f` in a scope; the outer one is back afterwards, also after a panic.
fn within<R>(scope: Rc<Scope>, f: impl FnOnce() -> R) -> R {
    struct Restore(Rc<Scope>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.with_borrow_mut(|current| std::mem::swap(current, &mut self.0));
        }
    }
    let _outer = Restore(CURRENT.replace(scope));
    f()
}

/// Runs `f` for a purpose. Arrays on loan are for calls that run.
pub(super) fn purposed<R>(purpose: Purpose, f: impl FnOnce() -> R) -> (R, Purpose) {
    let purpose = Rc::new(purpose);
    // A check compares the results of the calls themselves, wherever those lie.
    let lent = match *purpose {
        Purpose::Check(_) => current().lent.take(),
        _ => vec![],
    };
    let scope = Rc::new(Scope { purpose: purpose.clone(), lent: RefCell::new(lent), client: current().client.clone() });
    let result = within(scope.clone(), f);
    drop(scope);
    let purpose = Rc::into_inner(purpose).expect("a scope ends with its closure");
    (result, purpose)
}

/// Runs `f` with arrays on loan for the outputs of a call.
pub(super) fn lending<R>(lent: Vec<Array>, f: impl FnOnce() -> R) -> R {
    let outer = current();
    let (purpose, client) = (outer.purpose.clone(), outer.client.clone());
    drop(outer);
    within(Rc::new(Scope { purpose, lent: RefCell::new(lent), client }), f)
}

/// Runs `f` with every kernel that it calls on this thread on `client`.
///
/// A kernel runs where its arrays live; one without inputs runs on the client of the innermost `on` around it, else on
/// that of [`Client::from_env`]. Inside of `on` an array of another client is
/// [`Error::ForeignClient`](crate::Error::ForeignClient). Arrays are made as ever: `client.array(..)`.
///
/// ```
/// use pallas_rt::prelude::*;
///
/// #[kernel(grid = (cdiv(N, 8)))]
/// fn count(#[dim] N: usize, #[block([N] => [8], |i| (i,))] out: Out<i32>) {
///     out.store(iota::<i32>([8], 0) + program_id(0) * 8);
/// }
/// let client = Client::cpu();
/// let x = on(&client, || count(5))?;
/// assert_eq!(x.client(), &client);
/// assert_eq!(x.to_vec::<i32>()?, [0, 1, 2, 3, 4]);
/// # Ok::<(), Error>(())
/// ```
pub fn on<R>(client: &Client, f: impl FnOnce() -> R) -> R {
    struct Restore(Rc<Scope>, Option<Client>);
    impl Drop for Restore {
        fn drop(&mut self) {
            self.0.client.replace(self.1.take());
        }
    }
    let scope = current();
    let outer = scope.client.replace(Some(client.clone()));
    let _restore = Restore(scope, outer);
    f()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_its_scope() {
        let caught = std::panic::catch_unwind(|| purposed(Purpose::Trace(RefCell::default()), || panic!("on purpose")));
        assert!(caught.is_err());
        assert!(!current().purpose.intercepts(), "the outer scope is back");
    }
}
