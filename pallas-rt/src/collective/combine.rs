//! Sums, products and extremes of arrays, element by element.
use half::{bf16, f16};
use pallas_ir::{DType, ScalarOp};

/// `to[i] = to[i] op from[i]`, for arrays of an element type.
pub(super) fn combine(op: ScalarOp, dtype: DType, to: &mut [u8], from: &[u8]) {
    macro_rules! each {
        ($T:ty, $f:expr) => {{
            let f: fn($T, $T) -> $T = $f;
            let size = size_of::<$T>();
            for (to, from) in to.chunks_exact_mut(size).zip(from.chunks_exact(size)) {
                let [x, y]: [$T; 2] = [bytemuck::pod_read_unaligned(to), bytemuck::pod_read_unaligned(from)];
                to.copy_from_slice(bytemuck::bytes_of(&f(x, y)));
            }
        }};
    }
    macro_rules! ints {
        ($T:ty) => {
            match op {
                ScalarOp::Add => each!($T, <$T>::wrapping_add),
                ScalarOp::Mul => each!($T, <$T>::wrapping_mul),
                ScalarOp::Minimum => each!($T, Ord::min),
                ScalarOp::Maximum => each!($T, Ord::max),
                _ => unreachable!("{op} combines no integers"),
            }
        };
    }
    macro_rules! floats {
        ($T:ty) => {
            match op {
                ScalarOp::Add => each!($T, |x, y| x + y),
                ScalarOp::Mul => each!($T, |x, y| x * y),
                ScalarOp::Minimum => each!($T, least),
                ScalarOp::Maximum => each!($T, greatest),
                _ => unreachable!("{op} combines no floats"),
            }
        };
    }
    match dtype {
        DType::F32 => floats!(f32),
        DType::F64 => floats!(f64),
        DType::F16 => floats!(f16),
        DType::Bf16 => floats!(bf16),
        DType::I8 => ints!(i8),
        DType::I16 => ints!(i16),
        DType::I32 => ints!(i32),
        DType::I64 => ints!(i64),
        DType::U8 | DType::Bool => ints!(u8),
        DType::U16 => ints!(u16),
        DType::U32 => ints!(u32),
        DType::U64 => ints!(u64),
    }
}

/// The smaller number; a NaN wins, and -0 is below +0.
fn least<T: Copy + Into<f64>>(x: T, y: T) -> T {
    let (a, b): (f64, f64) = (x.into(), y.into());
    if a.is_nan() || !b.is_nan() && a.total_cmp(&b).is_le() { x } else { y }
}

/// The larger number; a NaN wins, and +0 is above -0.
fn greatest<T: Copy + Into<f64>>(x: T, y: T) -> T {
    let (a, b): (f64, f64) = (x.into(), y.into());
    if a.is_nan() || !b.is_nan() && a.total_cmp(&b).is_ge() { x } else { y }
}
