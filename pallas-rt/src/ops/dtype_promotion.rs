//! Element types of results.
use pallas_ir::DType;

/// The element type in which an operation on arrays of two types is computed.
///
/// | operands | type |
/// |---|---|
/// | equal types | that type |
/// | `bool` and another | the other |
/// | an integer and a float | the float |
/// | integers, both signed or both unsigned | the wider |
/// | an unsigned and a signed integer | the signed one if it is wider, else the signed one with twice the bits of the unsigned |
/// | `u64` and a signed integer | `f64` |
/// | floats | the wider; `f32` for `f16` and `bf16` |
///
/// A Rust number has the array's type, except a float beside an integer array, which gives `f32`. This is JAX's lattice
/// with 64-bit types enabled.
///
/// ```
/// use pallas_rt::ops::promote_types;
/// use pallas_rt::{ir::DType};
/// assert_eq!(promote_types(DType::Bf16, DType::I64), DType::Bf16);
/// assert_eq!(promote_types(DType::U8, DType::I8), DType::I16);
/// assert_eq!(promote_types(DType::F16, DType::Bf16), DType::F32);
/// ```
pub fn promote_types(a: DType, b: DType) -> DType {
    let is_signed = |d: DType| matches!(d, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    match (a, b) {
        _ if a == b => a,
        (DType::Bool, other) | (other, DType::Bool) => other,
        _ if a.is_float() && b.is_float() => match a.bytes().cmp(&b.bytes()) {
            std::cmp::Ordering::Greater => a,
            std::cmp::Ordering::Less => b,
            std::cmp::Ordering::Equal => DType::F32,
        },
        _ if a.is_float() => a,
        _ if b.is_float() => b,
        _ if is_signed(a) == is_signed(b) => {
            if a.bytes() > b.bytes() {
                a
            } else {
                b
            }
        }
        _ => {
            let (signed, unsigned) = if is_signed(a) { (a, b) } else { (b, a) };
            match unsigned.bytes() {
                n if signed.bytes() > n => signed,
                1 => DType::I16,
                2 => DType::I32,
                4 => DType::I64,
                _ => DType::F64,
            }
        }
    }
}
