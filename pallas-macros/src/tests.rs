//! The expansion never panics, whatever tokens it is given; what it costs.
use crate::kernel_tokens;
use proc_macro2::{Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};
use quote::ToTokens;

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
struct Random {
    state: u64,
    /// The tokens of all kernels.
    words: Vec<TokenTree>,
}

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % n.max(1) as u64) as usize
    }
    fn word(&mut self) -> TokenTree {
        let at = self.below(self.words.len());
        self.words[at].clone()
    }
}

fn count(tokens: &TokenStream) -> usize {
    let inner = |t: TokenTree| if let TokenTree::Group(g) = t { count(&g.stream()) } else { 0 };
    tokens.clone().into_iter().map(|t| 1 + inner(t)).sum()
}

/// Deletes, duplicates, wraps or replaces token `at`, in depth-first order, or inserts another one beside it.
fn mutate(tokens: TokenStream, at: &mut isize, random: &mut Random) -> TokenStream {
    let mut out = vec![];
    for token in tokens {
        let here = *at == 0;
        *at -= 1;
        if here {
            match random.below(13) {
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
                8 | 9 => out.push(random.word()),
                10 => out.extend([token, random.word()]),
                11 => {
                    // The token replaces the one before it.
                    let before = out.pop();
                    out.push(token);
                    out.extend(before);
                }
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

/// Attribute and item of every kernel in a file.
fn kernels(text: &str) -> Vec<(TokenStream, TokenStream)> {
    let file = syn::parse_file(text).expect("the file is Rust");
    let kernel = |item| match item {
        syn::Item::Fn(mut f) => {
            let at = f.attrs.iter().position(|a| a.path().is_ident("kernel"))?;
            let attr = f.attrs.remove(at).meta.require_list().expect("a kernel has options").tokens.clone();
            Some((attr, f.to_token_stream()))
        }
        _ => None,
    };
    file.items.into_iter().filter_map(kernel).collect()
}

const FLASH_ATTENTION: &str = include_str!("../../kernels/src/flash_attention.rs");

/// The kernels that are mutated.
fn seeds() -> Vec<(TokenStream, TokenStream)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/src");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("the shipped kernels").flatten().map(|f| f.path()).collect();
    files.sort();
    let shipped = files.iter().map(|file| std::fs::read_to_string(file).expect("text"));
    let parse = |s: &str| s.parse::<TokenStream>().expect("the seed is Rust");
    let mut seeds = vec![(parse(ATTR), parse(ITEM))];
    seeds.extend(shipped.flat_map(|text| kernels(&text)));
    seeds
}

#[test]
fn shipped_kernels_get_no_error() {
    for (attr, item) in seeds().into_iter().skip(1) {
        let code = kernel_tokens(attr, item).to_string();
        assert!(!code.contains("compile_error"), "{code}");
    }
}

/// Mutations in CI; `PALLAS_MUTATIONS=100000 cargo test -p pallas-macros --lib hostile -- --nocapture` makes more.
const FEW: usize = 3_000;
/// Time after which an expansion counts as hanging, long enough for a busy machine.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(20);

/// All single tokens, including those inside of groups.
fn leaves(tokens: TokenStream, out: &mut Vec<TokenTree>) {
    for token in tokens {
        match token {
            TokenTree::Group(g) => leaves(g.stream(), out),
            leaf => out.push(leaf),
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "how far they came")]
fn hostile_tokens_give_tokens() {
    let seeds: Vec<_> = seeds().into_iter().map(|(a, i)| (count(&a), count(&i), a, i)).collect();
    assert!(seeds.len() > 20, "{} kernels", seeds.len());
    let mut words = vec![];
    seeds.iter().for_each(|(.., a, i)| [a, i].into_iter().for_each(|t| leaves(t.clone(), &mut words)));
    let wanted = std::env::var("PALLAS_MUTATIONS").map_or(FEW, |n| n.parse().expect("a number"));
    let mut random = Random { state: 0x9e37_79b9_7f4a_7c15, words };
    let (mut failed, mut checked, mut expanded) = (std::collections::BTreeMap::new(), 0, 0);
    for n in 0..wanted {
        let (attrs, items, attr, item) = &seeds[n % seeds.len()];
        let (mut a, mut i) = (attr.clone(), item.clone());
        for _ in 0..1 + random.below(3) {
            let at = random.below(attrs + items);
            if at < *attrs {
                a = mutate(a, &mut (at as isize), &mut random);
            } else {
                i = mutate(i, &mut ((at - attrs) as isize), &mut random);
            }
        }
        let (text, start) = (format!("#[kernel({a})] {i}"), std::time::Instant::now());
        // All functions are checked, whatever is wrong with them.
        checked += usize::from(syn::parse2::<syn::ItemFn>(i.clone()).is_ok());
        // The output is tokens that rustc can read: at least an error.
        let said = match std::panic::catch_unwind(|| kernel_tokens(a, i).to_string()) {
            Err(e) => Some(e.downcast_ref::<String>().cloned().unwrap_or_default()),
            Ok(code) => {
                expanded += usize::from(!code.contains("compile_error"));
                // A lone `'` among the tokens is not valid Rust text, neither before nor after the expansion.
                let readable = code.parse::<TokenStream>().is_ok() || text.parse::<TokenStream>().is_err();
                (code.is_empty() || !readable).then(|| "no tokens".into())
            }
        };
        let said = said.or_else(|| (start.elapsed() > LONGEST).then(|| "it hangs".into()));
        said.map(|said| failed.entry(said).or_insert(text));
    }
    let failures = failed.len();
    println!("hostile tokens: {wanted} mutations, {checked} checked, {expanded} without an error, {failures} failures");
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(checked * 4 > wanted, "a quarter reaches the checks: {checked} of {wanted}");
    assert!(expanded * 30 > wanted, "one in thirty is still a kernel: {expanded} of {wanted}");
}

const TYPES: [&str; 2] = [
    "#[tree(crate = ::pallas_rt)] pub struct Layer<'a, T: Clone, S, const N: usize> where S: Eq {
        pub weight: [T; N], r#type: Option<Box<Layer<'a, T, S, N>>>, #[tree(fixed)] options: (S, &'a str) }",
    "enum Layer<T> { Dense { weight: T, #[tree(fixed)] stride: [u32; 2] }, Scaled(#[tree(fixed)] u8, Vec<T>), Relu }",
];

#[test]
fn hostile_types_give_tokens() {
    let seeds = TYPES.map(|text| text.parse::<TokenStream>().expect("the seed is Rust"));
    let mut words = vec![];
    seeds.iter().for_each(|seed| leaves(seed.clone(), &mut words));
    let mut random = Random { state: 0x9e37_79b9_7f4a_7c15, words };
    let mut derived = 0;
    for n in 0..FEW {
        let mut item = seeds[n % 2].clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(count(&item));
            item = mutate(item, &mut (at as isize), &mut random);
        }
        let text = item.to_string();
        let code = crate::derive_tree::derive(item).to_string();
        derived += usize::from(!code.contains("compile_error"));
        let readable = code.parse::<TokenStream>().is_ok() || text.parse::<TokenStream>().is_err();
        assert!(!code.is_empty() && readable, "{text}");
    }
    assert!(derived * 20 > FEW, "one in twenty is still a type: {derived} of {FEW}");
}

/// `CARGO_PROFILE_TEST_OPT_LEVEL=0 cargo test -p pallas-macros --lib -- --ignored --nocapture time_of` says what the
/// macro costs as cargo builds it for debugging.
#[test]
#[ignore = "measures time"]
#[allow(clippy::print_stdout, reason = "the figure")]
fn time_of_flash_attention() {
    let (attr, item) = kernels(FLASH_ATTENTION).swap_remove(0);
    let mut times: Vec<_> = (0..50)
        .map(|_| {
            let (attr, item) = (attr.clone(), item.clone());
            let start = std::time::Instant::now();
            std::hint::black_box(kernel_tokens(attr, item));
            start.elapsed()
        })
        .collect();
    let first = times[0];
    times.sort();
    println!("flash attention expands in {:?}, at first in {first:?}, at most in {:?}", times[25], times[49]);
}
