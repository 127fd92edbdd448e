//! The arithmetic of windows, which convolutions and windowed reductions share.
use super::{Position, list};
use crate::Dim;
use crate::diag::{At, Diag};
use crate::parse::Attributes;

/// A window along one axis: it has elements `spacing` apart, moves by `stride`, and sees `low` places before an operand
/// whose elements are `dilation` apart, and `high` after it; negative ones take places away.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowDim {
    /// Distance that the window moves.
    pub stride: i64,
    /// Places before the operand.
    pub low: i64,
    /// Places after the operand.
    pub high: i64,
    /// Distance between elements of the operand.
    pub dilation: i64,
    /// Distance between elements of the window.
    pub spacing: i64,
}

/// Greatest stride, distance and padding: sums of their products with extents are below 2^63.
const MOST: i64 = 1 << 28;

impl WindowDim {
    /// A window that moves by 1, without padding and dilation.
    pub const PLAIN: WindowDim = WindowDim { stride: 1, low: 0, high: 0, dilation: 1, spacing: 1 };

    /// Number of places of `n` elements that are `dilation` apart.
    pub(super) fn dilated(n: &Dim, dilation: i64) -> Dim {
        let one = Dim::from(1i64);
        if dilation == 1 { n.clone() } else { (&(&(n - &one) * &Dim::from(dilation)) + &one).max(&Dim::from(0i64)) }
    }
    /// Number of places of a window of `size` elements in `n` elements of an operand.
    pub(super) fn places(&self, n: &Dim, size: &Dim) -> Dim {
        let all = &(&Self::dilated(n, self.dilation) + &Dim::from(self.low)) + &Dim::from(self.high);
        let free = &(&all - &Self::dilated(size, self.spacing)) + &Dim::from(1i64);
        free.max(&Dim::from(0i64)).cdiv(&Dim::from(self.stride))
    }
    /// The operand's position for an axis of places and one of a window's elements.
    pub(super) fn position(&self, place: usize, element: usize) -> Position {
        let terms = vec![(place, self.stride), (element, self.spacing)];
        Position { terms, offset: -self.low, dilation: self.dilation }
    }
    /// The window that spreads `places` results back over `n` elements: for window elements in reverse.
    pub(super) fn back(&self, n: i64, size: i64, places: i64) -> WindowDim {
        let [all, window, apart] = [(n, self.dilation), (size, self.spacing), (places, self.stride)].map(reach);
        let low = window - self.low - 1;
        WindowDim {
            stride: self.dilation,
            low,
            high: all + window - 1 - apart - low,
            dilation: self.stride,
            spacing: self.spacing,
        }
    }
    /// The window whose places are this one's elements, and whose elements are its `places`.
    pub(super) fn exchanged(&self, n: i64, size: i64, places: i64) -> WindowDim {
        let [all, window, apart] = [(n, self.dilation), (size, self.spacing), (places, self.stride)].map(reach);
        let high = apart + window - all - 1 - self.low;
        WindowDim { stride: self.spacing, low: self.low, high, dilation: self.dilation, spacing: self.stride }
    }
    /// Refuses numbers out of range, and a window without elements.
    pub(super) fn check(&self, name: &str, axis: usize, size: &Dim) -> Result<(), Diag> {
        let steps = [("stride", self.stride), ("dilation", self.dilation), ("window dilation", self.spacing)];
        if let Some((what, n)) = steps.into_iter().find(|(_, n)| !(1..=MOST).contains(n)) {
            let found = format!("`{name}` with a {what} of {n} along windowed axis {axis}");
            return Err(Diag::new("window", At::Op, found, format!("at least 1 and at most {MOST}")));
        }
        if let Some(n) = [self.low, self.high].into_iter().find(|n| !(-MOST..=MOST).contains(n)) {
            let found = format!("`{name}` with a padding of {n} along windowed axis {axis}");
            return Err(Diag::new("window", At::Op, found, format!("at least -{MOST} and at most {MOST}")));
        }
        if size.as_number().is_some_and(|n| !(1..=i64::from(i32::MAX)).contains(&n)) {
            let found = format!("`{name}` with a window of {size} elements along windowed axis {axis}");
            return Err(Diag::new("window", At::Op, found, "a window has at least 1 element along each axis"));
        }
        Ok(())
    }
}

/// Number of places of `n` elements that are some distance apart.
fn reach((n, apart): (i64, i64)) -> i64 {
    ((n - 1) * apart + 1).max(0)
}

/// The text of windows: a list of each number.
pub(super) fn text(windows: &[WindowDim]) -> String {
    let all = |of: fn(&WindowDim) -> i64| list(&windows.iter().map(of).collect::<Vec<_>>());
    format!(
        "stride({}) low({}) high({}) dilation({}) spacing({})",
        all(|w| w.stride),
        all(|w| w.low),
        all(|w| w.high),
        all(|w| w.dilation),
        all(|w| w.spacing)
    )
}

/// Reads windows from their lists of numbers.
pub(super) fn parse(attributes: &Attributes<'_>) -> Result<Vec<WindowDim>, String> {
    let names = ["stride", "low", "high", "dilation", "spacing"];
    let lists = names.iter().map(|name| attributes.list::<i64>(name)).collect::<Result<Vec<_>, _>>()?;
    if lists.iter().any(|list| list.len() != lists[0].len()) {
        return Err("the lists of a window's numbers differ in length".into());
    }
    let of = |i: usize| WindowDim {
        stride: lists[0][i],
        low: lists[1][i],
        high: lists[2][i],
        dilation: lists[3][i],
        spacing: lists[4][i],
    };
    Ok((0..lists[0].len()).map(of).collect())
}
