//! A wgpu device as a runtime: the trait that all devices implement.
use super::device::Gpu;
use super::launch::Shaders;
use crate::devices::ledger::Ledger;
use crate::devices::name::Device;
use crate::devices::runtime::{Executable, Runtime};
use crate::devices::source::Source;
use crate::devices::storage::{First, Storage};
use crate::error::Result;
use std::sync::Arc;

impl Runtime for Gpu {
    fn device(&self) -> &Device {
        &self.device
    }

    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn allocate(self: Arc<Self>, bytes: usize, first: First) -> Result<Storage> {
        Ok(Storage::Device(Box::new(self.buffer(bytes as u64, first == First::Zeros)?)))
    }

    fn release_kept_memory(&self) {
        let _turn = self.turn();
        self.stock.clear();
    }

    fn wait(&self) -> Result<()> {
        self.flush()?;
        self.poll(wgpu::PollType::wait_indefinitely())?;
        match self.trouble.stray.lock().take() {
            None => Ok(()),
            Some(message) => Err(self.failure("run earlier work", message)),
        }
    }

    #[cfg(feature = "mesh")]
    fn begin_program(&self) {
        self.begin();
    }

    #[cfg(feature = "mesh")]
    fn end_program(&self) -> Result<()> {
        self.end()
    }

    fn is_lost(&self) -> bool {
        self.trouble.lost.get().is_some()
    }

    fn compile(&self, source: Arc<Source>) -> Box<dyn Executable> {
        Box::new(Shaders::new(source))
    }
}
