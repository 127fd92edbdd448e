//! Attention, with its options and under masks.
use super::{Case, Entry, Given, one, three, two, typed};
use pallas_kernels::flash_attention::{
    Causal, Dropout, Options, Window, flash_attention, flash_attention_in_blocks, flash_attention_with_lse,
};
use pallas_kernels::flash_attention_backward::{flash_attention_backward, gradients_in_blocks};
use pallas_kernels::flash_attention_bias::{bias_gradient, bias_gradient_in_blocks, sinks_gradient, sinks_gradient_in};
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_kernels::splash_attention::{self, splash_attention, splash_attention_backward, splash_attention_with_lse};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;

/// Queries `[b, h, s, d]`, keys and values `[b, g, l, d]`, a bias `[y, z, s, l]`, sinks `[h]`.
pub const ATTENTION: &[Entry] = &[
    Entry::new("attention", |g| Chosen.case(g, masked(Causal::No))),
    Entry::new("attention causal", |g| Chosen.case(g, masked(Causal::FromStart))),
    Entry::new("attention causal from the end", |g| Chosen.case(g, masked(Causal::FromEnd))),
    Entry::new("attention with bias and sinks", |g| Chosen.case(g, added())),
    Entry::new("attention causal with segments, bias and sinks", |g| {
        Chosen.case(g, Setting { causal: Causal::FromStart, segments: Some(segments(g)?), ..added() })
    }),
    Entry::new("attention with every option", |g| Chosen.case(g, every(g)?)),
];

/// The same in blocks of `u` queries and keys.
pub const ATTENTION_IN_BLOCKS: &[Entry] = &[
    Entry::new("attention in blocks", |g| InBlocks.case(g, masked(Causal::No))),
    Entry::new("attention causal in blocks", |g| InBlocks.case(g, masked(Causal::FromStart))),
    Entry::new("attention in blocks, gradients in one pass", |g| OnePass.case(g, masked(Causal::No))),
    Entry::new("attention causal in blocks, gradients in one pass", |g| OnePass.case(g, masked(Causal::FromStart))),
];

/// The same with options.
pub const OPTIONS_IN_BLOCKS: &[Entry] = &[
    Entry::new("attention with bias and sinks in blocks", |g| InBlocks.case(g, added())),
    Entry::new("attention with every option in blocks", |g| InBlocks.case(g, every(g)?)),
    Entry::new("attention with every option in blocks, gradients in one pass", |g| OnePass.case(g, every(g)?)),
];

/// Options of a call; its bias and sinks are operands.
#[derive(Clone, Default)]
struct Setting {
    causal: Causal,
    window: Window,
    segments: Option<[Array; 2]>,
    bias_and_sinks: bool,
    soft_cap: Option<f32>,
    dropout: Option<f32>,
}

fn masked(causal: Causal) -> Setting {
    Setting { causal, ..Setting::default() }
}
fn added() -> Setting {
    Setting { bias_and_sinks: true, ..Setting::default() }
}
/// Three sequences, one behind the other.
fn segments(g: &Given<'_>) -> Result<[Array; 2]> {
    let packed = |n: usize| {
        let numbers: Vec<i32> = (0..g.of('b') * n).map(|i| (i % n * 3 / n) as i32).collect();
        g.client.array(&numbers, &[g.of('b'), n])
    };
    Ok([packed(g.of('s'))?, packed(g.of('l'))?])
}
fn every(g: &Given<'_>) -> Result<Setting> {
    Ok(Setting {
        causal: Causal::FromEnd,
        window: Window { left: Some(g.of('w')), right: None },
        segments: Some(segments(g)?),
        bias_and_sinks: true,
        soft_cap: Some(2.0),
        dropout: Some(0.1),
    })
}

impl Setting {
    fn options<'a>(&'a self, x: &'a [Array]) -> Options<'a> {
        Options {
            causal: self.causal,
            window: self.window,
            segments: self.segments.as_ref().map(|numbers| numbers.each_ref()),
            bias: self.bias_and_sinks.then(|| &x[3]),
            sinks: self.bias_and_sinks.then(|| &x[4]),
            soft_cap: self.soft_cap,
            dropout: self.dropout.map(|rate| Dropout { rate, seed: 1.into() }),
            ..Options::default()
        }
    }
}

/// Choice of the size of blocks, and the number of passes of the gradients.
#[derive(Clone, Copy)]
enum Way {
    Chosen,
    InBlocks,
    OnePass,
}
use Way::{Chosen, InBlocks, OnePass};

impl Way {
    fn case(self, g: &Given<'_>, setting: Setting) -> Result<Case> {
        let mut operands = queries_and_keys(g)?;
        if setting.bias_and_sinks {
            operands.extend([g.floats("yzsl")?, g.floats("h")?]);
        }
        let share = if setting.causal == Causal::No { 1.0 } else { 0.5 };
        let flops = share * 4.0 * g.shape("bhsld").iter().product::<usize>() as f64;
        let (block, with_lse) = (g.get('u').unwrap_or(0), setting.bias_and_sinks || !matches!(self, Chosen));
        let [of_residuals, of_gradients] = [setting.clone(), setting.clone()];
        let case = Case::new(operands, move |x| {
            let options = setting.options(x);
            // Has a way of its own for small arrays.
            if !with_lse {
                return one(flash_attention(&x[0], &x[1], &x[2], &options)?);
            }
            self.forward(x, &options, block)
        });
        let case = case.backward(
            move |x| Ok([x, &self.forward(x, &of_residuals.options(x), block)?].concat()),
            move |x| self.backward(x, &of_gradients.options(x), block),
        );
        Ok(case.flops(flops, 2.5))
    }
    fn forward(self, x: &[Array], options: &Options<'_>, block: usize) -> Result<Vec<Array>> {
        two(match self {
            Chosen => flash_attention_with_lse(&x[0], &x[1], &x[2], options)?,
            _ => typed!(x[0], E => flash_attention_in_blocks::<E>(&x[0], &x[1], &x[2], options, [block; 2])?),
        })
    }
    /// Of the operands, the result, its log-sum-exp and the cotangent.
    fn backward(self, x: &[Array], options: &Options<'_>, block: usize) -> Result<Vec<Array>> {
        let [.., out, lse, dout] = x else { return Ok(vec![]) };
        let (operands, results, [b, bb]) = ([&x[0], &x[1], &x[2]], [out, lse], [[block; 2], [block; 2]]);
        let mut all = three(match self {
            Chosen => flash_attention_backward(operands, results, dout, options)?,
            InBlocks => typed!(dout, E => gradients_in_blocks::<E>(operands, results, dout, options, [b, bb])?),
            OnePass => typed!(dout, E => resident_gradients::<E>(operands, results, dout, options, b)?),
        })?;
        if let Some(sinks) = options.sinks {
            all.push(match self {
                Chosen => bias_gradient(operands, results, dout, options)?,
                _ => typed!(dout, E => bias_gradient_in_blocks::<E>(operands, results, dout, options, b)?),
            });
            all.push(match self {
                Chosen => sinks_gradient(results, dout, sinks)?,
                _ => typed!(dout, E => sinks_gradient_in::<E>(results, dout, sinks)?),
            });
        }
        Ok(all)
    }
}

fn queries_and_keys(g: &Given<'_>) -> Result<Vec<Array>> {
    Ok(vec![g.floats("bhsd")?, g.floats("bgld")?, g.floats("bgld")?])
}

/// Under masks of blocks: queries `[b, h, s, d]`, keys `[b, g, l, d]`.
pub const MASKS: &[Entry] = &[
    Entry::new("splash full", |g| splash(g, vec![Mask::Full; g.of('h')], None)),
    Entry::new("splash causal", |g| splash(g, vec![Mask::causal(); g.of('h')], None)),
    Entry::new("splash window", |g| splash(g, vec![Mask::window(g.of('w') as i32); g.of('h')], None)),
    Entry::new("splash causal window", |g| {
        splash(g, vec![Mask::causal() & Mask::window(g.of('w') as i32); g.of('h')], None)
    }),
    Entry::new("splash chunks", |g| splash(g, vec![Mask::Chunked { size: 2 * g.of('w') as i32 }; g.of('h')], None)),
];

/// The same with a soft cap, and heads of unlike masks: one that is computed, and one that is an array.
pub const CAPPED_MASKS: &[Entry] = &[
    Entry::new("splash of unlike heads", |g| {
        let masks = [Mask::window(40), Mask::Full].into_iter().cycle().take(g.of('h')).collect();
        splash(g, masks, Some(3.0))
    }),
    Entry::new("splash of arrays", |g| {
        let dense = Mask::dense(g.of('s'), g.of('l'), |i, j| (i + j) % 5 == 0);
        splash(g, [dense, Mask::Full].into_iter().cycle().take(g.of('h')).collect(), Some(3.0))
    }),
];

fn splash(g: &Given<'_>, masks: Vec<Mask>, soft_cap: Option<f32>) -> Result<Case> {
    let shape = [g.of('s'), g.of('l')];
    let info = match g.get('u') {
        Some(block) => MaskInfo::in_blocks(g.client, &masks, shape, [block; 2])?,
        None => MaskInfo::new(g.client, &masks, shape)?,
    };
    let options = splash_attention::Options { scale: None, soft_cap };
    let [rows, columns] = info.block_size();
    let flops = 4.0 * (info.live_blocks() * rows * columns * g.of('d')) as f64;
    let [of_kept, of_gradients] = [info.clone(), info.clone()];
    let case = Case::new(queries_and_keys(g)?, move |x| one(splash_attention(&x[0], &x[1], &x[2], &info, &options)?));
    let case = case.backward(
        move |x| {
            let (out, lse) = splash_attention_with_lse(&x[0], &x[1], &x[2], &of_kept, &options)?;
            Ok([x, &[out, lse]].concat())
        },
        move |x| {
            let (operands, results) = ([&x[0], &x[1], &x[2]], [&x[3], &x[4]]);
            three(splash_attention_backward(operands, results, &x[5], &of_gradients, &options)?)
        },
    );
    Ok(case.flops(flops, 2.5))
}
