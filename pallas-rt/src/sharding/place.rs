//! Arrays on meshes.
use super::blocks::{Placement, cut};
use super::spec::NamedSharding;
use crate::array::{Array, What};
use crate::error::{Error, Result};
use pallas_graph::mesh::Sharding;
use pallas_ir::{At, Diag, Loc, Type};

/// An array with the same elements, divided among the devices of a mesh, which is declared: functions of `jit` divide their
/// argument like it. `jax.device_put`.
///
/// # Errors
/// An axis that the mesh does not have, an axis twice, more entries than dimensions, a dimension that its axes do not
/// divide; a traced array; memory.
///
/// ```
/// use pallas_rt::Array;
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let x = device_put(&x, &NamedSharding::new(&mesh, P("data")))?;
/// assert_eq!(x.addressable_shards()?[1].to_vec::<f32>()?, [3.0, 4.0]);
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn device_put(x: &Array, sharding: &NamedSharding) -> Result<Array> {
    let at = Loc::caller();
    let ty = Type::new(x.dtype(), x.shape());
    let own = sharding.of(&ty, at)?;
    for (dim, parts) in own.parts().into_iter().enumerate() {
        if !ty.shape[dim].is_multiple_of(parts) {
            let found = format!("dimension {dim} of an array of {ty} in {parts} parts");
            let diag = Diag::new("sharding", At::Op, found, "an extent that the axes divide, or fewer axes");
            return Err(Error::operation(at, diag));
        }
    }
    let mesh = sharding.mesh();
    let blocks = cut(x.client(), mesh, &own, &ty, x.buffer()?)?;
    let placement = Placement { mesh: mesh.clone(), sharding: own, ty: ty.clone(), is_declared: true };
    Ok(Array::divided(ty.dtype, &ty.shape, placement.blocks(blocks)))
}

impl Array {
    pub(crate) fn placement(&self) -> Option<&Placement> {
        match self.what() {
            What::Divided(blocks) => Some(Placement::of(blocks)),
            What::Here(_) | What::Traced(_) | What::Bad(_) => None,
        }
    }

    /// Its sharding among the devices of a mesh; `None` if it is in one place.
    pub fn sharding(&self) -> Option<&Sharding> {
        self.placement().map(|placement| &placement.sharding)
    }

    /// The block of each device, in the order of the positions in the mesh; the array itself if it is in one place.
    ///
    /// # Errors
    /// A traced array; the error of a poisoned one.
    pub fn addressable_shards(&self) -> Result<Vec<Array>> {
        match (self.what(), self.placement()) {
            (What::Divided(blocks), Some(placement)) => {
                let local = placement.sharding.local(self.shape());
                Ok(blocks.blocks.iter().map(|b| Array::sharing(self.dtype(), &local, b.clone())).collect())
            }
            _ => {
                self.buffer()?;
                Ok(vec![self.clone()])
            }
        }
    }
}
