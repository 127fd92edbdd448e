//! Code against strips, bit by bit: every operation that has code, in every form of operands, for all lengths of a tail.
use super::super::plan::step::{Along, Chain, Input, Link, Operation, Sink, Source};
use super::super::strips::{slice, slice_mut, strip};
use super::super::{convert, fold};
use super::{Codes, Form, Place, Rows};
use pallas_ir::scalar::Ty;
use pallas_ir::{DType, Literal, ScalarOp, Value};

const EDGES: [f32; 24] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.3,
    -2.5,
    87.2,
    -87.29,
    -87.4,
    88.7,
    88.75,
    88.9,
    104.0,
    -104.0,
    1e-30,
    -1e-42,
    3e38,
    -3e38,
    7.9,
    -8.1,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::MIN_POSITIVE,
];
const ROWS: usize = 3;
/// More than four vectors and a tail.
const COLUMNS: usize = 45;

/// An operand of `ROWS` rows, a multiple of a vector apart; `seed` tells operands apart.
fn operand(dtype: DType, seed: usize) -> Vec<u32> {
    let element = |i: usize| match dtype {
        DType::F32 => EDGES[(i * 7 + i / 24 * seed + seed * 5) % EDGES.len()].to_bits(),
        DType::I32 => [0, 1, -1, 5, i32::MAX, i32::MIN, 77, -78][(i * 3 + seed * (i / 8 + 1)) % 8] as u32,
        other => unreachable!("no operand of {other}"),
    };
    (0..ROWS * PITCH).map(element).collect()
}
const PITCH: usize = 48;

fn link(op: ScalarOp, args: Vec<(Source, DType)>, dtype: DType, buffer: usize, output: Option<u32>) -> Link {
    let open = op.row().operands.iter().position(|(_, t)| *t == Ty::T).unwrap_or(0);
    let strip = strip(op, args[open].1);
    let output = output.map(Value);
    Link { op: Operation::Scalar(op), strip, args, dtype, buffer, output, aside: false, passing: false }
}

/// `select(y < x0, y, x1)`, or for bools `select(y, x0, x1)`, so that every result leaves as 32 bits; y is the operation's.
fn chain(op: ScalarOp, dtype: DType, arity: usize) -> Option<Chain> {
    let result = op.infer(&vec![dtype; arity]).ok()?;
    let args: Vec<_> = (0..arity).map(|i| (Source::Input(i), dtype)).collect();
    let (x0, x1) = ((Source::Input(0), dtype), (Source::Input(arity - 1), dtype));
    let mut links = vec![link(op, args, result, 0, (result == dtype).then_some(90))];
    if result == DType::Bool {
        links.push(link(ScalarOp::Select, vec![(Source::Link(0), DType::Bool), x0, x1], dtype, 1, Some(90)));
    } else if result != dtype {
        return None;
    }
    let inputs = (0..arity as u32).map(|i| Input::Value(Value(i))).collect();
    Some(Chain { shape: vec![ROWS, COLUMNS], inputs, links, buffers: 2, widest: 4, ..Chain::default() })
}

/// What strips make of the chain's rows.
fn expected(chain: &Chain, inputs: &[Vec<u32>], single: u32, columns: usize) -> Vec<u32> {
    let mut out = vec![0u32; ROWS * PITCH];
    for row in 0..ROWS {
        let of = |i: usize| -> Vec<u32> {
            let at = |c| if single >> i & 1 == 1 { inputs[i][row * PITCH] } else { inputs[i][row * PITCH + c] };
            (0..columns).map(at).collect()
        };
        let inputs: Vec<Vec<u32>> = (0..inputs.len()).map(of).collect();
        let mut results: Vec<Vec<u32>> = vec![];
        for link in &chain.links {
            let mut y = vec![0u32; columns];
            let bytes = |s: &Source| match *s {
                Source::Input(i) => inputs[i].as_ptr().cast::<u8>(),
                Source::Link(l) => results[l].as_ptr().cast::<u8>(),
            };
            // SAFETY: every vector holds `columns` elements of at most four bytes.
            unsafe {
                let args: Vec<_> = link.args.iter().map(|(s, dtype)| slice(*dtype, bytes(s), columns)).collect();
                (link.strip)(&args, slice_mut(link.dtype, y.as_mut_ptr().cast(), columns), columns);
            }
            results.push(y);
        }
        out[row * PITCH..][..columns].copy_from_slice(&results[chain.links.len() - 1]);
    }
    out
}

fn same(a: u32, b: u32, dtype: DType) -> bool {
    let nan = |x: u32| dtype == DType::F32 && f32::from_bits(x).is_nan();
    a == b || (nan(a) && nan(b))
}

/// Runs a chain's code into `out`; false where it has none.
fn run(
    chain: &Chain,
    form: Form,
    inputs: &mut [Vec<u32>],
    out: &mut [u32],
    folds: &mut [Vec<f32>],
    columns: usize,
) -> bool {
    let codes = Codes::default();
    let Some(code) = codes.get(std::slice::from_ref(chain), &[form]) else { return false };
    let wide = |start: *mut u8| Place { start, row: 4 * PITCH as isize };
    let mut places = vec![Place::columns(columns)];
    places.extend(inputs.iter_mut().map(|x| wide(x.as_mut_ptr().cast())));
    if !out.is_empty() {
        places.push(wide(out.as_mut_ptr().cast()));
    }
    places.extend(folds.iter_mut().map(|f| Place { start: f.as_mut_ptr().cast(), row: 4 }));
    // SAFETY: every place holds `ROWS` rows of `PITCH` elements, folds an element a row.
    unsafe { code.run(Rows { places: &places, from: 0, to: ROWS }) };
    true
}

#[test]
fn operations_agree_with_strips() {
    if !super::super::strips::has_avx2() {
        return;
    }
    let mut compiled = vec![];
    for op in ScalarOp::ALL.iter().copied() {
        let arity = op.row().operands.len();
        for dtype in [DType::F32, DType::I32] {
            let Some(chain) = chain(op, dtype, arity) else { continue };
            let all: Vec<Vec<u32>> = (0..arity).map(|i| operand(dtype, i)).collect();
            for (columns, single) in (1..=COLUMNS).flat_map(|c| [(c, 0), (c, 1), (c, 1 << (arity - 1))]) {
                for whole in [false, true] {
                    if whole && columns % 8 != 0 {
                        continue;
                    }
                    let (mut inputs, mut out) = (all.clone(), vec![0; ROWS * PITCH]);
                    // What is fetched ahead changes nothing.
                    let ahead = if whole { u32::MAX } else { 0 };
                    let form = Form { single, ahead, whole, ..Form::default() };
                    if !run(&chain, form, &mut inputs, &mut out, &mut [], columns) {
                        continue;
                    }
                    compiled.push((op, dtype));
                    assert_eq!(inputs, all, "{op} of {dtype} wrote its operands");
                    let expected = expected(&chain, &all, single, columns);
                    for (i, (&a, &b)) in out.iter().zip(&expected).enumerate() {
                        let (x, y) = (f32::from_bits(a), f32::from_bits(b));
                        assert!(same(a, b, dtype), "{op} of {dtype}, {columns} columns, {form:?}, at {i}: {x:e} {y:e}");
                    }
                }
            }
        }
    }
    compiled.sort_by_key(|(op, dtype)| (op.row().name, *dtype as usize));
    compiled.dedup();
    let floats = compiled.iter().filter(|c| c.1 == DType::F32).count();
    assert!(floats >= 30 && compiled.len() - floats >= 9, "only {compiled:?} have code");
}

#[test]
fn folds_agree_with_loops() {
    if !super::super::strips::has_avx2() {
        return;
    }
    for op in [ScalarOp::Add, ScalarOp::Mul, ScalarOp::Maximum, ScalarOp::Minimum] {
        let start = crate::interp::eval::neutral(op, DType::F32);
        let fold = fold::fold(op, DType::F32);
        let sink = Sink { along: Along::Rows, op, fold, start, of: Source::Input(0), dtype: DType::F32, to: Value(9) };
        let chain = Chain {
            shape: vec![ROWS, COLUMNS],
            inputs: vec![Input::Value(Value(0))],
            sinks: vec![sink],
            widest: 4,
            ..Chain::default()
        };
        for columns in 1..=COLUMNS {
            // Small integers: every order of adding gives the same. A NaN in one row, somewhere.
            let mut x: Vec<f32> = (0..ROWS * PITCH).map(|i| [1.0, 2.0, -1.0, 0.5][(i * 5 + i / 9) % 4]).collect();
            x[PITCH + columns / 2] = f32::NAN;
            let mut inputs = [x.iter().map(|x| x.to_bits()).collect()];
            let mut folds = [vec![0.0f32; ROWS]];
            assert!(run(&chain, Form::default(), &mut inputs, &mut [], &mut folds, columns), "{op} has code");
            for row in 0..ROWS {
                let mut expected = 0.0f32;
                // SAFETY: a row of `columns` elements, and one result.
                unsafe {
                    let (x, start) = (x[row * PITCH..].as_ptr().cast(), (&raw const start.bits).cast());
                    (fold.rows)(x, 0, 1, columns, start, (&raw mut expected).cast());
                }
                let found = folds[0][row];
                assert!(same(found.to_bits(), expected.to_bits(), DType::F32), "{op} of {columns}: {found} {expected}");
            }
        }
    }
}

#[test]
fn results_may_take_the_place_of_operands_or_stream() {
    if !super::super::strips::has_avx2() {
        return;
    }
    // x = exp(x) * 2, in place.
    let args = |x| vec![(x, DType::F32)];
    let two = Input::Constant(Literal::new(DType::F32, 2.0));
    let double = vec![(Source::Link(0), DType::F32), (Source::Input(1), DType::F32)];
    let mut chain = Chain {
        shape: vec![ROWS, PITCH],
        inputs: vec![Input::Value(Value(0)), two],
        links: vec![
            link(ScalarOp::Exp, args(Source::Input(0)), DType::F32, 0, None),
            link(ScalarOp::Mul, double, DType::F32, 1, Some(90)),
        ],
        widest: 4,
        ..Chain::default()
    };
    chain.links[1].aside = true;
    let x = operand(DType::F32, 0);
    let expected = |x: f32| {
        let mut y = 0.0f32;
        let exp = strip(ScalarOp::Exp, DType::F32);
        exp(&[pallas_ir::Slice::F32(&[x])], pallas_ir::SliceMut::F32(std::slice::from_mut(&mut y)), 1);
        (y * 2.0).to_bits()
    };
    let codes = Codes::default();
    let code = codes.get(std::slice::from_ref(&chain), &[Form { whole: true, ..Form::default() }]).expect("has code");
    let mut y = x.clone();
    let place = Place { start: y.as_mut_ptr().cast(), row: 4 * PITCH as isize };
    // SAFETY: operand and result are the same rows, as the chain says.
    unsafe { code.run(Rows { places: &[Place::columns(PITCH), place, place], from: 0, to: ROWS }) };
    for (&y, &x) in y.iter().zip(&x) {
        let x = f32::from_bits(x);
        assert!(same(y, expected(x), DType::F32), "exp({x}) * 2");
    }

    chain.links[1].aside = false;
    let form = Form { whole: true, streamed: 0b10, ..Form::default() };
    let mut out = vec![0u32; ROWS * PITCH + 8];
    let from = (0..8).find(|&i| (&raw const out[i] as usize).is_multiple_of(32)).expect("one of eight is");
    assert!(run(&chain, form, &mut [x.clone()], &mut out[from..], &mut [], PITCH));
    for (&y, &x) in out[from..].iter().zip(&x) {
        let x = f32::from_bits(x);
        assert!(same(y, expected(x), DType::F32), "exp({x}) * 2, streamed");
    }
}

#[test]
fn bools_choose_by_row_and_by_element() {
    if !super::super::strips::has_avx2() {
        return;
    }
    let args = vec![(Source::Input(0), DType::Bool), (Source::Input(1), DType::F32), (Source::Input(2), DType::F32)];
    let not = link(ScalarOp::Not, vec![(Source::Input(0), DType::Bool)], DType::Bool, 1, Some(91));
    let chain = Chain {
        shape: vec![ROWS, PITCH],
        inputs: (0..3).map(|i| Input::Value(Value(i))).collect(),
        links: vec![link(ScalarOp::Select, args, DType::F32, 0, Some(90)), not],
        widest: 4,
        ..Chain::default()
    };
    for single in [0, 1] {
        let codes = Codes::default();
        let code = codes.get(std::slice::from_ref(&chain), &[Form { single, whole: true, ..Form::default() }]);
        let mut mask: Vec<u8> = (0..ROWS * PITCH).map(|i| u8::from(i % 3 == 0 || i % 7 == 2)).collect();
        let (mut yes, mut no) = (operand(DType::F32, 0), operand(DType::F32, 1));
        let (mut out, mut negated) = (vec![0u32; ROWS * PITCH], vec![7u8; ROWS * PITCH]);
        let wide = |x: &mut Vec<u32>| Place { start: x.as_mut_ptr().cast(), row: 4 * PITCH as isize };
        let bytes = |x: &mut Vec<u8>| Place { start: x.as_mut_ptr(), row: PITCH as isize };
        let places = [
            Place::columns(PITCH),
            bytes(&mut mask),
            wide(&mut yes),
            wide(&mut no),
            wide(&mut out),
            bytes(&mut negated),
        ];
        // SAFETY: every place holds `ROWS` rows of `PITCH` elements.
        unsafe { code.expect("has code").run(Rows { places: &places, from: 0, to: ROWS }) };
        for i in 0..ROWS * PITCH {
            let chosen = mask[if single == 1 { i / PITCH * PITCH } else { i }];
            assert_eq!(out[i], if chosen == 1 { yes[i] } else { no[i] }, "element {i}, {single}");
            assert_eq!(negated[i], 1 - chosen, "element {i}, {single}");
        }
    }
}

#[test]
fn casts_agree_with_strips() {
    if !super::super::strips::has_avx2() {
        return;
    }
    let mut numbers = operand(DType::F32, 0);
    // Halfway between two 16-bit floats of each type, and just beside.
    let near =
        [0x3f80_8000u32, 0x3f81_8000, 0x3f80_8001, 0x3f80_1000, 0x3f80_3000, 0x3f80_1001, 0x7f7f_ffff, 0x3300_0000];
    numbers[..near.len()].copy_from_slice(&near);
    let cast = |from, to| Chain {
        shape: vec![1, PITCH],
        inputs: vec![Input::Value(Value(0))],
        links: vec![Link {
            op: Operation::Cast,
            strip: convert::cast(from, to),
            args: vec![(Source::Input(0), from)],
            dtype: to,
            buffer: 0,
            output: Some(Value(90)),
            aside: false,
            passing: false,
        }],
        widest: 4,
        ..Chain::default()
    };
    for half in [DType::F16, DType::Bf16] {
        for (from, to, x) in [(DType::F32, half, &numbers[..PITCH]), (half, DType::F32, &numbers[..PITCH / 2])] {
            let chain = cast(from, to);
            let codes = Codes::default();
            let form = Form { whole: true, ..Form::default() };
            let code = codes.get(std::slice::from_ref(&chain), &[form]).expect("has code");
            let (mut x, mut found, mut expected) = (x.to_vec(), vec![0u32; PITCH], vec![0u32; PITCH]);
            let place = |start: &mut Vec<u32>| Place { start: start.as_mut_ptr().cast(), row: 0 };
            let places = [Place::columns(PITCH), place(&mut x), place(&mut found)];
            // SAFETY: operand and results hold a row; `convert` reads and writes the same.
            unsafe {
                code.run(Rows { places: &places, from: 0, to: 1 });
                let x = slice(from, x.as_ptr().cast(), PITCH);
                (chain.links[0].strip)(&[x], slice_mut(to, expected.as_mut_ptr().cast(), PITCH), PITCH);
            }
            let elements = |words: &[u32]| -> Vec<u32> {
                let halves = words.iter().flat_map(|w| [w & 0xffff, w >> 16]);
                if to == half { halves.take(PITCH).collect() } else { words.to_vec() }
            };
            for (i, (a, b)) in elements(&found).into_iter().zip(elements(&expected)).enumerate() {
                let nan = match to {
                    DType::F32 => f32::from_bits(a).is_nan() && f32::from_bits(b).is_nan(),
                    DType::F16 => a & 0x7fff > 0x7c00 && b & 0x7fff > 0x7c00,
                    _ => a & 0x7fff > 0x7f80 && b & 0x7fff > 0x7f80,
                };
                assert!(a == b || nan, "{from} to {to}, element {i}: {a:x} {b:x}");
            }
        }
    }
}
