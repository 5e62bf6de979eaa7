//! The derive macro `KernelType`, which makes a struct a type of values in kernels.

use crate::arguments::AttributeArguments;
use crate::code::located;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Member, Result};

/// Generates the implementation of the trait `KernelType` for a struct.
pub fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let mut arguments = AttributeArguments::usual();
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("kernel_type")) {
        arguments = attribute.parse_args()?;
    }
    let (k, name) = (arguments.module(), &input.ident);
    let Data::Struct(data) = &input.data else {
        let text = "kernels support only structs: for an enum use a number for each variant, and `match` on \
                    it";
        return Err(Error::new_spanned(name, text));
    };
    if let Some(lifetime) = input.generics.lifetimes().next() {
        return Err(Error::new_spanned(
            lifetime,
            "kernel values cannot hold references: leave lifetimes out",
        ));
    }
    let members: Vec<Member> = data.fields.members().collect();
    let types: Vec<_> = data.fields.iter().map(|field| &field.ty).collect();
    let fields = members.iter().zip(&types).map(|(member, of)| {
        let text = member.to_token_stream().to_string();
        let k = located(&k, of.span());
        quote_spanned!(of.span()=> #k::field::<#of>(#text, ::core::mem::offset_of!(Self, #member)))
    });
    let mut generics = input.generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(syn::parse_quote!(#k::KernelType));
    }
    let (implemented, of, condition) = generics.split_for_impl();
    let zeros = members.iter().zip(&types).map(|(member, of)| {
        let k = located(&k, of.span());
        quote_spanned!(of.span()=> #member: <#of as #k::KernelType>::ZERO)
    });
    let values = members.iter().zip(&types).map(|(member, of)| {
        let k = located(&k, of.span());
        quote_spanned!(of.span()=> <#of as #k::KernelType>::values(self.#member, into);)
    });
    let taken = members.iter().zip(&types).map(|(member, of)| {
        let k = located(&k, of.span());
        quote_spanned!(of.span()=> #member: <#of as #k::KernelType>::of_values(next))
    });
    let text = name.to_string();
    Ok(quote! {
        #[automatically_derived]
        impl #implemented #k::KernelType for #name #of #condition {
            const ZERO: Self = Self { #(#zeros),* };

            fn layout() -> #k::Layout {
                #k::Layout::Struct {
                    name: #text,
                    fields: ::std::vec![#(#fields),*],
                    bytes: ::core::mem::size_of::<Self>(),
                }
            }

            fn values(self, into: &mut ::std::vec::Vec<u64>) {
                #(#values)*
            }

            fn of_values(next: &mut impl ::core::ops::FnMut() -> u64) -> Self {
                Self { #(#taken),* }
            }
        }
    })
}
