//! Names of elements that do not exist: a `while_loop` that draws letters until the end of the name.
//!
//! `cargo run --release --example sample [-- --device cpu|gpu|interpret]`
//!
//! The model is the smallest one that is of use: how often each letter follows the two before it in the names of the
//! 118 elements. `vmap` draws sixteen names at once; each goes on until its own end. The exit code is 1 if a name has
//! letters that follow each other in no element, or the names are not those that JAX draws with the same key.
#[path = "data/numbers.rs"]
mod numbers;
mod usage;

mod device;

use numbers::wrong;
use pallas_rt::prelude::*;
use pallas_rt::random::{self, Key};
use pallas_rt::{jit, ops, vmap, while_loop};

/// The letters, and 0: what is before a name and after it.
const LETTERS: usize = 27;
const NAMES: usize = 16;
const LONGEST: usize = 20;

/// Counts of each letter behind two others.
fn counts(text: &str) -> Vec<f32> {
    let mut counts = vec![0.0; LETTERS * LETTERS * LETTERS];
    for name in text.split_whitespace() {
        let letters: Vec<usize> =
            [0, 0].into_iter().chain(name.bytes().map(|c| usize::from(c - b'a') + 1)).chain([0]).collect();
        letters.windows(3).for_each(|w| counts[place(w)] += 1.0);
    }
    counts
}

fn place(letters: &[usize]) -> usize {
    letters.iter().fold(0, |at, letter| at * LETTERS + letter)
}

/// Two zeros, the letters of a name, and zeros.
fn draw(key: &Array, logits: &Array) -> Result<Array> {
    let letters = ops::zeros(&[LONGEST + 2], DType::I32);
    let start = (ops::zeros(&[], DType::I32), letters);
    let (_, letters) = while_loop(
        &start,
        |(i, letters): &(Array, Array)| i.lt(LONGEST as i32) & (i.eq(0) | letters.take(&(i + 1), 0).ne(0)),
        |(i, letters): &(Array, Array)| {
            // A key is used once: that of a step comes from its number.
            let key = random::fold_in(Key::wrap(key)?, i);
            let (a, b) = (letters.take(i, 0), letters.take(&(i + 1), 0));
            let letter = random::categorical(key, &logits.at((&a, &b)).get(), -1);
            Ok::<_, Error>((i + 1, letters.at(&(i + 2)).set(letter)))
        },
    )?;
    Ok(letters)
}

fn main() -> Result<()> {
    usage::read(include_str!("sample.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    let elements = include_str!("data/elements.txt");
    let counts = counts(elements);
    // The logarithm of 0 is negative infinity: what never follows is never drawn.
    let logits = client.array(&counts, &[LETTERS; 3])?.log();
    let keys: Vec<Array> = random::split_into(client.key(7)?, NAMES).iter().map(|key| key.data().clone()).collect();
    let names = jit(vmap(draw).in_axes([Some(0), None]))(&ops::stack(&keys, 0), &logits)?;
    let mut found = vec![];
    for letters in names.to_vec::<i32>()?.chunks(LONGEST + 2) {
        let letters: Vec<usize> = letters.iter().map(|&letter| letter as usize).collect();
        let end = letters.iter().rposition(|&letter| letter != 0).unwrap_or(0);
        let name: String = letters[2..=end].iter().map(|&letter| char::from(b'a' - 1 + letter as u8)).collect();
        let known = if elements.split_whitespace().any(|element| element == name) { " (exists)" } else { "" };
        println!("{name}{known}");
        if let Some(three) = letters[..=end].windows(3).find(|three| counts[place(three)] == 0.0) {
            return Err(wrong(format!("`{name}`: {three:?} follow each other in no element")));
        }
        found.push(name);
    }
    let expected: Vec<&str> = include_str!("data/sample_jax.txt").lines().collect();
    if found != expected {
        return Err(wrong(format!("JAX draws {expected:?}")));
    }
    Ok(())
}
