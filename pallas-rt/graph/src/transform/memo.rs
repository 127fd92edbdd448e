//! Caches flags of the results of calls while a transformation runs. A loop analyzes its body more than once, so
//! without the cache nested loops would take exponential time.
use crate::call::Call;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// The meaning of cached flags: which results have a derivative, or which have the batch axis (with the address of its
/// mesh, 0 without).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Question {
    Active,
    Batched(usize),
}

/// The key of cached flags: the question, the address of the call, and the flags of its operands.
type Key = (Question, *const Call, Vec<bool>);

/// The cache of one thread.
#[derive(Default)]
struct Memo {
    /// Number of open scopes.
    depth: usize,
    /// Flags found so far. The call is stored too, so that no other call can get its address.
    known: HashMap<Key, (Arc<Call>, Vec<bool>)>,
}

thread_local! {
    /// The cache of this thread, which is empty while no scope is open.
    static MEMO: RefCell<Memo> = RefCell::default();
}

/// Guard during whose lifetime the cache keeps flags; the last one clears it.
pub(super) struct Scope(());

/// Opens a scope in which the cache keeps flags.
pub(super) fn scope() -> Scope {
    MEMO.with_borrow_mut(|memo| memo.depth += 1);
    Scope(())
}

impl Drop for Scope {
    fn drop(&mut self) {
        let done = MEMO.with_borrow_mut(|memo| {
            memo.depth -= 1;
            if memo.depth == 0 { std::mem::take(&mut memo.known) } else { HashMap::new() }
        });
        drop(done);
    }
}

/// Returns the flags of a call's results for the flags `on` of its operands; calls `answer` if they are not cached.
pub(super) fn flags(
    question: Question,
    call: &Arc<Call>,
    on: &[bool],
    answer: impl FnOnce() -> Vec<bool>,
) -> Vec<bool> {
    let key = (question, Arc::as_ptr(call), on.to_vec());
    if let Some(known) = MEMO.with_borrow(|memo| memo.known.get(&key).map(|(_, flags)| flags.clone())) {
        return known;
    }
    let found = answer();
    MEMO.with_borrow_mut(|memo| {
        if memo.depth > 0 {
            memo.known.insert(key, (call.clone(), found.clone()));
        }
    });
    found
}
