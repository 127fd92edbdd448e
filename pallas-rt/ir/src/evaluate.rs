//! Evaluation of symbolic sizes to numbers, in checked arithmetic.
use crate::Dim;
use crate::dim::DimAlgebra;
use std::fmt;

/// Error of a size that cannot be evaluated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SizeError {
    /// The size mentions this name, which has no value.
    Unbound(String),
    /// A term of the size, or their sum, exceeds 2^63.
    Overflow,
    /// The size divides by this number, which is not positive.
    Divisor(i64),
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeError::Unbound(name) => write!(f, "`{name}` has no value"),
            SizeError::Overflow => f.write_str("it passes 2^63 on the way"),
            SizeError::Divisor(n) => write!(f, "it divides by {n}"),
        }
    }
}

/// The algebra of numbers, for given values of names. Checks every term, and the sum of their absolute values, against
/// i64, so that binding only some of the names first cannot overflow either.
struct SizeEvaluator<'a>(&'a [(&'a str, i64)]);

/// The value of a size, and the sum of the absolute values of its terms.
type CheckedValue = Result<(i64, i64), SizeError>;

impl SizeEvaluator<'_> {
    fn combine_checked(a: CheckedValue, b: CheckedValue, f: impl Fn(i64, i64) -> Option<i64>) -> CheckedValue {
        let ((a, most_a), (b, most_b)) = (a?, b?);
        f(a, b).zip(f(most_a, most_b)).ok_or(SizeError::Overflow)
    }
    fn checked_number(n: i64) -> CheckedValue {
        Ok((n, n.checked_abs().ok_or(SizeError::Overflow)?))
    }
}

impl DimAlgebra for SizeEvaluator<'_> {
    type Out = CheckedValue;
    fn number(&mut self, n: i64) -> CheckedValue {
        Self::checked_number(n)
    }
    fn name(&mut self, name: &str) -> CheckedValue {
        let known = self.0.iter().find(|(n, _)| *n == name);
        known.map_or_else(|| Err(SizeError::Unbound(name.into())), |(_, n)| Self::checked_number(*n))
    }
    fn add(&mut self, a: CheckedValue, b: CheckedValue) -> CheckedValue {
        Self::combine_checked(a, b, i64::checked_add)
    }
    fn mul(&mut self, a: CheckedValue, b: CheckedValue) -> CheckedValue {
        Self::combine_checked(a, b, i64::checked_mul)
    }
    fn cdiv(&mut self, a: CheckedValue, b: CheckedValue) -> CheckedValue {
        let ((a, _), (b, _)) = (a?, b?);
        if b < 1 {
            return Err(SizeError::Divisor(b));
        }
        Self::checked_number(a.div_euclid(b) + i64::from(a.rem_euclid(b) != 0))
    }
    fn min(&mut self, a: CheckedValue, b: CheckedValue) -> CheckedValue {
        Self::checked_number(a?.0.min(b?.0))
    }
    fn max(&mut self, a: CheckedValue, b: CheckedValue) -> CheckedValue {
        Self::checked_number(a?.0.max(b?.0))
    }
}

impl Dim {
    /// Evaluates the size for these values of its names. A launch does so once; programs read the result.
    ///
    /// # Errors
    /// A name without a value, a term beyond i64, a divisor below 1.
    pub fn evaluate(&self, values: &[(&str, i64)]) -> Result<i64, SizeError> {
        if *self == Dim::UNKNOWN {
            return Err(SizeError::Unbound("?".into()));
        }
        self.fold(&mut SizeEvaluator(values)).map(|(n, _)| n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_computed_in_64_bits_or_not_at_all() {
        let check = |size: &str, expected: Result<i64, SizeError>| {
            let size: Dim = size.parse().expect("a size");
            assert_eq!(size.evaluate(&[("N", 65_536), ("M", 3), ("Z", 0)]), expected, "{size}");
        };
        check("cdiv(N * N, 1048576)", Ok(4096));
        check("4104 - cdiv(N * N, 1048576)", Ok(8));
        check("cdiv(M - 10, 4)", Ok(-1));
        check("cdiv(Z - 4, 4)", Ok(-1));
        check("min(N, M) + max(Z, M)", Ok(6));
        check("N * N * N", Ok(1 << 48));
        check("N * N * N * N", Err(SizeError::Overflow));
        // The difference fits, its terms do not.
        check("N * N * N * N - N * N * N * N * M", Err(SizeError::Overflow));
        check("cdiv(N, M - 3)", Err(SizeError::Divisor(0)));
        check("cdiv(N, Z - 1)", Err(SizeError::Divisor(-1)));
        check("N + other", Err(SizeError::Unbound("other".into())));
        check("?", Err(SizeError::Unbound("?".into())));
    }
}
