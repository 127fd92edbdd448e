//! Each way of sorting gives the stable order.
use super::*;

/// Bits of floats with ties, zeros of both signs, infinities and NaNs of both signs among them.
fn floats(n: usize, distinct: u64) -> Vec<u32> {
    let special = [0x8000_0000, 0, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0xffc0_0001, 1, 0x8000_0001];
    let mut state = n as u64 + distinct;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    (0..n)
        .map(|_| match next() % 8 {
            0 => special[next() as usize % 8],
            _ => ((next() % distinct) as f32 - distinct as f32 / 2.0).to_bits(),
        })
        .collect()
}

struct Check<'a>(&'a [u32], usize, u32);
impl KeyRuleVisitor for Check<'_> {
    type Out = [Vec<u32>; 2];
    fn visit<U: KeyBits, const CLASS: u8>(self, rule: KeyRule<U, CLASS>) -> [Vec<u32>; 2] {
        let Check(x, k, halvings) = self;
        let x: Vec<U> = x.iter().map(|&x| U::from_word(x.into())).collect();
        let (mut all, mut buffer) = (vec![U::from_word(0); x.len()], vec![U::from_word(0); x.len()]);
        sort_values(rule, &x, &mut all, &mut buffer, halvings);
        let [mut a, mut b] = sort_buffer_lengths(x.len(), k, halvings).map(|n| vec![U::from_word(0).pack(0); n]);
        let mut found = vec![0; k];
        sort_positions(rule, &x, &mut found, [&mut a, &mut b], halvings);
        [all.into_iter().map(|x| x.to_word() as u32).collect(), found]
    }
}

#[test]
fn all_ways_give_the_stable_order() {
    for order in [SortOrder::Ascending, SortOrder::Descending, SortOrder::Largest] {
        for n in [0, 1, 2, 3, 7, 8, 9, 31, 255, 256, 257, 1000, 4096, 5001, 70_001] {
            for (distinct, halvings) in [(3, 0), (1 << 30, 0), (1000, 1), (5, 2), (1 << 30, 3)] {
                let x = floats(n, distinct);
                let halvings = if n < MIN_RADIX_SORT_ELEMENTS << halvings { 0 } else { halvings };
                let compare = |&a: &u32, &b: &u32| {
                    let [a, b] = [a, b].map(|i| f32::from_bits(x[i as usize]));
                    let weak = |a: f32, b: f32| a.partial_cmp(&b).unwrap_or(a.is_nan().cmp(&b.is_nan()));
                    match order {
                        SortOrder::Ascending => weak(a, b),
                        SortOrder::Descending => weak(b, a),
                        SortOrder::Largest => b.total_cmp(&a),
                    }
                };
                let mut wanted: Vec<u32> = (0..n as u32).collect();
                wanted.sort_by(compare);
                for k in [n, n / 2, n.min(7), n / 20] {
                    let [all, found] = visit_key_rule(DType::F32, order, Check(&x, k, halvings));
                    assert_eq!(found, wanted[..k], "{order:?} of {n}, k {k}, halved {halvings} times");
                    let elements: Vec<u32> = wanted.iter().map(|&i| x[i as usize]).collect();
                    assert_eq!(all, elements, "{order:?} of {n}, halved {halvings} times");
                }
            }
        }
    }
}
