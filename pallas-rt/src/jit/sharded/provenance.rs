//! The reasons why an axis shards a value, and why it does not.
use super::{Shardings, operation_name};
use pallas_device::error::{Error, Result};
use pallas_graph::mesh::{Axis, PropagationDirection, axes_text};
use pallas_graph::shard::propagation_program::{NodeKind, Val, ValueDefinition};
use pallas_graph::shard::{
    PropagationLink, PropagationOrigin, PropagationStop, PropagationStopReason, Reshard, ValueOrResult,
};
use pallas_ir::{At, Diag, Loc};
use std::fmt;

/// The path by which propagation brought an axis from an annotation to a value; see [`Shardings::why`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Provenance {
    /// The value, described by its operation or argument, type and line.
    pub value: String,
    /// The name of the axis.
    pub axis: String,
    /// The dimension of the value that the axis shards.
    pub dim: usize,
    /// The steps, the one next to the value first; none if the value itself is annotated.
    pub steps: Vec<ProvenanceStep>,
    /// The annotation: what it is about, and its sharding.
    pub annotation: String,
    /// The line of the annotation.
    pub at: Loc,
}

/// A step by which propagation gave a value an axis.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ProvenanceStep {
    /// The operation through which the axis came.
    pub operation: String,
    /// The line of the operation.
    pub at: Loc,
    /// The value from which the axis came.
    pub from: String,
    /// The round of propagation, which is the priority that the user stated.
    pub round: u32,
    /// The stage of operation priority in that round, 0 to 4.
    pub stage: usize,
}

/// The places where propagation of an axis stops before it reaches a value; see [`Shardings::why_not`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WhyNot {
    /// The value, described by its operation or argument, type and line.
    pub value: String,
    /// The name of the axis.
    pub axis: String,
    /// The dimension of the value that the axis shards; `None` if it shards none.
    pub dim: Option<usize>,
    /// The obstacles next to the value, or, if the axis shards none of its neighbours, those that are nearest to it.
    pub obstacles: Vec<Obstacle>,
}

/// A place where propagation of an axis stops.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Obstacle {
    /// The value that the axis shards.
    pub from: String,
    /// The neighbouring value that the axis does not reach.
    pub to: String,
    /// The operation between them.
    pub operation: String,
    /// The line of the operation.
    pub at: Loc,
    /// The reason why the axis stops, in words.
    pub reason: String,
}

impl Shardings {
    /// The positions in [`values`](Shardings::values) of the values at a place: the path of an argument, such as
    /// `0.layers[1].weight`, or a line of the source, such as `model.rs:31` or `model.rs:31:9`.
    pub fn find(&self, place: &str) -> Vec<usize> {
        let is_line = |at: Loc| {
            let [short, long] = [format!("{}:{}", at.file, at.line), at.to_string()];
            let ends =
                |text: &str| text.strip_suffix(place).is_some_and(|front| front.is_empty() || front.ends_with('/'));
            at != Loc::NONE && (ends(&short) || ends(&long))
        };
        let all = self.values.iter().enumerate();
        all.filter(|(_, v)| v.path.as_deref() == Some(place) || is_line(v.at)).map(|(i, _)| i).collect()
    }

    /// The path of an axis to a value, given by its position in [`values`](Shardings::values): the operations back to
    /// an annotation, each with the round and the stage of propagation in which it decided.
    ///
    /// # Errors
    /// No such value or axis; an axis that does not shard the value.
    ///
    /// ```
    /// use pallas_rt::prelude::*;
    /// use pallas_rt::sharding::{Mesh, NamedSharding, P, device_put};
    /// use pallas_rt::partitioned;
    /// use std::sync::Arc;
    /// let mesh = Arc::new(Mesh::new(&[("data", 2), ("model", 4)]).expect("a mesh"));
    /// let x = Array::full(&[8, 8], 1.0f32)?;
    /// let x = device_put(&x, &NamedSharding::new(&mesh, P("data")))?;
    /// let found = partitioned(|x: &Array| x.tanh().sum(1))(&x)?;
    /// let sum = found.values().len() - 1;
    /// let why = found.why(sum, "data")?;
    /// assert_eq!((why.dim, why.steps.len()), (0, 2));
    /// assert!(why.annotation.starts_with("argument `0`"));
    /// let text = found.why_not(sum, "model")?.to_string();
    /// assert!(text.contains("nothing that is connected with it is sharded by `model`"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn why(&self, value: usize, axis: &str) -> Result<Provenance> {
        let (v, axis) = self.resolve_value_and_axis(value, axis)?;
        let Some(dim) = self.sharded_dim(v, axis) else {
            let found = format!("{} is not sharded by `{}`", self.describe_value(v), self.axis_name(axis));
            return Err(provenance_error(found, "`why_not` names the obstacle"));
        };
        let chain = self.propagation().cause_chain(v, axis.id);
        let steps = chain.causes.iter().map(|cause| {
            let (operation, at) = self.describe_link(cause.via);
            ProvenanceStep {
                operation,
                at,
                from: self.describe_value_or_result(cause.from),
                round: cause.round,
                stage: cause.stage,
            }
        });
        let (annotation, at) = self.describe_annotation(chain.origin);
        Ok(Provenance {
            value: self.describe_value(v),
            axis: self.axis_name(axis),
            dim,
            steps: steps.collect(),
            annotation,
            at,
        })
    }

    /// The places where propagation of an axis stops before a value, given by its position in
    /// [`values`](Shardings::values). If the axis shards the value already, the places where it would shard another
    /// dimension.
    ///
    /// # Errors
    /// No such value or axis.
    pub fn why_not(&self, value: usize, axis: &str) -> Result<WhyNot> {
        let (v, axis) = self.resolve_value_and_axis(value, axis)?;
        let obstacle = |stop: PropagationStop| {
            let (operation, at) = self.describe_link(stop.via);
            let (from, to) = (self.describe_value_or_result(stop.from), self.describe_value_or_result(stop.to));
            Obstacle { from, to, operation, at, reason: self.stop_reason(&stop, axis) }
        };
        let obstacles = self.propagation().propagation_stops(v, axis).into_iter().map(obstacle).collect();
        Ok(WhyNot {
            value: self.describe_value(v),
            axis: self.axis_name(axis),
            dim: self.sharded_dim(v, axis),
            obstacles,
        })
    }

    /// The value at a position in the list of all values, and the axis with a name.
    fn resolve_value_and_axis(&self, value: usize, axis: &str) -> Result<(Val, Axis)> {
        let Some(listed) = self.values.get(value) else {
            let found = format!("value {value} of a function with {}", self.values.len());
            return Err(provenance_error(found, "`values()` has all values, `find` their positions"));
        };
        let axis = self.mesh.find(axis).map_err(|diag| Error::operation(Loc::NONE, diag))?;
        Ok((listed.value, axis))
    }

    fn axis_name(&self, axis: Axis) -> String {
        self.mesh.name(usize::from(axis.id)).into()
    }

    /// The dimension of a value that an axis shards; `None` if it shards none.
    fn sharded_dim(&self, v: Val, axis: Axis) -> Option<usize> {
        let dims = &self.propagation().sharding(v)?.dims;
        dims.iter().position(|dim| dim.axes.iter().any(|own| own.overlaps(axis)))
    }

    /// The line of the annotation from which propagation gave a value an axis.
    pub(in crate::jit) fn origin_line(&self, v: Val, axis: u8) -> Loc {
        self.describe_annotation(self.propagation().cause_chain(v, axis).origin).1
    }

    /// The reads of a value that need it in another sharding, each as text: that sharding, and the line.
    pub(in crate::jit) fn reshard_texts(&self, v: Val) -> Vec<String> {
        let own = self.partitioned_graph().reshards.iter().filter(|one| self.reshard_source(one) == v);
        own.map(|one| format!("as {}{}", one.to.text(&self.mesh), line_suffix(one.at))).collect()
    }

    /// The value that a reshard starts from. A reshard into the sharding of a constraint counts for the operand of the
    /// constraint.
    fn reshard_source(&self, reshard: &Reshard) -> Val {
        let (program, mut v) = (self.propagation().program(), reshard.value);
        while let ValueDefinition::Result(id, _) = program.definitions[v.index()]
            && let NodeKind::Constraint(sharding) = &program.nodes[id].kind
            && sharding.axes() == reshard.to.axes()
        {
            v = program.nodes[id].operands[0];
        }
        v
    }

    /// Describes a value to users: its argument or operation, its type and its line.
    pub(super) fn describe_value(&self, v: Val) -> String {
        let program = self.propagation().program();
        let ty = program.ty(v);
        match program.definitions[v.index()] {
            ValueDefinition::Param(i) => format!("argument `{}` {ty}", self.parameter_path(i)),
            ValueDefinition::Result(node, _) => {
                let (name, at) = self.describe_link(PropagationLink::Node(node));
                if at == Loc::NONE { format!("{name} {ty}") } else { format!("{name} {ty} at {at}") }
            }
            ValueDefinition::Argument(node, _, i) => {
                let (name, at) = self.describe_link(PropagationLink::Node(node));
                format!("value {i} that {name} carries, {ty}, at {at}")
            }
        }
    }

    /// The path of parameter `i`, or `captured k` for a captured array.
    pub(super) fn parameter_path(&self, i: usize) -> String {
        self.paths.get(i).cloned().unwrap_or_else(|| format!("captured {}", i - self.paths.len()))
    }

    fn describe_value_or_result(&self, slot: ValueOrResult) -> String {
        match slot {
            ValueOrResult::Value(v) => self.describe_value(v),
            ValueOrResult::Result(i) => format!("result {i} of the function"),
        }
    }

    /// The name and the line of the operation, group or return that connects two values.
    fn describe_link(&self, via: PropagationLink) -> (String, Loc) {
        match via {
            PropagationLink::Node(id) => {
                let node = &self.propagation().program().nodes[id];
                let name = operation_name(&node.kind).unwrap_or_else(|| {
                    String::from(match node.kind {
                        NodeKind::Constant => "zeros",
                        NodeKind::PropagationBarrier(_) => "propagation_barrier",
                        NodeKind::ShardingGroup(_) => "shard_alike",
                        _ => "the loop or branch",
                    })
                });
                (name, node.loc)
            }
            PropagationLink::Group => ("shard_alike".into(), Loc::NONE),
            PropagationLink::Return(i) => (format!("the return of result {i}"), Loc::NONE),
        }
    }

    /// Returns the text and the line of the annotation `origin`; for `None` the text `no annotation`, without a line.
    fn describe_annotation(&self, origin: Option<PropagationOrigin>) -> (String, Loc) {
        match origin {
            Some(PropagationOrigin::Param(i)) => {
                let statement = self.declared.statements.get(i).cloned().flatten();
                let pattern = statement.as_ref().and_then(|s| s.pattern.as_ref());
                let pattern = pattern.map_or(String::new(), |pattern| format!(" by pattern `{pattern}`"));
                (
                    format!("argument `{}`, declared{pattern}", self.parameter_path(i)),
                    statement.map_or(Loc::NONE, |s| s.at),
                )
            }
            Some(PropagationOrigin::Result(i)) => (format!("result {i}, declared"), Loc::NONE),
            Some(PropagationOrigin::Constraint(id)) => {
                let node = &self.propagation().program().nodes[id];
                let NodeKind::Constraint(sharding) = &node.kind else { return ("an annotation".into(), node.loc) };
                (format!("with_sharding_constraint {}", sharding.text(&self.mesh)), node.loc)
            }
            None => ("no annotation".into(), Loc::NONE),
        }
    }

    /// The reason why an axis stops, as text.
    fn stop_reason(&self, stop: &PropagationStop, axis: Axis) -> String {
        let said = |origin: Option<PropagationOrigin>| match self.describe_annotation(origin) {
            (text, Loc::NONE) => text,
            (text, at) => format!("{text} at {at}"),
        };
        let name = self.axis_name(axis);
        match &stop.reason {
            PropagationStopReason::NoCorrespondingDim { dim } => {
                format!(
                    "`{name}` divides dimension {dim} of {}, and the other has no such dimension",
                    self.describe_value_or_result(stop.from)
                )
            }
            PropagationStopReason::NeedsWholeDim { dim } => {
                format!("the operation needs all of dimension {dim} on each device")
            }
            PropagationStopReason::Barrier(flow) => match flow {
                PropagationDirection::Forward => "a barrier that shardings pass forwards only".into(),
                PropagationDirection::Backward => "a barrier that shardings pass backwards only".into(),
                PropagationDirection::None => "a barrier that no sharding passes".into(),
                PropagationDirection::Both => "a barrier".into(),
            },
            PropagationStopReason::Closed { dim, origin } => format!("dimension {dim} is closed by {}", said(*origin)),
            PropagationStopReason::Replicated { origin } => {
                format!("it is not to be sharded by `{name}`: {}", said(*origin))
            }
            PropagationStopReason::ShardsOtherDim { dim } => {
                let ValueOrResult::Value(v) = stop.to else {
                    return format!("`{name}` divides dimension {dim} already");
                };
                let chain = self.propagation().cause_chain(v, axis.id);
                let decided = chain
                    .causes
                    .first()
                    .map_or(String::new(), |cause| format!(", since round {}, stage {}", cause.round, cause.stage));
                format!("`{name}` divides dimension {dim} already{decided}: {}", said(chain.origin))
            }
            PropagationStopReason::Conflict { with, axes } => {
                format!(
                    "{} divides the same dimension by {}",
                    self.describe_value_or_result(*with),
                    axes_text(axes, &self.mesh)
                )
            }
            PropagationStopReason::UnevenExtent { extent } => {
                format!("`{name}` does not divide {extent} positions evenly")
            }
            PropagationStopReason::LimitedByResult => {
                "an operand is sharded no further than the result of the operation".into()
            }
            PropagationStopReason::AfterPartialFactor { dim } => {
                format!(
                    "blocks of dimension {dim} would not be adjacent elements: its slower part is not sharded completely"
                )
            }
        }
    }
}

fn provenance_error(found: String, help: &str) -> Error {
    Error::operation(Loc::NONE, Diag::new("sharding", At::Op, found, help))
}

fn line_suffix(line: Loc) -> String {
    if line == Loc::NONE { String::new() } else { format!(" at {line}") }
}

/// Writes the value, a line for each step, and the annotation.
impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: `{}` divides dimension {}", self.value, self.axis, self.dim)?;
        for step in &self.steps {
            let ProvenanceStep { operation, from, round, stage, .. } = step;
            writeln!(f, "  from {from}, through {operation}{} (round {round}, stage {stage})", line_suffix(step.at))?;
        }
        write!(f, "  {}{}", self.annotation, line_suffix(self.at))
    }
}

/// Writes the value, and a line for each obstacle.
impl fmt::Display for WhyNot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WhyNot { value, axis, dim, obstacles } = self;
        match dim {
            Some(dim) => write!(f, "{value}: `{axis}` divides dimension {dim}")?,
            None => write!(f, "{value}: not sharded by `{axis}`")?,
        }
        if obstacles.is_empty() && dim.is_none() {
            return write!(f, "\n  nothing that is connected with it is sharded by `{axis}`");
        }
        for Obstacle { from, to, operation, at: line, reason } in obstacles {
            write!(f, "\n  between {from} and {to}, at {operation}{}: {reason}", line_suffix(*line))?;
        }
        Ok(())
    }
}
