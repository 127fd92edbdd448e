//! Law: a row of the scalar table means on a GPU what it means on the interpreter, within what the row promises.
//!
//! Only running on an adapter shows it: a wrong WGSL text is valid all the same. Every row meets every pair of edge
//! values of every element type that it is defined for and that shaders compute with.
use super::context;
use super::random::gpus;
use super::tile::{Tile, emit_structural};
use crate::prelude::*;
use pallas_ir::scalar::{SignatureType, WgslAccuracy};
use pallas_ir::{Literal, Op, ScalarOp, structural as ops};

/// Applies the scalar operation with the index `op`, and stores the result's bits.
#[kernel(grid = (1), allow(overflow))]
fn row<E: Elem>(
    #[block([N] => [N], |_i| (0,))] a: In<E>,
    #[block([N] => [N], |_i| (0,))] b: In<E>,
    #[block([N] => [N], |_i| (0,))] c: In<E>,
    #[block([N] => [N], |_i| (0,))] mask: In<i32>,
    #[block([N] => [N], |_i| (0,))] out: Out<u32>,
    #[fixed] op: usize,
) {
    let op = ScalarOp::ALL[op];
    let mut given = vec![a.load().handle, b.load().handle, c.load().handle].into_iter();
    let mut args = vec![];
    for (_, ty) in op.row().operands {
        args.push(match ty {
            SignatureType::Is(_) => mask.load().ne(0).handle,
            SignatureType::T => given.next().expect("no row has more"),
        });
    }
    let mut result = context::emit(Op::Scalar(op), &args);
    let from = context::type_of(result).expect("it fits").dtype;
    let same_size = if from.bytes() == 4 { DType::U32 } else { DType::U16 };
    if from.is_float() || from == DType::I32 {
        result = emit_structural(ops::Bitcast { to: same_size }, &[result]);
    }
    if context::type_of(result).expect("it fits").dtype != DType::U32 {
        result = emit_structural(ops::Cast { to: DType::U32 }, &[result]);
    }
    out.store(Tile::new(result));
}

/// Ordinary numbers and edge cases, without denormals, which shaders may take for zero.
const FLOATS: [f32; 24] = [
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    1.5,
    2.5,
    -2.5,
    0.3,
    -0.7,
    3.7,
    -6.25,
    100.25,
    1e-3,
    -1e-6,
    1e10,
    -16_777_217.0,
    2_147_483_648.0,
    1e-30,
    3e38,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
];
const INTS: [i64; 16] =
    [0, 1, -1, 2, -5, 7, 8, 31, 32, 127, 128, 255, 65_535, 1 << 30, i32::MAX as i64, i32::MIN as i64];

/// Edge values of the element type.
fn edges<E: Elem>() -> Vec<Literal> {
    let dtype = E::DTYPE;
    match dtype {
        DType::Bool => vec![Literal::new(dtype, 0.0), Literal::new(dtype, 1.0)],
        _ if dtype.is_float() => FLOATS.iter().map(|&x| Literal::new(dtype, f64::from(x))).collect(),
        _ => INTS.iter().map(|&x| Literal::int(dtype, x)).collect(),
    }
}

/// Converts the bits of a result to a number.
fn float(dtype: DType, bits: u32) -> f64 {
    match dtype {
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::Bf16 => bf16::from_bits(bits as u16).to_f64(),
        _ => f64::from(f32::from_bits(bits)),
    }
}

/// Returns true if a result is within the row's error bound; see [`Gpu`].
fn holds(op: ScalarOp, dtype: DType, args: &[f64], want: u32, got: u32) -> bool {
    let WgslAccuracy::Finite(ulp) = op.row().gpu else {
        let (x, y) = (float(dtype, want), float(dtype, got));
        return want == got || dtype.is_float() && (x.is_nan() && y.is_nan() || x.is_subnormal() && y == 0.0);
    };
    if want == got || !args.iter().all(|x| x.is_finite()) || !dtype.is_float() {
        return want == got || !args.iter().all(|x| x.is_finite());
    }
    let (want, got) = (float(dtype, want), float(dtype, got));
    let (epsilon, smallest) = match dtype {
        DType::F16 => (2f64.powi(-10), 2f64.powi(-14)),
        DType::Bf16 => (2f64.powi(-7), f64::from(f32::MIN_POSITIVE)),
        _ => (2f64.powi(-23), f64::from(f32::MIN_POSITIVE)),
    };
    // In a 16-bit type the result is computed in 32 bits, then rounded.
    let ulp = if dtype == DType::F32 { f64::from(ulp) } else { 1.0 + f64::from(ulp) * 2f64.powi(-13) };
    let near = |x: f64, scale: f64| (x - got).abs() <= ulp * epsilon * scale.max(smallest);
    match op {
        _ if !want.is_finite() || want.abs() < smallest && got == 0.0 => true,
        // The result is the one of either zero.
        ScalarOp::Atan2 if args == [0.0, 0.0] => true,
        ScalarOp::Sin | ScalarOp::Cos | ScalarOp::Tan if args[0].abs() > 100.0 => true,
        ScalarOp::Fma => near(want, (args[0] * args[1]).abs().max(want.abs())),
        ScalarOp::Rem => {
            let (a, b) = (args[0], args[1]);
            (a / b).abs() > 2f64.powi(20) || [want, want - b, want + b].into_iter().any(|x| near(x, a.abs()))
        }
        _ => near(want, want.abs()),
    }
}

fn rows_of<E: Elem>(client: &Client, wrong: &mut Vec<String>) {
    let edges = edges::<E>();
    let n = edges.len();
    // Every pair; the third operand runs along.
    let pick = |i: usize| [edges[i % n], edges[i / n], edges[(i % n + 3 * (i / n)) % n]];
    let operand = |k: usize| -> Vec<u8> {
        let mut data = pallas_codegen::interp::Data::zeros(E::DTYPE, n * n);
        (0..n * n).for_each(|i| data.set(i, pick(i)[k]));
        data.to_bytes()
    };
    let mask: Vec<i32> = (0..n * n).map(|i| (i % 3) as i32 - 1).collect();
    let run = |client: &Client, op: usize| -> Result<Vec<u32>> {
        let array = |k: usize| client.array_from_bytes(E::DTYPE, &[n * n], &operand(k));
        row::<E>(&array(0)?, &array(1)?, &array(2)?, &client.array(&mask, &[n * n])?, op)?.to_vec()
    };
    for (i, &op) in ScalarOp::ALL.iter().enumerate() {
        let row = op.row();
        let types: Vec<DType> =
            row.operands.iter().map(|(_, ty)| if let SignatureType::Is(is) = ty { *is } else { E::DTYPE }).collect();
        let Ok(result) = op.infer_dtype(&types) else { continue };
        let name = format!("{op} of {}", E::DTYPE);
        let want = run(&Client::interpreter(), i).unwrap_or_else(|e| panic!("{name}: {e}"));
        let got = run(client, i).unwrap_or_else(|e| panic!("{name}: {e}"));
        let open = row.operands.iter().filter(|(_, ty)| *ty == SignatureType::T).count();
        let args = |at: usize| pick(at).iter().take(open).map(|x| x.as_f64()).collect::<Vec<f64>>();
        let bad: Vec<usize> = (0..n * n).filter(|&at| !holds(op, result, &args(at), want[at], got[at])).collect();
        if let Some(&at) = bad.first() {
            let show = |x: u32| if result.is_float() { float(result, x).to_string() } else { x.to_string() };
            let (want, got) = (show(want[at]), show(got[at]));
            wrong.push(format!(
                "{name} on {}: {:?} gives {got}, not {want}; {} such",
                client.device().id(),
                args(at),
                bad.len()
            ));
        }
    }
}

#[test]
fn rows_mean_the_same_on_a_gpu() {
    let mut wrong = vec![];
    gpus().iter().for_each(|client| rows_on(client, &mut wrong));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn rows_on(client: &Client, wrong: &mut Vec<String>) {
    rows_of::<f32>(client, wrong);
    rows_of::<i32>(client, wrong);
    rows_of::<u32>(client, wrong);
    rows_of::<bool>(client, wrong);
    rows_of::<f16>(client, wrong);
    rows_of::<bf16>(client, wrong);
    rows_of::<i8>(client, wrong);
    rows_of::<u8>(client, wrong);
    rows_of::<i16>(client, wrong);
    rows_of::<u16>(client, wrong);
}
