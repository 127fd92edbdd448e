//! Floors that are ratios of times, each measured in one run, on the CPU: prints them, and fails where one is missed.
//!
//! - Attention under a mask of blocks takes time proportional to its live blocks, forward and backward.
//! - Products of a few rows, and attention of a few queries over a cache, take hardly longer than reading their weights
//!   or keys and values, or than their multiplications at the peak of f32.
//! - Dropout makes attention less than twice as slow, forward and backward.
//! - A chain of elementwise operations that a jitted function computes in one pass takes less than a third of the time
//!   that the operations take one after the other.
//! - Trace, passes, plan and machine code of a kernel take time in proportion to its body: 20,000 steps less than 2 s,
//!   ten steps less than half a millisecond. A launch that repeats takes less than 1.5 µs.
//! - Functions with nested branches, checkpoints and loops are compiled in time proportional to how deep they are
//!   nested, as are the gradients of branches and checkpoints.
//!
//! Calls take turns, so that a machine that slows down slows all of them; the minimum of their times counts.
//! - On a GPU, if there is one: the parts of the first call of a function of 1,000 operations. They have no floor.
//!
//! `cargo bench --bench ratios [-- masks|dropout|reads|fusion|shaders|compile|nested] [--small]`; `--small` shows that
//! it works, and measures nothing of use.
#[expect(dead_code, reason = "the peak of f32 alone is measured")]
#[path = "../peak/mod.rs"]
mod peak;
mod reads;

use pallas_kernels::flash_attention::{self, Dropout, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::flash_attention_backward;
use pallas_kernels::splash_attention::{Options, splash_attention_backward, splash_attention_with_lse};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::exec::Compiled;
use pallas_rt::ir::{self, DType};
use pallas_rt::timeline::{SpanKind, Timeline};
use pallas_rt::{
    Array, Client, DiskCache, Result, checkpoint, cond, disable_jit, fori_loop, grad, jit, set_disk_cache,
};
use std::process::ExitCode;
use std::time::Instant;

/// The client of a run; small runs show only that it works.
struct Bench {
    client: Client,
    small: bool,
}

impl Bench {
    /// Small extents are a sixteenth.
    fn of(&self, n: usize) -> usize {
        if self.small { n.div_ceil(16) } else { n }
    }
    fn numbers(&self, shape: &[usize]) -> Result<Array> {
        let n: usize = shape.iter().product();
        let x: Vec<f32> = (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5).collect();
        self.client.array(&x, shape)
    }
    /// Seconds of a call until its results are there: calls return before that.
    fn time(&self, row: &Row) -> Result<f64> {
        let start = Instant::now();
        (row.call)()?;
        self.client.block_until_ready()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Those of the fastest call of each.
    fn times(&self, rows: &[Row]) -> Result<Vec<f64>> {
        let mut best = vec![f64::INFINITY; rows.len()];
        // The first turn compiles.
        for turn in 0..=if self.small { 1 } else { 15 } {
            for (row, best) in rows.iter().zip(&mut best) {
                let time = self.time(row)?;
                if turn > 0 {
                    *best = best.min(time);
                }
            }
        }
        Ok(best)
    }
}

/// Something to be timed; its work in the unit of its table.
struct Row {
    name: String,
    work: f64,
    call: Box<dyn Fn() -> Result<()>>,
}

fn row<R>(name: impl Into<String>, work: f64, call: impl Fn() -> Result<R> + 'static) -> Row {
    let call = move || call().map(|result| drop(std::hint::black_box(result)));
    Row { name: name.into(), work, call: Box::new(call) }
}

/// Prints ratios; false if one misses its floor.
type Table = fn(&Bench) -> Result<bool>;

fn main() -> ExitCode {
    let (options, asked): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|a| a.starts_with('-'));
    let bench = Bench { client: Client::cpu(), small: options.iter().any(|a| a == "--small") };
    let mut good = true;
    let tables: [(&str, Table); 7] = [
        ("masks", masks),
        ("dropout", dropout),
        ("reads", reads::table),
        ("fusion", fusion),
        ("shaders", shaders),
        ("compile", compile),
        ("nested", nested),
    ];
    for (name, table) in tables {
        if asked.is_empty() || asked.iter().any(|a| a == name) {
            good &= table(&bench).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
    if good || bench.small { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Time per live block against that of a full mask: within 15%.
fn masks(bench: &Bench) -> Result<bool> {
    let (heads, n, d) = (4, bench.of(2048), 64);
    let x = bench.numbers(&[1, heads, n, d])?;
    let random = |percent: usize| {
        // Each query's own block, and some others.
        let live = move |i: usize, j: usize| i == j || (i * 31 + j * 17 + i * j * 7) % 100 < percent;
        Mask::dense(n, n, move |i, j| live(i / 128, j / 128))
    };
    let masks = [
        ("full", Mask::Full),
        ("causal", Mask::causal()),
        ("window of 512", Mask::window(511)),
        ("chunks of 512", Mask::Chunked { size: 512 }),
        ("causal chunks of 512", Mask::causal() & Mask::Chunked { size: 512 }),
        ("half of the blocks", random(50)),
        ("a fifth of the blocks", random(20)),
    ];
    let (mut forward, mut backward) = (vec![], vec![]);
    for (name, mask) in masks {
        let info = MaskInfo::new(&bench.client, &vec![mask; heads], [n, n])?;
        let (out, lse) = splash_attention_with_lse(&x, &x, &x, &info, &Options::default())?;
        let blocks = info.live_blocks() as f64;
        let (own, i) = (x.clone(), info.clone());
        forward.push(row(name, blocks, move || splash_attention_with_lse(&own, &own, &own, &i, &Options::default())));
        let own = x.clone();
        backward.push(row(name, blocks, move || {
            splash_attention_backward([&own; 3], [&out, &lse], &own, &info, &Options::default())
        }));
    }
    let mut good = true;
    for (name, rows) in [("forward", forward), ("backward", backward)] {
        println!("\nattention under masks of blocks, {name}, {heads} heads x {n} x {d}");
        println!("{:24}{:>8}{:>12}{:>26}", "mask", "blocks", "ms", "time a block, full = 1");
        let times = bench.times(&rows)?;
        for (row, time) in rows.iter().zip(&times) {
            let ratio = time / row.work / (times[0] / rows[0].work);
            println!("{:24}{:>8}{:>12.3}{ratio:>26.3}", row.name, row.work, time * 1e3);
            good &= ratio <= 1.15;
        }
    }
    Ok(good)
}

/// Attention with dropout of probabilities against plain attention.
fn dropout(bench: &Bench) -> Result<bool> {
    let (heads, n, d) = (8, bench.of(1024), 64);
    let x = bench.numbers(&[1, heads, n, d])?;
    let plain = flash_attention::Options::default();
    let dropped = flash_attention::Options { dropout: Some(Dropout { rate: 0.1, seed: 1.into() }), ..plain };
    let (mut forward, mut both) = (vec![], vec![]);
    for (name, options) in [("plain", plain), ("with dropout", dropped)] {
        let own = x.clone();
        forward.push(row(name, 1.0, move || flash_attention_with_lse(&own, &own, &own, &options)));
        let own = x.clone();
        both.push(row(name, 1.0, move || {
            let (out, lse) = flash_attention_with_lse(&own, &own, &own, &options)?;
            flash_attention_backward([&own; 3], [&out, &lse], &own, &options)
        }));
    }
    let mut good = true;
    for (name, rows) in [("forward", forward), ("forward and backward", both)] {
        println!("\nattention with dropout, {name}, {heads} heads x {n} x {d}");
        println!("{:24}{:>12}{:>26}", "", "ms", "time, plain = 1");
        let times = bench.times(&rows)?;
        for (row, time) in rows.iter().zip(&times) {
            let ratio = time / times[0];
            println!("{:24}{:>12.3}{ratio:>26.3}", row.name, time * 1e3);
            good &= ratio <= 2.0;
        }
    }
    Ok(good)
}

/// A jitted chain of elementwise operations against the same operations one after the other.
fn fusion(bench: &Bench) -> Result<bool> {
    let x = bench.numbers(&[bench.of(1 << 24)])?;
    let chain = |x: &Array, y: &Array| {
        let z = (x * 0.5 + y).maximum(x) - y;
        (&z * &z + x).abs() * 0.25
    };
    let (fused, apart) = (jit(chain), jit(chain));
    let (own, other) = (x.clone(), x.clone());
    let rows = [
        row("one operation at a time", 1.0, move || {
            let _apart = disable_jit();
            apart(&own, &own)
        }),
        row("jitted", 1.0, move || fused(&other, &other)),
    ];
    let times = bench.times(&rows)?;
    println!("\na chain of eight elementwise operations");
    println!("{:24}{:>12}{:>26}", "", "ms", "time, jitted = 1");
    for (row, time) in rows.iter().zip(&times) {
        println!("{:24}{:>12.3}{:>26.3}", row.name, time * 1e3, time / times[1]);
    }
    Ok(times[0] >= 3.0 * times[1])
}

/// The first call of a function of 1,000 operations on a GPU: 250 kernels, each of a text of its own.
fn shaders(bench: &Bench) -> Result<bool> {
    let kernels = bench.of(250);
    let Ok(client) = Client::gpu(0) else {
        println!("\nthe first call of 1,000 operations on a GPU: there is none");
        return Ok(true);
    };
    set_disk_cache(DiskCache::Off)?;
    let x = Bench { client, small: bench.small }.numbers(&[64, 64])?;
    let f = jit(move |x: &Array, w: &Array| {
        (0..kernels).fold(x.clone(), |y, i| (y.matmul(w) * (1.0 / (64.0 + i as f64)) + x).tanh())
    });
    let timeline = Timeline::start();
    f(&x, &x)?.client().block_until_ready()?;
    let spans = timeline.stop();
    let of =
        |kind| spans.iter().filter(|span| span.kind == kind).map(|span| span.duration.as_secs_f64() * 1e3).sum::<f64>();
    let [trace, compile, call, launch] = [SpanKind::Trace, SpanKind::Compile, SpanKind::Call, SpanKind::Launch].map(of);
    let start = Instant::now();
    f(&x, &x)?.client().block_until_ready()?;
    let again = start.elapsed().as_secs_f64() * 1e3;
    println!("\nthe first call of {} operations on {}", 4 * kernels, x.client().device());
    println!("{:60}{:>10.1} ms", "traced", trace);
    println!("{:60}{:>10.1} ms", "divided into kernels", compile);
    println!("{:60}{:>10.1} ms", "tiles placed, shaders printed", call - launch);
    let launches = spans.iter().filter(|span| span.kind == SpanKind::Launch).count();
    println!("{:60}{launch:>10.1} ms", format!("{launches} pipelines by the driver, and launches"));
    println!("{:60}{:>10.1} ms", "a later call, in one submission", again);
    Ok(true)
}

/// A kernel made without the macro: `steps` additions to a block of 16 x 16, as one chain or each between a load and a
/// store of the same scratch memory.
fn long(steps: usize, stored: bool) -> ir::Kernel {
    let extent = 16;
    let mut b = ir::Builder::new("long");
    let operand = |name: &str, kind| ir::Operand {
        name: name.into(),
        kind,
        dtype: DType::F32,
        dims: vec![ir::Dim::from(extent); 2],
        block: vec![ir::BlockDim::Blocked(extent); 2],
        map: None,
        fill: None,
        buffered: None,
    };
    let zero = ir::Literal::new(DType::F32, 0.0);
    let x = b.operand(operand("x", ir::OperandKind::Input));
    let out = b.operand(operand("out", ir::OperandKind::Output { empty: zero, alias: None }));
    let scratch = b.operand(operand("scratch", ir::OperandKind::Scratch));
    let view = ir::View::whole(&[extent; 2]);
    let load = |b: &mut ir::Builder, from| {
        let load = ir::Op::Load { from, view: view.clone(), masked: false };
        b.emit(load, &[], ir::Loc::NONE).expect("it fits")
    };
    let store = |b: &mut ir::Builder, to, value| {
        let store = ir::Op::Store { to, view: view.clone(), masked: false };
        b.effect(store, &[value], ir::Loc::NONE).expect("it fits");
    };
    let mut sum = load(&mut b, x);
    if stored {
        store(&mut b, scratch, sum);
    }
    for i in 0..steps {
        let number = b.constant(ir::Literal::new(DType::F32, i as f64), ir::Loc::NONE);
        let old = if stored { load(&mut b, scratch) } else { sum };
        sum = b.scalar(ir::ScalarOp::Add, &[old, number], ir::Loc::NONE);
        if stored {
            store(&mut b, scratch, sum);
        }
    }
    store(&mut b, out, sum);
    b.finish()
}

/// Time to the first result against that of a body of 1,000 steps, and of launches that repeat.
fn compile(bench: &Bench) -> Result<bool> {
    // The disk cache is off, so that only compile time is compared.
    set_disk_cache(DiskCache::Off)?;
    let (client, mut good, x) = (&bench.client, true, bench.numbers(&[16, 16])?);
    println!("\ncompiling a body: trace, passes, plan, machine code, first launch");
    println!("{:24}{:>8}{:>12}{:>26}", "body", "steps", "ms", "time a step, 1,000 = 1");
    for (name, stored) in [("one chain", false), ("loads and stores", true)] {
        let rows: Vec<Row> = [1_000, 10, 5_000, 20_000]
            .into_iter()
            .map(|n| bench.of(n))
            .map(|n| {
                let (client, x) = (client.clone(), x.clone());
                row(name, n as f64, move || Compiled::new(long(n, stored))?.launch(&client, &[], [(&x).into()]))
            })
            .collect();
        let times = bench.times(&rows)?;
        for (row, time) in rows.iter().zip(&times) {
            let ratio = time / row.work / (times[0] / rows[0].work);
            println!("{:24}{:>8}{:>12.3}{ratio:>26.3}", row.name, row.work, time * 1e3);
            good &= if row.work == 10.0 { stored || *time <= 0.5e-3 } else { ratio <= 2.0 && *time <= 2.0 };
        }
    }
    let many = bench.of(1_000);
    let addition = Compiled::new(long(1, false))?.prepare(client, &[])?;
    let out = std::cell::RefCell::new(client.zeros(&[16, 16], DType::F32)?);
    let launches = row("addition 16 x 16", many as f64, move || {
        (0..many).try_for_each(|_| addition.launch(&[&x], &[], &mut [&mut out.borrow_mut()]))
    });
    let time = bench.times(&[launches])?[0] / many as f64;
    println!("\na launch from a prepared handle, addition 16 x 16: {:.3} µs", time * 1e6);
    Ok(good && time <= 1.5e-6)
}

/// So many functions in one another.
type Nested = fn(usize, &Array) -> Result<Array>;

fn branches(depth: usize, x: &Array) -> Result<Array> {
    if depth == 0 {
        return Ok(x.sin());
    }
    let is = x.sum(..).gt(0.0);
    cond(&is, x, move |x: &Array| branches(depth - 1, &(x * 1.5)), |x: &Array| Ok(x.cos()))
}
fn checkpoints(depth: usize, x: &Array) -> Result<Array> {
    if depth == 0 {
        return Ok(x.sin());
    }
    checkpoint(move |x: &Array| checkpoints(depth - 1, &x.sin()))(x)
}
fn loops(depth: usize, x: &Array) -> Result<Array> {
    if depth == 0 {
        return Ok(x.sin());
    }
    fori_loop(0..1, x, move |_, x: &Array| loops(depth - 1, x))
}

/// Time a level of functions that are nested this deep against that of ten levels.
fn nested(bench: &Bench) -> Result<bool> {
    set_disk_cache(DiskCache::Off)?;
    let (mut good, x) = (true, bench.numbers(&[3])?);
    println!("\ncompiling nested functions: trace, passes, plan, machine code, first call");
    println!("{:24}{:>8}{:>12}{:>26}", "functions", "levels", "ms", "time a level, 10 = 1");
    let functions: [(&str, Nested, bool); 5] = [
        ("branches", branches, false),
        ("branches, gradient", branches, true),
        ("checkpoints", checkpoints, false),
        ("checkpoints, gradient", checkpoints, true),
        ("loops", loops, false),
    ];
    for (name, f, backward) in functions {
        let call = |levels: usize| {
            let x = x.clone();
            let loss = move |x: &Array| f(levels, x).map(|y| y.sum(..));
            row(name, levels as f64, move || if backward { jit(grad(loss))(&x) } else { jit(loss)(&x) })
        };
        let rows: Vec<Row> = [10, 20, 40].into_iter().map(call).collect();
        let times = bench.times(&rows)?;
        for (row, time) in rows.iter().zip(&times) {
            let ratio = time / row.work / (times[0] / rows[0].work);
            println!("{:24}{:>8}{:>12.3}{ratio:>26.3}", row.name, row.work, time * 1e3);
            good &= ratio <= 2.0;
        }
    }
    Ok(good)
}
