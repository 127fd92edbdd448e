//! Law: folds are within a bound of what float64 gives that follows from the number of their additions.
//!
//! An addition in a type rounds by `u`, half of its precision, so `n` of them, in whatever order, are within `n·u·Σ|x|`
//! of the sum; a product is within `n·u·|Π x|`. 16-bit floats add the rounding of the result, and no more.
use super::folds::folded;
use super::{clients, numbers};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

/// splitmix64
struct Dice(u64);
impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }
    /// From 0 to 1.
    fn part(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Half of the precision of a type.
fn unit(dtype: DType) -> f64 {
    2f64.powi(match dtype {
        DType::F16 => -11,
        DType::Bf16 => -8,
        _ => -24,
    })
}

/// The distance of the numbers nearest to 0; that of normal ones, if others may count as 0.
fn least(dtype: DType) -> f64 {
    if dtype == DType::F16 { 2f64.powi(-24) } else { f64::from(f32::MIN_POSITIVE) }
}

/// Accepted results of a fold: the number of float64, and how far off it may be.
struct Expected {
    exact: f64,
    off: f64,
}

impl Expected {
    fn sum(x: &[f64], dtype: DType) -> Expected {
        let (exact, all) = (x.iter().sum::<f64>(), x.iter().map(|x| x.abs()).sum::<f64>());
        let off = x.len() as f64 * unit(DType::F32) * all;
        Expected { exact, off: off + unit(dtype) * (exact.abs() + off) + least(dtype) }
    }
    fn product(x: &[f64], dtype: DType) -> Expected {
        let exact: f64 = x.iter().product();
        let off = x.len() as f64 * unit(DType::F32) * exact.abs();
        Expected { exact, off: off + unit(dtype) * (exact.abs() + off) + least(dtype) }
    }
    fn sharded(self, n: usize, dtype: DType) -> Expected {
        let (exact, off) = (self.exact / n as f64, self.off / n as f64);
        Expected { exact, off: off + 2.0 * unit(DType::F32) * exact.abs() + unit(dtype) * exact.abs() + least(dtype) }
    }
}

#[track_caller]
fn check(what: &str, found: &Array, expected: &[Expected]) -> Result<()> {
    let found = numbers(found)?;
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, Expected { exact, off })) in found.iter().zip(expected).enumerate() {
        // Beyond the largest number of f16 there is infinity.
        let is_beyond = found.is_infinite() && exact.abs() + off >= 65_520.0;
        assert!(is_beyond || (found - exact).abs() <= *off, "{what}, element {i}: {found}, not {exact} up to {off}");
    }
    Ok(())
}

/// A case: elements of a type in two columns, whose folds no type overflows.
fn case(client: &Client, dice: &mut Dice, longest: f64) -> Result<()> {
    let rows = longest.powf(dice.part()) as usize;
    let dtype = [DType::F16, DType::Bf16, DType::F32][dice.below(3)];
    let (low, high) = [(-1.0, 1.0), (0.0, 2.0), (0.1, 0.1)][dice.below(3)];
    // Factors near 1, so that thousands of them have a product.
    let products = dice.below(3) == 0;
    let near = 1.0 / (1.0 + rows as f64);
    let element = |dice: &mut Dice| match products {
        true => (1.0 + near * (2.0 * dice.part() - 1.0)) as f32,
        false => (low + (high - low) * dice.part()) as f32,
    };
    let x: Vec<f32> = (0..2 * rows).map(|_| element(dice)).collect();
    let x = client.array(&x, &[rows, 2])?.cast(dtype);
    let own = numbers(&x)?;
    let columns: Vec<Vec<f64>> = (0..2).map(|c| own.iter().copied().skip(c).step_by(2).collect()).collect();
    let of = |fold: &dyn Fn(&[f64]) -> Expected| columns.iter().map(|x| fold(x)).collect::<Vec<_>>();
    // Each prefix, row by row.
    let running = |fold: &dyn Fn(&[f64]) -> Expected| {
        (0..rows).flat_map(|i| columns.iter().map(move |x| fold(&x[..=i]))).collect::<Vec<_>>()
    };
    let sum = |x: &[f64]| Expected::sum(x, dtype);
    let product = |x: &[f64]| Expected::product(x, dtype);
    let what = |name: &str| format!("{name} of {rows} {dtype} on {client:?}");
    check(&what("sum"), &x.sum(0), &of(&sum))?;
    check(&what("turned sum"), &x.t().sum(1), &of(&sum))?;
    check(&what("sum of all"), &x.sum(..), &[sum(&own)])?;
    check(&what("mean"), &x.mean(0), &of(&|x| sum(x).sharded(rows, dtype)))?;
    check(&what("product"), &x.prod(0), &of(&product))?;
    // Prefixes are checked in quadratic time, and a GPU has little memory for tiles.
    if rows <= if client.kind() == DeviceKind::Gpu { 300 } else { 2000 } {
        check(&what("running sum"), &x.cumsum(0), &running(&sum))?;
        check(&what("running product"), &x.cumprod(0), &running(&product))?;
        let tiles = match dtype {
            DType::F16 => folded::<f16>(&x)?,
            DType::Bf16 => folded::<bf16>(&x)?,
            _ => folded::<f32>(&x)?,
        };
        check(&what("sum of a tile"), &tiles.0, &of(&sum))?;
        check(&what("product of a tile"), &tiles.1, &of(&product))?;
        check(&what("running sum of a tile"), &tiles.2, &running(&sum))?;
        check(&what("running product of a tile"), &tiles.3, &running(&product))?;
    }
    Ok(())
}

#[test]
fn folds_are_within_their_bound_of_float64() {
    for client in clients() {
        let (count, longest) = match client.kind() {
            DeviceKind::Cpu => (60, 1e5),
            DeviceKind::Interpreter => (30, 2e4),
            _ => (10, 1e4),
        };
        let mut dice = Dice(7);
        for _ in 0..count {
            case(&client, &mut dice, longest).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
