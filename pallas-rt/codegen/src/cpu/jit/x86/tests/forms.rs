//! Folds, results in the place of operands or past the caches, and as many operands as there are pointers.
use super::super::super::super::fold;
use super::super::super::super::plan::step::{ChainFold, FoldDirection};
use super::*;

#[test]
fn folds_agree_with_loops() {
    if !super::super::super::super::strips::has_avx2() {
        return;
    }
    let halves = [DType::F16, DType::Bf16].map(|dtype| [ScalarOp::Maximum, ScalarOp::Minimum].map(|op| (op, dtype)));
    let floats = [ScalarOp::Add, ScalarOp::Mul, ScalarOp::Maximum, ScalarOp::Minimum].map(|op| (op, DType::F32));
    for (op, dtype) in floats.into_iter().chain(halves.into_iter().flatten()) {
        let start = op.neutral(dtype).expect("the shape rule admits monoids only");
        let fold = fold::fold_functions(op, dtype);
        let sink =
            ChainFold { along: FoldDirection::Rows, op, fold, start, of: LinkOperand::Input(0), dtype, to: Value(9) };
        let chain = ElementwiseChain {
            shape: vec![ROWS, COLUMNS],
            inputs: vec![ChainInput::Value(Value(0))],
            sinks: vec![sink],
            widest: 4,
            ..ElementwiseChain::default()
        };
        let forms = [(false, false), (true, false), (true, true)];
        for (columns, (wide, halves)) in (1..=COLUMNS).flat_map(|columns| forms.map(|form| (columns, form))) {
            // Small integers: every order of adding gives the same. A NaN in one row, somewhere.
            let mut x: Vec<f32> = (0..ROWS * PITCH).map(|i| [1.0, 2.0, -1.0, 0.5][(i * 5 + i / 9) % 4]).collect();
            x[PITCH + columns / 2] = f32::NAN;
            // The last row has zeros of both signs, or of one, so that their order determines the result.
            let zero = if columns % 3 == 0 { [-0.0, -0.0] } else { [-0.0, 0.0] };
            let other = if op == ScalarOp::Maximum { -1.0 } else { 1.0 };
            for (i, x) in x[2 * PITCH..].iter_mut().enumerate() {
                *x = if i % 4 == 0 { zero[i / 4 % 2] } else { other };
            }
            let mut bytes = bytes_of(&x, dtype);
            let (row, mut found) = (PITCH * dtype.bytes(), [0u32; ROWS]);
            let codes = CodeCache::default();
            let form = CodeSpecialization { wide, halves, ..CodeSpecialization::default() };
            let code = codes.get_chain_code(std::slice::from_ref(&chain), &[form]).expect("has code");
            let places = [
                OperandAddress::encode_column_count(columns),
                OperandAddress::new(bytes.as_mut_ptr().cast(), row as isize),
                OperandAddress::new(found.as_mut_ptr().cast(), 4),
            ];
            // SAFETY: the operand holds `ROWS` rows of `PITCH` elements, the fold an element a row.
            unsafe { code.run(CodeCall { places: &places, from: 0, to: ROWS }) };
            for (i, &found) in found.iter().enumerate() {
                let mut expected = 0u32;
                // SAFETY: a row of `columns` elements, and one result.
                unsafe {
                    let x = bytes.as_ptr().cast::<u8>().add(i * row);
                    (fold.rows)(x, 0, 1, columns, (&raw const start.bits).cast(), (&raw mut expected).cast());
                }
                assert!(same(found, expected, dtype), "{op} of {columns} {dtype}: {found:x} {expected:x}");
            }
        }
    }
}

/// Numbers as elements of a type, aligned.
fn bytes_of(x: &[f32], dtype: DType) -> Vec<u32> {
    let bytes: Vec<u8> = x
        .iter()
        .flat_map(|&x| Literal::new(dtype, f64::from(x)).bits.to_le_bytes()[..dtype.bytes()].to_vec())
        .collect();
    words(&bytes)
}

#[test]
fn folds_of_columns_agree_with_loops() {
    if !super::super::super::super::strips::has_avx2() {
        return;
    }
    use ScalarOp::{Add, BitOr, Maximum, Minimum, Mul};
    let mut compiled = vec![];
    for (op, dtype) in [Add, Mul, Maximum, Minimum, BitOr].into_iter().flat_map(|op| TYPES.map(|dtype| (op, dtype))) {
        let Some(start) = op.neutral(dtype).filter(|_| op.is_monoid(dtype) && op.accumulator(dtype) == Some(dtype))
        else {
            continue;
        };
        let fold = fold::fold_functions(op, dtype);
        let sink = ChainFold {
            along: FoldDirection::Columns,
            op,
            fold,
            start,
            of: LinkOperand::Input(0),
            dtype,
            to: Value(9),
        };
        let inputs = vec![ChainInput::Value(Value(0))];
        let chain = ElementwiseChain {
            shape: vec![ROWS, COLUMNS],
            inputs,
            sinks: vec![sink],
            widest: 4,
            ..ElementwiseChain::default()
        };
        for (columns, wide) in (1..=COLUMNS).flat_map(|columns| [(columns, false), (columns, true)]) {
            let mut x: Vec<f32> = (0..ROWS * PITCH).map(|i| [1.0, 2.0, 0.0, 3.0, 1.0][(i * 5 + i / 9) % 5]).collect();
            x[PITCH + columns / 2] =
                if matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) { f32::NAN } else { 1.0 };
            x[2 * PITCH] = -0.0;
            let mut x = bytes_of(&x, dtype);
            let first = bytes_of(&[2.0; PITCH], dtype);
            let (mut found, mut expected) = (first.clone(), first);
            let codes = CodeCache::default();
            let form = CodeSpecialization { wide, halves: columns % 2 == 0, ..CodeSpecialization::default() };
            let Some(code) = codes.get_chain_code(std::slice::from_ref(&chain), &[form]) else { continue };
            compiled.push((op, dtype));
            let row = PITCH * dtype.bytes();
            let places = [
                OperandAddress::encode_column_count(columns),
                OperandAddress::new(x.as_mut_ptr().cast(), row as isize),
                OperandAddress::new(found.as_mut_ptr().cast(), 0),
            ];
            // SAFETY: the operand holds `ROWS` rows of `PITCH` elements, the fold one.
            unsafe {
                code.run(CodeCall { places: &places, from: 0, to: ROWS });
                for i in 0..ROWS {
                    (fold.into)(x.as_ptr().cast::<u8>().add(i * row), columns, expected.as_mut_ptr().cast());
                }
            }
            for (i, (a, b)) in elements(&found, dtype).into_iter().zip(elements(&expected, dtype)).enumerate() {
                assert!(same(a, b, dtype), "{op} of {dtype}, column {i} of {columns}: {a:x}, expected {b:x}");
            }
        }
    }
    compiled.dedup();
    assert!(compiled.len() >= 17, "only {compiled:?} have code");
}

#[test]
fn results_may_take_the_place_of_operands_or_stream() {
    if !super::super::super::super::strips::has_avx2() {
        return;
    }
    // x = exp(x) * 2, in place.
    let args = |x| vec![(x, DType::F32)];
    let inputs = || vec![ChainInput::Value(Value(0)), ChainInput::Constant(Literal::new(DType::F32, 2.0))];
    let doubled = |leaves| {
        let double = vec![(LinkOperand::Link(0), DType::F32), (LinkOperand::Input(1), DType::F32)];
        let exp = link(ScalarOp::Exp, args(LinkOperand::Input(0)), DType::F32, false);
        vec![exp, link(ScalarOp::Mul, double, DType::F32, leaves)]
    };
    let mut chain = chain_of(inputs(), doubled(true));
    chain.links[1].aside = true;
    let x = operand(DType::F32, 0);
    let expected = |x: f32| {
        let mut y = 0.0f32;
        let exp = scalar_strip_fn(ScalarOp::Exp, DType::F32);
        // SAFETY: the loop was selected for this processor.
        unsafe { exp(&[pallas_ir::Slice::F32(&[x])], pallas_ir::SliceMut::F32(std::slice::from_mut(&mut y)), 1) };
        (y * 2.0).to_bits()
    };
    let codes = CodeCache::default();
    let code = codes
        .get_chain_code(
            std::slice::from_ref(&chain),
            &[CodeSpecialization { whole: true, ..CodeSpecialization::default() }],
        )
        .expect("has code");
    let mut y = x.clone();
    let place = OperandAddress::new(y.as_mut_ptr().cast(), 4 * PITCH as isize);
    // SAFETY: operand and result are the same rows, as the chain says.
    unsafe {
        code.run(CodeCall { places: &[OperandAddress::encode_column_count(PITCH), place, place], from: 0, to: ROWS })
    };
    for (&y, &x) in y.iter().zip(&x) {
        let x = f32::from_bits(x);
        assert!(same(y, expected(x), DType::F32), "exp({x}) * 2");
    }

    // Past the caches: from a multiple of eight elements on, also where rows end with half of a wide vector.
    for (columns, narrow) in [(PITCH, false), (PITCH - 8, false), (PITCH, true), (PITCH - 8, true)] {
        let mut links = doubled(!narrow);
        if narrow {
            let cast = convert::cast_strip_fn(DType::F32, DType::Bf16);
            links.push(link_of(ElementwiseOp::Cast, cast, args(LinkOperand::Link(1)), DType::Bf16, true));
        }
        let chain = chain_of(inputs(), links);
        for beyond in processors() {
            let form = CodeSpecialization {
                whole: columns % beyond.lanes() == 0,
                streamed: 0b1,
                ..CodeSpecialization::default()
            };
            let mut out = vec![0u32; ROWS * PITCH + 16];
            let from = (0..16).find(|&i| (&raw const out[i] as usize) % 64 == 32).expect("one of sixteen is");
            assert!(run_with(&chain, form, beyond, &mut [x.clone()], &mut out[from..], &mut [], columns));
            for (row, i) in (0..ROWS).flat_map(|row| (0..columns).map(move |i| (row, i))) {
                let x = f32::from_bits(x[row * PITCH + i]);
                let y = &out[from + row * PITCH..];
                if narrow {
                    let expected = half::bf16::from_f32(f32::from_bits(expected(x)));
                    let y = y[i / 2] >> (16 * (i % 2)) & 0xffff;
                    assert!(same(y, u32::from(expected.to_bits()), DType::Bf16), "exp({x}) * 2 as bf16, {beyond:?}");
                } else {
                    assert!(same(y[i], expected(x), DType::F32), "exp({x}) * 2, streamed, {beyond:?}");
                }
            }
        }
    }
}

#[test]
fn bools_choose_by_row_and_by_element() {
    if !super::super::super::super::strips::has_avx2() {
        return;
    }
    let args = vec![
        (LinkOperand::Input(0), DType::Bool),
        (LinkOperand::Input(1), DType::F32),
        (LinkOperand::Input(2), DType::F32),
    ];
    let not = link(ScalarOp::Not, vec![(LinkOperand::Input(0), DType::Bool)], DType::Bool, true);
    let chain = ElementwiseChain {
        shape: vec![ROWS, PITCH],
        inputs: (0..3).map(|i| ChainInput::Value(Value(i))).collect(),
        links: vec![link(ScalarOp::Select, args, DType::F32, true), not],
        widest: 4,
        ..ElementwiseChain::default()
    };
    for (single, wide) in [(0, false), (1, false), (0, true), (1, true)] {
        let codes = CodeCache::default();
        let code = codes.get_chain_code(
            std::slice::from_ref(&chain),
            &[CodeSpecialization { single, wide, whole: true, ..CodeSpecialization::default() }],
        );
        let mut mask: Vec<u8> = (0..ROWS * PITCH).map(|i| u8::from(i % 3 == 0 || i % 7 == 2)).collect();
        let (mut yes, mut no) = (operand(DType::F32, 0), operand(DType::F32, 1));
        let (mut out, mut negated) = (vec![0u32; ROWS * PITCH], vec![7u8; ROWS * PITCH]);
        let words = |x: &mut Vec<u32>| OperandAddress::new(x.as_mut_ptr().cast(), 4 * PITCH as isize);
        let bytes = |x: &mut Vec<u8>| OperandAddress::new(x.as_mut_ptr(), PITCH as isize);
        let places = [
            OperandAddress::encode_column_count(PITCH),
            bytes(&mut mask),
            words(&mut yes),
            words(&mut no),
            words(&mut out),
            bytes(&mut negated),
        ];
        // SAFETY: every place holds `ROWS` rows of `PITCH` elements.
        unsafe { code.expect("has code").run(CodeCall { places: &places, from: 0, to: ROWS }) };
        for i in 0..ROWS * PITCH {
            let chosen = mask[if single == 1 { i / PITCH * PITCH } else { i }];
            assert_eq!(out[i], if chosen == 1 { yes[i] } else { no[i] }, "element {i}, {single}");
            assert_eq!(negated[i], 1 - chosen, "element {i}, {single}");
        }
    }
}

/// The last pointers take the place of what the loop over rows needs.
#[test]
fn many_operands_are_added() {
    if !super::super::super::super::strips::has_avx2() {
        return;
    }
    let (count, dtype) = (8, DType::F32);
    let mut links: Vec<ChainLink> = vec![];
    for i in 1..count {
        let sum = if i == 1 { LinkOperand::Input(0) } else { LinkOperand::Link(i - 2) };
        links.push(link(ScalarOp::Add, vec![(sum, dtype), (LinkOperand::Input(i), dtype)], dtype, i == count - 1));
    }
    let sink = |along| ChainFold {
        along,
        op: ScalarOp::Add,
        fold: fold::fold_functions(ScalarOp::Add, dtype),
        start: Literal::new(dtype, 0.0),
        of: LinkOperand::Link(count - 2),
        dtype,
        to: Value(9),
    };
    let mut chain = chain_of(values(count), links);
    chain.sinks = vec![sink(FoldDirection::Rows), sink(FoldDirection::Columns)];
    for (columns, beyond) in (1..=COLUMNS).flat_map(|columns| processors().map(|beyond| (columns, beyond))) {
        // Small whole numbers: every order of adding gives the same.
        let number = |i: usize, at: usize| ((at * 7 + i * 3) % 11) as f32;
        let operand = |i| (0..ROWS * PITCH).map(|at| number(i, at).to_bits()).collect();
        let mut inputs: Vec<Vec<u32>> = (0..count).map(operand).collect();
        let (mut out, mut rows, mut sums) = (vec![0.0f32; ROWS * PITCH], [0.0f32; ROWS], [0.0f32; PITCH]);
        let code = compile(std::slice::from_ref(&chain), &[CodeSpecialization::default()], beyond).expect("has code");
        let place = |start: *mut u8, row: usize| OperandAddress::new(start, 4 * row as isize);
        let mut places = vec![OperandAddress::encode_column_count(columns)];
        places.extend(inputs.iter_mut().map(|x| place(x.as_mut_ptr().cast(), PITCH)));
        places.push(place(out.as_mut_ptr().cast(), PITCH));
        places.push(place(rows.as_mut_ptr().cast(), 1));
        places.push(place(sums.as_mut_ptr().cast(), 0));
        // SAFETY: every place holds `ROWS` rows of `PITCH` elements, folds an element a row, or a column.
        unsafe { code.run(CodeCall { places: &places, from: 0, to: ROWS }) };
        let at = |row: usize, c: usize| (0..count).map(|i| number(i, row * PITCH + c)).sum::<f32>();
        for row in 0..ROWS {
            assert!((0..columns).all(|c| out[row * PITCH + c] == at(row, c)), "{columns} columns, row {row}");
            assert_eq!(rows[row], (0..columns).map(|c| at(row, c)).sum::<f32>(), "{columns} columns, row {row}");
        }
        for (c, found) in sums.into_iter().enumerate() {
            let sum = if c < columns { (0..ROWS).map(|row| at(row, c)).sum::<f32>() } else { 0.0 };
            assert_eq!(found, sum, "{columns} columns, column {c}");
        }
    }
}
