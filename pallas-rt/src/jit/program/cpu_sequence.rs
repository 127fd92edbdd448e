//! A plan as one sequence of launches on the CPU.
use super::super::callback::call_callback;
use super::super::print::print_elements;
use super::{MISSING_BUFFER_MESSAGE, ParamMemory, cached_kernel};
use crate::array::Client;
use crate::collective::resolve_collective;
use pallas_device::Buffer;
use pallas_device::devices::sequence::{
    Action, LoopSlotMoves, MemoryAccess, MemorySlot, Sequence, SequenceBuilder, SequenceDevices,
};
use pallas_device::error::Result;
use pallas_graph::fuse::{MemoryLocation, Plan, PlanStep, REGION_ALIGNMENT_BYTES, StepOp, find_movable_result_memory};
use std::sync::Arc;

/// A plan that is compiled for the CPU.
pub(super) struct NativePlan {
    sequence: Arc<Sequence>,
    devices: usize,
    /// Bytes of each parameter.
    params: Vec<usize>,
    /// Bytes of each result that has memory of its own.
    fresh: Vec<usize>,
}

impl NativePlan {
    /// Compiles a plan for parameters of these sizes in bytes, and these devices.
    ///
    /// # Errors
    /// Sizes that no launch can have.
    pub(super) fn new(
        plan: Plan,
        parameter_bytes: Vec<usize>,
        devices: SequenceDevices,
        client: &Client,
    ) -> Result<NativePlan> {
        let count = devices.count();
        let (arena, fresh) = (plan.arena, plan.fresh.clone());
        let mut lower = SequenceLowering { builder: SequenceBuilder::default(), client };
        let [own, results] = [&parameter_bytes, &fresh].map(|all| lower.new_slots(all));
        let actions = lower.lower_plan(plan, &own, &results, 0)?;
        let sequence = Arc::new(lower.builder.finish(actions, arena, devices));
        Ok(NativePlan { sequence, devices: count, params: parameter_bytes, fresh })
    }

    /// Runs the plan. `params` are the parameters of one device after those of another, and `result_buffers` the memory
    /// of results in the same order, all `Some`. `is_param_written` is true for parameters whose memory is written,
    /// which the caller owns.
    ///
    /// # Errors
    /// Memory; errors of what made the parameters, or of the run itself if it has ended.
    pub(super) fn run(
        &self,
        client: &Client,
        params: &[ParamMemory<'_>],
        is_param_written: &[bool],
        result_buffers: &[Option<Buffer>],
    ) -> Result<()> {
        let access = |param: &ParamMemory<'_>, changed: bool| match param {
            ParamMemory::Owned(_) if changed => MemoryAccess::Change,
            ParamMemory::Shared(_) => {
                assert!(!changed, "memory that others read is not written");
                MemoryAccess::Read
            }
            ParamMemory::Owned(_) => MemoryAccess::Read,
        };
        let mut memory: smallvec::SmallVec<[(&Buffer, MemoryAccess); 16]> = smallvec::SmallVec::new();
        let (own, made) = (self.params.len(), self.fresh.len());
        for device in 0..self.devices {
            let params = params[device * own..][..own].iter().zip(is_param_written);
            memory.extend(params.map(|(param, &changed)| (param.buffer(), access(param, changed))));
            let fresh = result_buffers[device * made..][..made].iter();
            memory.extend(fresh.map(|buffer| (buffer.as_ref().expect(MISSING_BUFFER_MESSAGE), MemoryAccess::Write)));
        }
        let bytes = self.params.iter().chain(&self.fresh).cycle().take(memory.len());
        assert!(memory.iter().map(|(buffer, _)| buffer.len()).eq(bytes.copied()), "the plan's parameters and results");
        // SAFETY: the lengths are those of the plan; what is written is owned, or has just been made.
        unsafe { self.sequence.run(client, &memory) }
    }
}

/// A memory slot of a CPU sequence, and its size in bytes.
type SizedSlot = (MemorySlot, usize);

/// A collective that has begun: the place of its result, and the action that waits for it.
type UnfinishedCollective = (MemoryLocation, Action);

/// Lowers plans to actions of a CPU sequence: launches, copies, loops, branches and collectives.
struct SequenceLowering<'c> {
    builder: SequenceBuilder,
    client: &'c Client,
}

/// Memory slots of a plan's values: of parameters, of results with memory of their own, and of temporary values.
struct ValueSlots<'a> {
    params: &'a [SizedSlot],
    fresh: &'a [SizedSlot],
    temporary: Vec<SizedSlot>,
}

impl ValueSlots<'_> {
    fn slot_of(&self, place: MemoryLocation) -> SizedSlot {
        match place {
            MemoryLocation::Param(i) => self.params[i],
            MemoryLocation::Fresh(i) => self.fresh[i],
            MemoryLocation::Temporary(i) => self.temporary[i],
        }
    }
}

/// The offset at which the unused part of the arena begins.
struct ArenaCursor(usize);

impl ArenaCursor {
    fn reserve(&mut self, bytes: usize) -> usize {
        let start = self.0;
        self.0 += bytes.next_multiple_of(REGION_ALIGNMENT_BYTES);
        start
    }
}

impl SequenceLowering<'_> {
    /// New slots for memory of these lengths in bytes.
    fn new_slots(&mut self, bytes: &[usize]) -> Vec<SizedSlot> {
        bytes.iter().map(|&bytes| (self.builder.add_slot(), bytes)).collect()
    }

    /// Returns the actions of a plan: `params` are the slots of its parameters, `result_slots` those of results with
    /// memory of their own; temporary values lie in the arena from `arena_base` on.
    fn lower_plan(
        &mut self,
        plan: Plan,
        params: &[SizedSlot],
        result_slots: &[SizedSlot],
        arena_base: usize,
    ) -> Result<Vec<Action>> {
        let temporary =
            plan.temporary.iter().map(|r| (self.builder.add_arena_slot(arena_base + r.offset), r.bytes)).collect();
        let slots = ValueSlots { params, fresh: result_slots, temporary };
        let mut actions = vec![];
        let mut begun: Vec<UnfinishedCollective> = vec![];
        for PlanStep { work, copies, inputs, outputs, apart: _, in_place: _, scratch } in plan.steps {
            let touches = |place: MemoryLocation| {
                copies.iter().any(|&(from, to)| from == place || to == place)
                    || inputs.contains(&place)
                    || outputs.contains(&place)
            };
            actions.extend(begun.extract_if(.., |(place, _)| touches(*place)).map(|(_, finish)| finish));
            let into = outputs.first().copied();
            for (from, to) in copies {
                let ((from, bytes), (to, _)) = (slots.slot_of(from), slots.slot_of(to));
                actions.push(Action::Copy { from, to, bytes });
            }
            let [inputs, outputs] =
                [inputs, outputs].map(|places| places.into_iter().map(|p| slots.slot_of(p)).collect::<Vec<_>>());
            let free = ArenaCursor(arena_base + scratch.map_or(0, |region| region.offset));
            match work {
                StepOp::Kernel { kernel, sizes, params } => {
                    let prepared = cached_kernel(&kernel).prepare(self.client, &sizes)?;
                    let [inputs, outputs] =
                        [&inputs, &outputs].map(|all| all.iter().map(|(s, _)| *s).collect::<Vec<_>>());
                    actions.extend(prepared.build_actions(&mut self.builder, &inputs, &params, &outputs));
                }
                StepOp::For { body, length, inputs: captured } => {
                    actions.push(self.lower_for(*body, length, &inputs[..captured], &outputs, free)?);
                }
                StepOp::While { condition, captured, body, .. } => {
                    actions.push(self.lower_while(*condition, *body, inputs.split_at(captured), &outputs, free)?);
                }
                StepOp::Case { branches } => {
                    let branch = |plan| self.lower_branch(plan, &inputs[1..], &outputs, free.0);
                    let branches = branches.into_iter().map(branch).collect::<Result<_>>()?;
                    actions.push(Action::new_case(inputs[0].0, branches));
                }
                StepOp::Collective { op, ty, at } => {
                    let collective = Arc::new(resolve_collective(&op, &ty, at));
                    let ((to, bytes), number) = (outputs[0], self.builder.allot_collective_number());
                    actions.push(Action::Start { from: inputs.first().copied(), to, bytes, collective, number });
                    begun.push((into.expect("an exchange has a result"), Action::Finish { to, bytes, number }));
                }
                StepOp::Callback { callback, at } => {
                    let call = Box::new(move |operands: &[&[u8]]| call_callback(&callback, operands, at));
                    actions.push(Action::Call { from: inputs, to: outputs, call });
                }
                StepOp::Print { print, ty, at } => {
                    let show = Box::new(move |bytes: &[u8]| print_elements(&print, &ty, bytes, at));
                    actions.push(Action::Show { from: inputs[0].0, bytes: inputs[0].1, show });
                }
            }
        }
        actions.extend(begun.into_iter().map(|(_, finish)| finish));
        Ok(actions)
    }

    /// Lowers a loop with a known number of steps to one action; `inputs` are what its body captures.
    fn lower_for(
        &mut self,
        body: Plan,
        length: usize,
        inputs: &[SizedSlot],
        outputs: &[SizedSlot],
        mut arena: ArenaCursor,
    ) -> Result<Action> {
        let counter = self.builder.add_arena_slot(arena.reserve(4));
        let captured: Vec<SizedSlot> = [(counter, 4)].iter().chain(inputs).copied().collect();
        let (body, turning) =
            self.assign_loop_slots(body, &captured, outputs, &mut arena).lower_to_actions(self, arena.0)?;
        Ok(Action::For { length, counter, turning, body })
    }

    /// Lowers a `while` loop to one action; the pair has what its condition and its body capture.
    fn lower_while(
        &mut self,
        condition: Plan,
        body: Plan,
        (condition_captured, body_captured): (&[SizedSlot], &[SizedSlot]),
        outputs: &[SizedSlot],
        mut arena: ArenaCursor,
    ) -> Result<Action> {
        let homes = condition.fresh.iter().map(|&bytes| (self.builder.add_arena_slot(arena.reserve(bytes)), bytes));
        let fresh: Vec<SizedSlot> = homes.collect();
        let turn = self.assign_loop_slots(body, body_captured, outputs, &mut arena);
        let params: Vec<SizedSlot> = condition_captured.iter().chain(turn.carried_slots()).copied().collect();
        let slots = ValueSlots { params: &params, fresh: &fresh, temporary: vec![] };
        let holds = slots.slot_of(condition.results[0].0).0;
        let condition = self.lower_plan(condition, &params, &fresh, arena.0)?;
        let (body, turning) = turn.lower_to_actions(self, arena.0)?;
        Ok(Action::new_while(condition, holds, turning, body))
    }

    /// The actions of a branch, which writes its results to the outputs.
    fn lower_branch(
        &mut self,
        plan: Plan,
        params: &[SizedSlot],
        outputs: &[SizedSlot],
        arena_base: usize,
    ) -> Result<Vec<Action>> {
        let places: Vec<MemoryLocation> = plan.results.iter().map(|(place, _)| *place).collect();
        let made_as =
            |k: usize| places.iter().position(|&place| place == MemoryLocation::Fresh(k)).expect("it is a result");
        let made: Vec<usize> = (0..plan.fresh.len()).map(made_as).collect();
        let fresh: Vec<SizedSlot> = made.iter().map(|&i| outputs[i]).collect();
        let mut actions = self.lower_plan(plan, params, &fresh, arena_base)?;
        let slots = ValueSlots { params, fresh: &fresh, temporary: vec![] };
        for (i, &(to, bytes)) in outputs.iter().enumerate().filter(|(i, _)| !made.contains(i)) {
            actions.push(Action::Copy { from: slots.slot_of(places[i]).0, to, bytes });
        }
        Ok(actions)
    }

    /// Assigns slots to a loop's body: its first parameters are `captured`, the others are carried from step to step.
    fn assign_loop_slots(
        &mut self,
        body: Plan,
        captured: &[SizedSlot],
        outputs: &[SizedSlot],
        arena: &mut ArenaCursor,
    ) -> LoopBody {
        let carried = self.new_slots(&outputs.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>());
        let mut enter: Vec<(MemorySlot, MemorySlot)> =
            outputs.iter().zip(&carried).map(|((from, _), (to, _))| (*from, *to)).collect();
        let mut place = |lower: &mut Self, bytes: usize| {
            let (home, own) = (lower.builder.add_arena_slot(arena.reserve(bytes)), lower.builder.add_slot());
            enter.push((home, own));
            (own, bytes)
        };
        let fresh: Vec<SizedSlot> = body.fresh.iter().map(|&bytes| place(self, bytes)).collect();
        let moves = find_movable_result_memory(&body.results, |param| param >= captured.len());
        let copied = moves.iter().zip(&body.results).map(|(moves, (_, ty))| match moves {
            Some(_) => None,
            None => Some(place(self, ty.bytes())),
        });
        let copied: Vec<Option<SizedSlot>> = copied.collect();
        let leave = outputs.iter().zip(&carried).map(|(&(outer, bytes), &(inner, _))| (outer, inner, bytes)).collect();
        let params = [captured, &carried].concat();
        LoopBody { body, params, captured: captured.len(), fresh, copied, enter, leave }
    }
}

/// A loop's body whose values have memory slots, before [`lower_to_actions`](LoopBody::lower_to_actions) makes its
/// actions.
struct LoopBody {
    body: Plan,
    params: Vec<SizedSlot>,
    captured: usize,
    fresh: Vec<SizedSlot>,
    /// By result of the body, the memory for a copy; `None` if the result's own memory can be passed on.
    copied: Vec<Option<SizedSlot>>,
    enter: Vec<(MemorySlot, MemorySlot)>,
    leave: Vec<(MemorySlot, MemorySlot, usize)>,
}

impl LoopBody {
    fn carried_slots(&self) -> &[SizedSlot] {
        &self.params[self.captured..]
    }

    /// Returns the actions of the body, whose arena begins at `arena_base`, and the moves of memory between slots after
    /// each step.
    fn lower_to_actions(
        self,
        lowering: &mut SequenceLowering<'_>,
        arena_base: usize,
    ) -> Result<(Vec<Action>, LoopSlotMoves)> {
        let carried = self.carried_slots().to_vec();
        let slots = ValueSlots { params: &self.params, fresh: &self.fresh, temporary: vec![] };
        let (mut turn, mut copies): (Vec<(MemorySlot, MemorySlot)>, Vec<Action>) = (vec![], vec![]);
        for ((&(place, _), copy), &(to, bytes)) in self.body.results.iter().zip(&self.copied).zip(&carried) {
            let from = slots.slot_of(place).0;
            if let &Some((own, _)) = copy {
                copies.push(Action::Copy { from, to: own, bytes });
            }
            turn.push((copy.map_or(from, |(own, _)| own), to));
        }
        // Slots to which nothing moves get the memory of slots from which nothing moves.
        let all = || carried.iter().chain(&self.fresh).chain(self.copied.iter().flatten());
        let mut left: Vec<SizedSlot> =
            all().filter(|(slot, _)| turn.iter().all(|(from, _)| from != slot)).copied().collect();
        let empty: Vec<SizedSlot> = all().filter(|(slot, _)| turn.iter().all(|(_, to)| to != slot)).copied().collect();
        for (to, bytes) in empty {
            let i =
                left.iter().position(|&(_, own)| own == bytes).expect("as many of each length are left as are free");
            turn.push((left.swap_remove(i).0, to));
        }
        turn.retain(|(from, to)| from != to);
        let mut body = lowering.lower_plan(self.body, &self.params, &self.fresh, arena_base)?;
        body.extend(copies);
        Ok((body, LoopSlotMoves { before_first_step: self.enter, after_each_step: turn, after_last_step: self.leave }))
    }
}
