//! Sums of products named by letters.
use super::elementwise_broadcast::{GraphOperand, push_elementwise};
use super::reduce::reduce_widened;
use super::shape::{reshape, transpose};
use super::tensordot::contract;
use super::triangle::diagonal;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::{At, Diag, Loc, ScalarOp};
use std::borrow::Borrow;

/// Largest number of arrays for which every order of their products is tried; JAX's number is 4.
const MAX_EXHAUSTIVE_ARRAYS: usize = 5;

/// A value and the letters of its axes.
struct LabelledOperand {
    value: Var,
    letters: Vec<char>,
}

/// Sum of products of arrays over axes that letters name: `"ij,jk->ik"` is the product of matrices; `jnp.einsum`.
///
/// A letter that is not after the arrow is summed over; without an arrow the result has the axes of `...`, then the
/// letters that occur once, in alphabetical order. A letter that an array has twice is its diagonal. `...` stands for
/// all axes that have no letter, which broadcast from the last one; they are summed over if the result has none. An
/// axis of one element fits every extent.
///
/// Arrays are multiplied two at a time, in the order with the fewest products of elements; of more than five arrays,
/// the cheapest pair first.
///
/// A wrong number of letters or arrays, unequal extents, and letters of the result that are given twice or that no
/// array has make an array that holds the error.
///
/// ```
/// use pallas_rt::{Array, ops::einsum};
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(einsum("ij,kj->ik", &[&x, &x]).to_vec::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
/// assert_eq!(einsum("...j->...", &[&x]).to_vec::<f32>()?, [3.0, 7.0]);
/// assert_eq!(einsum("ii->i", &[&x]).to_vec::<f32>()?, [1.0, 4.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn einsum<A: Borrow<Array>>(subscripts: &str, arrays: &[A]) -> Array {
    let arrays: Vec<&Array> = arrays.iter().map(Borrow::borrow).collect();
    apply(&arrays, Loc::caller(), |graph, vars| {
        let shapes: Vec<Vec<usize>> = vars.iter().map(|&v| graph.ty(v).shape.clone()).collect();
        let form = Subscripts::parse(subscripts, &shapes)?;
        let mut operands = vec![];
        for (letters, &value) in form.terms.iter().zip(vars) {
            let x = take_diagonals(graph, LabelledOperand { value, letters: letters.clone() })?;
            operands.push(form.drop_singleton_axes(graph, x)?);
        }
        push_einsum(graph, operands, &form)
    })
}

fn einsum_diag(operand_number: usize, message: String, help: &str) -> Diag {
    Diag::new("einsum", At::Operand(operand_number), message, help)
}

/// The letters of each operand and of the result, and the extent of each letter.
struct Subscripts {
    terms: Vec<Vec<char>>,
    result: Vec<char>,
    extents: Vec<(char, usize)>,
}

/// Returns the letter of an axis of `...`, by its distance from the last one: a character that users do not write.
fn ellipsis_letter(distance: usize) -> char {
    char::from_u32(0xe000 + distance as u32).expect("a character for private use")
}

/// Returns the letters of a term, in which `...` stands for `ellipsis_axes` axes; `None` if it has other dots.
fn term_letters(term: &str, ellipsis_axes: usize) -> Option<Vec<char>> {
    let (before, after) = term.split_once("...").unwrap_or((term, ""));
    let hidden = if before.len() == term.len() { 0 } else { ellipsis_axes };
    let letters = before.chars().chain((0..hidden).rev().map(ellipsis_letter)).chain(after.chars());
    (!before.contains('.') && !after.contains('.')).then(|| letters.collect())
}

impl Subscripts {
    /// Parses subscripts for arrays of these shapes.
    fn parse(subscripts: &str, shapes: &[Vec<usize>]) -> Result<Subscripts, Diag> {
        let text: String = subscripts.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (&text[..], None),
        };
        let other = |text: &str| text.chars().find(|c| !c.is_alphabetic() && !",.".contains(*c));
        if let Some(other) = other(left).or_else(|| right.and_then(other)) {
            let message = format!("`{other}` in the subscripts \"{subscripts}\"");
            return Err(einsum_diag(0, message, "letters, commas, `...` and one arrow"));
        }
        let texts: Vec<&str> = left.split(',').collect();
        if texts.len() != shapes.len() || shapes.is_empty() {
            let message = format!("subscripts \"{subscripts}\" of {} arrays", shapes.len());
            return Err(einsum_diag(0, message, "one group of letters for each array"));
        }
        let (mut terms, mut widest) = (vec![], 0);
        for (i, (term, shape)) in texts.iter().zip(shapes).enumerate() {
            let hidden = shape.len().saturating_sub(term.chars().filter(|&c| c != '.').count());
            let Some(letters) = term_letters(term, hidden) else {
                return Err(einsum_diag(i, format!("dots in the subscripts \"{term}\""), "`...` once for each array"));
            };
            if letters.len() != shape.len() {
                let message = format!("subscripts \"{term}\" of an array of {} axes", shape.len());
                return Err(einsum_diag(i, message, "one letter for each axis; `...` stands for those that have none"));
            }
            widest = widest.max(if term.contains('.') { hidden } else { 0 });
            terms.push(letters);
        }
        let extents = letter_extents(&terms, shapes)?;
        let result = match right {
            Some(right) => term_letters(right, widest)
                .ok_or_else(|| einsum_diag(0, format!("dots in the result \"{right}\""), "`...` once"))?,
            None => {
                let count = |letter: char| terms.iter().flatten().filter(|&&c| c == letter).count();
                let is_once = |&c: &char| c.is_alphabetic() && count(c) == 1;
                let mut once: Vec<char> = extents.iter().map(|(c, _)| *c).filter(is_once).collect();
                once.sort_unstable();
                (0..widest).rev().map(ellipsis_letter).chain(once).collect()
            }
        };
        for (k, letter) in result.iter().enumerate() {
            if result[..k].contains(letter) || !extents.iter().any(|(known, _)| known == letter) {
                let message = format!("`{letter}` of the result of \"{subscripts}\"");
                return Err(einsum_diag(0, message, "each letter once, from an array"));
            }
        }
        Ok(Subscripts { terms, result, extents })
    }

    fn extent(&self, letter: char) -> usize {
        self.extents.iter().find(|(known, _)| *known == letter).map_or(1, |(_, n)| *n)
    }

    /// Returns the operand without axes of one element whose letter has more elsewhere: these broadcast.
    fn drop_singleton_axes(&self, graph: &mut Graph, x: LabelledOperand) -> Result<LabelledOperand, Diag> {
        let shape = graph.ty(x.value).shape.clone();
        let stays = |i: &usize| shape[*i] == self.extent(x.letters[*i]);
        let kept: Vec<usize> = (0..shape.len()).filter(stays).collect();
        if kept.len() == shape.len() {
            return Ok(x);
        }
        let value = reshape(graph, x.value, &kept.iter().map(|&i| shape[i]).collect::<Vec<_>>())?;
        Ok(LabelledOperand { value, letters: kept.iter().map(|&i| x.letters[i]).collect() })
    }

    /// Returns the number of products of elements in the cheapest order, and the indices of its first pair.
    fn cheapest_first_pair(&self, terms: &[Vec<char>]) -> (f64, [usize; 2]) {
        let mut best = (f64::INFINITY, [0, 1]);
        for j in 1..terms.len() {
            for i in 0..j {
                let mut rest = terms.to_vec();
                let (second, first) = (rest.remove(j), rest.remove(i));
                let mut all = first.clone();
                all.extend(second.iter().filter(|c| !first.contains(c)));
                let mut cost: f64 = all.iter().map(|&c| self.extent(c) as f64).product();
                if (3..=MAX_EXHAUSTIVE_ARRAYS).contains(&terms.len()) {
                    all.retain(|c| self.result.contains(c) || rest.iter().any(|term| term.contains(c)));
                    rest.insert(i, all);
                    cost += self.cheapest_first_pair(&rest).0;
                }
                // Of equal orders the one from left to right.
                if cost < best.0 {
                    best = (cost, [i, j]);
                }
            }
        }
        best
    }
}

/// Returns the extent of each letter.
///
/// # Errors
/// Extents of a letter that differ, unless one is 1; a diagonal of axes that differ.
fn letter_extents(terms: &[Vec<char>], shapes: &[Vec<usize>]) -> Result<Vec<(char, usize)>, Diag> {
    let mut extents: Vec<(char, usize)> = vec![];
    for (i, (letters, shape)) in terms.iter().zip(shapes).enumerate() {
        for (k, (&letter, &n)) in letters.iter().zip(shape).enumerate() {
            let own = letters[..k].iter().position(|&c| c == letter).map(|first| shape[first]);
            let Some((_, known)) = extents.iter_mut().find(|(known, _)| *known == letter) else {
                extents.push((letter, n));
                continue;
            };
            let fits = own.map_or(*known == 1 || n == 1 || *known == n, |own| own == n);
            if !fits {
                let name = if letter.is_alphabetic() { letter.to_string() } else { "...".into() };
                let message = format!("`{name}` names axes of {} and {n} elements", own.unwrap_or(*known));
                let help = if own.is_some() { "equal extents on a diagonal" } else { "equal extents, or 1" };
                return Err(einsum_diag(i, message, help));
            }
            if *known == 1 {
                *known = n;
            }
        }
    }
    Ok(extents)
}

/// Appends the diagonals of axes that have the same letter.
fn take_diagonals(graph: &mut Graph, mut x: LabelledOperand) -> Result<LabelledOperand, Diag> {
    let twice = |letters: &[char]| {
        (0..letters.len()).find_map(|j| letters[..j].iter().position(|&c| c == letters[j]).map(|i| (i, j)))
    };
    while let Some((i, j)) = twice(&x.letters) {
        x.value = diagonal(graph, x.value, 0, i as isize, j as isize)?;
        x.letters.remove(j);
        let letter = x.letters.remove(i);
        x.letters.push(letter);
    }
    Ok(x)
}

/// Appends the result of an einsum: products of operands, two at a time in the cheapest order, with sums over a letter
/// as soon as neither another operand nor the result has it.
fn push_einsum(graph: &mut Graph, mut operands: Vec<LabelledOperand>, subscripts: &Subscripts) -> Result<Var, Diag> {
    while operands.len() > 1 {
        let terms: Vec<Vec<char>> = operands.iter().map(|x| x.letters.clone()).collect();
        let [i, j] = if terms.len() == 2 { [0, 1] } else { subscripts.cheapest_first_pair(&terms).1 };
        let (b, a) = (operands.remove(j), operands.remove(i));
        let later: Vec<char> =
            operands.iter().flat_map(|x| x.letters.clone()).chain(subscripts.result.iter().copied()).collect();
        operands.insert(i, multiply_operands(graph, a, b, &later)?);
    }
    let mut done = sum_unneeded_axes(graph, operands.remove(0), |letter| subscripts.result.contains(&letter))?;
    let place = |letter: &char| done.letters.iter().position(|c| c == letter).expect("a letter of the result");
    let axes: Vec<usize> = subscripts.result.iter().map(place).collect();
    if !axes.is_sorted() {
        done.value = transpose(graph, done.value, axes)?;
    }
    Ok(done.value)
}

/// Appends the sum over axes whose letters nothing needs.
fn sum_unneeded_axes(
    graph: &mut Graph,
    x: LabelledOperand,
    is_needed: impl Fn(char) -> bool,
) -> Result<LabelledOperand, Diag> {
    let axes: Vec<isize> = (0..x.letters.len()).filter(|&i| !is_needed(x.letters[i])).map(|i| i as isize).collect();
    if axes.is_empty() {
        return Ok(x);
    }
    let dtype = graph.ty(x.value).dtype;
    let sum = reduce_widened(graph, ScalarOp::Add, x.value, &axes[..].into())?;
    let value = super::elementwise_broadcast::cast(graph, sum, dtype)?;
    Ok(LabelledOperand { value, letters: x.letters.into_iter().filter(|&c| is_needed(c)).collect() })
}

/// Appends the product of two operands, summed over letters that are not among `kept_letters`.
fn multiply_operands(
    graph: &mut Graph,
    a: LabelledOperand,
    b: LabelledOperand,
    kept_letters: &[char],
) -> Result<LabelledOperand, Diag> {
    let a = sum_unneeded_axes(graph, a, |c| kept_letters.contains(&c) || b.letters.contains(&c))?;
    let b = sum_unneeded_axes(graph, b, |c| kept_letters.contains(&c) || a.letters.contains(&c))?;
    let (mut batch, mut pairs, mut letters) = (vec![], vec![], vec![]);
    for (i, letter) in a.letters.iter().enumerate() {
        match b.letters.iter().position(|c| c == letter) {
            Some(j) if kept_letters.contains(letter) => {
                batch.push((i, j));
                letters.push(*letter);
            }
            Some(j) => pairs.push((i, j)),
            None => {}
        }
    }
    let own = |x: &LabelledOperand, other: &LabelledOperand| {
        x.letters.iter().copied().filter(|c| !other.letters.contains(c)).collect::<Vec<_>>()
    };
    letters.extend(own(&a, &b));
    letters.extend(own(&b, &a));
    if !pairs.is_empty() {
        return Ok(LabelledOperand { value: contract(graph, a.value, b.value, batch, pairs)?, letters });
    }
    // Nothing is summed: an elementwise product.
    let mut factors = vec![];
    for x in [a, b] {
        let order: Vec<usize> = letters.iter().filter_map(|c| x.letters.iter().position(|own| own == c)).collect();
        let value = if order.is_sorted() { x.value } else { transpose(graph, x.value, order)? };
        let extent = |c: &char| x.letters.iter().position(|own| own == c).map_or(1, |i| graph.ty(x.value).shape[i]);
        let shape: Vec<usize> = letters.iter().map(extent).collect();
        factors.push(GraphOperand::Var(super::shape::reshape(graph, value, &shape)?));
    }
    Ok(LabelledOperand { value: push_elementwise(graph, ScalarOp::Mul, &factors)?, letters })
}
