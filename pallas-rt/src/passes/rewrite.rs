//! Copies a kernel instruction by instruction, letting a pass replace some.
use pallas_ir::{Builder, Inst, Kernel, Loc, Op, RegionId, Type, Value};

/// A copy in progress.
pub struct Rewrite<'k> {
    old: &'k Kernel,
    /// The copy.
    pub out: Builder,
    map: Vec<Option<Value>>,
}

/// Decides about an instruction: `true` if it has been replaced (its results are set), `false` to copy it.
pub type Decide<'a> = dyn FnMut(&mut Rewrite<'_>, &Inst, Loc) -> bool + 'a;

impl<'k> Rewrite<'k> {
    /// A copy with the declarations of `old`.
    pub fn of(old: &'k Kernel) -> Self {
        let mut out = Builder::new(&old.name);
        let declared = out.kernel_mut();
        declared.dims.clone_from(&old.dims);
        declared.operands.clone_from(&old.operands);
        declared.grid.clone_from(&old.grid);
        Rewrite::new(old, out)
    }
    /// A copy of `old` into `out`, which has its declarations.
    pub fn new(old: &'k Kernel, out: Builder) -> Self {
        Rewrite { map: vec![None; old.values.len()], old, out }
    }
    /// The new value of an old one.
    pub fn get(&self, old: Value) -> Value {
        self.map[old.index()].expect("a value is defined before its uses")
    }
    /// Values of the old kernel that are marked, as values of the copy; what the copy left out loses its mark.
    pub fn follow<T: Copy>(&self, marked: &mut Vec<(Value, T)>) {
        *marked = marked.iter().filter_map(|&(v, mark)| Some((self.map[v.index()]?, mark))).collect();
    }
    /// Makes `new` stand for `old`.
    pub fn set(&mut self, old: Value, new: Value) {
        self.out.kernel_mut().name_value(new, self.old.names.get(&old).map(String::as_str));
        self.map[old.index()] = Some(new);
    }
    /// Appends `op` in place of `inst`, whose result it gives.
    pub fn append(&mut self, op: Op, args: Vec<Value>, inst: &Inst, loc: Loc) {
        let results: Vec<Value> = inst.results.iter().map(|&v| self.define(v)).collect();
        self.out.push(Inst { op, args, results, regions: vec![] }, loc);
    }
    /// Appends `op` in place of what defined `old`; its value.
    pub fn append_value(&mut self, op: Op, args: Vec<Value>, old: Value, loc: Loc) -> Value {
        let new = self.define(old);
        self.out.push(Inst { op, args, results: vec![new], regions: vec![] }, loc);
        new
    }
    /// Appends control flow in place of `inst`, whose results it gives.
    pub fn append_nest(&mut self, inst: &Inst, args: Vec<Value>, regions: Vec<RegionId>, loc: Loc) {
        let results: Vec<Value> = inst.results.iter().map(|&v| self.define(v)).collect();
        self.out.push(Inst { op: inst.op.clone(), args, results, regions }, loc);
    }
    /// A new value of the type of an old one, in its place.
    pub fn define(&mut self, old: Value) -> Value {
        let new = self.out.value(self.old.ty(old).clone());
        self.set(old, new);
        new
    }
    /// Copies a region's instructions into the open one; returns what it yields.
    pub fn region(&mut self, region: RegionId, decide: &mut Decide<'_>) -> Vec<Value> {
        let old = self.old;
        for &id in &old.region(region).insts {
            let (inst, loc) = (old.inst(id), old.loc(id));
            if !decide(self, inst, loc) {
                self.copy(inst, loc, decide);
            }
        }
        old.region(region).yields.iter().map(|&v| self.get(v)).collect()
    }
    /// Copies an instruction.
    pub fn copy(&mut self, inst: &Inst, loc: Loc, decide: &mut Decide<'_>) {
        let args: Vec<Value> = inst.args.iter().map(|&v| self.get(v)).collect();
        let regions = inst.regions.iter().map(|&r| self.nested(r, decide)).collect();
        self.append_nest(inst, args, regions, loc);
    }
    /// Copies a region as a region.
    pub fn nested(&mut self, region: RegionId, decide: &mut Decide<'_>) -> RegionId {
        let old = self.old;
        let params = &old.region(region).params;
        let types: Vec<Type> = params.iter().map(|&p| old.ty(p).clone()).collect();
        let new = self.out.begin(&types);
        params.iter().zip(new).for_each(|(&p, n)| self.set(p, n));
        let yields = self.region(region, decide);
        self.out.end(&yields)
    }
    /// The copy.
    pub fn finish(self) -> Kernel {
        self.out.finish()
    }
}
