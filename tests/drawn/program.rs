//! A random program as a tree.

/// What elements are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Elem {
    Int,
    Float,
    Bool,
}
/// What holds them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    Tile,
    Scalar,
    Host,
}
pub(super) type Ty = (Elem, Form);

/// A variable, or a field of a tuple or an element of an array.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Unique in the program: shadowed names are different variables.
    pub(super) var: usize,
    pub(super) part: usize,
    pub(super) text: String,
}

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) ty: Ty,
    /// Greatest magnitude a float can have.
    pub(super) bound: f64,
    pub(super) expr: Expr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Add,
    Sub,
    Mul,
    Rem,
    BitAnd,
    BitXor,
    Min,
    Max,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    And,
    Or,
    Neg,
    Not,
    Abs,
    Clamp(i32),
    Cast,
    Broadcast,
    /// Along axis 0, 1 or both.
    Reverse(usize),
    CumSum,
    /// The first operand from a column on, then the first columns of the second; or the same with rows.
    Join(usize, usize),
    /// Shifted by one position along an axis, up or down; a number fills the gap.
    Shift(usize, bool),
    /// Other rows of the same elements, transposed.
    Turn,
    /// Elements of the first operand along an axis, at the positions that the second gives.
    Take(usize),
    /// Two slices of one tile computed from both operands, the second slice possibly of every other column.
    Halves([usize; 2], usize),
    /// Over an axis, stretched again.
    Along(usize),
    Sum,
    Greatest,
    Any,
    All,
    /// A helper function that decides by its first argument.
    Blend,
    /// A generic helper function: `x + x`.
    Twice,
}

/// What the kernel is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Input {
    Ints,
    Floats,
    Memo,
    /// The first array again, in blocks counted from its end.
    Near,
    /// The input that the scattered output aliases.
    Old,
    N,
    Program,
    Flag,
    /// The const generic is above 1.
    Wide,
}

#[derive(Clone, Debug)]
pub(super) enum Expr {
    Literal(i32),
    /// A literal as a run-time scalar, or a host number of known type.
    Constant(i32),
    Full(i32),
    Read(Place),
    Input(Input),
    Apply(Op, Vec<Node>),
    /// A window of the block that the table chose, from two run-time positions.
    Window(Box<[Node; 2]>),
    /// Two slices of the product of a scalar and the block that the table selects.
    Cut(Box<Node>, [[usize; 2]; 2]),
    /// A window of the large scratch, at run-time positions.
    Room(Box<[Node; 2]>),
    /// Where the mask holds; a number elsewhere.
    Masked(Box<Node>, Box<Node>, i32),
    /// The entry of the table at a run-time position.
    Entry(Box<Node>),
    Select(Box<[Node; 3]>),
    If(Box<[Node; 3]>),
    /// A closure of one parameter.
    Call(Place, Box<Node>),
    /// True if the table has an entry at a run-time position and it is above a number. Faults if both sides are
    /// evaluated.
    Above(Box<Node>, i32),
}

/// The pattern of an arm of a `match`.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    Number(i32),
    Either(i32, i32),
    Within(i32, i32),
    From(i32),
    /// A name, with a guard.
    Where {
        var: usize,
        name: String,
        cond: Node,
    },
}
pub(super) type Block = Vec<Stmt>;

#[derive(Clone, Debug)]
pub(super) enum Stmt {
    /// One value, or a tuple or array of several.
    Let {
        var: usize,
        name: String,
        mutable: bool,
        array: bool,
        values: Vec<Node>,
    },
    LetIf {
        var: usize,
        name: String,
        mutable: bool,
        cond: Node,
        sides: [(Block, Vec<Node>); 2],
    },
    /// Declared first, assigned on both sides of a host condition.
    Late {
        var: usize,
        name: String,
        cond: Node,
        sides: [Node; 2],
    },
    Closure {
        var: usize,
        name: String,
        param: usize,
        body: Node,
    },
    Assign {
        to: Place,
        op: Option<Op>,
        value: Node,
    },
    If {
        cond: Node,
        then: Block,
        other: Option<Block>,
    },
    For {
        var: usize,
        name: String,
        range: [Node; 2],
        step: i32,
        reverse: bool,
        inclusive: bool,
        body: Block,
    },
    Match {
        on: Node,
        arms: Vec<(Pattern, Block)>,
        rest: Block,
    },
    Unroll {
        var: usize,
        name: String,
        count: i32,
        body: Block,
    },
    Each {
        var: usize,
        name: String,
        items: Vec<Node>,
        body: Block,
    },
    While {
        cond: Node,
        body: Block,
    },
    Leave {
        cond: Node,
        stop: bool,
    },
    Return {
        cond: Node,
        ints: Node,
        floats: Node,
    },
    /// Through `&mut`, or through a closure that changes what it captures.
    Bump {
        to: Place,
        by: Vec<Node>,
    },
    /// Into a window of the large scratch.
    Place {
        at: [Node; 2],
        value: Node,
    },
    /// Into scratch, or an output.
    Store {
        to: Input,
        value: Node,
    },
}

/// A kernel's body.
pub(super) struct Program {
    pub(super) wide: bool,
    /// True if the output of floats aliases its input.
    pub(super) alias: bool,
    pub(super) body: Block,
}
