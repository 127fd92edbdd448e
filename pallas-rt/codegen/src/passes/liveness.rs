//! The lifetime of each value: the instructions between which its memory is needed.
use pallas_ir::{InstId, Kernel, Op, RegionId, Value};

/// The first and last instruction, in program order, between which a value's memory is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LiveRange {
    /// Number of the first instruction that writes the value; `usize::MAX` if there is none.
    pub from: usize,
    /// Number of the last instruction that reads the value.
    pub to: usize,
}

/// Returns the lifetimes of all values. A value that is defined outside of a loop and used in it lives until the loop
/// ends; carried values and results of regions live through the whole region.
pub(crate) fn live_ranges(kernel: &Kernel) -> Vec<LiveRange> {
    let mut order = LivenessAnalysis {
        start: vec![0; kernel.insts.len()],
        end: vec![0; kernel.insts.len()],
        live: vec![LiveRange { from: usize::MAX, to: 0 }; kernel.values.len()],
    };
    order.number_insts(kernel, kernel.body, &mut 0);
    order.extend_by_uses(kernel, kernel.body, &mut vec![]);
    order.live
}

/// The numbering of instructions, and the lifetimes that are found with it.
struct LivenessAnalysis {
    start: Vec<usize>,
    end: Vec<usize>,
    live: Vec<LiveRange>,
}

impl LivenessAnalysis {
    /// Numbers the start and the end of each instruction of a region in program order; `last` is the last number that
    /// has been given.
    fn number_insts(&mut self, kernel: &Kernel, region: RegionId, last: &mut usize) {
        for &i in &kernel.region(region).insts {
            *last += 1;
            self.start[i.index()] = *last;
            kernel.inst(i).regions.iter().for_each(|&r| self.number_insts(kernel, r, last));
            *last += 1;
            self.end[i.index()] = *last;
        }
    }
    /// Extends the lifetimes of values by the uses in a region; `loops` are the loops around it.
    fn extend_by_uses(&mut self, kernel: &Kernel, region: RegionId, loops: &mut Vec<InstId>) {
        for &i in &kernel.region(region).insts {
            let inst = kernel.inst(i);
            let (start, end) = (self.start[i.index()], self.end[i.index()]);
            inst.args.iter().for_each(|&v| self.extend_to_use(v, start, loops));
            for &v in &inst.results {
                self.extend_live_range(v, start);
                self.extend_live_range(v, end);
            }
            let looping = matches!(inst.op, Op::For { .. } | Op::While);
            if looping {
                loops.push(i);
            }
            for &r in &inst.regions {
                for &p in &kernel.region(r).params {
                    self.extend_live_range(p, start);
                    self.extend_live_range(p, end);
                }
                self.extend_by_uses(kernel, r, loops);
                kernel.region(r).yields.iter().for_each(|&v| self.extend_to_use(v, end, loops));
            }
            if looping {
                loops.pop();
            }
        }
    }
    /// Extends the lifetime of a value to a use at the time `at`, or to the end of the outermost loop that it enters
    /// from outside.
    fn extend_to_use(&mut self, v: Value, at: usize, loops: &[InstId]) {
        let entered = loops.iter().find(|l| self.live[v.index()].from < self.start[l.index()]);
        self.extend_live_range(v, entered.map_or(at, |l| self.end[l.index()].max(at)));
    }
    /// Extends the lifetime of a value to include the time `at`.
    fn extend_live_range(&mut self, v: Value, at: usize) {
        let live = &mut self.live[v.index()];
        live.from = live.from.min(at);
        live.to = live.to.max(at);
    }
}
