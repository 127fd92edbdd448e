//! Counts of the elements that interpreted kernels load, which show that a block was not read.
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Elements loaded from inputs, by kernel and operand.
pub type Loads = BTreeMap<(String, String), u64>;

thread_local! {
    static LOADS: RefCell<Option<Loads>> = const { RefCell::new(None) };
}

/// Runs `f` and counts the elements that kernels on the interpreter, called by this thread, load from each input. Elements
/// outside of the array and masked elements are not counted.
///
/// ```
/// use pallas_rt::prelude::*;
///
/// #[kernel(grid = (2))]
/// fn firsts(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([M] => [1], |i| (i,))] out: Out<f32>, #[dim] M: usize) {
///     out.store(x.at(ds(0, 1)).load());
/// }
/// let x = Client::interpreter().full(&[8], 1.0f32)?;
/// let (y, loads) = pallas_rt::loads(|| firsts(&x, 2));
/// assert_eq!(y?.to_vec::<f32>()?, [1.0, 1.0]);
/// assert_eq!(loads[&("firsts".into(), "x".into())], 2);
/// # Ok::<(), Error>(())
/// ```
pub fn loads<R>(f: impl FnOnce() -> R) -> (R, Loads) {
    /// Puts back what was counted around this call, also after a panic.
    struct Restore(Option<Loads>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LOADS.replace(self.0.take());
        }
    }
    let _outer = Restore(LOADS.replace(Some(Loads::new())));
    let result = f();
    (result, LOADS.take().unwrap_or_default())
}

/// A load of so many elements.
pub(super) fn note(kernel: &str, operand: &str, elements: impl FnOnce() -> usize) {
    LOADS.with_borrow_mut(|loads| {
        if let Some(loads) = loads {
            *loads.entry((kernel.into(), operand.into())).or_default() += elements() as u64;
        }
    });
}
