//! Law: a random program means the same as a kernel (run as Rust, as traced and lowered tile IR, on the devices) and on
//! plain numbers.
//!
//! [`draw`] and [`expressions`] draw one program ([`program`]) per number, [`source`] writes it as Rust, [`evaluate`] says
//! what it must give without tiles, staging or tracing. The source is made while building, by `build.rs`, and goes through
//! `#[kernel]` like anybody's.
mod draw;
mod evaluate;
mod expressions;
mod program;
mod source;
#[path = "../all/validate.rs"]
mod validate;
/// The programs, as kernels.
#[allow(warnings, clippy::all, reason = "random programs declare and compare things for no reason")]
mod kernels {
    use super::{Call, blend, bump, cut, halves, twice};
    use pallas_rt::prelude::*;
    include!(concat!(env!("OUT_DIR"), "/drawn.rs"));
}

use draw::PROGRAMS;
use pallas_rt::__tests::{Argument, Audit, Data, Machine, audit, walk};
use pallas_rt::ir::{Kernel, Literal};
use pallas_rt::prelude::*;
use pallas_rt::{Profile, Target};
use std::collections::HashSet;
use std::sync::Arc;

/// Rows and columns of the arrays: the second block of two rows overhangs.
const ROWS: usize = 3;
const SHAPE: [usize; 2] = [ROWS, 4];
/// The array from which the table chooses blocks of 4 by 6: the last of either axis overhangs.
const FAR: [usize; 2] = [5, 5];

/// The array to which blocks are scattered: the last of four overhangs.
const OLD: [usize; 2] = [7, 4];

/// Arrays, `n` and `flag` of a call.
type Call = fn([&Array; 6], i32, bool) -> Result<(Array, Array, Array)>;

/// Helpers of the programs; no macro rewrites them.
fn bump(t: &mut Tile<i32>) {
    *t += 1;
}
fn blend(left: bool, a: Tile<i32>, b: Tile<i32>) -> Tile<i32> {
    if left { a - b } else { b * 2 }
}
/// Slices of one computed tile.
fn cut(x: Tile<i32>, a: [usize; 2], b: [usize; 2]) -> Tile<i32> {
    x.slice(a, [2, 4]) + x.slice(b, [2, 4])
}
fn halves<T: Elem>(both: Tile<T>, a: usize, b: usize, stride: usize) -> Tile<T>
where
    Tile<T>: std::ops::Sub<Output = Tile<T>>,
{
    both.slice([0, a], [2, 4]) - both.strided_slice([0, b], [2, 4], [1, stride])
}
fn twice<T: Copy + std::ops::Add<Output = T>>(x: T) -> T {
    x + x
}

/// Inputs of a program: small whole numbers.
struct Inputs {
    ints: Vec<i32>,
    floats: Vec<f32>,
    /// A block number for each program.
    table: Vec<i32>,
    far: Vec<i32>,
    /// A block of its own for each program.
    slots: Vec<i32>,
    old: Vec<i32>,
}

fn inputs(seed: u64) -> Inputs {
    let mut dice = draw::Dice(!seed);
    let mut next = || dice.below(13) as i32 - 6;
    let (ints, floats) = ((0..ROWS * 4).map(|_| next()).collect(), (0..ROWS * 4).map(|_| next() as f32).collect());
    let far = (0..FAR[0] * FAR[1]).map(|_| next()).collect();
    let old = (0..OLD[0] * OLD[1]).map(|_| next()).collect();
    let table = (0..2).map(|_| dice.below(2) as i32).collect();
    let slot = dice.below(4) as i32;
    Inputs { ints, floats, table, far, slots: vec![slot, (slot + 1 + dice.below(3) as i32) % 4], old }
}

type Numbers = (Vec<i32>, Vec<f32>, Vec<i32>);

/// What the program means on plain numbers.
fn expected(number: usize, n: i32, flag: bool) -> Numbers {
    let program = draw::program(number as u64);
    let Inputs { ints, floats, table, far, slots, old } = inputs(number as u64);
    let block = |row: usize, column: usize| {
        if row < FAR[0] && column < FAR[1] { f64::from(far[row * FAR[1] + column]) } else { -5.0 }
    };
    let (mut a, mut b, mut kept) = (vec![], vec![], old.clone());
    for row in (0..ROWS).step_by(2) {
        let at = |i: usize| (row * 4 + i < ROWS * 4).then_some(row * 4 + i);
        let p = (0..8).map(|i| at(i).map_or(7.0, |i| f64::from(ints[i]))).collect();
        let q = (0..8).map(|i| at(i).map_or(-2.0, |i| f64::from(floats[i]))).collect();
        let first = table[row / 2] as usize * 4;
        let far = (0..24).map(|i| block(first + i / 6, i % 6)).collect();
        let entries = table.iter().map(|&x| f64::from(x)).collect();
        let other = (ROWS / 2 - row / 2) * 2;
        let near = (0..8).map(|i| ints.get(other * 4 + i).map_or(6.0, |&x| f64::from(x))).collect();
        let slot = slots[row / 2] as usize * 8;
        let before = (0..8).map(|i| old.get(slot + i).map_or(3.0, |&x| f64::from(x))).collect();
        let mut state = evaluate::State::new([p, q, entries, far, near, before], n, flag, program.wide, row / 2);
        state.run(&program);
        kept.iter_mut().skip(slot).zip(&state.stored[2]).for_each(|(to, &x)| *to = x as i32);
        let inside = 8.min(ROWS * 4 - row * 4);
        a.extend(state.stored[0][..inside].iter().map(|&x| x as i32));
        b.extend(state.stored[1][..inside].iter().map(|&x| x as f32));
    }
    (a, b, kept)
}

fn run(call: Call, client: &Client, number: usize, n: i32, flag: bool) -> Result<Numbers> {
    let Inputs { ints, floats, table, far, slots, old } = inputs(number as u64);
    let (p, q) = (client.array(&ints, &SHAPE)?, client.array(&floats, &SHAPE)?);
    let (table, slots) = (client.array(&table, &[2])?, client.array(&slots, &[2])?);
    let (far, old) = (client.array(&far, &FAR)?, client.array(&old, &OLD)?);
    let (a, b, kept) = call([&p, &q, &table, &far, &slots, &old], n, flag)?;
    Ok((a.to_vec()?, b.to_vec()?, kept.to_vec()?))
}

/// The kernel's IR, from its text, on the interpreter.
fn interpret(text: &str, number: usize, n: i32) -> Numbers {
    let kernel: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    let Inputs { ints, floats, table, far, slots, old } = inputs(number as u64);
    let array = |shape: &[usize], dtype, words: Vec<[u8; 4]>| {
        Argument::Array(shape.to_vec(), Data::from_bytes(dtype, &words.concat()))
    };
    let whole = |shape: &[usize], x: &[i32]| array(shape, DType::I32, x.iter().map(|x| x.to_le_bytes()).collect());
    let fresh = || Argument::Fresh(SHAPE.to_vec());
    let arguments = vec![
        whole(&SHAPE, &ints),
        array(&SHAPE, DType::F32, floats.iter().map(|x| x.to_le_bytes()).collect()),
        whole(&[2], &table),
        whole(&FAR, &far),
        whole(&SHAPE, &ints),
        whole(&[2], &slots),
        whole(&OLD, &old),
        fresh(),
        fresh(),
        Argument::Fresh(OLD.to_vec()),
        Argument::Fresh(vec![2, 4]),
        Argument::Fresh(vec![4, 8]),
        Argument::Param(Literal::int(DType::I32, i64::from(n))),
    ];
    let named = |name: &str| match name {
        "N" => ROWS,
        "W" => 4,
        "T" => 2,
        "L" => FAR[0],
        "M" => OLD[0],
        _ => FAR[1],
    };
    let sizes = kernel.dims.iter().map(|d| d.size.unwrap_or_else(|| named(&d.name) as i64)).collect();
    let mut machine = Machine::new(Arc::new(kernel), sizes, vec![2], arguments);
    walk::run(&mut machine).unwrap_or_else(|f| panic!("{f:?}\n{text}"));
    let (outputs, _) = machine.finish().unwrap_or_else(|f| panic!("{f:?}\n{text}"));
    let words = |d: &Data| -> Vec<[u8; 4]> {
        d.to_bytes().chunks_exact(4).map(|c| c.try_into().expect("four bytes")).collect()
    };
    let [a, b, kept] = &outputs[..] else { panic!("three outputs") };
    let ints = |d: &Data| words(d).into_iter().map(i32::from_le_bytes).collect();
    (ints(a), words(b).into_iter().map(f32::from_le_bytes).collect(), ints(kept))
}

/// What `n` and `flag` the programs are called with.
const CALLS: [(i32, bool); 3] = [(3, true), (-1, false), (2, false)];

fn source(number: usize) -> String {
    draw::program(number as u64).source(number)
}

fn check(name: &str, number: usize, (n, flag): (i32, bool), found: &Numbers) {
    let want = expected(number, n, flag);
    assert!(*found == want, "{name}, n {n}, flag {flag}:\n found {found:?}\n want  {want:?}\n{}", source(number));
}

fn check_on(client: &Client, number: usize, (n, flag): (i32, bool)) {
    let found = run(kernels::KERNELS[number], client, number, n, flag);
    let found = found.unwrap_or_else(|e| panic!("{e}\n{}", source(number)));
    check(&client.device().to_string(), number, (n, flag), &found);
}

#[test]
fn drawn_kernels_mean_what_their_source_says() {
    for (number, &call) in kernels::KERNELS.iter().enumerate() {
        for (n, flag) in CALLS {
            check_on(&Client::interpreter(), number, (n, flag));
            check_on(&Client::cpu(), number, (n, flag));
            let kernel = &explain(|| run(call, &Client::cpu(), number, n, flag)).expect("it explains").kernels[0];
            for (stage, kernel) in [("traced", &kernel.traced), ("lowered", &kernel.lowered)] {
                check(stage, number, (n, flag), &interpret(&kernel.to_string(), number, n));
            }
        }
    }
}

/// Every tenth program; compiling shaders is what takes time.
#[test]
fn drawn_kernels_mean_the_same_on_a_gpu() {
    let client = match Client::gpu(0) {
        Ok(client) => client,
        Err(e) => {
            assert!(std::env::var("PALLAS_REQUIRE_GPU").is_err(), "PALLAS_REQUIRE_GPU is set: {e}");
            return eprintln!("skipped on the GPU: {e}");
        }
    };
    (0..PROGRAMS).step_by(10).for_each(|number| CALLS.iter().for_each(|&call| check_on(&client, number, call)));
}

#[test]
fn shaders_of_drawn_kernels_are_valid_everywhere() {
    for (number, &call) in kernels::KERNELS.iter().enumerate() {
        let kernel = explain(|| run(call, &Client::cpu(), number, 1, true)).expect("it explains").kernels.remove(0);
        for profile in [Profile::Gpu, Profile::SimtCpu] {
            let target = Target { profile, ..Target::webgpu() };
            let found = audit(&kernel.lowered, kernel.sequential, &target, 0);
            let (shader, audit) = found.expect("it has a shader");
            validate::validate(&shader.text);
            assert_eq!(audit, Audit { barriers: audit.barriers, ..Audit::default() }, "{}", source(number));
        }
    }
}

#[test]
fn drawn_kernels_use_the_whole_language() {
    let text: String = (0..PROGRAMS).map(source).collect();
    let needed = [
        "    for ",
        ".rev()",
        ".step_by(2)",
        "#[unroll]",
        " in [",
        "while ",
        "break;",
        "continue;",
        "return;",
        "} else {",
        "= if ",
        "move |it",
        "let mut add",
        "bump(&mut ",
        "blend(",
        "twice(",
        "ds(minimum((",
        "far.at((ds(minimum(",
        "table.at(",
        "..=",
        "match ",
        "_ =>",
        ".. =>",
        " | ",
        " < 2 && table.at(",
        "p.load_masked(",
        "near.load()",
        "old.load()",
        "kept.store(",
        "alias = q",
        ".reverse([0])",
        ".reverse([0, 1])",
        "concat([",
        ".pad([1, 0]",
        ".pad([0, 0], [0, 1]",
        ".reshape([4, 2]).t()",
        ".take_along_axis(",
        "halves(concat([",
        ", 1), 0, ",
        ", 1), 0, 1, 2)",
        "cut(far.load() * ",
        ", [0, 0], [",
        "room.at((ds(minimum(",
        "    room.at(",
        ".load_masked(",
        " && ",
        " || ",
        "!(",
        ".0 = ",
        "[1] ",
        " += ",
        "K > 1",
        "flag",
    ];
    for construct in needed {
        let count = text.matches(construct).count();
        assert!(count >= 5, "`{construct}` is drawn {count} times");
    }
    let results: HashSet<Vec<i32>> = (0..PROGRAMS).map(|number| expected(number, 3, true).0).collect();
    assert!(results.len() > PROGRAMS * 9 / 10, "only {} results differ", results.len());
}
