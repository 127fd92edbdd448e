//! temporary
use crate::mesh::Sharding;
use crate::mesh::axis::Axis;
#[derive(Clone, Debug)]
pub enum Step {
    AllGather(Vec<Vec<Axis>>),
    AllSlice(Vec<Vec<Axis>>),
    AllToAll { axes: Vec<Axis>, from: usize, to: usize },
    Permute,
}
pub fn reshard(shape: &[usize], from: &Sharding, to: &Sharding) -> Vec<(Step, Sharding)> {
    if from.axes() == to.axes() {
        return vec![];
    }
    let whole = Sharding::replicated(shape.len());
    let mut steps = vec![];
    if !from.is_replicated() {
        steps.push((Step::AllGather(from.axes()), whole));
    }
    if !to.is_replicated() {
        steps.push((Step::AllSlice(to.axes()), Sharding::closed(to.axes())));
    }
    steps
}
