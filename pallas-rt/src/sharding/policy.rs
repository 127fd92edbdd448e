//! Shardings by the paths of a tree's leaves: how a model is sharded, as data of its user.
use super::partition_spec::{AxisReference, AxisSpec, DimSpec, PartitionSpec};
use pallas_device::error::{Error, Result};
use pallas_ir::{At, Diag, Loc};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A list of patterns of paths, each with the spec of the arrays that it matches; the first pattern that matches a path
/// decides. A policy is data: it is built in Rust, or read from text or JSON.
///
/// A pattern has the form of a path of a [`Tree`](crate::tree::Tree): `layers[0].mlp.weight`, `params["bias"]`. In it
/// `*` stands for any characters of one step, so that `layers[*].w*` matches the index of every layer and every field
/// that begins with `w`; `**` stands for any number of steps. The empty path of a tree that is one array matches `**`
/// and the empty pattern.
///
/// ```
/// use pallas_rt::sharding::{P, ShardingPolicy};
/// let text = r#"
/// ## Columns of the first matrix, rows of the second one.
/// layers[*].mlp.up = [{}, {"model"}]
/// layers[*].mlp.down = [{"model"}, {}]
/// layers[*].norm = replicated
/// ** = inferred
/// "#;
/// let policy: ShardingPolicy = text.parse()?;
/// assert_eq!(policy.spec_for("layers[3].mlp.up"), Some(&P((None, "model"))));
/// assert_eq!(policy.spec_for("embedding"), None);
/// assert_eq!(ShardingPolicy::from_json(&policy.to_json())?, policy);
/// # Ok::<(), pallas_rt::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardingPolicy {
    rules: Vec<PolicyRule>,
}

/// A pattern with the spec of what it matches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyRule {
    /// The pattern of paths.
    pub pattern: String,
    /// The spec; `None` leaves the arrays to propagation.
    pub spec: Option<PartitionSpec>,
}

impl ShardingPolicy {
    /// A policy without patterns.
    pub fn new() -> ShardingPolicy {
        ShardingPolicy::default()
    }

    /// Adds a rule: arrays whose paths match `pattern` are sharded by `spec`, unless an earlier pattern matches them.
    #[must_use]
    pub fn rule(mut self, pattern: &str, spec: PartitionSpec) -> ShardingPolicy {
        self.rules.push(PolicyRule { pattern: pattern.into(), spec: Some(spec) });
        self
    }

    /// Adds a pattern of arrays that are left to propagation on purpose.
    #[must_use]
    pub fn inferred(mut self, pattern: &str) -> ShardingPolicy {
        self.rules.push(PolicyRule { pattern: pattern.into(), spec: None });
        self
    }

    /// The rules, in order.
    pub fn rules(&self) -> &[PolicyRule] {
        &self.rules
    }

    /// The spec of the array at a path; `None` if no rule matches, or if the array is left to propagation.
    pub fn spec_for(&self, path: &str) -> Option<&PartitionSpec> {
        self.matching(path).and_then(|rule| self.rules[rule].spec.as_ref())
    }

    /// Index of the rule that decides about a path: the first one that matches.
    pub fn matching(&self, path: &str) -> Option<usize> {
        self.rules.iter().position(|rule| pattern_matches(&rule.pattern, path))
    }

    /// The policy with only the rules whose patterns match one of these paths.
    pub(crate) fn restrict_to_paths(&self, paths: &[String]) -> ShardingPolicy {
        let is_matched = |rule: &&PolicyRule| paths.iter().any(|path| pattern_matches(&rule.pattern, path));
        ShardingPolicy { rules: self.rules.iter().filter(is_matched).cloned().collect() }
    }

    /// The first pattern that has a spec but matches none of these paths; `**` is exempt.
    pub(crate) fn first_unmatched_pattern<'p>(&'p self, paths: &[String]) -> Option<&'p str> {
        let stated = self.rules.iter().filter(|rule| rule.spec.is_some()).map(|rule| &rule.pattern[..]);
        // `**`, one spec for all arrays, may match none.
        stated
            .filter(|&pattern| pattern != "**")
            .find(|pattern| !paths.iter().any(|path| pattern_matches(pattern, path)))
    }

    /// Reads [`to_json`](ShardingPolicy::to_json) back: a list of objects with `pattern` and `spec`. A spec is `null`
    /// for arrays that are left to propagation, else a list with an entry for each dimension: `null`, the name of an
    /// axis, a list of names, or `{"axes": [..], "open": true, "priority": 1}`.
    ///
    /// # Errors
    /// Text that is no such list.
    pub fn from_json(text: &str) -> Result<ShardingPolicy> {
        let rules: Vec<JsonRule> = serde_json::from_str(text)
            .map_err(|error| policy_error(format!("a policy that is no list of rules: {error}")))?;
        let rules = rules.into_iter().map(|JsonRule { pattern, spec }| PolicyRule {
            pattern,
            spec: match spec {
                JsonSpec::Inferred(()) => None,
                JsonSpec::Dims(dims) => Some(PartitionSpec(dims.into_iter().map(JsonDim::into_spec).collect())),
            },
        });
        Ok(ShardingPolicy { rules: rules.collect() })
    }

    /// The policy as JSON.
    pub fn to_json(&self) -> String {
        let data = |rule: &PolicyRule| JsonRule {
            pattern: rule.pattern.clone(),
            spec: match &rule.spec {
                None => JsonSpec::Inferred(()),
                Some(spec) => JsonSpec::Dims(spec.0.iter().map(JsonDim::from_spec).collect()),
            },
        };
        let rules: Vec<JsonRule> = self.rules.iter().map(data).collect();
        serde_json::to_string_pretty(&rules).expect("strings and numbers")
    }
}

/// A policy that gives every array this spec.
impl From<PartitionSpec> for ShardingPolicy {
    fn from(spec: PartitionSpec) -> ShardingPolicy {
        ShardingPolicy::new().rule("**", spec)
    }
}

impl From<&ShardingPolicy> for ShardingPolicy {
    fn from(policy: &ShardingPolicy) -> ShardingPolicy {
        policy.clone()
    }
}

/// Writes a line for each rule: `layers[*].up = [{}, {"model"}]`.
impl fmt::Display for ShardingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.iter().try_for_each(|PolicyRule { pattern, spec }| match spec {
            Some(spec) => writeln!(f, "{pattern} = {spec}"),
            None => writeln!(f, "{pattern} = inferred"),
        })
    }
}

impl FromStr for ShardingPolicy {
    type Err = Error;
    /// Reads the text of a policy; lines that begin with `#` are comments.
    fn from_str(text: &str) -> Result<ShardingPolicy> {
        let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
        let rules = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).map(|(number, line)| {
            let (pattern, spec) = line
                .rsplit_once('=')
                .ok_or_else(|| policy_error(format!("line {number} of a policy, `{line}`, has no `=`")))?;
            let spec = match spec.trim() {
                "inferred" => None,
                text => {
                    Some(text.parse().map_err(|found| policy_error(format!("line {number} of a policy: {found}")))?)
                }
            };
            Ok(PolicyRule { pattern: pattern.trim().into(), spec })
        });
        Ok(ShardingPolicy { rules: rules.collect::<Result<_>>()? })
    }
}

fn policy_error(found: String) -> Error {
    let help = "a rule is `layers[*].weight = [{\"data\"}, {}]`, `.. = replicated` or `.. = inferred`";
    Error::operation(Loc::NONE, Diag::new("policy", At::Op, found, help))
}

/// JSON form of a [`PolicyRule`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRule {
    pattern: String,
    spec: JsonSpec,
}

/// JSON form of a rule's spec: `null` or a list. A rule without either is an error.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonSpec {
    Inferred(()),
    Dims(Vec<JsonDim>),
}

/// JSON form of the entry of a dimension: `null`, the name of an axis, a list of names, or an object.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum JsonDim {
    None(()),
    Axis(String),
    Axes(Vec<String>),
    Full(JsonDimObject),
}

/// JSON form of the entry of a dimension that is open or has a priority.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDimObject {
    #[serde(default)]
    axes: Vec<String>,
    #[serde(default)]
    open: bool,
    #[serde(default)]
    priority: Option<u32>,
}

impl JsonDim {
    fn from_spec(dim: &DimSpec) -> JsonDim {
        match (&dim.axes[..], dim.is_open, dim.priority) {
            ([], false, None) => JsonDim::None(()),
            ([axis], false, None) => JsonDim::Axis(axis_json_text(axis)),
            (axes, false, None) => JsonDim::Axes(axes.iter().map(axis_json_text).collect()),
            (axes, open, priority) => {
                JsonDim::Full(JsonDimObject { axes: axes.iter().map(axis_json_text).collect(), open, priority })
            }
        }
    }

    fn into_spec(self) -> DimSpec {
        let (axes, is_open, priority) = match self {
            JsonDim::None(()) => (vec![], false, None),
            JsonDim::Axis(axis) => (vec![axis], false, None),
            JsonDim::Axes(axes) => (axes, false, None),
            JsonDim::Full(JsonDimObject { axes, open, priority }) => (axes, open, priority),
        };
        DimSpec { axes: axes.iter().map(|text| parse_axis(text)).collect(), is_open, priority }
    }
}

/// Returns the text of an axis of a policy's JSON: the name alone if it is a whole axis, else the text of the spec,
/// which quotes the name of a part and writes a number as such.
fn axis_json_text(axis: &AxisSpec) -> String {
    match &axis.which {
        AxisReference::Name(name) if axis.part.is_none() => name.clone(),
        AxisReference::Name(_) | AxisReference::Number(_) => axis.to_string(),
    }
}

fn parse_axis(text: &str) -> AxisSpec {
    text.parse().unwrap_or_else(|()| AxisSpec { which: AxisReference::Name(text.into()), part: None })
}

/// Splits a path or pattern into its steps: `layers`, `[0]`, `weight`. Keys in quotes may hold any characters.
fn split_path(path: &str) -> Vec<&str> {
    let (mut all, mut left) = (vec![], path);
    while !left.is_empty() {
        left = left.strip_prefix('.').unwrap_or(left);
        let end = match left.strip_prefix("[\"") {
            Some(key) => {
                let mut is_escaped = false;
                let end = key.char_indices().find(|&(_, c)| {
                    let ends = c == '"' && !is_escaped;
                    is_escaped = c == '\\' && !is_escaped;
                    ends
                });
                // The step includes `["` before the key and `"]` after it.
                end.map_or(left.len(), |(i, _)| (2 + i + 2).min(left.len()))
            }
            None if left.starts_with('[') => left.find(']').map_or(left.len(), |i| i + 1),
            None => left.find(['.', '[']).unwrap_or(left.len()),
        };
        // Two dots in a row leave an empty step, which is no step of a path.
        let (step, rest) = left.split_at(end);
        all.push(step);
        left = rest;
    }
    all
}

/// Returns true if a pattern matches a path.
pub(crate) fn pattern_matches(pattern: &str, path: &str) -> bool {
    fn steps_match(pattern: &[&str], path: &[&str]) -> bool {
        match (pattern, path) {
            ([], []) => true,
            (["**", rest @ ..], _) => {
                steps_match(rest, path) || matches!(path, [_, path @ ..] if steps_match(pattern, path))
            }
            ([first, pattern @ ..], [step, path @ ..]) => step_matches(first, step) && steps_match(pattern, path),
            _ => false,
        }
    }
    steps_match(&split_path(pattern), &split_path(path))
}

/// Returns true if a pattern matches one step of a path; `*` stands for any characters.
fn step_matches(pattern: &str, step: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut left) = step.strip_prefix(first) else { return false };
    let rest: Vec<&str> = parts.collect();
    let Some((last, middle)) = rest.split_last() else { return left.is_empty() };
    for part in middle {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_steps_of_paths() {
        for (pattern, path, matches) in [
            ("layers[*].mlp.weight", "layers[12].mlp.weight", true),
            ("layers[*].mlp.weight", "layers[12].mlp.weight.extra", false),
            ("layers[*].mlp", "layers[1][2].mlp", false),
            ("layers[1*].w*", "layers[10].weight", true),
            ("layers[1*].w*", "layers[2].weight", false),
            ("*", "a.b", false),
            ("**", "a.b[0]", true),
            ("**", "", true),
            ("", "", true),
            ("**.bias", "bias", true),
            ("**.bias", "a[0].bias", true),
            ("a.**.bias", "a.bias", true),
            ("a.**.bias", "b.bias", false),
            ("params[*].k", r#"params["a.b]"].k"#, true),
            (r#"params["a\"b"]"#, r#"params["a\"b"]"#, true),
            ("0.*", "0.1", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b", "ab", true),
            ("ab*b", "ab", false),
            ("a..b", "a.b", false),
            ("layers[", "layers[0]", false),
        ] {
            assert_eq!(super::pattern_matches(pattern, path), matches, "{pattern} {path}");
        }
    }

    #[test]
    fn policies_are_read_back() {
        let text = "a[*] = [{\"x\", \"y\":(1)2, ?}p2, {}, {?}]\nb = [{\"y\":(2)4}, {0}]\nc = []\n** = inferred\n";
        let policy: ShardingPolicy = text.parse().expect("a policy");
        assert_eq!(policy.to_string(), text);
        assert_eq!(ShardingPolicy::from_json(&policy.to_json()).expect("JSON"), policy);
        let lists = r#"[{"pattern": "a", "spec": [null, "x", ["y", "z"]]}, {"pattern": "b", "spec": null}]"#;
        assert_eq!(
            ShardingPolicy::from_json(lists).expect("JSON").to_string(),
            "a = [{}, {\"x\"}, {\"y\", \"z\"}]\nb = inferred\n"
        );
        for wrong in ["a [{}]", "a = {}", "a = [{\"x]", "a = [{}p]", "a = [{}] more", "a = [{x}]"] {
            let text = wrong.parse::<ShardingPolicy>().expect_err(wrong).to_string();
            assert!(text.contains("line 1 of a policy"), "{text}");
        }
        for wrong in ["{}", r#"[{"pattern": "a"}]"#, r#"[{"pattern": "a", "spec": [{"axis": "x"}]}]"#] {
            assert!(ShardingPolicy::from_json(wrong).is_err(), "{wrong}");
        }
    }
}
