//! Folds and products: the types in which they accumulate.
use super::{Line, is, is_near, supports};
use pallas_rt::DeviceKind;
use pallas_rt::ops::accumulate;
use pallas_rt::ops::{self, ConvolveMode, Padding, Windows};
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
use pallas_rt::spmd::psum;
use pallas_rt::{grad, jit, scan, shard_map};
use std::sync::Arc;

pub(super) const LINES: &[Line] = &[
    ("fold-16-bits", sums_of_16_bits),
    ("fold-formula", formulas),
    ("fold-tile", tiles),
    ("fold-narrow", narrow),
    ("fold-scatter", scatters),
    ("fold-argument", argument),
    ("fold-variance", variances),
    ("fold-area", areas),
    ("fold-mesh", mesh),
    ("fold-scan", scans),
    ("product-16-bits", products),
    ("product-narrow", narrow_products),
    ("product-padding", padding),
];

const HALVES: [DType; 2] = [DType::F16, DType::Bf16];

/// The nearest number of a 16-bit type.
fn rounded(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F16 { f16::from_f64(x).to_f64() } else { bf16::from_f64(x).to_f64() }
}

/// The distance of neighbours in a type, as a share of numbers.
fn ulp(dtype: DType) -> f64 {
    if dtype == DType::F16 { 2f64.powi(-10) } else { 2f64.powi(-7) }
}

/// `rows` times `x` in two columns.
fn columns(client: &Client, dtype: DType, rows: usize, x: f32) -> Result<Array> {
    Ok(client.full(&[rows, 2], x)?.cast(dtype))
}

fn sums_of_16_bits(client: &Client) -> Result<()> {
    for dtype in HALVES {
        let x = columns(client, dtype, 3000, 1.0)?;
        let sum = rounded(dtype, 3000.0);
        is(&x.sum(0), &[sum; 2])?;
        is(&x.sum(..), &[rounded(dtype, 6000.0)])?;
        is(&jit(|x: &Array| x.sum(0))(&x)?, &[sum; 2])?;
        is(&x.t().sum(1), &[sum; 2])?;
        is(&x.cumsum(0).index((2999, ..)), &[sum; 2])?;
        is(&x.cumsum(0).index((2998, ..)), &[rounded(dtype, 2999.0); 2])?;
        // A step up and one down: rounded at each step, 1.0078125² would be lost.
        let step = columns(client, dtype, 301, 1.0078125)?;
        let exact = rounded(dtype, 1.0078125f64.powi(301));
        is_near(&step.prod(0), &[exact; 2], ulp(dtype))?;
        is_near(&step.cumprod(0).index((300, ..)), &[exact; 2], ulp(dtype))?;
        let windows = Windows { window_dimensions: &[3000, 1], ..Windows::default() };
        is(&x.reduce_window(pallas_rt::ops::ScalarOp::Add, &windows), &[sum; 2])?;
        let one = client.full(&[2], 1.0f32)?.cast(dtype);
        let scaled = move |w: &Array| (&x * w).cast(DType::F32).sum(..);
        is(&grad(scaled.clone())(&one)?, &[sum; 2])?;
        is(&jit(grad(scaled))(&one)?, &[sum; 2])?;
    }
    Ok(())
}

fn formulas(client: &Client) -> Result<()> {
    for dtype in HALVES {
        let x = columns(client, dtype, 70_000, 1.0)?;
        is(&x.mean(0), &[1.0; 2])?;
        is(&x.std(0), &[0.0; 2])?;
        is(&x.var(0), &[0.0; 2])?;
        is_near(&x.logsumexp(0), &[1.0 + 70_000f64.ln(); 2], ulp(dtype))?;
        is(&x.mean(accumulate(0, DType::F32)), &[1.0; 2])?;
        // The squares of 300 exceed f16.
        is(&columns(client, dtype, 4, 300.0)?.norm(0), &[rounded(dtype, 600.0); 2])?;
        let pooled = client.full(&[1, 3000, 1], 1.0f32)?.cast(dtype).avg_pool(&[3000], &[], [(0, 0)], true);
        is(&pooled, &[1.0])?;
    }
    Ok(())
}

#[kernel(grid = ())]
pub(super) fn folded<E: Real>(
    #[block([N, 2] => [N, 2], || (0, 0))] x: In<E>,
    #[block([1, 2] => [1, 2], || (0, 0))] sum: Out<E>,
    #[block([1, 2] => [1, 2], || (0, 0))] product: Out<E>,
    #[block([N, 2] => [N, 2], || (0, 0))] sums: Out<E>,
    #[block([N, 2] => [N, 2], || (0, 0))] products: Out<E>,
) {
    let x = x.load();
    sum.store(x.sum(0));
    product.store(x.prod(0));
    sums.store(x.cumsum(0));
    products.store(x.cumprod(0));
}

fn tiles(client: &Client) -> Result<()> {
    for dtype in HALVES {
        let (x, n) = (columns(client, dtype, 300, 1.0078125)?, 300);
        let (sum, product, sums, products) = if dtype == DType::F16 { folded::<f16>(&x)? } else { folded::<bf16>(&x)? };
        let [of_sum, of_product] = [300.0 * 1.0078125, 1.0078125f64.powi(300)].map(|x| rounded(dtype, x));
        is(&sum, &[of_sum; 2])?;
        is_near(&product, &[of_product; 2], ulp(dtype))?;
        is(&sums.index((n - 1, ..)), &[of_sum; 2])?;
        is_near(&products.index((n - 1, ..)), &[of_product; 2], ulp(dtype))?;
    }
    Ok(())
}

#[kernel(grid = (), allow(overflow))]
fn narrow_sum(#[block([N] => [N], || (0,))] x: In<u8>, #[block([1] => [1], || (0,))] out: Out<u8>) {
    out.store(x.load().sum(0));
}

fn narrow(client: &Client) -> Result<()> {
    let (signed, unsigned) = (client.full(&[300], 100i8)?, client.full(&[300], 200u8)?);
    assert_eq!(signed.sum(0).to_vec::<i32>()?, [30_000]);
    assert_eq!(unsigned.sum(0).to_vec::<u32>()?, [60_000]);
    assert_eq!(client.full(&[5], 10i16)?.prod(0).to_vec::<i32>()?, [100_000]);
    assert_eq!(client.full(&[300], true)?.sum(0).to_vec::<i32>()?, [300]);
    assert_eq!(narrow_sum(&unsigned)?.to_vec::<u8>()?, [(60_000 % 256) as u8]);
    Ok(())
}

fn scatters(client: &Client) -> Result<()> {
    let first = client.full(&[3000], 0i32)?;
    for dtype in HALVES {
        let ones = client.full(&[3000], 1.0f32)?.cast(dtype);
        is(&ones.segment_sum(&first, 2), &[rounded(dtype, 3000.0), 0.0])?;
        let steps = client.full(&[3000], 1.0078125f32)?.cast(dtype).index(..301);
        let product = steps.segment_prod(&first.index(..301), 1);
        is_near(&product, &[rounded(dtype, 1.0078125f64.powi(301))], ulp(dtype))?;
        let table = client.full(&[2], 1.0f32)?.cast(dtype);
        let own = first.clone();
        let read = move |table: &Array| table.take(&own, 0).cast(DType::F32).sum(..);
        is(&grad(read)(&table)?, &[rounded(dtype, 3000.0), 0.0])?;
        let own = first.clone();
        let along = move |table: &Array| table.take_along_axis(&own, 0).cast(DType::F32).sum(..);
        is(&grad(along)(&table)?, &[rounded(dtype, 3000.0), 0.0])?;
        // In place: 2048 and 256 are the numbers to which 1 cannot be added.
        let added = client.full(&[1], 0.0f32)?.cast(dtype).at(&first).add(1.0);
        is(&added, &[if dtype == DType::F16 { 2048.0 } else { 256.0 }])?;
    }
    Ok(())
}

fn argument(client: &Client) -> Result<()> {
    let x = client.array(&[100i8, 100, 100], &[3])?;
    assert_eq!(x.sum(accumulate(0, DType::I8)).to_vec::<i8>()?, [44]);
    assert_eq!(x.sum(accumulate(0, DType::F32)).to_vec::<f32>()?, [300.0]);
    let half = columns(client, DType::Bf16, 257, 1.0)?;
    assert_eq!(half.sum(accumulate(0, DType::F32)).to_vec::<f32>()?, [257.0; 2]);
    if supports(client, DType::F64) {
        let x = client.array(&[1e8f32, 1.0, -1e8], &[3])?;
        assert_eq!(x.sum(accumulate(0, DType::F64)).to_vec::<f64>()?, [1.0]);
    }
    Ok(())
}

fn variances(client: &Client) -> Result<()> {
    // In f32 the squares of both numbers are the same.
    let x = client.array(&[99_999.0f32, 100_001.0], &[2])?;
    is(&x.var(0), &[1.0])?;
    is(&x.std(0), &[1.0])?;
    is(&x.standardize(0, 0.0), &[-1.0, 1.0])
}

fn areas(client: &Client) -> Result<()> {
    is(&client.array(&[f32::INFINITY, 1.0, 2.0], &[3])?.trapezoid(1.0, 0), &[f64::INFINITY])?;
    is(&client.full(&[1], f32::INFINITY)?.trapezoid(1.0, 0), &[0.0])
}

fn mesh(client: &Client) -> Result<()> {
    let mesh = Arc::new(Mesh::new(&[("data", 16)]).expect("a mesh"));
    for dtype in HALVES {
        let x = client.full(&[6400, 2], 0.1f32)?.cast(dtype);
        let sum = jit(|x: &Array| x.sum(0));
        let whole = super::numbers(&sum(&x)?)?;
        let sharded = device_put(&x, &NamedSharding::new(&mesh, P("data")))?;
        is(&sum(&sharded)?, &whole)?;
        // One element of each device: in 16 bits each step would be rounded.
        let x = client.full(&[16], 1.0078125f32)?.cast(dtype);
        let total = shard_map(|x: &Array| psum(x, "data"), &mesh, [P("data")], [P(())]);
        is(&total(&x)?, &[rounded(dtype, 16.125)])?;
    }
    Ok(())
}

fn scans(client: &Client) -> Result<()> {
    for dtype in HALVES {
        let (start, ones) = (client.full(&[], 0.0f32)?, client.full(&[3000], 1.0f32)?.cast(dtype));
        let sum = move |w: &Array| {
            let step = |sum: &Array, x: &Array| (sum + (w * x).cast(DType::F32), ());
            scan(&start, &ones, step).map(|(sum, ())| sum)
        };
        let one = client.full(&[], 1.0f32)?.cast(dtype);
        is(&grad(sum.clone())(&one)?, &[rounded(dtype, 3000.0)])?;
        is(&jit(grad(sum))(&one)?, &[rounded(dtype, 3000.0)])?;
    }
    Ok(())
}

#[kernel(grid = ())]
fn dotted<E: Float>(
    #[block([1, K] => [1, K], || (0, 0))] x: In<E>,
    #[block([K, 1] => [K, 1], || (0, 0))] y: In<E>,
    #[block([1, 1] => [1, 1], || (0, 0))] out: Out<f32>,
) {
    out.store(dot(x.load(), y.load()));
}

fn products(client: &Client) -> Result<()> {
    for dtype in HALVES {
        let row = client.full(&[1, 3001], 1.0f32)?.cast(dtype);
        let column = row.t();
        is(&row.matmul(&column), &[rounded(dtype, 3001.0)])?;
        is(&pallas_rt::ops::einsum("ij,ij->i", &[&row, &row]), &[rounded(dtype, 3001.0)])?;
        let sum = if dtype == DType::F16 { dotted::<f16>(&row, &column)? } else { dotted::<bf16>(&row, &column)? };
        assert_eq!(sum.to_vec::<f32>()?, [3001.0]);
    }
    Ok(())
}

#[kernel(grid = ())]
fn narrow_dot(
    #[block([1, K] => [1, K], || (0, 0))] x: In<i8>,
    #[block([K, 1] => [K, 1], || (0, 0))] y: In<i8>,
    #[block([1, 1] => [1, 1], || (0, 0))] out: Out<i32>,
) {
    out.store(dot(x.load(), y.load()));
}

fn narrow_products(client: &Client) -> Result<()> {
    let row = client.full(&[1, 8], 100i8)?;
    assert_eq!(narrow_dot(&row, row.t())?.to_vec::<i32>()?, [80_000]);
    assert_eq!(row.matmul(&row.t()).to_vec::<i8>()?, [(80_000 % 256) as u8 as i8]);
    Ok(())
}

fn padding(client: &Client) -> Result<()> {
    if client.kind() == DeviceKind::Gpu {
        return Ok(());
    }
    let x = client.array(&[1.0f32, f64::INFINITY as f32], &[2])?;
    is(&x.convolve(&x, ConvolveMode::Full), &[1.0, f64::INFINITY, f64::INFINITY])?;
    let (x, w) = (client.full(&[1, 1, 2], 2.0f32)?, client.array(&[f32::INFINITY, 1.0], &[1, 1, 2])?);
    is(&ops::conv(&x, &w, &[1], Padding::Explicit(vec![(1, 0)])), &[2.0, f64::INFINITY])
}
