//! The language of sizes: names are dimensions or const generics, `{X}` is a constant from outside of the kernel.
use crate::ast::{BlockSize, Errors, Parameter, ParameterRole};
use pallas_ir::Dim;
use proc_macro2::TokenStream;
use quote::quote;
use std::collections::BTreeSet;
use syn::{BinOp, Expr, Ident};

/// Classification of the names in a kernel's sizes: const generics, dimensions, and dimensions that must be known while
/// tracing.
#[derive(Default)]
pub(crate) struct SizeNames {
    /// Names that are const generics.
    pub(crate) consts: BTreeSet<String>,
    /// Dimensions to which operands or `#[dim]` parameters give a size.
    pub(crate) dims: BTreeSet<String>,
    /// Dimensions whose size must be known while tracing, because a block or scratch buffer has it.
    pub(crate) statics: BTreeSet<String>,
    /// True if a spec could not be read, so that any name may be a dimension.
    unread: bool,
}

/// Context of the conversion of a kernel's sizes to code: the path of the runtime, the reported errors, and the
/// constants from outside of the kernel that were found so far.
pub(crate) struct SizeConversion<'a> {
    pub(crate) root: &'a TokenStream,
    pub(crate) errors: &'a mut Errors,
    /// Constants that an expansion cannot know: code of type `u64`, evaluated at every call, as part of the call's key.
    pub(crate) outer: Vec<TokenStream>,
}

impl SizeConversion<'_> {
    /// Adds the code of an outer constant (a constant from outside of the kernel, evaluated at every call), as bits of
    /// type `u64`, and returns its index.
    pub(crate) fn add_outer_constant(&mut self, bits: TokenStream) -> usize {
        self.outer.push(bits);
        self.outer.len() - 1
    }
}

impl SizeNames {
    /// Classifies the names in the specs of `parameters` as dimensions, and as dimensions whose size must be known
    /// while tracing; `const_generics` are the names of those of the kernel.
    pub(crate) fn from_parameters(const_generics: BTreeSet<String>, parameters: &[Parameter]) -> SizeNames {
        let unread = parameters.iter().any(|p| p.unread);
        let mut names = SizeNames { consts: const_generics, unread, ..SizeNames::default() };
        for p in parameters {
            if p.role == ParameterRole::Dim {
                names.dims.insert(p.name.to_string());
            }
            let own = p.block.iter().flat_map(|b| &b.dims);
            let prefetch = p.sizes.iter().flatten().filter(|_| p.role == ParameterRole::Prefetch);
            for dim in own.chain(prefetch) {
                names.for_each_dim_name(dim, &mut |n, s| {
                    n.dims.insert(s);
                });
            }
        }
        for p in parameters {
            let scratch = p.sizes.iter().flatten().filter(|_| p.role == ParameterRole::Scratch);
            for size in scratch {
                names.mark_static_dims(size);
            }
            let Some(block) = &p.block else { continue };
            match &block.block {
                None => block.dims.iter().for_each(|d| names.mark_static_dims(d)),
                Some(sizes) => {
                    for size in sizes {
                        match size {
                            BlockSize::Squeezed => {}
                            BlockSize::Blocked(e) => names.mark_static_dims(e),
                            BlockSize::Element(parts) => parts.iter().for_each(|e| names.mark_static_dims(e)),
                        }
                    }
                }
            }
        }
        names
    }
    /// Reports dimensions of outputs that get no size, neither from an input nor from a `#[dim]` parameter.
    pub(crate) fn report_unsized_outputs(&mut self, parameters: &[Parameter], errors: &mut Errors) {
        let mut bound: BTreeSet<String> = BTreeSet::new();
        // A `_` in an array's shape is another mistake, and may stand for any name.
        let nameless = |p: &Parameter| p.block.iter().flat_map(|b| &b.dims).any(|dim| matches!(dim, Expr::Infer(_)));
        if parameters.iter().any(nameless) {
            return;
        }
        for p in parameters.iter().filter(|p| p.role != ParameterRole::Output) {
            if p.role == ParameterRole::Dim {
                bound.insert(p.name.to_string());
            }
            let dims = p.block.iter().flat_map(|b| &b.dims).chain(p.sizes.iter().flatten());
            for dim in dims.filter(|dim| p.role != ParameterRole::Scratch && matches!(dim, Expr::Path(_))) {
                self.for_each_dim_name(dim, &mut |_, name| {
                    bound.insert(name);
                });
            }
        }
        let outputs = parameters.iter().filter(|p| p.role == ParameterRole::Output && !self.unread);
        let dims: Vec<&Expr> = outputs.flat_map(|p| &p.block).flat_map(|b| &b.dims).collect();
        for dim in dims {
            self.for_each_dim_name(dim, &mut |_, name| {
                let message = format!("nothing gives dimension `{name}` its size");
                let help = format!(
                    "an array that goes in has it, as `[{name}]`, or the caller gives it: `#[dim] {name}: usize`"
                );
                if bound.insert(name) {
                    errors.push_at(dim, message, &help);
                }
            });
        }
    }
    /// Records that the dimensions in the size of a block or scratch buffer must be known while tracing.
    fn mark_static_dims(&mut self, size: &Expr) {
        self.for_each_dim_name(size, &mut |n, s| {
            n.statics.insert(s);
        });
    }
    /// Calls `f` with every name in a size that is not a const generic.
    fn for_each_dim_name(&mut self, e: &Expr, f: &mut dyn FnMut(&mut SizeNames, String)) {
        match e {
            Expr::Path(p) => {
                if let Some(name) = p.path.get_ident().map(Ident::to_string).filter(|n| !self.consts.contains(n)) {
                    f(self, name);
                }
            }
            Expr::Paren(p) => self.for_each_dim_name(&p.expr, f),
            Expr::Group(p) => self.for_each_dim_name(&p.expr, f),
            Expr::Binary(b) => {
                self.for_each_dim_name(&b.left, f);
                self.for_each_dim_name(&b.right, f);
            }
            Expr::Call(c) => c.args.iter().for_each(|a| self.for_each_dim_name(a, f)),
            _ => {}
        }
    }
    /// Returns true if a name is a dimension.
    pub(crate) fn is_dim(&self, name: &str) -> bool {
        self.dims.contains(name)
    }

    /// Converts a size to code, a constant of type `Size`; reports an error for a size that cannot be expressed.
    pub(crate) fn size_tokens(&self, sizes: &mut SizeConversion<'_>, e: &Expr) -> TokenStream {
        let root = sizes.root;
        match e {
            Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(n), .. }) if !n.suffix().starts_with('f') => {
                quote!(#root::Size::Number((#n) as i64))
            }
            Expr::Block(b) => {
                let constant = match &b.block.stmts[..] {
                    // Without the braces, which rustc would call unnecessary.
                    [syn::Stmt::Expr(one, None)] => one,
                    _ => e,
                };
                let at = sizes.add_outer_constant(quote!(#root::whole(#constant)));
                quote!(#root::Size::Outer(#at))
            }
            Expr::Paren(p) => self.size_tokens(sizes, &p.expr),
            Expr::Group(p) => self.size_tokens(sizes, &p.expr),
            Expr::Path(p) => match p.path.get_ident() {
                Some(i) if self.consts.contains(&i.to_string()) => quote!(#root::Size::Number(#i as i64)),
                Some(i) if self.dims.contains(&i.to_string()) => {
                    let name = i.to_string();
                    quote!(#root::Size::Name(#name))
                }
                _ if self.unread => quote!(#root::Size::Number(0i64)),
                _ => {
                    let name = quote!(#p).to_string().replace(' ', "");
                    let message = format!("`{name}` is neither a dimension of an operand nor a const generic");
                    let help = format!(
                        "an outer constant is written `{{{name}}}`; a size no operand has is a parameter `#[dim] {name}: usize`"
                    );
                    sizes.errors.push_at(p, message, &help);
                    quote!(#root::Size::Number(0i64))
                }
            },
            Expr::Binary(b) => {
                let (l, r) = (self.size_tokens(sizes, &b.left), self.size_tokens(sizes, &b.right));
                match b.op {
                    BinOp::Add(_) => quote!(#root::Size::Add(&[#l, #r])),
                    BinOp::Sub(_) => quote!(#root::Size::Sub(&[#l, #r])),
                    BinOp::Mul(_) => quote!(#root::Size::Mul(&[#l, #r])),
                    _ => self.report_unsupported_size(sizes, e),
                }
            }
            Expr::Call(c) => {
                let function = match &*c.func {
                    Expr::Path(p) => p.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default(),
                    _ => String::new(),
                };
                let operation = match function.as_str() {
                    "cdiv" => quote!(Cdiv),
                    "min" => quote!(Min),
                    "max" => quote!(Max),
                    _ => return self.report_unsupported_size(sizes, e),
                };
                if c.args.len() != 2 {
                    return self.report_unsupported_size(sizes, e);
                }
                let (l, r) = (self.size_tokens(sizes, &c.args[0]), self.size_tokens(sizes, &c.args[1]));
                quote!(#root::Size::#operation(&[#l, #r]))
            }
            // The check of the spec has reported it.
            Expr::Infer(_) => quote!(#root::Size::Number(0i64)),
            _ => self.report_unsupported_size(sizes, e),
        }
    }
    /// Converts a size to a symbolic size; to an unknown one if [`SizeNames::size_tokens`] refuses it.
    pub(crate) fn symbolic_size(&self, e: &Expr) -> Dim {
        match e {
            Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(n), .. }) => {
                n.base10_parse::<i64>().map_or(Dim::UNKNOWN, Dim::from)
            }
            Expr::Paren(p) => self.symbolic_size(&p.expr),
            Expr::Group(p) => self.symbolic_size(&p.expr),
            Expr::Path(p) => match p.path.get_ident().map(Ident::to_string) {
                Some(name) if self.consts.contains(&name) || self.dims.contains(&name) => Dim::name(&name),
                _ => Dim::UNKNOWN,
            },
            Expr::Binary(b) => {
                let (l, r) = (self.symbolic_size(&b.left), self.symbolic_size(&b.right));
                match b.op {
                    BinOp::Add(_) => &l + &r,
                    BinOp::Sub(_) => &l - &r,
                    BinOp::Mul(_) => &l * &r,
                    _ => Dim::UNKNOWN,
                }
            }
            Expr::Call(c) if c.args.len() == 2 => {
                let (l, r) = (self.symbolic_size(&c.args[0]), self.symbolic_size(&c.args[1]));
                match &*c.func {
                    Expr::Path(p) if p.path.is_ident("cdiv") => l.cdiv(&r),
                    Expr::Path(p) if p.path.is_ident("min") => l.min(&r),
                    Expr::Path(p) if p.path.is_ident("max") => l.max(&r),
                    _ => Dim::UNKNOWN,
                }
            }
            _ => Dim::UNKNOWN,
        }
    }
    /// Reports an expression that is not a size; returns tokens of the size 0 in its place.
    fn report_unsupported_size(&self, sizes: &mut SizeConversion<'_>, e: &Expr) -> TokenStream {
        let found = quote!(#e).to_string().replace(' ', "");
        let help = "sizes are built from names, numbers, `+`, `-`, `*`, `cdiv`, `min`, `max`, and constants in braces: `{LIMIT / 2}`";
        sizes.errors.push_at(e, format!("`{found}` is no size"), help);
        let root = sizes.root;
        quote!(#root::Size::Number(0i64))
    }
}
