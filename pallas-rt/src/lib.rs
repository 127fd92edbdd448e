//! Tensor kernels in Rust over *blocks* of arrays, as in Pallas, on CPUs and GPUs; and functions of arrays, compiled,
//! differentiated, batched and sharded, as in JAX.
//!
//! ```
//! use pallas_rt::prelude::*;
//!
//! /// x · scale, eight elements a program.
//! #[kernel(grid = (cdiv(N, B)))]
//! fn scaled<const B: usize>(
//!     #[block([N] => [B], |i| (i,))] x: In<f32>,
//!     #[block([N] => [B], |i| (i,))] out: Out<f32>,
//!     scale: f32,
//! ) {
//!     out.store(x.load() * scale);
//! }
//!
//! let x = Array::from_slice(&[1.0f32, 2.0, 3.0], &[3])?;
//! assert_eq!(scaled::<8>(&x, 2.0)?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
//! // The same on the strict interpreter; and what a call would run, as text or as a page.
//! check(|| scaled::<8>(&x, 2.0))?;
//! let page = explain(|| scaled::<8>(&x, 2.0))?.to_html();
//! # assert!(page.contains("reads x[0:8], partly past the array"));
//! # Ok::<(), Error>(())
//! ```
//!
//! A program of the grid sees one block of each operand:
//!
#![doc = include_str!("../../pictures/grid.svg")]
//!
//! # Where to begin
//!
//! - [A first kernel](guide::first_kernel), and [index maps and edges](guide::index_maps);
//! - [debug a wrong number](guide::debugging), and [make it faster](guide::faster);
//! - [functions of arrays](guide::functions): `jit`, `grad`, `vmap`, `scan`; [on many devices](guide::sharding);
//! - coming [from Pallas](guide::from_pallas), or [from Triton or CUDA](guide::from_triton).
//!
//! # Modules
//!
//! | module | what |
//! |---|---|
//! | [`prelude`] | everything that kernels are written with |
//! | [`guide`] | from a first kernel to reading what is compiled |
//! | [`lang`] | tiles, scalars and operands of a kernel's body |
//! | [`launch`] | calls of kernels: `explain`, `check`, `cost`, `into`, gradients that are stated |
//! | [`exec`] | kernels that are made at run time, from text or by a builder |
//! | `ir` | tile IR, with its grammar |
//! | [`tree`] | structs, tuples and maps of arrays as arguments |
//! | [`startup`], [`timeline`] | what a process is started with; when it compiled and ran what |
//!
//! With the feature `graph`, which is on by default:
//!
//! | module | what |
//! |---|---|
//! | [`ops`], [`linalg`] | operations on arrays, under the names of `jax.numpy` |
//! | [`random`], [`initializers`] | random arrays from keys; first values of weights |
//! | [`sharding`] | meshes, shardings, and pictures of them |
//! | [`spmd`], [`collective`] | exchanges between devices: as functions, and their engines |
//! | [`distributed`] | meshes over several processes |
//!
//! [`jit`], [`grad`], [`vmap`] and the other transformations are here at the root, with what programs write every day;
//! types of results and options are in modules by subject. Kernels that are ready to call (attention, products, norms,
//! losses) are the crate `pallas-kernels`.
#![warn(clippy::print_stdout)]
#![cfg_attr(not(feature = "graph"), allow(dead_code, unused_imports, reason = "traced arrays use the rest"))]
extern crate self as pallas_rt;

/// Calls a macro for tuples of one to eight elements: `tuples! { macro }` -> `macro! { A a 0 } macro! { A a 0, B b 1 }
/// ..`, with a type parameter, a variable and an index for each element.
macro_rules! tuples {
    ($implement:ident) => {
        $implement! { A a 0 }
        $implement! { A a 0, B b 1 }
        $implement! { A a 0, B b 1, C c 2 }
        $implement! { A a 0, B b 1, C c 2, D d 3 }
        $implement! { A a 0, B b 1, C c 2, D d 3, E e 4 }
        $implement! { A a 0, B b 1, C c 2, D d 3, E e 4, F f 5 }
        $implement! { A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6 }
        $implement! { A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7 }
    };
}

mod array;
#[cfg(feature = "graph")]
pub mod collective;
#[cfg(feature = "graph")]
pub mod distributed;
pub mod exec;
pub mod guide;
#[cfg(feature = "graph")]
pub mod initializers;
#[cfg(feature = "graph")]
mod jit;
// Public, since what rustc says of a wrong kernel names its traits; likewise `launch`.
pub mod lang;
pub mod launch;
#[cfg(feature = "graph")]
pub mod linalg;
mod markup;
mod nans;
#[cfg(feature = "graph")]
pub mod ops;
#[cfg(feature = "graph")]
pub mod random;
#[cfg(feature = "graph")]
pub mod sharding;
#[cfg(feature = "graph")]
pub mod spmd;
/// The startup configuration of a process: one value, which is fixed at the first use.
pub mod startup {
    pub use pallas_device::startup::{Engine, StartupConfig, enable_spmd, startup_config};
}
/// Record of when functions were traced and compiled and when kernels ran.
pub mod timeline {
    pub use pallas_device::timeline::{Span, SpanKind, Timeline, write};
}
#[cfg(test)]
mod tests;
pub mod tree;

pub use array::{Array, Client, Extent};
pub use exec::Cost;
#[cfg(feature = "graph")]
pub use jit::{
    Arg, AssociativeScan, BatchAxes, BoundedSize, CheckpointPolicy, PureCallback, Scan, VmapMethod, associative_scan,
    audit, checkpoint, checkpoint_name, clear_sharding, cond, custom_jvp, custom_root, custom_vjp, custom_vmap,
    disable_jit, eval_shape, fori_loop, grad, hessian, in_out_shardings, jacfwd, jacrev, jit, jit_misses, jvp,
    linear_transpose, linearize, lower, make_jaxpr, mark_sharding, partitioned, pmap, propagation_barrier,
    pure_callback, scan, shard_alike, shard_as, shard_map, switch, value_and_grad, vjp, vmap, while_loop,
    with_sharding_constraint,
};
pub use lang::threefry;
pub use launch::{Differentiable, check, cost, explain, into, on};
pub use nans::{NansDebugged, debug_nans};
#[cfg(feature = "graph")]
pub use ops::keep;
pub use pallas_codegen::target::Target;
pub use pallas_device::disk::{DiskCache, disk_cache, set_disk_cache};
pub use pallas_device::error::{CollectiveError, Error, KernelError, OperationError, Result};
pub use pallas_device::{
    Buffer, BufferMut, CacheLimits, Counters, Device, DeviceKind, MemoryStats, counters, set_cache_limits,
};
pub use pallas_macros::{Tree, kernel};
#[cfg(feature = "gpu")]
pub use {pallas_device::devices::GpuCounters, wgpu};

pub use pallas_ir as ir;

/// Carrier of the README, whose examples are run as documentation tests; it exists in these alone.
#[cfg(all(doctest, feature = "graph"))]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// Everything that kernels are written with. Functions of arrays have [`array_prelude`]; a file may import both.
pub mod prelude {
    pub use crate::lang::make::{
        cdiv, concat, debug_assert, debug_print, dot, dot_general, full, iota, maximum, minimum, num_programs,
        program_id, scalar, select, tril, triu, zeros,
    };
    pub use crate::lang::refs::{In, Out, Prefetch, Scratch, ds, strided};
    pub use crate::lang::tile::{Scalar, Tile};
    pub use crate::tree::Tree;
    pub use crate::{Array, Client, Error, Result, Tree, check, cost, explain, into, kernel, on};
    pub use half::{bf16, f16};
    pub use pallas_ir::dtype::{Float, Int, Number, Real};
    pub use pallas_ir::{DType, Elem};
}

/// Everything that functions of arrays are written with.
///
/// No word in it hides one of [`prelude`], so a file may import both. Words that kernels have too, such as `select`,
/// `zeros` and `full`, are those of [`ops`] for arrays:
///
/// ```
/// use pallas_rt::array_prelude::*;
/// use pallas_rt::prelude::*;
///
/// /// The rows' sums of what is at least `least`; `select`, `zeros`, `full`, `maximum` and `dot` are those of tiles here.
/// #[kernel(grid = (1))]
/// fn sums(
///     #[block([2, 2] => [2, 2], |_| (0, 0))] x: In<f32>,
///     #[block([2, 2] => [2, 2], |_| (0, 0))] out: Out<f32>,
///     least: f32,
/// ) {
///     let x = x.load();
///     let kept = select(x >= least, x, zeros::<f32>([2, 2]));
///     out.store(maximum(dot(kept, full::<f32>([2, 2], 1.0)), 0.0));
/// }
/// let f = jit(|x: &Array| {
///     let y = sums(x, 2.0)?;
///     Ok::<_, Error>(ops::select(&y.gt(3.0), ops::zeros(&[2, 2], DType::F32), y))
/// });
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(f(&x)?.to_vec::<f32>()?, [2.0, 2.0, 0.0, 0.0]);
/// # Ok::<(), Error>(())
/// ```
#[cfg(feature = "graph")]
pub mod array_prelude {
    pub use crate::tree::Tree;
    pub use crate::{Arg, Array, Client, Error, Result, Tree};
    pub use crate::{cond, fori_loop, grad, jit, keep, scan, value_and_grad, vmap, while_loop};
    pub use crate::{ops, random};
    pub use half::{bf16, f16};
    pub use pallas_ir::DType::*;
    pub use pallas_ir::{DType, Elem};
}

/// Audits of functions on meshes: findings, and the collectives that were counted. [`audit()`] makes one.
#[cfg(feature = "graph")]
pub mod audit {
    pub use crate::jit::{
        Audit, AuditDifference, AuditOptions, AuditedConstraint, AuditedMesh, AuditedParameter, CollectiveBudget,
        CollectiveCount, CollectiveTotal, CollectiveUse, Finding, FindingKind, PatternUse, Severity, ShardingOrigin,
    };
}

/// Decisions of the compiler about a function: shardings and their provenance, collectives, time and memory.
#[cfg(feature = "graph")]
pub mod plan {
    pub use crate::jit::{
        AxisTraffic, MemoryAnalysis, MeshComparison, Obstacle, PlannedCollective, Provenance, ProvenanceStep,
        ShardedValue, Shardings, StepPlan, WhyNot,
    };
}

/// Shaders of kernels: the text, where tiles are placed, and how memory is accessed; budgets and profiles of devices.
pub mod shader {
    pub use pallas_codegen::target::{CooperativeMatrices, Profile, ProgramBudget};
    #[cfg(feature = "wgsl")]
    pub use pallas_codegen::wgsl::{
        AccessReport, IterationBound, OperationCounts, PipelinedOperand, PlacedTile, Placement, Shader,
    };
}

/// Measurements that choose block sizes.
pub mod tune {
    pub use crate::launch::tuning_outcome::{Candidate, Outcome, Tuning};
}

/// Counts of the loads that kernels make on the strict interpreter.
pub mod interpreter {
    pub use pallas_codegen::interp::LoadCounts;
    /// ```
    /// use pallas_rt::prelude::*;
    ///
    /// #[kernel(grid = (2))]
    /// fn firsts(
    ///     #[block([N] => [4], |i| (i,))] x: In<f32>,
    ///     #[block([M] => [1], |i| (i,))] out: Out<f32>,
    ///     #[dim] M: usize,
    /// ) {
    ///     out.store(x.at(ds(0, 1)).load());
    /// }
    /// let x = Client::interpreter().full(&[8], 1.0f32)?;
    /// let (y, loads) = pallas_rt::interpreter::count_loads(|| firsts(&x, 2));
    /// assert_eq!(y?.to_vec::<f32>()?, [1.0, 1.0]);
    /// assert_eq!(loads[&("firsts".into(), "x".into())], 2);
    /// # Ok::<(), Error>(())
    /// ```
    pub use pallas_codegen::interp::count_loads;
}

/// Form of all transformations: a function goes in, something callable comes out, and options are methods of that.
///
/// ```
/// use pallas_rt::{Arg, Array, grad, jit, vmap};
/// let f = |x: &Array, w: &Array| (x * w).sum(..);
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let w = Array::from_slice(&[5.0f32, 6.0], &[2])?;
/// let slopes = vmap(grad(f).argnums(Arg::<1>)).in_axes((0, None));
/// assert_eq!(jit(slopes)(&x, &w)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
///
/// - The function comes first. An argument without a useful default follows it, as in `shard_map(f, &mesh, in_specs,
///   out_specs)`, so that rustc reports one that is missing. Whatever has a default is a method with JAX's name, and
///   methods combine in any order.
/// - [`Transformed`](transform::Transformed) is called like a function and is the [`Function`](transform::Function)
///   that the next transformation takes. Stable Rust does not let a struct implement `Fn`, but a call dereferences what
///   it calls; so `Transformed` dereferences to a boxed closure, which is made at the first call, and plain forms cost
///   users no word. Where an `impl Fn` or one type for several functions is asked for,
///   [`Transformed::into_fn`](transform::Transformed::into_fn) gives the boxed closure.
/// - Facts that types state are no options: a function that returns `(Array, Aux)` has auxiliary results (`has_aux` in
///   JAX), and [`grad`](crate::grad()) takes it as it is.
/// - Operations that run at once have their options in a struct with their name that runs them:
///   `Scan::new().reverse(true).run(..)`, likewise [`AssociativeScan`] and [`PureCallback`].
#[cfg(feature = "graph")]
pub mod transform {
    pub use crate::jit::{
        Argnums, Checkpoint, Exported, ExportedFunction, Function, Grad, Jacobian, JacobianArgnums, Jit, JitDisabled,
        Jvp, LinearMap, Loss, Lowered, Miss, MissReason, Outcome as Traceable, ShardMap, Solution, Transformation,
        Transformed, ValueAndGrad, Vmap,
    };
}

/// Names that expansions of `#[kernel]` use. Not part of the public interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::lang::cmp::{Cmp, HostCmp, Left, Logic, Matched, and, or};
    pub use crate::lang::context::{named, so_far};
    pub use crate::lang::decide::{
        Held, HostValuesStayTheSameWhereDecidedAtRunTime, Otherwise, first_value, gives, leaves_region, pass, slot,
    };
    pub use crate::lang::make::index;
    pub use crate::lang::refs::{In, Out, Prefetch, Scratch};
    pub use crate::lang::stage::{For, While, condition, range, range_inclusive, short_circuit};
    pub use crate::lang::tile::Scalar;
    pub use crate::launch::fixed_values::{ByText, ByType, ByValue, Fixed, FixedKey};
    pub use crate::launch::spec::{
        Argument, BlockDim, Declared, DeclaredOperand, Frame, Input, Kind, ParamValue, Site, Size, arg, array, element,
        indices, param, whole,
    };
    pub use crate::launch::tune::tune;
    pub use crate::launch::tuning_outcome::Candidates;
    pub use crate::launch::{called_at, launch};
    pub use crate::{Array, Error};
    pub use pallas_ir::{Allow, DType, Elem, Loc, Semantics};
}

/// Parts that tests of this workspace look into. Not part of the public interface.
#[doc(hidden)]
pub mod __tests {
    pub use pallas_codegen::interp::{Argument, Data, Machine, walk};
    #[cfg(feature = "wgsl")]
    pub use pallas_codegen::wgsl::{BarrierAudit, UNIFORM_HEADER_WORDS, audit_barriers};
}
