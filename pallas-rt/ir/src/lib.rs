//! The tile language of pallas: element types, symbolic sizes, operations and the tile IR. It has no dependencies.
//!
//! Read [`kernel`] first, which has the grammar. [`scalar`] and [`structural`] are the registry of operations;
//! [`infer`] gives every operation's result type; [`Builder`] appends to a kernel.
#![forbid(unsafe_code)]
#![warn(clippy::print_stdout)]
mod allowed_faults;
mod builder;
mod cursor;
pub mod diag;
pub mod dim;
pub mod dtype;
#[macro_use]
pub mod scalar;
pub mod emit;
mod evaluate;
mod infer;
pub mod kernel;
mod literal;
mod memory_sharing;
pub mod parse;
pub mod print;
mod renumber;
pub mod structural;
mod verify;

pub use allowed_faults::Allow;
pub use builder::Builder;
pub use cursor::ParseError;
pub use diag::{At, Diag};
pub use dim::{Dim, Facts};
pub use dtype::{Bf16, DType, Elem, F16, Slice, SliceMut};
pub use emit::{E, RuleBackend};
pub use evaluate::SizeError;
pub use infer::infer;
pub use kernel::{
    Axis, BlockDim, DimDecl, DimId, Inst, InstId, Kernel, Loc, MAX_DEPTH, MAX_RANK, Op, Operand, OperandId,
    OperandKind, Region, RegionId, Semantics, Type, Value, View, ViewAxis, ViewFrame,
};
pub use literal::Literal;
pub use memory_sharing::may_share_memory;
pub use scalar::{ElementFunction, ElementOperands, OpVisitor, ScalarOp};
pub use structural::{AccessForm, StructuralOp};
pub use verify::{Violation, verify, verify_lowered};

/// Version of the language, which is part of the keys of the disk cache.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
