//! The functions of the cases in reference.txt that put elements in order, by name.
use super::cases::Function;
use crate::ops::{self, QuantileMethod, Side, accumulate, keep};

macro_rules! cases {
    ($LIST:ident |$x:ident| $($name:expr => $value:expr;)*) => {
        pub(super) const $LIST: &[(&str, Function)] = &[$(($name, |$x| $value.into())),*];
    };
}

cases! { ORDER |x|
    "sort" => x[0].sort(-1);
    "sort 0" => x[0].sort(0);
    "sort descending" => x[0].sort_descending(-1);
    "sort signs" => x[0].sort(-1).signbit();
    "argsort" => x[0].argsort(-1);
    "argsort 0" => x[0].argsort(0);
    "argsort descending" => x[0].argsort_descending(-1);
    "top_k 3" => x[0].top_k(3, -1);
    "top_k 2 0" => x[0].top_k(2, 0);
    "lax.sort 1" => ops::sort_together(x, 1, -1);
    "lax.sort 2 0" => ops::sort_together(x, 2, 0);
    "lexsort" => ops::lexsort(x, -1);
    "partition 2" => x[0].partition(2, -1);
    "partition -1 0" => x[0].partition(-1, 0);
    "argpartition 2" => x[0].argpartition(2, -1);
    "searchsorted left" => x[0].searchsorted(&x[1], Side::Left);
    "searchsorted right" => x[0].searchsorted(&x[1], Side::Right);
    "digitize" => x[0].digitize(&x[1], false);
    "digitize right" => x[0].digitize(&x[1], true);
    "histogram" => x[0].histogram(&x[1]);
    "interp" => x[0].interp(&x[1], &x[2]);
    "isin" => x[0].is_in(&x[1]);
    "unique 4" => x[0].unique(4, None);
    "unique 6 9" => x[0].unique(6, Some(9.into()));
    "union1d" => x[0].union(&x[1], 12, None);
    "intersect1d" => x[0].intersect(&x[1], 3, Some((-7).into()));
    "setdiff1d" => x[0].set_difference(&x[1], 5, None);
    "setxor1d" => x[0].symmetric_difference(&x[1], 8, Some((-7).into()));
    "median" => x[0].median(..);
    "median 1" => x[0].median(1);
    "nanmedian" => x[0].nanmedian(..);
    "quantile several" => x[0].quantile(&x[1], [0, 2], QuantileMethod::Linear);
    "nanquantile several" => x[0].nanquantile(&x[1], keep(1), QuantileMethod::Linear);
    "dtype= sum" => x[0].sum(accumulate(0, crate::prelude::DType::F32));
    "quantile linear" => x[0].quantile(0.3, -1, QuantileMethod::Linear);
    "nanquantile linear" => x[0].nanquantile(0.7, -1, QuantileMethod::Linear);
    "percentile linear" => x[0].percentile(40, -1, QuantileMethod::Linear);
    "nanpercentile linear" => x[0].nanpercentile(75, -1, QuantileMethod::Linear);
    "quantile lower" => x[0].quantile(0.3, -1, QuantileMethod::Lower);
    "nanquantile lower" => x[0].nanquantile(0.7, -1, QuantileMethod::Lower);
    "percentile lower" => x[0].percentile(40, -1, QuantileMethod::Lower);
    "nanpercentile lower" => x[0].nanpercentile(75, -1, QuantileMethod::Lower);
    "quantile higher" => x[0].quantile(0.3, -1, QuantileMethod::Higher);
    "nanquantile higher" => x[0].nanquantile(0.7, -1, QuantileMethod::Higher);
    "percentile higher" => x[0].percentile(40, -1, QuantileMethod::Higher);
    "nanpercentile higher" => x[0].nanpercentile(75, -1, QuantileMethod::Higher);
    "quantile midpoint" => x[0].quantile(0.3, -1, QuantileMethod::Midpoint);
    "nanquantile midpoint" => x[0].nanquantile(0.7, -1, QuantileMethod::Midpoint);
    "percentile midpoint" => x[0].percentile(40, -1, QuantileMethod::Midpoint);
    "nanpercentile midpoint" => x[0].nanpercentile(75, -1, QuantileMethod::Midpoint);
    "quantile nearest" => x[0].quantile(0.3, -1, QuantileMethod::Nearest);
    "nanquantile nearest" => x[0].nanquantile(0.7, -1, QuantileMethod::Nearest);
    "percentile nearest" => x[0].percentile(40, -1, QuantileMethod::Nearest);
    "nanpercentile nearest" => x[0].nanpercentile(75, -1, QuantileMethod::Nearest);
}
