//! The report of a recipe: its exchanges, and its difference to one device.
use pallas_rt::audit::CollectiveUse;
use pallas_rt::plan::Shardings;
use pallas_rt::prelude::*;
use std::collections::BTreeMap;

/// The number of exchanges by kind and axes, those of loops once: `all_reduce data`.
pub fn counted(shardings: &Shardings) -> BTreeMap<String, usize> {
    let mut all: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for CollectiveUse { name, axes, bytes, cause, at, .. } in shardings.collectives() {
        println!("  {name} over {}: {bytes} bytes, {cause}, {at}", axes.join(", "));
        let entry = all.entry(format!("{name} {}", axes.join(","))).or_default();
        *entry = (entry.0 + 1, entry.1 + bytes);
    }
    for (name, (n, bytes)) in &all {
        println!("{n} {name}: {bytes} bytes from each device");
    }
    all.into_iter().map(|(name, (n, _))| (name, n)).collect()
}

/// True if these are the exchanges.
pub fn are(found: &BTreeMap<String, usize>, expected: &[(&str, usize)]) -> bool {
    let expected: BTreeMap<String, usize> = expected.iter().map(|(name, n)| (name.to_string(), *n)).collect();
    let same = *found == expected;
    if !same {
        eprintln!("expected {expected:?}, found {found:?}");
    }
    same
}

/// True if arrays agree with those of one device, relative to their largest elements.
pub fn agree(found: &[&Array], expected: &[&Array]) -> Result<bool> {
    let mut worst = 0f32;
    for (a, b) in found.iter().zip(expected) {
        let (a, b) = (a.to_vec::<f32>()?, b.to_vec::<f32>()?);
        let scale = b.iter().fold(1e-3f32, |m, x| m.max(x.abs()));
        worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs() / scale).fold(worst, f32::max);
        if a.len() != b.len() || a.iter().any(|x| x.is_nan()) {
            worst = f32::INFINITY;
        }
    }
    println!("greatest difference to one device: {worst:.1e}");
    Ok(worst < 1e-4)
}

/// Normal numbers.
pub fn normal(seed: i64, shape: &[usize], scale: f32) -> Array {
    pallas_rt::random::normal(pallas_rt::random::key(seed), shape, DType::F32) * scale
}
