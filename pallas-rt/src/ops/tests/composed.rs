//! The functions of the cases in reference.txt of operations that are composed of many others, by name.
use super::cases::{Function, squares};
use crate::initializers::{self, Distribution, Fan, Initializer};
use crate::ops::{self, Attention, reverse};
use crate::prelude::*;
use crate::{Arg, grad, random};

macro_rules! cases {
    ($LIST:ident |$x:ident| $($name:expr => $value:expr;)*) => {
        pub(super) const $LIST: &[(&str, Function)] = &[$(($name, |$x| {
            let _ = $x;
            $value.into()
        })),*];
    };
}

/// The gradient of a function that is one number.
fn slope(x: &Array, f: fn(&Array) -> Array) -> Array {
    grad(f)(x).expect("it has a gradient")
}
/// The gradients by two arrays of a function that is one number.
fn by_both(x: &[Array], f: fn(&Array, &Array) -> Array) -> (Array, Array) {
    grad(f).argnums((Arg::<0>, Arg::<1>))(&x[0], &x[1]).expect("it has gradients")
}
/// The gradients by two arrays of the sum of cubes.
fn slopes(x: &[Array], f: fn(&Array, &Array) -> Array) -> (Array, Array) {
    let cubes = move |x: &Array, y: &Array| {
        let y = f(x, y);
        (&y * &y * &y).sum(..)
    };
    grad(cubes).argnums((Arg::<0>, Arg::<1>))(&x[0], &x[1]).expect("it has gradients")
}

/// The attention of the first three arrays.
fn attend(x: &[Array], options: Attention) -> Array {
    options.run(&x[0], &x[1], &x[2])
}
/// Weights of the shapes of reference.py.
fn weights(initializer: &Initializer, shapes: [&[usize]; 2]) -> Vec<Array> {
    shapes.map(|shape| initializer.init(random::key(7), shape, DType::F32)).to_vec()
}
/// The same for shapes of two and three axes.
fn usual(initializer: Initializer) -> Vec<Array> {
    weights(&initializer, [&[3, 4], &[4, 3, 5]])
}
/// The same, where the second axis has inputs and the first one outputs.
fn turned(initializer: Initializer) -> Vec<Array> {
    usual(initializer.in_axis([1]).out_axis([0]))
}

cases! { COMPOSED |x|
    "einsum ii->i" => ops::einsum("ii->i", x);
    "einsum ii" => ops::einsum("ii", x);
    "einsum iij->ji" => ops::einsum("iij->ji", x);
    "einsum iji,j->ji" => ops::einsum("iji,j->ji", x);
    "einsum iii->i" => ops::einsum("iii->i", x);
    "einsum ...ij,...jk->...ik" => ops::einsum("...ij,...jk->...ik", x);
    "einsum ...i,...j" => ops::einsum("...i,...j", x);
    "einsum i...->i" => ops::einsum("i...->i", x);
    "einsum i...,j..." => ops::einsum("i...,j...", x);
    "einsum ..." => ops::einsum("...", x);
    "einsum i->...i" => ops::einsum("i->...i", x);
    "einsum ij,ij->ij" => ops::einsum("ij,ij->ij", x);
    "einsum bA" => ops::einsum("bA", x);
    "einsum i,i,i->i" => ops::einsum("i,i,i->i", x);
    "einsum ij,jk,kl,l->i" => ops::einsum("ij,jk,kl,l->i", x);
    "einsum ab,bc,cd,de,ef,f->a" => ops::einsum("ab,bc,cd,de,ef,f->a", x);
    "einsum i...->..." => ops::einsum("i...->...", x);
    "einsum ...a->a..." => ops::einsum("...a->a...", x);
    "einsum ...ii,i...->..." => ops::einsum("...ii,i...->...", x);
    "einsum ,i" => ops::einsum(",i", x);
    "einsum b...ij,b...kj->b...ik" => ops::einsum("b...ij,b...kj->b...ik", x);
    "einsum gradient" => slopes(x, |x, y| ops::einsum("iij,...j->i...", &[x, y]));
    "einsum singleton gradient" => slopes(x, |x, y| ops::einsum("ij,jk", &[x, y]));
    "reverse= cumsum" => x[0].cumsum(reverse(1));
    "reverse= cumprod" => x[0].cumprod(reverse(1));
    "reverse= cummax" => x[0].cummax(reverse(1));
    "reverse= cummin" => x[0].cummin(reverse(1));
    "reverse= cumsum gradient" => slope(&x[0], |x| squares(&x.cumsum(reverse(0))));
    "reverse= cumprod gradient" => slope(&x[0], |x| squares(&x.cumprod(reverse(0))));
    "reverse= cummax gradient" => slope(&x[0], |x| squares(&x.cummax(reverse(0))));
    "reverse= cummin gradient" => slope(&x[0], |x| squares(&x.cummin(reverse(0))));
    "lax.cumlogsumexp 1" => x[0].cumlogsumexp(1);
    "lax.cumlogsumexp reverse" => x[0].cumlogsumexp(reverse(1));
    "lax.cumlogsumexp gradient" => slope(&x[0], |x| squares(&x.cumlogsumexp(1)));
    "lax.cumlogsumexp reverse gradient" => slope(&x[0], |x| squares(&x.cumlogsumexp(reverse(0))));
    "nn.dot_product_attention" => ops::dot_product_attention(&x[0], &x[1], &x[2]);
    "nn.dot_product_attention causal" => attend(x, Attention::new().causal(true));
    "nn.dot_product_attention scale" => attend(x, Attention::new().scale(0.3));
    "nn.dot_product_attention bias" => attend(x, Attention::new().bias(&x[3]));
    "nn.dot_product_attention mask" => attend(x, Attention::new().mask(&x[3]));
    "nn.dot_product_attention window 1 0" => attend(x, Attention::new().window(1, 0));
    "nn.dot_product_attention window 0 2" => attend(x, Attention::new().window(0, 2));
    "nn.dot_product_attention window 9 1" => attend(x, Attention::new().window(9, 1));
    "nn.dot_product_attention lengths" => {
        attend(x, Attention::new().causal(true).query_lengths(&x[3]).key_lengths(&x[4]))
    };
    "nn.dot_product_attention residual" => Attention::new().run_with_logsumexp(&x[0], &x[1], &x[2]);
    "nn.dot_product_attention gradient" => {
        let cubes = |q: &Array, k: &Array, v: &Array, bias: &Array| {
            let y = Attention::new().causal(true).bias(bias).run(q, k, v);
            (&y * &y * &y).sum(..)
        };
        let all = (Arg::<0>, Arg::<1>, Arg::<2>, Arg::<3>);
        let (q, k, v, bias) = grad(cubes).argnums(all)(&x[0], &x[1], &x[2], &x[3]).expect("it has gradients");
        vec![q, k, v, bias]
    };
    "scipy.special.betainc" => x[0].betainc(&x[1], &x[2]);
    "scipy.special.betainc gradient" => {
        let (a, b) = (x[0].clone(), x[1].clone());
        grad(move |x: &Array| a.betainc(&b, x).sum(..))(&x[2]).expect("it has a gradient")
    };
    "scipy.special.gammainc" => x[0].gammainc(&x[1]);
    "scipy.special.gammainc gradient" => by_both(x, |a, x| a.gammainc(x).sum(..));
    "scipy.special.gammaincc" => x[0].gammaincc(&x[1]);
    "scipy.special.gammaincc gradient" => by_both(x, |a, x| a.gammaincc(x).sum(..));
    "nn.initializers.zeros" => usual(initializers::zeros());
    "nn.initializers.ones" => usual(initializers::ones());
    "nn.initializers.constant" => usual(initializers::constant(2.5));
    "nn.initializers.uniform" => usual(initializers::uniform(0.5));
    "nn.initializers.normal" => usual(initializers::normal(0.5));
    "nn.initializers.truncated_normal" => usual(initializers::truncated_normal(0.5, -1.0, 3.0));
    "nn.initializers.variance_scaling in" => {
        usual(initializers::variance_scaling(0.5, Fan::In, Distribution::Normal))
    };
    "nn.initializers.variance_scaling out" => {
        usual(initializers::variance_scaling(0.5, Fan::Out, Distribution::Uniform).batch_axis([0]))
    };
    "nn.initializers.variance_scaling geometric" => {
        let scaled = initializers::variance_scaling(3.0, Fan::GeometricAverage, Distribution::TruncatedNormal);
        usual(scaled.in_axis([0, 1]))
    };
    "nn.initializers.orthogonal" => usual(initializers::orthogonal(2.0, -1));
    "nn.initializers.orthogonal column" => usual(initializers::orthogonal(1.0, 0));
    "nn.initializers.delta_orthogonal" => {
        weights(&initializers::delta_orthogonal(0.5, -1), [&[4, 2, 3], &[1, 3, 5]])
    };
    "nn.initializers.glorot_uniform" => turned(initializers::glorot_uniform());
    "nn.initializers.glorot_normal" => turned(initializers::glorot_normal());
    "nn.initializers.lecun_uniform" => turned(initializers::lecun_uniform());
    "nn.initializers.lecun_normal" => turned(initializers::lecun_normal());
    "nn.initializers.he_uniform" => turned(initializers::he_uniform());
    "nn.initializers.he_normal" => turned(initializers::he_normal());
}
