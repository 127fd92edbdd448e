//! Commands that a thread submits together.
//!
//! A launch is submitted when it is made, unless its thread runs a program of several: then all launches, copies and
//! clears go into one command encoder, in their order, until the program ends or the host needs a result. Error flags of
//! the launches are read together then.
//!
//! An upload comes before all commands of its submission, also before those that were recorded earlier. So whatever uploads
//! submits first, and the uniform bytes of the launches lie in memory that was taken before the first of them.
use super::device::Gpu;
use super::memory::Memory;
use crate::devices::storage::DeviceMemory;
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, ThreadId};

/// Commands after which a part of a program is submitted, so that the device has work early.
const MOST: usize = 256;

/// Bytes of the uniforms of one submission, and of its error flags.
const UNIFORMS: usize = 64 << 10;
const FLAGS: usize = MOST * FLAG;

/// Distance between error flags: the alignment of bindings is at most this.
const FLAG: usize = 256;

/// Words of the error flag. All zero: no error; their meaning is the shader's.
pub(super) const ERROR_WORDS: usize = 4;

/// Looks at the error flag of a launch.
pub type Check = Box<dyn FnOnce([u32; ERROR_WORDS]) -> Result<()> + Send>;

/// Passes the words of an error flag to its check.
pub(super) fn look(check: Check, flag: &[u8]) -> Result<()> {
    let word = |i: usize| u32::from_le_bytes(flag[4 * i..4 * i + 4].try_into().expect("four bytes"));
    check(std::array::from_fn(word))
}

/// The programs that threads run.
#[derive(Default)]
pub(super) struct Programs(Mutex<HashMap<ThreadId, Program>>);

/// What a thread has recorded and not submitted.
#[derive(Default)]
struct Program {
    /// Programs of the thread that have begun, each inside of the one before.
    #[cfg(feature = "mesh")]
    depth: usize,
    recorded: Option<Recorded>,
    /// Flags of what is submitted.
    flags: Vec<(Memory, Vec<Check>)>,
}

/// Commands for one submission.
struct Recorded {
    encoder: wgpu::CommandEncoder,
    commands: usize,
    /// The memory of uniforms, and its bytes so far.
    uniforms: (Memory, Vec<u8>),
    /// The memory of error flags, if a launch has one.
    flags: Option<(Memory, Vec<Check>)>,
}

impl Programs {
    /// What `f` returns for the program of this thread; `None` if it runs none.
    fn own<T>(&self, f: impl FnOnce(&mut Program) -> T) -> Option<T> {
        let mut all = self.0.lock();
        all.get_mut(&thread::current().id()).map(f)
    }
}

impl Gpu {
    /// Begins a program on this thread.
    #[cfg(feature = "mesh")]
    pub(super) fn begin(&self) {
        let mut all = self.programs.0.lock();
        all.entry(thread::current().id()).or_default().depth += 1;
    }

    /// Ends the innermost program of this thread, and submits what it recorded.
    ///
    /// # Errors
    /// The driver refuses it; that of an error flag.
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

    /// Records commands, and submits them unless this thread runs a program.
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

    /// What this thread's program has recorded, taken out of it; `None` if it runs none.
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

    /// A place for uniform bytes in the memory of this thread's program, with its offset; `None` if it runs none, or they
    /// are too many: then what it has recorded is submitted. The length is a multiple of the alignment of uniforms.
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

    /// A place for the error flag of a launch in the memory of this thread's program, all zeros, with its offset; `None` if
    /// it runs none, and gives the check back then.
    pub(super) fn flag(self: &Arc<Self>, check: Check) -> Result<std::result::Result<(wgpu::Buffer, u64), Check>> {
        let Some(mut recorded) = self.recorded("take memory for error flags")? else { return Ok(Err(check)) };
        if recorded.flags.is_none() {
            let memory = self.buffer(FLAGS as u64, false)?;
            // Before the first launch that has one.
            recorded.encoder.clear_buffer(memory.wgpu(), 0, None);
            recorded.flags = Some((memory, vec![]));
        }
        let (memory, checks) = recorded.flags.as_mut().expect("it was made");
        let place = (memory.wgpu().clone(), (checks.len() * FLAG) as u64);
        checks.push(check);
        self.programs.own(|program| program.recorded = Some(recorded));
        Ok(Ok(place))
    }

    /// Submits what this thread has recorded, and looks at its error flags.
    ///
    /// # Errors
    /// The driver refuses it; that of a flag.
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

    fn count(&self) {
        self.counts.submissions.fetch_add(1, Relaxed);
    }
}
