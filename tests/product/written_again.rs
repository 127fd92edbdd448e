//! A tile stays what it was when the scratch it was loaded from, or the variable that held it, is written again.
//!
//! Every device gives memory and variables new names in its own way: values that branches and loops carry, tiles that
//! refer to memory instead of copying it, registers that change places.
#![allow(clippy::manual_swap, reason = "variables change places by hand: that is what kernels are tested for")]
use crate::support::{again, clients, gpu};
use pallas_rt::prelude::*;

/// Steps along the sequential axis.
const STEPS: usize = 5;
/// Rows and columns of a block.
const BLOCK: [usize; 2] = [4, 8];
const ELEMENTS: usize = BLOCK[0] * BLOCK[1];

/// `a` and `b` are written whole, `c` in parts as well.
#[kernel(grid = (P, S), semantics = (parallel, arbitrary))]
fn scratch(
    #[block([P, S, 4, 8] => [_, _, 4, 8], |p, s| (p, s, 0, 0))] x: In<i32>,
    #[block([P, S, 4, 8] => [_, _, 4, 8], |p, s| (p, s, 0, 0))] out: Out<i32>,
    #[scratch([4, 8])] a: Scratch<i32>,
    #[scratch([4, 8])] b: Scratch<i32>,
    #[scratch([4, 8])] c: Scratch<i32>,
) {
    let step = program_id(1);
    if step == 0 {
        a.fill(1);
        b.fill(2);
        c.fill(3);
    }
    let x = x.load();
    let old = a.load();
    a.store(old * 3 + x);
    let new = a.load();
    // Change places.
    let (left, right) = (a.load(), b.load());
    a.store(right);
    b.store(left - old);
    // One side writes, and reads what the other left.
    if step % 2 == 1 {
        a.store(b.load() + 1);
        b.store(old);
    } else {
        b.store(a.load() * 5);
    }
    // A tile, and rows of it, from before a part is overwritten.
    let (whole, rows) = (c.load(), c.at(ds(1, 2)).load());
    c.at(ds(step % 3, 2)).store(new.slice([0, 0], [2, 8]));
    let after = c.at(ds(1, 2)).load();
    c.at(ds(2, 2)).store(rows + after);
    let mut sum = old;
    for part in [new, a.load(), b.load(), whole, c.load(), concat([rows, after], 0)] {
        sum = sum * 31 + part;
    }
    out.store(sum);
}

/// The same on plain numbers, for one row of steps.
fn scratch_by_hand(x: &[i32]) -> Vec<i32> {
    let (mut a, mut b, mut c) = (vec![1i32; ELEMENTS], vec![2i32; ELEMENTS], vec![3i32; ELEMENTS]);
    let mut out = vec![];
    for (step, x) in x.chunks(ELEMENTS).enumerate() {
        let each = |f: &dyn Fn(usize) -> i32| (0..ELEMENTS).map(f).collect::<Vec<i32>>();
        let old = a.clone();
        let new = each(&|i| old[i].wrapping_mul(3).wrapping_add(x[i]));
        (a, b) = (b, each(&|i| new[i].wrapping_sub(old[i])));
        if step % 2 == 1 {
            a = each(&|i| b[i].wrapping_add(1));
            b = old.clone();
        } else {
            b = each(&|i| a[i].wrapping_mul(5));
        }
        let (whole, rows) = (c.clone(), c[8..24].to_vec());
        let first = step % 3 * 8;
        c[first..first + 16].copy_from_slice(&new[..16]);
        let after = c[8..24].to_vec();
        (0..16).for_each(|i| c[16 + i] = rows[i].wrapping_add(after[i]));
        let both = [rows, after].concat();
        out.extend(each(&|i| {
            [&new, &a, &b, &whole, &c, &both]
                .iter()
                .fold(old[i], |sum, part| sum.wrapping_mul(31).wrapping_add(part[i]))
        }));
    }
    out
}

#[test]
fn scratch_that_is_written_again() {
    let x: Vec<i32> = (0..2 * STEPS * ELEMENTS).map(|i| (i * i % 23) as i32 - 11).collect();
    let want: Vec<i32> = x.chunks(STEPS * ELEMENTS).flat_map(scratch_by_hand).collect();
    for client in clients() {
        let x = client.array(&x, &[2, STEPS, 4, 8]).expect("it fits");
        assert_eq!(scratch(&x).and_then(|y| y.to_vec::<i32>()), Ok(want.clone()), "{client:?}");
    }
}

/// Variables that change places in loops and branches; one is read behind its change.
#[kernel(grid = (1))]
fn variables(
    #[block([4, 8] => [4, 8], |_| (0, 0))] x: In<i32>,
    #[block([4, 8] => [4, 8], |_| (0, 0))] out: Out<i32>,
    n: i32,
) {
    let x = x.load();
    let (mut a, mut b, mut c) = (x, x * 2 + 1, full::<i32>([4, 8], 7));
    let mut count = scalar(1);
    for i in 0..n {
        let first = a;
        a = b;
        b = c;
        c = first + a * i;
        if count % 2 == 1 {
            let kept = b;
            b = a.reverse(1);
            a = kept + count;
        }
        let before = count;
        count += 2;
        c += before;
    }
    let mut left = n;
    let (mut d, mut last) = (a, c);
    while left > 0 {
        let kept = d;
        d = last - left;
        last = kept;
        left -= 1;
    }
    out.store((((a * 31 + b) * 31 + c) * 31 + d) * 31 + last);
}

fn variables_by_hand(x: &[i32], n: i32) -> Vec<i32> {
    let each = |f: &dyn Fn(usize) -> i32| (0..ELEMENTS).map(f).collect::<Vec<i32>>();
    let (mut a, mut b, mut c) = (x.to_vec(), each(&|i| x[i] * 2 + 1), vec![7; ELEMENTS]);
    let mut count = 1;
    for i in 0..n {
        let first = a;
        a = b;
        b = c;
        c = each(&|e| first[e].wrapping_add(a[e].wrapping_mul(i)));
        if count % 2 == 1 {
            let kept = b;
            b = each(&|e| a[e / 8 * 8 + 7 - e % 8]);
            a = each(&|e| kept[e].wrapping_add(count));
        }
        c = each(&|e| c[e].wrapping_add(count));
        count += 2;
    }
    let (mut d, mut last) = (a.clone(), c.clone());
    for left in (1..=n).rev() {
        (d, last) = (each(&|e| last[e].wrapping_sub(left)), d);
    }
    each(&|e| [b[e], c[e], d[e], last[e]].iter().fold(a[e], |sum, part| sum.wrapping_mul(31).wrapping_add(*part)))
}

#[test]
fn variables_that_are_written_again() {
    let x: Vec<i32> = (0..ELEMENTS).map(|i| (i * i % 19) as i32 - 9).collect();
    for client in clients() {
        let tile = client.array(&x, &[4, 8]).expect("it fits");
        for n in 0..5 {
            let found = variables(&tile, n).and_then(|y| y.to_vec::<i32>());
            assert_eq!(found, Ok(variables_by_hand(&x, n)), "{n} rounds on {client:?}");
        }
    }
}

/// Loops that exchange and do little else: what a round hands on is what another variable held, whole or turned.
#[kernel(grid = (1))]
fn exchanged(
    #[block([4, 4] => [4, 4], |_| (0, 0))] x: In<i32>,
    #[block([4, 4] => [4, 4], |_| (0, 0))] y: In<i32>,
    #[block([4, 4] => [4, 4], |_| (0, 0))] plain: Out<i32>,
    #[block([4, 4] => [4, 4], |_| (0, 0))] turned: Out<i32>,
    #[block([4, 4] => [4, 4], |_| (0, 0))] factors: Out<i32>,
    n: i32,
) {
    let (mut a, mut b) = (x.load(), y.load());
    let (mut s, mut t) = (scalar(3), scalar(5));
    for _ in 0..n {
        let (kept, count) = (a, s);
        a = b;
        b = kept;
        s = t;
        t = count;
    }
    plain.store(a * 31 + b * s - t);
    let (mut a, mut b) = (x.load(), y.load());
    for _ in 0..n {
        let kept = a;
        a = b.t();
        b = kept;
    }
    turned.store(a * 31 + b);
    let (mut a, mut b, mut sum) = (x.load(), y.load(), zeros::<i32>([4, 4]));
    for _ in 0..n {
        sum = sum * 3 + dot(a, b);
        let kept = a;
        a = b;
        b = kept;
    }
    factors.store(sum + a * 31 + b);
}

#[test]
fn variables_that_change_places() {
    let (x, y): (Vec<i32>, Vec<i32>) = (0..16).map(|i| (i * i % 13 - 4, i * 5 % 11 - 6)).unzip();
    let each = |f: &dyn Fn(usize) -> i32| (0..16).map(f).collect::<Vec<i32>>();
    let turn = |x: &[i32]| each(&|i| x[i % 4 * 4 + i / 4]);
    for client in clients() {
        let (left, right) = (client.array(&x, &[4, 4]).expect("it fits"), client.array(&y, &[4, 4]).expect("it fits"));
        for n in 0..5 {
            let (mut a, mut b, mut c, mut d, mut sum) = (x.clone(), y.clone(), x.clone(), y.clone(), vec![0; 16]);
            for _ in 0..n {
                sum = each(&|i| sum[i] * 3 + (0..4).map(|k| a[i / 4 * 4 + k] * b[k * 4 + i % 4]).sum::<i32>());
                (a, b) = (b, a);
                (c, d) = (turn(&d), c);
            }
            let (s, t) = if n % 2 == 0 { (3, 5) } else { (5, 3) };
            let (plain, turned, factors) = exchanged(&left, &right, n).expect("it runs");
            let want = [
                each(&|i| a[i] * 31 + b[i] * s - t),
                each(&|i| c[i] * 31 + d[i]),
                each(&|i| sum[i] + a[i] * 31 + b[i]),
            ];
            for (found, want) in [plain, turned, factors].iter().zip(want) {
                assert_eq!(found.to_vec::<i32>(), Ok(want), "{n} rounds on {client:?}");
            }
        }
    }
}

/// A software adapter, placed as a graphics card: there more lies in registers.
#[test]
fn written_again_as_on_a_graphics_card() {
    if gpu().is_some() {
        let tests =
            ["scratch_that_is_written_again", "variables_that_are_written_again", "variables_that_change_places"];
        for test in tests {
            again(&format!("written_again::{test}"), &[("PALLAS_PROFILE", "gpu")]);
        }
    }
}
