//! Functions that every device calls on its element of the arguments' first axis.
use super::axis_names;
use super::function::{CallArguments, Function};
use super::jit_function::Jit;
use super::shard_map::{ManualAxes, ShardMapBody, shard_map_error};
use super::trace::{TracedParameter, type_of};
use super::traced::common_client;
use super::transformed::{Transformation, Transformed, box_call};
use crate::sharding::{DimSharding, Mesh, Sharding};
use crate::tree::{self, Tree};
use pallas_device::error::Result;
use pallas_graph::manual::block_states;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::Reshape;
use pallas_ir::{Dim, Loc, StructuralOp, Type};
use std::sync::Arc;

/// A function of one element, which every device of a mesh calls on its own element of the arguments' first axis;
/// `jax.pmap`. The results of all devices lie along a first axis. The function is compiled, as by
/// [`jit`](super::jit()).
///
/// The first axis is as long as the mesh has devices, in the order of their positions. Arrays that the function
/// captures are the same on every device. Its collectives ([`spmd`](crate::spmd)) name axes of the mesh. [`shard_map`]
/// shards arrays in other ways.
///
/// [`shard_map`]: super::shard_map()
///
/// # Errors
/// The call returns an error if the first axis of an argument is not as long as the mesh has devices, and the errors of
/// [`jit`](super::jit()).
///
/// ```
/// use pallas_rt::sharding::Mesh;
/// use pallas_rt::{Array, pmap, spmd};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("i", 2)]).expect("a mesh"));
/// let normal = pmap(|x: &Array| x / spmd::psum(x, "i"), &mesh);
/// assert_eq!(normal(&Array::from_slice(&[1.0f32, 3.0], &[2])?)?.to_vec::<f32>()?, [0.25, 0.75]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn pmap<Args, F>(f: F, mesh: &Arc<Mesh>) -> F::Boxed<Result<F::Out>>
where
    Args: Tree + 'static,
    F: Function<Args>,
{
    let at = Loc::caller();
    let each = Transformed::<Args, F, UncompiledPmap>::new(f, UncompiledPmap { mesh: mesh.clone() }, at);
    Transformed::<Args, _, Jit>::new(each, Jit::default(), at).into_fn()
}

/// The transformation of [`pmap`] without compilation.
#[derive(Clone)]
struct UncompiledPmap {
    mesh: Arc<Mesh>,
}

impl<Args: Tree + 'static, F: Function<Args>> Transformation<Args, F> for UncompiledPmap {
    type Out = F::Out;
    type Call = F::Boxed<Result<F::Out>>;
    fn build(&self, f: &Arc<F>, at: Loc) -> Self::Call {
        box_call(f, self, move |f, options, given| call_on_devices(f, given, &options.mesh, at))
    }
}

/// Calls `f` on each device, with its element of the arguments' first axis.
fn call_on_devices<Args: Tree + 'static, F: Function<Args>>(
    f: &F,
    given: &CallArguments<'_, Args>,
    mesh: &Arc<Mesh>,
    at: Loc,
) -> Result<F::Out> {
    let tuple = (given.tuple)();
    let (args, _) = (given.flat)();
    let client = common_client(&args)?;
    if axis_names::innermost_mesh_and_manual_axes().is_some() {
        let help = "call a `shard_map` there, along axes that the outer one leaves";
        return Err(shard_map_error(at, "a `pmap` inside of a `shard_map`".into(), help));
    }
    let manual = ManualAxes::new(mesh, None, at)?;
    let n = mesh.device_count();
    let along_first = |rank: usize| {
        let mut sharding = Sharding::replicated(rank);
        sharding.dims[0] = DimSharding::closed(mesh.axes());
        sharding
    };
    let (mut takes, mut inside) = (vec![], vec![]);
    for (x, path) in args.iter().zip(tree::paths(&tuple)) {
        let ty = type_of(x);
        if ty.shape.first() != Some(&n) {
            let message = format!("argument `{path}` of {ty} on {n} devices");
            return Err(shard_map_error(at, message, "its first axis has an element for each device of the mesh"));
        }
        let sharding = along_first(ty.shape.len());
        let element = Type::new(ty.dtype, &ty.shape[1..]);
        inside.push(TracedParameter::with_states(element, Some(block_states(&sharding, mesh))));
        takes.push(sharding);
    }
    let (out, mut body) = ShardMapBody::trace(f, &tuple, &inside, &manual, &client, at)?;
    body.graph = add_block_axis(&body.graph, args.len());
    let gives = body.graph.result_types().iter().map(|ty| along_first(ty.shape.len())).collect();
    tree::rebuild(&out, body.call(takes, gives, &args, &manual, at)?)
}

/// Wraps the graph of a function of one element into one of blocks: its first `argument_count` parameters, and all
/// results, get a first axis of extent 1.
fn add_block_axis(graph: &Graph, argument_count: usize) -> Graph {
    let mut to = Graph::default();
    let reshaped = |to: &mut Graph, v: Var, shape: &[usize]| {
        let op = Reshape { to: shape.iter().map(|&n| Dim::from(n)).collect() };
        to.push(StructuralOp::from(op), &[v]).expect("as many elements")
    };
    let params: Vec<Var> = (graph.param_types().into_iter().enumerate())
        .map(|(i, ty)| match i < argument_count {
            true => {
                let block = to.param(Type::new(ty.dtype, [&[1], &ty.shape[..]].concat()));
                reshaped(&mut to, block, &ty.shape)
            }
            false => to.param(ty),
        })
        .collect();
    let made = to.inline(graph, &params);
    to.results = (made.into_iter())
        .map(|v| {
            let shape = [&[1], &to.ty(v).shape[..]].concat();
            reshaped(&mut to, v, &shape)
        })
        .collect();
    to
}
