//! The expansion never panics, whatever tokens it is given.
use crate::kernel_tokens;
use proc_macro2::{Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};

const ATTR: &str = "grid = (B, cdiv(S, BQ)), semantics = (parallel, arbitrary), assume(BQ == BK)";
const ITEM: &str = "pub fn k<const BQ: usize, const BK: usize, E: Float>(
    #[block([B, S, D] => [_, BQ, D], |b, i| (b, i, 0), fill = 0.0)] x: In<E>,
    #[block([S] => [Element(BQ, 1, 1)], |b, i| (element(i * 2),))] w: In<f32>,
    #[prefetch([B])] lens: Prefetch<i32>, #[scratch([BQ, 1])] m: Scratch<f32>, scale: f32,
    #[fixed] causal: bool, #[dim] N: usize, #[block([B, S, D] => [_, BQ, D], |b, i| (b, i, 0), alias = x)] out: Out<E>,
) {
    let mut acc = x.load() * scale;
    if causal && N > 3 { acc = acc + 1.0; }
    'rows: for j in (0..S / BK).rev().step_by(2) { if j == 3 { continue 'rows; } acc += x.load(); }
    while program_id(0) < lens.at(0) { acc = acc * 2.0; if i >= S { break; } }
    let y = if j < D { acc } else { -acc };
    m.store(y.sum(1)); out.store(match D { 1 => y, _ => acc.exp() });
}";

/// Xorshift: the same mutations in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

fn count(tokens: &TokenStream) -> usize {
    let inner = |t: TokenTree| if let TokenTree::Group(g) = t { count(&g.stream()) } else { 0 };
    tokens.clone().into_iter().map(|t| 1 + inner(t)).sum()
}

/// Deletes, doubles or replaces the token number `at`, counted in depth-first order.
fn mutate(tokens: TokenStream, at: &mut isize, random: &mut Random) -> TokenStream {
    let mut out = vec![];
    for token in tokens {
        let here = *at == 0;
        *at -= 1;
        if here {
            match random.below(9) {
                0 => {}
                1 => out.extend([token.clone(), token]),
                2 => out
                    .push(Punct::new(['=', ',', '.', '|', '<', ';', '&', '!'][random.below(8)], Spacing::Alone).into()),
                3 => out.push(Ident::new_raw("type", Span::call_site()).into()),
                4 => out.push(
                    Ident::new(
                        ["B", "Element", "if", "x", "self", "_", "mut", "for"][random.below(8)],
                        Span::call_site(),
                    )
                    .into(),
                ),
                5 => out.push(Literal::u64_unsuffixed(u64::MAX).into()),
                6 => out.push(Group::new(proc_macro2::Delimiter::Parenthesis, TokenStream::new()).into()),
                7 => out.push(Group::new(proc_macro2::Delimiter::Bracket, token.into()).into()),
                _ => out.extend([Punct::new('-', Spacing::Alone).into(), token]),
            }
        } else if let TokenTree::Group(g) = token {
            out.push(Group::new(g.delimiter(), mutate(g.stream(), at, random)).into());
        } else {
            out.push(token);
        }
    }
    out.into_iter().collect()
}

#[test]
fn mutated_kernels_never_panic() {
    let parse = |s: &str| s.parse::<TokenStream>().expect("the seed is Rust");
    let (attr, item) = (parse(ATTR), parse(ITEM));
    let (attrs, items) = (count(&attr), count(&item));
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut panicked = std::collections::BTreeMap::new();
    for _ in 0..10_000 {
        let (mut a, mut i) = (attr.clone(), item.clone());
        for _ in 0..1 + random.below(3) {
            let at = random.below(attrs + items);
            if at < attrs {
                a = mutate(a, &mut (at as isize), &mut random);
            } else {
                i = mutate(i, &mut ((at - attrs) as isize), &mut random);
            }
        }
        let text = format!("#[kernel({a})] {i}");
        if let Err(e) = std::panic::catch_unwind(|| kernel_tokens(a, i)) {
            let words = e.downcast_ref::<String>().cloned().unwrap_or_default();
            panicked.entry(words).or_insert(text);
        }
    }
    assert!(panicked.is_empty(), "{panicked:#?}");
}
