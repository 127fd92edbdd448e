//! The variables of loops and branches: values that stand for each other from step to step, or side to side.
use pallas_ir::{Inst, Kernel, Op, Value};

/// A variable that control flow hands on.
pub(crate) struct Variable {
    /// The value that a loop starts from.
    pub(crate) start: Option<Value>,
    /// Parameters, what regions yield for them, and the result; of a branch the result comes first.
    pub(crate) values: Vec<Value>,
}

/// The variables of a loop or branch, one a result.
pub(crate) fn variables<'k>(k: &'k Kernel, inst: &'k Inst) -> impl Iterator<Item = Variable> + 'k {
    // Bounds and step, the index, and the condition stand in front of what a loop carries.
    let (args, params, tested) = match inst.op {
        Op::For { .. } => (3, 1, 0),
        _ => (0, 0, usize::from(inst.op == Op::While)),
    };
    inst.results.iter().enumerate().map(move |(i, &result)| {
        let of_regions = inst.regions.iter().enumerate().flat_map(move |(n, &r)| {
            let (region, skip) = (k.region(r), if n == 0 { tested } else { 0 });
            [region.params.get(params + i), region.yields.get(skip + i)].into_iter().flatten().copied()
        });
        let mut values: Vec<Value> = of_regions.collect();
        values.insert(if inst.op == Op::If { 0 } else { values.len() }, result);
        Variable { start: inst.args.get(args + i).copied().filter(|_| inst.op != Op::If), values }
    })
}
