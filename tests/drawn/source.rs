//! A random program as the Rust source of a kernel.
use super::program::{Block, Elem, Expr, Form, Input, Node, Op, Pattern, Program, Stmt};
use std::fmt::Write;

impl Pattern {
    fn text(&self) -> String {
        match self {
            Pattern::Number(n) => n.to_string(),
            Pattern::Either(a, b) => format!("{a} | {b}"),
            Pattern::Within(a, b) => format!("{a}..={b}"),
            Pattern::From(a) => format!("{a}.."),
            Pattern::Where { name, cond, .. } => format!("{name} if {}", cond.text()),
        }
    }
}

impl Node {
    fn number(&self, n: i32) -> String {
        if self.ty.0 == Elem::Float { format!("{n}.0") } else { n.to_string() }
    }
    /// Text and precedence.
    fn parts(&self) -> (String, u8) {
        const ATOM: u8 = 9;
        match &self.expr {
            Expr::Literal(n) => (self.number(*n), if *n < 0 { 8 } else { ATOM }),
            // A literal without a suffix can't be the left operand of an operator or comparison.
            Expr::Constant(n) if self.ty.1 == Form::Host => (format!("{n}i32"), ATOM),
            Expr::Constant(n) => (format!("scalar({n}{})", if self.ty.0 == Elem::Int { "i32" } else { ".0f32" }), ATOM),
            Expr::Full(n) => {
                let element = if self.ty.0 == Elem::Int { "i32" } else { "f32" };
                (format!("full::<{element}>([2, 4], {})", self.number(*n)), ATOM)
            }
            Expr::Read(place) => (place.text.clone(), ATOM),
            Expr::Input(input) => (
                match input {
                    Input::Ints => "p.load()",
                    Input::Floats => "q.load()",
                    Input::Memo => "memo.load()",
                    Input::Near => "near.load()",
                    Input::Old => "old.load()",
                    Input::N => "n",
                    Input::Program => "program_id(0)",
                    Input::Flag => "flag",
                    Input::Wide => return ("K > 1".into(), 2),
                }
                .into(),
                ATOM,
            ),
            Expr::Cut(scale, at) => (format!("cut(far.load() * {}, {:?}, {:?})", scale.tight(8), at[0], at[1]), ATOM),
            Expr::Room(at) => (format!("{}.load()", room(at)), ATOM),
            Expr::Window(_) => (format!("{}.load()", self.view()), ATOM),
            Expr::Masked(from, mask, n) => (format!("{}.load_masked({}, {n})", from.view(), mask.text()), ATOM),
            Expr::Entry(at) => (format!("table.at(minimum({} & 3, 1))", at.tight(5)), ATOM),
            Expr::Select(args) => (format!("select({}, {}, {})", args[0].text(), args[1].text(), args[2].text()), ATOM),
            Expr::If(args) => {
                (format!("(if {} {{ {} }} else {{ {} }})", args[0].text(), args[1].text(), args[2].text()), ATOM)
            }
            Expr::Call(f, x) => (format!("{}({})", f.text, x.text()), ATOM),
            Expr::Above(at, n) => {
                let at = at.tight(3);
                (format!("({at} >= 0 && {at} < 2 && table.at({at}) > {n})"), ATOM)
            }
            Expr::Apply(op, args) => self.apply(*op, args),
        }
    }
    /// The view that a load reads.
    fn view(&self) -> String {
        match &self.expr {
            Expr::Window(at) => {
                let start = |i: usize| format!("ds(minimum({} & 3, 2), {})", at[i].tight(5), [2, 4][i]);
                format!("far.at(({}, {}))", start(0), start(1))
            }
            _ => "p".into(),
        }
    }
    fn apply(&self, op: Op, args: &[Node]) -> (String, u8) {
        let infix = |sign: &str, level: u8| {
            // Comparisons do not associate; the other operators associate to the left.
            let (left, right) = (args[0].tight(if level == 2 { 3 } else { level }), args[1].tight(level + 1));
            (format!("{left} {sign} {right}"), level)
        };
        let method = |call: String| (format!("{}.{call}", args[0].tight(9)), 9);
        match op {
            Op::Or => infix("||", 0),
            Op::And => infix("&&", 1),
            Op::Lt => infix("<", 2),
            Op::Le => infix("<=", 2),
            Op::Gt => infix(">", 2),
            Op::Ge => infix(">=", 2),
            Op::Eq => infix("==", 2),
            Op::Ne => infix("!=", 2),
            Op::BitXor => infix("^", 4),
            Op::BitAnd => infix("&", 5),
            Op::Add => infix("+", 6),
            Op::Sub => infix("-", 6),
            Op::Mul => infix("*", 7),
            Op::Rem => infix("%", 7),
            Op::Neg => (format!("-{}", args[0].tight(9)), 8),
            Op::Not => (format!("!{}", args[0].tight(9)), 8),
            Op::Min => method(format!("minimum({})", args[1].text())),
            Op::Max => method(format!("maximum({})", args[1].text())),
            Op::Abs => method("abs()".into()),
            Op::Clamp(n) => method(format!("clamp({}, {})", self.number(-n), self.number(n))),
            Op::Cast => method(format!("cast::<{}>()", if self.ty.0 == Elem::Int { "i32" } else { "f32" })),
            Op::Broadcast => method("broadcast([2, 4])".into()),
            Op::Reverse(axes) => method(format!("reverse({})", ["[0]", "[1]", "[0, 1]"][axes])),
            Op::Join(axis, from) => {
                let at = |n: usize, other: usize| if axis == 0 { [n, other] } else { [other, n] };
                let (rest, cut) = (at([2, 4][axis] - from, [4, 2][axis]), at(from, [4, 2][axis]));
                let first = format!("{}.slice({:?}, {rest:?})", args[0].tight(9), at(from, 0));
                (format!("concat([{first}, {}.slice([0, 0], {cut:?})], {axis})", args[1].tight(9)), 9)
            }
            Op::Shift(axis, up) => {
                let one = ["[1, 0]", "[0, 1]"][axis];
                let (start, low, high) = if up { ("[0, 0]", one, "[0, 0]") } else { (one, "[0, 0]", one) };
                method(format!("slice({start}, {}).pad({low}, {high}, {})", ["[1, 4]", "[2, 3]"][axis], self.number(5)))
            }
            Op::Turn => method("reshape([4, 2]).t()".into()),
            Op::Take(axis) => method(format!("take_along_axis({} & {}, {axis})", args[1].tight(5), [1, 3][axis])),
            Op::Halves([a, b], stride) => {
                (format!("halves(concat([{}, {}], 1), {a}, {b}, {stride})", args[0].text(), args[1].text()), 9)
            }
            Op::CumSum => method("cumsum(0)".into()),
            Op::Along(axis) => method(format!("sum({axis}).broadcast([2, 4])")),
            Op::Sum => method("sum(..).item()".into()),
            Op::Greatest => method("max(..).item()".into()),
            Op::Any => method("any(..).item()".into()),
            Op::All => method("all(..).item()".into()),
            Op::Blend => (format!("blend({}, {}, {})", args[0].text(), args[1].text(), args[2].text()), 9),
            Op::Twice => (format!("twice({})", args[0].text()), 9),
        }
    }
    fn text(&self) -> String {
        let text = self.parts().0;
        // As a statement an `if` has no parentheses.
        match &self.expr {
            Expr::If(_) => text[1..text.len() - 1].to_string(),
            _ => text,
        }
    }
    fn tight(&self, level: u8) -> String {
        let (text, own) = self.parts();
        if own < level { format!("({text})") } else { text }
    }
}

/// A window of the large scratch.
fn room(at: &[Node; 2]) -> String {
    let [row, column] = at.each_ref().map(|x| x.tight(5));
    format!("room.at((ds(minimum({row} & 3, 2), 2), ds(minimum({column} & 7, 4), 4)))")
}

/// `x`, `(x, y)` or `[x, y]`
fn group(values: &[Node], array: bool) -> String {
    let texts: Vec<String> = values.iter().map(Node::text).collect();
    match (&texts[..], array) {
        ([one], false) => one.clone(),
        (_, false) => format!("({})", texts.join(", ")),
        (_, true) => format!("[{}]", texts.join(", ")),
    }
}

struct Printer {
    out: String,
    depth: usize,
}

impl Printer {
    fn line(&mut self, text: &str) {
        writeln!(self.out, "{}{text}", "    ".repeat(self.depth)).expect("a string takes everything");
    }
    fn block(&mut self, head: &str, body: &Block, value: Option<String>) {
        self.line(&format!("{head} {{"));
        self.depth += 1;
        self.stmts(body);
        value.into_iter().for_each(|v| self.line(&v));
        self.depth -= 1;
    }
    fn stmts(&mut self, body: &Block) {
        body.iter().for_each(|s| self.stmt(s));
    }
    fn stmt(&mut self, stmt: &Stmt) {
        let binding = |mutable: &bool, name: &str| format!("{}{name}", if *mutable { "mut " } else { "" });
        match stmt {
            Stmt::Let { name, mutable, array, values, .. } => {
                self.line(&format!("let {} = {};", binding(mutable, name), group(values, *array)));
            }
            Stmt::LetIf { name, mutable, cond, sides: [(then, x), (other, y)], .. } => {
                let head = format!("let {} = if {}", binding(mutable, name), cond.text());
                self.block(&head, then, Some(group(x, false)));
                self.block("} else", other, Some(group(y, false)));
                self.line("};");
            }
            Stmt::Late { name, cond, sides: [x, y], .. } => {
                self.line(&format!("let {name};"));
                let (cond, x, y) = (cond.text(), x.text(), y.text());
                self.line(&format!("if {cond} {{ {name} = {x}; }} else {{ {name} = {y}; }}"));
            }
            Stmt::Closure { name, body, .. } => {
                self.line(&format!("let {name} = move |it: Tile<i32>| {};", body.text()));
            }
            Stmt::Assign { to, op, value } => {
                let sign = match op {
                    None => "",
                    Some(Op::Add) => "+",
                    Some(Op::Sub) => "-",
                    Some(Op::Mul) => "*",
                    Some(op) => unreachable!("{op:?} is not drawn here"),
                };
                self.line(&format!("{} {sign}= {};", to.text, value.text()));
            }
            Stmt::If { cond, then, other } => {
                self.block(&format!("if {}", cond.text()), then, None);
                if let Some(other) = other {
                    self.block("} else", other, None);
                }
                self.line("}");
            }
            Stmt::For { name, range: [lo, hi], step, reverse, inclusive, body, .. } => {
                let dots = if *inclusive { "..=" } else { ".." };
                let mut range = format!("{}{dots}{}", lo.tight(3), hi.tight(3));
                if *step > 1 || *reverse {
                    range = format!("({range})");
                }
                if *step > 1 {
                    write!(range, ".step_by({step})").expect("a string takes everything");
                }
                if *reverse {
                    range.push_str(".rev()");
                }
                self.block(&format!("for {name} in {range}"), body, None);
                self.line("}");
            }
            Stmt::Match { on, arms, rest } => {
                self.line(&format!("match {} {{", on.text()));
                let others = arms.iter().map(|(pattern, body)| (pattern.text(), body));
                for (pattern, body) in others.chain([("_".to_string(), rest)]) {
                    self.block(&format!("{pattern} =>"), body, None);
                    self.line("}");
                }
                self.line("}");
            }
            Stmt::Unroll { name, count, body, .. } => {
                self.line("#[unroll]");
                self.block(&format!("for {name} in 0i32..{count}"), body, None);
                self.line("}");
            }
            Stmt::Each { name, items, body, .. } => {
                self.block(&format!("for {name} in {}", group(items, true)), body, None);
                self.line("}");
            }
            Stmt::While { cond, body } => {
                self.block(&format!("while {}", cond.text()), body, None);
                self.line("}");
            }
            Stmt::Leave { cond, stop } => {
                self.line(&format!("if {} {{ {}; }}", cond.text(), if *stop { "break" } else { "continue" }));
            }
            Stmt::Return { cond, ints, floats } => {
                let stores = format!("ints.store({}); floats.store({});", ints.text(), floats.text());
                self.line(&format!("if {} {{ {stores} return; }}", cond.text()));
            }
            Stmt::Bump { to, by } if by.is_empty() => self.line(&format!("bump(&mut {});", to.text)),
            Stmt::Bump { to, by } => {
                self.line(&format!("let mut add = |by: Tile<i32>| {} += by;", to.text));
                by.iter().for_each(|x| self.line(&format!("add({});", x.text())));
            }
            Stmt::Place { at, value } => self.line(&format!("{}.store({});", room(at), value.text())),
            Stmt::Store { to, value } => {
                let to = match to {
                    Input::Memo => "memo",
                    Input::Old => "kept",
                    Input::Ints => "ints",
                    _ => "floats",
                };
                self.line(&format!("{to}.store({});", value.text()));
            }
        }
    }
}

/// `ALIAS` is replaced by the alias of the output of floats.
const SIGNATURE: &str = "    #[block([N, W] => [2, 4], |i| (i, 0), fill = 7)] p: In<i32>, #[block([N, W] => [2, 4], |i| (i, 0), fill = -2.0)] q: In<f32>,
    #[prefetch([T])] table: Prefetch<i32>, #[block([L, V] => [4, 6], |i| (table.at(i), 0), fill = -5)] far: In<i32>,
    #[block([N, W] => [2, 4], |i| (cdiv(N, 2) - 1 - i, 0), fill = 6)] near: In<i32>,
    #[prefetch([T])] slots: Prefetch<i32>, #[block([M, W] => [2, 4], |i| (slots.at(i), 0), fill = 3)] old: In<i32>,
    #[block([N, W] => [2, 4], |i| (i, 0))] ints: Out<i32>, #[block([N, W] => [2, 4], |i| (i, 0)ALIAS)] floats: Out<f32>,
    #[block([M, W] => [2, 4], |i| (slots.at(i), 0), alias = old)] kept: Out<i32>,
    #[scratch([2, 4])] memo: Scratch<i32>, #[scratch([4, 8])] room: Scratch<i32>, n: i32, #[fixed] flag: bool,
";

impl Program {
    /// Returns the kernel of this number.
    pub(super) fn source(&self, number: usize) -> String {
        let mut printer = Printer { out: String::new(), depth: 1 };
        printer.stmts(&self.body);
        let body = printer.out;
        let signature = SIGNATURE.replace("ALIAS", if self.alias { ", alias = q" } else { "" });
        let room = "    room.store(iota::<i32>([4, 8], 1) * 3 + iota::<i32>([4, 8], 0));\n";
        format!("#[kernel(grid = (cdiv(N, 2)))]\nfn k{number}<const K: usize>(\n{signature}) {{\n{room}{body}}}\n")
    }
}
