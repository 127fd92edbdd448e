//! Renumbering: values, instructions and regions get numbers in the order of the text, without unreachable ones.
//!
//! before: `%7: f32[4] = add %2, %5` somewhere among unused numbers; after: numbers count up from 0 line by line.
use crate::kernel::*;

impl Kernel {
    /// Renumbers the kernel: afterwards two kernels with the same text are equal, except for source positions.
    pub fn renumber(&mut self) {
        let old = std::mem::take(self);
        let mut dense = Renumbering {
            values: vec![None; old.values.len()],
            new: Kernel {
                name: old.name.clone(),
                dims: old.dims.clone(),
                grid: old.grid.clone(),
                allow: old.allow,
                ..Kernel::default()
            },
            old: &old,
        };
        dense.new.regions.push(Region::default());
        for operand in &old.operands {
            let map = operand.map.map(|map| dense.copy_nested_region(map));
            dense.new.operands.push(Operand { map, ..operand.clone() });
        }
        dense.new.regions[0] = dense.copy_region(old.body);
        *self = dense.new;
    }
}

/// State of the renumbering: the old and the new kernel.
struct Renumbering<'a> {
    old: &'a Kernel,
    new: Kernel,
    /// New index of each old value.
    values: Vec<Option<Value>>,
}

impl Renumbering<'_> {
    /// Gives a value its new index at its definition.
    fn renumber_definition(&mut self, v: Value) -> Value {
        let new = Value(self.new.values.len() as u32);
        self.new.values.push(self.old.ty(v).clone());
        self.new.name_value(new, self.old.names.get(&v).map(|n| &n[..]));
        self.values[v.index()] = Some(new);
        new
    }
    fn renumber_definitions(&mut self, values: &[Value]) -> Vec<Value> {
        values.iter().map(|&v| self.renumber_definition(v)).collect()
    }
    fn renumber_uses(&self, values: &[Value]) -> Vec<Value> {
        values.iter().map(|v| self.values[v.index()].expect("a verified kernel defines before it uses")).collect()
    }
    /// Appends a renumbered copy of a region that an instruction or an operand owns to the new kernel; returns the id
    /// of the copy.
    fn copy_nested_region(&mut self, region: RegionId) -> RegionId {
        let id = RegionId(self.new.regions.len() as u32);
        self.new.regions.push(Region::default());
        self.new.regions[id.index()] = self.copy_region(region);
        id
    }
    /// Returns a renumbered copy of a region of the old kernel, whose instructions are appended to the new kernel.
    fn copy_region(&mut self, region: RegionId) -> Region {
        let old = self.old.region(region);
        let params = self.renumber_definitions(&old.params);
        let insts = old.insts.iter().map(|&i| self.copy_inst(i)).collect();
        Region { params, insts, yields: self.renumber_uses(&old.yields) }
    }
    /// Appends a renumbered copy of an instruction of the old kernel, with its regions, to the new kernel; returns the
    /// id of the copy.
    fn copy_inst(&mut self, id: InstId) -> InstId {
        let old = self.old.inst(id);
        let new = InstId(self.new.insts.len() as u32);
        let args = self.renumber_uses(&old.args);
        let results = self.renumber_definitions(&old.results);
        self.new.insts.push(Inst { op: old.op.clone(), args, results, regions: vec![] });
        self.new.locs.push(self.old.loc(id));
        let regions = old.regions.iter().map(|&r| self.copy_nested_region(r)).collect();
        self.new.insts[new.index()].regions = regions;
        new
    }
}
