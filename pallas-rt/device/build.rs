//! Gives every state of these sources a name of its own, so that what an older state left on disk is never used.
use std::path::{Path, PathBuf};

fn main() {
    let mut files = vec![];
    // The language and its executions lie beside this folder in the repository; published, they are crates with
    // versions.
    for folder in ["src", "../ir/src", "../codegen/src"] {
        if Path::new(folder).is_dir() {
            println!("cargo::rerun-if-changed={folder}");
            collect_files(Path::new(folder), &mut files);
        }
    }
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut add =
        |bytes: &[u8]| bytes.iter().for_each(|&b| hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    for file in files {
        add(file.to_string_lossy().as_bytes());
        add(&std::fs::read(&file).expect("a source file is readable"));
    }
    println!("cargo::rustc-env=PALLAS_SOURCES={hash:016x}");
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry of it").path();
        if path.is_dir() { collect_files(&path, files) } else { files.push(path) }
    }
}
