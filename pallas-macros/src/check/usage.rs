//! Checks how the body uses the kernel's operands.
use crate::ast::{Errors, KernelOptions, Parameter, ParameterRole};
use crate::rewrite::idents;
use crate::size_language::SizeNames;
use pallas_ir::ScalarOp;
use pallas_ir::scalar::CallSyntax;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Expr, Ident, ItemFn};

/// Reports inputs that the body writes, and refs (operands that are not loaded) where it needs tiles.
pub(super) fn check_ref_uses(f: &ItemFn, parameters: &[Parameter], errors: &mut Errors) {
    let mut uses = NameUses::default();
    uses.visit_block(&f.block);
    for p in parameters
        .iter()
        .filter(|p| matches!(p.role, ParameterRole::Input | ParameterRole::Output | ParameterRole::Scratch))
    {
        let name = p.name.to_string();
        for used in uses.tile_uses(&name) {
            errors.push_at(used, format!("`{name}` is a ref, not its tile"), &format!("load it: `{name}.load()`"));
        }
    }
    for p in parameters.iter().filter(|p| p.role == ParameterRole::Input) {
        let name = p.name.to_string();
        for method in uses.writing_methods(&name) {
            errors.push_at(
                method,
                format!("input `{name}` is written by `.{method}(..)`"),
                "inputs are read only; store to an `Out` or a `Scratch`",
            );
        }
    }
}

/// Reports inputs of which the kernel uses neither elements nor sizes.
pub(super) fn check_unused_operands(
    f: &ItemFn,
    options: &KernelOptions,
    parameters: &[Parameter],
    names: &SizeNames,
    errors: &mut Errors,
) {
    let mut body = idents(f.block.to_token_stream());
    // What maps must not read is an error of its own.
    let maps = parameters.iter().filter_map(|p| p.block.as_ref()?.map.as_ref());
    body.extend(maps.flat_map(|map| idents(map.body.to_token_stream())));
    let mut shapes: Vec<String> = options.grid.iter().flat_map(|e| idents(e.to_token_stream())).collect();
    shapes.extend(body.iter().cloned());
    for p in parameters.iter().filter(|p| p.role == ParameterRole::Input) {
        let name = p.name.to_string();
        let aliased = parameters.iter().filter_map(|q| q.block.as_ref()?.alias.as_ref()).any(|a| *a == p.name);
        let used = body.contains(&name) || name.starts_with('_') || aliased;
        if !used && !gives_used_size(p, parameters, &shapes, names) {
            errors.push_at(
                &p.name,
                format!("operand `{name}` is never used"),
                &format!("load it, or call it `_{name}`"),
            );
        }
    }
}

/// Uses of names in a body: calls of writing methods on them, places where they stand for tiles, and new bindings.
#[derive(Default)]
struct NameUses<'a> {
    calls: Vec<(&'a Ident, &'a Ident)>,
    tiles: Vec<&'a Ident>,
    bound: Vec<&'a Ident>,
}
impl<'a> NameUses<'a> {
    /// Returns true if the body has a variable of the parameter's name, so that the name's uses may be the variable's.
    fn is_shadowed(&self, name: &str) -> bool {
        self.bound.iter().any(|b| *b == name)
    }
    /// Methods that write the parameter of this name.
    fn writing_methods(&self, name: &str) -> impl Iterator<Item = &'a Ident> {
        let shadowed = self.is_shadowed(name);
        self.calls.iter().filter(move |(receiver, _)| !shadowed && *receiver == name).map(|(_, method)| *method)
    }
    /// Places where the parameter of this name stands for a tile.
    fn tile_uses(&self, name: &str) -> impl Iterator<Item = &'a Ident> {
        let shadowed = self.is_shadowed(name);
        self.tiles.iter().filter(move |tile| !shadowed && **tile == name).copied()
    }
    /// Records a variable that stands alone where a tile is expected, such as an operand of `+`; ignores any other
    /// expression.
    fn record_tile_use(&mut self, e: &'a Expr) {
        if let Expr::Path(path) = e {
            self.tiles.extend(path.path.get_ident());
        }
    }
}
impl<'a> Visit<'a> for NameUses<'a> {
    fn visit_expr_binary(&mut self, e: &'a syn::ExprBinary) {
        self.record_tile_use(&e.left);
        self.record_tile_use(&e.right);
        visit::visit_expr_binary(self, e);
    }
    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let writes = ["store", "fill", "swap", "store_masked"].iter().any(|m| call.method == m);
        if let (true, Expr::Path(path)) = (writes, &*call.receiver)
            && let Some(receiver) = path.path.get_ident()
        {
            self.calls.push((receiver, &call.method));
            call.args.iter().for_each(|e| self.record_tile_use(e));
        }
        if is_tile_method(&call.method.to_string()) {
            self.record_tile_use(&call.receiver);
            call.args.iter().for_each(|e| self.record_tile_use(e));
        }
        visit::visit_expr_method_call(self, call);
    }
    fn visit_pat_ident(&mut self, pattern: &'a syn::PatIdent) {
        self.bound.push(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }
}

/// Returns true for a method that tiles have and refs do not.
fn is_tile_method(name: &str) -> bool {
    const HANDWRITTEN_METHODS: [&str; 13] = [
        "ln",
        "cast",
        "bitcast",
        "powi",
        "rank",
        "t",
        "expand",
        "squeeze",
        "slice",
        "strided_slice",
        "item",
        "broadcast",
        "one_hot",
    ];
    macro_rules! declared {
        ($doc:tt $name:ident $($rest:tt)*) => {
            if name == stringify!($name) {
                return true;
            }
        };
    }
    pallas_ir::for_each_structural_method! { declared }
    let is_row = ScalarOp::parse(name).is_some_and(|op| op.row().surface == CallSyntax::Method);
    is_row || HANDWRITTEN_METHODS.contains(&name)
}

/// Returns true if an operand gives its size to a dimension that grid, body or another spec uses.
fn gives_used_size(p: &Parameter, parameters: &[Parameter], used: &[String], names: &SizeNames) -> bool {
    let Some(b) = &p.block else { return false };
    let own: Vec<String> =
        b.dims.iter().flat_map(|d| idents(d.to_token_stream())).filter(|n| names.is_dim(n)).collect();
    let elsewhere = parameters.iter().filter(|q| q.name != p.name).filter_map(|q| q.block.as_ref());
    let others: Vec<String> = elsewhere.flat_map(|b| b.dims.iter().flat_map(|d| idents(d.to_token_stream()))).collect();
    own.iter().any(|n| used.contains(n) || others.contains(n))
}
