//! Guide to the kernels: which one to use for what. The code of every page runs as a test; [`pallas_rt::guide`]
//! explains how to write your own kernels.
//!
//! | you compute | take | page |
//! |---|---|---|
//! | a product of matrices, with activation or scale | [`crate::matmul`] | [`products`] |
//! | the same of bytes, or with weights in 8 or 4 bits | [`crate::matmul::matmul_int8`], [`crate::quantized_matmul`] | [`products`] |
//! | softmax or log-softmax of rows, and back | [`crate::softmax`], [`crate::softmax_backward`] | [`rows`] |
//! | layer norm or RMS norm, and back | [`crate::norm`], [`crate::norm_backward`] | [`rows`] |
//! | SwiGLU or GEGLU, and back | [`crate::gated`] | [`rows`] |
//! | attention of many queries, and back | [`crate::flash_attention`], [`crate::flash_attention_backward`] | [`attention`] |
//! | attention under a mask with large holes, and back | [`crate::splash_attention`] | [`attention`] |
//! | attention of a few queries over a long cache | [`crate::decode_attention`] | [`attention`] |
//! | requests of different lengths, a cache in pages | [`crate::paged_attention`] | [`attention`] |
//! | rotary positions | [`crate::rotary`] | [`language_models`] |
//! | token embedding, and back | [`crate::embedding`] | [`language_models`] |
//! | the loss of a large vocabulary, and back | [`crate::cross_entropy`] | [`language_models`] |
//!
//! All of them take f32, f16 and bf16, compute in f32, and give the same bits at every call on the same device. Sizes
//! need not
//!

/// Declares the pages of the guide: empty modules, each documented by the file of its name in `kernels/guide`.
macro_rules! pages {
    ($($page:ident: $title:literal,)*) => {$(
        #[doc = concat!($title, "\n\n", include_str!(concat!("../guide/", stringify!($page), ".md")))]
        pub mod $page {}
    )*};
}
pages! {
    products: "Products of matrices.",
    rows: "Operations on rows, and elementwise ones.",
    attention: "Attention.",
    language_models: "The ends of a language model.",
}
