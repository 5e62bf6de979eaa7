//! Translation of a kernel's Rust expressions: to code for the host, and to the syntax tree for devices.

use crate::code::{GeneratedCode, located};
use crate::scope::VariableScope;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{BinOp, Expr, ExprBinary, ExprUnary, Lit, Type, UnOp};

/// The state of the macro while it translates the body of one kernel function.
pub struct BodyTranslation<'a> {
    /// The path of the library's module `k`, which generated code uses.
    pub k: TokenStream,
    pub name: &'a syn::Ident,
    /// True if this function, or a kernel that calls it, may have groups (thread blocks) of GPU threads.
    pub is_grouped: bool,
    /// Name of the first subgroup operation, if the body has any.
    pub lanes: Option<syn::Ident>,
    /// The functions that the body calls.
    pub callees: Vec<Callee>,
    /// The variables and loops in scope.
    pub scope: VariableScope,
    /// The types of the *slots*: generated variables whose types rustc infers.
    pub slots: Vec<TokenStream>,
    /// The types to which the syntax tree refers by index.
    pub types: Vec<TokenStream>,
    /// The constants to which the syntax tree refers by index.
    pub constants: Vec<TokenStream>,
    pub errors: Option<syn::Error>,
}

/// A function that the body calls.
pub struct Callee {
    /// The path of the callee, without generic arguments at its end.
    pub path: syn::Path,
    /// Name under which generated code imports the callee.
    pub name: syn::Ident,
    /// Number of arguments in the first call of the function.
    pub arguments: usize,
}

/// Returns the name of the generated variable for the slot `number` (whose type rustc infers).
pub fn slot_name(number: usize) -> syn::Ident {
    format_ident!("slot_{number}", span = Span::mixed_site())
}

/// Returns an operator's name in the syntax tree, and the name of the library function for it; `None` for
/// operators without a library function, such as `&&`.
pub fn operator(op: &BinOp) -> Option<(&'static str, &'static str)> {
    Some(match op {
        BinOp::Add(_) | BinOp::AddAssign(_) => ("Add", "add"),
        BinOp::Sub(_) | BinOp::SubAssign(_) => ("Sub", "sub"),
        BinOp::Mul(_) | BinOp::MulAssign(_) => ("Mul", "mul"),
        BinOp::Div(_) | BinOp::DivAssign(_) => ("Div", "div"),
        BinOp::Rem(_) | BinOp::RemAssign(_) => ("Rem", "rem"),
        BinOp::BitAnd(_) | BinOp::BitAndAssign(_) => ("And", "and"),
        BinOp::BitOr(_) | BinOp::BitOrAssign(_) => ("Or", "or"),
        BinOp::BitXor(_) | BinOp::BitXorAssign(_) => ("Xor", "xor"),
        BinOp::Shl(_) | BinOp::ShlAssign(_) => ("Shl", "shl"),
        BinOp::Shr(_) | BinOp::ShrAssign(_) => ("Shr", "shr"),
        BinOp::Eq(_) => ("Eq", "eq"),
        BinOp::Ne(_) => ("Ne", "ne"),
        BinOp::Lt(_) => ("Lt", "lt"),
        BinOp::Le(_) => ("Le", "le"),
        BinOp::Gt(_) => ("Gt", "gt"),
        BinOp::Ge(_) => ("Ge", "ge"),
        _ => return None,
    })
}

/// Returns true for a compound assignment operator, such as `+=`.
fn is_compound(op: &BinOp) -> bool {
    use BinOp::*;
    matches!(
        op,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | BitXorAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

/// Returns the expression without parentheses around it.
pub fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(inner) => bare(&inner.expr),
        Expr::Group(inner) => bare(&inner.expr),
        other => other,
    }
}

/// Returns the expression at the start of a chain of method calls.
pub fn innermost_receiver(expr: &Expr) -> &Expr {
    match bare(expr) {
        Expr::MethodCall(call) => innermost_receiver(&call.receiver),
        other => other,
    }
}

/// Returns the literal of an expression, and true if a minus precedes it.
fn literal_of(expr: &Expr) -> Option<(&Lit, bool)> {
    match bare(expr) {
        Expr::Lit(literal) => Some((&literal.lit, false)),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => match bare(expr) {
            Expr::Lit(literal) if matches!(literal.lit, Lit::Int(_) | Lit::Float(_)) => {
                Some((&literal.lit, true))
            }
            _ => None,
        },
        _ => None,
    }
}

impl BodyTranslation<'_> {
    /// Records an error with the message `text` at the tokens `at`. Returns placeholder code of any type.
    pub fn error(&mut self, at: impl ToTokens, text: impl std::fmt::Display) -> GeneratedCode {
        let error = syn::Error::new_spanned(at, text);
        match &mut self.errors {
            Some(errors) => errors.combine(error),
            none => *none = Some(error),
        }
        let k = &self.k;
        GeneratedCode::same(quote!(#k::never()), quote!(#k::TreeExpr::Bool(false)))
    }

    /// Translates an expression to a value. Records an error if the expression is a view or a position (`At`)
    /// parameter, because kernels can use only its methods and elements as values.
    pub fn value(&mut self, expr: &Expr) -> GeneratedCode {
        match self.view(expr) {
            Some((name, view)) => self.error(expr, view.as_value(&name)),
            None => self.expr(expr),
        }
    }

    /// Records an error for each attribute, because an attribute would not apply to all generated forms.
    pub fn no_attributes(&mut self, attributes: &[syn::Attribute]) {
        for attribute in attributes {
            self.error(attribute, "kernels do not support attributes here: put it on the whole function");
        }
    }

    /// Adds a slot (a variable whose type rustc infers) of the type `of`, and returns the slot's name.
    pub fn slot(&mut self, of: TokenStream) -> syn::Ident {
        let name = slot_name(self.slots.len());
        self.slots.push(of);
        name
    }

    /// Adds the type `of` to the list of types, and returns its index there, for the syntax tree.
    pub fn type_number(&mut self, of: impl ToTokens) -> u16 {
        let k = located(&self.k, of.span());
        self.types.push(quote_spanned!(of.span()=> #k::layout::<#of>()));
        (self.types.len() - 1) as u16
    }

    /// Adds `value` to the list of constants, and returns its index there, for the syntax tree.
    pub fn constant_number(&mut self, value: impl ToTokens) -> u16 {
        let k = located(&self.k, value.span());
        self.constants.push(quote_spanned!(value.span()=> #k::constant(#value)));
        (self.constants.len() - 1) as u16
    }

    /// Wraps the syntax tree `tree` in a node with the source line of `span`, for error messages.
    pub fn lined(&self, span: Span, tree: TokenStream) -> TokenStream {
        let (k, line) = (&self.k, span.unwrap().line() as u32);
        quote!(#k::TreeExpr::Line(#line, &#tree))
    }

    /// Translates an expression to its generated code.
    pub fn expr(&mut self, expr: &Expr) -> GeneratedCode {
        if let Some((literal, is_negative)) = literal_of(expr) {
            return self.literal(literal, is_negative, None);
        }
        match expr {
            Expr::Paren(inner) => self.expr(&inner.expr),
            Expr::Group(inner) => self.expr(&inner.expr),
            Expr::Path(path) => self.path(path),
            Expr::Unary(unary) => self.unary(unary),
            Expr::Binary(binary) => self.binary(binary),
            Expr::Cast(cast) => self.cast(&cast.expr, &cast.ty, cast.as_token.span),
            Expr::Index(index) => self.index(index),
            Expr::Field(field) => self.field(field),
            Expr::Tuple(tuple) => {
                let parts: Vec<GeneratedCode> = tuple.elems.iter().map(|part| self.expr(part)).collect();
                let k = self.k.clone();
                let comma = (parts.len() == 1).then(|| quote!(,));
                GeneratedCode::list(&parts)
                    .with_rust(|parts| quote!((#parts #comma)))
                    .with_tree(|parts| quote!(#k::TreeExpr::Tuple(#parts)))
            }
            Expr::Array(array) => {
                let parts: Vec<GeneratedCode> = array.elems.iter().map(|part| self.expr(part)).collect();
                let k = self.k.clone();
                GeneratedCode::list(&parts)
                    .with_rust(|parts| quote!([#parts]))
                    .with_tree(|parts| quote!(#k::TreeExpr::Array(#parts)))
            }
            Expr::Repeat(repeat) => {
                let (value, len) = (self.expr(&repeat.expr), &repeat.len);
                let k = self.k.clone();
                self.constants.push(quote_spanned!(len.span()=> #k::constant::<usize>(#len)));
                let number = (self.constants.len() - 1) as u16;
                let tree = |value| self.lined(repeat.span(), quote!(#k::TreeExpr::Repeat(&#value, #number)));
                value.with_rust(|value| quote!([#value; #len])).with_tree(tree)
            }
            Expr::Struct(literal) => self.struct_literal(literal),
            Expr::Call(call) => self.call(call),
            Expr::MethodCall(call) => self.method_call(call),
            Expr::Assign(assign) => self.assign(assign),
            Expr::If(_)
            | Expr::Match(_)
            | Expr::Loop(_)
            | Expr::While(_)
            | Expr::ForLoop(_)
            | Expr::Block(_)
            | Expr::Break(_)
            | Expr::Continue(_)
            | Expr::Return(_) => self.control(expr),
            other => self.refused(other),
        }
    }

    /// Reports an error for an expression that kernels do not support, and returns placeholder code.
    fn refused(&mut self, expr: &Expr) -> GeneratedCode {
        let text = match expr {
            Expr::Reference(_) => {
                "`&` is supported only in arguments of kernel functions: use the variable itself"
            }
            Expr::Closure(_) => {
                "kernels do not support closures: write a kernel function and pass it as a type parameter"
            }
            Expr::Macro(_) => "kernels do not support macros: write the expanded code",
            Expr::Range(_) => "ranges are supported only after `in` of a `for`: compare with both ends",
            Expr::Try(_) => "kernels do not support `?`: use `if` and `return`",
            Expr::Let(_) => "kernels do not support `let` in conditions: use `match` on a number",
            Expr::Async(_) | Expr::Await(_) => "kernels cannot be asynchronous: leave `async` out",
            Expr::Unsafe(_) => "kernels are safe: leave `unsafe` out",
            Expr::Const(_) => "put the constant outside of the function",
            Expr::Infer(_) => "`_` cannot be a value here: write the value",
            _ => "kernels do not support this part of Rust",
        };
        self.error(expr, text)
    }

    /// Translates a path: a variable, or a constant.
    fn path(&mut self, path: &syn::ExprPath) -> GeneratedCode {
        self.no_attributes(&path.attrs);
        let k = self.k.clone();
        if let Some(name) = path.path.get_ident()
            && path.qself.is_none()
            && let Some(local) = self.scope.find(&name.to_string())
        {
            let number = local.number;
            return GeneratedCode::same(quote!(#path), quote!(#k::TreeExpr::Local(#number)));
        }
        let number = self.constant_number(path);
        GeneratedCode::same(quote!(#path), quote!(#k::TreeExpr::Constant(#number)))
    }

    fn unary(&mut self, unary: &ExprUnary) -> GeneratedCode {
        let span = unary.op.span();
        let k = located(&self.k, span);
        match unary.op {
            UnOp::Neg(_) => GeneratedCode::of(
                [&self.value(&unary.expr)],
                |[of]| quote_spanned!(span=> #k::neg(#of)),
                |[of]| quote!(#k::TreeExpr::Call("neg", &[#of])),
            ),
            UnOp::Not(_) => GeneratedCode::of(
                [&self.value(&unary.expr)],
                |[of]| quote_spanned!(span=> #k::not(#of)),
                |[of]| quote!(#k::TreeExpr::Call("not", &[#of])),
            ),
            UnOp::Deref(_) if self.view(&unary.expr).is_some() => self.value(&unary.expr),
            UnOp::Deref(_) if self.reference(&unary.expr).is_some() => {
                let of = self.expr(&unary.expr);
                of.with_rust(|of| quote!((*#of))).with_tree(|of| quote!(#k::TreeExpr::Deref(&#of)))
            }
            _ => self.error(unary, "`*` is supported only for reference parameters: leave it out"),
        }
    }

    fn binary(&mut self, binary: &ExprBinary) -> GeneratedCode {
        self.no_attributes(&binary.attrs);
        if is_compound(&binary.op) {
            return self.compound(binary);
        }
        let (left, right) = (self.value(&binary.left), self.value(&binary.right));
        let k = self.k.clone();
        match binary.op {
            BinOp::And(and) => GeneratedCode::of(
                [&left, &right],
                |[left, right]| quote!((#left #and #right)),
                |[left, right]| quote!(#k::TreeExpr::Both(&#left, &#right)),
            ),
            BinOp::Or(or) => GeneratedCode::of(
                [&left, &right],
                |[left, right]| quote!((#left #or #right)),
                |[left, right]| quote!(#k::TreeExpr::Either(&#left, &#right)),
            ),
            op => self.operation(&op, &left, &right),
        }
    }

    /// Translates a binary operator, given the code of its operands.
    pub fn operation(&mut self, op: &BinOp, left: &GeneratedCode, right: &GeneratedCode) -> GeneratedCode {
        let k = located(&self.k, op.span());
        let Some((operator, function)) = operator(op) else {
            return self.error(op, "kernels do not support this operator");
        };
        let name = syn::Ident::new(operator, Span::call_site());
        let function = syn::Ident::new(function, op.span());
        GeneratedCode::of(
            [left, right],
            |[left, right]| quote_spanned!(op.span()=> #k::#function(#left, #right)),
            |[left, right]| quote!(#k::TreeExpr::Binary(#k::Operator::#name, &#left, &#right)),
        )
    }

    fn cast(&mut self, of: &Expr, to: &Type, span: Span) -> GeneratedCode {
        if let Type::Infer(_) = to {
            return self.error(to, "kernels do not support `as _`: name the type");
        }
        let name = to.to_token_stream().to_string();
        if let Some((literal, is_negative)) = literal_of(of)
            && (!is_negative || !name.starts_with('u'))
            && crate::methods::NUMBER_TYPES.contains(&name.as_str())
            && (matches!(literal, Lit::Float(_)) == name.starts_with('f'))
            && matches!(literal, Lit::Int(_) | Lit::Float(_))
            && !has_suffix(literal)
        {
            return self.literal(literal, is_negative, Some(&name));
        }
        let (of, number) = (self.value(of), self.type_number(to));
        let k = located(&self.k, span);
        GeneratedCode::of(
            [&of],
            |[of]| quote_spanned!(span=> #k::cast::<_, #to>(#of)),
            |[of]| quote!(#k::TreeExpr::Cast(&#of, #number)),
        )
    }

    fn struct_literal(&mut self, literal: &syn::ExprStruct) -> GeneratedCode {
        self.no_attributes(&literal.attrs);
        let (path, mut fields) = (&literal.path, Vec::new());
        for field in &literal.fields {
            self.no_attributes(&field.attrs);
            let (name, value) = (&field.member, self.expr(&field.expr));
            let text = name.to_token_stream().to_string();
            fields.push(
                value.with_rust(|value| quote!(#name: #value)).with_tree(|value| quote!((#text, #value))),
            );
        }
        let fields = GeneratedCode::list(&fields);
        let code = match &literal.rest {
            Some(rest) => GeneratedCode::of(
                [&fields, &self.expr(rest)],
                |[fields, rest]| quote!(#path { #fields, ..#rest }),
                |[fields, rest]| quote!(#fields, Some(&#rest)),
            ),
            None => {
                fields.with_rust(|fields| quote!(#path { #fields })).with_tree(|fields| quote!(#fields, None))
            }
        };
        self.structure(code)
    }

    /// Translates a struct literal whose type rustc infers. `code` has the literal's Rust code; its tree has
    /// the fields, and the base struct (`..base`) if there is one.
    pub fn structure(&mut self, code: GeneratedCode) -> GeneratedCode {
        let (k, number) = (self.k.clone(), self.slots.len() as u16);
        let slot = self.slot(quote!(#k::Of<_>));
        let GeneratedCode { host, slots, tree } = code;
        GeneratedCode {
            host,
            slots: quote!(#slot.is(#slots)),
            tree: quote!(#k::TreeExpr::Struct(#number, #tree)),
        }
    }
}

fn has_suffix(literal: &Lit) -> bool {
    match literal {
        Lit::Int(int) => !int.suffix().is_empty(),
        Lit::Float(float) => !float.suffix().is_empty(),
        _ => false,
    }
}
