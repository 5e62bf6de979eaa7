//! Calls of kernel functions, and methods.

use crate::body::{Body, bare};
use crate::code::{Code, located};
use crate::literal::NUMBERS;
use crate::methods::{self, Method};
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprCall, ExprMethodCall, ExprPath, Ident};

impl Body<'_> {
    /// `f(a, b)`.
    pub fn call(&mut self, call: &ExprCall) -> Code {
        self.no_attributes(&call.attrs);
        let Expr::Path(callee) = bare(&call.func) else {
            return self.error(&call.func, "call a kernel function by its name");
        };
        let Some(last) = callee.path.segments.last().filter(|_| callee.qself.is_none()) else {
            return self.error(callee, "call a kernel function by its name");
        };
        let name = last.ident.to_string();
        let before = (callee.path.segments.len() == 2).then(|| callee.path.segments[0].ident.to_string());
        if name == "alloc" && callee.path.segments.len() == 1 {
            return self.alloc(last, call);
        }
        if callee.path.is_ident("barrier") && self.scope.find("barrier").is_none() {
            return self.barrier(call);
        }
        if let Some(before) = before {
            let is_parameter = self.scope.type_parameters.contains(&before);
            if is_parameter && name == "call" {
                return self.call_parameter(callee, call);
            }
            if before == "lanes" {
                return self.call_lanes(&last.ident, call);
            }
            if name == "from_f32" && call.args.len() == 1 {
                return self.nearest_half(callee, call);
            }
            if is_parameter || NUMBERS.contains(&before.as_str()) {
                return self.call_number(callee, &last.ident, call);
            }
        }
        if name == "from_f32" && callee.path.segments.len() > 2 && call.args.len() == 1 {
            return self.nearest_half(callee, call);
        }
        if name == "new" && callee.path.segments.iter().rev().nth(1).is_some_and(|of| of.ident == "Complex") {
            let arguments: Vec<Code> = call.args.iter().map(|argument| self.expr(argument)).collect();
            let k = located(&self.k, call.span());
            return self.call_function(
                quote_spanned!(call.span()=> #k::composed::complex),
                &arguments,
                call.span(),
            );
        }
        if callee.path.get_ident().is_some_and(|name| self.scope.find(&name.to_string()).is_some()) {
            let text = "functions are no values in kernels: take one as a type parameter, `F: Function<…>`, \
                        and write `F::call((…))`";
            return self.error(callee, text);
        }
        if name.starts_with(|first: char| first.is_uppercase()) {
            return self.tuple_struct(callee, call);
        }
        let arguments: Vec<Code> = call.args.iter().map(|argument| self.argument(argument)).collect();
        self.call_function(callee.to_token_stream(), &arguments, call.span())
    }

    /// `alloc::<T>(n)`.
    fn alloc(&mut self, last: &syn::PathSegment, call: &ExprCall) -> Code {
        let of = match &last.arguments {
            syn::PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
                Some(syn::GenericArgument::Type(of)) if arguments.args.len() == 1 => Some(of),
                _ => None,
            },
            _ => None,
        };
        let (Some(of), 1) = (of, call.args.len()) else {
            return self.error(call, "say of which elements, and how many: `alloc::<f32>(n)`");
        };
        let (len, number, span) = (self.expr(&call.args[0]), self.type_number(of), call.span());
        let k = located(&self.k, span);
        let tree = |[len]: [&TokenStream; 1]| self.lined(span, quote!(#k::Expr::Alloc(&#len, #number)));
        Code::of([&len], |[len]| quote_spanned!(span=> #k::alloc::<#of>(#len)), tree)
    }

    /// `barrier()`.
    fn barrier(&mut self, call: &ExprCall) -> Code {
        if !call.args.is_empty() {
            return self.error(&call.args, "`barrier()` takes no arguments");
        }
        let span = call.span();
        let k = located(&self.k, span);
        let tree = self.lined(span, quote!(#k::Expr::Call("barrier", &[])));
        Code::same(quote_spanned!(span=> #k::barrier()), tree)
    }

    /// `lanes::sum(x)` and similar calls.
    fn call_lanes(&mut self, name: &Ident, call: &ExprCall) -> Code {
        let text = name.to_string();
        let Some(takes) = methods::lanes(&text) else {
            return self.error(name, "there is no such operation across lanes");
        };
        if call.args.len() != takes {
            return self.error(name, format!("`lanes::{text}` takes {takes} arguments"));
        }
        let span = name.span();
        let (k, text) = (located(&self.k, span), format!("lanes_{text}"));
        let arguments: Vec<Code> = call.args.iter().map(|argument| self.expr(argument)).collect();
        let tree = |arguments| self.lined(span, quote!(#k::Expr::Call(#text, #arguments)));
        Code::list(&arguments)
            .with_rust(|arguments| quote_spanned!(span=> #k::lanes::#name(#arguments)))
            .with_tree(tree)
    }

    /// A call of the kernel function at a path.
    fn call_function(&mut self, callee: TokenStream, arguments: &[Code], span: proc_macro2::Span) -> Code {
        let number = self.slots.len() as u16;
        let k = self.k.clone();
        let slot = self.slot(quote!(#k::Call<_>));
        let arguments = Code::list(arguments);
        let (host, slots, trees) = (&arguments.host, &arguments.slots, &arguments.tree);
        Code {
            host: quote_spanned!(span=> #callee(#host)),
            slots: quote_spanned!(span=> #callee::typed(&#slot, #slots)),
            tree: self.lined(span, quote!(#k::Expr::CallSlot(#number, #trees))),
        }
    }

    /// `F::call(arguments)` of a type parameter.
    fn call_parameter(&mut self, callee: &ExprPath, call: &ExprCall) -> Code {
        let of = &callee.path.segments[0].ident;
        if call.args.len() != 1 {
            return self.error(&call.args, "`F::call` takes the arguments as one tuple: `F::call((a, b))`");
        }
        let number = self.slots.len() as u16;
        let k = self.k.clone();
        let slot = self.slot(quote!(#k::Call<#of>));
        let arguments = self.expr(&call.args[0]);
        let span = call.span();
        let trees = &arguments.tree;
        let (host, slots) = (&arguments.host, &arguments.slots);
        Code {
            host: quote_spanned!(span=> #k::call::<#of, _, _>(#host)),
            slots: quote_spanned!(span=> #k::typed_call(&#slot, #slots)),
            tree: self.lined(span, quote!(#k::Expr::CallTuple(#number, &#trees))),
        }
    }

    /// `f32::max(a, b)`: a method of numbers as a function.
    fn call_number(&mut self, callee: &ExprPath, name: &Ident, call: &ExprCall) -> Code {
        let k = self.k.clone();
        if name == "from_bits" && call.args.len() == 1 {
            let of = &callee.path.segments[0].ident;
            let (bits, number) = (self.expr(&call.args[0]), self.type_number(of));
            return Code::of(
                [&bits],
                |[bits]| quote_spanned!(name.span()=> #k::from_bits::<#of>(#bits)),
                |[bits]| quote!(#k::Expr::FromBits(&#bits, #number)),
            );
        }
        if call.args.is_empty() {
            return self.error(call, "kernels do not know this function of numbers");
        }
        let arguments: Vec<&Expr> = call.args.iter().collect();
        self.method(name, &arguments)
    }

    /// `f16::from_f32(x)`, for any 16-bit type.
    fn nearest_half(&mut self, callee: &ExprPath, call: &ExprCall) -> Code {
        let mut of = callee.path.clone();
        of.segments.pop();
        of.segments.pop_punct();
        let (number, span) = (self.type_number(&of), call.span());
        let k = located(&self.k, span);
        let value = self.expr(&call.args[0]);
        value
            .with_rust(|value| quote_spanned!(span=> #k::from_f32::<#of>(#value)))
            .with_tree(|value| quote!(#k::Expr::FromF32(&#value, #number)))
    }

    /// `Pair(a, b)`, the literal of a struct whose fields have numbers.
    fn tuple_struct(&mut self, callee: &ExprPath, call: &ExprCall) -> Code {
        let fields: Vec<Code> = call.args.iter().map(|argument| self.expr(argument)).collect();
        let trees = fields.iter().enumerate().map(|(at, field)| {
            let (name, tree) = (at.to_string(), &field.tree);
            quote!((#name, #tree))
        });
        let tree = quote!(&[#(#trees),*], None);
        let code = Code::list(&fields).with_rust(|fields| quote!(#callee(#fields))).with_tree(|_| tree);
        self.structure(code)
    }

    /// `x.f(a, b)`.
    pub fn method_call(&mut self, call: &ExprMethodCall) -> Code {
        self.no_attributes(&call.attrs);
        if let Some(turbofish) = &call.turbofish {
            return self.error(turbofish, "methods of kernels have no parameters: leave this out");
        }
        let arguments: Vec<&Expr> = [&*call.receiver].into_iter().chain(&call.args).collect();
        self.method(&call.method, &arguments)
    }

    /// A method of a number or a view, the first argument.
    fn method(&mut self, method: &Ident, arguments: &[&Expr]) -> Code {
        let name = method.to_string();
        let span = method.span();
        let k = located(&self.k, span);
        let Some((kind, takes)) = methods::find(&name, arguments.len() - 1) else {
            return self.error(method, methods::advice(&name));
        };
        if arguments.len() != takes + 1 {
            return self.error(method, format!("`{name}` takes {takes} arguments"));
        }
        let codes: Vec<Code> = arguments.iter().map(|argument| self.expr(argument)).collect();
        match kind {
            Method::Number => {
                let tree = |arguments| self.lined(span, quote!(#k::Expr::Call(#name, #arguments)));
                let rust = |arguments| quote_spanned!(span=> #k::#method(#arguments));
                Code::list(&codes).with_rust(rust).with_tree(tree)
            }
            Method::Composed => {
                self.call_function(quote_spanned!(span=> #k::composed::#method), &codes, span)
            }
            Method::View => {
                let rest = Code::list(&codes[1..]);
                let rust = |[of, rest]: [&TokenStream; 2]| quote!(#of.#method(#rest));
                let tree = |[of, rest]: [&TokenStream; 2]| {
                    self.lined(span, quote!(#k::Expr::Method(&#of, #name, #rest)))
                };
                Code::of([&codes[0], &rest], rust, tree)
            }
        }
    }

    /// An argument of a kernel function, which may be a reference to a variable.
    fn argument(&mut self, argument: &Expr) -> Code {
        let Expr::Reference(reference) = bare(argument) else { return self.expr(argument) };
        let (of, mutability) = (self.plain_place(&reference.expr), &reference.mutability);
        let k = self.k.clone();
        of.with_rust(|of| quote!(&#mutability #of)).with_tree(|of| quote!(#k::Expr::Reference(&#of)))
    }
}
