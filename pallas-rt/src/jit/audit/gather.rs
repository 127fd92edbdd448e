//! The declarations of a function, and the shardings that propagation found for them.
use super::super::compile::{Compilation, CompilationInput};
use super::super::sharded::{DeclaredShardings, Shardings};
use super::{
    Audit, AuditOptions, AuditedConstraint, AuditedMesh, AuditedParameter, CollectiveTotal, PatternUse, ShardingOrigin,
};
use crate::sharding::{Mesh, Sharding, ShardingPolicy, pattern_matches};
use pallas_device::error::Result;
use pallas_graph::call::CheckpointName;
use pallas_graph::shard::inlined;
use pallas_graph::shard::propagation_program::{NodeId, NodeKind, RegionGraph as View, Val};
use pallas_graph::{Graph, Op};
use pallas_ir::{Loc, Type};
use std::collections::HashMap;
use std::sync::Arc;

/// A declared sharding in normal form, with its line and the pattern that matched.
struct DeclaredSharding {
    sharding: Sharding,
    at: Loc,
    pattern: Option<String>,
}

/// Traced function under audit, before it is partitioned: a view of its graph, and what is declared about the shardings
/// of its parameters and values.
struct AuditedFunction<'a> {
    view: View,
    declared: &'a DeclaredShardings,
    mesh: Option<Arc<Mesh>>,
    /// By parameter, its declaration.
    params: Vec<Option<DeclaredSharding>>,
    /// The constraints on values, each with its name.
    constraints: Vec<(NodeId, String)>,
}

impl Audit {
    /// Audits the function of a compilation by `options`; `paths` are those of its arguments' leaves, `client` is its
    /// client as text.
    ///
    /// # Errors
    /// A kernel that cannot be sharded as declared.
    pub(in crate::jit) fn from_compilation(
        compilation: &Compilation,
        paths: &[String],
        client: &str,
        options: &AuditOptions,
    ) -> Result<Audit> {
        let CompilationInput { graph, declared, .. } = &compilation.input;
        let flat = inlined(graph);
        let traced = AuditedFunction::from_graph(graph, &flat, declared, options);
        let found = if options.is_before { None } else { Shardings::from_compilation(compilation, paths)? };
        let table = found.as_ref().map(|found| found.budget().table()).unwrap_or_default();
        let mut audit = Audit {
            is_compiled: found.is_some(),
            mesh: declared.mesh.as_ref().map(|mesh| AuditedMesh::from_mesh(mesh)),
            client: client.into(),
            parameters: traced.audit_parameters(paths, found.as_ref(), options),
            constraints: traced.audit_constraints(found.as_ref(), options),
            patterns: vec![],
            collectives: table
                .into_iter()
                .map(|((kind, axes), (count, bytes))| CollectiveTotal { kind: kind.into(), axes, count, bytes })
                .collect(),
            findings: vec![],
        };
        audit.patterns = audit.pattern_uses(&options.policy);
        audit.add_findings(options);
        audit.report_small_inferred_arrays(compilation, paths, options);
        audit.findings.sort_by_key(|f| (std::cmp::Reverse(f.severity), f.kind));
        Ok(audit)
    }

    /// The patterns of a policy with the arrays about which each decides.
    fn pattern_uses(&self, policy: &ShardingPolicy) -> Vec<PatternUse> {
        let params = self.parameters.iter().map(|p| &p.path);
        let names: Vec<&String> = params.chain(self.constraints.iter().map(|c| &c.name)).collect();
        let of = |(i, rule): (usize, &crate::sharding::PolicyRule)| PatternUse {
            pattern: rule.pattern.clone(),
            spec: rule.spec.as_ref().map_or("inferred".into(), ToString::to_string),
            matched: names.iter().filter(|n| policy.matching(n) == Some(i)).map(|n| (*n).clone()).collect(),
        };
        policy.rules().iter().enumerate().map(of).collect()
    }
}

impl AuditedMesh {
    pub(super) fn from_mesh(mesh: &Mesh) -> AuditedMesh {
        AuditedMesh {
            axes: (0..mesh.rank()).map(|axis| (mesh.name(axis).into(), mesh.size(axis))).collect(),
            devices: (0..mesh.device_count()).map(|position| mesh.device(position)).collect(),
        }
    }
}

/// Returns the file and line of a location in the user's code as text; `None` for `Loc::NONE`.
pub(super) fn location_text(at: Loc) -> Option<String> {
    (at != Loc::NONE).then(|| at.to_string())
}

impl<'a> AuditedFunction<'a> {
    /// Collects the declarations about a graph; `inlined_graph` is the same graph with calls of functions inlined.
    fn from_graph(
        graph: &Graph,
        inlined_graph: &Graph,
        declared: &'a DeclaredShardings,
        options: &AuditOptions,
    ) -> AuditedFunction<'a> {
        let view = View::from_graph(inlined_graph);
        let mut on: HashMap<Val, Vec<NodeId>> = HashMap::new();
        let all: Vec<NodeId> =
            view.preorder().into_iter().filter(|&id| constraint_sharding(&view, id).is_some()).collect();
        all.iter().for_each(|&id| on.entry(view.nodes[id].operands[0]).or_default().push(id));
        let mut of_params = vec![];
        let params = view.body.params.iter().enumerate().map(|(i, p)| {
            if let (Some(sharding), Some(mesh)) = (&declared.shardings[i], &declared.mesh) {
                let statement = declared.statements[i].as_ref();
                let at = statement.map_or(Loc::NONE, |s| s.at);
                let pattern = statement.and_then(|s| s.pattern.as_ref()).map(ToString::to_string);
                return Some(DeclaredSharding { sharding: sharding.normal(mesh), at, pattern });
            }
            // Constraints that say the same about a parameter are its declaration.
            let own = on.get(p)?;
            let first = constraint_sharding(&view, own[0])?;
            if own.iter().any(|&id| constraint_sharding(&view, id) != Some(first)) {
                return None;
            }
            of_params.extend(own);
            Some(DeclaredSharding { sharding: first.clone(), at: view.nodes[own[0]].loc, pattern: None })
        });
        let params = params.collect();
        let names = constraint_names_by_line(graph);
        let left = all.into_iter().filter(|id| !of_params.contains(id));
        let constraints =
            assign_constraint_names(left.map(|id| (id, names.get(&view.nodes[id].loc).cloned())).collect());
        let mesh = declared.mesh.clone().or_else(|| options.mesh.clone());
        AuditedFunction { view, declared, mesh, params, constraints }
    }

    fn sharding_text(&self, sharding: &Sharding) -> String {
        self.mesh.as_ref().map_or(String::new(), |mesh| sharding.text(mesh))
    }

    /// Returns the sharding that a policy intends for a path, as text in normal form, and the pattern that matches the
    /// path; the sharding is `None` if the matching rule states none, both if no rule matches.
    fn intended_sharding(&self, policy: &ShardingPolicy, path: &str, ty: &Type) -> (Option<String>, Option<String>) {
        let Some(rule) = policy.matching(path).map(|rule| &policy.rules()[rule]) else { return (None, None) };
        let text = rule.spec.as_ref().map(|spec| {
            let normal = self.mesh.as_ref().and_then(|mesh| Some(spec.resolve(mesh, &ty.shape, ty).ok()?.normal(mesh)));
            normal.map_or_else(|| spec.to_string(), |sharding| self.sharding_text(&sharding))
        });
        (text, Some(rule.pattern.clone()))
    }

    /// Audits each leaf of the arguments; `compiled_shardings` has the result of partitioning, `None` before
    /// compilation.
    fn audit_parameters(
        &self,
        paths: &[String],
        compiled_shardings: Option<&Shardings>,
        options: &AuditOptions,
    ) -> Vec<AuditedParameter> {
        let of = |(i, &p): (usize, &Val)| {
            let path = paths.get(i).cloned().unwrap_or_else(|| format!("captured {}", i - paths.len()));
            let ty = self.view.ty(p);
            let statement = self.params[i].as_ref();
            let placed = compiled_shardings.map(|found| &found.partitioned_graph().params[i]);
            let is_sharded = placed.is_some_and(|s| !s.is_replicated());
            let says_nothing = |s: &Sharding| s.dims.iter().all(|dim| dim.open && dim.axes.is_empty());
            let source = match statement.map(|s| &s.sharding).filter(|s| !says_nothing(s)) {
                Some(s) if s.is_replicated() && s.dims.iter().all(|dim| !dim.open) => {
                    ShardingOrigin::ExplicitlyReplicated
                }
                Some(_) => ShardingOrigin::Explicit,
                None if is_sharded => ShardingOrigin::Inferred,
                None => ShardingOrigin::Silent,
            };
            let inferred = || {
                let axis = placed?.dims.iter().flat_map(|dim| &dim.axes).next()?;
                location_text(compiled_shardings?.origin_line(p, axis.id))
            };
            let (intended, pattern) = self.intended_sharding(&options.policy, &path, ty);
            AuditedParameter {
                is_owned: options.owned.iter().any(|pattern| pattern_matches(pattern, &path)),
                ty: ty.to_string(),
                bytes: ty.bytes(),
                declared: statement.map(|s| self.sharding_text(&s.sharding)),
                declared_by: statement.and_then(|s| s.pattern.clone()),
                intended,
                pattern,
                found: placed.map(|s| self.sharding_text(s)),
                source,
                line: statement.and_then(|s| location_text(s.at)).or_else(inferred),
                path,
            }
        };
        debug_assert_eq!(self.declared.shardings.len(), self.view.body.params.len());
        self.view.body.params.iter().enumerate().map(of).collect()
    }

    /// Audits each constraint; `compiled_shardings` has the result of partitioning, `None` before compilation.
    fn audit_constraints(
        &self,
        compiled_shardings: Option<&Shardings>,
        options: &AuditOptions,
    ) -> Vec<AuditedConstraint> {
        let of = |(id, name): &(NodeId, String)| {
            let node = &self.view.nodes[*id];
            let (x, result) = (node.operands[0], node.results[0]);
            let ty = self.view.ty(result);
            let (intended, pattern) = self.intended_sharding(&options.policy, name, ty);
            // Nodes keep their numbers in propagation, but may read other values after it.
            let takes_over = |found: &Shardings| {
                let after = &found.propagation().program().nodes;
                let reads = |old: &[Val], new: &[Val]| old.iter().zip(new).any(|(a, b)| *a == x && *b == result);
                let others = self.view.nodes.iter().zip(after).enumerate().filter(|(other, _)| other != id);
                others.into_iter().any(|(_, (old, new))| {
                    let mut regions = old.regions.iter().zip(&new.regions);
                    reads(&old.operands, &new.operands) || regions.any(|(a, b)| reads(&a.results, &b.results))
                })
            };
            AuditedConstraint {
                name: name.clone(),
                ty: ty.to_string(),
                declared: constraint_sharding(&self.view, *id).map_or(String::new(), |s| self.sharding_text(s)),
                intended,
                pattern,
                found: compiled_shardings
                    .and_then(|found| found.propagation().sharding(result))
                    .map(|s| self.sharding_text(&closed_sharding(s))),
                line: node.loc.to_string(),
                is_moved: compiled_shardings.is_some_and(takes_over),
                reshards: compiled_shardings.map(|found| found.reshard_texts(result)).unwrap_or_default(),
            }
        };
        self.constraints.iter().map(of).collect()
    }
}

/// Returns a sharding with the same axes by dimension and nothing else: dimensions are closed, without priorities, and
/// no axes are stated to be replicated.
fn closed_sharding(sharding: &Sharding) -> Sharding {
    Sharding { replicated: vec![], ..Sharding::closed(sharding.axes()) }
}

fn constraint_sharding(view: &View, id: NodeId) -> Option<&Sharding> {
    if let NodeKind::Constraint(sharding) = &view.nodes[id].kind { Some(sharding) } else { None }
}

/// The names of values with a constraint, by the line of the constraint.
fn constraint_names_by_line(graph: &Graph) -> HashMap<Loc, String> {
    let mut all = HashMap::new();
    let definitions = graph.definitions();
    let constraint = |v: pallas_graph::Var| {
        let e = &graph.equations[definitions[v.index()]?];
        e.op.sharding_constraint().map(|_| e.loc)
    };
    for e in &graph.equations {
        match &e.op {
            Op::Call(call) => {
                if let Some(named) = CheckpointName::of(call)
                    && let Some(at) = constraint(e.args[0])
                {
                    all.insert(at, named.name.clone());
                }
                call.graphs().into_iter().for_each(|graph| all.extend(constraint_names_by_line(graph)));
            }
            op if op.sharding_constraint().is_some() => {
                let definer = definitions[e.args[0].index()].map(|i| &graph.equations[i].op);
                if let Some(Op::Call(call)) = definer
                    && let Some(named) = CheckpointName::of(call)
                {
                    all.insert(e.loc, named.name.clone());
                }
            }
            _ => {}
        }
    }
    all
}

/// Gives each constraint a name: its own, with a number if several have it, else `constraint[k]`.
fn assign_constraint_names(constraints: Vec<(NodeId, Option<String>)>) -> Vec<(NodeId, String)> {
    let mut counts: HashMap<&String, [usize; 2]> = HashMap::new();
    constraints.iter().filter_map(|(_, name)| name.as_ref()).for_each(|name| counts.entry(name).or_default()[1] += 1);
    let name = |k: usize, name: &'_ Option<String>, counts: &mut HashMap<&String, [usize; 2]>| match name {
        None => format!("constraint[{k}]"),
        Some(name) => match counts.get_mut(name) {
            Some([seen, count]) if *count > 1 => {
                *seen += 1;
                format!("{name}[{}]", *seen - 1)
            }
            _ => name.clone(),
        },
    };
    let named: Vec<String> = constraints.iter().enumerate().map(|(k, (_, own))| name(k, own, &mut counts)).collect();
    drop(counts);
    constraints.into_iter().zip(named).map(|((id, _), name)| (id, name)).collect()
}
