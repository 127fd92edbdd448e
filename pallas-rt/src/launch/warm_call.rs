//! Shortcut for a call that equals an earlier one of its thread: takes over the sizes and the kernel found then.
//!
//! Sizes and the compiled kernel follow from the type of the body, the call's [`Site`], and the arrays' element types
//! and shapes. Each thread remembers the last few calls of each kernel with both: a kernel called in a loop is neither
//! bound nor looked up again, and its spec is not even built, which would take several times as long as a tiny kernel
//! runs.
use super::bind::CallSizes;
use super::fixed_values::StoredFixedValue;
use super::recent_calls::RecentCalls;
use super::spec::{Argument, Site};
use crate::exec::{Compiled, CompiledForms};
use pallas_device::argument_indices;
use pallas_ir::{Kernel, OperandKind};
use std::any::TypeId;
use std::sync::{Arc, Weak};

/// Earlier call of this thread: the values that identify it, the sizes that it bound, and its compiled kernel.
struct RememberedCall {
    given: Vec<i64>,
    outer: Vec<u64>,
    fixed: Vec<StoredFixedValue>,
    sizes: Arc<CallSizes>,
    /// Weak: the cache determines its lifetime.
    compiled: Weak<CompiledForms>,
}

thread_local! {
    static RECENT_CALLS: RecentCalls<RememberedCall> = RecentCalls::default();
}

/// Returns the sizes and the kernel of an earlier call of this thread with the same values, array types and shapes;
/// `None` if none is remembered. `body_type` is the type of the kernel's body.
pub(super) fn find_remembered_call(
    site: &Site<'_>,
    arguments: &[Argument],
    body_type: TypeId,
) -> Option<(Arc<CallSizes>, Compiled)> {
    let same = |seen: &RememberedCall| {
        let compiled = seen.matches_site(site).then(|| seen.compiled.upgrade())?.map(Compiled)?;
        seen.sizes.fits_arguments(compiled.traced(), arguments).then(|| (seen.sizes.clone(), compiled))
    };
    RECENT_CALLS.with(|seen| seen.find(body_type, same))
}

/// Remembers a call with its sizes and kernel, and drops the oldest one of its kernel. Does nothing if a `#[fixed]`
/// value can't be compared.
pub(super) fn remember_call(site: &Site<'_>, body_type: TypeId, sizes: &Arc<CallSizes>, compiled: &Compiled) {
    let Some(fixed) = site.fixed.iter().map(|key| key.stored_value()).collect() else { return };
    let given = site.given.iter().map(|(_, n)| *n).collect();
    let (outer, sizes, compiled) = (site.outer.to_vec(), sizes.clone(), Arc::downgrade(&compiled.0));
    RECENT_CALLS.with(|seen| seen.remember(body_type, RememberedCall { given, outer, fixed, sizes, compiled }));
}

impl RememberedCall {
    /// Returns true if the remembered call had the `#[dim]`, `#[fixed]` and outer constant values of `site`, so that
    /// with equal arrays its spec and trace are those of this call.
    fn matches_site(&self, site: &Site<'_>) -> bool {
        self.outer == site.outer
            && self.given.iter().eq(site.given.iter().map(|(_, n)| n))
            && site.fixed.iter().zip(&self.fixed).all(|(key, kept)| key.matches_stored(kept))
    }
}

impl CallSizes {
    /// Returns true if these sizes were bound from arguments of the same kinds, types and shapes.
    fn fits_arguments(&self, kernel: &Kernel, arguments: &[Argument]) -> bool {
        let fits = |(i, argument): (usize, &Argument)| {
            let operand = &kernel.operands[i];
            let is_param = operand.kind == OperandKind::Param;
            match argument {
                Argument::Array(array, _) => {
                    !is_param && array.dtype() == operand.dtype && array.shape().iter().eq(&self.geometry.shapes[i])
                }
                Argument::Param(x) => is_param && x.as_ref().is_ok_and(|x| x.dtype == operand.dtype),
            }
        };
        argument_indices(kernel).count() == arguments.len() && argument_indices(kernel).zip(arguments).all(fits)
    }
}

#[cfg(test)]
mod tests {
    use super::super::recent_calls::{MAX_RECENT_CALLS, RecentCalls};
    use super::RECENT_CALLS;
    use crate::lang::random::again;
    use pallas_rt::prelude::*;

    #[kernel(grid = (cdiv(N, 8)))]
    fn plus(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>, #[fixed] by: f32) {
        out.store(x.load() + by);
    }

    #[test]
    fn the_last_calls_of_a_kernel_are_remembered_and_no_more() {
        // A thread of its own, which has seen nothing.
        std::thread::spawn(|| {
            let remembered = || RECENT_CALLS.with(RecentCalls::call_counts);
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
            assert_eq!(remembered(), [MAX_RECENT_CALLS]);
            (0..2).for_each(|_| call(1, 1.0));
            assert_eq!(remembered(), [MAX_RECENT_CALLS], "forgotten, and right again");
        })
        .join()
        .expect("nothing fails");
    }

    #[test]
    fn a_kernel_that_left_the_cache_is_not_kept_by_the_last_calls() {
        const HERE: &str = "PALLAS_ONE_KERNEL";
        if std::env::var_os(HERE).is_none() {
            // The limits apply to the whole process.
            again(
                "launch::warm_call::tests::a_kernel_that_left_the_cache_is_not_kept_by_the_last_calls",
                &[(HERE, "1")],
            );
            return;
        }
        crate::set_cache_limits(crate::CacheLimits { kernels: 1, ..crate::CacheLimits::default() });
        let x = Client::cpu().full(&[5], 1.0f32).expect("it fits");
        let traces = |calls: &[f32]| {
            let before = crate::counters().traces;
            for &by in calls {
                assert_eq!(plus(&x, by).and_then(|y| y.to_vec::<f32>()), Ok(vec![1.0 + by; 5]));
            }
            crate::counters().traces - before
        };
        assert_eq!(traces(&[1.0, 1.0, 2.0, 2.0]), 2);
        assert_eq!(traces(&[1.0, 1.0]), 1, "the second kernel took its place");
    }
}
