//! Jitted functions whose results take over the memory of an argument.
use super::compiled::Cache;
use super::disabled::is_disabled;
use super::function::{Function, Given};
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::Result;
use pallas_ir::Loc;

/// As [`jit`](super::jit), for a function that is called with its first argument by value: the argument is *donated*, so
/// results may take over its memory. `jax.jit(f, donate_argnums=0)`.
///
/// A result takes over the memory of an array of the same number of bytes which is not needed later. An array that has
/// another owner, such as a clone of it, keeps its elements; it is copied if a result takes its place. What is used after
/// it was donated is an error of rustc, which names both lines. To donate several arguments, pass a tuple of them.
///
/// # Errors
/// Those of [`jit`](super::jit). Donated arrays are dropped also by a call that fails.
///
/// ```
/// use pallas_rt::{Array, jit_donating};
/// let step = jit_donating(|w: &Array, gradient: &Array| w - 0.1 * gradient);
/// let gradient = Array::full(&[1000], 1.0f32)?;
/// let mut w = Array::full(&[1000], 1.0f32)?;
/// let address = w.buffer()?.as_ptr();
/// w = step(w, &gradient)?;
/// assert_eq!((w.to_vec::<f32>()?[0], w.buffer()?.as_ptr()), (0.9, address));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
///
/// ```compile_fail,E0382
/// use pallas_rt::{Array, jit_donating};
/// let double = jit_donating(|x: &Array| x * 2.0);
/// let x = Array::full(&[2], 1.0f32)?;
/// let y = double(x)?;
/// let z = &x + &y;
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn jit_donating<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Donating<Result<F::Out>> {
    let cache = Cache::new(Loc::caller(), true);
    let prepare = move |given: Given<'_, Args>| {
        let (args, structures) = (given.flat)();
        if args.iter().any(Array::is_traced) || is_disabled() {
            return f.call(&(given.tuple)()).map(Prepared::Done);
        }
        let donated = structures[0].leaves();
        let entry = cache.entry(&f, given.tuple, &args, structures)?;
        Ok(Prepared::Ready { entry, args, donated })
    };
    // The caller's own owners are dropped between both.
    F::donating(prepare, |prepared: Result<Prepared<F::Out>>| match prepared? {
        Prepared::Done(out) => Ok(out),
        Prepared::Ready { entry, args: mut donated, donated: count } => {
            let rest = donated.split_off(count);
            let rest: Vec<&Array> = rest.iter().chain(&entry.form.captured).collect();
            tree::rebuild(&entry.out, entry.form.program.run_donating(donated, &rest)?)
        }
    })
}

/// A call before its first argument is dropped.
enum Prepared<Out> {
    Done(Out),
    Ready {
        entry: std::sync::Arc<super::compiled::Entry<Out>>,
        args: Vec<Array>,
        /// Number of leaves of the first argument.
        donated: usize,
    },
}
