//! A plan as one sequence of launches on the CPU.
use super::super::callback::called;
use super::super::print::show;
use super::{HELD, Param, compiled};
use crate::array::Client;
use crate::collective::resolved;
use pallas_device::Buffer;
use pallas_device::devices::sequence::{Access, Action, Builder, Devices, Sequence, Slot, Turning};
use pallas_device::error::Result;
use pallas_graph::fuse::{ALIGNMENT, Place, Plan, Step, Work, moved};
use std::sync::Arc;

/// A plan that is compiled for the CPU.
pub(super) struct Native {
    sequence: Arc<Sequence>,
    devices: usize,
    /// Bytes of each parameter.
    params: Vec<usize>,
    /// Bytes of each result that has memory of its own.
    fresh: Vec<usize>,
}

impl Native {
    /// Compiles a plan for parameters of these sizes in bytes, and these devices.
    ///
    /// # Errors
    /// Sizes that no launch can have.
    pub(super) fn new(plan: Plan, params: Vec<usize>, devices: Devices, client: &Client) -> Result<Native> {
        let count = devices.count();
        let (arena, fresh) = (plan.arena, plan.fresh.clone());
        let mut lower = Lower { builder: Builder::default(), client };
        let [own, results] = [&params, &fresh].map(|all| lower.memory(all));
        let actions = lower.actions(plan, &own, &results, 0)?;
        let sequence = Arc::new(lower.builder.finish(actions, arena, devices));
        Ok(Native { sequence, devices: count, params, fresh })
    }

    /// Runs the plan. `params` are the parameters of one device after those of another, and `fresh` the memory of
    /// results in the same order. `changed` is true for parameters whose memory is written, which the caller owns.
    ///
    /// # Errors
    /// Memory; errors of what made the parameters, or of the run itself if it has ended.
    pub(super) fn run(
        &self,
        client: &Client,
        params: &[Param<'_>],
        changed: &[bool],
        fresh: &[Option<Buffer>],
    ) -> Result<()> {
        let access = |param: &Param<'_>, changed: bool| match param {
            Param::Own(_) if changed => Access::Change,
            Param::Shared(_) => {
                assert!(!changed, "memory that others read is not written");
                Access::Read
            }
            Param::Own(_) => Access::Read,
        };
        let mut memory: smallvec::SmallVec<[(&Buffer, Access); 16]> = smallvec::SmallVec::new();
        let (own, made) = (self.params.len(), self.fresh.len());
        for device in 0..self.devices {
            let params = params[device * own..][..own].iter().zip(changed);
            memory.extend(params.map(|(param, &changed)| (param.buffer(), access(param, changed))));
            let fresh = fresh[device * made..][..made].iter();
            memory.extend(fresh.map(|buffer| (buffer.as_ref().expect(HELD), Access::Write)));
        }
        let bytes = self.params.iter().chain(&self.fresh).cycle().take(memory.len());
        assert!(memory.iter().map(|(buffer, _)| buffer.len()).eq(bytes.copied()), "the plan's parameters and results");
        // SAFETY: the lengths are those of the plan; what is written is owned, or has just been made.
        unsafe { self.sequence.run(client, &memory) }
    }
}

/// A slot, and the number of bytes of its memory.
type Held = (Slot, usize);

/// A collective that has begun: the place of its result, and the action that waits for it.
type Begun = (Place, Action);

/// Lowers plans to actions of a sequence.
struct Lower<'c> {
    builder: Builder,
    client: &'c Client,
}

/// The slots of a plan's values.
struct Slots<'a> {
    params: &'a [Held],
    fresh: &'a [Held],
    temporary: Vec<Held>,
}

impl Slots<'_> {
    fn at(&self, place: Place) -> Held {
        match place {
            Place::Param(i) => self.params[i],
            Place::Fresh(i) => self.fresh[i],
            Place::Temporary(i) => self.temporary[i],
        }
    }
}

/// The offset at which the unused part of the arena begins.
struct Free(usize);

impl Free {
    fn take(&mut self, bytes: usize) -> usize {
        let start = self.0;
        self.0 += bytes.next_multiple_of(ALIGNMENT);
        start
    }
}

impl Lower<'_> {
    /// New slots for memory of these lengths in bytes.
    fn memory(&mut self, bytes: &[usize]) -> Vec<Held> {
        bytes.iter().map(|&bytes| (self.builder.slot(), bytes)).collect()
    }

    /// The actions of a plan whose temporary values lie in the arena from `base` on.
    fn actions(&mut self, plan: Plan, params: &[Held], fresh: &[Held], base: usize) -> Result<Vec<Action>> {
        let temporary = plan.temporary.iter().map(|r| (self.builder.home(base + r.offset), r.bytes)).collect();
        let slots = Slots { params, fresh, temporary };
        let mut actions = vec![];
        let mut begun: Vec<Begun> = vec![];
        for Step { work, copies, inputs, outputs, apart: _, in_place: _, scratch } in plan.steps {
            let touches = |place: Place| {
                copies.iter().any(|&(from, to)| from == place || to == place)
                    || inputs.contains(&place)
                    || outputs.contains(&place)
            };
            actions.extend(begun.extract_if(.., |(place, _)| touches(*place)).map(|(_, finish)| finish));
            let into = outputs.first().copied();
            for (from, to) in copies {
                let ((from, bytes), (to, _)) = (slots.at(from), slots.at(to));
                actions.push(Action::Copy { from, to, bytes });
            }
            let [inputs, outputs] =
                [inputs, outputs].map(|places| places.into_iter().map(|p| slots.at(p)).collect::<Vec<_>>());
            let free = Free(base + scratch.map_or(0, |region| region.offset));
            match work {
                Work::Kernel { kernel, sizes, params } => {
                    let prepared = compiled(&kernel).prepare(self.client, &sizes)?;
                    let [inputs, outputs] =
                        [&inputs, &outputs].map(|all| all.iter().map(|(s, _)| *s).collect::<Vec<_>>());
                    actions.extend(prepared.actions(&mut self.builder, &inputs, &params, &outputs));
                }
                Work::For { body, length, inputs: captured } => {
                    actions.push(self.counted(*body, length, &inputs[..captured], &outputs, free)?);
                }
                Work::While { condition, captured, body, .. } => {
                    actions.push(self.conditional(*condition, *body, inputs.split_at(captured), &outputs, free)?);
                }
                Work::Case { branches } => {
                    let branch = |plan| self.branch(plan, &inputs[1..], &outputs, free.0);
                    let branches = branches.into_iter().map(branch).collect::<Result<_>>()?;
                    actions.push(Action::branches(inputs[0].0, branches));
                }
                Work::Collective { op, ty, at } => {
                    let collective = Arc::new(resolved(&op, &ty, at));
                    let ((to, bytes), number) = (outputs[0], self.builder.exchange());
                    actions.push(Action::Start { from: inputs.first().copied(), to, bytes, collective, number });
                    begun.push((into.expect("an exchange has a result"), Action::Finish { to, bytes, number }));
                }
                Work::Callback { callback, at } => {
                    let call = Box::new(move |operands: &[&[u8]]| called(&callback, operands, at));
                    actions.push(Action::Call { from: inputs, to: outputs, call });
                }
                Work::Print { print, ty, at } => {
                    let show = Box::new(move |bytes: &[u8]| show(&print, &ty, bytes, at));
                    actions.push(Action::Show { from: inputs[0].0, bytes: inputs[0].1, show });
                }
            }
        }
        actions.extend(begun.into_iter().map(|(_, finish)| finish));
        Ok(actions)
    }

    /// Lowers a loop with a known number of steps to one action; `inputs` are what its body captures.
    fn counted(
        &mut self,
        body: Plan,
        length: usize,
        inputs: &[Held],
        outputs: &[Held],
        mut free: Free,
    ) -> Result<Action> {
        let counter = self.builder.home(free.take(4));
        let captured: Vec<Held> = [(counter, 4)].iter().chain(inputs).copied().collect();
        let (body, turning) = self.turning(body, &captured, outputs, &mut free).finish(self, free.0)?;
        Ok(Action::For { length, counter, turning, body })
    }

    /// Lowers a `while` loop to one action; the pair has what its condition and its body capture.
    fn conditional(
        &mut self,
        condition: Plan,
        body: Plan,
        (of_condition, of_body): (&[Held], &[Held]),
        outputs: &[Held],
        mut free: Free,
    ) -> Result<Action> {
        let homes = condition.fresh.iter().map(|&bytes| (self.builder.home(free.take(bytes)), bytes));
        let fresh: Vec<Held> = homes.collect();
        let turn = self.turning(body, of_body, outputs, &mut free);
        let params: Vec<Held> = of_condition.iter().chain(turn.carried()).copied().collect();
        let slots = Slots { params: &params, fresh: &fresh, temporary: vec![] };
        let holds = slots.at(condition.results[0].0).0;
        let condition = self.actions(condition, &params, &fresh, free.0)?;
        let (body, turning) = turn.finish(self, free.0)?;
        Ok(Action::conditional(condition, holds, turning, body))
    }

    /// The actions of a branch, which writes its results to the outputs.
    fn branch(&mut self, plan: Plan, params: &[Held], outputs: &[Held], base: usize) -> Result<Vec<Action>> {
        let places: Vec<Place> = plan.results.iter().map(|(place, _)| *place).collect();
        let made_as = |k: usize| places.iter().position(|&place| place == Place::Fresh(k)).expect("it is a result");
        let made: Vec<usize> = (0..plan.fresh.len()).map(made_as).collect();
        let fresh: Vec<Held> = made.iter().map(|&i| outputs[i]).collect();
        let mut actions = self.actions(plan, params, &fresh, base)?;
        let slots = Slots { params, fresh: &fresh, temporary: vec![] };
        for (i, &(to, bytes)) in outputs.iter().enumerate().filter(|(i, _)| !made.contains(i)) {
            actions.push(Action::Copy { from: slots.at(places[i]).0, to, bytes });
        }
        Ok(actions)
    }

    /// Assigns slots to a loop's body: its first parameters are `captured`, the others are carried from step to step.
    fn turning(&mut self, body: Plan, captured: &[Held], outputs: &[Held], free: &mut Free) -> Turn {
        let carried = self.memory(&outputs.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>());
        let mut enter: Vec<(Slot, Slot)> =
            outputs.iter().zip(&carried).map(|((from, _), (to, _))| (*from, *to)).collect();
        let mut place = |lower: &mut Self, bytes: usize| {
            let (home, own) = (lower.builder.home(free.take(bytes)), lower.builder.slot());
            enter.push((home, own));
            (own, bytes)
        };
        let fresh: Vec<Held> = body.fresh.iter().map(|&bytes| place(self, bytes)).collect();
        let moves = moved(&body.results, |param| param >= captured.len());
        let copied = moves.iter().zip(&body.results).map(|(moves, (_, ty))| match moves {
            Some(_) => None,
            None => Some(place(self, ty.bytes())),
        });
        let copied: Vec<Option<Held>> = copied.collect();
        let leave = outputs.iter().zip(&carried).map(|(&(outer, bytes), &(inner, _))| (outer, inner, bytes)).collect();
        let params = [captured, &carried].concat();
        Turn { body, params, captured: captured.len(), fresh, copied, enter, leave }
    }
}

/// A loop whose body has slots, but no actions yet.
struct Turn {
    body: Plan,
    params: Vec<Held>,
    captured: usize,
    fresh: Vec<Held>,
    /// By result of the body, the memory for a copy; `None` if the result's own memory can be passed on.
    copied: Vec<Option<Held>>,
    enter: Vec<(Slot, Slot)>,
    leave: Vec<(Slot, Slot, usize)>,
}

impl Turn {
    fn carried(&self) -> &[Held] {
        &self.params[self.captured..]
    }

    /// The actions of the body, whose arena begins at `base`, and the moves of memory between slots after each step.
    fn finish(self, lower: &mut Lower<'_>, base: usize) -> Result<(Vec<Action>, Turning)> {
        let carried = self.carried().to_vec();
        let slots = Slots { params: &self.params, fresh: &self.fresh, temporary: vec![] };
        let (mut turn, mut copies): (Vec<(Slot, Slot)>, Vec<Action>) = (vec![], vec![]);
        for ((&(place, _), copy), &(to, bytes)) in self.body.results.iter().zip(&self.copied).zip(&carried) {
            let from = slots.at(place).0;
            if let &Some((own, _)) = copy {
                copies.push(Action::Copy { from, to: own, bytes });
            }
            turn.push((copy.map_or(from, |(own, _)| own), to));
        }
        // Slots to which nothing moves get the memory of slots from which nothing moves.
        let all = || carried.iter().chain(&self.fresh).chain(self.copied.iter().flatten());
        let mut left: Vec<Held> =
            all().filter(|(slot, _)| turn.iter().all(|(from, _)| from != slot)).copied().collect();
        let empty: Vec<Held> = all().filter(|(slot, _)| turn.iter().all(|(_, to)| to != slot)).copied().collect();
        for (to, bytes) in empty {
            let i =
                left.iter().position(|&(_, own)| own == bytes).expect("as many of each length are left as are free");
            turn.push((left.swap_remove(i).0, to));
        }
        turn.retain(|(from, to)| from != to);
        let mut body = lower.actions(self.body, &self.params, &self.fresh, base)?;
        body.extend(copies);
        Ok((body, Turning { enter: self.enter, turn, leave: self.leave }))
    }
}
