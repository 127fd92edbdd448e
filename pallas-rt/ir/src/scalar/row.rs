//! Macros that expand a row of the table. `scalar_ops!` takes all rows at once; every cell is required and in order.

/// Expands rows to the enum and its data, `ElementFunction` per type, `visit`, `wgsl`, `jvp`, and `for_each_scalar_op!`
/// for other crates.
macro_rules! scalar_ops {
    ($(
        $(#[doc = $doc:literal])+
        $Op:ident = $name:ident<$T:ident: $Class:ident>($($arg:ident: $Arg:ident),+) -> $y:ident: $Out:ident {
            eval $($kind:ident: $eval:expr),+;
            cpu  $cpu:ident $(: $fast:expr, rel $rel:literal, abs $abs:literal)?;
            wgsl $($wkind:ident: )? $wgsl:literal $(, $wkind2:ident: $wgsl2:literal)? $gpu:ident $(($ulp:literal))? $(with $helper:ident)?;
            nan  $nan:ident;
            cost $($work:ident $times:literal),+;
            fold $fold:ident $($across:literal)?;
            jvp  $($jvp:expr),+;
            rust $surface:ident $($Trait:ident)?;
        }
    )*) => {
        /// A scalar operation, applied to each element.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum ScalarOp { $($(#[doc = $doc])+ $Op),* }

        impl ScalarOp {
            /// All scalar operations, in the order of their table.
            pub const ALL: &[ScalarOp] = &[$(ScalarOp::$Op),*];

            /// Returns the operation's row in the table of scalar operations: its signature, accuracy, cost and other
            /// properties.
            pub fn row(self) -> &'static $crate::scalar::ScalarOpRow {
                use $crate::scalar::{Cost, WgslAccuracy, NanBehavior, ScalarOpRow};
                #[allow(clippy::needless_update, reason = "a row may name every kind of work")]
                match self {
                    $(Self::$Op => const { &ScalarOpRow {
                        name: stringify!($name),
                        operands: &[$((stringify!($arg), ty!($Arg))),+],
                        result: ty!($Out),
                        class: $crate::dtype::Class::$Class,
                        nan: NanBehavior::$nan,
                        cost: Cost { $($work: $times,)+ ..Cost::FREE },
                        fold: fold!($fold $($across)?),
                        surface: surface!($surface),
                        gpu: WgslAccuracy::$gpu $(($ulp))?,
                        fast: tolerance!($($rel, $abs)?),
                        doc: concat!($($doc),+),
                    } }),*
                }
            }

            /// Calls `v` with the Rust types of this operation on elements of type `t`; `None` if `t` is outside of its
            /// class.
            pub fn visit<V: $crate::scalar::OpVisitor>(self, t: $crate::DType, v: V) -> Option<V::Out> {
                match self {
                    $(Self::$Op => class! { $Class visit_each (t, v) $Op $T ($($Arg),+) }),*
                }
            }

            /// Calls `v` with the Rust types of this monoid on elements of type `t`; `None` if the operation is not a
            /// monoid or `t` is outside of its class.
            pub fn visit_monoid<V: $crate::scalar::MonoidVisitor>(self, t: $crate::DType, v: V) -> Option<V::Out> {
                match self {
                    $(Self::$Op => monoid! { $fold $Class (t, v) $Op $T }),*
                }
            }

            /// The operation as a WGSL expression of `args`; `ty` is the operands' WGSL type.
            #[allow(non_snake_case, unused_variables, clippy::useless_format, reason = "a text need not mention what a row binds")]
            pub fn wgsl(self, args: &[&str], ty: &str) -> String {
                let second = match ty { "i32" | "u32" => "int", "bool" => "bool", _ => "float" };
                match self {
                    $(Self::$Op => {
                        let [$($arg),+] = args else { unreachable!("the verifier checks arity") };
                        let $T = ty;
                        $(if second == stringify!($wkind2) { return format!($wgsl2); })?
                        format!($wgsl)
                    }),*
                }
            }

            /// Source of the WGSL functions that the operation's WGSL expression calls; `None` if it calls only
            /// built-in ones.
            pub fn wgsl_helper(self) -> Option<&'static str> {
                match self { $(Self::$Op => helper!($($helper)?)),* }
            }

            /// The tangent of the result `y`: the sum of what the tangents of the operands contribute; `None` for zero.
            #[allow(unused_variables, reason = "a derivative need not mention what a row binds")]
            pub fn jvp<'g>(self, args: &[$crate::E<'g>], y: $crate::E<'g>, tangents: &[Option<$crate::E<'g>>]) -> Option<$crate::E<'g>> {
                use $crate::emit::{ZeroTangent, linear};
                match self {
                    $(Self::$Op => {
                        let &[$($arg),+] = args else { unreachable!("the verifier checks arity") };
                        let $y = y;
                        let (mut sum, mut at) = (None, tangents.iter());
                        jvp_cells! { $Op sum at [$($arg)+] [$({ $jvp })+] }
                        sum
                    }),*
                }
            }
        }

        $(
            #[doc = concat!("`", stringify!($name), "`:", $($doc),+)]
            pub struct $Op;
            lanes! { $Class $Op $T ($($arg: $Arg),+) $Out { $($kind: $eval),+ } { $cpu $($fast)? } }
        )*

        export! { ($) $($(#[doc = $doc])+ $Op $name $T $Class ($($arg: $Arg),+) $Out $surface $($Trait)?;)* }
    };
}

/// Expands the `jvp` cells, one per operand, to `sum = linear(sum, tangent, cell)`.
macro_rules! jvp_cells {
    ($Op:ident $sum:ident $at:ident [] []) => {};
    ($Op:ident $sum:ident $at:ident [$a:ident $($as:ident)*] [{ $j:expr } $($js:tt)*]) => {
        $sum = linear($sum, *$at.next()?, $j);
        jvp_cells! { $Op $sum $at [$($as)*] [$($js)*] }
    };
    ($Op:ident $sum:ident $at:ident $a:tt $j:tt) => {
        compile_error! { concat!("row `", stringify!($Op), "`: `jvp` needs one cell per operand") }
    };
}

/// Expands a type in a signature to a [`Ty`](crate::scalar::SignatureType).
macro_rules! ty {
    (T) => {
        $crate::scalar::SignatureType::T
    };
    (bool) => {
        $crate::scalar::SignatureType::Is($crate::DType::Bool)
    };
    (u32) => {
        $crate::scalar::SignatureType::Is($crate::DType::U32)
    };
}

/// Expands the tolerances of a `cpu` cell.
macro_rules! tolerance {
    () => {
        None
    };
    ($rel:literal, $abs:literal) => {
        Some(($rel, $abs))
    };
}

/// Expands a `fold` cell.
macro_rules! fold {
    (none) => {
        None
    };
    ($neutral:ident $($across:literal)?) => {
        Some($crate::scalar::MonoidProperties { neutral: $crate::scalar::NeutralElement::$neutral, subgroup: helper!($($across)?) })
    };
}

/// Expands to `visit_each` for a monoid, whose operands and result have the same type.
macro_rules! monoid {
    (none $Class:ident ($t:ident, $v:ident) $Op:ident $T:ident) => {
        None
    };
    ($neutral:ident $Class:ident ($t:ident, $v:ident) $Op:ident $T:ident) => {
        class! { $Class visit_each ($t, $v) $Op $T monoid }
    };
}

/// Expands the syntax of an operation.
macro_rules! surface {
    (method) => {
        $crate::scalar::CallSyntax::Method
    };
    (comparison) => {
        $crate::scalar::CallSyntax::Method
    };
    (operator) => {
        $crate::scalar::CallSyntax::Operator
    };
    (function) => {
        $crate::scalar::CallSyntax::Function
    };
}

/// Expands an optional cell to an `Option`.
macro_rules! helper {
    () => {
        None
    };
    ($h:expr) => {
        Some($h)
    };
}

/// Passes the types of a class to another macro.
macro_rules! class {
    (Any $then:ident $($x:tt)*) => { $then! { [f32 f64 F16 Bf16 i32 u32 i64 u64 i8 u8 i16 u16 bool] $($x)* } };
    (Number $then:ident $($x:tt)*) => { $then! { [f32 f64 F16 Bf16 i32 u32 i64 u64 i8 u8 i16 u16] $($x)* } };
    (Signed $then:ident $($x:tt)*) => { $then! { [f32 f64 F16 Bf16 i32 i64 i8 i16] $($x)* } };
    (Real $then:ident $($x:tt)*) => { $then! { [f32 f64 F16 Bf16] $($x)* } };
    (Int $then:ident $($x:tt)*) => { $then! { [i32 u32 i64 u64 i8 u8 i16 u16] $($x)* } };
    (Bits $then:ident $($x:tt)*) => { $then! { [i32 u32 i64 u64 i8 u8 i16 u16 bool] $($x)* } };
    (Bool $then:ident $($x:tt)*) => { $then! { [bool] $($x)* } };
    (Single $then:ident $($x:tt)*) => { $then! { [f32] $($x)* } };
    ($Class:ident $then:ident $v:tt $Op:ident $($x:tt)*) => {
        compile_error! { concat!("row `", stringify!($Op), "`: there is no class `", stringify!($Class), "`") }
    };
}

/// Expands to `match t { F32 => v.visit::<Exp, (f32,)>(), .. }`.
macro_rules! visit_each {
    ([$($L:ident)*] ($t:ident, $v:ident) $Op:ident $T:ident $args:tt) => {{
        #[allow(unused_imports, reason = "a class need not have these types")]
        use $crate::dtype::{Bf16, Elem, F16};
        match $t {
            $(<$L as Elem>::DTYPE => { type $T = $L; Some(visit_one!($v $Op $T $args)) })*
            #[allow(unreachable_patterns, reason = "a class may have every type")]
            _ => None,
        }
    }};
}
macro_rules! visit_one {
    ($v:ident $Op:ident $T:ident monoid) => { $v.visit::<$Op, $T>() };
    ($v:ident $Op:ident $T:ident ($($Arg:ident),+)) => { $v.visit::<$Op, ($($Arg,)+)>() };
}

/// Expands `eval` cells, whose kinds the class requires, to a `lane!` for each type.
macro_rules! lanes {
    (Any $Op:ident $T:ident $s:tt $o:ident { float: $f:expr, int: $i:expr, bool: $b:expr } $cpu:tt) => {
        lanes! { Number $Op $T $s $o { float: $f, int: $i } $cpu }
        lanes! { Bool $Op $T $s $o { bool: $b } { same } }
    };
    (Number $Op:ident $T:ident $s:tt $o:ident { float: $f:expr, int: $i:expr } $cpu:tt) => {
        lanes! { Real $Op $T $s $o { float: $f } $cpu }
        lanes! { Int $Op $T $s $o { int: $i } { same } }
    };
    (Signed $Op:ident $T:ident $s:tt $o:ident { float: $f:expr, int: $i:expr } $cpu:tt) => {
        lanes! { Real $Op $T $s $o { float: $f } $cpu }
        lane! { i32 $Op $T $s $o { $i } { same } }
        lane! { i64 $Op $T $s $o { $i } { same } }
        lane! { i8 $Op $T $s $o { $i } { same } }
        lane! { i16 $Op $T $s $o { $i } { same } }
    };
    (Real $Op:ident $T:ident $s:tt $o:ident { float: $f:expr } $cpu:tt) => {
        lane! { f32 $Op $T $s $o { $f } $cpu }
        lane! { f64 $Op $T $s $o { $f } { same } }
        half! { F16 $Op $T $s $o }
        half! { Bf16 $Op $T $s $o }
    };
    (Int $Op:ident $T:ident $s:tt $o:ident { int: $i:expr } $cpu:tt) => {
        lane! { i32 $Op $T $s $o { $i } $cpu }
        lane! { u32 $Op $T $s $o { $i } $cpu }
        lane! { i64 $Op $T $s $o { $i } $cpu }
        lane! { i8 $Op $T $s $o { $i } $cpu }
        lane! { u8 $Op $T $s $o { $i } $cpu }
        lane! { i16 $Op $T $s $o { $i } $cpu }
        lane! { u16 $Op $T $s $o { $i } $cpu }
        lane! { u64 $Op $T $s $o { $i } $cpu }
    };
    (Bits $Op:ident $T:ident $s:tt $o:ident { int: $i:expr, bool: $b:expr } $cpu:tt) => {
        lanes! { Int $Op $T $s $o { int: $i } $cpu }
        lanes! { Bool $Op $T $s $o { bool: $b } $cpu }
    };
    (Bool $Op:ident $T:ident $s:tt $o:ident { bool: $b:expr } $cpu:tt) => { lane! { bool $Op $T $s $o { $b } $cpu } };
    (Single $Op:ident $T:ident $s:tt $o:ident { float: $f:expr } $cpu:tt) => { lane! { f32 $Op $T $s $o { $f } $cpu } };
    ($Class:ident $Op:ident $T:ident $s:tt $o:ident { $($kind:ident: $e:expr),* } $cpu:tt) => {
        compile_error! { concat!("row `", stringify!($Op), "`: class ", stringify!($Class), " needs other `eval` kinds than", $(" `", stringify!($kind), "`"),*) }
    };
}

/// Expands to `impl ElementFunction<(T, T)> for Add` for one type, to which the row's `T` is an alias.
macro_rules! lane {
    ($L:ident $Op:ident $T:ident ($($arg:ident: $Arg:ident),+) $Out:ident { $eval:expr } { same }) => {
        lane! { $L $Op $T ($($arg: $Arg),+) $Out { $eval } { f32 $eval } }
    };
    ($L:ident $Op:ident $T:ident ($($arg:ident: $Arg:ident),+) $Out:ident { $eval:expr } { f32 $fast:expr }) => {
        const _: () = {
            #[allow(dead_code, reason = "an evaluation need not mention its type")]
            type $T = $L;
            #[allow(clippy::unnecessary_cast, reason = "necessary for other types of the class")]
            impl $crate::scalar::ElementFunction<($($Arg,)+)> for $Op {
                type Out = $Out;
                #[inline(always)]
                fn reference(($($arg,)+): ($($Arg,)+)) -> $Out { $eval }
                #[inline(always)]
                fn fast(($($arg,)+): ($($Arg,)+)) -> $Out { $fast }
            }
        };
    };
}

/// Expands to the implementation for a 16-bit float: that for `f32` between two conversions.
macro_rules! half {
    ($L:ident $Op:ident $T:ident ($($arg:ident: $Arg:ident),+) $Out:ident) => {
        const _: () = {
            use $crate::{dtype::Widen, scalar::ElementFunction};
            type $T = $crate::dtype::$L;
            impl ElementFunction<($($Arg,)+)> for $Op {
                type Out = $Out;
                #[inline(always)]
                fn reference(($($arg,)+): ($($Arg,)+)) -> $Out {
                    <$Out>::narrow(<$Op as ElementFunction<($(<$Arg as Widen>::Wide,)+)>>::reference(($($arg.widen(),)+)))
                }
                #[inline(always)]
                fn fast(($($arg,)+): ($($Arg,)+)) -> $Out {
                    <$Out>::narrow(<$Op as ElementFunction<($(<$Arg as Widen>::Wide,)+)>>::fast(($($arg.widen(),)+)))
                }
            }
        };
    };
}

/// Exports signatures and docs of the rows as `for_each_scalar_op! { callback }`, callable from every crate.
macro_rules! export {
    (($d:tt) $($rows:tt)*) => {
        /// Calls `callback!` with a line `doc* Op name T Class (operand: Type, ..) Result surface Trait?;` per
        /// operation.
        #[macro_export]
        macro_rules! for_each_scalar_op {
            ($d callback:ident) => { $d callback! { $($rows)* } };
        }
    };
}
