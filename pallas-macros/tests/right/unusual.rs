//! Kernels that are right, and look wrong to a hasty check of shapes: helpers, views in arrays, host conditions on
//! sizes, swapped variables, declared equalities, shadowed names.
use pallas_rt::prelude::*;

struct Ops<const K: usize>;
impl<const K: usize> Ops<K> {
    fn helper(t: Tile<f32>) -> Tile<f32> {
        t * K as f32
    }
    #[kernel(grid = (cdiv(N, 2 * BM)))]
    fn assoc<const BM: usize>(
        #[block([N, D] => [2 * BM, D], |i| (i, 0), fill = 0.0)] x: In<f32>,
        #[block([N, D] => [2 * BM, D], |i| (i, 0), alias = x)] out: Out<f32>,
        #[block([cdiv(N, 2 * BM), D] => [1, D], |i| (i, 0))] sums: Out<f32>,
        #[scratch([BM + BM, D])] s: Scratch<f32>,
    ) {
        use std::f32::consts::PI;
        const HALF: f32 = 0.5;
        fn twice<T: Number>(t: Tile<T>) -> Tile<T>
        where
            Tile<T>: std::ops::Add<Output = Tile<T>>,
        {
            t + t
        }
        s.store(out.load());
        let two = 2 * BM;
        #[allow(non_snake_case, reason = "a variable may hide a dimension")]
        let D = D;
        let zero = full([two, D], PI * 0.0) + full([BM + BM, D], HALF * 0.0);
        let t = twice(s.load()) + zero;
        let t = Ops::<K>::helper(t) / K as f32;
        let top = t.slice([0, 0], [BM, D]) + t.slice([BM, 0], [BM, D]);
        let mut k = 0;
        let mut fold = top;
        while k < 3 {
            fold = fold.t();
            k += 1;
        }
        let fold = if k % 2 == 1 { fold.t() } else { fold };
        let acc = {
            let mut acc = zeros::<f32>([1, D]);
            for r in 0..BM {
                acc += fold_row(fold, r);
            }
            acc
        };
        sums.store(acc);
        let (mut a, mut b) = (t, t * 0.0);
        for _ in 0..2 {
            (a, b) = (b, a);
        }
        for _ in 0..2 {
            let c = a;
            a = b;
            b = c;
        }
        out.store(a + b);
    }
}
fn fold_row(t: Tile<f32>, r: Scalar<i32>) -> Tile<f32> {
    let rows = iota::<i32>(t.shape(), 0);
    select(rows.eq(r), t, 0.0).sum(0)
}

#[kernel(grid = ())]
fn whole(#[block([M, N])] x: In<f32>, #[block([N, M])] out: Out<f32>, y: In<f32>) {
    let z = y.load();
    out.store((x.load() + z).t());
}

#[kernel(grid = (cdiv(N, BM)), assume(BM == BN, H == 2 * BM))]
fn assumed<const BM: usize, const BN: usize, const H: usize>(
    #[block([N] => [BM], |i| (i,), fill = 0.0)] x: In<f32>,
    #[block([N] => [BN], |i| (i,))] out: Out<f32>,
) {
    let h = full([H, 1], 1.0).reshape([2, BN]).sum(0).squeeze(0);
    out.store(x.load() + h + full([H], 0.0).slice([0], [BM]) + full([H / 2], 0.0));
}

/// Chooses between blocks of different forms.
#[kernel(grid = (1))]
fn refs<const T: bool>(
    #[block([M, N])] x: In<f32>,
    #[block([N, M])] y: In<f32>,
    #[block([M, N])] out: Out<f32>,
    #[fixed] side: usize,
) {
    let v = if T { y.load().t() } else { x.load() };
    let r = match side {
        0 => x,
        _ => x,
    };
    let views = [x.at(ds(0, 1)), x.at(ds(0, 1))];
    let v = v + views[0].load() + r.at(0).load().expand(0);
    let w = if side == 3 { v.slice([0, 0], [side, side]).broadcast([M, N]) } else { v };
    init(out);
    out.store(out.load() + w);
    if M == N {
        out.store(out.load() + x.load() * 0.0 + y.load() * 0.0);
    }
    out.at((0, ..)).store(out.at((0, ..)).load() * 1.0);
    let at = side - side;
    out.at((at, at)).store(out.at((at, at)).load());
}
fn init(out: Out<f32>) {
    out.fill(0.0);
}

fn ramp(client: &Client, shape: &[usize]) -> Array {
    let elements: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
    client.array(&elements, shape).expect("it fits")
}

/// What a call gives on the interpreter and on the CPU.
fn gives(call: impl Fn(&Client) -> Result<Array>, expected: &[f32]) {
    for client in [Client::interpreter(), Client::cpu()] {
        let found = call(&client).and_then(|a| a.to_vec::<f32>()).expect("the kernel is right");
        assert_eq!(found, expected);
    }
}

#[test]
fn associated_with_helpers_and_swaps() {
    let call = |c: &Client| Ops::<3>::assoc::<1>(ramp(c, &[4, 3]));
    let doubled: Vec<f32> = (0..12).map(|i| 2.0 * i as f32).collect();
    gives(|c| call(c).map(|(out, _)| out), &doubled);
    gives(|c| call(c).map(|(_, sums)| sums), &[6.0, 10.0, 14.0, 30.0, 34.0, 38.0]);
}

#[test]
fn whole_arrays_without_specs() {
    let transposed = [0.0, 6.0, 12.0, 18.0, 2.0, 8.0, 14.0, 20.0, 4.0, 10.0, 16.0, 22.0];
    gives(|c| whole(&ramp(c, &[4, 3]), &ramp(c, &[4, 3])), &transposed);
}

#[test]
fn declared_equalities() {
    gives(|c| assumed::<2, 2, 4>(&ramp(c, &[3])), &[2.0, 3.0, 4.0]);
}

#[test]
fn refs_in_variables() {
    let rows = [0.0, 2.0, 4.0, 0.0, 2.0, 4.0, 0.0, 2.0, 4.0, 0.0, 2.0, 4.0];
    gives(|c| refs::<true>(&ramp(c, &[4, 3]), &c.array(&[0.0f32; 12], &[3, 4])?, 1), &rows);
}
