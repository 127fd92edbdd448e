//! Calls that go wrong, and calls of many threads: the next call works.
use super::{array, close, numbers};
use crate::prelude::*;
use crate::tree::Static;
use crate::{Arg, BoundedSize, cond, fori_loop, grad, jit, scan, vmap};
use pallas_allocations::allocations;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

#[test]
fn a_panic_leaves_the_traces_around_it_usable() {
    let x = array(&[1.0, 2.0], &[2]);
    let panics = |x: &Array| -> Array { panic!("{} of them", x.len()) };
    // Inside of a function that goes on: in another function, a transformation, a loop and a branch.
    let f = jit(move |x: &Array| {
        let calls: [&dyn Fn() -> bool; 5] = [
            &|| catch_unwind(AssertUnwindSafe(|| jit(panics)(x))).is_err(),
            &|| catch_unwind(AssertUnwindSafe(|| grad(panics)(x))).is_err(),
            &|| catch_unwind(AssertUnwindSafe(|| vmap(panics)(x))).is_err(),
            &|| catch_unwind(AssertUnwindSafe(|| fori_loop(0..3, x, |_, x: &Array| panics(x)))).is_err(),
            &|| {
                let branches = || cond(&x.sum(..).gt(0.0), x, panics, |x: &Array| x + 1.0);
                catch_unwind(AssertUnwindSafe(branches)).is_err()
            },
        ];
        let mut y = x * 2.0;
        for call in calls {
            assert!(call());
            y = y + x;
        }
        y
    });
    close(&f(&x).expect("it runs"), &[7.0, 14.0]);
    assert!(!super::super::is_tracing());
}

#[test]
fn many_threads_compile_and_call_one_function() {
    let f = jit(|x: &(Array, Vec<Array>), n: &Static<usize>| {
        x.1.iter().fold(&x.0 * n.0 as f32, |sum, y| sum + y.sum(..)).tanh()
    });
    let step = jit(|x: &Array, by: &Array| x * 0.5 + by).donate_argnums(Arg::<0>);
    std::thread::scope(|scope| {
        for i in 0..32usize {
            let (f, step) = (&f, &step);
            scope.spawn(move || {
                let mut own = array(&vec![i as f32; 64], &[64]);
                for k in 0..20 {
                    let n = 1 + (i + k) % 5;
                    let rest = vec![array(&[0.25], &[1]); (i * k) % 3];
                    let extra = 0.25 * rest.len() as f64;
                    let y = f(&(array(&vec![0.125; n], &[n]), rest), &Static(n)).expect("it runs");
                    close(&y, &vec![(0.125 * n as f64 + extra).tanh(); n]);
                    own = step(own, &array(&[1.0], &[1])).expect("it runs");
                }
                let want = (i as f64 - 2.0) * 0.5f64.powi(20) + 2.0;
                close(&own, &vec![want; 64]);
            });
        }
    });
}

#[test]
fn arrays_of_two_clients_are_refused_by_name() {
    let x = array(&[1.0, 2.0], &[2]);
    let away = x.to_device(&Client::interpreter()).expect("it has room");
    let captured = away.clone();
    let results = [
        jit(|x: &(Array, Array)| &x.0 + &x.1)(&(x.clone(), away.clone())),
        jit(move |x: &Array| x + &captured)(&x),
        grad(|x: &Array, y: &Array| (x * y).sum(..))(&x, &away),
        vmap(|x: &Array, y: &Array| x * y)(&x, &away),
        jit(|x: &Array, y: &Array| x * y).donate_argnums(Arg::<0>)(x.clone(), &away),
        scan(&x, &away, |x: &Array, y: &Array| (x * y, ())).map(|(x, ())| x),
    ];
    for (i, result) in results.into_iter().enumerate() {
        let error = result.expect_err("two clients");
        assert_eq!(error.code(), "foreign-client", "{i}: {error}");
        assert!(error.to_string().contains("interpret"), "{i}: {error}");
    }
    close(&jit(|x: &Array| x * 2.0)(&x).expect("it runs"), &[2.0, 4.0]);
}

#[test]
fn leaked_arrays_name_the_line_that_uses_them() {
    let x = array(&[1.0, 2.0], &[2]);
    let kept = std::sync::Arc::new(std::sync::Mutex::new(vec![]));
    let slot = kept.clone();
    let f = grad(move |x: &Array| {
        let mut kept = slot.lock().expect("no panic");
        kept.push(x * 2.0);
        let (_, y) = scan(&x.sum(..), x, |c: &Array, x: &Array| {
            kept.push(c + x);
            (c.clone(), x.clone())
        })?;
        Ok::<_, Error>(y.sum(..))
    });
    f(&x).expect("it runs");
    let leaked = std::mem::take(&mut *kept.lock().expect("no panic"));
    assert_eq!(leaked.len(), 2);
    for x in &leaked {
        let line = line!() + 1;
        let error = (x + 1.0).check().map(drop).expect_err("its function is over").to_string();
        assert!(error.contains("outlived the function") && error.contains(&format!("{}:{line}", file!())), "{error}");
        let line = line!() + 1;
        let error = (array(&[1.0], &[]) - x).check().map(drop).expect_err("its function is over").to_string();
        assert!(error.contains("outlived the function") && error.contains(&format!("{}:{line}", file!())), "{error}");
        let again = x.clone();
        let line = line!() + 1;
        let error = jit(move |y: &Array| y * &again)(&array(&[1.0], &[])).expect_err("it is over").to_string();
        assert!(error.contains("outlived the function") && error.contains(&format!("{}:{line}", file!())), "{error}");
    }
}

/// Clients that nobody uses any more are freed with their memory, whatever was compiled for them: by operations that
/// run at once, by functions that live on, and by functions of operations that live as long as the process.
#[test]
fn clients_that_nobody_uses_are_freed() {
    for kind in [Client::cpu(), Client::interpreter()] {
        let step = jit(|x: &Array| {
            let scale = x.client().array(&[2.0f32], &[]).expect("it fits");
            let (last, _) = scan(x, x, |c: &Array, x: &Array| (c * x, ()))?;
            Ok::<_, Error>((last * scale).tanh())
        });
        let bounded = jit(|x: &Array| x.sum(0)).bounded([BoundedSize::new("n", 8).axis("0", 0)]);
        let mut seen = vec![];
        for turn in 0..6 {
            let client = kind.isolated().expect("the host stays");
            seen.push(Arc::downgrade(client.runtime()));
            let x = client.array(&[0.5f32; 16], &[4, 4]).expect("it fits");
            let y = (&x + 1.0).matmul(&x).lgamma();
            // Results belong to users: they keep the client when it is all they have.
            drop((client, x));
            let z = step(&y).expect("it runs");
            drop(y);
            let z = bounded(&(z * 2.0)).expect("it runs");
            assert!(z.client().is_in_use() && numbers(&z).iter().all(|x| x.is_finite()), "turn {turn}");
        }
        let alive = seen.iter().filter(|runtime| runtime.upgrade().is_some()).count();
        assert!(alive <= 1, "{alive} of {} clients", seen.len());
        assert!(seen[5].upgrade().is_some() || alive == 0);
    }
}

/// A limit that is reached at any point of a program: an error, no memory kept, and the next call works.
#[test]
fn a_memory_limit_inside_of_a_program_leaks_nothing() {
    let client = Client::cpu().isolated().expect("the host stays");
    let body = |x: &Array| {
        let y = x.matmul(x).tanh();
        let (last, all) = scan(&y, &y.sum(1), |c: &Array, s: &Array| ((c + s).matmul(x).tanh(), c.sum(0)))?;
        Ok::<_, Error>((last.matmul(&y), all))
    };
    let f = jit(body);
    let x = client.array(&vec![0.01f32; 64 * 64], &[64, 64]).expect("it fits");
    let want = f(&x).map(|(y, all)| (numbers(&y), numbers(&all))).expect("it runs");
    let base = client.memory().in_use;
    let mut refused = 0;
    for over in (0..).step_by(4096) {
        client.set_memory_limit(base + over);
        match f(&x) {
            Ok((y, all)) => {
                assert_eq!((numbers(&y), numbers(&all)), want);
                break;
            }
            Err(error) => {
                assert_eq!(error.code(), "memory", "{error}");
                assert!(client.memory().in_use <= base, "{} of {base}", client.memory().in_use);
                refused += 1;
            }
        }
        // Without the limit the same function works at once.
        client.set_memory_limit(u64::MAX);
        let (y, all) = f(&x).expect("it runs");
        assert_eq!((numbers(&y), numbers(&all)), want);
        drop((y, all));
        assert_eq!(client.memory().in_use, base);
    }
    assert!(refused > 3, "{refused}");
    client.set_memory_limit(u64::MAX);
}

/// Elements are not known while a function is traced: reading them, and branching on them, names the user's line.
#[test]
fn reading_a_traced_array_names_the_line() {
    let x = array(&[1.0, 2.0], &[2]);
    let said = |result: Result<Array, Error>, line: u32| {
        let error = result.expect_err("it has no elements").to_string();
        assert!(
            error.contains("f32[2] that is being traced") && error.contains(&format!("{}:{line}", file!())),
            "{error}"
        );
    };
    let line = line!() + 1;
    let branches = |x: &Array| Ok::<_, Error>(if x.to_vec::<f32>()?[0] > 0.0 { x * 2.0 } else { x.clone() });
    said(jit(branches)(&x), line);
    said(vmap(branches)(&array(&[1.0; 4], &[2, 2])), line);
    said(grad(move |x: &Array| branches(x).map(|y| y.sum(..)))(&x), line);
    said(fori_loop(0..2, &x, |_, x: &Array| branches(x)), line);
    let line = line!() + 1;
    let moves = |x: &Array| x.to_device(&Client::interpreter());
    said(jit(moves)(&x), line);
    // Branches with other trees, and a carried value of another type, by the path of its leaf.
    let pairs = |x: &Array| (x.clone(), vec![x.clone()]);
    let line = line!() + 1;
    let trees = cond(&x.sum(..).gt(0.0), &x, |x: &Array| vec![x.clone()], |x: &Array| vec![x.clone(), x.clone()]);
    let error = trees.map(drop).expect_err("two trees").to_string();
    assert!(
        error.contains("the function for false returns [*, *], the function for true [*]")
            && error.contains(&format!("{}:{line}", file!())),
        "{error}"
    );
    let step = |_: &Array, (x, y): &(Array, Vec<Array>)| (x.clone(), vec![y[0].cast(DType::I32)]);
    let (line, carried) = (line!(), fori_loop(0..2, &pairs(&x), step));
    let error = carried.map(drop).expect_err("another type").to_string();
    let wanted = "a step takes `1[0]` of f32[2] and returns i32[2]";
    assert!(error.contains(wanted) && error.contains(&format!("{}:{line}", file!())), "{error}");
}

/// Another structure is another trace; a step of a loop that returns one is refused by the paths of its leaves.
#[test]
fn trees_that_change_between_calls_are_traced_again() {
    let traces = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let inner = traces.clone();
    let f = jit(move |x: &(Vec<Array>, Option<Array>)| {
        inner.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let sum = x.0.iter().fold(&x.0[0] * 0.0, |sum, y| sum + y);
        (x.0.clone(), x.1.as_ref().map_or(sum.clone(), |y| sum * y))
    });
    let x = array(&[1.0, 2.0], &[2]);
    for round in 0..3 {
        for n in 1..4 {
            for extra in [None, Some(x.clone())] {
                let by = if extra.is_some() { [1.0, 2.0] } else { [1.0, 1.0] };
                let (same, sum) = f(&(vec![x.clone(); n], extra)).expect("it runs");
                assert_eq!(same.len(), n);
                close(&sum, &[n as f64 * by[0], 2.0 * n as f64 * by[1]]);
            }
        }
        assert_eq!(traces.load(std::sync::atomic::Ordering::Relaxed), 6, "round {round}");
    }
    let grows = |c: &Vec<Array>, _: &Array| ([&c[..], &c[..1]].concat(), ());
    let line = line!() + 1;
    let grown = scan(&vec![x.sum(..)], &x, grows);
    let error = grown.map(drop).expect_err("a longer list").to_string();
    assert!(error.contains(&format!("{}:{line}", file!())) && error.contains("[*, *]"), "{error}");
}

/// A call allocates lists of its arguments and what it returns; what the program has is of the compiled function.
#[test]
fn warm_calls_allocate_no_more_for_long_programs() {
    let w = || (array(&[0.5; 64], &[8, 8]), array(&[1.0; 8], &[8]));
    let (w, x, i) = (w(), array(&[0.25; 64], &[8, 8]), Client::cpu().array(&[0i32], &[]).expect("it fits"));
    type Layer = fn(&Array, &(Array, Array), &Array) -> Array;
    let small: Layer = |x, w, _| (x.matmul(&w.0) + &w.1).tanh();
    // The same with fifty kernels, and a loop: what a call allocates does not depend on the program.
    let large: Layer = |x, w, i| {
        let y = (0..25).fold(x.clone(), |y, _| (y.matmul(&w.0) + &w.1).tanh().t());
        let w = w.clone();
        let step = move |_: &Array, y: &Array| (y.matmul(&w.0) + &w.1).tanh();
        fori_loop(0..5, &(y + i.cast(DType::F32)), step).expect("it is traced")
    };
    let counts = [small, large].map(|f| {
        let f = jit(f);
        let call = || {
            let before = allocations();
            let y = f(&x, &w, &i).expect("it runs");
            let allocated = allocations() - before;
            assert_eq!(numbers(&y).len(), 64);
            allocated
        };
        (0..8).map(|_| call()).collect::<Vec<_>>()[4..].iter().copied().min().expect("four calls")
    });
    assert!(counts.iter().all(|&n| n <= WARM) || cfg!(guarded), "{counts:?}");
}

/// Most allocations of a call with three trees of four arrays: lists of the arguments, and the result.
const WARM: usize = 16;

/// A program on a lost device is refused, and a client that is made anew runs it.
#[cfg(feature = "gpu")]
#[test]
fn a_lost_device_refuses_programs() {
    let Some(client) = crate::lang::random::gpu().and_then(|gpu| gpu.isolated().ok()) else { return };
    let f = jit(|x: &Array| (x.matmul(x) + 1.0).tanh().sum(0));
    let new = |client: &Client| client.array(&[0.5f32; 16], &[4, 4]).expect("it fits");
    let x = new(&client);
    let want = numbers(&f(&x).expect("it runs"));
    client.wgpu().expect("a GPU client").0.destroy();
    // Destroying is noticed when the device is polled next.
    let _ = client.block_until_ready();
    for _ in 0..2 {
        let error = f(&x).and_then(|y| y.to_vec::<f32>()).expect_err("it is lost");
        assert_eq!(error.code(), "device-lost", "{error}");
    }
    let other = client.isolated().expect("the adapter is still there");
    assert_eq!(numbers(&f(&new(&other)).expect("it runs")), want);
}
