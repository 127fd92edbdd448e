//! Reuse of memory: freed blocks are kept for the next allocation of their size class.
//!
//! A fresh 64 MB output costs three times a reused one: its pages fault in one by one. On a GPU a fresh buffer is
//! cleared first. So freed blocks are kept, but only as long as the total stays within the maximum that was ever in
//! use.
use super::ledger::MemoryLedger;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A block of memory that can be reused for allocations of its size class.
pub(crate) trait PooledBlock {
    /// Size of the block in bytes, which is a [`size_class`].
    fn size(&self) -> u64;

    /// Returns true if the host can write the block without waiting for launches of its previous owner.
    fn is_idle(&self) -> bool {
        true
    }
}

/// Size in bytes of the block for an allocation of `bytes`: a power of two or one of the three steps between two of
/// them, at least 64; `None` beyond u64. At most a quarter is wasted, and sizes that differ by little share their
/// blocks.
pub(crate) fn size_class(bytes: u64) -> Option<u64> {
    let bytes = bytes.max(64);
    let step = 1u64 << (bytes.ilog2().saturating_sub(2));
    bytes.checked_next_multiple_of(step)
}

/// The freed blocks that one client keeps.
#[derive(Debug)]
pub(crate) struct MemoryPool<B> {
    ledger: Arc<MemoryLedger>,
    blocks: Mutex<BTreeMap<u64, Vec<B>>>,
}

impl<B: PooledBlock> MemoryPool<B> {
    pub(crate) fn new(ledger: Arc<MemoryLedger>) -> Self {
        MemoryPool { ledger, blocks: Mutex::new(BTreeMap::new()) }
    }

    /// Takes a kept block of exactly this class; if `prefer_idle`, an idle one, unless there is none and no room for a
    /// new block.
    pub(crate) fn take_block(&self, size_class_bytes: u64, prefer_idle: bool) -> Option<B> {
        let has_room = prefer_idle && self.spare_bytes() >= size_class_bytes;
        let mut blocks = self.lock_blocks();
        let kept = blocks.get_mut(&size_class_bytes)?;
        let block = match kept.iter().rposition(|block| !prefer_idle || block.is_idle()) {
            Some(at) => kept.swap_remove(at),
            None if has_room => return None,
            None => kept.pop()?,
        };
        self.ledger.kept.fetch_sub(size_class_bytes, Relaxed);
        Some(block)
    }

    /// Keeps a freed block, or drops it if the bytes in use and kept would exceed the maximum that was ever in use.
    pub(crate) fn return_block(&self, block: B) {
        let size = block.size();
        if self.spare_bytes() < size {
            return;
        }
        self.lock_blocks().entry(size).or_default().push(block);
        self.ledger.kept.fetch_add(size, Relaxed);
    }

    /// Drops kept blocks, the largest first, until the bytes in use and kept, plus `bytes`, are within the maximum that
    /// was ever in use.
    pub(crate) fn shrink_for(&self, bytes: u64) {
        while self.spare_bytes() < bytes {
            // A block that is dropped waits for the launches that use it. This must not happen while the stock is
            // locked, since the thread may run other work in the meantime.
            let Some(block) = self.take_largest_block() else { return };
            self.ledger.kept.fetch_sub(block.size(), Relaxed);
        }
    }

    /// Takes the largest kept block.
    fn take_largest_block(&self) -> Option<B> {
        let mut blocks = self.lock_blocks();
        loop {
            let mut largest = blocks.last_entry()?;
            match largest.get_mut().pop() {
                Some(block) => return Some(block),
                None => drop(largest.remove()),
            }
        }
    }

    /// Drops all kept blocks.
    pub(crate) fn drop_all(&self) {
        self.shrink_for(u64::MAX);
    }

    /// Number of bytes by which those in use and kept are below the maximum that was ever in use.
    fn spare_bytes(&self) -> u64 {
        let stats = self.ledger.stats();
        stats.peak.saturating_sub(stats.in_use).saturating_sub(stats.kept)
    }

    /// Locks the map of kept blocks by size. A panic while it is locked leaves it valid, since it holds whole blocks
    /// only.
    fn lock_blocks(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<B>>> {
        self.blocks.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl PooledBlock for u64 {
        fn size(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn classes_waste_a_quarter_at_most() {
        for bytes in (0..5000).chain([(1 << 20) + 1, (64 << 20) - 1, 64 << 20]) {
            let class = size_class(bytes).expect("small");
            assert!(class >= bytes && class >= 64 && class.is_multiple_of(16), "{bytes} -> {class}");
            assert!(bytes < 64 || class <= bytes + bytes / 4, "{bytes} -> {class}");
            assert_eq!(size_class(class), Some(class), "a class is its own class");
        }
        assert_eq!(size_class(u64::MAX), None);
    }

    /// A block of 64 bytes, and whether it is idle.
    #[derive(PartialEq, Eq, Debug)]
    struct Used(bool);
    impl PooledBlock for Used {
        fn size(&self) -> u64 {
            64
        }
        fn is_idle(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn the_host_gets_idle_blocks_first() {
        let ledger = MemoryLedger::new("cpu".into(), u64::MAX);
        let stock = MemoryPool::new(ledger.clone());
        drop(ledger.reserve(192).expect("no limit"));
        [false, true, false].into_iter().for_each(|idle| stock.return_block(Used(idle)));
        assert_eq!(stock.take_block(64, true), Some(Used(true)));
        assert_eq!(stock.take_block(64, true), None, "there is room for a new block");
        let new = ledger.reserve(64).expect("no limit");
        assert_eq!(stock.take_block(64, true), Some(Used(false)), "there is none");
        assert_eq!(stock.take_block(64, false), Some(Used(false)));
        drop(new);
    }

    #[test]
    fn kept_blocks_stay_under_the_high_water_mark() {
        let ledger = MemoryLedger::new("cpu".into(), u64::MAX);
        let stock = MemoryPool::new(ledger.clone());
        let live = ledger.reserve(256).expect("no limit");
        stock.return_block(128u64);
        assert_eq!(stock.take_block(128, false), None, "256 of 256 are in use");
        drop(live);
        stock.return_block(128);
        stock.return_block(64);
        stock.return_block(128);
        assert_eq!((ledger.stats().kept, stock.take_block(256, false)), (192, None));
        stock.shrink_for(192);
        assert_eq!(
            (stock.take_block(64, false), stock.take_block(128, false)),
            (Some(64), None),
            "the largest goes first"
        );
        assert_eq!(ledger.stats().kept, 0);
    }
}
