//! Functions of arrays, compiled as a whole: `jit`, and transformations that take a function and give one.
//!
//! ```text
//! f --trace--> Graph --value_and_grad--> Graph --simplify, fuse--> Plan --program--> launches
//! ```
//!
//! - `trace`: the graphs that are being traced, and the operations on arrays that append to them;
//! - `compile`: the stages between a trace and a program; `dump`: their texts, in the folder of `PALLAS_DUMP`;
//! - `function`: functions of up to eight trees;
//! - `traced`: functions of trees, traced for arguments;
//! - `jit_function`: `jit`, with a donated argument too; `jit_cache`: what it compiled; `retrace_log`: why;
//!   `repetition_hint`: advice about loops;
//! - `bounded`: `jit` for all sizes up to a bound;
//! - `transformed`: the form of transformations and their options;
//! - `disabled`: calls without `jit`;
//! - `lower`: shapes of results, functions as text, and compilation ahead of time; `export`: functions as files;
//! - `gradient`: reverse mode; `linearize`: tangents, and functions of tangents and cotangents;
//! - `jacobian`: Jacobians and Hessians, of arrays and of trees of them;
//! - `vmap`: one call for many examples; `batch_axes`: the axes of the batch in arguments and results;
//! - `control_flow`: loops and branches; `associative`: scans with an associative function;
//! - `argnums`: derivatives by chosen arguments;
//! - `traced_kernel_call`: kernels as operations; `custom_vjp`, `custom_jvp`: functions with a stated derivative,
//!   `custom_vmap`: with a stated batching rule; `checkpoint`: functions whose values are recomputed in the backward
//!   pass; `recursive_rules`: stated rules that call their own function;
//! - `custom_root`: roots with an implicit derivative;
//! - `sharded`: functions on a mesh; `audit`: what they declare against what is intended and what was found;
//!   `planning`: their cost on one that need not be there; `plan_page`: all of that as HTML;
//! - `shard_map` and `pmap`: functions of the blocks on each device; `axis_names`: the axes that are bound in them;
//! - `cost_analysis`: the cost and memory of functions; `print`: arrays that are shown at each call;
//! - `callback`: functions of the host as operations;
//! - `program`: a plan with its memory, ready to run; `program_watch`: what looks at the programs that run; `op_by_op`:
//!   a graph one operation at a time.
//!
//! Only `trace`, `axis_names`, `program_watch` and `disabled` read thread-locals.
//!
//! # The way of a call
//!
//! ```text
//! let step = jit(|w: &Array, x: &Array| (x.matmul(w) + 1.0).tanh());
//! let y = step(&w, &x)?;
//! ```
//!
//! 1. **`jit::jit_cache`**: leaves and structure of the arguments are compared with those of earlier calls. An equal
//!    one goes to step 6. Else `jit::retrace_log` records the differences to the most similar call.
//! 2. **`jit::trace`**: the function runs once, on *traced* arrays, which are numbers of values in the innermost graph
//!    of the thread. Each operation (`ops/`) appends equations; if its operands are not traced it makes a graph of its
//!    own, which is compiled by the same way and kept, so no operation has a second implementation. One without
//!    operands (`arange`, `zeros`) belongs to the function that is being traced, if there is one. Arrays from outside
//!    become further parameters. A mistake is an array that carries it. What calls a user's closure is generic and
//!    short; the rest works on the leaves of its results (`TracedFunction`), and operations hand over their equations
//!    behind a pointer, so that it is compiled once and not for each closure of a program.
//!
//!    ```text
//!    { lambda %0:f32[2,3], %1:f32[3,2] .
//!        %2:f32[2,2] = dot batch() contract(1-0) acc(f32) %0, %1
//!        %3:f32[] = 1.0
//!        %4:f32[2,2] = broadcast to(2, 2) %3
//!        %5:f32[2,2] = add %2, %4
//!        %6:f32[2,2] = tanh %5
//!      in %6 }
//!    ```
//! 3. **`pallas_graph::transform`**: a function of a function, such as `value_and_grad`, `jvp` or `vmap`, replaces the
//!    graph by one that computes gradients or tangents too (`vjp`, `jvp`) or the results for a batch (`batched`). Rules
//!    of operations are pallas-ir's. The result is an ordinary graph, so transformations nest.
//! 4. **`pallas_graph::simplify`**: passes in one list, each with its rewrites as the text of its module
//!    (`opposite_moves`: what is reversed, rolled or transposed is an operand where one move undoes another, so no
//!    computed value has to be whole for it). Those of `OUTERMOST_GRAPH_PASSES` come last and leave bodies of loops
//!    alone, along whose axes programs divide what is carried: `axes` makes adjacent axes one that no operation tells
//!    apart, so that rows are as long as they can be in every kernel and block sizes do not depend on how a shape is
//!    written.
//! 5. **`pallas_graph::fuse`**: `split_reductions` divides long reductions into folds of parts and of what those give;
//!    `broadcast_copies` gives each reader its own broadcast, and its own short fold behind one; `large_pads` makes
//!    large pads along many axes steps of their own; `cluster` decides which equations share a kernel
//!    (`topological_order` keeps clusters from depending on each other; each program may compute light operands again
//!    that others compute as well; `unfused_reasons` names the reason why an operand's kernel is another, for
//!    `to_plan`; clusters grow from one value each, so `merge` then makes one of those whose programs have the same
//!    blocks and read each other's values), `lower` writes each kernel with the `Builder`, on blocks whose sizes follow
//!    from numbers of the device (`DeviceLimits`; on a CPU, where a program computes a whole block whatever lies inside
//!    of the array, the last one has about as much to do as the others), `plan` orders them (`schedule` makes several
//!    orders and takes the one that needs the least memory; then `rematerialize` looks for cheap values that wait over
//!    the peak, an `exp` for a single reader among them, and the graph in which their late readers make them again is
//!    planned as well), and `arena_packing` decides where values lie: parameters, new memory for results, and regions
//!    of one arena, packed greedily by size so that values needed at the same time lie apart; what loops and branches
//!    need inside is a region of their step. `simplify/scan_hoisting` leaves in the body of a scan what its carried
//!    values need: the rest is computed for all steps at once, before or after the loop, and sums of gradients become
//!    one product. A scan is one kernel where that can hold its steps (`ops/scan/single_kernel`): they are the
//!    innermost axis of the grid, and each program keeps its blocks of what is carried. That needs a carried block to
//!    follow from the same block of the step before, so results are sharded along as many of their first axes as allow
//!    it; small bodies are one program. Other scans launch the kernels of their body for each step
//!    (`ops/scan/in_place_loop`).
//! 6. **`jit::program`** runs the plan: on the CPU as one `device::sequence`, actions on slots of memory that take one
//!    place in the queue (`cpu_sequence`), elsewhere step by step on buffers (`steps`); a GPU gets all launches in one
//!    command encoder (`device/gpu/command_encoder`), those of loops too: a step copies its number from memory that was
//!    uploaded before.
mod argnums;
mod associative;
mod audit;
pub(crate) mod axis_names;
mod batch_axes;
mod bounded;
mod callback;
mod checkpoint;
mod compile;
mod control_flow;
mod cost_analysis;
mod custom_jvp;
mod custom_root;
mod custom_vjp;
mod custom_vmap;
mod disabled;
mod dump;
mod export;
mod function;
mod gradient;
mod jacobian;
mod jit_cache;
mod jit_function;
mod linearize;
mod lower;
mod op_by_op;
mod plan_page;
mod planning;
mod pmap;
mod print;
mod program;
mod program_watch;
mod recursive_rules;
mod repetition_hint;
mod retrace_log;
mod shard_map;
mod sharded;
#[cfg(test)]
mod tests;
mod trace;
mod traced;
mod traced_kernel_call;
mod transformed;
mod vmap;

pub use argnums::{Arg, Argnums};
pub use associative::{AssociativeScan, associative_scan};
pub use audit::{
    Audit, AuditDifference, AuditOptions, AuditedConstraint, AuditedMesh, AuditedParameter, CollectiveTotal, Finding,
    FindingKind, PatternUse, Severity, ShardingOrigin, audit,
};
pub use batch_axes::BatchAxes;
pub use bounded::BoundedSize;
pub use callback::{PureCallback, VmapMethod, pure_callback};
pub use checkpoint::{Checkpoint, CheckpointPolicy, checkpoint, checkpoint_name};
pub use control_flow::{Scan, cond, fori_loop, scan, switch, while_loop};
pub use cost_analysis::MemoryAnalysis;
pub use custom_jvp::custom_jvp;
pub use custom_root::{Solution, custom_root};
pub use custom_vjp::custom_vjp;
pub(crate) use custom_vjp::{BackwardTrace, GradientTrace};
pub use custom_vmap::custom_vmap;
pub use disabled::{JitDisabled, disable_jit};
pub use export::{Exported, ExportedFunction};
pub use function::{Function, Outcome};
pub use gradient::{Grad, Loss, ValueAndGrad, grad, value_and_grad};
pub use jacobian::{Jacobian, JacobianArgnums, hessian, jacfwd, jacrev};
pub use jit_function::{Jit, jit};
pub use linearize::{Jvp, LinearMap, jvp, linear_transpose, linearize, vjp};
#[cfg(test)]
pub(crate) use lower::count_steps;
pub use lower::{Lowered, eval_shape, lower, make_jaxpr};
pub use planning::{AxisTraffic, MeshComparison, PlannedCollective, StepPlan};
pub use pmap::pmap;
pub(crate) use program_watch::{ProgramWatch, WatchedKernel, with_watch};
pub use retrace_log::{Miss, MissReason, jit_misses};
pub use shard_map::{ShardMap, shard_map};
pub(crate) use sharded::mesh_sharding;
pub use sharded::{
    CollectiveBudget, CollectiveCount, CollectiveUse, Obstacle, Provenance, ProvenanceStep, ShardedValue, Shardings,
    WhyNot, clear_sharding, in_out_shardings, mark_sharding, partitioned, propagation_barrier, shard_alike, shard_as,
    with_sharding_constraint,
};
pub(crate) use trace::{
    apply, create_array, innermost_trace_client, is_tracing, longest_traced_mesh_axis_size, manual_axis_states,
};
pub(crate) use traced_kernel_call::append_kernel_call;
pub use transformed::{Transformation, Transformed};
pub use vmap::{Vmap, vmap};
