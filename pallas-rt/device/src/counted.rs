//! Counts for tests, by thread: they show that work is linear.
use std::cell::Cell;

thread_local! {
    /// Actions of sequences that were looked at while their work was added up.
    pub static VISITED: Cell<usize> = const { Cell::new(0) };
}
