//! The ledger: accounting of a client's memory, and its limit.
use crate::error::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Statistics of a client's memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Memory held by living arrays and scratch.
    pub in_use: u64,
    /// Maximum of `in_use` so far.
    pub peak: u64,
    /// Memory that was freed and is kept for reuse.
    pub kept: u64,
    /// Maximum that may be in use.
    pub limit: u64,
}

/// The account of one client's memory: bytes in use, their peak and limit, and bytes kept for reuse.
#[derive(Debug)]
pub struct MemoryLedger {
    device: String,
    /// Memory in use, its peak and the limit.
    account: Mutex<MemoryStats>,
    /// Bytes of the blocks that the client's stock keeps, for the statistics; the stock updates it.
    pub kept: AtomicU64,
}

impl MemoryLedger {
    pub fn new(device: String, limit: u64) -> Arc<Self> {
        let account = Mutex::new(MemoryStats { limit, ..MemoryStats::default() });
        Arc::new(MemoryLedger { device, account, kept: AtomicU64::new(0) })
    }

    /// Counts `bytes` as in use until the reservation is dropped.
    ///
    /// # Errors
    /// [`Error::Memory`] if the limit would be exceeded; nothing is reserved then.
    pub fn reserve(self: &Arc<Self>, bytes: u64) -> Result<MemoryReservation> {
        let mut account = self.lock_stats();
        let total = account.in_use.saturating_add(bytes);
        if total > account.limit {
            return Err(self.memory_error(&account, bytes, None));
        }
        account.in_use = total;
        account.peak = account.peak.max(total);
        Ok(MemoryReservation { ledger: self.clone(), bytes })
    }

    /// The error for an allocation within the limit that the system refused, with its message.
    pub fn refused_allocation_error(&self, bytes: u64, cause: String) -> Error {
        self.memory_error(&self.lock_stats(), bytes, Some(cause))
    }

    pub fn set_limit(&self, bytes: u64) {
        self.lock_stats().limit = bytes;
    }

    pub fn stats(&self) -> MemoryStats {
        MemoryStats { kept: self.kept.load(Relaxed), ..*self.lock_stats() }
    }

    fn memory_error(&self, account: &MemoryStats, requested_bytes: u64, cause: Option<String>) -> Error {
        Error::Memory {
            asked: requested_bytes,
            limit: account.limit,
            in_use: account.in_use,
            device: self.device.clone(),
            cause,
        }
    }

    /// Locks the statistics. A panic while they are locked leaves them consistent: each number is written in one step.
    fn lock_stats(&self) -> MutexGuard<'_, MemoryStats> {
        self.account.lock()
    }
}

/// Bytes counted as in use in a ledger, until this value is dropped.
#[derive(Debug)]
pub struct MemoryReservation {
    ledger: Arc<MemoryLedger>,
    bytes: u64,
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.ledger.lock_stats().in_use -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_beyond_the_limit_books_nothing() {
        let ledger = MemoryLedger::new("cpu".into(), 100);
        let held = ledger.reserve(60).expect("within the limit");
        let refused = ledger.reserve(41).expect_err("beyond the limit");
        let expected = Error::Memory { asked: 41, limit: 100, in_use: 60, device: "cpu".into(), cause: None };
        assert_eq!(refused, expected);
        assert!(ledger.reserve(u64::MAX).is_err(), "the sum must not wrap");
        drop(held);
        assert_eq!(ledger.stats(), MemoryStats { in_use: 0, peak: 60, kept: 0, limit: 100 });
    }
}
