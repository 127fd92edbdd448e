//! What a device can do at most, measured now: fused multiply-adds in f32, and copied memory.
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

use pallas_rt::Client;

/// The device's own limits.
#[derive(Clone, Copy, Debug)]
pub struct Peak {
    /// Floating point operations a second; a fused multiply-add is two.
    pub flops: f64,
    /// Bytes a second, read and written ones both counted.
    pub bytes: f64,
}

/// Measures a client's device.
pub fn measure(client: &Client) -> Peak {
    #[cfg(feature = "gpu")]
    if let Some((device, queue)) = client.wgpu() {
        return gpu::measure(device, queue, client.device().software);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let elements = 16 << 20;
    let bytes = (8 * elements) as f64 / cpu::copy_seconds(elements, threads);
    let _ = client;
    Peak { flops: cpu::flops(threads), bytes }
}
