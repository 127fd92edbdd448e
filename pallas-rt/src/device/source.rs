//! A kernel as traced, with the lowered form that backends read, which is stored on disk.
//!
//! The CPU's plan is not stored: computing it from the lowered form takes less time than reading it.
use super::counters::PASSES;
use crate::disk::{self, Key};
use crate::timeline;
use pallas_codegen::passes;
use pallas_ir::{Kernel, Loc, Operand, RegionId, Semantics};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// A kernel as the input of device compilers.
#[derive(Debug)]
pub(crate) struct Source {
    /// The traced form, which the interpreter runs.
    pub traced: Arc<Kernel>,
    /// Its text, where that was made already.
    text: Option<Arc<str>>,
    /// The lowered form, which backends read. A shader that is stored on disk does not need it.
    lowered: OnceLock<Arc<Kernel>>,
    identity: OnceLock<Key>,
}

impl Source {
    /// A traced kernel, not lowered yet.
    pub(crate) fn new(kernel: Kernel) -> Source {
        Source { traced: Arc::new(kernel), text: None, lowered: OnceLock::new(), identity: OnceLock::new() }
    }

    /// .. whose text this is.
    #[cfg(feature = "graph")]
    pub(crate) fn printed(kernel: Kernel, text: Arc<str>) -> Source {
        debug_assert_eq!(*text, *kernel.to_string());
        Source { text: Some(text), ..Source::new(kernel) }
    }

    /// The lowered form: from disk, or by running the passes.
    pub(crate) fn lowered(&self) -> &Arc<Kernel> {
        self.lowered.get_or_init(|| {
            let key = self.identity().then("lowered", &[]);
            Arc::new(disk::load(&key, |stored| read(stored, &self.traced)).unwrap_or_else(|| {
                PASSES.fetch_add(passes::PIPELINE.len() as u64, Ordering::Relaxed);
                let lowered = timeline::compiling(|| passes::run(&self.traced));
                disk::save(&key, || stored(&self.traced, &lowered));
                lowered
            }))
        })
    }

    /// The key of everything that is derived from this kernel on disk: the tile IR as traced, and the user's lines.
    pub(crate) fn identity(&self) -> &Key {
        self.identity.get_or_init(|| {
            let text = self.text.clone().unwrap_or_else(|| self.traced.to_string().into());
            Key::new("traced", &[&text, &lines(&self.traced)])
        })
    }
}

/// A lowered kernel.
#[derive(Serialize, Deserialize)]
struct Lowered {
    text: String,
    /// For each instruction in the order of the text, an instruction of the traced kernel with the same line, if there
    /// is one.
    lines: Vec<Option<usize>>,
}

/// Returns a stored kernel if a backend may run it in place of `traced`: it is in lowered form, and has the same
/// operands, dimensions, parallel axes and steps.
fn read(stored: Lowered, traced: &Kernel) -> Option<Kernel> {
    let mut kernel: Kernel = stored.text.parse().ok()?;
    pallas_ir::verify_lowered(&kernel).ok()?;
    let alike = |(a, b): (&Operand, &Operand)| *a == Operand { map: None, ..b.clone() };
    let parallel = traced.grid.iter().filter(|axis| axis.semantics == Semantics::Parallel);
    let sequential = traced.grid.iter().filter(|axis| axis.semantics == Semantics::Arbitrary).map(|axis| &axis.extent);
    let steps = sequential.chain(&traced.steps);
    let same = kernel.operands.len() == traced.operands.len()
        && kernel.operands.iter().zip(&traced.operands).all(alike)
        && kernel.dims == traced.dims
        && kernel.grid.iter().eq(parallel)
        && kernel.steps.iter().eq(steps);
    let order = order(&kernel);
    if !same || order.len() != stored.lines.len() {
        return None;
    }
    for (at, line) in order.into_iter().zip(stored.lines) {
        kernel.locs[at] = match line {
            Some(line) => *traced.locs.get(line)?,
            None => Loc::NONE,
        };
    }
    Some(kernel)
}

/// Returns the lowered form of `traced`, to be stored.
fn stored(traced: &Kernel, lowered: &Kernel) -> Lowered {
    let place = |loc: &Loc| (loc.file, loc.line, loc.column);
    let known: BTreeMap<_, usize> = traced.locs.iter().map(place).zip(0..).collect();
    let lines = order(lowered).into_iter().map(|at| known.get(&place(&lowered.locs[at])).copied()).collect();
    Lowered { text: lowered.to_string(), lines }
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
        let back = read(stored(traced, lowered), traced).expect("it round-trips");
        assert_eq!((back.to_string(), lines(&back)), (lowered.to_string(), lines(lowered)));
        assert!(lines(traced).contains("source.rs"), "{}", lines(traced));
        let text: Kernel = lowered.to_string().parse().expect("it round-trips");
        assert_ne!(lines(&text), lines(&back), "a text has no lines");
    }

    #[test]
    fn an_entry_of_another_kernel_is_none() {
        let client = Client::cpu();
        let x = client.array(&[1.0f32; 8], &[8]).expect("it fits");
        let [traced, lowered] = &compiled(|| asserted(&x)).expect("it compiles")[0];
        let check = |from: &str, to: &str| {
            let mut entry = stored(traced, lowered);
            assert!(entry.text.contains(from), "{from} in {}", entry.text);
            entry.text = entry.text.replace(from, to);
            assert!(read(entry, traced).is_none(), "{to} for {from}");
        };
        check("0:8", "0:100000");
        check("block [8]", "block [16]");
        check("out out: f32[N]", "out out: f32[N + 1]");
        check("  in x", "  grid 2 parallel\n  in x");
        check("  steps cdiv(N, 8)\n", "  steps cdiv(N, 4)\n");
        check("in x", "in y");
        // Well formed, but with a block that no array has.
        check("array[", "block[");
        assert!(read(Lowered { text: traced.to_string(), lines: vec![] }, traced).is_none(), "the traced form");
        let mut entry = stored(traced, lowered);
        entry.lines[0] = Some(usize::MAX);
        assert!(read(entry, traced).is_none(), "a line that is none of the kernel's");
    }

    #[test]
    fn hostile_entries_are_refused_or_run() {
        use crate::lang::random::hostile::{corpus, each, mutate::Corpus, run};
        let kernels = corpus();
        let texts = Corpus::new(kernels.iter().map(|[_, lowered]| lowered.to_string()).collect());
        let folder = std::env::temp_dir().join(format!("pallas-hostile-{}", std::process::id()));
        let (store, key) = (disk::Store::new(folder.clone(), 1 << 30), Key::new("lowered", &["hostile"]));
        each("hostile-entries", |dice, counts| {
            let at = dice.below(kernels.len());
            let [traced, lowered] = &kernels[at];
            let mut entry = stored(traced, lowered);
            let which = dice.below(10);
            if which > 1 {
                entry.text = texts.mutate(at, dice);
            }
            if which == 1 && !entry.lines.is_empty() {
                let line = dice.below(entry.lines.len());
                entry.lines[line] = [None, Some(0), Some(dice.below(100)), Some(usize::MAX)][dice.below(4)];
            }
            let mut bytes = serde_json::to_vec(&entry).expect("plain data");
            if which == 0 {
                let byte = dice.below(bytes.len());
                bytes[byte] = dice.below(256) as u8;
            }
            run::note("hostile-entries", &String::from_utf8_lossy(&bytes));
            // With a valid tag, so that only the contents can be refused.
            store.write(&key, &bytes);
            let found = store.load(&key, |entry: Lowered| {
                counts.parsed += u64::from(entry.text.parse::<Kernel>().is_ok());
                read(entry, traced)
            });
            if let Some(kernel) = found {
                counts.note(run::run(&kernel, dice));
            }
        });
        let _ = std::fs::remove_dir_all(folder);
    }
}
