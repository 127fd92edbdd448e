//! Tuned block sizes: which candidate runs, what is remembered, and when it is not.
use crate::support::apart_from_disk;
use pallas_rt::prelude::*;
use pallas_rt::tune::{Outcome, Tuning};
use pallas_rt::{DiskCache, counters, set_disk_cache};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

/// Rows in blocks: many small ones take longer than few large ones.
#[kernel(grid = (cdiv(N, BN)), tune(BN = [1, 64], BK = [1, 2, 4]), tune_if = BN >= 16 * BK || BK == 1)]
fn scaled<E: Float, const BN: usize, const BK: usize>(
    #[block([N, D] => [BN, D], |i| (i, 0))] x: In<E>,
    #[block([N, D] => [BN, D], |i| (i, 0))] out: Out<E>,
    #[fixed] factor: f32,
    #[fixed] after: impl Fn(Tile<f32>) -> Tile<f32>,
    plus: f32,
) {
    // The same numbers in as many steps as BK says.
    let mut y = x.load().cast::<f32>();
    for _ in 0..BK {
        y += plus / BK as f32;
    }
    out.store(after(y * factor).cast::<E>());
}

fn tuning_of(call: impl FnOnce() -> Result<Array>) -> Arc<Tuning> {
    let explanation = explain(call).expect("it is explained");
    let [kernel] = &explanation.kernels[..] else { panic!("one kernel: {explanation}") };
    assert!(explanation.to_string().contains("tuned: BN = "), "{explanation}");
    kernel.tuning.clone().expect("it is tuned")
}

#[test]
fn the_fastest_candidate_runs_and_explain_says_so() {
    if apart_from_disk("tune::the_fastest_candidate_runs_and_explain_says_so") {
        return;
    }
    for client in crate::support::clients() {
        let x = client.array(&[1.0f32; 4096], &[1024, 4]).expect("it fits");
        let scaled_by = |x: &Array, factor: f32| scaled_tuned::<f32>(x, factor, |y| y + 0.5, 4.0);
        let call = || scaled_by(&x, 3.0);
        let before = tuning_of(call);
        let combinations: Vec<&[u64]> = before.candidates.iter().map(|c| c.values).collect();
        assert_eq!(combinations, [[1, 1], [64, 1], [64, 2], [64, 4]], "those that `tune_if` leaves");
        assert!(before.why.contains("the first that fits"), "{before}");
        let launches = counters().launches;
        assert_eq!(call().and_then(|y| y.to_vec::<f32>()), Ok(vec![15.5; 4096]), "{client:?}");
        let timed = client.kind() != pallas_rt::DeviceKind::Interpreter;
        assert!(!timed || counters().launches - launches > 4, "each candidate runs more than once");
        let after = tuning_of(call);
        if timed {
            assert_eq!(after.why, "the fastest, timed by this process");
            let times: Vec<_> = after.candidates.iter().map(|c| c.outcome.clone()).collect();
            let time = |i: usize| if let Outcome::Time(t) = times[i] { t } else { panic!("timed: {after}") };
            assert!((0..4).all(|i| time(after.chosen) <= time(i)), "{after}");
        }
        // Other values, shapes, types or functions are other calls.
        let short = client.array(&[1.0f32; 64], &[16, 4]).expect("it fits");
        for (x, factor) in [(&x, 5.0), (&short, 3.0)] {
            assert!(tuning_of(|| scaled_by(x, factor)).why.contains("the first that fits"));
        }
        let other = client.array(&[f16::ONE; 64], &[16, 4]).expect("it fits");
        assert!(tuning_of(|| scaled_tuned::<f16>(&other, 3.0, |y| y, 1.0)).why.contains("the first that fits"));
        // The plain call takes sizes as ever.
        let plain = scaled::<f32, 64, 2>(&x, 3.0, |y| y, 1.0);
        assert_eq!(plain.and_then(|y| y.to_vec::<f32>()), Ok(vec![6.0; 4096]));
    }
}

#[test]
fn donated_arrays_and_given_outputs_serve_the_call_itself() {
    if apart_from_disk("tune::donated_arrays_and_given_outputs_serve_the_call_itself") {
        return;
    }
    for client in crate::support::clients() {
        let array = || client.array(&[1.0f32; 64], &[16, 4]).expect("it fits");
        let mut y = client.zeros(&[16, 4], DType::F32).expect("it fits");
        into([&mut y], || scaled_tuned::<f32>(array(), 2.0, |y| y, 1.0)).expect("it runs");
        assert_eq!(y.to_vec::<f32>(), Ok(vec![4.0; 64]));
        let z = scaled_tuned::<f32>(y, 2.0, |y| y, 1.0).and_then(|z| z.to_vec::<f32>());
        assert_eq!(z, Ok(vec![10.0; 64]));
        assert_eq!(check(|| scaled_tuned::<f32>(array(), 2.0, |y| y * 2.0, 1.0)).expect("they agree").kernels, 1);
    }
}

/// Candidates that do not fit what the call gives.
#[kernel(grid = (cdiv(N, BN)), tune(BN = [8, 4096, 16]), assume(BN == H))]
fn fitting<const BN: usize, const H: usize>(
    #[block([N, 16] => [BN, 16], |i| (i, 0))] x: In<f32>,
    #[block([N, 16] => [BN, 16], |i| (i, 0))] out: Out<f32>,
    #[scratch([BN, 16])] s: Scratch<f32>,
) {
    s.store(x.load());
    out.store(s.load());
}

#[test]
fn candidates_that_do_not_fit_are_skipped_with_a_reason() {
    if apart_from_disk("tune::candidates_that_do_not_fit_are_skipped_with_a_reason") {
        return;
    }
    let client = Client::cpu();
    let x = client.array(&[1.0f32; 1600], &[100, 16]).expect("it fits");
    fitting_tuned::<16>(&x).expect("one of them fits");
    let found = tuning_of(|| fitting_tuned::<16>(&x));
    assert_eq!(found.chosen, 2, "{found}");
    let skipped = |i: usize| matches!(&found.candidates[i].outcome, Outcome::Skipped(why) if why.contains("assumes"));
    assert!(skipped(0) && skipped(1), "{found}");
    let e = fitting_tuned::<3>(&x).expect_err("none fits");
    assert_eq!(e.code(), "assume", "{e}");
}

/// Candidates of which some fail on the way: while traced, for want of memory.
#[kernel(grid = (cdiv(N, BN)), tune(BN = [6, 524288, 8]))]
fn failing<const BN: usize>(
    #[block([N, 16] => [BN, 16], |i| (i, 0))] x: In<f32>,
    #[block([N, 16] => [BN, 16], |i| (i, 0))] out: Out<f32>,
    #[scratch([BN, 16])] s: Scratch<f32>,
) {
    s.store(x.load().reshape([BN / 4, 4, 16]).reshape([BN, 16]));
    out.store(s.load() * 2.0);
}

#[test]
fn candidates_that_fail_are_skipped_with_a_reason() {
    if apart_from_disk("tune::candidates_that_fail_are_skipped_with_a_reason") {
        return;
    }
    let client = Client::cpu().isolated().expect("the CPU is there");
    let x = client.array(&[1.0f32; 1600], &[100, 16]).expect("it fits");
    client.set_memory_limit(client.memory().in_use + (1 << 20));
    let found = failing_tuned(&x).and_then(|y| y.to_vec::<f32>());
    assert_eq!(found, Ok(vec![2.0; 1600]));
    let found = tuning_of(|| failing_tuned(&x));
    assert_eq!(found.chosen, 2, "{found}");
    let why = |i: usize| match &found.candidates[i].outcome {
        Outcome::Skipped(why) => why.clone(),
        other => panic!("{other:?}"),
    };
    assert!(why(0).contains("reshape") && why(0).contains("tune.rs"), "{found}");
    assert!(why(1).contains("memory"), "{found}");
    assert!(explain(|| failing_tuned(&x)).expect("it is explained").to_string().contains("skipped: "), "{found}");
}

/// What the processes of the tests below do.
#[test]
#[ignore = "only where another test starts it"]
fn child() {
    let (Ok(folder), Ok(factor)) = (std::env::var("PALLAS_TUNE_TEST"), std::env::var("PALLAS_TUNE_FACTOR")) else {
        return;
    };
    set_disk_cache(DiskCache::At { folder: folder.into(), limit: 1 << 20 }).expect("before the first kernel");
    let factor: f32 = factor.parse().expect("a number");
    let x = Client::cpu().array(&[1.0f32; 64], &[16, 4]).expect("it fits");
    let call = || scaled_tuned::<f32>(&x, factor, |y| y, 1.0);
    assert_eq!(call().and_then(|y| y.to_vec::<f32>()), Ok(vec![2.0 * factor; 64]));
    println!("tuned {}", tuning_of(call).why);
}

/// A process that tunes a kernel with a constant.
fn process(folder: &Path, factor: &str) -> Command {
    let mut command = test_process("child", folder);
    command.env("PALLAS_TUNE_FACTOR", factor);
    command
}
fn test_process(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args([&format!("tune::{test}"), "--exact", "--ignored", "--nocapture"]);
    command.env("PALLAS_TUNE_TEST", folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
/// How it came to its choice.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text.lines().find_map(|l| l.split_once("tuned ")).expect("it says why").1.to_string()
}
/// A folder for entries.
fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pallas-tune-{}-{name}", std::process::id()))
}
fn winners(folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).expect("made").flatten().map(|f| f.path());
    files.filter(|path| path.to_string_lossy().contains("tuned-")).collect()
}

/// The tag of an entry with the folder's secret: an HMAC-SHA256 (RFC 2104) of its name and contents.
fn tag(folder: &Path, entry: &Path, body: &str) -> String {
    let secret = std::fs::read(folder.join("secret")).expect("made with the first entry");
    let padded = |byte: u8| -> Vec<u8> { (0..64).map(|i| secret.get(i).unwrap_or(&0) ^ byte).collect() };
    let name = entry.file_name().expect("a file").to_string_lossy();
    let inner = Sha256::digest([&padded(0x36)[..], name.as_bytes(), b"\n", body.as_bytes()].concat());
    Sha256::digest([padded(0x5c), inner.to_vec()].concat()).iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn winners_are_remembered_and_stale_ones_are_not() {
    let folder = folder("stale");
    let why = |factor: &str| said(&process(&folder, factor).output().expect("it starts"));
    assert_eq!(why("2.0"), "the fastest, timed by this process");
    assert_eq!(why("2.0"), "the fastest, timed earlier");
    assert_eq!(why("3.0"), "the fastest, timed by this process", "another constant in the kernel");
    assert_eq!(why("2.0"), "the fastest, timed earlier");
    assert_eq!(winners(&folder).len(), 2);
    for file in winners(&folder) {
        std::fs::write(file, b"torn").expect("ours");
    }
    assert_eq!(why("2.0"), "the fastest, timed by this process");
    std::fs::remove_dir_all(&folder).expect("ours");
}

#[test]
fn the_environment_asks_for_new_measurements() {
    let folder = folder("again");
    let with = |value: &str| said(&process(&folder, "2.0").env("PALLAS_TUNE", value).output().expect("it starts"));
    assert_eq!(with("on"), "the fastest, timed by this process");
    let [entry] = &winners(&folder)[..] else { panic!("one winner") };
    // As if it had been timed on a busy machine.
    let whole = std::fs::read_to_string(entry).expect("it is there");
    let body = whole.split_once('\n').expect("a tag").1.replace("\"nanos\":", "\"nanos\":9");
    let busy = format!("{}\n{body}", tag(&folder, entry, &body));
    std::fs::write(entry, &busy).expect("ours");
    assert_eq!(with("on"), "the fastest, timed earlier");
    assert_eq!(with("again"), "the fastest, timed by this process");
    assert_ne!(std::fs::read_to_string(entry).expect("it is there"), busy, "the new winner is kept");
    assert_eq!(with("on"), "the fastest, timed earlier");
    std::fs::remove_dir_all(&folder).expect("ours");
}

/// A tuned call with as much memory over as it is told, or with enough.
#[test]
#[ignore = "only where another test starts it"]
fn child_with_little_memory() {
    let Ok(folder) = std::env::var("PALLAS_TUNE_TEST") else { return };
    set_disk_cache(DiskCache::At { folder: folder.into(), limit: 1 << 20 }).expect("before the first kernel");
    let client = Client::cpu().isolated().expect("the CPU is there");
    let x = client.array(&[1.0f32; 1600], &[100, 16]).expect("it fits");
    let limit = |over: u64| client.set_memory_limit(client.memory().in_use + over);
    let right = || assert_eq!(failing_tuned(&x).and_then(|y| y.to_vec::<f32>()), Ok(vec![2.0; 1600]));
    if std::env::var("PALLAS_TUNE_LITTLE").is_ok() {
        limit(1 << 20);
    }
    right();
    println!("tuned {:?}", tuning_of(|| failing_tuned(&x)));
    // The same call again, whatever became of memory.
    for over in [1 << 20, 1 << 40, 1 << 20] {
        limit(over);
        right();
    }
}

#[test]
fn a_winner_that_memory_has_no_room_for_gives_way_to_the_next() {
    let folder = folder("room");
    let little = || test_process("child_with_little_memory", &folder);
    let chose = |command: &mut Command, chosen: usize, why: &str| {
        let said = said(&command.output().expect("it starts"));
        assert!(said.contains(&format!("chosen: {chosen}, why: \"{why}\"")), "{said}");
    };
    chose(&mut little(), 2, "the fastest, timed by this process");
    // As if the one that takes 32 MiB had won.
    let [entry] = &winners(&folder)[..] else { panic!("one winner") };
    let whole = std::fs::read_to_string(entry).expect("it is there");
    let body = whole.split_once('\n').expect("a tag").1.replace("\"chosen\":2", "\"chosen\":1");
    std::fs::write(entry, format!("{}\n{body}", tag(&folder, entry, &body))).expect("ours");
    chose(&mut little(), 1, "the fastest, timed earlier");
    chose(little().env("PALLAS_TUNE_LITTLE", "1"), 2, "the fastest that memory has room for");
    let off = || -> Command {
        let mut command = little();
        command.env("PALLAS_TUNE", "off");
        command
    };
    chose(&mut off(), 1, "the first that fits: PALLAS_TUNE=off");
    chose(off().env("PALLAS_TUNE_LITTLE", "1"), 2, "the first that fits: PALLAS_TUNE=off");
    std::fs::remove_dir_all(&folder).expect("ours");
}

#[test]
fn processes_that_tune_at_once_agree_on_one_entry() {
    let folder = folder("at-once");
    let both: Vec<_> = (0..2).map(|_| process(&folder, "2.0").spawn().expect("it starts")).collect();
    for one in both {
        let why = said(&one.wait_with_output().expect("it ends"));
        assert!(why.starts_with("the fastest, timed "), "{why}");
    }
    assert_eq!(winners(&folder).len(), 1);
    assert_eq!(said(&process(&folder, "2.0").output().expect("it starts")), "the fastest, timed earlier");
    std::fs::remove_dir_all(&folder).expect("ours");
}

#[test]
fn the_environment_turns_it_off() {
    let folder = folder("off");
    let with = |value: &str| process(&folder, "2.0").env("PALLAS_TUNE", value).output().expect("it starts");
    assert_eq!(said(&with("off")), "the first that fits: PALLAS_TUNE=off");
    assert_eq!(said(&with("on")), "the fastest, timed by this process");
    assert_eq!(said(&with("off")), "the first that fits: PALLAS_TUNE=off", "whatever was timed earlier");
    let wrong = with("maybe");
    let text = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && text.contains("PALLAS_TUNE=maybe is not understood"), "{text}");
    std::fs::remove_dir_all(&folder).expect("ours");
}
