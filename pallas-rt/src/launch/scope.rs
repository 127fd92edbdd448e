//! The scope of the calls of kernels inside of a closure: whether they run or are looked at, where, and where their
//! results lie.
//!
//! `explain`, `cost`, `check`, `into`, `on` and the tuner set the scope of a thread while they run a closure. A call
//! reads it once, at its beginning, and hands it down; nothing below `launch` knows of it.
use super::inspect::Notes;
use crate::{Array, Client};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The scope of a call.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub purpose: Purpose,
    /// Arrays of the caller of `into`, for the outputs of the first call that they fit.
    pub lent: Rc<RefCell<Vec<Array>>>,
    /// The client that the innermost [`on`] chose, for calls without arrays.
    pub client: Option<Client>,
}

/// The purpose of a call.
#[derive(Clone, Default)]
pub(super) enum Purpose {
    /// Its results.
    #[default]
    Run,
    /// Its results, compared with the interpreter's; counts the calls that agreed.
    Check(Rc<Cell<usize>>),
    /// A description of its kernel. No call runs.
    Look(Rc<RefCell<Notes>>),
}

impl Purpose {
    /// Is true if calls are looked at instead of run.
    pub(super) fn intercepts(&self) -> bool {
        matches!(self, Purpose::Look(_))
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
fn within<R>(scope: Scope, f: impl FnOnce() -> R) -> R {
    struct Restore(Rc<Scope>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.with_borrow_mut(|current| std::mem::swap(current, &mut self.0));
        }
    }
    let _outer = Restore(CURRENT.replace(Rc::new(scope)));
    f()
}

/// Runs `f` for a purpose. Arrays on loan are for calls that run.
pub(super) fn purposed<R>(purpose: Purpose, f: impl FnOnce() -> R) -> R {
    let outer = Scope::clone(&current());
    // A check compares the results of the calls themselves, wherever those lie.
    let lent = if matches!(purpose, Purpose::Check(_)) { outer.lent } else { Rc::default() };
    within(Scope { purpose, lent, client: outer.client }, f)
}

/// Runs `f` with arrays on loan for the outputs of a call.
pub(super) fn lending<R>(lent: Vec<Array>, f: impl FnOnce() -> R) -> R {
    within(Scope { lent: Rc::new(RefCell::new(lent)), ..Scope::clone(&current()) }, f)
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
    within(Scope { client: Some(client.clone()), ..Scope::clone(&current()) }, f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_its_scope() {
        let caught = std::panic::catch_unwind(|| purposed(Purpose::Look(Rc::default()), || panic!("on purpose")));
        assert!(caught.is_err());
        assert!(!current().purpose.intercepts(), "the outer scope is back");
    }
}
