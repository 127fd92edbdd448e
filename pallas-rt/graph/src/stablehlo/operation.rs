//! StableHLO operations as data: the walk over a graph makes them, and each text has a printer of them.
use pallas_ir::structural::{Conv, Dot, Gather, ReduceWindow, Scatter};
use pallas_ir::{DType, Literal, Type};

/// A value.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    /// The number of the operation or parameter that defines it.
    pub id: usize,
    /// Its position among several results.
    pub part: Option<usize>,
    pub ty: Type,
    /// The number that all elements are, where that is known.
    pub splat: Option<Literal>,
}

/// An operation.
#[derive(Debug)]
pub(crate) struct Operation {
    /// StableHLO's name, or one with the name of its dialect in front.
    pub name: &'static str,
    pub args: Vec<Value>,
    pub regions: Vec<HloRegion>,
    pub detail: Detail,
    pub results: Vec<Value>,
    /// The number of the equation that it stands for, in texts with shardings.
    pub label: Option<usize>,
}

/// An entry of a list of operations.
#[derive(Debug)]
pub(crate) enum Line {
    Operation(Operation),
    /// A value that `debug_print` shows, with its label.
    Comment(String, Value),
}

/// Operations with parameters; the last one returns values.
#[derive(Debug)]
pub(crate) struct HloRegion {
    pub params: Vec<Value>,
    pub lines: Vec<Line>,
}

/// A function that is called by its name.
#[derive(Debug)]
pub(crate) struct Function {
    pub is_public: bool,
    pub name: String,
    pub gives: Vec<Type>,
    /// By parameter and by result, Shardy's text of its sharding, if there is one.
    pub shardings: [Vec<Option<String>>; 2],
    pub body: HloRegion,
}

/// The pieces that members of a group exchange; parts lie along the first dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    /// Whole arrays, combined.
    Combined,
    /// Whole arrays, one behind the other.
    Gathered,
    /// Parts, combined.
    Scattered,
    /// Parts, one behind the other.
    CollectiveHlo,
    /// The array of the first member.
    First,
}

impl Parts {
    /// Returns true if the groups are numbers of devices by an attribute; for others they always are.
    pub(super) fn says_devices(self) -> bool {
        !matches!(self, Parts::CollectiveHlo | Parts::First)
    }
}

/// Properties of an operation besides its operands.
#[derive(Debug)]
pub(crate) enum Detail {
    None,
    /// The number of all elements.
    Constant(Literal),
    /// The elements of a row of `i32`.
    Numbers(Vec<i32>),
    /// The axis of `concatenate` and `iota`.
    Axis(usize),
    /// Axes of the result by axis of the operand, permuted, reversed or reduced ones.
    Axes(Vec<usize>),
    Pad {
        low: Vec<i64>,
        high: Vec<i64>,
    },
    Slice {
        start: Vec<i64>,
        limit: Vec<i64>,
        stride: Vec<i64>,
    },
    /// The extents of a window.
    Sizes(Vec<usize>),
    /// Such as `FLOAT` and `LT`.
    Compare {
        kind: &'static str,
        direction: &'static str,
    },
    Dot(Dot),
    Conv(Conv),
    Gather(Gather),
    Scatter(Scatter),
    Windows(ReduceWindow),
    /// The axis of a stable sort.
    Sort(usize),
    /// The name of the function that is called.
    Call(String),
    /// Shardy's text of a sharding.
    Sharding(String),
    /// The number of a group of values of one sharding.
    Group(u32),
    /// The directions of a barrier.
    Flow(u8),
    /// The devices of each group of an exchange, by their numbers in it.
    Groups {
        groups: Vec<Vec<usize>>,
        parts: Parts,
        channel: usize,
    },
    /// The sender and the receiver of each block.
    Pairs {
        pairs: Vec<[usize; 2]>,
        channel: usize,
    },
    /// Shardy's texts of how operands and results of a body on blocks are sharded, and its axes.
    Manual {
        takes: Vec<String>,
        gives: Vec<String>,
        axes: String,
    },
    /// A kernel's name, and its text with sizes and parameters.
    Kernel {
        name: String,
        config: String,
        /// Shardy's text of its sharding rule.
        rule: Option<String>,
    },
}

/// An element type, as each text writes it.
pub(crate) fn element(dtype: DType) -> [&'static str; 2] {
    match dtype {
        DType::F32 => ["f32", "f32"],
        DType::F64 => ["f64", "f64"],
        DType::F16 => ["f16", "f16"],
        DType::Bf16 => ["bf16", "bf16"],
        DType::I8 => ["i8", "s8"],
        DType::U8 => ["ui8", "u8"],
        DType::I16 => ["i16", "s16"],
        DType::U16 => ["ui16", "u16"],
        DType::I32 => ["i32", "s32"],
        DType::U32 => ["ui32", "u32"],
        DType::I64 => ["i64", "s64"],
        DType::U64 => ["ui64", "u64"],
        DType::Bool => ["i1", "pred"],
    }
}

/// A number in decimal, if it is finite: a float with a point.
pub(crate) fn decimal(x: Literal) -> Option<String> {
    if x.dtype == DType::Bool {
        return Some(if x.bits != 0 { "true" } else { "false" }.into());
    }
    if !x.dtype.is_float() {
        return Some(if x.dtype.is_signed() { x.as_i64().to_string() } else { x.bits.to_string() });
    }
    let value = x.as_f64();
    let text = format!("{value:?}");
    match text.split_once('e') {
        _ if !value.is_finite() => None,
        Some((digits, exponent)) if !digits.contains('.') => Some(format!("{digits}.0e{exponent}")),
        _ => Some(text),
    }
}

/// Text in a string, with `code` in place of bytes that need one.
pub(super) fn escaped(text: &str, code: fn(u8) -> String) -> String {
    let byte = |b: u8| match b {
        b'"' | b'\\' | ..b' ' | 0x7f.. => code(b),
        _ => char::from(b).to_string(),
    };
    text.bytes().map(byte).collect()
}
