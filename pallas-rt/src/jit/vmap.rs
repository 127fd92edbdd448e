//! `vmap`: a function of one example becomes a function of a batch.
use super::axis_names;
use super::batch_axes::BatchAxes;
use super::compile::convert_transform_error;
use super::function::{CallArguments, Function};
use super::trace::{TracedFunction, TracedParameter, apply_multi_result, type_of};
use super::traced::{common_client, trace_function_with_parameters};
use super::transformed::{Transformation, Transformed, box_call};
use crate::array::{Array, canonicalize_axis};
use crate::tree::{self, Structure, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::Mesh;
use pallas_graph::transform::{batched, batched_along};
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Broadcast, Transpose};
use pallas_ir::{At, Diag, Dim, Loc, StructuralOp};
use std::sync::Arc;

/// A function of one example, called for a batch at once: arguments have the axis of the batch first, and so do
/// results.
///
/// Each operation becomes one operation on the whole batch, such as one product of matrices for many products of
/// vectors: nothing is a loop, and what is the same for all examples is neither copied nor computed for each. Arrays
/// that the function captures are the same for all examples, and so are the numbers of a captured key
/// ([`random`](crate::random)).
///
/// A [`while_loop`](super::while_loop) runs until all examples are done, and a [`cond`](super::cond) or
/// [`switch`](super::switch) that differs between examples computes all branches: what the function computes for an
/// example that is done, or in a branch that is not its own, is dropped, also where it is no number: gradients are
/// those of the example's own branch. So loops in there have to end for all examples.
///
/// # Errors
/// The call returns an error if arguments have no first axis or if their first axes differ, and the errors of
/// [`jit`](super::jit).
///
/// ```
/// use pallas_rt::{Array, vmap};
/// let norm = vmap(|x: &Array| (x * x).sum(..).sqrt());
/// let x = Array::from_slice(&[3.0f32, 4.0, 6.0, 8.0], &[2, 2])?;
/// assert_eq!(norm(&x)?.to_vec::<f32>()?, [5.0, 10.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn vmap<Args: Tree + 'static, F: Function<Args>>(f: F) -> Transformed<Args, F, Vmap> {
    let (in_axes, out_axes) = (Some(0).into(), Some(0).into());
    Transformed::new(f, Vmap { in_axes, out_axes, axis_name: None, axis_size: None }, Loc::caller())
}

/// Options of [`vmap()`]; methods of [`Transformed`] set them.
#[derive(Clone, Debug)]
pub struct Vmap {
    in_axes: BatchAxes,
    out_axes: BatchAxes,
    axis_name: Option<String>,
    axis_size: Option<usize>,
}

impl<Args: Tree + 'static, F: Function<Args>> Transformation<Args, F> for Vmap {
    type Out = F::Out;
    type Call = F::Boxed<Result<F::Out>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        box_call(f, self, move |f, options, given| call_batched(f, given, options, at))
    }
}

/// Options of [`vmap()`].
impl<Args: Tree + 'static, F: Function<Args>> Transformed<Args, F, Vmap> {
    /// Sets the axis of the batch for each argument; negative ones count from the end.
    ///
    /// There is one entry for each argument, which holds for all of its leaves, or has an entry for each of them: the
    /// axis, or `None` for an argument that is the same for all examples. [`BatchAxes`] says what else it may be.
    ///
    /// # Errors
    /// The call returns an error if there are more or fewer entries, if all are `None` and no
    /// [`axis_size`](Transformed::axis_size) is given, if an array has no such axis, or if arrays differ in the extent
    /// of theirs.
    ///
    /// ```
    /// use pallas_rt::{Array, grad, jit, vmap};
    /// // A gradient for each example.
    /// let loss = |w: &Array, x: &Array, y: &Array| ((w * x).sum(..) - y) * ((w * x).sum(..) - y);
    /// let each = jit(vmap(grad(loss)).in_axes([None, Some(0), Some(0)]));
    /// let w = Array::from_slice(&[1.0f32, 2.0], &[2])?;
    /// let x = Array::from_slice(&[1.0f32, 1.0, 2.0, 0.0], &[2, 2])?;
    /// let y = Array::from_slice(&[2.0f32, 0.0], &[2])?;
    /// assert_eq!(each(&w, &x, &y)?.to_vec::<f32>()?, [2.0, 2.0, 8.0, 0.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn in_axes(self, axes: impl Into<BatchAxes>) -> Self {
        self.map_options(|options| Vmap { in_axes: axes.into(), ..options })
    }

    /// Sets the axis of the batch of results: one entry for all leaves, or one for each; `None` for a result that is
    /// the same for all examples.
    ///
    /// # Errors
    /// The call returns an error if there are more or fewer entries, and if a result for `None` depends on the example.
    pub fn out_axes(self, axes: impl Into<BatchAxes>) -> Self {
        self.map_options(|options| Vmap { out_axes: axes.into(), ..options })
    }

    /// Names the axis of the batch, over which collectives ([`spmd`](crate::spmd)) in the function combine the
    /// examples.
    ///
    /// `psum` of a value adds those of all examples, `axis_index` is the number of the example, `all_gather` and
    /// `all_to_all` rearrange the batch. Collectives over several axes may name axes of `vmap`s and of a
    /// [`shard_map`](super::shard_map) together.
    ///
    /// # Errors
    /// The call returns an error for a name that nothing binds, for a name that is an axis of the mesh of a `shard_map`
    /// around, for a batch without examples, for a collective in a loop or branch whose condition differs between the
    /// examples, and for `pvary` and `pcast`: examples have no states.
    ///
    /// ```
    /// use pallas_rt::spmd::{pmax, psum};
    /// use pallas_rt::{Array, vmap};
    /// let share = vmap(|x: &Array| x / psum(x, "batch")).axis_name("batch");
    /// let x = Array::from_slice(&[1.0f32, 3.0, 4.0], &[3])?;
    /// assert_eq!(share(&x)?.to_vec::<f32>()?, [0.125, 0.375, 0.5]);
    /// // The same for all examples, so it needs no axis.
    /// let greatest = vmap(|x: &Array| pmax(x, "column")).axis_name("column").in_axes([Some(1)]).out_axes(None);
    /// let x = Array::from_slice(&[1.0f32, 3.0, 4.0, 2.0], &[2, 2])?;
    /// assert_eq!(greatest(&x)?.to_vec::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn axis_name(self, name: impl Into<String>) -> Self {
        self.map_options(|options| Vmap { axis_name: Some(name.into()), ..options })
    }

    /// States the number of examples, which a batch without a batched argument needs.
    ///
    /// # Errors
    /// The call returns an error if a batched argument has another number of examples.
    pub fn axis_size(self, size: usize) -> Self {
        self.map_options(|options| Vmap { axis_size: Some(size), ..options })
    }
}

fn vmap_error(at: Loc, message: String, help: &str) -> Error {
    Error::operation(at, Diag::new("vmap", At::Op, message, help))
}

/// Calls a function of one example for a batch.
fn call_batched<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    given: &CallArguments<'_, Args>,
    options: &Vmap,
    at: Loc,
) -> Result<F::Out> {
    let tuple = (given.tuple)();
    let (args, structures) = (given.flat)();
    let client = common_client(&args)?;
    let of_leaves = options.in_axes.leaf_axes(&tree::structure(&tuple)).map_err(|found| {
        let help =
            "one for each argument: `Some(axis)`, `None` for one that is the same for all, or those of its leaves";
        vmap_error(at, format!("{found} in {} arguments", structures.len()), help)
    })?;
    let batch = Batch::from_arguments(&args, &tree::paths(&tuple), &of_leaves, options, at)?;
    let binding = batch.named.as_ref().map(|mesh| axis_names::bind_axes(mesh, &[true], at)).transpose()?;
    let (out, traced) = trace_function_with_parameters(f, &tuple, &batch.example_parameters(&args), &client)?;
    drop(binding);
    let axes = &options.out_axes;
    let results = ResultBatchAxes { structure: tree::structure(&out), paths: &|| tree::paths(&out), axes };
    tree::rebuild(&out, batch.run_batched(traced, &args, &results, at)?)
}

/// Batch of one call: the axis of the examples in each leaf of the arguments, their number, and the name of that axis.
struct Batch {
    /// By leaf of the arguments, the axis of the examples; `None` if the leaf is the same for all.
    along: Vec<Option<usize>>,
    /// Number of examples.
    size: usize,
    /// If the axis of the examples has a name, a mesh of that one axis, which collectives refer to.
    named: Option<Arc<Mesh>>,
}

/// Structure and leaf paths of the result of a function of one example, with the axes at which the caller wants the
/// batch in it.
struct ResultBatchAxes<'a> {
    structure: Structure,
    paths: &'a dyn Fn() -> Vec<String>,
    /// The requested axes of the batch in the results.
    axes: &'a BatchAxes,
}

impl Batch {
    /// Parameters of a function of one example: the arguments without the axis of the batch.
    fn example_parameters(&self, args: &[Array]) -> Vec<TracedParameter> {
        let one = |(x, axis): (&Array, &Option<usize>)| {
            let mut ty = type_of(x);
            axis.map(|axis| ty.shape.remove(axis));
            TracedParameter::with_type_like(ty, x)
        };
        args.iter().zip(&self.along).map(one).collect()
    }

    /// Batches a traced function of one example, and calls the result for the whole batch.
    ///
    /// # Errors
    /// Axes that the results do not have; an operation without batching rule; errors of the device.
    fn run_batched(
        &self,
        traced: TracedFunction,
        args: &[Array],
        results: &ResultBatchAxes<'_>,
        at: Loc,
    ) -> Result<Vec<Array>> {
        let Batch { along, size, named } = self;
        let TracedFunction { graph, captured, .. } = traced;
        let which: Vec<bool> = (0..graph.params.len()).map(|i| along.get(i).is_some_and(Option::is_some)).collect();
        let (graph, has) = match named {
            Some(mesh) => batched_along(&graph, &which, mesh),
            None => batched(&graph, &which, *size),
        }
        .map_err(convert_transform_error)?;
        let places = results.result_axes(&graph, &has, at)?;
        let all: Vec<&Array> = args.iter().chain(&captured).collect();
        apply_multi_result(&all, at, |to, vars| {
            let mut vars = vars.to_vec();
            for (v, axis) in vars.iter_mut().zip(along) {
                if let Some(axis) = *axis {
                    let rank = to.ty(*v).shape.len();
                    *v = push_transpose(
                        to,
                        *v,
                        std::iter::once(axis).chain((0..rank).filter(|&a| a != axis)).collect(),
                    )?;
                }
            }
            let made = to.inline(&graph, &vars);
            let mut outs = vec![];
            for ((v, &has), place) in made.into_iter().zip(&has).zip(&places) {
                outs.push(match *place {
                    None => v,
                    Some(axis) if has => {
                        let rank = to.ty(v).shape.len();
                        push_transpose(to, v, (1..=axis).chain([0]).chain(axis + 1..rank).collect())?
                    }
                    Some(axis) => push_repeat(to, v, axis, *size)?,
                });
            }
            Ok(outs)
        })
    }

    /// Finds the axis of the examples in each argument, and their number. `axes` are the requested axes by leaf,
    /// negative ones from the end; `None` for a leaf that is the same for all.
    ///
    /// # Errors
    /// A leaf without such an axis; two with different extents; no leaf with an axis; a name that no axis can have.
    fn from_arguments(
        args: &[Array],
        paths: &[String],
        axes: &[Option<isize>],
        options: &Vmap,
        at: Loc,
    ) -> Result<Batch> {
        let mut found = vec![];
        let mut first: Option<(usize, usize)> = None;
        for (i, (x, axis)) in args.iter().zip(axes).enumerate() {
            let Some(asked) = *axis else {
                found.push(None);
                continue;
            };
            let Ok(axis) = canonicalize_axis(asked, x.shape().len()) else {
                let message = format!("`vmap` along axis {asked} of argument `{}` of {}", paths[i], type_of(x));
                let help =
                    "it has no such axis; `in_axes` takes `None` for an argument that is the same for all examples";
                return Err(vmap_error(at, message, help));
            };
            let extent = x.shape()[axis];
            match first {
                Some((other, size)) if size != extent => {
                    let leaf = |i: usize| format!("argument `{}` of {}", paths[i], type_of(&args[i]));
                    let message = format!("a batch of {size} in {} and of {extent} in {}", leaf(other), leaf(i));
                    return Err(vmap_error(
                        at,
                        message,
                        "all arguments that are batched have the same number of examples",
                    ));
                }
                Some(_) => {}
                None => first = Some((i, extent)),
            }
            found.push(Some(axis));
        }
        let size = match (first, options.axis_size) {
            (Some((leaf, extent)), Some(size)) if size != extent => {
                let message =
                    format!("an `axis_size` of {size}, and argument `{}` of {}", paths[leaf], type_of(&args[leaf]));
                return Err(vmap_error(at, message, "batched arguments have as many examples as `axis_size` says"));
            }
            (Some((_, size)), _) | (None, Some(size)) => size,
            (None, None) => {
                let help = "give one of the arguments an axis: `Some(0)`, or state the `axis_size`";
                return Err(vmap_error(at, "`vmap` without a batched array".into(), help));
            }
        };
        let name = options.axis_name.as_deref();
        let named =
            name.map(|name| Mesh::of_batch(name, size)).transpose().map_err(|diag| Error::operation(at, diag))?;
        Ok(Batch { along: found, size, named: named.map(Arc::new) })
    }
}

impl ResultBatchAxes<'_> {
    /// The axis of the batch in each result of a graph, `None` if it has none. `is_batched` is true for results that
    /// depend on the example.
    ///
    /// # Errors
    /// Another number of axes than results; no such axis; `None` for a result that depends on the example.
    fn result_axes(&self, graph: &Graph, is_batched: &[bool], at: Loc) -> Result<Vec<Option<usize>>> {
        let ResultBatchAxes { structure, paths, axes } = self;
        let n = graph.results.len();
        // A list with one entry holds for all leaves, unless the function itself returns a list of one.
        let found = axes.leaf_axes(structure).or_else(|found| axes.single_entry().ok_or(found)?.leaf_axes(structure));
        let axes = found
            .map_err(|found| vmap_error(at, format!("{found} in a result"), "one for all of them, or one for each"))?;
        let paths = paths();
        let place = |i: usize| {
            let ty = graph.ty(graph.results[i]);
            let rank = ty.shape.len() + usize::from(!is_batched[i]);
            let of = if paths[i].is_empty() { String::new() } else { format!(" `{}`", paths[i]) };
            match axes[i] {
                None if is_batched[i] => {
                    let message = format!("the result{of} depends on the example, and has no axis for the batch");
                    Err(vmap_error(at, message, "give it one: `Some(0)`"))
                }
                None => Ok(None),
                Some(axis) => match canonicalize_axis(axis, rank) {
                    Ok(axis) => Ok(Some(axis)),
                    Err(_) => {
                        let message =
                            format!("a batch along axis {axis} of the result{of}, which has {rank} axes with it");
                        Err(vmap_error(at, message, "axes count from 0, or from the end as -1, -2 .."))
                    }
                },
            }
        };
        (0..n).map(place).collect()
    }
}

/// Transposes a variable so that its axes come in this order.
fn push_transpose(to: &mut Graph, v: Var, axes: Vec<usize>) -> Result<Var, Diag> {
    if axes.is_sorted() { Ok(v) } else { to.push(StructuralOp::from(Transpose { axes }), &[v]) }
}

/// Repeats a variable `size` times along a new axis.
pub(super) fn push_repeat(to: &mut Graph, v: Var, axis: usize, size: usize) -> Result<Var, Diag> {
    let mut shape = to.ty(v).shape.clone();
    shape.insert(axis, size);
    let dims = (0..shape.len()).filter(|&a| a != axis).collect();
    let op = Broadcast { to: shape.into_iter().map(Dim::from).collect(), dims };
    to.push(StructuralOp::from(op), &[v])
}
