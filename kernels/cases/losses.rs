//! Losses of classes, and tables of rows.
use super::{Case, Entry, one, two};
use pallas_kernels::cross_entropy::{
    Options, cross_entropy, cross_entropy_backward, cross_entropy_lse, cross_entropy_of_logits,
    cross_entropy_of_logits_backward,
};
use pallas_kernels::embedding::{embedding, embedding_backward};
use pallas_rt::prelude::*;

const OPTIONS: Options = Options { ignore: -100, smoothing: 0.0, z_loss: 0.0 };

/// Rows `[n, d]` by classes `[v, d]`.
pub const LOSSES: &[Entry] = &[
    Entry::new("cross-entropy", |g| {
        let operands = [g.floats("nd")?, g.floats("vd")?, g.labels("n", 'v')?];
        let case = Case::new(operands, |x| two(cross_entropy(&x[0], &x[1], &x[2], &OPTIONS)?));
        let case = case.backward(
            |x| Ok([x, &[cross_entropy(&x[0], &x[1], &x[2], &OPTIONS)?.1]].concat()),
            |x| two(cross_entropy_backward(&x[0], &x[1], &x[2], &x[3], &x[4], &OPTIONS)?),
        );
        Ok(case.flops(2.0 * g.shape("nvd").iter().product::<usize>() as f64, 4.0))
    }),
    Entry::new("cross-entropy of logits", |g| {
        let operands = [g.floats("nv")?, g.labels("n", 'v')?];
        let case = Case::new(operands, |x| two(cross_entropy_of_logits(&x[0], &x[1], &OPTIONS)?));
        Ok(case.backward(
            |x| Ok([x, &[cross_entropy_of_logits(&x[0], &x[1], &OPTIONS)?.1]].concat()),
            |x| one(cross_entropy_of_logits_backward(&x[0], &x[1], &x[2], &x[3], &OPTIONS)?),
        ))
    }),
    Entry::new("log-sum-exp of losses", |g| {
        Ok(Case::new([g.array(DType::F32, "n")?], |x| one(cross_entropy_lse(&x[0])?)))
    }),
];

/// Rows `n` of a table `[v, d]`.
pub const TABLES: &[Entry] = &[Entry::new("embedding", |g| {
    let rows = g.of('v');
    let case = Case::new([g.floats("vd")?, g.ids("n", 'v')?], |x| one(embedding(&x[0], &x[1])?));
    // Only the rows asked for are read, and added to.
    Ok(case
        .backward(|x| Ok(x[1..].to_vec()), move |x| one(embedding_backward(&x[1], &x[0], rows, None)?))
        .flops(0.0, 0.0))
})];
