//! Declarations of trees: marked, marked again, cleared.
use super::numbers;
use crate::prelude::*;
use crate::sharding::{Mesh, NamedSharding, P, ShardingPolicy, device_put, dim};
use crate::{clear_sharding, in_out_shardings, jit, lower, mark_sharding, partitioned, with_sharding_constraint};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Tree)]
struct Layer {
    up: Array,
    down: Array,
    norm: Array,
}

fn layer(x: f32) -> Layer {
    let full = |shape: &[usize]| Client::cpu().full(shape, x).expect("it fits");
    Layer { up: full(&[8, 16]), down: full(&[16, 8]), norm: full(&[8]) }
}

fn mesh() -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"))
}

fn policy() -> ShardingPolicy {
    r#"
    layers[*].up = [{}, {"model"}]
    layers[*].down = [{"model"}p1, {}]
    layers[*].norm = replicated
    embed["tok*"] = [{"data", "model"}, {}]
    "#
    .parse()
    .expect("a policy")
}

type Model = (BTreeMap<String, Array>, Vec<Layer>);

#[derive(Clone, Tree)]
struct Named {
    embed: BTreeMap<String, Array>,
    layers: Vec<Layer>,
}

fn model() -> Named {
    let embed =
        ["tokens", "types"].map(|name| (name.to_string(), Client::cpu().full(&[16, 8], 1.0f32).expect("it fits")));
    let (embed, layers): Model = (embed.into(), vec![layer(1.0), layer(2.0)]);
    Named { embed, layers }
}

#[test]
fn a_policy_marks_what_its_patterns_match() {
    let mesh = mesh();
    let marked = mark_sharding(&model(), &mesh, policy()).expect("it is placed");
    let parts = |x: &Array| x.sharding().map(|s| s.blocks_per_dim());
    assert_eq!(parts(&marked.layers[1].up), Some(vec![1, 4]));
    assert_eq!(parts(&marked.layers[0].down), Some(vec![4, 1]));
    assert_eq!(parts(&marked.layers[0].norm), Some(vec![1]));
    assert_eq!(parts(&marked.embed["tokens"]), Some(vec![8, 1]));
    assert_eq!(parts(&marked.embed["types"]), None);
    assert_eq!(numbers(&marked.layers[1].down), numbers(&model().layers[1].down));
    // The pattern is part of the provenance.
    let found = partitioned(|m: &Named| m.layers[0].up.sum(0))(&marked).expect("it is traced");
    let up = found.find("0.layers[0].up");
    let why = found.why(up[0], "model").expect("it is sharded");
    assert!(why.annotation.contains("by pattern `layers[*].up`") && why.at.file.ends_with("marks.rs"), "{why}");
    // A replicated array stays replicated, and one without a declaration is divided by what a function does with it.
    let rows = device_put(&Client::cpu().full(&[8], 1.0f32).expect("it fits"), &NamedSharding::new(&mesh, P("data")));
    let rows = rows.expect("it is placed");
    let sum = |x: &Array, y: &Array| partitioned(|x: &Array, y: &Array| x + y)(x, y).expect("it is traced");
    let of_first = |x: &Array| sum(x, &rows).values()[0].sharding.blocks_per_dim();
    assert_eq!(of_first(&marked.layers[0].norm), [1]);
    assert_eq!(of_first(&model().layers[0].norm), [2]);
    assert_eq!(of_first(&clear_sharding(&marked.layers[0].norm).expect("it has no mistake")), [2]);
}

/// A misspelled pattern declares nothing: it is an error with the paths that there are, unless the policy is for more.
#[test]
fn a_pattern_that_matches_nothing_is_an_error() {
    let mesh = mesh();
    let wrong = policy().rule("layers[*].dwon", P("model"));
    let text = mark_sharding(&model(), &mesh, &wrong).err().expect("no such field").to_string();
    assert!(text.contains("pattern `layers[*].dwon` of the policy matches no array"), "{text}");
    assert!(text.contains("`embed[\"tokens\"]`") && text.contains("marks.rs"), "{text}");
    mark_sharding(&model(), &mesh, wrong.for_tree(&model())).expect("other rules match");
    let f = in_out_shardings(|x: &Array| x * 2.0, &mesh, ShardingPolicy::new().rule("1", P("data")), P(()));
    let text = jit(f)(&Client::cpu().full(&[8], 1.0f32).expect("it fits")).expect_err("one argument").to_string();
    assert!(text.contains("pattern `1` of the policy matches no array"), "{text}");
}

#[test]
fn marking_again_needs_the_same_spec() {
    let mesh = mesh();
    let x = Client::cpu().full(&[8, 8], 1.0f32).expect("it fits");
    let marked = mark_sharding(&x, &mesh, P("model")).expect("it is placed");
    for equal in [P("model"), P(("model", None)), P(dim("model").priority(0))] {
        let again = mark_sharding(&marked, &mesh, equal).expect("it is the same");
        assert_eq!(again.addressable_shards().expect("blocks").len(), 8);
    }
    for other in [P(()), P("data"), P((None, "model")), P(dim("model").open()), P(dim("model").priority(1))] {
        let text = mark_sharding(&marked, &mesh, other.clone()).expect_err("another spec").to_string();
        assert!(text.contains("is declared as [{\"model\"}, {}] on") && text.contains("clear_sharding"), "{text}");
        let cleared = clear_sharding(&marked).expect("it has no mistake");
        assert_eq!(numbers(&cleared), numbers(&x));
        mark_sharding(&cleared, &mesh, other).expect("nothing is declared");
    }
    // What a function placed is no declaration.
    let placed = jit(|x: &Array| x * 2.0)(&marked).expect("it runs");
    assert_eq!(placed.sharding().expect("it is sharded").blocks_per_dim(), [4, 1]);
    mark_sharding(&placed, &mesh, P("data")).expect("nothing is declared");
    let text = mark_sharding(&x, &mesh, P("rows")).expect_err("no such axis").to_string();
    assert!(text.contains("array ``: `rows` is no axis") && text.contains("marks.rs"), "{text}");
}

/// The same rules hold inside of functions.
#[test]
fn traced_arrays_are_marked_and_cleared() {
    let mesh = mesh();
    let x = Client::cpu().full(&[8, 8], 1.0f32).expect("it fits");
    let own = mesh.clone();
    let f = move |x: &Array| -> Result<Array> {
        let y = mark_sharding(&(x + 1.0), &own, P("data"))?;
        let y = mark_sharding(&y, &own, P(("data", None)))?;
        assert!(mark_sharding(&y, &own, P("model")).is_err());
        mark_sharding(&clear_sharding(&y)?, &own, P("model"))
    };
    let graph = lower(f.clone())(&x).expect("it is traced").to_jaxpr();
    assert_eq!(graph.matches("sharding_constraint").count(), 2, "{graph}");
    let y = jit(f)(&x).expect("it runs");
    assert_eq!(y.sharding().expect("it is sharded").blocks_per_dim(), [4, 1]);
    // The constraint that was cleared is an operation that nothing reads.
    let shardings = partitioned({
        let named = NamedSharding::new(&mesh, P("data"));
        move |x: &Array| with_sharding_constraint(x, &named)
    })(&x);
    assert_eq!(shardings.expect("it is traced").results()[0].blocks_per_dim(), [2, 1]);
}

/// `in_shardings` and `out_shardings` of `jax.jit`.
#[test]
fn arguments_and_results_of_functions_are_declared() {
    let mesh = mesh();
    let ins: ShardingPolicy =
        "0.up = [{}, {\"model\"}]\n0.norm = replicated\n1 = [{\"data\"}]".parse().expect("a policy");
    let f = in_out_shardings(|layer: &Layer, x: &Array| x.matmul(&layer.up), &mesh, ins, P(("data", None)));
    let x = Client::cpu().full(&[4, 8], 1.0f32).expect("it fits");
    let found = partitioned(f)(&layer(1.0), &x).expect("it is traced");
    let parts = |place: &str| found.values()[found.find(place)[0]].sharding.blocks_per_dim();
    assert_eq!((parts("0.up"), parts("0.norm"), parts("1")), (vec![1, 4], vec![1], vec![2, 1]));
    assert_eq!(found.results()[0].blocks_per_dim(), [2, 1]);
    assert_eq!(found.budget().all_gather("model"), 1);
    let f = jit(in_out_shardings(|x: &Array| x * 2.0, &mesh, P("data"), ShardingPolicy::new()));
    let y = f(&x).expect("it runs");
    assert_eq!((numbers(&y), y.sharding().expect("it is sharded").blocks_per_dim()), (vec![2.0; 32], vec![2, 1]));
    let f = jit(in_out_shardings(|x: &Array| x * 2.0, &mesh, P((None, None, "data")), ShardingPolicy::new()));
    let text = f(&x).expect_err("three entries").to_string();
    assert!(text.contains("array `0`: a spec of 3 entries"), "{text}");
}
