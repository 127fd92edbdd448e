//! Rotary position embedding: rotates pairs of elements of a head by angles that grow with the position.
//!
//! ```text
//! (x, y) -> (x·cos θ - y·sin θ, x·sin θ + y·cos θ)      θ = position · base^(-2i/d) for pair i
//! ```
//! (Su et al. 2021.) Pairs are halves of the head (GPT-NeoX, Llama in its common form) or neighbours (GPT-J, the
//! paper). Cosines and sines come as tables, so that any scaling of angles serves; [`tables`] makes the plain ones. The
//! gradient is the opposite rotation.
use crate::argument_errors::argument_error;
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_rows, choose_block_sizes};
use crate::dtype_dispatch::{floats, with_gradient};
use crate::element::Floating;
use pallas_rt::Differentiable;
use pallas_rt::prelude::*;

/// Elements of a head that form a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pairs {
    /// Elements i and i + d/2.
    #[default]
    Halves,
    /// Elements 2i and 2i + 1.
    Neighbours,
}

/// Rotates the pairs of a block of heads and positions, in the opposite direction if `inverse`; pairs are neighbours if
/// `neighbours`, else elements of the two halves of a head.
#[kernel(grid = (cdiv(N, BN), cdiv(S, BS)), assume(D == 2 * P))]
pub fn rotary_blocks<E: Floating>(
    #[block([N, S, D] => [BN, BS, D], |n, i| (n, i, 0))] x: In<E>,
    #[block([S, P] => [BS, P], |_, i| (i, 0))] cos: In<f32>,
    #[block([S, P] => [BS, P], |_, i| (i, 0))] sin: In<f32>,
    #[block([N, S, D] => [BN, BS, D], |n, i| (n, i, 0))] out: Out<E>,
    #[fixed] neighbours: bool,
    #[fixed] inverse: bool,
    #[dim] BN: usize,
    #[dim] BS: usize,
) {
    let table = |x: In<f32>| x.load().cast::<E::Acc>().expand(0).broadcast([BN, BS, P]);
    let (cos, sin) = (table(cos), table(sin));
    let sin = if inverse { -sin } else { sin };
    let turned = |a: Tile<E>, b: Tile<E>| {
        let (a, b) = (a.cast::<E::Acc>(), b.cast::<E::Acc>());
        [a * cos - b * sin, a * sin + b * cos].map(|x| x.cast::<E>())
    };
    if neighbours {
        let pairs = x.load().reshape([BN, BS, P, 2]);
        let [a, b] = [0, 1].map(|i| pairs.slice([0, 0, 0, i], [BN, BS, P, 1]).reshape([BN, BS, P]));
        let turned = turned(a, b).map(|x| x.expand(3));
        out.store(concat(turned, 3).reshape([BN, BS, D]));
    } else {
        let halves = [0, P].map(|start| (.., .., ds(start, P)));
        let turned = turned(x.at(halves[0]).load(), x.at(halves[1]).load());
        out.at(halves[0]).store(turned[0]);
        out.at(halves[1]).store(turned[1]);
    }
}

/// Tables of cosines and sines `[positions, d / 2]`, for `positions` positions from `first` on and heads of `d`
/// elements; `base` is commonly 10,000.
///
/// # Errors
/// Device trouble.
#[track_caller]
pub fn tables(client: &Client, first: usize, positions: usize, d: usize, base: f64) -> Result<(Array, Array)> {
    let pairs = d / 2;
    // In double precision: at position 100,000 an angle in single precision is off by a hundredth.
    let angle = |at: usize| {
        let (position, pair) = (first + at / pairs, at % pairs);
        position as f64 * base.powf(-2.0 * pair as f64 / d as f64)
    };
    let table = |f: fn(f64) -> f64| -> Result<Array> {
        let x: Vec<f32> = (0..positions * pairs).map(|at| f(angle(at)) as f32).collect();
        client.array(&x, &[positions, pairs])
    };
    Ok((table(f64::cos)?, table(f64::sin)?))
}

/// Rotates heads of `x` in the opposite direction if `inverse`; see [`rotary`].
#[track_caller]
#[inline]
fn rotate_pairs(x: &Array, cos: &Array, sin: &Array, pairs: Pairs, inverse: bool) -> Result<Array> {
    let [outer @ .., s, d] = x.shape() else {
        return argument_error(format!("`x` has shape {:?}, expected [.., positions, head dimension]", x.shape()));
    };
    #[cfg(feature = "graph")]
    if pairs == Pairs::Halves
        && let Some(y) = crate::composed_ops::compose_rotary(x, [cos, sin], inverse)
    {
        return Ok(y);
    }
    let flat = x.reshape(&[outer.iter().product(), *s, *d]);
    let neighbours = pairs == Pairs::Neighbours;
    // Both halves of the heads and of the result, both tables, and the result.
    let need = |rows: usize| BlockResources::from_live_elements(6 * rows * d);
    let target = x.client().target();
    let candidates = [64, 8].map(|rows| ([rows], need(rows)));
    let [rows] = choose_block_sizes(BlockSizeKey::Rotary, target, [*s], candidates);
    // Where the number of cores is known, a program rotates several heads if they have few positions.
    let heads = if target.cores.is_some() { choose_block_rows(target, flat.shape()[0], rows * d, 1) } else { 1 };
    let out = floats!("rotary", x.dtype(), E => rotary_blocks::<E>(&flat, cos, sin, neighbours, inverse, heads, rows))?;
    Ok(out.reshape(x.shape()))
}

/// Rotates the pairs of `x` `[.., positions, d]` by tables `[positions, d / 2]` of f32; f32, f16 or bf16, computed in
/// f32.
///
/// # Errors
/// Shapes or element types that do not fit, an odd head dimension; device trouble.
///
/// ```
/// use pallas_kernels::rotary::{Pairs, rotary, tables};
/// use pallas_rt::{Array, Client};
/// let x = Array::from_slice(&[1.0f32, 0.0, 1.0, 0.0], &[2, 2])?;
/// let (cos, sin) = tables(x.client(), 0, 2, 2, 10_000.0)?;
/// let y = rotary(&x, &cos, &sin, Pairs::Halves)?.to_vec::<f32>()?;
/// assert_eq!(y, [1.0, 0.0, 1f32.cos(), 1f32.sin()]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn rotary(x: &Array, cos: &Array, sin: &Array, pairs: Pairs) -> Result<Array> {
    let (call, [x]) = Differentiable::begin([x])?;
    let y = rotate_pairs(&x, cos, sin, pairs, false)?;
    let [y] = with_gradient!(call, [y], &[], |[], [dy]| [rotary_backward(&dy, cos, sin, pairs)?]);
    Ok(y)
}

/// Gradient by x of [`rotary`], from the gradient `dy` by its result.
///
/// # Errors
/// As [`rotary`].
///
/// ```
/// use pallas_kernels::rotary::{Pairs, rotary_backward, tables};
/// use pallas_rt::Array;
/// let dy = Array::from_slice(&[1.0f32, 0.0], &[1, 2])?;
/// let (cos, sin) = tables(dy.client(), 1, 1, 2, 10_000.0)?;
/// assert_eq!(rotary_backward(&dy, &cos, &sin, Pairs::Halves)?.to_vec::<f32>()?, [1f32.cos(), -1f32.sin()]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn rotary_backward(dy: &Array, cos: &Array, sin: &Array, pairs: Pairs) -> Result<Array> {
    rotate_pairs(dy, cos, sin, pairs, true)
}
