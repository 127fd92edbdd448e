//! Functions of arrays against numbers that are known otherwise; `cache` has the calls of jitted functions, `ahead`
//! functions that are compiled before, `launches` how many launches they take and `memory` how many bytes, `hostile`
//! calls that go wrong, `long` long functions and deep trees, `control` loops and branches, `scans` other kinds of
//! scans, `stepped` those that are one kernel, `kernels` kernels as operations, `tangents_of_kernels` their forward
//! mode, `plain` other operations in their place, `forward`, `derivatives` and `vmap` the transformations, `jaxpr` and
//! `stablehlo` the texts of functions, `prints` what they show, `reductions` long ones in stages, `panels` products of
//! which a GPU sums a part at a time, `batches` what mapped functions take, `trees` batches and Jacobians leaf by leaf,
//! `opposites` moves that undo each other, `options` those of transformations, `transposes` those of linear functions,
//! `roots` implicit derivatives, `rows` sums of rows at positions, `callbacks` functions of the host in traced ones,
//! `programs` makes programs of graphs, `planning` costs on meshes and pages about them; `random` has laws of random
//! graphs, `transformed` those of their derivatives and batches; `watched` what looks at functions.
mod ahead;
mod audit;
mod batches;
mod batches_stated;
mod bounded;
mod cache;
mod callbacks;
mod calls;
mod control;
mod decided;
mod derivatives;
mod empties;
mod forward;
mod hostile;
mod jaxpr;
mod kernels;
mod launches;
mod long;
mod marks;
mod memory;
mod narrow;
mod not_taken;
mod opposites;
mod options;
mod panels;
mod plain;
mod planning;
mod prints;
pub(in crate::jit) mod programs;
mod random;
mod reductions;
mod roots;
mod rows;
mod scans;
mod shard_map;
mod sharded;
mod sharded_kernels;
pub(super) mod sizes;
mod sorts;
mod stablehlo;
mod stated;
mod stepped;
mod steps;
mod tangents_of_kernels;
mod transformed;
mod transposes;
mod trees;
mod vmap;
mod watched;

use crate::prelude::*;
use crate::{grad, jit, keep, value_and_grad};

fn array(x: &[f32], shape: &[usize]) -> Array {
    Client::cpu().array(x, shape).expect("it fits")
}
fn numbers(x: &Array) -> Vec<f32> {
    x.to_vec().unwrap_or_else(|e| panic!("{e}"))
}
#[track_caller]
fn close(x: &Array, want: &[f64]) {
    let x = numbers(x);
    assert_eq!(x.len(), want.len());
    let is_close = |(x, y): (&f32, &f64)| f64::from(*x) == *y || (f64::from(*x) - y).abs() <= 2e-5 * (1.0 + y.abs());
    assert!(x.iter().zip(want).all(is_close), "{x:?}\n{want:?}");
}

#[test]
fn a_layer_is_the_same_traced_and_at_once() {
    let f = |x: &Array, w: &Array| (x.matmul(w) + 1.0).tanh();
    let (x, w) =
        (array(&[1.0, 2.0, -1.0, 0.5, 0.25, 3.0], &[2, 3]), array(&[0.5, -0.5, 0.25, 0.5, 1.0, -1.0], &[3, 2]));
    let want: Vec<f64> = vec![
        (0.5f64 + 0.5 - 1.0 + 1.0).tanh(),
        (-0.5f64 + 1.0 + 1.0 + 1.0).tanh(),
        (0.25f64 + 0.0625 + 3.0 + 1.0).tanh(),
        (-0.25f64 + 0.125 - 3.0 + 1.0).tanh(),
    ];
    close(&f(&x, &w), &want);
    close(&jit(f)(&x, &w).expect("it runs"), &want);
}

#[test]
fn gradients_nest() {
    let third = grad(|x: &Array| grad(|x: &Array| grad(|x: &Array| x.sin())(x))(x));
    close(&third(&array(&[0.7], &[])).expect("it runs"), &[-(0.7f64.cos())]);
}

/// Central differences of a function of one array.
fn differences(f: impl Fn(&Array) -> Array, x: &[f32], shape: &[usize]) -> Vec<f64> {
    let at = |i: usize, h: f32| {
        let mut x = x.to_vec();
        x[i] += h;
        f64::from(numbers(&f(&array(&x, shape)))[0])
    };
    (0..x.len()).map(|i| (at(i, 1e-2) - at(i, -1e-2)) / 2e-2).collect()
}

#[test]
fn gradients_are_differences() {
    type F = fn(&Array) -> Array;
    let x: Vec<f32> = (0..12).map(|i| ((i * 37 % 23) as f32 - 11.0) / 12.0).collect();
    let cases: [(&str, F); 12] = [
        ("softmax", |x| (x.softmax(-1) * x).sum(..)),
        ("log_softmax", |x| x.log_softmax(0).max(-1).sum(..)),
        ("product", |x| x.matmul(&x.t()).tanh().sum(..)),
        ("row by matrix", |x| x.sum(0).matmul(&x.t()).sum(..)),
        ("variance", |x| (x.var(-1) * 3.0).sum(..)),
        ("layer norm", |x| ((x - x.mean(keep(-1))) / (x.var(keep(-1)) + 1e-5).sqrt() * x).sum(..)),
        ("maximum", |x| x.max(keep(0)).sum(..) + x.min(1).prod(..)),
        ("select", |x| select_of(x).sum(..)),
        ("powers", |x| (x * x * x / (x.abs() + 1.0)).sum(..)),
        ("broadcast", |x| (x.sum(1).expand_dims(1) * x).sum(..)),
        ("stretched", |x| x.sum(0).broadcast_to(&[2, 3, 4]).exp().sum(..)),
        ("transposed", |x| (x.t().matmul(x).transpose(&[1, 0]) * 0.5).sum(..)),
    ];
    for (name, f) in cases {
        let want = differences(f, &x, &[3, 4]);
        let found = grad(f)(&array(&x, &[3, 4])).unwrap_or_else(|e| panic!("{name}: {e}"));
        let compiled = jit(grad(f))(&array(&x, &[3, 4])).unwrap_or_else(|e| panic!("{name}: {e}"));
        for (i, want) in want.iter().enumerate() {
            for x in [numbers(&found)[i], numbers(&compiled)[i]] {
                assert!((f64::from(x) - want).abs() <= 2e-3 * (1.0 + want.abs()), "{name} {i}: {x} {want}");
            }
        }
    }
}

fn select_of(x: &Array) -> Array {
    crate::ops::select(&x.gt(0.1), x * 2.0, 0.5)
}

#[test]
fn a_network_learns() {
    let loss = |w: &(Array, Array), x: &Array, y: &Array| {
        let h = (x.matmul(&w.0)).relu();
        let z = h.matmul(&w.1).log_softmax(-1);
        (z * y).sum(-1).mean(..) * -1.0
    };
    let step = jit(move |w: &(Array, Array), x: &Array, y: &Array| {
        let (value, g) = value_and_grad(loss)(w, x, y)?;
        Ok::<_, Error>(((&w.0 - g.0 * 0.5, &w.1 - g.1 * 0.5), value))
    });
    let random = |n: usize, k: u32| -> Vec<f32> {
        (0..n as u32)
            .map(|i| ((i.wrapping_mul(2654435761).wrapping_add(k * 97) >> 7) % 1000) as f32 / 1000.0 - 0.5)
            .collect()
    };
    let mut w = (array(&random(20 * 16, 1), &[20, 16]), array(&random(16 * 4, 9), &[16, 4]));
    let x = array(&random(64 * 20, 5), &[64, 20]);
    let y: Vec<f32> = (0..64 * 4).map(|i| f32::from(u8::from(i / 4 % 4 == i % 4))).collect();
    let y = array(&y, &[64, 4]);
    let (before, mut losses) = (crate::counters(), vec![]);
    for _ in 0..60 {
        let (new, value) = step(&w, &x, &y).unwrap_or_else(|e| panic!("{e}"));
        w = new;
        losses.push(numbers(&value)[0]);
    }
    let after = crate::counters();
    assert!(losses[59] < losses[0] * 0.8, "{losses:?}");
    assert!(after.jit_traces - before.jit_traces >= 2);
}

/// Products of 16-bit floats are summed in f32, forwards and backwards.
#[test]
fn gradients_of_narrow_products() {
    let client = Client::cpu();
    let (a, b) = ([1.0, 2.0, -3.0, 0.5].map(bf16::from_f32), [0.25, 1.5, -1.0, 2.0].map(bf16::from_f32));
    let (a, b) = (client.array(&a, &[2, 2]).expect("it fits"), client.array(&b, &[2, 2]).expect("it fits"));
    let loss = |a: &Array, b: &Array| (a.matmul(b).cast(DType::F32)).sum(..);
    let gradient = jit(grad(loss))(&a, &b).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(gradient.dtype(), DType::Bf16);
    close(&gradient.cast(DType::F32), &[1.75, 1.0, 1.75, 1.0]);
}

#[test]
fn arrays_that_no_kernel_takes_are_refused() {
    let x = array(&[1.0], &[1; 9]);
    assert!(x.sum(..).to_vec::<f32>().expect_err("nine axes").to_string().contains("has 9 axes"));
    let wide = array(&[1.0], &[1, 1]).broadcast_to(&[1 << 20, 1 << 20]);
    assert!(wide.to_vec::<f32>().expect_err("2^40 elements").to_string().contains("more than 2^31 - 1 elements"));
}

/// Arrays that no device has are sharded: the limit of kernels belongs to what a device runs.
#[test]
fn arrays_that_no_kernel_takes_are_planned_for_many_devices() {
    use crate::sharding::{Link, Mesh, NamedSharding, P, Topology};
    let mesh = std::sync::Arc::new(Mesh::new(&[("data", 256)]).expect("a mesh"));
    let rows = NamedSharding::new(&mesh, P("data"));
    let f = move |x: &Array| (crate::with_sharding_constraint(x, &rows) * 2.0).sum(1);
    let x = Client::cpu().shape_dtype(&[1 << 20, 1 << 16], DType::Bf16).expect("a shape");
    let machine = Topology::new(200e12, 800e9).link("data", Link::switch(12e9, 5e-6));
    let parts = crate::partitioned(f.clone())(&x).unwrap_or_else(|e| panic!("{e}"));
    parts.plan(&machine).unwrap_or_else(|e| panic!("{e}"));
    // A block is 2^28 elements of two bytes.
    assert_eq!(parts.memory_analysis().argument_bytes, 1 << 29);
    let refused = crate::lower(|x: &Array| x.sum(1))(&x).and_then(|f| f.compile().map(drop));
    let refused = refused.expect_err("one device").to_string();
    assert!(refused.contains("more than 2^31 - 1 elements"), "{refused}");
}

/// Reductions of all of a long array, and of its longer axis.
#[test]
fn long_axes_are_summed() {
    let n = 3_000_017;
    let x = Client::cpu().full(&[n], 1i32).expect("it fits");
    assert_eq!(x.sum(..).to_vec::<i32>().expect("it runs"), [n as i32]);
    let x = Client::cpu().full(&[400_000, 3], 1.0f32).expect("it fits");
    close(&x.sum(0), &[400_000.0; 3]);
    close(&x.mean(1).sum(..), &[400_000.0]);
}

/// Calls that compile: one for each element type and shape, none for other elements.
#[test]
fn calls_compile_once_for_each_kind_of_arguments() {
    let traces = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = traces.clone();
    let f = jit(move |x: &Array| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        x * 2 + 1
    });
    let client = Client::cpu();
    let mut counts = vec![];
    let calls = [
        client.array(&[1.0f32, 2.0], &[2]),
        client.array(&[3.0f32, 4.0], &[2]),
        client.array(&[1.0f32, 2.0, 3.0], &[3]),
        client.array(&[1, 2], &[2]),
    ];
    for x in calls {
        f(&x.expect("it fits")).expect("it runs");
        counts.push(traces.load(std::sync::atomic::Ordering::Relaxed));
    }
    assert_eq!(counts, [1, 1, 2, 3]);
}

#[test]
fn captured_arrays_keep_their_elements() {
    let w = array(&[10.0, 20.0], &[2]);
    let f = jit(move |x: &Array| x * &w);
    close(&f(&array(&[1.0, 2.0], &[2])).expect("it runs"), &[10.0, 40.0]);
    close(&f(&array(&[3.0, 4.0], &[2])).expect("it runs"), &[30.0, 80.0]);
    // A gradient captures a value of the function around it.
    let nested = jit(|x: &Array| {
        let outer = x.clone();
        grad(move |y: &Array| (y * &outer).sum(..))(&(x + 1.0))
    });
    close(&nested(&array(&[3.0, 4.0], &[2])).expect("it runs"), &[3.0, 4.0]);
}

/// The message of an error that begins with the caller's file and a line.
#[track_caller]
fn said<T>(result: Result<T>, line: u32) -> String {
    let text = result.err().expect("it is wrong").to_string();
    let place = format!("{}:{line}:", std::panic::Location::caller().file());
    text.strip_prefix(&place).unwrap_or_else(|| panic!("expected {place}, found {text}")).to_string()
}

#[test]
fn mistakes_name_the_line_of_the_operation() {
    let (x, y) = (array(&[1.0, 2.0], &[2]), array(&[1.0, 2.0, 3.0], &[3]));
    let (line, wrong) = (line!(), &x + &y);
    assert_eq!(wrong.shape(), [2]);
    let words = "shapes [2] and [3] do not broadcast: 3 meets 2; help: axes are aligned at the last one, and each is the same or 1";
    for poisoned in [wrong.clone(), (&wrong * 2.0).sum(..).tanh()] {
        assert!(said(poisoned.to_vec::<f32>(), line).ends_with(words));
    }
    assert!(said(jit(|x: &Array| x.exp())(&wrong), line).ends_with(words));
    let at = line!() + 1;
    let f = jit(|x: &Array, y: &Array| (x.exp() + y).sum(..));
    assert!(said(f(&x, &y), at).ends_with(words));
    let at = line!() + 1;
    let f = jit(|x: &Array| x.sum(1));
    assert!(said(f(&x), at).contains("axis 1 of an array of rank 1"));
    let at = line!() + 1;
    let f = grad(|x: &Array| x * 2.0);
    assert!(said(f(&x), at).contains("a function that returns f32[2]"));
    let at = line!() + 1;
    let f = grad(|x: &Array| x.cast(DType::F32).sum(..));
    let integers = Client::cpu().array(&[1, 2], &[2]).expect("it fits");
    assert!(said(f(&integers), at).contains("a gradient by an array of i32[2]"));
}

#[test]
fn traced_arrays_have_no_elements_and_do_not_outlive_their_function() {
    let kept = std::sync::Arc::new(std::sync::Mutex::new(None));
    let slot = kept.clone();
    let f = jit(move |x: &Array| {
        *slot.lock().expect("no panic") = Some(x + 1.0);
        assert_eq!(x.to_vec::<f32>().expect_err("it is traced").code(), "traced");
        x * 2.0
    });
    let x = array(&[1.0], &[1]);
    close(&f(&x).expect("it runs"), &[2.0]);
    let leaked = kept.lock().expect("no panic").take().expect("it was traced");
    let error = (leaked * 2.0).to_vec::<f32>().expect_err("its function has returned").to_string();
    assert!(error.contains("outlived the function"), "{error}");
    // A panic inside of a traced function leaves no trace open.
    let panics = jit(|x: &Array| -> Array { panic!("{} of them", x.len()) });
    let call = std::panic::AssertUnwindSafe(|| panics(&x));
    std::panic::catch_unwind(call).map(drop).expect_err("it panics");
    close(&(&x + 1.0), &[2.0]);
    close(&f(&x).expect("it runs"), &[2.0]);
}

#[test]
fn threads_call_one_function() {
    let f = jit(|x: &Array| (x * 2.0).sum(..) + 1.0);
    std::thread::scope(|scope| {
        for i in 0..32 {
            let f = &f;
            scope.spawn(move || {
                for n in 1..20 {
                    let x = array(&vec![i as f32; n], &[n]);
                    close(&f(&x).expect("it runs"), &[f64::from(i) * 2.0 * n as f64 + 1.0]);
                }
            });
        }
    });
}

/// Results that are parameters, the same value twice, reshaped, or of no element.
#[test]
fn results_may_be_anything() {
    let f = jit(|x: &Array| {
        let y = x + 1.0;
        (x.clone(), y.clone(), (y.clone(), y.expand_dims(0)), x.sum(1))
    });
    let x = array(&[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let (same, y, (again, wide), sum) = f(&x).expect("it runs");
    close(&same, &[1.0, 2.0, 3.0, 4.0]);
    close(&y, &[2.0, 3.0, 4.0, 5.0]);
    close(&again, &[2.0, 3.0, 4.0, 5.0]);
    assert_eq!(wide.shape(), [1, 2, 2]);
    close(&wide, &[2.0, 3.0, 4.0, 5.0]);
    close(&sum, &[3.0, 7.0]);
    let empty = array(&[], &[0, 2]);
    let (_, y, _, sum) = f(&empty).expect("it runs");
    assert_eq!((y.shape(), y.len(), sum.shape()), (&[0, 2][..], 0, &[0][..]));
    close(&jit(|x: &Array| x.sum(0))(&empty).expect("it runs"), &[0.0, 0.0]);
    let error = jit(|x: &Array| x.max(..))(&array(&[], &[0])).expect_err("nothing has no largest element");
    assert!(error.to_string().contains("`max` along axis 0 of f32[0], which has no elements"), "{error}");
}
