//! The threads that share a launch: those of rayon's pool, or a team of them that keeps spinning while a program runs,
//! so that even launches of a few microseconds can be shared.
//!
//! A member of a team spins until there is work, and leaves after a while without any; the next launch calls it again.
//! The caller never waits for a member that has not begun, which may take milliseconds on a busy machine.
use parking_lot::Mutex;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Minimum elementary operations of a launch that a team shares: below, a launch takes about as long as sharing it.
pub const MIN_SHARED_OPERATIONS: usize = 10_000;
/// Time after which a thread of a team that has no work leaves the team; the next launch calls it again.
const MAX_IDLE_TIME: Duration = Duration::from_micros(200);

/// The work of a launch: a function that each thread calls with its number.
type ThreadWork<'w> = &'w (dyn Fn(usize) + Sync);

/// A way of running a launch on several threads.
pub trait LaunchThreads {
    /// Returns the minimum elementary operations of a launch that is worth sharing.
    fn min_shared_operations(&self) -> usize;

    /// Calls `work(0)` on this thread, and `work(1)`, .. up to below `threads` on other threads, if these begin before
    /// `work(0)` has returned. One thread alone has to be able to do all of the work.
    fn share_work(&self, threads: usize, work: ThreadWork<'_>);
}

/// The threads of rayon's pool, which sleep while there is no work.
pub struct RayonPool;

impl LaunchThreads for RayonPool {
    /// Returns the elementary operations that take longer than the 10 µs that waking the pool costs.
    fn min_shared_operations(&self) -> usize {
        super::thread_count::MIN_THREADED_OPERATIONS
    }

    fn share_work(&self, threads: usize, work: ThreadWork<'_>) {
        with_thread_team(|team| team.share_work(threads, work));
    }
}

/// The calling thread, without others.
pub struct CallingThread;

impl LaunchThreads for CallingThread {
    fn min_shared_operations(&self) -> usize {
        usize::MAX
    }

    fn share_work(&self, _: usize, work: ThreadWork<'_>) {
        work(0);
    }
}

/// Runs two closures, on two threads if another is idle. As a function of trait objects, it compiles rayon's code for
/// them once.
pub(super) fn run_both(a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
    rayon_core::join(a, b);
}

/// Bytes of each part of a long copy that threads share.
const COPY_PART_BYTES: usize = 1 << 18;

/// Copies bytes, on several threads if there are enough of them.
///
/// # Safety
/// Both have `bytes` bytes, and do not overlap.
pub unsafe fn copy_on_threads(launch_threads: &dyn LaunchThreads, from: *const u8, to: *mut u8, bytes: usize) {
    let parts = bytes.div_ceil(COPY_PART_BYTES);
    if parts < 4 {
        // SAFETY: the caller's.
        return unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }
    let next = AtomicUsize::new(0);
    let (from, to) = (from.expose_provenance(), to.expose_provenance());
    launch_threads.share_work(rayon_core::current_num_threads().min(parts), &|_| {
        let taken = std::iter::from_fn(|| Some(next.fetch_add(1, SeqCst)).filter(|&part| part < parts));
        for first in taken.map(|part| part * COPY_PART_BYTES) {
            let (from, to) = (ptr::with_exposed_provenance(from + first), ptr::with_exposed_provenance_mut(to + first));
            // SAFETY: the caller's; no two parts overlap.
            unsafe { ptr::copy_nonoverlapping::<u8>(from, to, COPY_PART_BYTES.min(bytes - first)) };
        }
    });
}

/// The state that the caller and the members of a team share.
struct TeamState {
    /// Number of the current work; odd while there is work.
    number: AtomicUsize,
    /// Number of members that may be using the work.
    inside: AtomicUsize,
    work: UnsafeCell<Option<ThreadWork<'static>>>,
    /// True if the program that owns the team has ended.
    over: AtomicBool,
    /// For each thread, true if it is a member.
    present: Vec<AtomicBool>,
    /// The panic of a member, which the caller resumes.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` is written by the caller alone, while the number is even and nobody is inside; members read it only
// while the number is odd and they are inside.
unsafe impl Sync for TeamState {}
// SAFETY: as above. Members that outlive the program do not read it any more.
unsafe impl Send for TeamState {}

/// The calling thread's handle to its team, whose threads spin between the launches of a program.
struct Team {
    /// Reference-counted, since members that begin after the end of the program still read that it is over.
    shared: Arc<TeamState>,
}

/// Calls `program`, a function that makes launches, with a team of threads of the pool that spin between these.
pub fn with_thread_team<R>(program: impl FnOnce(&dyn LaunchThreads) -> R) -> R {
    let shared = Arc::new(TeamState {
        number: AtomicUsize::new(0),
        inside: AtomicUsize::new(0),
        work: UnsafeCell::new(None),
        over: AtomicBool::new(false),
        present: (0..rayon_core::current_num_threads()).map(|_| AtomicBool::new(false)).collect(),
        panic: Mutex::default(),
    });
    // Members leave even if the program panics.
    let _over = OnDrop(|| shared.over.store(true, SeqCst));
    program(&Team { shared: shared.clone() })
}

/// Calls a function when it is dropped, even by a panic.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl LaunchThreads for Team {
    /// Returns a lower minimum than for the pool: a member of the team, which spins, sees new work within a
    /// microsecond.
    fn min_shared_operations(&self) -> usize {
        MIN_SHARED_OPERATIONS
    }

    fn share_work(&self, threads: usize, work: ThreadWork<'_>) {
        let shared = &self.shared;
        for thread in 1..threads.min(shared.present.len()) {
            if !shared.present[thread].swap(true, SeqCst) {
                let shared = shared.clone();
                rayon_core::spawn(move || shared.run_member_loop(thread));
            }
        }
        // SAFETY: the number is even and nobody is inside, so nobody reads it. The borrow ends before this function
        // does: see `done`.
        unsafe { *shared.work.get() = Some(std::mem::transmute::<ThreadWork<'_>, ThreadWork<'static>>(work)) };
        shared.number.fetch_add(1, SeqCst);
        // Even if the work panics here, no member uses it afterwards.
        let done = OnDrop(|| {
            shared.number.fetch_add(1, SeqCst);
            let mut rounds = 0u32;
            while shared.inside.load(SeqCst) > 0 {
                rounds += 1;
                if rounds < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        });
        work(0);
        drop(done);
        if let Some(panic) = shared.panic.lock().take() {
            resume_unwind(panic);
        }
    }
}

impl TeamState {
    /// Runs the loop of a member: executes each new work, until the program is over or there is none for a while.
    fn run_member_loop(&self, thread: usize) {
        let (mut seen, mut since) = (0, Instant::now());
        let mut rounds = 0u32;
        loop {
            let number = self.number.load(SeqCst);
            if number % 2 == 1 && number != seen {
                seen = number;
                self.inside.fetch_add(1, SeqCst);
                let _out = OnDrop(|| {
                    self.inside.fetch_sub(1, SeqCst);
                });
                if self.number.load(SeqCst) == number {
                    // SAFETY: the number was odd after this member went inside, so the caller does not write the work,
                    // or return from `share_work`, before it is outside again.
                    let work = unsafe { (*self.work.get()).expect("the number is odd") };
                    // A panic in the pool would end the process.
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(thread))) {
                        self.panic.lock().get_or_insert(panic);
                    }
                }
                since = Instant::now();
                continue;
            }
            rounds = rounds.wrapping_add(1);
            if self.over.load(SeqCst) || rounds.is_multiple_of(64) && since.elapsed() > MAX_IDLE_TIME {
                self.present[thread].store(false, SeqCst);
                return;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn each_part_of_each_launch_is_done_once() {
        let pool = rayon_core::ThreadPoolBuilder::new().num_threads(3).build().expect("three threads");
        pool.install(|| {
            with_thread_team(|team| {
                for launch in 0..2000u64 {
                    let (next, sum) = (AtomicU64::new(0), AtomicU64::new(0));
                    team.share_work(3, &|_| {
                        loop {
                            let part = next.fetch_add(1, SeqCst);
                            if part >= 20 {
                                break;
                            }
                            sum.fetch_add(part * launch, SeqCst);
                        }
                    });
                    assert_eq!(sum.load(SeqCst), 190 * launch);
                    if launch % 500 == 0 {
                        // Members leave, and are called again.
                        std::thread::sleep(2 * MAX_IDLE_TIME);
                    }
                }
            });
        });
    }

    #[test]
    fn a_launch_waits_for_no_thread_that_has_not_begun() {
        let pool = rayon_core::ThreadPoolBuilder::new().num_threads(2).build().expect("two threads");
        let (is_busy, is_done) = (&AtomicBool::new(false), &AtomicBool::new(false));
        let wait = |flag: &AtomicBool| {
            while !flag.load(SeqCst) {
                std::hint::spin_loop();
            }
        };
        pool.in_place_scope(|scope| {
            // One thread is busy until the launches are done.
            scope.spawn(move |_| {
                is_busy.store(true, SeqCst);
                wait(is_done);
            });
            wait(is_busy);
            let (sender, received) = std::sync::mpsc::channel();
            scope.spawn(move |_| {
                // A thread that waits in the pool takes up other work of it.
                let is_taken = Arc::new(AtomicBool::new(false));
                let launch = |thread| {
                    let is_taken = is_taken.clone();
                    if thread == 0 {
                        rayon_core::spawn(move || is_taken.store(true, SeqCst));
                    }
                };
                RayonPool.share_work(2, &launch);
                with_thread_team(|team| team.share_work(2, &launch));
                sender.send(is_taken.load(SeqCst)).expect("it is received");
                is_done.store(true, SeqCst);
            });
            assert!(!received.recv().expect("it is sent"), "a launch waited");
        });
    }

    #[test]
    fn long_copies_are_whole() {
        let longest: Vec<u8> = (0..9 * COPY_PART_BYTES as u32).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        for n in [0, 1, COPY_PART_BYTES, 3 * COPY_PART_BYTES + 1, 4 * COPY_PART_BYTES, 8 * COPY_PART_BYTES + 77] {
            let mut copied = vec![0; n + 1];
            // SAFETY: both have `n` bytes.
            unsafe { copy_on_threads(&RayonPool, longest.as_ptr(), copied.as_mut_ptr(), n) };
            assert!(copied[..n] == longest[..n] && copied[n] == 0, "{n} bytes");
        }
    }

    #[test]
    fn a_panic_here_or_there_ends_the_program() {
        for panics_on in [0, 1] {
            let began = AtomicBool::new(false);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                with_thread_team(|team| {
                    team.share_work(2, &|thread| {
                        if thread == 1 {
                            began.store(true, SeqCst);
                        } else if panics_on == 1 {
                            // Wait for the member, if there is a second thread at all.
                            let start = Instant::now();
                            while !began.load(SeqCst) && start.elapsed() < Duration::from_secs(1) {
                                std::hint::spin_loop();
                            }
                        }
                        assert!(thread != panics_on, "on purpose");
                    });
                })
            }));
            assert!(result.is_err() || panics_on == 1 && !began.load(SeqCst));
        }
    }
}
