//! Reasons why equations do not share a kernel.
use std::fmt;

/// Reason why a kernel reads a value from memory instead of computing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnfusedReason {
    /// The value's operation is a step of its own: a loop, a branch, a kernel of the user, a scatter, or a window at a
    /// position that is only known at run time.
    Standalone,
    /// With the value, the kernel would compute two products.
    SecondProduct,
    /// Members of the kernel need different blocks of the value, or its operation cannot compute these blocks.
    DifferentBlocks,
    /// Several programs would compute the value again and that is too much work, or other kernels read it too.
    RepeatedWork,
    /// Another kernel computes the value already.
    InOtherKernel,
    /// The value is the table of a gather, which may read any part of it.
    GatherTable,
    /// The value is a reshape or an optimization barrier of another one that is in memory anyway.
    MemoryAlias,
    /// If the kernel computed the value, two kernels would need each other's results.
    Cycle,
    /// The kernel has as many operations as it may have, without the value's.
    KernelFull,
    /// The kernel's sorts already order as many elements as a program may.
    TooManySorts,
    /// The kernel folds parts of a long reduction, and this value is the result of such a fold or the reverse.
    ReductionStage,
}

impl UnfusedReason {
    /// Returns `reason` as an error unless the condition `holds`.
    pub(super) fn require(holds: bool, reason: UnfusedReason) -> Result<(), UnfusedReason> {
        if holds { Ok(()) } else { Err(reason) }
    }
}

impl fmt::Display for UnfusedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnfusedReason::Standalone => "a step of its own",
            UnfusedReason::SecondProduct => "two products",
            UnfusedReason::DifferentBlocks => "other blocks",
            UnfusedReason::RepeatedWork => "repeated work",
            UnfusedReason::InOtherKernel => "computed by another kernel",
            UnfusedReason::GatherTable => "a table of a gather",
            UnfusedReason::MemoryAlias => "an alias of memory",
            UnfusedReason::Cycle => "a circle",
            UnfusedReason::KernelFull => "a full kernel",
            UnfusedReason::TooManySorts => "many sorts",
            UnfusedReason::ReductionStage => "stages of a reduction",
        })
    }
}
