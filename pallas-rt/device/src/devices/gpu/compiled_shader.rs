//! A compiled shader with the data that a launch needs, as stored on disk.
use pallas_codegen::wgsl::{IterationBound, Shader};
use pallas_ir::Kernel;
use serde::{Deserialize, Serialize};

/// A generated shader as it is stored on disk and kept in memory, with the data that a launch needs.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct StoredShader {
    pub(super) text: String,
    /// Operand indices of the arrays in the order of their bindings, each with true if the shader writes it.
    pub(super) bindings: Vec<(u32, bool)>,
    /// Sizes of arrays that the uniform contains, each as an operand index and an axis.
    pub(super) extents: Vec<(u32, u32)>,
    pub(super) constants: Vec<u32>,
    pub(super) scratch_words: usize,
    pub(super) threads: u32,
    pub(super) error_flag: bool,
    /// Number of loop iterations of a thread, as a function of the sequential extents.
    pub(super) iterations: IterationBound,
}

impl StoredShader {
    /// Returns true if the data fits `kernel`: the bindings are existing arrays, and there is an entry for each of its
    /// `sequential_axes` sequential axes. The text itself is not checked.
    pub(super) fn is_valid_for(&self, kernel: &Kernel, sequential_axes: usize) -> bool {
        let arrays: Vec<u32> = kernel.arrays().map(|(id, _)| id.0).collect();
        let sized = |&(id, axis): &(u32, u32)| {
            arrays.contains(&id) && (axis as usize) < kernel.operands[id as usize].dims.len()
        };
        let bound = self.extents.iter().all(sized) && self.bindings.iter().all(|(id, _)| arrays.contains(id));
        bound && self.iterations.axes.len() == sequential_axes && self.threads > 0 && self.scratch_words < 1 << 31
    }
}

impl From<Shader> for StoredShader {
    fn from(shader: Shader) -> StoredShader {
        StoredShader {
            text: shader.text,
            bindings: shader.bindings.iter().map(|&(id, written)| (id.0, written)).collect(),
            extents: shader.extents.iter().map(|&(id, axis)| (id.0, axis as u32)).collect(),
            constants: shader.constants,
            scratch_words: shader.scratch_words,
            threads: shader.threads,
            error_flag: shader.error_flag,
            iterations: shader.iterations,
        }
    }
}
