//! Jobs of four processes under `mpirun`, which this test starts as programs of its own: `ranks` has what they do.
//!
//! `cargo test -p pallas-rt --features mpi --test mpi`. Without `mpirun` nothing is tested, unless `PALLAS_REQUIRE_MPI`
//! is set.
#![allow(clippy::print_stdout, unreachable_pub, reason = "times of jobs; the example is a program of its own")]
mod ranks;
#[allow(dead_code, reason = "an example with a main function of its own")]
#[path = "../../../examples/tensor_parallel.rs"]
mod tensor_parallel;
mod train;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for which a process waits for the others.
const DEADLINE: Duration = Duration::from_millis(1500);
/// After this time a job hangs.
const HANGS: Duration = Duration::from_secs(60);

/// A job that has ended.
struct Ended {
    succeeded: bool,
    /// The output of its processes and of `mpirun`.
    text: String,
}

/// A job that runs, with a folder of its own.
struct Job {
    child: Child,
    folder: PathBuf,
}

fn is_installed() -> bool {
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let is_there = found.is_ok_and(|status| status.success());
    assert!(is_there || std::env::var_os("PALLAS_REQUIRE_MPI").is_none(), "mpirun is not installed");
    is_there
}

impl Job {
    fn start(case: &str, variables: &[(&str, &str)]) -> Job {
        let name = format!("pallas-mpi-{}-{case}-{:?}", std::process::id(), std::thread::current().id());
        let folder = std::env::temp_dir().join(name.replace(['(', ')'], "-"));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a folder for the job");
        let log = std::fs::File::create(folder.join("log")).expect("a file in it");
        let child = Command::new("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "-n", "4"])
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", "ranks::rank", "--nocapture", "--test-threads=1"])
            .env("PALLAS_MPI_CASE", case)
            .env("PALLAS_MPI_FOLDER", &folder)
            .env("PALLAS_DEADLINE_MS", DEADLINE.as_millis().to_string())
            .env("RAYON_NUM_THREADS", "1")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the same file"))
            .stderr(log)
            .spawn()
            .expect("mpirun starts");
        Job { child, folder }
    }

    fn wait(mut self) -> Ended {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                break status;
            }
            if begun.elapsed() > HANGS {
                let _ = self.child.kill();
                let _ = self.child.wait();
                panic!("the job hangs: {}", self.text());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let text = self.text();
        let _ = std::fs::remove_dir_all(&self.folder);
        Ended { succeeded: status.success(), text }
    }

    fn text(&self) -> String {
        let bytes = std::fs::read(self.folder.join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Runs a job to its end.
fn run(case: &str, variables: &[(&str, &str)]) -> Ended {
    Job::start(case, variables).wait()
}

/// Each rank's result of a job that ends well.
#[track_caller]
fn results(case: &str) -> Vec<String> {
    let Ended { succeeded, text } = run(case, &[]);
    assert!(succeeded, "{text}");
    let of = |rank: usize| {
        let start = format!("rank {rank} has ");
        let line = text.lines().find_map(|line| line.split_once(&start));
        line.unwrap_or_else(|| panic!("rank {rank} has no result: {text}")).1.to_string()
    };
    (0..4).map(of).collect()
}

#[test]
fn the_example_runs() {
    if is_installed() {
        results("example");
    }
}

/// Fifty steps of training, sharded as in FSDP and Megatron: the same bits as in one process, and the numbers of one
/// device.
#[test]
fn training_has_the_bits_of_one_process() {
    if !is_installed() {
        return;
    }
    let found = results("train");
    let here = train::on_mesh().expect("it runs");
    assert_eq!(found, vec![train::text(&here); 4]);
    let one = train::on_one_device().expect("it runs");
    let worst = here.iter().zip(&one).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
}

#[test]
fn self_checks_reads_and_metrics_span_all_processes() {
    if is_installed() {
        results("whole");
    }
}

#[test]
fn devices_take_their_own_steps() {
    if is_installed() {
        results("apart");
    }
}

#[test]
fn bodies_leave_axes_to_the_compiler() {
    if is_installed() {
        results("partial");
    }
}

/// A process that differs, and what every process of its group says about it: one of the texts between `or`s.
#[track_caller]
fn fault(case: &str, expected: &str) {
    if !is_installed() {
        return;
    }
    let begun = Instant::now();
    let Ended { succeeded, text } = run(case, &[]);
    println!("{case}: {:?}", begun.elapsed());
    assert!(!succeeded, "{text}");
    // All but the odd one are in its group.
    for rank in [0, 1, 3] {
        let by = format!("on rank {rank}: rank 2 ");
        let line = text.lines().find(|line| line.contains(&by));
        let line = line.unwrap_or_else(|| panic!("rank {rank} does not name rank 2: {text}"));
        assert!(expected.split(" or ").any(|expected| line.contains(expected)), "{line}");
        assert!(line.contains("ranks.rs:"), "the line of the exchange: {line}");
    }
    assert!(!text.contains("has a number"), "{text}");
}

#[test]
fn skipped() {
    fault("skipped", "is at an exchange of another step");
}

#[test]
fn another_kind() {
    fault("kind", "is at an exchange of another kind: all_gather");
}

#[test]
fn other_axes() {
    // Whoever comes to its deadline first tells the others where it is.
    fault("axes", "has not come within 1.5s or is at an exchange of another axes");
}

#[test]
fn another_shape() {
    fault("shape", "is at an exchange of another shape");
}

#[test]
fn another_layout() {
    fault("layout", "is at an exchange of another layout");
}

#[test]
fn finished_early() {
    fault("finished", "has finished");
}

#[test]
fn panicked() {
    fault("panicked", "panicked");
}

#[test]
fn silent() {
    fault("silent", "has not come within 1.5s");
}

#[test]
fn other_programs_are_refused_before_the_first_step() {
    if !is_installed() {
        return;
    }
    for (case, expected) in [("program", "rank 2 has another program"), ("mesh", "rank 2 has another mesh")] {
        let Ended { succeeded, text } = run(case, &[]);
        assert!(!succeeded && text.contains(expected), "{text}");
    }
}

#[test]
fn joining_comes_first() {
    if is_installed() {
        let Ended { succeeded, text } = run("late", &[]);
        assert!(!succeeded && text.contains("the first use: an array at ") && text.contains("ranks.rs"), "{text}");
    }
}

/// The first process writes compiled kernels, and the others read them.
#[test]
fn one_process_writes_the_cache() {
    if !is_installed() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("pallas-mpi-cache-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let Ended { succeeded, text } = run("cache", &[("PALLAS_CACHE_DIR", folder.to_str().expect("a plain name"))]);
    assert!(succeeded, "{text}");
    let _ = std::fs::remove_dir_all(folder);
}

/// A process is killed at any step: all others end, and the lost one is named, by us or by `mpirun`.
#[cfg(unix)]
#[test]
fn killed() {
    if !is_installed() {
        return;
    }
    let runs = std::env::var("PALLAS_MPI_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let mut longest = Duration::ZERO;
    for run in 0..runs {
        let job = Job::start("forever", &[]);
        let rank = run % 4;
        // The process says its number once it exchanges.
        let file = job.folder.join(format!("pid-{rank}"));
        let begun = Instant::now();
        let pid = loop {
            assert!(begun.elapsed() < HANGS, "{}", job.text());
            match std::fs::read_to_string(&file) {
                Ok(pid) if pid.ends_with('\n') => break pid.trim().to_string(),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        std::thread::sleep(Duration::from_millis((run as u64 * 37) % 200));
        let killed = Instant::now();
        assert!(Command::new("kill").args(["-9", &pid]).status().is_ok_and(|status| status.success()));
        let pids: Vec<String> = (0..4)
            .filter_map(|rank| std::fs::read_to_string(job.folder.join(format!("pid-{rank}"))).ok())
            .map(|pid| pid.trim().to_string())
            .collect();
        let Ended { succeeded, text } = job.wait();
        assert!(!succeeded && text.contains(&format!("rank {rank}")), "rank {rank} was killed: {text}");
        // Without the file system of processes that has to be believed.
        for pid in pids {
            while std::path::Path::new("/proc").join(&pid).exists() {
                assert!(killed.elapsed() < HANGS, "process {pid} goes on: {text}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        longest = longest.max(killed.elapsed());
    }
    println!("{runs} of {runs} jobs ended, the last one {longest:?} after the kill");
}
