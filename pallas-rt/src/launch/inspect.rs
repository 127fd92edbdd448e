//! Looking at kernels without running them, and running them twice: `explain`, `cost`, `check`.
//!
//! Each runs a closure in its own scope, so it also works for a function that calls several kernels.
use super::explain::{ExplainedKernel, Explanation};
use super::recorded_calls::{RecordedCall, RecordedCalls};
use super::scope::{CallPurpose, run_with_purpose};
use crate::Result;
use crate::exec::{Cost, estimate_launch_cost};
#[cfg(feature = "graph")]
use crate::jit::{ProgramWatch, WatchedKernel, with_watch};
#[cfg(test)]
use pallas_ir::Kernel;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
#[cfg(test)]
use std::sync::Arc;

/// The result of `check`: the launches that were compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Kernels whose outputs agreed.
    pub kernels: usize,
}
impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kernels {
            1 => f.write_str("1 kernel agrees with the interpreter"),
            n => write!(f, "{n} kernels agree with the interpreter"),
        }
    }
}

/// Returns the kernel calls that `f` makes, none of which runs.
fn record_calls<R>(f: impl FnOnce() -> Result<R>) -> Result<Vec<RecordedCall>> {
    let notes = Rc::<RefCell<RecordedCalls>>::default();
    let purpose = CallPurpose::Record(notes.clone());
    #[cfg(feature = "graph")]
    {
        let seen = notes.clone();
        let look = ProgramWatch::Inspect(Box::new(move |seen_kernel| {
            let WatchedKernel { compiled, geometry, client, called, times } = seen_kernel;
            seen.borrow_mut().calls.push(RecordedCall { compiled, geometry, client, called, tuning: None, times });
        }));
        with_watch(Some(look), || run_with_purpose(purpose, f))?;
    }
    #[cfg(not(feature = "graph"))]
    run_with_purpose(purpose, f)?;
    Ok(notes.take().calls)
}

/// Describes every kernel that `f` calls at the given shapes, without running them. Kernels that a function of
/// [`jit`](crate::jit()) calls are included; its other operations are not described.
///
/// # Errors
/// The error of `f`.
pub fn explain<R>(f: impl FnOnce() -> Result<R>) -> Result<Explanation> {
    Ok(Explanation { kernels: record_calls(f)?.into_iter().map(ExplainedKernel::new).collect() })
}

/// Returns the tile IR of every kernel that `f` calls, as traced, without running them.
pub(super) fn collect_traced_text(f: impl FnOnce() -> Result<()>) -> Result<String> {
    Ok(record_calls(f)?.iter().map(|note| note.compiled.traced().to_string()).collect())
}

/// Returns the largest number of bytes that a launch of a kernel takes besides its arrays, of the kernels that `f`
/// calls, without running them.
///
/// # Errors
/// The error of `f`, or the reason for which a kernel cannot run on the device at all.
pub(super) fn max_memory_needed(f: impl FnOnce() -> Result<()>) -> Result<u64> {
    record_calls(f)?.iter().try_fold(0, |most, note| {
        let needed = note.compiled.memory_needed(&note.client, &note.geometry);
        needed.map(|bytes| bytes.max(most)).map_err(|error| error.called_at(note.called))
    })
}

/// Returns every kernel that `f` calls, as traced and as lowered.
#[cfg(test)]
pub(crate) fn collect_traced_and_lowered_kernels<R>(f: impl FnOnce() -> Result<R>) -> Result<Vec<[Arc<Kernel>; 2]>> {
    Ok(record_calls(f)?.iter().map(|note| [note.compiled.traced().clone(), note.compiled.lowered().clone()]).collect())
}

/// The estimated work of every kernel that `f` calls, summed. In a function of [`jit`](crate::jit()) the kernels of a
/// loop count as often as it runs. [`Lowered::cost_analysis`](crate::transform::Lowered::cost_analysis) has the work of
/// other operations.
///
/// # Errors
/// The error of `f`.
pub fn cost<R>(f: impl FnOnce() -> Result<R>) -> Result<Cost> {
    let mut sum = Cost::default();
    for note in record_calls(f)? {
        sum.add_repeated(note.times, estimate_launch_cost(note.compiled.traced(), &note.geometry));
    }
    Ok(sum)
}

/// Runs every kernel that `f` calls on the strict interpreter and on its own device, and compares. A function of
/// [`jit`](crate::jit()) runs one operation at a time.
///
/// # Errors
/// The interpreter's fault; [`Error::Kernel`](crate::Error::Kernel) with the first element that differs, its block, and
/// the line of the store that wrote it; what `f` returns.
pub fn check<R>(f: impl FnOnce() -> Result<R>) -> Result<Checked> {
    let agreed = Rc::<Cell<usize>>::default();
    let purpose = CallPurpose::Check(agreed.clone());
    #[cfg(feature = "graph")]
    {
        let agrees = agreed.clone();
        let check = ProgramWatch::Check(Box::new(move |kernel, reference, outputs| {
            super::compare::compare_outputs(kernel, reference, outputs)?;
            agrees.set(agrees.get() + 1);
            Ok(())
        }));
        with_watch(Some(check), || run_with_purpose(purpose, f))?;
    }
    #[cfg(not(feature = "graph"))]
    run_with_purpose(purpose, f)?;
    Ok(Checked { kernels: agreed.get() })
}
