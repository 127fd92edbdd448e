//! Gradients of functions of trees.
use super::argnums::leaves_of;
use super::compiled::{client_of, traced};
use super::function::{Function, Given};
use super::trace::{TracedFunction, apply_all, type_of};
use crate::array::Array;
use crate::array::Client;
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::transform::{Refused, vjp_of};
use pallas_ir::{At, Diag, Literal, Loc};

/// The first of several trees.
pub trait First: Tree {
    /// Its type.
    type First: Tree + 'static;
    /// The tree.
    fn first(&self) -> &Self::First;
}

macro_rules! firsts {
    ($($Rest:ident)*) => {
        impl<First_: Tree + 'static, $($Rest: Tree),*> First for (First_, $($Rest,)*) {
            type First = First_;
            fn first(&self) -> &First_ {
                &self.0
            }
        }
    };
}
firsts!();
firsts!(B);
firsts!(B C);
firsts!(B C D);
firsts!(B C D E);
firsts!(B C D E F);
firsts!(B C D E F G);
firsts!(B C D E F G H);

/// A function's value and its gradient by the first argument: a tree like that argument.
///
/// The function returns an array of rank 0 of a floating-point type, and the leaves of its first argument have such types
/// too. Reverse mode, see [`vjp`](super::vjp).
///
/// # Errors
/// The call returns an error if the function does not return one number, or a leaf has integers; and those of
/// [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, value_and_grad};
/// let loss = value_and_grad(|w: &Array, x: &Array| (w * x).sum(..));
/// let w = Array::from_slice(&[1.0f32, 2.0], &[2])?;
/// let x = Array::from_slice(&[3.0f32, 4.0], &[2])?;
/// let (value, gradient) = loss(&w, &x)?;
/// assert_eq!((value.to_vec::<f32>()?, gradient.to_vec::<f32>()?), (vec![11.0], vec![3.0, 4.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn value_and_grad<Args, F>(f: F) -> F::Boxed<Result<(Array, Args::First)>>
where
    Args: First + 'static,
    F: Function<Args, Out = Array>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        let first = (given.tuple)().first().clone();
        gradient(&f, &given, &[0], &first, at)
    })
}

/// As [`value_and_grad`], for a function that returns its value and another tree, which has no part in the gradient.
///
/// # Errors
/// As [`value_and_grad`].
///
/// ```
/// use pallas_rt::{Array, value_and_grad_aux};
/// let loss = value_and_grad_aux(|w: &Array, x: &Array| {
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
#[expect(clippy::type_complexity, reason = "all of it is what the call returns")]
pub fn value_and_grad_aux<Args, Aux, F>(f: F) -> F::Boxed<Result<((Array, Aux), Args::First)>>
where
    Args: First + 'static,
    Aux: Tree + Send + Sync + 'static,
    F: Function<Args, Out = (Array, Aux)>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        let first = (given.tuple)().first().clone();
        gradient(&f, &given, &[0], &first, at)
    })
}

/// The result of a function, and the gradient of its first leaf by the arguments with these numbers, which are `picked`.
pub(super) fn gradient<Args: Tree + 'static, F: Function<Args>, P: Tree>(
    f: &F,
    given: &Given<'_, Args>,
    numbers: &[usize],
    picked: &P,
    at: Loc,
) -> Result<(F::Out, P)> {
    let ((args, structures), tuple) = ((given.flat)(), &(given.tuple)());
    let wrt = leaves_of(numbers, &structures);
    let client = differentiable(&args, &wrt, at)?;
    let (returned, traced) = traced(f, tuple, &args, &client)?.split();
    let (outs, gradient) = backward(traced, &args, &wrt, &client, at)?;
    Ok((tree::rebuild(&returned, outs)?, tree::rebuild(picked, gradient)?))
}

fn wrong(at: Loc, message: String, help: &str) -> Error {
    Error::operation(at, Diag::new("grad", At::Op, message, help))
}

/// The client of arguments whose leaves with these numbers are differentiated by.
///
/// # Errors
/// A leaf without derivatives; an argument that holds an error; arguments on several clients.
fn differentiable(args: &[Array], wrt: &[usize], at: Loc) -> Result<Client> {
    args.iter().try_for_each(|x| x.check().map(drop))?;
    if let Some(x) = wrt.iter().map(|&i| &args[i]).find(|x| !x.dtype().is_float()) {
        let message = format!("a gradient by an array of {}", type_of(x));
        return Err(wrong(at, message, "gradients are by floating-point arrays: pass others in another argument"));
    }
    client_of(args)
}

/// The results of a function, and the gradient of the first one by the leaves with these numbers.
///
/// # Errors
/// A first result that is not one number; an operation without derivative; errors of the device.
fn backward(
    traced: TracedFunction<()>,
    args: &[Array],
    wrt: &[usize],
    client: &Client,
    at: Loc,
) -> Result<(Vec<Array>, Vec<Array>)> {
    let TracedFunction { graph, captured, .. } = traced;
    let result = graph.gives().remove(0);
    if !result.shape.is_empty() || !result.dtype.is_float() {
        let message = format!("the gradient of a function that returns {result}");
        return Err(wrong(at, message, "return one floating-point number, such as a sum or a mean"));
    }
    let flags: Vec<bool> = (0..graph.params.len()).map(|i| wrt.contains(&i)).collect();
    let of_first: Vec<bool> = (0..graph.results.len()).map(|i| i == 0).collect();
    let backward = vjp_of(&graph, &flags, &of_first).map_err(refused)?;
    let all: Vec<&Array> = args.iter().chain(&captured).collect();
    let one = Literal::new(result.dtype, 1.0);
    let mut outs = apply_all(&all, at, client, |graph, vars| {
        let one = graph.literal(one);
        Ok(graph.inline(&backward, &[vars, &[one]].concat()))
    })?;
    // They come in the order of the parameters.
    let found = outs.split_off(graph.results.len());
    let place = |i: &usize| flags[..*i].iter().filter(|on| **on).count();
    Ok((outs, wrt.iter().map(|i| found[place(i)].clone()).collect()))
}

/// The error of a transformation.
pub(super) fn refused(refused: Refused) -> Error {
    Error::operation(refused.at, refused.diag)
}

/// A function's gradient by the first argument; see [`value_and_grad`].
///
/// # Errors
/// As [`value_and_grad`].
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
pub fn grad<Args, F>(f: F) -> F::Boxed<Result<Args::First>>
where
    Args: First + 'static,
    F: Function<Args, Out = Array>,
{
    let both = value_and_grad(f);
    F::boxed(move |given: Given<'_, Args>| F::call_boxed(&both, &(given.tuple)()).map(|(_, gradient)| gradient))
}
