//! Lowered kernels as they are stored on disk.
use crate::launch::collect_traced_and_lowered_kernels;
use pallas_device::devices::lowered_cache::{StoredKernel, instruction_locs, parse_stored, to_stored};
use pallas_device::disk::{EntryKey, Store};
use pallas_ir::Kernel;
use pallas_rt::prelude::*;

#[kernel(grid = (cdiv(N, 8)), semantics = (arbitrary))]
fn asserted(#[block([N] => [8], |i| (i,))] x: In<f32>, #[block([N] => [8], |i| (i,))] out: Out<f32>) {
    let x = x.load();
    debug_assert(x.gt(-1.0), "positive");
    out.store(x * 0.1f32);
}

#[test]
fn a_kernel_comes_back_with_its_lines() {
    let client = Client::cpu();
    let x = client.array(&[1.0f32; 8], &[8]).expect("it fits");
    let [traced, lowered] = &collect_traced_and_lowered_kernels(|| asserted(&x)).expect("it compiles")[0];
    let back = parse_stored(to_stored(traced, lowered), traced).expect("it round-trips");
    assert_eq!((back.to_string(), instruction_locs(&back)), (lowered.to_string(), instruction_locs(lowered)));
    assert!(instruction_locs(traced).contains("source.rs"), "{}", instruction_locs(traced));
    let text: Kernel = lowered.to_string().parse().expect("it round-trips");
    assert_ne!(instruction_locs(&text), instruction_locs(&back), "a text has no lines");
}

#[test]
fn an_entry_of_another_kernel_is_none() {
    let client = Client::cpu();
    let x = client.array(&[1.0f32; 8], &[8]).expect("it fits");
    let [traced, lowered] = &collect_traced_and_lowered_kernels(|| asserted(&x)).expect("it compiles")[0];
    let check = |from: &str, to: &str| {
        let mut entry = to_stored(traced, lowered);
        assert!(entry.text.contains(from), "{from} in {}", entry.text);
        entry.text = entry.text.replace(from, to);
        assert!(parse_stored(entry, traced).is_none(), "{to} for {from}");
    };
    check("0:8", "0:100000");
    check("block [8]", "block [16]");
    check("out out: f32[N]", "out out: f32[N + 1]");
    check("  in x", "  grid 2 parallel\n  in x");
    check("  steps cdiv(N, 8)\n", "  steps cdiv(N, 4)\n");
    check("in x", "in y");
    // Well formed, but with a block that no array has.
    check("array[", "block[");
    assert!(
        parse_stored(StoredKernel { text: traced.to_string(), lines: vec![] }, traced).is_none(),
        "the traced form"
    );
    let mut entry = to_stored(traced, lowered);
    entry.lines[0] = Some(usize::MAX);
    assert!(parse_stored(entry, traced).is_none(), "a line that is none of the kernel's");
}

#[test]
fn hostile_entries_are_refused_or_run() {
    use crate::lang::random::hostile::{corpus, each, mutate::Corpus, run};
    let kernels = corpus();
    let texts = Corpus::new(kernels.iter().map(|[_, lowered]| lowered.to_string()).collect());
    let folder = std::env::temp_dir().join(format!("pallas-hostile-{}", std::process::id()));
    let (store, key) = (Store::new(folder.clone(), 1 << 30), EntryKey::new("lowered", &["hostile"]));
    each("hostile-entries", |dice, counts| {
        let at = dice.below(kernels.len());
        let [traced, lowered] = &kernels[at];
        let mut entry = to_stored(traced, lowered);
        let which = dice.below(10);
        if which > 1 {
            entry.text = texts.mutate(at, dice);
        }
        if which == 1 && !entry.lines.is_empty() {
            let line = dice.below(entry.lines.len());
            entry.lines[line] = [None, Some(0), Some(dice.below(100)), Some(usize::MAX)][dice.below(4)];
        }
        let mut bytes = serde_json::to_vec(&entry).expect("plain data");
        if which == 0 {
            let byte = dice.below(bytes.len());
            bytes[byte] = dice.below(256) as u8;
        }
        run::note("hostile-entries", &String::from_utf8_lossy(&bytes));
        // With a valid tag, so that only the contents can be refused.
        store.write(&key, &bytes);
        let found = store.load(&key, |entry: StoredKernel| {
            counts.parsed += u64::from(entry.text.parse::<Kernel>().is_ok());
            parse_stored(entry, traced)
        });
        if let Some(kernel) = found {
            counts.note(run::run(&kernel, dice));
        }
    });
    let _ = std::fs::remove_dir_all(folder);
}
