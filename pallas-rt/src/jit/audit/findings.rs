//! The findings of an audit.
use super::super::bounded::LengthRead;
use super::super::compile::{Compilation, CompilationInput};
use super::super::sharded::Shardings;
use super::{Audit, AuditOptions, AuditedMesh, Finding, FindingKind, Severity, ShardingOrigin};
use crate::sharding::{PartitionSpec, Sharding};
use pallas_ir::Loc;
use std::collections::BTreeMap;

/// Maximum number of small arrays for which an audit finds what their sharding costs: for each, the function is
/// partitioned again with that array replicated.
const MAX_REPARTITIONED_ARRAYS: usize = 16;

impl Audit {
    /// Adds the findings about the mesh, the policy, the parameters and the constraints.
    pub(super) fn add_findings(&mut self, options: &AuditOptions) {
        self.report_mesh_mismatch(options);
        self.report_policy_problems();
        self.report_parameter_problems();
        self.report_constraint_problems();
    }

    fn add_finding(
        &mut self,
        severity: Severity,
        kind: FindingKind,
        subject: &str,
        message: String,
        line: Option<String>,
    ) {
        self.findings.push(Finding { severity, kind, subject: subject.into(), message, line });
    }

    /// Reports a mesh that is not that of the launch configuration.
    fn report_mesh_mismatch(&mut self, options: &AuditOptions) {
        let Some(launch) = options.mesh.as_ref().map(|mesh| AuditedMesh::from_mesh(mesh)) else { return };
        let own = self.mesh.clone();
        let mut wrong =
            |subject: &str, message| self.add_finding(Severity::Error, FindingKind::Mesh, subject, message, None);
        let Some(own) = own else {
            return wrong("mesh", "nothing in the function names a mesh, the launch configuration has one".into());
        };
        if own.axes != launch.axes {
            wrong(
                "axes",
                format!("the function has the axes {:?}, the launch configuration {:?}", own.axes, launch.axes),
            );
        } else if own.devices != launch.devices {
            let message =
                format!("the devices are {:?}, in the launch configuration {:?}", own.devices, launch.devices);
            wrong("device order", message);
        }
    }

    /// Reports patterns of the policy that match nothing, and specs of the policy that are not declared.
    fn report_policy_problems(&mut self) {
        for pattern in self.patterns.clone() {
            // `**` as the last pattern is for everything else, which may be nothing.
            let is_rest = pattern.pattern == "**";
            if pattern.matched.is_empty() && !is_rest {
                let message =
                    format!("`{}` matches no argument and no constraint, or patterns before it do", pattern.pattern);
                self.add_finding(Severity::Error, FindingKind::Unmatched, &pattern.pattern, message, None);
            }
        }
        let params =
            self.parameters.iter().map(|p| (&p.path, p.intended.as_ref(), p.declared.as_ref(), p.line.as_ref()));
        let constraints =
            self.constraints.iter().map(|c| (&c.name, c.intended.as_ref(), Some(&c.declared), Some(&c.line)));
        let mut wrong: Vec<(String, String, Option<String>)> = vec![];
        for (path, intended, declared, line) in params.chain(constraints) {
            let Some(intended) = intended.filter(|intended| declared != Some(*intended)) else { continue };
            let is = declared.map_or("nothing is declared".into(), |text| format!("declared is {text}"));
            let line = declared.and(line).cloned();
            wrong.push((path.clone(), format!("the policy intends {intended}, {is}"), line));
        }
        for (path, message, line) in wrong {
            self.add_finding(Severity::Error, FindingKind::Unapplied, &path, message, line);
        }
    }

    /// Reports owned arrays without a declaration, and arrays that are sharded in another way than intended or
    /// declared.
    fn report_parameter_problems(&mut self) {
        for p in self.parameters.clone() {
            let is_left_to_propagation = p.pattern.is_some() && p.intended.is_none();
            if p.is_owned && p.source == ShardingOrigin::Silent && p.declared.is_none() && !is_left_to_propagation {
                let message = format!(
                    "{} is whole on every device, since nothing is declared; `P(())` declares that it is replicated",
                    p.ty
                );
                self.add_finding(Severity::Warning, FindingKind::Undeclared, &p.path, message, None);
            }
            let Some(found) = &p.found else { continue };
            let axes = |text: &str| text.parse::<PartitionSpec>().ok().map(|spec| spec.axis_texts());
            let is_whole = |text: &String| axes(text).is_some_and(|axes| axes.iter().all(Vec::is_empty));
            let is_bound = |text: &String| is_whole(text) && !text.contains('?');
            let wanted = p.intended.as_ref().or(p.declared.as_ref());
            if wanted.is_some_and(is_bound) && !is_whole(found) {
                let message = format!("it is to be replicated, and sharded as {found}");
                self.add_finding(
                    Severity::Error,
                    FindingKind::ShardedThoughReplicated,
                    &p.path,
                    message,
                    p.line.clone(),
                );
            } else if let Some(declared) = &p.declared
                && let Some(said) = axes(declared)
                // A sharding with parts of axes does not parse as a spec, and was not declared.
                && axes(found).is_none_or(|is| said.iter().zip(&is).any(|(said, is)| !is.starts_with(said)))
            {
                let message = format!("declared is {declared}, and it is sharded as {found}");
                self.add_finding(Severity::Error, FindingKind::PlacedOtherwise, &p.path, message, p.line.clone());
            }
        }
    }

    /// Reports each value and operation that depends on the true lengths of bounded sizes, as a warning if the function
    /// is therefore compiled for each length, else as a note; then sorts all findings by severity.
    pub(super) fn report_length_reads(&mut self, reads: Vec<LengthRead>) {
        for LengthRead { at, what, is_alone } in reads {
            let (severity, message) = match is_alone {
                true => (Severity::Warning, format!("{what}: it is compiled for each length on its own")),
                false => (Severity::Note, format!("{what}, which is read on the host: each call passes it")),
            };
            let line = (at != Loc::NONE).then(|| at.to_string());
            self.add_finding(severity, FindingKind::LengthRead, "length", message, line);
        }
        self.findings.sort_by_key(|f| (std::cmp::Reverse(f.severity), f.kind));
    }

    /// Reports each constraint that also applies to reads of its value that bypass the constraint, and each constraint
    /// whose value is resharded where it is read.
    fn report_constraint_problems(&mut self) {
        for c in self.constraints.clone() {
            if c.is_moved {
                let message = "it binds all readers of the value, also those that do not read the constrained one";
                self.add_finding(Severity::Note, FindingKind::Moved, &c.name, message.into(), Some(c.line.clone()));
            }
            if !c.reshards.is_empty() {
                let message = format!("{} is exchanged again where it is read: {}", c.declared, c.reshards.join("; "));
                self.add_finding(Severity::Warning, FindingKind::Resharded, &c.name, message, Some(c.line.clone()));
            }
        }
    }

    /// Reports small arrays that propagation alone shards, each with the collectives that it costs compared with a
    /// replicated one.
    pub(super) fn report_small_inferred_arrays(
        &mut self,
        compilation: &Compilation,
        paths: &[String],
        options: &AuditOptions,
    ) {
        let CompilationInput { graph, declared, .. } = &compilation.input;
        let is_small = |p: &super::AuditedParameter| {
            p.is_owned && p.source == ShardingOrigin::Inferred && p.bytes <= options.small && p.pattern.is_none()
        };
        let small: Vec<usize> = (0..self.parameters.len()).filter(|&i| is_small(&self.parameters[i])).collect();
        for (k, i) in small.into_iter().enumerate() {
            let p = self.parameters[i].clone();
            let mut cost = String::from("not compared with a replicated one");
            if k < MAX_REPARTITIONED_ARRAYS {
                let mut other = declared.clone();
                other.shardings[i] = Some(Sharding::replicated(graph.ty(graph.params[i]).shape.len()));
                let input = CompilationInput {
                    declared: other,
                    ..CompilationInput::from_graph(graph.clone(), &compilation.input.client)
                };
                let without = Shardings::from_compilation(&Compilation::new(input), paths)
                    .ok()
                    .flatten()
                    .map(|found| found.budget().table());
                cost = self.describe_cost_difference(&without.unwrap_or_default());
            }
            let found = p.found.clone().unwrap_or_default();
            let message = format!("{} of {} bytes is sharded as {found} by propagation alone: {cost}", p.ty, p.bytes);
            self.add_finding(Severity::Warning, FindingKind::SmallInferred, &p.path, message, p.line.clone());
        }
    }

    /// Describes the difference between the collectives of the function and `collectives_if_replicated`, those that it
    /// has where an array is replicated: (count, bytes) by kind and axes.
    fn describe_cost_difference(
        &self,
        collectives_if_replicated: &BTreeMap<(&'static str, String), (usize, usize)>,
    ) -> String {
        let mut rows: BTreeMap<(String, String), [(usize, usize); 2]> = BTreeMap::new();
        for one in &self.collectives {
            rows.entry((one.kind.clone(), one.axes.clone())).or_default()[0] = (one.count, one.bytes);
        }
        for ((kind, axes), &row) in collectives_if_replicated {
            rows.entry((kind.to_string(), axes.clone())).or_default()[1] = row;
        }
        let differs = rows.into_iter().filter(|(_, [with, without])| with != without);
        let texts: Vec<String> = differs
            .map(|((kind, axes), [with, without])| {
                let (n, m) = (with.0, without.0);
                format!("{n} {kind} over {axes} of {} bytes, {m} of {} if it is replicated", with.1, without.1)
            })
            .collect();
        if texts.is_empty() { "the same collectives as if it were replicated".into() } else { texts.join(", ") }
    }
}
