//! A value is usable while the region that computed it is open; a block while its kernel runs.
use crate::{both, error};
use pallas_rt::prelude::*;
use std::cell::Cell;
use std::sync::{LazyLock, Mutex, OnceLock};

type Kept = Mutex<Option<Tile<f32>>>;

#[kernel(grid = (2))]
fn lazy(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    let e = LazyLock::new(|| x.load().exp());
    let mut t = x.load();
    if program_id(0) > 0 {
        t += *e;
    }
    out.store(t + *e);
}
/// The first use is outside of the branch.
#[kernel(grid = (2))]
fn lazy_before(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    let e = LazyLock::new(|| x.load() + 1.0);
    let mut t = x.load() + *e;
    if program_id(0) > 0 {
        t += *e;
    }
    out.store(t + *e);
}
#[kernel(grid = (2))]
fn once(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    let e = OnceLock::new();
    let mut t = x.load();
    for _ in 0..3 {
        t += *e.get_or_init(|| x.load());
    }
    out.store(t + *e.get_or_init(|| x.load()));
}
#[kernel(grid = (2))]
fn locked(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    let e = Kept::new(None);
    let mut n = scalar(0);
    while n < 2 {
        n += 1;
        *e.lock().expect("one thread") = Some(x.load() * n.cast::<f32>());
    }
    out.store(e.lock().expect("one thread").unwrap_or(x.load()));
}
static SHARED: Kept = Mutex::new(None);
#[kernel(grid = (2))]
fn other_side(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    if program_id(0) > 0 {
        let e = x.load().exp();
        *SHARED.lock().expect("one thread") = Some(e);
        out.store(e);
    } else {
        let e = SHARED.lock().expect("one thread").unwrap_or(x.load());
        out.store(e + 1.0);
    }
}
/// A stale value is carried, and its rank is read.
#[kernel(grid = (2))]
fn assigned(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    let e = Kept::new(None);
    let mut t = x.load();
    for _ in 0..2 {
        *e.lock().expect("one thread") = Some(x.load());
    }
    for _ in 0..4 {
        t = e.lock().expect("one thread").unwrap_or(t);
    }
    out.store(t);
}
#[kernel(grid = (2))]
fn measured(#[block([N] => [2], |i| (i,))] x: In<f32>, #[block([N] => [2], |i| (i,))] out: Out<f32>) {
    let e = LazyLock::new(|| x.load());
    if program_id(0) > 0 {
        debug_assert(e.sum(..).item() > 0.0, "positive");
    }
    out.fill(e.rank() as f32);
}

/// Checks that a call fails at the line of this file that contains these words.
#[track_caller]
fn stale(line: &str, call: impl Fn(&Array) -> Result<Array>) {
    let found = error([1.0, 2.0, 3.0, 4.0], call);
    let text = include_str!("regions.rs");
    let at = text.lines().position(|l| l.contains(line)).expect("the line is in this file") + 1;
    assert!(found.contains("outside of the branch or the turn of a loop that computed it"), "{found}");
    assert!(found.starts_with(&format!("{}:{at}:", file!())), "not line {at}, but: {found}");
}
#[test]
fn a_value_is_usable_while_its_region_is_open() {
    stale("out.store(t + *e);", |x| lazy(x));
    stale("out.store(t + *e.get_or_init", |x| once(x));
    stale("out.store(e.lock().expect(\"one thread\").unwrap_or(x.load()));", |x| locked(x));
    stale("out.store(e + 1.0);", |x| other_side(x));
    stale("    for _ in 0..4 {", |x| assigned(x));
    stale("out.fill(e.rank() as f32);", |x| measured(x));
    assert_eq!(both([1.0, 2.0, 3.0, 4.0], |x| lazy_before(x)), [5.0, 8.0, 15.0, 19.0]);
}

/// A value stored in an earlier iteration, which exists only where the body runs as Rust.
#[kernel(grid = (1))]
fn of_an_earlier_turn(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,))] out: Out<f32>) {
    let kept = Kept::new(None);
    let mut t = x.load();
    for i in 0..3 {
        let old = kept.lock().expect("one thread").replace(t);
        if i > 0 {
            t += old.unwrap_or(t);
        }
        t *= 2.0;
    }
    out.store(t);
}
#[test]
fn a_value_of_an_earlier_turn_is_refused_by_the_interpreter() {
    let x = Client::interpreter().array(&[1.0f32, 2.0], &[2]).expect("it fits");
    let e = of_an_earlier_turn(&x).expect_err("the second turn finds a tile of the first");
    assert_eq!(e.code(), "stale-handle", "{e}");
}

thread_local! {
    static INPUT: Cell<Option<In<f32>>> = const { Cell::new(None) };
    static OUTPUT: Cell<Option<Out<f32>>> = const { Cell::new(None) };
    static TABLE: Cell<Option<Prefetch<i32>>> = const { Cell::new(None) };
}
#[kernel(grid = (1))]
fn keeps(
    #[prefetch([M])] table: Prefetch<i32>,
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [N], |_| (0,))] y: In<f32>,
    #[block([N] => [N], |_| (0,))] out: Out<f32>,
) {
    INPUT.set(Some(y));
    OUTPUT.set(Some(out));
    TABLE.set(Some(table));
    out.store(x.load() + y.load() + table.at(0).cast::<f32>());
}
#[kernel(grid = (1))]
fn uses(
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [N], |_| (0,))] out: Out<f32>,
    #[fixed] f: fn(Tile<f32>) -> Tile<f32>,
) {
    out.store(f(x.load()));
}
#[test]
fn a_block_of_another_kernel_is_refused() {
    for client in [Client::interpreter(), Client::cpu()] {
        let table = client.array(&[1], &[1]).expect("it fits");
        let x = client.array(&[1.0f32, 2.0], &[2]).expect("it fits");
        keeps(&table, &x, &x).expect("it runs");
        let uses_of: [fn(Tile<f32>) -> Tile<f32>; 4] = [
            |t| t + INPUT.get().map_or(t, |x| x.load()),
            |t| t + INPUT.get().map_or(t, |x| x.at(ds(0, 2)).load()),
            |t| {
                OUTPUT.get().into_iter().for_each(|out| out.store(t));
                t
            },
            |t| t + TABLE.get().map_or(scalar(0), |table| table.at(0)).cast::<f32>(),
        ];
        for f in uses_of {
            let e = uses(&x, f).expect_err("a block of the first kernel");
            assert!(e.code() == "stale-handle" && e.to_string().contains("a block of another kernel call"), "{e}");
            assert!(e.to_string().starts_with(file!()), "{e}");
        }
    }
}
