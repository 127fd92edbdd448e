//! Values that are no arrays, as trees without leaves.
use super::{Fixed, Kind, Tree, Visitor, VisitorMut};
use std::ops::Deref;

/// A value that is no array, as an argument or a part of a tree: it has no leaves, and its value is part of the
/// structure.
///
/// A function of [`jit`](crate::jit()) is compiled again for each value of it, and may branch on it in Rust, as with
/// `static_argnums` in JAX. The value implements `Clone`, `Hash` and `Debug`; two are equal if their `Hash` writes
/// equal bytes.
///
/// ```
/// use pallas_rt::tree::{self, Static};
/// let power = (Static(3u32), ());
/// assert!(tree::leaves(&power).is_empty());
/// assert_eq!(tree::structure(&power).to_string(), "(Static(value = 3), ())");
/// assert_eq!(*power.0 + 1, 4);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Static<T>(pub T);

static STATIC_TREE_KIND: Kind =
    Kind { path: concat!(module_path!(), "::Static"), name: "Static", fields: None, fixed: &["value"] };

impl<T: Fixed + Clone> Tree for Static<T> {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        to.node(&STATIC_TREE_KIND, 0, &[&self.0]);
    }
    fn visit_mut<'a>(&'a mut self, _: &mut VisitorMut<'a>) {}
}

impl<T> Deref for Static<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}
