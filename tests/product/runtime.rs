//! The runtime's promises: one compiled kernel for all lengths, empty launches, aliases, donation, threads, repetition.
use crate::support::clients;
use crate::validate::validate;
use pallas_rt::Target;
use pallas_rt::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[kernel(grid = (cdiv(N, 8)))]
fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,), empty = -1.0)] out: Out<f32>) {
    out.store(x.load() * 2.0);
}

/// The body is plain Rust while it is traced: how often that happened.
static TRACED: AtomicUsize = AtomicUsize::new(0);

#[kernel(grid = (cdiv(N, 8)))]
fn counted(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    TRACED.fetch_add(1, Ordering::Relaxed);
    out.store(x.load() * 2.0);
}

#[test]
fn one_trace_serves_fifty_lengths() {
    let cpu = Client::cpu();
    for n in 1..=50 {
        let found = counted(cpu.array(&vec![1.5f32; n], &[n]).expect("it fits")).expect("it runs");
        assert_eq!(found.to_vec::<f32>().expect("f32"), vec![3.0; n]);
    }
    assert_eq!(TRACED.load(Ordering::Relaxed), 1);
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Rounding {
    Down,
    Multiple(usize),
}
static ROUNDED: AtomicUsize = AtomicUsize::new(0);

#[kernel(grid = (cdiv(N, 8)))]
fn rounded(
    #[block([N] => [8], |i| (i,))] x: In<f32>,
    #[block([N] => [8], |i| (i,))] out: Out<f32>,
    #[fixed] rounding: Rounding,
    #[fixed] after: fn(Tile<f32>) -> Tile<f32>,
) {
    ROUNDED.fetch_add(1, Ordering::Relaxed);
    let x = x.load();
    let y = match rounding {
        Rounding::Down => x.floor(),
        Rounding::Multiple(n) => (x / n as f32).floor() * n as f32,
    };
    out.store(after(y));
}
#[test]
fn fixed_enums_and_functions_are_traced_once_a_value() {
    let client = Client::cpu();
    let x = client.array(&[1.5f32, 7.25], &[2]).expect("it fits");
    type After = fn(Tile<f32>) -> Tile<f32>;
    let cases: [(Rounding, After, [f32; 2]); 3] = [
        (Rounding::Down, |y| y * 2.0, [2.0, 14.0]),
        (Rounding::Multiple(3), |y| y + 1.0, [1.0, 7.0]),
        (Rounding::Multiple(4), |y| y + 1.5, [1.5, 5.5]),
    ];
    for _ in 0..10 {
        for (rounding, after, want) in cases {
            assert_eq!(rounded(&x, rounding, after).and_then(|y| y.to_vec::<f32>()), Ok(want.to_vec()));
        }
    }
    assert_eq!(ROUNDED.load(Ordering::Relaxed), 3);
}

#[kernel(grid = (0))]
fn nothing(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,), empty = 7.0)] out: Out<f32>) {
    out.store(x.load());
}
#[test]
fn a_launch_without_programs_gives_the_empty_value() {
    for client in clients() {
        let x = client.array(&[1.0f32; 3], &[3]).expect("it fits");
        assert_eq!(nothing(&x).expect("it runs").to_vec::<f32>().expect("f32"), [7.0; 3]);
        let none = client.array::<f32>(&[], &[0]).expect("it fits");
        assert!(doubled(&none).expect("it runs").is_empty());
    }
}

#[kernel(grid = ())]
fn rank_zero(#[block([N] => [N], || (0,))] x: In<f32>, #[block([N] => [N], || (0,))] out: Out<f32>) {
    out.store(x.load() + 1.0);
}
#[kernel(grid = (A, 1, B, 1, 2, 1, C))]
fn rank_seven(
    #[block([A, B, 2, C] => [_, _, _, 1], |a, _, b, _, t, _, c| (a, b, t, c))] x: In<f32>,
    #[block([A, B, 2, C] => [_, _, _, 1], |a, _, b, _, t, _, c| (a, b, t, c))] out: Out<f32>,
) {
    out.store(x.load() + program_id(6).cast::<f32>());
}
#[test]
fn grids_of_rank_zero_and_seven() {
    for client in clients() {
        let x = client.array(&[1.0f32, 2.0], &[2]).expect("it fits");
        assert_eq!(rank_zero(&x).expect("it runs").to_vec::<f32>().expect("f32"), [2.0, 3.0]);
        let x = client.array(&(0..24).map(|i| i as f32).collect::<Vec<_>>(), &[2, 2, 2, 3]).expect("it fits");
        let want: Vec<f32> = (0..24).map(|i| (i + i % 3) as f32).collect();
        assert_eq!(rank_seven(&x).expect("it runs").to_vec::<f32>().expect("f32"), want);
    }
}

#[kernel(grid = (N, 3))]
fn numbered(#[block([N] => [_], |i, _| (i,))] x: In<i32>, #[block([N, 3] => [_, 1], |i, j| (i, j))] out: Out<i32>) {
    out.fill(x.load().item() + program_id(0) * 10 + program_id(1));
}
#[test]
fn more_programs_than_a_dispatch_has_along_an_axis() {
    let n = 70_001;
    for client in [Some(Client::cpu()), crate::support::gpu()].into_iter().flatten() {
        let found = numbered(client.full(&[n], 5).expect("it fits")).and_then(|y| y.to_vec::<i32>());
        let want: Vec<i32> = (0..n as i32).flat_map(|i| [0, 1, 2].map(|j| 5 + i * 10 + j)).collect();
        assert!(found.expect("it runs") == want, "{client:?}");
    }
}

#[kernel(grid = (cdiv(N, 4)))]
fn bumped(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,), alias = x)] out: Out<f32>) {
    out.store(x.load() + 1.0);
}
#[test]
fn an_alias_takes_over_donated_memory_only() {
    for client in clients() {
        let x = client.array(&[1.0f32; 10], &[10]).expect("it fits");
        let y = bumped(&x).expect("it runs");
        assert_eq!(x.to_vec::<f32>().expect("f32"), [1.0; 10], "a borrowed input stays");
        assert_eq!(bumped(y).expect("it runs").to_vec::<f32>().expect("f32"), [3.0; 10]);
    }
}

#[kernel(grid = (cdiv(N, 4)))]
fn prefix(#[block([N] => [4], |i| (i,), fill = 0.0)] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>, n: i32) {
    let mut total = x.load();
    let mut k = scalar(0);
    while k < n && !(k == 5) {
        for j in (0..k + 1).rev() {
            if j % 2 == 0 {
                total += j.cast::<f32>();
            } else {
                total -= 0.5;
            }
        }
        k += 1;
    }
    out.store(total);
}
#[test]
fn staged_control_flow_agrees_on_every_device() {
    let reference = |x: f32, n: i32| {
        let mut total = x;
        for k in 0..n.min(5) {
            for j in (0..=k).rev() {
                total += if j % 2 == 0 { j as f32 } else { -0.5 };
            }
        }
        total
    };
    for client in clients() {
        let x: Vec<f32> = (0..7).map(|i| i as f32).collect();
        for n in [0, 1, 4, 9] {
            let found = prefix(client.array(&x, &[7]).expect("it fits"), n).expect("it runs");
            let want: Vec<f32> = x.iter().map(|&x| reference(x, n)).collect();
            assert_eq!(found.to_vec::<f32>().expect("f32"), want, "n = {n} on {}", client.device());
        }
    }
}

#[test]
fn calls_from_several_threads_repeat_bit_for_bit() {
    for client in clients() {
        let x = client.array(&(0..1000).map(|i| (i as f32).sin()).collect::<Vec<_>>(), &[1000]).expect("it fits");
        let call = || {
            let y = doubled(&x)?;
            pallas_kernels::softmax::softmax(&y)?.to_bytes()
        };
        let first = call().expect("it runs");
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..8).for_each(|_| assert_eq!(call().expect("it runs"), first, "{client:?}")));
            }
        });
    }
}

#[test]
fn threads_that_compile_at_once_share_one_kernel() {
    for client in clients() {
        let client = client.isolated().expect("the device is there");
        std::thread::scope(|s| {
            for n in 1..9usize {
                let client = &client;
                s.spawn(move || {
                    let x = client.array(&vec![n as f32; n], &[n]).expect("it fits");
                    let found = tripled(&x).and_then(|y| y.to_vec::<f32>());
                    assert_eq!(found, Ok(vec![3.0 * n as f32; n]), "{client:?}");
                });
            }
        });
        #[cfg(feature = "gpu")]
        if client.kind() == pallas_rt::DeviceKind::Gpu {
            assert_eq!(client.gpu_counters().pipelines_compiled, 1);
        }
    }
}
#[kernel(grid = (cdiv(N, 8)))]
fn tripled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    out.store(x.load() * 3.0);
}

#[test]
fn arrays_of_two_clients_do_not_mix() {
    let (a, b) = (Client::cpu(), Client::interpreter());
    let (x, y) = (a.array(&[1.0f32], &[1, 1, 1]).expect("it fits"), b.array(&[1.0f32], &[1, 1, 1]).expect("it fits"));
    let e = pallas_kernels::matmul::matmul(&x, &y).expect_err("two clients");
    assert_eq!(e.code(), "foreign-client", "{e}");
    // The client goes on working.
    assert!(pallas_kernels::matmul::matmul(&x, &x).is_ok());
}

#[test]
fn explain_cost_and_check() {
    let cpu = Client::cpu();
    let (m, k, n) = (4, 4, 4);
    let x = cpu.array(&vec![1.0f32; m * k], &[1, m, k]).expect("it fits");
    let call = || pallas_kernels::matmul::matmul_blocks::<f32, f32>(&x, &x, |x| x, 4, 4, 4);
    let explanation = explain(call).expect("it is explained");
    let text = explanation.to_string();
    assert!(text.contains("matmul_blocks") && text.contains("dot") && text.contains("lower"), "{text}");
    assert!(cost(call).expect("it is estimated").flops >= (2 * m * k * n) as u64);
    assert_eq!(check(call).expect("the executions agree").kernels, 1);
}

#[cfg(feature = "gpu")]
#[test]
fn fifty_lengths_take_three_pipelines_at_most() {
    let Some(client) = crate::support::gpu() else { return };
    let client = client.isolated().expect("the adapter is there");
    assert_eq!(client.gpu_counters().pipelines_compiled, 0);
    for n in 1..=50 {
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let array = client.array(&x, &[n]).expect("it fits");
        let want: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
        assert_eq!(doubled(&array).and_then(|y| y.to_vec::<f32>()), Ok(want.clone()), "borrowed, {n} elements");
        assert_eq!(doubled(array).and_then(|y| y.to_vec::<f32>()), Ok(want), "donated, {n} elements");
    }
    let compiled = client.gpu_counters().pipelines_compiled;
    assert!((1..=3).contains(&compiled), "{compiled} pipelines");
    // Also where several dimensions change, sequential steps and prefetched lengths among them.
    for n in 1..=50 {
        let array = |shape: &[usize]| client.full(shape, 1.0f32).expect("it fits");
        let (q, kv) = (array(&[1, 2, n, 4]), array(&[1, 1, 2 * (51 - n), 4]));
        let found = pallas_kernels::flash_attention::flash_attention(&q, &kv, &kv, &Default::default());
        found.expect("it runs").block_until_ready().expect("it is done");
    }
    let compiled = client.gpu_counters().pipelines_compiled - compiled;
    assert!((1..=3).contains(&compiled), "{compiled} pipelines of flash attention");
}

#[cfg(feature = "gpu")]
#[test]
fn a_lost_device_is_an_error_and_the_next_client_works() {
    let Some(client) = crate::support::gpu() else { return };
    let client = client.isolated().expect("the adapter is there");
    let x = client.array(&[1.0f32; 9], &[9]).expect("it fits");
    let mut y = doubled(&x).expect("it runs");
    y.block_until_ready().expect("it is done");
    client.wgpu().expect("a GPU's").0.destroy();
    // Noticed when the device is polled next; until then calls may fail in the driver's words.
    let _ = client.block_until_ready();
    let lost = |e: Error| assert!(e.code() == "device-lost" && e.to_string().contains("make a new client"), "{e}");
    for _ in 0..2 {
        lost(doubled(&x).expect_err("lost"));
        lost(doubled(x.clone()).expect_err("lost"));
        lost(x.to_vec::<f32>().expect_err("lost"));
    }
    lost(into([&mut y], || doubled(&x)).expect_err("lost"));
    let other = client.isolated().expect("the adapter is still there");
    let x = other.array(&[1.0f32; 9], &[9]).expect("it fits");
    assert_eq!(doubled(&x).and_then(|y| y.to_vec::<f32>()), Ok(vec![2.0; 9]));
}

/// Whole rows, of which one element is stored again by itself.
#[kernel(grid = (cdiv(R, 4)))]
fn patched<E: Real>(
    #[block([R, C] => [4, C], |i| (i, 0), fill = 0.0)] x: In<E>,
    #[block([R, C] => [4, C], |i| (i, 0))] out: Out<E>,
) {
    let x = x.load();
    out.store(x + 1.0);
    out.at((.., ds(5, 1))).store(out.at((.., ds(5, 1))).load() * 2.0);
}
#[test]
fn rows_stored_whole_and_in_parts() {
    let numbers: Vec<f32> = (0..7 * 8).map(|i| i as f32).collect();
    let halves: Vec<f16> = numbers.iter().map(|&x| f16::from_f32(x)).collect();
    let want: Vec<f32> = (0..56).map(|i| (i as f32 + 1.0) * if i % 8 == 5 { 2.0 } else { 1.0 }).collect();
    for client in clients() {
        let whole = patched::<f32>(client.array(&numbers, &[7, 8]).expect("it fits")).expect("it runs");
        assert_eq!(whole.to_vec::<f32>().expect("f32"), want, "{client:?}");
        let half = patched::<f16>(client.array(&halves, &[7, 8]).expect("it fits")).expect("it runs");
        let half: Vec<f32> = half.to_vec::<f16>().expect("f16").into_iter().map(f32::from).collect();
        assert_eq!(half, want, "{client:?}");
    }
    // Written both ways, the array is one of words.
    let x = Client::cpu().array(&numbers, &[7, 8]).expect("it fits");
    let explained = explain(|| patched::<f32>(&x)).expect("it is explained");
    let text = explained.kernels[0].shader(&Target::webgpu(), u64::MAX).expect("it has a shader").text;
    assert!(text.contains("fn write_four_array_out(") && text.contains("fn write_array_out("), "{text}");
    validate(&text);
}
