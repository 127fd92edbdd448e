//! What every platform does with a shader.

/// Parses, validates and writes a shader for every platform.
pub fn validate(text: &str) {
    let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let mut validator =
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
    let info = validator.validate(&module).unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
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
