//! Asks the Shardy of `PALLAS_JAX`, a Python with JAX.
use std::io::Write;
use std::process::{Command, Stdio};

/// The facts that a pass found in a module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Module {
    /// By parameter and by result, its sharding.
    pub(crate) params: Vec<String>,
    pub(crate) results: Vec<String>,
    pub(crate) operations: Vec<Operation>,
    /// Why Shardy does not take it.
    pub(crate) failure: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// The number of its equation.
    pub(crate) label: Option<usize>,
    pub(crate) name: String,
    /// Number of axes of its first result; -1 without one.
    pub(crate) rank: i64,
    /// `name=value` for each attribute that says something about shardings.
    pub(crate) attributes: Vec<String>,
}

impl Operation {
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find_map(|a| a.strip_prefix(name)?.strip_prefix('='))
    }
}

/// The Python with JAX; a test without one is left out.
pub(crate) fn python() -> Option<String> {
    let python = std::env::var("PALLAS_JAX").ok();
    assert!(
        python.is_some() || std::env::var_os("PALLAS_REQUIRE_JAX").is_none(),
        "PALLAS_JAX is to be a Python with jax==0.12.0.1"
    );
    python
}

/// Runs a pass on modules, in two processes.
pub(crate) fn ask(python: &str, mode: &str, modules: &[String]) -> Vec<Module> {
    let halves = modules.split_at(modules.len() / 2);
    let run = |modules: &[String]| -> Vec<Module> {
        if modules.is_empty() {
            return vec![];
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/shardy/shardy.py");
        let mut child = Command::new(python)
            .args([script, mode])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut input = child.stdin.take().expect("it is piped");
        let text = modules.join("// -----\n");
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = child.wait_with_output().expect("Python ends");
        let _ = writer.join();
        let mut found = parse(&String::from_utf8_lossy(&output.stdout));
        // A module that ends the process ends all behind it.
        found.resize(modules.len(), Module { failure: Some("the process ended".into()), ..Module::default() });
        found
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(halves.0));
        let second = run(halves.1);
        [first.join().expect("it ends"), second].concat()
    })
}

fn parse(text: &str) -> Vec<Module> {
    let mut all: Vec<Module> = vec![];
    for line in text.lines() {
        let (head, rest) = line.split_once(' ').unwrap_or((line, ""));
        if head == "MODULE" {
            all.push(Module::default());
            continue;
        }
        let Some(module) = all.last_mut() else { continue };
        let behind = || rest.split_once(' ').map_or(String::new(), |(_, text)| text.to_string());
        match head {
            "ARG" => module.params.push(behind()),
            "RESULT" => module.results.push(behind()),
            "FAIL" => module.failure = Some(rest.into()),
            "OP" => {
                let (left, attributes) = rest.split_once(" | ").expect("a line of an operation");
                let mut left = left.split(' ');
                let mut next = || left.next().expect("a line of an operation");
                module.operations.push(Operation {
                    label: next().parse().ok(),
                    name: next().into(),
                    rank: next().parse().expect("a number"),
                    attributes: attributes.split("; ").map(String::from).collect(),
                });
            }
            _ => {}
        }
    }
    all
}
