//! Elementwise operations with a second type or an attribute, which are therefore not in the scalar table.
use super::{
    AccessForm, OpTestCase, RandomKernelGenerator, RuleOperand, Structural, VmapBatch, check_arity, first_dtype,
};
use crate::diag::{At, Diag};
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts};
use std::fmt;

/// Conversion of the element type like Rust's `as`: floats saturate into integers and NaN becomes 0; `bool` is
/// `x != 0`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cast {
    /// Element type of the result.
    pub to: DType,
}

/// Reinterpretation of the elements' bits as another type of the same size.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bitcast {
    /// Element type of the result.
    pub to: DType,
}

/// Elementwise integer power by repeated multiplication; a negative exponent gives the reciprocal.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Powi {
    /// The exponent, equal for all elements.
    pub exponent: i32,
}

methods! { ($) Cast; }
methods! { ($) Bitcast; }
methods! { ($) Powi; }

impl fmt::Display for Cast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cast to({})", self.to)
    }
}
impl fmt::Display for Bitcast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bitcast to({})", self.to)
    }
}
impl fmt::Display for Powi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "powi exponent({})", self.exponent)
    }
}

/// Implements [`Structural`] for an elementwise operation with one attribute.
macro_rules! elementwise {
    ($Op:ident $name:literal $attribute:ident $access:expr, $dtype:expr, $jvp:expr, $transpose:expr, $draw:expr, $samples:expr) => {
        impl Structural for $Op {
            const NAME: &'static str = $name;
            fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
                Ok($Op { $attribute: attributes.value(stringify!($attribute))? })
            }
            fn dims(&mut self) -> Vec<&mut Dim> {
                vec![]
            }
            fn infer(&self, args: &[&[Dim]], _: &Facts) -> Result<Vec<Dim>, Diag> {
                check_arity(Self::NAME, args.len(), 1)?;
                Ok(args[0].to_vec())
            }
            fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
                let rule: fn(&$Op, DType) -> Result<DType, Diag> = $dtype;
                rule(self, first_dtype(args)?)
            }
            fn access(&self, _: &[&[Dim]]) -> AccessForm {
                let form: fn(&$Op) -> AccessForm = $access;
                form(self)
            }
            fn batched<'g>(&self, args: &[RuleOperand<'_, 'g>], batch: &VmapBatch<'_>) -> Option<E<'g>> {
                let x = batch.batch_first_operand(0, &args[0]);
                Some(x.apply(self.clone(), &[x]))
            }
            fn jvp<'g>(&self, args: &[RuleOperand<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
                let rule: fn(&$Op, E<'g>, E<'g>) -> Option<E<'g>> = $jvp;
                rule(self, args[0].value, tangents[0]?)
            }
            fn transpose<'g>(&self, args: &[RuleOperand<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
                let rule: fn(&$Op, DType, E<'g>) -> Option<E<'g>> = $transpose;
                vec![rule(self, args[0].dtype, cotangent)]
            }
            fn draw(from: &mut dyn RandomKernelGenerator) -> Option<Self> {
                let $attribute: fn(DType, &mut dyn RandomKernelGenerator) -> Option<_> = $draw;
                let x = from.choose_operand(&|ty| ty.dtype != DType::Bool || $name == "cast")?;
                Some($Op { $attribute: $attribute(x.dtype, from)? })
            }
            fn samples() -> Vec<OpTestCase<Self>> {
                let case = |(op, dtypes)| OpTestCase { op, args: &[&["M"]], dtypes, with: &[("M", 4)] };
                $samples.into_iter().map(case).collect()
            }
        }
    };
}
elementwise!(Cast "cast" to |_| AccessForm::Cast, |op, _| Ok(op.to), |op, _, dx| {
    // A conversion to integers has no derivative.
    op.to.is_float().then(|| dx.apply(op.clone(), &[dx]))
}, |op, from, y| {
    (op.to.is_float() && from.is_float()).then(|| y.apply(Cast { to: from }, &[y]))
}, |_, from| Some(from.draw_dtype()), [
    (Cast { to: DType::F32 }, &[DType::F32] as &'static [DType]),
    (Cast { to: DType::I32 }, &[DType::F32]),
    (Cast { to: DType::F32 }, &[DType::I32]),
]);
elementwise!(Bitcast "bitcast" to |_| AccessForm::Bitcast, |op, from| {
    if from.bytes() == op.to.bytes() && from != DType::Bool && op.to != DType::Bool {
        return Ok(op.to);
    }
    Err(Diag::new("dtype", At::Operand(0), format!("a bitcast of {from} to {}", op.to), "types of equal size, not bool"))
}, |_, _, _| None, |_, _, _| None, |of, from| {
    // Devices need not preserve the bits of a 16-bit float's NaN.
    let fits = |d: &DType| d.bytes() == of.bytes() && !matches!(d, DType::Bool | DType::F16 | DType::Bf16);
    let all: Vec<DType> = DType::ALL.iter().copied().filter(fits).collect();
    all.get(from.draw_below(all.len())).copied()
}, [(Bitcast { to: DType::U32 }, &[DType::F32] as &'static [DType])]);
elementwise!(Powi "powi" exponent |op| AccessForm::Powi(op.exponent), |_, from| {
    if from == DType::Bool {
        return Err(Diag::new("dtype", At::Operand(0), "a power of bool".into(), "a number type"));
    }
    Ok(from)
}, |op, x, dx| {
    let n = op.exponent;
    (n != 0).then(|| dx * x.apply(Powi { exponent: n.saturating_sub(1) }, &[x]) * f64::from(n))
}, |_, _, _| None, |_, from| Some(from.draw_below(11) as i32 - 5), [(Powi { exponent: 3 }, &[DType::F32] as &'static [DType]), (Powi { exponent: -2 }, &[DType::F32])]);
