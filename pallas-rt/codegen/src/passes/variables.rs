//! The variables of loops and branches: values that are the same variable in each iteration, or on each side.
use pallas_ir::{Inst, Kernel, Op, Value};

/// A value that a loop carries from one iteration to the next, or one of the results that both sides of a branch yield.
pub(crate) struct CarriedVariable {
    /// The initial value of a loop's variable.
    pub start: Option<Value>,
    /// The variable's values: parameters, values that regions yield for them, and the result; for a branch the result
    /// is first.
    pub values: Vec<Value>,
}

/// Returns the variables of a loop or branch, one for each result.
pub(crate) fn carried_variables<'k>(k: &'k Kernel, inst: &'k Inst) -> impl Iterator<Item = CarriedVariable> + 'k {
    // Carried values come after bounds and step (operands), after the index (parameters), and after the condition
    // (yields).
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
        CarriedVariable { start: inst.args.get(args + i).copied().filter(|_| inst.op != Op::If), values }
    })
}
