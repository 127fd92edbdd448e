//! Block sizes of the kernels that fused operations become, by device.
use pallas_codegen::target::{Profile, Target};
use pallas_graph::fuse::DeviceLimits;

/// Returns the limits that a device sets to the kernels that fused operations become: block sizes, and numbers of
/// programs and operands.
pub(in crate::jit) fn device_limits(target: &Target) -> DeviceLimits {
    let budget = target.budget();
    let arena = 1 << 20;
    match target.cores {
        Some(cores) => DeviceLimits {
            programs: cores,
            tile: 1 << 14,
            columns: 64,
            folded: 1 << 16,
            adjacent: 1 << 12,
            product: [256, 512],
            panel: None,
            scattered: usize::MAX,
            sorted: usize::MAX,
            operands: usize::MAX,
            small: 1 << 18,
            steps: usize::MAX,
            arena,
        },
        // A program's tiles are in registers and workgroup memory.
        None => {
            let tile = budget.live_elements.min(1 << 14);
            let (product, panel) = match (target.profile, target.matrices) {
                // Small blocks in parallel, which read arrays through caches.
                (Profile::SimtCpu, _) => ([8, 64], 64),
                (_, Some(_)) => ([64, 64], 32),
                (_, None) => ([64, 64], 16),
            };
            DeviceLimits {
                programs: budget.programs,
                tile,
                columns: 1,
                folded: tile,
                adjacent: 64,
                product,
                panel: Some(panel),
                scattered: tile,
                // Two positions and a copy of each element; loops that a driver may bound.
                sorted: (target.workgroup_bytes as usize / 12).min(tile / 2),
                operands: target.storage_bindings as usize,
                small: 0,
                steps: 1 << 15,
                arena,
            }
        }
    }
}
