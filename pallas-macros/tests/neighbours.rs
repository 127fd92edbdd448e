//! The nearest kernel that is right for each kernel that is refused: it compiles, and gives what it should.
//!
//! `ui/CAUSE/NAME.rs` is refused with the words in `NAME.stderr`; `ui/CAUSE/ok/NAME.rs` runs. Here they are one binary.
#![allow(
    unused_must_use,
    unreachable_pub,
    clippy::all,
    reason = "the kernels differ from the refused ones in the mistake alone"
)]
use pallas_rt::prelude::*;

/// What a kernel gives for arrays of 0, 1, 2, .. in some shapes, on the interpreter and on the CPU.
fn gives<const N: usize>(shapes: [&[usize]; N], call: impl Fn([&Array; N]) -> Result<Array>, expected: &[f32]) {
    for client in [Client::interpreter(), Client::cpu()] {
        let array = |shape: &[usize]| {
            let elements: Vec<f32> = (0..shape.iter().product()).map(|i: usize| i as f32).collect();
            client.array(&elements, shape).expect("it fits")
        };
        let arrays = shapes.map(array);
        let out = call(arrays.each_ref()).expect("the kernel is right");
        assert_eq!(out.to_vec::<f32>().expect("f32"), expected);
    }
}

/// Integers beside an array.
fn table(x: &Array, elements: &[i32]) -> Array {
    x.client().array(elements, &[elements.len()]).expect("it fits")
}

#[path = "ui/access/ok"]
mod access {
    mod block_axis;
    mod grid_axis;
    mod index;
    mod index_type;
    mod negative_index;
    mod prefetch_rank;
    mod strided_window;
    mod view_rank;
    mod window;
}
#[path = "ui/condition/ok"]
mod condition {
    mod helper_operator;
    mod host_before_tile;
    mod host_comparison;
    mod host_count;
    mod logic;
    #[path = "match.rs"]
    mod match_;
    mod matches;
    mod number;
    mod tile;
    mod while_tile;
}
#[path = "ui/graph/ok"]
mod graph {
    mod by_value;
    mod donated;
    mod key_twice;
    mod no_arguments;
    mod result;
}
#[path = "ui/lints/ok"]
mod lints {
    mod unreachable_code;
    mod unused_assignment;
    mod unused_in_branch;
    mod unused_mut;
    mod unused_value;
    mod unused_variable;
}
#[path = "ui/operands/ok"]
mod operands {
    mod begun_by_one;
    mod early_read;
    mod early_scratch;
    mod never_stored;
    mod only_read;
    mod ref_for_tile;
    mod shared_block;
    mod unused;
    mod window_of_input;
    mod write_input;
}
#[path = "ui/options/ok"]
mod options {
    mod allow_unknown;
    mod assume_order;
    mod assume_unusable;
    mod crate_path;
    mod grid_fraction;
    mod no_grid;
    mod semantics_length;
    mod semantics_name;
    mod twice;
    mod unknown;
}
#[path = "ui/shapes/ok"]
mod shapes {
    mod all_at_once;
    mod argmax_axis;
    mod assume;
    mod beside_types;
    mod broadcast;
    mod carried;
    mod concat;
    mod cumulative_axis;
    mod dot;
    mod dot_forgotten_t;
    mod dot_same;
    mod elementwise;
    mod elementwise_t;
    mod expand;
    mod mask_of_load;
    mod mask_of_store;
    mod pad;
    mod ranks;
    mod reduce_axis;
    mod reshape;
    mod reverse_axis;
    mod roll_axis;
    mod select;
    mod side_of_variable;
    mod sides;
    mod slice;
    mod slice_end;
    mod squeeze;
    mod squeezed;
    mod store;
    mod store_scratch;
    mod store_view;
    mod take_along;
    mod transpose_axes;
    mod transpose_twice;
}
#[path = "ui/signature/ok"]
mod signature {
    #[path = "async.rs"]
    mod async_;
    mod body_syntax;
    mod call;
    #[path = "const.rs"]
    mod const_;
    mod declared;
    mod dtype_of_call;
    mod element_type;
    #[path = "extern.rs"]
    mod extern_;
    mod fixed_operand;
    mod fixed_reference;
    mod fixed_twice;
    mod lifetime;
    #[path = "mut.rs"]
    mod mut_;
    mod no_element_type;
    mod no_output;
    mod pattern;
    mod reference;
    mod returns;
    mod second_kernel;
    #[path = "self.rs"]
    mod self_;
    mod several;
    #[path = "type.rs"]
    mod type_;
    #[path = "unsafe.rs"]
    mod unsafe_;
    mod vec;
}
#[path = "ui/spec/ok"]
mod spec {
    mod alias_of_output;
    mod alias_unknown;
    mod block_of_scratch;
    mod block_rank;
    mod buffered_depth;
    mod buffered_output;
    mod element_arguments;
    mod element_index;
    mod element_offset;
    mod empty_of_input;
    mod fill_of_param;
    mod fill_twice;
    mod grid_order;
    mod map_arity;
    mod map_missing;
    mod map_of_another_axis;
    mod map_of_input;
    mod map_of_param;
    mod map_of_whole;
    mod map_results;
    mod no_block;
    mod outer_constant;
    mod outer_fraction;
    mod placeholder;
    mod prefetch_of_input;
    mod prefetch_shape;
    mod scratch_of_input;
    mod scratch_size;
    mod scratch_twice;
    mod second_block;
    mod second_map;
    mod size_expression;
    mod unbound_extent;
    mod unknown_extent;
    mod unknown_name;
    mod unknown_option;
    mod zero_block;
}
#[path = "ui/staging/ok"]
mod staging {
    mod break_for;
    mod cell;
    mod closures;
    mod continue_for;
    mod element_type_changes;
    mod hidden_in_closure;
    mod hidden_in_macro;
    mod host_count;
    mod host_push;
    mod host_value;
    mod index_by_scalar;
    mod iter_mut;
    mod late_in_loop;
    mod late_value;
    mod leave;
    mod loop_break;
    mod macro_inside;
    mod moved;
    mod mutating_method;
    mod not_mut;
    mod numbers_of_if;
    mod numbers_of_match;
    mod question_mark;
    mod range_inclusive;
    mod range_of_floats;
    mod return_for;
    mod sides;
    mod struct_of_tiles;
}
#[path = "ui/tree/ok"]
mod tree {
    mod argument;
    mod crate_path;
    mod field;
    mod fixed;
    mod no_clone;
    mod option;
    mod type_option;
    #[path = "union.rs"]
    mod union_;
    mod variant;
}
#[path = "ui/tune/ok"]
mod tune {
    mod empty;
    mod no_candidates;
    mod no_combination;
    mod no_condition;
    mod no_list;
    mod no_number;
    mod twice;
    mod unknown_in_condition;
    mod unknown_name;
    mod zero;
}
#[path = "ui/types/ok"]
mod types {
    mod comparison;
    mod float_bits;
    mod function;
    mod host_left;
    mod literals;
    mod mask_arithmetic;
    mod mask_of_numbers;
    mod method;
    mod other_elements;
    mod scalar_as;
    mod scalar_of_other_elements;
    mod select_sides;
    mod shape_by_scalar;
    mod stored;
    mod tile_for_scalar;
}

#[path = "right/unusual.rs"]
mod unusual;

/// A function of the user's own may have a name of the language: here `dot` multiplies rows by rows.
mod own_name {
    use pallas_rt::prelude::*;

    fn dot(a: Tile<f32>, b: Tile<f32>) -> Tile<f32> {
        pallas_rt::prelude::dot(a, b.t())
    }

    #[kernel(grid = (cdiv(S, BQ), cdiv(L, BK)))]
    fn k<const BQ: usize, const BK: usize>(
        #[block([S, D] => [BQ, D], |i, _| (i, 0))] q: In<f32>,
        #[block([L, D] => [BK, D], |_, j| (j, 0))] k: In<f32>,
        #[block([S, L] => [BQ, BK], |i, j| (i, j))] out: Out<f32>,
    ) {
        out.store(dot(q.load(), k.load()));
    }

    #[test]
    fn runs() {
        crate::gives([&[2, 2], &[2, 2]], |[a, b]| k::<1, 2>(a, b), &[1.0, 3.0, 3.0, 13.0]);
    }
}

/// Grid axes may stand in any order: the programs of a parallel axis each walk the sequential ones.
mod parallel_behind_arbitrary {
    use pallas_rt::prelude::*;

    #[kernel(grid = (cdiv(K, 1), cdiv(M, 1)), semantics = (arbitrary, parallel))]
    fn k(
        #[block([M, K] => [1, 1], |k, i| (i, k))] x: In<f32>,
        #[block([M, 1] => [1, 1], |_, i| (i, 0))] out: Out<f32>,
    ) {
        if program_id(0) == 0 {
            out.fill(0.0);
        }
        out.store(out.load() + x.load());
    }

    #[test]
    fn runs() {
        crate::gives([&[2, 3]], |[x]| k(x), &[3.0, 12.0]);
    }
}
