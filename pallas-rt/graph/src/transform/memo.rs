//! Caches flags of the results of calls while a transformation runs. A loop analyzes its body more than once, so
//! without the cache nested loops would take exponential time.
use crate::call::Call;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// The meaning of cached flags: which results have a derivative, or which have the batch axis (with the address of its
/// mesh, 0 without).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CallFlagMeaning {
    Active,
    Batched(usize),
}

/// The key of cached flags: the property that they state, the address of the call, and the flags of its operands.
type CallFlagKey = (CallFlagMeaning, *const Call, Vec<bool>);

/// The cache of one thread: flags of the results of calls (which have a derivative, which have the batch axis) that a
/// transformation has computed.
#[derive(Default)]
struct CallFlagCache {
    /// Number of open scopes.
    depth: usize,
    /// Flags found so far. The call is stored too, so that no other call can get its address.
    known: HashMap<CallFlagKey, (Arc<Call>, Vec<bool>)>,
}

thread_local! {
    /// The cached flags of this thread, none while no [`CallFlagCacheGuard`] exists.
    static CALL_FLAG_CACHE: RefCell<CallFlagCache> = RefCell::default();
}

/// Guard during whose lifetime this thread's cache keeps the flags of results of calls. When the last guard of the
/// thread is dropped, the cache is cleared.
pub(super) struct CallFlagCacheGuard(());

/// Lets this thread's cache keep the flags of results of calls while the returned guard lives.
pub(super) fn open_call_flag_cache() -> CallFlagCacheGuard {
    CALL_FLAG_CACHE.with_borrow_mut(|memo| memo.depth += 1);
    CallFlagCacheGuard(())
}

impl Drop for CallFlagCacheGuard {
    fn drop(&mut self) {
        let done = CALL_FLAG_CACHE.with_borrow_mut(|memo| {
            memo.depth -= 1;
            if memo.depth == 0 { std::mem::take(&mut memo.known) } else { HashMap::new() }
        });
        drop(done);
    }
}

/// Returns the flags of a call's results for the flags `operand_flags` of its operands; calls `compute` if they are not
/// cached.
pub(super) fn cached_call_flags(
    property: CallFlagMeaning,
    call: &Arc<Call>,
    operand_flags: &[bool],
    compute: impl FnOnce() -> Vec<bool>,
) -> Vec<bool> {
    let key = (property, Arc::as_ptr(call), operand_flags.to_vec());
    if let Some(known) = CALL_FLAG_CACHE.with_borrow(|memo| memo.known.get(&key).map(|(_, flags)| flags.clone())) {
        return known;
    }
    let found = compute();
    CALL_FLAG_CACHE.with_borrow_mut(|memo| {
        if memo.depth > 0 {
            memo.known.insert(key, (call.clone(), found.clone()));
        }
    });
    found
}
