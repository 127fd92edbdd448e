//! Each shipped kernel against the same function in plain array operations under `jit`, on the CPU: results are
//! compared, then calls take turns, and the minimum of their times counts. A line per function; `plain / kernel` above
//! 1: the kernel is ahead.
//!
//! `cargo bench --bench plain [-- part of a name] [--small]`; `--small` shows that it works, and measures nothing of
//! use.
use pallas_kernels::flash_attention::{Options, flash_attention};
use pallas_kernels::quantized_matmul::{Bits, Quantized, quantize, quantized_matmul};
use pallas_kernels::splash_mask::Mask;
use pallas_rt::ir::DType;
use pallas_rt::{Array, Client, Result, grad, jit, keep, ops};
use registry::{Extents, Given, entry};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[path = "../kernels/cases/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests read the rest")]
mod registry;
#[path = "plain/small.rs"]
mod small;

type Call = Box<dyn Fn(&[Array]) -> Result<Vec<Array>>>;

/// A function twice, and its arguments.
struct Case {
    name: &'static str,
    arguments: Vec<Array>,
    kernel: Call,
    plain: Call,
}

fn case(
    name: &'static str,
    arguments: Vec<Array>,
    kernel: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static,
    plain: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
) -> Case {
    let plain = jit(move |x: &Vec<Array>| plain(x));
    let plain = move |x: &[Array]| plain(&x.to_vec());
    Case { name, arguments, kernel: Box::new(kernel), plain: Box::new(plain) }
}

/// The gradients by the first `n` arguments of a function of all but the last one, which is the gradient of its result.
fn gradients(
    n: usize,
    f: impl Fn(&[Array]) -> Array + Clone + Send + Sync + 'static,
) -> impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static {
    move |x| {
        let (f, by, rest) = (f.clone(), x[..n].to_vec(), x[n..].to_vec());
        grad(move |by: &Vec<Array>| {
            let (all, last) = ([&by[..], &rest[..]].concat(), rest.len() - 1);
            (f(&all[..by.len() + last]) * &rest[last]).sum(..)
        })(&by)
    }
}

/// A function with one result.
fn one(f: impl Fn(&[Array]) -> Array + Send + Sync + 'static) -> impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync {
    move |x| Ok(vec![f(x)])
}

/// Sizes, and random arrays.
struct Sizes {
    client: Client,
    small: bool,
}

impl Sizes {
    /// Small extents are a sixteenth, and at least 4.
    fn of(&self, n: usize) -> usize {
        if self.small { (n / 16).max(4) } else { n }
    }
    fn floats(&self, shape: &[usize]) -> Result<Array> {
        registry::array(&self.client, DType::F32, shape, &numbers(shape.iter().product(), 0))
    }
    fn registered(&self, name: &str, extents: &Extents) -> Result<registry::Case> {
        entry(name).case(&Given::new(&self.client, DType::F32, extents, numbers))
    }
    /// A function of the registry by its name, and plain operations on its operands.
    fn value(
        &self,
        [name, shown]: [&'static str; 2],
        extents: &Extents,
        plain: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
    ) -> Result<Case> {
        let registry::Case { operands, call, .. } = self.registered(name, extents)?;
        // Behind the result is what its gradients take.
        Ok(case(shown, operands, move |x| call(x).map(|all| all[..1].to_vec()), plain))
    }
    /// The function of its gradients, and plain operations on the operands of that one.
    fn backward(
        &self,
        [name, shown]: [&'static str; 2],
        extents: &Extents,
        plain: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
    ) -> Result<Case> {
        let (_, residuals, call) = self.residuals(name, extents)?;
        Ok(case(shown, residuals, move |x| call(x), plain))
    }
    /// The function of its gradients, and those of a plain function of its operands, of which the first `n` have some.
    fn gradients(
        &self,
        [name, shown]: [&'static str; 2],
        extents: &Extents,
        n: usize,
        plain: impl Fn(&[Array]) -> Array + Clone + Send + Sync + 'static,
    ) -> Result<Case> {
        let (operands, residuals, call) = self.residuals(name, extents)?;
        let arguments = [&operands[..], &residuals[residuals.len() - 1..]].concat();
        Ok(case(shown, arguments, move |_| call(&residuals), gradients(n, plain)))
    }
    /// The operands of a function, those of its gradients, and these.
    fn residuals(&self, name: &str, extents: &Extents) -> Result<(Vec<Array>, Vec<Array>, registry::Call)> {
        let case = self.registered(name, extents)?;
        let dy = self.floats(case.run()?[0].shape())?.roll(1, 0);
        let Some(backward) = case.backward else { panic!("`{name}` has no gradients") };
        let residuals = backward.operands(&case.operands, &dy)?;
        Ok((case.operands, residuals, backward.call))
    }
}

fn numbers(n: usize, operand: usize) -> Vec<f64> {
    (0..n).map(|i| ((i + 7 * operand).wrapping_mul(2_654_435_761) % 1009) as f64 / 1009.0 - 0.5).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let small = arguments.iter().any(|a| a == "--small");
    let asked: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let sizes = Sizes { client: Client::cpu(), small };
    println!("{:32}{:>12}{:>12}{:>18}", "function", "kernel ms", "plain ms", "plain / kernel");
    let mut good = true;
    for family in [rows, products, losses, attention, caches, small::small, small::layouts] {
        for case in family(&sizes).unwrap_or_else(|e| panic!("{e}")) {
            if asked.is_empty() || asked.iter().any(|part| case.name.contains(&part[..])) {
                let runs = if small { 1 } else { 30 };
                good &= measured(&case, runs).unwrap_or_else(|e| panic!("{}: {e}", case.name));
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Time for which a case is timed at least.
const SHORT: Duration = Duration::from_millis(50);

/// Prints the line of a case; false if the results differ.
fn measured(case: &Case, runs: usize) -> Result<bool> {
    let both = [&case.kernel, &case.plain];
    let [found, want] = both.map(|call| call(&case.arguments));
    let (found, want) = (found?, want?);
    let shapes = |all: &[Array]| all.iter().map(|x| x.shape().to_vec()).collect::<Vec<_>>();
    if shapes(&found) != shapes(&want) {
        println!("{}: the kernel gives {:?}, plain operations {:?}", case.name, shapes(&found), shapes(&want));
        return Ok(false);
    }
    for (found, want) in found.iter().zip(&want) {
        let [found, want] = [found, want].map(|x| x.cast(DType::F32).to_vec::<f32>());
        let (found, want) = (found?, want?);
        let size = want.iter().fold(1.0f32, |size, x| size.max(x.abs()));
        if let Some((x, y)) = found.iter().zip(&want).find(|(x, y)| (*x - *y).abs() > 1e-3 * size || x.is_nan()) {
            println!("{}: the kernel gives {x}, plain operations {y}", case.name);
            return Ok(false);
        }
    }
    let mut best = [f64::INFINITY; 2];
    // Each is as often the first of a turn, whose arguments the caches hold less of. A call that is short takes more
    // turns: now and then another thread joins it late.
    let (start, mut turns) = (Instant::now(), 0);
    while turns < runs || runs > 1 && turns < 100 * runs && start.elapsed() < SHORT {
        for which in [turns % 2, 1 - turns % 2] {
            let start = Instant::now();
            // The CPU computes behind the calls.
            both[which](&case.arguments)?.iter().try_for_each(Array::block_until_ready)?;
            best[which] = best[which].min(start.elapsed().as_secs_f64());
        }
        turns += 1;
    }
    let [kernel, plain] = best;
    println!("{:32}{:>12.3}{:>12.3}{:>18.2}", case.name, kernel * 1e3, plain * 1e3, plain / kernel);
    Ok(true)
}

const EPSILON: f64 = 1e-5;

fn rms(x: &[Array]) -> Array {
    &x[0] * ((&x[0] * &x[0]).mean(keep(-1)) + EPSILON).rsqrt() * &x[1]
}
fn layer(x: &[Array]) -> Array {
    (&x[0] - x[0].mean(keep(-1))) * (x[0].var(keep(-1)) + EPSILON).rsqrt() * &x[1] + &x[2]
}
fn silu(x: &[Array]) -> Array {
    &x[0] * x[0].sigmoid() * &x[1]
}
/// Halves of the last axis are the pairs.
fn turned(x: &Array, cos: &Array, sin: &Array) -> Array {
    let halves = x.split(2, -1);
    let (a, b) = (&halves[0], &halves[1]);
    ops::concatenate(&[a * cos - b * sin, a * sin + b * cos], -1)
}

fn rows(sizes: &Sizes) -> Result<Vec<Case>> {
    let of = &[('n', sizes.of(4096)), ('d', sizes.of(1024))];
    let positions = &[('h', 32), ('n', sizes.of(1024)), ('d', 64)];
    Ok(vec![
        sizes.value(["softmax"; 2], of, one(|x| x[0].softmax(-1)))?,
        sizes.value(["log_softmax", "log softmax"], of, one(|x| x[0].log_softmax(-1)))?,
        sizes.backward(
            ["softmax", "softmax gradient"],
            of,
            one(|x| &x[0] * (&x[1] - (&x[0] * &x[1]).sum(keep(-1)))),
        )?,
        sizes.backward(
            ["log_softmax", "log softmax gradient"],
            of,
            one(|x| &x[1] - x[0].exp() * x[1].sum(keep(-1))),
        )?,
        sizes.value(["layer_norm", "layer norm"], of, one(layer))?,
        sizes.gradients(["layer_norm", "layer norm gradients"], of, 3, layer)?,
        sizes.value(["rms_norm", "rms norm"], of, one(rms))?,
        sizes.gradients(["rms_norm", "rms norm gradients"], of, 2, rms)?,
        sizes.value(["swiglu", "gated unit"], of, one(silu))?,
        sizes.gradients(["swiglu", "gated unit gradients"], of, 2, silu)?,
        sizes.value(["rotary"; 2], positions, one(|x| turned(&x[0], &x[1], &x[2])))?,
        sizes.backward(["rotary", "rotary gradient"], positions, one(|x| turned(&x[2], &x[0], &-&x[1])))?,
    ])
}

/// A matrix `[k, n]` of 8 or 4 bits, from its values, scales and zero points, as floats.
fn dequantised(x: &[Array], k: usize) -> Result<Array> {
    let (bytes, n) = (x[0].cast(DType::F32), x[0].shape()[1]);
    let values = match x.len() {
        2 => bytes,
        _ => {
            let high = (&bytes / 16.0).floor();
            ops::stack(&[&bytes - &high * 16.0, high], 1).reshape(&[k, n])
        }
    };
    let groups = x[1].shape()[0];
    let mut values = values.reshape(&[groups, k / groups, n]);
    if let Some(zeros) = x.get(2) {
        values = values - zeros.cast(DType::F32).expand_dims(1);
    }
    Ok((values * x[1].expand_dims(1)).reshape(&[k, n]))
}

fn products(sizes: &Sizes) -> Result<Vec<Case>> {
    let n = sizes.of(1024);
    let (b, few) = (sizes.floats(&[n, n])?, sizes.floats(&[8, n])?);
    let square = &[('n', n), ('k', n), ('m', n)];
    let mut cases = vec![sizes.value(["matmul", "product"], square, one(|x| x[0].matmul(&x[1])))?];
    for (name, bits) in [("product by 8-bit weights", Bits::Eight), ("product by 4-bit weights", Bits::Four)] {
        let group = (bits == Bits::Four).then_some((n / 8).max(16));
        let w = quantize(&b, bits, group)?;
        let arguments = [few.clone(), w.values, w.scales].into_iter().chain(w.zeros).collect();
        let kernel = move |x: &[Array]| {
            let (values, scales) = (x[1].clone(), x[2].clone());
            let w = Quantized { values, scales, zeros: x.get(3).cloned(), k: n, group };
            Ok(vec![quantized_matmul(&x[0], &w)?])
        };
        cases.push(case(name, arguments, kernel, move |x| Ok(vec![x[0].matmul(&dequantised(&x[1..], n)?)])));
    }
    Ok(cases)
}

/// The losses of rows of logits.
fn loss_of(z: &Array, labels: &Array) -> Array {
    -(z.log_softmax(-1).take_along_axis(&labels.expand_dims(-1), -1)).sum(-1)
}

fn losses(sizes: &Sizes) -> Result<Vec<Case>> {
    let of = &[('n', sizes.of(1024)), ('v', sizes.of(8192)), ('d', sizes.of(256))];
    let loss = |x: &[Array]| loss_of(&x[0].matmul(&x[1].t()), &x[2]);
    let registry::Case { operands: table, call: rows, .. } = sizes.registered("embedding", of)?;
    Ok(vec![
        sizes.value(["cross-entropy"; 2], of, one(loss))?,
        sizes.gradients(["cross-entropy", "cross-entropy gradients"], of, 2, loss)?,
        sizes.value(["cross-entropy of logits"; 2], of, one(|x| loss_of(&x[0], &x[1])))?,
        sizes.gradients(["cross-entropy of logits", "cross-entropy of logits gradient"], of, 1, |x| {
            loss_of(&x[0], &x[1])
        })?,
        small::case("embedding", table, move |x| rows(x), one(|x| x[0].take(&x[1], 0))),
        sizes.gradients(["embedding", "embedding gradient"], of, 1, |x| x[0].take(&x[1], 0))?,
    ])
}

/// Attention `[batch, heads, positions, d]`, where scores are added to and heads have sinks if there are any.
fn attended(x: &[Array], bias: Option<&Array>, sinks: Option<&Array>) -> Array {
    let scale = 1.0 / (x[0].shape()[3] as f64).sqrt();
    let groups = x[0].shape()[1] / x[1].shape()[1];
    let wide = |x: &Array| if groups == 1 { x.clone() } else { x.repeat(groups, 1) };
    let mut scores = x[0].matmul(&wide(&x[1]).swapaxes(-1, -2)) * scale;
    if let Some(bias) = bias {
        scores = scores + bias;
    }
    let weights = match sinks {
        None => scores.softmax(-1),
        Some(sinks) => {
            let sinks = sinks.expand_dims(-1).expand_dims(-1);
            let most = scores.max(keep(-1)).maximum(&sinks).stop_gradient();
            let exponentials = (scores - &most).exp();
            let sum = exponentials.sum(keep(-1)) + (sinks - &most).exp();
            exponentials / sum
        }
    };
    weights.matmul(&wide(&x[2]))
}

/// Array that is added to the scores under a mask.
fn masked(client: &Client, n: usize, mask: &Mask) -> Result<Array> {
    let numbers: Vec<f32> = (0..n * n).map(|i| if mask.sees(i / n, i % n) { 0.0 } else { f32::NEG_INFINITY }).collect();
    client.array(&numbers, &[n, n])
}

fn attention(sizes: &Sizes) -> Result<Vec<Case>> {
    let (h, n) = (8, sizes.of(1024));
    let of: &Extents = &[('b', 1), ('h', h), ('g', h), ('s', n), ('l', n), ('d', 64), ('y', 1), ('z', h), ('w', n / 4)];
    let of_causal = masked(&sizes.client, n, &Mask::causal())?;
    let of_window = masked(&sizes.client, n, &(Mask::causal() & Mask::window(n as i32 / 4)))?;
    let (window, splash, added) = (of_window.clone(), "splash causal window", "attention with bias and sinks");
    let by_grad = jit(|x: &Vec<Array>| {
        gradients(5, |x| {
            let options = Options { bias: Some(&x[3]), sinks: Some(&x[4]), ..Options::default() };
            flash_attention(&x[0], &x[1], &x[2], &options).unwrap_or_else(|e| panic!("{e}"))
        })(x)
    });
    let with_added = |x: &[Array]| attended(x, Some(&x[3]), Some(&x[4]));
    let differentiated = sizes.gradients([added, "gradients with bias and sinks"], of, 5, with_added)?;
    let arguments = differentiated.arguments.clone();
    Ok(vec![
        sizes.value(["attention"; 2], of, one(|x| attended(x, None, None)))?,
        sizes.value(["attention causal", "causal attention"], of, one(move |x| attended(x, Some(&of_causal), None)))?,
        sizes.gradients(["attention", "attention gradients"], of, 3, |x| attended(x, None, None))?,
        sizes.value([added; 2], of, one(with_added))?,
        differentiated,
        case("the same by `grad`", arguments, move |x| by_grad(&x.to_vec()), gradients(5, with_added)),
        sizes.value([splash, "attention under a mask"], of, one(move |x| attended(x, Some(&of_window), None)))?,
        sizes.gradients([splash, "gradients under a mask"], of, 3, move |x| attended(x, Some(&window), None))?,
    ])
}

fn caches(sizes: &Sizes) -> Result<Vec<Case>> {
    let (heads, key_heads, keys, d) = (32, 8, sizes.of(4096), 128);
    let of = &[('b', 1), ('h', heads), ('g', key_heads), ('s', 1), ('l', keys), ('d', d)];
    let (requests, page) = (4, 16);
    let pages = keys / page;
    let of_pages = &[('h', heads), ('g', key_heads), ('d', d), ('p', pages), ('t', page), ('r', requests)];
    let numbers: Vec<i32> = (0..pages).map(|j| (j * 7 % pages) as i32).collect();
    let tables = sizes.client.array(&numbers, &[requests, pages / requests])?;
    Ok(vec![
        sizes.value(["decode", "decoding"], of, one(|x| attended(x, None, None)))?,
        sizes.value(["paged", "decoding over pages"], of_pages, move |x| {
            let of = |x: &Array| x.take(&tables, 0).swapaxes(1, 2).reshape(&[requests, key_heads, keys / requests, d]);
            let q = x[0].expand_dims(2);
            Ok(vec![attended(&[q, of(&x[1]), of(&x[2])], None, None).reshape(&[requests, heads, d])])
        })?,
    ])
}
