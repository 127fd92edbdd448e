//! Shipped kernels on meshes of virtual devices, against the same calls on one device: each operand sharded along each
//! of its dimensions, and lengths and blocks of all kinds on two to seven devices. Gradients, too.
mod cases;

use super::Function;
use super::inlined::array;
use pallas_kernels::attention_scores::Causal;
use pallas_kernels::cross_entropy::cross_entropy;
use pallas_kernels::flash_attention::{Options, flash_attention, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::gradients_in_blocks;
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_kernels::matmul::{matmul, matmul_blocks, matmul_nt_blocks};
use pallas_kernels::norm::{layer_norm, layer_norm_whole_rows, rms_norm, rms_norm_whole_rows};
use pallas_kernels::softmax::softmax_whole_rows;
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
use pallas_rt::{grad, jit, partitioned, value_and_grad};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Kernels that no division of an operand reaches, which run whole on each device: data decide which blocks of `parts`
/// a program combines, the results of `norm_backward_parts` have unlike blocks, and those of parts of classes are not
/// called.
const NEVER_SHARDED: [&str; 4] =
    ["combine_splits", "cross_entropy_dx_of_parts", "cross_entropy_resident", "norm_backward_parts"];

/// Differences that other orders of sums may make, of numbers of about 1.
const TOLERANCE: f32 = 2e-5;

fn numbers(x: &Array) -> Vec<f32> {
    x.cast(DType::F32).to_vec().unwrap_or_else(|e| panic!("{e}"))
}

/// The array on a mesh of so many devices, padded along a dimension to a length that they divide.
fn sharded(x: &Array, dim: usize, devices: usize) -> Array {
    let mesh = Arc::new(Mesh::new(&[("x", devices)]).expect("a mesh"));
    let missing = x.shape()[dim].next_multiple_of(devices) - x.shape()[dim];
    let widths: Vec<(usize, usize)> = (0..x.shape().len()).map(|d| (0, if d == dim { missing } else { 0 })).collect();
    let spec = match dim {
        0 => P("x"),
        1 => P((None, "x")),
        2 => P((None, None, "x")),
        _ => P((None, None, None, "x")),
    };
    device_put(&x.pad(&widths, 1), &NamedSharding::new(&mesh, spec)).unwrap_or_else(|e| panic!("{e}"))
}

/// The results of a function, and the kernels of which each device runs a part.
type Outcome = (Vec<Array>, BTreeSet<String>);

/// Calls a function with one of its arguments sharded along a dimension. What is declared for a kernel that cannot
/// follow is refused; an operation in front of the kernel is the remedy.
fn on_mesh<F>(f: F, args: &[Array], which: usize, dim: usize, devices: usize) -> Result<Outcome>
where
    F: Fn(&Vec<Array>) -> Result<Vec<Array>> + Clone + Send + Sync + 'static,
{
    match declared(f.clone(), args, which, dim, devices) {
        Err(error) if error.code() == "sharded-kernel" => {
            let behind = move |x: &Vec<Array>| {
                let mut x = x.clone();
                x[which] = (&x[which] * 1.0).cast(x[which].dtype());
                f(&x)
            };
            declared(behind, args, which, dim, devices)
        }
        found => found,
    }
}

/// As [`on_mesh`], without the remedy.
fn declared<F>(f: F, args: &[Array], which: usize, dim: usize, devices: usize) -> Result<Outcome>
where
    F: Fn(&Vec<Array>) -> Result<Vec<Array>> + Clone + Send + Sync + 'static,
{
    let mut own = args.to_vec();
    let n = own[which].shape()[dim];
    own[which] = sharded(&own[which], dim, devices);
    // The function gets arrays of the lengths that it should, so that blocks of devices are not of equal lengths.
    let cut = move |x: &Vec<Array>| {
        let mut x = x.clone();
        if x[which].shape()[dim] != n {
            x[which] = x[which].split([n], dim as isize).swap_remove(0);
        }
        f(&x)
    };
    let text = partitioned(cut.clone())(&own)?.to_local_text();
    let kernels = text.lines().filter_map(|line| line.split_once("kernel ")?.1.split_once("_shard "));
    let kernels = kernels.map(|(name, _)| name.to_string()).collect();
    Ok((jit(cut)(&own)?, kernels))
}

#[track_caller]
fn close(what: &str, found: &[Array], want: &[Array]) {
    assert_eq!(found.len(), want.len(), "{what}");
    for (found, want) in found.iter().zip(want) {
        assert_eq!(found.shape(), want.shape(), "{what}");
        let (found, want) = (numbers(found), numbers(want));
        let is_close = |(x, y): (&f32, &f32)| x == y || (x - y).abs() <= TOLERANCE * (1.0 + y.abs());
        let wrong = found.iter().zip(&want).position(|pair| !is_close(pair));
        assert_eq!(wrong.map(|i| (i, found[i], want[i])), None, "{what}");
    }
}

#[test]
fn shipped_kernels_with_each_dimension_sharded() {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for Function { name, operands: args, call } in cases::all() {
        let f = move |x: &Vec<Array>| call(x);
        let want = f(&args).unwrap_or_else(|e| panic!("{name}: {e}"));
        for which in 0..args.len() {
            for dim in 0..args[which].shape().len() {
                for devices in [2, 3] {
                    let what = format!("{name}, dimension {dim} of operand {which} on {devices} devices");
                    let found =
                        on_mesh(f.clone(), &args, which, dim, devices).unwrap_or_else(|e| panic!("{what}: {e}"));
                    close(&what, &found.0, &want);
                    seen.extend(found.1);
                }
            }
        }
    }
    let shipped: BTreeSet<String> = crate::shaders::shipped().into_iter().map(|(name, _)| name).collect();
    let never: Vec<&String> = shipped.difference(&seen).collect();
    assert_eq!(never, NEVER_SHARDED, "sharded are {seen:?}");
}

/// A kernel in blocks of a size, the operand and the dimension of its length, and that one's block.
struct Blocked {
    name: &'static str,
    args: fn(usize) -> Vec<Array>,
    which: usize,
    dim: usize,
    f: fn(&Vec<Array>) -> Result<Vec<Array>>,
    kernel: &'static str,
}

const LENGTHS: [usize; 6] = [1, 5, 8, 13, 24, 33];

fn rows(n: usize) -> Vec<Array> {
    vec![array(&[n, 6], 1), array(&[1, 6], 2), array(&[1, 6], 3)]
}

/// Keys as long as queries: a causal mask depends on both positions.
fn causal<const BQ: usize, const BK: usize>(x: &[Array]) -> Result<Vec<Array>> {
    let options = Options { causal: Causal::FromStart, ..Options::default() };
    let (out, lse) = flash_attention_in_blocks::<f32>(&x[0], &x[1], &x[2], &options, [BQ, BK])?;
    let (operands, dout) = ([&x[0], &x[1], &x[2]], &x[0]);
    let (dq, dk, dv) = gradients_in_blocks::<f32>(operands, [&out, &lse], dout, &options, [[BQ, BK], [BK, BQ]])?;
    let (_, resident, _) = resident_gradients::<f32>(operands, [&out, &lse], dout, &options, [BQ, BK])?;
    Ok(vec![out, dq, dk, dv, resident])
}

fn product<const TRANSPOSED: bool>(x: &[Array], blocks: [usize; 3]) -> Result<Vec<Array>> {
    let [m, n, k] = blocks;
    let same = |x: Tile<f32>| x;
    Ok(vec![match TRANSPOSED {
        false => matmul_blocks::<f32, f32>(&x[0], &x[1], same, m, n, k)?,
        true => matmul_nt_blocks::<f32, f32>(&x[0], &x[1], same, m, n, k)?,
    }])
}

fn blocked() -> Vec<Blocked> {
    let case = |name, args, which, dim, f, kernel| Blocked { name, args, which, dim, f, kernel };
    vec![
        case("softmax 1", rows, 0, 0, |x| Ok(vec![softmax_whole_rows::<f32>(&x[0], false, 1)?]), "softmax_whole_rows"),
        case("softmax 8", rows, 0, 0, |x| Ok(vec![softmax_whole_rows::<f32>(&x[0], false, 8)?]), "softmax_whole_rows"),
        case(
            "layer norm 4",
            rows,
            0,
            0,
            |x| Ok(vec![layer_norm_whole_rows::<f32>(&x[0], &x[1], &x[2], 1e-5, 4)?]),
            "layer_norm_whole_rows",
        ),
        case(
            "rms norm 16",
            rows,
            0,
            0,
            |x| Ok(vec![rms_norm_whole_rows::<f32>(&x[0], &x[1], 1e-5, 16)?]),
            "rms_norm_whole_rows",
        ),
        case(
            "product, rows",
            |n| vec![array(&[1, n, 7], 1), array(&[1, 7, 9], 2)],
            0,
            1,
            |x| product::<false>(x, [4, 4, 4]),
            "matmul_blocks",
        ),
        case(
            "product, columns",
            |n| vec![array(&[1, 9, 7], 1), array(&[1, n, 7], 2)],
            1,
            1,
            |x| product::<true>(x, [2, 8, 4]),
            "matmul_nt_blocks",
        ),
        case(
            "product, batches",
            |n| vec![array(&[n, 3, 7], 1), array(&[n, 7, 2], 2)],
            1,
            0,
            |x| product::<false>(x, [2, 8, 4]),
            "matmul_blocks",
        ),
        case("causal attention 4", heads_alike, 0, 2, |x| causal::<4, 4>(x), "flash_attention_blocks"),
        case("causal attention 8", heads_alike, 0, 2, |x| causal::<8, 4>(x), "flash_attention_dq"),
        case("keys of causal attention", heads_alike, 1, 2, |x| causal::<4, 8>(x), "flash_attention_dkv"),
    ]
}

fn heads_alike(n: usize) -> Vec<Array> {
    [1, 2, 3].map(|seed| array(&[1, 2, n, 4], seed)).to_vec()
}

#[test]
fn lengths_blocks_and_devices_of_all_kinds() {
    for Blocked { name, args, which, dim, f, kernel } in blocked() {
        for n in LENGTHS {
            let args = args(n);
            let want = f(&args).unwrap_or_else(|e| panic!("{name}: {e}"));
            for devices in [2, 3, 4, 7] {
                let what = format!("{name}: {n} on {devices} devices");
                let (found, kernels) = on_mesh(f, &args, which, dim, devices).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(n == 1 || kernels.contains(kernel), "{what}: sharded are {kernels:?}");
                close(&what, &found, &want);
            }
        }
    }
}

/// Queries and keys of one sequence are sharded by rows, heads or batch elements; kernels of gradients are sharded like
/// those of values.
#[test]
fn gradients_of_attention_on_meshes() {
    let f = |x: &Vec<Array>| {
        let options = Options { causal: Causal::FromStart, ..Options::default() };
        let loss = move |x: &Vec<Array>| {
            let out = flash_attention(&x[0], &x[1], &x[2], &options)?;
            let normal = layer_norm(&out, &x[3], &x[3], 1e-5)?;
            Ok::<_, Error>((normal * &x[0]).sum(..))
        };
        grad(loss)(x)
    };
    let mut args: Vec<Array> = [1, 2, 3].map(|seed| array(&[4, 4, 19, 8], seed)).to_vec();
    args.push(array(&[8], 4));
    let want = f(&args).expect("it runs");
    for dim in 0..3 {
        for devices in [2, 4] {
            let (found, kernels) = on_mesh(f, &args, 0, dim, devices).unwrap_or_else(|e| panic!("{dim}: {e}"));
            close(&format!("gradients by dimension {dim} on {devices} devices"), &found, &want);
            assert!(kernels.contains("flash_attention_whole"), "dimension {dim}: {kernels:?}");
        }
    }
}

/// Attention without a bias, segments and sinks has other arrays in their place, which no device gathers.
#[test]
fn attention_by_batch_elements_or_heads_needs_no_exchange() {
    let attention = |x: &Vec<Array>| {
        let options = Options { causal: Causal::FromStart, ..Options::default() };
        flash_attention(&x[0], &x[1], &x[2], &options)
    };
    let loss = move |x: &Vec<Array>| attention(x).map(|out| out.square().sum(..));
    let want = attention(&queries_and_keys()).expect("it runs");
    for dim in 0..2 {
        for devices in [2, 4] {
            let args: Vec<Array> = queries_and_keys().iter().map(|x| sharded(x, dim, devices)).collect();
            let found = partitioned(attention)(&args).expect("it is traced");
            assert!(found.collectives().is_empty(), "dimension {dim}: {:?}", found.collectives());
            close("attention", &[jit(attention)(&args).expect("it runs")], std::slice::from_ref(&want));
            let found = partitioned(grad(loss))(&args).expect("it is traced");
            assert!(found.collectives().is_empty(), "gradients, dimension {dim}: {:?}", found.collectives());
        }
    }
}

/// Four batch elements of four heads.
fn queries_and_keys() -> Vec<Array> {
    [([4, 4, 19, 8], 1), ([4, 4, 23, 8], 2), ([4, 4, 23, 8], 3)].map(|(shape, seed)| array(&shape, seed)).to_vec()
}

/// Bytes that each device sends for a function of sharded arguments, and the exchanges.
#[track_caller]
fn sent<F>(f: F, args: &[Array]) -> (usize, String)
where
    F: Fn(&Vec<Array>) -> Result<Vec<Array>> + Clone + Send + Sync + 'static,
{
    let all = partitioned(f)(&args.to_vec()).unwrap_or_else(|e| panic!("{e}")).collectives();
    let text = all.iter().map(|one| format!("{} of {} bytes {}", one.name, one.bytes, one.cause));
    (all.iter().map(|one| one.bytes).sum(), text.collect::<Vec<_>>().join("\n"))
}

/// Under plain data parallelism, gradients by parameters are sums over rows: devices send these, and no activations.
#[test]
fn gradients_of_norms_and_losses_send_sums() {
    type F = fn(&Vec<Array>) -> Result<Vec<Array>>;
    let functions: [(&str, F, usize); 4] = [
        ("rms_norm", |x| grad(|x: &Vec<Array>| Ok::<_, Error>(rms_norm(&x[0], &x[1], 1e-5)?.square().sum(..)))(x), 1),
        (
            "layer_norm",
            |x| grad(|x: &Vec<Array>| Ok::<_, Error>(layer_norm(&x[0], &x[1], &x[2], 1e-5)?.square().sum(..)))(x),
            2,
        ),
        ("cross_entropy", |x| grad(|x: &Vec<Array>| loss_of_classes(x))(x), 12),
        ("matmul", |x| grad(|x: &Vec<Array>| Ok::<_, Error>(matmul(&x[4], &x[3].t())?.square().sum(..)))(x), 12),
    ];
    let (rows, d, classes) = (64, 32, 12);
    let args = vec![
        array(&[8, rows / 8, d], 1),
        array(&[d], 2),
        array(&[d], 3),
        array(&[classes, d], 4),
        array(&[rows, d], 5),
    ];
    for (name, f, parameters) in functions {
        let want = f(&args).unwrap_or_else(|e| panic!("{name}: {e}"));
        for devices in [2, 4, 8] {
            let own = args.iter().enumerate().map(|(i, x)| match i {
                0 | 4 => sharded(x, 0, devices),
                _ => x.clone(),
            });
            let own: Vec<Array> = own.collect();
            let (bytes, text) = sent(f, &own);
            // All-reduces of the parameters' gradients, and of the loss.
            assert!(bytes <= 2 * 4 * (parameters * d + 4), "{name} on {devices} sends {bytes} bytes:\n{text}");
            close(&format!("{name} on {devices}"), &jit(f)(&own).unwrap_or_else(|e| panic!("{name}: {e}")), &want);
        }
    }
}

/// The loss of rows of operand 0 by the classifier in operand 3.
fn loss_of_classes(x: &[Array]) -> Result<Array> {
    let n = x[0].len() / x[3].shape()[1];
    let labels: Vec<i32> = (0..n as i32).map(|i| (i * 5 + 1) % x[3].shape()[0] as i32).collect();
    let labels = x[0].client().array(&labels, &x[0].shape()[..x[0].rank() - 1])?;
    Ok(cross_entropy(&x[0], &x[3], &labels, &Default::default())?.0.mean(..))
}

/// Classifiers that are sharded by classes or by features, with and without sharded rows, and queries that are sharded:
/// the kernels gather what they need, though it is declared to be sharded.
#[test]
fn sharded_classifiers_and_queries() {
    let args = vec![array(&[8, 8, 32], 1), array(&[1], 2), array(&[1], 3), array(&[24, 32], 4)];
    let f = |x: &Vec<Array>| {
        let (value, gradients) = value_and_grad(|x: &Vec<Array>| loss_of_classes(x))(x)?;
        Ok([vec![value], gradients].concat())
    };
    let want = f(&args).expect("it runs");
    let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"));
    let put = |x: &Array, spec| device_put(x, &NamedSharding::new(&mesh, spec)).expect("it is sharded");
    for w in [P("model"), P("data"), P((None, "model")), P((["data", "model"],)), P(("model", "data"))] {
        for x in [P("data"), P((["data", "model"],)), P(())] {
            let own = vec![put(&args[0], x.clone()), args[1].clone(), args[2].clone(), put(&args[3], w.clone())];
            let found = jit(f)(&own).unwrap_or_else(|e| panic!("{w:?}, {x:?}: {e}"));
            close(&format!("classifier by {w:?}, rows by {x:?}"), &found, &want);
        }
    }
    let attention = |x: &Vec<Array>| {
        let loss = |x: &Vec<Array>| {
            Ok::<_, Error>(flash_attention(&x[0], &x[1], &x[2], &Options::default())?.square().sum(..))
        };
        grad(loss)(x)
    };
    let args = queries_and_keys().iter().map(|x| x.split([16], 2).swap_remove(0)).collect::<Vec<_>>();
    let want = attention(&args).expect("it runs");
    for spec in [P((None, None, "model")), P(("data", None, "model")), P((None, "data", "model"))] {
        let own = vec![put(&args[0], spec.clone()), args[1].clone(), args[2].clone()];
        let found = jit(attention)(&own).unwrap_or_else(|e| panic!("{spec:?}: {e}"));
        close(&format!("queries by {spec:?}"), &found, &want);
    }
}

/// A contraction that is shorter than a block for each device: they send parts of the product.
#[test]
fn short_contractions_send_parts_of_the_product() {
    for devices in [2, 4] {
        let args = vec![sharded(&array(&[48, 64], 1), 1, devices), sharded(&array(&[64, 40], 2), 0, devices)];
        let f = |x: &Vec<Array>| Ok(vec![matmul(&x[0], &x[1])?]);
        let (bytes, text) = sent(f, &args);
        assert!(text.lines().all(|line| line.starts_with("all_reduce")) && bytes <= 2 * 4 * 48 * 40, "{bytes}: {text}");
        close(
            "product",
            &jit(f)(&args).expect("it runs"),
            &f(&[array(&[48, 64], 1), array(&[64, 40], 2)].to_vec()).expect("it runs"),
        );
    }
}
