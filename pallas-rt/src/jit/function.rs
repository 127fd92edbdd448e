//! Functions of trees of arrays, which transformations take.
use crate::array::Array;
use crate::tree::{self, Structure, Tree};
use pallas_device::error::Result;

/// The result of a traced function: a tree, or a `Result` of one.
pub trait Outcome {
    /// The tree that the function returns.
    type Tree: Tree + Send + Sync + 'static;
    /// Returns the tree, or the function's error.
    ///
    /// # Errors
    /// The error that the function returned.
    fn tree(self) -> Result<Self::Tree>;
}

impl<T: Tree + Send + Sync + 'static> Outcome for T {
    type Tree = T;
    fn tree(self) -> Result<T> {
        Ok(self)
    }
}

impl<T: Tree + Send + Sync + 'static> Outcome for Result<T> {
    type Tree = T;
    fn tree(self) -> Result<T> {
        self
    }
}

/// A function of one to eight trees by reference; `Args` is the tuple of them.
#[diagnostic::on_unimplemented(
    message = "this is no function of trees by reference",
    label = "expected a function such as `fn(&Array, &Array) -> Array`",
    note = "parameters have types and are references to arrays, tuples, `Vec`s or structs with `#[derive(Tree)]`: `|x: &Array|`; there are one to eight",
    note = "the result is such a value or a `Result<_, pallas_rt::Error>` of one",
    note = "it owns what it captures and may be called by any thread: `move |x: &Array| ..`, `Arc` in place of `Rc`, no `Cell`"
)]
pub trait Function<Args: Tree + 'static>: Send + Sync + 'static {
    /// Type of the tree that the function returns.
    type Out: Tree + Send + Sync + 'static;
    /// Type of a boxed function of as many references to trees: `Box<dyn Fn(&A, &B) -> R>`.
    type Boxed<R: 'static>: Send + Sync + 'static;
    /// Calls the function with a tuple of its arguments.
    ///
    /// # Errors
    /// The function's own.
    fn call(&self, args: &Args) -> Result<Self::Out>;
    /// Boxes `f`, which takes all arguments of a call as one [`CallArguments`], as a function that takes them one by
    /// one: `Box<dyn Fn(&A, &B) -> R>`.
    #[doc(hidden)]
    fn boxed<R: 'static>(f: impl Fn(CallArguments<'_, Args>) -> R + Send + Sync + 'static) -> Self::Boxed<R>;
    /// Type of a boxed function that takes its first tree by value: `Box<dyn Fn(A, &B) -> R>`.
    type Donating<R: 'static>: Send + Sync + 'static;
    /// Boxes a function of two parts: `prepare` sees the arguments, then the first argument is dropped, then `run` is
    /// called.
    #[doc(hidden)]
    fn donating<P, R: 'static>(
        prepare: impl Fn(CallArguments<'_, Args>) -> P + Send + Sync + 'static,
        run: impl Fn(P) -> R + Send + Sync + 'static,
    ) -> Self::Donating<R>;
    /// Calls a boxed function with a tuple of its arguments.
    #[doc(hidden)]
    fn call_boxed<R: 'static>(boxed: &Self::Boxed<R>, args: &Args) -> R;
    /// The path of a function, such as `model::step`, or of the function that a closure is in.
    #[doc(hidden)]
    fn name() -> &'static str {
        std::any::type_name::<Self>()
    }
}

/// The arguments of a call: `flat` makes their leaves and the structure of each, `tuple` a tuple of them.
#[doc(hidden)]
pub struct CallArguments<'a, Args> {
    pub(super) flat: &'a dyn Fn() -> (Vec<Array>, Vec<Structure>),
    pub(super) tuple: &'a dyn Fn() -> Args,
}

/// Makes a [`CallArguments`] of references to trees.
macro_rules! given {
    ($($a:ident),*) => {
        CallArguments {
            flat: &|| {
                let (mut leaves, mut structures) = (vec![], vec![]);
                $({
                    let (own, structure) = tree::leaves_and_structure($a);
                    leaves.extend(own.into_iter().cloned());
                    structures.push(structure);
                })*
                (leaves, structures)
            },
            tuple: &|| ($($a.clone(),)*),
        }
    };
}
/// Implements [`Function`] for closures of this number of arguments.
macro_rules! functions {
    ($First:ident $first:ident 0 $(, $A:ident $a:ident $i:tt)*) => {
        impl<Func, Out, $First: Tree + 'static, $($A: Tree + 'static),*> Function<($First, $($A,)*)> for Func
        where
            Func: Fn(&$First, $(&$A),*) -> Out + Send + Sync + 'static,
            Out: Outcome + 'static,
        {
            type Out = Out::Tree;
            type Boxed<R: 'static> = Box<dyn Fn(&$First, $(&$A),*) -> R + Send + Sync>;
            type Donating<R: 'static> = Box<dyn Fn($First, $(&$A),*) -> R + Send + Sync>;
            fn call(&self, args: &($First, $($A,)*)) -> Result<Out::Tree> {
                self(&args.0, $(&args.$i),*).tree()
            }
            fn boxed<R: 'static>(
                f: impl Fn(CallArguments<'_, ($First, $($A,)*)>) -> R + Send + Sync + 'static,
            ) -> Self::Boxed<R> {
                Box::new(move |$first: &$First, $($a: &$A),*| f(given!($first $(, $a)*)))
            }
            fn donating<P, R: 'static>(
                prepare: impl Fn(CallArguments<'_, ($First, $($A,)*)>) -> P + Send + Sync + 'static,
                run: impl Fn(P) -> R + Send + Sync + 'static,
            ) -> Self::Donating<R> {
                Box::new(move |$first: $First, $($a: &$A),*| {
                    let prepared = {
                        let $first = &$first;
                        prepare(given!($first $(, $a)*))
                    };
                    drop($first);
                    run(prepared)
                })
            }
            fn call_boxed<R: 'static>(boxed: &Self::Boxed<R>, args: &($First, $($A,)*)) -> R {
                boxed(&args.0, $(&args.$i),*)
            }
        }
    };
}
tuples! { functions }
