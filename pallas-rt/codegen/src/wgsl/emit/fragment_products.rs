//! Products by cooperative matrices: factors in workgroup memory, and results in accumulators, both as fragments.
//!
//! All of this text is in uniform control flow with all threads of a subgroup active, whatever the extents of arrays
//! are: elements outside of an array are in workgroup memory as the operand's fill. A subgroup computes the fragments
//! that its number selects.
use super::emitter::BodyEmitter;
use super::position::{TileCoord, offset_expression};
use super::product::Product;
use crate::wgsl::barriers::MemoryId;
use crate::wgsl::place::TileStorage;
use crate::wgsl::place::cooperative_matrices::{AccumulatorFragments, CooperativeProduct, StorageCell, is_zero_tile};
use pallas_ir::{Inst, Value};

/// Maximum products of fragments that are written out in one iteration of a loop.
const MAX_UNROLLED_FRAGMENT_PRODUCTS: usize = 64;

/// A factor of a product, in workgroup memory.
struct MatrixFactor {
    buffer: usize,
    /// Strides along the result's axis and along the contracted axis.
    strides: [usize; 2],
}

impl BodyEmitter<'_> {
    /// Returns the fragments of a tile whose storage class is accumulators; `None` for other tiles.
    pub(super) fn accumulator_fragments(&self, v: Value) -> Option<AccumulatorFragments> {
        self.plan.fragments[v.index()].filter(|_| self.plan.tile_storage[v.index()] == TileStorage::Accumulators)
    }
    /// Returns the names of the accumulators that hold a tile.
    pub(super) fn accumulator_names(&self, v: Value) -> Vec<String> {
        let count = self.accumulator_fragments(v).map_or(0, AccumulatorFragments::fragments_per_subgroup);
        (0..count).map(|i| format!("f{}_{i}", self.k.label(v))).collect()
    }
    pub(super) fn accumulator_type(&self, v: Value) -> String {
        let size = self.accumulator_fragments(v).map_or(0, |f| f.size);
        format!("coop_mat{size}x{size}<f32, C>")
    }
    /// Returns the initial values of `to`'s accumulators: those of `from`, or zeros if `from` is `None` or a tile of
    /// zeros.
    pub(super) fn initial_accumulators(&self, to: Value, from: Option<Value>) -> Vec<String> {
        match from.filter(|&v| !is_zero_tile(self.k, &self.plan.defined, v)) {
            Some(v) => self.accumulator_names(v),
            None => vec![format!("{}()", self.accumulator_type(to)); self.accumulator_names(to).len()],
        }
    }

    /// Writes the product of an instruction's operands, added to `initial_sum`, to the accumulators of `result`.
    pub(super) fn emit_cooperative_product(
        &mut self,
        result: Value,
        product: &Inst,
        dot: &Product,
        initial_sum: Option<Value>,
    ) {
        let how = self.plan.products[product.results[0].index()].expect("accumulators come of cooperative products");
        let fragments = self.accumulator_fragments(result).expect("the result is accumulators");
        let factors = [0, 1].map(|side| self.factor_in_memory(product.args[side], &dot.factor_axes(side)));
        let [Some(a), Some(b)] = factors else { return };
        self.emit_memory_step(|e| {
            let (ty, sums) = (e.accumulator_type(result), e.accumulator_names(result));
            for (sum, start) in sums.iter().zip(e.initial_accumulators(result, initial_sum)) {
                e.emit_line(format!("var {sum}: {ty} = {start};"));
            }
            let first = e.emit_subgroup_origin(fragments);
            let steps = dot.steps / how.size;
            let most = (MAX_UNROLLED_FRAGMENT_PRODUCTS / fragments.fragments_per_subgroup()).max(1);
            let unroll = (1..=most).rev().find(|u| steps.is_multiple_of(*u)).unwrap_or(1);
            let k = e.fresh_name("k");
            let rolled = steps > unroll;
            if rolled {
                let step = unroll * how.size;
                e.emit_line(format!("for (var {k} = 0u; {k} < {}u; {k} += {step}u) {{", dot.steps));
                e.depth += 1;
                e.spent += (steps / unroll) as u64 + 1;
            }
            e.with_trips((steps / unroll) as f64, |e| {
                for u in 0..unroll {
                    let inner =
                        if rolled { format!("({k} + {}u)", u * how.size) } else { format!("{}u", u * how.size) };
                    e.emit_cooperative_step(how, fragments, [&a, &b], (&first, &inner), &sums);
                }
            });
            if rolled {
                e.depth -= 1;
                e.emit_line("}");
            }
        });
    }
    /// Writes the multiply-adds of a subgroup's fragments for one fragment's extent of the contracted axis, from
    /// position `inner` on. `first` has the subgroup's first row and column, and `sums` the names of its accumulators.
    fn emit_cooperative_step(
        &mut self,
        product: CooperativeProduct,
        fragments: AccumulatorFragments,
        [a, b]: [&MatrixFactor; 2],
        (first, inner): (&[String; 2], &str),
        sums: &[String],
    ) {
        let load = |e: &mut Self, factor: &MatrixFactor, role: &str, own: &str, i: usize| {
            e.load_fragment(product, factor, role, (&format!("({own} + {}u)", i * product.size), inner))
        };
        let rows: Vec<String> = (0..fragments.own[0]).map(|i| load(self, a, "A", &first[0], i)).collect();
        for j in 0..fragments.own[1] {
            let column = load(self, b, "B", &first[1], j);
            for (i, row) in rows.iter().enumerate() {
                let sum = &sums[i * fragments.own[1] + j];
                self.emit_line(format!("{sum} = coopMultiplyAdd({row}, {column}, {sum});"));
                let each = self.per_thread_share(product.size * product.size * product.size);
                self.add_work(self.parameters.matrix * each);
                self.counts.fma += each * self.trips;
                self.counts.fragments += self.trips;
            }
        }
    }
    /// Returns a thread's share of an amount of work or words that the threads of a subgroup divide among them.
    fn per_thread_share(&self, amount: usize) -> f64 {
        amount as f64 / self.plan.lanes as f64
    }
    /// Writes the load of a fragment of a factor, and returns its name; `role` is "A" or "B", `own` and `inner` are the
    /// fragment's first positions along the result's axis and along the contracted axis.
    fn load_fragment(
        &mut self,
        product: CooperativeProduct,
        factor: &MatrixFactor,
        role: &str,
        (own, inner): (&str, &str),
    ) -> String {
        let MatrixFactor { buffer, strides: [along, across] } = *factor;
        self.record_step_access(MemoryId::Buffer(buffer), None, false);
        let CooperativeProduct { size, cell } = product;
        let words = self.per_thread_share(size * size) * cell.bytes_per_element() as f64 / 4.0;
        self.add_work(self.parameters.workgroup * words);
        self.counts.product_words += words * self.trips;
        // The rows of A lie along the result's axis, those of B along the contracted axis.
        let by_rows = if role == "A" { across == 1 } else { along == 1 };
        let (load, pitch) = (if by_rows { "coopLoadT" } else { "coopLoad" }, along.max(across));
        let ty = if cell == StorageCell::F16 { "f16" } else { "f32" };
        let at = offset_expression(&[own, inner].map(TileCoord::from_text), &[along, across]);
        let (arena, base) = (cell.workgroup_array_name(), &self.plan.buffers[buffer].name);
        let text = format!("{load}<coop_mat{size}x{size}<{ty}, {role}>>(&{arena}[at_{base} + {at}], {pitch}u)");
        let name = self.fresh_name(if role == "A" { "a" } else { "b" });
        self.emit_line(format!("let {name} = {text};"));
        name
    }
    /// Returns the buffer and strides of a factor; `None` if it is not in memory, in which case a copy is requested
    /// for the next attempt.
    fn factor_in_memory(&mut self, v: Value, axes: &[usize; 2]) -> Option<MatrixFactor> {
        let source = |axis: usize| self.plan.source_axis(self.k, v, axis).expect("factors are tiles or views of some");
        let [(tile, along), (_, across)] = axes.map(source);
        let buffer = match self.plan.tile_storage[tile.index()] {
            TileStorage::Buffer(b) => Some(b),
            _ => self.plan.copies[tile.index()],
        };
        let Some(buffer) = buffer else {
            self.out.wanted.insert(tile);
            return None;
        };
        let strides = &self.plan.buffers[buffer].strides;
        Some(MatrixFactor { buffer, strides: [strides[along], strides[across]] })
    }
    /// Writes the numbers of the first row and column of this subgroup's accumulators, and returns their names.
    fn emit_subgroup_origin(&mut self, fragments: AccumulatorFragments) -> [String; 2] {
        let AccumulatorFragments { size, grid: [y, x], own: [rows, columns] } = fragments;
        let [row, column] = [self.fresh_name("first_row"), self.fresh_name("first_column")];
        self.emit_line(format!("let {row} = subgroup / {x}u % {y}u * {}u;", rows * size));
        self.emit_line(format!("let {column} = subgroup % {x}u * {}u;", columns * size));
        [row, column]
    }
    /// Writes the store of a tile's accumulators to a buffer.
    pub(super) fn store_accumulators(&mut self, v: Value, buffer: usize) {
        let fragments = self.accumulator_fragments(v).expect("it is accumulators");
        let [row, column] = self.emit_subgroup_origin(fragments);
        let b = &self.plan.buffers[buffer];
        let (name, pitch) = (b.name.clone(), b.strides[0]);
        self.record_step_access(MemoryId::Buffer(buffer), None, true);
        let AccumulatorFragments { size, own, .. } = fragments;
        for (n, sum) in self.accumulator_names(v).into_iter().enumerate() {
            let (i, j) = (n / own[1] * size, n % own[1] * size);
            let at = format!("at_{name} + ({row} + {i}u) * {pitch}u + {column} + {j}u");
            self.emit_line(format!("coopStoreT({sum}, &{}[{at}], {pitch}u);", StorageCell::F32.workgroup_array_name()));
            self.add_work(self.parameters.workgroup * self.per_thread_share(size * size));
        }
    }
}
