//! The blocks of an array, cut and put together.
use super::receipt::Receipt;
use crate::array::Client;
use crate::array::ShardedBlocks;
use crate::collective::Collectives;
use pallas_device::Buffer;
use pallas_device::collective::process_group;
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::{Mesh, Sharding, axes_text};
use pallas_ir::{At, Diag, Loc, Type};
use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Mesh and sharding of a placed array, with its type, the user's declaration, and the receipts of the last collectives
/// that it depends on.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct MeshPlacement {
    pub mesh: Arc<Mesh>,
    pub sharding: Sharding,
    /// The type of the whole array.
    pub ty: Type,
    /// The user's declaration; `None` if a function placed the array, which is no declaration.
    pub declared: Option<ShardingDeclaration>,
    /// True if the user took the declaration back with `clear_sharding`.
    pub is_cleared: bool,
    /// The last collectives that the array depends on.
    pub receipts: Arc<[Receipt]>,
}

/// Source of a sharding that the user declared for an array: the line, and the pattern of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShardingDeclaration {
    /// The line that declares it.
    pub at: Loc,
    /// The pattern of a policy that the array's path has matched; `None` without a policy.
    pub pattern: Option<Arc<str>>,
}

impl MeshPlacement {
    /// Joins this placement with the blocks of this process' devices, in the order of their positions.
    pub(crate) fn into_sharded_blocks(self, blocks: Vec<Arc<Buffer>>) -> Arc<ShardedBlocks> {
        Arc::new(ShardedBlocks::new(blocks, Box::new(self), join_blocks))
    }

    /// The sharding of the array on a mesh, in normal form; `None` if that mesh has other devices, or axes that cannot
    /// express it.
    pub(crate) fn sharding_on_mesh(&self, mesh: &Mesh) -> Option<Sharding> {
        match *self.mesh == *mesh {
            true => Some(self.sharding.normal(mesh)),
            false => mesh.translate_sharding(&self.mesh, &self.sharding),
        }
    }

    /// Reorders blocks to the positions on a mesh of the same devices. `None` for other devices, and where a process of
    /// a job would have other positions.
    pub(crate) fn reorder_blocks_for_mesh(&self, mesh: &Mesh, blocks: &[Arc<Buffer>]) -> Option<Vec<Arc<Buffer>>> {
        let positions = mesh.positions_of(&self.mesh)?;
        if positions.iter().copied().eq(0..positions.len()) {
            return Some(blocks.to_vec());
        }
        let mut all: Vec<(usize, &Arc<Buffer>)> = positions.iter().copied().zip(blocks).collect();
        all.sort_by_key(|(position, _)| *position);
        process_group().is_none().then(|| all.into_iter().map(|(_, block)| block.clone()).collect())
    }

    /// The placement that the blocks were joined with.
    pub(crate) fn of_blocks(blocks: &ShardedBlocks) -> &MeshPlacement {
        let about: &dyn Any = &*blocks.about;
        about.downcast_ref().expect("blocks have a placement")
    }
}

/// The index of a position's block along each dimension.
pub(super) fn block_coordinates(mesh: &Mesh, sharding: &Sharding, position: usize) -> Vec<usize> {
    sharding.dims.iter().map(|dim| mesh.index(position, &dim.axes)).collect()
}

/// The elements of an array that are in the block of a position: their range of indices along each dimension.
pub(super) fn block_ranges(mesh: &Mesh, sharding: &Sharding, shape: &[usize], position: usize) -> Vec<Range<usize>> {
    let local = sharding.local_shape(shape);
    let place = block_coordinates(mesh, sharding, position);
    let along = |d: usize| (place[d] * local[d]).min(shape[d])..((place[d] + 1) * local[d]).min(shape[d]);
    (0..shape.len()).map(along).collect()
}

/// The positions of this process' devices, in ascending order.
///
/// # Errors
/// A mesh whose devices the processes cannot share evenly.
pub(crate) fn local_device_positions(mesh: &Arc<Mesh>) -> Result<Vec<usize>> {
    match process_group() {
        Some(all) => Ok(all.participant(mesh)?.positions().to_vec()),
        None => Ok((0..mesh.device_count()).collect()),
    }
}

/// Cuts a whole array into the blocks of this process' positions; equal blocks are one buffer. Elements beyond the
/// array are zero.
pub(crate) fn split_into_blocks(
    client: &Client,
    mesh: &Arc<Mesh>,
    sharding: &Sharding,
    ty: &Type,
    whole: &Buffer,
) -> Result<Vec<Arc<Buffer>>> {
    let contents = whole.contents()?;
    let (bytes, local) = (ty.dtype.bytes(), sharding.local_shape(&ty.shape));
    let mut known: HashMap<Vec<usize>, Arc<Buffer>> = HashMap::new();
    let block = |position: usize| {
        let place = block_coordinates(mesh, sharding, position);
        if let Some(block) = known.get(&place) {
            return Ok(block.clone());
        }
        let mut block = vec![0; local.iter().product::<usize>() * bytes];
        for_each_shared_row(&ty.shape, &local, &place, bytes, |whole, own, n| {
            block[own..own + n].copy_from_slice(&contents[whole..whole + n]);
        });
        let block = Arc::new(Buffer::from_bytes(client, &block)?);
        known.insert(place, block.clone());
        Ok(block)
    };
    local_device_positions(mesh)?.into_iter().map(block).collect()
}

/// Joins the blocks to the whole array. In a job the processes send each other the blocks that they have, so that all
/// of them must call this.
fn join_blocks(blocks: &ShardedBlocks) -> Result<Buffer> {
    let MeshPlacement { mesh, sharding, ty, .. } = MeshPlacement::of_blocks(blocks);
    if !sharding.unreduced.is_empty() {
        let found =
            format!("an array whose devices have parts of a sum along {}", axes_text(&sharding.unreduced, mesh));
        return Err(Error::operation(Loc::NONE, Diag::new("read", At::Op, found, "reduce it over these axes first")));
    }
    let (bytes, local) = (ty.dtype.bytes(), sharding.local_shape(&ty.shape));
    let mut whole = vec![0; ty.bytes()];
    // Each different block is taken from the first position that has it.
    let mut seen: HashSet<Vec<usize>> = HashSet::new();
    let places = (0..mesh.device_count()).map(|position| (position, block_coordinates(mesh, sharding, position)));
    let givers: Vec<(usize, Vec<usize>)> = places.filter(|(_, place)| seen.insert(place.clone())).collect();
    let own: HashMap<usize, &Arc<Buffer>> = local_device_positions(mesh)?.into_iter().zip(&blocks.blocks).collect();
    let mut put = |place: &[usize], contents: &[u8]| {
        for_each_shared_row(&ty.shape, &local, place, bytes, |at, own, n| {
            whole[at..at + n].copy_from_slice(&contents[own..own + n]);
        });
    };
    match process_group() {
        None => {
            for (position, place) in &givers {
                put(place, &own[position].contents()?);
            }
        }
        Some(all) => {
            let participant = all.participant(mesh)?;
            let given = givers.iter().filter_map(|(position, _)| own.get(position));
            let given = given.map(|block| block.contents()).collect::<Result<Vec<_>>>()?.concat();
            let about = format!("{} on {mesh}", sharding.text(mesh));
            let found = all.all_gather(&format!("read of {ty}"), about, Loc::NONE, given)?;
            let size = local.iter().product::<usize>() * bytes;
            let mut taken = vec![0; found.len()];
            for (position, place) in &givers {
                let rank = participant.ranks_by_position()[*position];
                put(place, &found[rank][taken[rank]..][..size]);
                taken[rank] += size;
            }
        }
    }
    Buffer::from_bytes(blocks.blocks[0].client(), &whole)
}

/// Calls `copy_row` for each row that an array and its block with the index `block_indices` along each dimension share,
/// with the offset in the array, the offset in the block, and the row's length, all in bytes.
fn for_each_shared_row(
    shape: &[usize],
    block_shape: &[usize],
    block_indices: &[usize],
    element_bytes: usize,
    mut copy_row: impl FnMut(usize, usize, usize),
) {
    let first: Vec<usize> = block_shape.iter().zip(block_indices).map(|(n, at)| n * at).collect();
    // Extents that lie inside of the array.
    let inside: Vec<usize> = (0..shape.len()).map(|d| block_shape[d].min(shape[d].saturating_sub(first[d]))).collect();
    if inside.contains(&0) {
        return;
    }
    let Some((&columns, outer)) = inside.split_last() else { return copy_row(0, 0, element_bytes) };
    let mut at = vec![0; outer.len()];
    loop {
        let (mut whole, mut own) = (0, 0);
        for d in 0..outer.len() {
            whole = (whole + first[d] + at[d]) * shape[d + 1];
            own = (own + at[d]) * block_shape[d + 1];
        }
        copy_row((whole + first[outer.len()]) * element_bytes, own * element_bytes, columns * element_bytes);
        let next = (0..outer.len()).rev().find(|&d| at[d] + 1 < outer[d]);
        let Some(d) = next else { return };
        at[d] += 1;
        at[d + 1..].fill(0);
    }
}
