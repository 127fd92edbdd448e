//! Code against strips, bit by bit: every operation that has code, in every form of operands, for all lengths of a
//! tail.
mod forms;

use super::super::super::convert;
use super::super::super::plan::step::{ChainInput, ChainLink, ElementwiseChain, ElementwiseOp, LinkOperand};
use super::super::super::strips::{StripFn, scalar_strip_fn, slice, slice_mut};
use super::super::{CodeCache, CodeCall, CodeSpecialization, MachineCode, OperandAddress};
use super::row_loops::compile;
use super::vector::CpuFeatures;
use pallas_ir::scalar::SignatureType;
use pallas_ir::{DType, Literal, ScalarOp, Value};

const EDGES: [f32; 43] = [
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
    // At the ends of integers.
    0.99,
    -0.99,
    1.5e9,
    3e9,
    2_147_483_520.0,
    2_147_483_648.0,
    -2_147_483_648.0,
    -2_147_483_904.0,
    4_294_967_040.0,
    4_294_967_296.0,
    65_504.0,
    // Halfway between two 16-bit floats of each type, and just beside.
    f32::from_bits(0x3f80_8000),
    f32::from_bits(0x3f81_8000),
    f32::from_bits(0x3f80_8001),
    f32::from_bits(0x3f80_1000),
    f32::from_bits(0x3f80_3000),
    f32::from_bits(0x3f80_1001),
    f32::from_bits(0x7f7f_ffff),
    f32::from_bits(0x3300_0000),
];
const WORDS: [u32; 16] = [
    0,
    1,
    !0,
    5,
    i32::MAX as u32,
    i32::MIN as u32,
    77,
    !77,
    31,
    32,
    // Halfway between two floats, and beside.
    0x0100_0001,
    0x0100_0003,
    0x8000_0080,
    0x8000_0081,
    0xffff_ff7f,
    0xffff_ff80,
];
/// The types that have code.
const TYPES: [DType; 8] =
    [DType::F32, DType::I32, DType::U32, DType::Bool, DType::F16, DType::Bf16, DType::I8, DType::U8];
const ROWS: usize = 3;
/// More than four vectors and a tail.
const COLUMNS: usize = 45;
/// Words from a row to the next.
const PITCH: usize = 48;

/// An operand of `ROWS` rows, a multiple of a vector apart; `seed` tells operands apart.
fn operand(dtype: DType, seed: usize) -> Vec<u32> {
    let number = |i: usize| EDGES[(i * 7 + i / 24 * seed + seed * 5) % EDGES.len()];
    let half = |i: usize| match dtype {
        DType::F16 => u32::from(half::f16::from_f32(number(i)).to_bits()),
        _ => u32::from(half::bf16::from_f32(number(i)).to_bits()),
    };
    let element = |i: usize| match dtype {
        DType::F32 => number(i).to_bits(),
        DType::I32 | DType::U32 | DType::I8 | DType::U8 => WORDS[(i * 3 + seed * (i / 8 + 1)) % WORDS.len()],
        DType::F16 | DType::Bf16 => half(2 * i) | half(2 * i + 1) << 16,
        DType::Bool => [0x0001_0100, 0x0101_0001, 0, 0x0100_0000, 0x0101_0101][(i * 3 + seed * (i / 8 + 1)) % 5],
        other => unreachable!("no operand of {other}"),
    };
    (0..ROWS * PITCH).map(element).collect()
}

/// A link without an output, or with the chain's only one.
fn link_of(
    op: ElementwiseOp,
    strip: StripFn,
    args: Vec<(LinkOperand, DType)>,
    dtype: DType,
    leaves: bool,
) -> ChainLink {
    let output = leaves.then_some(Value(90));
    ChainLink { op, strip, args, dtype, buffer: 0, output, aside: false, passing: false }
}
fn link(op: ScalarOp, args: Vec<(LinkOperand, DType)>, dtype: DType, leaves: bool) -> ChainLink {
    let open = op.row().operands.iter().position(|(_, t)| *t == SignatureType::T).unwrap_or(0);
    let strip = scalar_strip_fn(op, args[open].1);
    link_of(ElementwiseOp::Scalar(op), strip, args, dtype, leaves)
}
fn chain_of(inputs: Vec<ChainInput>, links: Vec<ChainLink>) -> ElementwiseChain {
    ElementwiseChain { shape: vec![ROWS, COLUMNS], inputs, links, buffers: 2, widest: 4, ..ElementwiseChain::default() }
}
fn values(n: usize) -> Vec<ChainInput> {
    (0..n as u32).map(|i| ChainInput::Value(Value(i))).collect()
}

/// An operation on operands of a type; where 32 bits become bools `select(y, x0, x1)`, which leaves in parts of
/// vectors, too.
fn chain(op: ScalarOp, dtype: DType, arity: usize) -> Option<ElementwiseChain> {
    let result = op.infer_dtype(&vec![dtype; arity]).ok()?;
    let args: Vec<_> = (0..arity).map(|i| (LinkOperand::Input(i), dtype)).collect();
    let (x0, x1) = ((LinkOperand::Input(0), dtype), (LinkOperand::Input(arity - 1), dtype));
    let chosen = result == DType::Bool && dtype.bytes() == 4;
    let mut links = vec![link(op, args, result, !chosen)];
    if chosen {
        links.push(link(ScalarOp::Select, vec![(LinkOperand::Link(0), DType::Bool), x0, x1], dtype, true));
    }
    Some(chain_of(values(arity), links))
}

/// What strips make of the chain's rows.
fn expected(chain: &ElementwiseChain, inputs: &[Vec<u32>], single: u64, columns: usize) -> Vec<u32> {
    let types: Vec<DType> = (0..chain.inputs.len())
        .map(|i| {
            let mut args = chain.links.iter().flat_map(|l| &l.args);
            args.find(|(s, _)| *s == LinkOperand::Input(i)).expect("every input is read").1
        })
        .collect();
    let mut out = vec![0u32; ROWS * PITCH];
    for row in 0..ROWS {
        let mut values = inputs.iter();
        let of = |i: usize| -> Vec<u8> {
            let bytes = types[i].bytes();
            let repeated = |word: &[u8]| word[..bytes].repeat(columns);
            match chain.inputs[i] {
                ChainInput::Constant(x) => repeated(&x.bits.to_le_bytes()),
                ChainInput::Value(_) => {
                    let words = &values.next().expect("one for each value")[row * PITCH..][..PITCH];
                    let row: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
                    if single >> i & 1 == 1 { repeated(&row) } else { row }
                }
            }
        };
        let inputs: Vec<Vec<u8>> = (0..chain.inputs.len()).map(of).collect();
        // Elements lie at multiples of their size: the strips' memory is words.
        let inputs: Vec<Vec<u32>> = inputs.iter().map(|bytes| words(bytes)).collect();
        let mut results: Vec<Vec<u32>> = vec![];
        for link in &chain.links {
            let mut y = vec![0u32; columns];
            let bytes = |s: &LinkOperand| match *s {
                LinkOperand::Input(i) => inputs[i].as_ptr().cast::<u8>(),
                LinkOperand::Link(l) => results[l].as_ptr().cast::<u8>(),
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

fn words(bytes: &[u8]) -> Vec<u32> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.as_chunks::<4>().0.iter().map(|w| u32::from_le_bytes(*w)).collect()
}

/// Elements that words hold, each in the low bits of one.
fn elements(words: &[u32], dtype: DType) -> Vec<u32> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let element = |e: &[u8]| e.iter().rev().fold(0, |x, b| x << 8 | u32::from(*b));
    bytes.chunks(dtype.bytes()).map(element).collect()
}

fn same(a: u32, b: u32, dtype: DType) -> bool {
    let nan = |x: u32| match dtype {
        DType::F32 => f32::from_bits(x).is_nan(),
        DType::F16 => x & 0x7fff > 0x7c00,
        DType::Bf16 => x & 0x7fff > 0x7f80,
        _ => false,
    };
    a == b || (nan(a) && nan(b))
}

/// The word with zeros for subnormal numbers, whose exponents are those of `f32`.
fn flushed(word: u32, dtype: DType) -> u32 {
    let flush = |x: u32, exponent: u32, sign: u32| if x & exponent == 0 { x & sign } else { x };
    match dtype {
        DType::F32 => flush(word, 0x7f80_0000, 0x8000_0000),
        DType::Bf16 => flush(word & 0xffff, 0x7f80, 0x8000) | flush(word >> 16, 0x7f80, 0x8000) << 16,
        _ => word,
    }
}

/// Runs a chain's code into `out`; false where it has none.
fn run_with(
    chain: &ElementwiseChain,
    form: CodeSpecialization,
    beyond: CpuFeatures,
    inputs: &mut [Vec<u32>],
    out: &mut [u32],
    folds: &mut [Vec<f32>],
    columns: usize,
) -> bool {
    let Some(code) = compile(std::slice::from_ref(chain), &[form], beyond) else { return false };
    run_code(&code, inputs, out, folds, columns);
    true
}
fn run_code(code: &MachineCode, inputs: &mut [Vec<u32>], out: &mut [u32], folds: &mut [Vec<f32>], columns: usize) {
    let wide = |start: *mut u8| OperandAddress::new(start, 4 * PITCH as isize);
    let mut places = vec![OperandAddress::encode_column_count(columns)];
    places.extend(inputs.iter_mut().map(|x| wide(x.as_mut_ptr().cast())));
    if !out.is_empty() {
        places.push(wide(out.as_mut_ptr().cast()));
    }
    places.extend(folds.iter_mut().map(|f| OperandAddress::new(f.as_mut_ptr().cast(), 4)));
    // SAFETY: every place holds `ROWS` rows of `PITCH` words, folds an element a row.
    unsafe { code.run(CodeCall { places: &places, from: 0, to: ROWS }) };
}

/// This processor, this one with narrow vectors, and one that has nothing but AVX2.
fn processors() -> [CpuFeatures; 3] {
    [CpuFeatures::detect(), CpuFeatures { wide: false, ..CpuFeatures::detect() }, CpuFeatures::default()]
}

/// Code and strips agree on a chain over operands of these types, for every length, but that code may take subnormal
/// operands and results for zeros; false where it never has code.
fn agrees(chain: &ElementwiseChain, types: &[DType], what: &str) -> bool {
    let all: Vec<Vec<u32>> = types.iter().enumerate().map(|(i, dtype)| operand(*dtype, i)).collect();
    let dtype = chain.links.last().expect("a link").dtype;
    let mut compiled = false;
    for (columns, single) in (1..=COLUMNS).flat_map(|c| [(c, 0), (c, 1), (c, 1 << (types.len() - 1))]) {
        for (whole, beyond) in [false, true].into_iter().flat_map(|w| processors().map(|beyond| (w, beyond))) {
            if whole && columns % beyond.lanes() != 0 {
                continue;
            }
            let (mut inputs, mut out) = (all.clone(), vec![0; ROWS * PITCH]);
            // What is fetched ahead changes nothing.
            let ahead = if whole { u64::MAX } else { 0 };
            // Short rows have loops for half of the lengths, wide or not.
            let few = (columns <= 32 && (whole || (columns % 2 == 1) == beyond.wide)).then_some(columns);
            let form =
                CodeSpecialization { single, ahead, unrolled_columns: few, whole, ..CodeSpecialization::default() };
            if !run_with(chain, form, beyond, &mut inputs, &mut out, &mut [], columns) {
                continue;
            }
            compiled = true;
            assert_eq!(inputs, all, "{what} wrote its operands");
            let found = elements(&out, dtype);
            let zeros = all.iter().zip(types).map(|(x, &dtype)| x.iter().map(|&w| flushed(w, dtype)).collect());
            let of = [all.clone(), zeros.collect()].map(|x| elements(&expected(chain, &x, single, columns), dtype));
            for (i, &a) in found.iter().enumerate() {
                let size = |x: u32| x & (u32::MAX >> (33 - 8 * dtype.bytes() as u32));
                let is_zero = |x: u32| size(flushed(x, dtype)) == 0;
                // The sign of zeros that are none of them subnormal counts.
                let is_one_of = |x: u32| same(a, x, dtype) || is_zero(a) && is_zero(x) && size(a | x) != 0;
                let [b, zeros] = [of[0][i], of[1][i]];
                let agrees = is_one_of(b) || is_one_of(zeros);
                assert!(agrees, "{what}, {columns} columns, {form:?}, at {i}: {a:x}, expected {b:x} or {zeros:x}");
            }
        }
    }
    compiled
}

#[test]
fn operations_agree_with_strips() {
    if !super::super::super::strips::has_avx2() {
        return;
    }
    let mut compiled = vec![];
    for op in ScalarOp::ALL.iter().copied() {
        let arity = op.row().operands.len();
        for dtype in TYPES {
            let Some(chain) = chain(op, dtype, arity) else { continue };
            if agrees(&chain, &vec![dtype; arity], &format!("{op} of {dtype}")) {
                compiled.push((op, dtype));
            }
        }
    }
    let many = |dtype, n| compiled.iter().filter(|c| c.1 == dtype).count() >= n;
    let enough = [(DType::F32, 30), (DType::I32, 18), (DType::U32, 17), (DType::Bool, 6), (DType::U8, 11)];
    let enough = enough.into_iter().chain([(DType::F16, 28), (DType::Bf16, 28)]);
    assert!(enough.clone().all(|(dtype, n)| many(dtype, n)), "only {compiled:?} have code");
}

#[test]
fn choices_agree_with_strips() {
    if !super::super::super::strips::has_avx2() {
        return;
    }
    for dtype in TYPES {
        let args =
            vec![(LinkOperand::Input(0), DType::Bool), (LinkOperand::Input(1), dtype), (LinkOperand::Input(2), dtype)];
        let chain = chain_of(values(3), vec![link(ScalarOp::Select, args, dtype, true)]);
        assert!(agrees(&chain, &[DType::Bool, dtype, dtype], &format!("select of {dtype}")));
    }
}

/// Masks that choose at once, later, together with others and again.
#[test]
fn masks_agree_with_strips() {
    if !super::super::super::strips::has_avx2() {
        return;
    }
    use ScalarOp::{BitAnd, BitOr, BitXor, Eq, Gt, Le, Ne, Select};
    for (dtype, first) in [(DType::F32, Le), (DType::F32, Ne), (DType::I32, Gt), (DType::U32, Eq), (DType::Bf16, Gt)] {
        for (combined, order) in [(BitAnd, [0, 1]), (BitOr, [1, 0]), (BitXor, [0, 0]), (Eq, [1, 1])] {
            let mask = |link: usize| (LinkOperand::Link(link), DType::Bool);
            let x = |input: usize| (LinkOperand::Input(input), dtype);
            let y = |link: usize| (LinkOperand::Link(link), dtype);
            let links = vec![
                link(first, vec![x(0), x(1)], DType::Bool, false),
                link(Gt, vec![x(1), x(2)], DType::Bool, false),
                link(combined, vec![mask(0), mask(1)], DType::Bool, false),
                link(Select, vec![mask(order[0]), x(0), x(2)], dtype, false),
                link(Select, vec![mask(order[1]), y(3), x(1)], dtype, false),
                link(Select, vec![mask(2), y(4), x(0)], dtype, true),
            ];
            assert!(agrees(&chain_of(values(3), links), &[dtype; 3], &format!("{first}, {combined} of {dtype}")));
        }
    }
}

#[test]
fn casts_agree_with_strips() {
    if !super::super::super::strips::has_avx2() {
        return;
    }
    for (from, to) in TYPES.into_iter().flat_map(|from| TYPES.map(|to| (from, to))) {
        let cast = link_of(
            ElementwiseOp::Cast,
            convert::cast_strip_fn(from, to),
            vec![(LinkOperand::Input(0), from)],
            to,
            true,
        );
        let compiled = agrees(&chain_of(values(1), vec![cast]), &[from], &format!("cast of {from} to {to}"));
        // Those are rounded once, from more bits than registers hold.
        let wide = matches!(from, DType::I32 | DType::U32) && matches!(to, DType::F16 | DType::Bf16);
        assert_eq!(compiled, !wide, "{from} to {to}");
        if from.bytes() == 4 && to.bytes() == 4 {
            let bits = link_of(
                ElementwiseOp::Bitcast,
                convert::bitcast_strip_fn(from, to),
                vec![(LinkOperand::Input(0), from)],
                to,
                true,
            );
            assert!(agrees(&chain_of(values(1), vec![bits]), &[from], &format!("bits of {from} as {to}")));
        }
    }
}

#[test]
fn shifts_by_constants_agree_with_strips() {
    if !super::super::super::strips::has_avx2() {
        return;
    }
    let wide = [ScalarOp::Shl, ScalarOp::Shr].into_iter().flat_map(|op| [(op, DType::U32), (op, DType::I32)]);
    for (op, dtype) in wide.chain([(ScalarOp::Shr, DType::U8), (ScalarOp::Shr, DType::I8)]) {
        for by in (0..=40).chain([255, -1]) {
            let inputs = vec![ChainInput::Value(Value(0)), ChainInput::Constant(Literal::int(dtype, by))];
            let args = vec![(LinkOperand::Input(0), dtype), (LinkOperand::Input(1), dtype)];
            let chain = chain_of(inputs, vec![link(op, args, dtype, true)]);
            assert!(agrees(&chain, &[dtype], &format!("{op} of {dtype} by {by}")));
        }
    }
}

/// With the instruction for it and without, and where shifts only look like parts of a rotation.
#[test]
fn rotations_agree_with_strips() {
    if !super::super::super::strips::has_avx2() {
        return;
    }
    let u32s = |sources: [LinkOperand; 2]| sources.map(|s| (s, DType::U32)).to_vec();
    for (left, right) in (0..=34).flat_map(|by| [(by, 32 - by), (by, 31)]) {
        for turned in [false, true] {
            let number = |by: i64| ChainInput::Constant(Literal::int(DType::U32, by));
            let inputs = vec![ChainInput::Value(Value(0)), number(left), number(right)];
            let mut shifts = [(ScalarOp::Shl, 1), (ScalarOp::Shr, 2)];
            if turned {
                shifts.reverse();
            }
            let shift = |(op, by)| link(op, u32s([LinkOperand::Input(0), LinkOperand::Input(by)]), DType::U32, false);
            let mut links: Vec<ChainLink> = shifts.map(shift).into();
            links.push(link(ScalarOp::BitOr, u32s([LinkOperand::Link(0), LinkOperand::Link(1)]), DType::U32, true));
            let chain = chain_of(inputs, links);
            let x = operand(DType::U32, 0);
            let expected = expected(&chain, std::slice::from_ref(&x), 0, COLUMNS);
            for beyond in processors() {
                let code =
                    compile(std::slice::from_ref(&chain), &[CodeSpecialization::default()], beyond).expect("has code");
                let mut out = vec![0; ROWS * PITCH];
                run_code(&code, &mut [x.clone()], &mut out, &mut [], COLUMNS);
                assert_eq!(out, expected, "{left} and {right}, {beyond:?}");
            }
        }
    }
}

/// Vectors of a long chain are computed abreast: rounds of random bits, as kernels draw them.
#[test]
fn long_chains_agree_with_strips() {
    if !super::super::super::strips::has_avx2() {
        return;
    }
    let (mut inputs, mut links) = (values(2), vec![]);
    let (mut x, mut y) = (LinkOperand::Input(0), LinkOperand::Input(1));
    for by in [13, 15, 26, 6, 17, 29, 16, 24] {
        inputs.extend([by, 32 - by].map(|by| ChainInput::Constant(Literal::int(DType::U32, by))));
        let (left, right) = (LinkOperand::Input(inputs.len() - 2), LinkOperand::Input(inputs.len() - 1));
        let mut next = |op, a, b| {
            links.push(link(op, vec![(a, DType::U32), (b, DType::U32)], DType::U32, false));
            LinkOperand::Link(links.len() - 1)
        };
        x = next(ScalarOp::Add, x, y);
        let (upper, lower) = (next(ScalarOp::Shl, y, left), next(ScalarOp::Shr, y, right));
        let turned = next(ScalarOp::BitOr, upper, lower);
        y = next(ScalarOp::BitXor, turned, x);
    }
    links.last_mut().expect("eight rounds").output = Some(Value(90));
    assert!(agrees(&chain_of(inputs, links), &[DType::U32; 2], "rounds of random bits"));
}
