//! Each shipped kernel against the same function in plain array operations under `jit`, on the CPU: results are compared, then
//! calls take turns, and the minimum of their times counts. A line per function; `plain / kernel` above 1: the kernel is ahead.
//!
//! `cargo bench --bench plain [-- part of a name] [--small]`; `--small` shows that it works, and measures nothing of use.
use pallas_kernels::cross_entropy::{
    self, cross_entropy, cross_entropy_backward, cross_entropy_of_logits, cross_entropy_of_logits_backward,
};
use pallas_kernels::decode_attention::{self, decode_attention};
use pallas_kernels::embedding::{embedding, embedding_backward};
use pallas_kernels::flash_attention::{Causal, Options, flash_attention, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::{flash_attention_backward, flash_attention_backward_with_bias};
use pallas_kernels::flash_attention_bias::sinks_gradient;
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::matmul::matmul;
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::norm_backward::{layer_norm_backward, rms_norm_backward};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::quantized_matmul::{Bits, Quantized, quantize, quantized_matmul};
use pallas_kernels::rotary::{Pairs, rotary, rotary_backward, tables};
use pallas_kernels::softmax::{log_softmax, softmax};
use pallas_kernels::softmax_backward::{log_softmax_backward, softmax_backward};
use pallas_kernels::splash_attention::{self, splash_attention, splash_attention_backward, splash_attention_with_lse};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::ir::DType;
use pallas_rt::{Array, Client, Result, grad, jit, keep, ops};
use std::process::ExitCode;
use std::time::{Duration, Instant};

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
        let n: usize = shape.iter().product();
        let x: Vec<f32> = (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5).collect();
        self.client.array(&x, shape)
    }
    fn whole(&self, n: usize, below: usize) -> Result<Array> {
        self.client.array(&(0..n).map(|i| (i * 7919 % below) as i32).collect::<Vec<_>>(), &[n])
    }
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
    // Each is as often the first of a turn, whose arguments the caches hold less of. A call that is short takes more turns: now
    // and then another thread joins it late.
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

const EPSILON: f32 = 1e-5;

fn rms(x: &[Array]) -> Array {
    &x[0] * ((&x[0] * &x[0]).mean(keep(-1)) + f64::from(EPSILON)).rsqrt() * &x[1]
}
fn layer(x: &[Array]) -> Array {
    (&x[0] - x[0].mean(keep(-1))) * (x[0].var(keep(-1)) + f64::from(EPSILON)).rsqrt() * &x[1] + &x[2]
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
    let (n, d) = (sizes.of(4096), sizes.of(1024));
    let x = sizes.floats(&[n, d])?;
    let (scale, dy) = (sizes.floats(&[d])?, x.roll(1, 0));
    let (y, log) = (softmax(&x)?, log_softmax(&x)?);
    let (positions, heads, head) = (sizes.of(1024), 32, 64);
    let q = sizes.floats(&[heads, positions, head])?;
    let angles = tables(&sizes.client, 0, positions, head, 10_000.0)?;
    let (kernel_angles, back_angles) = (angles.clone(), angles.clone());
    let given = |more: &[&Array]| [&[&x][..], more].concat().into_iter().cloned().collect::<Vec<_>>();
    Ok(vec![
        case("softmax", given(&[]), |x| Ok(vec![softmax(&x[0])?]), one(|x| x[0].softmax(-1))),
        case("log softmax", given(&[]), |x| Ok(vec![log_softmax(&x[0])?]), one(|x| x[0].log_softmax(-1))),
        case(
            "softmax gradient",
            vec![y, dy.clone()],
            |x| Ok(vec![softmax_backward(&x[0], &x[1])?]),
            one(|x| &x[0] * (&x[1] - (&x[0] * &x[1]).sum(keep(-1)))),
        ),
        case(
            "log softmax gradient",
            vec![log, dy.clone()],
            |x| Ok(vec![log_softmax_backward(&x[0], &x[1])?]),
            one(|x| &x[1] - x[0].exp() * x[1].sum(keep(-1))),
        ),
        case(
            "layer norm",
            given(&[&scale, &scale]),
            |x| Ok(vec![layer_norm(&x[0], &x[1], &x[2], EPSILON)?]),
            one(layer),
        ),
        case(
            "layer norm gradients",
            given(&[&scale, &scale, &dy]),
            |x| Ok(<[Array; 3]>::from(layer_norm_backward(&x[0], &x[1], &x[3], EPSILON)?).into()),
            gradients(3, layer),
        ),
        case("rms norm", given(&[&scale]), |x| Ok(vec![rms_norm(&x[0], &x[1], EPSILON)?]), one(rms)),
        case(
            "rms norm gradients",
            given(&[&scale, &dy]),
            |x| Ok(<[Array; 2]>::from(rms_norm_backward(&x[0], &x[1], &x[2], EPSILON)?).into()),
            gradients(2, rms),
        ),
        case("gated unit", given(&[&dy]), |x| Ok(vec![gated(&x[0], &x[1], Gate::Silu)?]), one(silu)),
        case(
            "gated unit gradients",
            given(&[&dy, &dy]),
            |x| Ok(<[Array; 2]>::from(gated_backward(&x[0], &x[1], &x[2], Gate::Silu)?).into()),
            gradients(2, silu),
        ),
        case(
            "rotary",
            vec![q.clone()],
            move |x| Ok(vec![rotary(&x[0], &kernel_angles.0, &kernel_angles.1, Pairs::Halves)?]),
            {
                let (cos, sin) = angles.clone();
                one(move |x| turned(&x[0], &cos, &sin))
            },
        ),
        case(
            "rotary gradient",
            vec![q],
            move |x| Ok(vec![rotary_backward(&x[0], &back_angles.0, &back_angles.1, Pairs::Halves)?]),
            one(move |x| turned(&x[0], &angles.0, &-&angles.1)),
        ),
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
    let (a, b) = (sizes.floats(&[n, n])?, sizes.floats(&[n, n])?);
    let few = sizes.floats(&[8, n])?;
    let mut cases =
        vec![case("product", vec![a, b.clone()], |x| Ok(vec![matmul(&x[0], &x[1])?]), one(|x| x[0].matmul(&x[1])))];
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
    let (n, classes, d) = (sizes.of(1024), sizes.of(8192), sizes.of(256));
    let (x, w) = (sizes.floats(&[n, d])?, sizes.floats(&[classes, d])?);
    let (z, dloss) = (sizes.floats(&[n, classes])?, sizes.floats(&[n])?);
    let (labels, dout) = (sizes.whole(n, classes)?, sizes.floats(&[n, d])?);
    let options = cross_entropy::Options::default();
    let (_, lse) = cross_entropy(&x, &w, &labels, &options)?;
    let (_, lse_of_logits) = cross_entropy_of_logits(&z, &labels, &options)?;
    Ok(vec![
        case(
            "cross-entropy",
            vec![x.clone(), w.clone(), labels.clone()],
            move |x| Ok(vec![cross_entropy(&x[0], &x[1], &x[2], &options)?.0]),
            one(|x| loss_of(&x[0].matmul(&x[1].t()), &x[2])),
        ),
        case(
            "cross-entropy gradients",
            vec![x, w.clone(), labels.clone(), dloss.clone()],
            move |x| Ok(<[Array; 2]>::from(cross_entropy_backward(&x[0], &x[1], &x[2], &lse, &x[3], &options)?).into()),
            gradients(2, |x| loss_of(&x[0].matmul(&x[1].t()), &x[2])),
        ),
        case(
            "cross-entropy of logits",
            vec![z.clone(), labels.clone()],
            move |x| Ok(vec![cross_entropy_of_logits(&x[0], &x[1], &options)?.0]),
            one(|x| loss_of(&x[0], &x[1])),
        ),
        case(
            "cross-entropy of logits gradient",
            vec![z, labels.clone(), dloss],
            move |x| Ok(vec![cross_entropy_of_logits_backward(&x[0], &x[1], &lse_of_logits, &x[2], &options)?]),
            gradients(1, |x| loss_of(&x[0], &x[1])),
        ),
        small::case(
            "embedding",
            vec![w.clone(), labels.clone()],
            |x| Ok(vec![embedding(&x[0], &x[1])?]),
            one(|x| x[0].take(&x[1], 0)),
        ),
        case(
            "embedding gradient",
            vec![w, labels, dout],
            move |x| Ok(vec![embedding_backward(&x[2], &x[1], classes, None)?]),
            gradients(1, |x| x[0].take(&x[1], 0)),
        ),
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
    let (heads, n, d) = (8, sizes.of(1024), 64);
    let q = sizes.floats(&[1, heads, n, d])?;
    let (k, v) = (q.roll(1, 2), q.roll(2, 2));
    let (bias, sinks, dout) = (sizes.floats(&[1, heads, n, n])?, sizes.floats(&[heads])?, q.roll(3, 2));
    let plain = Options::default();
    let (out, lse) = flash_attention_with_lse(&q, &k, &v, &plain)?;
    let biased = Options { bias: Some(&bias), sinks: Some(&sinks), ..plain };
    let (biased_out, biased_lse) = flash_attention_with_lse(&q, &k, &v, &biased)?;
    let (causal, mask) = (Mask::causal() & Mask::window(n as i32 / 4), Options { causal: Causal::FromStart, ..plain });
    let info = MaskInfo::new(&sizes.client, &vec![causal.clone(); heads], [n, n])?;
    let (of_causal, of_window) = (masked(&sizes.client, n, &Mask::causal())?, masked(&sizes.client, n, &causal)?);
    let splash = splash_attention::Options::default();
    let (splash_out, splash_lse) = splash_attention_with_lse(&q, &k, &v, &info, &splash)?;
    let (own, window) = (info.clone(), of_window.clone());
    let qkv = |more: &[&Array]| [&[&q, &k, &v][..], more].concat().into_iter().cloned().collect::<Vec<_>>();
    Ok(vec![
        case(
            "attention",
            qkv(&[]),
            |x| Ok(vec![flash_attention(&x[0], &x[1], &x[2], &Options::default())?]),
            one(|x| attended(x, None, None)),
        ),
        case(
            "causal attention",
            qkv(&[]),
            move |x| {
                let options = Options { causal: mask.causal, ..Options::default() };
                Ok(vec![flash_attention(&x[0], &x[1], &x[2], &options)?])
            },
            one(move |x| attended(x, Some(&of_causal), None)),
        ),
        case(
            "attention gradients",
            qkv(&[&dout]),
            move |x| {
                let operands = [&x[0], &x[1], &x[2]];
                let all = flash_attention_backward(operands, [&out, &lse], &x[3], &Options::default())?;
                Ok(<[Array; 3]>::from(all).into())
            },
            gradients(3, |x| attended(x, None, None)),
        ),
        case(
            "attention with bias and sinks",
            qkv(&[&bias, &sinks]),
            |x| {
                let options = Options { bias: Some(&x[3]), sinks: Some(&x[4]), ..Options::default() };
                Ok(vec![flash_attention(&x[0], &x[1], &x[2], &options)?])
            },
            one(|x| attended(x, Some(&x[3]), Some(&x[4]))),
        ),
        case(
            "gradients with bias and sinks",
            qkv(&[&bias, &sinks, &dout]),
            move |x| {
                let options = Options { bias: Some(&x[3]), sinks: Some(&x[4]), ..Options::default() };
                let (operands, results) = ([&x[0], &x[1], &x[2]], [&biased_out, &biased_lse]);
                let (dq, dk, dv, by_bias) = flash_attention_backward_with_bias(operands, results, &x[5], &options)?;
                Ok(vec![dq, dk, dv, by_bias, sinks_gradient(results, &x[5], &x[4])?])
            },
            gradients(5, |x| attended(x, Some(&x[3]), Some(&x[4]))),
        ),
        case(
            "the same by `grad`",
            qkv(&[&bias, &sinks, &dout]),
            {
                let kernel = jit(|x: &Vec<Array>| {
                    gradients(5, |x| {
                        let options = Options { bias: Some(&x[3]), sinks: Some(&x[4]), ..Options::default() };
                        flash_attention(&x[0], &x[1], &x[2], &options).unwrap_or_else(|e| panic!("{e}"))
                    })(x)
                });
                move |x| kernel(&x.to_vec())
            },
            gradients(5, |x| attended(x, Some(&x[3]), Some(&x[4]))),
        ),
        case(
            "attention under a mask",
            qkv(&[]),
            move |x| Ok(vec![splash_attention(&x[0], &x[1], &x[2], &info, &splash)?]),
            one(move |x| attended(x, Some(&of_window), None)),
        ),
        case(
            "gradients under a mask",
            qkv(&[&dout]),
            move |x| {
                let (operands, results) = ([&x[0], &x[1], &x[2]], [&splash_out, &splash_lse]);
                Ok(<[Array; 3]>::from(splash_attention_backward(operands, results, &x[3], &own, &splash)?).into())
            },
            gradients(3, move |x| attended(x, Some(&window), None)),
        ),
    ])
}

fn caches(sizes: &Sizes) -> Result<Vec<Case>> {
    let (heads, key_heads, keys, d) = (32, 8, sizes.of(4096), 128);
    let (q, k) = (sizes.floats(&[1, heads, 1, d])?, sizes.floats(&[1, key_heads, keys, d])?);
    let v = k.roll(1, 2);
    let (requests, page) = (4, 16);
    let each = keys / page / requests;
    let numbers: Vec<i32> = (0..requests * each).map(|j| (j * 7 % (requests * each)) as i32).collect();
    let tables = sizes.client.array(&numbers, &[requests, each])?;
    let pages = sizes.floats(&[requests * each, key_heads, page, d])?;
    let cache = PagedCache { k: pages.clone(), v: pages.roll(1, 2), scales: None };
    let step = Requests { tables: &numbers, lengths: &[(each * page) as i32; 4], starts: &[0, 1, 2, 3, 4] };
    let batch = Batch::new(&cache, heads, step, BatchOptions::default())?;
    let asked = sizes.floats(&[requests, heads, d])?;
    let values = cache.v.clone();
    Ok(vec![
        case(
            "decoding",
            vec![q, k, v],
            |x| Ok(vec![decode_attention(&x[0], &x[1], &x[2], &decode_attention::Options::default())?]),
            one(|x| attended(x, None, None)),
        ),
        case(
            "decoding over pages",
            vec![asked, pages, values],
            move |x| Ok(vec![batch.attend(&x[0], &cache, &paged_attention::Options::default())?]),
            move |x| {
                let of = |x: &Array| x.take(&tables, 0).swapaxes(1, 2).reshape(&[requests, key_heads, each * page, d]);
                let q = x[0].expand_dims(2);
                Ok(vec![attended(&[q, of(&x[1]), of(&x[2])], None, None).reshape(&[requests, heads, d])])
            },
        ),
    ])
}
