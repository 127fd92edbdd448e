//! Operations, one file each. A file has everything that the graph, its transformations, the partitioner, plans and
//! texts need to know of its operation.
//!
//! A module that reads operations declares what it asks of them as a trait without default methods, and calls it
//! through the enums below; it names no operation. Each file here implements the traits of its group: those of
//! [`Identity`], of [`CollectiveKind`] for collectives, of [`Dynamic`] for operations on windows, or of [`Call`]. A
//! call is either a *function*, which is replaced by its equations before a plan is made, or a *step*, which stays a
//! call until it runs. The list below is the only one; an operation that lacks a trait does not compile.
mod prelude;
mod samples;

pub use samples::OpSample;

use crate::bounded::CallMasking;
use crate::call::{CallExpansion, CallInterface, PlanStepInterface};
use crate::collective::CollectiveInterface;
use crate::display::CallText;
use crate::dynamic::WindowInterface;
use crate::fuse::LowerableCall;
use crate::graph::{Op, OpName};
use crate::identity::IdentityInterface;
use crate::manual::{CallAxisStateRule, IdentityAxisStateRule};
use crate::shard::{ShardableCall, ShardableIdentity, ShardableWindow};
use crate::stablehlo::{CallHlo, CollectiveHlo, IdentityHlo};
use crate::text_format::{Parser, SerializableOp, Words};
use crate::transform::{CallLinearity, CallTransformRule, CollectiveTransposeRule, WindowTransformRule};
use pallas_ir::DType;
use samples::SampledOp;

macro_rules! ops {
    (
        identities { $($identity:ident: $Identity:ident, $name_of_identity:literal;)* }
        collectives { $($collective:ident: $Collective:ident, $name_of_collective:literal;)* }
        windows { $($window:ident: $Window:ident, $name_of_window:literal;)* }
        functions { $($function:ident: $Function:ident, $name_of_function:literal;)* }
        steps { $($step:ident: $Step:ident, $name_of_step:literal;)* }
    ) => {
        $(mod $identity;
        pub use $identity::$Identity;)*
        $(mod $collective;
        pub use $collective::$Collective;)*
        $(mod $window;
        pub use $window::$Window;)*
        $(pub(crate) mod $function;
        pub use $function::$Function;)*
        $(pub(crate) mod $step;
        pub use $step::$Step;)*
        ops! { @enum "The operand, and a statement about it." Identity; $($Identity)* }
        ops! { @ask Identity; ($($Identity)*) data: IdentityInterface, states: IdentityAxisStateRule, regions: ShardableIdentity, text: IdentityHlo }
        ops! { @op Identity; $($Identity)* }
        ops! { @enum "The result of each device in a group of `k`." CollectiveKind; $($Collective)* }
        ops! { @ask CollectiveKind; ($($Collective)*) kind: CollectiveInterface, rule: CollectiveTransposeRule, text: CollectiveHlo }
        ops! { @enum "An operation on a window of an array at positions that are operands." Dynamic; $($Window)* }
        ops! { @ask Dynamic; ($($Window)*) data: WindowInterface, rule: WindowTransformRule, regions: ShardableWindow, saved: SerializableOp }
        ops! { @op Dynamic; $($Window)* }
        ops! { @enum "A call of other graphs." Call; $($Function)* $($Step)* }
        ops! { @ask Call; ($($Function)* $($Step)*) called: CallInterface, rule: CallTransformRule, states: CallAxisStateRule, text: CallText }
        ops! { @names $($Identity $name_of_identity)* $($Collective $name_of_collective)* $($Window $name_of_window)* $($Function $name_of_function)* $($Step $name_of_step)* }
        ops! { @ask_some ($($Function)*) function_of: CallExpansion }
        ops! { @ask_some ($($Step)*) stays: PlanStepInterface, linear: CallLinearity, regions: ShardableCall, step: LowerableCall, sized: CallMasking, hlo: CallHlo }
        ops! { @op Call; $($Function)* $($Step)* }
        ops! { @call $($Function)* $($Step)* }
        impl OpSample {
            /// Returns the examples of all operations on which tests check their laws (derivatives, batching), with
            /// operands of this element type.
            pub fn all(dtype: DType) -> Vec<OpSample> {
                let all = [$($Window::samples(dtype),)* $($Function::samples(dtype),)* $($Step::samples(dtype)),*];
                all.into_iter().flatten().collect()
            }

            /// The names of all operations that can have samples: those on windows, and calls.
            pub const NAMES: &[&str] = &[$($name_of_window,)* $($name_of_function,)* $($name_of_step),*];
        }
        impl Op {
            /// Parses the operation named `word`, with its attributes from `words`, the rest of its line in a file;
            /// `None` if no operation on windows and no step has the name.
            pub(crate) fn parse(word: &str, p: &mut Parser<'_>, words: &mut Words<'_>) -> Option<Result<Op, String>> {
                match word {
                    $($name_of_window => Some($Window::parse(p, words).map(Into::into)),)*
                    $($name_of_step => Some($Step::parse(p, words).map(Into::into)),)*
                    _ => None,
                }
            }
        }
        impl Call {
            /// Returns a step's name in files, and the writer of its attributes; `None` for a function, which is not
            /// saved.
            pub(crate) fn saved(&self) -> Option<(&'static str, &dyn SerializableOp)> {
                match self {
                    $(Self::$Step(op) => Some(($name_of_step, op)),)*
                    _ => None,
                }
            }
        }
    };
    (@enum $doc:literal $Enum:ident; $($Op:ident)*) => {
        #[doc = $doc]
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum $Enum { $(#[doc = concat!("See [`", stringify!($Op), "`].")] $Op($Op)),* }
        $(impl From<$Op> for $Enum {
            fn from(op: $Op) -> $Enum { $Enum::$Op(op) }
        })*
    };
    // Traits that all operations of an enum implement.
    (@ask $Enum:ident; $all:tt $($get:ident: $Trait:ident),*) => {
        $(ops! { @ask_one $Enum $get $Trait $all })*
    };
    (@ask_one $Enum:ident $get:ident $Trait:ident ($($Op:ident)*)) => {
        impl $Enum {
            pub(crate) fn $get(&self) -> &dyn $Trait {
                match self { $(Self::$Op(op) => op),* }
            }
        }
    };
    // Traits that only functions or only steps implement.
    (@ask_some $some:tt $($get:ident: $Trait:ident),*) => {
        $(ops! { @ask_one_of_some $get $Trait $some })*
    };
    (@ask_one_of_some $get:ident $Trait:ident ($($Op:ident)*)) => {
        impl Call {
            /// Returns the call as a `dyn` of the trait that only functions, or only steps, implement; `None` for the
            /// other kind.
            pub(crate) fn $get(&self) -> Option<&dyn $Trait> {
                match self { $(Self::$Op(op) => Some(op),)* _ => None }
            }
        }
    };
    (@names $($Op:ident $name:literal)*) => {
        $(impl OpName for $Op {
            fn name(&self) -> &'static str {
                $name
            }
        })*
    };
    (@op $Enum:ident; $($Op:ident)*) => {
        $(impl From<$Op> for Op {
            fn from(op: $Op) -> Op { $Enum::from(op).into() }
        })*
    };
    (@call $($Op:ident)*) => {
        $(impl $Op {
            /// Returns the call if it is of this kind.
            pub fn of(call: &Call) -> Option<&$Op> {
                if let Call::$Op(op) = call { Some(op) } else { None }
            }

            /// Returns the operation if it is a call of this kind.
            pub fn of_op(op: &Op) -> Option<&$Op> {
                if let Op::Call(call) = op { $Op::of(call) } else { None }
            }
        })*
    };
}

// `cargo fmt` does not find the modules that the macro declares; `.ci/run` lists their files.
ops! {
    identities {
        constraint: ShardingConstraint, "sharding_constraint";
        optimization_barrier: OptimizationBarrier, "optimization_barrier";
        propagation_barrier: PropagationBarrier, "propagation_barrier";
        sharding_group: ShardingGroup, "sharding_group";
        stop_gradient: StopGradient, "stop_gradient";
    }
    collectives {
        all_gather: AllGather, "all_gather";
        all_reduce: AllReduce, "all_reduce";
        all_to_all: AllToAll, "all_to_all";
        device_table: DeviceTable, "device_table";
        pbroadcast: Pbroadcast, "collective_broadcast";
        pcast: Pcast, "pcast";
        permute: Permute, "collective_permute";
        reduce_scatter: ReduceScatter, "reduce_scatter";
    }
    windows {
        dynamic_slice: DynamicSlice, "dynamic_slice";
        dynamic_update_slice: DynamicUpdateSlice, "dynamic_update_slice";
    }
    functions {
        checkpoint: Checkpoint, "checkpoint";
        closed: ClosedCall, "call";
        custom_jvp: CustomJvp, "custom_jvp";
        custom_vjp: CustomVjp, "custom_vjp";
        custom_vmap: CustomVmap, "custom_vmap";
        name: CheckpointName, "name";
    }
    steps {
        case: Case, "case";
        debug_print: Print, "debug_print";
        kernel: KernelCall, "kernel";
        pure_callback: Callback, "pure_callback";
        scan: Scan, "scan";
        shard_map: ShardMap, "shard_map";
        while_loop: While, "while";
    }
}
