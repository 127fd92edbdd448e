//! No safe code makes a launch undefined: invalid bit patterns, arguments of a wrong kind, programs that write the same
//! elements, and extents, ranks and memory beyond the limits.
use crate::check;
use pallas_rt::__private::{Argument, Input, param};
use pallas_rt::prelude::*;

/// Returns the error code of a refusal.
#[track_caller]
fn refused<T>(result: Result<T>) -> String {
    result.err().expect("it is refused").code().to_string()
}

#[kernel(grid = (cdiv(N, 8)))]
fn truths(
    #[prefetch([N])] table: Prefetch<bool>,
    #[block([N] => [8], |i| (i,))] x: In<bool>,
    #[block([N] => [8], |i| (i,))] same: Out<bool>,
    #[block([N] => [8], |i| (i,))] numbers: Out<i32>,
) {
    let (x, first) = (x.load(), select(table.at(program_id(0) * 8), 10, 20));
    same.store(x);
    numbers.store(x.cast::<i32>() + select(x, 100, 200) + first);
}

#[test]
fn any_byte_but_0_is_true() {
    let outputs = check(|client| {
        let mut x = client.zeros(&[64], DType::Bool)?;
        let buffer = x.buffer_mut().ok().flatten().expect("nobody shares it");
        let bytes = buffer.bytes_mut().expect("nothing failed").expect("host memory");
        bytes.iter_mut().zip(0..).for_each(|(byte, i)| *byte = i);
        truths(&x, &x).map(|(a, b)| vec![a, b])
    });
    assert_eq!(outputs[0], (0..64).map(|i| u8::from(i != 0)).collect::<Vec<u8>>());
}

#[kernel(grid = (cdiv(N, 8)))]
fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    out.store(x.load() * 2.0);
}

#[test]
fn an_argument_of_another_kind_is_refused() {
    struct Number;
    impl Input for Number {
        fn into_argument(self) -> Argument {
            param(1.0f32)
        }
    }
    assert_eq!(refused(doubled(Number)), "argument");
    // Also after a call of the same kernel, which the thread remembers.
    let x = Client::cpu().full(&[8], 1.0f32).expect("it fits");
    assert_eq!(doubled(&x).and_then(|y| y.to_vec::<f32>()), Ok(vec![2.0; 8]));
    assert_eq!(refused(doubled(Number)), "argument");
}

/// Overlapping windows in the memory of the result.
#[kernel(grid = (N))]
fn summed_in_place(
    #[block([N] => [Element(2, 1, 0)], |i| (element(i),), fill = 0.0)] x: In<f32>,
    #[block([N] => [1], |i| (i,), alias = x)] out: Out<f32>,
    yes: i32,
    #[fixed] certain: bool,
) {
    if certain {
        out.store(x.load().sum(0));
    } else {
        if yes > 0 {
            out.store(x.load().sum(0));
        }
    }
}

#[kernel(grid = (T))]
fn scattered(
    #[prefetch([T])] table: Prefetch<i32>,
    #[block([T] => [1], |i| (i,))] new: In<f32>,
    #[block([N, D] => [_, D], |i| (table.at(i), 0))] x: In<f32>,
    #[block([N, D] => [_, D], |i| (table.at(i), 0), alias = x)] out: Out<f32>,
    least: i32,
    #[fixed] certain: bool,
) {
    let row = new.load().broadcast([D]);
    if certain {
        out.store(row);
    } else {
        if table.at(program_id(0)) >= least {
            out.store(row);
        }
    }
}

/// Two programs store to each block.
#[kernel(grid = (T))]
fn accumulated(#[block([T] => [1], |i| (i,))] x: In<f32>, #[block([1] => [1], |i| (i / 2,))] out: Out<f32>) {
    out.store(x.load());
}

#[test]
fn programs_that_certainly_meet_are_refused() {
    for client in [Client::cpu(), Client::interpreter()] {
        let x = |n: usize| client.full(&[n], 1.0f32).expect("it fits");
        let table = |entries: &[i32]| client.array(entries, &[entries.len()]).expect("it fits");
        let rows = || client.zeros(&[9, 4], DType::F32).expect("it fits");
        assert_eq!(refused(summed_in_place(x(9), 1, true)), "race");
        assert_eq!(refused(scattered(table(&[3, 8, 3]), x(3), rows(), 0, true)), "race");
        assert_eq!(refused(accumulated(x(2))), "race");
        assert_eq!(accumulated(x(1)).and_then(|y| y.to_vec::<f32>()), Ok(vec![1.0]));
        let apart = scattered(table(&[3, 8, 0]), x(3), rows(), 0, true).expect("rows are apart");
        assert_eq!(apart.to_vec::<f32>().expect("host memory").iter().sum::<f32>(), 12.0);
    }
}

#[test]
fn programs_that_may_meet_run_in_order() {
    // Enough work for all threads: each program adds to the result of the one before it.
    let (client, n) = (Client::cpu(), 100_000);
    for _ in 0..3 {
        let sums = summed_in_place(client.full(&[n], 1.0f32).expect("it fits"), 1, false).expect("it runs");
        let sums = sums.to_vec::<f32>().expect("host memory");
        assert!(sums.iter().zip(1..).all(|(&sum, i)| sum == i as f32), "programs ran in another order");
        // Of equal entries the last one is kept.
        let table: Vec<i32> = (0..n as i32).map(|i| i % 7).collect();
        let new: Vec<f32> = (0..n).map(|i| i as f32 + 1.0).collect();
        let (table, new) = (client.array(&table, &[n]).expect("it fits"), client.array(&new, &[n]).expect("it fits"));
        let rows = scattered(&table, &new, client.zeros(&[7, 4], DType::F32).expect("it fits"), 0, false);
        let rows = rows.and_then(|y| y.to_vec::<f32>()).expect("it runs");
        assert!(rows.iter().all(|&row| row > (n - 8) as f32), "{rows:?}");
    }
}

/// Programs that no entry of a map separates, but the sizes of this launch do; and two axes, one of which is an entry.
#[kernel(grid = (P, S, G), semantics = (parallel, arbitrary, parallel))]
fn parts(
    #[block([N, G] => [4, _], |p, s, g| (p * S + s, g))] x: In<f32>,
    #[block([N, G] => [4, _], |p, s, g| (p * S + s, g))] out: Out<f32>,
    #[dim] P: usize,
    #[dim] S: usize,
) {
    out.store(x.load() + 1.0);
}

#[test]
fn programs_that_sizes_keep_apart() {
    for (p, s) in [(4, 2), (1, 8), (8, 1)] {
        check(|client| parts(crate::numbers(client, &[32, 3], 1), p, s).map(|y| vec![y]));
    }
}

/// Distant blocks are outside of the array, even where their positions would wrap around.
#[kernel(grid = (T))]
fn gathered(
    #[prefetch([T])] table: Prefetch<i32>,
    #[block([N] => [8], |i| (table.at(i),), fill = -1.0)] x: In<f32>,
    #[block([T, 8] => [_, 8], |i| (i, 0))] out: Out<f32>,
) {
    out.store(x.load());
}

#[test]
fn positions_of_blocks_do_not_wrap() {
    let client = Client::cpu();
    let x = client.full(&[16], 1.0f32).expect("it fits");
    let table = client.array(&[1, 1 << 29, -(1 << 29), i32::MAX, i32::MIN, 2], &[6]).expect("it fits");
    let rows = gathered(&table, &x).and_then(|y| y.to_vec::<f32>()).expect("it runs");
    assert!(rows[..8].iter().all(|&x| x == 1.0) && rows[8..].iter().all(|&x| x == -1.0), "{rows:?}");
}

#[kernel(grid = (cdiv(N, 1048576)))]
fn long(
    #[block([N, Z] => [1048576, Z], |i| (i, 0))] x: In<u8>,
    #[block([N, Z] => [1048576, Z], |i| (i, 0), alias = x)] out: Out<u8>,
) {
    out.store(x.load() + 1);
}

#[test]
fn extents_end_where_positions_do() {
    let call = |n: usize| long(Client::cpu().zeros(&[n, 0], DType::U8).expect("it is empty"));
    assert_eq!(refused(call(2_200_000_000)), "extent");
    // The last block would begin inside of the i32 range and end beyond it.
    assert_eq!(refused(call(i32::MAX as usize)), "extent");
    assert_eq!(call(1 << 30).map(|y| y.shape().to_vec()), Ok(vec![1 << 30, 0]));
}

/// Returns a kernel as text with outputs of these dimensions, some of which alias the input.
fn taken_over(outputs: [(&str, bool); 2]) -> Result<pallas_rt::exec::Compiled> {
    let [mut declared, mut aliases, mut maps] = [const { String::new() }; 3];
    for (i, (dim, alias)) in outputs.into_iter().enumerate() {
        declared += &format!("  out y{i}: f32[{dim}] block [1] empty 0.0\n");
        aliases += &if alias { format!("  alias @y{i} @x\n") } else { String::new() };
        maps += &format!("  map @y{i} (%{i}: i32[]) {{ yield %{i} }}\n");
    }
    let text = format!(
        "kernel taken {{\n  dim M\n  dim N\n  grid N parallel\n  in x: f32[N] block [1]\n{declared}{aliases}{maps}  body {{\n  }}\n}}"
    );
    pallas_rt::exec::Compiled::new(text.parse::<pallas_rt::ir::Kernel>().expect("tile IR"))
}

#[test]
fn an_output_takes_over_memory_of_its_own_size() {
    let client = Client::cpu();
    let x = client.full(&[8], 1.0f32).expect("it fits");
    let launch = |kernel: Result<pallas_rt::exec::Compiled>| kernel?.launch(&client, &[64, 8], [x.clone().into()]);
    assert_eq!(refused(launch(taken_over([("M", true), ("N", false)]))), "alias");
    assert_eq!(refused(launch(taken_over([("N", true), ("N", true)]))), "invalid");
    assert!(launch(taken_over([("N", true), ("M", false)])).is_ok());
}

#[kernel(grid = (1))]
fn of_rank_nine(#[block([8] => [8], |_| (0,))] x: In<f32>, #[block([8] => [8], |_| (0,))] out: Out<f32>) {
    let y = x.load().reshape([1, 1, 1, 1, 1, 1, 1, 1, 8]);
    out.store(y.reshape([8]));
}

#[kernel(grid = (cdiv(N, 6)))]
fn haloed(
    #[block([N] => [Element(6, L, 6)], |i| (element(i * 6),), fill = 0.0)] x: In<f32>,
    #[block([N] => [6], |i| (i,))] out: Out<f32>,
    #[dim] L: usize,
) {
    out.store(x.load());
}

#[test]
fn ranks_and_padding_beyond_the_usual() {
    for client in [Client::cpu(), Client::interpreter()] {
        let x = client.full(&[8], 1.0f32).expect("it fits");
        assert_eq!(refused(of_rank_nine(&x)), "tile-rank");
    }
    for padding in [0, 1, 4] {
        check(|client| haloed(crate::numbers(client, &[21], 1), padding).map(|y| vec![y]));
    }
}

#[kernel(grid = (1))]
fn wide(
    #[block([N] => [268435456], |_| (0,), fill = 0.0)] x: In<f32>,
    #[block([N] => [268435456], |_| (0,))] out: Out<f32>,
) {
    out.store(x.load().reverse(0) * 2.0);
}

/// Runs in a new process whose address space cannot hold a tile of 1 GiB.
#[test]
#[cfg(target_os = "linux")]
fn memory_that_the_system_refuses_is_an_error() {
    const CHILD: &str = "PALLAS_TEST_LITTLE_MEMORY";
    if std::env::var_os(CHILD).is_some() {
        let client = Client::cpu();
        client.set_memory_limit(u64::MAX);
        let x = client.full(&[8], 1.0f32).expect("it fits");
        // A large launch continues after its call, so its error is reported to the reader.
        let refused = wide(&x).and_then(|y| y.block_until_ready());
        assert!(matches!(refused, Err(Error::Memory { asked, .. }) if asked >= 1 << 30), "{refused:?}");
        return;
    }
    let test = "safety::memory_that_the_system_refuses_is_an_error";
    let mut child = std::process::Command::new("sh");
    child.args(["-c", "ulimit -v 1000000; exec \"$0\" --exact \"$1\" --test-threads 1"]);
    let child =
        child.arg(std::env::current_exe().expect("a test")).arg(test).env(CHILD, "1").output().expect("a shell");
    assert!(child.status.success(), "{child:?}");
}
