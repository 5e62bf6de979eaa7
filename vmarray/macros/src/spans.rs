//! Spans (source positions) of generated code, set to the user's tokens, because rustc reports errors there.

use proc_macro2::{Group, Span, TokenStream, TokenTree};

/// Sets the span (source location) of each generated token to the span of the user's next token. If no user
/// token follows, uses the span of the previous user token, else `fallback`. rustc then reports errors at the
/// user's code, not at the attribute. Generated variables keep their hygiene.
pub fn placed(code: TokenStream, fallback: Span) -> TokenStream {
    let generated = place_of(Span::call_site());
    within(code, fallback, generated)
}

/// Returns the line and column of a span.
fn place_of(span: Span) -> (usize, usize) {
    let span = span.unwrap();
    (span.line(), span.column())
}

fn within(code: TokenStream, fallback: Span, generated: (usize, usize)) -> TokenStream {
    let tokens: Vec<TokenTree> = code.into_iter().collect();
    // For each token, the span of the next token that the user wrote.
    let mut next = vec![None; tokens.len()];
    let mut last = None;
    for (at, token) in tokens.iter().enumerate().rev() {
        next[at] = last;
        last = first_written(token, generated).or(last);
    }
    let mut before = None;
    let placed = tokens.into_iter().zip(next).map(|(token, next)| {
        let is_written = place_of(token.span()) != generated;
        let own = if is_written { Some(token.span()) } else { None };
        let token = match token {
            TokenTree::Group(group) => {
                let inner = before.or_else(|| first_in(&group.stream(), generated)).or(next);
                let at = own.or(inner).unwrap_or(fallback);
                let mut placed = Group::new(group.delimiter(), within(group.stream(), at, generated));
                placed.set_span(if is_written { group.span() } else { at });
                TokenTree::Group(placed)
            }
            mut token if !is_written => {
                let at = next.or(before).unwrap_or(fallback);
                token.set_span(if is_variable(&token) { token.span().located_at(at) } else { at });
                token
            }
            token => token,
        };
        before = own.or(before);
        token
    });
    placed.collect()
}

/// Returns true for the name of a generated variable.
fn is_variable(token: &TokenTree) -> bool {
    let TokenTree::Ident(name) = token else { return false };
    let name = name.to_string();
    name == "value" || ["slot_", "index_", "place_", "__"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the span of the first token in a token tree that the user wrote.
fn first_written(token: &TokenTree, generated: (usize, usize)) -> Option<Span> {
    if place_of(token.span()) != generated {
        return Some(token.span());
    }
    match token {
        TokenTree::Group(group) => first_in(&group.stream(), generated),
        _ => None,
    }
}

fn first_in(code: &TokenStream, generated: (usize, usize)) -> Option<Span> {
    code.clone().into_iter().find_map(|token| first_written(&token, generated))
}
