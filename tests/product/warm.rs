//! Calls like earlier ones: remembered, and never taken for one another.
use crate::support::{array, clients, doubles, values};
use pallas_rt::prelude::*;
use pallas_rt::{Buffer, DeviceKind, counters};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Mode {
    Plain,
    Shifted(i32),
}

/// Everything that a call can differ in from the one before.
#[kernel(grid = (cdiv(N, B)))]
fn knobs<E: Float, const B: usize>(
    #[block([N, D] => [B, D], |i| (i, 0))] x: In<E>,
    #[block([N, D] => [B, D], |i| (i, 0))] out: Out<E>,
    #[block([N, 1] => [B, 1], |i| (i, 0))] sums: Out<f32>,
    #[fixed] mode: Mode,
    #[fixed] factor: f32,
    #[fixed] name: &str,
    #[fixed] after: impl Fn(Tile<f32>) -> Tile<f32>,
    #[dim] EXTRA: usize,
    plus: f32,
) {
    let mut y = x.load().cast::<f32>() * factor + plus;
    if let Mode::Shifted(by) = mode {
        y += by as f32;
    }
    if name == "negated" {
        y = -y;
    }
    sums.store(x.load().cast::<f32>().sum(1) + EXTRA.cast::<f32>());
    out.store(after(y).cast::<E>());
}

/// A call's knobs by number.
#[derive(Clone, Copy, Debug)]
struct Knobs {
    half: bool,
    block: bool,
    rows: usize,
    columns: usize,
    mode: Mode,
    factor: f32,
    name: &'static str,
    after: usize,
    extra: usize,
    plus: f32,
    donated: bool,
}

impl Knobs {
    fn drawn(mut seed: usize) -> Knobs {
        let mut pick = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        Knobs {
            half: pick(2) == 1,
            block: pick(2) == 1,
            rows: [1, 8, 9][pick(3)],
            columns: [1, 4][pick(2)],
            mode: [Mode::Plain, Mode::Shifted(1), Mode::Shifted(2)][pick(3)],
            factor: [2.0, -0.0, 0.0][pick(3)],
            name: ["plain", "negated"][pick(2)],
            after: pick(4),
            extra: pick(3),
            plus: [0.5, 4.0][pick(2)],
            donated: pick(2) == 1,
        }
    }

    fn call(self, x: &Array) -> Result<(Array, Array)> {
        let by = self.after as f32;
        let Knobs { mode, factor, name, extra, plus, .. } = self;
        macro_rules! sized {
            ($x:expr, $after:expr) => {
                match (self.half, self.block) {
                    (false, false) => knobs::<f32, 4>($x, mode, factor, name, $after, extra, plus),
                    (false, true) => knobs::<f32, 8>($x, mode, factor, name, $after, extra, plus),
                    (true, false) => knobs::<f16, 4>($x, mode, factor, name, $after, extra, plus),
                    (true, true) => knobs::<f16, 8>($x, mode, factor, name, $after, extra, plus),
                }
            };
        }
        let copy = array(x.client(), x.dtype(), x.shape(), &doubles(x));
        match (self.after, self.donated) {
            (0, false) => sized!(x, |y| y),
            (0, true) => sized!(copy, |y| y),
            (1, false) => sized!(x, |y| y * 3.0),
            (1, true) => sized!(copy, |y| y * 3.0),
            // It captures a number, and so can't be compared.
            (_, false) => sized!(x, move |y| y + by),
            (_, true) => sized!(copy, move |y| y + by),
        }
    }

    /// What the call gives, and the sums of rows.
    fn want(self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let one = |x: &f64| {
            let shift = if let Mode::Shifted(by) = self.mode { f64::from(by) } else { 0.0 };
            let y = x * f64::from(self.factor) + f64::from(self.plus) + shift;
            let y = if self.name == "negated" { -y } else { y };
            match self.after {
                0 => y,
                1 => y * 3.0,
                by => y + by as f64,
            }
        };
        let sums = x.chunks(self.columns).map(|row| row.iter().sum::<f64>() + self.extra as f64);
        (x.iter().map(one).collect(), sums.collect())
    }

    fn holds(self, client: &Client) {
        let dtype = if self.half { DType::F16 } else { DType::F32 };
        let values = values(self.rows * self.columns, 3);
        let x = array(client, dtype, &[self.rows, self.columns], &values);
        let (y, sums) = self.call(&x).unwrap_or_else(|e| panic!("{self:?}: {e}"));
        let (want, totals) = self.want(&values);
        assert_eq!((y.dtype(), y.shape(), y.client()), (dtype, x.shape(), client), "{self:?}");
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 0.02);
        assert!(near(&doubles(&y), &want), "{self:?} on {client:?}: {y:?}, the reference {want:?}");
        assert!(near(&doubles(&sums), &totals), "{self:?} on {client:?}: {sums:?}, the reference {totals:?}");
        assert_eq!(doubles(&x), values, "a borrowed input stays: {self:?}");
    }
}

#[test]
fn no_call_is_taken_for_another() {
    for client in clients() {
        // Each twice in a row, and many again later, when others have come between.
        let calls = if client.kind() == DeviceKind::Cpu { 300 } else { 40 };
        for seed in 0..calls {
            let knobs = Knobs::drawn(seed * seed % 97);
            (0..2).for_each(|_| knobs.holds(&client));
        }
        let other = client.isolated().expect("the device is there");
        (0..10).for_each(|seed| Knobs::drawn(seed).holds(&other));
    }
}

#[test]
fn threads_remember_for_themselves() {
    let client = Client::cpu();
    std::thread::scope(|s| {
        for thread in 0..4 {
            let client = &client;
            s.spawn(move || (0..60).for_each(|seed| Knobs::drawn(seed * (thread + 1) % 31).holds(client)));
        }
    });
}

/// One operand whose spec holds what statics say at the moment of the call.
#[kernel(grid = (1))]
fn outside(
    #[block([N] => [{WIDTH.load(Ordering::Relaxed)}], |_| (0,), fill = EDGE.load(Ordering::Relaxed) as f64)] x: In<f32>,
    #[block([{WIDTH.load(Ordering::Relaxed)}] => [{WIDTH.load(Ordering::Relaxed)}], |_| (0,))] out: Out<f32>,
) {
    out.store(x.load());
}
static WIDTH: AtomicUsize = AtomicUsize::new(0);
static EDGE: AtomicUsize = AtomicUsize::new(0);

#[test]
fn what_a_spec_takes_from_outside_is_asked_at_every_call() {
    let client = Client::cpu();
    let x = client.array(&[1.0f32, 2.0], &[2]).expect("it fits");
    for (width, edge) in [(3, 7), (3, 7), (4, 7), (3, 9), (4, 7), (1, 0), (3, 9)] {
        WIDTH.store(width, Ordering::Relaxed);
        EDGE.store(edge, Ordering::Relaxed);
        let want: Vec<f32> = [1.0, 2.0, edge as f32, edge as f32].into_iter().take(width).collect();
        assert_eq!(outside(&x).and_then(|y| y.to_vec::<f32>()), Ok(want), "{width} {edge}");
    }
}

#[kernel(grid = (cdiv(N, 8)))]
fn sum(
    #[block([N] => [8], |i| (i,))] x: In<f32>,
    #[block([N] => [8], |i| (i,))] y: In<f32>,
    #[block([N] => [8], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

#[test]
fn a_call_that_is_wrong_is_refused_after_right_ones() {
    let client = Client::cpu();
    let (x, short) = (client.full(&[20], 1.5f32).expect("20"), client.full(&[19], 1.5f32).expect("19"));
    let (ints, rows) = (client.full(&[20], 1).expect("20"), client.full(&[4, 5], 1.5f32).expect("20"));
    for _ in 0..3 {
        assert_eq!(sum(&x, &x).and_then(|y| y.to_vec::<f32>()), Ok(vec![3.0; 20]));
        let code = |y: &Array| sum(&x, y).expect_err("it does not fit").code();
        assert_eq!([code(&short), code(&ints), code(&rows)], ["dimension", "dtype", "rank"]);
        let foreign = Client::interpreter().full(&[20], 1.5f32).expect("20");
        assert_eq!(code(&foreign), "foreign-client");
    }
    // The memory limit is of the call, too.
    let small = client.isolated().expect("the CPU is there");
    let x = small.full(&[20], 1.5f32).expect("20");
    assert!(sum(&x, &x).is_ok());
    small.set_memory_limit(small.memory().in_use);
    assert_eq!(sum(&x, &x).expect_err("no room").code(), "memory");
}

#[test]
fn remembered_calls_are_explained_checked_donated_to_and_lent() {
    for client in clients() {
        let full = |value: f32| client.full(&[12], value).expect("it fits");
        let (x, mut y) = (full(1.0), full(0.0));
        for round in 0..3 {
            assert_eq!(sum(&x, &x).and_then(|y| y.to_vec::<f32>()), Ok(vec![2.0; 12]));
            assert_eq!(explain(|| sum(&x, &x)).expect("it is explained").kernels.len(), 1);
            assert_eq!(check(|| sum(&x, &x)).expect("they agree").kernels, 1);
            into([&mut y], || sum(&x, full(round as f32))).expect("it fits");
            assert_eq!(y.to_vec::<f32>(), Ok(vec![1.0 + round as f32; 12]));
            let (a, b) = (full(3.0), full(4.0));
            let place = a.buffer().map(Buffer::as_ptr);
            let z = sum(a, &b).expect("it runs");
            let stays = client.kind() != DeviceKind::Cpu || z.buffer().map(Buffer::as_ptr) == place;
            assert!(stays && z.to_vec::<f32>() == Ok(vec![7.0; 12]), "{client:?}");
            // The same array twice, of which one is given away: the other still needs it.
            let z = sum(b.clone(), &b).and_then(|z| z.to_vec::<f32>());
            assert_eq!((z, b.to_vec::<f32>()), (Ok(vec![8.0; 12]), Ok(vec![4.0; 12])));
        }
    }
}

/// Generics of the surrounding `impl`, which the kernel's own signature does not have.
struct Scaled<const BY: usize>;
impl<const BY: usize> Scaled<BY> {
    const OFFSET: f32 = BY as f32 * 100.0;
    #[kernel(grid = (cdiv(N, 8)))]
    fn run(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
        out.store(x.load() * BY as f32 + Self::OFFSET);
    }
}

#[test]
fn generics_around_a_kernel_count() {
    let client = Client::cpu();
    let x = client.full(&[3], 1.0f32).expect("it fits");
    for _ in 0..3 {
        let found = [Scaled::<1>::run(&x), Scaled::<2>::run(&x), Scaled::<3>::run(&x)];
        let found = found.map(|y| y.and_then(|y| y.to_vec::<f32>()).expect("it runs")[0]);
        assert_eq!(found, [101.0, 202.0, 303.0]);
    }
}

#[test]
fn a_remembered_call_is_not_traced_again() {
    let client = Client::cpu();
    let x = client.full(&[3], 1.0f32).expect("it fits");
    let call = || once(&x, 2.5).expect("it runs");
    call();
    let traced = ONCE.load(Ordering::Relaxed);
    (0..20).for_each(|_| drop(call()));
    assert_eq!((traced, ONCE.load(Ordering::Relaxed)), (1, 1));
}
static ONCE: AtomicUsize = AtomicUsize::new(0);
#[kernel(grid = (cdiv(N, 8)))]
fn once(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>, #[fixed] factor: f32) {
    ONCE.fetch_add(1, Ordering::Relaxed);
    out.store(x.load() * factor);
}

/// What the process of the test below does: launches, and says how many threads there were before and after.
#[test]
#[ignore = "only where another test starts it"]
fn child() {
    let threads = || std::fs::read_dir("/proc/self/task").expect("Linux").count();
    let (client, before) = (Client::cpu(), threads());
    let x = client.full(&[16, 16], 1.0f32).expect("it fits");
    for _ in 0..100 {
        sum(x.reshape(&[256]), client.full(&[256], 1.0f32).expect("it fits")).expect("it runs");
    }
    assert!(counters().launches >= 100);
    let small = threads();
    let x = client.full(&[1 << 20], 1.0f32).expect("it fits");
    sum(&x, &x).expect("it runs");
    println!("threads {before} {small} {}", threads());
}

#[cfg(target_os = "linux")]
#[test]
fn small_launches_start_no_thread() {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["warm::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env("RAYON_NUM_THREADS", "3").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.split_once("threads ")).expect("it says how many").1;
    let [before, small, large] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("three: {line}") };
    // Three threads of the pool, and the queue's thread.
    assert!(before == small && large.parse::<usize>() == Ok(before.parse::<usize>().unwrap_or(0) + 4), "{line}");
}
