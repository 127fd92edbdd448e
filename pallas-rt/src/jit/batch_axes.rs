//! The axes of a batch in the leaves of trees, as options of `vmap`.
use crate::tree::{Mapped, Structure};

/// Axes of a batch for the leaves of a tree: `Some(axis)`, where negative ones count from the end, or `None` for leaves
/// that are the same for all examples.
///
/// It is one of both, which holds for all leaves; or a list or tuple with an entry for each child of the tree (argument,
/// element, or field in the order of its declaration), each of which is again any of these; or an entry for each leaf; or
/// a tree of the same structure ([`tree::map_to`](crate::tree::map_to)). A number is an axis, too: `(None, 0)` is
/// `(None, Some(0))`.
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

    /// The only entry, if this is a list of one.
    pub(super) fn single_entry(&self) -> Option<&BatchAxes> {
        match &self.0 {
            BatchAxesForm::EachChild(all) if all.len() == 1 => all.first(),
            BatchAxesForm::AllLeaves(_) | BatchAxesForm::EachChild(_) | BatchAxesForm::LeafAxes(..) => None,
        }
    }

    /// Appends the axes of the leaves below the node `at`; returns the index of the node after them. Nodes are in
    /// preorder, each as the number of its children, or [`Structure::LEAF`].
    fn push_leaf_axes(&self, nodes: &[usize], at: usize, leaves: &mut Vec<Option<isize>>) -> Result<usize, String> {
        let end = subtree_end(nodes, at);
        let is_leaf = |&&node: &&usize| node == Structure::LEAF_MARKER;
        let count = nodes[at..end].iter().filter(is_leaf).count();
        match &self.0 {
            BatchAxesForm::AllLeaves(axis) => leaves.extend(std::iter::repeat_n(*axis, count)),
            BatchAxesForm::LeafAxes(own, axes) if own[..] == nodes[at..end] => leaves.extend(axes),
            BatchAxesForm::LeafAxes(..) => return Err("a tree of axes of another structure".into()),
            BatchAxesForm::EachChild(all) => {
                // An `Option` that has a value is no level of its own.
                let mut node = at;
                while nodes[node] == 1 && all.len() != 1 {
                    node += 1;
                }
                let by_leaf: Option<Vec<Option<isize>>> = all.iter().map(BatchAxes::common_axis).collect();
                if nodes[node] != Structure::LEAF_MARKER && nodes[node] == all.len() {
                    let mut next = node + 1;
                    for one in all {
                        next = one.push_leaf_axes(nodes, next, leaves)?;
                    }
                } else if let Some(axes) = by_leaf.filter(|axes| axes.len() == count) {
                    leaves.extend(axes);
                } else {
                    let of = if nodes[node] == Structure::LEAF_MARKER { 0 } else { nodes[node] };
                    return Err(format!("{} axes for {of} children with {count} arrays", all.len()));
                }
            }
        }
        Ok(end)
    }

    /// The axis that holds for all leaves, if this is one.
    fn common_axis(&self) -> Option<Option<isize>> {
        match self.0 {
            BatchAxesForm::AllLeaves(axis) => Some(axis),
            BatchAxesForm::EachChild(_) | BatchAxesForm::LeafAxes(..) => None,
        }
    }
}

/// The index of the node after all nodes below the node `at`.
fn subtree_end(nodes: &[usize], at: usize) -> usize {
    let (mut end, mut open) = (at, 1);
    while open > 0 {
        let children = if nodes[end] == Structure::LEAF_MARKER { 0 } else { nodes[end] };
        open = open - 1 + children;
        end += 1;
    }
    end
}
