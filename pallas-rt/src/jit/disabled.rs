//! Guards that disable `jit`: functions then run one operation after the other.
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::LazyLock;

thread_local! {
    /// Number of [`JitDisabled`] guards that exist on this thread; above 0, functions of `jit` run one operation at a
    /// time.
    static DISABLE_GUARD_COUNT: Cell<usize> = const { Cell::new(0) };
}

/// A guard: as long as it exists, functions of [`jit`](crate::jit()) that this thread calls run as they are; see
/// [`disable_jit`].
#[derive(Debug)]
#[must_use = "`jit` is disabled until the guard is dropped"]
pub struct JitDisabled {
    /// A guard counts for its own thread, so it is not sent to another one.
    _not_send: PhantomData<*const ()>,
}

impl Drop for JitDisabled {
    fn drop(&mut self) {
        DISABLE_GUARD_COUNT.set(DISABLE_GUARD_COUNT.get() - 1);
    }
}

/// Lets functions of [`jit`](crate::jit()) that this thread calls run as they are, one operation after the other, until
/// the guard is dropped: arrays have elements in there, so they can be printed and branched on. `PALLAS_DISABLE_JIT=1`
/// does so in the whole process, from its first call on.
///
/// Other transformations, loops and branches trace their functions as ever.
///
/// ```
/// use pallas_rt::{Array, disable_jit, jit};
/// let halved = jit(|x: &Array| {
///     // Not possible in a function that is being traced.
///     Ok::<_, pallas_rt::Error>(if x.to_vec::<f32>()?[0] > 1.0 { x / 2.0 } else { x.clone() })
/// });
/// let x = Array::full(&[2], 4.0f32)?;
/// assert!(halved(&x).is_err());
/// let guard = disable_jit();
/// assert_eq!(halved(&x)?.to_vec::<f32>()?, [2.0, 2.0]);
/// drop(guard);
/// assert!(halved(&x).is_err());
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub fn disable_jit() -> JitDisabled {
    DISABLE_GUARD_COUNT.set(DISABLE_GUARD_COUNT.get() + 1);
    JitDisabled { _not_send: PhantomData }
}

/// Returns true if functions of `jit` run one operation at a time on this thread: a [`JitDisabled`] guard exists, or
/// `PALLAS_DISABLE_JIT=1` is set.
pub(super) fn is_jit_disabled() -> bool {
    static IS_DISABLED_BY_ENVIRONMENT: LazyLock<bool> =
        LazyLock::new(|| std::env::var("PALLAS_DISABLE_JIT").is_ok_and(|value| value == "1"));
    DISABLE_GUARD_COUNT.get() > 0 || *IS_DISABLED_BY_ENVIRONMENT
}
