//! Text for affine nests: a loop over the folded positions for each element of the result.
use super::emitter::BodyEmitter;
use super::position::{TileCoord, TilePosition, unravel_coordinate};
use crate::wgsl::types::{cast_expression_if_needed, narrow_to_dtype, wgsl_type};
use pallas_ir::structural::LoopNest;
use pallas_ir::{DType, Inst, ScalarOp};

impl BodyEmitter<'_> {
    /// Writes a convolution or windowed reduction.
    pub(super) fn emit_affine_nest(&mut self, nest: &LoopNest, inst: &Inst) {
        let result = inst.results[0];
        let (dtype, elements) = (self.k.ty(result).dtype, self.k.ty(result).elements());
        let start = self.literal_expression(nest.op.neutral(dtype).expect("the shape rule admits monoids only"));
        let folded = nest.folded_axes();
        let inner: Vec<usize> = folded.iter().map(|&axis| nest.axes[axis].extent as usize).collect();
        let count = nest.folded_count();
        self.out.helpers.extend(nest.op.wgsl_helper());
        self.emit_elements(result, |e, at| {
            let sum = e.fresh_name("sum");
            e.emit_line(format!("var {sum}: {} = {start};", wgsl_type(dtype)));
            // The position of each axis follows from the result's coordinates, or from the loop's index.
            let mut axes = vec!["0u".to_string(); nest.axes.len()];
            for (position, coord) in nest.result.iter().zip(&at.coords) {
                for (i, &(axis, stride)) in position.terms.iter().enumerate() {
                    let digits =
                        if stride == 1 { coord.text.clone() } else { format!("(({}) / {stride}u)", coord.text) };
                    let is_first = i == 0;
                    let extent = nest.axes[axis].extent.max(1);
                    axes[axis] = if is_first { digits } else { format!("(({digits}) % {extent}u)") };
                }
            }
            let k = e.fresh_name("k");
            e.emit_line(format!("for (var {k} = 0u; {k} < {count}u; {k}++) {{"));
            folded.iter().enumerate().for_each(|(i, &axis)| axes[axis] = unravel_coordinate(&inner, i, &k));
            let (mut places, mut tests) = (vec![], vec![]);
            for (place, &v) in nest.operands.iter().zip(&inst.args) {
                let shape = e.k.ty(v).shape.clone();
                let mut coords = vec![];
                for (position, &n) in place.iter().zip(&shape) {
                    let term = |&(axis, stride): &(usize, i64)| format!("{stride} * i32({})", axes[axis]);
                    let terms: Vec<String> = position.terms.iter().map(term).collect();
                    let p = e.fresh_name("p");
                    e.emit_line(format!("let {p} = {} + {};", position.offset, terms.join(" + ")));
                    let dilation = position.dilation;
                    if dilation > 1 {
                        tests.push(format!("{p} % {dilation} == 0"));
                    }
                    if !position.is_always_inside(&nest.axes, n as i64) {
                        tests.push(format!("{p} >= 0 && {p} / {dilation} < {n}"));
                    }
                    coords.push(TileCoord::from_text(if dilation > 1 {
                        format!("u32({p} / {dilation})")
                    } else {
                        format!("u32({p})")
                    }));
                }
                places.push(TilePosition { coords, flat: None });
            }
            let test = if tests.is_empty() { "true".into() } else { tests.join(" && ") };
            e.emit_line(format!("if ({test}) {{"));
            e.with_trips(count as f64, |e| {
                let mut parts = vec![];
                for (at, &v) in places.iter().zip(&inst.args) {
                    let (from, x) = (e.k.ty(v).dtype, e.element_expression(v, at));
                    parts.push(if parts.is_empty() && inst.args.len() == 1 {
                        x
                    } else {
                        cast_expression_if_needed(from, dtype, &x)
                    });
                }
                let term = match &parts[..] {
                    [a, b] => narrow_to_dtype(dtype, &ScalarOp::Mul.wgsl(&[a, b], wgsl_type(dtype))),
                    _ => parts.remove(0),
                };
                e.add_work(2.0 * e.parameters.operation);
                let next = narrow_to_dtype(dtype, &nest.op.wgsl(&[&sum, &term], wgsl_type(dtype)));
                e.emit_line(format!("{sum} = {next};"));
            });
            e.emit_line("}");
            e.emit_line("}");
            sum
        });
        debug_assert!(dtype != DType::Bool || inst.args.len() == 1, "truth values are not multiplied");
        self.count_inner_iterations(count, elements);
    }
}
