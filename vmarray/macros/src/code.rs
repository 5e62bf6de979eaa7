//! The code that `#[kernel]` generates for a part of a kernel, in three forms: Rust code that runs on the
//! host, Rust code from which rustc infers types, and a syntax tree for devices.

use proc_macro2::{Span, TokenStream};
use quote::quote;

/// Returns `path` with the source location of `at`: rustc reports errors there. Names resolve as before.
pub fn located(path: &TokenStream, at: Span) -> TokenStream {
    let located = path.clone().into_iter().map(|mut token| {
        token.set_span(token.span().located_at(at));
        token
    });
    located.collect()
}

/// The generated code of an expression, a statement or a block, in three forms.
#[derive(Clone)]
pub struct GeneratedCode {
    /// The host form: Rust code that computes the result on the host.
    pub host: TokenStream,
    /// The form for type inference: Rust code with slots (variables of inferred type) for literals and calls.
    pub slots: TokenStream,
    /// The syntax tree, from which the library generates code for devices.
    pub tree: TokenStream,
}

impl GeneratedCode {
    /// Creates code whose host form and form for type inference have the same Rust tokens.
    pub fn same(rust: TokenStream, tree: TokenStream) -> Self {
        Self { host: rust.clone(), slots: rust, tree }
    }

    /// Combines the code of `parts`. The function `rust` combines the host forms, and then the forms for type
    /// inference; `tree` combines the syntax trees.
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

    /// Combines the code of `parts` to a list: separated by commas in Rust code, and a slice in the tree.
    pub fn list(parts: &[Self]) -> Self {
        let rust = |form: fn(&Self) -> &TokenStream| {
            let parts = parts.iter().map(form);
            quote!(#(#parts),*)
        };
        let trees = parts.iter().map(|part| &part.tree);
        Self { host: rust(|part| &part.host), slots: rust(|part| &part.slots), tree: quote!(&[#(#trees),*]) }
    }

    /// Replaces the host form.
    pub fn with_host(self, host: TokenStream) -> Self {
        Self { host, ..self }
    }

    /// Replaces the syntax tree by the result of `tree`.
    pub fn with_tree(self, tree: impl FnOnce(TokenStream) -> TokenStream) -> Self {
        Self { tree: tree(self.tree), ..self }
    }

    /// Replaces the host form and the form for type inference by the results of `rust`.
    pub fn with_rust(self, rust: impl Fn(TokenStream) -> TokenStream) -> Self {
        Self { host: rust(self.host), slots: rust(self.slots), tree: self.tree }
    }
}
