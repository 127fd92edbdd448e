//! Every option of attention with every other: a table in which each pair of levels of two options stands at least
//! once, results and gradients against a float64 reference, that one against finite differences, and the kernels in
//! float64 as well.
use super::attention_reference::{Scene, Tensors};
use super::{B, typed};
use crate::support::{array, clients, close, doubles, gpu, values};
use pallas_kernels::attention_scores::{Block, Rules};
use pallas_kernels::element::Floating;
use pallas_kernels::flash_attention::{Causal, Dropout, Options, Window, flash_attention_in_blocks};
use pallas_kernels::flash_attention_backward::gradients_in_blocks;
use pallas_kernels::flash_attention_bias::{bias_gradient_in_blocks, sinks_gradient_in};
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_rt::prelude::*;

/// The k of the tolerance: of results, of gradients.
const K: [f64; 2] = [8.0, 32.0];
/// How many levels each option has, in the order that [`scene`] reads them.
const LEVELS: [usize; 12] = [3, 3, 2, 2, 3, 5, 2, 2, 2, 3, 2, 3];
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Rows of levels, one per option, in which every pair of levels of two options stands: each new row takes the levels
/// that make most new pairs.
fn covering(levels: &[usize]) -> Vec<Vec<usize>> {
    let mut missing = vec![];
    for (b, &of_b) in levels.iter().enumerate() {
        for (a, &of_a) in levels[..b].iter().enumerate() {
            missing.extend((0..of_a * of_b).map(|i| (a, i / of_b, b, i % of_b)));
        }
    }
    let mut rows = vec![];
    while let Some(&(a, x, b, y)) = missing.first() {
        let mut row = vec![None; levels.len()];
        (row[a], row[b]) = (Some(x), Some(y));
        for option in 0..levels.len() {
            let made = |level: usize| {
                let pair = |&&(a, x, b, y): &&(usize, usize, usize, usize)| {
                    (a, x) == (option, level) && row[b] == Some(y) || (b, y) == (option, level) && row[a] == Some(x)
                };
                missing.iter().filter(pair).count()
            };
            // Of equally good levels another one in each row.
            let best = (0..levels[option]).max_by_key(|&l| (made(l), (l + rows.len()) % levels[option]));
            row[option] = row[option].or(best);
        }
        let row: Vec<usize> = row.into_iter().map(|level| level.expect("each option has levels")).collect();
        missing.retain(|&(a, x, b, y)| (row[a], row[b]) != (x, y));
        rows.push(row);
    }
    rows
}

/// What the levels of a row mean.
fn scene(row: &[usize], queries: usize, keys: usize) -> (Scene, DType) {
    let (batch, pick) = (2, |option: usize, of: &[usize]| of[row[option]]);
    let heads = [[2, 2], [4, 2], [3, 1]][row[9]];
    let segments = |n: usize, parts: usize| (0..batch * n).map(|i| (i % n * parts / n + i / n) as i32).collect();
    let scattered = |n: usize, of: usize| (0..batch * n).map(|i| (i * i * 7 % 11 % of) as i32 - 1).collect();
    let scene = Scene {
        sizes: [batch, heads[0], heads[1], queries, keys, pick(10, &[8, 3])],
        scale: 0.5,
        causal: [Causal::No, Causal::FromStart, Causal::FromEnd][row[0]],
        window: Window { left: [None, Some(2), Some(0)][row[1]], right: [None, Some(1)][row[2]] },
        lengths: [None, Some(vec![keys * 2 / 3, keys])][row[3]].clone(),
        segments: [
            None,
            Some([segments(queries, 2), segments(keys, 3)]),
            // In no order, the second numbers not in the first ones.
            Some([scattered(queries, 3), scattered(keys, 5)]),
        ][row[4]]
            .clone(),
        bias: [None, Some([1, 1]), Some([batch, 1]), Some([1, heads[0]]), Some([batch, heads[0]])][row[5]],
        soft_cap: [None, Some(1.5)][row[6]],
        sinks: row[7] == 1,
        dropout: [None, Some(Dropout { rate: 0.25, seed: 0x1234_5678_9abc_def0.into() })][row[8]],
    };
    (scene, FLOATS[row[11]])
}

/// Each option alone, and the table of pairs.
fn rows() -> Vec<Vec<usize>> {
    let mut rows = covering(&LEVELS);
    for (option, &levels) in LEVELS.iter().enumerate() {
        for level in 1..levels {
            let mut alone = vec![0; LEVELS.len()];
            alone[option] = level;
            rows.push(alone);
        }
    }
    rows
}

#[test]
fn the_table_has_every_pair() {
    let rows = covering(&LEVELS);
    assert!(rows.len() < 30, "{}", rows.len());
    for b in 0..LEVELS.len() {
        for a in 0..b {
            for (x, y) in (0..LEVELS[a]).flat_map(|x| (0..LEVELS[b]).map(move |y| (x, y))) {
                assert!(rows.iter().any(|row| (row[a], row[b]) == (x, y)), "{a} at {x} with {b} at {y}");
            }
        }
    }
}

#[test]
fn the_reference_agrees_with_finite_differences() {
    for row in rows() {
        let (scene, _) = scene(&row, 3, 5);
        let (x, dout) =
            (scene.tensors(), values(scene.sizes.iter().take(2).product::<usize>() * 3 * scene.sizes[5], 9));
        let loss = |x: &Tensors| -> f64 { scene.forward(x).0.iter().zip(&dout).map(|(o, d)| o * d).sum() };
        let gradients = scene.backward(&x, &dout);
        for (which, gradient) in gradients.iter().enumerate() {
            // Some elements of each.
            for i in (row.len() % 3..gradient.len()).step_by(3) {
                let at = |by: f64| {
                    let mut moved = x.clone();
                    moved[which][i] += by;
                    loss(&moved)
                };
                let (slope, found) = ((at(1e-5) - at(-1e-5)) / 2e-5, gradient[i]);
                assert!((slope - found).abs() < 1e-7, "{scene:?}, operand {which}, element {i}: {found}, {slope}");
            }
        }
    }
}

/// A scene's operands on a device, results and gradients there.
struct Run<'a> {
    scene: &'a Scene,
    dtype: DType,
    operands: [Array; 5],
    lengths: Option<Array>,
    segments: Option<[Array; 2]>,
    /// As the reference has them, rounded.
    results: [Array; 2],
    dout: Array,
    /// What the reference finds from the rounded operands.
    want: (Vec<f64>, Vec<f64>),
    gradients: Tensors,
}

impl<'a> Run<'a> {
    fn new(scene: &'a Scene, client: &Client, dtype: DType) -> Self {
        let [batch, heads, _, queries, keys, d] = scene.sizes;
        let shapes = scene.shapes();
        let operands: Vec<Array> =
            scene.tensors().iter().zip(&shapes).map(|(x, shape)| array(client, dtype, shape, x)).collect();
        let operands: [Array; 5] = operands.try_into().expect("there are five");
        let rounded = operands.each_ref().map(doubles);
        let dout = array(client, dtype, &shapes[0], &values(batch * heads * queries * d, 9));
        let (want, gradients) = (scene.forward(&rounded), scene.backward(&rounded, &doubles(&dout)));
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let results = [array(client, dtype, &shapes[0], &want.0), array(client, wide, &shapes[0][..3], &want.1)];
        let numbers = |x: &[i32], n: usize| client.array(x, &[batch, n]).expect("it fits");
        let lengths = scene.lengths.as_ref().map(|lengths| {
            let lengths: Vec<i32> = lengths.iter().map(|&n| n as i32).collect();
            client.array(&lengths, &[batch]).expect("it fits")
        });
        let segments = scene.segments.as_ref().map(|[own, theirs]| [numbers(own, queries), numbers(theirs, keys)]);
        Run { scene, dtype, operands, lengths, segments, results, dout, want, gradients }
    }
    fn options(&self) -> Options<'_> {
        self.options_with(&self.operands)
    }
    fn options_with<'b>(&'b self, [_, _, _, bias, sinks]: &'b [Array; 5]) -> Options<'b> {
        Options {
            scale: Some(self.scene.scale as f32),
            causal: self.scene.causal,
            window: self.scene.window,
            lengths: self.lengths.as_ref(),
            offsets: None,
            segments: self.segments.as_ref().map(|s| s.each_ref()),
            bias: self.scene.bias.map(|_| bias),
            soft_cap: self.scene.soft_cap.map(|cap| cap as f32),
            sinks: self.scene.sinks.then_some(sinks),
            dropout: self.scene.dropout,
        }
    }
    fn compare(&self, name: &str, found: &Array, want: &[f64], k: f64) {
        let [batch, heads, _, queries, keys, d] = self.scene.sizes;
        let terms = (batch * heads * queries).max(keys).max(d);
        close(found, want, terms, k, &format!("{name}, {:?} of {}", self.scene, self.dtype));
    }
    fn failed<T>(&self, result: Result<T>) -> T {
        result.unwrap_or_else(|e| panic!("{:?} of {}: {e}", self.scene, self.dtype))
    }
    fn forward<E: Floating>(&self) {
        let [q, k, v, ..] = &self.operands;
        let (out, lse) = self.failed(flash_attention_in_blocks::<E>(q, k, v, &self.options(), [B, B]));
        self.compare("out", &out, &self.want.0, K[0]);
        self.compare("log-sum-exp", &lse, &self.want.1, K[0]);
    }
    fn backward<E: Floating>(&self, one_pass: bool) {
        let [q, k, v, _, sinks] = &self.operands;
        let ([out, lse], options) = (&self.results, self.options());
        let (operands, dout) = ([q, k, v], &self.dout);
        let (dq, dk, dv) = self.failed(match one_pass {
            true => resident_gradients::<E>(operands, [out, lse], dout, &options, [B, B]),
            false => gradients_in_blocks::<E>(operands, [out, lse], dout, &options, [[B; 2]; 2]),
        });
        for (name, (found, want)) in ["dq", "dk", "dv"].iter().zip([dq, dk, dv].iter().zip(&self.gradients)) {
            self.compare(name, found, want, K[1]);
        }
        if one_pass {
            return;
        }
        let dbias = bias_gradient_in_blocks::<E>([q, k, v], [out, lse], &self.dout, &options, [B, B]);
        match dbias {
            Ok(dbias) => self.compare("dbias", &dbias, &self.gradients[3], K[1]),
            Err(e) => assert!(self.scene.bias.is_none() && e.to_string().contains("no `bias`"), "{e}"),
        }
        if self.scene.sinks {
            let dsinks = self.failed(sinks_gradient_in::<E>([out, lse], &self.dout, sinks));
            self.compare("dsinks", &dsinks, &self.gradients[4], K[1]);
        }
    }
}

/// Queries and keys of the i-th row of the table.
fn lengths(i: usize) -> (usize, usize) {
    [(9, 7), (5, 10), (6, 6)][i % 3]
}

#[test]
fn every_pair_of_options() {
    for client in [Client::interpreter(), Client::cpu()] {
        for (i, row) in rows().into_iter().enumerate() {
            let (queries, keys) = lengths(i);
            let (scene, dtype) = scene(&row, queries, keys);
            let run = Run::new(&scene, &client, dtype);
            typed!(dtype, E => {
                run.forward::<E>();
                run.backward::<E>(false);
                run.backward::<E>(true);
            });
        }
    }
}

/// A GPU compiles each anew: with dropout's many operations few of them, and one on the way back.
#[test]
fn pairs_of_options_on_a_gpu() {
    let Some(client) = gpu() else { return };
    let without_dropout = LEVELS.iter().enumerate().map(|(i, &n)| if i == 8 { 1 } else { n });
    for (i, row) in covering(&without_dropout.collect::<Vec<_>>()).into_iter().enumerate() {
        let (queries, keys) = lengths(i);
        let (scene, dtype) = scene(&row, queries, keys);
        let run = Run::new(&scene, &client, dtype);
        typed!(dtype, E => run.forward::<E>());
    }
    let (scene, _) = scene(&[2, 1, 0, 1, 1, 2, 1, 1, 1, 1, 0, 0], 5, 7);
    let run = Run::new(&scene, &client, DType::F32);
    run.forward::<f32>();
    run.backward::<f32>(false);
}

#[test]
fn every_pair_of_options_in_double_precision() {
    for client in [Client::interpreter(), Client::cpu()] {
        for row in covering(&LEVELS) {
            let (scene, _) = scene(&row, 5, 6);
            let run = Run::new(&scene, &client, DType::F64);
            run.forward::<f64>();
            run.backward::<f64>(false);
            run.backward::<f64>(true);
        }
    }
}

/// The kernels' own slopes, not the reference's: see [`super::slopes`].
#[test]
fn gradients_are_slopes_of_the_forward_kernel() -> Result<()> {
    for row in covering(&LEVELS) {
        let (scene, _) = scene(&row, 5, 6);
        let run = Run::new(&scene, &Client::interpreter(), DType::F64);
        let forward =
            |x: &[Array; 5]| flash_attention_in_blocks::<f64>(&x[0], &x[1], &x[2], &run.options_with(x), [B, B]);
        let (out, lse) = &forward(&run.operands)?;
        let [q, k, v, _, sinks] = &run.operands;
        let (options, dout) = (run.options(), &run.dout);
        let one = resident_gradients::<f64>([q, k, v], [out, lse], dout, &options, [B, B])?;
        let two = gradients_in_blocks::<f64>([q, k, v], [out, lse], dout, &options, [[B; 2]; 2])?;
        let mut gradients = [vec![one.0, two.0], vec![one.1, two.1], vec![one.2, two.2], vec![], vec![]];
        if scene.bias.is_some() {
            gradients[3].push(bias_gradient_in_blocks::<f64>([q, k, v], [out, lse], dout, &options, [B, B])?);
        }
        if scene.sinks {
            gradients[4].push(sinks_gradient_in::<f64>([out, lse], dout, sinks)?);
        }
        for (which, gradients) in gradients.iter().enumerate() {
            let gradients: Vec<&Array> = gradients.iter().collect();
            let forward = |x: &[Array]| forward(x.try_into().expect("as many")).map(|(out, _)| out);
            super::slopes::check(&format!("{scene:?}"), &run.operands, which, dout, forward, &gradients);
        }
    }
    Ok(())
}

/// What [`Block`] says of every block.
#[kernel(grid = (I, J))]
fn verdicts<const BQ: usize, const BK: usize>(
    #[block([I, J] => [1, 1], |i, j| (i, j))] live: Out<i32>,
    #[block([I, J] => [1, 1], |i, j| (i, j))] whole: Out<i32>,
    queries: i32,
    length: i32,
    #[fixed] rules: Rules,
    #[dim] I: usize,
    #[dim] J: usize,
) {
    let (row, key) = (program_id(0) * BQ, program_id(1) * BK);
    let position = row + rules.first_query_position(queries, length);
    let block = Block { rules, size: [BQ, BK], row, position, queries, key, length, segments: None, spans: None };
    live.store(full([1, 1], block.has_live_scores().cast::<i32>()));
    whole.store(full([1, 1], block.is_fully_seen().cast::<i32>()));
}

/// Kernels look at a block of keys exactly if some query of theirs sees one of it, and need a mask exactly if one does
/// not see all.
#[test]
fn blocks_that_no_query_sees_are_known() {
    const BQ: usize = 3;
    const BK: usize = 4;
    let sides = [None, Some(0), Some(2), Some(5)];
    for (left, right) in sides.into_iter().flat_map(|l| sides.map(|r| (l, r))) {
        for from_end in [false, true] {
            let rules = Rules { left, right, from_end, ..Rules::default() };
            for (queries, length) in [(1usize, 1usize), (7, 9), (9, 5), (4, 14), (12, 12), (6, 0)] {
                let (i, j) = (queries.div_ceil(BQ), 4);
                let (live, whole) = verdicts::<BQ, BK>(queries as i32, length as i32, rules, i, j).expect("it runs");
                let (live, whole) = (live.to_vec::<i32>().expect("i32"), whole.to_vec::<i32>().expect("i32"));
                let sees = |row: usize, key: usize| {
                    let p = row as i32 + if from_end { length as i32 - queries as i32 } else { 0 };
                    let (key, near) = (key as i32, |side: Option<i32>| side.unwrap_or(100));
                    key < length as i32 && p - near(left) <= key && key <= p + near(right)
                };
                for (at, (&live, &whole)) in live.iter().zip(&whole).enumerate() {
                    let (row, key) = (at / j * BQ, at % j * BK);
                    let keys = || key..key + BK;
                    let any = (row..queries.min(row + BQ)).any(|r| keys().any(|k| sees(r, k)));
                    // Rows behind the last query count: their mask does no harm.
                    let all = (row..row + BQ).all(|r| keys().all(|k| sees(r, k)));
                    let what = format!("{rules:?}, {queries} queries, {length} keys, from {row}, {key}");
                    assert_eq!((live == 1, whole == 1), (any, all), "{what}");
                }
            }
        }
    }
}

/// lavapipe runs both sides of a branch, whichever is taken: there, blocks that are seen whole have no side of their
/// own.
#[test]
fn whole_blocks_have_a_branch_where_it_is_worth_one() {
    for client in clients() {
        let x = client.zeros(&[1, 1, 8, 4], DType::F32).expect("it fits");
        let o = Options { causal: Causal::FromStart, ..Options::default() };
        let found = explain(|| flash_attention_in_blocks::<f32>(&x, &x, &x, &o, [B, B])).expect("it is explained");
        let products = found.kernels[0].lowered.to_string().matches(" = dot ").count();
        let both_run = client.target().budget().lockstep;
        assert_eq!(products, if both_run { 2 } else { 4 }, "{}", found.kernels[0].lowered);
    }
}

/// The log-sum-exp of a row without live keys is the score of its sink, whether keys are masked or there are none.
#[test]
fn sinks_without_keys() {
    for client in clients() {
        let float = |shape: &[usize]| array(&client, DType::F32, shape, &values(shape.iter().product(), 1));
        let (q, sinks) = (float(&[1, 2, 3, 4]), array(&client, DType::F32, &[2], &[2.0, -1.0]));
        let none = client.zeros(&[1], DType::I32).expect("it fits");
        let numbers = |n: usize| client.zeros(&[1, n], DType::I32).expect("it fits");
        let check = |keys: usize, options: &Options<'_>| {
            let k = float(&[1, 1, keys, 4]);
            let (out, lse) = flash_attention_in_blocks::<f32>(&q, &k, &k, options, [B, B]).expect("it runs");
            assert_eq!(doubles(&out), [0.0; 24], "{keys} keys on {client:?}");
            assert_eq!(doubles(&lse), [2.0, 2.0, 2.0, -1.0, -1.0, -1.0], "{keys} keys on {client:?}");
            let dsinks = sinks_gradient_in::<f32>([&out, &lse], &q, &sinks).expect("it runs");
            assert_eq!(doubles(&dsinks), [0.0, 0.0]);
        };
        let plain = Options { sinks: Some(&sinks), ..Options::default() };
        check(0, &plain);
        check(5, &Options { lengths: Some(&none), ..plain });
        let (own, theirs, bias) = (numbers(3), numbers(0), float(&[1, 1, 3, 0]));
        check(0, &Options { segments: Some([&own, &theirs]), bias: Some(&bias), causal: Causal::FromEnd, ..plain });
    }
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let cpu = Client::cpu();
    let zeros = |dtype, shape: &[usize]| cpu.zeros(shape, dtype).expect("it fits");
    let (q, k) = (zeros(DType::F32, &[2, 4, 5, 8]), zeros(DType::F32, &[2, 2, 7, 8]));
    let fails = |options: Options<'_>, says: &str| {
        let forward = flash_attention_in_blocks::<f32>(&q, &k, &k, &options, [B, B]).map(|_| ());
        let (out, lse) = (&q, &zeros(DType::F32, &[2, 4, 5]));
        let backward = gradients_in_blocks::<f32>([&q, &k, &k], [out, lse], &q, &options, [[B; 2]; 2]).map(|_| ());
        for result in [forward, backward] {
            let error = result.expect_err("it is refused").to_string();
            assert!(error.contains(says), "{error}\n expected: {says}");
        }
    };
    let plain = Options::default();
    let bias = |dtype, shape: &[usize], says: &str| fails(Options { bias: Some(&zeros(dtype, shape)), ..plain }, says);
    bias(DType::F32, &[2, 4, 5, 8], "`bias` has shape [2, 4, 5, 8], expected [2, 4, 5, 7]");
    bias(DType::F32, &[1, 2, 5, 7], "`bias` has shape [1, 2, 5, 7], expected [1, 4, 5, 7]");
    bias(DType::F32, &[5, 7], "`bias` has shape [5, 7], expected [2, 4, 5, 7]");
    bias(DType::F16, &[1, 1, 5, 7], "`bias` holds f16, expected f32");
    let (own, theirs) = (zeros(DType::I32, &[2, 5]), zeros(DType::I32, &[2, 7]));
    let segments =
        |own: &Array, theirs: &Array, says: &str| fails(Options { segments: Some([own, theirs]), ..plain }, says);
    segments(&theirs, &theirs, "`segments of queries` has shape [2, 7], expected [2, 5]");
    segments(&own, &own, "`segments of keys` has shape [2, 5], expected [2, 7]");
    segments(&own, &zeros(DType::F32, &[2, 7]), "`segments of keys` holds f32, expected i32");
    let sinks = zeros(DType::F32, &[2]);
    fails(Options { sinks: Some(&sinks), ..plain }, "`sinks` has shape [2], expected [4]");
    fails(Options { soft_cap: Some(0.0), ..plain }, "`soft_cap` is 0, expected a positive number");
    fails(Options { soft_cap: Some(f32::NAN), ..plain }, "`soft_cap` is NaN");
    for rate in [1.0, -0.1, f32::NAN] {
        fails(Options { dropout: Some(Dropout { rate, seed: 1.into() }), ..plain }, "rate of `dropout` is");
    }
}
