//! Transformed functions: called like the function, with methods for options; [`crate::transform`] says why.
use super::function::{CallArguments, Function};
use crate::tree::Tree;
use pallas_device::error::Result;
use pallas_ir::Loc;
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// Options of a transformation, which build the transformed closure of a function.
pub trait Transformation<Args: Tree + 'static, F: Function<Args>>: Clone + Send + Sync + 'static {
    /// Result of a successful call of the transformed function.
    type Out;
    /// Type of the transformed function as a boxed closure: `Box<dyn Fn(&Array) -> Result<Array> + Send + Sync>`.
    type Call: Send + Sync + 'static;
    /// Builds the closure of a function; `at` is the line that messages name.
    #[doc(hidden)]
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call;
}

/// A transformed function, which is called like the function and returns a `Result`; its methods are the options of the
/// transformation.
///
/// ```
/// use pallas_rt::{Array, jit};
/// // One type for several functions.
/// let all = [jit(|x: &Array| x + 1.0).into_fn(), jit(|x: &Array| x * 2.0).into_fn()];
/// let x = Array::from_slice(&[3.0f32], &[])?;
/// assert_eq!((all[0](&x)?.to_vec::<f32>()?, all[1](&x)?.to_vec::<f32>()?), (vec![4.0], vec![6.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[must_use = "it does nothing until it is called"]
pub struct Transformed<Args, F, T> {
    f: Arc<F>,
    options: T,
    at: Loc,
    /// The boxed closure, built at the first call and shared by clones. Its type depends on the options.
    call: Arc<OnceLock<Box<dyn Any + Send + Sync>>>,
    args: PhantomData<fn(&Args)>,
}

/// A clone shares the closure, and so what it has compiled.
impl<Args, F, T: Clone> Clone for Transformed<Args, F, T> {
    fn clone(&self) -> Self {
        let Transformed { f, options, at, call, args } = self;
        Transformed { f: f.clone(), options: options.clone(), at: *at, call: call.clone(), args: *args }
    }
}

impl<Args, F, T> Transformed<Args, F, T> {
    /// A function with these options of its transformation, made at the line `at`.
    pub(super) fn new(f: F, options: T, at: Loc) -> Self {
        Transformed { f: Arc::new(f), options, at, call: Arc::default(), args: PhantomData }
    }

    /// Returns the function with changed options; its closure is built anew at the first call.
    pub(super) fn map_options<U>(self, change: impl FnOnce(T) -> U) -> Transformed<Args, F, U> {
        let Transformed { f, options, at, .. } = self;
        Transformed { f, options: change(options), at, call: Arc::default(), args: PhantomData }
    }
}

impl<Args: Tree + 'static, F: Function<Args>, T: Transformation<Args, F>> Transformed<Args, F, T> {
    /// Returns the boxed closure, such as `Box<dyn Fn(&Array) -> Result<Array> + Send + Sync>`; a new one if there are
    /// clones.
    pub fn into_fn(self) -> T::Call {
        let made = Arc::into_inner(self.call).and_then(OnceLock::into_inner).and_then(|call| call.downcast().ok());
        made.map_or_else(|| self.options.build(&self.f, self.at), |call| *call)
    }
}

impl<Args: Tree + 'static, F: Function<Args>, T: Transformation<Args, F>> Deref for Transformed<Args, F, T> {
    type Target = T::Call;
    fn deref(&self) -> &T::Call {
        let call = self.call.get_or_init(|| Box::new(self.options.build(&self.f, self.at)));
        call.downcast_ref().expect("changed options begin without a closure")
    }
}

#[diagnostic::do_not_recommend]
impl<Args, F, T> Function<Args> for Transformed<Args, F, T>
where
    Args: Tree + 'static,
    F: Function<Args>,
    T: Transformation<Args, F, Call = <F as Function<Args>>::Boxed<Result<<T as Transformation<Args, F>>::Out>>>,
    T::Out: Tree + Send + Sync + 'static,
{
    type Out = T::Out;
    type Boxed<R: 'static> = F::Boxed<R>;
    type Donating<R: 'static> = F::Donating<R>;
    fn call(&self, args: &Args) -> Result<T::Out> {
        F::call_boxed(self, args)
    }
    fn boxed<R: 'static>(f: impl Fn(CallArguments<'_, Args>) -> R + Send + Sync + 'static) -> F::Boxed<R> {
        F::boxed(f)
    }
    fn donating<P, R: 'static>(
        prepare: impl Fn(CallArguments<'_, Args>) -> P + Send + Sync + 'static,
        run: impl Fn(P) -> R + Send + Sync + 'static,
    ) -> F::Donating<R> {
        F::donating(prepare, run)
    }
    fn call_boxed<R: 'static>(boxed: &F::Boxed<R>, args: &Args) -> R {
        F::call_boxed(boxed, args)
    }
    fn name() -> &'static str {
        F::name()
    }
}

/// Boxes a closure that calls `call` with a function, its options and the arguments.
pub(super) fn box_call<Args: Tree + 'static, F: Function<Args>, T: Clone + Send + Sync + 'static, R: 'static>(
    f: &Arc<F>,
    options: &T,
    call: impl Fn(&F, &T, &CallArguments<'_, Args>) -> R + Send + Sync + 'static,
) -> F::Boxed<R> {
    let (f, options) = (f.clone(), options.clone());
    F::boxed(move |given: CallArguments<'_, Args>| call(&f, &options, &given))
}
