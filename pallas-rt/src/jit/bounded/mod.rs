//! `jit(f).bounded(..)`: one compilation for all sizes up to a bound.
//!
//! It traces the function for the bound and once for a shorter length, and `pallas_graph::bounded` compares both
//! graphs. What differs follows from the length: extents, numbers, starts of slices, steps of scans. So it is known for
//! every value, also for those of gradients and batches, and no operation needs a rule for it. `mask` then writes one
//! graph for the bound in which missing elements are neutral wherever an operation mixes elements along such an axis,
//! as the operation's access form says; the numbers that differ are parameters. Each new length is traced and compared
//! too, since a function in Rust may do anything; one that differs in more is compiled on its own. So no length gives a
//! wrong result, and only the speed depends on what `mask` knows.
mod argument_kind;
mod reads;
mod resize;

pub(super) use reads::{LengthRead, find_length_reads};

use super::compile::{Compilation, CompilationInput};
use super::function::{CallArguments, Function};
use super::jit_cache::{JitCache, MissDetails};
use super::jit_function::PreparedCall;
use super::program::Program;
use super::retrace_log::{self, Miss, MissReason};
use super::sharded::{DeclaredShardings, declared_sharding};
use super::trace::{TracedFunction, type_of};
use super::traced::{common_client, parameter_name};
use crate::array::{Array, Client};
use crate::tree::{self, Outline, Structure, Tree};
use pallas_device::error::{Error, Result};
use pallas_device::{JIT_CALLS, JIT_COMPILES, timeline};
use pallas_graph::bounded::{BoundedGraph, GraphMismatch};
use pallas_graph::mesh::MeshSharding;
use pallas_ir::{At, Diag, Literal, Loc, Type};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Maximum number of argument kinds (structures, types and shapes, whatever the bounded lengths are) for which a
/// function stays compiled.
const MAX_ARGUMENT_KINDS: usize = 256;
/// Maximum number of combinations of lengths that are remembered for one kind of arguments; one more drops all.
const MAX_REMEMBERED_LENGTH_COMBINATIONS: usize = 4096;
/// Number of combinations of lengths compiled separately at which a hint is printed and no common program is sought any
/// more.
const SEPARATE_LENGTHS_BEFORE_HINT: usize = 4;

/// A size that differs between calls of a [bounded](crate::transform::Transformed::bounded) function: its name, its
/// bound, and the axes that have it.
///
/// ```
/// use pallas_rt::BoundedSize;
/// // The rows of the first argument and of `y` in the second one.
/// let batch = BoundedSize::new("batch", 64).axis("0", 0).axis("1.y", 0);
/// ```
#[derive(Clone, Debug)]
pub struct BoundedSize {
    name: String,
    most: usize,
    axes: Vec<(String, usize)>,
}

impl BoundedSize {
    /// A size of at most `most` elements, at least 1.
    pub fn new(name: impl Into<String>, most: usize) -> BoundedSize {
        BoundedSize { name: name.into(), most, axes: vec![] }
    }

    /// Says that an axis of the array at a path has this size. The path begins with the number of the argument, as in
    /// `0.layers[1].weight`; the path of a node stands for all leaves in it.
    #[must_use]
    pub fn axis(mut self, path: impl Into<String>, axis: usize) -> BoundedSize {
        self.axes.push((path.into(), axis));
        self
    }
}

/// A function of `jit` with sizes that differ between calls, and its compiled forms.
pub(super) struct BoundedJit<Out> {
    /// The line that called `jit`.
    at: Loc,
    sizes: Vec<BoundedSize>,
    kinds: RwLock<Vec<Arc<BoundedArgumentKind<Out>>>>,
    /// Programs for the arguments of one length each, where the program for all lengths does not serve.
    own: JitCache<Out>,
    /// Number of lengths that were compiled on their own.
    alone: AtomicUsize,
    is_hinted: AtomicBool,
    /// True if results may take over the memory of the first argument.
    donates: bool,
}

/// Arguments that differ in their lengths alone, with what is compiled for them.
struct BoundedArgumentKind<Out> {
    structures: Vec<Structure>,
    /// The axes that have a size: (leaf, axis, index of the size).
    places: Vec<(usize, usize, usize)>,
    /// By leaf, its declared sharding.
    declared: Vec<Option<MeshSharding>>,
    /// The arguments with the bounds as lengths, for reports of misses.
    about: retrace_log::CompiledArguments,
    ready: OnceLock<BoundedProgram>,
    lengths: RwLock<HashMap<Vec<usize>, Arc<ProgramForLengths<Out>>>>,
}

/// A call that is ready to run, by the program for all lengths.
pub(super) struct BoundedCall<Out> {
    kind: Arc<BoundedArgumentKind<Out>>,
    length: Arc<ProgramForLengths<Out>>,
    args: Vec<Array>,
}

/// The program for all lengths up to the bounds.
struct BoundedProgram {
    family: BoundedGraph,
    program: Program,
    captured: Vec<Array>,
    /// Number of leaves, the first ones, whose memory results may take over.
    donated: usize,
}

/// Program that runs a function for one combination of lengths: the common one for all lengths, or one that is compiled
/// for these alone.
enum ProgramForLengths<Out> {
    /// It runs by the program for all lengths.
    Shared {
        /// The values of the program's last parameters, which follow from the lengths.
        scalars: Vec<Array>,
        /// A result of the trace, of which only the tree structure matters.
        out: Out,
        /// The types of the results.
        gives: Vec<Type>,
    },
    /// It is compiled for these lengths alone, for this reason.
    Separate(GraphMismatch),
}

impl<Out: Tree + Send + Sync + 'static> BoundedJit<Out> {
    pub(super) fn new(at: Loc, sizes: Vec<BoundedSize>, donates: bool) -> BoundedJit<Out> {
        BoundedJit {
            at,
            sizes,
            kinds: RwLock::default(),
            own: JitCache::new(at, donates),
            alone: AtomicUsize::new(0),
            is_hinted: AtomicBool::new(false),
            donates,
        }
    }

    /// Finds or compiles the program for these arguments, without running it; if `is_inlined`, calls the function as a
    /// part of the one that is being traced.
    pub(super) fn prepare<Args: Tree + 'static>(
        &self,
        f: &impl Function<Args, Out = Out>,
        given: &CallArguments<'_, Args>,
        args: Vec<Array>,
        structures: Vec<Structure>,
        is_inlined: bool,
    ) -> Result<PreparedCall<Out>> {
        args.iter().try_for_each(|x| x.check().map(drop))?;
        let known = {
            let all = self.kinds.read();
            all.iter().rev().find(|kind| kind.matches_arguments(&structures, &args)).cloned()
        };
        let kind = match known {
            Some(kind) => kind,
            None => self.make_argument_kind(&(given.tuple)(), &args, &structures)?,
        };
        let lengths = self.read_lengths(&kind, &args, || tree::paths(&(given.tuple)()))?;
        if is_inlined {
            return f.call(&(given.tuple)()).map(PreparedCall::Done);
        }
        let known = kind.lengths.read().get(&lengths).cloned();
        let length = match known {
            Some(length) => length,
            None => self.choose_program_for_lengths(f, &(given.tuple)(), &kind, &lengths)?,
        };
        if let ProgramForLengths::Separate(why) = &*length {
            let extra = || self.miss_details(&lengths, why);
            let entry = self.own.find_or_compile(f, given.tuple, &args, structures, &extra)?;
            return Ok(PreparedCall::Ready { entry, args });
        }
        JIT_CALLS.fetch_add(1, Relaxed);
        Ok(PreparedCall::Bounded(BoundedCall { kind, length, args }))
    }

    fn bounded_error(&self, message: String, help: &str) -> Error {
        Error::operation(self.at, Diag::new("bounded", At::Op, message, help))
    }

    /// Makes the kind of these arguments, and keeps it unless they are traced.
    ///
    /// # Errors
    /// A declared axis that the arguments do not have.
    fn make_argument_kind<Args: Tree>(
        &self,
        tuple: &Args,
        args: &[Array],
        structures: &[Structure],
    ) -> Result<Arc<BoundedArgumentKind<Out>>> {
        let client = common_client(args)?;
        let paths = tree::paths(tuple);
        let mut places: Vec<(usize, usize, usize)> = vec![];
        for (number, size) in self.sizes.iter().enumerate() {
            let name = &size.name;
            if size.most == 0 {
                return Err(self.bounded_error(format!("size `{name}` is at most 0"), "a bound is at least 1"));
            }
            for (path, axis) in &size.axes {
                let is_in = |leaf: &str| {
                    let rest = leaf.strip_prefix(&**path);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
                };
                let leaves: Vec<usize> = (0..paths.len()).filter(|&i| is_in(&paths[i])).collect();
                if leaves.is_empty() {
                    let message = format!("size `{name}` of `{path}`: the arguments have {}", paths.join(", "));
                    return Err(
                        self.bounded_error(message, "a path begins with the number of the argument, as in `0.x`")
                    );
                }
                for leaf in leaves {
                    let ty = type_of(&args[leaf]);
                    if *axis >= ty.shape.len() {
                        let message = format!("size `{name}` of axis {axis} of `{}`, which is {ty}", paths[leaf]);
                        return Err(self.bounded_error(message, "axes count from 0"));
                    }
                    if let Some((.., other)) = places.iter().find(|(l, a, _)| (*l, *a) == (leaf, *axis)) {
                        let other = &self.sizes[*other].name;
                        let message = format!("axis {axis} of `{}` has size `{other}` and `{name}`", paths[leaf]);
                        return Err(self.bounded_error(message, "name each axis once"));
                    }
                    places.push((leaf, *axis, number));
                }
            }
        }
        if let Some(size) = (0..self.sizes.len()).find(|size| places.iter().all(|place| place.2 != *size)) {
            let message = format!("size `{}` has no axis", self.sizes[size].name);
            return Err(self.bounded_error(message, "`BoundedSize::axis` says which axes have it"));
        }
        let mut types: Vec<Type> = args.iter().map(type_of).collect();
        places.iter().for_each(|&(leaf, axis, size)| types[leaf].shape[axis] = self.sizes[size].most);
        let about = retrace_log::CompiledArguments::from_types(Outline::from_tree(tuple), types, &client);
        let structures = structures.to_vec();
        let (ready, lengths) = (OnceLock::new(), RwLock::default());
        let declared = args.iter().map(declared_sharding).collect();
        let kind = Arc::new(BoundedArgumentKind { structures, places, declared, about, ready, lengths });
        if !args.iter().any(Array::is_traced) {
            let mut all = self.kinds.write();
            all.retain(|kind| kind.about.client.is_in_use());
            if all.len() == MAX_ARGUMENT_KINDS {
                all.remove(0);
            }
            all.push(kind.clone());
        }
        Ok(kind)
    }

    /// The length of each size in these arguments.
    ///
    /// # Errors
    /// A length over its bound; two axes with one size that differ in length.
    fn read_lengths(
        &self,
        kind: &BoundedArgumentKind<Out>,
        args: &[Array],
        paths: impl Fn() -> Vec<String>,
    ) -> Result<Vec<usize>> {
        let mut found: Vec<Option<(usize, usize)>> = vec![None; self.sizes.len()];
        for &(leaf, axis, number) in &kind.places {
            let (size, n) = (&self.sizes[number], args[leaf].shape()[axis]);
            let name = &size.name;
            let of = |leaf: usize| format!("`{}` of {}", paths()[leaf], type_of(&args[leaf]));
            match found[number] {
                Some((first, other)) if other != n => {
                    let message = format!("size `{name}` is {other} in {} and {n} in {}", of(first), of(leaf));
                    return Err(self.bounded_error(message, "arrays with one size are equally long: declare two sizes"));
                }
                _ if n > size.most => {
                    let message = format!("size `{name}` is {n}, at most {} were declared: {}", size.most, of(leaf));
                    return Err(self.bounded_error(message, "declare a higher bound, or pass a part of the array"));
                }
                _ => found[number] = Some((leaf, n)),
            }
        }
        Ok(found.into_iter().map(|size| size.expect("every size has an axis").1).collect())
    }

    /// Traces a function for these lengths, and decides whether the program for all lengths serves them. Compiles that
    /// program if there is none.
    ///
    /// # Errors
    /// The function's own error for them; a declaration that an operation cannot follow.
    fn choose_program_for_lengths<Args: Tree + 'static>(
        &self,
        f: &impl Function<Args, Out = Out>,
        tuple: &Args,
        kind: &Arc<BoundedArgumentKind<Out>>,
        lengths: &[usize],
    ) -> Result<Arc<ProgramForLengths<Out>>> {
        let begun = Instant::now();
        let (out, own) = kind.trace_for_lengths(f, tuple, lengths)?;
        let trace = begun.elapsed();
        let why = match kind.ready.get() {
            Some(_) => None,
            None if self.alone.load(Relaxed) > SEPARATE_LENGTHS_BEFORE_HINT => {
                Some(GraphMismatch { at: Loc::NONE, what: "no two lengths had the same operations so far".into() })
            }
            None => match self.derive_bounded_graph(f, tuple, kind, lengths, &own)? {
                Ok((family, captured)) => {
                    self.compile_bounded_graph(kind, family, captured, tuple, trace)?;
                    None
                }
                Err(why) => Some(why),
            },
        };
        let member = match (why, kind.ready.get()) {
            (None, Some(ready)) => match has_equal_captures(&ready.captured, &own.captured)? {
                true => ready.family.size_dependent_args(lengths, &own.graph),
                false => Err(captured_arrays_mismatch()),
            },
            (why, _) => Err(why.unwrap_or_else(captured_arrays_mismatch)),
        };
        let length = match member {
            Ok(scalars) => ProgramForLengths::Shared {
                scalars: scalars.into_iter().map(|x| scalar_array(&kind.about.client, x)).collect::<Result<_>>()?,
                out,
                gives: own.graph.result_types(),
            },
            Err(why) => {
                self.alone.fetch_add(1, Relaxed);
                ProgramForLengths::Separate(why)
            }
        };
        let length = Arc::new(length);
        let mut all = kind.lengths.write();
        if all.len() == MAX_REMEMBERED_LENGTH_COMBINATIONS {
            all.clear();
        }
        all.insert(lengths.to_vec(), length.clone());
        Ok(length)
    }

    /// Derives one graph for all lengths up to the bounds, from traces for the bounds and for shorter lengths;
    /// `traced_for_lengths` is the trace for `lengths`. The pair has the graph and its captured arrays.
    ///
    /// # Errors
    /// Those of reading captured arrays. If no one graph serves all lengths, or the function fails for the bounds, the
    /// inner result is the reason.
    fn derive_bounded_graph<Args: Tree + 'static>(
        &self,
        f: &impl Function<Args, Out = Out>,
        tuple: &Args,
        kind: &BoundedArgumentKind<Out>,
        lengths: &[usize],
        traced_for_lengths: &TracedFunction,
    ) -> Result<std::result::Result<(BoundedGraph, Vec<Array>), GraphMismatch>> {
        let bounds: Vec<usize> = self.sizes.iter().map(|size| size.most).collect();
        let mut samples = vec![];
        let mut captured: Option<Vec<Array>> = None;
        for number in 0..=bounds.len() {
            let mut sizes = bounds.clone();
            if let Some(k) = number.checked_sub(1) {
                sizes[k] = if lengths[k] < bounds[k] { lengths[k] } else { bounds[k] - 1 };
            }
            let (graph, found) = if sizes == lengths {
                (traced_for_lengths.graph.clone(), traced_for_lengths.captured.clone())
            } else {
                match kind.trace_for_lengths(f, tuple, &sizes) {
                    Ok((_, traced)) => (traced.graph, traced.captured),
                    Err(error) => {
                        let what = format!("the function fails for {}: {error}", self.lengths_text(&sizes));
                        return Ok(Err(GraphMismatch { at: Loc::NONE, what }));
                    }
                }
            };
            match &captured {
                Some(first) if !has_equal_captures(first, &found)? => return Ok(Err(captured_arrays_mismatch())),
                Some(_) => {}
                None => captured = Some(found),
            }
            samples.push((sizes, graph));
        }
        Ok(BoundedGraph::new(samples).map(|family| (family, captured.unwrap_or_default())))
    }

    /// Compiles the graph that serves all lengths up to the bounds, and keeps the program.
    fn compile_bounded_graph<Args: Tree>(
        &self,
        kind: &Arc<BoundedArgumentKind<Out>>,
        bounded_graph: BoundedGraph,
        captured: Vec<Array>,
        tuple: &Args,
        trace_time: Duration,
    ) -> Result<()> {
        let args = tree::leaves(tuple);
        captured.iter().try_for_each(|x| x.check_client(&kind.about.client, &|| "a captured array".into()))?;
        let begun = Instant::now();
        JIT_COMPILES.fetch_add(1, Relaxed);
        let donated = if self.donates { kind.structures[0].leaves() } else { 0 };
        let described = || {
            (format!("bounded function at {}", self.at), format!("{} equations", bounded_graph.graph().equations.len()))
        };
        let program = timeline::run_in_span(timeline::SpanKind::Compile, described, || {
            let own = args.iter().chain(&captured);
            let (graph, mut sharded) = DeclaredShardings::collect_declarations(bounded_graph.graph(), own, &|i| {
                parameter_name(i, &|| tree::paths(tuple))
            })?;
            sharded.shardings.resize(graph.params.len(), None);
            let is_donated = (0..graph.params.len()).map(|i| i < donated).collect();
            let input = CompilationInput {
                declared: sharded,
                is_donated,
                ..CompilationInput::from_graph(graph.into_owned(), &kind.about.client)
            };
            Compilation::new(input).into_program()
        })?;
        let (compile, temporary_bytes) = (begun.elapsed(), program.temporary_bytes());
        let reasons = {
            let all = self.kinds.read();
            let others = all.iter().rev().filter(|other| other.ready.get().is_some());
            retrace_log::recompile_reasons(&kind.about, &mut others.map(|other| &other.about))
        };
        retrace_log::record_jit_miss(Miss {
            at: self.at,
            reasons,
            trace: trace_time,
            compile,
            temporary_bytes,
            hint: None,
        });
        // Another thread may have been first.
        let _ = kind.ready.set(BoundedProgram { family: bounded_graph, program, captured, donated });
        Ok(())
    }

    /// Text of lengths: `n = 3, m = 5`.
    fn lengths_text(&self, lengths: &[usize]) -> String {
        let each = self.sizes.iter().zip(lengths).map(|(size, n)| format!("{} = {n}", size.name));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Returns the details of a cache miss for lengths for which the function is compiled separately: the cause, and at
    /// most once a hint to the user.
    fn miss_details(&self, lengths: &[usize], mismatch: &GraphMismatch) -> MissDetails {
        let reason =
            MissReason::Alone { lengths: self.lengths_text(lengths), at: mismatch.at, why: mismatch.what.clone() };
        let is_many = self.alone.load(Relaxed) >= SEPARATE_LENGTHS_BEFORE_HINT && !self.is_hinted.swap(true, Relaxed);
        let hint = is_many.then(|| {
            format!(
                "{} lengths are compiled on their own, the last one since {reason}; help: compute with `x.count(axis)` and \
                 masks instead of a length that is read in Rust, or use `jit` with a few lengths, to which arrays are padded",
                self.alone.load(Relaxed)
            )
        });
        MissDetails { reason: Some(reason), hint }
    }
}

fn captured_arrays_mismatch() -> GraphMismatch {
    GraphMismatch {
        at: Loc::NONE,
        what: "the function captures other arrays, or makes them from a length in Rust".into(),
    }
}

/// Returns true if two lists of captured arrays are the same arrays, or have the same elements, as traces may make them
/// anew.
fn has_equal_captures(a: &[Array], b: &[Array]) -> Result<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (a, b) in a.iter().zip(b) {
        if type_of(a) != type_of(b) {
            return Ok(false);
        }
        let is_same = a.shares_memory(b) || a.to_bytes()? == b.to_bytes()?;
        if !is_same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An array of rank 0 with this value.
fn scalar_array(client: &Client, x: Literal) -> Result<Array> {
    let bytes = x.bits.to_le_bytes();
    client.array_from_bytes(x.dtype, &[], &bytes[..x.dtype.bytes()])
}
