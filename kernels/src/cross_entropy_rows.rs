//! Computations on rows that kernels of the cross-entropy share, while blocks of logits stream past;
//! [`crate::cross_entropy`] has the formulas.
use crate::element::Wide;
use pallas_rt::prelude::*;

/// Statistics of a block of rows, accumulated while blocks of their logits stream past.
#[derive(Clone, Copy)]
pub(crate) struct LossStatistics<A> {
    pub(crate) max: Scratch<A>,
    pub(crate) sum: Scratch<A>,
    /// The logit of each row's label, and the sum of all logits.
    pub(crate) target: Scratch<A>,
    pub(crate) total: Scratch<A>,
}

impl<A: Wide> LossStatistics<A> {
    /// Initialises the statistics before the first block.
    pub(crate) fn initialize(self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.target.fill(0.0);
        self.total.fill(0.0);
    }
    /// Accumulates logits of the classes from `first_class` on, with `has_smoothing` also their sum; columns beyond
    /// `class_count` are ignored.
    pub(crate) fn accumulate(
        self,
        logits: Tile<A>,
        labels: Tile<i32>,
        first_class: Scalar<i32>,
        class_count: Scalar<i32>,
        has_smoothing: bool,
    ) {
        let class = iota::<i32>([1, logits.shape()[1]], 1) + first_class;
        let inside = class.lt(class_count);
        self.target.store(self.target.load() + select(class.eq(labels), logits, 0.0).sum(1));
        if has_smoothing {
            self.total.store(self.total.load() + select(inside, logits, 0.0).sum(1));
        }
        let z = select(inside, logits, f32::NEG_INFINITY);
        let m = maximum(self.max.load(), z.max(1));
        // Until a logit is finite the sum stays 0.
        let base = select(m.eq(f32::NEG_INFINITY), 0.0, m);
        self.sum.store(self.sum.load() * (self.max.load() - base).exp() + (z - base).exp().sum(1));
        self.max.store(m);
    }
    /// Sets the statistics from the logits of all classes at once, with `has_smoothing` also their sum.
    pub(crate) fn set_from_logits(self, logits: Tile<A>, labels: Tile<i32>, has_smoothing: bool) {
        let last = logits.shape()[1] as i32 - 1;
        self.target.store(logits.take_along_axis(labels.maximum(0).minimum(last), 1));
        if has_smoothing {
            self.total.store(logits.sum(1));
        }
        let m = logits.max(1);
        self.max.store(m);
        self.sum.store((logits - select(m.eq(f32::NEG_INFINITY), 0.0, m)).exp().sum(1));
    }
    /// Returns loss and log-sum-exp of each row.
    pub(crate) fn finish(
        self,
        labels: Tile<i32>,
        class_count: Scalar<i32>,
        options: LossOptions<A>,
    ) -> (Tile<A>, Tile<A>) {
        let lse = self.max.load() + self.sum.load().log();
        let mut loss = lse - self.target.load() * options.label_weight() + lse * lse * options.z_loss;
        if options.smooth {
            // Only with smoothing: if a logit is -inf the mean over all classes is -inf.
            loss -= self.total.load() * (options.smoothing / class_count.cast::<A>());
        }
        let is_class = labels.ge(0) & labels.lt(class_count);
        (select(labels.eq(options.ignore), 0.0, select(is_class, loss, f32::NAN)), lse)
    }
}

/// Values of [`Options`](crate::cross_entropy::Options) inside of a kernel.
#[derive(Clone, Copy)]
pub(crate) struct LossOptions<A> {
    pub(crate) ignore: Scalar<i32>,
    pub(crate) smoothing: Scalar<A>,
    pub(crate) smooth: bool,
    pub(crate) z_loss: Scalar<A>,
}

impl<A: Wide> LossOptions<A> {
    pub(crate) fn new(ignore: Scalar<i32>, [smoothing, z_loss]: [Scalar<f32>; 2], has_smoothing: bool) -> Self {
        LossOptions { ignore, smoothing: smoothing.cast::<A>(), smooth: has_smoothing, z_loss: z_loss.cast::<A>() }
    }
    /// The part of the target that smoothing leaves to the label: 1 - ε.
    pub(crate) fn label_weight(self) -> Scalar<A> {
        -self.smoothing + 1.0
    }
}

/// Values from which the gradients by the logits of a block of rows are computed, a column each: labels, log-sum-exps
/// and the gradients by the losses.
#[derive(Clone, Copy)]
pub(crate) struct LossResiduals<A> {
    pub(crate) labels: Tile<i32>,
    pub(crate) lse: Tile<A>,
    pub(crate) dloss: Tile<A>,
}

impl<A: Wide> LossResiduals<A> {
    /// Gradient by the logits of the classes from `first_class` on; 0 in columns beyond `class_count`.
    pub(crate) fn logits_gradient(
        self,
        logits: Tile<A>,
        first_class: Scalar<i32>,
        class_count: Scalar<i32>,
        options: LossOptions<A>,
    ) -> Tile<A> {
        let numbers = iota::<i32>([1, logits.shape()[1]], 1) + first_class;
        select(numbers.lt(class_count), self.unmasked_logits_gradient(logits, first_class, class_count, options), 0.0)
    }
    /// Gradient by the logits of the classes from `first_class` on; unspecified in columns beyond `class_count`.
    pub(crate) fn unmasked_logits_gradient(
        self,
        logits: Tile<A>,
        first_class: Scalar<i32>,
        class_count: Scalar<i32>,
        options: LossOptions<A>,
    ) -> Tile<A> {
        let class = iota::<i32>([1, logits.shape()[1]], 1) + first_class;
        let share = options.smoothing / class_count.cast::<A>();
        let target = select(class.eq(self.labels), options.label_weight() + share, share);
        let g = (logits - self.lse).exp() * (self.lse * (options.z_loss * 2.0) + 1.0) - target;
        select(self.labels.ne(options.ignore), g * self.dloss, 0.0)
    }
}
