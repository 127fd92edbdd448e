//! A random program on plain numbers: what Rust means by it, without tiles, staging or tracing.
//!
//! A value is one number or the eight of a tile; truth values are 0 and 1. f64 holds every `i32`, and every sum,
//! difference and product that programs make of `f32`s.
use super::program::{Block, Elem, Expr, Form, Input, Node, Op, Pattern, Place, Program, Stmt, Ty};
use std::collections::HashMap;
use std::ops::ControlFlow::{self, Break, Continue};

pub(super) type Value = Vec<f64>;
/// Elements of a tile, row by row.
const ELEMENTS: usize = 8;
const COLUMNS: usize = 4;
/// Elements of a row of the block that the table selects, and of the large scratch.
const WIDTH: usize = 6;
const ROOM: usize = 8;

/// What one program of the grid is given, and what it writes.
pub(super) struct State {
    pub(super) ints: Value,
    pub(super) floats: Value,
    /// Every program's block number, and this one's block: four rows of [`WIDTH`].
    pub(super) table: Value,
    pub(super) far: Value,
    pub(super) near: Value,
    pub(super) old: Value,
    pub(super) n: f64,
    pub(super) flag: bool,
    pub(super) wide: bool,
    pub(super) program: f64,
    pub(super) memo: Value,
    /// Four rows of [`ROOM`].
    room: Value,
    /// The outputs' blocks; a block that is not stored stays empty.
    pub(super) stored: [Value; 3],
    vars: Vars,
    /// Parameter and body, with the variables of where it was written.
    closures: HashMap<usize, (usize, Node, Vars)>,
}

/// The parts of each variable.
type Vars = HashMap<usize, Vec<Value>>;

/// What leaves a block early.
enum Exit {
    Break,
    Continue,
    Return,
}

impl State {
    pub(super) fn new(inputs: [Value; 6], n: i32, flag: bool, wide: bool, program: usize) -> State {
        let [ints, floats, table, far, near, old] = inputs;
        let (n, program, stored) = (f64::from(n), program as f64, [vec![], vec![], vec![]]);
        let (memo, vars, closures) = (vec![], HashMap::new(), HashMap::new());
        let room = (0..4 * ROOM).map(|i| (i % ROOM * 3 + i / ROOM) as f64).collect();
        State { ints, floats, table, far, near, old, n, flag, wide, program, memo, room, stored, vars, closures }
    }
    /// The positions of the elements of a window of the large scratch.
    fn room(&mut self, at: &[Node; 2]) -> [usize; ELEMENTS] {
        let [row, column] = at.each_ref().map(|x| self.value(x)[0] as i32);
        let (row, column) = ((row & 3).min(2) as usize, (column & 7).min(4) as usize);
        std::array::from_fn(|i| (row + i / COLUMNS) * ROOM + column + i % COLUMNS)
    }
    pub(super) fn run(&mut self, program: &Program) {
        let _ = self.block(&program.body);
    }

    fn value(&mut self, node: &Node) -> Value {
        let fill = |n: i32| vec![f64::from(n); if node.ty.1 == Form::Tile { ELEMENTS } else { 1 }];
        match &node.expr {
            Expr::Literal(n) | Expr::Constant(n) | Expr::Full(n) => fill(*n),
            Expr::Read(place) => self.vars[&place.var][place.part].clone(),
            Expr::Input(input) => match input {
                Input::Ints => self.ints.clone(),
                Input::Floats => self.floats.clone(),
                Input::Memo => self.memo.clone(),
                Input::Near => self.near.clone(),
                Input::Old => self.old.clone(),
                Input::N => vec![self.n],
                Input::Program => vec![self.program],
                Input::Flag => vec![f64::from(u8::from(self.flag))],
                Input::Wide => vec![f64::from(u8::from(self.wide))],
            },
            Expr::Apply(op, args) => {
                let args: Vec<Value> = args.iter().map(|a| self.value(a)).collect();
                apply(*op, &args, node.ty)
            }
            Expr::Window(at) => {
                let [row, column] = at.each_ref().map(|x| (self.value(x)[0] as i32 & 3).min(2) as usize);
                (0..ELEMENTS).map(|i| self.far[(row + i / COLUMNS) * WIDTH + column + i % COLUMNS]).collect()
            }
            Expr::Cut(scale, [a, b]) => {
                let scale = self.value(scale)[0] as i128;
                let cut = |[row, column]: [usize; 2], i: usize| {
                    element(self.far[(row + i / COLUMNS) * WIDTH + column + i % COLUMNS] as i128 * scale, node.ty)
                };
                (0..ELEMENTS).map(|i| element(cut(*a, i) as i128 + cut(*b, i) as i128, node.ty)).collect()
            }
            Expr::Room(at) => self.room(at).map(|i| self.room[i]).to_vec(),
            Expr::Masked(from, mask, n) => {
                let [x, mask] = [from, mask].map(|x| self.value(x));
                each(&[mask, x], |x| if x[0] != 0.0 { x[1] } else { f64::from(*n) })
            }
            Expr::Entry(at) => {
                let at = (self.value(at)[0] as i32 & 3).min(1);
                vec![self.table[at as usize]]
            }
            Expr::Select(args) => {
                let [c, a, b] = args.each_ref().map(|a| self.value(a));
                each(&[c, a, b], |x| if x[0] != 0.0 { x[1] } else { x[2] })
            }
            Expr::If(args) => {
                let side = if self.truth(&args[0]) { 1 } else { 2 };
                self.value(&args[side])
            }
            Expr::Above(at, n) => {
                let at = self.value(at)[0];
                let above = (0.0..2.0).contains(&at) && self.table[at as usize] > f64::from(*n);
                vec![f64::from(u8::from(above))]
            }
            Expr::Call(closure, x) => {
                let x = self.value(x);
                let (param, body, mut vars) = self.closures[&closure.var].clone();
                vars.insert(param, vec![x]);
                std::mem::swap(&mut self.vars, &mut vars);
                let result = self.value(&body);
                std::mem::swap(&mut self.vars, &mut vars);
                result
            }
        }
    }
    fn truth(&mut self, node: &Node) -> bool {
        self.value(node)[0] != 0.0
    }
    fn takes(&mut self, pattern: &Pattern, x: i32) -> bool {
        match pattern {
            Pattern::Number(n) => x == *n,
            Pattern::Either(a, b) => x == *a || x == *b,
            Pattern::Within(a, b) => (*a..=*b).contains(&x),
            Pattern::From(a) => x >= *a,
            Pattern::Where { var, cond, .. } => {
                self.vars.insert(*var, vec![vec![f64::from(x)]]);
                self.truth(cond)
            }
        }
    }
    fn values(&mut self, nodes: &[Node]) -> Vec<Value> {
        nodes.iter().map(|n| self.value(n)).collect()
    }
    fn assign(&mut self, to: &Place, value: Value) {
        self.vars.get_mut(&to.var).expect("declared before")[to.part] = value;
    }

    fn block(&mut self, block: &Block) -> ControlFlow<Exit> {
        block.iter().try_for_each(|s| self.stmt(s))
    }
    /// One round of a loop: whether another may follow.
    fn round(&mut self, body: &Block) -> ControlFlow<Exit, bool> {
        match self.block(body) {
            Break(Exit::Return) => Break(Exit::Return),
            Break(Exit::Break) => Continue(false),
            Break(Exit::Continue) | Continue(()) => Continue(true),
        }
    }
    fn stmt(&mut self, stmt: &Stmt) -> ControlFlow<Exit> {
        match stmt {
            Stmt::Let { var, values, .. } => {
                let values = self.values(values);
                self.vars.insert(*var, values);
            }
            Stmt::LetIf { var, cond, sides, .. } => {
                let (block, values) = &sides[usize::from(!self.truth(cond))];
                self.block(block)?;
                let values = self.values(values);
                self.vars.insert(*var, values);
            }
            Stmt::Late { var, cond, sides, .. } => {
                let side = usize::from(!self.truth(cond));
                let value = self.value(&sides[side]);
                self.vars.insert(*var, vec![value]);
            }
            Stmt::Closure { var, param, body, .. } => {
                self.closures.insert(*var, (*param, body.clone(), self.vars.clone()));
            }
            Stmt::Assign { to, op, value } => {
                let old = self.vars[&to.var][to.part].clone();
                let ty = (value.ty.0, if old.len() > 1 { Form::Tile } else { Form::Scalar });
                let value = self.value(value);
                self.assign(to, op.map_or(value.clone(), |op| apply(op, &[old, value], ty)));
            }
            Stmt::If { cond, then, other } => match (self.truth(cond), other) {
                (true, _) => self.block(then)?,
                (false, Some(other)) => self.block(other)?,
                (false, None) => {}
            },
            Stmt::For { var, range, step, reverse, inclusive, body, .. } => {
                let [lo, hi] = range.each_ref().map(|x| self.value(x)[0] as i32);
                let mut rounds: Vec<i32> = (lo..hi + i32::from(*inclusive)).step_by(*step as usize).collect();
                if *reverse {
                    rounds.reverse();
                }
                for i in rounds {
                    self.vars.insert(*var, vec![vec![f64::from(i)]]);
                    self.block(body)?;
                }
            }
            Stmt::Match { on, arms, rest } => {
                let x = self.value(on)[0];
                let taken = arms.iter().find(|(pattern, _)| self.takes(pattern, x as i32));
                self.block(taken.map_or(rest, |(_, body)| body))?;
            }
            Stmt::Unroll { var, count, body, .. } => {
                for i in 0..*count {
                    self.vars.insert(*var, vec![vec![f64::from(i)]]);
                    if !self.round(body)? {
                        break;
                    }
                }
            }
            Stmt::Each { var, items, body, .. } => {
                for item in self.values(items) {
                    self.vars.insert(*var, vec![item]);
                    if !self.round(body)? {
                        break;
                    }
                }
            }
            Stmt::While { cond, body } => {
                while self.truth(cond) {
                    if !self.round(body)? {
                        break;
                    }
                }
            }
            Stmt::Leave { cond, stop } => {
                if self.truth(cond) {
                    return Break(if *stop { Exit::Break } else { Exit::Continue });
                }
            }
            Stmt::Return { cond, ints, floats } => {
                if self.truth(cond) {
                    (self.stored[0], self.stored[1]) = (self.value(ints), self.value(floats));
                    return Break(Exit::Return);
                }
            }
            Stmt::Bump { to, by } => {
                let tile = (Elem::Int, Form::Tile);
                let by = if by.is_empty() { vec![vec![1.0]] } else { self.values(by) };
                for x in by {
                    let old = self.vars[&to.var][to.part].clone();
                    self.assign(to, apply(Op::Add, &[old, x], tile));
                }
            }
            Stmt::Place { at, value } => {
                let at = self.room(at);
                let value = self.value(value);
                at.into_iter().zip(value).for_each(|(i, x)| self.room[i] = x);
            }
            Stmt::Store { to, value } => {
                let value = self.value(value);
                match to {
                    Input::Memo => self.memo = value,
                    Input::Old => self.stored[2] = value,
                    Input::Ints => self.stored[0] = value,
                    _ => self.stored[1] = value,
                }
            }
        }
        Continue(())
    }
}

/// Element by element; one number stands beside eight.
fn each(args: &[Value], f: impl Fn(&[f64]) -> f64) -> Value {
    let n = args.iter().map(Vec::len).max().unwrap_or(1);
    (0..n).map(|i| f(&args.iter().map(|a| a[i % a.len()]).collect::<Vec<_>>())).collect()
}

/// Returns a tile by its rows and columns.
fn moved(f: impl Fn(usize, usize) -> f64) -> Value {
    (0..ELEMENTS).map(|i| f(i / COLUMNS, i % COLUMNS)).collect()
}

/// An exact result as an element: integers wrap.
fn element(exact: i128, ty: Ty) -> f64 {
    if ty.0 == Elem::Int { f64::from(exact as i32) } else { exact as f64 }
}

fn apply(op: Op, args: &[Value], ty: Ty) -> Value {
    let exact = |f: fn(i128, i128) -> i128| each(args, |x| element(f(x[0] as i128, x[1] as i128), ty));
    let truth = |f: fn(f64, f64) -> bool| each(args, |x| f64::from(u8::from(f(x[0], x[1]))));
    let sum = |x: &mut dyn Iterator<Item = f64>| element(x.map(|x| x as i128).sum(), ty);
    match op {
        Op::Add => exact(|a, b| a + b),
        Op::Sub => exact(|a, b| a - b),
        Op::Mul => exact(|a, b| a * b),
        Op::Rem => exact(|a, b| a % b),
        Op::BitAnd => exact(|a, b| a & b),
        Op::BitXor => exact(|a, b| a ^ b),
        Op::Min => each(args, |x| x[0].min(x[1])),
        Op::Max => each(args, |x| x[0].max(x[1])),
        Op::Lt => truth(|a, b| a < b),
        Op::Le => truth(|a, b| a <= b),
        Op::Gt => truth(|a, b| a > b),
        Op::Ge => truth(|a, b| a >= b),
        Op::Eq => truth(|a, b| a == b),
        Op::Ne => truth(|a, b| a != b),
        Op::And => truth(|a, b| a != 0.0 && b != 0.0),
        Op::Or => truth(|a, b| a != 0.0 || b != 0.0),
        Op::Neg => each(args, |x| element(-(x[0] as i128), ty)),
        Op::Abs => each(args, |x| element((x[0] as i128).abs(), ty)),
        Op::Not => each(args, |x| 1.0 - x[0]),
        Op::Clamp(n) => each(args, |x| x[0].clamp(f64::from(-n), f64::from(n))),
        Op::Cast => args[0].clone(),
        Op::Broadcast => vec![args[0][0]; ELEMENTS],
        Op::Reverse(axes) => moved(|row, column| {
            args[0][if axes == 1 { row } else { 1 - row } * COLUMNS + if axes == 0 { column } else { 3 - column }]
        }),
        Op::Join(axis, from) => moved(|row, column| {
            let (at, extent, step) = if axis == 0 { (row, 2, COLUMNS) } else { (column, 4, 1) };
            let other = row * COLUMNS + column - at * step;
            if at + from < extent {
                args[0][other + (at + from) * step]
            } else {
                args[1][other + (at + from - extent) * step]
            }
        }),
        Op::Shift(axis, up) => moved(|row, column| {
            let (at, extent, step) = if axis == 0 { (row, 2, COLUMNS) } else { (column, 4, 1) };
            let from = if up { at.wrapping_sub(1) } else { at + 1 };
            if from < extent { args[0][row * COLUMNS + column - at * step + from * step] } else { 5.0 }
        }),
        Op::Turn => moved(|row, column| args[0][2 * column + row]),
        Op::Take(axis) => moved(|row, column| {
            let at = args[1][row * COLUMNS + column] as i32;
            args[0][if axis == 0 { (at & 1) as usize * COLUMNS + column } else { row * COLUMNS + (at & 3) as usize }]
        }),
        Op::Halves([a, b], stride) => moved(|row, column| {
            let both = |at: usize| args[at / COLUMNS][row * COLUMNS + at % COLUMNS] as i128;
            element(both(a + column) - both(b + stride * column), ty)
        }),
        Op::CumSum => {
            (0..ELEMENTS).map(|i| sum(&mut (0..=i / COLUMNS).map(|r| args[0][r * COLUMNS + i % COLUMNS]))).collect()
        }
        Op::Along(axis) => {
            let own = |i: usize| if axis == 0 { i % COLUMNS } else { i / COLUMNS };
            (0..ELEMENTS).map(|i| sum(&mut (0..ELEMENTS).filter(|&j| own(j) == own(i)).map(|j| args[0][j]))).collect()
        }
        Op::Sum => vec![sum(&mut args[0].iter().copied())],
        Op::Greatest => vec![args[0].iter().copied().fold(f64::NEG_INFINITY, f64::max)],
        Op::Any => vec![f64::from(u8::from(args[0].iter().any(|&x| x != 0.0)))],
        Op::All => vec![f64::from(u8::from(args[0].iter().all(|&x| x != 0.0)))],
        Op::Blend => {
            let [flag, a, b] = args else { unreachable!("it takes three") };
            let left = flag[0] != 0.0;
            each(&[a.clone(), b.clone()], |x| {
                let (a, b) = (x[0] as i128, x[1] as i128);
                element(if left { a - b } else { b * 2 }, ty)
            })
        }
        Op::Twice => each(args, |x| element(2 * x[0] as i128, ty)),
    }
}
