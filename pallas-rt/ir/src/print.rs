//! The text form of a kernel: one line per instruction, read back by [`crate::parse`].
//!
//! ```text
//! Kernel  = "kernel" name "{" ("dim" name ("=" n)?)* ("grid" Dim Semantics)* ("steps" Dim)*
//!           ("allow" ("overflow" | "lost_store")+)? Operand*
//!           ("alias" @name @name)* ("map" @name Region)* "body" Region "}"
//! Operand = kind name ":" dtype "[" Dim,* "]" ("block" "[" Block,* "]")? ("fill" literal)? ("buffered" n)?
//!           ("empty" literal)?
//! Block   = "_" | n | "element" n n n                          size, padding in front, padding behind
//! Region  = ("(" Result,* ")")? "{" Inst* ("yield" Value,*)? "}"
//! Inst    = (Result,* "=")? Op Value,* (Region ("else"? Region)?)?
//! Result  = Value ":" Type
//! Op      = "const" literal | scalar | structural attribute(..)* | "program_id" "axis" "(" n ")"
//!         | "num_programs" "axis" "(" n ")" | "num_steps" "axis" "(" n ")" | "extent" name
//!         | "param" @name | "prefetch" @name | "load" @name View "mask"? | "store" @name View "mask"?
//!         | "valid" @name View "axis" "(" n ")" | "if" | "for" "reverse"? | "while" | "debug_print" string ..
//! View    = ("block" | "array") "[" Axis,* "]"
//! Axis    = "dyn +"? offset ":" size (":" stride)? "drop"?
//! ```
use crate::kernel::*;
use crate::structural::join_with_commas;
use std::fmt::{self, Display, Formatter};

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {} {{", self.name)?;
        for dim in &self.dims {
            match dim.size {
                Some(size) => writeln!(f, "  dim {} = {size}", dim.name)?,
                None => writeln!(f, "  dim {}", dim.name)?,
            }
        }
        for axis in &self.grid {
            writeln!(f, "  grid {} {}", axis.extent, axis.semantics)?;
        }
        for extent in &self.steps {
            writeln!(f, "  steps {extent}")?;
        }
        if !self.allow.is_none() {
            writeln!(f, "  allow {}", self.allow)?;
        }
        for operand in &self.operands {
            self.print_operand(operand, f)?;
        }
        for operand in &self.operands {
            if let OperandKind::Output { alias: Some(input), .. } = operand.kind {
                writeln!(f, "  alias @{} {}", operand.name, self.operand_name(input))?;
            }
        }
        for operand in &self.operands {
            if let Some(map) = operand.map {
                write!(f, "  map @{}", operand.name)?;
                self.print_region(map, 1, f)?;
                writeln!(f)?;
            }
        }
        write!(f, "  body")?;
        self.print_region(self.body, 1, f)?;
        writeln!(f, "\n}}")
    }
}

impl Display for Semantics {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Semantics::Parallel => "parallel",
            Semantics::Arbitrary => "arbitrary",
        })
    }
}

impl Display for BlockDim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            BlockDim::Squeezed => write!(f, "_"),
            BlockDim::Blocked(size) => write!(f, "{size}"),
            BlockDim::Element { size, low, high } => write!(f, "element {size} {low} {high}"),
        }
    }
}

impl Display for ViewAxis {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}:{}", if self.dynamic { "dyn + " } else { "" }, self.offset, self.size)?;
        if self.stride != 1 {
            write!(f, ":{}", self.stride)?;
        }
        if self.kept { Ok(()) } else { write!(f, " drop") }
    }
}

impl Display for View {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let frame = match self.frame {
            ViewFrame::Block => "block",
            ViewFrame::Array => "array",
        };
        write!(f, "{frame}[{}]", join_with_commas(&self.axes))
    }
}

impl Kernel {
    /// Writes the declaration of an operand.
    fn print_operand(&self, operand: &Operand, f: &mut Formatter<'_>) -> fmt::Result {
        let kind = match operand.kind {
            OperandKind::Input => "in",
            OperandKind::Output { .. } => "out",
            OperandKind::Prefetch => "prefetch",
            OperandKind::Scratch => "scratch",
            OperandKind::Param => "param",
        };
        write!(f, "  {kind} {}: {}[{}]", operand.name, operand.dtype, join_with_commas(&operand.dims))?;
        if !operand.block.is_empty() {
            write!(f, " block [{}]", join_with_commas(&operand.block))?;
        }
        if let Some(fill) = operand.fill {
            write!(f, " fill {fill}")?;
        }
        if let Some(depth) = operand.buffered {
            write!(f, " buffered {depth}")?;
        }
        if let OperandKind::Output { empty, .. } = operand.kind {
            write!(f, " empty {empty}")?;
        }
        writeln!(f)
    }
    fn operand_name(&self, id: OperandId) -> String {
        format!("@{}", self.operand(id).name)
    }
    fn typed_values_text(&self, values: &[Value]) -> String {
        let named = |v: Value| self.names.get(&v).map_or(v.to_string(), |name| format!("{v} {name}"));
        let typed: Vec<String> = values.iter().map(|&v| format!("{}: {}", named(v), self.ty(v))).collect();
        typed.join(", ")
    }
    /// Writes a region in braces, with its instructions indented by `level + 1`.
    fn print_region(&self, id: RegionId, level: usize, f: &mut Formatter<'_>) -> fmt::Result {
        let region = self.region(id);
        if !region.params.is_empty() {
            write!(f, " ({})", self.typed_values_text(&region.params))?;
        }
        writeln!(f, " {{")?;
        for &inst in &region.insts {
            self.print_inst(inst, level + 1, f)?;
        }
        if !region.yields.is_empty() {
            writeln!(f, "{}yield {}", "  ".repeat(level + 1), join_with_commas(&region.yields))?;
        }
        write!(f, "{}}}", "  ".repeat(level))
    }
    /// Writes an instruction with its regions, indented by two spaces for each `level`.
    fn print_inst(&self, id: InstId, level: usize, f: &mut Formatter<'_>) -> fmt::Result {
        let inst = self.inst(id);
        write!(f, "{}{}", "  ".repeat(level), self.inst_text(inst))?;
        for (i, &region) in inst.regions.iter().enumerate() {
            if i == 1 && inst.op == Op::If {
                write!(f, " else")?;
            }
            self.print_region(region, level, f)?;
        }
        writeln!(f)
    }
    /// Text of an instruction without its regions, as in error messages: `%3: f32[4] = add %1, %2`.
    pub fn inst_text(&self, inst: &Inst) -> String {
        let mut text = String::new();
        if !inst.results.is_empty() {
            text = format!("{} = ", self.typed_values_text(&inst.results));
        }
        text += &self.op_text(&inst.op);
        if !inst.args.is_empty() {
            text += &format!(" {}", join_with_commas(&inst.args));
        }
        text
    }
    /// Text of an operation with its attributes.
    fn op_text(&self, op: &Op) -> String {
        let name = |id: &OperandId| self.operand_name(*id);
        let mask = |masked: &bool| if *masked { " mask" } else { "" };
        match op {
            Op::Const(x) => format!("const {x}"),
            Op::Scalar(op) => op.to_string(),
            Op::Structural(op) => op.to_string(),
            Op::ProgramId(axis) => format!("program_id axis({axis})"),
            Op::NumPrograms(axis) => format!("num_programs axis({axis})"),
            Op::NumSteps(axis) => format!("num_steps axis({axis})"),
            Op::Extent(dim) => format!("extent {}", self.dims[dim.index()].name),
            Op::Param(operand) => format!("param {}", name(operand)),
            Op::Prefetch(operand) => format!("prefetch {}", name(operand)),
            Op::Load { from, view, masked } => format!("load {} {view}{}", name(from), mask(masked)),
            Op::Store { to, view, masked } => format!("store {} {view}{}", name(to), mask(masked)),
            Op::Valid { of, view, axis } => format!("valid {} {view} axis({axis})", name(of)),
            Op::If => "if".into(),
            Op::For { reverse: false } => "for".into(),
            Op::For { reverse: true } => "for reverse".into(),
            Op::While => "while".into(),
            Op::DebugPrint(label) => format!("debug_print {label:?}"),
            Op::DebugAssert(message) => format!("debug_assert {message:?}"),
        }
    }
}
