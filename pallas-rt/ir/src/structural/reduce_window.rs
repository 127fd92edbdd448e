//! Windowed reductions: folds of the elements that a window sees at each of its positions.
use super::{
    AccessForm, AffinePosition, LoopNest, NestAxisRole, NestLoop, OpTestCase, RandomKernelGenerator, RuleOperand,
    Structural, VmapBatch, WindowDim, check_arity, check_monoid, derive::linear_jvp, draw, join_with_commas, window,
};
use crate::diag::{At, Diag, shape};
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, ScalarOp};
use std::fmt;

/// Windowed reduction along every axis, `result[i] = op over k of x[(stride · i + spacing · k - low) / dilation]`, as
/// StableHLO's `reduce_window` of a monoid; positions without an element of `x` count as the neutral element.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReduceWindow {
    /// The monoid: an operation with a `fold` cell in the table.
    pub op: ScalarOp,
    /// Number of elements of the window along each axis.
    pub size: Vec<i64>,
    /// Movement of the window along each axis.
    pub windows: Vec<WindowDim>,
}

impl ReduceWindow {
    /// Element `at` of the window along an axis, for each position of the window: `op`'s neutral element where `x` has
    /// none.
    fn window_element<'g>(&self, x: E<'g>, op: ScalarOp, axis: usize, at: i64) -> E<'g> {
        let mut windows = vec![WindowDim::PLAIN; self.size.len()];
        let own = self.windows[axis];
        let (low, past) = (own.low - at * own.spacing, (self.size[axis] - 1 - at) * own.spacing);
        windows[axis] = WindowDim { low, high: own.high - past, ..own };
        x.apply(ReduceWindow { op, size: vec![1; self.size.len()], windows }, &[x])
    }
    /// Returns true if the window has one element along an axis and moves over all elements in order: nothing is
    /// folded.
    fn is_identity_along(&self, axis: usize) -> bool {
        self.size[axis] == 1
            && self.windows[axis] == WindowDim { spacing: self.windows[axis].spacing, ..WindowDim::PLAIN }
    }
}

methods! { ($) ReduceWindow; }

impl fmt::Display for ReduceWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "reduce_window op({}) size({}) {}",
            self.op,
            join_with_commas(&self.size),
            window::format_windows(&self.windows)
        )
    }
}

impl Structural for ReduceWindow {
    const NAME: &'static str = "reduce_window";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(ReduceWindow {
            op: attributes.value("op")?,
            size: attributes.list("size")?,
            windows: window::parse_windows(attributes)?,
        })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        vec![]
    }
    fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
        check_arity(Self::NAME, args.len(), 1)?;
        if [self.size.len(), self.windows.len()] != [args[0].len(); 2] {
            let found = format!(
                "a window of {} sizes and {} movements on {}",
                self.size.len(),
                self.windows.len(),
                shape(args[0])
            );
            return Err(Diag::new("window", At::Op, found, "one size, stride, padding and dilation per axis"));
        }
        let mut out = vec![];
        for (axis, ((own, &size), n)) in self.windows.iter().zip(&self.size).zip(args[0]).enumerate() {
            own.check_range(Self::NAME, axis, &size.into())?;
            out.push(own.count_positions(n, &size.into()));
        }
        Ok(out)
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        check_monoid(Self::NAME, self.op, args)
    }
    fn access(&self, args: &[&[Dim]]) -> AccessForm {
        let rank = self.size.len();
        let number = |n: Dim| n.as_number().expect("an access form has sizes of numbers");
        let place = |axis: usize| NestLoop {
            extent: number(self.windows[axis].count_positions(&args[0][axis], &self.size[axis].into())),
            role: NestAxisRole::Parallel,
        };
        let element = |&extent: &i64| NestLoop { extent, role: NestAxisRole::Windowed };
        AccessForm::Nest(LoopNest {
            axes: (0..rank).map(place).chain(self.size.iter().map(element)).collect(),
            operands: vec![(0..rank).map(|axis| self.windows[axis].operand_position(axis, rank + axis)).collect()],
            result: (0..rank).map(AffinePosition::from_axis).collect(),
            op: self.op,
        })
    }
    fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
        let x = batch.batch_first_operand(0, &args[0]);
        let size = [&[1], &self.size[..]].concat();
        let windows = [&[WindowDim::PLAIN], &self.windows[..]].concat();
        Some(x.apply(ReduceWindow { op: self.op, size, windows }, &[x]))
    }
    fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        if self.op == ScalarOp::Add {
            return linear_jvp(self, args, tangents);
        }
        if !matches!(self.op, ScalarOp::Mul | ScalarOp::Minimum | ScalarOp::Maximum) {
            return None;
        }
        // Values and tangents together, axis by axis: the last axis first, so that the first of ties in row-major order
        // wins, as in JAX.
        let (mut x, mut dx) = (args[0].value, tangents[0]?);
        for axis in (0..self.size.len()).rev().filter(|&axis| !self.is_identity_along(axis)) {
            let taps = (0..self.size[axis]).map(|at| {
                // A position that no window sees counts as the neutral element, whose tangent is zero.
                (self.window_element(x, self.op, axis, at), self.window_element(dx, ScalarOp::Add, axis, at))
            });
            let both = |(x, dx): (E<'g>, E<'g>), (other, d): (E<'g>, E<'g>)| match self.op {
                ScalarOp::Mul => (x * other, dx * other + x * d),
                ScalarOp::Minimum => (x.minimum(other), x.le(other).select(dx, d)),
                _ => (x.maximum(other), x.ge(other).select(dx, d)),
            };
            (x, dx) = taps.reduce(both).expect("a window has an element");
        }
        Some(dx)
    }
    fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        let number = |n: &Dim| n.as_number().expect("cotangents have sizes of numbers");
        let back = |axis: usize| {
            let (own, size, n) = (self.windows[axis], self.size[axis], &args[0].shape[axis]);
            own.transposed_window(number(n), size, number(&own.count_positions(n, &size.into())))
        };
        let windows = (0..self.size.len()).map(back).collect();
        let sum = ReduceWindow { windows, ..self.clone() };
        vec![(self.op == ScalarOp::Add).then(|| cotangent.apply(sum, &[cotangent]))]
    }
    fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
        let x = from.choose_operand(&|ty| !ty.is_scalar())?;
        let op = draw::draw_monoid(from, x.dtype)?;
        let size: Vec<i64> = x.shape.iter().map(|&n| 1 + from.draw_below(n.min(3)) as i64).collect();
        let windows = x.shape.iter().map(|_| {
            let [low, high] = [from.draw_below(3) as i64 - 1, from.draw_below(3) as i64 - 1];
            let [stride, dilation, spacing] = [0; 3].map(|_| 1 + from.draw_below(3) as i64 / 2);
            WindowDim { stride, low, high, dilation, spacing }
        });
        let drawn = ReduceWindow { op, size, windows: windows.collect() };
        draw::is_small_shape(&drawn.infer(&[&crate::Type::new(x.dtype, x.shape).dims()], &Facts::default()).ok()?)
            .then_some(drawn)
    }
    fn samples() -> Vec<OpTestCase<Self>> {
        let case = |op, size: &[i64], windows: &[WindowDim]| OpTestCase {
            op: ReduceWindow { op, size: size.to_vec(), windows: windows.to_vec() },
            args: &[&["M", "N"]],
            dtypes: &[DType::F32],
            with: &[("M", 3), ("N", 7)],
        };
        let strided = WindowDim { stride: 2, low: 1, high: 2, ..WindowDim::PLAIN };
        let spaced = WindowDim { spacing: 2, low: 1, high: -1, ..WindowDim::PLAIN };
        let dilated = WindowDim { stride: 3, dilation: 2, low: 2, high: 1, ..WindowDim::PLAIN };
        let wide = WindowDim { dilation: 2, spacing: 3, low: -1, high: 3, stride: 2 };
        let cut = WindowDim { high: -1, ..WindowDim::PLAIN };
        let far = WindowDim { dilation: 3, low: -2, high: -4, ..WindowDim::PLAIN };
        [ScalarOp::Add, ScalarOp::Mul, ScalarOp::Maximum, ScalarOp::Minimum]
            .into_iter()
            .flat_map(|op| {
                [
                    case(op, &[1, 3], &[WindowDim::PLAIN, strided]),
                    case(op, &[2, 2], &[WindowDim::PLAIN, spaced]),
                    case(op, &[2, 3], &[WindowDim::PLAIN, dilated]),
                ]
            })
            .chain([case(ScalarOp::Add, &[1, 2], &[dilated, wide])])
            // Windows of one element that do not see all elements, which occur in derivatives.
            .chain([cut, far].map(|own| case(ScalarOp::Add, &[1, 1], &[cut, own])))
            .collect()
    }
}
