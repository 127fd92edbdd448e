//! Conditionals and loops: those of the run time must keep shapes, those of the host may change them.
use super::body::ShapeChecker;
use super::symbolic_value::SymbolicValue;
use super::tracked_variables::{ChangedVariables, Variable, strip_parentheses};
use pallas_ir::diag;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Expr, ExprForLoop, ExprIf, ExprMatch, ExprWhile};

/// Time at which a condition is decided, by the host or by the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DecisionTime {
    /// At run time, by each program: both branches are recorded.
    AtRunTime,
    /// While tracing, by the host, from values that do not depend on sizes.
    ByHost,
    /// Possibly by the host, and for some sizes only.
    Unclear,
}

/// Variables and flag `quiet` of a [`ShapeChecker`] before a branch, which are restored after it.
struct PreBranchState {
    variables: Vec<Variable>,
    quiet: bool,
}

impl ShapeChecker {
    /// Evaluates a condition symbolically; returns the time at which it is decided.
    fn eval_condition(&mut self, e: &Expr) -> DecisionTime {
        match strip_parentheses(e) {
            Expr::Let(l) => {
                let value = self.eval_expr(&l.expr);
                self.variables.bind_pattern(&l.pat, value);
                DecisionTime::Unclear
            }
            Expr::Binary(b) if matches!(b.op, syn::BinOp::And(_)) && has_let(e) => {
                self.eval_condition(&b.left);
                let quiet = std::mem::replace(&mut self.quiet, true);
                self.eval_condition(&b.right);
                self.quiet = quiet;
                DecisionTime::Unclear
            }
            e => match self.eval_expr(e) {
                SymbolicValue::Tile(_) => DecisionTime::AtRunTime,
                SymbolicValue::Host { sized: false } => DecisionTime::ByHost,
                _ => DecisionTime::Unclear,
            },
        }
    }
    /// Walks a branch that is decided at the time `when`, without reports if that is unclear. Returns the branch's
    /// value and the first `outer_variable_count` variables, those declared before it, as it left them; restores the
    /// state from before.
    fn walk_branch(
        &mut self,
        when: DecisionTime,
        outer_variable_count: usize,
        walk: impl FnOnce(&mut Self) -> SymbolicValue,
    ) -> (SymbolicValue, Vec<Variable>) {
        let before = PreBranchState { variables: self.variables.0.clone(), quiet: self.quiet };
        let facts = self.facts.clone();
        self.quiet |= when == DecisionTime::Unclear;
        let value = walk(self);
        self.variables.0.truncate(outer_variable_count);
        let after = std::mem::replace(&mut self.variables.0, before.variables);
        (self.facts, self.quiet) = (facts, before.quiet);
        (value, after)
    }

    /// Evaluates an `if` symbolically and returns its value; reports branches whose shapes differ if the kernel
    /// decides it at run time.
    pub(super) fn eval_if(&mut self, e: &ExprIf) -> SymbolicValue {
        let scope = self.variables.0.len();
        let when = self.eval_condition(&e.cond);
        let (a, then) = self.walk_branch(when, scope, |s| s.eval_block(&e.then_branch));
        self.variables.0.truncate(scope);
        let other = e.else_branch.as_ref().map(|(_, other)| &**other);
        let (b, other) = self.walk_branch(when, scope, |s| other.map_or(SymbolicValue::Unit, |e| s.eval_expr(e)));
        let value = a.join(&b, &self.facts);
        if when == DecisionTime::AtRunTime {
            if let Some((a, b)) = a.find_conflict(&b, &self.facts) {
                let at: &dyn ToTokens = e.else_branch.as_ref().map_or(&e.if_token, |(_, other)| other);
                self.report(&diag::branch_type_mismatch(diag::shape(&a), diag::shape(&b)), at, &[]);
            }
            for (before, (a, b)) in self.variables.0.clone().iter().zip(then.iter().zip(&other)) {
                if let Some((x, y)) = a.value.find_conflict(&b.value, &self.facts) {
                    // The branch that changed the variable's shape is to blame.
                    let at = if before.value.find_conflict(&a.value, &self.facts).is_some() { a } else { b };
                    self.report(&diag::branch_type_mismatch(diag::shape(&x), diag::shape(&y)), &at.given, &[]);
                }
            }
        }
        self.merge_branches(then, other);
        self.quiet |= when == DecisionTime::Unclear && has_jump(|j| j.visit_expr_if(e));
        value
    }
    /// Sets the variables to what either of two branches may have left.
    fn merge_branches(&mut self, a: Vec<Variable>, b: Vec<Variable>) {
        let join = |(mut a, b): (Variable, Variable)| {
            if a.mutable {
                a.value = a.value.join(&b.value, &self.facts);
            }
            a
        };
        self.variables.0 = a.into_iter().zip(b).map(join).collect();
    }
    /// Evaluates a `match` symbolically; returns the value that its arms have in common.
    pub(super) fn eval_match(&mut self, e: &ExprMatch) -> SymbolicValue {
        let when = match self.eval_expr(&e.expr) {
            SymbolicValue::Host { sized: false } => DecisionTime::ByHost,
            _ => DecisionTime::Unclear,
        };
        let scope = self.variables.0.len();
        let mut result: Option<(SymbolicValue, Vec<Variable>)> = None;
        for arm in &e.arms {
            let (value, after) = self.walk_branch(when, scope, |s| {
                s.variables.bind_pattern(&arm.pat, SymbolicValue::Unknown);
                if let Some((_, guard)) = &arm.guard {
                    s.eval_condition(guard);
                    s.quiet = true;
                }
                s.eval_expr(&arm.body)
            });
            result = Some(match result {
                None => (value, after),
                Some((other, variables)) => {
                    let joined = other.join(&value, &self.facts);
                    self.merge_branches(variables, after);
                    (joined, self.variables.0.clone())
                }
            });
        }
        self.quiet |= when == DecisionTime::Unclear && has_jump(|j| j.visit_expr_match(e));
        let Some((value, variables)) = result else { return SymbolicValue::Unknown };
        self.variables.0 = variables;
        value
    }

    /// Walks a loop of the host: variables that it changes may have any shape in it and after it.
    pub(super) fn walk_host_loop(&mut self, changed: &ChangedVariables, walk: impl FnOnce(&mut Self) -> SymbolicValue) {
        let (scope, facts) = (self.variables.0.len(), self.facts.clone());
        self.variables.forget_changed_values(changed);
        walk(self);
        self.facts = facts;
        self.variables.0.truncate(scope);
        self.variables.forget_changed_values(changed);
    }
    /// Walks a loop at run time: variables that it changes must have the same shape in each iteration.
    fn walk_staged_loop(&mut self, walk: impl FnOnce(&mut Self) -> SymbolicValue) {
        let (before, facts) = (self.variables.0.clone(), self.facts.clone());
        walk(self);
        self.facts = facts;
        self.variables.0.truncate(before.len());
        let after = self.variables.0.clone();
        for (a, b) in before.iter().zip(&after) {
            if let Some((x, y)) = a.value.find_conflict(&b.value, &self.facts) {
                self.report(&diag::carried_type_mismatch(diag::shape(&x), diag::shape(&y)), &b.given, &[]);
            }
        }
        self.merge_branches(before, after);
    }
    /// Evaluates a `for` loop symbolically, for its effects on the variables; reports those whose shapes differ
    /// between iterations at run time.
    pub(super) fn walk_for(&mut self, e: &ExprForLoop) {
        let changed = ChangedVariables::from_visit(|c| c.visit_block(&e.body));
        let over = self.eval_expr(&e.expr);
        if is_range(&e.expr) && !e.attrs.iter().any(|a| a.path().is_ident("unroll")) {
            return self.walk_staged_loop(|s| {
                s.variables.bind_pattern(&e.pat, SymbolicValue::run_time_scalar());
                s.eval_block(&e.body)
            });
        }
        let item = match over {
            SymbolicValue::Span(_) => SymbolicValue::Host { sized: true },
            _ => SymbolicValue::Unknown,
        };
        self.walk_host_loop(&changed, |s| {
            s.variables.bind_pattern(&e.pat, item);
            s.eval_block(&e.body)
        });
    }
    /// Evaluates a `while` loop symbolically, for its effects on the variables; reports those whose shapes differ
    /// between iterations at run time.
    pub(super) fn walk_while(&mut self, e: &ExprWhile) {
        let changed = ChangedVariables::from_visit(|c| c.visit_expr_while(e));
        let scope = self.variables.0.len();
        // Walked once quietly to see who decides the condition, so that no mistake is reported twice.
        let (mut when, quiet) = (DecisionTime::Unclear, std::mem::replace(&mut self.quiet, true));
        self.walk_branch(DecisionTime::Unclear, scope, |s| {
            when = s.eval_condition(&e.cond);
            SymbolicValue::Unit
        });
        self.quiet = quiet;
        let body = |s: &mut ShapeChecker| {
            s.eval_condition(&e.cond);
            s.quiet |= when == DecisionTime::Unclear;
            s.eval_block(&e.body)
        };
        if when == DecisionTime::AtRunTime {
            self.walk_staged_loop(body);
        } else {
            self.walk_host_loop(&changed, body);
        }
        self.quiet = quiet || when == DecisionTime::Unclear && has_jump(|j| j.visit_block(&e.body));
    }
}

/// Returns true for `a..b`, `a..=b`, and `.step_by(..)` and `.rev()` of them: a `for` over these runs in the kernel.
fn is_range(e: &Expr) -> bool {
    match strip_parentheses(e) {
        Expr::Range(r) => r.start.is_some() && r.end.is_some(),
        Expr::MethodCall(m) => (m.method == "rev" || m.method == "step_by") && is_range(&m.receiver),
        _ => false,
    }
}

fn has_let(e: &Expr) -> bool {
    match strip_parentheses(e) {
        Expr::Let(_) => true,
        Expr::Binary(b) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

/// Returns true if code may jump out of its block, so that the code after it runs only in the other case.
fn has_jump(visit: impl FnOnce(&mut JumpFinder)) -> bool {
    let mut found = JumpFinder(false);
    visit(&mut found);
    found.0
}
struct JumpFinder(bool);
impl Visit<'_> for JumpFinder {
    fn visit_expr(&mut self, e: &Expr) {
        self.0 |= matches!(e, Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) | Expr::Try(_));
        visit::visit_expr(self, e);
    }
    fn visit_macro(&mut self, _: &syn::Macro) {
        self.0 = true;
    }
}
