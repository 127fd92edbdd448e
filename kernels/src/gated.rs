//! Gated linear units: `act(gate) · up`, elementwise, and their gradients.
//!
//! ```text
//! swiglu = silu(g)·u    silu(g) = g·σ(g)    silu'(g) = σ(g)·(1 + g·(1 - σ(g)))
//! geglu  = gelu(g)·u    gelu(g) = g·Φ(g)    gelu'(g) = Φ(g) + g·φ(g)
//! ```
//! (Shazeer 2020; Hendrycks & Gimpel 2016.) Φ and φ are the normal distribution and its density; no approximation.
use crate::argument_errors::argument_error;
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_sizes, mesh_block_size};
use crate::dtype_dispatch::{floats, with_gradient};
use crate::element::{Floating, Wide};
use pallas_rt::Differentiable;
use pallas_rt::prelude::*;
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Activation function of the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    /// `g·σ(g)`, the gate of SwiGLU.
    Silu,
    /// `g·Φ(g)`, the gate of GEGLU.
    Gelu,
}

/// Returns the activation of the gate, GELU if `gelu`, else SiLU, and its derivative.
fn activation_and_derivative<A: Wide>(gate: Tile<A>, gelu: bool) -> (Tile<A>, Tile<A>) {
    if gelu {
        // Not `1 + erf`, which rounds to 0 below -6 although Φ is positive there.
        let below = (gate * -FRAC_1_SQRT_2).erfc() * 0.5;
        let density = (gate * gate * -0.5).exp() * (FRAC_1_SQRT_2 / PI.sqrt());
        (gate.gelu(), below + gate * density)
    } else {
        let s = gate.logistic();
        // A large `gate` would multiply the rounding of `1 - s`, which is 0 beyond 40 in every type.
        (gate * s, s * (gate.minimum(40.0) * (s * -1.0 + 1.0) + 1.0))
    }
}

/// Computes `act(gate) · up` of a block; `act` is GELU if `gelu`, else SiLU.
#[kernel(grid = (cdiv(N, BN)))]
pub fn gated_blocks<E: Floating>(
    #[block([N] => [BN], |i| (i,))] gate: In<E>,
    #[block([N] => [BN], |i| (i,))] up: In<E>,
    #[block([N] => [BN], |i| (i,))] out: Out<E>,
    #[fixed] gelu: bool,
    #[dim] BN: usize,
) {
    let (y, _) = activation_and_derivative(gate.load().cast::<E::Acc>(), gelu);
    out.store((y * up.load().cast::<E::Acc>()).cast::<E>());
}

/// Computes gradients by gate and up of a block from `dy`, that by the result; the activation is GELU if `gelu`, else
/// SiLU.
#[kernel(grid = (cdiv(N, BN)))]
pub fn gated_backward_blocks<E: Floating>(
    #[block([N] => [BN], |i| (i,))] gate: In<E>,
    #[block([N] => [BN], |i| (i,))] up: In<E>,
    #[block([N] => [BN], |i| (i,))] dy: In<E>,
    #[block([N] => [BN], |i| (i,))] dgate: Out<E>,
    #[block([N] => [BN], |i| (i,))] dup: Out<E>,
    #[fixed] gelu: bool,
    #[dim] BN: usize,
) {
    let (y, slope) = activation_and_derivative(gate.load().cast::<E::Acc>(), gelu);
    let dy = dy.load().cast::<E::Acc>();
    dgate.store((dy * up.load().cast::<E::Acc>() * slope).cast::<E>());
    dup.store((dy * y).cast::<E>());
}

/// Number of elements of a block of `x`.
fn choose_block_elements(x: &Array) -> usize {
    let target = x.client().target();
    // Gate, up, the gradient, and two results.
    let candidates = target.cores.map(|_| 1 << 15).into_iter().chain([2048]);
    let [block] = choose_block_sizes(
        BlockSizeKey::Gated,
        target,
        [x.len()],
        candidates.map(|n| ([n], BlockResources::NO_REQUIREMENTS)),
    );
    mesh_block_size(x.len(), block)
}

/// Refuses operands of different shapes.
#[track_caller]
fn check_equal_shapes(operands: &[(&str, &Array)]) -> Result<()> {
    let [(_, first), rest @ ..] = operands else { return Ok(()) };
    match rest.iter().find(|(_, x)| x.shape() != first.shape()) {
        None => Ok(()),
        Some((name, x)) => argument_error(format!("`{name}` has shape {:?}, `gate` {:?}", x.shape(), first.shape())),
    }
}

/// `act(gate) · up` of arrays of one shape; f32, f16 or bf16, computed in f32.
///
/// # Errors
/// Shapes or element types that do not fit; device trouble.
///
/// ```
/// use pallas_kernels::gated::{Gate, gated};
/// use pallas_rt::Array;
/// let (gate, up) = (Array::from_slice(&[0.0f32, 100.0], &[2])?, Array::from_slice(&[3.0f32, 0.5], &[2])?);
/// assert_eq!(gated(&gate, &up, Gate::Silu)?.to_vec::<f32>()?, [0.0, 50.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn gated(gate: &Array, up: &Array, by: Gate) -> Result<Array> {
    check_equal_shapes(&[("gate", gate), ("up", up)])?;
    let (call, [gate, up]) = Differentiable::begin([gate, up])?;
    let gelu = by == Gate::Gelu;
    let out = floats!("gated", gate.dtype(), E => gated_blocks::<E>(&gate.reshape(&[-1]), &up.reshape(&[-1]), gelu, choose_block_elements(&gate)))?;
    let [out] = with_gradient!(call, [out.reshape(gate.shape())], &[&gate, &up], |[gate, up], [dy]| {
        <[Array; 2]>::from(gated_backward(gate, up, &dy, by)?)
    });
    Ok(out)
}

/// Gradients of [`gated`] by gate and up, from the gradient by its result.
///
/// # Errors
/// As [`gated`].
///
/// ```
/// use pallas_kernels::gated::{Gate, gated_backward};
/// use pallas_rt::Array;
/// let (gate, up) = (Array::from_slice(&[0.0f32], &[1])?, Array::from_slice(&[3.0f32], &[1])?);
/// let (dgate, dup) = gated_backward(&gate, &up, &Array::from_slice(&[2.0f32], &[1])?, Gate::Silu)?;
/// assert_eq!((dgate.to_vec::<f32>()?, dup.to_vec::<f32>()?), (vec![3.0], vec![0.0]));
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn gated_backward(gate: &Array, up: &Array, dy: &Array, by: Gate) -> Result<(Array, Array)> {
    check_equal_shapes(&[("gate", gate), ("up", up), ("dy", dy)])?;
    let gelu = by == Gate::Gelu;
    let (dgate, dup) = floats!("gated_backward", gate.dtype(), E => {
        gated_backward_blocks::<E>(&gate.reshape(&[-1]), &up.reshape(&[-1]), &dy.reshape(&[-1]), gelu, choose_block_elements(gate))
    })?;
    Ok((dgate.reshape(gate.shape()), dup.reshape(gate.shape())))
}
