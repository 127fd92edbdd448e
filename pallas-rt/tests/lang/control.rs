//! `if`, `for` and `while` at run time: what they carry, nested and with every kind of pattern.
use crate::both;
use pallas_rt::prelude::*;

/// Nested regions, a tile and a scalar carried, a shadowing, a variable declared inside, a side left out.
#[kernel(grid = (1))]
fn nest(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let (mut a, mut n) = (x.load(), scalar(0));
    let untouched = x.load();
    for i in 0..3 {
        let t = a * 2.0;
        if i % 2 == 0 {
            a += 1.0;
            for j in 0..i + 1 {
                n += 1;
                if j > 0 {
                    a = a + t;
                }
            }
        } else {
            let a = a * 100.0;
            let _ = a;
            n -= 10;
        }
    }
    let n = n.cast::<f32>();
    out.store(a + n + untouched * 0.0);
}

/// The same on one number.
fn nest_of_one(x: f32) -> f32 {
    let (mut a, mut n) = (x, 0.0);
    for i in 0..3 {
        let t = a * 2.0;
        if i % 2 == 0 {
            a += 1.0;
            for j in 0..i + 1 {
                n += 1.0;
                if j > 0 {
                    a += t;
                }
            }
        } else {
            n -= 10.0;
        }
    }
    a + n
}

#[test]
fn regions_nest() {
    let x = [0.0, 1.0, 2.0, 3.0];
    assert_eq!(both(x, |x| nest(x)), x.map(nest_of_one));
}

/// `while` with a compound condition, `step_by`, `rev`, an `if` with a value, tuples.
#[kernel(grid = (1))]
fn loops(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut a = x.load();
    let mut k = scalar(0);
    while k < 5 && !(k == 4) {
        k += 1;
        a = a + if k > 2 || k == 1 { full([N], 10.0) } else { zeros([N]) };
    }
    let mut acc = scalar(0);
    for i in (0..10).step_by(3).rev() {
        acc = acc * 10 + i;
    }
    let b = if acc > 0 { (a, acc) } else { (a * 0.0, 1 - acc) };
    out.store(b.0 + b.1.cast::<f32>());
}

#[test]
fn loops_carry() {
    let expected = [0.0, 1.0, 2.0, 3.0].map(|x| x + 30.0 + 9630.0);
    assert_eq!(both([0.0, 1.0, 2.0, 3.0], |x| loops(x)), expected);
}

fn bump(t: &mut Tile<f32>) {
    *t = *t + 1.0
}
fn helper(t: Tile<f32>, flag: bool) -> Tile<f32> {
    if flag { t + 1.0 } else { t }
}

/// Carried through a mutable reference, an array's elements, a closure.
#[kernel(grid = (1))]
fn by_reference(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut a = x.load();
    for _ in 0..3 {
        bump(&mut a);
    }
    let mut pair = [a, a];
    for i in 0..2 {
        pair[0] = pair[0] + 1.0;
        if i == 1 {
            pair[1] += 5.0;
        }
    }
    let mut add = |d: f32| a += d;
    for d in [1.0, 2.0] {
        add(d)
    }
    out.store(helper(pair[0] + pair[1] + a, true));
}

#[test]
fn mutable_references_are_seen() {
    assert_eq!(both([0.0; 4], |x| by_reference(x)), [20.0; 4]);
}

/// A loop that never runs gives what it carries; a condition on data decides per program.
#[kernel(grid = (1))]
fn rarely(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, n: i32) {
    let mut a = x.load();
    for _ in 0..n {
        a = a * 2.0;
    }
    let mut rounds = scalar(0);
    while a.sum(0).item() < 100.0 && rounds < n {
        a = a * 2.0;
        rounds += 1;
    }
    out.store(a + rounds.cast::<f32>());
}

#[test]
fn trip_counts_are_data() {
    assert_eq!(both([1.0, 2.0], |x| rarely(x, 0)), [1.0, 2.0]);
    assert_eq!(both([1.0, 2.0], |x| rarely(x, -3)), [1.0, 2.0]);
    // 8, 16 after three doublings; 64, 128 after three more reach 100.
    assert_eq!(both([1.0, 2.0], |x| rarely(x, 3)), [67.0, 131.0]);
}

/// A host value on the left decides whether the right is asked at all.
#[kernel(grid = (1))]
fn short_circuit(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] flag: bool,
) {
    let t = x.load();
    let other = if flag { vec![t - 5.0] } else { vec![] };
    let mut sum = t;
    if flag && t.sum(0).item() > 0.0 {
        sum += 10.0;
    }
    if !flag || other[0].sum(0).item() > 0.0 {
        sum += 100.0;
    }
    out.store(select(t > 1.0 && flag, sum, -sum))
}

#[test]
fn host_conditions_decide_alone() {
    assert_eq!(both([1.0, 2.0], |x| short_circuit(x, false)), [-101.0, -102.0]);
    assert_eq!(both([1.0, 2.0], |x| short_circuit(x, true)), [-11.0, 12.0]);
}

/// A host list of tiles, used inside of a staged loop; fields of a tuple carried; a raw identifier.
#[kernel(grid = (1))]
fn mixed(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] act: fn(Tile<f32>) -> Tile<f32>,
) {
    let tiles = vec![x.load(), x.load() * 2.0];
    let mut acc = zeros([4]);
    let mut best = (acc, scalar(0));
    let mut r#type = 0;
    let gain = |t: Tile<f32>| act(t) * 2.0;
    for i in 0..2 {
        for (k, t) in tiles.iter().enumerate() {
            acc += gain(*t) * k as f32;
            if k == 1 {
                continue;
            }
            acc += 1.0;
        }
        if i == 1 {
            best.0 = acc;
            best.1 += i;
        }
        let text = format!("{k} {}", 1 < 2, k = 3 < 4);
        assert!(text == "true true" && is_scalar(i));
    }
    if act as usize != 0 {
        r#type += 1;
    }
    let mut seen = Vec::new();
    for _ in [1, 2] {
        seen.push(acc);
        if seen.len() > 1 {
            seen.truncate(1)
        }
    }
    let first = if let [a, ..] = seen[..]
        && r#type == 1
    {
        a
    } else {
        x.load()
    };
    let total = tiles.into_iter().fold(first, |a, b| if r#type > 5 { a } else { a + b });
    out.store(total + best.0 + best.1.cast::<f32>());
}
fn is_scalar(_: Scalar<i32>) -> bool {
    true
}
fn relu(t: Tile<f32>) -> Tile<f32> {
    select(t.gt(0.0), t, 0.0)
}

#[test]
fn host_lists_and_closures_over_tiles() {
    // acc = 2 (gain(2x) + 1) with gain = 2 relu; total = acc + 3x; result = total + acc + 1.
    let expected = [-1.0, 0.0, 1.0, 2.0].map(|x: f32| {
        let acc = 2.0 * (4.0 * x.max(0.0) + 1.0);
        2.0 * acc + 3.0 * x + 1.0
    });
    assert_eq!(both([-1.0, 0.0, 1.0, 2.0], |x| mixed(x, relu)), expected);
}

macro_rules! generated {
    ($name:ident, $range:expr, $value:expr, $condition:expr) => {
        #[kernel(grid = (1))]
        fn $name(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
            let mut a = x.load();
            for i in $range {
                if $condition {
                    a = a + $value;
                }
                let _ = i;
            }
            out.store(a);
        }
    };
}
generated!(from_fragments, 0..3, 1.0 + 1.0, program_id(0) < 1);

macro_rules! made {
    ($name:ident, $ty:ty, $op:tt, $c:expr, $body:block) => {
        #[kernel(grid = (1))]
        fn $name(#[block([N] => [N], |_i| (0,))] x: In<$ty>, #[block([N] => [N], |_i| (0,))] out: Out<$ty>) {
            let mut y = x.load();
            for _i in 0..2 {
                if program_id(0) == 0 {
                    y = y $op $c;
                }
            }
            let z = $body;
            out.store(y + z)
        }
    };
}
made!(from_tokens, f32, *, 3.0, { 1.0 + 1.0 });

#[test]
fn kernels_from_macros() {
    assert_eq!(both([0.0; 2], |x| from_fragments(x)), [6.0; 2]);
    assert_eq!(both([1.0; 4], |x| from_tokens(x)), [11.0; 4]);
    let client = Client::cpu();
    let x = client.array(&[0.0f32; 2], &[2]).expect("it fits");
    let text = explain(|| from_fragments(&x)).expect("it explains").to_string();
    assert!(text.contains("= for") && text.contains("= if"), "{text}");
}

/// Values beside themselves: what a pass may decide of whole numbers, it may not of floats.
#[kernel(grid = (1))]
fn itself(#[block([N] => [1], |_i| (0,))] x: In<f32>, #[block([N] => [1], |_i| (0,))] out: Out<f32>, k: i32) {
    let s = x.load().sum(0).item();
    let mut found = scalar(0.0f32);
    if s == s {
        found += 1.0;
    }
    if s >= s {
        found += 2.0;
    }
    if k <= k {
        found += 4.0;
    }
    if k != k {
        found += 8.0;
    }
    out.fill(found);
}

#[test]
fn only_a_nan_differs_from_itself() {
    assert_eq!(both([1.5], |x| itself(x, 3)), [7.0]);
    assert_eq!(both([f32::NAN], |x| itself(x, 3)), [4.0]);
}

#[kernel(grid = (1))]
fn turns(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, n: i32) {
    let mut t = x.load();
    let mut i = scalar(0);
    while i < n {
        i += 1;
        t += 1.0;
    }
    out.store(t);
}

/// Runs in a new process with a low limit of iterations: the body as Rust, and the tile IR.
#[test]
fn a_while_without_an_end_is_reported() {
    if std::env::var("PALLAS_TEST_PROCESS").is_ok() {
        let x = Client::interpreter().array(&[0.0f32], &[1]).expect("it fits");
        assert_eq!(turns(&x, 50).and_then(|y| y.to_vec::<f32>()), Ok(vec![50.0]));
        let e = turns(&x, 1000).expect_err("51 turns");
        assert!(e.code() == "endless" && e.to_string().contains("this `while` has run 50 turns"), "{e}");
        return;
    }
    let process = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "control::a_while_without_an_end_is_reported"])
        .envs([("PALLAS_TEST_PROCESS", "1"), ("PALLAS_INTERPRET_TURNS", "50")])
        .output()
        .expect("it starts");
    assert!(process.status.success(), "{}", String::from_utf8_lossy(&process.stdout));
}

/// Ranges include both ends, forwards and backwards, with steps and run-time bounds; an empty range has no iteration.
#[kernel(grid = (1))]
fn inclusive(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, n: i32) {
    let mut digits = scalar(0);
    for i in 0..=2 {
        digits = digits * 10 + i;
    }
    for i in (n..=n + 4).step_by(2).rev() {
        digits = digits * 10 + i;
    }
    for i in 4..=n {
        digits = digits * 10 + i;
    }
    out.store(x.load() + digits.cast::<f32>());
}

#[test]
fn inclusive_ranges_are_staged() {
    assert_eq!(both([0.0], |x| inclusive(x, 1)), [12531.0]);
    assert_eq!(both([0.0], |x| inclusive(x, 4)), [128644.0]);
    let client = Client::cpu();
    let x = client.array(&[0.0f32], &[1]).expect("it fits");
    let text = explain(|| inclusive(&x, 1)).expect("it explains").to_string();
    assert!(text.contains("= for"), "{text}");
    let x = Client::interpreter().array(&[0.0f32], &[1]).expect("it fits");
    let error = inclusive(&x, i32::MAX).expect_err("its end has no successor").to_string();
    assert!(error.contains("a staged `for` can't reach 2147483647"), "{error}");
}

type Gains = Vec<Box<dyn Fn(Tile<f32>) -> Tile<f32> + Sync>>;

/// A staged region may read shared values: reference-counted ones, and closures that are `Sync`.
#[kernel(grid = (1))]
fn shared(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    use std::rc::Rc;
    let weights = Rc::new(vec![1.0f32, 2.0]);
    let nested = vec![(Rc::new([3.0f32]), Some(Rc::clone(&weights)))];
    let gains: Gains = vec![Box::new(|t| t * 2.0), Box::new(|t| t + 1.0)];
    let mut acc = x.load();
    for i in 0..2 {
        acc += weights[1] + nested[0].0[0];
        if i == 1 {
            acc = gains.iter().fold(acc, |t, gain| gain(t)) * weights[0];
        }
    }
    out.store(acc + nested.len() as f32);
}

#[test]
fn regions_read_what_is_shared() {
    assert_eq!(both([1.0], |x| shared(x)), [(1.0 + 10.0) * 2.0 + 1.0 + 1.0]);
}

/// A size as the left operand of a run-time number: a dimension that sizes a block, a const generic, and expressions of
/// them.
#[kernel(grid = (N))]
fn sizes<const B: usize>(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [1], |i| (i,))] out: Out<f32>,
    #[fixed] extra: usize,
) {
    let i = program_id(0);
    let last = N - 1;
    let host: usize = N + last * 2 - B;
    let sum = (N - 1 - i) + 10 * (last - i) + (B * 2 - i) * 100 + extra * i + (host % (i + 1)) + 3usize * i;
    out.store(x.at(ds(N - 1 - i, 1)).load() + sum.cast::<f32>() * 10.0);
}

/// The same for a dimension that sizes no block, and is therefore a run-time number.
#[kernel(grid = (N))]
fn reversed(#[block([N] => [1], |i| (N - 1 - i,))] x: In<f32>, #[block([N] => [1], |i| (i,))] out: Out<f32>) {
    out.store(x.load() + (N - 1 - program_id(0)).cast::<f32>() * 10.0);
}

#[test]
fn sizes_stand_left_of_run_time_numbers() {
    let plain = |i: usize| {
        let (n, b, extra) = (3, 4, 7);
        let host = n + (n - 1) * 2 - b;
        let sum = (n - 1 - i) + 10 * (n - 1 - i) + (b * 2 - i) * 100 + extra * i + host % (i + 1) + 3 * i;
        (n - 1 - i) as f32 + sum as f32 * 10.0
    };
    assert_eq!(both([0.0, 1.0, 2.0], |x| sizes::<4>(x, 7)), [0, 1, 2].map(plain));
    assert_eq!(both([0.0, 1.0, 2.0], |x| reversed(x)), [22.0, 11.0, 0.0]);
}
