//! The text form of specs: writing and reading.
use super::partition_spec::{AxisReference, AxisSpec, DimSpec, PartitionSpec};
use std::fmt;
use std::str::FromStr;

/// Writes Shardy's text of the spec, without a mesh: `[{"data", ?}p1, {}]`.
impl fmt::Display for PartitionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dim = |spec: &DimSpec| {
            let names = spec.axes.iter().map(AxisSpec::to_string).chain(spec.is_open.then(|| "?".into()));
            let priority = spec.priority.map_or(String::new(), |round| format!("p{round}"));
            format!("{{{}}}{priority}", names.collect::<Vec<_>>().join(", "))
        };
        let dims: Vec<String> = self.0.iter().map(dim).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

impl FromStr for PartitionSpec {
    type Err = String;
    /// Reads the text of a spec back; `replicated` is `[]`.
    fn from_str(text: &str) -> Result<PartitionSpec, String> {
        if text.trim() == "replicated" {
            return Ok(PartitionSpec::default());
        }
        let wrong = || format!("`{text}` is no spec: one is `[{{\"data\", ?}}p1, {{}}]`, or `replicated`");
        let mut left = text.trim().strip_prefix('[').ok_or_else(wrong)?.trim_start();
        let mut dims = vec![];
        while !left.starts_with(']') {
            left = left.strip_prefix(',').filter(|_| !dims.is_empty()).unwrap_or(left).trim_start();
            let (inside, rest) = left.strip_prefix('{').and_then(|left| left.split_once('}')).ok_or_else(wrong)?;
            let mut dim = DimSpec::default();
            for entry in inside.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
                match entry {
                    "?" => dim.is_open = true,
                    axis => dim.axes.push(axis.parse().map_err(|()| wrong())?),
                }
            }
            left = rest.trim_start();
            if let Some(number) = left.strip_prefix('p') {
                let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
                dim.priority = Some(number[..end].parse().map_err(|_| wrong())?);
                left = number[end..].trim_start();
            }
            dims.push(dim);
        }
        if left == "]" { Ok(PartitionSpec(dims)) } else { Err(wrong()) }
    }
}

impl FromStr for AxisSpec {
    type Err = ();
    /// Reads the text of an axis back.
    fn from_str(text: &str) -> Result<AxisSpec, ()> {
        let (which, part) = match text.strip_prefix('"').and_then(|left| left.split_once('"')) {
            Some((name, part)) if !name.is_empty() => (AxisReference::Name(name.into()), part),
            Some(_) => return Err(()),
            None => {
                let end = text.find(':').unwrap_or(text.len());
                (AxisReference::Number(text[..end].parse().map_err(drop)?), &text[end..])
            }
        };
        let part = match part.strip_prefix(":(").and_then(|part| part.split_once(')')) {
            Some((pre, size)) => Some((pre.parse().map_err(drop)?, size.parse().map_err(drop)?)),
            None if part.is_empty() => None,
            None => return Err(()),
        };
        Ok(AxisSpec { which, part })
    }
}

impl PartitionSpec {
    /// Returns the texts of the axes in each entry of the spec.
    pub(crate) fn axis_texts(&self) -> Vec<Vec<String>> {
        self.0.iter().map(|dim| dim.axes.iter().map(AxisSpec::to_string).collect()).collect()
    }
}
