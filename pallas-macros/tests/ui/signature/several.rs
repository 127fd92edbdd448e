use pallas_rt::prelude::*;

#[kernel(semantics = (parallel, sideways), colour = 3)]
fn k(&self, x: Vec<f32>, y: In<f32>, out: Out<f32>) -> f32 {
    out.store(y.load());
}

fn main() {}
