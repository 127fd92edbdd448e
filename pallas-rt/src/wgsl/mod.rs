//! WGSL from lowered tile IR: the baseline placement, which every kernel has.
//!
//! One workgroup per program. Every tile lives in workgroup memory or, where that is too small, in a scratch buffer;
//! threads stride over its elements, and a barrier follows each step. Scalars are computed by every thread alike.
//!
//! [`emit`] the text of instructions; [`types`] element types as WGSL sees them.
mod emit;
mod types;

use crate::passes::liveness::{first_fit, lives};
use pallas_ir::{At, DType, Diag, Kernel, OperandId, OperandKind, Value};

/// What a shader may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Workgroup memory.
    pub workgroup_bytes: u64,
    /// Threads of a workgroup.
    pub max_threads: u32,
    /// Loop iterations after which the driver silently stops an invocation.
    pub max_loop_iterations: Option<u32>,
}

/// A kernel as WGSL, and what a launch must provide.
#[derive(Clone, Debug)]
pub struct Shader {
    /// The text.
    pub text: String,
    /// Arrays in the order of their bindings, and whether they are written.
    pub bindings: Vec<(OperandId, bool)>,
    /// Words appended to the uniform: bits of constants that WGSL has no literal for.
    pub constants: Vec<u32>,
    /// Words of scratch one program uses.
    pub scratch_words: usize,
    /// Bytes of workgroup memory.
    pub workgroup_bytes: usize,
    /// Threads of a workgroup.
    pub threads: u32,
    /// Whether it reports through an error flag.
    pub error_flag: bool,
}

/// Leading words of the uniform: first program, number of programs.
pub const HEADER_WORDS: usize = 4;

/// Where a tile lives: an offset in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Home {
    Workgroup(usize),
    Scratch(usize),
}

/// Emits a lowered kernel.
///
/// # Errors
/// An element type that adapters have no type for.
pub fn emit(kernel: &Kernel, limits: &Limits) -> Result<Shader, Diag> {
    for operand in &kernel.operands {
        refuse_wide(operand.dtype, &operand.name)?;
    }
    for ty in &kernel.values {
        refuse_wide(ty.dtype, "a tile")?;
    }
    let threads = limits.max_threads.min(256);
    let (homes, scratches, workgroup_words, scratch_words) = place(kernel, limits);
    let emitted =
        emit::text(kernel, &homes, &scratches, threads, workgroup_words, scratch_words, limits.max_loop_iterations);
    Ok(Shader {
        text: emitted.text,
        bindings: arrays(kernel),
        constants: emitted.constants,
        scratch_words,
        workgroup_bytes: (workgroup_words + 1) * 4,
        threads,
        error_flag: emitted.error_flag,
    })
}

/// Arrays a kernel binds: an aliased input is its output's.
fn arrays(kernel: &Kernel) -> Vec<(OperandId, bool)> {
    let aliased = |id: OperandId| {
        kernel.operands.iter().any(|o| matches!(o.kind, OperandKind::Output { alias: Some(a), .. } if a == id))
    };
    let written = |k: &OperandKind| matches!(k, OperandKind::Output { .. });
    kernel.arrays().filter(|(id, _)| !aliased(*id)).map(|(id, o)| (id, written(&o.kind))).collect()
}

fn refuse_wide(dtype: DType, what: &str) -> Result<(), Diag> {
    if !matches!(dtype, DType::F64 | DType::I64 | DType::U64) {
        return Ok(());
    }
    let message = format!("{what} holds {dtype}, which shaders have no type for");
    Err(Diag::new("adapter-dtype", At::Op, message, "use a 32-bit type, or the CPU"))
}

/// Homes of tiles and of scratch operands; the largest tiles leave workgroup memory first.
fn place(kernel: &Kernel, limits: &Limits) -> (Vec<Option<Home>>, Vec<Home>, usize, usize) {
    let lives = lives(kernel);
    // A word for a value that all threads agree on.
    let room = (limits.workgroup_bytes as usize / 4).saturating_sub(4);
    let mut tiles: Vec<(Value, usize)> = (0..kernel.values.len())
        .filter(|&v| !kernel.values[v].is_scalar() && lives[v].from != usize::MAX)
        .map(|v| (Value(v as u32), kernel.values[v].elements().max(1)))
        .collect();
    tiles.sort_by_key(|(_, words)| *words);
    let mut outside = vec![];
    let (mut inside, mut words) = first_fit(&lives, &tiles);
    while words > room {
        outside.extend(tiles.pop());
        (inside, words) = first_fit(&lives, &tiles);
    }
    let (spilled, mut scratch_words) = first_fit(&lives, &outside);
    let mut homes = vec![None; kernel.values.len()];
    inside.iter().for_each(|(v, at)| homes[v.index()] = Some(Home::Workgroup(*at)));
    spilled.iter().for_each(|(v, at)| homes[v.index()] = Some(Home::Scratch(*at)));
    let mut scratches = vec![];
    for operand in &kernel.operands {
        let size: usize = operand.block_shape().iter().product();
        let is_scratch = operand.kind == OperandKind::Scratch;
        scratches.push(if is_scratch && words + size <= room {
            words += size;
            Home::Workgroup(words - size)
        } else {
            let at = scratch_words;
            scratch_words += if is_scratch { size } else { 0 };
            Home::Scratch(at)
        });
    }
    (homes, scratches, words, scratch_words)
}
