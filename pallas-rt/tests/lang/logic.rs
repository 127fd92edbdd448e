//! `&&` and `||` of run-time scalars evaluate their right side under the same conditions as in Rust.
#![allow(clippy::let_and_return, reason = "the condition is a block with a `let` on purpose")]
use crate::both;
use pallas_rt::prelude::*;

/// Counts the entries from `first` on that are below the limit: there is no entry after the last one.
#[kernel(grid = (1))]
fn below(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[prefetch([T])] table: Prefetch<i32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    limit: i32,
) {
    let mut t = scalar(0);
    while t < T && table.at(t) < limit {
        t += 1;
    }
    let mut last = scalar(-1);
    if t == 0 || table.at(t - 1) < 0 {
        last -= 1;
    } else {
        last = table.at(t - 1);
    }
    out.store(x.load() + (t * 100 + last).cast::<f32>());
}

#[test]
fn the_right_side_is_not_asked_in_vain() {
    let call =
        |limit: i32| both([0.0; 2], |x| below(x, x.client().array(&[3i32, 5, 9], &[3]).expect("it fits"), limit));
    // The strict interpreter faults at an entry that does not exist.
    assert_eq!(call(0), [-2.0; 2]);
    assert_eq!(call(6), [205.0; 2]);
    assert_eq!(call(10), [309.0; 2]);
}

fn odd(n: Scalar<i32>) -> Scalar<bool> {
    (n % 2).eq(1)
}

/// Effects of a right side happen if it is evaluated: variables change, and a nested `&&` is staged as well.
#[kernel(grid = (1))]
fn effects(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, n: i32) {
    let (mut asked, mut tile) = (scalar(0), x.load());
    let both = n > 0 && {
        asked += 1;
        tile += 10.0;
        odd(n)
    };
    let either = n > 5 || {
        asked += 10;
        odd(n) && tile.sum(0).item() > 0.0
    };
    let flags = both.cast::<i32>() + either.cast::<i32>() * 2;
    out.store(tile * 1000.0 + (asked * 10 + flags).cast::<f32>());
}

#[test]
fn what_the_right_side_changes_is_carried() {
    let plain = |n: i32| {
        let (mut asked, mut tile) = (0, 1.0);
        let odd = n.rem_euclid(2) == 1 && n > 0;
        let both = n > 0 && {
            asked += 1;
            tile += 10.0;
            odd
        };
        let either = n > 5 || {
            asked += 10;
            odd
        };
        tile * 1000.0 + (asked * 10 + i32::from(both) + i32::from(either) * 2) as f32
    };
    for n in [-2, 0, 3, 4, 6, 7] {
        assert_eq!(both([1.0], |x| effects(x, n)), [plain(n)], "{n}");
    }
}

/// A host value on the left decides alone; for a tile both sides are computed, whatever is on the right.
#[kernel(grid = (1))]
fn mixed(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] flag: bool,
) {
    let empty: Vec<Tile<f32>> = vec![];
    let (mut n, mut t) = (0, x.load());
    let mask = t > 1.0 && t.abs().lt(3.0) && program_id(0) >= 0 && { flag || program_id(0).eq(0) };
    if flag && empty[0].sum(0).item() > 0.0 {
        t += 1.0;
    }
    let none = flag && {
        n += 1;
        flag
    };
    let some = program_id(0).eq(0) && (none || program_id(0).cast::<f32>().lt(1.0));
    out.store(select(mask, t, 0.0) + some.cast::<f32>() * 10.0 + n as f32);
}

#[test]
fn hosts_and_tiles_keep_their_ways() {
    assert_eq!(both([0.5, 2.0, 4.0], |x| mixed(x, false)), [10.0, 12.0, 10.0]);
}

/// The condition of a loop is a block with a `let`.
#[kernel(grid = (1))]
fn conditions(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let (mut n, mut host) = (scalar(0), 0);
    while {
        let next = n + 1;
        next < 5
    } {
        n += 1;
    }
    while {
        let more = host < 3;
        more
    } {
        host += 1;
        if host == 2 {
            break;
        }
    }
    if {
        let even = n % 2;
        even == 0
    } {
        n += 10;
    }
    out.store(x.load() + n.cast::<f32>() + host as f32);
}

#[test]
fn a_condition_may_be_a_block() {
    assert_eq!(both([0.0], |x| conditions(x)), [16.0]);
}
