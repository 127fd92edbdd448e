//! Imports that the files of calls share; the modules `identity`, `collective` and `window` have those of the other
//! groups.
pub(super) use crate::bounded::{CallSized, Part, Scope};
pub(super) use crate::call::{Call, Called, Expands, Runs, Stage, Stays, takes, wrong};
pub(super) use crate::file::{self, Saved};
pub(super) use crate::fuse::{CallStep, Lowered, Lowering, Work};
pub(super) use crate::graph::{Equation, Graph, Name, Var};
pub(super) use crate::manual::{CallStates, Made, Typing};
pub(super) use crate::mesh::States;
pub(super) use crate::refused::Refused;
pub(super) use crate::shard::CallRegions;
pub(super) use crate::shard::partition::Partition;
pub(super) use crate::shard::rule::Rule;
pub(super) use crate::shard::united::Devices;
pub(super) use crate::shard::view::{Build, NodeId, Val};
pub(super) use crate::stablehlo::{CallHlo, Printer, Value};
pub(super) use crate::text::CallText;
pub(super) use crate::transform::{
    Analysis, Backward, Batch, BatchAxis, CallLinear, CallRule, Forward, Linearity, active, batched_at_least, differing,
};
pub(super) use pallas_ir::{Diag, Loc, Type};

pub(in crate::ops) mod identity {
    pub(in crate::ops) use crate::graph::{Equation, Graph, Name};
    pub(in crate::ops) use crate::identity::{Change, Identity, IdentityData, Statement};
    pub(in crate::ops) use crate::manual::{IdentityStates, Typing};
    pub(in crate::ops) use crate::mesh::Placed;
    pub(in crate::ops) use crate::shard::IdentityRegions;
    pub(in crate::ops) use crate::shard::view::Kind;
    pub(in crate::ops) use crate::stablehlo::{Detail, IdentityHlo, Value, Writer};
    pub(in crate::ops) use pallas_ir::Diag;
}

pub(in crate::ops) mod window {
    pub(in crate::ops) use super::super::samples::{Sample, Sampled};
    pub(in crate::ops) use crate::dynamic::{Dynamic, WindowAccess, Windowed};
    pub(in crate::ops) use crate::file::{self, Saved};
    pub(in crate::ops) use crate::graph::{Graph, Var};
    pub(in crate::ops) use crate::shard::local::update;
    pub(in crate::ops) use crate::shard::rule::{Build, Role};
    pub(in crate::ops) use crate::shard::{Sharded, WindowRegions};
    pub(in crate::ops) use crate::transform::{OwnWindows, WindowRule};
    pub(in crate::ops) use pallas_ir::{DType, Type};
}

pub(in crate::ops) mod collective {
    pub(in crate::ops) use crate::collective::{Collective, CollectiveKind, Kind};
    pub(in crate::ops) use crate::graph::{Graph, Var};
    pub(in crate::ops) use crate::mesh::Form;
    pub(in crate::ops) use crate::stablehlo::{CollectiveHlo, Parts, Value, Writer};
    pub(in crate::ops) use crate::transform::CollectiveRule;
    pub(in crate::ops) use pallas_ir::{DType, Type};
}
