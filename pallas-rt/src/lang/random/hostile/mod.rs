//! Law: no text of tile IR and no entry of the disk cache makes the crate panic, hang, or access memory outside of its
//! own.
//!
//! [`mutate`] makes small changes to texts of real kernels: random ones, those of the passes' tests, and the shipped
//! ones (`shipped.txt`). Texts that the parser and [`verify`](pallas_ir::verify) accept are lowered and [`run`] on
//! small arrays, on the interpreter and on the CPU.
//!
//! `PALLAS_MUTATIONS=100000 cargo test -p pallas-rt --no-default-features --lib hostile -- --nocapture` runs that many
//! of each kind; the last line of each reports how many were accepted and run. Each text is written to a file of the
//! temporary folder before it runs, so that the cause of a crash is known.
pub(crate) mod mutate;
pub(crate) mod run;

use super::draw::Dice;
use super::{STEPS, kernels};
use mutate::Corpus;
use pallas_ir::Kernel;
use run::Ran;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of mutations of each kind in CI.
const FEW: u64 = 1500;
/// Time after which a mutation counts as hanging, long enough for a busy machine.
const LONGEST: Duration = Duration::from_secs(60);

/// Returns the number of mutations from the environment.
pub(crate) fn wanted() -> u64 {
    std::env::var("PALLAS_MUTATIONS").map_or(FEW, |n| n.parse().expect("PALLAS_MUTATIONS is a number"))
}

/// Numbers of mutations that reached each stage.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) mutations: u64,
    /// Read by the parser.
    pub(crate) parsed: u64,
    /// Accepted by the verifier.
    pub(crate) accepted: u64,
    /// Accepted ones that ran in the interpreter and on the CPU.
    pub(crate) ran: u64,
    /// Ran without a fault of the strict interpreter.
    pub(crate) without_fault: u64,
    /// Accepted, but too large to run in a short time.
    pub(crate) large: u64,
}

impl Counts {
    /// Counts a mutation that the verifier accepted, by its outcome.
    pub(crate) fn note(&mut self, ran: Ran) {
        self.accepted += 1;
        match ran {
            Ran::Large => self.large += 1,
            Ran::Fault => self.ran += 1,
            Ran::Whole => (self.ran, self.without_fault) = (self.ran + 1, self.without_fault + 1),
        }
    }
}

/// Runs `mutation` with [`wanted`] seeds, and fails if one panics. A mutation that hangs ends the process.
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "how far they came, and what hangs")]
pub(crate) fn each(what: &str, mut mutation: impl FnMut(&mut Dice, &mut Counts)) -> Counts {
    let (start, running) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let watched = Arc::downgrade(&running);
    let name = what.to_string();
    std::thread::spawn(move || {
        let (mut seen, mut since) = (0, Instant::now());
        while let Some(running) = watched.upgrade() {
            let now = running.load(Ordering::Relaxed);
            (seen, since) = if now == seen { (seen, since) } else { (now, Instant::now()) };
            if since.elapsed() > LONGEST {
                eprintln!("{name}: mutation {now} hangs; see {}", run::last(&name).display());
                std::process::abort();
            }
            drop(running);
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let mut counts = Counts::default();
    let mut failed: Vec<String> = vec![];
    for n in 0..wanted() {
        running.store(n + 1, Ordering::Relaxed);
        let mut dice = Dice(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5eed);
        counts.mutations += 1;
        let outcome = catch_unwind(AssertUnwindSafe(|| mutation(&mut dice, &mut counts)));
        if let Err(panic) = outcome
            && failed.len() < 20
        {
            failed.push(format!("mutation {n}: {}", words(&*panic)));
            let _ = std::fs::rename(run::last(what), run::last(&format!("{what}-{n}")));
        }
    }
    println!("{what}: {counts:?} in {:.1} s", start.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "{} panic, see {}*:\n{}", failed.len(), run::last(what).display(), failed.join("\n"));
    let _ = std::fs::remove_file(run::last(what));
    assert!(counts.parsed * 10 >= counts.mutations * 3, "three in ten reach the verifier: {counts:?}");
    assert!(counts.without_fault * 50 >= counts.mutations, "some run to their end: {counts:?}");
    counts
}

/// Returns the message of a panic.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
    text.unwrap_or_default().lines().next().unwrap_or_default().to_string()
}

/// The kernels that are mutated, in traced and in lowered form.
pub(crate) fn corpus() -> Vec<[Arc<Kernel>; 2]> {
    let random = super::small(40).chain((1..40).step_by(2)).map(|seed| kernels(seed, STEPS / 2));
    let random = random.filter(|kernels| kernels.iter().all(|kernel| run::is_small(kernel)));
    let shipped =
        include_str!("shipped.txt").split("\n\n").chain([include_str!("../../../../codegen/src/passes/sums.txt")]);
    let shipped = shipped.map(|text| {
        let traced: Kernel = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let lowered = pallas_codegen::passes::run_lowering_passes(&traced);
        [Arc::new(traced), Arc::new(lowered)]
    });
    random.chain(shipped).collect()
}

#[test]
fn hostile_texts_are_refused_or_run() {
    let kernels = corpus();
    let texts = kernels.iter().flatten().map(|kernel| kernel.to_string());
    let corpus = Corpus::new(texts.collect());
    each("hostile-texts", |dice, counts| {
        let text = corpus.mutated(dice);
        run::note("hostile-texts", &text);
        let Ok(kernel) = text.parse::<Kernel>() else { return };
        counts.parsed += 1;
        if pallas_ir::verify(&kernel).is_ok() {
            counts.note(run::run(&kernel, dice));
        }
    });
}

#[test]
fn kernels_that_are_not_mutated_run() {
    for [traced, lowered] in corpus() {
        // A kernel in lowered form may be lowered again.
        let again = pallas_ir::verify_lowered(&pallas_codegen::passes::run_lowering_passes(&lowered));
        again.unwrap_or_else(|e| panic!("{e}\n{lowered}"));
        for kernel in [traced, lowered] {
            let text = kernel.to_string();
            let ran = run::run(&kernel, &mut Dice(7));
            assert!(!matches!(ran, Ran::Large), "too large to be mutated:\n{text}");
        }
    }
}
