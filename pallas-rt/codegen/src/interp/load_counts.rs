//! Counts of the elements that interpreted kernels load; tests use them to show that a block is not read.
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Number of elements loaded from each input, by kernel and operand.
pub type LoadCounts = BTreeMap<(String, String), u64>;

thread_local! {
    /// Counts of this thread, while [`count_loads`] runs.
    static LOAD_COUNTS: RefCell<Option<LoadCounts>> = const { RefCell::new(None) };
}

/// Runs `f`, and returns with its result how many elements the kernels that this thread runs on the interpreter load
/// from each input. Elements outside of the array and masked elements are not counted.
pub fn count_loads<R>(f: impl FnOnce() -> R) -> (R, LoadCounts) {
    /// Restores the counts of an enclosing call when it is dropped, also by a panic.
    struct LoadCountsGuard(Option<LoadCounts>);
    impl Drop for LoadCountsGuard {
        fn drop(&mut self) {
            LOAD_COUNTS.replace(self.0.take());
        }
    }
    let _outer = LoadCountsGuard(LOAD_COUNTS.replace(Some(LoadCounts::new())));
    let result = f();
    (result, LOAD_COUNTS.take().unwrap_or_default())
}

/// Counts a load, if the thread counts loads.
pub(super) fn count_load(kernel: &str, operand: &str, elements: impl FnOnce() -> usize) {
    LOAD_COUNTS.with_borrow_mut(|loads| {
        if let Some(loads) = loads {
            *loads.entry((kernel.into(), operand.into())).or_default() += elements() as u64;
        }
    });
}
