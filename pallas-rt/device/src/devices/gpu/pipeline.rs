//! Compilation of shaders to pipelines, cached. The only `unsafe` of `gpu`.
use super::device::{CaughtError, Gpu, PipelineSlot};
use super::job::ShaderJob;
use crate::devices::runtime::Runtime;
use crate::disk::{self, EntryKey};
use crate::error::{Error, Result};
use crate::timeline;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Key of a job's pipeline on a device: hash of the text, whether it is trusted, and what it binds.
fn pipeline_fingerprint(job: &ShaderJob) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        (job.wgsl, job.trusted, job.scratch_bytes > 0, job.error_flag).hash(&mut hasher);
        job.bindings.iter().for_each(|(_, written)| written.hash(&mut hasher));
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

impl Gpu {
    /// The pipeline of a job: compiled at its first use, then cached. A shader that is refused is not cached.
    pub(super) fn find_or_compile_pipeline(&self, job: &ShaderJob) -> Result<wgpu::ComputePipeline> {
        let key = pipeline_fingerprint(job);
        let slot =
            self.pipelines.get(&key).unwrap_or_else(|| self.pipelines.get_or_insert(key, PipelineSlot::default()));
        let mut slot = slot.lock();
        if let Some(pipeline) = &*slot {
            return Ok(pipeline.clone());
        }
        let start = Instant::now();
        let pipeline = self.compile_pipeline(job)?;
        self.counts.compiled.fetch_add(1, Relaxed);
        timeline::log_compiled(|| {
            let (device, ms) = (self.device().id(), start.elapsed().as_secs_f64() * 1e3);
            let (lines, key) = (job.wgsl.lines().count(), key as u64);
            format!("compiled {} for {device} in {ms:.1} ms ({lines} lines, {key:016x})", job.label)
        });
        Ok(slot.insert(pipeline).clone())
    }

    /// Compiles the pipeline of a job, with the driver's binary from disk if there is one; stores the resulting binary.
    fn compile_pipeline(&self, job: &ShaderJob) -> Result<wgpu::ComputePipeline> {
        self.check_device_not_lost()?;
        let kept = disk::disk_store().zip(self.pipeline_binary_key(job));
        let stored = kept.as_ref().and_then(|(store, key)| store.read(key));
        let binary = kept.as_ref().and_then(|_| self.create_binary_cache(stored.as_deref()));
        let pipeline = self.create_pipeline(job, binary.as_ref())?;
        if let (Some((store, key)), Some(made)) = (kept, binary.and_then(|binary| binary.get_data())) {
            // A driver that rejects the stored binary makes a new one.
            if stored.is_some_and(|stored| stored == made) {
                self.counts.reused.fetch_add(1, Relaxed);
                store.record_hit(&key);
            } else {
                store.write(&key, &made);
            }
        }
        Ok(pipeline)
    }

    /// Key of a pipeline's binary on disk, made of everything that determines it; `None` if the driver does not provide
    /// binaries.
    fn pipeline_binary_key(&self, job: &ShaderJob) -> Option<EntryKey> {
        if !self.wgpu.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let info = self.wgpu.adapter_info();
        let adapter = wgpu::util::pipeline_cache_key(&info)?;
        let bound: Vec<bool> = job.storage_write_flags().collect();
        let form = format!("{} {bound:?}", job.trusted);
        Some(EntryKey::new("binary", &[&adapter, &info.name, &info.driver, &info.driver_info, &form, job.wgsl]))
    }

    /// Creates a wgpu cache for the binary of one pipeline, with the contents `stored` if there are any; `None` if the
    /// driver refuses it.
    fn create_binary_cache(&self, stored: Option<&[u8]>) -> Option<wgpu::PipelineCache> {
        let label = Some("pallas");
        let descriptor = wgpu::PipelineCacheDescriptor { label, data: stored, fallback: true };
        // SAFETY: the bytes were given by `get_data` in a process that had this adapter and driver, which are part of
        // their key, and their checksum was right. wgpu and the driver look at their own headers besides.
        self.capture_error(|| unsafe { self.wgpu.create_pipeline_cache(&descriptor) }).ok()
    }

    /// Creates the pipeline of a job; `binary` provides the driver's stored binary and receives a new one, or is `None`
    /// if binaries are not kept.
    fn create_pipeline(&self, job: &ShaderJob, binary: Option<&wgpu::PipelineCache>) -> Result<wgpu::ComputePipeline> {
        self.capture_error(|| {
            let module = self.create_shader_module(job);
            let layout = self.create_pipeline_layout(job);
            self.wgpu.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(job.label),
                layout: Some(&layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    // Kernels write workgroup memory before they read it.
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: binary,
            })
        })
        .map_err(|caught| match (self.check_device_not_lost(), caught) {
            (Err(lost), _) => lost,
            (Ok(()), CaughtError::Memory(message) | CaughtError::Refused(message)) => {
                Error::Shader { kernel: job.label.into(), at: String::new(), message }
            }
        })
    }

    /// Creates the shader module of a job, without run-time checks if it is trusted.
    fn create_shader_module(&self, job: &ShaderJob) -> wgpu::ShaderModule {
        let source = wgpu::ShaderSource::Wgsl(job.wgsl.into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(job.label), source };
        if !job.trusted {
            return self.wgpu.create_shader_module(descriptor);
        }
        // SAFETY: who sets `trusted` has proven each access of the text within its binding, or clamped it, and each of
        // its loops and divisions bounded.
        unsafe { self.wgpu.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked()) }
    }

    /// Creates the layout of a job's bindings: from the job and not from the text, so that unused bindings keep their
    /// numbers.
    fn create_pipeline_layout(&self, job: &ShaderJob) -> wgpu::PipelineLayout {
        let buffer = |binding, ty, has_dynamic_offset| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset, min_binding_size: None },
            count: None,
        };
        let mut entries = vec![buffer(0, wgpu::BufferBindingType::Uniform, true)];
        for writable in job.storage_write_flags() {
            let ty = wgpu::BufferBindingType::Storage { read_only: !writable };
            entries.push(buffer(entries.len() as u32, ty, false));
        }
        let group = self
            .wgpu
            .create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(job.label), entries: &entries });
        self.wgpu.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(job.label),
            bind_group_layouts: &[Some(&group)],
            immediate_size: 0,
        })
    }
}

/// Permission to use wgpu's experimental features, for devices whose cooperative matrices kernels use.
pub(super) fn experimental_features() -> wgpu::ExperimentalFeatures {
    // SAFETY: we know that these features may have bugs. Of them shaders use cooperative matrices alone, in control
    // flow that all threads of a workgroup share, within arrays whose ends we know.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
