//! Exchanges among virtual devices in one process: copies between their memory.
use half::{bf16, f16};
use pallas_graph::mesh::{Collective, Exchange};
use pallas_ir::{DType, ScalarOp, Type};

/// An exchange whose groups are known.
pub(crate) struct Lockstep {
    kind: Exchange,
    dtype: DType,
    /// The positions of each group, in the order of the members' numbers.
    groups: Vec<Vec<usize>>,
}

impl Lockstep {
    /// An exchange of arrays of the type `gives` that it has as results.
    pub(crate) fn new(op: &Collective, gives: &Type) -> Lockstep {
        let mut groups: Vec<Vec<usize>> = vec![];
        let mut is_placed = vec![false; op.mesh.devices()];
        for position in 0..op.mesh.devices() {
            if !is_placed[position] {
                let group = op.mesh.group(position, &op.axes);
                group.iter().for_each(|&member| is_placed[member] = true);
                groups.push(group);
            }
        }
        Lockstep { kind: op.kind.clone(), dtype: gives.dtype, groups }
    }

    /// Fills the result of each position from the operands of all.
    pub(crate) fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
        for group in &self.groups {
            match &self.kind {
                Exchange::Table(table) => {
                    for (&member, entry) in group.iter().zip(table) {
                        outputs[member].copy_from_slice(&entry.to_ne_bytes());
                    }
                }
                Exchange::Cast { .. } => unreachable!("devices do nothing for it"),
                Exchange::AllGather => {
                    for &member in group {
                        let parts = outputs[member].chunks_exact_mut(inputs[member].len().max(1));
                        parts.zip(group).for_each(|(part, &from)| part.copy_from_slice(inputs[from]));
                    }
                }
                Exchange::AllToAll => {
                    let bytes = outputs[group[0]].len() / group.len();
                    for (number, &member) in group.iter().enumerate() {
                        for (k, &from) in group.iter().enumerate() {
                            let part = &inputs[from][number * bytes..][..bytes];
                            outputs[member][k * bytes..][..bytes].copy_from_slice(part);
                        }
                    }
                }
                Exchange::Permute(sources) => {
                    for (&member, source) in group.iter().zip(sources) {
                        match source {
                            Some(source) => outputs[member].copy_from_slice(inputs[group[*source]]),
                            None => outputs[member].fill(0),
                        }
                    }
                }
                Exchange::AllReduce(op) => {
                    let (&first, others) = group.split_first().expect("a group has members");
                    outputs[first].copy_from_slice(inputs[first]);
                    others.iter().for_each(|&from| combine(*op, self.dtype, outputs[first], inputs[from]));
                    let sum = outputs[first].to_vec();
                    others.iter().for_each(|&member| outputs[member].copy_from_slice(&sum));
                }
                Exchange::ReduceScatter(op) => {
                    for (number, &member) in group.iter().enumerate() {
                        let bytes = outputs[member].len();
                        let part = |from: usize| &inputs[from][number * bytes..][..bytes];
                        outputs[member].copy_from_slice(part(group[0]));
                        group[1..].iter().for_each(|&from| combine(*op, self.dtype, outputs[member], part(from)));
                    }
                }
            }
        }
    }
}

/// `to[i] = to[i] op from[i]`, for arrays of an element type.
fn combine(op: ScalarOp, dtype: DType, to: &mut [u8], from: &[u8]) {
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
                ScalarOp::BitAnd => each!($T, |x, y| x & y),
                ScalarOp::BitOr => each!($T, |x, y| x | y),
                ScalarOp::BitXor => each!($T, |x, y| x ^ y),
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
