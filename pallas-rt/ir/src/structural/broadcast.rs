//! Unit axes stretched to a shape, or a scalar to any shape.
use super::{Access, Arg, Batch, Draw, Index, Piece, Sample, Structural, arity, derive::linear, list, same_dtype};
use crate::diag::{At, Diag, shape};
use crate::dim::Verdict;
use crate::parse::Attributes;
use crate::{DType, Dim, E, Facts, Type};
use std::fmt;

/// Each axis of the operand is 1 or already as in `to`; a scalar fits every shape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Broadcast {
    /// The result's shape.
    pub to: Vec<Dim>,
}

methods! { ($) Broadcast;
    /// Axes of extent 1 stretched to `shape`.
    fn broadcast<T: Elem>(shape: Sizes) -> T { Broadcast { to: shape } }
}

impl fmt::Display for Broadcast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "broadcast to({})", list(&self.to))
    }
}

fn one(d: &Dim) -> bool {
    d.as_number() == Some(1)
}

impl Structural for Broadcast {
    const NAME: &'static str = "broadcast";
    fn parse(attributes: &Attributes<'_>) -> Result<Self, String> {
        Ok(Broadcast { to: attributes.list("to")? })
    }
    fn dims(&mut self) -> Vec<&mut Dim> {
        self.to.iter_mut().collect()
    }
    fn infer(&self, args: &[&[Dim]], facts: &Facts) -> Result<Vec<Dim>, Diag> {
        arity(Self::NAME, args.len(), 1)?;
        let fits = |(a, b): (&Dim, &Dim)| one(a) || facts.same(a, b) != Verdict::No;
        let same_rank = args[0].len() == self.to.len();
        let scalar = args[0].is_empty();
        if !(scalar || same_rank && args[0].iter().zip(&self.to).all(fits)) {
            let found = format!("{} does not broadcast to {}", shape(args[0]), shape(&self.to));
            return Err(Diag::new(
                "broadcast",
                At::Operand(0),
                found,
                "ranks are equal, and each axis is 1 or the same",
            ));
        }
        Ok(self.to.clone())
    }
    fn dtype(&self, args: &[DType]) -> Result<DType, Diag> {
        same_dtype(args)
    }
    fn access(&self, args: &[&[Dim]]) -> Access {
        let stretched = |i: usize| one(&args[0][i]) && !one(&self.to[i]);
        let index = (0..args[0].len()).map(|i| if stretched(i) { Index::first() } else { Index::of(i) }).collect();
        Access::Map(vec![Piece { operand: 0, index, bounds: vec![] }])
    }
    fn batched<'g>(&self, args: &[Arg<'_, 'g>], batch: &Batch<'_>) -> Option<E<'g>> {
        let (x, to) = (batch.front(0, &args[0]), batch.before(&self.to));
        if !args[0].shape.is_empty() {
            return Some(x.stretched(&to));
        }
        let mut unit = vec![Dim::from(1i64); to.len()];
        unit[0] = batch.size.clone();
        Some(x.shaped(&unit).stretched(&to))
    }
    fn jvp<'g>(&self, args: &[Arg<'_, 'g>], _: E<'g>, tangents: &[Option<E<'g>>]) -> Option<E<'g>> {
        linear(self, args, tangents)
    }
    fn transpose<'g>(&self, args: &[Arg<'_, 'g>], cotangent: E<'g>) -> Vec<Option<E<'g>>> {
        let of = args[0].shape;
        if of.is_empty() {
            return vec![Some(cotangent.summed((0..self.to.len()).collect()).shaped(&[]))];
        }
        let stretched = (0..of.len()).filter(|&i| one(&of[i]) && !one(&self.to[i])).collect();
        vec![Some(cotangent.summed(stretched))]
    }
    fn draw(from: &mut dyn Draw) -> Option<Self> {
        let to = from.shape();
        let fits = |ty: &Type| {
            ty.is_scalar() || ty.shape.len() == to.len() && ty.shape.iter().zip(&to).all(|(&a, &b)| a == 1 || a == b)
        };
        from.operand(&fits)?;
        Some(Broadcast { to: to.into_iter().map(Dim::from).collect() })
    }
    fn samples() -> Vec<Sample<Self>> {
        let op = Broadcast { to: vec![Dim::name("M"), Dim::name("N")] };
        let with = &[("M", 2), ("N", 3)];
        vec![
            Sample { op: op.clone(), args: &[&["M", "1"]], dtypes: &[DType::F32], with },
            Sample { op, args: &[&[]], dtypes: &[DType::F32], with },
        ]
    }
}
