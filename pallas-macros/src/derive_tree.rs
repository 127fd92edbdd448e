//! `#[derive(Tree)]`: passes the fields of a struct or enum to a visitor, apart from those marked `#[tree(fixed)]`.
//!
//! ```text
//! impl<T: Tree> Tree for Layer<T> {
//!     fn visit<'__tree>(&'__tree self, to: &mut Visitor<'__tree>) {
//!         match self {
//!             Self { weight: field_0, stride: field_1 } => {
//!                 static KIND: Kind = Kind { path: .., name: "Layer", fields: Some(&["weight"]), fixed: &["stride"] };
//!                 to.node(&KIND, 1, &[field_1 as &dyn Fixed]);
//!                 to.child(Segment::Field("weight"), field_0);
//!             }
//!         }
//!     }
//!     fn visit_mut<'__tree>(&'__tree mut self, to: &mut VisitorMut<'__tree>) {
//!         match self { Self { weight: field_0, stride: _ } => { to.child(field_0); } }
//!     }
//! }
//! ```
use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Fields, Ident, Member, Path, Type, parse_quote};

/// A field, and the variable that its value is bound to in a pattern.
struct Field<'a> {
    member: Member,
    variable: Ident,
    ty: &'a Type,
    is_fixed: bool,
}

impl Field<'_> {
    /// Name or position of the field, without `r#`.
    fn field_text(&self) -> String {
        match &self.member {
            Member::Named(name) => syn::ext::IdentExt::unraw(name).to_string(),
            Member::Unnamed(at) => at.index.to_string(),
        }
    }
}

/// A struct, or a variant of an enum, with its fields.
struct Variant<'a> {
    /// Path of the variant: `Self`, or `Self::Relu`.
    path: TokenStream,
    name: String,
    has_names: bool,
    fields: Vec<Field<'a>>,
}

/// Expands the derive; mistakes become compile errors at the user's tokens.
pub(crate) fn derive(item: TokenStream) -> TokenStream {
    syn::parse2(item).and_then(|input| build_tree_impl(&input)).unwrap_or_else(|e| e.to_compile_error())
}

/// Builds the `impl` of `Tree` for a type.
fn build_tree_impl(input: &DeriveInput) -> syn::Result<TokenStream> {
    let mut root: Path = parse_quote!(::pallas_rt);
    read_tree_options(&input.attrs, |meta| {
        let known = meta.path.is_ident("crate");
        if known {
            root = meta.value()?.call(Path::parse_mod_style)?;
        }
        Ok(known.then_some(()).ok_or("a type takes `crate = path` here\n  help: `fixed` stands at a field"))
    })?;
    let variants = match &input.data {
        Data::Struct(s) => vec![read_variant(quote!(Self), input.ident.to_string(), &s.fields)?],
        Data::Enum(e) => {
            let one = |v: &'_ syn::Variant| {
                read_tree_options(&v.attrs, |_| Ok(Err("a variant takes no `#[tree(..)]`\n  help: mark its fields")))?;
                let own = &v.ident;
                Ok((quote!(Self::#own), format!("{}::{own}", input.ident)))
            };
            let named = e.variants.iter().map(one).collect::<syn::Result<Vec<_>>>()?;
            let fields = e.variants.iter().map(|v| &v.fields);
            let each = named.into_iter().zip(fields).map(|((path, name), fields)| read_variant(path, name, fields));
            each.collect::<syn::Result<_>>()?
        }
        Data::Union(u) => {
            let message = "a union is no tree: nothing says which of its fields it holds\n  help: write an enum";
            return Err(syn::Error::new_spanned(u.union_token, message));
        }
    };
    let tree = quote!(#root::tree);
    let mixed = Span::mixed_site();
    let to = Ident::new("to", mixed);
    let (visits, changes): (Vec<_>, Vec<_>) = variants.iter().map(|v| build_match_arms(v, &tree, &to)).unzip();
    // A type without variants has no values, but references to one are not known to be absent.
    let value = if variants.is_empty() { quote_spanned!(mixed=> *self) } else { quote_spanned!(mixed=> self) };

    let mut generics = input.generics.clone();
    for param in input.generics.type_params() {
        let mentions = |fixed: bool| {
            let mut fields = variants.iter().flat_map(|v| &v.fields).filter(move |f| f.is_fixed == fixed);
            fields.any(|f| is_mentioned(&param.ident, f.ty.to_token_stream()))
        };
        let (name, is_child) = (&param.ident, mentions(false));
        let predicates = &mut generics.make_where_clause().predicates;
        if is_child {
            predicates.push(parse_quote!(#name: #tree::Tree));
        } else {
            predicates.push(parse_quote!(#name: ::core::clone::Clone));
        }
        if mentions(true) {
            predicates.push(parse_quote!(#name: ::core::hash::Hash + ::core::fmt::Debug));
        }
    }
    let (name, (own, arguments, clause)) = (&input.ident, generics.split_for_impl());
    Ok(quote_spanned! {mixed=>
        #[automatically_derived]
        #[allow(unused_variables, reason = "a tree may have no children")]
        impl #own #tree::Tree for #name #arguments #clause {
            fn visit<'__tree>(&'__tree self, #to: &mut #tree::Visitor<'__tree>) {
                match #value { #(#visits)* }
            }
            fn visit_mut<'__tree>(&'__tree mut self, #to: &mut #tree::VisitorMut<'__tree>) {
                match #value { #(#changes)* }
            }
        }
    })
}

/// Reads the options in `#[tree(..)]`. `read_option` reads one, or returns a message if it is not allowed here.
fn read_tree_options(
    attributes: &[Attribute],
    mut read_option: impl FnMut(&syn::meta::ParseNestedMeta<'_>) -> syn::Result<Result<(), &'static str>>,
) -> syn::Result<()> {
    for attribute in attributes.iter().filter(|a| a.path().is_ident("tree")) {
        attribute.parse_nested_meta(|meta| read_option(&meta)?.map_err(|why| meta.error(why)))?;
    }
    Ok(())
}

/// Reads a variant and the options of its fields.
fn read_variant<'a>(path: TokenStream, name: String, fields: &'a Fields) -> syn::Result<Variant<'a>> {
    let field = |(i, field): (usize, &'a syn::Field)| {
        let mut is_fixed = false;
        read_tree_options(&field.attrs, |meta| {
            is_fixed |= meta.path.is_ident("fixed");
            let known = meta.path.is_ident("fixed").then_some(());
            Ok(known.ok_or("a field takes `fixed` here\n  help: `crate = path` stands at the type"))
        })?;
        // Errors about the field point at its type.
        let span = Span::mixed_site().located_at(field.ty.span());
        let member = field.ident.clone().map_or(Member::from(i), Member::Named);
        Ok(Field { member, variable: format_ident!("field_{i}", span = span), ty: &field.ty, is_fixed })
    };
    let has_names = matches!(fields, Fields::Named(_));
    let fields = fields.iter().enumerate().map(field).collect::<syn::Result<_>>()?;
    Ok(Variant { path, name, has_names, fields })
}

/// Builds a variant's arms of the `match` in `visit` and of that in `visit_mut`; `tree` is the path of
/// `pallas_rt::tree`, `to` the variable of the visitor.
fn build_match_arms(variant: &Variant<'_>, tree: &TokenStream, to: &Ident) -> (TokenStream, TokenStream) {
    let (fixed, children): (Vec<&Field<'_>>, Vec<_>) = variant.fields.iter().partition(|f| f.is_fixed);
    let (path, name) = (&variant.path, &variant.name);
    let members: Vec<&Member> = variant.fields.iter().map(|f| &f.member).collect();
    let variables = variant.fields.iter().map(|f| &f.variable);
    let changed = variant.fields.iter().map(|f| {
        let variable = &f.variable;
        if f.is_fixed { quote!(_) } else { quote!(#variable) }
    });
    let names = children.iter().map(|f| f.field_text());
    let fields = if variant.has_names { quote!(Some(&[#(#names),*])) } else { quote!(None) };
    let fixed_names = fixed.iter().map(|f| f.field_text());
    let values = fixed.iter().map(|f| {
        let variable = &f.variable;
        quote_spanned!(variable.span()=> #variable as &dyn #tree::Fixed)
    });
    let count = children.len();
    let visits = children.iter().map(|f| {
        let (variable, text) = (&f.variable, f.field_text());
        let segment = match &f.member {
            Member::Named(_) => quote!(#tree::Segment::Field(#text)),
            Member::Unnamed(at) => {
                let at = at.index as usize;
                quote!(#tree::Segment::Position(#at))
            }
        };
        quote!(#to.child(#segment, #variable);)
    });
    let visit = quote_spanned! {Span::mixed_site()=>
        #path { #(#members: #variables),* } => {
            static KIND: #tree::Kind = #tree::Kind {
                path: ::core::concat!(
                    ::core::module_path!(), "::", #name, ":", ::core::line!(), ":", ::core::column!()
                ),
                name: #name,
                fields: ::core::option::Option::#fields,
                fixed: &[#(#fixed_names),*],
            };
            #to.node(&KIND, #count, &[#(#values),*]);
            #(#visits)*
        }
    };
    let variables = children.iter().map(|f| &f.variable);
    let change = quote_spanned! {Span::mixed_site()=>
        #path { #(#members: #changed),* } => { #(#to.child(#variables);)* }
    };
    (visit, change)
}

/// Returns true if the tokens mention this name.
fn is_mentioned(name: &Ident, tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => is_mentioned(name, group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}
