//! From a call's arrays to the sizes of dimensions, and every check that needs numbers.
use super::spec::{Argument, BlockDim, Kind, Operand, Site, Spec};
use crate::device::Geometry;
use crate::{Array, Error, Result};
use pallas_ir::{At, DType, Diag, Dim, Literal, MAX_RANK};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// A dimension's size and the operand that bound it.
type Names = BTreeMap<String, (i64, String)>;

/// What follows from the spec and the shapes of a call's arrays.
pub(super) struct Sizes {
    /// Sizes by name.
    pub sizes: BTreeMap<String, i64>,
    /// Names that size a block or a scratch buffer.
    pub statics: Vec<String>,
    /// The same in the order of the kernel's dimensions, shapes of operands, and extents of the grid.
    pub geometry: Geometry,
    /// Per operand that is one of the call's arguments: whether it is an array, and its element type.
    pub taken: Vec<Option<(bool, DType)>>,
}

/// What a call fixes.
pub(super) struct Binding {
    /// All sizes, which this type hands through.
    pub all: Arc<Sizes>,
    /// Per operand.
    pub params: Vec<Option<Literal>>,
    /// Per operand: the array and whether it is donated.
    pub arrays: Vec<Option<(Array, bool)>>,
}

impl Deref for Binding {
    type Target = Sizes;
    fn deref(&self) -> &Sizes {
        &self.all
    }
}

impl Binding {
    /// The arguments of a call whose sizes are known and fit.
    pub(super) fn again(all: Arc<Sizes>, arguments: Vec<Argument>) -> Binding {
        let mut arguments = arguments.into_iter();
        let (mut params, mut arrays) = (vec![], vec![]);
        for taken in &all.taken {
            let (param, array) = match taken.and_then(|_| arguments.next()) {
                Some(Argument::Param(x)) => (x.ok(), None),
                Some(Argument::Array(array, donated)) => (None, Some((array, donated))),
                None => (None, None),
            };
            params.push(param);
            arrays.push(array);
        }
        Binding { all, params, arrays }
    }
}

/// Whether an operand is one of the call's arguments.
fn takes(operand: &Operand) -> bool {
    matches!(operand.kind, Kind::Input | Kind::Prefetch | Kind::Param)
}

/// Largest grid axis, and largest dimension: indices and positions are i32.
const MAX_EXTENT: i64 = i32::MAX as i64;
const BEYOND: &str =
    "positions end at 2^31 - 1, with the last block and its padding: reshape the array to more dimensions, or cut it";

pub(super) fn bind(site: &Site<'_>, spec: &Spec, arguments: Vec<Argument>) -> Result<Binding> {
    let fault = |code, message: String, help: &str| {
        Error::kernel(site.name, site.at, "", Diag::new(code, At::Op, message, help))
    };
    let mut names: Names = BTreeMap::new();
    for (name, n) in site.given {
        names.insert((*name).to_string(), (*n, format!("parameter `{name}`")));
    }
    let (mut params, mut arrays) = (vec![], vec![]);
    let mut arguments = arguments.into_iter();
    for operand in &spec.operands {
        let (param, array) = match (takes(operand).then(|| arguments.next()).flatten(), operand.kind) {
            (Some(Argument::Param(Ok(x))), Kind::Param) if x.dtype == operand.dtype => (Some(x), None),
            (Some(Argument::Param(Err(diag))), Kind::Param) => {
                return Err(Error::kernel(site.name, site.at, format!("parameter `{}`", operand.name), diag));
            }
            (Some(Argument::Array(array, donated)), Kind::Input | Kind::Prefetch) => {
                meet(site, operand, &array, &mut names)?;
                (None, Some((array, donated)))
            }
            (None, Kind::Output | Kind::Scratch) => (None, None),
            // The macro's calls never come here; an `Input` of the user's own may.
            (found, _) => {
                let found = match found {
                    Some(Argument::Param(_)) => "another scalar",
                    Some(Argument::Array(..)) => "an array",
                    None => "nothing",
                };
                let what = if operand.kind == Kind::Param { "a scalar" } else { "an array" };
                let message = format!("`{}` is {what} of {}, found {found}", operand.name, operand.dtype);
                return Err(fault("argument", message, "pass `&Array`, an `Array`, or the scalar"));
            }
        };
        params.push(param);
        arrays.push(array);
    }
    let sizes: BTreeMap<String, i64> = names.iter().map(|(n, (x, _))| (n.clone(), *x)).collect();
    let values: Vec<(&str, i64)> = sizes.iter().map(|(n, x)| (n.as_str(), *x)).collect();
    let number = |dim: &Dim, what: &str| -> Result<i64> {
        dim.bind(&values).as_number().ok_or_else(|| {
            let unbound: Vec<String> = dim.names().into_iter().filter(|n| !sizes.contains_key(n)).collect();
            let message = format!("dimension `{}` of {what} is bound by no operand", unbound.join("`, `"));
            fault("unbound", message, "give it at the call: a parameter `#[dim] N: usize`")
        })
    };
    // `M + 1 = 5`, or a number alone.
    let value = |dim: &Dim, n: i64| if dim.as_number().is_some() { n.to_string() } else { format!("{dim} = {n}") };
    let mut shapes = vec![];
    for (operand, array) in spec.operands.iter().zip(&arrays) {
        let mut shape = vec![];
        match (&operand.dims, array) {
            (Some(dims), _) => {
                for (axis, dim) in dims.iter().enumerate() {
                    let n = number(dim, &format!("`{}`", operand.name))?;
                    let found = array.as_ref().map(|(a, _)| a.shape()[axis] as i64);
                    if let Some(found) = found.filter(|f| *f != n) {
                        let value = value(dim, n);
                        let message = format!("dimension {axis} of `{}` is {value}, found {found}", operand.name);
                        return Err(fault("dimension", message, "check the array's shape"));
                    }
                    let n = usize::try_from(n).map_err(|_| {
                        fault(
                            "dimension",
                            format!("dimension {axis} of `{}` is {}", operand.name, value(dim, n)),
                            "sizes are at least 0",
                        )
                    })?;
                    shape.push(n);
                }
            }
            (None, Some((array, _))) => shape = array.shape().to_vec(),
            (None, None) => {}
        }
        shapes.push(shape);
    }
    for (a, b) in &spec.assume {
        let (x, y) = (number(a, "`assume`")?, number(b, "`assume`")?);
        if x != y {
            let message = format!("the kernel assumes {a} == {b}, found {x} and {y}");
            return Err(fault("assume", message, "choose sizes that agree"));
        }
    }
    for operand in &spec.operands {
        if let Some(depth) = operand.buffered.filter(|depth| !(1..=3).contains(depth)) {
            let message = format!("`{}` is buffered {depth} times", operand.name);
            let help = "1: fetched when it is needed; 2, 3: one or two steps ahead";
            return Err(fault("buffered", message, help));
        }
    }
    blocks(spec, &shapes, &number, &fault)?;
    let mut grid = vec![];
    for (axis, extent) in spec.grid.iter().enumerate() {
        let n = number(extent, "the grid")?;
        if !(0..=MAX_EXTENT).contains(&n) {
            return Err(fault("grid", format!("grid axis {axis} is {extent} = {n}"), "an extent is 0 to 2^31 - 1"));
        }
        grid.push(n);
    }
    if grid.iter().try_fold(1i64, |p, &n| p.checked_mul(n)).is_none_or(|n| n > MAX_EXTENT) {
        let message = format!("a grid of {grid:?} has more than 2^31 - 1 programs");
        return Err(fault("grid", message, "use larger blocks, or several launches"));
    }
    if let Some((name, (n, by))) = names.iter().find(|(_, (n, _))| *n > MAX_EXTENT) {
        let message = format!("dimension {name} is {n} in {by}");
        return Err(fault("extent", message, BEYOND));
    }
    aliases(spec, &shapes, &fault)?;
    let taken = spec.operands.iter().map(|o| takes(o).then_some((o.kind != Kind::Param, o.dtype))).collect();
    let statics = static_names(spec);
    // Tracing declares dimensions in the order of their names.
    let geometry = Geometry::new(sizes.values().copied().collect(), grid, spec.semantics.iter().copied(), shapes)
        .map_err(|diag| Error::kernel(site.name, site.at, "", diag))?;
    let all = Arc::new(Sizes { sizes, statics, geometry, taken });
    Ok(Binding { all, params, arrays })
}

/// Holds an array against its operand's declaration and binds the names it names.
fn meet(site: &Site<'_>, operand: &Operand, array: &Array, names: &mut Names) -> Result<()> {
    let fault = |code, message: String, help: String| {
        Error::kernel(site.name, site.at, "", Diag::new(code, At::Op, message, help))
    };
    if array.dtype() != operand.dtype {
        let message = format!("`{}` holds {}, found an array of {}", operand.name, operand.dtype, array.dtype());
        return Err(fault("dtype", message, "convert the array, or choose the kernel's element type".into()));
    }
    let Some(dims) = &operand.dims else { return Ok(()) };
    if dims.len() != array.rank() {
        let message = format!(
            "`{}` has rank {} {}, found an array of rank {} {:?}",
            operand.name,
            dims.len(),
            pallas_ir::diag::shape(dims),
            array.rank(),
            array.shape()
        );
        return Err(fault("rank", message, "reshape the array".into()));
    }
    for (dim, &n) in dims.iter().zip(array.shape()) {
        let Some(name) = dim.as_name() else { continue };
        let n = n as i64;
        match names.get(&name) {
            Some((bound, by)) if *bound != n => {
                let message = format!("dimension {name} is {bound} in {by} and {n} in `{}`", operand.name);
                return Err(fault("dimension", message, format!("all operands that name {name} agree in it")));
            }
            Some(_) => {}
            None => {
                names.insert(name, (n, format!("`{}`", operand.name)));
            }
        }
    }
    Ok(())
}

/// Blocks are at least one element (where the array has any), and have positions that are i32.
fn blocks(
    spec: &Spec,
    shapes: &[Vec<usize>],
    number: &dyn Fn(&Dim, &str) -> Result<i64>,
    fault: &dyn Fn(&'static str, String, &str) -> Error,
) -> Result<()> {
    for (operand, shape) in spec.operands.iter().zip(shapes) {
        if shape.len() > MAX_RANK {
            let message = format!("`{}` has rank {}", operand.name, shape.len());
            return Err(fault("rank", message, "operands have at most 8 dimensions: merge some by `reshape`"));
        }
        let whole = operand.block.is_none() && operand.kind != Kind::Prefetch;
        if whole && !pallas_ir::Type::new(operand.dtype, &shape[..]).is_indexable() {
            let message = format!("`{}` is one block of {shape:?}, more than 2^31 - 1 elements", operand.name);
            return Err(fault("block-size", message, "cut it into smaller blocks"));
        }
        if let Some((axis, n)) = shape.iter().enumerate().find(|(_, n)| **n > MAX_EXTENT as usize) {
            return Err(fault("extent", format!("dimension {axis} of `{}` has {n} elements", operand.name), BEYOND));
        }
        let mut elements = Some(1i64);
        let Some(block) = &operand.block else { continue };
        for (axis, b) in block.iter().enumerate() {
            let size = match b {
                BlockDim::Squeezed => continue,
                BlockDim::Blocked(size) | BlockDim::Element { size, .. } => size,
            };
            let n = number(size, &format!("the block of `{}`", operand.name))?;
            // A block that is a whole, empty dimension is legal: no element is ever touched.
            let whole = operand.dims.as_ref().is_some_and(|d| d[axis] == *size);
            if n < 0 || (n == 0 && !whole) {
                let message =
                    format!("the block of `{}` has {size} = {n} elements along dimension {axis}", operand.name);
                return Err(fault("block-size", message, "a block has at least one element"));
            }
            elements = elements.and_then(|product| product.checked_mul(n));
            positions(operand, axis, shape[axis], b, n, number, fault)?;
        }
        if elements.is_none_or(|n| n > MAX_EXTENT) {
            let message = format!("the block of `{}` has more than 2^31 - 1 elements", operand.name);
            return Err(fault("block-size", message, "use smaller blocks"));
        }
    }
    Ok(())
}

/// Positions along a dimension are i32: all that lie in blocks of this size, padding included.
fn positions(
    operand: &Operand,
    axis: usize,
    extent: usize,
    block: &BlockDim,
    size: i64,
    number: &dyn Fn(&Dim, &str) -> Result<i64>,
    fault: &dyn Fn(&'static str, String, &str) -> Error,
) -> Result<()> {
    let mut pads = [0; 2];
    if let BlockDim::Element { low, high, .. } = block {
        for (pad, dim) in pads.iter_mut().zip([low, high]) {
            *pad = number(dim, &format!("the block of `{}`", operand.name))?;
            if !(0..=MAX_EXTENT).contains(pad) {
                let message =
                    format!("the block of `{}` has padding {dim} = {pad} along dimension {axis}", operand.name);
                return Err(fault("block-size", message, "padding is 0 to 2^31 - 1"));
            }
        }
    }
    // Whole blocks: also those of which the array has a part.
    let whole = i64::try_from(extent).ok().and_then(|n| n.checked_add(size.max(1) - 1)).map(|n| n - n % size.max(1));
    if whole.and_then(|n| n.checked_add(pads[0] + pads[1])).is_none_or(|n| n > MAX_EXTENT) {
        let message = format!(
            "dimension {axis} of `{}` has {extent} elements, beyond the positions that its blocks of {size} can have",
            operand.name
        );
        return Err(fault("extent", message, BEYOND));
    }
    Ok(())
}

/// An output that takes over an input's memory has its element type and shape, and has it for itself.
fn aliases(spec: &Spec, shapes: &[Vec<usize>], fault: &dyn Fn(&'static str, String, &str) -> Error) -> Result<()> {
    let mut taken: Vec<(&str, &str)> = vec![];
    for (operand, shape) in spec.operands.iter().zip(shapes) {
        let Some(from) = operand.alias else { continue };
        let input = spec.operands.iter().position(|o| o.name == from).expect("the macro checks that it is an input");
        let (dtype, found) = (spec.operands[input].dtype, &shapes[input]);
        if (operand.dtype, shape) != (dtype, found) {
            let message = format!(
                "`{}` is {} {shape:?}, `{from}`, which it aliases, {dtype} {found:?}",
                operand.name, operand.dtype
            );
            return Err(fault("alias", message, "an alias has the element type and shape of its input"));
        }
        if let Some((_, other)) = taken.iter().find(|(input, _)| *input == from) {
            let message = format!("`{other}` and `{}` both take over the memory of `{from}`", operand.name);
            return Err(fault("alias", message, "an input's memory serves one output"));
        }
        taken.push((from, operand.name));
    }
    Ok(())
}

/// Names that must be numbers while tracing.
fn static_names(spec: &Spec) -> Vec<String> {
    let mut names = vec![];
    for operand in &spec.operands {
        for block in operand.block.iter().flatten() {
            match block {
                BlockDim::Squeezed => {}
                BlockDim::Blocked(size) => names.extend(size.names()),
                BlockDim::Element { size, low, high } => {
                    names.extend([size, low, high].into_iter().flat_map(Dim::names));
                }
            }
        }
        let whole = operand.block.is_none() && matches!(operand.kind, Kind::Input | Kind::Output | Kind::Scratch);
        if whole {
            names.extend(operand.dims.iter().flatten().flat_map(Dim::names));
        }
    }
    names.sort();
    names.dedup();
    names
}
