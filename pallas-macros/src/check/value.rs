//! Values of expressions, as far as the check knows them.
use pallas_ir::Dim;
use pallas_ir::dim::{Facts, Verdict};

/// Value of an expression, as far as it is known without numbers.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// Unknown: agrees with everything.
    Unknown,
    /// The unit value `()`.
    Unit,
    /// A number or `bool` of the host. With `sized` it depends on sizes, and may guard code that is right for these
    /// only.
    Host { sized: bool },
    /// An integer of the host computed from sizes.
    Size(Dim),
    /// A tile of this shape; a run-time scalar has no axes.
    Tile(Vec<Dim>),
    /// A block of an operand, or a view of it.
    View(View),
    /// A prefetch operand: its name and rank.
    Prefetch(String, usize),
    /// An index expression that selects elements along an axis of a view.
    Span(Span),
    /// A tuple or an array.
    Several(Vec<Value>),
    /// Values of the host in an array, a slice or a `Vec` of unknown length.
    List,
}

/// A block of an operand, or the part of it that a view selects.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Name of the operand.
    pub(super) name: String,
    /// Shape of the view; `None`: unknown.
    pub(super) shape: Option<Vec<Dim>>,
}

/// The elements that an index expression selects along an axis.
#[derive(Clone, Debug)]
pub(super) enum Span {
    /// All elements: `..`.
    All,
    /// `size` elements, `stride` apart; `start` is `None` if only known at run time.
    Part { start: Option<Dim>, size: Dim, stride: Dim },
}

impl Value {
    /// Creates a constant size.
    pub(super) fn number(n: i64) -> Value {
        Value::Size(Dim::from(n))
    }
    /// Creates a run-time scalar.
    pub(super) fn scalar() -> Value {
        Value::Tile(vec![])
    }
    /// Shape of a tile or scalar as an operand; empty for a host number, which stands for any shape, like a scalar.
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
    /// Returns true for a number or `bool` of the host.
    pub(super) fn is_host(&self) -> bool {
        matches!(self, Value::Host { .. } | Value::Size(_))
    }
    /// Returns true for a host value that depends on the kernel's sizes.
    pub(super) fn is_sized(&self) -> bool {
        match self {
            Value::Host { sized } => *sized,
            Value::Size(d) => d.as_number().is_none(),
            _ => false,
        }
    }
    /// The value as a size; unknown if the check does not know it.
    pub(super) fn size(&self) -> Dim {
        match self {
            Value::Size(d) => d.clone(),
            _ => Dim::UNKNOWN,
        }
    }
    /// The value as a small number, such as an axis.
    pub(super) fn axis(&self) -> Option<usize> {
        usize::try_from(self.size().as_number()?).ok()
    }
    /// The elements of a tuple or array as the sizes of a shape.
    pub(super) fn sizes(&self) -> Option<Vec<Dim>> {
        match self {
            Value::Several(items) => Some(items.iter().map(Value::size).collect()),
            _ => None,
        }
    }
    /// The value as a list of axes of a tile of this rank: `..`, a tuple or one number.
    pub(super) fn axes(&self, rank: usize) -> Option<Vec<usize>> {
        match self {
            Value::Span(Span::All) => Some((0..rank).collect()),
            Value::Several(items) => items.iter().map(Value::axis).collect(),
            one => Some(vec![one.axis()?]),
        }
    }

    /// The value of an expression that is either `self` or `other`.
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
    /// Shapes of the first pair of tiles within two values that cannot be equal.
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
