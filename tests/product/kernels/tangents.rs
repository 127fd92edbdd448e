//! Tangents of the shipped kernels, which no rule states: they are slopes of the kernels, on the interpreter and the
//! CPU.
//!
//! For operands x and a direction u, with h = 2⁻¹⁷ in float64, `(f(x + h·u) - f(x - h·u)) / 2h` is compared with the
//! tangent of each result; see [`super::slopes`] for the bound. Kernels that take f32 alone are compared with h = 2⁻⁸:
//! the difference leaves out 1e-5 of the third derivative, and rounding of f32 over 2h is some 1e-5 of the result.
use super::{B, Function, functions};
use crate::cases::{self, Entry, Extents, entry};
use crate::support::{array, doubles, values};
use pallas_kernels::decode_attention::{self, decode_attention_with_lse};
use pallas_kernels::gated::{Gate, gated};
use pallas_kernels::matmul::matmul_blocks;
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::paged_cache::{paged_append, paged_append_quantised};
use pallas_kernels::quantized_matmul::{Bits, Quantized, quantize, quantized_matmul};
use pallas_kernels::softmax::softmax;
use pallas_kernels::splash_attention::{self, attention_in_blocks, gradients_in_blocks};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;
use pallas_rt::{grad, hessian, jit, jvp};
use std::sync::Arc;

type F = fn(&[Array]) -> Result<Vec<Array>>;

/// That the tangents of `f` by operands of this type are its slopes.
fn check(what: &str, dtype: DType, shapes: &[&[usize]], f: F) {
    check_on(dtype, |client| {
        let operands = shapes.iter().zip(1..);
        let operands =
            operands.map(|(shape, i)| array(client, dtype, shape, &values(shape.iter().product(), i))).collect();
        Function { name: what.to_string(), operands, call: Arc::new(f) }
    });
}

/// Checks the functions of a family, and those of their gradients.
fn check_all(family: &[Entry], dtype: DType, extents: &Extents) {
    for entry in family {
        check_on(dtype, |client| functions(entry, client, dtype, extents).0);
        if functions(entry, &Client::cpu(), dtype, extents).1.is_some() {
            check_on(dtype, |client| functions(entry, client, dtype, extents).1.expect("as there"));
        }
    }
}

/// That the tangents of a function on the interpreter and on the CPU, whose floats have this type, are its slopes.
fn check_on(dtype: DType, function: impl Fn(&Client) -> Function) {
    let (step, bound) = if dtype == DType::F64 { (1.0 / 131_072.0, 1e-8) } else { (1.0 / 256.0, 1e-3) };
    let mut of_interpreter: Option<Vec<Vec<f64>>> = None;
    for client in [Client::interpreter(), Client::cpu()] {
        let Function { name: what, operands: x, call: f } = function(&client);
        // Each operand as it is and so much along its direction, or the direction.
        let moved = |own: f64, by: f64| -> Vec<Array> {
            let one = |(i, x): (usize, &Array)| {
                if !x.dtype().is_float() {
                    return x.clone();
                }
                let along = values(x.len(), 41 + i);
                let numbers: Vec<f64> = doubles(x).iter().zip(along).map(|(x, u)| own * x + by * u).collect();
                array(&client, x.dtype(), x.shape(), &numbers)
            };
            x.iter().enumerate().map(one).collect()
        };
        let run = |x: &[Array]| f(x).unwrap_or_else(|e| panic!("{what}: {e}"));
        // Whole numbers have no tangents: the function captures them.
        let floats = |all: &[Array]| all.iter().filter(|x| x.dtype().is_float()).cloned().collect::<Vec<_>>();
        let (primals, direction) = ((floats(&x),), (floats(&moved(0.0, 1.0)),));
        let (given_x, f) = (x.clone(), f.clone());
        let along = jit(jvp(move |floats: &Vec<Array>| {
            let mut floats = floats.iter().cloned();
            let one = |x: &Array| if x.dtype().is_float() { floats.next().expect("as many") } else { x.clone() };
            f(&given_x.iter().map(one).collect::<Vec<_>>())
        }));
        let (y, dy) = along(&primals, &direction).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (want, ends) = (run(&x), [run(&moved(1.0, step)), run(&moved(1.0, -step))]);
        assert_eq!((y.len(), dy.len()), (want.len(), want.len()), "{what}");
        let mut tangents = vec![];
        for i in (0..y.len()).filter(|&i| y[i].dtype().is_float()) {
            let tolerance = if y[i].dtype() == DType::F64 { 1e-13 } else { 1e-5 };
            for (found, want) in doubles(&y[i]).iter().zip(doubles(&want[i])) {
                assert!((found - want).abs() <= tolerance * (1.0 + want.abs()), "{what}: {found}, not {want}");
            }
            let found = doubles(&dy[i]);
            for (j, found) in found.iter().enumerate() {
                let slope = (doubles(&ends[0][i])[j] - doubles(&ends[1][i])[j]) / (2.0 * step);
                let error = (found - slope).abs();
                assert!(error <= bound * (1.0 + slope.abs()), "{what}, result {i}, {j}: {found}, its slope is {slope}");
            }
            assert!(found.iter().any(|&d| d != 0.0) || found.is_empty(), "{what}, result {i} has no tangent");
            tangents.push(found);
        }
        match &of_interpreter {
            None => of_interpreter = Some(tangents),
            Some(other) => {
                let tolerance = if dtype == DType::F64 { 1e-11 } else { 1e-4 };
                for (cpu, interpreter) in tangents.iter().flatten().zip(other.iter().flatten()) {
                    let error = (cpu - interpreter).abs();
                    assert!(error <= tolerance * (1.0 + cpu.abs()), "{what}: {cpu}, the interpreter {interpreter}");
                }
            }
        }
    }
}

fn three<T>((a, b, c): (T, T, T)) -> Vec<T> {
    vec![a, b, c]
}
fn two<T>((a, b): (T, T)) -> Vec<T> {
    vec![a, b]
}

#[test]
fn of_rows() {
    check_all(cases::ROWS_IN_BLOCKS, DType::F64, &[('n', 5), ('d', 6), ('u', B)]);
}

#[test]
fn of_gates_rotations_and_products() {
    check_all(cases::GATES_IN_BLOCKS, DType::F64, &[('h', 2), ('n', 9), ('d', 6), ('u', B)]);
    check_all(cases::PRODUCTS_IN_BLOCKS, DType::F64, &[('b', 2), ('n', 5), ('k', 7), ('m', 6), ('u', B)]);
    check("products with an epilogue", DType::F64, &[&[2, 5, 7], &[2, 7, 6]], |x| {
        Ok(vec![matmul_blocks::<f64, f64>(&x[0], &x[1], |acc| acc.tanh(), B, B, B)?])
    });
    for (bits, f) in [
        (Bits::Eight, (|x| quantized(x, Bits::Eight, None)) as F),
        (Bits::Four, |x| quantized(x, Bits::Four, Some(16))),
    ] {
        check(&format!("weights of {bits:?} bits"), DType::F32, &[&[3, 32]], f);
    }
}

/// A product with quantised weights, by x and by their scales.
fn quantized(x: &[Array], bits: Bits, group: Option<usize>) -> Result<Vec<Array>> {
    let w = array(x[0].client(), DType::F32, &[32, 6], &values(192, 5));
    let w = quantize(&w, bits, group)?;
    let scales = &w.scales * (x[0].sum(..) * 0.0625).exp();
    quantized_matmul(&x[0], &Quantized { scales, ..w }).map(|y| vec![y])
}

#[test]
fn of_losses_and_tables() {
    check_all(cases::CLASSES_IN_BLOCKS, DType::F64, &[('n', 5), ('v', 6), ('d', 7), ('u', B)]);
    // Some rows are taken several times.
    let table = std::slice::from_ref(entry("embedding in blocks"));
    check_all(table, DType::F64, &[('n', 9), ('v', 5), ('d', 6), ('u', B)]);
    check_all(std::slice::from_ref(entry("log-sum-exp of losses")), DType::F32, &[('n', 5)]);
}

#[test]
fn of_attention() {
    let extents = [('b', 1), ('h', 2), ('g', 1), ('s', 6), ('l', 7), ('d', 3), ('y', 1), ('z', 2), ('w', 3), ('u', B)];
    check_all(cases::ATTENTION_IN_BLOCKS, DType::F64, &extents);
    check_all(cases::OPTIONS_IN_BLOCKS, DType::F64, &extents);
    let splash: [&[usize]; 4] = [&[1, 2, 9, 3], &[1, 1, 11, 3], &[1, 1, 11, 3], &[1, 2, 9, 3]];
    check("splash attention", DType::F64, &splash, |x| {
        let heads = [Mask::causal(), Mask::dense(9, 11, |i, j| (i * 5 + j * 3) % 7 < 3)];
        let info = MaskInfo::in_blocks(x[0].client(), &heads, [9, 11], [B, B])?;
        let options = splash_attention::Options { scale: Some(0.5), soft_cap: Some(1.5) };
        let (out, lse) = attention_in_blocks::<f64, B, B>(&x[0], &x[1], &x[2], &info, &options)?;
        let operands = [&x[0], &x[1], &x[2]];
        let mut all = three(gradients_in_blocks::<f64, B, B>(operands, [&out, &lse], &x[3], &info, &options)?);
        all.push(out);
        Ok(all)
    });
}

#[test]
fn of_attention_over_caches() {
    check("decoding", DType::F32, &[&[2, 4, 1, 8], &[2, 2, 40, 8], &[2, 2, 40, 8]], |x| {
        let options =
            decode_attention::Options { splits: Some(2), soft_cap: Some(1.5), ..decode_attention::Options::default() };
        decode_attention_with_lse(&x[0], &x[1], &x[2], &options).map(two)
    });
    fn attend(x: &[Array]) -> Result<Vec<Array>> {
        let cache = PagedCache { k: x[1].clone(), v: x[2].clone(), scales: None };
        let requests = Requests { tables: &[0, 2, 1, 3], lengths: &[3, 4], starts: &[0, 1, 3] };
        let batch = Batch::new(&cache, 2, requests, BatchOptions::default())?;
        batch.attend_with_lse(&x[0], &cache, &paged_attention::Options::default()).map(two)
    }
    let pages: [&[usize]; 3] = [&[3, 2, 4], &[4, 1, 2, 4], &[4, 1, 2, 4]];
    check("pages", DType::F32, &pages, attend);
    // Rows that are written keep what was there elsewhere.
    let append: [&[usize]; 4] = [&[4, 1, 2, 4], &[4, 1, 2, 4], &[3, 1, 4], &[3, 1, 4]];
    check("writing into pages", DType::F64, &append, |x| {
        let slots = x[0].client().array(&[2i32, 1, 0, 0, 3, 1], &[3, 2])?;
        let [new_k, new_v, k, v] = [2, 3, 0, 1].map(|i: usize| x[i].cast(DType::F32));
        paged_append::<f32, f32>(&new_k, &new_v, &slots, &k, &v)
            .map(|(k, v)| vec![k.cast(DType::F64), v.cast(DType::F64)])
    });
    check("writing quantised rows", DType::F32, &[&[3, 1, 4], &[4, 1, 2]], |x| {
        let slots = x[0].client().array(&[2i32, 1, 0, 0, 3, 1], &[3, 2])?;
        let pages = x[0].client().zeros(&[4, 1, 2, 4], DType::I8)?;
        paged_append_quantised::<f32>(&x[0], &slots, &pages, &x[1]).map(|(_, scales)| vec![scales])
    });
}

/// Functions that state their gradients have tangents as well: those of the kernels, and of the kernels of the
/// gradients.
#[test]
fn of_functions_that_state_gradients() {
    check("functions", DType::F32, &[&[3, 5], &[3, 5]], |x| {
        let y = gated(&x[0], &x[1], Gate::Silu)?;
        Ok(vec![softmax(&(&y * 2.0))?, y])
    });
    // Forward over reverse: f = Σ w·softmax(x) has a Hessian, although the kernel of its gradient states none.
    fn loss(x: &Array) -> Result<Array> {
        softmax(x).map(|y| (&y * &y).sum(..))
    }
    let x = Client::cpu().array(&[0.5f32, -0.25, 1.0], &[1, 3]).expect("it fits");
    let plain = hessian(|x: &Array| {
        let y = x.softmax(-1);
        (&y * &y).sum(..)
    });
    let [found, want] = [jit(hessian(loss))(&x), jit(plain)(&x)].map(|h| doubles(&h.unwrap_or_else(|e| panic!("{e}"))));
    for (found, want) in found.iter().zip(want) {
        assert!((found - want).abs() < 1e-6, "{found}, not {want}");
    }
    let refused = grad(|x: &Array| jvp(loss)(&(x.clone(),), &(x.clone(),)).map(|(_, dy)| dy))(&x);
    let error = refused.expect_err("a tangent has no gradient").to_string();
    assert!(error.contains("the gradient of kernel `softmax_whole_rows_jvp`"), "{error}");
}
