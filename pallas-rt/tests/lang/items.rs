//! Kernels stand wherever functions do.
use pallas_rt::prelude::*;

/// A crate by another name.
mod elsewhere {
    pub(super) use pallas_rt as tiles;
}

mod inner {
    pub(super) mod deeper {
        use pallas_rt::prelude::*;

        #[kernel(grid = (cdiv(N, 4)))]
        pub(in crate::items) fn doubled(
            #[block([N] => [4], |i| (i,))] x: In<f32>,
            #[block([N] => [4], |i| (i,))] out: Out<f32>,
        ) {
            out.store(x.load() * 2.0);
        }
    }
}

#[kernel(grid = (cdiv(N, 4)), crate = elsewhere::tiles)]
fn renamed(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    out.store(x.load() + 1.0);
}

macro_rules! kernels {
    ($($name:ident: |$x:ident| $body:expr;)*) => {$(
        #[kernel(grid = (cdiv(N, 4)))]
        fn $name(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
            let $x = x.load();
            out.store($body);
        }
    )*};
}
kernels! {
    squared: |t| t * t;
    shifted: |t| t - 3.0;
}

/// Which of the two is compiled decides.
#[cfg(not(test))]
#[kernel(grid = (nonsense))]
fn configured() {}
#[cfg(test)]
#[kernel(grid = (cdiv(N, 4)))]
fn configured(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
    let mut t = x.load();
    #[cfg(not(test))]
    {
        t = nonsense;
    }
    #[cfg(test)]
    {
        t += 10.0;
    }
    out.store(t);
}

struct Family<const K: usize>;
impl<const K: usize> Family<K> {
    #[kernel(grid = (cdiv(N, 4)))]
    fn scaled(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
        out.store(x.load() * K as f32);
    }
}

#[test]
fn kernels_are_items_like_others() {
    #[kernel(grid = (cdiv(N, 4)))]
    fn local(#[block([N] => [4], |i| (i,))] x: In<f32>, #[block([N] => [4], |i| (i,))] out: Out<f32>) {
        out.store(-x.load());
    }
    type Call = fn(&Array) -> Result<Array>;
    let calls: [(Call, [f32; 5]); 8] = [
        (|x| inner::deeper::doubled(x), [2.0, 4.0, 6.0, 8.0, 10.0]),
        (|x| renamed(x), [2.0, 3.0, 4.0, 5.0, 6.0]),
        (|x| squared(x), [1.0, 4.0, 9.0, 16.0, 25.0]),
        (|x| shifted(x), [-2.0, -1.0, 0.0, 1.0, 2.0]),
        (|x| configured(x), [11.0, 12.0, 13.0, 14.0, 15.0]),
        (|x| Family::<3>::scaled(x), [3.0, 6.0, 9.0, 12.0, 15.0]),
        (|x| Family::<5>::scaled(x), [5.0, 10.0, 15.0, 20.0, 25.0]),
        (|x| local(x), [-1.0, -2.0, -3.0, -4.0, -5.0]),
    ];
    for client in [Client::interpreter(), Client::cpu()] {
        let x = client.array(&[1.0f32, 2.0, 3.0, 4.0, 5.0], &[5]).expect("it fits");
        for (call, expected) in calls {
            assert_eq!(call(&x).and_then(|y| y.to_vec::<f32>()), Ok(expected.to_vec()));
        }
    }
}
