//! The same for arrays of sizes that nothing was tuned for: few positions, short rows, few classes.
use crate::registry::Extents;
use crate::{Case, Sizes, attended, gradients, loss_of, one, rms, turned};
use pallas_kernels::flash_attention::{Options, flash_attention};
use pallas_kernels::norm::rms_norm;
use pallas_rt::ir::DType;
use pallas_rt::{Array, Result, grad, jit, ops};

/// Both functions under `jit`, as they are part of a model.
pub(crate) fn case(
    name: &'static str,
    arguments: Vec<Array>,
    kernel: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
    plain: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
) -> Case {
    let kernel = jit(move |x: &Vec<Array>| kernel(x));
    crate::case(name, arguments, move |x| kernel(&x.to_vec()), plain)
}

/// A function of the registry under `jit`, and plain operations on its operands.
fn traced(
    sizes: &Sizes,
    [name, shown]: [&'static str; 2],
    extents: &Extents,
    plain: impl Fn(&[Array]) -> Result<Vec<Array>> + Send + Sync + 'static,
) -> Result<Case> {
    let found = sizes.registered(name, extents)?;
    let call = found.call;
    Ok(case(shown, found.operands, move |x| call(x).map(|all| all[..1].to_vec()), plain))
}

/// Heads, positions and elements of attention `[batch, heads, positions, d]`.
const ATTENTION: [(&str, &str, [usize; 4]); 8] = [
    ("attention 48x4x17x16", "its gradients 48x4x17x16", [48, 4, 17, 16]),
    ("attention 32x12x64x32", "its gradients 32x12x64x32", [32, 12, 64, 32]),
    ("attention 8x8x1x64", "its gradients 8x8x1x64", [8, 8, 1, 64]),
    ("attention 8x8x3x64", "its gradients 8x8x3x64", [8, 8, 3, 64]),
    ("attention 8x8x8x64", "its gradients 8x8x8x64", [8, 8, 8, 64]),
    ("attention 8x8x33x64", "its gradients 8x8x33x64", [8, 8, 33, 64]),
    ("attention 8x8x100x64", "its gradients 8x8x100x64", [8, 8, 100, 64]),
    ("attention 8x8x128x64", "its gradients 8x8x128x64", [8, 8, 128, 64]),
];

fn attend(x: &[Array]) -> Array {
    flash_attention(&x[0], &x[1], &x[2], &Options::default()).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn small(sizes: &Sizes) -> Result<Vec<Case>> {
    let mut cases = vec![];
    for (forward, backward, shape) in ATTENTION {
        let q = sizes.floats(&shape)?;
        let x = vec![q.clone(), q.roll(1, 1), q.roll(1, 0), q.roll(3, 3)];
        cases.push(case(forward, x[..3].to_vec(), one(attend), one(|x| attended(x, None, None))));
        cases.push(case(backward, x, gradients(3, attend), gradients(3, |x| attended(x, None, None))));
    }
    let rotaries =
        [("rotary 32x1x64", [32, 1, 64]), ("rotary 64x17x16", [64, 17, 16]), ("rotary 16x64x64", [16, 64, 64])];
    for (name, [h, n, d]) in rotaries {
        let plain = one(|x| turned(&x[0], &x[1], &x[2]));
        cases.push(traced(sizes, ["rotary", name], &[('h', h), ('n', n), ('d', d)], plain)?);
    }
    for (forward, backward, [n, d]) in [
        ("rms norm 2048x192", "its gradients 2048x192", [2048, 192]),
        ("rms norm 1x576", "its gradients 1x576", [1, 576]),
        ("rms norm 816x64", "its gradients 816x64", [816, 64]),
        ("rms norm 512x1024", "its gradients 512x1024", [512, 1024]),
        ("rms norm 8192x64", "its gradients 8192x64", [8192, 64]),
    ] {
        let x = sizes.floats(&[n, d])?;
        let arguments = vec![x.clone(), sizes.floats(&[d])?, x.roll(1, 0)];
        let norm = |x: &[Array]| rms_norm(&x[0], &x[1], 1e-5).unwrap_or_else(|e| panic!("{e}"));
        cases.push(case(forward, arguments[..2].to_vec(), one(norm), one(rms)));
        cases.push(case(backward, arguments, gradients(2, norm), gradients(2, rms)));
    }
    for (name, [n, d, classes]) in
        [("cross-entropy 2048x192x84", [2048, 192, 84]), ("cross-entropy 48x64x10", [48, 64, 10])]
    {
        let plain = one(|x| loss_of(&x[0].matmul(&x[1].t()), &x[2]));
        cases.push(traced(sizes, ["cross-entropy", name], &[('n', n), ('v', classes), ('d', d)], plain)?);
    }
    for (name, [heads, key_heads, keys, d]) in
        [("decoding 12x64 of 192", [12, 12, 192, 64]), ("decoding 9x64 of 512", [9, 3, 512, 64])]
    {
        let of = [('b', 1), ('h', heads), ('g', key_heads), ('s', 1), ('l', keys), ('d', d)];
        cases.push(traced(sizes, ["decode", name], &of, one(|x| attended(x, None, None)))?);
    }
    Ok(cases)
}

/// A convolution of images `NCHW` against the same of `NHWC`, and its gradients.
pub(crate) fn layouts(sizes: &Sizes) -> Result<Vec<Case>> {
    let mut cases = vec![];
    let names = [
        ["NCHW 32x64x28x28 -> 64", "its gradient by images 28x28", "its gradient by the window 28x28"],
        ["NCHW 48x32x8x8 -> 64", "its gradient by images 8x8", "its gradient by the window 8x8"],
    ];
    for ([forward, by_images, by_window], [b, c, n, out]) in names.into_iter().zip([[32, 64, 28, 64], [48, 32, 8, 64]])
    {
        let (x, w) = (sizes.floats(&[b, c, n, n])?, sizes.floats(&[out, c, 3, 3])?);
        let (near, window) = (x.transpose(&[0, 2, 3, 1]), w.transpose(&[2, 3, 1, 0]));
        let all = vec![x, w, near.cast(DType::F32), window.cast(DType::F32)];
        all.iter().try_for_each(Array::block_until_ready)?;
        let first = |x: &[Array]| ops::conv(&x[0], &x[1], &[1, 1], ops::Padding::Same);
        let last = |x: &[Array]| {
            let dimension_numbers = ["NHWC", "HWIO", "NHWC"];
            let options = ops::Convolution {
                window_strides: &[1, 1],
                padding: ops::Padding::Same,
                dimension_numbers,
                ..Default::default()
            };
            ops::conv_general_dilated(&x[2], &x[3], &options)
        };
        cases.push(case(forward, all.clone(), one(move |x| first(x).max([2, 3])), one(move |x| last(x).max([1, 2]))));
        let of = move |x: &[Array], at: usize, y: fn(&[Array]) -> Array| {
            let (all, own) = (x.to_vec(), x[at].clone());
            grad(move |own: &Array| {
                let mut all = all.clone();
                all[at] = own.clone();
                y(&all).square().sum(..)
            })(&own)
        };
        cases.push(case(
            by_images,
            all.clone(),
            move |x| Ok(vec![of(x, 0, first)?.max([2, 3])]),
            move |x| Ok(vec![of(x, 2, last)?.max([1, 2])]),
        ));
        cases.push(case(
            by_window,
            all,
            move |x| Ok(vec![of(x, 1, first)?]),
            move |x| Ok(vec![of(x, 3, last)?.transpose(&[3, 2, 0, 1])]),
        ));
    }
    Ok(cases)
}
