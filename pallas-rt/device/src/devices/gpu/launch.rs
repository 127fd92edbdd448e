//! Launches of kernels on a wgpu device: shaders of the lowered form, and their dispatches.
use super::command_encoder::ERROR_FLAG_WORDS;
use super::compiled_shader::StoredShader;
use super::job::{Dispatch, ShaderJob};
use super::split_long_loops::split_sequential_axes;
use crate::devices::client::Client;
use crate::devices::counters::SHADERS_GENERATED;
use crate::devices::lowered_cache::KernelSource;
use crate::devices::runtime::{Executable, Launch, LaunchGeometry, describe_launch, find_multiples_of_four};
use crate::error::{Error, Result};
use crate::{disk, timeline};
use pallas_codegen::interp::walk::invalid_step_message;
use pallas_codegen::passes::split_long_loops::add_step_ranges;
use pallas_codegen::target::Target;
use pallas_codegen::wgsl::{self, UNIFORM_HEADER_WORDS};
use pallas_ir::{At, Diag, Kernel, Literal, Loc, OperandKind};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum bytes of scratch of one dispatch; a launch that needs more is split into several.
const MAX_SCRATCH_BYTES: u64 = 64 << 20;

/// Target, sizes that are multiples of four, and form of the dispatches for which a shader is generated; launches that
/// differ in them need different shaders of a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ShaderConditions {
    target: Target,
    /// Bit set of the dimensions whose extent is a multiple of four in the call.
    multiples: u64,
    /// True if each dispatch runs only a range of the sequential axes.
    resumed: bool,
}

/// Shaders of a kernel, one for each [`ShaderConditions`] needed so far. Clients with equal targets share them;
/// pipelines are cached per device.
pub(super) struct KernelShaders {
    source: Arc<KernelSource>,
    forms: Mutex<Vec<(ShaderConditions, Arc<StoredShader>)>>,
}

impl Executable for KernelShaders {
    fn memory_needed(&self, client: &Client, geometry: &LaunchGeometry) -> Result<u64> {
        let results = self.source.traced.operands.iter().zip(&geometry.shapes);
        let results = results.filter(|(o, _)| matches!(o.kind, OperandKind::Output { alias: None, .. }));
        let bytes = results.map(|(o, shape)| shape.iter().product::<usize>() as u64 * o.dtype.bytes() as u64);
        Ok(bytes.sum::<u64>() + self.plan_launch(client, geometry, &[])?.scratch_bytes)
    }

    fn estimated_compiled_bytes(&self) -> u64 {
        // A driver's pipeline takes about ten times the bytes of its text.
        let forms = self.forms.lock();
        forms.iter().map(|(_, program)| program.text.len() as u64 * 11).sum()
    }

    /// Returns before the device has finished, except where the driver's loop limit or the step of a loop must be
    /// checked.
    unsafe fn run(&self, client: &Client, launch: &Launch<'_>) -> Result<()> {
        let kernel = launch.kernel;
        let PlannedLaunch { shader, dispatches, scratch_bytes } =
            self.plan_launch(client, launch.geometry, launch.params)?;
        let array = |&(id, written): &(u32, bool)| (launch.buffers[id as usize].expect("arrays have memory"), written);
        let bindings: Vec<_> = shader.bindings.iter().map(array).collect();
        let gpu = client.gpu_runtime().expect("the client is a GPU's");
        let job = ShaderJob {
            label: &kernel.name,
            wgsl: &shader.text,
            trusted: true,
            workgroup: shader.threads,
            bindings: &bindings,
            dispatches: &dispatches,
            scratch_bytes,
            error_flag: shader.error_flag,
        };
        let describe = || describe_launch(kernel, launch.geometry);
        let limit = client.target().max_loop_iterations.unwrap_or_default();
        let (source, is_sequential, at) = (self.source.clone(), !launch.geometry.sequential.is_empty(), launch.at);
        let device = client.device().to_string();
        let check = Box::new(move |[stopped, line, step, _]: [u32; ERROR_FLAG_WORDS]| {
            let kernel = &source.traced;
            if line != 0 {
                let loc = kernel.locs.iter().find(|loc| loc.line == line).copied().unwrap_or(at);
                let message = invalid_step_message(i64::from(step as i32));
                return Err(Error::kernel(&kernel.name, loc, "", Diag::new("step", At::Op, message, "")));
            }
            if stopped != 0 {
                let what = if is_sequential { "one sequential step of a program" } else { "a program" };
                let message = format!("{what} needs the {limit} loop iterations after which {device} stops it");
                let help = "use smaller blocks or shorter loops, a newer driver, or the CPU";
                return Err(Error::kernel(&kernel.name, Loc::NONE, "", Diag::new("loop-limit", At::Op, message, help)));
            }
            Ok(())
        });
        // SAFETY: shaders of this crate's compiler clamp each access that it has not proven, and count the turns of
        // loops.
        let run =
            || unsafe { gpu.run_job(&job, check) }.map_err(|e| locate_shader_error(e, &shader.text, kernel, launch.at));
        timeline::run_in_span(timeline::SpanKind::Launch, describe, run)
    }
}

/// The shader and the dispatches of a launch.
struct PlannedLaunch {
    shader: Arc<StoredShader>,
    dispatches: Vec<Dispatch>,
    /// Bytes of scratch of the dispatch that needs most.
    scratch_bytes: u64,
}

impl KernelShaders {
    pub(super) fn new(source: Arc<KernelSource>) -> KernelShaders {
        KernelShaders { source, forms: Mutex::default() }
    }

    /// Chooses the shader of a launch and its dispatches.
    fn plan_launch(
        &self,
        client: &Client,
        geometry: &LaunchGeometry,
        params: &[Option<Literal>],
    ) -> Result<PlannedLaunch> {
        // Both forms have the same operands and dimensions; a shader from disk needs no lowered form, so use the traced
        // one.
        let (target, multiples) = (*client.target(), find_multiples_of_four(&self.source.traced, geometry));
        let steps = &geometry.sequential;
        let mut shader =
            self.find_or_generate_shader(steps.len(), ShaderConditions { target, multiples, resumed: false })?;
        let mut ranges = vec![vec![]];
        if let Some(limit) = target.max_loop_iterations
            && !steps.is_empty()
            && shader.iterations.total(steps) >= u64::from(limit)
        {
            shader =
                self.find_or_generate_shader(steps.len(), ShaderConditions { target, multiples, resumed: true })?;
            ranges = split_sequential_axes(&shader.iterations, steps, u64::from(limit) - 1);
        }
        let axis = u64::from(target.max_workgroups_per_axis);
        let total: u64 = geometry.parallel.iter().map(|&n| n as u64).product();
        let per_program = shader.scratch_words as u64 * 4;
        let chunk = (MAX_SCRATCH_BYTES / per_program.max(1)).clamp(1, axis * axis).min(total);
        let dispatches = list_dispatches(&shader, geometry, params, &ranges, [total, chunk, axis]);
        Ok(PlannedLaunch { shader, dispatches, scratch_bytes: per_program * chunk })
    }

    /// Returns the shader for these conditions: from memory, from disk, or generated.
    fn find_or_generate_shader(
        &self,
        sequential_axes: usize,
        conditions: ShaderConditions,
    ) -> Result<Arc<StoredShader>> {
        let mut forms = self.forms.lock();
        if let Some((_, found)) = forms.iter().find(|(f, _)| *f == conditions) {
            return Ok(found.clone());
        }
        let key = shader_disk_key(self.source.disk_key(), sequential_axes, conditions);
        let serves =
            |program: StoredShader| program.is_valid_for(&self.source.traced, sequential_axes).then_some(program);
        let program = match disk::load(&key, serves) {
            Some(found) => found,
            None => {
                SHADERS_GENERATED.fetch_add(1, Ordering::Relaxed);
                let kernel = self.source.lowered();
                let shader = match conditions.resumed {
                    false => wgsl::emit(kernel, sequential_axes, &conditions.target, conditions.multiples),
                    true => wgsl::emit_resumable(
                        &add_step_ranges(kernel, sequential_axes),
                        sequential_axes,
                        &conditions.target,
                        conditions.multiples,
                    ),
                };
                let refused = |diag| Error::kernel(&kernel.name, Loc::NONE, "", diag);
                let program = StoredShader::from(shader.map_err(refused)?);
                disk::save(&key, || &program);
                program
            }
        };
        let program = Arc::new(program);
        forms.push((conditions, program.clone()));
        Ok(program)
    }
}

/// Adds the user's line to the error of a refused shader: the line in the last comment above the refused line of the
/// WGSL `text`, else the kernel's own, `kernel_loc`.
fn locate_shader_error(error: Error, text: &str, traced: &Kernel, kernel_loc: Loc) -> Error {
    let Error::Shader { kernel: name, message, .. } = error else { return error };
    let comment = |line: &str| line.trim_start().strip_prefix("// line ")?.split(':').next()?.parse::<u32>().ok();
    let above = parse_shader_line(&message).and_then(|n| text.lines().take(n).filter_map(comment).last());
    let known = above.and_then(|line| traced.locs.iter().find(|loc| loc.line == line));
    Error::Shader { kernel: name, at: known.unwrap_or(&kernel_loc).to_string(), message }
}

/// Number of the line of WGSL that a compiler's message refers to: that of the first `:line:column` in it.
fn parse_shader_line(message: &str) -> Option<usize> {
    let parts: Vec<&str> = message.split(':').collect();
    let column = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
    parts.windows(2).skip(1).find_map(|two| two[0].parse().ok().filter(|_| column(two[1])))
}

/// Key of a shader on disk, made of everything that determines it.
fn shader_disk_key(identity: &disk::EntryKey, sequential_axes: usize, conditions: ShaderConditions) -> disk::EntryKey {
    identity.derive_entry_key("shader", &[&format!("{sequential_axes} {conditions:?}")])
}

/// Lists the dispatches of a launch of `total` programs: for each part of `chunk` programs all `ranges` of the
/// sequential axes. A dispatch has at most `max_workgroups` workgroups along an axis.
fn list_dispatches(
    shader: &StoredShader,
    geometry: &LaunchGeometry,
    params: &[Option<Literal>],
    ranges: &[Vec<u32>],
    [total, chunk, max_workgroups]: [u64; 3],
) -> Vec<Dispatch> {
    let known: Vec<u32> = geometry
        .parallel
        .iter()
        .chain(&geometry.sequential)
        .chain(&geometry.sizes)
        .map(|&n| n as u32)
        .chain(shader.extents.iter().map(|&(id, axis)| geometry.shapes[id as usize][axis as usize] as u32))
        .chain(params.iter().map(|p| p.map_or(0, |x| x.bits as u32)))
        .collect();
    let parts = (0..total.div_ceil(chunk.max(1))).map(|i| (i * chunk, chunk.min(total - i * chunk)));
    parts
        .flat_map(|part| ranges.iter().map(move |range| (part, range)))
        .map(|((first, count), range)| {
            let mut words = vec![0u32; UNIFORM_HEADER_WORDS];
            (words[0], words[1], words[2]) = (first as u32, total as u32, count as u32);
            words.extend(known.iter().chain(range).chain(&shader.constants));
            words.resize(words.len().next_multiple_of(4), 0);
            let x = count.min(max_workgroups);
            let uniform = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            Dispatch { workgroups: [x as u32, count.div_ceil(x) as u32, 1], uniform }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pallas_codegen::target::Profile;

    #[test]
    fn a_refused_shader_is_blamed_on_the_line_it_comes_from() {
        let own = |line| Loc { file: "k.rs", line, column: 5 };
        let mut kernel = pallas_ir::Builder::new("k").finish();
        kernel.locs = vec![own(3), own(4)];
        let text = "fn main() {\n    // line 3: load\n    let a = 1;\n    // line 4: add\n    let b = wrong;\n}\n";
        let check = |message: &str, expected: &str| {
            let error = Error::Shader { kernel: "k".into(), at: String::new(), message: message.into() };
            let Error::Shader { at, .. } = locate_shader_error(error, text, &kernel, own(1)) else {
                panic!("a shader's error")
            };
            assert_eq!(at, expected, "{message}");
        };
        check("Shader 'k' parsing error: no definition\n  ┌─ wgsl:5:13\n  │\n5 │ let b = wrong;", "k.rs:4:5");
        check("in k:3:1: unknown", "k.rs:3:5");
        check("k:1:1: nothing above", "k.rs:1:5");
        check("the driver's internal compiler: error 7", "k.rs:1:5");
        let other = Error::Value { message: "x".into() };
        assert_eq!(locate_shader_error(other.clone(), text, &kernel, own(1)), other);
    }

    #[test]
    fn a_shader_for_anything_else_is_another_on_disk() {
        let target = Target::webgpu();
        let form = |target| ShaderConditions { target, multiples: 0, resumed: false };
        let (one, other) = (disk::EntryKey::new("traced", &["one"]), disk::EntryKey::new("traced", &["other"]));
        let all = [
            shader_disk_key(&one, 1, form(target)),
            shader_disk_key(&other, 1, form(target)),
            shader_disk_key(&one, 2, form(target)),
            shader_disk_key(&one, 1, ShaderConditions { resumed: true, ..form(target) }),
            shader_disk_key(&one, 1, form(Target { profile: Profile::SimtCpu, ..target })),
            shader_disk_key(&one, 1, form(Target { workgroup_bytes: 32 << 10, ..target })),
            shader_disk_key(&one, 1, ShaderConditions { multiples: 1, ..form(target) }),
            shader_disk_key(&one, 1, form(Target { max_loop_iterations: Some(65_535), ..target })),
        ];
        let names: std::collections::BTreeSet<String> = all.iter().map(disk::EntryKey::hash_text).collect();
        assert_eq!(names.len(), all.len());
    }
}
