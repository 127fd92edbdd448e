//! Calls that are refused: each says what was asked, what is allowed and what to do, and its client goes on working.
use crate::support::clients;
use pallas_kernels::flash_attention::{Options, flash_attention};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, B)))]
fn added<const B: usize>(
    #[block([N] => [B], |i| (i,))] x: In<f32>,
    #[block([N] => [B], |i| (i,))] y: In<f32>,
    #[block([N] => [B], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}
fn ones(client: &Client, shape: &[usize]) -> Array {
    client.full(shape, 1.0f32).expect("it fits")
}
/// The call fails with this code and these words, and the client then adds two arrays.
#[track_caller]
fn refused<R: std::fmt::Debug>(client: &Client, result: Result<R>, code: &str, words: &[&str]) {
    let e = result.expect_err(code);
    let text = e.to_string();
    assert_eq!(e.code(), code, "{text}");
    words.iter().for_each(|w| assert!(text.contains(w), "`{w}` is not in: {text}"));
    let x = ones(client, &[3]);
    assert_eq!(added::<4>(&x, &x).and_then(|z| z.to_vec::<f32>()), Ok(vec![2.0; 3]), "{client:?} goes on");
}

#[test]
fn arrays_that_do_not_fit_the_spec() {
    for client in clients() {
        let (x, square) = (ones(&client, &[6]), ones(&client, &[2, 3]));
        let ints = client.full(&[6], 1i32).expect("it fits");
        refused(&client, added::<4>(&x, &square), "rank", &["`y` has rank 1 [N]", "rank 2 [2, 3]", "reshape"]);
        refused(&client, added::<4>(&ints, &x), "dtype", &["`x` holds f32, found an array of i32", "convert"]);
        refused(&client, added::<4>(&x, &ones(&client, &[7])), "dimension", &["N is 6 in `x` and 7 in `y`", "agree"]);
        refused(&client, added::<0>(&x, &x), "block-size", &["block of `x`", "0 elements", "at least one"]);
        refused(&client, rectangle(&x), "dimension", &["dimension 0 of `x`", "8", "found 6"]);
    }
}
#[kernel(grid = ())]
fn rectangle(#[block([8] => [8], || (0,))] x: In<f32>, #[block([8] => [8], || (0,))] out: Out<f32>) {
    out.store(x.load());
}

#[kernel(grid = (N, M))]
fn many(
    #[block([K] => [1], |_, _| (0,))] x: In<f32>,
    #[block([K] => [1], |_, _| (0,))] out: Out<f32>,
    #[dim] N: usize,
    #[dim] M: usize,
) {
    if program_id(0) + program_id(1) == 0 {
        out.store(x.load());
    }
}
#[test]
fn grids_that_overflow() {
    for client in clients() {
        let x = ones(&client, &[1]);
        refused(&client, many(&x, 1 << 31, 1), "grid", &["axis 0 is N = 2147483648", "2^31 - 1"]);
        refused(&client, many(&x, 1 << 16, 1 << 16), "grid", &["[65536, 65536]", "larger blocks"]);
        refused(&client, many(&x, usize::MAX, 1), "grid", &["axis 0"]);
    }
}

#[kernel(grid = (cdiv(N, 4)))]
fn in_place(
    #[block([N] => [4], |i| (i,))] x: In<f32>,
    #[block([M] => [4], |i| (i,), alias = x)] out: Out<f32>,
    #[dim] M: usize,
) {
    out.store(x.load());
}
#[kernel(grid = (cdiv(N, 4)))]
fn both_in_place(
    #[block([N] => [4], |i| (i,))] x: In<f32>,
    #[block([N] => [4], |i| (i,), alias = x)] a: Out<f32>,
    #[block([N] => [4], |i| (i,), alias = x)] b: Out<f32>,
) {
    a.store(x.load());
    b.store(x.load());
}
#[test]
fn aliases_that_cannot_be() {
    for client in clients() {
        let x = ones(&client, &[8]);
        assert_eq!(in_place(&x, 8).and_then(|y| y.to_vec::<f32>()), Ok(vec![1.0; 8]));
        refused(&client, in_place(&x, 12), "alias", &["`out` is f32 [12]", "f32 [8]", "shape of its input"]);
        refused(&client, both_in_place(&x), "alias", &["`a` and `b` both take over the memory of `x`", "one output"]);
    }
}

#[test]
fn arrays_of_another_client() {
    for client in clients() {
        let other = client.isolated().expect("the device is there");
        let (x, y) = (ones(&client, &[3]), ones(&other, &[3]));
        refused(
            &client,
            added::<4>(&x, &y),
            "foreign-client",
            &["tests/product/refusals.rs:", "`y` of kernel `added` lives on", "to_device"],
        );
    }
}

#[test]
fn a_launch_beyond_the_memory_limit() {
    for client in clients() {
        let client = client.isolated().expect("the device is there");
        let x = ones(&client, &[1 << 16]);
        client.set_memory_limit(client.memory().in_use + 4096);
        let before = client.memory().in_use;
        refused(&client, added::<64>(&x, &x), "memory", &["256.00 KiB asked for", "set_memory_limit"]);
        // Nothing stays booked but what lives: the three elements are gone again.
        client.block_until_ready().expect("it is done");
        assert_eq!(client.memory().in_use, before, "{client:?}");
    }
}

#[kernel(grid = (1))]
fn hoarding<const B: usize>(
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [N], |_| (0,))] out: Out<f32>,
    #[scratch([B])] large: Scratch<f32>,
    #[scratch([4])] small: Scratch<i32>,
) {
    large.fill(1.0);
    small.fill(2);
    out.store(x.load() + large.load().sum(0) + small.load().cast::<f32>().sum(0));
}
#[test]
fn scratch_of_any_size_on_the_cpu() {
    let x = ones(&Client::cpu(), &[3]);
    let there_is_no_limit = hoarding::<1_000_000>(&x).and_then(|y| y.to_vec::<f32>());
    assert_eq!(there_is_no_limit, Ok(vec![1_000_009.0; 3]));
}

#[kernel(grid = (1))]
fn outer<const B: usize>(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,))] out: Out<f32>) {
    out.store(x.load() * iota::<f32>([B, B], 0).sum([0, 1]).item());
}
#[test]
fn tiles_and_scratch_beyond_memory() {
    for client in clients() {
        let x = ones(&client, &[3]);
        let words = ["a tile of f32[1099511627776,1099511627776]", "2^31 - 1 elements", "smaller blocks"];
        refused(&client, outer::<{ 1 << 40 }>(&x), "tile-size", &words);
        let words = ["`large` is one block of [1099511627776]", "2^31 - 1 elements", "smaller blocks"];
        refused(&client, hoarding::<{ 1 << 40 }>(&x), "block-size", &words);
    }
    for client in [Client::cpu(), Client::interpreter()] {
        let client = client.isolated().expect("the device is there");
        client.set_memory_limit(1 << 30);
        let x = ones(&client, &[3]);
        refused(
            &client,
            outer::<32_000>(&x),
            "memory",
            &["its tiles and scratch take", "1024.00 MiB of memory", "smaller"],
        );
        refused(&client, hoarding::<500_000_000>(&x), "memory", &["GiB", "or raise `set_memory_limit`"]);
    }
}

/// A kernel that sums this many inputs, and its call with the same array for all of them.
macro_rules! sum_of {
    ($call:ident by $name:ident: $first:ident $($x:ident)*) => {
        #[kernel(grid = (cdiv(N, 4)))]
        fn $name(
            #[block([N] => [4], |i| (i,))] $first: In<f32>,
            $(#[block([N] => [4], |i| (i,))] $x: In<f32>,)*
            #[block([N] => [4], |i| (i,))] out: Out<f32>,
        ) {
            out.store($first.load() $(+ $x.load())*);
        }
        fn $call($first: &Array) -> Result<Array> {
            $(let $x = $first;)*
            $name($first, $($x),*)
        }
    };
}
sum_of! { hundred by sum_of_100:
    a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 b0 b1 b2 b3 b4 b5 b6 b7 b8 b9 c0 c1 c2 c3 c4 c5 c6 c7 c8 c9 d0 d1 d2 d3 d4 d5 d6 d7 d8 d9
    e0 e1 e2 e3 e4 e5 e6 e7 e8 e9 f0 f1 f2 f3 f4 f5 f6 f7 f8 f9 g0 g1 g2 g3 g4 g5 g6 g7 g8 g9 h0 h1 h2 h3 h4 h5 h6 h7 h8 h9
    i0 i1 i2 i3 i4 i5 i6 i7 i8 i9 j0 j1 j2 j3 j4 j5 j6 j7 j8 j9
}
#[test]
fn a_hundred_operands() {
    for client in [Client::cpu(), Client::interpreter()] {
        let found = hundred(&ones(&client, &[5])).and_then(|y| y.to_vec::<f32>());
        assert_eq!(found, Ok(vec![100.0; 5]));
    }
}

#[cfg(feature = "gpu")]
mod on_a_gpu {
    use super::*;
    use crate::support::gpu;
    use pallas_rt::wgpu;

    /// A client around a device with WebGPU's default limits, whatever the adapter can do.
    fn modest() -> Option<Client> {
        gpu()?;
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapters = block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
        let found = block_on(adapters.first()?.request_device(&wgpu::DeviceDescriptor::default()));
        let (device, queue) = found.expect("every adapter grants the default limits");
        Some(Client::from_wgpu(device, queue))
    }
    /// On native platforms wgpu's futures are ready at once.
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        loop {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
                return value;
            }
        }
    }

    #[test]
    fn scratch_beyond_workgroup_memory() {
        let Some(gpu) = gpu() else { return };
        let client = gpu.isolated().expect("the adapter is there");
        let x = ones(&client, &[3]);
        let limit = client.target().workgroup_bytes;
        assert!(limit < 4_000_000, "a workgroup with {limit} bytes");
        let words =
            ["takes 4000016 bytes", &format!("has {limit}: `large` 4000000, `small` 16"), "make `large`, the largest"];
        refused(&client, hoarding::<1_000_000>(&x), "vmem", &words);
        let before = client.gpu_counters();
        hoarding::<1_000_000>(&x).expect_err("as before");
        assert_eq!(client.gpu_counters(), before, "refused before any device work");
        assert_eq!(hoarding::<64>(&x).and_then(|y| y.to_vec::<f32>()), Ok(vec![73.0; 3]));
    }

    #[test]
    fn more_operands_than_bindings() {
        let Some(client) = modest() else { return };
        let limit = client.target().storage_bindings;
        assert!(limit < 101, "the default is 8");
        let words = ["storage bindings in kernel `sum_of_100`", &format!("the limit is {limit}"), "fewer arrays"];
        refused(&client, hundred(&ones(&client, &[5])), "limit", &words);
    }

    /// In 64 bits on the way.
    #[kernel(grid = (cdiv(N, 8)))]
    fn doubly(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
        out.store((x.load().cast::<f64>() * 3.0).cast::<f32>());
    }

    #[test]
    fn types_no_adapter_has() {
        let Some(client) = gpu() else { return };
        let words = ["a tile holds f64, which shaders have no type for", "`doubly`", "use a 32-bit type, or the CPU"];
        refused(&client, doubly(ones(&client, &[3])), "adapter-dtype", &words);
        let cpu = Client::cpu();
        assert_eq!(doubly(ones(&cpu, &[3])).and_then(|y| y.to_vec::<f32>()), Ok(vec![3.0; 3]));
        refused(
            &client,
            client.zeros(&[3], DType::F64),
            "unsupported",
            &["element type f64", "32 bits", "Client::cpu()"],
        );
    }

    #[test]
    fn arrays_longer_than_a_binding() {
        let Some(client) = modest() else { return };
        let most = usize::try_from(client.target().max_binding_bytes).expect("128 MiB");
        refused(&client, client.zeros(&[most + 1], DType::U8), "limit", &["bytes in one array", "split the array"]);
    }
}

/// What `PALLAS_DEVICE` says, as a fresh process sees it.
#[test]
fn a_device_that_is_none() {
    if std::env::var("PALLAS_TEST_PROCESS").is_ok() {
        println!("answer: {:?}", Array::from_slice(&[1.0f32], &[1]).map(|x| x.device().kind));
        return;
    }
    let answer = |device: &str| {
        let test = std::env::current_exe().expect("this test");
        let out = std::process::Command::new(test)
            .args(["--exact", "refusals::a_device_that_is_none", "--nocapture"])
            .envs([("PALLAS_TEST_PROCESS", "1"), ("PALLAS_DEVICE", device)])
            .output();
        String::from_utf8_lossy(&out.expect("it starts").stdout).into_owned()
    };
    let text = answer("nonsense");
    assert!(text.contains("answer: Err(PALLAS_DEVICE=nonsense is not understood; allowed: best, cpu, gpu"), "{text}");
    assert!(answer("gpu:99").contains("answer: Err(no device `gpu:99`"));
    for (device, kind) in [("cpu", DeviceKind::Cpu), ("interpret", DeviceKind::Interpreter)] {
        let text = answer(device);
        assert!(text.contains(&format!("answer: Ok({kind:?})")), "{text}");
    }
}

#[test]
fn extents_of_zero_and_one() {
    for client in clients() {
        for n in [0, 1] {
            let x = ones(&client, &[n]);
            assert_eq!(added::<4>(&x, &x).and_then(|z| z.to_vec::<f32>()), Ok(vec![2.0; n]), "{client:?}");
        }
    }
}

#[test]
fn more_queries_than_keys() {
    for client in clients() {
        let (q, k) = (ones(&client, &[1, 1, 9, 4]), ones(&client, &[1, 1, 2, 4]));
        let lengths = client.array(&[2], &[1]).expect("it fits");
        let out = flash_attention(&q, &k, &k, &Options { lengths: Some(&lengths), ..Options::default() });
        assert_eq!(out.and_then(|out| out.to_vec::<f32>()), Ok(vec![1.0; 36]), "{client:?}");
    }
}

#[kernel(grid = (cdiv(N, 4)))]
fn blended(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    let x = x.load();
    out.store(maximum(x, -1.0) * 2.0 + minimum(x, 0.0).exp());
}
#[kernel(grid = (1))]
fn greatest(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([1] => [1], |_| (0,))] out: Out<f32>) {
    out.store(x.load().max(0));
}
#[test]
fn nan_and_infinities_propagate() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    for client in [Client::interpreter(), Client::cpu()] {
        let x = client.array(&[nan, -inf, inf, 0.0, nan], &[5]).expect("it fits");
        let found = blended(&x).and_then(|y| y.to_vec::<f32>()).expect("it runs");
        assert!(found[0].is_nan() && found[4].is_nan(), "{found:?}");
        assert_eq!(found[1..4], [-2.0, inf, 1.0]);
        let greatest = |x: &[f32]| {
            let x = client.array(x, &[x.len()]).expect("it fits");
            greatest(&x).and_then(|y| y.to_vec::<f32>()).expect("it runs")[0]
        };
        assert_eq!((greatest(&[-inf, -inf]), greatest(&[-inf, inf])), (-inf, inf));
        assert!(greatest(&[1.0, nan, 2.0]).is_nan());
    }
}
