//! The nodes of a tree without its leaves' contents, to find where two trees differ.
use super::structure::Structure;
use super::visit::{PathTable, Tree, Visitor, WalkOptions, path_text};

/// The nodes of a tree in preorder with their paths, each as a structure without children, so that two trees can be
/// compared node by node.
#[derive(Clone, Debug)]
pub(crate) struct Outline {
    nodes: Vec<(usize, Structure)>,
    steps: PathTable<String>,
    /// By leaf, the number of its path.
    leaves: Vec<usize>,
}

/// A node at which two trees differ.
pub(crate) struct TreeDifference {
    /// The path of the node, which is empty for the root.
    pub path: String,
    /// The node of the first tree in words.
    pub old: String,
    /// The node of the second tree in words.
    pub new: String,
    /// True if nothing but values of fixed fields differs.
    pub is_fixed: bool,
}

impl Outline {
    pub(crate) fn from_tree<T: Tree>(tree: &T) -> Outline {
        let walk =
            Visitor::walk(tree, WalkOptions { levels: true, paths: true, texts: true, ..WalkOptions::default() });
        let steps = walk.steps.iter().map(|(before, segment)| (*before, segment.to_string())).collect();
        Outline { nodes: walk.levels, steps, leaves: walk.places }
    }

    /// The path of the leaf with this index.
    #[cfg(feature = "graph")]
    pub(crate) fn leaf_path(&self, leaf: usize) -> String {
        path_text(&self.steps, self.leaves[leaf])
    }

    /// The first difference from another tree; `None` if the trees have equal structures.
    pub(crate) fn first_difference(&self, other: &Outline) -> Option<TreeDifference> {
        self.differences(other).into_iter().next()
    }

    /// Returns the differences from another tree in preorder: nodes of which only values of fixed fields differ, up to
    /// the first node that differs in more, with that one.
    pub(crate) fn differences(&self, other: &Outline) -> Vec<TreeDifference> {
        let mut all = vec![];
        // The paths are equal up to the first difference in more than values.
        for ((path, x), (_, y)) in self.nodes.iter().zip(&other.nodes).filter(|((_, x), (_, y))| x != y) {
            let is_fixed = x.has_same_root_kind(y);
            all.push(TreeDifference {
                path: path_text(&self.steps, *path),
                old: x.describe_root(),
                new: y.describe_root(),
                is_fixed,
            });
            if !is_fixed {
                return all;
            }
        }
        if self.nodes.len() != other.nodes.len() {
            let count = |outline: &Outline| format!("{} nodes", outline.nodes.len());
            all.push(TreeDifference { path: String::new(), old: count(self), new: count(other), is_fixed: false });
        }
        all
    }
}
