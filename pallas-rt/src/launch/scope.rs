//! The scope of the kernel calls inside of a closure: whether they run or are only recorded, on which client they run,
//! and where their results are stored.
//!
//! `explain`, `cost`, `check`, `into`, `on` and the tuner set the scope of a thread while they run a closure. A call
//! reads it once, at its start, and passes it on; no module below `launch` reads it.
use super::notes::Notes;
use crate::{Array, Client};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The scope of a kernel's call.
#[derive(Clone, Default)]
pub(super) struct Scope {
    pub purpose: Purpose,
    /// Arrays of the caller of `into`, for the outputs of the first call whose outputs they fit.
    pub lent: Rc<RefCell<Vec<Array>>>,
    /// The client that the innermost [`on`] chose, for calls without arrays.
    pub client: Option<Client>,
}

/// The purpose of a call.
#[derive(Clone, Default)]
pub(super) enum Purpose {
    /// Kernels run for their results.
    #[default]
    Run,
    /// Kernels run, and their results are compared with the interpreter's; counts the calls that agreed.
    Check(Rc<Cell<usize>>),
    /// Kernels do not run: their calls are recorded, to be described.
    Look(Rc<RefCell<Notes>>),
}

impl Purpose {
    /// Returns true if calls are recorded instead of run.
    pub(super) fn intercepts(&self) -> bool {
        matches!(self, Purpose::Look(_))
    }
}

thread_local! {
    static CURRENT: RefCell<Rc<Scope>> = RefCell::default();
}

/// Returns the current scope of this thread.
pub(super) fn current() -> Rc<Scope> {
    CURRENT.with_borrow(Rc::clone)
}

/// Runs `f` in a scope. The outer scope is restored afterwards, also after a panic.
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

/// Runs `f`, whose kernel calls have this purpose. Lent arrays are only for calls that run.
pub(super) fn purposed<R>(purpose: Purpose, f: impl FnOnce() -> R) -> R {
    let outer = Scope::clone(&current());
    // A check compares the results of the calls, which may be in lent arrays.
    let lent = if matches!(purpose, Purpose::Check(_)) { outer.lent } else { Rc::default() };
    within(Scope { purpose, lent, client: outer.client }, f)
}

/// Runs `f` with arrays lent for the outputs of the first call that they fit.
pub(super) fn lending<R>(lent: Vec<Array>, f: impl FnOnce() -> R) -> R {
    within(Scope { lent: Rc::new(RefCell::new(lent)), ..Scope::clone(&current()) }, f)
}

/// Runs `f` and returns its result; every kernel that it calls on this thread runs on `client`.
///
/// A kernel runs on the client of its arrays; one without inputs runs on the client of the innermost `on`, else on that
/// of [`Client::from_env`]. Inside of `on` an array of another client is an error,
/// [`Error::ForeignClient`](crate::Error::ForeignClient). `on` does not affect where arrays are made: use
/// `client.array(..)`.
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

/// Returns true if kernels of this thread are called for their results alone, not inside of `explain`, `cost`, `check` or
/// `into`. A function may then compute its result in another way than by a kernel.
///
/// ```
/// use pallas_rt::launch::calls_run;
/// assert!(calls_run());
/// ```
pub fn calls_run() -> bool {
    let scope = current();
    matches!(scope.purpose, Purpose::Run) && scope.lent.borrow().is_empty()
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
