//! Text for operations on tiles.
use super::emitter::BodyEmitter;
use super::position::{TileCoord, TilePosition, offset_expression, operand_coord, unravel_coordinate};
use crate::wgsl::place::{row_major_strides, views};
use crate::wgsl::types::{array_bits_to_element, cast_expression, element_to_array_bits, narrow_to_dtype, wgsl_type};
use pallas_ir::structural::MapPiece;
use pallas_ir::{AccessForm, DType, Inst, ScalarOp, StructuralOp};

impl BodyEmitter<'_> {
    /// Writes an elementwise operation; the sum of a tile and a fused product becomes a product that starts from the
    /// tile.
    pub(super) fn emit_elementwise(&mut self, op: ScalarOp, inst: &Inst) {
        let result = inst.results[0];
        if self.k.ty(result).is_scalar() {
            let x = self.scalar_op_expression(op, inst, &TilePosition { coords: vec![], flat: None });
            return self.define_scalar(result, &x);
        }
        if let Some(side) = inst.args.iter().position(|v| self.plan.fused[v.index()]) {
            // `x + a·b`: the product starts from `x`.
            let product = self.k.inst(self.plan.defined[inst.args[side].index()].expect("a product has a definition"));
            return self.emit_product(result, product, Some(inst.args[1 - side]));
        }
        self.emit_computed_elements(inst);
    }

    /// Writes a structural operation (a reshape, reduction, product, gather ..) by its access form: the way in which it
    /// reaches the elements of its operands.
    pub(super) fn emit_structural(&mut self, op: &StructuralOp, inst: &Inst) {
        let result = inst.results[0];
        let ty = self.k.ty(result).clone();
        let access = views::access_form(self.k, op, inst);
        if ty.is_scalar() && !matches!(access, AccessForm::Contract { .. } | AccessForm::Gather { .. }) {
            return self.emit_scalar_result(&access, inst);
        }
        match access {
            AccessForm::Map(pieces) if pieces.len() > 1 => self.emit_concat_or_pad(&pieces, inst),
            AccessForm::Map(_)
            | AccessForm::Iota { .. }
            | AccessForm::Cast
            | AccessForm::Bitcast
            | AccessForm::Powi(_) => {
                self.emit_computed_elements(inst);
            }
            AccessForm::Flat => {
                let from = self.k.ty(inst.args[0]).shape.clone();
                self.emit_elements(result, |e, at| {
                    let number = at
                        .flat
                        .as_ref()
                        .map_or_else(|| offset_expression(&at.coords, &row_major_strides(&ty.shape)), |f| f.0.clone());
                    let coords = (0..from.len())
                        .map(|a| TileCoord::from_text(unravel_coordinate(&from, a, &format!("({number})"))))
                        .collect();
                    e.element_expression(inst.args[0], &TilePosition { coords, flat: Some((number, from.clone())) })
                });
            }
            AccessForm::Gather { windows, .. } => self.emit_gather(&windows, inst),
            AccessForm::Scatter { windows, op } => self.emit_scatter(&windows, op, inst),
            AccessForm::Contract { .. } => self.emit_product(result, inst, None),
            AccessForm::Fold { op, axes } => self.emit_fold(op, &axes, inst),
            AccessForm::Nest(nest) => self.emit_affine_nest(&nest, inst),
            AccessForm::Scan { op, axis, reverse } => self.emit_scan(op, axis, reverse, inst),
            AccessForm::Arg { max, axis } => self.emit_arg_reduction(max, axis, inst),
            AccessForm::Sort { axis, order, positions } => self.emit_sort(axis, order, positions, inst),
        }
    }
    /// Writes a scalar that is computed from a scalar, or from a tile of one element.
    fn emit_scalar_result(&mut self, access: &AccessForm, inst: &Inst) {
        let (result, of) = (inst.results[0], inst.args[0]);
        let (from, to) = (self.k.ty(of).dtype, self.k.ty(result).dtype);
        if self.k.ty(of).is_scalar() {
            let x = self.convert_element(access, from, to, &self.scalar_name(of));
            return self.define_scalar(result, &x);
        }
        let coords = vec![TileCoord::from_text("0u"); self.k.ty(of).shape.len()];
        self.emit_broadcast_scalar(result, |e| e.element_expression(of, &TilePosition { coords, flat: None }));
    }

    /// Returns the expression of element `x` of type `from` after the cast to `to`, the bitcast or the integer power
    /// that `access` is; `x` itself for any other access.
    pub(super) fn convert_element(&mut self, access: &AccessForm, from: DType, to: DType, x: &str) -> String {
        match access {
            AccessForm::Cast => cast_expression(from, to, x),
            AccessForm::Bitcast => array_bits_to_element(to, &element_to_array_bits(from, x)),
            AccessForm::Powi(exponent) => {
                let one = format!("{}(1)", wgsl_type(to));
                let power = match exponent.unsigned_abs() {
                    0 => one.clone(),
                    1 => x.to_string(),
                    n => format!("powi_{to}_{n}({x})"),
                };
                match (*exponent < 0, to.is_float()) {
                    (false, _) => power,
                    (true, true) => narrow_to_dtype(to, &format!("({one} / {power})")),
                    // As the operation table's quotient, this is all ones for 0; a division by a constant zero would
                    // not compile.
                    (true, false) => {
                        let ty = wgsl_type(to);
                        let minus = if ty == "i32" { format!(" || {power} == -1") } else { String::new() };
                        let whole = format!("select({ty}(0), {power}, {power} == {ty}(1){minus})");
                        narrow_to_dtype(to, &format!("select({whole}, ~{ty}(0), {power} == {ty}(0))"))
                    }
                }
            }
            _ => x.to_string(),
        }
    }

    /// Writes a concatenation or padding: each element comes from the first piece whose bounds hold.
    fn emit_concat_or_pad(&mut self, pieces: &[MapPiece], inst: &Inst) {
        let result = inst.results[0];
        let ty = wgsl_type(self.k.ty(result).dtype);
        let number = |d: &pallas_ir::Dim| d.as_number().expect("sizes are numbers");
        self.emit_elements(result, |e, at| {
            let x = e.fresh_name("x");
            e.emit_line(format!("var {x}: {ty};"));
            for (i, piece) in pieces.iter().enumerate() {
                let bound = |(a, lo, hi): &(usize, pallas_ir::Dim, pallas_ir::Dim)| {
                    let c = &at.coords[*a].text;
                    format!("i32({c}) >= {} && i32({c}) < {}", number(lo), number(hi))
                };
                let bounds: Vec<String> = piece.bounds.iter().map(bound).collect();
                let test = if bounds.is_empty() { "true".to_string() } else { bounds.join(" && ") };
                let coords = piece.index.iter().map(|i| operand_coord(i, &at.coords)).collect();
                let element = e.element_expression(inst.args[piece.operand], &TilePosition { coords, flat: None });
                let or = if i > 0 { "else " } else { "" };
                e.emit_line(format!("{or}if ({test}) {{ {x} = {element}; }}"));
            }
            x
        });
    }
}
