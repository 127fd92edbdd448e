//! Walks a body with a symbolic value for each expression.
//!
//! Names are rigid: `BQ` and `BK` differ unless `assume(BQ == BK)` says otherwise, since a kernel is right for all
//! sizes. Values that the walk cannot follow (the user's own functions and macros, host conditions on sizes) are
//! unknown.
use super::parameters::{self, is_primitive_type};
use super::shadowed_names;
use super::symbolic_value::{AxisSpan, SymbolicValue};
use super::tracked_variables::{ChangedVariables, UntrackedNames, Variables, root_variable, strip_parentheses};
use crate::ast::{Errors, KernelOptions, Parameter, ParameterRole, is_assigning};
use crate::rewrite::ident_from_name;
use crate::size_language::SizeNames;
use pallas_ir::dim::Facts;
use pallas_ir::{At, Diag, Dim, ScalarOp, StructuralOp, diag};
use quote::ToTokens;
use std::collections::BTreeSet;
use syn::visit::Visit;
use syn::{BinOp, Block, Expr, ItemFn, Lit, Stmt, Type};

/// Checks the shapes in a kernel's body.
pub(super) fn check_shapes(
    f: &ItemFn,
    options: &KernelOptions,
    parameters: &[Parameter],
    names: &SizeNames,
    errors: &mut Errors,
) {
    let mut facts = Facts::default();
    for ((a, b), tokens) in options.assume.iter().zip(&options.assumed) {
        let (x, y) = (names.symbolic_size(a), names.symbolic_size(b));
        if x != Dim::UNKNOWN && y != Dim::UNKNOWN && !facts.assume(&x, &y) {
            let help = "one side is a name that the other does not mention: `assume(BQ == 2 * BK)`";
            errors.push_at(tokens, format!("the check can't use `{x} == {y}`"), help);
        }
    }
    let axes = options.grid_tokens.is_some().then_some(options.grid.len());
    let walk = |unseen: UntrackedNames| {
        let mut walk = ShapeChecker::new(facts.clone(), axes, unseen);
        for c in f.sig.generics.const_params() {
            let is_bool = matches!(&c.ty, Type::Path(p) if p.path.is_ident("bool"));
            let size = || SymbolicValue::Size(Dim::name(&c.ident.to_string()));
            walk.variables.declare(
                &c.ident,
                false,
                if is_bool { SymbolicValue::Host { sized: false } } else { size() },
            );
        }
        for d in &names.dims {
            let value = if names.statics.contains(d) {
                SymbolicValue::Size(Dim::name(d))
            } else {
                SymbolicValue::run_time_scalar()
            };
            walk.variables.declare(&ident_from_name(d), false, value);
        }
        for p in parameters.iter().filter(|p| p.role != ParameterRole::Dim) {
            walk.variables.declare(&p.name, false, parameters::parameter_value(p, names));
        }
        walk.eval_block(&f.block);
        walk
    };
    let mut walked = walk(UntrackedNames::from_body(&f.block));
    if !walked.errors.is_empty() {
        // Before mistakes are reported: a function may be the user's own instead of the language's.
        let own = shadowed_names::names_declared_in_file(&walked.called);
        if !own.is_empty() {
            walked = walk(UntrackedNames::from_body(&f.block).with_names(own));
        }
    }
    errors.extend(walked.errors);
}

/// Evaluator of a kernel's body on symbolic sizes, which reports shapes that do not agree; with what it knows so far.
pub(super) struct ShapeChecker {
    /// Equalities of sizes.
    pub(super) facts: Facts,
    /// Number of grid axes, if the grid is given.
    pub(super) axes: Option<usize>,
    pub(super) variables: Variables,
    pub(super) unseen: UntrackedNames,
    /// True if code may be meant for some sizes only: it is walked, but its mistakes are not reported.
    pub(super) quiet: bool,
    pub(super) errors: Vec<syn::Error>,
    /// Names of the functions that the body calls.
    pub(super) called: BTreeSet<String>,
}

impl ShapeChecker {
    fn new(facts: Facts, grid_axes: Option<usize>, untracked: UntrackedNames) -> ShapeChecker {
        let (variables, called) = (Variables::default(), BTreeSet::new());
        ShapeChecker { facts, axes: grid_axes, variables, unseen: untracked, quiet: false, errors: vec![], called }
    }
    /// Reports a mistake at the token of the operation, or at the operand that it blames; nothing while `quiet`.
    pub(super) fn report(&mut self, diag: &Diag, at: &dyn ToTokens, operands: &[&Expr]) {
        if self.quiet {
            return;
        }
        let tokens = match diag.at {
            At::Operand(i) if i < operands.len() => operands[i].to_token_stream(),
            At::Operand(_) | At::Op => at.to_token_stream(),
        };
        self.errors.push(syn::Error::new_spanned(tokens, diag.to_string()));
    }
    /// Returns the tile that a shape rule gives; reports its mistake and returns an unknown value otherwise.
    fn tile_or_report(&mut self, rule: Result<Vec<Dim>, Diag>, at: &dyn ToTokens, operands: &[&Expr]) -> SymbolicValue {
        rule.map_or_else(
            |diag| {
                self.report(&diag, at, operands);
                SymbolicValue::Unknown
            },
            SymbolicValue::Tile,
        )
    }
    /// Returns the symbolic result of a structural operation (a product, reduction, reshape ..) on operands with these
    /// shapes; reports a mistake at the token `at`, or at the operand that it blames.
    pub(super) fn structural_value(
        &mut self,
        op: impl Into<StructuralOp>,
        shapes: &[&[Dim]],
        at: &dyn ToTokens,
        operands: &[&Expr],
    ) -> SymbolicValue {
        let shapes: Vec<Vec<Dim>> = shapes.iter().map(|s| self.normalize_shape(s)).collect();
        let shapes: Vec<&[Dim]> = shapes.iter().map(|s| &s[..]).collect();
        let op = op.into();
        // The user's name of the operation: several names share one operation of the IR.
        let words = |text: String| text.replace(&format!("`{}`", op.name()), &format!("`{}`", at.to_token_stream()));
        let rule = op.infer(&shapes, &self.facts);
        self.tile_or_report(rule.map_err(|d| Diag { message: words(d.message), ..d }), at, operands)
    }
    /// Returns the symbolic result of a scalar operation that is applied element by element to `values`; shapes that do
    /// not agree are reported at the token `at`, or at the operand to blame.
    pub(super) fn elementwise_value(
        &mut self,
        op: ScalarOp,
        values: &[&SymbolicValue],
        at: &dyn ToTokens,
        operands: &[&Expr],
    ) -> SymbolicValue {
        if values.iter().all(|v| v.is_host_scalar()) {
            return SymbolicValue::Host { sized: values.iter().any(|v| v.depends_on_sizes()) };
        }
        let shapes: Option<Vec<Vec<Dim>>> =
            values.iter().map(|v| Some(self.normalize_shape(v.operand_shape()?))).collect();
        let Some(shapes) = shapes else { return SymbolicValue::Unknown };
        let shapes: Vec<&[Dim]> = shapes.iter().map(|s| &s[..]).collect();
        let rule = op.infer_shape(&shapes, &self.facts);
        self.tile_or_report(rule, at, operands)
    }
    /// Returns the shape with each size replaced by its normal form under the known equalities.
    fn normalize_shape(&self, dims: &[Dim]) -> Vec<Dim> {
        dims.iter().map(|d| self.facts.rewrite_by_facts(d)).collect()
    }

    /// Evaluates a block symbolically; returns the value of its last expression.
    pub(super) fn eval_block(&mut self, b: &Block) -> SymbolicValue {
        let scope = self.variables.0.len();
        let mut value = SymbolicValue::Unit;
        for statement in &b.stmts {
            value = self.eval_statement(statement);
        }
        self.variables.0.truncate(scope);
        value
    }
    /// Walks a statement; returns the value of a final expression.
    fn eval_statement(&mut self, s: &Stmt) -> SymbolicValue {
        match s {
            Stmt::Local(l) => {
                let conditional = has_cfg_attribute(&l.attrs);
                let quiet = self.quiet;
                self.quiet |= conditional;
                let value = l.init.as_ref().map_or(SymbolicValue::Unknown, |init| self.eval_expr(&init.expr));
                self.quiet = quiet;
                let first = self.variables.0.len();
                self.variables.bind_pattern(&l.pat, if conditional { SymbolicValue::Unknown } else { value });
                if l.init.is_none() {
                    self.variables.mark_as_assigned_later(first);
                }
                // Code after a `let .. else` may be for some sizes only.
                self.quiet |= l.init.as_ref().is_some_and(|i| i.diverge.is_some());
                SymbolicValue::Unit
            }
            Stmt::Expr(e, end) if has_cfg_attribute(statement_attributes(e)) => {
                let quiet = std::mem::replace(&mut self.quiet, true);
                self.eval_expr(e);
                self.quiet = quiet;
                self.variables.forget_changed_values(&ChangedVariables::from_visit(|c| c.visit_expr(e)));
                if end.is_some() { SymbolicValue::Unit } else { SymbolicValue::Unknown }
            }
            Stmt::Expr(e, end) => {
                let value = self.eval_expr(e);
                if end.is_some() { SymbolicValue::Unit } else { value }
            }
            Stmt::Macro(m) => {
                self.eval_macro_call(&m.mac);
                SymbolicValue::Unknown
            }
            Stmt::Item(_) => SymbolicValue::Unit,
        }
    }

    /// Returns the value of an expression, and walks each of its parts once.
    pub(super) fn eval_expr(&mut self, e: &Expr) -> SymbolicValue {
        match strip_parentheses(e) {
            Expr::Lit(l) => literal_value(&l.lit),
            Expr::Path(p) => self.eval_path(p),
            Expr::Reference(r) => self.eval_expr(&r.expr),
            Expr::Unary(u) => self.eval_unary(u),
            Expr::Binary(b) => self.eval_binary(b),
            Expr::Cast(c) => match self.eval_expr(&c.expr) {
                SymbolicValue::Size(d) if matches!(&*c.ty, Type::Path(t) if !t.path.is_ident("f32") && !t.path.is_ident("f64")) => {
                    SymbolicValue::Size(d)
                }
                host if host.is_host_scalar() => SymbolicValue::Host { sized: host.depends_on_sizes() },
                _ => SymbolicValue::Unknown,
            },
            Expr::Tuple(t) if t.elems.is_empty() => SymbolicValue::Unit,
            Expr::Tuple(t) => SymbolicValue::Sequence(t.elems.iter().map(|e| self.eval_expr(e)).collect()),
            Expr::Array(a) => SymbolicValue::Sequence(a.elems.iter().map(|e| self.eval_expr(e)).collect()),
            Expr::Repeat(r) => {
                let (value, n) = (self.eval_expr(&r.expr), self.eval_expr(&r.len).as_axis());
                n.filter(|n| *n <= 64).map_or(SymbolicValue::Unknown, |n| SymbolicValue::Sequence(vec![value; n]))
            }
            Expr::Range(r) => self.eval_range(r),
            Expr::Index(i) => {
                let (list, index) = (self.eval_expr(&i.expr), self.eval_expr(&i.index));
                let is_host = match &list {
                    SymbolicValue::Sequence(items) => items.iter().all(SymbolicValue::is_host_scalar),
                    list => matches!(list, SymbolicValue::HostList),
                };
                match (list, index) {
                    (_, SymbolicValue::Tile(dims)) if is_host && dims.is_empty() => {
                        self.report(&diag::run_time_host_list_index(), &i.index, &[]);
                        SymbolicValue::Unknown
                    }
                    (SymbolicValue::Sequence(mut items), index) => match index.as_axis() {
                        Some(n) if n < items.len() => items.swap_remove(n),
                        _ if is_host => SymbolicValue::Host { sized: true },
                        _ => SymbolicValue::Unknown,
                    },
                    _ => SymbolicValue::Unknown,
                }
            }
            Expr::Field(f) => match (self.eval_expr(&f.base), &f.member) {
                (SymbolicValue::Sequence(mut items), syn::Member::Unnamed(i)) if (i.index as usize) < items.len() => {
                    items.swap_remove(i.index as usize)
                }
                _ => SymbolicValue::Unknown,
            },
            Expr::Call(c) => self.eval_call(c),
            Expr::MethodCall(m) => self.eval_method_call(m),
            Expr::Macro(m) => self.eval_macro_call(&m.mac),
            Expr::Assign(a) => {
                let value = self.eval_expr(&a.right);
                self.assign_to_place(&a.left, value, &a.right);
                SymbolicValue::Unit
            }
            Expr::If(i) => self.eval_if(i),
            Expr::Match(m) => self.eval_match(m),
            Expr::ForLoop(f) => {
                self.walk_for(f);
                SymbolicValue::Unit
            }
            Expr::While(w) => {
                self.walk_while(w);
                SymbolicValue::Unit
            }
            Expr::Loop(l) => {
                self.walk_host_loop(&ChangedVariables::from_visit(|c| c.visit_block(&l.body)), |s| {
                    s.eval_block(&l.body)
                });
                SymbolicValue::Unknown
            }
            Expr::Block(b) => {
                let value = self.eval_block(&b.block);
                if b.label.is_none() {
                    return value;
                }
                self.variables.forget_changed_values(&ChangedVariables::from_visit(|c| c.visit_block(&b.block)));
                SymbolicValue::Unknown
            }
            Expr::Unsafe(u) => self.eval_block(&u.block),
            Expr::Const(c) => self.eval_block(&c.block),
            Expr::Return(r) => self.eval_jump(r.expr.as_deref()),
            Expr::Break(b) => self.eval_jump(b.expr.as_deref()),
            Expr::Try(t) => self.eval_jump(Some(&t.expr)),
            // A closure may never be called; what it assigns is unseen.
            Expr::Closure(_) => SymbolicValue::Unknown,
            other => {
                self.variables.forget_changed_values(&ChangedVariables::from_visit(|c| c.visit_expr(other)));
                SymbolicValue::Unknown
            }
        }
    }
    fn eval_jump(&mut self, value: Option<&Expr>) -> SymbolicValue {
        if let Some(e) = value {
            self.eval_expr(e);
        }
        SymbolicValue::Unknown
    }

    /// Returns the value of a variable or constant; unknown if the check cannot follow it.
    fn eval_path(&self, p: &syn::ExprPath) -> SymbolicValue {
        let Some(name) = p.path.get_ident() else {
            // `f32::NEG_INFINITY`
            let number =
                p.qself.is_none() && p.path.segments.len() == 2 && is_primitive_type(&p.path.segments[0].ident);
            return if number { SymbolicValue::Host { sized: false } } else { SymbolicValue::Unknown };
        };
        match self.variables.get(name) {
            Some(v) if self.unseen.may_change(v) => SymbolicValue::Unknown,
            Some(v) => v.value.clone(),
            // `SCALE`, a constant from outside.
            None if !self.unseen.may_shadow_function(name) && is_constant_name(&name.to_string()) => {
                SymbolicValue::Host { sized: true }
            }
            None => SymbolicValue::Unknown,
        }
    }
    /// Evaluates a unary operation symbolically; returns its value.
    fn eval_unary(&mut self, u: &syn::ExprUnary) -> SymbolicValue {
        match (&u.op, self.eval_expr(&u.expr)) {
            (syn::UnOp::Deref(_), value) => value,
            (syn::UnOp::Neg(_), SymbolicValue::Size(d)) => SymbolicValue::Size(&Dim::from(0i64) - &d),
            (_, tile @ (SymbolicValue::Tile(_) | SymbolicValue::Host { .. })) => tile,
            _ => SymbolicValue::Unknown,
        }
    }
    /// Evaluates a binary operation symbolically and returns its value; an assigning one also changes the variable on
    /// its left.
    fn eval_binary(&mut self, b: &syn::ExprBinary) -> SymbolicValue {
        let left = self.eval_expr(&b.left);
        // The right side of `BQ == BK && ..` is for some sizes only.
        let quiet = self.quiet;
        self.quiet |= matches!(b.op, BinOp::And(_) | BinOp::Or(_))
            && !matches!(left, SymbolicValue::Tile(_) | SymbolicValue::Host { sized: false });
        let right = self.eval_expr(&b.right);
        self.quiet = quiet;
        if let (SymbolicValue::Size(x), SymbolicValue::Size(y)) = (&left, &right) {
            match b.op {
                BinOp::Add(_) => return SymbolicValue::Size(x + y),
                BinOp::Sub(_) => return SymbolicValue::Size(x - y),
                BinOp::Mul(_) => return SymbolicValue::Size(x * y),
                BinOp::Div(_) => {
                    if let (Some(x), Some(y)) = (x.as_number(), y.as_number())
                        && let Some(n) = x.checked_div(y)
                    {
                        return SymbolicValue::constant_size(n);
                    }
                }
                _ => {}
            }
        }
        let value = match scalar_operation(&b.op) {
            Some(op) => self.elementwise_value(op, &[&left, &right], &b.op, &[&b.left, &b.right]),
            None => SymbolicValue::Unknown,
        };
        if is_assigning(&b.op) {
            self.assign_to_place(&b.left, value, &b.right);
            return SymbolicValue::Unit;
        }
        value
    }
    /// Assigns a value, which the expression `source` computes, to a place.
    fn assign_to_place(&mut self, place: &Expr, value: SymbolicValue, source: &Expr) {
        match (strip_parentheses(place), value) {
            (Expr::Path(p), value) => {
                if let Some(name) = p.path.get_ident() {
                    self.variables.set(name, value, source.to_token_stream());
                }
            }
            (Expr::Tuple(t), SymbolicValue::Sequence(parts)) if parts.len() == t.elems.len() => {
                t.elems.iter().zip(parts).for_each(|(e, v)| self.assign_to_place(e, v, source));
            }
            (Expr::Tuple(t), _) => t.elems.iter().for_each(|e| self.assign_to_place(e, SymbolicValue::Unknown, source)),
            (Expr::Array(t), _) => t.elems.iter().for_each(|e| self.assign_to_place(e, SymbolicValue::Unknown, source)),
            (other, _) => {
                if let Some(name) = root_variable(other) {
                    self.variables.set(name, SymbolicValue::Unknown, source.to_token_stream());
                }
            }
        }
    }
    /// Returns the elements that a range selects as an index of a view; unknown if its bounds are no known sizes.
    fn eval_range(&mut self, r: &syn::ExprRange) -> SymbolicValue {
        let start = r.start.as_ref().map(|e| self.eval_expr(e));
        let end = r.end.as_ref().map(|e| self.eval_expr(e));
        match (start, end) {
            (None, None) => SymbolicValue::Span(AxisSpan::All),
            (Some(SymbolicValue::Size(a)), Some(SymbolicValue::Size(b)))
                if matches!(r.limits, syn::RangeLimits::HalfOpen(_)) =>
            {
                SymbolicValue::Span(AxisSpan::Part { size: &b - &a, start: Some(a), stride: Dim::from(1i64) })
            }
            _ => SymbolicValue::Unknown,
        }
    }
    /// Evaluates the arguments of macros of the standard library; `assert!` and `assert_eq!` of sizes add an equality,
    /// `vec!` gives a sequence.
    fn eval_macro_call(&mut self, m: &syn::Macro) -> SymbolicValue {
        type Arguments = syn::punctuated::Punctuated<Expr, syn::Token![,]>;
        let Ok(arguments) = m.parse_body_with(Arguments::parse_terminated) else { return SymbolicValue::Unknown };
        let is = |name: &str| m.path.is_ident(name);
        if is("vec") {
            return SymbolicValue::Sequence(arguments.iter().map(|e| self.eval_expr(e)).collect());
        }
        let equal = match arguments.first().map(strip_parentheses) {
            Some(Expr::Binary(b)) if is("assert") && matches!(b.op, BinOp::Eq(_)) => Some((&*b.left, &*b.right)),
            Some(left) if is("assert_eq") => arguments.get(1).map(|right| (left, right)),
            _ => None,
        };
        if let Some((left, right)) = equal
            && let (SymbolicValue::Size(x), SymbolicValue::Size(y)) = (self.eval_expr(left), self.eval_expr(right))
        {
            self.facts.assume(&x, &y);
        }
        SymbolicValue::Unknown
    }
}

/// The value of a literal.
fn literal_value(l: &Lit) -> SymbolicValue {
    match l {
        Lit::Int(n) if n.suffix() == "f32" || n.suffix() == "f64" => SymbolicValue::Host { sized: false },
        Lit::Int(n) => {
            n.base10_parse::<i64>().map_or(SymbolicValue::Host { sized: false }, SymbolicValue::constant_size)
        }
        Lit::Float(_) => SymbolicValue::Host { sized: false },
        // Literals count as sized, since `if false` may guard code that is wrong.
        Lit::Bool(_) => SymbolicValue::Host { sized: true },
        _ => SymbolicValue::Unknown,
    }
}

/// Returns the scalar operation of a binary operator, for an assigning one that of its plain form; `None` if it has
/// none.
fn scalar_operation(op: &BinOp) -> Option<ScalarOp> {
    Some(match op {
        BinOp::Add(_) | BinOp::AddAssign(_) => ScalarOp::Add,
        BinOp::Sub(_) | BinOp::SubAssign(_) => ScalarOp::Sub,
        BinOp::Mul(_) | BinOp::MulAssign(_) => ScalarOp::Mul,
        BinOp::Div(_) | BinOp::DivAssign(_) => ScalarOp::Div,
        BinOp::Rem(_) | BinOp::RemAssign(_) => ScalarOp::Rem,
        BinOp::BitAnd(_) | BinOp::BitAndAssign(_) | BinOp::And(_) => ScalarOp::BitAnd,
        BinOp::BitOr(_) | BinOp::BitOrAssign(_) | BinOp::Or(_) => ScalarOp::BitOr,
        BinOp::BitXor(_) | BinOp::BitXorAssign(_) => ScalarOp::BitXor,
        BinOp::Shl(_) | BinOp::ShlAssign(_) => ScalarOp::Shl,
        BinOp::Shr(_) | BinOp::ShrAssign(_) => ScalarOp::Shr,
        BinOp::Lt(_) => ScalarOp::Lt,
        BinOp::Le(_) => ScalarOp::Le,
        BinOp::Gt(_) => ScalarOp::Gt,
        BinOp::Ge(_) => ScalarOp::Ge,
        BinOp::Eq(_) => ScalarOp::Eq,
        BinOp::Ne(_) => ScalarOp::Ne,
        _ => return None,
    })
}

/// Returns true for a name in `SCREAMING_CASE`, by convention a constant.
fn is_constant_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && !name.contains(|c: char| c.is_ascii_lowercase())
}

fn has_cfg_attribute(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| a.path().is_ident("cfg") || a.path().is_ident("cfg_attr"))
}

/// Returns the attributes of an expression that is a statement.
fn statement_attributes(e: &Expr) -> &[syn::Attribute] {
    match e {
        Expr::Assign(e) => &e.attrs,
        Expr::Binary(e) => &e.attrs,
        Expr::Block(e) => &e.attrs,
        Expr::Call(e) => &e.attrs,
        Expr::ForLoop(e) => &e.attrs,
        Expr::If(e) => &e.attrs,
        Expr::Loop(e) => &e.attrs,
        Expr::Match(e) => &e.attrs,
        Expr::MethodCall(e) => &e.attrs,
        Expr::Unsafe(e) => &e.attrs,
        Expr::While(e) => &e.attrs,
        _ => &[],
    }
}
