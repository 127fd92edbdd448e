//! Convolutions and windowed folds: values and gradients by JAX for settings drawn by convolution.py.
use super::reference::{Case, difference, parse};
use crate::ops::{self, Convolution, ConvolveMode, Padding, ScalarOp, Windows};
use crate::prelude::*;
use crate::{grad, jit, vmap};
use std::collections::BTreeMap;

const REFERENCE: &str = include_str!("convolution.txt");

/// Names of the functions that the cases are of.
pub(super) fn names() -> Vec<&'static str> {
    REFERENCE.lines().map(|line| line.split(' ').next().expect("a name")).collect()
}

/// A call's settings, by their keys.
#[derive(Clone)]
struct Settings(BTreeMap<&'static str, &'static str>);

impl Settings {
    fn list(&self, key: &str) -> Vec<i64> {
        let text = self.0.get(key).copied().unwrap_or("");
        text.split(',').filter(|x| !x.is_empty()).map(|x| x.parse().expect("a number")).collect()
    }
    fn sizes(&self, key: &str) -> Vec<usize> {
        self.list(key).into_iter().map(|n| n as usize).collect()
    }
    fn one(&self, key: &str) -> usize {
        self.sizes(key)[0]
    }
    fn padding(&self) -> Padding {
        match self.0["padding"] {
            "valid" => Padding::Valid,
            "same" => Padding::Same,
            "same_lower" => Padding::SameLower,
            _ => Padding::Explicit(self.list("padding").chunks(2).map(|p| (p[0], p[1])).collect()),
        }
    }
}

/// The function of a case, without the cotangent.
fn apply(name: &str, settings: &Settings, x: &[Array]) -> Array {
    let [strides, dilation, spacing] = ["strides", "dilation", "spacing"].map(|key| settings.sizes(key));
    match name {
        "lax.conv_general_dilated" => {
            let axes: Vec<&str> = settings.0["axes"].split(',').collect();
            let options = Convolution {
                window_strides: &strides,
                padding: settings.padding(),
                lhs_dilation: &dilation,
                rhs_dilation: &spacing,
                dimension_numbers: [axes[0], axes[1], axes[2]],
                feature_group_count: settings.one("groups"),
                batch_group_count: settings.one("batch_groups"),
            };
            ops::conv_general_dilated(&x[0], &x[1], &options)
        }
        "lax.reduce_window" => {
            let op = match settings.0["op"] {
                "add" => ScalarOp::Add,
                "max" => ScalarOp::Maximum,
                _ => ScalarOp::Minimum,
            };
            let windows = Windows {
                window_dimensions: &settings.sizes("window"),
                window_strides: &strides,
                padding: settings.padding(),
                base_dilation: &dilation,
                window_dilation: &spacing,
            };
            x[0].reduce_window(op, &windows)
        }
        "lax.conv_transpose" => {
            let is_turned = settings.one("turned") == 1;
            ops::conv_transpose(&x[0], &x[1], &strides, settings.padding(), is_turned, &Convolution::default())
        }
        "lax.conv" => ops::conv(&x[0], &x[1], &strides, settings.padding()),
        "convolve" | "correlate" => {
            let mode = match settings.0["mode"] {
                "full" => ConvolveMode::Full,
                "same" => ConvolveMode::Same,
                _ => ConvolveMode::Valid,
            };
            if name == "convolve" { x[0].convolve(&x[1], mode) } else { x[0].correlate(&x[1], mode) }
        }
        "flax.linen.max_pool" => x[0].max_pool(&settings.sizes("window"), &strides, settings.padding()),
        "flax.linen.min_pool" => x[0].min_pool(&settings.sizes("window"), &strides, settings.padding()),
        "flax.linen.avg_pool" => {
            x[0].avg_pool(&settings.sizes("window"), &strides, settings.padding(), settings.one("include") == 1)
        }
        other => panic!("no function `{other}`"),
    }
}

fn settings(case: &Case) -> (&'static str, Settings) {
    let (name, rest) = case.name.split_once(' ').expect("a name and settings");
    (name, Settings(rest.split(' ').map(|pair| pair.split_once('=').expect("a setting")).collect()))
}

/// The value, and the gradients of the other operands for the last one, which is the cotangent.
fn with_gradients(case: &Case) -> impl Fn(&Vec<Array>) -> Vec<Array> + Send + Sync + Clone + 'static {
    let (name, settings) = settings(case);
    move |x: &Vec<Array>| {
        let (cotangent, operands) = x.split_last().expect("a cotangent");
        let (settings, cotangent) = (settings.clone(), cotangent.clone());
        let value = apply(name, &settings, operands);
        let loss = move |x: &Vec<Array>| (apply(name, &settings, x) * &cotangent).sum(..);
        let gradients = grad(loss)(&operands.to_vec()).unwrap_or_else(|e| panic!("{name}: {e}"));
        [vec![value], gradients].concat()
    }
}

fn report(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} cases differ from JAX:\n{}", wrong.len(), wrong.join("\n"));
}

fn compiled(client: &Client, every: usize) -> Vec<String> {
    let mut wrong = vec![];
    let cases = parse(REFERENCE);
    assert!(cases.len() > 150, "{} cases", cases.len());
    for (i, case) in cases.iter().enumerate().step_by(every) {
        let on_client = |x: &Array| x.to_device(client).expect("it is on the host");
        let operands: Vec<Array> = case.operands.iter().map(on_client).collect();
        let found = jit(with_gradients(case))(&operands).map_err(|e| e.to_string());
        let text = found.and_then(|found| difference(&found, &case.results).map_or(Ok(()), Err));
        wrong.extend(text.err().map(|text| format!("line {}: {}: {text}", i + 1, case.name)));
    }
    wrong
}

#[test]
fn values_and_gradients_are_those_of_jax() {
    report(&compiled(&Client::cpu(), 1));
}

#[test]
fn interpreted_values_and_gradients_are_those_of_jax() {
    report(&compiled(&Client::interpreter(), 3));
}

#[test]
fn calls_at_once_are_those_of_jax() {
    let mut wrong = vec![];
    for case in parse(REFERENCE).iter().step_by(5) {
        let (name, settings) = settings(case);
        let value = apply(name, &settings, &case.operands[..case.operands.len() - 1]);
        wrong.extend(difference(&[value], &case.results[..1]).map(|text| format!("{}: {text}", case.name)));
    }
    report(&wrong);
}

/// A batch of either operand, or of both, gives what a loop gives, for values and gradients.
#[test]
fn batches_are_a_loop() {
    let cases = parse(REFERENCE);
    let cases = cases.iter().filter(|case| case.name.starts_with("lax.conv_g") || case.name.starts_with("lax.reduce"));
    for (i, case) in cases.enumerate().filter(|(i, _)| i % 3 == 0) {
        let f = with_gradients(case);
        let count = case.operands.len();
        let mask = 1 + i / 3 % ((1 << count) - 1);
        let batches: Vec<Array> = (0..count)
            .map(|k| {
                let x = &case.operands[k];
                if mask >> k & 1 == 1 { ops::stack(&[x.clone(), x * 0.5 + 0.25], 0) } else { x.clone() }
            })
            .collect();
        let part = |at: i64| -> Vec<Array> {
            let of = |(k, x): (usize, &Array)| if mask >> k & 1 == 1 { x.index(at) } else { x.clone() };
            batches.iter().enumerate().map(of).collect()
        };
        let axes: Vec<Option<isize>> = (0..count).map(|k| (mask >> k & 1 == 1).then_some(0)).collect();
        let own = f.clone();
        let x = |i: usize| batches[i].clone();
        let together = if count == 2 {
            vmap(move |x: &Array, y: &Array| own(&vec![x.clone(), y.clone()])).in_axes(axes)(&x(0), &x(1))
        } else {
            let own = move |x: &Array, y: &Array, z: &Array| own(&vec![x.clone(), y.clone(), z.clone()]);
            vmap(own).in_axes(axes)(&x(0), &x(1), &x(2))
        };
        let together = together.unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let (first, second) = (f(&part(0)), f(&part(1)));
        for (k, found) in together.iter().enumerate() {
            let want = ops::stack(&[first[k].clone(), second[k].clone()], 0).to_vec::<f32>().expect("it runs");
            let found = found.to_vec::<f32>().unwrap_or_else(|e| panic!("{}: {e}", case.name));
            let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
            assert_eq!(found.len(), want.len(), "{} result {k}", case.name);
            assert!(found.iter().zip(&want).all(is_close), "{} {mask:b} result {k}:\n{found:?}\n{want:?}", case.name);
        }
    }
}

/// Numbers of a setting's kind, which repeat for a seed.
struct Drawn(u64);

impl Drawn {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
    /// Small integers, of which sums are exact in every order, and some numbers that are none, or infinite.
    fn array(&mut self, client: &Client, dtype: DType, shape: &[usize], wild: usize) -> Array {
        let mut x: Vec<f32> = (0..shape.iter().product()).map(|_| self.below(7) as f32 - 3.0).collect();
        for _ in 0..wild.min(x.len()) {
            let at = self.below(x.len());
            x[at] = self.of(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
        }
        client.array(&x, shape).expect("it fits").cast(dtype)
    }
}

/// The same elements; whichever is no number in one is none in the other.
fn check_equal(found: &[Array], want: &[Array], about: &str) {
    assert_eq!(found.len(), want.len(), "{about}");
    for (i, (found, want)) in found.iter().zip(want).enumerate() {
        let text = |x: &Array| x.cast(DType::F64).to_vec::<f64>().unwrap_or_else(|e| panic!("{about}: {e}"));
        let (found, want) = (text(found), text(want));
        let is_same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
        assert!(
            found.len() == want.len() && found.iter().zip(&want).all(is_same),
            "{about}, {i}:\n{found:?}\n{want:?}"
        );
    }
}

/// Drawn convolutions and their gradients, also of numbers that are infinite or none: what lies beyond an edge is
/// multiplied with nothing.
#[test]
fn drawn_convolutions_agree_with_the_interpreter() {
    for seed in 0..120 {
        let mut draw = Drawn(seed);
        let dtype = draw.of(&[DType::F32, DType::F32, DType::Bf16, DType::F64, DType::I32]);
        let axes = draw.of(&[["NHWC", "HWIO", "NHWC"], ["NCHW", "OIHW", "NCHW"], ["NHWC", "OIHW", "NCHW"]]);
        let (groups, window) = (draw.of(&[1, 1, 1, 2, 3]), [draw.of(&[1, 2, 3, 5]), draw.of(&[1, 3])]);
        let (features, outputs) = (groups * draw.of(&[1, 2, 5]), groups * draw.of(&[1, 3, 9, 18]));
        let (batch, sides) = (draw.of(&[1, 2, 5]), [draw.of(&[1, 3, 6]), draw.of(&[2, 5, 9])]);
        let shape = |order: &str, sizes: &[(char, usize)]| -> Vec<usize> {
            order.chars().map(|c| sizes.iter().find(|s| s.0 == c).expect("an axis").1).collect()
        };
        let x = shape(axes[0], &[('N', batch), ('C', features), ('H', sides[0]), ('W', sides[1])]);
        let rhs = shape(axes[1], &[('O', outputs), ('I', features / groups), ('H', window[0]), ('W', window[1])]);
        let edge = |draw: &mut Drawn| (draw.of(&[0, 1, 4]), draw.of(&[0, 2, 5]));
        let (strides, spacing) = ([draw.of(&[1, 1, 2]), draw.of(&[1, 3])], [1, draw.of(&[1, 2])]);
        let dilation = [draw.of(&[1, 1, 2]), 1];
        let padding = [edge(&mut draw), edge(&mut draw)];
        let padding = padding.map(|(low, high)| (low.max(window[0] as i64), high.max(window[1] as i64 * 2)));
        let wild = if dtype.is_float() { draw.of(&[0, 0, 1]) } else { 0 };
        let f = move |x: &Array, rhs: &Array| {
            let options = Convolution {
                window_strides: &strides,
                padding: Padding::Explicit(padding.to_vec()),
                lhs_dilation: &dilation,
                rhs_dilation: &spacing,
                dimension_numbers: axes,
                feature_group_count: groups,
                ..Convolution::default()
            };
            ops::conv_general_dilated(x, rhs, &options)
        };
        let both = move |x: &Array, rhs: &Array| {
            let value = f(x, rhs);
            if !value.dtype().is_float() {
                return vec![value];
            }
            let loss = move |p: &Vec<Array>| f(&p[0], &p[1]).cast(DType::F32).sum(..);
            let slopes = grad(loss)(&vec![x.clone(), rhs.clone()]).unwrap_or_else(|e| panic!("{e}"));
            [vec![value], slopes].concat()
        };
        let run = |client: &Client| {
            let mut draw = Drawn(seed + 1000);
            let (x, rhs) = (draw.array(client, dtype, &x, wild), draw.array(client, dtype, &rhs, wild));
            jit(both)(&x, &rhs).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
        };
        let about =
            format!("seed {seed}: {dtype} {axes:?} {x:?} by {rhs:?} {strides:?} {spacing:?} {dilation:?} {padding:?}");
        check_equal(&run(&Client::cpu()), &run(&Client::interpreter()), &about);
    }
}

/// Drawn windowed folds, of rows that are adjacent and apart, with windows beyond edges.
#[test]
fn drawn_windows_agree_with_the_interpreter() {
    for seed in 0..120 {
        let mut draw = Drawn(seed);
        let dtype = draw.of(&[DType::F32, DType::Bf16, DType::F64, DType::I32, DType::I8]);
        let op = draw.of(&[ScalarOp::Add, ScalarOp::Maximum, ScalarOp::Minimum]);
        let shape: Vec<usize> = (0..4).map(|_| draw.of(&[1, 2, 4, 8, 13])).collect();
        let mut of = |all: &[usize]| (0..4).map(|_| draw.of(all)).collect::<Vec<usize>>();
        let (sizes, strides) = (of(&[1, 1, 2, 3]), of(&[1, 1, 2, 3]));
        let (dilation, spacing, edges) = (of(&[1, 1, 1, 2]), of(&[1, 1, 2]), of(&[0, 0, 2, 3]));
        let padding: Vec<(i64, i64)> = edges.iter().map(|&n| (n as i64, 6 - n as i64)).collect();
        let wild = if dtype.is_float() { draw.of(&[0, 3]) } else { 0 };
        let about =
            format!("seed {seed}: {op:?} {dtype} {shape:?} {sizes:?} {strides:?} {dilation:?} {spacing:?} {padding:?}");
        let f = move |x: &Array| {
            let windows = Windows {
                window_dimensions: &sizes,
                window_strides: &strides,
                padding: Padding::Explicit(padding.clone()),
                base_dilation: &dilation,
                window_dilation: &spacing,
            };
            x.reduce_window(op, &windows)
        };
        let run = |client: &Client| {
            let x = Drawn(seed + 1000).array(client, dtype, &shape, wild);
            vec![jit(f.clone())(&x).unwrap_or_else(|e| panic!("{about}: {e}"))]
        };
        check_equal(&run(&Client::cpu()), &run(&Client::interpreter()), &about);
    }
}

/// Second derivatives against differences of first ones, in f64.
#[test]
fn second_derivatives_are_differences() {
    let options = || Convolution {
        window_strides: &[2],
        padding: [(1, 2)].into(),
        lhs_dilation: &[2],
        rhs_dilation: &[1],
        ..Convolution::default()
    };
    let numbers = |n: usize| (0..n).map(|i| (i * 7919 % 101) as f64 / 50.0 - 1.0).collect::<Vec<f64>>();
    let array = |x: &[f64], shape: &[usize]| Client::cpu().array(x, shape).expect("it fits");
    let rhs = array(&numbers(12), &[2, 2, 3]);
    let f = move |x: &Array| {
        let y = ops::conv_general_dilated(&x.sin(), &rhs, &options());
        let windows = Windows { window_dimensions: &[1, 1, 2], ..Windows::default() };
        let product = y.reduce_window(ScalarOp::Mul, &windows) + y.reduce_window(ScalarOp::Maximum, &windows).square();
        product.sum(..)
    };
    let slope = grad(f.clone());
    let x = numbers(10);
    let second = grad(move |x: &Array| (grad(f.clone())(x).unwrap_or_else(|e| panic!("{e}")) * x.cos()).sum(..));
    let found = jit(second)(&array(&x, &[1, 2, 5])).expect("it runs").to_vec::<f64>().expect("f64");
    let along = |x: &[f64]| -> f64 {
        let slopes = slope(&array(x, &[1, 2, 5])).expect("it runs").to_vec::<f64>().expect("f64");
        slopes.iter().zip(x).map(|(slope, x)| slope * x.cos()).sum()
    };
    for i in 0..x.len() {
        let moved = |h: f64| {
            let mut x = x.clone();
            x[i] += h;
            along(&x)
        };
        let want = (moved(1e-6) - moved(-1e-6)) / 2e-6;
        assert!((found[i] - want).abs() < 1e-5 * (1.0 + want.abs()), "element {i}: {} {want}", found[i]);
    }
}

/// 16-bit operands are summed in f32 and rounded once.
#[test]
fn sums_of_16_bits_are_wide() {
    let x = Client::cpu().full(&[1, 1, 600], 1.0f32).expect("it fits").cast(DType::Bf16);
    let rhs = x.index((.., .., ..513));
    let y = ops::conv(&x, &rhs, &[1], Padding::Valid);
    assert_eq!(y.dtype(), DType::Bf16);
    assert_eq!(y.cast(DType::F32).to_vec::<f32>().expect("it runs")[0], 512.0);
    let wide = ops::conv(&x, &rhs.index((.., .., ..384)), &[1], Padding::Valid);
    assert_eq!(wide.cast(DType::F32).to_vec::<f32>().expect("it runs")[0], 384.0);
}

#[track_caller]
fn check_mistake(found: &Array, line: u32, words: &str) {
    let text = found.to_vec::<f32>().expect_err("it is wrong").to_string();
    let place = format!("{}:{line}:", file!());
    assert!(text.starts_with(&place) && text.contains(words), "expected {place} .. {words}, found {text}");
}

#[test]
fn mistakes_name_the_line_of_the_call() {
    let array = |shape: &[usize]| Client::cpu().full(shape, 1.0f32).expect("it fits");
    let (x, rhs) = (array(&[2, 3, 8]), array(&[4, 3, 3]));
    let plain = Convolution::default();
    let odd = Convolution { feature_group_count: 2, ..plain.clone() };
    let named = Convolution { dimension_numbers: ["NWC", "WIO", "NWX"], ..plain.clone() };
    let none = Convolution { feature_group_count: 0, ..plain.clone() };
    let still = Convolution { window_strides: &[0], ..plain.clone() };
    let cases: Vec<(Array, u32, &str)> = vec![
        (ops::conv_general_dilated(&x, &array(&[4, 2, 3]), &plain), line!(), "3 features, and a window for 2"),
        (ops::conv_general_dilated(&x, &array(&[4, 3]), &plain), line!(), "of f32[2,3,8] by f32[4,3]"),
        (ops::conv_general_dilated(&x, &rhs, &odd), line!(), "a window for 3 in each of 2 groups"),
        (ops::conv_general_dilated(&x, &rhs, &named), line!(), "dimension numbers `NWX`"),
        (ops::conv_general_dilated(&x, &rhs, &none), line!(), "0 groups and 1 batch groups"),
        (ops::conv_general_dilated(&x, &rhs, &still), line!(), "a stride of 0"),
        (ops::conv(&x, &rhs, &[1, 1], Padding::Valid), line!(), "2 strides for 1 windowed axes"),
        (ops::conv(&x, &rhs, &[1], [(0, 0), (1, 1)]), line!(), "2 pairs for 1 windowed axes"),
        (ops::conv(&x, &array(&[4, 3, 0]), &[1], Padding::Valid), line!(), "a window of 0 elements"),
        (x.max_pool(&[2, 2, 2], &[], Padding::Valid), line!(), "a pool of f32[2,3,8]"),
        (x.reduce_window(ScalarOp::Add, &Windows::default()), line!(), "a window of 0 axes"),
        (x.max_pool(&[0], &[], Padding::Valid), line!(), "a window of 0 elements"),
        (x.convolve(&rhs, ConvolveMode::Full), line!(), "both have one axis"),
        (
            x.reduce_window(ScalarOp::Sub, &Windows { window_dimensions: &[1, 1, 2], ..Windows::default() }),
            line!() - 1,
            "`reduce_window` by `sub`",
        ),
    ];
    for (found, line, words) in &cases {
        check_mistake(found, *line, words);
    }
}

#[test]
fn text_is_that_of_jax() {
    let (x, rhs) = (Client::cpu().full(&[2, 8, 8, 3], 1.0f32), Client::cpu().full(&[3, 3, 3, 4], 1.0f32));
    let (x, rhs) = (x.expect("it fits"), rhs.expect("it fits"));
    let f = |x: &Array, rhs: &Array| {
        let options = Convolution {
            window_strides: &[1, 2],
            padding: Padding::Same,
            dimension_numbers: ["NHWC", "HWIO", "NHWC"],
            ..Convolution::default()
        };
        ops::conv_general_dilated(x, rhs, &options).max_pool(&[2, 2], &[2, 2], Padding::Valid)
    };
    let text = crate::make_jaxpr(f)(&x, &rhs).expect("it is traced");
    let words = "{ lambda ; a:f32[2,8,8,3] b:f32[3,3,3,4]. let
    c:f32[2,8,4,4] = conv_general_dilated[
      batch_group_count=1
      dimension_numbers=ConvDimensionNumbers(lhs_spec=(0, 3, 1, 2), rhs_spec=(3, 2, 0, 1), out_spec=(0, 3, 1, 2))
      feature_group_count=1
      lhs_dilation=(1, 1)
      out_sharding=None
      padding=((1, 1), (0, 1))
      precision=None
      preferred_element_type=None
      rhs_dilation=(1, 1)
      window_strides=(1, 2)
    ] a b
    d:f32[2,4,2,4] = reduce_window_max[
      base_dilation=(1, 1, 1, 1)
      padding=((0, 0), (0, 0), (0, 0), (0, 0))
      window_dilation=(1, 1, 1, 1)
      window_dimensions=(1, 2, 2, 1)
      window_strides=(1, 2, 2, 1)
    ] c
  in (d,) }";
    assert_eq!(text.to_string().trim_end(), words);
}

/// The bias and the activation that follow a convolution share its kernel.
#[test]
fn epilogues_share_the_kernel() {
    let array = |shape: &[usize]| Client::cpu().full(shape, 0.5f32).expect("it fits");
    let f = |x: &Array, rhs: &Array, bias: &Array| {
        let options = Convolution {
            padding: Padding::Same,
            dimension_numbers: ["NHWC", "HWIO", "NHWC"],
            ..Convolution::default()
        };
        (ops::conv_general_dilated(x, rhs, &options) + bias).relu()
    };
    let (x, rhs, bias) = (array(&[4, 9, 7, 3]), array(&[3, 3, 3, 8]), array(&[8]));
    let y = jit(f)(&x, &rhs, &bias).expect("it runs").to_vec::<f32>().expect("it ran");
    assert_eq!(y[(9 * 7 + 7 + 1) * 8], 27.0 * 0.25 + 0.5);
    assert_eq!(crate::jit::count_steps(f)(&x, &rhs, &bias).expect("it is planned"), 1);
}
