//! Faults of the strict interpreter that a kernel intends.
use std::fmt;

/// Faults that a kernel intends, so that the strict interpreter does not report them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Allow {
    /// True if integers of 8 and 16 bits may wrap around.
    pub overflow: bool,
    /// True if a step may replace elements of an output that an earlier step stored and no step read.
    pub lost_store: bool,
}

impl Allow {
    /// Returns true if no fault is intended.
    pub(crate) fn is_none(self) -> bool {
        self == Allow::default()
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = [(self.overflow, "overflow"), (self.lost_store, "lost_store")];
        let names: Vec<&str> = named.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
        f.write_str(&names.join(" "))
    }
}
