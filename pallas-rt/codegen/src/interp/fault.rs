//! A mistake of a kernel that was found while it ran.
use pallas_ir::Loc;
use std::fmt;

/// A fault of a kernel, with the program that had it and the user's source line.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Short stable name of the class of fault: `poison`, `race`, `unwritten` ..
    pub code: &'static str,
    /// Name of the kernel.
    pub kernel: String,
    /// Program ids of the step that had the fault.
    pub program: Vec<i64>,
    /// The user's line; [`Loc::NONE`] if the fault belongs to no line.
    pub loc: Loc,
    /// Description of the fault.
    pub message: String,
    /// The way to correct the kernel.
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
