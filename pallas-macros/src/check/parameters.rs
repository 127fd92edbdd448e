//! Values of parameters at the beginning of the body.
use super::symbolic_value::{SymbolicValue, View};
use crate::ast::{BlockSize, Parameter, ParameterRole};
use crate::size_language::SizeNames;
use pallas_ir::Dim;
use syn::{Expr, Ident, Type};

/// Returns the symbolic value that a parameter has in the body, unknown where its role and type do not say it.
pub(super) fn parameter_value(p: &Parameter, names: &SizeNames) -> SymbolicValue {
    if !p.attrs.is_empty() {
        return SymbolicValue::Unknown;
    }
    let name = p.name.to_string();
    let sizes = |list: &[Expr]| list.iter().map(|e| names.symbolic_size(e)).collect::<Vec<Dim>>();
    match p.role {
        ParameterRole::Input | ParameterRole::Output => {
            let shape = p.block.as_ref().and_then(|b| match &b.block {
                None => Some(sizes(&b.dims)),
                Some(each) if each.len() != b.dims.len() => None,
                Some(each) => Some(each.iter().filter_map(|s| block_size(s, names)).collect()),
            });
            SymbolicValue::View(View { name, shape })
        }
        ParameterRole::Scratch => SymbolicValue::View(View { name, shape: p.sizes.as_deref().map(sizes) }),
        ParameterRole::Prefetch => {
            p.sizes.as_ref().map_or(SymbolicValue::Unknown, |s| SymbolicValue::Prefetch(name, s.len()))
        }
        ParameterRole::Fixed if is_list(&p.ty) => SymbolicValue::HostList,
        ParameterRole::Param if matches!(&p.ty, Type::Path(_)) => SymbolicValue::run_time_scalar(),
        ParameterRole::Fixed if matches!(&p.ty, Type::Path(t) if t.path.get_ident().is_some_and(is_primitive_type)) => {
            SymbolicValue::Host { sized: false }
        }
        ParameterRole::Param | ParameterRole::Fixed | ParameterRole::Dim => SymbolicValue::Unknown,
    }
}

/// Returns true for types like `[f32; 4]`, `&'static [f32]` and `Vec<f32>`.
fn is_list(ty: &Type) -> bool {
    let is_number = |ty: &Type| matches!(ty, Type::Path(t) if t.path.get_ident().is_some_and(is_primitive_type));
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
fn block_size(size: &BlockSize, names: &SizeNames) -> Option<Dim> {
    let size = match size {
        BlockSize::Squeezed => return None,
        BlockSize::Blocked(e) => names.symbolic_size(e),
        BlockSize::Element(parts) => names.symbolic_size(&parts[0]),
    };
    Some(if size.as_number() == Some(0) { Dim::UNKNOWN } else { size })
}

/// Returns true for the name of a number type or `bool`.
pub(super) fn is_primitive_type(name: &Ident) -> bool {
    const PRIMITIVE_TYPES: [&str; 15] =
        ["bool", "f32", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "isize", "usize", "i128", "u128"];
    PRIMITIVE_TYPES.iter().any(|t| name == t)
}
