//! Trees of the standard library's containers.
use super::{Segment, Tree, Visitor, VisitorMut};
use crate::array::Array;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;

/// An array is a leaf.
impl Tree for Array {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        to.push_leaf(self);
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        to.push_leaf(self);
    }
}

/// A `Box` has the structure and paths of its content.
impl<T: Tree> Tree for Box<T> {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        (**self).visit(to);
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        (**self).visit_mut(to);
    }
}

/// An `Option` has the leaves and paths of its content, or no leaves.
impl<T: Tree> Tree for Option<T> {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        match self {
            Some(x) => {
                to.some();
                x.visit(to);
            }
            None => to.none(),
        }
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        if let Some(x) = self {
            x.visit_mut(to);
        }
    }
}

/// Describes a list and visits its items.
fn visit_list<'a, T: Tree>(items: &'a [T], to: &mut Visitor<'a>) {
    to.list(items.len());
    for (i, item) in items.iter().enumerate() {
        to.child(Segment::Index(i), item);
    }
}

impl<T: Tree> Tree for Vec<T> {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        visit_list(self, to);
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        self.iter_mut().for_each(|item| to.child(item));
    }
}

impl<T: Tree, const N: usize> Tree for [T; N] {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        visit_list(self, to);
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        self.iter_mut().for_each(|item| to.child(item));
    }
}

impl<T: Tree> Tree for BTreeMap<String, T> {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        to.map(self.keys().map(String::as_str));
        for (key, item) in self {
            to.child(Segment::Key(key), item);
        }
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        self.values_mut().for_each(|item| to.child(item));
    }
}

/// The children of a map are in the order of the keys.
impl<T: Tree, S: BuildHasher + Clone> Tree for HashMap<String, T, S> {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        let mut entries: Vec<(&String, &T)> = self.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        to.map(entries.iter().map(|(key, _)| key.as_str()));
        for (key, item) in entries {
            to.child(Segment::Key(key), item);
        }
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        let mut entries: Vec<(&String, &mut T)> = self.iter_mut().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.into_iter().for_each(|(_, item)| to.child(item));
    }
}

impl Tree for () {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        to.tuple(0);
    }
    fn visit_mut<'a>(&'a mut self, _: &mut VisitorMut<'a>) {}
}

/// Implements `Tree` for `(A,)`, `(A, B)` and so on, up to eight.
macro_rules! tuple {
    ($($name:ident $item:ident $at:tt),*) => {
        impl<$($name: Tree),*> Tree for ($($name,)*) {
            fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
                to.tuple([$($at),*].len());
                $(to.child(Segment::Position($at), &self.$at);)*
            }
            fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
                $(to.child(&mut self.$at);)*
            }
        }
    };
}
tuples! { tuple }
