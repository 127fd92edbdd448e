//! Parser of the text form of a kernel, of sizes and of operations; [`crate::print`] has the grammar.
use crate::cursor::{Cursor, ParseError, Parsed};
use crate::kernel::*;
use crate::{DType, Dim, Literal, ScalarOp, StructuralOp};
use std::collections::HashMap;
use std::str::FromStr;

impl FromStr for Kernel {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Kernel, ParseError> {
        let mut parser = Parser { kernel: Kernel::default(), values: HashMap::new() };
        parser.kernel.regions.push(Region::default());
        Cursor::whole(text, |c| parser.kernel(c))?;
        Ok(parser.kernel)
    }
}

impl FromStr for Dim {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Dim, ParseError> {
        Cursor::whole(text, dim)
    }
}

/// Parses a size: `Dim = Term (("+" | "-") Term)*`.
pub(crate) fn dim(c: &mut Cursor<'_>) -> Parsed<Dim> {
    let zero = Dim::from(0i64);
    let mut sum = if c.eat("-") { &zero - &term(c)? } else { term(c)? };
    loop {
        if c.eat("+") {
            sum = &sum + &term(c)?;
        } else if c.eat("-") {
            sum = &sum - &term(c)?;
        } else {
            return Ok(sum);
        }
        small(c, sum.terms())?;
    }
}
/// Maximum number of names and numbers in a size: products and sums of longer ones take long, and no kernel has them.
const LONGEST: usize = 4096;
/// Refuses sizes with too many terms.
fn small(c: &Cursor<'_>, terms: usize) -> Parsed<()> {
    if terms > LONGEST { c.error("a size has too many terms") } else { Ok(()) }
}
/// Parses `Term = Factor ("*" Factor)*`.
fn term(c: &mut Cursor<'_>) -> Parsed<Dim> {
    let mut product = factor(c)?;
    while c.eat("*") {
        let factor = factor(c)?;
        small(c, product.terms().saturating_mul(factor.terms()))?;
        product = &product * &factor;
    }
    Ok(product)
}
/// Parses `Factor = n | name | "?" | ("cdiv" | "min" | "max") "(" Dim "," Dim ")"`.
fn factor(c: &mut Cursor<'_>) -> Parsed<Dim> {
    if c.eat("?") {
        return Ok(Dim::UNKNOWN);
    }
    let word = c.word("a size")?;
    if let Ok(n) = word.parse::<i64>() {
        return Ok(Dim::from(n));
    }
    if !c.eat("(") {
        return Ok(Dim::name(word));
    }
    let a = c.nested(dim)?;
    c.expect(",")?;
    let b = c.nested(dim)?;
    c.expect(")")?;
    match word {
        "cdiv" => Ok(a.cdiv(&b)),
        "min" => Ok(a.min(&b)),
        "max" => Ok(a.max(&b)),
        _ => c.error(format!("sizes have no function `{word}`")),
    }
}

/// State of the parser of a kernel.
struct Parser {
    kernel: Kernel,
    /// Values by their number in the text.
    values: HashMap<u32, Value>,
}

impl Parser {
    /// Parses a kernel.
    fn kernel(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        c.expect("kernel")?;
        self.kernel.name = c.word("the kernel's name")?.into();
        c.expect("{")?;
        while c.eat("dim") {
            let name = c.word("a dimension's name")?.to_string();
            let size = if c.eat("=") { Some(c.value("a size")?) } else { None };
            self.kernel.dims.push(DimDecl { name, size });
        }
        while c.eat("grid") {
            let extent = dim(c)?;
            let semantics = if c.eat("parallel") {
                Semantics::Parallel
            } else {
                c.expect("arbitrary")?;
                Semantics::Arbitrary
            };
            self.kernel.grid.push(Axis { extent, semantics });
        }
        while c.eat("steps") {
            let extent = dim(c)?;
            self.kernel.steps.push(extent);
        }
        if c.eat("allow") {
            self.kernel.allow.overflow = c.eat("overflow");
            self.kernel.allow.lost_store = c.eat("lost_store");
        }
        while !["alias", "map", "body"].iter().any(|&end| c.peek(end)) {
            self.operand(c)?;
        }
        while c.eat("alias") {
            let output = self.operand_id(c)?;
            let input = self.operand_id(c)?;
            match &mut self.kernel.operands[output.index()].kind {
                OperandKind::Output { alias, .. } => *alias = Some(input),
                _ => return c.error("only an output takes over another operand"),
            }
        }
        while c.eat("map") {
            let operand = self.operand_id(c)?;
            self.kernel.operands[operand.index()].map = Some(self.nested(c)?);
        }
        c.expect("body")?;
        self.kernel.regions[0] = self.region(c)?;
        c.expect("}")
    }

    /// Parses the declaration of an operand.
    fn operand(&mut self, c: &mut Cursor<'_>) -> Parsed<()> {
        let kind = c.word("an operand or `body`")?;
        let name = c.word("the operand's name")?.to_string();
        c.expect(":")?;
        let dtype: DType = c.value("an element type")?;
        c.expect("[")?;
        let dims = c.list("]", dim)?;
        let block = if c.eat("block") {
            c.expect("[")?;
            c.list("]", block_dim)?
        } else {
            vec![]
        };
        let fill = if c.eat("fill") { Some(literal(c, dtype)?) } else { None };
        let buffered = if c.eat("buffered") { Some(c.value("how many blocks")?) } else { None };
        let kind = match kind {
            "in" => OperandKind::Input,
            "out" => {
                c.expect("empty")?;
                OperandKind::Output { empty: literal(c, dtype)?, alias: None }
            }
            "prefetch" => OperandKind::Prefetch,
            "scratch" => OperandKind::Scratch,
            "param" => OperandKind::Param,
            other => return c.error(format!("operands are in, out, prefetch, scratch or param, found `{other}`")),
        };
        self.kernel.operands.push(Operand { name, kind, dtype, dims, block, map: None, fill, buffered });
        Ok(())
    }

    /// Parses a use of an operand that is declared above.
    fn operand_id(&mut self, c: &mut Cursor<'_>) -> Parsed<OperandId> {
        c.expect("@")?;
        let name = c.word("an operand's name")?;
        match self.kernel.operands.iter().position(|o| o.name == name) {
            Some(i) => Ok(OperandId(i as u32)),
            None => c.error(format!("there is no operand `@{name}` above")),
        }
    }

    /// Parses a region of an instruction or an index map.
    fn nested(&mut self, c: &mut Cursor<'_>) -> Parsed<RegionId> {
        let id = RegionId(self.kernel.regions.len() as u32);
        self.kernel.regions.push(Region::default());
        self.kernel.regions[id.index()] = c.nested(|c| self.region(c))?;
        Ok(id)
    }
    /// Parses a region in braces.
    fn region(&mut self, c: &mut Cursor<'_>) -> Parsed<Region> {
        let mut region = Region::default();
        if c.eat("(") {
            region.params = c.list(")", |c| self.define(c))?;
        }
        c.expect("{")?;
        loop {
            if c.eat("yield") {
                region.yields = c.list("}", |c| self.used(c))?;
                return Ok(region);
            }
            if c.eat("}") {
                return Ok(region);
            }
            region.insts.push(self.inst(c)?);
        }
    }

    fn number(c: &mut Cursor<'_>) -> Parsed<u32> {
        c.expect("%")?;
        c.value("a value's number")
    }
    /// Parses the definition of a value: `%n name? : type`.
    fn define(&mut self, c: &mut Cursor<'_>) -> Parsed<Value> {
        let number = Self::number(c)?;
        let name = if c.peek(":") { None } else { Some(c.word("a name or `:`")?) };
        c.expect(":")?;
        let dtype: DType = c.value("an element type")?;
        c.expect("[")?;
        let shape: Vec<usize> = c.list("]", |c| c.value("an extent"))?;
        let value = Value(self.kernel.values.len() as u32);
        self.kernel.values.push(Type { dtype, shape });
        self.kernel.name_value(value, name);
        if self.values.insert(number, value).is_some() {
            return c.error(format!("%{number} is defined twice"));
        }
        Ok(value)
    }
    /// Parses a use of a value that is defined above.
    fn used(&mut self, c: &mut Cursor<'_>) -> Parsed<Value> {
        let number = Self::number(c)?;
        match self.values.get(&number) {
            Some(&value) => Ok(value),
            None => c.error(format!("%{number} is not defined above")),
        }
    }

    /// Parses an instruction with its regions.
    fn inst(&mut self, c: &mut Cursor<'_>) -> Parsed<InstId> {
        let mut results = vec![];
        if c.peek("%") {
            results = c.list("=", |c| self.define(c))?;
        }
        let id = InstId(self.kernel.insts.len() as u32);
        let dtype = results.first().map(|&v| self.kernel.ty(v).dtype);
        let op = self.op(c, dtype)?;
        let mut args = vec![];
        // The next instruction begins with its results, in a line of its own.
        while c.same_line() && c.peek("%") {
            args.push(self.used(c)?);
            if !c.eat(",") {
                break;
            }
        }
        // The instruction has a lower index than those of its regions.
        self.kernel.insts.push(Inst { op: op.clone(), args, results, regions: vec![] });
        self.kernel.locs.push(Loc::NONE);
        let mut regions = vec![];
        for i in 0..region_count(&op) {
            if i == 1 && op == Op::If {
                c.expect("else")?;
            }
            regions.push(self.nested(c)?);
        }
        self.kernel.insts[id.index()].regions = regions;
        Ok(id)
    }

    /// Parses an operation; `dtype` is the type of the instruction's first result, which a constant needs.
    fn op(&mut self, c: &mut Cursor<'_>, dtype: Option<DType>) -> Parsed<Op> {
        let name = c.word("an operation")?;
        Ok(match name {
            "const" => match dtype {
                Some(dtype) => Op::Const(literal(c, dtype)?),
                None => return c.error("a constant has a result"),
            },
            "program_id" => Op::ProgramId(axis(c)?),
            "num_programs" => Op::NumPrograms(axis(c)?),
            "num_steps" => Op::NumSteps(axis(c)?),
            "extent" => {
                let name = c.word("a dimension's name")?;
                match self.kernel.dims.iter().position(|d| d.name == name) {
                    Some(i) => Op::Extent(DimId(i as u32)),
                    None => return c.error(format!("there is no dimension `{name}`")),
                }
            }
            "param" => Op::Param(self.operand_id(c)?),
            "prefetch" => Op::Prefetch(self.operand_id(c)?),
            "load" => Op::Load { from: self.operand_id(c)?, view: view(c)?, masked: c.eat("mask") },
            "store" => Op::Store { to: self.operand_id(c)?, view: view(c)?, masked: c.eat("mask") },
            "valid" => Op::Valid { of: self.operand_id(c)?, view: view(c)?, axis: axis(c)? },
            "if" => Op::If,
            "for" => Op::For { reverse: c.eat("reverse") },
            "while" => Op::While,
            "debug_print" => Op::DebugPrint(c.string()?),
            "debug_assert" => Op::DebugAssert(c.string()?),
            name => match ScalarOp::parse(name) {
                Some(op) => Op::Scalar(op),
                None => Op::Structural(structural(c, name)?),
            },
        })
    }
}

/// Number of regions that an operation has.
pub(crate) fn region_count(op: &Op) -> usize {
    match op {
        Op::If | Op::While => 2,
        Op::For { .. } => 1,
        Op::Const(_)
        | Op::Scalar(_)
        | Op::Structural(_)
        | Op::ProgramId(_)
        | Op::NumPrograms(_)
        | Op::NumSteps(_)
        | Op::Extent(_)
        | Op::Param(_)
        | Op::Prefetch(_)
        | Op::Load { .. }
        | Op::Store { .. }
        | Op::Valid { .. }
        | Op::DebugPrint(_)
        | Op::DebugAssert(_) => 0,
    }
}

fn axis(c: &mut Cursor<'_>) -> Parsed<usize> {
    c.expect("axis")?;
    c.expect("(")?;
    let axis = c.value("an axis")?;
    c.expect(")")?;
    Ok(axis)
}

/// Parses a constant of this type.
fn literal(c: &mut Cursor<'_>, dtype: DType) -> Parsed<Literal> {
    let text = c.take("a constant", |c| c.is_alphanumeric() || "+-.:".contains(c))?;
    match Literal::parse(dtype, text) {
        Some(x) => Ok(x),
        None => c.error(format!("`{text}` is no {dtype}")),
    }
}

/// Parses the extent of a block along one dimension.
fn block_dim(c: &mut Cursor<'_>) -> Parsed<BlockDim> {
    if c.eat("_") {
        return Ok(BlockDim::Squeezed);
    }
    if c.eat("element") {
        let mut size = || c.value("a size");
        return Ok(BlockDim::Element { size: size()?, low: size()?, high: size()? });
    }
    Ok(BlockDim::Blocked(c.value("a block size, `_` or `element`")?))
}

/// Parses a view.
fn view(c: &mut Cursor<'_>) -> Parsed<View> {
    let frame = if c.eat("block") {
        Frame::Block
    } else {
        c.expect("array")?;
        Frame::Array
    };
    c.expect("[")?;
    Ok(View { frame, axes: c.list("]", view_axis)? })
}
/// Parses one axis of a view.
fn view_axis(c: &mut Cursor<'_>) -> Parsed<ViewAxis> {
    let dynamic = c.eat("dyn");
    if dynamic {
        c.expect("+")?;
    }
    let offset = c.value("an offset")?;
    c.expect(":")?;
    let size = c.value("a size")?;
    let stride = if c.eat(":") { c.value("a stride")? } else { 1 };
    Ok(ViewAxis { offset, dynamic, size, stride, kept: !c.eat("drop") })
}

/// Attributes of a structural operation, from name to text.
pub struct Attributes<'a>(Vec<(&'a str, &'a str)>);

/// Parses the attributes of a structural operation of this name.
fn structural(c: &mut Cursor<'_>, name: &str) -> Parsed<StructuralOp> {
    let mut attributes = vec![];
    while c.peek_call() {
        attributes.push((c.word("an attribute")?, c.parenthesised()?));
    }
    match StructuralOp::parse(name, &Attributes(attributes)) {
        Ok(op) => Ok(op),
        Err(message) => c.error(message),
    }
}

impl Attributes<'_> {
    fn text(&self, name: &str) -> Result<&str, String> {
        let found = self.0.iter().find(|(n, _)| *n == name);
        found.map(|(_, text)| *text).ok_or_else(|| format!("the attribute `{name}` is missing"))
    }
    /// Returns true if the text has the attribute.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _)| *n == name)
    }
    /// Parses an attribute that is one value.
    pub fn one<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.text(name)?;
        text.parse().map_err(|_| format!("the attribute `{name}` is not understood: `{text}`"))
    }
    /// Parses an attribute that is a list of values.
    pub fn list<T: FromStr>(&self, name: &str) -> Result<Vec<T>, String> {
        let c = &mut Cursor::new(self.text(name)?);
        let mut items = vec![];
        while !c.is_done() {
            let item = c.argument();
            let unclear = || format!("the attribute `{name}` is not understood: `{item}`");
            items.push(item.parse().map_err(|_| unclear())?);
            if !c.eat(",") && !c.is_done() {
                return Err(unclear());
            }
        }
        Ok(items)
    }
    /// Parses an attribute that is a list of pairs `a-b`.
    pub fn pairs(&self, name: &str) -> Result<Vec<(usize, usize)>, String> {
        let pair = |text: String| {
            let (a, b) = text.split_once('-')?;
            Some((a.parse().ok()?, b.parse().ok()?))
        };
        let texts: Vec<String> = self.list(name)?;
        texts.into_iter().map(pair).collect::<Option<_>>().ok_or_else(|| format!("`{name}` is a list of pairs `a-b`"))
    }
}

impl FromStr for StructuralOp {
    type Err = String;
    fn from_str(text: &str) -> Result<StructuralOp, String> {
        let c = &mut Cursor::new(text);
        let read = |c: &mut Cursor<'_>| {
            let name = c.word("an operation")?;
            structural(c, name)
        };
        let op = read(c).map_err(|e| e.to_string())?;
        if c.is_done() { Ok(op) } else { Err(format!("`{text}` goes on after the operation")) }
    }
}

impl FromStr for ScalarOp {
    type Err = String;
    fn from_str(name: &str) -> Result<ScalarOp, String> {
        ScalarOp::parse(name).ok_or_else(|| format!("`{name}` is no scalar operation"))
    }
}
