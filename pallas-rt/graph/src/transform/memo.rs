//! Flags of the results of calls, kept while a transformation runs: a loop asks for those of its body more than once, so without
//! them loops in loops would cost twice as much for each level.
use crate::call::Call;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// The request: the derivative of results, or the axis of a batch with the place of its name in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Question {
    Active,
    Batched(usize),
}

type Key = (Question, *const Call, Vec<bool>);

#[derive(Default)]
struct Memo {
    /// Scopes that are open.
    depth: usize,
    /// The call is kept, so that no other one gets its place in memory.
    known: HashMap<Key, (Arc<Call>, Vec<bool>)>,
}

thread_local! {
    static MEMO: RefCell<Memo> = RefCell::default();
}

/// Answers are kept while it exists.
pub(super) struct Scope(());

/// Begins to keep answers.
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

/// The flags of a call's results for these flags of its operands.
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
