//! Cache of parsed source files, which the rules of `cargo xtask tidy` share, because parsing is slow.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Parses the text of a source file, or returns the result of an earlier call of this thread. Returns `None`
/// if the text is no Rust.
pub fn parsed(text: &str) -> Option<Rc<syn::File>> {
    thread_local! {
        static KNOWN: RefCell<HashMap<String, Option<Rc<syn::File>>>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| {
        let file = known.get(text).cloned();
        file.unwrap_or_else(|| {
            let file = syn::parse_file(text).ok().map(Rc::new);
            known.insert(text.to_owned(), file.clone());
            file
        })
    })
}
