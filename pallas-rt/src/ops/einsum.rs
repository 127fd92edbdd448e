//! Sums of products named by letters.
use super::contract::contract;
use super::elementwise::{Meets, meet};
use super::reduce::total;
use super::shape::transpose;
use crate::array::Array;
use crate::jit::apply;
use pallas_graph::{Graph, Var};
use pallas_ir::{At, Diag, Loc, ScalarOp};
use std::borrow::Borrow;

/// A value and the letters of its axes.
struct Labelled {
    value: Var,
    letters: Vec<char>,
}

/// Sum of products of arrays over axes that letters name: `"ij,jk->ik"` is the product of matrices. A letter that is
/// not behind the arrow is summed over; without an arrow the result has the letters that occur once, in alphabetical
/// order.
///
/// Arrays are multiplied in their order, two at a time. A letter that one array has twice (a diagonal) and `...` are
/// refused.
///
/// ```
/// use pallas_rt::{Array, ops::einsum};
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// assert_eq!(einsum("ij,kj->ik", &[&x, &x]).to_vec::<f32>()?, [5.0, 11.0, 11.0, 25.0]);
/// assert_eq!(einsum("ij->j", &[&x]).to_vec::<f32>()?, [4.0, 6.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[track_caller]
#[must_use]
pub fn einsum<A: Borrow<Array>>(subscripts: &str, arrays: &[A]) -> Array {
    let arrays: Vec<&Array> = arrays.iter().map(Borrow::borrow).collect();
    apply(&arrays, Loc::caller(), |graph, vars| {
        let (operands, result) = parse(graph, subscripts, vars)?;
        evaluate(graph, operands, &result)
    })
}

/// The letters of each operand and of the result.
fn parse(graph: &Graph, subscripts: &str, vars: &[Var]) -> Result<(Vec<Labelled>, Vec<char>), Diag> {
    let wrong = |i: usize, message: String, help: &str| Err(Diag::new("einsum", At::Operand(i), message, help));
    let text: String = subscripts.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match text.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&text[..], None),
    };
    if let Some(other) = text.chars().find(|c| !c.is_alphabetic() && !",->".contains(*c)) {
        return wrong(0, format!("`{other}` in the subscripts \"{subscripts}\""), "letters, commas and one arrow");
    }
    let terms: Vec<Vec<char>> = left.split(',').map(|term| term.chars().collect()).collect();
    if terms.len() != vars.len() || vars.is_empty() {
        let message = format!("subscripts \"{subscripts}\" of {} arrays", vars.len());
        return wrong(0, message, "one group of letters for each array");
    }
    let mut extents: Vec<(char, usize)> = vec![];
    for (i, (letters, &v)) in terms.iter().zip(vars).enumerate() {
        let ty = graph.ty(v);
        if letters.len() != ty.shape.len() {
            let message = format!("subscripts \"{}\" of {ty}", letters.iter().collect::<String>());
            return wrong(i, message, "one letter for each axis");
        }
        for (k, (&letter, &n)) in letters.iter().zip(&ty.shape).enumerate() {
            if letters[..k].contains(&letter) {
                let help = "take the diagonal first: `x.diagonal(0, a, b)`";
                return wrong(i, format!("`{letter}` names two axes of {ty}"), help);
            }
            match extents.iter().find(|(known, _)| *known == letter) {
                Some((_, known)) if *known != n => {
                    return wrong(i, format!("`{letter}` names axes of {known} and {n} elements"), "equal extents");
                }
                Some(_) => {}
                None => extents.push((letter, n)),
            }
        }
    }
    let result: Vec<char> = match right {
        Some(right) => right.chars().collect(),
        None => {
            let count = |letter: char| terms.iter().flatten().filter(|&&c| c == letter).count();
            let mut once: Vec<char> = extents.iter().map(|(c, _)| *c).filter(|&c| count(c) == 1).collect();
            once.sort_unstable();
            once
        }
    };
    for (k, letter) in result.iter().enumerate() {
        if result[..k].contains(letter) || !extents.iter().any(|(known, _)| known == letter) {
            return wrong(
                0,
                format!("`{letter}` of the result of \"{subscripts}\""),
                "each letter once, from an array",
            );
        }
    }
    let labelled = terms.into_iter().zip(vars).map(|(letters, &value)| Labelled { value, letters });
    Ok((labelled.collect(), result))
}

/// Multiplies operands from left to right, and sums over a letter as soon as nothing needs it.
fn evaluate(graph: &mut Graph, operands: Vec<Labelled>, result: &[char]) -> Result<Var, Diag> {
    let mut rest = operands.into_iter();
    let mut done = rest.next().expect("there are operands");
    while let Some(next) = rest.next() {
        let later: Vec<char> = rest.as_slice().iter().flat_map(|x| x.letters.clone()).chain(result.to_vec()).collect();
        done = multiplied(graph, done, next, &later)?;
    }
    let done = summed(graph, done, |letter| result.contains(&letter))?;
    let place = |letter: &char| done.letters.iter().position(|c| c == letter).expect("a letter of the result");
    let axes: Vec<usize> = result.iter().map(place).collect();
    if axes.is_sorted() { Ok(done.value) } else { transpose(graph, done.value, axes) }
}

/// Sums over axes whose letters nothing needs.
fn summed(graph: &mut Graph, x: Labelled, is_needed: impl Fn(char) -> bool) -> Result<Labelled, Diag> {
    let axes: Vec<isize> = (0..x.letters.len()).filter(|&i| !is_needed(x.letters[i])).map(|i| i as isize).collect();
    if axes.is_empty() {
        return Ok(x);
    }
    let dtype = graph.ty(x.value).dtype;
    let sum = total(graph, ScalarOp::Add, x.value, &axes[..].into())?;
    let value = super::elementwise::cast(graph, sum, dtype)?;
    Ok(Labelled { value, letters: x.letters.into_iter().filter(|&c| is_needed(c)).collect() })
}

fn multiplied(graph: &mut Graph, a: Labelled, b: Labelled, later: &[char]) -> Result<Labelled, Diag> {
    let a = summed(graph, a, |c| later.contains(&c) || b.letters.contains(&c))?;
    let b = summed(graph, b, |c| later.contains(&c) || a.letters.contains(&c))?;
    let (mut batch, mut pairs, mut letters) = (vec![], vec![], vec![]);
    for (i, letter) in a.letters.iter().enumerate() {
        match b.letters.iter().position(|c| c == letter) {
            Some(j) if later.contains(letter) => {
                batch.push((i, j));
                letters.push(*letter);
            }
            Some(j) => pairs.push((i, j)),
            None => {}
        }
    }
    let own = |x: &Labelled, other: &Labelled| {
        x.letters.iter().copied().filter(|c| !other.letters.contains(c)).collect::<Vec<_>>()
    };
    letters.extend(own(&a, &b));
    letters.extend(own(&b, &a));
    if !pairs.is_empty() {
        return Ok(Labelled { value: contract(graph, a.value, b.value, batch, pairs)?, letters });
    }
    // Nothing is summed: an elementwise product.
    let mut factors = vec![];
    for x in [a, b] {
        let order: Vec<usize> = letters.iter().filter_map(|c| x.letters.iter().position(|own| own == c)).collect();
        let value = if order.is_sorted() { x.value } else { transpose(graph, x.value, order)? };
        let extent = |c: &char| x.letters.iter().position(|own| own == c).map_or(1, |i| graph.ty(x.value).shape[i]);
        let shape: Vec<usize> = letters.iter().map(extent).collect();
        factors.push(Meets::Var(super::shape::reshape(graph, value, &shape)?));
    }
    Ok(Labelled { value: meet(graph, ScalarOp::Mul, &factors)?, letters })
}
