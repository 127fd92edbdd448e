//! What every platform does with a shader.

/// Parses, validates and writes a shader for every platform.
pub fn validate(text: &str) {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let mut validator =
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let bodies = module.functions.iter().map(|(handle, f)| (f, &info[handle]));
    for (function, info) in bodies.chain(module.entry_points.iter().map(|e| &e.function).zip([info.get_entry_point(0)]))
    {
        whole_vectors(&module, function, info, &function.body, text);
    }
    naga::back::spv::write_vec(&module, &info, &naga::back::spv::Options::default(), None).expect("SPIR-V");
    let msl = naga::back::msl::Options { fake_missing_bindings: true, lang_version: (2, 4), ..Default::default() };
    naga::back::msl::write_string(&module, &info, &msl, &naga::back::msl::PipelineOptions::default()).expect("MSL");
    // DX12 has no cooperative matrices.
    if text.contains("enable wgpu_cooperative_matrix") {
        return;
    }
    let hlsl = naga::back::hlsl::Options {
        fake_missing_bindings: true,
        shader_model: naga::back::hlsl::ShaderModel::V6_0,
        ..Default::default()
    };
    let mut out = String::new();
    let options = naga::back::hlsl::PipelineOptions { entry_point: None };
    naga::back::hlsl::Writer::new(&mut out, &hlsl, &options).write(&module, &info, None).expect("HLSL");
}

/// No statement stores to one component of a vector that other threads see: what the threads of its neighbours store
/// may be lost (gpuweb issue 2112; Metal and D3D write whole vectors).
fn whole_vectors(
    module: &naga::Module,
    function: &naga::Function,
    info: &naga::valid::FunctionInfo,
    block: &naga::Block,
    text: &str,
) {
    use naga::{AddressSpace, Expression, Statement, TypeInner};
    let shared = |space: &AddressSpace| matches!(space, AddressSpace::WorkGroup | AddressSpace::Storage { .. });
    for (statement, span) in block.span_iter() {
        let inside: Vec<&naga::Block> = match statement {
            Statement::Block(block) => vec![block],
            Statement::If { accept, reject, .. } => vec![accept, reject],
            Statement::Switch { cases, .. } => cases.iter().map(|case| &case.body).collect(),
            Statement::Loop { body, continuing, .. } => vec![body, continuing],
            Statement::Store { pointer, .. } => {
                let (Expression::Access { base, .. } | Expression::AccessIndex { base, .. }) =
                    function.expressions[*pointer]
                else {
                    continue;
                };
                let component = match info[base].ty.inner_with(&module.types) {
                    TypeInner::Pointer { base, space } => {
                        shared(space) && matches!(module.types[*base].inner, TypeInner::Vector { .. })
                    }
                    TypeInner::ValuePointer { size, space, .. } => shared(space) && size.is_some(),
                    _ => false,
                };
                let line = &text[span.to_range().unwrap_or_default()];
                assert!(!component, "a store to a component of a shared vector: `{line}`");
                vec![]
            }
            _ => vec![],
        };
        inside.into_iter().for_each(|block| whole_vectors(module, function, info, block, text));
    }
}
