//! Worker threads, one for each device, that last as long as the process. They are not rayon's: a device that waits for
//! others blocks its thread, on which rayon would run another device's work meanwhile.
use parking_lot::Mutex;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A call that a worker thread makes, of the program of one device.
type WorkerJob = Box<dyn FnOnce() + Send>;

/// Channels that pass jobs to the worker threads, by number of the device.
static WORKER_CHANNELS: Mutex<Vec<Sender<WorkerJob>>> = Mutex::new(vec![]);

thread_local! {
    /// True if this thread is that of a device.
    static IS_DEVICE_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Calls `work` with each number below `n`, on the thread of that number. Returns when all calls have, with the
/// payloads of those that panicked. Simultaneous runs are serialised: the jobs of a run are handed out together, so
/// that no two runs wait for each other.
///
/// # Errors
/// The system starts no more threads; or this is the thread of a device, on which its own job would wait.
pub(super) fn run_on_workers(
    n: usize,
    work: &(dyn Fn(usize) + Sync),
) -> std::io::Result<Vec<(usize, Box<dyn Any + Send>)>> {
    if IS_DEVICE_THREAD.get() {
        return Err(std::io::Error::other("the program of a device cannot run a program on all devices"));
    }
    let (done, ends) = channel();
    {
        let mut workers = WORKER_CHANNELS.lock();
        while workers.len() < n {
            let (jobs, taken) = channel();
            std::thread::Builder::new().name(format!("device {}", workers.len())).spawn(move || run_jobs(&taken))?;
            workers.push(jobs);
        }
        for (number, worker) in workers.iter().enumerate().take(n) {
            let done = done.clone();
            // SAFETY: `receive_panics` below returns after each job has sent its end, which is the last thing that it
            // does; nothing between here and there returns or panics, so the borrow outlives every use.
            let work = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
            let job = move || {
                let end = catch_unwind(AssertUnwindSafe(|| work(number))).err();
                let _ = done.send((number, end));
            };
            // A thread never ends, so it takes what it is sent.
            let _ = worker.send(Box::new(job));
        }
    }
    Ok(receive_panics(&ends, n))
}

/// Runs the jobs that a worker thread receives, until the channel is closed.
fn run_jobs(jobs: &Receiver<WorkerJob>) {
    IS_DEVICE_THREAD.set(true);
    while let Ok(job) = jobs.recv() {
        job();
    }
}

/// Waits for the ends of all jobs; returns the panics.
fn receive_panics(
    ends: &Receiver<(usize, Option<Box<dyn Any + Send>>)>,
    n: usize,
) -> Vec<(usize, Box<dyn Any + Send>)> {
    let all: Vec<_> = (0..n).filter_map(|_| ends.recv().ok()).collect();
    assert_eq!(all.len(), n, "every job sends its end");
    all.into_iter().filter_map(|(number, end)| Some((number, end?))).collect()
}

#[cfg(test)]
mod tests {
    use super::run_on_workers;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn each_number_is_called_once_also_in_several_runs_at_once() {
        let sums: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in [1, 8, 3] {
                        let barrier = std::sync::Barrier::new(n);
                        let panics = run_on_workers(n, &|i| {
                            // Each call is on a thread of its own, or this would wait for ever.
                            barrier.wait();
                            sums[i].fetch_add(1, SeqCst);
                        });
                        assert!(panics.expect("threads").is_empty());
                    }
                });
            }
        });
        let found: Vec<usize> = sums.iter().map(|sum| sum.load(SeqCst)).collect();
        assert_eq!(found, [12, 8, 8, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn panics_are_returned() {
        let panics = run_on_workers(3, &|i| assert!(i != 1, "on purpose")).expect("threads");
        assert_eq!(panics.iter().map(|(i, _)| *i).collect::<Vec<_>>(), [1]);
        assert!(run_on_workers(3, &|_| {}).expect("threads").is_empty());
    }
}
