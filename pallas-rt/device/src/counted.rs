//! Counters for tests, per thread, which show that work is linear.
use std::cell::Cell;

thread_local! {
    /// Number of actions that this thread visited to compute the totals of sequences; tests read it.
    pub static VISITED_ACTIONS: Cell<usize> = const { Cell::new(0) };
}
