//! Clients of this process' adapters, and clients of devices that the user created.
use super::adapter::{ADAPTERS, COOPERATIVE_MATRIX_FEATURE, describe_adapter, find_adapter, select_used_features};
use super::counters::GpuCounters;
use super::device::Gpu;
use super::gpu_buffers::GpuMemory;
use super::opengl_lock::WgpuLock;
use super::pipeline::experimental_features;
use crate::error::{Error, Result};
use crate::{Buffer, Client};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The shared client of each adapter in use, by `(gl, index)`.
static SHARED_CLIENTS: Mutex<BTreeMap<(bool, usize), Client>> = Mutex::new(BTreeMap::new());

/// The shared client of the adapter of this index, of OpenGL if `gl`; a new one if its device is lost.
pub(crate) fn shared_client(gl: bool, index: usize, why: &str) -> Result<Client> {
    let mut clients = SHARED_CLIENTS.lock();
    if let Some(client) = clients.get(&(gl, index)).filter(|client| !client.runtime().is_lost()) {
        return Ok(client.clone().with_choice_reason(why));
    }
    let client = fresh_client(gl, index, why)?;
    clients.insert((gl, index), client.clone());
    Ok(client)
}

/// Creates a client with a wgpu device of its own for the adapter of this index, among OpenGL's if `gl`; `why` is the
/// reason for the choice, for messages.
pub(crate) fn fresh_client(gl: bool, index: usize, why: &str) -> Result<Client> {
    let found = find_adapter(gl, index)?;
    let _turn = gl.then(WgpuLock::take);
    let matrices = found.device.target.matrices.is_some();
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("pallas"),
        required_features: select_used_features(found.adapter.features())
            | if matrices { COOPERATIVE_MATRIX_FEATURE } else { wgpu::Features::empty() },
        experimental_features: if matrices { experimental_features() } else { wgpu::ExperimentalFeatures::disabled() },
        // Default limits are 16 KiB of workgroup memory and 256 threads; request those of the adapter.
        required_limits: found.adapter.limits(),
        ..Default::default()
    };
    let (device, queue) = pollster::block_on(found.adapter.request_device(&descriptor)).map_err(|error| {
        let message = format!("{} refused: {error}", found.device);
        Error::NoDevice { asked: found.device.id(), found: message }
    })?;
    Ok(Client::new(Gpu::from_own_device(found.device.clone(), device, queue), why))
}

/// The client of the best hardware GPU, or the reason why there is none.
pub(crate) fn best_gpu_client() -> std::result::Result<Client, String> {
    match ADAPTERS.first() {
        None => Err("no GPU found".into()),
        Some(found) if found.device.software => Err(format!(
            "the only adapter is software ({}), slower than the CPU backend; PALLAS_DEVICE=gpu uses it",
            found.device.name
        )),
        Some(_) => shared_client(false, 0, "the best GPU of this machine").map_err(|error| error.to_string()),
    }
}

impl Client {
    /// A client of a wgpu device that the program has created; its callbacks are not changed.
    pub fn from_wgpu(device: wgpu::Device, queue: wgpu::Queue) -> Client {
        let description = describe_adapter(&device.adapter_info(), &device.limits(), device.features(), 0);
        Client::new(Gpu::from_user_device(description, device, queue), "around the program's own wgpu device")
    }

    /// The wgpu device and queue; `None` if the client is not a GPU's.
    pub fn wgpu(&self) -> Option<(&wgpu::Device, &wgpu::Queue)> {
        let gpu = (&**self.runtime() as &dyn Any).downcast_ref::<Gpu>()?;
        Some((&gpu.wgpu, &gpu.queue))
    }

    /// Counts of this client's pipelines and dispatches so far; zeros if it is not a GPU's.
    pub fn gpu_counters(&self) -> GpuCounters {
        self.gpu_runtime().map(|gpu| gpu.counts.snapshot()).unwrap_or_default()
    }

    /// The wgpu runtime; `None` if the client is not a GPU's.
    #[doc(hidden)]
    pub fn gpu_runtime(&self) -> Option<Arc<Gpu>> {
        let runtime: Arc<dyn Any + Send + Sync> = self.runtime().clone();
        runtime.downcast().ok()
    }

    /// Wraps a user's wgpu buffer as `bytes` bytes of memory for an array of this shape.
    #[doc(hidden)]
    pub fn wrap_wgpu_buffer(&self, buffer: wgpu::Buffer, bytes: usize, shape: &[usize]) -> Result<Buffer> {
        let Some(gpu) = self.gpu_runtime() else {
            return Err(Error::Unsupported {
                what: "wgpu buffers".into(),
                device: self.device().to_string(),
                help: "make the client with `Client::from_wgpu`",
            });
        };
        Ok(Buffer::from_user_memory(self, bytes, Box::new(gpu.wrap_wgpu_buffer(buffer, bytes, shape)?)))
    }
}

impl Buffer {
    /// The wgpu buffer; `None` if it is not on a GPU. Its size is a multiple of 16 bytes and may exceed
    /// [`Buffer::len`].
    pub fn wgpu(&self) -> Option<&wgpu::Buffer> {
        let memory: &dyn Any = self.device_memory()?;
        memory.downcast_ref::<GpuMemory>().map(GpuMemory::wgpu)
    }
}
