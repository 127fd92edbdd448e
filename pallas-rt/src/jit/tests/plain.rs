//! Plain operations in place of kernels: equal results on the CPU and on the interpreter.
#![allow(clippy::print_stdout, reason = "how many kernels ran")]
use super::array;
use super::random::numbers;
use crate::lang::random;
use crate::{fori_loop, lower, vmap};
use pallas_rt::prelude::*;

/// Blocks that overhang on both sides, in steps that overlap.
#[kernel(grid = (cdiv(N, 4)))]
fn neighbours(
    #[block([N] => [Element(6, 1, 4)], |i| (element(i * 4),), fill = 0.5)] x: In<f32>,
    #[block([N] => [4], |i| (i,))] out: Out<f32>,
) {
    out.store(x.at(ds(0, 4)).load() + x.at(ds(2, 4)).load());
}

/// Loads what it has stored, and `fill` where that was outside of the array.
#[kernel(grid = (cdiv(N, 4)))]
fn stored(
    #[block([N] => [4], |i| (i,), fill = 3.0)] x: In<f32>,
    #[block([N] => [4], |i| (i,), fill = 0.25)] out: Out<f32>,
) {
    out.store(x.load());
    out.store(out.load() + out.load().sum([0]));
}

/// Every second element, forth and back.
#[kernel(grid = (cdiv(M, 3)))]
fn exchanged(
    #[block([M, 8] => [3, 8], |i| (i, 0), fill = 0.0)] x: In<f32>,
    #[block([M, 8] => [3, 8], |i| (i, 0))] out: Out<f32>,
) {
    out.at((.., strided(0, 4, 2))).store(x.at((.., strided(1, 4, 2))).load());
    let second = x.at((.., strided(0, 4, 2)));
    let is_large = second.load().gt(0.25);
    out.at((.., strided(1, 4, 2))).store(second.load() * 0.0);
    out.at((.., strided(1, 4, 2))).store_masked(second.load(), is_large);
}

/// A sum over steps that are outside of the rows, which go on side by side; each row in a block of an array of two
/// axes.
#[kernel(grid = (cdiv(K, 4), M), semantics = (arbitrary, parallel))]
fn sums(
    #[block([M, K] => [_, 4], |j, i| (i, j), fill = 0.0)] x: In<f32>,
    #[block([M] => [1], |_j, i| (i,))] out: Out<f32>,
    #[block([M] => [1], |_j, i| (i,))] steps: Out<i32>,
    #[scratch([1])] sum: Scratch<f32>,
) {
    if program_id(0) == 0 {
        sum.fill(0.0);
        steps.fill(0);
    }
    sum.store(sum.load() + x.load().sum([0]));
    steps.store(steps.load() + 1);
    if program_id(0) == num_programs(0) - 1 {
        out.store(sum.load());
    }
}

/// Rows in the order of a table, which may point beyond the array; an output that takes over an input's memory.
#[kernel(grid = (M))]
fn chosen(
    #[prefetch([M])] order: Prefetch<i32>,
    #[block([R, N] => [2, N], |i| (order.at(i), 0), fill = -1.0)] x: In<f32>,
    #[block([M, N] => [1, N], |i| (i, 0))] old: In<f32>,
    #[block([M, N] => [1, N], |i| (i, 0), alias = old)] out: Out<f32>,
) {
    let inside = x.valid(0);
    out.store(x.load().sum([0]) + old.load() + inside.cast::<f32>().sum([0]));
}

/// Loops of every kind, with bounds from data.
#[kernel(grid = (2))]
fn loops(
    #[prefetch([3])] bounds: Prefetch<i32>,
    #[block([2, 5] => [_, 5], |i| (i, 0))] x: In<f32>,
    #[block([2, 5] => [_, 5], |i| (i, 0))] out: Out<f32>,
    turns: i32,
) {
    let mut sum = x.load();
    for i in (bounds.at(0)..bounds.at(1)).step_by(2) {
        sum = sum * 0.5 + i.cast::<f32>();
    }
    for i in (0..turns).rev() {
        sum = sum * 0.25 + i.cast::<f32>();
        if i == program_id(0) {
            out.store(sum);
        }
    }
    let mut rounds = bounds.at(2);
    while rounds > 0 {
        sum -= 1.0;
        rounds -= 2;
    }
    debug_assert(turns > 0, "turns");
    out.store(out.load() + sum);
}

/// As many axes as there may be: a store of every second element needs one more.
#[kernel(grid = (1))]
fn eight(
    #[block([1, 1, 1, 1, 1, 1, N, 4] => [1, 1, 1, 1, 1, 1, 1, 4], |i| (0, 0, 0, 0, 0, 0, i, 0))] x: In<f32>,
    #[block([1, 1, 1, 1, 1, 1, N, 4] => [1, 1, 1, 1, 1, 1, 1, 4], |i| (0, 0, 0, 0, 0, 0, i, 0))] out: Out<f32>,
) {
    out.store(x.load());
    out.at((.., .., .., .., .., .., .., strided(0, 2, 2))).store(x.at((.., .., .., .., .., .., .., ds(0, 2))).load());
}

/// Compares a function of arrays with the one of plain operations.
fn check(
    what: &str,
    args: &[Array],
    tolerance: f64,
    f: impl Fn(&Vec<Array>) -> Result<Vec<Array>> + Clone + Send + Sync + 'static,
) {
    let args = args.to_vec();
    for client in [Client::cpu(), Client::interpreter()] {
        let args: Vec<Array> = args.iter().map(|x| x.to_device(&client).expect("it has room")).collect();
        let want = f(&args).unwrap_or_else(|e| panic!("{what}: {e}"));
        let lowered = lower(f.clone())(&args).unwrap_or_else(|e| panic!("{what}: {e}"));
        let plain = lowered.inline_kernels().unwrap_or_else(|e| panic!("{what}: {e}"));
        let text = plain.to_stablehlo();
        assert!(!text.contains("custom_call"), "{what}: {text}");
        let plain = plain.compile().unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = plain(&args).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (i, (found, want)) in found.iter().zip(&want).enumerate() {
            assert_eq!((found.shape(), found.dtype()), (want.shape(), want.dtype()), "{what}");
            let is_close = |(x, y): (&f64, &f64)| x == y || (x - y).abs() <= tolerance;
            let (found, want) = (numbers(found), numbers(want));
            assert!(found.iter().zip(&want).all(is_close), "{what}, result {i}: {found:?}\n{want:?}\n{text}");
        }
    }
}

fn line(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 37 % 64) as f32 / 16.0 - 2.0).collect()
}

#[test]
fn kernels_as_plain_operations_compute_the_same() {
    for n in [1, 4, 7, 10] {
        check("neighbours", &[array(&line(n), &[n])], 1e-6, |x| Ok(vec![neighbours(&x[0])?]));
        check("stored", &[array(&line(n), &[n])], 1e-6, |x| Ok(vec![stored(&x[0])?]));
    }
    for m in [0, 1, 3, 5] {
        check("exchanged", &[array(&line(m * 8), &[m, 8])], 0.0, |x| Ok(vec![exchanged(&x[0])?]));
    }
    check("sums", &[array(&line(30), &[3, 10])], 1e-6, |x| sums(&x[0]).map(|(a, b)| vec![a, b]));
    let order = Client::cpu().array(&[2i32, 0, 1, 2], &[4]).expect("it fits");
    let rows = [order, array(&line(15), &[5, 3]), array(&line(12), &[4, 3])];
    check("chosen", &rows, 1e-6, |x| Ok(vec![chosen(&x[0], &x[1], x[2].clone())?]));
    for bounds in [[1i32, 6, 3], [4, 4, 0], [5, 2, -1]] {
        let bounds = Client::cpu().array(&bounds, &[3]).expect("it fits");
        check("loops", &[bounds, array(&line(10), &[2, 5])], 1e-5, |x| Ok(vec![loops(&x[0], &x[1], 3)?]));
    }
}

#[test]
fn batches_of_kernels_and_kernels_in_loops_become_plain_operations() {
    check("a batch", &[array(&line(30), &[3, 10])], 1e-6, |x| Ok(vec![vmap(|x: &Array| neighbours(x))(&x[0])?]));
    let rows = array(&line(24), &[2, 3, 4]);
    check("a batch of steps", &[rows], 1e-6, |x| vmap(|x: &Array| sums(x))(&x[0]).map(|(a, b)| vec![a, b]));
    check("a loop", &[array(&line(10), &[10])], 1e-6, |x| {
        Ok(vec![fori_loop(0..3, &x[0], |_: &Array, x: &Array| neighbours(x).map(|y| y * 0.5))?])
    });
}

#[test]
fn an_operation_without_a_plain_form_is_refused() {
    let lowered = lower(|x: &Array| eight(x))(&array(&line(4), &[1, 1, 1, 1, 1, 1, 1, 4])).expect("it is traced");
    let message = lowered.inline_kernels().expect_err("nine axes").to_string();
    assert!(message.contains("kernel `eight` as plain operations") && message.contains("has 9 axes"), "{message}");
}

/// The text of a kernel whose blocks lie inside of the array, but for the last one.
#[test]
fn the_text_of_a_kernel_as_plain_operations() {
    let lowered = lower(|x: &Array| neighbours(x))(&array(&line(10), &[10])).expect("it is traced");
    let plain = lowered.inline_kernels().expect("it has a form");
    expect_test::expect![[r#"
        { lambda ; a:f32[10]. let
            b:f32[10] = call[
              jaxpr0={ lambda ; a:f32[10]. let
                  b:f32[14] = pad[padding_config=((1, 3, 0),)] a 0.5:f32[]
                  c:f32[10] = broadcast_in_dim 0.0:f32[]
                  d:f32[12] = pad[padding_config=((0, 2, 0),)] c 0.0:f32[]
                  _:i32[] e:f32[12] = while[
                    body_jaxpr={ lambda ; a:f32[14] b:i32[] c:f32[12]. let
                        d:i32[] = mul b 4:i32[]
                        e:i32[] = add d -1:i32[]
                        f:i32[] = mul b 4:i32[]
                        g:i32[] = add e 1:i32[]
                        h:f32[4] = dynamic_slice[slice_sizes=(4,)] a g
                        i:i32[] = add e 2:i32[]
                        j:i32[] = add i 1:i32[]
                        k:f32[4] = dynamic_slice[slice_sizes=(4,)] a j
                        l:f32[4] = add h k
                        m:f32[12] = dynamic_update_slice c l f
                        n:i32[] = add b 1:i32[]
                      in (n, m) }
                    body_nconsts=1
                    cond_jaxpr={ lambda ; a:i32[] b:f32[12]. let c:bool[] = lt a 3:i32[] in (c,) }
                    cond_nconsts=0
                  ] b 0:i32[] d
                  f:f32[10] = slice[limit_indices=(10,) start_indices=(0,) strides=None] e
                in (f,) }
            ] a
          in (b,) }"#]]
    .assert_eq(&plain.to_jaxpr());
}

/// Random kernels: overhanging blocks, tables, scratch, control flow, windows at positions that are computed.
#[test]
fn random_kernels_as_plain_operations_compute_the_same() {
    let count = std::env::var("PALLAS_RANDOM_GRAPHS").map_or(60, |n| n.parse().expect("a number"));
    for seed in 0..count {
        let operands = random::operands(&Client::cpu(), seed).expect("they fit");
        let f = move |x: &Vec<Array>| random::call(x.clone(), seed, random::STEPS).map(|(a, b, c)| vec![a, b, c]);
        check(&format!("seed {seed}"), &operands, 8e-5, f);
    }
    println!("random kernels: {count} as plain operations");
}
