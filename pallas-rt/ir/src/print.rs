//! The text form of a kernel.
use crate::kernel::{BlockDim, Inst, Kernel, Op, OperandKind, RegionId, Semantics, Value, View};
use std::fmt::{self, Write};

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kernel {} {{", self.name)?;
        for dim in &self.dims {
            match dim.size {
                Some(n) => writeln!(f, "  dim {} = {n}", dim.name)?,
                None => writeln!(f, "  dim {}", dim.name)?,
            }
        }
        for axis in &self.grid {
            let order = if axis.semantics == Semantics::Parallel { "parallel" } else { "arbitrary" };
            writeln!(f, "  grid {} {order}", axis.extent)?;
        }
        for (i, _) in self.operands.iter().enumerate() {
            operand(self, i, f)?;
        }
        write!(f, "  body ")?;
        region(self, self.body, 1, f)?;
        writeln!(f, "\n}}")
    }
}

fn operand(k: &Kernel, i: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let o = &k.operands[i];
    let kind = match o.kind {
        OperandKind::Input => "in",
        OperandKind::Output { .. } => "out",
        OperandKind::Prefetch => "prefetch",
        OperandKind::Scratch => "scratch",
        OperandKind::Param => "param",
    };
    let dims: Vec<String> = o.dims.iter().map(ToString::to_string).collect();
    write!(f, "  {kind} @{i} {}: {}[{}]", o.name, o.dtype, dims.join(", "))?;
    if !o.block.is_empty() {
        let block: Vec<String> = o.block.iter().map(block_dim).collect();
        write!(f, " block [{}]", block.join(", "))?;
    }
    if let Some(fill) = o.fill {
        write!(f, " fill {fill}")?;
    }
    if let OperandKind::Output { empty, alias } = &o.kind {
        write!(f, " empty {empty}")?;
        if let Some(alias) = alias {
            write!(f, " alias {alias}")?;
        }
    }
    if let Some(map) = o.map {
        write!(f, " map ")?;
        region(k, map, 1, f)?;
    }
    writeln!(f)
}

fn block_dim(b: &BlockDim) -> String {
    match b {
        BlockDim::Squeezed => "_".into(),
        BlockDim::Blocked(n) => n.to_string(),
        BlockDim::Element { size, low, high } => format!("element {size} {low} {high}"),
    }
}

fn typed(k: &Kernel, values: &[Value]) -> String {
    values.iter().map(|&v| format!("{v}: {}", k.ty(v))).collect::<Vec<_>>().join(", ")
}
fn plain(values: &[Value]) -> String {
    values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn region(k: &Kernel, id: RegionId, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (r, pad) = (k.region(id), "  ".repeat(depth));
    writeln!(f, "({}) {{", typed(k, &r.params))?;
    for &i in &r.insts {
        let inst = k.inst(i);
        write!(f, "{pad}  ")?;
        if !inst.results.is_empty() {
            write!(f, "{} = ", typed(k, &inst.results))?;
        }
        write!(f, "{}", operation(k, inst))?;
        for &nested in &inst.regions {
            f.write_char(' ')?;
            region(k, nested, depth + 1, f)?;
        }
        writeln!(f)?;
    }
    writeln!(f, "{pad}  yield {}", plain(&r.yields))?;
    write!(f, "{pad}}}")
}

fn view(v: &View) -> String {
    let axis = |a: &crate::ViewAxis| {
        let dynamic = if a.dynamic { "+%" } else { "" };
        format!("{}{dynamic}:{}:{}{}", a.offset, a.size, a.stride, if a.kept { "" } else { "!" })
    };
    let frame = if v.frame == crate::Frame::Block { "block" } else { "array" };
    format!("{frame}[{}]", v.axes.iter().map(axis).collect::<Vec<_>>().join(", "))
}

/// The operation and its arguments, without results and regions.
pub(crate) fn operation(k: &Kernel, inst: &Inst) -> String {
    let args = plain(&inst.args);
    let text = match &inst.op {
        Op::Const(x) => format!("const {x:?}"),
        Op::Scalar(op) => format!("{op} {args}"),
        Op::Structural(op) => format!("{op} {args}"),
        Op::ProgramId(axis) => format!("program_id {axis}"),
        Op::NumPrograms(axis) => format!("num_programs {axis}"),
        Op::Extent(dim) => format!("extent {}", k.dims[dim.index()].name),
        Op::Param(o) => format!("param {o}"),
        Op::Prefetch(o) => format!("prefetch {o} {args}"),
        Op::Load { from, view: v, masked } => format!("load{} {from} {} {args}", masked_text(*masked), view(v)),
        Op::Store { to, view: v, masked } => format!("store{} {to} {} {args}", masked_text(*masked), view(v)),
        Op::Valid { of, view: v, axis } => format!("valid {of} {} axis({axis}) {args}", view(v)),
        Op::If => format!("if {args}"),
        Op::For { reverse } => format!("for{} {args}", if *reverse { " reverse" } else { "" }),
        Op::While => format!("while {args}"),
        Op::DebugPrint(label) => format!("debug_print {label:?} {args}"),
        Op::DebugAssert(message) => format!("debug_assert {message:?} {args}"),
    };
    text.trim_end().to_string()
}

fn masked_text(masked: bool) -> &'static str {
    if masked { " masked" } else { "" }
}
