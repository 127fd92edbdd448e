//! A cache with limits that evicts the least recently used entries.
use super::counters::CACHE_EVICTIONS;
use lru::LruCache;
use parking_lot::Mutex;
use std::hash::Hash;
use std::sync::atomic::Ordering::Relaxed;

/// Limits of the compiled kernels that this process keeps; see [`set_cache_limits`]. An evicted kernel is compiled
/// again when it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheLimits {
    /// Maximum number of kernels; on each GPU also the maximum number of pipelines.
    pub kernels: usize,
    /// Maximum size in bytes of tile IR, plans, machine code and shaders, estimated.
    pub bytes: u64,
}

impl CacheLimits {
    const DEFAULT: CacheLimits = CacheLimits { kernels: 4096, bytes: 512 << 20 };
}

impl Default for CacheLimits {
    /// Returns limits of 4,096 kernels and 512 MiB.
    fn default() -> CacheLimits {
        CacheLimits::DEFAULT
    }
}

/// Limits of all caches of this process.
static CACHE_LIMITS: Mutex<CacheLimits> = Mutex::new(CacheLimits::DEFAULT);

/// Sets the limits of compiled kernels, which apply from the next compilation on. The least recently used kernels are
/// evicted first; [`counters`](crate::counters) counts evictions.
///
/// ```
/// use pallas_rt::{CacheLimits, set_cache_limits};
/// set_cache_limits(CacheLimits { bytes: 256 << 20, ..CacheLimits::default() });
/// ```
pub fn set_cache_limits(limits: CacheLimits) {
    *CACHE_LIMITS.lock() = limits;
}

/// A cache from keys to values, which evicts the least recently used entries.
pub struct Lru<K, V> {
    entries: Mutex<LruEntries<K, V>>,
    /// Function that returns the size of a value in bytes, which may grow while the value is kept.
    weigh: fn(&V) -> u64,
}

/// Entries of a cache in the order of their last use, with the number of insertions since their sizes were added up.
struct LruEntries<K, V> {
    slots: LruCache<K, V>,
    /// Number of insertions since the sizes of all values were added up.
    unweighed: usize,
}

impl<K: Clone + Eq + Hash, V: Clone> Lru<K, V> {
    /// Creates an empty cache; `weigh` returns the size of a value in bytes.
    pub fn new(weigh: fn(&V) -> u64) -> Self {
        Lru { entries: Mutex::new(LruEntries { slots: LruCache::unbounded(), unweighed: 0 }), weigh }
    }

    /// Returns the value of a key, and marks it as used.
    pub fn get(&self, key: &K) -> Option<V> {
        self.entries.lock().slots.get(key).cloned()
    }

    /// Inserts a value unless the key already has one; returns the value in the cache.
    pub fn get_or_insert(&self, key: K, value: V) -> V {
        let mut entries = self.entries.lock();
        let kept = entries.slots.get_or_insert(key, || value).clone();
        self.shrink(&mut entries);
        kept
    }

    /// Drops the entries for which `keep` is false.
    #[cfg(feature = "mesh")]
    pub fn retain(&self, keep: impl Fn(&K) -> bool) {
        let mut entries = self.entries.lock();
        let keys: Vec<K> = entries.slots.iter().map(|(key, _)| key).filter(|key| !keep(key)).cloned().collect();
        let gone: Vec<_> = keys.iter().map(|key| entries.slots.pop_entry(key)).collect();
        drop(entries);
        // Values are dropped without the lock.
        drop(gone);
    }

    /// Evicts entries until the limits hold, except the one used last.
    fn shrink(&self, entries: &mut LruEntries<K, V>) {
        let limits = *CACHE_LIMITS.lock();
        // Adding up sizes reads every entry, so it is done once per number of insertions in proportion to the entries.
        entries.unweighed += 1;
        let mut bytes = 0;
        if entries.unweighed >= (entries.slots.len() / 2).max(8) {
            entries.unweighed = 0;
            bytes = entries.slots.iter().map(|(_, v)| (self.weigh)(v)).sum();
        }
        while entries.slots.len() > 1 && (entries.slots.len() > limits.kernels || bytes > limits.bytes) {
            let Some((_, value)) = entries.slots.pop_lru() else { return };
            bytes = bytes.saturating_sub((self.weigh)(&value));
            CACHE_EVICTIONS.fetch_add(1, Relaxed);
        }
    }

    /// Number of entries.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.entries.lock().slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn the_least_recently_used_leave_first() {
        let cache = Lru::new(|bytes: &u64| *bytes);
        let most = CacheLimits::DEFAULT.kernels;
        for key in 0..most {
            cache.get_or_insert(key, 1);
        }
        assert_eq!((cache.get(&0), cache.len()), (Some(1), most));
        cache.get_or_insert(most, 1);
        assert_eq!((cache.get(&0), cache.get(&1), cache.len()), (Some(1), None, most), "0 was used after 1");
        assert_eq!(cache.get_or_insert(0, 7), 1, "the first value stays");
        let heavy = Lru::new(|bytes: &u64| *bytes);
        for key in 0..64 {
            heavy.get_or_insert(key, CacheLimits::DEFAULT.bytes / 4);
        }
        assert!((1..=12).contains(&heavy.len()), "{} entries of a quarter of the bytes", heavy.len());
        assert!(heavy.get(&63).is_some());
    }

    #[test]
    fn a_full_cache_seldom_adds_up_sizes() {
        static WEIGHED: AtomicUsize = AtomicUsize::new(0);
        let cache = Lru::new(|_: &usize| {
            WEIGHED.fetch_add(1, Relaxed);
            1
        });
        let count = 3 * CacheLimits::DEFAULT.kernels;
        for key in 0..count {
            cache.get_or_insert(key, key);
        }
        assert!(WEIGHED.load(Relaxed) < 10 * count, "{WEIGHED:?} of {count}");
    }
}
