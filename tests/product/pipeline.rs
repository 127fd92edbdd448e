//! Operands fetched ahead of a sequential axis: the same results at every depth, and what `explain` says of it.
use crate::support::{again, array, clients, close, gpu, values};
use pallas_rt::Target;
use pallas_rt::prelude::*;
use pallas_rt::shader::{Placement, Profile};

#[kernel(grid = (cdiv(M, BM), cdiv(N, BN), cdiv(K, BK)), semantics = (parallel, parallel, arbitrary))]
fn product<const BM: usize, const BN: usize, const BK: usize, const A: usize, const B: usize>(
    #[block([M, K] => [BM, BK], |i, _, p| (i, p), fill = 0.0, buffered = A)] a: In<f32>,
    #[block([K, N] => [BK, BN], |_, j, p| (p, j), fill = 0.0, buffered = B)] b: In<f32>,
    #[block([M, N] => [BM, BN], |i, j, _| (i, j))] out: Out<f32>,
    #[scratch([BM, BN])] acc: Scratch<f32>,
) {
    if program_id(2) == 0 {
        acc.fill(0.0);
    }
    acc.store(acc.load() + dot(a.load(), b.load()));
    if program_id(2) == num_programs(2) - 1 {
        out.store(acc.load());
    }
}

/// Sums of rows whose blocks no product reads: fetched ahead only where the spec says so.
#[kernel(grid = (cdiv(N, 8)), semantics = (arbitrary))]
fn total(
    #[block([N, 4] => [8, 4], |i| (i, 0), fill = 0.0, buffered = 3)] x: In<f32>,
    #[block([8, 4] => [8, 4], |_| (0, 0))] out: Out<f32>,
    #[scratch([8, 4])] sum: Scratch<f32>,
) {
    if program_id(0) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load() * 2.0);
    if program_id(0) == num_programs(0) - 1 {
        out.store(sum.load());
    }
}

#[test]
fn every_depth_gives_the_same() {
    for client in clients() {
        // The last block overhangs, and there are fewer steps than depths, as many, and more.
        for k in [5, 16, 40] {
            let (m, n) = (20, 12);
            let (x, y) = (values(m * k, 1), values(k * n, 2));
            let (a, b) = (array(&client, DType::F32, &[m, k], &x), array(&client, DType::F32, &[k, n], &y));
            let cell = |at: usize| (0..k).map(|p| x[at / n * k + p] * y[p * n + at % n]).sum();
            let want: Vec<f64> = (0..m * n).map(cell).collect();
            let all = [
                product::<16, 8, 8, 1, 1>(&a, &b),
                product::<16, 8, 8, 2, 2>(&a, &b),
                product::<16, 8, 8, 3, 3>(&a, &b),
                product::<16, 8, 8, 1, 3>(&a, &b),
                product::<16, 8, 8, 3, 2>(&a, &b),
            ];
            let all = all.map(|out| out.expect("it runs"));
            let first = all[0].to_vec::<f32>().expect("f32");
            for out in &all {
                close(out, &want, k, 4.0, "a product");
                assert_eq!(out.to_vec::<f32>().expect("f32"), first, "the same sums in the same order");
            }
        }
        for n in [1, 8, 9, 16, 30] {
            let x = client.array(&vec![0.5f32; n * 4], &[n, 4]).expect("it fits");
            let sum: f32 = total(&x).and_then(|y| y.to_vec::<f32>()).expect("it runs").iter().sum();
            assert_eq!(sum, 4.0 * n as f32, "{client:?}");
        }
    }
}

/// Blocks that a table names, of which the first `live` count: how many steps compute is known when it runs.
#[kernel(grid = (T), semantics = (arbitrary))]
fn gathered<const DEPTH: usize>(
    #[prefetch([T])] table: Prefetch<i32>,
    #[prefetch([1])] live: Prefetch<i32>,
    #[block([P, 4, 8] => [_, 4, 8], |t| (table.at(t), 0, 0), buffered = DEPTH)] x: In<f32>,
    #[block([8, 4] => [8, 4], |_| (0, 0))] w: In<f32>,
    #[block([4, 4] => [4, 4], |_| (0, 0))] out: Out<f32>,
    #[scratch([4, 4])] acc: Scratch<f32>,
) {
    if program_id(0) == 0 {
        acc.fill(0.0);
    }
    if program_id(0) < live.at(0) {
        acc.store(acc.load() + dot(x.load(), w.load()));
    }
    if program_id(0) == num_programs(0) - 1 {
        out.store(acc.load());
    }
}

#[test]
fn steps_that_a_table_names_and_a_length_ends() {
    let table = [2, 0, 2, 1, 3];
    let pages: Vec<f32> = (0..4 * 32).map(|i| (i % 13) as f32).collect();
    let weights: Vec<f32> = (0..32).map(|i| (i % 5) as f32 - 2.0).collect();
    for client in clients() {
        let x = client.array(&pages, &[4, 4, 8]).expect("it fits");
        let w = client.array(&weights, &[8, 4]).expect("it fits");
        for steps in 1..=table.len() {
            let named = client.array(&table[..steps], &[steps]).expect("it fits");
            for live in 0..=steps {
                let cell = |page: i32, i: usize, j: usize| -> f32 {
                    (0..8).map(|k| pages[page as usize * 32 + i * 8 + k] * weights[k * 4 + j]).sum()
                };
                let sum = |at: usize| table[..live].iter().map(|&page| cell(page, at / 4, at % 4)).sum();
                let want: Vec<f32> = (0..16).map(sum).collect();
                let live = client.array(&[live as i32], &[1]).expect("it fits");
                let all = [
                    gathered::<1>(&named, &live, &x, &w),
                    gathered::<2>(&named, &live, &x, &w),
                    gathered::<3>(&named, &live, &x, &w),
                ];
                for out in all {
                    assert_eq!(out.and_then(|y| y.to_vec::<f32>()), Ok(want.clone()), "{steps} steps on {client:?}");
                }
            }
        }
    }
}

/// A software adapter fetches nothing ahead, unless it is taken for a graphics card.
#[test]
fn steps_fetched_ahead_as_on_a_graphics_card() {
    if gpu().is_some() {
        for test in ["every_depth_gives_the_same", "steps_that_a_table_names_and_a_length_ends"] {
            again(&format!("pipeline::{test}"), &[("PALLAS_PROFILE", "gpu")]);
        }
    }
}

#[test]
fn no_step_at_all_gives_the_empty_value() {
    for client in clients() {
        let (a, b) = (client.zeros(&[20, 0], DType::F32), client.zeros(&[0, 12], DType::F32));
        let (a, b) = (a.expect("no elements"), b.expect("no elements"));
        for out in [product::<16, 8, 8, 1, 1>(&a, &b), product::<16, 8, 8, 3, 2>(&a, &b)] {
            assert_eq!(out.and_then(|y| y.to_vec::<f32>()), Ok(vec![0.0; 240]), "{client:?}");
        }
    }
}

/// How a call would be placed on a graphics card with so many KiB of workgroup memory.
fn placed(kib: u64, profile: Profile, call: impl FnOnce() -> Result<Array>) -> Placement {
    let explanation = explain(call).expect("it is explained");
    let target = Target { profile, workgroup_bytes: kib << 10, ..Target::webgpu() };
    explanation.kernels[0].shader(&target, 0).expect("it has a shader").placement
}

fn depths(placement: &Placement) -> Vec<(&str, Option<usize>, usize)> {
    placement.pipeline.iter().map(|o| (o.name.as_str(), o.asked, o.depth)).collect()
}

#[test]
fn explain_says_how_far_ahead_operands_are() {
    let client = Client::cpu();
    let (a, b) = (
        client.zeros(&[256, 256], DType::F32).expect("it fits"),
        client.zeros(&[256, 256], DType::F32).expect("it fits"),
    );
    let one = placed(16, Profile::Gpu, || product::<64, 64, 16, 1, 1>(&a, &b));
    let two = placed(16, Profile::Gpu, || product::<64, 64, 16, 2, 2>(&a, &b));
    let three = placed(16, Profile::Gpu, || product::<64, 64, 16, 3, 3>(&a, &b));
    for (depth, placement) in [(1, &one), (2, &two), (3, &three)] {
        assert_eq!(depths(placement), [("a", Some(depth), depth), ("b", Some(depth), depth)], "{placement}");
        assert!(placement.to_string().contains(&format!("pipeline: `a` buffered {depth}")), "{placement}");
        assert_eq!((placement.step.fma, placement.step.global), (one.step.fma, one.step.global), "{placement}");
        let carried = placement.tiles.iter().filter(|t| t.name.contains("carried") && t.ty == "f32[64,16]");
        assert!(carried.clone().all(|t| t.home.contains("registers")), "{placement}");
        assert_eq!(carried.count(), depth - 1, "{placement}");
    }
    // A software adapter hides no latency so.
    let software = placed(16, Profile::SimtCpu, || product::<64, 64, 16, 3, 3>(&a, &b));
    assert_eq!(depths(&software), [("a", Some(3), 1), ("b", Some(3), 1)]);
    assert!(software.to_string().contains("more hides nothing on this kind of device"), "{software}");
    // By default, what only products read is one step ahead.
    let x = client.zeros(&[1, 256, 256], DType::F32).expect("it fits");
    let usual =
        placed(16, Profile::Gpu, || pallas_kernels::matmul::matmul_blocks::<f32, f32>(&x, &x, |x| x, 64, 64, 16));
    assert_eq!(depths(&usual), [("a", None, 2), ("b", None, 2)]);
    let total = placed(16, Profile::Gpu, || total(&client.zeros(&[64, 4], DType::F32)?));
    assert_eq!(depths(&total), [("x", Some(3), 3)]);
}

#[test]
fn fewer_steps_are_on_their_way_where_more_do_not_fit() {
    let client = Client::cpu();
    let a = client.zeros(&[512, 512], DType::F32).expect("it fits");
    let placement = placed(96, Profile::Gpu, || product::<128, 128, 64, 3, 3>(&a, &a));
    for operand in &placement.pipeline {
        assert!(operand.depth < 3 && operand.why == "deeper, its tiles do not fit", "{placement}");
    }
    assert_eq!(placement.pipeline.len(), 2);
    let e = product::<16, 16, 16, 4, 1>(&a, &a).expect_err("too deep");
    assert_eq!(e.code(), "buffered", "{e}");
}
