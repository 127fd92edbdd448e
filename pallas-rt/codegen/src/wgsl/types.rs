//! Element types as WGSL sees them: the types of computation, and the rounding, packing and unpacking of narrow types.
#![warn(clippy::wildcard_enum_match_arm)]
use pallas_ir::{DType, ScalarOp};
use std::collections::BTreeSet;

/// Returns the WGSL type that elements are computed in.
pub(super) fn wgsl_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::Bf16 | DType::F64 => "f32",
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => "i32",
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => "u32",
        DType::Bool => "bool",
    }
}

/// Returns the expression of an element as the word that a tile stores.
pub(super) fn element_to_word(dtype: DType, x: &str) -> String {
    match wgsl_type(dtype) {
        "u32" => x.to_string(),
        "bool" => format!("select(0u, 1u, {x})"),
        _ => format!("bitcast<u32>({x})"),
    }
}

/// Returns the expression of a tile's word as an element.
pub(super) fn word_to_element(dtype: DType, word: &str) -> String {
    match wgsl_type(dtype) {
        "u32" => word.to_string(),
        "bool" => format!("({word} != 0u)"),
        ty => format!("bitcast<{ty}>({word})"),
    }
}

/// Returns the expression of a computed value reduced to what its type can hold.
pub(super) fn narrow_to_dtype(dtype: DType, x: &str) -> String {
    match dtype {
        DType::I8 => format!("(({x} << 24u) >> 24u)"),
        DType::I16 => format!("(({x} << 16u) >> 16u)"),
        DType::U8 => format!("({x} & 0xffu)"),
        DType::U16 => format!("({x} & 0xffffu)"),
        DType::F16 => format!("f16_value(f16_bits({x}))"),
        DType::Bf16 => format!("bf16_value(bf16_bits({x}))"),
        DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64 | DType::U64 | DType::Bool => x.to_string(),
    }
}

/// Returns the expression of an operand of a scalar operation: for an operation that counts bits, `x` reduced to the
/// bits of its type, which may be narrower than the 32 bits of the computation; `x` itself for any other.
pub(super) fn mask_counted_bits(op: ScalarOp, operand_index: usize, dtype: DType, x: String) -> String {
    let bits = 8 * dtype.bytes();
    match (op, operand_index) {
        _ if bits >= 32 => x,
        (ScalarOp::CountOnes, 0) => format!("({x} & {}({}))", wgsl_type(dtype), (1 << bits) - 1),
        _ => x,
    }
}

/// Returns the expression of the bits that an array stores for an element, at the low end of a word.
pub(super) fn element_to_array_bits(dtype: DType, x: &str) -> String {
    match dtype {
        DType::F16 => format!("f16_bits({x})"),
        DType::Bf16 => format!("bf16_bits({x})"),
        DType::I8 => format!("(bitcast<u32>({x}) & 0xffu)"),
        DType::I16 => format!("(bitcast<u32>({x}) & 0xffffu)"),
        DType::F32 | DType::F64 | DType::Bool => element_to_word(dtype, x),
        DType::U8 | DType::U16 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => element_to_word(dtype, x),
    }
}

/// Returns the expression of the element that an array stores as these bits.
pub(super) fn array_bits_to_element(dtype: DType, bits: &str) -> String {
    match dtype {
        DType::F16 => format!("f16_value({bits})"),
        DType::Bf16 => format!("bf16_value({bits})"),
        DType::I8 => format!("(bitcast<i32>({bits} << 24u) >> 24u)"),
        DType::I16 => format!("(bitcast<i32>({bits} << 16u) >> 16u)"),
        DType::F32 | DType::F64 | DType::Bool => word_to_element(dtype, bits),
        DType::U8 | DType::U16 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => word_to_element(dtype, bits),
    }
}

/// Returns the expression of a cast, as Rust's `as`: floats saturate, NaN becomes 0.
pub(super) fn cast_expression(from: DType, to: DType, x: &str) -> String {
    let (low, high) = match to {
        DType::I8 => ("-128.0", "127.0"),
        DType::I16 => ("-32768.0", "32767.0"),
        DType::I32 => ("-2147483648.0", "2147483520.0"),
        DType::U8 => ("0.0", "255.0"),
        DType::U16 => ("0.0", "65535.0"),
        DType::U32 | DType::I64 | DType::U64 => ("0.0", "4294967040.0"),
        DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::Bool => ("0.0", "4294967040.0"),
    };
    match (wgsl_type(from), wgsl_type(to)) {
        ("bool", "bool") => x.to_string(),
        ("bool", ty) => format!("select({ty}(0), {ty}(1), {x})"),
        // `!=` is avoided, since compilers turn it into a comparison that is false for NaN.
        ("f32", "bool") => format!("(!({x} == 0.0))"),
        (ty, "bool") => format!("({x} != {ty}(0))"),
        // The largest float below 2^31 (2^32) is less than the largest integer, so larger values are selected
        // separately.
        ("f32", "i32") if to == DType::I32 => {
            format!(
                "select(select(i32(clamp({x}, {low}, {high})), 2147483647, {x} >= 2147483648.0), 0, is_nan_bits({x}))"
            )
        }
        ("f32", "u32") if to == DType::U32 => {
            format!(
                "select(select(u32(clamp({x}, {low}, {high})), 4294967295u, {x} >= 4294967296.0), 0u, is_nan_bits({x}))"
            )
        }
        ("f32", ty @ ("i32" | "u32")) => format!("select({ty}(clamp({x}, {low}, {high})), {ty}(0), is_nan_bits({x}))"),
        ("f32", "f32") => narrow_to_dtype(to, x),
        (_, ty) => narrow_to_dtype(to, &format!("{ty}({x})")),
    }
}

/// Returns the expression of zero, or of false.
pub(super) fn zero_expression(dtype: DType) -> String {
    if dtype == DType::Bool { "false".into() } else { format!("{}(0)", wgsl_type(dtype)) }
}
/// Returns the expression of a cast from one type to another; `x` itself if the types are equal.
pub(super) fn cast_expression_if_needed(from: DType, to: DType, x: &str) -> String {
    if from == to { x.to_string() } else { cast_expression(from, to, x) }
}

/// Hides a constant coordinate from the compiler, which would refuse a shader that divides by a position known to be
/// 0.
pub(super) fn hide_constant(coordinate: &str) -> String {
    let without_types = coordinate.replace("u32", "").replace("i32", "").replace('u', "");
    let known = !without_types.contains(char::is_alphabetic);
    if known { format!("at_run_time({coordinate})") } else { coordinate.to_string() }
}

/// WGSL functions that the expressions of this module call, as pairs of name and definition; a function stands after
/// those that call it.
const WGSL_HELPER_FUNCTIONS: [(&str, &str); 6] = [
    (
        "f16_value",
        "fn f16_value(h: u32) -> f32 {
    let mag = h & 0x7fffu;
    let finite = bitcast<u32>(bitcast<f32>(mag << 13u) * bitcast<f32>(0x77800000u));
    let bits = select(finite, (mag << 13u) | 0x7f800000u, mag >= 0x7c00u);
    return bitcast<f32>(bits | ((h & 0x8000u) << 16u));
}
",
    ),
    (
        "f16_bits",
        "fn f16_bits(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    let mag = b & 0x7fffffffu;
    let sub = bitcast<u32>(bitcast<f32>(mag) + 0.5) - 0x3f000000u;
    let norm = (mag + 0xc8000fffu + ((mag >> 13u) & 1u)) >> 13u;
    let finite = select(norm, sub, mag < 0x38800000u);
    let special = select(0x7c00u, 0x7e00u, mag > 0x7f800000u);
    return ((b >> 16u) & 0x8000u) | select(finite, special, mag >= 0x47800000u);
}
",
    ),
    ("bf16_value", "fn bf16_value(b: u32) -> f32 { return bitcast<f32>(b << 16u); }\n"),
    (
        "bf16_bits",
        "fn bf16_bits(x: f32) -> u32 {
    let b = bitcast<u32>(x);
    return select((b + 0x7fffu + ((b >> 16u) & 1u)) >> 16u, (b >> 16u) | 0x40u, is_nan_bits(x));
}
",
    ),
    ("at_run_time", "fn at_run_time(x: u32) -> u32 { return x; }\n"),
    ("is_nan_bits", "fn is_nan_bits(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }\n"),
];

/// Returns the functions `powi_<type>_<exponent>` that a module calls: repeated squaring, as in the interpreter. They
/// have no loops, since drivers limit the number of iterations.
fn called_powi_functions(module_text: &str) -> String {
    let called: BTreeSet<&str> =
        module_text.split("powi_").skip(1).filter_map(|rest| Some(rest.split_once('(')?.0)).collect();
    let function = |call: &&str| {
        let (name_of, exponent) = call.split_once('_')?;
        let (dtype, mut left): (DType, u32) = (name_of.parse().ok()?, exponent.parse().ok()?);
        let ty = wgsl_type(dtype);
        let product = |a: &str, b: &str| narrow_to_dtype(dtype, &format!("({a} * {b})"));
        let mut text = format!("fn powi_{call}(x: {ty}) -> {ty} {{\n    var y = {ty}(1);\n    var s = x;\n");
        while left > 0 {
            if left & 1 == 1 {
                text += &format!("    y = {};\n", product("y", "s"));
            }
            left >>= 1;
            if left > 0 {
                text += &format!("    s = {};\n", product("s", "s"));
            }
        }
        Some(text + "    return y;\n}\n")
    };
    called.iter().filter_map(function).collect()
}

/// Returns the helper functions that a module calls.
pub(super) fn called_helper_functions(module_text: &str) -> String {
    WGSL_HELPER_FUNCTIONS.iter().fold(called_powi_functions(module_text), |mut called, (name, text)| {
        let call = format!("{name}(");
        if module_text.contains(&call) || called.contains(&call) {
            called += text;
        }
        called
    })
}
