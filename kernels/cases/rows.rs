//! Rows: softmax and norms, gates, and rotations of positions.
use super::{Case, Entry, Given, one, three, two};
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::norm_backward::{layer_norm_backward, rms_norm_backward};
use pallas_kernels::rotary::{Pairs, rotary, rotary_backward};
use pallas_kernels::softmax::{log_softmax, softmax};
use pallas_kernels::softmax_backward::{log_softmax_backward, softmax_backward};
use pallas_rt::prelude::*;

const EPSILON: f32 = 1e-5;

/// Rows `[n, d]`.
pub const ROWS: &[Entry] = &[
    Entry::new("softmax", |g| {
        let case = Case::new([g.floats("nd")?], |x| one(softmax(&x[0])?));
        Ok(case.backward(|x| one(softmax(&x[0])?), |x| one(softmax_backward(&x[0], &x[1])?)))
    }),
    Entry::new("log_softmax", |g| {
        let case = Case::new([g.floats("nd")?], |x| one(log_softmax(&x[0])?));
        Ok(case.backward(|x| one(log_softmax(&x[0])?), |x| one(log_softmax_backward(&x[0], &x[1])?)))
    }),
    Entry::new("layer_norm", |g| {
        let operands = [g.floats("nd")?, g.floats("d")?, g.floats("d")?];
        let case = Case::new(operands, |x| one(layer_norm(&x[0], &x[1], &x[2], EPSILON)?));
        Ok(case.backward(|x| Ok(x[..2].to_vec()), |x| three(layer_norm_backward(&x[0], &x[1], &x[2], EPSILON)?)))
    }),
    Entry::new("rms_norm", |g| {
        let case = Case::new([g.floats("nd")?, g.floats("d")?], |x| one(rms_norm(&x[0], &x[1], EPSILON)?));
        Ok(case.backward(|x| Ok(x[..2].to_vec()), |x| two(rms_norm_backward(&x[0], &x[1], &x[2], EPSILON)?)))
    }),
];

/// Pairs of rows `[n, d]`.
pub const GATES: &[Entry] =
    &[Entry::new("swiglu", |g| gate(g, Gate::Silu)), Entry::new("geglu", |g| gate(g, Gate::Gelu))];

fn gate(g: &Given<'_>, by: Gate) -> Result<Case> {
    let case = Case::new([g.floats("nd")?, g.floats("nd")?], move |x| one(gated(&x[0], &x[1], by)?));
    Ok(case.backward(|x| Ok(x.to_vec()), move |x| two(gated_backward(&x[0], &x[1], &x[2], by)?)))
}

/// Positions `[h, n, d]`, or `[n, d]` if `h` is not given, with cosines and sines `[n, e]` that have no gradients.
pub const ROTARY: &[Entry] = &[
    Entry::new("rotary", |g| turned(g, Pairs::Halves)),
    Entry::new("rotary of neighbours", |g| turned(g, Pairs::Neighbours)),
];

fn turned(g: &Given<'_>, pairs: Pairs) -> Result<Case> {
    let axes = if g.get('h').is_some() { "hnd" } else { "nd" };
    let operands = [g.floats(axes)?, g.array(DType::F32, "ne")?, g.array(DType::F32, "ne")?];
    let case = Case::new(operands, move |x| one(rotary(&x[0], &x[1], &x[2], pairs)?));
    Ok(case.backward(|x| Ok(x[1..].to_vec()), move |x| one(rotary_backward(&x[2], &x[0], &x[1], pairs)?)))
}
