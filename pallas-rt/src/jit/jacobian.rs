//! Jacobians and Hessians: the derivatives of arrays by every element of arrays, in one call.
use super::argnums::{Arg, Argnums, leaf_indices};
use super::compile::convert_transform_error;
use super::function::{CallArguments, Function};
use super::trace::{TracedFunction, apply_multi_result, type_of};
use super::traced::trace_function;
use super::transformed::{Transformation, Transformed, box_call};
use super::vmap::push_repeat;
use crate::array::Array;
use crate::tree::{self, Mapped, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::transform::{batched, jvp, vjp};
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Cast, Iota, Reshape, Transpose};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, ScalarOp, StructuralOp, Type};
use std::sync::Arc;

/// A function's Jacobian by the first argument, by forward mode: one pass over a batch of as many tangents as that
/// array has elements. Cheaper than [`jacrev`] where results have more elements than the argument.
///
/// The first argument is an array of a floating-point type; the function returns a tree of such arrays. Each becomes
/// its derivatives, of the array's shape followed by the argument's. [`argnums`](Transformed::argnums) chooses other
/// arguments.
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
pub fn jacfwd<Args: Tree + 'static, F: Function<Args>>(f: F) -> Transformed<Args, F, Jacobian> {
    Transformed::new(f, Jacobian { mode: JacobianMode::Forward, argnums: Arg }, Loc::caller())
}

/// A function's Jacobian by the first argument, by reverse mode: one pass for each array of the result, over a batch of
/// as many cotangents as it has elements. Arguments and results are as for [`jacfwd`].
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
pub fn jacrev<Args: Tree + 'static, F: Function<Args>>(f: F) -> Transformed<Args, F, Jacobian> {
    Transformed::new(f, Jacobian { mode: JacobianMode::Reverse, argnums: Arg }, Loc::caller())
}

/// The second derivatives of a function by the first argument: forward mode over its gradient.
///
/// The first argument is an array of a floating-point type, and the function returns one floating-point number. The
/// result has the argument's shape twice. With several arguments ([`argnums`](Transformed::argnums)) it is a tree like
/// their tuple, with such a tuple in place of each array: the second derivatives by this array and by each of them.
///
/// # Errors
/// As [`grad`](super::grad).
///
/// ```
/// use pallas_rt::{Arg, Array, hessian};
/// let f = |x: &Array, y: &Array| (x * x * y).sum(..);
/// let (x, y) = (Array::from_slice(&[3.0f32], &[1])?, Array::from_slice(&[5.0f32], &[1])?);
/// assert_eq!(hessian(f)(&x, &y)?.to_vec::<f32>()?, [10.0]);
/// let all = hessian(f).argnums((Arg::<0>, Arg::<1>))(&x, &y)?;
/// let (xx, xy) = all.get("0").expect("of the first argument");
/// assert_eq!((xx.to_vec::<f32>()?, xy.to_vec::<f32>()?), (vec![10.0], vec![6.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn hessian<Args: Tree + 'static, F: Function<Args, Out = Array>>(f: F) -> Transformed<Args, F, Jacobian> {
    Transformed::new(f, Jacobian { mode: JacobianMode::ForwardOverReverse, argnums: Arg }, Loc::caller())
}

/// Options of [`jacfwd()`], [`jacrev()`] and [`hessian()`].
#[derive(Clone, Debug)]
pub struct Jacobian<P = Arg<0>> {
    mode: JacobianMode,
    argnums: P,
}

/// Method by which derivatives are computed: forward mode, reverse mode, or, for a Hessian, forward mode over a
/// gradient.
#[derive(Clone, Copy, PartialEq, Debug)]
enum JacobianMode {
    Forward,
    Reverse,
    ForwardOverReverse,
}

impl<Args, F, P> Transformation<Args, F> for Jacobian<P>
where
    Args: Tree + 'static,
    F: Function<Args>,
    P: JacobianArgnums<Args, F::Out>,
{
    type Out = P::Jacobians;
    type Call = F::Boxed<Result<P::Jacobians>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        box_call(f, self, move |f, options, given| compute_jacobians(f, given, options, at))
    }
}

/// Option of [`jacfwd()`], [`jacrev()`] and [`hessian()`].
impl<Args: Tree + 'static, F: Function<Args>, P> Transformed<Args, F, Jacobian<P>> {
    /// Chooses the arguments to differentiate by: an [`Arg`], which is an array, or a tuple of them, which may be
    /// trees.
    ///
    /// For a tuple, also one of a single argument, the Jacobians are a tree like the result, with a tuple like the
    /// chosen arguments in place of each array. Each array of it has the shape of the result's array, followed by that
    /// of the argument's.
    ///
    /// ```
    /// use pallas_rt::{Arg, Array, jacfwd};
    /// let array = |x: &[f32]| Array::from_slice(x, &[x.len()]);
    /// let f = |(w, b): &(Array, Array), x: &Array| (w * x + b, x.sum(..));
    /// let all = jacfwd(f).argnums((Arg::<0>, Arg::<1>))(&(array(&[1.0, 2.0])?, array(&[0.5])?), &array(&[3.0, 4.0])?)?;
    /// let ((by_w, by_b), by_x) = &all.leaves()[0];
    /// assert_eq!(by_w.to_vec::<f32>()?, [3.0, 0.0, 0.0, 4.0]);
    /// assert_eq!((by_b.shape(), by_x.to_vec::<f32>()?), (&[2, 1][..], vec![1.0, 0.0, 0.0, 2.0]));
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn argnums<Q: JacobianArgnums<Args, F::Out>>(self, argnums: Q) -> Transformed<Args, F, Jacobian<Q>> {
        self.map_options(|Jacobian { mode, .. }| Jacobian { mode, argnums })
    }
}

/// Arguments by which a function with a result of type `Out` is differentiated: [`Arg`] of an array, or a tuple of
/// [`Argnums`].
pub trait JacobianArgnums<Args, Out>: Argnums<Args> {
    /// Tree that a call returns: like the function's result, with the derivatives by the chosen arguments in place of
    /// each array.
    type Jacobians: 'static;
    /// Groups `all`, the Jacobians in order, into a tree like the result `out` with the derivatives by the arguments
    /// `picked` in place of each array. If `is_second`, for a Hessian, the tree is like `picked` instead of `out`.
    #[doc(hidden)]
    fn grouped(out: &Out, picked: &Self::Picked, is_second: bool, all: Vec<Array>) -> Result<Self::Jacobians>;
}

impl<const I: usize, Args, Out: Tree + 'static> JacobianArgnums<Args, Out> for Arg<I>
where
    Arg<I>: Argnums<Args, Picked = Array>,
{
    type Jacobians = Out;
    fn grouped(out: &Out, _: &Array, _: bool, all: Vec<Array>) -> Result<Out> {
        tree::rebuild(out, all)
    }
}

/// Implements `JacobianArgnums<Args, Out>` for `(P,)`, `(P, Q)` and so on.
macro_rules! tuples {
    ($($P:ident)+) => {
        impl<Args, Out: Tree, $($P: Argnums<Args>),+> JacobianArgnums<Args, Out> for ($($P,)+) {
            type Jacobians = Mapped<Self::Picked>;
            fn grouped(out: &Out, picked: &Self::Picked, is_second: bool, all: Vec<Array>) -> Result<Self::Jacobians> {
                if is_second { group_jacobians(picked, picked, all) } else { group_jacobians(out, picked, all) }
            }
        }
    };
}
tuples!(P);
tuples!(P Q);
tuples!(P Q R);
tuples!(P Q R S);

/// Groups arrays in order into a tree like `result` that has a tree like `picked` in place of each leaf.
fn group_jacobians<T: Tree, P: Tree>(result: &T, picked: &P, jacobians: Vec<Array>) -> Result<Mapped<P>> {
    let count = tree::structure(picked).leaves();
    let mut outs = jacobians.into_iter();
    let mut one = || tree::rebuild(picked, outs.by_ref().take(count).collect::<Vec<_>>());
    let mut all = (0..tree::structure(result).leaves()).map(|_| one()).collect::<Result<Vec<P>>>()?.into_iter();
    let mapped = tree::map_to(result, |_| all.next());
    let missing = || Error::Tree { called: Loc::caller(), message: "a tree whose leaves change".into() };
    mapped.try_map(|leaf| leaf.clone().ok_or_else(missing))
}

/// Prepares the second derivatives of a graph's only result by each pair of the parameters `leaves`.
fn prepare_hessian(graph: &Graph, leaves: &[usize], at: Loc) -> Result<AppendJacobians> {
    let result = graph.result_types().remove(0);
    if !result.shape.is_empty() {
        let message = format!("the second derivatives of a function that returns {result}");
        let help = "return one floating-point number, such as a sum or a mean";
        return Err(Error::operation(at, Diag::new("hessian", At::Op, message, help)));
    }
    let backward = vjp(graph, &parameter_mask(graph, leaves)).map_err(convert_transform_error)?;
    let mut gradient = Graph::default();
    let mut args: Vec<Var> = graph.param_types().into_iter().map(|ty| gradient.param(ty)).collect();
    args.push(gradient.literal(Literal::new(result.dtype, 1.0)));
    let found = gradient.inline(&backward, &args).split_off(1);
    gradient.results = order_by_parameters(leaves, found);
    prepare_forward_jacobian(&gradient, leaves)
}

/// A closure that appends the Jacobians of a graph's results; it takes variables for the graph's parameters.
type AppendJacobians = Box<dyn FnOnce(&mut Graph, &[Var]) -> Result<Vec<Var>, Diag>>;

/// Computes the Jacobians of each array of a function's result by each array of the chosen arguments.
fn compute_jacobians<Args, F, P>(
    f: &F,
    given: &CallArguments<'_, Args>,
    options: &Jacobian<P>,
    at: Loc,
) -> Result<P::Jacobians>
where
    Args: Tree + 'static,
    F: Function<Args>,
    P: JacobianArgnums<Args, F::Out>,
{
    let Jacobian { mode, argnums } = options;
    let name = match mode {
        JacobianMode::Forward => "jacfwd",
        JacobianMode::Reverse => "jacrev",
        JacobianMode::ForwardOverReverse => "hessian",
    };
    let ((args, structures), tuple) = ((given.flat)(), &(given.tuple)());
    args.iter().try_for_each(|x| x.check().map(drop))?;
    let leaves = leaf_indices(&argnums.numbers(), &structures);
    let wrong = |message: String, help: &str| Err(Error::operation(at, Diag::new(name, At::Op, message, help)));
    if let Some(x) = leaves.iter().map(|&leaf| &args[leaf]).find(|x| !x.dtype().is_float()) {
        let message = format!("`{name}` by an array of {}", type_of(x));
        return wrong(message, "derivatives are by floating-point arrays: pass others in another argument");
    }
    let (out, TracedFunction { graph, captured, .. }, _) = trace_function(f, tuple, &args)?;
    if let Some((ty, path)) = graph.result_types().iter().zip(tree::paths(&out)).find(|(ty, _)| !ty.dtype.is_float()) {
        let of = if path.is_empty() { String::new() } else { format!(" `{path}`") };
        return wrong(format!("`{name}` of a result{of} of {ty}"), "return floating-point arrays alone");
    }
    let append = match mode {
        JacobianMode::Forward => prepare_forward_jacobian(&graph, &leaves)?,
        JacobianMode::Reverse => prepare_reverse_jacobian(&graph, &leaves)?,
        JacobianMode::ForwardOverReverse => prepare_hessian(&graph, &leaves, at)?,
    };
    let all: Vec<&Array> = args.iter().chain(&captured).collect();
    let found = apply_multi_result(&all, at, append)?;
    P::grouped(&out, &argnums.picked(tuple), *mode == JacobianMode::ForwardOverReverse, found)
}

/// For each parameter of a graph, true if it is one of `leaves`.
fn parameter_mask(graph: &Graph, leaves: &[usize]) -> Vec<bool> {
    (0..graph.params.len()).map(|i| leaves.contains(&i)).collect()
}

/// Puts items into the order of the parameters `leaves`; `found` has them in ascending order of the parameters.
fn order_by_parameters<T: Clone>(leaves: &[usize], found: Vec<T>) -> Vec<T> {
    leaves.iter().map(|leaf| found[leaves.iter().filter(|other| *other < leaf).count()].clone()).collect()
}

/// Prepares Jacobians by forward mode: for each of the parameters `leaves`, a batch of tangents along all of its
/// elements.
fn prepare_forward_jacobian(graph: &Graph, leaves: &[usize]) -> Result<AppendJacobians> {
    let gives = graph.result_types();
    let one = |&leaf: &usize| {
        let forward = jvp(graph, &parameter_mask(graph, &[leaf])).map_err(convert_transform_error)?;
        let ty = graph.param_types().remove(leaf);
        let which: Vec<bool> = (0..forward.params.len()).map(|i| i == graph.params.len()).collect();
        let (forward, has) = batched(&forward, &which, ty.elements()).map_err(convert_transform_error)?;
        Ok((forward, has, ty))
    };
    let all = leaves.iter().map(one).collect::<Result<Vec<_>>>()?;
    Ok(Box::new(move |to, vars| {
        let mut by_leaf = vec![];
        for (forward, has, by) in &all {
            let basis = push_one_hot_basis(to, by)?;
            let tangents = to.inline(forward, &[vars, &[basis]].concat()).split_off(gives.len());
            let mut results = vec![];
            for ((v, &has), ty) in tangents.into_iter().zip(&has[gives.len()..]).zip(&gives) {
                let v = if has { v } else { push_repeat(to, v, 0, by.elements())? };
                let axes = (1..=ty.shape.len()).chain([0]).collect();
                let v = to.push(StructuralOp::from(Transpose { axes }), &[v])?;
                results.push(push_reshape(to, v, &[&ty.shape[..], &by.shape].concat())?);
            }
            by_leaf.push(results);
        }
        Ok((0..gives.len()).flat_map(|i| by_leaf.iter().map(move |results| results[i])).collect())
    }))
}

/// Prepares Jacobians by reverse mode: for each result, a batch of cotangents from all of its elements.
fn prepare_reverse_jacobian(graph: &Graph, leaves: &[usize]) -> Result<AppendJacobians> {
    let backward = vjp(graph, &parameter_mask(graph, leaves)).map_err(convert_transform_error)?;
    let takes: Vec<Type> = leaves.iter().map(|&leaf| graph.param_types().remove(leaf)).collect();
    let gives = graph.result_types();
    let one = |i: usize| {
        let which: Vec<bool> = (0..backward.params.len()).map(|k| k == graph.params.len() + i).collect();
        let (mut back, mut has) = batched(&backward, &which, gives[i].elements()).map_err(convert_transform_error)?;
        back.results = order_by_parameters(leaves, back.results.split_off(gives.len()));
        Ok((back, order_by_parameters(leaves, has.split_off(gives.len()))))
    };
    let all = (0..gives.len()).map(one).collect::<Result<Vec<(Graph, Vec<bool>)>>>()?;
    Ok(Box::new(move |to, vars| {
        let mut results = vec![];
        for (i, (back, has)) in all.iter().enumerate() {
            let mut args = vars.to_vec();
            for (k, ty) in gives.iter().enumerate() {
                args.push(if k == i {
                    push_one_hot_basis(to, ty)?
                } else {
                    to.splat(Literal::new(ty.dtype, 0.0), &ty.shape)
                });
            }
            for ((v, has), by) in to.inline(back, &args).into_iter().zip(has).zip(&takes) {
                let v = if *has { v } else { push_repeat(to, v, 0, gives[i].elements())? };
                results.push(push_reshape(to, v, &[&gives[i].shape[..], &by.shape].concat())?);
            }
        }
        Ok(results)
    }))
}

/// One-hot arrays of a type, stacked along a new first axis: for each element an array that is one there and zero
/// elsewhere.
fn push_one_hot_basis(to: &mut Graph, ty: &Type) -> Result<Var, Diag> {
    let n = ty.elements();
    let number = |to: &mut Graph, axis: usize| {
        let iota = Iota { shape: vec![Dim::from(n), Dim::from(n)], axis, dtype: DType::I32 };
        to.push(StructuralOp::from(iota), &[])
    };
    let (row, column) = (number(to, 0)?, number(to, 1)?);
    let is_one = to.push(ScalarOp::Eq, &[row, column])?;
    let ones = to.push(StructuralOp::from(Cast { to: ty.dtype }), &[is_one])?;
    push_reshape(to, ones, &[&[n], &ty.shape[..]].concat())
}

fn push_reshape(to: &mut Graph, v: Var, shape: &[usize]) -> Result<Var, Diag> {
    to.push(StructuralOp::from(Reshape { to: shape.iter().map(|&n| Dim::from(n)).collect() }), &[v])
}
