//! What a call's shader may use and rely on.
use super::client::Client;
use super::limits::{DeviceLimits, Profile};
use super::runtime::Geometry;
use crate::error::{Error, Result};
use crate::wgsl;
use pallas_ir::{At, Diag, Kernel, Loc, Operand};

/// What the device has, and what is known of this call's sizes.
pub(crate) fn shader_limits(client: &Client, kernel: &Kernel, geometry: &Geometry) -> Result<wgsl::Limits> {
    let device = client.limits();
    let profile = profile(device)?;
    Ok(wgsl::Limits {
        workgroup_bytes: device.workgroup_bytes,
        max_threads: device.max_threads.min(device.max_threads_per_axis[0]),
        max_loop_iterations: device.max_loop_iterations,
        profile,
        // A software adapter computes a subgroup in the lanes of a vector.
        lanes: device.subgroup.filter(|(least, most)| least == most && client.device().software).map(|(n, _)| n),
        matrices: device.matrices.filter(|_| profile == wgsl::Profile::GpuCoop),
        multiples: multiples(kernel, geometry),
    })
}

/// Dimensions, bit by bit, that rows of arrays have and that are multiples of four in this call.
fn multiples(kernel: &Kernel, geometry: &Geometry) -> u64 {
    let rows = |name: &str| {
        let last = |o: &Operand| o.dims.len() > 1 && o.dims.last().is_some_and(|d| d.names().iter().any(|n| n == name));
        kernel.arrays().any(|(_, o)| last(o))
    };
    let sizes = geometry.sizes.iter().enumerate();
    let told = sizes.filter(|&(i, n)| i < 64 && n % 4 == 0 && rows(&kernel.dims[i].name));
    told.map(|(i, _)| 1 << i).sum()
}

/// How kernels are placed for a device; `PALLAS_PROFILE` overrides.
fn profile(device: &DeviceLimits) -> Result<wgsl::Profile> {
    let Ok(asked) = std::env::var("PALLAS_PROFILE") else {
        return Ok(match device.profile {
            Profile::SimtCpu => wgsl::Profile::SimtCpu,
            _ if device.matrices.is_some() => wgsl::Profile::GpuCoop,
            _ => wgsl::Profile::Gpu,
        });
    };
    wgsl::Profile::ALL.into_iter().find(|p| p.name() == asked).ok_or_else(|| {
        let known = wgsl::Profile::ALL.map(wgsl::Profile::name).join(", ");
        let message = format!("PALLAS_PROFILE is `{asked}`");
        Error::kernel("", Loc::NONE, "", Diag::new("profile", At::Op, message, format!("one of {known}")))
    })
}
