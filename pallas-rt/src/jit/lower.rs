//! Functions that are traced, printed and compiled before they are called.
use super::compile::{Compilation, CompilationInput};
use super::export::Exported;
use super::function::{CallArguments, Function};
use super::sharded::DeclaredShardings;
use super::trace::{TracedFunction, type_of};
use super::traced::{parameter_name, trace_function};
use crate::array::{Array, Client};
use crate::tree::{self, Outline, Structure, Tree};
use pallas_device::JIT_COMPILES;
use pallas_device::error::{Error, Result};
use pallas_graph::Graph;
use pallas_graph::fuse::Plan;
use pallas_graph::transform::without_kernels;
use pallas_ir::{At, Diag, Loc, Type};
use std::marker::PhantomData;
use std::sync::atomic::Ordering::Relaxed;

/// The types and shapes of a function's results, as a tree of arrays without elements; `jax.eval_shape`.
///
/// The function is traced, and neither compiled nor run. Leaves of the arguments are arrays, whose elements do not
/// matter, or come from [`Client::shape_dtype`](crate::Client::shape_dtype); [`tree::types`](crate::tree::types) shows
/// the result.
///
/// # Errors
/// The call returns the function's own error, and the first error of an operation that its result depends on.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::{eval_shape, tree};
/// let x = Client::cpu().shape_dtype(&[1000, 1000], DType::F32)?;
/// let out = eval_shape(|x: &Array| (x.matmul(x), x.sum(0)))(&x)?;
/// assert_eq!(tree::types(&out).to_string(), "(f32[1000,1000], f32[1000])");
/// # Ok::<(), Error>(())
/// ```
pub fn eval_shape<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<F::Out>> {
    F::boxed(move |given: CallArguments<'_, Args>| {
        let tuple = (given.tuple)();
        let args = tree::leaves(&tuple);
        let (out, TracedFunction { graph, .. }, client) = trace_function(&f, &tuple, &args)?;
        let without = |ty: &Type| Array::new_abstract(ty.dtype, &ty.shape, &client);
        tree::rebuild(&out, graph.result_types().iter().map(without))
    })
}

/// Returns the text of a function for arguments like the given ones, in the style of JAX 0.12; `jax.make_jaxpr`.
///
/// The function is traced, and neither simplified nor compiled; elements of the arguments do not matter. The text
/// differs from JAX's by design:
///
/// - Functions of `jax.numpy` that JAX traces on their own (`jit[name=_where ..]`) are inlined.
/// - Operands of an elementwise operation have equal shapes, so a broadcast is always to the full shape. JAX lets axes
///   of extent 1 stretch.
/// - `expand_dims` is a `reshape`, and `select` takes a number by way of a `broadcast_in_dim`.
/// - Operations that JAX has no primitive for have their own names: `gelu`, `silu`, `softplus`, `trunc`, `is_nan`,
///   `mul_add`, `roll`, `take_along_axis`, `argsort`, `arg_top_k`. Random numbers are the operations of their
///   generator.
///
/// # Errors
/// The call returns the function's own error, and the first error of an operation that its result depends on.
///
/// ```
/// use pallas_rt::ops::select;
/// use pallas_rt::{Array, make_jaxpr};
/// let text = make_jaxpr(|x: &Array| select(&x.gt(0.0), x, 0.5 * x));
/// let expected = "\
/// { lambda ; a:f32[2,3]. let
///     b:bool[2,3] = gt a 0.0:f32[]
///     c:f32[2,3] = mul 0.5:f32[] a
///     d:f32[2,3] = select_n b c a
///   in (d,) }";
/// assert_eq!(text(&Array::full(&[2, 3], 1.0f32)?)?, expected);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
pub fn make_jaxpr<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<String>> {
    F::boxed(move |given: CallArguments<'_, Args>| {
        let tuple = (given.tuple)();
        let (_, function, _) = trace_function(&f, &tuple, &tree::leaves(&tuple))?;
        Ok(function.graph.to_jaxpr(function.captured.len()))
    })
}

/// A function that is traced for arguments of certain types; see [`lower`].
pub struct Lowered<Args, F: Function<Args>>
where
    Args: Tree + 'static,
{
    pub(super) arguments: LoweredArguments,
    pub(super) compilation: Compilation,
    captured: Vec<Array>,
    /// A result of the traced function, of which only the tree structure matters.
    out: F::Out,
    function: PhantomData<fn(Args) -> F>,
}

/// Traces a function ahead of time, for arguments like given ones; `jax.jit(f).lower(..)`. The result is compiled by
/// [`Lowered::compile`], and printed or saved.
///
/// Leaves of the arguments are arrays, whose elements do not matter, or come from
/// [`Client::shape_dtype`](crate::Client::shape_dtype).
///
/// # Errors
/// The call returns the function's own error, and the first error of an operation that its result depends on.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::lower;
/// let shape = Client::cpu().shape_dtype(&[2], DType::F32)?;
/// let lowered = lower(|x: &Array| x.exp() * 2.0)(&shape)?;
/// assert_eq!(lowered.to_jaxpr(), "{ lambda ; a:f32[2]. let b:f32[2] = exp a; c:f32[2] = mul b 2.0:f32[] in (c,) }");
/// let f = lowered.compile()?;
/// assert_eq!(f(&Client::cpu().full(&[2], 0.0f32)?)?.to_vec::<f32>()?, [2.0, 2.0]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn lower<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<Lowered<Args, F>>> {
    let at = Loc::caller();
    F::boxed(move |given: CallArguments<'_, Args>| Lowered::from_function(&f, &given, at))
}

/// Starts the compilation of a traced function with these arguments; returns it, and the arrays that the function
/// captures. `paths` name the arguments in errors.
fn start_compilation(
    traced: TracedFunction,
    args: &[Array],
    paths: &[String],
    client: &Client,
) -> Result<(Compilation, Vec<Array>)> {
    let TracedFunction { graph, captured, .. } = traced;
    captured.iter().try_for_each(|x| x.check_client(client, &|| "a captured array".into()))?;
    let own = args.iter().chain(&captured);
    let (graph, declared) =
        DeclaredShardings::collect_declarations(&graph, own, &|i| parameter_name(i, &|| paths.to_vec()))?;
    let compilation =
        Compilation::new(CompilationInput { declared, ..CompilationInput::from_graph(graph.into_owned(), client) });
    // A declaration that cannot be followed is refused here.
    compilation.sharded_graph()?;
    Ok((compilation, captured))
}

impl<Args: Tree + 'static, F: Function<Args>> Lowered<Args, F> {
    /// Traces a function for these arguments; `at` is the line of the call of `lower`.
    pub(super) fn from_function(f: &F, given: &CallArguments<'_, Args>, at: Loc) -> Result<Self> {
        let tuple = (given.tuple)();
        let (args, structures) = (given.flat)();
        let (out, traced, client) = trace_function(f, &tuple, &args)?;
        let paths = tree::paths(&tuple);
        let (compilation, captured) = start_compilation(traced, &args, &paths, &client)?;
        let (outline, types) = (Outline::from_tree(&tuple), args.iter().map(type_of).collect());
        let arguments = LoweredArguments { at, outline, structures, types, paths, client };
        Ok(Lowered { arguments, compilation, captured, out, function: PhantomData })
    }

    /// The graph of the traced function.
    pub(super) fn graph(&self) -> &Graph {
        &self.compilation.input.graph
    }

    /// Calls `read` with the simplified graph and the plan of each device; returns its result.
    pub(super) fn with_plan<R>(&self, read: impl FnOnce(&Graph, &Plan) -> R) -> R {
        self.compilation.with_plan(read).expect("it was partitioned as it was lowered")
    }

    /// The function as text, in the style of JAX; see [`make_jaxpr`](super::make_jaxpr).
    pub fn to_jaxpr(&self) -> String {
        self.graph().to_jaxpr(self.captured.len())
    }

    /// The text of what runs on its client, after simplification: a line for each launch, loop and branch with the
    /// memory that it reads and writes, and below them the kernels. `PALLAS_DUMP=FOLDER` writes it for every function
    /// that is compiled. For a function on a mesh it is what each device runs.
    pub fn to_plan(&self) -> String {
        self.with_plan(|_, plan| plan.to_string())
    }

    /// The function as a StableHLO module, text that XLA compiles; see [`Graph::to_stablehlo`], and the list of
    /// operations in the [guide](crate::guide::stablehlo).
    ///
    /// `@main` takes the leaves of the arguments in order, then the arrays that the function captures, and returns the
    /// leaves of the result.
    pub fn to_stablehlo(&self) -> String {
        self.graph().to_stablehlo("lowered")
    }

    /// The arrays that the function captures, which its texts take after the leaves of the arguments.
    pub fn captured(&self) -> &[Array] {
        &self.captured
    }

    /// The function as an HLO module, XLA's own text; see [`Graph::to_hlo`]. Its parameters and results are those of
    /// [`to_stablehlo`](Lowered::to_stablehlo).
    pub fn to_hlo(&self) -> String {
        self.graph().to_hlo("lowered")
    }

    /// The function with plain operations in place of every kernel: its grid becomes a loop, its blocks windows of
    /// arrays. Other compilers can then read its text, which also shows how a kernel computes.
    ///
    /// # Errors
    /// An operation of a kernel that has no such form: an array of more axes or elements than there may be.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    /// use pallas_rt::lower;
    /// #[kernel(grid = (cdiv(N, 4)))]
    /// fn twice(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    ///     out.store(x.load() * 2.0);
    /// }
    /// let shape = Client::cpu().shape_dtype(&[10], DType::F32)?;
    /// let lowered = lower(|x: &Array| twice(x))(&shape)?;
    /// assert!(lowered.to_stablehlo().contains("call_target_name = \"pallas.twice\""));
    /// let text = lowered.inline_kernels()?.to_stablehlo();
    /// assert!(text.contains("stablehlo.while") && !text.contains("custom_call"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn inline_kernels(self) -> Result<Self> {
        let CompilationInput { graph, declared, is_donated, client } = self.compilation.input;
        let graph = without_kernels(&graph).map_err(|refused| Error::operation(refused.at, refused.diag))?;
        let compilation = Compilation::new(CompilationInput { graph: graph.into(), declared, is_donated, client });
        compilation.sharded_graph()?;
        Ok(Lowered { compilation, ..self })
    }

    /// The results as a tree of arrays without elements, which have types and shapes.
    ///
    /// # Errors
    /// None in practice: errors of the function were found when it was traced.
    pub fn results(&self) -> Result<F::Out> {
        let without = |ty: &Type| Array::new_abstract(ty.dtype, &ty.shape, &self.compilation.input.client);
        tree::rebuild(&self.out, self.graph().result_types().iter().map(without))
    }

    /// The function in a form that can be saved, and run where its Rust code is not known.
    ///
    /// # Errors
    /// Arguments that are declared to be sharded, constraints on how values are sharded; captured arrays that are still
    /// traced, or whose memory cannot be read.
    pub fn export(&self) -> Result<Exported> {
        if let Some(i) = self.compilation.input.declared.shardings.iter().position(Option::is_some) {
            let what =
                self.arguments.paths.get(i).map_or("a captured array".into(), |path| format!("argument `{path}`"));
            let help = "lower it for arrays without a sharding";
            let message = format!("{what} is declared to be sharded, which a file does not hold");
            return Err(Error::operation(self.arguments.at, Diag::new("export", At::Op, message, help)));
        }
        Exported::new(self.graph(), &self.arguments.paths, tree::paths(&self.out), &self.captured)
    }

    /// Compiles the function. The result is called as the function is, with arguments of these types alone: it is never
    /// traced again.
    ///
    /// # Errors
    /// Errors of the device. The call returns an error for arguments of another structure, type or client, which names
    /// the leaf.
    pub fn compile(self) -> Result<F::Boxed<Result<F::Out>>> {
        JIT_COMPILES.fetch_add(1, Relaxed);
        let Lowered { arguments, compilation, captured, out, .. } = self;
        let program = compilation.into_program()?;
        Ok(F::boxed(move |given: CallArguments<'_, Args>| {
            let (args, structures) = (given.flat)();
            arguments.check_arguments(&given, &args, &structures)?;
            let all: Vec<&Array> = args.iter().chain(&captured).collect();
            tree::rebuild(&out, program.run(&all)?)
        }))
    }
}

/// Structure, types, paths and client of the arguments for which a function was lowered; a call of the compiled
/// function takes no others.
pub(super) struct LoweredArguments {
    at: Loc,
    outline: Outline,
    structures: Vec<Structure>,
    types: Vec<Type>,
    /// By leaf, its path.
    pub(super) paths: Vec<String>,
    client: Client,
}

impl LoweredArguments {
    /// Returns an error, which names the leaf, if a call's arguments differ from these in structure, type or client.
    fn check_arguments<Args: Tree + 'static>(
        &self,
        given: &CallArguments<'_, Args>,
        args: &[Array],
        structures: &[Structure],
    ) -> Result<()> {
        args.iter().try_for_each(|x| x.check().map(drop))?;
        let wrong = |message: String| {
            let help = "arguments are like those of `lower`; `jit` compiles for others as well";
            Err(Error::operation(self.at, Diag::new("lowered", At::Op, message, help)))
        };
        if self.structures != structures
            && let Some(found) = self.outline.first_difference(&Outline::from_tree(&(given.tuple)()))
        {
            let (path, old, new) = (found.path, found.old, found.new);
            return wrong(format!("argument `{path}` is {new}, the function is compiled for {old}"));
        }
        for ((x, ty), path) in args.iter().zip(&self.types).zip(&self.paths) {
            if type_of(x) != *ty {
                return wrong(format!("argument `{path}` is {}, the function is compiled for {ty}", type_of(x)));
            }
            x.check_client(&self.client, &|| format!("argument `{path}`"))?;
        }
        Ok(())
    }
}

impl<Args: Tree + 'static, F: Function<Args>> std::fmt::Debug for Lowered<Args, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_jaxpr())
    }
}

/// Number of steps (launches, loops and branches) of the compiled function, for tests.
#[cfg(test)]
pub(crate) fn count_steps<Args: Tree + 'static, F: Function<Args>>(f: F) -> F::Boxed<Result<usize>> {
    F::boxed(move |given: CallArguments<'_, Args>| {
        let tuple = (given.tuple)();
        let (_, function, client) = trace_function(&f, &tuple, &tree::leaves(&tuple))?;
        let input = CompilationInput::from_graph(function.graph, &client);
        Ok(Compilation::new(input).into_program()?.step_count())
    })
}
