//! Batches of paged attention: requests of one step, checked and cut into work items; see [`crate::paged_attention`].
use crate::argument_errors::argument_error;
use crate::block_sizes::{BlockResources, BlockSizeKey, UNBOUNDED_EXTENT, choose_block_sizes};
use crate::decode_attention::heads_per_key_head;
use crate::online_softmax::{min_busy_programs, upload_i32};
use crate::paged_cache::PagedCache;
use pallas_rt::Target;
use pallas_rt::prelude::*;
use std::collections::HashMap;

/// Numbers of a step's requests from the scheduler, on the host.
#[derive(Clone, Copy, Debug)]
pub struct Requests<'a> {
    /// Page numbers of each request, `[requests, maximum pages]` row by row. Entries after a request's last page are
    /// ignored.
    pub tables: &'a [i32],
    /// Number of keys of each request, including those of this step's tokens; may be 0.
    pub lengths: &'a [i32],
    /// Index of each request's first query, and the number of all queries at the end; equal neighbours: no queries.
    pub starts: &'a [i32],
}

/// Options that decide how a batch is cut into work items.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchOptions {
    /// Maximum number of keys that a query sees, its own the last. `None`: all up to its own.
    pub window: Option<usize>,
    /// Maximum number of pages of an item; `None`: enough items to keep the device busy.
    pub pages_per_item: Option<usize>,
}

/// A checked step over a paged cache, usable for every layer whose cache has these extents: see the module.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Numbers of pages and of heads of keys, and the page size, of the cache; number of query heads in a group.
    pub(crate) sizes: [usize; 4],
    pub(crate) window: Option<usize>,
    /// Maximum number of queries of an item.
    pub(crate) block: usize,
    pub(crate) queries: usize,
    /// Maximum and mean number of pages of an item.
    pub(crate) steps: usize,
    pub(crate) run: usize,
    pub(crate) tables: Array,
    pub(crate) items: Array,
    /// Parts of each query's result, if any has several: rows `[first, stride, count]`; number of all parts; maximum
    /// count.
    pub(crate) parts: Option<(Array, usize, usize)>,
    /// Page, and position in it, of each query's own key; or the reason why nothing can be appended.
    pub(crate) slots: std::result::Result<Array, String>,
}

// Columns of a batch's table of items.
/// Column of the index of the work item's request.
pub(crate) const REQUEST_COLUMN: usize = 0;
/// Column of the item's first query, as an index in the packed array of queries; the column after it has the number of
/// the item's queries.
pub(crate) const FIRST_QUERY_COLUMN: usize = 1;
pub(crate) const QUERY_COUNT_COLUMN: usize = 2;
/// Column of the position of the first query in its request; negative with more queries than keys.
pub(crate) const POSITION_COLUMN: usize = 3;
/// Column of the number of keys of the request.
pub(crate) const KEY_COUNT_COLUMN: usize = 4;
/// Column of the item's first page, as an index in the request's page table; the column after it has the number of the
/// item's pages.
pub(crate) const FIRST_PAGE_COLUMN: usize = 5;
pub(crate) const PAGE_COUNT_COLUMN: usize = 6;
/// Column of the index, among the results of all items, at which the item's results are stored; the results of a query
/// may be in several parts.
pub(crate) const RESULT_COLUMN: usize = 7;
/// Number of columns of the table of work items.
pub(crate) const ITEM_COLUMN_COUNT: usize = 8;

/// Number of queries of a work item, for `group` heads per head of keys: enough to amortise reading the pages, few
/// enough for registers; on a GPU their rows and a page's keys and values fit workgroup memory together.
pub fn block_size(target: &Target, group: usize, page: usize, d: usize) -> usize {
    let most = if group <= 8 { 16 } else { 4 };
    let candidates = [16, 4, 1].into_iter().filter(|block| *block <= most);
    let [block] = choose_block_sizes(
        BlockSizeKey::PagedQueries,
        target,
        [UNBOUNDED_EXTENT],
        candidates.map(|block| ([block], item_resources(block * group, page, d))),
    );
    block
}

/// Resources of a program of a work item with `rows` rows of queries and `keys` keys and values, of `d` elements each.
pub(crate) fn item_resources(rows: usize, keys: usize, d: usize) -> BlockResources {
    // Three times for the rows (queries, results, padding), and for keys, values and masked values.
    BlockResources::from_staged_words(3 * (rows + keys) * d)
}

impl Batch {
    /// Checks a step of requests over a cache and cuts it into items, for queries of `heads` heads.
    ///
    /// # Errors
    /// Lengths and starts that contradict each other or the tables, with the request; a page that the pool does not
    /// have, with its place in the table; device trouble.
    ///
    /// ```
    /// use pallas_kernels::paged_attention::{Batch, BatchOptions, Options, PagedCache, Requests};
    /// use pallas_rt::ir::DType;
    /// use pallas_rt::{Array, Client};
    /// // A pool of two pages of two keys; one request of one token, which lies in page 1.
    /// let mut cache = PagedCache::new(&Client::cpu(), DType::F32, [2, 1, 2, 1])?;
    /// let step = Requests { tables: &[1], lengths: &[1], starts: &[0, 1] };
    /// let batch = Batch::new(&cache, 1, step, BatchOptions::default())?;
    /// let x = cache.k.client().array(&[5.0f32], &[1, 1, 1])?;
    /// cache.append(&batch, &x, &x)?;
    /// assert_eq!(cache.v.to_vec::<f32>()?, [0.0, 0.0, 5.0, 0.0]);
    /// assert_eq!(batch.attend(&x, &cache, &Options::default())?.to_vec::<f32>()?, [5.0]);
    /// # Ok::<(), pallas_rt::Error>(())
    /// ```
    #[track_caller]
    pub fn new(cache: &PagedCache, heads: usize, requests: Requests<'_>, options: BatchOptions) -> Result<Batch> {
        let [pages, key_heads, page, d] = cache.extents()?;
        let (client, group) = (cache.k.client(), heads_per_key_head(heads, key_heads)?);
        let rows = CheckedRequests::from_requests(requests, pages, page)?;
        let queries = rows.starts.last().copied().unwrap_or(0);
        let longest = (1..rows.starts.len()).map(|r| rows.starts[r] - rows.starts[r - 1]).max().unwrap_or(0);
        let block = if longest <= 1 { 1 } else { block_size(client.target(), group, page, d) };
        let blocks = rows.cut_query_blocks(block, page, options.window);
        let total: usize = blocks.iter().map(|b| b.pages.len()).sum();
        let wanted = min_busy_programs(client).div_ceil(key_heads.max(1));
        let each =
            options.pages_per_item.unwrap_or_else(|| total.div_ceil(wanted).max(512usize.div_ceil(page.max(1)))).max(1);
        let (mut items, mut parts, mut part, mut most) = (vec![], vec![0; 3 * queries], 0, 1);
        for b in &blocks {
            let runs = b.pages.len().div_ceil(each).max(1);
            // Split evenly, so that no run is much shorter than the others.
            let bound = |i: usize| b.pages.start + b.pages.len() * i / runs;
            for i in 0..runs {
                let (first, count) = (bound(i), bound(i + 1) - bound(i));
                let length = rows.lengths[b.request];
                let [request, start, rows] = [b.request, b.first, b.count].map(|n| n as i64);
                let [length, first, count, part] = [length, first, count, part + i * b.count].map(|n| n as i64);
                items.extend([request, start, rows, b.position, length, first, count, part]);
            }
            for i in 0..b.count {
                parts[3 * (b.first + i)..][..3].copy_from_slice(&[part + i, b.count, runs]);
            }
            part += runs * b.count;
            most = most.max(runs);
        }
        let steps = items.chunks(ITEM_COLUMN_COUNT).map(|item| item[PAGE_COUNT_COLUMN] as usize).max().unwrap_or(0);
        let columns = rows.columns.max(1);
        let tables = if rows.columns == 0 { vec![0; rows.lengths.len()] } else { requests.tables.to_vec() };
        let slots = match rows.find_append_slots(page) {
            Ok(slots) => Ok(upload_i32(client, &slots, &[queries, 2])?),
            Err(message) => Err(message),
        };
        Ok(Batch {
            sizes: [pages, key_heads, page, group],
            window: options.window,
            block,
            queries,
            steps,
            run: total.div_ceil((items.len() / ITEM_COLUMN_COUNT).max(1)),
            tables: client.array(&tables, &[rows.lengths.len(), columns])?,
            items: upload_i32(client, &items, &[items.len() / ITEM_COLUMN_COUNT, ITEM_COLUMN_COUNT])?,
            parts: if most > 1 { Some((upload_i32(client, &parts, &[queries, 3])?, part, most)) } else { None },
            slots,
        })
    }

    /// Refuses a cache of other extents than the batch was made for; returns the cache's extents.
    #[track_caller]
    pub(crate) fn check_cache(&self, cache: &PagedCache) -> Result<[usize; 4]> {
        let shape = cache.extents()?;
        if shape[..3] != self.sizes[..3] {
            let message = "a batch for a cache [pages, key heads, page] of";
            return argument_error(format!("{message} {:?} does not fit one of {:?}", &self.sizes[..3], &shape[..3]));
        }
        Ok(shape)
    }
}

/// The numbers of a step's requests, checked to agree with each other.
struct CheckedRequests<'a> {
    tables: &'a [i32],
    columns: usize,
    lengths: Vec<usize>,
    starts: Vec<usize>,
}

/// Queries of one request that are processed together, and the pages that they see.
struct QueryBlock {
    request: usize,
    first: usize,
    count: usize,
    position: i64,
    pages: std::ops::Range<usize>,
}

impl<'a> CheckedRequests<'a> {
    /// Checks the numbers of requests against each other, and page numbers against a pool of `pages` pages of `page`
    /// keys.
    #[track_caller]
    fn from_requests(
        Requests { tables, lengths, starts }: Requests<'a>,
        pages: usize,
        page: usize,
    ) -> Result<CheckedRequests<'a>> {
        let requests = lengths.len();
        if starts.len() != requests + 1 || starts[0] != 0 {
            let message = format!("{requests} requests need {} starts, the first 0; found {starts:?}", requests + 1);
            return argument_error(message);
        }
        if let Some(r) = (0..requests).find(|&r| starts[r + 1] < starts[r]) {
            return argument_error(format!("queries of request {r} go from {} to {}", starts[r], starts[r + 1]));
        }
        let columns = tables.len().checked_div(requests).unwrap_or(0);
        if columns * requests != tables.len() {
            return argument_error(format!("tables of {} entries for {requests} requests", tables.len()));
        }
        for (r, &length) in lengths.iter().enumerate() {
            let Some(needed) =
                usize::try_from(length).ok().filter(|_| page > 0 || length == 0).map(|n| n.div_ceil(page.max(1)))
            else {
                return argument_error(format!("request {r} has {length} keys"));
            };
            if needed > columns {
                let message = format!("request {r} has {length} keys, which take {needed} pages of {page}");
                return argument_error(format!("{message}; its table has {columns}"));
            }
            let used = &tables[r * columns..][..needed];
            if let Some(j) = used.iter().position(|&p| usize::try_from(p).map_or(true, |p| p >= pages)) {
                return argument_error(format!(
                    "page {j} of request {r} is number {}, the cache has 0..{pages}",
                    used[j]
                ));
            }
        }
        let sizes = |x: &[i32]| x.iter().map(|&n| n as usize).collect();
        Ok(CheckedRequests { tables, columns, lengths: sizes(lengths), starts: sizes(starts) })
    }

    /// Cuts the requests' queries into blocks of at most `max_queries`, each with the pages, of `page_keys` keys, that
    /// some of its queries see.
    fn cut_query_blocks(&self, max_queries: usize, page_keys: usize, window: Option<usize>) -> Vec<QueryBlock> {
        let mut blocks = vec![];
        for (r, &length) in self.lengths.iter().enumerate() {
            let (start, end) = (self.starts[r], self.starts[r + 1]);
            for first in (start..end).step_by(max_queries) {
                let count = max_queries.min(end - first);
                // End of the keys that the block sees: the last query sees keys up to its own.
                let last = (length + first + count - start).saturating_sub(end - start).min(length);
                let own = (length + first - start).saturating_sub(end - start);
                let from = window.map_or(0, |w| (own + 1).saturating_sub(w)).min(last);
                let pages = if from == last { 0..0 } else { from / page_keys..last.div_ceil(page_keys) };
                let position = (length + first) as i64 - end as i64;
                blocks.push(QueryBlock { request: r, first, count, position, pages });
            }
        }
        blocks
    }

    /// Returns the page, and the position in it, of each query's own key, or a message if two queries have the same
    /// one.
    fn find_append_slots(&self, page_keys: usize) -> std::result::Result<Vec<usize>, String> {
        let (mut slots, mut owners) = (vec![], HashMap::new());
        for (r, &length) in self.lengths.iter().enumerate() {
            let n = self.starts[r + 1] - self.starts[r];
            let more = || format!("request {r} has more queries than keys: nothing to append");
            for at in length.checked_sub(n).ok_or_else(more)?..length {
                let slot = [self.tables[r * self.columns + at / page_keys] as usize, at % page_keys];
                if let Some(other) = owners.insert(slot, r) {
                    let [number, place] = slot;
                    return Err(format!("requests {other} and {r} both append to place {place} of page {number}"));
                }
                slots.extend(slot);
            }
        }
        Ok(slots)
    }
}
