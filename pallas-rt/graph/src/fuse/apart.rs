//! Why equations do not share a kernel.
use std::fmt;

/// Why a kernel reads a value from memory instead of computing it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Apart {
    /// A loop, a branch, a kernel of the user, a scatter or a window at unknown positions shares its step with no other.
    Alone,
    /// The kernel has, or would have, two products.
    Product,
    /// Its readers want different blocks of it, or its own operation has no such blocks.
    Cuts,
    /// Several programs would compute it again, and that is too much work; or others read it too.
    Repeated,
    /// Another kernel computes it already.
    Taken,
    /// A gather reads any part of it.
    Table,
    /// It is a reshape of what is in memory anyway.
    Alias,
    /// Two kernels would wait for each other.
    Circle,
    /// The kernel has as many operations as it may.
    Full,
    /// The kernel's sorts put as many elements in order as a program may.
    Sorts,
    /// Its programs fold parts of a long reduction, and this one what they give.
    Stage,
}

impl Apart {
    /// This reason, unless something holds.
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
