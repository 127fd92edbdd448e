//! Running folds along an axis, such as running sums.
use super::{
    AccessForm, Concat, OpTestCase, RandomKernelGenerator, Reverse, RuleOperand, Slice, Structural, VmapBatch,
    check_arity, check_axes, check_monoid, draw, draw::draw_operand_axis,
};
use crate::diag::Diag;
use crate::emit::Term;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp};
use std::fmt;

/// Running fold along an axis: `result[i] = x[0] op .. op x[i]`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cumulative {
    /// The monoid: an operation with a `fold` cell in the table.
    pub op: ScalarOp,
    /// The axis to fold along.
    pub axis: usize,
    /// True if the fold runs from the end to the start.
    pub reverse: bool,
}

methods! { ($) Cumulative;
    /// Running sum along an axis.
    fn cumsum<T: Number>(axis: Axis) -> T { Cumulative { op: ScalarOp::Add, axis, reverse: false } }
    /// Running product along an axis.
    fn cumprod<T: Number>(axis: Axis) -> T { Cumulative { op: ScalarOp::Mul, axis, reverse: false } }
    /// Running maximum along an axis.
    fn cummax<T: Number>(axis: Axis) -> T { Cumulative { op: ScalarOp::Maximum, axis, reverse: false } }
    /// Running minimum along an axis.
    fn cummin<T: Number>(axis: Axis) -> T { Cumulative { op: ScalarOp::Minimum, axis, reverse: false } }
}

impl fmt::Display for Cumulative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cumulative op({}) axis({}) reverse({})", self.op, self.axis, self.reverse)
    }
}

/// A value and its tangent, in forward differentiation.
type DualValue<'g> = (E<'g>, E<'g>);

impl Cumulative {
    /// Computes the running folds of `n` elements along the axis, with their tangents, by the tree of
    /// `lax.associative_scan`, which determines how equal elements share the derivative of a maximum.
    ///
    /// ```text
    /// odd  = prefixes of (x[0] op x[1], x[2] op x[3], ..)
    /// even = (x[0], odd[0] op x[2], odd[1] op x[4], ..)
    /// ```
    fn associative_scan<'g>(&self, (x, dx): DualValue<'g>, shape: &[Dim], n: i64) -> DualValue<'g> {
        if n < 2 {
            return (x, dx);
        }
        let with = |count: i64| {
            let mut size = shape.to_vec();
            size[self.axis] = count.into();
            size
        };
        let cut = |x: E<'g>, from: i64, count: i64, by: i64| {
            let (mut start, mut stride) = (vec![0; shape.len()], vec![1; shape.len()]);
            (start[self.axis], stride[self.axis]) = (from, by);
            x.apply(Slice { start, size: with(count), stride }, &[x])
        };
        let both = |(x, dx): DualValue<'g>, from, count, by| (cut(x, from, count, by), cut(dx, from, count, by));
        // The even positions after the first are as many as the odd ones, or one less.
        let (half, later) = (n / 2, n - n / 2 - 1);
        let pairs = self.combine_duals(both((x, dx), 0, half, 2), both((x, dx), 1, half, 2));
        let odd = self.associative_scan(pairs, shape, half);
        let mut even = both((x, dx), 0, 1, 1);
        if later > 0 {
            let more = self.combine_duals(both(odd, 0, later, 1), both((x, dx), 2, later, 2));
            let join = |a: E<'g>, b: E<'g>| a.apply(Concat { axis: self.axis }, &[a, b]);
            even = (join(even.0, more.0), join(even.1, more.1));
        }
        let mut pair = with(later + 1);
        pair.insert(self.axis + 1, 1i64.into());
        let woven = |even: E<'g>, odd: E<'g>| {
            // If the last odd element is missing, any element takes its place and is cut off afterwards.
            let odd =
                if later == half { odd.apply(Concat { axis: self.axis }, &[odd, cut(odd, 0, 1, 1)]) } else { odd };
            let pairs = even.apply(Concat { axis: self.axis + 1 }, &[even.reshape(&pair), odd.reshape(&pair)]);
            let all = pairs.reshape(&with(2 * (later + 1)));
            if later == half { cut(all, 0, n, 1) } else { all }
        };
        (woven(even.0, odd.0), woven(even.1, odd.1))
    }

    /// Combines two values elementwise by the operation's monoid, and returns the result with its tangent.
    fn combine_duals<'g>(&self, (a, da): DualValue<'g>, (b, db): DualValue<'g>) -> DualValue<'g> {
        let y = a.emit(Term::Scalar(self.op), &[a, b]);
        let d = self.op.jvp(&[a, b], y, &[Some(da), Some(db)]);
        (y, d.unwrap_or_else(|| da.zero()))
    }
}

impl Structural for Cumulative {
    const NAME: &'static str = "cumulative";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Cumulative {
            op: attributes.value("op")?,
            axis: attributes.value("axis")?,
            reverse: attributes.value("reverse")?,
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        check_axes(Self::NAME, &[self.axis], args[0])?;
        Ok(args[0].to_vec())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        check_monoid(Self::NAME, self.op, args)
    }
    fn access(&self, _: &[&[Dim]]) -> AccessForm {
        AccessForm::Scan { op: self.op, axis: self.axis, reverse: self.reverse }
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        Some(x.apply(Cumulative { axis: self.axis + 1, ..self.clone() }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        let (x, dx) = (args[0].value, tangents[0]?);
        if self.op == ScalarOp::Add {
            return Some(dx.apply(self.clone(), &[dx]));
        }
        let n = args[0].shape[self.axis].as_number().expect("tangents have sizes of numbers");
        let turned = |x: E<'g>| if self.reverse { x.apply(Reverse { axes: vec![self.axis] }, &[x]) } else { x };
        let (_, found) = self.associative_scan((turned(x), turned(dx)), args[0].shape, n);
        Some(turned(found))
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        debug_assert_eq!(args.len(), 1);
        let back = Cumulative { reverse: !self.reverse, ..self.clone() };
        vec![(self.op == ScalarOp::Add).then(|| cotangent.apply(back, &[cotangent]))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let (x, axis) = draw_operand_axis(from)?;
        Some(Cumulative { op: draw::draw_monoid(from, x.dtype)?, axis, reverse: from.draw_below(2) == 0 })
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |op, reverse| OpTestCase {
            op: Cumulative { op, axis: 1, reverse },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 2), ("N", 5)],
        };
        vec![
            case(ScalarOp::Add, false),
            case(ScalarOp::Add, true),
            case(ScalarOp::Mul, false),
            case(ScalarOp::Mul, true),
            case(ScalarOp::Minimum, false),
            case(ScalarOp::Maximum, true),
        ]
    }
}
