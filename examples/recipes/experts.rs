//! A mixture of experts with a fixed capacity, as in GShard (Lepikhin et al., 2020): tokens are sharded among devices,
//! and so are experts. Products with one-hot masks dispatch tokens to their experts and combine what these return; in
//! between the array is sharded by experts in place of tokens, which is an all-to-all.
use super::report::{agree, are, counted, normal};
use pallas_rt::ops::einsum;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P};
use pallas_rt::{jit, partitioned, with_sharding_constraint};
use std::sync::Arc;

const GROUPS: usize = 8;
const TOKENS: usize = 16;
const WIDTH: usize = 12;
const EXPERTS: usize = 4;
/// Tokens of a group that an expert takes.
const CAPACITY: usize = 6;

/// For each token its place among those of its expert, as a mask `[groups, tokens, experts, capacity]` with the weight
/// of the expert; zeros for tokens that are too many.
fn dispatch(x: &Array, router: &Array) -> Array {
    let scores = x.matmul(router).softmax(-1);
    let chosen = scores.argmax(-1).one_hot(EXPERTS, DType::F32);
    let place = chosen.cumsum(1) * &chosen - 1.0;
    let place = place.cast(DType::I32).one_hot(CAPACITY, DType::F32);
    let weight = (scores * chosen).expand_dims(3);
    place * weight
}

/// The mixture. The last arguments say that an array of experts and groups of tokens is sharded by groups, or by
/// experts.
fn mixture(
    x: &Array,
    router: &Array,
    experts: &Array,
    [by_groups, by_experts]: [&dyn Fn(&Array) -> Array; 2],
) -> Array {
    let combine = dispatch(x, router);
    let mask = combine.gt(0.0).cast(DType::F32);
    let taken = by_experts(&by_groups(&einsum("gsec,gsm->egcm", &[&mask, x])));
    let made = by_experts(&einsum("egcm,emn->egcn", &[&taken, experts]).gelu());
    einsum("gsec,egcn->gsn", &[&combine, &by_groups(&made)])
}

/// Runs it on four devices and on one.
pub fn run() -> Result<bool> {
    let mesh = Arc::new(Mesh::new(&[("expert", 4)]).expect("a name"));
    let named = |spec| NamedSharding::new(&mesh, spec);
    let (first, groups) = (named(P("expert")), named(P((None, "expert"))));
    let sharded = move |x: &Array, router: &Array, experts: &Array| {
        let by_groups = |x: &Array| with_sharding_constraint(x, &groups);
        let by_experts = |x: &Array| with_sharding_constraint(x, &first);
        let (x, experts) = (with_sharding_constraint(x, &first), with_sharding_constraint(experts, &first));
        let y = mixture(&x, router, &experts, [&by_groups, &by_experts]);
        with_sharding_constraint(&y, &first)
    };
    let (x, router) = (normal(1, &[GROUPS, TOKENS, WIDTH], 1.0), normal(2, &[WIDTH, EXPERTS], 1.0));
    let experts = normal(3, &[EXPERTS, WIDTH, WIDTH], 0.3);
    let found = counted(&partitioned(sharded.clone())(&x, &router, &experts)?);
    let one = |x: &Array, router: &Array, experts: &Array| {
        mixture(x, router, experts, [&|x: &Array| x.clone(), &|x: &Array| x.clone()])
    };
    let numbers = agree(&[&jit(sharded)(&x, &router, &experts)?], &[&jit(one)(&x, &router, &experts)?])?;
    Ok(are(&found, &[("all_to_all expert", 2)]) && numbers)
}
