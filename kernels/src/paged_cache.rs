//! The paged cache of keys and values, and how it grows: see [`crate::paged_attention`].
use crate::argument_errors::argument_error;
use crate::dtype_dispatch::floats;
use crate::paged_batch::Batch;
use pallas_rt::prelude::*;

/// Keys and values of all requests, in pages.
#[derive(Clone, Debug)]
pub struct PagedCache {
    /// Keys, `[pages, key heads, page, d]`, of a float type or i8.
    pub k: Array,
    /// Values, with shape and type of `k`.
    pub v: Array,
    /// Dequantisation scales of keys and of values, f32 `[pages, key heads, page]`; only with i8.
    pub scales: Option<[Array; 2]>,
}

/// Writes a row of keys and of values per program into the pages, in place; `slots` has each row's page and position in
/// it.
#[kernel(grid = (T, G))]
pub fn paged_append<E: Float, C: Float>(
    #[block([T, G, D] => [_, _, D], |t, g| (t, g, 0))] new_k: In<E>,
    #[block([T, G, D] => [_, _, D], |t, g| (t, g, 0))] new_v: In<E>,
    #[prefetch([T, 2])] slots: Prefetch<i32>,
    #[block([P, G, K, D] => [_, _, _, D], |t, g| (slots.at((t, 0)), g, slots.at((t, 1)), 0))] k: In<C>,
    #[block([P, G, K, D] => [_, _, _, D], |t, g| (slots.at((t, 0)), g, slots.at((t, 1)), 0))] v: In<C>,
    #[block([P, G, K, D] => [_, _, _, D], |t, g| (slots.at((t, 0)), g, slots.at((t, 1)), 0), alias = k)] k_out: Out<C>,
    #[block([P, G, K, D] => [_, _, _, D], |t, g| (slots.at((t, 0)), g, slots.at((t, 1)), 0), alias = v)] v_out: Out<C>,
) {
    k_out.store(new_k.load().cast::<f32>().cast::<C>());
    v_out.store(new_v.load().cast::<f32>().cast::<C>());
}

/// Writes like [`paged_append`], for keys or values, as 8-bit integers with a scale for each row.
#[kernel(grid = (T, G))]
pub fn paged_append_quantised<E: Float>(
    #[block([T, G, D] => [_, _, D], |t, g| (t, g, 0))] new: In<E>,
    #[prefetch([T, 2])] slots: Prefetch<i32>,
    #[block([P, G, K, D] => [_, _, _, D], |t, g| (slots.at((t, 0)), g, slots.at((t, 1)), 0))] x: In<i8>,
    #[block([P, G, K] => [_, _, Element(1, 0, 0)], |t, g| (slots.at((t, 0)), g, element(slots.at((t, 1)))))] scales: In<
        f32,
    >,
    #[block([P, G, K, D] => [_, _, _, D], |t, g| (slots.at((t, 0)), g, slots.at((t, 1)), 0), alias = x)] x_out: Out<i8>,
    #[block([P, G, K] => [_, _, Element(1, 0, 0)], |t, g| (slots.at((t, 0)), g, element(slots.at((t, 1)))), alias = scales)]
    scales_out: Out<f32>,
) {
    let new = new.load().cast::<f32>();
    let scale = new.abs().max(0) / 127.0;
    // A row of zeros has scale 0.
    x_out.store((new / select(scale.eq(0.0), 1.0, scale)).round().cast::<i8>());
    scales_out.store(scale);
}

impl PagedCache {
    /// Allocates an empty pool of pages `[pages, key heads, page, d]` of f32, f16, bf16, or i8 with scales.
    ///
    /// # Errors
    /// Another element type; no memory.
    #[track_caller]
    pub fn new(client: &Client, dtype: DType, shape: [usize; 4]) -> Result<PagedCache> {
        let scales = match dtype {
            DType::F32 | DType::F16 | DType::Bf16 => None,
            DType::I8 => {
                let zeros = || client.zeros(&shape[..3], DType::F32);
                Some([zeros()?, zeros()?])
            }
            other => return argument_error(format!("a cache holds f32, f16, bf16 or i8, not {other}")),
        };
        Ok(PagedCache { k: client.zeros(&shape, dtype)?, v: client.zeros(&shape, dtype)?, scales })
    }

    /// Checks the arrays' shapes; returns numbers of pages and key heads, page size and head dimension.
    #[track_caller]
    pub(crate) fn extents(&self) -> Result<[usize; 4]> {
        let (k, v) = (self.k.shape(), self.v.shape());
        let Ok(shape) = <[usize; 4]>::try_from(k) else {
            return argument_error(format!(
                "a cache has shape {k:?}, expected [pages, key heads, page, head dimension]"
            ));
        };
        if k != v || self.k.dtype() != self.v.dtype() {
            return argument_error(format!("keys are {} {k:?}, values {} {v:?}", self.k.dtype(), self.v.dtype()));
        }
        match &self.scales {
            None if self.k.dtype() == DType::I8 => argument_error("a cache of i8 has scales".into()),
            Some(_) if self.k.dtype() != DType::I8 => {
                argument_error(format!("a cache of {} has no scales", self.k.dtype()))
            }
            Some(scales) if scales.iter().any(|s| s.shape() != &k[..3]) => argument_error(format!(
                "scales have shapes {:?}, expected {:?}",
                scales.each_ref().map(Array::shape),
                &k[..3]
            )),
            _ => Ok(shape),
        }
    }

    /// Writes the keys and values `[queries, key heads, d]` of a batch's tokens into their pages, in place if no clone
    /// of the cache is alive.
    ///
    /// # Errors
    /// Shapes or element types that do not fit; a request with more queries than keys; two queries whose tokens have
    /// the same position in a page; device errors, after which the cache is empty.
    #[track_caller]
    #[inline]
    pub fn append(&mut self, batch: &Batch, k: &Array, v: &Array) -> Result<()> {
        let [.., d] = self.extents()?;
        batch.check_cache(self)?;
        let expected = [batch.queries, batch.sizes[1], d];
        for (name, x) in [("k", k), ("v", v)] {
            if x.client() != self.k.client() {
                return argument_error(format!("`{name}` is on {}, the cache on {}", x.device(), self.k.device()));
            }
            if x.shape() != expected || x.dtype() != k.dtype() {
                return argument_error(format!(
                    "`{name}` is {} {:?}, expected {} {expected:?}",
                    x.dtype(),
                    x.shape(),
                    k.dtype()
                ));
            }
        }
        let slots = match &batch.slots {
            Ok(slots) => slots,
            Err(message) => return argument_error(message.clone()),
        };
        // Held by the launch alone, memory is written in place.
        let take = |x: &mut Array| -> Result<Array> {
            let none = k.client().zeros(&[0], x.dtype())?;
            Ok(std::mem::replace(x, none))
        };
        match &mut self.scales {
            Some([k_scales, v_scales]) => {
                for (new, data, scales) in [(k, &mut self.k, k_scales), (v, &mut self.v, v_scales)] {
                    let (x, s) = (take(data)?, take(scales)?);
                    (*data, *scales) =
                        floats!("append", k.dtype(), E => paged_append_quantised::<E>(new, slots, x, s))?;
                }
            }
            None => {
                let (x, y) = (take(&mut self.k)?, take(&mut self.v)?);
                (self.k, self.v) = floats!("append", k.dtype(), E => floats!("append", x.dtype(), C =>
                    paged_append::<E, C>(k, v, slots, x, y)))?;
            }
        }
        Ok(())
    }
}
