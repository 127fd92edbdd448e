//! Const contexts, nested items and host comparisons of every kind stay as they are written.
use crate::both;
use pallas_rt::prelude::*;

const fn pick<const A: usize, const B: usize>() -> usize {
    if A < B { A } else { B }
}

#[cfg_attr(all(), kernel(grid = (1)))]
fn consts<const A: usize, const B: usize>(
    #[block([N] => [N], |_i| (0,))] x: In<f32>,
    #[block([N] => [N], |_i| (0,))] out: Out<f32>,
) {
    const BIG: bool = 3 < 4 && 1 != 2;
    fn nested(a: usize, b: usize) -> usize {
        if a < b {
            let mut t = a;
            for i in 0..3 {
                t += i
            }
            t
        } else {
            b
        }
    }
    let arr = [0u8; { if 2 < 3 { 4 } else { 5 } }];
    let arr2 = [0u8; if 2 < 3 { 4 } else { 5 }];
    let c = const { 1 < 2 };
    let p = pick::<4, { if 1 < 2 { 5 } else { 6 } }>();
    let k = if A < B { 1.0f32 } else { 2.0 };
    let s: &'static str = if A == B { "a" } else { "b" };
    let sh = 1usize << 3 >> 1;
    let cmp = (arr.len() as u8) < 3u8;
    let refs = &3 < &4;
    let opt = Some(3) > None;
    let arrs = [1, 2] == [1, 2] && vec![1] == [1] && (1, "a") < (2, "b");
    let st = "a".to_string() + "b" == "ab";
    let f = |a: &(u32, f32), b: &(u32, f32)| a.1.total_cmp(&b.1);
    let mut v = vec![(1, 2.0), (2, 1.0)];
    v.sort_by(f);
    let sorted = v[0].0 == 2;
    let maxed = v.iter().filter(|p| p.1 > 1.5).count();
    let g = v.iter().map(|&(a, _)| a).max().is_some_and(|m| m >= 2);
    let any = v.iter().any(|x| x.0 == 1 || x.1 < 0.0);
    let range_ok = (0..3).contains(&1) && matches!(v[0], (a, _) if a == 2);
    let neg = -1 < 0 && 0 > -1;
    let u: u64 = 5;
    let lit = u > 3 && 3 < u && u == 5;
    let parse: u16 = "7".parse().unwrap_or(0);
    let pp = parse == 7;
    let deref = {
        let b = Box::new(4);
        *b == 4 && 4 == *b
    };
    assert!(
        BIG && c && !cmp && refs && opt && arrs && st && sorted && g && any && range_ok && neg && lit && pp && deref
    );
    let total = (nested(1, 2) + arr.len() + arr2.len() + p + sh + maxed + s.len()) as f32 + k;
    out.store(x.load() * 0.0 + total);
}

#[test]
fn const_contexts_are_left_alone() {
    assert_eq!(both([0.0, 1.0], |x| consts::<4, 5>(x)), [4.0 + 4.0 + 4.0 + 4.0 + 4.0 + 1.0 + 1.0 + 1.0; 2]);
}
