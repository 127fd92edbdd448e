//! Meshes, specs and arrays on meshes, compared with JAX if `PALLAS_JAX` is a Python with it.
mod pictures;
mod specs;
mod topology;

use super::{DimSpec, Mesh, NamedSharding, P, dim};
use serde_json::{Value, json};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

#[allow(dead_code, reason = "the tests against Shardy use all of it")]
#[path = "../../../graph/tests/shardy/draw.rs"]
pub(crate) mod draw;
use draw::Dice;

fn mesh(axes: &[(&str, usize)]) -> Arc<Mesh> {
    Arc::new(Mesh::new(axes).expect("a mesh"))
}

/// An array on a mesh, and the mistake in it.
#[derive(Debug)]
struct Case {
    mesh: Vec<(String, usize)>,
    devices: Vec<usize>,
    shape: Vec<usize>,
    /// By entry, the names of axes.
    spec: Vec<Option<Vec<String>>>,
    /// `""` for none.
    fault: &'static str,
}

impl Case {
    fn mesh(&self) -> Arc<Mesh> {
        let axes: Vec<(&str, usize)> = self.mesh.iter().map(|(name, size)| (&name[..], *size)).collect();
        Arc::new(Mesh::with_devices(&axes, self.devices.clone()).expect("a mesh"))
    }

    fn sharding(&self) -> NamedSharding {
        let entry = |entry: &Option<Vec<String>>| match entry {
            Some(axes) => dim(axes.iter().map(|axis| &axis[..]).collect::<Vec<&str>>()),
            None => dim(None),
        };
        NamedSharding::new(&self.mesh(), P(self.spec.iter().map(entry).collect::<Vec<DimSpec>>()))
    }

    /// A question for `sharding.py`.
    fn json(&self, ask: &str) -> Value {
        let Case { mesh, devices, shape, spec, fault } = self;
        json!({"ask": ask, "mesh": mesh, "devices": devices, "shape": shape, "spec": spec, "fault": fault})
    }
}

/// A mesh of up to 16 devices with up to three axes, and a spec that fits an array but for one fault; `None` if this
/// draw cannot have it.
fn drawn(dice: &mut Dice, fault: &'static str) -> Option<Case> {
    let names = ["x", "y", "z"];
    let mesh: Vec<(String, usize)> =
        names[..1 + dice.below(3)].iter().map(|name| (name.to_string(), *dice.pick(&[1, 2, 2, 2, 3]))).collect();
    let count = mesh.iter().map(|(_, size)| size).product::<usize>();
    if count > 16 {
        return None;
    }
    let devices = if dice.chance(50) { (0..count).collect() } else { dice.shuffled(count) };
    let rank = dice.below(4);
    let (mut spec, mut shape) = (vec![], vec![]);
    let mut free = dice.shuffled(mesh.len());
    for _ in 0..rank {
        let taken = free.split_off(free.len() - dice.below(free.len().min(2) + 1));
        let parts: usize = taken.iter().map(|&axis| mesh[axis].1).product();
        shape.push(parts * (1 + dice.below(3)));
        let names: Vec<String> = taken.iter().map(|&axis| mesh[axis].0.clone()).collect();
        spec.push((!names.is_empty()).then_some(names));
    }
    let sharded: Vec<usize> = (0..rank).filter(|&d| spec[d].is_some()).collect();
    match fault {
        "unknown" if rank > 0 => spec[dice.below(rank)] = Some(vec!["other".into()]),
        "twice" if !sharded.is_empty() && rank > 0 => {
            let axis = spec[*dice.pick(&sharded)].as_ref().expect("it is sharded")[0].clone();
            spec[dice.below(rank)].get_or_insert_default().push(axis);
        }
        "rank" => spec.resize(rank + 1 + dice.below(2), None),
        "divides" => {
            let parts = |d: &usize| {
                let axes = spec[*d].as_ref().expect("it is sharded");
                axes.iter()
                    .map(|axis| mesh.iter().find(|(name, _)| name == axis).expect("an axis").1)
                    .product::<usize>()
            };
            let uneven: Vec<usize> = sharded.iter().copied().filter(|d| parts(d) > 1).collect();
            if uneven.is_empty() {
                return None;
            }
            shape[*dice.pick(&uneven)] += 1;
        }
        "" => {}
        _ => return None,
    }
    // A list that ends early is the same spec.
    if fault.is_empty() && dice.chance(30) {
        while spec.last().is_some_and(Option::is_none) {
            spec.pop();
        }
    }
    Some(Case { mesh, devices, shape, spec, fault })
}

/// The Python with JAX; a comparison without one is left out.
fn python() -> Option<String> {
    std::env::var("PALLAS_JAX").ok()
}

/// The answers of JAX to each question.
fn ask(python: &str, questions: impl Iterator<Item = Value>) -> Vec<Value> {
    let questions: Vec<String> = questions.map(|question| question.to_string()).collect();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/sharding/tests/sharding.py");
    let mut child = Command::new(python)
        .arg(script)
        .envs([("FORCE_COLOR", "1"), ("COLORTERM", "truecolor"), ("TERM", "xterm-256color")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut input = child.stdin.take().expect("it is piped");
    let (text, count) = (questions.join("\n"), questions.len());
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let output = child.wait_with_output().expect("Python ends");
    writer.join().expect("it ends").expect("Python reads all of it");
    let text = String::from_utf8(output.stdout).expect("text");
    let answers: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
    assert_eq!(answers.len(), count, "an answer to each question");
    answers
}
