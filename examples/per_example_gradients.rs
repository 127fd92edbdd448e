//! The gradient of each example of a batch: `vmap` of `grad`, in one call.
//!
//! `cargo run --release --example per_example_gradients [-- --device cpu|gpu|interpret]`
//!
//! Training with differential privacy (Abadi et al., 2016) bounds how much one image may change a network: each image's
//! gradient is shortened to a given length before they are added. Their norms also tell which images a network finds
//! hardest. The exit code is 1 if the norms are not JAX's, or the gradients' mean is not the gradient of the mean.
#[path = "data/digits.rs"]
mod digits;
#[path = "data/numbers.rs"]
mod numbers;
mod usage;

mod device;

use digits::{Digits, Random};
use numbers::{compare, numbers};
use pallas_rt::prelude::*;
use pallas_rt::{grad, jit, tree, vmap};
use std::time::Instant;

const IMAGES: usize = 256;
const HIDDEN: usize = 32;
/// The length that gradients are shortened to.
const LONGEST: f64 = 1.0;

/// Weights and biases of each layer.
type Network = Vec<(Array, Array)>;

/// The cross-entropy of one image `[64]`, or of several `[n, 64]`.
fn losses(network: &Network, x: &Array, label: &Array) -> Array {
    let hidden = (x.matmul(&network[0].0) + &network[0].1).relu();
    let scores = hidden.matmul(&network[1].0) + &network[1].1;
    -(scores.log_softmax(-1) * label.one_hot(10, DType::F32)).sum(-1)
}

/// The norm of each image's gradient, and the mean of the gradients as they are and after shortening.
fn privately(network: &Network, x: &Array, labels: &Array) -> Result<(Array, Network, Network)> {
    let each = vmap(grad(losses)).in_axes([None, Some(0), Some(0)])(network, x, labels)?;
    // All axes but the first, which is that of the images.
    let squares = tree::leaves(&each).into_iter().map(|g| g.reshape(&[IMAGES as isize, -1]).square().sum(1));
    let norms = squares.reduce(|a, b| a + b).expect("a network has weights").sqrt();
    let factors = (LONGEST / &norms).minimum(1.0);
    let shortened = |g: &Array| {
        let rest = vec![1; g.rank() - 1];
        Ok((g * factors.reshape(&[&[IMAGES], &rest[..]].concat())).mean(0))
    };
    Ok((norms.clone(), tree::map(&each, |g| Ok(g.mean(0)))?, tree::map(&each, shortened)?))
}

fn main() -> Result<()> {
    usage::read(include_str!("per_example_gradients.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    let (images, mut random) = (Digits::load().train, Random(1));
    let mut network = vec![];
    for [inputs, outputs] in [[64, HIDDEN], [HIDDEN, 10]] {
        let weights = client.array(&random.between(inputs * outputs, 0.3), &[inputs, outputs])?;
        network.push((weights, client.zeros(&[outputs], DType::F32)?));
    }
    let x = client.array(&images.pixels[..IMAGES * 64], &[IMAGES, 64])?;
    let labels = client.array(&images.labels[..IMAGES], &[IMAGES])?;

    let step = jit(privately);
    step(&network, &x, &labels)?;
    let start = Instant::now();
    let (norms, mean, shortened) = step(&network, &x, &labels)?;
    let norms = norms.to_vec::<f32>()?;
    println!("gradients of {IMAGES} images in {:.2} ms", 1e3 * start.elapsed().as_secs_f64());
    let difference = compare("norms", &norms, &numbers(include_str!("data/per_example_gradients_jax.txt")), 1e-4)?;
    println!("largest difference of a norm to JAX's: {difference:.1e}");

    let at_once = jit(grad(|network: &Network, x: &Array, labels: &Array| losses(network, x, labels).mean(..)));
    let at_once = at_once(&network, &x, &labels)?;
    for (mean, at_once) in tree::leaves(&mean).iter().zip(tree::leaves(&at_once)) {
        compare("the mean of the gradients", &mean.to_vec::<f32>()?, &at_once.to_vec::<f32>()?, 1e-5)?;
    }
    let length = |tree: &Network| {
        let parts = tree::leaves(tree).iter().map(Array::to_vec::<f32>).collect::<Result<Vec<_>>>()?;
        Ok::<f32, Error>(parts.concat().iter().map(|g| g * g).sum::<f32>().sqrt())
    };
    let (before, after) = (length(&mean)?, length(&shortened)?);
    println!("length of the mean gradient: {before:.3}; {after:.3} if none is longer than {LONGEST}");
    if f64::from(after) > LONGEST {
        return Err(numbers::wrong(format!("a mean of gradients of length {LONGEST} has length {after}")));
    }

    let mut order: Vec<usize> = (0..IMAGES).collect();
    order.sort_by(|&a, &b| norms[b].total_cmp(&norms[a]));
    for (name, i) in [("longest", order[0]), ("shortest", order[IMAGES - 1])] {
        println!("\nthe {name} gradient, {:.3}, is of this {}:", norms[i], images.labels[i]);
        for row in images.pixels[i * 64..][..64].chunks(8) {
            println!("{}", row.iter().map(|&p| [' ', '.', 'o', '#'][(p * 3.99) as usize]).collect::<String>());
        }
    }
    Ok(())
}
