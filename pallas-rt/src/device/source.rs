//! A kernel as traced, with the lowered form that backends read, which the disk keeps.
//!
//! A CPU's plan is not kept: making it of the lowered form takes less time than reading it would.
use super::counters::PASSES;
use crate::disk::{self, Key};
use crate::passes;
use pallas_ir::{Kernel, Loc, RegionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// What devices compile.
#[derive(Debug)]
pub(crate) struct Source {
    /// As traced: the interpreter runs this form.
    pub traced: Arc<Kernel>,
    /// The form that backends read. A shader that is on disk needs none.
    lowered: OnceLock<Arc<Kernel>>,
    identity: OnceLock<Key>,
}

impl Source {
    /// A traced kernel, not lowered yet.
    pub(crate) fn new(kernel: Kernel) -> Source {
        Source { traced: Arc::new(kernel), lowered: OnceLock::new(), identity: OnceLock::new() }
    }

    /// The lowered form: from disk, or by running the passes.
    pub(crate) fn lowered(&self) -> &Arc<Kernel> {
        self.lowered.get_or_init(|| {
            let key = self.identity().then("lowered", &[]);
            Arc::new(kernel(&key, &self.traced).unwrap_or_else(|| {
                PASSES.fetch_add(passes::PIPELINE.len() as u64, Ordering::Relaxed);
                let lowered = passes::run(&self.traced);
                keep_kernel(&key, &self.traced, &lowered);
                lowered
            }))
        })
    }

    /// Names everything that is made of this kernel on disk: the tile IR as traced, and the user's lines.
    pub(crate) fn identity(&self) -> &Key {
        self.identity.get_or_init(|| Key::new("traced", &[&self.traced.to_string(), &lines(&self.traced)]))
    }
}

/// A lowered kernel.
#[derive(Serialize, Deserialize)]
struct Lowered {
    text: String,
    /// For each instruction in the order of the text, an instruction of the traced kernel that has its line, if it has one.
    lines: Vec<Option<usize>>,
}

/// The lowered form of `traced`, if it is on disk.
fn kernel(key: &Key, traced: &Kernel) -> Option<Kernel> {
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
fn keep_kernel(key: &Key, traced: &Kernel, lowered: &Kernel) {
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
fn lines(kernel: &Kernel) -> String {
    order(kernel).into_iter().map(|at| format!("{}\n", kernel.locs[at])).collect()
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
        assert!(lines(traced).contains("source.rs"), "{}", lines(traced));
        assert_ne!(lines(traced), lines(&back), "a text has no lines");
    }
}
