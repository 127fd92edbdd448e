//! Loads and stores of the same memory in every order.
use crate::{check, numbers};
use pallas_rt::prelude::*;

/// A kernel over two scratch buffers that start as the input and its negative, and end in the outputs.
macro_rules! scratch {
    ($name:ident, |$s:ident, $t:ident| { $($body:tt)* }) => {
        #[kernel(grid = (1))]
        fn $name(
            #[block([N, N] => [8, 8], |_i| (0, 0))] x: In<f32>,
            #[block([N, N] => [8, 8], |_i| (0, 0))] first: Out<f32>,
            #[block([N, N] => [8, 8], |_i| (0, 0))] second: Out<f32>,
            #[scratch([8, 8])] $s: Scratch<f32>,
            #[scratch([8, 8])] $t: Scratch<f32>,
        ) {
            $s.store(x.load());
            $t.store(x.load() * -1.0);
            $($body)*
            first.store($s.load());
            second.store($t.load());
        }
    };
}
scratch!(exchanged, |s, t| {
    let (a, b) = (s.load(), t.load());
    s.store(b);
    t.store(a);
});
scratch!(turned, |s, t| {
    s.store(s.load().t());
    t.store(t.load().reverse(0) + t.load().reverse(1));
});
scratch!(read_before, |s, t| {
    let old = s.load();
    s.store(old * 2.0);
    t.store(old + s.load());
});
scratch!(needed_after, |s, t| {
    let y = s.load() + t.load();
    s.store(y);
    s.store(s.load() * 3.0);
    t.store(y);
});
scratch!(two_of_one_chain, |s, t| {
    let old = s.load();
    let y = old * 2.0;
    let z = old + y;
    s.store(y);
    t.store(z + old.sum(0));
});
// What follows a store is computed with what is stored, but reads what was there before.
scratch!(grown, |s, t| {
    let (a, b) = (s.load(), t.load());
    let y = a * 2.0 + b;
    s.store(y);
    let z = y * b - a;
    t.store(z);
    s.store(s.load() + (z + y).sum(0) + t.load());
});
scratch!(grown_in_rows, |s, t| {
    let (a, b) = (s.load(), t.load());
    let y = a - b;
    t.store(y);
    let sums = (y + a).max(1);
    s.store(sums + t.load() * a);
});
scratch!(accumulated, |s, t| {
    s.store(s.load() + dot(t.load(), t.load()));
    t.store(dot(s.load(), t.load()) + t.load() * 2.0);
});
scratch!(accumulated_twice, |s, t| {
    let y = s.load() * 2.0;
    s.store(y + dot(y, t.load()));
    t.store(y + dot(t.load(), s.load()) + dot(s.load(), s.load()));
});
scratch!(accumulated_onto_itself, |s, t| {
    s.store(s.load() + dot(s.load(), t.load()));
    t.store(t.load() + dot(s.load(), t.load().t()));
});
scratch!(accumulated_in_parts, |s, t| {
    s.at((ds(2, 4), ..)).store(s.at((ds(2, 4), ..)).load() + dot(t.at((ds(1, 4), ..)).load(), t.load()));
    s.at((ds(1, 4), ..)).store(s.at((ds(2, 4), ..)).load() + dot(t.at((ds(1, 4), ..)).load(), t.load()));
    let y = s.at((.., ds(3, 4))).load();
    s.at((.., ds(3, 4))).store(y + dot(t.load(), t.at((.., ds(0, 4))).load()));
    t.at((ds(0, 4), ..))
        .store(t.at((ds(0, 4), ..)).load() + dot(s.at((ds(0, 4), ds(1, 4))).load(), t.at((ds(4, 4), ..)).load()));
});
scratch!(parts, |s, t| {
    s.at((ds(2, 4), ..)).store(s.at((ds(1, 4), ..)).load());
    t.at((.., ds(0, 3))).store(s.at((.., strided(1, 3, 2))).load());
    t.at((3, ..)).store(s.at((.., 3)).load());
});
scratch!(carried, |s, t| {
    let (mut a, mut b) = (s.load(), t.load());
    for i in 0..scalar(3) {
        (a, b) = (b, a + i.cast::<f32>());
        s.store(a * 0.5);
    }
    t.store(a + b);
});
scratch!(summed, |s, t| {
    let mut sum = t.load();
    for _ in 0..scalar(3) {
        sum += dot(s.load(), s.load());
    }
    t.store(sum);
});
scratch!(masked, |s, t| {
    s.store_masked(t.load() * 2.0, t.load().gt(0.0));
    t.store(s.load_masked(s.load().lt(0.0), 7.0).cumsum(1));
});

#[test]
fn scratch_is_read_and_written_in_order() {
    macro_rules! all {
        ($($name:ident)*) => {
            $(check(|client| $name(&numbers(client, &[8, 8], 1)).map(|(a, b)| vec![a, b]));)*
        };
    }
    all! {
        exchanged turned read_before needed_after two_of_one_chain grown grown_in_rows accumulated accumulated_twice
        accumulated_onto_itself accumulated_in_parts parts carried summed masked
    }
}

/// An output in the memory of an input, which is read in another order.
#[kernel(grid = (cdiv(N, 4)))]
fn donated(
    #[block([N] => [4], |i| (i,), fill = 0.0)] x: In<f32>,
    #[block([N] => [4], |i| (i,), alias = x)] out: Out<f32>,
) {
    let (y, z) = (x.load().reverse(0), x.load() * 10.0);
    out.store(y);
    out.store(z + out.load());
}

#[test]
fn donated_memory_is_read_before_it_is_written() {
    check(|client| donated(numbers(client, &[8], 2)).map(|y| vec![y]));
}

/// More operands and results than a chain that grows past its stores may have.
#[kernel(grid = (cdiv(N, 16)))]
fn crowded(
    #[block([N] => [16], |i| (i,))] a: In<f32>,
    #[block([N] => [16], |i| (i,))] b: In<f32>,
    #[block([N] => [16], |i| (i,))] c: In<f32>,
    #[block([N] => [16], |i| (i,))] d: In<f32>,
    #[block([N] => [16], |i| (i,))] e: In<f32>,
    #[block([N] => [16], |i| (i,))] first: Out<f32>,
    #[block([N] => [16], |i| (i,))] second: Out<f32>,
    #[block([N] => [16], |i| (i,))] third: Out<f32>,
    #[block([N] => [16], |i| (i,))] fourth: Out<f32>,
) {
    let (a, b, c, d, e) = (a.load(), b.load(), c.load(), d.load(), e.load());
    let y = a + b;
    first.store(y);
    let z = y * c;
    second.store(z);
    let w = z - d + y;
    third.store(w);
    fourth.store(w + e + a - w * b);
}

#[test]
fn many_operands_are_stored_in_turn() {
    for n in [1, 15, 16, 40] {
        check(|client| {
            let x: Vec<Array> = (1..6).map(|seed| numbers(client, &[n], seed)).collect();
            crowded(&x[0], &x[1], &x[2], &x[3], &x[4]).map(|(a, b, c, d)| vec![a, b, c, d])
        });
    }
}

/// Blocks over the edge of every axis, moved by a window.
#[kernel(grid = (cdiv(M, 4), cdiv(N, 8)))]
fn edges(
    #[block([M, N] => [4, 8], |i, j| (i, j), fill = 5.0)] x: In<f32>,
    #[block([M, N] => [4, 8], |i, j| (i, j))] out: Out<f32>,
) {
    let inside = x.valid(0) & x.valid(1);
    out.store(select(inside, x.load() + x.load().sum(1), 1.0));
    out.at((ds(1, 2), strided(0, 4, 2))).store(x.at((ds(1, 2), strided(1, 4, 2))).load());
}

#[test]
fn blocks_over_the_edge_are_filled_and_clipped() {
    for (m, n) in [(1, 1), (4, 8), (5, 9), (7, 15), (9, 1)] {
        check(|client| edges(numbers(client, &[m, n], 3)).map(|y| vec![y]));
    }
}

/// Windows and positions that data chooses, far outside of the block.
#[kernel(grid = (1))]
fn anywhere(
    #[prefetch([K])] at: Prefetch<i32>,
    #[block([N] => [4], |_i| (at.at(0),))] x: In<f32>,
    #[block([N] => [4], |_i| (at.at(0),))] out: Out<f32>,
) {
    let far = at.at(at.at(1));
    out.store(x.at(ds(far, 2)).load().broadcast([2]).pad([1], [1], 0.0) + x.load().take_along_axis(full([4], far), 0));
    out.at(ds(far, 3)).store(full([3], 1.0));
}

#[test]
fn data_can_not_reach_foreign_memory() {
    let client = Client::cpu();
    for far in [i32::MIN, -1_000_000, -3, 2, 1 << 20, i32::MAX] {
        let x = numbers(&client, &[16], 1);
        let at = client.array(&[far, far, far], &[3]).expect("it fits");
        let y = anywhere(&at, &x).expect("an access out of range is no error on the CPU");
        assert_eq!(y.len(), 16);
    }
}

/// Truth values that nobody wrote: unspecified, but truth values.
#[kernel(grid = (2))]
fn unwritten(
    #[block([N] => [64], |i| (i,))] x: In<f32>,
    #[block([N] => [64], |i| (i,))] out: Out<f32>,
    #[scratch([64])] seen: Scratch<bool>,
) {
    // A condition that data decide: the trace does not refuse what a program may not do.
    if x.load().max(0).item() > 0.0 {
        out.store(select(seen.load(), x.load(), x.load() * 2.0) + seen.load().cast::<f32>());
    }
}

#[test]
fn unwritten_memory_holds_values_of_its_type() {
    let client = Client::cpu();
    let ones = client.array(&[1.0f32; 128], &[128]).expect("it fits");
    // Fills the thread's memory with other bytes first.
    edges(numbers(&client, &[64, 64], 4)).expect("it runs");
    let y = unwritten(&ones).and_then(|y| y.to_vec::<f32>()).expect("no fault on the CPU");
    assert!(y.iter().all(|y| *y == 2.0), "{y:?}");
}
