//! Host memory: aligned blocks, and elements as bytes.
use super::memory_pool::PooledBlock;
use super::queue::LaunchUses;
use crate::error::Result;
use memmap2::MmapMut;
use pallas_codegen::raw;
use pallas_ir::Elem;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Alignment of every block in bytes: a cache line, and the widest vector.
pub const BLOCK_ALIGNMENT_BYTES: usize = 64;
/// Size in bytes from which a block is its own memory mapping, with huge pages where the system supports them.
const MIN_MAPPED_BYTES: usize = 2 << 20;

/// A block of initialised host memory.
pub struct HostBlock {
    start: NonNull<u8>,
    size: usize,
    /// The mapping that provides the memory; `None` if it is the allocator's.
    map: Option<MmapMut>,
    /// The launches that use the block. The memory is not read, written or freed before they have finished.
    uses: LaunchUses,
}

// SAFETY: a block owns its memory; shared access goes through `&Block` and only reads.
unsafe impl Send for HostBlock {}
// SAFETY: as above: no safe method of `&Block` writes.
unsafe impl Sync for HostBlock {}

impl HostBlock {
    /// Allocates a block of zeros; `None` if the system has no memory for it.
    pub fn zeroed(size: usize) -> Option<HostBlock> {
        debug_assert!(size > 0, "size classes start at 64");
        let mut map = if size >= MIN_MAPPED_BYTES && cfg!(unix) { Some(MmapMut::map_anon(size).ok()?) } else { None };
        #[cfg(target_os = "linux")]
        if let Some(map) = &map {
            // On a system without huge pages the call fails, and small pages are used.
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        let start = match &mut map {
            Some(map) => map.as_mut_ptr(),
            // SAFETY: the size is not zero.
            None => unsafe { std::alloc::alloc_zeroed(allocation_layout(size)?) },
        };
        Some(HostBlock { start: NonNull::new(start)?, size, map, uses: LaunchUses::default() })
    }

    /// Start of the memory, which launches may still be using: see [`HostBlock::launch_uses`].
    pub(super) fn start_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The launches that use the block.
    pub(super) fn launch_uses(&self) -> &LaunchUses {
        &self.uses
    }

    /// Borrows the first `len` bytes. Waits for the launches that write them.
    ///
    /// # Errors
    /// The error of the last of these launches.
    pub(super) fn bytes(&self, len: usize) -> Result<&[u8]> {
        assert!(len <= self.size, "{len} of {} bytes", self.size);
        self.uses.wait_for_writes()?;
        // SAFETY: the block owns `size` initialised bytes and is borrowed, and no launch writes them.
        Ok(unsafe { raw::slice(self.start.as_ptr(), len) })
    }

    /// Borrows the first `len` bytes for writing. Waits for the launches that use them.
    ///
    /// # Errors
    /// The error of the last launch that wrote them.
    pub(super) fn bytes_mut(&mut self, len: usize) -> Result<&mut [u8]> {
        self.uses.wait_for_writes()?;
        Ok(self.bytes_to_overwrite(len))
    }

    /// Borrows the first `len` bytes for overwriting, for callers that do not need the contents. Waits for the launches
    /// that use them.
    pub(super) fn bytes_to_overwrite(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.size, "{len} of {} bytes", self.size);
        self.uses.wait_for_all();
        self.uses.forget_last_write_outcome();
        // SAFETY: as in `bytes`; the borrow is unique, and no launch uses the memory.
        unsafe { raw::slice_mut(self.start.as_ptr(), len) }
    }
}

impl PooledBlock for HostBlock {
    fn size(&self) -> u64 {
        self.size as u64
    }

    fn is_idle(&self) -> bool {
        !self.uses.is_busy()
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        self.uses.wait_for_all();
        if let (None, Some(layout)) = (&self.map, allocation_layout(self.size)) {
            // SAFETY: `start` came from the allocator, for this layout.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) }
        }
    }
}

fn allocation_layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size, BLOCK_ALIGNMENT_BYTES).ok()
}

/// Size of the machine's memory in bytes; `u64::MAX` where it is not known.
pub fn physical_memory_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: `sysconf` reads a constant of the system.
        let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
        if let (Ok(pages), Ok(page)) = (u64::try_from(pages), u64::try_from(page)) {
            return pages.saturating_mul(page);
        }
    }
    u64::MAX
}

/// Views elements as bytes, in the host's representation.
pub fn bytes_of<T: Elem>(elements: &[T]) -> &[u8] {
    // SAFETY: element types are numbers and `bool`: no padding, no pointers, and `u8` has no alignment.
    unsafe { raw::slice(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// Converts bytes, which may be unaligned, to elements. A `bool` is true where its byte is not zero: a device may have
/// written any byte.
pub fn elements_of<T: Elem>(bytes: &[u8]) -> Vec<T> {
    let count = bytes.len() / size_of::<T>();
    let mut elements = Vec::<T>::with_capacity(count);
    let target = elements.as_mut_ptr().cast::<u8>();
    // SAFETY: `target` has room for `count` elements, whose bytes are all written before the length is set. Every
    // pattern is a value of `T`, except for `bool`, whose bytes are made 0 or 1.
    unsafe {
        if T::DTYPE == pallas_ir::DType::Bool {
            bytes.iter().enumerate().for_each(|(i, &byte)| target.add(i).write(u8::from(byte != 0)));
        } else {
            target.copy_from_nonoverlapping(bytes.as_ptr(), count * size_of::<T>());
        }
        elements.set_len(count);
    }
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_zeroed_and_writable_to_their_end() {
        for size in [64, 4096, MIN_MAPPED_BYTES, MIN_MAPPED_BYTES + MIN_MAPPED_BYTES / 4] {
            let mut block = HostBlock::zeroed(size).expect("a little memory");
            assert_eq!(block.start_ptr() as usize % BLOCK_ALIGNMENT_BYTES, 0);
            assert!(block.bytes(size).expect("nothing writes it").iter().all(|&byte| byte == 0));
            block.bytes_to_overwrite(size)[size - 1] = 7;
            assert_eq!(block.bytes(size).expect("nothing writes it")[size - 1], 7);
        }
    }

    #[test]
    fn elements_survive_their_bytes() {
        let numbers = [1.5f32, f32::NAN, -0.0];
        let shifted: Vec<u8> = [0].iter().chain(bytes_of(&numbers)).copied().collect();
        let back = elements_of::<f32>(&shifted[1..]);
        assert_eq!(back.map_bits(), numbers.to_vec().map_bits());
        assert_eq!(elements_of::<bool>(&[0, 1, 2, 255]), [false, true, true, true]);
        assert!(elements_of::<f32>(&[]).is_empty());
    }

    trait MapBits {
        fn map_bits(&self) -> Vec<u32>;
    }
    impl MapBits for Vec<f32> {
        fn map_bits(&self) -> Vec<u32> {
            self.iter().map(|x| x.to_bits()).collect()
        }
    }
}
