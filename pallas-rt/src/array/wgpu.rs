//! Arrays in wgpu buffers of the program's own.
use super::{Array, host};
use crate::array::Client;
use pallas_device::error::Result;
use pallas_ir::DType;

impl Client {
    /// A client of a device that the program already has. Arrays can share its memory ([`Array::from_wgpu`],
    /// [`Array::wgpu_buffer`]), and kernels are submitted to its queue.
    ///
    /// The device's callbacks are not changed. A lost device is detected at the next read-back. Kernels are limited by
    /// the limits that the device was requested with: request those of the adapter.
    pub fn from_wgpu(device: wgpu::Device, queue: wgpu::Queue) -> Client {
        pallas_device::Client::from_wgpu(device, queue).into()
    }
}

impl Array {
    /// Returns an array in a buffer of the user's own. The buffer must belong to the device of `client` (see
    /// [`Client::from_wgpu`]), have the usages STORAGE, COPY_SRC and COPY_DST, and be long enough: the array's bytes
    /// rounded up to a multiple of 16. 8- and 16-bit elements are packed, as on the host.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) or [`Error::Length`](crate::Error::Length) if a requirement is
    /// not met.
    pub fn from_wgpu(client: &Client, buffer: wgpu::Buffer, dtype: DType, shape: &[usize]) -> Result<Array> {
        client.check_dtype(dtype)?;
        let buffer = client.wrap_wgpu_buffer(buffer, host::byte_count(dtype, shape)?, shape)?;
        Ok(Array::new(dtype, shape, buffer))
    }

    /// The wgpu buffer of an array on a GPU: at least the array's bytes rounded up to a multiple of 16;
    /// `None` for an array on the host.
    ///
    /// # Errors
    /// [`Error::Traced`](crate::Error::Traced) if it is traced; the error of a poisoned array.
    pub fn wgpu_buffer(&self) -> Result<Option<&wgpu::Buffer>> {
        Ok(self.buffer()?.wgpu())
    }
}
