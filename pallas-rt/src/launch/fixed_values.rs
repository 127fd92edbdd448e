//! Comparison of `#[fixed]` values between calls. The trace depends on them besides types, sizes and element types.
//!
//! An expansion calls `(&&Fixed(&value)).fixed_key()`. Method resolution takes the first that applies:
//!
//! | trait | for | compared by |
//! |---|---|---|
//! | [`ByText`] | floats, `str` | their bits, their text |
//! | [`ByValue`] | `Clone + Eq + Hash`: integers, enums, tuples, function pointers | the value itself |
//! | [`ByType`] | all else | its type if it has no size (closures without captures); if not, the trace itself is the key |
use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A `#[fixed]` value of one call, to be compared with those of earlier calls without a copy.
#[derive(Clone, Copy, Debug)]
pub struct FixedKey<'a> {
    seen: BorrowedFixedValue<'a>,
    /// The argument's name.
    pub(super) name: &'static str,
    /// The name of its type.
    pub(super) ty: &'static str,
}

/// A `#[fixed]` value of the present call, borrowed in the form in which it is compared with stored ones.
#[derive(Clone, Copy, Debug)]
enum BorrowedFixedValue<'a> {
    Text(&'a str),
    /// The bits of a float and its type; the type only, for a type without size.
    Bits(TypeId, Option<u64>),
    Value(&'a (dyn FixedValue + 'static)),
    /// Not comparable: the kernel is traced anew at each call.
    Incomparable,
}

/// A stored `#[fixed]` value, with which those of later calls are compared.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum StoredFixedValue {
    Text(Arc<str>),
    Bits(TypeId, Option<u64>),
    Value(Arc<dyn FixedValue>),
}

impl FixedKey<'_> {
    /// Returns the value with the name of its argument.
    pub fn named(self, name: &'static str) -> Self {
        FixedKey { name, ..self }
    }
    /// Returns the value to be stored; `None` if it cannot be compared.
    pub(super) fn stored_value(&self) -> Option<StoredFixedValue> {
        Some(match self.seen {
            BorrowedFixedValue::Text(text) => StoredFixedValue::Text(text.into()),
            BorrowedFixedValue::Bits(ty, bits) => StoredFixedValue::Bits(ty, bits),
            BorrowedFixedValue::Value(value) => StoredFixedValue::Value(value.stored_value()),
            BorrowedFixedValue::Incomparable => return None,
        })
    }
    /// Returns true if the value equals the stored one.
    pub(super) fn matches_stored(&self, kept: &StoredFixedValue) -> bool {
        match (self.seen, kept) {
            (BorrowedFixedValue::Text(text), StoredFixedValue::Text(other)) => *text == **other,
            (BorrowedFixedValue::Bits(ty, bits), StoredFixedValue::Bits(other, others)) => {
                (ty, bits) == (*other, *others)
            }
            (BorrowedFixedValue::Value(value), StoredFixedValue::Value(other)) => *value == **other,
            _ => false,
        }
    }
}

/// A value of any type with `Eq` and `Hash`, which compares with values of all types.
pub(super) trait FixedValue: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn FixedValue) -> bool;
    fn hash_into(&self, state: &mut dyn Hasher);
    fn stored_value(&self) -> Arc<dyn FixedValue>;
}
impl<T: Clone + Eq + Hash + Send + Sync + 'static> FixedValue for T {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn equals(&self, other: &dyn FixedValue) -> bool {
        other.as_any().downcast_ref::<T>().is_some_and(|other| self == other)
    }
    fn hash_into(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }
    fn stored_value(&self) -> Arc<dyn FixedValue> {
        Arc::new(self.clone())
    }
}
impl PartialEq for dyn FixedValue {
    fn eq(&self, other: &dyn FixedValue) -> bool {
        self.equals(other)
    }
}
impl Eq for dyn FixedValue {}
impl Hash for dyn FixedValue {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash_into(state);
    }
}
impl fmt::Debug for dyn FixedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fixed value")
    }
}

/// Wraps a `#[fixed]` value for comparison between calls: by text or bits ([`ByText`]), else by value ([`ByValue`]),
/// else by type ([`ByType`]), as its type allows.
#[derive(Debug)]
pub struct Fixed<'a, T: ?Sized>(pub &'a T);

/// Trait of `#[fixed]` values that are compared by their bits or their text: floats and `str`.
pub trait ByText<'a> {
    /// Returns the key by which a kernel's calls are compared, with the text of a `str` or the bits of a float.
    fn fixed_key(&self) -> FixedKey<'a>;
}
/// Trait of `#[fixed]` values that are compared by themselves: those with `Clone + Eq + Hash`.
pub trait ByValue<'a> {
    /// Returns the key, with a reference to the value.
    fn fixed_key(&self) -> FixedKey<'a>;
}
/// Trait of all other `#[fixed]` values, which are compared by their type alone if it has no size, or not at all.
pub trait ByType<'a> {
    /// Returns the key: the type if it has no size; else none, so that the trace itself is compared.
    fn fixed_key(&self) -> FixedKey<'a>;
}

macro_rules! by_text {
    ($($T:ty, $x:ident => $seen:expr;)*) => {$(
        impl<'a> ByText<'a> for &Fixed<'a, $T> {
            fn fixed_key(&self) -> FixedKey<'a> {
                let $x = self.0;
                FixedKey { seen: $seen, name: "", ty: stringify!($T) }
            }
        }
    )*};
}
by_text! {
    str, x => BorrowedFixedValue::Text(x);
    &str, x => BorrowedFixedValue::Text(x);
    f32, x => BorrowedFixedValue::Bits(TypeId::of::<f32>(), Some(x.to_bits().into()));
    f64, x => BorrowedFixedValue::Bits(TypeId::of::<f64>(), Some(x.to_bits()));
    half::f16, x => BorrowedFixedValue::Bits(TypeId::of::<half::f16>(), Some(x.to_bits().into()));
    half::bf16, x => BorrowedFixedValue::Bits(TypeId::of::<half::bf16>(), Some(x.to_bits().into()));
    Option<f32>, x => BorrowedFixedValue::Bits(TypeId::of::<Option<f32>>(), x.map(|x| x.to_bits().into()));
    Option<f64>, x => BorrowedFixedValue::Bits(TypeId::of::<Option<f64>>(), x.map(f64::to_bits));
}
impl<'a, T: Clone + Eq + Hash + Send + Sync + 'static> ByValue<'a> for &&Fixed<'a, T> {
    fn fixed_key(&self) -> FixedKey<'a> {
        FixedKey { seen: BorrowedFixedValue::Value(self.0), name: "", ty: type_name::<T>() }
    }
}
impl<'a, T: 'static> ByType<'a> for Fixed<'a, T> {
    fn fixed_key(&self) -> FixedKey<'a> {
        let seen = if size_of::<T>() == 0 {
            BorrowedFixedValue::Bits(TypeId::of::<T>(), None)
        } else {
            BorrowedFixedValue::Incomparable
        };
        FixedKey { seen, name: "", ty: type_name::<T>() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! seen {
        ($x:expr) => {
            (&&Fixed(&$x)).fixed_key()
        };
    }
    macro_rules! key {
        ($x:expr) => {
            seen!($x).stored_value()
        };
    }

    #[derive(Clone, PartialEq, Eq, Hash)]
    enum Mask {
        Causal,
        Window(usize),
    }

    #[test]
    fn values_that_can_be_compared_are() {
        let double: fn(f32) -> f32 = |x| x * 2.0;
        let half: fn(f32) -> f32 = |x| x * 0.5;
        assert_eq!(key!(Mask::Window(3)), key!(Mask::Window(3)));
        assert_ne!(key!(Mask::Window(3)), key!(Mask::Window(4)));
        assert_ne!(key!(Mask::Window(0)), key!(Mask::Causal));
        assert_ne!(key!(3i32), key!(3u32));
        assert_eq!(key!(double), key!(double));
        assert_ne!(key!(double), key!(half));
        assert_ne!(key!(0.0f32), key!(-0.0f32));
        assert_eq!(key!(f32::NAN), key!(f32::NAN));
        assert_eq!(key!("causal"), key!(String::from("causal").as_str()));
        for key in [key!((1usize, true)), key!(vec![1, 2]), key!(Some(2.5f32)), key!(Some(Mask::Causal))] {
            assert!(key.is_some());
        }
    }

    #[test]
    fn a_value_is_what_was_kept_of_an_equal_one() {
        let (text, other) = ("causal", "full");
        let values = [
            seen!(text),
            seen!(other),
            seen!(f32::NAN),
            seen!(None::<f32>),
            seen!(0.0f64),
            seen!(-0.0f64),
            seen!(0u64),
            seen!(0i64),
            seen!(Mask::Window(3)),
            seen!(Mask::Causal),
            seen!(|x: f32| x),
        ];
        for (i, value) in values.iter().enumerate() {
            for (j, other) in values.iter().enumerate() {
                assert_eq!(
                    value.matches_stored(&other.stored_value().expect("comparable")),
                    i == j,
                    "{value:?} {other:?}"
                );
            }
        }
    }

    #[test]
    fn closures_are_compared_by_type_unless_they_capture() {
        let (n, plain) = (std::hint::black_box(2.0), |x: f32| x + 1.0);
        let (other, captures) = (|x: f32| x + 1.0, move |x: f32| x + n);
        assert_eq!(key!(plain), key!(plain));
        assert_ne!(key!(plain), key!(other));
        assert_eq!(key!(captures), None);
        assert_eq!((plain(1.0), other(1.0), captures(1.0)), (2.0, 2.0, 3.0));
    }
}
