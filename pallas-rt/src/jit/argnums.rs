//! Choices of the arguments to differentiate by.

use crate::tree::{Structure, Tree};

/// The argument with this number, from 0, as the one to differentiate by: `argnums` in JAX.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arg<const I: usize>;

/// A choice of one or more of a function's arguments: [`Arg`], or a tuple of up to four of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` names no argument of a function of `{Args}`",
    note = "arguments are `Arg::<0>`, `Arg::<1>` and so on, and tuples of them"
)]
pub trait Argnums<Args>: Clone + Send + Sync + 'static {
    /// Type of the chosen argument, or the tuple of the chosen ones.
    type Picked: Tree + Send + Sync + 'static;
    /// Clones the chosen arguments out of the tuple of all.
    fn picked(&self, args: &Args) -> Self::Picked;
    /// Positions of the chosen arguments among all arguments, counted from 0.
    fn numbers(&self) -> Vec<usize>;
}

/// Implements `Argnums<(A, B, ..)>` for `Arg<0>`, `Arg<1>` and so on, for tuples of this length.
macro_rules! picks {
    ($($A:ident $a:ident $i:tt),*) => { picks!(@each [$($A)*] $($A $i)*); };
    (@each $all:tt $($A:ident $i:tt)*) => { $(picks!(@one $all $A $i);)* };
    (@one [$($All:ident)*] $A:ident $i:tt) => {
        impl<$($All: Tree + Send + Sync + 'static),*> Argnums<($($All,)*)> for Arg<$i> {
            type Picked = $A;
            fn picked(&self, args: &($($All,)*)) -> $A {
                args.$i.clone()
            }
            fn numbers(&self) -> Vec<usize> {
                vec![$i]
            }
        }
    };
}
tuples! { picks }

/// Implements `Argnums` for tuples of choices.
macro_rules! several {
    ($($P:ident $i:tt)*) => {
        impl<Args, $($P: Argnums<Args>),*> Argnums<Args> for ($($P,)*) {
            type Picked = ($($P::Picked,)*);
            fn picked(&self, args: &Args) -> Self::Picked {
                ($(self.$i.picked(args),)*)
            }
            fn numbers(&self) -> Vec<usize> {
                [$(self.$i.numbers()),*].concat()
            }
        }
    };
}
several!(P 0);
several!(P 0 Q 1);
several!(P 0 Q 1 R 2);
several!(P 0 Q 1 R 2 S 3);

/// Indices of the leaves of the arguments with these numbers, among the leaves of all arguments; `structures` has the
/// tree structure of each argument.
pub(super) fn leaf_indices(argument_numbers: &[usize], structures: &[Structure]) -> Vec<usize> {
    let first = |n: usize| structures[..n].iter().map(Structure::leaves).sum::<usize>();
    argument_numbers.iter().flat_map(|&n| first(n)..first(n) + structures[n].leaves()).collect()
}
