//! Rewrites `break`, `continue` and `return`: they may leave an `if` or `while` only if the host decides it, and never
//! a staged `for`.
use super::state::{BodyRewriter, JumpFrame, LoopFrame, Region, RegionKind};
use super::tokens::first_span;
use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::spanned::Spanned;
use syn::{Expr, Label, Lifetime, parse_quote_spanned};

impl BodyRewriter {
    /// Pushes the frame of a loop, which jumps may leave. `region_kind` is the kind of the loop's own region, the
    /// innermost open one; `None` for a loop that only the host runs.
    pub(super) fn enter_loop(&mut self, label: Option<&Label>, region_kind: Option<RegionKind>) {
        let regions = self.regions.len() - usize::from(region_kind.is_some());
        let label = label.map(|l| l.name.clone());
        self.frames.push(JumpFrame::Loop(LoopFrame { label, made: false, staged: region_kind, regions, block: false }));
    }
    /// Pushes the frame of a labelled block, which `break` with its label leaves.
    pub(super) fn enter_block(&mut self, label: &Label) {
        let (label, regions) = (Some(label.name.clone()), self.regions.len());
        self.frames.push(JumpFrame::Loop(LoopFrame { label, made: false, staged: None, regions, block: true }));
    }
    /// Pushes the frame of a closure, which `return` leaves; jumps inside of it reach no loop outside.
    pub(super) fn enter_closure(&mut self) {
        self.frames.push(JumpFrame::Closure { regions: self.regions.len() });
    }
    /// Leaves the innermost frame; returns its label, and true if the expansion made that label; `None` if it has no
    /// label.
    pub(super) fn exit_frame(&mut self) -> Option<(Lifetime, bool)> {
        match self.frames.pop() {
            Some(JumpFrame::Loop(l)) => l.label.map(|label| (label, l.made)),
            _ => None,
        }
    }
    /// Leaves a loop of the host, and adds to it the label that the expansion made meanwhile.
    pub(super) fn exit_host_loop(&mut self, label: &mut Option<Label>) {
        if let Some((made, true)) = self.exit_frame() {
            *label = Some(parse_quote_spanned!(made.span()=> #made:));
        }
    }

    /// Inserts a check before a jump for each region that it leaves, and gives it a label if it needs one.
    pub(super) fn rewrite_jump(&mut self, e: &mut Expr) {
        let (word, label) = match e {
            Expr::Break(b) => ("break", b.label.clone()),
            Expr::Continue(c) => ("continue", c.label.clone()),
            _ => ("return", None),
        };
        let Some((target, checks)) = self.jump_target_and_checks(label, word, first_span(e)) else { return };
        match e {
            Expr::Break(b) => b.label = target,
            Expr::Continue(c) => c.label = target,
            _ => {}
        }
        if !checks.is_empty() {
            let jump = &*e;
            *e = parse_quote_spanned!(e.span()=> { #(#checks)* #jump });
        }
    }
    /// Reports a `?` outside of a closure of the body.
    pub(super) fn report_question_mark(&mut self, span: Span) {
        if !self.frames.iter().any(|f| matches!(f, JumpFrame::Closure { .. })) {
            let message = "`?` can't leave a kernel, which returns nothing itself\n  help: `.expect(\"why\")`: a host value's failure is a panic while tracing";
            self.errors.push(syn::Error::new(span, message));
        }
    }
    /// Returns the label that a jump needs, and tokens of the checks for the regions that it leaves; `None` if the jump
    /// is refused, with an error, since it would leave a staged `for`.
    fn jump_target_and_checks(
        &mut self,
        label: Option<Lifetime>,
        keyword: &str,
        span: Span,
    ) -> Option<(Option<Lifetime>, Vec<TokenStream>)> {
        let (from, target) = self.find_jump_target(label.as_ref(), keyword);
        let loops = target.and_then(|i| match &self.frames[i] {
            JumpFrame::Loop(l) => l.staged,
            JumpFrame::Closure { .. } => None,
        });
        if loops == Some(RegionKind::For) || self.regions[from..].iter().any(|r| r.kind == RegionKind::For) {
            let message = format!(
                "`{keyword}` can't leave a staged `for`: all iterations are recorded at once\n  help: use `while`, or guard the rest of the body with `if`, or write `#[unroll]`"
            );
            self.errors.push(syn::Error::new(span, message));
            return None;
        }
        let here = Span::mixed_site().located_at(span);
        let path = self.item_path(here, quote!(leaves_region));
        let check = |r: &Region| {
            let mut key = r.key.clone();
            key.set_span(here);
            quote!(#path(#key);)
        };
        let checks = self.regions[from..].iter().map(check).collect();
        // A staged `if` is a loop in the expansion: a jump through it needs a label.
        let through_if = self.regions[from..].iter().any(|r| r.kind == RegionKind::If);
        let target = target.filter(|_| label.is_none() && through_if).map(|i| self.ensure_label(i));
        Some((target.flatten().or(label), checks))
    }
    /// Returns the index of the first open region that a jump leaves, and the index of the frame of the loop or block
    /// that it leads to; `None` for `return`.
    fn find_jump_target(&self, label: Option<&Lifetime>, keyword: &str) -> (usize, Option<usize>) {
        for (i, frame) in self.frames.iter().enumerate().rev() {
            match frame {
                JumpFrame::Closure { regions } => return (*regions, None),
                JumpFrame::Loop(_) if keyword == "return" => {}
                JumpFrame::Loop(l) if label.map_or(!l.block, |label| l.label.as_ref() == Some(label)) => {
                    return (l.regions, Some(i));
                }
                JumpFrame::Loop(_) => {}
            }
        }
        (0, None)
    }
    /// Returns the label of the loop or block at index `frame`, and gives it a new, unique one if it has none; `None`
    /// if the frame is a closure's.
    fn ensure_label(&mut self, frame: usize) -> Option<Lifetime> {
        let n = self.made;
        self.made += 1;
        let JumpFrame::Loop(l) = &mut self.frames[frame] else { return None };
        if l.label.is_none() {
            l.made = true;
            l.label = Some(Lifetime::new(&format!("'kernel{n}"), Span::mixed_site()));
        }
        l.label.clone()
    }
}
