//! Products of tiles. In registers, a thread computes its elements of the result together, step by step; in memory,
//! one by one; in accumulators, subgroups compute them ([`fragment_products`](super::fragment_products)).
#![warn(clippy::wildcard_enum_match_arm)]
use super::emitter::BodyEmitter;
use super::position::{TileCoord, TilePosition, VEC4_WIDTH, unravel_coordinate};
use crate::wgsl::place::{TileStorage, views};
use crate::wgsl::types::{cast_expression_if_needed, narrow_to_dtype, wgsl_type, zero_expression};
use pallas_ir::{AccessForm, DType, Inst, Op, Value};

/// Maximum steps of a product's inner loop that are written out in one iteration; others are left to the loop.
const MAX_UNROLLED_PRODUCT_STEPS: usize = 8;

impl BodyEmitter<'_> {
    /// Writes the product of an instruction's operands, added to `initial_sum`, to `result`.
    pub(super) fn emit_product(&mut self, result: Value, product: &Inst, initial_sum: Option<Value>) {
        let Op::Structural(op) = &product.op else { unreachable!("products are structural") };
        let AccessForm::Contract { batch, contract } = views::access_form(self.k, op, product) else {
            unreachable!("the access of a product")
        };
        let dot = Product::new(self, product, &batch, &contract);
        let (ty, shape) = (self.k.ty(result).dtype, self.k.ty(result).shape.clone());
        let start_at = |e: &mut Self, at: &TilePosition| match initial_sum {
            Some(v) => e.broadcast_element_expression(v, &shape, at),
            None => zero_expression(ty),
        };
        match self.plan.tile_storage[result.index()] {
            TileStorage::None if shape.is_empty() => self.emit_scalar_product(result, &dot),
            TileStorage::None => {}
            TileStorage::Registers => self.emit_memory_step(|e| {
                let places = e.register_positions(result);
                for (i, at) in places.iter().enumerate() {
                    let (x, r) = (start_at(e, at), e.register_name(result, i));
                    e.emit_line(format!("var {r}: {} = {x};", wgsl_type(ty)));
                }
                e.emit_accumulation(&dot, &places, &|e, i| e.register_name(result, i));
            }),
            TileStorage::Buffer(buffer) => {
                self.emit_strided_loop(shape.iter().product(), |e| {
                    let at = e.strided_loop_position(&shape);
                    let x = start_at(e, &at);
                    e.emit_line(format!("var sum: {} = {x};", wgsl_type(ty)));
                    e.emit_accumulation(&dot, std::slice::from_ref(&at), &|_, _| "sum".into());
                    e.store_tile_element(result, buffer, &at, "sum");
                });
                self.count_inner_iterations(dot.steps, shape.iter().product());
            }
            TileStorage::Accumulators => self.emit_cooperative_product(result, product, &dot, initial_sum),
        }
    }
    /// Writes a product without free axes, which one thread computes for all.
    fn emit_scalar_product(&mut self, result: Value, dot: &Product) {
        self.spent += dot.steps as u64 + 1;
        self.emit_broadcast_scalar(result, |e| {
            e.emit_line(format!("var sum: {} = {};", wgsl_type(dot.dtype), zero_expression(dot.dtype)));
            e.emit_line(format!("for (var k = 0u; k < {}u; k++) {{", dot.steps));
            e.with_trips(dot.steps as f64, |e| {
                let (at, k) = (TilePosition { coords: vec![], flat: None }, TileCoord::from_text("k"));
                let [a, b] = [0, 1].map(|side| {
                    let (v, at) =
                        (dot.args[side], TilePosition { coords: dot.operand_coords(side, &at, &k), flat: None });
                    let (from, x) = (e.k.ty(v).dtype, e.element_expression(v, &at));
                    cast_expression_if_needed(from, dot.dtype, &x)
                });
                e.emit_line(format!("    sum = {};", multiply_add_expression(dot.dtype, "sum", &a, &b)));
            });
            e.emit_line("}");
            "sum".into()
        });
    }
    /// Writes the loop that adds up the products for the result's elements at `places`, in the variables that
    /// `sum_name` names, and before it the coordinates that do not change in it.
    fn emit_accumulation(&mut self, dot: &Product, places: &[TilePosition], sum_name: &dyn Fn(&Self, usize) -> String) {
        self.with_name_scope(|e| {
            for (at, side) in places.iter().flat_map(|at| [(at, 0), (at, 1)]) {
                let [at, other] = ["0u", "4u"].map(|k| {
                    let k = TileCoord { part: Some((k.into(), 0)), ..TileCoord::from_text(k) };
                    TilePosition { coords: dot.operand_coords(side, at, &k), flat: None }
                });
                e.hoist_common_coordinates(dot.args[side], &at, &other);
            }
            e.emit_product_loop(dot, places, sum_name);
        });
    }
    /// Writes the loop over the steps of a product (the positions along its contracted axes); it adds to the variables
    /// that `sum_name` names for the result's elements at `places`.
    fn emit_product_loop(&mut self, dot: &Product, places: &[TilePosition], sum_name: &dyn Fn(&Self, usize) -> String) {
        let most = (self.parameters.max_unrolled_fmas / places.len().max(1)).clamp(1, MAX_UNROLLED_PRODUCT_STEPS);
        let unroll = (1..=most).rev().find(|u| dot.steps.is_multiple_of(*u)).unwrap_or(1);
        if dot.steps == 0 {
            return;
        }
        let k = self.fresh_name("k");
        let rolled = dot.steps > unroll;
        if rolled {
            self.emit_line(format!("for (var {k} = 0u; {k} < {}u; {k} += {unroll}u) {{", dot.steps));
            self.depth += 1;
            if self.has_only_register_positions(places) {
                self.spent += (dot.steps / unroll) as u64 + 1;
            }
        }
        let text = |u: usize| match (rolled, u) {
            (true, 0) => k.clone(),
            (true, u) => format!("({k} + {u}u)"),
            (false, u) => format!("{u}u"),
        };
        let times = (dot.steps / unroll) as f64;
        self.with_trips(times, |e| {
            e.with_name_scope(|e| {
                // With the four components of vectors at hand, a sum takes all of them before the next sum's turn.
                let at_once = if e.plan.uses_vec4 { VEC4_WIDTH } else { 1 };
                let mut factors = vec![];
                for u in 0..unroll {
                    let part = unroll.is_multiple_of(VEC4_WIDTH).then(|| (text(u - u % VEC4_WIDTH), u % VEC4_WIDTH));
                    factors.push(e.emit_factor_reads(
                        dot,
                        places,
                        &TileCoord { part, ..TileCoord::from_text(text(u)) },
                    ));
                    if factors.len() == at_once || u + 1 == unroll {
                        e.emit_multiply_adds(dot, &std::mem::take(&mut factors), sum_name);
                    }
                }
            });
        });
        if rolled {
            self.depth -= 1;
            self.emit_line("}");
        }
    }
    fn has_only_register_positions(&self, places: &[TilePosition]) -> bool {
        places.iter().all(|at| at.flat.is_none())
    }
    /// Writes the reads of both factors that the result's elements at `places` need in one `step` of a product; returns
    /// for each place the names of the two variables.
    fn emit_factor_reads(&mut self, dot: &Product, places: &[TilePosition], step: &TileCoord) -> Vec<[String; 2]> {
        let mut read = [vec![], vec![]];
        let mut factors = vec![];
        for at in places {
            let names = [0, 1].map(|side| {
                let at = TilePosition { coords: dot.operand_coords(side, at, step), flat: None };
                let known =
                    read[side].iter().find(|(coords, _)| *coords == at.coords).map(|(_, n): &(_, String)| n.clone());
                known.unwrap_or_else(|| {
                    let v = dot.args[side];
                    self.product = true;
                    let (from, x) = (self.k.ty(v).dtype, self.element_expression(v, &at));
                    self.product = false;
                    let n = self.fresh_name(["a", "b"][side]);
                    self.emit_line(format!("let {n} = {};", cast_expression_if_needed(from, dot.dtype, &x)));
                    read[side].push((at.coords, n.clone()));
                    n
                })
            });
            factors.push(names);
        }
        factors
    }
    /// Writes the multiply-adds of some steps of a product to the variables that `sum_name` names; `steps` has for each
    /// step the names of both factors of each element.
    fn emit_multiply_adds(
        &mut self,
        dot: &Product,
        steps: &[Vec<[String; 2]>],
        sum_name: &dyn Fn(&Self, usize) -> String,
    ) {
        for i in 0..steps[0].len() {
            let s = sum_name(self, i);
            for [a, b] in steps.iter().map(|factors| &factors[i]) {
                self.emit_line(format!("{s} = {};", multiply_add_expression(dot.dtype, &s, a, b)));
                self.add_work(self.parameters.operation);
                self.counts.fma += self.trips;
            }
        }
    }
}

/// Returns the expression `sum + a * b`.
fn multiply_add_expression(dtype: DType, sum: &str, a: &str, b: &str) -> String {
    match dtype {
        DType::F32 => format!("fma({a}, {b}, {sum})"),
        DType::Bool => format!("{sum} || ({a} && {b})"),
        DType::F64 | DType::F16 | DType::Bf16 => narrow_to_dtype(dtype, &format!("({sum} + {a} * {b})")),
        DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
            narrow_to_dtype(dtype, &format!("({sum} + {a} * {b})"))
        }
    }
}

/// A product of two tiles that is being written: for each axis of the operands, the axis of the result or the
/// contracted axis that it is.
pub(super) struct Product {
    args: [Value; 2],
    dtype: DType,
    /// For each side and each axis of the operand: `Ok` with the axis of the result, or `Err` with the position among
    /// the contracted axes.
    axes: [Vec<Result<usize, usize>>; 2],
    inner: Vec<usize>,
    pub(super) steps: usize,
}

impl Product {
    /// Assigns the axes of both operands of a product: `batch_axes` and free axes to axes of the result,
    /// `contracted_axes` to contracted ones. Each pair has an axis of the first and one of the second operand.
    fn new(
        emitter: &BodyEmitter<'_>,
        inst: &Inst,
        batch_axes: &[(usize, usize)],
        contracted_axes: &[(usize, usize)],
    ) -> Product {
        let side = |p: &(usize, usize), side: usize| if side == 0 { p.0 } else { p.1 };
        let mut free = batch_axes.len();
        let axes = [0, 1].map(|s| {
            let rank = emitter.k.ty(inst.args[s]).shape.len();
            let of = |a: usize, free: &mut usize| {
                if let Some(r) = batch_axes.iter().position(|p| side(p, s) == a) {
                    return Ok(r);
                }
                if let Some(i) = contracted_axes.iter().position(|p| side(p, s) == a) {
                    return Err(i);
                }
                *free += 1;
                Ok(*free - 1)
            };
            (0..rank).map(|a| of(a, &mut free)).collect()
        });
        let inner: Vec<usize> = contracted_axes.iter().map(|p| emitter.k.ty(inst.args[0]).shape[p.0]).collect();
        let steps = inner.iter().product();
        Product { args: [inst.args[0], inst.args[1]], dtype: emitter.k.ty(inst.results[0]).dtype, axes, inner, steps }
    }
    /// Returns the axes of operand number `operand_index`, a matrix: the axis that the result also has, and the
    /// contracted one.
    pub(super) fn factor_axes(&self, operand_index: usize) -> [usize; 2] {
        let inner = self.axes[operand_index].iter().position(Result::is_err).expect("one axis is contracted");
        [1 - inner, inner]
    }
    /// Returns the coordinates at which operand number `operand_index` of a product is read in step `step`, for the
    /// result's element at `at`.
    fn operand_coords(&self, operand_index: usize, at: &TilePosition, step: &TileCoord) -> Vec<TileCoord> {
        let coord = |axis: &Result<usize, usize>| match axis {
            Ok(r) => at.coords[*r].clone(),
            Err(_) if self.inner.len() == 1 => step.clone(),
            Err(i) => TileCoord::from_text(unravel_coordinate(&self.inner, *i, &step.text)),
        };
        self.axes[operand_index].iter().map(coord).collect()
    }
}
