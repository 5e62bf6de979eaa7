//! Generator of random kernels for `cargo xtask kernels`.

use std::fmt::Write as _;

/// The scalar types of the generated variables.
const TYPES: [&str; 13] =
    ["u8", "u16", "u32", "u64", "usize", "i8", "i16", "i32", "i64", "isize", "f32", "f64", "bool"];
/// The greatest depth of nested expressions and blocks.
const DEPTH_MAX: u32 = 3;

/// The beginning of each generated source file.
const HEAD: &str = "\
use vmarray_kernel::{half::{bf16, f16}, num_complex::Complex};
use vmarray_kernel::{Anywhere, Append, At, KernelType, Own, Shared, interpret, kernel, run_on_host};

#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct Pair { first: i32, second: f32 }

const LIMIT: usize = 5;
const NUMBERS: [u16; 5] = [3, 1, 4, 1, 500];

#[kernel(crate = vmarray_kernel)]
fn swap(a: &mut i32, b: &mut i32) { let old = *a; *a = *b; *b = old; }

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    let bits = *state ^ (*state >> 31);
    match bits % 4 { 0 => bits >> 59, 1 => (bits >> 59).wrapping_neg(), _ => bits }
}

/// Runs both forms of each kernel, and adds kernels with different results to `differing`.
macro_rules! compare {
    ($($name:ident)*) => {{
        let mut differing = Vec::new();
        $(
            let mut state = 42;
            let input: Vec<[u64; 4]> = (0..48).map(|_| std::array::from_fn(|_| random(&mut state))).collect();
            let all: Vec<i32> = (0..20).map(|_| random(&mut state) as i32).collect();
            let table = [1.5, -0.0, 3e9, f32::INFINITY, -7.25];
            let (mut host, mut lowered) = (vec![[7_u64; 4]; 48], vec![[7_u64; 4]; 48]);
            // Create arrays that all work-items (GPU threads) change, and lists to which work-items append.
            let ([mut shared, mut other], [mut found, mut others]) = ([[5_i32; 9]; 2], [[3_u64; 60]; 2]);
            let [mut count, mut other_count] = [0; 2];
            let outside = {
                let found = (&mut found[..], &mut count);
                run_on_host::<$name>(0..48, ((), &input, &all, &table, -3, &mut shared, found, &mut host)).is_err()
            };
            let result = {
                let found = (&mut others[..], &mut other_count);
                interpret::<$name>(0..48, ((), &input, &all, &table, -3, &mut other, found, &mut lowered))
            };
            let is_same = (shared, found, count) == (other, others, other_count);
            match result {
                Ok(report) if host == lowered && is_same && outside == (report.failures > 0) => {}
                Ok(report) => {
                    let item = (0..48).find(|item| host[*item] != lowered[*item]).unwrap_or(48);
                    println!(\"{}: item {item}: {outside} {report:?}\", stringify!($name));
                    if item < 48 {
                        println!(\"  {:?}\\n  {:?}\\n  {:?}\", input[item], host[item], lowered[item]);
                    }
                    differing.push(stringify!($name));
                }
                Err(error) => {
                    println!(\"{}: {error}\", stringify!($name));
                    differing.push(stringify!($name));
                }
            }
        )*
        differing
    }};
}
";

/// Generates the text of a program with `count` random kernels. The program runs each kernel as native code
/// and in the interpreter, and compares the results.
pub fn source(seed: u64, count: usize) -> String {
    let mut source = HEAD.to_owned();
    let mut names = String::new();
    for number in seed..seed + count as u64 {
        source.push_str(&Random::new(number).kernel(number));
        let _ = write!(names, " kernel_{number}");
    }
    let _ = write!(source, "\nfn main() {{\n    let differing = compare!({names});\n");
    source
        .push_str("    if !differing.is_empty() { println!(\"{differing:?}\"); std::process::exit(1) }\n}\n");
    source
}

#[derive(Clone)]
struct Variable {
    name: String,
    of: String,
    is_mutable: bool,
}

/// A helper function: its name, the types of its arguments, and its result.
#[derive(Clone)]
struct Helper {
    name: String,
    takes: Vec<&'static str>,
    gives: &'static str,
}

struct Random {
    state: u64,
    text: String,
    variables: Vec<Variable>,
    helpers: Vec<Helper>,
    /// Labels of the enclosing loops.
    loops: Vec<String>,
    names: usize,
    /// The number of statements that may still be generated for this function.
    budget: u32,
    /// The statement that leaves the function early.
    leave: String,
}

impl Random {
    fn new(seed: u64) -> Self {
        Self {
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678,
            text: String::new(),
            variables: Vec::new(),
            helpers: Vec::new(),
            loops: Vec::new(),
            names: 0,
            budget: 0,
            leave: String::new(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = self.state ^ (self.state >> 29);
        (bits >> 16) as usize % end
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    fn one_in(&mut self, number: usize) -> bool {
        self.below(number) == 0
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn line(&mut self, text: impl AsRef<str>) {
        self.text.push_str("    ");
        self.text.push_str(text.as_ref());
        self.text.push('\n');
    }

    fn declare(&mut self, name: &str, of: &str, is_mutable: bool) {
        self.variables.push(Variable { name: name.into(), of: of.into(), is_mutable });
    }

    fn kernel(mut self, number: u64) -> String {
        for helper in 0..self.below(3) {
            self.helper(format!("helper_{number}_{helper}"));
        }
        self.line("\n#[kernel(crate = vmarray_kernel)]");
        let parameters = "at: At<1>, x: &Own<[u64; 4]>, all: &Anywhere<i32>, table: &[f32; 5], given: i16, \
                          shared: &Shared<i32>, found: &Append<u64>, out: &mut Own<[u64; 4]>";
        self.line(format!("fn kernel_{number}({parameters}) {{"));
        self.variables.clear();
        for (number, of) in ["u64", "i32", "u8", "bool", "f32", "f64", "i16", "usize"].iter().enumerate() {
            let name = self.name();
            let input = format!("x.get()[{}]", number % 4);
            let value = match *of {
                "bool" => format!("{input} % 3 == 1"),
                "f32" => format!("{input} as i64 as f32 / 8.0"),
                "f64" => format!("{input} as i64 as f64 / 64.0"),
                "usize" => format!("{input} as usize % 32"),
                of => format!("{input} as {of}"),
            };
            let is_mutable = self.one_in(2);
            self.line(format!("let {}{name} = {value};", if is_mutable { "mut " } else { "" }));
            self.declare(&name, of, is_mutable);
        }
        self.declare("given", "i16", false);
        self.budget = 22;
        self.leave = "out.set([at.index() as u64, 2, 3, 4]); return;".into();
        self.block(0);
        let mut results = Vec::new();
        for _ in 0..4 {
            let of = self.of(&TYPES);
            let value = self.expr(of, 1);
            results.push(bits(of, &value));
        }
        self.line(format!("out.set([{}]);", results.join(", ")));
        self.line("}");
        self.text
    }

    fn helper(&mut self, name: String) {
        let gives = self.of(&TYPES);
        let takes: Vec<&str> = (0..1 + self.below(3)).map(|_| self.of(&TYPES)).collect();
        self.variables.clear();
        let mut parameters = Vec::new();
        for of in &takes {
            let name = self.name();
            let is_mutable = self.one_in(3);
            parameters.push(format!("{}{name}: {of}", if is_mutable { "mut " } else { "" }));
            self.declare(&name, of, is_mutable);
        }
        self.line("\n#[kernel(crate = vmarray_kernel)]");
        self.line(format!("fn {name}({}) -> {gives} {{", parameters.join(", ")));
        self.budget = 6;
        self.leave = format!("return {};", self.literal(gives));
        self.block(1);
        let value = self.expr(gives, 1);
        self.line(value);
        self.line("}");
        self.helpers.push(Helper { name, takes, gives });
    }

    /// Appends random statements; the caller removes their variables from the scope.
    fn block(&mut self, depth: u32) {
        for _ in 0..2 + self.below(6) {
            if self.budget == 0 {
                return;
            }
            self.budget -= 1;
            self.statement(depth);
        }
    }

    /// Appends random statements in braces.
    fn inner(&mut self, depth: u32) {
        let variables = self.variables.len();
        self.block(depth + 1);
        self.variables.truncate(variables);
    }

    fn statement(&mut self, depth: u32) {
        match self.below(if depth < DEPTH_MAX { 16 } else { 9 }) {
            0..3 => self.new_variable(),
            3..6 => self.assignment(),
            6 if self.is_kernel() && self.one_in(2) => self.together(),
            6 => self.array(),
            7 => self.tuple(),
            8 => match self.below(4) {
                0 if !self.loops.is_empty() => {
                    let (condition, label) = (self.expr("bool", 2), self.loops.clone());
                    let (word, label) = (self.of(&["break", "continue"]), self.of(&label));
                    self.line(format!("if {condition} {{ {word} {label}; }}"));
                }
                1 => {
                    let (condition, leave) = (self.expr("bool", 2), self.leave.clone());
                    let other = self.variable_of("bool");
                    self.line(format!("if {condition} && {other} {{ {leave} }}"));
                }
                _ => self.swapped(),
            },
            9..11 => {
                let condition = self.expr("bool", 1);
                self.line(format!("if {condition} {{"));
                self.inner(depth);
                if self.one_in(2) {
                    self.line("} else {");
                    self.inner(depth);
                }
                self.line("}");
            }
            11 => self.matched(depth),
            12..14 => self.counted(depth),
            14 => self.fuelled(depth),
            _ => self.deferred(),
        }
    }

    fn new_variable(&mut self) {
        let of = self.of(&TYPES);
        let (value, is_mutable) = (self.expr(of, 0), self.one_in(2));
        // To test shadowing, sometimes give the new variable the name of an existing scalar variable.
        let is_scalar =
            |variable: &&Variable| TYPES.contains(&variable.of.as_str()) && !variable.name.contains('.');
        let old: Vec<String> =
            self.variables.iter().filter(is_scalar).map(|variable| variable.name.clone()).collect();
        let name = if self.one_in(4) { self.of(&old) } else { self.name() };
        self.line(format!("let {}{name}: {of} = {value};", if is_mutable { "mut " } else { "" }));
        self.declare(&name, of, is_mutable);
    }

    /// Returns a mutable variable of a scalar type, if there is one.
    fn mutable(&mut self) -> Option<Variable> {
        let mut seen = Vec::new();
        let mut fit = Vec::new();
        for variable in self.variables.iter().rev() {
            if !seen.contains(&&variable.name) {
                seen.push(&variable.name);
                if variable.is_mutable && TYPES.contains(&variable.of.as_str()) {
                    fit.push(variable.clone());
                }
            }
        }
        if fit.is_empty() { None } else { Some(self.of(&fit)) }
    }

    fn assignment(&mut self) {
        let Some(Variable { name, of, .. }) = self.mutable() else { return self.new_variable() };
        let of = TYPES[TYPES.iter().position(|known| *known == of).unwrap_or(0)];
        let value = self.expr(of, 0);
        let operators: &[&str] = match of {
            "bool" => &["=", "&=", "|=", "^="],
            "f32" | "f64" => &["=", "+=", "-=", "*=", "/="],
            _ => &["=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="],
        };
        let operator = self.of(operators);
        self.line(format!("{name} {operator} {value};"));
    }

    fn array(&mut self) {
        let (of, name, len) = (self.of(&TYPES), self.name(), 1 + self.below(5));
        let value = match self.below(3) {
            0 => {
                let values: Vec<String> = (0..len).map(|_| self.expr(of, 2)).collect();
                format!("[{}]", values.join(", "))
            }
            _ => format!("[{}; {len}]", self.expr(of, 2)),
        };
        self.line(format!("let mut {name}: [{of}; {len}] = {value};"));
        for _ in 0..self.below(3) {
            let (at, value) = (self.place(len), self.expr(of, 1));
            self.line(format!("{name}[{at}] = {value};"));
        }
        if self.one_in(3) {
            let copy = self.name();
            self.line(format!("let {copy} = {name};"));
            let (at, value) = (self.place(len), self.expr(of, 1));
            self.line(format!("{name}[{at}] = {value};"));
            self.declare(&copy, &format!("[{of}; {len}]"), false);
        }
        self.declare(&name, &format!("[{of}; {len}]"), true);
    }

    /// Returns true inside of a kernel: helper functions lack the parameters of kernels.
    fn is_kernel(&self) -> bool {
        self.leave.starts_with("out")
    }

    /// Appends an operation of several work-items together, or an operation on private memory.
    fn together(&mut self) {
        match self.below(3) {
            0 => {
                let (condition, value) = (self.expr("bool", 2), self.expr("u64", 1));
                self.line(format!("if {condition} {{ found.push({value}); }}"));
            }
            1 => {
                let change = self.change(0);
                self.line(format!("{change};"));
            }
            _ => {
                let (of, name, len) = (self.of(&TYPES[..12]), self.name(), 1 + self.below(5));
                let wanted = if self.one_in(4) {
                    format!("({}) as usize", self.expr("u16", 2))
                } else {
                    format!("{len}")
                };
                self.line(format!("let {name} = alloc::<{of}>({wanted});"));
                for _ in 0..self.below(4) {
                    let (at, value) = (self.place(len), self.expr(of, 1));
                    self.line(format!("{name}.set({at}, {value});"));
                }
                self.declare(&name, &format!("[{of}; {len}]"), false);
            }
        }
    }

    /// Generates an atomic operation, which returns the old value.
    fn change(&mut self, depth: u32) -> String {
        let (at, value) = (self.expr("usize", 3), self.expr("i32", depth + 1));
        let method = self.of(&["add", "min", "max", "and", "or", "xor", "exchange", "compare_exchange"]);
        let expected = if method == "compare_exchange" { "5, " } else { "" };
        format!("shared.{method}(({at}) % 10, {expected}{value})")
    }

    /// Generates an index, which is mostly inside of the array.
    fn place(&mut self, len: usize) -> String {
        match self.below(4) {
            0 => format!("{}", self.below(len)),
            1 => format!("({}) as usize % {}", self.expr("u8", 2), len + 1),
            _ => format!("({}) % {len}", self.expr("usize", 2)),
        }
    }

    fn tuple(&mut self) {
        let (a, b) = (self.of(&TYPES), self.of(&TYPES));
        let (first, second) = (self.expr(a, 1), self.expr(b, 1));
        let [one, other] = [self.name(), self.name()];
        if self.one_in(2) {
            self.line(format!("let (mut {one}, {other}): ({a}, {b}) = ({first}, {second});"));
            self.declare(&one, a, true);
            self.declare(&other, b, false);
        } else {
            self.line(format!("let mut {one}: ({a}, {b}) = ({first}, {second});"));
            let value = self.expr(b, 1);
            self.line(format!("{one}.1 = {value};"));
            self.line(format!(
                "let {other} = Pair {{ second: {one}.0 as u8 as f32, first: {one}.1 as u8 as i32 }};"
            ));
            self.declare(&format!("{one}.0"), a, false);
            self.declare(&format!("{one}.1"), b, false);
            self.declare(&format!("{other}.first"), "i32", false);
            self.declare(&format!("{other}.second"), "f32", false);
        }
    }

    fn swapped(&mut self) {
        let [a, b] = [self.name(), self.name()];
        let (first, second) = (self.expr("i32", 1), self.expr("i32", 1));
        self.line(format!("let (mut {a}, mut {b}): (i32, i32) = ({first}, {second});"));
        self.line(format!("swap(&mut {a}, &mut {b});"));
        self.declare(&a, "i32", true);
        self.declare(&b, "i32", true);
    }

    fn matched(&mut self, depth: u32) {
        let of = self.of(&TYPES[..10]);
        let value = self.expr(of, 1);
        self.line(format!("match {value} {{"));
        for _ in 0..1 + self.below(3) {
            let pattern = match self.below(4) {
                0 => format!("{}", self.below(4)),
                1 => format!("{} | {}", 4 + self.below(4), 9 + self.below(4)),
                2 => format!("{}..={}", self.below(9), 9 + self.below(50)),
                _ => format!("{}..", 60 + self.below(60)),
            };
            let guard = if self.one_in(3) { format!(" if {}", self.expr("bool", 2)) } else { String::new() };
            self.line(format!("{pattern}{guard} => {{"));
            self.inner(depth);
            self.line("}");
        }
        let name = self.name();
        self.line(format!("{name} => {{"));
        let variables = self.variables.len();
        self.declare(&name, of, false);
        self.block(depth + 1);
        self.variables.truncate(variables);
        self.line("}");
        self.line("}");
    }

    fn counted(&mut self, depth: u32) {
        let of = self.of(&TYPES[..10]);
        let (name, label) = (self.name(), format!("'l{}", self.names));
        let end = if self.one_in(2) {
            format!("{}", self.below(7))
        } else {
            let end = self.expr(of, 2);
            if of.starts_with('i') { format!("({end}) % 5 + 2") } else { format!("({end}) % 7") }
        };
        let dots = self.of(&["..", "..="]);
        let range = match self.below(4) {
            0 => format!("(0{dots}{end}).rev()"),
            1 => format!("(0{dots}{end}).step_by({})", 1 + self.below(3)),
            _ => format!("0{dots}{end}"),
        };
        self.line(format!("{label}: for {name} in {range} {{"));
        let variables = self.variables.len();
        self.declare(&name, of, false);
        self.loops.push(label);
        self.block(depth + 1);
        self.loops.pop();
        self.variables.truncate(variables);
        self.line("}");
    }

    fn fuelled(&mut self, depth: u32) {
        let (fuel, label) = (self.name(), format!("'l{}", self.names));
        let turns = 1 + self.below(9);
        self.line(format!("let mut {fuel} = {turns};"));
        if self.one_in(2) {
            let condition = self.expr("bool", 2);
            self.line(format!("{label}: while {fuel} > 0 && {condition} {{ {fuel} -= 1;"));
            self.loops.push(label);
            self.inner(depth);
            self.loops.pop();
            self.line("}");
        } else {
            let (of, result) = (self.of(&TYPES), self.name());
            let (first, second) = (self.expr(of, 2), self.expr(of, 2));
            let condition = self.expr("bool", 2);
            let head = format!("let {result}: {of} = loop {{ {fuel} -= 1;");
            self.line(format!(
                "{head} if {fuel} == 0 {{ break {first}; }} if {condition} {{ break {second}; }}"
            ));
            let loops = std::mem::take(&mut self.loops);
            self.inner(depth);
            self.loops = loops;
            self.line("};");
            self.declare(&result, of, false);
        }
    }

    fn deferred(&mut self) {
        let (of, name) = (self.of(&TYPES), self.name());
        let (condition, first, second) = (self.expr("bool", 1), self.expr(of, 1), self.expr(of, 1));
        self.line(format!("let {name}: {of};"));
        self.line(format!("if {condition} {{ {name} = {first}; }} else {{ {name} = {second}; }}"));
        self.declare(&name, of, false);
    }

    /// Returns a variable, or a literal if none fits.
    fn variable_of(&mut self, of: &str) -> String {
        let mut seen = Vec::new();
        let mut fit = Vec::new();
        for variable in self.variables.iter().rev() {
            if !seen.contains(&&variable.name) {
                seen.push(&variable.name);
                if variable.of == of {
                    fit.push(variable.name.clone());
                } else if let Some(len) = variable.of.strip_prefix(&format!("[{of}; ")) {
                    fit.push(format!("{}[{len}", variable.name));
                }
            }
        }
        if fit.is_empty() {
            return self.literal(of);
        }
        let chosen = self.of(&fit);
        match chosen.split_once('[') {
            // The chosen variable is an array: index it, sometimes with an index past its end.
            Some((name, len)) => {
                let len = len.trim_end_matches(']').parse().unwrap_or(1);
                let end = len + usize::from(self.one_in(9));
                let at = self.below(end);
                format!("{name}[{at}]")
            }
            None => chosen,
        }
    }

    fn literal(&mut self, of: &str) -> String {
        let number = self.below(40);
        match of {
            "bool" => self.of(&["true", "false"]).into(),
            "f32" | "f64" => {
                let special =
                    [format!("{of}::MAX"), format!("{of}::INFINITY"), format!("-{number}.5e3_{of}")];
                if self.one_in(4) { self.of(&special) } else { format!("{number}.25_{of}") }
            }
            _ => match self.below(6) {
                0 => format!("{of}::MAX"),
                1 => format!("{of}::MIN"),
                2 if of.starts_with('i') => format!("-{number}_{of}"),
                _ => format!("{number}_{of}"),
            },
        }
    }

    /// Generates an expression of a type.
    fn expr(&mut self, of: &'static str, depth: u32) -> String {
        if depth > DEPTH_MAX || self.one_in(4) {
            return if self.one_in(4) { self.literal(of) } else { self.variable_of(of) };
        }
        let depth = depth + 1;
        match self.below(9) {
            0 => {
                let condition = self.expr("bool", depth);
                format!("(if {condition} {{ {} }} else {{ {} }})", self.expr(of, depth), self.expr(of, depth))
            }
            1 => self.called(of, depth),
            2 if of != "bool" => {
                let from = self.of(&TYPES);
                format!("(({}) as {of})", self.expr(from, depth))
            }
            3 => match self.mutable() {
                // Generate an assignment inside of an expression.
                Some(Variable { name, of: other, .. }) if other == of => {
                    format!("{{ {name} = {}; {name} }}", self.expr(of, depth))
                }
                _ => self.variable_of(of),
            },
            4 => self.viewed(of),
            _ => self.operation(of, depth),
        }
    }

    fn called(&mut self, of: &'static str, depth: u32) -> String {
        let fit: Vec<Helper> = self.helpers.iter().filter(|helper| helper.gives == of).cloned().collect();
        if fit.is_empty() {
            return self.variable_of(of);
        }
        let helper = self.of(&fit);
        let arguments: Vec<String> = helper.takes.iter().map(|of| self.expr(of, depth)).collect();
        format!("{}({})", helper.name, arguments.join(", "))
    }

    /// Generates a value from a parameter or a constant.
    fn viewed(&mut self, of: &'static str) -> String {
        let is_kernel = self.is_kernel();
        match of {
            "i32" if is_kernel && self.one_in(3) => self.change(2),
            "i32" if is_kernel && self.one_in(3) => format!("shared[({}) % 10]", self.expr("usize", 3)),
            "i32" if is_kernel => format!("all[({}) % 21]", self.expr("usize", 3)),
            "f32" if is_kernel => format!("table[({}) % LIMIT]", self.expr("usize", 3)),
            "usize" if is_kernel => self.of(&["at.index()", "all.len()", "at.plus(-3).index()"]).into(),
            "u16" => format!("NUMBERS[({}) % (LIMIT + 1)]", self.expr("usize", 3)),
            "usize" => "LIMIT".into(),
            of => self.variable_of(of),
        }
    }

    /// Generates a float computed from floats of 16 bits, or from complex numbers.
    fn foreign(&mut self, of: &'static str, depth: u32) -> String {
        let [a, b, c] = [0; 3].map(|_| self.expr(of, depth));
        let operator = self.of(&["+", "-", "*", "/"]);
        if of == "f32" && self.one_in(2) {
            let half = self.of(&["f16", "bf16"]);
            let (left, right) = (format!("{half}::from_f32({a})"), format!("{half}::from_f32({b})"));
            return match self.below(3) {
                0 => format!("{left}.to_f32()"),
                1 => format!("(-{left} {operator} {right}).to_f32()"),
                _ => {
                    let than = self.of(&["<", "<=", ">", ">=", "==", "!="]);
                    format!("(if {left} {than} {right} {{ {c} }} else {{ {right}.to_f32() }})")
                }
            };
        }
        let (z, w) = (format!("Complex::new({a}, {b})"), format!("Complex {{ re: {c}, im: 0.5_{of} }}"));
        match self.below(5) {
            0 => format!("({z} {operator} {w}).re"),
            1 => format!("(-({w} {operator} {z})).im"),
            2 => format!("{z}.conj().scale({c}).im"),
            3 => format!("{z}.norm_sqr()"),
            _ => format!("(if ({z}) == ({w}) {{ {a} }} else {{ {z}.norm() }})"),
        }
    }

    fn operation(&mut self, of: &'static str, depth: u32) -> String {
        if of == "bool" {
            let other = self.of(&TYPES);
            let operators: &[&str] = if other == "bool" {
                &["&&", "||", "&", "|", "^", "==", "!="]
            } else {
                &["<", "<=", ">", ">=", "==", "!="]
            };
            let operator = self.of(operators);
            let (left, right) = (self.expr(other, depth), self.expr(other, depth));
            let not = self.of(&["", "!"]);
            return format!("{not}(({left}) {operator} ({right}))");
        }
        let is_float = of.starts_with('f');
        if is_float && self.one_in(5) {
            return self.foreign(of, depth);
        }
        let left = self.expr(of, depth);
        if self.one_in(3) {
            let right = self.expr(of, depth);
            let methods: &[&str] = match (is_float, of.starts_with('i')) {
                (true, _) => &[
                    "abs()",
                    "sqrt()",
                    "floor()",
                    "ceil()",
                    "trunc()",
                    "round()",
                    "round_ties_even()",
                    "fract()",
                    "min(_)",
                    "max(_)",
                    "mul_add(_, 0.5)",
                    "recip()",
                    "powi(3)",
                    "clamp(-1.0, 3.5)",
                ],
                (false, is_signed) => {
                    let signed = ["abs()", "signum()"];
                    if is_signed && self.one_in(4) {
                        return format!("({left}).{}", self.of(&signed));
                    }
                    &[
                        "min(_)",
                        "max(_)",
                        "wrapping_add(_)",
                        "saturating_sub(_)",
                        "saturating_add(_)",
                        "rem_euclid(_)",
                        "rotate_left(5)",
                        "swap_bytes()",
                        "reverse_bits()",
                        "pow(3)",
                        "mul_high(_)",
                        "clamp(3, 90)",
                        "count_ones() as _",
                        "leading_zeros() as _",
                        "trailing_zeros() as _",
                        "wrapping_neg()",
                        "div_euclid(_)",
                        "wrapping_shl(9)",
                    ]
                }
            };
            let method = self.of(methods).replace("as _", &format!("as {of}")).replace('_', "\u{0}");
            // NUL stands for `_`. Replace a whole argument, `(` and NUL, by `right`; restore other `_`.
            let method = method.replace("(\u{0}", &format!("({right}")).replace('\u{0}', "_");
            return format!("(({left}).{method})");
        }
        let operators: &[&str] = if is_float {
            &["+", "-", "*", "/"]
        } else {
            &["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]
        };
        let operator = self.of(operators);
        let right = self.expr(of, depth);
        let is_signed = is_float || of.starts_with('i');
        let minus = if is_signed && self.one_in(6) { "-" } else { "" };
        format!("{minus}(({left}) {operator} ({right}))")
    }
}

/// Converts a value to 64 bits.
fn bits(of: &str, value: &str) -> String {
    match of {
        "f32" | "f64" => {
            format!("{{ let v: {of} = {value}; if v.is_nan() {{ 1 }} else {{ v.to_bits() as u64 }} }}")
        }
        _ => format!("({value}) as u64"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_the_same_each_time_and_are_rust() {
        let source = source(5, 20);
        assert_eq!(source, super::source(5, 20));
        let file = syn::parse_file(&source).unwrap();
        let functions = file.items.iter().filter(|item| matches!(item, syn::Item::Fn(_))).count();
        assert!(functions >= 23, "{functions}");
    }
}
