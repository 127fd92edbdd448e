//! The result of `explain`: one screen of facts for each kernel, its stages as text, and the same as pictures and a
//! page.
//!
//! - `facts`: operands with their blocks, memory, cost, where the time goes, as text;
//! - `program_accesses`: the blocks that single programs see, and what they read and write;
//! - `picture`: grid, operands and memory as SVG; `kernel_page`: a page of HTML with them.
mod facts;
mod kernel_page;
mod picture;
mod program_accesses;
#[cfg(test)]
mod tests;

use super::recorded_calls::RecordedCall;
use super::tuning_outcome::Tuning;
use crate::exec::{CPU_METHOD_THRESHOLDS, Cost, estimate_launch_cost};
#[cfg(feature = "wgsl")]
use crate::{Error, Result};
use pallas_codegen::cpu::Executable;
use pallas_codegen::target::{Profile, Target};
#[cfg(feature = "wgsl")]
use pallas_codegen::wgsl;
use pallas_device::{LaunchGeometry, find_multiples_of_four};
use pallas_ir::Kernel;
#[cfg(feature = "wgsl")]
use pallas_ir::Loc;
use std::sync::Arc;

/// The result of `explain`: one entry for each kernel that the closure called.
#[derive(Clone, Debug, Default)]
pub struct Explanation {
    /// One entry per call, in order.
    pub kernels: Vec<ExplainedKernel>,
}

impl Explanation {
    /// The text of one [stage](ExplainedKernel::stages) of each kernel, `traced`, `lower`, `simplify`, `cpu`, `placed`,
    /// `placement` or `wgsl`; empty for a stage that no kernel has.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    ///
    /// #[kernel(grid = (cdiv(N, 8)))]
    /// fn doubled(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    ///     out.store(x.load() * 2.0);
    /// }
    /// let x = Array::zeros(&[10], DType::F32)?;
    /// assert!(explain(|| doubled(&x))?.stage("traced").starts_with("kernel doubled {"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn stage(&self, name: &str) -> String {
        let of = |k: &ExplainedKernel| k.stages().into_iter().find(|(stage, _)| stage == name).map(|(_, text)| text);
        self.kernels.iter().filter_map(of).collect()
    }
}

/// The kernel of one call, and how it runs.
#[derive(Clone, Debug)]
pub struct ExplainedKernel {
    /// The kernel's name.
    pub name: String,
    /// Extents of the grid.
    pub grid: Vec<i64>,
    /// The estimated work of the call.
    pub cost: Cost,
    /// The selection of its block sizes, if they are tuned.
    pub tuning: Option<Arc<Tuning>>,
    /// The tile IR as traced.
    pub traced: Arc<Kernel>,
    /// The tile IR that backends read.
    pub lowered: Arc<Kernel>,
    /// Number of sequential axes of the grid, which are the outermost loops of the lowered form.
    pub sequential: usize,
    /// The target of the call's GPU or of [`Client::cpu_as`](crate::Client::cpu_as), else [`Target::webgpu`].
    pub target: Target,
    /// A bit for each dimension of the kernel, in order: 1 if its extent is a multiple of four, so that rows are whole
    /// vectors. 0 on the CPU.
    pub multiples: u64,
    /// True if the call runs on the CPU.
    is_on_cpu: bool,
    geometry: LaunchGeometry,
}

impl ExplainedKernel {
    pub(super) fn new(call: RecordedCall) -> ExplainedKernel {
        let RecordedCall { compiled, geometry, client, tuning, .. } = call;
        let kernel = compiled.traced();
        // For a call on the CPU the shader is that of a device with WebGPU's limits.
        let is_on_cpu = client.target().profile == Profile::Cpu;
        let (target, multiples) = if is_on_cpu {
            (Target::webgpu(), 0)
        } else {
            (*client.target(), find_multiples_of_four(kernel, &geometry))
        };
        ExplainedKernel {
            name: kernel.name.clone(),
            grid: geometry.grid.clone(),
            cost: estimate_launch_cost(kernel, &geometry),
            tuning,
            traced: kernel.clone(),
            lowered: compiled.lowered().clone(),
            sequential: geometry.sequential.len(),
            target,
            multiples,
            is_on_cpu,
            geometry,
        }
    }

    /// Returns names and texts of the stages: the tile IR as traced and after each pass; the CPU's plan (`cpu`); then,
    /// with the feature `wgsl`, for its [`target`](ExplainedKernel::target), the tile IR that was placed, the placement
    /// and the WGSL.
    pub fn stages(&self) -> Vec<(String, String)> {
        let mut stages = self.common_stages();
        stages.push(("cpu".into(), self.cpu_plan()));
        stages.extend(self.shader_stages());
        stages
    }

    /// Returns the stages up to the code that runs on the call's device.
    fn device_stages(&self) -> Vec<(String, String)> {
        let own = if self.is_on_cpu { vec![("cpu".into(), self.cpu_plan())] } else { self.shader_stages() };
        self.common_stages().into_iter().chain(own).collect()
    }

    /// Returns the tile IR as traced and after each pass, as (name, text).
    fn common_stages(&self) -> Vec<(String, String)> {
        let mut stages = vec![("traced".to_string(), self.traced.to_string())];
        let mut now = Kernel::clone(&self.traced);
        for (name, pass) in pallas_codegen::passes::LOWERING_PASSES {
            now = pass(&now);
            stages.push((name.to_string(), now.to_string()));
        }
        stages
    }

    /// Returns the stages of the shader; if it has none, the reason why.
    fn shader_stages(&self) -> Vec<(String, String)> {
        #[cfg(feature = "wgsl")]
        let stages = match self.shader(&self.target, self.multiples) {
            Ok(shader) => vec![
                ("placed", shader.kernel.to_string()),
                ("placement", shader.placement.to_string()),
                ("wgsl", shader.text),
            ],
            Err(e) => vec![("no wgsl", e.to_string())],
        };
        #[cfg(not(feature = "wgsl"))]
        let stages = vec![("no wgsl", "this build is without the feature `wgsl`".to_string())];
        stages.into_iter().map(|(name, text)| (name.into(), text)).collect()
    }

    fn compile_for_cpu(&self) -> Executable {
        Executable::compile(self.traced.clone(), self.lowered.clone(), CPU_METHOD_THRESHOLDS)
    }

    /// Returns the steps that a program takes on this machine's CPU: which elementwise operations are computed together
    /// (a chain), which blocks are read in place and which are copied, and which results are computed in the memory of
    /// an output.
    pub fn cpu_plan(&self) -> String {
        self.compile_for_cpu().plan_text()
    }

    /// Describes each chain (elementwise operations that are computed together) without machine code for this machine's
    /// CPU, which therefore runs strip by strip: its shape and the operations that have no instructions. Chains whose
    /// rows are not whole vectors may also lack machine code.
    pub fn chains_without_code(&self) -> Vec<String> {
        self.compile_for_cpu().describe_uncompiled_chains()
    }

    /// Returns the kernel's shader for a device that need not be present (feature `wgsl`). `multiples` has the form of
    /// [`ExplainedKernel::multiples`].
    ///
    /// # Errors
    /// Element types that shaders do not support, scratch larger than workgroup memory, the CPU as target.
    #[cfg(feature = "wgsl")]
    pub fn shader(&self, target: &Target, multiples: u64) -> Result<wgsl::Shader> {
        let shader = wgsl::emit(&self.lowered, self.sequential, target, multiples);
        shader.map_err(|d| Error::kernel(&self.name, Loc::NONE, "", d))
    }

    /// Returns the shader's text for the kernel's [`target`](ExplainedKernel::target) (feature `wgsl`).
    ///
    /// # Errors
    /// Errors of [`shader`](ExplainedKernel::shader).
    #[cfg(feature = "wgsl")]
    pub fn wgsl(&self) -> Result<String> {
        Ok(self.shader(&self.target, self.multiples)?.text)
    }
}
