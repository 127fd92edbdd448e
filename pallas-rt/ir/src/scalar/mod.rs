//! Scalar operations: `table` holds them, a row each, and `row` what a row expands to.
//!
//! ```text
//! Row  = doc+ Variant "=" name "<T:" Class ">(" (operand ":" Type),* ")" "->" result ":" Type "{" Cells "}"
//! Type = "T" | "bool" | "u32"
//! ```
pub mod fast_math;
#[macro_use]
mod row;
mod shader;
mod special;
#[macro_use]
mod table;

pub use table::*;

use crate::Literal;
use crate::dtype::{Class, DType, Elem, Slice};

/// Type of an operand or result in the signature of an operation, which has one type parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignatureType {
    /// The operation's type parameter.
    T,
    /// A fixed type.
    Is(DType),
}

/// Effect of a NaN operand on the result; tests hold the reference to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NanBehavior {
    /// Any NaN operand makes the result NaN.
    Propagates,
    /// Any NaN operand makes the result false.
    False,
    /// The result states whether an operand is NaN.
    Tests,
    /// The result is NaN if the operand that the operation chooses is.
    Chosen,
    /// Not applicable: the operation has no floats, or treats them as bits.
    Opaque,
}

/// Accuracy of a scalar operation on GPUs: the error of its WGSL expression, compared with the reference in Rust.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WgslAccuracy {
    /// Bit-equal to the reference for every operand.
    Exact,
    /// Within this many ulp for finite operands and results; NaN and inf depend on the driver, denormals may be 0.
    ///
    /// The sign of a zero may differ. For angles the bound holds up to a magnitude of 100. A remainder is computed from
    /// a rounded quotient, and a fused product may be rounded twice: their bound is in ulp of the dividend and of the
    /// product.
    Finite(u32),
}

/// Estimated work of an operation per element; see [`ScalarOpRow::cost`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Number of arithmetic operations.
    pub arithmetic: u64,
    /// Number of transcendental functions: exp, log, sin and the like.
    pub transcendental: u64,
}
impl Cost {
    /// The cost of an operation that takes no time.
    const FREE: Cost = Cost { arithmetic: 0, transcendental: 0 };
}

/// Neutral element of a monoid, independent of the element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeutralElement {
    /// The number 0.
    Zero,
    /// The number 1.
    One,
    /// -inf, or the lowest integer of the type.
    Lowest,
    /// inf, or the highest integer of the type.
    Highest,
    /// The integer with all bits set, or true.
    Ones,
}

/// Properties of an operation that is a monoid, so that reductions can use it: associative and commutative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MonoidProperties {
    /// The monoid's neutral element.
    pub neutral: NeutralElement,
    /// Name of the WGSL function that folds over the threads of a subgroup; `None` if WGSL has none.
    pub subgroup: Option<&'static str>,
}

/// Syntax of an operation in a kernel's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallSyntax {
    /// A method of tiles and scalars with the operation's name.
    Method,
    /// An operator of Rust, such as `+`.
    Operator,
    /// A free function.
    Function,
}

/// One row of the table of scalar operations: signature, element types, accuracy, cost and syntax of an operation.
#[derive(Debug)]
pub struct ScalarOpRow {
    /// Name in text and as a method.
    pub name: &'static str,
    /// Name and type of each operand.
    pub operands: &'static [(&'static str, SignatureType)],
    /// Type of the result.
    pub result: SignatureType,
    /// Class of element types that `T` ranges over.
    pub class: Class,
    /// Effect of a NaN operand.
    pub nan: NanBehavior,
    /// Accuracy of the WGSL text.
    pub gpu: WgslAccuracy,
    /// Operations per element, for cost estimates.
    pub cost: Cost,
    /// Properties of the operation as a monoid; `None` if it is not one.
    pub fold: Option<MonoidProperties>,
    /// Syntax in a kernel's body.
    pub surface: CallSyntax,
    /// Bounds of the `cpu` cell's error, relative and absolute; `None` if it is the reference's code.
    pub fast: Option<(f64, f64)>,
    /// Doc comment of the operation.
    pub doc: &'static str,
}

/// Computation of one element with operand types `A`. An operation implements it for every type of its class.
pub trait ElementFunction<A> {
    /// Type of the result.
    type Out: Elem;
    /// Computes the result in plain scalar Rust, which defines the operation.
    fn reference(args: A) -> Self::Out;
    /// Computes the result as the CPU's loops do: by the approximation that the operation's row in the table gives for
    /// them, otherwise like the reference.
    fn fast(args: A) -> Self::Out;
}

/// Operands of one element (a tuple), read from strips: slices of consecutive elements, one per operand.
pub trait ElementOperands: Copy {
    /// Tuple with the strip of each operand: a slice of consecutive elements of the operand's type.
    type Strips<'a>: Copy;
    /// Converts the untyped strips of all operands to typed ones, cut to `length` elements.
    fn strips<'a>(slices: &[Slice<'a>], length: usize) -> Self::Strips<'a>;
    /// Reads the operands of one element of the strips, that with the index `element`.
    fn at(strips: Self::Strips<'_>, element: usize) -> Self;
}

/// Implements [`ElementOperands`] for a tuple of operands.
macro_rules! args {
    ($($a:ident $i:tt),*) => {
        impl<$($a: Elem),*> ElementOperands for ($($a,)*) {
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

/// A function that is generic over an operation's types: backends get from `(op, dtype)` to monomorphised code by it.
pub trait OpVisitor {
    /// Result of the function.
    type Out;
    /// Calls the function with the Rust types of the operation (`O`) and of its tuple of operands (`A`).
    fn visit<O: ElementFunction<A>, A: ElementOperands>(self) -> Self::Out;
}

/// A function that is generic over a monoid's element type, called for a `(monoid, dtype)` at run time.
pub trait MonoidVisitor {
    /// Result of the function.
    type Out;
    /// Calls the function with the Rust types of the monoid (`O`) and of its elements (`T`).
    fn visit<O: ElementFunction<(T, T), Out = T>, T: Elem>(self) -> Self::Out;
}

impl ScalarOp {
    /// Name of the operation in the text of tile IR, such as `add`; an operation that is a method of tiles has the same
    /// name there.
    pub fn name(self) -> &'static str {
        self.row().name
    }
    /// Number of operands.
    pub fn arity(self) -> usize {
        self.row().operands.len()
    }
    /// Finds the operation of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| op.name() == name)
    }

    /// The neutral element for this element type; `None` if the operation is not a monoid.
    pub fn neutral(self, dtype: DType) -> Option<Literal> {
        Some(match self.row().fold?.neutral {
            NeutralElement::Zero => Literal::new(dtype, 0.0),
            NeutralElement::One => Literal::new(dtype, 1.0),
            NeutralElement::Lowest => Literal::lowest(dtype),
            NeutralElement::Highest => Literal::highest(dtype),
            NeutralElement::Ones => Literal::ones(dtype),
        })
    }
    /// The type in which a monoid folds elements of type `dtype`: [`DType::accumulator`] where each step rounds, so
    /// that a sum or product of 16-bit floats is rounded once, at its end; otherwise `dtype` itself.
    pub fn accumulator(self, dtype: DType) -> Option<DType> {
        self.row().fold?;
        let rounds = dtype.is_float() && matches!(self, ScalarOp::Add | ScalarOp::Mul);
        Some(if rounds { dtype.accumulator() } else { dtype })
    }
    /// Returns true if the operation is a monoid on this element type, so that any number of elements can be folded.
    pub fn is_monoid(self, dtype: DType) -> bool {
        self.row().fold.is_some() && self.infer_dtype(&[dtype; 2]) == Ok(dtype)
    }
    /// The operation by which elements of this type are folded: `or` and `and` instead of maximum and minimum of bools,
    /// otherwise this operation itself.
    #[must_use]
    pub fn monoid_for_dtype(self, dtype: DType) -> ScalarOp {
        match (self, dtype) {
            (ScalarOp::Maximum, DType::Bool) => ScalarOp::BitOr,
            (ScalarOp::Minimum, DType::Bool) => ScalarOp::BitAnd,
            _ => self,
        }
    }
    /// Returns the result's element type for operands of these types, or a message if they do not fit.
    pub fn infer_dtype(self, operand_dtypes: &[DType]) -> Result<DType, String> {
        let row = self.row();
        if operand_dtypes.len() != self.arity() {
            return Err(format!("`{self}` takes {} operands, found {}", self.arity(), operand_dtypes.len()));
        }
        let mut t = None;
        for ((name, want), &got) in row.operands.iter().zip(operand_dtypes) {
            match *want {
                SignatureType::Is(want) if want != got => {
                    return Err(format!("operand `{name}` of `{self}` is {want}, found {got}"));
                }
                SignatureType::T
                    if let Some(before) = t
                        && before != got =>
                {
                    return Err(format!("operand `{name}` of `{self}` is {got}, but the one before is {before}"));
                }
                SignatureType::T if !row.class.dtypes().contains(&got) => {
                    return Err(format!("`{self}` is not defined for {got}, only for {:?}", row.class.dtypes()));
                }
                SignatureType::T => t = Some(got),
                SignatureType::Is(_) => {}
            }
        }
        Ok(match row.result {
            SignatureType::T => t.expect("a row mentions T"),
            SignatureType::Is(t) => t,
        })
    }
}

impl std::fmt::Display for ScalarOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
