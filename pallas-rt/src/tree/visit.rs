//! Walks over a tree.
//!
//! A walk visits children recursively, but only a few levels deep: beyond them a child is put off, and so is everything
//! that comes after it, until the recursion has returned. Deep trees therefore need no deep stack, and nodes are still
//! visited in order.
use super::structure::{Fixed, Kind, Structure};
use crate::array::Array;
use std::fmt::{self, Write};

/// A value whose leaves are arrays. The [module](crate::tree) has an example.
///
/// `#[derive(Tree)]` implements it for structs and enums whose fields are trees. A field with `#[tree(fixed)]` is no
/// leaf but a part of the structure, like the variant of an enum, the length of a `Vec` and the keys of a map; it
/// implements `Clone`, `Hash` and `Debug`. Two fixed values are equal if their `Hash` writes equal bytes.
/// `#[tree(crate = path)]` on the type is the path of `pallas_rt`, if that is renamed.
///
/// An implementation by hand calls [`Visitor::node`] once, then [`Visitor::child`] for each child; `visit_mut` passes
/// the same children in the same order:
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::tree::{self, Kind, Segment, Visitor, VisitorMut};
///
/// #[derive(Clone)]
/// struct Pair(Array, Array);
///
/// static PAIR: Kind = Kind { path: concat!(module_path!(), "::Pair"), name: "Pair", fields: None, fixed: &[] };
///
/// impl Tree for Pair {
///     fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
///         to.node(&PAIR, 2, &[]);
///         to.child(Segment::Position(0), &self.0);
///         to.child(Segment::Position(1), &self.1);
///     }
///     fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
///         to.child(&mut self.0);
///         to.child(&mut self.1);
///     }
/// }
/// let x = Client::cpu().full(&[2], 1.0f32)?;
/// assert_eq!(tree::structure(&Pair(x.clone(), x)).to_string(), "Pair(*, *)");
/// # Ok::<(), Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no tree of arrays",
    label = "neither an array nor a container of trees",
    note = "write `#[derive(Clone, Tree)]` at the type if its fields are trees",
    note = "mark a field that is no array `#[tree(fixed)]`: its value becomes part of the structure"
)]
pub trait Tree: Clone {
    /// Describes the topmost node and passes its children to the visitor.
    fn visit<'a>(&'a self, to: &mut Visitor<'a>);

    /// Passes the children that [`visit`](Tree::visit) passes, in the same order, to be changed.
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>);
}

/// Maximum depth to which a walk over a tree recurses; nodes below it are kept in a list and visited afterwards, so
/// that a deep tree does not overflow the stack.
const MAX_RECURSION_LEVELS: usize = 32;

/// A step of a path from a node to one of its children.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segment<'a> {
    /// A field's name: `.weight`.
    Field(&'static str),
    /// A position in a tuple: `.0`.
    Position(usize),
    /// An index into a list: `[0]`.
    Index(usize),
    /// A key of a map: `["bias"]`.
    Key(&'a str),
}

/// Writes the step as a part of a path: `.weight`, `.0`, `[0]`, `["bias"]`.
impl fmt::Display for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Segment::Field(name) => write!(f, ".{name}"),
            Segment::Position(i) => write!(f, ".{i}"),
            Segment::Index(i) => write!(f, "[{i}]"),
            Segment::Key(key) => write!(f, "[{key:?}]"),
        }
    }
}

/// Selects what a walk collects besides the leaves.
#[derive(Clone, Copy, Default)]
pub(super) struct WalkOptions {
    pub structure: bool,
    /// The structure of each node without its children.
    pub levels: bool,
    pub paths: bool,
    /// The texts of fixed values, in structures.
    pub texts: bool,
}

/// Table of paths: each is the index of the parent node's path in the table and its own last segment. Whole texts would
/// take space that grows with the square of a tree's depth.
pub(super) type PathTable<S> = Vec<(usize, S)>;
/// Stands for the empty path, that of the root, in place of an index into a [`PathTable`].
const ROOT_PATH_INDEX: usize = usize::MAX;

/// Returns as text the path with this index in a [`PathTable`].
pub(super) fn path_text<S: fmt::Display>(steps: &[(usize, S)], path_index: usize) -> String {
    let mut segments = vec![];
    let mut at = path_index;
    while at != ROOT_PATH_INDEX {
        let (before, segment) = &steps[at];
        segments.push(segment);
        at = *before;
    }
    let mut text = String::new();
    segments.iter().rev().for_each(|segment| write!(text, "{segment}").expect("a string takes all"));
    // A field at the root has a dot in front, as in `.layers[0].weight`.
    if text.starts_with('.') {
        text.remove(0);
    }
    text
}

/// A walk over a tree: it is given the nodes in preorder, and collects leaves, structure and paths.
pub struct Visitor<'a> {
    wanted: WalkOptions,
    pub(super) leaves: Vec<&'a Array>,
    pub(super) structure: Structure,
    /// The structure of each node without its children, after the number of its path.
    pub(super) levels: Vec<(usize, Structure)>,
    pub(super) steps: PathTable<Segment<'a>>,
    /// By leaf, the number of its path.
    pub(super) places: Vec<usize>,
    /// The number of the path of the node that is visited.
    here: usize,
    depth: usize,
    /// Children that were put off since the recursion is too deep, with the numbers of their paths.
    later: Vec<(usize, &'a dyn DynTree)>,
}

/// Object-safe form of [`Tree`], by which children that are nested too deep for recursion are stored and visited later.
trait DynTree {
    fn dyn_visit<'a>(&'a self, to: &mut Visitor<'a>);
}
impl<T: Tree> DynTree for T {
    fn dyn_visit<'a>(&'a self, to: &mut Visitor<'a>) {
        self.visit(to);
    }
}

impl<'a> Visitor<'a> {
    /// Walks over a whole tree; returns the visitor with what it collected.
    pub(super) fn walk<T: Tree>(tree: &'a T, wanted: WalkOptions) -> Visitor<'a> {
        let mut visitor = Visitor {
            wanted,
            leaves: vec![],
            structure: Structure::default(),
            levels: vec![],
            steps: vec![],
            places: vec![],
            here: ROOT_PATH_INDEX,
            depth: 0,
            later: vec![],
        };
        tree.visit(&mut visitor);
        let mut stack = vec![];
        loop {
            stack.extend(visitor.later.drain(..).rev());
            let Some((path, child)) = stack.pop() else { return visitor };
            (visitor.here, visitor.depth) = (path, 0);
            child.dyn_visit(&mut visitor);
        }
    }

    /// Describes a node of a user's type: its kind, its number of children, and the values of its fixed fields in the
    /// order of [`Kind::fixed`].
    pub fn node(&mut self, kind: &'static Kind, children: usize, fixed: &[&dyn Fixed]) {
        let texts = self.wanted.texts;
        self.record_node(|structure| structure.push_node(kind, children, fixed, texts));
    }

    /// Records that the node which is visited is a list of `len` children; these follow by [`child`](Visitor::child).
    pub fn list(&mut self, len: usize) {
        self.record_node(|structure| structure.push_list(len));
    }

    /// Records that the node which is visited is a tuple of `len` children; these follow by [`child`](Visitor::child).
    pub fn tuple(&mut self, len: usize) {
        self.record_node(|structure| structure.push_tuple(len));
    }

    /// Describes a map with these keys, which are in order.
    pub fn map<'k>(&mut self, keys: impl ExactSizeIterator<Item = &'k str>) {
        self.record_node(|structure| structure.push_map(keys));
    }

    /// Records that the node which is visited is an `Option` without a value.
    pub fn none(&mut self) {
        self.record_node(Structure::push_none);
    }

    /// Records that the node which is visited is an `Option` with a value, which follows by [`child`](Visitor::child).
    pub fn some(&mut self) {
        self.record_node(Structure::push_some);
    }

    /// Appends a leaf to the collected leaves and to the structure, with its path if paths are collected.
    pub(super) fn push_leaf(&mut self, leaf: &'a Array) {
        self.leaves.push(leaf);
        if self.wanted.paths {
            self.places.push(self.here);
        }
        self.record_node(Structure::push_leaf);
    }

    /// Visits a child of the node that was described last.
    pub fn child<T: Tree>(&mut self, at: Segment<'a>, child: &'a T) {
        let mut path = ROOT_PATH_INDEX;
        if self.wanted.paths {
            path = self.steps.len();
            self.steps.push((self.here, at));
        }
        if self.depth == MAX_RECURSION_LEVELS || !self.later.is_empty() {
            self.later.push((path, child));
            return;
        }
        let here = std::mem::replace(&mut self.here, path);
        self.depth += 1;
        child.visit(self);
        self.depth -= 1;
        self.here = here;
    }

    /// Appends a node by `push_node` to the structure of the tree, or to one of its own if the walk collects the
    /// structure of each node separately; does nothing if it collects neither.
    fn record_node(&mut self, push_node: impl FnOnce(&mut Structure)) {
        if self.wanted.structure {
            push_node(&mut self.structure);
        } else if self.wanted.levels {
            let mut level = Structure::default();
            push_node(&mut level);
            self.levels.push((self.here, level));
        }
    }

    /// The texts of the paths of the leaves.
    pub(super) fn paths(&self) -> Vec<String> {
        self.places.iter().map(|&path| path_text(&self.steps, path)).collect()
    }
}

/// A walk over a tree whose leaves are to be changed.
pub struct VisitorMut<'a> {
    leaves: Vec<&'a mut Array>,
    depth: usize,
    later: Vec<&'a mut dyn DynTreeMut>,
}

/// Object-safe form of [`Tree`] for mutable visits, by which children that are nested too deep for recursion are stored
/// and visited later.
trait DynTreeMut {
    fn dyn_visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>);
}
impl<T: Tree> DynTreeMut for T {
    fn dyn_visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        self.visit_mut(to);
    }
}

impl<'a> VisitorMut<'a> {
    /// Walks over a whole tree; returns its leaves, to be changed.
    pub(super) fn collect_leaves<T: Tree>(tree: &'a mut T) -> Vec<&'a mut Array> {
        let mut visitor = VisitorMut { leaves: vec![], depth: 0, later: vec![] };
        tree.visit_mut(&mut visitor);
        let mut stack = vec![];
        loop {
            stack.extend(visitor.later.drain(..).rev());
            let Some(child) = stack.pop() else { return visitor.leaves };
            visitor.depth = 0;
            child.dyn_visit_mut(&mut visitor);
        }
    }

    /// Appends a leaf to the list of mutable leaves that the walk returns.
    pub(super) fn push_leaf(&mut self, leaf: &'a mut Array) {
        self.leaves.push(leaf);
    }

    /// Visits a child, in the order of [`Tree::visit`].
    pub fn child<T: Tree>(&mut self, child: &'a mut T) {
        if self.depth == MAX_RECURSION_LEVELS || !self.later.is_empty() {
            self.later.push(child);
            return;
        }
        self.depth += 1;
        child.visit_mut(self);
        self.depth -= 1;
    }
}

impl fmt::Debug for Visitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Visitor({} leaves)", self.leaves.len())
    }
}

impl fmt::Debug for VisitorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VisitorMut({} leaves)", self.leaves.len())
    }
}
