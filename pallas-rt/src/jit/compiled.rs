//! `jit`: a function that is traced and compiled once for each kind of arguments.
use super::function::{Function, Given};
use super::program::Program;
use super::trace::{TracedFunction, trace, type_of};
use crate::array::Array;
use crate::device::{Client, JIT_CALLS, JIT_COMPILES, JIT_TRACES};
use crate::error::Result;
use crate::timeline;
use crate::tree::{self, Structure, Tree};
use pallas_ir::Type;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};

/// Kinds of arguments for which a function stays compiled; the oldest makes room.
const MOST_KINDS: usize = 256;

/// A compiled function for one kind of arguments.
struct Entry<Out> {
    /// By argument.
    structures: Vec<Structure>,
    types: Vec<Type>,
    client: Client,
    program: Program,
    /// Arrays that the function mentions; they are the last parameters.
    captured: Vec<Array>,
    /// A result, of which only the structure matters.
    out: Out,
}

/// A function that is traced once for each structure, element types and shapes of its arguments, and then runs as a whole:
/// operations share kernels, and intermediate results share memory.
///
/// The result is called like the function and returns a `Result`. It can be used inside of other traced functions. What
/// the function does besides computing its result happens when it is traced, not at each call; arrays that it captures
/// keep the elements that they have then. It stays compiled for 256 kinds of arguments.
/// [`counters`](crate::counters) counts traces and calls.
///
/// # Errors
/// The call returns the function's own error, the first mistake in what its result depends on, and errors of the device.
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
pub fn jit<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<F::Out>> {
    let entries: RwLock<Vec<Arc<Entry<F::Out>>>> = RwLock::default();
    F::boxed(move |given: Given<'_, Args>| {
        let (args, structures) = (given.flat)();
        if args.iter().any(Array::is_traced) {
            return f.call(&(given.tuple)());
        }
        args.iter().try_for_each(|x| x.check().map(drop))?;
        JIT_CALLS.fetch_add(1, Relaxed);
        let fits = |e: &&Arc<Entry<F::Out>>| {
            let same =
                |(ty, x): (&Type, &Array)| ty.dtype == x.dtype() && ty.shape == x.shape() && *x.client() == e.client;
            e.structures == structures && e.types.len() == args.len() && e.types.iter().zip(&args).all(same)
        };
        let known = entries.read().unwrap_or_else(PoisonError::into_inner).iter().rev().find(fits).cloned();
        let entry = match known {
            Some(entry) => entry,
            None => {
                let entry = Arc::new(compile(&f, &(given.tuple)(), &args, structures)?);
                let mut all = entries.write().unwrap_or_else(PoisonError::into_inner);
                if all.len() == MOST_KINDS {
                    all.remove(0);
                }
                all.push(entry.clone());
                entry
            }
        };
        let all: Vec<&Array> = args.iter().chain(&entry.captured).collect();
        let described = || (name::<F>(), format!("{} steps", entry.program.kernels()));
        let results = timeline::span(timeline::Kind::Call, described, || entry.program.run(&all))?;
        tree::rebuild(&entry.out, results)
    })
}

fn compile<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    tuple: &Args,
    args: &[Array],
    structures: Vec<Structure>,
) -> Result<Entry<F::Out>> {
    let client = client_of(args)?;
    let TracedFunction { returned: out, graph, captured } = traced(f, tuple, args, &client)?;
    captured.iter().try_for_each(|x| x.check_client(&client, || "a captured array".into()))?;
    JIT_COMPILES.fetch_add(1, Relaxed);
    let described = || (name::<F>(), format!("{} equations", graph.equations.len()));
    let program = timeline::span(timeline::Kind::Compile, described, || Program::new(&graph, &client))?;
    Ok(Entry { structures, types: args.iter().map(type_of).collect(), client, program, captured, out })
}

/// The client of arguments.
///
/// # Errors
/// Arguments on several clients.
pub(super) fn client_of(args: &[Array]) -> Result<Client> {
    let client = args.first().map_or_else(Client::from_env, |x| Ok(x.client().clone()))?;
    args.iter().enumerate().try_for_each(|(i, x)| x.check_client(&client, || format!("leaf {i} of the arguments")))?;
    Ok(client)
}

/// Traces a function of trees.
pub(super) fn traced<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    tuple: &Args,
    args: &[Array],
    client: &Client,
) -> Result<TracedFunction<F::Out>> {
    traced_as(f, tuple, &args.iter().map(type_of).collect::<Vec<Type>>(), client)
}

/// Traces a function of trees like `tuple`, whose leaves have these types.
pub(super) fn traced_as<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    tuple: &Args,
    types: &[Type],
    client: &Client,
) -> Result<TracedFunction<F::Out>> {
    JIT_TRACES.fetch_add(1, Relaxed);
    timeline::span(
        timeline::Kind::Trace,
        || (name::<F>(), types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ")),
        || {
            trace(client, types, |params| {
                let out = f.call(&tree::rebuild(tuple, params.iter().cloned())?)?;
                let results = tree::leaves(&out);
                Ok((out, results))
            })
        },
    )
}

/// The path of a function, such as `model::step`, or of the function that a closure is in.
fn name<F>() -> String {
    std::any::type_name::<F>().into()
}
