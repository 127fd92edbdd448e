//! The axes of a batch in the leaves of trees, as options of `vmap`.
use crate::tree::{Mapped, Structure};

/// Axes of a batch for the leaves of a tree: `Some(axis)`, where negative ones count from the end, or `None` for leaves
/// that are the same for all examples.
///
/// It is one of both, which holds for all leaves; or a list or tuple with an entry for each child of the tree
/// (argument, element, or field in the order of its declaration), each of which is again any of these; or an entry for
/// each leaf; or a tree of the same structure ([`tree::map_to`](crate::tree::map_to)). A number is an axis, too:
/// `(None, 0)` is `(None, Some(0))`.
///
/// ```
/// use pallas_rt::{Array, vmap};
/// let f = |(w, b): &(Array, Array), x: &Array| w * x + b;
/// // A bias for each example, which the weight and the input share.
/// let f = vmap(f).in_axes(((None, 0), None));
/// let (w, b) = (Array::from_slice(&[2.0f32], &[])?, Array::from_slice(&[1.0f32, 2.0], &[2])?);
/// let y = f(&(w.clone(), b), &w)?;
/// assert_eq!(y.to_vec::<f32>()?, [5.0, 6.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct BatchAxes(BatchAxesForm);

/// The form in which axes were given: one for all leaves, a list for the children of a node, or a tree.
#[derive(Clone, PartialEq, Debug)]
enum BatchAxesForm {
    AllLeaves(Option<isize>),
    EachChild(Vec<BatchAxes>),
    /// An axis for each leaf of a tree; the first list has the number of children of each of its nodes, in preorder.
    LeafAxes(Vec<usize>, Vec<Option<isize>>),
}

impl From<Option<isize>> for BatchAxes {
    fn from(axis: Option<isize>) -> BatchAxes {
        BatchAxes(BatchAxesForm::AllLeaves(axis))
    }
}
impl From<isize> for BatchAxes {
    fn from(axis: isize) -> BatchAxes {
        Some(axis).into()
    }
}
impl<T: Into<BatchAxes>, const N: usize> From<[T; N]> for BatchAxes {
    fn from(all: [T; N]) -> BatchAxes {
        BatchAxes(BatchAxesForm::EachChild(all.into_iter().map(Into::into).collect()))
    }
}
impl<T: Into<BatchAxes>> From<Vec<T>> for BatchAxes {
    fn from(all: Vec<T>) -> BatchAxes {
        BatchAxes(BatchAxesForm::EachChild(all.into_iter().map(Into::into).collect()))
    }
}
impl<T: Into<BatchAxes> + Clone> From<&[T]> for BatchAxes {
    fn from(all: &[T]) -> BatchAxes {
        all.to_vec().into()
    }
}
impl From<Mapped<Option<isize>>> for BatchAxes {
    fn from(tree: Mapped<Option<isize>>) -> BatchAxes {
        BatchAxes(BatchAxesForm::LeafAxes(tree.structure().child_counts(), tree.leaves().to_vec()))
    }
}

macro_rules! tuple {
    ($($T:ident $t:ident $i:tt),+) => {
        impl<$($T: Into<BatchAxes>),+> From<($($T,)+)> for BatchAxes {
            fn from(($($t,)+): ($($T,)+)) -> BatchAxes {
                BatchAxes(BatchAxesForm::EachChild(vec![$($t.into()),+]))
            }
        }
    };
}
tuples! { tuple }

impl BatchAxes {
    /// The axis of each leaf of a tree.
    ///
    /// # Errors
    /// Axes that do not fit the tree: what was given and what the tree has, in words.
    pub(super) fn leaf_axes(&self, structure: &Structure) -> Result<Vec<Option<isize>>, String> {
        let nodes = structure.child_counts();
        let mut leaves = vec![];
        let end = self.push_leaf_axes(&nodes, 0, &mut leaves)?;
        debug_assert_eq!((end, leaves.len()), (nodes.len(), structure.leaves()));
        Ok(leaves)
    }

    /// Returns the only entry if these axes are a list with one entry, else `None`.
    pub(super) fn single_entry(&self) -> Option<&BatchAxes> {
        match &self.0 {
            BatchAxesForm::EachChild(all) if all.len() == 1 => all.first(),
            BatchAxesForm::AllLeaves(_) | BatchAxesForm::EachChild(_) | BatchAxesForm::LeafAxes(..) => None,
        }
    }

    /// Appends the axes of the leaves in the subtree of the node with index `node_index`; returns the index of the
    /// first node after that subtree. `child_counts` has the number of children of each node in preorder, or
    /// [`Structure::LEAF_MARKER`] for a leaf.
    fn push_leaf_axes(
        &self,
        child_counts: &[usize],
        node_index: usize,
        leaves: &mut Vec<Option<isize>>,
    ) -> Result<usize, String> {
        let end = subtree_end(child_counts, node_index);
        let is_leaf = |&&node: &&usize| node == Structure::LEAF_MARKER;
        let count = child_counts[node_index..end].iter().filter(is_leaf).count();
        match &self.0 {
            BatchAxesForm::AllLeaves(axis) => leaves.extend(std::iter::repeat_n(*axis, count)),
            BatchAxesForm::LeafAxes(own, axes) if own[..] == child_counts[node_index..end] => leaves.extend(axes),
            BatchAxesForm::LeafAxes(..) => return Err("a tree of axes of another structure".into()),
            BatchAxesForm::EachChild(all) => {
                // An `Option` that has a value is no level of its own.
                let mut node = node_index;
                while child_counts[node] == 1 && all.len() != 1 {
                    node += 1;
                }
                let by_leaf: Option<Vec<Option<isize>>> = all.iter().map(BatchAxes::common_axis).collect();
                if child_counts[node] != Structure::LEAF_MARKER && child_counts[node] == all.len() {
                    let mut next = node + 1;
                    for one in all {
                        next = one.push_leaf_axes(child_counts, next, leaves)?;
                    }
                } else if let Some(axes) = by_leaf.filter(|axes| axes.len() == count) {
                    leaves.extend(axes);
                } else {
                    let of = if child_counts[node] == Structure::LEAF_MARKER { 0 } else { child_counts[node] };
                    return Err(format!("{} axes for {of} children with {count} arrays", all.len()));
                }
            }
        }
        Ok(end)
    }

    /// Returns the one axis that is given for all leaves, where `Some(None)` says that the leaves have no batch axis;
    /// `None` if axes are given by child or by leaf.
    fn common_axis(&self) -> Option<Option<isize>> {
        match self.0 {
            BatchAxesForm::AllLeaves(axis) => Some(axis),
            BatchAxesForm::EachChild(_) | BatchAxesForm::LeafAxes(..) => None,
        }
    }
}

/// Returns the index of the first node after the subtree of the node with index `node_index`.
fn subtree_end(child_counts: &[usize], node_index: usize) -> usize {
    let (mut end, mut open) = (node_index, 1);
    while open > 0 {
        let children = if child_counts[end] == Structure::LEAF_MARKER { 0 } else { child_counts[end] };
        open = open - 1 + children;
        end += 1;
    }
    end
}
