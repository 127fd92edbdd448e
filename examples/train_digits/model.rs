//! The data, the network and one training step.
#[path = "../data/digits.rs"]
mod digits;

pub use digits::Digits;
use digits::{Images, Random};
use pallas_rt::prelude::*;
use pallas_rt::{jit, tree, value_and_grad};
use std::f64::consts::PI;

/// Images of a training step.
pub const BATCH: usize = 48;
/// Images that are not held out.
const TRAINING_IMAGES: usize = 1_441;
const PIXELS: usize = 64;
const CLASSES: usize = 10;
const HIDDEN: usize = 128;
/// Passes over all images.
pub const EPOCHS: usize = 40;
/// The first learning rate; it falls to zero along half a cosine.
const RATE: f64 = 3e-3;
const DECAY: f64 = 1e-1;
const BETAS: [f64; 2] = [0.9, 0.999];

#[derive(Clone, Tree)]
struct Layer {
    weights: Array,
    biases: Array,
}

type Network = Vec<Layer>;

/// The state of training, which a step replaces.
#[derive(Clone, Default, Tree)]
struct State {
    network: Network,
    /// Means of the gradients.
    means: Network,
    /// Means of their squares.
    squares: Network,
}

/// The logarithms of the probabilities of each digit.
fn log_probabilities(network: &Network, x: &Array) -> Array {
    let mut x = x.clone();
    for (i, layer) in network.iter().enumerate() {
        x = x.matmul(&layer.weights) + &layer.biases;
        if i + 1 < network.len() {
            x = x.relu();
        }
    }
    x.log_softmax(-1)
}

/// The mean cross-entropy.
fn loss(network: &Network, x: &Array, labels: &Array) -> Array {
    -(log_probabilities(network, x) * labels.one_hot(CLASSES, DType::F32)).sum(-1).mean(..)
}

/// One step of AdamW (Loshchilov and Hutter, 2019) after `t` others. Biases do not decay.
fn step(state: &State, t: &Array, x: &Array, labels: &Array) -> Result<(State, Array)> {
    let (value, gradient) = value_and_grad(loss)(&state.network, x, labels)?;
    let steps = (EPOCHS * (TRAINING_IMAGES / BATCH)) as f64;
    let rate = ((t * (PI / steps)).cos() + 1.0) * (RATE / 2.0);
    let correction = BETAS.map(|beta| 1.0 - ((t + 1.0) * beta.ln()).exp());
    let mean = |beta: f64| move |m: &Array, g: &Array| Ok(m * beta + g * (1.0 - beta));
    let means = tree::map2(&state.means, &gradient, mean(BETAS[0]))?;
    let gradients_squared = tree::map(&gradient, |g| Ok(g * g))?;
    let squares = tree::map2(&state.squares, &gradients_squared, mean(BETAS[1]))?;
    let network = tree::map3(&state.network, &means, &squares, |w, m, s| {
        let decay = if w.shape().len() > 1 { DECAY } else { 0.0 };
        let direction = (m / &correction[0]) / ((s / &correction[1]).sqrt() + 1e-8) + w * decay;
        Ok(w - direction * &rate)
    })?;
    Ok((State { network, means, squares }, value))
}

type Step = Box<dyn Fn(&State, &Array, &Array, &Array) -> Result<(State, Array)> + Send + Sync>;
type Test = Box<dyn Fn(&Network, &Array, &Array) -> Result<(Array, Array)> + Send + Sync>;

/// Trains networks one after the other.
pub struct Trainer<'a> {
    client: Client,
    digits: &'a Digits,
    step: Step,
    test: Test,
    random: Random,
    state: State,
    steps: usize,
}

impl<'a> Trainer<'a> {
    pub fn new(client: &Client, digits: &'a Digits) -> Trainer<'a> {
        let test = |network: &Network, x: &Array, labels: &Array| {
            let right = log_probabilities(network, x).argmax(-1).eq(labels);
            (loss(network, x, labels), right.cast(DType::F32).mean(..))
        };
        Trainer {
            client: client.clone(),
            digits,
            step: jit(step).into_fn(),
            test: jit(test).into_fn(),
            random: Random(0),
            state: State::default(),
            steps: 0,
        }
    }

    /// Begins again with a new network: weights are uniform, with the variance of He et al. (2015).
    pub fn restart(&mut self, seed: u64) -> Result<()> {
        (self.random, self.steps, self.state) = (Random(seed), 0, State::default());
        for [inputs, outputs] in [[PIXELS, HIDDEN], [HIDDEN, HIDDEN], [HIDDEN, CLASSES]] {
            let range = (6.0 / inputs as f32).sqrt();
            let weights = self.random.between(inputs * outputs, range);
            let weights = self.client.array(&weights, &[inputs, outputs])?;
            self.state.network.push(Layer { weights, biases: self.client.zeros(&[outputs], DType::F32)? });
        }
        let zeros = tree::map(&self.state.network, |x| self.client.zeros(x.shape(), DType::F32))?;
        (self.state.means, self.state.squares) = (zeros.clone(), zeros);
        Ok(())
    }

    /// Trains with each image once, but for those that make no whole batch, or with the first so many batches; returns
    /// the loss of each step.
    pub fn epoch(&mut self, most: usize) -> Result<Vec<f32>> {
        let images = &self.digits.train;
        let mut order: Vec<usize> = (0..images.labels.len()).collect();
        self.random.shuffle(&mut order);
        let mut losses = vec![];
        for batch in order.chunks_exact(BATCH).take(most) {
            let pixels: Vec<f32> =
                batch.iter().flat_map(|&i| &images.pixels[i * PIXELS..][..PIXELS]).copied().collect();
            let labels: Vec<i32> = batch.iter().map(|&i| images.labels[i]).collect();
            let (x, labels) = (self.client.array(&pixels, &[BATCH, PIXELS])?, self.client.array(&labels, &[BATCH])?);
            let t = self.client.array(&[self.steps as f32], &[])?;
            let (state, loss) = (self.step)(&self.state, &t, &x, &labels)?;
            (self.state, self.steps) = (state, self.steps + 1);
            losses.push(loss);
        }
        // Read at the end, so that steps follow each other without waiting.
        losses.iter().map(|loss| Ok(loss.to_vec::<f32>()?[0])).collect()
    }

    /// The loss on held-out images, and the share that is right.
    pub fn test(&self) -> Result<(f32, f64)> {
        let Images { pixels, labels } = &self.digits.test;
        let (x, y) = (self.client.array(pixels, &[labels.len(), PIXELS])?, self.client.array(labels, &[labels.len()])?);
        let (loss, right) = (self.test)(&self.state.network, &x, &y)?;
        Ok((loss.to_vec::<f32>()?[0], f64::from(right.to_vec::<f32>()?[0])))
    }
}
