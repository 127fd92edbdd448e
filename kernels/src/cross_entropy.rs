//! Cross-entropy of a linear classifier without its logits in memory, and of given logits.
//!
//! With logits `z = x wᵀ`, rows of `w [vocabulary, d]` being classes, and label y of a row:
//!
//! ```text
//! lse = ln Σ_v exp z_v        loss = lse - (1-ε)·z_y - ε·mean_v z_v + ζ·lse²
//! g_v = dloss·((1 + 2ζ·lse)·exp(z_v - lse) - (1-ε)·[v = y] - ε/V)        dx = g w        dw = gᵀ x
//! ```
//! ε smooths labels (Szegedy et al. 2016), ζ keeps the logits' normaliser near 1 (z-loss, PaLM 2022). Only a block of
//! logits exists at a time (Liger Kernel, Hsu et al. 2024; Cut Your Losses, Wijmans et al. 2025): the forward pass
//! keeps a running maximum and sum over blocks of the vocabulary; the backward pass recomputes logits, once for dx and
//! once for dw, so that one program sums each element of a gradient in one order: the same every time. That is 8·n·V·d
//! multiplications and additions backward, where stored logits would take 4; memory is n + V rows of d elements instead
//! of n·V. On the CPU, [`crate::cross_entropy_resident`] computes both in one pass of 6·n·V·d. Everything but the
//! operands is f32.
use crate::argument_errors::argument_error;
use crate::block_sizes::{BlockResources, BlockSizeKey, choose_block_sizes, mesh_block_size};
use crate::cross_entropy_resident as resident;
use crate::cross_entropy_rows::{LossOptions, LossResiduals, LossStatistics};
use crate::dtype_dispatch::{floats, read_i32_elements, with_gradient};
use crate::element::Floating;
use crate::row_blocks::{cast_sums, choose_row_block, has_whole_row_blocks, is_divided_among_cores, reshape_to_rows};
use pallas_rt::Differentiable;
use pallas_rt::launch::may_gather;
use pallas_rt::prelude::*;

/// Options of the cross-entropy loss.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Options {
    /// Label of rows without loss and gradient; it need not be a class. -100 by default, as in PyTorch.
    pub ignore: i32,
    /// ε of label smoothing: part of the target, 0 to 1, that is spread evenly over all classes.
    pub smoothing: f32,
    /// ζ of the z-loss: weight of the squared log-sum-exp.
    pub z_loss: f32,
}
impl Default for Options {
    fn default() -> Self {
        Options { ignore: -100, smoothing: 0.0, z_loss: 0.0 }
    }
}

/// Computes loss and log-sum-exp of each row. `DP` is d rounded up to a multiple of the block depth `depth`.
#[kernel(grid = (cdiv(N, BN), cdiv(V, BV)), semantics = (parallel, arbitrary))]
pub fn cross_entropy_blocks<E: Floating>(
    #[block([N, D] => [BN, DP], |i, _| (i, 0), fill = 0.0)] x: In<E>,
    #[block([V, D] => [BV, DP], |_, j| (j, 0), fill = 0.0)] w: In<E>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0), fill = 0)] labels: In<i32>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0))] loss: Out<E::Acc>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0))] lse: Out<E::Acc>,
    #[scratch([BN, 1])] max: Scratch<E::Acc>,
    #[scratch([BN, 1])] sum: Scratch<E::Acc>,
    #[scratch([BN, 1])] target: Scratch<E::Acc>,
    #[scratch([BN, 1])] total: Scratch<E::Acc>,
    ignore: i32,
    smoothing: f32,
    z_loss: f32,
    #[fixed] smooth: bool,
    #[fixed] depth: usize,
    #[dim] DP: usize,
    #[dim] BN: usize,
    #[dim] BV: usize,
) {
    let state = LossStatistics { max, sum, target, total };
    if program_id(1) == 0 {
        state.initialize();
    }
    let mut z = zeros::<E::Acc>([BN, BV]);
    if depth == DP {
        z = dot(x.load().cast::<E::Acc>(), w.load().cast::<E::Acc>().t());
    } else {
        for c in 0..scalar(DP / depth) {
            let at = ds(c * depth, depth);
            z += dot(x.at((.., at)).load().cast::<E::Acc>(), w.at((.., at)).load().cast::<E::Acc>().t());
        }
    }
    state.accumulate(z, labels.load(), program_id(1) * BV, V, smooth);
    if program_id(1) == num_programs(1) - 1 {
        let (a, b) = state.finish(labels.load(), V, LossOptions::new(ignore, [smoothing, z_loss], smooth));
        loss.store(a);
        lse.store(b);
    }
}

/// Computes the gradient by x: a program keeps a block of its rows, and blocks of the vocabulary stream past. `DP` as
/// in [`cross_entropy_blocks`].
#[kernel(grid = (cdiv(N, BN), cdiv(V, BV)), semantics = (parallel, arbitrary))]
pub fn cross_entropy_dx<E: Floating>(
    #[block([N, D] => [BN, DP], |i, _| (i, 0), fill = 0.0)] x: In<E>,
    #[block([V, D] => [BV, DP], |_, j| (j, 0), fill = 0.0)] w: In<E>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0), fill = 0)] labels: In<i32>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0), fill = 0.0)] lse: In<E::Acc>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0), fill = 0.0)] dloss: In<E::Acc>,
    #[block([N, D] => [BN, DP], |i, _| (i, 0))] dx: Out<E::Acc>,
    ignore: i32,
    smoothing: f32,
    z_loss: f32,
    #[fixed] depth: usize,
    #[dim] DP: usize,
    #[dim] BN: usize,
    #[dim] BV: usize,
) {
    if program_id(1) == 0 {
        dx.fill(0.0);
    }
    let mut z = zeros::<E::Acc>([BN, BV]);
    if depth == DP {
        z = dot(x.load().cast::<E::Acc>(), w.load().cast::<E::Acc>().t());
    } else {
        for c in 0..scalar(DP / depth) {
            let at = ds(c * depth, depth);
            z += dot(x.at((.., at)).load().cast::<E::Acc>(), w.at((.., at)).load().cast::<E::Acc>().t());
        }
    }
    let row = LossResiduals { labels: labels.load(), lse: lse.load(), dloss: dloss.load() };
    let g = row.logits_gradient(z, program_id(1) * BV, V, LossOptions::new(ignore, [smoothing, z_loss], true));
    if depth == DP {
        dx.store(dx.load() + dot(g, w.load().cast::<E::Acc>()));
    } else {
        for c in 0..scalar(DP / depth) {
            let at = ds(c * depth, depth);
            dx.at((.., at)).store(dx.at((.., at)).load() + dot(g, w.at((.., at)).load().cast::<E::Acc>()));
        }
    }
}

/// Computes the gradient by w: a program keeps a block of classes, and blocks of rows stream past. `DP` as in
/// [`cross_entropy_blocks`].
#[kernel(grid = (cdiv(V, BV), cdiv(N, BN)), semantics = (parallel, arbitrary))]
pub fn cross_entropy_dw<E: Floating>(
    #[block([N, D] => [BN, DP], |_, i| (i, 0), fill = 0.0)] x: In<E>,
    #[block([V, D] => [BV, DP], |j, _| (j, 0), fill = 0.0)] w: In<E>,
    #[block([N, 1] => [BN, 1], |_, i| (i, 0), fill = 0)] labels: In<i32>,
    #[block([N, 1] => [BN, 1], |_, i| (i, 0), fill = 0.0)] lse: In<E::Acc>,
    #[block([N, 1] => [BN, 1], |_, i| (i, 0), fill = 0.0)] dloss: In<E::Acc>,
    #[block([V, D] => [BV, DP], |j, _| (j, 0))] dw: Out<E::Acc>,
    ignore: i32,
    smoothing: f32,
    z_loss: f32,
    #[fixed] depth: usize,
    #[dim] DP: usize,
    #[dim] BN: usize,
    #[dim] BV: usize,
) {
    if program_id(1) == 0 {
        dw.fill(0.0);
    }
    let mut z = zeros::<E::Acc>([BN, BV]);
    if depth == DP {
        z = dot(x.load().cast::<E::Acc>(), w.load().cast::<E::Acc>().t());
    } else {
        for c in 0..scalar(DP / depth) {
            let at = ds(c * depth, depth);
            z += dot(x.at((.., at)).load().cast::<E::Acc>(), w.at((.., at)).load().cast::<E::Acc>().t());
        }
    }
    let row = LossResiduals { labels: labels.load(), lse: lse.load(), dloss: dloss.load() };
    let g = row.logits_gradient(z, program_id(0) * BV, V, LossOptions::new(ignore, [smoothing, z_loss], true));
    if depth == DP {
        dw.store(dw.load() + dot(g.t(), x.load().cast::<E::Acc>()));
    } else {
        for c in 0..scalar(DP / depth) {
            let at = ds(c * depth, depth);
            dw.at((.., at)).store(dw.at((.., at)).load() + dot(g.t(), x.at((.., at)).load().cast::<E::Acc>()));
        }
    }
}

/// Computes loss and log-sum-exp of each row of given logits. With `whole` one block has all classes: BV is V.
#[kernel(grid = (cdiv(N, BN), cdiv(V, BV)), semantics = (parallel, arbitrary))]
pub fn cross_entropy_of_logits_blocks<E: Floating>(
    #[block([N, V] => [BN, BV], |i, j| (i, j), fill = 0.0)] z: In<E>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0), fill = 0)] labels: In<i32>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0))] loss: Out<E::Acc>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0))] lse: Out<E::Acc>,
    #[scratch([BN, 1])] max: Scratch<E::Acc>,
    #[scratch([BN, 1])] sum: Scratch<E::Acc>,
    #[scratch([BN, 1])] target: Scratch<E::Acc>,
    #[scratch([BN, 1])] total: Scratch<E::Acc>,
    ignore: i32,
    smoothing: f32,
    z_loss: f32,
    #[fixed] smooth: bool,
    #[fixed] whole: bool,
    #[dim] BN: usize,
    #[dim] BV: usize,
) {
    let state = LossStatistics { max, sum, target, total };
    if whole {
        state.set_from_logits(z.load().cast::<E::Acc>(), labels.load(), smooth);
    } else {
        if program_id(1) == 0 {
            state.initialize();
        }
        state.accumulate(z.load().cast::<E::Acc>(), labels.load(), program_id(1) * BV, V, smooth);
    }
    if program_id(1) == num_programs(1) - 1 {
        let (a, b) = state.finish(labels.load(), V, LossOptions::new(ignore, [smoothing, z_loss], smooth));
        loss.store(a);
        lse.store(b);
    }
}

/// Computes the gradient by given logits.
#[kernel(grid = (cdiv(N, BN), cdiv(V, BV)))]
pub fn cross_entropy_of_logits_dz<E: Floating>(
    #[block([N, V] => [BN, BV], |i, j| (i, j))] z: In<E>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0))] labels: In<i32>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0))] lse: In<E::Acc>,
    #[block([N, 1] => [BN, 1], |i, _| (i, 0))] dloss: In<E::Acc>,
    #[block([N, V] => [BN, BV], |i, j| (i, j))] dz: Out<E>,
    ignore: i32,
    smoothing: f32,
    z_loss: f32,
    #[dim] BN: usize,
    #[dim] BV: usize,
) {
    let row = LossResiduals { labels: labels.load(), lse: lse.load(), dloss: dloss.load() };
    let terms = LossOptions::new(ignore, [smoothing, z_loss], true);
    dz.store(row.unmasked_logits_gradient(z.load().cast::<E::Acc>(), program_id(1) * BV, V, terms).cast::<E>());
}

/// Returns an array of one number per row as a column `[n, 1]`. Refuses an array of another length.
#[track_caller]
fn reshape_to_column(name: &str, x: &Array, row_count: usize) -> Result<Array> {
    if x.len() != row_count {
        return argument_error(format!("`{name}` has shape {:?} for {row_count} rows", x.shape()));
    }
    Ok(x.reshape(&[row_count, 1]))
}

/// Returns the labels as a column. Refuses options out of range, labels that are not a class, and a classifier without
/// classes.
#[track_caller]
fn check_labels(labels: &Array, row_count: usize, classes: usize, options: &Options) -> Result<Array> {
    let Options { ignore, smoothing, z_loss } = *options;
    if !(0.0..=1.0).contains(&smoothing) {
        return argument_error(format!("`smoothing` is {smoothing}, expected 0 to 1"));
    }
    if !z_loss.is_finite() {
        return argument_error(format!("`z_loss` is {z_loss}, expected a finite number"));
    }
    let column = reshape_to_column("labels", labels, row_count)?;
    if classes == 0 {
        return argument_error("cross-entropy needs at least one class".into());
    }
    let bad = |&(_, &y): &(usize, &i32)| y != ignore && usize::try_from(y).map_or(true, |y| y >= classes);
    // Labels that a traced function computes are not known yet.
    let known = if labels.is_traced() { vec![] } else { read_i32_elements("labels", labels)? };
    if let Some((row, y)) = known.iter().enumerate().find(bad) {
        return argument_error(format!(
            "label {y} of row {row} is none of {classes} classes, nor the ignored {ignore}"
        ));
    }
    Ok(column)
}

/// Copies the log-sum-exp: an operation of traced functions that has no gradient.
#[kernel(grid = (cdiv(N, 1024)))]
pub fn cross_entropy_lse(
    #[block([N] => [1024], |i| (i,))] lse: In<f32>,
    #[block([N] => [1024], |i| (i,))] copy: Out<f32>,
) {
    copy.store(lse.load());
}

/// Returns the log-sum-exp as a value whose gradient is refused, because the backward kernels do not have it. A traced
/// function that does not use the value does not compute it.
#[track_caller]
#[inline]
fn without_gradient(lse: Array) -> Result<Array> {
    if !lse.is_traced() {
        return Ok(lse);
    }
    Ok(cross_entropy_lse(lse.reshape(&[lse.len()]))?.reshape(lse.shape()))
}

/// Returns x reshaped to rows `[n, d]`. Refuses a `w` whose rows have another length.
#[track_caller]
fn check_operands(x: &Array, w: &Array) -> Result<Array> {
    let flat = reshape_to_rows(x)?;
    let &[_, d] = w.shape() else {
        return argument_error(format!("`w` has shape {:?}, expected [vocabulary, {}]", w.shape(), flat.shape()[1]));
    };
    if d == 0 {
        return argument_error("cross-entropy needs rows of at least one element".into());
    }
    Ok(flat)
}

/// Returns `[rows, classes, depth, padded depth]` of a block for the product of x and w: its sizes, and the whole depth
/// of x rounded up to blocks.
fn choose_cross_entropy_blocks(key: BlockSizeKey, x: &Array, w: &Array) -> [usize; 4] {
    // Blocks of x and of w, and the block of logits, which is multiplied with one of them.
    let need = |[n, v, d]: [usize; 3]| BlockResources::from_staged_words((n + v) * d + n * v);
    let (n, target) = (x.shape()[0], x.client().target());
    let (classes, d) = (w.shape()[0], w.shape()[1]);
    let deep = if d.is_multiple_of(256) { 256 } else { 64 };
    // All columns in one block: a core's caches hold them, however long rows are.
    let on_cores = target.cores.map(|_| [256, 128, d]);
    let all = on_cores.into_iter().chain([[128, 128, deep], [32, 64, 16]]);
    let [bn, bv, bd] = choose_block_sizes(key, target, [n, classes, d], all.map(|blocks| (blocks, need(blocks))));
    [mesh_block_size(n, bn), mesh_block_size(classes, bv), bd, d.next_multiple_of(bd)]
}
/// Loss and log-sum-exp, f32 `[..]`, of logits `x wᵀ` for `x [.., d]`, `w [vocabulary, d]` (both f32, f16 or bf16) and
/// i32 labels `[..]`. An ignored row has loss 0.
///
/// Labels are read on the host to check them: on a GPU the call waits for what makes them. Those that a traced function
/// computes are not known: a row whose label is no class has a loss of NaN, and the gradient of its log-sum-exp.
///
/// # Errors
/// Shapes or element types that do not fit, a label that is no class, options out of range; device errors.
///
/// ```
/// use pallas_kernels::cross_entropy::{Options, cross_entropy, cross_entropy_backward};
/// use pallas_rt::Array;
/// let x = Array::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[2, 2])?;
/// let w = Array::from_slice(&[0.0f32, 0.0, 3f32.ln(), 0.0], &[2, 2])?;
/// let labels = Array::from_slice(&[0, -100], &[2])?;
/// let (loss, lse) = cross_entropy(&x, &w, &labels, &Options::default())?;
/// let want = [4f32.ln(), 0.0];
/// assert!(loss.to_vec::<f32>()?.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6));
/// // The gradient of the mean over rows that count: here there is one.
/// let dloss = Array::from_slice(&[1.0f32, 1.0], &[2])?;
/// let (dx, dw) = cross_entropy_backward(&x, &w, &labels, &lse, &dloss, &Options::default())?;
/// let want = [-0.75f32, 0.0, 0.75, 0.0];
/// assert!(dw.to_vec::<f32>()?.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6));
/// assert_eq!(dx.to_vec::<f32>()?[2..], [0.0, 0.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn cross_entropy(x: &Array, w: &Array, labels: &Array, options: &Options) -> Result<(Array, Array)> {
    let matrix = check_operands(x, w)?;
    let column = check_labels(labels, matrix.shape()[0], w.shape()[0], options)?;
    #[cfg(feature = "graph")]
    if (options.smoothing, options.z_loss) == (0.0, 0.0)
        && let Some([loss, lse]) = crate::composed_ops::compose_cross_entropy(&matrix, w, &column, options.ignore)
    {
        return Ok((loss.reshape(labels.shape()), lse.reshape(labels.shape())));
    }
    let (call, [x, w]) = Differentiable::begin([x, w])?;
    // Each row passes all classes: devices that divide the classifier gather it, and add up their parts of the
    // gradients.
    let w = may_gather(&w);
    let flat = check_operands(&x, &w)?;
    let Options { ignore, smoothing, z_loss } = *options;
    let (loss, lse) = floats!("cross_entropy", x.dtype(), E => {
        let [bn, bv, bd, depth] = choose_cross_entropy_blocks(BlockSizeKey::CrossEntropy, &flat, &w);
        let smooth = smoothing != 0.0;
        cross_entropy_blocks::<E>(&flat, &w, &column, ignore, smoothing, z_loss, smooth, bd, depth, bn, bv)
    })?;
    let (loss, lse) = (loss.reshape(labels.shape()), lse.reshape(labels.shape()));
    let [loss, lse] = with_gradient!(call, [loss, lse.clone()], &[&x, &w, &lse], |[x, w, lse], [dloss, _]| {
        <[Array; 2]>::from(cross_entropy_backward(x, w, labels, lse, &dloss, options)?)
    });
    Ok((loss, without_gradient(lse)?))
}

/// Gradients of [`cross_entropy`] by x and w, in their element type, from its log-sum-exp and the gradient `dloss`
/// (f32, shaped as the labels) by its losses. Sums are kept in f32 arrays as large as the gradients.
///
/// # Errors
/// As [`cross_entropy`].
#[track_caller]
#[inline]
pub fn cross_entropy_backward(
    x: &Array,
    w: &Array,
    labels: &Array,
    lse: &Array,
    dloss: &Array,
    options: &Options,
) -> Result<(Array, Array)> {
    let flat = check_operands(x, w)?;
    let n = flat.shape()[0];
    let labels = check_labels(labels, n, w.shape()[0], options)?;
    let (lse, dloss) = (reshape_to_column("lse", lse, n)?, reshape_to_column("dloss", dloss, n)?);
    let Options { ignore, smoothing, z_loss } = *options;
    let (dx, dw) = floats!("cross_entropy_backward", x.dtype(), E => {
        let [bn, bv, bd, _] = choose_cross_entropy_blocks(BlockSizeKey::CrossEntropyDw, &flat, w);
        let whole = flat.shape()[1] == bd;
        if let Some([parts, steps]) = resident::split_classes(&flat, w.shape()[0].div_ceil(bv)).filter(|_| whole) {
            let room = n.next_multiple_of(bn);
            let (dxs, dw) = resident::cross_entropy_resident::<E>(
                &flat, w, &labels, &lse, &dloss, ignore, smoothing, z_loss, parts, steps, bn, bv, room)?;
            let dx = resident::cross_entropy_dx_of_parts::<E>(&dxs, n, bn)?;
            return Ok((dx.reshape(x.shape()), cast_sums(x.dtype(), dw)?));
        }
        let [bn, bv, bd, depth] = choose_cross_entropy_blocks(BlockSizeKey::CrossEntropyDx, &flat, w);
        let dx = cross_entropy_dx::<E>(
            &flat, w, &labels, &lse, &dloss, ignore, smoothing, z_loss, bd, depth, bn, bv)?;
        let dx = cast_sums(x.dtype(), dx)?;
        let [bn, bv, bd, depth] = choose_cross_entropy_blocks(BlockSizeKey::CrossEntropyDw, &flat, w);
        cross_entropy_dw::<E>(&flat, w, &labels, &lse, &dloss, ignore, smoothing, z_loss, bd, depth, bn, bv)
            .map(|dw| (dx, dw))
    })?;
    Ok((dx.reshape(x.shape()), cast_sums(x.dtype(), dw)?))
}

/// Loss and log-sum-exp of given logits `[.., classes]`; see [`cross_entropy`], which computes the logits.
///
/// # Errors
/// As [`cross_entropy`].
///
/// ```
/// use pallas_kernels::cross_entropy::{Options, cross_entropy_of_logits, cross_entropy_of_logits_backward};
/// use pallas_rt::Array;
/// let z = Array::from_slice(&[0.0f32, 3f32.ln()], &[1, 2])?;
/// let (labels, dloss) = (Array::from_slice(&[0], &[1])?, Array::from_slice(&[1.0f32], &[1])?);
/// let (loss, lse) = cross_entropy_of_logits(&z, &labels, &Options::default())?;
/// assert!((loss.to_vec::<f32>()?[0] - 4f32.ln()).abs() < 1e-6);
/// let dz = cross_entropy_of_logits_backward(&z, &labels, &lse, &dloss, &Options::default())?.to_vec::<f32>()?;
/// assert!((dz[0] + 0.75).abs() < 1e-6 && (dz[1] - 0.75).abs() < 1e-6);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[inline]
pub fn cross_entropy_of_logits(z: &Array, labels: &Array, options: &Options) -> Result<(Array, Array)> {
    let &[n, classes] = reshape_to_rows(z)?.shape() else { unreachable!("rows are a matrix") };
    let column = check_labels(labels, n, classes, options)?;
    let (call, [z]) = Differentiable::begin([z])?;
    let flat = reshape_to_rows(&z)?;
    let Options { ignore, smoothing, z_loss } = *options;
    let (loss, lse) = floats!("cross_entropy_of_logits", z.dtype(), E => {
        // To read a label's logit out of registers would take longer on GPUs than to add up what is 0 for others.
        let whole = is_divided_among_cores(&flat) && has_whole_row_blocks(&flat);
        let [bn, bv] = choose_row_block(&flat, 8, (!whole).then_some(1024));
        let smooth = smoothing != 0.0;
        cross_entropy_of_logits_blocks::<E>(&flat, &column, ignore, smoothing, z_loss, smooth, whole, bn, bv)
    })?;
    let (loss, lse) = (loss.reshape(labels.shape()), lse.reshape(labels.shape()));
    let [loss, lse] = with_gradient!(call, [loss, lse.clone()], &[&z, &lse], |[z, lse], [dloss, _]| {
        [cross_entropy_of_logits_backward(z, labels, lse, &dloss, options)?]
    });
    Ok((loss, without_gradient(lse)?))
}

/// Gradient by the logits `z` of [`cross_entropy_of_logits`], from its log-sum-exp and the gradient `dloss` by its
/// losses.
///
/// # Errors
/// As [`cross_entropy`].
#[track_caller]
#[inline]
pub fn cross_entropy_of_logits_backward(
    z: &Array,
    labels: &Array,
    lse: &Array,
    dloss: &Array,
    options: &Options,
) -> Result<Array> {
    let flat = reshape_to_rows(z)?;
    let n = flat.shape()[0];
    let labels = check_labels(labels, n, flat.shape()[1], options)?;
    let (lse, dloss) = (reshape_to_column("lse", lse, n)?, reshape_to_column("dloss", dloss, n)?);
    let Options { ignore, smoothing, z_loss } = *options;
    let dz = floats!("cross_entropy_of_logits", z.dtype(), E => {
        // More rows a block share its numbers of classes, as long as there are blocks for each core.
        let programs = n * flat.shape()[1].div_ceil(1024);
        let most = flat.client().target().cores.map_or(8, |cores| (programs / (4 * cores)).clamp(8, 128));
        let [bn, bv] = choose_row_block(&flat, most, Some(1024));
        cross_entropy_of_logits_dz::<E>(&flat, &labels, &lse, &dloss, ignore, smoothing, z_loss, bn, bv)
    })?;
    Ok(dz.reshape(z.shape()))
}
