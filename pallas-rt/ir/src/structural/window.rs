//! Arithmetic of windows, shared by convolutions and windowed reductions.
use super::{AffinePosition, join_with_commas};
use crate::Dim;
use crate::diag::{At, Diag};
use crate::parse::Attributes;

/// Movement of a window along one axis. Its elements are `spacing` apart; it moves by `stride` over an operand whose
/// elements are `dilation` apart, with `low` positions of padding before and `high` after it; negative padding removes
/// positions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WindowDim {
    /// Distance between neighbouring positions of the window.
    pub stride: i64,
    /// Number of padding positions before the operand.
    pub low: i64,
    /// Number of padding positions after the operand.
    pub high: i64,
    /// Distance between neighbouring elements of the operand.
    pub dilation: i64,
    /// Distance between neighbouring elements of the window.
    pub spacing: i64,
}

/// Maximum of strides, distances and padding: sums of their products with extents are below 2^63.
const MAX_STRIDE_OR_PADDING: i64 = 1 << 28;

impl WindowDim {
    /// A window that moves by 1, without padding and dilation.
    pub const PLAIN: WindowDim = WindowDim { stride: 1, low: 0, high: 0, dilation: 1, spacing: 1 };

    /// Extent of `element_count` elements that are `dilation` apart.
    pub(super) fn dilated_extent(element_count: &Dim, dilation: i64) -> Dim {
        let one = Dim::from(1i64);
        if dilation == 1 {
            element_count.clone()
        } else {
            (&(&(element_count - &one) * &Dim::from(dilation)) + &one).max(&Dim::from(0i64))
        }
    }
    /// Number of positions of a window of `window_size` elements on an operand of `operand_extent` elements.
    pub(super) fn count_positions(&self, operand_extent: &Dim, window_size: &Dim) -> Dim {
        let all =
            &(&Self::dilated_extent(operand_extent, self.dilation) + &Dim::from(self.low)) + &Dim::from(self.high);
        let free = &(&all - &Self::dilated_extent(window_size, self.spacing)) + &Dim::from(1i64);
        free.max(&Dim::from(0i64)).cdiv(&Dim::from(self.stride))
    }
    /// Position in the operand, for the loop `position_loop` over window positions and the loop `element_loop` over the
    /// window's elements.
    pub(super) fn operand_position(&self, position_loop: usize, element_loop: usize) -> AffinePosition {
        let terms = vec![(position_loop, self.stride), (element_loop, self.spacing)];
        AffinePosition { terms, offset: -self.low, dilation: self.dilation }
    }
    /// The window of the transposed operation, which spreads `position_count` results back over `operand_extent`
    /// elements; its elements are in reverse.
    pub(super) fn transposed_window(&self, operand_extent: i64, window_size: i64, position_count: i64) -> WindowDim {
        let [all, window, apart] =
            [(operand_extent, self.dilation), (window_size, self.spacing), (position_count, self.stride)]
                .map(dilated_extent_i64);
        let low = window - self.low - 1;
        WindowDim {
            stride: self.dilation,
            low,
            high: all + window - 1 - apart - low,
            dilation: self.stride,
            spacing: self.spacing,
        }
    }
    /// The window in which window positions and window elements exchange their roles, for the gradient by the window.
    pub(super) fn rhs_gradient_window(&self, operand_extent: i64, window_size: i64, position_count: i64) -> WindowDim {
        let [all, window, apart] =
            [(operand_extent, self.dilation), (window_size, self.spacing), (position_count, self.stride)]
                .map(dilated_extent_i64);
        let high = apart + window - all - 1 - self.low;
        WindowDim { stride: self.spacing, low: self.low, high, dilation: self.dilation, spacing: self.stride }
    }
    /// Checks that strides, dilations and padding are in range, and that a window of `size` elements has at least one.
    /// `name` is the operation and `axis` its windowed axis, for messages.
    pub(super) fn check_range(&self, name: &str, axis: usize, size: &Dim) -> Result<(), Diag> {
        let steps = [("stride", self.stride), ("dilation", self.dilation), ("window dilation", self.spacing)];
        if let Some((what, n)) = steps.into_iter().find(|(_, n)| !(1..=MAX_STRIDE_OR_PADDING).contains(n)) {
            let found = format!("`{name}` with a {what} of {n} along windowed axis {axis}");
            return Err(Diag::new("window", At::Op, found, format!("at least 1 and at most {MAX_STRIDE_OR_PADDING}")));
        }
        if let Some(n) =
            [self.low, self.high].into_iter().find(|n| !(-MAX_STRIDE_OR_PADDING..=MAX_STRIDE_OR_PADDING).contains(n))
        {
            let found = format!("`{name}` with a padding of {n} along windowed axis {axis}");
            return Err(Diag::new(
                "window",
                At::Op,
                found,
                format!("at least -{MAX_STRIDE_OR_PADDING} and at most {MAX_STRIDE_OR_PADDING}"),
            ));
        }
        if size.as_number().is_some_and(|n| !(1..=i64::from(i32::MAX)).contains(&n)) {
            let found = format!("`{name}` with a window of {size} elements along windowed axis {axis}");
            return Err(Diag::new("window", At::Op, found, "a window has at least 1 element along each axis"));
        }
        Ok(())
    }
}

/// Extent of `n` elements that are `apart` positions apart.
fn dilated_extent_i64((n, apart): (i64, i64)) -> i64 {
    ((n - 1) * apart + 1).max(0)
}

/// Formats windows as attributes, each a list with a number for every windowed axis: `stride(1, 2) low(0, 0) ..`.
pub(super) fn format_windows(windows: &[WindowDim]) -> String {
    let all = |of: fn(&WindowDim) -> i64| join_with_commas(&windows.iter().map(of).collect::<Vec<_>>());
    format!(
        "stride({}) low({}) high({}) dilation({}) spacing({})",
        all(|w| w.stride),
        all(|w| w.low),
        all(|w| w.high),
        all(|w| w.dilation),
        all(|w| w.spacing)
    )
}

/// Parses windows from the attributes `stride`, `low`, `high`, `dilation` and `spacing`, each a list with a number for
/// every windowed axis.
pub(super) fn parse_windows(attributes: &Attributes<'_>) -> Result<Vec<WindowDim>, String> {
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
