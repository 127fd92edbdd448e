//! Assignment of memory to values: that of parameters, of results, or regions of one arena.
use super::cluster::ClusteredGraph;
use super::donated_arguments;
use super::plan::{ArenaRegion, ArenaValue, LoweredStep, MemoryLocation, Plan, PlanStep, StepOp};
use crate::graph::Var;
use pallas_ir::Type;
use std::collections::{BTreeMap, BTreeSet};

/// Alignment in bytes at which every region begins: a cache line, and the widest vector.
pub const REGION_ALIGNMENT_BYTES: usize = 64;

/// A region that needs to be placed in the arena, with the first and the last step that uses it.
struct RegionLifetime {
    bytes: usize,
    first: usize,
    last: usize,
    ty: Option<Type>,
}

/// Returns the plan with memory for each value that the `lowered` steps make: a region of the arena, memory of a
/// result, or that of a parameter for which `is_donated` is true.
pub(super) fn assign_memory(found: &ClusteredGraph<'_>, lowered: Vec<LoweredStep>, is_donated: &[bool]) -> Plan {
    let (graph, stored_as) = (found.graph, |v| found.storage_value(v));
    let params = graph.params.iter().enumerate();
    let mut place: BTreeMap<Var, MemoryLocation> = params.map(|(i, &p)| (p, MemoryLocation::Param(i))).collect();
    let outlives: BTreeSet<Var> = graph.results.iter().map(|&r| stored_as(r)).collect();
    let mut last_use: BTreeMap<Var, usize> = BTreeMap::new();
    for (at, step) in lowered.iter().enumerate() {
        let read = step.inputs.iter().chain(step.in_place.iter().flatten());
        last_use.extend(read.map(|&v| (stored_as(v), at)));
    }
    // By value, the output that takes over its memory.
    let mut heirs: BTreeMap<Var, Var> = BTreeMap::new();
    for (at, step) in lowered.iter().enumerate() {
        for (&v, before) in step.outputs.iter().zip(&step.in_place) {
            let Some(before) = before.map(stored_as) else { continue };
            let is_own = match place.get(&before) {
                Some(MemoryLocation::Param(i)) => is_donated.get(*i) == Some(&true),
                Some(_) | None => true,
            };
            let is_read = step.inputs.iter().any(|&x| stored_as(x) == before);
            if is_own && !is_read && last_use[&before] == at && !outlives.contains(&before) {
                heirs.entry(before).or_insert(v);
            }
        }
    }
    // Memory of donated parameters that a step may reuse, because later steps do not need them.
    let mut spare = donated_arguments::DonatedBuffers::new(graph, is_donated, |p| {
        (!outlives.contains(&p) && !heirs.contains_key(&p)).then(|| last_use.get(&p).copied())
    });
    let (mut steps, mut fresh, mut lives) = (vec![], vec![], vec![]);
    for (at, step) in lowered.into_iter().enumerate() {
        let mut copies = vec![];
        for (&v, before) in step.outputs.iter().zip(&step.in_place) {
            let before = before.map(stored_as);
            let own = match before.filter(|x| heirs.get(x) == Some(&v)) {
                Some(x) => place[&x],
                None => {
                    let bytes = graph.ty(v).bytes();
                    let last = std::iter::successors(Some(v), |v| heirs.get(v).copied()).last().unwrap_or(v);
                    let own = if !outlives.contains(&last) {
                        lives.push(RegionLifetime { bytes, first: at, last: at, ty: Some(graph.ty(v).clone()) });
                        MemoryLocation::Temporary(lives.len() - 1)
                    } else if let Some(param) = spare.take_unused_param(bytes, at) {
                        MemoryLocation::Param(param)
                    } else {
                        fresh.push(bytes);
                        MemoryLocation::Fresh(fresh.len() - 1)
                    };
                    copies.extend(before.map(|x| (place[&x], own)));
                    own
                }
            };
            if let MemoryLocation::Temporary(i) = own {
                lives[i].last = last_use.get(&v).copied().unwrap_or(at);
            }
            place.insert(v, own);
        }
        let [inputs, outputs] =
            [&step.inputs, &step.outputs].map(|vars| vars.iter().map(|&v| place[&stored_as(v)]).collect());
        let (apart, in_place) = (vec![], vec![]);
        steps.push(PlanStep { work: step.work, copies, inputs, outputs, apart, in_place, scratch: None });
    }
    let values = lives.len();
    let scratch = |(at, step): (usize, &PlanStep)| RegionLifetime {
        bytes: step.work.scratch_bytes(),
        first: at,
        last: at,
        ty: None,
    };
    lives.extend(steps.iter().enumerate().map(scratch));
    let (mut regions, arena) = pack_regions(&lives);
    let held = lives.into_iter().zip(&regions).filter(|(life, _)| life.bytes > 0);
    let held =
        held.map(|(RegionLifetime { first, last, ty, .. }, &region)| ArenaValue { region, first, last, ty }).collect();
    for (step, region) in steps.iter_mut().zip(regions.split_off(values)) {
        step.scratch = Some(region).filter(|region| region.bytes > 0);
    }
    let results = graph.results.iter().map(|&r| (place[&stored_as(r)], graph.ty(r).clone())).collect();
    let mut plan = Plan { steps, fresh, temporary: vec![], arena, held, results };
    plan.merge_equal_regions(&regions);
    plan
}

impl Plan {
    /// Numbers the regions so that equal ones have one number. Empty regions keep their own numbers: all lie at the
    /// arena's start, but values that are needed at the same time do not share a buffer on devices that have one for
    /// each number.
    fn merge_equal_regions(&mut self, regions: &[ArenaRegion]) {
        let mut numbers: BTreeMap<ArenaRegion, usize> = BTreeMap::new();
        let mut renamed = vec![];
        for &region in regions {
            let next = self.temporary.len();
            let number = if region.bytes == 0 { next } else { *numbers.entry(region).or_insert(next) };
            if number == next {
                self.temporary.push(region);
            }
            renamed.push(number);
        }
        for step in &mut self.steps {
            let copies = step.copies.iter_mut().flat_map(|(from, to)| [from, to]);
            copies.chain(&mut step.inputs).chain(&mut step.outputs).for_each(|place| renumber_region(place, &renamed));
        }
    }
}

/// Replaces the number of a region in a location by `numbers[number]`.
fn renumber_region(location: &mut MemoryLocation, numbers: &[usize]) {
    if let MemoryLocation::Temporary(i) = location {
        *i = numbers[*i];
    }
}

/// Most regions that are placed by size, which compares all pairs of lifetimes; more of them are placed by time.
const MAX_LIFETIMES_PACKED_BY_SIZE: usize = 1 << 13;

/// Places a region of the arena for each lifetime; returns the regions and the size of the arena in bytes. Regions that
/// are used in the same step do not overlap.
fn pack_regions(lives: &[RegionLifetime]) -> (Vec<ArenaRegion>, usize) {
    if lives.len() <= MAX_LIFETIMES_PACKED_BY_SIZE { pack_by_size(lives) } else { pack_by_first_use(lives) }
}

/// Places regions in the order of their first use, each in the smallest free region that holds it. The time is about
/// linear in the number of lifetimes; the arena is larger than that of [`pack_by_size`].
fn pack_by_first_use(lives: &[RegionLifetime]) -> (Vec<ArenaRegion>, usize) {
    let mut order: Vec<usize> = (0..lives.len()).filter(|&i| lives[i].bytes > 0).collect();
    order.sort_by_key(|&i| lives[i].first);
    let mut regions: Vec<ArenaRegion> = lives.iter().map(|life| ArenaRegion { offset: 0, bytes: life.bytes }).collect();
    // Free regions by their bytes, and those in use by the last step that needs them.
    let mut free: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut used: BTreeSet<(usize, usize, usize)> = BTreeSet::new();
    let mut arena = 0;
    for i in order {
        let bytes = lives[i].bytes.next_multiple_of(REGION_ALIGNMENT_BYTES);
        while let Some(&(last, offset, bytes)) = used.first().filter(|(last, ..)| *last < lives[i].first) {
            used.remove(&(last, offset, bytes));
            free.insert((bytes, offset));
        }
        let offset = match free.range((bytes, 0)..).next().copied() {
            Some((own, offset)) => {
                free.remove(&(own, offset));
                if own > bytes {
                    free.insert((own - bytes, offset + bytes));
                }
                offset
            }
            None => {
                arena += bytes;
                arena - bytes
            }
        };
        used.insert((lives[i].last, offset, bytes));
        regions[i].offset = offset;
    }
    (regions, arena)
}

/// Places regions in the order of their size, the largest first, each in the smallest gap that holds it. The time grows
/// with the square of the number of lifetimes.
///
/// Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (2020), greedy by size.
fn pack_by_size(lives: &[RegionLifetime]) -> (Vec<ArenaRegion>, usize) {
    let mut regions: Vec<ArenaRegion> = lives.iter().map(|life| ArenaRegion { offset: 0, bytes: life.bytes }).collect();
    let mut order: Vec<usize> = (0..lives.len()).filter(|&i| lives[i].bytes > 0).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lives[i].bytes), lives[i].first));
    // By offset.
    let mut placed: Vec<usize> = vec![];
    let mut arena = 0;
    for i in order {
        let life = &lives[i];
        let (mut end, mut best) = (0, None);
        for &other in &placed {
            let is_at_once = lives[other].first <= life.last && life.first <= lives[other].last;
            if !is_at_once {
                continue;
            }
            let ArenaRegion { offset, bytes } = regions[other];
            let gap = offset.saturating_sub(end);
            if gap >= life.bytes && best.is_none_or(|(least, _)| gap < least) {
                best = Some((gap, end));
            }
            end = end.max((offset + bytes).next_multiple_of(REGION_ALIGNMENT_BYTES));
        }
        let offset = best.map_or(end, |(_, offset)| offset);
        regions[i].offset = offset;
        arena = arena.max(offset + life.bytes);
        let at = placed.partition_point(|&other| regions[other].offset <= offset);
        placed.insert(at, i);
    }
    (regions, arena)
}

/// Returns for each result of a loop's body the memory that becomes the next step's input without a copy; `None` if
/// the value has to be copied, because its memory is not the loop's own (`is_own_param` by parameter) or an earlier
/// result has taken it.
pub fn find_movable_result_memory(
    results: &[(MemoryLocation, Type)],
    is_own_param: impl Fn(usize) -> bool,
) -> Vec<Option<MemoryLocation>> {
    let own = |i: usize| {
        let place = results[i].0;
        let is_first = results[..i].iter().all(|(other, _)| *other != place);
        let moves = match place {
            MemoryLocation::Param(k) => is_own_param(k),
            MemoryLocation::Fresh(_) => true,
            MemoryLocation::Temporary(_) => unreachable!("a result outlives the call"),
        };
        (is_first && moves).then_some(place)
    };
    (0..results.len()).map(own).collect()
}

/// Returns the size of a region that holds these numbers of bytes, each aligned.
fn sum_aligned_bytes(bytes: impl IntoIterator<Item = usize>) -> usize {
    bytes.into_iter().map(|bytes| bytes.next_multiple_of(REGION_ALIGNMENT_BYTES)).sum()
}

impl StepOp {
    /// Returns the bytes of the arena that the operation needs besides its inputs and outputs: those of the bodies'
    /// arenas, and for loops a second copy of values that a step does not update in place.
    pub fn scratch_bytes(&self) -> usize {
        let turning = |body: &Plan, first_own: usize| {
            let moves = find_movable_result_memory(&body.results, |param| param >= first_own);
            let copies = body.results.iter().zip(moves).filter(|(_, place)| place.is_none());
            sum_aligned_bytes(body.fresh.iter().copied().chain(copies.map(|((_, ty), _)| ty.bytes())))
        };
        match self {
            StepOp::Kernel { .. } | StepOp::Collective { .. } | StepOp::Print { .. } | StepOp::Callback { .. } => 0,
            StepOp::For { body, length: _, inputs } => REGION_ALIGNMENT_BYTES + turning(body, 1 + inputs) + body.arena,
            StepOp::While { condition, body, inputs, .. } => {
                sum_aligned_bytes(condition.fresh.iter().copied())
                    + turning(body, *inputs)
                    + condition.arena.max(body.arena)
            }
            StepOp::Case { branches } => branches.iter().map(|branch| branch.arena).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_in_one_place_have_one_number_and_empty_ones_their_own() {
        let region = |offset, bytes| ArenaRegion { offset, bytes };
        let mut plan =
            Plan { steps: vec![], fresh: vec![], temporary: vec![], arena: 128, held: vec![], results: vec![] };
        plan.merge_equal_regions(&[region(0, 0), region(0, 8), region(64, 8), region(0, 0), region(0, 8)]);
        assert_eq!(plan.temporary, [region(0, 0), region(0, 8), region(64, 8), region(0, 0)]);
    }

    #[test]
    fn regions_of_one_step_lie_apart_and_fill_the_gaps() {
        let life = |bytes, first, last| RegionLifetime { bytes, first, last, ty: None };
        // A chain of values, each read by the next step: two regions are enough.
        let chain: Vec<RegionLifetime> = (0..6).map(|i| life(1000, i, i + 1)).collect();
        assert_eq!(pack_regions(&chain).1, 1024 + 1000);
        assert_eq!(pack_by_first_use(&chain).1, 1024 + 1024);
        let lives =
            [life(4096, 0, 1), life(64, 0, 9), life(2048, 2, 4), life(2048, 3, 5), life(10, 4, 4), life(0, 0, 9)];
        assert_eq!(pack_regions(&lives).1, 4096 + 64 + 10);
        for (regions, arena) in [pack_by_size(&lives), pack_by_first_use(&lives)] {
            for (i, a) in regions.iter().enumerate() {
                assert!(a.offset + a.bytes <= arena && a.offset % REGION_ALIGNMENT_BYTES == 0);
                for (j, b) in regions.iter().enumerate().filter(|(j, _)| *j != i) {
                    let meet = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
                    let is_apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                    assert!(!meet || is_apart || a.bytes.min(b.bytes) == 0, "{i} at {a:?}, {j} at {b:?}");
                }
            }
        }
    }
}
