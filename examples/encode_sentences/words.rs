//! Word pieces, as BERT's uncased models read text (Devlin et al., 2019).
use std::collections::HashMap;
use unicode_normalization::UnicodeNormalization;

/// The pieces that a model knows, and their numbers.
pub struct Vocabulary(HashMap<String, i32>);

/// Longer words are unknown, as in the original code.
const LONGEST: usize = 100;

impl Vocabulary {
    /// A vocabulary of one piece a line, whose number is that of its line.
    pub fn from_lines(text: &str) -> Vocabulary {
        Vocabulary(text.lines().zip(0..).map(|(piece, id)| (piece.to_string(), id)).collect())
    }

    /// The numbers of a text's pieces, between `[CLS]` and `[SEP]`; at most `most` in all.
    ///
    /// # Panics
    /// If the vocabulary lacks one of BERT's special pieces.
    pub fn encode(&self, text: &str, most: usize) -> Vec<i32> {
        let [start, end, unknown] = ["[CLS]", "[SEP]", "[UNK]"].map(|piece| self.0[piece]);
        let mut ids = vec![start];
        ids.extend(words(text).iter().flat_map(|word| self.pieces(word).unwrap_or_else(|| vec![unknown])));
        ids.truncate(most.saturating_sub(1));
        ids.push(end);
        ids
    }

    /// The longest known piece at the start of a word, then the longest one after it, and so on.
    fn pieces(&self, word: &str) -> Option<Vec<i32>> {
        if word.chars().count() > LONGEST {
            return None;
        }
        let (mut rest, mut ids) = (word, vec![]);
        while !rest.is_empty() {
            let mark = if ids.is_empty() { "" } else { "##" };
            let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8()).rev();
            let (end, id) = ends
                .map(|end| (end, self.0.get(&format!("{mark}{}", &rest[..end]))))
                .find_map(|(end, id)| Some((end, *id?)))?;
            ids.push(id);
            rest = &rest[end..];
        }
        Some(ids)
    }
}

/// The words of a text in lower case and without accents. Punctuation marks and Chinese characters are words of their
/// own. Marks of Latin, Greek and Cyrillic letters alone are accents.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut inside) = (Vec::<String>::new(), false);
    for c in text.to_lowercase().nfd().filter(|c| !('\u{300}'..='\u{36f}').contains(c)) {
        let alone = c.is_ascii_punctuation() || is_punctuation(c) || is_chinese(c);
        match words.last_mut() {
            _ if c.is_whitespace() => {}
            _ if c.is_control() || is_format(c) => continue,
            Some(word) if inside && !alone => word.push(c),
            _ => words.push(c.into()),
        }
        inside = !alone && !c.is_whitespace();
    }
    words
}

/// Characters that nobody sees, and the one for bytes that are no text.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}')
        || matches!(c, '\u{feff}' | '\u{fffd}')
}

/// General, supplemental and CJK punctuation, and that of Latin-1.
fn is_punctuation(c: char) -> bool {
    matches!(c, '¡' | '§' | '«' | '¶' | '·' | '»' | '¿' | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}')
        || matches!(c, '\u{2e00}'..='\u{2e5d}' | '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{ff01}'..='\u{ff0f}')
}

fn is_chinese(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2fa1f}')
}
