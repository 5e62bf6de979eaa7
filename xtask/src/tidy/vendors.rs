//! Rule: code of array and engine names no vendor's interface, but asks a device for capabilities.
//!
//! The rule holds for `vmarray/src` without `setup/` (which selects backends) and `facade.rs` (which lists
//! the public modules), and for `vmarray/engine/src`. No identifier and no string there contains `cuda` or
//! `opencl`, in capitals or small letters, and no code reads `DeviceInfo::backend`. Comments and tests are
//! exempt, and so are the two names of OpenCL C, the language of texts of kernels: `opencl_c` and `OpenClC`.

use super::circles::{self, is_test};
use super::parsed::parsed;
use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprField, Item, LitStr, Macro, Member};

/// Parts of names that the rule refuses.
const VENDORS: [&str; 2] = ["cuda", "opencl"];
/// Names of a language that contain such a part.
const LANGUAGES: [&str; 2] = ["opencl_c", "OpenClC"];

/// Returns a message for each vendor's name in a file, as `:line: fault`.
pub fn faults(name: &str, text: &str) -> Vec<String> {
    let is_array =
        |path: &str| !["setup/", "setup.rs", "facade.rs"].iter().any(|start| path.starts_with(start));
    let is_bound =
        name.strip_prefix("vmarray/src/").is_some_and(is_array) || name.starts_with("vmarray/engine/src/");
    if !is_bound || !name.ends_with(".rs") || is_test(name) {
        return Vec::new();
    }
    let Some(file) = parsed(text) else { return Vec::new() };
    let mut names = VendorNames::default();
    names.visit_file(&file);
    names.0
}

/// The vendor's names in a file.
#[derive(Default)]
struct VendorNames(Vec<String>);

impl VendorNames {
    fn check(&mut self, line: usize, name: &str) {
        let small = name.to_lowercase();
        if !LANGUAGES.contains(&name) && VENDORS.iter().any(|vendor| small.contains(vendor)) {
            self.0.push(format!(":{line}: {name} names a vendor; ask the device for a capability"));
        }
    }

    fn check_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.check_tokens(group.stream()),
                TokenTree::Punct(_) => {}
                other => self.check(other.span().start().line, &other.to_string()),
            }
        }
    }
}

impl<'ast> Visit<'ast> for VendorNames {
    fn visit_item(&mut self, item: &'ast Item) {
        if !circles::is_for_tests(circles::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let (false, Ok(list)) = (attribute.path().is_ident("doc"), attribute.meta.require_list()) {
            self.check_tokens(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.check_tokens(call.tokens.clone());
    }

    fn visit_ident(&mut self, name: &'ast Ident) {
        self.check(name.span().start().line, &name.to_string());
    }

    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.check(text.span().start().line, &text.value());
    }

    fn visit_expr_field(&mut self, field: &'ast ExprField) {
        let is_info = match &*field.base {
            Expr::MethodCall(call) => call.method == "info",
            Expr::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == "info"),
            Expr::Field(field) => matches!(&field.member, Member::Named(name) if name == "info"),
            _ => false,
        };
        if let (true, Member::Named(name)) = (is_info, &field.member)
            && name == "backend"
        {
            let line = name.span().start().line;
            self.0.push(format!(":{line}: reads the name of a backend; ask the device for a capability"));
        }
        visit::visit_expr_field(self, field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_vendors_are_found() {
        let text = "/// On CUDA.\nuse backend_api::CodeLanguage::OpenClC;\n\
            #[cfg(feature = \"opencl\")]\nfn takes_opencl() -> bool {\n    device.info().backend == name\n}\n\
            fn text(code: Code) {\n    let texts = vec![\"Cuda\", code.opencl_c(text)];\n}\n\
            #[cfg(test)]\nmod tests {\n    use crate::opencl::OpenClDevice;\n}\n";
        let lines = |name: &str| faults(name, text).iter().map(|fault| fault[1..2].to_string()).collect();
        let found: Vec<String> = lines("vmarray/src/ops/sort.rs");
        assert_eq!(found, ["3", "4", "5", "8"]);
        for exempt in ["vmarray/src/setup/any.rs", "vmarray/src/facade.rs", "vmarray/src/ops/tests.rs"] {
            assert!(faults(exempt, text).is_empty(), "{exempt}");
        }
        assert_eq!(faults("vmarray/engine/src/error.rs", text).len(), 4);
    }
}
