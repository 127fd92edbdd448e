//! Functions of blocks, which every device of a mesh runs.
use super::axis_names::{self, AxisNames};
use super::function::{CallArguments, Function};
use super::trace::{TracedFunction, TracedParameter, apply_multi_result, manual_axis_states as array_states, type_of};
use super::traced::{common_client, trace_function_with_parameters};
use super::transformed::{Transformation, Transformed, box_call};
use crate::array::{Array, Client};
use crate::sharding::{Mesh, NamedSharding, PartitionSpec, Sharding};
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::manual::{block_states, cast_graph_results};
use pallas_graph::mesh::{AxisStates, ManualAxisState, all_invariant_states};
use pallas_graph::{Graph, call};
use pallas_ir::{At, Diag, Loc, Type};
use std::sync::Arc;

/// A function that every device of a mesh calls on its blocks of the arguments; `jax.shard_map`.
///
/// `in_specs` says how the arguments are sharded: one spec for all of them, one for each argument, or one for each
/// array of theirs. `out_specs` says how the blocks that the function returns are put together: one spec for all, or
/// one for each array. In the function, arrays have the shapes of blocks, and devices exchange what the collectives of
/// [`spmd`](crate::spmd) name; arrays that it captures are whole on every device.
///
/// A value is *invariant* along an axis if the devices along it have equal values, and *varying* otherwise. A result
/// that varies along an axis has to name it in its spec. The gradient of an argument that is invariant along an axis is
/// the sum over the devices along it. A function called outside of [`jit`](super::jit()) is traced at each call.
///
/// # Errors
/// The call returns an error for specs that do not fit (another number, an axis that the mesh does not have, more
/// entries than dimensions, a dimension that its axes do not divide evenly, an open dimension or one with a priority),
/// for a result that varies along an axis that its spec does not name, and for a collective in a loop or branch whose
/// condition varies along its axis; if the condition varies along another axis, for different steps when it runs. In a
/// loop or branch without collectives each device goes its own way. Inside of a body, the call returns an error if that
/// is on another mesh or manual along all axes. It returns the errors of [`jit`](super::jit()) too.
///
/// ```
/// use pallas_rt::sharding::{Mesh, P};
/// use pallas_rt::spmd::psum;
/// use pallas_rt::{Array, jit, shard_map};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// // Each device has one half of x; the mean needs both.
/// let centred = |x: &Array| x - psum(&x.sum(..), "data") / 4.0;
/// let f = jit(shard_map(centred, &mesh, [P("data")], [P("data")]));
/// let y = f(&Array::from_slice(&[1.0f32, 2.0, 3.0, 6.0], &[4])?)?;
/// assert_eq!(y.to_vec::<f32>()?, [-2.0, -1.0, 0.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn shard_map<Args: Tree + 'static, F: Function<Args>>(
    f: F,
    mesh: &Arc<Mesh>,
    in_specs: impl AsRef<[PartitionSpec]>,
    out_specs: impl AsRef<[PartitionSpec]>,
) -> Transformed<Args, F, ShardMap> {
    let (in_specs, out_specs) = (in_specs.as_ref().to_vec(), out_specs.as_ref().to_vec());
    let options = ShardMap { mesh: mesh.clone(), in_specs, out_specs, axis_names: None };
    Transformed::new(f, options, Loc::caller())
}

/// Options of [`shard_map()`].
#[derive(Clone, Debug)]
pub struct ShardMap {
    mesh: Arc<Mesh>,
    in_specs: Vec<PartitionSpec>,
    out_specs: Vec<PartitionSpec>,
    axis_names: Option<Vec<String>>,
}

/// Option of [`shard_map()`].
impl<Args: Tree + 'static, F: Function<Args>> Transformed<Args, F, ShardMap> {
    /// Makes the body manual along these axes of the mesh alone.
    ///
    /// Along the other axes, which are *automatic*, the body is a function like any other: arrays are whole, the
    /// compiler shards them as it finds from the arguments' shardings, from those of what reads the results, and from
    /// constraints ([`with_sharding_constraint`](super::with_sharding_constraint) by automatic axes) in the body, and
    /// it inserts the collectives. Specs and collectives in the body name manual axes alone.
    ///
    /// A body may call a `shard_map` on the same mesh along axes that no body around is manual along; a [`shard_map`]
    /// without names is manual along all of them. Collectives in the inner body name axes of both.
    ///
    /// # Errors
    /// The call returns an error for an axis that the mesh does not have, for no axis, for an axis along which a body
    /// around is manual already, and for a spec or a collective that names an automatic axis. A loop or branch whose
    /// condition differs along a manual axis is an error when it runs if the compiler inserted collectives in it.
    ///
    /// ```
    /// use pallas_rt::sharding::{Mesh, P};
    /// use pallas_rt::spmd::psum;
    /// use pallas_rt::{Array, jit, shard_map};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 2)]).expect("a mesh"));
    /// // The sum over devices is ours; the compiler divides the product along `model`.
    /// let layer = |x: &Array, w: &Array| psum(&x.matmul(w), "data");
    /// let f = jit(shard_map(layer, &mesh, [P("data"), P(())], [P(())]).axis_names("data"));
    /// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let w = Array::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[2, 2])?;
    /// assert_eq!(f(&x, &w)?.to_vec::<f32>()?, [4.0, 6.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn axis_names(self, axes: impl AxisNames) -> Self {
        let names = axes.names().into_iter().map(String::from).collect();
        self.map_options(|options| ShardMap { axis_names: Some(names), ..options })
    }
}

impl<Args: Tree + 'static, F: Function<Args>> Transformation<Args, F> for ShardMap {
    type Out = F::Out;
    type Call = F::Boxed<Result<F::Out>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        box_call(f, self, move |f, options, given| call_on_blocks(f, given, options, at))
    }
}

/// A mesh, and the axes along which the body of a `shard_map` is manual.
pub(super) struct ManualAxes {
    pub mesh: Arc<Mesh>,
    /// By axis, true if the body is manual along it.
    pub axes: Vec<bool>,
    /// By axis, true if a body around this one is manual along it.
    around: Vec<bool>,
}

impl ManualAxes {
    /// Makes a body manual along the axes with these names; without names, along all axes that no body around is manual
    /// along.
    ///
    /// # Errors
    /// No axis; one that the mesh does not have; a call inside of a body on another mesh, or of one that is manual
    /// along the axis already.
    pub(super) fn new(mesh: &Arc<Mesh>, names: Option<&[String]>, at: Loc) -> Result<ManualAxes> {
        let around = match axis_names::innermost_mesh_and_manual_axes() {
            None => vec![false; mesh.rank()],
            Some((other, around)) if other == *mesh => around,
            Some((other, _)) => {
                let message = format!("a `shard_map` on {mesh} inside of one on {other}");
                return Err(shard_map_error(
                    at,
                    message,
                    "both are on one mesh: the inner one along axes that the outer one leaves",
                ));
            }
        };
        let mut axes: Vec<bool> = around.iter().map(|&taken| names.is_none() && !taken).collect();
        for name in names.unwrap_or_default() {
            let axis = usize::from(mesh.find(name).map_err(|diag| Error::operation(at, diag))?.id);
            if around[axis] {
                let message = format!("a `shard_map` along axis `{name}` inside of one that is manual along it");
                return Err(shard_map_error(at, message, "arrays are blocks along that axis already: name other axes"));
            }
            axes[axis] = true;
        }
        if axes.contains(&true) {
            return Ok(ManualAxes { mesh: mesh.clone(), axes, around });
        }
        Err(match around.contains(&true) {
            true => {
                let message = "a `shard_map` inside of one that is manual along all axes".into();
                shard_map_error(at, message, "make the outer one manual along some axes alone: `axis_names`")
            }
            false => shard_map_error(at, "a `shard_map` that is manual along no axis".into(), "name one axis at least"),
        })
    }

    /// Returns by axis of the mesh the state (varying, invariant ..) of a block of an array under a sharding. Along
    /// axes of bodies around this one it is the array's own, `array_states`; `None` is invariant along all.
    fn block_states(&self, sharding: &Sharding, array_states: Option<AxisStates>) -> AxisStates {
        let mut states = block_states(sharding, &self.mesh);
        let array = array_states.unwrap_or_else(|| all_invariant_states(&self.mesh));
        let around = (0..states.len()).filter(|&axis| self.around[axis]);
        around.for_each(|axis| states[axis] = array[axis]);
        states
    }

    /// The sharding that a spec states for an array of a type; an error if it is open, has a priority or names another
    /// axis.
    fn sharding_of_spec(&self, spec: &PartitionSpec, ty: &Type, at: Loc) -> Result<Sharding> {
        let sharding = NamedSharding::new(&self.mesh, spec.clone()).sharding_of_type(ty, at)?;
        if sharding.dims.iter().any(|dim| dim.open || dim.priority.is_some()) {
            let message = "an open dimension or a priority in a spec".into();
            return Err(shard_map_error(at, message, "blocks are sharded as the spec says"));
        }
        let all = sharding.dims.iter().flat_map(|dim| &dim.axes).chain(&sharding.replicated).chain(&sharding.unreduced);
        let automatic = all.map(|axis| usize::from(axis.id)).find(|&axis| !self.axes[axis]);
        if let Some(axis) = automatic {
            let name = self.mesh.name(axis);
            let message = format!("a spec names axis `{name}`, along which the body is not manual");
            let help = match self.around[axis] {
                true => format!("a `shard_map` around it is: arrays are blocks along `{name}` already"),
                false => format!(
                    "name `{name}` among the `axis_names`, or divide the array outside: \
                     `with_sharding_constraint`"
                ),
            };
            return Err(shard_map_error(at, message, &help));
        }
        Ok(sharding)
    }
}

pub(super) fn shard_map_error(at: Loc, message: String, help: &str) -> Error {
    Error::operation(at, Diag::new("shard_map", At::Op, message, help))
}

/// Traces `f` as the body of a `shard_map`, and calls it on the blocks of the arguments.
fn call_on_blocks<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    given: &CallArguments<'_, Args>,
    options: &ShardMap,
    at: Loc,
) -> Result<F::Out> {
    let manual = &ManualAxes::new(&options.mesh, options.axis_names.as_deref(), at)?;
    let tuple = (given.tuple)();
    let (args, structures) = (given.flat)();
    let client = common_client(&args)?;
    let (takes, inside) = block_parameters(&args, &structures, &tree::paths(&tuple), manual, &options.in_specs, at)?;
    let (out, body) = ShardMapBody::trace(f, &tuple, &inside, manual, &client, at)?;
    let gives = body.result_shardings(&|| tree::paths(&out), manual, &options.out_specs, at)?;
    tree::rebuild(&out, body.call(takes, gives, &args, manual, at)?)
}

/// The shardings of the arguments by their specs, and the parameters of the body, which are their blocks.
///
/// # Errors
/// Another number of specs than arguments; a spec that an argument cannot have; dimensions that are not sharded evenly.
fn block_parameters(
    args: &[Array],
    structures: &[tree::Structure],
    paths: &[String],
    manual: &ManualAxes,
    in_specs: &[PartitionSpec],
    at: Loc,
) -> Result<(Vec<Sharding>, Vec<TracedParameter>)> {
    let leaves: Vec<usize> = structures.iter().map(tree::Structure::leaves).collect();
    let specs: Vec<&PartitionSpec> = match in_specs {
        [spec] => vec![spec; args.len()],
        specs if specs.len() == leaves.len() => {
            specs.iter().zip(&leaves).flat_map(|(spec, &n)| std::iter::repeat_n(spec, n)).collect()
        }
        specs if specs.len() == args.len() => specs.iter().collect(),
        specs => {
            let message = format!("{} specs for {} arguments of {} arrays", specs.len(), leaves.len(), args.len());
            return Err(shard_map_error(
                at,
                message,
                "one for all, one for each argument, or one for each of their arrays",
            ));
        }
    };
    let (mut takes, mut inside) = (vec![], vec![]);
    for ((x, spec), path) in args.iter().zip(specs).zip(paths) {
        let ty = type_of(x);
        let sharding = manual.sharding_of_spec(spec, &ty, at)?;
        let uneven = ty.shape.iter().zip(sharding.blocks_per_dim()).position(|(&n, parts)| !n.is_multiple_of(parts));
        if let Some(dim) = uneven {
            let (n, parts) = (ty.shape[dim], sharding.blocks_per_dim()[dim]);
            let message = format!("dimension {dim} of argument `{path}` of {ty} in {parts} blocks");
            return Err(shard_map_error(at, message, &format!("pad it: {n} is no multiple of {parts}")));
        }
        let block = Type::new(ty.dtype, sharding.local_shape(&ty.shape));
        inside.push(TracedParameter::with_states(block, Some(manual.block_states(&sharding, array_states(x)))));
        takes.push(sharding);
    }
    Ok((takes, inside))
}

/// A traced body of a `shard_map`.
pub(super) struct ShardMapBody {
    pub graph: Graph,
    captured: Vec<Array>,
    /// By result, its states along the axes of the mesh.
    states: Vec<AxisStates>,
}

impl ShardMapBody {
    /// Traces a function of blocks with these parameters; returns the body, and the function's result, of which only
    /// the structure matters.
    ///
    /// # Errors
    /// The function's error; the first error of an operation that its results depend on.
    pub(super) fn trace<Args: Tree + 'static, F: Function<Args>>(
        f: &F,
        tuple: &Args,
        parameters: &[TracedParameter],
        manual: &ManualAxes,
        client: &Client,
        at: Loc,
    ) -> Result<(F::Out, ShardMapBody)> {
        let binding = axis_names::bind_axes(&manual.mesh, &manual.axes, at)?;
        let (out, TracedFunction { graph, captured, states }) =
            trace_function_with_parameters(f, tuple, parameters, client)?;
        drop(binding);
        let states = states.into_iter().flatten().collect();
        Ok((out, ShardMapBody { graph, captured, states }))
    }

    /// Calls the body on the blocks of `args` on each device; `argument_shardings` and `result_shardings` are the
    /// shardings of arguments and results.
    ///
    /// # Errors
    /// A result that differs between devices along an axis that its sharding does not name; errors of the device.
    pub(super) fn call(
        mut self,
        mut argument_shardings: Vec<Sharding>,
        result_shardings: Vec<Sharding>,
        args: &[Array],
        manual: &ManualAxes,
        at: Loc,
    ) -> Result<Vec<Array>> {
        let ManualAxes { mesh, axes, .. } = manual;
        let given = result_shardings.iter().zip(&self.states);
        let named: Vec<AxisStates> =
            given.map(|(sharding, own)| manual.block_states(sharding, Some(own.clone()))).collect();
        cast_graph_results(&mut self.graph, mesh, &self.states, &named).map_err(|(i, axis)| {
            let message = format!("result {i} is {} over axis `{}`", self.states[i][axis].name(), mesh.name(axis));
            shard_map_error(at, message, "combine it: `psum`")
        })?;
        argument_shardings.extend(self.captured.iter().map(|x| Sharding::replicated(x.shape().len())));
        let map = call::ShardMap {
            mesh: mesh.clone(),
            manual: axes.clone(),
            takes: argument_shardings,
            gives: result_shardings,
            body: self.graph,
        };
        let all: Vec<&Array> = args.iter().chain(&self.captured).collect();
        apply_multi_result(&all, at, |graph, v| graph.push_multi_result(map, v))
    }

    /// The shardings of the results by `specs`: one spec for all, or one for each.
    fn result_shardings(
        &self,
        paths: &dyn Fn() -> Vec<String>,
        manual: &ManualAxes,
        specs: &[PartitionSpec],
        at: Loc,
    ) -> Result<Vec<Sharding>> {
        let (mesh, blocks, states) = (&manual.mesh, self.graph.result_types(), &self.states);
        let n = blocks.len();
        let specs: Vec<&PartitionSpec> = match specs {
            [spec] => vec![spec; n],
            specs if specs.len() == n => specs.iter().collect(),
            specs => {
                let message = format!("{} specs for a result of {n} arrays", specs.len());
                return Err(shard_map_error(at, message, "one for all of them, or one for each"));
            }
        };
        let paths = paths();
        let one = |i: usize| {
            let sharding = manual.sharding_of_spec(specs[i], &blocks[i], at)?;
            let named = manual.block_states(&sharding, Some(states[i].clone()));
            let of = if paths[i].is_empty() { String::new() } else { format!(" `{}`", paths[i]) };
            let axis = (0..mesh.rank())
                .find(|&axis| states[i][axis] != ManualAxisState::Invariant && states[i][axis] != named[axis]);
            let Some(axis) = axis else { return Ok(sharding) };
            let (name, state) = (mesh.name(axis), states[i][axis]);
            let message = format!("the result{of} is {} over axis `{name}`, which its spec does not say", state.name());
            let help = match state {
                ManualAxisState::Varying => {
                    format!("name `{name}` in its spec, or combine the values: `psum`, `pmean`, `pmax`")
                }
                _ => format!("combine the values over `{name}` first: `psum`"),
            };
            Err(shard_map_error(at, message, &help))
        };
        (0..n).map(one).collect()
    }
}
