//! Arrays: a shape, an element type and a buffer on a device.
use super::host;
use crate::device::{Buffer, Client, Device, memory};
use crate::error::{Error, Result};
use pallas_ir::{DType, Elem};
use std::sync::Arc;

/// An n-dimensional array on a device, row-major and contiguous. Its element type is known at run time.
///
/// Cloning shares the data, which is never written while it is shared. An array passed to a kernel by value, and owned
/// by nobody else, is *donated*: its memory serves for an output of the same size.
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
    buffer: Arc<Buffer>,
}

/// Arrays on a chosen client.
impl Client {
    /// Copies elements, row-major.
    ///
    /// # Errors
    /// [`Error::Length`] if `elements` are not as many as `shape` holds; [`Error::Memory`]; [`Error::Unsupported`] for
    /// 64-bit elements on a GPU.
    pub fn array<T: Elem>(&self, elements: &[T], shape: &[usize]) -> Result<Array> {
        self.check_dtype(T::DTYPE)?;
        let bytes = host::to_bytes(elements, shape)?;
        Ok(Array::new(T::DTYPE, shape, Buffer::holding(self, bytes)?))
    }

    /// Copies elements given as bytes: native-endian, one byte a `bool`.
    ///
    /// # Errors
    /// As [`Client::array`], and [`Error::Value`] for a `bool` that is neither 0 nor 1.
    pub fn array_from_bytes(&self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Array> {
        self.check_dtype(dtype)?;
        host::check_length(shape, host::byte_count(dtype, shape)?, bytes.len(), "bytes")?;
        host::check_values(dtype, bytes)?;
        Ok(Array::new(dtype, shape, Buffer::holding(self, bytes)?))
    }

    /// Zeros (`false` for `bool`).
    ///
    /// # Errors
    /// [`Error::Overflow`], [`Error::Memory`], [`Error::Unsupported`].
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Array> {
        self.check_dtype(dtype)?;
        Ok(Array::new(dtype, shape, Buffer::allocate(self, host::byte_count(dtype, shape)?, true)?))
    }

    /// The same value everywhere.
    ///
    /// # Errors
    /// As [`Client::zeros`].
    pub fn full<T: Elem>(&self, shape: &[usize], value: T) -> Result<Array> {
        self.check_dtype(T::DTYPE)?;
        let count = host::byte_count(T::DTYPE, shape)? / T::DTYPE.bytes();
        // Booked first, so that a shape beyond the memory limit is refused before the host makes its copy.
        let mut buffer = Buffer::allocate(self, count * T::DTYPE.bytes(), false)?;
        buffer.write(host::to_bytes(&vec![value; count], shape)?)?;
        Ok(Array::new(T::DTYPE, shape, buffer))
    }

    /// An array with unspecified contents, for a kernel to write.
    ///
    /// # Errors
    /// As [`Client::zeros`].
    pub fn empty(&self, dtype: DType, shape: &[usize]) -> Result<Array> {
        self.check_dtype(dtype)?;
        Ok(Array::new(dtype, shape, Buffer::allocate(self, host::byte_count(dtype, shape)?, false)?))
    }
}

/// Arrays on the client of [`Client::from_env`].
impl Array {
    /// Copies elements, row-major. See [`Client::array`].
    ///
    /// # Errors
    /// Those of [`Client::from_env`] and [`Client::array`].
    pub fn from_slice<T: Elem>(elements: &[T], shape: &[usize]) -> Result<Array> {
        Client::from_env()?.array(elements, shape)
    }

    /// As [`Array::from_slice`], for a vector.
    ///
    /// # Errors
    /// Those of [`Array::from_slice`].
    pub fn from_vec<T: Elem>(elements: Vec<T>, shape: &[usize]) -> Result<Array> {
        Array::from_slice(&elements, shape)
    }

    /// Copies elements given as bytes. See [`Client::array_from_bytes`].
    ///
    /// # Errors
    /// Those of [`Client::from_env`] and [`Client::array_from_bytes`].
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Array> {
        Client::from_env()?.array_from_bytes(dtype, shape, bytes)
    }

    /// Zeros. See [`Client::zeros`].
    ///
    /// # Errors
    /// Those of [`Client::from_env`] and [`Client::zeros`].
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Array> {
        Client::from_env()?.zeros(dtype, shape)
    }

    /// The same value everywhere. See [`Client::full`].
    ///
    /// # Errors
    /// Those of [`Client::from_env`] and [`Client::full`].
    pub fn full<T: Elem>(shape: &[usize], value: T) -> Result<Array> {
        Client::from_env()?.full(shape, value)
    }
}

impl Array {
    pub(super) fn new(dtype: DType, shape: &[usize], buffer: Buffer) -> Array {
        Array { shape: shape.into(), dtype, buffer: Arc::new(buffer) }
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
        self.buffer.len() / self.dtype.bytes()
    }

    /// Returns true if it has no elements.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The client it lives on.
    pub fn client(&self) -> &Client {
        self.buffer.client()
    }

    /// The device it lives on.
    pub fn device(&self) -> &Device {
        self.client().device()
    }

    /// Its memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Its memory, to be written: only while nobody else shares it.
    pub fn buffer_mut(&mut self) -> Option<&mut Buffer> {
        Arc::get_mut(&mut self.buffer)
    }

    /// Waits for it to be computed and copies the elements to the host, row-major.
    ///
    /// # Errors
    /// [`Error::ElementType`] if `T` is not the element type; [`Error::DeviceLost`].
    pub fn to_vec<T: Elem>(&self) -> Result<Vec<T>> {
        if self.dtype != T::DTYPE {
            return Err(Error::ElementType { array: self.dtype, asked: T::DTYPE });
        }
        Ok(memory::elements_of(&self.buffer.contents()?))
    }

    /// Waits for it to be computed and copies its bytes to the host, native-endian, one byte a `bool`.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(self.buffer.contents()?.into_owned())
    }

    /// The array on another client: itself if it lives there, else a copy.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::DeviceLost`], [`Error::Unsupported`] for 64-bit elements on a GPU.
    pub fn to_device(&self, client: &Client) -> Result<Array> {
        if self.client() == client {
            return Ok(self.clone());
        }
        client.check_dtype(self.dtype)?;
        Ok(Array::new(self.dtype, &self.shape, Buffer::holding(client, &self.buffer.contents()?)?))
    }

    /// Waits until it is computed.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn block_until_ready(&self) -> Result<()> {
        self.buffer.wait()
    }

    /// The same elements, row-major, under another shape; no copy.
    ///
    /// # Errors
    /// [`Error::Reshape`] if the number of elements differs.
    pub fn reshape(&self, shape: &[usize]) -> Result<Array> {
        match host::byte_count(self.dtype, shape) {
            Ok(bytes) if bytes == self.buffer.len() => {
                Ok(Array { shape: shape.into(), dtype: self.dtype, buffer: self.buffer.clone() })
            }
            _ => Err(Error::Reshape { from: self.shape.to_vec(), to: shape.to_vec() }),
        }
    }

    /// Refuses an array of another client; `what` names it in the message.
    pub(crate) fn check_client(&self, client: &Client, what: impl FnOnce() -> String) -> Result<()> {
        if self.client() == client {
            return Ok(());
        }
        let place = |client: &Client| client.why();
        Err(Error::ForeignClient { what: what(), found: place(self.client()), expected: place(client) })
    }

    /// The same elements in memory of their own, on the same client; the host does not wait.
    pub(crate) fn copied(&self) -> Result<Array> {
        let mut buffer = Buffer::allocate(self.client(), self.buffer.len(), false)?;
        buffer.copy_from(&self.buffer)?;
        Ok(Array::new(self.dtype, &self.shape, buffer))
    }

    /// Returns true if both have the same memory.
    pub(crate) fn shares_memory(&self, other: &Array) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    /// Gives the memory up for an output, if nobody else owns it and the size is the output's; else gives itself back.
    pub(crate) fn donate(mut self, dtype: DType, shape: &[usize]) -> std::result::Result<Array, Array> {
        let fits = host::byte_count(dtype, shape).is_ok_and(|bytes| bytes == self.buffer.len());
        if !fits || self.buffer_mut().is_none() {
            return Err(self);
        }
        Ok(Array { shape: shape.into(), dtype, buffer: self.buffer })
    }
}
