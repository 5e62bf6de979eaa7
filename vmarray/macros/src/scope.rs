//! Scopes of a kernel's variables and loops, for the resolution of names during macro expansion.

use crate::view::ViewParameter;
use std::collections::HashSet;

/// A local variable or parameter of the kernel function.
#[derive(Clone, Copy)]
pub struct Local {
    /// The index of the variable in the function.
    pub number: u16,
    /// True for a parameter whose type begins with `&`.
    pub is_reference: bool,
    /// The kind of the parameter, if the variable is a view (array) or position parameter.
    pub view: Option<ViewParameter>,
}

/// An open loop, or an open block with a label.
struct Target {
    label: Option<String>,
    is_loop: bool,
    number: u16,
}

/// The variables, loops and labels in scope at a point of the kernel function.
#[derive(Default)]
pub struct VariableScope {
    names: Vec<(String, Local)>,
    locals: u16,
    targets: Vec<Target>,
    labels: u16,
    /// The type parameters of the function.
    pub type_parameters: HashSet<String>,
}

impl VariableScope {
    /// Declares a new variable, which hides earlier variables of its name.
    pub fn declare(&mut self, name: String, is_reference: bool) -> Local {
        let local = Local { number: self.locals, is_reference, view: None };
        self.locals += 1;
        self.names.push((name, local));
        local
    }

    /// Sets the kind of the last declared variable; `None` if it is no view (array) or position.
    pub fn is_view(&mut self, view: Option<ViewParameter>) {
        if let Some((_, local)) = self.names.last_mut() {
            local.view = view;
        }
    }

    /// Returns the variable that a name refers to in the current scope.
    pub fn find(&self, name: &str) -> Option<Local> {
        self.names.iter().rev().find(|(known, _)| known == name).map(|(_, local)| *local)
    }

    /// Opens a scope. Returns the argument for [`VariableScope::leave`]: the current number of names.
    pub fn enter(&self) -> usize {
        self.names.len()
    }

    /// Closes a scope: removes all names after the first `names`.
    pub fn leave(&mut self, names: usize) {
        self.names.truncate(names);
    }

    /// Returns the number of all variables of the function.
    pub fn locals(&self) -> u16 {
        self.locals
    }

    /// Opens a loop or a block that `break` can leave, and returns its label number.
    pub fn open(&mut self, label: Option<String>, is_loop: bool) -> u16 {
        let number = self.labels;
        self.labels += 1;
        self.targets.push(Target { label, is_loop, number });
        number
    }

    /// Returns true if the function has a loop or a labelled block before this point.
    pub fn has_targets(&self) -> bool {
        self.labels > 0
    }

    /// Closes the innermost open loop or block.
    pub fn close(&mut self) {
        self.targets.pop();
    }

    /// Returns the label number of the loop or block that a `break` or `continue` targets.
    pub fn target(&self, label: Option<&str>) -> Option<u16> {
        let is_meant = |target: &&Target| match label {
            Some(label) => target.label.as_deref() == Some(label),
            None => target.is_loop,
        };
        self.targets.iter().rev().find(is_meant).map(|target| target.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_the_last_variable_in_scope() {
        let mut scope = VariableScope::default();
        let outer = scope.declare("x".into(), true).number;
        let names = scope.enter();
        let inner = scope.declare("x".into(), false).number;
        assert_eq!(scope.find("x").map(|local| (local.number, local.is_reference)), Some((inner, false)));
        scope.leave(names);
        assert_eq!(scope.find("x").map(|local| (local.number, local.is_reference)), Some((outer, true)));
        assert!(scope.find("y").is_none());
        assert_eq!(scope.locals(), 2);
    }

    #[test]
    fn breaks_leave_the_innermost_or_the_labelled_loop() {
        let mut scope = VariableScope::default();
        let outer = scope.open(Some("a".into()), true);
        let block = scope.open(Some("b".into()), false);
        assert_eq!((scope.target(None), scope.target(Some("b"))), (Some(outer), Some(block)));
        scope.close();
        assert_eq!((scope.target(Some("a")), scope.target(Some("b"))), (Some(outer), None));
    }
}
