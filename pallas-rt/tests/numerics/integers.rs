//! Integers, and conversions to them.
use super::{Line, supports};
use pallas_rt::jit;
use pallas_rt::ops::promote_types;
use pallas_rt::prelude::*;
use std::ops::Range;

pub(super) const LINES: &[Line] = &[
    ("integer-wrap", wraps),
    ("integer-shift", shifts),
    ("integer-division", divisions),
    ("integer-by-zero", by_zero),
    ("integer-lowest", lowest),
    ("integer-rounding", roundings),
    ("integer-power", powers),
    ("integer-narrowing", narrowings),
    ("float-to-integer", from_floats),
];

#[kernel(grid = (), allow(overflow))]
fn arithmetic<E: Int>(
    #[block([N] => [N], || (0,))] x: In<E>,
    #[block([N] => [N], || (0,))] y: In<E>,
    #[block([N] => [N], || (0,))] sum: Out<E>,
    #[block([N] => [N], || (0,))] difference: Out<E>,
    #[block([N] => [N], || (0,))] product: Out<E>,
    #[block([N] => [N], || (0,))] left: Out<E>,
    #[block([N] => [N], || (0,))] right: Out<E>,
    #[block([N] => [N], || (0,))] quotient: Out<E>,
    #[block([N] => [N], || (0,))] rest: Out<E>,
) {
    let (x, y) = (x.load(), y.load());
    sum.store(x + y);
    difference.store(x - y);
    product.store(x * y);
    left.store(x << y);
    right.store(x >> y);
    quotient.store(x / y);
    rest.store(x % y);
}

/// Integer types whose arithmetic is known.
trait Known: Int {
    const ALL: &'static [(Self, Self)];
    fn wrapped(x: Self, y: Self) -> [Self; 3];
    fn shifted(x: Self, y: Self) -> [Self; 2];
    fn sharded(x: Self, y: Self) -> [Self; 2];
}
macro_rules! known {
    ($($T:ident $bits:literal [$($more:expr),*];)*) => {$(
        impl Known for $T {
            const ALL: &'static [(Self, Self)] = {
                const M: $T = $T::MAX;
                const L: $T = $T::MIN;
                &[
                    (5, 0), (5, 1), (5, 3), (M, 1), (M, M), (L, 1), (L, M), (M, 2), (L, 0), (0, 0), (77, $bits - 1),
                    (77, $bits), (M, $bits), (L, $bits), (77, $bits + 1), (M, $bits - 1), (L, $bits - 1), (77, 100),
                    $($more),*
                ]
            };
            fn wrapped(x: Self, y: Self) -> [Self; 3] {
                [x.wrapping_add(y), x.wrapping_sub(y), x.wrapping_mul(y)]
            }
            fn shifted(x: Self, y: Self) -> [Self; 2] {
                let (x, by) = (i128::from(x), i128::from(y));
                // Wider than every type: no bit is lost before the result is narrowed.
                let by = if (0..$bits).contains(&by) { by } else { $bits };
                [(x << by) as $T, (x >> by) as $T]
            }
            fn sharded(x: Self, y: Self) -> [Self; 2] {
                if y == 0 { [!0, x] } else { [x.wrapping_div(y), x.wrapping_rem(y)] }
            }
        }
    )*};
}
known! {
    i8 8 [(-5, 9), (-5, -1), (5, -1), (-7, 2), (7, -2), (i8::MIN, -1)];
    i16 16 [(-5, 17), (-5, -1), (5, -1), (-7, 2), (7, -2), (i16::MIN, -1)];
    i32 32 [(-5, 33), (-5, -1), (5, -1), (-7, 2), (7, -2), (i32::MIN, -1), (5, i32::MIN)];
    i64 64 [(-5, 65), (-5, -1), (5, -1), (-7, 2), (7, -2), (i64::MIN, -1), (5, 1 << 32)];
    u8 8 [(255, 8), (200, 7)];
    u16 16 [(65_535, 16), (5, 65_535)];
    u32 32 [(7, 40), (9, 4_000_000_000)];
    u64 64 [(7, 65), (9, 1 << 32)];
}

/// Numbers of operations on a client that has their type: of tiles, and, but for divisions, of arrays.
fn of<E: Known>(client: &Client, which: Range<usize>) -> Result<()> {
    if !supports(client, E::DTYPE) {
        return Ok(());
    }
    let (x, y): (Vec<E>, Vec<E>) = E::ALL.iter().copied().unzip();
    let (a, b) = (client.array(&x, &[x.len()])?, client.array(&y, &[y.len()])?);
    let (sum, difference, product, left, right, quotient, rest) = arithmetic::<E>(&a, &b)?;
    let results: Vec<[E; 7]> = E::ALL
        .iter()
        .map(|&(x, y)| {
            let ([a, b, c], [d, e], [f, g]) = (E::wrapped(x, y), E::shifted(x, y), E::sharded(x, y));
            [a, b, c, d, e, f, g]
        })
        .collect();
    let operations = [
        ("sum", sum, Some(&a + &b)),
        ("difference", difference, Some(&a - &b)),
        ("product", product, Some(&a * &b)),
        ("left shift", left, Some(&a << &b)),
        ("right shift", right, Some(&a >> &b)),
        ("quotient", quotient, None),
        ("rest", rest, None),
    ];
    for (i, (name, tile, array)) in operations.into_iter().enumerate().filter(|(i, _)| which.contains(i)) {
        let expected: Vec<E> = results.iter().map(|all| all[i]).collect();
        assert_eq!(tile.to_vec::<E>()?, expected, "{name} of tiles of {}: {:?}", E::DTYPE, E::ALL);
        if let Some(array) = array {
            assert_eq!(array.to_vec::<E>()?, expected, "{name} of arrays of {}: {:?}", E::DTYPE, E::ALL);
        }
    }
    Ok(())
}

fn all(client: &Client, which: Range<usize>) -> Result<()> {
    macro_rules! each {
        ($($T:ident)*) => { $(of::<$T>(client, which.clone())?;)* };
    }
    each! { i8 i16 i32 i64 u8 u16 u32 u64 }
    Ok(())
}

fn wraps(client: &Client) -> Result<()> {
    all(client, 0..3)?;
    let x = client.array(&[i32::MIN, i32::MAX, 0], &[3])?;
    assert_eq!(x.abs().to_vec::<i32>()?, [i32::MIN, i32::MAX, 0]);
    assert_eq!((-&x).to_vec::<i32>()?, [i32::MIN, -i32::MAX, 0]);
    let narrow = client.array(&[i8::MIN], &[1])?;
    assert_eq!(narrow.abs().to_vec::<i8>()?, [i8::MIN]);
    Ok(())
}

#[kernel(grid = ())]
fn shifted_by_literals(#[block([N] => [N], || (0,))] x: In<i32>, #[block([N] => [N], || (0,))] out: Out<i32>) {
    let x = x.load();
    out.store((x << 33) + (x >> 40) * 2 + (x << -1) * 4 + (x >> -1) * 8 + (x << 31 << 1) * 16);
}

fn shifts(client: &Client) -> Result<()> {
    all(client, 3..5)?;
    // Distances that are known when the kernel or the graph is made.
    let x = client.array(&[5i32, -5, 0], &[3])?;
    assert_eq!(shifted_by_literals(&x)?.to_vec::<i32>()?, [0, -10, 0]);
    assert_eq!((&x << 33).to_vec::<i32>()?, [0; 3]);
    assert_eq!((&x >> 33).to_vec::<i32>()?, [0, -1, 0]);
    assert_eq!((&x >> -1).to_vec::<i32>()?, [0, -1, 0]);
    // Both operands are known.
    let folded = jit(|x: &Array| x * ((x.zeros_like() + 5) << 33))(&x)?;
    assert_eq!(folded.to_vec::<i32>()?, [0; 3]);
    Ok(())
}

fn divisions(client: &Client) -> Result<()> {
    let (x, y) = (client.array(&[7i32, -7, 7, -7], &[4])?, client.array(&[2i32, 2, -2, -2], &[4])?);
    let (.., quotient, rest) = arithmetic::<i32>(&x, &y)?;
    assert_eq!(quotient.to_vec::<i32>()?, [3, -3, -3, 3]);
    assert_eq!(rest.to_vec::<i32>()?, [1, -1, 1, -1]);
    assert_eq!((&x % &y).to_vec::<i32>()?, [1, -1, 1, -1]);
    assert_eq!((&x / &y).to_vec::<f32>()?, [3.5, -3.5, -3.5, 3.5]);
    Ok(())
}

fn by_zero(client: &Client) -> Result<()> {
    all(client, 5..7)?;
    let (x, zero) = (client.array(&[5i32, -5, 0], &[3])?, client.full(&[3], 0i32)?);
    let (.., rest) = arithmetic::<i32>(&x, &zero)?;
    assert_eq!(rest.to_vec::<i32>()?, [5, -5, 0]);
    assert_eq!(x.remainder(&zero).to_vec::<i32>()?, [0; 3]);
    assert_eq!(x.fmod(&zero).to_vec::<i32>()?, [0; 3]);
    for dtype in [DType::I8, DType::I16, DType::I32] {
        let (x, zero) = (x.cast(dtype), zero.cast(dtype));
        assert_eq!(x.floor_divide(&zero).cast(DType::I32).to_vec::<i32>()?, [-2, -2, -1]);
    }
    let (x, zero) = (x.cast(DType::U8), zero.cast(DType::U8));
    assert_eq!(x.floor_divide(&zero).to_vec::<u8>()?, [255; 3]);
    Ok(())
}

fn lowest(client: &Client) -> Result<()> {
    let (x, y) = (client.array(&[i32::MIN], &[1])?, client.array(&[-1i32], &[1])?);
    let (.., quotient, rest) = arithmetic::<i32>(&x, &y)?;
    assert_eq!((quotient.to_vec::<i32>()?, rest.to_vec::<i32>()?), (vec![i32::MIN], vec![0]));
    assert_eq!(x.floor_divide(&y).to_vec::<i32>()?, [i32::MIN]);
    assert_eq!((&x % &y).to_vec::<i32>()?, [0]);
    Ok(())
}

#[kernel(grid = ())]
fn rounded_up(#[block([1] => [1], || (0,))] out: Out<i32>, a: i32, b: i32) {
    out.fill(cdiv(a, b));
}

fn roundings(client: &Client) -> Result<()> {
    let pairs: Vec<(i32, i32)> = (-9..10).flat_map(|a| [-4, -3, -1, 1, 2, 5].map(|b| (a, b))).collect();
    let (x, y): (Vec<i32>, Vec<i32>) = pairs.iter().copied().unzip();
    let (a, b) = (client.array(&x, &[x.len()])?, client.array(&y, &[y.len()])?);
    let floor = |(a, b): &(i32, i32)| (f64::from(*a) / f64::from(*b)).floor() as i32;
    let down: Vec<i32> = pairs.iter().map(floor).collect();
    assert_eq!(a.floor_divide(&b).to_vec::<i32>()?, down);
    let rest: Vec<i32> = pairs.iter().zip(&down).map(|((a, b), q)| a - q * b).collect();
    assert_eq!(a.remainder(&b).to_vec::<i32>()?, rest);
    for &(a, b) in &[(-35, 5), (-4, 4), (-36, 5), (36, 5), (35, 5), (36, -5), (-36, -5), (0, 3)] {
        let up = (f64::from(a) / f64::from(b)).ceil() as i32;
        let found = on(client, || rounded_up(a, b))?;
        assert_eq!(found.to_vec::<i32>()?, [up], "cdiv({a}, {b})");
    }
    Ok(())
}

fn powers(client: &Client) -> Result<()> {
    for (&a, &b) in DType::ALL.iter().flat_map(|a| DType::ALL.iter().map(move |b| (a, b))) {
        if !supports(client, a) || !supports(client, b) {
            continue;
        }
        let [x, y] = [a, b].map(|dtype| client.full(&[1], 1i32).map(|x| x.cast(dtype)));
        let power = x?.pow(y?);
        let expected = if (a, b) == (DType::Bool, DType::Bool) { DType::I32 } else { promote_types(a, b) };
        if supports(client, expected) {
            power.block_until_ready()?;
            assert_eq!(power.dtype(), expected, "{a} to the power {b}");
        }
    }
    let (x, y) = (client.array(&[2i32, 3, -1, 0], &[4])?, client.array(&[9i32, 4, 3, 0], &[4])?);
    assert_eq!(x.pow(&y).to_vec::<i32>()?, [512, 81, -1, 1]);
    assert_eq!(x.pow(2).to_vec::<i32>()?, [4, 9, 1, 0]);
    Ok(())
}

fn narrowings(client: &Client) -> Result<()> {
    let x = client.array(&[300i32, -1, -129, 70_000, 256], &[5])?;
    assert_eq!(x.cast(DType::I8).to_vec::<i8>()?, [44, -1, 127, 112, 0]);
    assert_eq!(x.cast(DType::U8).to_vec::<u8>()?, [44, 255, 127, 112, 0]);
    assert_eq!(x.cast(DType::I16).to_vec::<i16>()?, [300, -1, -129, 4464, 256]);
    assert_eq!(x.cast(DType::U16).to_vec::<u16>()?, [300, 65_535, 65_407, 4464, 256]);
    assert_eq!(x.cast(DType::U32).to_vec::<u32>()?, [300, u32::MAX, u32::MAX - 128, 70_000, 256]);
    assert_eq!(x.cast(DType::Bool).to_vec::<bool>()?, [true; 5]);
    Ok(())
}

fn from_floats(client: &Client) -> Result<()> {
    let x = client.array(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e9, -1.5, 300.0, -3e9, 1.9], &[8])?;
    assert_eq!(x.cast(DType::I32).to_vec::<i32>()?, [0, i32::MAX, i32::MIN, i32::MAX, -1, 300, i32::MIN, 1]);
    assert_eq!(x.cast(DType::U32).to_vec::<u32>()?, [0, u32::MAX, 0, 3_000_000_000, 0, 300, 0, 1]);
    assert_eq!(x.cast(DType::I8).to_vec::<i8>()?, [0, 127, -128, 127, -1, 127, -128, 1]);
    assert_eq!(x.cast(DType::U8).to_vec::<u8>()?, [0, 255, 0, 255, 0, 255, 0, 1]);
    assert_eq!(x.cast(DType::I16).to_vec::<i16>()?, [0, i16::MAX, i16::MIN, i16::MAX, -1, 300, i16::MIN, 1]);
    assert_eq!(x.cast(DType::U16).to_vec::<u16>()?, [0, u16::MAX, 0, u16::MAX, 0, 300, 0, 1]);
    Ok(())
}
