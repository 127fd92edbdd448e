//! Values as Python prints them.
use pallas_ir::{DType, Literal};

/// Returns a tuple as Python prints it: `(1, 2)`, or `(1,)` for one item.
pub(super) fn tuple_text<T: std::fmt::Display>(items: &[T]) -> String {
    let all: Vec<String> = items.iter().map(T::to_string).collect();
    format!("({}{})", all.join(", "), if all.len() == 1 { "," } else { "" })
}

/// Returns NumPy's name of an element type, such as `float32`.
pub(super) fn numpy_dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::F16 => "float16",
        DType::Bf16 => "bfloat16",
        DType::I8 => "int8",
        DType::U8 => "uint8",
        DType::I16 => "int16",
        DType::U16 => "uint16",
        DType::I32 => "int32",
        DType::U32 => "uint32",
        DType::I64 => "int64",
        DType::U64 => "uint64",
        DType::Bool => "bool",
    }
}

/// Returns a literal as JAX prints it, with its type: `2.0:f32[]`. A float is the shortest text of the double of the
/// same value.
pub(super) fn typed_literal_text(x: Literal) -> String {
    let value = if x.dtype == DType::Bool {
        if x.bits != 0 { "True".into() } else { "False".into() }
    } else if x.dtype.is_float() {
        python_float(x.as_f64())
    } else {
        x.to_string()
    };
    format!("{value}:{}[]", x.dtype)
}

/// Returns the text of a double as Python prints it: `1e-05`, `nan`.
fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    let text = format!("{x:?}");
    // Exponents have a sign and two digits.
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, size) = exponent.strip_prefix('-').map_or(('+', exponent), |size| ('-', size));
            format!("{}e{sign}{size:0>2}", digits.strip_suffix(".0").unwrap_or(digits))
        }
    }
}
