//! Register pressure: the maximum number of registers for tiles that a thread needs at the same time, as a driver's
//! register allocator would find it.
//!
//! The values that loops and branches pass on (a yielded value, the result that it becomes, the parameter in the next
//! iteration) are one variable. An elementwise result may take the registers of an operand that is not needed any
//! more.
use super::place::{PlacementPlan, TileStorage, UnionFind};
use crate::passes::liveness::{LiveRange, live_ranges};
use crate::passes::variables::{CarriedVariable, carried_variables};
use pallas_ir::{Kernel, Value};
use std::collections::BTreeSet;

/// Returns the maximum number of registers for tiles that are alive at once. Threads read the registers of the tiles
/// in `read_in_registers`; any other tile with a copy is in registers only until it is copied.
pub(super) fn max_live_registers(k: &Kernel, plan: &PlacementPlan, read_in_registers: &BTreeSet<Value>) -> usize {
    let lives = live_ranges(k);
    let mut joined = UnionFind::new(k.values.len());
    for inst in k.insts.iter().filter(|inst| !inst.regions.is_empty()) {
        for CarriedVariable { values, .. } in carried_variables(k, inst) {
            values[1..].iter().for_each(|v| joined.join(v.index(), values[0].index()));
        }
    }
    let mut needed: Vec<Option<(LiveRange, usize)>> = vec![None; k.values.len()];
    for v in (0..k.values.len() as u32).map(Value) {
        let life = lives[v.index()];
        let own_registers = match plan.tile_storage[v.index()] {
            TileStorage::Registers => plan.layout.registers_per_thread(v),
            TileStorage::Accumulators => plan.fragments[v.index()].map_or(0, |f| f.registers_per_thread(plan.lanes)),
            TileStorage::None | TileStorage::Buffer(_) => 0,
        };
        if own_registers == 0 || life.from == usize::MAX {
            continue;
        }
        let flat = plan.defined[v.index()].is_some_and(|i| k.inst(i).regions.is_empty());
        let passing = flat && plan.copies[v.index()].is_some() && !read_in_registers.contains(&v);
        let own = LiveRange { from: life.from + usize::from(flat), to: if passing { life.from + 1 } else { life.to } };
        let (life, registers) = needed[joined.root(v.index())].get_or_insert((own, 0));
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
