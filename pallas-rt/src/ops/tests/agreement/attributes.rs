//! Attributes of the steps of random programs.
use crate::ops::{IndexMode, Padding, QuantileMethod};
use crate::prelude::*;
use serde::Deserialize;
use serde_json::Value;

/// The attributes of a step, in the order of its row in table.py or positions.py.
#[derive(Deserialize, Debug)]
#[serde(transparent)]
pub(super) struct Attributes(pub(super) Vec<Value>);

impl Attributes {
    pub(super) fn int(&self, i: usize) -> i64 {
        self.0[i].as_i64().expect("an integer")
    }
    pub(super) fn size(&self, i: usize) -> usize {
        self.0[i].as_u64().expect("a size") as usize
    }
    pub(super) fn axis(&self, i: usize) -> isize {
        self.int(i) as isize
    }
    pub(super) fn float(&self, i: usize) -> f64 {
        self.0[i].as_f64().expect("a number")
    }
    pub(super) fn is(&self, i: usize) -> bool {
        self.0[i].as_bool().expect("true or false")
    }
    pub(super) fn text(&self, i: usize) -> &str {
        self.0[i].as_str().expect("a word")
    }
    fn ints(&self, i: usize) -> impl Iterator<Item = i64> {
        self.0[i].as_array().expect("a list").iter().map(|x| x.as_i64().expect("an integer"))
    }
    pub(super) fn axes(&self, i: usize) -> Vec<isize> {
        self.ints(i).map(|x| x as isize).collect()
    }
    pub(super) fn sizes(&self, i: usize) -> Vec<usize> {
        self.ints(i).map(|x| x as usize).collect()
    }
    pub(super) fn dtype(&self, i: usize) -> DType {
        self.text(i).parse().expect("an element type")
    }
    /// Pairs of numbers.
    pub(super) fn pairs(&self, i: usize) -> Vec<(i64, i64)> {
        let pair = |x: &Value| (x[0].as_i64().expect("an integer"), x[1].as_i64().expect("an integer"));
        self.0[i].as_array().expect("a list").iter().map(pair).collect()
    }
    pub(super) fn padding(&self, i: usize) -> Padding {
        match self.0[i].as_str() {
            Some("VALID") => Padding::Valid,
            Some(_) => Padding::Same,
            None => Padding::Explicit(self.pairs(i)),
        }
    }
    pub(super) fn mode(&self, i: usize) -> IndexMode {
        match self.text(i) {
            "clip" => IndexMode::Clip,
            "wrap" => IndexMode::Wrap,
            _ => IndexMode::Fill,
        }
    }
    pub(super) fn between(&self, i: usize) -> QuantileMethod {
        match self.text(i) {
            "linear" => QuantileMethod::Linear,
            "lower" => QuantileMethod::Lower,
            "higher" => QuantileMethod::Higher,
            "midpoint" => QuantileMethod::Midpoint,
            _ => QuantileMethod::Nearest,
        }
    }
}
