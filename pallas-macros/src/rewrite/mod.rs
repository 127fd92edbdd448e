//! Rewrites staged control flow and comparisons of a kernel body; every other expression stays as the user wrote it.
//!
//! [`control`] rewrites regions, [`jumps`] jumps out of them, [`patterns`] matches of numbers, [`operators`] operators;
//! [`state`] has the state, [`variables`] finds the variables that regions carry, [`variable_names`] names values; this
//! file traverses the body.
mod control;
mod jumps;
mod operators;
mod patterns;
mod state;
mod tokens;
mod variable_names;
mod variables;

pub(crate) use state::BodyRewriter;
pub(crate) use tokens::{dim_variable_ident, ident_from_name, idents};

use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, Pat, Stmt, Token, parse_quote_spanned};
use tokens::for_each_ident;

/// Macros of the standard library whose arguments are expressions, which are rewritten like others.
const STD_EXPRESSION_MACROS: [&str; 13] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "vec",
    "println",
    "eprintln",
    "print",
    "format",
    "write",
    "writeln",
    "panic",
    "dbg",
];

impl VisitMut for BodyRewriter {
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_path_arguments_mut(&mut self, _: &mut syn::PathArguments) {}
    fn visit_angle_bracketed_generic_arguments_mut(&mut self, _: &mut syn::AngleBracketedGenericArguments) {}
    fn visit_item_mut(&mut self, i: &mut syn::Item) {
        if let syn::Item::Macro(m) = i
            && m.ident.is_some()
            && m.mac.path.is_ident("macro_rules")
        {
            let message =
                "a `macro_rules!` inside a kernel can change variables unseen\n  help: define it outside of the kernel";
            self.errors.push(syn::Error::new_spanned(&m.ident, message))
        }
    }
    fn visit_block_mut(&mut self, b: &mut Block) {
        self.run_in_scope(|s| b.stmts.iter_mut().for_each(|x| s.visit_stmt_mut(x)))
    }
    fn visit_local_mut(&mut self, l: &mut syn::Local) {
        let size = match (&l.pat, &l.init) {
            (Pat::Ident(_), Some(init)) => self.is_size_expression(&init.expr),
            (Pat::Type(t), _) => {
                matches!((&*t.pat, &*t.ty), (Pat::Ident(_), syn::Type::Path(p)) if p.path.is_ident("usize"))
            }
            _ => false,
        };
        if let Some(i) = &mut l.init {
            if let (Pat::Type(t), Expr::If(_) | Expr::Match(_)) = (&l.pat, &*i.expr) {
                self.expect = Some((*t.ty).clone())
            }
            let given = variable_names::match_value_names(&l.pat, &i.expr);
            self.visit_expr_mut(&mut i.expr);
            self.wrap_with_names(&given, &mut i.expr);
            if let Some((_, e)) = &mut i.diverge {
                self.visit_expr_mut(e)
            }
        }
        self.bind_pattern(&l.pat, l.init.is_none());
        if let (true, Some(var)) = (size, self.vars.last_mut()) {
            var.size = true;
        }
    }
    fn visit_macro_mut(&mut self, m: &mut syn::Macro) {
        let last = m.path.segments.last().map(|s| s.ident.to_string()).unwrap_or_default();
        if STD_EXPRESSION_MACROS.contains(&&*last)
            && let Ok(mut a) = m.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated)
        {
            a.iter_mut().for_each(|e| match e {
                Expr::Assign(x) if last != "vec" => self.visit_expr_mut(&mut x.right),
                e => self.visit_expr_mut(e),
            });
            m.tokens = a.to_token_stream();
            return;
        }
        for_each_ident(m.tokens.clone(), &mut |i| self.record_read(i));
    }
    fn visit_stmt_mut(&mut self, s: &mut Stmt) {
        if let Stmt::Local(l) = s { self.visit_local_mut(l) } else { visit_mut::visit_stmt_mut(self, s) }
    }
    fn visit_arm_mut(&mut self, a: &mut syn::Arm) {
        let p = a.pat.clone();
        self.run_in_scope(|s| {
            s.bind_pattern(&p, false);
            if let Some((_, g)) = &mut a.guard {
                s.visit_expr_mut(g)
            }
            s.visit_expr_mut(&mut a.body)
        })
    }
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        match e {
            Expr::Path(p) => {
                if p.qself.is_none()
                    && let Some(i) = p.path.get_ident()
                {
                    let i = i.clone();
                    self.record_read(&i);
                    if self.is_dim(&i.to_string()) {
                        let d = dim_variable_ident(&i);
                        *e = parse_quote_spanned!(i.span()=> #d)
                    }
                }
            }
            Expr::Const(_) => {}
            Expr::Repeat(r) => self.visit_expr_mut(&mut r.expr),
            Expr::Closure(c) => {
                self.enter_closure();
                let ins: Vec<Pat> = c.inputs.iter().cloned().collect();
                self.run_in_scope(|s| {
                    ins.iter().for_each(|p| s.bind_pattern(p, false));
                    s.visit_expr_mut(&mut c.body)
                });
                self.exit_frame();
            }
            Expr::Async(a) => {
                self.enter_closure();
                self.visit_block_mut(&mut a.block);
                self.exit_frame();
            }
            Expr::Reference(r) if r.mutability.is_some() => {
                self.record_assignment(&r.expr);
                self.visit_expr_mut(&mut r.expr)
            }
            Expr::Assign(a) => {
                self.visit_expr_mut(&mut a.right);
                if !matches!(&*a.left, Expr::Path(_)) {
                    self.visit_expr_mut(&mut a.left)
                }
                self.record_assignment(&a.left);
                self.insert_late_initialization_checks(&a.left.clone(), e)
            }
            Expr::Binary(b) => self.rewrite_binary(b.clone(), e),
            Expr::If(_) => self.rewrite_if(e),
            Expr::Match(m) => {
                let expect = self.expect.take();
                match self.match_to_if_chain(m, expect) {
                    Some(chain) => {
                        *e = chain;
                        visit_mut::visit_expr_mut(self, e);
                    }
                    None => visit_mut::visit_expr_mut(self, e),
                }
            }
            Expr::Macro(m) if m.mac.path.is_ident("matches") => {
                if let Some(test) = self.rewrite_matches_macro(&m.mac) {
                    *e = test;
                }
                visit_mut::visit_expr_mut(self, e);
            }
            Expr::MethodCall(m) => {
                self.record_mutating_call(m);
                visit_mut::visit_expr_mut(self, e);
            }
            Expr::ForLoop(_) => self.rewrite_for(e),
            Expr::While(_) => self.rewrite_while(e),
            Expr::Loop(l) => {
                self.enter_loop(l.label.as_ref(), None);
                self.visit_block_mut(&mut l.body);
                self.exit_host_loop(&mut l.label);
            }
            Expr::Block(b) if b.label.is_some() => {
                b.label.iter().for_each(|l| self.enter_block(l));
                self.visit_block_mut(&mut b.block);
                self.exit_frame();
            }
            Expr::Break(syn::ExprBreak { expr: value, .. }) | Expr::Return(syn::ExprReturn { expr: value, .. }) => {
                if let Some(value) = value {
                    self.visit_expr_mut(value)
                }
                self.rewrite_jump(e);
            }
            Expr::Continue(_) => self.rewrite_jump(e),
            Expr::Try(t) => {
                self.visit_expr_mut(&mut t.expr);
                self.report_question_mark(t.question_token.span);
            }
            _ => visit_mut::visit_expr_mut(self, e),
        }
    }
}
