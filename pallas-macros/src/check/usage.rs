//! What the body does with the kernel's operands.
use crate::ast::{Errors, Options, Parameter, Role};
use crate::names::Names;
use crate::rewrite::idents;
use quote::ToTokens;
use syn::visit::Visit;
use syn::{Expr, Ident, ItemFn};

/// Operands that the body never mentions, outputs never stored, inputs written.
pub(super) fn operands(f: &ItemFn, options: &Options, parameters: &[Parameter], names: &Names, errors: &mut Errors) {
    let body = idents(f.block.to_token_stream());
    let mut shapes: Vec<String> = options.grid.iter().flat_map(|e| idents(e.to_token_stream())).collect();
    shapes.extend(body.iter().cloned());
    let mut written = Written::default();
    written.visit_block(&f.block);
    for p in parameters {
        let name = p.name.to_string();
        let hidden = name.starts_with('_');
        let aliased = parameters.iter().filter_map(|q| q.block.as_ref()?.alias.as_ref()).any(|a| *a == p.name);
        match p.role {
            Role::Output if !body.contains(&name) => {
                errors.at(&p.name, format!("output `{name}` is never stored"), &format!("`{name}.store(tile)`"));
            }
            Role::Input
                if !body.contains(&name) && !hidden && !aliased && !sizes_something(p, parameters, &shapes, names) =>
            {
                errors.at(
                    &p.name,
                    format!("operand `{name}` is never used"),
                    &format!("load it, or call it `_{name}`"),
                );
            }
            Role::Input => {
                for method in written.methods(&name) {
                    errors.at(
                        method,
                        format!("input `{name}` is written by `.{method}(..)`"),
                        "inputs are read only; store to an `Out` or a `Scratch`",
                    );
                }
            }
            _ => {}
        }
    }
}

/// Calls of writing methods on plain names, and the names that the body binds anew.
#[derive(Default)]
struct Written<'a> {
    calls: Vec<(&'a Ident, &'a Ident)>,
    bound: Vec<&'a Ident>,
}
impl<'a> Written<'a> {
    /// The methods that write the parameter of this name; none if the body has a variable of that name.
    fn methods(&self, name: &str) -> impl Iterator<Item = &'a Ident> {
        let shadowed = self.bound.iter().any(|b| *b == name);
        self.calls.iter().filter(move |(receiver, _)| !shadowed && *receiver == name).map(|(_, method)| *method)
    }
}
impl<'a> Visit<'a> for Written<'a> {
    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let writes = ["store", "fill", "swap", "store_masked"].iter().any(|m| call.method == m);
        if let (true, Expr::Path(path)) = (writes, &*call.receiver)
            && let Some(receiver) = path.path.get_ident()
        {
            self.calls.push((receiver, &call.method));
        }
        syn::visit::visit_expr_method_call(self, call);
    }
    fn visit_pat_ident(&mut self, pattern: &'a syn::PatIdent) {
        self.bound.push(&pattern.ident);
        syn::visit::visit_pat_ident(self, pattern);
    }
}

/// Whether an operand binds a dimension that grid, body or another spec uses.
fn sizes_something(p: &Parameter, parameters: &[Parameter], used: &[String], names: &Names) -> bool {
    let Some(b) = &p.block else { return false };
    let own: Vec<String> =
        b.dims.iter().flat_map(|d| idents(d.to_token_stream())).filter(|n| names.is_dim(n)).collect();
    let elsewhere = parameters.iter().filter(|q| q.name != p.name).filter_map(|q| q.block.as_ref());
    let others: Vec<String> = elsewhere.flat_map(|b| b.dims.iter().flat_map(|d| idents(d.to_token_stream()))).collect();
    own.iter().any(|n| used.contains(n) || others.contains(n))
}
