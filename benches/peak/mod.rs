//! Limits of a device, measured now: multiply-adds of each element type, and memory of each size.
pub mod cpu;
#[cfg(feature = "gpu")]
pub mod gpu;

use pallas_rt::Client;
use pallas_rt::ir::DType;

/// The device's own limits.
#[derive(Clone, Debug)]
pub struct Peak {
    /// Floating point operations a second in f32; a fused multiply-add is two.
    pub flops: f64,
    /// Operations a second of types whose limit is another one. No number: it is not known.
    narrow: Vec<(DType, Option<f64>)>,
    /// Bytes a second, read and written ones both counted, of memory that no cache holds.
    pub bytes: f64,
    /// The same of smaller sizes, in ascending order.
    levels: Vec<(usize, f64)>,
}

/// Bytes of memory whose speed is measured, besides 128 MiB, which no cache of a core holds.
const SIZES: [usize; 4] = [64 << 10, 512 << 10, 4 << 20, 32 << 20];

impl Peak {
    /// Operations a second on elements of a type, where the limit is known.
    pub fn flops_of(&self, dtype: DType) -> Option<f64> {
        let narrow = self.narrow.iter().find(|(narrow, _)| *narrow == dtype);
        narrow.map_or(Some(self.flops), |(_, flops)| *flops)
    }

    /// Bytes a second of what reads and writes so many: of the largest measured size that is no larger, so that none of
    /// its caches is left out.
    pub fn bytes_of(&self, bytes: usize) -> f64 {
        let within = self.levels.iter().rev().find(|(size, _)| *size <= bytes).or(self.levels.first());
        let level = within.map_or(self.bytes, |(_, rate)| *rate);
        if bytes >= 128 << 20 { self.bytes } else { level }
    }
}

/// Measures a client's device.
pub fn measure(client: &Client) -> Peak {
    #[cfg(feature = "gpu")]
    if let Some((device, queue)) = client.wgpu() {
        let (flops, bytes) = gpu::measure(device, queue, client.device().software);
        // Adapters have units for 16-bit floats and integers, and caches, of which WGSL says nothing.
        let narrow = [DType::F16, DType::Bf16, DType::I8].map(|dtype| (dtype, None)).to_vec();
        return Peak { flops, narrow, bytes, levels: vec![] };
    }
    let _ = client;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let narrow = [DType::Bf16, DType::I8].map(|dtype| (dtype, cpu::narrow_flops(dtype, threads))).to_vec();
    let levels = SIZES.map(|size| (size, cpu::bytes(size, threads))).to_vec();
    Peak { flops: cpu::flops(threads), narrow, bytes: cpu::bytes(128 << 20, threads), levels }
}
