//! Typed elements with a poison bit each, on which the strict interpreter computes.
#![warn(clippy::wildcard_enum_match_arm)]
use half::{bf16, f16};
use pallas_ir::{DType, Elem, Literal, Loc, Slice, SliceMut, Type};
use std::sync::Arc;

/// Defines [`Data`] with a variant for each element type.
macro_rules! define_data {
    ($($Variant:ident $T:ty),*) => {
        /// Elements of one type.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Data { $(#[doc = concat!("`", stringify!($T), "` elements.")] $Variant(Vec<$T>)),* }
        impl Data {
            /// Returns `n` zeros.
            pub fn zeros(dtype: DType, n: usize) -> Data {
                match dtype { $(DType::$Variant => Data::$Variant(vec![<$T>::default(); n])),* }
            }
            /// Reads elements from bytes in the host's format.
            pub fn from_bytes(dtype: DType, bytes: &[u8]) -> Data {
                match dtype {
                    DType::Bool => Data::Bool(bytes.iter().map(|&b| b != 0).collect()),
                    $(#[allow(unreachable_patterns, reason = "`Bool` has its own arm")] DType::$Variant => Data::$Variant(
                        bytes.chunks_exact(dtype.bytes()).map(|b| <$T as HostElement>::from_host_bytes(b)).collect())),*
                }
            }
            /// Returns the elements as bytes in the host's format.
            pub fn to_bytes(&self) -> Vec<u8> {
                match self { $(Data::$Variant(v) => bytemuck::cast_slice(v).to_vec()),* }
            }
            /// Returns the elements as a slice.
            pub fn slice(&self) -> Slice<'_> {
                match self { $(Data::$Variant(v) => Slice::$Variant(v)),* }
            }
            /// Returns the elements as a slice to be written.
            pub fn slice_mut(&mut self) -> SliceMut<'_> {
                match self { $(Data::$Variant(v) => SliceMut::$Variant(v)),* }
            }
            /// Number of elements.
            pub fn len(&self) -> usize {
                match self { $(Data::$Variant(v) => v.len()),* }
            }
            /// Returns true if there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }
            /// Returns the element at position `i`.
            pub fn get(&self, i: usize) -> Literal {
                match self { $(Data::$Variant(v) => v[i].as_literal()),* }
            }
            /// Sets the element at position `i` to `x`, which has this element type.
            pub fn set(&mut self, i: usize, x: Literal) {
                match self { $(Data::$Variant(v) => v[i] = <$T as HostElement>::from_literal(x)),* }
            }
            /// Returns the elements at these positions, with `fill` for `None`.
            pub fn gather(&self, at: impl Iterator<Item = Option<usize>>, fill: Literal) -> Data {
                match self { $(Data::$Variant(v) => {
                    let fill = <$T as HostElement>::from_literal(fill);
                    Data::$Variant(at.map(|i| i.map_or(fill, |i| v[i])).collect())
                })* }
            }
            /// Converts the elements as Rust's `as` does: floats saturate when cast to integers, a cast to `bool` is
            /// `x != 0`.
            pub fn cast(&self, to: DType) -> Data {
                // In two steps, so that code is generated for each element type, not for each pair of types.
                let wide: Vec<WideNumber> = match self { $(Data::$Variant(v) => v.iter().map(HostElement::as_wide).collect()),* };
                match to { $(DType::$Variant => Data::$Variant(wide.into_iter().map(<$T as HostElement>::from_wide).collect())),* }
            }
        }
    };
}
define_data! { F32 f32, F64 f64, F16 f16, Bf16 bf16, I8 i8, U8 u8, I16 i16, U16 u16, I32 i32, U32 u32, I64 i64, U64 u64, Bool bool }

/// A number wide enough for every element type.
#[derive(Clone, Copy)]
pub enum WideNumber {
    /// An integer or truth value.
    Int(i128),
    /// A float.
    Float(f64),
}

/// Conversions of an element type from and to bytes, constants and wide numbers.
pub trait HostElement: Elem + bytemuck::NoUninit {
    /// Reads an element from bytes in the host's format.
    fn from_host_bytes(bytes: &[u8]) -> Self;
    /// Converts the element to the widest type of its kind.
    fn as_wide(&self) -> WideNumber;
    /// Converts a wide number to the element type, as Rust's `as` does.
    fn from_wide(x: WideNumber) -> Self;
    /// Returns the element as a constant.
    fn as_literal(&self) -> Literal {
        let mut bits = [0; 8];
        let bytes = bytemuck::bytes_of(self);
        bits[..bytes.len()].copy_from_slice(bytes);
        Literal { dtype: Self::DTYPE, bits: u64::from_le_bytes(bits) }
    }
    /// Converts a constant of this type to an element.
    fn from_literal(x: Literal) -> Self {
        debug_assert_eq!(x.dtype, Self::DTYPE);
        Self::from_host_bytes(&x.to_bytes())
    }
}
/// Implements [`HostElement`] for element types, from expressions that convert to and from wide numbers.
macro_rules! impl_host_element {
    ($($T:ty, $kind:ident |$x:ident| $wide:expr, $int:expr, $float:expr;)*) => {$(
        impl HostElement for $T {
            fn from_host_bytes(bytes: &[u8]) -> Self {
                <$T>::from_le_bytes(bytes.try_into().expect("as many bytes as the element has"))
            }
            fn as_wide(&self) -> WideNumber {
                let $x = *self;
                WideNumber::$kind($wide)
            }
            fn from_wide(x: WideNumber) -> Self {
                match x {
                    WideNumber::Int($x) => $int,
                    WideNumber::Float($x) => $float,
                }
            }
        }
    )*};
}
impl_host_element! {
    f32, Float |x| f64::from(x), x as f32, x as f32;
    f64, Float |x| x, x as f64, x;
    f16, Float |x| f64::from(x), f16::from_f64(x as f64), f16::from_f64(x);
    bf16, Float |x| f64::from(x), bf16::from_f64(x as f64), bf16::from_f64(x);
    i8, Int |x| x.into(), x as i8, x as i8;
    u8, Int |x| x.into(), x as u8, x as u8;
    i16, Int |x| x.into(), x as i16, x as i16;
    u16, Int |x| x.into(), x as u16, x as u16;
    i32, Int |x| x.into(), x as i32, x as i32;
    u32, Int |x| x.into(), x as u32, x as u32;
    i64, Int |x| x.into(), x as i64, x as i64;
    u64, Int |x| x.into(), x as u64, x as u64;
}
impl HostElement for bool {
    fn from_host_bytes(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    fn as_wide(&self) -> WideNumber {
        WideNumber::Int(i128::from(*self))
    }
    fn from_wide(x: WideNumber) -> Self {
        match x {
            WideNumber::Int(x) => x != 0,
            WideNumber::Float(x) => x != 0.0,
        }
    }
}

/// A value of the interpreter: elements, of which some may be poison.
#[derive(Clone, Debug, PartialEq)]
pub struct Datum {
    /// Element type and shape.
    pub ty: Type,
    /// Row-major elements.
    pub data: Data,
    /// For each element, true if it is poison; `None` if none is.
    pub poison: Option<Vec<bool>>,
    /// True if the value depends on the contents of memory or on a parameter. Otherwise it is a position: it depends
    /// on program ids, sizes and constants alone.
    pub loaded: bool,
    /// The origin of poison, if an element is poison.
    pub origin: Option<Arc<PoisonOrigin>>,
}

/// The origin of an undefined (poison) element, for the message of the fault that its use causes.
#[derive(Clone, Debug, PartialEq)]
pub struct PoisonOrigin {
    /// The place in words.
    pub what: String,
    /// The way to correct the kernel.
    pub help: String,
    /// The line of the load.
    pub loc: Loc,
}

impl Datum {
    /// Creates a value without poison.
    pub fn new(ty: Type, data: Data) -> Datum {
        debug_assert_eq!(ty.elements(), data.len());
        Datum { ty, data, poison: None, origin: None, loaded: false }
    }
    /// Creates a scalar without poison.
    pub fn scalar(x: Literal) -> Datum {
        let mut data = Data::zeros(x.dtype, 1);
        data.set(0, x);
        Datum::new(Type::scalar(x.dtype), data)
    }
    /// Creates a value whose elements are all poison.
    pub fn poisoned(ty: Type) -> Datum {
        let n = ty.elements();
        Datum { data: Data::zeros(ty.dtype, n), poison: Some(vec![true; n]), ty, origin: None, loaded: false }
    }
    /// Returns the value with these poison bits.
    pub fn with_poison(mut self, poison: Vec<bool>) -> Datum {
        self.poison = poison.contains(&true).then_some(poison);
        self
    }
    /// Converts the elements to another type; poison stays poison.
    pub fn cast(&self, to: DType) -> Datum {
        let ty = Type { dtype: to, ..self.ty.clone() };
        let (poison, origin) = (self.poison.clone(), self.origin.clone());
        Datum { data: self.data.cast(to), ty, poison, origin, loaded: self.loaded }
    }
    /// Returns true if element `i` is poison.
    pub fn is_poison(&self, i: usize) -> bool {
        self.poison.as_ref().is_some_and(|p| p[i])
    }
    /// Returns the value of a scalar, or `None` if it is poison.
    pub fn literal(&self) -> Option<Literal> {
        (!self.is_poison(0)).then(|| self.data.get(0))
    }
}

/// Returns the coordinates of all elements of an array of this shape, in row-major order.
pub fn positions(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let total: usize = shape.iter().product();
    (0..total).map(move |flat| unflatten(flat, shape))
}

/// Returns the coordinates of a row-major position.
pub fn unflatten(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for (x, &n) in at.iter_mut().zip(shape).rev() {
        (*x, flat) = (flat % n, flat / n);
    }
    at
}

/// Returns the row-major position of coordinates.
pub fn flatten(at: &[usize], shape: &[usize]) -> usize {
    at.iter().zip(shape).fold(0, |flat, (x, n)| flat * n + x)
}

/// Returns the strides of a row-major array of this shape, in elements.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|i| shape[i + 1..].iter().product()).collect()
}

/// Returns the position of coordinates along axes with these strides.
pub(super) fn strided_position(coordinates: &[usize], strides: &[usize]) -> usize {
    coordinates.iter().zip(strides).map(|(i, s)| i * s).sum()
}
