//! Sources: a kernel as traced, with the lowered form that backends read, which is stored on disk.
//!
//! The CPU's plan is not stored: computing it from the lowered form takes less time than reading it.
use super::counters::PASSES_RUN;
use crate::disk::{self, EntryKey};
use crate::timeline;
use pallas_codegen::{cpu, passes};
use pallas_ir::{Kernel, Loc, Operand, RegionId, Semantics};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// A traced kernel, the input of device compilers.
#[derive(Debug)]
pub struct KernelSource {
    /// The traced form, which the interpreter runs.
    pub traced: Arc<Kernel>,
    /// Sizes by which the CPU backend makes its choices.
    pub sizes: &'static cpu::Thresholds,
    /// Text of the traced form, if it is made already.
    text: Option<Arc<str>>,
    /// The lowered form, which backends read; computed when needed, which a shader from disk avoids.
    lowered: OnceLock<Arc<Kernel>>,
    identity: OnceLock<EntryKey>,
}

impl KernelSource {
    /// Creates the source of a traced kernel; `thresholds` are the sizes by which the CPU backend makes its choices.
    pub fn new(kernel: Kernel, thresholds: &'static cpu::Thresholds) -> KernelSource {
        KernelSource {
            traced: Arc::new(kernel),
            sizes: thresholds,
            text: None,
            lowered: OnceLock::new(),
            identity: OnceLock::new(),
        }
    }

    /// Creates the source of a traced kernel with its text, which is not made again; `thresholds` are the sizes by
    /// which the CPU backend makes its choices.
    #[cfg(feature = "mesh")]
    pub fn with_text(kernel: Kernel, text: Arc<str>, thresholds: &'static cpu::Thresholds) -> KernelSource {
        debug_assert_eq!(*text, *kernel.to_string());
        KernelSource { text: Some(text), ..KernelSource::new(kernel, thresholds) }
    }

    /// The lowered form: read from disk, or made by running the passes.
    pub fn lowered(&self) -> &Arc<Kernel> {
        self.lowered.get_or_init(|| {
            let key = self.disk_key().derive_entry_key("lowered", &[]);
            Arc::new(disk::load(&key, |stored| parse_stored(stored, &self.traced)).unwrap_or_else(|| {
                PASSES_RUN.fetch_add(passes::LOWERING_PASSES.len() as u64, Ordering::Relaxed);
                let lowered = timeline::time_compilation(|| passes::run_lowering_passes(&self.traced));
                disk::save(&key, || to_stored(&self.traced, &lowered));
                lowered
            }))
        })
    }

    /// Key of everything on disk that is derived from this kernel: it covers the traced tile IR and the user's lines.
    pub fn disk_key(&self) -> &EntryKey {
        self.identity.get_or_init(|| {
            let text = self.text.clone().unwrap_or_else(|| self.traced.to_string().into());
            EntryKey::new("traced", &[&text, &instruction_locs(&self.traced)])
        })
    }
}

/// A lowered kernel as it is stored on disk.
#[derive(Serialize, Deserialize)]
pub struct StoredKernel {
    /// Text of the kernel.
    pub text: String,
    /// For each instruction in the order of the text: the index of an instruction of the traced kernel with the same
    /// source position, if there is one.
    pub lines: Vec<Option<usize>>,
}

/// Parses a stored kernel; `None` unless it is in lowered form, and has the operands, dimensions, parallel axes and
/// steps of `traced`, so that a backend may run it.
pub fn parse_stored(stored: StoredKernel, traced: &Kernel) -> Option<Kernel> {
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
    let order = instruction_order(&kernel);
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

/// Converts the lowered form of `traced` to its stored form.
pub fn to_stored(traced: &Kernel, lowered: &Kernel) -> StoredKernel {
    let place = |loc: &Loc| (loc.file, loc.line, loc.column);
    let known: BTreeMap<_, usize> = traced.locs.iter().map(place).zip(0..).collect();
    let lines =
        instruction_order(lowered).into_iter().map(|at| known.get(&place(&lowered.locs[at])).copied()).collect();
    StoredKernel { text: lowered.to_string(), lines }
}

/// Indices of the kernel's instructions in the order of its text.
fn instruction_order(kernel: &Kernel) -> Vec<usize> {
    let mut order = vec![];
    let mut region = |r: RegionId| kernel.walk(r, &mut |i, _| order.push(i.index()));
    kernel.operands.iter().filter_map(|o| o.map).for_each(&mut region);
    region(kernel.body);
    order
}

/// Source positions of a kernel's instructions, one a line.
pub fn instruction_locs(kernel: &Kernel) -> String {
    instruction_order(kernel).into_iter().map(|at| format!("{}\n", kernel.locs[at])).collect()
}
