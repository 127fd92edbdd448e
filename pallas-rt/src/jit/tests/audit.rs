//! Audits of functions on meshes.
use super::super::compile::{Compilation, CompilationInput};
use super::super::sharded::DeclaredShardings;
use crate::audit::{Audit, AuditOptions, FindingKind, Severity, ShardingOrigin};
use crate::prelude::*;
use crate::sharding::tests::draw::{self, Config, Dice};
use crate::sharding::{Mesh, NamedSharding, P, ShardingPolicy, device_put};
use crate::transform::Function;
use crate::{BoundedSize, audit, checkpoint_name, jit, lower, mark_sharding, with_sharding_constraint};
use pallas_graph::mesh::{MeshSharding, Sharding, ShardingConstraint};
use pallas_graph::{Graph, StopGradient};
use std::sync::Arc;

#[path = "../../../../examples/audit.rs"]
#[allow(dead_code, unreachable_pub, clippy::duplicate_mod, clippy::print_stdout, reason = "a program of its own")]
mod example;
#[path = "../../../../examples/tensor_parallel.rs"]
#[allow(dead_code, unreachable_pub, clippy::duplicate_mod, clippy::print_stdout, reason = "a program of its own")]
mod tensor_parallel;

fn mesh() -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"))
}

fn ones(shape: &[usize]) -> Array {
    Client::cpu().full(shape, 1.0f32).expect("it fits")
}

/// A program with everything that it declares.
#[derive(Clone)]
struct Declaring {
    graph: Graph,
    declared: DeclaredShardings,
    paths: Vec<String>,
}

impl Declaring {
    fn audit(&self, options: &AuditOptions) -> Audit {
        let input = CompilationInput {
            declared: self.declared.clone(),
            ..CompilationInput::from_graph(self.graph.clone(), &Client::cpu())
        };
        Audit::from_compilation(&Compilation::new(input), &self.paths, "cpu", options).expect("it can be sharded")
    }

    /// The same program with each of its declarations made weaker in each way: an open dimension, an axis less, no
    /// priority, nothing in place of `replicated`.
    fn weakened(&self) -> Vec<(String, Declaring)> {
        let Some(mesh) = self.declared.mesh.clone() else { return vec![] };
        let mut all = vec![];
        for (i, sharding) in self.declared.shardings.iter().enumerate() {
            for (name, weaker) in sharding.iter().flat_map(|s| weaker(s, &mesh)) {
                let mut program = self.clone();
                program.declared.shardings[i] = weaker;
                all.push((format!("{name} of parameter {i}"), program));
            }
        }
        for (k, e) in self.graph.equations.iter().enumerate() {
            let Some(MeshSharding { sharding, .. }) = e.op.sharding_constraint() else { continue };
            for (name, weaker) in weaker(&sharding.normal(&mesh), &mesh) {
                let mut program = self.clone();
                let placed = |sharding| ShardingConstraint(MeshSharding { mesh: mesh.clone(), sharding });
                // The identity, which says nothing.
                program.graph.equations[k].op = weaker.map_or(StopGradient.into(), |sharding| placed(sharding).into());
                all.push((format!("{name} of the constraint at {}", e.loc), program));
            }
        }
        all
    }
}

fn weaker(sharding: &Sharding, mesh: &Mesh) -> Vec<(String, Option<Sharding>)> {
    let mut all: Vec<(String, Option<Sharding>)> = vec![];
    if sharding.is_replicated() {
        all.push(("nothing for replicated".into(), None));
    }
    for dim in 0..sharding.dims.len() {
        let mut with = |name: &str, change: &dyn Fn(&mut Sharding)| {
            let mut weaker = sharding.clone();
            change(&mut weaker);
            if weaker.normal(mesh) != sharding.normal(mesh) {
                all.push((format!("{name} {dim}"), Some(weaker)));
            }
        };
        with("an open dimension", &|s| s.dims[dim].open = true);
        with("an axis less in dimension", &|s| {
            s.dims[dim].axes.pop();
        });
        with("no priority in dimension", &|s| s.dims[dim].priority = None);
    }
    all
}

/// The program of a function, as users call it.
fn declaring<Args: Tree + 'static, F: Function<Args>>(f: F, args: &Args) -> Declaring {
    let lowered = F::call_boxed(&lower(f), args).expect("it is traced");
    let declared = lowered.compilation.input.declared.clone();
    Declaring { graph: lowered.graph().clone(), declared, paths: lowered.arguments.paths.clone() }
}

/// The declarations of a program, taken as a policy, are kept by it; with any weaker declaration they are not.
fn check(name: &str, program: &Declaring, compiles: bool) -> usize {
    let before = AuditOptions::new().before_compilation();
    let policy = program.audit(&before).declared().unwrap_or_else(|e| panic!("{name}: {e}"));
    let options = if compiles { AuditOptions::new() } else { before }.policy(&policy);
    let is_about_policy = |kind| matches!(kind, FindingKind::Unapplied | FindingKind::Unmatched);
    let kept = program.audit(&options);
    assert!(!kept.findings.iter().any(|f| is_about_policy(f.kind)), "{name}\n{policy}\n{kept}");
    let all = program.weakened();
    for (change, weaker) in &all {
        let found = weaker.audit(&options);
        assert!(
            found.check().is_err() && found.findings.iter().any(|f| is_about_policy(f.kind)),
            "{name}: {change}\n{found}"
        );
    }
    all.len()
}

#[test]
fn a_weaker_declaration_fails_the_audit() {
    let mesh = example::mesh();
    let (model, batch) = example::operands(&mesh).expect("a model");
    let args = (model.clone(), batch.clone());
    let mut count = check("evaluate", &declaring(example::evaluate(&mesh), &args), true);
    count += check("train", &declaring(example::train(&mesh), &args), false);
    let [x, w1, w2] = tensor_parallel::operands();
    count += check("tensor_parallel", &declaring(tensor_parallel::sharded(&mesh), &(x, w1, w2)), true);
    assert!(count > 40, "{count} weaker declarations");
    let mut drawn = 0;
    let plain = Config { priorities: true, operations: 8, ..Config::default() };
    for (i, config) in
        [plain, Config { uneven: true, control: true, groups: true, kernels: true, ..plain }].into_iter().enumerate()
    {
        let mut dice = Dice(40 + i as u64);
        for k in 0..40 {
            let program = draw::draw(&mut dice, &config);
            let n = program.params.len();
            let statements = vec![None; n];
            let declared =
                DeclaredShardings { mesh: Some(program.mesh.clone()), shardings: program.params.clone(), statements };
            let paths = (0..n).map(|i| i.to_string()).collect();
            drawn += check(&format!("drawn {i} {k}"), &Declaring { graph: program.graph, declared, paths }, k % 8 == 0);
        }
    }
    assert!(drawn > 300, "{drawn} weaker declarations");
}

fn subjects(audit: &Audit, kind: FindingKind) -> Vec<String> {
    audit.of_kind(kind).into_iter().map(|f| f.subject.clone()).collect()
}

#[test]
fn findings_name_what_is_wrong() {
    let mesh = mesh();
    let put = |shape: &[usize], spec| device_put(&ones(shape), &NamedSharding::new(&mesh, spec)).expect("it is placed");
    let boundary = NamedSharding::new(&mesh, P(("data", "model")));
    let named = boundary.clone();
    let f = move |x: &Array, w: &Array, b: &Array, lost: &Array| {
        let y = x.matmul(w) + b;
        let y = checkpoint_name(&with_sharding_constraint(&y.tanh(), &named), "y");
        // A fold along a dimension that is sharded adds up parts; a sort needs all of it.
        y.sort(1) + lost.sum(..)
    };
    let (x, w) = (put(&[8, 16], P("data")), put(&[16, 8], P((None, "model"))));
    let (b, lost) = (ones(&[8]), ones(&[3]));
    let policy: ShardingPolicy =
        "0 = [{\"data\"}, {}]\ny = [{\"data\"}, {\"model\"}]\nz = []\n1 = [{\"model\"}, {}]".parse().expect("text");
    let found =
        audit(f.clone(), AuditOptions::new().policy(&policy).mesh(&mesh))(&x, &w, &b, &lost).expect("it is traced");
    assert_eq!(subjects(&found, FindingKind::Unapplied), ["1"], "{found}");
    assert_eq!(subjects(&found, FindingKind::Unmatched), ["z"], "{found}");
    assert_eq!(subjects(&found, FindingKind::Undeclared), ["3"], "{found}");
    assert_eq!(subjects(&found, FindingKind::SmallInferred), ["2"], "{found}");
    assert_eq!(subjects(&found, FindingKind::Resharded), ["y"], "{found}");
    let sources: Vec<ShardingOrigin> = found.parameters.iter().map(|p| p.source).collect();
    assert_eq!(
        sources,
        [ShardingOrigin::Explicit, ShardingOrigin::Explicit, ShardingOrigin::Inferred, ShardingOrigin::Silent]
    );
    let line = |i: usize| found.parameters[i].line.clone().unwrap_or_default();
    assert!(line(0).contains("audit.rs:") && line(2).contains("audit.rs:") && line(3).is_empty(), "{found}");
    assert!(found.check().is_err() && found.findings[0].severity == Severity::Error);
    assert_eq!(Audit::from_json(&found.to_json()).expect("what it wrote"), found);
    assert!(Audit::from_json("{}").is_err());
    let text = found.to_string();
    for part in [
        "audit after compilation: mesh data=2 model=4",
        "`1`: the policy intends [{\"model\"}, {}], declared is [{}, {\"model\"}]",
        "nothing said",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // Before compilation declarations are known, divisions are not.
    let before =
        audit(f, AuditOptions::new().policy(&policy).before_compilation())(&x, &w, &b, &lost).expect("it is traced");
    assert!(!before.is_compiled && before.parameters.iter().all(|p| p.found.is_none()), "{before}");
    assert_eq!(subjects(&before, FindingKind::Unapplied), ["1"], "{before}");
}

#[test]
fn meshes_are_compared_with_the_launch_configuration() {
    let x = device_put(&ones(&[8]), &NamedSharding::new(&mesh(), P("data"))).expect("it is placed");
    let against = |launch: Mesh| {
        let options = AuditOptions::new().mesh(&Arc::new(launch));
        let found = audit(|x: &Array| x * 2.0, options)(&x).expect("it is traced");
        subjects(&found, FindingKind::Mesh)
    };
    let axes = [("data", 2), ("model", 4)];
    assert!(against(Mesh::new(&axes).expect("a mesh")).is_empty());
    assert_eq!(against(Mesh::new(&[("data", 4), ("model", 2)]).expect("a mesh")), ["axes"]);
    assert_eq!(against(Mesh::new(&[("rows", 2), ("model", 4)]).expect("a mesh")), ["axes"]);
    assert_eq!(against(Mesh::with_devices(&axes, vec![7, 6, 5, 4, 3, 2, 1, 0]).expect("a mesh")), ["device order"]);
    let options = AuditOptions::new().mesh(&mesh()).policy(ShardingPolicy::new().rule("0", P("data")));
    let found = audit(|x: &Array| x * 2.0, options)(&ones(&[8])).expect("it is traced");
    assert_eq!(
        (subjects(&found, FindingKind::Mesh), subjects(&found, FindingKind::Unapplied)),
        (vec!["mesh".into()], vec!["0".into()])
    );
}

/// A policy that says `replicated` of an array that nobody has marked: propagation divides it.
#[test]
fn arrays_that_are_to_be_replicated_are_not_sharded() {
    let mesh = mesh();
    let x = mark_sharding(&ones(&[8, 8]), &mesh, P("data")).expect("it is placed");
    let options = || AuditOptions::new().policy(ShardingPolicy::new().rule("1", P(())));
    let audited = |y: &Array| audit(|x: &Array, y: &Array| x + y, options())(&x, y).expect("it is traced");
    let found = audited(&ones(&[8, 8]));
    assert_eq!(subjects(&found, FindingKind::ShardedThoughReplicated), ["1"], "{found}");
    let marked = mark_sharding(&ones(&[8, 8]), &mesh, P(())).expect("it is placed");
    let found = audited(&marked);
    found.check().expect("it is marked");
    assert_eq!(found.parameters[1].source, ShardingOrigin::ExplicitlyReplicated);
    let y = jit(|x: &Array, y: &Array| (x + y, y.clone()))(&x, &marked).expect("it runs").1;
    assert_eq!(y.sharding().expect("it is on the mesh").blocks_per_dim(), [1, 1]);
}

/// Of two pins in a row, the exchange between them is that of the first one's value; what brings the value into the
/// first one is none of it.
#[test]
fn exchanges_are_those_of_the_pin_in_front() {
    let mesh = mesh();
    let [rows, columns] = [P(("data", None)), P((None, "model"))].map(|spec| NamedSharding::new(&mesh, spec));
    let f = move |x: &Array| {
        let first = with_sharding_constraint(&x.exp(), &rows);
        with_sharding_constraint(&first, &columns) * 2.0
    };
    let found = audit(f, AuditOptions::new())(&ones(&[8, 8])).expect("it is traced");
    let [first, second] = &found.constraints[..] else { panic!("{found}") };
    assert!(second.reshards.is_empty(), "{second:?}");
    assert!(first.reshards.iter().all(|text| text.starts_with("as [{}, {\"model\"}]")), "{first:?}");
    // What is exchanged on the way into a pin is not exchanged behind it.
    let w = device_put(&ones(&[8, 8]), &NamedSharding::new(&mesh, P((None, "data")))).expect("it is placed");
    let rows = NamedSharding::new(&mesh, P("data"));
    let into = move |w: &Array| with_sharding_constraint(&w.matmul(w), &rows) * 2.0;
    let found = audit(into, AuditOptions::new())(&w).expect("it is traced");
    assert!(found.constraints[0].reshards.is_empty(), "{found}");
}

/// A constraint on a value that a loop carries takes over its other readers.
#[test]
fn moved_constraints_are_noted() {
    let mesh = mesh();
    let rows = NamedSharding::new(&mesh, P(("data", None)));
    let f = move |x: &Array| -> Result<Array> {
        let (y, ()) = crate::Scan::new().length(2).run(x, &(), |x: &Array, (): &()| (x.tanh(), ()))?;
        let z = with_sharding_constraint(&y, &rows);
        Ok(y.sum(0) + z.sum(0))
    };
    let found = audit(f, AuditOptions::new())(&ones(&[8, 8])).expect("it is traced");
    assert_eq!(subjects(&found, FindingKind::Moved), ["constraint[0]"], "{found}");
}

#[test]
fn host_reads_of_true_lengths_are_listed() {
    let options = || AuditOptions::new().bounded([BoundedSize::new("rows", 16).axis("0", 0)]);
    let x = ones(&[5, 4]);
    let reads = |audit: &Audit| -> Vec<(Severity, String, Option<String>)> {
        let of = |f: &crate::audit::Finding| (f.severity, f.message.clone(), f.line.clone());
        audit.of_kind(FindingKind::LengthRead).into_iter().map(of).collect()
    };
    // Folds of any length need no number of it.
    let found = audit(|x: &Array| x.sum(0).sin(), options())(&x).expect("it is traced");
    assert_eq!(reads(&found), []);
    let line = line!() + 1;
    let found = audit(|x: &Array| x.sum(..) / x.shape()[0] as f32, options())(&x).expect("it is traced");
    let [(Severity::Note, message, Some(at))] = &reads(&found)[..] else { panic!("{found}") };
    assert!(message.contains("the number 16.0 for rows = 16 follows from rows"), "{message}");
    assert!(at.contains(&format!("audit.rs:{line}:")), "{at}");
    // A loop in Rust has other operations for another length.
    let each = |x: &Array| (1..x.shape()[0] as i64).fold(x.at(0).get(), |sum, i| (sum + x.at(i).get()).sin());
    let found = audit(each, options())(&x).expect("it is traced");
    let [(Severity::Warning, message, _)] = &reads(&found)[..] else { panic!("{found}") };
    assert!(message.ends_with("it is compiled for each length on its own"), "{message}");
    assert_eq!(Audit::from_json(&found.to_json()).expect("it is one"), found);
    // The bound is one of the call too.
    let long = audit(|x: &Array| x.sum(0), options())(&ones(&[17, 4])).expect_err("it is too long").to_string();
    assert!(long.contains("size `rows` is 17, at most 16"), "{long}");
}
