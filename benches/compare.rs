//! Our side of `compare.py`: runs the shipped kernels on the inputs that its peers get, one call at a time.
//!
//! Reads commands from stdin, a line each, and answers each with one line, `error: ..` if it can't be done:
//!
//! | command | answer |
//! |---|---|
//! | `peak` | measured FLOP/s of fused multiply-adds and copied bytes/s |
//! | `case NAME INPUTS OUTPUTS` | runs a case once on the arrays of a safetensors file and writes what it returns |
//! | `time N` | nanoseconds of N calls of the case |
//! | `memory` | bytes of the temporaries of the function that the case has jitted last |
#[path = "../examples/data/mod.rs"]
#[expect(dead_code, reason = "examples take arrays out one by one")]
mod data;
mod graphs;
#[expect(dead_code, reason = "limits by element type and size are for kernels.rs")]
mod peak;
mod results;

use graphs::Program;
use pallas_kernels::flash_attention::{Causal, Options, flash_attention, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::flash_attention_backward;
use pallas_kernels::{matmul::matmul, norm::layer_norm, softmax::softmax};
use pallas_rt::jit_misses;
use pallas_rt::prelude::*;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::time::Instant;

type Arrays = BTreeMap<String, Array>;
type Kernels = fn(&Arrays) -> Result<Vec<Array>>;

/// Calls of kernels, by the first word of its name; the rest of a name says sizes and element types, which the inputs
/// have.
const KERNELS: [(&str, Kernels); 8] = [
    ("matmul", |x| Ok(vec![matmul(&x["a"], &x["b"])?])),
    ("softmax", |x| Ok(vec![softmax(&x["x"])?])),
    ("layer_norm", |x| Ok(vec![layer_norm(&x["x"], &x["gamma"], &x["beta"], 1e-5)?])),
    ("attention_full", |x| attention(x, Causal::No)),
    ("attention_causal", |x| attention(x, Causal::FromStart)),
    ("attention_gradients_full", |x| gradients(x, Causal::No)),
    ("attention_gradients_causal", |x| gradients(x, Causal::FromStart)),
    ("add", |x| Ok(vec![add(&x["x"], &x["y"])?])),
];

/// The smallest of launches.
#[kernel(grid = (cdiv(M, 16)))]
fn add(
    #[block([M, N] => [16, 16], |i| (i, 0))] x: In<f32>,
    #[block([M, N] => [16, 16], |i| (i, 0))] y: In<f32>,
    #[block([M, N] => [16, 16], |i| (i, 0))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

fn attention(x: &Arrays, causal: Causal) -> Result<Vec<Array>> {
    let options = Options { causal, ..Options::default() };
    Ok(vec![flash_attention(&x["q"], &x["k"], &x["v"], &options)?])
}

fn gradients(x: &Arrays, causal: Causal) -> Result<Vec<Array>> {
    let (operands, options) = ([&x["q"], &x["k"], &x["v"]], Options { causal, ..Options::default() });
    let (out, lse) = flash_attention_with_lse(operands[0], operands[1], operands[2], &options)?;
    let (dq, dk, dv) = flash_attention_backward(operands, [&out, &lse], &x["dout"], &options)?;
    Ok(vec![out, dq, dk, dv])
}

struct Server {
    client: Client,
    program: Option<Program>,
}

impl Server {
    fn answer(&mut self, command: &str) -> Result<String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        match (words.as_slice(), &mut self.program) {
            (["peak"], _) => {
                let peak = peak::measure(&self.client);
                Ok(format!("{} {}", peak.flops, peak.bytes))
            }
            (["case", name, inputs, outputs], _) => {
                let arrays = data::load(&self.client, inputs)?;
                let mut program = program(name.split('/').next().unwrap_or_default(), arrays)?;
                results::write(outputs, &program()?)?;
                self.program = Some(program);
                Ok("done".into())
            }
            (["time", calls], Some(program)) => {
                let calls = calls.parse().map_err(|e| Error::Value { message: format!("`{calls}` calls: {e}") })?;
                let times: Result<Vec<String>> = (0..calls).map(|_| Ok(once(program)?.to_string())).collect();
                Ok(times?.join(" "))
            }
            (["memory"], Some(_)) => match jit_misses().last() {
                Some(miss) => Ok(miss.temporary_bytes.to_string()),
                None => Err(Error::Value { message: "the case has jitted nothing".into() }),
            },
            _ => {
                Err(Error::Value { message: format!("`{command}` at this point: expected peak, case, time or memory") })
            }
        }
    }
}

/// The program of a case.
fn program(case: &str, arrays: Arrays) -> Result<Program> {
    if let Some((_, call)) = KERNELS.iter().find(|(known, _)| *known == case) {
        return Ok(Box::new(move || call(&arrays)));
    }
    let Some((_, make)) = graphs::CASES.iter().find(|(known, _)| *known == case) else {
        return Err(Error::Value { message: format!("no case `{case}`") });
    };
    make(arrays)
}

/// Nanoseconds of a call, until its results are there.
fn once(program: &mut Program) -> Result<u128> {
    let start = Instant::now();
    for array in program()? {
        array.block_until_ready()?;
    }
    Ok(start.elapsed().as_nanos())
}

/// Prints the times of kernels of `compare.py` without a peer.
fn alone() -> Result<()> {
    let client = Client::cpu();
    let make = |names: &[&str], shape: &[usize]| -> Result<Arrays> {
        let n: usize = shape.iter().product();
        let x: Vec<f32> = (0..n).map(|i| (i.wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5).collect();
        names.iter().map(|name| Ok((name.to_string(), client.array(&x, shape)?))).collect()
    };
    let mut rows = make(&["x"], &[1024, 1024])?;
    rows.extend(make(&["gamma", "beta"], &[1024])?);
    let heads = [1, 8, 512, 64];
    let cases = [
        ("matmul", "512", make(&["a", "b"], &[512, 512])?),
        ("softmax", "1024x1024", rows.clone()),
        ("layer_norm", "1024x1024", rows),
        ("attention_full", "8x512x64", make(&["q", "k", "v"], &heads)?),
        ("attention_causal", "8x512x64", make(&["q", "k", "v"], &heads)?),
        ("attention_gradients_full", "8x512x64", make(&["q", "k", "v", "dout"], &heads)?),
        ("attention_gradients_causal", "8x512x64", make(&["q", "k", "v", "dout"], &heads)?),
        ("add", "16x16", make(&["x", "y"], &[16, 16])?),
    ];
    println!("{:28}{:>12}{:>12}", "kernel on the CPU", "", "ms");
    for (name, shape, arrays) in cases {
        let mut program = program(name, arrays)?;
        let times: Result<Vec<u128>> = (0..15).map(|_| once(&mut program)).collect();
        let least = times?.into_iter().min().expect("fifteen calls");
        println!("{name:28}{shape:>12}{:>12.4}", least as f64 / 1e6);
    }
    Ok(())
}

fn main() {
    // `cargo bench` runs every target; this one only speaks with its script.
    let Some(device) = std::env::args().skip_while(|a| a != "--serve").nth(1) else {
        alone().unwrap_or_else(|e| panic!("{e}"));
        println!("\n`python3 benches/compare.py` times them and functions of arrays in turn with XLA and torch");
        return;
    };
    let client = match device.as_str() {
        "cpu" => Ok(Client::cpu()),
        "gpu" => Client::gpu(0),
        other => Err(Error::Value { message: format!("--serve {other}: expected cpu or gpu") }),
    };
    let mut server = Server { client: client.unwrap_or_else(|e| panic!("{e}")), program: None };
    for command in std::io::stdin().lock().lines() {
        let command = command.expect("the script writes text");
        // Errors have several lines; answers have one.
        let answer =
            server.answer(&command).unwrap_or_else(|e| format!("error: {}", e.to_string().replace('\n', " | ")));
        println!("{answer}");
        std::io::stdout().flush().expect("the script reads on");
    }
}
