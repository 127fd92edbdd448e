//! State of the rewriting: variables in scope, and open regions and loops.
use super::tokens::respan;
use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use std::collections::{BTreeMap, HashSet};
use syn::{Ident, Lifetime};

/// The visitor that rewrites a body, with the variables in scope and the regions and loops that are open.
#[derive(Default)]
pub(crate) struct BodyRewriter {
    /// Path of `::pallas_rt::__private`, or of what the user named instead.
    root: TokenStream,
    /// Names of host values: const generics and `#[fixed]` parameters.
    pub(super) host: Vec<String>,
    pub(super) vars: Vec<ScopedVariable>,
    pub(super) regions: Vec<Region>,
    pub(super) frames: Vec<JumpFrame>,
    /// Number of names that the expansion has made, for unique ones.
    pub(super) made: usize,
    pub(crate) errors: Vec<syn::Error>,
    /// The declared type of a `let` whose value is an `if`.
    pub(super) expect: Option<syn::Type>,
    pub(crate) dims: HashSet<String>,
    /// Names of host values of type `usize`.
    pub(crate) sizes: HashSet<String>,
}

impl BodyRewriter {
    pub(crate) fn new(root: TokenStream, host_names: Vec<String>) -> Self {
        BodyRewriter { root, host: host_names, ..BodyRewriter::default() }
    }
    /// Returns the path of the runtime's module `__private` with all tokens at this span, which `Location::caller()`
    /// and rustc's messages show.
    pub(super) fn root_path(&self, span: Span) -> TokenStream {
        respan(self.root.clone(), span)
    }
    /// Returns the path of an item of the runtime's module `__private`, with all tokens at this span.
    pub(super) fn item_path(&self, span: Span, item: TokenStream) -> TokenStream {
        let (root, item) = (self.root_path(span), respan(item, span));
        quote_spanned!(span=> #root::#item)
    }
}

/// A variable in scope, as it is declared.
pub(super) struct ScopedVariable {
    pub(super) name: String,
    /// True if it is declared without a value.
    pub(super) late: bool,
    /// True if it is declared without `mut`.
    pub(super) fixed: bool,
    /// True if it is declared with `mut`. A parameter is neither `fixed` nor `mutable`.
    pub(super) mutable: bool,
    /// True if it is a host `usize`, as far as its declaration shows.
    pub(super) size: bool,
}

/// Kind of statement that opens a [`Region`], which the kernel may run instead of the host.
#[derive(PartialEq, Clone, Copy)]
pub(super) enum RegionKind {
    If,
    For,
    While,
}

/// An `if`, `for` or `while` that may be staged: run by the kernel instead of the host.
pub(super) struct Region {
    pub(super) kind: RegionKind,
    /// Number of variables declared outside of it.
    pub(super) outer_variables: usize,
    pub(super) carried: BTreeMap<String, Ident>,
    pub(super) seen: BTreeMap<String, Ident>,
    /// Variables that it assigns though they are not `mut`.
    pub(super) unmut: HashSet<String>,
    /// Variable of its key in the expansion.
    pub(super) key: Ident,
}

/// A loop, a labelled block or a closure around the present place, which `break`, `continue` or `return` can leave.
pub(super) enum JumpFrame {
    Loop(LoopFrame),
    /// A closure, which only `return` leaves.
    Closure {
        regions: usize,
    },
}

/// A loop or a labelled block that a jump can leave.
pub(super) struct LoopFrame {
    pub(super) label: Option<Lifetime>,
    /// True if the expansion added the label.
    pub(super) made: bool,
    /// Kind of the region that the loop opens, if it may be staged.
    pub(super) staged: Option<RegionKind>,
    /// Number of regions around the loop, without its own: a jump out of the loop leaves all later ones.
    pub(super) regions: usize,
    pub(super) block: bool,
}
