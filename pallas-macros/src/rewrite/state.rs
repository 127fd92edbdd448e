//! The variables in scope, and the regions and loops that are open.
use super::tokens::respan;
use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use std::collections::{BTreeMap, HashSet};
use syn::{Ident, Lifetime};

/// The rewriting visitor: which variables there are, and which regions and loops are open.
#[derive(Default)]
pub(crate) struct Rewrite {
    /// `::pallas_rt::__private`, or where the user says it is.
    root: TokenStream,
    /// Names of host values: const generics and `#[fixed]` parameters.
    pub(super) host: Vec<String>,
    pub(super) vars: Vec<Var>,
    pub(super) regions: Vec<Region>,
    pub(super) frames: Vec<Frame>,
    /// Counts the names that the expansion makes.
    pub(super) made: usize,
    pub(crate) errors: Vec<syn::Error>,
    /// The type that a `let` wants of its `if`.
    pub(super) expect: Option<syn::Type>,
    pub(crate) dims: HashSet<String>,
    /// Names of host values of type `usize`.
    pub(crate) sizes: HashSet<String>,
}

impl Rewrite {
    pub(crate) fn new(root: TokenStream, host: Vec<String>) -> Self {
        Rewrite { root, host, ..Rewrite::default() }
    }
    /// The root path at a span: `Location::caller()` and rustc's carets follow it.
    pub(super) fn at(&self, span: Span) -> TokenStream {
        respan(self.root.clone(), span)
    }
    /// An item under the root, at a span.
    pub(super) fn path(&self, span: Span, item: TokenStream) -> TokenStream {
        let (root, item) = (self.at(span), respan(item, span));
        quote_spanned!(span=> #root::#item)
    }
}

/// A variable in scope.
pub(super) struct Var {
    pub(super) name: String,
    /// Declared without a value.
    pub(super) late: bool,
    /// Declared without `mut`.
    pub(super) fixed: bool,
    /// Declared with `mut`. A parameter is neither `fixed` nor `mutable`.
    pub(super) mutable: bool,
    /// A host `usize`, as far as its declaration shows.
    pub(super) size: bool,
}

/// The statement that opens a region.
#[derive(PartialEq, Clone, Copy)]
pub(super) enum Kind {
    If,
    For,
    While,
}

/// An `if`, `for` or `while` that may be staged.
pub(super) struct Region {
    pub(super) kind: Kind,
    /// Number of variables outside of it.
    pub(super) start: usize,
    pub(super) carried: BTreeMap<String, Ident>,
    pub(super) seen: BTreeMap<String, Ident>,
    /// Assigned without being `mut`.
    pub(super) unmut: HashSet<String>,
    /// The name of its key in the expansion.
    pub(super) key: Ident,
}

/// A frame that a jump can lead out of.
pub(super) enum Frame {
    Loop(Loop),
    /// A closure: nothing leads out of it but `return`.
    Closure {
        regions: usize,
    },
}

/// A loop or a labelled block.
pub(super) struct Loop {
    pub(super) label: Option<Lifetime>,
    /// True if the label is one that the expansion needs.
    pub(super) made: bool,
    /// A region of its own, if it may be staged.
    pub(super) staged: Option<Kind>,
    /// Number of regions outside of it, its own among them.
    pub(super) regions: usize,
    pub(super) block: bool,
}
