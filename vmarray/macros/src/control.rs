//! Translation of a kernel's blocks, branches and loops.

use crate::body::{BodyTranslation, bare, innermost_receiver};
use crate::code::GeneratedCode;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Block, Expr, ExprForLoop, ExprIf, ExprMatch, Label, Lifetime, RangeLimits, Stmt};

impl BodyTranslation<'_> {
    /// Translates an expression of control flow, such as `if`, `match` or a loop.
    pub fn control(&mut self, expr: &Expr) -> GeneratedCode {
        let k = self.k.clone();
        match expr {
            Expr::If(branch) => self.branch(branch),
            Expr::Match(choice) => self.choice(choice),
            Expr::Block(block) => {
                self.no_attributes(&block.attrs);
                let label = &block.label;
                let number = label.as_ref().map(|label| self.open(label, false));
                let code = self.block(&block.block, number);
                if number.is_some() {
                    self.scope.close();
                }
                code.with_rust(|body| quote!(#label #body))
            }
            Expr::Loop(endless) => {
                self.no_attributes(&endless.attrs);
                let number = self.open_loop(&endless.label);
                let body = self.block(&endless.body, None);
                self.scope.close();
                let (label, turns, body_on_host) = (&endless.label, turns(), body.host.clone());
                body.with_rust(|body| quote!(#label loop #body))
                    .with_tree(|body| {
                        self.lined(endless.loop_token.span, quote!(#k::TreeExpr::Loop(#number, &#body)))
                    })
                    .with_host(quote!(#label loop { #turns.turn(); #body_on_host }))
            }
            Expr::While(until) => {
                self.no_attributes(&until.attrs);
                let number = self.open_loop(&until.label);
                let (condition, body) = (self.expr(&until.cond), self.block(&until.body, None));
                self.scope.close();
                let (label, turns) = (&until.label, turns());
                let (condition_on_host, body_on_host) = (&condition.host, &body.host);
                let host = quote!(#label while { #turns.turn(); #condition_on_host } #body_on_host);
                GeneratedCode::of(
                    [&condition, &body],
                    |[condition, body]| quote!(#label while #condition #body),
                    |[condition, body]| {
                        let tree = quote!(#k::TreeExpr::While(#number, &#condition, &#body));
                        self.lined(until.while_token.span, tree)
                    },
                )
                .with_host(host)
            }
            Expr::ForLoop(counted) => self.counted(counted),
            Expr::Break(leave) => {
                self.no_attributes(&leave.attrs);
                let number = self.target(&leave.label, expr);
                let (value, label) = (self.optional(leave.expr.as_deref()), &leave.label);
                value
                    .with_rust(|value| quote!(break #label #value))
                    .with_tree(|value| quote!(#k::TreeExpr::Break(#number, #value)))
            }
            Expr::Continue(next) => {
                self.no_attributes(&next.attrs);
                let (number, label) = (self.target(&next.label, expr), &next.label);
                GeneratedCode::same(quote!(continue #label), quote!(#k::TreeExpr::Continue(#number)))
            }
            Expr::Return(end) => {
                self.no_attributes(&end.attrs);
                self.optional(end.expr.as_deref())
                    .with_rust(|value| quote!(return #value))
                    .with_tree(|value| quote!(#k::TreeExpr::Return(#value)))
            }
            other => self.error(other, "kernels do not support this part of Rust"),
        }
    }

    /// Translates an expression that may be missing, to an `Option` in the syntax tree.
    fn optional(&mut self, expr: Option<&Expr>) -> GeneratedCode {
        match expr {
            Some(expr) => self.expr(expr).with_tree(|tree| quote!(Some(&#tree))),
            None => GeneratedCode::same(TokenStream::new(), quote!(None)),
        }
    }

    fn open(&mut self, label: &Label, is_loop: bool) -> u16 {
        self.scope.open(Some(label.name.ident.to_string()), is_loop)
    }

    fn open_loop(&mut self, label: &Option<Label>) -> u16 {
        self.scope.open(label.as_ref().map(|label| label.name.ident.to_string()), true)
    }

    /// Returns the label number of the target of a `break` or `continue`. rustc reports a missing target.
    fn target(&mut self, label: &Option<Lifetime>, at: impl ToTokens) -> u16 {
        let name = label.as_ref().map(|label| label.ident.to_string());
        match self.scope.target(name.as_deref()) {
            Some(number) => number,
            None => {
                self.error(at, "no enclosing loop or block has this label");
                0
            }
        }
    }

    /// Translates a block. The caller has opened the block's label, if any, in the scope.
    pub fn block(&mut self, block: &Block, label: Option<u16>) -> GeneratedCode {
        let k = self.k.clone();
        let names = self.scope.enter();
        let mut statements: Vec<GeneratedCode> = Vec::new();
        let mut value = None;
        for (at, statement) in block.stmts.iter().enumerate() {
            match statement {
                Stmt::Expr(expr, None) if at + 1 == block.stmts.len() => value = Some(self.expr(expr)),
                Stmt::Expr(expr, semicolon) => {
                    let expr = self.expr(expr);
                    statements.push(expr.with_rust(|expr| quote!(#expr #semicolon)).with_tree(|tree| {
                        let tree = self.lined(statement.span(), tree);
                        quote!(#k::Stmt::Expr(#tree))
                    }));
                }
                Stmt::Local(local) => statements.push(self.local_statement(local)),
                Stmt::Item(item) => {
                    self.error(item, "put this outside of the kernel function");
                }
                Stmt::Macro(call) => {
                    self.error(call, "kernels do not support macros: write the expanded code");
                }
            }
        }
        self.scope.leave(names);
        let value = match value {
            Some(value) => value.with_tree(|tree| quote!(Some(&#tree))),
            None => GeneratedCode::same(quote!(), quote!(None)),
        };
        let lines = statements.iter().fold(GeneratedCode::same(quote!(), quote!()), |all, statement| {
            GeneratedCode::of(
                [&all, statement],
                |[all, next]| quote!(#all #next),
                |[all, next]| quote!(#all #next,),
            )
        });
        let label = match label {
            Some(number) => quote!(#number),
            None => quote!(#k::NO_LABEL),
        };
        GeneratedCode::of(
            [&lines, &value],
            |[lines, value]| quote!({ #lines #value }),
            |[lines, value]| quote!(#k::TreeExpr::Block(#label, &[#lines], #value)),
        )
    }

    fn local_statement(&mut self, local: &syn::Local) -> GeneratedCode {
        self.no_attributes(&local.attrs);
        let k = self.k.clone();
        let value = match &local.init {
            Some(init) => {
                if let Some((_, other)) = &init.diverge {
                    self.error(other, "kernels do not support `let … else`: use `if` or `match`");
                }
                // Bind a copy of the value: an alias would let two variables change together.
                let value = self.expr(&init.expr);
                value.with_rust(|value| quote!(= #value)).with_tree(|tree| {
                    let tree = self.lined(init.expr.span(), tree);
                    quote!(Some(#tree))
                })
            }
            None => GeneratedCode::same(quote!(), quote!(None)),
        };
        let tree = self.pattern(&local.pat, false);
        let pattern = &local.pat;
        value
            .with_rust(|value| quote!(let #pattern #value;))
            .with_tree(|value| quote!(#k::Stmt::Let(#tree, #value)))
    }

    fn branch(&mut self, branch: &ExprIf) -> GeneratedCode {
        self.no_attributes(&branch.attrs);
        let k = self.k.clone();
        let (condition, then) = (self.expr(&branch.cond), self.block(&branch.then_branch, None));
        match &branch.else_branch {
            Some((_, otherwise)) => GeneratedCode::of(
                [&condition, &then, &self.expr(otherwise)],
                |[condition, then, otherwise]| quote!(if #condition #then else #otherwise),
                |[condition, then, otherwise]| quote!(#k::TreeExpr::If(&#condition, &#then, Some(&#otherwise))),
            ),
            None => GeneratedCode::of(
                [&condition, &then],
                |[condition, then]| quote!(if #condition #then),
                |[condition, then]| quote!(#k::TreeExpr::If(&#condition, &#then, None)),
            ),
        }
    }

    fn choice(&mut self, choice: &ExprMatch) -> GeneratedCode {
        self.no_attributes(&choice.attrs);
        let (k, of) = (self.k.clone(), self.expr(&choice.expr));
        let mut arms = GeneratedCode::same(quote!(), quote!());
        for arm in &choice.arms {
            self.no_attributes(&arm.attrs);
            let names = self.scope.enter();
            let (tree, pattern) = (self.pattern(&arm.pat, false), &arm.pat);
            let guard = match &arm.guard {
                Some((_, guard)) => self
                    .expr(guard)
                    .with_rust(|guard| quote!(if #guard))
                    .with_tree(|guard| quote!(Some(#guard))),
                None => GeneratedCode::same(quote!(), quote!(None)),
            };
            let body = self.expr(&arm.body);
            self.scope.leave(names);
            arms = GeneratedCode::of(
                [&arms, &guard, &body],
                |[arms, guard, body]| quote!(#arms #pattern #guard => #body,),
                |[arms, guard, body]| quote!(#arms #k::Arm { pattern: #tree, guard: #guard, body: #body },),
            );
        }
        let span = choice.match_token.span;
        let rust = |[of, arms]: [&TokenStream; 2]| quote_spanned!(span=> match #of { #arms });
        GeneratedCode::of([&of, &arms], rust, |[of, arms]| quote!(#k::TreeExpr::Match(&#of, &[#arms])))
    }

    fn counted(&mut self, counted: &ExprForLoop) -> GeneratedCode {
        self.no_attributes(&counted.attrs);
        let (k, mut steps) = (self.k.clone(), bare(&counted.expr));
        let Expr::Range(range) = innermost_receiver(steps) else {
            return self.error(&counted.expr, "loops run over ranges: write `for i in 0..n` and `a[i]`");
        };
        let (mut is_reversed, mut step) = (false, None);
        while let Expr::MethodCall(call) = steps {
            match (call.method.to_string().as_str(), call.args.len()) {
                ("step_by", 1) if step.is_none() && !is_reversed => step = Some(&call.args[0]),
                ("rev", 0) if !is_reversed => is_reversed = true,
                _ => {
                    let text = "ranges support `.rev()`, `.step_by(n)` and `.rev().step_by(n)`: compute any \
                                other number from the loop variable";
                    return self.error(&call.method, text);
                }
            }
            steps = bare(&call.receiver);
        }
        let (Some(start), Some(end)) = (&range.start, &range.end) else {
            return self.error(range, "give the range both ends, or use `loop`");
        };
        let is_closed = matches!(range.limits, RangeLimits::Closed(_));
        let (start, end) = (self.expr(start), self.expr(end));
        let step = match step {
            Some(step) => self.expr(step).with_tree(|step| quote!(Some(&#step))),
            None => GeneratedCode::same(quote!(1), quote!(None)),
        };
        let names = self.scope.enter();
        let number = self.open_loop(&counted.label);
        let tree = self.pattern(&counted.pat, false);
        let body = self.block(&counted.body, None);
        self.scope.close();
        self.scope.leave(names);
        let (label, pattern, span, turns) = (&counted.label, &counted.pat, range.span(), turns());
        let numbers = |[start, end, step]: [&TokenStream; 3]| quote_spanned!(span=> #k::range::<_, #is_closed, #is_reversed>(#start, #end, #step));
        let (on_host, body_on_host) = (numbers([&start.host, &end.host, &step.host]), &body.host);
        let [range_name, long] = ["__numbers", "__is_long"].map(|name| Ident::new(name, Span::mixed_site()));
        // Count the iterations of a short loop once, before the loop, because a count per iteration is
        // slower.
        let host = quote!({
            let #range_name = #on_host;
            let #long = #turns.enter(&#range_name);
            #label for #pattern in #range_name {
                if #long {
                    #turns.turn();
                }
                #body_on_host
            }
        });
        let code = GeneratedCode::of(
            [&start, &end, &step, &body],
            |[start, end, step, body]| {
                let range = numbers([start, end, step]);
                quote!(#label for #pattern in #range #body)
            },
            |[start, end, step, body]| {
                let range = quote! {
                    #k::Range {
                        start: &#start, end: &#end, is_closed: #is_closed, is_reversed: #is_reversed, step: #step
                    }
                };
                let tree = quote!(#k::TreeExpr::For(#number, #tree, #range, &#body));
                self.lined(counted.for_token.span, tree)
            },
        );
        code.with_host(host)
    }
}

/// Returns the name of the variable that counts loop iterations (back edges) in the host form.
pub fn turns() -> Ident {
    Ident::new("__back_edges", Span::mixed_site())
}
