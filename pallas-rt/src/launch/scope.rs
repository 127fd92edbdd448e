//! The scope of the kernel calls inside of a closure: whether they run or are only recorded, on which client they run,
//! and where their results are stored.
//!
//! `explain`, `cost`, `check`, `into`, `on` and the tuner set the scope of a thread while they run a closure. A call
//! reads it once, at its start, and passes it on; no module below `launch` reads it.
use super::recorded_calls::RecordedCalls;
use crate::{Array, Client};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Settings of the calls of kernels that a closure makes on this thread: purpose, lent outputs and client.
#[derive(Clone, Default)]
pub(super) struct CallScope {
    pub purpose: CallPurpose,
    /// Arrays of the caller of `into`, for the outputs of the first call whose outputs they fit.
    pub lent: Rc<RefCell<Vec<Array>>>,
    /// The client that the innermost [`on`] chose, for calls without arrays.
    pub client: Option<Client>,
}

/// Treatment of the calls of kernels: run, compared with the interpreter, or only recorded.
#[derive(Clone, Default)]
pub(super) enum CallPurpose {
    /// Kernels run for their results.
    #[default]
    Run,
    /// Kernels run, and their results are compared with the interpreter's; counts the calls that agreed.
    Check(Rc<Cell<usize>>),
    /// Kernels do not run: their calls are recorded, to be described.
    Record(Rc<RefCell<RecordedCalls>>),
}

impl CallPurpose {
    /// Returns true if calls are recorded instead of run.
    pub(super) fn is_recording(&self) -> bool {
        matches!(self, CallPurpose::Record(_))
    }
}

thread_local! {
    static CURRENT_CALL_SCOPE: RefCell<Rc<CallScope>> = RefCell::default();
}

/// Returns the settings for kernel calls (purpose, lent outputs, client) that hold on this thread now.
pub(super) fn current_call_scope() -> Rc<CallScope> {
    CURRENT_CALL_SCOPE.with_borrow(Rc::clone)
}

/// Runs `f` in a scope. The outer scope is restored afterwards, also after a panic.
fn run_in_call_scope<R>(scope: CallScope, f: impl FnOnce() -> R) -> R {
    struct RestoreScope(Rc<CallScope>);
    impl Drop for RestoreScope {
        fn drop(&mut self) {
            CURRENT_CALL_SCOPE.with_borrow_mut(|current| std::mem::swap(current, &mut self.0));
        }
    }
    let _outer = RestoreScope(CURRENT_CALL_SCOPE.replace(Rc::new(scope)));
    f()
}

/// Runs `f`, whose kernel calls have this purpose. Lent arrays are only for calls that run.
pub(super) fn run_with_purpose<R>(purpose: CallPurpose, f: impl FnOnce() -> R) -> R {
    let outer = CallScope::clone(&current_call_scope());
    // A check compares the results of the calls, which may be in lent arrays.
    let lent = if matches!(purpose, CallPurpose::Check(_)) { outer.lent } else { Rc::default() };
    run_in_call_scope(CallScope { purpose, lent, client: outer.client }, f)
}

/// Runs `f`, while the first kernel call in it whose outputs fit may write them to the memory of the arrays `outputs`.
pub(super) fn run_with_lent_outputs<R>(outputs: Vec<Array>, f: impl FnOnce() -> R) -> R {
    run_in_call_scope(CallScope { lent: Rc::new(RefCell::new(outputs)), ..CallScope::clone(&current_call_scope()) }, f)
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
    run_in_call_scope(CallScope { client: Some(client.clone()), ..CallScope::clone(&current_call_scope()) }, f)
}

/// Returns true if kernels of this thread are called for their results alone, not inside of `explain`, `cost`, `check`
/// or `into`. A function may then compute its result in another way than by a kernel.
///
/// ```
/// use pallas_rt::launch::calls_run;
/// assert!(calls_run());
/// ```
pub fn calls_run() -> bool {
    let scope = current_call_scope();
    matches!(scope.purpose, CallPurpose::Run) && scope.lent.borrow().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_its_scope() {
        let caught =
            std::panic::catch_unwind(|| run_with_purpose(CallPurpose::Record(Rc::default()), || panic!("on purpose")));
        assert!(caught.is_err());
        assert!(!current_call_scope().purpose.is_recording(), "the outer scope is back");
    }
}
