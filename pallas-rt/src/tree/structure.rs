//! The structure of a tree: everything but its leaves, flat, so that it is compared without following pointers.
use super::visit::{Tree, Visitor, WalkOptions};
use std::fmt;
use std::hash::{Hash, Hasher};

/// The kind of a tree's node: a struct, or a variant of an enum.
#[derive(Debug)]
pub struct Kind {
    /// The type with its module, and the variant: types with equal paths are the same type.
    pub path: &'static str,
    /// The name that is printed: `Model`, `Activation::Relu`.
    pub name: &'static str,
    /// The names of the children; `None` for a tuple struct, whose children have positions.
    pub fields: Option<&'static [&'static str]>,
    /// The names or positions of the fields with `#[tree(fixed)]`.
    pub fixed: &'static [&'static str],
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        std::ptr::eq(self, other) || self.path == other.path
    }
}
impl Eq for Kind {}
impl Hash for Kind {
    fn hash<H: Hasher>(&self, to: &mut H) {
        self.path.hash(to);
    }
}

/// The value of a field with `#[tree(fixed)]`: part of the structure, compared by the bytes that its `Hash` writes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be the type of a field with `#[tree(fixed)]`",
    label = "it does not implement `Hash` and `Debug`",
    note = "fixed values are compared by the bytes that `Hash` writes; for a float, keep its bits: `x.to_bits()`"
)]
pub trait Fixed: fmt::Debug {
    /// Writes the value to `to` by its `Hash`.
    fn record(&self, to: &mut Record<'_>);
}
#[diagnostic::do_not_recommend]
impl<T: Hash + fmt::Debug> Fixed for T {
    fn record(&self, to: &mut Record<'_>) {
        self.hash(to);
    }
}

/// A hasher that keeps all bytes it is given.
#[derive(Debug)]
pub struct Record<'a>(&'a mut Vec<u8>);

impl Hasher for Record<'_> {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }
    /// Returns 0, since values are compared by their bytes.
    fn finish(&self) -> u64 {
        0
    }
}

/// Everything about a tree but its leaves: types, variants, lengths, keys and fixed values.
///
/// Structures are equal if these are, and print as `Model { layers: [Layer { weight: *, bias: None }] }`, with `*` for
/// a leaf and `name = value` for a fixed field. `Some(x)` prints as `x`, and a `Box` is as its content.
#[derive(Clone, Default)]
pub struct Structure {
    /// For each node in preorder its tag and number of children as one word; then, for a map, the lengths of its keys,
    /// and for a struct the number and the lengths of its fixed values.
    words: Vec<usize>,
    /// The bytes of keys and fixed values.
    bytes: Vec<u8>,
    /// The kinds of the nodes that are structs or variants.
    kinds: Vec<&'static Kind>,
    /// The texts of fixed values, for printing. May be missing, and are not compared.
    texts: Vec<String>,
    leaves: usize,
}

/// Number of tags. The word of a node is its tag plus this number times the number of its children.
const TAG_COUNT: usize = 8;
const LEAF_TAG: usize = 0;
const NONE_TAG: usize = 1;
const LIST_TAG: usize = 2;
const TUPLE_TAG: usize = 3;
const MAP_TAG: usize = 4;
const SOME_TAG: usize = 5;
const USER_TYPE_TAG: usize = 6;

impl Structure {
    /// Number of leaves.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// Value that stands for a leaf in a list of numbers of children.
    #[cfg(feature = "graph")]
    pub(crate) const LEAF_MARKER: usize = usize::MAX;

    /// Returns the number of children of each node in preorder, or [`LEAF_MARKER`](Structure::LEAF_MARKER) for a leaf.
    #[cfg(feature = "graph")]
    pub(crate) fn child_counts(&self) -> Vec<usize> {
        let mut reader = StructureReader::from_structure(self);
        let mut all = vec![];
        loop {
            let is_leaf = reader.words.as_slice().first() == Some(&LEAF_TAG);
            let Some(node) = reader.next_node() else { return all };
            all.push(if is_leaf { Structure::LEAF_MARKER } else { node.count });
        }
    }

    /// Returns true if a tree has this structure. Faster than a comparison with the tree's own, which would format
    /// fixed values.
    pub fn is_of<T: Tree>(&self, tree: &T) -> bool {
        Visitor::walk(tree, WalkOptions { structure: true, ..WalkOptions::default() }).structure == *self
    }

    pub(super) fn push_leaf(&mut self) {
        self.leaves += 1;
        self.words.push(LEAF_TAG);
    }

    pub(super) fn push_none(&mut self) {
        self.words.push(NONE_TAG);
    }

    pub(super) fn push_some(&mut self) {
        self.words.push(SOME_TAG + TAG_COUNT);
    }

    pub(super) fn push_list(&mut self, len: usize) {
        self.words.push(LIST_TAG + TAG_COUNT * len);
    }

    pub(super) fn push_tuple(&mut self, len: usize) {
        self.words.push(TUPLE_TAG + TAG_COUNT * len);
    }

    pub(super) fn push_map<'k>(&mut self, keys: impl ExactSizeIterator<Item = &'k str>) {
        self.words.push(MAP_TAG + TAG_COUNT * keys.len());
        for key in keys {
            self.words.push(key.len());
            self.bytes.extend(key.as_bytes());
        }
    }

    /// Appends a struct or variant with its fixed values; their texts are kept if `keeps_texts` is true.
    pub(super) fn push_node(&mut self, kind: &'static Kind, children: usize, fixed: &[&dyn Fixed], keeps_texts: bool) {
        self.words.push(USER_TYPE_TAG + TAG_COUNT * children);
        self.words.push(fixed.len());
        self.kinds.push(kind);
        for value in fixed {
            let before = self.bytes.len();
            value.record(&mut Record(&mut self.bytes));
            self.words.push(self.bytes.len() - before);
            if keeps_texts {
                self.texts.push(format!("{value:?}"));
            }
        }
    }

    /// Returns true if the topmost nodes of both are of the same struct or variant, and have as many children.
    pub(super) fn has_same_root_kind(&self, other: &Structure) -> bool {
        !self.kinds.is_empty() && self.kinds.first() == other.kinds.first() && self.words.first() == other.words.first()
    }

    /// The topmost node in words, for messages.
    pub(super) fn describe_root(&self) -> String {
        let count = self.words.first().map_or(0, |word| word / TAG_COUNT);
        match self.words.first().map(|word| word % TAG_COUNT) {
            None => "nothing".into(),
            Some(LEAF_TAG) => "an array".into(),
            Some(NONE_TAG) => "`None`".into(),
            Some(SOME_TAG) => "`Some`".into(),
            Some(LIST_TAG) => format!("a list of {count}"),
            Some(TUPLE_TAG) => format!("a tuple of {count}"),
            Some(MAP_TAG) => match StructureReader::from_structure(self).next_node() {
                Some(PrintedNode { labels: ChildLabels::Keys(keys), .. }) => format!("a map with the keys {keys:?}"),
                _ => format!("a map of {count}"),
            },
            Some(_) => {
                let name = self.kinds.first().map_or("", |kind| kind.name);
                let fixed = self.kinds.first().map_or(&[][..], |kind| kind.fixed).iter().zip(&self.texts);
                let fixed: Vec<String> = fixed.map(|(name, text)| format!("{name} = {text}")).collect();
                if fixed.is_empty() { format!("`{name}`") } else { format!("`{name}` with {}", fixed.join(", ")) }
            }
        }
    }
}

impl PartialEq for Structure {
    fn eq(&self, other: &Structure) -> bool {
        // Word by word: the words of arguments have just been written, and vectors of several would wait for them. Most
        // have no bytes: where `memcmp` reads vectors through masks, no bytes at no address take as long as a page that
        // is not there.
        self.words.iter().eq(&other.words)
            && self.bytes.len() == other.bytes.len()
            && (self.bytes.is_empty() || self.bytes == other.bytes)
            && self.kinds == other.kinds
    }
}
impl Eq for Structure {}
impl Hash for Structure {
    fn hash<H: Hasher>(&self, to: &mut H) {
        (&self.words, &self.bytes, &self.kinds).hash(to);
    }
}

/// The names of a node's children.
enum ChildLabels<'a> {
    /// The children have positions, which are not printed.
    None,
    Fields(&'static [&'static str]),
    Keys(Vec<&'a str>),
}

/// Reads the nodes of a structure in order.
struct StructureReader<'a> {
    words: std::slice::Iter<'a, usize>,
    bytes: &'a [u8],
    kinds: std::slice::Iter<'a, &'static Kind>,
    texts: std::slice::Iter<'a, String>,
}

impl<'a> StructureReader<'a> {
    fn from_structure(structure: &'a Structure) -> StructureReader<'a> {
        StructureReader {
            words: structure.words.iter(),
            bytes: &structure.bytes,
            kinds: structure.kinds.iter(),
            texts: structure.texts.iter(),
        }
    }

    /// Returns the next bytes of the structure: a key of a map, or the value of a fixed field; `None` if no more are
    /// stored.
    fn next_bytes(&mut self) -> Option<&'a [u8]> {
        let (front, rest) = self.bytes.split_at_checked(*self.words.next()?)?;
        self.bytes = rest;
        Some(front)
    }

    /// Returns the next node of the structure in preorder; `None` at the end, which comes early if a
    /// [`Tree`](super::Tree) that a user implemented visits fewer children than it announced.
    fn next_node(&mut self) -> Option<PrintedNode<'a>> {
        let word = *self.words.next()?;
        let count = word / TAG_COUNT;
        let (open, labels, close) = match word % TAG_COUNT {
            LEAF_TAG => ("*".into(), ChildLabels::None, ""),
            NONE_TAG => ("None".into(), ChildLabels::None, ""),
            SOME_TAG => match self.words.as_slice().first().map(|word| word % TAG_COUNT) {
                Some(SOME_TAG | NONE_TAG) => ("Some(".into(), ChildLabels::None, ")"),
                _ => (String::new(), ChildLabels::None, ""),
            },
            LIST_TAG => ("[".into(), ChildLabels::None, "]"),
            TUPLE_TAG => ("(".into(), ChildLabels::None, if count == 1 { ",)" } else { ")" }),
            MAP_TAG => {
                let mut key = || self.next_bytes().and_then(|bytes| std::str::from_utf8(bytes).ok());
                ("{".into(), ChildLabels::Keys((0..count).map(|_| key()).collect::<Option<_>>()?), "}")
            }
            _ => {
                let (kind, values) = (*self.kinds.next()?, *self.words.next()?);
                let mut fixed = vec![];
                for i in 0..values {
                    self.next_bytes()?;
                    let text = self.texts.next().map_or("..", String::as_str);
                    fixed.push(format!("{} = {text}", kind.fixed.get(i).unwrap_or(&"_")));
                }
                let (open, labels, close) = match kind.fields {
                    _ if count == 0 && values == 0 => ("", ChildLabels::None, ""),
                    Some(fields) => (" { ", ChildLabels::Fields(fields), " }"),
                    None => ("(", ChildLabels::None, ")"),
                };
                let between = if count > 0 && values > 0 { ", " } else { "" };
                (format!("{}{open}{}{between}", kind.name, fixed.join(", ")), labels, close)
            }
        };
        Some(PrintedNode { open, labels, count, begun: 0, close })
    }
}

/// State of printing a node: its labels, and the texts before and after its children.
struct PrintedNode<'a> {
    /// The text before its children.
    open: String,
    labels: ChildLabels<'a>,
    /// Number of children.
    count: usize,
    /// Number of children that were begun to be printed.
    begun: usize,
    /// The text after its children.
    close: &'static str,
}

impl Structure {
    /// Writes the structure; `leaf` writes a leaf.
    pub(super) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        leaf: &mut dyn FnMut(&mut fmt::Formatter<'_>) -> fmt::Result,
    ) -> fmt::Result {
        let (mut reader, mut stack): (StructureReader<'_>, Vec<PrintedNode<'_>>) =
            (StructureReader::from_structure(self), vec![]);
        loop {
            let is_leaf = reader.words.as_slice().first() == Some(&LEAF_TAG);
            let Some(node) = reader.next_node() else { break };
            if is_leaf {
                leaf(f)?;
            } else {
                f.write_str(&node.open)?;
            }
            stack.push(node);
            // Ends nodes without further children, then begins the next child.
            while let Some(node) = stack.pop_if(|node| node.begun == node.count) {
                f.write_str(node.close)?;
            }
            let Some(node) = stack.last_mut() else { break };
            if node.begun > 0 {
                f.write_str(", ")?;
            }
            match &node.labels {
                ChildLabels::None => {}
                ChildLabels::Fields(names) => write!(f, "{}: ", names.get(node.begun).unwrap_or(&"_"))?,
                ChildLabels::Keys(keys) => write!(f, "{:?}: ", keys[node.begun])?,
            }
            node.begun += 1;
        }
        Ok(())
    }
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &mut |f| f.write_str("*"))
    }
}

impl fmt::Debug for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
