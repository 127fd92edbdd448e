//! Reasons why equations do not share a kernel.
use std::fmt;

/// Reason why a kernel reads a value from memory instead of computing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Apart {
    /// The value's operation is a step of its own: a loop, a branch, a kernel of the user, a scatter, or a window at a
    /// position that is only known at run time.
    Alone,
    /// With the value, the kernel would compute two products.
    Product,
    /// Members of the kernel need different blocks of the value, or its operation cannot compute these blocks.
    Cuts,
    /// Several programs would compute the value again and that is too much work, or other kernels read it too.
    Repeated,
    /// Another kernel computes the value already.
    Taken,
    /// The value is the table of a gather, which may read any part of it.
    Table,
    /// The value is a reshape of another one that is in memory anyway.
    Alias,
    /// If the kernel computed the value, two kernels would need each other's results.
    Circle,
    /// The kernel has as many operations as it may have, without the value's.
    Full,
    /// The kernel's sorts already order as many elements as a program may.
    Sorts,
    /// The kernel folds parts of a long reduction, and this value is the result of such a fold or the reverse.
    Stage,
}

impl Apart {
    /// Returns `reason` as an error unless the condition `holds`.
    pub(super) fn unless(holds: bool, reason: Apart) -> Result<(), Apart> {
        if holds { Ok(()) } else { Err(reason) }
    }
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Apart::Alone => "a step of its own",
            Apart::Product => "two products",
            Apart::Cuts => "other blocks",
            Apart::Repeated => "repeated work",
            Apart::Taken => "computed by another kernel",
            Apart::Table => "a table of a gather",
            Apart::Alias => "a reshape of memory",
            Apart::Circle => "a circle",
            Apart::Full => "a full kernel",
            Apart::Sorts => "many sorts",
            Apart::Stage => "stages of a reduction",
        })
    }
}
