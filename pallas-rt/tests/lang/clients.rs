//! The client of a call, and calls that panic.
use pallas_rt::prelude::*;
use pallas_rt::{Buffer, on};
use std::panic::{RefUnwindSafe, UnwindSafe, catch_unwind};

/// A kernel without inputs, which would determine its client.
#[kernel(grid = (cdiv(N, 4)))]
fn count(#[dim] N: usize, #[block([N] => [4], |i| (i,))] out: Out<i32>) {
    out.store(iota::<i32>([4], 0) + program_id(0) * 4);
}
#[kernel(grid = (1), tune(B = [2, 4]))]
fn ones<const B: usize>(#[dim] N: usize, #[block([N] => [Element(B)], |_i| (element(0),))] out: Out<f32>) {
    out.fill(1.0);
}
#[kernel(grid = (1))]
fn copy(#[block([N] => [N], |_i| (0,))] x: In<i32>, #[block([N] => [N], |_i| (0,))] out: Out<i32>) {
    out.store(x.load());
}

#[test]
fn a_kernel_without_inputs_runs_on_the_chosen_client() {
    let [cpu, other] = [Client::cpu(), Client::cpu().isolated().expect("a second client")];
    let interpreter = Client::interpreter();
    let runs_on = |client: &Client, array: Result<Array>| {
        let array = array.expect("it runs");
        assert_eq!(array.client(), client);
        assert_eq!(array.to_vec::<i32>().expect("i32"), [0, 1, 2, 3, 4, 5]);
    };
    on(&other, || {
        runs_on(&other, count(6));
        on(&interpreter, || runs_on(&interpreter, count(6)));
        // The inner choice is over, even though it ended in a panic.
        let panicked = catch_unwind(|| on(&cpu, || panic!("the user's own")));
        assert!(panicked.is_err());
        runs_on(&other, count(6));
        assert_eq!(ones_tuned(2).expect("it runs").client(), &other);
        assert_eq!(check(|| count(6)).expect("they agree").kernels, 1);
    });
    // Each thread has its own choice.
    std::thread::scope(|scope| {
        for client in [&cpu, &other, &interpreter] {
            scope.spawn(move || (0..20).for_each(|_| on(client, || runs_on(client, count(6)))));
        }
    });
}

#[test]
fn arrays_of_another_client_are_refused_there() {
    let (cpu, interpreter) = (Client::cpu(), Client::interpreter());
    let x = cpu.array(&[1i32, 2], &[2]).expect("it fits");
    on(&cpu, || copy(&x)).expect("it lives there");
    let error = on(&interpreter, || copy(&x)).expect_err("it lives elsewhere");
    assert_eq!(error.code(), "foreign-client");
    let place = format!("{}:{}:", file!(), line!() - 2);
    assert!(error.to_string().starts_with(&place), "{error}");
    assert!(error.to_string().contains(": `x` of kernel `copy` lives on"), "{error}");
}

/// The test is that it compiles.
fn unwinds<T: UnwindSafe + RefUnwindSafe>(_: &T) {}

#[test]
fn a_panic_in_a_call_can_be_caught() {
    let client = Client::cpu();
    let x = client.array(&[1i32, 2], &[2]).expect("it fits");
    unwinds(&(client, x.clone(), None::<Buffer>, None::<Tile<f32>>, None::<Scalar<f32>>, None::<In<f32>>));
    unwinds(&(None::<Out<f32>>, None::<Scratch<f32>>, None::<Prefetch<i32>>, None::<Error>));
    let caught = catch_unwind(|| copy(&x).and_then(|y| y.to_vec::<i32>()));
    assert_eq!(caught.expect("nothing panics").expect("it runs"), [1, 2]);
}
