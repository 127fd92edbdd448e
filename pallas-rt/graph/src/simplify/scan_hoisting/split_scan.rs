//! Appends the graphs of a split scan.
use super::SplitScan;
use crate::graph::{Equation, Graph, Op, Var};
use pallas_ir::structural::{Dot, Reduce};
use pallas_ir::{ScalarOp, StructuralOp};

impl SplitScan {
    /// Appends the graph before the loop, the loop and the graph after it; returns the results of the scan.
    pub(super) fn emit_split_scan(self, to: &mut Graph, args: &[Var]) -> Vec<Var> {
        let mut scan = self.scan;
        let (of_carried, of_stacks) = (scan.carried, scan.body.results.len() - scan.carried);
        let (captured, rest) = args.split_at(scan.captured);
        let (inits, arrays) = rest.split_at(of_carried);
        let mut made: Vec<Option<Var>> = vec![None; self.within.types.len()];
        let given = captured.iter().chain(arrays);
        self.params.iter().zip(given).for_each(|(p, &v)| made[p.index()] = Some(v));
        let early = to.inline(&self.before, &[captured, arrays].concat());
        self.early.iter().zip(early).for_each(|(v, own)| made[v.index()] = Some(own));

        let carried = self.inits.len();
        let takes: Vec<Var> = self.within.params.clone();
        let value = |made: &[Option<Var>], v: &Var| made[v.index()].expect("a part before computes it");
        let args: Vec<Var> = (takes.iter().enumerate())
            .map(|(i, v)| match i.checked_sub(self.captured).and_then(|k| self.inits.get(k)) {
                Some(&k) => inits[k],
                None => value(&made, v),
            })
            .collect();
        let stored = self.within.results[carried..].to_vec();
        (scan.body, scan.captured, scan.carried) = (self.within, self.captured, carried);
        let found = to.push_valid_multi_result(scan, &args);
        stored.iter().zip(&found[carried..]).for_each(|(v, &own)| made[v.index()] = Some(own));

        let args: Vec<Var> = self.late.iter().map(|v| value(&made, v)).collect();
        let all = to.inline(&self.after, &args);
        let (stacks, mut of) = all.split_at(of_stacks);
        let mut results: Vec<Option<Var>> = vec![None; of_carried];
        self.inits.iter().zip(&found).for_each(|(&k, &v)| results[k] = Some(v));
        for (k, path, count) in &self.sums {
            let (own, rest) = of.split_at(*count);
            of = rest;
            let sum = emit_sum_over_steps(to, path, own);
            results[*k] = Some(to.push_valid(ScalarOp::Add, &[inits[*k], sum]));
        }
        let results = results.into_iter().map(|v| v.expect("a carried value is one of both"));
        results.chain(stacks.iter().copied()).collect()
    }
}

/// Appends the sum over all steps of what the equations `path` compute from the arrays `stacks`, which hold the values
/// of all steps.
fn emit_sum_over_steps(to: &mut Graph, path: &[Equation], stacks: &[Var]) -> Var {
    let (mut sum, rest) = match path.split_first() {
        Some((Equation { op: Op::Structural(StructuralOp::Dot(dot)), .. }, rest)) => {
            let moved = |pairs: &[(usize, usize)]| pairs.iter().map(|(a, b)| (a + 1, b + 1)).collect::<Vec<_>>();
            let contract = [vec![(0, 0)], moved(&dot.contract)].concat();
            let dot = Dot { batch: moved(&dot.batch), contract, acc: dot.acc };
            (to.push_valid(StructuralOp::from(dot), stacks), rest)
        }
        Some((Equation { op: Op::Structural(StructuralOp::Reduce(reduce)), .. }, rest)) => {
            let axes = [0].into_iter().chain(reduce.axes.iter().map(|axis| axis + 1)).collect();
            (to.push_valid(StructuralOp::from(Reduce::dropping(ScalarOp::Add, axes)), stacks), rest)
        }
        _ => (to.push_valid(StructuralOp::from(Reduce::dropping(ScalarOp::Add, vec![0])), stacks), path),
    };
    for e in rest {
        sum = to.push_valid(e.op.clone(), &[sum]);
    }
    sum
}
