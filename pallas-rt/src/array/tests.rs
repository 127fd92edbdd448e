//! Arrays on the CPU: what they hold, what they refuse, and where their memory goes.
use super::{ArrayContents, TracedValue};
use crate::exec::{Argument, Compiled};
use crate::prelude::*;
use pallas_ir::{Bf16, F16, Kernel};

/// A client that shares its memory statistics with no other test.
fn client() -> Client {
    Client::cpu().isolated().expect("the host stays")
}

/// The address of an array's memory.
fn address(x: &Array) -> *const u8 {
    x.buffer().expect("it has memory").as_ptr()
}

fn refused<T: std::fmt::Debug>(result: crate::Result<T>, code: &str, words: &str) {
    let error = result.expect_err(words);
    assert_eq!(error.code(), code, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn elements_of_every_type_come_back() {
    /// Writes and reads elements of one type.
    macro_rules! check {
        ($($elements:expr),*) => {$({
            let elements = $elements.to_vec();
            let array = client().array(&elements, &[2, 1]).expect("two elements");
            assert_eq!(array.to_vec(), Ok(elements));
            assert_eq!((array.shape(), array.rank(), array.len()), (&[2, 1][..], 2, 2));
            let copy = client().array_from_bytes(array.dtype(), &[2, 1], &array.to_bytes().expect("on the host"));
            assert_eq!(copy.expect("the same bytes").to_string(), array.to_string());
        })*};
    }
    check!([1.5f32, -0.0], [1.5f64, f64::MIN], [F16::from_f32(0.1), F16::MAX], [Bf16::from_f32(0.1), Bf16::MAX]);
    check!([i8::MIN, 1], [u8::MAX, 1], [i16::MIN, 1], [u16::MAX, 1], [i32::MIN, 1], [u32::MAX, 1]);
    check!([i64::MIN, 1], [u64::MAX, 1], [true, false]);
}

#[test]
fn extents_of_zero_and_one_and_rank_zero() {
    let client = client();
    let scalar = client.array(&[7i32], &[]).expect("rank 0");
    assert_eq!((scalar.rank(), scalar.len(), scalar.to_vec()), (0, 1, Ok(vec![7i32])));
    let empty = client.zeros(&[3, 0, usize::MAX], DType::F32).expect("no elements");
    assert!(empty.is_empty());
    assert_eq!(empty.to_vec::<f32>(), Ok(vec![]));
    assert_eq!(client.full(&[2, 1, 1], 2.5f64).expect("two").to_vec(), Ok(vec![2.5f64, 2.5]));
}

#[test]
fn what_does_not_fit_is_refused() {
    let client = client();
    refused(client.array(&[1.0f32; 5], &[2, 3]), "length", "shape [2, 3] holds 6 elements, 5 were given");
    refused(client.array_from_bytes(DType::F16, &[2], &[0; 5]), "length", "holds 4 bytes, 5 were given");
    refused(client.array_from_bytes(DType::Bool, &[3], &[0, 1, 2]), "value", "byte 2 of a bool array is 2");
    refused(client.zeros(&[1 << 40, 1 << 40], DType::F32), "overflow", "address space");
    refused(client.zeros(&[1 << 50], DType::F32), "memory", "asked for");
    refused(client.full(&[1 << 50], 1.0f32), "memory", "asked for");
    let x = client.array(&[1.0f32; 6], &[2, 3]).expect("six");
    refused(x.to_vec::<i32>(), "element-type", "the array's elements are f32, i32 was asked for");
    refused(x.reshape(&[4]).to_vec::<f32>(), "reshape", "shape [2, 3] has 6 elements, [4] has 4");
    let open = x.reshape(&[-1, 4]).to_vec::<f32>();
    refused(open, "reshape", "[-1, 4] has a multiple of 4, by one extent of -1");
    refused(x.reshape(&[-1, -1]).to_vec::<f32>(), "reshape", "[-1, -1] has a multiple of 1");
    assert_eq!((x.reshape(&[-1]).shape(), x.reshape(&[3, -1]).shape()), (&[6][..], &[3, 2][..]));
    assert_eq!(x.reshape(&[4]).reshape(&[6]).to_vec::<f32>().expect_err("the first").code(), "reshape");
    refused(x.check_client(&Client::cpu(), &|| "operand `x`".into()), "foreign-client", "operand `x` lives on cpu");
    assert_eq!(x.check_client(&client, &|| "operand `x`".into()), Ok(()));
}

#[test]
fn a_reshape_and_a_clone_share_memory() {
    let x = client().array(&[1u8, 2, 3, 4, 5, 6], &[2, 3]).expect("six");
    let mut y = x.reshape(&[3, 2]);
    assert_eq!(address(&x), address(&y));
    assert!(matches!(y.buffer_mut(), Ok(None)), "shared memory is not written");
    drop(x);
    let bytes = y.buffer_mut().ok().flatten().expect("now its own").bytes_mut().expect("nothing failed");
    bytes.expect("on the host")[0] = 9;
    assert_eq!(y.to_vec::<u8>(), Ok(vec![9, 2, 3, 4, 5, 6]));
}

#[test]
fn only_a_unique_array_of_equal_size_is_donated() {
    let client = client();
    let x = client.array(&[1.0f32; 6], &[6]).expect("six");
    let start = address(&x);
    let other = x.clone();
    let x = x.try_reuse_memory(DType::F32, &[6]).expect_err("shared");
    drop(other);
    let x = x.try_reuse_memory(DType::F32, &[7]).expect_err("too small");
    let y = x.try_reuse_memory(DType::I32, &[2, 3]).expect("unique, 24 bytes");
    assert_eq!((address(&y), y.dtype(), y.shape()), (start, DType::I32, &[2, 3][..]));
}

#[test]
fn freed_memory_is_used_again_and_cleared_for_zeros() {
    let client = client();
    let x = client.full(&[1 << 20], 1.0f32).expect("4 MiB");
    let start = address(&x);
    assert_eq!(start as usize % 64, 0);
    drop(x);
    assert_eq!((client.memory().in_use, client.memory().peak, client.memory().kept), (0, 4 << 20, 4 << 20));
    let x = client.zeros(&[1 << 20], DType::F32).expect("4 MiB");
    assert_eq!((address(&x), client.memory().kept), (start, 0));
    assert!(x.to_vec::<f32>().expect("on the host").iter().all(|&x| x == 0.0));
    drop(x);
    client.release_kept_memory();
    assert_eq!(client.memory().kept, 0);
}

#[test]
fn the_memory_limit_refuses_and_nothing_is_lost() {
    let client = client();
    client.set_memory_limit(1 << 20);
    let x = client.full(&[3 << 17], 1u8).expect("384 KiB");
    let expected =
        Error::Memory { asked: 768 << 10, limit: 1 << 20, in_use: 384 << 10, device: "cpu".into(), cause: None };
    assert_eq!(client.zeros(&[3 << 18], DType::U8).map(|_| ()), Err(expected));
    assert_eq!(client.memory().in_use, 384 << 10);
    drop(x);
    assert!(client.zeros(&[3 << 18], DType::U8).is_ok());
}

#[test]
fn arrays_move_between_clients() {
    let x = Client::cpu().array(&[1i16, -2], &[2]).expect("two");
    let y = x.to_device(&Client::interpreter()).expect("host to host");
    assert_eq!((y.device().id(), y.to_vec()), ("interpret".into(), Ok(vec![1i16, -2])));
    assert_eq!(address(&x.to_device(&Client::cpu()).expect("stays")), address(&x));
}

#[test]
fn clients_and_arrays_cross_threads() {
    fn check<T: Send + Sync + Clone + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    check::<Client>();
    check::<Array>();
    let client = client();
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let client = &client;
            scope.spawn(move || {
                for n in 1..50 {
                    let x = client.full(&[n * 100], thread).expect("little");
                    assert!(x.to_vec::<u32>().expect("on the host").iter().all(|&x| x == thread));
                }
            });
        }
    });
    assert_eq!(client.memory().in_use, 0);
}

/// Kernel by macro: one input, one output.
#[kernel(grid = (cdiv(N, B)), tune(B = [2, 4]))]
fn negated<const B: usize>(#[block([N] => [B], |i| (i,))] x: In<f32>, #[block([N] => [B], |i| (i,))] out: Out<f32>) {
    out.store(-x.load());
}

/// The same kernel as text, with blocks of 2.
fn of_text() -> Compiled {
    let kernel: Kernel = "
kernel negated {
  dim N
  grid cdiv(N, 2) parallel
  in x: f32[N] block [2]
  out out: f32[N] block [2] empty 0.0
  map @x (%0: i32[]) { yield %0 }
  map @out (%1: i32[]) { yield %1 }
  body {
    %2: f32[2] = load @x block[0:2]
    %3: f32[2] = neg %2
    store @out block[0:2] %3
  }
}"
    .parse()
    .expect("it is tile IR");
    Compiled::new(kernel).expect("it is well formed")
}

fn traced(client: &Client, shape: &[usize]) -> Array {
    Array::from_traced_value(DType::F32, shape, TracedValue { trace: 1, value: 7, client: client.clone() })
}

/// The error of a kernel call, whose lines later calls must not replace.
fn mistake() -> Error {
    let diag = pallas_ir::Diag::new("dimension", pallas_ir::At::Op, "3 and 4 differ".into(), "");
    Error::kernel("first", pallas_ir::Loc { file: "a.rs", line: 1, column: 2 }, "", diag)
}

fn poisoned(client: &Client, shape: &[usize]) -> Array {
    Array::new_poisoned(mistake(), client.clone(), DType::F32, shape)
}

#[test]
fn arrays_without_memory_have_type_and_client() {
    let client = client();
    let check = |x: Array, text: &str, debug: &str| {
        assert_eq!((x.shape(), x.rank(), x.len(), x.is_empty(), x.dtype()), (&[2, 3][..], 2, 6, false, DType::F32));
        assert_eq!((x.client(), x.device()), (&client, client.device()));
        assert_eq!((x.to_string().as_str(), format!("{x:?}").as_str()), (text, debug));
        assert_eq!(x.clone().to_string(), text);
        assert!(!x.shares_memory(&x.clone()));
        assert_eq!(x.check_client(&client, &String::new), Ok(()));
        assert_eq!(x.check_client(&Client::cpu(), &String::new).map_err(|e| e.code()), Err("foreign-client"));
    };
    let x = traced(&client, &[2, 3]);
    assert!(matches!(x.contents(), ArrayContents::Traced(traced) if (traced.trace, traced.value) == (1, 7)));
    check(x, "<traced f32[2, 3]>", "f32[2, 3] on cpu\n<traced f32[2, 3]>");
    let text = "<a.rs:1:2: kernel `first`: 3 and 4 differ>";
    check(poisoned(&client, &[2, 3]), text, &format!("f32[2, 3] on cpu\n{text}"));
    assert!(traced(&client, &[3, 0, usize::MAX]).is_empty());
    assert_eq!((traced(&client, &[]).len(), traced(&client, &[usize::MAX, 2]).len()), (1, usize::MAX));
}

/// The outcome of every function that needs elements or memory, for an array of f32[4].
fn outcomes(x: &Array) -> Vec<Result<()>> {
    let (client, other) = (x.client(), Client::interpreter());
    let own = || client.array(&[1.0f32; 4], &[4]).expect("it fits");
    let fresh = || client.zeros(&[4], DType::F32).expect("it fits");
    let (double, mut given) = (of_text(), x.clone());
    let prepared = double.prepare(client, &[4]).expect("the size fits");
    let mut outcomes = vec![
        x.buffer().map(drop),
        x.clone().buffer_mut().map(drop),
        x.to_vec::<f32>().map(drop),
        x.to_vec::<i32>().map(drop),
        x.to_bytes().map(drop),
        x.to_device(client).map(drop),
        x.to_device(&other).map(drop),
        x.block_until_ready(),
        x.reshape(&[2, 2]).check().map(drop),
        x.deep_copy().map(drop),
        x.clone().try_reuse_memory(DType::F32, &[4]).expect_err("it has no memory").to_bytes().map(drop),
        negated::<2>(x).map(drop),
        negated::<2>(x.clone()).map(drop),
        negated_tuned(x).map(drop),
        check(|| negated::<2>(x)).map(drop),
        into([&mut given], || negated::<2>(&own())),
        into([&mut given], || Ok(own())),
        into([&mut fresh()], || Ok(x.clone())),
        into([&mut fresh()], || negated::<2>(x)),
        double.launch(client, &[4], [Argument::from(x)]).map(drop),
        double.launch(client, &[4], [x.clone().into()]).map(drop),
        double.launch(client, &[5], [x.into()]).map(drop),
        prepared.launch(&[x], &[], &mut [&mut fresh()]),
        prepared.launch(&[&own()], &[], &mut [&mut given]),
        explain(|| into([&mut given], || negated::<2>(&own()))).map(drop),
    ];
    #[cfg(feature = "gpu")]
    outcomes.push(x.wgpu_buffer().map(drop));
    // A value of a traced function has a client, and its kernels can be looked at.
    if !(cfg!(feature = "graph") && x.is_traced()) {
        outcomes.push(on(&other, || negated::<2>(x)).map(drop));
        outcomes.push(explain(|| negated::<2>(x)).map(drop));
        outcomes.push(cost(|| negated::<2>(x)).map(drop));
    }
    // A call that is remembered is checked like the first one.
    for _ in 0..3 {
        negated::<2>(&own()).expect("it has memory");
    }
    outcomes.push(negated::<2>(x).map(drop));
    outcomes
}

#[test]
fn functions_that_need_memory_refuse_traced_arrays() {
    for client in [client(), Client::interpreter()] {
        let x = traced(&client, &[4]);
        assert!(x.check().is_ok());
        for (i, outcome) in outcomes(&x).into_iter().enumerate() {
            let error = outcome.expect_err("there is no memory");
            assert_eq!(error.code(), "traced", "{i}: {error}");
        }
    }
    let x = traced(&Client::cpu(), &[2, 3]);
    let of = "of an array of f32[2, 3] that is being traced";
    refused(x.to_vec::<f32>(), "traced", &format!("elements {of}: read them from the result of the traced function"));
    #[cfg(not(feature = "graph"))]
    refused(x.reshape(&[6]).check(), "traced", &format!("reshape to [6] {of}"));
    #[cfg(feature = "graph")]
    refused(x.reshape(&[6]).check(), "traced", "outlived the function");
    refused(x.to_device(&Client::interpreter()), "traced", &format!("copy to interpret {of}"));
    let row = traced(&Client::cpu(), &[6]);
    let calls_of_macro = line!() + 2;
    let calls = [
        (line!(), negated::<2>(&row)),
        (line!(), negated_tuned(&x)),
        (line!(), of_text().launch(&Client::cpu(), &[6], [Argument::from(&x)]).map(|mut y| y.remove(0))),
    ];
    for (line, result) in calls {
        let error = result.expect_err("there is no memory").to_string();
        // A kernel of the macro would be an operation of the function, which is over here.
        let expected = match (line == calls_of_macro, cfg!(feature = "graph")) {
            (true, true) => "an array of f32[6] outlived the function that was traced",
            (true, false) => "kernel `negated` is called with a traced array, f32[6]: call it with",
            (false, _) => "kernel `negated` is called with a traced array, f32[2, 3]: call it with",
        };
        assert!(error.contains(expected) && error.contains(&format!("{}:{line}:", file!())), "{error}");
    }
}

#[test]
fn functions_that_need_memory_return_the_error_of_a_poisoned_array() {
    for client in [client(), Client::interpreter()] {
        let x = poisoned(&client, &[4]);
        assert_eq!(x.check().map(drop), Err(mistake()));
        for (i, outcome) in outcomes(&x).into_iter().enumerate() {
            assert_eq!(outcome, Err(mistake()), "{i}");
        }
    }
}

#[test]
fn a_refused_output_leaves_the_others_as_they_are() {
    let client = client();
    let ones = || client.array(&[1.0f32; 4], &[4]).expect("it fits");
    let (mut first, mut second) = (ones(), traced(&client, &[4]));
    let two = || Ok([negated::<2>(&ones())?, negated::<4>(&ones())?]);
    refused(into([&mut first, &mut second], two), "traced", "memory of an array of f32[4]");
    let mut second = ones();
    let results = || Ok([client.full(&[4], 2.0f32)?, poisoned(&client, &[4])]);
    assert_eq!(into([&mut first, &mut second], results), Err(mistake()));
    assert_eq!((first.to_vec(), second.to_vec()), (Ok(vec![1.0f32; 4]), Ok(vec![1.0f32; 4])));
}
