//! Products of matrices, whole and with weights of few bits.
use super::{Case, Entry, Given, one, typed};
use pallas_kernels::matmul::{
    Layout, matmul, matmul_blocks, matmul_int8, matmul_nt_blocks, matmul_tn_blocks, matmul_tt_blocks, matmul_with,
};
use pallas_kernels::quantized_matmul::{Bits, Quantized, quantize, quantized_matmul};
use pallas_rt::prelude::*;

/// `[n, k]` by `[k, m]`, each of them as it is or transposed.
pub const PRODUCTS: &[Entry] = &[
    Entry::new("matmul", |g| {
        let operands = [g.floats("nk")?, g.floats("km")?];
        product(g, operands, [false, false], |a, b, turned| match turned {
            [false, false] => matmul(a, b),
            _ => matmul_with(a, b, layout(turned), |c| c),
        })
    }),
    Entry::new("matmul of transposed rows", |g| chosen(g, ["kn", "km"], [true, false])),
    Entry::new("matmul of transposed columns", |g| chosen(g, ["nk", "mk"], [false, true])),
    Entry::new("matmul of transposed", |g| chosen(g, ["kn", "mk"], [true, true])),
];

/// Batches of them in blocks: `[b, n, k]` by `[b, k, m]`.
pub const PRODUCTS_IN_BLOCKS: &[Entry] = &[
    Entry::new("matmul in blocks", |g| in_blocks(g, ["bnk", "bkm"], [false, false])),
    Entry::new("matmul of transposed rows in blocks", |g| in_blocks(g, ["bkn", "bkm"], [true, false])),
    Entry::new("matmul of transposed columns in blocks", |g| in_blocks(g, ["bnk", "bmk"], [false, true])),
    Entry::new("matmul of transposed in blocks", |g| in_blocks(g, ["bkn", "bmk"], [true, true])),
];

/// Products of bytes.
pub const BYTES: &[Entry] = &[
    Entry::new("matmul int8", |g| of_bytes(g, ["nk", "km"], [false, false])),
    Entry::new("matmul int8 of transposed rows", |g| of_bytes(g, ["kn", "km"], [true, false])),
    Entry::new("matmul int8 of transposed columns", |g| of_bytes(g, ["nk", "mk"], [false, true])),
    Entry::new("matmul int8 of transposed", |g| of_bytes(g, ["kn", "mk"], [true, true])),
];

/// `[n, k]` by weights `[k, m]` with scales for groups of `q` rows.
pub const QUANTISED: &[Entry] = &[
    Entry::new("matmul int8 weights", |g| quantised(g, Bits::Eight)),
    Entry::new("matmul int4 weights", |g| quantised(g, Bits::Four)),
];

fn layout([a_transposed, b_transposed]: [bool; 2]) -> Layout {
    Layout { a_transposed, b_transposed }
}

fn flops(g: &Given<'_>) -> f64 {
    2.0 * g.shape("nkm").iter().product::<usize>() as f64
}

/// A product of operands of which some are transposed, and its gradients, which are products as well.
fn product(
    g: &Given<'_>,
    operands: [Array; 2],
    [a, b]: [bool; 2],
    multiply: impl Fn(&Array, &Array, [bool; 2]) -> Result<Array> + Clone + Send + Sync + 'static,
) -> Result<Case> {
    let forward = multiply.clone();
    let case = Case::new(operands, move |x| one(forward(&x[0], &x[1], [a, b])?));
    let backward = move |x: &[Array]| {
        let (x, y, dc) = (&x[0], &x[1], &x[2]);
        let dx = if a { multiply(y, dc, [b, true])? } else { multiply(dc, y, [false, !b])? };
        let dy = if b { multiply(dc, x, [true, a])? } else { multiply(x, dc, [!a, false])? };
        Ok(vec![dx, dy])
    };
    Ok(case.backward(|x| Ok(x.to_vec()), backward).flops(flops(g), 2.0))
}

/// The kernel takes a function of sums, so nothing states its gradients.
fn chosen(g: &Given<'_>, [a, b]: [&str; 2], transposed: [bool; 2]) -> Result<Case> {
    let call = move |x: &[Array]| one(matmul_with(&x[0], &x[1], layout(transposed), |c| c)?);
    Ok(Case::new([g.floats(a)?, g.floats(b)?], call).flops(flops(g), 2.0))
}

fn in_blocks(g: &Given<'_>, [a, b]: [&str; 2], transposed: [bool; 2]) -> Result<Case> {
    let (operands, u) = ([g.floats(a)?, g.floats(b)?], g.of('u'));
    product(g, operands, transposed, move |a, b, transposed| {
        typed!(a, E => match transposed {
            [false, false] => matmul_blocks::<E, E>(a, b, |c| c, u, u, u),
            [true, false] => matmul_tn_blocks::<E, E>(a, b, |c| c, u, u, u),
            [false, true] => matmul_nt_blocks::<E, E>(a, b, |c| c, u, u, u),
            [true, true] => matmul_tt_blocks::<E, E>(a, b, |c| c, u, u, u),
        })
    })
}

fn of_bytes(g: &Given<'_>, [a, b]: [&str; 2], transposed: [bool; 2]) -> Result<Case> {
    let operands = [g.array(DType::I8, a)?, g.array(DType::I8, b)?];
    Ok(Case::new(operands, move |x| one(matmul_int8(&x[0], &x[1], layout(transposed))?)).flops(flops(g), 2.0))
}

fn quantised(g: &Given<'_>, bits: Bits) -> Result<Case> {
    let w = quantize(&g.array(DType::F32, "km")?, bits, g.get('q'))?;
    let values = w.values.clone();
    let case = Case::new([g.floats("nk")?, values], move |x| {
        one(quantized_matmul(&x[0], &Quantized { values: x[1].clone(), ..w.clone() })?)
    });
    Ok(case.flops(flops(g), 2.0))
}
