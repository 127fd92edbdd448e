//! Compiled kernels, by everything their trace depends on.
//!
//! Array extents that size no block are no part of the key: one entry serves every sequence length.
use super::bind::Binding;
use super::key::Key;
use super::spec::Spec;
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
    pub(super) fn new(spec: &Spec, binding: &Binding, instance: TypeId) -> Call {
        let sizes = binding.statics.iter().map(|n| (n.clone(), binding.sizes[n])).collect();
        let fixed = spec.key.iter().map(|k| k.0.clone()).collect();
        // Blocks and dims may mention const generics and outer constants; an operand without dims has its array's shape.
        let shape = |i: usize| if spec.operands[i].dims.is_none() { binding.shapes[i].clone() } else { vec![] };
        let describe = |i: usize| {
            let o = &spec.operands[i];
            format!("{}{:?}{:?}{:?}{:?}", o.dtype, o.dims, o.block, o.fill.map(f64::to_bits), o.empty.map(f64::to_bits))
        };
        let operands = (0..spec.operands.len()).map(|i| (describe(i), shape(i))).collect();
        let trace = format!("{:?}", spec.grid);
        Call { name: spec.name, at: spec.at, instance, fixed, sizes, operands, trace }
    }
}

/// A traced kernel and what backends made of it.
#[derive(Debug)]
pub(super) struct Compiled {
    /// As traced: what the interpreter runs.
    pub traced: Arc<Kernel>,
    /// What backends read.
    pub lowered: Arc<Kernel>,
    /// Backend results, made at the first launch on that backend.
    pub backends: super::run::Backends,
    /// The kernel with outputs that take over inputs' memory, by these pairs.
    sharing: Mutex<Vec<(Pairs, Arc<Compiled>)>>,
}

/// Outputs and the inputs whose memory they take over.
type Pairs = Vec<(OperandId, OperandId)>;

impl Compiled {
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
        let compiled = Arc::new(compile(kernel));
        sharing.push((pairs, compiled.clone()));
        compiled
    }
}

/// How often things happened in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Kernel bodies traced.
    pub traces: u64,
    /// Kernels lowered.
    pub compiles: u64,
    /// Kernels launched.
    pub launches: u64,
}

static TRACES: AtomicU64 = AtomicU64::new(0);
static COMPILES: AtomicU64 = AtomicU64::new(0);
pub(super) static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// How often kernels were traced, compiled and launched so far.
pub fn counters() -> Counters {
    let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
    Counters { traces: get(&TRACES), compiles: get(&COMPILES), launches: get(&LAUNCHES) }
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
    TRACES.fetch_add(1, Ordering::Relaxed);
    let kernel = trace()?;
    // Where values can't be compared, equal traces are equal kernels.
    let key = match call.fixed {
        Some(_) => call.clone(),
        None => Call { trace: format!("{kernel:?}"), ..call.clone() },
    };
    Ok(lookup(&key).get_or_init(|| Arc::new(compile(kernel))).clone())
}

fn lookup(call: &Call) -> Entry {
    CACHE.lock().unwrap_or_else(PoisonError::into_inner).entry(call.clone()).or_default().clone()
}

fn compile(kernel: Kernel) -> Compiled {
    COMPILES.fetch_add(1, Ordering::Relaxed);
    let lowered = Arc::new(passes::run(&kernel));
    Compiled { traced: Arc::new(kernel), lowered, backends: super::run::Backends::default(), sharing: Mutex::default() }
}
