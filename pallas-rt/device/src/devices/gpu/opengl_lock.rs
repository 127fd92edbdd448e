//! Turns: the devices of an OpenGL adapter share one context, and wgpu panics in a thread that waits for the context
//! for more than a few seconds, for example while another thread compiles a shader. Threads therefore take turns before
//! they call wgpu.
use parking_lot::{Condvar, Mutex};
use std::thread::{self, ThreadId};

/// The thread that holds the [`WgpuLock`], and the number of times it has taken it; `None` if the lock is free.
static LOCK_OWNER: Mutex<Option<(ThreadId, usize)>> = Mutex::new(None);
/// Notifies a waiting thread that the [`WgpuLock`] is free.
static LOCK_FREED: Condvar = Condvar::new();

/// A thread's lock on wgpu, until it is dropped. A thread may take it several times.
pub(super) struct WgpuLock(());

impl WgpuLock {
    /// Takes the lock; waits while another thread holds it.
    pub(super) fn take() -> WgpuLock {
        let me = thread::current().id();
        let other = |owner: &mut Option<(ThreadId, usize)>| owner.is_some_and(|(id, _)| id != me);
        let mut owner = LOCK_OWNER.lock();
        LOCK_FREED.wait_while(&mut owner, other);
        owner.get_or_insert((me, 0)).1 += 1;
        WgpuLock(())
    }
}

impl Drop for WgpuLock {
    fn drop(&mut self) {
        let mut owner = LOCK_OWNER.lock();
        match &mut *owner {
            Some((_, taken)) if *taken > 1 => *taken -= 1,
            _ => *owner = None,
        }
        LOCK_FREED.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    #[test]
    fn one_thread_at_a_time_as_often_as_it_likes() {
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _turn = WgpuLock::take();
                        drop(WgpuLock::take());
                        most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.load(SeqCst), 1);
    }
}
