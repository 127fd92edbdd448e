//! The check that the processes of a job have equal elements.
use pallas_device::collective::ProcessGroup;
use pallas_device::error::{Error, Result};
use pallas_ir::{At, Diag, Loc, Type};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

/// Hash of a block's elements, after the number of the block in its array, which is equal on all processes.
pub(crate) type BlockHash = (u64, u64);

/// A hash of elements, equal on all processes.
pub(super) fn hash_elements(elements: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(elements);
    hasher.finish()
}

/// Compares `local_hashes`, those of the blocks of an array that this process has, with those of all others, which call
/// this at the same time.
///
/// # Errors
/// Two processes have a part with different elements. Every process gets the error, with the array and the two ranks.
pub(crate) fn check_equal_elements(
    processes: &ProcessGroup,
    ty: &Type,
    array_name: String,
    local_hashes: &[BlockHash],
    at: Loc,
) -> Result<()> {
    let own: Vec<u8> = local_hashes.iter().flat_map(|&(part, hash)| [part, hash]).flat_map(u64::to_le_bytes).collect();
    let found = processes.all_gather(&format!("comparison of {ty}"), array_name, at, own)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, &byte| n << 8 | u64::from(byte));
    let mut first: HashMap<u64, (usize, u64)> = HashMap::new();
    for (rank, bytes) in found.iter().enumerate() {
        for pair in bytes.chunks_exact(16) {
            let (part, hash) = (number(&pair[..8]), number(&pair[8..]));
            let (other, known) = *first.entry(part).or_insert((rank, hash));
            if known != hash {
                let found = format!("an array of {ty} of which ranks {other} and {rank} have different elements");
                let help =
                    "give every process the same elements; `make_array_from_callback` takes each process' own blocks";
                return Err(Error::operation(at, Diag::new("processes", At::Op, found, help)));
            }
        }
    }
    Ok(())
}
