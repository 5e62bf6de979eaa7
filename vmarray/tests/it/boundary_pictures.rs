//! Test that the pictures in the documentation equal the output of the example.

#[path = "../../examples/boundary_modes.rs"]
#[allow(dead_code, reason = "the example's own entry")]
mod boundary_modes;

#[test]
fn pictures_are_up_to_date() {
    for (name, contents) in boundary_modes::files().unwrap() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/boundary").join(&name);
        let is_same = std::fs::read_to_string(path).is_ok_and(|text| text == contents);
        assert!(is_same, "{name} differs: run `cargo run -p vmarray --example boundary_modes`");
    }
}
