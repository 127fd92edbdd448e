//! Tickets, about which the members of a group must agree before they exchange anything.
use serde::{Deserialize, Serialize};
use std::fmt;

/// The exchange that a device is about to begin. The tickets of a group are equal but for their lines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ticket {
    /// The number of the exchange among those of its program. It tells equal exchanges apart, so that a device that leaves
    /// out one of them is not paired with the next.
    pub step: u64,
    /// The operation, as in `all_reduce add`.
    pub kind: String,
    /// The names of the axes, as in `"data", "model"`.
    pub axes: String,
    /// The shape of the result.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: String,
    /// The dimensions from the slowest to the fastest one in memory.
    pub layout: Vec<usize>,
    /// The user's line, which is not compared: functions of one text may be at different places.
    pub line: String,
}

impl Ticket {
    /// The first part in which another ticket differs, as a statement about its owner; `None` if they are equal.
    #[doc(hidden)]
    pub fn difference(&self, other: &Ticket) -> Option<String> {
        let part = if self.kind != other.kind {
            "kind"
        } else if self.axes != other.axes {
            "axes"
        } else if self.shape != other.shape {
            "shape"
        } else if self.dtype != other.dtype {
            "element type"
        } else if self.layout != other.layout {
            "layout"
        } else if self.step != other.step {
            "step"
        } else {
            return None;
        };
        Some(format!("is at an exchange of another {part}: {other}"))
    }

    /// Its text without the line.
    #[doc(hidden)]
    pub fn without_line(self) -> String {
        Ticket { line: String::new(), ..self }.to_string()
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ticket { step, kind, axes, shape, dtype, layout, line } = self;
        write!(f, "{kind}")?;
        // Messages between processes concern no axes and no array.
        if !axes.is_empty() {
            write!(f, " over {axes}")?;
        }
        if !dtype.is_empty() {
            write!(f, " to {dtype}{shape:?}")?;
        }
        write!(f, ", step {step}")?;
        if !layout.iter().copied().eq(0..shape.len()) {
            write!(f, ", layout {layout:?}")?;
        }
        if line.is_empty() { Ok(()) } else { write!(f, " ({line})") }
    }
}
