//! Files of arrays: the real one loads, damaged ones are refused with a message that names the file.
#[path = "../../examples/data/mod.rs"]
mod data;

use pallas_rt::{Client, Error};
use std::path::PathBuf;

const HEADER: &str =
    r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"BOOL","shape":[3],"data_offsets":[8,11]}}"#;

/// A safetensors file of this header and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("the target folder can be written");
    path
}

#[test]
fn the_attention_operands_load() {
    let mut arrays = data::load(&Client::cpu(), "minilm_attention.safetensors").expect("part of the repository");
    for name in ["q", "k", "v", "out"] {
        let array = data::take(&mut arrays, name).expect("named so");
        assert_eq!(array.shape(), [2, 12, 176, 32]);
        assert!(array.to_vec::<f32>().expect("f32").iter().all(|x| x.is_finite()));
    }
    let lengths = data::take(&mut arrays, "lengths").and_then(|array| array.to_vec::<i32>()).expect("i32");
    assert!(lengths.iter().all(|&length| (1..=176).contains(&length)), "{lengths:?}");
    let missing = data::take(&mut arrays, "w").expect_err("taken all");
    assert_eq!(missing.to_string(), "the file: no array `w`, only []");
}

#[test]
fn small_types_load() {
    let bytes = file(HEADER, &[0, 0, 128, 63, 0, 0, 0, 64, 1, 0, 1]);
    let mut arrays = data::load(&Client::cpu(), write("whole.safetensors", &bytes)).expect("whole");
    assert_eq!(data::take(&mut arrays, "x").and_then(|x| x.to_vec::<f32>()), Ok(vec![1.0, 2.0]));
    assert_eq!(data::take(&mut arrays, "y").and_then(|y| y.to_vec::<bool>()), Ok(vec![true, false, true]));
}

#[test]
fn damaged_files_are_refused() {
    let check = |name: &str, bytes: &[u8]| {
        let path = write(name, bytes);
        match data::load(&Client::cpu(), &path) {
            Err(Error::File { path: found, .. }) => assert_eq!(found, path.display().to_string()),
            other => panic!("{name}: {other:?}"),
        }
    };
    let whole = file(HEADER, &[0; 11]);
    check("empty.safetensors", &[]);
    for cut in [4, 20, whole.len() - 12, whole.len() - 1] {
        check(&format!("cut_{cut}.safetensors"), &whole[..cut]);
    }
    check("longer.safetensors", &file(HEADER, &[0; 12]));
    check("gap.safetensors", &file(&HEADER.replace("[8,11]", "[9,12]"), &[0; 12]));
    check("overlap.safetensors", &file(&HEADER.replace("[8,11]", "[7,10]"), &[0; 11]));
    check("shape.safetensors", &file(&HEADER.replace("[3]", "[4]"), &[0; 11]));
    check("type.safetensors", &file(&HEADER.replace("BOOL", "F8_E4M3"), &[0; 11]));
    let absent = data::load(&Client::cpu(), "absent.safetensors").expect_err("there is none");
    assert_eq!(absent.code(), "file");
    let no_bool = write("no_bool.safetensors", &file(HEADER, &[2; 11]));
    assert_eq!(data::load(&Client::cpu(), no_bool).expect_err("2 is no bool").code(), "value");
}

/// Mutations in CI; `PALLAS_MUTATIONS=100000 cargo test -p pallas --no-default-features --test product hostile --
/// --nocapture` makes more.
const FEW: u64 = 1500;

/// A number below `n` (splitmix64).
fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) % n.max(1) as u64) as usize
}

/// Changes a number, a word, a byte, or the length of a file.
fn mutate(file: &mut Vec<u8>, random: &mut u64) {
    const NUMBERS: [&str; 9] =
        ["0", "1", "3", "7", "-1", "4294967296", "9223372036854775807", "18446744073709551615", "1e999"];
    const WORDS: [&str; 12] =
        ["F32", "F16", "BOOL", "F4", "I64", "shape", "dtype", "data_offsets", "__metadata__", "x", "", "\u{0}é"];
    let header = |file: &[u8]| {
        let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
        8..length.saturating_add(8).min(file.len())
    };
    match below(random, 10) {
        kind @ 0..6 if file.len() > 8 => {
            // A run of digits or letters in the header, which comes after the length.
            let range = header(file);
            let fits = |b: &u8| if kind < 3 { b.is_ascii_digit() } else { b.is_ascii_alphabetic() || *b == b'_' };
            let starts: Vec<usize> =
                range.clone().filter(|&i| fits(&file[i]) && (i == 8 || !fits(&file[i - 1]))).collect();
            if starts.is_empty() {
                return;
            }
            let start = starts[below(random, starts.len())];
            let end = (start..range.end).find(|&i| !fits(&file[i])).unwrap_or(range.end);
            let new = if kind < 3 { NUMBERS[below(random, NUMBERS.len())] } else { WORDS[below(random, WORDS.len())] };
            let length = (range.len() - (end - start) + new.len()) as u64;
            file.splice(start..end, new.bytes());
            file[..8].copy_from_slice(&length.to_le_bytes());
        }
        6 if file.len() > 8 => {
            let length = [0, 1, 7, u64::MAX, 1 << 40, file.len() as u64][below(random, 6)];
            file[..8].copy_from_slice(&length.to_le_bytes());
        }
        7 => file.truncate(below(random, file.len())),
        8 => file.extend(vec![1; below(random, 20)]),
        _ if !file.is_empty() => {
            let at = below(random, file.len());
            file[at] = below(random, 256) as u8;
        }
        _ => {}
    }
}

#[test]
fn hostile_files_are_loaded_or_refused() {
    let wanted = std::env::var("PALLAS_MUTATIONS").map_or(FEW, |n| n.parse().expect("a number"));
    let real = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/minilm_attention.safetensors");
    let real = std::fs::read(real).expect("part of the repository");
    let header = u64::from_le_bytes(real[..8].try_into().expect("eight bytes")) as usize;
    // The real header with zeros of the right length as data, which are fast to write.
    let metadata = HEADER.replacen('{', r#"{"__metadata__":{"made":"here"},"#, 1);
    let seeds = [file(HEADER, &[1; 11]), file(&metadata, &[0; 11]), real[..8 + header].to_vec(), file(r#"{}"#, &[])];
    let (mut loaded, mut refused) = (0u64, 0u64);
    for n in 0..wanted {
        let (mut random, start) = (n, std::time::Instant::now());
        let mut bytes = seeds[below(&mut random, seeds.len())].clone();
        (0..1 + below(&mut random, 3)).for_each(|_| mutate(&mut bytes, &mut random));
        let path = write("hostile.safetensors", &bytes);
        match std::panic::catch_unwind(|| data::load(&Client::cpu(), &path)) {
            Ok(Ok(arrays)) => {
                loaded += 1;
                let held: usize = arrays.values().map(|array| array.shape().iter().product::<usize>()).sum();
                assert!(held <= bytes.len(), "mutation {n}: {arrays:?}");
            }
            Ok(Err(error)) => {
                refused += 1;
                assert!(["file", "value"].contains(&error.code()), "mutation {n}: {error}");
            }
            Err(_) => panic!("mutation {n} panics: see {}", path.display()),
        }
        assert!(start.elapsed().as_secs() < 20, "mutation {n} hangs: see {}", path.display());
    }
    println!("hostile files: {wanted} mutations, {loaded} loaded, {refused} refused");
    assert!(loaded * 50 > wanted && refused * 4 > wanted, "{loaded} loaded, {refused} refused of {wanted}");
}
