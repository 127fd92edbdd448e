//! All derivatives of the arrays of a tree by those of trees.
use super::argnums::Argnums;
use super::function::{Function, Given};
use super::jacobian::{Appends, along_all, back_from_all, jacobians, second};
use crate::array::Array;
use crate::tree::{self, Mapped, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::Graph;
use pallas_ir::Loc;

/// The Jacobians of a function by chosen arguments, which may be trees, by forward mode: a tree like the result whose
/// leaves are trees like the argument, or tuples of such trees for several arguments.
///
/// Each array of a result's leaf has the shape of the result's array, then that of the argument's. Arrays of both have
/// floating-point types.
///
/// # Errors
/// As [`jacfwd`](super::jacfwd).
///
/// ```
/// use pallas_rt::{Arg, Array, jacfwd_trees};
/// let array = |x: &[f32]| Array::from_slice(x, &[x.len()]);
/// let f = |(w, b): &(Array, Array), x: &Array| (w * x + b, x.sum(..));
/// let jacobians = jacfwd_trees((Arg::<0>, Arg::<1>), f);
/// let all = jacobians(&(array(&[1.0, 2.0])?, array(&[0.5])?), &array(&[3.0, 4.0])?)?;
/// let ((by_w, by_b), by_x) = &all.leaves()[0];
/// assert_eq!(by_w.to_vec::<f32>()?, [3.0, 0.0, 0.0, 4.0]);
/// assert_eq!((by_b.shape(), by_x.to_vec::<f32>()?), (&[2, 1][..], vec![1.0, 0.0, 0.0, 2.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn jacfwd_trees<Args, P, F>(argnums: P, f: F) -> F::Boxed<Result<Mapped<P::Picked>>>
where
    Args: Tree + 'static,
    P: Argnums<Args>,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        by_results(&f, &given, &argnums, at, "jacfwd", |graph, leaves, _| along_all(graph, leaves))
    })
}

/// As [`jacfwd_trees`], by reverse mode: one pass for each array of the result, for all arguments together.
///
/// # Errors
/// As [`jacrev`](super::jacrev).
#[track_caller]
pub fn jacrev_trees<Args, P, F>(argnums: P, f: F) -> F::Boxed<Result<Mapped<P::Picked>>>
where
    Args: Tree + 'static,
    P: Argnums<Args>,
    F: Function<Args>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        by_results(&f, &given, &argnums, at, "jacrev", |graph, leaves, _| back_from_all(graph, leaves))
    })
}

/// The second derivatives of a function by chosen arguments, which may be trees: a tree like the argument, or a tuple of
/// such trees, whose leaves are again such trees. Each array has the shape of the first argument's array, then that of the
/// second one's.
///
/// The function returns one floating-point number.
///
/// # Errors
/// As [`hessian`](super::hessian).
///
/// ```
/// use pallas_rt::{Arg, Array, hessian_trees};
/// let number = |x: f32| Array::from_slice(&[x], &[]);
/// let second = hessian_trees((Arg::<0>, Arg::<1>), |x: &Array, y: &Array| x * x * y);
/// let all = second(&number(3.0)?, &number(5.0)?)?;
/// let (xx, xy) = all.get("0").expect("of the first argument");
/// assert_eq!((xx.to_vec::<f32>()?, xy.to_vec::<f32>()?), (vec![10.0], vec![6.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn hessian_trees<Args, P, F>(argnums: P, f: F) -> F::Boxed<Result<Mapped<P::Picked>>>
where
    Args: Tree + 'static,
    P: Argnums<Args>,
    F: Function<Args, Out = Array>,
{
    let at = Loc::caller();
    F::boxed(move |given: Given<'_, Args>| {
        let picked = argnums.picked(&(given.tuple)());
        let (_, outs) = jacobians(&f, &given, &argnums.numbers(), at, "hessian", second)?;
        grouped(&picked, &picked, outs)
    })
}

fn by_results<Args, P, F>(
    f: &F,
    given: &Given<'_, Args>,
    argnums: &P,
    at: Loc,
    name: &'static str,
    made: impl FnOnce(&Graph, &[usize], Loc) -> Result<Appends>,
) -> Result<Mapped<P::Picked>>
where
    Args: Tree + 'static,
    P: Argnums<Args>,
    F: Function<Args>,
{
    let picked = argnums.picked(&(given.tuple)());
    let (returned, outs) = jacobians(f, given, &argnums.numbers(), at, name, made)?;
    grouped(&returned, &picked, outs)
}

/// A tree like `of` whose leaves are trees like `picked`, of arrays in order.
fn grouped<T: Tree, P: Tree>(of: &T, picked: &P, outs: Vec<Array>) -> Result<Mapped<P>> {
    let count = tree::structure(picked).leaves();
    let mut outs = outs.into_iter();
    let mut one = || tree::rebuild(picked, outs.by_ref().take(count).collect::<Vec<_>>());
    let mut all = (0..tree::structure(of).leaves()).map(|_| one()).collect::<Result<Vec<P>>>()?.into_iter();
    let mapped = tree::map_to(of, |_| all.next());
    let missing = || Error::Tree { called: Loc::caller(), message: "a tree whose leaves change".into() };
    mapped.try_map(|leaf| leaf.clone().ok_or_else(missing))
}
