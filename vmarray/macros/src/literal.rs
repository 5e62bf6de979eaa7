//! Translation of a kernel's literals.

use crate::body::BodyTranslation;
use crate::code::GeneratedCode;
use crate::methods::NUMBER_TYPES;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::Lit;

/// Returns the digits and the suffix (which may be empty) of a number literal; `None` for other literals.
fn number(literal: &Lit) -> Option<(String, String)> {
    match literal {
        Lit::Int(int) => Some((int.base10_digits().into(), int.suffix().into())),
        Lit::Float(float) => Some((float.base10_digits().into(), float.suffix().into())),
        Lit::Byte(byte) => Some((byte.value().to_string(), "u8".into())),
        _ => None,
    }
}

impl BodyTranslation<'_> {
    /// Translates a literal to an expression, negated if `is_negative`. `of` is the target type if the
    /// literal is the operand of a cast.
    pub fn literal(&mut self, literal: &Lit, is_negative: bool, of: Option<&str>) -> GeneratedCode {
        let k = &self.k;
        if let Lit::Bool(truth) = literal {
            let value = truth.value;
            return GeneratedCode::same(literal.to_token_stream(), quote!(#k::TreeExpr::Bool(#value)));
        }
        let Some((digits, suffix)) = number(literal) else {
            return self.error(literal, "kernels support numbers and `bool`: write letters as `b'a'`");
        };
        let minus = is_negative.then(|| quote_spanned!(literal.span()=> -));
        let text = if is_negative { format!("-{digits}") } else { digits };
        let known = of.filter(|_| suffix.is_empty()).unwrap_or(&suffix);
        if known.is_empty() {
            let number = self.slots.len() as u16;
            let slot = self.slot(quote!(#k::Lit<_>));
            let k = &self.k;
            return GeneratedCode {
                host: quote!(#minus #literal),
                slots: quote_spanned!(literal.span()=> #slot.is(#minus #literal)),
                tree: quote!(#k::TreeExpr::Literal(#number, #text)),
            };
        }
        if !NUMBER_TYPES.contains(&known) {
            return self.error(literal, "kernels support integers of at most 64 bits, `f32` and `f64`");
        }
        let of = syn::Ident::new(known, literal.span());
        let rust = if suffix.is_empty() { quote!(#minus #literal as #of) } else { quote!(#minus #literal) };
        let kind = self.kind(known);
        let k = &self.k;
        GeneratedCode::same(quote!((#rust)), quote!(#k::TreeExpr::Number(#kind, #text)))
    }

    /// Translates a literal in a pattern to code for the syntax tree.
    pub fn literal_pattern(&mut self, literal: &Lit) -> TokenStream {
        let k = self.k.clone();
        if let Lit::Bool(truth) = literal {
            let value = if truth.value { "1" } else { "0" };
            return quote!(#k::Pattern::Literal(#value));
        }
        match number(literal) {
            Some((digits, _)) => quote!(#k::Pattern::Literal(#digits)),
            None => {
                self.error(literal, "patterns in kernels are numbers and `bool`: write letters as `b'a'`");
                quote!(#k::Pattern::Wild)
            }
        }
    }

    /// Returns the `Type` of the syntax tree for the name of a Rust number type.
    fn kind(&self, name: &str) -> TokenStream {
        let k = &self.k;
        let name = match name {
            "usize" => "U64".to_owned(),
            "isize" => "I64".to_owned(),
            other => other.to_uppercase(),
        };
        let name = syn::Ident::new(&name, proc_macro2::Span::call_site());
        quote!(#k::Type::#name)
    }
}
