//! Errors carry the file, line and column of the user's token.
use crate::error;
use pallas_rt::prelude::*;

/// `file:line:column` of the first character of `needle` behind `marker` in this file.
fn place(marker: &str, needle: &str) -> String {
    let text = include_str!("places.rs");
    let from = text.find(marker).expect("the marker is in this file");
    let at = from + text[from..].find(needle).expect("the needle stands behind the marker");
    let line = text[..at].matches('\n').count() + 1;
    let column = at - text[..at].rfind('\n').expect("not in the first line");
    format!("{}:{line}:{column}", file!())
}
#[track_caller]
fn blames(message: &str, marker: &str, needle: &str) {
    let place = place(marker, needle);
    assert!(message.starts_with(&place), "not {place} but: {message}");
}
/// A number that the check of the body can't know, so that tracing meets the mistake.
fn hidden(n: usize) -> usize {
    n
}

#[kernel(grid = (1))]
fn operator(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, n: i32) {
    let mut s = scalar(0);
    for i in 0..n {
        if i > 0 && i < 3 {
            s += i;
            debug_assert(s < 100, "small");
        }
    }
    let y = x.load() * 2.0 + full([hidden(3)], 1.0); // here
    out.store(y);
}

#[test]
fn an_operator_is_blamed_where_it_stands() {
    let message = error([0.0; 4], |x| operator(x, 4));
    blames(&message, "    let y = x.load() * 2.0 +", "x.load()");
    assert!(message.contains("of [4] and [3]"), "{message}");
}

#[kernel(grid = (1))]
fn sides(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let y = if program_id(0) == 0 { x.load() } else { x.load().slice([0], [hidden(2)]) }; // sides
    out.store(y);
}

#[kernel(grid = (1))]
fn carried(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mut a = x.load();
    for _ in 0..2 {
        a = a.slice([0], [hidden(2)]); // grows smaller
    }
    out.store(a);
}

#[kernel(grid = (1))]
fn compared(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let mask = x.load() < full([hidden(3)], 1.0); // compared
    out.store(select(mask, x.load(), 0.0));
}

#[kernel(grid = (1))]
fn stored(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(x.load().slice([0], [hidden(1)])); // stored
}

/// The error of a trace: the shapes of regions are only compared there.
fn trace_error(call: impl Fn(&Array) -> Result<Array>) -> String {
    let x = Client::cpu().array(&[0.0f32; 4], &[4]).expect("it fits");
    call(&x).expect_err("the kernel is wrong").to_string()
}

#[test]
fn regions_and_accesses_are_blamed_where_they_stand() {
    blames(&trace_error(|x| sides(x)), "let y = if program_id", "if");
    blames(&trace_error(|x| carried(x)), "fn carried(", "for _ in");
    blames(&error([0.0; 4], |x| compared(x)), "let mask =", "<");
    blames(&error([0.0; 4], |x| stored(x)), "fn stored(", "store(x.load().slice");
}

#[kernel(grid = (1))]
fn window(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(x.at(ds(2, hidden(4))).load()); // window
}
fn hidden_sign(n: i32) -> i32 {
    n
}
#[kernel(grid = (1))]
fn before(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, #[fixed] i: i32) {
    out.fill(x.at(hidden_sign(i)).load().item());
}
#[kernel(grid = (1))]
fn narrow(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let y = x.load().cast::<i8>() + 300; // narrow
    out.store(y.cast());
}

#[test]
fn what_numbers_decide_is_said_with_numbers() {
    let message = error([0.0; 4], |x| window(x));
    blames(&message, "out.store(x.at(ds", "at(ds");
    assert!(message.contains("2..6") && message.contains("4"), "{message}");
    let message = error([0.0; 4], |x| before(x, -1));
    blames(&message, "out.fill(x.at(hidden_sign", "at(hidden_sign");
    assert!(message.contains("elements -1..0 of an axis with 4"), "{message}");
    let message = error([0.0; 4], |x| narrow(x));
    assert!(message.contains("300 is out of range for i8"), "{message}");
}

#[kernel(grid = (1))]
fn panics(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    let v: Vec<f32> = vec![];
    for i in 0..2 {
        if i == 1 {
            out.store(x.load() * v[3]);
        }
    }
}

#[kernel(grid = (1))]
fn calls(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>, #[fixed] y: Array) {
    let inner = plain(&y);
    assert!(inner.is_err(), "a kernel inside of a kernel is an error");
    out.store(x.load());
}
#[kernel(grid = (1))]
fn plain(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store(x.load());
}

#[test]
fn a_panic_leaves_the_kernel() {
    let x = Client::cpu().array(&[1.0f32; 4], &[4]).expect("it fits");
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panics(&x).is_ok()));
    assert!(caught.is_err(), "the user's own panic passes through");
    // The context is gone: the next kernel runs.
    assert_eq!(plain(&x).and_then(|y| y.to_vec::<f32>()).expect("it runs"), [1.0; 4]);
}

#[test]
fn kernels_do_not_call_kernels() {
    let x = Client::cpu().array(&[1.0f32; 4], &[4]).expect("it fits");
    calls(&x, x.clone()).expect("the inner error was handled");
}

thread_local! {
    static LEAKED: std::cell::Cell<Option<Tile<f32>>> = const { std::cell::Cell::new(None) };
}
fn leak(t: Tile<f32>) -> Tile<f32> {
    LEAKED.set(Some(t));
    t
}
fn leaked(t: Tile<f32>) -> Tile<f32> {
    LEAKED.get().map_or(t, |old| old + t) // stale
}
#[kernel(grid = (1))]
fn apply(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
    #[fixed] f: fn(Tile<f32>) -> Tile<f32>,
) {
    out.store(f(x.load()));
}

#[test]
fn a_tile_of_another_call_is_refused() {
    let x = Client::cpu().array(&[1.0f32; 4], &[4]).expect("it fits");
    apply(&x, leak).expect("it runs");
    let message = apply(&x, leaked).expect_err("a stale tile").to_string();
    blames(&message, "LEAKED.get().map_or", "old + t");
    assert!(message.contains("another kernel call"), "{message}");
}

/// Elements outside of the array are undefined, and decide the condition that `which` selects.
#[kernel(grid = (1))]
fn undefined(
    #[block([N] => [4], |_i| (0,))] x: In<f32>,
    #[block([N] => [4], |_i| (0,))] out: Out<f32>,
    #[fixed] which: usize,
) {
    let sum = x.load().sum(0).item();
    let (mut n, end) = (scalar(0), sum.cast::<i32>());
    match which {
        0 => {
            if sum > 0.0 {
                n += 1;
            }
        }
        1 => {
            while sum > 1.0 {
                n += 1;
            }
        }
        2 => {
            for _ in 0..end {
                n += 1;
            }
        }
        3 => {
            for _ in 0..=end {
                n += 2;
            }
        }
        _ => {
            let both = sum > 2.0 && sum.abs().lt(9.0);
            n += both.cast::<i32>();
        }
    }
    out.store(x.load() + n.cast::<f32>());
}

#[test]
fn an_undefined_condition_or_bound_is_blamed_where_it_stands() {
    let x = Client::interpreter().array(&[0.0f32; 3], &[3]).expect("it fits");
    let expected = [("if sum > 0.0", "if"), ("while sum", "while"), ("for _ in 0..end", "for"), ("0..=end", "..=")];
    for (which, (marker, needle)) in expected.into_iter().chain([("let both", "&&")]).enumerate() {
        let message = undefined(&x, which).expect_err("it is undefined").to_string();
        blames(&message, marker, needle);
    }
}

#[test]
fn an_error_names_the_call() {
    let check = |message: String, marker: &str| {
        let call = place(marker, "narrowed(");
        assert!(message.contains(&format!("called at {call}")), "not {call} but: {message}");
        assert!(message.starts_with(file!()), "{message}");
    };
    let client = Client::cpu();
    let x = client.array(&[0.0f32; 4], &[2, 2]).expect("it fits");
    check(narrowed(&x).expect_err("a rank").to_string(), "check(narrowed(&x).expect_err(\"a rank");
    let x = client.array(&[0.0f32; 4], &[4]).expect("it fits");
    check(narrowed(&x).expect_err("a number out of range").to_string(), "check(narrowed(&x).expect_err(\"a number");
}
#[kernel(grid = (1))]
fn narrowed(#[block([N] => [N], |_i| (0,))] x: In<f32>, #[block([N] => [N], |_i| (0,))] out: Out<f32>) {
    out.store((x.load().cast::<i8>() + 300).cast());
}

/// Wrong: the sum is begun by the first row alone.
#[kernel(grid = (R, cdiv(C, 4)), semantics = (arbitrary, arbitrary))]
fn begun_once(
    #[block([R, C] => [_, 4], |r, j| (r, j), fill = 0.0)] x: In<f32>,
    #[block([R] => [1], |r, _| (r,))] out: Out<f32>,
) {
    if program_id(0) == 0 {
        out.fill(0.0);
    }
    out.store(out.load() + x.load().sum(0));
}
/// Wrong: the last block ends three elements after the array.
#[kernel(grid = (cdiv(N, 4)))]
fn padded(
    #[block([N] => [Element(6, 1, 0)], |i| (element(i * 4),), fill = 0.0)] x: In<f32>,
    #[block([N] => [4], |i| (i,))] out: Out<f32>,
) {
    out.store(x.at(ds(0, 4)).load() + x.at(ds(2, 4)).load());
}

#[test]
fn a_hint_says_what_to_change() {
    let client = Client::interpreter();
    let x = client.array(&[1.0f32; 6], &[2, 3]).expect("it fits");
    let message = begun_once(&x).expect_err("the second row's sum is undefined").to_string();
    assert!(message.contains("begin where `program_id` of that axis is 0"), "{message}");
    let x = client.array(&[1.0f32; 6], &[6]).expect("it fits");
    let message = padded(&x).expect_err("there is no such block").to_string();
    assert!(
        message.contains("`Element(6, 1, 0)`: offset 0 is 1 before") && message.contains("at most 0 after"),
        "{message}"
    );
}
