//! The disk cache, from outside: processes of this very binary that share a folder.
use crate::support::{array, doubles, values};
use pallas_rt::prelude::*;
use pallas_rt::{DiskCache, counters};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A folder of entries that goes with its test.
struct Folder(PathBuf);
impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("pallas-disk-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }
    fn entries(&self) -> Vec<PathBuf> {
        let entry = |file: std::fs::DirEntry| (file.file_name() != "secret").then(|| file.path());
        std::fs::read_dir(&self.0).map_or_else(|_| vec![], |files| files.flatten().filter_map(entry).collect())
    }
    /// Writes an entry as a process of the same user can: with the tag that the folder's secret gives its name and
    /// contents.
    #[cfg(feature = "gpu")]
    fn forge(&self, path: &Path, body: &str) {
        use sha2::{Digest, Sha256};
        let secret = std::fs::read(self.0.join("secret")).expect("the folder is ours");
        let name = path.file_name().expect("an entry's").to_string_lossy();
        let key = |pad: u8| {
            let mut block = [pad; 64];
            block.iter_mut().zip(&secret).for_each(|(b, s)| *b ^= s);
            Sha256::new().chain_update(block)
        };
        let inner = key(0x36).chain_update(format!("{name}\n{body}")).finalize();
        let tag: String = key(0x5c).chain_update(inner).finalize().iter().map(|b| format!("{b:02x}")).collect();
        std::fs::write(path, format!("{tag}\n{body}")).expect("the folder is ours");
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process that runs an ignored test of this file.
fn child_process(test: &str, folder: &Path, what: String) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args([&format!("disk::{test}"), "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("PALLAS_CACHE_DIR", folder).env("PALLAS_DISK_TEST", what);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
/// A process that calls some kernels on a device, with what it shall multiply by.
fn process(folder: &Path, device: &str, factor: &str) -> Command {
    child_process("child", folder, format!("{device} {factor}"))
}
/// A process that compiles so many kernels on the CPU.
fn many(folder: &Path, kernels: usize) -> Command {
    child_process("compile_many", folder, kernels.to_string())
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
    let mut outputs = vec![times(q.reshape(&[40 * 32]), factor.parse().expect("a number"))];
    outputs.push(times(input(&[100]), 0.25));
    outputs.push(pallas_kernels::matmul::matmul(&input(&[1, 30, 20]), &input(&[1, 20, 10])));
    outputs.push(pallas_kernels::flash_attention::flash_attention(&q, &kv, &kv, &Default::default()));
    let outputs: Vec<Array> = outputs.into_iter().collect::<Result<_>>().expect("they run");
    let sum: f64 = outputs.iter().flat_map(doubles).enumerate().map(|(i, x)| x * (1.0 + i as f64)).sum();
    let elsewhere = DiskCache::At { folder: "elsewhere".into(), limit: 1 };
    let refused = pallas_rt::set_disk_cache(elsewhere).expect_err("it is settled").to_string();
    assert!(refused.contains("an array at ") && refused.contains("support.rs"), "{refused}");
    print_counters(sum);
    #[cfg(feature = "gpu")]
    {
        let gpu = client.gpu_counters();
        print!("pipelines={} binaries={}", gpu.pipelines_compiled, gpu.binaries_reused);
    }
    println!();
}

fn print_counters(sum: f64) {
    let c = counters();
    print!("counted traces={} passes={} shaders={} hits={} ", c.traces, c.passes, c.shaders, c.disk_hits);
    print!("writes={} removed={} sum={sum:e} ", c.disk_writes, c.disk_removed);
}

/// What the processes do that others kill or disturb.
#[test]
#[ignore = "only where another test starts it"]
fn compile_many() {
    let Some(kernels) = std::env::var("PALLAS_DISK_TEST").ok().and_then(|n| n.parse().ok()) else { return };
    let x = Client::cpu().full(&[20], 1.0f32).expect("it fits");
    let sum = |i: usize| doubles(&times(&x, i as f32).expect("it runs")).into_iter().sum::<f64>();
    print_counters((0..kernels).map(sum).sum());
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
fn killed_writers_leave_whole_entries() {
    let (folder, kernels) = (Folder::new("killed"), 40);
    let whole = || folder.entries().iter().filter(|path| !path.to_string_lossy().contains("unfinished-")).count();
    let (wait, mut among) = (Instant::now(), 0);
    // Each dies among its writes, a little later than the one before; the next finds what is there. On a busy machine
    // the later ones may be done before they are killed.
    for entries in [1, 6, 12, 18, 24] {
        let mut killed = many(&folder.0, kernels).spawn().expect("it starts");
        while whole() < entries && wait.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        killed.kill().expect("it is ours");
        killed.wait().expect("it is ours");
        among += usize::from((1..kernels).contains(&whole()));
    }
    assert!(among > 0, "none was killed while it wrote");
    let whole = whole();
    let next = counted(many(&folder.0, kernels).output().expect("it starts"));
    assert_eq!((next["hits"], next["removed"]), (whole as f64, 0.0), "none is torn: {next:?}");
    assert_eq!(next["sum"], 20.0 * (0..kernels).sum::<usize>() as f64);
    assert_eq!(counted(many(&folder.0, kernels).output().expect("it starts"))["passes"], 0.0);
}

#[test]
fn writers_at_once_leave_whole_entries() {
    let (folder, kernels) = (Folder::new("writers"), 40);
    let both: Vec<_> = (0..2).map(|_| many(&folder.0, kernels).spawn().expect("it starts")).collect();
    let both: Vec<_> = both.into_iter().map(|p| counted(p.wait_with_output().expect("it ends"))).collect();
    for one in &both {
        assert_eq!((one["sum"], one["removed"]), (20.0 * (0..kernels).sum::<usize>() as f64, 0.0), "{both:?}");
    }
    assert_eq!(folder.entries().len(), kernels, "nothing is left over");
    let next = counted(many(&folder.0, kernels).output().expect("it starts"));
    assert_eq!((next["hits"], next["passes"], next["removed"]), (kernels as f64, 0.0, 0.0), "{next:?}");
}

#[test]
fn an_entry_is_made_again_wherever_it_is_cut_or_changed() {
    let folder = Folder::new("cut");
    let first = counted(many(&folder.0, 1).output().expect("it starts"));
    let [entry] = &folder.entries()[..] else { panic!("one entry") };
    let whole = std::fs::read(entry).expect("an entry");
    let (n, body) = (whole.len(), whole.iter().position(|&b| b == b'\n').expect("a first line") + 1);
    // In the checksum, at the line's end, in the body, at its end; the store's own test tries every byte.
    for at in [0, 10, body - 1, body, body + 1, (body + n) / 2, n - 1] {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x20;
        for spoilt in [&whole[..at], &flipped[..], &[&whole[..], b" "].concat()] {
            std::fs::write(entry, spoilt).expect("the folder is ours");
            let next = counted(many(&folder.0, 1).output().expect("it starts"));
            assert_eq!((next["hits"], next["removed"], next["writes"]), (0.0, 1.0, 1.0), "byte {at} of {n}: {next:?}");
            assert_eq!((next["sum"], next["passes"]), (first["sum"], first["passes"]), "byte {at} of {n}");
            assert_eq!(std::fs::read(entry).ok().as_ref(), Some(&whole), "made again");
        }
    }
}

#[test]
fn an_entry_that_somebody_changed_is_made_again() {
    use sha2::{Digest, Sha256};
    let folder = Folder::new("changed");
    let first = counted(many(&folder.0, 2).output().expect("it starts"));
    for (changed, path) in folder.entries().into_iter().enumerate() {
        let entry = std::fs::read_to_string(&path).expect("an entry");
        let (tag, body) = entry.split_once('\n').expect("a first line");
        // Changes the kernel so that it multiplies by 3 instead of 1, in a hundred thousand elements.
        let other = body.replace("const 1.0", "const 3.0").replace("0:8", "0:100000");
        let sum: String = Sha256::digest(&other).iter().map(|b| format!("{b:02x}")).collect();
        let first_line = if changed == 0 { &sum } else { tag };
        std::fs::write(&path, format!("{first_line}\n{other}")).expect("the folder is ours");
    }
    let next = counted(many(&folder.0, 2).output().expect("it starts"));
    assert_eq!((next["sum"], next["hits"], next["removed"]), (first["sum"], 0.0, 2.0), "{next:?}");
}

#[cfg(unix)]
#[test]
fn a_disk_that_takes_nothing_is_no_reason_to_fail() {
    use std::os::unix::fs::PermissionsExt;
    let works = |command: &mut Command, what: &str| {
        let found = counted(command.output().expect("it starts"));
        assert_eq!((found["sum"], found["writes"]), (60.0, 0.0), "{what}: {found:?}");
        found
    };
    // No room, as by a quota: each write ends early.
    let full = Folder::new("full");
    std::fs::create_dir_all(&full.0).expect("the temporary folder is there");
    let plain = many(&full.0, 3);
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]).arg(plain.get_program());
    limited.args(plain.get_args()).envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    works(&mut limited, "a full disk");
    assert_eq!(full.entries().len(), 0, "nothing half is left");
    // A limit that no entry fits in.
    works(many(&full.0, 3).env("PALLAS_CACHE_MIB", "0"), "no room by the limit");
    // Not a folder; a folder that nobody may write in, whatever their rights.
    let file = Folder::new("file");
    std::fs::write(&file.0, b"a file").expect("the temporary folder is there");
    works(&mut many(&file.0, 3), "a file");
    works(&mut many(&file.0.join("inside"), 3), "inside of a file");
    works(&mut many(Path::new("/proc/pallas"), 3), "a folder of the kernel's");
    std::fs::remove_file(&file.0).expect("ours");
    // Readable entries in a folder that is not writable serve.
    let shared = Folder::new("shared");
    let first = counted(many(&shared.0, 3).output().expect("it starts"));
    assert_eq!((first["sum"], first["writes"]), (60.0, 3.0), "{first:?}");
    let mode = |bits| std::fs::set_permissions(&shared.0, std::fs::Permissions::from_mode(bits)).expect("ours");
    mode(0o555);
    let found = works(&mut many(&shared.0, 3), "a folder to read");
    mode(0o755);
    assert_eq!((found["passes"], found["hits"]), (0.0, 3.0), "{found:?}");
    // A folder in an entry's place.
    let entry = shared.entries().remove(0);
    std::fs::remove_file(&entry).expect("ours");
    std::fs::create_dir(&entry).expect("ours");
    let found = works(&mut many(&shared.0, 3), "a folder in an entry's place");
    assert_eq!((found["hits"], shared.entries().len()), (2.0, 3), "{found:?}");
}

#[test]
fn the_folder_is_kept_below_its_limit() {
    let folder = Folder::new("limit");
    let mib = many(&folder.0, 2).env("PALLAS_CACHE_MIB", "1").output().expect("it starts");
    let entry = counted(mib)["writes"];
    assert_eq!(entry, 2.0);
    // Older entries of other versions, and a file of the user's, more than the limit together.
    let old = |i: usize| folder.0.join(format!("lowered-{:064x}", i));
    for i in 0..20 {
        std::fs::write(old(i), vec![0; 100 << 10]).expect("the folder is ours");
        let file = std::fs::File::options().append(true).open(old(i)).expect("it is there");
        let hours = Duration::from_secs(3600 * (100 - i as u64));
        file.set_modified(std::time::SystemTime::now() - hours).expect("times can be set");
    }
    let theirs = folder.0.join("thesis.pdf");
    std::fs::write(&theirs, vec![0; 2 << 20]).expect("the folder is ours");
    let next = counted(many(&folder.0, 3).env("PALLAS_CACHE_MIB", "1").output().expect("it starts"));
    assert_eq!((next["hits"], next["writes"]), (2.0, 1.0), "{next:?}");
    let left: Vec<usize> = (0..20).filter(|&i| old(i).exists()).collect();
    assert_eq!(left, (20 - left.len()..20).collect::<Vec<usize>>(), "the oldest went");
    assert_eq!(next["removed"], 20.0 - left.len() as f64);
    assert!((5..=7).contains(&left.len()) && theirs.exists(), "{left:?}");
    assert_eq!(counted(many(&folder.0, 3).output().expect("it starts"))["hits"], 3.0, "what is new is there");
}

/// A call whose shader was spoilt, and one that goes on.
#[cfg(feature = "gpu")]
#[test]
#[ignore = "only where another test starts it"]
fn refused_by_the_driver() {
    let Ok(client) = Client::gpu(0) else { return };
    let x = client.full(&[20], 1.0f32).expect("it fits");
    let mut said = times(&x, 0.5).map_or_else(|e| format!("{} {e}", e.code()), |_| "nothing".into());
    said.retain(|c| c != '\n');
    assert_eq!(times(&x, 0.25).and_then(|y| y.to_vec::<f32>()), Ok(vec![0.25; 20]), "the client goes on");
    println!("refused {said}");
}

#[cfg(feature = "gpu")]
#[test]
fn a_shader_that_the_driver_refuses_names_kernel_and_line() {
    if crate::support::gpu().is_none() {
        return;
    }
    let folder = Folder::new("refused");
    let said = || {
        let output = child_process("refused_by_the_driver", &folder.0, String::new()).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        text.lines().find_map(|line| line.split_once("refused ")).expect("it says something").1.to_string()
    };
    assert_eq!(said(), "nothing");
    // What the driver takes no shader with, in the one that multiplies by a half.
    let mut spoilt = 0;
    for path in folder.entries() {
        let entry = std::fs::read_to_string(&path).unwrap_or_default();
        let Some((_, body)) = entry.split_once('\n') else { continue };
        if path.to_string_lossy().contains("shader-") && body.contains("0.5") {
            let at = body.find("// line ").expect("a shader names lines");
            let end = at + body[at..].find("\\n").expect("a line's end") + 2;
            let body = format!("{}let wrong: f32 = 1u;\\n{}", &body[..end], &body[end..]);
            folder.forge(&path, &body);
            spoilt += 1;
        }
    }
    assert_eq!(spoilt, 1);
    let said = said();
    for words in ["shader ", "kernel `times`", "tests/product/disk.rs:", "f32", "help: "] {
        assert!(said.contains(words), "`{words}` is not in: {said}");
    }
}

#[test]
fn the_environment_is_read_once_and_understood() {
    let mut wrong = process(Path::new("off"), "cpu", "0.5");
    let output = wrong.env("PALLAS_CACHE_DIR", "unused").env("PALLAS_CACHE_MIB", "much").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("PALLAS_CACHE_MIB=much is not understood"), "{text}");
}
