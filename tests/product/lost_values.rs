//! Faults of values that are lost without a trace: stores that a later step replaces, and integers that overflow. A
//! kernel says by `allow` that it means them.
use pallas_rt::prelude::*;

fn ten(client: &Client) -> Array {
    client.array(&(0..10).map(|i| i as f32).collect::<Vec<_>>(), &[10]).expect("it fits")
}

macro_rules! steps {
    ($($name:ident($($allow:tt)*) |$x:ident, $out:ident, $s:ident| $body:block)*) => {$(
        #[kernel(grid = (cdiv(N, 4)), semantics = (arbitrary) $($allow)*)]
        fn $name(
            #[block([N] => [4], |i| (i,), fill = 0.0)] $x: In<f32>,
            #[block([1] => [1], |_| (0,))] $out: Out<f32>,
            #[scratch([1])] $s: Scratch<f32>,
        ) {
            $s.fill(0.0);
            $body
        }
    )*};
}
steps! {
    last_block() |x, out, s| { out.store(x.load().sum(0)); }
    last_block_meant(, allow(lost_store)) |x, out, s| { out.store(x.load().sum(0)); }
    in_two_lines() |x, out, s| { let sum = x.load().sum(0); s.store(sum); out.store(s.load()); }
    added() |x, out, s| {
        if program_id(0) == 0 { out.fill(0.0); }
        out.store(out.load() + x.load().sum(0));
    }
    once() |x, out, s| {
        if program_id(0) == num_programs(0) - 1 { out.store(x.load().sum(0)); }
    }
    swapped() |x, out, s| {
        if program_id(0) == 0 { out.fill(0.0); }
        let before = out.swap(x.load().sum(0));
        debug_assert(before.ge(0.0), "read");
    }
}
#[kernel(grid = (cdiv(N, 4)), semantics = (arbitrary))]
fn running(
    #[block([N] => [4], |i| (i,), fill = 0.0)] x: In<f32>,
    #[block([1] => [1], |_| (0,))] out: Out<f32>,
    #[scratch([1])] s: Scratch<f32>,
) {
    if program_id(0) == 0 {
        s.fill(0.0);
    }
    s.store(s.load() + x.load().sum(0));
    // What was stored before is part of what is stored now.
    out.store(s.load());
}
#[kernel(grid = (N), semantics = (arbitrary))]
fn histogram(
    #[prefetch([N])] bins: Prefetch<i32>,
    #[block([4] => [4], |_| (0,))] out: Out<i32>,
    #[fixed] counts: bool,
) {
    if program_id(0) == 0 {
        out.fill(0);
    }
    let bin = out.at(ds(bins.at(program_id(0)), 1));
    if counts {
        bin.store(bin.load() + 1);
    } else {
        bin.fill(1);
    }
}

#[test]
fn a_store_that_a_later_step_replaces() {
    let x = &ten(&Client::interpreter());
    let code = |result: Result<Array>| result.map_or_else(|e| e.code().to_string(), |_| "ok".to_string());
    let e = last_block(x).expect_err("two of three sums are lost");
    assert!(e.code() == "lost-store" && e.to_string().contains("element [0] of `out` (block [0]) replaces"), "{e}");
    assert!(e.to_string().contains("lost_values.rs:") && e.to_string().contains("program [1]"), "{e}");
    assert_eq!(code(in_two_lines(x)), "lost-store");
    for (name, found) in [
        ("meant", last_block_meant(x)),
        ("added", added(x)),
        ("once", once(x)),
        ("swapped", swapped(x)),
        ("running", running(x)),
    ] {
        assert_eq!(code(found), "ok", "{name}");
    }
    let bins = Client::interpreter().array(&[0, 2, 2, 3], &[4]).expect("it fits");
    assert_eq!(code(histogram(&bins, false)), "lost-store");
    assert_eq!(histogram(&bins, true).expect("it counts").to_vec::<i32>().expect("i32"), [1, 0, 2, 1]);
    // No other device looks.
    assert_eq!(last_block(ten(&Client::cpu())).expect("it runs").to_vec::<f32>().expect("f32"), [17.0]);
}

macro_rules! narrow {
    ($($name:ident: $T:ident, ($($allow:tt)*) |$x:ident| $y:expr;)*) => {$(
        #[kernel(grid = (1) $($allow)*)]
        fn $name(#[block([N] => [N], |_| (0,))] x: In<$T>, #[block([N] => [N], |_| (0,))] out: Out<$T>) {
            let $x = x.load();
            out.store($y);
        }
    )*};
}
narrow! {
    difference: u8, () |x| x - 5;
    difference_meant: u8, (, allow(overflow)) |x| x - 5;
    difference_in_i32: u8, () |x| (x.cast::<i32>() - 5).cast::<u8>();
    product: i16, () |x| x * x;
    negated: i8, () |x| -x;
    total: i8, () |x| x + x.sum(0);
    running_total: u16, () |x| x.cumsum(0);
    power: i16, () |x| x.powi(3);
    wide: i32, () |x| x * x;
}

#[test]
fn integers_of_8_and_16_bits_that_overflow() {
    let client = Client::interpreter();
    macro_rules! found {
        ($name:ident, $T:ident, $x:expr) => {
            $name(&client.array::<$T>(&$x, &[4]).expect("it fits"))
        };
    }
    let e = found!(difference, u8, [7, 3, 9, 9]).expect_err("3 - 5");
    let text = e.to_string();
    assert!(e.code() == "overflow" && text.contains("lost_values.rs:"), "{e}");
    assert!(text.contains("`sub` of 3 and 5, element [1] of the tile, is -2, and u8 ends at 0 and 255"), "{e}");
    assert!(text.contains("allow(overflow)"), "{e}");
    assert!(found!(difference, u8, [5, 6, 7, 255]).is_ok());
    let wrapped = found!(difference_meant, u8, [7, 3, 9, 9]).and_then(|y| y.to_vec::<u8>());
    assert_eq!(wrapped.expect("it is meant"), [2, 254, 4, 4]);
    assert!(found!(difference_in_i32, u8, [7, 3, 9, 9]).is_ok());
    for (name, found, fits) in [
        ("product", found!(product, i16, [1, 2, 3, 200]), found!(product, i16, [1, 2, 3, 181])),
        ("negated", found!(negated, i8, [1, 2, -128, 4]), found!(negated, i8, [1, 2, -127, 4])),
        ("total", found!(total, i8, [100, 27, 1, 0]), found!(total, i8, [50, 20, 1, 0])),
        ("running", found!(running_total, u16, [65535, 0, 1, 0]), found!(running_total, u16, [65534, 0, 1, 0])),
        ("power", found!(power, i16, [1, 2, 33, 0]), found!(power, i16, [1, 2, 31, 0])),
    ] {
        assert_eq!(found.expect_err(name).code(), "overflow", "{name}");
        assert!(fits.is_ok(), "{name}: {fits:?}");
    }
    assert!(found!(wide, i32, [1 << 20; 4]).is_ok(), "wide integers wrap around");
}
