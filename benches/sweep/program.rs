//! Functions as data: what `sweep.py` draws, in terms of operations on arrays.
//!
//! ```text
//! program = {"parameters": n, "steps": [step, ..], "results": [value, ..]}
//! step    = [operation, [operand, ..], {attribute: ..}, number of results]
//! operand = a value, or {"number": x}
//! ```
//! Values are numbered: the parameters, then the results of each step. The bodies of `scan`, `vmap` and `grad` are
//! programs too, the attribute `body`.
use pallas_kernels::flash_attention::{Causal, Options, flash_attention};
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::softmax::softmax;
use pallas_rt::ir::DType;
use pallas_rt::ops::{self, Convolution, Padding, ScalarOp, Windows};
use pallas_rt::ops::{Axes, Operand};
use pallas_rt::prelude::*;
use pallas_rt::{Scan, associative_scan, checkpoint, grad, keep, random, vmap};
use serde_json::Value;
use std::sync::Arc;

/// A function of arrays.
#[derive(Clone, Debug)]
pub struct Program {
    parameters: usize,
    steps: Vec<Step>,
    results: Vec<usize>,
}

#[derive(Clone, Debug)]
struct Step {
    operation: String,
    operands: Vec<Given>,
    attributes: Value,
    body: Option<Arc<Program>>,
    results: usize,
}

/// An operand.
#[derive(Clone, Copy, Debug)]
enum Given {
    Value(usize),
    Number(f64),
}

/// An error of what the script says.
pub fn wrong(message: String) -> Error {
    Error::Value { message }
}

/// The sum of squares of all results of a floating-point type, in f32: what is differentiated.
pub fn loss(results: &[Array]) -> Result<Array> {
    let floats = results.iter().filter(|x| x.dtype().is_float());
    let sums = floats.map(|x| (x.cast(DType::F32).square() * 0.5).sum(..));
    sums.reduce(|a, b| a + b).ok_or_else(|| wrong("no result that has a gradient".into()))
}

impl Program {
    /// Reads a program.
    ///
    /// # Errors
    /// [`Error::Value`] for JSON that is no program.
    pub fn parse(json: &Value) -> Result<Program> {
        let list = |json: &Value| json.as_array().cloned().ok_or_else(|| wrong(format!("{json}: expected a list")));
        let steps = list(&json["steps"])?.into_iter().map(|step| {
            let body = &step[2]["body"];
            let body = if body.is_null() { None } else { Some(Arc::new(Program::parse(body)?)) };
            let operands = list(&step[1])?;
            Ok(Step {
                operation: step[0].as_str().unwrap_or_default().into(),
                operands: operands.iter().map(given).collect::<Result<_>>()?,
                attributes: step[2].clone(),
                body,
                results: number(&step[3])?,
            })
        });
        Ok(Program {
            parameters: number(&json["parameters"])?,
            steps: steps.collect::<Result<_>>()?,
            results: list(&json["results"])?.iter().map(number).collect::<Result<_>>()?,
        })
    }

    /// Calls the function.
    ///
    /// # Errors
    /// Those of its operations; operations that are not known.
    pub fn run(&self, arguments: &[Array]) -> Result<Vec<Array>> {
        if arguments.len() != self.parameters {
            return Err(wrong(format!("{} arguments, expected {}", arguments.len(), self.parameters)));
        }
        let mut values = arguments.to_vec();
        for step in &self.steps {
            let results = step.run(&values)?;
            if results.len() != step.results {
                return Err(wrong(format!("`{}` has {} results", step.operation, results.len())));
            }
            values.extend(results);
        }
        Ok(self.results.iter().map(|&i| values[i].clone()).collect())
    }
}

fn number(json: &Value) -> Result<usize> {
    json.as_u64().map(|n| n as usize).ok_or_else(|| wrong(format!("{json}: expected a count")))
}

fn given(json: &Value) -> Result<Given> {
    match json["number"].as_f64() {
        Some(x) => Ok(Given::Number(x)),
        None => number(json).map(Given::Value),
    }
}

fn dtype(name: &str) -> DType {
    match name {
        "bf16" => DType::Bf16,
        "i32" => DType::I32,
        _ => DType::F32,
    }
}

impl Step {
    fn counts(&self, name: &str) -> Vec<usize> {
        let list = self.attributes[name].as_array();
        list.into_iter().flatten().filter_map(Value::as_u64).map(|n| n as usize).collect()
    }
    fn integers(&self, name: &str) -> Vec<isize> {
        let list = self.attributes[name].as_array();
        list.into_iter().flatten().filter_map(Value::as_i64).map(|n| n as isize).collect()
    }
    fn integer(&self, name: &str) -> isize {
        self.attributes[name].as_i64().unwrap_or_default() as isize
    }
    fn count(&self, name: &str) -> usize {
        self.attributes[name].as_u64().unwrap_or_default() as usize
    }
    fn text(&self, name: &str) -> &str {
        self.attributes[name].as_str().unwrap_or_default()
    }
    fn is(&self, name: &str) -> bool {
        self.attributes[name].as_bool().unwrap_or_default()
    }
    fn axes(&self) -> Axes {
        let axes = Axes::from(&self.integers("axes")[..]);
        if self.is("keep") { keep(axes) } else { axes }
    }
    fn padding(&self) -> Padding {
        if self.text("padding") == "SAME" { Padding::Same } else { Padding::Valid }
    }
    fn body(&self) -> Result<Arc<Program>> {
        self.body.clone().ok_or_else(|| wrong(format!("`{}` without a body", self.operation)))
    }

    fn run(&self, values: &[Array]) -> Result<Vec<Array>> {
        let arrays: Vec<&Array> = self
            .operands
            .iter()
            .filter_map(|operand| match operand {
                Given::Value(i) => values.get(*i),
                Given::Number(_) => None,
            })
            .collect();
        match self.operation.as_str() {
            "scan" => self.scan(&arrays),
            "vmap" => self.vmap(&arrays),
            "grad" => gradient(self.body()?, &arrays, self.count("by")),
            "checkpoint" => {
                let body = self.body()?;
                checkpoint(move |x: &Vec<Array>| body.run(x))(&owned(&arrays))
            }
            "linear" => self.linear(&arrays),
            "sort_pairs" => Ok(ops::sort_together(&arrays, 1, self.integer("axis"))),
            "top_k" => {
                let (x, i) = arrays[0].top_k(self.count("k"), self.integer("axis"));
                Ok(vec![x, i])
            }
            _ => Ok(vec![self.one(values, &arrays)?]),
        }
    }

    /// Operations with one result.
    fn one(&self, values: &[Array], arrays: &[&Array]) -> Result<Array> {
        let x = arrays.first().copied();
        if let Some(x) = x
            && let Some(y) = elementwise(&self.operation, x)
        {
            return Ok(y);
        }
        if let Some(made) = self.random() {
            return Ok(made);
        }
        let x = x.ok_or_else(|| wrong(format!("`{}` without operands", self.operation)))?;
        let operand = |i: usize| match self.operands[i] {
            Given::Value(v) => Operand::from(&values[v]),
            Given::Number(n) => Operand::from(n),
        };
        let axis = self.integer("axis");
        Ok(match self.operation.as_str() {
            "add" => x + operand(1),
            "sub" => x - operand(1),
            "mul" => x * operand(1),
            "div" => x / operand(1),
            "maximum" => x.maximum(operand(1)),
            "minimum" => x.minimum(operand(1)),
            "gt" => x.gt(operand(1)),
            "le" => x.le(operand(1)),
            "select" => ops::select(x, operand(1), operand(2)),
            "cast" => x.cast(dtype(self.text("dtype"))),
            "sum" => x.sum(self.axes()),
            "mean" => x.mean(self.axes()),
            "max" => x.max(self.axes()),
            "min" => x.min(self.axes()),
            "prod" => x.prod(self.axes()),
            "var" => x.var(self.axes()),
            "logsumexp" => x.logsumexp(self.axes()),
            "softmax" => x.softmax(self.axes()),
            "log_softmax" => x.log_softmax(self.axes()),
            "standardize" => x.standardize(self.axes(), 1e-5),
            "argmax" => x.argmax(axis),
            "argmin" => x.argmin(axis),
            "cumsum" => x.cumsum(axis),
            "cumprod" => x.cumprod(axis),
            "cummax" => x.cummax(axis),
            "sort" => x.sort(axis),
            "argsort" => x.argsort(axis),
            "reshape" => x.reshape(&self.counts("shape")),
            "broadcast" => x.broadcast_to(&self.counts("shape")),
            "transpose" => x.transpose(&self.integers("axes")),
            "expand_dims" => x.expand_dims(axis),
            "flip" => x.flip(axis),
            "roll" => x.roll(self.integer("by") as i64, axis),
            "tril" => x.tril(0),
            "pad" => {
                let widths = self.counts("widths");
                x.pad(&widths.chunks(2).map(|w| (w[0], w[1])).collect::<Vec<_>>(), 0.0)
            }
            "slice" => {
                let (starts, ends) = (self.counts("starts"), self.counts("ends"));
                let range = |(a, b): (&usize, &usize)| ops::Item::from(*a as i64..*b as i64);
                x.index(&starts.iter().zip(&ends).map(range).collect::<Vec<_>>()[..])
            }
            "concatenate" => ops::concatenate(arrays, axis),
            "stack" => ops::stack(arrays, axis),
            "one_hot" => x.one_hot(self.count("classes"), dtype(self.text("dtype"))),
            "take" => x.take(arrays[1], axis),
            "take_along_axis" => x.take_along_axis(arrays[1], axis),
            "scatter_add" => x.at(arrays[1]).add(arrays[2]),
            "segment_sum" => x.segment_sum(arrays[1], self.count("segments")),
            "matmul" => x.matmul(arrays[1]),
            "einsum" => ops::einsum(self.text("subscripts"), arrays),
            "conv" => self.convolution(x, arrays[1]),
            "max_pool" | "avg_pool" => self.pool(x),
            "attention" => {
                let causal = if self.is("causal") { Causal::FromStart } else { Causal::No };
                flash_attention(x, arrays[1], arrays[2], &Options { causal, ..Options::default() })?
            }
            "shipped_softmax" => softmax(x)?,
            "shipped_layer_norm" => layer_norm(x, arrays[1], arrays[2], 1e-5)?,
            "shipped_rms_norm" => rms_norm(x, arrays[1], 1e-5)?,
            other => return Err(wrong(format!("no operation `{other}`"))),
        })
    }

    /// Random numbers, which have no operand.
    fn random(&self) -> Option<Array> {
        let key = || random::key(self.integer("seed") as i64);
        let (shape, dtype) = (self.counts("shape"), dtype(self.text("dtype")));
        match self.operation.as_str() {
            "random_uniform" => Some(random::uniform(key(), &shape, dtype)),
            "random_normal" => Some(random::normal(key(), &shape, dtype)),
            "random_bits" => Some(random::bits(key(), &shape, DType::U32)),
            "random_bernoulli" => Some(random::bernoulli(key(), 0.5, &shape).cast(dtype)),
            "random_permutation" => Some(random::permutation(key(), shape.iter().product())),
            _ => None,
        }
    }

    fn convolution(&self, x: &Array, w: &Array) -> Array {
        let dimension_numbers = match (self.text("layout"), x.shape().len()) {
            ("NHWC", 3) => ["NWC", "WIO", "NWC"],
            (_, 3) => ["NCW", "OIW", "NCW"],
            ("NHWC", _) => ["NHWC", "HWIO", "NHWC"],
            _ => ["NCHW", "OIHW", "NCHW"],
        };
        let options = Convolution {
            window_strides: &self.counts("strides"),
            padding: self.padding(),
            dimension_numbers,
            feature_group_count: self.count("groups"),
            ..Convolution::default()
        };
        ops::conv_general_dilated(x, w, &options)
    }

    fn pool(&self, x: &Array) -> Array {
        let (window_dimensions, window_strides) = (&self.counts("window")[..], &self.counts("strides")[..]);
        let windows = Windows { window_dimensions, window_strides, padding: self.padding(), ..Windows::default() };
        match self.operation.as_str() {
            "max_pool" => x.reduce_window(ScalarOp::Maximum, &windows),
            _ => x.reduce_window(ScalarOp::Add, &windows) * (1.0 / window_dimensions.iter().product::<usize>() as f64),
        }
    }

    /// The operands are what is carried, what is divided into steps, and what the body reads besides.
    fn scan(&self, arrays: &[&Array]) -> Result<Vec<Array>> {
        let (carried, divided) = (self.count("carried"), self.count("divided"));
        let (init, xs) = (owned(&arrays[..carried]), owned(&arrays[carried..carried + divided]));
        let (rest, body) = (owned(&arrays[carried + divided..]), self.body()?);
        let (last, stacked) = Scan::new().reverse(self.is("reverse")).run(
            &init,
            &xs,
            |carry: &Vec<Array>, x: &Vec<Array>| -> Result<(Vec<Array>, Vec<Array>)> {
                let all: Vec<Array> = carry.iter().chain(x).chain(&rest).cloned().collect();
                let mut results = body.run(&all)?;
                let stacked = results.split_off(carried);
                Ok((results, stacked))
            },
        )?;
        Ok(last.into_iter().chain(stacked).collect())
    }

    /// The first `batched` operands have an axis 0 of examples.
    fn vmap(&self, arrays: &[&Array]) -> Result<Vec<Array>> {
        let body = self.body()?;
        let (batched, rest) = arrays.split_at(self.count("batched"));
        let each = vmap(move |batched: &Vec<Array>, rest: &Vec<Array>| {
            let all: Vec<Array> = batched.iter().chain(rest).cloned().collect();
            body.run(&all)
        })
        .in_axes([Some(0), None]);
        each(&owned(batched), &owned(rest))
    }

    /// `h = a h + b` along axis 0, as an associative scan.
    fn linear(&self, arrays: &[&Array]) -> Result<Vec<Array>> {
        let both = (arrays[0].clone(), arrays[1].clone());
        let (_, h) = associative_scan(&both, |(a, b): &(Array, Array), (c, d): &(Array, Array)| (a * c, b * c + d))?;
        Ok(vec![h])
    }
}

fn owned(arrays: &[&Array]) -> Vec<Array> {
    arrays.iter().map(|&x| x.clone()).collect()
}

/// The gradients of a body's loss by its first operands.
fn gradient(body: Arc<Program>, arrays: &[&Array], by: usize) -> Result<Vec<Array>> {
    let (varied, rest) = arrays.split_at(by);
    let gradient = grad(move |varied: &Vec<Array>, rest: &Vec<Array>| {
        let all: Vec<Array> = varied.iter().chain(rest).cloned().collect();
        loss(&body.run(&all)?)
    });
    gradient(&owned(varied), &owned(rest))
}

/// Operations on one element.
fn elementwise(operation: &str, x: &Array) -> Option<Array> {
    Some(match operation {
        "neg" => -x,
        "abs" => x.abs(),
        "exp" => x.exp(),
        "log" => x.log(),
        "log1p" => x.log1p(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "tanh" => x.tanh(),
        "sqrt" => x.sqrt(),
        "rsqrt" => x.rsqrt(),
        "square" => x.square(),
        "erf" => x.erf(),
        "sigmoid" => x.sigmoid(),
        "relu" => x.relu(),
        "silu" => x.silu(),
        "gelu" => x.gelu_tanh(),
        "softplus" => x.softplus(),
        "stop_gradient" => x.stop_gradient(),
        _ => return None,
    })
}
