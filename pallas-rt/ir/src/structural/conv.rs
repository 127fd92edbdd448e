//! Convolution of two operands.
use super::{
    AccessForm, AffinePosition, Cast, LoopNest, NestAxisRole, NestLoop, OpTestCase, RandomKernelGenerator, Reshape,
    Reverse, RuleOperand, Structural, Transpose, VmapBatch, WindowDim, check_arity, check_axes, draw, join_with_commas,
    window,
};
use crate::diag::{At, Diag, shape, size_mismatch_help};
use crate::dim::SizeComparison;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp, Type};
use std::fmt;

/// Convolution as in StableHLO, over `c` and `k` in type `acc`; window elements are not reversed:
///
/// ```text
/// result[n, o, i..] = Σ lhs[n, c, (stride · i + spacing · k - low) / dilation ..] · rhs[o, c, k..]
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Conv {
    /// Movement of the window along each spatial axis.
    pub windows: Vec<WindowDim>,
    /// Number of groups of features of both operands; each group is convolved separately.
    pub groups: usize,
    /// Number of groups of batches of `lhs` and of output features of `rhs`; only one of both numbers may exceed 1.
    pub batch_groups: usize,
    /// Axes of `lhs` that are batch, feature, and spatial axes, in this order.
    pub lhs: Vec<usize>,
    /// Axes of `rhs` that are output feature, input feature, and spatial axes, in this order.
    pub rhs: Vec<usize>,
    /// Axes of the result that are batch, feature, and spatial axes, in this order.
    pub out: Vec<usize>,
    /// Element type of the products, the sums and the result.
    pub acc: DType,
}

methods! { ($) Conv; }

impl fmt::Display for Conv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "conv {} groups({}) batch_groups({})",
            window::format_windows(&self.windows),
            self.groups,
            self.batch_groups
        )?;
        let [lhs, rhs, out] = [&self.lhs, &self.rhs, &self.out].map(|axes| join_with_commas(axes));
        write!(f, " lhs({lhs}) rhs({rhs}) out({out}) acc({})", self.acc)
    }
}

/// A value in a derivative rule, with its shape in numbers.
#[derive(Clone)]
struct ShapedValue<'g> {
    value: E<'g>,
    shape: Vec<usize>,
}

impl<'g> ShapedValue<'g> {
    fn new(value: E<'g>, shape: &[Dim]) -> Self {
        let number = |n: &Dim| n.as_number().and_then(|n| usize::try_from(n).ok());
        let shape = shape.iter().map(|n| number(n).expect("rules have sizes of numbers")).collect();
        ShapedValue { value, shape }
    }
    /// Appends a reshape of the value to `shape`, which keeps the elements in row-major order.
    fn reshape(self, shape: Vec<usize>) -> Self {
        let to = shape.iter().map(|&n| Dim::from(n)).collect();
        ShapedValue { value: self.value.apply(Reshape { to }, &[self.value]), shape }
    }
    /// Transposes axis `from` to position `to`.
    fn move_axis(self, from: usize, to: usize) -> Self {
        let mut axes: Vec<usize> = (0..self.shape.len()).collect();
        let axis = axes.remove(from);
        axes.insert(to, axis);
        let shape = axes.iter().map(|&a| self.shape[a]).collect();
        let value = if from == to { self.value } else { self.value.apply(Transpose { axes }, &[self.value]) };
        ShapedValue { value, shape }
    }
    /// Merges axis `from`, as the outer part, with axis `to`, whose index does not count `from`.
    fn merge_axes(self, from: usize, to: usize) -> Self {
        let moved = self.move_axis(from, to);
        let mut shape = moved.shape.clone();
        let outer = shape.remove(to);
        shape[to] *= outer;
        moved.reshape(shape)
    }
    /// Splits an axis into two, of which the outer has extent `n`.
    fn split_axis(self, axis: usize, n: usize) -> Self {
        let mut shape = self.shape.clone();
        shape[axis] /= n.max(1);
        shape.insert(axis, n);
        self.reshape(shape)
    }
    /// Converts the value from one element type to another.
    fn cast(self, from: DType, to: DType) -> Self {
        let value = if from == to { self.value } else { self.value.apply(Cast { to }, &[self.value]) };
        ShapedValue { value, ..self }
    }
}

/// Swaps the first two axes: features take the role of batches.
fn swap_first_two_axes(axes: &[usize]) -> Vec<usize> {
    [&[axes[1], axes[0]], &axes[2..]].concat()
}

impl Conv {
    /// Number of groups of features or of batches, whichever the convolution has; 1 if it has neither.
    fn group_count(&self) -> usize {
        self.groups.max(self.batch_groups)
    }
    /// Extents of each spatial axis in `lhs`, in `rhs` and in the result.
    fn spatial_extents(&self, lhs: &[Dim], rhs: &[Dim]) -> Vec<[i64; 3]> {
        let number = |n: &Dim| n.as_number().expect("sizes are numbers");
        let of = |(i, own): (usize, &WindowDim)| {
            let (n, size) = (&lhs[self.lhs[2 + i]], &rhs[self.rhs[2 + i]]);
            [number(n), number(size), number(&own.count_positions(n, size))]
        };
        self.windows.iter().enumerate().map(of).collect()
    }
    /// Appends zeros of type `dtype` with this shape: a constant of the type `like_dtype` of the value `like`, cast and
    /// broadcast.
    fn zeros<'g>(like: E<'g>, like_dtype: DType, dtype: DType, shape: &[Dim]) -> E<'g> {
        let zero = like.scalar_constant(0.0);
        let zero = if like_dtype == dtype { zero } else { zero.apply(Cast { to: dtype }, &[zero]) };
        zero.broadcast_to(shape)
    }
    /// Cotangent of `lhs`: a convolution of the cotangent with the reversed window.
    fn lhs_cotangent<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> E<'g> {
        let mut rhs = ShapedValue::new(args[1].value, args[1].shape).cast(args[1].dtype, self.acc);
        if self.group_count() > 1 {
            rhs = rhs.split_axis(self.rhs[0], self.group_count());
            let to = self.rhs[1];
            rhs = rhs.merge_axes(self.rhs[0], to);
        }
        let axes = self.rhs[2..].to_vec();
        let reversed = if axes.is_empty() { rhs.value } else { rhs.value.apply(Reverse { axes }, &[rhs.value]) };
        let extents = self.spatial_extents(args[0].shape, args[1].shape);
        let windows =
            self.windows.iter().zip(extents).map(|(w, [n, size, places])| w.transposed_window(n, size, places));
        let op = Conv {
            windows: windows.collect(),
            groups: self.group_count(),
            batch_groups: 1,
            lhs: self.out.clone(),
            rhs: swap_first_two_axes(&self.rhs),
            out: self.lhs.clone(),
            acc: self.acc,
        };
        let made = cotangent.apply(op, &[cotangent, reversed]);
        let mut shape = args[0].shape.to_vec();
        if self.batch_groups > 1 {
            let parts = Dim::from(self.batch_groups);
            shape[self.lhs[1]] = &shape[self.lhs[1]] * &parts;
            shape[self.lhs[0]] = shape[self.lhs[0]].cdiv(&parts);
        }
        let mut made = ShapedValue::new(made, &shape).cast(self.acc, args[0].dtype);
        if self.batch_groups > 1 {
            made = made.split_axis(self.lhs[1], self.batch_groups).merge_axes(self.lhs[1], self.lhs[0]);
        }
        made.value
    }
    /// Cotangent of `rhs`: a convolution of `lhs` with the cotangent, with batches as features.
    fn rhs_cotangent<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> E<'g> {
        let extents = self.spatial_extents(args[0].shape, args[1].shape);
        let is_empty = |shape: &[Dim]| shape.iter().any(|n| n.as_number() == Some(0));
        if extents.iter().any(|e| e[2] == 0) || is_empty(args[0].shape) || is_empty(args[1].shape) {
            return Self::zeros(args[1].value, args[1].dtype, args[1].dtype, args[1].shape);
        }
        let windows =
            self.windows.iter().zip(extents).map(|(w, [n, size, places])| w.rhs_gradient_window(n, size, places));
        let op = Conv {
            windows: windows.collect(),
            groups: self.batch_groups,
            batch_groups: self.groups,
            lhs: swap_first_two_axes(&self.lhs),
            rhs: swap_first_two_axes(&self.out),
            out: swap_first_two_axes(&self.rhs),
            acc: self.acc,
        };
        let lhs = ShapedValue::new(args[0].value, args[0].shape).cast(args[0].dtype, self.acc);
        let made = lhs.value.apply(op, &[lhs.value, cotangent]);
        ShapedValue::new(made, args[1].shape).cast(self.acc, args[1].dtype).value
    }
}

impl Structural for Conv {
    const NAME: &'static str = "conv";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Conv {
            windows: window::parse_windows(attributes)?,
            groups: attributes.value("groups")?,
            batch_groups: attributes.value("batch_groups")?,
            lhs: attributes.list("lhs")?,
            rhs: attributes.list("rhs")?,
            out: attributes.list("out")?,
            acc: attributes.value("acc")?,
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 2)?;
        let (lhs, rhs, rank) = (args[0], args[1], self.windows.len() + 2);
        if [lhs.len(), rhs.len(), self.lhs.len(), self.rhs.len(), self.out.len()] != [rank; 5] {
            let found = format!("a convolution of {} by {} with {} windows", shape(lhs), shape(rhs), rank - 2);
            let help = "both have a batch or output feature axis, a feature axis and one axis per window";
            return Err(Diag::new("conv-rank", At::Op, found, help));
        }
        let unit = vec![Dim::from(1i64); rank];
        for (axes, dims) in [(&self.lhs, lhs), (&self.rhs, rhs), (&self.out, &unit[..])] {
            check_axes(Self::NAME, axes, dims)?;
        }
        let counts = [self.groups, self.batch_groups];
        if counts.contains(&0) || !counts.contains(&1) || counts.iter().any(|&n| n > i32::MAX as usize) {
            let found = format!("a convolution of {} groups and {} batch groups", self.groups, self.batch_groups);
            return Err(Diag::new("conv-groups", At::Op, found, "at least 1 each, and one of them is 1"));
        }
        let [groups, batch_groups] = counts.map(Dim::from);
        let features = &rhs[self.rhs[1]] * &groups;
        if facts.compare_equal(&lhs[self.lhs[1]], &features) == SizeComparison::No {
            let found = format!(
                "an input of {} features, and a window for {} in each of {} groups",
                lhs[self.lhs[1]], rhs[self.rhs[1]], self.groups
            );
            return Err(Diag::new(
                "conv-features",
                At::Operand(1),
                found,
                size_mismatch_help(&lhs[self.lhs[1]], &features),
            ));
        }
        let divides = |what: &str, n: &Dim, by: usize| match n.as_number() {
            Some(n) if n % by as i64 != 0 => {
                let found = format!("a convolution of {n} {what} in {by} groups");
                Err(Diag::new("conv-groups", At::Op, found, format!("a multiple of {by}")))
            }
            _ => Ok(()),
        };
        divides("output features", &rhs[self.rhs[0]], self.group_count())?;
        divides("batches", &lhs[self.lhs[0]], self.batch_groups)?;
        let mut out = unit;
        out[self.out[0]] = lhs[self.lhs[0]].cdiv(&batch_groups);
        out[self.out[1]] = rhs[self.rhs[0]].clone();
        for (i, own) in self.windows.iter().enumerate() {
            let size = &rhs[self.rhs[2 + i]];
            own.check_range(Self::NAME, i, size)?;
            out[self.out[2 + i]] = own.count_positions(&lhs[self.lhs[2 + i]], size);
        }
        Ok(out)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        match args {
            [DType::Bool, _] | [_, DType::Bool] => {
                let found = "a convolution of truth values".into();
                Err(Diag::new("dtype", At::Operand(0), found, "cast them to integers first"))
            }
            [a, b] if a == b && self.acc != DType::Bool => Ok(self.acc),
            _ => Err(Diag::new("dtype", At::Operand(1), format!("a convolution of {args:?}"), "cast one side")),
        }
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        let number = |n: &Dim| n.as_number().expect("an access form has sizes of numbers");
        let (lhs, rhs, spatial) = (args[0], args[1], self.windows.len());
        let parts = self.group_count() as i64;
        let batches = number(&lhs[self.lhs[0]]) / self.batch_groups as i64;
        let (outputs, inputs) = (number(&rhs[self.rhs[0]]) / parts, number(&rhs[self.rhs[1]]));
        let extents = self.spatial_extents(lhs, rhs);
        // The axes: batch, group, output feature, window positions; input feature, elements of the window.
        let (group, feature, first) = (1, 3 + spatial, 4 + spatial);
        let axis = |role| move |extent: i64| NestLoop { extent, role };
        let axes = [batches, parts, outputs].map(axis(NestAxisRole::Parallel)).into_iter();
        let axes = axes.chain(extents.iter().map(|e| axis(NestAxisRole::Parallel)(e[2])));
        let axes = axes.chain([axis(NestAxisRole::Reduced)(inputs)]);
        let axes = axes.chain(extents.iter().map(|e| axis(NestAxisRole::Windowed)(e[1])));
        let sum = |outer: Option<i64>, own: usize| AffinePosition {
            terms: outer.map(|stride| (group, stride.max(1))).into_iter().chain([(own, 1)]).collect(),
            ..AffinePosition::from_axis(own)
        };
        let empty = || vec![AffinePosition::from_axis(0); spatial + 2];
        let (mut of_lhs, mut of_rhs, mut of_out) = (empty(), empty(), empty());
        of_lhs[self.lhs[0]] = sum((self.batch_groups > 1).then_some(batches), 0);
        of_lhs[self.lhs[1]] = sum((self.groups > 1).then_some(inputs), feature);
        of_rhs[self.rhs[0]] = sum(Some(outputs), 2);
        of_rhs[self.rhs[1]] = AffinePosition::from_axis(feature);
        of_out[self.out[0]] = AffinePosition::from_axis(0);
        of_out[self.out[1]] = sum(Some(outputs), 2);
        for (i, own) in self.windows.iter().enumerate() {
            of_lhs[self.lhs[2 + i]] = own.operand_position(3 + i, first + i);
            of_rhs[self.rhs[2 + i]] = AffinePosition::from_axis(first + i);
            of_out[self.out[2 + i]] = AffinePosition::from_axis(3 + i);
        }
        AccessForm::Nest(LoopNest {
            axes: axes.collect(),
            operands: vec![of_lhs, of_rhs],
            result: of_out,
            op: ScalarOp::Add,
        })
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let size = batch.size.as_number().and_then(|n| usize::try_from(n).ok()).expect("rules have sizes of numbers");
        let shapes = [args[0].shape, args[1].shape];
        let shape = self.infer(&shapes, &Facts::default()).expect("the operation has been inferred");
        if size == 0 {
            return Some(Self::zeros(args[0].value, args[0].dtype, self.acc, &batch.batch_first_shape(&shape)));
        }
        // Operands with the batch axis first.
        let operand = |i: usize| match batch.axes[i] {
            Some(_) => {
                ShapedValue::new(batch.batch_first_operand(i, &args[i]), &batch.batch_first_shape(args[i].shape))
            }
            None => ShapedValue::new(args[i].value, args[i].shape),
        };
        let (lhs, rhs) = (operand(0), operand(1));
        let mut op = self.clone();
        let parts = self.group_count();
        let mut made = ShapedValue { value: lhs.value, shape: ShapedValue::new(lhs.value, &shape).shape };
        match [batch.axes[0].is_some(), batch.axes[1].is_some()] {
            // Both operands have the batch axis: it multiplies the number of groups.
            [true, true] => {
                let into = if self.batch_groups > 1 { self.lhs[0] } else { self.lhs[1] };
                let counted = if self.batch_groups > 1 { &mut op.batch_groups } else { &mut op.groups };
                *counted *= size;
                let (lhs, rhs) = (lhs.merge_axes(0, into), rhs.merge_axes(0, self.rhs[0]));
                made.shape[self.out[1]] *= size;
                made.value = lhs.value.apply(op, &[lhs.value, rhs.value]);
                made = made.split_axis(self.out[1], size).move_axis(self.out[1], 0);
            }
            // Only `lhs` has the batch axis: it joins the batches inside of each batch group.
            [true, false] => {
                let at = self.lhs[0];
                let lhs = match self.batch_groups {
                    1 => lhs.merge_axes(0, at),
                    n => lhs.split_axis(at + 1, n).merge_axes(0, at + 1).merge_axes(at, at),
                };
                made.shape[self.out[0]] *= size;
                made.value = lhs.value.apply(op, &[lhs.value, rhs.value]);
                made = made.split_axis(self.out[0], size).move_axis(self.out[0], 0);
            }
            // Only `rhs` has the batch axis: it joins the output features inside of each group.
            _ => {
                let (at, to) = (self.rhs[0], self.out[1]);
                let rhs = match parts {
                    1 => rhs.merge_axes(0, at),
                    n => rhs.split_axis(at + 1, n).merge_axes(0, at + 1).merge_axes(at, at),
                };
                made.shape[to] *= size;
                made.value = lhs.value.apply(op, &[lhs.value, rhs.value]);
                made = match parts {
                    1 => made.split_axis(to, size).move_axis(to, 0),
                    n => {
                        made.split_axis(to, n).split_axis(to + 1, size).move_axis(to + 1, 0).merge_axes(to + 1, to + 1)
                    }
                };
            }
        }
        Some(made.value)
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let (lhs, rhs) = (args[0].value, args[1].value);
        let left = tangents[0].map(|d| d.apply(self.clone(), &[d, rhs]));
        let right = tangents[1].map(|d| d.apply(self.clone(), &[lhs, d]));
        match (left, right) {
            (Some(x), Some(y)) => Some(x + y),
            (x, y) => x.or(y),
        }
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        vec![Some(self.lhs_cotangent(args, cotangent)), Some(self.rhs_cotangent(args, cotangent))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let number = |ty: &Type| ty.dtype != DType::Bool && (2..=5).contains(&ty.shape.len());
        let a = from.choose_operand(&number)?;
        let b = from.choose_operand(&|ty: &Type| ty.dtype == a.dtype && ty.shape.len() == a.shape.len())?;
        let mut order = |rank: usize| {
            let mut axes: Vec<usize> = (0..rank).collect();
            (1..rank).for_each(|i| axes.swap(i, from.draw_below(i + 1)));
            axes
        };
        let [lhs, rhs, out] = [0; 3].map(|_| order(a.shape.len()));
        let (features, own) = (a.shape[lhs[1]], b.shape[rhs[1]]);
        let groups = features.checked_div(own)?;
        let windows = lhs[2..].iter().map(|_| {
            let [low, high] = [from.draw_below(3) as i64, from.draw_below(3) as i64 - 1];
            let [stride, dilation, spacing] = [0; 3].map(|_| 1 + from.draw_below(3) as i64 / 2);
            WindowDim { stride, low, high, dilation, spacing }
        });
        let drawn = Conv { windows: windows.collect(), groups, batch_groups: 1, lhs, rhs, out, acc: a.dtype };
        let shape = drawn.infer(&[&a.dims(), &b.dims()], &Facts::default()).ok()?;
        draw::is_small_shape(&shape).then_some(drawn)
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let dtypes = &[DType::F32, DType::F32];
        let plain = |windows: &[WindowDim]| Conv {
            windows: windows.to_vec(),
            groups: 1,
            batch_groups: 1,
            lhs: (0..windows.len() + 2).collect(),
            rhs: (0..windows.len() + 2).collect(),
            out: (0..windows.len() + 2).collect(),
            acc: DType::F32,
        };
        let padded = WindowDim { low: 1, high: 1, ..WindowDim::PLAIN };
        let strided = WindowDim { stride: 2, low: 2, high: -1, ..WindowDim::PLAIN };
        let spaced = WindowDim { spacing: 2, stride: 3, low: 1, high: 3, dilation: 1 };
        let dilated = WindowDim { dilation: 3, stride: 2, spacing: 2, low: -1, high: 4 };
        let line: &[&[&str]] = &[&["B", "C", "W"], &["O", "C", "K"]];
        let grouped: &[&[&str]] = &[&["B", "2 * C", "W"], &["2 * O", "C", "K"]];
        let batches: &[&[&str]] = &[&["2 * B", "C", "W"], &["2 * O", "C", "K"]];
        let image: &[&[&str]] = &[&["B", "W", "V", "C"], &["K", "J", "C", "O"]];
        let with = &[("B", 3), ("C", 2), ("O", 3), ("W", 5), ("V", 4), ("K", 3), ("J", 2)];
        let last = |windows: &[WindowDim]| Conv {
            lhs: vec![0, 3, 1, 2],
            rhs: vec![3, 2, 0, 1],
            out: vec![0, 3, 1, 2],
            ..plain(windows)
        };
        let case = |op, args| OpTestCase { op, args, dtypes, with };
        vec![
            case(plain(&[padded]), line),
            case(plain(&[strided]), line),
            case(plain(&[spaced]), line),
            case(plain(&[dilated]), line),
            case(Conv { groups: 2, ..plain(&[padded]) }, grouped),
            case(Conv { groups: 2, out: vec![2, 0, 1], ..plain(&[dilated]) }, grouped),
            case(Conv { batch_groups: 2, ..plain(&[strided]) }, batches),
            case(last(&[padded, dilated]), image),
            case(Conv { out: vec![3, 1, 0, 2], ..last(&[spaced, padded]) }, image),
        ]
    }
}
