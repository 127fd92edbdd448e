//! The error type of the library: everything that can go wrong, as one enum.
//!
//! A message says what was asked, what the limit is and what to do about it. Users' mistakes and device trouble are
//! values of this type; the library does not panic over them.
use pallas_codegen::interp::Fault;
use pallas_ir::{At, DType, Diag, Loc};
use std::any::Any;
use std::fmt;

/// The result type of the library's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the library. Its `Debug` text is its message, so that `fn main() -> Result<()>` prints it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A mistake in a kernel or in a call of one.
    #[error(transparent)]
    Kernel(Box<KernelError>),
    /// A mistake in an operation on arrays or in a transformation of a function.
    #[error(transparent)]
    Operation(Box<OperationError>),
    /// Data whose length differs from the number of elements of the shape.
    #[error("{}an array of shape {shape:?} holds {expected} {unit}, {found} were given", location_prefix(*called))]
    Length {
        /// Source position of the call; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// The shape asked for.
        shape: Vec<usize>,
        /// Length that the shape needs.
        expected: usize,
        /// Length of the given data.
        found: usize,
        /// Unit of both lengths: `elements` or `bytes`.
        unit: &'static str,
    },
    /// An access to elements as another type than the array's.
    #[error(
        "{}the array's elements are {array}, {asked} was asked for; help: use `{array}`, or cast first",
        location_prefix(*called)
    )]
    ElementType {
        /// Source position of the call; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// Type of the array's elements.
        array: DType,
        /// Type asked for.
        asked: DType,
    },
    /// Bytes that are not a valid value of their element type.
    #[error("{message}")]
    Value {
        /// The invalid value and its position.
        message: String,
    },
    /// A shape with more bytes than the address space.
    #[error("an array of shape {shape:?} and element type {dtype} is larger than the address space")]
    Overflow {
        /// The shape asked for.
        shape: Vec<usize>,
        /// The element type asked for.
        dtype: DType,
    },
    /// A reshape to a shape with another number of elements.
    #[error(
        "{}shape {from:?} has {} elements, {to:?} has {}; help: a reshape keeps their number",
        location_prefix(*called),
        saturating_element_count(from),
        requested_elements_text(to)
    )]
    Reshape {
        /// Source position of the call; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// The array's shape.
        from: Vec<usize>,
        /// The requested shape; -1 is an extent to be computed from the others.
        to: Vec<isize>,
    },
    /// An array given to `into` that cannot take the result.
    #[error(
        "output {index} cannot be written: {message}; help: give an array of the result's element type, shape and \
         client that nobody else holds"
    )]
    Output {
        /// Index of the output, from 0.
        index: usize,
        /// Reason why it cannot be written.
        message: String,
    },
    /// Arrays of two clients in the same call.
    #[error(
        "{}{what} lives on {found}, the call runs on {expected}; help: move it with `to_device(&client)`",
        location_prefix(*called)
    )]
    ForeignClient {
        /// Source position of the call; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// The array on the wrong client: an operand's name, or `the output`.
        what: String,
        /// Name of the client that holds the array.
        found: String,
        /// Name of the client that runs the call.
        expected: String,
    },
    /// An allocation beyond the memory limit.
    #[error(
        "{device}: {} asked for, {} of {} in use{}; help: drop arrays, donate inputs by passing them by value, or \
         raise `set_memory_limit`",
        DisplayedBytes(*asked),
        DisplayedBytes(*in_use),
        DisplayedBytes(*limit),
        cause.as_ref().map_or(String::new(), |cause| format!(", and the device refused: {cause}"))
    )]
    Memory {
        /// Bytes of the allocation.
        asked: u64,
        /// The memory limit in bytes.
        limit: u64,
        /// Bytes in use before the allocation.
        in_use: u64,
        /// The device's name.
        device: String,
        /// The device's message, if the device refused and not the configured limit.
        cause: Option<String>,
    },
    /// A request beyond a limit of the device other than memory.
    #[error("{device}: {asked} {what} asked for, the limit is {limit}; help: {help}")]
    Limit {
        /// The limited resource: `storage buffer bindings of kernel add`.
        what: String,
        /// Requested amount of the resource.
        asked: u64,
        /// Amount of the resource that the device allows.
        limit: u64,
        /// The device's name.
        device: String,
        /// Suggestion for the user.
        help: &'static str,
    },
    /// A request that this device or this build does not support.
    #[error("{device} has no {what}; help: {help}")]
    Unsupported {
        /// The unsupported request.
        what: String,
        /// The device's name.
        device: String,
        /// Suggestion for the user.
        help: &'static str,
    },
    /// A device name that does not match any device.
    #[error("no device `{asked}`: {found}")]
    NoDevice {
        /// The device name asked for.
        asked: String,
        /// The available devices, or the reason why there is none.
        found: String,
    },
    /// An environment variable whose value is not allowed.
    #[error("{variable}={value} is not understood; allowed: {allowed}")]
    Environment {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A choice for the whole process that comes too late, because an earlier use fixed it.
    #[error("{what} was settled by {by}; help: choose before the first kernel is called")]
    Settled {
        /// Name of the choice.
        what: &'static str,
        /// The first use, with its source position.
        by: String,
    },
    /// A shader that the driver refused.
    #[error(
        "the driver refused the shader of kernel `{kernel}`{}: {message}; help: run it on the CPU, and report this with \
         the text of `explain`",
        if at.is_empty() { String::new() } else { format!(" ({at})") }
    )]
    Shader {
        /// Name of the kernel that the shader was made from.
        kernel: String,
        /// Source position of the failing line if the driver reports one, else of the kernel. Empty if unknown.
        at: String,
        /// The driver's message.
        message: String,
    },
    /// A failed action of the driver, other than compiling a shader.
    #[error("{device} failed to {action}: {message}")]
    Driver {
        /// The action that failed.
        action: String,
        /// The device's name.
        device: String,
        /// The driver's message.
        message: String,
    },
    /// A lost device; every later call on its client returns this error.
    #[error("{device} is lost: {message}; help: make a new client and upload the data again")]
    DeviceLost {
        /// The device's name.
        device: String,
        /// The driver's message.
        message: String,
    },
    /// An access to elements or memory of an array that is only a symbolic value of a function being traced.
    #[error("{message}")]
    Traced {
        /// The attempted access, and what to do instead.
        message: String,
    },
    /// A loop or branch on which devices of one collective's group disagree, so that they would not all reach the
    /// collective.
    #[error(
        "{what} is {found} on device {device} and {expected} on one that it exchanges with; help: devices take steps in which \
         they exchange together: reduce what decides over the axes of the exchange first"
    )]
    Varies {
        /// The value that decides about the loop or branch.
        what: &'static str,
        /// The first device whose value differs from its group's.
        device: usize,
        /// The value on the first device of the group.
        expected: i32,
        /// The value on `device`.
        found: i32,
    },
    /// A collective in which a device of its group does not take part.
    #[error(transparent)]
    Collective(Box<CollectiveError>),
    /// Trees of different structures, or a number of leaves that does not fit a tree.
    #[error("{}{message}", location_prefix(*called))]
    Tree {
        /// Source position of the call; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// The path at which the trees differ, or both numbers of leaves.
        message: String,
    },
    /// A file with invalid contents.
    #[error("{path}: {message}")]
    File {
        /// Path of the file.
        path: String,
        /// Description of the mistake.
        message: String,
    },
}

/// A mistake in a call of an operation on arrays.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationError {
    /// Source position of the call.
    pub called: Loc,
    /// The mistake and how to fix it.
    pub diag: Diag,
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.called != Loc::NONE {
            write!(f, "{}: ", self.called)?;
        }
        f.write_str(&self.diag.message)?;
        if self.diag.help.is_empty() { Ok(()) } else { write!(f, "; help: {}", self.diag.help) }
    }
}

impl std::error::Error for OperationError {}

/// The error of a collective in which a device of its group does not take part.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveError {
    /// Source position of the collective; [`Loc::NONE`] if it is not known.
    pub at: Loc,
    /// Description of the collective: its name, axes, type and number.
    pub exchange: String,
    /// The device or rank that reports the error.
    pub by: String,
    /// The device or rank that does not take part.
    pub peer: String,
    /// The peer's action in place of the collective, or its failure.
    pub found: String,
}

impl fmt::Display for CollectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at != Loc::NONE {
            write!(f, "{}: ", self.at)?;
        }
        let CollectiveError { exchange, by, peer, found, .. } = self;
        write!(
            f,
            "{exchange} on {by}: {peer} {found}; help: all devices take part in the same collectives in the same order"
        )
    }
}

impl std::error::Error for CollectiveError {}

/// A mistake in a kernel, or in a call of one, with its source position.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelError {
    /// The kernel's name.
    pub kernel: String,
    /// Source position of the mistake; [`Loc::NONE`] if no line is to blame.
    pub loc: Loc,
    /// Source position of the kernel's call; [`Loc::NONE`] if it is not known.
    pub called: Loc,
    /// The instruction in the IR's text form, or the operand's name; may be empty.
    pub context: String,
    /// The mistake and how to fix it.
    pub diag: Diag,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loc != Loc::NONE {
            write!(f, "{}: ", self.loc)?;
        }
        write!(f, "kernel `{}`", self.kernel)?;
        if self.called != Loc::NONE {
            write!(f, ", called at {}", self.called)?;
        }
        if !self.context.is_empty() {
            write!(f, ", {}", self.context)?;
        }
        write!(f, ": {}", self.diag.message)?;
        if !self.diag.help.is_empty() {
            write!(f, "; help: {}", self.diag.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for KernelError {}

/// The message of a caught panic's payload.
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

impl Error {
    /// Creates an error of `kernel` at source position `loc`; `context` is the instruction's text or the operand's
    /// name.
    pub fn kernel(kernel: impl Into<String>, loc: Loc, context: impl Into<String>, diag: Diag) -> Self {
        let (kernel, context) = (kernel.into(), context.into());
        Error::Kernel(Box::new(KernelError { kernel, loc, called: Loc::NONE, context, diag }))
    }
    /// Creates an error of an operation that was called at this source position.
    #[doc(hidden)]
    pub fn operation(called: Loc, diag: Diag) -> Self {
        Error::Operation(Box::new(OperationError { called, diag }))
    }

    /// Sets the source position of the call, for errors that have one and do not know it yet.
    #[doc(hidden)]
    pub fn called_at(mut self, loc: Loc) -> Self {
        let called = match &mut self {
            Error::Kernel(e) => &mut e.called,
            Error::Operation(e) => &mut e.called,
            Error::Length { called, .. }
            | Error::ElementType { called, .. }
            | Error::Reshape { called, .. }
            | Error::ForeignClient { called, .. }
            | Error::Tree { called, .. } => called,
            _ => return self,
        };
        if *called == Loc::NONE {
            *called = loc;
        }
        self
    }

    /// A stable code of the error, for tests: that of its [`Diag`], or the variant's name in kebab case.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Kernel(e) => e.diag.code,
            Error::Operation(e) => e.diag.code,
            Error::Length { .. } => "length",
            Error::ElementType { .. } => "element-type",
            Error::Value { .. } => "value",
            Error::Overflow { .. } => "overflow",
            Error::Reshape { .. } => "reshape",
            Error::Output { .. } => "output",
            Error::ForeignClient { .. } => "foreign-client",
            Error::Memory { .. } => "memory",
            Error::Limit { .. } => "limit",
            Error::Unsupported { .. } => "unsupported",
            Error::NoDevice { .. } => "no-device",
            Error::Environment { .. } => "environment",
            Error::Settled { .. } => "settled",
            Error::Shader { .. } => "shader",
            Error::Driver { .. } => "driver",
            Error::DeviceLost { .. } => "device-lost",
            Error::Traced { .. } => "traced",
            Error::Tree { .. } => "tree",
            Error::Varies { .. } => "varies",
            Error::Collective(_) => "collective",
            Error::File { .. } => "file",
        }
    }
}

/// Converts a fault of a running kernel to an error.
impl From<Fault> for Error {
    fn from(fault: Fault) -> Error {
        // A fault that belongs to no program is one of the whole launch.
        let context = if fault.program.is_empty() { String::new() } else { format!("program {:?}", fault.program) };
        Error::kernel(fault.kernel, fault.loc, context, Diag::new(fault.code, At::Op, fault.message, fault.help))
    }
}

impl From<Diag> for Error {
    #[track_caller]
    fn from(diag: Diag) -> Error {
        Error::operation(Loc::caller(), diag)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Prefix of a message that names the call's source position; empty if it is not known.
fn location_prefix(called: Loc) -> String {
    if called == Loc::NONE { String::new() } else { format!("{called}: ") }
}

/// Number of elements of a shape for a message; saturates, since a message must not fail.
fn saturating_element_count(shape: &[usize]) -> usize {
    shape.iter().fold(1, |n, &extent| n.saturating_mul(extent))
}

/// Number of elements of a requested shape as text; with an extent of -1, what it must be a multiple of.
fn requested_elements_text(shape: &[isize]) -> String {
    let known: Vec<usize> = shape.iter().filter_map(|&extent| usize::try_from(extent).ok()).collect();
    match known.len() == shape.len() {
        true => saturating_element_count(&known).to_string(),
        false => format!("a multiple of {}, by one extent of -1", saturating_element_count(&known)),
    }
}

/// Number of bytes that displays in a readable unit: `640 B`, `1.50 MiB`.
pub struct DisplayedBytes(pub u64);

impl fmt::Display for DisplayedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == u64::MAX {
            return f.write_str("unlimited");
        }
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.into_iter().find(|(_, shift)| self.0 >> shift > 0) {
            Some((unit, shift)) => write!(f, "{:.2} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_was_asked_and_what_to_do() {
        let check = |error: Error, expected: &str| assert_eq!(error.to_string(), expected);
        check(
            Error::Length { called: Loc::NONE, shape: vec![2, 3], expected: 6, found: 5, unit: "elements" },
            "an array of shape [2, 3] holds 6 elements, 5 were given",
        );
        check(
            Error::Memory { asked: 3 << 20, limit: 4 << 20, in_use: 2 << 20, device: "cpu".into(), cause: None },
            "cpu: 3.00 MiB asked for, 2.00 MiB of 4.00 MiB in use; help: drop arrays, donate inputs by passing them by \
             value, or raise `set_memory_limit`",
        );
        check(
            Error::Environment { variable: "PALLAS_DEVICE", value: "tpu".into(), allowed: "cpu" },
            "PALLAS_DEVICE=tpu is not understood; allowed: cpu",
        );
    }
}
