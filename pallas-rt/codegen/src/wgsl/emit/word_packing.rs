//! Packing of arrays' elements in words: access to single elements, and to four adjacent elements at once.
//!
//! If an array's rows consist of vectors of four elements (one, two or four words), it is bound as an array of such
//! vectors, unless single elements are written as well: their neighbours may be another thread's. Then it is an array
//! of words, which are atomic if elements are narrower. As the binding follows from the whole text, the functions
//! `read_..`, `write_..` and `four_..` hide it.
use super::emitter::BodyEmitter;
use super::names;
use super::position::{VEC4_COMPONENTS, VEC4_WIDTH};
use crate::wgsl::types::{array_bits_to_element, element_to_array_bits};
use pallas_ir::{Kernel, OperandId};
use std::fmt::Write;

/// Returns the WGSL type of four elements of `bytes` bytes each.
fn vec4_type(bytes: usize) -> &'static str {
    match bytes {
        1 => "u32",
        2 => "vec2<u32>",
        _ => "vec4<u32>",
    }
}

impl BodyEmitter<'_> {
    /// Returns true if an array may be read and written four elements at a time.
    pub(super) fn can_access_vec4(&self, of: OperandId) -> bool {
        self.plan.uses_vec4 && names::can_bind_vec4(self.k, of, self.multiples)
    }

    /// Returns an expression for the element with this row-major number in an array, which is in bounds.
    pub(super) fn packed_element_expression(&self, of: OperandId, element_number: &str) -> String {
        let (array, dtype) = (names::array_name(self.k, of), self.k.operand(of).dtype);
        let read = |i: String| match self.can_access_vec4(of) {
            true => format!("read_{array}({i})"),
            // Words of several elements that are written are atomic.
            false if dtype.bytes() < 4 && names::is_operand_written(self.k, of) => format!("atomicLoad(&{array}[{i}])"),
            false => format!("{array}[{i}]"),
        };
        match dtype.bytes() {
            4 => array_bits_to_element(dtype, &read(element_number.to_string())),
            2 => array_bits_to_element(
                dtype,
                &format!("(({} >> (16u * ({element_number} % 2u))) & 0xffffu)", read(format!("{element_number} / 2u"))),
            ),
            _ => array_bits_to_element(
                dtype,
                &format!("(({} >> (8u * ({element_number} % 4u))) & 0xffu)", read(format!("{element_number} / 4u"))),
            ),
        }
    }
    /// Writes the read of the element with this row-major number where `test` is true, with `fallback` as the value
    /// elsewhere; returns the name of the value.
    pub(super) fn emit_guarded_element_read(
        &mut self,
        of: OperandId,
        element_number: &str,
        test: &str,
        fallback: &str,
    ) -> String {
        let (x, name) = (self.packed_element_expression(of, element_number), self.fresh_name("x"));
        self.emit_line(format!("var {name} = {fallback};"));
        self.emit_line(format!("if ({test}) {{ {name} = {x}; }}"));
        name
    }
    /// Writes the read of the four elements from `first_element` on, a multiple of four, and returns their name; zeros
    /// where the guard is false.
    pub(super) fn emit_vec4_read(&mut self, of: OperandId, first_element: &str, guard: Option<&str>) -> String {
        self.out.fours.insert(self.k.memory_of(of));
        let (name, array) = (self.fresh_name("w"), names::array_name(self.k, of));
        let at = format!("{first_element} / {VEC4_WIDTH}u");
        let four = if names::is_operand_written(self.k, of) {
            format!("four_{array}({at})")
        } else {
            format!("{array}[{at}]")
        };
        match guard {
            Some(test) => {
                let vector = vec4_type(self.k.operand(of).dtype.bytes());
                self.emit_line(format!("var {name}: {vector};"));
                self.emit_line(format!("if ({test}) {{ {name} = {four}; }}"));
            }
            None => self.emit_line(format!("let {name} = {four};")),
        }
        name
    }
    /// Returns an expression for one of the four elements that [`BodyEmitter::emit_vec4_read`] has read.
    pub(super) fn vec4_component(&self, of: OperandId, name: &str, part: usize) -> String {
        let dtype = self.k.operand(of).dtype;
        let bits = match (dtype.bytes(), part) {
            (4, _) => format!("{name}.{}", VEC4_COMPONENTS[part]),
            (2, 0 | 2) => format!("({name}.{} & 0xffffu)", VEC4_COMPONENTS[part / 2]),
            (2, _) => format!("({name}.{} >> 16u)", VEC4_COMPONENTS[part / 2]),
            (_, 3) => format!("({name} >> 24u)"),
            _ => format!("(({name} >> {}u) & 0xffu)", 8 * part),
        };
        array_bits_to_element(dtype, &bits)
    }

    /// Writes the store of the element with this row-major number in an array.
    pub(super) fn emit_packed_element_store(&mut self, of: OperandId, element_number: &str, x: &str) {
        let (array, dtype) = (names::array_name(self.k, of), self.k.operand(of).dtype);
        let bits = element_to_array_bits(dtype, x);
        self.emit_line(match dtype.bytes() == 4 && !self.can_access_vec4(of) {
            true => format!("{array}[{element_number}] = {bits};"),
            false => format!("write_{array}({element_number}, {bits});"),
        });
    }
    /// Writes the store of four elements of an array from `first_element` on, a multiple of four.
    pub(super) fn emit_packed_vec4_store(&mut self, of: OperandId, first_element: &str, elements: &[String]) {
        self.out.fours.insert(self.k.memory_of(of));
        let (array, dtype) = (names::array_name(self.k, of), self.k.operand(of).dtype);
        let bits: Vec<String> = elements.iter().map(|x| element_to_array_bits(dtype, x)).collect();
        let width = 8 * dtype.bytes();
        let word = |bits: &[String]| {
            let shifted =
                |(i, x): (usize, &String)| if i == 0 { x.clone() } else { format!("({x} << {}u)", i * width) };
            bits.iter().enumerate().map(shifted).collect::<Vec<_>>().join(" | ")
        };
        let words: Vec<String> = bits.chunks(VEC4_WIDTH / dtype.bytes()).map(word).collect();
        let (at, all) = (format!("{first_element} / {VEC4_WIDTH}u"), words.join(", "));
        self.emit_line(format!("write_four_{array}({at}, {}({all}));", vec4_type(dtype.bytes())));
    }
}

/// Returns the element type of an array's binding, and the functions by which `body_text` reads and writes the array.
/// `has_vec4_accesses` is true if the body accesses whole vectors of it.
pub(super) fn binding_and_accessors(
    k: &Kernel,
    id: OperandId,
    has_vec4_accesses: bool,
    body_text: &str,
) -> (String, String) {
    let (name, bytes) = (names::array_name(k, id), k.operand(id).dtype.bytes());
    let called = |function: &str| body_text.contains(&format!("{function}_{name}("));
    let fours = has_vec4_accesses || called("four") || called("write_four");
    // Neighbours in a vector, or in a word, may be another thread's.
    let single = names::is_operand_written(k, id) && (!fours || called("write"));
    let atomic = bytes < 4 && single;
    let vectors = fours && !single && bytes > 1;
    let (vector, words) = (vec4_type(bytes), bytes.max(1));
    let word = match (atomic, vectors) {
        (true, _) => "atomic<u32>",
        (_, true) => vector,
        _ => "u32",
    };
    let at = |i: &str| match (atomic, vectors) {
        (true, _) => format!("atomicLoad(&{name}[{i}])"),
        (_, true) => format!("{name}[{i} / {words}u][{i} % {words}u]"),
        _ => format!("{name}[{i}]"),
    };
    let mut functions = String::new();
    let mut put = |called: bool, text: String| {
        if called {
            writeln!(functions, "{text}").expect("text");
        }
    };
    put(called("read"), format!("fn read_{name}(i: u32) -> u32 {{ return {}; }}", at("i")));
    let part = |p: usize| format!("{words}u * i + {p}u");
    let four = match single && bytes > 1 {
        true => format!("{vector}({})", (0..words).map(|p| at(&part(p))).collect::<Vec<_>>().join(", ")),
        false if atomic => at("i"),
        false => format!("{name}[i]"),
    };
    put(called(" four"), format!("fn four_{name}(i: u32) -> {vector} {{ return {four}; }}"));
    let store = match (single, bytes) {
        (false, _) => format!("{name}[i] = x;"),
        (true, 1) => format!("atomicStore(&{name}[i], x);"),
        (true, 2) => (0..words).map(|p| format!("atomicStore(&{name}[{}], x[{p}]); ", part(p))).collect(),
        (true, _) => (0..words).map(|p| format!("{name}[{}] = x[{p}]; ", part(p))).collect::<String>(),
    };
    put(called("write_four"), format!("fn write_four_{name}(i: u32, x: {vector}) {{ {store} }}"));
    let (per, width) = (4 / bytes, 8 * bytes);
    let ones = (1u64 << width) - 1;
    put(
        called("write"),
        match atomic {
            true => format!(
                "fn write_{name}(i: u32, bits: u32) {{\n    let shift = {width}u * (i % {per}u);\n    \
                 atomicAnd(&{name}[i / {per}u], ~({ones}u << shift));\n    \
                 atomicOr(&{name}[i / {per}u], bits << shift);\n}}"
            ),
            false => format!("fn write_{name}(i: u32, x: u32) {{ {} = x; }}", at("i")),
        },
    );
    (word.into(), functions)
}
