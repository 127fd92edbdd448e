//! Compiled kernels, by everything their trace depends on.
//!
//! Array extents that size no block are no part of the key: one entry serves every sequence length.
use super::bind::Binding;
use super::key::{FixedKey, Key};
use super::spec::{Site, Spec};
use super::stored;
use crate::disk::{self, Key as DiskKey};
use crate::{Result, passes};
use pallas_ir::{Kernel, Loc, OperandId, OperandKind};
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

/// Identifies a trace: equal calls have equal traces.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Call {
    name: &'static str,
    at: Loc,
    /// The type of the body.
    instance: TypeId,
    /// `None`: some `#[fixed]` value can't be compared, so the trace itself is the key.
    fixed: Option<Vec<Key>>,
    sizes: Vec<(String, i64)>,
    operands: Vec<(String, Vec<usize>)>,
    trace: String,
}

impl Call {
    pub(super) fn new(site: &Site<'_>, spec: &Spec, binding: &Binding, instance: TypeId) -> Call {
        let sizes = binding.statics.iter().map(|n| (n.clone(), binding.sizes[n])).collect();
        let fixed = site.fixed.iter().map(FixedKey::kept).collect();
        // Blocks and dims may mention const generics and outer constants; an operand without dims has its array's shape.
        let shape = |i: usize| if spec.operands[i].dims.is_none() { binding.shapes[i].clone() } else { vec![] };
        let describe = |i: usize| {
            let o = &spec.operands[i];
            let (fill, empty) = (o.fill.map(f64::to_bits), o.empty.map(f64::to_bits));
            format!("{}{:?}{:?}{fill:?}{empty:?}{:?}", o.dtype, o.dims, o.block, o.buffered)
        };
        let operands = (0..spec.operands.len()).map(|i| (describe(i), shape(i))).collect();
        let trace = format!("{:?}", spec.grid);
        Call { name: site.name, at: site.at, instance, fixed, sizes, operands, trace }
    }
}

/// A traced kernel and what backends made of it.
#[derive(Debug)]
pub(super) struct Compiled {
    /// As traced: what the interpreter runs.
    pub traced: Arc<Kernel>,
    /// What backends read; a shader that is on disk needs none.
    lowered: OnceLock<Arc<Kernel>>,
    /// What its entries on disk follow from.
    identity: OnceLock<DiskKey>,
    /// Backend results, made at the first launch on that backend.
    pub backends: super::run::Backends,
    /// The kernel with outputs that take over inputs' memory, by these pairs.
    sharing: Mutex<Vec<(Pairs, Arc<Compiled>)>>,
}

/// Outputs and the inputs whose memory they take over.
type Pairs = Vec<(OperandId, OperandId)>;

impl Compiled {
    fn new(kernel: Kernel) -> Compiled {
        Compiled {
            traced: Arc::new(kernel),
            lowered: OnceLock::new(),
            identity: OnceLock::new(),
            backends: super::run::Backends::default(),
            sharing: Mutex::default(),
        }
    }
    /// What backends read: from disk, or by running the passes.
    pub(super) fn lowered(&self) -> &Arc<Kernel> {
        self.lowered.get_or_init(|| {
            let key = self.identity().then("lowered", &[]);
            Arc::new(stored::kernel(&key, &self.traced).unwrap_or_else(|| {
                PASSES.fetch_add(passes::PIPELINE.len() as u64, Ordering::Relaxed);
                let lowered = passes::run(&self.traced);
                stored::keep_kernel(&key, &self.traced, &lowered);
                lowered
            }))
        })
    }
    /// What all that is made of this kernel follows from: the tile IR as traced, and the user's lines.
    pub(super) fn identity(&self) -> &DiskKey {
        self.identity.get_or_init(|| DiskKey::new("traced", &[&self.traced.to_string(), &stored::lines(&self.traced)]))
    }
    /// The same kernel, but that these outputs take over these inputs' memory.
    pub(super) fn sharing(&self, pairs: Pairs) -> Arc<Compiled> {
        let mut sharing = self.sharing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = sharing.iter().find(|(p, _)| *p == pairs) {
            return found.clone();
        }
        let mut kernel = Kernel::clone(&self.traced);
        for (output, input) in &pairs {
            if let OperandKind::Output { alias, .. } = &mut kernel.operands[output.index()].kind {
                *alias = Some(*input);
            }
        }
        let compiled = Arc::new(Compiled::new(kernel));
        sharing.push((pairs, compiled.clone()));
        compiled
    }
}

/// How often things happened in this process. What is on disk is neither lowered nor emitted again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Kernel bodies traced.
    pub traces: u64,
    /// Passes run over traced kernels.
    pub passes: u64,
    /// Shaders emitted, the passes of their placement among it.
    pub shaders: u64,
    /// Entries on disk that were of use.
    pub disk_hits: u64,
    /// Entries written to disk.
    pub disk_writes: u64,
    /// Entries on disk that were deleted: torn, of no use, or beyond the limit.
    pub disk_removed: u64,
    /// Kernels launched.
    pub launches: u64,
}

static TRACES: AtomicU64 = AtomicU64::new(0);
static PASSES: AtomicU64 = AtomicU64::new(0);
pub(super) static SHADERS: AtomicU64 = AtomicU64::new(0);
pub(super) static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// What happened so far.
pub fn counters() -> Counters {
    let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
    let disk = disk::counts();
    Counters {
        traces: get(&TRACES),
        passes: get(&PASSES),
        shaders: get(&SHADERS),
        disk_hits: disk.hits,
        disk_writes: disk.writes,
        disk_removed: disk.removed,
        launches: get(&LAUNCHES),
    }
}

type Entry = Arc<OnceLock<Arc<Compiled>>>;
static CACHE: LazyLock<Mutex<HashMap<Call, Entry>>> = LazyLock::new(Mutex::default);

/// The compiled kernel of a call, traced at most once.
pub(super) fn compiled(call: &Call, trace: impl Fn() -> Result<Kernel>) -> Result<Arc<Compiled>> {
    if call.fixed.is_some()
        && let Some(found) = lookup(call).get()
    {
        return Ok(found.clone());
    }
    disk::settle(|| format!("kernel `{}` ({})", call.name, call.at))?;
    TRACES.fetch_add(1, Ordering::Relaxed);
    let kernel = trace()?;
    // Where values can't be compared, equal traces are equal kernels.
    let key = match call.fixed {
        Some(_) => call.clone(),
        None => Call { trace: format!("{kernel:?}"), ..call.clone() },
    };
    Ok(lookup(&key).get_or_init(|| Arc::new(Compiled::new(kernel))).clone())
}

fn lookup(call: &Call) -> Entry {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner).entry(call.clone()).or_default().clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pallas_rt::prelude::*;

    #[kernel(grid = (cdiv(N, 8)))]
    fn times(
        #[block([N] => [8], |i| (i,))] x: In<f32>,
        #[block([N] => [8], |i| (i,))] out: Out<f32>,
        #[fixed] factor: f32,
    ) {
        out.store(x.load() * factor);
    }

    #[test]
    fn kernels_are_apart_on_disk_by_constants_and_lines() {
        let x = Client::cpu().full(&[8], 1.0f32).expect("it fits");
        let traced = |factor: f32| {
            let [traced, _] = &crate::launch::compiled(|| times(&x, factor)).expect("it is compiled")[0];
            Kernel::clone(traced)
        };
        let identity = |kernel: Kernel| Compiled::new(kernel).identity().clone();
        let mut moved = traced(2.0);
        moved.locs.iter_mut().for_each(|loc| loc.line += 1);
        assert_eq!(identity(traced(2.0)), identity(traced(2.0)));
        assert_ne!(identity(traced(2.0)), identity(traced(3.0)), "another constant");
        assert_ne!(identity(traced(2.0)), identity(moved), "shaders name lines");
    }
}
