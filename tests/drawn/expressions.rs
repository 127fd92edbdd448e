//! Draws expressions of a type.
use super::draw::{Draw, LIMIT, Var};
use super::program::{Elem, Expr, Form, Input, Node, Op, Place, Ty};

const NUMBERS: [Elem; 2] = [Elem::Int, Elem::Float];

pub(super) fn node(ty: Ty, expr: Expr) -> Node {
    Node { ty, bound: LIMIT, expr }
}
pub(super) fn apply(ty: Ty, op: Op, args: Vec<Node>) -> Node {
    let bound = |i: usize| args.get(i).map_or(0.0, |a: &Node| a.bound);
    let bound = match op {
        Op::Add | Op::Sub => bound(0) + bound(1),
        Op::Mul => bound(0) * bound(1),
        Op::Clamp(n) => f64::from(n),
        Op::Twice | Op::CumSum | Op::Along(0) => 2.0 * bound(0),
        Op::Along(_) => 4.0 * bound(0),
        Op::Sum => 8.0 * bound(0),
        Op::Min | Op::Max => bound(0).max(bound(1)),
        Op::Join(..) => bound(0).max(bound(1)),
        Op::Shift(..) => bound(0).max(5.0),
        Op::Halves(..) => 2.0 * bound(0).max(bound(1)),
        _ => bound(0),
    };
    Node { ty, bound, expr: Expr::Apply(op, args) }
}
/// Clamped if it is a float that may be larger.
pub(super) fn within(limit: f64, x: Node) -> Node {
    if x.ty.0 == Elem::Float && x.bound > limit { apply(x.ty, Op::Clamp(limit as i32), vec![x]) } else { x }
}

impl Draw {
    pub(super) fn literal(&mut self, elem: Elem, least: i32) -> Node {
        let n = least + self.dice.below((6 - least) as usize) as i32;
        Node { ty: (elem, Form::Host), bound: 9.0, expr: Expr::Literal(n) }
    }
    /// Variables that their names mean here.
    pub(super) fn visible(&self) -> Vec<Var> {
        let hides = |i: usize, v: &Var| self.scope[i + 1..].iter().any(|w| w.name == v.name);
        let seen = self.scope.iter().enumerate().filter(|(i, v)| !hides(*i, v) && self.hidden != Some(v.id));
        seen.map(|(_, v)| v.clone()).collect()
    }
    pub(super) fn places(&self, vars: &[Var]) -> Vec<(Place, Ty)> {
        let mut all = vec![];
        for v in vars {
            for (part, &ty) in v.parts.iter().enumerate() {
                let text = match (v.array, v.parts.len()) {
                    (true, _) => format!("{}[{part}]", v.name),
                    (false, 1) => v.name.clone(),
                    (false, _) => format!("{}.{part}", v.name),
                };
                all.push((Place { var: v.id, part, text }, ty));
            }
        }
        all
    }
    pub(super) fn read(&mut self, ty: Ty) -> Option<Node> {
        let mut places = self.places(&self.visible());
        places.retain(|p| p.1 == ty);
        (!places.is_empty()).then(|| node(ty, Expr::Read(self.dice.pick(&places).0)))
    }
    fn leaf(&mut self, ty: Ty) -> Node {
        if !self.dice.one_in(6)
            && let Some(read) = self.read(ty)
        {
            return read;
        }
        let small = self.dice.below(9) as i32 - 2;
        let expr = match ty {
            (Elem::Int, Form::Tile) => {
                let inputs = [Input::Ints, Input::Memo, Input::Near, Input::Old].map(Expr::Input);
                if self.dice.one_in(4) { Expr::Full(small) } else { self.dice.pick(&inputs) }
            }
            (Elem::Float, Form::Tile) => self.dice.pick(&[Expr::Input(Input::Floats), Expr::Full(small)]),
            (Elem::Int, Form::Scalar) => {
                self.dice.pick(&[Expr::Input(Input::N), Expr::Input(Input::Program), Expr::Constant(small)])
            }
            (Elem::Float, Form::Scalar) => Expr::Constant(small),
            (Elem::Bool, Form::Host) => self.dice.pick(&[Expr::Input(Input::Flag), Expr::Input(Input::Wide)]),
            (Elem::Bool, form) => return self.compare(form, 0),
            (_, Form::Host) => Expr::Constant(small.abs()),
        };
        node(ty, expr)
    }
    /// What may stand beside a value of this form.
    pub(super) fn beside(&mut self, elem: Elem, form: Form, depth: usize) -> Node {
        let form = match (form, self.dice.below(3)) {
            (Form::Tile, 0) => Form::Tile,
            (Form::Tile | Form::Scalar, 1) => Form::Scalar,
            _ => Form::Host,
        };
        match form {
            Form::Host if elem == Elem::Int => {
                self.read((elem, form)).filter(|_| self.dice.one_in(2)).unwrap_or_else(|| self.literal(elem, 0))
            }
            Form::Host => self.literal(elem, 0),
            _ => self.value((elem, form), depth),
        }
    }
    /// Two operands of which one has the form; a host value never stands beside a host value.
    fn pair(&mut self, elem: Elem, form: Form, depth: usize) -> Vec<Node> {
        let mut pair = vec![self.value((elem, form), depth), self.beside(elem, form, depth)];
        if self.dice.one_in(2) {
            pair.swap(0, 1);
        }
        pair
    }
    fn compare(&mut self, form: Form, depth: usize) -> Node {
        let op = self.dice.pick(&[Op::Lt, Op::Le, Op::Gt, Op::Ge, Op::Eq, Op::Ne]);
        let pair = if form == Form::Host {
            let Some(read) = self.read((Elem::Int, Form::Host)) else { return self.leaf((Elem::Bool, Form::Host)) };
            vec![read, self.literal(Elem::Int, 0)]
        } else {
            let elem = self.dice.pick(&NUMBERS);
            self.pair(elem, form, depth)
        };
        apply((Elem::Bool, form), op, pair)
    }
    /// A truth value.
    pub(super) fn truth(&mut self, form: Form, depth: usize) -> Node {
        let ty = (Elem::Bool, form);
        match self.dice.below(if depth == 0 { 2 } else { 5 }) {
            0 if form == Form::Scalar && self.dice.one_in(3) => self.above(),
            0 => self.leaf(ty),
            1 => self.compare(form, depth.saturating_sub(1)),
            2 => apply(ty, Op::Not, vec![self.truth(form, depth - 1)]),
            3 if form == Form::Scalar => {
                let op = self.dice.pick(&[Op::Any, Op::All]);
                apply(ty, op, vec![self.truth(Form::Tile, depth - 1)])
            }
            _ => {
                let other = match (form, self.dice.below(3)) {
                    (_, 0) => Form::Host,
                    (Form::Tile, 1) => Form::Scalar,
                    _ => form,
                };
                let mut sides = vec![self.truth(form, depth - 1), self.truth(other, depth - 1)];
                // A host value on the left that decides alone has no shape of a tile.
                let shaped = form == Form::Tile && other == Form::Host;
                if !shaped && self.dice.one_in(2) {
                    sides.swap(0, 1);
                }
                let op = self.dice.pick(&[Op::And, Op::Or]);
                apply(ty, op, sides)
            }
        }
    }
    /// An entry of the table that may not exist, after a test that it does.
    fn above(&mut self) -> Node {
        let (at, n) = (self.leaf((Elem::Int, Form::Scalar)), self.dice.below(2) as i32 - 1);
        node((Elem::Bool, Form::Scalar), Expr::Above(Box::new(at), n))
    }
    /// A value of the type, never a bare literal of a tile or scalar.
    pub(super) fn value(&mut self, ty: Ty, depth: usize) -> Node {
        if ty.0 == Elem::Bool {
            return self.truth(ty.1, depth);
        }
        if ty.1 == Form::Host || depth == 0 || self.dice.one_in(4) {
            return self.leaf(ty);
        }
        let (elem, form) = ty;
        let depth = depth - 1;
        match self.dice.below(if form == Form::Tile { 13 } else { 10 }) {
            10..=12 => self.structural(ty, depth),
            9 if elem == Elem::Int => self.loaded(form, depth),
            0..=2 => self.arithmetic(ty, depth),
            3 => {
                let mut ops = vec![Op::Neg, Op::Abs, Op::Clamp(99), Op::Twice];
                if form == Form::Tile {
                    ops.extend([Op::CumSum, Op::Along(0), Op::Along(1)]);
                }
                let (op, x) = (self.dice.pick(&ops), self.value(ty, depth));
                apply(ty, op, vec![within(LIMIT, x)])
            }
            4 => {
                let mask = if form == Form::Tile && self.dice.one_in(2) { Form::Tile } else { Form::Scalar };
                let args = [self.truth(mask, depth), self.value(ty, depth), self.value(ty, depth)];
                let bound = args[1].bound.max(args[2].bound);
                Node { ty, bound, expr: Expr::Select(Box::new(args)) }
            }
            5 => {
                let cond = self.dice.pick(&[Form::Host, Form::Scalar]);
                let args = [self.truth(cond, depth), self.value(ty, depth), self.value(ty, depth)];
                let bound = args[1].bound.max(args[2].bound);
                Node { ty, bound, expr: Expr::If(Box::new(args)) }
            }
            6 => {
                let from = self.dice.pick(&[Elem::Int, Elem::Float, Elem::Bool]);
                let x = self.value((from, form), depth);
                match from {
                    Elem::Int if elem == Elem::Float => {
                        apply(ty, Op::Cast, vec![apply((from, form), Op::Clamp(99), vec![x])])
                    }
                    Elem::Bool => apply(ty, Op::Cast, vec![x]),
                    _ if from == elem => x,
                    _ => apply(ty, Op::Cast, vec![x]),
                }
            }
            7 if form == Form::Scalar => {
                let (op, x) = (self.dice.pick(&[Op::Sum, Op::Greatest]), self.value((elem, Form::Tile), depth));
                apply(ty, op, vec![within(LIMIT, x)])
            }
            7 => apply(ty, Op::Broadcast, vec![self.value((elem, Form::Scalar), depth)]),
            _ if ty == (Elem::Int, Form::Tile) => {
                let mut closures = self.visible();
                closures.retain(|v| v.parts.is_empty());
                if closures.is_empty() {
                    let args = vec![self.truth(Form::Host, depth), self.value(ty, depth), self.value(ty, depth)];
                    return apply(ty, Op::Blend, args);
                }
                let f = self.dice.pick(&closures);
                let f = Place { var: f.id, part: 0, text: f.name };
                node(ty, Expr::Call(f, Box::new(self.value(ty, depth))))
            }
            _ => self.arithmetic(ty, depth),
        }
    }
    /// Operations that move elements of computed tiles.
    fn structural(&mut self, ty: Ty, depth: usize) -> Node {
        let axis = self.dice.below(2);
        let op = match self.dice.below(7) {
            0 => Op::Reverse(self.dice.below(3)),
            1 => Op::Join(axis, 1 + self.dice.below([1, 3][axis])),
            2 => Op::Shift(axis, self.dice.one_in(2)),
            3 => Op::Turn,
            4 => Op::Take(axis),
            _ => {
                let (stride, first) = (1 + self.dice.below(2), self.dice.pick(&[0, 0, 1, 4]));
                Op::Halves([first, self.dice.below([5, 2][stride - 1])], stride)
            }
        };
        let mut args = vec![within(LIMIT, self.value(ty, depth))];
        match op {
            Op::Join(..) | Op::Halves(..) => args.push(within(LIMIT, self.value(ty, depth))),
            Op::Take(_) => args.push(self.value((Elem::Int, Form::Tile), depth)),
            _ => {}
        }
        apply(ty, op, args)
    }
    /// What the table holds, or a load that it or a run-time number directs.
    fn loaded(&mut self, form: Form, depth: usize) -> Node {
        let int = (Elem::Int, Form::Scalar);
        if form == Form::Scalar {
            return node(int, Expr::Entry(Box::new(self.value(int, depth))));
        }
        let tile = (Elem::Int, Form::Tile);
        let at = [self.value(int, depth), self.value(int, depth)];
        match self.dice.below(6) {
            0 => return node(tile, Expr::Room(Box::new(at))),
            1 => {
                let mut corner = || [self.dice.below(3), self.dice.below(3)];
                let corners = [corner(), corner()];
                let first = if self.dice.one_in(2) { [0, 0] } else { corners[0] };
                let [scale, _] = at;
                return node(tile, Expr::Cut(Box::new(scale), [first, corners[1]]));
            }
            _ => {}
        }
        let mut from = node(tile, Expr::Window(Box::new(at)));
        if self.dice.one_in(2) {
            return from;
        }
        if self.dice.one_in(2) {
            from = node(tile, Expr::Input(Input::Ints));
        }
        let (mask, other) = (self.truth(Form::Tile, depth), self.dice.below(9) as i32 - 4);
        node(tile, Expr::Masked(Box::new(from), Box::new(mask), other))
    }
    fn arithmetic(&mut self, ty: Ty, depth: usize) -> Node {
        let (elem, form) = ty;
        let mut ops = vec![Op::Add, Op::Sub, Op::Mul, Op::Min, Op::Max];
        if elem == Elem::Int {
            ops.extend([Op::BitAnd, Op::BitXor, Op::Rem]);
        }
        let op = self.dice.pick(&ops);
        let args = match op {
            Op::Rem => vec![self.value(ty, depth), self.literal(elem, 2)],
            Op::Min | Op::Max => vec![self.value(ty, depth), self.beside(elem, form, depth)],
            _ => self.pair(elem, form, depth),
        };
        apply(ty, op, args.into_iter().map(|x| within(LIMIT, x)).collect())
    }
}
