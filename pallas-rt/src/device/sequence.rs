//! Many launches of the CPU as one: they run one after another, with loops and branches between them, in the memory of a
//! table of slots. A call takes one place in the queue, and needs no memory but its results'.
//!
//! A sequence may run for several virtual devices in lockstep: each has a table of its own, and every action is done for one
//! after the other. So an exchange among them has all operands when it begins, and nothing can wait for ever.
use super::buffer::Buffer;
use super::client::Client;
use super::counters::LAUNCHES;
use super::cpu::{self, Native};
use super::host::Host;
use super::ledger::Ledger;
use super::memory::{ALIGNMENT, Block};
use super::queue::Uses;
use super::runtime::{ByOperand, Executable, Geometry, described};
use crate::cpu::team::{self, Pool, Threads};
use crate::error::{Error, Result};
use crate::timeline;
use pallas_ir::{Kernel, Literal};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A place in the table of a run: the start of some memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(usize);

/// Shows the contents of memory.
type Show = Box<dyn Fn(&[u8]) -> Result<()> + Send + Sync>;

/// Fills the outputs of all devices from the inputs of all devices.
type Exchange = Box<dyn Fn(&[&[u8]], &mut [&mut [u8]]) + Send + Sync>;

/// What a sequence does with the memory of slots.
pub(crate) enum Action {
    /// Runs a kernel.
    Launch(Box<Launching>),
    /// Overwrites memory with that of another slot.
    Copy { from: Slot, to: Slot, bytes: usize },
    /// Overwrites memory.
    Fill { to: Slot, bytes: Box<[u8]> },
    /// Runs the body so many times, with the number of the step in `counter`.
    For { length: usize, counter: Slot, turning: Turning, body: Vec<Action> },
    /// Runs the body as long as the condition leaves true, a byte that is not zero, in `holds`.
    While { condition: Vec<Action>, holds: Slot, turning: Turning, body: Vec<Action> },
    /// Runs the branch of this number, an i32; the last one if there is none.
    Case { index: Slot, branches: Vec<Vec<Action>> },
    /// Calls a function with the contents of two slots on each device. The first one may be missing.
    Exchange { from: Option<(Slot, usize)>, to: Slot, bytes: usize, exchange: Exchange },
    /// Calls a function with the contents of a slot.
    Show { from: Slot, bytes: usize, show: Show },
}

/// A kernel on its slots.
pub(crate) struct Launching {
    kernel: Arc<Kernel>,
    executable: Arc<crate::cpu::Executable>,
    geometry: Geometry,
    params: ByOperand<Option<Literal>>,
    operands: ByOperand<Option<Slot>>,
}

/// How the memory of a loop's slots moves. The slots of a turn are a permutation: nothing is lost.
pub(crate) struct Turning {
    /// Before the first step: each second slot gets the memory of the first one.
    pub enter: Vec<(Slot, Slot)>,
    /// After each step, all at once.
    pub turn: Vec<(Slot, Slot)>,
    /// After the last step: the contents of each second slot belong into the memory of the first one.
    pub leave: Vec<(Slot, Slot, usize)>,
}

/// Collects the slots of a sequence.
#[derive(Default)]
pub(crate) struct Builder {
    slots: usize,
    /// Slots in the arena, each with its offset.
    homes: Vec<(Slot, usize)>,
}

/// See the module.
pub(crate) struct Sequence {
    actions: Vec<Action>,
    /// Number of devices that run it in lockstep.
    devices: usize,
    /// Slots, and bytes of the arena, of each device.
    slots: usize,
    homes: Vec<(Slot, usize)>,
    arena: usize,
    /// The length of its run, in elementary operations.
    work: usize,
    /// Launches of a run, without those whose number is not known before.
    launches: u64,
    /// Bytes of the tiles of the launch that needs most.
    tiles: u64,
    /// True if a team shares at least two of its launches.
    shared: bool,
    /// True if it shows values: a call returns when all have been shown.
    shows: bool,
    /// For runs in the queue, which come one after another.
    queued: OnceLock<Mutex<Frame>>,
    /// For runs within their calls: what none of them uses now.
    idle: Mutex<Vec<Frame>>,
}

/// What a run does with the contents of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
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

/// Start of a slot's memory.
#[derive(Clone, Copy)]
struct Start(*mut u8);
// SAFETY: an address; the queue defines who may use the memory, and when.
unsafe impl Send for Start {}

impl Builder {
    /// A slot without memory of its own.
    pub(crate) fn slot(&mut self) -> Slot {
        self.slots += 1;
        Slot(self.slots - 1)
    }

    /// A slot in the arena.
    pub(crate) fn home(&mut self, offset: usize) -> Slot {
        let slot = self.slot();
        self.homes.push((slot, offset));
        slot
    }

    /// Launches a kernel with a geometry that has programs. The executable is one of the CPU's.
    pub(crate) fn launch(
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

    /// The sequence of these actions for so many devices. The first slots are, in order, the memory that each run is given
    /// for a device.
    pub(crate) fn finish(self, actions: Vec<Action>, arena: usize, devices: usize) -> Sequence {
        let Builder { slots, homes } = self;
        let mut all = Sums::default();
        all.add(&actions, devices);
        let Sums { work, launches, shared, tiles, shows } = all;
        Sequence {
            actions,
            devices,
            slots,
            homes,
            arena,
            work,
            launches,
            tiles,
            shared: shared > 1,
            shows,
            queued: OnceLock::new(),
            idle: Mutex::default(),
        }
    }
}

/// Sums over actions.
#[derive(Default)]
struct Sums {
    work: usize,
    launches: u64,
    /// Launches that several threads can share.
    shared: u64,
    tiles: u64,
    shows: bool,
}

impl Sums {
    fn add(&mut self, actions: &[Action], times: usize) {
        for action in actions {
            match action {
                Action::Launch(launch) => {
                    let (executable, grid) = (&launch.executable, &launch.geometry.parallel);
                    self.work = self.work.saturating_add(executable.work(grid).saturating_mul(times));
                    self.launches += times as u64;
                    let is_shared = grid.iter().product::<i64>() > 1 && executable.work(grid) >= team::SHARED_WORK;
                    self.shared += u64::from(is_shared) * if times == 0 { 2 } else { times as u64 };
                    let tiles = (executable.threads(grid) as u64).saturating_mul(executable.bytes_a_program() as u64);
                    self.tiles = self.tiles.max(tiles);
                }
                Action::Copy { bytes, .. } => self.work = self.work.saturating_add((bytes / 16).saturating_mul(times)),
                Action::Fill { .. } => {}
                Action::Exchange { bytes, .. } => {
                    self.work = self.work.saturating_add((bytes / 8).saturating_mul(times));
                }
                Action::For { length, body, .. } => self.add(body, times.saturating_mul(*length)),
                Action::While { condition, body, .. } => {
                    self.add(condition, 0);
                    self.add(body, 0);
                    self.work = usize::MAX;
                }
                Action::Case { branches, .. } => {
                    let work = |branch: &Vec<Action>| {
                        let mut own = Sums::default();
                        own.add(branch, times);
                        own.work
                    };
                    self.work = self.work.saturating_add(branches.iter().map(work).max().unwrap_or(0));
                    branches.iter().for_each(|branch| self.add(branch, 0));
                }
                Action::Show { .. } => self.shows = true,
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
    pub(crate) unsafe fn run(self: &Arc<Self>, client: &Client, memory: &[(&Buffer, Access)]) -> Result<()> {
        if self.tiles > 0 {
            client.check_room("a jitted function", self.tiles)?;
        }
        let first: SmallVec<[Start; 16]> = memory.iter().map(|(buffer, _)| Start(buffer.start())).collect();
        let reads = || memory.iter().filter(|(_, access)| *access != Access::Write).map(|(buffer, _)| uses(buffer));
        let writes = || memory.iter().filter(|(_, access)| *access != Access::Read).map(|(buffer, _)| uses(buffer));
        let is_little = self.work < crate::cpu::INLINE_WORK && !memory.iter().any(|(b, _)| uses(b).is_busy());
        let ledger = client.runtime().ledger();
        if rayon::current_thread_index().is_some() || self.shows || is_little {
            memory.iter().for_each(|(buffer, _)| uses(buffer).wait_for_all());
            reads().try_for_each(Uses::wait_for_writes)?;
            writes().for_each(Uses::forget_outcome);
            let idle = lock(&self.idle).pop();
            let mut frame = idle.map_or_else(|| self.frame(client), Ok)?;
            LAUNCHES.fetch_add(self.launches, Relaxed);
            // SAFETY: no launch uses the blocks, and the caller has exclusive access to those that are written.
            let done = unsafe { self.execute(&mut frame, &first, ledger, &Pool) };
            lock(&self.idle).push(frame);
            return done;
        }
        if self.queued.get().is_none() {
            // If another thread was faster, this frame is dropped.
            let _ = self.queued.set(Mutex::new(self.frame(client)?));
        }
        LAUNCHES.fetch_add(self.launches, Relaxed);
        let (sequence, ledger) = (self.clone(), ledger.clone());
        let work = move || {
            let mut frame = lock(sequence.queued.get().expect("it is there"));
            // SAFETY: the queue runs it after every launch before it has finished, and blocks wait for it before they are
            // read, written or freed.
            let mut execute = |on: &dyn Threads| unsafe { sequence.execute(&mut frame, &first, &ledger, on) };
            if sequence.shared { team::with(|team| execute(team)) } else { execute(&Pool) }
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
        let all = own * self.devices;
        let mut arena = (all > 0).then(|| Buffer::allocate(client, all, false)).transpose()?;
        // Waits for launches of the memory's previous owner.
        let start = arena.as_mut().map_or(std::ptr::null_mut(), Buffer::as_mut_ptr);
        let mut table = vec![Start(std::ptr::null_mut()); self.slots * self.devices];
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
        let given = first.len() / self.devices;
        for (table, first) in frame.table.chunks_mut(self.slots.max(1)).zip(first.chunks(given.max(1))) {
            table[..given].copy_from_slice(first);
        }
        let (slots, devices) = (self.slots, self.devices);
        let mut running = Running { table: &mut frame.table, slots, devices, ledger, on, counts: false, launches: 0 };
        // SAFETY: the caller's; the arena is this frame's.
        let done = unsafe { running.all(&self.actions) };
        LAUNCHES.fetch_add(running.launches, Relaxed);
        done
    }
}

fn uses(buffer: &Buffer) -> &Uses {
    buffer.block().map(Block::uses).expect("memory of the host")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A run that panicked leaves its frame in order: the next one sets all slots that it reads.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run.
struct Running<'a> {
    table: &'a mut [Start],
    /// Slots of each device.
    slots: usize,
    devices: usize,
    ledger: &'a Ledger,
    on: &'a dyn Threads,
    /// True in loops and branches whose launches were not counted before.
    counts: bool,
    launches: u64,
}

impl Running<'_> {
    /// # Safety
    /// The slots have memory for the actions, which nobody else uses.
    unsafe fn all(&mut self, actions: &[Action]) -> Result<()> {
        for action in actions {
            // SAFETY: the caller's.
            unsafe { self.one(action)? };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`all`](Running::all).
    unsafe fn one(&mut self, action: &Action) -> Result<()> {
        // SAFETY: the caller's: slots that are written share no memory with others of the same action.
        unsafe {
            match action {
                Action::Launch(launch) => {
                    let Launching { kernel, executable, geometry, params, operands } = &**launch;
                    for device in 0..self.devices {
                        self.launches += u64::from(self.counts);
                        let start =
                            |i: usize| operands[i].map_or(std::ptr::null_mut(), |slot| self.start(device, slot));
                        let run = || cpu::execute(executable, geometry, params, self.ledger, self.on, start);
                        timeline::span(timeline::Kind::Launch, || described(kernel, geometry), run)?;
                    }
                }
                Action::Copy { from, to, bytes } => {
                    for device in 0..self.devices {
                        team::copy(self.on, self.start(device, *from), self.start(device, *to), *bytes);
                    }
                }
                Action::Fill { to, bytes } => {
                    for device in 0..self.devices {
                        self.start(device, *to).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                    }
                }
                Action::Exchange { from, to, bytes, exchange } => {
                    let inputs: Vec<&[u8]> = from.map_or(vec![], |(slot, bytes)| {
                        (0..self.devices).map(|d| std::slice::from_raw_parts(self.start(d, slot), bytes)).collect()
                    });
                    let mut outputs: Vec<&mut [u8]> = (0..self.devices)
                        .map(|device| std::slice::from_raw_parts_mut(self.start(device, *to), *bytes))
                        .collect();
                    exchange(&inputs, &mut outputs);
                }
                Action::For { length, counter, turning, body } => {
                    self.enter(turning);
                    for step in 0..*length {
                        for device in 0..self.devices {
                            self.start(device, *counter).cast::<i32>().write(step as i32);
                        }
                        self.all(body)?;
                        self.turn(turning);
                    }
                    self.leave(turning);
                }
                Action::While { condition, holds, turning, body } => {
                    self.enter(turning);
                    let counts = std::mem::replace(&mut self.counts, true);
                    loop {
                        self.all(condition)?;
                        let holds = self.same("the condition of a loop", |running, device| {
                            i32::from(running.start(device, *holds).read())
                        })?;
                        if holds == 0 {
                            break;
                        }
                        self.all(body)?;
                        self.turn(turning);
                    }
                    self.counts = counts;
                    self.leave(turning);
                }
                Action::Case { index, branches } => {
                    let last = branches.len() - 1;
                    let index = self.same("the number of a branch", |running, device| {
                        running.start(device, *index).cast::<i32>().read().clamp(0, last as i32)
                    })?;
                    let counts = std::mem::replace(&mut self.counts, true);
                    self.all(&branches[index as usize])?;
                    self.counts = counts;
                }
                Action::Show { from, bytes, show } => {
                    show(std::slice::from_raw_parts(self.start(0, *from), *bytes))?;
                }
            }
        }
        Ok(())
    }

    /// A number that all devices have.
    ///
    /// # Errors
    /// Devices have different ones.
    fn same(&self, what: &'static str, of: impl Fn(&Self, usize) -> i32) -> Result<i32> {
        let first = of(self, 0);
        match (1..self.devices).find(|&device| of(self, device) != first) {
            Some(device) => Err(Error::Varies { what, device, expected: first, found: of(self, device) }),
            None => Ok(first),
        }
    }

    fn start(&self, device: usize, slot: Slot) -> *mut u8 {
        self.table[device * self.slots + slot.0].0
    }

    fn tables(&mut self) -> std::slice::ChunksMut<'_, Start> {
        self.table.chunks_mut(self.slots.max(1))
    }

    fn enter(&mut self, turning: &Turning) {
        for table in self.tables() {
            for &(from, to) in &turning.enter {
                table[to.0] = table[from.0];
            }
        }
    }

    fn turn(&mut self, turning: &Turning) {
        for table in self.tables() {
            let moved: SmallVec<[Start; 16]> = turning.turn.iter().map(|(from, _)| table[from.0]).collect();
            turning.turn.iter().zip(moved).for_each(|(&(_, to), start)| table[to.0] = start);
        }
    }

    /// # Safety
    /// The slots have memory of these bytes, in which nothing lies but what belongs into one of them.
    unsafe fn leave(&mut self, turning: &Turning) {
        let all = &turning.leave;
        for table in self.tables() {
            for (i, &(outer, inner, bytes)) in all.iter().enumerate() {
                let (to, from) = (table[outer.0].0, table[inner.0].0);
                if to == from {
                    continue;
                }
                // What lies there belongs to a later slot, or to none.
                let in_the_way = all[i + 1..].iter().find(|(_, other, _)| table[other.0].0 == to);
                // SAFETY: the caller's: two places of one loop lie apart.
                unsafe {
                    match in_the_way {
                        Some(&(_, other, _)) => {
                            std::ptr::swap_nonoverlapping(to, from, bytes);
                            table[other.0] = Start(from);
                        }
                        None => from.copy_to_nonoverlapping(to, bytes),
                    }
                }
                table[inner.0] = Start(to);
            }
        }
    }
}
