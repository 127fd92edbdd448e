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
