//! Walks a body with a symbolic value for each expression.
//!
//! Names are rigid: `BQ` and `BK` differ unless `assume(BQ == BK)` says otherwise, since a kernel is right for all
//! sizes. Values that the walk cannot follow (the user's own functions and macros, host conditions on sizes) are
//! unknown.
use super::own;
use super::parameters::{self, primitive};
use super::places::{Changed, Unseen, Variables, bare, root};
use super::value::{Span, Value};
use crate::ast::{Errors, Options, Parameter, Role, assigns};
use crate::names::Names;
use crate::rewrite::named;
use pallas_ir::dim::Facts;
use pallas_ir::{At, Diag, Dim, ScalarOp, StructuralOp, diag};
use quote::ToTokens;
use std::collections::BTreeSet;
use syn::visit::Visit;
use syn::{BinOp, Block, Expr, ItemFn, Lit, Stmt, Type};

/// Checks the shapes in a kernel's body.
pub(super) fn shapes(f: &ItemFn, options: &Options, parameters: &[Parameter], names: &Names, errors: &mut Errors) {
    let mut facts = Facts::default();
    for ((a, b), tokens) in options.assume.iter().zip(&options.assumed) {
        let (x, y) = (names.symbolic(a), names.symbolic(b));
        if x != Dim::UNKNOWN && y != Dim::UNKNOWN && !facts.assume(&x, &y) {
            let help = "one side is a name that the other does not mention: `assume(BQ == 2 * BK)`";
            errors.at(tokens, format!("the check can't use `{x} == {y}`"), help);
        }
    }
    let axes = options.grid_tokens.is_some().then_some(options.grid.len());
    let walk = |unseen: Unseen| {
        let mut walk = Walk::new(facts.clone(), axes, unseen);
        for c in f.sig.generics.const_params() {
            let is_bool = matches!(&c.ty, Type::Path(p) if p.path.is_ident("bool"));
            let size = || Value::Size(Dim::name(&c.ident.to_string()));
            walk.variables.declare(&c.ident, false, if is_bool { Value::Host { sized: false } } else { size() });
        }
        for d in &names.dims {
            let value = if names.statics.contains(d) { Value::Size(Dim::name(d)) } else { Value::scalar() };
            walk.variables.declare(&named(d), false, value);
        }
        for p in parameters.iter().filter(|p| p.role != Role::Dim) {
            walk.variables.declare(&p.name, false, parameters::value(p, names));
        }
        walk.block(&f.block);
        walk
    };
    let mut walked = walk(Unseen::of(&f.block));
    if !walked.errors.is_empty() {
        // Before mistakes are reported: a function may be the user's own instead of the language's.
        let own = own::declared(&walked.called);
        if !own.is_empty() {
            walked = walk(Unseen::of(&f.block).and(own));
        }
    }
    errors.extend(walked.errors);
}

/// The walk over a body, and what it knows so far.
pub(super) struct Walk {
    /// Equalities of sizes.
    pub(super) facts: Facts,
    /// Number of grid axes, if the grid is given.
    pub(super) axes: Option<usize>,
    pub(super) variables: Variables,
    pub(super) unseen: Unseen,
    /// True if code may be meant for some sizes only: it is walked, but its mistakes are not reported.
    pub(super) quiet: bool,
    pub(super) errors: Vec<syn::Error>,
    /// Names of the functions that the body calls.
    pub(super) called: BTreeSet<String>,
}

impl Walk {
    fn new(facts: Facts, axes: Option<usize>, unseen: Unseen) -> Walk {
        let (variables, called) = (Variables::default(), BTreeSet::new());
        Walk { facts, axes, variables, unseen, quiet: false, errors: vec![], called }
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
    fn judged(&mut self, rule: Result<Vec<Dim>, Diag>, at: &dyn ToTokens, operands: &[&Expr]) -> Value {
        rule.map_or_else(
            |diag| {
                self.report(&diag, at, operands);
                Value::Unknown
            },
            Value::Tile,
        )
    }
    /// Returns the result of a structural operation on operands with these shapes.
    pub(super) fn structural(
        &mut self,
        op: impl Into<StructuralOp>,
        shapes: &[&[Dim]],
        at: &dyn ToTokens,
        operands: &[&Expr],
    ) -> Value {
        let shapes: Vec<Vec<Dim>> = shapes.iter().map(|s| self.normal(s)).collect();
        let shapes: Vec<&[Dim]> = shapes.iter().map(|s| &s[..]).collect();
        let op = op.into();
        // The user's name of the operation: several names share one operation of the IR.
        let words = |text: String| text.replace(&format!("`{}`", op.name()), &format!("`{}`", at.to_token_stream()));
        let rule = op.infer(&shapes, &self.facts);
        self.judged(rule.map_err(|d| Diag { message: words(d.message), ..d }), at, operands)
    }
    /// Returns the result of a scalar operation, element by element.
    pub(super) fn elementwise(
        &mut self,
        op: ScalarOp,
        values: &[&Value],
        at: &dyn ToTokens,
        operands: &[&Expr],
    ) -> Value {
        if values.iter().all(|v| v.is_host()) {
            return Value::Host { sized: values.iter().any(|v| v.is_sized()) };
        }
        let shapes: Option<Vec<Vec<Dim>>> = values.iter().map(|v| Some(self.normal(v.operand()?))).collect();
        let Some(shapes) = shapes else { return Value::Unknown };
        let shapes: Vec<&[Dim]> = shapes.iter().map(|s| &s[..]).collect();
        let rule = op.infer_shape(&shapes, &self.facts);
        self.judged(rule, at, operands)
    }
    /// The shape with known equalities applied.
    fn normal(&self, dims: &[Dim]) -> Vec<Dim> {
        dims.iter().map(|d| self.facts.normal(d)).collect()
    }

    /// Returns the value of a block: that of its last expression.
    pub(super) fn block(&mut self, b: &Block) -> Value {
        let scope = self.variables.0.len();
        let mut value = Value::Unit;
        for statement in &b.stmts {
            value = self.statement(statement);
        }
        self.variables.0.truncate(scope);
        value
    }
    /// Walks a statement; returns the value of a final expression.
    fn statement(&mut self, s: &Stmt) -> Value {
        match s {
            Stmt::Local(l) => {
                let conditional = is_conditional(&l.attrs);
                let quiet = self.quiet;
                self.quiet |= conditional;
                let value = l.init.as_ref().map_or(Value::Unknown, |init| self.expr(&init.expr));
                self.quiet = quiet;
                let first = self.variables.0.len();
                self.variables.bind(&l.pat, if conditional { Value::Unknown } else { value });
                if l.init.is_none() {
                    self.variables.deferred(first);
                }
                // Code after a `let .. else` may be for some sizes only.
                self.quiet |= l.init.as_ref().is_some_and(|i| i.diverge.is_some());
                Value::Unit
            }
            Stmt::Expr(e, end) if is_conditional(attributes(e)) => {
                let quiet = std::mem::replace(&mut self.quiet, true);
                self.expr(e);
                self.quiet = quiet;
                self.variables.forget_all(&Changed::by(|c| c.visit_expr(e)));
                if end.is_some() { Value::Unit } else { Value::Unknown }
            }
            Stmt::Expr(e, end) => {
                let value = self.expr(e);
                if end.is_some() { Value::Unit } else { value }
            }
            Stmt::Macro(m) => {
                self.macro_call(&m.mac);
                Value::Unknown
            }
            Stmt::Item(_) => Value::Unit,
        }
    }

    /// Returns the value of an expression, and walks each of its parts once.
    pub(super) fn expr(&mut self, e: &Expr) -> Value {
        match bare(e) {
            Expr::Lit(l) => literal(&l.lit),
            Expr::Path(p) => self.path(p),
            Expr::Reference(r) => self.expr(&r.expr),
            Expr::Unary(u) => self.unary(u),
            Expr::Binary(b) => self.binary(b),
            Expr::Cast(c) => match self.expr(&c.expr) {
                Value::Size(d) if matches!(&*c.ty, Type::Path(t) if !t.path.is_ident("f32") && !t.path.is_ident("f64")) => {
                    Value::Size(d)
                }
                host if host.is_host() => Value::Host { sized: host.is_sized() },
                _ => Value::Unknown,
            },
            Expr::Tuple(t) if t.elems.is_empty() => Value::Unit,
            Expr::Tuple(t) => Value::Several(t.elems.iter().map(|e| self.expr(e)).collect()),
            Expr::Array(a) => Value::Several(a.elems.iter().map(|e| self.expr(e)).collect()),
            Expr::Repeat(r) => {
                let (value, n) = (self.expr(&r.expr), self.expr(&r.len).axis());
                n.filter(|n| *n <= 64).map_or(Value::Unknown, |n| Value::Several(vec![value; n]))
            }
            Expr::Range(r) => self.range(r),
            Expr::Index(i) => {
                let (list, index) = (self.expr(&i.expr), self.expr(&i.index));
                let is_host = match &list {
                    Value::Several(items) => items.iter().all(Value::is_host),
                    list => matches!(list, Value::List),
                };
                match (list, index) {
                    (_, Value::Tile(dims)) if is_host && dims.is_empty() => {
                        self.report(&diag::host_index(), &i.index, &[]);
                        Value::Unknown
                    }
                    (Value::Several(mut items), index) => match index.axis() {
                        Some(n) if n < items.len() => items.swap_remove(n),
                        _ if is_host => Value::Host { sized: true },
                        _ => Value::Unknown,
                    },
                    _ => Value::Unknown,
                }
            }
            Expr::Field(f) => match (self.expr(&f.base), &f.member) {
                (Value::Several(mut items), syn::Member::Unnamed(i)) if (i.index as usize) < items.len() => {
                    items.swap_remove(i.index as usize)
                }
                _ => Value::Unknown,
            },
            Expr::Call(c) => self.call(c),
            Expr::MethodCall(m) => self.method(m),
            Expr::Macro(m) => self.macro_call(&m.mac),
            Expr::Assign(a) => {
                let value = self.expr(&a.right);
                self.assign(&a.left, value, &a.right);
                Value::Unit
            }
            Expr::If(i) => self.if_(i),
            Expr::Match(m) => self.match_(m),
            Expr::ForLoop(f) => {
                self.for_(f);
                Value::Unit
            }
            Expr::While(w) => {
                self.while_(w);
                Value::Unit
            }
            Expr::Loop(l) => {
                self.repeated(&Changed::by(|c| c.visit_block(&l.body)), |s| s.block(&l.body));
                Value::Unknown
            }
            Expr::Block(b) => {
                let value = self.block(&b.block);
                if b.label.is_none() {
                    return value;
                }
                self.variables.forget_all(&Changed::by(|c| c.visit_block(&b.block)));
                Value::Unknown
            }
            Expr::Unsafe(u) => self.block(&u.block),
            Expr::Const(c) => self.block(&c.block),
            Expr::Return(r) => self.leaves(r.expr.as_deref()),
            Expr::Break(b) => self.leaves(b.expr.as_deref()),
            Expr::Try(t) => self.leaves(Some(&t.expr)),
            // A closure may never be called; what it assigns is unseen.
            Expr::Closure(_) => Value::Unknown,
            other => {
                self.variables.forget_all(&Changed::by(|c| c.visit_expr(other)));
                Value::Unknown
            }
        }
    }
    fn leaves(&mut self, value: Option<&Expr>) -> Value {
        if let Some(e) = value {
            self.expr(e);
        }
        Value::Unknown
    }

    /// The value of a variable or constant.
    fn path(&self, p: &syn::ExprPath) -> Value {
        let Some(name) = p.path.get_ident() else {
            // `f32::NEG_INFINITY`
            let number = p.qself.is_none() && p.path.segments.len() == 2 && primitive(&p.path.segments[0].ident);
            return if number { Value::Host { sized: false } } else { Value::Unknown };
        };
        match self.variables.get(name) {
            Some(v) if self.unseen.changes(v) => Value::Unknown,
            Some(v) => v.value.clone(),
            // `SCALE`, a constant from outside.
            None if !self.unseen.covers(name) && is_constant(&name.to_string()) => Value::Host { sized: true },
            None => Value::Unknown,
        }
    }
    /// The value of a unary operation.
    fn unary(&mut self, u: &syn::ExprUnary) -> Value {
        match (&u.op, self.expr(&u.expr)) {
            (syn::UnOp::Deref(_), value) => value,
            (syn::UnOp::Neg(_), Value::Size(d)) => Value::Size(&Dim::from(0i64) - &d),
            (_, tile @ (Value::Tile(_) | Value::Host { .. })) => tile,
            _ => Value::Unknown,
        }
    }
    /// The value of a binary operation; for an assigning one also the change of its place.
    fn binary(&mut self, b: &syn::ExprBinary) -> Value {
        let left = self.expr(&b.left);
        // The right side of `BQ == BK && ..` is for some sizes only.
        let quiet = self.quiet;
        self.quiet |= matches!(b.op, BinOp::And(_) | BinOp::Or(_))
            && !matches!(left, Value::Tile(_) | Value::Host { sized: false });
        let right = self.expr(&b.right);
        self.quiet = quiet;
        if let (Value::Size(x), Value::Size(y)) = (&left, &right) {
            match b.op {
                BinOp::Add(_) => return Value::Size(x + y),
                BinOp::Sub(_) => return Value::Size(x - y),
                BinOp::Mul(_) => return Value::Size(x * y),
                BinOp::Div(_) => {
                    if let (Some(x), Some(y)) = (x.as_number(), y.as_number())
                        && let Some(n) = x.checked_div(y)
                    {
                        return Value::number(n);
                    }
                }
                _ => {}
            }
        }
        let value = match operation(&b.op) {
            Some(op) => self.elementwise(op, &[&left, &right], &b.op, &[&b.left, &b.right]),
            None => Value::Unknown,
        };
        if assigns(&b.op) {
            self.assign(&b.left, value, &b.right);
            return Value::Unit;
        }
        value
    }
    /// Assigns a value, which the expression `given` computes, to a place.
    fn assign(&mut self, place: &Expr, value: Value, given: &Expr) {
        match (bare(place), value) {
            (Expr::Path(p), value) => {
                if let Some(name) = p.path.get_ident() {
                    self.variables.set(name, value, given.to_token_stream());
                }
            }
            (Expr::Tuple(t), Value::Several(parts)) if parts.len() == t.elems.len() => {
                t.elems.iter().zip(parts).for_each(|(e, v)| self.assign(e, v, given));
            }
            (Expr::Tuple(t), _) => t.elems.iter().for_each(|e| self.assign(e, Value::Unknown, given)),
            (Expr::Array(t), _) => t.elems.iter().for_each(|e| self.assign(e, Value::Unknown, given)),
            (other, _) => {
                if let Some(name) = root(other) {
                    self.variables.set(name, Value::Unknown, given.to_token_stream());
                }
            }
        }
    }
    /// The value of a range, as an index of a view.
    fn range(&mut self, r: &syn::ExprRange) -> Value {
        let start = r.start.as_ref().map(|e| self.expr(e));
        let end = r.end.as_ref().map(|e| self.expr(e));
        match (start, end) {
            (None, None) => Value::Span(Span::All),
            (Some(Value::Size(a)), Some(Value::Size(b))) if matches!(r.limits, syn::RangeLimits::HalfOpen(_)) => {
                Value::Span(Span::Part { size: &b - &a, start: Some(a), stride: Dim::from(1i64) })
            }
            _ => Value::Unknown,
        }
    }
    /// Walks the arguments of macros of the standard library that take expressions.
    fn macro_call(&mut self, m: &syn::Macro) -> Value {
        type Arguments = syn::punctuated::Punctuated<Expr, syn::Token![,]>;
        let Ok(arguments) = m.parse_body_with(Arguments::parse_terminated) else { return Value::Unknown };
        let is = |name: &str| m.path.is_ident(name);
        if is("vec") {
            return Value::Several(arguments.iter().map(|e| self.expr(e)).collect());
        }
        let equal = match arguments.first().map(bare) {
            Some(Expr::Binary(b)) if is("assert") && matches!(b.op, BinOp::Eq(_)) => Some((&*b.left, &*b.right)),
            Some(left) if is("assert_eq") => arguments.get(1).map(|right| (left, right)),
            _ => None,
        };
        if let Some((left, right)) = equal
            && let (Value::Size(x), Value::Size(y)) = (self.expr(left), self.expr(right))
        {
            self.facts.assume(&x, &y);
        }
        Value::Unknown
    }
}

/// The value of a literal.
fn literal(l: &Lit) -> Value {
    match l {
        Lit::Int(n) if n.suffix() == "f32" || n.suffix() == "f64" => Value::Host { sized: false },
        Lit::Int(n) => n.base10_parse::<i64>().map_or(Value::Host { sized: false }, Value::number),
        Lit::Float(_) => Value::Host { sized: false },
        // Literals count as sized, since `if false` may guard code that is wrong.
        Lit::Bool(_) => Value::Host { sized: true },
        _ => Value::Unknown,
    }
}

/// The scalar operation of a binary operator; for an assigning one that of its plain form.
fn operation(op: &BinOp) -> Option<ScalarOp> {
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
fn is_constant(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && !name.contains(|c: char| c.is_ascii_lowercase())
}

fn is_conditional(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| a.path().is_ident("cfg") || a.path().is_ident("cfg_attr"))
}

/// Attributes of an expression that is a statement.
fn attributes(e: &Expr) -> &[syn::Attribute] {
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
