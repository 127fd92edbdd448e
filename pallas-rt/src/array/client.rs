//! A device on which arrays are made.
use super::{Array, host};
use pallas_codegen::target::Target;
#[allow(unused_imports, reason = "documentation links to it")]
use pallas_device::error::Error;
use pallas_device::error::Result;
use pallas_device::{Buffer, Device, startup};
use pallas_ir::{DType, Elem};
use std::fmt;
use std::ops::Deref;
use std::panic::Location;

/// A device that runs kernels, with its memory. Cheap to clone; may be used from several threads at once.
///
/// Arrays are on a client, and a call runs on the client of its arrays. `Client::cpu()` always returns the same client;
/// [`Client::isolated`] makes another one of the same device.
///
/// ```
/// use pallas_rt::{Array, Client};
/// let client = Client::from_env()?; // PALLAS_DEVICE, else the best GPU, else the CPU
/// println!("{}", client.why());
/// let x = client.array(&[1.0f32, 2.0, 3.0], &[3])?;
/// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Client(pallas_device::Client);

/// The device and its memory: [`kind`](pallas_device::Client::kind), [`why`](pallas_device::Client::why) and others.
impl Deref for Client {
    type Target = pallas_device::Client;
    fn deref(&self) -> &pallas_device::Client {
        &self.0
    }
}

impl From<pallas_device::Client> for Client {
    fn from(client: pallas_device::Client) -> Client {
        Client(client)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Choice of a device.
impl Client {
    /// Returns a device's client as one that makes arrays.
    pub(crate) fn wrap_device_client(client: &pallas_device::Client) -> &Client {
        // SAFETY: `Client` is transparent: it has the layout of its only field.
        unsafe { &*std::ptr::from_ref(client).cast() }
    }

    /// Returns a handle that does not count as a use of the client, for compiled functions in caches: counted handles
    /// in them would keep the client and its memory for ever.
    #[cfg(feature = "graph")]
    pub(crate) fn without_use_count(&self) -> Client {
        Client(self.0.without_use_count())
    }

    /// Returns a handle that counts as a use of the client while it lives, for arrays that users hold: as long as there
    /// is one, caches keep the client's compiled functions.
    #[cfg(feature = "graph")]
    pub(crate) fn with_use_count(&self) -> Client {
        Client(self.0.with_use_count())
    }

    /// The native CPU backend, which is always available.
    pub fn cpu() -> Client {
        Client(pallas_device::Client::cpu())
    }

    /// The strict interpreter: slow, and every error that a kernel can make is reported with its source line.
    pub fn interpreter() -> Client {
        Client(pallas_device::Client::interpreter())
    }

    /// The wgpu adapter `index`; hardware adapters come first, then software ones such as lavapipe.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if there are fewer, or the crate was built without the feature `gpu`.
    pub fn gpu(index: usize) -> Result<Client> {
        pallas_device::Client::gpu(index).map(Client)
    }

    /// The OpenGL adapter `index`. Such adapters are only selected by name: they support less than others, are often
    /// software, and can be used by one thread at a time.
    ///
    /// # Errors
    /// As [`Client::gpu`].
    pub fn gl(index: usize) -> Result<Client> {
        pallas_device::Client::gl(index).map(Client)
    }

    /// The best hardware GPU, else the CPU. Software adapters are not considered, since the CPU backend is faster.
    pub fn best() -> Client {
        Client(pallas_device::Client::best())
    }

    /// The default client: that of the [`StartupConfig`](pallas_device::startup::StartupConfig) of this process, which
    /// the environment variable `PALLAS_DEVICE` decides if the program does not (`best`, `cpu`, `gpu`, `gpu:N`, `gl`,
    /// `gl:N`, `interpret`); [`Client::best`] if neither names one.
    ///
    /// # Errors
    /// [`Error::Environment`] for another value of the variable, [`Error::NoDevice`] if there is no such device.
    pub fn from_env() -> Result<Client> {
        pallas_device::Client::from_env().map(Client)
    }

    /// The CPU with the [`target`](pallas_device::Client::target) of another device, which need not be present:
    /// functions choose block sizes for that device, and [`explain`](crate::explain) shows its shaders.
    ///
    /// ```
    /// use pallas_rt::{Client, Target};
    /// let target = Target { workgroup_bytes: 48 << 10, has_64_bit: true, ..Target::webgpu() };
    /// assert_eq!(Client::cpu_as(target).target().workgroup_bytes, 48 << 10);
    /// ```
    pub fn cpu_as(target: Target) -> Client {
        Client(pallas_device::Client::cpu_as(target))
    }

    /// Another client of the same device, with its own memory, limit and caches. Arrays of one cannot be used with the
    /// other.
    ///
    /// # Errors
    /// [`Error::NoDevice`] if the adapter is no longer there.
    pub fn isolated(&self) -> Result<Client> {
        self.0.isolated().map(Client)
    }

    /// All devices of this machine.
    pub fn devices() -> Vec<Device> {
        pallas_device::Client::devices()
    }
}

/// Arrays on a chosen client.
impl Client {
    /// Makes an array of this shape from a copy of `elements`, row-major.
    ///
    /// # Errors
    /// [`Error::Length`] if `elements` are not as many as `shape` holds; [`Error::Memory`]; [`Error::Unsupported`] for
    /// 64-bit elements on a GPU.
    #[track_caller]
    pub fn array<T: Elem>(&self, elements: &[T], shape: &[usize]) -> Result<Array> {
        startup::freeze_on_first_use("an array", Location::caller())?;
        self.check_dtype(T::DTYPE)?;
        let bytes = host::elements_as_bytes(elements, shape)?;
        Ok(Array::new(T::DTYPE, shape, Buffer::from_bytes(&self.0, bytes)?))
    }

    /// Makes an array from a copy of its elements as bytes: native-endian, one byte a `bool`.
    ///
    /// # Errors
    /// As [`Client::array`], and [`Error::Value`] for a `bool` that is neither 0 nor 1.
    #[track_caller]
    pub fn array_from_bytes(&self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Array> {
        startup::freeze_on_first_use("an array", Location::caller())?;
        self.check_dtype(dtype)?;
        host::check_data_length(shape, host::byte_count(dtype, shape)?, bytes.len(), "bytes")?;
        host::check_element_bytes(dtype, bytes)?;
        Ok(Array::new(dtype, shape, Buffer::from_bytes(&self.0, bytes)?))
    }

    /// An array with a shape and an element type, and without elements and memory: an argument of
    /// [`eval_shape`](crate::eval_shape()) and [`lower`](crate::lower()). `jax.ShapeDtypeStruct`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for 64-bit elements on a GPU.
    #[cfg(feature = "graph")]
    pub fn shape_dtype(&self, shape: &[usize], dtype: DType) -> Result<Array> {
        self.check_dtype(dtype)?;
        Ok(Array::new_abstract(dtype, shape, self))
    }

    /// Makes an array of zeros (`false` for `bool`).
    ///
    /// # Errors
    /// [`Error::Overflow`], [`Error::Memory`], [`Error::Unsupported`].
    #[track_caller]
    pub fn zeros(&self, shape: &[usize], dtype: DType) -> Result<Array> {
        startup::freeze_on_first_use("an array", Location::caller())?;
        self.check_dtype(dtype)?;
        Ok(Array::new(dtype, shape, Buffer::allocate(&self.0, host::byte_count(dtype, shape)?, true)?))
    }

    /// Makes an array with `value` as every element.
    ///
    /// # Errors
    /// As [`Client::zeros`].
    #[track_caller]
    pub fn full<T: Elem>(&self, shape: &[usize], value: T) -> Result<Array> {
        startup::freeze_on_first_use("an array", Location::caller())?;
        self.check_dtype(T::DTYPE)?;
        let count = host::byte_count(T::DTYPE, shape)? / T::DTYPE.bytes();
        // Booked first, so that a shape beyond the memory limit is refused before the host makes its copy.
        let mut buffer = Buffer::allocate_for_host(&self.0, count * T::DTYPE.bytes())?;
        buffer.write(host::elements_as_bytes(&vec![value; count], shape)?)?;
        Ok(Array::new(T::DTYPE, shape, buffer))
    }

    /// Makes an array with unspecified contents, for a kernel to write.
    ///
    /// # Errors
    /// As [`Client::zeros`].
    #[track_caller]
    pub fn empty(&self, shape: &[usize], dtype: DType) -> Result<Array> {
        startup::freeze_on_first_use("an array", Location::caller())?;
        self.check_dtype(dtype)?;
        Ok(Array::new(dtype, shape, Buffer::allocate(&self.0, host::byte_count(dtype, shape)?, false)?))
    }
}
