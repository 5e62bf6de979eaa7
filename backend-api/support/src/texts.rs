//! Texts that a program contains in compressed form.

use miniz_oxide::inflate::decompress_to_vec_zlib;
use std::sync::OnceLock;

/// Source texts of kernels, compressed together. `cargo xtask ptx` makes the file.
///
/// The first access unpacks all texts, which takes a millisecond for some 300 KB of them, and keeps them
/// until the program ends.
#[derive(Debug)]
pub struct PackedTexts {
    packed: &'static [u8],
    unpacked: OnceLock<String>,
}

impl PackedTexts {
    /// Creates texts from the contents of a file: a zlib stream of texts, each as its name, a line break, the
    /// text, and a NUL.
    #[must_use]
    pub const fn new(packed: &'static [u8]) -> Self {
        Self { packed, unpacked: OnceLock::new() }
    }

    /// Returns the text with a name, as a C string: it ends with a NUL.
    ///
    /// # Panics
    /// Panics if the file has no such text, or is not of the form above.
    #[must_use]
    pub fn c_text(&self, name: &str) -> &str {
        let unpack = || {
            let bytes = decompress_to_vec_zlib(self.packed).expect("the build contains a whole zlib stream");
            String::from_utf8(bytes).expect("the packed texts are UTF-8")
        };
        let texts = self.unpacked.get_or_init(unpack).split_inclusive('\0');
        let named = texts.filter_map(|text| text.split_once('\n')).find(|(of, _)| *of == name);
        named.unwrap_or_else(|| panic!("no text is named {name:?}")).1
    }

    /// Returns the text with a name, without the NUL.
    ///
    /// # Panics
    /// Panics like [`c_text`](Self::c_text).
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.c_text(name).trim_end_matches('\0')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use miniz_oxide::deflate::compress_to_vec_zlib;

    #[test]
    fn texts_are_found_by_their_whole_names() {
        let packed = compress_to_vec_zlib(b"copy_list\nfirst\nlines\0copy\nsecond\0", 6).leak();
        let texts = PackedTexts::new(packed);
        assert_eq!((texts.text("copy"), texts.c_text("copy_list")), ("second", "first\nlines\0"));
        let missing = std::panic::catch_unwind(|| texts.text("cop").len());
        assert!(missing.is_err());
    }
}
