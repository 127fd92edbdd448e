//! Symbolic sizes: polynomials with integer coefficients over names, in normal form. A number is a constant polynomial,
//! so a shape rule is written once and runs with names (in the macro) and with numbers (when traced).
//!
//! ```text
//! Dim  = Poly | "?"
//! Poly = sum of integer * product of Atom
//! Atom = name | cdiv(Poly, Poly) | min(Poly, Poly) | max(Poly, Poly)
//! ```
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Add, Mul, Sub};
use std::sync::Arc;

/// A factor of a monomial: a name, or a function of polynomials.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Atom {
    Name(String),
    Cdiv(Polynomial, Polynomial),
    Min(Polynomial, Polynomial),
    Max(Polynomial, Polynomial),
}

/// A polynomial: maps a monomial (its atoms, sorted, repeated for powers) to its coefficient, which is never 0.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
struct Polynomial(BTreeMap<Vec<Atom>, i64>);

/// A symbolic size. Arithmetic saturates at 2^63, which fits no memory. Constant sizes, the most common, do not
/// allocate.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Dim(DimRepr);

/// Representation of a size.
#[derive(Clone, PartialEq, Eq, Hash)]
enum DimRepr {
    /// Unknown, which agrees with every size.
    Unknown,
    Number(i64),
    /// Not a constant: [`Dim::from_poly`] ensures it, so that equal sizes have equal representations.
    Symbolic(Arc<Polynomial>),
}

/// The answer if a relation between two symbolic sizes holds for every value of their names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeComparison {
    /// The relation always holds.
    Yes,
    /// The relation fails: a mistake.
    No,
    /// Not decidable yet: an unknown size, or atoms beyond the normal form; decided when the names have values.
    Undecided,
}

/// A target algebra, such as numbers, text or instructions, in which [`Dim::fold`] rebuilds a size.
pub trait DimAlgebra {
    /// The type by which this algebra represents a size, such as a number or an instruction's result.
    type Out;
    /// Returns the constant `n` in this algebra.
    fn number(&mut self, n: i64) -> Self::Out;
    /// Returns the size that `name` stands for, in this algebra.
    fn name(&mut self, name: &str) -> Self::Out;
    /// Returns `a + b` in this algebra.
    fn add(&mut self, a: Self::Out, b: Self::Out) -> Self::Out;
    /// Returns `a * b` in this algebra.
    fn mul(&mut self, a: Self::Out, b: Self::Out) -> Self::Out;
    /// Returns `a / b` rounded up, in this algebra.
    fn cdiv(&mut self, a: Self::Out, b: Self::Out) -> Self::Out;
    /// Returns the smaller of `a` and `b` in this algebra.
    fn min(&mut self, a: Self::Out, b: Self::Out) -> Self::Out;
    /// Returns the larger of `a` and `b` in this algebra.
    fn max(&mut self, a: Self::Out, b: Self::Out) -> Self::Out;
}

impl Polynomial {
    /// Adds `times * rhs`.
    fn add_scaled(mut self, rhs: &Polynomial, times: i64) -> Polynomial {
        for (m, c) in &rhs.0 {
            let k = self.0.entry(m.clone()).or_default();
            *k = k.saturating_add(c.saturating_mul(times));
            if *k == 0 {
                self.0.remove(m);
            }
        }
        self
    }
    /// The product of two polynomials.
    fn mul(&self, rhs: &Polynomial) -> Polynomial {
        let mut out = Polynomial::default();
        for (a, x) in &self.0 {
            for (b, y) in &rhs.0 {
                let mut m = [a.clone(), b.clone()].concat();
                m.sort();
                out = out.add_scaled(&Polynomial::from_monomial(m, x.saturating_mul(*y)), 1);
            }
        }
        out
    }
    fn from_number(n: i64) -> Polynomial {
        if n == 0 { Polynomial::default() } else { Polynomial::from_monomial(vec![], n) }
    }
    fn from_atom(a: Atom) -> Polynomial {
        Polynomial::from_monomial(vec![a], 1)
    }
    /// Creates a polynomial of one monomial. (`BTreeMap::from` would sort it first.)
    fn from_monomial(monomial: Vec<Atom>, coefficient: i64) -> Polynomial {
        let mut terms = BTreeMap::new();
        terms.insert(monomial, coefficient);
        Polynomial(terms)
    }
    /// The number, if the polynomial is constant.
    fn as_number(&self) -> Option<i64> {
        match self.0.len() {
            0 => Some(0),
            1 => self.0.first_key_value().filter(|(m, _)| m.is_empty()).map(|(_, &n)| n),
            _ => None,
        }
    }
    /// The quotient rounded up, in closed form if the division is exact.
    fn cdiv(&self, by: &Polynomial) -> Polynomial {
        match (self.as_number(), by.as_number()) {
            (Some(a), Some(b)) if b > 0 => Polynomial::from_number(a.saturating_add(b - 1).div_euclid(b)),
            (_, Some(1)) => self.clone(),
            _ if self == by => Polynomial::from_number(1),
            // The division is exact if every term is a multiple of the divisor, a monomial.
            _ => match self.exact_div(by) {
                Some(q) => q,
                None => Polynomial::from_atom(Atom::Cdiv(self.clone(), by.clone())),
            },
        }
    }
    /// Quotient by a single monomial; `None` if the division is not exact.
    fn exact_div(&self, by: &Polynomial) -> Option<Polynomial> {
        let ((m, k), 1) = (by.0.iter().next()?, by.0.len()) else { return None };
        let mut out = BTreeMap::new();
        for (n, c) in &self.0 {
            let mut rest = n.clone();
            for a in m {
                rest.remove(rest.iter().position(|b| b == a)?);
            }
            if c.checked_rem(*k) != Some(0) {
                return None;
            }
            out.insert(rest, c / k);
        }
        Some(Polynomial(out))
    }
    /// The smaller of two polynomials, or the larger if `is_min` is false.
    fn min_or_max(&self, b: &Polynomial, is_min: bool) -> Polynomial {
        match self.clone().add_scaled(b, -1).as_number() {
            Some(d) if (d <= 0) == is_min => self.clone(),
            Some(_) => b.clone(),
            None => {
                let (x, y) = if self < b { (self, b) } else { (b, self) };
                let atom = if is_min { Atom::Min } else { Atom::Max };
                Polynomial::from_atom(atom(x.clone(), y.clone()))
            }
        }
    }
    /// Replaces the names for which `f` gives a polynomial; rebuilds atoms so that they are normalised again.
    fn substitute_names(&self, f: &dyn Fn(&str) -> Option<Polynomial>) -> Polynomial {
        let mut out = Polynomial::default();
        for (m, c) in &self.0 {
            let mut term = Polynomial::from_number(*c);
            for a in m {
                term = term.mul(&match a {
                    Atom::Name(n) => f(n).unwrap_or_else(|| Polynomial::from_atom(a.clone())),
                    Atom::Cdiv(x, y) => x.substitute_names(f).cdiv(&y.substitute_names(f)),
                    Atom::Min(x, y) => x.substitute_names(f).min_or_max(&y.substitute_names(f), true),
                    Atom::Max(x, y) => x.substitute_names(f).min_or_max(&y.substitute_names(f), false),
                });
            }
            out = out.add_scaled(&term, 1);
        }
        out
    }
    /// Rebuilds the polynomial in another algebra.
    fn fold<F: DimAlgebra>(&self, f: &mut F) -> F::Out {
        let mut sum: Option<F::Out> = None;
        for (monomial, &coefficient) in &self.0 {
            let mut product = (coefficient != 1 || monomial.is_empty()).then(|| f.number(coefficient));
            for atom in monomial {
                let x = match atom {
                    Atom::Name(n) => f.name(n),
                    Atom::Cdiv(a, b) => {
                        let (a, b) = (a.fold(f), b.fold(f));
                        f.cdiv(a, b)
                    }
                    Atom::Min(a, b) => {
                        let (a, b) = (a.fold(f), b.fold(f));
                        f.min(a, b)
                    }
                    Atom::Max(a, b) => {
                        let (a, b) = (a.fold(f), b.fold(f));
                        f.max(a, b)
                    }
                };
                product = Some(match product {
                    Some(p) => f.mul(p, x),
                    None => x,
                });
            }
            let product = product.expect("a monomial has a coefficient or an atom");
            sum = Some(match sum {
                Some(s) => f.add(s, product),
                None => product,
            });
        }
        sum.unwrap_or_else(|| f.number(0))
    }
    /// Appends the names that occur in the polynomial to `all`, with repetitions.
    fn collect_names(&self, all: &mut Vec<String>) {
        for atom in self.0.keys().flatten() {
            match atom {
                Atom::Name(name) => all.push(name.clone()),
                Atom::Cdiv(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => {
                    [a, b].iter().for_each(|p| p.collect_names(all))
                }
            }
        }
    }
    /// Number of names and numbers that occur, with repetitions.
    fn count_leaves(&self) -> usize {
        let atom = |a: &Atom| match a {
            Atom::Name(_) => 1,
            Atom::Cdiv(a, b) | Atom::Min(a, b) | Atom::Max(a, b) => 1 + a.count_leaves() + b.count_leaves(),
        };
        self.0.keys().map(|monomial| 1 + monomial.iter().map(atom).sum::<usize>()).sum()
    }
    /// Returns true if all atoms are names, so that equal polynomials have equal normal forms.
    fn has_only_names(&self) -> bool {
        self.0.keys().flatten().all(|a| matches!(a, Atom::Name(_)))
    }
}

impl Dim {
    /// The unknown size, which agrees with every size.
    pub const UNKNOWN: Dim = Dim(DimRepr::Unknown);
    /// The size that this name stands for.
    pub fn name(n: &str) -> Dim {
        Dim::from_poly(Polynomial::from_atom(Atom::Name(n.into())))
    }
    /// The number, if the size is constant.
    pub fn as_number(&self) -> Option<i64> {
        match self.0 {
            DimRepr::Number(n) => Some(n),
            DimRepr::Unknown | DimRepr::Symbolic(_) => None,
        }
    }
    /// The quotient rounded up.
    pub fn cdiv(&self, by: &Dim) -> Dim {
        self.combine_polynomials(by, Polynomial::cdiv)
    }
    /// The smaller of two sizes.
    pub fn min(&self, b: &Dim) -> Dim {
        self.combine_polynomials(b, |a, b| a.min_or_max(b, true))
    }
    /// The larger of two sizes.
    pub fn max(&self, b: &Dim) -> Dim {
        self.combine_polynomials(b, |a, b| a.min_or_max(b, false))
    }
    /// Creates a size from a polynomial.
    fn from_poly(p: Polynomial) -> Dim {
        Dim(p.as_number().map_or_else(|| DimRepr::Symbolic(Arc::new(p)), DimRepr::Number))
    }
    /// The size as a polynomial; `None` if unknown.
    fn as_poly(&self) -> Option<Cow<'_, Polynomial>> {
        match &self.0 {
            DimRepr::Unknown => None,
            DimRepr::Number(n) => Some(Cow::Owned(Polynomial::from_number(*n))),
            DimRepr::Symbolic(p) => Some(Cow::Borrowed(p)),
        }
    }
    /// Returns the size that `f` makes of the polynomials of two sizes; the unknown size if one of them is unknown.
    fn combine_polynomials(&self, b: &Dim, f: impl FnOnce(&Polynomial, &Polynomial) -> Polynomial) -> Dim {
        self.as_poly().zip(b.as_poly()).map_or(Dim::UNKNOWN, |(a, b)| Dim::from_poly(f(&a, &b)))
    }
    /// Number of names and numbers that occur in the size, with repetitions.
    pub(crate) fn count_leaves(&self) -> usize {
        if let DimRepr::Symbolic(p) = &self.0 { p.count_leaves() } else { 1 }
    }
    /// Names that occur in the size, with repetitions.
    pub fn names(&self) -> Vec<String> {
        let mut names = vec![];
        if let DimRepr::Symbolic(p) = &self.0 {
            p.collect_names(&mut names);
        }
        names
    }
    /// The name, if the size is a single name.
    pub fn as_name(&self) -> Option<String> {
        let names = self.names();
        (names.len() == 1 && *self == Dim::name(&names[0])).then(|| names[0].clone())
    }
    /// Rebuilds the size in another algebra; an unknown size becomes 0.
    pub fn fold<F: DimAlgebra>(&self, f: &mut F) -> F::Out {
        match &self.0 {
            DimRepr::Unknown => f.number(0),
            DimRepr::Number(n) => f.number(*n),
            DimRepr::Symbolic(p) => p.fold(f),
        }
    }
    /// Replaces the names for which `f` gives a polynomial.
    fn substitute_names(&self, f: &dyn Fn(&str) -> Option<Polynomial>) -> Dim {
        match &self.0 {
            DimRepr::Unknown | DimRepr::Number(_) => self.clone(),
            DimRepr::Symbolic(p) => Dim::from_poly(p.substitute_names(f)),
        }
    }
    /// Replaces names by these values.
    pub fn bind(&self, values: &[(&str, i64)]) -> Dim {
        self.substitute_names(&|n| values.iter().find(|(m, _)| *m == n).map(|(_, v)| Polynomial::from_number(*v)))
    }
}

impl From<usize> for Dim {
    fn from(n: usize) -> Dim {
        Dim::from(n as i64)
    }
}
impl From<i64> for Dim {
    fn from(n: i64) -> Dim {
        Dim(DimRepr::Number(n))
    }
}
/// Implements an operator: on numbers directly, on polynomials by a method.
macro_rules! operator {
    ($Trait:ident $name:ident |$x:ident, $y:ident| $numbers:expr, |$a:ident, $b:ident| $polys:expr) => {
        impl $Trait for &Dim {
            type Output = Dim;
            fn $name(self, b: &Dim) -> Dim {
                match (&self.0, &b.0) {
                    (DimRepr::Number($x), DimRepr::Number($y)) => Dim::from($numbers),
                    _ => self.combine_polynomials(b, |$a, $b| $polys),
                }
            }
        }
    };
}
operator!(Add add |x, y| x.saturating_add(*y), |a, b| a.clone().add_scaled(b, 1));
operator!(Sub sub |x, y| x.saturating_sub(*y), |a, b| a.clone().add_scaled(b, -1));
operator!(Mul mul |x, y| x.saturating_mul(*y), |a, b| a.mul(b));

/// Equations between sizes that `assume(..)` states, as rewrites of one name each.
#[derive(Clone, Default, Debug)]
pub struct Facts(Vec<(String, Polynomial)>);

impl Facts {
    /// Records `a == b`; returns false if neither side isolates a name, so that the fact cannot be used.
    pub fn assume(&mut self, a: &Dim, b: &Dim) -> bool {
        let difference = &self.rewrite_by_facts(a) - &self.rewrite_by_facts(b);
        let Some(diff) = difference.as_poly().map(Cow::into_owned) else { return false };
        let isolated = diff.0.iter().find_map(|(m, c)| match (&m[..], *c) {
            ([Atom::Name(n)], 1 | -1) => {
                let used = diff.0.keys().flatten().filter(|a| **a == m[0]).count();
                (used == 1 && diff.has_only_names()).then(|| (n.clone(), m.clone(), *c))
            }
            _ => None,
        });
        let Some((name, m, c)) = isolated else { return diff.0.is_empty() };
        let mut rest = diff;
        rest.0.remove(&m);
        let value = Polynomial::default().add_scaled(&rest, -c);
        // Earlier facts may mention the name.
        for (_, p) in &mut self.0 {
            *p = p.substitute_names(&|n| (n == name).then(|| value.clone()));
        }
        self.0.push((name, value));
        true
    }
    /// Replaces each name that a fact equates with another size by that size.
    pub fn rewrite_by_facts(&self, d: &Dim) -> Dim {
        d.substitute_names(&|n| self.0.iter().find(|(m, _)| m == n).map(|(_, p)| p.clone()))
    }
    /// Compares two sizes for equality. It is rigid: `No` if they are different polynomials in names, though they may
    /// be equal for some values, as kernels must be right for all values.
    pub fn compare_equal(&self, a: &Dim, b: &Dim) -> SizeComparison {
        match (&self.rewrite_by_facts(a) - &self.rewrite_by_facts(b)).0 {
            DimRepr::Number(0) => SizeComparison::Yes,
            DimRepr::Number(_) => SizeComparison::No,
            DimRepr::Symbolic(difference) if difference.has_only_names() => SizeComparison::No,
            DimRepr::Unknown | DimRepr::Symbolic(_) => SizeComparison::Undecided,
        }
    }
    /// Compares for order. It is lenient: `No` only if `a <= b` fails for every value of the names (each at least 1).
    pub fn compare_at_most(&self, a: &Dim, b: &Dim) -> SizeComparison {
        let room = match (&self.rewrite_by_facts(b) - &self.rewrite_by_facts(a)).0 {
            DimRepr::Unknown => return SizeComparison::Undecided,
            DimRepr::Number(room) if room >= 0 => return SizeComparison::Yes,
            DimRepr::Number(_) => return SizeComparison::No,
            DimRepr::Symbolic(room) => room,
        };
        let at_one = room.0.values().fold(0i64, |sum, c| sum.saturating_add(*c));
        let up = room.0.iter().all(|(m, c)| m.is_empty() || *c > 0);
        let down = room.0.iter().all(|(m, c)| m.is_empty() || *c < 0);
        match room.has_only_names() {
            true if up && at_one >= 0 => SizeComparison::Yes,
            true if down && at_one < 0 => SizeComparison::No,
            _ => SizeComparison::Undecided,
        }
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Name(n) => f.write_str(n),
            Atom::Cdiv(a, b) => write!(f, "cdiv({a}, {b})"),
            Atom::Min(a, b) => write!(f, "min({a}, {b})"),
            Atom::Max(a, b) => write!(f, "max({a}, {b})"),
        }
    }
}
impl fmt::Display for Polynomial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("0");
        }
        let mut terms: Vec<_> = self.0.iter().collect();
        terms.sort_by_key(|(m, _)| std::cmp::Reverse(m.len()));
        for (i, (m, c)) in terms.into_iter().enumerate() {
            let sign = match (i, *c < 0) {
                (0, false) => "",
                (0, true) => "-",
                (_, false) => " + ",
                (_, true) => " - ",
            };
            let mut parts: Vec<String> = m.iter().map(|a| a.to_string()).collect();
            if c.abs() != 1 || m.is_empty() {
                parts.insert(0, c.abs().to_string());
            }
            write!(f, "{sign}{}", parts.join("*"))?;
        }
        Ok(())
    }
}
impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            DimRepr::Unknown => f.write_str("?"),
            DimRepr::Number(n) => n.fmt(f),
            DimRepr::Symbolic(p) => p.fmt(f),
        }
    }
}
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn n(s: &str) -> Dim {
        Dim::name(s)
    }
    #[test]
    fn normal_forms_print_and_compare() {
        let two = Dim::from(2i64);
        let a = &(&two * &n("BK")) + &n("BQ");
        assert_eq!((&a - &n("BK")).to_string(), "BK + BQ");
        assert_eq!((&n("S") * &n("D")).cdiv(&n("D")), n("S"));
        assert_eq!(n("S").cdiv(&n("BQ")).to_string(), "cdiv(S, BQ)");
        assert_eq!(n("S").cdiv(&n("BQ")).bind(&[("S", 100), ("BQ", 64)]), Dim::from(2i64));
        assert_eq!(n("S").min(&(&n("S") - &Dim::from(1i64))).to_string(), "S - 1");
    }
    #[test]
    fn equality_is_rigid_and_order_lenient() {
        let mut f = Facts::default();
        assert_eq!(f.compare_equal(&n("BQ"), &n("BK")), SizeComparison::No);
        assert_eq!(f.compare_equal(&n("BQ"), &Dim::UNKNOWN), SizeComparison::Undecided);
        let c = |a: &str, b: &str| n(a).cdiv(&n(b));
        // Two spellings of one value: not an error. One more than itself: an error.
        let scaled = (&Dim::from(2i64) * &n("S")).cdiv(&(&Dim::from(2i64) * &n("B")));
        assert_eq!(f.compare_equal(&scaled, &c("S", "B")), SizeComparison::Undecided);
        assert_eq!(f.compare_equal(&(&c("S", "B") + &Dim::from(1i64)), &c("S", "B")), SizeComparison::No);
        assert_eq!(f.compare_at_most(&n("S"), &n("T")), SizeComparison::Undecided);
        assert_eq!(f.compare_at_most(&(&n("S") + &Dim::from(1i64)), &n("S")), SizeComparison::No);
        assert!(f.assume(&n("BQ"), &n("BK")));
        assert_eq!(f.compare_equal(&(&n("BQ") * &n("D")), &(&n("BK") * &n("D"))), SizeComparison::Yes);
        assert!(f.assume(&(&Dim::from(2i64) * &n("BK")), &n("S")));
        assert_eq!(f.compare_equal(&(&n("BQ") + &n("BQ")), &n("S")), SizeComparison::Yes);
    }
}
