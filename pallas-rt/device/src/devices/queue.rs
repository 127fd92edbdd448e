//! The queue of a CPU client: launches that continue after their call returns, one after another, in the order of the
//! calls.
//!
//! A launch gets a [`LaunchNumber`]. Blocks of memory record the numbers of the launches that use them
//! ([`LaunchUses`]), so that a read, write or free of a block waits for those launches only. A block may be freed and
//! allocated again before they finish: the launches of its next owner come later in the same queue.
//!
//! A thread that waits runs launches that nobody has begun: a short launch ends before another thread would have woken
//! up.
use crate::error::{Error, Result, panic_message};
use pallas_ir::{At, Diag, Loc};
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;

/// Number of a launch, from 1. Launches finish in the order of their numbers.
type LaunchNumber = u64;

/// Maximum number of unfinished launches: the call of a further one waits. Equal to that of JAX's CPU client. Each
/// launch holds its arrays, and a program that times its steps by their calls is at most this far ahead.
const MAX_UNFINISHED_LAUNCHES: u64 = 32;

/// The error of a launch, set if it failed.
type LaunchOutcome = Arc<OnceLock<Error>>;

/// The unfinished launches of one client. When it is dropped, its thread exits after the last of them.
pub(super) struct LaunchQueue(Arc<SharedQueue>);

/// State that the queue, its thread and waiting threads share.
struct SharedQueue {
    state: Mutex<QueueState>,
    /// The thread that runs a launch now.
    runner: Mutex<Option<ThreadId>>,
    /// Notifies that a launch may begin, or that the queue was closed.
    added: Condvar,
    /// Notifies that a launch has ended.
    ended: Condvar,
    /// Number of the last launch that has finished.
    done: AtomicU64,
}

/// State of a launch queue: its launches that have not begun, and the activity of the threads that run launches.
#[derive(Default)]
struct QueueState {
    jobs: VecDeque<QueuedLaunch>,
    last: LaunchNumber,
    /// True if the queue has a thread that runs launches.
    running: bool,
    /// True if a launch is being run, by that thread or by one that waits.
    busy: bool,
    closed: bool,
    /// The first error that [`LaunchQueue::wait_for_all`] has not returned yet.
    error: Option<Error>,
}

/// A launch that has not begun: its work, its outcome, and the outcomes of the launches that write its inputs.
struct QueuedLaunch {
    kernel: String,
    work: Box<dyn FnOnce() -> Result<()> + Send>,
    /// Outcomes of the launches that write its inputs: if one failed, it does not run.
    needs: Vec<LaunchOutcome>,
    outcome: LaunchOutcome,
}

impl Default for LaunchQueue {
    fn default() -> LaunchQueue {
        let (added, ended) = (Condvar::new(), Condvar::new());
        let (state, runner) = (Mutex::default(), Mutex::default());
        LaunchQueue(Arc::new(SharedQueue { state, runner, added, ended, done: AtomicU64::new(0) }))
    }
}

impl LaunchQueue {
    /// Adds a launch, which runs `work` after all launches so far, on the queue's thread or on one that waits for it.
    /// It fails without running if a launch that wrote a block of `reads` failed.
    ///
    /// # Safety
    /// `work` reads only the memory of `reads` and writes only the memory of `writes`.
    pub(super) unsafe fn add_launch(
        &self,
        kernel: &str,
        reads: &[&LaunchUses],
        writes: &[&LaunchUses],
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        self.0.wait_for_capacity();
        let needs = reads.iter().filter_map(|uses| uses.last_write_outcome()).collect();
        let outcome = LaunchOutcome::default();
        let job = QueuedLaunch { kernel: kernel.into(), work: Box::new(work), needs, outcome: outcome.clone() };
        let mut state = self.0.state.lock();
        state.last += 1;
        for uses in reads {
            uses.record_launch(&self.0, &uses.used, state.last);
        }
        for uses in writes {
            uses.record_launch(&self.0, &uses.used, state.last);
            uses.record_launch(&self.0, &uses.written, state.last);
            uses.set_last_write_outcome(Some(outcome.clone()));
        }
        state.jobs.push_back(job);
        let running = std::mem::replace(&mut state.running, true);
        drop(state);
        if running {
            self.0.added.notify_one();
            return;
        }
        let shared = self.0.clone();
        let thread = std::thread::Builder::new().name("pallas-cpu".into());
        if thread.spawn(move || shared.run_launches(true)).is_err() {
            // The system has no more threads: this thread does the work. Other calls leave their launches to it in the
            // meantime, since launches finish in their order.
            self.0.run_launches(false);
        }
    }

    /// Waits until all launches have finished.
    ///
    /// # Errors
    /// The first error of a launch that no earlier call has returned.
    pub(super) fn wait_for_all(&self) -> Result<()> {
        let last = self.0.state.lock().last;
        self.0.wait_for_launch(last);
        self.0.state.lock().error.take().map_or(Ok(()), Err)
    }
}

impl Drop for LaunchQueue {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.added.notify_one();
    }
}

impl SharedQueue {
    /// Waits until fewer than [`MAX_UNFINISHED_LAUNCHES`] launches are unfinished; a thread that runs a launch does not
    /// wait for itself.
    fn wait_for_capacity(&self) {
        let last = self.state.lock().last;
        if last < self.done.load(Ordering::Acquire) + MAX_UNFINISHED_LAUNCHES {
            return;
        }
        let runner = *self.runner.lock();
        if runner != Some(std::thread::current().id()) {
            self.wait_for_launch(last + 1 - MAX_UNFINISHED_LAUNCHES);
        }
    }

    /// Runs launches until none is left; if `until_closed`, waits for more until the queue is closed as well.
    fn run_launches(&self, until_closed: bool) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.take_next_launch() {
                drop(state);
                self.run_launch(job);
                state = self.state.lock();
            } else if !state.jobs.is_empty() || until_closed && !state.closed {
                self.added.wait(&mut state);
            } else {
                state.running = false;
                return;
            }
        }
    }

    /// Runs a launch that [`QueueState::take_next_launch`] has taken.
    fn run_launch(&self, job: QueuedLaunch) {
        let QueuedLaunch { kernel, work, needs, outcome } = job;
        let runner = |is| *self.runner.lock() = is;
        runner(Some(std::thread::current().id()));
        let result = match needs.iter().find_map(|needed| needed.get()) {
            Some(error) => Err(error.clone()),
            None => {
                catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(launch_panic_error(&kernel, &*panic)))
            }
        };
        runner(None);
        let mut state = self.state.lock();
        if let Err(error) = result {
            state.error.get_or_insert_with(|| error.clone());
            outcome.get_or_init(|| error);
        }
        self.done.fetch_add(1, Ordering::Release);
        state.busy = false;
        let is_last = state.jobs.is_empty();
        drop(state);
        self.ended.notify_all();
        if !is_last {
            self.added.notify_one();
        }
    }

    /// Returns true if the launch has finished.
    fn has_ended(&self, number: LaunchNumber) -> bool {
        self.done.load(Ordering::Acquire) >= number
    }

    /// Waits until the launch has finished; runs launches meanwhile.
    fn wait_for_launch(&self, number: LaunchNumber) {
        if self.has_ended(number) {
            return;
        }
        if rayon_core::current_thread_index().is_some() {
            // The launch may be waiting for this thread to run a share of its programs.
            while !self.has_ended(number) {
                if rayon_core::yield_now() != Some(rayon_core::Yield::Executed) {
                    std::thread::yield_now();
                }
            }
            return;
        }
        let mut state = self.state.lock();
        while !self.has_ended(number) {
            if let Some(job) = state.take_next_launch() {
                drop(state);
                self.run_launch(job);
                state = self.state.lock();
            } else {
                self.ended.wait(&mut state);
            }
        }
    }
}

impl QueueState {
    /// Takes the next launch to run it; `None` if one is being run already.
    fn take_next_launch(&mut self) -> Option<QueuedLaunch> {
        let job = if self.busy { None } else { self.jobs.pop_front() };
        self.busy |= job.is_some();
        job
    }
}

/// Converts a panic of a launch to an error: a bug in this crate, not in the user's kernel.
fn launch_panic_error(kernel: &str, panic: &(dyn Any + Send)) -> Error {
    let message = format!("its launch panicked: {}", panic_message(panic));
    Error::kernel(kernel, Loc::NONE, "", Diag::new("panic", At::Op, message, "report it, with the kernel"))
}

/// Start of the memory of an operand or a slot; null without memory.
#[derive(Clone, Copy)]
pub(super) struct StartPtr(pub(super) *mut u8);
// SAFETY: an address; `LaunchQueue::add_launch` defines who may use the memory, and when.
unsafe impl Send for StartPtr {}
// SAFETY: as above.
unsafe impl Sync for StartPtr {}

/// The launches that use a block of memory.
#[derive(Default)]
pub(super) struct LaunchUses {
    /// The queue of the launches; set by the first one.
    queue: OnceLock<Arc<SharedQueue>>,
    used: AtomicU64,
    written: AtomicU64,
    /// Outcome of the last launch that wrote the block.
    outcome: Mutex<Option<LaunchOutcome>>,
}

impl LaunchUses {
    /// Records a launch in `last_launch`, the number of the last launch that uses the block or of the last that writes
    /// it.
    fn record_launch(&self, queue: &Arc<SharedQueue>, last_launch: &AtomicU64, number: LaunchNumber) {
        self.queue.get_or_init(|| queue.clone());
        last_launch.fetch_max(number, Ordering::Relaxed);
    }

    /// Waits until launch `number`, which uses the block, has finished.
    fn wait_for_launch(&self, number: LaunchNumber) {
        if let Some(queue) = self.queue.get() {
            queue.wait_for_launch(number);
        }
    }

    /// Returns true if a launch that uses the block has not finished.
    pub(super) fn is_busy(&self) -> bool {
        self.queue.get().is_some_and(|queue| !queue.has_ended(self.used.load(Ordering::Relaxed)))
    }

    /// Waits until no launch uses the block.
    pub(super) fn wait_for_all(&self) {
        self.wait_for_launch(self.used.load(Ordering::Relaxed));
    }

    /// Waits until no launch writes the block.
    ///
    /// # Errors
    /// The error of the launch that wrote it last.
    pub(super) fn wait_for_writes(&self) -> Result<()> {
        self.wait_for_launch(self.written.load(Ordering::Relaxed));
        self.last_write_outcome().and_then(|outcome| outcome.get().cloned()).map_or(Ok(()), Err)
    }

    /// Clears the outcome of the last launch that wrote the block, for a caller that replaces its contents.
    pub(super) fn forget_last_write_outcome(&self) {
        if self.queue.get().is_some() {
            self.set_last_write_outcome(None);
        }
    }

    /// Sets the outcome of the last launch that wrote the block, or forgets it if `outcome` is `None`.
    fn set_last_write_outcome(&self, outcome: Option<LaunchOutcome>) {
        *self.outcome.lock() = outcome;
    }

    /// Outcome of the last launch that wrote the block, if it may have failed.
    fn last_write_outcome(&self) -> Option<LaunchOutcome> {
        self.queue.get()?;
        self.outcome.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn failure() -> Error {
        Error::Value { message: "on purpose".into() }
    }

    /// Adds work that accesses no memory.
    fn add(
        queue: &LaunchQueue,
        reads: &[&LaunchUses],
        writes: &[&LaunchUses],
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        // SAFETY: the work uses no block.
        unsafe { queue.add_launch("k", reads, writes, work) }
    }

    #[test]
    fn launches_end_in_order_and_readers_wait_for_theirs() {
        let (queue, x, y) = (LaunchQueue::default(), LaunchUses::default(), LaunchUses::default());
        let (go, wait) = mpsc::channel();
        add(&queue, &[], &[&x], move || wait.recv().map_err(|_| failure()));
        add(&queue, &[&x], &[&y], || Ok(()));
        assert!(x.is_busy() && y.is_busy());
        go.send(()).expect("the first launch waits");
        assert_eq!(y.wait_for_writes(), Ok(()));
        assert!(!x.is_busy(), "it came before");
        assert_eq!(queue.wait_for_all(), Ok(()));
    }

    #[test]
    fn a_call_waits_while_many_launches_are_unfinished() {
        let (queue, x) = (LaunchQueue::default(), LaunchUses::default());
        let (go, wait) = mpsc::channel();
        add(&queue, &[], &[&x], move || wait.recv().map_err(|_| failure()));
        let ran = Arc::new(AtomicU64::new(0));
        let count = || {
            let ran = ran.clone();
            move || {
                ran.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        (1..MAX_UNFINISHED_LAUNCHES).for_each(|_| add(&queue, &[], &[&x], count()));
        assert_eq!(ran.load(Ordering::Relaxed), 0, "all wait for the first one");
        std::thread::scope(|scope| {
            let added = scope.spawn(|| add(&queue, &[], &[&x], count()));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!added.is_finished(), "one too many");
            go.send(()).expect("the first launch waits");
        });
        assert_eq!((x.wait_for_writes(), ran.load(Ordering::Relaxed)), (Ok(()), MAX_UNFINISHED_LAUNCHES));
    }

    #[test]
    fn an_error_reaches_every_reader_and_whoever_waits_once() {
        let (queue, x, y, z) =
            (LaunchQueue::default(), LaunchUses::default(), LaunchUses::default(), LaunchUses::default());
        add(&queue, &[], &[&x], || Err(failure()));
        add(&queue, &[&x], &[&y], || panic!("must not run"));
        add(&queue, &[], &[&z], || panic!("as it is made to"));
        assert_eq!((x.wait_for_writes(), y.wait_for_writes()), (Err(failure()), Err(failure())));
        let panicked = z.wait_for_writes().expect_err("it panicked").to_string();
        assert!(panicked.contains("its launch panicked: as it is made to"), "{panicked}");
        assert_eq!((queue.wait_for_all(), queue.wait_for_all()), (Err(failure()), Ok(())));
        x.forget_last_write_outcome();
        assert_eq!(x.wait_for_writes(), Ok(()));
    }

    /// Threads that add launches and wait for them run them in turn, each once, in order.
    #[test]
    fn threads_that_wait_run_launches() {
        let queue = LaunchQueue::default();
        let (ran, inside) = (Arc::new(Mutex::new(vec![])), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (queue, ran, inside) = (&queue, ran.clone(), inside.clone());
                scope.spawn(move || {
                    for i in 0..200 {
                        let (x, ran, inside) = (LaunchUses::default(), ran.clone(), inside.clone());
                        add(queue, &[], &[&x], move || {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "another one runs");
                            ran.lock().push((thread, i));
                            inside.fetch_sub(1, Ordering::SeqCst);
                            Ok(())
                        });
                        if i % 3 > 0 {
                            assert_eq!(x.wait_for_writes(), Ok(()));
                            assert!(!x.is_busy());
                        }
                    }
                });
            }
        });
        assert_eq!(queue.wait_for_all(), Ok(()));
        let ran = ran.lock();
        for thread in 0..4 {
            let own: Vec<i32> = ran.iter().filter(|(t, _)| *t == thread).map(|(_, i)| *i).collect();
            assert_eq!(own, (0..200).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_dropped_queue_ends_its_launches() {
        let (queue, x) = (LaunchQueue::default(), LaunchUses::default());
        (0..100).for_each(|_| add(&queue, &[], &[&x], || Ok(())));
        drop(queue);
        assert_eq!(x.wait_for_writes(), Ok(()));
    }
}
