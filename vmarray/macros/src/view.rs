//! Recognition of a kernel's parameters by type: views (arrays) and positions (indices); errors for misuse.

use quote::ToTokens;
use syn::{Expr, GenericArgument, Lit, PathArguments, Type};

/// The kind of a kernel function's parameter: a view (array), or a position (a GPU thread's indices).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewParameter {
    /// `At<N>`; `None` if `N` is a const parameter.
    At(Option<usize>),
    /// `&Own<T>`, or `&mut Own<T>`.
    Own {
        is_mutable: bool,
    },
    /// `&Anywhere<T, N>`; `None` if `N` is a const parameter.
    Anywhere(Option<usize>),
    Window,
    Rows,
    Group,
    Shared,
    Append,
}

impl ViewParameter {
    /// Returns the kind of a parameter by its type; `None` if neither a view (array) nor a position (`At`).
    pub fn of(of: &Type) -> Option<Self> {
        match of {
            Type::Reference(reference) => Self::named(&reference.elem, reference.mutability.is_some()),
            of => Self::named(of, false),
        }
    }

    fn named(of: &Type, is_mutable: bool) -> Option<Self> {
        let Type::Path(path) = of else { return None };
        let last = path.path.segments.last()?;
        Some(match last.ident.to_string().as_str() {
            "At" => Self::At(number(&last.arguments, 0)),
            "Own" => Self::Own { is_mutable },
            "Anywhere" if is_alone(&last.arguments) => Self::Anywhere(Some(1)),
            "Anywhere" => Self::Anywhere(number(&last.arguments, 1)),
            "Window" => Self::Window,
            "Rows" => Self::Rows,
            "Group" => Self::Group,
            "Shared" => Self::Shared,
            "Append" => Self::Append,
            _ => return None,
        })
    }

    /// Returns the error text for a use of the parameter `name` as a value.
    pub fn as_value(self, name: &str) -> String {
        match self {
            Self::At(Some(1)) => format!("`{name}` is a position: write `{name}.index()` for its index"),
            Self::At(_) => {
                format!("`{name}` is a position: write `{name}[0]`, `{name}[1]` and so on for its indices")
            }
            Self::Own { .. } => format!("`{name}` is the item's own element: read it by `{name}.get()`"),
            Self::Window => format!("`{name}` has many elements: read one by a position, `{name}[at]`"),
            Self::Append => format!("`{name}` is only appended to, by `{name}.push(value)`"),
            Self::Anywhere(_) | Self::Rows | Self::Group | Self::Shared => {
                format!("`{name}` has many elements: read one by an index, `{name}[i]`")
            }
        }
    }

    /// Returns the error text for an assignment to the parameter `name`.
    pub fn as_place(self, name: &str, is_compound: bool) -> String {
        match self {
            Self::Own { is_mutable: true } if is_compound => {
                format!("write the item's own element by `{name}.set({name}.get() + …)`")
            }
            Self::Own { is_mutable: true } => {
                format!("write the item's own element by `{name}.set(value)`")
            }
            Self::Own { is_mutable: false } => {
                format!("`{name}` is read-only: use `{name}: &mut Own<T>`, and write `{name}.set(value)`")
            }
            Self::At(_) => {
                format!("kernels cannot change the item's position `{name}`: use a variable instead")
            }
            other => other.as_element(name),
        }
    }

    /// Returns the error text for an assignment to an element of the parameter `name`.
    pub fn as_element(self, name: &str) -> String {
        match self {
            Self::Own { .. } => self.as_place(name, false),
            Self::At(_) => {
                format!("kernels cannot change the item's position `{name}`: use a variable instead")
            }
            Self::Anywhere(_) | Self::Window | Self::Rows => format!(
                "`{name}` is read-only: write the item's own element by `&mut Own<T>`, any other one by \
                 `&Shared<T>`"
            ),
            Self::Group => format!("write memory of a group by `{name}.set(i, value)`"),
            Self::Shared => {
                format!(
                    "write shared elements by `{name}.set(i, value)`, or atomics like `{name}.add(i, value)`"
                )
            }
            Self::Append => format!("append an element by `{name}.push(value)`"),
        }
    }

    /// Returns the error text for a method that the parameter `name` does not have.
    pub fn without_method(self, name: &str, method: &str) -> String {
        let has = match self {
            Self::At(_) => "`index()`, `plus(by)`, `shape()`, `in_group()`, `group()` and `groups()`",
            Self::Own { is_mutable: true } => "`get()` and `set(value)`",
            Self::Own { is_mutable: false } => "`get()`",
            Self::Anywhere(_) => "`len()` and `shape()`",
            Self::Window => "`shape()`",
            Self::Rows => "`len()` and `row_len(row)`",
            Self::Group => "`set(i, value)`, `add(i, value)` and the like",
            Self::Shared => "`len()`, `set(i, value)`, `add(i, value)`, `exchange(i, value)` and the like",
            Self::Append => "`push(value)`",
        };
        format!("`{name}` has no `{method}`: it has {has}")
    }

    /// Returns the error text for a wrong or missing `&` in the type `of`; `None` if the type is right.
    pub fn wrong_reference(self, of: &Type) -> Option<&'static str> {
        match (self, of) {
            (Self::At(_), Type::Reference(_)) => Some("a position is passed by value: leave `&` out"),
            (Self::Own { .. }, Type::Reference(_)) => None,
            (Self::Own { .. }, _) => {
                Some("the item's own element is passed by reference: `&Own<T>` or `&mut Own<T>`")
            }
            (_, Type::Reference(reference)) if reference.mutability.is_some() => Some(
                "only `Own` is passed by `&mut`: read by `&Anywhere<T>`, change any element by `&Shared<T>`",
            ),
            (Self::At(_), _) | (_, Type::Reference(_)) => None,
            _ => Some("views are passed by reference: write `&` before the type"),
        }
    }

    /// Returns the error text for a read of `name` by `index`, or `None` if the view (array) supports this
    /// read. If the index is a position parameter, `at` has the index's name and kind.
    pub fn by_index(self, name: &str, at: Option<(&str, Self)>, index: &Expr) -> Option<String> {
        match (self, at) {
            (Self::Own { .. }, _) => Some(format!(
                "`{name}` is the item's own element: read it by `{name}.get()`, or use `{name}: \
                 &Anywhere<T>` to read elements by index"
            )),
            (Self::Append, _) => Some(self.as_value(name)),
            (Self::Window, None) if is_number(index) => Some(format!(
                "a window's index is a position: write `{name}[at]`, or `{name}[at.plus(1)]` for a neighbour"
            )),
            (Self::Rows, None) if is_number(index) => {
                Some(format!("rows need the row's and the element's index: write `{name}[[row, i]]`"))
            }
            (Self::Anywhere(_) | Self::Shared | Self::Group | Self::Rows, Some((at, Self::At(axes)))) => {
                Some(match axes {
                    Some(1) => format!("an index is a number, not a position: write `{name}[{at}.index()]`"),
                    Some(3) => format!(
                        "several axes need an array of indices: write `{name}[[{at}[0], {at}[1], {at}[2]]]`"
                    ),
                    _ => format!("several axes need an array of indices: write `{name}[[{at}[0], {at}[1]]]`"),
                })
            }
            _ => None,
        }
    }
}

/// Returns true for an index that is certainly a number, such as a literal.
fn is_number(index: &Expr) -> bool {
    match index {
        Expr::Lit(_) | Expr::Binary(_) | Expr::Cast(_) => true,
        Expr::MethodCall(call) => call.method == "index",
        _ => false,
    }
}

fn is_alone(arguments: &PathArguments) -> bool {
    match arguments {
        PathArguments::AngleBracketed(arguments) => arguments.args.len() < 2,
        _ => true,
    }
}

/// Returns the generic argument at this index, if it is a number.
fn number(arguments: &PathArguments, at: usize) -> Option<usize> {
    let PathArguments::AngleBracketed(arguments) = arguments else { return None };
    let GenericArgument::Const(Expr::Lit(literal)) = arguments.args.iter().nth(at)? else { return None };
    match &literal.lit {
        Lit::Int(number) => number.base10_parse().ok(),
        _ => None,
    }
}

/// Returns the element type in `of`, and the error text, if arrays cannot store this type; else `None`.
pub fn wrong_element(of: &Type) -> Option<(&Type, &'static str)> {
    let of = match of {
        Type::Reference(reference) => &*reference.elem,
        of => of,
    };
    ViewParameter::named(of, false)
        .filter(|view| !matches!(view, ViewParameter::At(_) | ViewParameter::Group))?;
    let Type::Path(path) = of else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else { return None };
    let GenericArgument::Type(element) = arguments.args.first()? else { return None };
    let is_bool = element.to_token_stream().to_string() == "bool";
    is_bool.then_some((element, "arrays cannot have `bool` elements: use `u8`, and compare with 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_recognized_by_their_types() {
        let of = |text: &str| ViewParameter::of(&syn::parse_str::<Type>(text).unwrap());
        assert_eq!(of("At<2>"), Some(ViewParameter::At(Some(2))));
        assert_eq!(of("At<N>"), Some(ViewParameter::At(None)));
        assert_eq!(of("&mut vmarray::kernel::Own<f32>"), Some(ViewParameter::Own { is_mutable: true }));
        assert_eq!(of("&Anywhere<f32>"), Some(ViewParameter::Anywhere(Some(1))));
        assert_eq!(of("&Anywhere<f32, 3>"), Some(ViewParameter::Anywhere(Some(3))));
        assert_eq!((of("&[f32; 3]"), of("f32")), (None, None));
        let index = |name| ViewParameter::At(Some(1)).as_value(name);
        assert_eq!(index("at"), "`at` is a position: write `at.index()` for its index");
    }
}
