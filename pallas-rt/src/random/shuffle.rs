//! Random orders, and elements chosen by them.
use super::lanes::{ElementwiseBuilder, VarResult};
use super::{Key, draw_array, gumbel, randint, uniform};
use crate::array::{Array, canonicalize_axis};
use crate::ops::Side;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{ArgSort, Iota, Reshape, Slice, TakeAlong};
use pallas_ir::{At, DType, Diag, Dim, Loc, StructuralOp};

/// Returns the number of sorts by 32 random bits after which an order of this many elements is random enough, by JAX's
/// rule.
fn shuffle_sort_count(elements: usize) -> usize {
    (3.0 * (elements.max(1) as f64).ln() / f64::from(u32::MAX).ln()).ceil() as usize
}

/// Appends the elements of `x`, of this shape, in a random order along an axis, by sorts of random bits, one for each
/// element of the builder's shape. Without `x` the positions along the axis are put in random order.
fn push_shuffle(
    lanes: &mut ElementwiseBuilder<'_>,
    mut key: [Var; 2],
    x: Option<Var>,
    shape: &[usize],
    axis: usize,
) -> VarResult {
    let mut x = x;
    for _ in 0..shuffle_sort_count(shape.iter().product()) {
        let [next, own] = lanes.split(key)?;
        let bits = lanes.random_bits(own)?;
        let order = lanes.graph.push(StructuralOp::from(ArgSort { axis, descending: false }), &[bits])?;
        x = Some(match x {
            Some(x) => lanes.graph.push(StructuralOp::from(TakeAlong { axis }), &[x, order])?,
            None => order,
        });
        key = next;
    }
    let iota = |graph: &mut Graph| {
        let shape = shape.iter().map(|&n| Dim::from(n)).collect();
        graph.push(StructuralOp::from(Iota { shape, axis, dtype: DType::I32 }), &[])
    };
    x.map_or_else(|| iota(lanes.graph), Ok)
}

/// The numbers from 0 to `n` - 1 in a random order, i32; `jax.random.permutation(key, n)`.
///
/// ```
/// use pallas_rt::random;
/// let order = random::permutation(random::key(0), 5);
/// assert_eq!(order.sort(0).to_vec::<i32>()?, [0, 1, 2, 3, 4]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn permutation(key: Key, n: usize) -> Array {
    draw_array(key, &[], &[n], Loc::caller(), |lanes, key, _| push_shuffle(lanes, key, None, &[n], 0))
}

/// An array with the positions along an axis in a random order; `jax.random.permutation(key, x, axis)`.
#[track_caller]
#[must_use]
pub fn permuted(key: Key, x: &Array, axis: isize) -> Array {
    let n = canonicalize_axis(axis, x.shape().len()).map_or(0, |axis| x.shape()[axis]);
    draw_array(key, &[x], &[n], Loc::caller(), |lanes, key, vars| {
        let shape = lanes.graph.ty(vars[0]).shape.clone();
        let axis = canonicalize_axis(axis, shape.len())?;
        let order = push_shuffle(lanes, key, None, &[n], 0)?;
        push_take_along(lanes.graph, vars[0], order, axis)
    })
}

/// An array with the elements of each line along an axis in a random order of its own; `jax.random.permutation(key, x,
/// axis, independent=True)`.
#[track_caller]
#[must_use]
pub fn shuffled(key: Key, x: &Array, axis: isize) -> Array {
    let shape = x.shape().to_vec();
    draw_array(key, &[x], &shape, Loc::caller(), |lanes, key, vars| {
        let axis = canonicalize_axis(axis, shape.len())?;
        push_shuffle(lanes, key, Some(vars[0]), &shape, axis)
    })
}

/// Random numbers from 0 to `n` - 1, i32, each as likely as any other; without replacement, none twice;
/// `jax.random.choice(key, n, shape, replace)`.
///
/// ```
/// use pallas_rt::random;
/// let hand = random::choice(random::key(0), 52, &[5], false).to_vec::<i32>()?;
/// assert!((1..5).all(|i| !hand[..i].contains(&hand[i])));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn choice(key: Key, n: usize, shape: &[usize], replace: bool) -> Array {
    let at = Loc::caller();
    if let Err(mistake) = check_choice_count(n, shape, replace) {
        return draw_array(key, &[], shape, at, |_, _, _| Err(mistake));
    }
    if replace {
        return randint(key, shape, 0, n.max(1) as i64, DType::I32);
    }
    draw_array(key, &[], &[n], at, |lanes, key, _| {
        let order = push_shuffle(lanes, key, None, &[n], 0)?;
        first_elements(lanes.graph, order, shape)
    })
}

/// Elements of an array at random positions along an axis, which the axes `shape` replace; `jax.random.choice(key, x,
/// shape, replace, axis=axis)`.
#[track_caller]
#[must_use]
pub fn choice_from(key: Key, x: &Array, shape: &[usize], replace: bool, axis: isize) -> Array {
    let n = canonicalize_axis(axis, x.shape().len()).map_or(1, |axis| x.shape()[axis]);
    let positions = choice(key, n, shape, replace);
    crate::jit::apply(&[x, &positions], Loc::caller(), |graph, v| {
        let own = graph.ty(v[0]).shape.clone();
        let axis = canonicalize_axis(axis, own.len())?;
        let flat = push_reshape(graph, v[1], &[shape.iter().product()])?;
        let chosen = push_take_along(graph, v[0], flat, axis)?;
        push_reshape(graph, chosen, &[&own[..axis], shape, &own[axis + 1..]].concat())
    })
}

/// Random positions in an array of weights of one axis, i32, each as likely as its weight is large; without
/// replacement, none twice; `jax.random.choice(key, n, shape, replace, p=weights)`.
///
/// Weights are not negative, and as many as are drawn without replacement are not 0.
#[track_caller]
#[must_use]
pub fn weighted_choice(key: Key, weights: &Array, shape: &[usize], replace: bool) -> Array {
    let at = Loc::caller();
    let ([n], true) = (weights.shape(), weights.dtype().is_float()) else {
        let message = format!("weights of {} {:?}", weights.dtype(), weights.shape());
        let mistake = Diag::new("choice", At::Operand(0), message, "floats of one axis");
        return draw_array(key, &[weights], shape, at, |_, _, _| Err(mistake));
    };
    let count: usize = shape.iter().product();
    if let Err(mistake) = check_choice_count(*n, shape, replace) {
        return draw_array(key, &[weights], shape, at, |_, _, _| Err(mistake));
    }
    if replace {
        let sums = weights.cumsum(0);
        let drawn = sums.max(..) * (1.0 - uniform(key, shape, weights.dtype()));
        return sums.searchsorted(&drawn, Side::Left);
    }
    let scores = gumbel(key, &[*n], weights.dtype()) + weights.log();
    let positions = scores.top_k(count, 0).1;
    crate::jit::apply(&[&positions], at, |graph, v| push_reshape(graph, v[0], shape))
}

/// Refuses a draw of as many elements as `shape` has from `n`: of any from none, and of more than `n` unless `replace`
/// is true.
fn check_choice_count(n: usize, shape: &[usize], replace: bool) -> Result<(), Diag> {
    let count = shape.iter().fold(1usize, |all, &n| all.saturating_mul(n));
    let wrong = |help: &str| Diag::new("choice", At::Op, format!("a choice of {count} of {n}"), help);
    match (n, replace) {
        (0, _) if count > 0 => Err(wrong("there is nothing to choose from")),
        (_, false) if count > n => Err(wrong("without replacement, at most as many as there are")),
        _ => Ok(()),
    }
}

/// Appends the first elements of an array with one axis, in this shape.
fn first_elements(graph: &mut Graph, line: Var, shape: &[usize]) -> VarResult {
    let size = vec![shape.iter().product::<usize>().into()];
    let first = graph.push(StructuralOp::from(Slice { start: vec![0], size, stride: vec![1] }), &[line])?;
    push_reshape(graph, first, shape)
}

fn push_reshape(graph: &mut Graph, v: Var, shape: &[usize]) -> VarResult {
    let to = shape.iter().map(|&n| Dim::from(n)).collect();
    graph.push(StructuralOp::from(Reshape { to }), &[v])
}

/// Appends the elements of `x` along `axis` at `positions`, an array of one axis.
fn push_take_along(graph: &mut Graph, x: Var, positions: Var, axis: usize) -> VarResult {
    let mut to = graph.ty(x).shape.clone();
    let mut unit = vec![1; to.len()];
    (unit[axis], to[axis]) = (graph.ty(positions).elements(), graph.ty(positions).elements());
    let wide = push_reshape(graph, positions, &unit)?;
    let wide = graph.broadcast(wide, &to)?;
    graph.push(StructuralOp::from(TakeAlong { axis }), &[x, wide])
}
