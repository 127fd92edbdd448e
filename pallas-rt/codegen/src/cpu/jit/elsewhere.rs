//! Stands for machine code on processors for which there is none.
use super::super::plan::step::Chain;
use super::form::{Form, Piece, Place, Rows};

/// Machine code, of which no value exists on this processor.
#[derive(Debug)]
pub enum Code {}

impl Code {
    /// Runs the code over rows of chains.
    ///
    /// # Safety
    /// None: no value exists to call it with.
    pub(in super::super) unsafe fn run(&self, _: Rows<'_>) {
        match *self {}
    }
    /// Runs iterations of the code of a loop.
    ///
    /// # Safety
    /// None: no value exists to call it with.
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
