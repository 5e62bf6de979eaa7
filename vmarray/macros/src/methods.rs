//! The methods that kernels support, with their numbers of arguments; and advice in errors for other methods.

/// The types of numbers that kernels support.
pub const NUMBER_TYPES: [&str; 12] =
    ["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize", "f32", "f64"];

/// Methods of numbers that are one operation of the syntax tree: names, and numbers of arguments.
const NUMBERS: [(&str, usize); 30] = [
    ("abs", 0),
    ("approx_cos", 0),
    ("approx_exp2", 0),
    ("approx_log2", 0),
    ("approx_rsqrt", 0),
    ("approx_sin", 0),
    ("ceil", 0),
    ("count_ones", 0),
    ("floor", 0),
    ("leading_zeros", 0),
    ("max", 1),
    ("min", 1),
    ("mul_add", 2),
    ("mul_high", 1),
    ("reverse_bits", 0),
    ("round_ties_even", 0),
    ("sqrt", 0),
    ("to_bits", 0),
    ("to_f32", 0),
    ("trailing_zeros", 0),
    ("trunc", 0),
    ("wrapping_abs", 0),
    ("wrapping_add", 1),
    ("wrapping_div", 1),
    ("wrapping_mul", 1),
    ("wrapping_neg", 0),
    ("wrapping_rem", 1),
    ("wrapping_shl", 1),
    ("wrapping_shr", 1),
    ("wrapping_sub", 1),
];

/// Methods of numbers that are kernel functions in `vmarray_kernel::derived_math` and `math`: the names, and
/// the numbers of arguments.
const COMPOSED: [(&str, usize); 57] = [
    ("abs_diff", 1),
    ("acos", 0),
    ("acosh", 0),
    ("asin", 0),
    ("asinh", 0),
    ("atan", 0),
    ("atan2", 1),
    ("atanh", 0),
    ("cbrt", 0),
    ("clamp", 2),
    ("conj", 0),
    ("copysign", 1),
    ("cos", 0),
    ("cosh", 0),
    ("count_zeros", 0),
    ("div_ceil", 1),
    ("div_euclid", 1),
    ("exp", 0),
    ("exp2", 0),
    ("exp_m1", 0),
    ("fract", 0),
    ("hypot", 1),
    ("is_finite", 0),
    ("is_infinite", 0),
    ("is_nan", 0),
    ("is_negative", 0),
    ("is_positive", 0),
    ("is_power_of_two", 0),
    ("is_sign_negative", 0),
    ("is_sign_positive", 0),
    ("leading_ones", 0),
    ("ln", 0),
    ("ln_1p", 0),
    ("log10", 0),
    ("log2", 0),
    ("norm", 0),
    ("norm_sqr", 0),
    ("pow", 1),
    ("powf", 1),
    ("powi", 1),
    ("recip", 0),
    ("rem_euclid", 1),
    ("rotate_left", 1),
    ("rotate_right", 1),
    ("round", 0),
    ("rsqrt", 0),
    ("saturating_add", 1),
    ("saturating_sub", 1),
    ("scale", 1),
    ("signum", 0),
    ("sin", 0),
    ("sinh", 0),
    ("swap_bytes", 0),
    ("tan", 0),
    ("tanh", 0),
    ("trailing_ones", 0),
    ("unsigned_abs", 0),
];

/// Methods of view and place parameters: the names, and the numbers of arguments.
const VIEWS: [(&str, usize); 23] = [
    ("acquire", 1),
    ("add", 2),
    ("and", 2),
    ("compare_exchange", 3),
    ("exchange", 2),
    ("get", 0),
    ("group", 0),
    ("groups", 0),
    ("in_group", 0),
    ("index", 0),
    ("is_inside", 0),
    ("len", 0),
    ("max", 2),
    ("min", 2),
    ("or", 2),
    ("plus", 1),
    ("push", 1),
    ("release", 2),
    ("row_len", 1),
    ("set", 1),
    ("set", 2),
    ("shape", 0),
    ("xor", 2),
];

/// Operations across lanes: the names, and the numbers of arguments.
const LANES: [(&str, usize); 19] = [
    ("alike", 2),
    ("all", 1),
    ("and", 1),
    ("any", 1),
    ("ballot", 1),
    ("max", 1),
    ("min", 1),
    ("or", 1),
    ("scan_and", 1),
    ("scan_max", 1),
    ("scan_min", 1),
    ("scan_or", 1),
    ("scan_sum", 1),
    ("scan_xor", 1),
    ("shuffle", 2),
    ("shuffle_xor", 2),
    ("sum", 1),
    ("sync", 1),
    ("xor", 1),
];

/// The kind of a method that kernels can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// A method of numbers that is one operation of the rule table.
    Number,
    /// A method of numbers that is a kernel function of the library.
    Composed,
    /// A method of a view or place parameter.
    View,
}

/// Returns the number of arguments of the subgroup operation `lanes::name`; `None` if it does not exist.
pub fn lanes(name: &str) -> Option<usize> {
    LANES.iter().find(|(known, _)| *known == name).map(|(_, takes)| *takes)
}

/// Returns the kind of the method `name`, and its number of arguments. If several methods have the name,
/// prefers the method with `arguments` arguments. Returns `None` if kernels have no such method.
pub fn find(name: &str, arguments: usize) -> Option<(Method, usize)> {
    let lists = [(Method::Number, &NUMBERS[..]), (Method::Composed, &COMPOSED), (Method::View, &VIEWS)];
    let all = lists.into_iter().flat_map(|(kind, list)| list.iter().map(move |method| (kind, *method)));
    let named = all.filter(|(_, (known, _))| *known == name).map(|(kind, (_, takes))| (kind, takes));
    named.clone().find(|(_, takes)| *takes == arguments).or_else(|| named.clone().next())
}

/// Methods of iterators, slices and collections, which kernels do not support.
const ITERATORS: [&str; 34] = [
    "all",
    "any",
    "chain",
    "chunks",
    "cloned",
    "collect",
    "contains",
    "copied",
    "count",
    "enumerate",
    "extend",
    "filter",
    "find",
    "first",
    "flat_map",
    "fold",
    "for_each",
    "into_iter",
    "iter",
    "iter_mut",
    "last",
    "map",
    "next",
    "nth",
    "position",
    "product",
    "skip",
    "sort",
    "sum",
    "take",
    "take_while",
    "to_vec",
    "windows",
    "zip",
];

/// Formats a number of arguments in words, for error messages.
pub fn count(arguments: usize) -> String {
    match arguments {
        0 => "no arguments".into(),
        1 => "1 argument".into(),
        more => format!("{more} arguments"),
    }
}

/// Returns true if `name` is a method of iterators, slices or collections.
pub fn is_iterator(name: &str) -> bool {
    ITERATORS.contains(&name)
}

/// Returns advice for the error that kernels do not support the method `name`.
pub fn advice(name: &str) -> String {
    match name {
        name if is_iterator(name) => {
            "kernels have no iterators and slices: write `for i in 0..n` and `a[i]`".into()
        }
        "clone" | "to_owned" => "kernel values are copied: leave it out".into(),
        "checked_add" | "checked_sub" | "checked_mul" | "checked_div" => {
            "kernels do not support `Option`: compare first, or use `wrapping_…` or `saturating_…`".into()
        }
        "unwrap" | "expect" | "unwrap_or" | "unwrap_or_default" | "is_some" | "is_none" | "is_ok"
        | "is_err" => {
            "kernels do not support `Option` and `Result`: compare first, or return a value and a `bool`"
                .into()
        }
        "into" | "try_into" | "from" | "try_from" => "kernels do not support this conversion: cast numbers \
            by `x as T`"
            .into(),
        "to_string" | "push_str" | "as_str" | "as_bytes" | "chars" => {
            "kernels have no strings: use bytes, `&Anywhere<u8>`".into()
        }
        "spawn" | "lock" | "unlock" => {
            "items of a kernel already run in parallel: share data by `&Shared<T>`, and wait at a \
             `barrier()`"
                .into()
        }
        _ => {
            format!(
                "kernels do not support the method `{name}`: write a kernel function and call \
                     `{name}(x)`"
            )
        }
    }
}

/// Returns advice for the error that kernels do not support the associated function `path`.
pub fn associated(path: &str) -> String {
    let path = path.replace(' ', "");
    let of = path.split("::").next().unwrap_or_default();
    match of {
        "Vec" | "Box" | "Rc" | "Arc" | "HashMap" | "HashSet" | "BTreeMap" | "VecDeque" => {
            "kernels have no heap: use an array, `[0; N]`, or memory of the item, `alloc::<T>(n)`".into()
        }
        "String" => "kernels have no strings: use bytes, `&Anywhere<u8>`".into(),
        _ => format!(
            "kernels cannot call the associated function `{path}`: write it as a function with `#[kernel]`, \
             outside of `impl`"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_found_by_name() {
        assert_eq!(find("mul_add", 2), Some((Method::Number, 2)));
        assert_eq!(find("clamp", 0), Some((Method::Composed, 2)));
        assert_eq!((find("set", 1), find("set", 2)), (Some((Method::View, 1)), Some((Method::View, 2))));
        assert_eq!((find("max", 1), find("max", 2)), (Some((Method::Number, 1)), Some((Method::View, 2))));
        assert_eq!((find("swap", 1), lanes("shuffle"), lanes("sort")), (None, Some(2), None));
        assert!(advice("swap").contains("swap(x)") && advice("iter").contains("for i in"));
        assert!(associated("Vec :: new").contains("alloc") && associated("A :: b").contains("`A::b`"));
    }
}
