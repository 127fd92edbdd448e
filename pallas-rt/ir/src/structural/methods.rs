//! The macro that declares methods of tiles, in the file of their operation.

/// Expands the methods of tiles that create an operation to a macro of the operation's name, which calls `callback!`
/// for each.
///
/// ```text
/// Method = doc+ "fn" name "<T:" Class ">(" (argument ":" Kind),* ") ->" Element "{" the operation of its arguments "}"
/// Kind   = Axis | Axes | Size | Sizes | Offset   an attribute: usize; Vec<usize>; Dim; Vec<Dim>; i64
///        | Index | Value                         an operand after the tile: of i32 positions; a tile, scalar or number
/// ```
///
/// `fn roll<T: Elem>(shift: Offset, axis: Axis) -> T { Roll { shift, axis } }` becomes
/// `callback! { [doc] roll Elem (shift: Offset, axis: Axis) T { structural::Roll { shift, axis } } }`.
macro_rules! methods {
    (($d:tt) $Name:ident; $($(#[doc = $doc:literal])+
        fn $name:ident<T: $Class:ident>($($arg:ident: $Kind:ident),*) -> $Element:ident {
            $Op:ident $($made:tt)+
        }
    )*) => {
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $Name {
            ($d callback:ident) => {
                $($d callback! {
                    [$(#[doc = $doc])+] $name $Class ($($arg: $Kind),*) $Element { $crate::structural::$Op $($made)+ }
                })*
            };
        }
    };
}
