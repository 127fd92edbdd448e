//! How often jitted functions are traced, and why; donated arguments.
use super::{array, close, numbers};
use crate::prelude::*;
use crate::tree::Static;
use crate::{Arg, disable_jit, grad, jit, jit_misses, vmap};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts calls of a function, of which each is a trace.
#[derive(Clone, Default)]
struct Traces(Arc<AtomicUsize>);

impl Traces {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The reasons for the compilations of the function that a line made.
fn reasons(line: u32) -> Vec<String> {
    let own = jit_misses().into_iter().filter(|miss| miss.at.file == file!() && miss.at.line == line);
    own.map(|miss| miss.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")).collect()
}

/// The counts are JAX's, from `cache.py`.
#[test]
fn a_function_is_traced_as_often_as_in_jax() {
    let jax: HashMap<&str, Vec<usize>> = include_str!("cache.txt")
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, counts)| (name, counts.split_whitespace().map(|n| n.parse().expect("a count")).collect()))
        .collect();
    let traces = Traces::default();
    let inner = traces.clone();
    let (line, f) = (line!(), move |x: &Array| {
        inner.add();
        x * 2
    });
    let f = jit(f);
    let integers = Client::cpu().array(&[1, 2, 3], &[3]).expect("it fits");
    let calls = [array(&[1.0; 3], &[3]), array(&[2.0; 3], &[3]), array(&[1.0; 4], &[4]), integers];
    let counts: Vec<usize> = calls.iter().map(|x| f(x).map(|_| traces.count()).expect("it runs")).collect();
    assert_eq!(counts, jax["arrays"]);
    let line = (line..line + 9).find(|&line| !reasons(line).is_empty()).expect("misses are kept");
    assert_eq!(
        reasons(line),
        ["first call", "argument `0`: shape [3] -> [4]", "argument `0`: element type f32 -> i32"]
    );

    let traces = Traces::default();
    let inner = traces.clone();
    let f = jit(move |x: &HashMap<String, Array>| {
        inner.add();
        &x["a"] + &x["b"]
    });
    let map = |keys: [&str; 2], by: f32| -> HashMap<String, Array> {
        keys.into_iter().map(|key| (key.to_string(), array(&[by], &[1]))).collect()
    };
    let calls = [map(["a", "b"], 1.0), map(["b", "a"], 1.0), map(["b", "a"], 7.0)];
    let counts: Vec<usize> = calls.iter().map(|x| f(x).map(|_| traces.count()).expect("it runs")).collect();
    assert_eq!(counts, jax["keys"]);

    let traces = Traces::default();
    let inner = traces.clone();
    let f = jit(move |x: &Array, power: &Static<u32>| {
        inner.add();
        (0..power.0).fold(x * 1.0, |y, _| y * x)
    });
    let x = array(&[2.0], &[1]);
    let count = |n: u32| {
        close(&f(&x, &Static(n)).expect("it runs"), &[2f64.powi(n as i32 + 1)]);
        traces.count()
    };
    assert_eq!([2, 3, 2, 3, 4].map(count).to_vec(), jax["statics"]);

    let traces = Traces::default();
    let inner = traces.clone();
    let f = jit(move |x: &Array, n: &Array| {
        inner.add();
        (x * crate::ops::arange(0, x.shape()[0] as f64, 1, DType::I32).lt(n).cast(DType::F32)).sum(..)
    });
    let padded = |n: usize| {
        let bucket = [8, 16, 32, 64].into_iter().find(|&b| b >= n).expect("no longer one");
        let mut x = vec![1.0; n];
        x.resize(bucket, 9.0);
        let n_array = Client::cpu().array(&[n as i32], &[]).expect("it fits");
        close(&f(&array(&x, &[bucket]), &n_array).expect("it runs"), &[n as f64]);
    };
    (1..=64).for_each(padded);
    assert_eq!(vec![traces.count()], jax["buckets"]);
}

#[derive(Clone, Tree)]
struct Layer {
    weight: Array,
    bias: Option<Array>,
    #[tree(fixed)]
    activation: &'static str,
}

#[test]
fn a_miss_names_the_leaf_and_both_values() {
    let layer = |n: usize, bias: bool, activation: &'static str| Layer {
        weight: array(&vec![1.0; n], &[n]),
        bias: bias.then(|| array(&[1.0], &[1])),
        activation,
    };
    let line = line!() + 1;
    let f = jit(|layers: &Vec<Layer>, by: &Static<i32>| &layers[0].weight * by.0 as f32);
    let call = |layers: Vec<Layer>, by: i32| drop(f(&layers, &Static(by)).expect("it runs"));
    call(vec![layer(2, true, "relu")], 1);
    call(vec![layer(2, true, "relu")], 1);
    call(vec![layer(3, true, "relu")], 1);
    call(vec![layer(3, false, "relu")], 1);
    call(vec![layer(3, false, "tanh")], 1);
    call(vec![layer(3, false, "tanh")], 5);
    call(vec![layer(3, false, "tanh"), layer(2, true, "relu")], 5);
    let on_interpreter = {
        let weight = array(&[1.0; 3], &[3]).to_device(&Client::interpreter()).expect("it has room");
        vec![Layer { weight, bias: None, activation: "tanh" }]
    };
    call(on_interpreter, 5);
    let found = reasons(line);
    let expected = [
        "first call",
        "argument `0[0].weight`: shape [2] -> [3]",
        "argument `0[0].bias`: structure `Some` -> `None`",
        "argument `0[0]`: static `Layer` with activation = \"relu\" -> `Layer` with activation = \"tanh\"",
        "argument `1`: static `Static` with value = 1 -> `Static` with value = 5",
        "argument `0`: structure a list of 1 -> a list of 2",
    ];
    assert_eq!(found[..6], expected);
    assert!(found[6].starts_with("client ") && found[6].contains("interpret"), "{}", found[6]);
    let misses = jit_misses();
    let miss = misses.iter().find(|miss| miss.at.file == file!() && miss.at.line == line).expect("it is kept");
    assert!(miss.trace.as_nanos() > 0 && miss.compile.as_nanos() > 0 && miss.hint.is_none(), "{miss}");
}

/// Statics are known to a function that is transformed.
#[test]
fn statics_pass_through_transformations() {
    let power = |x: &Array, n: &Static<i64>| (0..n.0).fold(x * 0.0 + 1.0, |y, _| y * x);
    let x = array(&[3.0], &[]);
    close(&grad(power)(&x, &Static(3)).expect("it runs"), &[27.0]);
    close(&jit(grad(power))(&x, &Static(2)).expect("it runs"), &[6.0]);
    let each = jit(vmap(grad(power)).in_axes([Some(0), None]));
    close(&each(&array(&[1.0, 2.0], &[2]), &Static(3)).expect("it runs"), &[3.0, 12.0]);
}

#[test]
fn a_loop_in_rust_gets_one_hint() {
    let line = line!() + 1;
    let f = jit(|x: &Array| (0..400).fold(x.clone(), |x, i| x * (1.0 + i as f32 * 1e-6)).sum(..));
    for n in [2, 3] {
        f(&array(&vec![1.0; n], &[n])).expect("it runs");
    }
    let hints: Vec<Option<String>> = jit_misses()
        .into_iter()
        .filter(|miss| miss.at.line == line && miss.at.file == file!())
        .map(|m| m.hint)
        .collect();
    let [Some(hint), None] = &hints[..] else { panic!("{hints:?}") };
    assert!(hint.starts_with(&format!("`mul` at {}:{line}", file!())) && hint.contains("400 times"), "{hint}");
}

/// A donated array's memory is that of the result; one that is needed later, or has another owner, keeps its elements.
#[test]
fn donated_memory_is_used_again() {
    for client in [Client::cpu(), Client::interpreter()] {
        let make = |x: f32, n: usize| client.array(&vec![x; n], &[n]).expect("it fits");
        let address = |x: &Array| x.buffer().expect("it has memory").as_ptr();
        // By the kernel that reads it last.
        let step = jit(|w: &(Array, Array), g: &Array| (&w.0 - 0.5 * g, &w.1 * 2.0 + g)).donate_argnums(Arg::<0>);
        let g = make(2.0, 1000);
        let mut w = (make(1.0, 1000), make(3.0, 1000));
        let places = [address(&w.0), address(&w.1)];
        for _ in 0..3 {
            w = step(w, &g).expect("it runs");
        }
        let mut found = [address(&w.0), address(&w.1)];
        found.sort_unstable();
        let mut wanted = places;
        wanted.sort_unstable();
        assert_eq!(found, wanted);
        assert_eq!((numbers(&w.0)[999], numbers(&w.1)[0]), (-2.0, 38.0));
        // By a later step.
        let product = jit(|x: &Array| x.matmul(x).matmul(x)).donate_argnums(Arg::<0>);
        let x = client.array(&[1.0f32, 1.0, 0.0, 1.0], &[2, 2]).expect("it fits");
        close(&product(x).expect("it runs"), &[1.0, 3.0, 0.0, 1.0]);
        // Another owner.
        let double = jit(|x: &Array| x * 2.0).donate_argnums(Arg::<0>);
        let x = make(1.5, 1000);
        let (kept, place) = (x.clone(), address(&x));
        let y = double(x).expect("it runs");
        assert!(address(&y) != place && numbers(&kept) == [1.5; 1000] && numbers(&y) == [3.0; 1000]);
        // Both the same array, the array itself, and one of another size.
        let twice = jit(|x: &(Array, Array)| (&x.0 + &x.1, x.0.clone(), x.1.sum(..))).donate_argnums(Arg::<0>);
        let x = make(4.0, 1000);
        let (sum, same, total) = twice((x.clone(), x)).expect("it runs");
        assert_eq!((numbers(&sum)[0], numbers(&same)[5], numbers(&total)[0]), (8.0, 4.0, 4000.0));
        // Every other element is read after it would be overwritten.
        let turned = jit(|x: &Array| x.flip(0) + x).donate_argnums(Arg::<0>);
        let x = client.array(&(0..1000).map(|i| i as f32).collect::<Vec<_>>(), &[1000]).expect("it fits");
        assert_eq!(numbers(&turned(x).expect("it runs")), [999.0; 1000]);
    }
}

#[test]
fn a_donating_step_needs_no_further_memory() {
    let client = Client::cpu();
    let step = jit(|x: &Array| (x * 0.5 + 1.0).tanh()).donate_argnums(Arg::<0>);
    let mut x = client.full(&[1 << 16], 0.5f32).expect("it fits");
    x = step(x).expect("it runs");
    let place = x.buffer().expect("it has memory").as_ptr();
    for _ in 0..10 {
        x = step(x).expect("it runs");
        assert_eq!(x.buffer().expect("it has memory").as_ptr(), place);
    }
}

#[test]
fn without_jit_functions_run_as_they_are() {
    let traces = Traces::default();
    let inner = traces.clone();
    let f = jit(move |x: &Array| {
        inner.add();
        x * 2.0
    });
    let x = array(&[1.0], &[1]);
    f(&x).expect("it runs");
    f(&x).expect("it runs");
    assert_eq!(traces.count(), 1);
    let outer = disable_jit();
    drop(disable_jit());
    for n in 2..4 {
        close(&f(&x).expect("it runs"), &[2.0]);
        assert_eq!(traces.count(), n);
    }
    // On this thread alone.
    std::thread::scope(|scope| scope.spawn(|| f(&x).map(drop)).join().expect("no panic")).expect("it runs");
    assert_eq!(traces.count(), 3);
    drop(outer);
    f(&x).expect("it runs");
    assert_eq!(traces.count(), 3);
}
