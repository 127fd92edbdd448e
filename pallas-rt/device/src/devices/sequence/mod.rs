//! Many launches of the CPU as one: they run one after another, with loops and branches between them, in the memory of a
//! table of slots. A call takes one place in the queue, and needs no memory but its results'.
//!
//! A sequence may run for several devices of a mesh, each of which has a table of its own. In lockstep every action is done
//! for one after the other, and long launches of all are shared by the threads. On other engines (`collective`) the devices
//! of each participant are in lockstep, and participants exchange arrays. In a loop or branch each device goes its own way: those that are
//! done, or in another branch, take no part in its actions. If it has exchanges, all participants learn what decides and take each
//! step that a device somewhere takes, in which the devices of a group take part together.
//!
//! - here: what a sequence is made of, and its memory; `running`: a run.
mod running;

use super::buffer::Buffer;
use super::client::Client;
use super::counters::LAUNCHES;
use super::cpu::Native;
use super::host::Host;
use super::ledger::Ledger;
use super::memory::{ALIGNMENT, Block};
use super::queue::{Start, Uses};
use super::runtime::{ByOperand, Executable, Geometry};
use crate::collective::{Collectives, Lockstep, ResolvedCollective, on_threads};
use crate::error::Result;
use pallas_codegen::cpu::team::{self, Alone, Pool, Threads};
use pallas_ir::{Kernel, Literal};
use parking_lot::Mutex;
use running::Running;
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

/// A place in the table of a run: the start of some memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(usize);

/// Shows the contents of memory.
type Show = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// Computes the contents of slots from those of others.
type HostCall = Box<dyn Fn(&[&[u8]]) -> Result<Vec<Vec<u8>>> + Send + Sync>;

/// The devices that run a sequence.
#[allow(missing_docs, reason = "the variants' texts name their fields")]
pub enum Devices {
    /// One, which exchanges nothing.
    One,
    /// All of a mesh in lockstep, or on threads of their own; the collective compares what decides about a step.
    Here { count: usize, are_threads: bool, agreement: Arc<ResolvedCollective> },
    /// Some of a mesh, which exchange arrays with those of other processes.
    Some { participant: Arc<dyn Collectives>, agreement: Arc<ResolvedCollective> },
}

impl Devices {
    /// Number of devices in this process.
    pub fn count(&self) -> usize {
        match self {
            Devices::One => 1,
            Devices::Here { count, .. } => *count,
            Devices::Some { participant, .. } => participant.positions().len(),
        }
    }
}

/// An action on the memory of slots.
#[allow(missing_docs, reason = "the variants' texts name their fields")]
pub enum Action {
    /// Runs a kernel.
    Launch(Box<Launching>),
    /// Overwrites memory with that of another slot.
    Copy { from: Slot, to: Slot, bytes: usize },
    /// Overwrites memory.
    Fill { to: Slot, bytes: Box<[u8]> },
    /// Runs the body so many times, with the number of the step in `counter`.
    For { length: usize, counter: Slot, turning: Turning, body: Vec<Action> },
    /// Runs the body as long as the condition leaves true, a byte that is not zero, in `holds`. Each device
    /// has a number of steps of its own; if it exchanges something, those of a group have the same one.
    While { condition: Vec<Action>, holds: Slot, turning: Turning, body: Vec<Action>, collectives: bool },
    /// Runs the branch of this number, an i32; the last one if there is none. Each device has its own number; if
    /// a branch exchanges something, those of a group have the same one.
    Case { index: Slot, branches: Vec<Vec<Action>>, collectives: bool },
    /// Begins an exchange of the contents of a slot, which may be missing; `number` is its own in the sequence.
    Start { from: Option<(Slot, usize)>, to: Slot, bytes: usize, collective: Arc<ResolvedCollective>, number: usize },
    /// Waits for the exchange of this number, whose results are in the slot then.
    Finish { to: Slot, bytes: usize, number: usize },
    /// Calls a function with the contents of a slot.
    Show { from: Slot, bytes: usize, show: Show },
    /// Overwrites slots with what a function computes from the contents of others.
    Call { from: Vec<(Slot, usize)>, to: Vec<(Slot, usize)>, call: HostCall },
}

impl Action {
    /// Runs the body as long as the condition leaves true in `holds`.
    pub fn conditional(condition: Vec<Action>, holds: Slot, turning: Turning, body: Vec<Action>) -> Action {
        let collectives = condition.iter().chain(&body).any(Action::collectives);
        Action::While { condition, holds, turning, body, collectives }
    }

    /// Runs the branch of the number in `index`.
    pub fn branches(index: Slot, branches: Vec<Vec<Action>>) -> Action {
        let collectives = branches.iter().flatten().any(Action::collectives);
        Action::Case { index, branches, collectives }
    }

    /// Returns true if devices have to take it together.
    fn collectives(&self) -> bool {
        match self {
            Action::Start { collective, .. } => collective.communicates(),
            Action::For { body, .. } => body.iter().any(Action::collectives),
            Action::While { collectives, .. } | Action::Case { collectives, .. } => *collectives,
            // What it waits for began in the same list.
            Action::Finish { .. } => false,
            Action::Launch(_) | Action::Copy { .. } | Action::Fill { .. } => false,
            Action::Show { .. } | Action::Call { .. } => false,
        }
    }
}

/// A kernel on its slots.
pub struct Launching {
    kernel: Arc<Kernel>,
    executable: Arc<pallas_codegen::cpu::Executable>,
    geometry: Geometry,
    params: ByOperand<Option<Literal>>,
    operands: ByOperand<Option<Slot>>,
}

/// How the memory of a loop's slots moves. The slots of a turn are a permutation: nothing is lost.
pub struct Turning {
    /// Before the first step: each second slot gets the memory of the first one.
    pub enter: Vec<(Slot, Slot)>,
    /// After each step, all at once.
    pub turn: Vec<(Slot, Slot)>,
    /// After the last step: the contents of each second slot belong into the memory of the first one.
    pub leave: Vec<(Slot, Slot, usize)>,
}

/// Collects the slots of a sequence.
#[derive(Default)]
pub struct Builder {
    slots: usize,
    collectives: usize,
    /// Slots in the arena, each with its offset.
    homes: Vec<(Slot, usize)>,
}

/// See the module.
pub struct Sequence {
    actions: Vec<Action>,
    devices: Devices,
    /// Number of its exchanges.
    collectives: usize,
    /// Slots, and bytes of the arena, of each device.
    slots: usize,
    homes: Vec<(Slot, usize)>,
    arena: usize,
    sums: Sums,
    /// For runs in the queue, which come one after another.
    queued: OnceLock<Mutex<Frame>>,
    /// For runs within their calls: what none of them uses now.
    idle: Mutex<Vec<Frame>>,
}

/// What a run does with the contents of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads them.
    Read,
    /// Reads and overwrites them.
    Change,
    /// Overwrites them.
    Write,
}

/// The memory and the tables of one run.
struct Frame {
    /// The slots of one device after those of another.
    table: Vec<Start>,
    /// The memory in which the homes lie.
    _arena: Option<Buffer>,
}

impl Builder {
    /// A slot without memory of its own.
    pub fn slot(&mut self) -> Slot {
        self.slots += 1;
        Slot(self.slots - 1)
    }

    /// A slot in the arena.
    pub fn home(&mut self, offset: usize) -> Slot {
        let slot = self.slot();
        self.homes.push((slot, offset));
        slot
    }

    /// The number of another exchange.
    pub fn exchange(&mut self) -> usize {
        self.collectives += 1;
        self.collectives - 1
    }

    /// Launches a kernel with a geometry that has programs. The executable is one of the CPU's.
    pub fn launch(
        &mut self,
        kernel: &Arc<Kernel>,
        executable: &dyn Executable,
        geometry: &Geometry,
        params: ByOperand<Option<Literal>>,
        operands: ByOperand<Option<Slot>>,
    ) -> Action {
        let any: &dyn Any = executable;
        let native: &Native = any.downcast_ref().expect("an executable of the CPU");
        let (kernel, executable) = (kernel.clone(), native.executable().clone());
        Action::Launch(Box::new(Launching { kernel, executable, geometry: geometry.clone(), params, operands }))
    }

    /// The sequence of these actions for these devices. The first slots are, in order, the memory that each run is given
    /// for a device.
    pub fn finish(self, actions: Vec<Action>, arena: usize, devices: Devices) -> Sequence {
        let Builder { slots, collectives, homes } = self;
        let count = devices.count();
        let mut sums = Sums { devices: count, ..Sums::default() };
        sums.add(&actions, count, true);
        let (queued, idle) = (OnceLock::new(), Mutex::default());
        Sequence { actions, devices, collectives, slots, homes, arena, sums, queued, idle }
    }
}

/// Sums over actions.
#[derive(Default)]
struct Sums {
    /// Number of devices in this process.
    devices: usize,
    /// The length of a run, in elementary operations.
    work: usize,
    /// Launches of a run, without those whose number is not known before.
    launches: u64,
    /// Launches that several threads can share.
    shared: u64,
    /// Bytes of the tiles of the launch that needs most.
    tiles: u64,
    /// True if it shows values or calls functions of the host: a call returns when all of that is done.
    shows: bool,
}

impl Sums {
    /// Adds actions that run so many times. If they are certain to, their launches are counted. Each action is visited once.
    fn add(&mut self, actions: &[Action], times: usize, is_certain: bool) {
        for action in actions {
            #[cfg(debug_assertions)]
            crate::counted::VISITED.with(|visited| visited.set(visited.get() + 1));
            match action {
                Action::Launch(launch) => {
                    let (executable, grid) = (&launch.executable, &launch.geometry.parallel);
                    self.work = self.work.saturating_add(executable.work(grid).saturating_mul(times));
                    let counted = if is_certain { times as u64 } else { 0 };
                    self.launches += counted;
                    let (programs, own) = (grid.iter().product::<i64>() as usize, executable.work(grid));
                    let is_shared = programs.saturating_mul(self.devices) > 1
                        && own.saturating_mul(self.devices) >= team::SHARED_WORK;
                    self.shared += u64::from(is_shared) * if counted == 0 { 2 } else { counted };
                    let threads = executable.threads(grid).max(rayon_threads().min(self.devices));
                    let tiles = (threads as u64).saturating_mul(executable.bytes_a_program() as u64);
                    self.tiles = self.tiles.max(tiles);
                }
                Action::Copy { bytes, .. } => self.work = self.work.saturating_add((bytes / 16).saturating_mul(times)),
                Action::Fill { .. } => {}
                Action::Start { bytes, .. } => {
                    self.work = self.work.saturating_add((bytes / 8).saturating_mul(times));
                }
                Action::Finish { .. } => {}
                Action::For { length, body, .. } => self.add(body, times.saturating_mul(*length), is_certain),
                Action::While { condition, body, .. } => {
                    self.add(condition, 0, false);
                    self.add(body, 0, false);
                    self.work = usize::MAX;
                }
                Action::Case { branches, .. } => {
                    // One of them runs: at most the longest one.
                    let before = self.work;
                    let mut longest = 0;
                    for branch in branches {
                        self.work = 0;
                        self.add(branch, times, false);
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
    /// Runs it on a CPU client, in this memory, which is that of the first slots of each device. A short run ends within the call, unless it
    /// depends on launches that have not finished; others go on in the client's queue.
    ///
    /// # Errors
    /// No memory; errors of launches that wrote what it reads; if it has ended, its own.
    ///
    /// # Safety
    /// The buffers are of this client and have the lengths for which the sequence was made. The caller has exclusive access
    /// to those that are not only [`Access::Read`].
    pub unsafe fn run(self: &Arc<Self>, client: &Client, memory: &[(&Buffer, Access)]) -> Result<()> {
        if self.sums.tiles > 0 {
            client.check_room("a jitted function", self.sums.tiles)?;
        }
        let first: SmallVec<[Start; 16]> = memory.iter().map(|(buffer, _)| Start(buffer.start())).collect();
        let reads = || memory.iter().filter(|(_, access)| *access != Access::Write).map(|(buffer, _)| uses(buffer));
        let writes = || memory.iter().filter(|(_, access)| *access != Access::Read).map(|(buffer, _)| uses(buffer));
        let is_little =
            self.sums.work < pallas_codegen::cpu::INLINE_WORK && !memory.iter().any(|(b, _)| uses(b).is_busy());
        let ledger = client.runtime().ledger();
        // Other processes have the same exchanges in the same order: that of the calls.
        let is_shared = matches!(self.devices, Devices::Some { .. });
        if rayon_core::current_thread_index().is_some() || self.sums.shows || is_little || is_shared {
            memory.iter().for_each(|(buffer, _)| uses(buffer).wait_for_all());
            reads().try_for_each(Uses::wait_for_writes)?;
            writes().for_each(Uses::forget_outcome);
            let idle = self.idle.lock().pop();
            let mut frame = idle.map_or_else(|| self.frame(client), Ok)?;
            LAUNCHES.fetch_add(self.sums.launches, Relaxed);
            // SAFETY: no launch uses the blocks, and the caller has exclusive access to those that are written.
            let done = unsafe { self.execute(&mut frame, &first, ledger, &Pool) };
            self.idle.lock().push(frame);
            return done;
        }
        if self.queued.get().is_none() {
            // If another thread was faster, this frame is dropped.
            let _ = self.queued.set(Mutex::new(self.frame(client)?));
        }
        LAUNCHES.fetch_add(self.sums.launches, Relaxed);
        let (sequence, ledger) = (self.clone(), ledger.clone());
        let work = move || {
            let mut frame = sequence.queued.get().expect("it is there").lock();
            // SAFETY: the queue runs it after every launch before it has finished, and blocks wait for it before they are
            // read, written or freed.
            let mut execute = |on: &dyn Threads| unsafe { sequence.execute(&mut frame, &first, &ledger, on) };
            if sequence.sums.shared > 1 { team::with(|team| execute(team)) } else { execute(&Pool) }
        };
        let (reads, writes): (SmallVec<[&Uses; 16]>, SmallVec<[&Uses; 16]>) = (reads().collect(), writes().collect());
        let runtime: &dyn Any = &**client.runtime();
        let Host { queue, .. } = runtime.downcast_ref().expect("the client is the CPU's");
        // SAFETY: `work` uses only the arena and the memory of the blocks that are passed here.
        unsafe { queue.add("a jitted function", &reads, &writes, work) };
        Ok(())
    }

    fn frame(&self, client: &Client) -> Result<Frame> {
        let own = self.arena.next_multiple_of(ALIGNMENT);
        let devices = self.devices.count();
        let all = own * devices;
        let mut arena = (all > 0).then(|| Buffer::allocate(client, all, false)).transpose()?;
        // Waits for launches of the memory's previous owner. Values in an empty arena have an address as well, an aligned one.
        let none = std::ptr::without_provenance_mut(ALIGNMENT);
        let start = arena.as_mut().map_or(none, Buffer::as_mut_ptr);
        let mut table = vec![Start(std::ptr::null_mut()); self.slots * devices];
        for (device, table) in table.chunks_mut(self.slots.max(1)).enumerate() {
            for &(slot, offset) in &self.homes {
                table[slot.0] = Start(start.wrapping_add(device * own + offset));
            }
        }
        Ok(Frame { table, _arena: arena })
    }

    /// Runs the actions.
    ///
    /// # Safety
    /// As for [`run`](Sequence::run), of the memory that begins at `first`; nobody else uses it meanwhile.
    unsafe fn execute(&self, frame: &mut Frame, first: &[Start], ledger: &Ledger, on: &dyn Threads) -> Result<()> {
        let count = self.devices.count();
        let given = first.len() / count;
        for (table, first) in frame.table.chunks_mut(self.slots.max(1)).zip(first.chunks(given.max(1))) {
            table[..given].copy_from_slice(first);
        }
        let run = |table: &mut [Start], participant: &dyn Collectives, on: &dyn Threads| {
            let mut running = Running::new(self, table, participant, ledger, on);
            // SAFETY: the caller's; the arena is this frame's.
            let done = unsafe { running.all(&self.actions) };
            LAUNCHES.fetch_add(running.launches(), Relaxed);
            done
        };
        match &self.devices {
            Devices::One => run(&mut frame.table, &Lockstep::new(1), on),
            Devices::Here { count, are_threads: false, .. } => run(&mut frame.table, &Lockstep::new(*count), on),
            Devices::Some { participant, .. } => run(&mut frame.table, &**participant, on),
            Devices::Here { count, are_threads: true, .. } => {
                let tables: Vec<_> = frame.table.chunks_mut(self.slots.max(1)).map(Mutex::new).collect();
                let each = on_threads(*count, &|participant| {
                    let mut table = tables[participant.positions()[0]].lock();
                    run(&mut table, participant, &Alone)
                })?;
                each.into_iter().collect()
            }
        }
    }
}

/// Number of threads that share launches.
fn rayon_threads() -> usize {
    rayon_core::current_num_threads()
}

fn uses(buffer: &Buffer) -> &Uses {
    buffer.block().map(Block::uses).expect("memory of the host")
}
