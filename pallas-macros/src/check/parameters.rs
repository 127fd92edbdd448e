//! Values of parameters at the beginning of the body.
use super::value::{Value, View};
use crate::ast::{BlockSize, Parameter, Role};
use crate::names::Names;
use pallas_ir::Dim;
use syn::{Expr, Ident, Type};

/// The value of a parameter in the body, as the check knows it.
pub(super) fn value(p: &Parameter, names: &Names) -> Value {
    if !p.attrs.is_empty() {
        return Value::Unknown;
    }
    let name = p.name.to_string();
    let sizes = |list: &[Expr]| list.iter().map(|e| names.symbolic(e)).collect::<Vec<Dim>>();
    match p.role {
        Role::Input | Role::Output => {
            let shape = p.block.as_ref().and_then(|b| match &b.block {
                None => Some(sizes(&b.dims)),
                Some(each) if each.len() != b.dims.len() => None,
                Some(each) => Some(each.iter().filter_map(|s| block_size(s, names)).collect()),
            });
            Value::View(View { name, shape })
        }
        Role::Scratch => Value::View(View { name, shape: p.sizes.as_deref().map(sizes) }),
        Role::Prefetch => p.sizes.as_ref().map_or(Value::Unknown, |s| Value::Prefetch(name, s.len())),
        Role::Fixed if is_list(&p.ty) => Value::List,
        Role::Param if matches!(&p.ty, Type::Path(_)) => Value::scalar(),
        Role::Fixed if matches!(&p.ty, Type::Path(t) if t.path.get_ident().is_some_and(primitive)) => {
            Value::Host { sized: false }
        }
        Role::Param | Role::Fixed | Role::Dim => Value::Unknown,
    }
}

/// Returns true for types like `[f32; 4]`, `&'static [f32]` and `Vec<f32>`.
fn is_list(ty: &Type) -> bool {
    let is_number = |ty: &Type| matches!(ty, Type::Path(t) if t.path.get_ident().is_some_and(primitive));
    match ty {
        Type::Array(array) => is_number(&array.elem),
        Type::Slice(slice) => is_number(&slice.elem),
        Type::Reference(reference) => is_list(&reference.elem),
        Type::Path(t) => t.path.segments.last().is_some_and(|s| match &s.arguments {
            syn::PathArguments::AngleBracketed(a) if s.ident == "Vec" => {
                a.args.iter().all(|a| matches!(a, syn::GenericArgument::Type(ty) if is_number(ty)))
            }
            _ => false,
        }),
        _ => false,
    }
}

/// Size of a block along a dimension; unknown if it is 0, which is reported elsewhere; `None` if squeezed.
fn block_size(size: &BlockSize, names: &Names) -> Option<Dim> {
    let size = match size {
        BlockSize::Squeezed => return None,
        BlockSize::Blocked(e) => names.symbolic(e),
        BlockSize::Element(parts) => names.symbolic(&parts[0]),
    };
    Some(if size.as_number() == Some(0) { Dim::UNKNOWN } else { size })
}

/// Returns true for the name of a number type or `bool`.
pub(super) fn primitive(name: &Ident) -> bool {
    const TYPES: [&str; 15] =
        ["bool", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "isize", "usize", "i128", "u128"];
    TYPES.iter().any(|t| name == t)
}
