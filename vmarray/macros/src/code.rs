//! The code that `#[kernel]` generates for a part of a kernel, in three forms: Rust code for the host, Rust
//! code for type inference, and a syntax tree.

use proc_macro2::{Span, TokenStream};
use quote::quote;

/// Returns a path with another span for error messages, and with unchanged name resolution.
pub fn located(path: &TokenStream, at: Span) -> TokenStream {
    let located = path.clone().into_iter().map(|mut token| {
        token.set_span(token.span().located_at(at));
        token
    });
    located.collect()
}

/// An expression, a statement or a block in three forms.
#[derive(Clone)]
pub struct GeneratedCode {
    /// The host form: Rust code that runs the kernel on the host.
    pub host: TokenStream,
    /// The form for type inference, with literals and callees in slots.
    pub slots: TokenStream,
    /// The syntax tree.
    pub tree: TokenStream,
}

impl GeneratedCode {
    /// Returns code with the same Rust tokens in the host form and in the form for type inference.
    pub fn same(rust: TokenStream, tree: TokenStream) -> Self {
        Self { host: rust.clone(), slots: rust, tree }
    }

    /// Builds code from parts. The function `rust` combines the parts of the host form, and of the form for
    /// type inference; `tree` combines their syntax trees.
    pub fn of<const N: usize>(
        parts: [&Self; N],
        rust: impl Fn([&TokenStream; N]) -> TokenStream,
        tree: impl FnOnce([&TokenStream; N]) -> TokenStream,
    ) -> Self {
        Self {
            host: rust(parts.map(|part| &part.host)),
            slots: rust(parts.map(|part| &part.slots)),
            tree: tree(parts.map(|part| &part.tree)),
        }
    }

    /// Returns a list of parts: separated by commas in the two forms of Rust code, and a slice in the tree.
    pub fn list(parts: &[Self]) -> Self {
        let rust = |form: fn(&Self) -> &TokenStream| {
            let parts = parts.iter().map(form);
            quote!(#(#parts),*)
        };
        let trees = parts.iter().map(|part| &part.tree);
        Self { host: rust(|part| &part.host), slots: rust(|part| &part.slots), tree: quote!(&[#(#trees),*]) }
    }

    /// Returns the same code with another host form.
    pub fn with_host(self, host: TokenStream) -> Self {
        Self { host, ..self }
    }

    /// Returns the same code with another syntax tree.
    pub fn with_tree(self, tree: impl FnOnce(TokenStream) -> TokenStream) -> Self {
        Self { tree: tree(self.tree), ..self }
    }

    /// Returns the same code after `rust` has changed the host form and the form for type inference.
    pub fn with_rust(self, rust: impl Fn(TokenStream) -> TokenStream) -> Self {
        Self { host: rust(self.host), slots: rust(self.slots), tree: self.tree }
    }
}
