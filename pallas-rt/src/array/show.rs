//! Formatting of arrays as in NumPy, with the middle of long axes left out.
use super::data::{Array, ArrayContents};
use pallas_codegen::interp::Data;
use pallas_ir::DType;
use std::fmt;

/// Largest number of elements of an array that is printed as a whole.
const MAX_UNABBREVIATED_ELEMENTS: usize = 1000;
/// Number of elements shown at either end of an abbreviated axis.
const EDGE_ITEMS: usize = 3;

/// Prints nested brackets; `<traced f32[2, 3]>` for a traced array, `<error>` if the elements cannot be read.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if matches!(self.contents(), ArrayContents::Traced(_)) {
            return write!(f, "<traced {}>", self.type_text());
        }
        match self.to_bytes() {
            Ok(bytes) => f.write_str(&format_array(self.dtype(), self.shape(), &bytes)),
            Err(error) => write!(f, "<{error}>"),
        }
    }
}

/// Prints element type, shape and device, then the elements.
impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}\n{self}", self.type_text(), self.device().id())
    }
}

/// Formats an array of this type and shape, whose elements are `bytes`.
fn format_array(dtype: DType, shape: &[usize], bytes: &[u8]) -> String {
    let page = PrintedArray { dtype, shape, bytes, whole: bytes.len() / dtype.bytes() <= MAX_UNABBREVIATED_ELEMENTS };
    let mut width = 0;
    page.visit_shown_elements(0, 0, &mut |at| width = width.max(page.format_element(at).len()));
    let mut out = String::new();
    page.write_shown_elements(0, 0, width, &mut out);
    out
}

/// The array that is printed, as a whole or without the middle of long axes.
struct PrintedArray<'a> {
    dtype: DType,
    shape: &'a [usize],
    bytes: &'a [u8],
    whole: bool,
}

impl PrintedArray<'_> {
    /// Returns the positions along an axis that are shown; `None` stands for those left out.
    fn shown_positions(&self, axis: usize) -> Vec<Option<usize>> {
        let extent = self.shape[axis];
        if self.whole || extent <= 2 * EDGE_ITEMS {
            return (0..extent).map(Some).collect();
        }
        (0..EDGE_ITEMS).map(Some).chain([None]).chain((extent - EDGE_ITEMS..extent).map(Some)).collect()
    }

    /// Calls `f` with the row-major index of each printed element of one subarray: that at the row-major index
    /// `outer_index` of the axes before `axis`.
    fn visit_shown_elements(&self, axis: usize, outer_index: usize, f: &mut impl FnMut(usize)) {
        if axis == self.shape.len() {
            return f(outer_index);
        }
        for i in self.shown_positions(axis).into_iter().flatten() {
            self.visit_shown_elements(axis + 1, outer_index * self.shape[axis] + i, f);
        }
    }

    /// Appends the text of one subarray, that at the row-major index `outer_index` of the axes before `axis`, with each
    /// element padded to `width` characters.
    fn write_shown_elements(&self, axis: usize, outer_index: usize, width: usize, out: &mut String) {
        if axis == self.shape.len() {
            let element = self.format_element(outer_index);
            out.extend(std::iter::repeat_n(' ', width - element.len()));
            out.push_str(&element);
            return;
        }
        // Rows stand below each other, matrices a line apart.
        let inner_axes = self.shape.len() - axis - 1;
        let separator = match inner_axes {
            0 => ", ".to_string(),
            n => format!(",{}{}", "\n".repeat(n), " ".repeat(axis + 1)),
        };
        out.push('[');
        for (n, i) in self.shown_positions(axis).into_iter().enumerate() {
            if n > 0 {
                out.push_str(&separator);
            }
            match i {
                Some(i) => self.write_shown_elements(axis + 1, outer_index * self.shape[axis] + i, width, out),
                None => out.push_str("..."),
            }
        }
        out.push(']');
    }

    fn format_element(&self, at: usize) -> String {
        let size = self.dtype.bytes();
        let raw = &self.bytes[at * size..][..size];
        let x = Data::from_bytes(self.dtype, raw).get(0);
        match self.dtype {
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => format_float(x.as_f64()),
            DType::Bool => (x.bits != 0).to_string(),
            DType::U64 => x.bits.to_string(),
            DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 => {
                x.as_i64().to_string()
            }
        }
    }
}

/// Formats a float: one to four decimals, or a power of ten for numbers that these do not show well.
fn format_float(x: f64) -> String {
    let size = x.abs();
    if !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    if size != 0.0 && !(1e-3..1e7).contains(&size) {
        return format!("{x:.4e}");
    }
    let digits = format!("{x:.4}");
    let trimmed = digits.trim_end_matches('0');
    if trimmed.ends_with('.') { format!("{trimmed}0") } else { trimmed.to_string() }
}

#[cfg(test)]
mod tests {
    use crate::Client;
    use pallas_ir::Elem;

    fn check<T: Elem>(elements: &[T], shape: &[usize], expected: &str) {
        let array = Client::cpu().array(elements, shape).expect("a small array");
        assert_eq!(array.to_string(), expected);
    }

    #[test]
    fn arrays_print_like_numpy() {
        check(&[2.5f32], &[], "2.5");
        check(&[0i32; 0], &[0], "[]");
        check(&[1.0f32, -10.25, 1.0 / 3.0], &[3], "[   1.0, -10.25, 0.3333]");
        check(&[1i32, 2, 3, 4], &[2, 2], "[[1, 2],\n [3, 4]]");
        check(&[1i8, 2, 3, 4], &[2, 1, 2], "[[[1, 2]],\n\n [[3, 4]]]");
        check(&[true, false], &[2], "[ true, false]");
        check(&[f32::NAN, f32::NEG_INFINITY, 1e-9], &[3], "[      nan,      -inf, 1.0000e-9]");
        let long: Vec<u32> = (0..2000).collect();
        check(&long, &[2000], "[   0,    1,    2, ..., 1997, 1998, 1999]");
    }

    #[test]
    fn debug_names_type_shape_and_device() {
        let array = Client::cpu().array(&[1u8, 2], &[2]).expect("a small array");
        assert_eq!(format!("{array:?}"), "u8[2] on cpu\n[1, 2]");
    }
}
