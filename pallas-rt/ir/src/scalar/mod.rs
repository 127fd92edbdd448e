//! Scalar operations: `table` holds the rows, `row` what a row expands to.
//!
//! ```text
//! Row  = doc+ Variant "=" name "<T:" Class ">(" (operand ":" Type),* ")" "->" result ":" Type "{" Cells "}"
//! Type = "T" | "bool" | "u32"
//! ```
pub mod fast;
#[macro_use]
mod row;
mod shader;
mod special;
#[macro_use]
mod table;

pub use table::*;

use crate::Literal;
use crate::dtype::{Class, DType, Elem, Slice};

/// The type of an operand or result in a row's signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ty {
    /// The row's type parameter.
    T,
    /// This type.
    Is(DType),
}

/// What a NaN operand does to the result; the laws run it on the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nan {
    /// Any NaN operand makes the result NaN.
    Propagates,
    /// Any NaN operand makes the result false.
    False,
    /// The result says whether an operand is NaN.
    Tests,
    /// NaN passes through if its operand is the one chosen.
    Chosen,
    /// The operation has no floats, or treats them as bits.
    Opaque,
}

/// What the WGSL text promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gpu {
    /// Bit-equal to the reference for every operand.
    Exact,
    /// Within so many ulp for finite operands and results; NaN and inf are whatever the driver does, denormals may be 0.
    ///
    /// A zero's sign need not count. Angles count up to a magnitude of 100. A remainder is that of a quotient which was rounded, and a fused product may
    /// be rounded twice: they are so many ulp of the dividend, of the product off.
    Finite(u32),
}

/// Number of operations per element that `cost` counts for a row; see [`Row::cost`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Arithmetic operations.
    pub arithmetic: u64,
    /// Transcendental functions: exp, log, sin and the like.
    pub transcendental: u64,
}
impl Cost {
    const FREE: Cost = Cost { arithmetic: 0, transcendental: 0 };
}

/// The neutral element of a monoid, for every element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Neutral {
    /// 0.
    Zero,
    /// 1.
    One,
    /// -inf, or the lowest integer.
    Lowest,
    /// inf, or the highest integer.
    Highest,
    /// All bits set.
    Ones,
}

/// The `fold` cell of a row that reductions can use: an associative, commutative operation of two elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fold {
    /// The neutral element.
    pub neutral: Neutral,
    /// The WGSL function that folds over the threads of a subgroup, if WGSL has one.
    pub subgroup: Option<&'static str>,
}

/// The syntax of a row in a kernel's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Surface {
    /// A method of tiles and scalars with the row's name.
    Method,
    /// An operator of Rust.
    Operator,
    /// A function.
    Function,
}

/// The data of a row.
#[derive(Debug)]
pub struct Row {
    /// In text and as a method.
    pub name: &'static str,
    /// Names and types.
    pub operands: &'static [(&'static str, Ty)],
    /// Type of the result.
    pub result: Ty,
    /// What `T` ranges over.
    pub class: Class,
    /// What a NaN does.
    pub nan: Nan,
    /// What the WGSL text promises.
    pub gpu: Gpu,
    /// Operations per element.
    pub cost: Cost,
    /// The properties that folds need; `None` if the row is no monoid.
    pub fold: Option<Fold>,
    /// Its syntax in a kernel's body.
    pub surface: Surface,
    /// How far the `cpu` cell may be from the reference: relative and absolute; None if they are the same code.
    pub fast: Option<(f64, f64)>,
    /// What it computes.
    pub doc: &'static str,
}

/// One element's computation, per operand types. A row implements it for every type of its class.
pub trait Lane<A> {
    /// Type of the result.
    type Out: Elem;
    /// Plain scalar Rust: the meaning of the operation.
    fn reference(args: A) -> Self::Out;
    /// What the CPU strips inline: the row's `cpu` cell, or the reference.
    fn fast(args: A) -> Self::Out;
}

/// Operands of one lane, and the strips they come from.
pub trait Args: Copy {
    /// One typed strip per operand.
    type Strips<'a>: Copy;
    /// The typed strips, each cut to length `n`.
    fn strips<'a>(s: &[Slice<'a>], n: usize) -> Self::Strips<'a>;
    /// Operands of element `i`.
    fn at(s: Self::Strips<'_>, i: usize) -> Self;
}

macro_rules! args {
    ($($a:ident $i:tt),*) => {
        impl<$($a: Elem),*> Args for ($($a,)*) {
            type Strips<'a> = ($(&'a [$a],)*);
            #[inline(always)]
            fn strips<'a>(s: &[Slice<'a>], n: usize) -> Self::Strips<'a> { ($(&$a::of(s[$i])[..n],)*) }
            #[inline(always)]
            fn at(s: Self::Strips<'_>, i: usize) -> Self { ($(s.$i[i],)*) }
        }
    };
}
args! { A 0 }
args! { A 0, B 1 }
args! { A 0, B 1, C 2 }

/// A computation that wants the types behind `(op, dtype)`: how backends turn data into monomorphised code.
pub trait Visit {
    /// What the visit gives.
    type Out;
    /// Called with the row and its operand types.
    fn visit<O: Lane<A>, A: Args>(self) -> Self::Out;
}

/// A computation that needs the Rust type behind `(monoid, dtype)`.
pub trait VisitMonoid {
    /// The result of the visit.
    type Out;
    /// Called with the row and its element type.
    fn visit<O: Lane<(T, T), Out = T>, T: Elem>(self) -> Self::Out;
}

impl ScalarOp {
    /// In text and as a method.
    pub fn name(self) -> &'static str {
        self.row().name
    }
    /// Number of operands.
    pub fn arity(self) -> usize {
        self.row().operands.len()
    }
    /// The row of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| op.name() == name)
    }

    /// The neutral element for elements of a type; None if the row is no monoid.
    pub fn neutral(self, dtype: DType) -> Option<Literal> {
        Some(match self.row().fold?.neutral {
            Neutral::Zero => Literal::new(dtype, 0.0),
            Neutral::One => Literal::new(dtype, 1.0),
            Neutral::Lowest => Literal::lowest(dtype),
            Neutral::Highest => Literal::highest(dtype),
            Neutral::Ones => Literal::ones(dtype),
        })
    }
    /// The type in which a monoid folds elements of a type: that of [`DType::accumulator`] where each step rounds, so that a
    /// sum or product of 16-bit floats is rounded once, at its end; else the elements' own.
    pub fn accumulator(self, dtype: DType) -> Option<DType> {
        self.row().fold?;
        let rounds = dtype.is_float() && matches!(self, ScalarOp::Add | ScalarOp::Mul);
        Some(if rounds { dtype.accumulator() } else { dtype })
    }
    /// Returns true if the row is a monoid of the elements of a type, so that any number of them can be combined.
    pub fn is_monoid(self, dtype: DType) -> bool {
        self.row().fold.is_some() && self.infer(&[dtype; 2]) == Ok(dtype)
    }
    /// The row for elements of a type: the greater of two truth values is their `or`, and the lesser their `and`.
    #[must_use]
    pub fn monoid_of(self, dtype: DType) -> ScalarOp {
        match (self, dtype) {
            (ScalarOp::Maximum, DType::Bool) => ScalarOp::BitOr,
            (ScalarOp::Minimum, DType::Bool) => ScalarOp::BitAnd,
            _ => self,
        }
    }
    /// The result's type for operands of these types, or why there is none.
    pub fn infer(self, given: &[DType]) -> Result<DType, String> {
        let row = self.row();
        if given.len() != self.arity() {
            return Err(format!("`{self}` takes {} operands, found {}", self.arity(), given.len()));
        }
        let mut t = None;
        for ((name, want), &got) in row.operands.iter().zip(given) {
            match *want {
                Ty::Is(want) if want != got => {
                    return Err(format!("operand `{name}` of `{self}` is {want}, found {got}"));
                }
                Ty::T
                    if let Some(before) = t
                        && before != got =>
                {
                    return Err(format!("operand `{name}` of `{self}` is {got}, but the one before is {before}"));
                }
                Ty::T if !row.class.dtypes().contains(&got) => {
                    return Err(format!("`{self}` is not defined for {got}, only for {:?}", row.class.dtypes()));
                }
                Ty::T => t = Some(got),
                Ty::Is(_) => {}
            }
        }
        Ok(match row.result {
            Ty::T => t.expect("a row mentions T"),
            Ty::Is(t) => t,
        })
    }
}

impl std::fmt::Display for ScalarOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl ScalarOp {
    /// The result's shape: scalars fit every shape, else ranks are equal and each axis is the same or 1. The same code
    /// for names and for numbers.
    pub fn infer_shape(self, args: &[&[crate::Dim]], facts: &crate::Facts) -> Result<Vec<crate::Dim>, crate::Diag> {
        use crate::diag::{At, Diag, agree, shape};
        if args.len() != self.arity() {
            let names: Vec<&str> = self.row().operands.iter().map(|o| o.0).collect();
            let found =
                format!("`{self}` takes {} operands ({}), found {}", self.arity(), names.join(", "), args.len());
            return Err(Diag::new("arity", At::Op, found, self.row().doc.trim()));
        }
        let mut tiles = args.iter().enumerate().filter(|(_, arg)| !arg.is_empty());
        let mut out = tiles.next().map_or(vec![], |(_, first)| first.to_vec());
        for (i, arg) in tiles {
            let so_far = out.clone();
            let disagree = |help: String| {
                let found = format!("`{self}` of {} and {}", shape(&so_far), shape(arg));
                Diag::new("elementwise", At::Operand(i), found, help)
            };
            if arg.len() != out.len() {
                return Err(disagree(
                    "ranks are equal in an elementwise operation: `.expand(axis)` adds an axis".into(),
                ));
            }
            for (axis, (a, b)) in so_far.iter().zip(*arg).enumerate() {
                if a.as_number() == Some(1) {
                    out[axis] = b.clone();
                } else if b.as_number() != Some(1) && facts.same(a, b) == crate::dim::Verdict::No {
                    return Err(disagree(format!(
                        "axis {axis} is {a} on one side and {b} on the other; {}",
                        agree(a, b)
                    )));
                }
            }
        }
        Ok(out)
    }
}
