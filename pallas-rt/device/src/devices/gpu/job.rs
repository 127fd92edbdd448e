//! Jobs: launches of a shader with its bindings and dispatches.
use super::command_encoder::{ERROR_FLAG_WORDS, ErrorCheck, check_error_flag};
use super::device::Gpu;
use super::gpu_buffers::{GpuMemory, bind_prefix};
use crate::Buffer;
use crate::devices::runtime::Runtime;
use crate::devices::storage::DeviceMemory;
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One launch of a shader. All its bindings are in group 0:
///
/// | binding | what |
/// |---|---|
/// | 0 | `var<uniform>`: the dispatch's `uniform` bytes |
/// | 1.. | `var<storage, read>` or `read_write`: `bindings` in order |
/// | next, if `scratch_bytes > 0` | `var<storage, read_write>`: scratch, contents unspecified |
/// | next, if `error_flag` | `var<storage, read_write>`: [`ERROR_FLAG_WORDS`] words, zero at first |
///
/// The entry point is `main`. A buffer that is written must be bound once only.
pub struct ShaderJob<'a> {
    /// Name of the kernel, for messages and tools.
    pub label: &'a str,
    /// Text of the shader.
    pub wgsl: &'a str,
    /// True if all accesses, loops and divisions are proven safe, so that the driver needs no checks.
    pub trusted: bool,
    /// Number of threads of a workgroup.
    pub workgroup: u32,
    /// The arrays, each with true if the shader writes it.
    pub bindings: &'a [(&'a Buffer, bool)],
    /// The dispatches, run one after the other; each sees what earlier ones wrote.
    pub dispatches: &'a [Dispatch],
    /// Bytes of scratch memory, shared by all dispatches.
    pub scratch_bytes: u64,
    /// True if the shader has an error flag.
    pub error_flag: bool,
}

/// One dispatch of a [`ShaderJob`]: its numbers of workgroups, and the contents of its uniform buffer.
pub struct Dispatch {
    /// Number of workgroups along each axis.
    pub workgroups: [u32; 3],
    /// Contents of the uniform buffer.
    pub uniform: Vec<u8>,
}

impl ShaderJob<'_> {
    /// Flags of the storage bindings from binding 1 on (arrays, then scratch, then the error flag): true if the shader
    /// writes the binding.
    pub(super) fn storage_write_flags(&self) -> impl Iterator<Item = bool> {
        let own = usize::from(self.scratch_bytes > 0) + usize::from(self.error_flag);
        self.bindings.iter().map(|&(_, written)| written).chain(std::iter::repeat_n(true, own))
    }

    /// Size of the error flag in bytes.
    pub(super) const ERROR_FLAG_BYTES: u64 = ERROR_FLAG_WORDS as u64 * 4;
}

impl Gpu {
    /// Submits a job. Returns without waiting for it, unless it has an error flag, which is then read and passed to
    /// `check`; inside of a program of several launches that happens at the program's end.
    ///
    /// # Errors
    /// [`Error::Limit`], [`Error::Shader`], [`Error::Memory`], [`Error::ForeignClient`], [`Error::DeviceLost`]; nothing
    /// has run then, and the device goes on working. Those of `check`.
    ///
    /// # Safety
    /// The shader of a `trusted` job accesses nothing outside of its bindings, and its loops end.
    pub unsafe fn run_job(self: &Arc<Self>, job: &ShaderJob, check: ErrorCheck) -> Result<()> {
        self.check_device_not_lost()?;
        let _turn = self.lock_wgpu();
        self.check_device_limits(job)?;
        let resources = LaunchResources {
            pipeline: self.find_or_compile_pipeline(job)?,
            scratch: (job.scratch_bytes > 0).then(|| self.allocate_buffer(job.scratch_bytes, false)).transpose()?,
            uniforms: JobUniforms::new(self, job)?,
            flag: job.error_flag.then(|| ErrorFlag::new(self, check)).transpose()?,
        };
        let action = format!("run kernel `{}`", job.label);
        let group = self.try_action(&action, || self.create_bind_group(job, &resources))?;
        self.encode(&action, |encoder| record_dispatches(encoder, job, &group, &resources))?;
        self.counts.dispatches.fetch_add(job.dispatches.len() as u64, Relaxed);
        // Frees the resources of finished work; never waits.
        self.poll(wgpu::PollType::Poll)?;
        if let Some(ErrorFlag { own: Some((memory, check)), .. }) = resources.flag {
            check_error_flag(check, &memory.read(ERROR_FLAG_WORDS * 4)?)?;
        }
        Ok(())
    }

    /// Refuses jobs beyond the device's limits, with better messages than the driver's.
    fn check_device_limits(&self, job: &ShaderJob) -> Result<()> {
        let limits = &self.device().target;
        let within = |what: &str, asked: u64, limit: u64, help| {
            let what = format!("{what} in kernel `{}`", job.label);
            let device = self.device().to_string();
            if asked <= limit { Ok(()) } else { Err(Error::Limit { what, asked, limit, device, help }) }
        };
        let bindings = job.storage_write_flags().count() as u64;
        within("storage bindings", bindings, limits.storage_bindings.into(), "pass fewer arrays, or use the CPU")?;
        within("threads a workgroup", job.workgroup.into(), limits.max_threads.into(), "use smaller blocks")?;
        within(
            "bytes of scratch",
            job.scratch_bytes,
            limits.max_binding_bytes,
            "use smaller blocks or a smaller grid",
        )?;
        for dispatch in job.dispatches {
            let most = dispatch.workgroups.into_iter().max().unwrap_or(0);
            within(
                "workgroups along an axis",
                most.into(),
                limits.max_workgroups_per_axis.into(),
                "use larger blocks",
            )?;
            within("uniform bytes", dispatch.uniform.len() as u64, limits.max_uniform_bytes, "pass fewer scalars")?;
        }
        for (buffer, _) in job.bindings {
            within("bytes in one array", buffer.len() as u64, limits.max_binding_bytes, "split the array")?;
            if !buffer.client().gpu_runtime().is_some_and(|home| std::ptr::eq(&*home, self)) {
                return Err(Error::ForeignClient {
                    called: pallas_ir::Loc::NONE,
                    what: format!("an array given to kernel `{}`", job.label),
                    found: buffer.client().why(),
                    expected: self.device().to_string(),
                });
            }
        }
        Ok(())
    }

    /// Creates the wgpu bind group of a job: its uniforms, arrays, scratch and error flag, in the order of the
    /// bindings.
    fn create_bind_group(&self, job: &ShaderJob, resources: &LaunchResources) -> wgpu::BindGroup {
        let LaunchResources { pipeline, scratch, uniforms, flag } = resources;
        let bound = std::iter::once(bind_range(&uniforms.buffer, uniforms.offset, uniforms.size))
            .chain(job.bindings.iter().map(|(array, _)| {
                bind_prefix(array.wgpu().expect("checked: the array lives on this device"), array.len() as u64)
            }))
            .chain(scratch.iter().map(|memory| bind_prefix(memory.wgpu(), job.scratch_bytes)))
            .chain(flag.iter().map(|flag| bind_range(&flag.buffer, flag.offset, ShaderJob::ERROR_FLAG_BYTES)));
        let entry = |(i, resource)| wgpu::BindGroupEntry { binding: i as u32, resource };
        let entries: Vec<_> = bound.enumerate().map(entry).collect();
        self.wgpu.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(job.label),
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        })
    }
}

/// Records the dispatches of a job as commands.
fn record_dispatches(
    encoder: &mut wgpu::CommandEncoder,
    job: &ShaderJob,
    group: &wgpu::BindGroup,
    resources: &LaunchResources,
) {
    let LaunchResources { pipeline, uniforms, flag, .. } = resources;
    if let Some(ErrorFlag { own: Some((memory, _)), .. }) = flag {
        // The memory may be reused, with the flag of an earlier launch.
        encoder.clear_buffer(memory.wgpu(), 0, None);
    }
    let mut pass =
        encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: Some(job.label), timestamp_writes: None });
    pass.set_pipeline(pipeline);
    for (i, dispatch) in job.dispatches.iter().enumerate() {
        let [x, y, z] = dispatch.workgroups;
        if x > 0 && y > 0 && z > 0 {
            pass.set_bind_group(0, group, &[(uniforms.stride * i as u64) as u32]);
            pass.dispatch_workgroups(x, y, z);
        }
    }
}

/// Binds a range of bytes of a buffer.
fn bind_range(buffer: &wgpu::Buffer, offset: u64, bytes: u64) -> wgpu::BindingResource<'_> {
    wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: wgpu::BufferSize::new(bytes) })
}

/// The pipeline of a launch, and its memory apart from arrays.
struct LaunchResources {
    pipeline: wgpu::ComputePipeline,
    scratch: Option<GpuMemory>,
    uniforms: JobUniforms,
    flag: Option<ErrorFlag>,
}

/// The error flag of a launch: its place in a buffer.
struct ErrorFlag {
    buffer: wgpu::Buffer,
    offset: u64,
    /// Its memory and the function that checks it, unless the program of several launches has them.
    own: Option<(GpuMemory, ErrorCheck)>,
}

impl ErrorFlag {
    /// Takes a place for the flag in memory that the launches recorded on this thread share; allocates memory if the
    /// thread is not recording.
    fn new(gpu: &Arc<Gpu>, check: ErrorCheck) -> Result<ErrorFlag> {
        Ok(match gpu.allocate_error_flag(check)? {
            Ok((buffer, offset)) => ErrorFlag { buffer, offset, own: None },
            Err(check) => {
                let memory = gpu.allocate_buffer(ShaderJob::ERROR_FLAG_BYTES, false)?;
                ErrorFlag { buffer: memory.wgpu().clone(), offset: 0, own: Some((memory, check)) }
            }
        })
    }
}

/// The uniform bytes of a job's dispatches, in one buffer.
struct JobUniforms {
    buffer: wgpu::Buffer,
    /// Offset in bytes at which they begin.
    offset: u64,
    /// Number of bytes of one dispatch.
    size: u64,
    /// Distance in bytes between the uniforms of consecutive dispatches.
    stride: u64,
    /// The memory of the buffer, unless a program of several launches owns it.
    _own: Option<GpuMemory>,
}

impl JobUniforms {
    /// Uploads the uniform bytes of all dispatches.
    fn new(gpu: &Arc<Gpu>, job: &ShaderJob) -> Result<JobUniforms> {
        let longest = job.dispatches.iter().map(|dispatch| dispatch.uniform.len()).max().unwrap_or(0);
        let size = (longest as u64).max(16).next_multiple_of(16);
        let stride = size.next_multiple_of(gpu.wgpu.limits().min_uniform_buffer_offset_alignment.into());
        let mut bytes = vec![0; (stride as usize) * job.dispatches.len()];
        for (place, dispatch) in bytes.chunks_exact_mut(stride as usize).zip(job.dispatches) {
            place[..dispatch.uniform.len()].copy_from_slice(&dispatch.uniform);
        }
        if let Some((buffer, offset)) = gpu.allocate_uniforms(&bytes)? {
            return Ok(JobUniforms { buffer, offset, size, stride, _own: None });
        }
        let memory = gpu.allocate_buffer(bytes.len() as u64, false)?;
        // No recorded command uses the memory, so the upload may come before them.
        memory.upload(&bytes)?;
        Ok(JobUniforms { buffer: memory.wgpu().clone(), offset: 0, size, stride, _own: Some(memory) })
    }
}
