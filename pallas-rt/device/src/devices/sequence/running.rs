//! Runs of a sequence.
use super::{Action, HostCall, KernelLaunch, LoopSlotMoves, MemorySlot, Sequence, SequenceDevices, rayon_threads};
use crate::collective::{CollectiveInProgress, Collectives, ResolvedCollective};
use crate::devices::cpu;
use crate::devices::ledger::MemoryLedger;
use crate::devices::queue::StartPtr;
use crate::devices::runtime::describe_launch;
use crate::error::{Error, Result};
use crate::timeline;
use pallas_codegen::cpu::thread_team::{self, CallingThread, LaunchThreads};
use pallas_codegen::raw;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Indices, among the devices of this process, of those that take the current step.
type ActiveDevices = SmallVec<[usize; 8]>;

/// The devices' decisions about one step of a loop or branch with collectives.
struct StepDecision {
    /// Name of the value that decides, for messages.
    what: &'static str,
    /// By position in the mesh: the value that decides, and whether the device takes the step.
    by_position: Vec<(i32, bool)>,
}

/// State of one run of a sequence on the devices of one participant in its collectives.
pub(super) struct SequenceRun<'a> {
    table: &'a mut [StartPtr],
    /// Number of slots of each device.
    slots: usize,
    devices: usize,
    /// Devices of the participant that take the next action, in ascending order: all, except in a loop or branch.
    active: ActiveDevices,
    /// Decision about the innermost loop or branch with collectives. All participants take the steps that some device
    /// takes.
    decision: Option<StepDecision>,
    participant: &'a dyn Collectives,
    /// The collective that gathers decisions from all participants; `None` without other participants.
    agreement: Option<&'a Arc<ResolvedCollective>>,
    /// Collectives in progress, by number.
    started: Vec<Option<CollectiveInProgress>>,
    ledger: &'a MemoryLedger,
    on: &'a dyn LaunchThreads,
    /// True if launches are counted now: in loops and branches, whose launches the sequence does not know.
    counts: bool,
    launches: u64,
}

impl<'a> SequenceRun<'a> {
    /// Creates a run of a sequence with the tables of a participant's devices.
    pub(super) fn new(
        sequence: &'a Sequence,
        table: &'a mut [StartPtr],
        participant: &'a dyn Collectives,
        ledger: &'a MemoryLedger,
        threads: &'a dyn LaunchThreads,
    ) -> SequenceRun<'a> {
        let agreement = match &sequence.devices {
            SequenceDevices::AllInProcess { are_threads: true, agreement, .. }
            | SequenceDevices::AcrossProcesses { agreement, .. } => Some(agreement),
            SequenceDevices::SingleDevice | SequenceDevices::AllInProcess { are_threads: false, .. } => None,
        };
        let started = (0..sequence.collectives).map(|_| None).collect();
        let (slots, devices) = (sequence.slots, participant.positions().len());
        let active = (0..devices).collect();
        let (decision, counts, launches) = (None, false, 0);
        SequenceRun {
            table,
            slots,
            devices,
            active,
            decision,
            participant,
            agreement,
            started,
            ledger,
            on: threads,
            counts,
            launches,
        }
    }

    /// Number of launches made in loops and branches, which could not be counted before the run.
    pub(super) fn uncounted_launches(&self) -> u64 {
        self.launches
    }

    /// Launches a kernel on each active device: long launches that divide evenly among threads on one thread each,
    /// simultaneously; any others one after another, each with all threads.
    ///
    /// # Safety
    /// As for [`run_actions`](SequenceRun::run_actions).
    unsafe fn launch_on_active_devices(&mut self, launch: &KernelLaunch) -> Result<()> {
        let KernelLaunch { kernel, executable, geometry, params, operands } = launch;
        let active = &self.active[..];
        self.launches += if self.counts { active.len() as u64 } else { 0 };
        let (table, slots, ledger) = (&*self.table, self.slots, self.ledger);
        let one = |device: usize, on: &dyn LaunchThreads| {
            let start = |i: usize| operands[i].map_or(std::ptr::null_mut(), |slot| table[device * slots + slot.0].0);
            // SAFETY: the caller's.
            let run = || unsafe { cpu::execute_all_programs(executable, geometry, params, ledger, on, start) };
            timeline::run_in_span(timeline::SpanKind::Launch, || describe_launch(kernel, geometry), run)
        };
        if active.is_empty() {
            return Ok(());
        }
        let threads = rayon_threads().min(active.len());
        let work = executable.operation_count(&geometry.parallel).saturating_mul(active.len());
        // True if the threads get equal numbers of devices, or nearly so.
        let is_even = active.len().is_multiple_of(threads) || active.len() >= 4 * threads;
        if threads < 2 || !is_even || work < self.on.min_shared_operations() {
            return active.iter().try_for_each(|&device| one(device, self.on));
        }
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        self.on.share_work(threads, &|_| {
            let taken = std::iter::from_fn(|| active.get(next.fetch_add(1, Relaxed)).copied());
            for device in taken {
                if let Err(error) = one(device, &CallingThread) {
                    // The first device's error counts, as if the devices had run one after another.
                    let mut failed = failed.lock();
                    if failed.as_ref().is_none_or(|(first, _)| device < *first) {
                        *failed = Some((device, error));
                    }
                }
            }
        });
        failed.lock().take().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Runs actions in order.
    ///
    /// # Safety
    /// The slots have memory for the actions, which nobody else uses.
    pub(super) unsafe fn run_actions(&mut self, actions: &[Action]) -> Result<()> {
        for action in actions {
            // SAFETY: the caller's.
            unsafe { self.run_action(action)? };
        }
        Ok(())
    }

    /// Runs one action.
    ///
    /// # Safety
    /// As for [`run_actions`](SequenceRun::run_actions).
    unsafe fn run_action(&mut self, action: &Action) -> Result<()> {
        // SAFETY: the caller's: slots that are written share no memory with others of the same action.
        unsafe {
            match action {
                Action::Launch(launch) => self.launch_on_active_devices(launch)?,
                Action::Copy { from, to, bytes } => {
                    for &device in &self.active {
                        thread_team::copy_on_threads(
                            self.on,
                            self.slot_start_ptr(device, *from),
                            self.slot_start_ptr(device, *to),
                            *bytes,
                        );
                    }
                }
                Action::Fill { to, bytes } => {
                    for &device in &self.active {
                        self.slot_start_ptr(device, *to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                    }
                }
                Action::Start { from, to, bytes, collective, .. } if !collective.needs_communication() => {
                    for &device in &self.active {
                        let own = from.map_or(&[][..], |(slot, bytes)| {
                            raw::slice(self.slot_start_ptr(device, slot).cast_const(), bytes)
                        });
                        let result = raw::slice_mut(self.slot_start_ptr(device, *to), *bytes);
                        collective.compute_result(
                            collective.number_in_group(self.participant.positions()[device]),
                            |_| own,
                            result,
                        );
                    }
                }
                Action::Start { from, to, bytes, collective, number } => {
                    self.check_groups_agree(collective)?;
                    let operands: Vec<&[u8]> = match from {
                        Some((slot, bytes)) => self.slot_contents(*slot, *bytes),
                        None => vec![&[]; self.devices],
                    };
                    let step = self.participant.next_collective_number();
                    if self.participant.can_overlap() {
                        self.started[*number] = Some(self.participant.start(collective, step, &operands)?);
                    } else {
                        let mut unused = self.allocate_unused_results(*bytes);
                        let mut results = self.slot_contents_mut(*to, *bytes, &mut unused);
                        self.participant.exchange(collective, step, &operands, &mut results)?;
                    }
                }
                Action::Finish { to, bytes, number } => {
                    if let Some(started) = self.started[*number].take() {
                        let mut unused = self.allocate_unused_results(*bytes);
                        self.participant.finish(started, &mut self.slot_contents_mut(*to, *bytes, &mut unused))?;
                    }
                }
                Action::For { length, counter, turning, body } => {
                    self.move_slots_before_loop(turning);
                    for step in 0..*length {
                        for &device in &self.active {
                            self.slot_start_ptr(device, *counter).cast::<i32>().write(step as i32);
                        }
                        self.run_actions(body)?;
                        self.move_slots_after_step(turning);
                    }
                    self.move_slots_after_loop(turning);
                }
                Action::While { condition, holds, turning, body, collectives: false } => {
                    self.move_slots_before_loop(turning);
                    let counts = std::mem::replace(&mut self.counts, true);
                    let all = self.active.clone();
                    loop {
                        self.run_actions(condition)?;
                        let mut active = std::mem::take(&mut self.active);
                        active.retain(|device| self.slot_start_ptr(*device, *holds).read() != 0);
                        self.active = active;
                        if self.active.is_empty() {
                            break;
                        }
                        self.run_actions(body)?;
                        self.move_slots_after_step(turning);
                    }
                    (self.active, self.counts) = (all, counts);
                    self.move_slots_after_loop(turning);
                }
                Action::While { condition, holds, turning, body, collectives: true } => {
                    self.move_slots_before_loop(turning);
                    let counts = std::mem::replace(&mut self.counts, true);
                    let (all, outer) = (self.active.clone(), self.decision.take());
                    let mut takes = self.devices_taking_step(outer.as_ref());
                    loop {
                        self.run_actions(condition)?;
                        let numbers = self.all_gather_values(|running, device| {
                            i32::from(running.slot_start_ptr(device, *holds).read())
                        })?;
                        takes.iter_mut().zip(&numbers).for_each(|(takes, number)| *takes &= *number != 0);
                        if !takes.contains(&true) {
                            break;
                        }
                        self.activate_devices("the condition of a loop", &all, &numbers, &takes);
                        self.run_actions(body)?;
                        self.move_slots_after_step(turning);
                    }
                    (self.active, self.decision, self.counts) = (all, outer, counts);
                    self.move_slots_after_loop(turning);
                }
                Action::Case { index, branches, collectives: false } => {
                    let last = branches.len() as i32 - 1;
                    let all = self.active.clone();
                    // Before any branch runs, which may overwrite the number.
                    let number =
                        |&device: &usize| self.slot_start_ptr(device, *index).cast::<i32>().read().clamp(0, last);
                    let numbers: SmallVec<[i32; 8]> = all.iter().map(number).collect();
                    let counts = std::mem::replace(&mut self.counts, true);
                    for (number, branch) in (0..).zip(branches) {
                        let own = all.iter().zip(&numbers).filter(|(_, own)| **own == number);
                        self.active = own.map(|(&device, _)| device).collect();
                        if !self.active.is_empty() {
                            self.run_actions(branch)?;
                        }
                    }
                    (self.active, self.counts) = (all, counts);
                }
                Action::Case { index, branches, collectives: true } => {
                    let last = branches.len() as i32 - 1;
                    let numbers = self.all_gather_values(|running, device| {
                        running.slot_start_ptr(device, *index).cast::<i32>().read().clamp(0, last)
                    })?;
                    let counts = std::mem::replace(&mut self.counts, true);
                    let (all, outer) = (self.active.clone(), self.decision.take());
                    let takes = self.devices_taking_step(outer.as_ref());
                    for (number, branch) in (0..).zip(branches) {
                        let own: Vec<bool> =
                            takes.iter().zip(&numbers).map(|(takes, n)| *takes && *n == number).collect();
                        if own.contains(&true) {
                            self.activate_devices("the number of a branch", &all, &numbers, &own);
                            self.run_actions(branch)?;
                        }
                    }
                    (self.active, self.decision, self.counts) = (all, outer, counts);
                }
                Action::Call { from, to, call } => self.call_host(from, to, call)?,
                Action::Show { from, bytes, show } => {
                    if self.participant.positions()[0] == 0 && self.active.first() == Some(&0) {
                        show(raw::slice(self.slot_start_ptr(0, *from), *bytes))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Calls a function of the host on the contents of the slots `from`, and writes its results to the slots `to`, for
    /// each active device; calls it once for devices with the same operands.
    ///
    /// # Safety
    /// The slots have memory of these bytes, which nobody else uses meanwhile.
    unsafe fn call_host(
        &self,
        from: &[(MemorySlot, usize)],
        to: &[(MemorySlot, usize)],
        call: &HostCall,
    ) -> Result<()> {
        let mut operands: Vec<Vec<&[u8]>> = vec![];
        let mut results = vec![];
        for &device in &self.active {
            // SAFETY: the caller's; results do not overlap with operands.
            let operand = |&(slot, bytes): &(MemorySlot, usize)| unsafe {
                raw::slice(self.slot_start_ptr(device, slot).cast_const(), bytes)
            };
            let own: Vec<&[u8]> = from.iter().map(operand).collect();
            let number = match operands.iter().position(|known| *known == own) {
                Some(number) => number,
                None => {
                    results.push(call(&own)?);
                    operands.push(own);
                    results.len() - 1
                }
            };
            for (&(slot, bytes), made) in to.iter().zip(&results[number]) {
                assert_eq!(made.len(), bytes, "a result of a callback has the bytes of its type");
                // SAFETY: the caller's.
                unsafe { self.slot_start_ptr(device, slot).copy_from_nonoverlapping(made.as_ptr(), bytes) };
            }
        }
        Ok(())
    }

    /// Borrows the contents of a slot on each device.
    ///
    /// # Safety
    /// The slots have this memory, which nobody writes meanwhile.
    unsafe fn slot_contents<'m>(&self, slot: MemorySlot, bytes: usize) -> Vec<&'m [u8]> {
        // SAFETY: the caller's.
        let one = |device| unsafe { raw::slice(self.slot_start_ptr(device, slot).cast_const(), bytes) };
        (0..self.devices).map(one).collect()
    }

    /// Allocates memory for the results of inactive devices, which must not overwrite what these still need.
    fn allocate_unused_results(&self, bytes: usize) -> Vec<Vec<u8>> {
        (0..self.devices - self.active.len()).map(|_| vec![0; bytes]).collect()
    }

    /// Borrows the contents of a slot for writing on each active device, and `unused` for the others.
    ///
    /// # Safety
    /// The slots have this memory, which nobody else uses meanwhile.
    unsafe fn slot_contents_mut<'m>(
        &self,
        slot: MemorySlot,
        bytes: usize,
        unused: &'m mut [Vec<u8>],
    ) -> Vec<&'m mut [u8]> {
        let mut unused = unused.iter_mut();
        let mut one = |device: usize| match self.active.contains(&device) {
            // SAFETY: the caller's.
            true => unsafe { raw::slice_mut(self.slot_start_ptr(device, slot), bytes) },
            false => unused.next().expect("one for each").as_mut_slice(),
        };
        (0..self.devices).map(&mut one).collect()
    }

    /// Calls `evaluate` for each device, and gathers the values of all participants' devices, by position in the mesh.
    ///
    /// # Errors
    /// Another participant takes part in no more collectives.
    fn all_gather_values(&self, evaluate: impl Fn(&Self, usize) -> i32) -> Result<Vec<i32>> {
        let own: Vec<i32> = (0..self.devices).map(|device| evaluate(self, device)).collect();
        let Some(agreement) = self.agreement else { return Ok(own) };
        let own: Vec<[u8; 4]> = own.into_iter().map(i32::to_ne_bytes).collect();
        let own: Vec<&[u8]> = own.iter().map(|number| &number[..]).collect();
        let mut found = vec![vec![0; agreement.result_type().bytes()]; self.devices];
        let mut each: Vec<&mut [u8]> = found.iter_mut().map(|all| &mut all[..]).collect();
        self.participant.exchange(agreement, self.participant.next_collective_number(), &own, &mut each)?;
        Ok(found[0].as_chunks::<4>().0.iter().map(|&number| i32::from_ne_bytes(number)).collect())
    }

    /// Returns true for each device, by position in the mesh, that takes the current step. `outer` is the decision of
    /// the enclosing loop or branch with collectives; `None`, outside of these, stands for all devices.
    fn devices_taking_step(&self, outer: Option<&StepDecision>) -> Vec<bool> {
        match (outer, self.agreement) {
            (Some(outer), _) => outer.by_position.iter().map(|(_, takes)| *takes).collect(),
            (None, None) => vec![true; self.devices],
            (None, Some(agreement)) => vec![true; agreement.group(0).len()],
        }
    }

    /// Makes active those devices of `candidates` that take the next step, and records the value by which each device
    /// decided, called `value_name` in messages, for checks.
    fn activate_devices(
        &mut self,
        value_name: &'static str,
        candidates: &ActiveDevices,
        values: &[i32],
        takes_step: &[bool],
    ) {
        let positions = self.participant.positions();
        self.active = candidates.iter().copied().filter(|&device| takes_step[positions[device]]).collect();
        let of = values.iter().copied().zip(takes_step.iter().copied()).collect();
        self.decision = Some(StepDecision { what: value_name, by_position: of });
    }

    /// Checks that in each group of a collective all devices take the step or none. All participants know all
    /// decisions.
    ///
    /// # Errors
    /// Devices of a group disagree.
    fn check_groups_agree(&self, collective: &ResolvedCollective) -> Result<()> {
        let Some(StepDecision { what, by_position: of }) = &self.decision else { return Ok(()) };
        for first in (0..of.len()).filter(|&position| collective.number_in_group(position) == 0) {
            let differs = |&&device: &&usize| of[device].1 != of[first].1;
            if let Some(&device) = collective.group(first).iter().find(differs) {
                return Err(Error::Varies { what, device, expected: of[first].0, found: of[device].0 });
            }
        }
        Ok(())
    }

    /// Start of a slot's memory on a device.
    fn slot_start_ptr(&self, device: usize, slot: MemorySlot) -> *mut u8 {
        self.table[device * self.slots + slot.0].0
    }

    /// Returns an iterator over the slot tables of the active devices, with the addresses of the slots' memory.
    fn active_slot_tables(&mut self) -> impl Iterator<Item = &mut [StartPtr]> {
        let active = &self.active;
        let all = self.table.chunks_mut(self.slots.max(1)).enumerate();
        all.filter(|(device, _)| active.contains(device)).map(|(_, table)| table)
    }

    /// Moves memory into the slots of a loop before its first step.
    fn move_slots_before_loop(&mut self, moves: &LoopSlotMoves) {
        for table in self.active_slot_tables() {
            for &(from, to) in &moves.before_first_step {
                table[to.0] = table[from.0];
            }
        }
    }

    /// Moves memory between the slots of a loop after a step, so that the next step finds the values passed on in its
    /// own slots.
    fn move_slots_after_step(&mut self, moves: &LoopSlotMoves) {
        for table in self.active_slot_tables() {
            let moved: SmallVec<[StartPtr; 16]> = moves.after_each_step.iter().map(|(from, _)| table[from.0]).collect();
            moves.after_each_step.iter().zip(moved).for_each(|(&(_, to), start)| table[to.0] = start);
        }
    }

    /// Moves the contents of a loop's slots into the memory of its results after the last step.
    ///
    /// # Safety
    /// The slots have memory of these bytes, in which nothing lies but what belongs into one of them.
    unsafe fn move_slots_after_loop(&mut self, moves: &LoopSlotMoves) {
        let all = &moves.after_last_step;
        for table in self.active_slot_tables() {
            for (i, &(outer, inner, bytes)) in all.iter().enumerate() {
                let (to, from) = (table[outer.0].0, table[inner.0].0);
                if to == from {
                    continue;
                }
                // The memory at `to` holds the contents of a later slot, or of none.
                let in_the_way = all[i + 1..].iter().find(|(_, other, _)| table[other.0].0 == to);
                // SAFETY: the caller's: memory of different slots of a loop does not overlap.
                unsafe {
                    match in_the_way {
                        Some(&(_, other, _)) => {
                            std::ptr::swap_nonoverlapping(to, from, bytes);
                            table[other.0] = StartPtr(from);
                        }
                        None => from.copy_to_nonoverlapping(to, bytes),
                    }
                }
                table[inner.0] = StartPtr(to);
            }
        }
    }
}
