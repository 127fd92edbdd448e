//! Values of a traced function that have one sharding, and barriers for shardings.
use crate::array::Array;
use crate::jit::trace::{apply, sharding_group_count};
use crate::tree::{self, Tree};
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::{PropagationBarrier, PropagationDirection, ShardingGroup};
use pallas_ir::{At, Diag, Loc};

/// Gives each pair of leaves of two trees one sharding in a traced function, whichever propagation finds for one of
/// them; outside of one, returns the trees as they are. `jax.experimental.shard_alike.shard_alike`.
///
/// # Errors
/// Trees of different structures; leaves of different shapes.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
/// use pallas_rt::{jit, shard_alike};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// let x = device_put(&Array::full(&[4], 1.0f32)?, &NamedSharding::new(&mesh, P("data")))?;
/// // Nothing is computed from `x` and `y` together, but both are sharded.
/// let f = jit(|x: &Array, y: &Array| -> Result<(Array, Array)> { shard_alike(&(x + 1.0), &(y + 1.0)) });
/// let (_, y) = f(&x, &Array::full(&[4], 2.0f32)?)?;
/// assert_eq!(y.sharding().expect("it is sharded").blocks_per_dim(), [2]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn shard_alike<T: Tree>(x: &T, y: &T) -> Result<(T, T)> {
    let at = Loc::caller();
    let mut ys = vec![];
    let xs = tree::map2(x, y, |x, y| {
        let mut pair = add_sharding_group(&[x, y], at)?;
        ys.extend(pair.pop());
        Ok(pair.remove(0))
    })?;
    Ok((xs, tree::rebuild(y, ys)?))
}

/// Gives arrays of one shape the same sharding in a traced function; [`shard_alike`] for any number of arrays.
///
/// # Errors
/// Arrays of different shapes.
#[track_caller]
pub fn shard_as(arrays: &[&Array]) -> Result<Vec<Array>> {
    add_sharding_group(arrays, Loc::caller())
}

/// Puts arrays of one shape into a new sharding group, and returns them as its members; returns them as they are if
/// none is traced.
fn add_sharding_group(arrays: &[&Array], at: Loc) -> Result<Vec<Array>> {
    arrays.iter().try_for_each(|x| x.check().map(drop))?;
    if let Some((first, other)) =
        arrays.first().and_then(|x| Some((x, arrays.iter().find(|y| y.shape() != x.shape())?)))
    {
        let found = format!("arrays of the shapes {:?} and {:?}", first.shape(), other.shape());
        let diag = Diag::new("shard-alike", At::Op, found, "arrays with one sharding have one shape");
        return Err(Error::operation(at, diag));
    }
    if !arrays.iter().any(|x| x.is_traced()) {
        return Ok(arrays.iter().map(|&x| x.clone()).collect());
    }
    let group = sharding_group_count();
    let member = |x: &Array| match x.is_traced() {
        true => apply(&[x], at, |graph, v| graph.push(ShardingGroup(group), v)),
        // An array from outside becomes a value of the traced function.
        false => crate::jit::trace::create_array(&[x], at, |graph, v| graph.push(ShardingGroup(group), v)),
    };
    Ok(arrays.iter().map(|x| member(x)).collect())
}

/// Returns the array behind a barrier, through which shardings propagate in some directions alone:
/// [`PropagationDirection::Forward`] from what makes the array to what reads it. Shardy's `propagation_barrier`.
/// Outside of a traced function it is the array itself.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, PropagationDirection, device_put};
/// use pallas_rt::{jit, propagation_barrier};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// let x = device_put(&Array::full(&[4], 1.0f32)?, &NamedSharding::new(&mesh, P("data")))?;
/// let y = jit(|x: &Array| propagation_barrier(x, PropagationDirection::None) + 1.0)(&x)?;
/// assert_eq!(y.sharding().expect("it is on the mesh").blocks_per_dim(), [1]);
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn propagation_barrier(x: &Array, flow: PropagationDirection) -> Array {
    if !x.is_traced() {
        return x.clone();
    }
    apply(&[x], Loc::caller(), |graph, v| graph.push(PropagationBarrier(flow), v))
}
