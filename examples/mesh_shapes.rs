//! A transformer block on meshes of 64 devices that are not there: which shape of (data, fsdp, model) is best?
//!
//! `cargo run --release --example mesh_shapes`, or `.. mesh_shapes FOLDER` to write the times as `meshes.svg` and the
//! function on the best mesh as `block.html`.
//!
//! Batches are sharded by `data` and `fsdp`, parameters by `fsdp` (gathered where they are needed: ZeRO-3) and by
//! `model` (in the way of Megatron: heads of the attention, hidden numbers of the perceptron). The gradient of a block
//! is planned on each mesh: exchanges, memory of a device, time of a step. The exit code is 1 unless the exchanges are
//! those that these divisions need, and the block runs on eight virtual devices, 2 x 2 x 2, as it does on one.
mod usage;

use pallas_rt::plan::{MeshComparison, Shardings, StepPlan};
use pallas_rt::prelude::*;
use pallas_rt::sharding::{Link, Mesh, NamedSharding, P, PartitionSpec, Topology};
use pallas_rt::{jit, partitioned, random, value_and_grad, with_sharding_constraint};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// The sizes of a block.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    length: usize,
    heads: usize,
    /// Numbers of a head.
    head: usize,
    hidden: usize,
}

impl Sizes {
    fn width(self) -> usize {
        self.heads * self.head
    }
}

/// The parameters of a block.
#[derive(Clone, Tree)]
struct Block {
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    up: Array,
    down: Array,
}

impl Block {
    /// Parameters that `make` returns for each shape.
    fn new(sizes: Sizes, mut make: impl FnMut([usize; 2]) -> Result<Array>) -> Result<Block> {
        let (width, hidden) = (sizes.width(), sizes.hidden);
        Ok(Block {
            query: make([width, width])?,
            key: make([width, width])?,
            value: make([width, width])?,
            out: make([width, width])?,
            up: make([width, hidden])?,
            down: make([hidden, width])?,
        })
    }

    /// The same, of which columns or rows are sharded by `model`, and the others by `fsdp`.
    fn sharded(&self, put: &impl Fn(&Array, PartitionSpec) -> Array) -> Block {
        let columns = |w: &Array| put(w, P(("fsdp", "model")));
        let rows = |w: &Array| put(w, P(("model", "fsdp")));
        Block {
            query: columns(&self.query),
            key: columns(&self.key),
            value: columns(&self.value),
            out: rows(&self.out),
            up: columns(&self.up),
            down: rows(&self.down),
        }
    }

    /// The same, gathered along `fsdp` for use.
    fn gathered(&self, put: &impl Fn(&Array, PartitionSpec) -> Array) -> Block {
        let columns = |w: &Array| put(w, P((None, "model")));
        let rows = |w: &Array| put(w, P(("model", None)));
        Block {
            query: columns(&self.query),
            key: columns(&self.key),
            value: columns(&self.value),
            out: rows(&self.out),
            up: columns(&self.up),
            down: rows(&self.down),
        }
    }
}

/// Attention and a perceptron, each added to what it reads.
fn forward(block: &Block, x: &Array, sizes: Sizes) -> Result<Array> {
    let Sizes { batch, length, heads, head, .. } = sizes;
    let split = |w: &Array| Ok::<_, Error>(x.matmul(w).reshape(&[batch, length, heads, head]).transpose(&[0, 2, 1, 3]));
    let (q, k, v) = (split(&block.query)?, split(&block.key)?, split(&block.value)?);
    let scores = q.matmul(&k.transpose(&[0, 1, 3, 2])) * (head as f32).powf(-0.5);
    let mixed = scores.softmax(-1).matmul(&v).transpose(&[0, 2, 1, 3]).reshape(&[batch, length, sizes.width()]);
    let x = x + mixed.matmul(&block.out);
    Ok(&x + x.matmul(&block.up).gelu().matmul(&block.down))
}

/// The mean of squares of the results and its gradients, on one device.
fn plain(sizes: Sizes) -> impl Fn(&Block, &Array) -> Result<(Array, Block)> + Clone {
    move |block, x| {
        let x = x.clone();
        value_and_grad(move |block: &Block| Ok::<_, Error>(forward(block, &x, sizes)?.square().mean(..)))(block)
    }
}

/// The same on a mesh.
fn on_mesh(mesh: &Arc<Mesh>, sizes: Sizes) -> impl Fn(&Block, &Array) -> Result<(Array, Block)> + Clone + use<> {
    let mesh = mesh.clone();
    move |block, x| {
        let own = mesh.clone();
        let put = move |x: &Array, spec| with_sharding_constraint(x, &NamedSharding::new(&own, spec));
        let x = put(x, P((("data", "fsdp"), None, None)));
        let inner = put.clone();
        let loss = move |block: &Block| Ok::<_, Error>(forward(&block.gathered(&inner), &x, sizes)?.square().mean(..));
        let (value, gradients) = value_and_grad(loss)(&block.sharded(&put))?;
        Ok((value, gradients.sharded(&put)))
    }
}

fn mesh(data: usize, fsdp: usize, model: usize) -> Arc<Mesh> {
    Arc::new(Mesh::new(&[("data", data), ("fsdp", fsdp), ("model", model)]).expect("axes with names of their own"))
}

/// Parameters of a block and what it reads, without elements.
fn shapes(sizes: Sizes) -> Result<(Block, Array)> {
    let client = Client::cpu();
    let x = client.shape_dtype(&[sizes.batch, sizes.length, sizes.width()], DType::F32)?;
    Ok((Block::new(sizes, |shape| client.shape_dtype(&shape, DType::F32))?, x))
}

/// True if the six matrices are gathered along `fsdp`, and results of three products added up along `model`: of the
/// attention and the perceptron, and in the gradient of what the perceptron reads. There is no exchange along axes of
/// one device, and the planned bytes are those of all exchanges.
fn is_expected(found: &Shardings, plan: &StepPlan) -> bool {
    let mesh = &plan.mesh;
    let sized = |axes: &[String]| axes.iter().all(|axis| mesh.find(axis).is_ok_and(|axis| axis.size > 1));
    let total: usize = found.collectives().iter().map(|exchange| exchange.bytes).sum();
    let planned: usize = plan.by_axes().values().map(|own| own.bytes).sum();
    let along = |axis: usize| mesh.size(axis) > 1;
    plan.by_axes().keys().all(|axes| sized(axes))
        && total == planned
        && plan.count("all_gather", &["fsdp"]) == 6 * usize::from(along(1))
        && plan.count("all_reduce", &["model"]) == 3 * usize::from(along(2))
}

/// The greatest difference of gradients on eight virtual devices to those on one.
fn difference() -> Result<f32> {
    let sizes = Sizes { batch: 4, length: 8, heads: 4, head: 8, hidden: 64 };
    let mut keys = random::split::<7>(random::key(0)).into_iter();
    let mut made = |shape: &[usize], scale: f32| random::normal(keys.next().expect("seven"), shape, DType::F32) * scale;
    let x = made(&[sizes.batch, sizes.length, sizes.width()], 1.0);
    let block = Block::new(sizes, |shape| Ok(made(&shape, (shape[0] as f32).powf(-0.5))))?;
    let (_, one) = jit(plain(sizes))(&block, &x)?;
    let (_, all) = jit(on_mesh(&mesh(2, 2, 2), sizes))(&block, &x)?;
    let mut worst = 0.0f32;
    for (a, b) in [(&one.query, &all.query), (&one.out, &all.out), (&one.up, &all.up), (&one.down, &all.down)] {
        let (a, b) = (a.to_vec::<f32>()?, b.to_vec::<f32>()?);
        worst = a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(worst, f32::max);
    }
    Ok(worst)
}

/// Plans the block on several meshes, and writes pictures to a folder; returns false if something is not as expected.
pub fn run(folder: Option<&Path>) -> Result<bool> {
    let sizes = Sizes { batch: 64, length: 1024, heads: 16, head: 128, hidden: 8192 };
    let (block, x) = shapes(sizes)?;
    // 200 TFLOP/s, 800 GB/s and 16 GiB a device; rings inside of a group of devices, a network between groups.
    let machine = Topology::new(200e12, 800e9)
        .memory(16 << 30)
        .link("data", Link::switch(12e9, 5e-6))
        .link("fsdp", Link::ring(45e9, 1e-6))
        .link("model", Link::ring(45e9, 1e-6));
    let meshes = [(64, 1, 1), (1, 64, 1), (8, 8, 1), (8, 1, 8), (4, 4, 4), (1, 8, 8), (2, 4, 8), (1, 4, 16)];
    let (mut plans, mut is_good) = (vec![], true);
    for (data, fsdp, model) in meshes {
        let found = partitioned(on_mesh(&mesh(data, fsdp, model), sizes))(&block, &x)?;
        let plan = found.plan(&machine)?;
        if !is_expected(&found, &plan) {
            eprintln!("other collectives than expected:\n{plan}");
            is_good = false;
        }
        plans.push(plan);
    }
    let all: MeshComparison = plans.into_iter().collect();
    println!("{all}");
    if let Some(best) = all.best() {
        println!("the best one:\n{best}");
        if let Some(folder) = folder {
            let page = partitioned(on_mesh(&best.mesh, sizes))(&block, &x)?.to_html();
            let written =
                [("meshes.svg", all.to_svg()), ("block.html", page)].into_iter().try_for_each(|(name, text)| {
                    std::fs::create_dir_all(folder).and_then(|()| std::fs::write(folder.join(name), text))
                });
            if let Err(error) = written {
                eprintln!("{}: {error}", folder.display());
                is_good = false;
            }
        }
    }
    let worst = difference()?;
    println!("greatest difference of gradients on 2 x 2 x 2 virtual devices to one: {worst:e}");
    Ok(is_good && worst < 1e-5)
}

fn main() -> ExitCode {
    usage::read(include_str!("mesh_shapes.rs"), &[]);
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    match run(folder.as_deref()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("not as expected: collectives along axes of more than one device, equal gradients");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
