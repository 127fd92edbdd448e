//! Every shipped kernel's shader, in every float type, for every kind of device, passes naga's validator and its
//! SPIR-V, MSL and HLSL writers, and the race checker.
//!
//! The groups are families of `kernels/cases` with extents; a kernel of `kernels/src` that no group calls fails a test.
use crate::cases::{self, Entry, Extents, Given};
use crate::validate::validate;
use pallas_rt::__tests::{BarrierAudit, audit_barriers};
use pallas_rt::Target;
use pallas_rt::launch::Explanation;
use pallas_rt::prelude::*;
use pallas_rt::shader::{CooperativeMatrices, Profile};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// What is done with the kernels of a call.
pub(crate) type See<'a> = &'a dyn Fn(&Explanation);
/// Functions of a family, and the extents of their calls.
pub(crate) struct Group(&'static [Entry], &'static [&'static Extents]);

impl Group {
    /// Calls them and their gradients, on arrays of an element type.
    pub(crate) fn call(&self, see: See<'_>, dtype: DType) {
        let seen = RefCell::default();
        for (entry, extents) in self.0.iter().flat_map(|entry| self.1.iter().map(move |extents| (entry, extents))) {
            let case = entry.case(&Given::new(&Client::cpu(), dtype, extents, cases::zeros));
            let case = case.unwrap_or_else(|e| panic!("{}: {e}", entry.name));
            call(see, &seen, || case.run_all());
        }
    }
}

pub(crate) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Names the groups, and makes a test of each for each element type.
macro_rules! groups {
    ($($group:ident: $family:ident $(, $extents:expr)+;)*) => {
        pub(crate) const GROUPS: &[Group] = &[$(Group(cases::$family, &[$(&$extents),+])),*];
        $(mod $group {
            use super::*;
            const GROUP: Group = Group(cases::$family, &[$(&$extents),+]);
            #[test]
            fn shaders_are_valid_everywhere_in_f32() {
                GROUP.call(&validate_all, DType::F32);
            }
            #[test]
            fn shaders_are_valid_everywhere_in_f16() {
                GROUP.call(&validate_all, DType::F16);
            }
            #[test]
            fn shaders_are_valid_everywhere_in_bf16() {
                GROUP.call(&validate_all, DType::Bf16);
            }
        })*
    };
}
const ATTENTION: [(char, usize); 10] =
    [('b', 1), ('h', 2), ('g', 1), ('s', 9), ('l', 7), ('d', 8), ('y', 1), ('z', 2), ('w', 3), ('u', 16)];
groups! {
    products: PRODUCTS, [('n', 9), ('k', 6), ('m', 7)];
    products_of_bytes: BYTES, [('n', 9), ('k', 9), ('m', 9)];
    quantised_products: QUANTISED, [('n', 5), ('k', 70), ('m', 9)], [('n', 5), ('k', 70), ('m', 9), ('q', 32)];
    rows: ROWS, [('n', 3), ('d', 9)];
    // More elements than a core keeps of a row.
    long_rows: ROWS, [('n', 3), ('d', (1 << 17) + 1)];
    gates: GATES, [('n', 10), ('d', 8)];
    rotations: ROTARY, [('h', 2), ('n', 5), ('d', 8)];
    losses: LOSSES, [('n', 5), ('v', 9), ('d', 70)], [('n', 5), ('v', 70), ('d', 9)];
    tables: TABLES, [('n', 5), ('v', 9), ('d', 70)];
    // Kernels that a GPU takes, in small blocks.
    rows_in_blocks: ROWS_IN_BLOCKS, [('n', 3), ('d', 9), ('u', 4)];
    classes_in_blocks: CLASSES_IN_BLOCKS, [('n', 5), ('v', 9), ('d', 70), ('u', 16)];
    attention: ATTENTION_IN_BLOCKS, ATTENTION;
    attention_with_options: OPTIONS_IN_BLOCKS, ATTENTION;
    attention_of_few_queries: CACHES, [('b', 1), ('h', 4), ('g', 2), ('s', 3), ('l', 70), ('d', 8), ('a', 2)];
    attention_over_pages: PAGES, [
        ('p', 8), ('g', 2), ('t', 4), ('d', 8), ('h', 4), ('r', 2), ('c', 3), ('w', 5), ('a', 1)
    ];
    attention_under_masks: CAPPED_MASKS, [
        ('b', 1), ('h', 2), ('g', 2), ('s', 150), ('l', 150), ('d', 8), ('w', 40), ('u', 16)
    ];
}

/// For every kind of device: a kernel's shader is valid, its threads meet where they must, and nowhere else.
fn validate_all(explanation: &Explanation) {
    // Block sizes are those of the CPU here.
    let plain = Target { workgroup_bytes: 256 << 10, ..Target::webgpu() };
    let matrices = CooperativeMatrices { half: Some(16), float: Some(8), lanes: 32 };
    let targets = Profile::SHADERS.map(|profile| Target { profile, ..plain });
    let targets = targets.into_iter().chain([Target { matrices: Some(matrices), ..plain }]);
    for (kernel, plain) in explanation.kernels.iter().flat_map(|k| targets.clone().map(move |t| (k, t))) {
        for (target, multiples) in [(plain, 0), (Target { lanes: Some(8), ..plain }, u64::MAX)] {
            let found = audit_barriers(&kernel.lowered, kernel.sequential, &target, multiples);
            let (shader, audit) = found.expect("it has a shader");
            validate(&shader.text);
            assert_eq!(audit.barriers, shader.placement.barriers.len());
            let expected = BarrierAudit { barriers: audit.barriers, ..BarrierAudit::default() };
            assert_eq!(audit, expected, "{}\n{}", target.name(), shader.text);
        }
    }
}

/// Every `#[kernel]` of `kernels/src`: its name, and whether it has an element type as parameter.
pub fn shipped() -> Vec<(String, bool)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/src");
    let files = std::fs::read_dir(folder).expect("a folder of the repository").map(|f| f.expect("an entry").path());
    let mut found = vec![];
    for file in files {
        let text = std::fs::read_to_string(file).expect("text");
        for (at, _) in text.match_indices("\n#[kernel") {
            let kernel = &text[at..];
            let head = &kernel[kernel.find("fn ").expect("a function") + 3..];
            let head = &head[..head.find('(').expect("parameters")];
            let name = head.split('<').next().expect("a name");
            found.push((name.to_owned(), head.contains("<E: ")));
        }
    }
    found
}

/// Kernels that no group calls: they are chosen on the CPU.
const ELSEWHERE: &[&str] =
    &["flash_attention_whole", "flash_attention_whole_gradients", "flash_attention_resident_bias"];

#[test]
fn no_shipped_kernel_is_forgotten() {
    let seen: RefCell<BTreeMap<String, BTreeSet<String>>> = RefCell::default();
    let see = |explanation: &Explanation| {
        for kernel in &explanation.kernels {
            let types = kernel.lowered.operands.iter().map(|o| o.dtype.to_string());
            seen.borrow_mut().entry(kernel.name.clone()).or_default().extend(types);
        }
    };
    GROUPS.iter().for_each(|group| FLOATS.iter().for_each(|&dtype| group.call(&see, dtype)));
    let shipped = shipped();
    assert!(shipped.len() > 40, "the kernels are found: {shipped:?}");
    let mut missing = vec![];
    for (name, generic) in shipped.into_iter().filter(|(name, _)| !ELSEWHERE.contains(&&name[..])) {
        match seen.borrow().get(&name) {
            None => missing.push(name),
            Some(types) => {
                let types = FLOATS.iter().filter(|dtype| generic && !types.contains(&dtype.to_string()));
                missing.extend(types.map(|dtype| format!("{name} of {dtype}")));
            }
        }
    }
    assert!(missing.is_empty(), "no group calls these: their shaders are never validated: {missing:?}");
}

#[kernel(grid = (1))]
fn orders(
    #[block([M, N] => [3, 37], |_i| (0, 0))] x: In<f32>,
    #[block([M, N] => [3, 37], |_i| (0, 0))] sorted: Out<f32>,
    #[block([M, N] => [3, 37], |_i| (0, 0))] positions: Out<i32>,
) {
    let t = x.load();
    sorted.store(t.sort(1));
    positions.store(t.argsort_descending(0) + t.arg_top_k(37, 1) + (t > 0.0).argsort(1));
}

#[test]
fn shaders_of_sorts_are_valid_everywhere() {
    call(&validate_all, &RefCell::default(), || orders(Client::cpu().zeros(&[3, 37], DType::F32)?));
}

/// Shows the kernels of a call that are not among those seen.
fn call<R>(see: See<'_>, seen: &RefCell<BTreeSet<String>>, f: impl FnOnce() -> Result<R>) {
    let mut explanation = explain(f).expect("it is explained");
    assert!(!explanation.kernels.is_empty());
    explanation.kernels.retain(|kernel| seen.borrow_mut().insert(kernel.lowered.to_string()));
    see(&explanation);
}
