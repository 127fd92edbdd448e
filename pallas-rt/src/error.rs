//! Everything that can go wrong, as one enum.
//!
//! A message says what was asked, what the limit is and what to do about it. Users' mistakes and device trouble are
//! values of this type; the library does not panic over them.
use pallas_ir::{DType, Diag, Loc};
use std::fmt;

/// What this crate's fallible functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. Its `Debug` is the message too, so that `fn main() -> Result<()>` prints it.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A kernel, or a call of one, is wrong.
    Kernel(Box<KernelError>),
    /// Data of the wrong length for a shape.
    Length {
        /// The shape asked for.
        shape: Vec<usize>,
        /// How much it holds.
        expected: usize,
        /// How much was given.
        found: usize,
        /// What is counted: `elements` or `bytes`.
        unit: &'static str,
    },
    /// Elements read or written as another type than they are.
    ElementType {
        /// Type of the array's elements.
        array: DType,
        /// Type asked for.
        asked: DType,
    },
    /// Bytes that are no value of their element type.
    Value {
        /// What was found where.
        message: String,
    },
    /// A shape with more elements than memory has addresses.
    Overflow {
        /// The shape asked for.
        shape: Vec<usize>,
        /// Its element type.
        dtype: DType,
    },
    /// A reshape that changes the number of elements.
    Reshape {
        /// The array's shape.
        from: Vec<usize>,
        /// The shape asked for.
        to: Vec<usize>,
    },
    /// An output given to [`into`](crate::into) that does not serve.
    Output {
        /// Which one, from 0.
        index: usize,
        /// Why not.
        message: String,
    },
    /// Arrays of two clients in one call.
    ForeignClient {
        /// Who came from elsewhere: an operand's name, `the output`.
        what: String,
        /// Where it lives.
        found: String,
        /// Where it should live.
        expected: String,
    },
    /// The memory limit does not allow an allocation.
    Memory {
        /// Bytes asked for.
        asked: u64,
        /// The limit.
        limit: u64,
        /// Bytes in use.
        in_use: u64,
        /// The device's name.
        device: String,
        /// What the device said, if it was not our own limit.
        cause: Option<String>,
    },
    /// More than the device has of something.
    Limit {
        /// Of what: `storage buffer bindings of kernel add`.
        what: String,
        /// How much was asked for.
        asked: u64,
        /// How much there is.
        limit: u64,
        /// The device's name.
        device: String,
        /// What to do.
        help: &'static str,
    },
    /// Something this device or build does not do at all.
    Unsupported {
        /// What was asked for.
        what: String,
        /// The device's name.
        device: String,
        /// What to do.
        help: &'static str,
    },
    /// No such device.
    NoDevice {
        /// What was asked for.
        asked: String,
        /// What there is instead, or why there is none.
        found: String,
    },
    /// An environment variable with a value that is not allowed.
    Environment {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A choice that holds for the whole process, made differently before.
    Settled {
        /// What was chosen.
        what: &'static str,
        /// The first use, with its place.
        by: String,
    },
    /// The driver refused a shader.
    Shader {
        /// The kernel it was made from.
        kernel: String,
        /// The user's line it comes from, as far as the driver says where it fails; else the kernel's. Empty if unknown.
        at: String,
        /// The driver's words.
        message: String,
    },
    /// The driver refused something else.
    Driver {
        /// What was being done.
        action: String,
        /// The device's name.
        device: String,
        /// The driver's words.
        message: String,
    },
    /// The device is gone; every later call on its client answers this.
    DeviceLost {
        /// The device's name.
        device: String,
        /// The driver's words.
        message: String,
    },
    /// A file that does not hold what it should.
    File {
        /// Its path.
        path: String,
        /// What is wrong.
        message: String,
    },
}

/// A mistake in a kernel, or in a call of one, with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelError {
    /// The kernel's name.
    pub kernel: String,
    /// The user's line; [`Loc::NONE`] if no line is to blame.
    pub loc: Loc,
    /// The line that called the kernel; [`Loc::NONE`] if that is not known.
    pub called: Loc,
    /// The instruction in the IR's text form, or the operand's name; may be empty.
    pub context: String,
    /// What is wrong and what to do.
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

impl Error {
    /// An error of `kernel` at the user's line `loc`; `context` is the instruction's text or the operand's name.
    pub fn kernel(kernel: impl Into<String>, loc: Loc, context: impl Into<String>, diag: Diag) -> Self {
        let (kernel, context) = (kernel.into(), context.into());
        Error::Kernel(Box::new(KernelError { kernel, loc, called: Loc::NONE, context, diag }))
    }
    /// The same error of a kernel that was called at this line.
    pub(crate) fn called_at(mut self, loc: Loc) -> Self {
        if let Error::Kernel(e) = &mut self {
            e.called = loc;
        }
        self
    }

    /// The message's code, stable for tests: that of the [`Diag`], or the variant's name in kebab case.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Kernel(e) => e.diag.code,
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
            Error::File { .. } => "file",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Kernel(e) => fmt::Display::fmt(e, f),
            Error::Length { shape, expected, found, unit } => {
                write!(f, "an array of shape {shape:?} holds {expected} {unit}, {found} were given")
            }
            Error::ElementType { array, asked } => {
                write!(
                    f,
                    "the array's elements are {array}, {asked} was asked for; help: use `{array}`, or cast in a kernel"
                )
            }
            Error::Value { message } => f.write_str(message),
            Error::Overflow { shape, dtype } => {
                write!(f, "an array of shape {shape:?} and element type {dtype} is larger than the address space")
            }
            Error::Reshape { from, to } => write!(
                f,
                "shape {from:?} has {} elements, {to:?} has {}; help: a reshape keeps their number",
                count(from),
                count(to)
            ),
            Error::Output { index, message } => write!(
                f,
                "output {index} cannot be written: {message}; help: give an array of the result's element type, shape and \
                 client that nobody else holds"
            ),
            Error::ForeignClient { what, found, expected } => write!(
                f,
                "{what} lives on {found}, the call runs on {expected}; help: move it with `to_device(&client)`"
            ),
            Error::Memory { asked, limit, in_use, device, cause } => {
                write!(f, "{device}: {} asked for, {} of {} in use", Bytes(*asked), Bytes(*in_use), Bytes(*limit))?;
                if let Some(cause) = cause {
                    write!(f, ", and the device refused: {cause}")?;
                }
                write!(f, "; help: drop arrays, donate inputs by passing them by value, or raise `set_memory_limit`")
            }
            Error::Limit { what, asked, limit, device, help } => {
                write!(f, "{device}: {asked} {what} asked for, the limit is {limit}; help: {help}")
            }
            Error::Unsupported { what, device, help } => write!(f, "{device} has no {what}; help: {help}"),
            Error::NoDevice { asked, found } => write!(f, "no device `{asked}`: {found}"),
            Error::Environment { variable, value, allowed } => {
                write!(f, "{variable}={value} is not understood; allowed: {allowed}")
            }
            Error::Settled { what, by } => {
                write!(f, "{what} was settled by {by}; help: choose before the first kernel is called")
            }
            Error::Shader { kernel, at, message } => {
                let at = if at.is_empty() { String::new() } else { format!(" ({at})") };
                let help = "run it on the CPU, and report this with the text of `explain`";
                write!(f, "the driver refused the shader of kernel `{kernel}`{at}: {message}; help: {help}")
            }
            Error::Driver { action, device, message } => write!(f, "{device} failed to {action}: {message}"),
            Error::DeviceLost { device, message } => {
                write!(f, "{device} is lost: {message}; help: make a new client and upload the data again")
            }
            Error::File { path, message } => write!(f, "{path}: {message}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

/// Number of elements for a message; saturates, since a message must not fail.
fn count(shape: &[usize]) -> usize {
    shape.iter().fold(1, |n, &extent| n.saturating_mul(extent))
}

/// A byte count as people read it: `640 B`, `1.50 MiB`.
pub(crate) struct Bytes(pub(crate) u64);

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
            Error::Length { shape: vec![2, 3], expected: 6, found: 5, unit: "elements" },
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
