//! Elementwise chains of shipped kernels run as machine code on the CPU, but for those that are listed.
use crate::shaders::{FLOATS, GROUPS};
use pallas_rt::launch::Explanation;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Kernels, and what keeps one of their chains from having machine code.
const STRIPS: &[(&str, &str)] = &[
    // One element a request, or a query; there is no instruction for it.
    ("decode_attention_splits", "rem of i32"),
    ("paged_attention_items", "div of i32"),
    // Once a launch.
    ("segment_spans", "fold maximum of i32, fold minimum of i32"),
    // Once a block of ids.
    ("embedding_rows", "fold maximum of i32"),
    ("embedding_rows", "fold minimum of i32"),
];

#[test]
fn chains_of_shipped_kernels_have_code() {
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
        let found: RefCell<BTreeSet<(String, String)>> = RefCell::default();
        let see = |explanation: &Explanation| {
            for kernel in &explanation.kernels {
                let missing = kernel.chains_without_code();
                found.borrow_mut().extend(missing.into_iter().map(|why| (kernel.name.clone(), why)));
            }
        };
        GROUPS.iter().for_each(|group| FLOATS.iter().for_each(|&dtype| group.call(&see, dtype)));
        let mut found = found.into_inner();
        for (kernel, reason) in STRIPS {
            let before = found.len();
            // Behind the chain's shape.
            found.retain(|(k, why)| k != kernel || !why.ends_with(&format!(": {reason}")));
            assert!(found.len() < before, "{kernel} has code now: take it from the list");
        }
        assert!(found.is_empty(), "without code: {found:#?}");
    }
}
