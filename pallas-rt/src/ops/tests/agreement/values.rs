//! Inputs of random programs by the formula of programs.py, and the comparison of results.
use crate::prelude::*;
use pallas_ir::Literal;
use serde_json::Value;

/// Element type, shape, seed, and limits of the elements; `"nan"` as the higher one makes a third of them NaN, `"ties"`
/// has few numbers, and `"edges"` those that are hard on operations.
pub(super) type Input = (String, Vec<usize>, u64, f64, Value);

const TIES: [f64; 8] = [-1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0];

/// Sixteen elements that are hard on operations.
fn edges(dtype: DType) -> [f64; 16] {
    let limit = |x: Literal| x.as_f64();
    if dtype.is_float() {
        let (top, small) = match dtype {
            DType::F16 => (65504.0, 6e-8),
            DType::Bf16 => (3.3895313892515355e38, 2f64.powi(-126)),
            _ => (f64::from(f32::MAX), 2f64.powi(-126)),
        };
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        return [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, inf, -inf, nan, small, top, -top, 3.0, -2.5, 1.0, 0.0];
    }
    let (low, high) = (limit(Literal::lowest(dtype)), limit(Literal::highest(dtype)));
    let half = (high / 2.0).floor() + 1.0;
    [low, high, 0.0, 1.0, high - 1.0, low + 1.0, 2.0, 3.0, low, high, 0.0, 1.0, half, 5.0, 7.0, 4.0]
}

/// An input, or a batch of it.
pub(super) fn input((dtype, shape, seed, low, high): &Input, batch: Option<usize>) -> Array {
    let dtype: DType = dtype.parse().expect("an element type");
    let shape: Vec<usize> = batch.into_iter().chain(shape.iter().copied()).collect();
    let count = shape.iter().product::<usize>() as u64;
    let element = |i: u64| {
        let z = (i * 2_654_435_761 + seed * 40_503 + 12_345) % (1 << 32);
        let z = ((z ^ (z >> 15)) * 2_246_822_519) % (1 << 32);
        let z = z ^ (z >> 13);
        match dtype {
            DType::Bool => (z & 1) as f64,
            _ if high == "edges" => edges(dtype)[(z % 16) as usize],
            _ if high == "ties" && dtype.is_float() => TIES[(z % 8) as usize],
            _ if high == "ties" => (z % 8) as f64,
            _ if dtype.is_float() && high.is_string() && (z >> 16).is_multiple_of(3) => f64::NAN,
            _ if dtype.is_float() => low + (z % 65536) as f64 / 65536.0 * (high.as_f64().unwrap_or(2.0) - low),
            _ => low + (z % (high.as_f64().expect("a number") - low + 1.0) as u64) as f64,
        }
    };
    // Elements are rounded to f32 first, as NumPy does.
    let literal = |x: f64| Literal::new(dtype, if dtype.is_float() { f64::from(x as f32) } else { x });
    let bytes: Vec<u8> = (0..count).flat_map(|i| literal(element(i)).to_bytes()).collect();
    Client::cpu().array_from_bytes(dtype, &shape, &bytes).expect("it fits")
}

/// The weights of a result in the sum that is differentiated.
pub(super) fn weights(shape: &[usize]) -> Array {
    let count = shape.iter().product::<usize>();
    let weights: Vec<f32> = (0..count).map(|i| ((i * 7 % 11) as f32 - 5.0) / 4.0).collect();
    Client::cpu().array(&weights, shape).expect("it fits")
}

/// Elements of an array.
pub(super) fn numbers(x: &Array) -> Result<Vec<f64>> {
    let bytes = x.to_bytes()?;
    let bits = |b: &[u8]| b.iter().rev().fold(0u64, |bits, &byte| bits << 8 | u64::from(byte));
    let number = |b: &[u8]| Literal { dtype: x.dtype(), bits: bits(b) }.as_f64();
    Ok(bytes.chunks(x.dtype().bytes()).map(number).collect())
}

/// The largest difference from results with these elements, after so many steps; programs.py has the same formula.
fn bound(dtype: DType, depth: usize, want: &[f64]) -> f64 {
    let rounding = match dtype {
        DType::Bf16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        _ if dtype.is_float() => 2f64.powi(-23),
        _ => return 0.0,
    };
    let largest = want.iter().filter(|x| x.is_finite()).fold(0.0f64, |a, x| a.max(x.abs()));
    rounding * (16 + 8 * depth) as f64 * (0.1 + largest)
}

/// The first difference of results from JAX's. Gradients are compared where JAX's are finite.
pub(super) fn difference(found: &[Array], want: &[String], depth: usize, is_gradient: bool) -> Option<String> {
    if found.len() != want.len() {
        return Some(format!("{} results, expected {}", found.len(), want.len()));
    }
    found.iter().zip(want).find_map(|(x, text)| {
        let (ty, elements) = text.split_once(']').expect("a type");
        let want: Vec<f64> = elements.split_whitespace().map(|x| x.parse().expect("a number")).collect();
        let own = match numbers(x) {
            Ok(own) => own,
            Err(e) => return Some(e.to_string()),
        };
        let shape: Vec<String> = x.shape().iter().map(usize::to_string).collect();
        let own_ty = format!("{}[{}", x.dtype(), shape.join(","));
        let limit = bound(x.dtype(), depth, &want);
        let close = |(a, b): (&f64, &f64)| {
            a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= limit || is_gradient && !b.is_finite()
        };
        let fits = own_ty == ty && own.len() == want.len() && own.iter().zip(&want).all(close);
        (!fits).then(|| format!("{own_ty}] {own:?}, expected {text} to {limit:e}"))
    })
}
