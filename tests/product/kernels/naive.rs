//! Attention of one query, as it is written in a book.

/// Result and log-sum-exp of a query over the keys it sees.
pub(super) fn attend<'a>(
    q: &[f64],
    seen: impl Iterator<Item = (&'a [f64], &'a [f64])>,
    scale: f64,
    cap: Option<f32>,
) -> (Vec<f64>, f64) {
    let capped = |s: f64| cap.map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh());
    let seen: Vec<(f64, &[f64])> = seen.map(|(k, v)| (capped(product(q, k) * scale), v)).collect();
    let max = seen.iter().map(|(s, _)| *s).fold(f64::NEG_INFINITY, f64::max);
    let mut out = vec![0.0; q.len()];
    if max == f64::NEG_INFINITY {
        return (out, max);
    }
    let total: f64 = seen.iter().map(|(s, _)| (s - max).exp()).sum();
    for (s, v) in &seen {
        out.iter_mut().zip(*v).for_each(|(o, v)| *o += (s - max).exp() / total * v);
    }
    (out, max + total.ln())
}

pub(super) fn product(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}
