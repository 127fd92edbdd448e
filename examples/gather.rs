//! An embedding look-up by scalar prefetch: a table of numbers, read ahead of the body, chooses which block each
//! program sees. Rows that nobody asks for are never touched.
//!
//! `cargo run --example gather [-- --device cpu|gpu|interpret]`
mod device;
mod usage;

use pallas_rt::prelude::*;

// `ids` is prefetched: index maps may read it. The row's dimension is squeezed by `_`, so the body sees [B].
#[kernel(grid = (N, cdiv(D, B)))]
fn gather<const B: usize>(
    #[prefetch([N])] ids: Prefetch<i32>,
    #[block([V, D] => [_, B], |i, j| (ids.at(i), j))] table: In<f32>,
    #[block([N, D] => [_, B], |i, j| (i, j))] out: Out<f32>,
) {
    out.store(table.load());
}

// The sum of the rows of each bag: bag i has the ids `starts[i]..starts[i + 1]`. Here the body reads the prefetched
// tables itself, and a window of the whole table's rows; the loop's length is known only when the kernel runs.
#[kernel(grid = (N))]
fn bags(
    #[prefetch([N1])] starts: Prefetch<i32>,
    #[prefetch([M])] ids: Prefetch<i32>,
    #[block([V, D] => [V, D], |_| (0, 0))] table: In<f32>,
    #[block([N, D] => [1, D], |i| (i, 0))] out: Out<f32>,
    #[dim] N: usize,
) {
    let bag = program_id(0);
    let mut sum = zeros::<f32>([1, D]);
    for at in starts.at(bag)..starts.at(bag + 1) {
        sum += table.at((ds(ids.at(at), 1), ..)).load();
    }
    out.store(sum);
}

fn main() -> Result<()> {
    usage::read(include_str!("gather.rs"), &["--device"]);
    run(&device::client()?)
}

pub fn run(client: &Client) -> Result<()> {
    println!("on {}", client.why());
    let (rows, width) = (50, 20usize);
    let table = client.array(&(0..rows * width).map(|i| i as f32).collect::<Vec<_>>(), &[rows, width])?;
    let ids = [7, 0, 49, 7, 30i32];
    let found = gather::<8>(&client.array(&ids, &[ids.len()])?, &table)?;
    println!("rows {ids:?} of {rows}:\n{found}");
    let expected = ids.iter().flat_map(|&id| (0..width).map(move |j| (id as usize * width + j) as f32));
    assert!(found.to_vec::<f32>()?.into_iter().eq(expected));

    let starts = client.array(&[0, 2, 2, 5], &[4])?;
    let sums = bags(&starts, &client.array(&ids, &[ids.len()])?, &table, 3)?;
    println!("sums of bags of 2, 0 and 3 of them:\n{sums}");
    let first: Vec<f32> = sums.to_vec::<f32>()?.into_iter().step_by(width).collect();
    assert_eq!(first, [7, 0, 86].map(|id| (id * width) as f32));

    // An id that is no row: the interpreter says which; other devices load `fill`, 0 without one, never other memory.
    let interpreter = Client::interpreter();
    let wild = interpreter.array(&[3, 50], &[2])?;
    println!("\n{}", gather::<8>(&wild, &table.to_device(&interpreter)?).expect_err("there is no row 50"));
    Ok(())
}
