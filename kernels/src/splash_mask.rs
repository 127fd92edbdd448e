//! Masks of block-sparse attention, and the lists of blocks that are left of them.
//!
//! A [`Mask`] says which keys a query sees. [`MaskInfo`] cuts the matrix of queries and keys into blocks, once, on the
//! host:
//!
//! ```text
//! full       every query of the block sees every key of it: no mask is needed
//! partial    some do: the mask is evaluated
//! empty      none do: the block is in no list, so nothing is loaded or computed for it
//! ```

use crate::argument_errors::argument_error;
use crate::attention_options::soft_cap_bits;
use crate::attention_scores::Rules;
use crate::block_sizes::{BlockResources, BlockSizeKey, UNBOUNDED_EXTENT, choose_block_sizes};
use crate::flash_attention_backward;
use crate::mask_coverage::BlockCoverage;
use crate::online_softmax::upload_i32;
use pallas_rt::Target;
use pallas_rt::prelude::*;
use std::collections::HashMap;
use std::ops::{BitAnd, BitOr, Not, Range};
use std::sync::Arc;

/// Mask of attention: which keys a query sees. `a & b`, `a | b` and `!a` combine masks.
///
/// ```
/// use pallas_kernels::splash_mask::Mask;
/// // A window of four keys, and everybody sees the first two.
/// let mask = Mask::causal() & (Mask::window(3) | Mask::dense(9, 9, |_, key| key < 2));
/// assert!(mask.sees(8, 1) && mask.sees(8, 5) && !mask.sees(8, 4) && !mask.sees(4, 5));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Mask {
    /// Every query sees all keys.
    Full,
    /// Query i sees keys `j <= i + offset`.
    Causal {
        /// Number of keys before the first query.
        offset: i32,
    },
    /// Query i sees keys from `i + offset - left` to `i + offset + right`; `None`: no bound.
    Local {
        /// Number of visible keys before the query's position.
        left: Option<i32>,
        /// Number of visible keys after the query's position.
        right: Option<i32>,
        /// Number of keys before the first query.
        offset: i32,
    },
    /// Keys of the query's own chunk: `j / size == i / size`. Llama 4's chunked attention is `Mask::causal() &
    /// chunked`.
    Chunked {
        /// Number of queries and keys in a chunk. [`MaskInfo`] refuses a size below 1, which would mask every key.
        size: i32,
    },
    /// Mask given as an array.
    Dense(Arc<Dense>),
    /// Intersection: keys that both masks see.
    And(Arc<[Mask; 2]>),
    /// Union: keys that either mask sees.
    Or(Arc<[Mask; 2]>),
    /// Complement: keys that the mask does not see.
    Not(Arc<Mask>),
}

/// A mask as an array `[queries, keys]` of bools: true where the query sees the key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Dense {
    shape: [usize; 2],
    sees: Vec<bool>,
}

impl BitAnd for Mask {
    type Output = Mask;
    fn bitand(self, other: Mask) -> Mask {
        Mask::And(Arc::new([self, other]))
    }
}
impl BitOr for Mask {
    type Output = Mask;
    fn bitor(self, other: Mask) -> Mask {
        Mask::Or(Arc::new([self, other]))
    }
}
impl Not for Mask {
    type Output = Mask;
    fn not(self) -> Mask {
        Mask::Not(Arc::new(self))
    }
}

impl Mask {
    /// Creates a mask in which a query sees the keys up to its own position.
    pub fn causal() -> Mask {
        Mask::Causal { offset: 0 }
    }
    /// Creates a mask in which a query sees its own key and the `left` keys before it.
    pub fn window(left: i32) -> Mask {
        Mask::Local { left: Some(left), right: Some(0), offset: 0 }
    }
    /// Creates a mask from a function of query and key.
    pub fn dense(queries: usize, keys: usize, sees: impl Fn(usize, usize) -> bool) -> Mask {
        let sees = (0..queries * keys).map(|at| sees(at / keys, at % keys)).collect();
        Mask::Dense(Arc::new(Dense { shape: [queries, keys], sees }))
    }

    /// Returns true if a query sees a key; outside of a dense mask's array nothing is seen.
    pub fn sees(&self, query: usize, key: usize) -> bool {
        let ahead = key as i64 - query as i64;
        match self {
            Mask::Full => true,
            Mask::Causal { offset } => ahead <= i64::from(*offset),
            Mask::Local { left, right, offset } => {
                let ahead = ahead - i64::from(*offset);
                left.is_none_or(|n| ahead >= -i64::from(n)) && right.is_none_or(|n| ahead <= i64::from(n))
            }
            Mask::Chunked { size } => usize::try_from(*size).is_ok_and(|n| n > 0 && query / n == key / n),
            Mask::Dense(dense) => {
                let [queries, keys] = dense.shape;
                query < queries && key < keys && dense.sees[query * keys + key]
            }
            Mask::And(both) => both.iter().all(|m| m.sees(query, key)),
            Mask::Or(both) => both.iter().any(|m| m.sees(query, key)),
            Mask::Not(mask) => !mask.sees(query, key),
        }
    }

    /// Returns true if kernels can compute the mask from positions, without an array.
    fn is_computable(&self) -> bool {
        match self {
            Mask::Dense(_) => false,
            Mask::And(both) | Mask::Or(both) => both.iter().all(Mask::is_computable),
            Mask::Not(mask) => mask.is_computable(),
            _ => true,
        }
    }

    /// Computes the mask of queries `[n, 1]` and keys `[1, m]` in a kernel; axes of the result may have extent 1.
    fn compute_tile(&self, queries: Tile<i32>, keys: Tile<i32>) -> Tile<bool> {
        match self {
            Mask::Full | Mask::Dense(_) => full([1, 1], true),
            Mask::Causal { offset } => keys.le(queries + clamp_distance(i64::from(*offset))),
            Mask::Local { left, right, offset } => {
                let offset = i64::from(*offset);
                let low = left.map(|n| keys.ge(queries + clamp_distance(offset - i64::from(n))));
                let high = right.map(|n| keys.le(queries + clamp_distance(offset + i64::from(n))));
                low.into_iter().chain(high).reduce(|a, b| a & b).unwrap_or(full([1, 1], true))
            }
            Mask::Chunked { size } => (queries / *size).eq(keys / *size),
            Mask::And(both) => both[0].compute_tile(queries, keys) & both[1].compute_tile(queries, keys),
            Mask::Or(both) => both[0].compute_tile(queries, keys) | both[1].compute_tile(queries, keys),
            Mask::Not(mask) => !mask.compute_tile(queries, keys),
        }
    }

    /// Refuses chunks below 1, and dense masks of another shape than `[queries, keys]`.
    #[track_caller]
    fn check_for_shape(&self, shape: [usize; 2]) -> Result<()> {
        match self {
            Mask::Chunked { size } if *size < 1 => argument_error(format!("chunks of {size} keys")),
            Mask::Dense(dense) if dense.shape != shape => {
                argument_error(format!("a mask of shape {:?} for {shape:?} queries and keys", dense.shape))
            }
            Mask::And(both) | Mask::Or(both) => both[0].check_for_shape(shape).and(both[1].check_for_shape(shape)),
            Mask::Not(mask) => mask.check_for_shape(shape),
            _ => Ok(()),
        }
    }
}

/// Clamps a distance between positions so that sums with positions stay within i32. Positions in lists of blocks are
/// far below 2³⁰, so a clamped distance masks the same keys.
fn clamp_distance(distance: i64) -> i32 {
    distance.clamp(-(1 << 30), 1 << 30) as i32
}

/// Mask number of a block that needs no mask, since every query sees every key; other numbers are indices of computed
/// masks or of the arrays of partial blocks.
pub(crate) const UNMASKED_BLOCK: i32 = -1;
/// Maximum number of masks that a kernel computes; if there are more, all are stored as arrays.
const MAX_COMPUTED_MASKS: usize = 4;

/// Masks that a kernel computes for partial blocks from positions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Computed {
    /// The masks, indexed by mask number; empty: they are loaded from arrays.
    masks: Vec<Mask>,
    /// True if the last block of keys extends past the last key.
    overhangs: bool,
}

impl Computed {
    /// Returns the mask of a block's scores: existing keys that the computed mask `mask_number`, or else `stored_mask`,
    /// lets a query see.
    pub(crate) fn live_mask(
        &self,
        [mask_number, first_query, first_key, keys]: [Scalar<i32>; 4],
        stored_mask: In<bool>,
        [rows, columns]: [usize; 2],
    ) -> Tile<bool> {
        let own = iota::<i32>([1, columns], 1) + first_key;
        let seen = match &self.masks[..] {
            [] => stored_mask.load(),
            masks => {
                let queries = iota::<i32>([rows, 1], 0) + first_query;
                let tiles = masks.iter().map(|m| m.compute_tile(queries, own).broadcast([rows, columns]));
                let numbered = (0..).zip(tiles);
                let one = |a: (i32, Tile<bool>), b: (i32, Tile<bool>)| (b.0, select(mask_number.eq(b.0), b.1, a.1));
                numbered.reduce(one).map(|(_, tile)| tile).expect("there are masks")
            }
        };
        if self.overhangs { seen & own.lt(keys) } else { seen }
    }
}

/// The blocks that each head's mask leaves, for given numbers of queries and keys: made once, used at every call.
#[derive(Clone, Debug)]
pub struct MaskInfo {
    /// Numbers of queries and keys.
    pub(crate) shape: [usize; 2],
    /// Numbers of queries and keys of a block.
    pub(crate) block: [usize; 2],
    /// i32 `[heads]`: index of each head's mask.
    pub(crate) mask_of: Array,
    /// For each mask and block of queries the number of live blocks of keys, then for each of them its index and mask
    /// number: `[masks, blocks, 1 + 2 · longest]`.
    pub(crate) rows: BlockLists,
    /// For each mask and block of keys the live blocks of queries, in the same form as `rows`.
    pub(crate) columns: BlockLists,
    /// Distinct partial blocks that are stored as arrays: `[n, queries, keys]`.
    pub(crate) partial: Array,
    pub(crate) computed: Computed,
    heads: usize,
    live: usize,
}

/// Chooses the masks that kernels compute in live blocks: the masks simplified to their blocks if these are few, else
/// the whole masks; empty if storing arrays is better. For each mask, `live_blocks` has the indices of the blocks that
/// it leaves, each with true if it needs no mask; `block_range` gives the positions of a block along an axis.
fn choose_computed_masks(
    masks: &[&Mask],
    live_blocks: &[Vec<([usize; 2], bool)>],
    block_range: impl Fn(usize, usize) -> Range<usize>,
) -> Vec<Mask> {
    if !masks.iter().all(|mask| mask.is_computable()) {
        return vec![];
    }
    let mut left: Vec<Mask> = vec![];
    for (mask, live) in masks.iter().zip(live_blocks) {
        for ([i, j], _) in live.iter().filter(|(_, whole)| !whole) {
            let own = mask.simplify_for_block(&block_range(0, *i), &block_range(1, *j));
            if !left.contains(&own) {
                left.push(own);
            }
        }
    }
    match (left.len(), masks.len()) {
        (..=MAX_COMPUTED_MASKS, _) => left,
        (_, ..=MAX_COMPUTED_MASKS) => masks.iter().copied().cloned().collect(),
        _ => vec![],
    }
}

/// Lists of live blocks, on the device: a row per mask and block of queries or keys.
#[derive(Clone, Debug)]
pub(crate) struct BlockLists {
    pub(crate) table: Array,
    pub(crate) longest: usize,
}

impl BlockLists {
    /// Uploads lists of blocks with mask numbers, the same number of lists for each mask.
    #[track_caller]
    fn new(client: &Client, masks: usize, lists: &[Vec<[i32; 2]>]) -> Result<BlockLists> {
        let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
        let columns = 1 + 2 * longest;
        let mut numbers = vec![];
        for list in lists {
            // After its end a list repeats its last block, so that software pipelining fetches nothing else.
            let last = list.last().copied().unwrap_or([0, 0]);
            numbers.push(list.len() as i32);
            numbers.extend(list.iter().copied().chain(std::iter::repeat_n(last, longest - list.len())).flatten());
        }
        let each = lists.len().checked_div(masks).unwrap_or(0);
        Ok(BlockLists { table: upload_i32(client, &numbers, &[masks, each, columns])?, longest })
    }
}

/// Numbers of queries and keys of a block that [`MaskInfo::new`] chooses: the gradients' blocks for heads of 64
/// elements.
pub fn block_sizes(target: &Target) -> [usize; 2] {
    let blocks = flash_attention_backward::block_sizes(target, [UNBOUNDED_EXTENT; 2], 64);
    choose_block_sizes(
        BlockSizeKey::SplashMask,
        target,
        [UNBOUNDED_EXTENT; 2],
        [(blocks, BlockResources::NO_REQUIREMENTS)],
    )
}

impl MaskInfo {
    /// Finds the live blocks of `shape = [queries, keys]`, given a mask for each head, in blocks that suit the device.
    ///
    /// # Errors
    /// A mask that does not fit, none at all; device trouble.
    #[track_caller]
    pub fn new(client: &Client, heads: &[Mask], shape: [usize; 2]) -> Result<MaskInfo> {
        MaskInfo::in_blocks(client, heads, shape, block_sizes(client.target()))
    }

    /// [`MaskInfo::new`] with `block = [queries, keys]` as the size of blocks.
    ///
    /// # Errors
    /// As [`MaskInfo::new`].
    #[track_caller]
    pub fn in_blocks(client: &Client, heads: &[Mask], shape: [usize; 2], block: [usize; 2]) -> Result<MaskInfo> {
        if heads.is_empty() {
            return argument_error("there are no masks, expected one for each head".into());
        }
        if block.contains(&0) {
            return argument_error(format!("blocks of {block:?} queries and keys"));
        }
        for mask in heads {
            mask.check_for_shape(shape)?;
        }
        let mut masks: Vec<&Mask> = vec![];
        let mask_of: Vec<usize> = heads
            .iter()
            .map(|mask| {
                masks.iter().position(|m| *m == mask).unwrap_or_else(|| {
                    masks.push(mask);
                    masks.len() - 1
                })
            })
            .collect();
        let [queries, keys] = [0, 1].map(|a| shape[a].div_ceil(block[a]));
        let range = |axis: usize, i: usize| i * block[axis]..((i + 1) * block[axis]).min(shape[axis]);
        // The live blocks of each mask: their indices, and whether they need no mask.
        let live: Vec<Vec<([usize; 2], bool)>> = masks
            .iter()
            .map(|mask| {
                let all = (0..queries).flat_map(|i| (0..keys).map(move |j| [i, j]));
                let parts = all.map(|[i, j]| ([i, j], mask.exact_coverage(range(0, i), range(1, j))));
                let seen = parts.filter(|(_, part)| *part != BlockCoverage::Empty);
                seen.map(|([i, j], part)| ([i, j], part == BlockCoverage::Full && range(1, j).len() == block[1]))
                    .collect()
            })
            .collect();
        let computed = choose_computed_masks(&masks, &live, range);
        let (mut unique, mut found) = (vec![], HashMap::<Vec<bool>, i32>::new());
        let (mut rows, mut columns) = (vec![], vec![]);
        for (mask, live) in masks.iter().zip(&live) {
            let (mut by_query, mut by_key) = (vec![vec![]; queries], vec![vec![]; keys]);
            for &([i, j], whole) in live {
                let (own, theirs) = (range(0, i), range(1, j));
                let number = if whole {
                    UNMASKED_BLOCK
                } else if !computed.is_empty() {
                    let at = |mask: &Mask| computed.iter().position(|m| m == mask);
                    at(&mask.simplify_for_block(&own, &theirs)).or_else(|| at(mask)).expect("every mask is computed")
                        as i32
                } else {
                    let inside = |q: usize, k: usize| own.contains(&q) && theirs.contains(&k) && mask.sees(q, k);
                    let bits = (0..block[0] * block[1])
                        .map(|at| inside(own.start + at / block[1], theirs.start + at % block[1]));
                    let next = found.len() as i32;
                    *found.entry(bits.collect()).or_insert_with_key(|bits| {
                        unique.extend_from_slice(bits);
                        next
                    })
                };
                by_query[i].push([j as i32, number]);
                by_key[j].push([i as i32, number]);
            }
            rows.extend(by_query);
            columns.extend(by_key);
        }
        if unique.is_empty() {
            unique = vec![false; block[0] * block[1]];
        }
        let n = unique.len() / (block[0] * block[1]);
        Ok(MaskInfo {
            shape,
            block,
            rows: BlockLists::new(client, masks.len(), &rows)?,
            columns: BlockLists::new(client, masks.len(), &columns)?,
            partial: client.array(&unique, &[n, block[0], block[1]])?,
            computed: Computed { masks: computed, overhangs: !shape[1].is_multiple_of(block[1]) },
            heads: heads.len(),
            live: mask_of.iter().map(|&m| live[m].len()).sum(),
            mask_of: upload_i32(client, &mask_of, &[heads.len()])?,
        })
    }

    /// Number of live blocks of all heads, to which the time of attention is proportional.
    pub fn live_blocks(&self) -> usize {
        self.live
    }
    /// Number of blocks of all heads, live or not.
    pub fn blocks(&self) -> usize {
        self.heads * self.shape[0].div_ceil(self.block[0]) * self.shape[1].div_ceil(self.block[1])
    }
    /// Numbers of queries and keys of a block.
    pub fn block_size(&self) -> [usize; 2] {
        self.block
    }

    /// Checks operands `q` and `k` of these shapes against the masks, and returns the rules of a call.
    ///
    /// # Errors
    /// Shapes or heads that do not fit, a soft-cap that is not positive.
    #[track_caller]
    pub(crate) fn check_operands(&self, q: [usize; 4], k: [usize; 4], cap: Option<f32>) -> Result<Rules> {
        if [q[2], k[2]] != self.shape || q[1] != self.heads {
            let message = format!("{} heads, {} queries and {} keys", q[1], q[2], k[2]);
            return argument_error(format!(
                "masks of {} heads and {:?} queries and keys for {message}",
                self.heads, self.shape
            ));
        }
        crate::decode_attention::heads_per_key_head(q[1], k[1])?;
        Ok(Rules { soft_cap: soft_cap_bits(cap)?, ..Rules::default() })
    }
}
