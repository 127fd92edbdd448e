//! Distribution of a launch's programs over threads. Each thread has neighbouring programs as its share, so that what
//! they read in common stays in its caches, and takes from the ends of other shares when its own is done.
use std::sync::atomic::{AtomicU64, Ordering};

/// The parts of a launch that are not taken yet: a range for each thread, its share, with the start in the low half of
/// a word and the end in the high half.
#[derive(Debug)]
pub(super) struct WorkShares(Vec<AtomicU64>);

impl WorkShares {
    /// Divides the parts `0..parts` among `threads` threads.
    pub(super) fn new(parts: u32, threads: u32) -> WorkShares {
        let bound = |t: u32| (u64::from(t) * u64::from(parts) / u64::from(threads)) as u32;
        WorkShares((0..threads).map(|t| AtomicU64::new(pack_range(bound(t), bound(t + 1)))).collect())
    }
    /// Takes the next part for a thread: the first of its own share, else the last of the next share that has one.
    pub(super) fn take_part(&self, thread: usize) -> Option<u32> {
        let own = take_from_share(&self.0[thread], |from, to| (from, (from + 1, to)));
        own.or_else(|| {
            let (before, after) = self.0.split_at(thread);
            after.iter().chain(before).find_map(|share| take_from_share(share, |from, to| (to - 1, (from, to - 1))))
        })
    }
}

fn pack_range(from: u32, to: u32) -> u64 {
    u64::from(to) << 32 | u64::from(from)
}

/// Takes a part from a share unless it is empty; `split` returns, for the share's range, the part to take and the
/// range that is left.
fn take_from_share(share: &AtomicU64, split: impl Fn(u32, u32) -> (u32, (u32, u32))) -> Option<u32> {
    // Relaxed order suffices: what parts refer to was written before any thread began, and results are read after all
    // have ended.
    let mut held = share.load(Ordering::Relaxed);
    loop {
        let (from, to) = (held as u32, (held >> 32) as u32);
        if from >= to {
            return None;
        }
        let (part, left) = split(from, to);
        match share.compare_exchange_weak(held, pack_range(left.0, left.1), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(part),
            Err(now) => held = now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WorkShares;

    #[test]
    fn one_thread_takes_its_own_from_the_front_then_others_from_the_back() {
        let shares = WorkShares::new(7, 3);
        let taken: Vec<u32> = std::iter::from_fn(|| shares.take_part(1)).collect();
        assert_eq!(taken, [2, 3, 6, 5, 4, 1, 0]);
        assert!((0..3).all(|t| shares.take_part(t).is_none()));
    }

    #[test]
    fn threads_together_take_each_part_once() {
        for (parts, threads) in [(0, 2), (1, 4), (1000, 3), (10_000, 8)] {
            let shares = WorkShares::new(parts, threads);
            let mut all: Vec<u32> = std::thread::scope(|scope| {
                let takers: Vec<_> = (0..threads as usize)
                    .map(|t| {
                        scope.spawn({
                            let shares = &shares;
                            move || std::iter::from_fn(|| shares.take_part(t)).collect::<Vec<_>>()
                        })
                    })
                    .collect();
                takers.into_iter().flat_map(|t| t.join().expect("takes")).collect()
            });
            all.sort_unstable();
            assert_eq!(all, (0..parts).collect::<Vec<_>>(), "{parts} parts, {threads} threads");
        }
    }
}
