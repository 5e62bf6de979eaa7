//! Translation of a kernel's calls of kernel functions and of methods.

use crate::body::{BodyTranslation, Callee, bare};
use crate::code::{GeneratedCode, located};
use crate::methods::{self, Method, NUMBER_TYPES};
use crate::view::ViewParameter;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprCall, ExprMethodCall, ExprPath, Ident};

impl BodyTranslation<'_> {
    /// Translates a call, `f(a, b)`.
    pub fn call(&mut self, call: &ExprCall) -> GeneratedCode {
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
            if is_parameter || NUMBER_TYPES.contains(&before.as_str()) {
                return self.call_number(callee, &last.ident, call);
            }
        }
        if name == "from_f32" && callee.path.segments.len() > 2 && call.args.len() == 1 {
            return self.nearest_half(callee, call);
        }
        if name == "new" && callee.path.segments.iter().rev().nth(1).is_some_and(|of| of.ident == "Complex") {
            let arguments: Vec<GeneratedCode> =
                call.args.iter().map(|argument| self.expr(argument)).collect();
            let k = located(&self.k, call.span());
            let callee = quote_spanned!(call.span()=> #k::derived_math::complex);
            return self.call_function(callee.clone(), callee, &arguments, call.span());
        }
        if callee.path.get_ident().is_some_and(|name| self.scope.find(&name.to_string()).is_some()) {
            let text = "functions are not values in kernels: use a type parameter, `F: Function<…>`, \
                        and write `F::call((…))`";
            return self.error(callee, text);
        }
        if name.starts_with(|first: char| first.is_uppercase()) {
            return self.tuple_struct(callee, call);
        }
        if callee.path.segments.iter().rev().nth(1).is_some_and(|of| is_type(&of.ident)) {
            return self.error(callee, methods::associated(&callee.to_token_stream().to_string()));
        }
        let arguments: Vec<GeneratedCode> =
            call.args.iter().map(|argument| self.argument(argument)).collect();
        let typed = self.callee(callee, arguments.len());
        self.call_function(callee.to_token_stream(), typed, &arguments, call.span())
    }

    /// Records a called function. Returns the name of its type, with its generic arguments.
    fn callee(&mut self, callee: &ExprPath, arguments: usize) -> TokenStream {
        let mut path = callee.path.clone();
        let generics = path
            .segments
            .last_mut()
            .map(|last| std::mem::replace(&mut last.arguments, syn::PathArguments::None));
        let text = path.to_token_stream().to_string();
        let is_known = |known: &&Callee| known.path.to_token_stream().to_string() == text;
        let known = self.callees.iter().find(is_known).map(|known| known.name.clone());
        let name = known.unwrap_or_else(|| {
            let name = quote::format_ident!("callee_{}", self.callees.len(), span = callee.span());
            self.callees.push(Callee { path, name: name.clone(), arguments });
            name
        });
        quote!(#name #generics)
    }

    /// Translates `alloc::<T>(n)`.
    fn alloc(&mut self, last: &syn::PathSegment, call: &ExprCall) -> GeneratedCode {
        let of = match &last.arguments {
            syn::PathArguments::AngleBracketed(arguments) => match arguments.args.first() {
                Some(syn::GenericArgument::Type(of)) if arguments.args.len() == 1 => Some(of),
                _ => None,
            },
            _ => None,
        };
        let (Some(of), 1) = (of, call.args.len()) else {
            return self.error(call, "give the type and the number of elements: `alloc::<f32>(n)`");
        };
        let (len, number, span) = (self.expr(&call.args[0]), self.type_number(of), call.span());
        let k = located(&self.k, span);
        let tree = |[len]: [&TokenStream; 1]| self.lined(span, quote!(#k::TreeExpr::Alloc(&#len, #number)));
        GeneratedCode::of([&len], |[len]| quote_spanned!(span=> #k::alloc::<#of>(#len)), tree)
    }

    fn barrier(&mut self, call: &ExprCall) -> GeneratedCode {
        if !call.args.is_empty() {
            return self.error(&call.args, "`barrier()` takes no arguments");
        }
        if !self.is_grouped {
            return self.ungrouped(call, "a barrier needs groups of items");
        }
        let span = call.span();
        let k = located(&self.k, span);
        let tree = self.lined(span, quote!(#k::TreeExpr::Call("barrier", &[])));
        GeneratedCode::same(quote_spanned!(span=> #k::barrier()), tree)
    }

    /// Reports an error for a group operation in a kernel without groups.
    fn ungrouped(&mut self, at: impl ToTokens, text: &str) -> GeneratedCode {
        self.error(at, format!("{text}: set their length, `#[kernel(group = 64)]`"))
    }

    /// Translates `lanes::sum(x)` and similar operations across lanes.
    fn call_lanes(&mut self, name: &Ident, call: &ExprCall) -> GeneratedCode {
        let text = name.to_string();
        let Some(takes) = methods::lanes(&text) else {
            let text = format!("`lanes` has no operation `{text}`: use `lanes::sum`, `min`, `max`, …");
            return self.error(name, text);
        };
        if !self.is_grouped {
            return self.ungrouped(name, "operations across lanes need groups of items");
        }
        self.lanes.get_or_insert_with(|| name.clone());
        if call.args.len() != takes {
            return self.error(name, format!("`lanes::{text}` takes {}", methods::count(takes)));
        }
        let span = name.span();
        let (k, text) = (located(&self.k, span), format!("lanes_{text}"));
        let arguments: Vec<GeneratedCode> = call.args.iter().map(|argument| self.expr(argument)).collect();
        let tree = |arguments| self.lined(span, quote!(#k::TreeExpr::Call(#text, #arguments)));
        GeneratedCode::list(&arguments)
            .with_rust(|arguments| quote_spanned!(span=> #k::lanes::#name(#arguments)))
            .with_tree(tree)
    }

    /// Translates a call of the kernel function at a path.
    fn call_function(
        &mut self,
        callee: TokenStream,
        typed: TokenStream,
        arguments: &[GeneratedCode],
        span: proc_macro2::Span,
    ) -> GeneratedCode {
        let number = self.slots.len() as u16;
        let k = self.k.clone();
        let slot = self.slot(quote!(#k::Call<_>));
        let arguments = GeneratedCode::list(arguments);
        let (host, slots, trees) = (&arguments.host, &arguments.slots, &arguments.tree);
        GeneratedCode {
            host: quote_spanned!(span=> #callee(#host)),
            slots: quote_spanned!(span=> #typed::typed(&#slot, #typed)(#slots)),
            tree: self.lined(span, quote!(#k::TreeExpr::CallSlot(#number, #trees))),
        }
    }

    /// Translates `F::call(arguments)`, if `F` is a type parameter.
    fn call_parameter(&mut self, callee: &ExprPath, call: &ExprCall) -> GeneratedCode {
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
        GeneratedCode {
            host: quote_spanned!(span=> #k::call::<#of, _, _>(#host)),
            slots: quote_spanned!(span=> #k::typed_call(&#slot, #slots)),
            tree: self.lined(span, quote!(#k::TreeExpr::CallTuple(#number, &#trees))),
        }
    }

    /// Translates `f32::max(a, b)`: a method of numbers, called as a function.
    fn call_number(&mut self, callee: &ExprPath, name: &Ident, call: &ExprCall) -> GeneratedCode {
        let k = self.k.clone();
        if name == "from_bits" && call.args.len() == 1 {
            let of = &callee.path.segments[0].ident;
            let (bits, number) = (self.expr(&call.args[0]), self.type_number(of));
            return GeneratedCode::of(
                [&bits],
                |[bits]| quote_spanned!(name.span()=> #k::from_bits::<#of>(#bits)),
                |[bits]| quote!(#k::TreeExpr::FromBits(&#bits, #number)),
            );
        }
        if call.args.is_empty() {
            return self.error(call, "kernels do not support this function of numbers");
        }
        let arguments: Vec<&Expr> = call.args.iter().collect();
        self.method(name, &arguments)
    }

    /// Translates `f16::from_f32(x)`, for any 16-bit float type.
    fn nearest_half(&mut self, callee: &ExprPath, call: &ExprCall) -> GeneratedCode {
        let mut of = callee.path.clone();
        of.segments.pop();
        of.segments.pop_punct();
        let (number, span) = (self.type_number(&of), call.span());
        let k = located(&self.k, span);
        let value = self.expr(&call.args[0]);
        value
            .with_rust(|value| quote_spanned!(span=> #k::from_f32::<#of>(#value)))
            .with_tree(|value| quote!(#k::TreeExpr::FromF32(&#value, #number)))
    }

    /// Translates `Pair(a, b)`, the literal of a tuple struct.
    fn tuple_struct(&mut self, callee: &ExprPath, call: &ExprCall) -> GeneratedCode {
        let fields: Vec<GeneratedCode> = call.args.iter().map(|argument| self.expr(argument)).collect();
        let trees = fields.iter().enumerate().map(|(at, field)| {
            let (name, tree) = (at.to_string(), &field.tree);
            quote!((#name, #tree))
        });
        let tree = quote!(&[#(#trees),*], None);
        let code =
            GeneratedCode::list(&fields).with_rust(|fields| quote!(#callee(#fields))).with_tree(|_| tree);
        self.structure(code)
    }

    /// Translates a call of a method, `x.f(a, b)`.
    pub fn method_call(&mut self, call: &ExprMethodCall) -> GeneratedCode {
        self.no_attributes(&call.attrs);
        if let Some(turbofish) = &call.turbofish {
            return self.error(turbofish, "methods in kernels have no type parameters: leave them out");
        }
        let arguments: Vec<&Expr> = [&*call.receiver].into_iter().chain(&call.args).collect();
        self.method(&call.method, &arguments)
    }

    /// Translates a method of a number or a view, which is the first of `arguments`.
    fn method(&mut self, method: &Ident, arguments: &[&Expr]) -> GeneratedCode {
        let name = method.to_string();
        if let Some(text) = self.wrong_method(&name, arguments[0]) {
            return self.error(method, text);
        }
        let span = method.span();
        let k = located(&self.k, span);
        let Some((kind, takes)) = methods::find(&name, arguments.len() - 1) else {
            return match bare(arguments[0]) {
                // In a chain of methods, report the first unknown method only.
                Expr::MethodCall(inner)
                    if methods::find(&inner.method.to_string(), inner.args.len()).is_none() =>
                {
                    self.method_call(inner)
                }
                _ => self.error(method, methods::advice(&name)),
            };
        };
        if arguments.len() != takes + 1 {
            return self.error(method, format!("`{name}` takes {}", methods::count(takes)));
        }
        let mut codes = Vec::with_capacity(arguments.len());
        for (at, argument) in arguments.iter().enumerate() {
            // Pass the view itself to the view's own methods, not a value that is read from the view.
            codes.push(if at == 0 && kind == Method::View {
                self.expr(argument)
            } else {
                self.value(argument)
            });
        }
        match kind {
            Method::Number => {
                let tree = |arguments| self.lined(span, quote!(#k::TreeExpr::Call(#name, #arguments)));
                let rust = |arguments| quote_spanned!(span=> #k::#method(#arguments));
                GeneratedCode::list(&codes).with_rust(rust).with_tree(tree)
            }
            Method::Composed => {
                let callee = quote_spanned!(span=> #k::derived_math::#method);
                self.call_function(callee.clone(), callee, &codes, span)
            }
            Method::View => {
                let fitted = self.fitted(&name, arguments[0], &codes[1..], &arguments[1..]);
                let rest = GeneratedCode::list(&fitted);
                let rust = |[of, rest]: [&TokenStream; 2]| quote!(#of.#method(#rest));
                let tree = |[of, rest]: [&TokenStream; 2]| {
                    self.lined(span, quote!(#k::TreeExpr::Method(&#of, #name, #rest)))
                };
                GeneratedCode::of([&codes[0], &rest], rust, tree)
            }
        }
    }

    /// Wraps the arguments of a view's method, so that rustc gives advice if one has a wrong type.
    fn fitted(
        &self,
        name: &str,
        view: &Expr,
        codes: &[GeneratedCode],
        arguments: &[&Expr],
    ) -> Vec<GeneratedCode> {
        // Check only indices that must be numbers: group memory, for example, also accepts arrays.
        let has_numbers = match self.view(view) {
            Some((_, view)) => {
                matches!(view, ViewParameter::Shared | ViewParameter::At(_) | ViewParameter::Rows)
            }
            None => self.reference(view).is_none(),
        };
        let values = match name {
            "acquire" | "plus" | "row_len" => 0,
            "compare_exchange" => 2,
            _ => 1,
        };
        let fit = |(at, (code, argument)): (usize, (&GeneratedCode, &&Expr))| {
            let span = argument.span();
            let k = located(&self.k, span);
            let is_element = at + values >= codes.len();
            // Skip the check if rustc's own error message is clear.
            if !is_element && !has_numbers || matches!(bare(argument), Expr::Call(_)) {
                return code.clone();
            }
            let of = Ident::new(if is_element { "element" } else { "index" }, span);
            code.clone().with_rust(|code| quote_spanned!(span=> #k::ViewArgument(#code).#of()))
        };
        codes.iter().zip(arguments).enumerate().map(fit).collect()
    }

    /// Returns the error text for a method that a view does not have, or does not have in this kernel.
    fn wrong_method(&self, name: &str, of: &Expr) -> Option<String> {
        let (of, view) = self.view(of)?;
        match (name, view) {
            ("index", ViewParameter::At(Some(2..))) => {
                Some(format!("`{of}` has several axes: write `{of}[0]`, `{of}[1]` and so on"))
            }
            ("in_group" | "group" | "groups", ViewParameter::At(_)) if !self.is_grouped => {
                Some("this kernel has no groups: set their length, `#[kernel(group = 64)]`".into())
            }
            ("set", ViewParameter::Own { is_mutable: false }) => {
                Some(format!("`{of}` is read-only: use `{of}: &mut Own<T>`"))
            }
            (
                "set",
                ViewParameter::Anywhere(_)
                | ViewParameter::Window
                | ViewParameter::Rows
                | ViewParameter::Append,
            ) => Some(view.as_element(&of)),
            (
                "get",
                ViewParameter::Anywhere(_)
                | ViewParameter::Window
                | ViewParameter::Rows
                | ViewParameter::Group
                | ViewParameter::Shared,
            ) => Some(view.as_value(&of)),
            _ if methods::find(name, 0).is_none() && !methods::is_iterator(name) => {
                Some(view.without_method(&of, name))
            }
            _ => None,
        }
    }

    /// Translates an argument of a kernel function, which may be a reference to a variable.
    fn argument(&mut self, argument: &Expr) -> GeneratedCode {
        let Expr::Reference(reference) = bare(argument) else { return self.expr(argument) };
        let (of, mutability) = (self.plain_place(&reference.expr), &reference.mutability);
        let k = self.k.clone();
        of.with_rust(|of| quote!(&#mutability #of)).with_tree(|of| quote!(#k::TreeExpr::Reference(&#of)))
    }
}

/// Returns true if an identifier is the name of a type by Rust's convention: it begins with a capital.
fn is_type(name: &Ident) -> bool {
    name.to_string().starts_with(|first: char| first.is_uppercase())
}
