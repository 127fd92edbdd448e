//! From a call's arrays to the sizes of dimensions, and every check that needs numbers.
use super::spec::{Argument, BlockDim, Kind, Operand, Site, Spec};
use crate::device::{Geometry, inputs};
use crate::exec::Arrays;
use crate::{Array, Error, Result};
use pallas_ir::{At, DType, Diag, Dim, Kernel, Literal, MAX_RANK};
use std::collections::BTreeMap;

/// A dimension's size and the operand that bound it.
type Names = BTreeMap<String, (i64, String)>;

/// The sizes that follow from the spec and the shapes of a call's arrays.
pub(super) struct Sizes {
    /// Sizes by name.
    pub sizes: BTreeMap<String, i64>,
    /// Names that size a block or a scratch buffer.
    pub statics: Vec<String>,
    /// The same in the order of the kernel's dimensions, shapes of operands, and extents of the grid.
    pub geometry: Geometry,
}

/// Values of parameters, and arrays and whether they are donated: the arguments of a call by operand.
pub(super) fn by_operand(kernel: &Kernel, arguments: Vec<Argument>) -> (Vec<Option<Literal>>, Arrays) {
    let (mut params, mut arrays) = (vec![None; kernel.operands.len()], vec![None; kernel.operands.len()]);
    for (i, argument) in inputs(kernel).zip(arguments) {
        match argument {
            Argument::Param(x) => params[i] = x.ok(),
            Argument::Array(array, donated) => arrays[i] = Some((array, donated)),
        }
    }
    (params, arrays)
}

/// Largest grid axis, and largest dimension: indices and positions are i32.
const MAX_EXTENT: i64 = i32::MAX as i64;
const BEYOND: &str =
    "positions end at 2^31 - 1, with the last block and its padding: reshape the array to more dimensions, or cut it";

/// A call's mistake.
fn fault<T>(code: &'static str, message: String, help: &str) -> Result<T, Diag> {
    Err(Diag::new(code, At::Op, message, help))
}

/// The sizes of a call with these arguments.
///
/// # Errors
/// Arguments that do not fit the spec, and sizes that do not fit each other.
pub(super) fn bind(site: &Site<'_>, spec: &Spec, arguments: &[Argument]) -> Result<Sizes> {
    let mut arguments = arguments.iter();
    let takes = |operand: &Operand| matches!(operand.kind, Kind::Input | Kind::Prefetch | Kind::Param);
    let argument = |operand: &Operand| takes(operand).then(|| arguments.next()).flatten();
    let arguments: Vec<Option<&Argument>> = spec.operands.iter().map(argument).collect();
    for (operand, argument) in spec.operands.iter().zip(&arguments) {
        if let Some(Argument::Param(Err(diag))) = argument {
            return Err(Error::kernel(site.name, site.at, format!("parameter `{}`", operand.name), diag.clone()));
        }
    }
    sizes(site, spec, &arguments).map_err(|diag| Error::kernel(site.name, site.at, "", diag))
}

fn sizes(site: &Site<'_>, spec: &Spec, arguments: &[Option<&Argument>]) -> Result<Sizes, Diag> {
    let mut names: Names = BTreeMap::new();
    for (name, n) in site.given {
        names.insert((*name).to_string(), (*n, format!("parameter `{name}`")));
    }
    for (operand, argument) in spec.operands.iter().zip(arguments) {
        let found = match (argument, operand.kind) {
            (Some(Argument::Array(array, _)), Kind::Input | Kind::Prefetch) => {
                bind_array(operand, array, &mut names)?;
                continue;
            }
            (Some(Argument::Param(Ok(x))), Kind::Param) if x.dtype == operand.dtype => continue,
            (None, Kind::Output | Kind::Scratch) => continue,
            // The macro's calls never come here; an `Input` of the user's own may.
            (Some(Argument::Param(_)), _) => "another scalar",
            (Some(Argument::Array(..)), _) => "an array",
            (None, _) => "nothing",
        };
        let what = if operand.kind == Kind::Param { "a scalar" } else { "an array" };
        let message = format!("`{}` is {what} of {}, found {found}", operand.name, operand.dtype);
        return fault("argument", message, "pass `&Array`, an `Array`, or the scalar");
    }
    let sizes: BTreeMap<String, i64> = names.iter().map(|(n, (x, _))| (n.clone(), *x)).collect();
    let values = Values(sizes.iter().map(|(n, x)| (n.as_str(), *x)).collect());
    let operands = spec.operands.iter().zip(arguments);
    let shapes: Vec<_> = operands.map(|(o, argument)| values.shape(o, *argument)).collect::<Result<_, Diag>>()?;
    for (a, b) in &spec.assume {
        let (x, y) = (values.number(a, "`assume`")?, values.number(b, "`assume`")?);
        if x != y {
            return fault(
                "assume",
                format!("the kernel assumes {a} == {b}, found {x} and {y}"),
                "choose sizes that agree",
            );
        }
    }
    for (operand, shape) in spec.operands.iter().zip(&shapes) {
        if let Some(depth) = operand.buffered.filter(|depth| !(1..=3).contains(depth)) {
            let message = format!("`{}` is buffered {depth} times", operand.name);
            return fault("buffered", message, "1: fetched when it is needed; 2, 3: one or two steps ahead");
        }
        values.check_blocks(operand, shape)?;
        check_number(operand, "fill", operand.fill)?;
        check_number(operand, "empty", operand.empty)?;
    }
    let mut grid = vec![];
    for (axis, extent) in spec.grid.iter().enumerate() {
        let n = values.number(extent, "the grid")?;
        if !(0..=MAX_EXTENT).contains(&n) {
            return fault("grid", format!("grid axis {axis} is {extent} = {n}"), "an extent is 0 to 2^31 - 1");
        }
        grid.push(n);
    }
    if let Some((name, (n, by))) = names.iter().find(|(_, (n, _))| *n > MAX_EXTENT) {
        return fault("extent", format!("dimension {name} is {n} in {by}"), BEYOND);
    }
    check_aliases(spec, &shapes)?;
    let statics = static_names(spec);
    // Tracing declares dimensions in the order of their names.
    let geometry = Geometry::new(sizes.values().copied().collect(), grid, spec.semantics.iter().copied(), shapes)?;
    Ok(Sizes { sizes, statics, geometry })
}

/// Refuses a finite `fill` or `empty` that no element is. Infinities stand for an integer's lowest and highest value, and a
/// float is rounded.
fn check_number(operand: &Operand, option: &str, number: Option<f64>) -> Result<(), Diag> {
    let dtype = operand.dtype;
    let Some(x) = number.filter(|x| !x.is_infinite() && !dtype.is_float()) else { return Ok(()) };
    let literal = Literal::new(dtype, x);
    let value = if dtype == DType::U64 { literal.bits as f64 } else { literal.as_f64() };
    if value == x {
        return Ok(());
    }
    let message = format!("`{option} = {x}` of `{}`: there is no such {dtype}", operand.name);
    fault("literal", message, "write a number that its elements can be; infinities are the lowest and the highest")
}

/// Holds an array against its operand's declaration and binds the names it names.
fn bind_array(operand: &Operand, array: &Array, names: &mut Names) -> Result<(), Diag> {
    if array.dtype() != operand.dtype {
        let message = format!("`{}` holds {}, found an array of {}", operand.name, operand.dtype, array.dtype());
        return fault("dtype", message, "convert the array, or choose the kernel's element type");
    }
    let Some(dims) = &operand.dims else { return Ok(()) };
    if dims.len() != array.rank() {
        let (name, own, shape) = (operand.name, pallas_ir::diag::shape(dims), array.shape());
        let message =
            format!("`{name}` has rank {} {own}, found an array of rank {} {shape:?}", dims.len(), shape.len());
        return fault("rank", message, "reshape the array");
    }
    for (dim, &n) in dims.iter().zip(array.shape()) {
        let Some(name) = dim.as_name() else { continue };
        let n = n as i64;
        let (bound, by) = names.entry(name.clone()).or_insert_with(|| (n, format!("`{}`", operand.name)));
        if *bound != n {
            let message = format!("dimension {name} is {bound} in {by} and {n} in `{}`", operand.name);
            return fault("dimension", message, &format!("all operands that name {name} agree in it"));
        }
    }
    Ok(())
}

/// Sizes by name.
struct Values<'a>(Vec<(&'a str, i64)>);

impl Values<'_> {
    /// A dimension of `what` as a number.
    fn number(&self, dim: &Dim, what: &str) -> Result<i64, Diag> {
        if let Some(n) = dim.bind(&self.0).as_number() {
            return Ok(n);
        }
        let unbound = |name: &String| !self.0.iter().any(|(bound, _)| bound == name);
        let unbound: Vec<String> = dim.names().into_iter().filter(unbound).collect();
        let message = format!("dimension `{}` of {what} is bound by no operand", unbound.join("`, `"));
        fault("unbound", message, &format!("give it at the call: a parameter `#[dim] {}: usize`", unbound.join("`, `")))
    }

    /// The shape of an operand, which its array has.
    fn shape(&self, operand: &Operand, argument: Option<&Argument>) -> Result<Vec<usize>, Diag> {
        let array = match argument {
            Some(Argument::Array(array, _)) => Some(array.shape()),
            Some(Argument::Param(_)) | None => None,
        };
        let Some(dims) = &operand.dims else { return Ok(array.unwrap_or_default().to_vec()) };
        let mut shape = vec![];
        for (axis, dim) in dims.iter().enumerate() {
            let n = self.number(dim, &format!("`{}`", operand.name))?;
            // `M + 1 = 5`, or a number alone.
            let value = if dim.as_number().is_some() { n.to_string() } else { format!("{dim} = {n}") };
            let own = format!("dimension {axis} of `{}` is {value}", operand.name);
            if let Some(found) = array.map(|shape| shape[axis] as i64).filter(|found| *found != n) {
                return fault("dimension", format!("{own}, found {found}"), "check the array's shape");
            }
            let Ok(n) = usize::try_from(n) else { return fault("dimension", own, "sizes are at least 0") };
            shape.push(n);
        }
        Ok(shape)
    }

    /// Blocks are at least one element (where the array has any), and have positions that are i32, padding included.
    fn check_blocks(&self, operand: &Operand, shape: &[usize]) -> Result<(), Diag> {
        let name = operand.name;
        if shape.len() > MAX_RANK {
            let message = format!("`{name}` has rank {}", shape.len());
            return fault("rank", message, "operands have at most 8 dimensions: merge some by `reshape`");
        }
        let whole = operand.block.is_none() && operand.kind != Kind::Prefetch;
        if whole && !pallas_ir::Type::new(operand.dtype, shape).is_indexable() {
            let message = format!("`{name}` is one block of {shape:?}, more than 2^31 - 1 elements");
            return fault("block-size", message, "cut it into smaller blocks");
        }
        if let Some((axis, n)) = shape.iter().enumerate().find(|(_, n)| **n > MAX_EXTENT as usize) {
            return fault("extent", format!("dimension {axis} of `{name}` has {n} elements"), BEYOND);
        }
        let what = format!("the block of `{name}`");
        let mut elements = Some(1i64);
        for (axis, block) in operand.block.iter().flatten().enumerate() {
            let sizes = block.sizes();
            let Some((&size, pads)) = sizes.split_first() else { continue };
            let n = self.number(size, &what)?;
            // A block that is a whole, empty dimension is legal: no element is ever touched.
            let whole = operand.dims.as_ref().is_some_and(|dims| dims[axis] == *size);
            if n < 0 || (n == 0 && !whole) {
                let message = format!("{what} has {size} = {n} elements along dimension {axis}");
                return fault("block-size", message, "a block has at least one element");
            }
            elements = elements.and_then(|product| product.checked_mul(n));
            // Whole blocks: also those of which the array has a part.
            let step = n.max(1);
            let mut end = i64::try_from(shape[axis]).ok().and_then(|n| n.checked_add(step - 1)).map(|n| n - n % step);
            for &pad in pads {
                let padding = self.number(pad, &what)?;
                if !(0..=MAX_EXTENT).contains(&padding) {
                    let message = format!("{what} has padding {pad} = {padding} along dimension {axis}");
                    return fault("block-size", message, "padding is 0 to 2^31 - 1");
                }
                end = end.and_then(|n| n.checked_add(padding));
            }
            if end.is_none_or(|n| n > MAX_EXTENT) {
                let extent = shape[axis];
                let message = format!(
                    "dimension {axis} of `{name}` has {extent} elements, beyond the positions that its blocks of \
                     {n} can have"
                );
                return fault("extent", message, BEYOND);
            }
        }
        if elements.is_none_or(|n| n > MAX_EXTENT) {
            return fault("block-size", format!("{what} has more than 2^31 - 1 elements"), "use smaller blocks");
        }
        Ok(())
    }
}

/// An output that takes over an input's memory has its element type and shape, and has it for itself.
fn check_aliases(spec: &Spec, shapes: &[Vec<usize>]) -> Result<(), Diag> {
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
            return fault("alias", message, "an alias has the element type and shape of its input");
        }
        if let Some((_, other)) = taken.iter().find(|(input, _)| *input == from) {
            let message = format!("`{other}` and `{}` both take over the memory of `{from}`", operand.name);
            return fault("alias", message, "an input's memory serves one output");
        }
        taken.push((from, operand.name));
    }
    Ok(())
}

/// Names that must be numbers while tracing.
fn static_names(spec: &Spec) -> Vec<String> {
    let mut names = vec![];
    for operand in &spec.operands {
        names.extend(operand.block.iter().flatten().flat_map(BlockDim::sizes).flat_map(Dim::names));
        let whole = operand.block.is_none() && matches!(operand.kind, Kind::Input | Kind::Output | Kind::Scratch);
        if whole {
            names.extend(operand.dims.iter().flatten().flat_map(Dim::names));
        }
    }
    names.sort();
    names.dedup();
    names
}
