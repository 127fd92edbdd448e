//! Functions of the host in traced functions.
use super::{array, numbers};
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, device_put};
use crate::{
    Arg, BoundedSize, PureCallback, VmapMethod, checkpoint, cond, custom_jvp, debug_nans, eval_shape, fori_loop, grad,
    jit, jvp, lower, make_jaxpr, pure_callback, scan, shard_map, vmap, while_loop,
};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A count of calls.
type Calls = Arc<AtomicUsize>;

/// The elements in reverse order and their number, by the host.
fn reversed(x: &Array, calls: &Calls) -> Result<(Array, Array)> {
    let calls = calls.clone();
    let count = x.sum(..).cast(DType::I32);
    pure_callback(
        move |x: &Array| {
            calls.fetch_add(1, Relaxed);
            let mut all = x.to_vec::<f32>()?;
            all.reverse();
            let n = all.len() as i32;
            Ok::<_, Error>((Client::cpu().array(&all, x.shape())?, Client::cpu().array(&[n], &[])?))
        },
        &(x.clone(), count),
        x,
    )
}

/// The squares, by the host.
fn squares(x: &Array) -> Result<Array> {
    let of = |x: &Array| {
        let all: Vec<f32> = x.to_vec::<f32>()?.iter().map(|x| x * x).collect();
        Client::cpu().array(&all, x.shape())
    };
    pure_callback(of, x, x)
}

#[test]
fn callbacks_run_at_each_call() {
    let calls = Calls::default();
    let own = calls.clone();
    let f = move |x: &Array| reversed(&(x * 2.0), &own).map(|(y, n)| (y + 1.0, n));
    let x = array(&[1.0, 2.0, 3.0], &[3]);
    let at_once = f(&x).expect("it runs");
    assert_eq!((numbers(&at_once.0), at_once.1.to_vec::<i32>().expect("a number")), (vec![7.0, 5.0, 3.0], vec![3]));
    let compiled = jit(f.clone());
    for _ in 0..3 {
        let (y, _) = compiled(&x).expect("it runs");
        assert_eq!(numbers(&y), [7.0, 5.0, 3.0]);
    }
    assert_eq!(calls.load(Relaxed), 4);
    let clients = [Some(Client::interpreter()), crate::lang::random::gpu()];
    for client in clients.into_iter().flatten() {
        let (y, n) = jit(f.clone())(&x.to_device(&client).expect("it is on the host")).expect("it runs");
        assert_eq!((numbers(&y), n.to_vec::<i32>().expect("a number")), (vec![7.0, 5.0, 3.0], vec![3]));
        assert_eq!(y.client(), &client);
    }
    // What nothing reads is not called.
    let before = calls.load(Relaxed);
    let own = calls.clone();
    let unread = jit(move |x: &Array| reversed(x, &own).map(|_| x + 1.0));
    assert_eq!(numbers(&unread(&x).expect("it runs")), [2.0, 3.0, 4.0]);
    assert_eq!(calls.load(Relaxed), before);
}

#[test]
fn callbacks_run_in_loops_and_branches() {
    let calls = Calls::default();
    let own = calls.clone();
    let x = array(&[1.0, 2.0, 3.0], &[3]);
    let looped = jit(move |x: &Array| {
        fori_loop(0..3, x, |i: &Array, x: &Array| reversed(&(x + i.cast(DType::F32)), &own).map(|(y, _)| y))
    });
    assert_eq!(numbers(&looped(&x).expect("it runs")), [6.0, 5.0, 4.0]);
    assert_eq!(calls.swap(0, Relaxed), 3);
    // Of elements that do not depend on what is carried, of what is the same in all steps, and of constants.
    let own = calls.clone();
    let scanned = jit(move |x: &Array, rows: &Array| {
        scan(x, rows, |sum: &Array, row: &Array| {
            let (fixed, _) = reversed(x, &own)?;
            let (constant, _) = reversed(&x.ones_like(), &own)?;
            Ok::<_, Error>((sum + reversed(row, &own)?.0 + fixed, constant * 2.0))
        })
    });
    let rows = array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let (sum, all) = scanned(&x, &rows).expect("it runs");
    assert_eq!((numbers(&sum), numbers(&all)), (vec![16.0, 13.0, 10.0], vec![2.0; 6]));
    assert!(calls.swap(0, Relaxed) <= 6);
    let own = calls.clone();
    let until = jit(move |x: &Array| {
        while_loop(x, |x: &Array| x.sum(..).lt(20.0), |x: &Array| reversed(&(x * 2.0), &own).map(|(y, _)| y))
    });
    assert_eq!(numbers(&until(&x).expect("it runs")), [4.0, 8.0, 12.0]);
    assert_eq!(calls.swap(0, Relaxed), 2);
    let own = calls.clone();
    let branched = jit(move |x: &Array| {
        cond(&x.sum(..).gt(0.0), x, |x: &Array| reversed(x, &own).map(|(y, _)| y), |x: &Array| x * 2.0)
    });
    assert_eq!(numbers(&branched(&x).expect("it runs")), [3.0, 2.0, 1.0]);
    assert_eq!(numbers(&branched(&-&x).expect("it runs")), [-2.0, -4.0, -6.0]);
    assert_eq!(calls.swap(0, Relaxed), 1, "the branch that is not taken calls nothing");
    let each = jit(vmap(|x: &Array| cond(&x.sum(..).gt(9.0), x, squares, |x: &Array| x * 2.0)));
    assert_eq!(numbers(&each(&rows).expect("it runs")), [2.0, 4.0, 6.0, 16.0, 25.0, 36.0]);
    // Their memory is not that of a donated argument, which something reads later.
    let donated = jit(|x: &Array| {
        let y = x + 1.0;
        squares(&y).map(|z| z + y)
    })
    .donate_argnums(Arg::<0>);
    assert_eq!(numbers(&donated(array(&[1.0, 2.0], &[2])).expect("it runs")), [6.0, 12.0]);
}

/// The shapes that a callback sees are JAX's.
#[test]
fn batches_are_called_by_their_method() {
    let shapes = Arc::new(Mutex::new(vec![]));
    let add = |method: VmapMethod| {
        let shapes = shapes.clone();
        move |x: &Array, y: &Array| {
            let shapes = shapes.clone();
            let sum = move |(x, y): &(Array, Array)| {
                shapes.lock().expect("nobody panicked").push((x.shape().to_vec(), y.shape().to_vec()));
                x + y
            };
            PureCallback::new().vmap_method(method).run(sum, x, &(x.clone(), y.clone()))
        }
    };
    let rows = array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[3, 2]);
    let others = array(&[10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0], &[4, 2]);
    let one = array(&[100.0, 200.0], &[2]);
    let (s, e, b) = (VmapMethod::Sequential, VmapMethod::ExpandDims, VmapMethod::BroadcastAll);
    let want = [101.0, 202.0, 103.0, 204.0, 105.0, 206.0];
    let want_nested: Vec<f32> = numbers(&others)
        .chunks(2)
        .flat_map(|y| [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|x| x + y[1 - x as usize % 2]))
        .collect();
    for (method, count, seen, nested_count, nested) in [
        (s, 3, ([2].to_vec(), [2].to_vec()), 12, (vec![2], vec![2])),
        (e, 1, ([3, 2].to_vec(), [1, 2].to_vec()), 1, (vec![1, 3, 2], vec![4, 1, 2])),
        (b, 1, ([3, 2].to_vec(), [3, 2].to_vec()), 1, (vec![4, 3, 2], vec![4, 3, 2])),
    ] {
        let mapped = vmap(add(method)).in_axes([Some(0), None]);
        assert_eq!(numbers(&mapped(&rows, &one).expect("it runs")), want);
        assert_eq!(std::mem::take(&mut *shapes.lock().expect("nobody panicked")), vec![seen; count], "{method}");
        let inner = Arc::new(vmap(add(method)).in_axes([Some(0), None]));
        let mapped = jit(vmap(move |x: &Array, y: &Array| inner(x, y)).in_axes([None, Some(0)]));
        let found = mapped(&rows, &others).expect("it runs");
        assert_eq!((found.shape(), numbers(&found)), (&[4, 3, 2][..], want_nested.clone()), "{method}");
        assert_eq!(
            std::mem::take(&mut *shapes.lock().expect("nobody panicked")),
            vec![nested; nested_count],
            "{method}"
        );
        // No example at all.
        let mapped = vmap(add(method)).in_axes([Some(0), None]);
        assert_eq!(mapped(&array(&[], &[0, 2]), &one).expect("it runs").shape(), [0, 2]);
        shapes.lock().expect("nobody panicked").clear();
    }
    let wrong = vmap(|x: &Array| {
        PureCallback::new().vmap_method(VmapMethod::ExpandDims).run(|x: &Array| x.sum(..), &x.index(0), x)
    });
    let error = wrong(&rows).expect_err("one sum for three examples").to_string();
    assert!(error.contains("the result of a callback of f32[3] is f32[]"), "{error}");
}

/// They may compute on arrays while the run that calls them waits: also in threads of the pool, by functions with
/// callbacks, and with arrays that they capture.
#[test]
fn callbacks_compute_on_arrays() {
    let x = array(&[0.5, 1.0, -1.0], &[3]);
    let w = array(&(0..1 << 16).map(|i| (i % 7) as f32).collect::<Vec<_>>(), &[1 << 8, 1 << 8]);
    let own = w.clone();
    let inner = Arc::new(jit(|x: &Array| squares(&(x * 1.0)).map(|y| y.cumsum(0))));
    let f = Arc::new(jit(move |x: &Array| {
        let (own, inner) = (own.clone(), inner.clone());
        let of = move |x: &Array| Ok::<_, Error>(inner(&x.sin())? + own.matmul(&own).sum(..) * 0.0);
        pure_callback(of, x, &(x * 2.0)).map(|y| y * 3.0)
    }));
    let want: Vec<f32> = numbers(&((&x * 2.0).sin() * (&x * 2.0).sin()).cumsum(0)).iter().map(|y| y * 3.0).collect();
    assert_eq!(numbers(&f(&x).expect("it runs")), want);
    rayon_core::scope(|scope| {
        for _ in 0..2 * rayon_core::current_num_threads() {
            scope.spawn(|_| assert_eq!(numbers(&f(&x).expect("it runs")), want));
        }
    });
}

#[test]
fn callbacks_take_and_give_all_kinds_of_arrays() {
    let client = Client::cpu();
    let x = array(&[1.0, 0.0, -2.0], &[3]);
    // Types of results by a shape alone; booleans, 16-bit floats, empty arrays.
    let like = (
        client.shape_dtype(&[3], DType::Bool).expect("a shape"),
        vec![
            client.shape_dtype(&[3], DType::Bf16).expect("a shape"),
            client.shape_dtype(&[0, 2], DType::U8).expect("a shape"),
        ],
    );
    let f = move |x: &Array| {
        let of = |(x, is, half, none): &(Array, Array, Array, Array)| {
            assert_eq!((is.dtype(), half.dtype(), none.shape()), (DType::Bool, DType::Bf16, &[2, 0][..]));
            (x.gt(0.0), vec![half * 2.0, none.t().cast(DType::U8)])
        };
        pure_callback(of, &like, &(x.clone(), x.gt(1.0), x.cast(DType::Bf16), x.index(..0).broadcast_to(&[2, 0])))
    };
    for found in [f(&x), jit(f.clone())(&x)] {
        let (is, all) = found.expect("it runs");
        assert_eq!(is.to_vec::<bool>().expect("booleans"), [true, false, false]);
        assert_eq!(numbers(&all[0].cast(DType::F32)), [2.0, 0.0, -4.0]);
        assert_eq!((all[1].dtype(), all[1].shape()), (DType::U8, &[0, 2][..]));
    }
    let shapes = eval_shape(squares)(&x).expect("it has a type");
    assert_eq!(shapes.shape(), [3]);
    // Without arguments; without results.
    let constant = |_: &Array| pure_callback(|(): &()| array(&[4.0], &[]), &array(&[0.0], &[]), &());
    assert_eq!(numbers(&constant(&x).expect("it runs")), [4.0]);
    let calls = Calls::default();
    let own = calls.clone();
    let f = jit(move |x: &Array| {
        let own = own.clone();
        let count = move |_: &Array| {
            own.fetch_add(1, Relaxed);
        };
        pure_callback(count, &(), x)?;
        constant(x).map(|y| y + x)
    });
    assert_eq!(numbers(&f(&x).expect("it runs")), [5.0, 4.0, 2.0]);
    assert_eq!(calls.load(Relaxed), 0, "nothing reads what it returns");
}

#[test]
fn callbacks_have_stated_derivatives_alone() {
    let x = array(&[1.0, -2.0], &[2]);
    let sum = |x: &Array| squares(x).map(|y| y.sum(..));
    let first = |x: &Array| {
        let place = pure_callback(|x: &Array| x.argmax(0), &Client::cpu().shape_dtype(&[], DType::I32)?, x)?;
        Ok::<_, Error>(x.take(&place, 0))
    };
    // Integers have no tangents, so those of a callback are constants.
    assert_eq!(numbers(&grad(first)(&x).expect("it has a gradient")), [1.0, 0.0]);
    let (_, tangent) = jvp(first)(&(x.clone(),), &(x.clone(),)).expect("it has a tangent");
    assert_eq!(numbers(&tangent), [1.0]);
    for error in [
        grad(sum)(&x).expect_err("it states none"),
        jvp(sum)(&(x.clone(),), &(x.clone(),)).expect_err("it states none"),
        jit(grad(sum))(&x).expect_err("it states none"),
    ] {
        let error = error.to_string();
        assert!(error.contains("a derivative of a `pure_callback`") && error.contains(file!()), "{error}");
    }
    let stated =
        Arc::new(custom_jvp(squares, |(x,): &(Array,), (dx,): &(Array,)| squares(x).map(|y| (y, x * 2.0 * dx))));
    let own = stated.clone();
    let loss = move |x: &Array| own(x).map(|y| y.sum(..));
    assert_eq!(numbers(&grad(loss.clone())(&x).expect("it has a gradient")), [2.0, -4.0]);
    assert_eq!(numbers(&jit(vmap(grad(loss.clone())))(&x.reshape(&[2, 1])).expect("a batch")), [2.0, -4.0]);
    assert_eq!(numbers(&jit(grad(checkpoint(loss)))(&x).expect("it has a gradient")), [2.0, -4.0]);
    let looped = move |x: &Array| fori_loop(0..2, x, |_: &Array, x: &Array| stated(x)).map(|y| y.sum(..));
    assert_eq!(numbers(&jit(grad(looped))(&x).expect("it has a gradient")), [4.0, -32.0]);
    // A constant for derivatives.
    let fixed = |x: &Array| squares(&x.stop_gradient()).map(|y| (y * x).sum(..));
    assert_eq!(numbers(&grad(fixed)(&x).expect("it has a gradient")), [1.0, 4.0]);
    let (_, tangent) = jvp(fixed)(&(x.clone(),), &(x.ones_like(),)).expect("it has a tangent");
    assert_eq!(numbers(&tangent), [5.0]);
}

/// A callback gets whole arrays, once for all devices; in the function of a block it gets the block.
#[test]
fn callbacks_run_on_meshes() {
    let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 2)]).expect("a mesh"));
    let x = array(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], &[4, 2]);
    let rows = device_put(&x, &NamedSharding::new(&mesh, P(("data", "model")))).expect("it is placed");
    let calls = Calls::default();
    let own = calls.clone();
    let f = move |x: &Array| reversed(&(x + 1.0), &own).map(|(y, n)| (y * 2.0, n));
    let want: Vec<f32> = (1..=8).rev().map(|x| 2.0 * (x as f32 + 1.0)).collect();
    let compiled = jit(f.clone());
    for is_compiled in [false, true] {
        let (y, n) = if is_compiled { compiled(&rows) } else { f(&rows) }.expect("it runs");
        assert_eq!((numbers(&y), n.to_vec::<i32>().expect("a number")), (want.clone(), vec![8]));
        assert_eq!(calls.swap(0, Relaxed), 1);
    }
    let own = calls.clone();
    let blocks = move |x: &Array| reversed(x, &own).map(|(y, _)| y);
    let blocks = jit(shard_map(blocks, &mesh, [P("data")], [P("data")]));
    assert_eq!(numbers(&blocks(&x).expect("it runs")), [4.0, 3.0, 2.0, 1.0, 8.0, 7.0, 6.0, 5.0]);
    assert_eq!(calls.swap(0, Relaxed), 2, "devices along the other axis have the same block");
    let failing = jit(shard_map(
        |x: &Array| pure_callback(|x: &Array| if numbers(x)[0] > 1.0 { Err(wrong_file()) } else { Ok(x + 1.0) }, x, x),
        &mesh,
        [P("data")],
        [P("data")],
    ));
    let error = failing(&x).and_then(|y| y.to_vec::<f32>()).expect_err("the second device fails").to_string();
    assert!(error.contains("a callback failed") && error.contains("no such file"), "{error}");
}

fn wrong_file() -> Error {
    Error::Value { message: "no such file".into() }
}

#[test]
fn mistakes_of_callbacks_are_named() {
    let x = array(&[1.0, -2.0], &[2]);
    type Wrong = fn(&Array) -> Result<Array>;
    let all: [(&str, Wrong); 6] = [
        ("the result of a callback of f32[2] is f32[]", |x| pure_callback(|x: &Array| x.sum(..), x, x)),
        ("the result of a callback of f32[2] is i32[2]", |x| pure_callback(|x: &Array| x.cast(DType::I32), x, x)),
        ("the result of a callback of (_, _) is", |x| {
            let two = vec![x.clone(), x.clone()];
            pure_callback(|x: &Array| vec![x.clone()], &two, x).map(|all| all[0].clone())
        }),
        ("a callback failed: no such file", |x| pure_callback(|_: &Array| Err::<Array, _>(wrong_file()), x, x)),
        ("a callback failed: it panicked: on purpose", |x| {
            pure_callback(|x: &Array| if x.shape() == [2] { panic!("on purpose") } else { x.clone() }, x, x)
        }),
        // The mistake of an operation keeps its line.
        ("callbacks.rs:", |x| pure_callback(|x: &Array| x.matmul(&x.index(..1)), x, x)),
    ];
    for (i, (want, f)) in all.into_iter().enumerate() {
        for error in
            [f(&x).err(), jit(f)(&x).err(), jit(f)(&x.to_device(&Client::interpreter()).expect("it fits")).err()]
        {
            let error = error.unwrap_or_else(|| panic!("{want} in call {i}")).to_string();
            let is_named = if want.contains("(_, _)") {
                error.contains("the result of a callback of")
            } else {
                error.contains(want)
            };
            assert!(is_named && error.contains("callbacks.rs:"), "{want}: {error}");
        }
    }
    // A failed run leaves nothing behind.
    let fails = Arc::new(AtomicUsize::new(1));
    let own = fails.clone();
    let sometimes = jit(move |x: &Array| {
        let own = own.clone();
        let of = move |x: &Array| if own.load(Relaxed) == 1 { Err(wrong_file()) } else { Ok(x + 1.0) };
        pure_callback(of, x, &(x * 2.0)).map(|y| y.cumsum(0))
    });
    assert!(sometimes(&x).is_err());
    fails.store(0, Relaxed);
    assert_eq!(numbers(&sometimes(&x).expect("it runs")), [3.0, 0.0]);
    // An array of the trace is not known when the function runs.
    let captured = jit(|x: &Array| {
        let own = x * 2.0;
        pure_callback(move |x: &Array| x + &own, x, x)
    });
    let error = captured(&x).expect_err("it is of the trace").to_string();
    assert!(error.contains("a callback failed") && error.contains("another thread"), "{error}");
    let two = |x: &Array, y: &Array| pure_callback(|(x, _): &(Array, Array)| x.clone(), x, &(x.clone(), y.clone()));
    let other = x.to_device(&Client::interpreter()).expect("it fits");
    assert_eq!(two(&x, &other).expect_err("two clients").code(), "foreign-client");
}

#[test]
fn texts_name_callbacks() {
    let x = array(&[1.0, -2.0], &[2]);
    let jaxpr = make_jaxpr(squares)(&x).expect("a text");
    assert!(jaxpr.contains("pure_callback[") && jaxpr.contains("vmap_method=sequential"), "{jaxpr}");
    let lowered = lower(squares)(&x).expect("it is traced");
    assert!(
        lowered.to_stablehlo().contains("call_target_name = \"pallas.pure_callback\""),
        "{}",
        lowered.to_stablehlo()
    );
    assert_eq!(numbers(&lowered.compile().expect("it compiles")(&x).expect("it runs")), [1.0, 4.0]);
    let exported = lower(squares)(&x).and_then(|lowered| lowered.export());
    assert!(exported.expect_err("it is the process's").to_string().contains("a function with a `pure_callback`"));
}

/// Each length has a callback of its own.
#[test]
fn callbacks_run_up_to_a_bound() {
    let f = jit(|x: &Array| squares(x).map(|y| y.sum(..))).bounded([BoundedSize::new("n", 8).axis("0", 0)]);
    for n in [8, 3, 5, 3] {
        let x = array(&vec![2.0; n], &[n]);
        assert_eq!(numbers(&f(&x).expect("it runs")), [4.0 * n as f32]);
    }
}

/// The search for NaN runs one operation at a time.
#[test]
fn a_callback_that_makes_nan_is_named() {
    let _guard = debug_nans();
    let f = jit(|x: &Array| pure_callback(|x: &Array| array(&[f32::NAN], x.shape()), x, &(x + 1.0)).map(|y| y * 2.0));
    let error = f(&array(&[1.0], &[1])).expect_err("it makes NaN");
    assert!(error.code() == "nan" && error.to_string().contains("callbacks.rs:"), "{error}");
    assert_eq!(numbers(&jit(squares)(&array(&[3.0], &[1])).expect("it runs")), [9.0]);
}
