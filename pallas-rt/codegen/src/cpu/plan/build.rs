//! Translates instructions of tile IR to steps: consecutive elementwise instructions become one chain, `x + dot` an
//! accumulating product.
mod chains;
mod row_major_copies;

use super::super::Thresholds;
use super::super::fold;
use super::super::gemm::few_rows;
use super::fused_casts;
use super::gather_fill;
use super::step::{
    AffineIndex, CopiedBox, Dot, ElementwiseOp, GatherScatter, LaunchConstant, LoopNests, OperandView, Step, StepBlock,
};
use crate::passes;
use pallas_ir::structural::MapPiece;
use pallas_ir::{
    AccessForm, DType, Dim, Inst, InstId, Kernel, Literal, Loc, Op, OperandId, RegionId, ScalarOp, StructuralOp, Value,
    View,
};
use std::collections::HashMap;

/// Translator of one kernel to the steps of a CPU plan.
pub(super) struct StepBuilder<'k> {
    kernel: &'k Kernel,
    sizes: &'static Thresholds,
    /// Number of instructions and yields that use each value.
    uses: Vec<usize>,
    /// For each value that is a cast left to the products that read it: the cast's operand, which they read instead.
    cast: Vec<Option<fused_casts::CastSource>>,
    /// Scatters to be done as sums of rows, by the scatter's result; `is_summed` is true for values whose instructions
    /// these replace.
    sums: HashMap<Value, fused_casts::RowScatterAdd>,
    is_summed: Vec<bool>,
    /// Selections left to gathers, by the gather's result; `is_filled` is true for the results of those selections.
    filled: HashMap<Value, gather_fill::GatherFill>,
    is_filled: Vec<bool>,
    /// For each value the other value whose memory it may refer to.
    pub(super) base: Vec<Option<Value>>,
    pub(super) fixed: Vec<(Value, LaunchConstant)>,
    /// For each value its constant, if it is one.
    constants: Vec<Option<Literal>>,
    pub(super) params: Vec<(Value, OperandId)>,
    pub(super) tables: Vec<(DType, usize)>,
    /// For each value the last region so far that has an addition which reads it.
    added: Vec<Option<RegionId>>,
    /// For each region parameter the value that it gets in the next iteration of the loop.
    next: Vec<Option<Value>>,
    /// For each value that a chain or product defines: the region of that step. Such a value has memory of its own.
    own: Vec<Option<RegionId>>,
    /// Regions that are being translated, innermost last.
    open: Vec<OpenRegion>,
}

/// A region that is being translated.
#[derive(Default)]
struct OpenRegion {
    region: RegionId,
    steps: Vec<Step>,
    chain: Option<chains::ChainBuilder>,
    /// Stores of results of the open chain, which are emitted after it, so that the chain may grow meanwhile.
    late: Vec<Step>,
    /// Products that are not emitted yet, since their only use is an addition still to come.
    waiting: HashMap<Value, InstId>,
    /// All products that were ever put into `waiting`, in order.
    waited: Vec<Value>,
}

impl<'k> StepBuilder<'k> {
    /// Begins the translation of a kernel: finds the casts, scatter-adds of rows and selections that other operations
    /// can take over.
    pub(super) fn new(kernel: &'k Kernel, thresholds: &'static Thresholds) -> Self {
        let mut uses = passes::count_uses(kernel);
        let (cast, base) = (fused_casts::find_product_casts(kernel), vec![None; kernel.values.len()]);
        // What takes the other bits away is not needed then.
        cast.iter().flatten().filter_map(|source| source.masked).for_each(|v| uses[v.index()] -= 1);
        let (sums, is_summed) = fused_casts::find_row_scatter_adds(kernel, &uses);
        let (filled, is_filled) = gather_fill::find_gather_fills(kernel, &mut uses);
        let values = kernel.values.len();
        StepBuilder {
            kernel,
            sizes: thresholds,
            uses,
            cast,
            sums,
            is_summed,
            filled,
            is_filled,
            base,
            fixed: vec![],
            params: vec![],
            constants: vec![None; values],
            tables: vec![],
            added: vec![None; values],
            next: vec![None; values],
            own: vec![None; values],
            open: vec![],
        }
    }

    /// Translates a region to a block of steps.
    pub(super) fn translate_region(&mut self, region: RegionId) -> StepBlock {
        self.open.push(OpenRegion { region, ..OpenRegion::default() });
        let kernel = self.kernel;
        let opened = kernel.region(region);
        let additions = opened.insts.iter().map(|&i| kernel.inst(i)).filter(|i| i.op == Op::Scalar(ScalarOp::Add));
        additions.flat_map(|add| &add.args).for_each(|v| self.added[v.index()] = Some(region));
        opened.params.iter().rev().zip(opened.yields.iter().rev()).for_each(|(p, y)| self.next[p.index()] = Some(*y));
        for &i in &kernel.region(region).insts {
            self.translate_inst(i);
        }
        self.emit_all_pending();
        let open = self.open.pop().expect("pushed above");
        StepBlock { steps: open.steps, yields: kernel.region(region).yields.clone() }
    }

    /// Returns the innermost region that is being translated.
    fn innermost_region(&mut self) -> &mut OpenRegion {
        self.open.last_mut().expect("a region is open")
    }
    fn push(&mut self, step: Step) {
        self.innermost_region().steps.push(step);
    }
    fn shape(&self, v: Value) -> &'k [usize] {
        &self.kernel.ty(v).shape
    }
    fn dtype(&self, v: Value) -> DType {
        self.kernel.ty(v).dtype
    }

    /// Translates an instruction, unless it has no effect and nothing uses its results.
    fn translate_inst(&mut self, id: InstId) {
        let (inst, loc) = (self.kernel.inst(id), self.kernel.loc(id));
        let pure = !matches!(
            inst.op,
            Op::Store { .. } | Op::If | Op::For { .. } | Op::While | Op::DebugPrint(_) | Op::DebugAssert(_)
        );
        if pure && inst.results.iter().all(|v| self.uses[v.index()] == 0 || self.is_filled[v.index()]) {
            return;
        }
        match &inst.op {
            Op::Const(x) => {
                self.constants[inst.results[0].index()] = Some(*x);
                self.fixed.push((inst.results[0], LaunchConstant::Constant(*x)));
            }
            Op::NumPrograms(axis) => self.fixed.push((inst.results[0], LaunchConstant::NumPrograms(*axis))),
            Op::NumSteps(axis) => self.fixed.push((inst.results[0], LaunchConstant::NumSteps(*axis))),
            Op::Extent(dim) => self.fixed.push((inst.results[0], LaunchConstant::Extent(*dim))),
            Op::Param(o) => self.params.push((inst.results[0], *o)),
            Op::ProgramId(axis) => self.push(Step::ProgramId { axis: *axis, to: inst.results[0] }),
            Op::Scalar(op) => self.translate_scalar(*op, inst),
            Op::Structural(op) => self.translate_structural(op, id, inst),
            Op::Load { .. } | Op::Store { .. } | Op::Valid { .. } | Op::Prefetch(_) => {
                self.translate_memory_access(inst)
            }
            Op::If | Op::For { .. } | Op::While => self.translate_control_flow(inst, loc),
            Op::DebugPrint(label) => {
                self.emit_all_pending();
                self.push(Step::Print { label: label.clone(), of: inst.args[0], loc });
            }
            Op::DebugAssert(message) => {
                self.emit_all_pending();
                self.push(Step::Assert { message: message.clone(), of: inst.args[0], loc });
            }
        }
    }

    // ---- order

    /// Returns true if the value is a product that has not been emitted yet.
    fn is_pending_product(&self, v: Value) -> bool {
        self.open.last().is_some_and(|o| o.waiting.contains_key(&v))
    }
    /// Emits the open chain or waiting product that defines one of these values, if any.
    fn emit_pending_values(&mut self, values: &[Value]) {
        for &v in values {
            if self.innermost_region().chain.as_ref().is_some_and(|g| g.defines(v)) {
                self.flush_chain();
            }
            if let Some(id) = self.innermost_region().waiting.remove(&v) {
                self.emit_dot(id, None);
            }
        }
    }
    /// Emits the open chain and all waiting products.
    fn emit_all_pending(&mut self) {
        self.flush_chain();
        for v in std::mem::take(&mut self.innermost_region().waited) {
            if let Some(id) = self.innermost_region().waiting.remove(&v) {
                self.emit_dot(id, None);
            }
        }
    }

    // ---- products

    /// Translates `x + dot`, where the product has not been emitted yet, to a product that accumulates into `x` or a
    /// copy of it. Returns false for other additions.
    fn translate_accumulation(&mut self, inst: &Inst) -> bool {
        let to = inst.results[0];
        let [a, b] = inst.args[..] else { return false };
        let (dot, init) = match (self.is_pending_product(a), self.is_pending_product(b)) {
            (_, true) if a != b => (b, a),
            (true, _) if a != b => (a, b),
            _ => return false,
        };
        if self.shape(init) != self.shape(to) || self.shape(dot) != self.shape(to) {
            return false;
        }
        let id = self.innermost_region().waiting.remove(&dot).expect("it waits");
        self.emit_pending_values(&[init]);
        self.emit_dot(id, Some((init, to)));
        true
    }

    /// Emits a product; `addend_and_sum` are the value added to it and the result of that addition, `None` if nothing
    /// is added.
    fn emit_dot(&mut self, id: InstId, addend_and_sum: Option<(Value, Value)>) {
        let inst = self.kernel.inst(id);
        let Op::Structural(StructuralOp::Dot(op)) = &inst.op else { unreachable!("only products wait") };
        let sources = [0, 1].map(|side| self.cast[inst.args[side].index()]);
        let [a, b] = [0, 1].map(|side| sources[side].map_or(inst.args[side], |source| source.value));
        let bits = sources[1].map_or(few_rows::WHOLE_ELEMENT_MASK, |source| source.bits);
        self.emit_pending_values(&[a, b]);
        let free = [0, 1].map(|side| op.free_axes(side, self.shape(inst.args[side]).len()));
        let to = addend_and_sum.map_or(inst.results[0], |(_, to)| to);
        let in_place = addend_and_sum.is_some_and(|(init, to)| self.can_overwrite(init, to));
        if in_place {
            self.base[to.index()] = addend_and_sum.map(|(init, _)| init);
        }
        self.own[to.index()] = Some(self.innermost_region().region);
        let sides =
            |pairs: &[(usize, usize)]| [pairs.iter().map(|p| p.0).collect(), pairs.iter().map(|p| p.1).collect()];
        let dot = Dot {
            a,
            b,
            to,
            bits,
            high: None,
            init: addend_and_sum.map(|(init, _)| init),
            in_place,
            begins: None,
            is_paged: false,
            batch: sides(&op.batch),
            contract: sides(&op.contract),
            free,
        };
        let merged = self.merge_nibble_products(&dot);
        self.push(Step::Dot(merged.unwrap_or(dot)));
    }

    /// Returns one product in place of `high`, which multiplies the high halves of bytes, and of the last step, which
    /// multiplies the low halves and to which `high` is added, and removes that step; the bytes are then read once.
    /// Returns `None` if they are no such pair.
    fn merge_nibble_products(&mut self, high: &Dot) -> Option<Dot> {
        let Some(Step::Dot(low)) = self.open.last()?.steps.last() else { return None };
        let is_sum = high.in_place && high.init == Some(low.to) && low.high.is_none();
        let are_halves =
            [low.bits, high.bits] == [few_rows::LOW_NIBBLE_MASK, few_rows::HIGH_NIBBLE_MASK] && low.b == high.b;
        let axes = |dot: &Dot| [dot.batch.clone(), dot.contract.clone(), dot.free.clone()];
        let [a, other] = [low.a, high.a].map(|v| self.kernel.ty(v));
        let is_one = is_sum && are_halves && axes(low) == axes(high) && a == other && a.dtype == DType::F32;
        if !is_one || few_rows::fastest_nibble_kernel().is_none() {
            return None;
        }
        let Some(Step::Dot(low)) = self.innermost_region().steps.pop() else {
            unreachable!("the last step is a product")
        };
        self.base[high.to.index()] = self.base[low.to.index()].take();
        Some(Dot { high: Some(high.a), to: high.to, ..low })
    }

    /// Returns true if `product` may be computed in the memory of `addend`: memory of this region that nothing else
    /// reads, or a carried value that `product` replaces.
    fn can_overwrite(&self, addend: Value, product: Value) -> bool {
        let own = self.own[addend.index()] == self.open.last().map(|open| open.region);
        self.uses[addend.index()] == 1 && (own || self.next[addend.index()] == Some(product))
    }

    // ---- structure

    /// Translates an operation on whole tiles (a reduction, product, gather, transpose ..) to the step for its access
    /// form, the way in which the result's elements come from those of the operands.
    fn translate_structural(&mut self, op: &StructuralOp, id: InstId, inst: &Inst) {
        let to = inst.results[0];
        let from = || *inst.args.first().expect("the operation has an operand");
        let step = match passes::access_form(self.kernel, op, inst) {
            AccessForm::Cast if self.cast[to.index()].is_some() || self.is_summed[to.index()] => return,
            AccessForm::Cast => return self.add_elementwise(ElementwiseOp::Cast, &inst.args, to),
            AccessForm::Bitcast => return self.add_elementwise(ElementwiseOp::Bitcast, &inst.args, to),
            AccessForm::Powi(exponent) => return self.translate_powi(exponent, inst),
            AccessForm::Contract { .. } => {
                if self.can_defer_product(to) {
                    self.innermost_region().waited.push(to);
                    self.innermost_region().waiting.insert(to, id);
                    return;
                }
                return self.emit_dot(id, None);
            }
            AccessForm::Fold { op, ref axes } if self.add_fold(op, axes, inst) => return,
            AccessForm::Map(pieces) => self.translate_data_movement(&pieces, inst),
            AccessForm::Flat => {
                self.base[to.index()] = Some(from());
                Step::Reshape { from: from(), to }
            }
            AccessForm::Fold { op, axes } => {
                let start = op.neutral(self.dtype(to)).expect("the shape rule admits monoids only");
                Step::Fold { fold: fold::fold_functions(op, self.dtype(to)), start, from: from(), axes, to }
            }
            AccessForm::Scan { op, axis, reverse } => {
                Step::Scan { fold: fold::fold_functions(op, self.dtype(to)), from: from(), axis, reverse, to }
            }
            AccessForm::Nest(nest) => {
                let start = nest.op.neutral(self.dtype(to)).expect("the shape rule admits monoids only");
                let nests = nest.split_dilation().into_iter().filter(|part| !part.is_empty()).collect();
                let fold = fold::fold_functions(nest.op, self.dtype(to));
                Step::LoopNests(LoopNests { nests, args: inst.args.clone(), to, fold, start })
            }
            AccessForm::Arg { max, axis } => Step::ArgMinMax { max, from: from(), axis, to },
            AccessForm::Gather { windows, .. } => {
                let filled = self.filled.get(&to);
                let (to, fill) = filled.map_or((to, None), |filled| (filled.to, Some(filled.fill)));
                Step::Gather(GatherScatter { from: from(), index: inst.args[1], to, windows, fill, stays_for: None })
            }
            AccessForm::Scatter { windows, .. }
                if let Some(&fused_casts::RowScatterAdd { rows, to }) = self.sums.get(&to) =>
            {
                self.emit_pending_values(&[rows]);
                Step::SumRows(GatherScatter {
                    from: rows,
                    index: inst.args[1],
                    to,
                    windows,
                    fill: None,
                    stays_for: None,
                })
            }
            AccessForm::Scatter { windows, op } => {
                let fold = op.map(|op| fold::fold_functions(op, self.dtype(to)));
                let windows =
                    GatherScatter { from: from(), index: inst.args[1], to, windows, fill: None, stays_for: None };
                Step::Scatter { windows, updates: inst.args[2], fold }
            }
            AccessForm::Sort { axis, order, positions } => Step::Sort { from: from(), axis, order, positions, to },
            AccessForm::Iota { axis } => Step::Iota { table: self.find_or_add_index_table(to, axis), axis, to },
        };
        self.emit_pending_values(&inst.args);
        self.push(step);
    }

    /// Returns true if a product can be emitted later, as a part of the addition in this region that is its only use.
    fn can_defer_product(&self, v: Value) -> bool {
        let open = self.open.last().expect("a region is open");
        let wide = !matches!(self.dtype(v), DType::F16 | DType::Bf16 | DType::Bool);
        let added = self.added[v.index()] == Some(open.region);
        wide && self.uses[v.index()] == 1 && !self.kernel.ty(v).is_scalar() && added
    }

    /// Returns the position in `tables` of the table of the numbers 0, 1, .. for an axis of `to`, which is added if it
    /// is missing.
    fn find_or_add_index_table(&mut self, to: Value, axis: usize) -> usize {
        let table = (self.dtype(to), self.shape(to)[axis]);
        self.tables.iter().position(|t| *t == table).unwrap_or_else(|| {
            self.tables.push(table);
            self.tables.len() - 1
        })
    }

    /// Translates an operation that only moves elements (transpose, slice, pad, concat ..): to a view if one operand
    /// supplies the whole result and its rows are read fast where they lie, else to a copy. Each of `pieces` is a part
    /// of the result that comes from one operand.
    fn translate_data_movement(&mut self, pieces: &[MapPiece], inst: &Inst) -> Step {
        let to = inst.results[0];
        let affine = |p: &MapPiece| -> Vec<AffineIndex> {
            let number = |d: &Dim| d.as_number().expect("sizes are numbers in a kernel") as isize;
            p.index
                .iter()
                .map(|i| AffineIndex { axis: i.axis, stride: number(&i.stride), offset: number(&i.offset) })
                .collect()
        };
        if let [piece] = pieces
            && piece.bounds.is_empty()
            && !row_major_copies::should_copy_row_major(self.kernel, inst, &affine(piece), self.sizes.reordered)
        {
            let from = inst.args[piece.operand];
            self.base[to.index()] = Some(from);
            return Step::Restride { from, axes: affine(piece), to };
        }
        let part = |p: &MapPiece| {
            let (mut start, mut size) = (vec![0; self.shape(to).len()], self.shape(to).to_vec());
            for (axis, lo, hi) in &p.bounds {
                let bound = |d: &Dim| d.as_number().expect("sizes are numbers in a kernel").max(0) as usize;
                let (lo, hi) = (bound(lo).max(start[*axis]), bound(hi).min(start[*axis] + size[*axis]));
                (start[*axis], size[*axis]) = (lo, hi.saturating_sub(lo));
            }
            CopiedBox { from: inst.args[p.operand], start, size, axes: affine(p) }
        };
        Step::CopyBoxes { parts: pieces.iter().map(part).collect(), to }
    }

    // ---- memory and control

    /// Translates a load, store, test of positions, or read of a prefetched element.
    fn translate_memory_access(&mut self, inst: &Inst) {
        if let Op::Load { from, .. } | Op::Valid { of: from, .. } | Op::Prefetch(from) = inst.op
            && self.has_deferred_store(from)
        {
            self.flush_chain();
        }
        let place = |operand, view: &View, starts: &[Value]| OperandView {
            operand,
            view: view.clone(),
            starts: starts.to_vec(),
        };
        let step = match &inst.op {
            Op::Load { from, view, masked } => {
                let (starts, rest) = inst.args.split_at(view.dynamic_count());
                Step::Load {
                    from: place(*from, view, starts),
                    mask: masked.then(|| (rest[0], rest[1])),
                    fill: passes::lower::fill_value(self.kernel, *from),
                    in_place: false,
                    open: 0,
                    to: inst.results[0],
                }
            }
            Op::Store { to, view, masked } => {
                let (starts, rest) = inst.args[1..].split_at(view.dynamic_count());
                let mask = masked.then(|| rest[0]);
                let store = Step::Store { value: inst.args[0], to: place(*to, view, starts), mask };
                self.emit_pending_values(starts);
                if !masked
                    && self.innermost_region().chain.as_ref().is_some_and(|g| g.find_link(inst.args[0]).is_some())
                {
                    self.innermost_region().late.push(store);
                    return;
                }
                self.emit_all_pending();
                store
            }
            Op::Valid { of, view, axis } => {
                Step::Valid { of: place(*of, view, &inst.args), axis: *axis, to: inst.results[0] }
            }
            Op::Prefetch(of) => Step::Prefetch { of: *of, index: inst.args.clone(), to: inst.results[0] },
            _ => unreachable!("called for accesses"),
        };
        self.emit_pending_values(&inst.args);
        self.push(step);
    }

    /// Returns true if a store to this operand's memory is deferred until the open chain ends.
    fn has_deferred_store(&mut self, operand: OperandId) -> bool {
        let memory = self.kernel.memory_of(operand);
        let writes =
            |step: &Step| matches!(step, Step::Store { to, .. } if self.kernel.memory_of(to.operand) == memory);
        self.open.last().is_some_and(|open| open.late.iter().any(writes))
    }

    /// Translates a branch or a loop.
    fn translate_control_flow(&mut self, inst: &Inst, loc: Loc) {
        self.emit_all_pending();
        let kernel = self.kernel;
        let params = |i: usize| kernel.region(inst.regions[i]).params.clone();
        let to = inst.results.clone();
        let step = match &inst.op {
            Op::If => {
                let sides = [self.translate_region(inst.regions[0]), self.translate_region(inst.regions[1])];
                Step::If { condition: inst.args[0], sides, to }
            }
            Op::For { reverse } => {
                let (mut carried, body) = (params(0), self.translate_region(inst.regions[0]));
                let index = carried.remove(0);
                to.iter().zip(&carried).for_each(|(&r, &p)| self.base[r.index()] = Some(p));
                let bounds = [inst.args[0], inst.args[1], inst.args[2]];
                Step::For {
                    bounds,
                    reverse: *reverse,
                    index,
                    carried,
                    init: inst.args[3..].to_vec(),
                    body,
                    to,
                    rolled: None,
                    loc,
                }
            }
            _ => {
                let (test, body) = (self.translate_region(inst.regions[0]), self.translate_region(inst.regions[1]));
                let carried = params(1);
                to.iter().zip(&carried).for_each(|(&r, &p)| self.base[r.index()] = Some(p));
                Step::While { init: inst.args.clone(), tested: params(0), test, carried, body, to }
            }
        };
        self.push(step);
    }
}
