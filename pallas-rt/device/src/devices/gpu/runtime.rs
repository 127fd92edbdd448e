//! A wgpu device as a runtime: the trait that all devices implement.
use super::device::Gpu;
use super::launch::KernelShaders;
use crate::devices::ledger::MemoryLedger;
use crate::devices::lowered_cache::KernelSource;
use crate::devices::name::Device;
use crate::devices::runtime::{Executable, Runtime};
use crate::devices::storage::{BufferStorage, InitialContents};
use crate::error::Result;
use std::sync::Arc;

impl Runtime for Gpu {
    fn device(&self) -> &Device {
        &self.device
    }

    fn ledger(&self) -> &Arc<MemoryLedger> {
        &self.ledger
    }

    fn allocate(self: Arc<Self>, bytes: usize, first: InitialContents) -> Result<BufferStorage> {
        Ok(BufferStorage::Device(Box::new(self.allocate_buffer(bytes as u64, first == InitialContents::Zeros)?)))
    }

    fn release_kept_memory(&self) {
        let _turn = self.lock_wgpu();
        self.stock.drop_all();
    }

    fn wait(&self) -> Result<()> {
        self.flush()?;
        self.poll(wgpu::PollType::wait_indefinitely())?;
        match self.trouble.stray.lock().take() {
            None => Ok(()),
            Some(message) => Err(self.refused_action_error("run earlier work", message)),
        }
    }

    #[cfg(feature = "mesh")]
    fn begin_submission(&self) {
        self.begin_recording();
    }

    #[cfg(feature = "mesh")]
    fn end_submission(&self) -> Result<()> {
        self.end_recording()
    }

    fn is_lost(&self) -> bool {
        self.trouble.lost.get().is_some()
    }

    fn compile(&self, source: Arc<KernelSource>) -> Box<dyn Executable> {
        Box::new(KernelShaders::new(source))
    }
}
