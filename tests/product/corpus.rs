//! Texts of the shipped kernels in small blocks: the corpus of hostile input (`lang::random::hostile` of pallas-rt).
//!
//! `UPDATE_EXPECT=1 cargo test -p pallas --no-default-features --test product corpus` regenerates them. Older texts are
//! also valid, so it is not necessary after every change of a kernel.
use crate::shaders::{GROUPS, shipped};
use pallas_rt::ir::{Kernel, verify};
use pallas_rt::launch::Explanation;
use pallas_rt::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pallas-rt/src/lang/random/hostile/shipped.txt");
/// Longer texts and kernels with more elements would take too long for the coverage that they add.
const LINES: usize = 150;
const ELEMENTS: usize = 10_000;

/// Kernels that come into the corpus when it is made anew.
const LATER: &[&str] =
    &["cross_entropy_dx_of_parts", "cross_entropy_resident", "embedding_backward_rows", "embedding_rows"];

/// Returns the text with sizes divided by a factor.
fn shrunk(text: &str, factor: u64) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(at);
        let end = number.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(number.len());
        let (number, behind) = number.split_at(end);
        out += before;
        let name = before.ends_with(|c: char| c == '%' || c.is_alphanumeric() || c == '_');
        match number.parse::<u64>() {
            Ok(n) if n % factor == 0 && !name => out += &(n / factor).to_string(),
            _ => out += number,
        }
        rest = behind;
    }
    out + rest
}

/// Returns the kernel with the smallest blocks for which it is valid, if it is small enough.
fn small(text: &str) -> Option<String> {
    let fits = |text: &String| {
        let kernel = text.parse::<Kernel>().ok().filter(|kernel| verify(kernel).is_ok())?;
        (kernel.values.iter().map(|ty| ty.elements()).sum::<usize>() <= ELEMENTS).then_some(())
    };
    let all = [32, 16, 8, 4, 2, 1].map(|factor| shrunk(text, factor));
    all.into_iter().find(|text| text.lines().count() <= LINES && fits(text).is_some())
}

#[test]
fn the_corpus_has_the_shipped_kernels() {
    let found: RefCell<BTreeMap<String, String>> = RefCell::default();
    let see = |explanation: &Explanation| {
        for kernel in &explanation.kernels {
            if let Some(text) = small(&kernel.traced.to_string()) {
                found.borrow_mut().entry(kernel.name.clone()).or_insert(text);
            }
        }
    };
    GROUPS.iter().for_each(|group| group.call(&see, DType::F32));
    let found = found.into_inner();
    if std::env::var("UPDATE_EXPECT").is_ok() {
        let texts: Vec<&str> = found.values().map(|text| text.trim_end()).collect();
        std::fs::write(FILE, texts.join("\n\n") + "\n").expect("the sources can be written");
    }
    let corpus = std::fs::read_to_string(FILE).expect("part of the repository");
    let is_missing = |name: &&String| !corpus.contains(&format!("kernel {name} {{")) && !LATER.contains(&name.as_str());
    let missing: Vec<&String> = found.keys().filter(is_missing).collect();
    assert!(missing.is_empty(), "not in the corpus, see the top of {}: {missing:?}", file!());
    assert!(found.len() * 3 > shipped().len() * 2, "{} of {} kernels are small", found.len(), shipped().len());
}
