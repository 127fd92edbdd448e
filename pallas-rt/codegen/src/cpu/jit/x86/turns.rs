//! Writes loops whose iterations consist of chains and small products.
//!
//! ```text
//! for turn in 0..turns
//!     for each piece: the rows of a chain, or a product
//!     for each place that moves: start += turn     (`turn`: its distance from one iteration to the next)
//! ```
use super::super::super::plan::step::Chain;
use super::super::form::{Piece, Place, Work};
use super::asm::{Jump, Mem};
use super::code::{FEW, Order, in_some_order};
use super::compiler::{Compiler, slots};
use super::frame::{KEPT_END, KEPT_ROW, LIMIT, SPARE, enter, entry, kept, leave};
use super::memory::Code;
use super::product::product;
use super::vector::{Beyond, Writer};

/// Maximum vector operations in an iteration, each of which has instructions of its own.
const MOST: usize = 2048;

/// Compiles iterations of these pieces, which refer to `chains` by index. Returns `None` if an operation has no
/// instructions here, or if there would be too many.
pub(super) fn compile(chains: &[&Chain], pieces: &[Piece], beyond: Beyond) -> Option<Code> {
    let vectors = |piece: &Piece| match piece.work {
        Work::Rows { chain, columns, .. } => {
            let blocks = if columns <= FEW { columns.div_ceil(beyond.lanes()) } else { 4 };
            blocks * chains[chain].links.len().max(1)
        }
        Work::Product(product) => product.vectors(),
    };
    (pieces.iter().map(vectors).sum::<usize>() <= MOST).then_some(())?;
    in_some_order(beyond, |order, w| function(chains, pieces, order, w))
}

/// Writes the function; returns its code and the constants worth keeping in registers.
fn function(chains: &[&Chain], pieces: &[Piece], order: Order, mut w: Writer) -> Option<(Vec<u8>, Vec<u32>)> {
    let needed = pieces.iter().filter_map(|piece| match piece.work {
        Work::Rows { chain, form, .. } => Some(slots(chains[chain], form)),
        Work::Product(_) => None,
    });
    enter(&mut w, needed.max());
    let (next, done) = (w.asm.label(), w.asm.label());
    w.asm.mov_load(SPARE, kept(KEPT_END));
    w.asm.clear(LIMIT);
    w.asm.compare_numbers(LIMIT, SPARE);
    w.asm.jump_if(Jump::GreaterEqual, done);
    w.asm.here(next);
    let (mut first, mut moving) = (0, vec![]);
    for piece in pieces {
        let start = first;
        match piece.work {
            Work::Rows { chain, form, rows, columns } => {
                let mut compiler = Compiler::new(chains[chain], form, w, first)?;
                compiler.extents = Some([rows, columns]);
                compiler.rows(rows, order)?;
                first = compiler.end();
                w = compiler.w;
            }
            Work::Product(ref own) => {
                product(&mut w, own, first)?;
                first += own.places();
            }
        }
        moving.extend((start..first).filter(|place| piece.moving >> (place - start).min(63) & 1 == 1));
    }
    for place in moving {
        w.asm.mov_load(SPARE, entry(place, std::mem::offset_of!(Place, turn)));
        w.asm.add_store(entry(place, std::mem::offset_of!(Place, start)), SPARE);
    }
    add(&mut w, KEPT_END, -1);
    w.asm.clear(LIMIT);
    w.asm.compare_numbers(LIMIT, SPARE);
    w.asm.jump_if(Jump::Less, next);
    w.asm.here(done);
    Some(leave(w))
}

/// Adds a constant to an argument on the stack; the sum is in the spare register afterwards.
fn add(w: &mut Writer, argument: usize, x: i32) {
    w.asm.mov_load(SPARE, kept(argument));
    w.asm.lea(SPARE, Mem { base: SPARE, index: None, offset: x });
    w.asm.mov_store(kept(argument), SPARE);
}

impl Compiler<'_> {
    /// Writes the loop over `rows` rows of the chain.
    fn rows(&mut self, rows: usize, order: Order) -> Option<()> {
        if rows == 1 {
            return self.row(order);
        }
        self.w.asm.clear(SPARE);
        self.w.asm.mov_store(kept(KEPT_ROW), SPARE);
        let next = self.w.asm.label();
        self.w.asm.here(next);
        self.row(order)?;
        add(&mut self.w, KEPT_ROW, 1);
        self.w.asm.clear(LIMIT);
        self.w.asm.lea(LIMIT, Mem { base: LIMIT, index: None, offset: i32::try_from(rows).ok()? });
        self.w.asm.compare_numbers(SPARE, LIMIT);
        self.w.asm.jump_if(Jump::Less, next);
        Some(())
    }
}
