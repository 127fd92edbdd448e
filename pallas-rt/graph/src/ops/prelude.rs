//! Imports that the files of calls share; the modules `identity`, `collective` and `window` have those of the other
//! groups.
pub(super) use crate::bounded::{CallMasking, GraphMasker, MaskedGraphAndParams};
pub(super) use crate::call::{
    Call, CallExpansion, CallInterface, ExpansionStage, PlanStepInterface, RunCount, check_param_types,
    invalid_call_diag,
};
pub(super) use crate::display::CallText;
pub(super) use crate::fuse::{CallLoweringContext, LowerableCall, LoweredStep, StepOp};
pub(super) use crate::graph::{Equation, Graph, OpName, Var};
pub(super) use crate::manual::{AxisStateInference, CallAxisStateRule, CallWithAxisStates};
pub(super) use crate::mesh::AxisStates;
pub(super) use crate::refusal::TransformError;
pub(super) use crate::shard::ShardableCall;
pub(super) use crate::shard::op_sharding_rule::ShardingRule;
pub(super) use crate::shard::partition::Partitioner;
pub(super) use crate::shard::propagation_program::{NodeId, RegionGraphBuilder, Val};
pub(super) use crate::shard::virtual_mesh::JointDevices;
pub(super) use crate::stablehlo::{CallHlo, HloValue, StableHloTranslator};
pub(super) use crate::text_format::{self, SerializableOp};
pub(super) use crate::transform::{
    BatchAxis, BatchedCall, CallLinearity, CallTransformRule, JvpCall, Linearity, LinearityAnalysis, VjpCall, active,
    batch_dependent_results, batched_with_forced_results,
};
pub(super) use pallas_ir::{Diag, Loc, Type};

pub(in crate::ops) mod identity {
    pub(in crate::ops) use crate::graph::{Equation, Graph, OpName};
    pub(in crate::ops) use crate::identity::{Identity, IdentityInterface, IdentityUpdate, OperandProperty};
    pub(in crate::ops) use crate::manual::{AxisStateInference, IdentityAxisStateRule};
    pub(in crate::ops) use crate::mesh::MeshSharding;
    pub(in crate::ops) use crate::shard::ShardableIdentity;
    pub(in crate::ops) use crate::shard::propagation_program::NodeKind;
    pub(in crate::ops) use crate::stablehlo::{HloAttributes, HloValue, HloWriter, IdentityHlo};
    pub(in crate::ops) use pallas_ir::Diag;
}

pub(in crate::ops) mod window {
    pub(in crate::ops) use super::super::samples::{OpSample, SampledOp};
    pub(in crate::ops) use crate::dynamic::{Dynamic, WindowAccess, WindowInterface};
    pub(in crate::ops) use crate::graph::{Graph, Var};
    pub(in crate::ops) use crate::shard::local::emit_window_update;
    pub(in crate::ops) use crate::shard::op_sharding_rule::{FactorRole, RuleBuilder};
    pub(in crate::ops) use crate::shard::{ShardableWindow, ShardedOperation};
    pub(in crate::ops) use crate::text_format::{self, SerializableOp};
    pub(in crate::ops) use crate::transform::{BatchedWindows, WindowTransformRule};
    pub(in crate::ops) use pallas_ir::{DType, Type};
}

pub(in crate::ops) mod collective {
    pub(in crate::ops) use crate::collective::{Collective, CollectiveInterface, CollectiveKind};
    pub(in crate::ops) use crate::graph::{Graph, Var};
    pub(in crate::ops) use crate::mesh::CollectiveForm;
    pub(in crate::ops) use crate::stablehlo::{CollectiveHlo, ExchangedData, HloValue, HloWriter};
    pub(in crate::ops) use crate::transform::CollectiveTransposeRule;
    pub(in crate::ops) use pallas_ir::{DType, Type};
}
