//! Operands that are read once: products of a few rows, and attention of a few queries over a cache.
use super::{Bench, Row, peak, row};
use pallas_kernels::decode_attention::{self, decode_attention};
use pallas_kernels::matmul::{Layout, matmul, matmul_with};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::quantized_matmul::{Quantized, quantized_matmul};
use pallas_rt::ir::DType;
use pallas_rt::{Array, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes a second of operands that are read once, as a share of those of a sum over as many bytes, and the time that
/// reading or multiplying takes at least, whichever takes longer, as a share of the call's.
pub fn table(bench: &Bench) -> Result<bool> {
    // More than caches hold: each sum goes on where the one before ended.
    let (numbers, mut next) = (vec![1.0f32; bench.of(48 << 20)], 0);
    let (rows, flops): (Vec<Row>, Vec<f64>) = products(bench)?.into_iter().chain(caches(bench)?).unzip();
    let mut best = vec![[f64::INFINITY; 2]; rows.len()];
    // A sum is timed from when all threads have begun: a call before one that is timed wakes them, as in a step of a
    // model.
    let x = bench.numbers(&[512, 512])?;
    let waking = row("", 0.0, move || matmul(&x, &x));
    // The first turn compiles.
    for turn in 0..=if bench.small { 1 } else { 40 } {
        for (row, best) in rows.iter().zip(&mut best) {
            let count = (row.work as usize / 4).min(numbers.len());
            next = if next + count > numbers.len() { 0 } else { next };
            let sum = sum(&numbers[next..next + count]);
            next += count;
            bench.time(&waking)?;
            let times = [sum, bench.time(row)?];
            if turn > 0 {
                best.iter_mut().zip(times).for_each(|(best, time)| *best = best.min(time));
            }
        }
    }
    let peak = peak::cpu::flops(threads());
    println!("\nreading once, all threads; {:.0} GFLOP/s in f32", peak / 1e9);
    println!("{:44}{:>8}{:>12}{:>10}{:>10}{:>8}{:>10}", "operation", "MiB", "ms", "a sum", "GB/s", "share", "of limit");
    for ((row, [sum, time]), flops) in rows.iter().zip(best).zip(flops) {
        let (name, mib, share) = (&row.name, row.work / f64::from(1 << 20), sum / time);
        let limit = share.max(flops / peak / time);
        let speed = row.work / time / 1e9;
        println!("{name:44}{mib:>8.0}{:>12.3}{:>10.3}{speed:>10.1}{share:>8.2}{limit:>10.2}", time * 1e3, sum * 1e3);
    }
    Ok(true)
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Seconds that all threads take to add up these numbers, from when all have begun.
fn sum(numbers: &[f32]) -> f64 {
    // As many independent sums as hide an addition's latency, whatever the width of vectors.
    let sum = |part: &[f32]| -> f32 {
        let mut sums = [0.0f32; 32];
        for row in part.as_chunks::<32>().0 {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        sums.iter().sum()
    };
    let parts = numbers.chunks(numbers.len().div_ceil(threads()).max(1));
    let (begun, all) = (AtomicUsize::new(0), parts.len());
    let timed = |part| {
        let start = Instant::now();
        begun.fetch_add(1, Ordering::Relaxed);
        while begun.load(Ordering::Relaxed) < all {
            std::hint::spin_loop();
        }
        std::hint::black_box(sum(part));
        (start, Instant::now())
    };
    std::thread::scope(|s| {
        let times: Vec<_> = parts.map(|part| s.spawn(|| timed(part))).collect();
        let times = times.into_iter().map(|time| time.join().expect("additions do not panic"));
        let last = times.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
        last.map_or(0.0, |(start, end)| (end - start).as_secs_f64())
    })
}

/// Bytes that a turn reads: those of several layers where one has fewer, as a step of a model does. No cache holds what
/// the next turn reads.
const TURN: usize = 64 << 20;

/// A row of as many layers as a turn reads, each with operands of its own of so many bytes, and its additions and
/// multiplications.
fn layers<L: 'static, R>(
    bench: &Bench,
    name: String,
    [bytes, flops]: [usize; 2],
    operands: impl Fn() -> Result<L>,
    call: impl Fn(&L) -> Result<R> + 'static,
) -> Result<(Row, f64)> {
    let many = bench.of(TURN).div_ceil(bytes);
    let layers = (0..many).map(|_| operands()).collect::<Result<Vec<L>>>()?;
    let all = move || layers.iter().try_for_each(|layer| call(layer).map(drop));
    Ok((row(name, (many * bytes) as f64, all), (many * flops) as f64))
}

/// A few rows times a matrix, in each representation.
fn products(bench: &Bench) -> Result<Vec<(Row, f64)>> {
    let (client, n) = (&bench.client, bench.of(4096));
    let mut rows = vec![];
    let of = |m: usize, dtype: DType, share: usize| [n * n * dtype.bytes() / share, 2 * m * n * n];
    let weights = || bench.numbers(&[n, n]);
    for m in [1, 4, 8, 16] {
        let x = bench.numbers(&[m, n])?;
        let call = move |w: &Array| matmul(&x, w);
        rows.push(layers(bench, format!("matmul f32, {m} rows"), of(m, DType::F32, 1), weights, call)?);
    }
    for m in [1, 8] {
        let x = bench.numbers(&[m, n])?;
        let layout = Layout { b_transposed: true, ..Layout::default() };
        let name = format!("matmul f32, {m} rows, transposed weights");
        let call = move |w: &Array| matmul_with(&x, w, layout, |x| x);
        rows.push(layers(bench, name, of(m, DType::F32, 1), weights, call)?);
    }
    for dtype in [DType::F16, DType::Bf16] {
        let x = bench.numbers(&[1, n])?.cast(dtype);
        let (weights, call) = (|| Ok(weights()?.cast(dtype)), move |w: &Array| matmul(&x, w));
        rows.push(layers(bench, format!("matmul {dtype}, 1 row"), of(1, dtype, 1), weights, call)?);
    }
    let patterns: Vec<u8> = (0..n * n).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8 & 0x3f).collect();
    let group = 128;
    let scales = bench.numbers(&[n / group, n])?;
    let zeros = client.array_from_bytes(DType::U8, &[n / group, n], &patterns[..n * n / group])?;
    for m in [1, 8] {
        for (bits, dtype, share) in [(8, DType::I8, 1), (4, DType::U8, 2)] {
            let weights = || {
                let values = client.array_from_bytes(dtype, &[n / share, n], &patterns[..n * n / share])?;
                let zeros = (bits == 4).then(|| zeros.clone());
                Ok(Quantized { values, scales: scales.clone(), zeros, k: n, group: Some(group) })
            };
            let x = bench.numbers(&[m, n])?;
            let call = move |w: &Quantized| quantized_matmul(&x, w);
            let name = format!("matmul int{bits} weights, {m} rows");
            rows.push(layers(bench, name, of(m, DType::I8, share), weights, call)?);
        }
    }
    Ok(rows)
}

/// Queries of 32 heads over keys and values of 8.
fn caches(bench: &Bench) -> Result<Vec<(Row, f64)>> {
    let [heads, key_heads, keys, d] = [32, 8, bench.of(8192), 128];
    // Scores, and values by weights.
    let of = |queries: usize, dtype: DType| [2 * key_heads * keys * d * dtype.bytes(), 4 * heads * queries * keys * d];
    let mut rows = vec![];
    for dtype in [DType::F32, DType::F16] {
        let numbers = |heads, rows| bench.numbers(&[1, heads, rows, d]).map(|x| x.cast(dtype));
        for queries in [1, 4, 16, 64] {
            if dtype == DType::F16 && queries > 1 {
                continue;
            }
            let q = numbers(heads, queries)?;
            let cache = || Ok([numbers(key_heads, keys)?, numbers(key_heads, keys)?]);
            let call = move |[k, v]: &[Array; 2]| decode_attention(&q, k, v, &decode_attention::Options::default());
            rows.push(layers(bench, format!("decode {dtype}, {queries} queries"), of(queries, dtype), cache, call)?);
        }
    }
    let (requests, page) = (4, 16);
    let pages = keys / page;
    for dtype in [DType::F32, DType::I8] {
        // Memory that nobody wrote is one page of zeros, which a cache holds.
        let cache = || {
            let numbers = || bench.numbers(&[pages, key_heads, page, d]);
            let scales = || bench.numbers(&[pages, key_heads, page]);
            Ok(match dtype {
                DType::I8 => {
                    let integers = || -> Result<Array> { Ok((numbers()? * 254.0).cast(dtype)) };
                    PagedCache { k: integers()?, v: integers()?, scales: Some([scales()?, scales()?]) }
                }
                _ => PagedCache { k: numbers()?, v: numbers()?, scales: None },
            })
        };
        let tables: Vec<i32> = (0..pages).map(|j| (j * 7 % pages) as i32).collect();
        let step = Requests { tables: &tables, lengths: &[(keys / requests) as i32; 4], starts: &[0, 1, 2, 3, 4] };
        let batch = Batch::new(&cache()?, heads, step, BatchOptions::default())?;
        let q = bench.numbers(&[requests, heads, d])?;
        let call = move |cache: &PagedCache| batch.attend(&q, cache, &paged_attention::Options::default());
        // The keys are those of four requests.
        rows.push(layers(bench, format!("paged {dtype}, pages of {page}"), of(1, dtype), cache, call)?);
    }
    Ok(rows)
}
