//! Bodies beside what the check says about them.
use crate::kernel_tokens;
use proc_macro2::{TokenStream, TokenTree};

fn parse(text: &str) -> TokenStream {
    text.parse().expect("the test is Rust")
}

/// Every string within the tokens of `compile_error!`.
fn words(tokens: TokenStream, found: &mut Vec<String>) {
    let mut after = false;
    for t in tokens {
        if let TokenTree::Group(g) = &t {
            if after {
                found.extend(syn::parse2::<syn::LitStr>(g.stream()).map(|s| s.value()));
            } else {
                words(g.stream(), found);
            }
        }
        after = match &t {
            TokenTree::Ident(i) => i == "compile_error",
            TokenTree::Punct(_) => after,
            TokenTree::Group(_) | TokenTree::Literal(_) => false,
        };
    }
}

/// What is said about a kernel over `x: [M, K]` in blocks `[BM, K]`, `w: [K, N]` in blocks `[K, BN]` and
/// `out: [M, N]` in blocks `[BM, BN]` with this body.
fn said(body: &str) -> Vec<String> {
    let attr = parse("grid = (cdiv(M, BM), cdiv(N, BN)), assume(H == 2 * BM)");
    let item = parse(&format!(
        "fn k<const BM: usize, const BN: usize, const H: usize>(
            #[block([M, K] => [BM, K], |i, _| (i, 0))] x: In<f32>,
            #[block([K, N] => [K, BN], |_, j| (0, j))] w: In<f32>,
            #[block([M, N] => [BM, BN], |i, j| (i, j))] out: Out<f32>,
            #[prefetch([M])] lens: Prefetch<i32>,
            #[scratch([BM, 1])] s: Scratch<f32>,
            scale: f32, #[fixed] causal: bool, #[fixed] n: usize,
        ) {{ s.fill(0.0); let (y, z) = (x.load(), w.load()); let keep = (lens.at(0), s.load(), scale, causal, n); {body} out.fill(0.0); }}"
    ));
    let mut found = vec![];
    words(kernel_tokens(attr, item), &mut found);
    found
}

#[test]
fn what_fits_is_not_mentioned() {
    const RIGHT: &[&str] = &[
        "let mut acc = dot(y, z); acc += 1.0; out.store(acc * 2.0);",
        "out.store((y.sum(1) + s.load()).broadcast([BM, BN]));",
        "let a = y.max(1).expand(2).squeeze(2) / y; let b = y.t().t() + y; let c = y.reshape([K, BM]).t() - y;",
        "let a = full([H, 3], 1.0).reshape([BM, 6]); let b = full([2 * BM, 3], scale) + full([H, 3], 2.0);",
        "let a = y.at_least(3);",
        // Only the sizes of one side of a host condition have to fit.
        "if BM == BN { out.store(dot(y, z).t()); }",
        "if BM == BN && { let _ = dot(y, z) + dot(y, z).t(); true } {}",
        "if BM != BN { return; } out.store(dot(y, z).t());",
        "match BM { 16 => out.store(full([16, BN], 1.0)), _ => {} }",
        "assert_eq!(BM, BN); out.store(dot(y, z).t());",
        "assert!(BM == 2 * BN); out.store(full([2 * BN, BN], 1.0));",
        "let a = if BM > BN { y } else { y.t() }; let b = a + y;",
        "let mut a = y; if causal { a = a.t(); } let b = a + z;",
        "#[cfg(any())] out.store(z); #[cfg(any())] let y = z; let a = y + y;",
        // Loops of the host change shapes.
        "let mut a = y; #[unroll] for i in 0..2 { a = concat([a, a], 0); } out.store(a);",
        "let mut a = y; for _ in [1, 2] { a = a.t(); } out.store(a);",
        "let mut a = y; let mut i = 0; while i < n { a = a.t(); i += 1; } out.store(a);",
        "let mut a = y; loop { a = a.t(); break; } out.store(a);",
        // What is the user's own is unknown.
        "fn dot(a: Tile<f32>, _b: Tile<f32>) -> Tile<f32> { a } let a = dot(y, z) + y;",
        "let select = |a: Tile<f32>, b, c| a; let a = select(y, z, z);",
        "let a = mine(y) + mine(z); out.store(mine(y)); out.store(y.mine());",
        "let mut a = y; mine!(a); out.store(a);",
        "let mut a = y; mine(&mut a); out.store(a);",
        "let mut a = y; let mut f = || a = a.t(); f(); out.store(a);",
        "let (mut a, b); (a, b) = (z.t(), y); a = z; let c = a + z + mine(b);",
        "let c; if causal { c = y; } else { c = y.t(); } let d = c + z;",
        "let [a, .., b] = [y, z, y]; let c = a + b; let P { q, .. } = mine(); let d = q + y;",
        "let a = y.slice([0, 0], [n, 1]) + y; let b = full([n], 1.0) + full([K], 1.0);",
        "for i in 0..n { let t = x.at((ds(i, 2), ..)).load() + full([2, K], 1.0); }",
        "let r = x.at(0).load() + full([K], 0.0); let q = out.at((.., 0)); q.store(full([BM], 1.0));",
        "let t = s.at((.., 0)).at(ds(0, 1)).load() + full([1], 1.0); s.swap(y.sum(1));",
        "let a = Q_BLOCK + y.shape()[0] + y.rank(); let b = full([Q_BLOCK], 1.0) + full([BM], 1.0);",
        "let a = full([BM.min(BN), 1], 1.0) + full([BM, 1], 1.0); let b = full([BM / 2], 1.0) + full([BM], 1.0);",
        "let a = select(x.valid(0), y, 0.0); let b = x.load_masked(y.gt(0.0), 0.0); let c = x.valid(1) & x.valid(0);",
        "let h = scale * y * 3 as f32 + f32::NEG_INFINITY; let i = program_id(1) + num_programs(0) * BM as i32;",
        "let a = [y; 3]; let b = a[1] + y; let c = concat(&a[..], 0); let d = concat(a, 0) + full([3 * BM, K], 1.0);",
        "let a = (y, z).1.t() + full([BN, K], 1.0); let b = y.pad([0, 0], [1, 0], 0.0) + full([BM + 1, K], 1.0);",
        "let a = y.argmax(1).one_hot(K) & y.gt(0.0); let b = y.take_along_axis(y.argmax(1), 1) + s.load();",
        "let Some(a) = mine() else { return }; out.store(z);",
        "'a: { if causal { break 'a; } out.store(dot(y, z)); }",
        "let a = full([BM.min(1), K], 1.0).squeeze(0) + full([K], 1.0);",
        "out.fill(0.0); out.store(out.load() + dot(y, z));",
        "if causal { out.store(out.load()); } for i in 0..2 { let a = out.load(); }",
        "mine(out); out.store(out.load());",
        "let (r, v) = (out.shape(), out.valid(0)); mine!(out); let a = out.load();",
        "out.fill(scale); out.store_masked(dot(y, z), dot(y, z).gt(0.0)); let l = lens.at(program_id(0));",
    ];
    for body in RIGHT {
        assert_eq!(said(body), [] as [String; 0], "{body}");
    }
}

#[test]
fn own_functions_are_found() {
    use super::shadowed_names::declares_or_imports;
    assert!(declares_or_imports("/// Rows by rows.\nfn dot<T>(a: T, b: T) {}", "dot"));
    assert!(declares_or_imports("use crate::tiles::{dot, other as select};", "dot"));
    assert!(!declares_or_imports("use pallas_rt::prelude::{dot, kernel};\nlet a = dot(b, c); fn dots() {}", "dot"));
}

#[test]
fn what_can_not_fit_is_said() {
    const WRONG: &[(&str, &str)] = &[
        (
            "let a = dot(y, z.t());",
            "dot contracts K with BN: [BM, K] · [BN, K]\n  help: axis 1 of the right side is K: write `.t()` behind it",
        ),
        (
            "let a = dot(y, y);",
            "dot contracts K with BM: [BM, K] · [BM, K]\n  help: axis 1 of the right side is K: write `.t()` behind it",
        ),
        (
            "let a = y + z;",
            "`add` of [BM, K] and [K, BN]\n  help: axis 0 is BM on one side and K on the other; if BM and K are always equal, say `assume(BM == K)`",
        ),
        ("let mut a = y; a += z;", "`add` of [BM, K] and [K, BN]"),
        (
            "let a = y + full([3], 1.0);",
            "`add` of [BM, K] and [3]\n  help: ranks are equal in an elementwise operation: `.expand(axis)` adds an axis",
        ),
        ("let a = y.pow(z);", "`pow` of"),
        ("let a = select(y.gt(0.0), y, z);", "`select` of"),
        ("out.store(y);", "a store of [BM, K] into [BM, BN] of `out`"),
        ("out.at(0).store(y.sum(1));", "a store of [BM, 1] into [BN] of `out`"),
        ("out.store_masked(dot(y, z), y.gt(0.0));", "a mask of [BM, K] for [BM, BN]"),
        ("let a = y.sum(2);", "axis 2"),
        ("let a = y.argmax(5);", "axis 5"),
        ("let a = y.transpose([0]);", "transpose"),
        ("let a = y.reshape([BM, 3]);", "[BM, K] has BM*K elements, [BM, 3] has 3*BM"),
        ("let a = y.sum(1).broadcast([BN, K]);", "broadcast"),
        ("let a = y.squeeze(1);", "axis 1 of a tile of shape [BM, K] can't be dropped"),
        ("let a = y.expand(4);", "a new axis 4 of a tile with 2 axes"),
        ("let a = concat([y, z], 0);", "concat"),
        ("let a = y.slice([0, 1], [BM, K]);", "slice"),
        ("let a = program_id(2);", "there is no grid axis 2: the grid has 2 axes"),
        ("let a = x.valid(2);", "there is no axis 2: the block has 2 axes"),
        ("let a = x.at((0, 0, 0)).load();", "3 indices into a view of 2 axes"),
        ("let a = s.at((.., 1)).load();", "elements 1..2 of an axis with 1"),
        ("let a = (y * 2.0).at((.., 1, 2));", "3 indices into a view of 2 axes"),
        ("let a = z + y.at((0, ..)).expand(0).ln();", "`add` of [K, BN] and [1, K]"),
        ("let v = [1.0f32, 2.0]; let a = v[program_id(0)];", "a run-time scalar is no index of a list of the host"),
        ("let a = lens.at((0, 1));", "`lens` has 1 dimension, found 2 indices"),
        (
            "let mut a = y; for i in 0..4 { a = a.t(); }",
            "a variable carried by this loop starts as [BM, K] and ends as [K, BM]",
        ),
        ("let a = if program_id(0) == 0 { y } else { z };", "the sides of this `if` give [BM, K] and [K, BN]"),
        ("let a = full([BM, K], z);", "broadcast"),
        ("let a = y.item();", "elements"),
        ("let a = out.load();", "output `out` is read before it is written"),
        ("out.store(dot(y, z) + out.at((.., ..)).load());", "output `out` is read before it is written"),
    ];
    for (body, words) in WRONG {
        let said = said(body);
        assert!(said.len() == 1 && said[0].contains(words), "{body}\n{said:#?}");
        assert!(said[0].contains("\n  help: "), "no hint: {said:#?}");
    }
    assert_eq!(said("let a = y + z; let b = dot(y, y); out.store(z);").len(), 3, "all mistakes at once");
}

/// Returns the messages for an accumulator that one program of an axis initialises, under these semantics.
fn said_of_begun(semantics: &str, axis: usize, memory: &str) -> String {
    let attr = parse(&format!("grid = (R, cdiv(C, 4)), semantics = ({semantics})"));
    let item = parse(&format!(
        "fn sums(
            #[block([R, C] => [_, 4], |r, j| (r, j), fill = 0.0)] x: In<f32>,
            #[block([R] => [1], |r, _| (r,))] out: Out<f32>,
            #[scratch([1])] sum: Scratch<f32>,
        ) {{
            if program_id({axis}) == 0 {{ {memory}.fill(0.0); }}
            {memory}.store({memory}.load() + x.load().sum(0));
            out.store({memory}.load());
        }}"
    ));
    let mut found = vec![];
    words(kernel_tokens(attr, item), &mut found);
    found.into_iter().find(|m| m.contains("is begun by one program")).unwrap_or_default()
}
#[test]
fn an_accumulator_is_cleared_along_the_axis_of_its_steps() {
    let cases = [
        ("parallel, parallel", 1, "sum", "make the axis `arbitrary`"),
        ("parallel, arbitrary", 0, "sum", "test `program_id(1)`"),
        ("arbitrary, parallel", 1, "sum", "test `program_id(0)`"),
        ("parallel, parallel", 0, "out", "axis 0 chooses its block"),
        ("parallel, parallel", 1, "out", "make the axis `arbitrary`"),
    ];
    for (semantics, axis, memory, help) in cases {
        let found = said_of_begun(semantics, axis, memory);
        assert!(found.contains(help), "({semantics}), axis {axis}, {memory}: {found}");
    }
    assert_eq!(said_of_begun("parallel, arbitrary", 1, "sum"), "");
}
