//! The compiled forms of a function, one for each kind of arguments.
use super::compile::{Compilation, CompilationInput};
use super::function::Function;
use super::program::Program;
use super::repetition_hint;
use super::retrace_log::{self, Miss, MissReason};
use super::sharded::{DeclaredShardings, keep_argument_declarations, matches_declaration};
use super::trace::TracedFunction;
use super::traced::{common_client, parameter_name, trace_function};
use crate::array::{Array, Client};
use crate::sharding::ShardingDeclaration;
use crate::tree::{self, Outline, Structure, Tree};
use pallas_device::error::Result;
use pallas_device::{JIT_CALLS, JIT_COMPILES, timeline};
use pallas_ir::{Loc, Type};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

/// Maximum number of argument kinds (structures, types, shapes, shardings, client) for which a function stays compiled;
/// one more drops the oldest.
const MAX_ARGUMENT_KINDS: usize = 256;

/// A function as it is compiled for one kind of arguments, with the tree structure of its result.
pub(super) struct CacheEntry<Out> {
    pub form: CachedProgram,
    /// A result of the trace, of which only the tree structure matters.
    pub out: Out,
}

/// Compiled program for one kind of arguments, with the structures, types, shardings and client that the arguments of a
/// call are compared with.
pub(super) struct CachedProgram {
    /// By argument, its structure.
    structures: Vec<Structure>,
    about: retrace_log::CompiledArguments,
    /// By leaf, the line and pattern that declare its sharding.
    statements: Vec<Option<ShardingDeclaration>>,
    program: Program,
    /// Arrays that the function captures; they are the last parameters of the program.
    captured: Vec<Array>,
    /// Number of leaves, the first ones, whose memory results may take over.
    donated: usize,
}

impl CachedProgram {
    /// Returns true if the program can run on these arguments: they have the structures, types, declared shardings and
    /// client for which it was compiled.
    fn matches_arguments(&self, args: &[Array], structures: &[Structure]) -> bool {
        let retrace_log::CompiledArguments { types, declared, client, .. } = &self.about;
        let same =
            |(ty, x): (&Type, &Array)| ty.dtype == x.dtype() && ty.shape.iter().eq(x.shape()) && x.client() == client;
        self.structures == structures
            && types.len() == args.len()
            && types.iter().zip(args).all(same)
            && declared.iter().zip(args).all(|(own, x)| matches_declaration(x, own.as_ref()))
    }

    /// Runs the program on the leaves of all arguments; it owns the donated ones. `name` returns the function's name.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn run(&self, mut args: Vec<Array>, name: fn() -> &'static str) -> Result<Vec<Array>> {
        // `split_off` would allocate a second list.
        let rest = if self.donated == 0 { std::mem::take(&mut args) } else { args.split_off(self.donated) };
        let rest: Vec<&Array> = rest.iter().chain(&self.captured).collect();
        let described = || (name().into(), format!("{} steps", self.program.step_count()));
        timeline::run_in_span(timeline::SpanKind::Call, described, || self.program.run_donating(args, &rest))
    }
}

/// Additions to the report of a cache miss: a cause of the miss beside the differences between this call's arguments
/// and those of earlier calls, and a hint for the user.
#[derive(Default)]
pub(super) struct MissDetails {
    pub reason: Option<MissReason>,
    pub hint: Option<String>,
}

/// The compiled forms of a function, one for each kind of arguments that it was called with.
pub(super) struct JitCache<Out> {
    entries: RwLock<Vec<Arc<CacheEntry<Out>>>>,
    settings: CompileSettings,
}

/// Settings by which a function of `jit` is compiled: its line, donation of its first argument, and a flag that advice
/// to use a loop was given.
struct CompileSettings {
    /// The line that called `jit`.
    at: Loc,
    /// True if results may take over the memory of the first argument.
    donates: bool,
    is_hinted: AtomicBool,
}

impl<Out: Tree + Send + Sync + 'static> JitCache<Out> {
    pub(super) fn new(at: Loc, donates: bool) -> JitCache<Out> {
        JitCache {
            entries: RwLock::default(),
            settings: CompileSettings { at, donates, is_hinted: AtomicBool::new(false) },
        }
    }

    /// Finds the compiled form for these arguments, or compiles it; then the report of the miss contains
    /// `miss_details`.
    ///
    /// # Errors
    /// The function's own error, the first error of an operation that its result depends on, and errors of the device.
    pub(super) fn find_or_compile<Args: Tree + 'static, F: Function<Args, Out = Out>>(
        &self,
        f: &F,
        tuple: &dyn Fn() -> Args,
        args: &[Array],
        structures: Vec<Structure>,
        miss_details: &dyn Fn() -> MissDetails,
    ) -> Result<Arc<CacheEntry<Out>>> {
        args.iter().try_for_each(|x| x.check().map(drop))?;
        JIT_CALLS.fetch_add(1, Relaxed);
        // Of several fitting forms, the one with the most declarations: a result also fits a form without any.
        let known = {
            let all = self.entries.read();
            let fitting = all.iter().filter(|e| e.form.matches_arguments(args, &structures));
            fitting.max_by_key(|e| e.form.about.declared.iter().flatten().count()).cloned()
        };
        match known {
            Some(entry) => Ok(entry),
            None => {
                let entry = Arc::new(self.compile(f, &tuple(), args, structures, miss_details())?);
                let mut all = self.entries.write();
                // Functions may live as long as the process, so entries of clients that are gone are dropped.
                all.retain(|entry| entry.form.about.client.is_in_use());
                if all.len() == MAX_ARGUMENT_KINDS {
                    all.remove(0);
                }
                all.push(entry.clone());
                Ok(entry)
            }
        }
    }

    /// Traces and compiles a function for these arguments.
    fn compile<Args: Tree + 'static, F: Function<Args, Out = Out>>(
        &self,
        f: &F,
        tuple: &Args,
        args: &[Array],
        structures: Vec<Structure>,
        miss_details: MissDetails,
    ) -> Result<CacheEntry<Out>> {
        let client = common_client(args)?;
        let (args, about, mut reasons) = {
            let all = self.entries.read();
            let known: Vec<&CachedProgram> = all.iter().map(|entry| &entry.form).collect();
            let alike = known.iter().filter(|form| form.structures == structures);
            let declared = alike.map(|form| (&form.about.declared[..], &form.statements[..]));
            let args = keep_argument_declarations(declared, args);
            let about = retrace_log::CompiledArguments::from_arrays(Outline::from_tree(tuple), &args, &client);
            let reasons = retrace_log::recompile_reasons(&about, &mut known.iter().rev().map(|form| &form.about));
            (args, about, reasons)
        };
        reasons.extend(miss_details.reason);
        let begun = Instant::now();
        let (out, traced, _) = trace_function(f, tuple, &args)?;
        let paths = &|| tree::paths(tuple);
        let call = CacheMissCall { args: &args, structures, client, about, name: F::name, paths, begun, reasons };
        let form = self.settings.compile_traced(call, traced, miss_details.hint)?;
        Ok(CacheEntry { form, out })
    }
}

/// A call of a function that is not compiled for such arguments yet, so that it is compiled now.
struct CacheMissCall<'a> {
    args: &'a [Array],
    structures: Vec<Structure>,
    client: Client,
    about: retrace_log::CompiledArguments,
    /// The names of the function and of its arguments, for messages.
    name: fn() -> &'static str,
    paths: &'a dyn Fn() -> Vec<String>,
    /// The time when the function began to be traced.
    begun: Instant,
    /// The reasons why the function is compiled.
    reasons: Vec<MissReason>,
}

impl CompileSettings {
    /// Compiles a traced function, and records the call for [`jit_misses`](retrace_log::jit_misses). Its hint is the
    /// advice to use a loop, if the graph repeats operations and this was not said before, else `hint`.
    fn compile_traced(
        &self,
        call: CacheMissCall<'_>,
        traced: TracedFunction,
        hint: Option<String>,
    ) -> Result<CachedProgram> {
        let CacheMissCall { args, structures, client, about, name, paths, begun, reasons } = call;
        let TracedFunction { graph, captured, .. } = traced;
        captured.iter().try_for_each(|x| x.check_client(&client, &|| "a captured array".into()))?;
        let trace = begun.elapsed();
        JIT_COMPILES.fetch_add(1, Relaxed);
        let donated = if self.donates { structures[0].leaves() } else { 0 };
        let is_donated: Vec<bool> = (0..graph.params.len()).map(|i| i < donated).collect();
        let described = || (name().into(), format!("{} equations", graph.equations.len()));
        let (graph, sharded) = DeclaredShardings::collect_declarations(&graph, args.iter().chain(&captured), &|i| {
            parameter_name(i, paths)
        })?;
        let graph = Arc::new(graph.into_owned());
        let program = timeline::run_in_span(timeline::SpanKind::Compile, described, || {
            let (declared, client) = (sharded.clone(), client.clone());
            Compilation::new(CompilationInput { graph: graph.clone(), declared, is_donated, client }).into_program()
        })?;
        let compile = begun.elapsed() - trace;
        let hint = repetition_hint::loop_hint(&graph).filter(|_| !self.is_hinted.swap(true, Relaxed)).or(hint);
        let temporary_bytes = program.temporary_bytes();
        retrace_log::record_jit_miss(Miss { at: self.at, reasons, trace, compile, temporary_bytes, hint });
        let mut statements = sharded.statements;
        statements.truncate(args.len());
        Ok(CachedProgram { structures, about, statements, program, captured, donated })
    }
}
