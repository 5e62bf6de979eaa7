//! Translation of a kernel's reads of elements and fields, and of assignments to them.

use crate::body::{BodyTranslation, bare, operator};
use crate::code::{GeneratedCode, located};
use crate::scope::Local;
use crate::view::ViewParameter;
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprAssign, ExprBinary, ExprField, ExprIndex, UnOp};

/// A step from a variable to the part of it that an assignment writes: a field, or an index.
enum Step {
    Field(TokenStream),
    /// The name of the generated variable with the index, and the index's span.
    Index(syn::Ident, Span),
}

impl BodyTranslation<'_> {
    /// Returns the local variable that an expression names, if any.
    fn local(&self, expr: &Expr) -> Option<Local> {
        let Expr::Path(path) = bare(expr) else { return None };
        self.scope.find(&path.path.get_ident()?.to_string())
    }

    /// Returns the parameter with a reference type that an expression names, if any.
    pub fn reference(&self, expr: &Expr) -> Option<Local> {
        self.local(expr).filter(|local| local.is_reference)
    }

    /// Returns the name and the kind of the view or position parameter that an expression names, if any.
    pub fn view(&self, expr: &Expr) -> Option<(String, ViewParameter)> {
        let view = self.local(expr)?.view?;
        Some((bare(expr).to_token_stream().to_string(), view))
    }

    /// Returns the error text for a view with a wrong index; `None` if the index is right.
    fn wrong_index(&self, index: &ExprIndex) -> Option<String> {
        let at = self.view(&index.index);
        if let Some((name, view)) = self.view(&index.expr) {
            return view.by_index(
                &name,
                at.as_ref().map(|(name, view)| (name.as_str(), *view)),
                bare(&index.index),
            );
        }
        // Detect `a[i][j]`, the syntax of nested arrays, and advise `a[[i, j]]`.
        let Expr::Index(outer) = bare(&index.expr) else { return None };
        match self.view(&outer.expr)? {
            (name, ViewParameter::Anywhere(Some(2..)) | ViewParameter::Window) => {
                Some(format!("an index along several axes is one array: write `{name}[[i, j]]`"))
            }
            _ => None,
        }
    }

    /// Translates a read of `a[i]`.
    pub fn index(&mut self, index: &ExprIndex) -> GeneratedCode {
        self.no_attributes(&index.attrs);
        if let Some(text) = self.wrong_index(index) {
            return self.error(&index.index, text);
        }
        let is_reference = self.reference(&index.expr).is_some();
        let (of, at) = (self.expr(&index.expr), self.expr(&index.index));
        let span = index.index.span();
        let k = located(&self.k, span);
        let star = is_reference.then(|| quote!(*));
        let tree = |[of, at]: [&TokenStream; 2]| self.lined(span, quote!(#k::TreeExpr::Index(&#of, &#at)));
        // rustc reports a wrong index type only if the index comes first. This order is safe if the indexed
        // expression is a path or a field, whose evaluation has no side effects.
        let is_plain = matches!(bare(&index.expr), Expr::Path(_) | Expr::Field(_));
        let rust = |[of, at]: [&TokenStream; 2]| {
            if is_plain {
                quote_spanned!(span=> #k::ViewArgument(#at).of(&#star #of))
            } else {
                quote_spanned!(span=> #k::at(&#star #of, #at))
            }
        };
        GeneratedCode::of([&of, &at], rust, tree)
    }

    /// Translates a read of the field `p.x`.
    pub fn field(&mut self, field: &ExprField) -> GeneratedCode {
        self.no_attributes(&field.attrs);
        let (of, name) = (self.expr(&field.base), &field.member);
        let (k, text) = (self.k.clone(), name.to_token_stream().to_string());
        let is_plain = matches!(bare(&field.base), Expr::Path(_) | Expr::Field(_) | Expr::Call(_));
        GeneratedCode::of(
            [&of],
            |[of]| if is_plain { quote!(#of.#name) } else { quote!((#of).#name) },
            |[of]| quote!(#k::TreeExpr::Field(&#of, #text)),
        )
    }

    /// Translates `place = value`.
    pub fn assign(&mut self, assign: &ExprAssign) -> GeneratedCode {
        self.no_attributes(&assign.attrs);
        let value = self.value(&assign.right);
        let k = self.k.clone();
        if let Expr::Infer(_) = *assign.left {
            return value.with_rust(|value| quote!({ let _ = #value; })).with_tree(
                |value| quote!(#k::TreeExpr::Block(#k::NO_LABEL, &[#k::Stmt::Expr(#value)], None)),
            );
        }
        if let Expr::Tuple(tuple) = bare(&assign.left) {
            let places: Vec<GeneratedCode> = tuple.elems.iter().map(|part| self.plain_place(part)).collect();
            let places = GeneratedCode::list(&places);
            return GeneratedCode::of(
                [&places, &value],
                |[places, value]| quote!((#places,) = #value),
                |[places, value]| quote!(#k::TreeExpr::Assign(&#k::TreeExpr::Tuple(#places), &#value)),
            );
        }
        let place = self.place(&assign.left, None, &value);
        let tree = quote!(#k::TreeExpr::Assign);
        place.with_tree(|place| quote!(#tree(#place)))
    }

    /// Translates `place += value` and similar assignments.
    pub fn compound(&mut self, binary: &ExprBinary) -> GeneratedCode {
        let value = self.value(&binary.right);
        let Some((operator, function)) = operator(&binary.op) else {
            return self.error(binary.op, "kernels do not support this operator");
        };
        let (k, operator) = (self.k.clone(), syn::Ident::new(operator, Span::call_site()));
        let function = syn::Ident::new(function, binary.op.span());
        let place = self.place(&binary.left, Some(&function), &value);
        place.with_tree(|place| quote!(#k::TreeExpr::Compound(#k::Operator::#operator, #place)))
    }

    /// Translates an assignment. The generated code evaluates the value first, then the indices. If
    /// `function` is given, the code assigns the function's result for the old value and the value.
    fn place(&mut self, expr: &Expr, function: Option<&syn::Ident>, value: &GeneratedCode) -> GeneratedCode {
        if let Some(text) = self.wrong_place(expr, function.is_some()) {
            return self.error(expr, text);
        }
        let (mut steps, mut indices) = (Vec::new(), Vec::new());
        let Some((root, tree)) = self.steps(expr, &mut steps, &mut indices) else {
            return self.error(expr, "only variables, their fields and their elements can be assigned");
        };
        let (k, name) = (self.k.clone(), syn::Ident::new("value", Span::mixed_site()));
        let mut place = root;
        let mut around: Vec<TokenStream> = Vec::new();
        for step in steps {
            match step {
                Step::Field(field) => place = quote!(#place.#field),
                Step::Index(index, span) => {
                    let inner = format_ident!("place_{}", around.len(), span = Span::mixed_site());
                    around
                        .push(quote_spanned!(span=> if let Some(#inner) = #k::ViewArgument(#index).place(&mut #place)));
                    place = quote!((*#inner));
                }
            }
        }
        let assigned = match function {
            Some(function) => quote_spanned!(function.span()=> #k::#function(#place, #name)),
            None => quote!(#name),
        };
        let mut innermost = quote!(#place = #assigned;);
        for around in around.into_iter().rev() {
            innermost = quote!(#around { #innermost });
        }
        let indices = indices.into_iter().fold(GeneratedCode::same(quote!(), quote!()), |all, index| {
            GeneratedCode::of([&all, &index], |[all, index]| quote!(#all #index), |_| quote!())
        });
        GeneratedCode::of(
            [value, &indices],
            |[value, indices]| quote!({ let #name = #value; #indices #innermost }),
            |[value, _]| quote!(&#tree, &#value),
        )
    }

    /// Returns the error text for an assignment to a view or to its element; `None` for other targets.
    fn wrong_place(&self, expr: &Expr, is_compound: bool) -> Option<String> {
        let of = match bare(expr) {
            Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => &unary.expr,
            Expr::Index(index) => {
                return self.view(&index.expr).map(|(name, view)| view.as_element(&name));
            }
            other => other,
        };
        self.view(of).map(|(name, view)| view.as_place(&name, is_compound))
    }

    /// Collects the steps from a variable to an assignment's target. Returns the variable, and the tree.
    fn steps(
        &mut self,
        expr: &Expr,
        steps: &mut Vec<Step>,
        indices: &mut Vec<GeneratedCode>,
    ) -> Option<(TokenStream, TokenStream)> {
        let k = self.k.clone();
        match bare(expr) {
            Expr::Path(path) => {
                let local = self.local(expr)?;
                let number = local.number;
                let root = if local.is_reference { quote!((*#path)) } else { quote!(#path) };
                Some((root, quote!(#k::TreeExpr::Local(#number))))
            }
            Expr::Unary(unary) if matches!(unary.op, UnOp::Deref(_)) => {
                self.reference(&unary.expr)?;
                self.steps(&unary.expr, steps, indices)
            }
            Expr::Field(field) => {
                let (root, tree) = self.steps(&field.base, steps, indices)?;
                let name = field.member.to_token_stream();
                let text = name.to_string();
                steps.push(Step::Field(name));
                Some((root, quote!(#k::TreeExpr::Field(&#tree, #text))))
            }
            Expr::Index(index) => {
                let (root, tree) = self.steps(&index.expr, steps, indices)?;
                let name = format_ident!("index_{}", indices.len(), span = Span::mixed_site());
                let at = self.expr(&index.index);
                let at_tree = at.tree.clone();
                indices.push(at.with_rust(|at| quote!(let #name = #at;)));
                steps.push(Step::Index(name, index.index.span()));
                Some((root, self.lined(expr.span(), quote!(#k::TreeExpr::Index(&#tree, &#at_tree)))))
            }
            _ => None,
        }
    }

    /// Translates a variable or its field, as the target of a tuple assignment or of a reference.
    pub fn plain_place(&mut self, expr: &Expr) -> GeneratedCode {
        let (mut steps, mut indices) = (Vec::new(), Vec::new());
        match self.steps(expr, &mut steps, &mut indices) {
            Some((root, tree)) if indices.is_empty() => {
                let fields = steps.iter().filter_map(|step| match step {
                    Step::Field(name) => Some(name),
                    Step::Index(..) => None,
                });
                GeneratedCode::same(quote!(#root #(.#fields)*), tree)
            }
            _ => self.error(
                expr,
                "only a variable or its field can be used here: store the value in a \
                                   variable first",
            ),
        }
    }
}
