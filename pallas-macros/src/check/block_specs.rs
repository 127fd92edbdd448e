//! Checks signature and specs: ranks, index maps, names, options.
use crate::ast::{BlockSize, BlockSpec, Errors, KernelOptions, Parameter, ParameterRole};
use pallas_ir::diag::{axes, dimensions};
use quote::{ToTokens, quote};
use std::collections::HashSet;
use syn::visit::Visit;
use syn::{Expr, Ident, ItemFn};

/// Checks signature and specs; each mistake is one error at the user's token.
pub(super) fn check_specs(f: &ItemFn, options: &KernelOptions, parameters: &[Parameter], errors: &mut Errors) {
    check_signature(f, errors);
    check_semantics(options, errors);
    if options.grid_tokens.is_none() && !options.unread {
        errors.push_at(
            &f.sig.ident,
            "this kernel has no grid",
            "write `#[kernel(grid = (cdiv(N, BN)))]`; `grid = ()` is one program",
        );
    }
    if !parameters.iter().any(|p| p.role == ParameterRole::Output) {
        errors.push_at(
            &f.sig.ident,
            "this kernel has no output",
            "add a parameter `out: Out<f32>` with its `#[block(..)]`",
        );
    }
    for p in parameters {
        check_parameter(p, options, parameters, errors);
    }
    report_wrong_grid_axes(
        &parameters.iter().flat_map(|p| grid_axis_uses(p, options)).collect::<Vec<_>>(),
        options,
        errors,
    );
}

/// Checks qualifiers, generics and result of the function.
fn check_signature(f: &ItemFn, errors: &mut Errors) {
    let sig = &f.sig;
    if let Some(token) = &sig.asyncness {
        errors.push_at(token, "a kernel is not `async`", "launches are asynchronous by themselves");
    }
    if let Some(token) = &sig.unsafety {
        errors.push_at(token, "a kernel is not `unsafe`", "remove it: refs are checked");
    }
    if let Some(token) = &sig.constness {
        errors.push_at(token, "a kernel is not `const`", "remove it: kernels run on devices");
    }
    if let Some(token) = &sig.abi {
        errors.push_at(token, "a kernel is no foreign function", "remove it: Rust calls kernels");
    }
    if let Some(token) = &sig.variadic {
        errors.push_at(token, "a kernel's parameters are counted", "name each of them");
    }
    if let syn::ReturnType::Type(_, ty) = &sig.output {
        errors.push_at(
            ty,
            "a kernel returns nothing: its results are `Out` parameters",
            "store to an `Out`; the call returns its arrays",
        );
    }
    if let Some(l) = sig.generics.lifetimes().next() {
        errors.push_at(l, "a kernel has no lifetimes", "take arrays, numbers and `#[fixed]` values");
    }
    if let Some(second) = f.attrs.iter().find(|a| super::is_kernel(a)) {
        errors.push_at(
            second,
            "a second `#[kernel(..)]`",
            "one attribute takes all options: `#[kernel(grid = (..), ..)]`",
        );
    }
}

/// Checks the option `semantics`: `parallel` or `arbitrary` for each axis of the grid.
fn check_semantics(options: &KernelOptions, errors: &mut Errors) {
    let Some((names, tokens)) = &options.semantics else { return };
    if names.len() != options.grid.len() && options.grid_tokens.is_some() {
        let message = format!("{} semantics for a grid of {}", names.len(), axes(options.grid.len()));
        errors.push_at(tokens, message, "one of `parallel`, `arbitrary` per grid axis");
    }
    for n in names.iter().filter(|n| *n != "parallel" && *n != "arbitrary") {
        errors.push_at(
            n,
            format!("unknown semantics `{n}`"),
            "`parallel`: in any order, at once; `arbitrary`: one after the other",
        );
    }
}

/// Checks the specs of one parameter.
fn check_parameter(p: &Parameter, options: &KernelOptions, all: &[Parameter], errors: &mut Errors) {
    match (p.role, &p.block, &p.sizes) {
        (ParameterRole::Output, None, _) if !p.unread => {
            errors.push_at(
                &p.ty,
                format!("output `{}` has no `#[block(..)]`", p.name),
                "its shape comes from the spec: `#[block([M, N] => [BM, BN], |i, j| (i, j))]`",
            );
        }
        (ParameterRole::Scratch, _, None) if !p.unread => {
            errors.push_at(
                &p.ty,
                format!("scratch `{}` has no size", p.name),
                "write `#[scratch([BM, BN])]` before it",
            );
        }
        (ParameterRole::Prefetch, _, None) if !p.unread => {
            errors.push_at(&p.ty, format!("`{}` has no shape", p.name), "write `#[prefetch([B])]` before it");
        }
        (ParameterRole::Fixed, ..) if is_borrowed_type(&p.ty) => {
            errors.push_at(
                &p.ty,
                format!("`{}` is borrowed, and `#[fixed]` values are compared with those of later calls", p.name),
                "take it by value, or as `&'static`; text is `&str`",
            );
        }
        (ParameterRole::Param, ..) if !matches!(&p.ty, syn::Type::Path(_)) => {
            errors.push_at(
                &p.ty,
                format!("`{}` is neither an operand nor a scalar", p.name),
                "operands are `In`, `Out`, `Scratch`, `Prefetch`; other host values are `#[fixed]`",
            );
        }
        _ => {}
    }
    if let Some(b) = &p.block {
        check_block_spec(p, b, options, all, errors);
        if let Some(alias) = &b.alias {
            match all.iter().find(|q| q.name == *alias) {
                Some(q) if q.role == ParameterRole::Input && p.role == ParameterRole::Output => {}
                Some(_) => errors.push_at(
                    alias,
                    format!("`{alias}` can't be aliased"),
                    "an `Out` takes over the memory of an `In`",
                ),
                None => {
                    errors.push_at(alias, format!("there is no parameter `{alias}`"), "name an `In` of this kernel")
                }
            }
        }
        if let Some(depth) = &b.buffered {
            let text = depth.to_token_stream().to_string();
            if p.role == ParameterRole::Output {
                errors.push_at(depth, "`buffered` is for inputs", "an output is written where its step ends");
            } else if matches!(depth, Expr::Lit(_)) && !["1", "2", "3"].contains(&text.as_str()) {
                let help = "1: fetched when it is needed; 2, 3: one or two steps ahead";
                errors.push_at(depth, format!("`{}` is buffered {text} times", p.name), help);
            }
        }
        let decided = "it is decided while the kernel is traced: mark the parameter `#[fixed]`";
        for (option, value) in [("fill", &b.fill), ("empty", &b.empty), ("buffered", &b.buffered)] {
            if let Some(e) = value {
                report_unreadable_names(e, &format!("`{option}`"), (all, &HashSet::new()), decided, errors);
            }
        }
        if p.role == ParameterRole::Input && b.empty.is_some() {
            errors.push_at(&b.empty, "`empty` is for outputs", "`fill` is what loads see outside of the array");
        }
    }
}

/// Checks a block spec: array dimensions, block extents, index map and options.
fn check_block_spec(
    p: &Parameter,
    b: &BlockSpec,
    options: &KernelOptions,
    parameters: &[Parameter],
    errors: &mut Errors,
) {
    let rank = b.dims.len();
    for d in b.dims.iter().filter(|d| matches!(d, Expr::Infer(_))) {
        errors.push_at(d, "an array's dimension has a name or a size", "`_` squeezes a dimension of the *block*");
    }
    let sizes = b.block.iter().flatten().filter_map(|s| match s {
        BlockSize::Squeezed => None,
        BlockSize::Blocked(e) => Some(e),
        BlockSize::Element(parts) => Some(&parts[0]),
    });
    for zero in sizes.filter(|e| matches!(e, Expr::Lit(_)) && e.to_token_stream().to_string() == "0") {
        errors.push_at(
            zero,
            format!("a block of `{}` has no elements", p.name),
            "sizes are at least 1; `_` takes one element",
        );
    }
    let Some(sizes) = &b.block else {
        if let Some(map) = &b.map {
            errors.push_at(
                map,
                format!("`{}` is one whole block, so it has no index map", p.name),
                "give the block's shape: `[dims] => [block], |i| (i, 0)`",
            );
        }
        return;
    };
    if sizes.len() != rank {
        let message = format!("the block of `{}` has {}, the array has {rank}", p.name, dimensions(sizes.len()));
        errors.push_at(
            &b.block_tokens,
            message,
            "one entry per dimension; `_` takes one index and drops the dimension",
        );
    }
    let Some(map) = &b.map else {
        if !options.grid.is_empty() && sizes.len() == rank && !is_whole_array(b, sizes) {
            errors.push_at(
                &b.block_tokens,
                format!("the blocks of `{}` have no index map", p.name),
                "say which block a program takes: `|i, j| (i, j)`",
            );
        }
        return;
    };
    if map.inputs.len() != options.grid.len() && options.grid_tokens.is_some() {
        let message = format!(
            "the index map of `{}` takes {}, the grid has {}",
            p.name,
            argument_count_text(map.inputs.len()),
            axes(options.grid.len())
        );
        let inputs = &map.inputs;
        let at = if inputs.is_empty() { map.to_token_stream() } else { quote!(#inputs) };
        errors.push_at(at, message, "one argument per grid axis; `_` for those it does not need");
    }
    let entries: Vec<&Expr> = match &*map.body {
        Expr::Tuple(t) => t.elems.iter().collect(),
        Expr::Paren(p) => vec![&*p.expr],
        other => vec![other],
    };
    let own = crate::rewrite::idents(map.inputs.to_token_stream());
    for entry in &entries {
        let help = "maps see grid indices, dimensions, `#[fixed]` values, and numbers in a `#[prefetch]` operand";
        report_unreadable_names(entry, &format!("the index map of `{}`", p.name), (parameters, &own), help, errors);
    }
    if entries.len() != rank {
        let message = format!(
            "the index map of `{}` gives {}, the array has {}",
            p.name,
            index_count_text(entries.len()),
            dimensions(rank)
        );
        errors.push_at(&map.body, message, "one block index per dimension of the array, squeezed ones too");
        return;
    }
    for (entry, size) in entries.iter().zip(sizes) {
        let offset = matches!(entry, Expr::Call(c) if matches!(&*c.func, Expr::Path(p) if p.path.is_ident("element")));
        match (size, offset) {
            (BlockSize::Element(..), false) => {
                errors.push_at(
                    entry,
                    "this dimension is `Element(..)`: its map entry is an element offset",
                    "write `element(..)` around it",
                );
            }
            (BlockSize::Blocked(_) | BlockSize::Squeezed, true) => {
                errors.push_at(
                    entry,
                    "`element(..)` gives an element offset, this dimension takes a block index",
                    "write `Element(size)` in the block's shape",
                );
            }
            _ => {}
        }
    }
}

/// An entry of an index map that is a grid axis alone, with the grid axis that has one program for each block along the
/// entry's dimension; they should be the same axis.
struct GridAxisUse<'a> {
    entry: &'a Expr,
    /// The array's dimension that this index counts blocks of.
    dim: &'a Expr,
    /// Number of blocks of the dimension, as tokens.
    blocks: String,
    /// The grid axis that the map uses.
    taken: usize,
    /// The grid axis that counts these blocks.
    own: usize,
}

fn tokens_to_string(tokens: &dyn ToTokens) -> String {
    tokens.to_token_stream().to_string()
}

/// Returns the entries of a parameter's index map that are a grid axis alone, if some grid axis has one program for
/// each block along the entry's dimension.
fn grid_axis_uses<'a>(p: &'a Parameter, options: &KernelOptions) -> Vec<GridAxisUse<'a>> {
    let Some((b, map)) = p.block.as_ref().and_then(|b| b.map.as_ref().map(|map| (b, map))) else { return vec![] };
    let entries: Vec<&Expr> = match &*map.body {
        Expr::Tuple(t) => t.elems.iter().collect(),
        Expr::Paren(p) => vec![&*p.expr],
        other => vec![other],
    };
    let sizes: Vec<&BlockSize> = b.block.iter().flatten().collect();
    if entries.len() != b.dims.len() || sizes.len() != b.dims.len() {
        return vec![];
    }
    let count = |((entry, size), dim): ((&'a Expr, &BlockSize), &'a Expr)| {
        let blocks = match size {
            BlockSize::Squeezed => tokens_to_string(dim),
            BlockSize::Blocked(block) if tokens_to_string(block) == "1" => tokens_to_string(dim),
            BlockSize::Blocked(block) => tokens_to_string(&quote!(cdiv(#dim, #block))),
            BlockSize::Element(..) => return None,
        };
        let taken = map.inputs.iter().position(|input| tokens_to_string(input) == tokens_to_string(entry))?;
        let is_right = |axis: &usize| options.grid.get(*axis).is_some_and(|extent| tokens_to_string(extent) == blocks);
        let own = Some(taken).filter(is_right).or_else(|| (0..options.grid.len()).find(is_right))?;
        Some(GridAxisUse { entry, dim, blocks, taken, own })
    };
    entries.into_iter().zip(sizes).zip(&b.dims).filter_map(count).collect()
}

/// Refuses entries of index maps that are another grid axis than the one that counts the blocks of their dimension; one
/// error at the grid if all maps agree about another order of its axes.
fn report_wrong_grid_axes(all: &[GridAxisUse<'_>], options: &KernelOptions, errors: &mut Errors) {
    // Either of two sizes that `assume` declares equal may count blocks.
    if !options.assume.is_empty() {
        return;
    }
    let spaced = |e: &str| e.replace(" (", "(").replace(" ,", ",").replace("( ", "(").replace(" )", ")");
    let extent = |axis: usize| options.grid.get(axis).map_or(String::new(), |e| spaced(&tokens_to_string(e)));
    let wrong: Vec<&GridAxisUse<'_>> = all.iter().filter(|count| count.taken != count.own).collect();
    // For each axis' argument: the axis that counts the blocks it is used for, in all maps.
    let order: Vec<usize> = (0..options.grid.len())
        .map(|axis| all.iter().find(|count| count.taken == axis).map_or(axis, |count| count.own))
        .collect();
    let is_order = (0..order.len()).all(|axis| order.contains(&axis));
    // A map may have more arguments than there are axes.
    let agree = all.iter().all(|count| order.get(count.taken) == Some(&count.own));
    if let (Some(grid), true, true, 2..) = (&options.grid_tokens, is_order, agree, wrong.len()) {
        let axis = (0..order.len()).find(|&axis| order[axis] != axis).unwrap_or(0);
        let message =
            format!("grid axis {axis} counts {}, and all index maps take it for {}", extent(axis), extent(order[axis]));
        let extents: Vec<String> = order.iter().map(|&own| extent(own)).collect();
        errors.push_at(
            grid,
            message,
            &format!("write `grid = ({})`, or exchange the arguments of the maps", extents.join(", ")),
        );
        return;
    }
    for GridAxisUse { entry, dim, blocks, taken, own } in wrong {
        let message = format!(
            "`{}` counts {}, not the blocks of `{}`",
            tokens_to_string(entry),
            extent(*taken),
            tokens_to_string(dim)
        );
        errors.push_at(entry, message, &format!("grid axis {own} counts {}: take its argument", spaced(blocks)));
    }
}

/// Returns true for a reference type whose referent may end with the call; `&str` is copied and does not count.
fn is_borrowed_type(ty: &syn::Type) -> bool {
    let syn::Type::Reference(r) = ty else { return false };
    let is_static = r.lifetime.as_ref().is_some_and(|l| l.ident == "static");
    !is_static && !matches!(&*r.elem, syn::Type::Path(p) if p.path.is_ident("str"))
}

/// Reports parameters that the expression `e` of a spec mentions but that have no value while the kernel is traced.
/// Names in `own_names` are not parameters; messages say that `reader` cannot read them.
fn report_unreadable_names(
    e: &Expr,
    reader: &str,
    (parameters, own_names): (&[Parameter], &HashSet<String>),
    help: &str,
    errors: &mut Errors,
) {
    let mut names = MentionedNames(vec![]);
    names.visit_expr(e);
    for name in names.0.into_iter().filter(|name| !own_names.contains(&name.to_string())) {
        let Some(p) = parameters.iter().find(|p| p.name == name) else { continue };
        let kind = match p.role {
            ParameterRole::Param => "a run-time value",
            ParameterRole::Input => "an input",
            ParameterRole::Output => "an output",
            ParameterRole::Scratch => "scratch",
            ParameterRole::Prefetch | ParameterRole::Fixed | ParameterRole::Dim => continue,
        };
        errors.push_at(&name, format!("{reader} can't read `{name}`, {kind}"), help);
    }
}

/// Names in an expression that stand for values.
struct MentionedNames(Vec<Ident>);
impl<'a> Visit<'a> for MentionedNames {
    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        // `max(..)` is no operand of that name.
        call.args.iter().for_each(|e| self.visit_expr(e));
    }
    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        self.0.extend(path.path.get_ident().cloned());
    }
}

/// Returns true if a block has exactly the sizes of its array.
fn is_whole_array(b: &BlockSpec, sizes: &[BlockSize]) -> bool {
    b.dims.iter().zip(sizes).all(|(d, s)| match s {
        BlockSize::Blocked(e) => e.to_token_stream().to_string() == d.to_token_stream().to_string(),
        BlockSize::Squeezed | BlockSize::Element(..) => false,
    })
}

fn argument_count_text(n: usize) -> String {
    if n == 1 { "1 argument".into() } else { format!("{n} arguments") }
}

fn index_count_text(n: usize) -> String {
    if n == 1 { "1 index".into() } else { format!("{n} indices") }
}
