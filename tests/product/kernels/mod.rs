//! The shipped kernels against float64 references: every float type, every size from 0 to two blocks and one along each
//! axis in turn, on the interpreter and the CPU; on a GPU sizes 0 (f16), 1 (f16), one block (bf16), two blocks and one
//! (f32).
//!
//! Each comparison allows `k · (ε of the result + ε of f32 · sqrt(terms))` with the k it states; operands are the
//! rounded ones for the reference, too.
mod attention;
mod attention_backward;
mod attention_dropout;
mod attention_loads;
mod attention_offsets;
mod attention_options;
mod attention_reference;
#[cfg(feature = "graph")]
mod composed;
mod cross_entropy;
mod decode_attention;
mod embedding;
mod gated;
#[cfg(feature = "graph")]
mod in_graphs;
#[cfg(feature = "graph")]
mod inlined;
mod matmul;
mod naive;
mod norm;
mod norm_backward;
#[cfg(feature = "graph")]
mod on_meshes;
mod paged_attention;
mod quantized_matmul;
mod refused;
mod rotary;
#[cfg(feature = "graph")]
mod second;
mod slopes;
mod softmax;
mod softmax_backward;
mod splash_attention;
#[cfg(feature = "graph")]
mod tangents;

use crate::cases::{Call, Entry, Extents, Given};
use crate::support::{array, values};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

const FLOATS: [DType; 3] = [DType::F16, DType::Bf16, DType::F32];

/// A function of the registry with its operands, or that of its gradients, whose last operand is a cotangent.
#[derive(Clone)]
pub(crate) struct Function {
    #[allow(dead_code, reason = "tests without GPUs name no function")]
    pub(crate) name: String,
    pub(crate) operands: Vec<Array>,
    pub(crate) call: Call,
}

/// The function of an entry, and its gradients.
pub(crate) fn functions(
    entry: &Entry,
    client: &Client,
    dtype: DType,
    extents: &Extents,
) -> (Function, Option<Function>) {
    given_functions(entry, &Given::new(client, dtype, extents, values))
}

/// The same of operands with other numbers.
pub(crate) fn given_functions(entry: &Entry, given: &Given<'_>) -> (Function, Option<Function>) {
    let case = entry.case(given);
    let case = case.unwrap_or_else(|e| panic!("{}: {e}", entry.name));
    let gradients = case.gradients().map(|call| {
        let y = &case.run().unwrap_or_else(|e| panic!("{}: {e}", entry.name))[0];
        let dy = array(given.client, y.dtype(), y.shape(), &values(y.len(), 99));
        let operands = [&case.operands[..], &[dy]].concat();
        Function { name: format!("gradients of {}", entry.name), operands, call }
    });
    (Function { name: entry.name.to_string(), operands: case.operands, call: case.call }, gradients)
}

/// Block size along every axis.
const B: usize = 4;

/// The element types that a size is run with: all of them; on a GPU, which compiles each anew, no size but a few has
/// any, and those have one.
fn runs(client: &Client, size: usize) -> &'static [DType] {
    if client.kind() != DeviceKind::Gpu {
        return &FLOATS;
    }
    match [1, B, 2 * B + 1, 0].iter().position(|&x| x == size) {
        Some(i) => &FLOATS[i % 3..=i % 3],
        None => &[],
    }
}

/// `base` with each axis in turn replaced by every size from 0 to two blocks and one.
fn around<const N: usize>(base: [usize; N]) -> impl Iterator<Item = ([usize; N], usize)> {
    (0..N).flat_map(move |axis| {
        (0..=2 * B + 1).map(move |size| {
            let mut sizes = base;
            sizes[axis] = size;
            (sizes, size)
        })
    })
}

/// Extents of calls that choose their blocks: 1 to 17, primes, and what lies beside a whole block.
const EXTENTS: [usize; 28] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 23, 31, 37, 47, 61, 64, 65, 97, 128, 131];

/// Some [`EXTENTS`] for each of so many calls, one of which is often 1.
fn drawn<const N: usize>(calls: u64, seed: u64) -> impl Iterator<Item = [usize; N]> {
    (0..calls).map(move |call| {
        let mut state = (seed << 32 | call) ^ 0x9e37_79b9_7f4a_7c15;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let mut extents = [0; N].map(|_| EXTENTS[next() % EXTENTS.len()]);
        if let Some(extent) = extents.get_mut(next() % (2 * N)) {
            *extent = 1;
        }
        extents
    })
}

/// A call with `$E` the element type of `$dtype`.
macro_rules! typed {
    ($dtype:expr, $E:ident => $call:expr) => {
        match $dtype {
            DType::F32 => {
                type $E = f32;
                $call
            }
            DType::F16 => {
                type $E = f16;
                $call
            }
            _ => {
                type $E = bf16;
                $call
            }
        }
    };
}
pub(crate) use typed;
