//! Calls of jitted functions that had to trace and compile, and why.
use super::sharded::declared_sharding;
use super::trace::type_of;
use crate::array::{Array, Client};
use crate::tree::Outline;
use pallas_device::timeline;
use pallas_graph::mesh::MeshSharding;
use pallas_ir::{DType, Loc, Type};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Maximum number of calls kept for [`jit_misses`]; one more drops the oldest.
const MAX_KEPT_JIT_MISSES: usize = 1024;

static RECENT_JIT_MISSES: Mutex<VecDeque<Miss>> = Mutex::new(VecDeque::new());

/// A call of a function of [`jit`](crate::jit()) that traced and compiled it, since it was not compiled for such
/// arguments.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Miss {
    /// The line that called `jit`.
    pub at: Loc,
    /// The differences between its arguments and the most similar ones for which the function was compiled.
    pub reasons: Vec<MissReason>,
    /// Time to trace the function.
    pub trace: Duration,
    /// Time to compile what was traced. Kernels that single launches compile later are not in it.
    pub compile: Duration,
    /// Peak bytes of the values that are neither arguments nor results; XLA's `temp_size_in_bytes`.
    pub temporary_bytes: usize,
    /// Advice about the function; `None` for most misses.
    pub hint: Option<String>,
}

/// One reason for a [`Miss`]. Paths begin with the number of the argument: `0.layers[1].weight`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MissReason {
    /// No call of the function came before, or none that is still compiled.
    First,
    /// The structures of the arguments differ.
    Structure {
        /// Path of the first node that differs.
        path: String,
        /// The node in the earlier call.
        old: String,
        /// The node in this call.
        new: String,
    },
    /// The value of a [`Static`](crate::tree::Static) or of a field with `#[tree(fixed)]` differs.
    Static {
        /// Path of the node with the value.
        path: String,
        /// The node in the earlier call.
        old: String,
        /// The node in this call.
        new: String,
    },
    /// A leaf has another shape.
    Shape {
        /// Path of the leaf.
        path: String,
        /// Its shape in the earlier call.
        old: Vec<usize>,
        /// Its shape in this call.
        new: Vec<usize>,
    },
    /// A leaf has another element type.
    ElementType {
        /// Path of the leaf.
        path: String,
        /// Its element type in the earlier call.
        old: DType,
        /// Its element type in this call.
        new: DType,
    },
    /// A leaf is declared to be sharded in another way.
    Sharding {
        /// Path of the leaf.
        path: String,
        /// The mesh and its sharding in the earlier call; `none` without a declaration.
        old: String,
        /// The mesh and its sharding in this call.
        new: String,
    },
    /// The arguments are on another client.
    Client {
        /// The client of the earlier call.
        old: String,
        /// The client of this call.
        new: String,
    },
    /// A [bounded](crate::transform::Transformed::bounded) function is compiled for these lengths alone.
    Alone {
        /// The length of each size, as `n = 3, m = 5`.
        lengths: String,
        /// The line of the first operation that differs from the trace for the bounds; `Loc::NONE` if none does.
        at: Loc,
        /// The difference, in words.
        why: String,
    },
}

impl fmt::Display for MissReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MissReason::First => f.write_str("first call"),
            MissReason::Structure { path, old, new } => write!(f, "argument `{path}`: structure {old} -> {new}"),
            MissReason::Static { path, old, new } => write!(f, "argument `{path}`: static {old} -> {new}"),
            MissReason::Shape { path, old, new } => write!(f, "argument `{path}`: shape {old:?} -> {new:?}"),
            MissReason::ElementType { path, old, new } => write!(f, "argument `{path}`: element type {old} -> {new}"),
            MissReason::Sharding { path, old, new } => write!(f, "argument `{path}`: sharding {old} -> {new}"),
            MissReason::Client { old, new } => write!(f, "client {old} -> {new}"),
            MissReason::Alone { lengths, at: Loc::NONE, why } => write!(f, "{lengths}: {why}"),
            MissReason::Alone { lengths, at, why } => write!(f, "{lengths}: {at}: {why}"),
        }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (trace, compile) = (ms(self.trace), ms(self.compile));
        let reasons: Vec<String> = self.reasons.iter().map(MissReason::to_string).collect();
        let (at, kib, reasons) = (self.at, self.temporary_bytes.div_ceil(1024), reasons.join("; "));
        write!(
            f,
            "jit at {at}: traced in {trace:.1} ms, compiled in {compile:.1} ms, {kib} KiB of temporaries: {reasons}"
        )
    }
}

/// Returns the latest calls of functions of [`jit`](crate::jit()) that traced and compiled, of all threads, oldest
/// first; at most 1024. With `PALLAS_LOG_COMPILES=1` each is a line on standard error as well.
///
/// ```
/// use pallas_rt::transform::MissReason;
/// use pallas_rt::{Array, jit, jit_misses};
/// let double = jit(|x: &Array| x * 2.0);
/// for n in [3, 3, 5] {
///     double(&Array::full(&[n], 1.0f32)?)?;
/// }
/// let misses = jit_misses();
/// assert_eq!(misses.len(), 2);
/// assert_eq!(misses[0].reasons, [MissReason::First]);
/// assert_eq!(misses[1].reasons[0].to_string(), "argument `0`: shape [3] -> [5]");
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub fn jit_misses() -> Vec<Miss> {
    RECENT_JIT_MISSES.lock().iter().cloned().collect()
}

/// Description of the arguments for which a function is compiled; that of a new call is compared with it, to report the
/// causes of a miss.
pub(super) struct CompiledArguments {
    outline: Outline,
    pub types: Vec<Type>,
    /// By leaf, its declared sharding; empty for functions that do not run on meshes.
    pub declared: Vec<Option<MeshSharding>>,
    pub client: Client,
}

impl CompiledArguments {
    pub(super) fn from_arrays(outline: Outline, args: &[Array], client: &Client) -> CompiledArguments {
        let declared = args.iter().map(declared_sharding).collect();
        CompiledArguments {
            declared,
            ..CompiledArguments::from_types(outline, args.iter().map(type_of).collect(), client)
        }
    }

    /// Arguments whose leaves have these types, for a function that does not run on a mesh.
    pub(super) fn from_types(outline: Outline, types: Vec<Type>, client: &Client) -> CompiledArguments {
        CompiledArguments { outline, types, declared: vec![], client: client.without_use_count() }
    }

    /// The differences between these arguments and those of a new call.
    fn differences(&self, new: &CompiledArguments) -> Vec<MissReason> {
        let mut found = vec![];
        for difference in self.outline.differences(&new.outline) {
            let (path, old, new) = (difference.path, difference.old, difference.new);
            found.push(match difference.is_fixed {
                true => MissReason::Static { path, old, new },
                false => MissReason::Structure { path, old, new },
            });
        }
        if self.types.len() == new.types.len() {
            for (leaf, (old, own)) in self.types.iter().zip(&new.types).enumerate() {
                let path = || new.outline.leaf_path(leaf);
                if old.shape != own.shape {
                    let (old, new) = (old.shape.clone(), own.shape.clone());
                    found.push(MissReason::Shape { path: path(), old, new });
                }
                if old.dtype != own.dtype {
                    found.push(MissReason::ElementType { path: path(), old: old.dtype, new: own.dtype });
                }
            }
        }
        for (leaf, (old, own)) in self.declared.iter().zip(&new.declared).enumerate().filter(|(_, (a, b))| a != b) {
            let text = |placed: &Option<MeshSharding>| {
                placed.as_ref().map_or("none".into(), |p| format!("{} on {}", p.sharding.text(&p.mesh), p.mesh))
            };
            found.push(MissReason::Sharding { path: new.outline.leaf_path(leaf), old: text(old), new: text(own) });
        }
        if self.client != new.client {
            found.push(MissReason::Client { old: self.client.why(), new: new.client.why() });
        }
        found
    }
}

/// The reasons for compiling for the arguments `new`: their differences from the most similar ones in `known`.
pub(super) fn recompile_reasons(
    new: &CompiledArguments,
    known: &mut dyn Iterator<Item = &CompiledArguments>,
) -> Vec<MissReason> {
    let weight = |reason: &MissReason| if matches!(reason, MissReason::Structure { .. }) { 1000 } else { 1 };
    let all = known.map(|old| old.differences(new));
    all.min_by_key(|found| found.iter().map(weight).sum::<usize>()).unwrap_or_else(|| vec![MissReason::First])
}

/// Keeps a compilation by `jit` for [`jit_misses`], and prints it with `PALLAS_LOG_COMPILES=1`. Advice in `hint`, such
/// as to use a loop, is logged as a warning in any case.
pub(super) fn record_jit_miss(miss: Miss) {
    timeline::log_compiled(|| miss.to_string());
    if let Some(hint) = &miss.hint {
        log::warn!("jit at {}: {hint}", miss.at);
    }
    let mut all = RECENT_JIT_MISSES.lock();
    if all.len() == MAX_KEPT_JIT_MISSES {
        all.pop_front();
    }
    all.push_back(miss);
}
