//! Folds of the elements that a window sees; `jax.lax.reduce_window`, and the pools of `flax.linen`.
use super::elementwise_broadcast::{GraphOperand, push_elementwise};
use super::reduce::with_accumulator_type;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::structural::{ReduceWindow, WindowDim};
use pallas_ir::{At, Diag, Literal, Loc, ScalarOp, StructuralOp};

/// Positions around an operand that a window also sees. Pairs of numbers convert to explicit padding.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Padding {
    /// No padding: a window sees only elements of the operand.
    #[default]
    Valid,
    /// As many positions that the result's extent is the operand's divided by the stride, rounded up; an odd one is
    /// after the operand.
    Same,
    /// As many positions as with `Same`; an odd one is before the operand.
    SameLower,
    /// Numbers of positions before and after the operand along each windowed axis; negative ones take elements away.
    Explicit(Vec<(i64, i64)>),
}

impl<const N: usize> From<[(i64, i64); N]> for Padding {
    fn from(pairs: [(i64, i64); N]) -> Padding {
        Padding::Explicit(pairs.to_vec())
    }
}

impl Padding {
    /// Returns the numbers of padding positions before and after each windowed axis, for axes of `extents` and windows
    /// of `window_extents` moved by `strides`. `name` names the operation in messages.
    pub(super) fn resolve_padding_pairs(
        &self,
        name: &str,
        extents: &[usize],
        window_extents: &[i64],
        strides: &[i64],
    ) -> Result<Vec<(i64, i64)>, Diag> {
        let same = |i: usize| {
            let (n, stride) = (extents[i] as i64, strides[i].max(1));
            let places = n / stride + i64::from(n % stride != 0);
            places.saturating_sub(1).saturating_mul(stride).saturating_add(window_extents[i]).saturating_sub(n).max(0)
        };
        let all = 0..extents.len();
        Ok(match self {
            Padding::Valid => vec![(0, 0); extents.len()],
            Padding::Same => all.map(|i| (same(i) / 2, same(i) - same(i) / 2)).collect(),
            Padding::SameLower => all.map(|i| (same(i) - same(i) / 2, same(i) / 2)).collect(),
            Padding::Explicit(pairs) if pairs.len() == extents.len() => pairs.clone(),
            Padding::Explicit(pairs) => {
                let message =
                    format!("{name} with a padding of {} pairs for {} windowed axes", pairs.len(), extents.len());
                return Err(Diag::new("padding", At::Op, message, "one pair of numbers for each windowed axis"));
            }
        })
    }
}

/// Returns one number for each of `count` windowed axes: those of `given`, or 1 if that is empty. `name` and
/// `list_name` name the operation and the list in messages.
pub(super) fn per_axis_numbers(name: &str, list_name: &str, given: &[usize], count: usize) -> Result<Vec<i64>, Diag> {
    if given.is_empty() {
        return Ok(vec![1; count]);
    }
    if given.len() != count {
        let message = format!("{name} with {} {list_name} for {count} windowed axes", given.len());
        return Err(Diag::new("window", At::Op, message, "one for each windowed axis, or none for ones"));
    }
    Ok(given.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect())
}

/// Extent of a window of `size` elements, which are `spacing` apart.
pub(super) fn dilated_extent(size: i64, spacing: i64) -> i64 {
    size.saturating_sub(1).saturating_mul(spacing).saturating_add(1)
}

/// The windows of [`Array::reduce_window`]: lists of one number for each axis of the operand.
#[derive(Clone, Debug, Default)]
pub struct Windows<'a> {
    /// Number of elements of the window along each axis.
    pub window_dimensions: &'a [usize],
    /// Distances by which the window moves; empty: 1.
    pub window_strides: &'a [usize],
    /// Positions around the operand that the window also sees.
    pub padding: Padding,
    /// Distances between elements of the operand; empty: 1.
    pub base_dilation: &'a [usize],
    /// Distances between elements of the window; empty: 1.
    pub window_dilation: &'a [usize],
}

/// Appends a fold by `op` of each window.
fn reduce_window(graph: &mut Graph, v: Var, op: ScalarOp, windows: &Windows<'_>) -> Result<Var, Diag> {
    let shape = graph.ty(v).shape.clone();
    let name = "reduce_window";
    if windows.window_dimensions.len() != shape.len() {
        let message = format!("{name} of {} by a window of {} axes", graph.ty(v), windows.window_dimensions.len());
        return Err(Diag::new("window", At::Op, message, "the window has an extent for each axis"));
    }
    let list = |what: &str, given: &[usize]| per_axis_numbers(name, what, given, shape.len());
    let size = list("extents", windows.window_dimensions)?;
    let strides = list("strides", windows.window_strides)?;
    let dilation = list("base dilations", windows.base_dilation)?;
    let spacing = list("window dilations", windows.window_dilation)?;
    // JAX pads as many places as the dilated operand needs.
    let dilated: Vec<usize> = shape
        .iter()
        .zip(&dilation)
        .map(|(&n, &d)| if n == 0 { 0 } else { dilated_extent(n as i64, d) as usize })
        .collect();
    let reaches: Vec<i64> = size.iter().zip(&spacing).map(|(&n, &d)| dilated_extent(n, d)).collect();
    let padding = windows.padding.resolve_padding_pairs(name, &dilated, &reaches, &strides)?;
    let window = |i: usize| WindowDim {
        stride: strides[i],
        low: padding[i].0,
        high: padding[i].1,
        dilation: dilation[i],
        spacing: spacing[i],
    };
    let windows = (0..shape.len()).map(window).collect();
    graph.push(StructuralOp::from(ReduceWindow { op, size, windows }), &[v])
}

/// Appends a pool by `op`: windows over the axes between the batch axes and the features, which are the last axis.
fn pool(
    graph: &mut Graph,
    v: Var,
    op: ScalarOp,
    window: &[usize],
    strides: &[usize],
    padding: &Padding,
) -> Result<Var, Diag> {
    let rank = graph.ty(v).shape.len();
    let Some(batches) = rank.checked_sub(window.len() + 1) else {
        let message = format!("a pool of {} by a window of {} axes", graph.ty(v), window.len());
        return Err(Diag::new("pool", At::Op, message, "windowed axes are followed by one axis of features"));
    };
    let around = |list: &[usize]| [&vec![1; batches][..], list, &[1]].concat();
    let strides: Vec<usize> =
        per_axis_numbers("a pool", "strides", strides, window.len())?.into_iter().map(|n| n as usize).collect();
    let padding = match padding {
        Padding::Explicit(pairs) => Padding::Explicit([&vec![(0, 0); batches][..], pairs, &[(0, 0)]].concat()),
        named => named.clone(),
    };
    let windows = Windows {
        window_dimensions: &around(window),
        window_strides: &around(&strides),
        padding,
        ..Windows::default()
    };
    reduce_window(graph, v, op, &windows)
}

impl Array {
    /// Fold by a monoid of the elements that a window sees at each of its positions; `jax.lax.reduce_window`. `op` is
    /// `Add`, `Mul`, `Maximum`, `Minimum`, or of integers `BitAnd`, `BitOr`, `BitXor`; positions without an element do
    /// not take part.
    ///
    /// ```
    /// # use pallas_rt::{Client, ops::{ScalarOp, Windows}};
    /// let x = Client::cpu().array(&[1.0f32, 2.0, 3.0, 4.0], &[4])?;
    /// let windows = Windows { window_dimensions: &[3], window_strides: &[2], padding: [(1, 0)].into(), ..Windows::default() };
    /// assert_eq!(x.reduce_window(ScalarOp::Add, &windows).to_vec::<f32>()?, [3.0, 9.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    #[must_use]
    pub fn reduce_window(&self, op: ScalarOp, windows: &Windows<'_>) -> Array {
        apply(&[self], Loc::caller(), |graph, v| reduce_window(graph, v[0], op, windows))
    }

    /// Largest element of each window over the axes before the last one, which has features; axes before the window's
    /// are batches. `flax.linen.max_pool`. Without strides the window moves by 1 along each axis.
    #[track_caller]
    #[must_use]
    pub fn max_pool(&self, window: &[usize], strides: &[usize], padding: impl Into<Padding>) -> Array {
        let padding = padding.into();
        apply(&[self], Loc::caller(), |graph, v| pool(graph, v[0], ScalarOp::Maximum, window, strides, &padding))
    }

    /// Smallest element of each window; windows are those of [`max_pool`](Array::max_pool). `flax.linen.min_pool`.
    #[track_caller]
    #[must_use]
    pub fn min_pool(&self, window: &[usize], strides: &[usize], padding: impl Into<Padding>) -> Array {
        let padding = padding.into();
        apply(&[self], Loc::caller(), |graph, v| pool(graph, v[0], ScalarOp::Minimum, window, strides, &padding))
    }

    /// Mean of each window; windows are those of [`max_pool`](Array::max_pool). `flax.linen.avg_pool`. Positions around
    /// the array count as zeros if `count_include_pad` is set, else not at all.
    #[track_caller]
    #[must_use]
    pub fn avg_pool(
        &self,
        window: &[usize],
        strides: &[usize],
        padding: impl Into<Padding>,
        count_include_pad: bool,
    ) -> Array {
        let padding = padding.into();
        let mean = |graph: &mut Graph, v: Var| {
            let sum = pool(graph, v, ScalarOp::Add, window, strides, &padding)?;
            let count = if count_include_pad {
                GraphOperand::Float(window.iter().product::<usize>() as f64)
            } else {
                let ty = graph.ty(v).clone();
                let ones = graph.splat(Literal::new(ty.dtype, 1.0), &ty.shape);
                GraphOperand::Var(pool(graph, ones, ScalarOp::Add, window, strides, &padding)?)
            };
            push_elementwise(graph, ScalarOp::Div, &[GraphOperand::Var(sum), count])
        };
        apply(&[self], Loc::caller(), |graph, v| with_accumulator_type(graph, v[0], mean))
    }
}
