//! The functions of the cases in reference.txt, by name.
use crate::ops::{self, IndexMode, Indexing, Item::New, Item::Rest, between, by, keep, select};
use crate::prelude::*;

/// The results of a case.
pub(super) struct Made(pub Vec<Array>);
impl From<Array> for Made {
    fn from(x: Array) -> Made {
        Made(vec![x])
    }
}
impl From<Vec<Array>> for Made {
    fn from(all: Vec<Array>) -> Made {
        Made(all)
    }
}
impl From<(Array, Array)> for Made {
    fn from((x, y): (Array, Array)) -> Made {
        Made(vec![x, y])
    }
}

pub(super) type Function = fn(&[Array]) -> Made;

macro_rules! cases {
    ($LIST:ident |$x:ident| $($name:expr => $value:expr;)*) => {
        const $LIST: &[(&str, Function)] = &[$(($name, |$x| $value.into())),*];
    };
}

/// The function of this name.
pub(super) fn function(name: &str) -> Function {
    let all = ELEMENTWISE
        .iter()
        .chain(REDUCTIONS)
        .chain(MOVEMENT)
        .chain(NEW)
        .chain(MATRICES)
        .chain(PRODUCTS)
        .chain(ACTIVATIONS)
        .chain(INDEXED)
        .chain(GRADIENTS)
        .chain(super::order::ORDER)
        .chain(super::linear::LINEAR)
        .chain(super::composed::COMPOSED);
    let found = all.chain(FOLDS.iter().copied().flatten()).find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no function for the case `{name}`")).1
}

cases! { ELEMENTWISE |x|
    "abs" => x[0].abs();
    "sign" => x[0].sign();
    "negative" => -&x[0];
    "square" => x[0].square();
    "floor" => x[0].floor();
    "ceil" => x[0].ceil();
    "trunc" => x[0].trunc();
    "positive" => x[0].positive();
    "sin" => x[0].sin();
    "cos" => x[0].cos();
    "tan" => x[0].tan();
    "exp" => x[0].exp();
    "exp2" => x[0].exp2();
    "expm1" => x[0].expm1();
    "tanh" => x[0].tanh();
    "sinh" => x[0].sinh();
    "cosh" => x[0].cosh();
    "arctan" => x[0].atan();
    "arcsin" => x[0].asin();
    "arccos" => x[0].acos();
    "arcsinh" => x[0].asinh();
    "arccosh" => x[0].acosh();
    "arctanh" => x[0].atanh();
    "sinc" => x[0].sinc();
    "rint" => x[0].rint();
    "fabs" => x[0].fabs();
    "radians" => x[0].radians();
    "deg2rad" => x[0].radians();
    "degrees" => x[0].degrees();
    "rad2deg" => x[0].degrees();
    "cbrt" => x[0].cbrt();
    "log" => x[0].log();
    "log2" => x[0].log2();
    "log10" => x[0].log10();
    "log1p" => x[0].log1p();
    "sqrt" => x[0].sqrt();
    "reciprocal" => x[0].reciprocal();
    "round" => x[0].round();
    "isnan" => x[0].is_nan();
    "isinf" => x[0].is_inf();
    "isfinite" => x[0].is_finite();
    "isposinf" => x[0].is_pos_inf();
    "isneginf" => x[0].is_neg_inf();
    "signbit" => x[0].signbit();
    "nan_to_num" => x[0].nan_to_num();
    "logical_not" => x[0].logical_not();
    "bitwise_not" => !&x[0];
    "modf" => x[0].modf();
    "bitwise_count" => x[0].count_ones();
    "add" => &x[0] + &x[1];
    "multiply" => &x[0] * &x[1];
    "maximum" => x[0].maximum(&x[1]);
    "minimum" => x[0].minimum(&x[1]);
    "subtract" => &x[0] - &x[1];
    "divide" => &x[0] / &x[1];
    "less" => x[0].lt(&x[1]);
    "less_equal" => x[0].le(&x[1]);
    "greater" => x[0].gt(&x[1]);
    "greater_equal" => x[0].ge(&x[1]);
    "equal" => x[0].eq(&x[1]);
    "not_equal" => x[0].ne(&x[1]);
    "logical_and" => x[0].logical_and(&x[1]);
    "logical_or" => x[0].logical_or(&x[1]);
    "logical_xor" => x[0].logical_xor(&x[1]);
    "bitwise_and" => &x[0] & &x[1];
    "bitwise_or" => &x[0] | &x[1];
    "bitwise_xor" => &x[0] ^ &x[1];
    "left_shift" => &x[0] << &x[1];
    "right_shift" => &x[0] >> &x[1];
    "power" => x[0].pow(&x[1]);
    "power 2" => x[0].pow(2);
    "power -1" => x[0].pow(-1);
    "power 0.5" => x[0].pow(0.5);
    "float_power" => x[0].float_power(&x[1]);
    "floor_divide" => x[0].floor_divide(&x[1]);
    "remainder" => x[0].remainder(&x[1]);
    "fmod" => x[0].fmod(&x[1]);
    "divmod" => x[0].divmod(&x[1]);
    "hypot" => x[0].hypot(&x[1]);
    "logaddexp" => x[0].logaddexp(&x[1]);
    "logaddexp2" => x[0].logaddexp2(&x[1]);
    "arctan2" => x[0].atan2(&x[1]);
    "copysign" => x[0].copysign(&x[1]);
    "heaviside" => x[0].heaviside(&x[1]);
    "fmax" => x[0].fmax(&x[1]);
    "fmin" => x[0].fmin(&x[1]);
    "clip" => x[0].clip(-1, 1);
    "clip arrays" => x[0].clip(&x[1], &x[2]);
    "where" => select(&x[0], &x[1], &x[2]);
    "isclose" => x[0].is_close(&x[1], 1e-5, 1e-8);
    "allclose" => x[0].allclose(&x[1], 1e-5, 1e-8);
    "array_equal" => x[0].array_equal(&x[1]);
    "array_equiv" => x[0].array_equiv(&x[1]);
    "lax.rsqrt" => x[0].rsqrt();
    "lax.fma" => x[0].mul_add(&x[1], &x[2]);
    "scipy.special.erf" => x[0].erf();
    "scipy.special.erfc" => x[0].erfc();
    "lax.bitcast_convert_type" => x[0].to_bits();
}

/// Each reduction over all axes, over the last one, over the first one, and over two that are kept.
macro_rules! folds {
    ($($name:ident)*) => {
        const FOLDS: &[&[(&str, Function)]] = &[$(&[
            (stringify!($name), |x| x[0].$name(..).into()),
            (concat!(stringify!($name), " -1"), |x| x[0].$name(-1).into()),
            (concat!(stringify!($name), " 0"), |x| x[0].$name(0).into()),
            (concat!("keepdims= ", stringify!($name)), |x| x[0].$name(keep([0, 2])).into()),
        ]),*];
    };
}
folds! { sum prod mean max min any all var std ptp nansum nanprod nanmax nanmin nanmean nanvar nanstd count_nonzero }

cases! { REDUCTIONS |x|
    "argmax 1" => x[0].argmax(1);
    "argmin 1" => x[0].argmin(1);
    "nanargmax 1" => x[0].nanargmax(1);
    "nanargmin 1" => x[0].nanargmin(1);
    "nn.logsumexp" => x[0].logsumexp(..);
    "nn.logsumexp -1" => x[0].logsumexp(-1);
    "nn.logmeanexp -1" => x[0].logmeanexp(-1);
    "nn.log_softmax -1" => x[0].log_softmax(-1);
    "nn.softmax -1" => x[0].softmax(-1);
    "linalg.norm" => x[0].norm(..);
    "linalg.norm -1" => x[0].norm(-1);
    "linalg.vector_norm 1" => x[0].vector_norm(1.0, 0);
    "linalg.vector_norm 3" => x[0].vector_norm(3.0, 0);
    "linalg.vector_norm inf" => x[0].vector_norm(f64::INFINITY, 0);
    "linalg.vector_norm -inf" => x[0].vector_norm(f64::NEG_INFINITY, 0);
    "linalg.vector_norm 0" => x[0].vector_norm(0.0, 0);
    "average" => x[0].average(1, &x[1]);
    "cumsum 1" => x[0].cumsum(1);
    "cumprod 1" => x[0].cumprod(1);
    "nancumsum 1" => x[0].nancumsum(1);
    "nancumprod 1" => x[0].nancumprod(1);
    "lax.cummax 0" => x[0].cummax(0);
    "lax.cummin 0" => x[0].cummin(0);
    "diff -1" => x[0].diff(1, -1);
    "diff 2 0" => x[0].diff(2, 0);
    "ediff1d" => x[0].ravel().diff(1, 0);
    "trapezoid" => x[0].trapezoid(0.5, -1);
    "cov" => x[0].cov();
    "corrcoef" => x[0].corrcoef();
    "polyval" => x[0].polyval(&x[1]);
}

cases! { MOVEMENT |x|
    "reshape" => x[0].reshape(&[3, 4]);
    "ravel" => x[0].ravel();
    "transpose" => x[0].transpose(&[2, 0, 1]);
    "matrix_transpose" => x[0].t();
    "swapaxes" => x[0].swapaxes(0, -1);
    "moveaxis" => x[0].moveaxis(0, -1);
    "expand_dims" => x[0].expand_dims(-1);
    "squeeze" => x[0].squeeze(..);
    "squeeze 0" => x[0].squeeze(0);
    "broadcast_to" => x[0].broadcast_to(&[2, 3, 4]);
    "astype" => x[0].cast(DType::I32);
    "flip" => x[0].flip(..);
    "flip -1" => x[0].flip(-1);
    "fliplr" => x[0].fliplr();
    "flipud" => x[0].flipud();
    "roll 2" => x[0].roll(2, -1);
    "roll -7" => x[0].roll(-7, -1);
    "rot90 0" => x[0].rot90(0, [0, 1]);
    "rot90 1" => x[0].rot90(1, [0, 1]);
    "rot90 2" => x[0].rot90(2, [0, 1]);
    "rot90 3" => x[0].rot90(3, [0, 1]);
    "rot90 -1" => x[0].rot90(-1, [0, 1]);
    "rot90 axes" => x[0].rot90(1, [2, 0]);
    "repeat 3 1" => x[0].repeat(3, 1);
    "repeat 0 0" => x[0].repeat(0, 0);
    "tile 2,3" => x[0].tile(&[2, 3]);
    "pad 1,2" => x[0].pad(&[(1, 2)], 0);
    "pad each" => x[0].pad(&[(0, 1), (2, 0)], 7);
    "atleast_1d" => x[0].atleast_1d();
    "atleast_2d" => x[0].atleast_2d();
    "atleast_3d" => x[0].atleast_3d();
    "concatenate 0" => ops::concatenate(x, 0);
    "concatenate -1" => ops::concatenate(x, -1);
    "stack 1" => ops::stack(x, 1);
    "stack -1" => ops::stack(x, -1);
    "hstack" => ops::hstack(x);
    "vstack" => ops::vstack(x);
    "dstack" => ops::dstack(x);
    "column_stack" => ops::column_stack(x);
    "append" => x[0].append(&x[1], 0);
    "split 3" => x[0].split(3, 0);
    "split 1,4 1" => x[0].split([1, 4], 1);
    "array_split 3" => x[0].array_split(3, 0);
    "hsplit" => x[0].hsplit(2);
    "vsplit" => x[0].vsplit(2);
    "dsplit" => x[0].dsplit(2);
    "unstack" => x[0].unstack(1);
    "delete 1 0" => x[0].delete(1, 0);
    "delete -1 1" => x[0].delete(-1, 1);
    "insert 1 0" => x[0].insert(1, &x[1], 0);
    "insert -1 1" => x[0].insert(-1, &x[1], 1);
    "broadcast_arrays" => ops::broadcast_arrays(x);
    "take_along_axis -1" => x[0].take_along_axis(&x[1], -1);
    "take_along_axis 0" => x[0].take_along_axis(&x[1], 0);
    "x[a:b, c] 1" => x[0].index(1);
    "x[a:b, c] -1" => x[0].index((Rest, -1));
    "x[a:b, c] 1:3" => x[0].index(1..3);
    "x[a:b, c] :-1,1:" => x[0].index((..-1, 1..));
    "x[a:b:c] ::-1" => x[0].index(by(.., -1));
    "x[a:b:c] ::2,::-3" => x[0].index((by(.., 2), by(.., -3)));
    "x[a:b:c] 5:1:-2" => x[0].index(by(between(5, 1), -2));
    "x[a:b:c] -9223372036854775808" => x[0].index(by(.., i64::MIN));
    "x[a:b, c] -9:9" => x[0].index(-9..9);
    "x[a:b, c] None,...,0,None" => x[0].index((New, Rest, 0, New));
    "x[a:b, c] 0,...,1:" => x[0].index((0, Rest, 1..));
    "x[a:-b] 3:1" => x[0].index(between(3, 1));
    "x[a:-b] 1:-1" => x[0].index((between(1, -1), ..=-2));
}

cases! { NEW |_x|
    "arange 5" => ops::arange(0, 5, 1, DType::I32);
    "arange 2,9,3" => ops::arange(2, 9, 3, DType::I32);
    "arange 1,-2,-.25" => ops::arange(1, -2, -0.25, DType::F32);
    "arange 9,1,-3" => ops::arange(9, 1, -3, DType::U8);
    "arange 3,1" => ops::arange(3, 1, 1, DType::I32);
    "arange 700 bf16" => ops::arange(0, 700, 1, DType::Bf16);
    "linspace" => ops::linspace(-1, 2, 7, DType::F32);
    "linspace 1" => ops::linspace(3, 9, 1, DType::F32);
    "linspace i32" => ops::linspace(-4, 5, 6, DType::I32);
    "logspace" => ops::logspace(-1, 2, 5, 10.0, DType::F32);
    "geomspace" => ops::geomspace(1, 64, 7, DType::F32);
    "geomspace negative" => ops::geomspace(-2, -32, 5, DType::F32);
    "zeros" => ops::zeros(&[2, 3], DType::F32);
    "ones" => ops::ones(&[3], DType::Bool);
    "full" => ops::full(&[2, 2], 7, DType::I32);
    "eye" => ops::eye(3, 3, 0, DType::F32);
    "eye 2,4,1" => ops::eye(2, 4, 1, DType::I32);
    "identity" => ops::identity(2, DType::F32);
    "tri" => ops::tri(3, 4, -1, DType::F32);
    "indices" => ops::indices(&[2, 3], DType::I32);
    "bartlett" => ops::bartlett(7);
    "bartlett 1" => ops::bartlett(1);
    "blackman" => ops::blackman(7);
    "blackman 1" => ops::blackman(1);
    "hamming" => ops::hamming(7);
    "hamming 1" => ops::hamming(1);
    "hanning" => ops::hanning(7);
    "hanning 1" => ops::hanning(1);
}

cases! { MATRICES |x|
    "zeros_like" => x[0].zeros_like();
    "ones_like" => x[0].ones_like();
    "full_like" => x[0].full_like(3);
    "tril" => x[0].tril(0);
    "tril -1" => x[0].tril(-1);
    "triu" => x[0].triu(0);
    "triu 2" => x[0].triu(2);
    "diagonal" => x[0].diagonal(0, 0, 1);
    "diagonal 1" => x[0].diagonal(1, -1, 0);
    "diagonal -1" => x[0].diagonal(-1, 0, 1);
    "trace" => x[0].trace(0, 0, 1);
    "diag" => x[0].diag(0);
    "diag 1" => x[0].diag(1);
    "diag -2" => x[0].diag(-2);
    "diagflat" => x[0].diagflat(0);
    "vander" => x[0].vander(4);
    "meshgrid" => ops::meshgrid(x, Indexing::Xy);
    "meshgrid ij" => ops::meshgrid(x, Indexing::Ij);
}

cases! { PRODUCTS |x|
    "matmul" => x[0].matmul(&x[1]);
    "dot" => x[0].dot(&x[1]);
    "vdot" => x[0].vdot(&x[1]);
    "inner" => x[0].inner(&x[1]);
    "outer" => x[0].outer(&x[1]);
    "matvec" => x[0].matvec(&x[1]);
    "vecmat" => x[0].vecmat(&x[1]);
    "vecdot" => x[0].vecdot(&x[1]);
    "kron" => x[0].kron(&x[1]);
    "cross" => x[0].cross(&x[1]);
    "tensordot 1" => x[0].tensordot(&x[1], &[-1], &[0]);
    "tensordot 0,2 2,0" => x[0].tensordot(&x[1], &[0, 2], &[2, 0]);
    "tensordot 0" => x[0].tensordot(&x[1], &[], &[]);
    "einsum ij,jk->ik" => ops::einsum("ij,jk->ik", x);
    "einsum ij,jk" => ops::einsum("ij,jk", x);
    "einsum ij->ji" => ops::einsum("ij->ji", x);
    "einsum ij->" => ops::einsum("ij->", x);
    "einsum bij,bjk->bik" => ops::einsum("bij,bjk->bik", x);
    "einsum i,j->ij" => ops::einsum("i,j->ij", x);
    "einsum ij,ij->" => ops::einsum("ij,ij->", x);
    "einsum bhqd,bhkd->bhqk" => ops::einsum("bhqd,bhkd->bhqk", x);
    "einsum ij,jk,kl->il" => ops::einsum("ij,jk,kl->il", x);
    "einsum ij,j->ij" => ops::einsum("ij,j->ij", x);
    "einsum ba" => ops::einsum("ba", x);
    "einsum ijk,k->ji" => ops::einsum("ijk,k->ji", x);
    "einsum ij,kj,lj->ikl" => ops::einsum("ij,kj,lj->ikl", x);
    "einsum ij,k->j" => ops::einsum("ij,k->j", x);
    "einsum i,i->i" => ops::einsum("i,i->i", x);
}

cases! { ACTIVATIONS |x|
    "nn.relu" => x[0].relu();
    "nn.relu6" => x[0].relu6();
    "nn.sigmoid" => x[0].sigmoid();
    "nn.silu" => x[0].silu();
    "nn.softplus" => x[0].softplus();
    "nn.soft_sign" => x[0].soft_sign();
    "nn.log_sigmoid" => x[0].log_sigmoid();
    "nn.hard_tanh" => x[0].hard_tanh();
    "nn.hard_sigmoid" => x[0].hard_sigmoid();
    "nn.hard_silu" => x[0].hard_silu();
    "nn.mish" => x[0].mish();
    "nn.selu" => x[0].selu();
    "nn.sparse_plus" => x[0].sparse_plus();
    "nn.sparse_sigmoid" => x[0].sparse_sigmoid();
    "nn.gelu" => x[0].gelu_tanh();
    "nn.gelu exact" => x[0].gelu();
    "nn.leaky_relu" => x[0].leaky_relu(0.01);
    "nn.elu" => x[0].elu(1.0);
    "nn.celu 2" => x[0].celu(2.0);
    "nn.squareplus" => x[0].squareplus(4.0);
    "nn.log1mexp" => x[0].log1mexp();
    "nn.glu" => x[0].glu(-1);
    "nn.glu 0" => x[0].glu(0);
    "nn.standardize" => x[0].standardize(-1, 1e-5);
    "nn.one_hot" => x[0].one_hot(4, DType::F32);
    "nn.tanh" => x[0].tanh();
    "lax.clamp" => x[0].clamp(-1.0, 1.0);
    "lax.stop_gradient" => x[0].stop_gradient();
}

/// A function whose gradients show errors of positions.
pub(super) fn squares(x: &Array) -> Array {
    let x = x.ravel();
    (&x * &x * x.ones_like().cumsum(0)).sum(..)
}

/// The gradient of a function by an array.
fn gradient(x: &Array, f: impl Fn(&Array) -> Array + Send + Sync + 'static) -> Array {
    crate::grad(f)(x).unwrap_or_else(|e| panic!("{e}"))
}

cases! { INDEXED |x|
    "take 0" => x[0].take(&x[1], 0);
    "take 1" => x[0].take(&x[1], 1);
    "take clip" => x[0].take_with(&x[1], 0, IndexMode::Clip);
    "take wrap" => x[0].take_with(&x[1], 0, IndexMode::Wrap);
    "x[i, :, j] i" => x[0].index(&x[1]);
    "x[i, :, j] i,:,j" => x[0].index((&x[1], .., &x[2]));
    "x[i, :, j] i,0" => x[0].index((&x[1], 0));
    "x[i, :, j] 0,:,i" => x[0].index((0, .., &x[1]));
    "x[i, :, j] 1:,i,None,j" => x[0].index((1.., &x[1], New, &x[2]));
    "x[i, :, j] ::-2,i" => x[0].index((by(.., -2), &x[1]));
    "x.at[i].set" => x[0].at(&x[1]).set(&x[2]);
    "x.at[i].set ::2,i" => x[0].at((by(.., 2), &x[1])).set(&x[2]);
    "x.at[i].set 1:,i" => x[0].at((1.., &x[1])).set(&x[2]);
    "x.at[i].set i,:,j" => x[0].at((&x[1], .., &x[2])).set(&x[3]);
    "x.at[i].set 1:3,0" => x[0].at((1..3, 0)).set(&x[1]);
    "x.at[i].set mask" => x[0].at(&x[1]).set(&x[2]);
    "x.at[i].add" => x[0].at(&x[1]).add(&x[2]);
    "x.at[i].add ::2,i" => x[0].at((by(.., 2), &x[1])).add(&x[2]);
    "x.at[i].add 1:,i" => x[0].at((1.., &x[1])).add(&x[2]);
    "x.at[i].add i,:,j" => x[0].at((&x[1], .., &x[2])).add(&x[3]);
    "x.at[i].add 1:3,0" => x[0].at((1..3, 0)).add(&x[1]);
    "x.at[i].add mask" => x[0].at(&x[1]).add(&x[2]);
    "x.at[i].multiply" => x[0].at(&x[1]).multiply(&x[2]);
    "x.at[i].multiply ::2,i" => x[0].at((by(.., 2), &x[1])).multiply(&x[2]);
    "x.at[i].multiply 1:,i" => x[0].at((1.., &x[1])).multiply(&x[2]);
    "x.at[i].multiply i,:,j" => x[0].at((&x[1], .., &x[2])).multiply(&x[3]);
    "x.at[i].multiply 1:3,0" => x[0].at((1..3, 0)).multiply(&x[1]);
    "x.at[i].multiply mask" => x[0].at(&x[1]).multiply(&x[2]);
    "x.at[i].min" => x[0].at(&x[1]).min(&x[2]);
    "x.at[i].min ::2,i" => x[0].at((by(.., 2), &x[1])).min(&x[2]);
    "x.at[i].min 1:,i" => x[0].at((1.., &x[1])).min(&x[2]);
    "x.at[i].min i,:,j" => x[0].at((&x[1], .., &x[2])).min(&x[3]);
    "x.at[i].min 1:3,0" => x[0].at((1..3, 0)).min(&x[1]);
    "x.at[i].min mask" => x[0].at(&x[1]).min(&x[2]);
    "x.at[i].max" => x[0].at(&x[1]).max(&x[2]);
    "x.at[i].max ::2,i" => x[0].at((by(.., 2), &x[1])).max(&x[2]);
    "x.at[i].max 1:,i" => x[0].at((1.., &x[1])).max(&x[2]);
    "x.at[i].max i,:,j" => x[0].at((&x[1], .., &x[2])).max(&x[3]);
    "x.at[i].max 1:3,0" => x[0].at((1..3, 0)).max(&x[1]);
    "x.at[i].max mask" => x[0].at(&x[1]).max(&x[2]);
    "x.at[i].get" => x[0].at(&x[1]).mode(IndexMode::Fill).get();
    "x.at[i].set clip" => x[0].at(&x[1]).mode(IndexMode::Clip).set(&x[2]);
    "put_along_axis" => x[0].put_along_axis(&x[1], &x[2], 1);
    "put" => x[0].put(&x[1], &x[2]);
    "fill_diagonal" => x[0].fill_diagonal(&x[1]);
    "nonzero" => x[0].nonzero(4, -7);
    "flatnonzero" => x[0].flatnonzero(2, 9);
    "argwhere" => x[0].argwhere(5, -1);
    "compress" => x[0].compress(&x[1], 1, 2);
    "extract" => x[0].extract(&x[1], 4);
    "bincount" => x[0].bincount(4);
    "choose clip" => ops::choose(&x[0], &x[1..], IndexMode::Clip);
    "choose wrap" => ops::choose(&x[0], &x[1..], IndexMode::Wrap);
    "select" => ops::select_first(&x[..2], &x[2..], 7);
    "ops.segment_sum" => x[0].segment_sum(&x[1], 3);
    "ops.segment_prod" => x[0].segment_prod(&x[1], 3);
    "ops.segment_max" => x[0].segment_max(&x[1], 3);
    "ops.segment_min" => x[0].segment_min(&x[1], 3);
}

cases! { GRADIENTS |x|
    "take gradient" => {
        let at = x[1].clone();
        gradient(&x[0], move |x| squares(&x.take_with(&at, 0, IndexMode::FillWith(0.0))))
    };
    "take clip gradient" => {
        let at = x[1].clone();
        gradient(&x[0], move |x| squares(&x.take_with(&at, 0, IndexMode::Clip)))
    };
    "x.at[i].set gradient" => {
        let (at, y) = (x[1].clone(), x[2].clone());
        gradient(&x[0], move |x| squares(&x.at(&at).set(&y)))
    };
    "x.at[i].add gradient" => {
        let (at, y) = (x[1].clone(), x[2].clone());
        gradient(&x[0], move |x| squares(&x.at(&at).add(&y)))
    };
    "x.at[i].min gradient" => {
        let (at, y) = (x[1].clone(), x[2].clone());
        gradient(&x[0], move |x| squares(&x.at(&at).min(&y)))
    };
    "x.at[i].max gradient" => {
        let (at, y) = (x[1].clone(), x[2].clone());
        gradient(&x[0], move |x| squares(&x.at(&at).max(&y)))
    };
    "x.at[i].add gradient of elements" => {
        let (at, y) = (x[1].clone(), x[2].clone());
        gradient(&x[0], move |x| squares(&y.at(&at).add(x)))
    };
    "x.at[i].max gradient of elements" => {
        let (at, y) = (x[1].clone(), x[2].clone());
        gradient(&x[0], move |x| squares(&y.at(&at).max(x)))
    };
    "take second gradient" => {
        let at = x[1].clone();
        gradient(&x[0], move |x| {
            let at = at.clone();
            gradient(x, move |x| squares(&x.take(&at, 0))).sum(..)
        })
    };
}
