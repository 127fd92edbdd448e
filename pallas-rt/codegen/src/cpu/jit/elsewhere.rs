//! No machine code, for other processors.
use super::super::plan::step::Chain;
use super::form::{Form, Piece, Place, Rows};

/// There is none.
#[derive(Debug)]
pub enum Code {}

impl Code {
    /// Runs the code over rows.
    ///
    /// # Safety
    /// None: it can't be called.
    pub(in super::super) unsafe fn run(&self, _: Rows<'_>) {
        match *self {}
    }
    /// Runs so many turns of the code of a loop.
    ///
    /// # Safety
    /// None: it can't be called.
    pub(in super::super) unsafe fn run_turns(&self, _: &mut [Place], _: usize) {
        match *self {}
    }
}

pub(super) fn compile(_: &[Chain], _: &[Form]) -> Option<Code> {
    None
}
pub(super) fn compile_turns(_: &[&Chain], _: &[Piece]) -> Option<Code> {
    None
}
