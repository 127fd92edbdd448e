//! Translates a kernel's branches and loops to plain operations. Memory that they store to becomes a result of theirs.
use super::{KernelToGraph, UnfinishedGraph, ValueKey, counter_type};
use crate::call::{Case, While};
use crate::dead_code::without_dead_equations;
use crate::graph::{Graph, Var};
use pallas_ir::structural::Cast;
use pallas_ir::{DType, Diag, Inst, Op as TileOp, OperandId, RegionId, ScalarOp, StructuralOp, Type};
use std::collections::BTreeSet;

impl KernelToGraph<'_> {
    /// Returns the operands that these regions store to, in order.
    pub(super) fn stored_operands(&self, regions: &[RegionId]) -> Vec<OperandId> {
        let mut all = BTreeSet::new();
        for &region in regions {
            self.kernel.walk(region, &mut |_, inst| {
                if let TileOp::Store { to, .. } = inst.op {
                    all.insert(to);
                }
            });
        }
        all.into_iter().collect()
    }

    /// Returns the variables with the current elements of these operands.
    fn operand_memories(&mut self, operands: &[OperandId]) -> Vec<Var> {
        operands.iter().map(|&id| self.var_in_innermost_graph(ValueKey::Memory(id))).collect()
    }

    /// Sets the variables `memories` as the current elements of these operands.
    fn define_operand_memories(&mut self, operands: &[OperandId], memories: &[Var]) {
        operands.iter().zip(memories).for_each(|(&id, &x)| self.define_key(ValueKey::Memory(id), x));
    }

    /// Sets the variables `vars` for these values of the kernel.
    fn define_values(&mut self, values: &[pallas_ir::Value], vars: &[Var]) {
        values.iter().zip(vars).for_each(|(&v, &x)| self.define_key(ValueKey::Value(v), x));
    }

    /// Returns a key for each of these variables of the innermost graph, by which graphs inside of it can read the
    /// variable.
    fn assign_value_keys(&mut self, values: &[Var]) -> Vec<ValueKey> {
        let name = |&v: &Var| {
            self.next += 1;
            let key = ValueKey::Translated(self.next);
            self.define_key(key, v);
            key
        };
        values.iter().map(name).collect()
    }

    /// Returns a new graph whose results `write_results` makes, and its parameters of types `param_types`. What it
    /// captures from outside is listed in the [`UnfinishedGraph`], and not yet among its parameters.
    fn build_nested_graph(
        &mut self,
        param_types: &[Type],
        write_results: impl FnOnce(&mut Self, &[Var]) -> Result<Vec<Var>, Diag>,
    ) -> Result<(UnfinishedGraph, Vec<Var>), Diag> {
        let mut scope = UnfinishedGraph::default();
        scope.graph.at = self.at;
        let params: Vec<Var> = param_types.iter().map(|ty| scope.graph.var(ty.clone())).collect();
        self.scopes.push(scope);
        let made = write_results(self, &params);
        let mut scope = self.scopes.pop().expect("the scope that was opened");
        scope.graph.results = made?;
        scope.graph = without_dead_equations(std::mem::take(&mut scope.graph));
        Ok((scope, params))
    }

    /// Appends a `while` over the carried values, as long as `condition` of them holds; returns their last values.
    pub(super) fn push_while(
        &mut self,
        carried: &[Var],
        condition: impl FnOnce(&mut Self, &[Var]) -> Result<Var, Diag>,
        body: impl FnOnce(&mut Self, &[Var]) -> Result<Vec<Var>, Diag>,
    ) -> Result<Vec<Var>, Diag> {
        let takes: Vec<Type> = carried.iter().map(|&v| self.innermost_graph().ty(v).clone()).collect();
        let condition = self.build_nested_graph(&takes, |own, state| Ok(vec![condition(own, state)?]))?;
        let body = self.build_nested_graph(&takes, body)?;
        let mut operands = vec![];
        let mut closed = |own: &mut Self, (scope, params): (UnfinishedGraph, Vec<Var>)| -> (Graph, usize) {
            operands.extend(scope.captured.iter().map(|(key, _)| own.var_in_innermost_graph(*key)));
            let params = scope.captured.iter().map(|(_, v)| *v).chain(params).collect();
            (Graph { params, ..scope.graph }, scope.captured.len())
        };
        let (condition, condition_captured) = closed(self, condition);
        let (body, body_captured) = closed(self, body);
        operands.extend(carried);
        let call = While { condition, body, condition_captured, body_captured };
        self.innermost_graph().push_multi_result(call, &operands)
    }

    /// Translates `if` to a `case` whose second branch is the one for true.
    pub(super) fn translate_if(&mut self, inst: &Inst, condition: Var) -> Result<(), Diag> {
        let stored = self.stored_operands(&inst.regions);
        let mut scopes = vec![];
        for &region in inst.regions.iter().rev() {
            let (scope, _) = self.build_nested_graph(&[], |own, _| {
                let mut made = own.translate_region(region)?;
                made.extend(own.operand_memories(&stored));
                Ok(made)
            })?;
            scopes.push(scope);
        }
        let mut keys: Vec<ValueKey> = vec![];
        for (key, _) in scopes.iter().flat_map(|scope| &scope.captured) {
            if !keys.contains(key) {
                keys.push(*key);
            }
        }
        let operands: Vec<Var> = keys.iter().map(|&key| self.var_in_innermost_graph(key)).collect();
        let types: Vec<Type> = operands.iter().map(|&v| self.innermost_graph().ty(v).clone()).collect();
        let closed = |scope: UnfinishedGraph| {
            let mut graph = scope.graph;
            for (key, ty) in keys.iter().zip(&types) {
                let own = scope.captured.iter().find(|(of, _)| of == key).map(|(_, v)| *v);
                let v = own.unwrap_or_else(|| graph.var(ty.clone()));
                graph.params.push(v);
            }
            graph
        };
        let branches = scopes.into_iter().map(closed).collect();
        let index = self.push(StructuralOp::from(Cast { to: DType::I32 }), &[condition])?;
        let made = self.innermost_graph().push_multi_result(Case { branches }, &[vec![index], operands].concat())?;
        let (results, memories) = made.split_at(inst.results.len());
        self.define_values(&inst.results, results);
        self.define_operand_memories(&stored, memories);
        Ok(())
    }

    /// Translates `for` to a loop over the index of the iteration; in a `reverse` loop the last index of the kernel's
    /// loop comes first.
    pub(super) fn translate_for(&mut self, inst: &Inst, reverse: bool, args: &[Var]) -> Result<(), Diag> {
        let region = inst.regions[0];
        let params = &self.kernel.region(region).params;
        let stored = self.stored_operands(&inst.regions);
        let point = |own: &Self, i: usize| own.ranges.constant_value(inst.args[i]);
        let known = point(self, 0).zip(point(self, 1)).zip(point(self, 2)).filter(|(_, step)| *step > 0);
        let turns = match known {
            Some(((low, high), step)) => self.push_int_constant(((high - low).max(0) + step - 1) / step),
            None => self.push_iteration_count(args)?,
        };
        let outside = self.assign_value_keys(&[turns, args[0], args[2]]);
        let zero = self.push_int_constant(0);
        let mut state = [&[zero], &args[3..]].concat();
        state.extend(self.operand_memories(&stored));
        let carried = args.len() - 3;
        let last = self.push_while(
            &state,
            |own, state| {
                let turns = own.var_in_innermost_graph(outside[0]);
                own.push(ScalarOp::Lt, &[state[0], turns])
            },
            |own, state| {
                let mut turn = state[0];
                if reverse {
                    let turns = own.var_in_innermost_graph(outside[0]);
                    let last = own.push_plus_constant(turns, -1)?;
                    turn = own.push(ScalarOp::Sub, &[last, turn])?;
                }
                let index = match known {
                    Some(((low, _), step)) => {
                        let distance = own.push_with_constant(ScalarOp::Mul, turn, step)?;
                        own.push_plus_constant(distance, low)?
                    }
                    None => {
                        let (low, step) =
                            (own.var_in_innermost_graph(outside[1]), own.var_in_innermost_graph(outside[2]));
                        let distance = own.push(ScalarOp::Mul, &[turn, step])?;
                        own.push(ScalarOp::Add, &[low, distance])?
                    }
                };
                debug_assert_eq!(own.innermost_graph().ty(index), &counter_type());
                let (values, memories) = state[1..].split_at(carried);
                own.define_values(params, &[&[index], values].concat());
                own.define_operand_memories(&stored, memories);
                let mut made = vec![own.push_plus_constant(state[0], 1)?];
                made.extend(own.translate_region(region)?);
                made.extend(own.operand_memories(&stored));
                Ok(made)
            },
        )?;
        let (values, memories) = last[1..].split_at(carried);
        self.define_values(&inst.results, values);
        self.define_operand_memories(&stored, memories);
        Ok(())
    }

    /// Computes the number of iterations of a loop whose bounds are computed. `args` are its start, its end and its
    /// step.
    fn push_iteration_count(&mut self, args: &[Var]) -> Result<Var, Diag> {
        let distance = self.push(ScalarOp::Sub, &[args[1], args[0]])?;
        let before = self.push_plus_constant(distance, -1)?;
        let whole = self.push(ScalarOp::Div, &[before, args[2]])?;
        let turns = self.push_plus_constant(whole, 1)?;
        let (is_any, zero) = (self.push(ScalarOp::Lt, &[args[0], args[1]])?, self.push_int_constant(0));
        self.push(ScalarOp::Select, &[is_any, turns, zero])
    }

    /// Translates `while` to a loop that computes the condition before the first iteration and at the end of each.
    pub(super) fn translate_while(&mut self, inst: &Inst, args: &[Var]) -> Result<(), Diag> {
        let [condition, body] = [inst.regions[0], inst.regions[1]];
        let stored = self.stored_operands(&inst.regions);
        let test = |own: &mut Self, values: &[Var]| -> Result<Vec<Var>, Diag> {
            own.define_values(&own.kernel.region(condition).params, values);
            let mut made = own.translate_region(condition)?;
            made.extend(own.operand_memories(&stored));
            Ok(made)
        };
        let first = test(self, args)?;
        let last = self.push_while(
            &first,
            |_, state| Ok(state[0]),
            |own, state| {
                let (values, memories) = state[1..].split_at(args.len());
                own.define_values(&own.kernel.region(body).params, values);
                own.define_operand_memories(&stored, memories);
                let values = own.translate_region(body)?;
                test(own, &values)
            },
        )?;
        let (values, memories) = last[1..].split_at(args.len());
        self.define_values(&inst.results, values);
        self.define_operand_memories(&stored, memories);
        Ok(())
    }
}
