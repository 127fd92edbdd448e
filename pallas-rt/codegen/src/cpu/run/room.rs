//! Memory that grows.
use super::super::launch::Stop;

/// 64 bytes, aligned so that vectors do not cross cache lines.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Aligned([u64; 8]);

/// Grows the buffer to at least `bytes` bytes; its contents are lost if it grows.
pub(super) fn room(buffer: &mut Vec<Aligned>, bytes: usize) -> Result<*mut u8, Stop> {
    let lines = bytes.div_ceil(64).max(1);
    if buffer.len() < lines {
        buffer.clear();
        buffer.try_reserve_exact(lines).map_err(|_| Stop::Memory(bytes))?;
        buffer.resize(lines, Aligned([0; 8]));
    }
    Ok(buffer.as_mut_ptr().cast())
}
