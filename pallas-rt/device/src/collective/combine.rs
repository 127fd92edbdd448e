//! Elementwise combination of several arrays by a monoid, for collectives.
use half::{bf16, f16};
use pallas_ir::scalar::{ElementFunction, MonoidVisitor};
use pallas_ir::{DType, Elem, ScalarOp, Slice, SliceMut};

/// Sets `result[i]` to the elements `i` of all members' operands, which `operand_of` returns, combined by `op` in the
/// order of the members. 16-bit floats are summed in f32 and rounded once.
pub(super) fn fold_members<'a>(
    op: ScalarOp,
    dtype: DType,
    result: &mut [u8],
    members: usize,
    operand_of: impl Fn(usize) -> &'a [u8],
) {
    match dtype {
        DType::F16 if op.accumulator(dtype) == Some(DType::F32) => {
            fold_in_f32(op, result, members, operand_of, f16::from_f32)
        }
        DType::Bf16 if op.accumulator(dtype) == Some(DType::F32) => {
            fold_in_f32(op, result, members, operand_of, bf16::from_f32)
        }
        _ => {
            result.copy_from_slice(operand_of(0));
            (1..members).for_each(|k| combine_into(op, dtype, result, operand_of(k)));
        }
    }
}

/// Number of 16-bit elements that are combined at a time, so that their sums stay in the first-level cache.
const F16_CHUNK_ELEMENTS: usize = 1024;

/// Combines the members' elements of a 16-bit float type in f32, and rounds each result once.
fn fold_in_f32<'a, T: bytemuck::Pod + Into<f32>>(
    op: ScalarOp,
    result: &mut [u8],
    members: usize,
    operand_of: impl Fn(usize) -> &'a [u8],
    rounded: fn(f32) -> T,
) {
    let size = size_of::<T>();
    let mut sums = [0.0f32; F16_CHUNK_ELEMENTS];
    for (number, to) in result.chunks_mut(F16_CHUNK_ELEMENTS * size).enumerate() {
        let sums = &mut sums[..to.len() / size];
        for k in 0..members {
            let from = &operand_of(k)[number * F16_CHUNK_ELEMENTS * size..][..to.len()];
            for (sum, x) in sums.iter_mut().zip(from.chunks_exact(size)) {
                let x: f32 = bytemuck::pod_read_unaligned::<T>(x).into();
                *sum = match (k, op) {
                    (0, _) => x,
                    (_, ScalarOp::Mul) => *sum * x,
                    _ => *sum + x,
                };
            }
        }
        for (to, &sum) in to.chunks_exact_mut(size).zip(sums.iter()) {
            to.copy_from_slice(bytemuck::bytes_of(&rounded(sum)));
        }
    }
}

/// Number of elements that are copied to aligned memory at a time, because the bytes need not be aligned.
const ALIGNED_CHUNK_ELEMENTS: usize = 256;

/// Two slices of elements of one type, to be combined by `to[i] = to[i] op from[i]`.
struct SliceCombiner<'a> {
    to: SliceMut<'a>,
    from: Slice<'a>,
}

impl MonoidVisitor for SliceCombiner<'_> {
    type Out = ();
    fn visit<O: ElementFunction<(T, T), Out = T>, T: Elem>(self) {
        for (to, &from) in T::of_mut(self.to).iter_mut().zip(T::of(self.from)) {
            *to = O::fast((*to, from));
        }
    }
}

/// Computes `to[i] = to[i] op from[i]` on bytes, for an element type on which the operation is a monoid.
fn combine_into(op: ScalarOp, dtype: DType, to: &mut [u8], from: &[u8]) {
    let strip = |to: SliceMut<'_>, from: Slice<'_>| {
        op.visit_monoid(dtype, SliceCombiner { to, from }).expect("an exchange's type admits monoids only");
    };
    macro_rules! strips {
        ($kind:ident $T:ty) => {{
            let (mut x, mut y) = ([<$T>::default(); ALIGNED_CHUNK_ELEMENTS], [<$T>::default(); ALIGNED_CHUNK_ELEMENTS]);
            let size = ALIGNED_CHUNK_ELEMENTS * size_of::<$T>();
            for (to, from) in to.chunks_mut(size).zip(from.chunks(size)) {
                let n = to.len() / size_of::<$T>();
                bytemuck::cast_slice_mut(&mut x[..n]).copy_from_slice(to);
                bytemuck::cast_slice_mut(&mut y[..n]).copy_from_slice(from);
                strip(SliceMut::$kind(&mut x[..n]), Slice::$kind(&y[..n]));
                to.copy_from_slice(bytemuck::cast_slice(&x[..n]));
            }
        }};
    }
    match dtype {
        DType::F32 => strips!(F32 f32),
        DType::F64 => strips!(F64 f64),
        DType::F16 => strips!(F16 f16),
        DType::Bf16 => strips!(Bf16 bf16),
        DType::I8 => strips!(I8 i8),
        DType::I16 => strips!(I16 i16),
        DType::I32 => strips!(I32 i32),
        DType::I64 => strips!(I64 i64),
        DType::U8 => strips!(U8 u8),
        DType::U16 => strips!(U16 u16),
        DType::U32 => strips!(U32 u32),
        DType::U64 => strips!(U64 u64),
        DType::Bool => {
            // Bytes of arrays are not trusted to be 0 or 1.
            for (to, from) in to.chunks_mut(ALIGNED_CHUNK_ELEMENTS).zip(from.chunks(ALIGNED_CHUNK_ELEMENTS)) {
                let truths = |bytes: &[u8]| bytes.iter().map(|&byte| byte != 0).collect::<Vec<bool>>();
                let (mut x, y) = (truths(to), truths(from));
                strip(SliceMut::Bool(&mut x), Slice::Bool(&y));
                to.iter_mut().zip(x).for_each(|(to, x)| *to = x.into());
            }
        }
    }
}
