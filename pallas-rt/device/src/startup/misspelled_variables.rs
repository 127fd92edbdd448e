//! Environment variables whose names resemble this crate's, but are misspelled.

/// Names of the variables that this crate reads.
const KNOWN_VARIABLES: [&str; 18] = [
    "PALLAS_CACHE_DIR",
    "PALLAS_CACHE_MIB",
    "PALLAS_CACHE_POLICY",
    "PALLAS_CPU_NATIVE",
    "PALLAS_DEADLINE_MS",
    "PALLAS_DEBUG_NANS",
    "PALLAS_DEVICE",
    "PALLAS_DEVICES",
    "PALLAS_DISABLE_JIT",
    "PALLAS_DUMP",
    "PALLAS_ENGINE",
    "PALLAS_INTERPRET_TURNS",
    "PALLAS_LOG_COMPILES",
    "PALLAS_PROFILE",
    "PALLAS_REQUIRE_GPU",
    "PALLAS_SPMD",
    "PALLAS_TIMELINE",
    "PALLAS_TUNE",
];

/// Maximum number of letters in which a misspelled name differs from the intended one.
const MAX_WRONG_LETTERS: usize = 2;

/// The variable that a misspelled name probably means; `None` if the name is correct or resembles no variable.
pub(super) fn find_meant_variable(name: &str) -> Option<&'static str> {
    if KNOWN_VARIABLES.contains(&name) {
        return None;
    }
    let distances = KNOWN_VARIABLES.into_iter().map(|known| (edit_distance(name, known), known));
    distances.min().filter(|(letters, _)| *letters <= MAX_WRONG_LETTERS).map(|(_, known)| known)
}

/// Levenshtein distance: number of letters to change, insert or delete.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn a_misspelled_variable_is_told_and_a_foreign_one_is_not() {
        assert_eq!(find_meant_variable("PALLAS_DEVISE"), Some("PALLAS_DEVICE"));
        assert_eq!(find_meant_variable("PALLAS_DEBUG_NAN"), Some("PALLAS_DEBUG_NANS"));
        assert_eq!(find_meant_variable("PALLAS_DISABLE_JITT"), Some("PALLAS_DISABLE_JIT"));
        let foreign = ["PALLAS_MODEL_DIR", "PALLAS_RANDOM_GRAPHS", "PALLAS_JAX", "PALLAS_TUNE_FACTOR", "PALLAS_HINT"];
        for name in KNOWN_VARIABLES.into_iter().chain(foreign) {
            assert_eq!(find_meant_variable(name), None, "{name}");
        }
    }

    /// Variables that code outside of tests reads, by the text of its files.
    fn read() -> BTreeSet<String> {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut folders = ["src", "../codegen/src", "../src"].map(|folder| own.join(folder)).to_vec();
        let mut found = BTreeSet::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder of sources") {
                let path = entry.expect("a file").path();
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
                // Random kernels are tests.
                if ["tests", "tests.rs", "random"].contains(&name.as_str()) {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).expect("a file of text");
                // Those of the build are none of the process.
                let code = text.split("#[cfg(test)]").next().unwrap_or_default().replace("env!(\"", "");
                let is_letter = |c: char| c.is_ascii_uppercase() || c == '_';
                let is_name = |word: &&str| {
                    word.strip_prefix("PALLAS_").is_some_and(|rest| !rest.is_empty() && rest.chars().all(is_letter))
                };
                found.extend(code.split('"').filter(is_name).map(String::from));
            }
        }
        found
    }

    #[test]
    fn every_variable_that_is_read_is_known() {
        let read = read();
        assert!(read.len() > 10, "{read:?}");
        let unknown: Vec<&String> = read.iter().filter(|name| !KNOWN_VARIABLES.contains(&name.as_str())).collect();
        assert!(unknown.is_empty(), "no warning names these: {unknown:?}");
    }
}
