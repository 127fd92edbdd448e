//! Kernels in blocks of `u` elements along every axis, of any float type: rows, gates and rotations, losses and tables.
use super::{Case, Entry, Given, one, two, typed};
use pallas_kernels::cross_entropy::{
    Options, cross_entropy_blocks, cross_entropy_dw, cross_entropy_dx, cross_entropy_of_logits_blocks,
    cross_entropy_of_logits_dz,
};
use pallas_kernels::embedding::{embedding_backward_blocks, embedding_blocks, embedding_rows};
use pallas_kernels::gated::{gated_backward_blocks, gated_blocks};
use pallas_kernels::norm::{layer_norm_whole_rows, normalise, rms_norm_whole_rows, row_moment};
use pallas_kernels::norm_backward::{
    norm_backward_apply, norm_backward_means, norm_backward_parameters, norm_backward_parts, norm_backward_sums,
    norm_backward_whole_rows,
};
use pallas_kernels::rotary::{rotary_blocks, tables};
use pallas_kernels::softmax::{softmax_apply, softmax_statistics, softmax_whole_rows};
use pallas_kernels::softmax_backward::{softmax_backward_apply, softmax_backward_sums, softmax_backward_whole_rows};
use pallas_rt::prelude::*;

/// Rows `[n, d]`: blocks of whole rows, and blocks of columns that are swept.
pub const ROWS_IN_BLOCKS: &[Entry] = &[
    Entry::new("softmax of whole rows", |g| softmax(g, false, true)),
    Entry::new("log_softmax of whole rows", |g| softmax(g, true, true)),
    Entry::new("softmax in blocks", |g| softmax(g, false, false)),
    Entry::new("log_softmax in blocks", |g| softmax(g, true, false)),
    Entry::new("layer_norm of whole rows", |g| norm(g, true, Sums::Columns)),
    Entry::new("layer_norm of whole rows, gradients in parts", |g| norm(g, true, Sums::Parts)),
    Entry::new("layer_norm in blocks", |g| norm(g, true, Sums::Swept)),
    Entry::new("rms_norm of whole rows", |g| norm(g, false, Sums::Columns)),
    Entry::new("rms_norm of whole rows, gradients in parts", |g| norm(g, false, Sums::Parts)),
    Entry::new("rms_norm in blocks", |g| norm(g, false, Sums::Swept)),
];

fn softmax(g: &Given<'_>, log: bool, whole: bool) -> Result<Case> {
    let u = g.of('u');
    let forward = move |x: &[Array]| {
        let x = &x[0];
        typed!(x, E => one(if whole {
            softmax_whole_rows::<E>(x, log, u)?
        } else {
            let (max, sum) = softmax_statistics::<E>(x, u, u)?;
            softmax_apply::<E>(x, &max, &sum, log, u, u)?
        }))
    };
    let case = Case::new([g.floats("nd")?], forward).backward(forward, move |x| {
        let (y, dy) = (&x[0], &x[1]);
        typed!(y, E => one(if whole {
            softmax_backward_whole_rows::<E>(y, dy, log, u)?
        } else {
            let sums = softmax_backward_sums::<E>(y, dy, log, u, u)?;
            softmax_backward_apply::<E>(y, dy, &sums, log, u, u)?
        }))
    });
    Ok(case)
}

const EPSILON: f32 = 1e-3;

/// Kernels that sum up gradients by parameters.
#[derive(Clone, Copy, PartialEq)]
enum Sums {
    /// Over blocks of columns, after a kernel of whole rows.
    Columns,
    /// By parts of rows, in the kernel of whole rows.
    Parts,
    /// Over blocks of columns, where rows are swept.
    Swept,
}

/// Layer norm, or RMS norm where rows have no centre.
fn norm(g: &Given<'_>, centre: bool, sums: Sums) -> Result<Case> {
    let u = g.of('u');
    let mut operands = vec![g.floats("nd")?, g.floats("1d")?];
    if centre {
        operands.push(g.floats("1d")?);
    }
    fn moments<E: pallas_kernels::element::Floating>(x: &Array, centre: bool, u: usize) -> Result<[Array; 3]> {
        let zero =
            x.client().zeros(&[x.shape()[0], 1], if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 })?;
        let mean = if centre { row_moment::<E>(x, &zero, 1, u, u)? } else { zero.clone() };
        let variance = row_moment::<E>(x, &mean, 2, u, u)?;
        Ok([mean, variance, zero])
    }
    let case = Case::new(operands, move |x| {
        let (x, gamma, beta) = (&x[0], &x[1], x.get(2));
        typed!(x, E => one(match (beta, sums) {
            (_, Sums::Swept) => {
                let [mean, variance, _] = moments::<E>(x, centre, u)?;
                let none = x.client().zeros(gamma.shape(), x.dtype())?;
                normalise::<E>(x, &mean, &variance, gamma, beta.unwrap_or(&none), EPSILON, u, u)?
            }
            (Some(beta), _) => layer_norm_whole_rows::<E>(x, gamma, beta, EPSILON, u)?,
            (None, _) => rms_norm_whole_rows::<E>(x, gamma, EPSILON, u)?,
        }))
    });
    let backward = move |x: &[Array]| {
        let (x, gamma, dy) = (&x[0], &x[1], &x[2]);
        let (dx, dgamma, dbeta) = typed!(x, E => match sums {
            Sums::Parts => {
                let steps = x.shape()[0].div_ceil(2 * u);
                let (dx, dgammas, dbetas) = norm_backward_parts::<E>(x, gamma, dy, EPSILON, centre, 2, steps, u)?;
                let (dgamma, dbeta) = norm_backward_sums::<E>(&dgammas, &dbetas, 2, u)?;
                (dx, dgamma, dbeta)
            }
            Sums::Columns => {
                let (dx, mean, variance) = norm_backward_whole_rows::<E>(x, gamma, dy, EPSILON, centre, u)?;
                let (dgamma, dbeta) = norm_backward_parameters::<E>(x, dy, &mean, &variance, EPSILON, u, u)?;
                (dx, dgamma, dbeta)
            }
            Sums::Swept => {
                let [mean, variance, zero] = moments::<E>(x, centre, u)?;
                let (level, along) = norm_backward_means::<E>(x, gamma, dy, &mean, &variance, EPSILON, u, u)?;
                let level = if centre { level } else { zero };
                let dx = norm_backward_apply::<E>(x, gamma, dy, &mean, &variance, &level, &along, EPSILON, u, u)?;
                let (dgamma, dbeta) = norm_backward_parameters::<E>(x, dy, &mean, &variance, EPSILON, u, u)?;
                (dx, dgamma, dbeta)
            }
        });
        Ok([vec![dx, dgamma], centre.then_some(dbeta).into_iter().collect()].concat())
    };
    Ok(case.backward(|x| Ok(x[..2].to_vec()), backward))
}

/// Pairs of `[n]`, and positions `[h, n, d]`.
pub const GATES_IN_BLOCKS: &[Entry] = &[
    Entry::new("swiglu in blocks", |g| gate(g, false)),
    Entry::new("geglu in blocks", |g| gate(g, true)),
    Entry::new("rotary in blocks", |g| turned(g, false)),
    Entry::new("rotary of neighbours in blocks", |g| turned(g, true)),
];

fn gate(g: &Given<'_>, gelu: bool) -> Result<Case> {
    let u = g.of('u');
    let forward = move |x: &[Array]| typed!(x[0], E => one(gated_blocks::<E>(&x[0], &x[1], gelu, u)?));
    Ok(Case::new([g.floats("n")?, g.floats("n")?], forward).backward(
        |x| Ok(x.to_vec()),
        move |x| typed!(x[0], E => two(gated_backward_blocks::<E>(&x[0], &x[1], &x[2], gelu, u)?)),
    ))
}

fn turned(g: &Given<'_>, neighbours: bool) -> Result<Case> {
    let (u, (cos, sin)) = (g.of('u'), tables(g.client, 3, g.of('n'), g.of('d'), 100.0)?);
    let turn = move |x: &Array, back: bool| typed!(x, E => rotary_blocks::<E>(x, &cos, &sin, neighbours, back, 1 + usize::from(back), u));
    let forward = turn.clone();
    let case = Case::new([g.floats("hnd")?], move |x| one(forward(&x[0], false)?));
    Ok(case.backward(|_| Ok(vec![]), move |x| one(turn(&x[0], true)?)))
}

/// Rows `[n, d]` by classes `[v, d]`, logits `[n, v]`, and rows `n` of a table `[v, d]`.
pub const CLASSES_IN_BLOCKS: &[Entry] = &[
    Entry::new("cross-entropy in blocks", |g| loss(g, PLAIN)),
    Entry::new("cross-entropy in blocks, a class ignored", |g| loss(g, IGNORED)),
    Entry::new("cross-entropy in blocks, smooth", |g| loss(g, SMOOTH)),
    Entry::new("cross-entropy in blocks, every option", |g| loss(g, EVERY)),
    Entry::new("cross-entropy of logits in blocks", |g| of_logits(g, PLAIN)),
    Entry::new("cross-entropy of logits in blocks, a class ignored", |g| of_logits(g, IGNORED)),
    Entry::new("cross-entropy of logits in blocks, smooth", |g| of_logits(g, SMOOTH)),
    Entry::new("cross-entropy of logits in blocks, every option", |g| of_logits(g, EVERY)),
    Entry::new("embedding of whole tables", |g| {
        let u = g.of('u');
        Ok(Case::new(
            [g.floats("vd")?, g.ids("n", 'v')?],
            move |x| typed!(x[0], E => one(embedding_rows::<E>(&x[1], &x[0], u)?)),
        ))
    }),
    Entry::new("embedding in blocks", |g| {
        const BLOCK: usize = 4;
        let (ids, rows) = (g.ids("n", 'v')?, g.of('v'));
        let (starts, order) = places(g.client, &ids.to_vec::<i32>()?, rows)?;
        let positions = g.of('n').next_power_of_two();
        let case =
            Case::new([g.floats("vd")?], move |x| typed!(x[0], E => one(embedding_blocks::<E, BLOCK>(&ids, &x[0])?)));
        Ok(case.backward(|_| Ok(vec![]), move |x| {
            typed!(x[0], E => one(embedding_backward_blocks::<E, BLOCK>(&starts, &order, &x[0], rows, positions)?))
        }))
    }),
];

const PLAIN: Options = Options { ignore: -100, smoothing: 0.0, z_loss: 0.0 };
const IGNORED: Options = Options { ignore: 1, ..PLAIN };
const SMOOTH: Options = Options { ignore: -1, smoothing: 0.25, ..PLAIN };
const EVERY: Options = Options { ignore: 2, smoothing: 0.125, z_loss: 0.5 };

fn loss(g: &Given<'_>, Options { ignore, smoothing, z_loss }: Options) -> Result<Case> {
    let (u, smooth, labels) = (g.of('u'), smoothing != 0.0, g.labels("n1", 'v')?);
    let depth = g.of('d').next_multiple_of(u);
    let of_gradients = labels.clone();
    let forward = move |x: &[Array]| {
        let (x, w) = (&x[0], &x[1]);
        typed!(x, E => two(
            cross_entropy_blocks::<E>(x, w, &labels, ignore, smoothing, z_loss, smooth, u, depth, u, u)?
        ))
    };
    let case = Case::new([g.floats("nd")?, g.floats("vd")?], forward.clone());
    Ok(case.backward(
        move |x| Ok([x, &forward(x)?[1..]].concat()),
        move |x| {
            let (x, w, lse, dloss, labels) = (&x[0], &x[1], &x[2], &x[3], &of_gradients);
            typed!(x, E => Ok(vec![
                cross_entropy_dx::<E>(x, w, labels, lse, dloss, ignore, smoothing, z_loss, u, depth, u, u)?,
                cross_entropy_dw::<E>(x, w, labels, lse, dloss, ignore, smoothing, z_loss, u, depth, u, u)?,
            ]))
        },
    ))
}

fn of_logits(g: &Given<'_>, Options { ignore, smoothing, z_loss }: Options) -> Result<Case> {
    let (u, smooth, labels) = (g.of('u'), smoothing != 0.0, g.labels("n1", 'v')?);
    let of_gradients = labels.clone();
    let forward = move |x: &[Array]| {
        // Whole rows, and rows that are swept.
        let (z, columns) = (&x[0], if smooth { x[0].shape()[1] } else { u });
        typed!(z, E => two(cross_entropy_of_logits_blocks::<E>(
            z, &labels, ignore, smoothing, z_loss, smooth, smooth, u, columns,
        )?))
    };
    Ok(Case::new([g.floats("nv")?], forward.clone()).backward(
        move |x| Ok([x, &forward(x)?[1..]].concat()),
        move |x| {
            let (z, lse, dloss, labels) = (&x[0], &x[1], &x[2], &of_gradients);
            typed!(z, E => one(
                cross_entropy_of_logits_dz::<E>(z, labels, lse, dloss, ignore, smoothing, z_loss, u, u)?
            ))
        },
    ))
}

/// The places where each number's positions begin in the order of numbers, and the positions in that order.
pub fn places(client: &Client, ids: &[i32], rows: usize) -> Result<(Array, Array)> {
    let mut order: Vec<i32> = (0..ids.len() as i32).collect();
    order.sort_by_key(|&t| ids[t as usize]);
    let starts: Vec<i32> = (0..=rows as i32).map(|v| ids.iter().filter(|&&id| id < v).count() as i32).collect();
    Ok((client.array(&starts, &[starts.len()])?, client.array(&order, &[order.len()])?))
}
