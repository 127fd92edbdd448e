//! Compiled kernels, by everything their trace depends on.
//!
//! Array extents that size no block are no part of the key: one entry serves every sequence length.
use super::bind::Binding;
use super::key::{FixedKey, Key};
use super::spec::{Site, Spec};
use crate::device::{CACHE_HITS, Lru, TRACES};
use crate::exec::Compiled;
use crate::{Result, disk};
use pallas_ir::{Kernel, Loc};
use std::any::TypeId;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;

/// Identifies a trace: equal calls have equal traces.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Call {
    name: &'static str,
    at: Loc,
    /// The type of the body.
    instance: TypeId,
    /// `None`: some `#[fixed]` value can't be compared, so the trace itself is the key.
    fixed: Option<Vec<Key>>,
    sizes: Vec<(String, i64)>,
    operands: Vec<(String, Vec<usize>)>,
    trace: String,
}

impl Call {
    pub(super) fn new(site: &Site<'_>, spec: &Spec, binding: &Binding, instance: TypeId) -> Call {
        let sizes = binding.statics.iter().map(|n| (n.clone(), binding.sizes[n])).collect();
        let fixed = site.fixed.iter().map(FixedKey::kept).collect();
        // Blocks and dims may mention const generics and outer constants; an operand without dims has its array's shape.
        let shape =
            |i: usize| if spec.operands[i].dims.is_none() { binding.geometry.shapes[i].clone() } else { vec![] };
        let describe = |i: usize| {
            let o = &spec.operands[i];
            let (fill, empty) = (o.fill.map(f64::to_bits), o.empty.map(f64::to_bits));
            format!("{}{:?}{:?}{fill:?}{empty:?}{:?}", o.dtype, o.dims, o.block, o.buffered)
        };
        let operands = (0..spec.operands.len()).map(|i| (describe(i), shape(i))).collect();
        let trace = format!("{:?}", spec.grid);
        Call { name: site.name, at: site.at, instance, fixed, sizes, operands, trace }
    }
}

static CACHE: LazyLock<Lru<Call, Compiled>> = LazyLock::new(|| Lru::new(Compiled::bytes));

/// The compiled kernel of a call, traced where it is not in the cache.
pub(super) fn compiled(call: &Call, trace: impl Fn() -> Result<Kernel>) -> Result<Compiled> {
    if call.fixed.is_some()
        && let Some(found) = CACHE.get(call)
    {
        CACHE_HITS.fetch_add(1, Relaxed);
        return Ok(found);
    }
    disk::settle(|| format!("kernel `{}` ({})", call.name, call.at))?;
    TRACES.fetch_add(1, Relaxed);
    let kernel = trace()?;
    // Where values can't be compared, equal traces are equal kernels.
    let key = match call.fixed {
        Some(_) => call.clone(),
        None => Call { trace: format!("{kernel:?}"), ..call.clone() },
    };
    Ok(match CACHE.get(&key) {
        Some(found) => found,
        None => CACHE.insert(key, Compiled::of_trace(kernel)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Source;
    use pallas_rt::prelude::*;

    #[kernel(grid = (cdiv(N, 8)))]
    fn times(
        #[block([N] => [8], |i| (i,))] x: In<f32>,
        #[block([N] => [8], |i| (i,))] out: Out<f32>,
        #[fixed] factor: f32,
    ) {
        out.store(x.load() * factor);
    }

    #[test]
    fn kernels_are_apart_on_disk_by_constants_and_lines() {
        let x = Client::cpu().full(&[8], 1.0f32).expect("it fits");
        let traced = |factor: f32| {
            let [traced, _] = &crate::launch::compiled(|| times(&x, factor)).expect("it is compiled")[0];
            Kernel::clone(traced)
        };
        let identity = |kernel: Kernel| Source::new(kernel).identity().clone();
        let mut moved = traced(2.0);
        moved.locs.iter_mut().for_each(|loc| loc.line += 1);
        assert_eq!(identity(traced(2.0)), identity(traced(2.0)));
        assert_ne!(identity(traced(2.0)), identity(traced(3.0)), "another constant");
        assert_ne!(identity(traced(2.0)), identity(moved), "shaders name lines");
    }
}
