//! The operations of random programs by their names: those that have attributes, or other operands than the cases of
//! reference.txt; all others are these cases.
use super::super::cases::function;
use super::attributes::Attributes;
use super::{composed, loops, moves};
use crate::ops::{self, Indexing};
use crate::prelude::*;
use crate::random::{self, key};

/// The results of a step.
pub(super) fn step(name: &str, x: &[Array], a: &Attributes) -> Vec<Array> {
    let known = [loops::step, composed::step, reduced, moves::step];
    known.into_iter().find_map(|step| step(name, x, a)).unwrap_or_else(|| match name {
        "add number" => vec![&x[0] + a.float(0)],
        "multiply number" => vec![&x[0] * a.float(0)],
        "power number" => vec![x[0].pow(a.int(0))],
        "clip" => vec![x[0].clip(a.float(0), a.float(1))],
        "lax.clamp" => vec![x[0].clamp(a.float(0), a.float(1))],
        "lax.bitcast_convert_type" => vec![x[0].round().to_bits()],
        "where" => vec![ops::select(&x[0], &x[1], &x[2])],
        "nn.leaky_relu" => vec![x[0].leaky_relu(a.float(0))],
        "nn.elu" => vec![x[0].elu(a.float(0))],
        "nn.celu" => vec![x[0].celu(a.float(0))],
        "nn.one_hot" => vec![x[0].one_hot(a.size(0), DType::F32)],
        "astype" => vec![x[0].cast(a.dtype(0))],
        "average" => vec![x[0].average(a.axis(0), &x[1])],
        "einsum" => vec![ops::einsum(a.text(0), x)],
        "tensordot" => vec![x[0].tensordot(&x[1], &a.axes(0), &a.axes(1))],
        "diff" => vec![x[0].diff(a.size(0), a.axis(1))],
        "trapezoid" => vec![x[0].trapezoid(a.float(0), a.axis(1))],
        "full_like" => vec![x[0].full_like(a.int(0))],
        _ if a.0.is_empty() => function(name)(x).0,
        _ => vec![new(name, a)],
    })
}

/// Axes that may be kept, of the first two attributes.
fn axes(a: &Attributes) -> ops::Axes {
    let own = if a.0[0].is_null() { ops::Axes::from(..) } else { ops::Axes::from(&a.axes(0)[..]) };
    if a.0[1].as_bool() == Some(true) { ops::keep(own) } else { own }
}

/// Each reduction of axes, or along an axis, by its name.
macro_rules! by_name {
    ($name:ident $x:ident $axes:expr; $($text:literal $f:ident)*) => {
        match $name {
            $($text => return Some(vec![$x[0].$f($axes)]),)*
            _ => {}
        }
    };
}

fn reduced(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    if a.0.len() == 1 && x.len() == 1 {
        by_name! { name x a.axis(0); "argmax" argmax "argmin" argmin "nanargmax" nanargmax "nanargmin" nanargmin
        "cumsum" cumsum "cumprod" cumprod "nancumsum" nancumsum "nancumprod" nancumprod "lax.cummax" cummax
        "lax.cummin" cummin }
    }
    if a.0.len() < 2 || x.len() != 1 {
        return None;
    }
    by_name! { name x axes(a);
    "sum" sum "mean" mean "var" var "std" std "linalg.norm" norm "nn.logsumexp" logsumexp "nn.logmeanexp" logmeanexp
    "prod" prod "max" max "min" min "any" any "all" all "ptp" ptp "count_nonzero" count_nonzero "nansum" nansum
    "nanprod" nanprod "nanmean" nanmean "nanvar" nanvar "nanstd" nanstd "nanmax" nanmax "nanmin" nanmin
    "median" median "nanmedian" nanmedian }
    let all = || if a.0[0].is_null() { ops::Axes::from(..) } else { ops::Axes::from(&a.axes(0)[..]) };
    Some(vec![match name {
        "nn.softmax" => x[0].softmax(all()),
        "nn.log_softmax" => x[0].log_softmax(all()),
        "nn.standardize" => x[0].standardize(-1, 1e-5),
        "linalg.vector_norm" => {
            let order = a.0[2].as_f64().unwrap_or_else(|| a.text(2).parse().expect("an order"));
            x[0].vector_norm(order, axes(a))
        }
        "quantile" => x[0].quantile(a.float(2), axes(a), a.between(3)),
        "nanquantile" => x[0].nanquantile(a.float(2), axes(a), a.between(3)),
        "percentile" => x[0].percentile(a.float(2), axes(a), a.between(3)),
        "nanpercentile" => x[0].nanpercentile(a.float(2), axes(a), a.between(3)),
        _ => return None,
    }])
}

/// A new array.
fn new(name: &str, a: &Attributes) -> Array {
    let f32 = DType::F32;
    match name {
        "arange" => ops::arange(a.float(0), a.float(1), a.float(2), a.dtype(3)),
        "linspace" => ops::linspace(a.float(0), a.float(1), a.size(2), f32),
        "logspace" => ops::logspace(a.float(0), a.float(1), a.size(2), 10.0, f32),
        "geomspace" => ops::geomspace(a.float(0), a.float(1), a.size(2), f32),
        "zeros" => ops::zeros(&a.sizes(0), a.dtype(1)),
        "ones" => ops::ones(&a.sizes(0), a.dtype(1)),
        "full" => ops::full(&a.sizes(0), a.int(1), a.dtype(2)),
        "eye" => ops::eye(a.size(0), a.size(1), a.int(2), a.dtype(3)),
        "identity" => ops::identity(a.size(0), f32),
        "tri" => ops::tri(a.size(0), a.size(1), a.int(2), f32),
        "indices" => ops::indices(&a.sizes(0), DType::I32),
        "bartlett" => ops::bartlett(a.size(0)),
        "blackman" => ops::blackman(a.size(0)),
        "hamming" => ops::hamming(a.size(0)),
        "hanning" => ops::hanning(a.size(0)),
        "random.permutation" => random::permutation(key(a.int(0)), a.size(1)),
        _ => {
            let (key, shape) = (key(a.int(0)), &a.sizes(1)[..]);
            match name {
                "random.uniform" => random::uniform(key, shape, f32),
                "random.normal" => random::normal(key, shape, f32),
                "random.exponential" => random::exponential(key, shape, f32),
                "random.gumbel" => random::gumbel(key, shape, f32),
                "random.laplace" => random::laplace(key, shape, f32),
                "random.logistic" => random::logistic(key, shape, f32),
                "random.bits" => random::bits(key, shape, DType::U32) >> 8,
                "random.randint" => random::randint(key, shape, a.int(2), a.int(3), DType::I32),
                "random.bernoulli" => random::bernoulli(key, a.float(2), shape),
                "random.rademacher" => random::rademacher(key, shape, f32),
                "random.truncated_normal" => random::truncated_normal(key, -2.0, 2.0, shape, f32),
                "random.fold_in" => random::uniform(random::fold_in(key, a.int(2)), shape, f32),
                _ => panic!("no operation `{name}`"),
            }
        }
    }
}

/// The grids of two arrays.
pub(super) fn meshgrid(x: &[Array], indexing: &str) -> Vec<Array> {
    ops::meshgrid(x, if indexing == "xy" { Indexing::Xy } else { Indexing::Ij })
}
