//! `PALLAS_DUMP` shows what each stage of the compiler made, once for all that a lowered function is asked for.
use crate::support::again;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
use pallas_rt::{Arg, jit, lower};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The numbers, stages and texts of a folder, in order.
fn dumped(folder: &Path) -> Vec<(String, String, String)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
    files.sort();
    let of = |file: &PathBuf| {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let [number, _, stage, "txt"] = name.split('.').collect::<Vec<_>>()[..] else { panic!("{name}") };
        (number.into(), stage.into(), std::fs::read_to_string(file).expect("a text"))
    };
    files.iter().map(of).collect()
}

/// The stages of a function but those that rewrite a graph, of which only those that change it are shown.
fn main_stages(all: &[(String, String, String)]) -> Vec<&str> {
    const ALL: &str =
        "traced view import propagate localize unite clusters schedule donate memory readers rematerialize plan";
    all.iter().map(|(_, stage, _)| &stage[..]).filter(|stage| ALL.split(' ').any(|own| own == *stage)).collect()
}

#[test]
fn each_stage_runs_once_and_is_shown() {
    const FOLDER: &str = "PALLAS_DUMP";
    let Some(folder) = std::env::var_os(FOLDER) else {
        let folder = std::env::temp_dir().join(format!("pallas-dumps-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        again("dumps::each_stage_runs_once_and_is_shown", &[(FOLDER, &folder.to_string_lossy())]);
        std::fs::remove_dir_all(&folder).expect("it was written");
        return;
    };
    let mesh = Arc::new(Mesh::new(&[("x", 2)]).expect("a mesh"));
    let x = Array::full(&[4, 8], 1.0f32).expect("it fits");
    let rows = device_put(&x, &NamedSharding::new(&mesh, P("x"))).expect("it is sharded");
    let lowered = lower(|x: &Array| (x * 2.0).sum(0))(&rows).expect("it is traced");
    let (plan, memory) = (lowered.to_plan(), lowered.memory_analysis());
    assert_eq!(memory.output_bytes, 32);
    let f = lowered.compile().expect("it compiles");
    assert_eq!(f(&rows).expect("it runs").to_vec::<f32>().expect("it is read"), [8.0; 8]);
    let all = dumped(Path::new(&folder));
    assert!(all.iter().all(|(number, ..)| number == "0000"), "one compilation: {:?}", main_stages(&all));
    let sharded = ["traced", "view", "import", "propagate", "localize", "clusters", "schedule", "memory", "plan"];
    assert_eq!(main_stages(&all), sharded);
    let text = |stage: &str| &all.iter().find(|(_, own, _)| own == stage).expect("it is shown").2;
    let shown =
        |stage: &str, part: &str| assert!(text(stage).contains(part), "{stage} without {part}:\n{}", text(stage));
    shown("view", "reduce");
    shown("view", " {i=4, j=8} reduction={i}");
    shown("import", "%0: f32[4,8] = parameter 0 [{\"x\"}, {}]");
    shown("import", "unknown");
    shown("propagate", "%0: f32[4,8] = parameter 0 [{\"x\"}, {}]");
    shown("localize", "all_reduce");
    shown("clusters", "a step of its own");
    shown("schedule", "= all_reduce");
    shown("memory", "result 0 in result0: f32[8]");
    assert_eq!(*text("plan"), plan);
    // The next one has the next number, and no mesh.
    jit(|x: &Array| x.exp()).donate_argnums(Arg::<0>)(x).expect("it runs");
    let all: Vec<_> = dumped(Path::new(&folder)).into_iter().filter(|(number, ..)| number == "0001").collect();
    assert_eq!(main_stages(&all), ["traced", "clusters", "schedule", "donate", "memory", "plan"]);
    let donate = &all.iter().find(|(_, stage, _)| stage == "donate").expect("it is shown").2;
    assert!(donate.contains("takes over param0"), "{donate}");
}
