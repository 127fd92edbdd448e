//! Gradients of functions of trees.
use super::argnums::{Arg, Argnums, leaf_indices};
use super::compile::convert_transform_error;
use super::function::{CallArguments, Function};
use super::trace::{TracedFunction, apply_multi_result, type_of};
use super::traced::trace_function;
use super::transformed::{Transformation, Transformed, box_call};
use crate::array::Array;
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::transform::vjp_of_results;
use pallas_ir::{At, Diag, Literal, Loc};
use std::sync::Arc;

/// Result of a function that has a gradient: a number, or a pair of a number and another tree, which has no part in the
/// gradient (`has_aux` in JAX).
#[diagnostic::on_unimplemented(
    message = "a function that returns `{Self}` has no gradient",
    note = "it returns an array, which is one number, or a tuple of that and one more tree"
)]
pub trait Loss {
    /// Type of what the call returns for a gradient of type `P`: the gradient, paired with the other tree if there is
    /// one.
    type Gradient<P: Tree + Send + Sync + 'static>: Tree + Send + Sync + 'static;
    /// Pairs a gradient with the other tree of this result, if there is one.
    fn beside<P: Tree + Send + Sync + 'static>(self, gradient: P) -> Self::Gradient<P>;
}

impl Loss for Array {
    type Gradient<P: Tree + Send + Sync + 'static> = P;
    fn beside<P: Tree + Send + Sync + 'static>(self, gradient: P) -> P {
        gradient
    }
}

impl<Aux: Tree + Send + Sync + 'static> Loss for (Array, Aux) {
    type Gradient<P: Tree + Send + Sync + 'static> = (P, Aux);
    fn beside<P: Tree + Send + Sync + 'static>(self, gradient: P) -> (P, Aux) {
        (gradient, self.1)
    }
}

/// A function's value and its gradient by the first argument: a tree like that argument.
///
/// The function returns an array of rank 0 of a floating-point type, and the leaves of its first argument have such
/// types too. It may return a pair of that array and another tree, which has no part in the gradient: the value is then
/// that pair. [`argnums`](Transformed::argnums) chooses other arguments. Reverse mode, see [`vjp`](super::vjp).
///
/// # Errors
/// The call returns an error if the function does not return one number, or a leaf has integers; and those of
/// [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, value_and_grad};
/// let loss = value_and_grad(|w: &Array, x: &Array| {
///     let outputs = w * x;
///     (outputs.sum(..), outputs)
/// });
/// let w = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// let x = Array::from_slice(&[3.0f32, 4.0], &[2])?;
/// let ((value, outputs), gradient) = loss(&w, &x)?;
/// assert_eq!((value.to_vec::<f32>()?, outputs.to_vec::<f32>()?), (vec![11.0], vec![3.0, 8.0]));
/// assert_eq!(gradient.to_vec::<f32>()?, [3.0, 4.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn value_and_grad<Args, F>(f: F) -> Transformed<Args, F, ValueAndGrad>
where
    Args: Tree + 'static,
    F: Function<Args>,
    F::Out: Loss,
{
    Transformed::new(f, ValueAndGrad(Arg), Loc::caller())
}

/// A function's gradient by the first argument; see [`value_and_grad()`]. With a pair of a number and another tree, the
/// call returns the gradient and that tree.
///
/// # Errors
/// As [`value_and_grad()`].
///
/// ```
/// use pallas_rt::{Array, grad};
/// // The second derivative of x³ at 2.
/// let second = grad(|x: &Array| grad(|x: &Array| x * x * x)(x));
/// let x = Array::from_slice(&[2.0f32], &[])?;
/// assert_eq!(second(&x)?.to_vec::<f32>()?, [12.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn grad<Args, F>(f: F) -> Transformed<Args, F, Grad>
where
    Args: Tree + 'static,
    F: Function<Args>,
    F::Out: Loss,
{
    Transformed::new(f, Grad(Arg), Loc::caller())
}

/// Option of [`grad()`]: the chosen arguments.
#[derive(Clone, Debug)]
pub struct Grad<P = Arg<0>>(P);

/// Option of [`value_and_grad()`]: the chosen arguments.
#[derive(Clone, Debug)]
pub struct ValueAndGrad<P = Arg<0>>(P);

impl<Args, F, P> Transformation<Args, F> for Grad<P>
where
    Args: Tree + 'static,
    F: Function<Args>,
    F::Out: Loss,
    P: Argnums<Args>,
{
    type Out = <F::Out as Loss>::Gradient<P::Picked>;
    type Call = F::Boxed<Result<Self::Out>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        box_call(f, self, move |f, by, given| {
            compute_gradient(f, given, &by.0, at).map(|(out, gradient)| out.beside(gradient))
        })
    }
}

impl<Args, F, P> Transformation<Args, F> for ValueAndGrad<P>
where
    Args: Tree + 'static,
    F: Function<Args>,
    P: Argnums<Args>,
{
    type Out = (F::Out, P::Picked);
    type Call = F::Boxed<Result<Self::Out>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        box_call(f, self, move |f, by, given| compute_gradient(f, given, &by.0, at))
    }
}

/// Option of [`grad()`].
impl<Args: Tree + 'static, F: Function<Args>, P> Transformed<Args, F, Grad<P>> {
    /// Chooses the arguments to differentiate by: [`Arg`], or a tuple of up to four of them. The gradient is a tree
    /// like that argument, or a tuple of such trees.
    pub fn argnums<Q: Argnums<Args>>(self, argnums: Q) -> Transformed<Args, F, Grad<Q>> {
        self.map_options(|_| Grad(argnums))
    }
}

/// Option of [`value_and_grad()`].
impl<Args: Tree + 'static, F: Function<Args>, P> Transformed<Args, F, ValueAndGrad<P>> {
    /// Chooses the arguments to differentiate by, as for [`grad()`].
    ///
    /// ```
    /// use pallas_rt::{Arg, Array, value_and_grad};
    /// let f = value_and_grad(|x: &Array, n: &Array, y: &Array| x * n * y * y).argnums((Arg::<2>, Arg::<0>));
    /// let number = |x: f32| Array::from_slice(&[x], &[]);
    /// let (value, (by_y, by_x)) = f(&number(2.0)?, &number(1.0)?, &number(3.0)?)?;
    /// assert_eq!([value, by_y, by_x].map(|x| x.to_vec::<f32>().unwrap()[0]), [18.0, 12.0, 9.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn argnums<Q: Argnums<Args>>(self, argnums: Q) -> Transformed<Args, F, ValueAndGrad<Q>> {
        self.map_options(|_| ValueAndGrad(argnums))
    }
}

/// Calls a function; returns its result, and the gradient of the result's first leaf by the chosen arguments.
fn compute_gradient<Args: Tree + 'static, F: Function<Args>, P: Argnums<Args>>(
    f: &F,
    given: &CallArguments<'_, Args>,
    argnums: &P,
    at: Loc,
) -> Result<(F::Out, P::Picked)> {
    let ((args, structures), tuple) = ((given.flat)(), &(given.tuple)());
    let wrt = leaf_indices(&argnums.numbers(), &structures);
    check_differentiable(&args, &wrt, at)?;
    let (out, traced, _) = trace_function(f, tuple, &args)?;
    let (outs, gradient) = compute_results_and_gradient(traced, &args, &wrt, at)?;
    Ok((tree::rebuild(&out, outs)?, tree::rebuild(&argnums.picked(tuple), gradient)?))
}

fn gradient_error(at: Loc, message: String, help: &str) -> Error {
    Error::operation(at, Diag::new("grad", At::Op, message, help))
}

/// Returns an error if one of the leaves with the indices `wrt` has no derivatives, or if an argument holds an error.
fn check_differentiable(args: &[Array], wrt: &[usize], at: Loc) -> Result<()> {
    args.iter().try_for_each(|x| x.check().map(drop))?;
    let Some(x) = wrt.iter().map(|&i| &args[i]).find(|x| !x.dtype().is_float()) else { return Ok(()) };
    let message = format!("a gradient by an array of {}", type_of(x));
    Err(gradient_error(at, message, "gradients are by floating-point arrays: pass others in another argument"))
}

/// Computes the results of a traced function, and the gradient of the first result by the leaves with the indices
/// `wrt`.
///
/// # Errors
/// A first result that is not one number; an operation without derivative; errors of the device.
fn compute_results_and_gradient(
    traced: TracedFunction,
    args: &[Array],
    wrt: &[usize],
    at: Loc,
) -> Result<(Vec<Array>, Vec<Array>)> {
    let TracedFunction { graph, captured, .. } = traced;
    let result = graph.result_types().remove(0);
    if !result.shape.is_empty() || !result.dtype.is_float() {
        let message = format!("the gradient of a function that returns {result}");
        return Err(gradient_error(at, message, "return one floating-point number, such as a sum or a mean"));
    }
    let flags: Vec<bool> = (0..graph.params.len()).map(|i| wrt.contains(&i)).collect();
    let of_first: Vec<bool> = (0..graph.results.len()).map(|i| i == 0).collect();
    let backward = vjp_of_results(&graph, &flags, &of_first).map_err(convert_transform_error)?;
    let all: Vec<&Array> = args.iter().chain(&captured).collect();
    let one = Literal::new(result.dtype, 1.0);
    let mut outs = apply_multi_result(&all, at, |graph, vars| {
        let one = graph.literal(one);
        Ok(graph.inline(&backward, &[vars, &[one]].concat()))
    })?;
    // Gradients come in the order of the parameters.
    let found = outs.split_off(graph.results.len());
    let place = |i: &usize| flags[..*i].iter().filter(|on| **on).count();
    Ok((outs, wrt.iter().map(|i| found[place(i)].clone()).collect()))
}
