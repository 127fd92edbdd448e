//! A shader as a launch needs it, and as the disk keeps it.
use pallas_ir::Kernel;
use serde::{Deserialize, Serialize};

/// A shader as a launch needs it.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Program {
    pub(super) text: String,
    /// Arrays in the order of their bindings, and whether they are written.
    pub(super) bindings: Vec<(u32, bool)>,
    pub(super) constants: Vec<u32>,
    pub(super) scratch_words: usize,
    pub(super) threads: u32,
    pub(super) error_flag: bool,
    /// Loop iterations: outside of the sequential axes, in one step of each, and whether there are more.
    iterations: (u64, Vec<u64>, bool),
}

impl Program {
    /// Whether a launch of `kernel` can follow what is said of the shader: arrays that are there, an entry for each of its
    /// sequential axes. Its text is believed.
    pub(super) fn serves(&self, kernel: &Kernel, sequential: usize) -> bool {
        let arrays: Vec<u32> = kernel.arrays().map(|(id, _)| id.0).collect();
        let bound = self.bindings.iter().all(|(id, _)| arrays.contains(id));
        bound && self.iterations.1.len() == sequential && self.threads > 0 && self.scratch_words < 1 << 31
    }
    /// Loop iterations of a thread.
    pub(super) fn iterations(&self) -> crate::wgsl::Iterations {
        let (outside, axes, more) = self.iterations.clone();
        crate::wgsl::Iterations { outside, axes, more }
    }
}

impl From<crate::wgsl::Shader> for Program {
    fn from(shader: crate::wgsl::Shader) -> Program {
        let crate::wgsl::Iterations { outside, axes, more } = shader.iterations;
        Program {
            text: shader.text,
            bindings: shader.bindings.iter().map(|&(id, written)| (id.0, written)).collect(),
            constants: shader.constants,
            scratch_words: shader.scratch_words,
            threads: shader.threads,
            error_flag: shader.error_flag,
            iterations: (outside, axes, more),
        }
    }
}
