//! Our side of `sweep.py`: builds the functions that the script draws, runs and times them.
//!
//! Reads requests from stdin and answers each on stdout, a line of JSON each:
//!
//! | request | answer |
//! |---|---|
//! | `{"program": P, "inputs": FILE, "outputs": FILE, "gradient": N}` | `{"seconds": S}` of the first call, whose results are written |
//! | `{"time": N}` | `{"nanoseconds": [..]}` of N calls |
//!
//! A request that fails is answered with `{"error": TEXT}`. `gradient` above 0 asks for the gradients by the first N
//! inputs of a sum over the results instead of the results. Files are safetensors with arrays `0`, `1`, ...
#[path = "../../examples/data/mod.rs"]
mod data;
mod program;
#[path = "../results.rs"]
mod results;

use pallas_rt::prelude::*;
use pallas_rt::{grad, jit};
use program::{Program, wrong};
use serde_json::{Value, json};
use std::io::{BufRead, Write};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

type Call = Box<dyn Fn() -> Result<Vec<Array>>>;

/// A call of the compiled function of a request.
fn call(request: &Value) -> Result<Call> {
    let text = |name: &str| request[name].as_str().ok_or_else(|| wrong(format!("a request without `{name}`")));
    let program = Arc::new(Program::parse(&request["program"])?);
    let mut arrays = data::load(&Client::cpu(), text("inputs")?)?;
    let count = arrays.len();
    let mut inputs: Vec<Array> = (0..count).map(|i| data::take(&mut arrays, &i.to_string())).collect::<Result<_>>()?;
    let varied = request["gradient"].as_u64().unwrap_or(0) as usize;
    if varied == 0 {
        let function = jit(move |inputs: &Vec<Array>| program.run(inputs));
        return Ok(Box::new(move || function(&inputs)));
    }
    let rest = inputs.split_off(varied);
    let function = jit(grad(move |varied: &Vec<Array>, rest: &Vec<Array>| {
        let all: Vec<Array> = varied.iter().chain(rest).cloned().collect();
        program::loss(&program.run(&all)?)
    }));
    Ok(Box::new(move || function(&inputs, &rest)))
}

/// Calls it, and waits for its results.
fn finished(call: &Call) -> Result<Vec<Array>> {
    let results = call()?;
    results.iter().try_for_each(Array::block_until_ready)?;
    Ok(results)
}

fn answer(request: &Value, current: &mut Option<Call>) -> Result<Value> {
    if let Some(calls) = request["time"].as_u64() {
        let call = current.as_ref().ok_or_else(|| wrong("no program to be timed".into()))?;
        let mut nanoseconds = vec![];
        for _ in 0..calls {
            let start = Instant::now();
            finished(call)?;
            nanoseconds.push(start.elapsed().as_nanos() as u64);
        }
        return Ok(json!({ "nanoseconds": nanoseconds }));
    }
    // The memory of the case before is free while this one is compiled.
    *current = None;
    let made = call(request)?;
    let start = Instant::now();
    let found = finished(&made)?;
    let seconds = start.elapsed().as_secs_f64();
    results::write(request["outputs"].as_str().unwrap_or_default(), &found)?;
    *current = Some(made);
    Ok(json!({ "seconds": seconds }))
}

fn main() {
    // `cargo bench` runs every target; this one answers a script.
    if !std::env::args().any(|a| a == "--serve") {
        println!("sweep: answers `python benches/sweep.py`, which draws cases and compares them with XLA and torch");
        return;
    }
    let mut current = None;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("the script writes text");
        let request: Value = serde_json::from_str(&line).expect("the script writes JSON");
        // A panic is a finding about one case; the others are still to be measured.
        let answered = std::panic::catch_unwind(AssertUnwindSafe(|| answer(&request, &mut current)));
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => json!({ "error": error.to_string() }),
            Err(_) => json!({ "error": "panic: see standard error" }),
        };
        println!("{answer}");
        std::io::stdout().flush().expect("the script reads on");
    }
}
