//! Sharded arrays: blocks on the devices of a mesh.
use crate::array::Client;
use pallas_device::Buffer;
use pallas_device::error::Result;
use std::any::Any;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};

/// Mesh and sharding of an array, as a value whose type this module does not know.
pub(crate) type ErasedSharding = dyn Any + Send + Sync + UnwindSafe + RefUnwindSafe;

/// The blocks of an array on the devices of a mesh.
pub(crate) struct ShardedBlocks {
    /// A block for each device, by the device's position in the mesh; blocks of equal contents may be the same.
    pub blocks: Vec<Arc<Buffer>>,
    /// The mesh and the sharding, which this module does not know.
    pub about: Box<ErasedSharding>,
    join: fn(&ShardedBlocks) -> Result<Buffer>,
    whole: OnceLock<Arc<Buffer>>,
}

impl ShardedBlocks {
    /// Makes a sharded array of blocks, at least one, which `assemble` puts together to the whole array.
    pub(crate) fn new(
        blocks: Vec<Arc<Buffer>>,
        placement: Box<ErasedSharding>,
        assemble: fn(&ShardedBlocks) -> Result<Buffer>,
    ) -> ShardedBlocks {
        ShardedBlocks { blocks, about: placement, join: assemble, whole: OnceLock::new() }
    }

    pub(super) fn client(&self) -> &Client {
        Client::wrap_device_client(self.blocks[0].client())
    }

    /// Returns the whole array in one buffer, which is put together at the first call.
    pub(super) fn assembled_buffer(&self) -> Result<&Arc<Buffer>> {
        if let Some(whole) = self.whole.get() {
            return Ok(whole);
        }
        let whole = Arc::new((self.join)(self)?);
        Ok(self.whole.get_or_init(|| whole))
    }
}
