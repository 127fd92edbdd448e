//! Launches that repeat, and launches that are refused.
use super::{Argument, Compiled};
use crate::Client;
use pallas_allocations::{CountingAllocator, allocations};
use pallas_ir::{DType, Kernel, Literal};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SUM: &str = "
kernel sum {
  dim N
  grid cdiv(N, 16) parallel
  in a: f32[N, 16] block [16, 16]
  in b: f32[N, 16] block [16, 16]
  out out: f32[N, 16] block [16, 16] empty 0.0
  param scale: f32[]
  map @a (%0: i32[]) {
    %1: i32[] = const 0
    yield %0, %1
  }
  map @b (%2: i32[]) {
    %3: i32[] = const 0
    yield %2, %3
  }
  map @out (%4: i32[]) {
    %5: i32[] = const 0
    yield %4, %5
  }
  body {
    %6: f32[16,16] = load @a block[0:16, 0:16]
    %7: f32[16,16] = load @b block[0:16, 0:16]
    %8: f32[16,16] = add %6, %7
    %9: f32[16,1] = reduce op(add) axes(1) %8
    %10: f32[16,16] = add %8, %9
    %11: f32[] = param @scale
    %12: f32[16,16] = mul %10, %11
    store @out block[0:16, 0:16] %12
  }
}";

#[test]
fn repeated_launches_allocate_nothing_and_see_their_own_operands() {
    let client = Client::cpu();
    let kernel: Kernel = SUM.parse().expect("it is tile IR");
    let rows = 24;
    let prepared = Compiled::new(kernel).and_then(|sum| sum.prepare(&client, &[rows])).expect("it is well formed");
    let shape = [rows as usize, 16];
    let numbers = |seed: usize| (0..rows as usize * 16).map(|i| (i * seed % 17) as f32).collect::<Vec<f32>>();
    let operands = [1, 2, 3].map(numbers);
    let arrays = operands.each_ref().map(|x| client.array(x, &shape).expect("it fits"));
    let mut results = [0; 2].map(|_| client.zeros(&shape, DType::F32).expect("it fits"));
    for turn in 0..6 {
        let (i, j, out) = (turn % 3, (turn + 1) % 3, &mut results[turn % 2]);
        let scale = turn as f32 + 1.0;
        let params = [Literal::new(DType::F32, f64::from(scale))];
        let before = allocations();
        prepared.launch(&[&arrays[i], &arrays[j]], &params, &mut [out]).expect("it runs");
        let allocated = allocations() - before;
        // The first launch resolves memory and compiles machine code; each output records its uses from its first
        // launch on.
        assert!(turn < 2 || allocated == 0 || cfg!(guarded), "launch {turn}: {allocated} allocations");
        let sums: Vec<f32> = operands[i].iter().zip(&operands[j]).map(|(a, b)| a + b).collect();
        let wanted: Vec<f32> = sums
            .chunks(16)
            .flat_map(|row| row.iter().map(|x| (x + row.iter().sum::<f32>()) * scale).collect::<Vec<f32>>())
            .collect();
        assert_eq!(results[turn % 2].to_vec::<f32>().expect("it is on the host"), wanted, "launch {turn}");
    }
}

#[test]
fn a_kernel_that_is_not_well_formed_is_named_once() {
    let wrong: Kernel = SUM.replace("add %6, %7", "add %6").parse().expect("it is tile IR");
    let error = Compiled::new(wrong).expect_err("an addition takes two").to_string();
    assert!(
        error.starts_with("kernel `sum`: %8: f32[16,16] = add %6: `add` takes 2 operands, found 1; help: "),
        "{error}"
    );
}

#[test]
fn a_donated_array_gives_its_memory_unless_it_is_shared() {
    let client = Client::cpu();
    let sum = SUM.parse().map(Compiled::new).expect("it is tile IR").expect("it is well formed");
    let ones = || client.array(&[1.0f32; 24 * 16], &[24, 16]).expect("it fits");
    let scale = Argument::Param(Literal::new(DType::F32, 2.0));
    let (b, own, kept) = (ones(), ones(), ones());
    let run = |a: Argument| {
        let outputs = sum.launch(&client, &[24], [a, (&b).into(), scale.clone()]).expect("it runs");
        assert_eq!(outputs[0].to_vec::<f32>().expect("it is on the host"), [68.0; 24 * 16]);
        outputs[0].buffer().expect("it has memory").as_ptr()
    };
    let addresses = [&own, &kept].map(|array| array.buffer().expect("it has memory").as_ptr());
    assert_eq!(run(own.into()), addresses[0], "donated");
    assert_ne!(run((&kept).into()), addresses[1], "lent");
    assert_ne!(run(kept.clone().into()), addresses[1], "donated, but shared");
    assert_eq!(kept.to_vec::<f32>().expect("it is on the host"), [1.0; 24 * 16]);
}

#[test]
fn sizes_and_arguments_that_do_not_fit_are_refused_in_words() {
    let client = Client::cpu();
    let sum = SUM.parse().map(Compiled::new).expect("it is tile IR").expect("it is well formed");
    let zeros = |client: &Client, dtype, shape: &[usize]| client.zeros(shape, dtype).expect("it fits");
    let array = |dtype, shape: &[usize]| Argument::from(&zeros(&client, dtype, shape));
    let value = |dtype| Argument::Param(Literal::new(dtype, 1.0));
    let refused = |error: crate::Error, expected: &str| {
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains("; help: "), "{text}; expected: {expected}");
    };
    let check = |sizes: &[i64], arguments: &[Argument], expected: &str| {
        refused(sum.launch(&client, sizes, arguments.to_vec()).expect_err(expected), expected);
    };
    check(&[], &[], "the kernel has 1 dimensions, 0 sizes were given");
    check(&[24, 16], &[], "the kernel has 1 dimensions, 2 sizes were given");
    check(&[-1], &[], "dimension N is -1; it is at least 0");
    check(&[1 << 31], &[], "the extent N is 2147483648; help: extents are 0 to 2^31 - 1");

    let (x, scale) = (array(DType::F32, &[24, 16]), value(DType::F32));
    let launch = |arguments: &[&Argument], expected: &str| {
        check(&[24], &arguments.iter().map(|&argument| argument.clone()).collect::<Vec<_>>(), expected);
    };
    launch(&[], "`a` is an array of f32 [24, 16], found none");
    launch(&[&x], "`b` is an array of f32 [24, 16], found none");
    launch(&[&x, &x], "`scale` is a parameter of f32, found none");
    launch(&[&x, &x, &scale, &scale], "1 more arguments than the kernel has operands");
    launch(&[&x, &scale, &x], "`b` is an array of f32 [24, 16], found a value of f32");
    launch(&[&x, &x, &x], "`scale` is a parameter of f32, found an array of f32 [24, 16]");
    launch(&[&x, &x, &value(DType::I32)], "`scale` is a parameter of f32, found a value of i32");
    launch(
        &[&array(DType::I32, &[24, 16]), &x, &scale],
        "`a` is an array of f32 [24, 16], found an array of i32 [24, 16]",
    );
    launch(
        &[&x, &array(DType::F32, &[16, 24]), &scale],
        "`b` is an array of f32 [24, 16], found an array of f32 [16, 24]",
    );
    let foreign = Argument::from(&zeros(&Client::interpreter(), DType::F32, &[24, 16]));
    launch(&[&foreign, &x, &scale], "`a` lives on interpret");

    let prepared = sum.prepare(&client, &[24]).expect("the size fits");
    let (x, mut out) = (zeros(&client, DType::F32, &[24, 16]), zeros(&client, DType::F32, &[24, 16]));
    let params = [Literal::new(DType::F32, 1.0)];
    let error = prepared.launch(&[&x], &params, &mut [&mut out]).expect_err("an input is missing");
    refused(error, "`b` is an array of f32 [24, 16], found none");
    let error = prepared.launch(&[&x, &x], &params, &mut []).expect_err("the output is missing");
    refused(error, "`out` is an array of f32 [24, 16], found none");
    let mut shared = out.clone();
    let error = prepared.launch(&[&x, &x], &params, &mut [&mut shared]).expect_err("the output is shared");
    refused(error, "output 0 cannot be written: another array shares its memory");
}
