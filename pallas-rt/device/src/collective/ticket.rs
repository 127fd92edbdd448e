//! Tickets: descriptions of a collective, which the members of a group compare before they exchange data.
use serde::{Deserialize, Serialize};
use std::fmt;

/// Description of the collective that a device is about to begin. The tickets of a group must be equal, except for the
/// line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ticket {
    /// Number of the collective in its program. It tells equal collectives apart, so that a device that leaves out one
    /// of them is not paired with the next.
    pub step: u64,
    /// Kind of the collective, as in `all_reduce add`.
    pub kind: String,
    /// Names of the mesh axes, as in `"data", "model"`.
    pub axes: String,
    /// Shape of the result.
    pub shape: Vec<usize>,
    /// Element type of the result.
    pub dtype: String,
    /// Dimensions of the result from the slowest to the fastest in memory.
    pub layout: Vec<usize>,
    /// Source position, which is not compared: equal functions may be at different positions.
    pub line: String,
}

impl Ticket {
    /// The first field in which another ticket differs, as a statement about its owner; `None` if they are equal.
    #[doc(hidden)]
    pub fn first_difference(&self, other: &Ticket) -> Option<String> {
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

    /// Text of the ticket without the source position.
    #[doc(hidden)]
    pub fn text_without_line(self) -> String {
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
