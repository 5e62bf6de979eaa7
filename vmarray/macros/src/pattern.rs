//! Translation of the patterns in a kernel's `let` and `match`.

use crate::body::BodyTranslation;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::{Expr, Pat, RangeLimits};

impl BodyTranslation<'_> {
    /// Translates a pattern to code for the syntax tree, and declares its variables. `is_reference` is true
    /// for a parameter whose type is a reference.
    pub fn pattern(&mut self, pattern: &Pat, is_reference: bool) -> TokenStream {
        let k = self.k.clone();
        match pattern {
            Pat::Wild(_) => quote!(#k::Pattern::Wild),
            Pat::Paren(inner) => self.pattern(&inner.pat, is_reference),
            Pat::Type(typed) => self.pattern(&typed.pat, is_reference),
            Pat::Ident(ident) => self.identifier_pattern(ident, is_reference),
            Pat::Tuple(tuple) => {
                let parts: Vec<TokenStream> =
                    tuple.elems.iter().map(|part| self.pattern(part, false)).collect();
                quote!(#k::Pattern::Tuple(&[#(#parts),*]))
            }
            Pat::Struct(fields) => {
                let mut parts = Vec::new();
                for field in &fields.fields {
                    let (name, part) =
                        (field.member.to_token_stream().to_string(), self.pattern(&field.pat, false));
                    parts.push(quote!((#name, #part)));
                }
                quote!(#k::Pattern::Struct(&[#(#parts),*]))
            }
            Pat::Lit(literal) => self.literal_pattern(&literal.lit),
            Pat::Range(range) => {
                let is_closed = matches!(range.limits, RangeLimits::Closed(_));
                let [start, end] = [&range.start, &range.end].map(|end| match end {
                    Some(end) => {
                        let end = self.end_of_range(end);
                        quote!(Some(&#end))
                    }
                    None => quote!(None),
                });
                quote!(#k::Pattern::Range(#start, #end, #is_closed))
            }
            Pat::Or(alternatives) => {
                let before = self.scope.enter();
                let parts: Vec<TokenStream> =
                    alternatives.cases.iter().map(|part| self.pattern(part, false)).collect();
                if self.scope.enter() > before {
                    self.error(pattern, "bind the whole pattern: `name @ (a | b)`");
                }
                quote!(#k::Pattern::Or(&[#(#parts),*]))
            }
            Pat::Path(path) => {
                let number = self.constant_number(path);
                quote!(#k::Pattern::Constant(#number))
            }
            other => self.refused_pattern(other),
        }
    }

    fn identifier_pattern(&mut self, ident: &syn::PatIdent, is_reference: bool) -> TokenStream {
        let k = self.k.clone();
        self.no_attributes(&ident.attrs);
        if ident.by_ref.is_some() {
            self.error(ident, "leave `ref` out: kernel values are copied");
        }
        let name = ident.ident.to_string();
        let is_constant = name.starts_with(|first: char| first.is_uppercase());
        if is_constant && ident.mutability.is_none() && ident.subpat.is_none() {
            let number = self.constant_number(&ident.ident);
            return quote!(#k::Pattern::Constant(#number));
        }
        // Translate the subpattern after `@` before the name is declared: the subpattern cannot use the name.
        let inner = match &ident.subpat {
            Some((_, inner)) => {
                let inner = self.pattern(inner, false);
                quote!(Some(&#inner))
            }
            None => quote!(None),
        };
        let number = self.scope.declare(name, is_reference).number;
        let is_mutable = ident.mutability.is_some();
        quote!(#k::Pattern::Bind(#number, #is_mutable, #inner))
    }

    fn refused_pattern(&mut self, pattern: &Pat) -> TokenStream {
        if let Pat::Verbatim(_) | Pat::Const(_) | Pat::Macro(_) = pattern {
            self.error(pattern, "compare with a number, a range, or a constant in capitals");
        } else if let Pat::Reference(_) = pattern {
            self.error(pattern, "leave `&` out: kernel values are copied");
        } else if let Pat::Rest(_) = pattern {
            self.error(pattern, "name all parts, or write `_` for each");
        } else if let Pat::Slice(_) = pattern {
            self.error(pattern, "kernels do not support array patterns: use indices, `a[0]`");
        } else {
            self.error(
                pattern,
                "kernels support only patterns of tuples, structs, numbers and `bool`: use \
                                 these",
            );
        }
        let k = &self.k;
        quote!(#k::Pattern::Wild)
    }

    /// Translates the start or end of a range pattern: a number or a constant.
    fn end_of_range(&mut self, end: &Expr) -> TokenStream {
        let k = self.k.clone();
        match end {
            Expr::Lit(literal) => self.literal_pattern(&literal.lit),
            Expr::Path(path) => {
                let number = self.constant_number(path);
                quote!(#k::Pattern::Constant(#number))
            }
            other => self.error(other, "write a number or a constant").tree,
        }
    }
}
