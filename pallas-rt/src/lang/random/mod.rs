//! Law: a random kernel over the whole registry gives the same result as plain Rust, as traced and as lowered tile IR,
//! on the CPU and, without 64-bit types, on a GPU. Kernels have control flow, ragged edges, blocks selected by a table,
//! windows at run-time positions, two operands with the same array, and an output that aliases an input, whose blocks
//! are scattered.
//!
//! A kernel is determined by a seed: [`flow`] draws its control flow, [`draw`] its operations, [`shapes`] combinations
//! of operations that move elements, and [`memory`] loads in the body. Each value has a bound on the difference between
//! devices, and only continuous operations take values that may differ. Integers are therefore equal on all devices,
//! and floats within a tolerance derived from the scalar table's error bounds.
#![allow(clippy::print_stdout, reason = "how many kernels ran")]
pub(crate) mod draw;
mod flow;
pub(crate) mod hostile;
mod memory;
mod shapes;

use crate::prelude::*;
use draw::{Dice, ERROR};
use flow::{Flow, Program, State};
use memory::Memory;
use pallas_codegen::interp::{Argument, Data, Machine, walk};
use pallas_codegen::passes::{self, PlacementPassState};
use pallas_codegen::target::{Profile, Target};
use pallas_codegen::wgsl;
use pallas_ir::scalar::SignatureType;
use pallas_ir::{Kernel, Literal, Op, ScalarOp, StructuralOp};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of operations of a stretch without control flow.
pub(crate) const STEPS: usize = 6;

/// Returns true if a seed draws a small kernel, without 64-bit types, which shaders do not have. All other kernels have
/// them.
fn is_small(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// The first `n` seeds of small kernels.
fn small(n: u64) -> impl Iterator<Item = u64> {
    (0..).filter(|&seed| is_small(seed)).take(n as usize)
}

/// Numbers of kernels for the host and for a GPU: from `PALLAS_RANDOM_KERNELS=5000,500`, else a small sample.
fn counts() -> [u64; 2] {
    let Ok(asked) = std::env::var("PALLAS_RANDOM_KERNELS") else { return [300, 40] };
    let counts: Vec<u64> = asked.split(',').filter_map(|n| n.parse().ok()).collect();
    counts.try_into().unwrap_or_else(|_| panic!("PALLAS_RANDOM_KERNELS={asked}: expected two numbers, as in 5000,500"))
}

fn control_flow(seed: u64) -> Vec<Flow> {
    // Shaders of the largest kernels take minutes to compile, so GPUs skip them.
    let deeper = (seed / 2 % 2) as usize;
    let (depth, longest) = if is_small(seed) { (1 + deeper, 1) } else { (2 + deeper, 2) };
    flow::draw(&mut Dice(seed), depth, longest)
}

/// The kernel of `seed`. Its blocks of 2 by 6 overhang the array along both axes; programs of a row run in order. Terms
/// of the grid's sizes are beyond 32 bits for most `W`, on which no result depends.
#[kernel(grid = (cdiv(M * W, 2 * W), cdiv(K * W, 6 * W)), semantics = (parallel, arbitrary), allow(overflow, lost_store))]
fn random(
    #[block([M, K] => [2, 6], |i, j| (i, j), fill = 0.5)] a: In<f32>,
    #[block([M, K] => [2, 6], |i, j| (i, j), fill = 3)] n: In<i32>,
    #[prefetch([P, Q])] table: Prefetch<i32>,
    #[block([L, R] => [4, 8], |i, j| (table.at((i, j + 1)), min(j, cdiv(R, 8) - 1)), fill = 0.25)] far: In<f32>,
    #[block([L, R] => [_, 8], |i, j| (table.at((i, j + 1)), 0))] bare: In<i32>,
    #[block([M, K] => [2, 6], |i, j| (i, cdiv(K, 6) - 1 - j), fill = 0.5)] twin: In<f32>,
    #[block([M, K] => [2, 6], |i, j| (table.at((i, 0)), j), fill = 1)] old: In<i32>,
    #[block([M, K] => [2, 6], |i, j| (i, j))] floats: Out<f32>,
    #[block([M, K] => [2, 6], |i, j| (i, j))] ints: Out<i32>,
    #[block([M, K] => [2, 6], |i, j| (table.at((i, 0)), j), alias = old)] new: Out<i32>,
    #[scratch([2, 6])] memo: Scratch<i32>,
    #[scratch([4, 8])] shelf: Scratch<f32>,
    rounds: i32,
    #[dim] W: usize,
    #[fixed] seed: u64,
    #[fixed] steps: usize,
) {
    if program_id(1) == 0 {
        memo.store(n.load());
        shelf.fill(1.5);
    }
    let (x, held) = (a.load(), old.load());
    let inside = a.valid(0) & a.valid(1);
    let (row, step) = (program_id(0), program_id(1));
    let inputs = [x.handle, n.load().handle, held.handle, inside.handle, row.handle, step.handle];
    let memory = Memory { table, near: a, twin, far, bare, shelf };
    let program = Program { steps, inputs: &inputs, memory, rounds, wide: !is_small(seed) };
    let mut state = State { rough: x * 0.25, exact: x, ints: memo.load(), count: scalar(0) };
    program.run(&control_flow(seed), &mut state);
    memo.store(state.ints);
    floats.store(state.rough + state.exact);
    ints.store_masked(state.ints + state.count, inside);
    new.store(held ^ state.ints);
}

type Numbers = (Vec<f32>, Vec<i32>);

/// Shapes and contents of the arrays that a kernel reads.
struct Inputs {
    /// Extents of `a`, `n` and the outputs: up to several blocks and a part.
    shape: [usize; 2],
    floats: Vec<f32>,
    ints: Vec<i32>,
    /// Extents of the arrays from which a table chooses blocks.
    far: [usize; 2],
    far_floats: Vec<f32>,
    far_ints: Vec<i32>,
    /// Shape of the table. A row of it is for a row of programs: the index of the row of blocks of `old` that they
    /// change, an entry for each program, and two entries that nothing may depend on.
    entries: [usize; 2],
    table: Vec<i32>,
}

fn inputs(seed: u64) -> Inputs {
    let mut dice = Dice(!seed);
    // One extent in sixteen is 0: no program runs.
    let shape = [4, 10].map(|most| if dice.below(16) == 0 { 0 } else { 1 + dice.below(most) });
    let far = [1 + dice.below(7), 1 + dice.below(12)];
    let mut floats =
        |n: [usize; 2]| (0..n[0] * n[1]).map(|_| dice.below(4000) as f32 / 1000.0 - 2.0).collect::<Vec<_>>();
    let (near_floats, far_floats) = (floats(shape), floats(far));
    let mut ints = |n: [usize; 2]| (0..n[0] * n[1]).map(|_| dice.below(40) as i32 - 20).collect::<Vec<_>>();
    let (near_ints, far_ints) = (ints(shape), ints(far));
    let grid = grid(shape);
    // Steps that are fetched ahead read entries behind the last one; nothing may come of it.
    let entries = [grid[0], 1 + grid[1] + 2];
    let blocks = far[0].div_ceil(4);
    // Each row of blocks once, from any one on.
    let first = dice.below(grid[0]);
    let entry = |i: usize| match [i / entries[1], i % entries[1]] {
        [row, 0] => ((first + row) % grid[0]) as i32,
        [_, column] if column <= grid[1] => dice.below(blocks) as i32,
        _ => dice.pick(&[-9, 1 << 20]),
    };
    let table = (0..entries[0] * entries[1]).map(entry).collect();
    Inputs { shape, floats: near_floats, ints: near_ints, far, far_floats, far_ints, entries, table }
}
fn grid(shape: [usize; 2]) -> [usize; 2] {
    [shape[0].div_ceil(2), shape[1].div_ceil(6)]
}
/// The value of the kernel's parameter `rounds`.
const ROUNDS: i32 = 2;

/// The value of the kernel's dimension `W`.
fn width(seed: u64) -> usize {
    [1, 65_536, i32::MAX as usize][(seed % 3) as usize]
}

/// The arrays that the kernel of a seed takes.
pub(crate) fn operands(client: &Client, seed: u64) -> Result<Vec<Array>> {
    let x = inputs(seed);
    Ok(vec![
        client.array(&x.floats, &x.shape)?,
        client.array(&x.ints, &x.shape)?,
        client.array(&x.table, &x.entries)?,
        client.array(&x.far_floats, &x.far)?,
        client.array(&x.far_ints, &x.far)?,
        client.array(&x.ints, &x.shape)?,
    ])
}

/// Calls the kernel of a seed. The first array is passed as two operands; the last one is donated to the output that
/// aliases it.
pub(crate) fn call(mut operands: Vec<Array>, seed: u64, steps: usize) -> Result<(Array, Array, Array)> {
    let old = operands.pop().expect("six operands");
    let [a, n, table, far, bare] = &operands[..] else { panic!("six operands") };
    random(a, n, table, far, bare, a, old, ROUNDS, width(seed), seed, steps)
}

fn run(client: &Client, seed: u64, steps: usize) -> Result<Numbers> {
    let (floats, ints, new) = call(operands(client, seed)?, seed, steps)?;
    Ok((floats.to_vec()?, [ints.to_vec()?, new.to_vec()?].concat()))
}

/// Returns the kernel of a seed as traced and as lowered: what tests of passes and backends start from.
pub(crate) fn kernels(seed: u64, steps: usize) -> [Arc<Kernel>; 2] {
    let mut found =
        crate::launch::collect_traced_and_lowered_kernels(|| run(&Client::cpu(), seed, steps)).expect("it is compiled");
    found.remove(0)
}

/// Runs tile IR on the interpreter, with the inputs of a seed.
fn interpret(kernel: &Arc<Kernel>, seed: u64) -> Numbers {
    let x = inputs(seed);
    let array = |shape: [usize; 2], dtype, words: Vec<[u8; 4]>| {
        Argument::Array(shape.to_vec(), Data::from_bytes(dtype, &words.concat()))
    };
    let floats = |shape, x: &[f32]| array(shape, DType::F32, x.iter().map(|x| x.to_le_bytes()).collect());
    let ints = |shape, x: &[i32]| array(shape, DType::I32, x.iter().map(|x| x.to_le_bytes()).collect());
    let fresh = |shape: &[usize]| Argument::Uninitialized(shape.to_vec());
    let rounds = Argument::Param(Literal::int(DType::I32, i64::from(ROUNDS)));
    let near = [floats(x.shape, &x.floats), ints(x.shape, &x.ints)];
    let chosen = [ints(x.entries, &x.table), floats(x.far, &x.far_floats), ints(x.far, &x.far_ints)];
    let again = [floats(x.shape, &x.floats), ints(x.shape, &x.ints)];
    let written = [fresh(&x.shape), fresh(&x.shape), fresh(&x.shape), fresh(&draw::SHAPE), fresh(&[4, 8]), rounds];
    let arguments = near.into_iter().chain(chosen).chain(again).chain(written).collect();
    let named = |name: &str| match name {
        "M" => x.shape[0],
        "K" => x.shape[1],
        "P" => x.entries[0],
        "Q" => x.entries[1],
        "L" => x.far[0],
        "W" => width(seed),
        _ => x.far[1],
    };
    let sizes = kernel.dims.iter().map(|d| d.size.unwrap_or_else(|| named(&d.name) as i64)).collect();
    let grid = grid(x.shape).map(|n| n as i64);
    let grid = grid[..kernel.grid.len()].to_vec();
    let mut machine = Machine::new(kernel.clone(), sizes, grid, arguments);
    walk::run_all_programs(&mut machine).unwrap_or_else(|f| panic!("seed {seed}: {f:?}\n{kernel}"));
    let (outputs, _) = machine.finish().unwrap_or_else(|f| panic!("seed {seed}: {f:?}\n{kernel}"));
    let words = |d: &Data| -> Vec<[u8; 4]> {
        d.to_bytes().chunks_exact(4).map(|c| c.try_into().expect("four bytes")).collect()
    };
    let [a, b, c] = &outputs[..] else { panic!("three outputs") };
    let whole = words(b).into_iter().chain(words(c)).map(i32::from_le_bytes).collect();
    (words(a).into_iter().map(f32::from_le_bytes).collect(), whole)
}

fn agree((a, m): &Numbers, (b, n): &Numbers) -> bool {
    m == n && a.iter().zip(b).all(|(x, y)| (x - y).abs() <= 4.0 * ERROR)
}

/// Asserts that `execute` agrees with plain Rust for all seeds; a counterexample is reported with the fewest steps.
fn law(seeds: impl Iterator<Item = u64>, device: &str, execute: impl Fn(u64, usize) -> Vec<(String, Numbers)>) {
    let mut ran = 0;
    for seed in seeds {
        ran += 1;
        let fails = |steps: usize| -> Option<String> {
            let expected =
                run(&Client::interpreter(), seed, steps).unwrap_or_else(|e| panic!("seed {seed}, {steps}: {e}"));
            let wrong = execute(seed, steps).into_iter().find(|(_, found)| !agree(&expected, found));
            wrong.map(|(name, found)| format!("as Rust {expected:?}\n{name} {found:?}"))
        };
        if fails(STEPS).is_some() {
            let (steps, report) = (0..=STEPS).find_map(|steps| Some((steps, fails(steps)?))).expect("it fails");
            let text = &kernels(seed, steps)[0];
            panic!("seed {seed}, {steps} steps, on {device}:\n{report}\n{text}\n{:?}", control_flow(seed));
        }
    }
    println!("random kernels: {ran} on {device}");
}

fn interpreted(seeds: Range<u64>) {
    law(seeds, "interpreter", |seed, steps| {
        let [traced, lowered] = kernels(seed, steps);
        let mut stages = vec![("traced", traced), ("lowered", lowered.clone())];
        let mut staged = PlacementPassState { depth: 3, ..PlacementPassState::new(Kernel::clone(&lowered), 1) };
        let mut asked = staged.clone();
        asked.kernel.operands.iter_mut().for_each(|o| o.buffered = Some(3));
        for &pass in passes::PLACEMENT_PASSES {
            staged.run(pass);
            asked.run(pass);
            stages.push((pass.0, Arc::new(staged.kernel.clone())));
        }
        stages.push(("three steps asked for", Arc::new(asked.kernel)));
        stages.into_iter().map(|(name, kernel)| (name.to_string(), interpret(&kernel, seed))).collect()
    });
}

fn on_the_cpu(seeds: Range<u64>) {
    let strips = std::env::var("PALLAS_CPU_NATIVE").is_ok_and(|v| v == "0");
    let name = if strips { "cpu, in strips" } else { "cpu" };
    // Another launch reuses the state of the first one.
    let launch = |seed, steps, again: &str| (format!("{name}{again}"), found(&Client::cpu(), seed, steps));
    law(seeds, name, |seed, steps| ["", " again"].map(|again| launch(seed, steps, again)).into());
}

fn found(client: &Client, seed: u64, steps: usize) -> Numbers {
    run(client, seed, steps).unwrap_or_else(|e| panic!("seed {seed}, {steps} steps on {client:?}: {e}"))
}

/// Returns the seeds of part `i` of four, whose tests run in parallel.
fn part(i: u64) -> Range<u64> {
    let [n, _] = counts();
    n * i / 4..n * (i + 1) / 4
}

macro_rules! parts {
    ($($i:literal: $interpreted:ident, $cpu:ident;)*) => {$(
        #[test]
        fn $interpreted() {
            interpreted(part($i));
        }
        #[test]
        fn $cpu() {
            on_the_cpu(part($i));
        }
    )*};
}
parts! {
    0: random_kernels_mean_the_same_interpreted_1, random_kernels_mean_the_same_on_the_cpu_1;
    1: random_kernels_mean_the_same_interpreted_2, random_kernels_mean_the_same_on_the_cpu_2;
    2: random_kernels_mean_the_same_interpreted_3, random_kernels_mean_the_same_on_the_cpu_3;
    3: random_kernels_mean_the_same_interpreted_4, random_kernels_mean_the_same_on_the_cpu_4;
}

#[test]
fn random_kernels_mean_the_same_in_strips() {
    for i in 1..=4 {
        let test = format!("lang::random::random_kernels_mean_the_same_on_the_cpu_{i}");
        print!("{}", again(&test, &[("PALLAS_CPU_NATIVE", "0")]));
    }
}

/// A GPU, if there is one; `PALLAS_REQUIRE_GPU=1` makes its absence a failure.
pub(crate) fn gpu() -> Option<Client> {
    match Client::gpu(0) {
        Ok(client) => Some(client),
        Err(e) => {
            assert!(std::env::var("PALLAS_REQUIRE_GPU").is_err(), "PALLAS_REQUIRE_GPU is set: {e}");
            None
        }
    }
}

/// A GPU and an OpenGL adapter, if there are any.
pub(crate) fn gpus() -> Vec<Client> {
    gpu().into_iter().chain(Client::gl(0)).collect()
}

/// Runs a test of this binary in a new process with these variables; returns the lines of random kernels that it
/// printed.
pub(crate) fn again(test: &str, variables: &[(&str, &str)]) -> String {
    let mut command = std::process::Command::new(std::env::current_exe().expect("this binary"));
    let output = command.args([test, "--exact", "--nocapture"]).envs(variables.iter().copied()).output();
    let output = output.expect("it starts");
    let text = [output.stdout, output.stderr].map(|x| String::from_utf8_lossy(&x).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{test}: {text}");
    text.lines()
        .filter_map(|line| Some(format!("random kernels: {}\n", line.split_once("random kernels: ")?.1)))
        .collect()
}

fn on_a_gpu(client: &Client, seeds: impl Iterator<Item = u64>) {
    law(seeds, &client.device().to_string(), |seed, steps| vec![("gpu".to_string(), found(client, seed, steps))]);
}

// In two halves, since drivers compile shaders on one thread each.
#[test]
fn random_kernels_mean_the_same_on_a_gpu_1() {
    let [_, n] = counts();
    gpu().into_iter().for_each(|client| on_a_gpu(&client, small(n / 2)));
}
#[test]
fn random_kernels_mean_the_same_on_a_gpu_2() {
    let [_, n] = counts();
    gpu().into_iter().for_each(|client| on_a_gpu(&client, small(n).skip(n as usize / 2)));
}
/// Runs a quarter as many seeds as on a GPU, and other ones.
#[test]
fn random_kernels_mean_the_same_on_opengl() {
    let [_, n] = counts();
    Client::gl(0).into_iter().for_each(|client| on_a_gpu(&client, small(n + n / 4).skip(n as usize)));
}

/// Compiles the shader of a seed for a profile and WebGPU's limits; every second one for threads in lockstep and rows
/// of whole vectors.
fn shader(seed: u64, profile: Profile) -> (wgsl::Shader, wgsl::BarrierAudit) {
    let [_, lowered] = kernels(seed, STEPS);
    let (lanes, multiples) = if seed.is_multiple_of(4) { (None, 0) } else { (Some(8), u64::MAX) };
    let target = Target { profile, lanes, ..Target::webgpu() };
    wgsl::audit_barriers(&lowered, 1, &target, multiples).unwrap_or_else(|d| panic!("seed {seed}: {d}"))
}

#[test]
fn shaders_of_random_kernels_do_not_race() {
    for seed in small(200) {
        for profile in [Profile::Gpu, Profile::SimtCpu] {
            let (_, audit) = shader(seed, profile);
            assert!(audit.races.is_empty(), "seed {seed}: {:?}", audit.races);
        }
    }
}

/// Shaders pass the parser and the validator that every adapter runs first.
#[cfg(feature = "gpu")]
#[test]
fn shaders_of_random_kernels_are_valid() {
    use crate::wgpu::naga;
    for seed in small(200) {
        let text = shader(seed, Profile::Gpu).0.text;
        let module = naga::front::wgsl::parse_str(&text);
        let module = module.unwrap_or_else(|e| panic!("seed {seed}: {}", e.emit_to_string(&text)));
        let (flags, all) = (naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
        let valid = naga::valid::Validator::new(flags, all).validate(&module);
        assert!(valid.is_ok(), "seed {seed}: {}", valid.err().map_or(String::new(), |e| e.emit_to_string(&text)));
    }
}

#[test]
fn text_of_random_kernels_parses_back() {
    for seed in 0..300 {
        for kernel in kernels(seed, STEPS) {
            let parse = |text: &str| text.parse::<Kernel>().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let parsed = Arc::new(parse(&kernel.to_string()));
            assert_eq!(interpret(&parsed, seed), interpret(&kernel, seed), "seed {seed}");
            // Values are numbered as the text names them.
            assert_eq!(parse(&parsed.to_string()), *parsed, "seed {seed}");
        }
    }
}

#[test]
fn random_kernels_are_not_trivial() {
    // The law is worth something only if programs differ in what they give, and together use the whole registry: on a
    // GPU too.
    let results = (0..60).map(|seed| run(&Client::interpreter(), seed, STEPS).expect("it runs"));
    let results: Vec<Numbers> = results.filter(|(floats, _)| !floats.is_empty()).collect();
    assert!((45..60).contains(&results.len()), "{} of 60 kernels have programs", results.len());
    for i in 0..results.len() {
        assert!((0..i).all(|j| !agree(&results[i], &results[j])), "program {i} gives what an earlier one gave");
        assert!(results[i].0.iter().all(|x| x.is_finite()), "program {i} does not give numbers");
    }
    let text: String = small(1600).map(|seed| kernels(seed, STEPS)[0].to_string()).collect();
    let missing = |names: Vec<&'static str>| -> Vec<&str> {
        names.into_iter().filter(|name| !text.contains(&format!(" = {name} "))).collect()
    };
    let scalar = missing(ScalarOp::ALL.iter().map(|op| op.name()).collect());
    let structural = missing(StructuralOp::NAMES.to_vec());
    let control = missing(vec!["if", "for", "while"]);
    for form in ["axes(1, 0) keep(false)", "axis(1) keep(false)", "dims(1)", "dims(1, 0)", "dims(2, 0)", "dims()"] {
        assert!(text.contains(&format!(" {form} %")), "{form}");
    }
    assert!(scalar.is_empty() && structural.is_empty() && control.is_empty(), "{scalar:?} {structural:?} {control:?}");
}

#[test]
fn random_kernels_read_and_write_at_run_time_positions() {
    let mut drawn: BTreeMap<(&str, String, bool), usize> = BTreeMap::new();
    for seed in small(400) {
        let kernel = &kernels(seed, STEPS)[0];
        kernel.walk(kernel.body, &mut |_, inst| {
            let (what, of, masked) = match &inst.op {
                Op::Load { from, view, masked } if view.dynamic_count() > 0 => ("load", from, *masked),
                Op::Store { to, view, masked } if view.dynamic_count() > 0 => ("store", to, *masked),
                Op::Prefetch(of) => ("prefetch", of, false),
                _ => return,
            };
            *drawn.entry((what, kernel.operand(*of).name.clone(), masked)).or_default() += 1;
        });
    }
    let wanted = [("load", "a"), ("load", "twin"), ("load", "far"), ("load", "shelf"), ("store", "shelf")];
    let wanted = wanted.into_iter().flat_map(|(what, of)| [(what, of, false), (what, of, true)]);
    for (what, of, masked) in wanted.chain([("load", "bare", true), ("prefetch", "table", false)]) {
        let count = drawn.get(&(what, of.to_string(), masked)).copied().unwrap_or(0);
        assert!(count >= 5, "{what} {of}, masked {masked}: drawn {count} times of {drawn:?}");
    }
}

#[test]
fn random_kernels_use_every_operation_in_64_bits() {
    let text: String =
        (0..2000).filter(|&seed| !is_small(seed)).map(|seed| kernels(seed, STEPS)[0].to_string()).collect();
    let mut drawn: BTreeSet<(&str, &str)> = BTreeSet::new();
    for line in text.lines() {
        // `%4: f64[2, 6] = mul %3, %2`
        let Some((value, op)) = line.split_once(" = ") else { continue };
        let (Some((_, ty)), Some(op)) = (value.split_once(": "), op.split(' ').next()) else { continue };
        drawn.insert((op, ty.split('[').next().unwrap_or_default()));
    }
    for dtype in [DType::F64, DType::I64, DType::U64] {
        let of_type = |op: &&ScalarOp| op.row().result == SignatureType::T && op.row().class.dtypes().contains(&dtype);
        let scalar = ScalarOp::ALL.iter().filter(of_type).map(|op| op.name());
        // What is of one type alone gives no other.
        let positions = ["arg_reduce", "arg_top_k", "argsort"];
        let structural = StructuralOp::NAMES.iter().copied().filter(|name| !positions.contains(name));
        let wanted = scalar.chain(structural).filter(|name| !drawn.contains(&(*name, &dtype.to_string())));
        let missing: Vec<&str> = wanted.collect();
        assert!(missing.is_empty(), "{dtype}: {missing:?}");
    }
}

/// A kernel with 64-bit types, which shaders do not have, is refused by name.
#[test]
fn random_kernels_of_64_bits_are_refused_as_shaders() {
    for seed in (0..40).filter(|&seed| !is_small(seed)) {
        let lowered = &kernels(seed, STEPS)[1];
        let text = lowered.to_string();
        // Of a few everything in 64 bits is dead.
        if ![": f64[", ": i64[", ": u64["].iter().any(|ty| text.contains(ty)) {
            continue;
        }
        let refused = wgsl::emit(lowered, 1, &Target::webgpu(), 0).expect_err("64 bits");
        assert_eq!(refused.code, "adapter-dtype", "seed {seed}: {refused}");
    }
}
