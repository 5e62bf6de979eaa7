//! Bounded decoding: decompression of a Zarr chunk yields at most the chunk's length, even if the bytes are
//! malicious. Partial reads verify checksums too.

use std::any::Any;
use std::borrow::Cow;
use std::io::Read as _;
use std::sync::Arc;

use zarrs::array::codec::api::{PartialDecoderCapability, PartialEncoderCapability};
use zarrs::array::{
    ArrayBytesRaw, BytesRepresentation, BytesToBytesCodecTraits, CodecError, CodecMetadataOptions,
    CodecOptions, CodecTraits, RecommendedConcurrency,
};
use zarrs::metadata::Configuration;
use zarrs::plugin::{ExtensionName, ZarrVersion};

/// The format of encoded bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum EncodedBy {
    Zstd,
    Gzip,
    Blosc,
    /// A checksum after the bytes. The codec of the crate `zarrs` does not verify it in partial reads.
    Crc32c,
}

/// A codec whose decoding has a length limit; it always decodes a whole chunk.
#[derive(Debug)]
pub(super) struct BoundedCodec {
    pub(super) of: EncodedBy,
    pub(super) codec: Arc<dyn BytesToBytesCodecTraits>,
    /// The maximum decoded length in bytes.
    pub(super) most: u64,
}

impl ExtensionName for BoundedCodec {
    fn name(&self, version: ZarrVersion) -> Option<Cow<'static, str>> {
        self.codec.name(version)
    }
}

impl CodecTraits for BoundedCodec {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn configuration(&self, version: ZarrVersion, options: &CodecMetadataOptions) -> Option<Configuration> {
        self.codec.configuration(version, options)
    }

    fn partial_decoder_capability(&self) -> PartialDecoderCapability {
        PartialDecoderCapability { partial_read: false, partial_decode: false }
    }

    fn partial_encoder_capability(&self) -> PartialEncoderCapability {
        PartialEncoderCapability { partial_encode: false }
    }
}

impl BytesToBytesCodecTraits for BoundedCodec {
    fn into_dyn(self: Arc<Self>) -> Arc<dyn BytesToBytesCodecTraits> {
        self
    }

    fn recommended_concurrency(
        &self,
        decoded: &BytesRepresentation,
    ) -> Result<RecommendedConcurrency, CodecError> {
        self.codec.recommended_concurrency(decoded)
    }

    fn encoded_representation(&self, decoded: &BytesRepresentation) -> BytesRepresentation {
        self.codec.encoded_representation(decoded)
    }

    fn encode<'a>(
        &self,
        decoded: ArrayBytesRaw<'a>,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        self.codec.encode(decoded, options)
    }

    fn decode<'a>(
        &self,
        encoded: ArrayBytesRaw<'a>,
        decoded: &BytesRepresentation,
        options: &CodecOptions,
    ) -> Result<ArrayBytesRaw<'a>, CodecError> {
        let most = decoded.size().map_or(self.most, |size| size.min(self.most));
        let too_many =
            || CodecError::Other(format!("a decompressed chunk exceeds the limit of {most} bytes"));
        match self.of {
            EncodedBy::Zstd => {
                let bytes = zstd::bulk::decompress(&encoded, most as usize);
                bytes.map(Cow::Owned).map_err(|error| CodecError::Other(format!("zstd: {error}")))
            }
            EncodedBy::Crc32c => self.codec.decode(encoded, decoded, &options.with_validate_checksums(true)),
            EncodedBy::Gzip => {
                let mut bytes = Vec::new();
                let read = flate2::read::GzDecoder::new(&encoded[..]).take(most + 1).read_to_end(&mut bytes);
                read.map_err(|error| CodecError::Other(format!("gzip: {error}")))?;
                if bytes.len() as u64 > most { Err(too_many()) } else { Ok(Cow::Owned(bytes)) }
            }
            EncodedBy::Blosc => {
                // Check the decoded length first: bytes 4 to 7 of the Blosc header of 16 bytes.
                let len = encoded.get(4..8).and_then(|len| len.try_into().ok()).map(u32::from_le_bytes);
                match len {
                    Some(len) if encoded.len() >= 16 && u64::from(len) <= most => {
                        self.codec.decode(encoded, decoded, options)
                    }
                    Some(_) if encoded.len() >= 16 => Err(too_many()),
                    _ => Err(CodecError::Other("blosc: the header is missing".into())),
                }
            }
        }
    }
}
