//! The arguments of the attribute.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Path, Token};

/// `crate = path`, or nothing.
pub struct Arguments {
    library: TokenStream,
}

impl Arguments {
    /// The path of the library if nothing is said.
    pub fn usual() -> Self {
        Self { library: quote!(::vmarray::kernel) }
    }

    /// The path of the module that generated code names.
    pub fn module(&self) -> TokenStream {
        let library = &self.library;
        quote!(#library::k)
    }
}

impl Parse for Arguments {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if input.is_empty() {
            return Ok(Self::usual());
        }
        if !input.peek(Token![crate]) {
            return Err(input.error("the only argument is `crate = path::of::vmarray::kernel`"));
        }
        input.parse::<Token![crate]>()?;
        input.parse::<Token![=]>()?;
        let library = input.call(Path::parse_mod_style)?.into_token_stream();
        if input.is_empty() { Ok(Self { library }) } else { Err(input.error("nothing more is expected")) }
    }
}
