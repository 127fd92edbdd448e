//! Sorts lines of elements, by unsigned keys that have the order of the elements.
//!
//! Short lines are sorted by comparing keys, long ones by radix: stable counting sorts of the keys' digits, from the
//! lowest (Knuth, The Art of Computer Programming 3, 5.2.5). If only the first few of many elements are wanted,
//! candidates before the last one found so far are collected. Very long lines are divided among the threads of the
//! pool.
use super::thread_team::run_both;
use pallas_ir::DType;
use pallas_ir::structural::SortOrder;
use smallvec::SmallVec;

/// An unsigned integer that holds the bits of an element to be sorted, or its key, which is ordered as the elements
/// are.
pub(super) trait KeyBits: Copy + Ord + Send + Sync + 'static {
    /// Number of bits of the type.
    const BITS: u32;
    /// A key with a position, ordered by key and then by position.
    type Packed: PackedKey;
    /// Returns the lowest bits of a word.
    fn from_word(word: u64) -> Self;
    /// Returns the value as a 64-bit word.
    fn to_word(self) -> u64;
    /// Returns the bitwise exclusive or of both integers.
    fn xor(self, other: Self) -> Self;
    /// Returns the key of a float in the total order of IEEE 754.
    fn total_order_key(self) -> Self;
    /// Returns the key of a float in the order where -0 equals +0, and all NaNs are equal and last; `infinity` has the
    /// bits of infinity.
    fn weak_order_key(self, infinity: Self) -> Self;
    /// Returns the key together with a position.
    fn pack(self, position: u32) -> Self::Packed;
}
/// Implements [`KeyBits`] for unsigned integers.
macro_rules! bits {
    ($($U:ident $I:ident $P:ident;)*) => {$(
        impl KeyBits for $U {
            const BITS: u32 = $U::BITS;
            type Packed = $P;
            #[inline(always)]
            fn from_word(word: u64) -> Self {
                word as $U
            }
            #[inline(always)]
            fn to_word(self) -> u64 {
                u64::from(self)
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn total_order_key(self) -> Self {
                let sign = 1 << ($U::BITS - 1);
                self ^ ((self as $I >> ($U::BITS - 1)) as $U | sign)
            }
            #[inline(always)]
            fn weak_order_key(self, infinity: Self) -> Self {
                let magnitude = self & ($U::MAX >> 1);
                let key = if magnitude == 0 { magnitude.total_order_key() } else { self.total_order_key() };
                if magnitude > infinity { $U::MAX } else { key }
            }
            #[inline(always)]
            fn pack(self, position: u32) -> $P {
                $P::from(self) << 32 | $P::from(position)
            }
        }
    )*};
}
bits! { u8 i8 u64; u16 i16 u64; u32 i32 u64; u64 i64 u128; }

/// A key and a position in one integer, the key in the upper bits.
pub(super) trait PackedKey: Copy + Ord + Send + Sync + 'static {
    /// Returns the key.
    fn key(self) -> u64;
    /// Returns the position.
    fn position(self) -> u32;
}
/// Implements [`PackedKey`] for unsigned integers.
macro_rules! packed {
    ($($P:ident)*) => {$(
        impl PackedKey for $P {
            #[inline(always)]
            fn key(self) -> u64 {
                (self >> 32) as u64
            }
            #[inline(always)]
            fn position(self) -> u32 {
                self as u32
            }
        }
    )*};
}
packed! { u64 u128 }

/// Class of keys of integers: their bits, of which the sign is inverted for signed types.
pub(super) const INTEGER_KEY_CLASS: u8 = 0;
/// Class of keys of floats in the total order of IEEE 754, where -0 comes before +0.
pub(super) const TOTAL_ORDER_KEY_CLASS: u8 = 1;
/// Class of keys of floats in the order where both zeros are equal, and all NaNs are equal and last.
pub(super) const WEAK_ORDER_KEY_CLASS: u8 = 2;

/// The rule that maps the elements of a type to keys, for one order.
#[derive(Clone, Copy)]
pub(super) struct KeyRule<U, const CLASS: u8> {
    infinity: U,
    /// Bits of the key that are inverted, for signed integers and descending orders.
    inverted: U,
}

impl<U: KeyBits, const CLASS: u8> KeyRule<U, CLASS> {
    #[inline(always)]
    fn key(self, x: U) -> U {
        let key = match CLASS {
            TOTAL_ORDER_KEY_CLASS => x.total_order_key(),
            WEAK_ORDER_KEY_CLASS => x.weak_order_key(self.infinity),
            _ => x,
        };
        key.xor(self.inverted)
    }
}

/// A computation on elements to be sorted, generic over the rule that maps them to unsigned keys.
pub(super) trait KeyRuleVisitor {
    /// The result of the computation.
    type Out;
    /// Runs the computation with `rule`, which maps the elements to keys in the wanted order.
    fn visit<U: KeyBits, const CLASS: u8>(self, rule: KeyRule<U, CLASS>) -> Self::Out;
}

/// Calls the visitor with the rule of an element type and an order, and returns its result.
pub(super) fn visit_key_rule<V: KeyRuleVisitor>(dtype: DType, order: SortOrder, visitor: V) -> V::Out {
    fn visit_with_key_bits<V: KeyRuleVisitor, U: KeyBits>(
        order: SortOrder,
        infinity: Option<u64>,
        signed: bool,
        visitor: V,
    ) -> V::Out {
        let all = if order == SortOrder::Ascending { 0 } else { u64::MAX };
        let sign = if signed { 1 << (U::BITS - 1) } else { 0 };
        let (inverted, infinity) = (U::from_word(all ^ sign), infinity.map(U::from_word));
        match (infinity, order) {
            (None, _) => visitor.visit(KeyRule::<U, INTEGER_KEY_CLASS> { infinity: inverted, inverted }),
            (Some(infinity), SortOrder::Largest) => {
                visitor.visit(KeyRule::<U, TOTAL_ORDER_KEY_CLASS> { infinity, inverted })
            }
            (Some(infinity), _) => visitor.visit(KeyRule::<U, WEAK_ORDER_KEY_CLASS> { infinity, inverted }),
        }
    }
    match dtype {
        DType::F32 => visit_with_key_bits::<V, u32>(order, Some(0x7f80_0000), false, visitor),
        DType::F64 => visit_with_key_bits::<V, u64>(order, Some(0x7ff0_0000_0000_0000), false, visitor),
        DType::F16 => visit_with_key_bits::<V, u16>(order, Some(0x7c00), false, visitor),
        DType::Bf16 => visit_with_key_bits::<V, u16>(order, Some(0x7f80), false, visitor),
        DType::I8 => visit_with_key_bits::<V, u8>(order, None, true, visitor),
        DType::U8 | DType::Bool => visit_with_key_bits::<V, u8>(order, None, false, visitor),
        DType::I16 => visit_with_key_bits::<V, u16>(order, None, true, visitor),
        DType::U16 => visit_with_key_bits::<V, u16>(order, None, false, visitor),
        DType::I32 => visit_with_key_bits::<V, u32>(order, None, true, visitor),
        DType::U32 => visit_with_key_bits::<V, u32>(order, None, false, visitor),
        DType::I64 => visit_with_key_bits::<V, u64>(order, None, true, visitor),
        DType::U64 => visit_with_key_bits::<V, u64>(order, None, false, visitor),
    }
}

/// Minimum elements of a line that is sorted by radix instead of by comparisons.
const MIN_RADIX_SORT_ELEMENTS: usize = 256;
/// Minimum elements of a line that is sorted by digits of 11 bits; shorter ones are sorted by digits of 8 bits, whose
/// counts take less time to clear.
const MIN_WIDE_DIGIT_ELEMENTS: usize = 4096;
/// Minimum elements that a thread sorts.
const MIN_ELEMENTS_PER_THREAD: usize = 1 << 15;
/// Maximum digits into which a radix sort divides a key: those of 8 bits in a key of 64.
const MAX_KEY_DIGITS: usize = 8;
/// Maximum different values of a digit of a radix sort, which has up to 11 bits.
const MAX_DIGIT_VALUES: usize = 1 << 11;

/// Returns how many times a line of `n` elements is halved, so that each thread of the pool gets a part.
pub(super) fn halvings_for_threads(n: usize) -> u32 {
    if n < 2 * MIN_ELEMENTS_PER_THREAD {
        0
    } else {
        rayon_core::current_num_threads().min(n / MIN_ELEMENTS_PER_THREAD).ilog2()
    }
}

/// Sorts elements by radix: stable counting sorts by the digits of their keys, from `source` to `target`, with a
/// buffer of the length of `target`.
fn radix_sort<T: Copy>(
    key_bits: u32,
    source: impl Fn(usize) -> T,
    key: impl Fn(T) -> u64,
    target: &mut [T],
    buffer: &mut [T],
) {
    let n = target.len();
    let width = if n < MIN_WIDE_DIGIT_ELEMENTS { 8 } else { 11 };
    let digits = key_bits.div_ceil(width) as usize;
    let mask = (1u64 << width) - 1;
    let digit = |key: u64, i: usize| (key >> (i as u32 * width) & mask) as usize % MAX_DIGIT_VALUES;
    let mut counts = [[0u32; MAX_DIGIT_VALUES]; MAX_KEY_DIGITS];
    for i in 0..n {
        let key = key(source(i));
        (0..digits).for_each(|d| counts[d][digit(key, d)] += 1);
    }
    // Passes over a digit that all keys share are skipped.
    let first = if n > 0 { key(source(0)) } else { 0 };
    let moves = |d: &usize| counts[*d][digit(first, *d)] as usize != n;
    let moving: SmallVec<[usize; MAX_KEY_DIGITS]> = (0..digits).filter(moves).collect();
    if moving.is_empty() {
        return target.iter_mut().enumerate().for_each(|(i, to)| *to = source(i));
    }
    for (turn, &d) in moving.iter().enumerate() {
        let counts = &mut counts[d];
        let mut sum = 0;
        for count in &mut counts[..1 << width] {
            sum += std::mem::replace(count, sum);
        }
        let mut place = |to: &mut [T], x: T| {
            let at = &mut counts[digit(key(x), d)];
            to[*at as usize] = x;
            *at += 1;
        };
        // The last pass writes the target.
        let to_target = (moving.len() - turn) % 2 == 1;
        match (turn, to_target) {
            (0, true) => (0..n).for_each(|i| place(target, source(i))),
            (0, false) => (0..n).for_each(|i| place(buffer, source(i))),
            (_, true) => buffer.iter().for_each(|&x| place(target, x)),
            (_, false) => target.iter().for_each(|&x| place(buffer, x)),
        }
    }
}

/// Merges the sorted halves `a` and `b` to `out`, by two threads from both ends, and converts each element as it is
/// written. Of equal elements those of `a`, which has as many elements as `b` or one more, come first.
fn merge<T: Copy + Send + Sync, O: Send>(
    a: &[T],
    b: &[T],
    out: &mut [O],
    is_before: impl Fn(T, T) -> bool + Sync,
    convert: impl Fn(T) -> O + Sync,
) {
    let (front, back) = out.split_at_mut(b.len());
    let mut from_front = || {
        let (mut i, mut j) = (0, 0);
        for to in front.iter_mut() {
            let (x, y) = (a[i], b[j]);
            let is_second = is_before(y, x);
            *to = convert(if is_second { y } else { x });
            i += usize::from(!is_second);
            j += usize::from(is_second);
        }
    };
    let mut from_back = || {
        let (mut i, mut j) = (a.len(), b.len());
        for to in back.iter_mut().rev() {
            let is_first = j == 0 || is_before(b[j - 1], a[i - 1]);
            *to = convert(if is_first { a[i - 1] } else { b[j - 1] });
            i -= usize::from(is_first);
            j -= usize::from(!is_first);
        }
    };
    run_both(&mut from_front, &mut from_back);
}

/// Sorts the elements `x` to `out`; `buffer` is scratch memory of the same length. The line is halved `halvings` times,
/// and the parts are sorted by different threads.
pub(super) fn sort_values<U: KeyBits, const CLASS: u8>(
    rule: KeyRule<U, CLASS>,
    x: &[U],
    out: &mut [U],
    buffer: &mut [U],
    halvings: u32,
) {
    if x.len() <= MAX_RANK_SORT_ELEMENTS {
        return sort_by_rank(rule, x, |place, i| out[place] = x[i]);
    }
    if x.len() < MIN_RADIX_SORT_ELEMENTS {
        out.copy_from_slice(x);
        return out.sort_by_key(|&x| rule.key(x));
    }
    if halvings == 0 {
        return radix_sort(U::BITS, |i| x[i], |x| rule.key(x).to_word(), out, buffer);
    }
    let half = x.len().div_ceil(2);
    let ((x0, x1), (a, b)) = (x.split_at(half), buffer.split_at_mut(half));
    let (other_a, other_b) = out.split_at_mut(half);
    run_both(&mut || sort_values(rule, x0, a, other_a, halvings - 1), &mut || {
        sort_values(rule, x1, b, other_b, halvings - 1)
    });
    merge(a, b, out, |x, y| rule.key(x) < rule.key(y), |x| x);
}

/// Sorts the keys of the elements `x`, each packed with its position, which is counted from the given first one;
/// `buffer` is scratch memory of the length of `out`.
fn sort_packed_keys<U: KeyBits, const CLASS: u8>(
    rule: KeyRule<U, CLASS>,
    (x, first_position): (&[U], u32),
    out: &mut [U::Packed],
    buffer: &mut [U::Packed],
    halvings: u32,
) {
    let pack = |i: usize| rule.key(x[i]).pack(first_position + i as u32);
    if x.len() < MIN_RADIX_SORT_ELEMENTS {
        out.iter_mut().enumerate().for_each(|(i, to)| *to = pack(i));
        return out.sort_unstable();
    }
    if halvings == 0 {
        return radix_sort(U::BITS, pack, PackedKey::key, out, buffer);
    }
    let half = x.len().div_ceil(2);
    let ((x0, x1), (a, b)) = (x.split_at(half), buffer.split_at_mut(half));
    let (other_a, other_b) = out.split_at_mut(half);
    run_both(&mut || sort_packed_keys(rule, (x0, first_position), a, other_a, halvings - 1), &mut || {
        sort_packed_keys(rule, (x1, first_position + half as u32), b, other_b, halvings - 1)
    });
    merge(a, b, out, |x, y| x < y, |x| x);
}

/// Maximum elements of a line that is sorted by counting, for each element, those before it, which has no
/// unpredictable branches.
const MAX_RANK_SORT_ELEMENTS: usize = 8;

/// Sorts a short line by counting, for each element, those that come before it: calls `put` with the place in the
/// sorted line and the position of each element.
#[inline(always)]
fn sort_by_rank<U: KeyBits, const CLASS: u8>(rule: KeyRule<U, CLASS>, x: &[U], mut put: impl FnMut(usize, usize)) {
    if let &[a, b] = x {
        let is_turned = usize::from(rule.key(b) < rule.key(a));
        put(is_turned, 0);
        return put(1 - is_turned, 1);
    }
    let mut keys = [U::from_word(0); MAX_RANK_SORT_ELEMENTS];
    keys.iter_mut().zip(x).for_each(|(key, &x)| *key = rule.key(x));
    let keys = &keys[..x.len()];
    for (i, key) in keys.iter().enumerate() {
        let before = keys[..i].iter().map(|other| usize::from(other <= key)).sum::<usize>();
        put(before + keys[i..].iter().map(|other| usize::from(other < key)).sum::<usize>(), i);
    }
}

/// Writes to `out` the positions of the elements of the line `x` in sorted order, only the first ones if `out` is
/// shorter than the line. `halvings` is how many times the line is halved for threads; the two buffers have
/// [`sort_buffer_lengths`] elements.
pub(super) fn sort_positions<U: KeyBits, const CLASS: u8>(
    rule: KeyRule<U, CLASS>,
    x: &[U],
    out: &mut [u32],
    [a, b]: [&mut [U::Packed]; 2],
    halvings: u32,
) {
    let (n, k) = (x.len(), out.len());
    if n <= MAX_RANK_SORT_ELEMENTS {
        return sort_by_rank(rule, x, |place, i| out.get_mut(place).into_iter().for_each(|to| *to = i as u32));
    }
    let write = |out: &mut [u32], from: &[U::Packed]| {
        out.iter_mut().zip(from).for_each(|(to, x)| *to = x.position());
    };
    if is_selection_faster(n, k) {
        let found = select_first_k(rule, (x, 0), k, a, halvings);
        return write(out, &a[..found]);
    }
    if halvings == 0 || k < n {
        sort_packed_keys(rule, (x, 0), a, b, halvings);
        return write(out, a);
    }
    let half = n.div_ceil(2);
    let ((x0, x1), (a0, a1), (b0, b1)) = (x.split_at(half), a.split_at_mut(half), b.split_at_mut(half));
    run_both(&mut || sort_packed_keys(rule, (x0, 0), a0, b0, halvings - 1), &mut || {
        sort_packed_keys(rule, (x1, half as u32), a1, b1, halvings - 1)
    });
    merge(a0, a1, out, |x, y| x < y, PackedKey::position);
}

/// Returns true if collecting the first `k` of `n` elements takes less time than sorting all.
fn is_selection_faster(n: usize, k: usize) -> bool {
    n >= MIN_RADIX_SORT_ELEMENTS && k <= n / 16
}

/// Returns the maximum number of candidates that a selection collects; when there are so many, all but the first `k`
/// in order are dropped.
fn max_selection_candidates(k: usize) -> usize {
    4 * k + 64
}

/// Returns the lengths of the two buffers of [`sort_positions`], if the first `k` of `n` elements are wanted and the
/// line is halved `halvings` times.
pub(super) fn sort_buffer_lengths(n: usize, k: usize, halvings: u32) -> [usize; 2] {
    if is_selection_faster(n, k) { [max_selection_candidates(k) << halvings, 0] } else { [n, n] }
}

/// Number of elements that are compared at once with the `k`-th candidate; only if one comes before it are they
/// examined one by one.
const SELECTION_BLOCK_ELEMENTS: usize = 32;

/// Writes the first `k` elements of `x` in sorted order to the start of `found`, each as a key packed with its
/// position, counted from `first_position`; returns `k`. `halvings` is how many times `x` may be halved for threads.
fn select_first_k<U: KeyBits, const CLASS: u8>(
    rule: KeyRule<U, CLASS>,
    (x, first_position): (&[U], u32),
    k: usize,
    found: &mut [U::Packed],
    halvings: u32,
) -> usize {
    if k == 0 {
        return 0;
    }
    if halvings > 0 && x.len() / 2 >= k {
        let ((x0, x1), (a, b)) = (x.split_at(x.len() / 2), found.split_at_mut(found.len() / 2));
        run_both(&mut || _ = select_first_k(rule, (x0, first_position), k, a, halvings - 1), &mut || {
            _ = select_first_k(rule, (x1, first_position + x0.len() as u32), k, b, halvings - 1)
        });
        // Both halves of the buffer are longer than 2k.
        a[k..2 * k].copy_from_slice(&b[..k]);
        a[..2 * k].sort_unstable();
        return k;
    }
    let found = &mut found[..max_selection_candidates(k)];
    let mut count = 0;
    // A key that is not below this one cannot be among the first any more.
    let mut bound = None;
    let (blocks, rest) = x.as_chunks::<SELECTION_BLOCK_ELEMENTS>();
    let mut take = |at: usize, block: &[U], bound: &mut Option<U>| {
        for (i, &x) in block.iter().enumerate() {
            let key = rule.key(x);
            if bound.is_none_or(|bound| key < bound) {
                found[count] = key.pack(first_position + (at + i) as u32);
                count += 1;
                if count == found.len() {
                    let (_, last, _) = found.select_nth_unstable(k - 1);
                    *bound = Some(U::from_word(last.key()));
                    count = k;
                }
            }
        }
    };
    for (i, block) in blocks.iter().enumerate() {
        if bound.is_none_or(|bound| is_any_below(rule, block, bound)) {
            take(i * SELECTION_BLOCK_ELEMENTS, block, &mut bound);
        }
    }
    take(blocks.len() * SELECTION_BLOCK_ELEMENTS, rest, &mut bound);
    found[..count].sort_unstable();
    k
}

/// Returns true if an element of the block comes before the key `bound`.
#[inline(always)]
fn is_any_below<U: KeyBits, const CLASS: u8>(
    rule: KeyRule<U, CLASS>,
    block: &[U; SELECTION_BLOCK_ELEMENTS],
    bound: U,
) -> bool {
    block.iter().fold(false, |any, &x| any | (rule.key(x) < bound))
}

#[cfg(test)]
mod tests;
