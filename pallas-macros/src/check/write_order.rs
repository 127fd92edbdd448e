//! Checks when outputs and scratch are written, and by which programs.
use crate::ast::{Errors, KernelOptions, Parameter, ParameterRole};
use crate::rewrite::idents;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Expr, Ident, ItemFn};

/// Reports outputs that are never stored, reads before writes, and blocks that programs of a parallel axis share.
pub(super) fn check_write_order(f: &ItemFn, options: &KernelOptions, parameters: &[Parameter], errors: &mut Errors) {
    let sequential = (0..options.grid.len()).any(|axis| !is_parallel(options, axis));
    for p in parameters.iter().filter(|p| matches!(p.role, ParameterRole::Output | ParameterRole::Scratch)) {
        let mut uses = OperandAccesses::new(&p.name, options);
        uses.visit_block(&f.block);
        let name = &p.name;
        if p.role == ParameterRole::Output && !uses.stored && uses.begun.is_none() {
            errors.push_at(name, format!("output `{name}` is never stored"), &format!("`{name}.store(tile)`"));
        } else if let Some(read) = uses.early.filter(|read| {
            // Another step may have written the block, or an input.
            (!sequential || matches!(read, EarlyRead::AfterGuardedStore(..)))
                && p.block.as_ref().is_none_or(|b| b.alias.is_none())
        }) {
            read.report(p, options, errors);
        } else if p.role == ParameterRole::Output && uses.always {
            report_shared_block(p, options, errors);
        }
    }
}

/// Returns true if the programs along an axis are independent of each other.
fn is_parallel(options: &KernelOptions, axis: usize) -> bool {
    match &options.semantics {
        Some((names, _)) => names.get(axis).is_some_and(|n| n == "parallel"),
        None => axis < options.grid.len(),
    }
}

/// Reports a parallel axis that the map of an output leaves out, though every program stores.
fn report_shared_block(p: &Parameter, options: &KernelOptions, errors: &mut Errors) {
    let Some(map) = p.block.as_ref().and_then(|b| b.map.as_ref()) else { return };
    if map.inputs.len() != options.grid.len() {
        return;
    }
    let read = idents(map.body.to_token_stream());
    let left_out = |axis: &usize| idents(map.inputs[*axis].to_token_stream()).iter().all(|name| !read.contains(name));
    let several = |axis: &usize| !matches!(options.grid[*axis].to_token_stream().to_string().as_str(), "0" | "1");
    let shared = (0..options.grid.len()).filter(|&axis| is_parallel(options, axis)).filter(several).find(left_out);
    if let Some(axis) = shared {
        errors.push_at(
            map,
            format!("all programs of axis {axis} store to the same block of `{}`, and the axis is parallel", p.name),
            "take the axis into the index map, or make it `arbitrary` in `semantics = (..)`: steps in order",
        );
    }
}

/// A read of an output or scratch buffer that every run of the body makes before it stores there, or after a store that
/// only the programs with one index along a parallel axis make.
enum EarlyRead {
    /// Before any store; at this method.
    BeforeAnyStore(Ident),
    /// All stores before it are by programs with this index along a parallel axis.
    AfterGuardedStore(ProgramCondition),
}
impl EarlyRead {
    /// Reports the read, with a hint how to initialise the memory.
    fn report(self, p: &Parameter, options: &KernelOptions, errors: &mut Errors) {
        let (what, name) = (if p.role == ParameterRole::Output { "output" } else { "scratch" }, &p.name);
        match self {
            EarlyRead::BeforeAnyStore(read) if p.role == ParameterRole::Output => errors.push_at(
                read,
                format!("output `{name}` is read before it is written"),
                "an output holds nothing at first: store to it, or read an `In`",
            ),
            EarlyRead::BeforeAnyStore(read) => errors.push_at(
                read,
                format!("scratch `{name}` is read before it is written"),
                "scratch holds nothing at first, and no step of a sequential axis came before: store to it",
            ),
            EarlyRead::AfterGuardedStore(ProgramCondition { condition, axis }) => errors.push_at(
                condition,
                format!(
                    "{what} `{name}` is begun by one program of axis {axis}, which is parallel: the others read nothing"
                ),
                &initialization_help(p, options, axis),
            ),
        }
    }
}

/// Returns the hint for memory that only one program of the parallel axis `axis` initialises: how to initialise it
/// instead.
fn initialization_help(p: &Parameter, options: &KernelOptions, axis: usize) -> String {
    let others = (0..options.grid.len()).filter(|&other| other != axis);
    let map = p.block.as_ref().and_then(|b| b.map.as_ref()).filter(|map| map.inputs.len() == options.grid.len());
    let chooses = map.is_some_and(|map| {
        let read = idents(map.body.to_token_stream());
        idents(map.inputs[axis].to_token_stream()).iter().any(|name| read.contains(name))
    });
    match others.clone().find(|&other| !is_parallel(options, other)) {
        Some(steps) => format!("its steps run along axis {steps}, which is `arbitrary`: test `program_id({steps})`"),
        None if chooses && others.count() > 0 => format!(
            "axis {axis} chooses its block: test the axis along which programs share a block, and make that `arbitrary`"
        ),
        None => "steps that share memory run in order: make the axis `arbitrary` in `semantics = (..)`".to_string(),
    }
}

/// A condition `program_id(axis) == n` on the index along a parallel axis.
#[derive(Clone)]
struct ProgramCondition {
    condition: Expr,
    axis: usize,
}

/// Accesses of a body to an output or a scratch buffer, in the order of the source.
struct OperandAccesses<'a> {
    name: &'a Ident,
    options: &'a KernelOptions,
    /// Number of enclosing branches, loops and closures.
    branches: usize,
    /// True if the body may have stored to it so far.
    stored: bool,
    /// True if every run of the body stores to the whole of it.
    always: bool,
    /// The first condition that guards a store before which there is no other store.
    begun: Option<ProgramCondition>,
    /// The first read before a store.
    early: Option<EarlyRead>,
}
impl<'a> OperandAccesses<'a> {
    fn new(name: &'a Ident, options: &'a KernelOptions) -> Self {
        OperandAccesses { name, options, branches: 0, stored: false, always: false, begun: None, early: None }
    }
    /// The condition, if it is `program_id(axis) == n` for a parallel axis.
    fn match_program_condition(&self, condition: &Expr) -> Option<ProgramCondition> {
        let Expr::Binary(syn::ExprBinary { left, op: syn::BinOp::Eq(_), right, .. }) = condition else { return None };
        let (Expr::Call(call), Expr::Lit(_)) = (&**left, &**right) else { return None };
        let Expr::Path(function) = &*call.func else { return None };
        let (true, [Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(axis), .. })]) =
            (function.path.is_ident("program_id"), &*call.args.iter().cloned().collect::<Vec<_>>())
        else {
            return None;
        };
        let axis: usize = axis.base10_parse().ok()?;
        is_parallel(self.options, axis).then(|| ProgramCondition { condition: condition.clone(), axis })
    }
    /// Returns true if the expression is this output or buffer.
    fn is_this_operand(&self, e: &Expr) -> bool {
        match e {
            Expr::Paren(p) => self.is_this_operand(&p.expr),
            Expr::Group(p) => self.is_this_operand(&p.expr),
            Expr::Path(p) => p.path.is_ident(self.name),
            _ => false,
        }
    }
    /// Visits code that may not run, or may run several times.
    fn visit_conditionally(&mut self, visit: impl FnOnce(&mut Self)) {
        self.branches += 1;
        visit(self);
        self.branches -= 1;
    }
}
impl Visit<'_> for OperandAccesses<'_> {
    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        // `out.at(..).load()`
        let mut receiver = &*call.receiver;
        let mut views = vec![];
        while let Expr::MethodCall(inner) = receiver
            && inner.method == "at"
        {
            views.push(inner);
            receiver = &inner.receiver;
        }
        if !self.is_this_operand(receiver) {
            return visit::visit_expr_method_call(self, call);
        }
        views.iter().flat_map(|v| &v.args).chain(&call.args).for_each(|a| self.visit_expr(a));
        match call.method.to_string().as_str() {
            "load" | "load_masked" if !self.stored && self.branches == 0 => {
                let begun = self.begun.clone().map(EarlyRead::AfterGuardedStore);
                self.early
                    .get_or_insert_with(|| begun.unwrap_or_else(|| EarlyRead::BeforeAnyStore(call.method.clone())));
            }
            "load" | "load_masked" | "shape" | "valid" => {}
            method => {
                self.stored = true;
                let whole = views.is_empty() && ["store", "fill", "swap"].contains(&method);
                self.always |= whole && self.branches == 0;
            }
        }
    }
    fn visit_path(&mut self, p: &syn::Path) {
        self.stored |= p.is_ident(self.name);
    }
    fn visit_macro(&mut self, m: &syn::Macro) {
        self.stored |= idents(m.tokens.clone()).contains(&self.name.to_string());
    }
    fn visit_stmt(&mut self, s: &syn::Stmt) {
        // `#[cfg(..)]`
        let conditional = s.to_token_stream().into_iter().next().is_some_and(|t| t.to_string() == "#");
        if conditional { self.visit_conditionally(|u| visit::visit_stmt(u, s)) } else { visit::visit_stmt(self, s) }
    }
    fn visit_expr_if(&mut self, e: &syn::ExprIf) {
        let begins = self
            .match_program_condition(&e.cond)
            .filter(|_| e.else_branch.is_none() && self.branches == 0 && !self.stored);
        self.visit_conditionally(|u| visit::visit_expr_if(u, e));
        if let (Some(begins), true) = (begins, self.stored) {
            self.stored = false;
            self.begun.get_or_insert(begins);
        }
    }
    fn visit_expr_match(&mut self, e: &syn::ExprMatch) {
        self.visit_conditionally(|u| visit::visit_expr_match(u, e));
    }
    fn visit_expr_for_loop(&mut self, e: &syn::ExprForLoop) {
        self.visit_conditionally(|u| visit::visit_expr_for_loop(u, e));
    }
    fn visit_expr_while(&mut self, e: &syn::ExprWhile) {
        self.visit_conditionally(|u| visit::visit_expr_while(u, e));
    }
    fn visit_expr_loop(&mut self, e: &syn::ExprLoop) {
        self.visit_conditionally(|u| visit::visit_expr_loop(u, e));
    }
    fn visit_expr_closure(&mut self, e: &syn::ExprClosure) {
        self.visit_conditionally(|u| visit::visit_expr_closure(u, e));
    }
    fn visit_pat_ident(&mut self, p: &syn::PatIdent) {
        // Another variable has this name, so uses of the name are not judged.
        self.stored |= p.ident == *self.name;
        visit::visit_pat_ident(self, p);
    }
}
