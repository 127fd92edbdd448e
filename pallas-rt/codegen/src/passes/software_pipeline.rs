//! Loads of later steps are moved before the computation of a step.
//!
//! ```text
//! for s in 0..n { %x = load a[s]; .. %x .. }
//!   ->   %x0 = load a[0]; for s in 0..n carrying %x = %x0 { %y = load a[s + 1]; .. %x ..; yield %y }
//!   ->   %x0 = load a[0]; %x1 = load a[1];
//!        for s in 0..n carrying %x = %x0, %z = %x1 { %y = load a[s + 2]; .. %x ..; yield %z, %y }
//! ```
//!
//! The second form has *depth* 2, the third depth 3: the tiles of this many steps are in flight. Inputs that are
//! loaded in every step of the innermost sequential axis are loaded ahead: those that only products read with depth 2,
//! those whose spec says `buffered` with the depth given there. After the last step, such a load may be outside of the
//! array, where it accesses nothing, or load a tile that nothing reads.
use super::access_form;
use super::gpu_pass_state::PlacementPassState;
use super::rewrite::KernelRewriter;
use super::sequential_axis::SequentialLoop;
use super::simplify::{is_pure, simplify_and_track};
use pallas_ir::{AccessForm, Inst, InstId, Kernel, Loc, Op, OperandId, ScalarOp, Type, Value};

/// Number of tiles in flight for operands that only products read and whose kernel gives no depth: the present step's
/// and the next one's.
const DEFAULT_PIPELINE_DEPTH: usize = 2;

/// Issues loads of the innermost sequential loop in earlier iterations than those that use their tiles, so that up to
/// `staged.depth` iterations' tiles are in flight.
pub(super) fn software_pipeline(staged: &mut PlacementPassState) {
    let kernel = &staged.kernel;
    let Some(axis) = SequentialLoop::innermost(kernel, staged.sequential) else { return };
    let insts = &kernel.region(axis.body).insts;
    let mut ahead = PipelinedLoads { k: kernel, axis, loads: vec![] };
    let depth = |i: InstId| ahead.pipeline_depth(i).map(|depth| depth.min(staged.depth)).filter(|&depth| depth > 1);
    ahead.loads = insts.iter().filter_map(|&i| Some((i, depth(i)?))).collect();
    if ahead.loads.is_empty() {
        return;
    }
    let mut rewrite = KernelRewriter::new(kernel);
    rewrite.inline_region(kernel.body, &mut |r, inst, loc| ahead.rewrite_loop(r, inst, loc));
    rewrite.remap_values(&mut staged.carried);
    staged.fetched =
        ahead.loads.iter().filter_map(|&(i, depth)| Some((ahead.unmasked_load_operand(i)?, depth))).collect();
    staged.kernel = simplify_and_track(&rewrite.finish(), &mut staged.carried);
}

/// The loads in the loop over the innermost sequential axis that are issued one or more iterations before their tiles
/// are used.
struct PipelinedLoads<'k> {
    k: &'k Kernel,
    axis: SequentialLoop<'k>,
    /// The loads that are moved, each with its depth, which is at least 2.
    loads: Vec<(InstId, usize)>,
}

impl PipelinedLoads<'_> {
    /// Returns the operand of an unmasked load; `None` for other instructions.
    fn unmasked_load_operand(&self, id: InstId) -> Option<OperandId> {
        match self.k.inst(id).op {
            Op::Load { from, masked: false, .. } => Some(from),
            _ => None,
        }
    }
    /// Returns the number of iterations whose tiles of a load should be in flight at once, the present one's included;
    /// `None` if the load has to stay where it is, or gains nothing.
    fn pipeline_depth(&self, id: InstId) -> Option<usize> {
        let inst = self.k.inst(id);
        let from = self.unmasked_load_operand(id)?;
        let moves = self.k.is_constant(from)
            && !self.k.ty(inst.results[0]).is_scalar()
            && inst.args.iter().any(|&v| self.depends_on_loop_index(v))
            && inst.args.iter().all(|&v| self.can_compute_ahead(v));
        let usual = || self.is_read_only_by_products(inst.results[0]).then_some(DEFAULT_PIPELINE_DEPTH);
        if moves { self.k.operand(from).buffered.map(|depth| depth as usize).or_else(usual) } else { None }
    }
    /// Returns true if a value depends on the loop's index.
    fn depends_on_loop_index(&self, v: Value) -> bool {
        v == self.axis.index()
            || self
                .axis
                .defined
                .get(&v)
                .is_some_and(|&i| self.k.inst(i).args.iter().any(|&v| self.depends_on_loop_index(v)))
    }
    /// Returns true if a value can be computed for any iteration ahead of time: only from the loop's index and values
    /// from outside of the loop, without loads.
    fn can_compute_ahead(&self, v: Value) -> bool {
        let params = &self.k.region(self.axis.body).params;
        if params[1..].contains(&v) {
            return false;
        }
        let Some(&id) = self.axis.defined.get(&v) else { return true };
        let inst = self.k.inst(id);
        is_pure(&inst.op) && !matches!(inst.op, Op::Load { .. }) && inst.args.iter().all(|&v| self.can_compute_ahead(v))
    }
    /// Returns true if a value is used, and only by matrix products, directly or through operations that merely move
    /// its elements (such as a transpose).
    fn is_read_only_by_products(&self, v: Value) -> bool {
        let yielded = self.k.regions.iter().any(|r| r.yields.contains(&v));
        let product = |inst: &Inst| match &inst.op {
            Op::Structural(op) => match access_form(self.k, op, inst) {
                AccessForm::Contract { .. } => true,
                AccessForm::Map(pieces) => pieces.len() == 1 && self.is_read_only_by_products(inst.results[0]),
                _ => false,
            },
            _ => false,
        };
        let mut users = self.k.insts.iter().filter(|inst| inst.args.contains(&v)).peekable();
        !yielded && users.peek().is_some() && users.all(product)
    }

    /// Replaces the loop by one that issues loads for later iterations and carries the loaded tiles, after loads for
    /// the first iterations. Returns false for any instruction but the loop.
    fn rewrite_loop(&self, r: &mut KernelRewriter<'_>, inst: &Inst, loc: Loc) -> bool {
        if !self.axis.is_loop_inst(inst) {
            return false;
        }
        let deepest = self.loads.iter().map(|&(_, depth)| depth).max().unwrap_or(1);
        let (first, step) = (r.mapped_value(inst.args[0]), r.mapped_value(inst.args[2]));
        // Before the loop: the tiles of its first steps, load by load.
        let mut heads: Vec<Vec<Value>> = vec![vec![]; self.loads.len()];
        let mut at = first;
        for steps in 0..deepest - 1 {
            if steps > 0 {
                at = r.out.scalar(ScalarOp::Add, &[at, step], Loc::NONE);
            }
            self.copy_loads(r, at, &|depth| depth > steps + 1, &mut |load, tile| heads[load].push(tile));
        }
        let args = [r.mapped_args(inst), heads.concat()].concat();
        let region = self.k.region(self.axis.body);
        let ahead = self.loads.iter().flat_map(|&(i, depth)| vec![self.k.inst(i).results[0]; depth - 1]);
        let types: Vec<Type> = region.params.iter().copied().chain(ahead).map(|v| self.k.ty(v).clone()).collect();
        let params = r.out.begin(&types);
        region.params.iter().zip(&params).for_each(|(&old, &new)| r.map_value(old, new));
        let step = r.mapped_value(inst.args[2]);
        // The values that each load carries: the present step's tile first, the newly loaded tile last.
        let mut carried = params[region.params.len()..].iter().copied();
        let mut queues: Vec<Vec<Value>> =
            self.loads.iter().map(|&(_, depth)| carried.by_ref().take(depth - 1).collect()).collect();
        let mut later = params[0];
        for depth in 2..=deepest {
            later = r.out.scalar(ScalarOp::Add, &[later, step], Loc::NONE);
            self.copy_loads(r, later, &|own| own == depth, &mut |load, tile| queues[load].push(tile));
        }
        r.map_value(region.params[0], params[0]);
        for (&(i, _), queue) in self.loads.iter().zip(&queues) {
            r.map_value(self.k.inst(i).results[0], queue[0]);
        }
        let done = |other: &Inst| self.loads.iter().any(|&(i, _)| std::ptr::eq(self.k.inst(i), other));
        let mut yields = r.inline_region(self.axis.body, &mut |_, inst, _| done(inst));
        yields.extend(queues.iter().flat_map(|queue| &queue[1..]));
        let body = r.out.end(&yields);
        let mut results: Vec<Value> = inst.results.iter().map(|&v| r.define_copy(v)).collect();
        results.extend(types[region.params.len()..].iter().map(|ty| r.out.value(ty.clone())));
        r.out.push(Inst { op: inst.op.clone(), args, results, regions: vec![body] }, loc);
        true
    }
    /// Copies the loads whose depth `has_depth` accepts, for the given step; calls `emit` with each load's number and
    /// its tile.
    fn copy_loads(
        &self,
        r: &mut KernelRewriter<'_>,
        step: Value,
        has_depth: &dyn Fn(usize) -> bool,
        emit: &mut dyn FnMut(usize, Value),
    ) {
        let loads = || self.loads.iter().enumerate().filter(|(_, (_, depth))| has_depth(*depth));
        self.axis.copy_for_step(r, step, loads().map(|(_, &(i, _))| i).collect());
        loads().for_each(|(load, &(i, _))| emit(load, r.mapped_value(self.k.inst(i).results[0])));
    }
}
