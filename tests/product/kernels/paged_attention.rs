//! Attention over pages: requests of all kinds in one launch, element types of the cache, splits, windows, growing
//! caches, and tables that are wrong.
use super::FLOATS;
use super::naive::attend;
use crate::support::{array, clients, close, doubles, values};
use pallas_kernels::paged_attention::{
    Batch, BatchOptions, Options, PagedCache, Requests, paged_attention, ragged_paged_attention,
};
use pallas_rt::DeviceKind;
use pallas_rt::prelude::*;

/// The k of the tolerance.
const K: f64 = 8.0;
/// Pages of a pool, spread over the requests in an order that is none.
const PAGES: usize = 23;

/// A step of requests, and the history of each as plain numbers.
struct Step {
    /// Heads, heads of keys, page size, head dimension.
    sizes: [usize; 4],
    /// Keys and queries of each request.
    requests: Vec<(usize, usize)>,
    tables: Vec<i32>,
    lengths: Vec<i32>,
    starts: Vec<i32>,
}

impl Step {
    fn new(sizes: [usize; 4], requests: &[(usize, usize)]) -> Step {
        let columns = requests.iter().map(|(keys, _)| keys.div_ceil(sizes[2])).max().unwrap_or(0) + 1;
        let mut free = (0..PAGES).map(|i| (i * 7 + 3) % PAGES);
        let mut tables = vec![];
        let mut starts = vec![0];
        for &(keys, queries) in requests {
            let used = keys.div_ceil(sizes[2]);
            // What lies behind the last page is not looked at.
            let page = |j: usize| if j < used { free.next().expect("enough pages") as i32 } else { -1 };
            tables.extend((0..columns).map(page).collect::<Vec<_>>());
            starts.push(starts.last().expect("it has one") + queries as i32);
        }
        let lengths = requests.iter().map(|r| r.0 as i32).collect();
        Step { sizes, requests: requests.to_vec(), tables, lengths, starts }
    }
    fn requests(&self) -> Requests<'_> {
        Requests { tables: &self.tables, lengths: &self.lengths, starts: &self.starts }
    }
    fn queries(&self) -> usize {
        *self.starts.last().expect("it has one") as usize
    }
    fn columns(&self) -> usize {
        self.tables.len() / self.requests.len()
    }
    fn arrays(&self, client: &Client) -> [Array; 3] {
        let n = self.requests.len();
        let make = |x: &[i32], shape: &[usize]| client.array(x, shape).expect("it fits");
        [make(&self.tables, &[n, self.columns()]), make(&self.lengths, &[n]), make(&self.starts, &[n + 1])]
    }
    fn q(&self, client: &Client, dtype: DType) -> Array {
        let shape = [self.queries(), self.sizes[0], self.sizes[3]];
        array(client, dtype, &shape, &values(shape.iter().product(), 1))
    }
    /// A pool filled with numbers; places that belong to no key hold NaN where the type has it.
    fn cache(&self, client: &Client, dtype: DType) -> PagedCache {
        let [_, g, page, d] = self.sizes;
        let shape = [PAGES, g, page, d];
        let n = shape.iter().product();
        let mut live = vec![false; PAGES * page];
        for (r, &(keys, _)) in self.requests.iter().enumerate() {
            (0..keys).for_each(|j| live[self.place(r, j)] = true);
        }
        let make = |seed| {
            let mut x = values(n, seed);
            for (at, x) in x.iter_mut().enumerate() {
                if !live[at / (g * page * d) * page + at / d % page] {
                    *x = f64::NAN;
                }
            }
            x
        };
        if dtype == DType::I8 {
            let ints = |seed| values(n, seed).iter().map(|x| (x * 127.0) as i8).collect::<Vec<_>>();
            let scales = |seed: usize| {
                let mut x = values(n / d, seed);
                x.iter_mut().enumerate().for_each(|(at, x)| {
                    *x = if live[at / (g * page) * page + at % page] { (1.5 + *x) / 127.0 } else { f64::NAN };
                });
                array(client, DType::F32, &shape[..3], &x)
            };
            let data = |seed| client.array(&ints(seed), &shape).expect("it fits");
            return PagedCache { k: data(2), v: data(3), scales: Some([scales(4), scales(5)]) };
        }
        let data = |seed| array(client, dtype, &shape, &make(seed));
        PagedCache { k: data(2), v: data(3), scales: None }
    }
    /// Place of a key, counted in keys of the pool.
    fn place(&self, request: usize, j: usize) -> usize {
        let page = self.sizes[2];
        self.tables[request * self.columns() + j / page] as usize * page + j % page
    }
    /// Keys or values of a head of a request.
    fn history(&self, pool: &[f64], request: usize, head: usize) -> Vec<Vec<f64>> {
        let [_, g, page, d] = self.sizes;
        let at = |j| {
            let place = self.place(request, j);
            ((place / page * g + head) * page + place % page) * d
        };
        (0..self.requests[request].0).map(|j| pool[at(j)..at(j) + d].to_vec()).collect()
    }
    fn compare(
        &self,
        found: Result<(Array, Array)>,
        q: &Array,
        cache: &PagedCache,
        [cap, window]: [Option<f32>; 2],
        what: &str,
    ) {
        let what = format!("{what}: {:?} of {} over {}", self.requests, q.dtype(), cache.k.dtype());
        let (out, lse) = found.unwrap_or_else(|e| panic!("{what}: {e}"));
        let [h, g, _, d] = self.sizes;
        let (q, [k, v]) = (doubles(q), plain(cache));
        let (mut want, mut want_lse) = (vec![], vec![]);
        for (r, &(keys, queries)) in self.requests.iter().enumerate() {
            for i in 0..queries {
                let end = (keys + i + 1).saturating_sub(queries);
                let from = window.map_or(0, |w| end.saturating_sub(w as usize));
                for head in 0..h {
                    let row = (self.starts[r] as usize + i) * h + head;
                    let [k, v] = [&k, &v].map(|pool| self.history(pool, r, head / (h / g)));
                    let seen = k[from..end].iter().zip(&v[from..end]).map(|(k, v)| (&k[..], &v[..]));
                    let (out, lse) = attend(&q[row * d..][..d], seen, 0.5, cap);
                    want.extend(out);
                    want_lse.push(lse);
                }
            }
        }
        let terms = self.requests.iter().map(|r| r.0).max().unwrap_or(0).max(d);
        close(&out, &want, terms, K, &what);
        close(&lse, &want_lse, terms, K, &format!("log-sum-exp, {what}"));
    }
    fn check(&self, client: &Client, [dtype, of_cache]: [DType; 2], batch: BatchOptions, cap: Option<f32>) {
        let (q, cache) = (self.q(client, dtype), self.cache(client, of_cache));
        let options = Options { scale: Some(0.5), soft_cap: cap };
        let found = Batch::new(&cache, self.sizes[0], self.requests(), batch)
            .and_then(|batch| batch.attend_with_lse(&q, &cache, &options));
        self.compare(found, &q, &cache, [cap, batch.window.map(|w| w as f32)], &format!("{batch:?}"));
    }
}

/// Keys and values as doubles, whatever the cache holds.
fn plain(cache: &PagedCache) -> [Vec<f64>; 2] {
    let d = cache.k.shape()[3];
    let of = |x: &Array, scales: Option<&Array>| match scales {
        None => doubles(x),
        Some(scales) => {
            let scales = doubles(scales);
            let ints = x.to_vec::<i8>().expect("i8");
            ints.iter().enumerate().map(|(at, &x)| f64::from(x) * scales[at / d]).collect()
        }
    };
    let scales = cache.scales.as_ref();
    [of(&cache.k, scales.map(|s| &s[0])), of(&cache.v, scales.map(|s| &s[1]))]
}

/// Prefills, continued prefills, single steps, requests without keys, without queries, without either.
const MIXED: [(usize, usize); 8] = [(9, 1), (0, 0), (6, 6), (0, 1), (21, 18), (5, 0), (4, 1), (2, 3)];

#[test]
fn prefill_and_decode_in_one_launch() {
    for client in clients() {
        let gpu = client.kind() == DeviceKind::Gpu;
        let step = Step::new([4, 2, 4, 3], &MIXED);
        for (i, (dtype, of_cache)) in FLOATS.iter().flat_map(|&t| [(t, t), (t, DType::I8)]).enumerate() {
            if !gpu || i == 3 || i == 4 {
                step.check(&client, [dtype, of_cache], BatchOptions::default(), None);
            }
        }
        if !gpu {
            // One head of keys for all, a head each, groups that need smaller blocks.
            for sizes in [[3, 1, 2, 2], [3, 3, 5, 4], [9, 1, 3, 2]] {
                Step::new(sizes, &[(5, 1), (6, 5), (0, 0)]).check(
                    &client,
                    [DType::F32; 2],
                    BatchOptions::default(),
                    None,
                );
            }
        }
    }
}

#[test]
fn single_steps_of_requests_of_every_length() {
    for client in clients() {
        let gpu = client.kind() == DeviceKind::Gpu;
        let requests: Vec<(usize, usize)> = (0..=9).map(|keys| (keys, 1)).collect();
        let step = Step::new([4, 2, 4, 5], &requests);
        for types in [[DType::F32; 2], [DType::Bf16, DType::I8]] {
            step.check(&client, types, BatchOptions::default(), Some(0.8));
        }
        if !gpu {
            let (q, cache) = (step.q(&client, DType::F32), step.cache(&client, DType::F32));
            let [tables, lengths, starts] = step.arrays(&client);
            let a = paged_attention(&q, &cache, &tables, &lengths, &Options::default()).expect("it runs");
            let b =
                ragged_paged_attention(&q, &cache, &tables, &lengths, &starts, &Options::default()).expect("it runs");
            assert_eq!(doubles(&a), doubles(&b));
        }
    }
}

#[test]
fn splits_and_windows() {
    for client in clients() {
        let gpu = client.kind() == DeviceKind::Gpu;
        let step = Step::new([2, 1, 2, 3], &[(13, 1), (11, 5), (0, 1), (3, 3), (7, 1)]);
        for (i, window) in [None, Some(1), Some(2), Some(5), Some(100)].into_iter().enumerate() {
            for pages_per_item in [Some(1), Some(2), None] {
                let options = BatchOptions { window, pages_per_item };
                if !gpu || i == 3 && pages_per_item == Some(2) {
                    step.check(&client, [FLOATS[i % 3]; 2], options, None);
                }
            }
        }
    }
}

#[test]
fn keys_and_values_are_appended_in_place() {
    for client in clients() {
        for (dtype, of_cache) in [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F32, DType::I8)] {
            let [h, g, page, d] = [4, 2, 4, 3];
            let mut cache = PagedCache::new(&client, of_cache, [PAGES, g, page, d]).expect("it fits");
            // Two requests, grown by a prefill and three single steps; a third comes later.
            let mut had = [0, 0, 0];
            for (at, new) in [[5, 3, 0], [1, 1, 0], [1, 1, 4], [1, 0, 1]].into_iter().enumerate() {
                let requests: Vec<_> = had.iter().zip(new).map(|(had, new)| (had + new, new)).collect();
                had = [0, 1, 2].map(|r| had[r] + new[r]);
                let step = Step {
                    tables: [[3, 9, 4], [0, 22, 5], [7, 8, 1]].concat(),
                    ..Step::new([h, g, page, d], &requests)
                };
                let n = step.queries();
                let rows = |seed| array(&client, dtype, &[n, g, d], &values(n * g * d, seed + 10 * at));
                let (k, v) = (rows(4), rows(5));
                let batch = Batch::new(&cache, h, step.requests(), BatchOptions::default()).expect("it is right");
                cache.append(&batch, &k, &v).expect("it fits");
                let q = step.q(&client, dtype);
                let options = Options { scale: Some(0.5), soft_cap: None };
                let found = batch.attend_with_lse(&q, &cache, &options);
                step.compare(found, &q, &cache, [None, None], "appended");
                // What was written is what came: exactly, or within half a step of the scale.
                let [pool, _] = plain(&cache);
                let k = doubles(&k);
                for (r, &new) in new.iter().enumerate() {
                    for (i, head) in (0..new).flat_map(|i| (0..g).map(move |head| (i, head))) {
                        let row = &k[((step.starts[r] as usize + i) * g + head) * d..][..d];
                        let stored = &step.history(&pool, r, head)[had[r] - new + i];
                        let most = row.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
                        let allowed = if of_cache == DType::I8 { most / 127.0 * 0.501 } else { 0.0 };
                        assert!(row.iter().zip(stored).all(|(a, b)| (a - b).abs() <= allowed), "{row:?} {stored:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_an_error() {
    let cpu = Client::cpu();
    let step = Step::new([4, 2, 4, 3], &[(9, 1), (5, 2)]);
    let cache = step.cache(&cpu, DType::F32);
    let fails = |heads: usize, tables: &[i32], lengths: &[i32], starts: &[i32], says: &str| {
        let requests = Requests { tables, lengths, starts };
        let error =
            Batch::new(&cache, heads, requests, BatchOptions::default()).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}\n expected: {says}");
    };
    let (tables, starts) = ([0, 1, 2, 3, 4, -1], [0, 1, 3]);
    fails(4, &[0, 1, 23, 3, 4, -1], &[9, 5], &starts, "page 2 of request 0 is number 23, the cache has 0..23");
    fails(4, &[0, 1, 2, 3, -1, -1], &[9, 5], &starts, "page 1 of request 1 is number -1, the cache has 0..23");
    fails(4, &[0, 1, 2, 3, 4, i32::MIN], &[9, 9], &starts, "page 2 of request 1 is number -2147483648");
    fails(4, &tables, &[9, 13], &starts, "request 1 has 13 keys, which take 4 pages of 4; its table has 3");
    fails(4, &tables, &[9, -1], &starts, "request 1 has -1 keys");
    fails(4, &tables, &[9, 5], &[0, 1], "2 requests need 3 starts, the first 0; found [0, 1]");
    fails(4, &tables, &[9, 5], &[1, 2, 3], "2 requests need 3 starts");
    fails(4, &tables, &[9, 5], &[0, 3, 2], "queries of request 1 go from 3 to 2");
    fails(4, &tables[..5], &[9, 5], &starts, "tables of 5 entries for 2 requests");
    fails(5, &tables, &[9, 5], &starts, "5 heads of queries are no multiple of 2 heads of keys");
    // An entry behind the last page may be anything.
    let requests = Requests { tables: &tables, lengths: &[9, 8], starts: &starts };
    let batch = Batch::new(&cache, 4, requests, BatchOptions::default()).expect("it is right");

    let zeros = |dtype, shape: &[usize]| cpu.zeros(shape, dtype).expect("it fits");
    let attend = |q: &Array, cache: &PagedCache, says: &str| {
        let error = batch.attend(q, cache, &Options::default()).expect_err("it is refused").to_string();
        assert!(error.contains(says), "{error}\n expected: {says}");
    };
    attend(&zeros(DType::F32, &[3, 4, 2]), &cache, "`q` has shape [3, 4, 2], the batch and its cache have [3, 4, 3]");
    attend(&zeros(DType::F16, &[3, 4, 3]), &cache, "queries of f16 need a cache of f16 or i8, not of f32");
    let smaller = PagedCache::new(&cpu, DType::F32, [22, 2, 4, 3]).expect("it fits");
    attend(&zeros(DType::F32, &[3, 4, 3]), &smaller, "[23, 2, 4] does not fit one of [22, 2, 4]");
    let half = PagedCache { v: zeros(DType::F32, &[23, 2, 4, 2]), ..cache.clone() };
    attend(&zeros(DType::F32, &[3, 4, 3]), &half, "keys are f32 [23, 2, 4, 3], values f32 [23, 2, 4, 2]");
    let error = PagedCache::new(&cpu, DType::I32, [1, 1, 1, 1]).expect_err("it is refused").to_string();
    assert!(error.contains("a cache holds f32, f16, bf16 or i8, not i32"), "{error}");

    let mut cache = cache.clone();
    let k = zeros(DType::F32, &[3, 2, 3]);
    let error = cache.append(&batch, &k, &zeros(DType::F32, &[3, 2, 2])).expect_err("it is refused").to_string();
    assert!(error.contains("`v` is f32 [3, 2, 2], expected f32 [3, 2, 3]"), "{error}");
    let requests = Requests { tables: &tables, lengths: &[9, 1], starts: &starts };
    let short = Batch::new(&cache, 4, requests, BatchOptions::default()).expect("it is right");
    let error = cache.append(&short, &k, &k).expect_err("it is refused").to_string();
    assert!(error.contains("request 1 has more queries than keys"), "{error}");
    let shared = Batch::new(
        &cache,
        4,
        Requests { tables: &[3, 3], lengths: &[2, 2], starts: &[0, 1, 2] },
        BatchOptions::default(),
    );
    let k = zeros(DType::F32, &[2, 2, 3]);
    let error = cache.append(&shared.expect("it is right"), &k, &k).expect_err("it is refused").to_string();
    assert!(error.contains("requests 0 and 1 both append to place 1 of page 3"), "{error}");
    let k = zeros(DType::F32, &[3, 2, 3]);
    // The cache is still there.
    cache.append(&batch, &k, &k).expect("it fits");

    // No requests at all, and no queries.
    for requests in [
        Requests { tables: &[], lengths: &[], starts: &[0] },
        Requests { tables: &tables, lengths: &[9, 5], starts: &[0, 0, 0] },
    ] {
        let batch = Batch::new(&cache, 4, requests, BatchOptions::default()).expect("it is right");
        let out = batch.attend(&zeros(DType::F32, &[0, 4, 3]), &cache, &Options::default()).expect("it runs");
        assert_eq!(out.shape(), [0, 4, 3]);
    }
}
