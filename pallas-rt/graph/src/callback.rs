//! Functions of the host as operations of a graph.
use pallas_ir::{Diag, Type};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// `jax.pure_callback`: results that a function of the host computes from the elements of the operands. It has no derivative.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Callback {
    /// The function.
    pub function: HostFunction,
    /// The operands of a call for a batch.
    pub method: VmapMethod,
    /// The types of the operands.
    pub takes: Vec<Type>,
    /// The types of the results.
    pub gives: Vec<Type>,
}

impl Callback {
    /// Calls the function on the bytes of the operands.
    ///
    /// # Errors
    /// The function's own.
    pub fn call(&self, operands: &[&[u8]]) -> Result<Vec<Vec<u8>>, Diag> {
        let operands: Vec<(&Type, &[u8])> = self.takes.iter().zip(operands.iter().copied()).collect();
        (self.function.0)(&operands, &self.gives)
    }
}

/// Calls of a callback for a batch of examples; the `vmap_method` of `jax.pure_callback`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum VmapMethod {
    /// One call for each example, in a loop.
    #[default]
    Sequential,
    /// One call for all examples. Operands and results have an axis more in front, which has the size 1 for operands that
    /// all examples share.
    ExpandDims,
    /// One call for all examples. Operands and results have an axis more in front, along which operands that all examples
    /// share are repeated.
    BroadcastAll,
}

impl fmt::Display for VmapMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VmapMethod::Sequential => "sequential",
            VmapMethod::ExpandDims => "expand_dims",
            VmapMethod::BroadcastAll => "broadcast_all",
        })
    }
}

/// A function from the types and bytes of arrays, and the types of results, to the bytes of results. It is equal to its clones
/// alone.
#[derive(Clone)]
pub struct HostFunction(Arc<Host>);

type Host = dyn Fn(&[(&Type, &[u8])], &[Type]) -> Result<Vec<Vec<u8>>, Diag> + Send + Sync;

impl HostFunction {
    /// A function whose results depend on its arguments alone.
    pub fn new(
        f: impl Fn(&[(&Type, &[u8])], &[Type]) -> Result<Vec<Vec<u8>>, Diag> + Send + Sync + 'static,
    ) -> HostFunction {
        HostFunction(Arc::new(f))
    }

    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).cast::<()>() as usize
    }
}

impl PartialEq for HostFunction {
    fn eq(&self, other: &HostFunction) -> bool {
        self.address() == other.address()
    }
}
impl Eq for HostFunction {}
impl Hash for HostFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}
impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function of the host")
    }
}
