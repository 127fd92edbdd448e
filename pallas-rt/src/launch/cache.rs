//! Cache of compiled kernels; the key is everything that their trace depends on.
//!
//! Array extents that size no block are no part of the key: one entry serves every sequence length.
use super::bind::CallSizes;
use super::fixed_values::{FixedKey, StoredFixedValue};
use super::spec::{KernelSpec, Site};
use crate::Result;
use crate::exec::Compiled;
use pallas_device::{CACHE_HITS, KERNEL_TRACES, Lru, startup};
use pallas_ir::{DType, Kernel, Loc};
use parking_lot::Mutex;
use std::any::TypeId;
use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::Relaxed;

/// Key of a compiled kernel: calls with equal keys have equal traces.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct CallKey {
    name: &'static str,
    at: Loc,
    /// The type of the kernel's body, which has all generic arguments.
    instance: TypeId,
    /// `None`: some `#[fixed]` value can't be compared, so the trace itself is the key.
    fixed: Option<Vec<StoredFixedValue>>,
    sizes: Vec<(String, i64)>,
    operands: Vec<(String, Vec<usize>)>,
    trace: String,
}

/// Number of kernels traced in a row that differ in the value of one `#[fixed]` argument only, after which the user is
/// warned.
const FIXED_CHANGES_BEFORE_WARNING: u32 = 16;

/// The last trace of one kernel, and which of its `#[fixed]` arguments keeps changing.
struct LastTrace {
    last: CallKey,
    /// The only argument whose value has changed, and the number of changes in a row.
    changing: Option<(usize, u32)>,
    warned: bool,
}

static LAST_TRACES: LazyLock<Mutex<HashMap<TypeId, LastTrace>>> = LazyLock::new(Mutex::default);

/// Returns a warning, at most once for each kernel, that the value of a `#[fixed]` argument changes from call to call.
/// `fixed_arguments` has names and types of these arguments, `uncomparable_argument` the index of one that can't be
/// compared.
fn changing_fixed_argument_warning(
    call: &CallKey,
    fixed_arguments: &[(&'static str, &'static str)],
    uncomparable_argument: Option<usize>,
) -> Option<String> {
    let mut all = LAST_TRACES.lock();
    let new = || LastTrace { last: call.clone(), changing: None, warned: false };
    let traced = all.entry(call.instance).or_insert_with(new);
    let last = std::mem::replace(&mut traced.last, call.clone());
    let same = CallKey { fixed: call.fixed.clone(), ..last.clone() } == *call;
    let differing = |(a, b): (&Vec<StoredFixedValue>, &Vec<StoredFixedValue>)| -> Vec<usize> {
        (0..a.len()).filter(|&i| a[i] != b[i]).collect()
    };
    let changed = match (uncomparable_argument, last.fixed.as_ref().zip(call.fixed.as_ref()).map(differing).as_deref())
    {
        (Some(i), _) | (None, Some(&[i])) if same => i,
        _ => {
            traced.changing = None;
            return None;
        }
    };
    let count = traced.changing.filter(|(i, _)| *i == changed).map_or(1, |(_, n)| n + 1);
    traced.changing = Some((changed, count));
    if count < FIXED_CHANGES_BEFORE_WARNING || std::mem::replace(&mut traced.warned, true) {
        return None;
    }
    let (name, ty) = fixed_arguments[changed];
    // Parameters are of element types.
    let parameter = match ty {
        "usize" | "isize" => Some("i32".to_string()),
        _ => DType::ALL.iter().map(DType::to_string).find(|dtype| ty.rsplit("::").next() == Some(dtype)),
    };
    let help = match parameter {
        Some(ty) => {
            format!("make it a run-time parameter (`{name}: {ty}` without `#[fixed]`), or give the same value again")
        }
        None => {
            "give the same value again, or take what changes as run-time parameters: numbers without `#[fixed]`".into()
        }
    };
    Some(format!(
        "{}: kernel `{}` was compiled {FIXED_CHANGES_BEFORE_WARNING} times in a row, each time for another value of `{name}`, which is \
         `#[fixed]`; help: {help}",
        call.at, call.name
    ))
}

impl CallKey {
    pub(super) fn new(site: &Site<'_>, spec: &KernelSpec, sizes: &CallSizes, body_type: TypeId) -> CallKey {
        let statics = sizes.statics.iter().map(|n| (n.clone(), sizes.sizes[n])).collect();
        let fixed = site.fixed.iter().map(FixedKey::stored_value).collect();
        // Blocks and dims may mention const generics and outer constants; an operand without dims has its array's
        // shape.
        let shape = |i: usize| if spec.operands[i].dims.is_none() { sizes.geometry.shapes[i].clone() } else { vec![] };
        let describe = |i: usize| {
            let o = &spec.operands[i];
            let (fill, empty) = (o.fill.map(f64::to_bits), o.empty.map(f64::to_bits));
            format!("{}{:?}{:?}{fill:?}{empty:?}{:?}", o.dtype, o.dims, o.block, o.buffered)
        };
        let operands = (0..spec.operands.len()).map(|i| (describe(i), shape(i))).collect();
        let trace = format!("{:?}", spec.grid);
        CallKey { name: site.name, at: site.at, instance: body_type, fixed, sizes: statics, operands, trace }
    }
}

static KERNEL_CACHE: LazyLock<Lru<CallKey, Compiled>> = LazyLock::new(|| Lru::new(Compiled::estimated_memory_bytes));

/// Returns the compiled kernel of a call, which is traced if it is not in the cache.
pub(super) fn find_or_compile(site: &Site<'_>, call: &CallKey, trace: impl Fn() -> Result<Kernel>) -> Result<Compiled> {
    if call.fixed.is_some()
        && let Some(found) = KERNEL_CACHE.get(call)
    {
        CACHE_HITS.fetch_add(1, Relaxed);
        return Ok(found);
    }
    startup::freeze_on_described_use(|| format!("kernel `{}` ({})", call.name, call.at))?;
    KERNEL_TRACES.fetch_add(1, Relaxed);
    let kernel = trace()?;
    // Where values can't be compared, equal traces are equal kernels.
    let key = match call.fixed {
        Some(_) => call.clone(),
        None => CallKey { trace: format!("{kernel:?}"), ..call.clone() },
    };
    if let Some(found) = KERNEL_CACHE.get(&key) {
        return Ok(found);
    }
    if !site.fixed.is_empty() {
        let fixed: Vec<_> = site.fixed.iter().map(|fixed| (fixed.name, fixed.ty)).collect();
        let uncomparable = site.fixed.iter().position(|fixed| fixed.stored_value().is_none());
        changing_fixed_argument_warning(call, &fixed, uncomparable)
            .into_iter()
            .for_each(|warning| log::warn!("{warning}"));
    }
    Ok(KERNEL_CACHE.get_or_insert(key, Compiled::from_trace(kernel)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pallas_device::KernelSource;
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
            let [traced, _] =
                &crate::launch::collect_traced_and_lowered_kernels(|| times(&x, factor)).expect("it is compiled")[0];
            Kernel::clone(traced)
        };
        let identity =
            |kernel: Kernel| KernelSource::new(kernel, crate::exec::CPU_METHOD_THRESHOLDS).disk_key().clone();
        let mut moved = traced(2.0);
        moved.locs.iter_mut().for_each(|loc| loc.line += 1);
        assert_eq!(identity(traced(2.0)), identity(traced(2.0)));
        assert_ne!(identity(traced(2.0)), identity(traced(3.0)), "another constant");
        assert_ne!(identity(traced(2.0)), identity(moved), "shaders name lines");
    }

    #[test]
    fn a_fixed_value_that_changes_with_every_call_is_told_once() {
        let call = |fixed: f32, size: i64| {
            let key = crate::launch::fixed_values::ByText::fixed_key(&&crate::launch::fixed_values::Fixed(&fixed))
                .stored_value();
            CallKey {
                name: "k",
                at: Loc { file: "k.rs", line: 1, column: 1 },
                instance: TypeId::of::<fn(u8, u16)>(),
                fixed: Some(vec![key.expect("comparable")]),
                sizes: vec![("B".into(), size)],
                operands: vec![],
                trace: String::new(),
            }
        };
        let told = |calls: &mut dyn Iterator<Item = CallKey>| -> Vec<String> {
            calls.filter_map(|call| changing_fixed_argument_warning(&call, &[("factor", "u64")], None)).collect()
        };
        assert_eq!(told(&mut (0..100).map(|i| call(i as f32, i / 8))), [""; 0], "sizes change too");
        let warnings = told(&mut (0..100).map(|i| call(i as f32 + 0.5, 8)));
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("k.rs:1:1") && warnings[0].contains("`factor: u64` without"), "{warnings:?}");
    }
}
