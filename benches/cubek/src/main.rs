//! CubeK's matmul and attention, run by `benches/adapter` through a pipe.
//!
//! `cubek matmul N` or `cubek attention HEADS POSITIONS HEAD full|causal`; then, for each line `run` on stdin, a run
//! and its milliseconds on the wall and of all processors, and for `result` the numbers it gave.
use cubecl::future::block_on;
use cubecl::prelude::*;
use cubecl::std::tensor::TensorHandle;
use cubek_attention::forward::definition::{AttentionGlobalTypes, AttentionOptions};
use cubek_attention::forward::launch as attention;
use cubek_matmul::definition::MatmulElems;
use cubek_matmul::strategy::Strategy;
use cubek_std::InputBinding;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

type Client = cubecl::client::Client;

/// The same numbers as in `benches/adapter`.
fn numbers(elements: usize, operand: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7 + operand * 3 + 1).wrapping_mul(2_654_435_761) % 1009) as f32 / 1009.0 - 0.5;
    (0..elements).map(number).collect()
}

fn tensor(client: &Client, shape: &[usize], operand: usize) -> TensorHandle {
    let data = numbers(shape.iter().product(), operand);
    let handle = client.create_from_slice(bytemuck::cast_slice(&data));
    TensorHandle::new_contiguous(shape.to_vec(), handle, f32::elem_type_native())
}

fn empty(client: &Client, shape: &[usize]) -> TensorHandle {
    let handle = client.empty(4 * shape.iter().product::<usize>());
    TensorHandle::new_contiguous(shape.to_vec(), handle, f32::elem_type_native())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments[i].parse::<usize>().expect("a number");
    let client = cubecl::Device::Wgpu(Default::default()).client();
    let dtype = f32::elem_type_native();
    let (run, out): (Box<dyn Fn()>, TensorHandle) = match arguments[0].as_str() {
        "matmul" => {
            let shape = [number(1), number(1)];
            let (a, b, out) = (tensor(&client, &shape, 0), tensor(&client, &shape, 1), empty(&client, &shape));
            let (to, client) = (out.clone(), client.clone());
            let run = move || {
                cubek_matmul::launch::launch_ref(
                    &Strategy::Auto,
                    &client,
                    InputBinding::Normal(a.clone().binding(), dtype),
                    InputBinding::Normal(b.clone().binding(), dtype),
                    to.clone().binding(),
                    &mut MatmulElems::from_single_dtype(dtype),
                )
                .expect("it runs");
            };
            (Box::new(run), out)
        }
        _ => {
            let shape = [1, number(1), number(2), number(3)];
            let [q, k, v] = [0, 1, 2].map(|i| tensor(&client, &shape, i));
            let out = empty(&client, &shape);
            let types =
                AttentionGlobalTypes::from_single_float_dtype(dtype, AttentionGlobalTypes::mask_dtype(&client));
            let options = AttentionOptions { causal: arguments[4] == "causal", ..Default::default() };
            let (to, client) = (out.clone(), client.clone());
            let run = move || {
                attention::launch_ref(
                    attention::Strategy::Unit(attention::BlueprintStrategy::Inferred(())),
                    &client,
                    q.clone().binding(),
                    k.clone().binding(),
                    v.clone().binding(),
                    None,
                    to.clone().binding(),
                    &types,
                    options.clone(),
                )
                .expect("it runs");
            };
            (Box::new(run), out)
        }
    };
    block_on(client.sync()).map_err(|e| format!("{e:?}"))?;
    for line in std::io::stdin().lines() {
        if line? == "run" {
            let (start, before) = (Instant::now(), processors()?);
            run();
            block_on(client.sync()).map_err(|e| format!("{e:?}"))?;
            println!("{} {}", start.elapsed().as_secs_f64() * 1e3, processors()? - before);
        } else {
            let bytes = client.read_one_unchecked(out.handle.clone());
            let words: Vec<String> = bytemuck::cast_slice(&bytes).iter().map(|x: &f32| x.to_string()).collect();
            println!("{}", words.join(" "));
        }
    }
    Ok(())
}

/// Milliseconds this process' living threads have run, on Linux.
fn processors() -> Result<f64, Box<dyn Error>> {
    let mut sum = 0.0;
    for thread in Path::new("/proc/self/task").read_dir()? {
        let line = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        sum += line.split(' ').next().ok_or("an empty line")?.parse::<f64>()? * 1e-6;
    }
    Ok(sum)
}
