//! Ranges of the positions of blocks that index maps give; positions are i32.
//!
//! If an entry of a map is a sum of multiples of program ids, its range follows from the grid alone: the launch is
//! refused if it exceeds i32, which is checked once for each new geometry. 32-bit arithmetic gives such an entry
//! correctly even where a term wraps around. All other entries are clamped by [`lower`](super::lower), to positions
//! that are outside of the array too.
use pallas_ir::{At, BlockDim, Diag, Kernel, Op, OperandId, ScalarOp, Value};
use std::collections::HashMap;

/// An entry of an index map as an affine expression of program ids: `constant + Σ times[axis] * id[axis]`.
#[derive(Clone, Debug)]
struct AffineExpr {
    constant: i128,
    times: Vec<i128>,
}

impl AffineExpr {
    fn from_constant(n: i64, axes: usize) -> AffineExpr {
        AffineExpr { constant: n.into(), times: vec![0; axes] }
    }
    fn from_program_id(axis: usize, axes: usize) -> AffineExpr {
        AffineExpr { constant: 0, times: (0..axes).map(|a| i128::from(a == axis)).collect() }
    }
    /// Returns `self + times * other`; `None` on overflow.
    fn add_scaled(&self, other: &AffineExpr, times: i128) -> Option<AffineExpr> {
        let sum = |a: i128, b: i128| a.checked_add(b.checked_mul(times)?);
        let terms = self.times.iter().zip(&other.times).map(|(&a, &b)| sum(a, b));
        Some(AffineExpr { constant: sum(self.constant, other.constant)?, times: terms.collect::<Option<_>>()? })
    }
    /// Returns the product; `None` if neither factor is constant, or on overflow.
    fn product(&self, other: &AffineExpr) -> Option<AffineExpr> {
        let zero = AffineExpr::from_constant(0, self.times.len());
        match (self.is_constant(), other.is_constant()) {
            (true, _) => zero.add_scaled(other, self.constant),
            (_, true) => zero.add_scaled(self, other.constant),
            (false, false) => None,
        }
    }
    fn is_constant(&self) -> bool {
        self.times.iter().all(|&n| n == 0)
    }
    /// Returns the smallest and the greatest value over a grid that has programs; `None` on overflow.
    fn range(&self, grid: &[i64]) -> Option<(i128, i128)> {
        let (mut least, mut most) = (self.constant, self.constant);
        for (&times, &n) in self.times.iter().zip(grid) {
            let last = times.checked_mul(i128::from(n) - 1)?;
            (least, most) = (least.checked_add(last.min(0))?, most.checked_add(last.max(0))?);
        }
        Some((least, most))
    }
}

/// Returns the entries of an operand's index map, `None` for one that is no sum of multiples of ids. `value_of` returns
/// the value of a size or of an extent of the grid.
fn index_map_entries(kernel: &Kernel, operand: OperandId, value_of: &dyn Fn(&Op) -> i64) -> Vec<Option<AffineExpr>> {
    let Some(map) = kernel.operand(operand).map else { return vec![] };
    let (region, axes) = (kernel.region(map), kernel.grid.len());
    let params = region.params.iter().enumerate().map(|(axis, &v)| (v, AffineExpr::from_program_id(axis, axes)));
    let mut values: HashMap<Value, AffineExpr> = params.collect();
    for &id in &region.insts {
        let inst = kernel.inst(id);
        let args: Option<Vec<&AffineExpr>> = inst.args.iter().map(|v| values.get(v)).collect();
        let Some(args) = args else { continue };
        let made = match (&inst.op, &args[..]) {
            (Op::Const(x), _) => Some(AffineExpr::from_constant(x.as_i64(), axes)),
            (Op::ProgramId(axis), _) => Some(AffineExpr::from_program_id(*axis, axes)),
            (Op::NumPrograms(_) | Op::Extent(_), _) => Some(AffineExpr::from_constant(value_of(&inst.op), axes)),
            (Op::Scalar(ScalarOp::Add), [a, b]) => a.add_scaled(b, 1),
            (Op::Scalar(ScalarOp::Sub), [a, b]) => a.add_scaled(b, -1),
            (Op::Scalar(ScalarOp::Mul), [a, b]) => a.product(b),
            _ => None,
        };
        if let (Some(made), [result]) = (made, &inst.results[..]) {
            values.insert(*result, made);
        }
    }
    region.yields.iter().map(|v| values.get(v).cloned()).collect()
}

/// Returns for each dimension of an operand true if the range of its blocks follows from the grid; in others,
/// positions are clamped.
pub(super) fn are_block_positions_affine(kernel: &Kernel, operand: OperandId) -> Vec<bool> {
    // The values of sizes do not matter here.
    index_map_entries(kernel, operand, &|_| 1).iter().map(Option::is_some).collect()
}

/// Checks the positions of blocks that follow from the grid alone, for these sizes of dimensions and extents of the
/// grid.
///
/// # Errors
/// A block begins at a position that no i32 has.
pub fn check_block_positions(kernel: &Kernel, sizes: &[i64], grid: &[i64]) -> Result<(), Diag> {
    if grid.contains(&0) {
        return Ok(());
    }
    let known = |op: &Op| match op {
        Op::NumPrograms(axis) => grid[*axis],
        Op::Extent(dim) => sizes[dim.index()],
        _ => unreachable!("asked for sizes alone"),
    };
    for (i, operand) in kernel.operands.iter().enumerate() {
        let entries = index_map_entries(kernel, OperandId(i as u32), &known);
        for (axis, (entry, block)) in entries.iter().zip(&operand.block).enumerate() {
            let Some(entry) = entry else { continue };
            let (size, low) = match *block {
                BlockDim::Squeezed => (1, 0),
                BlockDim::Blocked(n) => (n as i128, 0),
                BlockDim::Element { low, .. } => (1, low as i128),
            };
            let position = |index: i128| index.checked_mul(size)?.checked_sub(low).map(i32::try_from)?.ok();
            let range = entry.range(grid);
            if range.is_none_or(|(least, most)| position(least).is_none() || position(most).is_none()) {
                let most = range.map_or("more than 2^127".into(), |(least, most)| format!("{least} to {most}"));
                let message = format!(
                    "the index map of `{}` gives {most} in dimension {axis}, for blocks of {size}: they begin beyond \
                     2^31 - 1, where positions end",
                    operand.name
                );
                let help = "check the grid and the map: no array has a block there";
                return Err(Diag::new("block-range", At::Op, message, help));
            }
        }
    }
    Ok(())
}
