//! Trees of arrays: functions take and return structs, tuples, vectors and maps whose leaves are arrays.
//!
//! A model's parameters are a struct, a batch is a tuple, an optimizer's state has the parameters' structure. [`Tree`]
//! is implemented for [`Array`], tuples of up to eight trees, `Vec`, `Option`, `[T; N]`, `Box`, maps from `String` (in
//! the order of their keys), and `()`; `#[derive(Tree)]` implements it for structs and enums.
//!
//! ```
//! use pallas_rt::prelude::*;
//! use pallas_rt::tree;
//!
//! #[derive(Clone, Tree)]
//! struct Layer {
//!     weight: Array,
//!     bias: Option<Array>,
//!     #[tree(fixed)]
//!     activation: &'static str,
//! }
//! #[derive(Clone, Tree)]
//! struct Model {
//!     layers: Vec<Layer>,
//!     scale: Array,
//! }
//!
//! let array = |x: f32| Client::cpu().full(&[2], x);
//! let first = Layer { weight: array(1.0)?, bias: Some(array(2.0)?), activation: "relu" };
//! let second = Layer { weight: array(3.0)?, bias: None, activation: "none" };
//! let model = Model { layers: vec![first, second], scale: array(4.0)? };
//!
//! assert_eq!(tree::paths(&model), ["layers[0].weight", "layers[0].bias", "layers[1].weight", "scale"]);
//! assert_eq!(
//!     tree::structure(&model).to_string(),
//!     "Model { layers: [Layer { activation = \"relu\", weight: *, bias: * }, \
//!      Layer { activation = \"none\", weight: *, bias: None }], scale: * }"
//! );
//!
//! #[kernel(grid = (cdiv(N, 8)))]
//! fn sum(
//!     #[block([N] => [8], |i| (i,))] x: In<f32>,
//!     #[block([N] => [8], |i| (i,))] y: In<f32>,
//!     #[block([N] => [8], |i| (i,))] out: Out<f32>,
//! ) {
//!     out.store(x.load() + y.load());
//! }
//! let double = tree::map2(&model, &model, |x, y| sum(x, y))?;
//! assert_eq!(double.layers[1].weight.to_vec::<f32>()?, [6.0, 6.0]);
//! # Ok::<(), Error>(())
//! ```
//!
//! - `visit`: walks over a tree, without recursion for deep ones;
//! - `structure`: what a tree is besides its leaves; `outline`: the same by node, to find differences;
//! - `implementations`: the standard containers; `static_values`: values that are no arrays; `mapped`: trees with other
//!   leaves.
mod implementations;
mod mapped;
mod outline;
mod static_values;
mod structure;
mod visit;

pub use mapped::{Mapped, map_to, types};
pub(crate) use outline::{Outline, TreeDifference};
pub use static_values::Static;
pub use structure::{Fixed, Kind, Record, Structure};
pub use visit::{Segment, Tree, Visitor, VisitorMut};

use crate::array::Array;
use pallas_device::error::{Error, Result};
use pallas_ir::Loc;
use visit::WalkOptions;

/// Returns the leaves of a tree, in the order of its fields, elements and sorted keys. They share the tree's memory.
pub fn leaves<T: Tree>(tree: &T) -> Vec<Array> {
    borrow_leaves(tree).into_iter().cloned().collect()
}

/// Returns the leaves and the structure of a tree.
pub fn flatten<T: Tree>(tree: &T) -> (Vec<Array>, Structure) {
    let walk = Visitor::walk(tree, WalkOptions { structure: true, texts: true, ..WalkOptions::default() });
    (walk.leaves.into_iter().cloned().collect(), walk.structure)
}

/// Returns the leaves of a tree, borrowed, and its structure without the texts of fixed values, to compare with
/// another.
#[cfg(feature = "graph")]
pub(crate) fn leaves_and_structure<T: Tree>(tree: &T) -> (Vec<&Array>, Structure) {
    let walk = Visitor::walk(tree, WalkOptions { structure: true, ..WalkOptions::default() });
    (walk.leaves, walk.structure)
}

/// Returns the path of each leaf, as `layers[0].weight`; the path of a tree that is a leaf is empty.
pub fn paths<T: Tree>(tree: &T) -> Vec<String> {
    Visitor::walk(tree, WalkOptions { paths: true, ..WalkOptions::default() }).paths()
}

/// Returns the structure of a tree: everything but its leaves.
pub fn structure<T: Tree>(tree: &T) -> Structure {
    Visitor::walk(tree, WalkOptions { structure: true, texts: true, ..WalkOptions::default() }).structure
}

/// Returns a tree of the same structure with other leaves.
///
/// # Errors
/// [`Error::Tree`] if there are more or fewer leaves than the tree has.
#[track_caller]
pub fn rebuild<T: Tree>(tree: &T, leaves: impl IntoIterator<Item = Array>) -> Result<T> {
    let mut tree = tree.clone();
    replace(&mut tree, leaves)?;
    Ok(tree)
}

/// Replaces the leaves of a tree.
///
/// # Errors
/// [`Error::Tree`] if there are more or fewer leaves than the tree has, which then keeps its own.
#[track_caller]
pub fn replace<T: Tree>(tree: &mut T, leaves: impl IntoIterator<Item = Array>) -> Result<()> {
    let (places, leaves) = (VisitorMut::collect_leaves(tree), leaves.into_iter().collect::<Vec<Array>>());
    if places.len() != leaves.len() {
        let message = format!("the tree has {} leaves, {} were given", places.len(), leaves.len());
        return Err(Error::Tree { called: Loc::caller(), message });
    }
    for (place, leaf) in places.into_iter().zip(leaves) {
        *place = leaf;
    }
    Ok(())
}

/// Returns a tree of the same structure whose leaves are the results of `f`.
///
/// # Errors
/// The first error of `f`.
pub fn map<T: Tree>(tree: &T, mut f: impl FnMut(&Array) -> Result<Array>) -> Result<T> {
    let results = borrow_leaves(tree).into_iter().map(&mut f).collect::<Result<Vec<Array>>>()?;
    rebuild(tree, results)
}

/// [`map`] over the leaves of two trees of the same structure.
///
/// # Errors
/// [`Error::Tree`] with the first path at which the structures differ; the first error of `f`.
#[track_caller]
pub fn map2<T: Tree>(a: &T, b: &T, mut f: impl FnMut(&Array, &Array) -> Result<Array>) -> Result<T> {
    check_equal_structures(&[a, b])?;
    let leaves = borrow_leaves(a).into_iter().zip(borrow_leaves(b));
    let results = leaves.map(|(x, y)| f(x, y)).collect::<Result<Vec<Array>>>()?;
    rebuild(a, results)
}

/// [`map`] over the leaves of three trees of the same structure.
///
/// # Errors
/// As for [`map2`].
#[track_caller]
pub fn map3<T: Tree>(a: &T, b: &T, c: &T, mut f: impl FnMut(&Array, &Array, &Array) -> Result<Array>) -> Result<T> {
    check_equal_structures(&[a, b, c])?;
    let leaves = borrow_leaves(a).into_iter().zip(borrow_leaves(b)).zip(borrow_leaves(c));
    let results = leaves.map(|((x, y), z)| f(x, y, z)).collect::<Result<Vec<Array>>>()?;
    rebuild(a, results)
}

/// Returns the leaves of a tree without cloning them.
fn borrow_leaves<T: Tree>(tree: &T) -> Vec<&Array> {
    Visitor::walk(tree, WalkOptions::default()).leaves
}

/// Returns an error if the structure of a tree is not that of the first one.
#[track_caller]
fn check_equal_structures<T: Tree>(trees: &[&T]) -> Result<()> {
    let wanted = WalkOptions { structure: true, ..WalkOptions::default() };
    let first = Visitor::walk(trees[0], wanted).structure;
    for (other, name) in trees[1..].iter().zip(["second", "third"]) {
        if Visitor::walk(*other, wanted).structure != first {
            return Err(Error::Tree { called: Loc::caller(), message: difference_message(trees[0], other, name) });
        }
    }
    Ok(())
}

/// The message about the first node at which two trees differ; `name` is that of the second tree.
fn difference_message<T: Tree>(a: &T, b: &T, name: &str) -> String {
    let Some(TreeDifference { path, old, new, .. }) = Outline::from_tree(a).first_difference(&Outline::from_tree(b))
    else {
        return format!("the {name} tree has another number of nodes than the first");
    };
    let place = if path.is_empty() { "the root".into() } else { format!("`{path}`") };
    format!("the trees differ at {place}: the first has {old}, the {name} {new}")
}
