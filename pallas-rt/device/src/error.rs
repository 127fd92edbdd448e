//! Everything that can go wrong, as one enum.
//!
//! A message says what was asked, what the limit is and what to do about it. Users' mistakes and device trouble are
//! values of this type; the library does not panic over them.
use pallas_codegen::interp::Fault;
use pallas_ir::{At, DType, Diag, Loc};
use std::any::Any;
use std::fmt;

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. Its `Debug` is the message too, so that `fn main() -> Result<()>` prints it.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A kernel, or a call of one, is wrong.
    #[error(transparent)]
    Kernel(Box<KernelError>),
    /// An operation on arrays, or a transformation of a function, is wrong.
    #[error(transparent)]
    Operation(Box<OperationError>),
    /// Data of the wrong length for a shape.
    #[error("{}an array of shape {shape:?} holds {expected} {unit}, {found} were given", line(*called))]
    Length {
        /// The user's line; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// The shape asked for.
        shape: Vec<usize>,
        /// Its length.
        expected: usize,
        /// The length that was given.
        found: usize,
        /// The unit of both numbers: `elements` or `bytes`.
        unit: &'static str,
    },
    /// Elements read or written as another type than they are.
    #[error(
        "{}the array's elements are {array}, {asked} was asked for; help: use `{array}`, or cast first",
        line(*called)
    )]
    ElementType {
        /// The user's line; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// Type of the array's elements.
        array: DType,
        /// Type asked for.
        asked: DType,
    },
    /// Bytes that are no value of their element type.
    #[error("{message}")]
    Value {
        /// The value that was found, and its position.
        message: String,
    },
    /// A shape with more elements than memory has addresses.
    #[error("an array of shape {shape:?} and element type {dtype} is larger than the address space")]
    Overflow {
        /// The shape asked for.
        shape: Vec<usize>,
        /// Its element type.
        dtype: DType,
    },
    /// A reshape that changes the number of elements.
    #[error(
        "{}shape {from:?} has {} elements, {to:?} has {}; help: a reshape keeps their number",
        line(*called),
        count(from),
        asked(to)
    )]
    Reshape {
        /// The user's line; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// The array's shape.
        from: Vec<usize>,
        /// The shape asked for, in which -1 stands for as many elements as are left.
        to: Vec<isize>,
    },
    /// An output given to `into` that does not serve.
    #[error(
        "output {index} cannot be written: {message}; help: give an array of the result's element type, shape and \
         client that nobody else holds"
    )]
    Output {
        /// Its index, from 0.
        index: usize,
        /// Why not.
        message: String,
    },
    /// Arrays of two clients in one call.
    #[error(
        "{}{what} lives on {found}, the call runs on {expected}; help: move it with `to_device(&client)`",
        line(*called)
    )]
    ForeignClient {
        /// The user's line; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// The array on the other client: an operand's name, or `the output`.
        what: String,
        /// The client that it is on.
        found: String,
        /// The client that it should be on.
        expected: String,
    },
    /// The memory limit does not allow an allocation.
    #[error(
        "{device}: {} asked for, {} of {} in use{}; help: drop arrays, donate inputs by passing them by value, or \
         raise `set_memory_limit`",
        Bytes(*asked),
        Bytes(*in_use),
        Bytes(*limit),
        cause.as_ref().map_or(String::new(), |cause| format!(", and the device refused: {cause}"))
    )]
    Memory {
        /// Bytes asked for.
        asked: u64,
        /// The limit.
        limit: u64,
        /// Bytes in use.
        in_use: u64,
        /// The device's name.
        device: String,
        /// The message of the device, if the limit is not ours.
        cause: Option<String>,
    },
    /// More than the device has of something.
    #[error("{device}: {asked} {what} asked for, the limit is {limit}; help: {help}")]
    Limit {
        /// Of what: `storage buffer bindings of kernel add`.
        what: String,
        /// The amount requested.
        asked: u64,
        /// The amount available.
        limit: u64,
        /// The device's name.
        device: String,
        /// A suggestion.
        help: &'static str,
    },
    /// Something this device or build does not do at all.
    #[error("{device} has no {what}; help: {help}")]
    Unsupported {
        /// The request.
        what: String,
        /// The device's name.
        device: String,
        /// A suggestion.
        help: &'static str,
    },
    /// No such device.
    #[error("no device `{asked}`: {found}")]
    NoDevice {
        /// The request.
        asked: String,
        /// The available devices, or the reason why there is none.
        found: String,
    },
    /// An environment variable with a value that is not allowed.
    #[error("{variable}={value} is not understood; allowed: {allowed}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The values that are allowed.
        allowed: &'static str,
    },
    /// A choice that holds for the whole process, made differently before.
    #[error("{what} was settled by {by}; help: choose before the first kernel is called")]
    Settled {
        /// The choice.
        what: &'static str,
        /// The first use, with its place.
        by: String,
    },
    /// The driver refused a shader.
    #[error(
        "the driver refused the shader of kernel `{kernel}`{}: {message}; help: run it on the CPU, and report this with \
         the text of `explain`",
        if at.is_empty() { String::new() } else { format!(" ({at})") }
    )]
    Shader {
        /// The kernel it was made from.
        kernel: String,
        /// The user's line it comes from, as far as the driver says where it fails; else the kernel's. Empty if unknown.
        at: String,
        /// The driver's words.
        message: String,
    },
    /// The driver refused something else.
    #[error("{device} failed to {action}: {message}")]
    Driver {
        /// The action that failed.
        action: String,
        /// The device's name.
        device: String,
        /// The driver's words.
        message: String,
    },
    /// The device is gone; every later call on its client answers this.
    #[error("{device} is lost: {message}; help: make a new client and upload the data again")]
    DeviceLost {
        /// The device's name.
        device: String,
        /// The driver's words.
        message: String,
    },
    /// Elements or memory of an array that is a value of a function being traced.
    #[error("{message}")]
    Traced {
        /// What was tried, and what to do instead.
        message: String,
    },
    /// A loop or a branch in which devices of a mesh that exchange arrays go different ways.
    #[error(
        "{what} is {found} on device {device} and {expected} on one that it exchanges with; help: devices take steps in which \
         they exchange together: reduce what decides over the axes of the exchange first"
    )]
    Varies {
        /// The value that decides.
        what: &'static str,
        /// The first device that has another value than those that it exchanges with.
        device: usize,
        /// The value on the first one of these.
        expected: i32,
        /// The value on that device.
        found: i32,
    },
    /// Devices of a mesh that do not take part in the same exchange.
    #[error(transparent)]
    Collective(Box<CollectiveError>),
    /// Trees of different structures, or leaves that are not as many as a tree's.
    #[error("{}{message}", line(*called))]
    Tree {
        /// The user's line; [`Loc::NONE`] if it is not known.
        called: Loc,
        /// The path at which they differ, or both numbers.
        message: String,
    },
    /// A file that does not hold what it should.
    #[error("{path}: {message}")]
    File {
        /// Its path.
        path: String,
        /// The mistake.
        message: String,
    },
}

/// A mistake in a call of an operation on arrays.
#[derive(Clone, Debug, PartialEq)]
pub struct OperationError {
    /// The line of the call.
    pub called: Loc,
    /// The mistake and its remedy.
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

/// An exchange in which a device of its group does not take part.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveError {
    /// The line of the exchange; [`Loc::NONE`] if no line is to blame.
    pub at: Loc,
    /// The exchange: its name, axes, type and number.
    pub exchange: String,
    /// The device or rank that reports it.
    pub by: String,
    /// The device or rank that does not take part.
    pub peer: String,
    /// The peer's own action, or its failure.
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

/// A mistake in a kernel, or in a call of one, with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelError {
    /// The kernel's name.
    pub kernel: String,
    /// The user's line; [`Loc::NONE`] if no line is to blame.
    pub loc: Loc,
    /// The line that called the kernel; [`Loc::NONE`] if it is not known.
    pub called: Loc,
    /// The instruction in the IR's text form, or the operand's name; may be empty.
    pub context: String,
    /// The mistake and its remedy.
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

/// The message of a panic.
pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

impl Error {
    /// An error of `kernel` at the user's line `loc`; `context` is the instruction's text or the operand's name.
    pub fn kernel(kernel: impl Into<String>, loc: Loc, context: impl Into<String>, diag: Diag) -> Self {
        let (kernel, context) = (kernel.into(), context.into());
        Error::Kernel(Box::new(KernelError { kernel, loc, called: Loc::NONE, context, diag }))
    }
    /// An error of an operation that was called at this line.
    #[doc(hidden)]
    pub fn operation(called: Loc, diag: Diag) -> Self {
        Error::Operation(Box::new(OperationError { called, diag }))
    }

    /// Returns the same error for a kernel or an operation that was called at this line, unless it knows its line.
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

    /// The message's code, stable for tests: that of the [`Diag`], or the variant's name in kebab case.
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

/// The mistake as an error at the line of the `?` that returns it.
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

/// A line in front of a message.
fn line(called: Loc) -> String {
    if called == Loc::NONE { String::new() } else { format!("{called}: ") }
}

/// Number of elements for a message; saturates, since a message must not fail.
fn count(shape: &[usize]) -> usize {
    shape.iter().fold(1, |n, &extent| n.saturating_mul(extent))
}

/// The number of elements of a shape that was asked for.
fn asked(shape: &[isize]) -> String {
    let known: Vec<usize> = shape.iter().filter_map(|&extent| usize::try_from(extent).ok()).collect();
    match known.len() == shape.len() {
        true => count(&known).to_string(),
        false => format!("a multiple of {}, by one extent of -1", count(&known)),
    }
}

/// A byte count as people read it: `640 B`, `1.50 MiB`.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
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
