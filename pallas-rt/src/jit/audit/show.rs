//! Audits as text.
use super::{Audit, Finding, Severity, ShardingOrigin};
use crate::markup::align_columns;
use std::fmt;

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

impl fmt::Display for ShardingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ShardingOrigin::Explicit => "explicit",
            ShardingOrigin::ExplicitlyReplicated => "explicitly replicated",
            ShardingOrigin::Inferred => "inferred",
            ShardingOrigin::Silent => "nothing said",
        })
    }
}

/// Writes ``error: `0.w`: the policy intends .., nothing is declared, at model.rs:3:9``.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}`: {}", self.severity, self.subject, self.message)?;
        self.line.as_ref().map_or(Ok(()), |line| write!(f, ", at {line}"))
    }
}

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let when = if self.is_compiled { "after compilation" } else { "before compilation" };
        let mesh = self.mesh.as_ref().map_or("no mesh".to_string(), |mesh| {
            let axes = mesh.axes.iter().map(|(name, size)| format!("{name}={size}"));
            let order = match mesh.devices.iter().copied().eq(0..mesh.devices.len()) {
                true => String::new(),
                false => format!(", devices {:?}", mesh.devices),
            };
            format!("mesh {}{order}", axes.collect::<Vec<_>>().join(" "))
        });
        writeln!(f, "audit {when}: {mesh}, {}", self.client)?;
        writeln!(f, "arguments")?;
        let mut rows = vec![["path", "type", "declared", "found", "source", "line"].map(String::from).to_vec()];
        rows.extend(self.parameters.iter().map(|p| {
            let by = p.declared_by.as_ref().map_or(String::new(), |pattern| format!(" by `{pattern}`"));
            let source = format!("{}{by}", p.source);
            vec![p.path.clone(), p.ty.clone(), dash(&p.declared), dash(&p.found), source, dash(&p.line)]
        }));
        f.write_str(&align_columns(&rows))?;
        if !self.constraints.is_empty() {
            writeln!(f, "constraints")?;
            let row = |c: &super::AuditedConstraint| {
                vec![c.name.clone(), c.ty.clone(), c.declared.clone(), dash(&c.found), c.line.clone()]
            };
            f.write_str(&align_columns(&self.constraints.iter().map(row).collect::<Vec<_>>()))?;
        }
        if !self.patterns.is_empty() {
            writeln!(f, "policy")?;
            let row = |p: &super::PatternUse| vec![p.pattern.clone(), p.spec.clone(), p.matched.join(", ")];
            f.write_str(&align_columns(&self.patterns.iter().map(row).collect::<Vec<_>>()))?;
        }
        if self.is_compiled {
            writeln!(f, "collectives")?;
            let row = |one: &super::CollectiveTotal| {
                vec![
                    one.count.to_string(),
                    one.kind.clone(),
                    format!("over {}", one.axes),
                    format!("{} bytes", one.bytes),
                ]
            };
            f.write_str(&align_columns(&self.collectives.iter().map(row).collect::<Vec<_>>()))?;
        }
        let count = |severity| self.findings.iter().filter(|f| f.severity == severity).count();
        let [errors, warnings, notes] = [Severity::Error, Severity::Warning, Severity::Note].map(count);
        writeln!(f, "findings: {errors} errors, {warnings} warnings, {notes} notes")?;
        self.findings.iter().try_for_each(|finding| writeln!(f, "  {finding}"))
    }
}
