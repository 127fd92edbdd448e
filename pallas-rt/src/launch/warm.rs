//! A call like one before: what binding and the cache found then, by comparison alone.
//!
//! Sizes and the compiled kernel follow from the type of the body, the call's [`Site`], and the arrays' element types and
//! shapes. Each thread remembers the last few calls of each kernel with what they came to: a kernel called in a loop is
//! neither bound nor looked up again, and its spec is not even built, which would take several times as long as a tiny
//! kernel runs.
use super::bind::Sizes;
use super::key::Key;
use super::recent::Recent;
use super::spec::{Argument, Site};
use crate::exec::Compiled;
use std::any::TypeId;
use std::sync::Arc;

/// A call as it was, and what it came to.
struct Seen {
    given: Vec<i64>,
    outer: Vec<u64>,
    fixed: Vec<Key>,
    sizes: Arc<Sizes>,
    compiled: Compiled,
}

thread_local! {
    static SEEN: Recent<Seen> = Recent::default();
}

/// What an equal call came to.
pub(super) fn recall(site: &Site<'_>, arguments: &[Argument], instance: TypeId) -> Option<(Arc<Sizes>, Compiled)> {
    let same = |seen: &Seen| {
        let same = seen.equals(site) && seen.sizes.fit(arguments);
        same.then(|| (seen.sizes.clone(), seen.compiled.clone()))
    };
    SEEN.with(|seen| seen.find(instance, same))
}

/// Keeps what a call came to; the oldest of its kernel goes. Nothing where a `#[fixed]` value can't be compared.
pub(super) fn remember(site: &Site<'_>, instance: TypeId, sizes: &Arc<Sizes>, compiled: &Compiled) {
    let Some(fixed) = site.fixed.iter().map(|key| key.kept()).collect() else { return };
    let given = site.given.iter().map(|(_, n)| *n).collect();
    let (outer, sizes, compiled) = (site.outer.to_vec(), sizes.clone(), compiled.clone());
    SEEN.with(|seen| seen.keep(instance, Seen { given, outer, fixed, sizes, compiled }));
}

impl Seen {
    /// Whether a call of the same kernel has the same spec and the same trace, if its arrays are alike.
    fn equals(&self, site: &Site<'_>) -> bool {
        self.outer == site.outer
            && self.given.iter().eq(site.given.iter().map(|(_, n)| n))
            && site.fixed.iter().zip(&self.fixed).all(|(key, kept)| key.is(kept))
    }
}

impl Sizes {
    /// Whether arguments are such as these sizes were bound from.
    fn fit(&self, arguments: &[Argument]) -> bool {
        let taken = self.taken.iter().zip(&self.geometry.shapes).filter_map(|(dtype, shape)| Some(((*dtype)?, shape)));
        let mut arguments = arguments.iter();
        let fit = taken.into_iter().all(|((is_array, dtype), shape)| match arguments.next() {
            Some(Argument::Array(array, _)) => is_array && array.dtype() == dtype && array.shape() == &shape[..],
            Some(Argument::Param(x)) => !is_array && x.as_ref().is_ok_and(|x| x.dtype == dtype),
            None => false,
        });
        fit && arguments.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::super::recent::{REMEMBERED, Recent};
    use super::SEEN;
    use pallas_rt::prelude::*;

    #[kernel(grid = (cdiv(N, 8)))]
    fn plus(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>, #[fixed] by: f32) {
        out.store(x.load() + by);
    }

    #[test]
    fn the_last_calls_of_a_kernel_are_remembered_and_no_more() {
        // A thread of its own, which has seen nothing.
        std::thread::spawn(|| {
            let remembered = || SEEN.with(Recent::lengths);
            let client = Client::cpu();
            let call = |n: usize, by: f32| {
                let x = client.full(&[n], 1.0f32).expect("it fits");
                assert_eq!(plus(&x, by).and_then(|y| y.to_vec::<f32>()), Ok(vec![1.0 + by; n]));
            };
            (0..3).for_each(|_| call(5, 1.0));
            assert_eq!(remembered(), [1], "equal calls are one");
            call(5, 2.0);
            call(6, 1.0);
            assert_eq!(remembered(), [3], "other values, other lengths");
            (1..100).for_each(|n| call(n, 1.0));
            assert_eq!(remembered(), [REMEMBERED]);
            (0..2).for_each(|_| call(1, 1.0));
            assert_eq!(remembered(), [REMEMBERED], "forgotten, and right again");
        })
        .join()
        .expect("nothing fails");
    }
}
