//! The questions that one asks about the annotations of a model on a mesh of devices, answered.
//!
//! `cargo run --release --example audit`
//!
//! A policy says how the model is to be sharded, as text. The model is marked by it, audited against it, and audited
//! again with a mark that somebody forgot. The exit code is 1 unless each answer is the right one.
mod usage;

use pallas_rt::audit::{Audit, AuditOptions, FindingKind};
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, ShardingPolicy};
use pallas_rt::{
    audit, checkpoint_name, clear_sharding, mark_sharding, partitioned, value_and_grad, with_sharding_constraint,
};
use std::process::ExitCode;
use std::sync::Arc;

const BATCH: usize = 16;
const WIDTH: usize = 32;
const HIDDEN: usize = 64;
const LAYERS: usize = 2;

/// The parameters of a layer.
#[derive(Clone, Tree)]
pub struct Layer {
    up: Array,
    bias: Array,
    down: Array,
    scale: Array,
}

/// The parameters of the model.
#[derive(Clone, Tree)]
pub struct Model {
    layers: Vec<Layer>,
    head: Array,
}

/// The team's policy. It forgets `bias` and `head`, so that the audit finds them.
pub const POLICY: &str = r#"
# Megatron: columns of the first matrix, rows of the second one.
**.up = [{}, {"model"}]
**.down = [{"model"}, {}]
**.scale = replicated
# The batch, and what one layer hands to the next.
1 = [{"data"}, {}]
hidden[*] = [{"data"}, {}]
"#;

/// The mesh of the launch configuration.
pub fn mesh() -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("axes with names of their own"))
}

/// The model and a batch, marked by the policy.
pub fn operands(mesh: &Arc<Mesh>) -> Result<(Model, Array)> {
    let layer = || -> Result<Layer> {
        Ok(Layer {
            up: Array::full(&[WIDTH, HIDDEN], 0.01f32)?,
            bias: Array::full(&[HIDDEN], 0.5f32)?,
            down: Array::full(&[HIDDEN, WIDTH], 0.02f32)?,
            scale: Array::full(&[WIDTH], 1.0f32)?,
        })
    };
    let layers = (0..LAYERS).map(|_| layer()).collect::<Result<Vec<Layer>>>()?;
    let model = Model { layers, head: Array::full(&[WIDTH], 1.0f32)? };
    let policy: ShardingPolicy = POLICY.parse()?;
    let batch = mark_sharding(&Array::full(&[BATCH, WIDTH], 1.0f32)?, mesh, P(("data", None)))?;
    Ok((mark_sharding(&model, mesh, policy.for_tree(&model))?, batch))
}

/// The predictions for a batch. Each layer ends with a constraint that has a name.
pub fn evaluate(mesh: &Arc<Mesh>) -> impl Fn(&Model, &Array) -> Array + Clone + use<> {
    let boundary = NamedSharding::new(mesh, P(("data", None)));
    move |model: &Model, x: &Array| {
        let mut x = x.clone();
        for layer in &model.layers {
            let inner = ((&x * &layer.scale).matmul(&layer.up) + &layer.bias).gelu();
            let next = with_sharding_constraint(&(&x + inner.matmul(&layer.down)), &boundary);
            x = checkpoint_name(&next, "hidden");
        }
        (x * &model.head).sum(1)
    }
}

/// The loss and its gradient by the model.
pub fn train(mesh: &Arc<Mesh>) -> impl Fn(&Model, &Array) -> Result<(Array, Model)> + Clone + use<> {
    let predict = evaluate(mesh);
    move |model: &Model, x: &Array| {
        let predict = predict.clone();
        value_and_grad(move |model: &Model, x: &Array| predict(model, x).square().mean(..))(model, x)
    }
}

/// The options of all audits here.
pub fn options(mesh: &Arc<Mesh>) -> Result<AuditOptions> {
    Ok(AuditOptions::new().policy(POLICY.parse::<ShardingPolicy>()?).mesh(mesh).owned(&["0.**"]).small(1024))
}

fn subjects(audit: &Audit, kind: FindingKind) -> Vec<&str> {
    audit.of_kind(kind).into_iter().map(|finding| &finding.subject[..]).collect()
}

/// Asks the questions; returns false if an answer is wrong.
pub fn run() -> Result<bool> {
    let mesh = mesh();
    let (model, batch) = operands(&mesh)?;
    let mut is_right = true;
    let mut answer = |question: &str, text: String, right: bool| {
        println!("\n{question}\n{}", text.trim_end());
        is_right &= right;
    };

    let of_evaluation = audit(evaluate(&mesh), options(&mesh)?)(&model, &batch)?;
    answer("Is everything sharded as the policy says?", of_evaluation.to_string(), of_evaluation.check().is_ok());

    let silent = subjects(&of_evaluation, FindingKind::Undeclared);
    answer("What is replicated only because nobody said anything?", silent.join(", "), silent == ["0.head"]);

    let inferred = of_evaluation.of_kind(FindingKind::SmallInferred);
    let texts: Vec<String> = inferred.iter().map(|finding| finding.to_string()).collect();
    answer(
        "Which small arrays are sharded by inference, and at what cost?",
        texts.join("\n"),
        inferred.len() == LAYERS,
    );

    let shardings = partitioned(evaluate(&mesh))(&model, &batch)?;
    let values = shardings.values();
    let position = |name: &str| values.iter().position(|value| value.name == name).expect("the model has one");
    let why = shardings.why(position("gelu"), "model")?;
    let is_by_policy = why.annotation.contains("declared by pattern `**.up`") || why.annotation.contains("`**.down`");
    answer("Who decided that the inner activations are sharded by `model`?", why.to_string(), is_by_policy);

    let why_not = shardings.why_not(position("sharding_constraint"), "model")?.to_string();
    let is_summed = why_not.contains("`model` divides dimension 0 of argument `0.layers[1].down`");
    answer("Why are those between layers not?", why_not, is_summed);

    let budget = shardings.budget();
    let allowed = budget.expect(&[("all_reduce", "model", LAYERS)]);
    answer("What does it exchange?", budget.collectives("model").to_string(), allowed.is_ok());

    let of_training = audit(train(&mesh), options(&mesh)?)(&model, &batch)?;
    let differences = of_training.compare(&of_evaluation);
    let text = format!("{} differences", differences.len());
    answer("Do training and evaluation agree about mesh and model?", text, differences.is_empty());

    // Somebody loads a matrix and forgets to mark it.
    let mut forgotten = model.clone();
    forgotten.layers[1].down = clear_sharding(&forgotten.layers[1].down)?;
    let found = audit(evaluate(&mesh), options(&mesh)?)(&forgotten, &batch)?;
    let text = found.check().err().map_or("nothing".into(), |error| error.to_string());
    let is_found = subjects(&found, FindingKind::Unapplied) == ["0.layers[1].down"];
    answer("What does the audit say about a forgotten mark?", text, is_found);
    let differences: Vec<String> = of_training.compare(&found).iter().map(ToString::to_string).collect();
    answer("And the comparison with training?", differences.join("\n"), differences.len() == 1);
    Ok(is_right)
}

fn main() -> ExitCode {
    usage::read(include_str!("audit.rs"), &[]);
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("an answer is not the right one");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
