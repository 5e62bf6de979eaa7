//! The possible mutations of a source file, and the text of the file with all of them.
//!
//! The text contains each change next to the original code, and selects it at run time by its number (*mutant
//! schemata*: R. Untch, A. Offutt, M. Harrold, "Mutation Analysis Using Mutant Schemata", 1993). So hundreds
//! of changes cost one build.

use anyhow::{Context, Result};
use proc_macro2::Span;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ReturnType, Stmt, Type, UnOp};

/// A possible mutation: a piece of code, and its change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The changed bytes of the file.
    pub range: Range<usize>,
    /// Number of the changed line, counted from 1.
    pub line: usize,
    /// Kind of the change.
    pub change: Change,
    /// The function that contains the change.
    pub function: String,
}

/// The kind of a change to a piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Another operator in the place of the bytes.
    Operator { at: Range<usize>, old: String, new: &'static str },
    /// A condition that is always true, or always false.
    Condition(bool),
    /// Removal of an operator in front of its operand.
    Negation,
    /// Removal of a statement.
    Removed,
    /// The function returns this value at once.
    Returned(&'static str),
}

impl Site {
    /// Returns a key of the change that stays valid when other parts of the file change. It contains the
    /// text, and no line number.
    pub fn key(&self, text: &str) -> String {
        let code = text[self.range.clone()].split_whitespace().collect::<Vec<_>>().join(" ");
        let code: String = code.chars().take(80).collect();
        format!("{}: {}: {code}", self.function, self.change)
    }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operator { old, new, .. } => write!(f, "{old} to {new}"),
            Self::Condition(value) => write!(f, "always {value}"),
            Self::Negation => write!(f, "without !"),
            Self::Removed => write!(f, "removed"),
            Self::Returned("") => write!(f, "returns at once"),
            Self::Returned(value) => write!(f, "returns {value}"),
        }
    }
}

/// Returns all possible changes of a file.
pub fn find(text: &str) -> Result<Vec<Site>> {
    let file = syn::parse_file(text).context("not a Rust file")?;
    let mut finder = Finder { text, sites: Vec::new(), functions: Vec::new(), is_constant: 0 };
    finder.visit_file(&file);
    Ok(finder.sites)
}

/// Returns the text of the file with all changes. A number selects each change when the program runs.
pub fn apply(text: &str, sites: &[(u32, Site)]) -> String {
    let mut sites: Vec<_> = sites.iter().collect();
    // Sort outer changes before inner ones. For equal code, the condition is the outer change.
    sites.sort_by_key(|(_, site)| {
        let is_within = !matches!(site.change, Change::Condition(_));
        (site.range.start, std::cmp::Reverse(site.range.end), is_within)
    });
    render(text, 0..text.len(), &sites)
}

fn render(text: &str, range: Range<usize>, sites: &[&(u32, Site)]) -> String {
    let mut out = String::new();
    let mut at = range.start;
    while at < range.end {
        let Some(next) = sites.iter().position(|(_, site)| {
            site.range.start >= at && site.range.end <= range.end && site.range.start < range.end
        }) else {
            break;
        };
        let (number, site) = sites[next];
        // Exclude the change itself.
        let inner = &sites[next + 1..];
        out += &text[at..site.range.start];
        out += &changed(text, *number, site, inner);
        at = site.range.end;
    }
    out + &text[at..range.end]
}

fn changed(text: &str, number: u32, site: &Site, inner: &[&(u32, Site)]) -> String {
    let on = format!("crate::mutant::on({number})");
    let part = |range: Range<usize>| render(text, range, inner);
    let Range { start, end } = site.range;
    let code = match &site.change {
        Change::Operator { at, old, new } => {
            let (left, right) = (part(start..at.start), part(at.end..end));
            format!("(if {on} {{ ({left}) {new} ({right}) }} else {{ ({left}) {old} ({right}) }})")
        }
        Change::Condition(true) => format!("({on} || ({}))", part(start..end)),
        Change::Condition(false) => format!("(!{on} && ({}))", part(start..end)),
        Change::Negation => {
            let operand = part(start + 1..end);
            format!("(if {on} {{ {operand} }} else {{ !{operand} }})")
        }
        Change::Removed => format!("if !{on} {{ {} }}", part(start..end)),
        Change::Returned(value) => format!("{{ if {on} {{ return {value}; }} {} }}", part(start..end)),
    };
    format!("/*<{number}*/{code}/*>*/")
}

/// Returns the number of the innermost change that contains a byte of a changed file.
pub fn around(text: &str, byte: usize) -> Option<u32> {
    let mut open = Vec::new();
    for (at, _) in text.get(..byte)?.match_indices("/*") {
        match text[at + 2..].strip_prefix('<').and_then(|rest| rest.split("*/").next()?.parse().ok()) {
            Some(number) => open.push(number),
            None if text[at..].starts_with("/*>*/") => _ = open.pop(),
            None => {}
        }
    }
    open.pop()
}

struct Finder<'a> {
    text: &'a str,
    sites: Vec<Site>,
    functions: Vec<String>,
    /// Number of enclosing expressions that the compiler evaluates.
    is_constant: usize,
}

impl Finder<'_> {
    fn add(&mut self, span: Span, change: Change) {
        let function = self.functions.join("::");
        if self.is_constant == 0 && !self.functions.is_empty() {
            let site = Site { range: span.byte_range(), line: span.start().line, change, function };
            self.sites.push(site);
        }
    }

    fn function(&mut self, sig: &syn::Signature, block: &syn::Block) {
        let is_constant = usize::from(sig.constness.is_some());
        self.functions.push(sig.ident.to_string());
        self.is_constant += is_constant;
        let values: &[&'static str] = match &sig.output {
            ReturnType::Default => &[""],
            ReturnType::Type(_, of) => returned(of),
        };
        if !block.stmts.is_empty() {
            for value in values {
                self.add(block.span(), Change::Returned(value));
            }
        }
        visit::visit_block(self, block);
        self.is_constant -= is_constant;
        self.functions.pop();
    }

    fn condition(&mut self, expr: &Expr, values: &[bool]) {
        if !has_let(expr) {
            values.iter().for_each(|&value| self.add(expr.span(), Change::Condition(value)));
        }
    }
}

fn returned(of: &Type) -> &'static [&'static str] {
    let Type::Path(path) = of else { return &[] };
    let Some(last) = path.path.segments.last() else { return &[] };
    let is_unit = |arguments: &syn::PathArguments| match arguments {
        syn::PathArguments::AngleBracketed(list) => {
            matches!(list.args.first(), Some(syn::GenericArgument::Type(Type::Tuple(tuple))) if tuple.elems.is_empty())
        }
        _ => false,
    };
    match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "usize" | "u64" | "u32" => &["0", "1"],
        "Option" => &["None"],
        "Result" if is_unit(&last.arguments) => &["Ok(())"],
        _ => &[],
    }
}

/// Returns true if a condition binds names, so that it is valid only at its place.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, BinOp::And(_)) => {
            has_let(&binary.left) || has_let(&binary.right)
        }
        Expr::Paren(inner) => has_let(&inner.expr),
        _ => false,
    }
}

fn other(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Lt(_) => "<=",
        BinOp::Le(_) => "<",
        BinOp::Gt(_) => ">=",
        BinOp::Ge(_) => ">",
        BinOp::Eq(_) => "!=",
        BinOp::Ne(_) => "==",
        BinOp::And(_) => "||",
        BinOp::Or(_) => "&&",
        BinOp::Add(_) => "-",
        BinOp::Sub(_) => "+",
        BinOp::Mul(_) => "/",
        BinOp::Div(_) => "*",
        BinOp::Rem(_) => "/",
        BinOp::BitAnd(_) => "|",
        BinOp::BitOr(_) => "&",
        BinOp::Shl(_) => ">>",
        BinOp::Shr(_) => "<<",
        BinOp::AddAssign(_) => "-=",
        BinOp::SubAssign(_) => "+=",
        BinOp::BitOrAssign(_) => "&=",
        BinOp::BitAndAssign(_) => "|=",
        _ => return None,
    })
}

/// Returns true if the tested build omits an item.
fn is_left_out(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string();
        attribute.path().is_ident("cfg")
            && (condition.contains("test") || condition.contains("loom") || condition.contains("not"))
    })
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Const(_) | syn::Item::Static(_) => return,
            _ => return visit::visit_item(self, item),
        };
        if !is_left_out(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_left_out(&item.attrs) {
            self.function(&item.sig, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        // Skip texts for people, because tests do not compare them.
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        if of.is_some_and(|of| of.ident == "Debug" || of.ident == "Display") {
            return;
        }
        let name = &self.text[item.self_ty.span().byte_range()];
        self.functions.push(name.split(['<', ' ']).next().unwrap_or_default().into());
        visit::visit_item_impl(self, item);
        self.functions.pop();
    }

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if let Some(new) = other(&binary.op)
            && !has_let(&binary.left)
            && !has_let(&binary.right)
        {
            let at = binary.op.span().byte_range();
            let old = self.text[at.clone()].to_string();
            self.add(binary.span(), Change::Operator { at, old, new });
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_)) {
            self.add(unary.span(), Change::Negation);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_if(&mut self, expr: &'ast syn::ExprIf) {
        self.condition(&expr.cond, &[true, false]);
        visit::visit_expr_if(self, expr);
    }

    fn visit_expr_while(&mut self, expr: &'ast syn::ExprWhile) {
        self.condition(&expr.cond, &[false]);
        visit::visit_expr_while(self, expr);
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = stmt {
            let inner = if let Expr::Try(inner) = expr { &inner.expr } else { expr };
            let is_assignment = |op: &BinOp| other(op).is_some_and(|new| new.ends_with('='));
            match inner {
                Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) => {
                    self.add(stmt.span(), Change::Removed)
                }
                Expr::Binary(binary) if is_assignment(&binary.op) => self.add(stmt.span(), Change::Removed),
                _ => {}
            }
        }
        visit::visit_stmt(self, stmt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fn f(a: u32) -> bool {\n    if a < 3 && !g() { h(a + 1); }\n    a == 7\n}\nconst N: u32 = 1 + 2;\n\
                        #[cfg(test)]\nmod tests { fn t() { h(1 + 1); } }\n";

    #[test]
    fn changes_are_found_and_named() {
        let sites = find(TEXT).unwrap();
        let keys: Vec<String> = sites.iter().map(|site| site.key(TEXT)).collect();
        let changes: Vec<&str> = keys.iter().map(|key| key.split(": ").nth(1).unwrap()).collect();
        assert_eq!(
            changes,
            [
                "returns true",
                "returns false",
                "always true",
                "always false",
                "&& to ||",
                "< to <=",
                "without !",
                "removed",
                "+ to -",
                "== to !="
            ]
        );
        assert!(keys.contains(&"f: removed: h(a + 1);".to_string()), "{keys:?}");
        assert_eq!((sites[0].line, sites[7].line), (1, 2));
    }

    #[test]
    fn changes_within_changes_are_all_there() {
        // The order is reversed: a sample may have any order.
        let sites: Vec<(u32, Site)> = (0..).zip(find(TEXT).unwrap().into_iter().rev()).collect();
        let text = apply(TEXT, &sites);
        syn::parse_file(&text).unwrap();
        for (number, site) in &sites {
            let at = text
                .find(&format!("crate::mutant::on({number})"))
                .unwrap_or_else(|| panic!("{site:?} in {text}"));
            assert_eq!(around(&text, at), Some(*number));
        }
        assert_eq!(around(&text, text.len() - 1), None);
        assert_eq!(apply(TEXT, &[]), TEXT);
    }
}
