//! Functions of arrays, compiled as a whole: `jit`, and transformations that take a function and give one.
//!
//! ```text
//! f --trace--> Graph --value_and_grad--> Graph --simplify, fuse--> Plan --program--> launches
//! ```
//!
//! - `trace`: the graphs that are being traced, and the operations on arrays that append to them;
//! - `function`: functions of up to eight trees;
//! - `compiled`: `jit`, its cache and counters; `misses`: why it compiled; `hint`: advice about loops;
//! - `bounded`: `jit` for all sizes up to a bound;
//! - `donating`: `jit` of functions with a donated argument; `disabled`: calls without `jit`;
//! - `lower`: shapes of results, and compilation ahead of time; `export`: functions as files;
//! - `gradient`: reverse mode; `linear`: tangents, and functions of tangents and cotangents;
//! - `jacobian`: all derivatives of arrays by arrays, `jacobian_trees` by trees of them;
//! - `vmap`: one call for many arguments, `batch_axes` of which axes;
//! - `control`: loops and branches; `associative`: scans with an associative function;
//! - `argnums`: derivatives by chosen arguments;
//! - `kernel`: kernels as operations; `custom`, `custom_jvp`: functions with a derivative of their own, `custom_vmap` with batches of their own; `checkpoint`:
//!   functions whose values are computed again;
//! - `root`: roots with an implicit derivative;
//! - `sharded`: functions on a mesh; `audit`: what they declare against what is intended and what was found; `planning`: their cost on one that need not be there; `page`: all of that as HTML;
//! - `shard_map` and `pmap`: functions of the blocks on each device; `axes`: the axes that are bound in them;
//! - `inspect`: functions as text; `analysis`: their cost and memory; `print`: arrays that are shown at each call;
//! - `callback`: functions of the host as operations;
//! - `program`: a plan with its memory, ready to run; `watch`: what looks at the programs that run; `alone`: a graph one
//!   operation at a time.
//!
//! Only `trace`, `axes`, `watch` and `disabled` read thread-locals.
mod alone;
mod analysis;
mod argnums;
mod associative;
mod audit;
pub(crate) mod axes;
mod batch_axes;
mod bounded;
mod callback;
mod checkpoint;
mod compiled;
mod control;
mod custom;
mod custom_jvp;
mod custom_vmap;
mod disabled;
mod donating;
mod export;
mod function;
mod gradient;
mod hint;
mod inspect;
mod jacobian;
mod jacobian_trees;
mod kernel;
mod linear;
mod lower;
mod misses;
mod page;
mod planning;
mod pmap;
mod print;
mod program;
mod root;
mod rules;
mod shard_map;
mod sharded;
#[cfg(test)]
mod tests;
mod trace;
mod vmap;
mod watch;

pub use analysis::MemoryAnalysis;
pub use argnums::{Arg, Argnums, grad_by, value_and_grad_by};
pub use associative::{AssociativeScan, associative_scan};
pub use audit::{
    Audit, AuditDifference, AuditOptions, AuditedConstraint, AuditedMesh, AuditedParameter, ExchangeTotal, Finding,
    FindingKind, PatternUse, Severity, Source, audit,
};
pub use batch_axes::BatchAxes;
pub use bounded::{BoundedSize, jit_bounded};
pub use callback::{VmapMethod, pure_callback, pure_callback_with};
pub use checkpoint::{Policy, checkpoint, checkpoint_name, checkpoint_with};
pub use compiled::jit;
pub use control::{Scan, cond, fori_loop, scan, switch, while_loop};
pub use custom::custom_vjp;
pub(crate) use custom::{Stated, StatedBackward};
pub use custom_jvp::custom_jvp;
pub use custom_vmap::custom_vmap;
pub use disabled::{JitDisabled, disable_jit};
pub use donating::jit_donating;
pub use export::{Exported, ExportedFunction};
pub use function::{Function, Outcome};
pub use gradient::{First, grad, value_and_grad, value_and_grad_aux};
#[cfg(test)]
pub(crate) use inspect::kernels;
pub use inspect::make_jaxpr;
pub use jacobian::{hessian, hessian_by, jacfwd, jacfwd_by, jacrev, jacrev_by};
pub use jacobian_trees::{hessian_trees, jacfwd_trees, jacrev_trees};
pub(crate) use kernel::kernel_call;
pub use linear::{Jvp, LinearMap, jvp, linear_transpose, linearize, vjp};
pub use lower::{Lowered, eval_shape, lower};
pub use misses::{Miss, MissReason, jit_misses};
pub use planning::{AxisTraffic, MeshComparison, PlannedExchange, StepPlan};
pub use pmap::pmap;
pub use root::{custom_root, custom_root_aux};
pub use shard_map::{shard_map, shard_map_axes};
pub(crate) use sharded::division;
pub use sharded::{
    CollectiveBudget, CollectiveCount, CollectiveUse, Obstacle, Provenance, ProvenanceStep, ShardedValue, Shardings,
    WhyNot, clear_sharding, in_out_shardings, mark_sharding, partitioned, propagation_barrier, shard_alike, shard_as,
    with_sharding_constraint,
};
pub(crate) use trace::{apply, is_tracing, make, parts_on_mesh, states};
pub use vmap::{vmap, vmap_axes, vmap_axes_named, vmap_named};
pub(crate) use watch::{Seen, Watch, watching};
