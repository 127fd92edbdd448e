//! Adapters of wgpu: a list with the best first, and their capabilities.
use crate::error::{Error, Result};
use crate::{Device, DeviceKind};
use pallas_codegen::target::{CooperativeMatrices, Profile, Target};
use std::sync::LazyLock;

/// Number of loop iterations after which lavapipe before Mesa 23 stops an invocation without an error.
const OLD_LAVAPIPE_MAX_ITERATIONS: u32 = 65_535;

/// An adapter and its description as a device.
pub(super) struct FoundAdapter {
    pub(super) adapter: wgpu::Adapter,
    pub(super) device: Device,
}

/// All adapters but OpenGL's, hardware ones first. Found once, since a search starts every driver.
pub(super) static ADAPTERS: LazyLock<Vec<FoundAdapter>> = LazyLock::new(|| find_adapters(wgpu::Backends::PRIMARY));
/// OpenGL adapters, which are only used if named explicitly: they are the same hardware with fewer features, usable by
/// one thread at a time, or software that is slower than the CPU backend.
static GL_ADAPTERS: LazyLock<Vec<FoundAdapter>> = LazyLock::new(|| find_adapters(wgpu::Backends::GL));

/// Finds the adapters of these backends that support compute shaders.
fn find_adapters(backends: wgpu::Backends) -> Vec<FoundAdapter> {
    use wgpu::DeviceType::{Cpu, DiscreteGpu, IntegratedGpu, Other, VirtualGpu};
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    let instance = wgpu::Instance::new(descriptor);
    let mut found = pollster::block_on(instance.enumerate_adapters(backends));
    found.retain(|adapter| adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS));
    let order = [DiscreteGpu, IntegratedGpu, VirtualGpu, Other, Cpu];
    found.sort_by_key(|adapter| order.iter().position(|kind| *kind == adapter.get_info().device_type));
    let describe = |(index, adapter): (usize, wgpu::Adapter)| {
        let mut device = describe_adapter(&adapter.get_info(), &adapter.limits(), adapter.features(), index);
        device.target.matrices = cooperative_matrices(&adapter);
        FoundAdapter { adapter, device }
    };
    found.into_iter().enumerate().map(describe).collect()
}

/// Descriptions of all adapters but OpenGL's, hardware ones first.
pub(crate) fn devices() -> Vec<Device> {
    ADAPTERS.iter().map(|found| found.device.clone()).collect()
}

/// Returns the adapter of this index: among OpenGL's if `gl`, else among those of the other backends.
pub(super) fn find_adapter(gl: bool, index: usize) -> Result<&'static FoundAdapter> {
    profile_from_env()?;
    let (all, name) = if gl { (&GL_ADAPTERS, "gl") } else { (&ADAPTERS, "gpu") };
    all.get(index).ok_or_else(|| Error::NoDevice { asked: format!("{name}:{index}"), found: format_adapters(all, gl) })
}

/// Text of an error that lists these adapters; if there are none, how to get one, of OpenGL if `gl`.
fn format_adapters(adapters: &[FoundAdapter], gl: bool) -> String {
    let names: Vec<String> = adapters.iter().map(|found| found.device.to_string()).collect();
    match names.is_empty() {
        true if gl => "no OpenGL adapter with compute shaders found; help: use `gpu` or `cpu`".into(),
        true => "no adapter found; help: install a Vulkan, Metal or DX12 driver (Debian: mesa-vulkan-drivers has a software one), ask for an OpenGL adapter by name: `gl`, or use `cpu`".into(),
        false => format!("there are {}", names.join(", ")),
    }
}

/// The experimental wgpu feature by which a subgroup's threads compute a matrix product together.
pub(super) const COOPERATIVE_MATRIX_FEATURE: wgpu::Features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;

/// The cooperative matrices that kernels use on an adapter: none on software adapters unless `PALLAS_PROFILE` asks for
/// them, and none where it asks for another profile.
fn cooperative_matrices(adapter: &wgpu::Adapter) -> Option<CooperativeMatrices> {
    let (info, features) = (adapter.get_info(), adapter.features());
    let real = info.device_type != wgpu::DeviceType::Cpu;
    let used = profile_from_env().is_ok_and(|asked| asked.map_or(real, |(_, matrices)| matrices));
    let there = features.contains(COOPERATIVE_MATRIX_FEATURE | wgpu::Features::SUBGROUP);
    let half = features.contains(wgpu::Features::SHADER_F16);
    let found = || choose_cooperative_matrices(&adapter.cooperative_matrix_properties(), half, info.subgroup_max_size);
    (used && there).then(found).flatten()
}

/// Chooses, among the matrix products that an adapter offers, the largest square one with f32 sums for each type of
/// factors, f16 only if `has_f16`; `None` if there is none.
fn choose_cooperative_matrices(
    products: &[wgpu::CooperativeMatrixProperties],
    has_f16: bool,
    subgroup_lanes: u32,
) -> Option<CooperativeMatrices> {
    use wgpu::CooperativeScalarType::{F16, F32};
    let largest = |factors| {
        let fits = |p: &&wgpu::CooperativeMatrixProperties| {
            let square = p.m_size == p.n_size && p.n_size == p.k_size && [8, 16].contains(&p.m_size);
            square && p.ab_type == factors && p.cr_type == F32
        };
        products.iter().filter(fits).map(|p| p.m_size).max()
    };
    let found =
        CooperativeMatrices { half: largest(F16).filter(|_| has_f16), float: largest(F32), lanes: subgroup_lanes };
    (found.half.is_some() || found.float.is_some()).then_some(found)
}

/// The features of an adapter that kernels use.
pub(super) fn select_used_features(features: wgpu::Features) -> wgpu::Features {
    let used = wgpu::Features::SUBGROUP
        | wgpu::Features::SUBGROUP_BARRIER
        | wgpu::Features::SHADER_F16
        | wgpu::Features::TIMESTAMP_QUERY;
    features & (used | wgpu::Features::PIPELINE_CACHE)
}

/// Describes an adapter or wgpu device as a [`Device`].
pub(super) fn describe_adapter(
    info: &wgpu::AdapterInfo,
    limits: &wgpu::Limits,
    features: wgpu::Features,
    index: usize,
) -> Device {
    let software = info.device_type == wgpu::DeviceType::Cpu;
    let driver = [info.driver.as_str(), info.driver_info.as_str()].join(" ").trim().to_string();
    let subgroup = features
        .contains(wgpu::Features::SUBGROUP | wgpu::Features::SUBGROUP_BARRIER)
        .then_some((info.subgroup_min_size, info.subgroup_max_size));
    Device {
        kind: DeviceKind::Gpu,
        index,
        name: info.name.clone(),
        api: backend_name(info.backend),
        driver,
        software,
        target: Target {
            profile: adapter_profile(software),
            workgroup_bytes: u64::from(limits.max_compute_workgroup_storage_size),
            max_threads: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
            max_workgroups_per_axis: limits.max_compute_workgroups_per_dimension,
            max_loop_iterations: max_loop_iterations(&info.name, &info.driver_info),
            storage_bindings: limits.max_storage_buffers_per_shader_stage.min(limits.max_bindings_per_bind_group),
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            max_buffer_bytes: limits.max_buffer_size,
            max_uniform_bytes: limits.max_uniform_buffer_binding_size,
            subgroup,
            // A software adapter executes the threads of a subgroup as lanes of a vector.
            lanes: subgroup.filter(|(least, most)| software && least == most).map(|(lanes, _)| lanes),
            has_f16: features.contains(wgpu::Features::SHADER_F16),
            has_timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            // wgpu does not report the number of cores; it reports matrices for an adapter, not for a device.
            ..Target::webgpu()
        },
    }
}

/// Name of a wgpu backend.
fn backend_name(backend: wgpu::Backend) -> &'static str {
    match backend {
        wgpu::Backend::Vulkan => "Vulkan",
        wgpu::Backend::Metal => "Metal",
        wgpu::Backend::Dx12 => "DX12",
        wgpu::Backend::Gl => Device::GL,
        wgpu::Backend::BrowserWebGpu => "WebGPU",
        wgpu::Backend::Noop => "no-op",
    }
}

/// The profile of an adapter. `PALLAS_PROFILE` overrides it, so that a software adapter can run shaders made for GPUs.
fn adapter_profile(is_software: bool) -> Profile {
    let own = if is_software { Profile::SimtCpu } else { Profile::Gpu };
    profile_from_env().ok().flatten().map_or(own, |(profile, _)| profile)
}

/// The profile that `PALLAS_PROFILE` asks for, and whether products use cooperative matrices; `None` if it is not set.
///
/// # Errors
/// The value is not a profile that shaders are generated for.
fn profile_from_env() -> Result<Option<(Profile, bool)>> {
    let Ok(value) = std::env::var("PALLAS_PROFILE") else { return Ok(None) };
    if value == "gpu_coop" {
        return Ok(Some((Profile::Gpu, true)));
    }
    let found = Profile::SHADERS.into_iter().find(|profile| profile.name() == value);
    let allowed = "baseline, gpu, gpu_coop, simt_cpu";
    let refused = || Error::Environment { variable: "PALLAS_PROFILE", value, allowed };
    found.map(|profile| Some((profile, false))).ok_or_else(refused)
}

/// Maximum number of loop iterations on an adapter: limited for llvmpipe (lavapipe is its Vulkan driver) before Mesa 23
/// or of unknown version; `None` for all others, which have no limit.
fn max_loop_iterations(adapter_name: &str, driver_info: &str) -> Option<u32> {
    if !adapter_name.starts_with("llvmpipe") {
        return None;
    }
    let version = driver_info.split("Mesa ").nth(1);
    let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    major.is_none_or(|major| major < 23).then_some(OLD_LAVAPIPE_MAX_ITERATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_are_square_and_sum_in_f32() {
        use wgpu::CooperativeScalarType::{F16, F32, I32};
        let product = |[m_size, n_size, k_size]: [u32; 3], ab_type, cr_type| wgpu::CooperativeMatrixProperties {
            m_size,
            n_size,
            k_size,
            ab_type,
            cr_type,
            saturating_accumulation: false,
        };
        let check = |products: &[_], half, expected: Option<(Option<u32>, Option<u32>)>| {
            let expected = expected.map(|(half, float)| CooperativeMatrices { half, float, lanes: 32 });
            assert_eq!(choose_cooperative_matrices(products, half, 32), expected);
        };
        let apple = [product([8; 3], F32, F32), product([8; 3], F16, F16), product([8; 3], F16, F32)];
        check(&apple, true, Some((Some(8), Some(8))));
        check(&apple, false, Some((None, Some(8))));
        let nvidia = [product([16, 8, 16], F16, F32), product([16; 3], F16, F16), product([16; 3], F16, F32)];
        check(&nvidia, true, Some((Some(16), None)));
        check(&nvidia, false, None);
        check(&[product([16; 3], F16, F16), product([8, 16, 16], F16, F32), product([16; 3], I32, I32)], true, None);
    }
    #[test]
    fn old_lavapipe_is_known() {
        let check = |name, info, expected| assert_eq!(max_loop_iterations(name, info), expected, "{name}, {info}");
        check("llvmpipe (LLVM 15.0.6, 256 bits)", "Mesa 22.3.6 (LLVM 15.0.6)", Some(65_535));
        check("llvmpipe (LLVM 15.0.6, 256 bits)", "4.5 (Core Profile) Mesa 22.3.6", Some(65_535));
        check("llvmpipe (LLVM 19.1.7, 256 bits)", "Mesa 25.0.7-2 (LLVM 19.1.7)", None);
        check("llvmpipe", "unheard of", Some(65_535));
        check("AMD Radeon RX 6600 (RADV NAVI23)", "Mesa 22.3.6", None);
        check("NVIDIA H100", "550.54", None);
    }
}
