//! Trees whose leaves are no arrays: shapes, names, numbers.
use super::visit::{Visitor, WalkOptions};
use super::{Structure, Tree};
use crate::array::Array;
use pallas_device::error::{Error, Result};
use pallas_ir::{Loc, Type};
use std::fmt;

/// A tree with the structure of a tree of arrays, and leaves of another type. [`map_to`] makes one.
///
/// It prints as a [`Structure`] does, with its leaves in place of the stars.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapped<L> {
    structure: Structure,
    paths: Vec<String>,
    leaves: Vec<L>,
}

/// Returns a tree of the same structure whose leaves are the results of `f`, of any type.
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::tree;
/// let pair = (Array::zeros(&[3], DType::F32)?, vec![Array::zeros(&[2, 2], DType::I32)?]);
/// let ranks = tree::map_to(&pair, |x| x.rank());
/// assert_eq!(ranks.to_string(), "(1, [2])");
/// assert_eq!(ranks.get("1[0]"), Some(&2));
/// # Ok::<(), Error>(())
/// ```
pub fn map_to<T: Tree, L>(tree: &T, f: impl FnMut(&Array) -> L) -> Mapped<L> {
    let wanted = WalkOptions { structure: true, texts: true, paths: true, ..WalkOptions::default() };
    let walk = Visitor::walk(tree, wanted);
    let paths = walk.paths();
    Mapped { leaves: walk.leaves.into_iter().map(f).collect(), structure: walk.structure, paths }
}

/// Returns the element types and shapes of a tree's leaves.
pub fn types<T: Tree>(tree: &T) -> Mapped<Type> {
    map_to(tree, |x| Type::new(x.dtype(), x.shape()))
}

impl<L> Mapped<L> {
    /// The leaves, in the order of [`leaves`](super::leaves).
    pub fn leaves(&self) -> &[L] {
        &self.leaves
    }

    /// The path of each leaf, as those of [`paths`](super::paths).
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// The structure of the tree: everything but its leaves.
    pub fn structure(&self) -> &Structure {
        &self.structure
    }

    /// The leaf with this path; `None` if no leaf has it.
    pub fn get(&self, path: &str) -> Option<&L> {
        self.paths.iter().position(|own| own == path).map(|i| &self.leaves[i])
    }

    /// Maps the leaves: returns a tree of the same structure whose leaves are the results of `f`.
    pub fn map<M>(&self, f: impl FnMut(&L) -> M) -> Mapped<M> {
        let leaves = self.leaves.iter().map(f).collect();
        Mapped { structure: self.structure.clone(), paths: self.paths.clone(), leaves }
    }

    /// [`map`](Mapped::map) with a function that may fail.
    ///
    /// # Errors
    /// The first error of `f`.
    pub fn try_map<M>(&self, f: impl FnMut(&L) -> Result<M>) -> Result<Mapped<M>> {
        let leaves = self.leaves.iter().map(f).collect::<Result<_>>()?;
        Ok(Mapped { structure: self.structure.clone(), paths: self.paths.clone(), leaves })
    }

    /// [`map`](Mapped::map) over the leaves of two trees of the same structure.
    ///
    /// # Errors
    /// [`Error::Tree`] if the structures differ; the first error of `f`.
    #[track_caller]
    pub fn map2<M, N>(&self, other: &Mapped<M>, mut f: impl FnMut(&L, &M) -> Result<N>) -> Result<Mapped<N>> {
        if self.structure != other.structure {
            let message = format!("the first tree is {}, the second {}", self.structure, other.structure);
            return Err(Error::Tree { called: Loc::caller(), message });
        }
        let leaves = self.leaves.iter().zip(&other.leaves).map(|(x, y)| f(x, y)).collect::<Result<_>>()?;
        Ok(Mapped { structure: self.structure.clone(), paths: self.paths.clone(), leaves })
    }

    /// A tree of arrays like `tree`, which has the same structure as this one: each leaf is the result of `f` for the
    /// leaf of `tree` and that of this tree.
    ///
    /// # Errors
    /// [`Error::Tree`] if the structures differ; the first error of `f`.
    #[track_caller]
    pub fn map_with<T: Tree>(&self, tree: &T, mut f: impl FnMut(&Array, &L) -> Result<Array>) -> Result<T> {
        if !self.structure.is_of(tree) {
            let message = format!("the tree is {}, this one {}", super::structure(tree), self.structure);
            return Err(Error::Tree { called: Loc::caller(), message });
        }
        let leaves = super::leaves(tree);
        let results = leaves.iter().zip(&self.leaves).map(|(x, y)| f(x, y)).collect::<Result<Vec<Array>>>()?;
        super::rebuild(tree, results)
    }
}

impl<L: fmt::Display> fmt::Display for Mapped<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut leaves = self.leaves.iter();
        self.structure.write(f, &mut |f| leaves.next().map_or(Ok(()), |leaf| write!(f, "{leaf}")))
    }
}
