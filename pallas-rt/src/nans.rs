//! Switch of the search for NaN in the results of calls; see [`debug_nans`].
use crate::array::Array;
use pallas_codegen::interp::Data;
use pallas_device::error::Result;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::LazyLock;

thread_local! {
    /// Number of [`NansDebugged`] guards that exist on this thread; above 0, results of calls are checked for NaN.
    static NAN_GUARD_COUNT: Cell<usize> = const { Cell::new(0) };
    /// True while a call is repeated to find the operation that makes NaN; its results are not checked.
    static IS_NAN_SEARCH_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Guard; while it exists, the results of its thread's calls are checked for NaN. [`debug_nans`] makes one.
#[derive(Debug)]
#[must_use = "NaN is looked for until the guard is dropped"]
pub struct NansDebugged {
    /// Keeps the guard on the thread for which it counts.
    _not_send: PhantomData<*const ()>,
}

impl Drop for NansDebugged {
    fn drop(&mut self) {
        NAN_GUARD_COUNT.set(NAN_GUARD_COUNT.get() - 1);
    }
}

/// Looks for NaN in the results of all kernels, functions of `jit` and operations on arrays that this thread calls,
/// until the guard is dropped: as `jax.debug_nans`. `PALLAS_DEBUG_NANS=1` does so in the whole process.
///
/// If a result has NaN and no argument has, the call is made again, step by step: a function one operation at a time, a
/// kernel on the strict interpreter. The call's error has the code `nan` and names the first operation that makes NaN
/// of operands without NaN, its line, and in a kernel its program. Each call waits for its results.
///
/// ```
/// use pallas_rt::prelude::*;
///
/// #[kernel(grid = (cdiv(N, 4)))]
/// fn normalised(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
///     out.store(x.load() / x.load());
/// }
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 0.0, 5.0, 6.0, 7.0], &[8])?;
/// let guard = pallas_rt::debug_nans();
/// let error = normalised(&x).unwrap_err().to_string();
/// assert!(error.contains("program [1]: `div` of 0.0 and 0.0, element [0] of the tile, is NaN"), "{error}");
/// drop(guard);
/// assert!(normalised(&x).is_ok());
/// # Ok::<(), Error>(())
/// ```
pub fn debug_nans() -> NansDebugged {
    NAN_GUARD_COUNT.set(NAN_GUARD_COUNT.get() + 1);
    NansDebugged { _not_send: PhantomData }
}

/// Returns true if the results of this thread's calls are checked for NaN.
pub(crate) fn is_nan_check_on() -> bool {
    static IS_NAN_CHECK_SET_IN_ENV: LazyLock<bool> =
        LazyLock::new(|| std::env::var("PALLAS_DEBUG_NANS").is_ok_and(|value| value == "1"));
    !IS_NAN_SEARCH_RUNNING.get() && (NAN_GUARD_COUNT.get() > 0 || *IS_NAN_CHECK_SET_IN_ENV)
}

/// Runs `f` without checks for NaN, as the search for the operation does.
pub(crate) fn without_nan_checks<R>(f: impl FnOnce() -> R) -> R {
    struct RestoreNanSearchFlag(bool);
    impl Drop for RestoreNanSearchFlag {
        fn drop(&mut self) {
            IS_NAN_SEARCH_RUNNING.set(self.0);
        }
    }
    let _outer = RestoreNanSearchFlag(IS_NAN_SEARCH_RUNNING.replace(true));
    f()
}

/// Returns the position of the first NaN among the elements of an array.
pub(crate) fn first_nan_position(x: &Array) -> Result<Option<usize>> {
    if !x.dtype().is_float() {
        return Ok(None);
    }
    let data = Data::from_bytes(x.dtype(), &x.to_bytes()?);
    Ok((0..data.len()).find(|&i| data.get(i).as_f64().is_nan()))
}
