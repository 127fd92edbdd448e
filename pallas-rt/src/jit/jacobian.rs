//! All derivatives of arrays by an array: derivatives along every element, in one call.
use super::argnums::{Arg, Argnums, leaves_of};
use super::compiled::{client_of, traced};
use super::function::{Function, Given};
use super::gradient::{First, refused};
use super::trace::{TracedFunction, apply_all, type_of};
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::transform::{batched, jvp, vjp};
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Broadcast, Cast, Iota, Reshape, Transpose};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, ScalarOp, StructuralOp, Type};

/// A function's Jacobian by the first argument, by forward mode: one pass over a batch of as many tangents as that
/// array has elements. Cheaper than [`jacrev`] where results have more elements than the argument.
///
/// The first argument is an array of a floating-point type; the function returns a tree of such arrays. Each becomes
/// its derivatives, of the array's shape followed by the argument's.
///
/// # Errors
/// The call returns an error if the argument or a result has integers; and those of [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, jacfwd};
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
/// let jacobian = jacfwd(|x: &Array| x * x)(&x)?;
/// assert_eq!(jacobian.shape(), [3, 3]);
/// assert_eq!(jacobian.to_vec::<f32>()?, [2.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 6.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn jacfwd<Args, F>(f: F) -> F::Boxed<Result<F::Out>>
where
    Args: First<First = Array> + 'static,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        jacobian(&f, &given, 0, at, "jacfwd", |graph, leaves, _| along_all(graph, leaves))
    })
}

/// As [`jacfwd`], by the chosen argument, an array.
///
/// # Errors
/// As [`jacfwd`].
///
/// ```
/// use pallas_rt::{Arg, Array, jacfwd_by};
/// let (n, x) = (Array::from_slice(&[3i32], &[])?, Array::from_slice(&[1.0f32, 2.0], &[2])?);
/// let jacobian = jacfwd_by(Arg::<1>, |n: &Array, x: &Array| x * n)(&n, &x)?;
/// assert_eq!(jacobian.to_vec::<f32>()?, [3.0, 0.0, 0.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn jacfwd_by<const I: usize, Args, F>(_: Arg<I>, f: F) -> F::Boxed<Result<F::Out>>
where
    Args: Tree + 'static,
    Arg<I>: Argnums<Args, Picked = Array>,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        jacobian(&f, &given, I, at, "jacfwd", |graph, leaves, _| along_all(graph, leaves))
    })
}

/// A function's Jacobian by the first argument, by reverse mode: one pass for each array of the result, over a batch of
/// as many cotangents as it has elements. Otherwise as [`jacfwd`].
///
/// # Errors
/// As [`jacfwd`]; a [`while_loop`](super::while_loop).
///
/// ```
/// use pallas_rt::{Array, jacrev};
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
/// let jacobian = jacrev(|x: &Array| x.sum(..).exp())(&x)?;
/// assert_eq!(jacobian.shape(), [3]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn jacrev<Args, F>(f: F) -> F::Boxed<Result<F::Out>>
where
    Args: First<First = Array> + 'static,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        jacobian(&f, &given, 0, at, "jacrev", |graph, leaves, _| back_from_all(graph, leaves))
    })
}

/// As [`jacrev`], by the chosen argument, an array; see [`jacfwd_by`].
///
/// # Errors
/// As [`jacrev`].
#[track_caller]
pub fn jacrev_by<const I: usize, Args, F>(_: Arg<I>, f: F) -> F::Boxed<Result<F::Out>>
where
    Args: Tree + 'static,
    Arg<I>: Argnums<Args, Picked = Array>,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        jacobian(&f, &given, I, at, "jacrev", |graph, leaves, _| back_from_all(graph, leaves))
    })
}

/// The second derivatives of a function by the first argument: forward mode over its gradient.
///
/// The first argument is an array of a floating-point type, and the function returns one floating-point number. The
/// result has the argument's shape twice.
///
/// # Errors
/// As [`grad`](super::grad).
///
/// ```
/// use pallas_rt::{Array, hessian};
/// let x = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// let second = hessian(|x: &Array| (x * x * x).sum(..))(&x)?;
/// assert_eq!(second.to_vec::<f32>()?, [6.0, 0.0, 0.0, 12.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn hessian<Args, F>(f: F) -> F::Boxed<Result<Array>>
where
    Args: First<First = Array> + 'static,
    F: Function<Args, Out = Array>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| jacobian(&f, &given, 0, at, "hessian", second))
}

/// As [`hessian`], by the chosen argument, an array; see [`jacfwd_by`].
///
/// # Errors
/// As [`hessian`].
#[track_caller]
pub fn hessian_by<const I: usize, Args, F>(_: Arg<I>, f: F) -> F::Boxed<Result<Array>>
where
    Args: Tree + 'static,
    Arg<I>: Argnums<Args, Picked = Array>,
    F: Function<Args, Out = Array>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| jacobian(&f, &given, I, at, "hessian", second))
}

/// The second derivatives of a graph by some of its parameters: of each pair of them.
pub(super) fn second(graph: &Graph, leaves: &[usize], at: Loc) -> Result<Appends> {
    let result = graph.gives().remove(0);
    if !result.shape.is_empty() {
        let message = format!("the second derivatives of a function that returns {result}");
        let help = "return one floating-point number, such as a sum or a mean";
        return Err(Error::operation(at, Diag::new("hessian", At::Op, message, help)));
    }
    let backward = vjp(graph, &by(graph, leaves)).map_err(refused)?;
    let mut gradient = Graph::default();
    let mut args: Vec<Var> = graph.takes().into_iter().map(|ty| gradient.param(ty)).collect();
    args.push(gradient.literal(Literal::new(result.dtype, 1.0)));
    let found = gradient.inline(&backward, &args).split_off(1);
    gradient.results = in_order(leaves, found);
    along_all(&gradient, leaves)
}

/// Appends the Jacobians of each of a graph's results by each of some parameters; takes variables for its parameters.
pub(super) type Appends = Box<dyn FnOnce(&mut Graph, &[Var]) -> Result<Vec<Var>, Diag>>;

/// Calls a function's Jacobian by the argument with this number, an array. `made` makes it of the function's graph and the
/// number of the parameter.
fn jacobian<Args, F>(
    f: &F,
    given: &Given<'_, Args>,
    number: usize,
    at: Loc,
    name: &'static str,
    made: impl FnOnce(&Graph, &[usize], Loc) -> Result<Appends>,
) -> Result<F::Out>
where
    Args: Tree + 'static,
    F: Function<Args>,
{
    let (returned, outs) = jacobians(f, given, &[number], at, name, made)?;
    tree::rebuild(&returned, outs)
}

/// The result of a function, of which the structure is meant, and the Jacobians of each array of it by each of those of
/// the arguments with these numbers.
pub(super) fn jacobians<Args, F>(
    f: &F,
    given: &Given<'_, Args>,
    numbers: &[usize],
    at: Loc,
    name: &'static str,
    made: impl FnOnce(&Graph, &[usize], Loc) -> Result<Appends>,
) -> Result<(F::Out, Vec<Array>)>
where
    Args: Tree + 'static,
    F: Function<Args>,
{
    let ((args, structures), tuple) = ((given.flat)(), &(given.tuple)());
    args.iter().try_for_each(|x| x.check().map(drop))?;
    let leaves = leaves_of(numbers, &structures);
    let wrong = |message: String, help: &str| Err(Error::operation(at, Diag::new(name, At::Op, message, help)));
    if let Some(x) = leaves.iter().map(|&leaf| &args[leaf]).find(|x| !x.dtype().is_float()) {
        let message = format!("`{name}` by an array of {}", type_of(x));
        return wrong(message, "derivatives are by floating-point arrays: pass others in another argument");
    }
    let client = client_of(&args)?;
    let TracedFunction { returned, graph, captured, .. } = traced(f, tuple, &args, &client)?;
    if let Some((ty, path)) = graph.gives().iter().zip(tree::paths(&returned)).find(|(ty, _)| !ty.dtype.is_float()) {
        let of = if path.is_empty() { String::new() } else { format!(" `{path}`") };
        return wrong(format!("`{name}` of a result{of} of {ty}"), "return floating-point arrays alone");
    }
    let append = made(&graph, &leaves, at)?;
    let all: Vec<&Array> = args.iter().chain(&captured).collect();
    Ok((returned, apply_all(&all, at, &client, append)?))
}

fn by(graph: &Graph, leaves: &[usize]) -> Vec<bool> {
    (0..graph.params.len()).map(|i| leaves.contains(&i)).collect()
}

/// The items of some parameters, in their order; `found` has the order of the graph's parameters.
fn in_order<T: Clone>(leaves: &[usize], found: Vec<T>) -> Vec<T> {
    leaves.iter().map(|leaf| found[leaves.iter().filter(|other| *other < leaf).count()].clone()).collect()
}

/// Forward mode: each result's tangents along all elements of each parameter.
pub(super) fn along_all(graph: &Graph, leaves: &[usize]) -> Result<Appends> {
    let gives = graph.gives();
    let one = |&leaf: &usize| {
        let forward = jvp(graph, &by(graph, &[leaf])).map_err(refused)?;
        let ty = graph.takes().remove(leaf);
        let which: Vec<bool> = (0..forward.params.len()).map(|i| i == graph.params.len()).collect();
        let (forward, has) = batched(&forward, &which, ty.elements()).map_err(refused)?;
        Ok((forward, has, ty))
    };
    let all = leaves.iter().map(one).collect::<Result<Vec<_>>>()?;
    Ok(Box::new(move |to, vars| {
        let mut by_leaf = vec![];
        for (forward, has, by) in &all {
            let basis = basis(to, by)?;
            let tangents = to.inline(forward, &[vars, &[basis]].concat()).split_off(gives.len());
            let mut results = vec![];
            for ((v, &has), ty) in tangents.into_iter().zip(&has[gives.len()..]).zip(&gives) {
                let v = if has { v } else { stretched(to, v, by.elements())? };
                let axes = (1..=ty.shape.len()).chain([0]).collect();
                let v = to.push(StructuralOp::from(Transpose { axes }), &[v])?;
                results.push(reshaped(to, v, &[&ty.shape[..], &by.shape].concat())?);
            }
            by_leaf.push(results);
        }
        Ok((0..gives.len()).flat_map(|i| by_leaf.iter().map(move |results| results[i])).collect())
    }))
}

/// Reverse mode: the cotangents of each parameter from all elements of each result.
pub(super) fn back_from_all(graph: &Graph, leaves: &[usize]) -> Result<Appends> {
    let backward = vjp(graph, &by(graph, leaves)).map_err(refused)?;
    let takes: Vec<Type> = leaves.iter().map(|&leaf| graph.takes().remove(leaf)).collect();
    let gives = graph.gives();
    let one = |i: usize| {
        let which: Vec<bool> = (0..backward.params.len()).map(|k| k == graph.params.len() + i).collect();
        let (mut back, mut has) = batched(&backward, &which, gives[i].elements()).map_err(refused)?;
        back.results = in_order(leaves, back.results.split_off(gives.len()));
        Ok((back, in_order(leaves, has.split_off(gives.len()))))
    };
    let all = (0..gives.len()).map(one).collect::<Result<Vec<(Graph, Vec<bool>)>>>()?;
    Ok(Box::new(move |to, vars| {
        let mut results = vec![];
        for (i, (back, has)) in all.iter().enumerate() {
            let mut args = vars.to_vec();
            for (k, ty) in gives.iter().enumerate() {
                args.push(if k == i { basis(to, ty)? } else { to.splat(Literal::new(ty.dtype, 0.0), &ty.shape) });
            }
            for ((v, has), by) in to.inline(back, &args).into_iter().zip(has).zip(&takes) {
                let v = if *has { v } else { stretched(to, v, gives[i].elements())? };
                results.push(reshaped(to, v, &[&gives[i].shape[..], &by.shape].concat())?);
            }
        }
        Ok(results)
    }))
}

/// For each element of a type an array that is one there and zero elsewhere, along a new axis in front.
fn basis(to: &mut Graph, ty: &Type) -> Result<Var, Diag> {
    let n = ty.elements();
    let number = |to: &mut Graph, axis: usize| {
        let iota = Iota { shape: vec![Dim::from(n), Dim::from(n)], axis, dtype: DType::I32 };
        to.push(StructuralOp::from(iota), &[])
    };
    let (row, column) = (number(to, 0)?, number(to, 1)?);
    let is_one = to.push(ScalarOp::Eq, &[row, column])?;
    let ones = to.push(StructuralOp::from(Cast { to: ty.dtype }), &[is_one])?;
    reshaped(to, ones, &[&[n], &ty.shape[..]].concat())
}

fn reshaped(to: &mut Graph, v: Var, shape: &[usize]) -> Result<Var, Diag> {
    to.push(StructuralOp::from(Reshape { to: shape.iter().map(|&n| Dim::from(n)).collect() }), &[v])
}

/// A variable repeated along a new axis in front.
fn stretched(to: &mut Graph, v: Var, size: usize) -> Result<Var, Diag> {
    let shape = [&[size], &to.ty(v).shape[..]].concat();
    let op = Broadcast { dims: (1..shape.len()).collect(), to: shape.iter().map(|&n| Dim::from(n)).collect() };
    to.push(StructuralOp::from(op), &[v])
}
