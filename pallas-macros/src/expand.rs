//! The expansion of a kernel: a function that passes spec, index maps and the rewritten body to the launcher.
use crate::ast::{BlockSize, BlockSpec, Errors, KernelOptions, Parameter, ParameterRole};
use crate::attr;
use crate::check;
use crate::rewrite::{BodyRewriter, dim_variable_ident, ident_from_name, idents};
use crate::size_language::{SizeConversion, SizeNames};
use crate::tune::{self, Combinations};
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use std::collections::HashSet;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, Ident, ItemFn, Type};

/// Expands a kernel. Mistakes, an error from parsing its body included, become errors in a stub that keeps its callers
/// resolving.
pub(crate) fn expand(attr: TokenStream, mut f: ItemFn, parse_error: Option<syn::Error>) -> TokenStream {
    let mut errors = Errors::default();
    errors.extend(parse_error);
    let mut options: KernelOptions = syn::parse2(attr).unwrap_or_else(|e| {
        errors.push(e);
        KernelOptions { unread: true, ..KernelOptions::default() }
    });
    errors.extend(std::mem::take(&mut options.wrong));
    let parameters = attr::parse_parameters(&mut f, &mut errors);
    let consts = f.sig.generics.const_params().map(|c| c.ident.to_string()).collect();
    let mut names = SizeNames::from_parameters(consts, &parameters);
    names.report_unsized_outputs(&parameters, &mut errors);
    let root = match &options.root {
        Some(path) => quote!(#path::__private),
        None => quote!(::pallas_rt::__private),
    };
    let found = check::check_kernel(&f, &options, &parameters, &names, &mut errors);
    let tuned = tune::read_combinations(&f, &options, &parameters, &mut errors);
    f.attrs.retain(|a| !check::is_kernel(a));
    let kernel = ParsedKernel { options, parameters, names, root, tuned };
    // If only shapes are wrong, the code is valid Rust, and rustc's own errors appear as well.
    let code = kernel.function_tokens(&f, &found, &mut errors);
    if errors.is_empty() {
        return code;
    }
    errors.extend(found);
    kernel.stub_tokens(&f, errors)
}

/// A kernel whose attribute and signature are read.
struct ParsedKernel {
    options: KernelOptions,
    parameters: Vec<Parameter>,
    names: SizeNames,
    root: TokenStream,
    tuned: Option<Combinations>,
}

impl ParsedKernel {
    /// Parameters that are operands, with their indices: all but `#[fixed]` and `#[dim]`.
    fn operands(&self) -> impl Iterator<Item = (usize, &Parameter)> {
        self.parameters.iter().filter(|p| !matches!(p.role, ParameterRole::Fixed | ParameterRole::Dim)).enumerate()
    }
    fn output_count(&self) -> usize {
        self.parameters.iter().filter(|p| p.role == ParameterRole::Output).count()
    }

    /// Parameters and result of the expanded function, `pub fn k<const BQ: usize>(x: impl Input, scale: f32)`. For a
    /// tuned call `#[fixed]` values must be `Clone`.
    fn signature(&self, for_tuning: bool) -> (Vec<TokenStream>, TokenStream) {
        let root = &self.root;
        let takes = |p: &Parameter| {
            let (name, attrs) = (&p.name, &p.attrs);
            let ty = match p.role {
                ParameterRole::Input | ParameterRole::Prefetch => quote!(impl #root::Input),
                ParameterRole::Output | ParameterRole::Scratch => return None,
                ParameterRole::Fixed => fixed_parameter_type(&p.ty, for_tuning),
                ParameterRole::Param | ParameterRole::Dim => p.ty.to_token_stream(),
            };
            Some(quote!(#(#attrs)* #name: #ty))
        };
        let arrays = (0..self.output_count()).map(|_| quote!(#root::Array));
        let result = if self.output_count() == 1 { quote!(#root::Array) } else { quote!((#(#arrays),*)) };
        (self.parameters.iter().filter_map(takes).collect(), result)
    }

    /// Tokens of the errors, and of a stub of the kernel: a function of its type, so that calls of it still resolve.
    fn stub_tokens(&self, f: &ItemFn, errors: Errors) -> TokenStream {
        let (inputs, result) = self.signature(false);
        let (root, vis, name, attrs) = (&self.root, &f.vis, &f.sig.ident, &f.attrs);
        let (params, clause) = (&f.sig.generics.params, &f.sig.generics.where_clause);
        let errors = errors.to_compile_errors();
        let tuned = self.options.tune.as_ref().map(|lists| {
            let names: HashSet<String> = lists.iter().flat_map(|e| idents(e.to_token_stream())).collect();
            let is_tuned = |ident: &Ident| names.contains(&ident.to_string());
            let (own, params) = (tune::tuned_name(f), tune::untuned_generics(f, &is_tuned));
            quote! {
                #[allow(warnings, reason = "the kernel's errors come first")]
                #vis fn #own<#(#params),*>(#(#inputs),*) -> ::core::result::Result<#result, #root::Error> #clause {
                    ::core::unreachable!()
                }
            }
        });
        quote! {
            #tuned
            #(#attrs)*
            #[allow(warnings, reason = "the kernel's errors come first")]
            #vis fn #name<#params>(#(#inputs),*) -> ::core::result::Result<#result, #root::Error> #clause {
                #errors
                ::core::unreachable!()
            }
        }
    }

    /// Tokens of the expanded function:
    ///
    /// ```text
    /// #[track_caller]
    /// pub fn k(x: impl Input, scale: f32) -> Result<Array, Error> {
    ///     let (outer, fixed) = ([HEAD as u64], [Fixed(&causal).fixed_key()]);
    ///     let site = Site { name: "k", .., outer: &outer, fixed: &fixed };
    ///     let spec = const { &Declared { .. } };
    ///     let maps = &[(0, &|frame| ..)];
    ///     let [output0] = launch(site, [arg(x), param(scale)], spec, maps, &|frame| (|x: In<f32>, ..| body)(..))?;
    ///     Ok((output0))
    /// }
    /// ```
    fn function_tokens(&self, f: &ItemFn, shape_errors: &Errors, errors: &mut Errors) -> TokenStream {
        let (inputs, result) = self.signature(false);
        let (root, vis, name, attrs) = (&self.root, &f.vis, &f.sig.ident, &f.attrs);
        let (params, clause) = (&f.sig.generics.params, &f.sig.generics.where_clause);
        let tuned = self.tuned.as_ref().map(|found| {
            let (inputs, result) = self.signature(true);
            tune::tuned_function(root, f, &self.parameters, found, &inputs, &result)
        });
        let (site, spec) = self.site_and_spec_tokens(f, errors);
        let arguments = self.operands().filter_map(|(_, p)| {
            let name = &p.name;
            match p.role {
                ParameterRole::Input | ParameterRole::Prefetch => Some(quote!(#root::arg(#name))),
                ParameterRole::Param => Some(quote!(#root::param(#name))),
                _ => None,
            }
        });
        let maps: Vec<TokenStream> = self.operands().filter_map(|(slot, p)| self.index_map_tokens(slot, p)).collect();
        let (body, found) = (self.body_tokens(f, errors), shape_errors.to_compile_errors());
        let (mixed, track_caller) = (Span::mixed_site(), track_caller_attribute(f));
        let outputs: Vec<Ident> = (0..self.output_count()).map(|i| Ident::new(&format!("output{i}"), mixed)).collect();
        quote_spanned! {mixed=>
            #(#attrs)*
            #track_caller
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "dimensions keep their names; operands are many")]
            #vis fn #name<#params>(#(#inputs),*) -> ::core::result::Result<#result, #root::Error> #clause {
                #found
                #site
                let [#(#outputs),*] = #root::launch(site, [#(#arguments),*], #spec, &[#(#maps),*], #body)?;
                ::core::result::Result::Ok((#(#outputs),*))
            }
            #tuned
        }
    }

    /// Tokens of `let outer = ..; let fixed = ..; let site = Site { .. };`, and of `const { &Declared { .. } }`.
    fn site_and_spec_tokens(&self, f: &ItemFn, errors: &mut Errors) -> (TokenStream, TokenStream) {
        let (root, name) = (&self.root, f.sig.ident.to_string());
        let mut sizes = SizeConversion { root, errors, outer: vec![] };
        let grid: Vec<TokenStream> = self.options.grid.iter().map(|e| self.names.size_tokens(&mut sizes, e)).collect();
        let semantics: Vec<TokenStream> = match &self.options.semantics {
            None => grid.iter().map(|_| quote!(#root::Semantics::Parallel)).collect(),
            Some((names, _)) => names
                .iter()
                .map(|n| {
                    if n == "arbitrary" {
                        quote!(#root::Semantics::Arbitrary)
                    } else {
                        quote!(#root::Semantics::Parallel)
                    }
                })
                .collect(),
        };
        let assume: Vec<TokenStream> = self
            .options
            .assume
            .iter()
            .map(|(a, b)| {
                let (a, b) = (self.names.size_tokens(&mut sizes, a), self.names.size_tokens(&mut sizes, b));
                quote!((#a, #b))
            })
            .collect();
        let given = self.parameters.iter().filter(|p| p.role == ParameterRole::Dim).map(|p| {
            let (ident, text) = (&p.name, p.name.to_string());
            quote!((#text, #ident as i64))
        });
        let operands: Vec<TokenStream> = self.operands().map(|(_, p)| self.operand_tokens(p, &mut sizes)).collect();
        let outer = sizes.outer;
        let (fixed, outers) = (tune::fixed_keys(&self.parameters, root), outer.len());
        let site = quote_spanned! {Span::mixed_site()=>
            let outer: [u64; #outers] = [#(#outer),*];
            let fixed = #fixed;
            let site = #root::Site {
                name: #name,
                at: #root::Loc { file: ::core::file!(), line: ::core::line!(), column: ::core::column!() },
                called: #root::Loc::caller(),
                given: &[#(#given),*],
                outer: &outer,
                fixed: &fixed,
            };
        };
        let [overflow, lost_store] =
            ["overflow", "lost_store"].map(|fault| self.options.allow.iter().any(|a| *a == fault));
        let spec = quote! {
            const {
                &#root::Declared {
                    grid: &[#(#grid),*],
                    semantics: &[#(#semantics),*],
                    allow: #root::Allow { overflow: #overflow, lost_store: #lost_store },
                    assume: &[#(#assume),*],
                    operands: &[#(#operands),*],
                }
            }
        };
        (site, spec)
    }

    /// Tokens of an operand's declaration: `DeclaredOperand { name: "x", kind: Kind::Input, .. }`.
    fn operand_tokens(&self, p: &Parameter, sizes: &mut SizeConversion<'_>) -> TokenStream {
        let (root, name) = (&self.root, p.name.to_string());
        let kind = match p.role {
            ParameterRole::Input => quote!(Input),
            ParameterRole::Output => quote!(Output),
            ParameterRole::Prefetch => quote!(Prefetch),
            ParameterRole::Scratch => quote!(Scratch),
            ParameterRole::Param | ParameterRole::Fixed | ParameterRole::Dim => quote!(Param),
        };
        let dtype = match self.element_type_tokens(p, sizes.errors) {
            Some(t) => quote!(<#t as #root::Elem>::DTYPE),
            None => quote!(#root::DType::F32),
        };
        let none = || quote!(::core::option::Option::None);
        let some = |x: TokenStream| quote!(::core::option::Option::Some(#x));
        let mut list = |list: &[Expr]| {
            let dims: Vec<TokenStream> = list.iter().map(|e| self.names.size_tokens(sizes, e)).collect();
            some(quote!(&[#(#dims),*]))
        };
        let (mut dims, mut block, mut fill, mut empty, mut alias) = (none(), none(), none(), none(), none());
        let mut buffered = none();
        if let Some(own) = &p.sizes {
            dims = list(own);
        }
        if let Some(b) = &p.block {
            dims = list(&b.dims);
            if let Some(list) = &b.block {
                let each: Vec<TokenStream> = list.iter().map(|s| self.block_size_tokens(s, sizes)).collect();
                block = some(quote!(&[#(#each),*]));
            }
            let mut number = |e: &Option<Expr>| {
                let Some(e) = e else { return none() };
                let at = sizes.add_outer_constant(quote!(((#e) as f64).to_bits()));
                some(quote!(#at))
            };
            (fill, empty) = (number(&b.fill), number(&b.empty));
            if let Some(e) = &b.buffered {
                let at = sizes.add_outer_constant(quote!(((#e) as u32) as u64));
                buffered = some(quote!(#at));
            }
            if let Some(a) = &b.alias {
                let text = a.to_string();
                alias = some(quote!(#text));
            }
        }
        quote! {
            #root::DeclaredOperand {
                name: #name, kind: #root::Kind::#kind, dtype: #dtype, dims: #dims, block: #block,
                fill: #fill, buffered: #buffered, empty: #empty, alias: #alias,
            }
        }
    }

    /// Tokens of a parameter's element type; `None` if its type names none, which is reported.
    fn element_type_tokens(&self, p: &Parameter, errors: &mut Errors) -> Option<TokenStream> {
        let root = &self.root;
        if p.role == ParameterRole::Param {
            let ty = &p.ty;
            return Some(quote!(<#ty as #root::ParamValue>::Element));
        }
        match attr::element_type(p) {
            Ok(t) => Some(t.to_token_stream()),
            Err(e) => {
                errors.push(e);
                None
            }
        }
    }

    /// Tokens of the block's extent along one dimension.
    fn block_size_tokens(&self, size: &BlockSize, sizes: &mut SizeConversion<'_>) -> TokenStream {
        let root = &self.root;
        match size {
            BlockSize::Squeezed => quote!(#root::BlockDim::Squeezed),
            BlockSize::Blocked(e) => {
                let e = self.names.size_tokens(sizes, e);
                quote!(#root::BlockDim::Blocked(#e))
            }
            BlockSize::Element(parts) => {
                let [size, low, high] = parts.each_ref().map(|e| self.names.size_tokens(sizes, e));
                quote!(#root::BlockDim::Element { size: #size, low: #low, high: #high })
            }
        }
    }

    /// Tokens of an index map:
    /// `(0, &|frame| { let (b, i) = (frame.program(0), frame.program(1)); indices((b, i, 0)) })`.
    fn index_map_tokens(&self, slot: usize, p: &Parameter) -> Option<TokenStream> {
        let block: &BlockSpec = p.block.as_ref()?;
        let map = block.map.as_ref()?;
        let (root, frame) = (&self.root, Ident::new("frame", Span::mixed_site()));
        let axes = 0..map.inputs.len();
        let patterns: Vec<&syn::Pat> = map.inputs.iter().collect();
        let ids = quote!(#[allow(unused_variables, reason = "an index may serve other maps alone")] let (#(#patterns,)*) = (#(#frame.program(#axes),)*););
        let patterns = &map.inputs;
        let mut entries: Vec<Expr> = match &*map.body {
            Expr::Tuple(t) => t.elems.iter().cloned().collect(),
            Expr::Paren(p) => vec![(*p.expr).clone()],
            other => vec![other.clone()],
        };
        let mentioned: HashSet<String> = entries.iter().flat_map(|e| idents(e.to_token_stream())).collect();
        let own: HashSet<String> = idents(patterns.to_token_stream());
        let dims: Vec<&String> =
            self.names.dims.iter().filter(|d| mentioned.contains(*d) && !own.contains(*d)).collect();
        let mut rename = DimRenamer { dims: dims.iter().map(|d| (*d).clone()).collect() };
        entries.iter_mut().for_each(|e| rename.visit_expr_mut(e));
        let lets = dims.iter().map(|d| {
            let ident = dim_variable_ident(&ident_from_name(d));
            quote!(#[allow(non_snake_case, reason = "dimensions keep their names")] let #ident = #frame.dim(#d);)
        });
        let prefetches = self
            .operands()
            .filter(|(_, p)| p.role == ParameterRole::Prefetch && mentioned.contains(&p.name.to_string()));
        let tables = prefetches.map(|(slot, p)| {
            let (name, ty) = (&p.name, &p.ty);
            quote!(let #name: #ty = #frame.prefetch(#slot);)
        });
        Some(quote! {
            (#slot, &|#frame: &#root::Frame| {
                let _ = #frame;
                #[allow(unused_imports, reason = "what every map may call")]
                use #root::index::{cdiv, max, min};
                #[allow(unused_imports, reason = "what every map may call")]
                use #root::element;
                #(#lets)*
                #(#tables)*
                #ids
                #root::indices((#(#entries,)*))
            })
        })
    }

    /// Tokens of the body: `&|frame| { let D = frame.size("D"); (|x: In<f32>, ..| { rewritten })(frame.input(0), ..)
    /// }`.
    fn body_tokens(&self, f: &ItemFn, errors: &mut Errors) -> TokenStream {
        let (root, frame) = (&self.root, Ident::new("frame", Span::mixed_site()));
        let mut block = (*f.block).clone();
        let fixed = self.parameters.iter().filter(|p| p.role == ParameterRole::Fixed).map(|p| p.name.to_string());
        let host = self.names.consts.iter().cloned().chain(fixed).collect();
        let mut rewrite = BodyRewriter::new(root.clone(), host);
        let is_usize = |ty: &Type| matches!(ty, Type::Path(p) if p.path.is_ident("usize"));
        rewrite.sizes.extend(self.names.statics.iter().filter(|n| self.names.dims.contains(*n)).cloned());
        rewrite.sizes.extend(f.sig.generics.const_params().filter(|c| is_usize(&c.ty)).map(|c| c.ident.to_string()));
        let fixed = self.parameters.iter().filter(|p| p.role == ParameterRole::Fixed && is_usize(&p.ty));
        rewrite.sizes.extend(fixed.map(|p| p.name.to_string()));
        for p in self.parameters.iter().filter(|p| p.role != ParameterRole::Dim) {
            rewrite.declare(&p.name);
        }
        let mentioned = idents(block.to_token_stream());
        let dims: Vec<Ident> =
            self.names.dims.iter().filter(|d| mentioned.contains(*d)).map(|d| ident_from_name(d)).collect();
        for d in &dims {
            rewrite.declare(d);
            rewrite.dims.insert(d.to_string());
        }
        rewrite.visit_block_mut(&mut block);
        errors.extend(std::mem::take(&mut rewrite.errors));
        let lets = dims.iter().map(|d| {
            let (ident, text) = (dim_variable_ident(d), d.to_string());
            let value = if self.names.statics.contains(&text) {
                quote!(let #ident: usize = #frame.size(#text);)
            } else {
                quote!(let #ident: #root::Scalar<i32> = #frame.dim(#text);)
            };
            quote!(#[allow(non_snake_case, unused_variables, reason = "a dimension keeps its name; a macro may mention it")] #value)
        });
        let slots = self.operands().map(|(slot, p)| {
            let ty = &p.ty;
            // An operand may be used only in specs; the check reports operands that are not used at all.
            let quiet = (!mentioned.contains(&p.name.to_string()) && p.role != ParameterRole::Param)
                .then(|| quote!(#[allow(unused_variables, reason = "it serves specs alone")]));
            let pat = &p.pat;
            let pat = quote!(#quiet #pat);
            match p.role {
                ParameterRole::Input => (quote!(#pat: #ty), quote!(#frame.input(#slot))),
                ParameterRole::Output => (quote!(#pat: #ty), quote!(#frame.output(#slot))),
                ParameterRole::Prefetch => (quote!(#pat: #ty), quote!(#frame.prefetch(#slot))),
                ParameterRole::Scratch => (quote!(#pat: #ty), quote!(#frame.scratch(#slot))),
                ParameterRole::Param | ParameterRole::Fixed | ParameterRole::Dim => {
                    (quote!(#pat: #root::Scalar<<#ty as #root::ParamValue>::Element>), quote!(#frame.param(#slot)))
                }
            }
        });
        let (patterns, values): (Vec<TokenStream>, Vec<TokenStream>) = slots.unzip();
        quote! {
            &|#frame: &#root::Frame| {
                let _ = #frame;
                #(#lets)*
                (|#(#patterns),*| -> () #block)(#(#values),*)
            }
        }
    }
}

/// Type of a `#[fixed]` parameter. An `impl Fn(..)` must outlive the call, since it is compared by type, and be `Sync`,
/// so that it has no interior that a staged region could change; for a tuned call it must be `Clone`.
fn fixed_parameter_type(ty: &Type, for_tuning: bool) -> TokenStream {
    match ty {
        Type::ImplTrait(t) => {
            let (bounds, clone) = (&t.bounds, for_tuning.then(|| quote!(+ ::core::clone::Clone)));
            quote!(impl #bounds + ::core::marker::Sync + 'static #clone)
        }
        other => other.to_token_stream(),
    }
}

/// The attribute `#[track_caller]`, unless the user wrote it: errors of a call then have the caller's line.
pub(crate) fn track_caller_attribute(f: &ItemFn) -> Option<TokenStream> {
    let given = f.attrs.iter().any(|a| a.path().is_ident("track_caller"));
    (!given).then(|| quote!(#[track_caller]))
}

/// Renames dimensions in an index map to names that no item can shadow.
struct DimRenamer {
    dims: HashSet<String>,
}
impl VisitMut for DimRenamer {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        if let Expr::Path(p) = e
            && let Some(i) = p.path.get_ident()
            && self.dims.contains(&i.to_string())
        {
            let renamed = dim_variable_ident(i);
            *e = syn::parse_quote!(#renamed);
            return;
        }
        visit_mut::visit_expr_mut(self, e);
    }
}
