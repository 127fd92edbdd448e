//! Equations on arrays of one shape, and random bits for each of its elements.
use crate::lang::threefry::{self, WordArithmetic};
use crate::ops::Operand;
use pallas_graph::{Graph, StopGradient, Var};
use pallas_ir::structural::{Bitcast, Broadcast, Cast, Iota, Reshape, Slice};
use pallas_ir::{At, DType, Diag, Dim, Literal, ScalarOp, StructuralOp};

/// A variable of the value that was appended to the graph, or the error.
pub(super) type VarResult = Result<Var, Diag>;

/// Appends equations to a graph, on arrays of one shape.
pub(super) struct ElementwiseBuilder<'g> {
    pub graph: &'g mut Graph,
    shape: Vec<usize>,
    /// Zeros of u32 in this shape.
    zero: Var,
}

/// Appends the two words of a key, u32[2], each as an array of rank 0.
pub(super) fn key_words(graph: &mut Graph, key: Var) -> Result<[Var; 2], Diag> {
    Ok([push_element_at(graph, key, 0)?, push_element_at(graph, key, 1)?])
}

/// Appends the element `i` of an array with one axis, as an array of rank 0.
fn push_element_at(graph: &mut Graph, v: Var, i: usize) -> VarResult {
    let slice = Slice { start: vec![i as i64], size: vec![1usize.into()], stride: vec![1] };
    let slice = graph.push(StructuralOp::from(slice), &[v])?;
    graph.push(StructuralOp::from(Reshape { to: vec![] }), &[slice])
}

impl<'g> ElementwiseBuilder<'g> {
    /// Prepares equations on arrays of this shape.
    ///
    /// # Errors
    /// A shape that no array has.
    pub(super) fn new(graph: &'g mut Graph, shape: &[usize]) -> Result<ElementwiseBuilder<'g>, Diag> {
        let mut zero = graph.literal(Literal::int(DType::U32, 0));
        if !shape.is_empty() {
            zero = graph.push(StructuralOp::from(Broadcast::to(to_dims(shape))), &[zero])?;
        }
        Ok(ElementwiseBuilder { graph, shape: shape.to_vec(), zero })
    }

    pub(super) fn push_op(&mut self, op: ScalarOp, args: &[Var]) -> VarResult {
        self.graph.push(op, args)
    }

    /// Appends an operation on floats. For 16-bit floats it is computed in f32 and rounded, since the CPU has
    /// instructions for that.
    pub(super) fn push_rounded_op(&mut self, op: ScalarOp, args: &[Var], dtype: DType) -> VarResult {
        if !matches!(dtype, DType::F16 | DType::Bf16) {
            return self.push_op(op, args);
        }
        let args = args.iter().map(|&v| self.cast(v, DType::F32)).collect::<Result<Vec<Var>, Diag>>()?;
        let wide = self.push_op(op, &args)?;
        self.cast(wide, dtype)
    }

    /// Appends an array of the builder's shape with `x` as every element; a 16-bit float is rounded twice, by way of
    /// f32, as in JAX.
    pub(super) fn splat_number(&mut self, dtype: DType, x: f64) -> Var {
        let x = if matches!(dtype, DType::F16 | DType::Bf16) { f64::from(x as f32) } else { x };
        self.graph.splat(Literal::new(dtype, x), &self.shape)
    }

    /// Appends an array of the builder's shape with `x` as every element, wrapped to the bits of an integer type.
    pub(super) fn splat_integer(&mut self, dtype: DType, x: i64) -> Var {
        self.graph.splat(Literal::int(dtype, x), &self.shape)
    }

    pub(super) fn cast(&mut self, v: Var, to: DType) -> VarResult {
        if self.graph.ty(v).dtype == to { Ok(v) } else { self.graph.push(StructuralOp::from(Cast { to }), &[v]) }
    }

    pub(super) fn bitcast(&mut self, v: Var, to: DType) -> VarResult {
        self.graph.push(StructuralOp::from(Bitcast { to }), &[v])
    }

    /// Appends a value stretched to the shape.
    pub(super) fn broadcast(&mut self, v: Var) -> VarResult {
        self.graph.broadcast(v, &self.shape)
    }

    /// Appends a value that derivatives take for a constant.
    pub(super) fn stop_gradient(&mut self, v: Var) -> VarResult {
        self.graph.push(StopGradient, &[v])
    }

    /// Appends an operand of a floating-point type at every element. Arrays are taken from `vars`, in order.
    pub(super) fn float_operand(
        &mut self,
        x: &Operand,
        vars: &mut std::slice::Iter<'_, Var>,
        dtype: DType,
    ) -> VarResult {
        match x {
            Operand::Array(_) => {
                let v = self.cast(*vars.next().expect("a variable for each array"), dtype)?;
                self.broadcast(v)
            }
            Operand::Float(x) => Ok(self.splat_number(dtype, *x)),
            Operand::Int(x) => Ok(self.splat_number(dtype, *x as f64)),
            Operand::Bool(x) => {
                Err(Diag::new("dtype", At::Op, format!("the number {x}"), "a floating-point number or array"))
            }
        }
    }

    /// Appends the row-major index of each element, u32.
    fn row_major_positions(&mut self) -> VarResult {
        let (mut sum, mut stride) = (self.zero, 1usize);
        for axis in (0..self.shape.len()).rev() {
            let extent = self.shape[axis];
            if extent > 1 {
                let iota = Iota { shape: to_dims(&self.shape), axis, dtype: DType::U32 };
                let mut coordinate = self.graph.push(StructuralOp::from(iota), &[])?;
                if stride > 1 {
                    let by = self.splat_integer(DType::U32, stride as i64);
                    coordinate = self.push_op(ScalarOp::Mul, &[coordinate, by])?;
                }
                sum = if sum == self.zero { coordinate } else { self.push_op(ScalarOp::Add, &[sum, coordinate])? };
            }
            stride = stride.saturating_mul(extent);
        }
        Ok(sum)
    }

    /// Appends two words of random bits for each element.
    pub(super) fn random_words(&mut self, key: [Var; 2]) -> Result<[Var; 2], Diag> {
        let positions = self.row_major_positions()?;
        self.random_words_at(key, positions)
    }

    /// Appends two words of random bits for each of these counters, whose upper words are 0.
    pub(super) fn random_words_at(&mut self, [high, low]: [Var; 2], counter: Var) -> Result<[Var; 2], Diag> {
        let key = [self.broadcast(high)?, self.broadcast(low)?];
        let counter = [self.zero, counter];
        threefry::threefry_rounds(self, key, counter)
    }

    /// Appends 32 random bits for each element.
    pub(super) fn random_bits(&mut self, key: [Var; 2]) -> VarResult {
        let [high, low] = self.random_words(key)?;
        self.push_op(ScalarOp::BitXor, &[high, low])
    }

    /// Appends 64 random bits for each element.
    pub(super) fn random_bits_64(&mut self, key: [Var; 2]) -> VarResult {
        let [high, low] = self.random_words(key)?;
        let (high, low) = (self.cast(high, DType::U64)?, self.cast(low, DType::U64)?);
        let by = self.splat_integer(DType::U64, 32);
        let high = self.push_op(ScalarOp::Shl, &[high, by])?;
        self.push_op(ScalarOp::BitOr, &[high, low])
    }

    /// Appends the words of the two keys into which a key is split.
    pub(super) fn split(&mut self, key: [Var; 2]) -> Result<[[Var; 2]; 2], Diag> {
        let [high, low] = ElementwiseBuilder::new(self.graph, &[2])?.random_words(key)?;
        let mut words = |i| Ok([push_element_at(self.graph, high, i)?, push_element_at(self.graph, low, i)?]);
        Ok([words(0)?, words(1)?])
    }
}

impl WordArithmetic for ElementwiseBuilder<'_> {
    type Word = Var;
    type Error = Diag;
    fn constant(&mut self, x: u32) -> VarResult {
        Ok(self.splat_integer(DType::U32, i64::from(x)))
    }
    fn add(&mut self, a: Var, b: Var) -> VarResult {
        self.push_op(ScalarOp::Add, &[a, b])
    }
    fn xor(&mut self, a: Var, b: Var) -> VarResult {
        self.push_op(ScalarOp::BitXor, &[a, b])
    }
    fn rotate_left(&mut self, x: Var, by: u32) -> VarResult {
        let (left, right) = (self.constant(by)?, self.constant(32 - by)?);
        let (left, right) = (self.push_op(ScalarOp::Shl, &[x, left])?, self.push_op(ScalarOp::Shr, &[x, right])?);
        self.push_op(ScalarOp::BitOr, &[left, right])
    }
}

fn to_dims(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::from(n)).collect()
}
