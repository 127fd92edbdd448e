//! How `#[fixed]` values are compared across calls: what the trace depends on besides sizes and element types.
//!
//! An expansion calls `(&&Fixed(&value)).fixed_key()`. Method resolution takes the first that applies:
//!
//! | trait | for | compared by |
//! |---|---|---|
//! | [`ByText`] | floats, `str` | their bits, their text |
//! | [`ByValue`] | `Clone + Eq + Hash`: integers, enums, tuples, function pointers | the value itself |
//! | [`ByType`] | all else | its type if it has no size (closures without captures); if not, the trace itself is the key |
use std::any::{Any, TypeId};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A value the trace depends on; `None` inside: not comparable, so the kernel is traced anew at each call.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FixedKey(pub(super) Option<Key>);

/// What is compared.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    Text(String),
    Value(Arc<dyn Value>),
    Type(TypeId),
}

/// A value of any type, compared as its type compares.
pub(super) trait Value: Send + Sync {
    fn as_any(&self) -> &dyn Any;
    fn equals(&self, other: &dyn Value) -> bool;
    fn hash_into(&self, state: &mut dyn Hasher);
}
impl<T: Eq + Hash + Send + Sync + 'static> Value for T {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn equals(&self, other: &dyn Value) -> bool {
        other.as_any().downcast_ref::<T>().is_some_and(|other| self == other)
    }
    fn hash_into(&self, mut state: &mut dyn Hasher) {
        self.hash(&mut state);
    }
}
impl PartialEq for dyn Value {
    fn eq(&self, other: &dyn Value) -> bool {
        self.equals(other)
    }
}
impl Eq for dyn Value {}
impl Hash for dyn Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash_into(state);
    }
}
impl fmt::Debug for dyn Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fixed value")
    }
}

/// A `#[fixed]` value, to be compared in the first way of the module's table that its type allows.
#[derive(Debug)]
pub struct Fixed<'a, T: ?Sized>(pub &'a T);

/// Compared by text.
pub trait ByText {
    /// The key.
    fn fixed_key(&self) -> FixedKey;
}
/// Compared by value.
pub trait ByValue {
    /// The key.
    fn fixed_key(&self) -> FixedKey;
}
/// Compared by type.
pub trait ByType {
    /// The key.
    fn fixed_key(&self) -> FixedKey;
}

macro_rules! by_text {
    ($($T:ty, $x:ident => $text:expr;)*) => {$(
        impl ByText for &Fixed<'_, $T> {
            fn fixed_key(&self) -> FixedKey {
                let $x = self.0;
                FixedKey(Some(Key::Text($text)))
            }
        }
    )*};
}
by_text! {
    str, x => x.to_string();
    &str, x => x.to_string();
    f32, x => format!("{:x}", x.to_bits());
    f64, x => format!("{:x}", x.to_bits());
    half::f16, x => format!("{:x}", x.to_bits());
    half::bf16, x => format!("{:x}", x.to_bits());
    Option<f32>, x => format!("{:?}", x.map(f32::to_bits));
    Option<f64>, x => format!("{:?}", x.map(f64::to_bits));
}
impl<T: Clone + Eq + Hash + Send + Sync + 'static> ByValue for &&Fixed<'_, T> {
    fn fixed_key(&self) -> FixedKey {
        FixedKey(Some(Key::Value(Arc::new(self.0.clone()))))
    }
}
impl<T: 'static> ByType for Fixed<'_, T> {
    fn fixed_key(&self) -> FixedKey {
        FixedKey((size_of::<T>() == 0).then(|| Key::Type(TypeId::of::<T>())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! key {
        ($x:expr) => {
            (&&Fixed(&$x)).fixed_key()
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
            assert!(key.0.is_some());
        }
    }

    #[test]
    fn closures_are_compared_by_type_unless_they_capture() {
        let (n, plain) = (std::hint::black_box(2.0), |x: f32| x + 1.0);
        let (other, captures) = (|x: f32| x + 1.0, move |x: f32| x + n);
        assert_eq!(key!(plain), key!(plain));
        assert_ne!(key!(plain), key!(other));
        assert_eq!(key!(captures).0, None);
        assert_eq!((plain(1.0), other(1.0), captures(1.0)), (2.0, 2.0, 3.0));
    }
}
