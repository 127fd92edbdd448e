//! The operations of random programs that move elements: shapes, positions, order, windows.
use super::attributes::Attributes;
use super::steps::meshgrid;
use crate::ops::{self, Convolution, ConvolveMode, IndexMode, Item, ScalarOp, Side, Windows, between, by};
use crate::prelude::*;
use serde_json::Value;

/// The results of a step, if it is one of these.
pub(super) fn step(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    let kind = |name: &str| ["x.at", "ops.", "lax.", "flax."].iter().any(|start| name.starts_with(start));
    if kind(name) && !(a.0.is_empty() && name.starts_with("lax.")) {
        return placed(name, x, a).map(|x| vec![x]).or_else(|| match name {
            "lax.sort" => Some(ops::sort_together(x, 1, a.axis(0))),
            _ => None,
        });
    }
    let one = match name {
        "reshape" => x[0].reshape(&a.sizes(0)),
        "transpose" => x[0].transpose(&a.axes(0)),
        "swapaxes" => x[0].swapaxes(a.axis(0), a.axis(1)),
        "moveaxis" => x[0].moveaxis(a.axis(0), a.axis(1)),
        "expand_dims" => x[0].expand_dims(a.axis(0)),
        "broadcast_to" => x[0].broadcast_to(&a.sizes(0)),
        "flip" if a.0[0].is_null() => x[0].flip(..),
        "flip" => x[0].flip(&a.axes(0)[..]),
        "roll" => x[0].roll(a.int(0), a.axis(1)),
        "rot90" => x[0].rot90(a.int(0), [a.axes(1)[0], a.axes(1)[1]]),
        "repeat" => x[0].repeat(a.size(0), a.axis(1)),
        "tile" => x[0].tile(&a.sizes(0)),
        "pad" => {
            let widths: Vec<(usize, usize)> = a.pairs(0).iter().map(|p| (p.0 as usize, p.1 as usize)).collect();
            x[0].pad(&widths, a.int(1))
        }
        "concatenate" => ops::concatenate(x, a.axis(0)),
        "stack" => ops::stack(x, a.axis(0)),
        "append" => x[0].append(&x[1], a.axis(0)),
        "insert" => x[0].insert(a.axis(0), &x[1].index(0), a.axis(1)),
        "delete" => x[0].delete(a.axis(0), a.axis(1)),
        "x[a:b:c]" => x[0].index(ops::Index::from(&items(&a.0[0])[..])),
        "x[a:b, c]" => x[0].index((a.int(0)..a.int(1), a.int(2))),
        "x[a:-b]" => x[0].index(between(a.int(0), a.int(1))),
        "x[i, :, j]" => match a.text(0) {
            "i" => x[0].index(&x[1]),
            "::-1,i" => x[0].index((by(.., -1), &x[1])),
            "i,0" => x[0].index((&x[1], 0)),
            _ => x[0].index((Item::New, &x[1])),
        },
        "take" => x[0].take_with(&x[1], a.axis(0), a.mode(1)),
        "take_along_axis" => x[0].take_along_axis(&x[1], a.axis(0)),
        "put_along_axis" => x[0].put_along_axis(&x[1], x[2].cast(x[0].dtype()), a.axis(0)),
        "argwhere" => x[0].argwhere(a.size(0), a.int(1) as i32),
        "flatnonzero" => x[0].flatnonzero(a.size(0), a.int(1) as i32),
        "compress" => x[0].compress(&x[1], a.axis(0), a.size(1)),
        "extract" => x[0].extract(&x[1], a.size(0)),
        "bincount" => x[0].bincount(a.size(0)),
        "choose" => ops::choose(&x[0], &x[1..], a.mode(0)),
        "select" => ops::select_first(&x[..2], &x[2..], a.int(0)),
        "tril" => x[0].tril(a.int(0)),
        "triu" => x[0].triu(a.int(0)),
        "diagonal" => x[0].diagonal(a.int(0), a.axes(1)[0], a.axes(1)[1]),
        "trace" => x[0].trace(a.int(0), a.axes(1)[0], a.axes(1)[1]),
        "diag" => x[0].diag(a.int(0)),
        "diagflat" => x[0].diagflat(a.int(0)),
        "vander" => x[0].vander(a.size(0)),
        "nn.glu" => x[0].glu(a.axis(0)),
        "sort" if a.is(1) => x[0].sort_descending(a.axis(0)),
        "sort" => x[0].sort(a.axis(0)),
        "argsort" if a.is(1) => x[0].argsort_descending(a.axis(0)),
        "argsort" => x[0].argsort(a.axis(0)),
        "partition" => x[0].partition(a.axis(0), -1),
        "argpartition" => x[0].argpartition(a.axis(0), -1),
        "lexsort" => ops::lexsort(&[x[1].round(), x[0].clone()], a.axis(0)),
        "searchsorted" if a.text(0) == "left" => x[1].searchsorted(&x[0], Side::Left),
        "searchsorted" => x[1].searchsorted(&x[0], Side::Right),
        "digitize" => x[0].digitize(&x[1], a.is(0)),
        "unique" => x[0].unique(a.size(0), Some((-9).into())),
        "isin" => x[0].is_in(&x[1]),
        "union1d" => x[0].union(&x[1], a.size(0), Some((-9).into())),
        "intersect1d" => x[0].intersect(&x[1], a.size(0), Some((-9).into())),
        "setdiff1d" => x[0].set_difference(&x[1], a.size(0), Some((-9).into())),
        "setxor1d" => x[0].symmetric_difference(&x[1], a.size(0), Some((-9).into())),
        "convolve" => x[0].convolve(&x[1], overlap(a.text(0))),
        "correlate" => x[0].correlate(&x[1], overlap(a.text(0))),
        _ => return several(name, x, a),
    };
    Some(vec![one])
}

fn several(name: &str, x: &[Array], a: &Attributes) -> Option<Vec<Array>> {
    Some(match name {
        "split" => x[0].split(&a.sizes(0)[..], a.axis(1)),
        "array_split" => x[0].array_split(a.size(0), a.axis(1)),
        "hsplit" => x[0].hsplit(a.size(0)),
        "vsplit" => x[0].vsplit(a.size(0)),
        "dsplit" => x[0].dsplit(a.size(0)),
        "unstack" => x[0].unstack(a.axis(0)),
        "nonzero" => x[0].nonzero(a.size(0), a.int(1) as i32),
        "meshgrid" => meshgrid(x, a.text(0)),
        "top_k" => {
            let (elements, positions) = x[0].top_k(a.size(0), -1);
            vec![elements, positions]
        }
        _ => return None,
    })
}

/// Updates, segments and windows.
fn placed(name: &str, x: &[Array], a: &Attributes) -> Option<Array> {
    if let Some(update) = name.strip_prefix("x.at[i].") {
        if update == "get" {
            return Some(x[0].at(&x[1]).mode(IndexMode::Fill).get());
        }
        let (at, y) = match a.text(0) {
            "i" => (x[0].at(&x[1]), x[2].clone()),
            "1:" => (x[0].at(1..), x[2].ravel().index(0)),
            _ => (x[0].at(by(.., 2)), x[2].ravel().index(0)),
        };
        return Some(match update {
            "set" => at.set(&y),
            "add" => at.add(&y),
            "multiply" => at.multiply(&y),
            "min" => at.min(&y),
            _ => at.max(&y),
        });
    }
    Some(match name {
        "ops.segment_sum" => finite(&x[0].segment_sum(&x[1], a.size(0))),
        "ops.segment_prod" => finite(&x[0].segment_prod(&x[1], a.size(0))),
        "ops.segment_max" => finite(&x[0].segment_max(&x[1], a.size(0))),
        "ops.segment_min" => finite(&x[0].segment_min(&x[1], a.size(0))),
        "lax.conv_general_dilated" => {
            let options = Convolution {
                window_strides: &a.sizes(0),
                padding: a.padding(1),
                lhs_dilation: &a.sizes(2),
                rhs_dilation: &a.sizes(3),
                feature_group_count: a.size(4),
                batch_group_count: a.size(5),
                ..Convolution::default()
            };
            ops::conv_general_dilated(&x[0], &x[1], &options)
        }
        "lax.conv" => ops::conv(&x[0], &x[1], &a.sizes(0), a.padding(1)),
        "lax.conv_transpose" => {
            ops::conv_transpose(&x[0], &x[1], &a.sizes(0), a.padding(1), false, &Convolution::default())
        }
        "lax.reduce_window" => {
            let op = match a.text(0) {
                "add" => ScalarOp::Add,
                "max" => ScalarOp::Maximum,
                _ => ScalarOp::Minimum,
            };
            let windows = Windows {
                window_dimensions: &a.sizes(1),
                window_strides: &a.sizes(2),
                padding: a.padding(3),
                window_dilation: &a.sizes(4),
                ..Windows::default()
            };
            x[0].reduce_window(op, &windows)
        }
        "flax.linen.max_pool" => x[0].max_pool(&a.sizes(0), &a.sizes(1), a.padding(2)),
        "flax.linen.min_pool" => x[0].min_pool(&a.sizes(0), &a.sizes(1), a.padding(2)),
        "flax.linen.avg_pool" => x[0].avg_pool(&a.sizes(0), &a.sizes(1), a.padding(2), a.is(3)),
        _ => return None,
    })
}

/// Empty segments have infinite extremes.
fn finite(x: &Array) -> Array {
    ops::select(&x.is_pos_inf(), 9.0, ops::select(&x.is_neg_inf(), -9.0, x))
}

fn overlap(text: &str) -> ConvolveMode {
    match text {
        "full" => ConvolveMode::Full,
        "same" => ConvolveMode::Same,
        _ => ConvolveMode::Valid,
    }
}

/// Items of an index: positions, and ranges with a step.
fn items(list: &Value) -> Vec<Item> {
    let item = |item: &Value| match item.as_i64() {
        Some(position) => Item::At(position),
        None => Item::Range { start: item[0].as_i64(), stop: item[1].as_i64(), step: item[2].as_i64().unwrap_or(1) },
    };
    list.as_array().expect("a list").iter().map(item).collect()
}
