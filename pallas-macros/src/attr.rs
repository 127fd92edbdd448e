//! Reads a kernel's signature: the role and the specs of each parameter.
use crate::ast::{BlockSpec, Errors, Parameter, ParameterRole};
use quote::ToTokens;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::{Expr, FnArg, ItemFn, Pat, Token, Type, bracketed};

/// Reads the parameters, and removes the kernel's own attributes from them.
pub(crate) fn parse_parameters(f: &mut ItemFn, errors: &mut Errors) -> Vec<Parameter> {
    let mut out = vec![];
    for input in &mut f.sig.inputs {
        match input {
            FnArg::Receiver(r) => {
                errors.push_at(
                    r,
                    "a kernel has no `self`",
                    "make it an associated function; pass host values as `#[fixed]`",
                );
            }
            FnArg::Typed(typed) => out.extend(parse_parameter(typed, errors)),
        }
    }
    out
}

/// Reads one parameter; reports a pattern that is not a plain name.
fn parse_parameter(typed: &mut syn::PatType, errors: &mut Errors) -> Option<Parameter> {
    let Pat::Ident(id) = &*typed.pat else {
        errors.push_at(&typed.pat, "a kernel's parameter is a plain name", "take it apart inside of the body");
        return None;
    };
    if let Some(m) = &id.mutability {
        errors.push_at(
            m,
            "a kernel's parameter is not `mut`",
            "refs are written by `store`; copy a host value into a `let mut`",
        );
    }
    let mut p = Parameter {
        name: id.ident.clone(),
        pat: (*typed.pat).clone(),
        ty: (*typed.ty).clone(),
        role: parameter_role(&typed.ty),
        block: None,
        sizes: None,
        attrs: vec![],
        unread: false,
    };
    for attr in std::mem::take(&mut typed.attrs) {
        if let Err(e) = read_spec(&mut p, &attr) {
            p.unread = true;
            errors.push(e);
        }
    }
    if let Some(b) = &mut p.block {
        errors.extend(std::mem::take(&mut b.wrong));
    }
    Some(p)
}

/// Role of a parameter by the last segment of its type, such as `In`.
fn parameter_role(ty: &Type) -> ParameterRole {
    let Type::Path(path) = ty else { return ParameterRole::Param };
    match path.path.segments.last().map(|s| s.ident.to_string()).as_deref() {
        Some("In") => ParameterRole::Input,
        Some("Out") => ParameterRole::Output,
        Some("Scratch") => ParameterRole::Scratch,
        Some("Prefetch") => ParameterRole::Prefetch,
        _ => ParameterRole::Param,
    }
}

/// Reads an attribute `#[block(..)]`, `#[scratch(..)]`, `#[prefetch(..)]`, `#[fixed]` or `#[dim]` into the parameter,
/// which keeps any other attribute as it is.
fn read_spec(p: &mut Parameter, attr: &syn::Attribute) -> syn::Result<()> {
    let path = attr.path();
    let refuse = |message: String| Err(syn::Error::new_spanned(attr, message));
    let name = p.name.to_string();
    if path.is_ident("block") {
        if !matches!(p.role, ParameterRole::Input | ParameterRole::Output) {
            return refuse(format!(
                "`{name}` is no `In` or `Out`, so it has no blocks\n  help: write `{name}: In<f32>`"
            ));
        }
        if p.block.is_some() {
            return refuse(format!("a second `#[block(..)]` of `{name}`\n  help: keep one of them"));
        }
        p.block = Some(attr.parse_args::<BlockSpec>()?);
    } else if path.is_ident("scratch") {
        if p.role != ParameterRole::Scratch {
            return refuse(format!("`{name}` is no `Scratch`\n  help: write `{name}: Scratch<f32>`"));
        }
        if p.sizes.is_some() {
            return refuse(format!("a second `#[scratch(..)]` of `{name}`\n  help: keep one of them"));
        }
        p.sizes = Some(attr.parse_args_with(parse_sizes)?);
    } else if path.is_ident("prefetch") {
        if p.role != ParameterRole::Prefetch {
            return refuse(format!("`{name}` is no `Prefetch`\n  help: write `{name}: Prefetch<i32>`"));
        }
        if p.sizes.is_some() {
            return refuse(format!("a second `#[prefetch(..)]` of `{name}`\n  help: keep one of them"));
        }
        p.sizes = Some(attr.parse_args_with(parse_sizes)?);
    } else if path.is_ident("fixed") || path.is_ident("dim") {
        if matches!(p.role, ParameterRole::Fixed | ParameterRole::Dim) {
            return refuse(format!("`{name}` is already `#[fixed]` or `#[dim]`\n  help: keep one of them"));
        }
        if p.role != ParameterRole::Param {
            let help = "host values are `#[fixed] flag: bool` or `#[dim] N: usize`";
            return refuse(format!("`{name}` is an operand, and known when the kernel runs\n  help: {help}"));
        }
        attr.meta.require_path_only()?;
        p.role = if path.is_ident("fixed") { ParameterRole::Fixed } else { ParameterRole::Dim };
    } else {
        p.attrs.push(attr.clone());
    }
    Ok(())
}

/// Parses a list of sizes in brackets: `[a, b]`.
fn parse_sizes(input: ParseStream<'_>) -> syn::Result<Vec<Expr>> {
    let content;
    bracketed!(content in input);
    Ok(Punctuated::<Expr, Token![,]>::parse_terminated(&content)?.into_iter().collect())
}

/// The element type of a parameter: `f32` of `In<f32>`.
pub(crate) fn element_type(p: &Parameter) -> syn::Result<Type> {
    if let Type::Path(path) = &p.ty
        && let Some(last) = path.path.segments.last()
        && let syn::PathArguments::AngleBracketed(args) = &last.arguments
        && args.args.len() == 1
        && let Some(syn::GenericArgument::Type(t)) = args.args.first()
    {
        return Ok(t.clone());
    }
    let found = p.ty.to_token_stream().to_string();
    Err(syn::Error::new_spanned(&p.ty, format!("`{found}` names no element type\n  help: write `{found}<f32>`")))
}
