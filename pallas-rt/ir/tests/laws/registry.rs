//! Laws of rows and of shape rules: a new row or file is tested by being there.
use crate::oracle::{Eager, Strip, apply, get, put};
use pallas_ir::dtype::{Bf16, F16, Half};
use pallas_ir::scalar::{NanBehavior, SignatureType, WgslAccuracy};
use pallas_ir::structural::{
    AccessForm, AffinePosition, IndexedWindows, LoopNest, MapPiece, NestAxisRole, NestLoop, OpTestCase,
    RandomKernelGenerator, StructuralOp,
};
use pallas_ir::{
    DType, Dim, E, Elem, ElementFunction, ElementOperands, Facts, Literal, OpVisitor, ScalarOp, Slice, SliceMut, Type,
};
use std::cell::RefCell;

/// Rows that have an implementation for `f64`.
fn float_rows() -> impl Iterator<Item = ScalarOp> {
    ScalarOp::ALL.iter().copied().filter(|op| op.row().class.dtypes().contains(&DType::F64))
}

/// The operands that range over the row's class.
fn own_operands(op: ScalarOp) -> impl Iterator<Item = usize> {
    (0..op.arity()).filter(move |&i| op.row().operands[i].1 == SignatureType::T)
}

/// Five numbers in (0.2, 0.9), where every function is smooth, without ties between seeds.
fn smooth(seed: usize) -> Vec<f64> {
    (0..5).map(|i| 0.2 + 0.7 * (((i * 7919 + seed * 104_729 + 13) % 1009) as f64 / 1009.0)).collect()
}

#[test]
fn names_parse_back() {
    for &op in ScalarOp::ALL {
        assert_eq!(ScalarOp::parse(&op.to_string()), Some(op));
    }
    for sample in StructuralOp::samples() {
        assert!(ScalarOp::parse(sample.op.name()).is_none(), "{} is in both registries", sample.op.name());
    }
    for &dtype in DType::ALL {
        assert_eq!(dtype.to_string().parse(), Ok(dtype));
    }
}

#[test]
fn class_and_lanes_agree() {
    struct Exists;
    impl OpVisitor for Exists {
        type Out = ();
        fn visit<O: ElementFunction<A>, A: ElementOperands>(self) {}
    }
    for &op in ScalarOp::ALL {
        for &t in DType::ALL {
            let given: Vec<DType> =
                op.row().operands.iter().map(|(_, ty)| if let SignatureType::Is(is) = ty { *is } else { t }).collect();
            assert_eq!(op.infer_dtype(&given).is_ok(), op.visit(t, Exists).is_some(), "{op} of {t}");
        }
    }
}

#[test]
fn nan_cells_hold() {
    for op in float_rows() {
        for i in own_operands(op) {
            let mut args = vec![[0.7]; op.arity()];
            args[i] = [f64::NAN];
            let args: Vec<&[f64]> = args.iter().map(|x| &x[..]).collect();
            let y = apply(op, &args)[0];
            match op.row().nan {
                NanBehavior::Propagates => assert!(y.is_nan(), "{op} of NaN at {i} is {y}"),
                NanBehavior::False => assert_eq!(y, 0.0, "{op} of NaN at {i}"),
                NanBehavior::Tests => assert_eq!(y, 1.0, "{op} of NaN at {i}"),
                NanBehavior::Chosen | NanBehavior::Opaque => {}
            }
        }
    }
}

#[test]
fn every_row_costs_something() {
    for &op in ScalarOp::ALL {
        let row = op.row();
        assert!(row.cost.arithmetic + row.cost.transcendental > 0, "{op} is free");
        // An approximation on the CPU, or a shader that is less precise than a quotient or a root.
        let real = row.class.dtypes().iter().all(|d| d.is_float());
        let approximated = row.fast.is_some() || real && matches!(row.gpu, WgslAccuracy::Finite(ulp) if ulp > 8);
        assert_eq!(row.cost.transcendental > 0, approximated, "{op}: {:?}", row.cost);
    }
}

/// Returns the neutral elements of a row of two operands; empty if trying all elements shows that it is no monoid.
fn monoid<T: Elem>(op: ScalarOp, all: &[T], strip: fn(&[T]) -> Slice<'_>, out: fn(&mut [T]) -> SliceMut<'_>) -> Vec<T> {
    let two = |a: T, b: T| {
        let mut y = [T::default()];
        op.visit(T::DTYPE, Strip { args: &[strip(&[a]), strip(&[b])], out: out(&mut y), fast: false })
            .expect("it is defined");
        y[0]
    };
    // All NaNs are equal.
    #[allow(clippy::eq_op, reason = "NaN differs from itself")]
    let same = |a: T, b: T| a == b || a != a && b != b;
    let holds =
        |a: T, b: T| same(two(a, b), two(b, a)) && all.iter().all(|&c| same(two(two(a, b), c), two(a, two(b, c))));
    if !all.iter().all(|&a| all.iter().all(|&b| holds(a, b))) {
        return vec![];
    }
    all.iter().copied().filter(|&e| all.iter().all(|&a| same(two(a, e), a))).collect()
}

#[test]
fn fold_cells_are_the_monoids() {
    let floats = [f64::NEG_INFINITY, -2.0, 0.0, 1.0, 3.0, f64::INFINITY];
    let ints = [i32::MIN, -2, -1, 0, 1, 3, i32::MAX];
    for &op in ScalarOp::ALL.iter().filter(|op| op.row().operands.iter().map(|o| o.1).eq([SignatureType::T; 2])) {
        let row = op.row();
        if row.result != SignatureType::T {
            assert!(row.fold.is_none(), "{op} gives no element");
            continue;
        }
        for &dtype in row.class.dtypes() {
            let found: Vec<Literal> = match dtype {
                DType::F64 => monoid(op, &floats, |x| Slice::F64(x), |y| SliceMut::F64(y))
                    .into_iter()
                    .map(|x| Literal::new(dtype, x))
                    .collect(),
                DType::I32 => monoid(op, &ints, |x| Slice::I32(x), |y| SliceMut::I32(y))
                    .into_iter()
                    .map(|x| Literal::int(dtype, x.into()))
                    .collect(),
                DType::Bool => monoid(op, &[false, true], |x| Slice::Bool(x), |y| SliceMut::Bool(y))
                    .into_iter()
                    .map(Literal::bool)
                    .collect(),
                _ => continue,
            };
            assert_eq!(found, op.neutral(dtype).into_iter().collect::<Vec<_>>(), "{op} of {dtype}");
        }
    }
}

#[test]
fn scalar_jvp_is_finite_differences() {
    const STEP: f64 = 1e-6;
    for op in float_rows().filter(|op| op.row().result == SignatureType::T) {
        // Several draws, so that operands occur in every order: bounds of a clamp may be the wrong way round.
        for (i, draw) in own_operands(op).flat_map(|i| (0..8).map(move |draw| (i, draw))) {
            let x: Vec<Vec<f64>> = (0..op.arity()).map(|k| smooth((k + 1) * (draw + 1))).collect();
            let dx = smooth(9);
            let g = RefCell::new(Eager::default());
            let args: Vec<E<'_>> = x.iter().map(|x| put(&g, x.clone())).collect();
            let y = put(&g, apply(op, &x.iter().map(|x| &x[..]).collect::<Vec<_>>()));
            let tangents: Vec<Option<E<'_>>> = (0..op.arity()).map(|k| (k == i).then(|| put(&g, dx.clone()))).collect();
            let got = op.jvp(&args, y, &tangents).map_or(vec![0.0; dx.len()], |t| get(&g, t));
            let moved = |by: f64| {
                let mut x = x.clone();
                x[i].iter_mut().zip(&dx).for_each(|(x, d)| *x += by * d);
                apply(op, &x.iter().map(|x| &x[..]).collect::<Vec<_>>())
            };
            for (k, (up, down)) in moved(STEP).into_iter().zip(moved(-STEP)).enumerate() {
                let want = (up - down) / (2.0 * STEP);
                assert!((got[k] - want).abs() <= 1e-6 * (1.0 + want.abs()), "{op}, operand {i}: {} {want}", got[k]);
            }
        }
    }
}

const EDGES: [f32; 12] =
    [0.0, 1.0, 88.72, 88.73, 104.0, 127.99, 128.0, 126.0, 3e38, 1e-45, f32::MIN_POSITIVE, f32::INFINITY];

/// Every exponent and sign, a prime apart, and the edges.
fn sweep() -> Vec<f32> {
    let near = |x: f32| [x, -x, x.next_up(), -x.next_up(), x.next_down(), -x.next_down()];
    let inside = (0..40_000).map(|i| i as f32 / 20_000.0 - 1.0);
    let everywhere = (0..=u32::MAX).step_by(16_381).map(f32::from_bits);
    everywhere.chain(inside).chain(EDGES.into_iter().flat_map(near)).chain([f32::NAN]).collect()
}

/// The sweep for each operand; two operands meet in another order each, and every pair of edges.
fn operands(arity: usize) -> Vec<Vec<f32>> {
    let mut args = vec![sweep()];
    if arity == 2 {
        let mut other = sweep();
        other.rotate_left(77_773);
        args.push(other);
        let signed = || EDGES.into_iter().chain([f32::NAN]).flat_map(|x| [x, -x]);
        for (a, b) in signed().flat_map(|a| signed().map(move |b| (a, b))) {
            args[0].push(a);
            args[1].push(b);
        }
    }
    args
}

/// Largest error of the `cpu` cell, as a multiple of what the row states, and where.
fn excess(op: ScalarOp, rel: f64, abs: f64) -> (f64, Vec<f32>) {
    let args = operands(op.arity());
    let wide: Vec<Vec<f64>> = args.iter().map(|x| x.iter().copied().map(f64::from).collect()).collect();
    let (mut got, mut want) = (vec![0.0; args[0].len()], vec![0.0; args[0].len()]);
    let strips: Vec<Slice<'_>> = args.iter().map(|x| Slice::F32(x)).collect();
    let fast = Strip { args: &strips, out: SliceMut::F32(&mut got), fast: true };
    op.visit(DType::F32, fast).expect("a float row");
    let strips: Vec<Slice<'_>> = wide.iter().map(|x| Slice::F64(x)).collect();
    let reference = Strip { args: &strips, out: SliceMut::F64(&mut want), fast: false };
    op.visit(DType::F64, reference).expect("a float row");
    let mut worst = (0.0, vec![]);
    for (i, (got, want)) in got.into_iter().zip(want).enumerate() {
        // Beyond the largest f32 the reference is infinite too.
        let want = if want.is_finite() { want } else { f64::from(want as f32) };
        let overflow =
            want.abs() > f64::from(f32::MAX) * (1.0 - rel) && f64::from(got).abs() >= f64::from(f32::MAX) * (1.0 - rel);
        let same = got == want as f32 || got.is_nan() && want.is_nan() || overflow;
        let error = (f64::from(got) - want).abs() / (rel * want.abs() + abs);
        let error = if error.is_nan() { f64::INFINITY } else { error };
        if !same && error > worst.0 {
            worst = (error, args.iter().map(|x| x[i]).collect());
        }
    }
    worst
}

#[test]
fn fast_cells_are_within_their_stated_error() {
    let mut wrong = vec![];
    for &op in ScalarOp::ALL {
        let Some((rel, abs)) = op.row().fast else { continue };
        let (worst, at) = excess(op, rel, abs);
        // Far below 1, a smaller error should be stated.
        if !(0.3..=1.0).contains(&worst) {
            wrong.push(format!("{op}: {worst:.3} times its stated error at {at:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn half_conversions_round_trip() {
    for bits in 0..=u16::MAX {
        let wide = F16::from_bits(bits).wide();
        assert!(F16::round(wide).to_bits() == bits || wide.is_nan(), "f16 {bits:x}");
        let wide = Bf16::from_bits(bits).wide();
        assert!(Bf16::round(wide).to_bits() == bits || wide.is_nan(), "bf16 {bits:x}");
    }
    assert!(F16::round(f32::NAN).wide().is_nan() && Bf16::round(f32::NAN).wide().is_nan());
    assert_eq!(F16::round(65_519.0).wide(), 65_504.0);
    assert_eq!(F16::round(65_520.0).wide(), f32::INFINITY);
}

/// A sample's shapes, with names and with numbers.
fn shapes(sample: &OpTestCase<StructuralOp>) -> (Vec<Vec<Dim>>, Vec<Vec<Dim>>) {
    let size = |name: &&str| name.parse::<Dim>().expect("a size");
    let names: Vec<Vec<Dim>> = sample.args.iter().map(|shape| shape.iter().map(size).collect()).collect();
    let numbers = names.iter().map(|shape| bind(shape, sample)).collect();
    (names, numbers)
}

fn bind(shape: &[Dim], sample: &OpTestCase<StructuralOp>) -> Vec<Dim> {
    shape.iter().map(|d| d.bind(sample.with)).collect()
}

fn refs(shapes: &[Vec<Dim>]) -> Vec<&[Dim]> {
    shapes.iter().map(|s| &s[..]).collect()
}

fn number(dim: &Dim) -> i64 {
    dim.as_number().expect("a number")
}

#[test]
fn one_shape_rule_for_names_and_numbers() {
    for sample in StructuralOp::samples() {
        let (names, numbers) = shapes(&sample);
        let symbolic = sample.op.infer(&refs(&names), &Facts::default()).expect("a sample fits");
        let numeric = sample.op.bind(sample.with).infer(&refs(&numbers), &Facts::default()).expect("a sample fits");
        assert_eq!(bind(&symbolic, &sample), numeric, "{}", sample.op);
    }
}

#[test]
fn one_elementwise_rule_for_names_and_numbers() {
    let shapes: [&[usize]; 7] = [&[], &[1], &[3], &[0], &[3, 1], &[1, 4], &[2, 4]];
    let kernel = pallas_ir::Kernel::default();
    for (a, b) in shapes.into_iter().flat_map(|a| shapes.map(|b| (a, b))) {
        let (x, y) = (Type::new(DType::F32, a), Type::new(DType::F32, b));
        let symbolic = ScalarOp::Add.infer_shape(&[&x.dims(), &y.dims()], &Facts::default());
        let numeric = pallas_ir::infer(&kernel, &pallas_ir::Op::Scalar(ScalarOp::Add), &[&x, &y]);
        assert_eq!(numeric.map(|ty| ty.expect("one result").dims()), symbolic, "{x} and {y}");
    }
}

#[test]
fn an_operand_more_is_an_arity_error() {
    for sample in StructuralOp::samples().into_iter().filter(|s| s.op.name() != "concat") {
        let (names, _) = shapes(&sample);
        let mut args = refs(&names);
        args.push(&[]);
        let error = sample.op.infer(&args, &Facts::default()).expect_err("one operand too many");
        assert_eq!(error.code, "arity", "{}", sample.op);
    }
}

/// Every coordinate of a shape.
fn coordinates(shape: &[i64]) -> Vec<Vec<i64>> {
    shape
        .iter()
        .fold(vec![vec![]], |all, &n| all.iter().flat_map(|at| (0..n).map(move |i| [&at[..], &[i]].concat())).collect())
}

fn holds(piece: &MapPiece, at: &[i64]) -> bool {
    piece.bounds.iter().all(|(axis, lo, hi)| (number(lo)..number(hi)).contains(&at[*axis]))
}

/// That windows of an operand fit the indices, and the array that has their elements.
fn windows_fit(windows: &IndexedWindows, operand: &[i64], index: &[i64], moved: &[i64]) {
    let starts = windows.vector.map_or(1, |axis| index[axis]);
    assert_eq!(windows.start_vector_length() as i64, starts);
    let positions = (0..index.len()).filter(|&axis| Some(axis) != windows.vector).map(|axis| index[axis]);
    assert_eq!(positions.collect::<Vec<_>>(), windows.index.iter().map(|&axis| moved[axis]).collect::<Vec<_>>());
    let mut seen = windows.index.clone();
    assert_eq!(windows.axes.len(), operand.len());
    for (window, &n) in windows.axes.iter().zip(operand) {
        let size = number(&window.size);
        assert!(size <= n, "{window:?} of {n}");
        match window.axis {
            Some(axis) if windows.index.contains(&axis) => {
                assert_eq!((moved[axis], size, window.start), (n, 1, None), "parallel axes")
            }
            Some(axis) => {
                assert_eq!(moved[axis], size);
                seen.push(axis);
            }
            None => assert_eq!(size, 1),
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..moved.len()).collect::<Vec<_>>(), "each axis is one of positions or of windows");
}

/// That an access form fits the shapes that `infer` gave.
fn access_fits(access: &AccessForm, args: &[Vec<i64>], result: &[i64]) {
    // The axes have extent 1, or are dropped.
    let folded = |axes: &[usize]| {
        let keep = args[0].len() == result.len();
        let size = |(axis, n): (usize, &i64)| if axes.contains(&axis) { keep.then_some(1) } else { Some(*n) };
        assert_eq!(args[0].iter().enumerate().filter_map(size).collect::<Vec<_>>(), result);
    };
    match access {
        AccessForm::Map(pieces) => {
            let dims = |shape: &[i64]| shape.iter().map(|&n| n.into()).collect::<Vec<Dim>>();
            for piece in pieces {
                assert!(piece.is_inside_operand(&dims(&args[piece.operand]), &dims(result)), "{piece:?} of {args:?}");
            }
            for at in coordinates(result) {
                let piece = pieces.iter().find(|p| holds(p, &at)).unwrap_or_else(|| panic!("nothing at {at:?}"));
                let operand = &args[piece.operand];
                assert_eq!(piece.index.len(), operand.len());
                for (index, &n) in piece.index.iter().zip(operand) {
                    let i = number(&index.offset) + index.axis.map_or(0, |a| number(&index.stride) * at[a]);
                    assert!((0..n).contains(&i), "{at:?} reads {i} of {n}");
                }
            }
        }
        AccessForm::Flat => assert_eq!(args[0].iter().product::<i64>(), result.iter().product()),
        AccessForm::Contract { batch, contract } => {
            assert!(batch.iter().chain(contract).all(|&(a, b)| args[0][a] == args[1][b]));
            let used = |side: usize, axis: usize| batch.iter().chain(contract).any(|&(a, b)| [a, b][side] == axis);
            let kept = batch.iter().map(|&(a, _)| args[0][a]);
            let free = (0..2)
                .flat_map(|side| (0..args[side].len()).filter(move |&i| !used(side, i)).map(move |i| args[side][i]));
            assert_eq!(kept.chain(free).collect::<Vec<_>>(), result);
        }
        AccessForm::Fold { op, axes } => {
            assert_eq!(op.arity(), 2);
            folded(axes);
        }
        AccessForm::Nest(nest) => nest_fits(nest, args, result),
        AccessForm::Scan { op, axis, .. } => {
            assert_eq!((op.arity(), &args[0][..], *axis < result.len()), (2, result, true))
        }
        AccessForm::Arg { axis, .. } => {
            folded(&[*axis]);
        }
        AccessForm::Gather { windows, .. } => windows_fit(windows, &args[0], &args[1], result),
        AccessForm::Scatter { windows, op } => {
            assert_eq!(args[0], result);
            assert!(op.is_none_or(|op| op.arity() == 2));
            windows_fit(windows, &args[0], &args[1], &args[2]);
        }
        AccessForm::Sort { axis, .. } => {
            let without = |shape: &[i64], axis: usize| [&shape[..axis], &shape[axis + 1..]].concat();
            assert!(result[*axis] <= args[0][*axis]);
            assert_eq!(without(&args[0], *axis), without(result, *axis));
        }
        AccessForm::Iota { axis } => assert!(args.is_empty() && *axis < result.len()),
        AccessForm::Cast | AccessForm::Bitcast | AccessForm::Powi(_) => assert_eq!(args[0], result),
    }
}

/// That a nest makes each element of the result once, also as nests without dilations, which read the same elements.
fn nest_fits(nest: &LoopNest, args: &[Vec<i64>], result: &[i64]) {
    let sizes = |shape: &[i64]| shape.iter().map(|&n| n as usize).collect::<Vec<_>>();
    let places = |nest: &LoopNest| {
        let all = coordinates(&nest.axes.iter().map(|axis| axis.extent).collect::<Vec<_>>());
        let flat = |place: &[AffinePosition], at: &[i64], shape: &[i64]| LoopNest::flat_index(place, at, &sizes(shape));
        let read = |at: &Vec<i64>| {
            let operands = nest.operands.iter().zip(args).map(|(place, shape)| flat(place, at, shape));
            let to = flat(&nest.result, at, result).expect("a result's element");
            Some((to, operands.collect::<Option<Vec<_>>>()?))
        };
        let mut all: Vec<_> = all.iter().filter_map(read).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(nest.operands.len(), args.len());
    let extent = |axis: &NestLoop| if axis.role == NestAxisRole::Parallel { axis.extent } else { 1 };
    let made = coordinates(&nest.axes.iter().map(extent).collect::<Vec<_>>());
    let mut made: Vec<_> = made.iter().map(|at| LoopNest::flat_index(&nest.result, at, &sizes(result))).collect();
    made.sort_unstable();
    assert_eq!(made, (0..result.iter().product::<i64>() as usize).map(Some).collect::<Vec<_>>());
    let parts = nest.split_dilation();
    assert!(parts.iter().flat_map(|part| part.operands.iter().flatten()).all(|p| p.dilation == 1));
    let mut apart: Vec<_> = parts.iter().flat_map(places).collect();
    apart.sort_unstable();
    assert_eq!(apart, places(nest));
}

#[test]
fn access_agrees_with_the_shape_rule() {
    for sample in StructuralOp::samples() {
        let (_, shapes) = shapes(&sample);
        let op = sample.op.bind(sample.with);
        let result = op.infer(&refs(&shapes), &Facts::default()).expect("a sample fits");
        let numbers = |shape: &[Dim]| shape.iter().map(number).collect::<Vec<_>>();
        let args: Vec<Vec<i64>> = shapes.iter().map(|s| numbers(s)).collect();
        access_fits(&op.access(&refs(&shapes)), &args, &numbers(&result));
    }
}

/// Values of several types, from which an operation takes its operands in order.
pub(crate) struct Values {
    pub(crate) all: Vec<Type>,
    pub(crate) seed: u64,
    pub(crate) taken: Vec<Type>,
    /// Operands that are indices, and the end of what they address.
    pub(crate) ends: Vec<(usize, usize)>,
}
impl RandomKernelGenerator for Values {
    fn draw_below(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % n.max(1)
    }
    fn choose_operand(&mut self, fits: &dyn Fn(&Type) -> bool) -> Option<Type> {
        let fitting: Vec<Type> = self.all.iter().filter(|ty| fits(ty)).cloned().collect();
        let chosen = fitting.get(self.draw_below(fitting.len()))?.clone();
        self.taken.push(chosen.clone());
        Some(chosen)
    }
    fn append_constant(&mut self, x: Literal) {
        self.taken.push(Type::scalar(x.dtype));
    }
    fn clamp_last_operand(&mut self, end: usize) {
        assert_eq!(self.taken.last().map(|ty| ty.dtype), Some(DType::I32), "an index");
        self.ends.push((self.taken.len() - 1, end));
    }
    fn draw_dtype(&mut self) -> DType {
        DType::ALL[self.draw_below(DType::ALL.len())]
    }
    fn common_shape(&mut self) -> Vec<usize> {
        vec![2, 6]
    }
}

#[test]
fn drawn_operations_fit_their_operands() {
    let shapes: [&[usize]; 7] = [&[], &[6], &[2, 6], &[1, 6], &[6, 2], &[3, 1, 2], &[2, 3]];
    let dtypes = [DType::F32, DType::I32, DType::Bool, DType::U8];
    let all: Vec<Type> = dtypes.into_iter().flat_map(|d| shapes.map(|s| Type::new(d, s))).collect();
    for (draw, name) in StructuralOp::DRAWS.iter().zip(StructuralOp::NAMES) {
        let mut fitting = 0;
        for seed in 0..200 {
            let mut from = Values { all: all.clone(), seed, taken: vec![], ends: vec![] };
            let Some(op) = draw(&mut from) else { continue };
            assert_eq!(op.name(), *name);
            let dims: Vec<Vec<Dim>> = from.taken.iter().map(Type::dims).collect();
            let dtypes: Vec<DType> = from.taken.iter().map(|ty| ty.dtype).collect();
            let result = op.infer(&refs(&dims), &Facts::default());
            let result = result.unwrap_or_else(|d| panic!("{op} of {:?}: {d}", from.taken));
            if op.dtype(&dtypes).is_ok() {
                let numbers = |shape: &[Dim]| shape.iter().map(number).collect::<Vec<_>>();
                let args: Vec<Vec<i64>> = dims.iter().map(|s| numbers(s)).collect();
                access_fits(&op.access(&refs(&dims)), &args, &numbers(&result));
                fitting += 1;
            }
        }
        assert!(fitting >= 100, "{name}: {fitting} of 200 draws fit");
    }
}
