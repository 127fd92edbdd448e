//! Convolutions; `jax.lax.conv_general_dilated` and what follows from it.
use super::arrange::flip;
use super::dtype_promotion::promote_types;
use super::elementwise_broadcast::cast;
use super::pool::{Padding, dilated_extent, per_axis_numbers};
use super::shape::{reshape, transpose};
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{Conv, WindowDim};
use pallas_ir::{At, DType, Diag, Loc, StructuralOp};

/// The options of [`conv_general_dilated`]: lists of one number for each spatial axis.
#[derive(Clone, Debug)]
pub struct Convolution<'a> {
    /// Distances by which the window moves; empty: 1.
    pub window_strides: &'a [usize],
    /// Positions around the left side that count as zeros.
    pub padding: Padding,
    /// Distances between elements of the left side; empty: 1.
    pub lhs_dilation: &'a [usize],
    /// Distances between elements of the right side; empty: 1.
    pub rhs_dilation: &'a [usize],
    /// A letter for each axis of the left side, the right side and the result, as in `["NHWC", "HWIO", "NHWC"]`: `N` is
    /// the batch, `C` the features, `O` the output features, `I` the input features, any other a spatial axis, in the
    /// order of the right side. Empty: batch or output features, features, spatial axes.
    pub dimension_numbers: [&'a str; 3],
    /// Number of groups of features, each of which is convolved on its own.
    pub feature_group_count: usize,
    /// Number of groups of the batch, each of which is convolved by its own part of the output features.
    pub batch_group_count: usize,
}

impl Default for Convolution<'_> {
    fn default() -> Self {
        Convolution {
            window_strides: &[],
            padding: Padding::Valid,
            lhs_dilation: &[],
            rhs_dilation: &[],
            dimension_numbers: [""; 3],
            feature_group_count: 1,
            batch_group_count: 1,
        }
    }
}

/// The positions at which a convolution of two arrays of one axis is computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConvolveMode {
    /// All positions at which the operands overlap.
    Full,
    /// As many positions as the longer operand has elements, from the middle.
    Same,
    /// The positions at which the shorter operand lies inside of the longer one.
    Valid,
}

/// Returns the axes of the left side, the right side and the result: batch or output features, features, spatial axes.
fn parse_dimension_numbers(names: [&str; 3], rank: usize) -> Result<[Vec<usize>; 3], Diag> {
    let firsts = [['N', 'C'], ['O', 'I'], ['N', 'C']];
    let wrong = |text: &str, i: usize| {
        let message = format!("dimension numbers `{text}` for {rank} axes");
        let help =
            format!("a letter for each axis: `{}`, `{}` and those of the right side", firsts[i][0], firsts[i][1]);
        Err(Diag::new("dimension-numbers", At::Op, message, help))
    };
    if names == [""; 3] {
        return Ok([(); 3].map(|()| (0..rank).collect()));
    }
    let spatial: Vec<char> = names[1].chars().filter(|c| !firsts[1].contains(c)).collect();
    let mut found = [vec![], vec![], vec![]];
    for (i, text) in names.into_iter().enumerate() {
        for letter in firsts[i].iter().chain(&spatial) {
            match text.chars().position(|c| c == *letter) {
                Some(axis) if text.chars().filter(|c| c == letter).count() == 1 => found[i].push(axis),
                _ => return wrong(text, i),
            }
        }
        if text.chars().count() != rank || found[i].len() != rank {
            return wrong(text, i);
        }
    }
    Ok(found)
}

/// Appends a convolution of `lhs` by `rhs`.
fn convolution(graph: &mut Graph, lhs: Var, rhs: Var, options: &Convolution<'_>) -> Result<Var, Diag> {
    let name = "conv_general_dilated";
    let dtype = promote_types(graph.ty(lhs).dtype, graph.ty(rhs).dtype);
    let (lhs, rhs) = (cast(graph, lhs, dtype)?, cast(graph, rhs, dtype)?);
    let shapes = [lhs, rhs].map(|v| graph.ty(v).shape.clone());
    if shapes[0].len() != shapes[1].len() || shapes[0].len() < 2 {
        let message = format!("{name} of {} by {}", graph.ty(lhs), graph.ty(rhs));
        let help = "both have a batch or output feature axis, a feature axis and the same spatial axes";
        return Err(Diag::new("conv-rank", At::Operand(1), message, help));
    }
    let [of_lhs, of_rhs, out] = parse_dimension_numbers(options.dimension_numbers, shapes[0].len())?;
    let count = of_lhs.len() - 2;
    let strides = per_axis_numbers(name, "strides", options.window_strides, count)?;
    let dilation = per_axis_numbers(name, "lhs dilations", options.lhs_dilation, count)?;
    let spacing = per_axis_numbers(name, "rhs dilations", options.rhs_dilation, count)?;
    let extents: Vec<usize> = of_lhs[2..].iter().map(|&axis| shapes[0][axis]).collect();
    let size = of_rhs[2..].iter().map(|&axis| shapes[1][axis] as i64);
    let reaches: Vec<i64> = size.zip(&spacing).map(|(n, &d)| dilated_extent(n, d)).collect();
    let padding = options.padding.resolve_padding_pairs(name, &extents, &reaches, &strides)?;
    let window = |i: usize| WindowDim {
        stride: strides[i],
        low: padding[i].0,
        high: padding[i].1,
        dilation: dilation[i],
        spacing: spacing[i],
    };
    let acc = dtype.accumulator();
    let conv = Conv {
        windows: (0..count).map(window).collect(),
        groups: options.feature_group_count,
        batch_groups: options.batch_group_count,
        lhs: of_lhs,
        rhs: of_rhs,
        out,
        acc,
    };
    let made = graph.push(StructuralOp::from(conv), &[lhs, rhs])?;
    cast(graph, made, dtype)
}

/// Convolution of any number of spatial axes; `jax.lax.conv_general_dilated`. The window is not reversed. Operands get
/// one element type; sums of f16 and bf16 are computed in f32.
///
/// ```
/// # use pallas_rt::{Client, ops::{Convolution, Padding, conv_general_dilated}};
/// let images = Client::cpu().full(&[8, 28, 28, 3], 1.0f32)?;
/// let window = Client::cpu().full(&[5, 5, 3, 16], 0.1f32)?;
/// let options = Convolution {
///     window_strides: &[2, 2],
///     padding: Padding::Same,
///     dimension_numbers: ["NHWC", "HWIO", "NHWC"],
///     ..Convolution::default()
/// };
/// assert_eq!(conv_general_dilated(&images, &window, &options).shape(), [8, 14, 14, 16]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn conv_general_dilated(lhs: &Array, rhs: &Array, options: &Convolution<'_>) -> Array {
    apply(&[lhs, rhs], Loc::caller(), |graph, v| convolution(graph, v[0], v[1], options))
}

/// Convolution of `lhs` with batch, features and spatial axes by `rhs` with output features, input features and spatial
/// axes; `jax.lax.conv`.
#[track_caller]
#[must_use]
pub fn conv(lhs: &Array, rhs: &Array, strides: &[usize], padding: impl Into<Padding>) -> Array {
    let options = Convolution { window_strides: strides, padding: padding.into(), ..Convolution::default() };
    apply(&[lhs, rhs], Loc::caller(), |graph, v| convolution(graph, v[0], v[1], &options))
}

/// Transposed convolution; `jax.lax.conv_transpose`. `strides` are the distances between elements of `lhs`; a padding
/// of pairs is that of the dilated operand. Of `options` only `rhs_dilation` and `dimension_numbers` are read. Without
/// dimension numbers features are the last axes, as in `["NHWC", "HWIO", "NHWC"]`. If `transpose_kernel` is set, `rhs`
/// is the right side of the convolution whose gradient this is.
#[track_caller]
#[must_use]
pub fn conv_transpose(
    lhs: &Array,
    rhs: &Array,
    strides: &[usize],
    padding: impl Into<Padding>,
    transpose_kernel: bool,
    options: &Convolution<'_>,
) -> Array {
    let padding = padding.into();
    apply(&[lhs, rhs], Loc::caller(), |graph, v| {
        let (name, rank) = ("conv_transpose", graph.ty(v[0]).shape.len());
        let defaults = ["NC IO NC", "NHC HIO NHC", "NHWC HWIO NHWC", "NHWDC HWDIO NHWDC"];
        let mut names = options.dimension_numbers;
        if names == [""; 3] {
            let found = rank.checked_sub(2).and_then(|i| defaults.get(i));
            let Some(default) = found else {
                let message = format!("{name} of {} without dimension numbers", graph.ty(v[0]));
                return Err(Diag::new("dimension-numbers", At::Op, message, "a letter for each axis"));
            };
            default.split(' ').zip(&mut names).for_each(|(text, name)| *name = text);
        }
        let mut rhs = v[1];
        let shape = graph.ty(rhs).shape.clone();
        if shape.len() != rank {
            let message = format!("{name} of {} by {}", graph.ty(v[0]), graph.ty(rhs));
            return Err(Diag::new("conv-rank", At::Operand(1), message, "both have the same number of axes"));
        }
        let [_, of_rhs, _] = parse_dimension_numbers(names, rank)?;
        let strides = per_axis_numbers(name, "strides", strides, rank - 2)?;
        let spacing = per_axis_numbers(name, "rhs dilations", options.rhs_dilation, rank - 2)?;
        let pair = |i: usize| {
            let (size, stride) = (dilated_extent(shape[of_rhs[2 + i]] as i64, spacing[i]), strides[i]);
            let (before, all) = match &padding {
                Padding::Same if stride > size - 1 => (size - 1, size + stride - 2),
                Padding::Same => ((size + stride - 1) / 2, size + stride - 2),
                _ => (size - 1, size + stride - 2 + (size - stride).max(0)),
            };
            (before, all - before)
        };
        let pairs = match &padding {
            Padding::Explicit(pairs) => pairs.clone(),
            Padding::Same | Padding::Valid => (0..rank - 2).map(pair).collect(),
            Padding::SameLower => {
                let message = format!("{name} with the padding `SameLower`");
                return Err(Diag::new("padding", At::Op, message, "`Same`, `Valid` or pairs of numbers"));
            }
        };
        if transpose_kernel {
            if rank > 2 {
                rhs = flip(graph, rhs, of_rhs[2..].to_vec())?;
            }
            let mut order: Vec<usize> = (0..rank).collect();
            order.swap(of_rhs[0], of_rhs[1]);
            rhs = transpose(graph, rhs, order)?;
        }
        let dilation: Vec<usize> = strides.iter().map(|&n| n as usize).collect();
        let options = Convolution {
            padding: Padding::Explicit(pairs),
            lhs_dilation: &dilation,
            rhs_dilation: options.rhs_dilation,
            dimension_numbers: names,
            ..Convolution::default()
        };
        convolution(graph, v[0], rhs, &options)
    })
}

/// Appends the sums of products of an array of one axis and another one that is moved along it, and reversed first if
/// `is_reversed` is true.
fn convolve_1d(
    graph: &mut Graph,
    name: &str,
    x: Var,
    y: Var,
    mode: ConvolveMode,
    is_reversed: bool,
) -> Result<Var, Diag> {
    let shapes = [x, y].map(|v| graph.ty(v).shape.clone());
    let [[n], [m]] = [&shapes[0][..], &shapes[1][..]] else {
        let message = format!("{name} of {} and {}", graph.ty(x), graph.ty(y));
        return Err(Diag::new("convolve", At::Op, message, "both have one axis"));
    };
    if *n == 0 || *m == 0 {
        let message = format!("{name} of {} and {}", graph.ty(x), graph.ty(y));
        return Err(Diag::new("convolve", At::Op, message, "both have at least one element"));
    }
    let dtype = promote_types(graph.ty(x).dtype, graph.ty(y).dtype);
    let dtype = if dtype.is_float() { dtype } else { DType::F32 };
    let is_collective = n < m;
    let (long, short) = if is_collective { (y, x) } else { (x, y) };
    let (n, m) = (*n.max(m), *n.min(m));
    let (long, mut short) = (cast(graph, long, dtype)?, cast(graph, short, dtype)?);
    if is_reversed {
        short = flip(graph, short, vec![0])?;
    }
    let half = m as i64 / 2;
    let pair = match mode {
        ConvolveMode::Valid => (0, 0),
        ConvolveMode::Same => (half, m as i64 - half - 1),
        ConvolveMode::Full => (m as i64 - 1, m as i64 - 1),
    };
    let (long, short) = (reshape(graph, long, &[1, 1, n])?, reshape(graph, short, &[1, 1, m])?);
    let options = Convolution { padding: [pair].into(), ..Convolution::default() };
    let made = convolution(graph, long, short, &options)?;
    let count = graph.ty(made).elements();
    let made = reshape(graph, made, &[count])?;
    if is_collective && !is_reversed { flip(graph, made, vec![0]) } else { Ok(made) }
}

impl Array {
    /// Convolution of two arrays of one axis; `jnp.convolve`. Integers are computed as f32.
    #[track_caller]
    #[must_use]
    pub fn convolve(&self, other: &Array, mode: ConvolveMode) -> Array {
        apply(&[self, other], Loc::caller(), |graph, v| convolve_1d(graph, "convolve", v[0], v[1], mode, true))
    }

    /// Sums of products of one array and another one moved along it; `jnp.correlate`. Integers are computed as f32.
    #[track_caller]
    #[must_use]
    pub fn correlate(&self, other: &Array, mode: ConvolveMode) -> Array {
        apply(&[self, other], Loc::caller(), |graph, v| convolve_1d(graph, "correlate", v[0], v[1], mode, false))
    }
}
