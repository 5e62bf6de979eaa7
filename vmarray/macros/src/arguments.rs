//! Parsing of the arguments of the attribute `#[kernel]`.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Expr, Ident, Path, Token};

/// The arguments of `#[kernel]`, all optional: `crate = path`, and `group = length` or `group = [rows,
/// columns]`.
pub struct AttributeArguments {
    library: TokenStream,
    /// The group length: a number of items (GPU threads), or the extents of a tile of the result.
    pub group: Option<Expr>,
}

impl AttributeArguments {
    /// Returns the defaults, for an attribute without arguments: the path `vmarray::kernel`, and no groups.
    pub fn usual() -> Self {
        Self { library: quote!(::vmarray::kernel), group: None }
    }

    /// Returns the path of the library's module `k`, which has the functions and types for generated code.
    pub fn module(&self) -> TokenStream {
        let library = &self.library;
        quote!(#library::k)
    }
}

impl Parse for AttributeArguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut arguments = Self::usual();
        while !input.is_empty() {
            if input.peek(Token![crate]) {
                input.parse::<Token![crate]>()?;
                input.parse::<Token![=]>()?;
                arguments.library = input.call(Path::parse_mod_style)?.into_token_stream();
            } else if input.peek(Ident) && input.fork().parse::<Ident>()? == "group" {
                input.parse::<Ident>()?;
                input.parse::<Token![=]>()?;
                arguments.group = Some(input.parse()?);
            } else {
                return Err(input.error("expected `group = LENGTH` or `crate = path::of::vmarray::kernel`"));
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(arguments)
    }
}
