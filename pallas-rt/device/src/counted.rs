//! Counters for tests, per thread, which show that work is linear.
use std::cell::Cell;

thread_local! {
    /// Number of actions visited while the work of sequences was added up.
    pub static VISITED_ACTIONS: Cell<usize> = const { Cell::new(0) };
}
