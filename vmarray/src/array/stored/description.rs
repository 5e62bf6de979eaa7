//! The description of an array that its files store.

use std::collections::HashMap;

use vmarray_kernel::{Layout, LayoutField};

/// The first line of the description of an array, with its version.
pub(super) const FORMAT: &str = "vmarray array 1";
/// The shape of arrays of one dimension.
pub(crate) const LINEAR: &str = "linear";
/// The shape of ragged rows: elements, and 64-bit row starts in pages of the first file, before its channels
/// of elements. The stored length is the number of rows.
pub(super) const ROWS: &str = "rows";

/// Description of an array in each of its files: lines of `name: value`. The length changes, so each commit
/// notes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Description {
    pub byte_order: String,
    pub element: String,
    /// The shape of the elements, in words.
    pub shape: String,
    pub page_elements: usize,
    /// The file of each channel.
    pub stripe_pattern: Vec<usize>,
    /// The number of this file, and of all files.
    pub file: usize,
    pub files: usize,
    /// A number unique to this array.
    pub array: u64,
}

pub(super) fn native_byte_order() -> String {
    if cfg!(target_endian = "little") { "little" } else { "big" }.into()
}

/// An element type in words: names of structs and fields, kinds, sizes, and offsets of fields.
pub(super) fn in_words(layout: &Layout) -> String {
    match layout {
        Layout::Scalar(of) => format!("{of:?}").to_lowercase(),
        Layout::Array(of, count) => format!("[{}; {count}]", in_words(of)),
        Layout::Tuple(parts) => format!("({})", parts.iter().map(in_words).collect::<Vec<_>>().join(", ")),
        Layout::Struct { name, fields, bytes } => {
            let field = |field: &LayoutField| {
                format!("{}: {} at {}", field.name, in_words(&field.layout), field.offset)
            };
            let fields = fields.iter().map(field).collect::<Vec<_>>().join(", ");
            format!("{name} of {bytes} bytes {{ {fields} }}")
        }
    }
}

impl Description {
    pub fn to_text(&self) -> String {
        let stripe_pattern =
            self.stripe_pattern.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        format!(
            "{FORMAT}\nbyte order: {}\nelement: {}\nshape: {}\nelements of a page: {}\n\
             files of channels: {stripe_pattern}\nfile: {}\nfiles: {}\narray: {:016x}\n",
            self.byte_order, self.element, self.shape, self.page_elements, self.file, self.files, self.array,
        )
    }

    pub fn of_text(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let lines: HashMap<&str, &str> =
            text.strip_prefix(FORMAT)?.lines().filter_map(|line| line.split_once(": ")).collect();
        let number = |name: &str| lines.get(name)?.parse::<usize>().ok();
        let stripe_pattern = lines.get("files of channels")?.split(' ').map(|turn| turn.parse().ok());
        let description = Self {
            byte_order: (*lines.get("byte order")?).into(),
            element: (*lines.get("element")?).into(),
            shape: (*lines.get("shape")?).into(),
            page_elements: number("elements of a page")?,
            stripe_pattern: stripe_pattern.collect::<Option<_>>()?,
            file: number("file")?,
            files: number("files")?,
            array: u64::from_str_radix(lines.get("array")?, 16).ok()?,
        };
        let Self { page_elements, ref stripe_pattern, file, files, .. } = description;
        let is_sound = page_elements > 0 && file < files && stripe_pattern.iter().all(|turn| *turn < files);
        (is_sound && !stripe_pattern.is_empty()).then_some(description)
    }
}

#[cfg(test)]
mod tests {
    use vmarray_kernel::KernelType as _;

    use super::*;

    #[test]
    fn a_description_is_read_as_it_was_written() {
        let description = Description {
            byte_order: "little".into(),
            element: in_words(&<[(u8, f32); 3]>::layout()),
            shape: LINEAR.into(),
            page_elements: 7,
            stripe_pattern: vec![0, 1, 0],
            file: 1,
            files: 2,
            array: 0x123,
        };
        assert_eq!(description.element, "[(u8, f32); 3]");
        let text = description.to_text();
        assert_eq!(Description::of_text(text.as_bytes()), Some(description));
        for line in text.lines() {
            let without = text.replace(line, "");
            assert_eq!(Description::of_text(without.as_bytes()), None, "without {line}");
        }
    }
}
