//! Writes the random programs as source for the test `drawn`, because only source goes through `#[kernel]`.
//!
//! What is drawn is a function of this folder's files alone: a change of one of them is all it takes to draw anew. The
//! source lies in `target/*/build/pallas-*/out/drawn.rs`.
#[allow(dead_code, reason = "shared with the test, which also evaluates programs")]
mod draw;
#[allow(dead_code, reason = "shared with the test, which also evaluates programs")]
mod expressions;
#[allow(dead_code, reason = "shared with the test, which also evaluates programs")]
mod program;
mod source;

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=tests/drawn");
    let mut text = String::new();
    let mut table = String::new();
    for number in 0..draw::PROGRAMS {
        let program = draw::program(number as u64);
        text.push_str(&program.source(number));
        let width = if program.wide { 2 } else { 1 };
        table
            .push_str(&format!("    |[p, q, table, far, slots, old], n, flag| k{number}::<{width}>(p, q, table, far, p, slots, old, n, flag),\n"));
    }
    text.push_str(&format!("pub(super) const KERNELS: [Call; {}] = [\n{table}];\n", draw::PROGRAMS));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("drawn.rs");
    std::fs::write(&out, text).expect("cargo's folder can be written");
}
