//! The builder, which appends instructions to a kernel, region by region; every type comes from [`infer`].
use crate::diag::{self, At, Diag};
use crate::kernel::{DimDecl, DimId, Inst, InstId, Kernel, Loc, Op, Operand, OperandId, Region, RegionId, Type, Value};
use crate::structural::Cast;
use crate::{DType, Literal, ScalarOp, infer};

/// A kernel under construction, with a stack of open regions.
///
/// ```
/// use pallas_ir::{Builder, DType, Literal, Loc, Op, ScalarOp};
/// let mut b = Builder::new("double");
/// let x = b.constant(Literal::new(DType::F32, 1.5), Loc::NONE);
/// let y = b.emit(Op::Scalar(ScalarOp::Add), &[x, x], Loc::NONE).unwrap();
/// assert_eq!(b.kernel().ty(y).to_string(), "f32[]");
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    kernel: Kernel,
    open: Vec<Region>,
}

impl Builder {
    /// Creates an empty kernel with an open body.
    pub fn new(name: &str) -> Builder {
        let kernel = Kernel { name: name.into(), regions: vec![Region::default()], ..Kernel::default() };
        Builder { kernel, open: vec![Region::default()] }
    }
    /// Opens an existing kernel for rewriting by passes: instructions are appended to a new region until
    /// [`Builder::end`], and [`Builder::replace`] puts that in place of another region.
    pub fn edit(kernel: Kernel) -> Builder {
        Builder { kernel, open: vec![] }
    }
    /// The kernel as built so far.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }
    /// The kernel as built so far, to change its declarations.
    pub fn kernel_mut(&mut self) -> &mut Kernel {
        &mut self.kernel
    }
    /// Declares a dimension of this name and returns its index, or that of the declared one; `size` is its extent if it
    /// is known while tracing.
    pub fn dim(&mut self, name: &str, size: Option<i64>) -> DimId {
        let dims = &mut self.kernel.dims;
        let at = dims.iter().position(|d| d.name == name).unwrap_or_else(|| {
            dims.push(DimDecl { name: name.into(), size });
            dims.len() - 1
        });
        DimId(at as u32)
    }
    /// Declares an operand and returns its index.
    pub fn operand(&mut self, operand: Operand) -> OperandId {
        self.kernel.operands.push(operand);
        OperandId(self.kernel.operands.len() as u32 - 1)
    }
    /// Creates a value of this type that no instruction defines yet.
    pub fn value(&mut self, ty: Type) -> Value {
        self.kernel.values.push(ty);
        Value(self.kernel.values.len() as u32 - 1)
    }

    /// Appends an operation and returns its result.
    ///
    /// # Errors
    /// A mistake that [`infer`] finds, or an operation without result.
    pub fn emit(&mut self, op: Op, args: &[Value], loc: Loc) -> Result<Value, Diag> {
        self.append(op, args, loc)?
            .ok_or_else(|| Diag::new("result", At::Op, "this operation has no result".into(), ""))
    }
    /// Appends an operation without result, for its effect.
    ///
    /// # Errors
    /// A mistake that [`infer`] finds.
    pub fn effect(&mut self, op: Op, args: &[Value], loc: Loc) -> Result<(), Diag> {
        self.append(op, args, loc).map(|_| ())
    }
    /// Appends an operation, with or without a result. A fold that accumulates in a wider type than its operand's gets
    /// casts around it:
    ///
    /// ```text
    /// %y: f16[1] = reduce op(add) axes(0) %x   ->   %a: f32[8] = cast to(f32) %x
    ///                                               %b: f32[1] = reduce op(add) axes(0) %a
    ///                                               %y: f16[1] = cast to(f16) %b
    /// ```
    ///
    /// # Errors
    /// A mistake that [`infer`] finds.
    pub fn append(&mut self, op: Op, args: &[Value], loc: Loc) -> Result<Option<Value>, Diag> {
        let types: Vec<&Type> = args.iter().map(|&v| self.kernel.ty(v)).collect();
        let result = infer(&self.kernel, &op, &types)?;
        if let (Op::Structural(fold), &[x]) = (&op, args)
            && let Some(wide) = fold.accumulator(&[self.kernel.ty(x).dtype])
        {
            let own = self.kernel.ty(x).dtype;
            let x = self.emit(Op::Structural(Cast { to: wide }.into()), &[x], loc)?;
            let y = self.emit(op, &[x], loc)?;
            return self.append(Op::Structural(Cast { to: own }.into()), &[y], loc);
        }
        result.iter().try_for_each(Type::check)?;
        let result = result.map(|ty| self.value(ty));
        self.push(Inst { op, args: args.to_vec(), results: result.into_iter().collect(), regions: vec![] }, loc);
        Ok(result)
    }
    /// Appends an instruction whose result types are correct already.
    pub fn push(&mut self, inst: Inst, loc: Loc) -> InstId {
        let id = InstId(self.kernel.insts.len() as u32);
        self.kernel.insts.push(inst);
        self.kernel.locs.push(loc);
        self.open.last_mut().expect("a region is open").insts.push(id);
        id
    }
    /// Appends an existing instruction to the open region; passes move instructions this way.
    pub fn push_id(&mut self, id: InstId) {
        self.open.last_mut().expect("a region is open").insts.push(id);
    }
    /// Appends a scalar constant.
    pub fn constant(&mut self, x: Literal, loc: Loc) -> Value {
        self.emit(Op::Const(x), &[], loc).expect("a constant has a type")
    }
    /// Appends an i32 constant.
    pub fn int(&mut self, x: i64, loc: Loc) -> Value {
        self.constant(Literal::int(DType::I32, x), loc)
    }
    /// Appends an elementwise operation; panics if the operands do not fit.
    pub fn scalar(&mut self, op: ScalarOp, args: &[Value], loc: Loc) -> Value {
        self.emit(Op::Scalar(op), args, loc).unwrap_or_else(|d| panic!("{op} of fitting operands: {d:?}"))
    }

    /// Opens a region with parameters of these types, and returns them.
    pub fn begin(&mut self, params: &[Type]) -> Vec<Value> {
        let params: Vec<Value> = params.iter().map(|t| self.value(t.clone())).collect();
        self.open.push(Region { params: params.clone(), ..Region::default() });
        params
    }
    /// Closes the innermost region and returns it; it must become part of an instruction or an operand's map.
    pub fn end(&mut self, yields: &[Value]) -> RegionId {
        let region = Region { yields: yields.to_vec(), ..self.open.pop().expect("a region is open") };
        self.kernel.regions.push(region);
        RegionId(self.kernel.regions.len() as u32 - 1)
    }
    /// Closes the innermost region and puts it in the place of `old`.
    pub fn replace(&mut self, old: RegionId, yields: &[Value]) {
        let new = self.end(yields);
        self.kernel.regions.swap(old.index(), new.index());
    }
    /// Drops the innermost region, after an error inside of it.
    pub fn abandon(&mut self) {
        self.open.pop();
    }

    /// Appends an `if`, whose two regions must yield the same types.
    ///
    /// # Errors
    /// The condition is no bool scalar, or the sides give different types.
    pub fn emit_if(&mut self, condition: Value, then: RegionId, other: RegionId, loc: Loc) -> Result<Vec<Value>, Diag> {
        let ty = self.kernel.ty(condition);
        if *ty != Type::scalar(DType::Bool) {
            return Err(Diag::new("condition", At::Operand(0), format!("a condition is bool[], found {ty}"), ""));
        }
        let (a, b) = (self.yielded_types(then), self.yielded_types(other));
        if a != b {
            return Err(diag::branch_type_mismatch(format_args!("{a:?}"), format_args!("{b:?}")));
        }
        Ok(self.push_with_regions(Op::If, vec![condition], a, vec![then, other], loc))
    }
    /// Appends a `for`, whose `body` takes the index and the carried values and yields the carried values.
    ///
    /// # Errors
    /// A bound is no i32 scalar, or a carried value changes its type.
    pub fn emit_for(
        &mut self,
        [lo, hi, step]: [Value; 3],
        reverse: bool,
        init: &[Value],
        body: RegionId,
        loc: Loc,
    ) -> Result<Vec<Value>, Diag> {
        for bound in [lo, hi, step] {
            let ty = self.kernel.ty(bound);
            if *ty != Type::scalar(DType::I32) {
                return Err(Diag::new("for-bound", At::Op, format!("a bound of `for` is i32[], found {ty}"), ""));
            }
        }
        let types = self.carried_types(init, body)?;
        let args = [lo, hi, step].into_iter().chain(init.iter().copied()).collect();
        Ok(self.push_with_regions(Op::For { reverse }, args, types, vec![body], loc))
    }
    /// Appends a `while`: see [`Op::While`].
    ///
    /// # Errors
    /// A carried value changes its type.
    pub fn emit_while(
        &mut self,
        init: &[Value],
        condition: RegionId,
        body: RegionId,
        loc: Loc,
    ) -> Result<Vec<Value>, Diag> {
        let first = self.yielded_types(condition).first().cloned();
        if first != Some(Type::scalar(DType::Bool)) {
            let message = format!("a condition is bool[], found {first:?}");
            return Err(Diag::new("condition", At::Op, message, ""));
        }
        let types = self.carried_types(init, body)?;
        Ok(self.push_with_regions(Op::While, init.to_vec(), types, vec![condition, body], loc))
    }
    /// Types of the carried values, if the body yields the same ones.
    fn carried_types(&self, initial_values: &[Value], body: RegionId) -> Result<Vec<Type>, Diag> {
        let start: Vec<Type> = initial_values.iter().map(|&v| self.kernel.ty(v).clone()).collect();
        let end = self.yielded_types(body);
        if let Some((a, b)) = start.iter().zip(&end).find(|(a, b)| a != b) {
            return Err(diag::carried_type_mismatch(a, b));
        }
        Ok(start)
    }
    /// Types that a region yields.
    fn yielded_types(&self, region: RegionId) -> Vec<Type> {
        self.kernel.region(region).yields.iter().map(|&v| self.kernel.ty(v).clone()).collect()
    }
    /// Appends an instruction with regions; its results are named like the user's variables.
    fn push_with_regions(
        &mut self,
        op: Op,
        args: Vec<Value>,
        types: Vec<Type>,
        regions: Vec<RegionId>,
        loc: Loc,
    ) -> Vec<Value> {
        let results: Vec<Value> = types.into_iter().map(|t| self.value(t)).collect();
        // Results are named as the loop's parameters, or as the values that a branch yields.
        let named = match op {
            Op::If => self.kernel.region(regions[0]).yields.clone(),
            Op::For { .. } => self.kernel.region(regions[0]).params[1..].to_vec(),
            _ => self.kernel.region(regions[regions.len() - 1]).params.clone(),
        };
        results.iter().zip(named).for_each(|(&result, other)| self.kernel.copy_name(result, other));
        self.push(Inst { op, args, results: results.clone(), regions }, loc);
        results
    }

    /// The size of a dimension as an i32 value: a constant if it is known while tracing.
    pub fn extent(&mut self, name: &str, loc: Loc) -> Value {
        let dim = self.dim(name, None);
        match self.kernel.dims[dim.index()].size {
            Some(n) => self.int(n, loc),
            None => self.emit(Op::Extent(dim), &[], loc).expect("an extent has a type"),
        }
    }

    /// Closes the body and returns the kernel.
    pub fn finish(mut self) -> Kernel {
        while let Some(region) = self.open.pop() {
            if self.open.is_empty() {
                self.kernel.regions[0] = region;
            }
        }
        self.kernel
    }
}
