//! Arrays on the CPU: what they hold, what they refuse, and where their memory goes.
use crate::{Array, Client, Error};
use pallas_ir::{Bf16, DType, F16};

/// A client that shares its memory statistics with no other test.
fn client() -> Client {
    Client::cpu().isolated().expect("the host stays")
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
    let empty = client.zeros(DType::F32, &[3, 0, usize::MAX]).expect("no elements");
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
    refused(client.zeros(DType::F32, &[1 << 40, 1 << 40]), "overflow", "address space");
    refused(client.zeros(DType::F32, &[1 << 50]), "memory", "asked for");
    refused(client.full(&[1 << 50], 1.0f32), "memory", "asked for");
    let x = client.array(&[1.0f32; 6], &[2, 3]).expect("six");
    refused(x.to_vec::<i32>(), "element-type", "the array's elements are f32, i32 was asked for");
    refused(x.reshape(&[4]), "reshape", "shape [2, 3] has 6 elements, [4] has 4");
    refused(x.check_client(&Client::cpu(), || "operand `x`".into()), "foreign-client", "operand `x` lives on cpu");
    assert_eq!(x.check_client(&client, || "operand `x`".into()), Ok(()));
}

#[test]
fn a_reshape_and_a_clone_share_memory() {
    let x = client().array(&[1u8, 2, 3, 4, 5, 6], &[2, 3]).expect("six");
    let mut y = x.reshape(&[3, 2]).expect("six");
    assert_eq!(x.buffer().as_ptr(), y.buffer().as_ptr());
    assert!(y.buffer_mut().is_none(), "shared memory is not written");
    drop(x);
    let bytes = y.buffer_mut().expect("now its own").bytes_mut().expect("nothing failed");
    bytes.expect("on the host")[0] = 9;
    assert_eq!(y.to_vec::<u8>(), Ok(vec![9, 2, 3, 4, 5, 6]));
}

#[test]
fn only_a_unique_array_of_equal_size_is_donated() {
    let client = client();
    let x = client.array(&[1.0f32; 6], &[6]).expect("six");
    let address = x.buffer().as_ptr();
    let other = x.clone();
    let x = x.donate(DType::F32, &[6]).expect_err("shared");
    drop(other);
    let x = x.donate(DType::F32, &[7]).expect_err("too small");
    let y = x.donate(DType::I32, &[2, 3]).expect("unique, 24 bytes");
    assert_eq!((y.buffer().as_ptr(), y.dtype(), y.shape()), (address, DType::I32, &[2, 3][..]));
}

#[test]
fn freed_memory_is_used_again_and_cleared_for_zeros() {
    let client = client();
    let x = client.full(&[1 << 20], 1.0f32).expect("4 MiB");
    let address = x.buffer().as_ptr();
    assert_eq!(address as usize % 64, 0);
    drop(x);
    assert_eq!((client.memory().in_use, client.memory().peak, client.memory().kept), (0, 4 << 20, 4 << 20));
    let x = client.zeros(DType::F32, &[1 << 20]).expect("4 MiB");
    assert_eq!((x.buffer().as_ptr(), client.memory().kept), (address, 0));
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
    assert_eq!(client.zeros(DType::U8, &[3 << 18]).map(|_| ()), Err(expected));
    assert_eq!(client.memory().in_use, 384 << 10);
    drop(x);
    assert!(client.zeros(DType::U8, &[3 << 18]).is_ok());
}

#[test]
fn arrays_move_between_clients() {
    let x = Client::cpu().array(&[1i16, -2], &[2]).expect("two");
    let y = x.to_device(&Client::interpreter()).expect("host to host");
    assert_eq!((y.device().id(), y.to_vec()), ("interpret".into(), Ok(vec![1i16, -2])));
    assert_eq!(x.to_device(&Client::cpu()).expect("stays").buffer().as_ptr(), x.buffer().as_ptr());
}

#[test]
fn clients_and_arrays_cross_threads() {
    fn check<T: Send + Sync + Clone>() {}
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
