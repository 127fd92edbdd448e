//! StableHLO operations as data: a walk over a graph makes them, and each text format has a printer for them.
use pallas_ir::structural::{Conv, Dot, Gather, ReduceWindow, Scatter};
use pallas_ir::{DType, Literal, Type};

/// A value of a module: a parameter, or a result of an operation.
#[derive(Clone, Debug)]
pub(crate) struct HloValue {
    /// The number of the operation or parameter that defines it, unique in its function.
    pub id: usize,
    /// Index among the results of its operation, if that has several.
    pub part: Option<usize>,
    /// The value's type.
    pub ty: Type,
    /// The number that all elements are equal to, if that is known.
    pub splat: Option<Literal>,
}

/// An operation of a module.
#[derive(Debug)]
pub(crate) struct HloOperation {
    /// Name of the operation in StableHLO; operations of other dialects have the dialect's name in front.
    pub name: &'static str,
    pub args: Vec<HloValue>,
    pub regions: Vec<HloRegion>,
    pub detail: HloAttributes,
    pub results: Vec<HloValue>,
    /// In texts with shardings, the number of the equation that it stands for.
    pub label: Option<usize>,
}

/// An operation, or a comment, in the body of a function or region.
#[derive(Debug)]
pub(crate) enum HloLine {
    Operation(HloOperation),
    /// Comment for a `debug_print`: its label, and the value that it shows.
    Comment(String, HloValue),
}

/// A region of an operation: parameters, and operations of which the last one returns the region's results.
#[derive(Debug)]
pub(crate) struct HloRegion {
    pub params: Vec<HloValue>,
    pub lines: Vec<HloLine>,
}

/// A function of a module.
#[derive(Debug)]
pub(crate) struct HloFunction {
    /// True for `main`, which is visible outside of the module.
    pub is_public: bool,
    pub name: String,
    /// Types of the results.
    pub gives: Vec<Type>,
    /// Shardings of the parameters, and those of the results, in Shardy's syntax; `None` without one.
    pub shardings: [Vec<Option<String>>; 2],
    pub body: HloRegion,
}

/// Data that the members of a group send each other in a collective; parts of an array lie along its first dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExchangedData {
    /// Every member's whole array; the results are combined: `all_reduce`.
    Combined,
    /// Every member's whole array; they are concatenated: `all_gather`.
    Gathered,
    /// One part for each member; the parts received are combined: `reduce_scatter`.
    Scattered,
    /// One part for each member; the parts received are concatenated: `all_to_all`.
    Exchanged,
    /// The array of the group's first member: `collective_broadcast`.
    FromFirst,
}

impl ExchangedData {
    /// Returns true if the operation needs the attribute that says its groups consist of device numbers; for others
    /// they always do.
    pub(super) fn needs_device_ids(self) -> bool {
        !matches!(self, ExchangedData::Exchanged | ExchangedData::FromFirst)
    }
}

/// Properties of an operation besides its operands: the attributes that are printed.
#[derive(Debug)]
pub(crate) enum HloAttributes {
    None,
    /// The value of all elements of a constant.
    Constant(Literal),
    /// The elements of a constant `i32` array of rank 1.
    I32Elements(Vec<i32>),
    /// The axis of a `concatenate` or an `iota`.
    Axis(usize),
    /// The operand's axis for each axis of the result, or the axes that are permuted, reversed or reduced.
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
    /// The extents of a window, as of a dynamic slice.
    Sizes(Vec<usize>),
    /// A comparison, such as `FLOAT` and `LT`.
    Compare {
        kind: &'static str,
        direction: &'static str,
    },
    Dot(Dot),
    Conv(Conv),
    Gather(Gather),
    Scatter(Scatter),
    Windows(ReduceWindow),
    /// The axis of a sort, which is stable.
    Sort(usize),
    /// Name of the function that is called.
    Call(String),
    /// A sharding in Shardy's syntax.
    Sharding(String),
    /// Number of a sharding group, whose members have equal shardings.
    ShardingGroup(u32),
    /// The directions in which a barrier lets shardings propagate, in Shardy's encoding.
    BarrierFlow(u8),
    /// The device numbers of each group of a collective, in the order of its members.
    DeviceGroups {
        groups: Vec<Vec<usize>>,
        parts: ExchangedData,
        channel: usize,
    },
    /// The sender and the receiver of each block of a `collective_permute`.
    DevicePairs {
        pairs: Vec<[usize; 2]>,
        channel: usize,
    },
    /// Shardings of operands and results of a body of `shard_map`, and its manual axes, in Shardy's syntax.
    ManualAxes {
        takes: Vec<String>,
        gives: Vec<String>,
        axes: String,
    },
    /// A kernel's name, and its text with its sizes and parameters.
    Kernel {
        name: String,
        config: String,
        /// The kernel's sharding rule in Shardy's syntax.
        rule: Option<String>,
    },
}

/// Returns the name of an element type in StableHLO, and the one in HLO.
pub(crate) fn stablehlo_and_hlo_type_names(dtype: DType) -> [&'static str; 2] {
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

/// Returns the decimal text of a number, with a point if it is a float; `None` if it is not finite.
pub(crate) fn decimal_text(x: Literal) -> Option<String> {
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

/// Returns the text as the content of a string literal; `escape_byte` returns the escape sequence of a byte that needs
/// one.
pub(super) fn escaped_string_content(text: &str, escape_byte: fn(u8) -> String) -> String {
    let byte = |b: u8| match b {
        b'"' | b'\\' | ..b' ' | 0x7f.. => escape_byte(b),
        _ => char::from(b).to_string(),
    };
    text.bytes().map(byte).collect()
}
