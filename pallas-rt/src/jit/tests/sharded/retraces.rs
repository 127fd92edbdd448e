//! What compiles a function on a mesh again, and what does not.
use super::{Dice, mesh};
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, PartitionSpec, ShardingPolicy, device_put, dim};
use crate::{Arg, clear_sharding, grad, in_out_shardings, jit, jit_misses, mark_sharding, with_sharding_constraint};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const STEPS: usize = 50;

/// A step with inputs, weights and a bias.
type Step = Box<dyn Fn(Array, &Array, &Array) -> Result<Array>>;

/// Declared arguments say what is sharded, and results that come back do not compile the function again.
#[test]
fn what_a_function_placed_is_no_declaration() {
    let mesh = mesh(&[("batch", 1), ("model", 2)]);
    let w = Client::cpu().full(&[4, 4], 0.25f32).expect("it fits");
    let w = device_put(&w, &NamedSharding::new(&mesh, P((None, "model")))).expect("it is placed");
    // Counters of the process count the traces of other tests, too.
    let traces = Arc::new(AtomicUsize::new(0));
    let own = traces.clone();
    let step = jit(move |x: &Array, w: &Array| {
        own.fetch_add(1, Relaxed);
        x.matmul(w).tanh()
    });
    let mut x = Client::cpu().full(&[2, 4], 0.5f32).expect("it fits");
    for _ in 0..50 {
        x = step(&x, &w).expect("it runs");
    }
    assert_eq!(traces.load(Relaxed), 1);
    // Another declaration compiles once more; spelled differently it does not.
    let same = device_put(&w, &NamedSharding::new(&mesh, P(("batch", ["model"])))).expect("it is placed");
    step(&x, &same).expect("it runs");
    let other = device_put(&w, &NamedSharding::new(&mesh, P("model"))).expect("it is placed");
    assert_eq!(traces.load(Relaxed), 1);
    step(&x, &other).expect("it runs");
    assert_eq!(traces.load(Relaxed), 2);
    let reasons: Vec<String> = jit_misses().iter().flat_map(|miss| &miss.reasons).map(ToString::to_string).collect();
    let reason = r#"argument `1`: sharding [{}, {"model"}] on <["batch"=1, "model"=2]> -> [{"model"}, {}] on "#;
    assert!(reasons.iter().any(|text| text.starts_with(reason)), "{reasons:?}");
    // Axes of other names are another mesh.
    let renamed = Arc::new(Mesh::new(&[("rows", 1), ("columns", 2)]).expect("a mesh"));
    let other = device_put(&w, &NamedSharding::new(&renamed, P("columns"))).expect("it is placed");
    step(&x, &other).expect("it runs");
    assert_eq!(traces.load(Relaxed), 3);
}

/// Weights that a step replaces stay as the first ones were declared, with one trace; cleared ones do not.
#[test]
fn replaced_weights_keep_the_declaration() {
    let mesh = mesh(&[("data", 4)]);
    let rows = NamedSharding::new(&mesh, P("data"));
    let put = |x: f32| device_put(&Client::cpu().full(&[8, 8], x).expect("it fits"), &rows).expect("it is placed");
    let traces = Arc::new(AtomicUsize::new(0));
    let own = traces.clone();
    let step = jit(move |w: &Array, x: &Array| {
        own.fetch_add(1, Relaxed);
        grad(|w: &Array, x: &Array| x.matmul(w).square().mean(..))(w, x).map(|g| w - g * 0.01)
    });
    let (mut w, x) = (put(0.5), put(1.0));
    for _ in 0..50 {
        w = step(&w, &x).expect("it runs");
        assert_eq!(w.sharding().expect("it is on the mesh").blocks_per_dim(), [4, 1]);
    }
    assert_eq!(traces.load(Relaxed), 1);
    step(&clear_sharding(&w).expect("it is cleared"), &x).expect("it runs");
    assert_eq!(traces.load(Relaxed), 2);
    // Its sharding is another one.
    step(&jit(|w: &Array| w.transpose(&[1, 0]))(&w).expect("it runs"), &x).expect("it runs");
    assert_eq!(traces.load(Relaxed), 2, "no declaration is compiled already");
}

/// A leaf that comes back sharded otherwise than its argument was declared takes the declaration from no other leaf:
/// each leaf stays sharded at least as it was, whichever leaves the function moves, also when another argument changes
/// its shape.
#[test]
fn declarations_survive_leaf_by_leaf() {
    const LEAVES: usize = 4;
    let mesh = mesh(&[("data", 4), ("model", 2)]);
    let specs = || [P("data"), P((None, "data")), P(()), P(("model", "data")), P((["data", "model"],))];
    let bytes = |x: &Array| {
        let shards = x.addressable_shards().expect("it has blocks");
        assert!(x.sharding().is_some(), "it is on the mesh");
        shards[0].shape().iter().product::<usize>()
    };
    for seed in 0..24 {
        let mut dice = Dice(300 + seed);
        let put = |dice: &mut Dice| {
            let sharding = NamedSharding::new(&mesh, dice.pick(&specs()).clone());
            device_put(&Client::cpu().full(&[8, 8], 0.25f32).expect("it fits"), &sharding).expect("it is placed")
        };
        // Leaves that the step moves, and where to.
        let moved: Vec<Option<PartitionSpec>> =
            (0..LEAVES).map(|_| dice.chance(40).then(|| dice.pick(&specs()).clone())).collect();
        let traces = Arc::new(AtomicUsize::new(0));
        let (own, targets, on) = (traces.clone(), moved.clone(), mesh.clone());
        let step = jit(move |p: &Vec<Array>, x: &Array| {
            own.fetch_add(1, Relaxed);
            let loss =
                |p: &Vec<Array>, x: &Array| p.iter().fold(x.clone(), |x, w| x.matmul(w).tanh()).square().mean(..);
            let g = grad(loss)(p, x)?;
            let each = p.iter().zip(&g).zip(&targets).map(|((w, g), target)| match target {
                Some(spec) => with_sharding_constraint(&(w - g * 0.1), &NamedSharding::new(&on, spec.clone())),
                None => w - g * 0.1,
            });
            Ok::<_, Error>(each.collect::<Vec<Array>>())
        });
        let mut p: Vec<Array> = (0..LEAVES).map(|_| put(&mut dice)).collect();
        let (first, mut x) = (p.clone(), put(&mut dice));
        for i in 0..6 {
            p = step(&p, &x).expect("it runs");
            for (k, (leaf, before)) in p.iter().zip(&first).enumerate() {
                let (own, before) = (bytes(leaf), bytes(before));
                assert!(moved[k].is_some() || own <= before, "seed {seed}, step {i}, leaf {k}: {own}, before {before}");
            }
            if i == 3 {
                // The last batch is smaller.
                let rows = Client::cpu().full(&[4, 8], 1.0f32).expect("it fits");
                x = device_put(&rows, &NamedSharding::new(&mesh, P("data"))).expect("it is placed");
            }
        }
        assert!(traces.load(Relaxed) <= 4, "seed {seed}: {} traces", traces.load(Relaxed));
    }
}

/// Results of operations at once lie as their operands do: zeros for the moments of an optimizer, and sums with
/// numbers.
#[test]
fn operations_at_once_follow_their_operands() {
    let mesh = mesh(&[("data", 4)]);
    let w = Client::cpu().full(&[8, 8], 0.25f32).expect("it fits");
    let w = device_put(&w, &NamedSharding::new(&mesh, P("data"))).expect("it is placed");
    let b = Client::cpu().full(&[8], 2.0f32).expect("it fits");
    let parts = |x: &Array| x.sharding().expect("it is on the mesh").blocks_per_dim().to_vec();
    for (like, value) in [(w.zeros_like(), 0.0), (w.ones_like(), 1.0), (w.full_like(3.0), 3.0)] {
        assert_eq!((parts(&like), like.to_vec::<f32>().expect("it is read")), (vec![4, 1], vec![value; 64]));
    }
    for (result, expected) in
        [(&w * 0.0, [4, 1]), (&w + &b, [4, 1]), (w.t(), [1, 4]), (w.matmul(&w.t()), [4, 1]), (w.exp(), [4, 1])]
    {
        assert_eq!(parts(&result), expected);
    }
    assert_eq!(w.sum(0).to_vec::<f32>().expect("it is read"), [2.0; 8]);
    // Arrays on two meshes, and arrays on none.
    let other = super::mesh(&[("rows", 2)]);
    let v = device_put(&b, &NamedSharding::new(&other, P("rows"))).expect("it is placed");
    assert_eq!((&w + &v).to_vec::<f32>().expect("it is read"), [2.25; 64]);
    assert!((&b + 1.0).sharding().is_none());
}

/// The spellings of one division of a matrix by columns on a mesh of 1 x 2, and of none.
fn spelled(dice: &mut Dice, is_sharded: bool) -> PartitionSpec {
    match (is_sharded, dice.below(4)) {
        (true, 0) => P((None, "model")),
        (true, 1) => P(("batch", "model")),
        (true, 2) => P((None, ["model"])),
        (true, _) => P((["batch"], ["model"])),
        (false, 0) => P(()),
        (false, 1) => P((None,)),
        (false, 2) => P("batch"),
        (false, _) => P((None, None)),
    }
}

/// Fifty steps with weights that are declared in ever other words, and with inputs that are fresh, results of the last
/// step, clones, read before, or cleared: one trace.
#[test]
fn equal_declarations_are_one_trace() {
    let mesh = mesh(&[("batch", 1), ("model", 2)]);
    let full = |x: f32| Client::cpu().full(&[4, 4], x).expect("it fits");
    for seed in 0..8 {
        let mut dice = Dice(seed);
        let traces = Arc::new(AtomicUsize::new(0));
        let own = traces.clone();
        let body = move |x: &Array, w: &Array, b: &Array| {
            own.fetch_add(1, Relaxed);
            (x.matmul(w) + b).tanh()
        };
        // Results that are declared by the function itself, that take over memory, or neither.
        let inputs = ShardingPolicy::new().rule("1", P((None, "model"))).rule("2", P(()));
        let step: Step = match seed % 3 {
            0 => {
                let step = jit(body);
                Box::new(move |x, w, b| step(&x, w, b))
            }
            1 => jit(body).donate_argnums(Arg::<0>).into_fn(),
            _ => {
                let step = jit(in_out_shardings(body, &mesh, inputs, P(())));
                Box::new(move |x, w, b| step(&x, w, b))
            }
        };
        let mut x = full(0.5);
        let (mut w, mut b) = (full(0.25), full(0.125));
        for _ in 0..STEPS {
            // In any order, and again where nothing has changed.
            let mark = |x: &Array, spec: PartitionSpec| mark_sharding(x, &mesh, spec).expect("it is an equal one");
            match dice.below(4) {
                0 => (w, b) = (mark(&w, spelled(&mut dice, true)), mark(&b, spelled(&mut dice, false))),
                1 => {
                    b = mark(&b, spelled(&mut dice, false));
                    w = mark(&w, spelled(&mut dice, true));
                }
                2 => {
                    let put = |x: f32, spec| device_put(&full(x), &NamedSharding::new(&mesh, spec)).expect("it fits");
                    (w, b) = (put(0.25, spelled(&mut dice, true)), put(0.125, spelled(&mut dice, false)));
                }
                _ => {
                    let clear = |x: &Array| clear_sharding(x).expect("it is cleared");
                    (w, b) = (mark(&clear(&w), spelled(&mut dice, true)), mark(&clear(&b), spelled(&mut dice, false)));
                }
            }
            let given = match dice.below(4) {
                0 => full(0.5),
                1 => {
                    x.to_vec::<f32>().expect("it is read");
                    x.clone()
                }
                2 => clear_sharding(&x).expect("it is cleared"),
                _ => x.clone(),
            };
            x = step(given, &w, &b).expect("it runs");
        }
        assert_eq!(traces.load(Relaxed), 1, "seed {seed}");
    }
}

/// Each real change is one more trace, with its reason, and none when it comes again.
#[test]
fn each_change_is_one_trace_with_a_reason() {
    let mesh = mesh(&[("batch", 1), ("model", 2)]);
    let other = Arc::new(Mesh::new(&[("rows", 1), ("model", 2)]).expect("a mesh"));
    let full = || Client::cpu().full(&[4, 4], 0.25f32).expect("it fits");
    let on = |mesh: &Arc<Mesh>, spec: PartitionSpec| mark_sharding(&full(), mesh, spec).expect("it is marked");
    let traces = Arc::new(AtomicUsize::new(0));
    let own = traces.clone();
    let step = jit(move |x: &Array, w: &Array| {
        own.fetch_add(1, Relaxed);
        x.matmul(w)
    });
    let columns = || on(&mesh, P((None, "model")));
    let changes = [
        (full(), columns(), "", ""),
        (full(), on(&mesh, P("model")), "1", r#"[{"model"}, {}]"#),
        (full(), full(), "1", "none"),
        (on(&mesh, P(())), columns(), "0", "[{}, {}]"),
        (full(), on(&mesh, P((None, dim("model").priority(1)))), "1", r#"{"model"}p1]"#),
        (full(), on(&mesh, P((None, dim("model").open()))), "1", r#"{"model", ?}]"#),
        (full(), on(&other, P((None, "model"))), "1", r#"<["rows"=1, "model"=2]>"#),
    ];
    for (i, (x, w, leaf, reason)) in changes.iter().enumerate() {
        for _ in 0..3 {
            step(x, w).expect("it runs");
        }
        assert_eq!(traces.load(Relaxed), i + 1, "change {i}");
        // Other tests compile functions too.
        let own = jit_misses().into_iter().filter(|miss| miss.at.file.ends_with("retraces.rs"));
        let reasons: Vec<String> = own.flat_map(|miss| miss.reasons).map(|reason| reason.to_string()).collect();
        let start = format!("argument `{leaf}`: sharding ");
        let is_told = |text: &String| text.starts_with(&start) && text.contains(reason);
        assert!(leaf.is_empty() || reasons.iter().any(is_told), "change {i}: {reasons:?}");
    }
    for (x, w, ..) in &changes {
        step(x, w).expect("it runs");
    }
    assert_eq!(traces.load(Relaxed), changes.len());
}
