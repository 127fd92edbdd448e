//! What the check knows about the value of an expression.
use pallas_ir::Dim;
use pallas_ir::dim::{Facts, Verdict};

/// What an expression gives, as far as it can be known without numbers.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Anything: agrees with everything.
    Unknown,
    /// No value.
    Unit,
    /// A host number or `bool`. One that depends on sizes may guard code that is right for those sizes only.
    Host { sized: bool },
    /// A host integer built from sizes.
    Size(Dim),
    /// A tile of this shape; a run-time scalar is one without axes.
    Tile(Vec<Dim>),
    /// A ref's block, or a view of it.
    View(View),
    /// A prefetch operand and its rank.
    Prefetch(String, usize),
    /// What selects elements along an axis of a view.
    Span(Span),
    /// A tuple or an array.
    Several(Vec<Value>),
    /// Host values in an array, a slice or a `Vec`, whose number is not known.
    List,
}

/// A block, or the part of it that a view selects.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The operand.
    pub(super) name: String,
    /// `None`: unknown.
    pub(super) shape: Option<Vec<Dim>>,
}

/// Elements along an axis.
#[derive(Clone, Debug)]
pub(super) enum Span {
    /// `..`
    All,
    /// `size` elements `stride` apart; a start that only run time knows is `None`.
    Part { start: Option<Dim>, size: Dim, stride: Dim },
}

impl Value {
    /// A number.
    pub(super) fn number(n: i64) -> Value {
        Value::Size(Dim::from(n))
    }
    /// A run-time scalar.
    pub(super) fn scalar() -> Value {
        Value::Tile(vec![])
    }
    /// The axes of a tile or scalar; a host number stands for any shape, like a scalar.
    pub(super) fn operand(&self) -> Option<&[Dim]> {
        match self {
            Value::Tile(dims) => Some(dims),
            Value::Host { .. } | Value::Size(_) => Some(&[]),
            Value::Unknown
            | Value::Unit
            | Value::View(_)
            | Value::Prefetch(..)
            | Value::List
            | Value::Span(_)
            | Value::Several(_) => None,
        }
    }
    /// Whether it is a number or `bool` of the host.
    pub(super) fn is_host(&self) -> bool {
        matches!(self, Value::Host { .. } | Value::Size(_))
    }
    /// Whether it is a host value that the kernel's sizes decide.
    pub(super) fn is_sized(&self) -> bool {
        match self {
            Value::Host { sized } => *sized,
            Value::Size(d) => d.as_number().is_none(),
            _ => false,
        }
    }
    /// As a size; one the check can't follow is unknown.
    pub(super) fn size(&self) -> Dim {
        match self {
            Value::Size(d) => d.clone(),
            _ => Dim::UNKNOWN,
        }
    }
    /// As a small number, such as an axis.
    pub(super) fn axis(&self) -> Option<usize> {
        usize::try_from(self.size().as_number()?).ok()
    }
    /// As the sizes of a shape.
    pub(super) fn sizes(&self) -> Option<Vec<Dim>> {
        match self {
            Value::Several(items) => Some(items.iter().map(Value::size).collect()),
            _ => None,
        }
    }
    /// As the axes of a tile of some rank.
    pub(super) fn axes(&self, rank: usize) -> Option<Vec<usize>> {
        match self {
            Value::Span(Span::All) => Some((0..rank).collect()),
            Value::Several(items) => items.iter().map(Value::axis).collect(),
            one => Some(vec![one.axis()?]),
        }
    }

    /// What is known if it is either of two values.
    pub(super) fn join(&self, other: &Value, facts: &Facts) -> Value {
        let same = |a: &Dim, b: &Dim| facts.same(a, b) == Verdict::Yes;
        match (self, other) {
            (Value::Unit, Value::Unit) => Value::Unit,
            (Value::Size(a), Value::Size(b)) if same(a, b) => Value::Size(a.clone()),
            (a, b) if a.is_host() && b.is_host() => Value::Host { sized: true },
            (Value::Tile(a), Value::Tile(b)) if a.len() == b.len() => {
                let either = |(a, b): (&Dim, &Dim)| if same(a, b) { a.clone() } else { Dim::UNKNOWN };
                Value::Tile(a.iter().zip(b).map(either).collect())
            }
            (Value::Several(a), Value::Several(b)) if a.len() == b.len() => {
                Value::Several(a.iter().zip(b).map(|(a, b)| a.join(b, facts)).collect())
            }
            _ => Value::Unknown,
        }
    }
    /// The first pair of tiles within two values whose shapes can't be the same.
    pub(super) fn conflict(&self, other: &Value, facts: &Facts) -> Option<(Vec<Dim>, Vec<Dim>)> {
        match (self, other) {
            (Value::Tile(a), Value::Tile(b)) => {
                let differs = |(a, b): (&Dim, &Dim)| facts.same(a, b) == Verdict::No;
                (a.len() != b.len() || a.iter().zip(b).any(differs)).then(|| (a.clone(), b.clone()))
            }
            (Value::Several(a), Value::Several(b)) if a.len() == b.len() => {
                a.iter().zip(b).find_map(|(a, b)| a.conflict(b, facts))
            }
            _ => None,
        }
    }
}
