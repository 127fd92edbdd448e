//! Functions that place arrays on meshes.
use super::blocks::{
    MeshPlacement, ShardingDeclaration, block_coordinates, block_ranges, local_device_positions, split_into_blocks,
};
use super::partition_spec::NamedSharding;
use super::process_agreement::{check_equal_elements, hash_elements};
use crate::array::{Array, ArrayContents};
use pallas_device::Buffer;
use pallas_device::collective::process_group;
use pallas_device::error::{Error, Result};
use pallas_device::startup;
use pallas_graph::mesh::{Sharding, product_of_sizes};
use pallas_ir::{At, Diag, Loc, Type};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Shards an array among the devices of a mesh. The sharding is a declaration: functions of `jit` take it as that of
/// their argument. `jax.device_put`. All processes of a job pass the same elements, which are compared by a hash.
///
/// # Errors
/// An axis that the mesh does not have, an axis twice, more entries than dimensions, a dimension that its axes do not
/// divide; a traced array; memory; processes that have different elements.
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
    shard_with_declaration(x, sharding, ShardingDeclaration { at: Loc::caller(), pattern: None })
}

/// Shards an array among the devices of a mesh as [`device_put`] does, and stores `declaration` as the source of its
/// sharding.
#[track_caller]
pub(crate) fn shard_with_declaration(
    x: &Array,
    sharding: &NamedSharding,
    declaration: ShardingDeclaration,
) -> Result<Array> {
    let at = declaration.at;
    let ty = Type::new(x.dtype(), x.shape());
    startup::require_spmd(std::panic::Location::caller(), sharding.mesh().device_count())?;
    let own = sharding.even_sharding(&ty.shape, &ty, at)?;
    let mesh = sharding.mesh();
    let whole = x.buffer()?;
    // The elements of an array on a mesh were compared when it was placed there.
    if let (Some(all), None) = (process_group(), x.placement()) {
        check_equal_elements(all, &ty, mesh.to_string(), &[(0, hash_elements(&whole.contents()?))], at)?;
    }
    let blocks = split_into_blocks(x.client(), mesh, &own, &ty, whole)?;
    let placement = MeshPlacement {
        mesh: mesh.clone(),
        sharding: own,
        ty: ty.clone(),
        declared: Some(declaration),
        is_cleared: false,
        receipts: [].into(),
    };
    Ok(Array::from_blocks(ty.dtype, &ty.shape, placement.into_sharded_blocks(blocks)))
}

/// Shards an array like another one along the dimensions that axes divide evenly, without declaring it.
///
/// # Errors
/// Memory; device errors.
pub(crate) fn shard_like(x: &Array, like: &MeshPlacement) -> Result<Array> {
    let ty = Type::new(x.dtype(), x.shape());
    let mut sharding = like.sharding.clone();
    for (dim, &n) in sharding.dims.iter_mut().zip(&ty.shape) {
        if !n.is_multiple_of(product_of_sizes(&dim.axes)) {
            dim.axes.clear();
        }
    }
    let blocks = split_into_blocks(x.client(), &like.mesh, &sharding, &ty, x.buffer()?)?;
    let placement = MeshPlacement { sharding, ty: ty.clone(), declared: None, is_cleared: false, ..like.clone() };
    Ok(Array::from_blocks(ty.dtype, &ty.shape, placement.into_sharded_blocks(blocks)))
}

/// Makes an array of a shape that is declared to be sharded among the devices of a mesh, from blocks: `block` is called
/// once for each different block, with the indices of its elements along each dimension of the array, and the whole
/// array is nowhere in memory. All blocks have the element type and the client of the first one.
/// `jax.make_array_from_callback`.
///
/// # Errors
/// As for [`device_put`]; processes whose functions give one block different elements; the function's own error; a
/// block of another shape or element type, on another client, or traced.
///
/// ```
/// use pallas_rt::Array;
/// use pallas_rt::sharding::{Mesh, NamedSharding, P, make_array_from_callback};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2)]).expect("a mesh"));
/// let x = make_array_from_callback(&[4], &NamedSharding::new(&mesh, P("data")), |index| {
///     let numbers: Vec<f32> = index[0].clone().map(|i| i as f32).collect();
///     Array::from_slice(&numbers, &[numbers.len()])
/// })?;
/// assert_eq!(x.to_vec::<f32>()?, [0.0, 1.0, 2.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
pub fn make_array_from_callback(
    shape: &[usize],
    sharding: &NamedSharding,
    mut block: impl FnMut(&[Range<usize>]) -> Result<Array>,
) -> Result<Array> {
    startup::require_spmd(std::panic::Location::caller(), sharding.mesh().device_count())?;
    make_from_callback(shape, sharding, &mut block, Loc::caller())
}

/// A function that makes the block of the elements with these indices along each dimension.
type MakeBlock<'a> = &'a mut dyn FnMut(&[Range<usize>]) -> Result<Array>;

/// Makes a sharded array from blocks; see [`make_array_from_callback`].
fn make_from_callback(shape: &[usize], sharding: &NamedSharding, make: MakeBlock<'_>, at: Loc) -> Result<Array> {
    let own = sharding.sharding_of_shape(shape, at)?;
    let (mesh, local) = (sharding.mesh(), own.local_shape(shape));
    let mut made: Vec<(Vec<Range<usize>>, Array)> = vec![];
    let mut known: HashMap<Vec<usize>, usize> = HashMap::new();
    let mut by_position = vec![];
    for position in local_device_positions(mesh)? {
        let next = made.len();
        let number = *known.entry(block_coordinates(mesh, &own, position)).or_insert(next);
        if number == next {
            let index = block_ranges(mesh, &own, shape, position);
            let block = make(&index)?;
            made.push((index, block));
        }
        by_position.push(number);
    }
    let first = made[0].1.clone();
    let expected = Type::new(first.dtype(), local);
    for (index, block) in &made {
        block.buffer()?;
        block.check_client(first.client(), &|| format!("the block of {index:?}"))?;
        let found = Type::new(block.dtype(), block.shape());
        if found != expected {
            let found = format!("a block of {found} for the elements {index:?} of an array of the shape {shape:?}");
            let diag = Diag::new("sharding", At::Op, found, format!("every block is {expected}"));
            return Err(Error::operation(at, diag));
        }
    }
    let buffers = made.iter().map(|(_, block)| shared_buffer(block)).collect::<Result<Vec<_>>>()?;
    let ty = Type::new(expected.dtype, shape);
    if let Some(all) = process_group() {
        // The first element of a block tells it from all others.
        let number = |index: &[Range<usize>]| {
            let digit = |number: u64, (range, &n): (&Range<usize>, &usize)| {
                number.wrapping_mul(n as u64 + 1).wrapping_add(range.start as u64)
            };
            index.iter().zip(shape).fold(0, digit)
        };
        let parts = made
            .iter()
            .zip(&buffers)
            .map(|((index, _), buffer)| Ok((number(index), hash_elements(&buffer.contents()?))));
        let about = format!("{} on {mesh}", own.text(mesh));
        check_equal_elements(all, &ty, about, &parts.collect::<Result<Vec<_>>>()?, at)?;
    }
    let placement = MeshPlacement {
        mesh: mesh.clone(),
        sharding: own,
        ty,
        declared: Some(ShardingDeclaration { at, pattern: None }),
        is_cleared: false,
        receipts: [].into(),
    };
    let blocks = placement.into_sharded_blocks(by_position.into_iter().map(|number| buffers[number].clone()).collect());
    Ok(Array::from_blocks(expected.dtype, shape, blocks))
}

/// The memory of an array, shared with it; a copy for an array on a mesh.
fn shared_buffer(x: &Array) -> Result<Arc<Buffer>> {
    match x.contents() {
        ArrayContents::InMemory(buffer) => Ok(buffer.clone()),
        _ => Ok(Arc::new(Buffer::from_bytes(x.client(), &x.buffer()?.contents()?)?)),
    }
}

/// The block of an array on one device. It dereferences to the array of the block's elements.
#[derive(Clone, Debug)]
pub struct Shard {
    /// The device; 0 for an array that is not on a mesh.
    pub device: usize,
    /// The indices of its elements along each dimension of the whole array.
    pub index: Vec<Range<usize>>,
    /// Number of devices at lower positions that hold the same block.
    pub replica_id: usize,
    /// The elements of the block.
    pub data: Array,
}

impl std::ops::Deref for Shard {
    type Target = Array;
    fn deref(&self) -> &Array {
        &self.data
    }
}

impl Array {
    /// Mesh and sharding of an array; `None` for one that is not on a mesh, or is traced or poisoned.
    pub(crate) fn placement(&self) -> Option<&MeshPlacement> {
        match self.contents() {
            ArrayContents::Sharded(blocks) => Some(MeshPlacement::of_blocks(blocks)),
            ArrayContents::InMemory(_) | ArrayContents::Traced(_) | ArrayContents::Poisoned(_) => None,
        }
    }

    /// The blocks of a sharded array on this process' devices; empty for any other array.
    pub(crate) fn local_blocks(&self) -> &[Arc<Buffer>] {
        match self.contents() {
            ArrayContents::Sharded(blocks) => &blocks.blocks,
            ArrayContents::InMemory(_) | ArrayContents::Traced(_) | ArrayContents::Poisoned(_) => &[],
        }
    }

    /// Sharding of the array among the devices of a mesh; `None` if it is not on a mesh.
    pub fn sharding(&self) -> Option<&Sharding> {
        self.placement().map(|placement| &placement.sharding)
    }

    /// The blocks of this process' devices, in the order of their positions in the mesh; the whole array as one block
    /// if it is not on a mesh.
    ///
    /// # Errors
    /// A traced array; the error of a poisoned one.
    ///
    /// ```
    /// use pallas_rt::Array;
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::with_devices(&[("data", 2), ("model", 2)], vec![3, 2, 1, 0]).expect("a mesh"));
    /// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4])?;
    /// let shards = device_put(&x, &NamedSharding::new(&mesh, P("model")))?.addressable_shards()?;
    /// assert_eq!((shards[3].device, &shards[3].index[..], shards[3].replica_id), (0, &[2..4][..], 1));
    /// assert_eq!(shards[3].to_vec::<f32>()?, [3.0, 4.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    pub fn addressable_shards(&self) -> Result<Vec<Shard>> {
        let (ArrayContents::Sharded(blocks), Some(MeshPlacement { mesh, sharding, .. })) =
            (self.contents(), self.placement())
        else {
            self.buffer()?;
            let index = self.shape().iter().map(|&n| 0..n).collect();
            return Ok(vec![Shard { device: 0, index, replica_id: 0, data: self.clone() }]);
        };
        let local = sharding.local_shape(self.shape());
        let mut seen: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut own = local_device_positions(mesh)?.into_iter().zip(&blocks.blocks).peekable();
        let mut shards = vec![];
        // Blocks of other processes count as replicas, too.
        for position in 0..mesh.device_count() {
            let count = seen.entry(block_coordinates(mesh, sharding, position)).or_default();
            *count += 1;
            if let Some((_, block)) = own.next_if(|(own, _)| *own == position) {
                shards.push(Shard {
                    device: mesh.device(position),
                    index: block_ranges(mesh, sharding, self.shape(), position),
                    replica_id: *count - 1,
                    data: Array::from_shared_buffer(self.dtype(), &local, block.clone()),
                });
            }
        }
        Ok(shards)
    }
}
