//! The audit of a function on a mesh: the declarations about its arguments and values, compared with the intended
//! shardings and with the result of partitioning.
//!
//! - `gather`: the declarations and the shardings that were found; `findings`: the problems in them;
//! - `compare`: differences between two audits; `show`: an audit as text.
mod compare;
mod findings;
mod gather;
mod show;

pub use compare::AuditDifference;

use super::bounded::{BoundedSize, find_length_reads};
use super::function::{CallArguments, Function};
use super::lower::Lowered;
use crate::sharding::{Mesh, PartitionSpec, ShardingPolicy};
use crate::tree::Tree;
use pallas_device::error::{Error, Result};
use pallas_ir::{At, Diag, Loc};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The intended shardings that an [`audit`] compares a function with, and what it reports.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    policy: ShardingPolicy,
    mesh: Option<Arc<Mesh>>,
    owned: Vec<String>,
    small: usize,
    sizes: Vec<BoundedSize>,
    is_before: bool,
}

impl Default for AuditOptions {
    fn default() -> AuditOptions {
        let owned = vec!["**".to_string()];
        let (policy, small) = (ShardingPolicy::new(), 64 * 1024);
        AuditOptions { policy, mesh: None, owned, small, sizes: vec![], is_before: false }
    }
}

impl AuditOptions {
    /// Returns the defaults: no policy and no launch configuration; all arguments are owned, and arrays up to 64 KiB
    /// are small.
    pub fn new() -> AuditOptions {
        AuditOptions::default()
    }

    /// Sets the intended specs: by the paths of arguments, which begin with the argument's number (`0.layers[*].up`),
    /// and by the names of constraints. The name of a constraint is that of its value by
    /// [`checkpoint_name`](crate::checkpoint_name()), else `constraint[k]` in the order of the function's text; equal
    /// names are numbered, `hidden[0]`, `hidden[1]`.
    #[must_use]
    pub fn policy(mut self, policy: impl Into<ShardingPolicy>) -> AuditOptions {
        self.policy = policy.into();
        self
    }

    /// Sets the mesh of the launch configuration, which the mesh of the function has to equal.
    #[must_use]
    pub fn mesh(mut self, mesh: &Arc<Mesh>) -> AuditOptions {
        self.mesh = Some(mesh.clone());
        self
    }

    /// Sets which arguments are parameters of a model (owned), by patterns of paths: an owned array without a
    /// declaration is reported, a batch of data is not.
    #[must_use]
    pub fn owned(mut self, patterns: &[&str]) -> AuditOptions {
        self.owned = patterns.iter().map(ToString::to_string).collect();
        self
    }

    /// Sets the size in bytes up to which an array is small: a small array that propagation alone shards is reported.
    #[must_use]
    pub fn small(mut self, bytes: usize) -> AuditOptions {
        self.small = bytes;
        self
    }

    /// Sets the sizes that differ between calls, as [`bounded`](crate::transform::Transformed::bounded) takes them: the
    /// audit lists where the function reads their true lengths on the host.
    #[must_use]
    pub fn bounded(mut self, sizes: impl Into<Vec<BoundedSize>>) -> AuditOptions {
        self.sizes = sizes.into();
        self
    }

    /// Audits declarations alone, without propagation, as before compilation.
    #[must_use]
    pub fn before_compilation(mut self) -> AuditOptions {
        self.is_before = true;
        self
    }
}

/// The origin of an array's sharding.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShardingOrigin {
    /// A declaration shards it.
    Explicit,
    /// A declaration says that it is replicated.
    ExplicitlyReplicated,
    /// Propagation shards it.
    Inferred,
    /// Nothing is declared or inferred: it is replicated.
    Silent,
}

/// A leaf of the arguments of an audited function.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditedParameter {
    /// Its path, which begins with the number of the argument.
    pub path: String,
    /// Its element type and shape.
    pub ty: String,
    /// Bytes of the whole array.
    pub bytes: usize,
    /// True if it is a parameter of the model, by [`AuditOptions::owned`].
    pub is_owned: bool,
    /// The declared sharding with priorities, as Shardy writes it; `None` without a declaration.
    pub declared: Option<String>,
    /// The pattern of the policy that declared it, as in [`mark_sharding`](crate::mark_sharding).
    pub declared_by: Option<String>,
    /// The sharding that the policy of the audit intends.
    pub intended: Option<String>,
    /// The pattern of the audit's policy that matches it.
    pub pattern: Option<String>,
    /// The sharding in the compiled function; `None` before compilation.
    pub found: Option<String>,
    /// The origin of its sharding.
    pub source: ShardingOrigin,
    /// The line of the declaration; for an inferred sharding, that of the annotation that it follows from.
    pub line: Option<String>,
}

/// A constraint on a value of an audited function.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditedConstraint {
    /// The name of the constraint: that of its value, or `constraint[k]`.
    pub name: String,
    /// The element type and shape of the value.
    pub ty: String,
    /// The sharding that the constraint states, as Shardy writes it.
    pub declared: String,
    /// The sharding that the policy of the audit intends.
    pub intended: Option<String>,
    /// The pattern of the audit's policy that matches its name.
    pub pattern: Option<String>,
    /// The sharding of the value in the compiled function; `None` before compilation.
    pub found: Option<String>,
    /// The line of the constraint.
    pub line: String,
    /// True if the constraint also applies to reads of the value that do not go through the constraint.
    pub is_moved: bool,
    /// The reads of the value that need it in another sharding, each as that sharding and the line.
    pub reshards: Vec<String>,
}

/// A pattern of the policy, with the arrays about which it decides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PatternUse {
    /// The pattern.
    pub pattern: String,
    /// Its spec, or `inferred`.
    pub spec: String,
    /// The paths of arguments and names of constraints about which it decides.
    pub matched: Vec<String>,
}

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The state may be intended.
    Note,
    /// The state is likely to cost time or memory.
    Warning,
    /// The function is not what was intended; [`Audit::check`] fails.
    Error,
}

/// The kind of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// A spec that the policy intends is not declared, or another one is.
    Unapplied,
    /// A pattern of the policy matches nothing.
    Unmatched,
    /// A spec of the policy does not fit the array.
    WrongSpec,
    /// An owned array is replicated because nothing is declared.
    Undeclared,
    /// An array that is meant to be replicated is sharded.
    ShardedThoughReplicated,
    /// The compiled function shards an array in another way than declared.
    PlacedOtherwise,
    /// Propagation alone shards a small array.
    SmallInferred,
    /// The mesh is not that of the launch configuration.
    Mesh,
    /// A constraint also applies to reads of the value that do not go through it.
    Moved,
    /// A constrained value is resharded where it is read.
    Resharded,
    /// The function reads the true length of a bounded size on the host. Each call passes a number that depends on it;
    /// anything else that depends on it is compiled for each length.
    LengthRead,
}

/// A problem or remark that an audit reports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// Its kind.
    pub kind: FindingKind,
    /// The path, name, pattern or axis that it is about.
    pub subject: String,
    /// The finding in words, with what to do.
    pub message: String,
    /// The line of the user's code that it is about.
    pub line: Option<String>,
}

/// The collectives of one kind over the same axes, summed up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CollectiveTotal {
    /// The kind, as [`CollectiveUse::name`](crate::audit::CollectiveUse::name) has it.
    pub kind: String,
    /// The axes, joined by commas.
    pub axes: String,
    /// Number of collectives.
    pub count: usize,
    /// Bytes that each device sends for each call, over all of them.
    pub bytes: usize,
}

/// The mesh of an audited function: its axes with their sizes, and its devices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AuditedMesh {
    /// The axes with their sizes, the slowest first.
    pub axes: Vec<(String, usize)>,
    /// The devices in row-major order of their positions.
    pub devices: Vec<usize>,
}

/// The report on a function: everything that is declared about its arguments and values, what the compiled function
/// does, and what is wrong about it. It prints as text; [`to_json`](Audit::to_json) is for machines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Audit {
    /// True after compilation, when the shardings that propagation found are in it.
    pub is_compiled: bool,
    /// The mesh that arguments and constraints name.
    pub mesh: Option<AuditedMesh>,
    /// The client that the function is compiled for.
    pub client: String,
    /// The arguments.
    pub parameters: Vec<AuditedParameter>,
    /// The constraints on values.
    pub constraints: Vec<AuditedConstraint>,
    /// The patterns of the options' policy, with what they match.
    pub patterns: Vec<PatternUse>,
    /// The collectives of the compiled function.
    pub collectives: Vec<CollectiveTotal>,
    /// All findings, the most severe first.
    pub findings: Vec<Finding>,
}

/// Traces a function and reports how its arguments and values are sharded, against a policy, the launch configuration
/// and what partitioning makes of it.
///
/// # Errors
/// The call returns the function's own error, the first error of an operation that its result depends on, and that of a
/// kernel which cannot be sharded as declared; what the audit finds is no error of the call, see [`Audit::check`].
///
/// ```
/// use pallas_rt::prelude::*;
/// use pallas_rt::sharding::{Mesh, P, ShardingPolicy};
/// use pallas_rt::audit::AuditOptions;
/// use pallas_rt::{audit, mark_sharding};
/// use std::sync::Arc;
/// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"));
/// let (x, w) = (Array::full(&[8, 16], 1.0f32)?, Array::full(&[16, 32], 1.0f32)?);
/// let x = mark_sharding(&x, &mesh, P("data"))?;
/// let policy = ShardingPolicy::new().rule("0", P("data")).rule("1", P((None, "model")));
/// let audit = audit(|x: &Array, w: &Array| x.matmul(w), AuditOptions::new().policy(&policy).mesh(&mesh));
/// // Nobody has marked `w`.
/// let error = audit(&x, &w)?.check().expect_err("it is not applied").to_string();
/// assert!(error.contains("`1`: the policy intends [{}, {\"model\"}], nothing is declared"));
/// audit(&x, &mark_sharding(&w, &mesh, P((None, "model")))?)?.check()?;
/// # Ok::<(), Error>(())
/// ```
pub fn audit<Args: Tree + 'static, F: Function<Args>>(f: F, options: AuditOptions) -> F::Boxed<Result<Audit>> {
    F::boxed(move |given: CallArguments<'_, Args>| {
        let lowered: Lowered<Args, F> = Lowered::from_function(&f, &given, Loc::NONE)?;
        let reads = match options.sizes[..] {
            [] => vec![],
            _ => find_length_reads(Loc::NONE, &options.sizes, &f, &given)?,
        };
        let (compilation, paths) = (&lowered.compilation, &lowered.arguments.paths);
        let mut audit = Audit::from_compilation(compilation, paths, &compilation.input.client.why(), &options)?;
        audit.report_length_reads(reads);
        Ok(audit)
    })
}

impl Audit {
    /// Returns an error that lists the findings of severity [`Severity::Error`], if there are any.
    ///
    /// # Errors
    /// There is such a finding.
    pub fn check(&self) -> Result<()> {
        self.check_from(Severity::Error)
    }

    /// Returns an error that lists the findings of severity `least` or above, if there are any.
    ///
    /// # Errors
    /// There is such a finding.
    pub fn check_from(&self, least: Severity) -> Result<()> {
        let found: Vec<String> = self.findings.iter().filter(|f| f.severity >= least).map(Finding::to_string).collect();
        if found.is_empty() {
            return Ok(());
        }
        let help = "declare what is intended, or change the policy";
        Err(Error::operation(Loc::NONE, Diag::new("audit", At::Op, found.join("\n"), help)))
    }

    /// The findings of a kind.
    pub fn of_kind(&self, kind: FindingKind) -> Vec<&Finding> {
        self.findings.iter().filter(|f| f.kind == kind).collect()
    }

    /// Returns everything that the function declares as a policy, with a rule for each argument and constraint: audited
    /// against it later, the function fails if a declaration has become weaker.
    ///
    /// # Errors
    /// A declaration that a policy cannot state: parts of axes, or axes that are not to shard the array.
    pub fn declared(&self) -> Result<ShardingPolicy> {
        let of_params = self.parameters.iter().filter_map(|p| Some((&p.path, p.declared.as_ref()?)));
        let of_constraints = self.constraints.iter().map(|c| (&c.name, &c.declared));
        of_params.chain(of_constraints).try_fold(ShardingPolicy::new(), |policy, (path, text)| {
            let spec: PartitionSpec = text.parse().map_err(|message| {
                Error::operation(
                    Loc::NONE,
                    Diag::new("audit", At::Op, format!("`{path}`: {message}"), "use whole axes"),
                )
            })?;
            Ok(policy.rule(path, spec))
        })
    }

    /// The audit as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings and numbers")
    }

    /// Reads an audit that [`to_json`](Audit::to_json) wrote.
    ///
    /// # Errors
    /// Text that is no audit.
    pub fn from_json(text: &str) -> Result<Audit> {
        serde_json::from_str(text).map_err(|error| {
            let found = format!("text that is no audit: {error}");
            Error::operation(Loc::NONE, Diag::new("audit", At::Op, found, "read what `to_json` wrote"))
        })
    }
}
