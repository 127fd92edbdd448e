//! Values that need no storage, since they are recomputed where they are used.
//!
//! A *pure* value depends on positions and scalars only (iota, masks, constants). A *view* is one element of another
//! tile at a moved position (broadcast, transpose, slice, reshape over axes of extent 1). Where a profile does not
//! copy operands of products to workgroup memory, a *fetched* value is read from its array by every product that needs
//! it; an array that only gathers read is fetched on every profile.
pub(in crate::wgsl) use crate::passes::access_form;
use pallas_ir::scalar::WgslAccuracy;
use pallas_ir::structural::AffineIndex;
use pallas_ir::{AccessForm, Inst, InstId, Kernel, Op, RegionId, ScalarOp, StructuralOp, Value};

/// Way in which a value that has no storage is recomputed where it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::wgsl) enum InlineKind {
    /// From positions and scalars, with this number of operations.
    Pure(usize),
    /// From one element of another tile.
    View,
    /// From elements of arrays that nothing writes; the products and gathers that read the value compute it.
    Fetch,
}

/// Maximum operations of a value that is recomputed at every use instead of stored; a value of more operations is
/// stored.
const MAX_RECOMPUTED_OPERATIONS: usize = 6;

/// Returns for each value the way in which it is recomputed, `None` if it is stored, and the instruction that defines
/// it, `None` for parameters. If `fetch_for_products`, products read arrays directly.
pub(in crate::wgsl) fn find_inlined_values(
    k: &Kernel,
    fetch_for_products: bool,
) -> (Vec<Option<InlineKind>>, Vec<Option<InstId>>) {
    let mut found = InlineSearch { k, inline: vec![None; k.values.len()], defined: vec![None; k.values.len()] };
    found.classify_region(k.body);
    // Values that a region yields are copied into variables: a view of a tile that is overwritten at that moment needs
    // storage.
    for inst in &k.insts {
        for &r in &inst.regions {
            for v in &k.region(r).yields {
                if found.inline[v.index()] == Some(InlineKind::View) {
                    found.inline[v.index()] = None;
                }
            }
        }
    }
    if fetch_for_products {
        found.mark_fetched_loads();
    }
    found.mark_gathered_tables();
    (found.inline, found.defined)
}

/// The search for values without storage, which each of their readers recomputes, and for the instructions that define
/// values.
struct InlineSearch<'k> {
    k: &'k Kernel,
    inline: Vec<Option<InlineKind>>,
    defined: Vec<Option<InstId>>,
}

impl InlineSearch<'_> {
    /// Determines the way in which the results of a region's instructions are recomputed, if they are, and records the
    /// instructions that define them.
    fn classify_region(&mut self, region: RegionId) {
        for &id in &self.k.region(region).insts {
            let inst = self.k.inst(id);
            inst.results.iter().for_each(|v| self.defined[v.index()] = Some(id));
            if let [result] = inst.results[..]
                && !self.k.ty(result).is_scalar()
            {
                self.inline[result.index()] = self.classify_inst(inst);
            }
            inst.regions.iter().for_each(|&r| self.classify_region(r));
        }
    }
    /// Returns the number of operations that recompute a pure operand, one that depends on positions and scalars only
    /// (0 for scalars); `None` if it is not pure.
    fn pure_operation_count(&self, v: Value) -> Option<usize> {
        match self.inline[v.index()] {
            Some(InlineKind::Pure(n)) => Some(n),
            _ if self.k.ty(v).is_scalar() => Some(0),
            _ => None,
        }
    }
    /// Marks as fetched (loaded from arrays by every reader instead of stored) the loads that only products read, and
    /// elementwise operations between load and product.
    fn mark_fetched_loads(&mut self) {
        let mut fetch = vec![false; self.k.values.len()];
        self.k.walk(self.k.body, &mut |_, inst| {
            let ready = |v: &Value| fetch[v.index()] || self.pure_operation_count(*v).is_some();
            let one = |op: &StructuralOp| matches!(access_form(self.k, op, inst), AccessForm::Cast);
            let fetched = match &inst.op {
                Op::Load { from, masked: false, .. } => self.k.is_constant(*from),
                Op::Scalar(op) => is_cheap_to_recompute(*op) && inst.args.iter().all(ready),
                Op::Structural(op) if one(op) => ready(&inst.args[0]),
                _ => false,
            };
            if let [result] = inst.results[..] {
                let view = self.inline[result.index()] == Some(InlineKind::View);
                let own = fetched && !self.k.ty(result).is_scalar() && self.inline[result.index()].is_none();
                fetch[result.index()] = own || view && inst.args.iter().all(ready);
            }
        });
        let fetch = find_product_only_values(self.k, fetch, |_| true);
        for (inline, _) in self.inline.iter_mut().zip(fetch).filter(|(inline, fetch)| *fetch && inline.is_none()) {
            *inline = Some(InlineKind::Fetch);
        }
    }
    /// Marks as fetched (loaded from arrays by every reader instead of stored) the loads that only gathers read, of
    /// arrays that nothing writes, so that tables are not copied.
    fn mark_gathered_tables(&mut self) {
        let (mut read, mut other) = (vec![false; self.k.values.len()], vec![false; self.k.values.len()]);
        for r in &self.k.regions {
            r.yields.iter().for_each(|v| other[v.index()] = true);
        }
        self.k.walk(self.k.body, &mut |_, inst| {
            let is_gather =
                matches!(&inst.op, Op::Structural(op) if matches!(access_form(self.k, op, inst), AccessForm::Gather { .. }));
            for (i, v) in inst.args.iter().enumerate() {
                if is_gather && i == 0 { read[v.index()] = true } else { other[v.index()] = true }
            }
        });
        self.k.walk(self.k.body, &mut |_, inst| {
            if let (Op::Load { from, masked: false, .. }, [result]) = (&inst.op, &inst.results[..])
                && self.k.is_constant(*from)
                && read[result.index()]
                && !other[result.index()]
                && !self.k.ty(*result).is_scalar()
            {
                self.inline[result.index()] = Some(InlineKind::Fetch);
            }
        });
    }
    /// Returns the way in which an instruction's result can be recomputed; `None` if it has to be stored.
    fn classify_inst(&self, inst: &Inst) -> Option<InlineKind> {
        let all = || inst.args.iter().map(|&v| self.pure_operation_count(v)).sum::<Option<usize>>();
        let few = |n: usize| (n < MAX_RECOMPUTED_OPERATIONS).then_some(InlineKind::Pure(n + 1));
        match &inst.op {
            Op::Valid { .. } => Some(InlineKind::Pure(2)),
            Op::Scalar(op) if is_cheap_to_recompute(*op) => few(all()?),
            Op::Structural(op) => match access_form(self.k, op, inst) {
                AccessForm::Iota { .. } => Some(InlineKind::Pure(1)),
                AccessForm::Cast => few(all()?),
                AccessForm::Map(pieces) if pieces.len() == 1 && pieces[0].bounds.is_empty() => Some(
                    self.pure_operation_count(inst.args[pieces[0].operand]).map_or(InlineKind::View, InlineKind::Pure),
                ),
                AccessForm::Flat => {
                    let (from, to) = (&self.k.ty(inst.args[0]).shape, &self.k.ty(inst.results[0]).shape);
                    unit_axes_reshape_index(from, to)?;
                    Some(self.pure_operation_count(inst.args[0]).map_or(InlineKind::View, InlineKind::Pure))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// Returns true if recomputing an operation costs no more than storing its result: it is one instruction, with an
/// exact result.
fn is_cheap_to_recompute(op: ScalarOp) -> bool {
    let row = op.row();
    row.cost.arithmetic == 1
        && row.cost.transcendental == 0
        && matches!(row.gpu, WgslAccuracy::Exact | WgslAccuracy::Finite(0))
}

/// Gives storage to views with rows and columns swapped that other instructions than products read. Returns true if
/// there are any.
pub(in crate::wgsl) fn store_transposed_views(
    k: &Kernel,
    inline: &mut [Option<InlineKind>],
    defined: &[Option<InstId>],
) -> bool {
    let mut read = vec![false; inline.len()];
    k.walk(k.body, &mut |_, inst| {
        let product = is_product(k, inst);
        inst.args.iter().for_each(|v| read[v.index()] |= !product);
    });
    let turned = |(v, kept): (usize, &Option<InlineKind>)| {
        let inst = k.inst(defined[v].filter(|_| *kept == Some(InlineKind::View) && read[v])?);
        let (of, index) = view_operand_and_index(k, inst);
        let long = index.iter().zip(&k.ty(of).shape).filter(|(_, n)| **n > 1).filter_map(|(i, _)| i.axis);
        (!long.is_sorted()).then_some(v)
    };
    let found: Vec<usize> = inline.iter().enumerate().filter_map(turned).collect();
    found.iter().for_each(|v| inline[*v] = None);
    !found.is_empty()
}

/// Returns for each value true if it is marked and only products read it, directly or by way of marked values for
/// which `passes_through` returns true.
pub(super) fn find_product_only_values(
    k: &Kernel,
    mut marked: Vec<bool>,
    passes_through: impl Fn(Value) -> bool,
) -> Vec<bool> {
    for r in &k.regions {
        r.yields.iter().for_each(|v| marked[v.index()] = false);
    }
    let mut order = vec![];
    k.walk(k.body, &mut |id, _| order.push(id));
    for inst in order.into_iter().rev().map(|id| k.inst(id)) {
        let is_kept = inst.results.first().is_some_and(|&v| marked[v.index()] && passes_through(v));
        if !is_kept && !is_product(k, inst) {
            inst.args.iter().for_each(|v| marked[v.index()] = false);
        }
    }
    marked
}

/// Returns true if an instruction is a product.
pub(in crate::wgsl) fn is_product(k: &Kernel, inst: &Inst) -> bool {
    matches!(&inst.op, Op::Structural(op) if matches!(access_form(k, op, inst), AccessForm::Contract { .. }))
}

/// Returns the index of a reshape's operand in terms of the result's axes; `None` unless the reshape only adds or
/// removes axes of extent 1.
pub(in crate::wgsl) fn unit_axes_reshape_index(from: &[usize], to: &[usize]) -> Option<Vec<AffineIndex>> {
    let long = |shape: &[usize]| -> Vec<usize> { (0..shape.len()).filter(|&a| shape[a] != 1).collect() };
    let (a, b) = (long(from), long(to));
    if a.len() != b.len() || a.iter().zip(&b).any(|(&x, &y)| from[x] != to[y]) {
        return None;
    }
    let mut to = b.into_iter();
    Some(
        (0..from.len())
            .map(
                |x| {
                    if from[x] == 1 { AffineIndex::zero() } else { AffineIndex::from_axis(to.next().expect("as many")) }
                },
            )
            .collect(),
    )
}

/// Returns the stored tile and the axis of it that an axis of a value shows; `None` if the value is recomputed or
/// fetched, or shows a part of the axis only.
pub(in crate::wgsl) fn source_axis(
    k: &Kernel,
    inline: &[Option<InlineKind>],
    defined: &[Option<InstId>],
    v: Value,
    axis: usize,
) -> Option<(Value, usize)> {
    match inline[v.index()] {
        None => Some((v, axis)),
        Some(InlineKind::Pure(_) | InlineKind::Fetch) => None,
        Some(InlineKind::View) => {
            let (of, index) = view_operand_and_index(k, k.inst(defined[v.index()].expect("a view has a definition")));
            let shows = |at: &usize| fully_shown_axis(k, [v, of], *at, &index[*at]) == Some(axis);
            source_axis(k, inline, defined, of, (0..index.len()).find(shows)?)
        }
    }
}

/// Returns the axis of the view `view` that shows the whole axis `operand_axis` of its operand, element by element;
/// `None` if none does. An axis that shows a part only, even the first part, has another extent and is spread over
/// threads in another way.
pub(in crate::wgsl) fn fully_shown_axis(
    k: &Kernel,
    [view, operand]: [Value; 2],
    operand_axis: usize,
    index: &AffineIndex,
) -> Option<usize> {
    let still = index.stride.as_number() == Some(1) && index.offset.as_number() == Some(0);
    index.axis.filter(|&axis| still && k.ty(view).shape[axis] == k.ty(operand).shape[operand_axis])
}

/// Returns the operand that a view shows, and the operand's index in terms of the view's axes.
pub(in crate::wgsl) fn view_operand_and_index(k: &Kernel, inst: &Inst) -> (Value, Vec<AffineIndex>) {
    let Op::Structural(op) = &inst.op else { unreachable!("only structural operations are views") };
    match access_form(k, op, inst) {
        AccessForm::Map(mut pieces) => {
            let piece = pieces.pop().expect("a view has one piece");
            (inst.args[piece.operand], piece.index)
        }
        _ => {
            let (from, to) = (&k.ty(inst.args[0]).shape, &k.ty(inst.results[0]).shape);
            (inst.args[0], unit_axes_reshape_index(from, to).expect("only unit axes change"))
        }
    }
}
