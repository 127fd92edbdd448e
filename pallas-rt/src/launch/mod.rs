//! Calls of `#[kernel]` functions. Every call goes through [`launch`] ([`call`]).
//!
//! [`spec`] describes a kernel as the expansion passes it; [`fixed_values`] compares `#[fixed]` values; [`bind`]
//! determines sizes from arrays, with every check that needs numbers; [`recorded_calls`] records calls that do not run,
//! and [`scope`] stores the purpose of calls; [`trace`] records tile IR; [`uninitialized_reads`] finds reads of memory
//! that nothing wrote; [`cache`] keeps compiled kernels by call; [`warm_call`] and [`recent_calls`] recognise a
//! thread's most recent calls, for which none of this is repeated; [`run`] runs a kernel, on the interpreter its body;
//! [`into`](mod@into) writes outputs to the user's arrays; [`compare`] compares two executions; [`nans`](mod@nans)
//! searches for NaN; [`tune`](mod@tune) selects block sizes by measurement ([`candidate_timing`]), and
//! [`tuning_outcome`] is its outcome; [`inspect`] has explain, check and cost, and [`mod@explain`] the texts and pages
//! of a kernel; [`differentiable`] is for functions of kernels that state their gradient.
//!
//! # The way of one call
//!
//! ```text
//! #[kernel(grid = (cdiv(N, B)))]
//! fn scaled<const B: usize>(
//!     #[block([N] => [B], |i| (i,))] x: In<f32>,
//!     #[block([N] => [B], |i| (i,))] out: Out<f32>,
//!     scale: f32,
//! ) {
//!     out.store(x.load() * scale);
//! }
//! let y = scaled::<8>(&x, 2.0)?;
//! ```
//!
//! 1. **While compiling** (`pallas-macros`): `ast` and `attr` read the signature, `size_language` the sizes, `check`
//!    holds specs, maps and grid against each other and walks the body with symbolic sizes by pallas-ir's own shape
//!    rules, `rewrite` stages the body's control flow, `expand` writes a function `scaled::<B>(x: impl Input, scale:
//!    f32) -> Result<Array>`. It contains a `Site` (the values besides arrays that distinguish calls: `#[fixed]`
//!    values, outer constants), a `Declared` (the specs as constant data: names, dimensions, blocks, grid), a closure
//!    per index map, and the body as a closure over refs. `launch::spec` builds the `KernelSpec` from `Declared` and
//!    the values of the site. A call like an earlier one of its thread goes to 6 at once, without its spec
//!    (`launch::warm_call`): a launch takes little over a microsecond. What the call is for (its results, `check`,
//!    `explain` ..) is the scope of its thread (`launch::scope`), read once here.
//! 2. **`launch::bind`**: `x` is `[1000]`, so `N` = 1000. Element types, ranks, names bound twice, block sizes, grid
//!    and aliases are checked here, before any device work.
//! 3. **`launch::cache`**: the key is name, place, the type of the body (it has every generic argument around the
//!    kernel), element types, `#[fixed]` values (`launch::fixed_values`) and the dimensions that size a block: here `B`
//!    alone. A hit goes to 6. The cache drops its least recently used kernels (`device::lru`). What follows from a
//!    trace alone is on disk too (`disk`, `device::lowered_cache`): the lowered form and shaders by the hash of the
//!    traced text with its lines, the device's limits and these sources; the driver's binaries by adapter and driver as
//!    well. Entries are whole or not there; a torn one is deleted and made again. What is believed of an entry is said
//!    in `device::disk`.
//! 4. **`launch::trace`** runs maps and body once. `x.load()` comes to `lang::context`, which asks the `Builder` for an
//!    instruction; shapes and types are inferred as it is appended, and a mistake is blamed on the user's line.
//!
//!    ```text
//!    kernel scaled {
//!      dim N
//!      grid cdiv(N, 8) parallel
//!      in x: f32[N] block [8]
//!      out out: f32[N] block [8] empty 0.0
//!      param scale: f32[]
//!      map @x (%0: i32[]) { yield %0 }
//!      map @out (%1: i32[]) { yield %1 }
//!      body {
//!        %2: f32[] = param @scale
//!        %3: f32[8] = load @x block[0:8]
//!        %4: f32[8] = mul %3, %2
//!        store @out block[0:8] %4
//!      }
//!    }
//!    ```
//! 5. **`passes`**: maps become offsets into arrays, sequential grid axes become loops: `load @x array[dyn + 0:8] %8`
//!    with `%8 = program_id · 8`. How many turns such a loop has is no arithmetic of the kernel: sizes that fit an i32
//!    may have terms that do not (`cdiv(N * M, 1048576)`), so the launch computes them once, in checked arithmetic, and
//!    every backend reads its numbers (`steps`, `num_steps`).
//! 6. **`exec`** gives the outputs memory and hands the launch to the `Runtime` of its client (`device::runtime`). A
//!    kernel that `Builder` made, without a macro, comes in here (`exec::Compiled`). `Client::cpu()`: `cpu::plan` makes
//!    steps over tiles with a place in a program's arena each, chains of elementwise operations being one step, and
//!    casts of what a few rows are multiplied with being left to the product; `cpu::run` executes them on the calling
//!    thread and rayon's, which share programs by ranges (`cpu::work_stealing`), chains as machine code, and sort a
//!    long line together (`cpu::sort`). A GPU: `wgsl` writes a compute shader, `device::gpu` compiles and dispatches it
//!    without waiting. `Client::interpreter()`: the body itself runs again, once per program, every operation computed
//!    at once on values that know whether they are defined.
//! 7. **The result** is an `Array` on the same client, in fresh memory, in the donated input's
//!    (`exec::output_aliases`), or in the user's array (`launch::into`).
mod bind;
mod cache;
mod call;
mod candidate_timing;
mod compare;
mod differentiable;
mod explain;
pub(crate) mod fixed_values;
mod inspect;
mod into;
mod meshes;
mod nans;
mod recent_calls;
mod recorded_calls;
mod run;
mod scope;
pub mod spec;
mod trace;
pub(crate) mod tune;
pub(crate) mod tuning_outcome;
mod uninitialized_reads;
mod warm_call;

pub use call::{called_at, launch};
pub use differentiable::{Backward, Differentiable, Ended};
pub use explain::{ExplainedKernel, Explanation};
#[cfg(test)]
pub(crate) use inspect::collect_traced_and_lowered_kernels;
pub use inspect::{Checked, check, cost, explain};
pub use into::{Results, into};
pub use meshes::{launch_parts, may_gather};
pub use scope::{calls_run, on};
