//! Drawn losses, each written for one example and again for a batch: `mean(vmap(loss))` may cost no more than the
//! latter. The tests compare values and plans, the bench `batches` times.
mod products;
mod sequences;
mod tables;

use pallas_rt::ir::DType;
use pallas_rt::prelude::*;
use pallas_rt::{Array, Client, grad, vmap};
use std::sync::Arc;

/// A loss of weights and of the arrays of an example or a batch.
type Loss = Arc<dyn Fn(&[Array], &[Array]) -> Result<Array> + Send + Sync>;

/// The contents of an array.
#[derive(Clone, Copy, Debug)]
enum Fill {
    /// Floats from -1 to 1 times this number.
    Floats(f32),
    /// Integers below this number.
    Below(usize),
}

/// A loss in two forms.
pub struct Pair {
    /// The family and the sizes.
    pub name: String,
    batch: usize,
    weights: Vec<(Vec<usize>, Fill)>,
    /// Without the axis of the batch.
    example: Vec<(Vec<usize>, Fill)>,
    one: Loss,
    many: Loss,
}

/// The size of the arrays of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// For tests of values.
    Small,
    /// For plans and times.
    Large,
}

/// Draws sizes.
pub struct Dice {
    state: u64,
    scale: Scale,
    drawn: Vec<usize>,
}

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.state = self.state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.state >> 33) as usize % n
    }

    /// A size, log-uniform between these; at the small scale from 2 to 5.
    fn size(&mut self, low: usize, high: usize) -> usize {
        let bits = self.below(1 << 16) as f64 / f64::from(1 << 16);
        let large = (low as f64 * (high as f64 / low as f64).powf(bits)).round() as usize;
        let size = if self.scale == Scale::Small { 2 + large % 4 } else { large };
        self.drawn.push(size);
        size
    }
}

/// A family of losses: draws one.
type Family = (&'static str, fn(&mut Dice) -> Drawn);

/// A pair without its name.
struct Drawn {
    batch: usize,
    weights: Vec<(Vec<usize>, Fill)>,
    example: Vec<(Vec<usize>, Fill)>,
    one: Loss,
    many: Loss,
}

/// Arrays of these shapes with floats.
fn floats<const N: usize>(shapes: [&[usize]; N], most: f32) -> Vec<(Vec<usize>, Fill)> {
    shapes.iter().map(|shape| (shape.to_vec(), Fill::Floats(most))).collect()
}

/// Weights of a product that keep sums of so many terms near one.
fn weights<const N: usize>(shapes: [&[usize]; N]) -> Vec<(Vec<usize>, Fill)> {
    let most = |shape: &[usize]| 1.5 / (shape.iter().product::<usize>() as f32).powf(0.25);
    shapes.iter().map(|shape| (shape.to_vec(), Fill::Floats(most(shape)))).collect()
}

fn loss(f: impl Fn(&[Array], &[Array]) -> Result<Array> + Send + Sync + 'static) -> Loss {
    Arc::new(f)
}

/// Pair `i` of a seed: families take turns, and sizes are drawn.
pub fn pair(i: usize, seed: u64, scale: Scale) -> Pair {
    let families: Vec<&Family> =
        [products::FAMILIES, sequences::FAMILIES, tables::FAMILIES].into_iter().flatten().collect();
    let (name, draw) = families[i % families.len()];
    let mut dice = Dice { state: seed ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), scale, drawn: vec![] };
    dice.below(1);
    let Drawn { batch, weights, example, one, many } = draw(&mut dice);
    let sizes: Vec<String> = dice.drawn.iter().map(usize::to_string).collect();
    Pair { name: format!("{name} {}", sizes.join("x")), batch, weights, example, one, many }
}

impl Pair {
    fn array(&self, client: &Client, shape: &[usize], fill: Fill, seed: usize) -> Result<Array> {
        let mut dice = Dice { state: seed as u64 + 17, scale: Scale::Large, drawn: vec![] };
        let n = shape.iter().product();
        match fill {
            Fill::Floats(most) => {
                let number = |_| (dice.below(20_001) as f32 / 10_000.0 - 1.0) * most;
                client.array(&(0..n).map(number).collect::<Vec<f32>>(), shape)
            }
            Fill::Below(most) => client.array(&(0..n).map(|_| dice.below(most) as i32).collect::<Vec<i32>>(), shape),
        }
    }

    /// The weights, and the arrays of a batch.
    pub fn arrays(&self, client: &Client) -> Result<(Vec<Array>, Vec<Array>)> {
        let of = |all: &[(Vec<usize>, Fill)], batch: &[usize], seed: usize| -> Result<Vec<Array>> {
            let all = all.iter().enumerate();
            all.map(|(i, (shape, fill))| self.array(client, &[batch, shape].concat(), *fill, seed + i)).collect()
        };
        Ok((of(&self.weights, &[], 0)?, of(&self.example, &[self.batch], 100)?))
    }

    /// The same as types, for functions that are planned and do not run.
    pub fn types(&self, client: &Client) -> Result<(Vec<Array>, Vec<Array>)> {
        let of = |all: &[(Vec<usize>, Fill)], batch: &[usize]| -> Result<Vec<Array>> {
            let dtype = |fill: &Fill| if let Fill::Floats(_) = fill { DType::F32 } else { DType::I32 };
            all.iter().map(|(shape, fill)| client.shape_dtype(&[batch, shape].concat(), dtype(fill))).collect()
        };
        Ok((of(&self.weights, &[])?, of(&self.example, &[self.batch])?))
    }

    /// The mean of `vmap` of the loss of one example.
    pub fn mapped(&self) -> impl Fn(&Vec<Array>, &Vec<Array>) -> Result<Array> + Send + Sync + Clone + 'static {
        let one = self.one.clone();
        move |w: &Vec<Array>, x: &Vec<Array>| {
            let one = one.clone();
            let each = vmap(move |w: &Vec<Array>, x: &Vec<Array>| one(w, x)).in_axes([None, Some(0)]);
            Ok(each(w, x)?.mean(..))
        }
    }

    /// The mean loss as it is written for a batch.
    pub fn written(&self) -> impl Fn(&Vec<Array>, &Vec<Array>) -> Result<Array> + Send + Sync + Clone + 'static {
        let many = self.many.clone();
        move |w: &Vec<Array>, x: &Vec<Array>| Ok(many(w, x)?.mean(..))
    }

    /// The mean of `vmap` of the gradient of the loss of one example.
    pub fn each(&self) -> impl Fn(&Vec<Array>, &Vec<Array>) -> Result<Vec<Array>> + Send + Sync + Clone + 'static {
        let one = self.one.clone();
        move |w: &Vec<Array>, x: &Vec<Array>| {
            let one = one.clone();
            let slope = grad(move |w: &Vec<Array>, x: &Vec<Array>| one(w, x));
            let all = vmap(move |w: &Vec<Array>, x: &Vec<Array>| slope(w, x)).in_axes([None, Some(0)])(w, x)?;
            Ok(all.iter().map(|g| g.mean(0)).collect::<Vec<Array>>())
        }
    }
}
