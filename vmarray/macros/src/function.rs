//! Expansion of `#[kernel]` for a whole function.

use crate::arguments::AttributeArguments;
use crate::body::{BodyTranslation, slot_name};
use crate::code::{GeneratedCode, located};
use crate::control::turns;
use crate::scope::VariableScope;
use crate::spans::placed;
use crate::view::{self, ViewParameter};
use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, FnArg, GenericParam, Generics, ItemFn, Pat, Signature, Type};

/// Names of the parameter types for items. A function without such a parameter cannot be launched.
const PLACED: [&str; 8] = ["At", "Own", "Anywhere", "Rows", "Window", "Group", "Shared", "Append"];
/// Maximum length of a tuple of slots in generated code.
const SLOTS_MAX: usize = 8;

/// The patterns and the types of a function's parameters.
struct Parameters<'a> {
    patterns: Vec<&'a Pat>,
    types: Vec<&'a Type>,
}

/// Generates the output of `#[kernel]` for a function.
pub fn expand(arguments: &AttributeArguments, function: &ItemFn) -> TokenStream {
    let mut body = BodyTranslation {
        k: arguments.module(),
        name: &function.sig.ident,
        is_grouped: arguments.group.is_some() || !needs_own_group(&function.sig),
        lanes: None,
        callees: Vec::new(),
        scope: VariableScope::default(),
        slots: Vec::new(),
        types: Vec::new(),
        constants: Vec::new(),
        errors: None,
    };
    let parameters = check(&mut body, &function.sig);
    if let Some(errors) = &body.errors {
        // The signature is invalid, so emit no kernel. The emitted function uses the types of the parameters,
        // so that rustc does not report their imports as unused.
        let (errors, unused) = (errors.to_compile_error(), refused_form(function));
        return quote!(#errors #unused);
    }
    let patterns: Vec<TokenStream> = parameters
        .patterns
        .iter()
        .zip(&parameters.types)
        .map(|(pattern, of)| {
            let tree = body.pattern(pattern, matches!(of, Type::Reference(_)));
            if let Pat::Ident(_) = pattern {
                body.scope.is_view(ViewParameter::of(of));
            }
            tree
        })
        .collect();
    let mut code = body.block(&function.block, None);
    if body.errors.is_some() {
        let k = &body.k;
        code = GeneratedCode::same(quote!({ #k::never() }), quote!(#k::TreeExpr::Bool(false)));
        (body.slots, body.types, body.constants) = (Vec::new(), Vec::new(), Vec::new());
        body.callees.clear();
    }
    if body.scope.has_targets() {
        let (k, turns, host) = (&body.k, turns(), &code.host);
        code.host = quote!({
            #[allow(unused_mut, unused_variables)]
            let mut #turns = #k::Turns::new();
            #host
        });
    }
    let at = function.sig.ident.span();
    (code.host, code.slots) = (placed(code.host, at), placed(code.slots, at));
    let host = host_form(function, &code, body.errors.is_some());
    let of = type_form(&body, arguments, function, &parameters, &patterns, &code);
    let errors = body.errors.map(|errors| errors.to_compile_error());
    quote!(#host #of #errors)
}

/// Reports errors for unsupported parts of a signature, and returns its parameters.
fn check<'a>(body: &mut BodyTranslation<'_>, signature: &'a Signature) -> Parameters<'a> {
    let mut parameters = Parameters { patterns: Vec::new(), types: Vec::new() };
    if let Some(word) = &signature.asyncness {
        body.error(word, "kernels cannot be asynchronous: leave `async` out");
    }
    if let Some(word) = &signature.unsafety {
        body.error(word, "kernels are safe: leave `unsafe` out");
    }
    if let Some(word) = &signature.constness {
        body.error(word, "kernels do not run at compile time: leave `const` out");
    }
    if let Some(abi) = &signature.abi {
        body.error(abi, "kernels have the calling convention of Rust: leave `extern` out");
    }
    for parameter in &signature.generics.params {
        match parameter {
            GenericParam::Lifetime(lifetime) => {
                body.error(lifetime, "kernels do not support lifetimes: leave them out");
            }
            GenericParam::Type(of) => {
                body.scope.type_parameters.insert(of.ident.to_string());
            }
            GenericParam::Const(_) => {}
        }
    }
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(receiver) => {
                body.error(receiver, "kernels are functions, not methods: use `value: Type`");
            }
            FnArg::Typed(input) => {
                body.no_attributes(&input.attrs);
                check_type(body, &input.ty, true);
                if let Some(text) =
                    ViewParameter::of(&input.ty).and_then(|view| view.wrong_reference(&input.ty))
                {
                    body.error(&input.ty, text);
                }
                if let Some((element, text)) = view::wrong_element(&input.ty) {
                    body.error(element, text);
                }
                parameters.patterns.push(&input.pat);
                parameters.types.push(&input.ty);
            }
        }
    }
    if let syn::ReturnType::Type(_, of) = &signature.output {
        check_type(body, of, false);
    }
    parameters
}

/// Reports errors for unknown types, and for references except a parameter's outermost one.
fn check_type(body: &mut BodyTranslation<'_>, of: &Type, may_refer: bool) {
    let text = match of {
        Type::Reference(reference) if may_refer => {
            if let Some(lifetime) = &reference.lifetime {
                body.error(lifetime, "kernels do not support lifetimes: leave them out");
            }
            return check_type(body, &reference.elem, false);
        }
        Type::Reference(_) => "references within a type are not supported: leave this one out",
        Type::Slice(_) => {
            "kernels need the length: write `&[T; N]`, or `&Anywhere<T>` for elements of an array"
        }
        Type::Ptr(_) => "kernels have no pointers: use `&Anywhere<T>` and an index",
        Type::ImplTrait(_) => "name the type: `fn f<T: Trait>(x: T)`",
        Type::TraitObject(_) => "kernels need all types at compile time: use a type parameter",
        Type::BareFn(_) => {
            "functions are type parameters: `F: Function<(A, B), C>`, called by `F::call((a, b))`"
        }
        Type::Never(_) => "kernels must return: return a value, or nothing",
        Type::Array(array) => return check_type(body, &array.elem, false),
        Type::Tuple(tuple) => return tuple.elems.iter().for_each(|part| check_type(body, part, false)),
        Type::Path(path) => {
            match path.path.segments.last().and_then(|last| unknown_type(&last.ident.to_string())) {
                Some(text) => text,
                None => return,
            }
        }
        Type::Paren(inner) => return check_type(body, &inner.elem, may_refer),
        Type::Group(inner) => return check_type(body, &inner.elem, may_refer),
        _ => return,
    };
    body.error(of, text);
}

/// Returns the error text for a type of Rust's library that kernels do not support.
fn unknown_type(name: &str) -> Option<&'static str> {
    Some(match name {
        "Option" | "Result" => "kernels do not support `Option` and `Result`: use a value and a `bool`",
        "String" | "str" => "kernels have no strings: use bytes, `&Anywhere<u8>`",
        "Vec" | "Box" | "Rc" | "Arc" | "HashMap" | "HashSet" | "BTreeMap" | "VecDeque" => {
            "kernels have no heap: use `&Anywhere<T>` or `&[T; N]`"
        }
        "u128" | "i128" => "kernels support integers of at most 64 bits: use two `u64`",
        "char" => "kernels do not support `char`: use a `u8` or `u32`",
        _ => return None,
    })
}

/// Generates the host form: the Rust function that the program can call.
fn host_form(function: &ItemFn, code: &GeneratedCode, is_refused: bool) -> TokenStream {
    let ItemFn { attrs, vis, sig, .. } = function;
    let body = &code.host;
    // An empty body replaces a body with errors, so suppress warnings about unused parameters.
    let unused = is_refused.then(|| quote!(#[allow(unused)]));
    quote! {
        #(#attrs)*
        // Suppress lints about the generated code that the user's own code does not cause.
        #[allow(unused_braces, unused_parens, clippy::too_many_arguments, clippy::let_and_return, clippy::unit_arg)]
        #[allow(clippy::useless_conversion, clippy::needless_return, clippy::blocks_in_conditions)]
        #[allow(clippy::redundant_field_names, clippy::zero_prefixed_literal, clippy::suspicious_else_formatting)]
        #[allow(clippy::explicit_auto_deref, clippy::needless_borrow, clippy::borrow_deref_ref, clippy::double_parens)]
        #[allow(clippy::toplevel_ref_arg, clippy::manual_map, clippy::let_unit_value, clippy::unnecessary_operation)]
        #[allow(clippy::no_effect, clippy::unused_unit, clippy::question_mark, clippy::collapsible_else_if)]
        #[allow(clippy::collapsible_if, clippy::needless_bool, clippy::nonminimal_bool, clippy::redundant_else)]
        #[allow(clippy::semicolon_if_nothing_returned, clippy::deref_addrof, clippy::possible_missing_comma)]
        #[allow(clippy::suspicious_assignment_formatting, clippy::suspicious_unary_op_formatting)]
        #unused
        #vis #sig #body
    }
}

/// Generates an empty function for a signature with errors: rustc then reports no type as unused.
fn refused_form(function: &ItemFn) -> Option<TokenStream> {
    let has_receiver = matches!(function.sig.inputs.first(), Some(FnArg::Receiver(_)));
    let returns_trait = match &function.sig.output {
        syn::ReturnType::Type(_, of) => matches!(**of, Type::ImplTrait(_)),
        syn::ReturnType::Default => false,
    };
    let (vis, sig) = (&function.vis, &function.sig);
    let is_function = !has_receiver && !returns_trait && sig.asyncness.is_none();
    is_function.then(|| quote!(#[allow(warnings)] #vis #sig { loop {} }))
}

/// Returns the type of a function's result.
fn output_type(signature: &Signature) -> TokenStream {
    match &signature.output {
        syn::ReturnType::Default => quote!(()),
        syn::ReturnType::Type(_, of) => of.to_token_stream(),
    }
}

/// Generates the type that has the function's name, with the definition for lowering.
fn type_form(
    body: &BodyTranslation<'_>,
    arguments: &AttributeArguments,
    function: &ItemFn,
    parameters: &Parameters<'_>,
    trees: &[TokenStream],
    code: &GeneratedCode,
) -> TokenStream {
    let (k, name, vis) = (&body.k, body.name, &function.vis);
    let generics = &function.sig.generics;
    let (implemented, of, condition) = generics.split_for_impl();
    let (patterns, types) = (&parameters.patterns, &parameters.types);
    let output = output_type(&function.sig);
    let line = name.span().unwrap().line() as u32;
    let marker = type_parameters(generics);
    let (slot_patterns, slot_types) = nested(&body.slots);
    let (locals, text, slots, tree) = (body.scope.locals(), name.to_string(), &code.slots, &code.tree);
    let (layouts, constants) = (&body.types, &body.constants);
    let callees = callee_names(body);
    let is_placed = types.iter().any(|of| is_placed(of));
    let launched = is_placed.then(|| kernel_impl(body, arguments, &function.sig, parameters));
    let callable = (!types.iter().any(|of| matches!(of, Type::Reference(_))) && !is_placed)
        .then(|| function_impl(body, generics, types, &output));
    let refused_launches = (!is_placed).then(|| refused_launches(body, generics));
    quote! {
        #[doc(hidden)]
        #[allow(non_camel_case_types, missing_docs, dead_code, missing_debug_implementations)]
        #vis struct #name #generics #condition {
            parameters: ::core::marker::PhantomData<fn() -> (#(#marker,)*)>,
        }

        #[allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]
        const _: () = {
            impl #implemented #name #of #condition {
                #[doc(hidden)]
                #vis fn typed(_: &#k::Call<Self>, _: fn(#(#types),*) -> #output) -> fn(#(#types),*) -> #output {
                    #k::never()
                }
            }

            impl #implemented #k::Define for #name #of #condition {
                fn define() -> #k::Definition {
                    #callees
                    static TREE: #k::Tree = #k::Tree {
                        name: #text,
                        file: ::core::file!(),
                        line: #line,
                        locals: #locals,
                        parameters: &[#(#trees),*],
                        body: #tree,
                    };
                    let slots = #k::slots(|#slot_patterns: #slot_types| -> #output {
                        let (#(#patterns,)*): (#(#types,)*) = #k::never();
                        #slots
                    });
                    #k::Definition {
                        tree: &TREE,
                        slots,
                        types: ::std::vec![#(#layouts),*],
                        constants: ::std::vec![#(#constants),*],
                    }
                }
            }

            #launched
            #callable
            #refused_launches
        };
    }
}

/// Returns the function's type parameters, for a marker field that names them.
fn type_parameters(generics: &Generics) -> Vec<TokenStream> {
    generics.type_params().map(|parameter| parameter.ident.to_token_stream()).collect()
}

/// Generates imports of the called functions, as types and as values. A function without `#[kernel]` has no
/// type of its name. In this case the fallback type in the module `others` applies, and rustc reports an
/// error for the function. A missing function has neither a type nor a value; rustc reports it in the host
/// form.
fn callee_names(body: &BodyTranslation<'_>) -> TokenStream {
    if body.callees.is_empty() {
        return TokenStream::new();
    }
    let k = &body.k;
    let imports = body.callees.iter().map(|callee| {
        let (path, name) = (&callee.path, &callee.name);
        // Define a macro of the callee's name: the import then succeeds even if no function has this name.
        let any = path.get_ident().map(|path| quote!(macro_rules! #path { () => {}; }));
        quote_spanned!(path.span()=> #any use #path as #name;)
    });
    let names: Vec<_> = body.callees.iter().map(|callee| &callee.name).collect();
    let typed = body.callees.iter().map(|callee| {
        let name = &callee.name;
        let arguments: Vec<_> = (0..callee.arguments).map(|at| format_ident!("A{at}")).collect();
        quote! {
            impl others::#name {
                fn typed<V: #k::CalledByKernels, #(#arguments,)* R>(
                    _: &#k::Call<#k::PlainFunction>,
                    _: V,
                ) -> fn(#(#arguments),*) -> R {
                    #k::never()
                }
            }
        }
    });
    quote! {
        #(#imports)*
        mod others {
            #(pub struct #names {})*
            #(pub static #names: &() = &();)*
        }
        use others::*;
        #(#typed)*
    }
}

/// Returns true if a function can be launched and takes no group memory: it must declare its own groups.
fn needs_own_group(signature: &Signature) -> bool {
    let types = || {
        signature.inputs.iter().filter_map(|input| match input {
            FnArg::Typed(input) => Some(&*input.ty),
            FnArg::Receiver(_) => None,
        })
    };
    types().any(is_placed) && !types().any(|of| ViewParameter::of(of) == Some(ViewParameter::Group))
}

/// Returns true for a parameter type for items, such as `At` or `Own`.
fn is_placed(of: &Type) -> bool {
    match of {
        Type::Reference(reference) => is_placed(&reference.elem),
        of => is_a(of, &PLACED),
    }
}

/// Returns true for a parameter type that takes no argument of the program.
fn is_given_by_launch(of: &Type) -> bool {
    match of {
        Type::Reference(reference) => is_a(&reference.elem, &["Group"]),
        of => is_a(of, &["At"]),
    }
}

/// Returns true if a type has one of these names.
fn is_a(of: &Type, names: &[&str]) -> bool {
    let Type::Path(path) = of else { return false };
    path.path.segments.last().is_some_and(|last| names.contains(&last.ident.to_string().as_str()))
}

/// Generates the implementation of the trait `Kernel`, with which a program launches the function.
fn kernel_impl(
    body: &BodyTranslation<'_>,
    arguments: &AttributeArguments,
    signature: &Signature,
    parameters: &Parameters<'_>,
) -> TokenStream {
    let (k, name) = (&body.k, body.name);
    let (implemented, of, condition) = signature.generics.split_for_impl();
    let turbofish = of.as_turbofish();
    let returned = match &signature.output {
        syn::ReturnType::Default => quote!(()),
        // Use the span of the type, so that rustc reports errors there.
        syn::ReturnType::Type(_, of) => quote_spanned!(of.span()=> #of),
    };
    let taken: Vec<TokenStream> = parameters.types.iter().map(|of| static_type(of)).collect();
    // Each type as a `Parameter`, with the user's span, so that rustc reports errors there.
    let lasting: Vec<TokenStream> = taken
        .iter()
        .zip(&parameters.types)
        .map(|(taken, of)| {
            let k = located(k, of.span());
            quote_spanned!(of.span()=> <#taken as #k::Parameter>)
        })
        .collect();
    let names: Vec<_> = (0..lasting.len()).map(|number| format_ident!("source_{number}")).collect();
    let texts = parameters.patterns.iter().map(|pattern| match pattern {
        Pat::Ident(ident) => ident.ident.to_string(),
        other => other.to_token_stream().to_string(),
    });
    let group = arguments.group.as_ref().map(|extents| group_method(body, extents, signature));
    let check = arguments.group.as_ref().filter(|_| signature.generics.params.is_empty()).map(|extents| {
        let check = group_check(body, extents);
        quote!(const _: () = #check;)
    });
    // Leave out positions (`At`) and group memory, because the launch itself provides them.
    let given: Vec<&TokenStream> = taken
        .iter()
        .zip(&parameters.types)
        .filter(|(_, of)| !is_given_by_launch(of))
        .map(|(taken, _)| taken)
        .collect();
    let item_methods = item_methods(k, &names, &lasting, &quote!(kernel_function_of_items #turbofish));
    let code = quote! {
        // Import the function under another name, because a parameter below can have the function's name.
        use #name as kernel_function_of_items;

        #check

        impl #implemented #k::Kernel for #name #of #condition {
            type Sources<'s> = (#(#lasting::Source<'s>,)*);
            type Bound<'s> = ((#(#lasting::Bound<'s>,)*), #k::Returning<'s, #returned>);
            type Parameters = (#(#given,)*);
            type Returned = #returned;

            #group

            fn parameters() -> ::std::vec::Vec<#k::ParameterInfo> {
                let mut all = ::std::vec::Vec::new();
                #(#lasting::infos(#texts, &mut all);)*
                all
            }

            #item_methods
        }
    };
    placed(code, name.span())
}

/// Returns a parameter's type with static lifetimes instead of the reference's own.
fn static_type(of: &Type) -> TokenStream {
    match of {
        Type::Reference(reference) => {
            let (mutability, of) = (&reference.mutability, &reference.elem);
            quote!(&'static #mutability #of)
        }
        other => quote!(#other),
    }
}

/// Generates the method that returns the extents of the kernel's groups.
fn group_method(body: &BodyTranslation<'_>, extents: &Expr, signature: &Signature) -> TokenStream {
    let all: Vec<&Expr> = match extents {
        Expr::Array(extents) => extents.elems.iter().collect(),
        len => vec![len],
    };
    let extent = |extent: &&Expr| {
        let k = located(&body.k, extent.span());
        quote_spanned!(extent.span()=> #k::group_extent(#extent))
    };
    let all = all.iter().map(extent);
    // If the group length depends on generic parameters, the generated code checks the length of each
    // instance.
    let checked = (!signature.generics.params.is_empty()).then(|| group_check(body, extents));
    let checked = checked.map(|check| quote!(const { #check };));
    quote! {
        fn group() -> ::std::vec::Vec<u32> {
            #checked
            ::std::vec![#(#all),*]
        }
    }
}

/// Generates the methods that bind arguments and run items on the host. The arguments are the names and types
/// of the parameters, and the function.
fn item_methods(
    k: &TokenStream,
    names: &[Ident],
    lasting: &[TokenStream],
    function: &TokenStream,
) -> TokenStream {
    quote! {
        fn bound(sources: Self::Sources<'_>) -> Self::Bound<'_> {
            let (#(#names,)*) = sources;
            ((#(#lasting::bound(#names),)*), #k::Returning::nowhere())
        }

        fn given<'s>(given: &mut #k::LaunchArguments<'_, 's>) -> Self::Bound<'s> {
            ((#(#lasting::given(given),)*), #k::Returning::given(given))
        }

        fn begin(bound: &mut Self::Bound<'_>, items: &::core::ops::Range<u64>) {
            let ((#(#names,)*), returned) = bound;
            #(#lasting::begin(#names, items);)*
            returned.begin(items);
        }

        #[inline(always)]
        fn run_item(bound: &mut Self::Bound<'_>, item: #k::Item) {
            let ((#(#names,)*), returned) = bound;
            returned.put(item, #function(#(#lasting::of_item(#names, item)),*));
        }

        fn end(bound: &mut Self::Bound<'_>) {
            let ((#(#names,)*), returned) = bound;
            #(#lasting::end(#names);)*
            returned.end();
        }

        fn arguments(sources: Self::Sources<'_>) -> ::std::vec::Vec<#k::InterpreterArgument<'_>> {
            let (#(#names,)*) = sources;
            let mut all = ::std::vec::Vec::new();
            #(#lasting::arguments(#names, &mut all);)*
            all
        }
    }
}

/// Generates the compile-time check of a group's length.
fn group_check(body: &BodyTranslation<'_>, extents: &Expr) -> TokenStream {
    let extents = match extents {
        Expr::Array(extents) => extents.to_token_stream(),
        len => quote_spanned!(len.span()=> [#len]),
    };
    let at = extents.span();
    let k = located(&body.k, at);
    let lanes = body.lanes.as_ref().map(|name| {
        let k = located(&body.k, name.span());
        quote_spanned!(name.span()=> #k::check_lanes(&#extents))
    });
    let check = quote_spanned!(at=> #k::check_group(&#extents));
    quote!({ #check; #lanes })
}

/// Generates the code that refuses launches of a function with only value parameters.
fn refused_launches(body: &BodyTranslation<'_>, generics: &Generics) -> TokenStream {
    let (k, name) = (&body.k, body.name);
    let (implemented, of, condition) = generics.split_for_impl();
    let launches = [("run", 1), ("run_async", 1), ("sum", 1), ("run_in", 2), ("launch", 0)];
    let functions = launches.map(|(name, arguments)| {
        let name = format_ident!("{name}");
        let types: Vec<_> = (0..arguments).map(|at| format_ident!("LaunchArgument{at}")).collect();
        quote! {
            #[doc(hidden)]
            pub fn #name<'launch, #(#types,)* LaunchResult>(#(_: #types),*) -> LaunchResult
            where
                &'launch #k::FunctionOfValues: #k::LaunchedForItems,
            {
                #k::never()
            }
        }
    });
    quote! {
        impl #implemented #name #of #condition {
            #(#functions)*
        }
    }
}

/// Generates the implementation of the trait `Function`, for use of the kernel as a type parameter.
fn function_impl(
    body: &BodyTranslation<'_>,
    generics: &Generics,
    types: &[&Type],
    output: &TokenStream,
) -> TokenStream {
    let (k, name) = (&body.k, body.name);
    let (implemented, of, condition) = generics.split_for_impl();
    let turbofish = of.as_turbofish();
    let names: Vec<_> = (0..types.len()).map(|number| format_ident!("argument_{number}")).collect();
    quote! {
        impl #implemented #k::Function<(#(#types,)*), #output> for #name #of #condition {
            fn call((#(#names,)*): (#(#types,)*)) -> #output {
                #name #turbofish(#(#names),*)
            }
        }
    }
}

/// Nests slots in tuples. Returns the tuples as a pattern and as a type.
fn nested(slots: &[TokenStream]) -> (TokenStream, TokenStream) {
    let mut parts: Vec<(TokenStream, TokenStream)> = slots
        .iter()
        .enumerate()
        .map(|(number, of)| (slot_name(number).into_token_stream(), of.clone()))
        .collect();
    loop {
        let tuples: Vec<(TokenStream, TokenStream)> = parts
            .chunks(SLOTS_MAX)
            .map(|chunk| {
                let (patterns, types): (Vec<_>, Vec<_>) = chunk.iter().cloned().unzip();
                (quote!((#(#patterns,)*)), quote!((#(#types,)*)))
            })
            .collect();
        match <[_; 1]>::try_from(tuples) {
            Ok([whole]) => return whole,
            Err(tuples) if tuples.is_empty() => return (quote!(()), quote!(())),
            Err(tuples) => parts = tuples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_nested_in_tuples_of_eight() {
        let slots = |number| nested(&vec![quote!(S); number]).1.to_string().replace(' ', "");
        assert_eq!(slots(0), "()");
        assert_eq!(slots(1), "(S,)");
        assert_eq!(slots(8), "(S,S,S,S,S,S,S,S,)");
        assert_eq!(slots(9), "((S,S,S,S,S,S,S,S,),(S,),)");
        assert_eq!(slots(65).matches('S').count(), 65);
        assert!(slots(65).starts_with("(((S,"));
    }
}
