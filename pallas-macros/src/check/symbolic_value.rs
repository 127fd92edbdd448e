//! Values of expressions, as far as the check knows them.
use pallas_ir::Dim;
use pallas_ir::dim::{Facts, SizeComparison};

/// Value of an expression, as far as it is known without numbers.
#[derive(Clone, Debug)]
pub(super) enum SymbolicValue {
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
    Span(AxisSpan),
    /// A tuple or an array.
    Sequence(Vec<SymbolicValue>),
    /// Values of the host in an array, a slice or a `Vec` of unknown length.
    HostList,
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
pub(super) enum AxisSpan {
    /// All elements: `..`.
    All,
    /// `size` elements, `stride` apart; `start` is `None` if only known at run time.
    Part { start: Option<Dim>, size: Dim, stride: Dim },
}

impl SymbolicValue {
    /// Creates a constant size.
    pub(super) fn constant_size(n: i64) -> SymbolicValue {
        SymbolicValue::Size(Dim::from(n))
    }
    /// Creates a run-time scalar.
    pub(super) fn run_time_scalar() -> SymbolicValue {
        SymbolicValue::Tile(vec![])
    }
    /// Returns the shape of a tile or scalar as an operand, empty for a host number, which stands for any shape;
    /// `None` for any other value.
    pub(super) fn operand_shape(&self) -> Option<&[Dim]> {
        match self {
            SymbolicValue::Tile(dims) => Some(dims),
            SymbolicValue::Host { .. } | SymbolicValue::Size(_) => Some(&[]),
            SymbolicValue::Unknown
            | SymbolicValue::Unit
            | SymbolicValue::View(_)
            | SymbolicValue::Prefetch(..)
            | SymbolicValue::HostList
            | SymbolicValue::Span(_)
            | SymbolicValue::Sequence(_) => None,
        }
    }
    /// Returns true for a number or `bool` of the host.
    pub(super) fn is_host_scalar(&self) -> bool {
        matches!(self, SymbolicValue::Host { .. } | SymbolicValue::Size(_))
    }
    /// Returns true for a host value that depends on the kernel's sizes.
    pub(super) fn depends_on_sizes(&self) -> bool {
        match self {
            SymbolicValue::Host { sized } => *sized,
            SymbolicValue::Size(d) => d.as_number().is_none(),
            _ => false,
        }
    }
    /// The value as a size; unknown if the check does not know it.
    pub(super) fn as_size(&self) -> Dim {
        match self {
            SymbolicValue::Size(d) => d.clone(),
            _ => Dim::UNKNOWN,
        }
    }
    /// Returns the value as the number of an axis; `None` if it is no number that the check knows.
    pub(super) fn as_axis(&self) -> Option<usize> {
        usize::try_from(self.as_size().as_number()?).ok()
    }
    /// Returns the elements of a tuple or array as the sizes of a shape; `None` for any other value.
    pub(super) fn as_shape(&self) -> Option<Vec<Dim>> {
        match self {
            SymbolicValue::Sequence(items) => Some(items.iter().map(SymbolicValue::as_size).collect()),
            _ => None,
        }
    }
    /// Returns the value as a list of axes of a tile of this rank: `..`, a tuple or one number; `None` for any other
    /// value.
    pub(super) fn as_axes(&self, rank: usize) -> Option<Vec<usize>> {
        match self {
            SymbolicValue::Span(AxisSpan::All) => Some((0..rank).collect()),
            SymbolicValue::Sequence(items) => items.iter().map(SymbolicValue::as_axis).collect(),
            one => Some(vec![one.as_axis()?]),
        }
    }

    /// Returns the value of an expression that is either `self` or `other`: what both have in common, else unknown.
    pub(super) fn join(&self, other: &SymbolicValue, facts: &Facts) -> SymbolicValue {
        let same = |a: &Dim, b: &Dim| facts.compare_equal(a, b) == SizeComparison::Yes;
        match (self, other) {
            (SymbolicValue::Unit, SymbolicValue::Unit) => SymbolicValue::Unit,
            (SymbolicValue::Size(a), SymbolicValue::Size(b)) if same(a, b) => SymbolicValue::Size(a.clone()),
            (a, b) if a.is_host_scalar() && b.is_host_scalar() => SymbolicValue::Host { sized: true },
            (SymbolicValue::Tile(a), SymbolicValue::Tile(b)) if a.len() == b.len() => {
                let either = |(a, b): (&Dim, &Dim)| if same(a, b) { a.clone() } else { Dim::UNKNOWN };
                SymbolicValue::Tile(a.iter().zip(b).map(either).collect())
            }
            (SymbolicValue::Sequence(a), SymbolicValue::Sequence(b)) if a.len() == b.len() => {
                SymbolicValue::Sequence(a.iter().zip(b).map(|(a, b)| a.join(b, facts)).collect())
            }
            _ => SymbolicValue::Unknown,
        }
    }
    /// Returns the shapes of the first pair of tiles within two values that cannot be equal; `None` if there is none.
    pub(super) fn find_conflict(&self, other: &SymbolicValue, facts: &Facts) -> Option<(Vec<Dim>, Vec<Dim>)> {
        match (self, other) {
            (SymbolicValue::Tile(a), SymbolicValue::Tile(b)) => {
                let differs = |(a, b): (&Dim, &Dim)| facts.compare_equal(a, b) == SizeComparison::No;
                (a.len() != b.len() || a.iter().zip(b).any(differs)).then(|| (a.clone(), b.clone()))
            }
            (SymbolicValue::Sequence(a), SymbolicValue::Sequence(b)) if a.len() == b.len() => {
                a.iter().zip(b).find_map(|(a, b)| a.find_conflict(b, facts))
            }
            _ => None,
        }
    }
}
