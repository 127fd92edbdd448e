//! Chains over the same rows, a few rows at a time, each in machine code or in strips.
use super::super::jit::Codes;
use super::super::plan::step::Chain;
use super::super::strips::STRIP;
use super::chain::{Reaches, StripBuffers, Strips};
use super::native;
use super::weave::Woven;
use super::{Run, Stop, room};

impl<'a> Run<'a> {
    /// Runs chains over the same rows, each in machine code or in strips: all of a row at a time, or of a few rows.
    pub(super) fn sweep(&mut self, chains: &'a [Chain], codes: &Codes) -> Result<(), Stop> {
        let rows = |c: &Chain| c.shape.split_last().map_or(1, |(_, rows)| rows.iter().product::<usize>());
        let Some(rows) = chains.first().map(rows).filter(|_| !chains.iter().any(|c| c.shape.contains(&0))) else {
            return Ok(());
        };
        // Buffers are a line more than a strip apart, so that they do not fall on the same cache sets. Chains share them,
        // but for what stays from window to window.
        let pitch = STRIP * chains.iter().map(|c| c.widest).max().unwrap_or(8) + 64;
        let shared = chains.iter().map(|c| c.buffers + c.inputs.len()).max().unwrap_or(0);
        let held: usize = chains.iter().map(|c| c.inputs.len()).sum();
        let bound: usize = chains.iter().map(|c| c.inputs.len() + c.sinks.len()).sum();
        let start = room(&mut self.buffers.strips, pitch * (shared + held + bound))?;
        let mut buffers = StripBuffers { start, pitch, held: shared };
        let mut reaches = std::mem::take(&mut self.buffers.reaches);
        reaches.resize_with(chains.len().max(reaches.len()), Reaches::default);
        let widest = chains.iter().filter_map(|c| c.shape.last().copied()).max().unwrap_or(1);
        let mut height = (STRIP / widest).max(1);
        let (mut places, mut lies) = (std::mem::take(&mut self.buffers.places), std::mem::take(&mut self.buffers.lies));
        let mut spread = std::mem::take(&mut self.buffers.spread);
        let (mut bound, mut own) = (std::mem::take(&mut self.buffers.bound), std::mem::take(&mut self.buffers.woven));
        bound.clear();
        places.clear();
        lies.clear();
        spread.clear();
        let mut first = shared + held;
        for (chain, reaches) in chains.iter().zip(&mut reaches) {
            self.results(chain, reaches, height == 1);
            let mut lie = self.lay(chain, reaches, rows, (&mut places, &mut spread, &mut bound));
            if let Some(lie) = &mut lie {
                let weave = lie.weave.and_then(|weave| weave.with_buffers(chain, &mut first));
                lie.weave = weave.filter(|weave| weave.codes(chain).is_some());
            }
            lies.push(lie);
        }
        // Rows of several chains that lie in one place are computed one by one, all in the same way.
        let singly = height == 1 && chains.len() > 1;
        if !singly || !native::row_by_row(chains, codes, &lies, &mut self.buffers.forms, &places, rows) {
            // Code needs no buffers for strips: tiles of as many rows again stay in the first level cache.
            let together = match chains {
                [_] => rows,
                _ if singly => 1,
                _ => 4 * height,
            };
            for ((chain, reaches), lie) in chains.iter().zip(&mut reaches).zip(&mut lies) {
                *lie = lie.filter(|lie| {
                    !singly && (lie.weave.is_some() || native::code(chain, *lie, rows, together).is_some())
                });
                if lie.is_none() {
                    self.copy_kept_of(chain);
                    self.prepare(chain, reaches, &mut buffers);
                }
            }
            let mut end = rows;
            if let ([chain], [None], [one, ..]) = (chains, &lies[..], &mut reaches[..])
                && one.anywhere()
            {
                (end, height, one.inner) = (1, 1, chain.shape.iter().product());
            }
            let woven = Woven { start, pitch, bound: &bound };
            let weave = |lie: &Option<native::Lie>| lie.and_then(|lie| lie.weave);
            for (chain, lie) in chains.iter().zip(&lies) {
                weave(lie).into_iter().for_each(|weave| woven.begin(chain, weave));
            }
            for from in (0..end).step_by(together) {
                let to = end.min(from + together);
                for ((chain, reaches), lie) in chains.iter().zip(&reaches).zip(&lies) {
                    if let (Some(lie), Some(weave)) = (*lie, weave(lie)) {
                        let memory = (&mut places[..], &spread[..]);
                        native::run_woven(&woven, (chain, lie, weave), memory, from..to, rows, &mut own);
                        continue;
                    }
                    let code = lie.and_then(|lie| Some((native::code(chain, lie, rows, together)?, lie)));
                    if let Some((code, lie)) = code {
                        let memory = (&mut places[..], &spread[..], &self.buffers.pages[..]);
                        native::run(code, chain, lie, memory, from..to, rows);
                        continue;
                    }
                    for row in (from..to).step_by(height) {
                        // SAFETY: the rows lie inside of the shape, which every tile holds.
                        unsafe { Strips { chain, reaches }.rows(row, to.min(row + height)) };
                    }
                }
            }
            for ((chain, reaches), lie) in chains.iter().zip(&reaches).zip(&lies) {
                weave(lie).into_iter().for_each(|weave| woven.end(chain, weave, &reaches.sinks));
            }
        }
        self.buffers.bound = bound;
        self.buffers.woven = own;
        self.buffers.reaches = reaches;
        self.buffers.places = places;
        self.buffers.lies = lies;
        self.buffers.spread = spread;
        Ok(())
    }
}
