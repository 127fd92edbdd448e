//! Draws programs: well typed, ending, with floats that are whole numbers small enough to be exact.
use super::expressions::{apply, node, within};
use super::program::{Block, Elem, Expr, Form, Input, Node, Op, Pattern, Place, Program, Stmt, Ty};

/// How many programs there are.
pub(super) const PROGRAMS: usize = 200;
const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// Every float variable stays within.
pub(super) const LIMIT: f64 = 999.0;

/// splitmix64
pub(super) struct Dice(pub(super) u64);
impl Dice {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }
    pub(super) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }
    pub(super) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A variable in scope.
#[derive(Clone)]
pub(super) struct Var {
    pub(super) id: usize,
    pub(super) name: String,
    /// Fields of a tuple or elements of an array; one of a plain variable. A closure has none.
    pub(super) parts: Vec<Ty>,
    pub(super) array: bool,
    pub(super) mutable: bool,
    /// Staged regions around its declaration: inside of further ones a host value can't change.
    staged: usize,
}

/// Draws one program.
pub(super) struct Draw {
    pub(super) dice: Dice,
    pub(super) scope: Vec<Var>,
    declared: usize,
    /// Staged regions around this place.
    staged: usize,
    /// The innermost loop is a host loop with so many staged regions around it.
    host_loop: Option<usize>,
    depth: usize,
    /// Mutably borrowed, or without a value yet.
    pub(super) hidden: Option<usize>,
    /// Statements left.
    budget: usize,
}

pub(super) fn program(seed: u64) -> Program {
    let dice = Dice(seed);
    let mut draw =
        Draw { dice, scope: vec![], declared: 0, staged: 0, host_loop: None, depth: 0, hidden: None, budget: 8 };
    let (wide, alias) = (draw.dice.one_in(2), draw.dice.one_in(2));
    let mut body =
        vec![Stmt::Store { to: Input::Memo, value: node((Elem::Int, Form::Tile), Expr::Input(Input::Ints)) }];
    let starts = [(Elem::Int, Form::Tile), (Elem::Float, Form::Tile), (Elem::Int, Form::Scalar)];
    for ty in starts {
        let value = draw.value(ty, 1);
        body.push(draw.declare(true, false, vec![value]));
    }
    while draw.budget > 0 {
        draw.stmts(&mut body);
    }
    let (ints, floats) = draw.digest();
    let kept = draw.value((Elem::Int, Form::Tile), 2);
    body.push(Stmt::Store { to: Input::Ints, value: ints });
    body.push(Stmt::Store { to: Input::Old, value: kept });
    body.push(Stmt::Store { to: Input::Floats, value: floats });
    Program { wide, alias, body }
}

impl Draw {
    fn declare(&mut self, mutable: bool, array: bool, values: Vec<Node>) -> Stmt {
        let values: Vec<Node> = values.into_iter().map(|x| within(LIMIT, x)).collect();
        let types = values.iter().map(|v| v.ty).collect();
        let (var, name) = self.bind(types, array, mutable);
        Stmt::Let { var, name, mutable, array, values }
    }
    fn bind(&mut self, parts: Vec<Ty>, array: bool, mutable: bool) -> (usize, String) {
        let (id, name) = (self.declared, self.dice.pick(&NAMES).to_string());
        self.declared += 1;
        self.scope.push(Var { id, name: name.clone(), parts, array, mutable, staged: self.staged });
        (id, name)
    }
    /// Statements in a scope of their own, in so many further staged regions, after what `open` declares.
    fn block<R>(&mut self, staged: usize, open: impl FnOnce(&mut Self, &mut Block) -> R) -> (Block, R) {
        let (scope, outer) = (self.scope.len(), self.staged);
        self.staged += staged;
        self.depth += 1;
        let mut block = vec![];
        let result = open(self, &mut block);
        self.depth -= 1;
        self.staged = outer;
        self.scope.truncate(scope);
        (block, result)
    }
    fn fill(&mut self, block: &mut Block) {
        for _ in 0..1 + self.dice.below(3).min(self.budget) {
            self.stmts(block);
        }
    }
    fn in_loop<R>(&mut self, host: bool, f: impl FnOnce(&mut Self) -> R) -> R {
        let outer = std::mem::replace(&mut self.host_loop, host.then_some(self.staged));
        let result = f(self);
        self.host_loop = outer;
        result
    }
    fn condition(&mut self) -> (Node, usize) {
        let form = self.dice.pick(&[Form::Scalar, Form::Scalar, Form::Host]);
        (self.truth(form, 2), usize::from(form == Form::Scalar))
    }
    fn ty(&mut self) -> Ty {
        self.dice.pick(&[
            (Elem::Int, Form::Tile),
            (Elem::Int, Form::Tile),
            (Elem::Float, Form::Tile),
            (Elem::Int, Form::Scalar),
            (Elem::Int, Form::Scalar),
            (Elem::Float, Form::Scalar),
            (Elem::Bool, Form::Scalar),
            (Elem::Int, Form::Host),
            (Elem::Bool, Form::Host),
        ])
    }
    fn staged_ty(&mut self) -> Ty {
        self.dice.pick(&[(Elem::Int, Form::Tile), (Elem::Float, Form::Tile), (Elem::Int, Form::Scalar)])
    }

    /// Appends one statement, with what it needs before it.
    fn stmts(&mut self, out: &mut Block) {
        self.budget = self.budget.saturating_sub(1);
        let nests = self.depth < 3 && self.budget > 1;
        let stmt = match self.dice.below(if nests { 27 } else { 12 }) {
            0 | 1 => {
                let (ty, mutable) = (self.ty(), !self.dice.one_in(3));
                let value = self.value(ty, 2);
                self.declare(mutable, false, vec![value])
            }
            2 => {
                let (array, ty) = (self.dice.one_in(3), self.staged_ty());
                let types = if array { vec![ty; 2] } else { vec![ty, self.staged_ty()] };
                let values = types.into_iter().map(|ty| self.value(ty, 1)).collect();
                self.declare(true, array, values)
            }
            3 | 7 if self.host_loop == Some(self.staged) => {
                Stmt::Leave { cond: self.truth(Form::Host, 1), stop: self.dice.one_in(2) }
            }
            3 if self.depth == 0 && self.dice.one_in(2) => {
                let cond = self.truth(Form::Host, 1);
                let (ints, floats) = self.digest();
                Stmt::Return { cond, ints, floats }
            }
            3 => {
                let ty = self.ty();
                let (var, name) = self.bind(vec![ty], false, false);
                let outer = self.hidden.replace(var);
                let cond = self.truth(Form::Host, 1);
                let sides = [self.value(ty, 1), self.value(ty, 1)].map(|x| within(LIMIT, x));
                self.hidden = outer;
                Stmt::Late { var, name, cond, sides }
            }
            4 => {
                let tile = (Elem::Int, Form::Tile);
                let param = self.declared;
                self.declared += 1;
                let (parts, staged) = (vec![tile], self.staged);
                self.scope.push(Var { id: param, name: "it".into(), parts, array: false, mutable: false, staged });
                let body = self.value(tile, 2);
                self.scope.pop();
                let (var, name) = self.bind(vec![], false, false);
                Stmt::Closure { var, name, param, body }
            }
            5 if self.dice.one_in(2) => {
                let at = [(); 2].map(|()| self.value((Elem::Int, Form::Scalar), 1));
                Stmt::Place { at, value: self.value((Elem::Int, Form::Tile), 2) }
            }
            5 => Stmt::Store { to: Input::Memo, value: self.value((Elem::Int, Form::Tile), 2) },
            6 => match self.bump() {
                Some(bump) => bump,
                None => return,
            },
            7..=11 => match self.assign() {
                Some(assign) => assign,
                None => return,
            },
            12..=14 => {
                let (cond, staged) = self.condition();
                let (then, ()) = self.block(staged, |d, b| d.fill(b));
                let other = (!self.dice.one_in(3)).then(|| self.block(staged, |d, b| d.fill(b)).0);
                Stmt::If { cond, then, other }
            }
            15 | 16 => self.let_if(),
            17..=19 => self.range(),
            20 => {
                let count = 2 + self.dice.below(2) as i32;
                let (body, (var, name)) = self.in_loop(true, |d| {
                    d.block(0, |d, b| {
                        let bound = d.bind(vec![(Elem::Int, Form::Host)], false, false);
                        d.fill(b);
                        bound
                    })
                });
                Stmt::Unroll { var, name, count, body }
            }
            21 => {
                let ty = self.dice.pick(&[(Elem::Int, Form::Tile), (Elem::Int, Form::Scalar), (Elem::Int, Form::Host)]);
                let items = (0..2 + self.dice.below(2)).map(|_| self.value(ty, 1)).collect();
                let (body, (var, name)) = self.in_loop(true, |d| {
                    d.block(0, |d, b| {
                        let bound = d.bind(vec![ty], false, false);
                        d.fill(b);
                        bound
                    })
                });
                Stmt::Each { var, name, items, body }
            }
            22 | 23 => self.while_loop(out),
            _ => self.arms(),
        };
        out.push(stmt);
    }
    fn assign(&mut self) -> Option<Stmt> {
        let mut vars = self.visible();
        vars.retain(|v| v.mutable);
        let mut places = self.places(&vars);
        let fixed = |p: &Place| vars.iter().any(|v| v.id == p.var && v.staged < self.staged);
        places.retain(|(p, ty)| ty.1 != Form::Host || !fixed(p));
        if places.is_empty() {
            return None;
        }
        let (to, ty) = self.dice.pick(&places);
        let (elem, form) = ty;
        if elem == Elem::Int && self.dice.one_in(2) {
            let ops = if form == Form::Host { &[Op::Add][..] } else { &[Op::Add, Op::Sub, Op::Mul] };
            let op = self.dice.pick(ops);
            let value = if form == Form::Host { self.literal(elem, 1) } else { self.beside(elem, form, 2) };
            return Some(Stmt::Assign { to, op: Some(op), value });
        }
        let value = self.value(ty, 2);
        Some(Stmt::Assign { to, op: None, value: within(LIMIT, value) })
    }
    fn bump(&mut self) -> Option<Stmt> {
        let tile = (Elem::Int, Form::Tile);
        let mut vars = self.visible();
        vars.retain(|v| v.mutable);
        let mut places = self.places(&vars);
        places.retain(|p| p.1 == tile);
        if places.is_empty() {
            return None;
        }
        let to = self.dice.pick(&places).0;
        let outer = self.hidden.replace(to.var);
        let by = (0..self.dice.below(3)).map(|_| self.value(tile, 1)).collect();
        self.hidden = outer;
        Some(Stmt::Bump { to, by })
    }
    fn let_if(&mut self) -> Stmt {
        let types: Vec<Ty> = (0..1 + self.dice.below(2)).map(|_| self.staged_ty()).collect();
        let (cond, staged) = self.condition();
        let mut side = || {
            self.block(staged, |d, b| {
                d.fill(b);
                types.iter().map(|&ty| within(LIMIT, d.value(ty, 1))).collect()
            })
        };
        let sides = [side(), side()];
        let mutable = self.dice.one_in(2);
        let (var, name) = self.bind(types, false, mutable);
        Stmt::LetIf { var, name, mutable, cond, sides }
    }
    fn range(&mut self) -> Stmt {
        let int = (Elem::Int, Form::Scalar);
        let lo = self.dice.pick(&[0, 0, 1]);
        let hi = match self.dice.below(3) {
            0 => node(int, Expr::Input(Input::N)),
            1 => apply(int, Op::Rem, vec![self.value(int, 1), self.literal(Elem::Int, 3)]),
            _ => self.literal(Elem::Int, 2),
        };
        let lo = Node { ty: (Elem::Int, Form::Host), bound: 1.0, expr: Expr::Literal(lo) };
        let (step, reverse, inclusive) = (self.dice.pick(&[1, 1, 2]), self.dice.one_in(3), self.dice.one_in(3));
        let (body, (var, name)) = self.in_loop(false, |d| {
            d.block(1, |d, b| {
                let bound = d.bind(vec![int], false, false);
                d.fill(b);
                bound
            })
        });
        Stmt::For { var, name, range: [lo, hi], step, reverse, inclusive, body }
    }
    /// A `match` of a host number or of a run-time number.
    fn arms(&mut self) -> Stmt {
        let (form, staged) = if self.dice.one_in(3) { (Form::Host, 0) } else { (Form::Scalar, 1) };
        let on = self.value((Elem::Int, form), 2);
        let low = self.dice.below(5) as i32 - 2;
        let mut patterns = vec![
            Pattern::Number(low),
            Pattern::Either(low + 1, low + 3),
            Pattern::Within(low, low + 2),
            Pattern::From(low),
        ];
        let mut arms = vec![];
        for _ in 0..1 + self.dice.below(2) {
            let pattern = patterns.swap_remove(self.dice.below(patterns.len()));
            let (body, ()) = self.block(staged, |d, b| d.fill(b));
            arms.push((pattern, body));
        }
        if self.dice.one_in(2) {
            let (body, pattern) = self.block(staged, |d, b| {
                let (var, name) = d.bind(vec![(Elem::Int, form)], false, false);
                let cond = d.truth(form, 2);
                d.fill(b);
                Pattern::Where { var, name, cond }
            });
            let at = self.dice.below(arms.len() + 1);
            arms.insert(at, (pattern, body));
        }
        let (rest, ()) = self.block(staged, |d, b| d.fill(b));
        Stmt::Match { on, arms, rest }
    }
    /// Declares a counter that ends the loop.
    fn while_loop(&mut self, out: &mut Block) -> Stmt {
        let host = self.dice.one_in(3);
        let (form, staged) = if host { (Form::Host, 0) } else { (Form::Scalar, 1) };
        let mut counter = self.declare(true, false, vec![node((Elem::Int, form), Expr::Constant(0))]);
        let Stmt::Let { var, name, .. } = &mut counter else { unreachable!("declared above") };
        let count = node((Elem::Int, form), Expr::Read(Place { var: *var, part: 0, text: name.clone() }));
        let to = Place { var: *var, part: 0, text: name.clone() };
        self.scope.last_mut().expect("declared above").mutable = false;
        out.push(counter);
        let mut cond = apply((Elem::Bool, form), Op::Lt, vec![count, self.literal(Elem::Int, 2)]);
        if !self.dice.one_in(3) {
            let mut sides = vec![cond, self.truth(form, 2)];
            if self.dice.one_in(2) {
                sides.swap(0, 1);
            }
            cond = apply((Elem::Bool, form), Op::And, sides);
        }
        let (body, ()) = self.in_loop(host, |d| {
            d.block(staged, |d, b| {
                let one = Node { ty: (Elem::Int, Form::Host), bound: 1.0, expr: Expr::Literal(1) };
                b.push(Stmt::Assign { to, op: Some(Op::Add), value: one });
                d.fill(b);
            })
        });
        Stmt::While { cond, body }
    }
    /// Every value in sight counts in what the kernel writes.
    fn digest(&mut self) -> (Node, Node) {
        let (int, float) = ((Elem::Int, Form::Tile), (Elem::Float, Form::Tile));
        // Every operand is read, as a kernel's have to be.
        let at = [Input::Program, Input::N].map(|x| node((Elem::Int, Form::Scalar), Expr::Input(x)));
        let far = node(int, Expr::Window(Box::new(at.clone())));
        let mut ints = apply(int, Op::Add, vec![node(int, Expr::Input(Input::Memo)), far]);
        for read in [Expr::Input(Input::Ints), Expr::Input(Input::Near), Expr::Input(Input::Old), Expr::Room(at.into())]
        {
            ints = apply(int, Op::BitXor, vec![ints, node(int, read)]);
        }
        let mut floats = node(float, Expr::Input(Input::Floats));
        for (place, ty) in self.places(&self.visible()) {
            let x = node(ty, Expr::Read(place));
            match ty {
                (Elem::Float, _) => floats = apply(float, Op::Add, vec![floats, x]),
                (_, Form::Host) => {}
                (elem, form) => {
                    let x = if elem == Elem::Bool { apply((Elem::Int, form), Op::Cast, vec![x]) } else { x };
                    let three = Node { ty: (Elem::Int, Form::Host), bound: 3.0, expr: Expr::Literal(3) };
                    let scaled = apply(int, Op::Mul, vec![ints, three]);
                    ints = apply(int, Op::Add, vec![scaled, x]);
                }
            }
        }
        (ints, floats)
    }
}
