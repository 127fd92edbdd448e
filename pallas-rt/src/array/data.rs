//! Arrays: a shape, an element type and a buffer on a device.
mod poison;

use super::blocks::ShardedBlocks;
use super::host;
use crate::array::Client;
use pallas_device::devices::memory;
use pallas_device::error::{Error, Result};
use pallas_device::{Buffer, BufferMut, Device};
use pallas_ir::{DType, Elem, Loc};
use poison::PoisonedContents;
use std::sync::Arc;

/// An n-dimensional array on a device, row-major and contiguous. Its element type is known at run time.
///
/// Cloning shares the data, which is never written while it is shared. An array passed to a kernel by value, and owned
/// by nobody else, is *donated*: its memory serves for an output of the same size.
///
/// An array has memory, or is *traced*: a value of a function that is being traced, whose elements do not exist yet; or
/// *poisoned*: the result of an operation that failed, which carries the error ([`Array::check`]). All have a shape, an
/// element type and a client. Functions that need the elements or the memory return [`Error::Traced`] for a traced
/// array, and the own error of a poisoned one.
///
/// ```
/// use pallas_rt::Array;
/// let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// assert_eq!(x.shape(), [2, 3]);
/// assert_eq!(x.to_string(), "[[1.0, 2.0, 3.0],\n [4.0, 5.0, 6.0]]");
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone)]
pub struct Array {
    shape: Arc<[usize]>,
    dtype: DType,
    what: ArrayContents,
}

/// Contents of an array: memory, blocks on the devices of a mesh, a value that is being traced, or an error.
#[derive(Clone)]
pub(crate) enum ArrayContents {
    /// Memory. Kernels may still be writing it.
    InMemory(Arc<Buffer>),
    /// Blocks on the devices of a mesh.
    Sharded(Arc<ShardedBlocks>),
    /// A value of a function that is being traced. Shared, so that arrays stay small.
    Traced(Arc<TracedValue>),
    /// The error of the first operation that failed among those that led to this array, which is poisoned.
    Poisoned(Arc<PoisonedContents>),
}

/// Stands for the number of a trace in an array that has only a shape and an element type.
const ABSTRACT_TRACE_NUMBER: u32 = u32::MAX;

/// A value of a function that is being traced; its elements do not exist yet.
#[derive(Clone)]
pub(crate) struct TracedValue {
    /// The number of the trace that the value belongs to, or [`ABSTRACT_TRACE_NUMBER`].
    pub trace: u32,
    /// The value's number in the graph of that trace.
    pub value: u32,
    /// The client that will compute it.
    pub client: Client,
}

/// Arrays on the client of [`Client::from_env`].
impl Array {
    /// Makes an array of this shape from a copy of `elements`, row-major. See [`Client::array`].
    ///
    /// # Errors
    /// Those of [`Client::from_env`] and [`Client::array`].
    #[track_caller]
    pub fn from_slice<T: Elem>(elements: &[T], shape: &[usize]) -> Result<Array> {
        Client::from_env()?.array(elements, shape)
    }

    /// Makes an array of this shape from the elements of a vector, row-major; see [`Array::from_slice`].
    ///
    /// # Errors
    /// Those of [`Array::from_slice`].
    #[track_caller]
    pub fn from_vec<T: Elem>(elements: Vec<T>, shape: &[usize]) -> Result<Array> {
        Array::from_slice(&elements, shape)
    }

    /// Makes an array from a copy of its elements as bytes. See [`Client::array_from_bytes`].
    ///
    /// # Errors
    /// Those of [`Client::from_env`] and [`Client::array_from_bytes`].
    #[track_caller]
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Array> {
        Client::from_env()?.array_from_bytes(dtype, shape, bytes)
    }

    /// Makes an array of zeros. See [`Client::zeros`].
    ///
    /// # Errors
    /// Those of [`Client::from_env`] and [`Client::zeros`].
    #[track_caller]
    pub fn zeros(shape: &[usize], dtype: DType) -> Result<Array> {
        Client::from_env()?.zeros(shape, dtype)
    }

    /// Makes an array with `value` as every element. See [`Client::full`].
    ///
    /// # Errors
    /// Those of [`Client::from_env`] and [`Client::full`].
    #[track_caller]
    pub fn full<T: Elem>(shape: &[usize], value: T) -> Result<Array> {
        Client::from_env()?.full(shape, value)
    }
}

impl Array {
    pub(super) fn new(dtype: DType, shape: &[usize], buffer: Buffer) -> Array {
        Array::from_shared_buffer(dtype, shape, Arc::new(buffer))
    }

    /// Returns an array in memory that other arrays may share.
    pub(crate) fn from_shared_buffer(dtype: DType, shape: &[usize], buffer: Arc<Buffer>) -> Array {
        Array { shape: shape.into(), dtype, what: ArrayContents::InMemory(buffer) }
    }

    /// Returns an array whose blocks are on the devices of a mesh.
    #[cfg(feature = "graph")]
    pub(crate) fn from_blocks(dtype: DType, shape: &[usize], blocks: Arc<ShardedBlocks>) -> Array {
        Array { shape: shape.into(), dtype, what: ArrayContents::Sharded(blocks) }
    }

    /// Returns an array for a value that is being traced.
    pub(crate) fn from_traced_value(dtype: DType, shape: &[usize], traced: TracedValue) -> Array {
        Array { shape: shape.into(), dtype, what: ArrayContents::Traced(Arc::new(traced)) }
    }

    /// Returns an array that has only a shape and an element type.
    #[cfg(feature = "graph")]
    pub(crate) fn new_abstract(dtype: DType, shape: &[usize], client: &Client) -> Array {
        Array::from_traced_value(
            dtype,
            shape,
            TracedValue { trace: ABSTRACT_TRACE_NUMBER, value: 0, client: client.clone() },
        )
    }

    /// Returns true if the array has only a shape and an element type.
    pub(crate) fn is_abstract(&self) -> bool {
        matches!(&self.what, ArrayContents::Traced(traced) if traced.trace == ABSTRACT_TRACE_NUMBER)
    }

    /// Returns an array of this element type and shape that holds `contents`, which are not checked.
    fn from_contents(dtype: DType, shape: &[usize], contents: ArrayContents) -> Array {
        Array { shape: shape.into(), dtype, what: contents }
    }

    /// The array's contents: memory, blocks, a traced value or an error.
    pub(crate) fn contents(&self) -> &ArrayContents {
        &self.what
    }

    /// The extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().fold(1, |n, &extent| n.saturating_mul(extent))
    }

    /// Returns true if the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The client that the array is on; for a traced array, the one that will compute it.
    pub fn client(&self) -> &Client {
        match &self.what {
            ArrayContents::InMemory(buffer) => Client::wrap_device_client(buffer.client()),
            ArrayContents::Sharded(blocks) => blocks.client(),
            ArrayContents::Traced(traced) => &traced.client,
            ArrayContents::Poisoned(bad) => &bad.client,
        }
    }

    /// The device that the array is on.
    pub fn device(&self) -> &Device {
        self.client().device()
    }

    /// The array's memory.
    ///
    /// # Errors
    /// [`Error::Traced`] if it is traced; the error of a poisoned array.
    pub fn buffer(&self) -> Result<&Buffer> {
        match &self.what {
            ArrayContents::InMemory(buffer) => Ok(buffer),
            ArrayContents::Sharded(blocks) => blocks.assembled_buffer().map(|buffer| &**buffer),
            ArrayContents::Traced(_) | ArrayContents::Poisoned(_) => {
                Err(self.missing_buffer_error(Loc::NONE, "memory", "read the result of the traced function"))
            }
        }
    }

    /// The array's memory, to be written; `None` while another array shares it.
    ///
    /// # Errors
    /// [`Error::Traced`] if it is traced; the error of a poisoned array.
    pub fn buffer_mut(&mut self) -> Result<Option<BufferMut<'_>>> {
        Ok(self.exclusive_buffer_mut()?.map(BufferMut::new))
    }

    /// Returns the array's memory as [`buffer_mut`](Array::buffer_mut) does, but so that it may be replaced by memory
    /// of the same length.
    pub(crate) fn exclusive_buffer_mut(&mut self) -> Result<Option<&mut Buffer>> {
        // The buffer is borrowed in its arm alone, so that the other one may borrow all of `self`.
        match self.what {
            ArrayContents::InMemory(ref mut buffer) => Ok(Arc::get_mut(buffer)),
            ArrayContents::Sharded(_) => Ok(None),
            ArrayContents::Traced(_) | ArrayContents::Poisoned(_) => {
                Err(self.missing_buffer_error(Loc::NONE, "memory", "write the result of the traced function"))
            }
        }
    }

    /// Waits until the array is computed, and copies its elements to the host, row-major.
    ///
    /// # Errors
    /// [`Error::ElementType`] if `T` is not the element type; [`Error::DeviceLost`]; [`Error::Traced`] if it is traced;
    /// the error of a poisoned array.
    #[track_caller]
    pub fn to_vec<T: Elem>(&self) -> Result<Vec<T>> {
        let buffer = self.require_elements(Loc::caller())?;
        if self.dtype != T::DTYPE {
            return Err(Error::ElementType { called: Loc::caller(), array: self.dtype, asked: T::DTYPE });
        }
        Ok(memory::elements_of(&buffer.contents()?))
    }

    /// Waits until the array is computed, and copies its bytes to the host, native-endian, one byte a `bool`.
    ///
    /// # Errors
    /// [`Error::DeviceLost`]; [`Error::Traced`] if it is traced; the error of a poisoned array.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(self.require_elements(Loc::caller())?.contents()?.into_owned())
    }

    /// The array on another client: itself if it is there already, else a copy.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::DeviceLost`], [`Error::Unsupported`] for 64-bit elements on a GPU; [`Error::Traced`]
    /// if it is traced; the error of a poisoned array.
    #[track_caller]
    pub fn to_device(&self, client: &Client) -> Result<Array> {
        let help = "move an argument or the result of the traced function";
        let buffer = self.require_buffer(Loc::caller(), || format!("copy to {}", client.device().id()), help)?;
        if self.client() == client {
            return Ok(self.clone());
        }
        client.check_dtype(self.dtype)?;
        Ok(Array::new(self.dtype, &self.shape, Buffer::from_bytes(client, &buffer.contents()?)?))
    }

    /// Waits until the array is computed.
    ///
    /// # Errors
    /// [`Error::DeviceLost`]; [`Error::Traced`] if it is traced; the error of a poisoned array.
    #[track_caller]
    pub fn block_until_ready(&self) -> Result<()> {
        self.require_buffer(Loc::caller(), || "completion".into(), "wait for the result of the traced function")?.wait()
    }

    /// Returns true for a value of a function that is being traced by `jit` or a transformation, which has a shape and
    /// an element type, and no elements yet; also for an array of `Client::shape_dtype`, which never has any.
    pub fn is_traced(&self) -> bool {
        matches!(self.what, ArrayContents::Traced(_))
    }

    /// Returns an error if the array is on another client than `client`; `describe_array` returns the words for the
    /// array in the message.
    pub(crate) fn check_client(&self, client: &Client, describe_array: &dyn Fn() -> String) -> Result<()> {
        if self.client() == client {
            return Ok(());
        }
        let (found, expected) = (self.client().why(), client.why());
        Err(Error::ForeignClient { called: Loc::NONE, what: describe_array(), found, expected })
    }

    /// Refuses an array without memory as an argument of a kernel that is called at this line.
    #[inline]
    pub(crate) fn check_kernel_argument(&self, kernel: &str, called: Loc) -> Result<()> {
        match &self.what {
            ArrayContents::InMemory(_) | ArrayContents::Sharded(_) => Ok(()),
            ArrayContents::Traced(_) | ArrayContents::Poisoned(_) => Err(self.traced_argument_error(kernel, called)),
        }
    }

    #[cold]
    fn traced_argument_error(&self, kernel: &str, called: Loc) -> Error {
        let place = if called == Loc::NONE { String::new() } else { format!("{called}: ") };
        let kernel = format!("{place}kernel `{kernel}` is called with a traced array, {}", self.type_text());
        self.poison_or_traced_error(|| format!("{kernel}: call it with arguments or the result of the traced function"))
    }

    /// Copies the elements to new memory on the same client; the host does not wait.
    pub(crate) fn deep_copy(&self) -> Result<Array> {
        let from =
            self.require_buffer(Loc::NONE, || "copy".into(), "copy an argument or the result of the traced function")?;
        let mut buffer = Buffer::allocate_for_host(from.client(), from.len())?;
        buffer.copy_from(from)?;
        Ok(Array::new(self.dtype, &self.shape, buffer))
    }

    /// Returns true if both have the same memory; arrays without memory share none.
    pub(crate) fn shares_memory(&self, other: &Array) -> bool {
        matches!((&self.what, &other.what), (ArrayContents::InMemory(a), ArrayContents::InMemory(b)) if Arc::ptr_eq(a, b))
    }

    /// Returns an array of another type and shape in this array's memory, for an output, if nothing else owns the
    /// memory and the size fits; else returns this array as `Err`, also if it has no memory.
    pub(crate) fn try_reuse_memory(mut self, dtype: DType, shape: &[usize]) -> std::result::Result<Array, Array> {
        let owned = matches!(self.exclusive_buffer_mut(), Ok(Some(buffer))
            if host::byte_count(dtype, shape).is_ok_and(|bytes| bytes == buffer.len()));
        if owned { Ok(Array { shape: shape.into(), dtype, what: self.what }) } else { Err(self) }
    }

    /// Returns the array's memory if it has no other owner; else a copy of the memory if `copy_if_shared`, or the array
    /// itself as `Err`.
    pub(crate) fn into_buffer(self, copy_if_shared: bool) -> Result<std::result::Result<Buffer, Array>> {
        self.buffer()?;
        let Array { shape, dtype, what } = self;
        let ArrayContents::InMemory(buffer) = what else {
            // What lies in several blocks is put together in memory of its own.
            return Array { shape, dtype, what }.deep_copy()?.into_buffer(copy_if_shared);
        };
        match Arc::try_unwrap(buffer) {
            Ok(own) => Ok(Ok(own)),
            Err(buffer) => {
                let array = Array { shape, dtype, what: ArrayContents::InMemory(buffer) };
                if copy_if_shared { array.deep_copy()?.into_buffer(false) } else { Ok(Err(array)) }
            }
        }
    }

    /// Formats element type and shape: `f32[2, 3]`.
    pub(super) fn type_text(&self) -> String {
        format!("{}{:?}", self.dtype, self.shape)
    }

    /// Returns the array's memory for a function that reads elements, or the error of a traced or poisoned array, which
    /// names the line `at` of the call.
    fn require_elements(&self, at: Loc) -> Result<&Arc<Buffer>> {
        self.require_buffer(at, || "elements".into(), "read them from the result of the traced function")
    }

    /// Returns the memory. `at` is the user's line; `describe_use` and `help` explain the request in the error of a
    /// traced array.
    pub(super) fn require_buffer(
        &self,
        at: Loc,
        describe_use: impl FnOnce() -> String,
        help: &str,
    ) -> Result<&Arc<Buffer>> {
        match &self.what {
            ArrayContents::InMemory(buffer) => Ok(buffer),
            ArrayContents::Sharded(blocks) => blocks.assembled_buffer(),
            ArrayContents::Traced(_) | ArrayContents::Poisoned(_) => {
                Err(self.missing_buffer_error(at, &describe_use(), help))
            }
        }
    }

    /// Returns the error of a function that needs the memory of an array without any, called at the line `at`; `tried`
    /// says what it does with the memory, `help` what to do instead.
    #[cold]
    fn missing_buffer_error(&self, at: Loc, tried: &str, help: &str) -> Error {
        let place = if at == Loc::NONE { String::new() } else { format!("{at}: ") };
        self.poison_or_traced_error(|| match self.is_abstract() {
            true => {
                format!("{place}{tried} of an array of {} that has a shape and an element type alone", self.type_text())
            }
            false => format!("{place}{tried} of an array of {} that is being traced: {help}", self.type_text()),
        })
    }
}
