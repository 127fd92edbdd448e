//! Options and tables that kernels refuse, with the operand's or option's name, and the source line of errors.
use pallas_kernels::cross_entropy::{self, cross_entropy, cross_entropy_backward};
use pallas_kernels::cross_entropy::{cross_entropy_of_logits, cross_entropy_of_logits_backward};
use pallas_kernels::decode_attention::{self, decode_attention, decode_attention_with_lse};
use pallas_kernels::embedding::{embedding, embedding_backward};
use pallas_kernels::flash_attention::{self, flash_attention, flash_attention_in_blocks, flash_attention_with_lse};
use pallas_kernels::flash_attention_backward::{self, flash_attention_backward};
use pallas_kernels::flash_attention_bias::{bias_gradient, bias_gradient_in_blocks, sinks_gradient};
use pallas_kernels::flash_attention_resident::resident_gradients;
use pallas_kernels::gated::{Gate, gated, gated_backward};
use pallas_kernels::matmul::{Layout, matmul, matmul_with};
use pallas_kernels::norm::{layer_norm, rms_norm};
use pallas_kernels::norm_backward::{layer_norm_backward, rms_norm_backward};
use pallas_kernels::paged_attention::{self, Batch, BatchOptions, PagedCache, Requests};
use pallas_kernels::paged_attention::{paged_attention, ragged_paged_attention};
use pallas_kernels::quantized_matmul::{Bits, Quantized, quantize, quantized_matmul};
use pallas_kernels::rotary::{Pairs, rotary, rotary_backward};
use pallas_kernels::softmax::{log_softmax, softmax};
use pallas_kernels::softmax_backward::{log_softmax_backward, softmax_backward};
use pallas_kernels::splash_attention::{self, splash_attention, splash_attention_backward, splash_attention_with_lse};
use pallas_kernels::splash_mask::{Mask, MaskInfo};
use pallas_rt::prelude::*;
use std::collections::BTreeSet;
use syn::visit::{self, Visit};

fn zeros(dtype: DType, shape: &[usize]) -> Array {
    Client::cpu().zeros(shape, dtype).expect("it fits")
}

fn says<T: std::fmt::Debug>(result: Result<T>, expected: &str) {
    let error = result.expect_err("it is refused").to_string();
    assert!(error.contains(expected), "{error}\n expected: {expected}");
}

#[test]
fn options_out_of_their_range() {
    let (x, labels) = (zeros(DType::F32, &[2, 3]), zeros(DType::I32, &[2]));
    for smoothing in [2.0, -0.5, f32::NAN] {
        let options = cross_entropy::Options { smoothing, ..Default::default() };
        says(cross_entropy(&x, &x, &labels, &options), &format!("`smoothing` is {smoothing}, expected 0 to 1"));
        says(cross_entropy_of_logits(&x, &labels, &options), "`smoothing` is");
    }
    let options = cross_entropy::Options { z_loss: f32::NAN, ..Default::default() };
    says(cross_entropy(&x, &x, &labels, &options), "`z_loss` is NaN, expected a finite number");

    let row = zeros(DType::F32, &[3]);
    for epsilon in [f32::NAN, f32::INFINITY, -1.0] {
        let expected = &format!("`epsilon` is {epsilon}, expected a finite number of at least 0");
        says(layer_norm(&x, &row, &row, epsilon), expected);
        says(rms_norm(&x, &row, epsilon), expected);
        says(layer_norm_backward(&x, &row, &x, epsilon), expected);
        says(rms_norm_backward(&x, &row, &x, epsilon), expected);
    }

    let x = zeros(DType::F32, &[1, 1, 2, 4]);
    let info = MaskInfo::new(&Client::cpu(), &[Mask::causal()], [2, 2]).expect("it fits");
    let cache = PagedCache::new(&Client::cpu(), DType::F32, [2, 1, 2, 4]).expect("it fits");
    let (query, tables, lengths) = (zeros(DType::F32, &[1, 1, 4]), zeros(DType::I32, &[1, 1]), zeros(DType::I32, &[1]));
    for scale in [f32::NAN, f32::NEG_INFINITY] {
        let (expected, scale) = (&format!("`scale` is {scale}, expected a finite number"), Some(scale));
        says(flash_attention(&x, &x, &x, &flash_attention::Options { scale, ..Default::default() }), expected);
        says(decode_attention(&x, &x, &x, &decode_attention::Options { scale, ..Default::default() }), expected);
        says(splash_attention(&x, &x, &x, &info, &splash_attention::Options { scale, soft_cap: None }), expected);
        let options = paged_attention::Options { scale, soft_cap: None };
        says(paged_attention(&query, &cache, &tables, &lengths, &options), expected);
    }
}

#[test]
fn tables_of_another_type() {
    let (x, wrong) = (zeros(DType::F32, &[2, 3]), zeros(DType::F32, &[2]));
    let options = cross_entropy::Options::default();
    says(cross_entropy(&x, &x, &wrong, &options), "`labels` holds f32, expected i32");
    says(cross_entropy_of_logits(&x, &wrong, &options), "`labels` holds f32, expected i32");
    says(embedding(&x, &wrong), "`ids` holds f32, expected i32");
    says(embedding_backward(&x, &zeros(DType::I64, &[2]), 5, None), "`ids` holds i64, expected i32");
    let whole = zeros(DType::I32, &[2, 3]);
    says(embedding_backward(&whole, &zeros(DType::I32, &[2]), 5, None), "takes f32, f16 or bf16, found i32");
    says(quantize(&zeros(DType::I32, &[2, 3]), Bits::Eight, None), "weights hold i32, expected f32, f16 or bf16");

    let cache = PagedCache::new(&Client::cpu(), DType::F32, [2, 1, 2, 4]).expect("it fits");
    let query = zeros(DType::F32, &[1, 1, 4]);
    let check = |[tables, lengths, starts]: [DType; 3], expected: &str| {
        let (tables, lengths, starts) = (zeros(tables, &[1, 1]), zeros(lengths, &[1]), zeros(starts, &[2]));
        let options = paged_attention::Options::default();
        says(ragged_paged_attention(&query, &cache, &tables, &lengths, &starts, &options), expected);
    };
    check([DType::F32, DType::I32, DType::I32], "`tables` holds f32, expected i32");
    check([DType::I32, DType::I64, DType::I32], "`lengths` holds i64, expected i32");
    check([DType::I32, DType::I32, DType::U32], "`starts` holds u32, expected i32");
}

/// Requires the error to begin with this file and the line of the macro, which is that of the call, and to contain a
/// text.
macro_rules! at_this_line {
    ($call:expr, $expected:expr) => {{
        let error = $call.expect_err("it is refused").to_string();
        let place = format!("{}:{}:", file!(), line!());
        assert!(error.starts_with(&place) && error.contains($expected), "{error}\n expected: {place} .. {}", $expected);
    }};
}

#[test]
fn errors_of_rows_name_the_line_of_the_call() {
    let (x, row, i) = (zeros(DType::F32, &[2, 3]), zeros(DType::F32, &[3]), zeros(DType::I32, &[2]));
    let (scalar, one) = (zeros(DType::F32, &[]), zeros(DType::F32, &[1]));
    at_this_line!(softmax(&scalar), "at least one dimension");
    at_this_line!(softmax(&i), "`softmax` takes f32, f16 or bf16, found i32");
    at_this_line!(log_softmax(&scalar), "at least one dimension");
    at_this_line!(softmax_backward(&scalar, &x), "at least one dimension");
    at_this_line!(log_softmax_backward(&i, &x), "found i32");
    at_this_line!(layer_norm(&x, &one, &row, 0.1), "`gamma` has shape [1]");
    at_this_line!(rms_norm(&x, &one, 0.1), "`gamma` has shape [1]");
    at_this_line!(layer_norm_backward(&x, &one, &x, 0.1), "`gamma` has shape [1]");
    at_this_line!(rms_norm_backward(&x, &row, &x, -1.0), "`epsilon` is -1");
    at_this_line!(gated(&x, &row, Gate::Silu), "`up` has shape [3]");
    at_this_line!(gated_backward(&x, &x, &row, Gate::Gelu), "`dy` has shape [3]");
    at_this_line!(rotary(&row, &x, &x, Pairs::Halves), "`x` has shape [3]");
    at_this_line!(rotary_backward(&row, &x, &x, Pairs::Halves), "`x` has shape [3]");
    at_this_line!(embedding(&row, &i), "`table` has shape [3]");
    at_this_line!(embedding_backward(&x, &i, 0, None), "id 0 at position 0 is no row of a table of 0");

    let options = &cross_entropy::Options::default();
    let bad = Client::cpu().array(&[0, 7], &[2]).expect("it fits");
    let f = zeros(DType::F32, &[2]);
    at_this_line!(cross_entropy(&x, &x, &bad, options), "label 7 of row 1");
    at_this_line!(cross_entropy_backward(&x, &x, &i, &one, &f, options), "`lse` has shape [1] for 2 rows");
    at_this_line!(cross_entropy_of_logits(&x, &row, options), "`labels` has shape [3] for 2 rows");
    at_this_line!(cross_entropy_of_logits_backward(&x, &i, &f, &x, options), "`dloss` has shape [2, 3] for 2 rows");

    at_this_line!(matmul(&i, &i), "`matmul` takes f32");
    at_this_line!(matmul_with(&i, &i, Layout::default(), |y| y), "`matmul` takes f32");
    at_this_line!(quantize(&x, Bits::Four, Some(3)), "groups of 3 rows");
    let weights = quantize(&x, Bits::Eight, None).expect("it fits");
    at_this_line!(quantized_matmul(&x, &weights), "`x` has shape [2, 3], the weights 2 rows");
    let wrong = |values: &Array, scales: &Array| Quantized {
        values: values.clone(),
        scales: scales.clone(),
        ..weights.clone()
    };
    at_this_line!(quantized_matmul(&x, &wrong(&row, &weights.scales)), "values have shape [3]");
    at_this_line!(quantized_matmul(&x.reshape(&[3, 2]), &wrong(&weights.values, &row)), "scales [3]");
}

#[test]
fn errors_of_attention_name_the_line_of_the_call() {
    let (x, row) = (&zeros(DType::F32, &[1, 1, 2, 4]), &zeros(DType::F32, &[3]));
    let (k, lse) = (&zeros(DType::F32, &[1, 2, 2, 4]), &zeros(DType::F32, &[1, 1, 2]));
    let (qkv, results) = ([x, k, k], [x, lse]);
    let (heads, plain) = ("1 heads of queries are no multiple of 2", &flash_attention::Options::default());
    let operands = plain.operands(x, x).expect("they fit");
    at_this_line!(operands.spans([8, 0]), "blocks of [8, 0]");
    at_this_line!(plain.operands(x, k), heads);
    at_this_line!(flash_attention(row, x, x, plain), "`q` has shape [3]");
    at_this_line!(flash_attention_with_lse(x, row, x, plain), "`k` has shape [3]");
    at_this_line!(flash_attention_in_blocks::<f32>(x, x, row, plain, [8, 8]), "`v` has shape [3]");
    at_this_line!(flash_attention_backward(qkv, results, x, plain), heads);
    at_this_line!(flash_attention_backward::gradients_in_blocks::<f32>(qkv, results, x, plain, [[8; 2]; 2]), heads);
    at_this_line!(resident_gradients::<f32>(qkv, results, x, plain, [8, 8]), heads);
    at_this_line!(bias_gradient([x; 3], results, x, plain), "there is no `bias`");
    at_this_line!(bias_gradient_in_blocks::<f32>([x; 3], results, x, plain, [8, 8]), "there is no `bias`");
    at_this_line!(sinks_gradient([&zeros(DType::I32, &[2]), lse], x, row), "`sinks_gradient` takes f32");
    let soft_cap = flash_attention::Options { soft_cap: Some(0.0), ..*plain };
    at_this_line!(flash_attention(x, x, x, &soft_cap), "`soft_cap` is 0");
    let lengths = flash_attention::Options { lengths: Some(row), ..*plain };
    at_this_line!(flash_attention(x, x, x, &lengths), "`lengths` holds f32, expected i32");

    let options = &decode_attention::Options::default();
    at_this_line!(decode_attention(x, k, k, options), heads);
    let many = &zeros(DType::F32, &[1, 1, 65, 4]);
    at_this_line!(decode_attention_with_lse(many, x, x, options), "65 queries per sequence");

    let client = &Client::cpu();
    at_this_line!(MaskInfo::new(client, &[], [2, 2]), "there are no masks");
    let chunks = [!(Mask::causal() & Mask::Chunked { size: 0 })];
    at_this_line!(MaskInfo::new(client, &chunks, [2, 2]), "chunks of 0 keys");
    at_this_line!(MaskInfo::in_blocks(client, &[Mask::Full], [2, 2], [0, 8]), "blocks of [0, 8]");
    let info = &MaskInfo::in_blocks(client, &[Mask::Full], [2, 2], [16, 8]).expect("it fits");
    let options = &splash_attention::Options::default();
    at_this_line!(splash_attention(many, x, x, info, options), "masks of 1 heads and [2, 2] queries and keys");
    at_this_line!(splash_attention_with_lse(x, k, k, info, options), heads);
    at_this_line!(splash_attention_backward(qkv, results, x, info, options), heads);
    at_this_line!(splash_attention::attention_in_blocks::<f32, 8, 8>(x, x, x, info, options), "masks in blocks of");
    let strange = &MaskInfo::in_blocks(client, &[Mask::Full], [2, 2], [2, 2]).expect("it fits");
    at_this_line!(splash_attention(x, x, x, strange, options), "no kernel was compiled for blocks of [2, 2]");
}

#[test]
fn errors_of_paged_attention_name_the_line_of_the_call() {
    let client = &Client::cpu();
    at_this_line!(PagedCache::new(client, DType::I32, [2, 1, 2, 4]), "not i32");
    let mut cache = PagedCache::new(client, DType::F32, [2, 1, 2, 4]).expect("it fits");
    let other = PagedCache::new(client, DType::F32, [3, 1, 2, 4]).expect("it fits");
    let (plain, options) = (BatchOptions::default(), &paged_attention::Options::default());
    let step = Requests { tables: &[1], lengths: &[1], starts: &[0, 1] };
    let of_page = |page: &'static [i32]| Requests { tables: page, ..step };
    at_this_line!(Batch::new(&cache, 1, of_page(&[2]), plain), "page 0 of request 0 is number 2");
    at_this_line!(Batch::new(&cache, 1, Requests { lengths: &[3], ..step }, plain), "its table has 1");
    let (batch, q) = (Batch::new(&cache, 1, step, plain).expect("it fits"), &zeros(DType::F32, &[1, 1, 4]));
    at_this_line!(batch.attend(&zeros(DType::F32, &[4]), &cache, options), "`q` has shape [4]");
    at_this_line!(batch.attend_with_lse(q, &other, options), "does not fit one of [3, 1, 2]");
    at_this_line!(cache.append(&batch, q, &zeros(DType::F32, &[4])), "`v` is f32 [4]");
    let twice = Requests { tables: &[1, 1], lengths: &[1, 1], starts: &[0, 1, 2] };
    let twice = Batch::new(&cache, 1, twice, plain).expect("it fits");
    let new = &zeros(DType::F32, &[2, 1, 4]);
    at_this_line!(cache.append(&twice, new, new), "requests 0 and 1 both append to place 0 of page 1");
    let (tables, lengths) = (&zeros(DType::I32, &[1, 1]), &zeros(DType::I32, &[1]));
    at_this_line!(paged_attention(q, &cache, lengths, lengths, options), "`tables` has shape [1]");
    at_this_line!(ragged_paged_attention(q, &cache, tables, lengths, q, options), "`starts` holds f32, expected i32");
}

/// The functions of the kernel library that can fail, and the calls that its closures make.
#[derive(Default)]
struct Fallible {
    /// Names of kernels and of functions that return a `Result`.
    names: BTreeSet<String>,
    /// Those without `#[track_caller]`, which `#[kernel]` adds to kernels.
    untracked: Vec<String>,
    called_in_closures: BTreeSet<String>,
    /// Number of closures around the visited expression.
    closures: usize,
}

impl Fallible {
    fn add(&mut self, signature: &syn::Signature, attributes: &[syn::Attribute]) {
        let has = |name: &str| attributes.iter().any(|a| a.path().is_ident(name));
        let fails = match &signature.output {
            syn::ReturnType::Type(_, ty) => matches!(&**ty, syn::Type::Path(p) if p.path.segments[0].ident == "Result"),
            syn::ReturnType::Default => has("kernel"),
        };
        let name = signature.ident.to_string();
        if fails && !has("track_caller") && !has("kernel") {
            self.untracked.push(name.clone());
        }
        // Too common a name for a closure's calls to be recognised by it.
        if fails && name != "new" {
            self.names.insert(name);
        }
    }
    fn called(&mut self, name: &syn::Ident) {
        if self.closures > 0 {
            self.called_in_closures.insert(name.to_string());
        }
    }
}

impl<'a> Visit<'a> for Fallible {
    fn visit_item_fn(&mut self, f: &'a syn::ItemFn) {
        self.add(&f.sig, &f.attrs);
        visit::visit_item_fn(self, f);
    }
    fn visit_impl_item_fn(&mut self, f: &'a syn::ImplItemFn) {
        self.add(&f.sig, &f.attrs);
        visit::visit_impl_item_fn(self, f);
    }
    fn visit_expr_closure(&mut self, closure: &'a syn::ExprClosure) {
        self.closures += 1;
        visit::visit_expr_closure(self, closure);
        self.closures -= 1;
    }
    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.called(&call.method);
        visit::visit_expr_method_call(self, call);
    }
    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func {
            path.path.segments.last().into_iter().for_each(|last| self.called(&last.ident));
        }
        visit::visit_expr_call(self, call);
    }
}

/// An error is at the line that calls the library: every function up to there has the attribute, and no closure is
/// between them.
#[test]
fn functions_that_can_fail_track_their_caller() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/src");
    let mut found = Fallible::default();
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let makes_errors = text.contains("Error::") && !path.ends_with("argument_errors.rs");
        assert!(!makes_errors, "{}: `argument_errors` makes errors with the line of the call", path.display());
        found.visit_file(&syn::parse_file(&text).expect("a source file"));
    }
    let Fallible { names, untracked, called_in_closures, .. } = found;
    assert!(names.len() > 100, "the functions are found: {names:?}");
    assert!(untracked.is_empty(), "without `#[track_caller]`: {untracked:?}");
    let lost: Vec<_> = called_in_closures.intersection(&names).collect();
    assert!(lost.is_empty(), "closures call {lost:?}, whose errors then name a line of this library");
}
