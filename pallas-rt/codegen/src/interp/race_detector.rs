//! Conflicts between programs: reads and writes of outputs by parallel programs, and the order in which blocks are
//! accessed.
use super::datum::unflatten;
use super::fault::Fault;
use super::machine::Machine;
use pallas_ir::{Loc, OperandId, OperandKind, View, ViewFrame};

impl Machine {
    /// Returns the output in whose memory an operand is: itself, or the output that aliases it; `None` if it is no
    /// output and none aliases it.
    pub(super) fn aliased_output(&self, operand: OperandId) -> Option<OperandId> {
        match self.kernel.operand(operand).kind {
            OperandKind::Output { .. } => Some(operand),
            _ => self.memory[operand.index()].alias,
        }
    }
    /// Records that this program reads element `at` of an output's memory, through `from`: the output, or the input
    /// that it aliases. It is a fault if another parallel program wrote the element, or if the input is read after a
    /// store to it.
    pub(super) fn record_and_check_read(
        &mut self,
        from: OperandId,
        output: OperandId,
        at: usize,
        loc: Loc,
    ) -> Result<(), Fault> {
        let lane = self.lane;
        let memory = &mut self.memory[output.index()];
        memory.unread[at] = false;
        if let Some(reader) = memory.readers[at].iter_mut().find(|r| [0, lane].contains(r)) {
            *reader = lane;
        }
        let writer = memory.writer[at];
        if writer != 0 && writer != lane {
            return Err(self.race_fault(output, at, "reads what another parallel program wrote", writer, loc));
        }
        if writer != 0 && from != output {
            let (input, output) = (self.describe_element(from, at), &self.kernel.operand(output).name);
            let message = format!("{input} is read after a store to `{output}`, which takes over its memory");
            let help = format!("load it before that store, or read what was stored from `{output}`");
            return Err(self.fault("overwritten", loc, message, &help));
        }
        Ok(())
    }
    /// Records that this program writes element `at` of an output; it is a fault if another parallel program has read
    /// or written it.
    pub(super) fn record_and_check_write(&mut self, output: OperandId, at: usize, loc: Loc) -> Result<(), Fault> {
        let lane = self.lane;
        let memory = &mut self.memory[output.index()];
        let (writer, readers) = (memory.writer[at], memory.readers[at]);
        memory.writer[at] = lane;
        if writer != 0 && writer != lane {
            return Err(self.race_fault(output, at, "writes what another parallel program wrote", writer, loc));
        }
        if let Some(&reader) = readers.iter().find(|&&reader| reader != 0 && reader != lane) {
            return Err(self.race_fault(output, at, "writes what another parallel program read", reader, loc));
        }
        Ok(())
    }
    /// Returns the fault of a race with the parallel program `other`.
    fn race_fault(&self, output: OperandId, at: usize, what: &str, other: u32, loc: Loc) -> Fault {
        let stored = self.memory[output.index()].owner.values().find(|(lane, _)| *lane == other);
        let stored = stored.map_or(String::new(), |(_, at)| format!(", which stores at {at}"));
        let message = format!(
            "a race: this program {what}: {}; the other is {}{stored}",
            self.describe_element(output, at),
            self.describe_program(other)
        );
        let help = match self.kernel.operand(output).kind {
            OperandKind::Output { alias: Some(from), .. } => format!(
                "`{}` takes over the memory of `{}`, and programs run in any order: let each program read and write the \
                 same block, or leave `alias` out",
                self.kernel.operand(output).name,
                self.kernel.operand(from).name
            ),
            _ => "make the axis `arbitrary`, or give each program its own block".to_string(),
        };
        self.fault("race", loc, message, &help)
    }

    /// Reports a store to an element that an earlier step stored and nothing read, unless this step has read what
    /// earlier steps stored.
    pub(super) fn check_lost_store(&self, output: OperandId, at: usize, loc: Loc) -> Result<(), Fault> {
        let memory = &self.memory[output.index()];
        let earlier = memory.unread[at] && memory.stored[at] != self.step;
        if !earlier || self.carries || self.kernel.allow.lost_store {
            return Ok(());
        }
        let name = &self.kernel.operand(output).name;
        let message =
            format!("{} replaces what an earlier step stored and no step read", self.describe_element(output, at));
        let help = format!(
            "to sum over steps, add to it: `{name}.store({name}.load() + ..)`, after a first step that stores alone; if \
             the last step's value is meant, say `allow(lost_store)` in `#[kernel(..)]`"
        );
        Err(self.fault("lost-store", loc, message, &help))
    }

    /// Describes a parallel program in words.
    fn describe_program(&self, parallel_program: u32) -> String {
        format!("program {:?}", self.lanes[parallel_program as usize - 1])
    }

    /// Describes an element of an operand in words, with its block.
    pub(super) fn describe_element(&self, operand: OperandId, at: usize) -> String {
        let o = self.kernel.operand(operand);
        let element = unflatten(at, &self.memory[operand.index()].shape);
        let block: Vec<usize> = element.iter().zip(&o.block).map(|(i, block)| i / block.size().max(1)).collect();
        format!("element {element:?} of `{}` (block {block:?})", o.name)
    }

    /// Records that this step writes the current block of an output, and reports an illegal revisit or a race.
    pub(super) fn record_block_visit(&mut self, output: OperandId, view: &View, loc: Loc) -> Result<(), Fault> {
        if view.frame == ViewFrame::Array {
            return Ok(());
        }
        let origin = self.block_origin(output, loc)?;
        let (lane, name) = (self.lane, self.kernel.operand(output).name.clone());
        let memory = &mut self.memory[output.index()];
        if memory.current.as_ref() != Some(&origin) {
            if let Some(left) = memory.current.replace(origin.clone()) {
                memory.left.insert(left);
            }
            if memory.left.contains(&origin) {
                let message =
                    format!("the block of `{name}` at {origin:?} is revisited after another block was written");
                let help = "order the grid so that steps on one block are consecutive";
                return Err(self.fault("revisit", loc, message, help));
            }
        }
        let (owner, first) = *memory.owner.entry(origin.clone()).or_insert((lane, loc));
        if owner != lane {
            let other = self.describe_program(owner);
            let message = format!(
                "a race: the block of `{name}` at {origin:?} is written by two parallel programs; the other is {other}, which stores at {first}"
            );
            let help = "make the axis `arbitrary`, or let its index choose the block";
            return Err(self.fault("race", loc, message, help));
        }
        Ok(())
    }
}
