//! Commands that a thread records and submits together.
//!
//! A launch is submitted when it is made, unless its thread runs a *program* of several launches: then launches, copies
//! and clears are recorded in one command encoder, in their order, until the program ends or the host needs a result.
//! The error flags of the launches are read together at that point.
//!
//! An upload takes effect before all commands of its submission, also before those recorded earlier. So every upload is
//! preceded by a submission, and the launches' uniform bytes are in memory that was allocated before the first of them.
use super::device::Gpu;
use super::memory::Memory;
use crate::devices::storage::DeviceMemory;
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, ThreadId};

/// Number of commands after which a part of a program is submitted, so that the device has work early.
const MOST: usize = 256;

/// Size in bytes of the uniforms of one submission.
const UNIFORMS: usize = 64 << 10;
/// Size in bytes of the error flags of one submission.
const FLAGS: usize = MOST * FLAG;

/// Distance in bytes between error flags, which is at least the alignment of bindings.
const FLAG: usize = 256;

/// Number of words of an error flag. All zero: no error; otherwise the shader defines their meaning.
pub(super) const ERROR_WORDS: usize = 4;

/// Function that turns the error flag of a launch into its error.
pub type Check = Box<dyn FnOnce([u32; ERROR_WORDS]) -> Result<()> + Send>;

/// Passes the bytes of an error flag to its check.
pub(super) fn look(check: Check, flag: &[u8]) -> Result<()> {
    let word = |i: usize| u32::from_le_bytes(flag[4 * i..4 * i + 4].try_into().expect("four bytes"));
    check(std::array::from_fn(word))
}

/// The programs that threads run now.
#[derive(Default)]
pub(super) struct Programs(Mutex<HashMap<ThreadId, Program>>);

/// The program of one thread: what it has recorded and not submitted.
#[derive(Default)]
struct Program {
    /// Number of nested programs that the thread has begun.
    #[cfg(feature = "mesh")]
    depth: usize,
    recorded: Option<Recorded>,
    /// Error flags of submitted launches that have not been checked.
    flags: Vec<(Memory, Vec<Check>)>,
}

/// Recorded commands for one submission.
struct Recorded {
    encoder: wgpu::CommandEncoder,
    commands: usize,
    /// Memory of uniforms, and the bytes written to it so far.
    uniforms: (Memory, Vec<u8>),
    /// Memory of error flags and their checks, if a launch has one.
    flags: Option<(Memory, Vec<Check>)>,
}

impl Programs {
    /// Calls `f` with this thread's program; returns `None` if the thread runs none.
    fn own<T>(&self, f: impl FnOnce(&mut Program) -> T) -> Option<T> {
        let mut all = self.0.lock();
        all.get_mut(&thread::current().id()).map(f)
    }
}

impl Gpu {
    /// Begins a program on this thread; programs nest.
    #[cfg(feature = "mesh")]
    pub(super) fn begin(&self) {
        let mut all = self.programs.0.lock();
        all.entry(thread::current().id()).or_default().depth += 1;
    }

    /// Ends the innermost program of this thread, and submits what it recorded.
    ///
    /// # Errors
    /// The driver refuses the submission; the error of a checked flag.
    #[cfg(feature = "mesh")]
    pub(super) fn end(&self) -> Result<()> {
        let submitted = self.checked();
        let mut all = self.programs.0.lock();
        let me = thread::current().id();
        if let Some(program) = all.get_mut(&me) {
            program.depth -= 1;
            if program.depth == 0 {
                all.remove(&me);
            }
        }
        submitted
    }

    /// Records commands in this thread's program; submits them at once if it runs none.
    pub(super) fn encode(self: &Arc<Self>, action: &str, record: impl FnOnce(&mut wgpu::CommandEncoder)) -> Result<()> {
        let Some(recorded) = self.recorded(action)? else {
            return self
                .attempt(action, || {
                    let mut encoder = self.wgpu.create_command_encoder(&Default::default());
                    record(&mut encoder);
                    self.queue.submit([encoder.finish()]);
                })
                .inspect(|()| self.count());
        };
        let mut recorded = recorded;
        let result = self.attempt(action, || record(&mut recorded.encoder));
        recorded.commands += 1;
        let is_full = recorded.commands >= MOST;
        self.programs.own(|program| program.recorded = Some(recorded));
        result?;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Takes the commands that this thread's program has recorded, for appending; `None` if the thread runs no program.
    fn recorded(self: &Arc<Self>, action: &str) -> Result<Option<Recorded>> {
        Ok(match self.programs.own(|program| program.recorded.take()) {
            None => None,
            Some(Some(recorded)) => Some(recorded),
            Some(None) => {
                let uniforms = (self.buffer(UNIFORMS as u64, false)?, vec![]);
                let encoder = self.attempt(action, || self.wgpu.create_command_encoder(&Default::default()))?;
                Some(Recorded { encoder, commands: 0, uniforms, flags: None })
            }
        })
    }

    /// Takes a place for uniform bytes in the memory of this thread's program, and returns the buffer and offset.
    /// Submits what is recorded if the memory is full. `None` if the thread runs no program, or the bytes never fit.
    /// Their length must be a multiple of the alignment of uniforms.
    pub(super) fn uniforms(self: &Arc<Self>, bytes: &[u8]) -> Result<Option<(wgpu::Buffer, u64)>> {
        let used = |program: &mut Program| program.recorded.as_ref().map_or(0, |recorded| recorded.uniforms.1.len());
        if self.programs.own(used).is_some_and(|used| used + bytes.len() > UNIFORMS) {
            self.flush()?;
        }
        if bytes.len() > UNIFORMS {
            return Ok(None);
        }
        let Some(mut recorded) = self.recorded("take memory for uniforms")? else { return Ok(None) };
        let place = (recorded.uniforms.0.wgpu().clone(), recorded.uniforms.1.len() as u64);
        recorded.uniforms.1.extend_from_slice(bytes);
        self.programs.own(|program| program.recorded = Some(recorded));
        Ok(Some(place))
    }

    /// Takes a place for a launch's error flag, all zeros, in the memory of this thread's program, and returns the
    /// buffer and offset; if the thread runs no program, returns the check.
    pub(super) fn flag(self: &Arc<Self>, check: Check) -> Result<std::result::Result<(wgpu::Buffer, u64), Check>> {
        let Some(mut recorded) = self.recorded("take memory for error flags")? else { return Ok(Err(check)) };
        if recorded.flags.is_none() {
            let memory = self.buffer(FLAGS as u64, false)?;
            // Cleared before the first launch that has a flag.
            recorded.encoder.clear_buffer(memory.wgpu(), 0, None);
            recorded.flags = Some((memory, vec![]));
        }
        let (memory, checks) = recorded.flags.as_mut().expect("it was made");
        let place = (memory.wgpu().clone(), (checks.len() * FLAG) as u64);
        checks.push(check);
        self.programs.own(|program| program.recorded = Some(recorded));
        Ok(Ok(place))
    }

    /// Submits what this thread has recorded, and checks the error flags.
    ///
    /// # Errors
    /// The driver refuses the submission; the error of a checked flag.
    pub(super) fn checked(&self) -> Result<()> {
        self.flush()?;
        for (memory, checks) in self.programs.own(|program| std::mem::take(&mut program.flags)).unwrap_or_default() {
            let bytes = memory.read(checks.len() * FLAG)?;
            for (check, words) in checks.into_iter().zip(bytes.chunks_exact(FLAG)) {
                look(check, words)?;
            }
        }
        Ok(())
    }

    /// Submits what this thread has recorded.
    ///
    /// # Errors
    /// The driver refuses it.
    pub(super) fn flush(&self) -> Result<()> {
        let recorded = self.programs.own(|program| {
            let mut recorded = program.recorded.take()?;
            program.flags.extend(recorded.flags.take());
            Some(recorded)
        });
        let Some(Some(Recorded { encoder, uniforms: (memory, bytes), .. })) = recorded else { return Ok(()) };
        let _turn = self.turn();
        memory.upload(&bytes)?;
        self.attempt("run a program", || self.queue.submit([encoder.finish()]))?;
        self.count();
        Ok(())
    }

    /// Counts a submission.
    fn count(&self) {
        self.counts.submissions.fetch_add(1, Relaxed);
    }
}
