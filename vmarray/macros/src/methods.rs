//! The methods that kernels know, and how many arguments each takes.

/// What the representation does by itself, and other names for it.
const NUMBERS: [(&str, usize); 24] = [
    ("abs", 0),
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

/// What is written as kernel functions, in `vmarray_kernel::composed` and `math`.
const COMPOSED: [(&str, usize); 53] = [
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
    ("signum", 0),
    ("sin", 0),
    ("sinh", 0),
    ("swap_bytes", 0),
    ("tan", 0),
    ("tanh", 0),
    ("trailing_ones", 0),
    ("unsigned_abs", 0),
];

/// Methods of what kernels are given.
const VIEWS: [(&str, usize); 5] = [("get", 0), ("index", 0), ("len", 0), ("plus", 1), ("set", 1)];

/// Which kind of method a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// One of the rule table.
    Number,
    /// A kernel function of the library.
    Composed,
    /// One of a parameter's.
    View,
}

/// The kind of a method and how many arguments it takes.
pub fn find(name: &str) -> Option<(Method, usize)> {
    let lists = [(Method::Number, &NUMBERS[..]), (Method::Composed, &COMPOSED), (Method::View, &VIEWS)];
    let find = |(kind, list): (Method, &[(&str, usize)])| {
        list.iter().find(|(known, _)| *known == name).map(|(_, arguments)| (kind, *arguments))
    };
    lists.into_iter().find_map(find)
}

/// What to write instead of a method that is not known.
pub fn advice(name: &str) -> String {
    match name {
        "iter" | "into_iter" | "iter_mut" => "write `for i in 0..N` and `a[i]`".into(),
        "clone" | "to_owned" => "values of kernels are copied: leave it out".into(),
        "checked_add" | "checked_sub" | "checked_mul" | "checked_div" => {
            "there is no `Option` in kernels: compare before, or take `wrapping_…` or `saturating_…`".into()
        }
        _ => {
            format!("`{name}` is no method that kernels know: make it a kernel function and call `{name}(x)`")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_found_by_name() {
        assert_eq!(find("mul_add"), Some((Method::Number, 2)));
        assert_eq!(find("clamp"), Some((Method::Composed, 2)));
        assert_eq!(find("set"), Some((Method::View, 1)));
        assert_eq!(find("push"), None);
        assert!(advice("push").contains("push(x)") && advice("iter").contains("for i in"));
    }
}
