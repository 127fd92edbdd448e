//! Facts, pictures and pages of kernels of all kinds.
use crate::launch::Explanation;
use crate::markup::tests::check_markup;
use crate::prelude::*;
use crate::{Result, Target};
use expect_test::expect_file;

/// Attention with a running maximum, blocks of keys in order.
#[kernel(grid = (H, cdiv(S, BQ), cdiv(L, BK)), semantics = (parallel, parallel, arbitrary))]
fn attention<const BQ: usize, const BK: usize>(
    #[block([H, S, D] => [_, BQ, D], |h, i, _| (h, i, 0), fill = 0.0)] q: In<f32>,
    #[block([H, L, D] => [_, BK, D], |h, _, j| (h, j, 0), fill = 0.0)] k: In<f32>,
    #[block([H, L, D] => [_, BK, D], |h, _, j| (h, j, 0), fill = 0.0)] v: In<f32>,
    #[block([H, S, D] => [_, BQ, D], |h, i, _| (h, i, 0))] out: Out<f32>,
    #[scratch([BQ, 1])] max: Scratch<f32>,
    #[scratch([BQ, 1])] sum: Scratch<f32>,
    #[scratch([BQ, D])] acc: Scratch<f32>,
) {
    if program_id(2) == 0 {
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        acc.fill(0.0);
    }
    let scores = dot(q.load(), k.load().t());
    let scores = select(k.valid(0).t(), scores, f32::NEG_INFINITY);
    let before = max.load();
    let now = maximum(before, scores.max(1));
    let (p, factor) = ((scores - now).exp(), (before - now).exp());
    max.store(now);
    sum.store(sum.load() * factor + p.sum(1));
    acc.store(acc.load() * factor + dot(p, v.load()));
    if program_id(2) == num_programs(2) - 1 {
        out.store(acc.load() / sum.load());
    }
}

fn zeros(client: &Client, shape: &[usize]) -> Array {
    client.full(shape, 0.0f32).expect("it fits")
}

fn attention_on(client: &Client) -> Result<Explanation> {
    let (q, k) = (zeros(client, &[2, 100, 32]), zeros(client, &[2, 160, 32]));
    explain(|| attention::<64, 64>(&q, &k, &k))
}

/// Rows that a table chooses.
#[kernel(grid = (N))]
fn looked_up(
    #[prefetch([N])] rows: Prefetch<i32>,
    #[block([R, C] => [1, C], |i| (rows.at(i), 0))] x: In<f32>,
    #[block([N, C] => [1, C], |i| (i, 0))] out: Out<f32>,
    scale: f32,
) {
    out.store(x.load() * scale);
}

/// A window with a row on each side, and a number of its own.
#[kernel(grid = (cdiv(N, 4)))]
fn smoothed(
    #[block([N] => [Element(6, 1, 4)], |i| (element(i * 4),), fill = 0.0)] x: In<f32>,
    #[block([] => [], |_| ())] whole: In<f32>,
    #[block([N] => [4], |i| (i,))] out: Out<f32>,
) {
    out.store(x.at(ds(0, 4)).load() + x.at(ds(2, 4)).load() + whole.load());
}

#[kernel(grid = (A, B, C, D))]
fn of_rank_four(
    #[block([A, B, C, D] => [_, _, _, 1], |a, b, c, d| (a, b, c, d))] x: In<f32>,
    #[block([A, B, C, D] => [_, _, _, 1], |a, b, c, d| (a, b, c, d))] out: Out<f32>,
) {
    out.store(x.load());
}

#[test]
fn attention_as_a_picture() {
    let picture = attention_on(&Client::cpu()).expect("it is explained").to_svg();
    check_markup(&picture);
    expect_file!["attention.svg"].assert_eq(&picture);
}

#[test]
fn the_first_screen_says_what_bounds_a_kernel() {
    let text = attention_on(&Client::cpu()).expect("it is explained").to_string();
    let screen: Vec<&str> = text.split("--- ").next().unwrap_or_default().lines().collect();
    assert!(screen.len() <= 24 && text.contains("--- traced of attention"), "{text}");
    let has = |part: &str| assert!(screen.iter().any(|line| line.contains(part)), "{part}: {}", screen.join("\n"));
    has("kernel `attention`, grid [2, 2, 3]: 12 programs, axis 2 in order");
    has("f32[2, 100, 32]");
    has("[_, 64, 32]  8.00 KiB          2 x 3 x 1");
    has("of blocks, 8.50 KiB of scratch");
    has("bound: arithmetic");
    has("of the time: dot");
}

#[test]
fn a_page_of_attention_follows_its_programs() {
    let page = attention_on(&Client::cpu()).expect("it is explained").to_html();
    check_markup(&page);
    let steps = |at: &str| {
        let program = page.split("{\"at\":\"").find(|rest| rest.starts_with(at)).unwrap_or_else(|| panic!("no {at}"));
        let (places, steps) = program.split_once("\"steps\":").expect("steps");
        (places.to_string(), steps.to_string())
    };
    let (places, first) = steps("(0, 0, 0)");
    assert!(places.contains("[[0,0,0],[0,0,0],[0,0,0],"), "{places}");
    assert!(first.starts_with("[\"writes max[0:64, 0] at ") && first.contains("reads k[0, 0:64, 0:32] at"), "{first}");
    assert!(!first.contains("writes out"), "the last step alone writes: {first}");
    let (places, last) = steps("(1, 1, 2)");
    assert!(places.contains("[[1,1,2],[1,64,0],[1,128,0],"), "{places}");
    assert!(last.contains("reads k[1, 128:192, 0:32], partly past the array"), "{last}");
    assert!(last.contains("writes out[1, 64:128, 0:32], partly past the array"), "{last}");
    assert!(!page.contains("http://") || page.matches("http://").count() == page.matches("xmlns=\"http://").count());
    assert_eq!(page.matches("class=\"now\"").count(), 2 * 5, "a mark for each pair of dimensions");
}

/// Printed stages end with the code that runs where the arrays are; every stage can be had.
#[test]
fn stages_are_those_of_the_device() {
    let on_cpu = attention_on(&Client::cpu()).expect("it is explained");
    let text = on_cpu.to_string();
    assert!(text.contains("--- cpu of attention\nplan attention: ") && !text.contains("--- wgsl"), "{text}");
    assert!(text.contains(" of tiles and scratch on the CPU"), "{text}");
    let plan = on_cpu.kernels[0].cpu_plan();
    assert!(plan.contains("product") && plan.contains("sweep") || plan.contains("chain"), "{plan}");
    assert_eq!(on_cpu.stage("cpu"), plan);
    let on_gpu = attention_on(&Client::cpu_as(Target::webgpu())).expect("it is explained");
    #[cfg(feature = "wgsl")]
    {
        let text = on_gpu.to_string();
        assert!(text.contains("--- wgsl") && !text.contains("--- cpu"), "{text}");
        assert!(text.contains(" of 16.00 KiB of workgroup memory"), "{text}");
        let shader = on_gpu.kernels[0].wgsl().expect("it has a shader");
        assert_eq!([on_cpu.stage("wgsl"), on_gpu.stage("wgsl")], [shader.clone(), shader]);
    }
    assert!(!on_gpu.kernels[0].is_memory_bound() || on_gpu.to_string().contains("bound: memory"));
}

#[test]
fn blocks_that_data_chooses_are_said_to_be() {
    let cpu = Client::cpu();
    let (rows, x) = (cpu.array(&[2i32, 0, 1], &[3]).expect("it fits"), zeros(&cpu, &[5, 8]));
    let found = explain(|| looked_up(&rows, &x, 2.0)).expect("it is explained");
    let (text, page) = (found.to_string(), found.to_html());
    assert!(text.contains("5 x 1, chosen by data") && text.contains("scale"), "{text}");
    check_markup(&page);
    assert!(page.contains("data chooses its blocks") && page.contains("reads x[?, 0:8]"), "{page}");
    assert!(page.contains("stroke-dasharray=\"3 3\"") && page.contains("[null,0]"), "{page}");
}

#[test]
fn windows_and_numbers_are_drawn() {
    let cpu = Client::cpu();
    let (x, whole) = (zeros(&cpu, &[10]), zeros(&cpu, &[]));
    let found = explain(|| smoothed(&x, &whole)).expect("it is explained");
    let page = found.to_html();
    check_markup(&page);
    for part in ["[-1:5]: seen by 1", "one element", "past the array", "reads x[-1:3], partly past the array"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(found.to_string().contains("windows"));
}

#[test]
fn many_programs_and_none() {
    let cpu = Client::cpu();
    let found = explain(|| of_rank_four(zeros(&cpu, &[4, 5, 6, 7]))).expect("it is explained");
    let page = found.to_html();
    check_markup(&page);
    let left_out = "584 of 840 programs are left out: drawn are the first 192 and the last 64";
    assert!(page.contains(left_out) && page.contains("max=\"255\"") && page.contains("(3, 4, 5, 6)"), "{page}");
    assert!(found.to_svg().contains("dims 0 x 1: 4 x 5, blocks 1 x 1"), "{}", found.to_svg());
    let found = explain(|| of_rank_four(zeros(&cpu, &[4, 0, 6, 7]))).expect("it is explained");
    for markup in [found.to_html(), found.to_svg()] {
        check_markup(&markup);
        assert!(!markup.contains("NaN") && !markup.contains("class=\"now\""), "{markup}");
    }
    assert!(found.to_html().contains("No program runs") && found.to_string().contains("no program, outputs hold"));
    check_markup(&Explanation::default().to_svg());
    check_markup(&Explanation::default().to_html());
}
