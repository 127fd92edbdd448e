//! Where results lie: in the user's arrays, in donated memory, and under the memory limit.
use crate::support::{clients, gpu};
use pallas_kernels::{matmul::matmul, norm::layer_norm, softmax};
use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 8)))]
fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,), empty = -1.0)] out: Out<f32>) {
    out.store(x.load() * 2.0);
}
#[kernel(grid = (cdiv(N, 8)))]
fn split(
    #[block([N] => [8], |i| (i,))] x: In<f32>,
    #[block([N] => [8], |i| (i,))] whole: Out<f32>,
    #[block([N] => [8], |i| (i,))] rounded: Out<i32>,
) {
    whole.store(x.load().floor());
    rounded.store(x.load().cast::<i32>());
}

/// What tells one array's memory from another's.
fn place(x: &Array) -> String {
    #[cfg(feature = "gpu")]
    if let Some(buffer) = x.wgpu_buffer().expect("it has memory") {
        return format!("{buffer:?}");
    }
    format!("{:p}", x.buffer().expect("it has memory").as_ptr())
}
fn numbers(client: &Client, n: usize) -> Array {
    client.array(&(0..n).map(|i| i as f32 * 0.75).collect::<Vec<_>>(), &[n]).expect("it fits")
}
fn floats(x: &Array) -> Vec<f32> {
    x.to_vec().expect("f32")
}

#[test]
fn outputs_keep_their_memory() {
    for client in clients() {
        let (x, mut y) = (numbers(&client, 21), client.zeros(&[21], DType::F32).expect("it fits"));
        let before = place(&y);
        for _ in 0..3 {
            into([&mut y], || doubled(&x)).expect("it fits");
        }
        assert_eq!(floats(&y), floats(&doubled(&x).expect("it runs")), "{client:?}");
        assert_eq!(place(&y), before);
        let mut r = client.zeros(&[21], DType::I32).expect("it fits");
        into([&mut y, &mut r], || split(&x)).expect("two outputs");
        let want: Vec<i32> = (0..21).map(|i| (f64::from(i) * 0.75) as i32).collect();
        assert_eq!(r.to_vec::<i32>(), Ok(want.clone()));
        assert_eq!(floats(&y), want.iter().map(|&i| i as f32).collect::<Vec<_>>());
        // A launch without programs writes the `empty` value; functions around kernels reshape; some call several.
        let (nothing, mut none) = (numbers(&client, 0), client.zeros(&[0], DType::F32).expect("it fits"));
        into([&mut none], || doubled(&nothing)).expect("no elements");
        let (a, mut c) = (numbers(&client, 4).reshape(&[2, 2]), client.full(&[2, 2], 9.0f32).expect("2x2"));
        let before = place(&c);
        into([&mut c], || matmul(&a, &a)).expect("it fits");
        assert_eq!((floats(&c), place(&c)), (floats(&matmul(&a, &a).expect("it runs")), before));
    }
    let cpu = Client::cpu();
    let (x, g) = (numbers(&cpu, 10_000).reshape(&[2, 5000]), numbers(&cpu, 5000));
    let mut y = cpu.zeros(&[2, 5000], DType::F32).expect("it fits");
    into([&mut y], || softmax::softmax(&x)).expect("two kernels, one after the other");
    assert_eq!(floats(&y), floats(&softmax::softmax(&x).expect("it runs")));
    into([&mut y], || layer_norm(&x, &g, &g, 1e-5)).expect("three kernels");
    assert_eq!(floats(&y), floats(&layer_norm(&x, &g, &g, 1e-5).expect("it runs")));
}

#[test]
fn a_step_into_its_output_allocates_nothing() {
    for client in [Some(Client::cpu()), gpu()].into_iter().flatten() {
        let client = client.isolated().expect("the device is there");
        let (x, mut y) = (numbers(&client, 1000), client.zeros(&[1000], DType::F32).expect("it fits"));
        doubled(&x).expect("the first launch may allocate scratch").block_until_ready().expect("it is done");
        let arrays = client.memory().in_use;
        into([&mut y], || doubled(&x)).expect("it fits");
        assert_eq!(client.memory().in_use, arrays);
        // What there is no room for, there is room for in an existing array.
        if client.kind() == pallas_rt::DeviceKind::Cpu {
            client.set_memory_limit(arrays);
            assert_eq!(doubled(&x).expect_err("no room").code(), "memory");
            into([&mut y], || doubled(&x)).expect("no room is needed");
        }
    }
}

#[test]
fn outputs_that_do_not_fit_are_refused() {
    for client in clients() {
        let x = numbers(&client, 6);
        let zeros = |dtype, shape: &[usize]| client.zeros(shape, dtype).expect("it fits");
        let refused = |mut y: Array, words: &str| {
            let e = into([&mut y], || doubled(&x)).expect_err(words);
            assert!(e.code() == "output" && e.to_string().contains(words), "{e}");
            assert!(y.to_bytes().expect("bytes").iter().all(|&b| b == 0), "it is as it was");
        };
        refused(zeros(DType::F32, &[7]), "it is f32 [7], the result f32 [6]");
        refused(zeros(DType::I32, &[6]), "it is i32 [6], the result f32 [6]");
        refused(zeros(DType::F32, &[2, 4]), "the result f32 [6]");
        let y = zeros(DType::F32, &[6]);
        let held = y.clone();
        refused(y, "another array shares its memory");
        drop(held);
        let e = into([&mut zeros(DType::F32, &[6]), &mut zeros(DType::F32, &[6])], || doubled(&x)).expect_err("two");
        assert!(e.to_string().contains("2 outputs for 1 results"), "{e}");
        let elsewhere = client.isolated().expect("the device is there");
        let mut y = elsewhere.zeros(&[6], DType::F32).expect("it fits");
        let e = into([&mut y], || doubled(&x)).expect_err("two clients");
        let expected = format!("output 0 lives on {}, the call runs on {}", y.client().why(), x.client().why());
        assert!(e.code() == "foreign-client" && e.to_string().starts_with(&expected), "{e}");
        let (mut a, mut b) = (zeros(DType::F32, &[6]), zeros(DType::F32, &[6]));
        let swapped = into([&mut a, &mut b], || Ok([doubled(&x)?, doubled(&x)?]));
        swapped.expect("each result is copied to its place");
        assert_eq!((floats(&a), floats(&b)), (floats(&doubled(&x).expect("it runs")), floats(&a)));
        // What the closure says, and no loan left behind.
        let e = into([&mut a], || Err::<Array, _>(Error::Value { message: "no".into() })).expect_err("its error");
        assert_eq!(e.to_string(), "no");
        assert_ne!(place(&doubled(&x).expect("it runs")), place(&a));
    }
}

#[test]
fn looking_at_a_call_writes_nothing() {
    let cpu = Client::cpu();
    let (x, mut y) = (numbers(&cpu, 6), cpu.zeros(&[6], DType::F32).expect("it fits"));
    let found = explain(|| into([&mut y], || doubled(&x))).expect("it is explained");
    assert_eq!((found.kernels.len(), floats(&y)), (1, vec![0.0; 6]));
    let checked = check(|| into([&mut y], || doubled(&x))).expect("the executions agree");
    assert_eq!((checked.kernels, floats(&y)), (1, floats(&doubled(&x).expect("it runs"))));
}

#[kernel(grid = (cdiv(N, 8)))]
fn reversed(
    #[block([N] => [8], |i| (i,))] x: In<f32>,
    #[block([N] => [8], |i| (num_programs(0) - 1 - i,))] out: Out<f32>,
) {
    out.store(x.load().reverse([0]));
}
#[kernel(grid = (cdiv(N, 8)))]
fn reversed_within(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    out.store(x.load().reverse([0]));
}
#[kernel(grid = (cdiv(N, 8)))]
fn stored_twice(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    out.store(x.load() + 1.0);
    out.store(x.load() * 2.0);
}
#[kernel(grid = (cdiv(N, 8)), semantics = (arbitrary))]
fn summed(
    #[block([N] => [8], |i| (i,), fill = 0.0)] x: In<f32>,
    #[block([N] => [8], |i| (i,))] out: Out<f32>,
    #[scratch([8])] sum: Scratch<f32>,
) {
    if program_id(0) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load());
    out.store(sum.load());
}
#[kernel(grid = (5), semantics = (arbitrary))]
fn from_the_end(
    #[block([N] => [8], |i| (4 - i,))] x: In<f32>,
    #[block([N] => [8], |i| (4 - i,))] out: Out<f32>,
    #[scratch([8])] sum: Scratch<f32>,
) {
    if program_id(0) == 0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load());
    out.store(sum.load());
}
#[kernel(grid = (cdiv(N, 8), 3), semantics = (parallel, arbitrary), allow(lost_store))]
fn in_three_steps(#[block([N] => [8], |i, _| (i,))] x: In<f32>, #[block([N] => [8], |i, _| (i,))] out: Out<f32>) {
    out.store(x.load() * 2.0 + 1.0);
}

#[test]
fn a_donated_input_serves_an_output_where_that_is_safe() {
    type Call = fn(Array) -> Result<Array>;
    let cases: [(&str, Call, bool); 7] = [
        ("elementwise", |x| doubled(x), true),
        ("moved within the block", |x| reversed_within(x), true),
        ("another program's block", |x| reversed(x), false),
        ("loaded after a store", |x| stored_twice(x), false),
        ("sequential", |x| summed(x), true),
        ("sequential, last block first", |x| from_the_end(x), true),
        ("a block in several steps", |x| in_three_steps(x), false),
    ];
    for client in [Some(Client::cpu()), gpu()].into_iter().flatten() {
        for (what, call, expected) in cases {
            let x = numbers(&client, 40);
            let want = call(x.clone()).expect("a clone is alive, so nothing is donated");
            assert_ne!(place(&want), place(&x), "{what}");
            let before = place(&x);
            let found = call(x).expect("it runs");
            assert_eq!(place(&found) == before, expected, "{what} on {client:?}");
            assert_eq!(floats(&found), floats(&want), "{what} on {client:?}");
        }
        // Blocks that overhang.
        assert_eq!(floats(&doubled(numbers(&client, 5)).expect("it runs")), [0.0, 1.5, 3.0, 4.5, 6.0]);
        // Another type of elements.
        let (whole, rounded) = split(numbers(&client, 3)).expect("it runs");
        assert_eq!((floats(&whole), rounded.to_vec::<i32>()), (vec![0.0, 0.0, 1.0], Ok(vec![0, 0, 1])));
    }
}

/// A program that already uses wgpu: its device, its buffers in and out, a kernel in between, nothing copied.
#[cfg(feature = "gpu")]
#[test]
fn the_programs_own_device_and_buffers() {
    use pallas_rt::wgpu::{BufferDescriptor, BufferUsages};
    let Some(gpu) = gpu() else { return };
    let owner = gpu.isolated().expect("the adapter is there");
    let (device, queue) = owner.wgpu().expect("a GPU's");
    let client = Client::from_wgpu(device.clone(), queue.clone());
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    let buffer = || device.create_buffer(&BufferDescriptor { label: None, size: 48, usage, mapped_at_creation: false });
    let (input, output) = (buffer(), buffer());
    let numbers: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
    queue.write_buffer(&input, 0, &numbers);
    let array = |buffer| Array::from_wgpu(&client, buffer, DType::F32, &[12]).expect("48 bytes");
    let (x, mut y) = (array(input), array(output.clone()));
    into([&mut y], || doubled(&x)).expect("it fits");
    assert_eq!(y.wgpu_buffer(), Ok(Some(&output)));
    // As the program itself would see it.
    let found = floats(&array(output));
    assert_eq!(found, (0..12).map(|i| 2.0 * i as f32).collect::<Vec<_>>());
}
