//! A wrong kernel, caught while it runs.
use pallas_ir::Loc;
use std::fmt;

/// A fault of a kernel, with its program and the user's source line.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// A short stable name of the class: `poison`, `race`, `unwritten` ...
    pub code: &'static str,
    /// The kernel's name.
    pub kernel: String,
    /// Program ids of the step.
    pub program: Vec<i64>,
    /// The user's line; [`Loc::NONE`] when no line is to blame.
    pub loc: Loc,
    /// The fault that was found.
    pub message: String,
    /// The way to correct it.
    pub help: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loc != Loc::NONE {
            write!(f, "{}: ", self.loc)?;
        }
        write!(f, "kernel `{}`, program {:?}: {}", self.kernel, self.program, self.message)?;
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}
impl std::error::Error for Fault {}
