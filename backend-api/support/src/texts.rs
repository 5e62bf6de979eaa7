//! Source texts of kernels, which the program's binary contains in compressed form.

use miniz_oxide::inflate::decompress_to_vec_zlib;
use std::sync::OnceLock;

/// Source texts of kernels, each compressed separately, from a file that `cargo xtask ptx` writes.
///
/// The first access to a text decompresses it (about a millisecond for 300 KB). The text then stays in memory
/// until the program ends.
#[derive(Debug)]
pub struct PackedTexts {
    packed: &'static [u8],
    texts: OnceLock<Vec<PackedText>>,
}

/// One compressed text of a file.
#[derive(Debug)]
struct PackedText {
    name: &'static str,
    packed: &'static [u8],
    unpacked: OnceLock<String>,
}

impl PackedTexts {
    /// Creates the texts from the contents of a file. The file begins with one line for each text: its name
    /// and its number of packed bytes. After an empty line, the packed texts follow: zlib streams of UTF-8.
    #[must_use]
    pub const fn new(packed: &'static [u8]) -> Self {
        Self { packed, texts: OnceLock::new() }
    }

    /// Returns the text with this name, ending with a NUL as a C string.
    ///
    /// # Panics
    /// Panics if the file has no text with this name, or another format than [`new`](Self::new) expects.
    #[must_use]
    pub fn c_text(&self, name: &str) -> &str {
        let texts = self.texts.get_or_init(|| index(self.packed).expect("the packed file is complete"));
        let text = texts.iter().find(|text| text.name == name);
        let text = text.unwrap_or_else(|| panic!("the packed kernel texts have no text named {name:?}"));
        text.unpacked.get_or_init(|| {
            let bytes = decompress_to_vec_zlib(text.packed).expect("each packed text is complete");
            String::from_utf8(bytes).expect("the packed texts are UTF-8") + "\0"
        })
    }

    /// Returns the text with this name, without the NUL.
    ///
    /// # Panics
    /// Panics like [`c_text`](Self::c_text).
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.c_text(name).trim_end_matches('\0')
    }
}

/// Splits a file into its compressed texts; returns `None` if the file has another format.
fn index(file: &'static [u8]) -> Option<Vec<PackedText>> {
    let end = file.windows(2).position(|two| two == b"\n\n")?;
    let (lines, mut rest) = (std::str::from_utf8(&file[..end]).ok()?, &file[end + 2..]);
    let text = |line: &'static str| {
        let (name, bytes) = line.split_once(' ')?;
        let packed;
        (packed, rest) = rest.split_at_checked(bytes.parse().ok()?)?;
        Some(PackedText { name, packed, unpacked: OnceLock::new() })
    };
    lines.lines().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use miniz_oxide::deflate::compress_to_vec_zlib;

    #[test]
    fn texts_are_found_by_their_whole_names() {
        let [first, second] = [&b"first\nlines"[..], b"second"].map(|text| compress_to_vec_zlib(text, 6));
        let lines = format!("copy_list {}\ncopy {}\n\n", first.len(), second.len());
        let packed = [lines.as_bytes(), &first, &second].concat().leak();
        let texts = PackedTexts::new(packed);
        assert_eq!((texts.text("copy"), texts.c_text("copy_list")), ("second", "first\nlines\0"));
        let missing = std::panic::catch_unwind(|| texts.text("cop").len());
        assert!(missing.is_err());
        assert!(index(&packed[..packed.len() - 1]).is_none(), "a file that is cut off");
    }
}
