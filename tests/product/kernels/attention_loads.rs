//! What attention loads: as many keys, values, queries and gradients as blocks are live, counted one by one.
use super::B;
use super::attention_reference::Scene;
use crate::support::{array, close, doubles, values};
use pallas_kernels::flash_attention::{Causal, Options, Window, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::gradients_in_blocks;
use pallas_kernels::flash_attention_bias::bias_gradient_in_blocks;
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_rt::interpreter::count_loads;
use pallas_rt::prelude::*;

const BATCH: usize = 2;
const HEADS: usize = 2;
const D: usize = 2;

fn plain(queries: usize, keys: usize) -> Scene {
    Scene {
        sizes: [BATCH, HEADS, 1, queries, keys, D],
        scale: 1.0,
        causal: Causal::No,
        window: Window::default(),
        lengths: None,
        segments: None,
        bias: Some([1, 1]),
        soft_cap: None,
        sinks: false,
        dropout: None,
    }
}

/// Elements of all blocks of queries, and of all blocks of keys, of which some query sees some key.
fn live(scene: &Scene) -> [u64; 2] {
    let [batch, heads, _, queries, keys, d] = scene.sizes;
    let mut elements = [0, 0];
    for (b, i, j) in
        (0..batch).flat_map(|b| (0..queries).step_by(B).flat_map(move |i| (0..keys).step_by(B).map(move |j| (b, i, j))))
    {
        let (rows, columns) = (i..queries.min(i + B), j..keys.min(j + B));
        if rows.clone().any(|i| columns.clone().any(|j| scene.sees(b, i, j))) {
            elements[0] += (rows.len() * d * heads) as u64;
            elements[1] += (columns.len() * d * heads) as u64;
        }
    }
    elements
}

/// Runs every kernel and compares what it loads; gives the share of blocks of keys that is live.
fn check(scene: &Scene) -> f64 {
    let client = Client::interpreter();
    let [batch, heads, key_heads, queries, keys, d] = scene.sizes;
    let make = |shape: &[usize], seed| array(&client, DType::F32, shape, &values(shape.iter().product(), seed));
    let (q, k, v) = (
        make(&[batch, heads, queries, d], 1),
        make(&[batch, key_heads, keys, d], 2),
        make(&[batch, key_heads, keys, d], 3),
    );
    let bias = make(&[1, 1, queries, keys], 4);
    let numbers = |x: &[i32], n: usize| client.array(x, &[batch, n]).expect("it fits");
    let segments = scene.segments.as_ref().map(|[own, theirs]| [numbers(own, queries), numbers(theirs, keys)]);
    let lengths = scene.lengths.as_ref().map(|lengths| {
        let lengths: Vec<i32> = lengths.iter().map(|&n| n as i32).collect();
        client.array(&lengths, &[batch]).expect("it fits")
    });
    let options = Options {
        causal: scene.causal,
        window: scene.window,
        lengths: lengths.as_ref(),
        segments: segments.as_ref().map(|s| s.each_ref()),
        bias: Some(&bias),
        ..Options::default()
    };
    let [of_queries, of_keys] = live(scene);
    let (found, loaded) = count_loads(|| {
        let (out, lse) = flash_attention_in_blocks::<f32>(&q, &k, &v, &options, [B, B])?;
        let (operands, results) = ([&q, &k, &v], [&out, &lse]);
        gradients_in_blocks::<f32>(operands, results, &out, &options, [[B; 2]; 2])?;
        resident_gradients::<f32>(operands, results, &out, &options, [B, B])?;
        bias_gradient_in_blocks::<f32>(operands, results, &out, &options, [B, B])
    });
    found.expect("it runs");
    let expect = |kernel: &str, operands: &[(&str, u64)]| {
        for &(operand, want) in operands {
            let found = loaded.get(&(format!("flash_attention_{kernel}"), operand.into())).copied().unwrap_or(0);
            assert_eq!(found, want, "`{operand}` of {kernel}: {scene:?}");
        }
    };
    expect("blocks", &[("k", of_keys), ("v", of_keys)]);
    for kernel in ["dq", "dkv", "resident", "dbias"] {
        expect(kernel, &[("k", of_keys), ("v", of_keys), ("q", of_queries), ("dout", of_queries)]);
    }
    of_keys as f64 / (batch * heads * keys * d * queries.div_ceil(B)) as f64
}

#[test]
fn of_blocks_that_a_mask_leaves() {
    for causal in [Causal::No, Causal::FromStart, Causal::FromEnd] {
        for (left, right) in [(None, None), (Some(5), None), (Some(2), Some(3)), (Some(0), Some(0)), (None, Some(2))] {
            let scene = Scene { causal, window: Window { left, right }, ..plain(19, 22) };
            let share = check(&scene);
            let all = causal == Causal::No && left.is_none() && right.is_none();
            assert_eq!(all, share == 1.0, "{share} of the blocks are live: {scene:?}");
        }
    }
}

#[test]
fn of_keys_within_their_lengths() {
    for causal in [Causal::No, Causal::FromStart, Causal::FromEnd] {
        for (left, lengths) in [(None, [22, 7]), (None, [0, 12]), (Some(3), [13, 22]), (Some(3), [4, 1])] {
            let window = Window { left, right: None };
            assert!(check(&Scene { causal, window, lengths: Some(lengths.to_vec()), ..plain(19, 22) }) < 0.8);
        }
    }
}

/// Numbers `0, 0, .., 1, 1, ..` of segments of these lengths, plus another number in each batch element.
fn packed(lengths: &[usize]) -> Vec<i32> {
    let one: Vec<i32> = lengths.iter().enumerate().flat_map(|(i, &n)| vec![i as i32; n]).collect();
    (0..BATCH as i32).flat_map(|b| one.iter().map(move |i| i + 3 * b)).collect()
}

#[test]
fn of_blocks_of_packed_segments() {
    // Ends of segments at ends of blocks, inside of them, several in one block, one over all.
    let parts: [&[usize]; 4] = [&[8, 4, 8], &[5, 9, 6], &[1, 1, 1, 7, 2, 8], &[20]];
    for (lengths, causal) in parts.iter().flat_map(|p| [Causal::No, Causal::FromStart].map(|c| (p, c))) {
        let one = packed(lengths);
        let scene = Scene { segments: Some([one.clone(), one]), causal, ..plain(20, 20) };
        let share = check(&scene);
        assert!(share < 0.7 || lengths.len() == 1, "{share} of the blocks are live: {scene:?}");
        check(&Scene { window: Window { left: Some(6), right: Some(5) }, ..scene });
    }
    // Queries and keys of different numbers: an encoder's.
    check(&Scene { segments: Some([packed(&[3, 6, 2]), packed(&[9, 2, 7])]), ..plain(11, 18) });
}

/// Padding, between segments and at the end, is skipped with whole blocks, and needs a mask elsewhere.
#[test]
fn of_blocks_that_are_not_all_padding() {
    for padding in [&[(8, 20)][..], &[(3, 5), (8, 12), (19, 20)], &[(0, 20)], &[(13, 20)]] {
        // That of the second batch element.
        let mut numbers = packed(&[8, 12]);
        padding.iter().for_each(|(from, to)| numbers[20 + from..20 + to].fill(-1));
        let share = check(&Scene { segments: Some([numbers.clone(), numbers]), ..plain(20, 20) });
        assert!(share < 0.6, "{share} of the blocks are live");
    }
}

/// Where a block lies within one segment, its numbers are not looked at: no mask is needed.
#[test]
fn of_no_numbers_of_whole_segments() {
    let client = Client::interpreter();
    let x = array(&client, DType::F32, &[1, 1, 4 * B, D], &values(4 * B * D, 1));
    let count = |parts: &[usize]| {
        let numbers = client.array(&packed(parts)[..4 * B], &[1, 4 * B]).expect("it fits");
        let options = Options { segments: Some([&numbers, &numbers]), ..Options::default() };
        let (found, loaded) = count_loads(|| flash_attention_in_blocks::<f32>(&x, &x, &x, &options, [B, B]));
        found.expect("it runs");
        let of = |operand: &str| loaded.get(&("flash_attention_blocks".into(), operand.into())).copied().unwrap_or(0);
        // Those of keys say besides which values are padding.
        assert_eq!(2 * of("query_segments"), of("key_segments"));
        of("query_segments") as usize
    };
    assert_eq!(count(&[2 * B, 2 * B]), 0);
    // Of ten live blocks two, the first and the last, are of one segment.
    assert_eq!(count(&[B + 1, B + 1, 2 * B - 2]), B * 8);
}

/// Blocks of queries and of keys are of two sizes, and another way round for the gradients by keys.
#[test]
fn of_other_blocks_give_the_same_gradients() {
    let client = Client::interpreter();
    let make = |seed| array(&client, DType::F32, &[BATCH, HEADS, 20, D], &values(BATCH * HEADS * 20 * D, seed));
    let (q, k, v) = (make(1), make(2), make(3));
    let numbers = client.array(&packed(&[5, 9, 6]), &[BATCH, 20]).expect("it fits");
    let options = Options { segments: Some([&numbers, &numbers]), ..Options::default() };
    let (out, lse) = flash_attention_in_blocks::<f32>(&q, &k, &v, &options, [B, B]).expect("it runs");
    let (operands, results) = ([&q, &k, &v], [&out, &lse]);
    let want = gradients_in_blocks::<f32>(operands, results, &out, &options, [[20; 2]; 2]).expect("it runs");
    for found in [
        gradients_in_blocks::<f32>(operands, results, &out, &options, [[8, 3], [3, 8]]),
        gradients_in_blocks::<f32>(operands, results, &out, &options, [[3, 8], [8, 3]]),
    ] {
        let found = found.expect("it runs");
        for (found, want) in [(found.0, &want.0), (found.1, &want.1), (found.2, &want.2)] {
            close(&found, &doubles(want), 20, 8.0, "in other blocks");
        }
    }
}
