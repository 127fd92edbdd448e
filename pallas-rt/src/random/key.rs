//! Keys of the random number generator.
use super::lanes::{ElementwiseBuilder, key_words};
use crate::array::Array;
use crate::array::Client;
use crate::jit::{apply, create_array, is_tracing};
use crate::ops::{Index, Operand};
use crate::tree::{Kind, Segment, Tree, Visitor, VisitorMut};
use pallas_device::error::{Error, Result};
use pallas_ir::structural::{Cast, Concat, Reshape, Slice};
use pallas_ir::{At, DType, Diag, Dim, Literal, Loc, StructuralOp};
use std::sync::{Arc, OnceLock};

/// A key of the generator: 64 bits from which one array of random numbers is made; or a batch of keys. See the
/// [module](crate::random).
#[derive(Clone, Debug)]
pub struct Key {
    /// u32[.., 2]: the upper and the lower half of each key.
    data: Array,
    /// The line at which the key was used; clones share it.
    used: Arc<OnceLock<Loc>>,
}

static KEY_TREE_KIND: Kind = Kind { path: "pallas_rt::random::Key", name: "Key", fields: None, fixed: &[] };

/// A key is a tree with one leaf, its data. If that may be replaced, the key counts as another one, which is unused.
impl Tree for Key {
    fn visit<'a>(&'a self, to: &mut Visitor<'a>) {
        to.node(&KEY_TREE_KIND, 1, &[]);
        to.child(Segment::Position(0), &self.data);
    }
    fn visit_mut<'a>(&'a mut self, to: &mut VisitorMut<'a>) {
        self.used = Arc::default();
        to.child(&mut self.data);
    }
}

impl Key {
    fn new(data: Array) -> Key {
        Key { data, used: Arc::default() }
    }

    /// A key of these bits, `u32[2]`: the upper and the lower half; of more axes, a batch of keys;
    /// `jax.random.wrap_key_data`.
    ///
    /// # Errors
    /// An array of another type or shape; the error of a poisoned array.
    #[track_caller]
    pub fn wrap(data: &Array) -> Result<Key> {
        let data = data.check()?;
        if data.dtype() != DType::U32 || data.shape().last() != Some(&2) {
            let message = format!("a key of {}{:?}", data.dtype(), data.shape());
            let help = "a key is u32[2], a batch of keys u32[.., 2]";
            return Err(Error::operation(Loc::caller(), Diag::new("key", At::Op, message, help)));
        }
        Ok(Key::new(data.clone()))
    }

    /// The bits of the key, `u32[2]`: the upper and the lower half; of a batch of keys, `u32[.., 2]`. Reading them is
    /// no use of the key.
    #[must_use]
    pub fn data(&self) -> &Array {
        &self.data
    }

    /// The axes of a batch of keys; none for one key.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        let shape = self.data.shape();
        &shape[..shape.len().saturating_sub(1)]
    }

    /// A key or some keys of a batch, which an index selects as in [`Array::index`]. This is no use of the batch.
    ///
    /// An index that is wrong gives a key that holds the error.
    #[track_caller]
    #[must_use]
    pub fn index(&self, index: impl Into<Index>) -> Key {
        let picked = self.data.index(index);
        match Key::wrap(&picked) {
            Ok(key) => key,
            Err(error) => Key::new(Array::new_poisoned(error, self.data.client().clone(), DType::U32, &[2])),
        }
    }

    /// Marks the key as used at the line `at`, and returns its bits as a new key; one that holds an error if the key
    /// was used before.
    pub(super) fn consume(self, at: Loc) -> Key {
        Key::new(self.consume_bits(at))
    }

    /// Marks the key as used at the line `at`, and returns its bits; an array that holds an error if the key was used
    /// before, or is a batch.
    pub(super) fn consume_bits(self, at: Loc) -> Array {
        if !self.shape().is_empty() {
            let diag =
                Diag::new("key", At::Op, format!("a batch of keys {:?} as one key", self.shape()), "`vmap` over it");
            return Array::new_poisoned(Error::operation(at, diag), self.data.client().clone(), DType::U32, &[2]);
        }
        let mut is_first = false;
        let first = self.used.get_or_init(|| {
            is_first = true;
            at
        });
        if is_first {
            return self.data;
        }
        let message = format!("a key that was used at {first}");
        let diag = Diag::new("key", At::Op, message, "a key gives one array: `let [a, b] = random::split(key)`");
        Array::new_poisoned(Error::operation(at, diag), self.data.client().clone(), DType::U32, &[2])
    }
}

impl Client {
    /// A key on this client; see [`random::key`](crate::random::key).
    ///
    /// # Errors
    /// As [`Client::array`].
    pub fn key(&self, seed: i64) -> Result<Key> {
        self.array(&[0, seed as u32], &[2]).map(Key::new)
    }
}

/// A key made from the lower 32 bits of a seed; `jax.random.key`.
///
/// Inside of a function that is being traced it is a constant of that function, elsewhere it is on the client of
/// [`Client::from_env`].
#[track_caller]
#[must_use]
pub fn key(seed: i64) -> Key {
    if is_tracing() {
        return Key::new(create_array(&[], Loc::caller(), |graph, _| {
            let words = [0, seed as u32].map(|word| graph.splat(Literal::int(DType::U32, i64::from(word)), &[1]));
            graph.push(StructuralOp::from(Concat { axis: 0 }), &words)
        }));
    }
    match Client::from_env().and_then(|client| client.key(seed)) {
        Ok(key) => key,
        Err(error) => Key::new(Array::new_poisoned(error, Client::cpu(), DType::U32, &[2])),
    }
}

/// Splits a key into `N` keys that are independent of each other; `jax.random.split`.
///
/// ```
/// use pallas_rt::random;
/// let [a, b] = random::split(random::key(0));
/// assert_eq!(a.data().to_vec::<u32>()?, [1797259609, 2579123966]);
/// assert_eq!(b.data().to_vec::<u32>()?, [928981903, 3453687069]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn split<const N: usize>(key: Key) -> [Key; N] {
    let mut keys = split_into_keys(key, N, Loc::caller()).into_iter();
    std::array::from_fn(|_| keys.next().expect("there are N keys"))
}

/// Splits a key into `n` independent keys, where `n` is known only at run time; see [`split`].
#[track_caller]
#[must_use]
pub fn split_into(key: Key, n: usize) -> Vec<Key> {
    split_into_keys(key, n, Loc::caller())
}

/// Splits a key into a batch of independent keys of this shape: one [`Key`] with the axes of the batch, over which
/// [`vmap`](crate::vmap) and [`scan`](crate::scan) go; `jax.random.split(key, shape)`. Its keys are those of
/// [`split_into`], in row-major order.
///
/// A function of this module takes one key; given a batch, it makes an array that holds an error.
///
/// ```
/// use pallas_rt::{ir::DType, random, vmap};
/// let keys = random::split_batch(random::key(0), &[3]);
/// let rows = vmap(|key: &random::Key| random::normal(key.clone(), &[2], DType::F32))(&keys)?;
/// let second = random::normal(keys.index(1), &[2], DType::F32);
/// assert_eq!(rows.index(1).to_vec::<f32>()?, second.to_vec::<f32>()?);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn split_batch(key: Key, shape: &[usize]) -> Key {
    let at = Loc::caller();
    Key::new(split_key_bits(key, shape, at))
}

/// Returns the bits of the keys into which a key is split, `u32[shape.., 2]`.
fn split_key_bits(key: Key, shape: &[usize], at: Loc) -> Array {
    create_array(&[&key.consume_bits(at)], at, |graph, v| {
        let key = key_words(graph, v[0])?;
        let [high, low] = ElementwiseBuilder::new(graph, shape)?.random_words(key)?;
        let to: Vec<Dim> = shape.iter().copied().chain([1]).map(Dim::from).collect();
        let mut column = |word| graph.push(StructuralOp::from(Reshape { to: to.clone() }), &[word]);
        let columns = [column(high)?, column(low)?];
        graph.push(StructuralOp::from(Concat { axis: shape.len() }), &columns)
    })
}

fn split_into_keys(key: Key, n: usize, at: Loc) -> Vec<Key> {
    let all = split_key_bits(key, &[n], at);
    let row = |i: usize| {
        apply(&[&all], at, |graph, v| {
            let row = Slice { start: vec![i as i64, 0], size: vec![1usize.into(), 2usize.into()], stride: vec![1, 1] };
            let row = graph.push(StructuralOp::from(row), v)?;
            graph.push(StructuralOp::from(Reshape { to: vec![2usize.into()] }), &[row])
        })
    };
    (0..n).map(|i| Key::new(row(i))).collect()
}

/// A key that depends on a key and on an integer: a number from 0 to 2^32 - 1, or an array of rank 0, whose bits beyond
/// the lowest 32 are dropped; `jax.random.fold_in`.
///
/// A wrong integer gives a key that holds the error, like every array that is made from it.
///
/// ```
/// use pallas_rt::random;
/// let key = random::fold_in(random::key(0), 1);
/// assert_eq!(key.data().to_vec::<u32>()?, [928981903, 3453687069]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn fold_in(key: Key, data: impl Into<Operand>) -> Key {
    let (at, data) = (Loc::caller(), data.into());
    let array = match &data {
        Operand::Array(x) => Some(x.clone()),
        Operand::Float(_) | Operand::Int(_) | Operand::Bool(_) => None,
    };
    let args: Vec<Array> = [key.consume_bits(at)].into_iter().chain(array).collect();
    Key::new(create_array(&args.iter().collect::<Vec<_>>(), at, |graph, v| {
        let wrong = |message: String| {
            Diag::new("key", At::Operand(1), message, "a number from 0 to 2^32 - 1, or an integer array of rank 0")
        };
        let folded = match &data {
            Operand::Array(_) => {
                let ty = graph.ty(v[1]).clone();
                if !ty.shape.is_empty() || ty.dtype.is_float() || ty.dtype == DType::Bool {
                    return Err(wrong(format!("`fold_in` of {ty}")));
                }
                if ty.dtype == DType::U32 {
                    v[1]
                } else {
                    graph.push(StructuralOp::from(Cast { to: DType::U32 }), &[v[1]])?
                }
            }
            Operand::Int(x) if u32::try_from(*x).is_ok() => graph.literal(Literal::int(DType::U32, *x)),
            Operand::Int(x) => return Err(wrong(format!("`fold_in` of {x}"))),
            Operand::Float(x) => return Err(wrong(format!("`fold_in` of {x:?}"))),
            Operand::Bool(x) => return Err(wrong(format!("`fold_in` of {x}"))),
        };
        let key = key_words(graph, v[0])?;
        let words = ElementwiseBuilder::new(graph, &[])?.random_words_at(key, folded)?;
        let mut one = |word| graph.push(StructuralOp::from(Reshape { to: vec![1usize.into()] }), &[word]);
        let words = [one(words[0])?, one(words[1])?];
        graph.push(StructuralOp::from(Concat { axis: 0 }), &words)
    }))
}
