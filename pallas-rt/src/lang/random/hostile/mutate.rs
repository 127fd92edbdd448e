//! Small changes to texts: to a number, a name, an operation, a type or a line.
use super::Dice;
use pallas_ir::{DType, ScalarOp};

/// Boundary values of sizes, offsets and constants.
const NUMBERS: [&str; 22] = [
    "0",
    "1",
    "2",
    "3",
    "5",
    "7",
    "8",
    "9",
    "16",
    "31",
    "64",
    "65",
    "255",
    "100000",
    "-1",
    "-2",
    "2147483647",
    "2147483648",
    "-2147483648",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
];

/// The texts that are mutated, and the words that replace others.
pub(crate) struct Corpus {
    texts: Vec<Vec<String>>,
    operations: Vec<&'static str>,
    types: Vec<String>,
}

impl Corpus {
    pub(crate) fn new(texts: Vec<String>) -> Corpus {
        Corpus {
            texts: texts.iter().map(|text| tokens(text)).collect(),
            operations: ScalarOp::ALL.iter().map(|op| op.name()).collect(),
            types: DType::ALL.iter().map(DType::to_string).collect(),
        }
    }
    /// Returns one of the texts with a few changes.
    pub(crate) fn mutated(&self, dice: &mut Dice) -> String {
        let text = dice.below(self.texts.len());
        self.mutate(text, dice)
    }
    /// Returns the text with the index `text`, with a few changes.
    pub(crate) fn mutate(&self, text: usize, dice: &mut Dice) -> String {
        let mut tokens = self.texts[text].clone();
        for _ in 0..1 + dice.below(3) / 2 {
            self.change(&mut tokens, dice);
        }
        tokens.concat()
    }

    /// Makes one random change to the tokens.
    fn change(&self, tokens: &mut Vec<String>, dice: &mut Dice) {
        match dice.below(20) {
            0..4 => replace(tokens, dice, is_number, number),
            4 => everywhere(tokens, dice, is_number, number),
            5..8 => swap_in(tokens, dice, |t| t.starts_with('%')),
            8..10 => {
                let operation = |t: &str| ScalarOp::parse(t).is_some();
                replace(tokens, dice, operation, |dice, _| dice.pick(&self.operations).to_string());
            }
            10 => {
                let is_type = |t: &str| t.parse::<DType>().is_ok();
                replace(tokens, dice, is_type, |dice, _| self.types[dice.below(self.types.len())].clone());
            }
            11 => {
                let is_type = |t: &str| t.parse::<DType>().is_ok();
                everywhere(tokens, dice, is_type, |dice, _| self.types[dice.below(self.types.len())].clone());
            }
            12 => swap_in(tokens, dice, is_word),
            13 => lines(tokens, dice),
            14 => lines(tokens, dice),
            15 => {
                let at = dice.below(tokens.len());
                tokens.remove(at);
            }
            16 => {
                let (from, to) = (dice.below(tokens.len()), dice.below(tokens.len()));
                let token = tokens[from].clone();
                tokens.insert(to, token);
            }
            17 => {
                let (a, b) = (dice.below(tokens.len()), dice.below(tokens.len()));
                tokens.swap(a, b);
            }
            18 => {
                // Inserts lines of another kernel.
                let other = &self.texts[dice.below(self.texts.len())];
                let (from, to) = (line(other, dice), line(tokens, dice));
                tokens.splice(to.start..to.start, other[from].iter().cloned());
            }
            _ => {
                let at = dice.below(tokens.len());
                let odd = ["\u{0}", "é", "\"", "\\u{", "(", "[", "{", "}", "?", "dyn", "drop", "element", "cdiv(", "²"];
                tokens[at] = dice.pick(&odd).to_string();
            }
        }
    }
}

/// Splits a text into words, numbers, and single characters between them.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = vec![];
    for c in text.chars() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let joins = |last: &String| {
            let sign = last == "%" || last == "-";
            word(c) && (sign || last.ends_with(word)) || c == ' ' && last.ends_with(' ')
        };
        match tokens.last_mut().filter(|last| joins(last)) {
            Some(last) => last.push(c),
            None => tokens.push(c.to_string()),
        }
    }
    tokens
}

fn is_number(token: &str) -> bool {
    token.parse::<i64>().is_ok()
}
fn is_word(token: &str) -> bool {
    token.starts_with(char::is_alphabetic)
}

/// Returns the number after or before `old`, or a boundary value.
fn number(dice: &mut Dice, old: &str) -> String {
    match dice.below(4) {
        0 => old.parse::<i64>().unwrap_or(0).wrapping_add(1).to_string(),
        1 => old.parse::<i64>().unwrap_or(0).wrapping_sub(1).to_string(),
        _ => dice.pick(&NUMBERS).to_string(),
    }
}

/// Returns the index of a random token that fits.
fn place(tokens: &[String], dice: &mut Dice, fits: impl Fn(&str) -> bool) -> Option<usize> {
    let fitting: Vec<usize> = (0..tokens.len()).filter(|&i| fits(&tokens[i])).collect();
    (!fitting.is_empty()).then(|| dice.pick(&fitting))
}

/// Replaces a random token that fits by what `other` returns for it.
fn replace(
    tokens: &mut [String],
    dice: &mut Dice,
    fits: impl Fn(&str) -> bool,
    other: impl Fn(&mut Dice, &str) -> String,
) {
    if let Some(at) = place(tokens, dice, fits) {
        tokens[at] = other(dice, &tokens[at]);
    }
}

/// Replaces all occurrences of a random token that fits, so that shapes and types still agree.
fn everywhere(
    tokens: &mut [String],
    dice: &mut Dice,
    fits: impl Fn(&str) -> bool,
    other: impl Fn(&mut Dice, &str) -> String,
) {
    if let Some(at) = place(tokens, dice, fits) {
        let (old, new) = (tokens[at].clone(), other(dice, &tokens[at]));
        tokens.iter_mut().filter(|t| **t == old).for_each(|t| t.clone_from(&new));
    }
}

/// Replaces a random token that fits by another token of the text that fits.
fn swap_in(tokens: &mut [String], dice: &mut Dice, fits: impl Fn(&str) -> bool + Copy) {
    if let (Some(from), Some(to)) = (place(tokens, dice, fits), place(tokens, dice, fits)) {
        tokens[to] = tokens[from].clone();
    }
}

/// Returns the range of tokens of a random line.
fn line(tokens: &[String], dice: &mut Dice) -> std::ops::Range<usize> {
    let at = dice.below(tokens.len());
    let start = tokens[..at].iter().rposition(|t| t == "\n").map_or(0, |i| i + 1);
    let end = tokens[at..].iter().position(|t| t == "\n").map_or(tokens.len(), |i| at + i + 1);
    start..end
}

/// Deletes, duplicates or moves a random line.
fn lines(tokens: &mut Vec<String>, dice: &mut Dice) {
    let from = line(tokens, dice);
    let taken: Vec<String> = tokens[from.clone()].to_vec();
    let kind = dice.below(3);
    if kind != 1 {
        tokens.drain(from);
    }
    if kind != 0 && !tokens.is_empty() {
        let to = line(tokens, dice).start;
        tokens.splice(to..to, taken);
    }
}
