//! The disk cache, from outside: processes of this very binary that share a folder.
use crate::support::{array, doubles, values};
use pallas_rt::prelude::*;
use pallas_rt::{DiskCache, counters};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A folder of entries that goes with its test.
struct Folder(PathBuf);
impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("pallas-disk-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }
    fn entries(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).map_or_else(|_| vec![], |files| files.flatten().map(|f| f.path()).collect())
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that calls some kernels on a device, with what it shall multiply by.
fn process(folder: &Path, device: &str, factor: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["disk::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("PALLAS_CACHE_DIR", folder).env("PALLAS_DISK_TEST", format!("{device} {factor}"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// What a process counted, and the sum of its results.
fn counted(output: std::process::Output) -> BTreeMap<String, f64> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{error}");
    let line = text.lines().find_map(|line| line.split_once("counted ")).expect("it says what it counted").1;
    let pair = |word: &str| word.split_once('=').map(|(name, n)| (name.to_string(), n.parse().expect("a number")));
    line.split_whitespace().map(|word| pair(word).expect("name=number")).collect()
}
fn run(folder: &Path, device: &str) -> BTreeMap<String, f64> {
    counted(process(folder, device, "0.5").output().expect("it starts"))
}

#[kernel(grid = (cdiv(N, 8)))]
fn times(
    #[block([N] => [8], |i| (i,))] x: In<f32>,
    #[block([N] => [8], |i| (i,))] out: Out<f32>,
    #[fixed] factor: f32,
) {
    out.store(x.load() * factor);
}

/// What the processes do.
#[test]
#[ignore = "only where another test starts it"]
fn child() {
    let Ok(wanted) = std::env::var("PALLAS_DISK_TEST") else { return };
    let (device, factor) = wanted.split_once(' ').expect("a device and a factor");
    let client = if device == "gpu" { Client::gpu(0).expect("asked for") } else { Client::cpu() };
    let input = |shape: &[usize]| array(&client, DType::F32, shape, &values(shape.iter().product(), 3));
    let (q, kv) = (input(&[1, 2, 40, 16]), input(&[1, 1, 50, 16]));
    let mut outputs = vec![times(q.reshape(&[40 * 32]).expect("as many"), factor.parse().expect("a number"))];
    outputs.push(times(input(&[100]), 0.25));
    outputs.push(pallas_kernels::matmul::matmul(&input(&[1, 30, 20]), &input(&[1, 20, 10])));
    outputs.push(pallas_kernels::flash_attention::flash_attention(&q, &kv, &kv, &Default::default()));
    let outputs: Vec<Array> = outputs.into_iter().collect::<Result<_>>().expect("they run");
    let sum: f64 = outputs.iter().flat_map(doubles).enumerate().map(|(i, x)| x * (1.0 + i as f64)).sum();
    let elsewhere = DiskCache::At { folder: "elsewhere".into(), limit: 1 };
    let refused = pallas_rt::set_disk_cache(elsewhere).expect_err("it is settled").to_string();
    assert!(refused.contains("kernel `times`") && refused.contains("disk.rs"), "{refused}");
    let c = counters();
    print!("counted traces={} passes={} shaders={} hits={} ", c.traces, c.passes, c.shaders, c.disk_hits);
    print!("writes={} removed={} sum={sum:e} ", c.disk_writes, c.disk_removed);
    #[cfg(feature = "gpu")]
    {
        let gpu = client.gpu_counters();
        print!("pipelines={} binaries={}", gpu.pipelines_compiled, gpu.binaries_reused);
    }
    println!();
}

/// The devices there are.
fn devices() -> Vec<&'static str> {
    let mut all = vec!["cpu"];
    all.extend(crate::support::gpu().map(|_| "gpu"));
    all
}

/// As after a first start: traced, and nothing else.
fn assert_warm(found: &BTreeMap<String, f64>, first: &BTreeMap<String, f64>) {
    assert_eq!((found["passes"], found["shaders"], found["writes"]), (0.0, 0.0, 0.0), "{found:?}");
    assert_eq!((found["traces"], found["sum"]), (first["traces"], first["sum"]), "{found:?}");
    assert!(found["hits"] > 0.0, "{found:?}");
}

#[test]
fn a_second_start_runs_no_pass_and_emits_no_shader() {
    for device in devices() {
        let folder = Folder::new(&format!("second-{device}"));
        let without = run(Path::new("off"), device);
        assert_eq!((without["hits"], without["writes"]), (0.0, 0.0));
        let first = run(&folder.0, device);
        assert_eq!(first["sum"], without["sum"], "the same results");
        assert!(first["passes"] > 0.0 && first["writes"] > 0.0, "{first:?}");
        assert_eq!(first["shaders"] > 0.0, device == "gpu", "{first:?}");
        let second = run(&folder.0, device);
        assert_warm(&second, &first);
        if device == "gpu" && folder.entries().iter().any(|path| path.to_string_lossy().contains("binary-")) {
            assert_eq!(second["binaries"], second["pipelines"], "{second:?}");
        }
        // Another constant is another kernel.
        let other = counted(process(&folder.0, device, "0.75").output().expect("it starts"));
        assert!(other["sum"] != first["sum"] && other["passes"] > 0.0 && other["hits"] > 0.0, "{other:?}");
    }
}

#[test]
fn torn_entries_are_made_again() {
    // A GPU has every kind of entry.
    if let Some(device) = devices().pop() {
        let folder = Folder::new("torn");
        let first = run(&folder.0, device);
        for (i, path) in folder.entries().into_iter().enumerate() {
            let bytes = std::fs::read(&path).expect("an entry");
            let torn = if i % 3 == 0 { vec![] } else { bytes[..bytes.len() / (i % 3 + 1)].to_vec() };
            std::fs::write(&path, torn).expect("the folder is ours");
        }
        let second = run(&folder.0, device);
        assert_eq!((second["sum"], second["hits"]), (first["sum"], 0.0), "{second:?}");
        assert_eq!(second["passes"], first["passes"], "{second:?}");
        assert!(second["removed"] > 0.0, "{second:?}");
        assert_warm(&run(&folder.0, device), &first);
    }
}

#[test]
fn writers_at_once_and_killed_ones_leave_whole_entries() {
    let folder = Folder::new("writers");
    for delay in [1, 3, 6, 10, 15, 25] {
        let mut killed = process(&folder.0, "cpu", "0.5").spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(delay));
        killed.kill().expect("it is ours");
        killed.wait().expect("it is ours");
    }
    let both: Vec<_> = (0..2).map(|_| process(&folder.0, "cpu", "0.5").spawn().expect("it starts")).collect();
    let both: Vec<_> = both.into_iter().map(|p| counted(p.wait_with_output().expect("it ends"))).collect();
    assert_eq!(both[0]["sum"], both[1]["sum"]);
    assert_eq!(both[0]["sum"], run(Path::new("off"), "cpu")["sum"]);
    assert_warm(&run(&folder.0, "cpu"), &both[0]);
}

#[test]
fn the_environment_is_read_once_and_understood() {
    let mut wrong = process(Path::new("off"), "cpu", "0.5");
    let output = wrong.env("PALLAS_CACHE_DIR", "unused").env("PALLAS_CACHE_MIB", "much").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("PALLAS_CACHE_MIB=much is not understood"), "{text}");
}
