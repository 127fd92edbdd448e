//! Faults of the strict interpreter that a kernel means.
use std::fmt;

/// Faults of the strict interpreter that are meant, so that it does not report them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Allow {
    /// Integers of 8 and 16 bits wrap around.
    pub overflow: bool,
    /// A step may replace elements of an output that an earlier step stored and no step read.
    pub lost_store: bool,
}

impl Allow {
    /// Returns true if nothing is meant.
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
