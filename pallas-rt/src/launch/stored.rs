//! What the disk keeps of a kernel: its lowered form, and its shaders with what a launch must know of them.
//!
//! A CPU's plan is not kept: making it of the lowered form takes less time than reading it would.
use crate::disk::{self, Key};
use pallas_ir::{Kernel, Loc, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A lowered kernel.
#[derive(Serialize, Deserialize)]
struct Lowered {
    text: String,
    /// For each instruction in the order of the text, an instruction of the traced kernel that has its line, if it has one.
    lines: Vec<Option<usize>>,
}

/// The lowered form of `traced`, if it is on disk.
pub(super) fn kernel(key: &Key, traced: &Kernel) -> Option<Kernel> {
    disk::load(key, |stored: Lowered| {
        let mut kernel: Kernel = stored.text.parse().ok()?;
        let order = order(&kernel);
        if order.len() != stored.lines.len() {
            return None;
        }
        for (at, line) in order.into_iter().zip(stored.lines) {
            kernel.locs[at] = match line {
                Some(line) => *traced.locs.get(line)?,
                None => Loc::NONE,
            };
        }
        (!cfg!(debug_assertions) || pallas_ir::verify(&kernel).is_ok()).then_some(kernel)
    })
}

/// Writes the lowered form of `traced`.
pub(super) fn keep_kernel(key: &Key, traced: &Kernel, lowered: &Kernel) {
    if !disk::wanted() {
        return;
    }
    let place = |loc: &Loc| (loc.file, loc.line, loc.column);
    let known: BTreeMap<_, usize> = traced.locs.iter().map(place).zip(0..).collect();
    let lines = order(lowered).into_iter().map(|at| known.get(&place(&lowered.locs[at])).copied()).collect();
    disk::save(key, &Lowered { text: lowered.to_string(), lines });
}

/// The kernel's instructions in the order of its text.
fn order(kernel: &Kernel) -> Vec<usize> {
    let mut order = vec![];
    let mut region = |r: RegionId| kernel.walk(r, &mut |i, _| order.push(i.index()));
    kernel.operands.iter().filter_map(|o| o.map).for_each(&mut region);
    region(kernel.body);
    order
}

/// The user's lines of a kernel's instructions.
pub(super) fn lines(kernel: &Kernel) -> String {
    order(kernel).into_iter().map(|at| format!("{}\n", kernel.locs[at])).collect()
}

/// A shader as a launch needs it.
#[cfg(feature = "gpu")]
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Program {
    pub(super) text: String,
    /// Arrays in the order of their bindings, and whether they are written.
    pub(super) bindings: Vec<(u32, bool)>,
    pub(super) constants: Vec<u32>,
    pub(super) scratch_words: usize,
    pub(super) threads: u32,
    pub(super) error_flag: bool,
    /// Loop iterations: outside of the sequential axes, in one step of each, and whether there are more.
    iterations: (u64, Vec<u64>, bool),
}

#[cfg(feature = "gpu")]
impl Program {
    /// Loop iterations of a thread.
    pub(super) fn iterations(&self) -> crate::wgsl::Iterations {
        let (outside, axes, more) = self.iterations.clone();
        crate::wgsl::Iterations { outside, axes, more }
    }
}

#[cfg(feature = "gpu")]
impl From<crate::wgsl::Shader> for Program {
    fn from(shader: crate::wgsl::Shader) -> Program {
        let crate::wgsl::Iterations { outside, axes, more } = shader.iterations;
        Program {
            text: shader.text,
            bindings: shader.bindings.iter().map(|&(id, written)| (id.0, written)).collect(),
            constants: shader.constants,
            scratch_words: shader.scratch_words,
            threads: shader.threads,
            error_flag: shader.error_flag,
            iterations: (outside, axes, more),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::compiled;
    use pallas_rt::prelude::*;

    #[kernel(grid = (cdiv(N, 8)), semantics = (arbitrary))]
    fn asserted(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
        let x = x.load();
        debug_assert(x.gt(-1.0), "positive");
        out.store(x * 0.1f32);
    }

    #[test]
    fn a_kernel_comes_back_with_its_lines() {
        let client = Client::cpu();
        let x = client.array(&[1.0f32; 8], &[8]).expect("it fits");
        let [traced, lowered] = &compiled(|| asserted(&x)).expect("it compiles")[0];
        let stored = Lowered { text: lowered.to_string(), lines: vec![] };
        let back: Kernel = stored.text.parse().expect("it round-trips");
        assert_eq!(back.to_string(), lowered.to_string());
        assert_eq!(order(&back).len(), order(lowered).len());
        assert!(lines(traced).contains("stored.rs"), "{}", lines(traced));
        assert_ne!(lines(traced), lines(&back), "a text has no lines");
    }
}
