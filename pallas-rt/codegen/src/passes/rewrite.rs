//! Copies a kernel instruction by instruction, while a pass replaces some of them.
use pallas_ir::{Builder, Inst, Kernel, Loc, Op, OperandId, RegionId, Type, Value};
use std::collections::BTreeMap;

/// Copies a kernel, instruction by instruction; callers may replace some of them.
pub(crate) struct KernelRewriter<'k> {
    old: &'k Kernel,
    /// The builder of the copy.
    pub out: Builder,
    map: Vec<Option<Value>>,
    /// The new types of those values whose copies have another type.
    pub retyped: BTreeMap<Value, Type>,
}

/// Handles an instruction: returns true if it has been replaced and its results are set, false if it is to be copied.
pub(crate) type InstHandler<'a> = dyn FnMut(&mut KernelRewriter<'_>, &Inst, Loc) -> bool + 'a;

impl<'k> KernelRewriter<'k> {
    /// Begins a copy with the declarations of `old`.
    pub(crate) fn new(old: &'k Kernel) -> Self {
        let mut out = Builder::new(&old.name);
        let declared = out.kernel_mut();
        declared.dims.clone_from(&old.dims);
        declared.operands.clone_from(&old.operands);
        declared.grid.clone_from(&old.grid);
        declared.steps.clone_from(&old.steps);
        declared.allow = old.allow;
        KernelRewriter { map: vec![None; old.values.len()], retyped: BTreeMap::new(), old, out }
    }
    /// Returns the new value for an old one.
    pub(crate) fn mapped_value(&self, old: Value) -> Value {
        self.map[old.index()].expect("a value is defined before its uses")
    }
    /// Returns the new values of an instruction's operands.
    pub(crate) fn mapped_args(&self, inst: &Inst) -> Vec<Value> {
        inst.args.iter().map(|&v| self.mapped_value(v)).collect()
    }
    /// Replaces `tracked` values of the old kernel by their copies; values that were not copied are removed.
    pub(crate) fn remap_values(&self, tracked: &mut Vec<(Value, OperandId)>) {
        *tracked = tracked.iter().filter_map(|&(v, mark)| Some((self.map[v.index()]?, mark))).collect();
    }
    /// Makes `new` the copy of `old`, and gives it `old`'s name.
    pub(crate) fn map_value(&mut self, old: Value, new: Value) {
        self.out.kernel_mut().name_value(new, self.old.names.get(&old).map(String::as_str));
        self.map[old.index()] = Some(new);
    }
    /// Appends `op` in place of `inst`, whose results it defines.
    pub(crate) fn append(&mut self, op: Op, args: Vec<Value>, inst: &Inst, loc: Loc) {
        self.append_control_flow(op, args, vec![], inst, loc);
    }
    /// Appends control flow in place of `inst`, whose results it defines.
    pub(crate) fn append_control_flow(
        &mut self,
        op: Op,
        args: Vec<Value>,
        regions: Vec<RegionId>,
        inst: &Inst,
        loc: Loc,
    ) {
        let results = inst.results.iter().map(|&v| self.define_copy(v)).collect();
        self.out.push(Inst { op, args, results, regions }, loc);
    }
    fn ty(&self, old: Value) -> Type {
        self.retyped.get(&old).unwrap_or_else(|| self.old.ty(old)).clone()
    }
    /// Creates a value with the type of an old one, as its copy.
    pub(crate) fn define_copy(&mut self, old: Value) -> Value {
        let new = self.out.value(self.ty(old));
        self.map_value(old, new);
        new
    }
    /// Copies a region's instructions, but those that `decide` replaces, into the region that is open in the copy;
    /// returns the copies of the values that it yields.
    pub(crate) fn inline_region(&mut self, region: RegionId, decide: &mut InstHandler<'_>) -> Vec<Value> {
        let old = self.old;
        for &id in &old.region(region).insts {
            let (inst, loc) = (old.inst(id), old.loc(id));
            if !decide(self, inst, loc) {
                self.copy_inst(inst, loc, decide);
            }
        }
        old.region(region).yields.iter().map(|&v| self.mapped_value(v)).collect()
    }
    /// Copies an instruction, with its regions, in which `decide` may replace instructions.
    pub(crate) fn copy_inst(&mut self, inst: &Inst, loc: Loc, decide: &mut InstHandler<'_>) {
        let (args, regions) =
            (self.mapped_args(inst), inst.regions.iter().map(|&r| self.copy_region(r, decide)).collect());
        self.append_control_flow(inst.op.clone(), args, regions, inst, loc);
    }
    /// Copies a region as a new region, in which `decide` may replace instructions.
    pub(crate) fn copy_region(&mut self, region: RegionId, decide: &mut InstHandler<'_>) -> RegionId {
        self.copy_region_with_params(region, vec![], |r, _| r.inline_region(region, decide))
    }
    /// Adds a region with the parameters of `region` and additional parameters of the types `more`. `copy` fills the
    /// region, and returns the values to yield.
    pub(crate) fn copy_region_with_params(
        &mut self,
        region: RegionId,
        more: Vec<Type>,
        copy: impl FnOnce(&mut Self, &[Value]) -> Vec<Value>,
    ) -> RegionId {
        let params = &self.old.region(region).params;
        let types: Vec<Type> = params.iter().map(|&p| self.ty(p)).chain(more).collect();
        let new = self.out.begin(&types);
        params.iter().zip(&new).for_each(|(&p, &n)| self.map_value(p, n));
        let yields = copy(self, &new[params.len()..]);
        self.out.end(&yields)
    }
    /// Returns the copy.
    pub(crate) fn finish(self) -> Kernel {
        self.out.finish()
    }
}
