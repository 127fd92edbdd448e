//! Functions of many operations and deep trees, on threads with the stack that tests have: nothing recurses over them,
//! and the time grows with the number of operations.
#![allow(clippy::print_stdout, reason = "the time of each stage")]
use super::super::program::Program;
use super::super::trace::{TracedParameter, trace};
use super::{array, numbers};
use crate::prelude::*;
use crate::{grad, jit, tree, vmap};
use pallas_device::counted::VISITED_ACTIONS;
use pallas_graph::transform::{batched, jvp, vjp};
use pallas_graph::{Graph, verify};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A chain of `n` elementwise operations.
fn chain(n: usize) -> impl Fn(&Array) -> Array + Send + Sync + Copy + 'static {
    move |x: &Array| (0..n).fold(x.clone(), |y, i| if i % 2 == 0 { y.sin() } else { -y })
}

/// About `n` operations in many kernels: products, sums over either axis, transposes and elementwise operations.
fn mixed(n: usize) -> impl Fn(&Array) -> Array + Send + Sync + Copy + 'static {
    move |x: &Array| {
        (0..n / 10).fold(x.clone(), |y, i| {
            let y = match i % 4 {
                0 => y.matmul(x).tanh(),
                1 => (&y - y.sum(1).expand_dims(1)).sin(),
                2 => y.t() * 0.5 + x,
                _ => (&y * y.sum(0)).cos(),
            };
            (y.abs() + 0.5).tanh() * x
        })
    }
}

fn timed<R>(f: impl FnOnce() -> R) -> (R, Duration) {
    let begun = Instant::now();
    let result = f();
    (result, begun.elapsed())
}

fn graph_of(f: impl Fn(&Array) -> Array, x: &Array) -> Graph {
    let traced = trace(x.client(), &[TracedParameter::like_array(x)], |x| Ok(vec![f(&x[0])]));
    traced.unwrap_or_else(|e| panic!("{e}")).graph
}

/// Runs on a thread with the stack that tests have, whatever this one has.
fn on_a_small_stack(f: impl FnOnce() + Send + 'static) {
    on_a_stack(2 << 20, f);
}

fn on_a_stack(bytes: usize, f: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(bytes).spawn(f);
    thread.expect("a thread").join().expect("the stack is large enough");
}

/// `PALLAS_LONG=100000` is the number of operations; the default keeps the test short without optimisation.
#[test]
fn a_long_chain_needs_no_deep_stack() {
    on_a_small_stack(|| {
        let n = std::env::var("PALLAS_LONG").map_or(20_000, |n| n.parse().expect("PALLAS_LONG is a number"));
        let f = chain(n);
        let x = array(&[0.5, -0.25], &[2]);
        let said = |stage: &str, time: Duration| println!("{n} operations, {stage}: {time:?}");
        let (graph, time) = timed(|| graph_of(f, &x));
        said("traced", time);
        assert_eq!(graph.equations.len(), n);
        let (texts, time) = timed(|| [graph.to_string(), graph.to_jaxpr(0), graph.to_stablehlo("long")]);
        said("texts", time);
        assert!(texts.iter().all(|text| text.lines().count() >= n), "a line for each operation");
        let (checked, time) = timed(|| {
            let tangents = jvp(&graph, &[true]).expect("it has tangents");
            [
                tangents,
                vjp(&graph, &[true]).expect("it has a gradient"),
                batched(&graph, &[true], 2).expect("it fits").0,
            ]
            .iter()
            .try_for_each(verify)
        });
        said("transformed", time);
        assert_eq!(checked, Ok(()));
        let ((), time) = timed(|| drop((graph, texts)));
        said("dropped", time);

        // What the chain computes, in f64: sin(-sin(x)) = -sin(sin(x)), and so on.
        let value = |x: f64| (0..n).fold(x, |y, i| if i % 2 == 0 { y.sin() } else { -y });
        let slope = |x: f64| {
            let step = |(y, dy): (f64, f64), i| if i % 2 == 0 { (y.sin(), dy * y.cos()) } else { (-y, -dy) };
            (0..n).fold((x, 1.0), step).1
        };
        let is_close = |found: &[f32], want: [f64; 2]| {
            let error = |(a, b): (&f32, f64)| (f64::from(*a) - b).abs() / b.abs().max(1e-6);
            found.iter().zip(want).all(|pair| error(pair) < 1e-2)
        };
        let g = jit(f);
        let (y, time) = timed(|| numbers(&g(&x).expect("it runs")));
        said("first call", time);
        assert!(is_close(&y, [0.5, -0.25].map(value)), "{y:?}");
        let ((), time) = timed(|| drop(g));
        said("program dropped", time);
        let (y, time) = timed(|| numbers(&vmap(f)(&x).expect("it runs")));
        said("batched call", time);
        assert!(is_close(&y, [0.5, -0.25].map(value)), "{y:?}");
        let (g, time) = timed(|| numbers(&grad(move |x: &Array| f(x).sum(..))(&x).expect("it runs")));
        said("gradient", time);
        assert!(is_close(&g, [0.5, -0.25].map(slope)), "{g:?} {:?}", [0.5, -0.25].map(slope));
    });
}

/// The time to trace and compile a function of many kernels, per operation: one that grows with the square would be ten
/// times as long.
#[test]
fn compiling_takes_a_time_for_each_operation() {
    let x = array(&[0.5; 16], &[4, 4]);
    let least = |n: usize| {
        let once = || {
            let (program, time) = timed(|| Program::new(&graph_of(mixed(n), &x), x.client()).expect("it compiles"));
            assert!(program.step_count() >= n / 25, "{} of {n}", program.step_count());
            time
        };
        (0..3).map(|_| once()).min().expect("three runs")
    };
    // Kernels that both need are compiled before.
    least(1_000);
    let [few, many] = [1_000, 10_000].map(|n| least(n).as_secs_f64() / n as f64);
    println!("{:.1} µs for each of 1,000 operations, {:.1} µs for each of 10,000", few * 1e6, many * 1e6);
    assert!(many < 4.0 * few, "{few} {many}");
}

#[derive(Clone, Tree)]
struct Node {
    x: Array,
    sorted: BTreeMap<String, Node>,
    hashed: HashMap<String, Node>,
    pairs: Vec<(Array, Node)>,
}

impl Node {
    fn new(x: &Array) -> Node {
        Node { x: x.clone(), sorted: BTreeMap::new(), hashed: HashMap::new(), pairs: vec![] }
    }

    /// A node in a map or a list of the next one, and so on, so many levels deep.
    fn nested(x: &Array, levels: usize) -> Node {
        (0..levels).fold(Node::new(x), |next, level| {
            let mut node = Node::new(x);
            match level % 3 {
                0 => drop(node.sorted.insert("next".into(), next)),
                1 => drop(node.hashed.insert("next".into(), next)),
                _ => node.pairs.push((x.clone(), next)),
            }
            node
        })
    }

    /// The nodes of the next level.
    fn next(&self) -> impl Iterator<Item = &Node> {
        self.sorted.values().chain(self.hashed.values()).chain(self.pairs.iter().map(|(_, node)| node))
    }
}

/// A tree of nodes that clones and drops them one by one, where the standard containers recurse.
#[derive(Tree)]
struct Flat(Node);

impl Clone for Flat {
    fn clone(&self) -> Flat {
        let mut nodes = vec![&self.0];
        while let Some(next) = nodes.last().and_then(|node| node.next().next()) {
            nodes.push(next);
        }
        let copied = nodes.iter().rev().fold(None, |next: Option<Node>, node| {
            let mut copy = Node::new(&node.x);
            if let Some(next) = next {
                let key = |key: Option<&String>| key.cloned().expect("the next node has a key");
                match node.pairs.first() {
                    Some((x, _)) => copy.pairs.push((x.clone(), next)),
                    None if node.hashed.is_empty() => drop(copy.sorted.insert(key(node.sorted.keys().next()), next)),
                    None => drop(copy.hashed.insert(key(node.hashed.keys().next()), next)),
                }
            }
            Some(copy)
        });
        Flat(copied.expect("the topmost node"))
    }
}

impl Drop for Flat {
    fn drop(&mut self) {
        let end = Node::new(&self.0.x);
        let mut nodes = vec![std::mem::replace(&mut self.0, end)];
        while let Some(mut node) = nodes.pop() {
            nodes.extend(std::mem::take(&mut node.sorted).into_values());
            nodes.extend(std::mem::take(&mut node.hashed).into_values());
            nodes.extend(std::mem::take(&mut node.pairs).into_iter().map(|(_, next)| next));
        }
    }
}

/// Uses a tree of [`Node::nested`] with this many levels as an argument and a result.
fn use_deep<T: Tree + Send + Sync + 'static>(levels: usize, nested: impl Fn(&Array, usize) -> T) {
    let x = array(&[1.0], &[]);
    let deep = nested(&x, levels);
    let count = |levels| 1 + levels + levels / 3;
    let (all, structure) = tree::flatten(&deep);
    assert_eq!((all.len(), structure.leaves()), (count(levels), count(levels)));
    assert_eq!(structure.to_string().matches('*').count(), count(levels));
    let mapped = tree::map2(&deep, &deep, |x, _| Ok(x.reshape(&[1]))).expect("one element each");
    assert_eq!(tree::structure(&mapped), structure);
    let f = jit(|t: &T| tree::leaves(t).iter().fold(tree::leaves(t)[0].clone() * 0.0, |sum, x| sum + x));
    assert_eq!(numbers(&f(&deep).expect("it runs")), [count(levels) as f32]);
    // Another structure, whose difference is the reason to trace again.
    assert_eq!(numbers(&f(&nested(&x, levels - 1)).expect("it runs")), [count(levels - 1) as f32]);
    let g = jit(|t: &T| tree::map(t, |x| Ok(x + 1.0)));
    let next = g(&deep).expect("it runs");
    assert_eq!(tree::structure(&next), structure);
    assert!(tree::leaves(&next).iter().all(|x| numbers(x) == [2.0]));
}

#[test]
fn deep_trees_need_no_deep_stack() {
    on_a_small_stack(|| use_deep(10_000, |x, levels| Flat(Node::nested(x, levels))));
}

/// Standard maps clone and drop themselves by recursion, with 800 bytes of stack a level in an optimised build: a main
/// thread's 8 MiB are enough for 10,000 levels there. These tests are not optimised, and have four times as much.
#[test]
fn deep_trees_of_standard_maps_need_the_stack_of_a_main_thread() {
    on_a_stack(32 << 20, || use_deep(10_000, Node::nested));
}

#[test]
fn paths_lead_through_maps_and_lists() {
    let paths = tree::paths(&Node::nested(&array(&[1.0], &[]), 5));
    assert_eq!(paths[3], "hashed[\"next\"].sorted[\"next\"].pairs[0].0");
}

/// Branches in branches; the number of actions that planning visits grows with the levels.
fn nested(levels: usize, x: &Array) -> Result<Array> {
    match levels {
        0 => Ok(x * 2.0),
        _ => crate::cond(&x.sum(..).gt(0.0), x, |x: &Array| nested(levels - 1, x), |x: &Array| x - 1.0),
    }
}

/// A thread that waits for a launch runs it, whatever stack it has: short ones at once, long ones from the queue.
#[test]
fn launches_need_no_deep_stack() {
    for n in [2, 200_000] {
        let (x, g) = (array(&vec![1.5; n], &[n]), Arc::new(jit(|x: &Array| nested(64, x))));
        assert_eq!(numbers(&g(&x).expect("it runs")), vec![3.0; n]);
        on_a_stack(1 << 20, move || {
            for _ in 0..10 {
                assert_eq!(numbers(&g(&x).expect("it runs")), vec![3.0; n]);
            }
        });
    }
}

#[test]
fn branches_in_branches_are_planned_once() {
    let visited = |levels: usize| {
        let before = VISITED_ACTIONS.get();
        let x = array(&[1.0, 2.0], &[2]);
        assert_eq!(numbers(&jit(move |x: &Array| nested(levels, x))(&x).expect("it runs")), [2.0, 4.0]);
        VISITED_ACTIONS.get() - before
    };
    let (few, many) = (visited(8), visited(64));
    assert!(few > 8 && many <= 8 * few, "{few} actions of 8 levels, {many} of 64");
}
