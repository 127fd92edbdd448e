//! How many registers of tiles a thread needs at once, as a driver's allocator would find.
//!
//! What loops and branches hand over (a yielded value, the result it becomes, the parameter it is in the next step) is one
//! variable; an elementwise result takes the registers of an operand that dies there.
use super::place::{Home, Plan};
use crate::passes::liveness::{Live, lives};
use pallas_ir::{Kernel, Op, Value};
use std::collections::BTreeSet;

/// Registers of tiles that are alive at once, at most; those of `held` are read, others with a copy are only written there.
pub(super) fn registers(k: &Kernel, plan: &Plan, held: &BTreeSet<Value>) -> usize {
    let lives = lives(k);
    let mut variables = Variables { parent: (0..k.values.len()).collect() };
    for inst in &k.insts {
        for &r in &inst.regions {
            let region = k.region(r);
            let skip = usize::from(matches!(inst.op, Op::While) && r == inst.regions[0]);
            let yields = region.yields.get(skip..).unwrap_or_default();
            yields.iter().zip(&inst.results).for_each(|(&y, &v)| variables.join(y, v));
            let index = usize::from(matches!(inst.op, Op::For { .. }));
            let params = region.params.get(index..).unwrap_or_default();
            params.iter().zip(&inst.results).for_each(|(&p, &v)| variables.join(p, v));
        }
    }
    let mut needed: Vec<Option<(Live, usize)>> = vec![None; k.values.len()];
    for v in (0..k.values.len() as u32).map(Value) {
        let life = lives[v.index()];
        let own_registers = match plan.homes[v.index()] {
            Home::Registers => plan.layout.registers(v),
            Home::Fragments => plan.fragments[v.index()].map_or(0, |f| f.registers(plan.lanes)),
            Home::None | Home::Buffer(_) => 0,
        };
        if own_registers == 0 || life.from == usize::MAX {
            continue;
        }
        let flat = plan.defined[v.index()].is_some_and(|i| k.inst(i).regions.is_empty());
        let passing = flat && plan.copies[v.index()].is_some() && !held.contains(&v);
        let own = Live { from: life.from + usize::from(flat), to: if passing { life.from + 1 } else { life.to } };
        let (life, registers) = needed[variables.root(v.index())].get_or_insert((own, 0));
        (life.from, life.to) = (life.from.min(own.from), life.to.max(own.to));
        *registers = (*registers).max(own_registers);
    }
    let mut events: Vec<(usize, isize)> = needed
        .into_iter()
        .flatten()
        .flat_map(|(life, n)| [(life.from, n as isize), (life.to + 1, -(n as isize))])
        .collect();
    events.sort_unstable();
    let running = events.iter().scan(0, |now, (_, n)| {
        *now += n;
        Some(*now)
    });
    running.max().unwrap_or(0) as usize
}

struct Variables {
    parent: Vec<usize>,
}

impl Variables {
    fn root(&self, mut v: usize) -> usize {
        while self.parent[v] != v {
            v = self.parent[v];
        }
        v
    }
    fn join(&mut self, a: Value, b: Value) {
        let (a, b) = (self.root(a.index()), self.root(b.index()));
        self.parent[a] = b;
    }
}
