//! Parser of the text form of a kernel, of sizes and of operations; [`crate::print`] has the grammar.
use crate::cursor::{Cursor, ParseError, ParseResult};
use crate::kernel::*;
use crate::{DType, Dim, Literal, ScalarOp, StructuralOp};
use std::collections::HashMap;
use std::str::FromStr;

impl FromStr for Kernel {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Kernel, ParseError> {
        let mut parser = KernelParser { kernel: Kernel::default(), values: HashMap::new() };
        parser.kernel.regions.push(Region::default());
        Cursor::parse_whole(text, |c| parser.parse_kernel(c))?;
        Ok(parser.kernel)
    }
}

impl FromStr for Dim {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Dim, ParseError> {
        Cursor::parse_whole(text, parse_dim)
    }
}

/// Parses a size: `Dim = Term (("+" | "-") Term)*`.
pub(crate) fn parse_dim(c: &mut Cursor<'_>) -> ParseResult<Dim> {
    let zero = Dim::from(0i64);
    let mut sum = if c.eat("-") { &zero - &parse_term(c)? } else { parse_term(c)? };
    loop {
        if c.eat("+") {
            sum = &sum + &parse_term(c)?;
        } else if c.eat("-") {
            sum = &sum - &parse_term(c)?;
        } else {
            return Ok(sum);
        }
        check_term_count(c, sum.count_leaves())?;
    }
}
/// Maximum number of names and numbers in a size: products and sums of longer ones take long, and no kernel has them.
const MAX_SIZE_TERMS: usize = 4096;
/// Refuses sizes with too many terms.
fn check_term_count(c: &Cursor<'_>, terms: usize) -> ParseResult<()> {
    if terms > MAX_SIZE_TERMS { c.error_at_position("a size has too many terms") } else { Ok(()) }
}
/// Parses `Term = Factor ("*" Factor)*`.
fn parse_term(c: &mut Cursor<'_>) -> ParseResult<Dim> {
    let mut product = parse_factor(c)?;
    while c.eat("*") {
        let factor = parse_factor(c)?;
        check_term_count(c, product.count_leaves().saturating_mul(factor.count_leaves()))?;
        product = &product * &factor;
    }
    Ok(product)
}
/// Parses `Factor = n | name | "?" | ("cdiv" | "min" | "max") "(" Dim "," Dim ")"`.
fn parse_factor(c: &mut Cursor<'_>) -> ParseResult<Dim> {
    if c.eat("?") {
        return Ok(Dim::UNKNOWN);
    }
    let word = c.read_word("a size")?;
    if let Ok(n) = word.parse::<i64>() {
        return Ok(Dim::from(n));
    }
    if !c.eat("(") {
        return Ok(Dim::name(word));
    }
    let a = c.parse_nested(parse_dim)?;
    c.expect(",")?;
    let b = c.parse_nested(parse_dim)?;
    c.expect(")")?;
    match word {
        "cdiv" => Ok(a.cdiv(&b)),
        "min" => Ok(a.min(&b)),
        "max" => Ok(a.max(&b)),
        _ => c.error_at_position(format!("sizes have no function `{word}`")),
    }
}

/// State of the parser of a kernel.
struct KernelParser {
    kernel: Kernel,
    /// Values by their number in the text.
    values: HashMap<u32, Value>,
}

impl KernelParser {
    /// Parses a whole kernel, from the word `kernel` on, into `self.kernel`.
    fn parse_kernel(&mut self, c: &mut Cursor<'_>) -> ParseResult<()> {
        c.expect("kernel")?;
        self.kernel.name = c.read_word("the kernel's name")?.into();
        c.expect("{")?;
        while c.eat("dim") {
            let name = c.read_word("a dimension's name")?.to_string();
            let size = if c.eat("=") { Some(c.read_value("a size")?) } else { None };
            self.kernel.dims.push(DimDecl { name, size });
        }
        while c.eat("grid") {
            let extent = parse_dim(c)?;
            let semantics = if c.eat("parallel") {
                Semantics::Parallel
            } else {
                c.expect("arbitrary")?;
                Semantics::Arbitrary
            };
            self.kernel.grid.push(Axis { extent, semantics });
        }
        while c.eat("steps") {
            let extent = parse_dim(c)?;
            self.kernel.steps.push(extent);
        }
        if c.eat("allow") {
            self.kernel.allow.overflow = c.eat("overflow");
            self.kernel.allow.lost_store = c.eat("lost_store");
        }
        while !["alias", "map", "body"].iter().any(|&end| c.peek(end)) {
            self.parse_operand(c)?;
        }
        while c.eat("alias") {
            let output = self.parse_operand_use(c)?;
            let input = self.parse_operand_use(c)?;
            match &mut self.kernel.operands[output.index()].kind {
                OperandKind::Output { alias, .. } => *alias = Some(input),
                _ => return c.error_at_position("only an output takes over another operand"),
            }
        }
        while c.eat("map") {
            let operand = self.parse_operand_use(c)?;
            self.kernel.operands[operand.index()].map = Some(self.parse_nested_region(c)?);
        }
        c.expect("body")?;
        self.kernel.regions[0] = self.parse_region(c)?;
        c.expect("}")
    }

    /// Parses the declaration of an operand.
    fn parse_operand(&mut self, c: &mut Cursor<'_>) -> ParseResult<()> {
        let kind = c.read_word("an operand or `body`")?;
        let name = c.read_word("the operand's name")?.to_string();
        c.expect(":")?;
        let dtype: DType = c.read_value("an element type")?;
        c.expect("[")?;
        let dims = c.read_list("]", parse_dim)?;
        let block = if c.eat("block") {
            c.expect("[")?;
            c.read_list("]", parse_block_dim)?
        } else {
            vec![]
        };
        let fill = if c.eat("fill") { Some(parse_literal(c, dtype)?) } else { None };
        let buffered = if c.eat("buffered") { Some(c.read_value("how many blocks")?) } else { None };
        let kind = match kind {
            "in" => OperandKind::Input,
            "out" => {
                c.expect("empty")?;
                OperandKind::Output { empty: parse_literal(c, dtype)?, alias: None }
            }
            "prefetch" => OperandKind::Prefetch,
            "scratch" => OperandKind::Scratch,
            "param" => OperandKind::Param,
            other => {
                return c
                    .error_at_position(format!("operands are in, out, prefetch, scratch or param, found `{other}`"));
            }
        };
        self.kernel.operands.push(Operand { name, kind, dtype, dims, block, map: None, fill, buffered });
        Ok(())
    }

    /// Parses a use of an operand that is declared above.
    fn parse_operand_use(&mut self, c: &mut Cursor<'_>) -> ParseResult<OperandId> {
        c.expect("@")?;
        let name = c.read_word("an operand's name")?;
        match self.kernel.operands.iter().position(|o| o.name == name) {
            Some(i) => Ok(OperandId(i as u32)),
            None => c.error_at_position(format!("there is no operand `@{name}` above")),
        }
    }

    /// Parses a region of an instruction or an index map.
    fn parse_nested_region(&mut self, c: &mut Cursor<'_>) -> ParseResult<RegionId> {
        let id = RegionId(self.kernel.regions.len() as u32);
        self.kernel.regions.push(Region::default());
        self.kernel.regions[id.index()] = c.parse_nested(|c| self.parse_region(c))?;
        Ok(id)
    }
    /// Parses a region in braces.
    fn parse_region(&mut self, c: &mut Cursor<'_>) -> ParseResult<Region> {
        let mut region = Region::default();
        if c.eat("(") {
            region.params = c.read_list(")", |c| self.parse_definition(c))?;
        }
        c.expect("{")?;
        loop {
            if c.eat("yield") {
                region.yields = c.read_list("}", |c| self.parse_value_use(c))?;
                return Ok(region);
            }
            if c.eat("}") {
                return Ok(region);
            }
            region.insts.push(self.parse_inst(c)?);
        }
    }

    fn parse_value_number(c: &mut Cursor<'_>) -> ParseResult<u32> {
        c.expect("%")?;
        c.read_value("a value's number")
    }
    /// Parses the definition of a value: `%n name? : type`.
    fn parse_definition(&mut self, c: &mut Cursor<'_>) -> ParseResult<Value> {
        let number = Self::parse_value_number(c)?;
        let name = if c.peek(":") { None } else { Some(c.read_word("a name or `:`")?) };
        c.expect(":")?;
        let dtype: DType = c.read_value("an element type")?;
        c.expect("[")?;
        let shape: Vec<usize> = c.read_list("]", |c| c.read_value("an extent"))?;
        let value = Value(self.kernel.values.len() as u32);
        self.kernel.values.push(Type { dtype, shape });
        self.kernel.name_value(value, name);
        if self.values.insert(number, value).is_some() {
            return c.error_at_position(format!("%{number} is defined twice"));
        }
        Ok(value)
    }
    /// Parses a use of a value that is defined above.
    fn parse_value_use(&mut self, c: &mut Cursor<'_>) -> ParseResult<Value> {
        let number = Self::parse_value_number(c)?;
        match self.values.get(&number) {
            Some(&value) => Ok(value),
            None => c.error_at_position(format!("%{number} is not defined above")),
        }
    }

    /// Parses an instruction with its regions.
    fn parse_inst(&mut self, c: &mut Cursor<'_>) -> ParseResult<InstId> {
        let mut results = vec![];
        if c.peek("%") {
            results = c.read_list("=", |c| self.parse_definition(c))?;
        }
        let id = InstId(self.kernel.insts.len() as u32);
        let dtype = results.first().map(|&v| self.kernel.ty(v).dtype);
        let op = self.parse_op(c, dtype)?;
        let mut args = vec![];
        // The next instruction begins with its results, in a line of its own.
        while c.is_on_same_line() && c.peek("%") {
            args.push(self.parse_value_use(c)?);
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
            regions.push(self.parse_nested_region(c)?);
        }
        self.kernel.insts[id.index()].regions = regions;
        Ok(id)
    }

    /// Parses an operation; `dtype` is the type of the instruction's first result, which a constant needs.
    fn parse_op(&mut self, c: &mut Cursor<'_>, dtype: Option<DType>) -> ParseResult<Op> {
        let name = c.read_word("an operation")?;
        Ok(match name {
            "const" => match dtype {
                Some(dtype) => Op::Const(parse_literal(c, dtype)?),
                None => return c.error_at_position("a constant has a result"),
            },
            "program_id" => Op::ProgramId(parse_axis(c)?),
            "num_programs" => Op::NumPrograms(parse_axis(c)?),
            "num_steps" => Op::NumSteps(parse_axis(c)?),
            "extent" => {
                let name = c.read_word("a dimension's name")?;
                match self.kernel.dims.iter().position(|d| d.name == name) {
                    Some(i) => Op::Extent(DimId(i as u32)),
                    None => return c.error_at_position(format!("there is no dimension `{name}`")),
                }
            }
            "param" => Op::Param(self.parse_operand_use(c)?),
            "prefetch" => Op::Prefetch(self.parse_operand_use(c)?),
            "load" => Op::Load { from: self.parse_operand_use(c)?, view: parse_view(c)?, masked: c.eat("mask") },
            "store" => Op::Store { to: self.parse_operand_use(c)?, view: parse_view(c)?, masked: c.eat("mask") },
            "valid" => Op::Valid { of: self.parse_operand_use(c)?, view: parse_view(c)?, axis: parse_axis(c)? },
            "if" => Op::If,
            "for" => Op::For { reverse: c.eat("reverse") },
            "while" => Op::While,
            "debug_print" => Op::DebugPrint(c.read_string()?),
            "debug_assert" => Op::DebugAssert(c.read_string()?),
            name => match ScalarOp::parse(name) {
                Some(op) => Op::Scalar(op),
                None => Op::Structural(parse_structural(c, name)?),
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

fn parse_axis(c: &mut Cursor<'_>) -> ParseResult<usize> {
    c.expect("axis")?;
    c.expect("(")?;
    let axis = c.read_value("an axis")?;
    c.expect(")")?;
    Ok(axis)
}

/// Parses a constant of this type.
fn parse_literal(c: &mut Cursor<'_>, dtype: DType) -> ParseResult<Literal> {
    let text = c.read_while("a constant", |c| c.is_alphanumeric() || "+-.:".contains(c))?;
    match Literal::parse(dtype, text) {
        Some(x) => Ok(x),
        None => c.error_at_position(format!("`{text}` is no {dtype}")),
    }
}

/// Parses the extent of a block along one dimension.
fn parse_block_dim(c: &mut Cursor<'_>) -> ParseResult<BlockDim> {
    if c.eat("_") {
        return Ok(BlockDim::Squeezed);
    }
    if c.eat("element") {
        let mut size = || c.read_value("a size");
        return Ok(BlockDim::Element { size: size()?, low: size()?, high: size()? });
    }
    Ok(BlockDim::Blocked(c.read_value("a block size, `_` or `element`")?))
}

/// Parses a view of an operand: its frame, `block` or `array`, and the ranges of its axes, as in `block[0:8, 4:2]`.
fn parse_view(c: &mut Cursor<'_>) -> ParseResult<View> {
    let frame = if c.eat("block") {
        ViewFrame::Block
    } else {
        c.expect("array")?;
        ViewFrame::Array
    };
    c.expect("[")?;
    Ok(View { frame, axes: c.read_list("]", parse_view_axis)? })
}
/// Parses one axis of a view: `offset:size` or `offset:size:stride`, after `dyn +` if a start is added, and before
/// `drop` if the result has no such axis.
fn parse_view_axis(c: &mut Cursor<'_>) -> ParseResult<ViewAxis> {
    let dynamic = c.eat("dyn");
    if dynamic {
        c.expect("+")?;
    }
    let offset = c.read_value("an offset")?;
    c.expect(":")?;
    let size = c.read_value("a size")?;
    let stride = if c.eat(":") { c.read_value("a stride")? } else { 1 };
    Ok(ViewAxis { offset, dynamic, size, stride, kept: !c.eat("drop") })
}

/// Attributes of a structural operation, from name to text.
pub struct Attributes<'a>(Vec<(&'a str, &'a str)>);

/// Parses the attributes of a structural operation of this name.
fn parse_structural(c: &mut Cursor<'_>, name: &str) -> ParseResult<StructuralOp> {
    let mut attributes = vec![];
    while c.peek_call() {
        attributes.push((c.read_word("an attribute")?, c.read_parenthesised()?));
    }
    match StructuralOp::parse(name, &Attributes(attributes)) {
        Ok(op) => Ok(op),
        Err(message) => c.error_at_position(message),
    }
}

impl Attributes<'_> {
    fn find_text(&self, name: &str) -> Result<&str, String> {
        let found = self.0.iter().find(|(n, _)| *n == name);
        found.map(|(_, text)| *text).ok_or_else(|| format!("the attribute `{name}` is missing"))
    }
    /// Returns true if the text has the attribute.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _)| *n == name)
    }
    /// Parses the attribute `name`, which is one value; returns an error if it is missing or not understood.
    pub fn value<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let text = self.find_text(name)?;
        text.parse().map_err(|_| format!("the attribute `{name}` is not understood: `{text}`"))
    }
    /// Parses the attribute `name`, which is a list of values with commas between them; returns an error if it is
    /// missing or not understood.
    pub fn list<T: FromStr>(&self, name: &str) -> Result<Vec<T>, String> {
        let c = &mut Cursor::new(self.find_text(name)?);
        let mut items = vec![];
        while !c.is_at_end() {
            let item = c.read_argument();
            let unclear = || format!("the attribute `{name}` is not understood: `{item}`");
            items.push(item.parse().map_err(|_| unclear())?);
            if !c.eat(",") && !c.is_at_end() {
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
            let name = c.read_word("an operation")?;
            parse_structural(c, name)
        };
        let op = read(c).map_err(|e| e.to_string())?;
        if c.is_at_end() { Ok(op) } else { Err(format!("`{text}` goes on after the operation")) }
    }
}

impl FromStr for ScalarOp {
    type Err = String;
    fn from_str(name: &str) -> Result<ScalarOp, String> {
        ScalarOp::parse(name).ok_or_else(|| format!("`{name}` is no scalar operation"))
    }
}
