//! The last few calls of each kernel that a thread made, with their outcomes. They are found by comparison: nothing is
//! hashed, locked or allocated.
use std::any::TypeId;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Maximum number of calls of one kernel that a thread remembers.
pub(super) const MAX_RECENT_CALLS: usize = 8;

/// The last calls of a thread, by the type of the kernel's body.
pub(super) struct RecentCalls<C>(RefCell<BTreeMap<TypeId, Vec<C>>>);

impl<C> Default for RecentCalls<C> {
    fn default() -> RecentCalls<C> {
        RecentCalls(RefCell::default())
    }
}

impl<C> RecentCalls<C> {
    /// Returns the first result of `select` that is not `None` for the stored calls of the kernel whose body has the
    /// type `body_type`, the latest call first.
    pub(super) fn find<R>(&self, body_type: TypeId, select: impl Fn(&C) -> Option<R>) -> Option<R> {
        self.0.borrow().get(&body_type)?.iter().rev().find_map(select)
    }
    /// Stores a call of the kernel whose body has the type `body_type`, and drops its oldest one if there are
    /// [`MAX_RECENT_CALLS`].
    pub(super) fn remember(&self, body_type: TypeId, call: C) {
        let mut kernels = self.0.borrow_mut();
        let calls = kernels.entry(body_type).or_default();
        if calls.len() == MAX_RECENT_CALLS {
            calls.remove(0);
        }
        calls.push(call);
    }
    /// Number of calls that are stored for each kernel.
    #[cfg(test)]
    pub(super) fn call_counts(&self) -> Vec<usize> {
        self.0.borrow().values().map(Vec::len).collect()
    }
}
