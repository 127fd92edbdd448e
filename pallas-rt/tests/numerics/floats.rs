//! Floats: division by zero, rounding, NaN, zeros, subnormal numbers.
use super::{Line, is};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

pub(super) const LINES: &[Line] = &[
    ("float-by-zero", by_zero),
    ("float-rounding", roundings),
    ("nan-compare", comparisons),
    ("nan-max", extremes),
    ("nan-order", orders),
    ("nan-sign", signs),
    ("zero-order", zeros_in_order),
    ("subnormal", subnormals),
];

const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

#[kernel(grid = ())]
fn quotients(
    #[block([N] => [N], || (0,))] x: In<f32>,
    #[block([N] => [N], || (0,))] y: In<f32>,
    #[block([N] => [N], || (0,))] out: Out<f32>,
) {
    out.store(x.load() / y.load());
}

fn by_zero(client: &Client) -> Result<()> {
    if client.kind() == DeviceKind::Gpu {
        return Ok(());
    }
    let (x, zero) = (client.array(&[5.0f32, -5.0, 0.0], &[3])?, client.full(&[3], 0.0f32)?);
    for quotient in [&x / &zero, quotients(&x, &zero)?, x.floor_divide(&zero), x.floor_divide(0.0)] {
        is(&quotient, &[INF, -INF, NAN])?;
    }
    is(&x.remainder(&zero), &[NAN; 3])
}

#[kernel(grid = ())]
fn rounded<E: Real>(#[block([N] => [N], || (0,))] x: In<f32>, #[block([N] => [N], || (0,))] out: Out<E>) {
    out.store(x.load().cast::<E>());
}

fn roundings(client: &Client) -> Result<()> {
    let x = [257.0f32, 259.0, 2049.0, 2051.0, 65_519.0, 65_520.0, 3.4e38, 1e-3, -257.0];
    let a = client.array(&x, &[x.len()])?;
    let bf: Vec<f64> = x.iter().map(|&x| bf16::from_f32(x).to_f64()).collect();
    let f: Vec<f64> = x.iter().map(|&x| f16::from_f32(x).to_f64()).collect();
    assert_eq!((&bf[..2], &f[2..6], bf[6]), (&[256.0, 260.0][..], &[2048.0, 2052.0, 65_504.0, INF][..], INF));
    for (found, expected) in [(a.cast(DType::Bf16), &bf), (rounded::<bf16>(&a)?, &bf)] {
        is(&found, expected)?;
    }
    for (found, expected) in [(a.cast(DType::F16), &f), (rounded::<f16>(&a)?, &f)] {
        is(&found, expected)?;
    }
    if client.kind() != DeviceKind::Gpu {
        let (zero, first) = (client.zeros(&[1], DType::F16)?, client.array(&[0], &[1])?);
        is(&zero.at(&first).multiply(f32::MAX), &[NAN])?;
    }
    Ok(())
}

#[kernel(grid = ())]
fn compared<E: Real>(
    #[block([N] => [N], || (0,))] x: In<E>,
    #[block([N] => [N], || (0,))] y: In<E>,
    #[block([N] => [N], || (0,))] equal: Out<bool>,
    #[block([N] => [N], || (0,))] unequal: Out<bool>,
    #[block([N] => [N], || (0,))] less: Out<bool>,
    #[block([N] => [N], || (0,))] at_most: Out<bool>,
    #[block([N] => [N], || (0,))] more: Out<bool>,
    #[block([N] => [N], || (0,))] at_least: Out<bool>,
    #[block([N] => [N], || (0,))] truth: Out<bool>,
) {
    let (x, y) = (x.load(), y.load());
    equal.store(x.eq(y));
    unequal.store(x.ne(y));
    less.store(x.lt(y));
    at_most.store(x.le(y));
    more.store(x.gt(y));
    at_least.store(x.ge(y));
    truth.store(x.cast::<bool>());
}

fn comparisons(client: &Client) -> Result<()> {
    let (a, b) = ([f32::NAN, f32::NAN, 1.0, 0.0, -0.0, 2.0], [f32::NAN, 1.0, f32::NAN, -0.0, 0.0, 1.0]);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let [x, y] = [a, b].map(|x| client.array(&x, &[6]).map(|x| x.cast(dtype)));
        let (x, y) = (x?, y?);
        let arrays = [x.eq(&y), x.ne(&y), x.lt(&y), x.le(&y), x.gt(&y), x.ge(&y)];
        let tiles = match dtype {
            DType::F32 => compared::<f32>(&x, &y)?,
            DType::F16 => compared::<f16>(&x, &y)?,
            _ => compared::<bf16>(&x, &y)?,
        };
        let tests: [fn(f32, f32) -> bool; 6] =
            [|a, b| a == b, |a, b| a != b, |a, b| a < b, |a, b| a <= b, |a, b| a > b, |a, b| a >= b];
        let tiles = [tiles.0, tiles.1, tiles.2, tiles.3, tiles.4, tiles.5, tiles.6];
        for ((array, tile), test) in arrays.iter().zip(&tiles).zip(tests) {
            let expected: Vec<bool> = a.iter().zip(b).map(|(&a, b)| test(a, b)).collect();
            assert_eq!(array.to_vec::<bool>()?, expected, "arrays of {dtype}");
            assert_eq!(tile.to_vec::<bool>()?, expected, "tiles of {dtype}");
        }
        for truth in [x.cast(DType::Bool), tiles[6].clone()] {
            assert_eq!(truth.to_vec::<bool>()?, [true, true, true, false, false, true], "{dtype}");
        }
    }
    Ok(())
}

#[kernel(grid = ())]
fn extremes_of_tiles(
    #[block([N] => [N], || (0,))] x: In<f32>,
    #[block([N] => [N], || (0,))] y: In<f32>,
    #[block([N] => [N], || (0,))] larger: Out<f32>,
    #[block([N] => [N], || (0,))] smaller: Out<f32>,
    #[block([1] => [1], || (0,))] most: Out<f32>,
    #[block([1] => [1], || (0,))] least: Out<f32>,
) {
    let (x, y) = (x.load(), y.load());
    larger.store(maximum(x, y));
    smaller.store(minimum(x, y));
    most.store(x.max(0));
    least.store(x.min(0));
}

fn extremes(client: &Client) -> Result<()> {
    if client.kind() == DeviceKind::Gpu {
        return Ok(());
    }
    let (x, y) = (client.array(&[f32::NAN, 1.0, 2.0], &[3])?, client.array(&[1.0, f32::NAN, 3.0], &[3])?);
    let (larger, smaller, most, least) = extremes_of_tiles(&x, &y)?;
    for larger in [larger, x.maximum(&y)] {
        is(&larger, &[NAN, NAN, 3.0])?;
    }
    for smaller in [smaller, x.minimum(&y)] {
        is(&smaller, &[NAN, NAN, 2.0])?;
    }
    for extreme in [most, least, x.max(0), x.min(0), y.max(0), y.min(0)] {
        is(&extreme.reshape::<usize>(&[]), &[NAN])?;
    }
    Ok(())
}

fn orders(client: &Client) -> Result<()> {
    let x = client.array(&[3.0, f32::NAN, -1.0, -f32::NAN, f32::INFINITY], &[5])?;
    is(&x.sort(0), &[-1.0, 3.0, INF, NAN, NAN])?;
    assert_eq!(x.argsort(0).to_vec::<i32>()?, [2, 0, 4, 1, 3]);
    assert_eq!((x.argmax(0).to_vec::<i32>()?, x.argmin(0).to_vec::<i32>()?), (vec![1], vec![1]));
    Ok(())
}

fn signs(client: &Client) -> Result<()> {
    if client.kind() == DeviceKind::Gpu {
        return Ok(());
    }
    let x = client.array(&[f32::NAN, -0.0, 0.0, -3.0, f32::INFINITY], &[5])?;
    is(&x.sign(), &[NAN, -0.0, 0.0, -1.0, 1.0])
}

fn zeros_in_order(client: &Client) -> Result<()> {
    let (x, y) = (client.array(&[0.0f32, -0.0], &[2])?, client.array(&[-0.0f32, 0.0], &[2])?);
    assert_eq!(x.eq(&y).to_vec::<bool>()?, [true; 2]);
    assert_eq!(x.lt(&y).to_vec::<bool>()?, [false; 2]);
    let (larger, smaller, most, least) = extremes_of_tiles(&x, &y)?;
    let found = [larger, smaller, most, least, x.maximum(&y), x.minimum(&y), y.max(0), x.min(0)];
    for (i, zero) in found.iter().enumerate() {
        let zero = zero.to_vec::<f32>()?;
        assert!(zero.iter().all(|&x| x == 0.0));
        let negative = i % 2 == 1;
        let ordered = zero.iter().all(|x| x.is_sign_negative() == negative);
        assert!(ordered || client.kind() == pallas_rt::DeviceKind::Gpu, "case {i}: {zero:?}");
    }
    Ok(())
}

fn subnormals(client: &Client) -> Result<()> {
    let x = client.array(&[1e-39f32, 1e-30, -1e-39], &[3])?;
    let y = client.array(&[1.0f32, 1e-10, 0.5], &[3])?;
    let exact = [1e-39, 1e-30 * 1e-10, -5e-40];
    let is_exact = client.kind() == pallas_rt::DeviceKind::Interpreter;
    for (found, exact) in (&x * &y).to_vec::<f32>()?.iter().zip(exact) {
        assert!((found - exact).abs() <= 2e-45 || !is_exact && *found == 0.0, "{found}, not {exact}");
    }
    // What is copied keeps them.
    assert_eq!(x.reshape(&[1, 3]).to_vec::<f32>()?, [1e-39, 1e-30, -1e-39]);
    Ok(())
}
