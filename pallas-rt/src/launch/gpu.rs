//! A bound call on a wgpu device.
use super::bind::Binding;
use super::cache::{Compiled, LAUNCHES};
use super::run;
use crate::gpu::{Binding as Bound, Dispatch, ShaderJob};
use crate::wgsl::{self, HEADER_WORDS, Shader};
use crate::{Array, Client, Error, Result};
use pallas_ir::{At, Diag, Kernel, Loc};
use std::sync::atomic::Ordering;

/// Scratch of one dispatch; more programs than fit run in several dispatches.
const SCRATCH_BYTES: u64 = 64 << 20;

/// Runs a kernel; returns before the device has finished, except where the driver's loop limit must be checked.
pub(super) fn run(client: &Client, compiled: &Compiled, binding: &mut Binding) -> Result<Vec<Array>> {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    let kernel = &compiled.lowered;
    let device = client.limits();
    let limits = wgsl::Limits {
        workgroup_bytes: device.workgroup_bytes,
        max_threads: device.max_threads.min(device.max_threads_per_axis[0]),
        max_loop_iterations: device.max_loop_iterations,
        profile: profile(device.profile)?,
    };
    // Clients with equal limits share a text; the pipeline cache is the device's own.
    let shader = compiled.backends.shader(limits, || wgsl::emit(kernel, &limits));
    let shader = shader.map_err(|d| Error::kernel(&kernel.name, Loc::NONE, "", d))?;
    let results = run::allocate(client, kernel, binding)?;
    let buffers = run::buffers(kernel, binding, &results);
    let bindings: Vec<Bound<'_>> = shader
        .bindings
        .iter()
        .map(|&(id, writable)| Bound { buffer: buffers[id.index()].expect("arrays have memory").buffer(), writable })
        .collect();
    let grid = run::parallel_grid(&compiled.traced, binding);
    let dispatches = dispatches(&shader, kernel, binding, &grid, device.max_workgroups_per_axis);
    let most = dispatches.iter().map(|(programs, _)| *programs).max().unwrap_or(0);
    let dispatches: Vec<Dispatch> = dispatches.into_iter().map(|(_, d)| d).collect();
    let gpu = client.gpu_runtime().expect("the client is a GPU's");
    let job = ShaderJob {
        label: &kernel.name,
        wgsl: &shader.text,
        trusted: true,
        workgroup: shader.threads,
        bindings: &bindings,
        dispatches: &dispatches,
        scratch_bytes: shader.scratch_words as u64 * 4 * most,
        error_flag: shader.error_flag,
    };
    let launch = gpu.run(&job)?;
    if shader.error_flag && launch.error_flag()?[0] != 0 {
        let limit = limits.max_loop_iterations.unwrap_or_default();
        let message =
            format!("a program needs more than the {limit} loop iterations after which {} stops it", client.device());
        let help = "use smaller blocks or fewer sequential steps, a newer driver, or the CPU";
        return Err(Error::kernel(&kernel.name, Loc::NONE, "", Diag::new("loop-limit", At::Op, message, help)));
    }
    drop(bindings);
    Ok(results)
}

/// How kernels are placed for a device; `PALLAS_PROFILE` overrides.
fn profile(device: crate::Profile) -> Result<wgsl::Profile> {
    let Ok(asked) = std::env::var("PALLAS_PROFILE") else {
        return Ok(match device {
            crate::Profile::SimtCpu => wgsl::Profile::SimtCpu,
            _ => wgsl::Profile::Gpu,
        });
    };
    wgsl::Profile::ALL.into_iter().find(|p| p.name() == asked).ok_or_else(|| {
        let known = wgsl::Profile::ALL.map(wgsl::Profile::name).join(", ");
        let message = format!("PALLAS_PROFILE is `{asked}`");
        Error::kernel("", Loc::NONE, "", Diag::new("profile", At::Op, message, format!("one of {known}")))
    })
}

/// The programs of each dispatch, and the dispatch.
fn dispatches(shader: &Shader, kernel: &Kernel, binding: &Binding, grid: &[i64], axis: u32) -> Vec<(u64, Dispatch)> {
    let total: u64 = grid.iter().map(|&n| n as u64).product();
    let per_program = (shader.scratch_words as u64 * 4).max(1);
    let chunk = (SCRATCH_BYTES / per_program).clamp(1, u64::from(axis) * u64::from(axis)).min(total.max(1));
    let tail: Vec<u32> = grid
        .iter()
        .chain(&run::sizes(kernel, binding))
        .map(|&n| n as u32)
        .chain(binding.params.iter().map(|p| p.map_or(0, |x| x.bits as u32)))
        .chain(shader.constants.iter().copied())
        .collect();
    (0..total.div_ceil(chunk))
        .map(|i| {
            let (first, count) = (i * chunk, chunk.min(total - i * chunk));
            let mut words = vec![0u32; HEADER_WORDS];
            (words[0], words[1], words[2]) = (first as u32, total as u32, count as u32);
            words.extend(&tail);
            words.resize(words.len().next_multiple_of(4), 0);
            let x = count.min(u64::from(axis));
            let uniform = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            (count, Dispatch { workgroups: [x as u32, count.div_ceil(x) as u32, 1], uniform })
        })
        .collect()
}
