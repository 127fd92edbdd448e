//! Functions of the host as operations of a traced function.
use super::function::Outcome;
use super::linearize::check_matching_leaves;
use super::trace::{apply_multi_result, is_tracing, type_of};
use super::traced::common_client;
use crate::array::{Array, Client};
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result, panic_message};
pub use pallas_graph::call::VmapMethod;
use pallas_graph::call::{Callback, HostFunction};
use pallas_ir::{At, Diag, Loc, Type};

/// Calls a function of the host, which may read elements and call other libraries; `jax.pure_callback`.
///
/// `f` takes a tree like `args` of arrays with elements, on [`Client::cpu`], and returns a tree with the structure,
/// shapes and element types of `results`, whose elements are not read: [`Client::shape_dtype`] makes such arrays, too.
/// `f` runs on a thread of its own. In a function that is being traced it is called at each run, elsewhere at once. The
/// results of `f` have to depend on its arguments alone, so it may be called more often than the function says, or not
/// at all where nothing reads its results; on a mesh it is called once for devices that have the same arguments. In a
/// [`vmap`](super::vmap()) it is called for one example after the other; [`PureCallback`] has other methods.
///
/// Its floating-point results have no derivative: [`custom_jvp`](super::custom_jvp()) around the call states one. A
/// function with a callback is not exported, and its StableHLO has a `custom_call` that no other compiler knows.
///
/// # Errors
/// The function's own error or panic, and results of another structure, shape or element type, at the call of the
/// function that is traced; arguments of several clients; a derivative by the arguments.
///
/// ```
/// use pallas_rt::{Array, jit, pure_callback};
/// let digits = jit(|x: &Array| {
///     let count = |x: &Array| {
///         let all: Vec<i32> = x.to_vec::<i32>()?.iter().map(|x| x.to_string().len() as i32).collect();
///         Array::from_slice(&all, x.shape())
///     };
///     pure_callback(count, x, x)
/// });
/// let x = Array::from_slice(&[4i32, 120, 77], &[3])?;
/// assert_eq!(digits(&x)?.to_vec::<i32>()?, [1, 3, 2]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn pure_callback<A, O, R>(f: impl Fn(&A) -> R + Send + Sync + 'static, results: &O, args: &A) -> Result<O>
where
    A: Tree + Send + Sync + 'static,
    O: Tree + Send + Sync + 'static,
    R: Outcome<Tree = O> + 'static,
{
    PureCallback::new().run(f, results, args)
}

/// Option of [`pure_callback()`]: the method by which it is called for a batch.
///
/// With [`VmapMethod::ExpandDims`] and [`VmapMethod::BroadcastAll`] the function is called once in a
/// [`vmap`](super::vmap()): its arguments and results, also those of the tree `results`, have one axis more in front
/// for each `vmap`.
///
/// ```
/// use pallas_rt::{Array, PureCallback, VmapMethod, vmap};
/// let sum = vmap(|x: &Array| {
///     PureCallback::new().vmap_method(VmapMethod::ExpandDims).run(|x: &Array| x.sum([1]), &x.index(0), x)
/// });
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(sum(&x)?.to_vec::<f32>()?, [3.0, 7.0]); // of one call
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PureCallback {
    vmap_method: VmapMethod,
}

impl PureCallback {
    /// Returns the default option: in a batch, one call for each example.
    pub fn new() -> PureCallback {
        PureCallback::default()
    }

    /// Chooses the method by which the function is called for a batch.
    #[must_use]
    pub fn vmap_method(mut self, method: VmapMethod) -> PureCallback {
        self.vmap_method = method;
        self
    }

    /// Calls the function; see [`pure_callback()`].
    ///
    /// # Errors
    /// As [`pure_callback()`].
    #[track_caller]
    pub fn run<A, O, R>(self, f: impl Fn(&A) -> R + Send + Sync + 'static, results: &O, args: &A) -> Result<O>
    where
        A: Tree + Send + Sync + 'static,
        O: Tree + Send + Sync + 'static,
        R: Outcome<Tree = O> + 'static,
    {
        let at = Loc::caller();
        let (leaves, templates) = (tree::leaves(args), tree::leaves(results));
        leaves.iter().chain(&templates).try_for_each(|x| x.check().map(drop))?;
        let client = common_client(&leaves)?;
        let takes: Vec<Type> = leaves.iter().map(type_of).collect();
        let gives: Vec<Type> = templates.iter().map(type_of).collect();
        // Compiled functions keep these trees: they have neither elements nor the client's memory.
        let noted = client.without_use_count();
        let outline = |x: &Array| Ok(Array::new_abstract(x.dtype(), x.shape(), &noted));
        let (args, results) = (tree::map(args, outline)?, tree::map(results, outline)?);
        let outline = results.clone();
        let called = move |operands: &[(&Type, &[u8])], gives: &[Type]| {
            let host = Client::cpu();
            let arrays = operands.iter().map(|(ty, bytes)| host.array_from_bytes(ty.dtype, &ty.shape, bytes));
            let own = || -> Result<O> {
                let made = f(&tree::rebuild(&args, arrays.collect::<Result<Vec<Array>>>()?)?).tree()?;
                tree::leaves(&made).iter().try_for_each(|x| x.check().map(drop))?;
                Ok(made)
            };
            let made = own().map_err(callback_failure_diag)?;
            let made =
                check_matching_leaves(&outline, &made, gives, "result of a callback", at).map_err(
                    |error| match error {
                        Error::Operation(e) => e.diag,
                        other => callback_failure_diag(other),
                    },
                )?;
            made.iter().map(|x| x.to_bytes().map_err(callback_failure_diag)).collect()
        };
        let function = HostFunction::new(move |operands, gives| run_on_own_thread(|| called(operands, gives)));
        let callback = Callback { function, method: self.vmap_method, takes, gives };
        let is_traced = leaves.iter().any(Array::is_traced) || leaves.is_empty() && is_tracing();
        let made = if is_traced {
            let all: Vec<&Array> = leaves.iter().collect();
            apply_multi_result(&all, at, |graph, v| graph.push_multi_result(callback, v))?
        } else {
            let given = leaves.iter().map(Array::to_bytes).collect::<Result<Vec<_>>>()?;
            let made = self::call_callback(&callback, &given.iter().map(|x| &x[..]).collect::<Vec<_>>(), at)?;
            let made = made.iter().zip(&callback.gives);
            made.map(|(bytes, ty)| client.array_from_bytes(ty.dtype, &ty.shape, bytes)).collect::<Result<_>>()?
        };
        tree::rebuild(&results, made)
    }
}

/// Calls a callback on the bytes of its operands; returns the bytes of its results.
///
/// # Errors
/// The function's own error, at the line `at` of the call.
pub(super) fn call_callback(callback: &Callback, operands: &[&[u8]], at: Loc) -> Result<Vec<Vec<u8>>> {
    callback.call(operands).map_err(|diag| Error::operation(at, diag))
}

fn callback_failure_diag(cause: impl std::fmt::Display) -> Diag {
    Diag::new("callback", At::Op, format!("a callback failed: {cause}"), "")
}

/// Calls a function on a thread of its own, where nothing is being traced.
fn run_on_own_thread<T: Send>(f: impl FnOnce() -> Result<T, Diag> + Send) -> Result<T, Diag> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("pallas-callback".into());
        let thread = thread.spawn_scoped(scope, f).map_err(callback_failure_diag)?;
        // The function may wait for launches, and these for this thread of the pool, so it does other work meanwhile.
        while rayon_core::current_thread_index().is_some() && !thread.is_finished() {
            if rayon_core::yield_now() != Some(rayon_core::Yield::Executed) {
                std::thread::yield_now();
            }
        }
        thread
            .join()
            .unwrap_or_else(|panic| Err(callback_failure_diag(format!("it panicked: {}", panic_message(&*panic)))))
    })
}
