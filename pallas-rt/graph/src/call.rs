//! Operations that call other graphs: loops and branches. They alone have several results.
//!
//! The operands of a called graph are its parameters, so it mentions no variable of its caller.
use crate::graph::Graph;
use pallas_ir::{At, DType, Diag, Type};

/// A call of other graphs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// A loop over the first axis of arrays.
    Scan(Scan),
    /// A loop while a condition holds.
    While(While),
    /// One of several graphs.
    Case(Case),
}

/// `lax.scan`: calls `body` once for each step. Values from step to step are *carried*; of arrays it reads and makes
/// an element of the first axis in each step.
///
/// ```text
/// operands     captured.., carried.., arrays..
/// body         (captured.., carried.., an element of each array..) -> (carried.., an element of each stack..)
/// results      carried.., stacks..
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Scan {
    /// One step.
    pub body: Graph,
    /// Operands that are the same in each step.
    pub captured: usize,
    /// Operands that a step replaces.
    pub carried: usize,
    /// Steps.
    pub length: usize,
    /// True if the last element comes first.
    pub reverse: bool,
}

/// `lax.while_loop`: calls `body` as long as `condition` is true.
///
/// ```text
/// operands     captured by the condition.., captured by the body.., carried..
/// condition    (captured by it.., carried..) -> bool[]
/// body         (captured by it.., carried..) -> (carried..)
/// results      carried..
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct While {
    /// True for one more step.
    pub condition: Graph,
    /// One step.
    pub body: Graph,
    /// Operands of the condition that are the same in each step.
    pub condition_captured: usize,
    /// Operands of the body that are the same in each step.
    pub body_captured: usize,
}

/// `lax.switch`: calls the branch whose number the first operand is, an i32 scalar; the first or the last one for a
/// number out of range. All branches have the other operands as parameters, and results of equal types.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// The branches, at least one.
    pub branches: Vec<Graph>,
}

impl Call {
    /// The name in texts.
    pub fn name(&self) -> &'static str {
        match self {
            Call::Scan(_) => "scan",
            Call::While(_) => "while",
            Call::Case(_) => "case",
        }
    }

    /// The graphs that it calls.
    pub fn graphs(&self) -> Vec<&Graph> {
        match self {
            Call::Scan(scan) => vec![&scan.body],
            Call::While(call) => vec![&call.condition, &call.body],
            Call::Case(case) => case.branches.iter().collect(),
        }
    }

    /// The same call of other graphs, which take and give the same types.
    #[must_use]
    pub fn map(&self, f: impl Fn(&Graph) -> Graph) -> Call {
        match self {
            Call::Scan(scan) => Call::Scan(Scan { body: f(&scan.body), ..scan.clone() }),
            Call::While(call) => {
                Call::While(While { condition: f(&call.condition), body: f(&call.body), ..call.clone() })
            }
            Call::Case(case) => Call::Case(Case { branches: case.branches.iter().map(f).collect() }),
        }
    }

    /// The types of the results.
    pub(crate) fn infer(&self, args: &[&Type]) -> Result<Vec<Type>, Diag> {
        let wrong = |message: String| Diag::new(self.name(), At::Op, message, "see the operation's definition");
        let takes = |graph: &Graph, given: &[Type]| {
            let takes = graph.takes();
            if takes == given { Ok(()) } else { Err(wrong(format!("a body of {takes:?} is called with {given:?}"))) }
        };
        let owned = |args: &[&Type]| args.iter().map(|&ty| ty.clone()).collect::<Vec<Type>>();
        match self {
            Call::Scan(scan) => {
                let fixed = scan.captured + scan.carried;
                if args.len() < fixed {
                    return Err(wrong(format!("{} operands for {fixed} captured and carried values", args.len())));
                }
                let element = |x: &&Type| match x.shape.split_first() {
                    Some((n, rest)) if *n == scan.length => Ok(Type::new(x.dtype, rest)),
                    _ => Err(wrong(format!("an array of {x} has no first axis of {}", scan.length))),
                };
                let elements = args[fixed..].iter().map(element).collect::<Result<Vec<_>, _>>()?;
                takes(&scan.body, &[owned(&args[..fixed]), elements].concat())?;
                let gives = scan.body.gives();
                let carried = owned(&args[scan.captured..fixed]);
                if gives.get(..scan.carried) != Some(&carried[..]) {
                    return Err(wrong(format!("carries {carried:?}, the body gives {gives:?}")));
                }
                let stack = |ty: &Type| Type::new(ty.dtype, [&[scan.length], &ty.shape[..]].concat());
                Ok(carried.into_iter().chain(gives[scan.carried..].iter().map(stack)).collect())
            }
            Call::While(call) => {
                let fixed = call.condition_captured + call.body_captured;
                if args.len() < fixed {
                    return Err(wrong(format!("{} operands for {fixed} captured values", args.len())));
                }
                let carried = owned(&args[fixed..]);
                takes(&call.condition, &[owned(&args[..call.condition_captured]), carried.clone()].concat())?;
                takes(&call.body, &[owned(&args[call.condition_captured..fixed]), carried.clone()].concat())?;
                if call.condition.gives() != [Type::scalar(DType::Bool)] {
                    return Err(wrong(format!("the condition gives {:?}, not bool[]", call.condition.gives())));
                }
                if call.body.gives() != carried {
                    return Err(wrong(format!("carries {carried:?}, the body gives {:?}", call.body.gives())));
                }
                Ok(carried)
            }
            Call::Case(case) => {
                let (Some((index, rest)), Some(first)) = (args.split_first(), case.branches.first()) else {
                    return Err(wrong("it has no index or no branch".into()));
                };
                if **index != Type::scalar(DType::I32) {
                    return Err(wrong(format!("the number of the branch is {index}, not i32[]")));
                }
                let rest = owned(rest);
                case.branches.iter().try_for_each(|branch| takes(branch, &rest))?;
                match case.branches.iter().find(|branch| branch.gives() != first.gives()) {
                    Some(other) => {
                        Err(wrong(format!("one branch gives {:?}, another {:?}", first.gives(), other.gives())))
                    }
                    None => Ok(first.gives()),
                }
            }
        }
    }
}
