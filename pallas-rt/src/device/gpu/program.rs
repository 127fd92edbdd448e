//! A shader as a launch needs it, and as the disk keeps it.
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
