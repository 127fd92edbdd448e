//! Operands that are read once: products of a few rows, and attention of a few queries over a cache.
use super::{Bench, Row, peak, row};
use pallas_kernels::decode_attention::{self, decode_attention};
use pallas_kernels::matmul::{Layout, matmul, matmul_with};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::quantized_matmul::{Quantized, quantized_matmul};
use pallas_rt::Result;
use pallas_rt::ir::DType;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes a second of operands that are read once, as a share of those of a sum over as many bytes, and the time that reading
/// or multiplying takes at least, whichever takes longer, as a share of the call's.
pub fn table(bench: &Bench) -> Result<bool> {
    // More than caches hold: each sum goes on where the one before ended.
    let (numbers, mut next) = (vec![1.0f32; bench.of(48 << 20)], 0);
    let (rows, flops): (Vec<Row>, Vec<f64>) = products(bench)?.into_iter().chain(caches(bench)?).unzip();
    let mut best = vec![[f64::INFINITY; 2]; rows.len()];
    // The first turn compiles.
    for turn in 0..=if bench.small { 1 } else { 15 } {
        for (row, best) in rows.iter().zip(&mut best) {
            let count = (row.work as usize / 4).min(numbers.len());
            next = if next + count > numbers.len() { 0 } else { next };
            let times = [sum(&numbers[next..next + count]), bench.time(row)?];
            next += count;
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

/// A few rows times a matrix, in each representation.
fn products(bench: &Bench) -> Result<Vec<(Row, f64)>> {
    let (client, n) = (&bench.client, bench.of(4096));
    let w = bench.numbers(&[n, n])?;
    let mut rows = vec![];
    let flops = |m: usize| (2 * m * n * n) as f64;
    let bytes = |dtype: DType| (n * n * dtype.bytes()) as f64;
    for m in [1, 4, 8, 16] {
        let (x, w) = (bench.numbers(&[m, n])?, w.clone());
        let own = row(format!("matmul f32, {m} rows"), bytes(DType::F32), move || matmul(&x, &w));
        rows.push((own, flops(m)));
    }
    for m in [1, 8] {
        let (x, w) = (bench.numbers(&[m, n])?, w.clone());
        let layout = Layout { b_transposed: true, ..Layout::default() };
        let name = format!("matmul f32, {m} rows, transposed weights");
        rows.push((row(name, bytes(DType::F32), move || matmul_with(&x, &w, layout, |x| x)), flops(m)));
    }
    for dtype in [DType::F16, DType::Bf16] {
        let (x, w) = (bench.numbers(&[1, n])?.cast(dtype), w.cast(dtype));
        rows.push((row(format!("matmul {dtype}, 1 row"), bytes(dtype), move || matmul(&x, &w)), flops(1)));
    }
    let patterns: Vec<u8> = (0..n * n).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8 & 0x3f).collect();
    let group = 128;
    let scales = bench.numbers(&[n / group, n])?;
    let zeros = client.array_from_bytes(DType::U8, &[n / group, n], &patterns[..n * n / group])?;
    let eight = client.array_from_bytes(DType::I8, &[n, n], &patterns[..n * n])?;
    let four = client.array_from_bytes(DType::U8, &[n / 2, n], &patterns[..n * n / 2])?;
    for m in [1, 8] {
        for (name, values, zeros, share) in [("int8", &eight, None, 1.0), ("int4", &four, Some(&zeros), 0.5)] {
            let weights = Quantized {
                values: values.clone(),
                scales: scales.clone(),
                zeros: zeros.cloned(),
                k: n,
                group: Some(group),
            };
            let x = bench.numbers(&[m, n])?;
            let own = row(format!("matmul {name} weights, {m} rows"), share * bytes(DType::I8), move || {
                quantized_matmul(&x, &weights)
            });
            rows.push((own, flops(m)));
        }
    }
    Ok(rows)
}

/// Queries of 32 heads over keys and values of 8.
fn caches(bench: &Bench) -> Result<Vec<(Row, f64)>> {
    let (client, [heads, key_heads, keys, d]) = (&bench.client, [32, 8, bench.of(8192), 128]);
    let elements = key_heads * keys * d;
    // Scores, and values by weights.
    let flops = |queries: usize| (4 * heads * queries * keys * d) as f64;
    let mut rows = vec![];
    for dtype in [DType::F32, DType::F16] {
        let numbers = |heads, rows| bench.numbers(&[1, heads, rows, d]).map(|x| x.cast(dtype));
        let k = numbers(key_heads, keys)?;
        for queries in [1, 4, 16, 64] {
            if dtype == DType::F16 && queries > 1 {
                continue;
            }
            // Keys and values of their own arrays, as ever.
            let (q, k, v) = (numbers(heads, queries)?, k.clone(), numbers(key_heads, keys)?);
            let own =
                row(format!("decode {dtype}, {queries} queries"), (2 * elements * dtype.bytes()) as f64, move || {
                    decode_attention(&q, &k, &v, &decode_attention::Options::default())
                });
            rows.push((own, flops(queries)));
        }
    }
    let (requests, page) = (4, 16);
    let pages = keys / page;
    for dtype in [DType::F32, DType::I8] {
        let cache = PagedCache::new(client, dtype, [pages, key_heads, page, d])?;
        let tables: Vec<i32> = (0..pages).map(|j| (j * 7 % pages) as i32).collect();
        let step = Requests { tables: &tables, lengths: &[(keys / requests) as i32; 4], starts: &[0, 1, 2, 3, 4] };
        let batch = Batch::new(&cache, heads, step, BatchOptions::default())?;
        let q = bench.numbers(&[requests, heads, d])?;
        let own = row(format!("paged {dtype}, pages of {page}"), (2 * elements * dtype.bytes()) as f64, move || {
            batch.attend(&q, &cache, &paged_attention::Options::default())
        });
        // The keys are those of four requests.
        rows.push((own, flops(1)));
    }
    Ok(rows)
}
