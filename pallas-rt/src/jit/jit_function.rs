//! `jit`: a function that is traced and compiled once for each kind of arguments; options for donated arguments and for
//! lengths that share a compilation.
use super::argnums::Arg;
use super::axis_names;
use super::bounded::{BoundedCall, BoundedJit, BoundedSize};
use super::disabled::is_jit_disabled;
use super::function::{CallArguments, Function};
use super::jit_cache::{CacheEntry, JitCache, MissDetails};
use super::transformed::{Transformation, Transformed};
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::Result;
use pallas_ir::Loc;
use std::sync::Arc;

/// A function that is traced once for each structure, element types and shapes of its arguments, and then runs as a
/// whole: operations share kernels, and intermediate results share memory.
///
/// The result is called like the function and returns a `Result`. It can be used inside of other traced functions. What
/// the function does besides computing its result happens when it is traced, not at each call; arrays that it captures
/// keep the elements that they have then. It stays compiled for 256 kinds of arguments. [`counters`](crate::counters)
/// counts traces and calls, and [`jit_misses`](super::jit_misses) has the reason for each compilation.
/// [`Static`](crate::tree::Static) arguments are values that are no arrays. Options let results take over the memory of
/// an argument ([`donate_argnums`](Transformed::donate_argnums)) and compile once for all lengths up to a bound
/// ([`bounded`](Transformed::bounded)); [`disable_jit`](super::disable_jit) runs functions as they are.
///
/// # Errors
/// The call returns the function's own error, the first error of an operation that its result depends on, and errors of
/// the device.
///
/// ```
/// use pallas_rt::{Array, jit};
/// let layer = jit(|x: &Array, w: &Array| (x.matmul(w) + 1.0).tanh());
/// let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// let w = Array::from_slice(&[0.5f32, -0.5, 0.25, 0.5], &[2, 2])?;
/// let y = layer(&x, &w)?;
/// assert!((y.to_vec::<f32>()?[0] - 2f32.tanh()).abs() < 1e-6);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn jit<Args: Tree + 'static, F: Function<Args>>(f: F) -> Transformed<Args, F, Jit> {
    Transformed::new(f, Jit::default(), Loc::caller())
}

/// Options of [`jit()`](super::jit()); `DONATES` is true if results may take over the memory of the first argument.
#[derive(Clone, Debug, Default)]
pub struct Jit<const DONATES: bool = false> {
    sizes: Vec<BoundedSize>,
}

/// Options of [`jit()`](super::jit()).
impl<Args: Tree + 'static, F: Function<Args>, const DONATES: bool> Transformed<Args, F, Jit<DONATES>> {
    /// Calls the function with its first argument by value: the argument is *donated*, so results may take over its
    /// memory.
    ///
    /// A result takes over the memory of an array of the same number of bytes which is not needed later. An array that
    /// has another owner, such as a clone of it, keeps its elements; it is copied if a result takes its place. What is
    /// used after it was donated is an error of rustc, which names both lines. To donate several arguments, pass a
    /// tuple of them.
    ///
    /// # Errors
    /// Those of [`jit`](super::jit()). Donated arrays are dropped also by a call that fails.
    ///
    /// ```
    /// use pallas_rt::{Arg, Array, jit};
    /// let step = jit(|w: &Array, gradient: &Array| w - 0.1 * gradient).donate_argnums(Arg::<0>);
    /// let gradient = Array::full(&[1000], 1.0f32)?;
    /// let mut w = Array::full(&[1000], 1.0f32)?;
    /// let address = w.buffer()?.as_ptr();
    /// w = step(w, &gradient)?;
    /// assert_eq!((w.to_vec::<f32>()?[0], w.buffer()?.as_ptr()), (0.9, address));
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    ///
    /// ```compile_fail,E0382
    /// use pallas_rt::{Arg, Array, jit};
    /// let double = jit(|x: &Array| x * 2.0).donate_argnums(Arg::<0>);
    /// let x = Array::full(&[2], 1.0f32)?;
    /// let y = double(x)?;
    /// let z = &x + &y;
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn donate_argnums(self, _: Arg<0>) -> Transformed<Args, F, Jit<true>> {
        self.map_options(|Jit { sizes }| Jit { sizes })
    }

    /// Compiles once for all lengths of some axes up to a bound.
    ///
    /// A call with a shorter array pads it to the bound; the added elements have no influence on the results, which
    /// have the shapes that the function gives them for the call's own lengths. The function is traced once for each
    /// new length, and compiled for the first one alone: [`counters`](crate::counters) has both numbers. In the
    /// function `x.shape()` is the length of the trace, and [`Array::count`] the true length as an array.
    ///
    /// Each trace is compared with that for the bound. A function that computes something else for another length, such
    /// as one with a loop in Rust over the elements, or an operation at the end of such an axis (`concatenate` after
    /// it, `flip`, a `#[kernel]` on it), is compiled for each length on its own; [`jit_misses`](super::jit_misses) says
    /// where the traces differ, and after a few lengths a hint is printed. Numbers computed in Rust from a length may
    /// differ.
    ///
    /// On a mesh, the padded arrays are sharded; a result is sharded in the same way along the dimensions that the axes
    /// divide evenly for its own length.
    ///
    /// Calls inside of other traced functions are traced with them, for their own shapes.
    ///
    /// # Errors
    /// The call returns an error for a length over the bound, for arrays that have one size and differ in their
    /// lengths, for a path that the arguments do not have; and the errors of [`jit`](super::jit()).
    ///
    /// ```
    /// use pallas_rt::{Array, BoundedSize, counters, jit};
    /// let mean = jit(|x: &Array| x.mean(..)).bounded([BoundedSize::new("n", 100).axis("0", 0)]);
    /// let before = counters();
    /// for n in [3, 7, 50] {
    ///     let x = Array::full(&[n], n as f32)?;
    ///     assert_eq!(mean(&x)?.to_vec::<f32>()?, [n as f32]);
    /// }
    /// assert_eq!(counters().jit_compiles - before.jit_compiles, 1);
    /// let error = mean(&Array::full(&[101], 1.0f32)?).unwrap_err().to_string();
    /// assert!(error.contains("size `n` is 101, at most 100"), "{error}");
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn bounded(self, sizes: impl Into<Vec<BoundedSize>>) -> Self {
        self.map_options(|_| Jit { sizes: sizes.into() })
    }
}

impl<Args: Tree + 'static, F: Function<Args>> Transformation<Args, F> for Jit {
    type Out = F::Out;
    type Call = F::Boxed<Result<F::Out>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        let (f, forms) = (f.clone(), JitForms::new(at, &self.sizes, false));
        F::boxed(move |given: CallArguments<'_, Args>| forms.prepare(&*f, &given)?.run(F::name))
    }
}

impl<Args: Tree + 'static, F: Function<Args>> Transformation<Args, F> for Jit<true> {
    type Out = F::Out;
    type Call = F::Donating<Result<F::Out>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        let (f, forms) = (f.clone(), JitForms::new(at, &self.sizes, true));
        // Between both, the caller's own argument is dropped, so that results can take over its memory.
        F::donating(
            move |given: CallArguments<'_, Args>| forms.prepare(&*f, &given),
            |prepared: Result<PreparedCall<F::Out>>| prepared?.run(F::name),
        )
    }
}

/// Compiled forms of a function: one for each kind of arguments, or one for all lengths up to a bound.
enum JitForms<Out> {
    PerArgumentKind(JitCache<Out>),
    Bounded(Box<BoundedJit<Out>>),
}

impl<Out: Tree + Send + Sync + 'static> JitForms<Out> {
    fn new(at: Loc, sizes: &[BoundedSize], donates: bool) -> JitForms<Out> {
        match sizes {
            [] => JitForms::PerArgumentKind(JitCache::new(at, donates)),
            _ => JitForms::Bounded(Box::new(BoundedJit::new(at, sizes.to_vec(), donates))),
        }
    }

    /// Finds or compiles the program for these arguments, without running it. Inside of a traced function, and while
    /// `jit` is disabled, calls the function itself instead.
    fn prepare<Args: Tree + 'static>(
        &self,
        f: &impl Function<Args, Out = Out>,
        given: &CallArguments<'_, Args>,
    ) -> Result<PreparedCall<Out>> {
        let (args, structures) = (given.flat)();
        let is_inner = args.iter().any(Array::is_traced) || is_jit_disabled() || axis_names::has_bound_axes();
        match self {
            JitForms::Bounded(bounded) => bounded.prepare(f, given, args, structures, is_inner),
            JitForms::PerArgumentKind(_) if is_inner => f.call(&(given.tuple)()).map(PreparedCall::Done),
            JitForms::PerArgumentKind(cache) => {
                let entry = cache.find_or_compile(f, given.tuple, &args, structures, &MissDetails::default)?;
                Ok(PreparedCall::Ready { entry, args })
            }
        }
    }
}

/// A call of a `jit` function whose program is found, but that has not run: the caller can drop its own donated
/// argument in between.
pub(super) enum PreparedCall<Out> {
    Done(Out),
    Ready { entry: Arc<CacheEntry<Out>>, args: Vec<Array> },
    Bounded(BoundedCall<Out>),
}

impl<Out: Tree + Send + Sync + 'static> PreparedCall<Out> {
    /// Runs the call. `name` returns the function's name.
    ///
    /// # Errors
    /// Errors of the device.
    fn run(self, name: fn() -> &'static str) -> Result<Out> {
        match self {
            PreparedCall::Done(out) => Ok(out),
            PreparedCall::Ready { entry, args } => tree::rebuild(&entry.out, entry.form.run(args, name)?),
            PreparedCall::Bounded(member) => member.run(name),
        }
    }
}
