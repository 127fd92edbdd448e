//! Commands that a thread records and submits together.
//!
//! A launch is submitted when it is made, unless its thread runs a *program* of several launches: then launches, copies
//! and clears are recorded in one command encoder, in their order, until the program ends or the host needs a result.
//! The error flags of the launches are read together at that point.
//!
//! An upload takes effect before all commands of its submission, also before those recorded earlier. So every upload is
//! preceded by a submission, and the launches' uniform bytes are in memory that was allocated before the first of them.
use super::device::Gpu;
use super::gpu_buffers::GpuMemory;
use crate::devices::storage::DeviceMemory;
use crate::error::Result;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::{self, ThreadId};

/// Maximum number of commands that a thread records before they are submitted, so that the device has work early.
const MAX_RECORDED_COMMANDS: usize = 256;

/// Size in bytes of the uniforms of one submission.
const SUBMISSION_UNIFORM_BYTES: usize = 64 << 10;
/// Size in bytes of the error flags of one submission.
const SUBMISSION_FLAGS_BYTES: usize = MAX_RECORDED_COMMANDS * ERROR_FLAG_STRIDE_BYTES;

/// Distance in bytes between error flags, which is at least the alignment of bindings.
const ERROR_FLAG_STRIDE_BYTES: usize = 256;

/// Number of words of an error flag. All zero: no error; otherwise the shader defines their meaning.
pub(super) const ERROR_FLAG_WORDS: usize = 4;

/// Function that turns the error flag of a launch into its error.
pub type ErrorCheck = Box<dyn FnOnce([u32; ERROR_FLAG_WORDS]) -> Result<()> + Send>;

/// Passes the bytes of an error flag to its check.
pub(super) fn check_error_flag(check: ErrorCheck, flag: &[u8]) -> Result<()> {
    let word = |i: usize| u32::from_le_bytes(flag[4 * i..4 * i + 4].try_into().expect("four bytes"));
    check(std::array::from_fn(word))
}

/// Commands that threads have recorded and not submitted, by thread.
#[derive(Default)]
pub(super) struct CommandsByThread(Mutex<HashMap<ThreadId, ThreadCommands>>);

/// Commands that one thread has recorded and not submitted.
#[derive(Default)]
struct ThreadCommands {
    /// Number of nested programs that the thread has begun.
    #[cfg(feature = "mesh")]
    depth: usize,
    recorded: Option<RecordedCommands>,
    /// Error flags of submitted launches that have not been checked.
    flags: Vec<(GpuMemory, Vec<ErrorCheck>)>,
}

/// Commands that a thread has recorded for its next submission, with the memory of their uniforms and error flags.
struct RecordedCommands {
    encoder: wgpu::CommandEncoder,
    commands: usize,
    /// Memory of uniforms, and the bytes written to it so far.
    uniforms: (GpuMemory, Vec<u8>),
    /// Memory of error flags and their checks, if a launch has one.
    flags: Option<(GpuMemory, Vec<ErrorCheck>)>,
}

impl CommandsByThread {
    /// Calls `f` with this thread's commands; returns `None` if the thread is not recording.
    fn with_current_thread<T>(&self, f: impl FnOnce(&mut ThreadCommands) -> T) -> Option<T> {
        let mut all = self.0.lock();
        all.get_mut(&thread::current().id()).map(f)
    }
}

impl Gpu {
    /// Begins a series of launches on this thread, which are recorded and submitted together; series nest.
    #[cfg(feature = "mesh")]
    pub(super) fn begin_recording(&self) {
        let mut all = self.programs.0.lock();
        all.entry(thread::current().id()).or_default().depth += 1;
    }

    /// Ends the innermost series of launches of this thread, submits what is recorded, and checks the error flags.
    ///
    /// # Errors
    /// The driver refuses the submission; the error of a checked flag.
    #[cfg(feature = "mesh")]
    pub(super) fn end_recording(&self) -> Result<()> {
        let submitted = self.flush_and_check();
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

    /// Records commands for a later submission of this thread; submits them at once if the thread is not recording.
    /// `action` names them in errors.
    pub(super) fn encode(self: &Arc<Self>, action: &str, record: impl FnOnce(&mut wgpu::CommandEncoder)) -> Result<()> {
        let Some(recorded) = self.take_recorded_commands(action)? else {
            return self
                .try_action(action, || {
                    let mut encoder = self.wgpu.create_command_encoder(&Default::default());
                    record(&mut encoder);
                    self.queue.submit([encoder.finish()]);
                })
                .inspect(|()| self.count_submission());
        };
        let mut recorded = recorded;
        let result = self.try_action(action, || record(&mut recorded.encoder));
        recorded.commands += 1;
        let is_full = recorded.commands >= MAX_RECORDED_COMMANDS;
        self.programs.with_current_thread(|program| program.recorded = Some(recorded));
        result?;
        if is_full { self.flush() } else { Ok(()) }
    }

    /// Takes the commands that this thread has recorded, or a new encoder if there are none, for appending; `None` if
    /// the thread is not recording. `action` names what is appended in errors.
    fn take_recorded_commands(self: &Arc<Self>, action: &str) -> Result<Option<RecordedCommands>> {
        Ok(match self.programs.with_current_thread(|program| program.recorded.take()) {
            None => None,
            Some(Some(recorded)) => Some(recorded),
            Some(None) => {
                let uniforms = (self.allocate_buffer(SUBMISSION_UNIFORM_BYTES as u64, false)?, vec![]);
                let encoder = self.try_action(action, || self.wgpu.create_command_encoder(&Default::default()))?;
                Some(RecordedCommands { encoder, commands: 0, uniforms, flags: None })
            }
        })
    }

    /// Takes a place for uniform bytes in memory that the launches recorded on this thread share, and returns the
    /// buffer and offset. Submits what is recorded if the memory is full. `None` if the thread is not recording, or the
    /// bytes never fit. Their length must be a multiple of the alignment of uniforms.
    pub(super) fn allocate_uniforms(self: &Arc<Self>, bytes: &[u8]) -> Result<Option<(wgpu::Buffer, u64)>> {
        let used =
            |program: &mut ThreadCommands| program.recorded.as_ref().map_or(0, |recorded| recorded.uniforms.1.len());
        if self.programs.with_current_thread(used).is_some_and(|used| used + bytes.len() > SUBMISSION_UNIFORM_BYTES) {
            self.flush()?;
        }
        if bytes.len() > SUBMISSION_UNIFORM_BYTES {
            return Ok(None);
        }
        let Some(mut recorded) = self.take_recorded_commands("take memory for uniforms")? else { return Ok(None) };
        let place = (recorded.uniforms.0.wgpu().clone(), recorded.uniforms.1.len() as u64);
        recorded.uniforms.1.extend_from_slice(bytes);
        self.programs.with_current_thread(|program| program.recorded = Some(recorded));
        Ok(Some(place))
    }

    /// Takes a place for a launch's error flag, all zeros, in memory that the launches recorded on this thread share,
    /// and returns the buffer and offset; `check` gets the flag after the submission. Returns `check` as `Err` if the
    /// thread is not recording.
    pub(super) fn allocate_error_flag(
        self: &Arc<Self>,
        check: ErrorCheck,
    ) -> Result<std::result::Result<(wgpu::Buffer, u64), ErrorCheck>> {
        let Some(mut recorded) = self.take_recorded_commands("take memory for error flags")? else {
            return Ok(Err(check));
        };
        if recorded.flags.is_none() {
            let memory = self.allocate_buffer(SUBMISSION_FLAGS_BYTES as u64, false)?;
            // Cleared before the first launch that has a flag.
            recorded.encoder.clear_buffer(memory.wgpu(), 0, None);
            recorded.flags = Some((memory, vec![]));
        }
        let (memory, checks) = recorded.flags.as_mut().expect("it was made");
        let place = (memory.wgpu().clone(), (checks.len() * ERROR_FLAG_STRIDE_BYTES) as u64);
        checks.push(check);
        self.programs.with_current_thread(|program| program.recorded = Some(recorded));
        Ok(Ok(place))
    }

    /// Submits what this thread has recorded, and checks the error flags.
    ///
    /// # Errors
    /// The driver refuses the submission; the error of a checked flag.
    pub(super) fn flush_and_check(&self) -> Result<()> {
        self.flush()?;
        for (memory, checks) in
            self.programs.with_current_thread(|program| std::mem::take(&mut program.flags)).unwrap_or_default()
        {
            let bytes = memory.read(checks.len() * ERROR_FLAG_STRIDE_BYTES)?;
            for (check, words) in checks.into_iter().zip(bytes.chunks_exact(ERROR_FLAG_STRIDE_BYTES)) {
                check_error_flag(check, words)?;
            }
        }
        Ok(())
    }

    /// Submits what this thread has recorded.
    ///
    /// # Errors
    /// The driver refuses it.
    pub(super) fn flush(&self) -> Result<()> {
        let recorded = self.programs.with_current_thread(|program| {
            let mut recorded = program.recorded.take()?;
            program.flags.extend(recorded.flags.take());
            Some(recorded)
        });
        let Some(Some(RecordedCommands { encoder, uniforms: (memory, bytes), .. })) = recorded else { return Ok(()) };
        let _turn = self.lock_wgpu();
        memory.upload(&bytes)?;
        self.try_action("run a program", || self.queue.submit([encoder.finish()]))?;
        self.count_submission();
        Ok(())
    }

    /// Adds 1 to the number of this client's submissions to the device's queue.
    fn count_submission(&self) {
        self.counts.submissions.fetch_add(1, Relaxed);
    }
}
