//! Every class of wrong kernel that the strict interpreter catches: a kernel with exactly that fault, and its corrected
//! twin, which passes.
use pallas_rt::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs on the interpreter: the fault's code, or `ok`.
fn verdict(result: Result<Array>) -> String {
    result.map_or_else(|e| e.code().to_string(), |_| "ok".to_string())
}
fn ten() -> Array {
    Client::interpreter().array(&(0..10).map(|i| i as f32).collect::<Vec<_>>(), &[10]).expect("it fits")
}

#[kernel(grid = (cdiv(N, B)))]
fn edge_summed<const B: usize>(
    #[block([N] => [B], |i| (i,))] x: In<f32>,
    #[block([N] => [B], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + x.load().sum(0));
}
#[kernel(grid = (cdiv(N, B)))]
fn edge_summed_with_fill<const B: usize>(
    #[block([N] => [B], |i| (i,), fill = 0.0)] x: In<f32>,
    #[block([N] => [B], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + x.load().sum(0));
}
#[test]
fn poison_from_outside_of_the_array() {
    assert_eq!(verdict(edge_summed::<4>(ten())), "poison");
    assert_eq!(verdict(edge_summed::<5>(ten())), "ok");
    assert_eq!(verdict(edge_summed_with_fill::<4>(ten())), "ok");
}

#[kernel(grid = (N), semantics = (arbitrary))]
fn uninitialised(
    #[block([N] => [1], |i| (i,))] x: In<f32>,
    #[block([N] => [1], |i| (i,))] out: Out<f32>,
    #[scratch([1])] sum: Scratch<f32>,
) {
    // Which program begins follows from the data: no error while tracing.
    if x.load().item() > 100.0 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load());
    out.store(sum.load());
}
const BEGUN_BY_DATA: u32 = line!() - 3;
#[kernel(grid = (N), semantics = (arbitrary))]
fn never_begun(
    #[block([N] => [1], |i| (i,))] x: In<f32>,
    #[block([N] => [1], |i| (i,))] out: Out<f32>,
    #[scratch([1])] sum: Scratch<f32>,
) {
    sum.store(sum.load() + x.load());
    out.store(sum.load());
}
#[kernel(grid = (N), semantics = (arbitrary))]
fn begun_late(
    #[block([N] => [1], |i| (i,))] x: In<f32>,
    #[block([N] => [1], |i| (i,))] out: Out<f32>,
    #[scratch([1])] sum: Scratch<f32>,
) {
    if program_id(0) == 1 {
        sum.fill(0.0);
    }
    sum.store(sum.load() + x.load());
    out.store(sum.load());
}
#[kernel(grid = (N), semantics = (arbitrary))]
fn initialised(
    #[block([N] => [1], |i| (i,))] x: In<f32>,
    #[block([N] => [1], |i| (i,))] out: Out<f32>,
    #[scratch([1])] sum: Scratch<f32>,
) {
    sum.fill(0.0);
    sum.store(sum.load() + x.load());
    out.store(sum.load());
}
#[test]
fn scratch_before_its_first_store() {
    let e = uninitialised(ten()).expect_err("no element is above 100").to_string();
    let line = BEGUN_BY_DATA;
    assert!(e.contains("comes from element [0] of scratch `sum`, which this program has not stored"), "{e}");
    assert!(e.contains(&format!("loaded at tests/product/faults.rs:{line}:")), "{e}");
    assert!(e.contains("help: store to `sum`"), "{e}");
    for (name, found) in [("never", never_begun(ten())), ("late", begun_late(ten()))] {
        let e = found.expect_err(name);
        assert!(
            e.code() == "early-read" && e.to_string().contains("scratch `sum` is read before it is written"),
            "{e}"
        );
    }
    assert_eq!(verdict(initialised(ten())), "ok");
}

/// Sums in an output along an axis that has no order. Who comes first follows from the data: no error while compiling.
#[kernel(grid = (N), semantics = (parallel))]
fn summed_by_anyone(
    #[prefetch([N])] first: Prefetch<i32>,
    #[block([N] => [1], |i| (i,))] x: In<f32>,
    #[block([1] => [1], |_| (0,))] out: Out<f32>,
) {
    if first.at(program_id(0)) == 1 {
        out.store(x.load());
    } else {
        out.store(out.load() + x.load());
    }
}
#[kernel(grid = (N), semantics = (arbitrary))]
fn summed_in_order(
    #[prefetch([N])] first: Prefetch<i32>,
    #[block([N] => [1], |i| (i,))] x: In<f32>,
    #[block([1] => [1], |_| (0,))] out: Out<f32>,
) {
    if first.at(program_id(0)) == 1 {
        out.store(x.load());
    } else {
        out.store(out.load() + x.load());
    }
}
#[test]
fn a_sum_over_a_parallel_axis() {
    let first = Client::interpreter().array(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[10]).expect("it fits");
    assert_eq!(verdict(summed_in_order(&first, ten())), "ok");
    let found = summed_by_anyone(&first, ten()).expect_err("programs have no order").to_string();
    assert!(found.contains("sum along an `arbitrary` axis"), "{found}");
}

/// A mistake, and what Rust makes of a tile that is none.
#[kernel(grid = (N))]
fn behind(#[block([N] => [1], |i| (i + 1,))] x: In<f32>, #[block([N] => [1], |i| (i,))] out: Out<f32>) {
    let x = x.load();
    let half = 1.0 / x.shape()[0] as f32;
    out.store(x * half);
}
#[test]
fn the_first_mistake_is_told_and_not_what_follows() {
    assert_eq!(verdict(behind(ten())), "block-range");
}

#[kernel(grid = (N))]
fn neighbour(#[block([N] => [1], |i| (i + 1,))] x: In<f32>, #[block([N] => [1], |i| (i,))] out: Out<f32>) {
    out.store(x.load());
}
#[kernel(grid = (N))]
fn neighbour_clamped(
    #[block([N] => [1], |i| (min(i + 1, N - 1),))] x: In<f32>,
    #[block([N] => [1], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load());
}
#[test]
fn block_out_of_range() {
    assert_eq!(verdict(neighbour(ten())), "block-range");
    assert_eq!(verdict(neighbour_clamped(ten())), "ok");
}

#[kernel(grid = (cdiv(N, 4)))]
fn half_written(#[block([N] => [4], |i| (i,), fill = 0.0)] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    if program_id(0) > 0 {
        out.store(x.load());
    }
}
#[kernel(grid = (cdiv(N, 4)))]
fn all_written(#[block([N] => [4], |i| (i,), fill = 0.0)] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    if program_id(0) > 0 {
        out.store(x.load());
    } else {
        out.fill(0.0);
    }
}
#[test]
fn unwritten_output() {
    let e = half_written(ten()).expect_err("the first block is not written");
    let (code, text, line) = (e.code(), e.to_string(), line!() - 17);
    assert!(code == "unwritten" && text.contains("element [0] of `out` (block [0]) is written by no program"), "{e}");
    assert!(text.contains(&format!("faults.rs:{line}:")) && !text.contains("program ["), "the kernel's line: {e}");
    assert!(text.contains(&format!("the store at tests/product/faults.rs:{}:", line + 3)), "{e}");
    assert!(text.contains("depends on a condition"), "{e}");
    assert_eq!(verdict(all_written(ten())), "ok");
}

#[kernel(grid = (4, 2), semantics = (arbitrary, arbitrary))]
fn alternating(#[block([N] => [N], |_, _| (0,))] x: In<f32>, #[block([2, N] => [1, N], |_, j| (j, 0))] out: Out<f32>) {
    out.store(x.load().reshape([1, N]));
}
#[kernel(grid = (2, 4), semantics = (arbitrary, arbitrary), allow(lost_store))]
fn consecutive(#[block([N] => [N], |_, _| (0,))] x: In<f32>, #[block([2, N] => [1, N], |i, _| (i, 0))] out: Out<f32>) {
    out.store(x.load().reshape([1, N]));
}
#[test]
fn block_revisited_later() {
    assert_eq!(verdict(alternating(ten())), "revisit");
    assert_eq!(verdict(consecutive(ten())), "ok");
}

#[kernel(grid = (3))]
fn raced(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,))] out: Out<f32>) {
    // Without the condition this does not compile.
    if program_id(0) < 3 {
        out.store(x.load());
    }
}
#[kernel(grid = (3), semantics = (arbitrary), allow(lost_store))]
fn in_order(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,))] out: Out<f32>) {
    if program_id(0) < 3 {
        out.store(x.load());
    }
}
#[test]
fn two_parallel_programs_write_one_block() {
    let e = raced(ten()).expect_err("three programs, one block");
    let text = e.to_string();
    assert!(
        e.code() == "race" && text.contains("block of `out` at [0]") && text.contains("the other is program ["),
        "{e}"
    );
    assert_eq!(verdict(in_order(ten())), "ok");
}

#[kernel(grid = (1))]
fn undecided(
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [N], |_| (0,))] out: Out<f32>,
    #[scratch([1])] flag: Scratch<f32>,
) {
    if x.load().sum(0).item() > 100.0 {
        flag.fill(1.0);
    }
    if flag.load().item() > 0.0 {
        out.store(x.load());
    } else {
        out.fill(0.0);
    }
}
#[kernel(grid = (1))]
fn decided(
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [N], |_| (0,))] out: Out<f32>,
    #[scratch([1])] flag: Scratch<f32>,
) {
    flag.fill(1.0);
    if flag.load().item() > 0.0 {
        out.store(x.load());
    } else {
        out.fill(0.0);
    }
}
#[test]
fn poisoned_condition() {
    let e = undecided(ten()).expect_err("nothing stored the flag");
    assert!(e.code() == "poisoned-decision" && e.to_string().contains("element [0] of scratch `flag`"), "{e}");
    assert_eq!(verdict(decided(ten())), "ok");
}

#[kernel(grid = (M))]
fn gathered(
    #[prefetch([M])] table: Prefetch<i32>,
    #[block([N] => [1], |i| (table.at(i),))] x: In<f32>,
    #[block([M] => [1], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load());
}
#[test]
fn prefetched_index_out_of_range() {
    let table = |v: [i32; 3]| Client::interpreter().array(&v, &[3]).expect("it fits");
    assert_eq!(verdict(gathered(table([0, 10, 3]), ten())), "block-range");
    let found = gathered(table([9, 0, 3]), ten()).expect("all indices are in range");
    assert_eq!(found.to_vec::<f32>().expect("f32"), [9.0, 0.0, 3.0]);
    // The CPU touches no memory outside of the array, whatever the table holds.
    let cpu = Client::cpu();
    let wild = cpu.array(&[-5, i32::MAX, 1], &[3]).expect("it fits");
    let x = ten().to_device(&cpu).expect("it fits");
    assert_eq!(gathered(&wild, &x).expect("clamped or filled").to_vec::<f32>().expect("f32")[2], 1.0);
}

#[kernel(grid = (1))]
fn picked(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,))] out: Out<f32>, shift: i32) {
    out.store(x.load().take_along_axis(iota::<i32>([N], 0) + shift, 0));
}
#[test]
fn index_of_take_along_axis_out_of_range() {
    assert_eq!(verdict(picked(ten(), 1)), "index-range");
    assert_eq!(verdict(picked(ten(), 0)), "ok");
}

#[kernel(grid = (1))]
fn picked_by_memory(
    #[block([N] => [N], |_| (0,))] x: In<f32>,
    #[block([N] => [N], |_| (0,))] out: Out<f32>,
    #[scratch([N])] index: Scratch<i32>,
    #[fixed] initialised: bool,
) {
    if initialised {
        index.fill(3);
    }
    out.store(x.load().take_along_axis(index.load(), 0));
}
#[test]
fn undefined_index() {
    assert_eq!(verdict(picked_by_memory(ten(), false)), "poisoned-index");
    assert_eq!(verdict(picked_by_memory(ten(), true)), "ok");
}

#[kernel(grid = (1))]
fn windowed(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([4] => [4], |_| (0,))] out: Out<f32>, start: i32) {
    out.store(x.at(ds(start, 4)).load());
}
#[test]
fn view_outside_of_its_block() {
    for (start, expected) in [(7, "view-range"), (-1, "view-range"), (6, "ok")] {
        assert_eq!(verdict(windowed(ten(), start)), expected, "from {start}");
    }
}

#[kernel(grid = (1))]
fn in_steps(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,))] out: Out<f32>, step: i32) {
    let mut sum = x.load();
    for i in (0..4).step_by(step) {
        sum += i.cast::<f32>();
    }
    out.store(sum);
}
#[test]
fn loop_that_does_not_advance() {
    for (step, expected) in [(0, "step"), (-2, "step"), (3, "ok")] {
        assert_eq!(verdict(in_steps(ten(), step)), expected, "in steps of {step}");
    }
}

#[kernel(grid = (1))]
fn asserted(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,))] out: Out<f32>, limit: f32) {
    debug_assert(x.load().lt(limit), "below the limit");
    out.store(x.load());
}
#[test]
fn failed_assertion() {
    for client in [Client::interpreter(), Client::cpu()] {
        let x = ten().to_device(&client).expect("it fits");
        let failed = asserted(&x, 5.0).and_then(|y| y.block_until_ready());
        let e = failed.expect_err("5 is not below 5");
        assert!(e.code() == "assert" && e.to_string().contains("below the limit"), "{e}");
        assert_eq!(verdict(asserted(&x, 100.0)), "ok");
    }
}

#[kernel(grid = (N))]
fn asserted_by_many(
    #[block([N, 512] => [1, 512], |i| (i, 0))] x: In<f32>,
    #[block([N] => [1], |i| (i,))] out: Out<f32>,
) {
    debug_assert(program_id(0) < 300, "one of the first");
    out.store(x.load().sum(1).reshape([1]));
}
#[test]
fn the_first_failed_program_is_reported_whichever_thread_ran_it() {
    let x = Array::from_slice(&vec![1.0f32; 1000 * 512], &[1000, 512]).expect("it fits");
    let x = x.to_device(&Client::cpu()).expect("it fits");
    for _ in 0..10 {
        let failed = asserted_by_many(&x).and_then(|y| y.block_until_ready());
        let e = failed.expect_err("700 programs fail").to_string();
        assert!(e.contains("[300]") && e.contains("one of the first"), "{e}");
    }
}

/// Keeps its tile beyond its program, on purpose.
fn remembered(x: Tile<f32>) -> Tile<f32> {
    thread_local! { static KEPT: std::cell::Cell<Option<Tile<f32>>> = const { std::cell::Cell::new(None) }; }
    KEPT.replace(Some(x)).unwrap_or(x)
}
#[kernel(grid = (N))]
fn stale(#[block([N] => [1], |i| (i,))] x: In<f32>, #[block([N] => [1], |i| (i,))] out: Out<f32>) {
    out.store(remembered(x.load()) + 1.0);
}
#[kernel(grid = (N))]
fn fresh(#[block([N] => [1], |i| (i,))] x: In<f32>, #[block([N] => [1], |i| (i,))] out: Out<f32>) {
    let kept = x.load();
    out.store(kept + 1.0);
}
#[kernel(grid = (1))]
fn calls_another(#[block([N] => [N], |_| (0,))] x: In<f32>, #[block([N] => [N], |_| (0,))] out: Out<f32>) {
    assert_eq!(fresh(ten()).expect_err("kernels do not call kernels").code(), "nested-kernel");
    out.store(x.load());
}
#[test]
fn handles_of_another_program_or_kernel() {
    let e = stale(ten()).expect_err("the tile of an earlier program");
    assert!(e.code() == "stale-handle" && e.to_string().contains("tiles live only while their kernel runs"), "{e}");
    assert_eq!(verdict(fresh(ten())), "ok");
    assert_eq!(verdict(calls_another(ten())), "ok");
}

#[kernel(grid = (N))]
fn shifted_in_place(
    #[block([N] => [1], |i| (max(i - 1, 0),))] x: In<f32>,
    #[block([N] => [1], |i| (i,), alias = x)] out: Out<f32>,
) {
    out.store(x.load());
}
#[kernel(grid = (N))]
fn shifted_in_memory_of_its_own(
    #[block([N] => [1], |i| (max(i - 1, 0),))] x: In<f32>,
    #[block([N] => [1], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load());
}
#[test]
fn an_alias_read_by_one_program_and_written_by_another() {
    let e = shifted_in_place(ten()).expect_err("programs run in any order");
    let text = e.to_string();
    assert!(e.code() == "race" && text.contains("another parallel program") && text.contains("(block ["), "{e}");
    assert!(text.contains("; the other is program [") && text.contains("or leave `alias` out"), "{e}");
    assert_eq!(verdict(shifted_in_memory_of_its_own(ten())), "ok");
}

#[kernel(grid = (M))]
fn beyond_the_table(#[prefetch([M])] table: Prefetch<i32>, #[block([M] => [1], |i| (i,))] out: Out<i32>) {
    out.fill(table.at(program_id(0) + 1));
}
#[kernel(grid = (M))]
fn within_the_table(#[prefetch([M])] table: Prefetch<i32>, #[block([M] => [1], |i| (i,))] out: Out<i32>) {
    out.fill(table.at((program_id(0) + 1) % M));
}
#[test]
fn index_of_a_prefetch_out_of_range() {
    let table = Client::interpreter().array(&[3, 4, 5], &[3]).expect("it fits");
    let e = beyond_the_table(&table).expect_err("table[3] of 3");
    assert!(e.code() == "prefetch-range" && e.to_string().contains('3'), "{e}");
    assert_eq!(verdict(within_the_table(&table)), "ok");
}

/// A shape gives a name its size only where the name stands alone.
#[kernel(grid = (N))]
fn unbound(
    #[block([M + N] => [1], |i| (i,))] x: In<f32>,
    #[block([M] => [1], |i| (i,))] out: Out<f32>,
    #[dim] M: usize,
) {
    out.store(x.load());
}
#[kernel(grid = (N))]
fn given(#[block([M] => [1], |_| (0,))] x: In<f32>, #[block([N] => [1], |i| (i,))] out: Out<f32>, #[dim] N: usize) {
    out.store(x.load() + (N + 1).cast::<f32>());
}
#[test]
fn a_dimension_that_nothing_binds() {
    let e = unbound(ten(), 4).expect_err("N is part of a sum only");
    assert!(e.code() == "unbound" && e.to_string().contains("`N`") && e.to_string().contains("#[dim] N"), "{e}");
    assert_eq!(verdict(given(ten(), 4)), "ok");
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let ten = ten();
    let e = given(&ten, 1usize << 40).expect_err("too many elements");
    assert_eq!(e.code(), "extent", "{e}");
    let square = ten.reshape(&[2, 5]);
    assert_eq!(verdict(edge_summed::<5>(&square)), "rank");
    let ints = Client::interpreter().array(&[1i32; 10], &[10]).expect("it fits");
    assert_eq!(verdict(edge_summed::<5>(&ints)), "dtype");
}

#[kernel(grid = (cdiv(N, 4)))]
fn amplified(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    // exp(9) is 8103.08: what remains of it is rounding, made large.
    out.store((x.load().exp() - 8103.0839) * 1e6);
}
#[test]
fn check_names_the_first_difference() {
    let cpu = Client::cpu();
    let x: Vec<f32> = (0..64).map(|i| 9.0 + i as f32 * 1e-6).collect();
    let e = check(|| amplified(cpu.array(&x, &[64]).expect("it fits"))).expect_err("rounding differs somewhere");
    let (text, line) = (e.to_string(), line!() - 7);
    assert!(e.code() == "check" && text.contains("of `out` (block [") && text.contains("the interpreter has"), "{e}");
    assert!(text.contains(&format!("faults.rs:{line}:")), "the line of the store: {e}");
    assert_eq!(check(|| fresh(ten().to_device(&cpu)?)).expect("they agree").kernels, 1);
}

/// Rust code that keeps count: a device's kernel has the number of its one trace.
#[kernel(grid = (cdiv(N, 4)))]
fn counting(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    let before = CALLS.fetch_add(1, Ordering::Relaxed);
    out.store(x.load() + before as f32);
}
static CALLS: AtomicUsize = AtomicUsize::new(0);
#[test]
fn check_tells_of_rust_code_that_counts() {
    let e = check(|| counting(ten().to_device(&Client::cpu())?)).expect_err("the numbers differ");
    assert!(e.code() == "check" && e.to_string().contains("its Rust code counts by itself"), "{e}");
}

#[test]
fn a_fault_names_kernel_program_and_line() {
    let line = 19;
    let text = edge_summed::<4>(ten()).expect_err("poison").to_string();
    assert!(text.contains(&format!("tests/product/faults.rs:{line}:")), "{text}");
    assert!(text.contains("`edge_summed`") && text.contains("program [2]") && text.contains("fill"), "{text}");
    assert!(text.contains("comes from outside of `x`, whose shape is [10]: element [2] of the loaded tile"), "{text}");
}
