//! Sequences: many launches of the CPU that run as one, one after another, with loops and branches between them. They
//! work on memory listed in a table of slots. A call takes one place in the queue, and allocates nothing but its
//! results.
//!
//! A sequence may run for several devices of a mesh, each of which has its own table. In lockstep every action is done
//! for one device after the other, and threads share long launches of all. On other engines (`collective`) the devices
//! of each participant are in lockstep, and participants exchange arrays. Each device decides about loops and branches
//! by its own values: devices that are done, or in another branch, skip the actions. If a loop or branch has
//! collectives, all participants learn every device's decision and take each step that any device takes, so that the
//! devices of a group reach a collective together.
//!
//! - here: actions, the sequence and its memory; `running`: one run of a sequence.
mod running;

use super::buffer::Buffer;
use super::client::Client;
use super::counters::LAUNCHES;
use super::cpu::CpuKernel;
use super::host::HostRuntime;
use super::ledger::MemoryLedger;
use super::memory::{BLOCK_ALIGNMENT_BYTES, HostBlock};
use super::queue::{LaunchUses, StartPtr};
use super::runtime::{ByOperand, Executable, LaunchGeometry};
use crate::collective::{Collectives, LockstepParticipant, ResolvedCollective, run_on_threads};
use crate::error::Result;
use pallas_codegen::cpu::thread_team::{self, CallingThread, LaunchThreads, RayonPool};
use pallas_ir::{Kernel, Literal};
use parking_lot::Mutex;
use running::SequenceRun;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

/// Index in the table of a run, whose entries are addresses at which some memory starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemorySlot(usize);

/// Function that shows the contents of memory to the user.
type DisplayFunction = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// Function of the host that computes the contents of slots from those of others.
type HostCall = Box<dyn Fn(&[&[u8]]) -> Result<Vec<Vec<u8>>> + Send + Sync>;

/// The devices of a mesh that run a sequence in this process.
#[allow(missing_docs, reason = "the variants' texts name their fields")]
pub enum SequenceDevices {
    /// One device, which has no collectives.
    SingleDevice,
    /// All `count` devices of a mesh, in lockstep or on threads of their own; `agreement` is the collective that
    /// compares the devices' decisions about loops and branches.
    AllInProcess { count: usize, are_threads: bool, agreement: Arc<ResolvedCollective> },
    /// Some devices of a mesh, which exchange arrays with those of other processes; `agreement` compares all decisions.
    AcrossProcesses { participant: Arc<dyn Collectives>, agreement: Arc<ResolvedCollective> },
}

impl SequenceDevices {
    /// Number of devices in this process.
    pub fn count(&self) -> usize {
        match self {
            SequenceDevices::SingleDevice => 1,
            SequenceDevices::AllInProcess { count, .. } => *count,
            SequenceDevices::AcrossProcesses { participant, .. } => participant.positions().len(),
        }
    }
}

/// An action of a sequence on the memory of slots, such as a launch, a copy, a loop, a collective, or a call of the
/// host.
#[allow(missing_docs, reason = "the variants' texts name their fields")]
pub enum Action {
    /// Launches a kernel.
    Launch(Box<KernelLaunch>),
    /// Copies `bytes` bytes from one slot's memory to another's.
    Copy { from: MemorySlot, to: MemorySlot, bytes: usize },
    /// Overwrites memory with constant bytes.
    Fill { to: MemorySlot, bytes: Box<[u8]> },
    /// Runs the body `length` times, with the index of the step in `counter`.
    For { length: usize, counter: MemorySlot, turning: LoopSlotMoves, body: Vec<Action> },
    /// Runs the body as long as the condition leaves true, a byte that is not zero, in `holds`. Each device has its own
    /// number of steps; with `collectives` the devices of a group must agree.
    While { condition: Vec<Action>, holds: MemorySlot, turning: LoopSlotMoves, body: Vec<Action>, collectives: bool },
    /// Runs the branch whose index, an i32, is in `index`; the last branch if the index is out of range. Each device
    /// has its own index; with `collectives` the devices of a group must agree.
    Case { index: MemorySlot, branches: Vec<Vec<Action>>, collectives: bool },
    /// Begins a collective on the contents of slot `from`, if any; `number` identifies the collective in the sequence.
    Start {
        from: Option<(MemorySlot, usize)>,
        to: MemorySlot,
        bytes: usize,
        collective: Arc<ResolvedCollective>,
        number: usize,
    },
    /// Waits for the collective of this number and places its results in `to`.
    Finish { to: MemorySlot, bytes: usize, number: usize },
    /// Calls a function that shows the contents of a slot.
    Show { from: MemorySlot, bytes: usize, show: DisplayFunction },
    /// Overwrites slots with the results of a function of the host of other slots' contents.
    Call { from: Vec<(MemorySlot, usize)>, to: Vec<(MemorySlot, usize)>, call: HostCall },
}

impl Action {
    /// Creates a loop that runs the body as long as the condition leaves true in `condition_result`.
    pub fn new_while(
        condition: Vec<Action>,
        condition_result: MemorySlot,
        moves: LoopSlotMoves,
        body: Vec<Action>,
    ) -> Action {
        let collectives = condition.iter().chain(&body).any(Action::has_collectives);
        Action::While { condition, holds: condition_result, turning: moves, body, collectives }
    }

    /// Creates an action that runs one of `branches`: the one whose index, an i32 clamped to the existing ones, is in
    /// the slot `index`.
    pub fn new_case(index: MemorySlot, branches: Vec<Vec<Action>>) -> Action {
        let collectives = branches.iter().flatten().any(Action::has_collectives);
        Action::Case { index, branches, collectives }
    }

    /// Returns true if the action has collectives, so that the devices of a group have to take it together.
    fn has_collectives(&self) -> bool {
        match self {
            Action::Start { collective, .. } => collective.needs_communication(),
            Action::For { body, .. } => body.iter().any(Action::has_collectives),
            Action::While { collectives, .. } | Action::Case { collectives, .. } => *collectives,
            // The collective that it waits for began in the same list.
            Action::Finish { .. } => false,
            Action::Launch(_) | Action::Copy { .. } | Action::Fill { .. } => false,
            Action::Show { .. } | Action::Call { .. } => false,
        }
    }
}

/// Launch of a kernel: the executable, its geometry, and the slot of each operand.
pub struct KernelLaunch {
    kernel: Arc<Kernel>,
    executable: Arc<pallas_codegen::cpu::Executable>,
    geometry: LaunchGeometry,
    params: ByOperand<Option<Literal>>,
    operands: ByOperand<Option<MemorySlot>>,
}

/// Moves of memory between the slots of a loop. The moves after a step are a permutation, so no memory is lost.
pub struct LoopSlotMoves {
    /// Before the first step: each second slot takes over the memory of the first one.
    pub before_first_step: Vec<(MemorySlot, MemorySlot)>,
    /// After each step: moves of memory, all at once.
    pub after_each_step: Vec<(MemorySlot, MemorySlot)>,
    /// After the last step: the contents of each second slot move into the memory of the first one, as many bytes as
    /// the third number says.
    pub after_last_step: Vec<(MemorySlot, MemorySlot, usize)>,
}

/// Builder of a sequence, which allots slots and numbers of collectives.
#[derive(Default)]
pub struct SequenceBuilder {
    slots: usize,
    collectives: usize,
    /// Slots whose memory is in the arena, each with its offset in bytes.
    arena_slots: Vec<(MemorySlot, usize)>,
}

/// Launches and other actions on the CPU that one call runs in order, with the devices that take part and the memory of
/// their slots.
pub struct Sequence {
    actions: Vec<Action>,
    devices: SequenceDevices,
    /// Number of its collectives.
    collectives: usize,
    /// Number of slots, slots with offsets in the arena, and bytes of the arena, each per device.
    slots: usize,
    arena_slots: Vec<(MemorySlot, usize)>,
    arena: usize,
    sums: SequenceTotals,
    /// Memory of runs in the queue, which run one after another.
    queued: OnceLock<Mutex<RunMemory>>,
    /// Memory for runs within their calls, of which none is in use.
    idle: Mutex<Vec<RunMemory>>,
}

/// Kind of access of a run to the contents of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryAccess {
    /// The run reads the contents.
    Read,
    /// The run reads and overwrites the contents.
    Change,
    /// The run overwrites the contents without reading them.
    Write,
}

/// Memory of one run of a sequence: the table of all devices' slots, and the arena.
struct RunMemory {
    /// The tables of all devices, one device's slots after another's.
    table: Vec<StartPtr>,
    /// The arena, which holds the memory of slots that have some of their own.
    _arena: Option<Buffer>,
}

impl SequenceBuilder {
    /// Adds a slot without memory of its own.
    pub fn add_slot(&mut self) -> MemorySlot {
        self.slots += 1;
        MemorySlot(self.slots - 1)
    }

    /// Adds a slot whose memory is at this offset of the arena.
    pub fn add_arena_slot(&mut self, offset: usize) -> MemorySlot {
        let slot = self.add_slot();
        self.arena_slots.push((slot, offset));
        slot
    }

    /// Returns a number for one more collective, by which the sequence's actions identify it.
    pub fn allot_collective_number(&mut self) -> usize {
        self.collectives += 1;
        self.collectives - 1
    }

    /// Creates the launch of a kernel on these slots. The geometry must have programs, and the executable must be the
    /// CPU's.
    pub fn create_launch(
        &mut self,
        kernel: &Arc<Kernel>,
        executable: &dyn Executable,
        geometry: &LaunchGeometry,
        params: ByOperand<Option<Literal>>,
        operands: ByOperand<Option<MemorySlot>>,
    ) -> Action {
        let any: &dyn Any = executable;
        let native: &CpuKernel = any.downcast_ref().expect("an executable of the CPU");
        let (kernel, executable) = (kernel.clone(), native.executable().clone());
        Action::Launch(Box::new(KernelLaunch { kernel, executable, geometry: geometry.clone(), params, operands }))
    }

    /// Returns the sequence of these actions with an arena of `arena_bytes` bytes for each device. The first slots are,
    /// in order, the memory that each run is given for a device.
    pub fn finish(self, actions: Vec<Action>, arena_bytes: usize, devices: SequenceDevices) -> Sequence {
        let SequenceBuilder { slots, collectives, arena_slots: homes } = self;
        let count = devices.count();
        let mut sums = SequenceTotals { devices: count, ..SequenceTotals::default() };
        sums.add_actions(&actions, count, true);
        let (queued, idle) = (OnceLock::new(), Mutex::default());
        Sequence { actions, devices, collectives, slots, arena_slots: homes, arena: arena_bytes, sums, queued, idle }
    }
}

/// Sums and maxima over the actions of a sequence, by which its runs are scheduled.
#[derive(Default)]
struct SequenceTotals {
    /// Number of devices in this process.
    devices: usize,
    /// Estimated length of a run, in elementary operations.
    work: usize,
    /// Number of launches of a run, without those in loops and branches of unknown extent.
    launches: u64,
    /// Number of launches that several threads can share.
    shared: u64,
    /// Bytes of tiles of the launch that needs most.
    tiles: u64,
    /// True if the sequence shows values or calls functions of the host: then a call returns when all of that is done.
    shows: bool,
}

impl SequenceTotals {
    /// Adds actions that run `times` times. Their launches are counted if `is_certain`. Each action is visited once.
    fn add_actions(&mut self, actions: &[Action], times: usize, is_certain: bool) {
        for action in actions {
            #[cfg(debug_assertions)]
            crate::counted::VISITED_ACTIONS.with(|visited| visited.set(visited.get() + 1));
            match action {
                Action::Launch(launch) => {
                    let (executable, grid) = (&launch.executable, &launch.geometry.parallel);
                    self.work = self.work.saturating_add(executable.operation_count(grid).saturating_mul(times));
                    let counted = if is_certain { times as u64 } else { 0 };
                    self.launches += counted;
                    let (programs, own) = (grid.iter().product::<i64>() as usize, executable.operation_count(grid));
                    let is_shared = programs.saturating_mul(self.devices) > 1
                        && own.saturating_mul(self.devices) >= thread_team::MIN_SHARED_OPERATIONS;
                    self.shared += u64::from(is_shared) * if counted == 0 { 2 } else { counted };
                    let threads = executable.thread_count(grid).max(rayon_threads().min(self.devices));
                    let tiles = (threads as u64).saturating_mul(executable.bytes_per_program() as u64);
                    self.tiles = self.tiles.max(tiles);
                }
                Action::Copy { bytes, .. } => self.work = self.work.saturating_add((bytes / 16).saturating_mul(times)),
                Action::Fill { .. } => {}
                Action::Start { bytes, .. } => {
                    self.work = self.work.saturating_add((bytes / 8).saturating_mul(times));
                }
                Action::Finish { .. } => {}
                Action::For { length, body, .. } => self.add_actions(body, times.saturating_mul(*length), is_certain),
                Action::While { condition, body, .. } => {
                    self.add_actions(condition, 0, false);
                    self.add_actions(body, 0, false);
                    self.work = usize::MAX;
                }
                Action::Case { branches, .. } => {
                    // Only one branch runs; assume the longest.
                    let before = self.work;
                    let mut longest = 0;
                    for branch in branches {
                        self.work = 0;
                        self.add_actions(branch, times, false);
                        longest = longest.max(self.work);
                    }
                    self.work = before.saturating_add(longest);
                }
                Action::Show { .. } | Action::Call { .. } => self.shows = true,
            }
        }
    }
}

impl Sequence {
    /// Runs the sequence on a CPU client. `memory` becomes that of the first slots of each device. A short run ends
    /// within the call, unless it depends on launches that have not finished; others go on in the client's queue.
    ///
    /// # Errors
    /// No memory; errors of launches that wrote what it reads; if it has ended, its own.
    ///
    /// # Safety
    /// The buffers belong to this client and have the lengths for which the sequence was made. The caller has exclusive
    /// access to those that are not only [`MemoryAccess::Read`].
    pub unsafe fn run(self: &Arc<Self>, client: &Client, memory: &[(&Buffer, MemoryAccess)]) -> Result<()> {
        if self.sums.tiles > 0 {
            client.check_memory_fits("a jitted function", self.sums.tiles)?;
        }
        let first: SmallVec<[StartPtr; 16]> = memory.iter().map(|(buffer, _)| StartPtr(buffer.start_ptr())).collect();
        let reads = || {
            memory
                .iter()
                .filter(|(_, access)| *access != MemoryAccess::Write)
                .map(|(buffer, _)| buffer_launch_uses(buffer))
        };
        let writes = || {
            memory
                .iter()
                .filter(|(_, access)| *access != MemoryAccess::Read)
                .map(|(buffer, _)| buffer_launch_uses(buffer))
        };
        let is_little = self.sums.work < pallas_codegen::cpu::MIN_THREADED_OPERATIONS
            && !memory.iter().any(|(b, _)| buffer_launch_uses(b).is_busy());
        let ledger = client.runtime().ledger();
        // All processes must reach collectives in the same order: that of the calls.
        let is_shared = matches!(self.devices, SequenceDevices::AcrossProcesses { .. });
        if rayon_core::current_thread_index().is_some() || self.sums.shows || is_little || is_shared {
            memory.iter().for_each(|(buffer, _)| buffer_launch_uses(buffer).wait_for_all());
            reads().try_for_each(LaunchUses::wait_for_writes)?;
            writes().for_each(LaunchUses::forget_last_write_outcome);
            let idle = self.idle.lock().pop();
            let mut frame = idle.map_or_else(|| self.allocate_run_memory(client), Ok)?;
            LAUNCHES.fetch_add(self.sums.launches, Relaxed);
            // SAFETY: no launch uses the blocks, and the caller has exclusive access to those that are written.
            let done = unsafe { self.execute_actions(&mut frame, &first, ledger, &RayonPool) };
            self.idle.lock().push(frame);
            return done;
        }
        if self.queued.get().is_none() {
            // If another thread has set the frame meanwhile, this one is dropped.
            let _ = self.queued.set(Mutex::new(self.allocate_run_memory(client)?));
        }
        LAUNCHES.fetch_add(self.sums.launches, Relaxed);
        let (sequence, ledger) = (self.clone(), ledger.clone());
        let work = move || {
            let mut frame = sequence.queued.get().expect("it is there").lock();
            // SAFETY: the queue runs it after every launch before it has finished, and blocks wait for it before they
            // are read, written or freed.
            let mut execute =
                |on: &dyn LaunchThreads| unsafe { sequence.execute_actions(&mut frame, &first, &ledger, on) };
            if sequence.sums.shared > 1 {
                thread_team::with_thread_team(|team| execute(team))
            } else {
                execute(&RayonPool)
            }
        };
        let (reads, writes): (SmallVec<[&LaunchUses; 16]>, SmallVec<[&LaunchUses; 16]>) =
            (reads().collect(), writes().collect());
        let runtime: &dyn Any = &**client.runtime();
        let HostRuntime { queue, .. } = runtime.downcast_ref().expect("the client is the CPU's");
        // SAFETY: `work` uses only the arena and the memory of the blocks that are passed here.
        unsafe { queue.add_launch("a jitted function", &reads, &writes, work) };
        Ok(())
    }

    /// Allocates the memory of one run: the arena of all devices, and each device's table of slots, in which those in
    /// the arena have their addresses.
    fn allocate_run_memory(&self, client: &Client) -> Result<RunMemory> {
        let own = self.arena.next_multiple_of(BLOCK_ALIGNMENT_BYTES);
        let devices = self.devices.count();
        let all = own * devices;
        let mut arena = (all > 0).then(|| Buffer::allocate(client, all, false)).transpose()?;
        // Waits for launches of the memory's previous owner. Values in an empty arena have an address as well, an
        // aligned one.
        let none = std::ptr::without_provenance_mut(BLOCK_ALIGNMENT_BYTES);
        let start = arena.as_mut().map_or(none, Buffer::as_mut_ptr);
        let mut table = vec![StartPtr(std::ptr::null_mut()); self.slots * devices];
        for (device, table) in table.chunks_mut(self.slots.max(1)).enumerate() {
            for &(slot, offset) in &self.arena_slots {
                table[slot.0] = StartPtr(start.wrapping_add(device * own + offset));
            }
        }
        Ok(RunMemory { table, _arena: arena })
    }

    /// Runs the actions on `memory`, the arena and tables of this run; the first slots of each device get the memory
    /// that begins at `first_slot_starts`, in the order of the devices.
    ///
    /// # Safety
    /// As for [`run`](Sequence::run), of the memory that begins at `first_slot_starts`; nobody else uses it meanwhile.
    unsafe fn execute_actions(
        &self,
        memory: &mut RunMemory,
        first_slot_starts: &[StartPtr],
        ledger: &MemoryLedger,
        threads: &dyn LaunchThreads,
    ) -> Result<()> {
        let count = self.devices.count();
        let given = first_slot_starts.len() / count;
        for (table, first) in memory.table.chunks_mut(self.slots.max(1)).zip(first_slot_starts.chunks(given.max(1))) {
            table[..given].copy_from_slice(first);
        }
        let run = |table: &mut [StartPtr], participant: &dyn Collectives, on: &dyn LaunchThreads| {
            let mut running = SequenceRun::new(self, table, participant, ledger, on);
            // SAFETY: the caller's; the arena is this frame's.
            let done = unsafe { running.run_actions(&self.actions) };
            LAUNCHES.fetch_add(running.uncounted_launches(), Relaxed);
            done
        };
        match &self.devices {
            SequenceDevices::SingleDevice => run(&mut memory.table, &LockstepParticipant::new(1), threads),
            SequenceDevices::AllInProcess { count, are_threads: false, .. } => {
                run(&mut memory.table, &LockstepParticipant::new(*count), threads)
            }
            SequenceDevices::AcrossProcesses { participant, .. } => run(&mut memory.table, &**participant, threads),
            SequenceDevices::AllInProcess { count, are_threads: true, .. } => {
                let tables: Vec<_> = memory.table.chunks_mut(self.slots.max(1)).map(Mutex::new).collect();
                let each = run_on_threads(*count, &|participant| {
                    let mut table = tables[participant.positions()[0]].lock();
                    run(&mut table, participant, &CallingThread)
                })?;
                each.into_iter().collect()
            }
        }
    }
}

/// Number of rayon's threads, which share launches.
fn rayon_threads() -> usize {
    rayon_core::current_num_threads()
}

/// Records of the launches that use a buffer, by which runs wait for each other.
fn buffer_launch_uses(buffer: &Buffer) -> &LaunchUses {
    buffer.host_block().map(HostBlock::launch_uses).expect("memory of the host")
}
