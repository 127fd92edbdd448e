//! Launches that continue after their call returns: order, memory that is freed or written in the meantime, errors.
use pallas_rt::prelude::*;

/// Number of elements of a launch that is too large to run within the call.
const MUCH: usize = 1 << 18;

#[kernel(grid = (cdiv(N, 4096)))]
fn scaled(#[block([N] => [4096], |i| (i,))] x: In<f32>, #[block([N] => [4096], |i| (i,))] out: Out<f32>, scale: f32) {
    out.store((x.load() * scale).sin());
}

#[kernel(grid = (cdiv(N, 4096)))]
fn added(
    #[block([N] => [4096], |i| (i,))] x: In<f32>,
    #[block([N] => [4096], |i| (i,))] y: In<f32>,
    #[block([N] => [4096], |i| (i,))] out: Out<f32>,
) {
    out.store(x.load() + y.load());
}

/// A loop whose step is a run-time number.
#[kernel(grid = (cdiv(N, 4096)))]
fn stepped(#[block([N] => [4096], |i| (i,))] x: In<f32>, #[block([N] => [4096], |i| (i,))] out: Out<f32>, step: i32) {
    let mut sum = x.load();
    for _ in (0..8).step_by(step) {
        sum += 1.0f32;
    }
    out.store(sum);
}

/// Random calls, with and without donation, with new and existing arrays, small and large, whose operands are dropped
/// or overwritten by the host immediately. Compared with the same calls with a wait after each.
#[test]
fn calls_in_a_row_mean_the_same_as_one_by_one() {
    let run = |wait: bool| -> Result<Vec<Vec<f32>>> {
        let client = Client::cpu().isolated()?;
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let fresh = |seed: usize, n: usize| {
            let numbers: Vec<f32> = (0..n).map(|i| ((i * 31 + seed * 17) % 97) as f32 * 0.01).collect();
            client.array(&numbers, &[n])
        };
        let mut results = vec![];
        for n in [MUCH, 100, MUCH + 3] {
            let mut arrays = (0..4).map(|seed| fresh(seed, n)).collect::<Result<Vec<_>>>()?;
            for step in 0..60 {
                let (a, b) = (random(4), random(4));
                match random(7) {
                    0 => arrays[a] = scaled(&arrays[b], 1.5)?,
                    1 => {
                        let taken = std::mem::replace(&mut arrays[a], fresh(step, n)?);
                        arrays[b] = scaled(taken, 0.5)?;
                    }
                    2 => arrays[a] = added(&arrays[a], &arrays[b])?,
                    3 if a != b => {
                        let x = arrays[b].clone();
                        // Refused if an earlier step shared the output.
                        let _ = into([&mut arrays[a]], || scaled(&x, 2.0));
                    }
                    4 => {
                        if let Ok(Some(buffer)) = arrays[a].buffer_mut() {
                            let bytes = buffer.bytes_mut()?.expect("host memory");
                            bytes[..4].copy_from_slice(&(step as f32).to_ne_bytes());
                        }
                    }
                    5 => arrays[a] = fresh(step, n)?,
                    _ => arrays[a] = arrays[b].clone(),
                }
                if wait {
                    client.block_until_ready()?;
                }
            }
            for array in arrays {
                results.push(array.to_vec()?);
            }
        }
        Ok(results)
    };
    assert!(run(false).expect("no kernel fails") == run(true).expect("no kernel fails"));
}

#[test]
fn an_error_of_a_launch_reaches_all_that_follows_from_it() -> Result<()> {
    let client = Client::cpu().isolated()?;
    let x = client.full(&[MUCH], 1.0f32)?;
    assert_eq!(stepped(&x, 2)?.to_vec::<f32>()?, [5.0; MUCH]);
    let failed = |result: Result<()>| {
        let error = result.expect_err("the step is 0");
        assert!(error.code() == "step" && error.to_string().contains("queue.rs"), "{error}");
    };
    let y = stepped(&x, 0)?;
    let z = added(&y, &x)?;
    failed(z.to_vec::<f32>().map(drop));
    failed(y.block_until_ready());
    failed(y.to_device(&Client::interpreter()).map(drop));
    failed(client.block_until_ready());
    assert_eq!(client.block_until_ready(), Ok(()), "an error is reported once");
    assert_eq!(added(&x, &x)?.to_vec::<f32>()?, [2.0; MUCH], "the client goes on");
    Ok(())
}

#[test]
fn threads_of_a_pool_wait_for_launches_that_need_them() {
    use rayon::prelude::*;
    let client = Client::cpu();
    let x = client.full(&[MUCH], 0.5f32).expect("it fits");
    let expected = scaled(&x, 1.0).and_then(|y| y.to_vec::<f32>()).expect("it runs");
    let late = scaled(&x, 1.0).expect("it runs");
    let sums: Vec<bool> = (0..16usize)
        .into_par_iter()
        .map(|_| late.to_vec::<f32>() == Ok(expected.clone()) && scaled(&late, 1.0).is_ok())
        .collect();
    assert_eq!(sums, [true; 16]);
}
