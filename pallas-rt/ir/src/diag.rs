//! One message type for the macro, the tracer and the run time.
use std::fmt;

/// What a message points at; the caller owns the spans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// The operation.
    Op,
    /// One of its operands.
    Operand(usize),
}

/// A user's mistake, in user words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diag {
    /// A short stable name of the rule.
    pub code: &'static str,
    /// What is to blame.
    pub at: At,
    /// What was found: lower case, no final period.
    pub message: String,
    /// What is allowed, or what to write instead; may be empty.
    pub help: String,
}

impl Diag {
    /// A message.
    pub fn new(code: &'static str, at: At, message: String, help: impl Into<String>) -> Self {
        Diag { code, at, message, help: help.into() }
    }
}

impl fmt::Display for Diag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "\n  help: {}", self.help) }
    }
}

/// `[BQ, D]`
pub fn shape(dims: &[crate::Dim]) -> String {
    format!("[{}]", dims.iter().map(|d| d.to_string()).collect::<Vec<_>>().join(", "))
}
