//! Element types: [`DType`] for data, traits such as [`Elem`] for Rust's types.
#![warn(clippy::wildcard_enum_match_arm)]

/// bfloat16; arithmetic goes through `f32`.
#[cfg(feature = "half")]
pub use half::bf16 as Bf16;
/// IEEE binary16; arithmetic goes through `f32`.
#[cfg(feature = "half")]
pub use half::f16 as F16;

/// Declares a type that only stores bits, for builds without the `half` feature.
#[cfg(not(feature = "half"))]
macro_rules! bits {
    ($($Half:ident $name:literal),*) => {$(
        #[doc = concat!("Bits of ", $name, " (the `half` feature puts that of `half` here).")]
        #[derive(Clone, Copy, PartialEq, Debug, Default)]
        pub struct $Half(u16);
        impl $Half {
            /// Creates the number with these bits.
            pub const fn from_bits(bits: u16) -> Self {
                $Half(bits)
            }
            /// The number's bits.
            pub const fn to_bits(self) -> u16 {
                self.0
            }
        }
    )*};
}
#[cfg(not(feature = "half"))]
bits! { F16 "an IEEE binary16", Bf16 "a bfloat16" }

/// A 16-bit float type: arithmetic is done in `f32` and rounded once per operation.
pub trait Half: Copy {
    /// Converts to `f32`, exactly.
    fn wide(self) -> f32;
    /// Converts from `f32`, rounding to nearest even.
    fn round(x: f32) -> Self;
}

impl Half for Bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn round(x: f32) -> Self {
        let b = x.to_bits();
        let r = b.wrapping_add(0x7fff + ((b >> 16) & 1)) >> 16;
        Self::from_bits(if x.is_nan() { (b >> 16) as u16 | 0x40 } else { r as u16 })
    }
}

impl Half for F16 {
    // Branch-free, so that the strip loops vectorise.
    #[inline(always)]
    fn wide(self) -> f32 {
        let h = self.to_bits() as u32;
        let (sign, mag) = ((h & 0x8000) << 16, h & 0x7fff);
        // Rebias by a multiplication: it handles subnormals as well.
        let v = f32::from_bits(mag << 13) * f32::from_bits(0x7780_0000); // 2^112
        let v = if mag >= 0x7c00 { v.to_bits() | 0x7f80_0000 } else { v.to_bits() };
        f32::from_bits(v | sign)
    }
    #[inline(always)]
    fn round(x: f32) -> Self {
        let b = x.to_bits();
        let (sign, mag) = ((b >> 16) & 0x8000, b & 0x7fff_ffff);
        // Adding a magic number rounds subnormals to nearest even in hardware.
        let sub = (f32::from_bits(mag) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let norm = mag.wrapping_add(0xc800_0fff).wrapping_add((mag >> 13) & 1) >> 13;
        let fin = if mag < 0x3880_0000 { sub } else { norm };
        let inf = if mag > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        Self::from_bits((sign | if mag >= 0x4780_0000 { inf } else { fin }) as u16)
    }
}

/// Declares [`DType`], slices of elements, and [`Elem`] for each element type.
macro_rules! dtypes {
    ($($variant:ident $ty:ident $text:literal),* $(,)?) => {
        /// The element type of a tile or array.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DType { $(#[doc = concat!("`", $text, "`")] $variant),* }
        impl DType {
            /// All element types.
            pub const ALL: &[DType] = &[$(DType::$variant),*];
            /// Size of an element in bytes, in the host's memory.
            pub const fn bytes(self) -> usize {
                match self { $(Self::$variant => std::mem::size_of::<$ty>()),* }
            }
            /// Returns true for a floating-point type.
            pub const fn is_float(self) -> bool {
                matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::Bf16)
            }
            /// The type in which sums and products of elements accumulate: f32 for 16-bit floats, else the type itself.
            pub const fn accumulator(self) -> DType {
                if matches!(self, DType::F16 | DType::Bf16) { DType::F32 } else { self }
            }
            /// Returns true for a signed integer type.
            pub const fn is_signed(self) -> bool {
                matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
            }
        }
        impl std::str::FromStr for DType {
            type Err = String;
            fn from_str(s: &str) -> Result<Self, String> {
                match s { $($text => Ok(Self::$variant),)* _ => Err(format!("`{s}` is not an element type")) }
            }
        }
        impl std::fmt::Display for DType {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),* })
            }
        }
        /// A borrowed slice of elements of any type.
        #[derive(Clone, Copy)]
        pub enum Slice<'a> { $(#[doc = $text] $variant(&'a [$ty])),* }
        /// A mutable slice of elements of any type.
        pub enum SliceMut<'a> { $(#[doc = $text] $variant(&'a mut [$ty])),* }
        $(impl sealed::Sealed for $ty {}
        impl Elem for $ty {
            const DTYPE: DType = DType::$variant;
            #[inline(always)]
            fn of<'a>(s: Slice<'a>) -> &'a [Self] {
                match s { Slice::$variant(s) => s, _ => panic!("strip is not {}", $text) }
            }
            #[inline(always)]
            fn of_mut<'a>(s: SliceMut<'a>) -> &'a mut [Self] {
                match s { SliceMut::$variant(s) => s, _ => panic!("strip is not {}", $text) }
            }
        })*
    };
}
dtypes! { F32 f32 "f32", F64 f64 "f64", F16 F16 "f16", Bf16 Bf16 "bf16", I8 i8 "i8", U8 u8 "u8", I16 i16 "i16", U16 u16 "u16",
I32 i32 "i32", U32 u32 "u32", I64 i64 "i64", U64 u64 "u64", Bool bool "bool" }

mod sealed {
    /// Keeps others from implementing [`Elem`](super::Elem): arrays rely on the bytes of elements being plain.
    pub trait Sealed {}
}

/// A Rust type that a tile can hold: a number or `bool`, without padding.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an element type of tiles",
    label = "not an element type",
    note = "element types are f32 f64 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64 bool"
)]
pub trait Elem: sealed::Sealed + Copy + Default + Send + Sync + std::fmt::Debug + PartialEq + 'static {
    /// The element type as a value.
    const DTYPE: DType;
    /// Returns the slice if it has elements of this type; panics otherwise.
    fn of<'a>(s: Slice<'a>) -> &'a [Self];
    /// Returns the mutable slice if it has elements of this type; panics otherwise.
    fn of_mut<'a>(s: SliceMut<'a>) -> &'a mut [Self];
}

/// The type in which products of this type's elements are summed.
pub trait Accumulate: Elem {
    /// Type of the sum: `f32` for 16-bit floats, `i32` for 8- and 16-bit integers, else the type itself.
    type Acc: Number;
}
/// Implements [`Accumulate`] with the given accumulator for each type.
macro_rules! accumulate {
    ($($ty:ident $acc:ident),*) => { $(impl Accumulate for $ty { type Acc = $acc; })* };
}
accumulate! { f32 f32, f64 f64, F16 f32, Bf16 f32, i8 i32, i16 i32, i32 i32, i64 i64, u8 i32, u16 i32, u32 u32, u64 u64 }

/// Declares for each class of element types its trait, the classes that contain it as bounds, and its types.
macro_rules! classes {
    ($($(#[doc = $doc:literal])+ $class:ident($($bound:tt)+): $($ty:ident)*;)*) => {
        $($(#[doc = $doc])+
        #[diagnostic::on_unimplemented(message = "this operation is not defined for `{Self}` elements", label = "defined for the types listed below")]
        pub trait $class: $($bound)+ {}
        $(impl $class for $ty {})*)*
        /// A class of element types, over which the `T` of an operation ranges.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Class { $($(#[doc = $doc])+ $class),* }
        impl Class {
            /// The element types of the class.
            pub fn dtypes(self) -> &'static [DType] {
                match self { $(Self::$class => &[$(<$ty as Elem>::DTYPE),*]),* }
            }
        }
    };
}
classes! {
    /// All element types.
    Any(Elem): f32 f64 F16 Bf16 i32 u32 i64 u64 i8 u8 i16 u16 bool;
    /// Floating-point and integer types.
    Number(Any + Accumulate): f32 f64 F16 Bf16 i32 u32 i64 u64 i8 u8 i16 u16;
    /// Floating-point and signed integer types.
    Signed(Number): f32 f64 F16 Bf16 i32 i64 i8 i16;
    /// Floating-point types.
    Real(Signed): f32 f64 F16 Bf16;
    /// Floating-point types whose accumulator is `f32`.
    Float(Real + Accumulate<Acc = f32>): f32 F16 Bf16;
    /// Integer types.
    Int(Number + Bits): i32 u32 i64 u64 i8 u8 i16 u16;
    /// Integer types and `bool`.
    Bits(Any): i32 u32 i64 u64 i8 u8 i16 u16 bool;
    /// The type `bool` alone.
    Bool(Bits): bool;
    /// The type `f32` alone.
    Single(Float): f32;
}

/// The type in which elements are computed: `f32` for 16-bit floats, the type itself for `bool`.
pub trait Widen: Copy {
    /// The type in which operations on elements of this type are computed.
    type Wide;
    /// Converts to the wide type, exactly.
    fn widen(self) -> Self::Wide;
    /// Converts back, rounding once.
    fn narrow(x: Self::Wide) -> Self;
}
/// Implements [`Widen`] for each type, with the conversions to and from the wide type.
macro_rules! widen {
    ($($ty:ident $wide:ident |$x:ident| $to:expr, $from:expr;)*) => {$(
        impl Widen for $ty {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide { let $x = self; $to }
            #[inline(always)]
            fn narrow($x: $wide) -> Self { $from }
        }
    )*};
}
widen! {
    F16 f32 |x| x.wide(), F16::round(x);
    Bf16 f32 |x| x.wide(), Bf16::round(x);
    bool bool |x| x, x;
}
